r"""How many sentences are needed: the probability that training on M of them leaves a given excess.

After training on M sentences to the end exactly those triggers are at λ = 0 that occur
in no sentence. Without noise the excess is therefore ln V times the probability of the
missing triggers.
"""

from __future__ import annotations

import math

import numpy as np

from icl_theory._validate import (
    Array,
    argument_error,
    fraction,
    instance,
    integer,
    number,
)
from icl_theory.papers.recall.divergence import divergence
from icl_theory.papers.recall.task import RecallTask

MOST_SETS = 20_000  # sums of probabilities of missing triggers; more take too long
MOST_SENTENCES = 10**9
MOST_NOISY = 10**5  # sentences, with noise


def missing_probability(task: RecallTask, M: int, mass: float) -> float:
    r"""Probability that the triggers missing from M sentences have a total probability above ``mass``, exactly.

    With a Poisson number of sentences the triggers are independent. The generating
    function at z, computed by adding one trigger after the other, is

    .. math:: E(z) = \sum_{A:\, p(A) > m} \prod_{q \in A} e^{-p_q z} \prod_{q \notin A} (1 - e^{-p_q z}),

    and the probability for M sentences is :math:`M!\,[z^M]\, e^z E(z)`, by the
    trapezoidal rule on a circle around 0. Where one of the sets of least probability s
    decides, it goes through the saddle :math:`M/(1 - s)`. See docs/theory.md, "How many
    sentences".

    Parameters
    ----------
    task : RecallTask
        Only the probabilities of its triggers matter.
    M, mass : int, float
        Number of sentences, 1 to 10⁹, and the probability m, at least 0.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        An argument is out of range, or there are more than 20,000 different sums up to
        m.

    Examples
    --------
    >>> import icl_theory as icl
    >>> task = icl.recall.RecallTask(20, 2, 8, counts=icl.recall.Counts.fixed(1))
    >>> round(icl.recall.missing_probability(task, 5, 0.0) * 2**5, 12)  # all sentences have the same trigger
    2.0
    """
    from scipy.special import gammaln

    instance("task", task, RecallTask, "a RecallTask")
    M = integer("M", M, minimum=1, maximum=MOST_SENTENCES)
    mass = number("mass", mass, zero=True)
    least = _sums(task, mass, "mass")[1]
    if least > 1.0 - 1e-9:  # of no set, or of all triggers, and there are sentences
        return 0.0
    # half-width of the saddle in standard deviations; for few sentences the whole
    # circle is used
    spread = 12.0
    points = M + math.ceil(2.0 * spread * math.sqrt(M)) + 32
    last = (
        points // 2
        if M <= 64
        else math.ceil(points * spread / (2.0 * math.pi * math.sqrt(M)))
    )
    angle = 2.0 * np.pi / points * np.arange(last + 1)
    z = M / (1.0 - least) * np.exp(1j * angle)
    # a term is in units of e^(-min(p(A), s)z) to the right of 0, and to the left in
    # units of e^(-z): none overflows
    right = z.real >= 0.0
    below: dict[float, Array] = {0.0: np.ones(len(z), dtype=complex)}
    above = np.zeros(len(z), dtype=complex)
    for p in np.sort(task.probs)[::-1].tolist():
        met = np.where(right, -1.0, 1.0) * np.expm1(np.where(right, -p * z, p * z))
        # with this trigger or without it
        above = above * np.where(right, 1.0, 1.0 + met)
        after: dict[float, Array] = {}
        for total, chance in below.items():
            after[total] = after.get(total, 0.0) + chance * met
            more = round(total + p, 12)
            missed = chance * np.exp(
                np.where(right, (min(more, least) - min(total, least) - p) * z, 0.0)
            )
            if more > mass * (1.0 + 1e-9):
                above = above + missed
            else:
                after[more] = after.get(more, 0.0) + missed
        below = after
    log = float(gammaln(M + 1.0)) - M * math.log(M) + M * math.log1p(-least)
    scale = np.exp(log + np.where(right, (1.0 - least) * z, 0.0) - 1j * M * angle)
    twice = np.where(
        (np.arange(last + 1) == 0) | (2 * np.arange(last + 1) == points), 1.0, 2.0
    )
    return min(1.0, max(0.0, float(np.sum(twice * (above * scale).real)) / points))


def failure_probability(task: RecallTask, M: int, epsilon: float) -> float:
    r"""Probability that training λ on M sentences to the end leaves more than ε above the Bayes risk, exactly.

    Linear or ReLU attention. Without noise it is :math:`P(\ln V\, p(\text{missing}) >
    \varepsilon)`. With noise :math:`\gamma = \ln(k/(M-k))` is the estimate from the k
    answers that are noise; k is binomial and independent of the triggers. Triggers that
    occur cost the divergence d of k/M from α, missing ones :math:`\ln(V - 1 + e^\gamma)
    - \alpha\gamma - H(\alpha)`; the probability is a sum over k. See docs/theory.md,
    "How many sentences".

    Parameters
    ----------
    task : RecallTask
    M, epsilon : int, float
        Number of sentences, with noise at most 10⁵, and ε > 0, nats.

    Returns
    -------
    float

    Examples
    --------
    >>> import icl_theory as icl
    >>> task = icl.recall.RecallTask(60, 5, 4, H=256, law="planted")
    >>> round(icl.recall.failure_probability(task, 30, 0.1), 6)  # 5 (4/5)^30, nearly
    0.006187
    """
    instance("task", task, RecallTask, "a RecallTask")
    epsilon = number("epsilon", epsilon)
    if not task.alpha:
        return missing_probability(task, M, epsilon / math.log(task.V))
    from scipy.stats import binom

    M = integer("M", M, minimum=1, maximum=MOST_NOISY)
    k = np.arange(M + 1)
    noise = np.clip(k, 0.5, M - 0.5)
    gamma = np.log(noise) - np.log(M - noise)
    met = divergence(task.alpha, gamma)
    missing = (
        np.logaddexp(math.log(task.V - 1.0), gamma)
        - task.alpha * gamma
        - task.bayes_risk
    )
    weight = binom.pmf(k, M, task.alpha)
    worth = (met <= epsilon) & (weight > 1e-30 * weight.max())
    allowed = (epsilon - met[worth]) / (missing - met)[worth]
    total = float(weight[met > epsilon].sum())
    sums = np.append(
        _sums(task, float(allowed.max(initial=0.0)), "epsilon")[0], math.inf
    )
    # index of the first sum not allowed
    step = np.searchsorted(sums, allowed * (1.0 + 1e-9), side="right")
    chances = {
        int(i): missing_probability(task, M, float(sums[i - 1]))
        for i in np.unique(step)
    }
    return min(
        1.0,
        total
        + float(
            sum(w * chances[int(i)] for w, i in zip(weight[worth], step, strict=True))
        ),
    )


def failure_bound(task: RecallTask, M: int, epsilon: float) -> float:
    r"""Upper bound on `failure_probability` in closed form: union over the triggers, Chernoff for the noise.

    :math:`\sum_q (1-p_q)^M`, the expected number of missing triggers, plus with noise
    :math:`e^{-M D(a_-\|\alpha)} + e^{-M D(a_+\|\alpha)}` with the frequencies
    :math:`a_\pm` of noise that cost ε. See docs/theory.md, "How many sentences".

    Parameters
    ----------
    task, M, epsilon
        As for `failure_probability`; M may be any positive integer.

    Returns
    -------
    float
        At most 1.

    Examples
    --------
    >>> import icl_theory as icl
    >>> task = icl.recall.RecallTask(60, 5, 4, H=256, law="planted")
    >>> round(icl.recall.failure_bound(task, 30, 0.1), 6)
    0.00619
    """
    from scipy.optimize import brentq
    from scipy.special import kl_div

    instance("task", task, RecallTask, "a RecallTask")
    M = integer("M", M, minimum=1)
    epsilon = number("epsilon", epsilon)
    bound = float(np.sum(np.exp(M * np.log1p(-task.probs)))) if task.Q > 1 else 0.0
    if task.alpha:
        a = task.alpha
        for side in (1e-300, 1.0 - 2.0**-53):

            def surplus(x: float) -> float:
                return float(kl_div(a, x) + kl_div(1.0 - a, 1.0 - x)) - epsilon

            end = (
                brentq(surplus, min(a, side), max(a, side))
                if surplus(side) > 0.0
                else side
            )
            bound += math.exp(-M * float(kl_div(end, a) + kl_div(1.0 - end, 1.0 - a)))
    return min(1.0, bound)


def sentences_needed(task: RecallTask, epsilon: float, delta: float) -> int:
    r"""Smallest number of sentences M(ε, δ) from which on `failure_probability` is at most δ.

    With noise the probability is not quite monotone in M, since k/M lies on a lattice.
    The bisection starts from an M at which `failure_bound` is below δ, and returns an M
    at which the probability falls below δ. See docs/theory.md, "How many sentences".

    Parameters
    ----------
    task, epsilon, delta
        As for `failure_probability`, and the largest probability δ, in (0, 1).

    Returns
    -------
    int

    Raises
    ------
    ValueError
        More than 10⁹ sentences would be needed (10⁵ with noise).

    Examples
    --------
    >>> import icl_theory as icl
    >>> task = icl.recall.RecallTask(60, 5, 4, H=256, law="planted")
    >>> icl.recall.sentences_needed(task, 0.1, 0.01), icl.recall.failure_probability(task, 27, 0.1) > 0.01
    (28, True)
    """
    instance("task", task, RecallTask, "a RecallTask")
    epsilon = number("epsilon", epsilon)
    delta = fraction("delta", delta)
    most = MOST_NOISY if task.alpha else MOST_SENTENCES
    low, high = 0, 1
    while high < most and failure_bound(task, high, epsilon) > delta:
        high = min(2 * high, most)
    if failure_probability(task, high, epsilon) > delta:
        raise argument_error(
            "epsilon",
            epsilon,
            f"larger: {most:,} sentences are not enough (delta = {delta:g})",
        )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (low, middle)
            if failure_probability(task, middle, epsilon) <= delta
            else (middle, high)
        )
    return high


def _sums(task: RecallTask, most: float, name: str) -> tuple[Array, float]:
    """Probabilities of sets of triggers up to ``most``, increasing, and the least one beyond, or inf."""
    sums = {0.0}
    beyond = math.inf
    limit = most * (1.0 + 1e-9)
    for p in task.probs.tolist():
        more = {round(total + p, 12) for total in sums}
        beyond = min([beyond, *(each for each in more if each > limit)])
        sums |= {each for each in more if each <= limit}
        if len(sums) > MOST_SETS:
            raise argument_error(
                name,
                most,
                f"smaller: more than {MOST_SETS:,} sums of probabilities are below it",
            )
    return np.array(sorted(sums)), beyond
