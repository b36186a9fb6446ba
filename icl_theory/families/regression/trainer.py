"""What trainers on sampled prompts share: their batches, the softmax over tokens and the way back through it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import EXACT, Array, integer, store
from icl_theory.engine.progress import counted
from icl_theory.engine.risk import Risk
from icl_theory.memory import check_fits

HARD = 1e150
PART = 2**20  # tokens at a time: the system hands out larger arrays anew each time, which costs more than the work


class Batch(Protocol):
    """What every batch of B prompts of N tokens has."""

    @property
    def label(self) -> Array:
        """Labels of the tokens, (B, N)."""
        ...

    @property
    def answer(self) -> Array:
        """Values at the queries, (B,)."""
        ...


P = TypeVar("P", bound=Batch)


class Attended(NamedTuple):
    """Softmax attention over the tokens.

    ``weight`` (B, N) sums to 1 in each row, ``prediction`` (B,) is the mean label under it.
    """

    weight: Array
    prediction: Array


def attend(scores: Array, label: Array) -> Attended:
    """Softmax of the scores, (B, N), which it overwrites, and the prediction."""
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    return Attended(scores, np.einsum("bn,bn->b", scores, label))


def bilinear_scores(Q: Array, key: Array, asked: Array) -> Array:
    """Scores ``x_i^T Q x_q`` of the tokens ``key``, (B, N, d), for the queries ``asked``, (B, d): (B, N)."""
    largest = float(np.abs(Q).max())
    if largest > HARD:  # one token takes all either way, and nothing overflows
        Q = Q / largest * HARD
    return np.matmul(key, (asked @ Q.T)[:, :, None])[:, :, 0]


def bilinear_gradient(back: Array, key: Array, asked: Array) -> Array:
    """Derivative by Q, (d, d), given the derivatives by the scores, (B, N)."""
    return np.einsum("bn,bnd->bd", back, key).T @ asked


def parts_of(size: int, N: int) -> list[slice]:
    """Split so many prompts of N tokens into parts that are computed at a time."""
    rows = max(1, PART // N)
    return [slice(start, min(start + rows, size)) for start in range(0, size, rows)]


def in_parts(make: Callable[[slice], NDArray[Any]], size: int, N: int) -> NDArray[Any]:
    """An array with a row for each prompt, made part by part; it says how far it is if that takes long."""
    first, *others = parts_of(size, N)
    made = make(first)
    if not others:
        return made
    whole = np.empty((size, *made.shape[1:]), dtype=made.dtype)
    whole[first] = made
    for rows in counted(others, "parts of the prompts"):
        whole[rows] = make(rows)
    return whole


class PromptRisk(Risk, Generic[P]):
    r"""Mean of :math:`\tfrac12(\hat y - f(x_q))^2` over a batch of prompts, :math:`\hat y` by softmax attention.

    The prompts of step t are a function of (seed, t). A trainer inherits, has the fields below, and gives
    ``_draw``, ``_scores`` and ``_backward``.
    """

    N: int
    batch: int
    seed: int
    dataset: int | None

    @abstractmethod
    def _draw(self, rng: np.random.Generator, size: int) -> P:
        """Draw prompts: a NamedTuple of arrays with one row a prompt, or None."""

    @abstractmethod
    def _scores(self, params: Array, prompts: P) -> Array:
        """Scores of the tokens, (B, N), a new array."""

    @abstractmethod
    def _backward(self, back: Array, prompts: P) -> Array:
        """Sum the derivatives by the scores, (B, N), into the parameters that made them."""

    def _prepare(self) -> None:
        """Check the numbers and draw the fixed data set, where there is one."""
        store(self, N=integer("N", self.N, minimum=1, maximum=EXACT), batch=integer("batch", self.batch, minimum=1))
        store(self, seed=integer("seed", self.seed, minimum=0))
        fixed = None
        if self.dataset is not None:
            size = integer("dataset", self.dataset, minimum=1)
            check_fits("dataset", size, self._bytes(size))
            fixed = self._draw(np.random.default_rng([self.seed, 1]), size)
        check_fits("N", self.N, self._bytes(self.batch))
        store(self, _fixed=fixed)

    def _bytes(self, size: int) -> float:
        """Bytes that so many prompts take."""
        return 40.0 * size * self.N

    @property
    def stochastic(self) -> bool:
        """Whether the steps draw different prompts."""
        fixed: P | None = self._fixed  # type: ignore[attr-defined]
        return fixed is None or self.batch < len(fixed.answer)

    def prompts(self, step: int = 0) -> P:
        """Return the prompts of one step."""
        rng = np.random.default_rng([self.seed, 0, integer("step", step, minimum=0)])
        fixed: P | None = self._fixed  # type: ignore[attr-defined]
        if fixed is None:
            return self._draw(rng, self.batch)
        if self.batch >= len(fixed.answer):
            return fixed
        return _rows(fixed, rng.choice(len(fixed.answer), self.batch, replace=False))

    def parts(self, prompts: P) -> Iterator[P]:
        """Prompts of a batch, so many at a time that their arrays are small."""
        split = parts_of(len(prompts.answer), self.N)
        yield from [prompts] if len(split) == 1 else (_rows(prompts, rows) for rows in split)

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Mean loss of the step's prompts and its gradient, by the backward pass."""
        prompts, errors, gradient = self.prompts(step), [], np.zeros(())
        for part in self.parts(prompts):
            weight, prediction = attend(self._scores(params, part), part.label)
            error = prediction - part.answer
            # d(½ error²)/d(score_i) = error · weight_i · (label_i − prediction)
            back = part.label - prediction[:, None]
            back *= weight
            back *= (error / len(prompts.answer))[:, None]
            gradient = gradient + self._backward(back, part)
            errors.append(error)
        return 0.5 * float(np.mean(np.concatenate(errors) ** 2)), gradient


def _rows(prompts: P, which: slice | NDArray[np.intp]) -> P:
    """Some of the prompts."""
    return type(prompts)(*(None if part is None else part[which] for part in prompts))  # type: ignore[attr-defined]
