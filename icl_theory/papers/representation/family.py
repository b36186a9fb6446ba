"""In-context regression over a fixed dictionary, as a family.

Softmax heads predict the answers for all tokens of the dictionary from the labels of a
few of them. `Representation` draws the dictionary and the start, and `DictionaryRisk`
is the loss of the heads. There are K tokens, each with a representation z of m numbers,
and each token is also a query. A prompt has N labels, softmax runs over M tokens, and
there are H heads. In shapes, R is the number of runs and B the number of prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import Array, argument_error
from icl_theory.engine.risk import Risk, WithStart
from icl_theory.engine.sampling import prompts_by_run
from icl_theory.engine.starts import checked_start
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.family import Family
from icl_theory.families.parameters import (
    LazySlot,
    NumberOrArray,
    Whole,
    Word,
    label_noise,
    learning_rate,
    loss_form,
    parameter,
)
from icl_theory.tokens.sampled import Pass, Sampled, first_places, softmax

# Least standard deviation σ of the noise if there are more labels than dimensions of
# the representations. Many coefficients then predict equally well, and only the noise
# selects among them. If σ² were much below 1e-10, rounding errors would select.
LEAST_SELECTING_NOISE = 1e-5


class _PredictionErrors(NamedTuple):
    """The differences whose squares the loss adds, for K queries.

    The letters have the same meaning as in `DictionaryRisk`.
    """

    residual: Array  # Z_N b_k - z_k, (..., m, K)
    deviation: Array  # b_k - c_k, (..., N, K)


@dataclass(frozen=True, eq=False)
class DictionaryRisk(WithStart, Risk):
    r"""The loss of H softmax heads that predict the answers to K queries from N labels.

    .. math:: \frac1{2K}\sum_k \bigl(|Z_N b_k - z_k|^2 +
        \sigma^2|b_k - c_k|^2\bigr), \qquad b_k = \sum_h w_{hk} a_{hk}

    The prediction for query k is the sum of the N labels, each multiplied by its
    coefficient in :math:`b_k`. The columns :math:`z_k` of Z, (m, K), are the tokens'
    representations. The first N columns, :math:`Z_N`, belong to the tokens with labels,
    and σ is the standard deviation of the labels' noise. Softmax runs over the first M
    tokens, :math:`a_{hk}` is the attention of head h and query k on the N labelled
    ones, and :math:`w_{hk}` is the output weight of the head for this query. The column
    :math:`c_k` is the unit vector of token k if the answer to query k is the noisy
    label of this token, and zero if the answer is free of noise.

    The parameters, (H, P + MK), have a row for each head: its P output weights, and
    then its scores, (M, K). P is 1 if one weight serves all queries, and K otherwise.
    """

    Z: Array  # (m, K)
    labelled: int  # N
    noise: float  # σ
    attended: int  # M, at least N
    start: Array  # (H, P + MK)
    noisy_answers: bool = False  # whether answers to the first N queries are labels

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient, (H, P + MK)."""
        output, attention = self._heads(params)
        errors = self._errors(self._combined(output, attention))
        return self._loss_of(errors), self._gradient(output, attention, errors)

    def gradients(self, states: Array) -> Array:
        """Gradients at n states, (n, H, P + MK)."""
        output, attention = self._heads(states)
        errors = self._errors(self._combined(output, attention))
        return self._gradient(output, attention, errors)

    def _gradient(
        self, output: Array, attention: Array, errors: _PredictionErrors
    ) -> Array:
        """Return the gradient, (..., H, P + MK).

        The output weights w_hk are (..., H, K), and the attention on all M tokens is
        (..., H, M, K).
        """
        coefficient_gradient = self._coefficient_gradient(errors)
        # As b_k = Σ_h w_hk a_hk, the derivative with respect to w_hk is the mean of
        # g = ∂loss/∂b_k, weighted by the attention a of head h and query k. The
        # derivative with respect to the score s_j of token j contains the same mean:
        # ∂loss/∂s_j = w_hk a_j (g_j - Σ_i a_i g_i).
        mean_gradient = np.einsum(
            "...hjk,...jk->...hk", attention, coefficient_gradient
        )
        # g_j - Σ_i a_i g_i for all heads, tokens and queries, (..., H, M, K)
        centred = coefficient_gradient[..., None, :, :] - mean_gradient[..., None, :]
        score_gradient = output[..., None, :] * attention * centred
        output_gradient = mean_gradient
        # If a head has one weight for all queries, their derivatives add up.
        if not self.per_token:
            output_gradient = mean_gradient.sum(axis=-1, keepdims=True)
        score_count = self.attended * self.Z.shape[1]
        flat_score_gradient = score_gradient.reshape(*output.shape[:-1], score_count)
        return np.concatenate([output_gradient, flat_score_gradient], axis=-1)

    def _errors(self, coefficients: Array) -> _PredictionErrors:
        """Return the differences whose squares the loss adds, for b, (..., N, K)."""
        return _PredictionErrors(
            residual=self._labelled_Z @ coefficients - self.Z,
            deviation=coefficients - self._own_label,
        )

    def _coefficient_gradient(self, errors: _PredictionErrors) -> Array:
        """Return ∂loss/∂b_k = (Z_Nᵀ(Z_N b_k - z_k) + σ²(b_k - c_k))/K, (..., M, K)."""
        K = self.Z.shape[1]
        # Attention on tokens beyond N multiplies labels of zero. The loss does not
        # depend on this attention, so the rows of these tokens stay zero.
        gradient = np.zeros((*errors.deviation.shape[:-2], self.attended, K))
        gradient[..., : self.labelled, :] = (
            self._labelled_Z.T @ errors.residual + self.noise**2 * errors.deviation
        ) / K
        return gradient

    @property
    def per_token(self) -> bool:
        """Whether a head has an output weight for each query, and not one for all."""
        score_count = self.attended * self.Z.shape[1]
        # A row of parameters has P output weights and then the scores.
        return self.start.shape[1] > 1 + score_count

    def coefficients(self, params: ArrayLike) -> Array:
        """Return the weight b of each label in each prediction, (N, K)."""
        return self._coefficients(self._checked(params))

    def _coefficients(self, params: Array) -> Array:
        """Return the weights b, (N, K), for parameters that were checked."""
        output, attention = self._heads(params)
        return self._combined(output, attention)

    @cached_property
    def ridge(self) -> Array:
        r"""The coefficients of least loss, from ridge regression, (N, K).

        .. math:: b_k^\circ = (Z_N^\top Z_N + \sigma^2)^{-1}
            (Z_N^\top z_k + \sigma^2 c_k)

        If the answer to query k is the noisy label of its token, the best coefficients
        are :math:`b_k^\circ = c_k`, which pick this label alone.
        """
        products = self._labelled_Z.T @ self.Z + self.noise**2 * self._own_label
        return np.asarray(np.linalg.solve(self._gram, products))

    def floor(self) -> float:
        r"""Return the least loss of the heads, or a lower bound on it.

        Several heads reach the loss of ridge regression, with one exception. If softmax
        runs over tokens with labels alone and each head has one output weight, the sum
        :math:`1^\top b_k` of the coefficients is the same number for all queries. The
        floor is then higher by half the variance of :math:`1^\top b_k^\circ` over the
        queries, divided by :math:`1^\top(Z_N^\top Z_N + \sigma^2)^{-1}1`. Here
        :math:`b_k^\circ` are the coefficients of ridge regression.

        One head has coefficients of one sign. Its floor is the loss of non-negative
        least squares with the better sign. Each query chooses the sign for itself if it
        has its own output weight; otherwise one sign serves all queries. In the
        exceptional case above, this floor is only a lower bound.
        """
        heads = len(self.start)
        if heads == 1:
            return self._floor_of_one_sign()
        # Attention on tokens without labels, or a weight for each query, lets each
        # query have a sum of coefficients of its own.
        has_free_sums = self.attended > self.labelled or self.per_token
        if has_free_sums:
            return self._loss(self.ridge)
        # The exception: 1ᵀb_k° of each query, and (Z_NᵀZ_N + σ²)⁻¹1.
        ridge_sums = self.ridge.sum(axis=0)
        solved_ones = np.linalg.solve(self._gram, np.ones(self.labelled))
        cost_of_one_sum = 0.5 * float(np.var(ridge_sums) / solved_ones.sum())
        return self._loss(self.ridge) + cost_of_one_sum

    def _floor_of_one_sign(self) -> float:
        """Return the least loss of coefficients of one sign, for the better sign.

        For each query and each sign, this is a problem of non-negative least squares.
        """
        from scipy.optimize import nnls  # slow to load

        # |Z_N b - z_k|² + σ²|b - c_k|² is one sum of squares: the rows σI below Z_N and
        # the entries σc_k below z_k add the second part.
        system = np.vstack([self._labelled_Z, self.noise * np.eye(self.labelled)])
        targets = np.vstack([self.Z, self.noise * self._own_label]).T
        losses = np.empty((2, len(targets)))  # by sign and query
        for i, sign in enumerate((1.0, -1.0)):
            for k, target in enumerate(targets):
                # b = sign · u with u >= 0, so u is fitted to sign · target.
                _, residual_norm = nnls(system, sign * target)
                losses[i, k] = 0.5 * residual_norm**2
        if self.per_token:
            return float(losses.min(axis=0).mean())
        better_sign = losses.mean(axis=1).argmin()
        return float(losses[better_sign].mean())

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Distance ``off`` of the coefficients from ``ridge``."""
        difference = self._coefficients(params) - self.ridge
        return {"off": np.asarray(np.linalg.norm(difference))}

    def sampled(self, batch: int, seed: int = 0) -> Sampled[Prompts]:
        """Return the trainer on sampled prompts.

        The trainer answers all queries of a prompt from the labels of this prompt.
        """
        # `_losses_of_run` holds about four arrays at once that have a number for each
        # prompt and parameter. `Sampled` checks that they fit in memory.
        numbers_per_prompt = 4.0 * self.start.size
        return Sampled(
            self.start, self._draw, self._losses_on, batch, seed, numbers_per_prompt
        )

    def _loss(self, coefficients: Array) -> float:
        """Return the loss of the coefficients b, (N, K)."""
        return self._loss_of(self._errors(coefficients))

    def _loss_of(self, errors: _PredictionErrors) -> float:
        """Return Σ_k (|Z_N b_k - z_k|² + σ²|b_k - c_k|²)/(2K)."""
        bias = np.sum(errors.residual**2)
        variance = self.noise**2 * np.sum(errors.deviation**2)
        return 0.5 * float(bias + variance) / self.Z.shape[1]

    def _combined(self, output: Array, attention: Array) -> Array:
        """Return the coefficients b_k = Σ_h w_hk a_hk of all queries, (..., N, K).

        Output weights are (..., H, K), and attention is (..., H, M, K).
        """
        coefficients = np.einsum("...hk,...hjk->...jk", output, attention)
        # Tokens beyond N have labels of zero, so their coefficients are left out.
        return np.asarray(coefficients[..., : self.labelled, :])

    @property
    def _labelled_Z(self) -> Array:
        """The representations Z_N of the tokens with labels, (m, N)."""
        return self.Z[:, : self.labelled]

    @cached_property
    def _gram(self) -> Array:
        """The ridge regression matrix Z_NᵀZ_N + σ²I, (N, N)."""
        products = self._labelled_Z.T @ self._labelled_Z
        return np.asarray(products + self.noise**2 * np.eye(self.labelled))

    @cached_property
    def _own_label(self) -> Array:
        """The columns c_k, (N, K)."""
        return float(self.noisy_answers) * np.eye(self.labelled, self.Z.shape[1])

    def _split(self, params: Array) -> tuple[Array, Array]:
        """Return output weights, (..., H, K), and scores, (..., H, M, K)."""
        states_and_heads = params.shape[:-1]  # (..., H)
        K = self.Z.shape[1]
        P = K if self.per_token else 1  # number of output weights of each head
        output = np.broadcast_to(params[..., :P], (*states_and_heads, K))
        scores = params[..., P:].reshape(*states_and_heads, self.attended, K)
        return output, scores

    def _heads(self, params: Array) -> tuple[Array, Array]:
        """Return output weights, (..., H, K), and attention, (..., H, M, K)."""
        output, scores = self._split(params)
        # The largest exponent of a query is 0, so that no exponential overflows.
        exponential = np.exp(scores - scores.max(axis=-2, keepdims=True))
        return output, exponential / exponential.sum(axis=-2, keepdims=True)

    def _draw(self, rng: np.random.Generator, size: int) -> Prompts:
        """Draw ``size`` prompts, each with a task λ and label noise.

        The label of token k is λᵀz_k plus noise. The answer to query k is λᵀz_k. If
        answers are noisy, it is the label of token k, provided that there is one.
        """
        dimension = len(self.Z)
        tasks = rng.normal(size=(size, dimension))
        answers = tasks @ self.Z
        noise = self.noise * rng.normal(size=(size, self.labelled))
        # Tokens beyond N have labels of zero.
        labels = np.zeros((size, self.attended))
        labels[:, : self.labelled] = answers[:, : self.labelled] + noise
        if self.noisy_answers:
            answers[:, : self.labelled] += noise
        return Prompts(labels, answers)

    def _losses_on(self, params: Array, prompts: Prompts) -> Pass:
        """Return the losses on the prompts of R runs, and their derivatives.

        ``params`` is (R, H, P + MK), and the prompts are in the order of the runs. The
        result has the form that `Sampled` needs.
        """
        losses_by_run = []
        gradients_by_run = []
        prompts_of_runs = prompts_by_run(prompts, len(params))
        for params_of_run, prompts_of_run in zip(params, prompts_of_runs, strict=True):
            losses_of_run, gradients = self._losses_of_run(
                params_of_run, prompts_of_run
            )
            losses_by_run.append(losses_of_run)
            gradients_by_run.append(gradients)
        losses = np.concatenate(losses_by_run)
        derivatives = np.concatenate(gradients_by_run).reshape(len(losses), -1)
        # A loss depends on all parameters of its run. Their places in the flat array of
        # the parameters of all runs are consecutive.
        places = first_places(params, len(losses)) + np.arange(params[0].size)
        return Pass(losses, places, derivatives)

    def _losses_of_run(self, params: Array, prompts: Prompts) -> tuple[Array, Array]:
        """Return the loss of each prompt, (B,), and its gradient, (B, H, P + MK).

        The loss of a prompt is Σ_k e_k²/(2K) with e_k = Σ_h w_hk ȳ_hk - answer_k. Here
        ȳ_hk = Σ_j a_hkj y_j is the average of the labels y_j by the attention a_hkj of
        head h and query k. Its derivative with respect to the score of token j is
        a_hkj (y_j - ȳ_hk).
        """
        labels, answers = prompts
        output, scores = self._split(params)
        # `softmax` runs over the last axis, the tokens. It also returns the logarithms
        # of its denominators.
        attention, _ = softmax(scores.swapaxes(1, 2))  # (H, K, M)
        averages = np.einsum("hkj,bj->bhk", attention, labels)
        error = np.einsum("hk,bhk->bk", output, averages) - answers

        K = answers.shape[1]
        prediction_gradient = error[:, None] / K  # (B, 1, K)
        average_gradient = output * prediction_gradient  # (B, H, K)
        centred_labels = labels[:, None, None] - averages[..., None]  # (B, H, K, M)
        score_gradient = average_gradient[..., None] * attention * centred_labels
        # The parameters have scores (M, K), but ``attention`` has the axes (K, M).
        score_gradient = score_gradient.swapaxes(2, 3)
        flat_score_gradient = score_gradient.reshape(len(labels), len(params), -1)
        output_gradient = prediction_gradient * averages
        # If a head has one weight for all queries, their derivatives add up.
        if not self.per_token:
            output_gradient = output_gradient.sum(axis=2, keepdims=True)
        gradient = np.concatenate([output_gradient, flat_score_gradient], axis=2)
        return 0.5 * np.mean(error**2, axis=1), gradient


class Prompts(NamedTuple):
    """The labels of M tokens and the answers to K queries, in each of B prompts."""

    labels: Array  # (B, M)
    answers: Array  # (B, K)


@dataclass(frozen=True, eq=False)
class Representation(Family):
    r"""In-context regression over a dictionary of K tokens, of which N have labels.

    .. math:: \hat y_k = \sum_h w_{hk} \sum_{n \le N}
        y_n\,\mathrm{softmax}_n(v_n^\top Q_h v_k), \qquad
        y_n = \lambda^\top z_n + \sigma\xi_n

    A task is a vector λ ~ N(0, I), the noise :math:`\xi_n` is standard normal, and the
    representations :math:`z_k \sim N(0, I/m)` are drawn once. The tokens :math:`v_k`
    are orthonormal, so that the entries of :math:`Q_h` in this basis are the scores of
    head h, and :math:`w_{hk}` are output weights. The loss averages over all K queries.
    See docs/theory/representation.md.

    Parameters
    ----------
    K : int
        Number of tokens.
    m : int
        Dimension of the tokens' representations.
    N : int
        Number of labels in a prompt. The first N tokens have labels.
    heads : int
        Number of heads H.
    sees : {"all", "labelled"}
        Whether softmax runs over all tokens, with labels of zero beyond N, or only over
        the tokens with labels.
    output : {"head", "token"}
        Whether there is one output weight for each head, :math:`w_{hk} = w_h`, or one
        for each head and token.
    answers : {"clean", "labels"}
        The answer to predict: :math:`\lambda^\top z_k` for every token, or the noisy
        label of a token that has one. Noise in the answers of tokens without labels
        would add a constant to the loss, and is left out.
    noise : float
        Standard deviation of the label noise, label units; its square is the ridge.
    start : float or array_like, (H, weights + scores)
        A number multiplies standard normal parameters at step 0, but with
        ``output="token"`` all output weights start at 0. An array gives the parameters:
        for each head a row of its output weights, and then its scores, one for each
        attended token and query.
    seed : int
        Seed of the representations and of a random start.
    eta, epsilon, above, loss, rule, method, max_steps
        As for every `Family`.

    Examples
    --------
    >>> import icl_theory as icl
    >>> problem = icl.Representation(above=1e-6)
    >>> problem.simulate().converged
    True
    >>> problem.changed(heads=1).risk().floor() > problem.risk().floor()
    True
    """

    name: ClassVar[str] = "representation"
    title: ClassVar[str] = "in-context regression over a dictionary"
    goal: ClassVar[tuple[str, float]] = ("above", 1e-4)
    claims = LazySlot("icl_theory.papers.representation.statements:CLAIMS")

    eta: float | str = learning_rate(1.0)
    K: int = parameter(
        12,
        kind=Whole(minimum=2, maximum=500),
        symbol="K",
        tex="K",
        meaning="number of tokens",
    )
    m: int = parameter(
        8,
        kind=Whole(maximum=500),
        symbol="m",
        tex="m",
        meaning="dimension of representations",
    )
    N: int = parameter(
        4, kind=Whole(maximum=500), symbol="N", tex="N", meaning="labels in a prompt"
    )
    heads: int = parameter(
        4, kind=Whole(maximum=64), symbol="H", tex="H", meaning="number of heads"
    )
    sees: str = parameter(
        "all",
        kind=Word(words=("all", "labelled")),
        meaning="tokens that softmax runs over",
    )
    output: str = parameter(
        "head",
        kind=Word(words=("head", "token")),
        meaning="output weights: one for each head, or one for each head and token",
    )
    answers: str = parameter(
        "clean",
        kind=Word(words=("clean", "labels")),
        meaning="whether a token's own label is its answer",
    )
    noise: float = label_noise(0.3, 1e6)
    loss: str = loss_form()
    start: Any = parameter(
        0.5,
        kind=NumberOrArray(maximum=10.0, ndim=(2,)),
        meaning="size of the parameters at step 0",
    )
    seed: int = parameter(
        0, kind=Whole(minimum=0), meaning="seed of representations and start"
    )

    def validate(self) -> None:
        """Refuse more labels than tokens, and a best predictor that is not unique."""
        if self.N > self.K:
            raise argument_error("N", self.N, f"at most K = {self.K}")
        # Z_NᵀZ_N has no inverse if N > m, and little noise adds too little to it.
        if self.noise < LEAST_SELECTING_NOISE and self.m < self.N:
            raise argument_error(
                "noise",
                self.noise,
                "at least 1e-5 if N > m, where many predictors are best without it",
            )
        if not isinstance(self.start, float):
            checked_start(self.start, self._shape)

    @property
    def _attended(self) -> int:
        """Number M of tokens that softmax runs over."""
        return self.K if self.sees == "all" else self.N

    @property
    def _shape(self) -> tuple[int, int]:
        """Shape of the parameters: a row of output weights and scores for each head."""
        output_count = self.K if self.output == "token" else 1
        score_count = self._attended * self.K
        return self.heads, output_count + score_count

    def describe(self, run: Trajectory) -> None:
        """Note that the theorems do not apply if there are fewer heads than labels."""
        if self.heads < self.N:
            run.notes["heads"] = (
                "the reconstructed theorems do not apply: they need"
                f" {self.N} heads or more, one for each label"
            )

    def risk(self) -> DictionaryRisk:
        """Return the risk over output weights and scores.

        Each call draws the representations and a random start again. The results are
        equal, because the seed is the same.
        """
        rng = np.random.default_rng(self.seed)
        Z = rng.normal(size=(self.m, self.K)) / np.sqrt(self.m)
        if isinstance(self.start, float):
            start = self.start * rng.normal(size=self._shape)
            if self.output == "token":
                # The K output weights of each head start at zero, as in the paper.
                start[:, : self.K] = 0.0
        else:
            start = checked_start(self.start, self._shape)
        return DictionaryRisk(
            Z=Z,
            labelled=self.N,
            noise=self.noise,
            attended=self._attended,
            start=start,
            noisy_answers=self.answers == "labels",
        )
