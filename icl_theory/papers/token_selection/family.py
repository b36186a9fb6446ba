"""Which tokens softmax attention selects: fixed inputs, a logistic loss and scores that grow without bound."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icl_theory._validate import Array, argument_error, number, real_array, set_fields
from icl_theory.engine import Factored, Pullback, Risk, Trajectory
from icl_theory.engine.capabilities import gain_at
from icl_theory.engine.pullback import core_params, in_coordinates
from icl_theory.families import Column, Family, LazySlot, Number, Whole, Word, parameter
from icl_theory.families.parameters import learning_rate
from icl_theory.tokens.sampled import softmax


@dataclass(frozen=True, eq=False)
class SelectionRisk(Risk):
    r"""Mean logistic loss of n inputs with T tokens each, over scores, (n, T): see docs/theory/token-selection.md.

    Parameters
    ----------
    values : array_like, (n, T)
        :math:`\gamma_{it} = y_iv^\top x_{it}`: what a token contributes to the output,
        times the label.
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
        weights, _ = softmax(params)
        chosen = np.take_along_axis(
            self.values, np.argmax(weights, axis=1)[:, None], axis=1
        )
        # small sums keep their digits where one token has almost all attention
        beside = self.values - chosen
        drawn = np.sum(weights * beside, axis=1, keepdims=True)
        output = chosen + drawn
        slope = -np.exp(-np.logaddexp(0.0, output)) / len(params)
        return float(np.logaddexp(0.0, -output).mean()), slope * weights * (
            beside - drawn
        )

    def floor(self) -> float:
        """Return the loss with all attention on the tokens of the largest values."""
        return float(np.logaddexp(0.0, -self.values.max(axis=1)).mean())

    def excess(self, params: ArrayLike) -> float:
        """Loss above the floor, with all of its digits."""
        best = self.values.max(axis=1)
        missing = np.sum(
            softmax(self._checked(params))[0] * (best[:, None] - self.values), axis=1
        )
        return float(
            np.mean(np.log1p(np.expm1(missing) * np.exp(-np.logaddexp(0.0, best))))
        )

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Attention of the inputs on their tokens, ``weights``, (n, T)."""
        return {"weights": softmax(params)[0]}


def lead(tokens: Array, selected: NDArray[np.intp]) -> Array:
    """Return by how much something of the selected tokens, (n, T, ...), is above that of others, (n (T - 1), ...).

    A p selects tokens with a margin if it has a product >= 1 with each row of their
    lead.
    """
    rows = tokens[np.arange(len(tokens)), selected][:, None] - tokens
    return np.asarray(rows[np.arange(rows.shape[1]) != selected[:, None]])


def hard_margin(rows: Array) -> Array | None:
    r"""Return the p of least norm with :math:`a^\top p \ge 1` for all rows a, or None where no p has a margin.

    By nonnegative least squares: Lawson and Hanson, Solving Least Squares Problems,
    1974, chapter 23.
    """
    from scipy.optimize import nnls  # slow to load

    flat = rows.reshape(len(rows), -1)
    system = np.concatenate([flat.T, np.ones((1, len(flat)))])
    weights, left = nnls(system, np.eye(len(system))[-1])
    if left < 1e-8:  # 1/|p|, where p is large
        return None
    rest = system @ weights
    return np.asarray((rest[:-1] / (1.0 - rest[-1])).reshape(rows.shape[1:]))


def cosine(first: Array, second: Array) -> float:
    """Return the cosine of the angle between two vectors, or two matrices."""
    return float(
        np.sum(first * second) / np.linalg.norm(first) / np.linalg.norm(second)
    )


@dataclass(frozen=True, eq=False)
class TokenSelection(Family):
    r"""Softmax attention over fixed inputs with a logistic loss, which selects one token of each.

    Tokens :math:`x_{it}` and queries :math:`z_i` are random directions in d dimensions,
    drawn once, and labels :math:`y_i = \pm1` take turns. Scores are :math:`x_{it}^\top
    p`, :math:`x_{it}^\top Wz_i` or the same with :math:`W = W_K^\top W_Q`. For tokens
    of your own, see ``papers.token_selection.family.SelectionRisk``.

    Parameters
    ----------
    trained : {"p", "W", "KQ"}
        What the scores are linear functions of, or the two factors of W, with as many
        rows as dimensions.
    n, T, d : int
        Inputs, tokens of each, and dimension.
    values : {"linear", "one"}
        Values :math:`y_iv^\top x_{it}` with a random direction v; or 1 for the last
        token of each input and 0 for all others, where the theorems promise the best
        tokens from any start.
    start : float
        Standard deviation of p at step 0, or of the entries of :math:`\sqrt d\,W_K` and
        :math:`\sqrt d\,W_Q`, which must not be 0. W starts at 0.
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
    values: str = parameter(
        "linear", kind=Word(words=("linear", "one")), meaning="values of the tokens"
    )
    start: float = parameter(
        0.0, kind=Number(zero=True, maximum=1e3), meaning="size of the start"
    )
    seed: int = parameter(0, kind=Whole(minimum=0), meaning="seed of tokens and start")

    def validate(self) -> None:
        """Refuse starts and learning rates that do not fit what is trained."""
        if (self.trained == "KQ") != (self.start > 0.0) and self.trained != "p":
            allowed = (
                "> 0 for KQ: factors that are zero stay there"
                if self.trained == "KQ"
                else "0 for W"
            )
            raise argument_error("start", self.start, allowed)
        if self.trained == "KQ" and self.eta == "auto":
            raise argument_error(
                "eta",
                self.eta,
                "a number for KQ: the curvature of a product has no bound",
            )
        if self.trained != "p" and self.n * self.T * self.d**2 > 1e6:
            raise argument_error(
                "d",
                self.d,
                "less: with a matrix W scores take n T d² numbers, at most 1e6",
            )

    @cached_property
    def drawn(self) -> tuple[Array, Array, Array]:
        """What p or W is multiplied with for the scores, (n, T, d) or (n, T, d, d), values, (n, T), and a start."""
        rng = np.random.default_rng(self.seed)
        shapes = (self.n, self.T, self.d), (self.n, self.d), (self.d,), (self.d,)
        tokens, queries, value, start = (rng.normal(size=shape) for shape in shapes)
        tokens, queries, value = (
            x / np.linalg.norm(x, axis=-1, keepdims=True)
            for x in (tokens, queries, value)
        )
        values = (-1.0) ** np.arange(self.n)[:, None] * (tokens @ value)
        if self.values == "one":
            values = np.repeat(np.eye(self.T)[-1:], self.n, axis=0)
        if self.trained != "p":
            tokens = np.einsum("itd,ie->itde", tokens, queries)
            start = np.zeros((self.d, self.d))
        return tokens, values, self.start * start

    def risk(self, start: Array | None = None) -> Risk:
        """Return the risk over what is trained, from another p or W if it is given."""
        tokens, values, drawn = self.drawn
        if start is not None:
            drawn = self._start(start, drawn.shape)
        risk = in_coordinates(SelectionRisk(values), "linear", tokens, start=drawn)
        if self.trained != "KQ":
            return risk
        return Pullback(risk, Factored.random(self.d, scale=self.start, seed=self.seed))

    def _start(self, start: Any, shape: tuple[int, ...]) -> Array:
        checked = real_array("start", start, len(shape))
        if checked.shape != shape:
            raise argument_error("start", checked.shape, f"of shape {shape}")
        return checked

    def stable_rate(self) -> float:
        r"""Return one over a bound on the curvature, :math:`(\Delta^2/32 + \Delta/2)\|X\|^2/n`.

        Δ is the largest difference of values in an input, and X maps what is trained to
        the scores.
        """
        gap = float(np.ptp(self.drawn[1], axis=1).max())
        risk = self.risk()
        bound = (gap**2 / 32.0 + gap / 2.0) * gain_at(risk, risk.initial) ** 2 / self.n
        # where all values are equal nothing moves
        return 1.0 / bound if bound > 0.0 else 1.0

    def selected(self, params: ArrayLike) -> NDArray[np.intp]:
        """Return the token that each input attends to most, (n,)."""
        risk = self.risk()
        return np.asarray(np.argmax(core_params(risk, risk._checked(params)), axis=1))

    def margin(self, selected: ArrayLike) -> Array | None:
        """Return the hard-margin solution of some tokens, one of each input, (n,): p or W, or None."""
        return hard_margin(lead(self.drawn[0], self._one_of_each(selected)))

    def _one_of_each(self, selected: ArrayLike) -> NDArray[np.intp]:
        given = real_array("selected", selected, 1)
        if len(given) != self.n or not np.isin(given, np.arange(self.T)).all():
            raise argument_error(
                "selected",
                selected,
                f"{self.n} integers from 0 to {self.T - 1}, one for each input",
            )
        return given.astype(np.intp)

    def is_local(self, selected: ArrayLike, slack: float = 1e-6) -> bool:
        """Whether tokens have a margin, and all others on it have smaller values."""
        chosen = self._one_of_each(selected)
        slack = number("slack", slack, zero=True)
        solution, (tokens, values, _) = self.margin(chosen), self.drawn
        if solution is None:
            return False
        margins = np.tensordot(lead(tokens, chosen), solution, axes=solution.ndim)
        return bool((lead(values, chosen)[margins < 1.0 + slack] > 0.0).all())

    def measure(self, run: Trajectory) -> dict[str, Any]:
        """Return the family's columns of a run."""
        selected = self.selected(run.params)
        values = self.drawn[1]
        end = run.params
        best = float(np.mean(values[np.arange(self.n), selected] == values.max(axis=1)))
        found = {"best": best, "local": float(self.is_local(selected))}
        solution = self.margin(selected)
        if solution is None or self.trained == "KQ" or not end.any():
            return found
        return found | {"cosine": cosine(end, solution)}

    def describe(self, run: Trajectory) -> None:
        """Say which tokens are selected, and whether the best ones can be."""
        run.notes["tokens"] = "most attended: " + ", ".join(
            map(str, self.selected(run.params))
        )
        if self.margin(self.drawn[1].argmax(axis=1)) is None:
            run.notes["margin"] = (
                "outside the theorems: nothing gives the tokens of the largest values a margin"
            )
