r"""Softmax attention over Markov chains: the exact square loss and its gradient, an integral over a recursion.

Each of the T positions of a sequence has a window, its own symbol :math:`x_t` and the m
- 1 before it. With q the last symbol and weights :math:`w_t = e^{S(X_t, q)}`, attention
predicts the law :math:`P_q` of the next one.

.. math:: \mathcal L = \tfrac12 E\Bigl|\frac{\sum w_t e_{x_t}}{\sum w_t} - P_q\Bigr|^2
    = \tfrac12\int_0^\infty E\bigl[|n|^2 e^{-\sum_t y_t}\bigr]\,\frac{ds}{s}, \qquad
    y_t = s w_t, \quad n = \sum_t y_t (e_{x_t} - P_q).

For each window the means F, A and B of :math:`e^{-\sum y}` times 1, n and
:math:`\tfrac12|n|^2`, with sums up to t, are carried along. A position with y and
:math:`u = y(e_x - P_q)` adds :math:`(F, A, B) \to (F,\ A + uF,\ B + u^\top A +
\tfrac12|u|^2F)\,e^{-y}`. See docs/theory.md, "The recursion".
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
from icl_theory.tokens.sampled import (
    Pass,
    Sampled,
    chosen,
    prompts_to_draw,
    softmax,
)
from icl_theory.tokens.square import UNSEEN, capped, rule_error

Symbols = NDArray[np.intp]


class Chains:
    r"""A law of sequences over k symbols: a Markov chain, or several of which each sequence follows one.

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
        self.transitions = P = P.reshape(-1, *P.shape[-2:])
        C, self.symbols = P.shape[:2]
        self.window = integer("window", window, minimum=1)
        self.probs = (
            np.full(C, 1.0 / C) if probs is None else probabilities("probs", probs, C)
        )
        k = self.symbols
        check_fits(
            "window",
            self.window,
            32.0 * C * k * math.exp(min(self.window * math.log(k), 600.0)),
        )
        W = k**self.window
        self.newest = np.arange(W) % k
        law = (
            np.stack([_stationary(each) for each in P])
            if start is None
            else distributions("start", start)
        )
        if law.shape not in ((W,), (C, W), (k,), (C, k)):
            raise argument_error(
                "start",
                law.shape,
                f"of shape {(W,)} or {(C, W)}, or {k} in place of {W}",
            )
        law = np.broadcast_to(law, (C, law.shape[-1]))
        while law.shape[1] < W:
            law = (law.reshape(C, -1, k, 1) * P[:, None]).reshape(C, -1)
        self.start = law

    def last(self, length: int) -> Array:
        """Probability that a sequence of a length follows a chain and ends in a symbol, (C, k)."""
        length = integer("length", length, minimum=1)
        first = self.start.reshape(len(self.probs), -1, self.symbols).sum(axis=1)
        moved = first[:, None] @ np.linalg.matrix_power(self.transitions, length - 1)
        return np.asarray(self.probs[:, None] * moved[:, 0])

    def irreducible(self, length: int) -> float:
        r"""What a square loss against the next symbol itself has on top, :math:`\tfrac12 E[1 - |P_q|^2]`."""
        spread = (self.transitions * (1.0 - self.transitions)).sum(axis=2)
        return 0.5 * float((self.last(length) * spread).sum())

    def draw(
        self, rng: np.random.Generator, length: int, size: int
    ) -> tuple[Symbols, Symbols]:
        """Draw sequences: the chain of each, (size,), and the windows of its positions, (size, length)."""
        length = integer("length", length, minimum=1)
        size = prompts_to_draw(rng, size, 1.0 * length)
        chain = rng.choice(len(self.probs), size, p=self.probs)
        windows = np.empty((size, length), dtype=np.intp)
        windows[:, 0] = chosen(rng.random(size), np.cumsum(self.start, axis=1)[chain])
        steps = np.cumsum(self.transitions, axis=2)
        for t in range(1, length):
            before = windows[:, t - 1]
            new = chosen(rng.random(size), steps[chain, before % self.symbols])
            windows[:, t] = before * self.symbols % len(self.newest) + new
        return chain, windows


def _stationary(P: Array) -> Array:
    """Return the stationary law of an irreducible chain; nothing is subtracted, so small entries keep their digits.

    States are eliminated from the last on (Grassmann, Taksar and Heyman 1985).
    """
    from scipy.sparse.csgraph import connected_components  # slow to load

    k, (groups, group) = len(P), connected_components(P > 0.0, connection="strong")
    if groups > 1:
        other = np.argmax(group != group[0])
        allowed = f"irreducible unless start is given (there is no way from 0 to {other}, or none back)"
        raise argument_error("transitions", P.tolist(), allowed)
    given = P
    P = P.copy()
    law = np.ones(k)
    with np.errstate(all="ignore"):
        for n in range(k - 1, 0, -1):
            P[:n, n] /= P[n, :n].sum()
            P[:n, :n] += np.outer(P[:n, n], P[n, :n])
        for n in range(1, k):
            law[n] = law[:n] @ P[:n, n]
        law /= law.sum()
    if not np.isfinite(law).all():
        allowed = "such that float64 holds the odds of all states, or with start given"
        raise argument_error("transitions", given.tolist(), allowed)
    return law


class _Columns(NamedTuple):
    """What is known of columns of scores, summed over the sequences that end in the symbol of the column."""

    loss: Array  # (Q,)
    gradient: Array  # of the shape of the scores
    attention: Array
    error: Array  # of the loss, from above, (Q,)


def _parts(
    chains: int, nodes: int, carried: int, most: int = 2**21
) -> Iterator[tuple[slice, slice]]:
    """Split chains and nodes into blocks; what is carried along in each has up to ``most`` numbers (16 MiB)."""
    width = min(nodes, max(1, most // carried))
    together = max(1, most // (carried * width))
    for c in range(0, chains, together):
        for n in range(0, nodes, width):
            yield slice(c, c + together), slice(n, n + width)


def _block(
    chains: Chains,
    which: slice,
    log_w: Array,
    last: Symbols,
    length: int,
    sink: Array | None,
    *rule: Array,
) -> tuple[Array, ...]:
    """Integrate over some chains and nodes ``rule``: loss, both parts of the gradient, attention, what was handled.

    Sums up to a position have the axes (position; F, A and B; chain; window; column and
    node), and so have the derivatives of the loss by them, which are carried back.
    """
    P, k, newest, (log_s, weights) = (
        chains.transitions[which],
        chains.symbols,
        chains.newest,
        rule,
    )
    C = len(P)
    W = len(newest)
    Q = len(last)
    J = len(weights)
    y = np.exp(np.minimum(log_w[..., None] + log_s, math.log(1000.0)))  # e^(-1000) is 0
    edges = _edges(P, last)
    u = edges[:, :, newest, :, None] * y[:, None, None]
    if sink is not None:
        u[0] = np.einsum("icxq,x->icq", edges, sink)[:, :, None, :, None] * y[0]
    u = u.reshape(len(y), k - 1, C, W, Q * J)
    y = y.reshape(len(y), W, Q * J)
    decay = np.exp(-y)
    # a window (a, r) of its oldest symbol and the others leads to (r, b): for each r a
    # k x k matrix
    law = P[:, newest].reshape(C, k, W // k, k).swapaxes(1, 2)
    sums, back = np.empty((2, length, k + 1, C, W, Q * J))
    sums[0, 1:], back[-1, :-1] = 0.0, 0.0
    sums[0, 0] = chains.start[which, :, None]
    ends = (newest[:, None] == last)[:, :, None] * weights
    back[-1, -1] = chains.probs[which, None, None] * ends.reshape(W, Q * J)
    still = 1 if sink is not None else 0  # the symbol at this place is the one before
    _carry(sums, u, decay, law.swapaxes(2, 3).copy(), still)
    _carry(back, u, decay, law.copy(), still, back=True)

    (F, A, B), (f, a, b) = ((x[:, 0], x[:, 1:-1], x[:, -1]) for x in (sums, back))
    pull = a * F[:, None]
    pull += b[:, None] * A
    places = range(len(y))
    ahead = [slice(n, n + 1) for n in places[:-1]] + [slice(len(y) - 1, None)]
    found = (
        np.einsum("cwx,cwx->x", b[-1], B[-1]),
        np.stack(
            [
                np.einsum("tdcwx,dcwx->wx", pull[t], one)
                for t, one in zip(ahead, u, strict=True)
            ]
        ),
        np.add.reduceat(np.einsum("tdcwx,tdcwx->twx", back, sums), places) * y,
        np.add.reduceat(np.einsum("tcwx,tcwx->twx", b, F), places) * y,
        np.einsum("tcwx,tcwx->x", f, F) + np.einsum("tcwx,tcwx->x", b, B),
    )
    return tuple(part.reshape(*part.shape[:-1], Q, J).sum(axis=-1) for part in found)


def _carry(
    sums: Array, u: Array, decay: Array, law: Array, still: int, back: bool = False
) -> None:
    """Fill in (F, A, B) after each position, given those before the first one in ``sums[0]``.

    Or ``back`` to the first one the derivatives by them, given those after the last:
    with F and B exchanged, what a position adds is its own transpose.
    """
    (C, others, k, _), at = law.shape, np.minimum(np.arange(len(sums)), len(u) - 1)
    views = [
        lambda x: x.reshape(-1, C, k, others, x.shape[-1]).swapaxes(2, 3),
        lambda x: x.reshape(-1, C, others, k, x.shape[-1]),
    ]
    if back:
        sums, u, at, still = sums[::-1, ::-1], u[:, ::-1], at[::-1], -still % len(sums)
        views.reverse()
    for n, t in enumerate(at, 1):
        moved = np.multiply(sums[n - 1], decay[t], out=None if back else sums[n - 1])
        F = moved[0]
        A = moved[1:-1]
        B = moved[-1]
        half = 0.5 * u[t] * F
        A += half
        B += np.add.reduce(u[t] * A, axis=0)
        A += half
        if n == still:
            sums[n] = moved
        elif n < len(sums):
            np.matmul(law, views[0](moved), out=views[1](sums[n]))


def _edges(P: Array, last: Symbols) -> Array:
    """Return the vectors e_x - P_q in an orthonormal basis of those that sum to 0, (k - 1, C, k, Q)."""
    k = P.shape[1]
    own = np.eye(k, dtype=bool)
    others = P @ ~own  # 1 - P_qx without cancellation
    edges = np.where(own, others[:, last, :, None], -P[:, last, None, :])
    basis = np.tri(k - 1, k) - np.diag(np.arange(1.0, k), 1)[:-1]
    basis /= np.sqrt((basis**2).sum(axis=1, keepdims=True))
    return np.einsum("cqxj,ij->icxq", edges, basis)


def _nodes(
    log_w: Array, length: int, step: float, first: float = -3.5, last: float = 4.0
) -> tuple[Array, Array]:
    """Nodes ln s, (Q, J), and weights, (J,), of the trapezoid rule in x, ln(s Z_max) = x - e^(-x).

    At the first node s Z_max = e^(-37), where the integrand of the attention falls
    below rounding; at the last one s Z_min > e^4, where e^(-s Z) does. Where weights
    are further apart than that, nodes between them are left out: a sequence whose
    largest weight is v needs those with ln(s v T) > -37 and ln(s v) < 4.
    """
    often = np.zeros((len(log_w), 1))
    often[-1] = math.log(length - len(log_w) + 1)
    ends = log_w.max(axis=1), log_w.min(axis=1)
    most, least = (np.logaddexp.reduce(each + often, axis=0) for each in ends)
    depths = np.unique(np.ceil(most - log_w))
    reach = np.arange(-38.0 - math.log(length), last + step, step)
    at = np.unique(np.rint((depths[:, None] + reach - first) / step))
    x = first + step * at[at >= 0.0]
    x = x[x < last + step + (most - least).max()]
    left = np.exp(-x)
    return x - left - most[:, None], step * (1.0 + left)


class ChainRisk(WithStart, Risk):
    r"""The exact loss :math:`\tfrac12 E|o - P_q|^2` of softmax attention over Markov chains, trained in its scores.

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
        W, k = shape = len(chains.newest), chains.symbols
        self.length = integer("length", length, minimum=chains.window)
        check_fits("length", length, 32.0 * length * W * (k + 1) * k)
        self.step = number("step", step, maximum=0.6)
        self.sink = None if sink is None else distributions("sink", sink)
        if self.sink is not None and self.sink.shape != (k,):
            raise argument_error(
                "sink", sink, f"{k} probabilities, one for each symbol"
            )
        front = int(sink is not None)
        found = np.zeros((2, *shape) if front else shape) if scores is None else scores
        self.start = real_array("scores", found, 2 if dimensions(found) == 2 else 3)
        *places, W, k = self.start.shape
        if (W, k) != shape or not (
            1 + front <= places[0] <= self.length + front if places else not front
        ):
            allowed = f"({1 + front} to {self.length + front}, {shape[0]}, {shape[1]})"
            raise argument_error(
                "scores",
                (*places, W, k),
                "of shape " + (allowed if front else f"{shape} or {allowed}"),
            )

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and gradient."""
        found = self._moments(params)
        return float(found.loss.sum()), found.gradient

    def _moments(self, scores: Array, last: Symbols | None = None) -> _Columns:
        """Integrate columns of scores, (..., k**m, Q); column j counts the sequences that end in ``last[j]``."""
        chains = self.chains
        sink = self.sink
        step = self.step
        last = np.arange(chains.symbols) if last is None else last
        log_w = capped(scores.reshape(-1, len(last))).reshape(-1, *scores.shape[-2:])
        length = self.length + (sink is not None)
        log_s, weights = _nodes(log_w, length, step)
        carried = length * len(chains.newest) * (chains.symbols + 1) * len(last)
        parts = [
            _block(
                chains,
                which,
                log_w,
                last,
                length,
                sink,
                log_s[:, nodes],
                weights[nodes],
            )
            for which, nodes in _parts(len(chains.transitions), len(weights), carried)
        ]
        loss, pull, push, attention, handled = (
            np.sum(part, axis=0) for part in zip(*parts, strict=True)
        )
        gradient = pull - push
        terms = abs(pull) + push + 1e-300
        # a shift of a column changes no loss: what rounding leaves of its sum belongs
        # to the entries that cancel
        gradient -= terms * (gradient.sum(axis=(0, 1)) / terms.sum(axis=(0, 1)))
        if scores.ndim == 2:
            gradient = gradient.sum(axis=0)
            attention = attention.sum(axis=0)
        # of each position's step, and of ln y, a sum of numbers as large as the range
        # of the scores
        rounding = handled + (10.0 + np.ptp(log_w, axis=(0, 1))) * terms.sum(
            axis=(0, 1)
        )
        rounding *= np.finfo(float).eps
        # errors of probabilities: |e|² is 2 at most
        unseen = 2.0 * UNSEEN * float(length) ** 2
        return _Columns(
            loss, gradient, attention, rule_error(step) * loss + rounding + unseen
        )

    @property
    def column_gradients(self) -> ColumnGradients | None:
        """Gradients of single columns: each last symbol has a loss of its own. None for scores by position."""
        if self.start.ndim == 3:
            return None
        return lambda columns, which: self._moments(columns, which).gradient

    def gradients(self, states: Array) -> Array:
        """Gradients at some states, (n, ...): their columns are integrated together."""
        columns = np.concatenate(states, axis=-1)
        last = np.tile(np.arange(self.chains.symbols), len(states))
        found = self._moments(columns, last).gradient
        return np.stack(np.split(found, len(states), axis=-1))

    def attention(self, params: ArrayLike) -> Array:
        """Expected attention given the last symbol, of the shape of the scores; 0 for one that ends no sequence."""
        found = self._moments(self._checked(params))
        often = self.chains.last(self.length).sum(axis=0)
        return np.divide(
            found.attention,
            often,
            out=np.zeros_like(found.attention),
            where=often > 0.0,
        )

    def error(self, params: ArrayLike) -> float:
        """Estimate of the error of the loss, from above: of the quadrature, and of rounding to first order."""
        return float(self._moments(self._checked(params)).error.sum())

    def loss_error(self, params: ArrayLike) -> float:
        """Return `error`."""
        return self.error(params)

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Expected attention on the windows given the last symbol, of the shape of the scores."""
        return {"attention": self.attention(params)}

    def sampled(self, batch: int, seed: int) -> Sampled:
        """Return the same loss, of sequences that are drawn at each step."""
        size = 8.0 * (self.length + len(self.chains.newest))
        return Sampled(self.start, self._drawn, batch, seed, size, self._seen)

    def _drawn(self, params: Array, rng: np.random.Generator, B: int) -> Pass:
        """Losses of sequences, by the softmax of scores as they come: no formula is shared with the integral."""
        chain, tokens, at, attention = self._attend(params, rng, B)
        values = np.vstack(
            [np.eye(self.chains.symbols), *([] if self.sink is None else [self.sink])]
        )
        rows = np.arange(B)[:, None]
        share = np.bincount(
            (rows * len(values) + tokens).ravel(), attention.ravel(), B * len(values)
        )
        output = share.reshape(B, -1) @ values
        error = output - self.chains.transitions[chain, tokens[:, -1]]
        # d(½|o - P|²)/d(score of t) = a_t (o - P)·(v_t - o)
        along = (error @ values.T)[rows, tokens] - (error * output).sum(axis=1)[:, None]
        return 0.5 * (error**2).sum(axis=1), at, attention * along

    def _seen(
        self, params: Array, rng: np.random.Generator, B: int
    ) -> dict[str, Array]:
        """Mean attention of sequences on the windows given the last symbol."""
        _, tokens, at, attention = self._attend(params, rng, B)
        often = np.bincount(tokens[:, -1], minlength=self.chains.symbols)
        summed = np.bincount(at.ravel(), attention.ravel(), params.size).reshape(
            params.shape
        )
        return {"attention": summed / np.maximum(often, 1)}

    def _attend(
        self, params: Array, rng: np.random.Generator, B: int
    ) -> tuple[Symbols, Symbols, Symbols, Array]:
        """Chains, (B,), and of each token its symbol, k for the sink, the number of its score and the attention."""
        k, (chain, windows) = self.chains.symbols, self.chains.draw(rng, self.length, B)
        tokens = windows % k
        if self.sink is not None:
            windows = np.column_stack([windows[:, 0], windows])
            tokens = np.insert(tokens, 0, k, axis=1)
        at = windows * k + tokens[:, -1:]
        if params.ndim == 3:
            at += np.minimum(np.arange(at.shape[1]), len(params) - 1) * params[0].size
        return chain, tokens, at, softmax(params.ravel()[at])[0]
