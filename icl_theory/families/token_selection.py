"""Which tokens softmax attention selects: fixed inputs, a logistic loss and scores that grow without bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icl_theory._validate import Array, integer, real_array, refuse, store
from icl_theory.engine import Risk, Trajectory
from icl_theory.engine.pullback import in_coordinates, innermost
from icl_theory.engine.tokens.sampled import softmax
from icl_theory.families import Column, Family, Later, Number, Whole, Word, parameter
from icl_theory.families.parameters import learning_rate


@dataclass(frozen=True, eq=False)
class SelectionRisk(Risk):
    r"""Mean logistic loss of n inputs with T tokens each, as a function of the scores of the tokens.

    .. math:: \mathcal L = \frac1n\sum_i \ln\bigl(1 + e^{-o_i}\bigr), \qquad
        o_i = \sum_t \gamma_{it}\,\mathrm{softmax}_t(s_{it})

    Parameters
    ----------
    values : array_like, (n, T)
        :math:`\gamma_{it} = y_iv^\top x_{it}`: what a token contributes to the output, times the label.
    queries : int
        1, or n: columns of the scores, of which input i uses its own. The others have no effect.

    Examples
    --------
    Two inputs of your own, with two tokens each that one vector p scores:

    >>> import numpy as np, icl_theory as icl
    >>> from icl_theory.families.token_selection import SelectionRisk
    >>> tokens = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, -1.0]])
    >>> over_p = icl.in_coordinates(SelectionRisk([[1.0, 0.0], [1.0, 0.0]]), "linear", tokens[:, None])
    >>> icl.descend(over_p, eta=1.0, steps=3).params.round(2)
    array([0.28, 0.13])
    """

    values: Array
    queries: int = 1

    def __post_init__(self) -> None:
        values = real_array("values", self.values, 2, most=1e150)
        if not values.size:
            raise refuse("values", values.shape, "at least one input with at least one token")
        queries = integer("queries", self.queries, minimum=1)
        if queries not in (1, len(values)):
            raise refuse("queries", queries, f"1 or {len(values)}, one for each input")
        store(self, values=values, queries=queries)

    @property
    def initial(self) -> Array:
        """Zero scores, (nT, queries)."""
        return np.zeros((self.values.size, self.queries))

    def own(self, scores: Array) -> Array:
        """Return the scores that the inputs use, (..., n, T), from those of all queries, (..., nT, queries)."""
        every = scores.reshape(*scores.shape[:-2], *self.values.shape, self.queries)
        return every[..., 0] if self.queries == 1 else np.einsum("...iti->...it", every)

    def weights(self, scores: Array) -> Array:
        """Attention of the inputs on their tokens, (..., n, T)."""
        return softmax(self.own(scores))[0]

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss, and its gradient with respect to the scores."""
        output, _ = self._centred(self.weights(params))
        return float(np.logaddexp(0.0, -output).mean()), self.gradients(params)

    def gradients(self, states: Array) -> Array:
        """Gradients at some scores, (..., nT, queries)."""
        weights = self.weights(states)
        output, centred = self._centred(weights)
        return self._columns(-np.exp(-np.logaddexp(0.0, output)) * weights * centred)

    def hessian_product(self, params: Array, direction: Array) -> Array:
        """Product of the Hessian with a direction."""
        weights, along = self.weights(params), self.own(direction)
        output, centred = self._centred(weights)
        turn = weights * (along - np.sum(weights * along, axis=1, keepdims=True))  # change of the weights
        rise = np.sum(turn * centred, axis=1, keepdims=True)  # and of the output
        slope = np.exp(-np.logaddexp(0.0, output))
        return self._columns(slope * ((1.0 - slope) * rise * weights * centred - turn * centred + weights * rise))

    def _centred(self, weights: Array) -> tuple[Array, Array]:
        """Outputs, (..., n, 1), and values over them, with all digits where one token has almost all weight."""
        most = np.argmax(weights, axis=-1)[..., None]
        chosen = np.take_along_axis(np.broadcast_to(self.values, weights.shape), most, axis=-1)
        beside = self.values - chosen
        drawn = np.sum(weights * beside, axis=-1, keepdims=True)
        return chosen + drawn, beside - drawn

    def _columns(self, own: Array) -> Array:
        """Put derivatives of the losses of single inputs where their scores are."""
        found = np.zeros((*own.shape, self.queries))
        self.own(found.reshape(*own.shape[:-2], self.values.size, self.queries))[...] = own / len(self.values)
        return found.reshape(*own.shape[:-2], self.values.size, self.queries)

    def floor(self) -> float:
        """Return the loss with all attention on the tokens of the largest values."""
        return float(np.logaddexp(0.0, -self.values.max(axis=1)).mean())

    def excess(self, params: ArrayLike) -> float:
        """Loss above the floor, with all of its digits."""
        best = self.values.max(axis=1)
        missing = np.sum(self.weights(self._checked(params)) * (best[:, None] - self.values), axis=1)
        return float(np.mean(np.log1p(np.expm1(missing) * np.exp(-np.logaddexp(0.0, best)))))

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Attention of the inputs on their tokens, ``weights``, (n, T)."""
        return {"weights": self.weights(params)}


def constraints(tokens: Array, selected: NDArray[np.intp], queries: Array | None = None) -> Array:
    r"""Return the rows a, (n (T - 1), d), by which p with :math:`a^\top p \ge 1` selects tokens with a margin.

    Given the queries, (n, d), rows are matrices A with :math:`\langle A, W\rangle \ge 1`.
    """
    n, T, _ = tokens.shape
    rows = tokens[np.arange(n), selected][:, None] - tokens
    rows = rows[np.arange(T) != selected[:, None]]
    return rows if queries is None else rows[:, :, None] * np.repeat(queries, T - 1, axis=0)[:, None]


def hard_margin(rows: Array) -> Array | None:
    r"""Return the p of least norm with :math:`a^\top p \ge 1` for all rows a, or None where no p has a margin.

    By nonnegative least squares: Lawson and Hanson, Solving Least Squares Problems, 1974, chapter 23.
    """
    from scipy.optimize import nnls  # slow to load

    flat = rows.reshape(len(rows), -1)
    system = np.concatenate([flat.T, np.ones((1, len(flat)))])
    weights, left = nnls(system, np.eye(len(system))[-1])
    if left < 1e-8:  # 1/|p|, where p is large
        return None
    rest = system @ weights
    return np.asarray((rest[:-1] / (1.0 - rest[-1])).reshape(rows.shape[1:]))


@dataclass(frozen=True, eq=False)
class TokenSelection(Family):
    r"""Softmax attention over fixed inputs with a logistic loss, which selects one token of each.

    Tokens :math:`x_{it}` and queries :math:`z_i` are random directions in d dimensions, labels
    :math:`y_i = \pm1` take turns. Scores are :math:`x_{it}^\top p`, :math:`x_{it}^\top Wz_i` or the same with
    :math:`W = W_K^\top W_Q`. For tokens of your own, see ``families.token_selection.SelectionRisk``.

    Parameters
    ----------
    trained : {"p", "W", "KQ"}
        What the scores are linear functions of, or the two factors of W, with as many rows as dimensions.
    n, T, d : int
        Inputs, tokens of each, and dimension.
    values : {"linear", "one"}
        Values :math:`y_iv^\top x_{it}` with a random direction v; or 1 for the last token of each input and 0 for
        all others, where the theorems promise the best tokens from any start.
    start : float
        Standard deviation of p at step 0, or of the entries of :math:`\sqrt d\,W_K` and :math:`\sqrt d\,W_Q`,
        which must not be 0. W starts at 0.
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
    >>> run.family.selected(run.params).tolist(), round(run.family.measure(run)["cosine"], 3)
    ([0, 2, 2, 1], 0.996)
    """

    name: ClassVar[str] = "token-selection"
    title: ClassVar[str] = "token selection by softmax attention"
    loss_unit: ClassVar[str] = "nats"
    claims = Later("icl_theory.papers.token_selection:CLAIMS")
    columns: ClassVar[tuple[Column, ...]] = (
        Column("cosine", "f8", "", "cosine of p or W with the hard-margin solution of the tokens selected"),
        Column("best", "f8", "", "share of the inputs whose token of the largest value is selected"),
        Column("local", "f8", "", "1 where the tokens selected are locally optimal, else 0"),
    )  # fmt: skip

    eta: float | str = learning_rate("auto")
    trained: str = parameter("p", kind=Word(words=("p", "W", "KQ")), meaning="what is trained")
    n: int = parameter(4, kind=Whole(maximum=100), symbol="n", tex="n", meaning="number of inputs")
    T: int = parameter(5, kind=Whole(minimum=2, maximum=100), symbol="T", tex="T", meaning="tokens of an input")
    d: int = parameter(20, kind=Whole(maximum=100), symbol="d", tex="d", meaning="dimension")
    values: str = parameter("linear", kind=Word(words=("linear", "one")), meaning="values of the tokens")
    start: float = parameter(0.0, kind=Number(zero=True, maximum=1e3), meaning="size of the start")
    seed: int = parameter(0, kind=Whole(minimum=0), meaning="seed of tokens and start")

    def validate(self) -> None:
        """Draw the tokens."""
        if (self.trained == "KQ") != (self.start > 0.0) and self.trained != "p":
            allowed = "> 0 for KQ: factors that are zero stay there" if self.trained == "KQ" else "0 for W"
            raise refuse("start", self.start, allowed)
        if self.trained == "KQ" and self.eta == "auto":
            raise refuse("eta", self.eta, "a number for KQ: the curvature of a product has no bound")
        rng = np.random.default_rng(self.seed)
        shapes = (self.n, self.T, self.d), (self.n, self.d), (self.d,), (self.d,)
        tokens, queries, value, start = (rng.normal(size=shape) for shape in shapes)
        tokens, queries, value = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (tokens, queries, value))
        values = (-1.0) ** np.arange(self.n)[:, None] * (tokens @ value)
        if self.values == "one":
            values = np.repeat(np.eye(self.T)[-1:], self.n, axis=0)
        rows, core = tokens.reshape(-1, self.d), SelectionRisk(values, 1 if self.trained == "p" else self.n)
        if self.trained == "p":
            risk = in_coordinates(core, "linear", rows[:, None], start=self.start * start)
        elif self.trained == "W":
            risk = in_coordinates(core, "embedding", rows, queries=queries)
        else:
            risk = in_coordinates(core, "factored", rows, queries=queries, scale=self.start, seed=self.seed)
        store(self, _risk=risk, _core=core, _data=(tokens, None if self.trained == "p" else queries))

    def risk(self) -> Risk:
        """Return the risk over what is trained."""
        return self._risk  # type: ignore[attr-defined, no-any-return]

    def core(self) -> SelectionRisk:
        """Return the risk over scores."""
        return self._core  # type: ignore[attr-defined, no-any-return]

    def data(self) -> tuple[Array, Array | None]:
        """Return tokens, (n, T, d), and queries, (n, d), or None where p is trained."""
        return self._data  # type: ignore[attr-defined, no-any-return]

    def stable_rate(self) -> float:
        r"""Return one over a bound on the curvature, :math:`(\Delta^2/32 + \Delta/2)\|X\|^2/n`.

        Δ is the largest difference of values in an input, and X maps what is trained to the scores.
        """
        gap = float(np.ptp(self.core().values, axis=1).max())
        bound = (gap**2 / 32.0 + gap / 2.0) * self.risk().gain(self.risk().initial) ** 2 / self.n
        return 1.0 / bound if bound > 0.0 else 1.0  # where all values are equal nothing moves

    def selected(self, params: Array) -> NDArray[np.intp]:
        """Return the token that each input attends to most, (n,)."""
        return np.asarray(np.argmax(self.core().own(innermost(self.risk(), params)[1]), axis=1))

    def margin(self, selected: NDArray[np.intp]) -> Array | None:
        """Return the hard-margin solution of some tokens, p or W, or None."""
        tokens, queries = self.data()
        return hard_margin(constraints(tokens, selected, queries))

    def is_local(self, selected: NDArray[np.intp], slack: float = 1e-6) -> bool:
        """Whether tokens have a margin, and all others on it have smaller values."""
        solution, (tokens, queries), values = self.margin(selected), self.data(), self.core().values
        if solution is None:
            return False
        beside = (values[np.arange(self.n), selected][:, None] - values)[np.arange(self.T) != selected[:, None]]
        margins = np.tensordot(constraints(tokens, selected, queries), solution, axes=solution.ndim)
        return bool((beside[margins < 1.0 + slack] > 0.0).all())

    def measure(self, run: Trajectory) -> dict[str, Any]:
        """Return the family's columns of a run."""
        selected, values = self.selected(run.params), self.core().values
        best = float(np.mean(values[np.arange(self.n), selected] == values.max(axis=1)))
        found = {"best": best, "local": float(self.is_local(selected))}
        solution, end = self.margin(selected), run.params
        if solution is None or self.trained == "KQ" or not end.any():
            return found
        return found | {"cosine": float(np.sum(end * solution) / np.linalg.norm(end) / np.linalg.norm(solution))}

    def describe(self, run: Trajectory) -> None:
        """Say which tokens are selected, and whether the best ones can be."""
        run.notes["tokens"] = "most attended: " + ", ".join(map(str, self.selected(run.params)))
        if self.margin(self.core().values.argmax(axis=1)) is None:
            run.notes["margin"] = "outside the theorems: nothing gives the tokens of the largest values a margin"
