"""In-context regression over a fixed dictionary, with softmax heads that see few labels, as a family."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import Array, argument_error
from icl_theory.engine.risk import Risk, WithStart
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.family import Family
from icl_theory.families.parameters import (
    LazySlot,
    Number,
    Whole,
    Word,
    label_noise,
    learning_rate,
    parameter,
)
from icl_theory.tokens.sampled import Pass, Sampled, softmax


@dataclass(frozen=True, eq=False)
class DictionaryRisk(WithStart, Risk):
    r"""The loss of output weights w and scores of heads, (H, P + MK): one row a head.

    .. math:: \frac1{2K}\sum_k |Z_N b_k - z_k|^2 + \sigma^2|b_k - c_k|^2, \qquad
        b_k = \sum_h w_{hk} a_{hk}

    The columns of Z, (m, K), are the tokens' representations, those of :math:`Z_N` have
    labels, and :math:`a_{hk}` is the attention of query k on them: a softmax over the
    first M tokens. A row begins with its P output weights: one number for all queries,
    or K. The column :math:`c_k` is the unit vector of a query whose own noisy label is
    the answer, and zero if the answer is free of noise.
    """

    Z: Array
    labelled: int
    noise: float
    seen: int
    start: Array
    noisy_answers: bool = False

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient, (H, P + MK)."""
        output, attention = self._heads(params)
        coefficients = self._combined(output, attention)
        missed = self._first @ coefficients - self.Z
        by_noise = self.noise**2 * (coefficients - self._own_label)
        drift = np.zeros(attention.shape[1:])
        drift[: self.labelled] = (self._first.T @ missed + by_noise) / self.Z.shape[1]
        slopes = np.einsum("hmk,mk->hk", attention, drift)
        by_score = output[:, None, :] * attention * (drift - slopes[:, None])
        by_output = slopes if self.per_token else slopes.sum(axis=1)
        gradient = np.column_stack([by_output, by_score.reshape(len(output), -1)])
        return self._loss(coefficients), gradient

    @property
    def per_token(self) -> bool:
        """Whether a head has an output weight for each query, and not one for all."""
        return self.start.shape[1] > 1 + self.seen * self.Z.shape[1]

    def coefficients(self, params: ArrayLike) -> Array:
        """The weight of each label in each prediction, (N, K)."""
        return self._coefficients(self._checked(params))

    def _coefficients(self, params: Array) -> Array:
        return self._combined(*self._heads(params))

    @cached_property
    def ridge(self) -> Array:
        """The coefficients of the least loss, (N, K): those of ridge regression.

        A query whose own noisy label is the answer has this label alone.
        """
        products = self._first.T @ self.Z + self.noise**2 * self._own_label
        return np.asarray(np.linalg.solve(self._gram, products))

    def floor(self) -> float:
        r"""Return the loss of ridge regression.

        One head has weights of one sign: non-negative least squares, with one sign for
        all queries or one for each. If softmax sees labels alone and a head has one
        output weight, :math:`1^\top b_k` is one number for all queries. More heads then
        lose half the variance of :math:`1^\top b_k` of ridge regression over
        :math:`1^\top(Z_N^\top Z_N + \sigma^2)^{-1}1`; for one head the floor is a lower
        bound.
        """
        if len(self.start) == 1:
            return self._one_sign()
        if self.seen > self.labelled or self.per_token:
            return self._loss(self.ridge)
        sums = self.ridge.sum(axis=0)
        price = np.linalg.solve(self._gram, np.ones(self.labelled)).sum()
        return self._loss(self.ridge) + 0.5 * float(np.var(sums) / price)

    def _one_sign(self) -> float:
        """Return the least loss with coefficients of one sign."""
        from scipy.optimize import nnls

        tall = np.vstack([self._first, self.noise * np.eye(self.labelled)])
        queries = np.vstack([self.Z, self.noise * self._own_label]).T
        losses = np.empty((2, len(queries)))
        for row, sign in enumerate((1.0, -1.0)):
            # nnls returns the norm of what is missed
            losses[row] = [0.5 * nnls(tall, sign * query)[1] ** 2 for query in queries]
        by_sign = (
            losses.min(axis=0)
            if self.per_token
            else losses[losses.mean(axis=1).argmin()]
        )
        return float(by_sign.mean())

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Distance of the coefficients from those of ridge regression."""
        return {
            "off": np.asarray(np.linalg.norm(self._coefficients(params) - self.ridge))
        }

    def sampled(self, batch: int, seed: int = 0) -> Sampled:
        """Return the trainer on sampled prompts, which answers all queries of each from its labels."""
        return Sampled(self.start, self._drawn, batch, seed, 4.0 * self.start.size)

    def _loss(self, coefficients: Array) -> float:
        missed = np.sum((self._first @ coefficients - self.Z) ** 2)
        by_noise = self.noise**2 * np.sum((coefficients - self._own_label) ** 2)
        return 0.5 * float(missed + by_noise) / self.Z.shape[1]

    def _combined(self, output: Array, attention: Array) -> Array:
        return np.asarray(np.einsum("hk,hmk->mk", output, attention)[: self.labelled])

    @property
    def _first(self) -> Array:
        return self.Z[:, : self.labelled]

    @cached_property
    def _gram(self) -> Array:
        return np.asarray(
            self._first.T @ self._first + self.noise**2 * np.eye(self.labelled)
        )

    @cached_property
    def _own_label(self) -> Array:
        """The columns c_k, (N, K)."""
        return float(self.noisy_answers) * np.eye(self.labelled, self.Z.shape[1])

    def _split(self, params: Array) -> tuple[Array, Array]:
        """Return output weights, (H, K), and scores, (H, M, K)."""
        K = self.Z.shape[1]
        weights = K if self.per_token else 1
        output = np.broadcast_to(params[:, :weights], (len(params), K))
        return output, params[:, weights:].reshape(len(params), self.seen, K)

    def _heads(self, params: Array) -> tuple[Array, Array]:
        output, scores = self._split(params)
        weight = np.exp(scores - scores.max(axis=1, keepdims=True))
        return output, weight / weight.sum(axis=1, keepdims=True)

    def _drawn(self, params: Array, rng: np.random.Generator, batch: int) -> Pass:
        answers = rng.normal(size=(batch, len(self.Z))) @ self.Z
        labels = np.zeros((batch, self.seen))  # none beyond N
        noise = self.noise * rng.normal(size=(batch, self.labelled))
        labels[:, : self.labelled] = answers[:, : self.labelled] + noise
        if self.noisy_answers:
            answers[:, : self.labelled] += noise
        output, scores = self._split(params)
        attention, _ = softmax(scores.swapaxes(1, 2))  # (H, K, M)
        heads = np.einsum("hkm,bm->bhk", attention, labels)
        missed = np.einsum("hk,bhk->bk", output, heads) - answers
        back = missed[:, None] / answers.shape[1]
        moved = labels[:, None, None] - heads[..., None]
        by_score = (output * back)[..., None] * attention * moved
        by_score = by_score.swapaxes(2, 3).reshape(batch, len(params), -1)
        by_output = back * heads
        if not self.per_token:
            by_output = by_output.sum(axis=2, keepdims=True)
        slopes = np.concatenate([by_output, by_score], axis=2)
        places = np.arange(params.size).reshape(params.shape)
        return 0.5 * np.mean(missed**2, axis=1), places, slopes


@dataclass(frozen=True, eq=False)
class Representation(Family):
    r"""In-context regression over K fixed tokens with representations in m dimensions and N labels in each prompt.

    .. math:: \hat y_k = \sum_h w_{hk} \sum_{n \le N} y_n\,\mathrm{softmax}_n(v_n^\top Q_h v_k), \qquad
        y_n = \lambda^\top z_n + \sigma\xi_n

    Tasks are λ ~ N(0, I), representations :math:`z_k \sim N(0, I/m)` are drawn once;
    tokens :math:`v_k` are orthonormal, so that each :math:`Q_h` is a matrix of scores.
    The loss averages over all K queries. See docs/theory/representation.md.

    Parameters
    ----------
    K, m, N : int
        Tokens, dimension of their representations, and labels in a prompt, of the first
        N tokens.
    heads : int
        Number of heads H.
    sees : {"all", "labelled"}
        Whether softmax runs over all tokens, with labels of zero beyond N, or over
        those with labels.
    output : {"head", "token"}
        Output weights: one number for each head, :math:`w_{hk} = w_h`, or one for each
        head and token.
    answers : {"clean", "labels"}
        What is to be predicted: :math:`\lambda^\top z_k` for every token, or the noisy
        label of a token that has one. Noise of the others would add a constant to the
        loss, and is left out.
    noise : float
        Standard deviation of the label noise, label units; its square is the ridge.
    start, seed : float, int
        Size of the parameters at step 0, and the seed that they and the representations
        are drawn with. Output weights of head and token are 0 at step 0.
    eta, epsilon, above, rule, method, max_steps
        As for every `Family`.

    Examples
    --------
    >>> import icl_theory as icl
    >>> problem = icl.Representation(above=1e-6)
    >>> problem.simulate().converged, problem.changed(heads=1).risk().floor() > problem.risk().floor()
    (True, True)
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
    start: float = parameter(
        0.5, kind=Number(maximum=10.0), meaning="size of the parameters at step 0"
    )
    seed: int = parameter(
        0, kind=Whole(minimum=0), meaning="seed of representations and start"
    )

    def validate(self) -> None:
        """Refuse more labels than tokens, and labels without noise that many predictors fit."""
        if self.N > self.K:
            raise argument_error("N", self.N, f"at most K = {self.K}")
        if self.noise < 1e-5 and self.m < self.N:  # rounding would choose the ridge
            raise argument_error(
                "noise",
                self.noise,
                "at least 1e-5 if N > m, where many predictors are best without it",
            )

    def describe(self, run: Trajectory) -> None:
        """Say what is outside the theorems."""
        if self.heads < self.N:
            run.notes["heads"] = (
                f"outside the theorems, as reconstructed: fewer than {self.N} labels need"
            )

    def risk(self) -> DictionaryRisk:
        """Return the risk over output weights and scores."""
        rng = np.random.default_rng(self.seed)
        Z = rng.normal(size=(self.m, self.K)) / np.sqrt(self.m)
        seen = self.K if self.sees == "all" else self.N
        weights = self.K if self.output == "token" else 1
        start = self.start * rng.normal(size=(self.heads, weights + seen * self.K))
        if self.output == "token":
            start[:, :weights] = 0.0
        return DictionaryRisk(
            Z, self.N, self.noise, seen, start, self.answers == "labels"
        )
