"""In-context regression over a fixed dictionary, with softmax heads that see few labels, as a family."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import Array, refuse
from icl_theory.engine.risk import Risk, Started
from icl_theory.engine.tokens.sampled import Pass, Sampled, softmax
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.family import Family
from icl_theory.families.parameters import Later, Number, Whole, Word, label_noise, learning_rate, parameter


@dataclass(frozen=True, eq=False)
class DictionaryRisk(Started, Risk):
    r"""The loss of output weights w and scores of heads, (H, 1 + MK): one row a head, its weight first.

    .. math:: \frac1{2K}\sum_k |Z_N b_k - z_k|^2 + \sigma^2|b_k|^2, \qquad b_k = \sum_h w_h a_{hk}

    The columns of Z, (m, K), are the tokens' representations, those of :math:`Z_N` have labels, and
    :math:`a_{hk}` is the attention of query k on them: a softmax over the first M tokens.
    """

    Z: Array
    labelled: int
    noise: float
    seen: int
    start: Array

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient, (H, 1 + MK)."""
        output, attention = self._heads(params)
        b = np.tensordot(output, attention, 1)[: self.labelled]
        missed = self._first @ b - self.Z
        drift = np.zeros(attention.shape[1:])
        drift[: self.labelled] = (self._first.T @ missed + self.noise**2 * b) / self.Z.shape[1]
        slopes = np.einsum("hmk,mk->hk", attention, drift)
        turn = output[:, None, None] * attention * (drift - slopes[:, None])
        return self._loss(b), np.column_stack([slopes.sum(axis=1), turn.reshape(len(output), -1)])

    def coefficients(self, params: ArrayLike) -> Array:
        """The weight of each label in each prediction, (N, K)."""
        return self._coefficients(self._checked(params))

    def _coefficients(self, params: Array) -> Array:
        return np.asarray(np.tensordot(*self._heads(params), 1)[: self.labelled])

    @cached_property
    def ridge(self) -> Array:
        """Those of ridge regression, (N, K)."""
        return np.asarray(np.linalg.solve(self._gram, self._first.T @ self.Z))

    def floor(self) -> float:
        r"""Return the loss of ridge regression.

        One head has weights of one sign: non-negative least squares. If softmax sees labels alone,
        :math:`1^\top b_k` is one number for all queries. More heads then lose half the variance of
        :math:`1^\top b_k` of ridge regression over :math:`1^\top(Z_N^\top Z_N + \sigma^2)^{-1}1`; for one head the
        floor is a lower bound.
        """
        from scipy.optimize import nnls

        b, cost = self.ridge, 0.0
        if len(self.start) == 1:
            tall = np.vstack([self._first, self.noise * np.eye(self.labelled)])
            queries = np.vstack([self.Z, np.zeros((self.labelled, self.Z.shape[1]))]).T
            signed = [np.transpose([sign * nnls(tall, sign * each)[0] for each in queries]) for sign in (1, -1)]
            return min(map(self._loss, signed))
        if self.seen == self.labelled:
            cost = 0.5 * float(np.var(b.sum(axis=0)) / np.linalg.solve(self._gram, np.ones(self.labelled)).sum())
        return self._loss(b) + cost

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Distance of the coefficients from those of ridge regression."""
        return {"off": np.asarray(np.linalg.norm(self._coefficients(params) - self.ridge))}

    def sampled(self, batch: int, seed: int = 0) -> Sampled:
        """Return the trainer on sampled prompts, which answers all queries of each from its labels."""
        return Sampled(self.start, self._drawn, batch, seed, 4.0 * self.start.size)

    def _loss(self, b: Array) -> float:
        errors = np.sum((self._first @ b - self.Z) ** 2) + self.noise**2 * np.sum(b**2)
        return 0.5 * float(errors) / self.Z.shape[1]

    @property
    def _first(self) -> Array:
        return self.Z[:, : self.labelled]

    @cached_property
    def _gram(self) -> Array:
        return np.asarray(self._first.T @ self._first + self.noise**2 * np.eye(self.labelled))

    def _heads(self, params: Array) -> tuple[Array, Array]:
        scores = params[:, 1:].reshape(len(params), self.seen, -1)
        weight = np.exp(scores - scores.max(axis=1, keepdims=True))
        return params[:, 0], weight / weight.sum(axis=1, keepdims=True)

    def _drawn(self, params: Array, rng: np.random.Generator, batch: int) -> Pass:
        truth = rng.normal(size=(batch, len(self.Z))) @ self.Z
        labels = np.zeros((batch, self.seen))  # none beyond N
        labels[:, : self.labelled] = truth[:, : self.labelled]
        labels[:, : self.labelled] += self.noise * rng.normal(size=(batch, self.labelled))
        output, scores = params[:, 0, None], params[:, 1:].reshape(len(params), self.seen, -1)
        attention, _ = softmax(scores.swapaxes(1, 2))  # (H, K, M)
        heads = np.einsum("hkm,bm->bhk", attention, labels)
        missed = np.sum(output * heads, axis=1) - truth
        back = missed[:, None] / truth.shape[1]
        turn = (output * back)[..., None] * attention * (labels[:, None, None] - heads[..., None])
        by_score = turn.swapaxes(2, 3).reshape(batch, len(params), -1)
        slopes = np.concatenate([np.sum(back * heads, axis=2)[..., None], by_score], axis=2)
        return 0.5 * np.mean(missed**2, axis=1), np.arange(params.size).reshape(params.shape), slopes


@dataclass(frozen=True, eq=False)
class Representation(Family):
    r"""In-context regression over K fixed tokens with representations in m dimensions and N labels in each prompt.

    .. math:: \hat y_k = \sum_h w_h \sum_{n \le N} y_n\,\mathrm{softmax}_n(v_n^\top Q_h v_k), \qquad
        y_n = \lambda^\top z_n + \sigma\xi_n

    Tasks are λ ~ N(0, I), representations :math:`z_k \sim N(0, I/m)` are drawn once; tokens :math:`v_k` are
    orthonormal, so that each :math:`Q_h` is a matrix of scores. The loss averages over all K queries. See
    docs/theory/representation.md.

    Parameters
    ----------
    K, m, N : int
        Tokens, dimension of their representations, and labels in a prompt, of the first N tokens.
    heads : int
        Number of heads H.
    sees : {"all", "labelled"}
        Whether softmax runs over all tokens, with labels of zero beyond N, or over those with labels.
    noise : float
        Standard deviation of the label noise, label units; its square is the ridge.
    start, seed : float, int
        Size of all parameters at step 0, and the seed that they and the representations are drawn with.
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
    claims = Later("icl_theory.papers.representation:CLAIMS")

    eta: float | str = learning_rate(1.0)
    K: int = parameter(12, kind=Whole(minimum=2, maximum=500), symbol="K", tex="K", meaning="number of tokens")
    m: int = parameter(8, kind=Whole(maximum=500), symbol="m", tex="m", meaning="dimension of representations")
    N: int = parameter(4, kind=Whole(maximum=500), symbol="N", tex="N", meaning="labels in a prompt")
    heads: int = parameter(4, kind=Whole(maximum=64), symbol="H", tex="H", meaning="number of heads")
    sees: str = parameter("all", kind=Word(words=("all", "labelled")), meaning="tokens that softmax runs over")
    noise: float = label_noise(0.3, 1e6)
    start: float = parameter(0.5, kind=Number(maximum=10.0), meaning="size of the parameters at step 0")
    seed: int = parameter(0, kind=Whole(minimum=0), meaning="seed of representations and start")

    def validate(self) -> None:
        """Refuse more labels than tokens, and labels without noise that many predictors fit."""
        if self.N > self.K:
            raise refuse("N", self.N, f"at most K = {self.K}")
        if self.noise < 1e-5 and self.m < self.N:  # rounding would choose the ridge
            raise refuse("noise", self.noise, "at least 1e-5 if N > m, where many predictors are best without it")

    def describe(self, run: Trajectory) -> None:
        """Say what is outside the theorems."""
        if self.heads < self.N:
            run.notes["heads"] = f"outside the theorems, as reconstructed: fewer than {self.N} labels need"

    def risk(self) -> DictionaryRisk:
        """Return the risk over output weights and scores."""
        rng = np.random.default_rng(self.seed)
        Z = rng.normal(size=(self.m, self.K)) / np.sqrt(self.m)
        seen = self.K if self.sees == "all" else self.N
        start = self.start * rng.normal(size=(self.heads, 1 + seen * self.K))
        return DictionaryRisk(Z, self.N, self.noise, seen, start)
