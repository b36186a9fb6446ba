r"""Closed forms for descent on in-context recall: rates, bounds and limits.

docs/theory/recall.md derives them, some of them to leading order only. The rows of the
audit compare them with runs.

A sentence ends with a trigger q, which has the probability p_q. The number of triggers
is Q, in formulas :math:`|Q|`. Earlier in the sentence q is followed c times by the
output y, and c_τ times by noise. The parameters are a strength λ_q for each trigger,
the scale v of the values (with softmax attention), and the log-odds γ of noise. V is
the number of words, H the number of words of a sentence, α the probability that an
answer is noise, η the learning rate, and t the step. L is the loss, and
:math:`L_\infty` its limit.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import (
    Array,
    argument_error,
    choice,
    fraction,
    instance,
    integer,
    number,
    plain_numbers,
)
from icl_theory.memory import check_fits
from icl_theory.papers.recall.divergence import divergence
from icl_theory.papers.recall.population import ATTENTION, RecallRisk
from icl_theory.papers.recall.task import RecallTask


def decay_rate(
    task: RecallTask,
    eta: float,
    attention: str = "linear",
    weights: str = "projection",
    v: float | None = None,
) -> float:
    r"""Rate r of linear convergence under normalised descent on λ (and v).

    In the end :math:`L - L_\infty \sim e^{-rt}`. With noise, γ is held at its optimum.

    For linear and ReLU attention :math:`r = \eta/\sqrt{\sum_q c_q^{-2}}`, where
    :math:`c_q` is the least number of times that y follows q in a sentence. The formula
    holds for any probabilities of the triggers as long as r < 2. If all
    :math:`c_q = c`, the rate is :math:`\eta c/\sqrt{|Q|}`.

    For softmax attention with v held, :math:`r = \eta/\sqrt{|Q|}`. A trained v grows
    during training. The rate is then r = ηs without noise, where s is the least share
    of the output among the attended words after a trigger. With noise, the attention on
    other words of a sentence adds to the logit of noise until λ has become large. This
    addition lowers the rate to :math:`r = \eta/\sqrt{s^{-2} + |Q|/4}`, up to
    logarithms. See docs/theory.md, "In-context recall".

    Parameters
    ----------
    task : RecallTask
    eta : float
        Learning rate of normalised gradient descent.
    attention : {"linear", "relu", "softmax", "softmax-limit"}
    weights : {"projection", "identity"}
        Which matrices the model has, see `RecallRisk`. With "identity" and α > 0 the
        model does not attend to noise after a trigger.
    v : float, optional
        Value at which v is held; by default v is trained.

    Returns
    -------
    float, per step

    Examples
    --------
    >>> import icl_theory as icl
    >>> task = icl.recall.RecallTask(20, 4, 8, counts=icl.recall.Counts.fixed(3))
    >>> icl.recall.decay_rate(task, eta=0.5)
    0.75
    """
    _checked(task)
    eta = number("eta", eta)
    if choice("attention", attention, ATTENTION).startswith("softmax"):
        v_is_held = v is not None
        if v_is_held:
            return eta / math.sqrt(task.Q)
        least_share = _least_share(task, attention, weights)
        # The docstring's formula has Q in place of this number. A trigger is not
        # counted if no other words of its sentences add to the logit of noise.
        affected_triggers = _triggers_whose_background_feeds_noise(task)
        return eta / math.sqrt(least_share**-2.0 + affected_triggers / 4.0)
    least_counts = np.array([law.minimum for law in task.counts], dtype=float)
    return eta / math.sqrt(float(np.sum(least_counts**-2.0)))


def loss_bound(risk: RecallRisk, params: ArrayLike) -> float:
    r"""Upper bound :math:`(V-1)\sum_q p_q e^{-\lambda_q}` on the loss without noise.

    The bound holds for linear and ReLU attention and λ >= 0. With noise, the factor V −
    1 becomes V − 2, because the noise word does not count. The result then does not
    bound the loss itself, but the excess of the loss over its value at λ = ∞. See
    docs/theory.md, "In-context recall".

    Parameters
    ----------
    risk, params : RecallRisk, array_like
        A risk with linear or ReLU attention, and values of its parameters.

    Returns
    -------
    float, nats

    Examples
    --------
    >>> import icl_theory as icl
    >>> task = icl.recall.RecallTask(20, 4, 8, counts=icl.recall.Counts.fixed(1))
    >>> risk = icl.recall.RecallRisk(task)
    >>> strengths = [5.0] * 4
    >>> round(risk.loss(strengths), 4)
    0.1205
    >>> round(icl.recall.loss_bound(risk, strengths), 4)
    0.128
    """
    instance("risk", risk, RecallRisk, "a RecallRisk")
    # ``scaled`` stands for softmax attention, which has the scale v.
    if risk.scaled or risk.kappa == 0:
        raise argument_error(
            "risk", risk.attention, "one with linear or relu attention, and kappa = 1"
        )
    strength, _, _ = risk.split(params)
    if (strength < 0).any():
        raise argument_error("params", params, "with all strengths λ >= 0")
    # A tied λ stands for all triggers, whose probabilities sum to 1.
    probs = np.ones(1) if risk.tied else risk.task.probs
    # all words but y, or with noise all but y and the noise word
    other_words = risk.task.V - (2 if risk.noisy else 1)
    return float(other_words * (probs @ np.exp(-strength)))


def plain_tail(task: RecallTask, eta: float, attention: str = "linear") -> float:
    r"""Limit of t times the excess under plain gradient descent.

    Plain descent converges like 1/t. Without noise, or with γ trained, the limit is
    :math:`\sum_q 1/(\eta c_q^2)` for linear and ReLU attention, and :math:`1/(\eta
    s^2)` for softmax attention, with :math:`c_q` and s as in `decay_rate`. It does not
    depend on the probabilities of the triggers. The function returns this limit.

    If γ is held at its optimum, softmax attention on other words adds to the logit of
    noise as well. The limit is then :math:`(s^{-2} + |Q|/4)/\eta`, which runs approach
    only like 1/ln t. The function does not return this second limit. See
    docs/theory.md, "In-context recall".

    Parameters
    ----------
    task, eta, attention
        As for `decay_rate`; ``eta`` is the learning rate of gradient descent.

    Returns
    -------
    float, nats times steps

    Examples
    --------
    >>> import icl_theory as icl
    >>> task = icl.recall.RecallTask(20, 4, 8, counts=icl.recall.Counts.fixed(1))
    >>> icl.recall.plain_tail(task, eta=0.5)
    8.0
    """
    _checked(task)
    eta = number("eta", eta, minimum=1e-200)  # 1/η must not overflow
    if choice("attention", attention, ATTENTION).startswith("softmax"):
        return 1.0 / (eta * _least_share(task, attention) ** 2)
    return float(sum(law.minimum**-2.0 for law in task.counts)) / eta


def stall(alpha: float, eta: float) -> float:
    r"""Excess :math:`\alpha(1-\alpha)\eta^2/8` at which normalised descent stays.

    Descent on λ and γ together does not converge, because every step has the length η.
    In the end all of this length goes into γ, which jumps between ½η below and ½η above
    its optimum. The result is the leading order in η. See docs/theory.md, "In-context
    recall".

    Parameters
    ----------
    alpha, eta : float
        Probability that the next word is noise, and the learning rate.

    Returns
    -------
    float, nats

    Examples
    --------
    >>> import icl_theory as icl
    >>> round(icl.recall.stall(alpha=0.1, eta=0.5), 7)
    0.0028125
    """
    eta = number("eta", eta, maximum=1e150)  # η² must not overflow
    alpha = fraction("alpha", alpha)
    return alpha * (1.0 - alpha) * eta / 8.0 * eta


def cycle_excess(alpha: float, eta: float) -> float:
    r"""Mean excess of a γ that jumps between ½η below and ½η above its best value g.

    The result is :math:`\tfrac12 \ln[(1 + e^{g + \eta/2})(1 + e^{g - \eta/2})] - \ln(1
    + e^g)` for any η, with :math:`g = \ln(\alpha/(1 - \alpha))`. `stall` is its leading
    order, and explains the arguments.
    """
    best_gamma = math.log(alpha) - math.log1p(-alpha)
    both_ends = best_gamma + np.array([-0.5, 0.5]) * eta
    # `divergence` returns the excess ln(1 + e^γ) - αγ - H(α), with the entropy H(α) of
    # the noise. Averaged over both ends, αγ + H(α) is αg + H(α) = ln(1 + e^g).
    return float(np.mean(divergence(alpha, both_ends)))


def missing_loss(task: RecallTask, M: ArrayLike) -> Array:
    r"""Expected loss from triggers that do not occur in M sentences.

    The result is :math:`\ln V \sum_q p_q (1-p_q)^M`. Without noise this is the mean
    excess over the Bayes risk after training on M sentences to the end. See
    docs/theory.md, "In-context recall".

    Parameters
    ----------
    task, M : RecallTask, array_like of int
        The task, and numbers of sentences.

    Returns
    -------
    ndarray, of the shape of M, nats

    Examples
    --------
    >>> import icl_theory as icl
    >>> task = icl.recall.RecallTask(20, 4, 8, counts=icl.recall.Counts.fixed(1))
    >>> icl.recall.missing_loss(task, [0, 10]).round(4)
    array([2.9957, 0.1687])
    """
    sentences = plain_numbers("M", M)[..., None]
    # three arrays of float64, with a number for each M and each trigger
    check_fits("M", M, 24.0 * sentences.size * _checked(task).Q)
    p = task.probs
    missing = np.sum(p * (1.0 - p) ** sentences, axis=-1)
    return np.asarray(math.log(task.V) * missing)


def noise_cost(M: int, alpha: float) -> float:
    """Expected loss from learning the frequency of noise on M sentences, about 1/(2M).

    Frequencies of 0 and 1, at which γ = ±∞ has an infinite cost, are left out. See
    docs/theory.md, "In-context recall".

    Parameters
    ----------
    M, alpha : int, float
        Number of sentences, and probability in (0, 1) that the next word is noise.

    Returns
    -------
    float, nats

    Examples
    --------
    >>> import icl_theory as icl
    >>> round(icl.recall.noise_cost(1000, alpha=0.1) * 2000, 3)
    1.008
    """
    from scipy.stats import binom

    M = integer("M", M, minimum=1)
    alpha = fraction("alpha", alpha)
    k = _counts_of_noise(M, alpha)
    # In one sentence, noise has the frequency 0 or 1, and both are left out.
    weight = binom.pmf(k, M, alpha) if M > 1 else np.zeros(1)
    total = float(weight.sum())
    # All probability may be at the frequencies 0 and 1, which are left out.
    if not total:
        return 0.0
    # With noise in k of M answers, training ends at the log-odds γ = ln(k/(M - k)).
    cost = divergence(alpha, np.log(k) - np.log(M - k))
    return float(weight @ cost / total)


def _counts_of_noise(M: int, alpha: float) -> Array:
    """Return the likely counts of noise among M answers.

    The counts 0 and M are left out, see `noise_cost`. If there are many likely counts,
    only about eight in each standard deviation are returned, at equal distances.
    """
    mean = M * alpha
    standard_deviation = math.sqrt(M * alpha * (1.0 - alpha))
    # A sum over a smooth law may leave out counts: eight nodes in a standard deviation
    # are more than enough for the trapezoid rule on a nearly normal law. If the
    # standard deviation is at most 200, the sum over all counts is short anyway.
    stride = 1
    if standard_deviation > 200.0:
        stride = int(standard_deviation / 8.0)
    # Generous: counts farther than this from the mean have probabilities below
    # rounding. The constant 60 is for small means, for which the law is nearly
    # Poisson's.
    reach = 40.0 * standard_deviation + 60
    first = int(min(max(mean - reach, 1), M - 1))
    last = int(min(max(mean + reach, 1), M - 1))
    return np.arange(first, last + 1, stride, dtype=np.float64)


def _checked(task: RecallTask) -> RecallTask:
    """Return a task, and refuse anything else."""
    return instance("task", task, RecallTask, "a RecallTask")


def _least_share(
    task: RecallTask, attention: str, weights: str = "projection"
) -> float:
    """Least share c/(c + c_τ) of the output among the attended words after a trigger.

    In the limit of long contexts every sentence has the share of the mean counts.
    """
    laws = dict.fromkeys(task.counts)  # each law once
    if attention == "softmax-limit":
        return min(law.mean / (law.mean + law.noise_mean) for law in laws)
    # With noise, the attention matrix of the weights "identity" has a term that cancels
    # the attention on noise after a trigger. Without noise it lacks this term.
    if weights == "identity" and task.alpha:
        return 1.0
    shares = []
    for law in laws:
        # The probability of the counts c and c_τ is pmf[c, c_τ].
        c, c_tau = np.nonzero(law.pmf)
        shares.append(float(np.min(c / (c + c_tau))))
    return min(shares)


def _triggers_whose_background_feeds_noise(task: RecallTask) -> int:
    """Number of triggers in whose sentences background words add to the noise logit.

    Background words are all words of a sentence outside the bigrams of the trigger,
    except the last word. The feed-forward layer adds the attention on the background
    words that may be outputs to the logit of noise.
    """
    # V = Q + 2 leaves no word besides y that may be an output.
    if not task.alpha or task.V == task.Q + 2:
        return 0
    # The c + c_τ bigrams take two words each. On average they must leave some of the
    # first H - 1 words to the background.
    return sum(2.0 * (law.mean + law.noise_mean) < task.H - 1 for law in task.counts)
