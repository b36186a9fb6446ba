r"""The risk of in-context recall under the reparameterisation, exactly: linear, ReLU and softmax attention.

Trained are a strength λ_q for each trigger, the value scale v (softmax), and the
log-odds γ of noise (with noise, in the feed-forward layer). Relative to the logit of
the output y, let N be the logit of the noise word and R the log-sum of the logits of
all other words. Then

    L = E[ln(1 + e^N + e^R)] − α E[N]        (no noise: N = −∞, and the noise word is one of the others)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from threadpoolctl import ThreadpoolController

from icl_theory._validate import (
    Array,
    argument_error,
    choice,
    flag,
    instance,
    set_fields,
    signed,
)
from icl_theory.engine.counting import Counted, Steps
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules import Normalised, Rule, rule_of
from icl_theory.papers.recall import softmax
from icl_theory.papers.recall.divergence import divergence
from icl_theory.papers.recall.task import (
    RecallTask,
    Sentences,
    Words,
    check_sentences,
    entropy,
)
from icl_theory.papers.recall.weights import check_weights

ATTENTION = ("linear", "relu", "softmax", "softmax-limit")


class Atoms(NamedTuple):
    """Groups of sentences that the model cannot tell apart."""

    group: Words  # index of their λ
    c: Array  # number of bigrams
    weight: Array  # probability


class _Logits(NamedTuple):
    rest: Array  # R of the atoms, and its derivatives with respect to λ and v
    rest_strength: Array
    rest_scale: Array
    # N of the atoms (-inf without noise), and its derivatives; that with respect to γ
    # is 1
    noise: Array
    noise_strength: Array
    noise_scale: Array


@dataclass(frozen=True, eq=False)
class RecallRisk(Risk):
    r"""Cross-entropy of the next word, nats, as a function of ``(lambda_1, ..., lambda_Q, [v], [gamma])``.

    Linear and ReLU attention put the weight :math:`\lambda_q` on each word that
    followed q:

    .. math::
        L(\lambda) = \sum_q p_q E_c \ln\bigl(1 + (V-1)e^{-\lambda_q c}\bigr), \qquad
        L(\lambda, \gamma) = \sum_q p_q E_c \ln\bigl(1 + e^\gamma + (V-2)e^{-\lambda_q
        c}\bigr) - \alpha\gamma.

    "softmax" is the mean over all sentences of H words, exactly (module
    ``icl_theory.papers.recall.softmax``). "softmax-limit" is the limit of long
    contexts that keep the task's average fractions :math:`\rho = E[c + c_\tau]/(H-1)`
    of words after q, :math:`\rho_y = E[c]/(H-1)` of them the output: with :math:`Z =
    \rho e^\lambda + 1 - \rho`, the logit of y is v times :math:`A + B`, :math:`A =
    \rho_y e^\lambda/Z`, that of the other words that may be outputs v times :math:`B =
    \frac{1 - 2\rho}{V-1}/Z`, and 0 for triggers.

    See docs/theory.md, "In-context recall".

    Parameters
    ----------
    task : RecallTask
    attention : {"linear", "relu", "softmax", "softmax-limit"}
        ReLU has the derivative 1 at 0, or it would not start.
    gamma, v : float, optional
        Hold γ (with noise) or v (softmax attention) at this value instead of training
        it; otherwise v = 1.
    tied : bool
        One λ for all triggers, which must be alike: the same descent with one number,
        its metric being Q.
    data : Sentences, optional
        Use the empirical risk over these sentences instead of the population risk (for
        "softmax" see `reparameterised`). "softmax-limit" depends only on their
        frequencies of triggers and noise.
    weights : {"projection", "identity"}
        What value and feed-forward matrix let through: all words that may be outputs
        ("projection"), or everything ("identity"), as in the paper's experiments; then
        W repels noise instead.
    kappa : {1, 0}
        Whether the feed-forward layer reads what is attended to ("identity" with noise
        only).

    Raises
    ------
    ValueError
        An argument is out of range or contradicts another; the message names it.

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
    v: float | None = None
    weights: str = "projection"
    kappa: int = 1

    def __post_init__(self) -> None:
        instance("task", self.task, RecallTask, "a RecallTask")
        choice("attention", self.attention, ATTENTION)
        check_weights(self.task, self.weights, self.kappa)
        if self.attention == "softmax-limit" and (self.weights, self.task.law) != (
            "projection",
            "markov",
        ):
            raise argument_error(
                "attention",
                self.attention,
                "'softmax' unless weights = 'projection' and law = 'markov'",
            )
        if self.data is not None and (self.attention == "softmax" or self.kappa == 0):
            raise argument_error(
                "data",
                "sentences",
                "left out with softmax attention or kappa = 0 (see reparameterised)",
            )
        if self.data is not None:
            check_sentences(self.data, self.task)
        if self.v is not None:
            if not self.scaled:
                raise argument_error(
                    "v", self.v, f"left out if attention = {self.attention!r}"
                )
            set_fields(self, v=signed("v", self.v))
        if flag("tied", self.tied) and (not self.task.alike or self.data is not None):
            raise argument_error(
                "tied", self.tied, "False for empirical risks, and if triggers differ"
            )
        if self.gamma is not None:
            if not self.noisy:
                raise argument_error(
                    "gamma",
                    self.gamma,
                    "left out if alpha = 0: there is no noise to predict",
                )
            set_fields(self, gamma=signed("gamma", self.gamma))

    @property
    def noisy(self) -> bool:
        """Whether the model has a feed-forward layer, for noise."""
        return self.task.alpha > 0

    @property
    def scaled(self) -> bool:
        """Whether the value matrix has a scale v."""
        return self.attention.startswith("softmax")

    @property
    def strengths(self) -> int:
        """Number of trained λ."""
        return 1 if self.tied else self.task.Q

    @property
    def initial(self) -> Array:
        """Zero."""
        return np.zeros(
            self.strengths
            + (self.scaled and self.v is None)
            + (self.noisy and self.gamma is None)
        )

    @cached_property
    def metric(self) -> float | Array:
        """Ones, except that a tied λ stands for Q numbers."""
        return (
            np.append(float(self.task.Q), np.ones(len(self.initial) - 1))
            if self.tied
            else 1.0
        )

    @cached_property
    def noise_rate(self) -> float:
        """Probability that the answer is noise: α, or its frequency in the data."""
        if self.data is None:
            return self.task.alpha
        return (
            float(np.mean(self.data.answer == self.task.noise_word))
            if self.noisy
            else 0.0
        )

    def split(self, params: ArrayLike) -> tuple[Array, float, float]:
        """Return λ (Q,) or (1,), v (1 unless softmax) and γ (-inf without noise)."""
        return self._split(self._checked(params))

    def _split(self, flat: Array) -> tuple[Array, float, float]:
        scale = (
            1.0
            if not self.scaled
            else float(flat[self.strengths])
            if self.v is None
            else self.v
        )
        gamma = (
            -math.inf
            if not self.noisy
            else float(flat[-1])
            if self.gamma is None
            else self.gamma
        )
        return flat[: self.strengths], scale, gamma

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss in nats, and its gradient; with softmax attention infinite if a logit may exceed 1e13."""
        if self.attention == "softmax":
            found = self._finite(params)
            return found.excess + self.task.bayes_risk, self._joined(*found[1:4])
        logits = self._logits(params)
        weight, noise = self._atoms.weight, logits.noise
        losses = np.logaddexp(
            0.0, np.logaddexp(logits.rest, noise) if self.noisy else logits.rest
        )
        p_rest = np.exp(logits.rest - losses)
        surplus = np.exp(noise - losses) - self.noise_rate
        slope = p_rest * logits.rest_strength + surplus * logits.noise_strength
        by_scale = float(
            weight @ (p_rest * logits.rest_scale + surplus * logits.noise_scale)
        )
        loss = float(weight @ losses) - (
            self.noise_rate * float(weight @ noise) if self.noisy else 0.0
        )
        by_strength = np.bincount(
            self._atoms.group, weights=weight * slope, minlength=self.strengths
        )
        return loss, self._joined(
            np.asarray(by_strength, dtype=float), by_scale, float(weight @ surplus)
        )

    def _joined(self, by_strength: Array, by_scale: float, by_gamma: float) -> Array:
        trained = [by_scale] * (self.scaled and self.v is None) + [by_gamma] * (
            self.noisy and self.gamma is None
        )
        return np.concatenate([by_strength, trained])

    def excess(self, params: ArrayLike) -> float:
        r"""Loss minus the entropy of the noise, without cancellation.

        With the log-odds of noise at u above the best ones, :math:`\ln(1 + e^N) -
        \alpha N - H(\alpha) = \int_0^u \frac{\alpha(1-\alpha)(e^s - 1)}{1 - \alpha +
        \alpha e^s} ds`, and the other words add :math:`\ln(1 + e^R/(1 + e^N))`.
        """
        params = self._checked(params)
        if self.attention == "softmax":
            return self._finite(params).excess
        logits = self._logits(params)
        weight = self._atoms.weight
        wrong = np.logaddexp(0.0, logits.rest - np.logaddexp(0.0, logits.noise))
        return float(
            weight @ wrong + weight @ divergence(self.noise_rate, logits.noise)
        )

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Excess over the Bayes risk; for softmax the attention on the output after its trigger, () or (Q,)."""
        if self.attention == "softmax":
            found = self._finite(params)
            attention = found.attention.reshape(() if self.tied else -1)
            return {"excess": np.asarray(found.excess), "attention": attention}
        seen = {"excess": np.asarray(self.excess(params))}
        if self.scaled:
            _, odds, shares = self._fractions
            attention = shares * _sigmoid(self._split(params)[0] + odds)
            seen["attention"] = attention.reshape(() if self.tied else -1)
        return seen

    def floor(self) -> float:
        """Infimum over the parameters: the entropy of the noise, unless γ or v is held elsewhere.

        Only a lower bound if one of them is held and the other is trained.
        """
        least = entropy(self.noise_rate)
        if self.noisy and self.gamma is None:
            return least
        if (self.v is not None) if self.scaled else (self.kappa == 0):
            return least + self._least_excess
        # below its best value, background words feed the noise logit
        if self.gamma is None or (self.scaled and self.gamma < self.task.best_gamma):
            return least
        return least + float(divergence(self.noise_rate, np.array([self.gamma]))[0])

    @cached_property
    def _least_excess(self) -> float:
        """Least excess if only λ is trained: at ±∞ without noise, else by a search for each λ."""
        from scipy.optimize import minimize_scalar

        # strength at which only the words after the trigger are attended to, or below 0
        # only others
        endless = 60.0
        ends = np.full(self.strengths, endless)
        last = total = self.excess(ends)
        for index in range(self.strengths):

            def along(x: float, index: int = index) -> float:
                return self.excess(
                    np.where(np.arange(self.strengths) == index, x, ends)
                )

            least = along(-endless)
            if self.noisy:
                relu = self.attention == "relu"  # flat below 0
                grid = (
                    np.linspace(0.0, endless, 15)
                    if relu
                    else np.linspace(-endless, endless, 25)
                )
                best = int(np.argmin([along(x) for x in grid]))
                bounds = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
                least = float(
                    minimize_scalar(along, bounds=bounds, method="bounded").fun
                )
            total += min(0.0, least - last)
        return total

    def closed_form(self, eta: float, rule: str | Rule) -> StraightLine | None:
        """Return λ = ηt/√Q for normalised descent on one λ for all triggers, else None."""
        if not isinstance(rule_of(rule), Normalised):
            return None
        if not self.tied or len(self.initial) > 1 or self.scaled or self.kappa == 0:
            return None
        return StraightLine(self, eta / math.sqrt(self.task.Q))

    @cached_property
    def _atoms(self) -> Atoms:
        task = self.task
        if self.data is not None:
            trigger, c = self.data.trigger, self.data.c
            if self.scaled:
                c = np.zeros_like(c)
            pairs, number = np.unique(
                np.stack([trigger, c]), axis=1, return_counts=True
            )
            return Atoms(pairs[0], pairs[1].astype(float), number / len(trigger))
        share = np.ones(1) if self.tied else task.probs
        if self.scaled:
            return Atoms(np.arange(self.strengths), np.zeros(self.strengths), share)
        laws = [law.marginal for law in task.counts[: self.strengths]]
        table = np.zeros((len(laws), max(map(len, laws))))
        for row, law in zip(table, laws, strict=True):
            row[: len(law)] = law
        group, c = np.nonzero(table)
        return Atoms(group, c.astype(float), share[group] * table[group, c])

    @cached_property
    def _fractions(self) -> tuple[Array, Array, Array]:
        """Fraction ρ of words that follow the trigger, ln(ρ/(1 - ρ)), and ρ_y/ρ, (strengths,) each."""
        laws = self.task.counts[: self.strengths]
        right, wrong = np.transpose([(law.mean, law.noise_mean) for law in laws]) / (
            self.task.H - 1
        )
        rho = right + wrong
        return rho, np.log(rho) - np.log1p(-rho), right / rho

    @cached_property
    def _cells(self) -> list[softmax.Cell]:
        return softmax.cells(self.task, self.weights, self.strengths)

    def _finite(self, params: ArrayLike) -> softmax.Slopes:
        """Excess, gradient and attention of softmax attention, over all sentences."""
        task = self.task
        ours = self.weights == "projection"
        flat = np.asarray(params, dtype=np.float64)
        kinds = softmax.fillers(task, self.weights)
        kappa = -1 if ours else self.kappa
        # words with the logit 0: not y, those with logits of their own, noise, and a
        # trigger that is attended to
        quiet = task.V - 1 - kinds.loud - self.noisy - (not ours)
        with _threads().limit(
            limits=1
        ):  # the matrices are too small for several threads
            return softmax.excess(
                self._cells, kinds, quiet, kappa, task.alpha, *self._split(flat)
            )

    def _logits(self, params: Array) -> _Logits:
        """Linear and ReLU attention: the logit of y is λ c, and the feed-forward layer adds the same mass."""
        strength, scale, gamma = self._split(params)
        if self.scaled:
            return self._averaging(strength, scale, gamma)
        c = self._atoms.c
        on = np.ones_like(strength)
        if self.attention == "relu":
            strength, on = np.maximum(strength, 0.0), (strength >= 0.0).astype(float)
        rest = (
            math.log(self.task.V - (2 if self.noisy else 1))
            - strength[self._atoms.group] * c
        )
        zero = np.zeros_like(rest)
        by_strength = -c * on[self._atoms.group]
        if self.kappa == 1:
            return _Logits(
                rest, by_strength, zero, np.full_like(rest, gamma), zero, zero
            )
        return _Logits(
            rest,
            by_strength,
            zero,
            gamma - strength[self._atoms.group] * c,
            by_strength,
            zero,
        )

    def _averaging(self, strength: Array, scale: float, gamma: float) -> _Logits:
        """Softmax attention in the limit of long contexts."""
        index, task = self._atoms.group, self.task
        rho, odds, shares = (each[index] for each in self._fractions)
        on = _sigmoid(strength[index] + odds)
        off = _sigmoid(-(strength[index] + odds))
        A = shares * on
        B = (1.0 - 2.0 * rho) / ((task.V - 1.0) * (1.0 - rho)) * off
        A_strength = A * off
        B_strength = -B * on
        silent = float(task.Q + (not self.noisy))
        passing = float(task.V - task.Q - 2)
        with np.errstate(divide="ignore"):
            low = np.log(silent) - scale * (A + B)
            high = np.log(passing) - scale * A
        rest = np.logaddexp(low, high)
        share = np.exp(low - rest)
        by_strength = -scale * (A_strength + share * B_strength)
        by_scale = -(A + share * B)
        return _Logits(
            rest,
            by_strength,
            by_scale,
            gamma + scale * passing * B,
            scale * passing * B_strength,
            passing * B,
        )


class StraightLine(Counted):
    """Normalised descent on one number λ that moves by ``step`` at every step."""

    def __init__(self, risk: RecallRisk, step: float) -> None:
        super().__init__(risk)
        self.step = step

    def states(self, steps: Steps) -> Array:
        """Return λ at these steps, (T, 1)."""
        return self.step * np.asarray(steps, dtype=np.float64)[:, None]


def _sigmoid(x: Array) -> Array:
    return np.asarray(np.exp(-np.logaddexp(0.0, -x)))


@cache
def _threads() -> ThreadpoolController:
    """Find the thread pools once, because finding them takes longer than limiting them."""
    return ThreadpoolController()
