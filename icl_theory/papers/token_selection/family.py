"""Which tokens softmax attention selects, as a family.

Inputs are fixed. The margin of an input is its output times its label. With a loss that
falls with the margin, scores grow without bound, and attention comes to rest on one
token of each input. `TokenSelection` draws a problem, and `SelectionRisk` is its loss
as a function of the scores. The scores are linear in a vector p or a matrix W, and
`hard_margin` computes the direction in which theorems predict that p or W grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icl_theory._validate import (
    Array,
    argument_error,
    choice,
    number,
    real_array,
    set_fields,
)
from icl_theory.engine import Factored, Pullback, Risk, Trajectory
from icl_theory.engine.capabilities import gain_at
from icl_theory.engine.pullback import core_params, core_risk, in_coordinates
from icl_theory.engine.sampling import Samplable
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
from icl_theory.papers.token_selection.heads import (
    MARGIN_LOSSES,
    HeadRisk,
    Inputs,
    JointRisk,
    WithHead,
    best_margin,
    inputs_to_draw,
)
from icl_theory.tokens.sampled import softmax

# All tokens x of an input except the selected one have (x_selected - x)ᵀp >= 1 at a
# hard-margin solution p. A token is on the margin if its product exceeds 1 by less than
# this slack. The slack is far above rounding errors. A larger one would also count
# tokens near the margin.
LOCAL_SLACK = 1e-6
# `hard_margin` reports that there is no margin if the norm of the residual is smaller
# than this. A margin that needs a norm |p| above 1e8, the reciprocal, is therefore not
# found.
LEAST_RESIDUAL = 1e-8
# Squares of values up to this size are within the range of float64.
LARGEST_VALUE = 1e150
# Largest number n T d² of entries in the derivatives of all scores with respect to a
# matrix W. These derivatives then take 8 MB. More would make steps slow; a cautious
# choice.
MOST_FEATURES = 1e6


@dataclass(frozen=True, eq=False)
class SelectionRisk(Samplable[Inputs]):
    r"""Mean loss of n inputs with T tokens each, whose values are fixed.

    .. math:: \mathcal L = \frac1n\sum_i \ell(o_i), \qquad
        o_i = \sum_t a_{it}\gamma_{it}, \qquad a_{it} = \mathrm{softmax}_t(s_{it})

    The parameters are the scores s, (n, T). The outputs :math:`o_i` already contain
    the labels :math:`y_i` as factors, so they are the margins of the inputs.

    Parameters
    ----------
    values : array_like, (n, T)
        :math:`\gamma_{it} = y_iv^\top x_{it}` with the head v: the margin of the input
        if the token :math:`x_{it}` has all attention.
    margin_loss : {"logistic", "exponential", "correlation", "squared"}
        The loss ℓ of the margin m: :math:`\ln(1 + e^{-m})`, :math:`e^{-m}`, :math:`-m`
        or :math:`\frac12(1 - m)^2`.

    References
    ----------
    docs/theory/token-selection.md.
    """

    values: Array
    margin_loss: str = "logistic"

    def __post_init__(self) -> None:
        choice("margin_loss", self.margin_loss, tuple(MARGIN_LOSSES))
        values = real_array("values", self.values, 2, most=LARGEST_VALUE)
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
        output, gradient = self._outputs_and_gradients(params)
        loss = MARGIN_LOSSES[self.margin_loss]
        return float(loss.value(output).mean()), gradient

    def gradients(self, states: Array) -> Array:
        """Gradients at several matrices of scores, of the shape of ``states``."""
        _, gradients = self._outputs_and_gradients(states)
        return gradients

    def _outputs_and_gradients(self, params: Array) -> tuple[Array, Array]:
        """Return the outputs, (..., n, 1), and the gradients, (..., n, T).

        ``params`` are the scores of one state, (n, T), or of several, (..., n, T).
        """
        attention, _ = softmax(params)
        values = np.broadcast_to(self.values, params.shape)
        most_attended = np.argmax(attention, axis=-1)[..., None]
        base = np.take_along_axis(values, most_attended, axis=-1)  # (..., n, 1)
        # If one token has almost all attention, the output differs from the value of
        # this token, ``base``, by less than rounding. Sums of differences from ``base``
        # keep their digits, even if they are small.
        relative = values - base
        shift = np.sum(attention * relative, axis=-1, keepdims=True)
        output = base + shift
        loss = MARGIN_LOSSES[self.margin_loss]
        # ∂L/∂s_it = ℓ'(o_i)/n a_it (γ_it - o_i)
        n = len(self.values)
        slope = loss.slope(output) / n  # (..., n, 1)
        return output, slope * attention * (relative - shift)

    def draw(self, rng: np.random.Generator, size: int) -> Inputs:
        """Draw the indices of ``size`` inputs, with replacement."""
        return inputs_to_draw(rng, size, self.values)

    def losses_on(self, params: Array, prompts: Inputs) -> Array:
        """Loss of each of B inputs, (B,)."""
        output = self._outputs_on(params, prompts).output
        return MARGIN_LOSSES[self.margin_loss].value(output)

    def evaluate_on(self, params: Array, prompts: Inputs) -> tuple[float, Array]:
        """Mean loss of B inputs, and its gradient with respect to all scores, (n, T).

        The gradient is zero for inputs that are not among these B.
        """
        outputs = self._outputs_on(params, prompts)
        loss = MARGIN_LOSSES[self.margin_loss]
        slope = loss.slope(outputs.output) / len(outputs.output)
        score_gradient = slope[:, None] * outputs.attention * outputs.centred
        gradient = np.zeros_like(params)
        # With += an input that was drawn twice would count only once.
        np.add.at(gradient, prompts.rows, score_gradient)
        return float(loss.value(outputs.output).mean()), gradient

    def _outputs_on(self, params: Array, prompts: Inputs) -> _Outputs:
        """Return the outputs on B inputs; ``params`` has the scores of all n inputs."""
        values = self.values[prompts.rows]
        attention, _ = softmax(params[prompts.rows])
        output = np.sum(attention * values, axis=1)
        return _Outputs(output, attention, values - output[:, None])

    def floor(self) -> float:
        """Return the loss of the best outputs.

        The best output of an input is the largest value of its tokens. Only the squared
        loss, which is least at the output 1, may have a smaller best output.
        """
        return float(MARGIN_LOSSES[self.margin_loss].value(self._best).mean())

    @cached_property
    def _best(self) -> Array:
        """The output of least loss for each input, (n,)."""
        lowest = self.values.min(axis=1)
        highest = self.values.max(axis=1)
        return best_margin(self.margin_loss, lowest, highest)

    def excess(self, params: ArrayLike) -> float:
        r"""Return the difference of the loss from the floor, with all of its digits.

        If an output is δ below the best one γ, the logistic loss exceeds its floor by
        :math:`\ln(1 + (e^\delta - 1)\sigma(-\gamma))` with the sigmoid σ. The excess is
        the mean of this number over the inputs. Other losses have formulas of their
        own, the functions ``rise`` of ``MARGIN_LOSSES``.
        """
        attention, _ = softmax(self._checked(params))
        best_outputs = self._best
        # ``delta`` is a sum of terms that are small near the floor, and not a
        # difference of outputs.
        delta = np.sum(attention * (best_outputs[:, None] - self.values), axis=1)
        return float(MARGIN_LOSSES[self.margin_loss].rise(best_outputs, delta).mean())

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Attention of the inputs on their tokens, ``weights``, (n, T)."""
        attention, _ = softmax(params)
        return {"weights": attention}


class _Outputs(NamedTuple):
    """The outputs on B inputs, and the attention and values of their T tokens."""

    output: Array  # (B,)
    attention: Array  # (B, T)
    centred: Array  # the value of a token minus the output of its input, (B, T)


def lead(tokens: Array, selected: NDArray[np.intp]) -> Array:
    """Return the differences between selected tokens and all other tokens.

    Parameters
    ----------
    tokens : ndarray, (n, T, ...)
        A number or an array for each token, such as its value or its features.
    selected : ndarray of int, (n,)
        One token of each input.

    Returns
    -------
    ndarray, (n (T - 1), ...)
        The selected token of an input minus each other token of this input. If
        ``tokens`` are features, p selects the tokens ``selected`` with the margin 1 if
        its product with each of these rows is at least 1.
    """
    inputs = np.arange(len(tokens))
    differences = tokens[inputs, selected][:, None] - tokens
    is_other = np.arange(tokens.shape[1]) != selected[:, None]
    return np.asarray(differences[is_other])


def hard_margin(rows: Array) -> Array | None:
    r"""Return the p of least norm with :math:`a^\top p \ge 1` for all rows a of A.

    The rows of A are ``rows``. A row may be a vector of d numbers or a matrix of d
    entries, and p has the same shape.

    Let :math:`u \ge 0` minimise :math:`|A^\top u|^2 + (1^\top u - 1)^2`, the squared
    norm of the residual :math:`r = (A^\top u, 1^\top u - 1)`. Then :math:`p =
    -r_{1..d}/r_{d+1}`. If no p satisfies the inequalities, r is 0 and the result is
    None.

    References
    ----------
    Lawson and Hanson, Solving Least Squares Problems, 1974, chapter 23.
    """
    from scipy.optimize import nnls  # slow to load

    A = rows.reshape(len(rows), -1)
    # The residual is r = system @ u - target.
    system = np.concatenate([A.T, np.ones((1, len(A)))])
    target = np.eye(len(system))[-1]  # (0, …, 0, 1)
    u, residual_norm = nnls(system, target)
    # If p exists, |r|² = 1/(1 + |p|²). If |p| is very large, rounding errors of nnls
    # hide the difference of |r| from 0.
    if residual_norm < LEAST_RESIDUAL:
        return None
    product = system @ u
    p = product[:-1] / (1.0 - product[-1])
    return np.asarray(p.reshape(rows.shape[1:]))


def cosine(first: Array, second: Array) -> float:
    """Return the cosine of the angle between two vectors or two matrices.

    Neither of the two may be zero. The angle between matrices is the one in the
    Frobenius inner product.
    """
    return float(
        np.sum(first * second) / np.linalg.norm(first) / np.linalg.norm(second)
    )


class SelectionData(NamedTuple):
    """The fixed inputs of a problem, and where a run starts.

    Attributes
    ----------
    features : ndarray, (n, T, d) or (n, T, d, d)
        The score of a token is the inner product of its features with p or W.
    values : ndarray, (n, T)
        For each token, the margin of its input if the token has all attention, with a
        linear head that is not trained. Risks with another head do not use this array.
    start : ndarray
        Parameters at step 0: p, (d,), or W, (d, d); with a trained head p and v, (2,
        d), or W and v, (d + 1, d). If the factors of W are trained, it is a zero matrix
        in the place of W.
    tokens : ndarray, (n, T, d)
        The tokens x.
    labels : ndarray, (n,)
        The labels, 1 and -1.
    head : ndarray, (d,)
        The head v, if it is not trained.
    layer : ndarray or None, (d, d)
        The matrix V before the ReLU; None for a linear head.
    """

    features: Array
    values: Array
    start: Array
    tokens: Array
    labels: Array
    head: Array
    layer: Array | None


@dataclass(frozen=True, eq=False)
class TokenSelection(Family):
    r"""Softmax attention over fixed inputs with a loss of their margins.

    The attention comes to select one token of each input. Tokens :math:`x_{it}` and
    queries :math:`z_i` are random directions in d dimensions, drawn once. The labels
    :math:`y_i` are 1 and -1 in turn. Scores are :math:`x_{it}^\top p`,
    :math:`x_{it}^\top Wz_i`, or the latter with :math:`W = W_K^\top W_Q`.

    Parameters
    ----------
    trained : {"p", "W", "KQ", "pv", "Wv"}
        What is trained. "p" and "W": the vector or the matrix in which scores are
        linear. "KQ": the two factors of W, which have d rows unless ``start`` gives
        others. "pv" and "Wv": p or W, and the head v.
    head : {"linear", "relu"}
        The output :math:`v^\top\bar x` of the average token, or
        :math:`v^\top\mathrm{ReLU}(V\bar x)` with a fixed random matrix V, (d, d), of
        the Frobenius norm 1. If the head is not trained, v is a random direction, or a
        vector of ones after the ReLU.
    margin_loss : {"logistic", "exponential", "correlation", "squared"}
        The loss of the margin m, the output times the label: :math:`\ln(1 + e^{-m})`,
        :math:`e^{-m}`, :math:`-m` (for a head that is not trained) or :math:`\frac12(1
        - m)^2`.
    n : int
        Number of inputs.
    T : int
        Number of tokens of an input.
    d : int
        Dimension of a token.
    values : {"linear", "one"} or array_like
        The contributions of the tokens to the margin. "linear" stands for
        :math:`y_iv^\top x_{it}` with a random direction v. "one" stands for 1 for the
        last token of each input and 0 for all others; by the theorems the best tokens
        are then selected from any start. An array gives the values, (n, T). "one" and
        an array are only for a linear head that is not trained.
    tokens : array_like, (n, T, d), optional
        Tokens of your own, which are not normalised and set n, T and d; random
        directions by default.
    queries : array_like, (n, d), optional
        Queries of your own, which are not normalised; random directions by default.
    signs : array_like, (n,), optional
        Labels 1 and -1 of your own.
    start : float or array_like
        A number is the standard deviation of the entries of p and v at step 0, or of
        the entries of :math:`\sqrt d\,W_K` and :math:`\sqrt d\,W_Q`. It must not be 0
        for these factors. W itself starts at 0. So the number must be 0 for "W", and
        with "Wv" it is the standard deviation of v alone. An array gives p, (d,), W,
        (d, d), or the factors, (2, rank, d); with a trained head it gives p and v, (2,
        d), or W and v, (d + 1, d).
    seed : int
        Seed of tokens, queries, v, start and V.
    eta, epsilon, above, rule, method, max_steps
        As for every `Family`. ``eta="auto"`` is the reciprocal of a bound on the
        curvature. The bound is known only for a linear head that is not trained, with
        the logistic loss or the correlation.

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
        Column(
            "head_cosine",
            "f8",
            "",
            "cosine of a trained linear head with the hard-margin solution that"
            " separates the tokens selected by their labels",
        ),
    )

    eta: float | str = learning_rate("auto")
    trained: str = parameter(
        "p", kind=Word(words=("p", "W", "KQ", "pv", "Wv")), meaning="what is trained"
    )
    head: str = parameter(
        "linear",
        kind=Word(words=("linear", "relu")),
        meaning="how the average token becomes the output",
    )
    margin_loss: str = parameter(
        "logistic",
        kind=Word(words=tuple(MARGIN_LOSSES)),
        meaning="loss of the output times the label",
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
    signs: Any = parameter(
        None, kind=Numbers(optional=True, ndim=(1,)), meaning="given labels, 1 or -1"
    )
    start: Any = parameter(
        0.0,
        kind=NumberOrArray(zero=True, maximum=1e3),
        meaning="size of the start",
    )
    seed: int = parameter(0, kind=Whole(minimum=0), meaning="seed of tokens and start")

    def validate(self) -> None:
        """Refuse parameters that do not fit what is trained or one another."""
        # This comes first, because the other checks use n, T and d.
        self._take_shape_of_tokens()
        self._validate_shape("queries", (self.n, self.d))
        self._validate_shape("signs", (self.n,))
        if not isinstance(self.values, str):
            self._validate_shape("values", (self.n, self.T))
        self._validate_head()
        if self.trained == "KQ":
            self._validate_factors()
        # At this point a start given as a number is a float, and a start given as an
        # array has become nested tuples.
        if not isinstance(self.start, float):
            self._validate_start(np.shape(self.start))
        elif self.trained == "W" and self.start > 0.0:
            # A random start is drawn for vectors and factors, not for a matrix W.
            raise argument_error("start", self.start, "0, or an array, for W")
        trains_matrix = self.trained not in ("p", "pv")
        feature_entries = self.n * self.T * self.d**2  # with a matrix W
        if trains_matrix and feature_entries > MOST_FEATURES:
            raise argument_error(
                "d",
                self.d,
                "less: with a matrix W scores take n T d² numbers, at most 1e6",
            )

    @property
    def _trains_head(self) -> bool:
        """Whether the head v is trained together with p or W."""
        return self.trained in ("pv", "Wv")

    @property
    def _is_joint_or_relu(self) -> bool:
        """Whether the head is trained or has a ReLU.

        If so, the loss is not determined by the attention and fixed values of tokens.
        """
        return self._trains_head or self.head == "relu"

    def _validate_head(self) -> None:
        """Refuse labels, values, a loss or a rate that do not fit the head."""
        if self.signs is not None and not np.isin(self.signs, (-1.0, 1.0)).all():
            raise argument_error("signs", self.signs, "1 or -1 for each input")
        if self._is_joint_or_relu and self.values != "linear":
            raise argument_error(
                "values",
                self.values,
                "'linear' unless the head is linear and not trained",
            )
        if self.signs is not None and self.values != "linear":
            raise argument_error(
                "signs", self.signs, "left out unless values = 'linear'"
            )
        if self._trains_head and self.margin_loss == "correlation":
            raise argument_error(
                "margin_loss",
                self.margin_loss,
                "another one if the head is trained: it has no lower bound then",
            )
        has_bound = self.margin_loss in ("logistic", "correlation")
        if self.eta == "auto" and (self._is_joint_or_relu or not has_bound):
            raise argument_error(
                "eta",
                self.eta,
                "a number unless the head is linear and not trained and margin_loss is"
                " logistic or correlation: the curvature has no known bound",
            )

    def _take_shape_of_tokens(self) -> None:
        """Set n, T and d to the shape of given tokens.

        Refuse a given n, T or d that is another number.
        """
        if self.tokens is None:
            return
        for name, size in zip(("n", "T", "d"), np.shape(self.tokens), strict=True):
            declared = self.parameters()[name]
            # A number that equals the default is taken as not given by the caller.
            if getattr(self, name) not in (size, declared.default):
                raise argument_error(
                    name, getattr(self, name), f"{size}, as tokens have it"
                )
            declared.check(size)  # refuses a size that is out of range
            set_fields(self, **{name: size})

    def _validate_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Refuse a parameter that has another shape, unless it is None."""
        value = getattr(self, name)
        if value is not None and np.shape(value) != shape:
            raise argument_error(name, np.shape(value), f"of shape {shape}")

    def _validate_start(self, shape: tuple[int, ...]) -> None:
        """Refuse a start that does not have the shape of the parameters."""
        d = self.d
        if self.trained == "KQ":
            # W_K and W_Q, (rank, d) each, are stacked. A larger rank than d would be of
            # no use, because W_KᵀW_Q is d by d.
            fits = len(shape) == 3 and shape[0] == 2 and shape[2] == d
            if not fits or shape[1] > d:
                raise argument_error(
                    "start", shape, f"of shape (2, rank, {d}) with a rank from 1 to {d}"
                )
            return
        shapes = {"p": (d,), "W": (d, d), "pv": (2, d), "Wv": (d + 1, d)}
        allowed = shapes[self.trained]
        if shape != allowed:
            raise argument_error("start", shape, f"a number, or of shape {allowed}")

    def _validate_factors(self) -> None:
        """Refuse factors that start at zero, and a rate that needs a bound."""
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
        """The inputs and the start; all that is not given is drawn from the seed."""
        rng = np.random.default_rng(self.seed)
        # A seed stands for these draws in this order, so all of them are made, whether
        # the problem uses them or not.
        drawn_tokens = rng.normal(size=(self.n, self.T, self.d))
        drawn_queries = rng.normal(size=(self.n, self.d))
        value_direction = _normalised(rng.normal(size=self.d))
        standard_p = rng.normal(size=self.d)
        standard_head = rng.normal(size=self.d)
        drawn_layer = rng.normal(size=(self.d, self.d))

        tokens = _normalised(drawn_tokens)
        if self.tokens is not None:
            tokens = np.array(self.tokens)
        queries = _normalised(drawn_queries)
        if self.queries is not None:
            queries = np.array(self.queries)
        labels = np.where(np.arange(self.n) % 2 == 0, 1.0, -1.0)
        if self.signs is not None:
            labels = np.array(self.signs)
        head = value_direction
        layer = None
        if self.head == "relu":
            head = np.ones(self.d)
            layer = drawn_layer / np.linalg.norm(drawn_layer)
        return SelectionData(
            features=self._features(tokens, queries),
            values=self._token_values(tokens, labels, value_direction),
            start=self._start_at(standard_p, standard_head),
            tokens=tokens,
            labels=labels,
            head=head,
            layer=layer,
        )

    def _features(self, tokens: Array, queries: Array) -> Array:
        """Return the derivatives of the scores xᵀp or xᵀWz with respect to p or W."""
        if self.trained in ("p", "pv"):
            return tokens
        # The derivative of xᵀWz with respect to W is the matrix xzᵀ.
        return np.einsum("itd,ie->itde", tokens, queries)

    def _token_values(self, tokens: Array, labels: Array, direction: Array) -> Array:
        """Return the values of the tokens, (n, T), by the parameter ``values``.

        They are the given array, the values of "one", or for "linear" y_i v·x_it with
        the unit vector v = ``direction``.
        """
        if not isinstance(self.values, str):
            return np.array(self.values)
        if self.values == "one":
            values = np.zeros((self.n, self.T))
            values[:, -1] = 1.0
            return values
        return labels[:, None] * (tokens @ direction)

    def _start_at(self, standard_p: Array, standard_head: Array) -> Array:
        """Return p or W at step 0, with a trained head as the last row.

        If two factors of W are trained, this is W = 0, a placeholder: `_factors` has
        their start. The arguments are standard normal vectors, (d,), which are
        multiplied by the size of the start.
        """
        if self.trained == "KQ":
            return np.zeros((self.d, self.d))
        if not isinstance(self.start, float):
            return np.array(self.start)
        zero_matrix = np.zeros((self.d, self.d))
        match self.trained:
            case "p":
                return self.start * standard_p
            case "pv":
                return self.start * np.stack([standard_p, standard_head])
            case "Wv":
                return np.concatenate([zero_matrix, self.start * standard_head[None]])
        return zero_matrix  # for W

    def risk(self, start: Array | None = None) -> Risk:
        """Return the risk over the trained parameters.

        Parameters
        ----------
        start : ndarray, optional
            Parameters at step 0 in place of the family's own: p or W; p or W with v as
            the last row, if the head is trained; or W_K and W_Q.
        """
        data = self.drawn
        # The start of p or W; `_factors` below takes the start of W_K and W_Q.
        initial = data.start
        if start is not None and self.trained != "KQ":
            initial = self._checked_start(start, initial.shape)
        if self._trains_head:
            head = initial[-1]
            joint = JointRisk(
                data.tokens, data.labels, head, data.layer, self.margin_loss
            )
            return Pullback(joint, WithHead(initial, data.features))
        # The scores are linear functions of p or W, so the risk over scores becomes a
        # risk over p or W. For "KQ" it then becomes a risk over two factors of W.
        over_scores: Risk = SelectionRisk(data.values, self.margin_loss)
        if data.layer is not None:
            over_scores = HeadRisk(
                data.tokens, data.labels, data.head, data.layer, self.margin_loss
            )
        risk = in_coordinates(over_scores, "linear", data.features, start=initial)
        if self.trained != "KQ":
            return risk
        return Pullback(risk, self._factors(start))

    def _factors(self, start: Array | None) -> Factored:
        """Return the map from W_K and W_Q to W, with W_K and W_Q at step 0.

        They start at ``start``, or at the family's own start if it is None.
        """
        if start is not None:
            factors = real_array("start", start, 3)
            self._validate_start(factors.shape)
            return Factored(factors)
        if isinstance(self.start, float):
            return Factored.random(self.d, scale=self.start, seed=self.seed)
        return Factored(np.array(self.start))

    def _checked_start(self, start: Any, shape: tuple[int, ...]) -> Array:
        """Return a start as an array, or refuse one of another shape."""
        checked = real_array("start", start, len(shape))
        if checked.shape != shape:
            raise argument_error("start", checked.shape, f"of shape {shape}")
        return checked

    def stable_rate(self) -> float:
        r"""Return the reciprocal of a bound on the curvature.

        The bound for the logistic loss is

        .. math:: (\Delta^2/32 + \Delta/2)\,\|X\|^2/n

        with the largest difference Δ of two values of an input, and the map X from the
        trained parameters to the scores. For the correlation the term with the square
        of Δ is left out. See docs/theory/token-selection.md, "Curvature".
        """
        delta = float(np.ptp(self.drawn.values, axis=1).max())
        risk = self.risk()
        # ‖X‖, the largest norm of a change of the scores for a unit change of the
        # parameters
        gain = gain_at(risk, risk.initial)
        # Along a unit direction of an input's scores, the output o has the derivatives
        # ȯ and ö, and the loss ℓ(o) the second derivative ℓ'ö + ℓ''ȯ².
        from_slope = delta / 2.0  # |ℓ'| <= 1 times |ö| <= Δ/2
        from_curvature = 0.0
        if self.margin_loss == "logistic":
            from_curvature = delta**2 / 32.0  # ℓ'' <= ¼ times ȯ² <= Δ²/8
        bound = (from_slope + from_curvature) * gain**2 / self.n
        # If all values of an input are equal, the bound is 0 and nothing moves, so that
        # any rate is stable.
        return 1.0 / bound if bound > 0.0 else 1.0

    def selected(self, params: ArrayLike) -> NDArray[np.intp]:
        """Return the token that each input attends to most, (n,)."""
        risk = self.risk()
        # Changes of coordinates are wrapped around a risk whose parameters are the
        # scores of all tokens, input after input. In a `JointRisk` the scores are
        # followed by the head.
        checked = risk._checked(params)
        scores_and_head = core_params(risk, checked).ravel()
        scores = scores_and_head[: self.n * self.T].reshape(self.n, self.T)
        return np.asarray(np.argmax(scores, axis=1))

    def _values_at(self, params: Array) -> Array:
        """Return the values of the tokens, (n, T), at trained parameters.

        The value of a token is the margin of its input if the token has all attention.
        """
        core = core_risk(self.risk())  # the risk over scores
        if isinstance(core, JointRisk):
            trained_head = params[-1]  # the last row, see `SelectionData.start`
            return core._values(trained_head)
        if isinstance(core, HeadRisk):
            return core._values(core.head)
        return self.drawn.values

    def margin(self, selected: ArrayLike) -> Array | None:
        """Return the hard-margin solution that selects given tokens.

        Parameters
        ----------
        selected : array_like of int, (n,)
            One token of each input.

        Returns
        -------
        ndarray or None
            The p or W of least norm that selects these tokens with the margin 1, or
            None if no p or W does.
        """
        indices = self._one_of_each(selected)
        return hard_margin(lead(self.drawn.features, indices))

    def _one_of_each(self, selected: ArrayLike) -> NDArray[np.intp]:
        """Return the index of the selected token of each input, after a check."""
        indices = real_array("selected", selected, 1)
        if len(indices) != self.n or not np.isin(indices, np.arange(self.T)).all():
            raise argument_error(
                "selected",
                selected,
                f"{self.n} integers from 0 to {self.T - 1}, one for each input",
            )
        return indices.astype(np.intp)

    def is_local(self, selected: ArrayLike, slack: float = LOCAL_SLACK) -> bool:
        """Whether the selected tokens, one of each input, are locally optimal.

        This means that they have a hard-margin solution p, and that all other tokens on
        its margin have smaller values than the selected token of their input. A token x
        is on the margin if (x_selected - x)ᵀp is below 1 + ``slack``. If the head is
        trained, this method uses the values at step 0; the column ``local`` of a run
        uses the values at the end.
        """
        indices = self._one_of_each(selected)
        slack = number("slack", slack, zero=True)
        return self._is_local(indices, self._values_at(self.drawn.start), slack)

    def _is_local(
        self, selected: NDArray[np.intp], values: Array, slack: float
    ) -> bool:
        """Whether checked tokens are locally optimal with these values, (n, T)."""
        solution = self.margin(selected)
        if solution is None:
            return False
        # One row for each token that is not selected, n (T - 1) in all.
        feature_lead = lead(self.drawn.features, selected)
        value_lead = lead(values, selected)
        # The inner product of each row with the solution, which is a p or a W.
        margins = np.tensordot(feature_lead, solution, axes=solution.ndim)
        is_on_margin = margins < 1.0 + slack
        return bool((value_lead[is_on_margin] > 0.0).all())

    def measure(self, run: Trajectory) -> dict[str, Any]:
        """Return the family's columns of a run that are defined for it."""
        selected = self.selected(run.params)
        values = self._values_at(run.params)
        selected_values = values[np.arange(self.n), selected]
        is_best = selected_values == values.max(axis=1)
        columns = {
            "best": float(np.mean(is_best)),
            "local": float(self._is_local(selected, values, LOCAL_SLACK)),
        }
        solution = self.margin(selected)
        p_or_W = run.params
        if self._trains_head:
            # The last row is the head. The features of a token have the shape of p or
            # W.
            p_or_W = run.params[:-1].reshape(self.drawn.features.shape[2:])
            columns |= self._head_columns(selected, run.params[-1])
        # Trained factors W_K and W_Q are not comparable with the solution, which is a
        # W. Parameters that are zero have no direction.
        has_direction = self.trained != "KQ" and p_or_W.any()
        if solution is not None and has_direction:
            columns["cosine"] = cosine(p_or_W, solution)
        return columns

    def _head_columns(
        self, selected: NDArray[np.intp], head: Array
    ) -> dict[str, float]:
        """Return the column ``head_cosine`` for a trained head v, if it is defined.

        The column is defined for a linear head that is not zero, if some vector u
        separates the ``selected`` tokens by their labels. The hard-margin solution has
        the least norm among the u with y_i u·x_i >= 1 for all selected tokens x_i.
        """
        data = self.drawn
        if data.layer is not None or not head.any():
            return {}
        tokens = data.tokens[np.arange(self.n), selected]
        separator = hard_margin(data.labels[:, None] * tokens)
        if separator is None:
            return {}
        return {"head_cosine": cosine(head, separator)}

    def describe(self, run: Trajectory) -> None:
        """Note which tokens are selected, and whether the best ones have no margin."""
        selected = self.selected(run.params)
        run.notes["tokens"] = "most attended: " + ", ".join(map(str, selected))
        best_tokens = self._values_at(run.params).argmax(axis=1)
        if self.margin(best_tokens) is None:
            run.notes["margin"] = (
                "outside the theorems: nothing gives the tokens of the largest values"
                " a margin"
            )


def _normalised(vectors: Array) -> Array:
    """Return the vectors along the last axis, scaled to the norm 1."""
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
