r"""The mean square of a softmax average over independent tokens, exactly.

A prompt has n tokens, and n may be random. Each token is at node u with probability
:math:`\pi_u`. At this node it has the weight :math:`w_u = e^{\theta_u}` in the average,
with the score :math:`\theta_u`, and the error :math:`e_u`. Let
:math:`C_{uv} = E[e_u \cdot e_v]` for two different tokens, at u and v, and
:math:`D_u = E|e_u|^2` for one token. With :math:`y_u = s w_u`,
:math:`G = \sum_u \pi_u e^{-y_u}` and :math:`b_u = \pi_u y_u e^{-y_u}`, the mean square
is a one-dimensional integral,

.. math:: E\Bigl|\frac{\sum w e}{\sum w}\Bigr|^2 = \int_0^\infty \Bigl[
    \varphi''(G)\, b^\top C b + \varphi'(G) \sum_u b_u y_u D_u\Bigr]\,
    \frac{ds}{s}, \qquad \varphi(G) = E\,G^n .

Under the integral, the derivative with respect to the score :math:`\theta_u` is
:math:`y_u \partial/\partial y_u`. This derivative replaces the factors as follows,

.. math:: b_u \to b_u (1 - y_u), \qquad b_u y_u \to b_u y_u (2 - y_u), \qquad
    G \to -b_u .

`moments` integrates many queries. `icl_theory.tokens.kinds` has the same integral for
tokens of several kinds, written with sums over each kind. See docs/theory.md, "Tokens".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine.progress import counted
from icl_theory.memory import check_fits
from icl_theory.tokens.generating import (
    SMALLEST,
    GeneratingFunction,
    TokenCount,
    generating_function,
    weighted,
)
from icl_theory.tokens.quadrature import (
    FARTHEST,
    LARGEST_Y,
    LOG_LARGEST_Y,
    Nodes,
    capped,
    is_kept,
    trapezoid,
    trimmed,
)
from icl_theory.tokens.separated import (
    MOST_PAIRED,
    SMALL_VARIANCE,
    gradient_by_pairs,
    is_separated,
    variance,
)
from icl_theory.tokens.tilted import (
    Balanced,
    Orders,
    Tilted,
    balance,
    integral,
    tilted,
    write_fields,
)

# In the shapes below, U is the number of nodes of all kinds, Q the number of queries, q
# the number of queries of a block, R the number of nodes of one kind, and J the number
# of values of s in the rule.

# A temporary array has about this many numbers, to stay in the processor's cache.
BLOCK = 2**16
# Share of a block that may go to values of s that a query does not need. A larger share
# makes fewer blocks, with more superfluous work in each. The value is a rough choice.
LARGEST_UNNEEDED_SHARE = 1 / 8
# An integral over this many numbers takes seconds, and shows its progress.
LONG = 3e8
# A gradient smaller than this share of its terms has lost four digits, and counts as
# cancelled: twelve digits remain at the limit.
CANCELLED = 1e-4
# A step of `change_along` is the direction divided by this number and by the largest
# entry of the direction. The square of the step, 1e-40, is far below rounding.
IMAGINARY_STEP = 1e20
# Cutting y at `LARGEST_Y` adds at most e^(-300), about 5e-131, to G. That is far below
# rounding if G is at least `SMALL_MEAN`. If G is smaller at the last value of s, where
# G is least, the cut factors may be all of G. So they are set to zero, and G is
# computed again. Any limit from 1e-110 up would do; a larger one repeats the work more
# often.
SMALL_MEAN = 1e-60
# If ln s is below this, s itself does not overflow. (The limit is cautious: float64
# ends at ln s = 709.)
LARGEST_LOG_S = 600.0

# form(queries, rows, z, out) writes C z to out, for the matrices C of some queries. The
# array z has only the given rows, and stands for one with zeros in all other rows.
Form = Callable[[NDArray[np.intp], slice, Array, Array], object]


class Moments(NamedTuple):
    """Losses of Q queries over U nodes. All arrays are complex for complex scores."""

    loss: Array  # half of the mean square, (Q,)
    gradient: Array  # with respect to the scores of the nodes, (U, Q)
    attention: Array  # expected attention on each node, (U, Q)


def change_along(
    gradient: Callable[[Array], Array], at: Array, direction: Array
) -> Array:
    """Return the derivative of the function ``gradient`` along a direction.

    The derivative is taken at the scores ``at``. The step is imaginary, and so short
    that its square is below rounding. The derivative is the imaginary part of the
    result divided by the step, so that nothing is subtracted.
    """
    inverse_step = IMAGINARY_STEP * float(np.abs(direction).max(initial=0.0))
    if inverse_step == 0.0:
        return np.zeros_like(direction)
    return inverse_step * gradient(at + 1j * direction / inverse_step).imag


class Queries(NamedTuple):
    """A set of q queries over the same U nodes. Each array has a row for each query."""

    number: NDArray[np.intp]  # numbers of the queries among all Q, (q,)
    log_w: Array  # scores, shifted so that the largest of each query is 0, (q, U)
    turn: Array | None  # imaginary parts of complex scores, (q, U, 1)
    probs: Array  # π, with zeros at nodes that never occur, (q, U)
    D: Array  # mean squares of the errors, (q, U)
    spread: Array | None  # D_u minus the diagonal entry C_uu, (q, U)
    # For each kind, the probability of its nodes that never occur, (q, 1).
    absent: list[Array]

    def of(self, index: NDArray[np.intp]) -> Queries:
        """Return the queries at the positions ``index`` of this set."""
        return Queries(
            self.number[index],
            self.log_w[index],
            None if self.turn is None else self.turn[index],
            self.probs[index],
            self.D[index],
            None if self.spread is None else self.spread[index],
            [absent[index] for absent in self.absent],
        )


def moments(
    log_w: Array,
    probs: Array,
    D: Array,
    count: TokenCount,
    form: Form,
    step: float = 0.2,
    spread: Array | None = None,
) -> Moments:
    """Integrate losses, gradients and attention of all queries, for one kind of tokens.

    Parameters
    ----------
    log_w : ndarray, (U, Q)
        Scores θ of the nodes, -inf for a node that never occurs. They may have small
        imaginary parts, see `change_along`.
    probs : ndarray, (U, 1) or (U, Q)
        Probabilities π of the nodes, which sum to one.
    D : ndarray, (U, Q)
        Mean squares of the errors.
    count : TokenCount
        The number of tokens.
    form : callable
        ``form(queries, rows, z, out)`` writes the product ``C z`` to ``out``, (q, U,
        J), for the matrix C of each query. The argument z, (q, R, J), has only the rows
        of the nodes ``rows``, and is zero on all others.
    step : float
        Step of the rule for the integral over s, see `trapezoid`. The default is exact
        to rounding.
    spread : ndarray, (U, Q), optional
        The part of D that is not in the diagonal of C, such as label noise. If it is
        left out, the gradients of noisy tokens lose digits at scores far apart.
    """
    integrate = partial(_integrate, count, form)
    counts = [count]
    # The number of all tokens decides which values of s the rule has. A prompt has
    # tokens of this kind only.
    lengths = counts
    return over_queries(log_w, probs, D, counts, lengths, step, spread, integrate)


def over_queries(
    log_w: Array,
    probs: Array,
    D: Array,
    counts: Sequence[TokenCount],
    lengths: Sequence[TokenCount],
    step: float,
    spread: Array | None,
    integrate: Callable[[Queries, Nodes], Moments],
) -> Moments:
    """Integrate all queries, block by block.

    The arguments ``log_w`` to ``counts``, ``step`` and ``spread`` are described in
    `moments`. The function ``integrate`` returns the moments of the queries of a block,
    in arrays with a row for each query. The numbers of tokens ``lengths`` decide which
    values of s the rule has.
    """
    queries = _queries(log_w, probs, D, counts, spread)
    scores = queries.log_w.T  # (U, Q), real
    full_rule = trapezoid(scores, lengths, step)
    full_rule = trimmed(full_rule, scores, queries.probs.T, lengths)
    needed = full_rule.needed  # number of values of s for each query
    U = len(scores)
    order = np.argsort(-needed, kind="stable")
    blocks: Iterable[NDArray[np.intp]] = _blocks(needed, order, U)
    if U * float(needed.sum()) > LONG:
        # At scores that are far apart, one evaluation may take minutes. `counted` shows
        # how many of the blocks are done.
        blocks = counted([*blocks], "blocks of queries")
    moments_of_blocks = []
    for index in blocks:
        # Blocks follow ``order``, so the first query of a block needs the most values
        # of s.
        rule = full_rule.first(needed[index[0]])
        _check_memory(len(index), U, rule, is_complex=queries.turn is not None)
        moments_of_blocks.append(integrate(queries.of(index), rule))
    # Each field is joined from the same field of all blocks.
    joined = Moments(*map(np.concatenate, zip(*moments_of_blocks, strict=True)))
    # argsort inverts a permutation: this is the position of each query in ``order``.
    position = np.argsort(order)
    return Moments(
        loss=joined.loss[position],
        gradient=joined.gradient[position].T,
        attention=joined.attention[position].T,
    )


def _queries(
    log_w: Array,
    probs: Array,
    D: Array,
    counts: Sequence[TokenCount],
    spread: Array | None,
) -> Queries:
    """Return all queries, with scores split into real and imaginary parts.

    The arguments are described in `moments`; ``counts`` has an entry for each kind.
    """
    turn = log_w.imag.T[:, :, None] if np.iscomplexobj(log_w) else None
    occurs = np.isfinite(log_w.real)
    # For each kind, the total probability of its nodes that never occur.
    absent = []
    for count in counts:
        missing = (probs[count.rows] * ~occurs[count.rows]).sum(axis=0)
        absent.append(missing[:, None])
    return Queries(
        number=np.arange(log_w.shape[1]),
        log_w=capped(log_w.real, FARTHEST).T,
        turn=turn,
        probs=(probs * occurs).T,
        D=D.T,
        spread=None if spread is None else spread.T,
        absent=absent,
    )


def _check_memory(q: int, U: int, rule: Nodes, *, is_complex: bool) -> None:
    """Refuse a block of q queries whose work arrays do not fit in memory."""
    J = len(rule.log_s)
    # `_Workspace` has seven arrays. A complex workspace takes the space of 14 real
    # arrays, and is computed from two more real arrays, y and e^(-y) for the real parts
    # of the scores.
    arrays = 16 if is_complex else 7
    check_fits(
        "params",
        f"scores that need {J:,} nodes for {U:,} tokens",
        8.0 * (q * U * J * arrays),
    )


def _blocks(
    needed: NDArray[np.intp], order: NDArray[np.intp], U: int
) -> Iterator[NDArray[np.intp]]:
    """Split the queries into blocks that are integrated together.

    The array ``needed`` has the number of values of s that each query needs. In
    ``order``, queries are sorted by falling numbers. All queries of a block use the
    values of s of its first query. A block fits the processor's cache, and at most
    ``LARGEST_UNNEEDED_SHARE`` of the cache goes to values of s that a query does not
    need.
    """
    # An array has U entries for a query at each value of s.
    needed_entries: list[int] = (U * needed[order]).tolist()
    start = 0
    unneeded = 0
    for i, entries in enumerate(needed_entries):
        entries_of_first = needed_entries[start]
        unneeded += entries_of_first - entries
        block_size = (i + 1 - start) * entries_of_first
        is_full = block_size > BLOCK or unneeded > LARGEST_UNNEEDED_SHARE * BLOCK
        if i > start and is_full:
            yield order[start:i]
            start = i
            unneeded = 0
    yield order[start:]


class _Workspace(NamedTuple):
    """Arrays of a block, (q, U, J). One allocation for all of them saves time."""

    y: Array  # s w
    decay: Array  # e^(-y)
    b: Array  # π y e^(-y)
    b_y: Array  # b y
    slope_of_b: Array  # y ∂b/∂y
    slope_of_b_y: Array  # y ∂(b y)/∂y
    field: Array  # C b


def _workspace(shape: tuple[int, ...], dtype: type = float) -> _Workspace:
    """Allocate the arrays of a block, without values."""
    return _Workspace(*np.empty((7, *shape), dtype=dtype))


def _integrate(count: TokenCount, form: Form, queries: Queries, rule: Nodes) -> Moments:
    """Integrate some queries. The arrays of the result have a row for each query."""
    work, G = _decays(queries, count, rule)
    np.multiply(work.decay, work.y, out=work.b)
    np.multiply(work.b, queries.probs[:, :, None], out=work.b)
    counts = [count]
    # `tilted` divides b by the G of its kind only if there are several kinds. There is
    # one kind, so `tokens.b` is `work.b` itself.
    tokens = tilted(work.y, work.b, counts, [G], rule.weights)
    np.multiply(tokens.b, tokens.y, out=work.b_y)
    form_of_queries = partial(form, queries.number)
    # Fill `work.field` with C b. No field of other kinds is written, because there are
    # none.
    write_fields(tokens, counts, form_of_queries, work.field, other_kinds=None)

    (orders,) = tokens.orders  # derivatives of φ times the weights
    # The integrand is the formula at the head of the module. The square of an average
    # is a product of two sums over tokens: ``pairs`` is for two different tokens, and
    # ``twice`` for one token that is in both sums. b·C b is a square, which rounding
    # must not make negative. (Of complex numbers, `np.maximum` compares the real parts
    # first.)
    pairs = np.maximum(np.einsum("quj,quj->qj", work.b, work.field), 0.0)
    twice = weighted(queries.D, work.b_y)
    integrand = orders.second * pairs + orders.first * twice
    derivative_in_G = orders.third * pairs + orders.second * twice
    # The gradient of twice the loss. The scale of a query is the sum of the sizes of
    # all terms of this gradient.
    gradient, scale = _gradient(work, queries.D, orders, derivative_in_G)
    result = Moments(
        loss=0.5 * np.einsum("qj->q", integrand),
        gradient=0.5 * gradient,
        # The expected attention on node u is the integral of φ'(G) b_u.
        attention=integral(orders.first, tokens.b),
    )
    # The gradient is compared with its terms and also with the loss, because a term may
    # itself be an integral in which large numbers cancel.
    size = np.abs(gradient.real).sum(axis=1)
    is_cancelled = size < CANCELLED * (scale + result.loss.real)
    # A sum over all pairs of nodes takes too long if there are many nodes.
    if is_cancelled.any() and tokens.b.shape[1] <= MOST_PAIRED:
        _mend_cancelled(result, is_cancelled, queries, tokens, work.b_y, count, form)
    return result


def _decays(
    queries: Queries, count: TokenCount, rule: Nodes
) -> tuple[_Workspace, GeneratingFunction]:
    """Compute y, e^(-y) and G at all values of s, and allocate the other arrays."""
    log_w = queries.log_w
    log_s = rule.log_s
    work = _workspace((*log_w.shape, len(log_s)))
    y = work.y
    decay = work.decay
    minus_y = work.b  # the memory of b, which is computed later
    if log_s[-1] < LARGEST_LOG_S:
        # s does not overflow. So exp() is needed only for the scores and for ln s, and
        # not for each product s w.
        np.multiply(np.exp(log_w)[:, :, None], np.exp(log_s), out=y)
        np.minimum(y, LARGEST_Y, out=y)
    else:
        np.add(log_w[:, :, None], log_s, out=y)
        np.minimum(y, LOG_LARGEST_Y, out=y)
        np.exp(y, out=y)
    np.negative(y, out=minus_y)
    np.exp(minus_y, out=decay)
    (absent,) = queries.absent
    rows = count.rows
    G = generating_function(queries.probs, decay, minus_y, rows, absent)
    G_at_largest_s = G.mean[:, -1]
    if G_at_largest_s.min() < SMALL_MEAN:
        # The factors e^(-y) whose y was cut become zero. If G is above the limit, these
        # factors do not change G in float64, and this pass over the arrays is saved.
        decay *= is_kept(y)
        # `generating_function` has overwritten a part of ``minus_y``.
        np.negative(y, out=minus_y)
        G = generating_function(queries.probs, decay, minus_y, rows, absent)
    if queries.turn is None:
        return work, G
    return _complex_decays(queries, queries.turn, work, G)


def _complex_decays(
    queries: Queries, turn: Array, real: _Workspace, real_G: GeneratingFunction
) -> tuple[_Workspace, GeneratingFunction]:
    """Return y, e^(-y) and G to first order in the imaginary parts of the scores.

    The imaginary parts are the ``turn``: y becomes y (1 + i turn), and e^(-y) becomes
    e^(-y) (1 - i turn y). The factors for the real parts of the scores are ``real`` and
    ``real_G``.
    """
    work = _workspace(real.y.shape, complex)
    work.y.real = real.y
    work.decay.real = real.decay
    np.multiply(turn, real.y, out=work.y.imag)
    np.multiply(-real.decay, work.y.imag, out=work.decay.imag)
    mean, log = real_G
    change: Any = 1j * weighted(queries.probs, work.decay.imag)
    log_change = change / np.maximum(mean, SMALLEST)
    return work, GeneratingFunction(mean + change, log + log_change)


def _gradient(
    work: _Workspace, D: Array, orders: Orders, derivative_in_G: Array
) -> Balanced:
    """Return the gradient of twice the loss, (q, U).

    The array ``derivative_in_G``, (q, J), is the derivative of the integrand with
    respect to G at constant b. Some arrays of the workspace are overwritten.
    """
    slope_of_b = np.subtract(work.b, work.b_y, out=work.slope_of_b)  # b (1 - y)
    slope_of_b_y = np.subtract(2.0, work.y, out=work.slope_of_b_y)
    slope_of_b_y *= work.b_y  # b y (2 - y)
    half_slope_of_pairs = np.multiply(slope_of_b, work.field, out=work.decay)
    # The factor 2 is there because b occurs twice in b·C b.
    through_b = 2.0 * integral(orders.second, half_slope_of_pairs)
    through_G = -integral(derivative_in_G, work.b)
    through_b_y = D * integral(orders.first, slope_of_b_y)
    return balance(through_b, through_G, through_b_y)


def _mend_cancelled(
    result: Moments,
    is_cancelled: NDArray[np.bool_],
    queries: Queries,
    tokens: Tilted,
    b_y: Array,
    count: TokenCount,
    form: Form,
) -> None:
    """Replace gradients in ``result`` that lost digits by sums over pairs.

    A gradient is replaced only if the tests of `icl_theory.tokens.separated` say that
    the sum over pairs is better. The array ``b_y``, (q, U, J), is b y. With complex
    scores, the imaginary parts of all arrays are derivatives along a direction (see
    `change_along`); the tests need the real parts only.
    """
    counts = [count]
    loss = result.loss.real
    (orders,) = tokens.orders  # of the only kind
    # E Σ a_i² over the tokens i at each node.
    squares = integral(orders.first.real, b_y.real)
    # Pairs help only if nearly all attention of a prompt is on tokens with one error,
    # so that the errors hardly vary under the attention. This test is quick, and
    # excludes most queries late in a run.
    variance_of_errors = variance(
        loss, result.attention.real, queries.D, queries.spread, squares
    )
    is_cancelled = is_cancelled & (variance_of_errors < SMALL_VARIANCE * loss)
    for q in np.flatnonzero(is_cancelled):
        single = slice(q, q + 1)
        form_of_query = partial(form, queries.number[single])
        D = queries.D[q]
        attention = result.attention[q].real
        if is_separated(queries.log_w[q], attention, D, counts, form_of_query):
            result.gradient[q] = gradient_by_pairs(
                tokens.of(single), D, counts, form_of_query
            )
