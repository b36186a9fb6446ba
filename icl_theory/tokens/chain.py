r"""Softmax attention over Markov chains: the exact square loss and its gradient.

Each of the T positions of a sequence has a window, its own symbol :math:`x_t` and the
m - 1 before it. With q the last symbol and weights :math:`w_t = e^{S(X_t, q)}`,
attention predicts the law :math:`P_q` of the next symbol.

.. math:: \mathcal L
    = \tfrac12 E\Bigl|\frac{\sum w_t e_{x_t}}{\sum w_t} - P_q\Bigr|^2
    = \tfrac12\int_0^\infty E\bigl[|n|^2 e^{-\sum_t y_t}\bigr]\,\frac{ds}{s}, \qquad
    y_t = s w_t, \quad n = \sum_t y_t (e_{x_t} - P_q).

For each window the means F, A and B of :math:`e^{-\sum y}` times 1, n and
:math:`\tfrac12|n|^2`, with sums up to t, are carried along. A position with y and
:math:`u = y(e_x - P_q)` adds

.. math:: (F, A, B) \to
    (F,\ A + uF,\ B + u^\top A + \tfrac12|u|^2F)\,e^{-y} .

The derivatives f, a and b of the loss by F, A and B are carried back, and

.. math:: \frac{\partial\mathcal L}{\partial S}
    = \sum_t \int u^\top (aF + bA) - y\,(fF + a^\top A + bB)\,\frac{ds}{s} .

See docs/theory.md, "The recursion".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
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
from icl_theory.engine.risk import Risk, WithStart
from icl_theory.memory import check_fits
from icl_theory.tokens.quadrature import UNSEEN, capped, rule_error
from icl_theory.tokens.sampled import (
    Pass,
    Sampled,
    chosen,
    prompts_to_draw,
    softmax,
)

Symbols = NDArray[np.intp]
LOG_LARGEST_Y = math.log(1000.0)  # e^(-1000) is 0
CARRIED = 2**21  # numbers carried along in a block (16 MiB)


class Chains:
    r"""A law of sequences over k symbols.

    It is a Markov chain, or several, of which each sequence follows one.

    Parameters
    ----------
    transitions : array_like, (k, k) or (C, k, k)
        Row q is the law of the symbol after q. Rows sum to 1 (to 1e-6, then
        normalised).
    window : int
        The number m of symbols in a window. The window (a, ..., z), z the newest, has
        the number with these digits in base k.
    probs : array_like, (C,), optional
        Probabilities of the chains; equal ones by default.
    start : array_like, (k**m,) or (C, k**m), or (k,) or (C, k), optional
        Law of the first window, or of its oldest symbol. The stationary one is the
        default; the chains must then be irreducible.

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
        windows = math.exp(min(self.window * math.log(k), 600.0))
        check_fits("window", self.window, 32.0 * C * k * windows)
        self.newest = np.arange(k**self.window) % k
        self.start = self._law_of_first_window(start)

    def _law_of_first_window(self, start: ArrayLike | None) -> Array:
        """Return the law of the first window under each chain, (C, k**m)."""
        P = self.transitions
        C, k, _ = P.shape
        W = len(self.newest)
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
        while law.shape[1] < W:  # add a symbol to the window
            law = (law.reshape(C, -1, k, 1) * P[:, None]).reshape(C, -1)
        return law

    def last(self, length: int) -> Array:
        """Probabilities that a sequence follows a chain and ends in a symbol, (C, k).

        The sequence has the given length.
        """
        length = integer("length", length, minimum=1)
        first = self.start.reshape(len(self.probs), -1, self.symbols).sum(axis=1)
        last = first[:, None] @ np.linalg.matrix_power(self.transitions, length - 1)
        return np.asarray(self.probs[:, None] * last[:, 0])

    def irreducible(self, length: int) -> float:
        r"""Return :math:`\tfrac12 E[1 - |P_q|^2]`.

        The square loss against the next symbol itself is larger by this than the loss
        against its law.
        """
        spread = (self.transitions * (1.0 - self.transitions)).sum(axis=2)
        return 0.5 * float((self.last(length) * spread).sum())

    def draw(
        self, rng: np.random.Generator, length: int, size: int
    ) -> tuple[Symbols, Symbols]:
        """Draw sequences.

        Return the chain of each, (size,), and the windows of its positions, (size,
        length).
        """
        length = integer("length", length, minimum=1)
        size = prompts_to_draw(rng, size, 1.0 * length)
        chain = rng.choice(len(self.probs), size, p=self.probs)
        windows = np.empty((size, length), dtype=np.intp)
        windows[:, 0] = chosen(rng.random(size), np.cumsum(self.start, axis=1)[chain])
        cumulated = np.cumsum(self.transitions, axis=2)
        for t in range(1, length):
            before = windows[:, t - 1]
            new = chosen(rng.random(size), cumulated[chain, before % self.symbols])
            # the oldest symbol leaves the window, and the new one enters
            windows[:, t] = before * self.symbols % len(self.newest) + new
        return chain, windows


def _stationary(P: Array) -> Array:
    """Return the stationary law of an irreducible chain, (k,).

    States are eliminated from the last on (Grassmann, Taksar and Heyman 1985). Nothing
    is subtracted, so that small entries keep their digits.
    """
    from scipy.sparse.csgraph import connected_components  # slow to load

    k = len(P)
    components, component = connected_components(P > 0.0, connection="strong")
    if components > 1:
        unreached = np.argmax(component != component[0])
        raise argument_error(
            "transitions",
            P.tolist(),
            "irreducible unless start is given "
            f"(there is no way from 0 to {unreached}, or none back)",
        )
    law = np.ones(k)
    reduced = P.copy()
    with np.errstate(all="ignore"):
        for n in range(k - 1, 0, -1):
            reduced[:n, n] /= reduced[n, :n].sum()
            reduced[:n, :n] += np.outer(reduced[:n, n], reduced[n, :n])
        for n in range(1, k):
            law[n] = law[:n] @ reduced[:n, n]
        law /= law.sum()
    if not np.isfinite(law).all():
        raise argument_error(
            "transitions",
            P.tolist(),
            "such that float64 holds the odds of all states, or with start given",
        )
    return law


class _Columns(NamedTuple):
    """Results for columns of scores, summed over the sequences that end in a symbol.

    The symbol is the one of the column.
    """

    loss: Array  # (Q,)
    gradient: Array  # of the shape of the scores
    attention: Array
    error: Array  # of the loss, from above, (Q,)


class _Integrals(NamedTuple):
    """Integrals over s. Those with places n and windows are (n, W, Q)."""

    loss: Array  # (Q,)
    pull: Array  # Σ_t ∫ uᵀ (aF + bA)
    push: Array  # Σ_t ∫ y (fF + aᵀA + bB): the gradient is pull - push
    attention: Array  # Σ_t ∫ y b F
    carried: Array  # Σ_t ∫ (fF + bB), in which each step rounds, (Q,)


class _Positions(NamedTuple):
    """What a position adds, by its place n and window, for Q columns and J nodes."""

    y: Array  # (n, W, QJ)
    decay: Array  # e^(-y), (n, W, QJ)
    u: Array  # y (e_x - P_q), (n, k - 1, C, W, QJ)
    sink: bool  # no symbol is drawn after the position of the sink, the first one

    def place(self, t: int) -> int:
        """Return the place of a position: all that follow the last place share it."""
        return min(t, len(self.y) - 1)

    def passed(self, sums: Array, t: int, out: Array | None = None) -> Array:
        """Return (F, A + uF, B + u·A + ½|u|²F) e^(-y) of (F, A, B)."""
        return _passed(sums, self.u[self.place(t)], self.decay[self.place(t)], out)

    def passed_back(self, sums: Array, t: int) -> Array:
        """Return (f, a, b) before a position from those after it, in reversed order.

        With F and B exchanged, a position's map is its own transpose.
        """
        u = self.u[self.place(t)]
        return _passed(sums[::-1], u[::-1], self.decay[self.place(t)], None)


def _passed(sums: Array, u: Array, decay: Array, out: Array | None) -> Array:
    result = np.multiply(sums, decay, out=out)
    F = result[0]
    A = result[1:-1]
    B = result[-1]
    half = 0.5 * u * F
    A += half
    B += np.add.reduce(u * A, axis=0)  # u·A + ½|u|²F
    A += half
    return result


def _blocks(chains: int, nodes: int, carried: int) -> Iterator[tuple[slice, slice]]:
    """Split chains and nodes into blocks in which up to `CARRIED` numbers are carried.

    One node and one chain carry ``carried`` numbers.
    """
    nodes_of_block = min(nodes, max(1, CARRIED // carried))
    chains_of_block = max(1, CARRIED // (carried * nodes_of_block))
    for c in range(0, chains, chains_of_block):
        for n in range(0, nodes, nodes_of_block):
            yield slice(c, c + chains_of_block), slice(n, n + nodes_of_block)


def _integrate(
    chains: Chains,
    which: slice,
    log_w: Array,
    last: Symbols,
    length: int,
    sink: Array | None,
    log_s: Array,
    weights: Array,
) -> _Integrals:
    """Integrate over some chains and nodes.

    Sums up to a position have the axes (position; F, A and B; chain; window; column and
    node), and so have the derivatives f, a and b of the loss by them.
    """
    P = chains.transitions[which]
    k = chains.symbols
    newest = chains.newest
    C = len(P)
    W = len(newest)
    Q = len(last)
    J = len(weights)
    positions = _positions(P, newest, log_w, last, sink, log_s)
    # A window (a, r) of its oldest symbol a and the others leads to (r, b): there is a
    # k x k matrix for each r.
    law = P[:, newest].reshape(C, k, W // k, k).swapaxes(1, 2)
    sums, back = np.empty((2, length, k + 1, C, W, Q * J))
    sums[0, 1:] = 0.0
    sums[0, 0] = chains.start[which, :, None]
    _carry(sums, positions, law.swapaxes(2, 3).copy())
    weights_of_end = (newest[:, None] == last)[:, :, None] * weights
    back[-1, :-1] = 0.0
    back[-1, -1] = chains.probs[which, None, None] * weights_of_end.reshape(W, Q * J)
    _carry_back(back, positions, law.copy())
    integrals = _contracted(sums, back, positions)
    return _Integrals(
        *(part.reshape(*part.shape[:-1], Q, J).sum(axis=-1) for part in integrals)
    )


def _positions(
    P: Array,
    newest: Symbols,
    log_w: Array,
    last: Symbols,
    sink: Array | None,
    log_s: Array,
) -> _Positions:
    C, k, _ = P.shape
    W = len(newest)
    y = np.exp(np.minimum(log_w[..., None] + log_s, LOG_LARGEST_Y))
    edges = _edges(P, last)
    u = edges[:, :, newest, :, None] * y[:, None, None]
    if sink is not None:
        edge_of_sink = np.einsum("icxq,x->icq", edges, sink)
        u[0] = edge_of_sink[:, :, None, :, None] * y[0]
    u = u.reshape(len(y), k - 1, C, W, -1)
    y = y.reshape(len(y), W, -1)
    return _Positions(y, np.exp(-y), u, sink is not None)


def _edges(P: Array, last: Symbols) -> Array:
    """Return the vectors e_x - P_q, (k - 1, C, k, Q).

    They sum to 0, and are given in an orthonormal basis of the vectors that do.
    """
    k = P.shape[1]
    is_own = np.eye(k, dtype=bool)
    rest = P @ ~is_own  # 1 - P_qx without cancellation
    edges = np.where(is_own, rest[:, last, :, None], -P[:, last, None, :])
    basis = np.tri(k - 1, k) - np.diag(np.arange(1.0, k), 1)[:-1]
    basis /= np.sqrt((basis**2).sum(axis=1, keepdims=True))
    return np.einsum("cqxj,ij->icxq", edges, basis)


def _carry(sums: Array, positions: _Positions, law: Array) -> None:
    """Fill in (F, A, B) after each position.

    Those before the first position are given in ``sums[0]``. The matrices ``law`` lead
    from the oldest symbol of a window to the next symbol, (C, r, b, a).
    """
    for t in range(len(sums)):
        positions.passed(sums[t], t, out=sums[t])
        if t + 1 == len(sums):
            break
        if t == 0 and positions.sink:
            sums[1] = sums[0]
        else:
            before = _by_oldest(sums[t], law)
            np.matmul(law, before, out=_by_newest(sums[t + 1], law))


def _carry_back(back: Array, positions: _Positions, law: Array) -> None:
    """Fill in the derivatives (f, a, b) by the sums after each position.

    Those after the last position are given in ``back[-1]``. The matrices ``law`` are
    (C, r, a, b).
    """
    for t in range(len(back) - 1, 0, -1):
        passed = positions.passed_back(back[t], t)
        before = back[t - 1, ::-1]
        if t == 1 and positions.sink:
            before[...] = passed
        else:
            np.matmul(law, _by_newest(passed, law), out=_by_oldest(before, law))


def _by_oldest(sums: Array, law: Array) -> Array:
    """View windows (a, r) by the symbols that stay and the oldest one."""
    C, rest, k, _ = law.shape
    return sums.reshape(-1, C, k, rest, sums.shape[-1]).swapaxes(2, 3)


def _by_newest(sums: Array, law: Array) -> Array:
    """View windows (r, b) by the symbols that stay and the newest one."""
    C, rest, k, _ = law.shape
    return sums.reshape(-1, C, rest, k, sums.shape[-1])


def _contracted(sums: Array, back: Array, positions: _Positions) -> _Integrals:
    """Return the integrands, with columns and nodes as the last axis."""
    F = sums[:, 0]
    A = sums[:, 1:-1]
    B = sums[:, -1]
    f = back[:, 0]
    a = back[:, 1:-1]
    b = back[:, -1]
    by_u = a * F[:, None]
    by_u += b[:, None] * A
    # all positions from the last place on share it
    places = range(len(positions.y))
    pull = []
    for n in places:
        at_place = slice(n, n + 1 if n + 1 < len(places) else None)
        pull.append(np.einsum("tdcwx,dcwx->wx", by_u[at_place], positions.u[n]))
    by_y = np.einsum("tdcwx,tdcwx->twx", back, sums)
    attended = np.einsum("tcwx,tcwx->twx", b, F)
    return _Integrals(
        np.einsum("cwx,cwx->x", b[-1], B[-1]),
        np.stack(pull),
        np.add.reduceat(by_y, places) * positions.y,
        np.add.reduceat(attended, places) * positions.y,
        np.einsum("tcwx,tcwx->x", f, F) + np.einsum("tcwx,tcwx->x", b, B),
    )


def _nodes(
    log_w: Array, length: int, step: float, first: float = -3.5, last: float = 4.0
) -> tuple[Array, Array]:
    """Nodes ln s, (Q, J), and weights, (J,), of the trapezoid rule in x.

    With ln(s Z_max) = x - e^(-x), s Z_max = e^(-37) at the first node, where the
    integrand of the attention falls below rounding. At the last one s Z_min > e^4,
    where e^(-s Z) does. If weights are further apart than that, nodes between them are
    left out: a sequence whose largest weight is v needs those with ln(s v T) > -37 and
    ln(s v) < 4.
    """
    log_positions = np.zeros((len(log_w), 1))
    log_positions[-1] = math.log(length - len(log_w) + 1)
    log_Z_max = np.logaddexp.reduce(log_w.max(axis=1) + log_positions, axis=0)
    log_Z_min = np.logaddexp.reduce(log_w.min(axis=1) + log_positions, axis=0)
    depths = np.unique(np.ceil(log_Z_max - log_w))
    reach = np.arange(-38.0 - math.log(length), last + step, step)
    number = np.unique(np.rint((depths[:, None] + reach - first) / step))
    x = first + step * number[number >= 0.0]
    x = x[x < last + step + (log_Z_max - log_Z_min).max()]
    tail = np.exp(-x)
    return x - tail - log_Z_max[:, None], step * (1.0 + tail)


class ChainRisk(WithStart, Risk):
    r"""The exact loss of softmax attention over Markov chains, trained in its scores.

    .. math:: \mathcal L = \tfrac12 E|o - P_q|^2

    The loss is that of predicting :math:`P_q`; `Chains.irreducible` is not in it.
    `icl_theory.engine.Pullback` makes the scores functions of anything else.

    Parameters
    ----------
    chains : Chains
        The law of the sequences.
    length : int
        The number T of positions, at least m.
    scores : array_like, (k**m, k) or (n, k**m, k), optional
        Initial scores of a position by its window and the last symbol q of the
        sequence; with three axes also by the place of the position in the sequence, the
        last of n places standing for all that follow. A score of -1000 hides a
        position. Zeros, (k**m, k), by default, or (2, k**m, k) with a sink.
    sink : array_like, (k,), optional
        Value of a further token in front of the sequence, k probabilities. The first of
        the places is its own.
    step : float
        Distance of the nodes of the integral, up to 0.6. Steps below the default change
        no digit.

    Raises
    ------
    ValueError
        An argument is out of range; the message names it.

    References
    ----------
    docs/theory.md, "The recursion", "The error of the rule".

    Examples
    --------
    Attention to positions whose predecessor is the last symbol, and a run that finds
    it:

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
        W = len(chains.newest)
        k = chains.symbols
        self.length = integer("length", length, minimum=chains.window)
        check_fits("length", length, 32.0 * length * W * (k + 1) * k)
        self.step = number("step", step, maximum=0.6)
        self.sink = None if sink is None else distributions("sink", sink)
        if self.sink is not None and self.sink.shape != (k,):
            raise argument_error(
                "sink", sink, f"{k} probabilities, one for each symbol"
            )
        if scores is None:
            scores = np.zeros((W, k) if sink is None else (2, W, k))
        self.start = self._checked_scores(scores)

    def _checked_scores(self, scores: ArrayLike) -> Array:
        W = len(self.chains.newest)
        k = self.chains.symbols
        start = real_array("scores", scores, 2 if dimensions(scores) == 2 else 3)
        fewest = 1 if self.sink is None else 2  # places
        most = self.length + fewest - 1
        if start.ndim == 2:
            is_allowed = self.sink is None
        else:
            is_allowed = fewest <= len(start) <= most
        if start.shape[-2:] != (W, k) or not is_allowed:
            allowed = f"({fewest} to {most}, {W}, {k})"
            if self.sink is None:
                allowed = f"{(W, k)} or {allowed}"
            raise argument_error("scores", start.shape, "of shape " + allowed)
        return start

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and gradient."""
        columns = self._moments(params)
        return float(columns.loss.sum()), columns.gradient

    def _moments(self, scores: Array, last: Symbols | None = None) -> _Columns:
        """Integrate columns of scores, (..., k**m, Q).

        Column j counts the sequences that end in ``last[j]``.
        """
        chains = self.chains
        if last is None:
            last = np.arange(chains.symbols)
        Q = len(last)
        log_w = capped(scores.reshape(-1, Q)).reshape(-1, *scores.shape[-2:])
        length = self.length + (self.sink is not None)
        integrals = self._integrals(log_w, last, length)
        gradient = integrals.pull - integrals.push
        terms = abs(integrals.pull) + integrals.push + 1e-300
        total = terms.sum(axis=(0, 1))
        # A shift of a column changes no loss. The sum that rounding leaves belongs to
        # the entries that cancel.
        gradient -= terms * (gradient.sum(axis=(0, 1)) / total)
        attention = integrals.attention
        if scores.ndim == 2:
            gradient = gradient.sum(axis=0)
            attention = attention.sum(axis=0)
        # Each position rounds what it carries, and ln y is a sum of numbers as large as
        # the range of the scores.
        rounding = integrals.carried + (10.0 + np.ptp(log_w, axis=(0, 1))) * total
        rounding *= np.finfo(float).eps
        # errors of probabilities: |e|² is 2 at most
        unseen = 2.0 * UNSEEN * float(length) ** 2
        error = rule_error(self.step) * integrals.loss + rounding + unseen
        return _Columns(integrals.loss, gradient, attention, error)

    def _integrals(self, log_w: Array, last: Symbols, length: int) -> _Integrals:
        chains = self.chains
        log_s, weights = _nodes(log_w, length, self.step)
        carried = length * len(chains.newest) * (chains.symbols + 1) * len(last)
        parts = []
        for which, nodes in _blocks(len(chains.transitions), len(weights), carried):
            parts.append(
                _integrate(
                    chains,
                    which,
                    log_w,
                    last,
                    length,
                    self.sink,
                    log_s[:, nodes],
                    weights[nodes],
                )
            )
        return _Integrals(*(np.sum(part, axis=0) for part in zip(*parts, strict=True)))

    @property
    def column_gradients(self) -> ColumnGradients | None:
        """Gradients of single columns: each last symbol has a loss of its own.

        None for scores by position.
        """
        if self.start.ndim == 3:
            return None
        return lambda columns, which: self._moments(columns, which).gradient

    def gradients(self, states: Array) -> Array:
        """Gradients at some states, (n, ...): their columns are integrated together."""
        columns = np.concatenate(states, axis=-1)
        last = np.tile(np.arange(self.chains.symbols), len(states))
        gradient = self._moments(columns, last).gradient
        return np.stack(np.split(gradient, len(states), axis=-1))

    def attention(self, params: ArrayLike) -> Array:
        """Expected attention given the last symbol, of the shape of the scores.

        It is 0 for a symbol that ends no sequence.
        """
        attention = self._moments(self._checked(params)).attention
        prob_last = self.chains.last(self.length).sum(axis=0)
        return np.divide(
            attention, prob_last, out=np.zeros_like(attention), where=prob_last > 0.0
        )

    def error(self, params: ArrayLike) -> float:
        """Estimate the error of the loss from above.

        It is that of the quadrature, and that of rounding to first order.
        """
        return float(self._moments(self._checked(params)).error.sum())

    def loss_error(self, params: ArrayLike) -> float:
        """Return `error`."""
        return self.error(params)

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Expected attention on the windows given the last symbol.

        It has the shape of the scores.
        """
        return {"attention": self.attention(params)}

    def sampled(self, batch: int, seed: int) -> Sampled:
        """Return the same loss, of sequences that are drawn at each step."""
        numbers = 8.0 * (self.length + len(self.chains.newest))
        return Sampled(
            self.start, self._draw, batch, seed, numbers, self._observe_sample
        )

    def _draw(self, params: Array, rng: np.random.Generator, B: int) -> Pass:
        """Losses of sequences, by the softmax of their scores.

        No formula is shared with the integral.
        """
        sample = self._attend(params, rng, B)
        k = self.chains.symbols
        values = np.eye(k)
        if self.sink is not None:
            values = np.vstack([values, self.sink])
        rows = np.arange(B)[:, None]
        share = np.bincount(
            (rows * len(values) + sample.tokens).ravel(),
            sample.attention.ravel(),
            B * len(values),
        )
        output = share.reshape(B, -1) @ values
        error = output - self.chains.transitions[sample.chain, sample.tokens[:, -1]]
        # d(½|o - P|²)/d(score of t) = a_t (o - P)·(v_t - o)
        along_values = (error @ values.T)[rows, sample.tokens]
        along_output = (error * output).sum(axis=1)
        slope = sample.attention * (along_values - along_output[:, None])
        return 0.5 * (error**2).sum(axis=1), sample.place, slope

    def _observe_sample(
        self, params: Array, rng: np.random.Generator, B: int
    ) -> dict[str, Array]:
        """Mean attention of sequences on the windows given the last symbol."""
        sample = self._attend(params, rng, B)
        number_last = np.bincount(sample.tokens[:, -1], minlength=self.chains.symbols)
        summed = np.bincount(
            sample.place.ravel(), sample.attention.ravel(), params.size
        )
        return {"attention": summed.reshape(params.shape) / np.maximum(number_last, 1)}

    def _attend(self, params: Array, rng: np.random.Generator, B: int) -> _Sample:
        k = self.chains.symbols
        chain, windows = self.chains.draw(rng, self.length, B)
        tokens = windows % k
        if self.sink is not None:
            windows = np.column_stack([windows[:, 0], windows])
            tokens = np.insert(tokens, 0, k, axis=1)
        place = windows * k + tokens[:, -1:]
        if params.ndim == 3:
            of_position = np.minimum(np.arange(place.shape[1]), len(params) - 1)
            place += of_position * params[0].size
        attention, _ = softmax(params.ravel()[place])
        return _Sample(chain, tokens, place, attention)


class _Sample(NamedTuple):
    """Sequences that were drawn, and the attention on their tokens."""

    chain: Symbols  # (B,)
    tokens: Symbols  # symbols, k for the sink, (B, T)
    place: Symbols  # of the score of each token among all scores, (B, T)
    attention: Array  # (B, T)
