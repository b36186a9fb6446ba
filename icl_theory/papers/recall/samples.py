r"""How many sentences are needed for a given excess over the Bayes risk.

A sentence ends with a trigger q, which has the probability p_q. The strength λ_q of the
attention after q starts at 0. After training on M sentences to the end, λ_q is still 0
for the *missing* triggers, which occur in no sentence, and infinite for the others.
Without noise a missing trigger costs ln V, with V words, so the excess is ln V times
p(A), the probability of the set A of missing triggers. `missing_probability` is the
probability that p(A) is above a limit, and `failure_probability` the probability that
the excess is above a limit. `sentences_needed` finds the M for a given
`failure_probability`.

With noise, an answer is the noise word with the probability α. Training also learns the
log-odds γ of noise, and the excess depends on the number k of the M answers that are
noise, too.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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

# Largest number of different probabilities of sets of missing triggers. A computation
# with more would take too long.
MOST_SUMS = 20_000
# Largest numbers M of sentences, without noise and with noise. With noise a probability
# of failure is a sum over up to M + 1 terms, which takes longer.
MOST_SENTENCES = 10**9
MOST_NOISY_SENTENCES = 10**5

# `missing_probability` integrates along a circle. The integrand is largest at a saddle,
# and nearly a normal density in the angle. Nodes within this many standard deviations
# of the saddle are used: beyond, the density is less than e^(-12²/2) = 5e-32 of its
# maximum, which is below rounding.
SADDLE_REACH = 12.0
# With this many sentences or fewer the nodes are on the whole circle, because the
# integrand is not yet like a normal density.
WHOLE_CIRCLE = 64
# A sum of probabilities that exceeds a limit by no more than this relative rounding
# error counts as equal to the limit. Sums that agree to `DECIMALS` decimals count as
# equal to each other.
ROUNDING = 1e-9
DECIMALS = 12
# Numbers k of noise answers are left out if their probability is less than this share
# of the probability of the likeliest k. The share is far below rounding.
NEGLIGIBLE_WEIGHT = 1e-30
# Frequencies of noise next to 0 and 1, where the excess is still finite.
LOWEST_FREQUENCY = 1e-300
HIGHEST_FREQUENCY = 1.0 - 2.0**-53


def missing_probability(task: RecallTask, M: int, mass: float) -> float:
    r"""Exact probability that the missing triggers have a mass above m.

    A trigger is missing if it occurs in none of the M sentences. The mass of a set of
    triggers is its total probability. With a Poisson number of sentences the triggers
    are independent. If this number has the mean z, the probability is

    .. math:: E(z) = \sum_{A:\, p(A) > m} \prod_{q \in A} e^{-p_q z}
        \prod_{q \notin A} (1 - e^{-p_q z}),

    computed by adding one trigger after the other. For M sentences the probability is
    :math:`M!\,[z^M]\, e^z E(z)`. This coefficient is a contour integral, which the
    trapezoidal rule computes on a circle around 0. A set of missing triggers with the
    mass s contributes a term like :math:`z^{-M} e^{(1 - s)z}`, with a saddle at
    :math:`z = M/(1 - s)`. The circle goes through this saddle for the least s above m.
    See docs/theory.md, "How many sentences".

    Parameters
    ----------
    task : RecallTask
        Only the probabilities of its triggers matter.
    M, mass : int, float
        Number of sentences, 1 to 10⁹, and the limit m of the mass, at least 0.

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
    >>> # all sentences have the same trigger
    >>> round(icl.recall.missing_probability(task, 5, 0.0) * 2**5, 12)
    2.0
    """
    from scipy.special import gammaln

    instance("task", task, RecallTask, "a RecallTask")
    M = integer("M", M, minimum=1, maximum=MOST_SENTENCES)
    mass = number("mass", mass, zero=True)
    # s, the least mass of a set above m.
    least_mass = _sums_of_probabilities(task, mass, "mass").least_beyond
    # If s is infinite, no set has a mass above m. If s is 1, only the set of all
    # triggers has such a mass. They cannot all be missing, because every sentence has a
    # trigger.
    if least_mass > 1.0 - ROUNDING:
        return 0.0
    nodes_on_circle, indices = _nodes_of_circle(M)
    angle = 2.0 * np.pi / nodes_on_circle * indices
    z = M / (1.0 - least_mass) * np.exp(1j * angle)
    terms = _missing_terms(task, mass, least_mass, z)

    # Multiply ``terms`` so that they become M! e^z E(z)/z^M on the circle with the
    # radius M/(1 - s), without overflow. So far ``terms`` are E(z), in the unit e^(-sz)
    # to the right of 0, and in the unit e^(-z) to the left, see `_missing_terms`.
    is_right = z.real >= 0.0
    log_scale = float(gammaln(M + 1.0)) - M * math.log(M) + M * math.log1p(-least_mass)
    log_unit = np.where(is_right, (1.0 - least_mass) * z, 0.0)  # ln(e^z × unit)
    scale = np.exp(log_scale + log_unit - 1j * M * angle)
    # The other half of the circle has the conjugate terms, so every node counts twice,
    # except nodes on the real axis.
    is_real = (indices == 0) | (2 * indices == nodes_on_circle)
    multiplicity = np.where(is_real, 1.0, 2.0)
    probability = float(np.sum(multiplicity * (terms * scale).real)) / nodes_on_circle
    # Rounding may lead out of the interval [0, 1].
    return min(1.0, max(0.0, probability))


class _Nodes(NamedTuple):
    """Nodes of the trapezoidal rule on a circle.

    The node with the index i has the angle 2π i/nodes_on_circle.
    """

    nodes_on_circle: int  # number of all nodes
    indices: NDArray[np.intp]  # 0, 1, ..., of the nodes that are needed


def _nodes_of_circle(M: int) -> _Nodes:
    """Return the nodes that give the coefficient of z^M in `missing_probability`."""
    # The trapezoidal rule with n > M points also picks up the coefficients of z to the
    # powers M + n, M + 2n, ... On the circle, powers have weights like a Poisson law
    # with the mean M. These powers exceed the mean by n or more, that is by more than
    # 24 standard deviations √M, so their weight is negligible. The term 32 is for small
    # M.
    nodes_on_circle = M + math.ceil(2.0 * SADDLE_REACH * math.sqrt(M)) + 32
    # By symmetry only angles from 0 to π are needed. The last node is at the angle π,
    # or SADDLE_REACH standard deviations from the saddle, which is at the angle 0. Near
    # the saddle the integrand is nearly a normal density in the angle, with the
    # standard deviation 1/√M.
    if M <= WHOLE_CIRCLE:
        last = nodes_on_circle // 2
    else:
        last = math.ceil(
            nodes_on_circle * SADDLE_REACH / (2.0 * math.pi * math.sqrt(M))
        )
    return _Nodes(nodes_on_circle, np.arange(last + 1))


def _missing_terms(task: RecallTask, mass: float, least_mass: float, z: Array) -> Array:
    """Return E(z) of `missing_probability`, scaled so that no term overflows.

    Left of 0, Re z < 0, all terms are in units of e^(-z). Right of 0, the term of a set
    A of missing triggers is in units of e^(-min(p(A), s)z), with s = ``least_mass``.
    All sets above the limit ``mass`` then have the same unit e^(-sz).
    """
    is_right = z.real >= 0.0
    # The sums are over the sets of missing triggers, among the triggers treated so far.
    # Sets up to the limit ``mass`` have a sum for each mass of a set, which is the key.
    sums_up_to_limit: dict[float, Array] = {0.0: np.ones(len(z), dtype=complex)}
    # The sum over the sets above the limit.
    sum_above_limit = np.zeros(len(z), dtype=complex)
    # Likely triggers first: sets then pass the limit early, and fewer keys are needed.
    for p in np.sort(task.probs)[::-1].tolist():
        # If the trigger occurs, the factor is 1 - e^(-pz). To the right of 0 the unit
        # of this factor is 1. To the left its unit is e^(-pz), and the factor in this
        # unit is e^(pz) - 1.
        sign = np.where(is_right, -1.0, 1.0)
        factor_if_occurs = sign * np.expm1(np.where(is_right, -p * z, p * z))
        # A set above the limit remains above it whether or not this trigger is added.
        # Both cases together have the factor 1. To the left, in the unit e^(-pz), this
        # factor is e^(pz) = 1 + (e^(pz) - 1).
        sum_above_limit = sum_above_limit * np.where(
            is_right, 1.0, 1.0 + factor_if_occurs
        )
        next_sums: dict[float, Array] = {}
        for total, terms in sums_up_to_limit.items():
            terms_if_occurs = terms * factor_if_occurs
            next_sums[total] = next_sums.get(total, 0.0) + terms_if_occurs
            with_trigger = round(total + p, DECIMALS)
            # If the trigger is missing, the factor is e^(-pz). Right of 0 the unit of
            # the set changes with its mass. Left of 0, e^(-pz) is the factor's unit.
            exponent = min(with_trigger, least_mass) - min(total, least_mass) - p
            terms_if_missing = terms * np.exp(np.where(is_right, exponent * z, 0.0))
            if with_trigger > mass * (1.0 + ROUNDING):
                sum_above_limit = sum_above_limit + terms_if_missing
            else:
                sum_so_far = next_sums.get(with_trigger, 0.0)
                next_sums[with_trigger] = sum_so_far + terms_if_missing
        sums_up_to_limit = next_sums
    return sum_above_limit


def failure_probability(task: RecallTask, M: int, epsilon: float) -> float:
    r"""Exact probability that training λ on M sentences leaves an excess above ε.

    The excess over the Bayes risk is taken after training to the end with linear or
    ReLU attention. Without noise the probability is :math:`P(\ln V\, p(\text{missing})
    > \varepsilon)`. With noise, let k of the M answers be noise. Training then learns
    the log-odds :math:`\gamma = \ln(k/(M-k))` of noise. A trigger that occurs costs the
    divergence :math:`D(\alpha\|k/M)`, and a missing one costs :math:`\ln(V - 1 +
    e^\gamma) - \alpha\gamma - H(\alpha)`. The number k is binomial and independent of
    the triggers, and the probability is a sum over k. See docs/theory.md, "How many
    sentences".

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
    M = integer("M", M, minimum=1, maximum=MOST_NOISY_SENTENCES)
    return _noisy_failure_probability(task, M, epsilon)


def _noisy_failure_probability(task: RecallTask, M: int, epsilon: float) -> float:
    """Return `failure_probability` for α > 0, as a sum over the noise answers k."""
    from scipy.stats import binom

    k = np.arange(M + 1)
    weight = binom.pmf(k, M, task.alpha)
    excess = _excess_by_noise(task, M)
    # For some k even the triggers that occurred cost more than ε. Training then fails,
    # whatever triggers are missing. `failure_by_noise` is the probability of these k.
    may_succeed = excess.of_occurring <= epsilon
    failure_by_noise = float(weight[excess.of_occurring > epsilon].sum())

    # Let p(A) be the probability of the missing triggers. For the other k the excess is
    # of_occurring + p(A) (of_missing - of_occurring). So training fails if p(A) is
    # above `allowed`, at which the excess is ε.
    matters = may_succeed & (weight > NEGLIGIBLE_WEIGHT * weight.max())
    cost_of_missing = (excess.of_missing - excess.of_occurring)[matters]
    allowed = (epsilon - excess.of_occurring[matters]) / cost_of_missing
    failure_by_missing = 0.0
    chances = _chances_above(task, M, allowed)
    for probability_of_k, chance in zip(weight[matters], chances, strict=True):
        failure_by_missing += probability_of_k * chance
    # Rounding may lead beyond 1.
    return min(1.0, failure_by_noise + float(failure_by_missing))


class _Excess(NamedTuple):
    """Excess losses if k = 0, ..., M of M answers in training are noise, (M + 1,)."""

    of_occurring: Array  # of a sentence whose trigger occurred in training, λ = ∞
    of_missing: Array  # of a sentence whose trigger did not occur, λ = 0


def _excess_by_noise(task: RecallTask, M: int) -> _Excess:
    """Return the excess losses for each number of answers that are noise."""
    k = np.arange(M + 1)
    # If all M answers are of one kind, count half an answer of the other kind, so that
    # γ stays finite.
    noise = np.clip(k, 0.5, M - 0.5)
    gamma = np.log(noise) - np.log(M - noise)
    # ln(V - 1 + e^γ) - αγ - H(α): with λ = 0 all words but noise have the logit 0.
    of_missing = (
        np.logaddexp(math.log(task.V - 1.0), gamma)
        - task.alpha * gamma
        - task.bayes_risk
    )
    return _Excess(of_occurring=divergence(task.alpha, gamma), of_missing=of_missing)


def _chances_above(task: RecallTask, M: int, allowed: Array) -> list[float]:
    """Return the chances that the missing triggers have more than the allowed mass.

    There is one chance for each entry of ``allowed``. A chance changes only where the
    allowed mass passes the mass of a set of triggers. So it is computed once for each
    interval between two neighbouring masses of sets, with the smaller of the two as the
    limit.
    """
    largest_allowed = float(allowed.max(initial=0.0))
    sums = _sums_of_probabilities(task, largest_allowed, "epsilon").sums
    # The first sum is 0, the mass of the empty set, so at least one sum is allowed. The
    # last sum, inf, is never allowed, so every entry has a first refused sum.
    sums = np.append(sums, math.inf)
    first_refused = np.searchsorted(sums, allowed * (1.0 + ROUNDING), side="right")
    chance_by_index = {}
    for index in np.unique(first_refused).tolist():
        largest_allowed_sum = float(sums[index - 1])
        chance_by_index[index] = missing_probability(task, M, largest_allowed_sum)
    return [chance_by_index[index] for index in first_refused.tolist()]


def failure_bound(task: RecallTask, M: int, epsilon: float) -> float:
    r"""Upper bound on `failure_probability` in closed form.

    The result is a union bound over the triggers and a Chernoff bound for the noise:
    :math:`\sum_q (1-p_q)^M` is the expected number of missing triggers. With noise,
    :math:`e^{-M D(a_-\|\alpha)} + e^{-M D(a_+\|\alpha)}` is added, with the relative
    entropy D of two coins. The frequencies of noise :math:`a_\pm`, below and above α,
    are those at which the excess loss is ε if no trigger is missing. See
    docs/theory.md, "How many sentences".

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
    instance("task", task, RecallTask, "a RecallTask")
    M = integer("M", M, minimum=1)
    epsilon = number("epsilon", epsilon)
    bound = 0.0
    # A single trigger has the probability 1 and occurs in every sentence.
    if task.Q > 1:
        bound = float(np.sum(np.exp(M * np.log1p(-task.probs))))
    if task.alpha:
        # One frequency is below α, and one above.
        for end in (LOWEST_FREQUENCY, HIGHEST_FREQUENCY):
            frequency = _frequency_of_cost(task.alpha, epsilon, end)
            bound += math.exp(-M * _bernoulli_divergence(frequency, task.alpha))
    return min(1.0, bound)


def _frequency_of_cost(alpha: float, epsilon: float, end: float) -> float:
    """Return the frequency of noise between α and ``end`` at which the excess is ε.

    If the excess is smaller at all of these frequencies, ``end`` is returned.
    """
    from scipy.optimize import brentq

    def surplus(frequency: float) -> float:
        """Return the excess at this frequency, minus ε."""
        return _bernoulli_divergence(alpha, frequency) - epsilon

    if surplus(end) <= 0.0:
        return end
    return float(brentq(surplus, min(alpha, end), max(alpha, end)))


def _bernoulli_divergence(a: float, b: float) -> float:
    """Return the relative entropy D(a‖b) of coins with the probabilities a and b."""
    from scipy.special import kl_div

    # Each `kl_div(x, y)` is x ln(x/y) - x + y. The linear terms cancel.
    return float(kl_div(a, b) + kl_div(1.0 - a, 1.0 - b))


def sentences_needed(task: RecallTask, epsilon: float, delta: float) -> int:
    r"""Smallest number M(ε, δ) of sentences with `failure_probability` at most δ.

    With noise the probability is not quite monotone in M, since k/M lies on a lattice.
    The bisection starts from an M at which `failure_bound` is at most δ, or from the
    largest allowed M if the bound is above δ at all allowed M. The result is an M at
    which the probability is at most δ, while it is above δ at M - 1. See
    docs/theory.md, "How many sentences".

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
    >>> icl.recall.sentences_needed(task, 0.1, 0.01)
    28
    >>> icl.recall.failure_probability(task, 27, 0.1) > 0.01
    True
    """
    instance("task", task, RecallTask, "a RecallTask")
    epsilon = number("epsilon", epsilon)
    delta = fraction("delta", delta)
    most = MOST_NOISY_SENTENCES if task.alpha else MOST_SENTENCES
    # Double ``high`` until the bound shows that so many sentences are enough.
    high = 1
    while high < most and failure_bound(task, high, epsilon) > delta:
        high = min(2 * high, most)
    # The bound may be above δ at ``most`` sentences, although these are enough.
    if failure_probability(task, high, epsilon) > delta:
        raise argument_error(
            "epsilon",
            epsilon,
            f"larger: {most:,} sentences are not enough (delta = {delta:g})",
        )
    # The probability of failure is at most δ for ``high`` sentences, and larger than δ
    # for ``low`` sentences. The result is at least 1, so training on 0 sentences counts
    # as a failure.
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        if failure_probability(task, middle, epsilon) <= delta:
            high = middle
        else:
            low = middle
    return high


class _Sums(NamedTuple):
    """Total probabilities, or masses, of the sets of triggers."""

    sums: Array  # the different masses up to a limit, increasing, (S,)
    least_beyond: float  # the least mass above the limit, or inf


def _sums_of_probabilities(task: RecallTask, most: float, name: str) -> _Sums:
    """Return the different masses of sets of triggers, up to ``most``.

    Masses are sums of probabilities. Sums that agree to ``DECIMALS`` decimals count as
    equal. If many triggers have equal probabilities, there are therefore only a few
    sums. ``name`` is the argument that an error about too many sums names.
    """
    sums = {0.0}
    least_beyond = math.inf
    limit = most * (1.0 + ROUNDING)
    for p in task.probs.tolist():
        # A sum beyond the limit is not kept, because further triggers only increase it.
        sums_with_trigger = {round(total + p, DECIMALS) for total in sums}
        for total in sums_with_trigger:
            if total <= limit:
                sums.add(total)
            else:
                least_beyond = min(least_beyond, total)
        if len(sums) > MOST_SUMS:
            raise argument_error(
                name,
                most,
                f"smaller: more than {MOST_SUMS:,} sums of probabilities are below it",
            )
    return _Sums(np.array(sorted(sums)), least_beyond)
