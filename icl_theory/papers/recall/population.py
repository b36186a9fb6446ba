r"""The exact risk of in-context recall under the reparameterisation.

A sentence of H words, from a vocabulary of V, ends with q, one of Q triggers. In the
sentence q is followed c times by the output y and c_τ times by the noise word τ. The
answer, the next word, is τ with the probability α, and y otherwise. The parameters are
a strength λ_q for each trigger, with softmax attention also the value scale v, and with
noise the log-odds γ of noise in the feed-forward layer. This layer reads κ = 1 or 0
times the output of the attention. Relative to the logit of y, let N be the logit of the
noise word and R the log-sum-exp of the logits of all other words. Then

    L = E[ln(1 + e^N + e^R)] − α E[N].

Without noise N = −∞, and the noise word is one of the other words. `RecallRisk` is the
risk, for linear, ReLU and softmax attention; the engine trains it.
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
    integer,
    set_fields,
    signed,
)
from icl_theory.engine.counting import Counted, Steps
from icl_theory.engine.last_result import LastResult
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules import Normalised, Rule, rule_of
from icl_theory.engine.sampling import Trainer
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

# A strength that counts as infinite. As e^-60 is below rounding, softmax attention is
# then on the words after the trigger alone, or, at -60, on the other words alone.
ENDLESS = 60.0


class Atoms(NamedTuple):
    """A groups of sentences that the model cannot tell apart; arrays are (A,)."""

    group: Words  # index of their λ
    c: Array  # number of bigrams (q, y); 0 if the loss does not depend on it
    weight: Array  # probability, or frequency in the data


class _Logits(NamedTuple):
    """R and N of the A atoms, (A,), and their derivatives with respect to λ and v.

    N is -inf without noise; its derivative with respect to γ is 1.
    """

    rest: Array  # R
    rest_strength_slope: Array  # ∂R/∂λ
    rest_scale_slope: Array  # ∂R/∂v
    noise: Array  # N
    noise_strength_slope: Array  # ∂N/∂λ
    noise_scale_slope: Array  # ∂N/∂v


class _Fractions(NamedTuple):
    """Fractions of the words of a long context, for each λ; arrays are (strengths,)."""

    rho: Array  # ρ, the fraction of words that follow the trigger
    log_odds: Array  # ln(ρ/(1 - ρ))
    output_share: Array  # ρ_y/ρ, the share of y among these words, see `RecallRisk`


@dataclass(frozen=True, eq=False)
class RecallRisk(Risk):
    r"""Cross-entropy of the next word, in nats, under the reparameterisation.

    The parameters are ``(lambda_1, ..., lambda_Q, [v], [gamma])``: v with softmax
    attention and γ with noise, unless they are held.

    Linear attention puts the weight :math:`\lambda_q` on each word that followed q, and
    ReLU attention the weight :math:`\max(\lambda_q, 0)`. With linear attention the loss
    is, without noise and with noise for κ = 1,

    .. math::
        L(\lambda) = \sum_q p_q E_c \ln\bigl(1 + (V-1)e^{-\lambda_q c}\bigr), \qquad
        L(\lambda, \gamma) = \sum_q p_q E_c \ln\bigl(1 + e^\gamma + (V-2)e^{-\lambda_q
        c}\bigr) - \alpha\gamma.

    Here :math:`p_q` is the probability of the trigger q, c the number of times that the
    output y followed it, V the number of words, and α the probability of noise.

    With "softmax" the risk is the exact mean over all sentences of H words (module
    ``icl_theory.papers.recall.softmax``). "softmax-limit" is the limit of long
    contexts. In this limit, the fraction of words that follow q is its average in the
    task, :math:`\rho = E[c + c_\tau]/(H-1)`, and the fraction of words that are outputs
    after q is :math:`\rho_y = E[c]/(H-1)`. Let :math:`Z = \rho e^\lambda + 1 - \rho`,
    :math:`A = \rho_y e^\lambda/Z` and :math:`B = \frac{1 - 2\rho}{V-1}/Z`. Then the
    logit of y is :math:`v(A + B)`, each of the n other words that may be outputs has
    the logit :math:`vB`, and triggers have the logit 0. The noise word has the logit
    :math:`\gamma + v(A + (n + 1)B)`, or 0 without noise.

    See docs/theory.md, "In-context recall".

    Parameters
    ----------
    task : RecallTask
    attention : {"linear", "relu", "softmax", "softmax-limit"}
        ReLU has the derivative 1 at 0. With the derivative 0, training from zero would
        not start.
    gamma, v : float, optional
        Hold γ (with noise) or v (softmax attention) at this value instead of training
        it. With other attention v = 1.
    tied : bool
        Use one λ for all triggers, which must have the same probability and counts.
        Descent takes the same steps as with Q equal λ, because the tied λ has the
        metric Q.
    data : Sentences, optional
        Use the empirical risk over these sentences instead of the population risk. For
        "softmax" or κ = 0, use `reparameterised` instead. "softmax-limit" depends only
        on the frequencies of triggers and noise in the data.
    weights : {"projection", "identity"}
        With "projection" the value matrix lets through the words that may be outputs,
        and the feed-forward matrix reads them. With "identity", as in the paper's
        experiments, the value matrix lets through all words, the feed-forward matrix
        reads the words that follow the trigger, and with noise the attention matrix
        keeps out noise.
    kappa : {1, 0}
        Whether the feed-forward layer reads the output of the attention; 0 is possible
        only for "identity" with noise.

    Raises
    ------
    ValueError
        An argument is out of range or contradicts another; the message names it.

    Examples
    --------
    >>> import icl_theory as icl
    >>> once = icl.recall.Counts.fixed(1)
    >>> task = icl.recall.RecallTask(V=20, triggers=4, outputs=8, counts=once)
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
        self._check_limit()
        if self.data is not None:
            self._check_data(self.data)
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

    def _check_limit(self) -> None:
        """Refuse options that the limit of long contexts does not have."""
        if self.attention != "softmax-limit":
            return
        if self.weights != "projection" or self.task.law != "markov":
            raise argument_error(
                "attention",
                self.attention,
                "'softmax' unless weights = 'projection' and law = 'markov'",
            )

    def _check_data(self, data: Sentences) -> None:
        """Refuse data if the loss depends on more than their counts c."""
        if self.attention == "softmax" or self.kappa == 0:
            raise argument_error(
                "data",
                "sentences",
                "left out with softmax attention or kappa = 0 (see reparameterised)",
            )
        check_sentences(data, self.task)

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
    def _trains_v(self) -> bool:
        """Whether v is a parameter."""
        return self.scaled and self.v is None

    @property
    def _trains_gamma(self) -> bool:
        """Whether γ is a parameter."""
        return self.noisy and self.gamma is None

    @property
    def initial(self) -> Array:
        """Parameters at step 0, all of them 0."""
        return np.zeros(self.strengths + self._trains_v + self._trains_gamma)

    @cached_property
    def metric(self) -> float | Array:
        """Metric of descent: 1, except for a tied λ.

        A tied λ stands for Q equal numbers and has the metric Q.
        """
        if not self.tied:
            return 1.0
        number_of_others = len(self.initial) - 1  # v and γ, if they are trained
        return np.append(float(self.task.Q), np.ones(number_of_others))

    @cached_property
    def noise_rate(self) -> float:
        """Probability α of noise, or with ``data`` the frequency of noise in them."""
        if self.data is None:
            return self.task.alpha
        if not self.noisy:
            return 0.0
        return float(np.mean(self.data.answer == self.task.noise_word))

    def split(self, params: ArrayLike) -> tuple[Array, float, float]:
        """Return λ, v and γ.

        λ has the shape (Q,), or (1,) if it is tied. Without softmax v is 1, and without
        noise γ is -inf.
        """
        return self._split(self._checked(params))

    def _split(self, flat: Array) -> tuple[Array, float, float]:
        """Return the result of `split` for parameters that were checked."""
        # The order is λ, v, γ. Numbers that are held at a value are left out.
        strength = flat[: self.strengths]
        scale = 1.0
        if self.scaled:
            scale = float(flat[self.strengths]) if self.v is None else self.v
        gamma = -math.inf
        if self.noisy:
            gamma = float(flat[-1]) if self.gamma is None else self.gamma
        return strength, scale, gamma

    def sampled(self, batch: int, seed: int = 0) -> Trainer[Sentences]:
        """Return the transformer on drawn sentences, trained in λ, v and γ alone.

        The transformer has one λ for each trigger, even if λ is ``tied`` in this risk.
        The sentences are drawn from the ``data`` if they are given.

        Raises
        ------
        ValueError
            The attention is "softmax-limit", or an argument is out of range.
        """
        from icl_theory.papers.recall.coordinates import reparameterised
        from icl_theory.papers.recall.sampled import TransformerRisk

        if self.attention == "softmax-limit":
            raise argument_error(
                "attention",
                self.attention,
                "'linear', 'relu' or 'softmax': only finite sentences can be sampled",
            )
        full = TransformerRisk(
            self.task,
            self.attention,
            batch=integer("batch", batch, minimum=1),
            seed=seed,
            data=self.data,
            weights=self.weights,
            kappa=self.kappa,
        )
        return reparameterised(full, self.gamma, self.v)

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss in nats, and its gradient.

        With the attention "softmax" the loss is infinite if a logit may exceed 1e13:
        for larger logits the nodes of the integral that gives the loss coincide in
        float64.
        """
        if self.attention == "softmax":
            slopes = self._softmax_slopes(params)
            gradient = self._gradient(
                slopes.strength_slope, slopes.v_slope, slopes.gamma_slope
            )
            return slopes.excess + self.task.bayes_risk, gradient
        logits = self._logits(params)
        weight = self._atoms.weight
        # ln(e^R + e^N), the log-sum-exp over all words but y.
        all_but_y = logits.rest
        if self.noisy:
            all_but_y = np.logaddexp(logits.rest, logits.noise)
        # The losses with the answer y. If the answer is noise, N is subtracted.
        losses = np.logaddexp(0.0, all_but_y)
        loss = float(weight @ losses)
        # The derivative with respect to R is the total probability of the words in R.
        p_rest = np.exp(logits.rest - losses)
        strength_slopes = p_rest * logits.rest_strength_slope
        scale_slopes = p_rest * logits.rest_scale_slope
        gamma_slope = 0.0
        if self.noisy:
            loss -= self.noise_rate * float(weight @ logits.noise)
            # The derivative with respect to N, and so with respect to γ, is the surplus
            # of the predicted probability of noise over its rate.
            surplus = np.exp(logits.noise - losses) - self.noise_rate
            strength_slopes += surplus * logits.noise_strength_slope
            scale_slopes += surplus * logits.noise_scale_slope
            gamma_slope = float(weight @ surplus)
        strength_gradient = np.bincount(
            self._atoms.group,
            weights=weight * strength_slopes,
            minlength=self.strengths,
        )
        gradient = self._gradient(
            np.asarray(strength_gradient, dtype=float),
            float(weight @ scale_slopes),
            gamma_slope,
        )
        return loss, gradient

    def _gradient(
        self, strength_gradient: Array, v_slope: float, gamma_slope: float
    ) -> Array:
        """Return the derivatives with respect to the trained parameters, in order."""
        slopes_after_strengths = []
        if self._trains_v:
            slopes_after_strengths.append(v_slope)
        if self._trains_gamma:
            slopes_after_strengths.append(gamma_slope)
        return np.concatenate([strength_gradient, slopes_after_strengths])

    def excess(self, params: ArrayLike) -> float:
        r"""Loss minus the entropy of the noise, without cancellation.

        The excess is the mean, over all sentences, of the sum of two terms. Relative to
        the logit of the output, let N be the logit of noise, and R the log-sum-exp of
        the logits of all other words. Let N exceed the best log-odds,
        :math:`\ln(\alpha/(1-\alpha))`, by u. The term of noise is then

        .. math:: \ln(1 + e^N) - \alpha N - H(\alpha)
            = \int_0^u \frac{\alpha(1-\alpha)(e^s - 1)}{1 - \alpha + \alpha e^s}\,ds,

        and the term of the other words is :math:`\ln(1 + e^R/(1 + e^N))`.
        """
        return self._excess(self._checked(params))

    def _excess(self, params: Array) -> float:
        """Return the result of `excess` for an argument that was checked."""
        if self.attention == "softmax":
            return self._softmax_slopes(params).excess
        logits = self._logits(params)
        weight = self._atoms.weight
        if not self.noisy:
            return float(weight @ np.logaddexp(0.0, logits.rest))
        # The two terms in the docstring of `excess`.
        output_or_noise = np.logaddexp(0.0, logits.noise)  # ln(1 + e^N)
        loss_to_rest = np.logaddexp(0.0, logits.rest - output_or_noise)
        noise_divergence = divergence(self.noise_rate, logits.noise)
        return float(weight @ loss_to_rest + weight @ noise_divergence)

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Excess as in `excess`, and with softmax attention also the attention.

        The attention is the total attention on the output after its trigger, averaged
        over the sentences of a λ. Its shape is () if λ is tied, and (Q,) otherwise.
        """
        if self.attention == "softmax":
            slopes = self._softmax_slopes(params)
            return {
                "excess": np.asarray(slopes.excess),
                # A copy, because `_softmax_slopes` may return the same array again.
                "attention": self._for_each_strength(slopes.attention.copy()),
            }
        observed = {"excess": np.asarray(self._excess(params))}
        if self.scaled:
            strength, _, _ = self._split(params)
            fractions = self._fractions
            # A = (ρ_y/ρ) ρe^λ/Z, see `_logits_in_the_limit`.
            attention = fractions.output_share * _sigmoid(strength + fractions.log_odds)
            observed["attention"] = self._for_each_strength(attention)
        return observed

    def _for_each_strength(self, values: Array) -> Array:
        """Return values, one for each λ, in the shape in which they are observed.

        The shape is () if λ is tied, and (Q,) otherwise.
        """
        return values.reshape(() if self.tied else -1)

    def floor(self) -> float:
        """Infimum of the loss over the parameters.

        The infimum is the entropy of the noise if all parameters are trained and κ = 1.
        The infimum may be larger if v is held, if γ is held at a value other than its
        best one, or if κ = 0. The result is only a lower bound if one of γ and v is
        held and the other is trained, or if γ is trained and κ = 0.
        """
        noise_entropy = entropy(self.noise_rate)
        if self._trains_gamma:
            return noise_entropy
        # At this point γ is not trained. If v is held as well, a finite λ may be best.
        # The same is true of linear and ReLU attention with κ = 0: the attention then
        # raises the logit of y alone, and λ → ∞ leaves noise no chance.
        needs_search = self.v is not None or (not self.scaled and self.kappa == 0)
        if needs_search:
            return noise_entropy + self._least_excess
        # At this point γ is None only without noise. All words but y then lose their
        # probability as λ (and v) → ∞.
        if self.gamma is None:
            return noise_entropy
        # Background words, around the bigrams, add v times a share to the logit of
        # noise. With v > 0 they can make up for a γ below its best value, and with
        # v < 0 for a γ above it.
        if self.scaled and self.gamma != self.task.best_gamma:
            return noise_entropy
        # As λ (and v) → ∞ only y and noise keep a probability, and N = γ is held.
        (cost_of_gamma,) = divergence(self.noise_rate, np.array([self.gamma]))
        return noise_entropy + float(cost_of_gamma)

    @cached_property
    def _least_excess(self) -> float:
        """Least excess if only λ is trained.

        The loss is a sum of functions of one λ each. Without noise each of them has its
        least value at λ = ∞ or -∞. With noise a search finds it.
        """
        excess_at_end = self.excess(np.full(self.strengths, ENDLESS))
        least = excess_at_end
        # How much one λ changes the excess does not depend on the other λ, so all
        # changes are added.
        for index in range(self.strengths):
            least_along = self._least_excess_along(index)
            least += min(0.0, least_along - excess_at_end)
        return least

    def _least_excess_along(self, index: int) -> float:
        """Least excess over the λ of this index, with all other λ at ``ENDLESS``."""
        from scipy.optimize import minimize_scalar  # few risks need it

        def excess_at(value: float) -> float:
            """Return the excess if the λ of this index has the given value."""
            strength = np.full(self.strengths, ENDLESS)
            strength[index] = value
            return self.excess(strength)

        # Without noise λ = -∞ is the only other candidate, see `_least_excess`.
        if not self.noisy:
            return excess_at(-ENDLESS)
        # The grids have a step of 4 or 5, which is a choice: a minimum that is narrower
        # than the step would be missed if the excess is smaller at another point of the
        # grid than at the two points beside the minimum.
        if self.attention == "relu":
            # The excess is constant for negative strengths.
            grid = np.linspace(0.0, ENDLESS, 15)
        else:
            grid = np.linspace(-ENDLESS, ENDLESS, 25)
        # The neighbours of the best point of the grid bracket the minimum.
        best = int(np.argmin([excess_at(value) for value in grid]))
        left_end = grid[max(best - 1, 0)]
        right_end = grid[min(best + 1, len(grid) - 1)]
        minimum = minimize_scalar(
            excess_at, bounds=(left_end, right_end), method="bounded"
        )
        return float(minimum.fun)

    def closed_form(self, eta: float, rule: str | Rule) -> StraightLine | None:
        """Return λ = ηt/√Q for normalised descent on a single tied λ, else None.

        Each step has the length η in the metric Q of λ. With linear and ReLU attention
        and κ = 1 the loss falls with λ, so that all steps increase λ.
        """
        if not isinstance(rule_of(rule), Normalised):
            return None
        # v and γ, if they are trained, are parameters besides λ.
        trains_single_strength = self.tied and len(self.initial) == 1
        if not trains_single_strength or self.scaled or self.kappa == 0:
            return None
        return StraightLine(self, eta / math.sqrt(self.task.Q))

    @cached_property
    def _atoms(self) -> Atoms:
        """The groups of sentences: one for each trigger and each number of bigrams."""
        if self.data is not None:
            return self._atoms_of_data(self.data)
        # Total probability of the triggers that use each λ, (strengths,).
        share = np.ones(1) if self.tied else self.task.probs
        if self.scaled:
            # The attention is "softmax-limit", because "softmax" has no atoms. In the
            # limit of long contexts the loss does not depend on the counts.
            return Atoms(
                group=np.arange(self.strengths),
                c=np.zeros(self.strengths),
                weight=share,
            )
        # A row of the table has the probabilities of c = 0, 1, 2, ... for one λ.
        laws = [law.marginal for law in self.task.counts[: self.strengths]]
        longest = max(len(law) for law in laws)
        table = np.zeros((len(laws), longest))
        for row, law in zip(table, laws, strict=True):
            row[: len(law)] = law  # a view: this fills the table
        group, c = np.nonzero(table)
        return Atoms(group, c.astype(float), share[group] * table[group, c])

    def _atoms_of_data(self, data: Sentences) -> Atoms:
        """Group given sentences by their trigger and number of bigrams."""
        # Only the two softmax attentions are scaled. Given sentences exclude "softmax",
        # so a scaled attention is "softmax-limit" here. In the limit of long contexts
        # the loss does not depend on the counts.
        c_of_sentences = np.zeros_like(data.c) if self.scaled else data.c
        # A column of ``pairs`` is a trigger and a number of bigrams.
        pairs, multiplicity = np.unique(
            np.stack([data.trigger, c_of_sentences]), axis=1, return_counts=True
        )
        group, c = pairs
        return Atoms(group, c.astype(float), multiplicity / len(data.trigger))

    @cached_property
    def _fractions(self) -> _Fractions:
        """Average fractions of words after the trigger, for long contexts."""
        laws = self.task.counts[: self.strengths]
        words_before_last = self.task.H - 1
        output_fraction = np.array([law.mean for law in laws]) / words_before_last
        noise_fraction = np.array([law.noise_mean for law in laws]) / words_before_last
        rho = output_fraction + noise_fraction
        log_odds = np.log(rho) - np.log1p(-rho)
        return _Fractions(rho, log_odds, output_fraction / rho)

    @cached_property
    def _cells(self) -> list[softmax.Cell]:
        """The cells of sentences over which `softmax.excess` takes the mean."""
        return softmax.cells(self.task, self.weights, self.strengths)

    def _softmax_slopes(self, params: ArrayLike) -> softmax.Slopes:
        """Excess, gradient and attention of softmax attention, over all sentences."""
        flat = np.asarray(params, dtype=np.float64)
        return self._last_softmax_slopes.of(self._mean_over_sentences, flat)

    @cached_property
    def _last_softmax_slopes(self) -> LastResult[softmax.Slopes]:
        """The last result of ``_softmax_slopes``."""
        return LastResult()

    def _mean_over_sentences(self, params: Array) -> softmax.Slopes:
        """Return excess, gradient and attention, averaged over all sentences."""
        task = self.task
        is_projection = self.weights == "projection"
        strength, scale, gamma = self._split(params)
        filler_numbers = softmax.fillers(task, self.weights)
        # `softmax.excess` takes κ = -1 for the weights "projection", because their
        # logit of noise has a different formula.
        kappa = -1 if is_projection else self.kappa
        # Words whose logit may differ from 0 are the output, the ``loud`` words (other
        # words that fill a sentence, with logits that depend on their counts), noise if
        # there is any, and the trigger, to which only the weights "identity" attend.
        words_with_logits = (
            1 + filler_numbers.loud + int(self.noisy) + int(not is_projection)
        )
        # The matrices are too small for several threads.
        with _threads().limit(limits=1):
            return softmax.excess(
                self._cells,
                filler_numbers,
                C=task.V - words_with_logits,  # number of words with the logit 0
                kappa=kappa,
                alpha=task.alpha,
                strength=strength,
                v=scale,
                gamma=gamma,
            )

    def _logits(self, params: Array) -> _Logits:
        """Logits of the atoms, for all attention but softmax at finite H."""
        strength, scale, gamma = self._split(params)
        # Only softmax attention has a scale, and "softmax" itself has no atoms.
        if self.scaled:
            return self._logits_in_the_limit(strength, scale, gamma)
        return self._logits_of_sums(strength, gamma)

    def _logits_of_sums(self, strength: Array, gamma: float) -> _Logits:
        """Logits of linear and ReLU attention.

        The logit of y is λ c, with 0 in place of a negative λ for ReLU. All other words
        but noise have the logit 0. If κ = 1, the feed-forward layer adds λ c to the
        logit γ of noise, too. Relative to the logit of y, noise therefore has N = γ for
        κ = 1, and N = γ - λ c for κ = 0.
        """
        group = self._atoms.group
        c = self._atoms.c
        # Derivative of the attention weight of a word after the trigger.
        weight_slope = np.ones_like(strength)
        if self.attention == "relu":
            # The derivative is 1 at 0, so that a start from zero can move.
            weight_slope = (strength >= 0.0).astype(float)
            strength = np.maximum(strength, 0.0)
        # all words but y, or with noise all but y and the noise word
        other_words = self.task.V - (2 if self.noisy else 1)
        output_logit = strength[group] * c
        rest = math.log(other_words) - output_logit
        zero = np.zeros_like(rest)
        rest_strength_slope = -c * weight_slope[group]
        if self.kappa == 1:
            noise = np.full_like(rest, gamma)
            noise_strength_slope = zero
        else:
            noise = gamma - output_logit
            noise_strength_slope = rest_strength_slope
        # Linear and ReLU attention have no v.
        return _Logits(
            rest=rest,
            rest_strength_slope=rest_strength_slope,
            rest_scale_slope=zero,
            noise=noise,
            noise_strength_slope=noise_strength_slope,
            noise_scale_slope=zero,
        )

    def _logits_in_the_limit(
        self, strength: Array, scale: float, gamma: float
    ) -> _Logits:
        """Logits of softmax attention in the limit of long contexts.

        With the attention A on y after its trigger, and B on each word elsewhere, y has
        the logit v(A + B). Each of the n other words that may be outputs has the logit
        vB. Noise has the logit γ + v(A + (n + 1)B). Triggers have the logit 0, and
        without noise so has τ. R and N are relative to y.
        """
        task = self.task
        group = self._atoms.group
        fractions = self._fractions
        rho = fractions.rho[group]
        log_odds = strength[group] + fractions.log_odds[group]
        # The attention on all words after the trigger, ρe^λ/Z, and on all other words,
        # (1 - ρ)/Z, with Z = ρe^λ + 1 - ρ.
        after_trigger = _sigmoid(log_odds)
        elsewhere = _sigmoid(-log_odds)
        A = fractions.output_share[group] * after_trigger
        # Of all words, those after the trigger are a fraction ρ, and the trigger itself
        # is another fraction ρ. The V - 1 words other than the trigger share the
        # remaining 1 - 2ρ.
        B = (1.0 - 2.0 * rho) / ((task.V - 1.0) * (1.0 - rho)) * elsewhere
        # The sigmoid function f has the derivative f(x) f(-x).
        A_strength_slope = A * elsewhere
        B_strength_slope = -B * after_trigger
        # Number of words with the logit 0: the triggers, and without noise τ.
        silent = float(task.Q + (not self.noisy))
        # Number n of words besides y that may be outputs.
        passing = float(task.V - task.Q - 2)
        # If there are no such words, ln 0 = -inf is right.
        with np.errstate(divide="ignore"):
            rest_silent = np.log(silent) - scale * (A + B)
            rest_passing = np.log(passing) - scale * A
        rest = np.logaddexp(rest_silent, rest_passing)
        # The derivative of R is the mean of the derivatives of -v(A + B) and -vA, with
        # the shares of `rest_silent` and `rest_passing` in the sum as weights.
        silent_share = np.exp(rest_silent - rest)
        return _Logits(
            rest=rest,
            rest_strength_slope=-scale
            * (A_strength_slope + silent_share * B_strength_slope),
            rest_scale_slope=-(A + silent_share * B),
            noise=gamma + scale * passing * B,
            noise_strength_slope=scale * passing * B_strength_slope,
            noise_scale_slope=passing * B,
        )


class StraightLine(Counted):
    """Normalised descent on one number λ that grows by ``step`` at every step.

    From these states `Counted` finds the first step at which the loss is at most a
    target.
    """

    def __init__(self, risk: RecallRisk, step: float) -> None:
        super().__init__(risk)
        self.step = step

    def states(self, steps: Steps) -> Array:
        """Return λ at these steps, (T, 1)."""
        return self.step * np.asarray(steps, dtype=np.float64)[:, None]


def _sigmoid(x: Array) -> Array:
    """Return 1/(1 + e^-x), in a form that does not overflow."""
    return np.asarray(np.exp(-np.logaddexp(0.0, -x)))


@cache
def _threads() -> ThreadpoolController:
    """Return the thread pools. They are found once, because finding them is slow."""
    return ThreadpoolController()
