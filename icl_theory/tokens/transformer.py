r"""A whole two-layer attention-only transformer on sampled Markov sequences, with gradients by hand.

It knows no formula of the exact losses: attention is computed position by position, in
sequences that are drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import (
    Array,
    argument_error,
    choice,
    instance,
    integer,
    real_array,
    set_fields,
    signed,
)
from icl_theory.engine.risk import Risk
from icl_theory.memory import check_fits
from icl_theory.tokens.chain import Chains
from icl_theory.tokens.sampled import softmax


class Matrices(NamedTuple):
    """The matrices of a two-layer transformer over k symbols and m lags."""

    lags: Array  # r, (m,)
    content: Array  # C, (k, k)
    carried: Array  # V₁, (k, k)
    matching: Array  # Q, (2k, 2k)
    values: Array  # V₂, (k, 2k)


@dataclass(frozen=True, eq=False)
class TwoLayerTransformer(Risk):
    r"""Mean loss of a two-layer attention-only transformer over sequences that are drawn anew at each step.

    Position t sees the symbol x_t and the m - 1 before it. The first layer attends to
    these by lag and content, and the stream is :math:`X_t = (e_{x_t}, h_t)`,
    disentangled. The last position attends to all in the second layer:

    .. math:: h_t = \sum_j a_{tj} V_1 e_{x_{t-j}}, \quad a_t = \mathrm{softmax}_j(r_j + e_{x_t}^\top C e_{x_{t-j}}),
        \qquad o = V_2 \sum_t A_t X_t, \quad A = \mathrm{softmax}_t(X_T^\top Q X_t) .

    In the reduction, whose loss is exact, C = 0, V₁ = I, V₂ = (I, 0), and Q has one
    block only, b I from the last symbol to h. Training starts there.

    Parameters
    ----------
    chains : Chains
        The law of the sequences; its window has m symbols.
    length : int
        The number T of positions.
    batch, seed : int
        Sequences in a step, and the seed: those of step t are a function of (seed, t).
    start : array_like, (m + 1,)
        Initial scores r of the lags, and b.
    trained : {"reduction", "all"}
        The parameters: (r, b), or all of (r, C, V₁, Q, V₂), flat.
    objective : {"square", "log"}
        :math:`\tfrac12|o - P_q|^2` or :math:`-\sum_y P_{qy}\ln o_y`, with the law P_q
        of the next symbol. The log loss needs a sink, and keeps V₂: o remains a
        probability.
    sink : float, optional
        Score of a further token that stands for all symbols alike.

    Raises
    ------
    ValueError
        An argument is out of range; the message names it.

    References
    ----------
    docs/theory/markov-transformers.md, "Two layers".

    Examples
    --------
    >>> from icl_theory.tokens import ChainRisk, Chains, TwoLayerTransformer
    >>> chains = Chains([[[0.9, 0.1], [0.3, 0.7]], [[0.2, 0.8], [0.6, 0.4]]], window=2)
    >>> whole = TwoLayerTransformer(chains, 24, 10**4, 0, [0.0, 0.0, 0.0], "all")
    >>> uniform = ChainRisk(chains, 24)
    >>> abs(whole.loss(whole.initial) / uniform.loss(uniform.initial) - 1.0) < 0.05
    True
    """

    chains: Chains
    length: int
    batch: int
    seed: int
    start: ArrayLike
    trained: str = "reduction"
    objective: str = "square"
    sink: float | None = None

    stochastic = True  # the steps draw different sequences

    def __post_init__(self) -> None:
        k = instance("chains", self.chains, Chains, "Chains").symbols
        m = self.chains.window
        set_fields(
            self,
            length=integer("length", self.length, minimum=1),
            seed=integer("seed", self.seed, minimum=0),
        )
        set_fields(
            self,
            batch=integer("batch", self.batch, minimum=1),
            start=real_array("start", self.start, 1),
        )
        if np.shape(self.start) != (m + 1,):
            raise argument_error("start", np.shape(self.start), f"of shape ({m + 1},)")
        choice("trained", self.trained, ("reduction", "all"))
        if (
            choice("objective", self.objective, ("square", "log")) == "log"
            and self.sink is None
        ):
            raise argument_error(
                "sink", self.sink, "a number: without a sink the log loss is infinite"
            )
        set_fields(self, sink=None if self.sink is None else signed("sink", self.sink))
        check_fits(
            "batch",
            self.batch,
            8.0 * self.batch * self.length * (2 * m * (k + 3) + 8 * k),
        )

    @property
    def initial(self) -> Array:
        """Where training starts, in the reduction."""
        if self.trained == "reduction":
            return np.asarray(self.start)
        return np.concatenate(
            [*map(np.ravel, self._of_reduction(np.asarray(self.start)))]
        )

    def matrices(self, params: ArrayLike) -> Matrices:
        """Return the matrices that parameters stand for."""
        return self._matrices(self._checked(params))

    def _matrices(self, params: Array) -> Matrices:
        if self.trained == "reduction":
            return self._of_reduction(params)
        like = self._of_reduction(np.asarray(self.start))
        parts = np.split(params, np.cumsum([each.size for each in like])[:-1])
        return Matrices(
            *(part.reshape(each.shape) for part, each in zip(parts, like, strict=True))
        )

    def of_reduction(self, reduced: ArrayLike) -> Matrices:
        """Return the matrices of the reduction, whose parameters (r, b) are given, (m + 1,)."""
        parameters = real_array("reduced", reduced, 1)
        if parameters.shape != np.shape(self.start):
            raise argument_error(
                "reduced",
                parameters.shape,
                f"of shape {np.shape(self.start)}: scores of the lags, and b",
            )
        return self._of_reduction(parameters)

    def _of_reduction(self, reduced: Array) -> Matrices:
        eye = np.eye(self.chains.symbols)
        matching = reduced[-1] * np.kron([[0.0, 1.0], [0.0, 0.0]], eye)
        return Matrices(
            reduced[:-1], 0.0 * eye, eye, matching, np.hstack([eye, 0.0 * eye])
        )

    def outside(self, params: ArrayLike) -> dict[str, float]:
        """Return the distance of each matrix but the lags to the reduction's nearest one, in the Frobenius norm."""
        k = self.chains.symbols
        found = self.matrices(params)
        nearest = self._of_reduction(
            np.append(found.lags, np.trace(found.matching[:k, k:]) / k)
        )
        apart = [
            float(np.linalg.norm(one - other))
            for one, other in zip(found, nearest, strict=True)
        ]
        return dict(zip(found._fields[1:], apart[1:], strict=True))

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Mean loss of the step's sequences and its gradient, by the backward pass."""
        k = self.chains.symbols
        whole = self._matrices(params)
        rng = np.random.default_rng([self.seed, integer("step", step, minimum=0)])
        chain, windows = self.chains.draw(rng, self.length, self.batch)
        # (B, T, m, k), by lag
        seen = np.eye(k)[windows[:, :, None] // k ** np.arange(self.chains.window) % k]
        own = seen[:, :, 0]
        law = self.chains.transitions[chain, windows[:, -1] % k]

        first, _ = softmax(
            whole.lags + np.einsum("btx,xy,btmy->btm", own, whole.content, seen)
        )
        found = np.einsum("btm,btmy->bty", first, seen)
        stream = np.concatenate([own, found @ whole.carried.T], axis=2)
        asked = stream[:, -1] @ whole.matching
        scores = np.einsum("bz,btz->bt", asked, stream)
        sink = np.full(self.batch, -np.inf if self.sink is None else self.sink)
        second, _ = softmax(np.column_stack([scores, sink]))
        second, rest = second[:, :-1], second[:, -1:]
        mean = np.einsum("bt,btz->bz", second, stream)
        output = mean @ whole.values.T + rest / k

        if self.objective == "square":
            loss = 0.5 * float(np.sum((output - law) ** 2))
            error = output - law
        else:
            loss = -float(np.sum(law * np.log(output)))
            error = -law / output
        pull = error @ whole.values  # dL/d(mean)
        worth = np.einsum("bz,btz->bt", pull, stream)
        average = np.sum(error * output, axis=1, keepdims=True)
        slope = second * (worth - average)  # dL/d(scores of the second layer)
        keys = np.einsum("bt,btz->bz", slope, stream)
        by_stream = (
            second[:, :, None] * pull[:, None] + slope[:, :, None] * asked[:, None]
        )
        by_stream[:, -1] += keys @ whole.matching.T
        by_found = by_stream[:, :, k:] @ whole.carried
        by_lag = np.einsum("bty,btmy->btm", by_found, seen)
        turn = first * (by_lag - np.sum(first * by_lag, axis=2, keepdims=True))

        gradient = Matrices(
            turn.sum(axis=(0, 1)),
            np.einsum("btx,btm,btmy->xy", own, turn, seen, optimize=True),
            np.einsum("bty,btz->yz", by_stream[:, :, k:], found),
            stream[:, -1].T @ keys,
            error.T @ mean if self.objective == "square" else 0.0 * whole.values,
        )
        slopes = (
            (gradient.lags, np.trace(gradient.matching[:k, k:]))
            if self.trained == "reduction"
            else gradient
        )
        return loss / self.batch, np.concatenate([*map(np.ravel, slopes)]) / self.batch
