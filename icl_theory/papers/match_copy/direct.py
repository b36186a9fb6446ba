"""The loss of two or three keys by direct quadrature, independent of `CopyRisk`.

A query of length r in d dimensions matches one of N keys, with the correlation ρ, and
attention has the matrix W = ωI. The attention is a_m on the match and a_t on another
key t. Averaged over independent values, the loss of a prompt is ½((1 - a_m)² + Σ a_t²).
The lead is the score of the match minus the score of another key.
"""

from __future__ import annotations

import math

import numpy as np

from icl_theory._validate import Array, argument_error
from icl_theory.tokens.gaussian import normal

# The normal law is integrated up to this many standard deviations. The probability
# beyond this range is 2e-17.
REACH = 8.5
# Lengths of the query with a smaller probability are left out.
LEAST_PROBABILITY = 1e-17


def direct_loss(omega: float, d: int, N: int, correlation: float) -> float:
    r"""Return the loss of W = ωI by quadrature over the scores themselves.

    A Gauss–Legendre rule integrates over the length of the query. Given the length, the
    loss of two keys depends on the difference of their scores, which is one normal
    variable. The scores of three keys are three normal variables.

    Raises
    ------
    ValueError
        N is not 2 or 3.

    Examples
    --------
    >>> from icl_theory.papers.match_copy.direct import direct_loss
    >>> round(direct_loss(0.0, d=3, N=2, correlation=0.5), 12)
    0.25
    """
    if N not in (2, 3):
        raise argument_error("N", N, "2 or 3")
    lengths, probs = _lengths(d)
    loss = 0.0
    for r, prob in zip(lengths.tolist(), probs.tolist(), strict=True):
        if N == 2:
            loss += prob * _two_keys(omega, r, correlation)
        else:
            # Nodes and weights of a standard normal variable. Scores are linear in it,
            # with a coefficient of at most |ω|r in size.
            x, weight = normal(_step(abs(omega) * r), REACH)
            # The match has this component along the query, and another key has the
            # component x.
            match_component = correlation * r + math.sqrt(1.0 - correlation**2) * x
            match_scores = omega * r * match_component
            other_scores = omega * r * x
            loss += prob * _three_keys(match_scores, other_scores, weight)
    return loss


def _lengths(d: int, nodes: int = 120) -> tuple[Array, Array]:
    """Return nodes in the length r of a normal vector, and their probabilities.

    The default number of nodes is generous: the density is a single peak of about the
    width 1 in an interval of the length √d + 9.
    """
    x, weight = np.polynomial.legendre.leggauss(nodes)
    # The rule on (-1, 1), moved to (0, √d + 9). Longer vectors have a probability below
    # rounding.
    r = 0.5 * (math.sqrt(d) + 9.0) * (x + 1.0)
    density = np.exp((d - 1.0) * np.log(r) - 0.5 * r**2)  # r^(d-1) e^(-r²/2)
    probs = weight * density
    probs /= probs.sum()
    is_likely = probs > LEAST_PROBABILITY
    return r[is_likely], probs[is_likely]


def _step(scale: float) -> float:
    """Return a step of the trapezoid rule for functions of exp(scale x), x normal."""
    # The nearest pole of 1/(1 + exp(scale x)) is at the distance π/scale from the real
    # axis. The rule with a step h has the error e^(-2π²/(scale h)), here e^(-64). The
    # largest step, ¼, resolves the normal density itself to rounding. A scale below
    # 1e-3 would give this step anyway, and is raised to avoid a division by 0.
    return min(0.25, math.pi**2 / (32.0 * max(scale, 1e-3)))


def _two_keys(omega: float, r: float, correlation: float) -> float:
    """Return the loss of two keys for queries of the length r."""
    # The lead of the match is ωr (ρr + √(1 - ρ²) X - X') with independent standard
    # normal X and X'. The terms in X and X' have the variances 1 - ρ² and 1, and their
    # sum is √(2 - ρ²) times one standard normal variable x.
    spread = omega * r * math.sqrt(2.0 - correlation**2)
    x, weight = normal(_step(abs(spread)), REACH)
    lead = omega * correlation * r**2 + spread * x
    # In the loss ½((1 - a_m)² + a_t²) of the match m and the other key t, both 1 - a_m
    # and a_t are the attention 1/(1 + e^lead) on the wrong key. So the loss is the
    # square of this attention.
    wrong_attention = np.exp(-np.logaddexp(0.0, lead))
    return float(weight @ wrong_attention**2)


def _three_keys(match: Array, other: Array, weight: Array) -> float:
    """Return the loss of three keys.

    ``match`` and ``other`` are the scores of the match and of another key at the nodes
    of a normal variable, which have the weights ``weight``. The normal variables of the
    three keys are independent.
    """
    # The attention on another key divided by the attention on the match. The axes are
    # the nodes of the other key and of the match.
    ratio = np.exp(other[:, None] - match)
    # The ratios of the two other keys, for the same match. The axes are the nodes of
    # the first key, the second key and the match.
    first_ratio = ratio[:, None]
    second_ratio = ratio[None]
    # The match has the attention a_m = 1/total, and the others have a_1 and a_2, their
    # ratios over the total. As a_m = 1 - a_1 - a_2, the loss
    # ½((1 - a_m)² + a_1² + a_2²) is a_1² + a_2² + a_1 a_2.
    total = 1.0 + first_ratio + second_ratio
    loss = (first_ratio**2 + second_ratio**2 + first_ratio * second_ratio) / total**2
    return float(np.einsum("ijk,i,j,k->", loss, weight, weight, weight))
