"""Softmax attention over tokens of a known law, as a Risk.

The law of a token is a finite set of *nodes* with probabilities. A `Kind` has a number
of independent tokens with the same nodes, and a prompt has tokens of one kind or
several. `TokenRisk` is the exact loss of softmax attention over the tokens as a
function of the scores of the nodes, with its gradient and with a trainer on sampled
prompts.

In the shapes below, U is the number of nodes of all kinds, Q the number of queries, D
the number of coordinates of a value and L the number of lengths of a prompt. A query is
a number from 0 to Q - 1, and each query has its own scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icl_theory._validate import (
    LARGEST,
    SYMMETRY,
    Array,
    argument_error,
    dimensions,
    distributions,
    integer,
    number,
    plain_numbers,
    probabilities,
    real_array,
    sequence,
    set_fields,
)
from icl_theory.engine.risk import Risk
from icl_theory.engine.sampling import prompts_to_draw
from icl_theory.memory import check_fits
from icl_theory.tokens.generating import TokenCount
from icl_theory.tokens.kinds import Together
from icl_theory.tokens.kinds import moments as of_kinds
from icl_theory.tokens.lengths import MOST_TOKENS, Lengths
from icl_theory.tokens.node_counts import CountedTokens
from icl_theory.tokens.quadrature import (
    FARTHEST,
    LARGEST_STEP,
    UNSEEN,
    capped,
    rule_error,
    trapezoid,
)
from icl_theory.tokens.sampled import (
    Indices,
    Pass,
    Sampled,
    choose,
    first_places,
    softmax,
)
from icl_theory.tokens.square import Moments, change_along
from icl_theory.tokens.square import moments as of_one_kind

# A negative eigenvalue of the second moments is treated as zero if its size is at most
# this share of the largest eigenvalue: rounding may make an eigenvalue negative.
NEGLIGIBLE = 1e-12
# How many numbers of 8 bytes a drawn token takes, in addition to one for each
# coordinate of its error.
NUMBERS_OF_TOKEN = 6.0
# Relative rounding error of an integrand, in multiples of 2^-52, without the part that
# comes from ln s. Sixteen is more than enough: only a few operations lead from ln s to
# the integrand.
ROUNDINGS = 16.0


@dataclass(frozen=True, eq=False)
class Kind:
    r"""N independent tokens with the same law.

    Each token is at node u with probability :math:`\pi_u`. Its value has a mean and a
    variance that depend on the node.

    Parameters
    ----------
    number : int, Lengths or array_like of int, (L,)
        Number of tokens N. A `Lengths` is a law of this number, which is then
        independent of the numbers of all other kinds. An array is for kinds that grow
        together: a prompt has one of L lengths, and the array has the number of tokens
        of this kind at each length.
    probs : array_like, (U,)
        Positive probabilities of the nodes, which sum to 1.
    values : array_like, (U,), (U, D) or (U, D, Q)
        Mean value of a token at each node, in D coordinates. The last axis is for
        values that depend on the query. Values may be linear in the coordinates of a
        random task with second moments I, as :math:`y = \beta^\top x` is linear in β.
        In this case the values may be the coefficients of these coordinates, x in the
        example: products of values are then means over the tasks.
    spread : float or array_like, (U,) or (U, Q)
        Variance of the value of a token around the mean value of its node, summed over
        the coordinates. It comes from label noise, or from differences between the
        tokens that share a node.

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

    number: int | Lengths | NDArray[np.int64]
    probs: Array
    values: Array
    spread: Array = 0.0  # type: ignore[assignment]

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
            number=_number(self.number),
            probs=probs,
            values=values,
            spread=spread,
        )

    @property
    def most(self) -> float:
        """The largest number of tokens, see `Lengths`."""
        if isinstance(self.number, Lengths):
            return self.number.most
        return float(np.max(self.number))


def _number(value: Any) -> int | Lengths | NDArray[np.int64]:
    """Return the checked number of tokens of a kind: an int, a law, or an array."""
    if isinstance(value, Lengths):
        return value
    if dimensions(value) == 0:
        return integer("number", value, minimum=1, maximum=MOST_TOKENS)
    numbers = real_array("number", value, 1, MOST_TOKENS)
    if not numbers.size or (numbers < 0.0).any() or (numbers % 1.0).any():
        raise argument_error(
            "number",
            value,
            "an integer, Lengths, or integers >= 0, one for each length",
        )
    return numbers.astype(np.int64)


def _rows(name: str, value: ArrayLike, size: int, row: str, axes: int) -> Array:
    """Check an array of ``size`` rows, and return it with ``axes`` axes.

    Axes that are missing get the length 1. A single number stands for equal rows. In
    error messages, ``name`` is the argument, and ``row`` the thing that each row is for
    (a node or a coordinate).
    """
    array = plain_numbers(name, value, -math.inf)
    largest = float(np.abs(array).max(initial=0.0))
    # A number above `LARGEST` is refused, because its square may leave the range of
    # float64. Written with "not", the test also refuses NaN.
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

    where q is a query with the probability :math:`p_q` and the target :math:`y_q`, and
    token i is at node :math:`u_i` and has the value :math:`v_i`. The parameters are the
    scores :math:`\theta`. With `in_coordinates` the scores are linear functions of a
    temperature, of matrices of keys and queries, or of positions.

    Parameters
    ----------
    kinds : Kind or sequence of Kind
        The tokens of a prompt. The nodes of all kinds are numbered in one list, kind
        after kind.
    target : float or array_like, (D,) or (D, Q)
        The target y, which the average of the values should equal.
    queries : array_like, (Q,), optional
        Probabilities of several queries, each with its own scores.
    second : array_like, (U, U) or (U, U, Q), optional
        Second moments :math:`E[e_u \cdot e_v]` of the errors :math:`e = v - y` of
        tokens at two nodes, averaged over the tasks. They replace the values and the
        target.
    lengths : array_like, (L,), optional
        Probabilities of the L lengths of a prompt, if kinds grow together. By default
        all lengths are equally probable.

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
    lengths: Array | None = None
    # Mean error of a token at each node, e = v - y, (Q, U, D).
    errors: Array = field(init=False, repr=False)
    spread: Array = field(init=False, repr=False)  # variance of a token's error, (U, Q)
    mean_square: Array = field(init=False, repr=False)  # |e|² + spread, (U, Q)
    # Probability of each node among the nodes of its kind, (U,).
    probs: Array = field(init=False, repr=False)
    # For each kind, the number of its tokens and the rows of its nodes.
    counts: list[TokenCount] = field(init=False, repr=False)
    _has_spread: bool = field(init=False, repr=False)  # whether any spread is not zero
    # The numbers of tokens at each length, if kinds grow together.
    _together: Together | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        kinds = self._checked_kinds()
        queries = self._checked_queries()
        self._check_second()
        Q = 1 if queries is None else len(queries)
        U = sum(len(kind.probs) for kind in kinds)
        # An upper estimate: 60 numbers of 8 bytes for each node.
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
            _has_spread=bool(spread.any()),
            mean_square=np.einsum("qud,qud->uq", errors, errors) + spread,
            probs=np.concatenate([kind.probs for kind in kinds]),
            counts=_numbered(kinds),
            _together=_grown_together(kinds, self.lengths),
        )
        # Softmax needs a token. (If kinds grow together, `_grown_together` has checked
        # this for each length.)
        if self._together is None and not any(count.least for count in self.counts):
            raise argument_error(
                "number",
                [kind.number for kind in kinds],
                "such that every prompt has a token: give least=1 to one of the laws",
            )

    def _checked_kinds(self) -> tuple[Kind, ...]:
        """Return the kinds as a tuple, even if one kind is given by itself."""
        kinds = (self.kinds,) if isinstance(self.kinds, Kind) else self.kinds
        return tuple(sequence("kinds", kinds, Kind, "one Kind or more"))

    def _checked_queries(self) -> Array | None:
        """Return the probabilities of the queries, or None without queries."""
        if self.queries is None:
            return None
        queries = real_array("queries", self.queries, 1)
        return probabilities("queries", queries, len(queries))

    def _check_second(self) -> None:
        """Refuse second moments if a target other than 0 is given, too.

        Second moments are moments of the errors, from which the target is already
        subtracted. A target of 0 is not refused, because 0 is also the default.
        """
        if self.second is None:
            return
        if plain_numbers("target", self.target, -math.inf).any():
            raise argument_error(
                "second",
                "given",
                f"left out with target = {self.target}: these are second moments of "
                "errors, from which the target is already subtracted",
            )

    def _errors_of_values(self, kinds: Sequence[Kind], Q: int) -> Array:
        """Return the errors e = v - y of all nodes, (Q, U, D).

        The errors follow from the values and the target. The field ``target`` is
        replaced by the checked target, (D, 1) or (D, Q).
        """
        all_D = {kind.values.shape[1] for kind in kinds}
        if len(all_D) > 1:
            raise argument_error(
                "values",
                sorted(all_D),
                "of the same number of coordinates in all"
                " kinds (the numbers are shown)",
            )
        (D,) = all_D
        target = _rows("target", self.target, D, "coordinate", axes=2)
        set_fields(self, target=target)
        _check_columns("target", target.shape[1], Q)
        for kind in kinds:
            _check_columns("values", kind.values.shape[2], Q)
        errors = []
        for kind in kinds:
            U = len(kind.values)
            errors.append(np.broadcast_to(kind.values - target, (U, D, Q)))
        return np.ascontiguousarray(np.concatenate(errors).transpose(2, 0, 1))

    def _errors_of_second_moments(self, U: int, Q: int) -> Array:
        """Return errors e of all nodes, (Q, U, U), with the given second moments.

        The loss depends on the errors only through e eᵀ, so any errors with e eᵀ =
        ``second`` will do. The returned ones have a coordinate for each eigenvector of
        ``second``.
        """
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
        # In ascending order, so that the last eigenvalue is the largest.
        eigenvalues, vectors = np.linalg.eigh(second.transpose(2, 0, 1))
        largest = np.maximum(eigenvalues[:, -1:], 0.0)
        is_symmetric = np.allclose(
            second,
            second.transpose(1, 0, 2),
            rtol=SYMMETRY,
            atol=SYMMETRY * float(largest.max()),
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
    def grow_together(self) -> bool:
        """Whether a kind has a number of tokens for each of several prompt lengths."""
        return self._together is not None

    @property
    def asked(self) -> Array:
        """Probabilities of the queries, (Q,), even if none were given (Q = 1)."""
        return np.ones(1) if self.queries is None else self.queries

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient with respect to the scores, of their shape."""
        moments = self.moments(params)
        loss = float(self.asked @ moments.loss)
        return loss, (self.asked * moments.gradient).reshape(params.shape)

    def floor(self) -> float:
        """Return 0, a lower bound of the loss.

        The infimum may be larger: a ``spread`` adds noise, whatever the scores are.
        """
        return 0.0

    def hessian_product(self, params: Array, direction: Array) -> Array:
        """Product of the Hessian with a direction, exact to rounding.

        The direction and the result have the shape of the scores.
        """
        # The derivative of the gradient, by one evaluation at complex scores.
        change = change_along(
            lambda scores: self.moments(scores).gradient, params, direction
        )
        return (self.asked * change).reshape(params.shape)

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Expected attention and loss of each query.

        ``share`` is the attention on all tokens of each kind together, (kinds, Q), and
        ``loss_per_query`` is the loss, (Q,).
        """
        moments = self.moments(params)
        share = [moments.attention[count.rows].sum(axis=0) for count in self.counts]
        return {"share": np.stack(share), "loss_per_query": moments.loss}

    def attention(self, params: ArrayLike) -> Array:
        """Expected attention on all tokens at each node, of the shape of the scores.

        For each query it sums to 1 over the nodes.
        """
        scores = self._checked(params)
        return self.moments(scores).attention.reshape(scores.shape)

    def error(self, params: ArrayLike, step: float = 0.2) -> float:
        r"""Estimate the error of the loss from above.

        The estimate is a sum of three parts. The first is the error of the quadrature
        with nodes that are ``step`` <= 0.6 apart; it is a bound with a measured
        constant. The second is the error of rounding to first order, in proportion to
        the loss that would result if no errors of tokens had opposite signs. The third
        is the part of the loss that underflow may remove; it matters only for losses
        below about 1e-280 of the squared errors. See docs/theory.md, "Tokens".
        """
        scores = self._checked(params)
        step = number("step", step, maximum=LARGEST_STEP)
        loss = float(self.asked @ self.moments(scores, step).loss)
        errors_of_one_sign = np.abs(self.errors)
        # The loss without any cancellation between tokens.
        largest_loss = float(
            self.asked @ self.moments(scores, step, errors_of_one_sign).loss
        )
        # `moments` cuts the gaps between scores in the same way, so these scores give
        # the nodes of its integral.
        log_w = capped(scores.reshape(self.mean_square.shape), FARTHEST)
        # If kinds grow together, the nodes depend on the number of all tokens only.
        counts = self.counts if self._together is None else [self._together.total()]
        # Only the range of ln s is used below. The range hardly depends on the step.
        nodes = trapezoid(log_w, counts)
        tokens = float(sum(count.number for count in counts))
        # The rounding of ln s is a relative error of s. In multiples of 2^-52, it is at
        # most as large as ln s itself.
        largest_log_s = float(np.abs(nodes.log_s).max())
        rounding = 2.0**-52 * (ROUNDINGS + largest_log_s) * largest_loss
        # `UNSEEN` is the third part of the estimate for a prompt of one token with a
        # squared error of 1. This part grows with the square of the number of tokens.
        unseen = UNSEEN * tokens**2 * float(self.mean_square.max())
        return rule_error(step) * loss + rounding + unseen

    def loss_error(self, params: ArrayLike) -> float:
        """Return `error` with its default step."""
        return self.error(params)

    @property
    def tokens_of_prompt(self) -> int:
        """Number of places for tokens in a sampled prompt.

        It is the largest number of tokens. If a law has no largest number, prompts are
        longer with a probability below 1e-13, and are then cut.
        """
        return int(sum(count.places for count in self.counts))

    def draw(self, rng: np.random.Generator, size: int) -> DrawnTokens:
        """Draw ``size`` prompts token by token."""
        # `prompts_to_draw` checks both arguments.
        size = prompts_to_draw(rng, size, NUMBERS_OF_TOKEN * self.tokens_of_prompt)
        return self._draw(rng, size)

    def sampled(self, batch: int, seed: int = 0) -> Sampled[DrawnTokens]:
        """Return the trainer on sampled prompts.

        Each step draws ``batch`` prompts token by token, and applies softmax to the
        scores of the tokens.
        """
        return SampledTokens(self, batch, seed)

    def moments(
        self, params: Array, step: float = 0.2, errors: Array | None = None
    ) -> Moments:
        """Return loss, gradient and attention of all queries.

        The arguments are not checked. The scores ``params`` may be complex, see
        `hessian_product`. The integral has the given ``step``. By default the nodes
        have the errors of the risk; ``errors`` replaces them.
        """
        e = self.errors if errors is None else errors
        scores = params.reshape(self.mean_square.shape)
        probs = self.probs[:, None]
        # If the spread is zero, its terms need not be computed.
        spread = self.spread if self._has_spread else None
        if len(self.counts) > 1 or self._together is not None:
            return of_kinds(
                scores,
                probs,
                self.mean_square,
                self.counts,
                e,
                step,
                spread,
                self._together,
            )

        def form(queries: NDArray[np.intp], rows: slice, z: Array, out: Array) -> None:
            # Write C z to ``out`` for the matrices C = e eᵀ of some queries. The array
            # z has only the given rows; it is zero in all others. C z = e (eᵀ z) takes
            # fewer products than C itself.
            error_sums = np.matmul(e[queries][:, rows].swapaxes(1, 2), z)  # eᵀ z
            np.matmul(e[queries], error_sums, out=out)

        return of_one_kind(
            scores, probs, self.mean_square, self.counts[0], form, step, spread
        )

    def draw_queries(self, rng: np.random.Generator, size: int) -> Indices:
        """Draw the queries of ``size`` prompts, (size, 1)."""
        return rng.choice(len(self.asked), size, p=self.asked)[:, None]

    def draw_lengths(
        self, rng: np.random.Generator, size: int
    ) -> list[NDArray[np.int64]]:
        """Draw the numbers of tokens in ``size`` prompts, (size,), for each kind."""
        if self._together is not None:
            probs = self._together.probs
            length_index = rng.choice(len(probs), size, p=probs)
            return [*self._together.numbers[length_index].T.astype(np.int64)]
        lengths = []
        for count in self.counts:
            length = np.full(size, count.places)
            if count.law is not None:
                # A number from a law without a largest number may exceed the number of
                # places.
                length = np.minimum(count.law.draw(rng, size), length)
            lengths.append(length)
        return lengths

    def _draw(self, rng: np.random.Generator, size: int) -> DrawnTokens:
        """Draw ``size`` prompts token by token, without a check of the arguments."""
        query = self.draw_queries(rng, size)
        nodes_of_kinds = []
        missing_of_kinds = []
        lengths = self.draw_lengths(rng, size)
        for count, length in zip(self.counts, lengths, strict=True):
            N = count.places
            node_of_kind = choose(rng, self.probs[count.rows], (size, N))
            nodes_of_kinds.append(count.rows.start + node_of_kind)
            # Nodes are drawn for N tokens, however long a prompt is. The tokens beyond
            # its length are marked as missing.
            missing_of_kinds.append(np.arange(N) >= length[:, None])
        node = np.concatenate(nodes_of_kinds, axis=1)
        is_missing = np.concatenate(missing_of_kinds, axis=1)
        # Flat indices of node and query in an array of the shape (U, Q).
        place = node * len(self.asked) + query
        standard_deviations = np.sqrt(self.spread).ravel().take(place)
        noise = standard_deviations * rng.normal(size=node.shape)
        return DrawnTokens(query, node, is_missing, noise)

    @cached_property
    def _error_rows(self) -> Array:
        """Errors e with a row for each pair of node and query, (UQ, D).

        In this form, the errors of drawn tokens are looked up faster.
        """
        return self.errors.transpose(1, 0, 2).reshape(-1, self.errors.shape[2])

    def _losses_on(self, params: Array, prompts: DrawnTokens) -> Pass:
        """Return losses and derivatives on B prompts of R runs, see ``Sampled``.

        The first axis of ``params`` runs over the runs. Each run has B/R prompts.
        """
        query, node, is_missing, noise = prompts
        # Flat indices of each token's node and query: in an array of shape (U, Q), and
        # in the scores of all runs.
        place_in_run = node * len(self.asked) + query
        place = first_places(params, len(node)) + place_in_run
        scores = params.ravel().take(place)
        if is_missing.any():
            scores[is_missing] = -np.inf
        return self.losses_of_scores(scores, place, place_in_run, noise)

    def losses_of_scores(
        self, scores: Array, place: Indices, place_in_run: Indices, noise: Array
    ) -> Pass:
        """Return losses and derivatives of B prompts of N tokens, see ``Sampled``.

        Parameters
        ----------
        scores : ndarray, (B, N)
            Scores of the tokens; -inf for a missing token.
        place : ndarray of int, (B, N)
            Indices of the scores in the flat array of the parameters of all runs.
        place_in_run : ndarray of int, (B, N)
            Flat indices of node and query of each token in an array of shape (U, Q).
        noise : ndarray, (B, N)
            Value of each token minus the mean value of its node.
        """
        attention, _ = softmax(scores)
        errors = self._error_rows.take(place_in_run, axis=0)
        mean_error = np.einsum("bn,bnd->bd", attention, errors)
        mean_noise = np.einsum("bn,bn->b", attention, noise)
        squared = np.einsum("bd,bd->b", mean_error, mean_error) + mean_noise**2
        # With the attention a, the mean error ē has the derivatives
        # ∂(½|ē|²)/∂θ_n = a_n (e_n·ē - |ē|²). The noise is one more coordinate of e.
        inner_product = np.einsum("bnd,bd->bn", errors, mean_error)
        inner_product = inner_product + noise * mean_noise[:, None]
        slopes = attention * (inner_product - squared[:, None])
        return Pass(0.5 * squared, place, slopes)


class SampledTokens(Sampled["DrawnTokens"]):
    """The trainer of a `TokenRisk` on prompts that are drawn token by token.

    Parameters
    ----------
    risk : TokenRisk
        The law of the tokens.
    batch, seed : int
        Number of prompts in a step, and the seed.
    """

    def __init__(self, risk: TokenRisk, batch: int, seed: int) -> None:
        self.risk = risk
        D = risk.errors.shape[2]
        numbers = risk.tokens_of_prompt * (NUMBERS_OF_TOKEN + D)
        super().__init__(risk.initial, risk.draw, risk._losses_on, batch, seed, numbers)

    def cheaper(self) -> Sampled[Any]:
        """Return `CountedTokens` unless there are more nodes than tokens in a prompt.

        `CountedTokens` draws the number of tokens at each node, not the tokens
        themselves.
        """
        if len(self.risk.probs) > self.risk.tokens_of_prompt:
            return self
        return CountedTokens(self.risk, self.initial, self.batch, self.seed)


class DrawnTokens(NamedTuple):
    """B prompts of up to N tokens."""

    query: Indices  # number of the query, (B, 1)
    node: Indices  # number of the node of each token, (B, N)
    # Whether a token is beyond the prompt's length, (B, N).
    is_missing: NDArray[np.bool_]
    noise: Array  # value of a token minus the mean value of its node, (B, N)


def _check_columns(name: str, columns: int, Q: int) -> None:
    """Refuse a number of ``columns`` that is neither 1 nor the number Q of queries."""
    if columns not in (1, Q):
        raise argument_error(
            name, columns, f"given for one query, or for {Q} (their number is shown)"
        )


def _joined_spread(kinds: Sequence[Kind], Q: int) -> Array:
    """Return the spread of the nodes of all kinds, (U, Q)."""
    spread = []
    for kind in kinds:
        if kind.spread.shape[1] not in (1, Q):
            raise argument_error("spread", kind.spread.shape, f"one column, or {Q}")
        spread.append(np.broadcast_to(kind.spread, (len(kind.probs), Q)))
    return np.concatenate(spread)


def _numbered(kinds: Sequence[Kind]) -> list[TokenCount]:
    """Return the number of tokens of each kind, together with the rows of its nodes.

    The nodes of all kinds are numbered in one list, kind after kind.
    """
    counts = []
    start = 0
    for kind in kinds:
        stop = start + len(kind.probs)
        law = kind.number if isinstance(kind.number, Lengths) else None
        counts.append(TokenCount(kind.most, slice(start, stop), law))
        start = stop
    return counts


def _grown_together(
    kinds: Sequence[Kind], lengths: ArrayLike | None
) -> Together | None:
    """Return the numbers of tokens at each length, or None if no kind has an array.

    A kind with a single number has this number of tokens at all L lengths. The argument
    ``lengths`` has the probabilities of the lengths.
    """
    sizes = {len(kind.number) for kind in kinds if isinstance(kind.number, np.ndarray)}
    if not sizes:
        if lengths is not None:
            raise argument_error(
                "lengths", lengths, "left out: no kind has a number for each length"
            )
        return None
    if len(sizes) > 1:
        raise argument_error(
            "number",
            sorted(sizes),
            "of the same length in all kinds (the lengths are shown)",
        )
    (L,) = sizes
    numbers = _numbers_of_lengths(kinds, L)
    probs = _probs_of_lengths(lengths, L)
    # A length that never occurs must not be checked below, nor decide which prompt is
    # the shortest.
    numbers = numbers[probs > 0.0]
    probs = probs[probs > 0.0]
    totals = numbers.sum(axis=1)
    if not ((totals > 0.0) & (totals <= MOST_TOKENS)).all():
        raise argument_error(
            "number",
            numbers.astype(int).tolist(),
            f"such that every prompt has at least one token and at most {MOST_TOKENS}",
        )
    return Together(probs, numbers)


def _numbers_of_lengths(kinds: Sequence[Kind], L: int) -> Array:
    """Return the number of tokens of each kind at each length, (L, kinds)."""
    numbers = np.empty((L, len(kinds)))
    for k, kind in enumerate(kinds):
        if isinstance(kind.number, Lengths):
            raise argument_error(
                "number",
                kind.number,
                "an integer or an array if another kind has a number for each length",
            )
        numbers[:, k] = kind.number
    return numbers


def _probs_of_lengths(lengths: ArrayLike | None, L: int) -> Array:
    """Return the probabilities of the L lengths; by default all are equal."""
    if lengths is None:
        return np.full(L, 1.0 / L)
    probs = distributions("lengths", lengths)
    if probs.shape != (L,):
        raise argument_error(
            "lengths", probs.shape, f"of shape ({L},), one for each length"
        )
    return probs
