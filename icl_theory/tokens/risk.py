"""Softmax attention over tokens of a known law, as a Risk: the nodes in, the exact loss and training run out."""

from __future__ import annotations

import itertools
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
from icl_theory.tokens.sampled import Pass, Sampled, softmax
from icl_theory.tokens.square import (
    FARTHEST,
    UNSEEN,
    Count,
    Moments,
    capped,
    change_along,
    rule_error,
    trapezoid,
)
from icl_theory.tokens.square import moments as integrate

MOST_TOKENS = 10**15  # beyond it N - 1 and N are hardly different in float64


@dataclass(frozen=True, eq=False)
class Kind:
    r"""Tokens with a law in common: how many there are, and the nodes at which each of them is found.

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
    >>> others = icl.Kind(10, probs=[0.5, 0.5], values=[0.0, 1.0])
    >>> risk = icl.TokenRisk([others, icl.Kind(1, probs=[1.0], values=[1.0])], target=1.0)
    >>> round(risk.loss([0.0, 0.0, 0.0]), 12)
    0.113636363636
    """

    number: int
    probs: Array
    values: Array
    spread: Array = 0.0  # type: ignore[assignment]
    each: bool = False

    def __post_init__(self) -> None:
        raw = real_array("probs", self.probs, 1)
        U = len(raw)
        probs = probabilities("probs", raw, U)
        values = _shaped("values", self.values, 3, U)
        spread = _shaped("spread", self.spread, 2, U)
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


def _shaped(
    name: str, value: ArrayLike, ndim: int, size: int, of: str = "node"
) -> Array:
    """Return an array with one row for each node and as many axes, which have length 1 unless given."""
    array = plain_numbers(name, value, -math.inf)
    largest = float(np.abs(array).max(initial=0.0))
    if not largest <= LARGEST:
        raise argument_error(
            name,
            largest,
            f"finite, and at most {LARGEST:g} in size (the largest is shown)",
        )
    rows = array if array.ndim else np.full(size, float(array))
    if rows.ndim > ndim or len(rows) != size or not rows.size:
        rows_of = f"{size} row{'s' if size != 1 else ''}, one for each {of}"
        raise argument_error(
            name, array.shape, f"an array with {rows_of}, and up to {ndim} axes"
        )
    return rows.reshape(*rows.shape, *(1,) * (ndim - rows.ndim))


@dataclass(frozen=True, eq=False)
class TokenRisk(Risk):
    r"""The exact loss of softmax attention over independent tokens, a function of the scores of their nodes.

    .. math:: \mathcal L = \tfrac12 \sum_q p_q\, E\Bigl|\frac{\sum_i e^{\theta_{u_i q}} v_i}
        {\sum_i e^{\theta_{u_i q}}} - y_q\Bigr|^2 ,

    where token i of a kind is at node :math:`u_i` and has the value :math:`v_i`.
    `in_coordinates` makes the scores linear functions of a temperature, matrices of
    keys and queries, or positions.

    Parameters
    ----------
    kinds : Kind or sequence of Kind
        The tokens of a prompt. Nodes are numbered through, kind after kind.
    target : float or array_like, (D,) or (D, Q)
        What the average is to be, y.
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
    >>> risk = icl.in_coordinates(icl.TokenRisk(sphere, target=1.0), "linear", x[:, None])
    >>> run = icl.descend(risk, eta=20.0, steps=100)
    >>> run.states[-1].round(2)
    array([9.94])
    """

    kinds: Sequence[Kind]
    target: Array = 0.0  # type: ignore[assignment]
    queries: Array | None = None
    second: Array | None = None
    # of the nodes for each query, (Q, U, D)
    errors: Array = field(init=False, repr=False)
    spread: Array = field(init=False, repr=False)  # variances around them, (U, Q)
    # their mean squares, with the spread, (U, Q)
    own: Array = field(init=False, repr=False)
    probs: Array = field(init=False, repr=False)  # (U,)
    counts: list[Count] = field(init=False, repr=False)
    _is_spread: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        given = (self.kinds,) if isinstance(self.kinds, Kind) else self.kinds
        kinds = tuple(sequence("kinds", given, Kind, "one Kind or more"))
        if sum(kind.each for kind in kinds) > 1:
            raise argument_error(
                "each", [kind.each for kind in kinds], "true of one kind at most"
            )
        asked = None if self.queries is None else real_array("queries", self.queries, 1)
        queries = None if asked is None else probabilities("queries", asked, len(asked))
        if (
            self.second is not None
            and plain_numbers("target", self.target, -math.inf).any()
        ):
            raise argument_error(
                "second",
                "given",
                f"left out with target = {self.target}: it is of the errors",
            )
        Q = 1 if queries is None else len(queries)
        U = sum(len(kind.probs) for kind in kinds)
        check_fits("kinds", f"{U} nodes", 8.0 * 60 * U)
        ends = itertools.pairwise(
            np.cumsum([0, *(len(kind.probs) for kind in kinds)]).tolist()
        )
        errors = self._given(kinds, Q) if self.second is None else self._factors(U, Q)
        for kind in kinds:
            if kind.spread.shape[1] not in (1, Q):
                raise argument_error("spread", kind.spread.shape, f"one column, or {Q}")
        spread = np.concatenate(
            [np.broadcast_to(kind.spread, (len(kind.probs), Q)) for kind in kinds]
        )
        set_fields(
            self,
            kinds=kinds,
            queries=queries,
            errors=errors,
            spread=spread,
            _is_spread=bool(spread.any()),
            own=np.einsum("qud,qud->uq", errors, errors) + spread,
            probs=np.concatenate([kind.probs for kind in kinds]),
            counts=[
                Count(kind.number, slice(*rows), kind.each)
                for kind, rows in zip(kinds, ends, strict=True)
            ],
        )

    def _given(self, kinds: Sequence[Kind], Q: int) -> Array:
        """Errors of all nodes, (Q, U, D), from values and target."""
        sizes = {kind.values.shape[1] for kind in kinds}
        if len(sizes) > 1:
            raise argument_error(
                "values", sorted(sizes), "of one dimension in all kinds"
            )
        target = _shaped("target", self.target, 2, sizes.pop(), "coordinate")
        set_fields(self, target=target)
        for name, columns in (
            ("target", target.shape[1]),
            *(("values", kind.values.shape[2]) for kind in kinds),
        ):
            if columns not in (1, Q):
                raise argument_error(
                    name,
                    columns,
                    f"given for one query, or for {Q} (their number is shown)",
                )
        parts = [
            np.broadcast_to(kind.values - target, (*kind.values.shape[:2], Q))
            for kind in kinds
        ]
        return np.ascontiguousarray(np.concatenate(parts).transpose(2, 0, 1))

    def _factors(self, U: int, Q: int, small: float = 1e-12) -> Array:
        """Errors of all nodes, (Q, U, D), from their second moments."""
        second = plain_numbers("second", self.second, -math.inf)  # type: ignore[arg-type]
        given = second.shape
        second = (
            second
            if second.ndim == 3
            else second[:, :, None]
            if second.ndim == 2
            else second
        )
        if second.shape not in ((U, U, 1), (U, U, Q)) or not np.isfinite(second).all():
            raise argument_error(
                "second", given, f"finite and of shape ({U}, {U}) or ({U}, {U}, {Q})"
            )
        values, vectors = np.linalg.eigh(second.transpose(2, 0, 1))
        largest = np.maximum(values[:, -1:], 0.0)
        symmetric = np.allclose(
            second,
            second.transpose(1, 0, 2),
            rtol=1e-12,
            atol=1e-12 * float(largest.max()),
        )
        if not symmetric or (values < -small * largest).any():
            allowed = "symmetric and positive semidefinite (an eigenvalue is shown)"
            raise argument_error("second", float(values.min()), allowed)
        root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
        return np.ascontiguousarray(np.broadcast_to(root, (Q, U, U)))

    @property
    def initial(self) -> Array:
        """Zero scores, (U,), or (U, Q) for several queries."""
        shape = (
            (len(self.probs),)
            if self.queries is None
            else (len(self.probs), len(self.queries))
        )
        return np.zeros(shape)

    @property
    def asked(self) -> Array:
        """Probabilities of the queries, (Q,)."""
        return np.ones(1) if self.queries is None else self.queries

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient with respect to the scores, of their shape."""
        found = self.moments(params)
        return float(self.asked @ found.loss), (self.asked * found.gradient).reshape(
            params.shape
        )

    def floor(self) -> float:
        """Return 0, a lower bound that is not always the infimum: no scores remove the noise of a ``spread``."""
        return 0.0

    def hessian_product(self, params: Array, direction: Array) -> Array:
        """Product of the Hessian with a direction, exactly, of the shape of the scores."""
        change = change_along(
            lambda scores: self.moments(scores).gradient, params, direction
        )
        return (self.asked * change).reshape(params.shape)

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Expected attention on each kind, ``share``, (kinds, Q), and the losses of the queries, (Q,)."""
        found = self.moments(params)
        share = np.stack(
            [found.attention[count.rows].sum(axis=0) for count in self.counts]
        )
        return {"share": share, "loss_per_query": found.loss}

    def attention(self, params: ArrayLike) -> Array:
        """Expected attention on all tokens at each node, of the shape of the scores; it sums to 1."""
        scores = self._checked(params)
        return self.moments(scores).attention.reshape(scores.shape)

    def error(self, params: ArrayLike, step: float = 0.2) -> float:
        r"""Estimate of the error of the loss, from above: of the quadrature, and of rounding to first order.

        That of the quadrature, with nodes a ``step`` <= 0.6 apart in ln s, is a bound
        up to its constant, which is measured. Rounding is relative to the loss that
        errors of one sign would have. Losses below about 1e-280 of the squared errors
        leave the range of float64; the estimate includes the share of them that is
        lost. See docs/theory.md, "Tokens".
        """
        scores = self._checked(params)
        step = number("step", step, maximum=0.6)
        loss, alike = (
            float(self.asked @ self.moments(scores, step=step, errors=errors).loss)
            for errors in (self.errors, np.abs(self.errors))
        )
        nodes = trapezoid(capped(scores.reshape(self.own.shape), FARTHEST), self.counts)
        reach = float(np.abs(nodes.log_s).max())
        tokens = float(sum(count.number for count in self.counts))
        unseen = UNSEEN * tokens**2 * float(self.own.max())
        return rule_error(step) * loss + 2.0**-52 * (16.0 + reach) * alike + unseen

    def loss_error(self, params: ArrayLike) -> float:
        """Return `error`."""
        return self.error(params)

    def sampled(self, batch: int, seed: int = 0) -> Sampled:
        """Return the trainer on sampled prompts: tokens are drawn, and softmax is applied to them as they come."""
        tokens = sum(count.number for count in self.counts)
        return Sampled(
            self.initial,
            self._drawn,
            batch,
            seed,
            tokens * (6.0 + self.errors.shape[2]),
        )

    def moments(
        self, params: Array, step: float = 0.2, errors: Array | None = None
    ) -> Moments:
        """Moments of all queries, unchecked; with ``errors`` of the nodes other than the risk's."""
        E = self.errors if errors is None else errors

        def form(
            queries: NDArray[np.intp], rows: slice, z: Array, product: Array
        ) -> None:
            np.matmul(
                E[queries],
                np.matmul(E[queries][:, rows].swapaxes(1, 2), z),
                out=product,
            )

        scores = params.reshape(self.own.shape)
        spread = self.spread if self._is_spread else None
        return integrate(
            scores, self.probs[:, None], self.own, self.counts, form, step, spread
        )

    def _drawn(self, params: Array, rng: np.random.Generator, batch: int) -> Pass:
        nodes = []
        missing = []
        query = rng.choice(len(self.asked), batch, p=self.asked)[:, None]
        for size, rows, each in self.counts:
            probs = self.probs[rows]
            shape = (batch, int(size))
            nodes.append(rows.start + rng.choice(len(probs), shape, p=probs))
            kept = (
                rng.integers(1, int(size) + 1, batch) if each else np.full(batch, size)
            )
            missing.append(np.arange(int(size)) >= kept[:, None])
        node = np.concatenate(nodes, axis=1)
        noises = np.sqrt(self.spread)[node, query] * rng.normal(size=node.shape)
        place = node * len(self.asked) + query
        weight, _ = softmax(
            np.where(np.concatenate(missing, axis=1), -np.inf, params.ravel()[place])
        )
        values = self.errors[query, node]
        error = np.einsum("bn,bnd->bd", weight, values)
        noise = np.einsum("bn,bn->b", weight, noises)
        squared = np.einsum("bd,bd->b", error, error) + noise**2
        pull = (
            np.einsum("bnd,bd->bn", values, error)
            + noises * noise[:, None]
            - squared[:, None]
        )
        return 0.5 * squared, place, weight * pull
