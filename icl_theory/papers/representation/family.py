"""In-context regression over a fixed dictionary, as a family.

Softmax heads predict the answers of all tokens from the labels of a few.
`Representation` draws the dictionary and the start, and `DictionaryRisk` is the loss of
the heads.
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


@dataclass(frozen=True, eq=False)
class DictionaryRisk(WithStart, Risk):
    r"""The loss of heads, whose parameters are output weights and scores, (H, P + MK).

    .. math:: \frac1{2K}\sum_k |Z_N b_k - z_k|^2 + \sigma^2|b_k - c_k|^2, \qquad
        b_k = \sum_h w_{hk} a_{hk}

    The columns of Z, (m, K), are the tokens' representations. The first N of them,
    :math:`Z_N`, have labels, and :math:`a_{hk}` is the attention of query k on these,
    in a softmax over the first M tokens. A head has a row of parameters, which begins
    with its P output weights: one number for all queries, or K. The column :math:`c_k`
    is the unit vector of a query whose own noisy label is the answer, and zero if the
    answer is free of noise.
    """

    Z: Array  # (m, K)
    labelled: int  # N
    noise: float
    attended: int  # M
    start: Array  # (H, P + MK)
    noisy_answers: bool = False

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient, (H, P + MK)."""
        output, attention = self._heads(params)
        coefficients = self._combined(output, attention)
        residual = self._labelled_Z @ coefficients - self.Z
        by_noise = self.noise**2 * (coefficients - self._own_label)
        # Attention on tokens beyond N multiplies labels of zero, so that the loss does
        # not depend on it.
        by_coefficient = np.zeros(attention.shape[1:])
        by_coefficient[: self.labelled] = (
            self._labelled_Z.T @ residual + by_noise
        ) / self.Z.shape[1]
        by_output = np.einsum("hmk,mk->hk", attention, by_coefficient)
        centred = by_coefficient - by_output[:, None]
        by_score = output[:, None, :] * attention * centred
        if not self.per_token:
            by_output = by_output.sum(axis=1)
        gradient = np.column_stack([by_output, by_score.reshape(len(output), -1)])
        return self._loss(coefficients), gradient

    @property
    def per_token(self) -> bool:
        """Whether a head has an output weight for each query, and not one for all."""
        return self.start.shape[1] > 1 + self.attended * self.Z.shape[1]

    def coefficients(self, params: ArrayLike) -> Array:
        """Return the weight of each label in each prediction, (N, K)."""
        return self._coefficients(self._checked(params))

    def _coefficients(self, params: Array) -> Array:
        return self._combined(*self._heads(params))

    @cached_property
    def ridge(self) -> Array:
        r"""The coefficients of ridge regression, which have the least loss, (N, K).

        .. math:: b_k^\circ = (Z_N^\top Z_N + \sigma^2)^{-1}
            (Z_N^\top z_k + \sigma^2 c_k)

        A query whose own noisy label is the answer uses this label alone.
        """
        products = self._labelled_Z.T @ self.Z + self.noise**2 * self._own_label
        return np.asarray(np.linalg.solve(self._gram, products))

    def floor(self) -> float:
        r"""Return the loss of ridge regression.

        One head has coefficients of one sign, so its floor is the loss of non-negative
        least squares. The sign is the same for all queries, or each query has its own
        if there is an output weight for each.

        If softmax runs over tokens with labels alone and a head has one output weight,
        :math:`1^\top b_k` is one number for all queries. Several heads then lose half
        the variance of :math:`1^\top b_k^\circ` over
        :math:`1^\top(Z_N^\top Z_N + \sigma^2)^{-1}1`. For one head the floor is only a
        lower bound in this case.
        """
        if len(self.start) == 1:
            return self._floor_of_one_sign()
        has_free_sums = self.attended > self.labelled or self.per_token
        if has_free_sums:
            return self._loss(self.ridge)
        sums = self.ridge.sum(axis=0)
        solved = np.linalg.solve(self._gram, np.ones(self.labelled))
        return self._loss(self.ridge) + 0.5 * float(np.var(sums) / solved.sum())

    def _floor_of_one_sign(self) -> float:
        """Return the loss of non-negative least squares, for the better sign."""
        from scipy.optimize import nnls  # slow to load

        # The rows below Z_N make the ridge a part of the least squares.
        system = np.vstack([self._labelled_Z, self.noise * np.eye(self.labelled)])
        targets = np.vstack([self.Z, self.noise * self._own_label]).T
        losses = np.empty((2, len(targets)))
        for i, sign in enumerate((1.0, -1.0)):
            for k, target in enumerate(targets):
                _, residual_norm = nnls(system, sign * target)
                losses[i, k] = 0.5 * residual_norm**2
        if self.per_token:
            return float(losses.min(axis=0).mean())
        better_sign = losses.mean(axis=1).argmin()
        return float(losses[better_sign].mean())

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Distance of the coefficients from the coefficients of ridge regression."""
        difference = self._coefficients(params) - self.ridge
        return {"off": np.asarray(np.linalg.norm(difference))}

    def sampled(self, batch: int, seed: int = 0) -> Sampled[Prompts]:
        """Return the trainer on sampled prompts.

        The trainer answers all queries of a prompt from the labels of this prompt.
        """
        numbers = 4.0 * self.start.size
        return Sampled(self.start, self._draw, self._losses_on, batch, seed, numbers)

    def _loss(self, coefficients: Array) -> float:
        bias = np.sum((self._labelled_Z @ coefficients - self.Z) ** 2)
        variance = self.noise**2 * np.sum((coefficients - self._own_label) ** 2)
        return 0.5 * float(bias + variance) / self.Z.shape[1]

    def _combined(self, output: Array, attention: Array) -> Array:
        """Return the coefficients b of each query, (N, K), summed over heads."""
        return np.asarray(np.einsum("hk,hmk->mk", output, attention)[: self.labelled])

    @property
    def _labelled_Z(self) -> Array:
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
        """Return output weights, (H, K), and scores, (H, M, K)."""
        K = self.Z.shape[1]
        weights = K if self.per_token else 1
        output = np.broadcast_to(params[:, :weights], (len(params), K))
        return output, params[:, weights:].reshape(len(params), self.attended, K)

    def _heads(self, params: Array) -> tuple[Array, Array]:
        """Return output weights, (H, K), and attention, (H, M, K)."""
        output, scores = self._split(params)
        weight = np.exp(scores - scores.max(axis=1, keepdims=True))
        return output, weight / weight.sum(axis=1, keepdims=True)

    def _draw(self, rng: np.random.Generator, size: int) -> Prompts:
        answers = rng.normal(size=(size, len(self.Z))) @ self.Z
        noise = self.noise * rng.normal(size=(size, self.labelled))
        # Tokens beyond N have labels of zero.
        labels = np.zeros((size, self.attended))
        labels[:, : self.labelled] = answers[:, : self.labelled] + noise
        if self.noisy_answers:
            answers[:, : self.labelled] += noise
        return Prompts(labels, answers)

    def _losses_on(self, params: Array, prompts: Prompts) -> Pass:
        """Return losses and derivatives on the prompts of R runs, see `Sampled`."""
        passes = [
            self._losses_of_run(of_run, of_prompts)
            for of_run, of_prompts in zip(
                params, prompts_by_run(prompts, len(params)), strict=True
            )
        ]
        losses = np.concatenate([losses for losses, _ in passes])
        derivatives = np.concatenate([derivatives for _, derivatives in passes])
        derivatives = derivatives.reshape(len(losses), -1)
        places = first_places(params, len(losses)) + np.arange(params[0].size)
        return losses, places, derivatives

    def _losses_of_run(self, params: Array, prompts: Prompts) -> tuple[Array, Array]:
        """Return the losses of prompts, and their gradients over all parameters."""
        labels, answers = prompts
        output, scores = self._split(params)
        attention, _ = softmax(scores.swapaxes(1, 2))  # (H, K, M)
        averages = np.einsum("hkm,bm->bhk", attention, labels)
        error = np.einsum("hk,bhk->bk", output, averages) - answers

        by_answer = error[:, None] / answers.shape[1]
        centred_labels = labels[:, None, None] - averages[..., None]
        by_score = (output * by_answer)[..., None] * attention * centred_labels
        by_score = by_score.swapaxes(2, 3).reshape(len(labels), len(params), -1)
        by_output = by_answer * averages
        if not self.per_token:
            by_output = by_output.sum(axis=2, keepdims=True)
        derivatives = np.concatenate([by_output, by_score], axis=2)
        return 0.5 * np.mean(error**2, axis=1), derivatives


class Prompts(NamedTuple):
    """B prompts with labels of M tokens and answers to K queries."""

    labels: Array  # (B, M)
    answers: Array  # (B, K)


@dataclass(frozen=True, eq=False)
class Representation(Family):
    r"""In-context regression over a dictionary of K tokens, of which N have labels.

    .. math:: \hat y_k = \sum_h w_{hk} \sum_{n \le N}
        y_n\,\mathrm{softmax}_n(v_n^\top Q_h v_k), \qquad
        y_n = \lambda^\top z_n + \sigma\xi_n

    Tasks are λ ~ N(0, I), and the representations :math:`z_k \sim N(0, I/m)` are drawn
    once. The tokens :math:`v_k` are orthonormal, so that each :math:`Q_h` is a matrix
    of scores. The loss averages over all K queries. See docs/theory/representation.md.

    Parameters
    ----------
    K, m, N : int
        Number of tokens, dimension of their representations, and number of labels in a
        prompt. The first N tokens have labels.
    heads : int
        Number of heads H.
    sees : {"all", "labelled"}
        Whether softmax runs over all tokens, with labels of zero beyond N, or over
        those with labels.
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
        Size of the parameters at step 0, or the parameters: the output weights of each
        head, and then its scores, attended tokens by queries. Random output weights of
        head and token are 0 at step 0.
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
        meaning="output weights: one a head, or one a head and token",
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
        # Rounding would choose among the predictors.
        if self.noise < 1e-5 and self.m < self.N:
            raise argument_error(
                "noise",
                self.noise,
                "at least 1e-5 if N > m, where many predictors are best without it",
            )
        if not isinstance(self.start, float):
            checked_start(self.start, self._shape)

    @property
    def _shape(self) -> tuple[int, int]:
        """Shape of the parameters."""
        attended = self.K if self.sees == "all" else self.N
        weights = self.K if self.output == "token" else 1
        return self.heads, weights + attended * self.K

    def describe(self, run: Trajectory) -> None:
        """Say what is outside the theorems."""
        if self.heads < self.N:
            run.notes["heads"] = (
                "outside the theorems, as reconstructed:"
                f" fewer than {self.N} labels need"
            )

    def risk(self) -> DictionaryRisk:
        """Return the risk over output weights and scores."""
        rng = np.random.default_rng(self.seed)
        Z = rng.normal(size=(self.m, self.K)) / np.sqrt(self.m)
        attended = self.K if self.sees == "all" else self.N
        weights = self.K if self.output == "token" else 1
        shape = self._shape
        if isinstance(self.start, float):
            start = self.start * rng.normal(size=shape)
            if self.output == "token":
                start[:, :weights] = 0.0
        else:
            start = checked_start(self.start, shape)
        return DictionaryRisk(
            Z=Z,
            labelled=self.N,
            noise=self.noise,
            attended=attended,
            start=start,
            noisy_answers=self.answers == "labels",
        )
