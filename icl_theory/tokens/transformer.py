r"""A whole two-layer attention-only transformer on sampled Markov sequences.

`ChainRisk` has the exact loss of a model with fewer parameters, the *reduction* of this
transformer. This module uses no formula of an exact loss. It computes the attention
position by position in sequences that are drawn at random. The gradient comes from an
explicit backward pass.

In the subscripts of einsum, b is a sequence, t a position and m a lag, and x, y and z
are coordinates of embeddings, of outputs or of the stream.
"""

from __future__ import annotations

import math
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
from icl_theory.engine.sampling import Trainer
from icl_theory.memory import check_fits
from icl_theory.tokens.chain import Chains, Sequences
from icl_theory.tokens.sampled import softmax


class Matrices(NamedTuple):
    """The parameters of a two-layer transformer over k symbols and m lags."""

    lags: Array  # r, the scores of the lags in the first layer, (m,)
    content: Array  # C, the scores of pairs of symbols in the first layer, (k, k)
    carried: Array  # V₁, the value matrix of the first layer, (k, k)
    matching: Array  # Q, the scores of the second layer, (2k, 2k)
    values: Array  # V₂, the value matrix of the second layer, (k, 2k)


@dataclass(frozen=True, eq=False)
class TwoLayerTransformer(Trainer[Sequences]):
    r"""Mean loss of a two-layer attention-only transformer.

    Sequences are drawn anew at each step. In the first layer, position t attends to its
    own symbol x_t and to the m - 1 symbols before it, with scores that depend on the
    lag j and on the symbols. Its output h_t is appended to the embedding of the symbol,
    a unit vector e: :math:`X_t = (e_{x_t}, h_t)`. In the second layer, the last
    position T attends to all positions:

    .. math:: a_t = \mathrm{softmax}_j(r_j + e_{x_t}^\top C e_{x_{t-j}}), \qquad
        h_t = \sum_j a_{tj} V_1 e_{x_{t-j}},

    .. math:: A = \mathrm{softmax}_t(X_T^\top Q X_t), \qquad
        o = V_2 \sum_t A_t X_t .

    In the reduction C = 0, V₁ = I and V₂ = (I, 0). The only block of Q that is not zero
    is b I: it matches the last symbol with the outputs h_t. Training starts in the
    reduction.

    Parameters
    ----------
    chains : Chains
        The law of the sequences; its window has m symbols.
    length : int
        The number T of positions.
    batch, seed : int
        Number of sequences in a step, and the seed. The sequences of step t are a
        function of (seed, t).
    start : array_like, (m + 1,)
        Initial scores r of the lags, and b.
    trained : {"reduction", "all"}
        The parameters: (r, b), or all of (r, C, V₁, Q, V₂), flat.
    objective : {"square", "log"}
        :math:`\tfrac12|o - P_q|^2` or :math:`-\sum_y P_{qy}\ln o_y`, with the law P_q
        of the symbol after the last symbol, :math:`q = x_T`. The log loss needs a sink.
        With this loss V₂ is not trained, so that o remains a vector of probabilities.
    sink : float, optional
        Score of one more token in the second layer. The token stands for all symbols in
        equal parts.

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
        choice("objective", self.objective, ("square", "log"))
        if self.sink is not None:
            set_fields(self, sink=signed("sink", self.sink))
        elif self.objective == "log":
            raise argument_error(
                "sink", self.sink, "a number: without a sink the log loss is infinite"
            )
        # An upper estimate of the memory for each position of a batch: the array of
        # `_symbols`, (m, k), and one copy of it; about six numbers for each lag; and
        # about eight for each symbol.
        numbers_of_position = 2 * m * (k + 3) + 8 * k
        check_fits(
            "batch", self.batch, 8.0 * self.batch * self.length * numbers_of_position
        )

    @property
    def initial(self) -> Array:
        """The parameters of the reduction, at which training starts."""
        start = np.asarray(self.start)
        if self.trained == "reduction":
            return start
        return _flat(self._of_reduction(start))

    def matrices(self, params: ArrayLike) -> Matrices:
        """Return the matrices that the trained parameters stand for."""
        return self._matrices(self._checked(params))

    def _matrices(self, params: Array) -> Matrices:
        """Return the matrices of trained parameters, which are one flat array."""
        if self.trained == "reduction":
            return self._of_reduction(params)
        # The parameters are the entries of all matrices, one matrix after another. Each
        # matrix has the shape that it has in the reduction.
        shapes = [matrix.shape for matrix in self._of_reduction(np.asarray(self.start))]
        ends = np.cumsum([math.prod(shape) for shape in shapes])
        parts = np.split(params, ends[:-1])
        return Matrices(
            *(part.reshape(shape) for part, shape in zip(parts, shapes, strict=True))
        )

    def of_reduction(self, reduced: ArrayLike) -> Matrices:
        """Return the matrices of the reduction with the parameters (r, b), (m + 1,).

        The parameters are the scores r of the lags, and the strength b of the matching.
        """
        parameters = real_array("reduced", reduced, 1)
        if parameters.shape != np.shape(self.start):
            raise argument_error(
                "reduced",
                parameters.shape,
                f"of shape {np.shape(self.start)}: scores of the lags, and b",
            )
        return self._of_reduction(parameters)

    def _of_reduction(self, reduced: Array) -> Matrices:
        """Return the matrices for parameters (r, b), which are not checked."""
        eye = np.eye(self.chains.symbols)
        zero = 0.0 * eye
        return Matrices(
            lags=reduced[:-1],
            content=zero,
            carried=eye,
            # The block b I from the embedding of the last symbol to the outputs h.
            matching=reduced[-1] * np.kron([[0.0, 1.0], [0.0, 0.0]], eye),
            values=np.hstack([eye, zero]),
        )

    def outside(self, params: ArrayLike) -> dict[str, float]:
        """Return the distance of each matrix from the nearest one of a reduction.

        Distances are Frobenius norms. The scores of the lags are left out, because they
        are free in the reduction.
        """
        k = self.chains.symbols
        matrices = self.matrices(params)
        # The factor of the nearest multiple of the identity is the mean diagonal entry.
        b = np.trace(matrices.matching[:k, k:]) / k
        nearest = self._of_reduction(np.append(matrices.lags, b))
        distances = {}
        for name in Matrices._fields:
            if name == "lags":
                continue
            difference = getattr(matrices, name) - getattr(nearest, name)
            distances[name] = float(np.linalg.norm(difference))
        return distances

    def draw(self, rng: np.random.Generator, size: int) -> Sequences:
        """Draw ``size`` sequences, each with the chain that it follows."""
        return Sequences(*self.chains.draw(rng, self.length, size))

    def losses_on(self, params: Array, prompts: Sequences) -> Array:
        """Loss of each of B sequences, (B,)."""
        symbols, law = self._symbols(prompts)
        losses, _ = self._loss(self._forward(self._matrices(params), symbols), law)
        return losses

    def evaluate_on(self, params: Array, prompts: Sequences) -> tuple[float, Array]:
        """Mean loss of given sequences and its gradient, by the backward pass."""
        k = self.chains.symbols
        matrices = self._matrices(params)
        symbols, law = self._symbols(prompts)
        state = self._forward(matrices, symbols)
        # d_output: derivatives with respect to o, (B, k)
        losses, d_output = self._loss(state, law)
        gradient = self._backward(matrices, symbols, state, d_output)
        if self.trained == "reduction":
            # All diagonal entries of this block are b, so the derivative with respect
            # to b is the sum of their derivatives.
            d_b = np.trace(gradient.matching[:k, k:])
            flat = np.append(gradient.lags, d_b)
        else:
            flat = _flat(gradient)
        # `_backward` has returned the sum over all sequences.
        return float(losses.mean()), flat / len(losses)

    def _symbols(self, prompts: Sequences) -> tuple[Array, Array]:
        """Return the symbols of all windows, and the law of the next symbol.

        The symbols are unit vectors, (B, T, m, k), in the order of the lags: the symbol
        of the position itself comes first. The law is (B, k).
        """
        k = self.chains.symbols
        windows = prompts.windows
        lags = np.arange(self.chains.window)
        # The symbols of a window are the digits of its number in base k. The last digit
        # is the symbol of the position itself.
        symbols = np.eye(k)[windows[:, :, None] // k**lags % k]
        return symbols, self.chains.transitions[prompts.chain, windows[:, -1] % k]

    def _loss(self, state: _State, law: Array) -> tuple[Array, Array]:
        """Return the losses, (B,), and their gradients with respect to o, (B, k).

        The ``law`` of the next symbol is (B, k).
        """
        output = state.output
        if self.objective == "square":
            error = output - law
            return 0.5 * np.sum(error**2, axis=1), error
        return -np.sum(law * np.log(output), axis=1), -law / output

    def _forward(self, matrices: Matrices, symbols: Array) -> _State:
        """Return the results of the model on symbols (B, T, m, k), see `_State`."""
        # The first layer: attention a over the lags, whose output is h = V₁ mixture.
        own_symbols = symbols[:, :, 0]
        content = np.einsum("btx,xy,btmy->btm", own_symbols, matrices.content, symbols)
        a, _ = softmax(matrices.lags + content)
        mixture = np.einsum("btm,btmy->bty", a, symbols)
        stream = np.concatenate([own_symbols, mixture @ matrices.carried.T], axis=2)
        # The second layer: attention of the last position over all positions.
        query_vector = stream[:, -1] @ matrices.matching  # X_Tᵀ Q
        scores = np.einsum("bz,btz->bt", query_vector, stream)
        # The score -inf stands for a sink that is not there.
        sink = np.full(len(scores), -np.inf if self.sink is None else self.sink)
        attention, _ = softmax(np.column_stack([scores, sink]))
        A = attention[:, :-1]
        on_sink = attention[:, -1:]
        mean = np.einsum("bt,btz->bz", A, stream)
        # The sink stands for all symbols in equal parts.
        output = mean @ matrices.values.T + on_sink / self.chains.symbols
        return _State(a, mixture, stream, query_vector, A, mean, output)

    def _backward(
        self, matrices: Matrices, symbols: Array, state: _State, d_output: Array
    ) -> Matrices:
        """Return the sum of the derivatives of all losses, one for each matrix.

        A name ``d_a`` stands for the derivatives of the losses with respect to a. The
        argument ``d_output`` is (B, k).
        """
        k = self.chains.symbols
        own_symbols = symbols[:, :, 0]
        stream = state.stream
        d_mean = d_output @ matrices.values
        # Second softmax: dL/dscore_t = A_t (d_A_t - Σ_u A_u d_A_u). The sum, which
        # includes the sink, is d_output·o, because o is linear in the attention.
        d_A = np.einsum("bz,btz->bt", d_mean, stream)
        mean_d_A = np.sum(d_output * state.output, axis=1, keepdims=True)
        d_scores = state.A * (d_A - mean_d_A)
        d_query_vector = np.einsum("bt,btz->bz", d_scores, stream)
        d_stream = (
            state.A[:, :, None] * d_mean[:, None]
            + d_scores[:, :, None] * state.query_vector[:, None]
        )
        # The last position enters a second time, as the query of the scores.
        d_stream[:, -1] += d_query_vector @ matrices.matching.T
        d_h = d_stream[:, :, k:]
        # First softmax: dL/dscore_j = a_j (d_a_j - Σ_i a_i d_a_i) at each position.
        d_a = np.einsum("bty,btmy->btm", d_h @ matrices.carried, symbols)
        mean_d_a = np.sum(state.a * d_a, axis=2, keepdims=True)
        d_lags = state.a * (d_a - mean_d_a)
        # With the log loss the values are not trained, so that o remains a vector of
        # probabilities.
        d_values = 0.0 * matrices.values
        if self.objective == "square":
            d_values = d_output.T @ state.mean
        return Matrices(
            lags=d_lags.sum(axis=(0, 1)),
            content=np.einsum(
                "btx,btm,btmy->xy", own_symbols, d_lags, symbols, optimize=True
            ),
            carried=np.einsum("bty,btz->yz", d_h, state.mixture),
            matching=stream[:, -1].T @ d_query_vector,
            values=d_values,
        )


class _State(NamedTuple):
    """Results of the forward pass that the backward pass needs, for B sequences."""

    a: Array  # attention of the first layer on the lags, (B, T, m)
    mixture: Array  # Σ_j a_tj e_{x_{t-j}}, (B, T, k)
    stream: Array  # X, (B, T, 2k)
    query_vector: Array  # X_Tᵀ Q, (B, 2k)
    A: Array  # attention of the second layer, (B, T)
    mean: Array  # Σ_t A_t X_t, (B, 2k)
    output: Array  # o, (B, k)


def _flat(matrices: Matrices) -> Array:
    """Return all entries of the matrices, one after another."""
    return np.concatenate([matrix.ravel() for matrix in matrices])
