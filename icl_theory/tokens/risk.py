"""Softmax attention over tokens of a known law, as a Risk.

Describe the tokens of a prompt by one `Kind` or several: how many there are, and at
which nodes. `TokenRisk` then has the exact loss as a function of the scores of the
nodes, its gradient, and a trainer on sampled prompts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icl_theory._validate import (
    LARGEST,
    Array,
    argument_error,
    flag,
    integer,
    number,
    plain_numbers,
    probabilities,
    real_array,
    sequence,
    set_fields,
)
from icl_theory.engine.risk import Risk
from icl_theory.memory import check_fits
from icl_theory.tokens.generating import TokenCount
from icl_theory.tokens.quadrature import (
    FARTHEST,
    UNSEEN,
    capped,
    rule_error,
    trapezoid,
)
from icl_theory.tokens.sampled import Pass, Sampled, softmax
from icl_theory.tokens.square import Moments, change_along
from icl_theory.tokens.square import moments as integrate

MOST_TOKENS = 10**15  # beyond it, N - 1 and N are hardly different in float64
NEGLIGIBLE = 1e-12  # share of the largest eigenvalue that counts as zero


@dataclass(frozen=True, eq=False)
class Kind:
    r"""Tokens with a law in common: how many there are, and their nodes.

    Each of the N tokens is at node u with probability :math:`\pi_u`, independently of
    the others.

    Parameters
    ----------
    number : int
        Number of tokens N.
    probs : array_like, (U,)
        Probabilities of the nodes; they sum to 1.
    values : array_like, (U,), (U, D) or (U, D, Q)
        Mean values of the nodes, in D coordinates; the last axis is for values that
        depend on the query. Where the values are linear in a latent task with second
        moment I, as for :math:`y = \beta^\top x`, the coordinates are those of the
        task.
    spread : float or array_like, (U,) or (U, Q)
        Variance of the value of a token around that of its node, summed over the
        coordinates: label noise, or what a node averages over.
    each : bool
        Average over prompts with 1, 2, ... N tokens of this kind, as training on all
        positions does.

    Raises
    ------
    ValueError
        An argument is out of range; the message names it.

    Examples
    --------
    A query that attends to itself is a kind of one token at one node:

    >>> import icl_theory as icl
    >>> context = icl.Kind(10, probs=[0.5, 0.5], values=[0.0, 1.0])
    >>> itself = icl.Kind(1, probs=[1.0], values=[1.0])
    >>> risk = icl.TokenRisk([context, itself], target=1.0)
    >>> round(risk.loss([0.0, 0.0, 0.0]), 12)
    0.113636363636
    """

    number: int
    probs: Array
    values: Array
    spread: Array = 0.0  # type: ignore[assignment]
    each: bool = False

    def __post_init__(self) -> None:
        weights = real_array("probs", self.probs, 1)
        U = len(weights)
        probs = probabilities("probs", weights, U)
        values = _rows("values", self.values, U, "node", axes=3)
        spread = _rows("spread", self.spread, U, "node", axes=2)
        if (spread < 0.0).any():
            raise argument_error(
                "spread", float(spread.min()), "at least 0 (the least is shown)"
            )
        set_fields(
            self,
            number=integer("number", self.number, minimum=1, maximum=MOST_TOKENS),
            probs=probs,
            values=values,
            spread=spread,
            each=flag("each", self.each),
        )


def _rows(name: str, value: ArrayLike, size: int, row: str, axes: int) -> Array:
    """Return an array of ``size`` rows, one for each ``row``, with a number of axes.

    Axes that are missing have length 1, and a number stands for rows that are equal.
    """
    array = plain_numbers(name, value, -math.inf)
    largest = float(np.abs(array).max(initial=0.0))
    if not largest <= LARGEST:
        raise argument_error(
            name,
            largest,
            f"finite, and at most {LARGEST:g} in size (the largest is shown)",
        )
    if array.ndim == 0:
        array = np.full(size, float(array))
    if array.ndim > axes or len(array) != size or array.size == 0:
        rows = "1 row" if size == 1 else f"{size} rows"
        raise argument_error(
            name,
            array.shape,
            f"an array with {rows}, one for each {row}, and up to {axes} axes",
        )
    missing = axes - array.ndim
    return array.reshape(*array.shape, *(1,) * missing)


@dataclass(frozen=True, eq=False)
class TokenRisk(Risk):
    r"""The exact loss of softmax attention over independent tokens.

    .. math:: \mathcal L = \tfrac12 \sum_q p_q\, E\Bigl|
        \frac{\sum_i e^{\theta_{u_i q}} v_i}{\sum_i e^{\theta_{u_i q}}}
        - y_q\Bigr|^2 ,

    where token i of a kind is at node :math:`u_i` and has the value :math:`v_i`. The
    parameters are the scores :math:`\theta`. `in_coordinates` makes them linear
    functions of a temperature, matrices of keys and queries, or positions.

    Parameters
    ----------
    kinds : Kind or sequence of Kind
        The tokens of a prompt. Nodes are numbered through, kind after kind.
    target : float or array_like, (D,) or (D, Q)
        The target y of the average.
    queries : array_like, (Q,), optional
        Probabilities of several queries, each with scores of its own.
    second : array_like, (U, U) or (U, U, Q), optional
        Instead of values and target: second moments :math:`E[e_u \cdot e_v]` of the
        errors :math:`e = v - y` of two tokens, averaged over the tasks.

    Raises
    ------
    ValueError
        An argument is out of range, or two contradict each other; the message names it.

    References
    ----------
    docs/theory.md, "Tokens".

    Examples
    --------
    Linear tasks on the sphere in three dimensions, where the coordinate along the query
    is uniform:

    >>> import numpy as np, icl_theory as icl
    >>> x, weight = np.polynomial.legendre.leggauss(40)
    >>> sphere = icl.Kind(100, probs=weight / 2, values=x, spread=1 - x**2)
    >>> over_nodes = icl.TokenRisk(sphere, target=1.0)
    >>> risk = icl.in_coordinates(over_nodes, "linear", x[:, None])
    >>> run = icl.descend(risk, eta=20.0, steps=100)
    >>> run.states[-1].round(2)
    array([9.94])
    """

    kinds: Sequence[Kind]
    target: Array = 0.0  # type: ignore[assignment]
    queries: Array | None = None
    second: Array | None = None
    errors: Array = field(init=False, repr=False)  # e = v - y, (Q, U, D)
    spread: Array = field(init=False, repr=False)  # variances around e, (U, Q)
    own: Array = field(init=False, repr=False)  # |e|² and the spread, (U, Q)
    probs: Array = field(init=False, repr=False)  # (U,)
    counts: list[TokenCount] = field(init=False, repr=False)
    _is_spread: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        kinds = self._checked_kinds()
        queries = self._checked_queries()
        self._check_second()
        Q = 1 if queries is None else len(queries)
        U = sum(len(kind.probs) for kind in kinds)
        check_fits("kinds", f"{U} nodes", 8.0 * 60 * U)
        if self.second is None:
            errors = self._errors_of_values(kinds, Q)
        else:
            errors = self._errors_of_second_moments(U, Q)
        spread = _joined_spread(kinds, Q)
        set_fields(
            self,
            kinds=kinds,
            queries=queries,
            errors=errors,
            spread=spread,
            _is_spread=bool(spread.any()),
            own=np.einsum("qud,qud->uq", errors, errors) + spread,
            probs=np.concatenate([kind.probs for kind in kinds]),
            counts=_numbered(kinds),
        )

    def _checked_kinds(self) -> tuple[Kind, ...]:
        kinds = (self.kinds,) if isinstance(self.kinds, Kind) else self.kinds
        kinds = tuple(sequence("kinds", kinds, Kind, "one Kind or more"))
        of_each_length = [kind.each for kind in kinds]
        if sum(of_each_length) > 1:
            raise argument_error("each", of_each_length, "true of one kind at most")
        return kinds

    def _checked_queries(self) -> Array | None:
        if self.queries is None:
            return None
        queries = real_array("queries", self.queries, 1)
        return probabilities("queries", queries, len(queries))

    def _check_second(self) -> None:
        if self.second is None:
            return
        if plain_numbers("target", self.target, -math.inf).any():
            raise argument_error(
                "second",
                "given",
                f"left out with target = {self.target}: it is of the errors",
            )

    def _errors_of_values(self, kinds: Sequence[Kind], Q: int) -> Array:
        """Errors e = v - y of all nodes, (Q, U, D), from values and target."""
        dimensions = {kind.values.shape[1] for kind in kinds}
        if len(dimensions) > 1:
            raise argument_error(
                "values", sorted(dimensions), "of one dimension in all kinds"
            )
        target = _rows("target", self.target, dimensions.pop(), "coordinate", axes=2)
        set_fields(self, target=target)
        _check_columns("target", target.shape[1], Q)
        for kind in kinds:
            _check_columns("values", kind.values.shape[2], Q)
        errors = []
        for kind in kinds:
            U, D, _ = kind.values.shape
            errors.append(np.broadcast_to(kind.values - target, (U, D, Q)))
        return np.ascontiguousarray(np.concatenate(errors).transpose(2, 0, 1))

    def _errors_of_second_moments(self, U: int, Q: int) -> Array:
        """Errors e of all nodes, (Q, U, D), with given second moments e e^T."""
        second = plain_numbers("second", self.second, -math.inf)  # type: ignore[arg-type]
        shape = second.shape
        if second.ndim == 2:
            second = second[:, :, None]
        if second.shape not in ((U, U, 1), (U, U, Q)) or not np.isfinite(second).all():
            raise argument_error(
                "second",
                shape,
                f"finite and of shape ({U}, {U}) or ({U}, {U}, {Q})",
            )
        eigenvalues, vectors = np.linalg.eigh(second.transpose(2, 0, 1))
        largest = np.maximum(eigenvalues[:, -1:], 0.0)
        is_symmetric = np.allclose(
            second,
            second.transpose(1, 0, 2),
            rtol=1e-12,
            atol=1e-12 * float(largest.max()),
        )
        if not is_symmetric or (eigenvalues < -NEGLIGIBLE * largest).any():
            raise argument_error(
                "second",
                float(eigenvalues.min()),
                "symmetric and positive semidefinite (an eigenvalue is shown)",
            )
        root = vectors * np.sqrt(np.maximum(eigenvalues, 0.0))[:, None, :]
        return np.ascontiguousarray(np.broadcast_to(root, (Q, U, U)))

    @property
    def initial(self) -> Array:
        """Zero scores, (U,), or (U, Q) for several queries."""
        if self.queries is None:
            return np.zeros(len(self.probs))
        return np.zeros((len(self.probs), len(self.queries)))

    @property
    def asked(self) -> Array:
        """Probabilities of the queries, (Q,)."""
        return np.ones(1) if self.queries is None else self.queries

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient with respect to the scores, of their shape."""
        moments = self.moments(params)
        loss = float(self.asked @ moments.loss)
        return loss, (self.asked * moments.gradient).reshape(params.shape)

    def floor(self) -> float:
        """Return 0, a lower bound.

        It is not always the infimum: no scores remove the noise of a ``spread``.
        """
        return 0.0

    def hessian_product(self, params: Array, direction: Array) -> Array:
        """Product of the Hessian with a direction, exactly, of the scores' shape."""
        change = change_along(
            lambda scores: self.moments(scores).gradient, params, direction
        )
        return (self.asked * change).reshape(params.shape)

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Expected attention and losses of the queries.

        ``share`` is the attention on all tokens of each kind, (kinds, Q), and
        ``loss_per_query`` has the shape (Q,).
        """
        moments = self.moments(params)
        share = [moments.attention[count.rows].sum(axis=0) for count in self.counts]
        return {"share": np.stack(share), "loss_per_query": moments.loss}

    def attention(self, params: ArrayLike) -> Array:
        """Expected attention on all tokens at each node, of the shape of the scores.

        It sums to 1.
        """
        scores = self._checked(params)
        return self.moments(scores).attention.reshape(scores.shape)

    def error(self, params: ArrayLike, step: float = 0.2) -> float:
        r"""Estimate the error of the loss from above.

        The error has a part of the quadrature, with nodes a ``step`` <= 0.6 apart in
        ln s, which is a bound up to its constant, and the constant is measured. The
        part of rounding is of first order, relative to the loss that errors of one
        sign would have. Losses below about 1e-280 of the squared errors leave the range
        of float64; the estimate includes the share of them that is lost. See
        docs/theory.md, "Tokens".
        """
        scores = self._checked(params)
        step = number("step", step, maximum=0.6)
        loss = float(self.asked @ self.moments(scores, step).loss)
        errors_of_one_sign = np.abs(self.errors)
        largest_loss = float(
            self.asked @ self.moments(scores, step, errors_of_one_sign).loss
        )
        nodes = trapezoid(capped(scores.reshape(self.own.shape), FARTHEST), self.counts)
        reach = float(np.abs(nodes.log_s).max())
        rounding = 2.0**-52 * (16.0 + reach) * largest_loss
        tokens = float(sum(count.number for count in self.counts))
        unseen = UNSEEN * tokens**2 * float(self.own.max())
        return rule_error(step) * loss + rounding + unseen

    def loss_error(self, params: ArrayLike) -> float:
        """Return `error`."""
        return self.error(params)

    def sampled(self, batch: int, seed: int = 0) -> Sampled:
        """Return the trainer on sampled prompts.

        Tokens are drawn, and softmax is applied to their scores.
        """
        tokens = sum(count.number for count in self.counts)
        numbers = tokens * (6.0 + self.errors.shape[2])
        return Sampled(self.initial, self._draw, batch, seed, numbers)

    def moments(
        self, params: Array, step: float = 0.2, errors: Array | None = None
    ) -> Moments:
        """Moments of all queries, with arguments that are not checked.

        The ``errors`` of the nodes are those of the risk by default.
        """
        e = self.errors if errors is None else errors

        def form(queries: NDArray[np.intp], rows: slice, z: Array, out: Array) -> None:
            # C z = e (eᵀ z)
            mean_error = np.matmul(e[queries][:, rows].swapaxes(1, 2), z)
            np.matmul(e[queries], mean_error, out=out)

        return integrate(
            params.reshape(self.own.shape),
            self.probs[:, None],
            self.own,
            self.counts,
            form,
            step,
            self.spread if self._is_spread else None,
        )

    def _draw(self, params: Array, rng: np.random.Generator, batch: int) -> Pass:
        query = rng.choice(len(self.asked), batch, p=self.asked)[:, None]
        nodes = []
        missing = []
        for count in self.counts:
            N = int(count.number)
            probs = self.probs[count.rows]
            drawn = rng.choice(len(probs), (batch, N), p=probs)
            nodes.append(count.rows.start + drawn)
            length = np.full(batch, N)
            if count.each:
                length = rng.integers(1, N + 1, batch)
            missing.append(np.arange(N) >= length[:, None])
        node = np.concatenate(nodes, axis=1)
        is_missing = np.concatenate(missing, axis=1)
        noise = np.sqrt(self.spread)[node, query] * rng.normal(size=node.shape)

        place = node * len(self.asked) + query
        scores = np.where(is_missing, -np.inf, params.ravel()[place])
        attention, _ = softmax(scores)
        errors = self.errors[query, node]
        mean_error = np.einsum("bn,bnd->bd", attention, errors)
        mean_noise = np.einsum("bn,bn->b", attention, noise)
        squared = np.einsum("bd,bd->b", mean_error, mean_error) + mean_noise**2
        # ∂(½|ē|²)/∂θ_n = a_n (e_n - ē)·ē
        along = np.einsum("bnd,bd->bn", errors, mean_error)
        along = along + noise * mean_noise[:, None]
        return 0.5 * squared, place, attention * (along - squared[:, None])


def _check_columns(name: str, columns: int, Q: int) -> None:
    if columns not in (1, Q):
        raise argument_error(
            name, columns, f"given for one query, or for {Q} (their number is shown)"
        )


def _joined_spread(kinds: Sequence[Kind], Q: int) -> Array:
    """Spread of all nodes, (U, Q)."""
    spread = []
    for kind in kinds:
        if kind.spread.shape[1] not in (1, Q):
            raise argument_error("spread", kind.spread.shape, f"one column, or {Q}")
        spread.append(np.broadcast_to(kind.spread, (len(kind.probs), Q)))
    return np.concatenate(spread)


def _numbered(kinds: Sequence[Kind]) -> list[TokenCount]:
    """Number the nodes through, kind after kind."""
    counts = []
    start = 0
    for kind in kinds:
        stop = start + len(kind.probs)
        counts.append(TokenCount(kind.number, slice(start, stop), kind.each))
        start = stop
    return counts
