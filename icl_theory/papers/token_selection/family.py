"""Which tokens softmax attention selects, as a family.

Inputs are fixed and the loss is logistic, so that scores grow without bound and
attention comes to rest on one token of each input. `TokenSelection` draws a problem,
`SelectionRisk` is its loss over scores, and `hard_margin` is the direction that
theorems predict.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icl_theory._validate import Array, argument_error, number, real_array, set_fields
from icl_theory.engine import Factored, Pullback, Risk, Trajectory
from icl_theory.engine.capabilities import gain_at
from icl_theory.engine.pullback import core_params, in_coordinates
from icl_theory.families import (
    Column,
    Family,
    LazySlot,
    NumberOrArray,
    Numbers,
    Whole,
    Word,
    WordOrArray,
    parameter,
)
from icl_theory.families.parameters import learning_rate
from icl_theory.tokens.sampled import softmax


@dataclass(frozen=True, eq=False)
class SelectionRisk(Risk):
    r"""Mean logistic loss of n inputs with T tokens each, over scores, (n, T).

    .. math:: \mathcal L = \frac1n\sum_i \ln\bigl(1 + e^{-o_i}\bigr), \qquad
        o_i = \sum_t a_{it}\gamma_{it}, \qquad a_{it} = \mathrm{softmax}_t(s_{it})

    Parameters
    ----------
    values : array_like, (n, T)
        :math:`\gamma_{it} = y_iv^\top x_{it}`, the contribution of a token to the
        output, times the label.

    References
    ----------
    docs/theory/token-selection.md.
    """

    values: Array

    def __post_init__(self) -> None:
        values = real_array("values", self.values, 2, most=1e150)
        if not values.size:
            raise argument_error(
                "values", values.shape, "at least one input with at least one token"
            )
        set_fields(self, values=values)

    @property
    def initial(self) -> Array:
        """Zero scores, (n, T)."""
        return np.zeros(self.values.shape)

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss, and its gradient with respect to the scores."""
        attention, _ = softmax(params)
        most_attended = np.argmax(attention, axis=1)[:, None]
        base = np.take_along_axis(self.values, most_attended, axis=1)
        # Where one token has almost all attention, the output differs from its value
        # by less than rounding. Relative to that value, small sums keep their digits.
        relative = self.values - base
        shift = np.sum(attention * relative, axis=1, keepdims=True)
        output = base + shift
        loss = float(np.logaddexp(0.0, -output).mean())
        slope = -np.exp(-np.logaddexp(0.0, output)) / len(params)
        return loss, slope * attention * (relative - shift)

    def floor(self) -> float:
        """Return the loss with all attention on the tokens of the largest values."""
        return float(np.logaddexp(0.0, -self.values.max(axis=1)).mean())

    def excess(self, params: ArrayLike) -> float:
        r"""Return the loss above the floor, with all of its digits.

        It is the mean of :math:`\ln(1 + (e^\delta - 1)\sigma(-\gamma))` for outputs
        that are δ below the largest value γ.
        """
        attention, _ = softmax(self._checked(params))
        best = self.values.max(axis=1)
        delta = np.sum(attention * (best[:, None] - self.values), axis=1)
        sigmoid = np.exp(-np.logaddexp(0.0, best))
        return float(np.mean(np.log1p(np.expm1(delta) * sigmoid)))

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Attention of the inputs on their tokens, ``weights``, (n, T)."""
        return {"weights": softmax(params)[0]}


def lead(tokens: Array, selected: NDArray[np.intp]) -> Array:
    """Return how far the selected tokens are ahead of the others.

    Parameters
    ----------
    tokens : ndarray, (n, T, ...)
        A number or an array for each token, such as its value or its features.
    selected : ndarray of int, (n,)
        One token of each input.

    Returns
    -------
    ndarray, (n (T - 1), ...)
        The selected token minus another one, for all others. A p selects the tokens
        with a margin if its product with each row of their lead is at least 1.
    """
    inputs = np.arange(len(tokens))
    differences = tokens[inputs, selected][:, None] - tokens
    is_other = np.arange(tokens.shape[1]) != selected[:, None]
    return np.asarray(differences[is_other])


def hard_margin(rows: Array) -> Array | None:
    r"""Return the p of least norm with :math:`a^\top p \ge 1` for all rows a.

    If :math:`u \ge 0` minimises :math:`|A^\top u|^2 + (1^\top u - 1)^2` with the
    residual r, then :math:`p = -r_{1..d}/r_{d+1}`. The result is None if no p has a
    margin, because r is then 0.

    References
    ----------
    Lawson and Hanson, Solving Least Squares Problems, 1974, chapter 23.
    """
    from scipy.optimize import nnls  # slow to load

    flat_rows = rows.reshape(len(rows), -1)
    system = np.concatenate([flat_rows.T, np.ones((1, len(flat_rows)))])
    target = np.eye(len(system))[-1]
    multipliers, residual_norm = nnls(system, target)
    # The residual has the norm 1/|p| if p is large, so it need not be exactly 0.
    if residual_norm < 1e-8:
        return None
    product = system @ multipliers
    p = product[:-1] / (1.0 - product[-1])
    return np.asarray(p.reshape(rows.shape[1:]))


def cosine(first: Array, second: Array) -> float:
    """Return the cosine of the angle between two vectors, or two matrices."""
    return float(
        np.sum(first * second) / np.linalg.norm(first) / np.linalg.norm(second)
    )


class SelectionData(NamedTuple):
    """The fixed inputs of a problem, and where a run starts."""

    features: Array  # scores are their products with p, (n, T, d), or W, (n, T, d, d)
    values: Array  # (n, T)
    start: Array  # p, (d,), or W, (d, d)


@dataclass(frozen=True, eq=False)
class TokenSelection(Family):
    r"""Softmax attention over fixed inputs with a logistic loss.

    The attention comes to select one token of each input. Tokens :math:`x_{it}` and
    queries :math:`z_i` are random directions in d dimensions, drawn once, and labels
    :math:`y_i = \pm1` take turns. Scores are :math:`x_{it}^\top p`,
    :math:`x_{it}^\top Wz_i` or the same with :math:`W = W_K^\top W_Q`.

    Parameters
    ----------
    trained : {"p", "W", "KQ"}
        The vector or the matrix that scores are linear in, or the two factors of W,
        with as many rows as dimensions.
    n, T, d : int
        Inputs, tokens of each, and dimension.
    values : {"linear", "one"} or array_like
        Values :math:`y_iv^\top x_{it}` with a random direction v; or 1 for the last
        token of each input and 0 for all others, where the theorems promise the best
        tokens from any start. An array gives the values, (n, T).
    tokens, queries : array_like, (n, T, d) and (n, d), optional
        Tokens and queries of your own, which are not normalised; random directions by
        default. Tokens set n, T and d.
    start : float or array_like
        Standard deviation of p at step 0, or of the entries of :math:`\sqrt d\,W_K` and
        :math:`\sqrt d\,W_Q`, which must not be 0; W then starts at 0. An array gives p,
        (d,), W, (d, d), or the factors, (2, rank, d).
    seed : int
        Seed of tokens, queries, v and start.
    eta, epsilon, above, rule, method, max_steps
        As for every `Family`; ``eta="auto"`` is one over a bound on the curvature.

    References
    ----------
    docs/theory/token-selection.md.

    Examples
    --------
    >>> import icl_theory as icl
    >>> run = icl.TokenSelection(seed=1, above=1e-9).simulate()
    >>> run.family.selected(run.params).tolist()
    [0, 2, 2, 1]
    >>> round(run.family.measure(run)["cosine"], 3)
    0.996
    """

    name: ClassVar[str] = "token-selection"
    title: ClassVar[str] = "token selection by softmax attention"
    loss_unit: ClassVar[str] = "nats"
    claims = LazySlot("icl_theory.papers.token_selection.statements:CLAIMS")
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            "cosine",
            "f8",
            "",
            "cosine of p or W with the hard-margin solution of the tokens selected",
        ),
        Column(
            "best",
            "f8",
            "",
            "share of the inputs whose token of the largest value is selected",
        ),
        Column(
            "local", "f8", "", "1 where the tokens selected are locally optimal, else 0"
        ),
    )

    eta: float | str = learning_rate("auto")
    trained: str = parameter(
        "p", kind=Word(words=("p", "W", "KQ")), meaning="what is trained"
    )
    n: int = parameter(
        4, kind=Whole(maximum=100), symbol="n", tex="n", meaning="number of inputs"
    )
    T: int = parameter(
        5,
        kind=Whole(minimum=2, maximum=100),
        symbol="T",
        tex="T",
        meaning="tokens of an input",
    )
    d: int = parameter(
        20, kind=Whole(maximum=100), symbol="d", tex="d", meaning="dimension"
    )
    values: Any = parameter(
        "linear",
        kind=WordOrArray(words=("linear", "one"), ndim=(2,)),
        meaning="values of the tokens",
    )
    tokens: Any = parameter(
        None, kind=Numbers(optional=True, ndim=(3,)), meaning="given tokens"
    )
    queries: Any = parameter(
        None, kind=Numbers(optional=True, ndim=(2,)), meaning="given queries"
    )
    start: Any = parameter(
        0.0,
        kind=NumberOrArray(zero=True, maximum=1e3),
        meaning="size of the start",
    )
    seed: int = parameter(0, kind=Whole(minimum=0), meaning="seed of tokens and start")

    def validate(self) -> None:
        """Refuse starts and learning rates that do not fit what is trained."""
        self._take_shape_of_tokens()
        self._validate_shape("queries", (self.n, self.d))
        if not isinstance(self.values, str):
            self._validate_shape("values", (self.n, self.T))
        if self.trained == "KQ":
            self._validate_factors()
        if not isinstance(self.start, float):
            self._validate_start(np.shape(self.start))
        elif self.trained == "W" and self.start > 0.0:
            raise argument_error("start", self.start, "0, or an array, for W")
        if self.trained != "p" and self.n * self.T * self.d**2 > 1e6:
            raise argument_error(
                "d",
                self.d,
                "less: with a matrix W scores take n T d² numbers, at most 1e6",
            )

    def _take_shape_of_tokens(self) -> None:
        """Set n, T and d by given tokens, or refuse other numbers."""
        if self.tokens is None:
            return
        for name, size in zip(("n", "T", "d"), np.shape(self.tokens), strict=True):
            declared = self.parameters()[name]
            # A number that equals the default may not have been given by the caller.
            if getattr(self, name) not in (size, declared.default):
                raise argument_error(
                    name, getattr(self, name), f"{size}, as tokens have it"
                )
            declared.check(size)
            set_fields(self, **{name: size})

    def _validate_shape(self, name: str, shape: tuple[int, ...]) -> None:
        value = getattr(self, name)
        if value is not None and np.shape(value) != shape:
            raise argument_error(name, np.shape(value), f"of shape {shape}")

    def _validate_start(self, shape: tuple[int, ...]) -> None:
        """Refuse an array of another shape than that of the parameters."""
        d = self.d
        if self.trained == "KQ":
            if shape[::2] != (2, d) or not shape[1] <= d:
                raise argument_error(
                    "start", shape, f"of shape (2, rank, {d}) with a rank from 1 to {d}"
                )
            return
        allowed = (d,) if self.trained == "p" else (d, d)
        if shape != allowed:
            raise argument_error("start", shape, f"a number, or of shape {allowed}")

    def _validate_factors(self) -> None:
        if self.start == 0.0:
            raise argument_error(
                "start", self.start, "> 0 for KQ: factors that are zero stay there"
            )
        if self.eta == "auto":
            raise argument_error(
                "eta",
                self.eta,
                "a number for KQ: the curvature of a product has no bound",
            )

    @cached_property
    def drawn(self) -> SelectionData:
        """The inputs and the start, which are drawn once from the seed."""
        rng = np.random.default_rng(self.seed)
        # The seed stands for these draws in this order.
        tokens = rng.normal(size=(self.n, self.T, self.d))
        queries = rng.normal(size=(self.n, self.d))
        value_direction = rng.normal(size=self.d)
        start = rng.normal(size=self.d)

        tokens = _normalised(tokens)
        queries = _normalised(queries)
        if self.tokens is not None:
            tokens = np.array(self.tokens)
        if self.queries is not None:
            queries = np.array(self.queries)
        if not isinstance(self.values, str):
            values = np.array(self.values)
        elif self.values == "one":
            values = np.repeat(np.eye(self.T)[-1:], self.n, axis=0)
        else:
            labels = (-1.0) ** np.arange(self.n)
            values = labels[:, None] * (tokens @ _normalised(value_direction))
        features = tokens
        if self.trained == "p" and isinstance(self.start, float):
            start = self.start * start
        elif self.trained == "p":
            start = np.array(self.start)
        else:
            features = np.einsum("itd,ie->itde", tokens, queries)
            start = np.zeros((self.d, self.d))
            if self.trained == "W" and not isinstance(self.start, float):
                start = np.array(self.start)
        return SelectionData(features, values, start)

    def risk(self, start: Array | None = None) -> Risk:
        """Return the risk over the trained parameters.

        Parameters
        ----------
        start : ndarray, optional
            The p or W at step 0, in place of the family's own.
        """
        data = self.drawn
        if start is None:
            start = data.start
        else:
            start = self._checked_start(start, data.start.shape)
        core = SelectionRisk(data.values)
        risk = in_coordinates(core, "linear", data.features, start=start)
        if self.trained != "KQ":
            return risk
        if isinstance(self.start, float):
            factors = Factored.random(self.d, scale=self.start, seed=self.seed)
        else:
            factors = Factored(np.array(self.start))
        return Pullback(risk, factors)

    def _checked_start(self, start: Any, shape: tuple[int, ...]) -> Array:
        checked = real_array("start", start, len(shape))
        if checked.shape != shape:
            raise argument_error("start", checked.shape, f"of shape {shape}")
        return checked

    def stable_rate(self) -> float:
        r"""Return one over a bound on the curvature.

        .. math:: (\Delta^2/32 + \Delta/2)\,\|X\|^2/n

        Δ is the largest difference of values in an input, and X maps the trained
        parameters to the scores.
        """
        delta = float(np.ptp(self.drawn.values, axis=1).max())
        risk = self.risk()
        gain = gain_at(risk, risk.initial)
        bound = (delta**2 / 32.0 + delta / 2.0) * gain**2 / self.n
        # The bound is 0 if all values of an input are equal: then nothing moves.
        return 1.0 / bound if bound > 0.0 else 1.0

    def selected(self, params: ArrayLike) -> NDArray[np.intp]:
        """Return the token that each input attends to most, (n,)."""
        risk = self.risk()
        scores = core_params(risk, risk._checked(params))
        return np.asarray(np.argmax(scores, axis=1))

    def margin(self, selected: ArrayLike) -> Array | None:
        """Return the hard-margin solution of some tokens, or None if they have none.

        Parameters
        ----------
        selected : array_like of int, (n,)
            One token of each input.

        Returns
        -------
        ndarray or None
            The p or W of least norm that selects these tokens with the margin 1.
        """
        tokens = self._one_of_each(selected)
        return hard_margin(lead(self.drawn.features, tokens))

    def _one_of_each(self, selected: ArrayLike) -> NDArray[np.intp]:
        tokens = real_array("selected", selected, 1)
        if len(tokens) != self.n or not np.isin(tokens, np.arange(self.T)).all():
            raise argument_error(
                "selected",
                selected,
                f"{self.n} integers from 0 to {self.T - 1}, one for each input",
            )
        return tokens.astype(np.intp)

    def is_local(self, selected: ArrayLike, slack: float = 1e-6) -> bool:
        """Whether tokens are locally optimal.

        They have a margin, and all other tokens on it have smaller values. A token is
        on the margin if its product is below 1 + ``slack``.
        """
        tokens = self._one_of_each(selected)
        slack = number("slack", slack, zero=True)
        solution = self.margin(tokens)
        if solution is None:
            return False
        feature_lead = lead(self.drawn.features, tokens)
        value_lead = lead(self.drawn.values, tokens)
        margins = np.tensordot(feature_lead, solution, axes=solution.ndim)
        is_on_margin = margins < 1.0 + slack
        return bool((value_lead[is_on_margin] > 0.0).all())

    def measure(self, run: Trajectory) -> dict[str, Any]:
        """Return the family's columns of a run."""
        selected = self.selected(run.params)
        values = self.drawn.values
        selected_values = values[np.arange(self.n), selected]
        is_best = selected_values == values.max(axis=1)
        columns = {
            "best": float(np.mean(is_best)),
            "local": float(self.is_local(selected)),
        }
        solution = self.margin(selected)
        # Two factors are not compared with a W, and a zero has no direction.
        has_direction = self.trained != "KQ" and run.params.any()
        if solution is not None and has_direction:
            columns["cosine"] = cosine(run.params, solution)
        return columns

    def describe(self, run: Trajectory) -> None:
        """Say which tokens are selected, and whether the best ones can be."""
        selected = self.selected(run.params)
        run.notes["tokens"] = "most attended: " + ", ".join(map(str, selected))
        best = self.drawn.values.argmax(axis=1)
        if self.margin(best) is None:
            run.notes["margin"] = (
                "outside the theorems: nothing gives the tokens of the largest values"
                " a margin"
            )


def _normalised(vectors: Array) -> Array:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
