r"""Softmax attention over Markov chains: the exact square loss and its gradient.

A sequence has T positions. The window :math:`X_t` of position t consists of its symbol
:math:`x_t` and the m - 1 symbols before it. Let q be the last symbol of the sequence,
and :math:`P_q` the law of the symbol that follows it. Attention gives position t the
weight :math:`w_t = e^{S(X_t, q)}`, with a table S of scores, and predicts :math:`P_q`
by the weighted mean of the unit vectors :math:`e_{x_t}`. The loss is

.. math:: \mathcal L
    = \tfrac12 E\Bigl|\frac{\sum w_t e_{x_t}}{\sum w_t} - P_q\Bigr|^2
    = \tfrac12\int_0^\infty E\bigl[|n|^2 e^{-\sum_t y_t}\bigr]\,\frac{ds}{s}, \qquad
    y_t = s w_t, \quad n = \sum_t y_t (e_{x_t} - P_q).

The mean in the integral comes from a recursion over the positions. For each window at
position t the recursion carries along F, A and B. They are the means of
:math:`e^{-\sum y}`, :math:`n e^{-\sum y}` and :math:`\tfrac12|n|^2 e^{-\sum y}` over
the sequences that are in this window, times the probability of these sequences. All
sums, also the one in n, run over the positions up to t. With
:math:`u = y(e_x - P_q)`, a position with the symbol x changes F, A and B by

.. math:: (F, A, B) \to
    (F,\ A + uF,\ B + u^\top A + \tfrac12|u|^2F)\,e^{-y} .

The derivatives f, a and b of the loss with respect to F, A and B are carried back from
the last position to the first. Together with F, A and B these derivatives give the
gradient,

.. math:: \frac{\partial\mathcal L}{\partial S}
    = \sum_t \int u^\top (aF + bA) - y\,(fF + a^\top A + bB)\,\frac{ds}{s} .

See docs/theory.md, "The recursion".

In the shapes below, C is the number of chains, k the number of symbols, W = k**m the
number of windows, T the number of positions, and J the number of nodes of the integral
over s. A *column* has the scores of all windows for one last symbol, and Q is the
number of columns. A *place* is a position with scores of its own, or all the last
positions, which share their scores; p is the number of places.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icl_theory._validate import (
    Array,
    argument_error,
    dimensions,
    distributions,
    instance,
    integer,
    number,
    probabilities,
    real_array,
)
from icl_theory.engine.capabilities import ColumnGradients
from icl_theory.engine.last_result import LastResult
from icl_theory.engine.risk import Risk, WithStart
from icl_theory.engine.sampling import prompts_to_draw
from icl_theory.memory import check_fits
from icl_theory.tokens.quadrature import LARGEST_STEP, UNSEEN, capped, rule_error
from icl_theory.tokens.sampled import (
    Pass,
    Sampled,
    chosen,
    first_places,
    softmax,
)

Symbols = NDArray[np.intp]
# A y above 1000 is cut to 1000, so that no y overflows: an infinite y times a zero
# would be NaN. The cut changes nothing, because e^(-1000) is already 0 in float64.
LOG_LARGEST_Y = math.log(1000.0)
# The recursion carries along at most this many float64 numbers at once (16 MiB), unless
# a single chain at a single node needs more. A larger limit takes more memory; with a
# smaller one, the recursion goes through the positions more often. The value is a rough
# choice.
MOST_CARRIED = 2**21
# Estimate of the memory of a drawn sequence: this many numbers of 8 bytes for each of
# its positions, and as many for each window.
ARRAYS_OF_SEQUENCE = 8.0
# A factor e^x is negligible, relative to 1, if x is below this: e^(-37) is 8.5e-17,
# below rounding.
LOG_NEGLIGIBLE = -37.0
# Relative rounding error of y, in multiples of the machine epsilon, without the part
# that comes from the scores. Ten is more than enough: only a few operations lead from
# the scores to y.
ROUNDINGS_OF_Y = 10.0
# Added to each term of a sum by which something is divided, so that the sum is not 0.
SMALLEST = 1e-300


class Chains:
    r"""A law of random sequences over k symbols.

    There are C Markov chains. Each sequence follows one of them, drawn at random.

    Parameters
    ----------
    transitions : array_like, (k, k) or (C, k, k)
        Row q is the law of the symbol that follows q. Rows must sum to 1 to within
        1e-6, and are then normalised.
    window : int
        The number m of symbols in a window. Windows are numbered from 0 to k**m - 1:
        the symbols of a window, the oldest first, are the digits of its number in
        base k.
    probs : array_like, (C,), optional
        Positive probabilities of the chains. By default all chains are equally
        probable.
    start : array_like, (k**m,) or (C, k**m), or (k,) or (C, k), optional
        Law of the first window, or law of the oldest symbol of the first window. The
        default is the stationary law of each chain, and every chain must then be
        irreducible.

    Attributes
    ----------
    newest : ndarray, (k**m,)
        The last symbol of each window.

    Raises
    ------
    ValueError
        An argument is out of range; the message names it.

    Examples
    --------
    >>> from icl_theory.tokens.chain import Chains
    >>> Chains([[0.9, 0.1], [0.3, 0.7]], window=2).start.round(6)
    array([[0.675, 0.075, 0.075, 0.175]])
    """

    def __init__(
        self,
        transitions: ArrayLike,
        window: int = 1,
        *,
        probs: ArrayLike | None = None,
        start: ArrayLike | None = None,
    ) -> None:
        P = distributions("transitions", transitions)
        if P.ndim not in (2, 3) or P.shape[-2] != P.shape[-1] or P.shape[-1] < 2:
            raise argument_error(
                "transitions", P.shape, "of shape (k, k) or (C, k, k) with k >= 2"
            )
        P = P.reshape(-1, *P.shape[-2:])
        C, k, _ = P.shape
        self.transitions = P
        self.symbols = k
        self.window = integer("window", window, minimum=1)
        if probs is None:
            self.probs = np.full(C, 1.0 / C)
        else:
            self.probs = probabilities("probs", probs, C)
        # k^m as a float. The cap at e^600 keeps a huge m from overflowing.
        windows = math.exp(min(self.window * math.log(k), 600.0))
        # Four arrays with 8 bytes for each chain, symbol and window.
        check_fits("window", self.window, 4 * 8.0 * C * k * windows)
        self.newest = np.arange(k**self.window) % k
        self.start = self._law_of_first_window(start)

    def _law_of_first_window(self, start: ArrayLike | None) -> Array:
        """Return the law of the first window under each chain, (C, k**m)."""
        P = self.transitions
        C, k, _ = P.shape
        W = len(self.newest)  # number of windows
        if start is None:
            law = np.stack([_stationary(chain) for chain in P])
        else:
            law = distributions("start", start)
        if law.shape not in ((W,), (C, W), (k,), (C, k)):
            raise argument_error(
                "start",
                law.shape,
                f"of shape {(W,)} or {(C, W)}, or {k} in place of {W}",
            )
        law = np.broadcast_to(law, (C, law.shape[-1]))
        # A law of the oldest symbol alone is extended to a law of windows. Each pass
        # appends the next symbol: the law of (x_1, ..., x_i) times P(x_{i+1} | x_i) is
        # the law of (x_1, ..., x_{i+1}).
        while law.shape[1] < W:
            law = (law.reshape(C, -1, k, 1) * P[:, None]).reshape(C, -1)
        return law

    def last(self, length: int) -> Array:
        """Return the joint probabilities of the chain and the last symbol, (C, k).

        The sequences have ``length`` positions.
        """
        length = integer("length", length, minimum=1)
        # The last digit of the first window's number is the symbol at the first
        # position.
        law_of_first = self.start.reshape(len(self.probs), -1, self.symbols).sum(axis=1)
        # Transitions from the first position to the last one, (C, k, k).
        transitions = np.linalg.matrix_power(self.transitions, length - 1)
        law_of_last = (law_of_first[:, None] @ transitions)[:, 0]
        return np.asarray(self.probs[:, None] * law_of_last)

    def irreducible(self, length: int) -> float:
        r"""Return :math:`\tfrac12 E[1 - |P_q|^2]` for ``length`` positions.

        Here :math:`P_q` is the law of the symbol that follows the last symbol q. If the
        target of a prediction is the next symbol itself instead of its law, the square
        loss of every prediction is larger by this number.
        """
        # 1 - Σ_x P_qx² = Σ_x P_qx (1 - P_qx), because row q sums to 1.
        spread = (self.transitions * (1.0 - self.transitions)).sum(axis=2)
        return 0.5 * float((self.last(length) * spread).sum())

    def draw(
        self, rng: np.random.Generator, length: int, size: int
    ) -> tuple[Symbols, Symbols]:
        """Draw ``size`` sequences of ``length`` positions.

        Return the chain that each sequence follows, (size,), and the number of the
        window at each position, (size, length).
        """
        length = integer("length", length, minimum=1)
        # `prompts_to_draw` checks ``rng`` and ``size``, and that the sequences fit the
        # memory. A sequence takes about one number of 8 bytes for each position.
        size = prompts_to_draw(rng, size, numbers=float(length))
        chain = rng.choice(len(self.probs), size, p=self.probs)
        windows = np.empty((size, length), dtype=np.intp)
        # `chosen` returns the index of the interval into which a uniform number falls;
        # the cumulated probabilities are the upper ends of the intervals.
        windows[:, 0] = chosen(rng.random(size), np.cumsum(self.start, axis=1)[chain])
        cumulated = np.cumsum(self.transitions, axis=2)
        for t in range(1, length):
            previous = windows[:, t - 1]
            last_symbol = previous % self.symbols
            new = chosen(rng.random(size), cumulated[chain, last_symbol])
            # The oldest symbol, the first digit, leaves the window. The new one enters.
            windows[:, t] = previous * self.symbols % len(self.newest) + new
        return chain, windows


def _stationary(P: Array) -> Array:
    """Return the stationary law of a chain, (k,), and refuse a reducible chain.

    The states are eliminated one by one, from the last to the first (Grassmann, Taksar
    and Heyman 1985). This method subtracts nothing, so small entries keep their digits.
    """
    # A chain with steps between any two states is irreducible.
    is_step = P > 0.0
    if not is_step.all():
        _check_irreducible(P, is_step)
    k = len(P)
    law = np.ones(k)
    reduced = P.copy()
    # An entry that leaves the range of float64 makes the law infinite or NaN, and is
    # refused below.
    with np.errstate(all="ignore"):
        for n in range(k - 1, 0, -1):
            # A visit to n ends with a step to a state j < n. The probability of j is
            # reduced[n, j] divided by the sum of reduced[n, :n]. So a way through n
            # becomes a direct step between two states before n.
            reduced[:n, n] /= reduced[n, :n].sum()
            reduced[:n, :n] += np.outer(reduced[:n, n], reduced[n, :n])
        # The law is found up to a factor, with 1 for state 0. After a visit to a state
        # i < n, the chain visits state n on average reduced[i, n] times before it
        # returns to a state before n.
        for n in range(1, k):
            law[n] = law[:n] @ reduced[:n, n]
        law /= law.sum()
    if not np.isfinite(law).all():
        raise argument_error(
            "transitions",
            P.tolist(),
            "such that all stationary probabilities are within float64, unless start"
            " is given",
        )
    return law


def _check_irreducible(P: Array, is_step: NDArray[np.bool_]) -> None:
    """Refuse a chain P, (k, k), in which some state cannot be reached from another.

    ``is_step``, (k, k), says which steps have a positive probability.
    """
    from scipy.sparse.csgraph import connected_components  # slow to load

    number_of_components, component = connected_components(is_step, connection="strong")
    if number_of_components > 1:
        # The first state that is not in the component of state 0.
        other_state = np.argmax(component != component[0])
        raise argument_error(
            "transitions",
            P.tolist(),
            "irreducible unless start is given "
            f"(state {other_state} cannot be reached from state 0, or state 0 cannot be"
            f" reached from state {other_state})",
        )


class _Columns(NamedTuple):
    """Results for Q columns of scores.

    A column holds the scores for one last symbol. Its results are sums over the
    sequences that end in this symbol.
    """

    loss: Array  # (Q,)
    gradient: Array  # with respect to the scores, of their shape
    # Expected attention on each window, times the probability of the last symbol. It
    # has the shape of the scores.
    attention: Array
    error: Array  # upper estimate of the error of the loss, (Q,)


class _Integrals(NamedTuple):
    """Integrals over s for Q columns of scores.

    The letters F, A, B, f, a, b, y and u are defined at the head of the module. All
    fields are sums over the chains. In the fields with an axis of places, Σ_t runs over
    the positions of a place.
    """

    loss: Array  # (Q,)
    # The gradient with respect to the scores is pull - push.
    pull: Array  # Σ_t ∫ uᵀ (aF + bA), (p, W, Q)
    push: Array  # Σ_t ∫ y (fF + aᵀA + bB), (p, W, Q)
    attention: Array  # Σ_t ∫ y b F, (p, W, Q)
    # Size of the numbers that the recursion rounds, for the estimate of the error: the
    # integral of fF + bB, summed over all positions and windows, (Q,).
    carried: Array


class _Positions(NamedTuple):
    """The numbers y and u of a position, at each of p places and W windows.

    The last axis runs over all pairs of one of the Q columns of scores and one of the J
    nodes of the integral over s.
    """

    y: Array  # (p, W, QJ)
    decay: Array  # e^(-y), (p, W, QJ)
    u: Array  # y (e_x - P_q) in k - 1 coordinates, (p, k - 1, C, W, QJ)
    # Whether the first position is the sink, a token in front of the sequence. The
    # first window of the sequence comes after the sink, and no transition leads to this
    # window.
    has_sink: bool

    def place(self, t: int) -> int:
        """Return the place of position t. All later positions share the last place."""
        return min(t, len(self.y) - 1)

    def passed(self, sums: Array, t: int, out: Array | None = None) -> Array:
        """Return (F, A + uF, B + u·A + ½|u|²F) e^(-y), the sums after position t.

        The argument ``sums`` holds (F, A, B) before the position.
        """
        return _passed(sums, self.u[self.place(t)], self.decay[self.place(t)], out)

    def passed_back(self, derivatives: Array, t: int) -> Array:
        """Return the derivatives (b, a, f) with respect to the sums before position t.

        The argument holds the derivatives (f, a, b) with respect to the sums after the
        position. The result has the reverse order, also of the coordinates of a. The
        map of `passed` is its own transpose if F and B are exchanged, so it also
        carries the derivatives back.
        """
        u = self.u[self.place(t)]
        # derivatives[::-1] is (b, a, f), and a has its coordinates in reversed order.
        # So the coordinates of u are reversed, too.
        return _passed(derivatives[::-1], u[::-1], self.decay[self.place(t)], None)


def _passed(sums: Array, u: Array, decay: Array, out: Array | None) -> Array:
    """Return (F, A + uF, B + u·A + ½|u|²F) times the ``decay`` e^(-y).

    The argument ``sums`` holds (F, A, B) along its first axis, where A has k - 1
    entries. The result is written to ``out``, if it is given, and may overwrite
    ``sums``.
    """
    result = np.multiply(sums, decay, out=out)
    # These are views, so that the steps below change ``result``.
    F = result[0]
    A = result[1:-1]
    B = result[-1]
    half_of_uF = 0.5 * u * F
    A += half_of_uF
    # The first half of u F is in A already: u·(A + ½uF) = u·A + ½|u|²F.
    B += np.add.reduce(u * A, axis=0)
    A += half_of_uF
    return result


def _blocks(
    number_of_chains: int, number_of_nodes: int, numbers_of_node: int
) -> Iterator[tuple[slice, slice]]:
    """Yield blocks, each as a slice of the chains and a slice of the nodes.

    The nodes are the values of s. For one chain at one node, the recursion carries
    ``numbers_of_node`` numbers. A block of several chains or nodes is so small that the
    recursion carries at most `MOST_CARRIED` numbers for all of them.
    """
    nodes_of_block = min(number_of_nodes, max(1, MOST_CARRIED // numbers_of_node))
    chains_of_block = max(1, MOST_CARRIED // (numbers_of_node * nodes_of_block))
    for first_chain in range(0, number_of_chains, chains_of_block):
        chains = slice(first_chain, first_chain + chains_of_block)
        for first_node in range(0, number_of_nodes, nodes_of_block):
            yield chains, slice(first_node, first_node + nodes_of_block)


def _integrate(
    chains: Chains,
    block: slice,
    log_w: Array,
    last: Symbols,
    length: int,
    sink: Array | None,
    log_s: Array,
    weights: Array,
) -> _Integrals:
    """Integrate over a block of the chains and over the given nodes.

    The scores ``log_w`` are (p, W, Q). Column j is for sequences that end in the symbol
    ``last[j]``. If there is a sink, ``sink`` is its value, and the ``length`` counts
    the sink as a position. The rule for the integral over s has the nodes ``log_s``,
    (Q, J), and the ``weights``, (J,).
    """
    P = chains.transitions[block]
    k = chains.symbols
    newest = chains.newest
    C = len(P)
    W = len(newest)
    Q = len(last)
    J = len(weights)
    positions = _positions(P, newest, log_w, last, sink, log_s)
    # A window (g, r) has the oldest symbol g and the other symbols r. The next symbol h
    # leads to the window (r, h). So there is a k x k matrix from g to h for each r.
    transitions = P[:, newest].reshape(C, k, W // k, k).swapaxes(1, 2)  # (C, r, g, h)
    # `sums` holds F, A and B, and `back` their derivatives f, a and b. Both have the
    # axes (position; F, A and B; chain; window; column and node). A has k - 1
    # coordinates, so the second axis has the length k + 1.
    sums, back = np.empty((2, length, k + 1, C, W, Q * J))
    # Before the first position, F is the law of the first window, and A and B are zero.
    sums[0, 1:] = 0.0
    sums[0, 0] = chains.start[block, :, None]
    # The matrices are copied into contiguous arrays, with which the product at each
    # position takes less time.
    _carry(sums, positions, transitions.swapaxes(2, 3).copy())
    # After the last position, the loss is the sum of B over the windows that end in the
    # column's last symbol, with the weights of the rule and of the chains.
    ends_in_last = newest[:, None] == last
    weights_of_end = ends_in_last[:, :, None] * weights
    back[-1, :-1] = 0.0
    back[-1, -1] = chains.probs[block, None, None] * weights_of_end.reshape(W, Q * J)
    _carry_back(back, positions, transitions.copy())
    integrals = _contracted(sums, back, positions)
    # The sum over the nodes completes the integrals.
    return _Integrals(
        *(field.reshape(*field.shape[:-1], Q, J).sum(axis=-1) for field in integrals)
    )


def _positions(
    P: Array,
    newest: Symbols,
    log_w: Array,
    last: Symbols,
    sink: Array | None,
    log_s: Array,
) -> _Positions:
    """Return y, e^(-y) and u of all positions.

    The array ``P``, (C, k, k), has the transitions of the block. All other arguments
    are described in `_integrate`, and ``newest`` in `Chains`.
    """
    C, k, _ = P.shape
    W = len(newest)
    y = np.exp(np.minimum(log_w[..., None] + log_s, LOG_LARGEST_Y))  # (p, W, Q, J)
    differences = _differences(P, last)  # e_x - P_q, (k - 1, C, k, Q)
    # (p, k - 1, C, W, Q, J)
    u = differences[:, :, newest, :, None] * y[:, None, None]
    if sink is not None:
        # The first place is the sink. Its value v sums to 1, so v - P_q is
        # Σ_x v_x (e_x - P_q).
        difference_of_sink = np.einsum("icxq,x->icq", differences, sink)
        u[0] = difference_of_sink[:, :, None, :, None] * y[0]
    u = u.reshape(len(y), k - 1, C, W, -1)
    y = y.reshape(len(y), W, -1)
    return _Positions(y, np.exp(-y), u, has_sink=sink is not None)


def _differences(P: Array, last: Symbols) -> Array:
    """Return the vectors e_x - P_q, (k - 1, C, k, Q).

    The entries of each vector sum to 0. So k - 1 coordinates are enough, in an
    orthonormal basis of the space of all such vectors. The other axes run over the C
    chains, the k symbols x and the Q last symbols q.
    """
    k = P.shape[1]
    is_same_symbol = np.eye(k, dtype=bool)
    # The probability of all symbols but x, 1 - P_qx without cancellation, (C, q, x).
    prob_of_others = P @ ~is_same_symbol
    # Entry j of e_x - P_q is 1 - P_qx for j = x, and -P_qj for any other j.
    differences = np.where(
        is_same_symbol, prob_of_others[:, last, :, None], -P[:, last, None, :]
    )
    # Helmert's basis: row i has i + 1 ones, then -(i + 1), then zeros.
    basis = np.tri(k - 1, k) - np.diag(np.arange(1.0, k), 1)[:-1]
    basis /= np.sqrt((basis**2).sum(axis=1, keepdims=True))
    return np.einsum("cqxj,ij->icxq", differences, basis)


def _carry(sums: Array, positions: _Positions, transitions: Array) -> None:
    """Fill the array ``sums`` with (F, A, B) after each position.

    On entry ``sums[0]`` holds the values before the first position. The matrices
    ``transitions``, (C, r, h, g), lead from the oldest symbol g of a window (g, r) to
    the next symbol h.
    """
    for t in range(len(sums)):
        positions.passed(sums[t], t, out=sums[t])
        if t + 1 == len(sums):
            break
        if t == 0 and positions.has_sink:
            # After the sink comes the first window, and sums[0] already has its law.
            sums[1] = sums[0]
        else:
            sums_by_oldest = _oldest_split_off(sums[t], transitions)
            # This is a view of sums[t + 1], so that the product fills sums[t + 1].
            next_by_newest = _newest_split_off(sums[t + 1], transitions)
            np.matmul(transitions, sums_by_oldest, out=next_by_newest)


def _carry_back(back: Array, positions: _Positions, transitions: Array) -> None:
    """Fill ``back`` with the derivatives (f, a, b) after each position.

    They are derivatives of the loss with respect to the sums (F, A, B) after the
    position. On entry ``back[-1]`` holds the derivatives after the last position. The
    matrices ``transitions``, (C, r, g, h), are the transposes of the ones in `_carry`.
    """
    for t in range(len(back) - 1, 0, -1):
        passed = positions.passed_back(back[t], t)
        # `passed` is in the order (b, a, f), and so is this view of the array.
        previous = back[t - 1, ::-1]
        if t == 1 and positions.has_sink:
            previous[...] = passed
        else:
            passed_by_newest = _newest_split_off(passed, transitions)
            previous_by_oldest = _oldest_split_off(previous, transitions)
            np.matmul(transitions, passed_by_newest, out=previous_by_oldest)


def _oldest_split_off(sums: Array, transitions: Array) -> Array:
    """Split the axis of the windows (g, r) into two axes, r and the oldest symbol g.

    The shape of ``transitions``, (C, r, k, k), gives the lengths of the axes.
    """
    C, R, k, _ = transitions.shape
    return sums.reshape(-1, C, k, R, sums.shape[-1]).swapaxes(2, 3)


def _newest_split_off(sums: Array, transitions: Array) -> Array:
    """Split the axis of the windows (r, h) into two axes, r and the newest symbol h.

    The shape of ``transitions``, (C, r, k, k), gives the lengths of the axes.
    """
    C, R, k, _ = transitions.shape
    return sums.reshape(-1, C, R, k, sums.shape[-1])


def _contracted(sums: Array, back: Array, positions: _Positions) -> _Integrals:
    """Return the integrands of `_Integrals`, times the weights of the rule.

    Their last axis runs over all pairs of a column and a node, instead of over the
    columns only.
    """
    F = sums[:, 0]
    A = sums[:, 1:-1]
    B = sums[:, -1]
    f = back[:, 0]
    a = back[:, 1:-1]
    b = back[:, -1]
    # The axes are t (position), d (k - 1 coordinates of A), c (chain), w (window) and x
    # (column and node); in `back` and `sums`, d runs over f, a and b, or F, A and B.
    aF_plus_bA = a * F[:, None]
    aF_plus_bA += b[:, None] * A
    # Each place is one position, except the last, which all later positions share.
    places = range(len(positions.y))
    pull = []
    for place, u in enumerate(positions.u):
        is_last = place + 1 == len(places)
        at_place = slice(place, None if is_last else place + 1)
        pull.append(np.einsum("tdcwx,dcwx->wx", aF_plus_bA[at_place], u))
    fF_plus_aA_plus_bB = np.einsum("tdcwx,tdcwx->twx", back, sums)
    bF = np.einsum("tcwx,tcwx->twx", b, F)
    # reduceat sums over the positions of each place.
    return _Integrals(
        loss=np.einsum("cwx,cwx->x", b[-1], B[-1]),
        pull=np.stack(pull),
        push=np.add.reduceat(fF_plus_aA_plus_bB, places) * positions.y,
        attention=np.add.reduceat(bF, places) * positions.y,
        carried=np.einsum("tcwx,tcwx->x", f, F) + np.einsum("tcwx,tcwx->x", b, B),
    )


def _nodes(
    log_w: Array, length: int, step: float, first: float = -3.5, last: float = 4.0
) -> tuple[Array, Array]:
    """Return nodes ln s, (Q, J), and weights, (J,), of the trapezoid rule in x.

    The scores ``log_w`` are (p, W, Q), and the largest of each column is 0. Let Z_max
    and Z_min be the largest and the smallest sum Z of the weights that a sequence can
    have. The nodes are ``step`` apart in the variable x with ln(s Z_max) = x - e^(-x),
    from ``first`` on. At the first node s Z_max is about e^(-37), and the integrand of
    the attention is below rounding. At the last node s Z_min is at least about e^4 with
    the default of ``last``, so that e^(-s Z) is below rounding. If the largest weight
    of a sequence of T positions is v, its Z is between v and v T. So it needs only the
    nodes with ln(s v T) > -37 and ln(s v) < 4. Nodes that no sequence needs are left
    out.
    """
    # The last place has all positions that have no place of their own.
    log_positions = np.zeros((len(log_w), 1))
    log_positions[-1] = math.log(length - len(log_w) + 1)
    log_Z_max = np.logaddexp.reduce(log_w.max(axis=1) + log_positions, axis=0)
    log_Z_min = np.logaddexp.reduce(log_w.min(axis=1) + log_positions, axis=0)
    # Let the depth of a weight v be ln(Z_max/v). Then ln(s v) is at most x minus the
    # depth, and nearly equal to it for large x. So v needs no other nodes than those at
    # which this difference is between -37 - ln T and ``last``. Depths are rounded up,
    # so that many scores share a depth; an interval that begins 1 earlier makes up for
    # the rounding.
    depths = np.unique(np.ceil(log_Z_max - log_w))
    lowest = LOG_NEGLIGIBLE - 1.0 - math.log(length)
    x_minus_depth = np.arange(lowest, last + step, step)
    node_numbers = np.unique(np.rint((depths[:, None] + x_minus_depth - first) / step))
    x = first + step * node_numbers[node_numbers >= 0.0]
    # ln(s Z_min) is about x - ln(Z_max/Z_min), and exceeds ``last`` beyond this limit.
    x = x[x < last + step + (log_Z_max - log_Z_min).max()]
    tail = np.exp(-x)  # ds/s = (1 + e^(-x)) dx
    return x - tail - log_Z_max[:, None], step * (1.0 + tail)


class ChainRisk(WithStart, Risk):
    r"""The exact loss of softmax attention over Markov chains, trained in its scores.

    .. math:: \mathcal L = \tfrac12 E|o - P_q|^2

    The target is the law :math:`P_q` of the next symbol, not the symbol itself, so the
    loss does not contain `Chains.irreducible`. With `icl_theory.engine.Pullback` the
    scores can be functions of other parameters.

    Parameters
    ----------
    chains : Chains
        The law of the sequences.
    length : int
        The number T of positions, at least the number m of symbols in a window.
    scores : array_like, (k**m, k) or (p, k**m, k), optional
        Initial scores. The score of a position depends on its window and on the last
        symbol of the sequence. With three axes it also depends on the place of the
        position: each of the first p - 1 positions is a place of its own, and all
        positions after them share the last place. A score of -1000 hides a position.
        The default is zeros, (k**m, k), or (2, k**m, k) with a sink.
    sink : array_like, (k,), optional
        Value of one more token in front of the sequence: k probabilities. The first
        place is the place of this token, so that the scores have three axes. The score
        of this token depends on the window of the first position.
    step : float
        Distance between neighbouring nodes of the integral in the variable x, with
        ln s = x - e^(-x) up to a constant; at most 0.6. A step smaller than the default
        changes no digit.

    Raises
    ------
    ValueError
        An argument is out of range; the message names it.

    References
    ----------
    docs/theory.md, "The recursion", "The error of the rule".

    Examples
    --------
    The loss without and with attention to positions whose predecessor equals the last
    symbol, and a run that learns this attention:

    >>> import icl_theory as icl, numpy as np
    >>> from icl_theory.tokens.chain import ChainRisk, Chains
    >>> chains = Chains([[[0.9, 0.1], [0.3, 0.7]], [[0.2, 0.8], [0.6, 0.4]]], window=2)
    >>> risk = ChainRisk(chains, length=24)
    >>> match = np.arange(4)[:, None] // 2 == np.arange(2)
    >>> [round(risk.loss(b * match), 6) for b in (0.0, 3.0)]
    [0.061216, 0.016852]
    >>> run = icl.descend(risk, eta=10.0, steps=200)
    >>> sampled = risk.sampled(batch=20000, seed=0)
    >>> abs(sampled.loss(run.params) / risk.loss(run.params) - 1.0) < 0.05
    True
    """

    def __init__(
        self,
        chains: Chains,
        length: int,
        scores: ArrayLike | None = None,
        *,
        sink: ArrayLike | None = None,
        step: float = 0.2,
    ) -> None:
        self.chains = instance("chains", chains, Chains, "Chains")
        W = len(chains.newest)  # number of windows
        k = chains.symbols
        self.length = integer("length", length, minimum=chains.window)
        # At each position and window the recursion holds k + 1 sums for each of the k
        # columns, in four arrays with 8 bytes a number.
        check_fits("length", length, 4 * 8.0 * length * W * (k + 1) * k)
        self.step = number("step", step, maximum=LARGEST_STEP)
        self.sink = None if sink is None else distributions("sink", sink)
        if self.sink is not None and self.sink.shape != (k,):
            raise argument_error(
                "sink", sink, f"{k} probabilities, one for each symbol"
            )
        if scores is None:
            scores = np.zeros((W, k) if sink is None else (2, W, k))
        self.start = self._checked_scores(scores)

    def _checked_scores(self, scores: ArrayLike) -> Array:
        """Return the scores, (W, k), or (p, W, k) for p places; refuse other shapes."""
        W = len(self.chains.newest)  # number of windows
        k = self.chains.symbols
        # `real_array` refuses scores with another number of axes than 2 or 3.
        axes = 2 if dimensions(scores) == 2 else 3
        start = real_array("scores", scores, axes)
        # The numbers of places that are allowed: at most one place for each position,
        # and one more for a sink, which needs a place of its own.
        fewest_places = 1 if self.sink is None else 2
        most_places = self.length + fewest_places - 1
        if start.ndim == 2:
            has_allowed_places = self.sink is None
        else:
            has_allowed_places = fewest_places <= len(start) <= most_places
        if start.shape[-2:] != (W, k) or not has_allowed_places:
            allowed = f"({fewest_places} to {most_places}, {W}, {k})"
            if self.sink is None:
                allowed = f"{(W, k)} or {allowed}"
            raise argument_error("scores", start.shape, "of shape " + allowed)
        return start

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient with respect to the scores, of their shape."""
        columns = self._last_columns.of(self._moments, params)
        # A copy, because the result is kept for later calls and must not change.
        return float(columns.loss.sum()), columns.gradient.copy()

    @cached_property
    def _last_columns(self) -> LastResult[_Columns]:
        """The last result of `_moments` for all columns of the parameters."""
        return LastResult()

    def _moments(self, scores: Array, last: Symbols | None = None) -> _Columns:
        """Integrate the losses of columns of scores, (..., k**m, Q).

        Column j has the loss of the sequences that end in the symbol ``last[j]``. The
        default is one column for each symbol.
        """
        chains = self.chains
        if last is None:
            last = np.arange(chains.symbols)
        log_w = self._capped_scores(scores)
        tokens = self.length if self.sink is None else self.length + 1
        integrals = self._integrals(log_w, last, tokens)
        # Sizes of the terms of the gradient. ``push``, an integral of y times the mean
        # of a square, is not negative. The sum of the sizes is a divisor, and
        # `SMALLEST` keeps the sum positive.
        terms = abs(integrals.pull) + integrals.push + SMALLEST
        sum_of_terms = terms.sum(axis=(0, 1))
        gradient = integrals.pull - integrals.push
        # A shift of a whole column does not change the loss, so the gradient of a
        # column sums to 0. The sum that rounding leaves is subtracted from the entries,
        # in proportion to the terms that cancel in them.
        gradient -= terms * (gradient.sum(axis=(0, 1)) / sum_of_terms)
        attention = integrals.attention
        if scores.ndim == 2:
            # All positions share a single place.
            gradient = gradient.sum(axis=0)
            attention = attention.sum(axis=0)
        error = self._error_of_loss(integrals, log_w, sum_of_terms, tokens)
        return _Columns(integrals.loss, gradient, attention, error)

    def _capped_scores(self, scores: Array) -> Array:
        """Return scores minus the largest of their column, (p, k**m, Q).

        The number p of places is 1 if all positions share their scores. In the order of
        size, `capped` cuts large gaps between neighbouring scores of a column, at which
        the square of the attention underflows.
        """
        *_, W, Q = scores.shape
        columns = capped(scores.reshape(-1, Q))
        return columns.reshape(-1, W, Q)

    def _error_of_loss(
        self, integrals: _Integrals, log_w: Array, sum_of_terms: Array, tokens: int
    ) -> Array:
        """Estimate the error of the loss of each column from above, (Q,).

        The sum of the sizes of all terms of the gradient, ``sum_of_terms``, (Q,), is
        the sensitivity of the loss to relative errors of y.
        """
        # The sums that the recursion carries are rounded at each position. Moreover,
        # ln y is a sum of numbers as large as the range of the scores. The rounding of
        # this sum is a relative error of y.
        roundings_of_y = ROUNDINGS_OF_Y + np.ptp(log_w, axis=(0, 1))
        rounding = integrals.carried + roundings_of_y * sum_of_terms
        rounding *= np.finfo(float).eps
        # `UNSEEN` estimates the loss that underflow and the cut of scores remove, for a
        # prompt of one token whose squared error is 1. The estimate grows with the
        # square of the number of tokens. A squared error |o - P_q|² is at most 2,
        # because o and P_q are probability vectors.
        unseen = 2.0 * UNSEEN * float(tokens) ** 2
        return rule_error(self.step) * integrals.loss + rounding + unseen

    def _integrals(self, log_w: Array, last: Symbols, length: int) -> _Integrals:
        """Integrate columns of scores, (p, k**m, Q), over all chains and nodes.

        The ``length`` counts the sink as a position.
        """
        chains = self.chains
        C = len(chains.transitions)
        W = len(chains.newest)
        log_s, weights = _nodes(log_w, length, self.step)
        # For one chain at one node, the recursion carries the k + 1 numbers of F, A and
        # B at each position, window and column.
        numbers_of_node = length * W * (chains.symbols + 1) * len(last)
        integrals_of_blocks = []
        for block, nodes in _blocks(C, len(weights), numbers_of_node):
            integrals_of_blocks.append(
                _integrate(
                    chains,
                    block,
                    log_w,
                    last,
                    length,
                    self.sink,
                    log_s[:, nodes],
                    weights[nodes],
                )
            )
        # Each field of the result is the sum of this field over the blocks.
        fields = zip(*integrals_of_blocks, strict=True)
        return _Integrals(*(np.sum(field, axis=0) for field in fields))

    @property
    def column_gradients(self) -> ColumnGradients | None:
        """A function that returns the gradients of some columns of scores only.

        The function takes Q columns, (k**m, Q), and the last symbol of each, (Q,). The
        loss is a sum of one term for each last symbol, and each term depends on one
        column only. The property is None if the scores depend on the place of a
        position (three axes).
        """
        if self.start.ndim == 3:
            return None
        return lambda columns, last: self._moments(columns, last).gradient

    def gradients(self, states: Array) -> Array:
        """Gradients at n states, (n, ...), by one integration of all columns."""
        columns = np.concatenate(states, axis=-1)
        last = np.tile(np.arange(self.chains.symbols), len(states))
        gradient = self._moments(columns, last).gradient
        return np.stack(np.split(gradient, len(states), axis=-1))

    def attention(self, params: ArrayLike) -> Array:
        """Expected attention on each window, given the last symbol.

        The array has the shape of the scores. A column is 0 if no sequence ends in its
        symbol.
        """
        columns = self._last_columns.of(self._moments, self._checked(params))
        attention = columns.attention
        prob_last = self.chains.last(self.length).sum(axis=0)
        return np.divide(
            attention, prob_last, out=np.zeros_like(attention), where=prob_last > 0.0
        )

    def error(self, params: ArrayLike) -> float:
        """Estimate the error of the loss from above.

        The estimate is the sum of three parts: the error of the quadrature, the error
        of rounding to first order, and the part of the loss that underflow may remove.
        """
        return float(self._moments(self._checked(params)).error.sum())

    def loss_error(self, params: ArrayLike) -> float:
        """Return `error`."""
        return self.error(params)

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Expected attention on each window given the last symbol, see `attention`."""
        return {"attention": self.attention(params)}

    def sampled(self, batch: int, seed: int = 0) -> Sampled[Sequences]:
        """Return this loss as a mean over ``batch`` sequences, drawn anew each step."""
        positions_and_windows = self.length + len(self.chains.newest)
        return Sampled(
            self.start,
            self._draw,
            self._losses_on,
            batch,
            seed,
            numbers=ARRAYS_OF_SEQUENCE * positions_and_windows,
            observation=self._observe_on,
        )

    def _draw(self, rng: np.random.Generator, size: int) -> Sequences:
        """Draw ``size`` sequences of this length, see `Chains.draw`."""
        return Sequences(*self.chains.draw(rng, self.length, size))

    def _losses_on(self, params: Array, prompts: Sequences) -> Pass:
        """Return losses and derivatives on B sequences, see `Sampled`.

        There are equally many sequences for each of R runs, in the order of the runs.
        The array ``params``, (R, ...), has the scores of each run. The computation
        shares no formula with the integral.
        """
        attended = self._attend(params, prompts)
        B = len(prompts.chain)
        k = self.chains.symbols
        # The value of a symbol x is e_x. The token k is the sink.
        values = np.eye(k)
        if self.sink is not None:
            values = np.vstack([values, self.sink])
        sequence = np.arange(B)[:, None]
        # Attention on equal tokens is added up, (B, number of values).
        attention_on_values = np.bincount(
            (sequence * len(values) + attended.tokens).ravel(),
            attended.attention.ravel(),
            B * len(values),
        )
        output = attention_on_values.reshape(B, -1) @ values
        error = output - self.chains.transitions[prompts.chain, attended.tokens[:, -1]]
        # The derivative of ½|o - P|² with respect to the score of position t is
        # a_t (o - P)·(v_t - o), with its attention a_t and its value v_t.
        error_dot_value = (error @ values.T)[sequence, attended.tokens]
        error_dot_output = (error * output).sum(axis=1)
        slope = attended.attention * (error_dot_value - error_dot_output[:, None])
        return Pass(
            losses=0.5 * (error**2).sum(axis=1),
            places=attended.score_index,
            slopes=slope,
        )

    def _observe_on(self, params: Array, prompts: Sequences) -> dict[str, Array]:
        """Mean attention of the sequences on each window given the last symbol."""
        attended = self._attend(params[None], prompts)
        last = attended.tokens[:, -1]
        sequences_of_last = np.bincount(last, minlength=self.chains.symbols)
        summed = np.bincount(
            attended.score_index.ravel(), attended.attention.ravel(), params.size
        )
        # A symbol that is never the last one gets the attention 0/1 and not 0/0.
        divisor = np.maximum(sequences_of_last, 1)
        return {"attention": summed.reshape(params.shape) / divisor}

    def _attend(self, params: Array, prompts: Sequences) -> _Attended:
        """Return the attention on the sequences of R runs, with scores (R, ...).

        All runs have the same number of sequences, in the order of the runs.
        """
        k = self.chains.symbols
        windows = prompts.windows
        tokens = windows % k
        if self.sink is not None:
            # The sink stands in front of the first position, and its score depends on
            # the window of that position.
            windows = np.column_stack([windows[:, 0], windows])
            tokens = np.insert(tokens, 0, k, axis=1)
        # The scores of a run have the axes (place, window, last symbol), or only the
        # last two. `first_places` returns where the scores of each sequence's run
        # begin.
        score_index = first_places(params, len(windows)) + windows * k + tokens[:, -1:]
        scores = params[0]
        if scores.ndim == 3:
            positions = np.arange(score_index.shape[1])
            place = np.minimum(positions, len(scores) - 1)
            score_index += place * scores[0].size
        attention, _ = softmax(params.ravel()[score_index])
        return _Attended(tokens, score_index, attention)


class Sequences(NamedTuple):
    """B drawn sequences of T positions."""

    chain: Symbols  # the chain that each sequence follows, (B,)
    windows: Symbols  # the number of the window at each position, (B, T)


class _Attended(NamedTuple):
    """The tokens of B sequences and the attention on them.

    If there is a sink, it is the first of the T tokens.
    """

    tokens: Symbols  # the symbol of each token, or k for the sink, (B, T)
    score_index: Symbols  # index of each token's score in the flat parameters, (B, T)
    attention: Array  # (B, T)
