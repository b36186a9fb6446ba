r"""The risk of in-context recall under the reparameterisation, exactly: linear, ReLU and softmax attention.

What is trained are a strength λ_q per trigger, the value scale v (softmax), and the log-odds of noise γ (with
noise, by the feed-forward layer). Relative to the logit of the output y, a sentence gives the noise word a logit N
and all other words together the log-sum R; then

    L = E[ln(1 + e^N + e^R)] − α E[N]        (no noise: N = −∞, and the noise word is one of the others)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.polynomial.legendre import leggauss
from numpy.typing import ArrayLike, NDArray

from icl_theory._validate import Array, choice, refuse, store
from icl_theory.engine.risk import Risk
from icl_theory.families.recall.task import RecallTask, Sentences, Words, entropy

NODES, WEIGHTS = leggauss(20)  # on (-1, 1)
ATTENTION = ("linear", "relu", "softmax")


class Atoms(NamedTuple):
    """Sentences that the model cannot tell apart: which λ is theirs, number c of bigrams, probability."""

    group: Words
    c: Array
    weight: Array


class _Logits(NamedTuple):
    """N and R of the atoms with their derivatives by λ and v; ``noise`` is None without noise.

    Derivatives of N leave out γ, by which it is 1.
    """

    rest: Array
    rest_strength: Array
    rest_scale: Array
    noise: Array | None
    noise_strength: Array
    noise_scale: Array


@dataclass(frozen=True, eq=False)
class RecallRisk(Risk):
    r"""Cross-entropy of the next word, nats, as a function of ``(lambda_1, ..., lambda_Q, [v], [gamma])``.

    Linear and ReLU attention put the weight :math:`\lambda_q` on each word that followed q:

    .. math::
        L(\lambda) = \sum_q p_q E_c \ln\bigl(1 + (V-1)e^{-\lambda_q c}\bigr), \qquad
        L(\lambda, \gamma) = \sum_q p_q E_c \ln\bigl(1 + e^\gamma + (V-2)e^{-\lambda_q c}\bigr) - \alpha\gamma.

    Softmax attention is taken in the limit of long contexts that keep the task's average fractions
    :math:`\rho = E[c + c_\tau]/(H-1)` of words after q, :math:`\rho_y = E[c]/(H-1)` of them the output: with
    :math:`Z = \rho e^\lambda + 1 - \rho`, the logit of y is v times :math:`A + B`,
    :math:`A = \rho_y e^\lambda/Z`, that of the other words that may be outputs v times
    :math:`B = \frac{1 - 2\rho}{V-1}/Z`, and 0 for triggers.

    Parameters
    ----------
    task : RecallTask
        The task.
    attention : {"linear", "relu", "softmax"}
        The attention weights; ReLU has the derivative 1 at 0, or it would not start.
    gamma : float, optional
        Hold γ at this value instead of training it (tasks with noise only).
    tied : bool
        One λ for all triggers, which must be alike: the same descent with one number, its metric being Q.
    data : Sentences, optional
        The empirical risk over these sentences instead of the population risk. Softmax, in its limit, takes
        from them the frequencies of triggers and noise alone.

    Raises
    ------
    ValueError
        An argument out of range or in contradiction with another, named in the message.

    References
    ----------
    docs/theory.md, "In-context recall".

    Examples
    --------
    >>> import icl_theory as icl
    >>> task = icl.recall.RecallTask(V=20, triggers=4, outputs=8, counts=icl.recall.Counts.fixed(1))
    >>> risk = icl.recall.RecallRisk(task)
    >>> round(risk.loss([0.0] * 4), 6), f"{risk.loss([700.0] * 4):.9g}"
    (2.995732, '1.87333854e-303')
    """

    task: RecallTask
    attention: str = "linear"
    gamma: float | None = None
    tied: bool = False
    data: Sentences | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.task, RecallTask):
            raise refuse("task", self.task, "a RecallTask")
        choice("attention", self.attention, ATTENTION)
        if self.tied and (not self.task.alike or self.data is not None):
            raise refuse("tied", self.tied, "False unless all triggers are alike, and for empirical risks")
        if self.gamma is not None:
            if not self.noisy:
                raise refuse("gamma", self.gamma, "left out where alpha = 0: there is no noise to predict")
            store(self, gamma=held_gamma(self.gamma))

    @property
    def noisy(self) -> bool:
        """Whether the model has a feed-forward layer, for noise."""
        return self.task.alpha > 0

    @property
    def strengths(self) -> int:
        """How many λ there are."""
        return 1 if self.tied else self.task.Q

    @property
    def initial(self) -> Array:
        """Zero."""
        softmax, trained = self.attention == "softmax", self.noisy and self.gamma is None
        return np.zeros(self.strengths + softmax + trained)

    @property
    def metric(self) -> float | Array:
        """Ones, except that a tied λ stands for Q numbers."""
        if not self.tied:
            return 1.0
        metric = np.ones(len(self.initial))
        metric[0] = self.task.Q
        return metric

    @cached_property
    def noise_rate(self) -> float:
        """Probability that the answer is noise: α, or its frequency in the data."""
        if self.data is None:
            return self.task.alpha
        return float(np.mean(self.data.answer == self.task.noise_word)) if self.noisy else 0.0

    def split(self, params: ArrayLike) -> tuple[Array, float, float]:
        """Return λ (Q,) or (1,), v (1 unless softmax) and γ (-inf without noise)."""
        return self._split(self._checked(params))

    def _split(self, flat: Array) -> tuple[Array, float, float]:
        scale = float(flat[self.strengths]) if self.attention == "softmax" else 1.0
        gamma = -math.inf if not self.noisy else float(flat[-1]) if self.gamma is None else self.gamma
        return flat[: self.strengths], scale, gamma

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss in nats, and its gradient."""
        logits = self._logits(params)
        weight = self._atoms.weight
        noise = logits.noise
        others = logits.rest if noise is None else np.logaddexp(logits.rest, noise)
        losses = np.logaddexp(0.0, others)
        p_rest = np.exp(logits.rest - losses)
        slope, by_scale = p_rest * logits.rest_strength, p_rest * logits.rest_scale
        loss = float(weight @ losses)
        by_gamma = 0.0
        if noise is not None:
            surplus = np.exp(noise - losses) - self.noise_rate
            slope, by_scale = slope + surplus * logits.noise_strength, by_scale + surplus * logits.noise_scale
            loss -= self.noise_rate * float(weight @ noise)
            by_gamma = float(weight @ surplus)
        by_strength = np.bincount(self._atoms.group, weights=weight * slope, minlength=self.strengths)
        parts = [by_strength]
        if self.attention == "softmax":
            parts.append(np.array([weight @ by_scale]))
        if self.noisy and self.gamma is None:
            parts.append(np.array([by_gamma]))
        return loss, np.concatenate(parts)

    def excess(self, params: ArrayLike) -> float:
        r"""Loss minus the entropy of the noise, without cancellation.

        With the log-odds of noise at u above the best ones, :math:`\ln(1 + e^N) - \alpha N - H(\alpha) =
        \int_0^u \frac{\alpha(1-\alpha)(e^s - 1)}{1 - \alpha + \alpha e^s} ds`, and the other words add
        :math:`\ln(1 + e^R/(1 + e^N))`.
        """
        logits = self._logits(self._checked(params))
        weight = self._atoms.weight
        if logits.noise is None:
            return float(weight @ np.logaddexp(0.0, logits.rest))
        wrong = np.logaddexp(0.0, logits.rest - np.logaddexp(0.0, logits.noise))
        return float(weight @ wrong + weight @ divergence(self.noise_rate, logits.noise))

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Excess over the Bayes risk; for softmax the attention on the output after its trigger, () or (Q,)."""
        seen = {"excess": np.asarray(self.excess(params))}
        if self.attention == "softmax":
            strength, _, _ = self._split(params)
            seen["attention"] = (self._shares * _sigmoid(strength + self._odds)).reshape(() if self.tied else -1)
        return seen

    def floor(self) -> float:
        """Infimum over the parameters: the entropy of the noise, unless γ is held elsewhere."""
        if self.gamma is None:
            return entropy(self.noise_rate)
        gamma = np.array([self.gamma])
        return entropy(self.noise_rate) + float(divergence(self.noise_rate, gamma)[0])

    def closed_form(self, eta: float, rule: str) -> StraightLine | None:
        """Normalised descent on λ alone, the same for all triggers: λ = ηt/√Q, whatever the loss."""
        if rule != "ngd" or not self.tied or len(self.initial) > 1:
            return None
        return StraightLine(self, eta / math.sqrt(self.task.Q))

    @cached_property
    def _atoms(self) -> Atoms:
        task = self.task
        if self.data is not None:
            trigger, c = self.data.trigger, self.data.c
            if self.attention == "softmax":
                c = np.zeros_like(c)
            pairs, number = np.unique(np.stack([trigger, c]), axis=1, return_counts=True)
            return Atoms(pairs[0], pairs[1].astype(float), number / len(trigger))
        if self.attention == "softmax":
            index = np.arange(self.strengths)
            return Atoms(index, np.zeros(len(index)), np.ones(1) if self.tied else task.probs)
        laws = [law.marginal for law in task.counts[: self.strengths]]
        values = [np.flatnonzero(law) for law in laws]
        index = np.repeat(np.arange(self.strengths), [len(c) for c in values])
        weights = [law[c] for law, c in zip(laws, values, strict=True)]
        share = np.ones(1) if self.tied else task.probs
        return Atoms(
            index.astype(np.intp), np.concatenate(values).astype(float), share[index] * np.concatenate(weights)
        )

    @cached_property
    def _fractions(self) -> tuple[Array, Array]:
        """Fractions of words after the trigger that are the output, and that are noise, (strengths,)."""
        laws = self.task.counts[: self.strengths]
        means = np.array([(law.mean, law.noise_mean) for law in laws]) / (self.task.H - 1)
        return means[:, 0], means[:, 1]

    @property
    def _odds(self) -> Array:
        """``ln(rho/(1 - rho))``."""
        rho = self._fractions[0] + self._fractions[1]
        return np.asarray(np.log(rho) - np.log1p(-rho))

    @property
    def _shares(self) -> Array:
        """``rho_y / rho``."""
        right, wrong = self._fractions
        return np.asarray(right / (right + wrong))

    def _logits(self, params: Array) -> _Logits:
        strength, scale, gamma = self._split(params)
        if self.attention == "softmax":
            return self._averaging(strength, scale, gamma)
        return self._adding(strength, gamma)

    def _adding(self, strength: Array, gamma: float) -> _Logits:
        """Linear and ReLU attention: the logit of y is λ c, and so is the mass that the feed-forward layer adds."""
        c = self._atoms.c
        on = np.ones_like(strength)
        if self.attention == "relu":
            strength, on = np.maximum(strength, 0.0), (strength >= 0.0).astype(float)
        rest = math.log(self.task.V - (2 if self.noisy else 1)) - strength[self._atoms.group] * c
        zero = np.zeros_like(rest)
        return _Logits(
            rest, -c * on[self._atoms.group], zero, np.full_like(rest, gamma) if self.noisy else None, zero, zero
        )

    def _averaging(self, strength: Array, scale: float, gamma: float) -> _Logits:
        """Softmax attention in the long-context limit."""
        index, task = self._atoms.group, self.task
        rho = (self._fractions[0] + self._fractions[1])[index]
        shifted = strength[index] + self._odds[index]
        on, off = _sigmoid(shifted), _sigmoid(-shifted)
        A = self._shares[index] * on
        B = (1.0 - 2.0 * rho) / ((task.V - 1.0) * (1.0 - rho)) * off
        A_strength, B_strength = A * off, -B * on
        silent, passing = float(task.Q + (not self.noisy)), float(task.V - task.Q - 2)
        with np.errstate(divide="ignore"):
            low, high = np.log(silent) - scale * (A + B), np.log(passing) - scale * A
        rest = np.logaddexp(low, high)
        share = np.exp(low - rest)
        by_strength = -scale * (A_strength + share * B_strength)
        by_scale = -(A + share * B)
        zero = np.zeros_like(rest)
        if not self.noisy:
            return _Logits(rest, by_strength, by_scale, None, zero, zero)
        return _Logits(
            rest, by_strength, by_scale, gamma + scale * passing * B, scale * passing * B_strength, passing * B
        )


@dataclass(frozen=True, eq=False)
class StraightLine:
    """Normalised descent on one number, a closed form: it moves by ``step`` at every step.

    Parameters
    ----------
    risk : RecallRisk
        Its loss falls with the one parameter.
    step : float
        How far each step goes.
    """

    risk: RecallRisk
    step: float

    def states(self, steps: NDArray[np.int64]) -> Array:
        """Return λ at some steps, (T, 1)."""
        return self.step * np.asarray(steps, dtype=np.float64)[:, None]

    def first_below(self, epsilon: float, last: int) -> tuple[int | None, float]:
        """Return the first step with loss <= epsilon by bisection; it is exact."""

        def reached(t: int) -> bool:
            return self.risk.evaluate(np.array([self.step * t]))[0] <= epsilon

        if reached(0):
            return 0, 0.0
        if not reached(last):
            return None, 0.0
        low, high = 0, 1
        while not reached(high):
            low, high = high, min(2 * high, last)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if reached(middle) else (middle, high)
        return high, 0.0


def held_gamma(value: object) -> float:
    """Return a finite log-odds."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not math.isfinite(value):
        raise refuse("gamma", value, "a finite number")
    return float(value)


def divergence(alpha: float, logit: Array) -> Array:
    """Divergence of Bernoulli(sigmoid(logit)) from Bernoulli(alpha), accurate also where they are close."""
    if not 0.0 < alpha < 1.0:
        return np.asarray(np.logaddexp(0.0, logit if alpha == 0 else -logit))
    u = logit - (math.log(alpha) - math.log1p(-alpha))
    s = 0.5 * np.clip(u, -1.0, 1.0)[..., None] * (NODES + 1.0)
    slope = alpha * (1.0 - alpha) * np.expm1(s) / (1.0 - alpha + alpha * np.exp(s))
    near = 0.5 * np.clip(u, -1.0, 1.0) * (slope @ WEIGHTS)
    far = np.logaddexp(0.0, logit) - alpha * logit - entropy(alpha)
    return np.where(np.abs(u) <= 1.0, near, far)


def _sigmoid(x: Array) -> Array:
    return np.asarray(np.exp(-np.logaddexp(0.0, -x)))
