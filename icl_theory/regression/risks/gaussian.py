"""Gaussian inputs and random quadratic tasks: exact losses without a set of features.

Softmax attention over infinitely many tokens x ~ N(0, I) with scores x^T Q x_q is the
Gaussian N(Q x_q, I): training moves its mean, and its width is fixed. That makes the
loss of `GaussianRisk` a polynomial in Q. `FiniteGaussianRisk` has finite prompts and
Q = c I; its tokens are nodes along the query. `SampledGaussianRisk` draws prompts
instead, for any Q. All three take the law of the tasks, a `QuadraticLaw`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import (
    LARGEST,
    Array,
    argument_error,
    instance,
    integer,
    lipschitz,
    number,
    set_fields,
)
from icl_theory.engine.risk import Risk
from icl_theory.regression.sampled.layer import PromptRisk, Prompts
from icl_theory.regression.tasks import quadratics
from icl_theory.tokens.gaussian import gaussian_queries, reach_of, usual_step
from icl_theory.tokens.risk import MOST_TOKENS, Kind, TokenRisk
from icl_theory.tokens.square import change_along

# A matrix of so many dimensions takes 0.8 GB.
MOST_DIMENSIONS = 10_000
# With finite prompts the weights of tokens span a factor e^(20 √d).
MOST_WITH_FINITE_PROMPTS = 100
# How often the distance between the lengths of queries is halved at most. After so many
# halvings a loss takes minutes.
MOST_HALVINGS = 5
# Nodes for the tokens are good for an error of e^-36 of the loss. The estimate of that
# error compares them with nodes for e^-42.
LOG_PRECISION = 36.0
LOG_PRECISION_OF_ERROR = 42.0


@dataclass(frozen=True)
class QuadraticLaw:
    r"""Random second-degree polynomials :math:`f(x) = x^\top A x + b^\top x`.

    The inputs are :math:`x \sim N(0, I_d)`. All entries of A, which is not symmetric,
    and of b are independent and normal with mean zero. (f depends only on the symmetric
    part of A, whose law is invariant under rotations. The law of a symmetric matrix
    with entries of equal variance would not be.) The risks depend only on second
    moments. See docs/theory.md, "Gaussian inputs".

    Parameters
    ----------
    d : int
        Dimension of the inputs.
    sigma_a, sigma_b : float
        Standard deviations of the entries, label units, 0 or 1e-40 ... 1e40; not both
        0.
    """

    d: int
    sigma_a: float
    sigma_b: float

    def __post_init__(self) -> None:
        set_fields(self, d=integer("d", self.d, minimum=1, maximum=MOST_DIMENSIONS))
        for name in ("sigma_a", "sigma_b"):
            value = number(name, getattr(self, name), zero=True, maximum=LARGEST)
            # Products of smaller squares would underflow.
            if 0.0 < value < 1.0 / LARGEST:
                raise argument_error(
                    name, value, f"0, or between {1.0 / LARGEST:g} and {LARGEST:g}"
                )
            set_fields(self, **{name: value})
        if self.sigma_a == self.sigma_b == 0.0:
            raise argument_error("sigma_b", self.sigma_b, "positive if sigma_a is 0")

    @classmethod
    def lipschitz(cls, d: int, L: float, curved: float = 0.5) -> QuadraticLaw:
        r"""Law with a given root mean square gradient.

        A polynomial of degree two is not Lipschitz on the whole space. The root mean
        square of its gradient replaces the Lipschitz constant:

        .. math:: L^2 = E\,|\nabla f(x)|^2 = 2d(d+1)\,\sigma_a^2 + d\,\sigma_b^2.

        Parameters
        ----------
        d : int
            Dimension of the inputs.
        L : float
            Root mean square of the norm of the gradient, label units.
        curved : float
            Share of L² that is due to A, from 0 (linear functions) to 1.

        Returns
        -------
        QuadraticLaw
            The law.

        Examples
        --------
        >>> from icl_theory.regression import QuadraticLaw
        >>> round(QuadraticLaw.lipschitz(d=4, L=2.0, curved=0.25).L, 12)
        2.0
        """
        d = integer("d", d, minimum=1, maximum=MOST_DIMENSIONS)
        L = lipschitz(L)
        curved = number("curved", curved, zero=True, maximum=1.0)
        sigma_a = L * math.sqrt(curved / (2.0 * d * (d + 1)))
        sigma_b = L * math.sqrt((1.0 - curved) / d)
        return cls(d, sigma_a, sigma_b)

    @property
    def variances(self) -> tuple[float, float]:
        """Squares of sigma_a and sigma_b."""
        return self.sigma_a**2, self.sigma_b**2

    @property
    def L(self) -> float:
        """Root mean square norm of the gradient, √(2d(d+1) σ_A² + d σ_b²)."""
        quadratic_part = math.sqrt(2.0 * self.d * (self.d + 1)) * self.sigma_a
        linear_part = math.sqrt(self.d) * self.sigma_b
        return math.hypot(quadratic_part, linear_part)


@dataclass(frozen=True, eq=False)
class GaussianRisk(Risk):
    r"""The exact population risk of quadratic tasks on Gaussian inputs, for N = ∞.

    It is a function of Q, (d, d). The attention on the tokens is :math:`N(Qx_q, I)`,
    the prediction :math:`(Qx_q)^\top A(Qx_q) + b^\top Qx_q + \operatorname{tr} A`, and
    with :math:`P = Q^\top Q`

    .. math:: \mathcal L = \tfrac12\sigma_a^2\bigl[(\operatorname{tr} P)^2
        + 2\operatorname{tr} P^2 - 2(\operatorname{tr} Q)^2
        - 2\operatorname{tr} Q^2 + d(d+1)\bigr]
        + \tfrac12\sigma_b^2 \lVert Q - I\rVert_F^2 .

    The minimum is at a multiple :math:`c_*I` of the identity with :math:`c_* < 1`. It
    is positive unless the tasks are linear. The polynomial is expanded around it, so
    that the excess over the floor and the gradient keep their digits. Label noise
    averages out. See docs/theory.md, "Gaussian inputs".

    Parameters
    ----------
    law : QuadraticLaw
        Law of the tasks.

    Raises
    ------
    ValueError
        ``law`` is not a `QuadraticLaw`.

    Examples
    --------
    >>> import icl_theory as icl
    >>> law = icl.regression.QuadraticLaw(d=2, sigma_a=1.0, sigma_b=0.0)
    >>> risk = icl.GaussianRisk(law)
    >>> risk.floor(), round(risk.best**2, 15)
    (0.75, 0.75)
    """

    law: QuadraticLaw

    def __post_init__(self) -> None:
        instance("law", self.law, QuadraticLaw, "a QuadraticLaw")

    @property
    def initial(self) -> Array:
        """The zero matrix, (d, d)."""
        return np.zeros((self.law.d, self.law.d))

    @cached_property
    def best(self) -> float:
        r"""The multiple c of the identity that minimises the loss.

        It is the one positive root of :math:`2\sigma_a^2[(d+2)c^3 - (d+1)c] =
        \sigma_b^2(1-c)`, from :math:`\sqrt{(d+1)/(d+2)}` to 1.
        """
        d = self.law.d
        a, b = self.law.variances
        c = 1.0
        # The difference of both sides is convex and increasing to the right of the
        # root, so that Newton's method falls towards it from 1. At the root, rounding
        # ends the fall.
        while True:
            value = 2.0 * a * ((d + 2) * c**3 - (d + 1) * c) + b * (c - 1.0)
            slope = 2.0 * a * (3.0 * (d + 2) * c * c - (d + 1)) + b
            lower = c - value / slope
            if not lower < c:
                return c
            c = lower

    @cached_property
    def rate(self) -> float:
        r"""Largest eigenvalue of the Hessian at the minimum, squared label units.

        .. math:: \lambda = 2\sigma_a^2[3(d+2)c_*^2 - (d+1)] + \sigma_b^2

        Its eigenvector is I. Descent from zero approaches the minimum like :math:`(1 -
        \eta\lambda)^t`, and comes closer at every step if :math:`\eta \le 1/\lambda`.
        """
        d = self.law.d
        a, b = self.law.variances
        return 2.0 * a * (3.0 * (d + 2) * self.best**2 - (d + 1)) + b

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient with respect to Q, (d, d).

        The loss is infinite if it exceeds the range of float64.
        """
        excess, gradient = self._around_minimum(params)
        return self.floor() + excess, gradient

    def excess(self, params: ArrayLike) -> float:
        """Loss above the floor, without cancellation, squared label units."""
        return self._around_minimum(self._checked(params))[0]

    def floor(self) -> float:
        r"""Minimum over all Q, squared label units.

        .. math:: \tfrac d2\{\sigma_a^2[(d+1)(1-c_*^2)^2 + c_*^4]
            + \sigma_b^2(1-c_*)^2\}
        """
        d = self.law.d
        c = self.best
        a, b = self.law.variances
        quadratic_part = a * ((d + 1) * (1.0 - c * c) ** 2 + c**4)
        linear_part = b * (1.0 - c) ** 2
        return 0.5 * d * (quadratic_part + linear_part)

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Alignment tr(Q)/d, residual ``|Q - c* I|`` / √d and excess loss, () each.

        The alignment tells how far along x_q the centre of the attention lies; its best
        value is c*. It replaces the target attention, which needs features. The excess
        is over the floor.
        """
        d = self.law.d
        residual = np.linalg.norm(params - self.best * np.eye(d)) / math.sqrt(d)
        return {
            "alignment": np.asarray(np.trace(params) / d),
            "residual": np.asarray(residual),
            "excess": np.asarray(self._around_minimum(params)[0]),
        }

    def hessian_product(self, params: Array, direction: Array) -> Array:
        """Product of the Hessian with a direction, exactly, (d, d).

        Parameters with a product beyond the range of float64 are refused.
        """

        def gradient(Q: Array) -> Array:
            return self._around_minimum(Q)[1]

        with np.errstate(over="ignore", invalid="ignore"):
            product = change_along(gradient, params, direction)
        if not np.isfinite(product).all():
            largest = float(np.abs(params).max())
            raise argument_error(
                "params",
                largest,
                "entries with a finite Hessian (the largest is shown)",
            )
        return product

    def _around_minimum(self, Q: Array) -> tuple[float, Array]:
        r"""Excess and gradient, by powers of the deviation from the minimum.

        With :math:`D = Q - cI`, :math:`G = D^\top D`, :math:`t = \operatorname{tr} D`,
        :math:`n = \operatorname{tr} G` and :math:`q = \operatorname{tr} D^2` the excess
        is

        .. math:: \tfrac12\sigma_a^2\bigl[n^2 + 2\operatorname{tr} G^2
            + 4c\,(tn + \operatorname{tr}\,(D + D^\top) G)
            + c^2 (4t^2 + (2d + 8)n + 4q) - 2(t^2 + q)\bigr] + \tfrac12\sigma_b^2 n .

        The terms of order 1 vanish at the minimum. Q may be complex, for derivatives.
        """
        d = self.law.d
        a, b = self.law.variances
        D = Q - self.best * np.eye(d)
        # Fourth powers of a large D would overflow. In units of its largest entry, each
        # missing power of D is a power of c or of 1 in the same units.
        unit = max(1.0, float(np.abs(D).max()))
        D = D / unit
        c = self.best / unit
        one = 1.0 / unit
        G = D.T @ D
        symmetric = D + D.T
        t = np.trace(D)
        n = np.trace(G)
        q = np.sum(D * D.T)
        quartic = n**2 + 2.0 * np.sum(G * G)
        cubic = 4.0 * c * (t * n + np.sum(symmetric * G))
        quadratic = c * c * (4.0 * t**2 + (2 * d + 8) * n + 4.0 * q)
        quadratic -= 2.0 * one**2 * (t**2 + q)
        excess = 0.5 * a * (quartic + cubic + quadratic)
        # From the traces of products, from n and q, and from t.
        gradient = 4.0 * (D @ G + c * (D @ symmetric + G) + c * c * (2.0 * D + D.T))
        gradient += 2.0 * (d * c * c + 2.0 * c * t + n) * D - 2.0 * one**2 * D.T
        along_identity = 4.0 * c * c * t + 2.0 * c * n - 2.0 * one**2 * t
        gradient[np.diag_indices(d)] += along_identity
        with np.errstate(over="ignore"):
            # The linear tasks' part has two powers of the unit less. If sigma_a is zero
            # it is the whole loss, and must not be lost to a product with zero.
            excess = excess * unit * unit + 0.5 * b * n
            gradient = a * gradient * unit * unit + b * D
            excess = max(float(excess.real * unit * unit), 0.0)
            return excess, gradient * unit


class _QueryLength(NamedTuple):
    """Queries of one length r: their probability, and their tokens."""

    probability: float
    score_slope: Array  # derivatives r X of the scores c r X of the nodes, (U,)
    risk: TokenRisk


class _LengthRule(NamedTuple):
    """A rule for the average over the lengths of queries, and its step."""

    step: float
    lengths: tuple[_QueryLength, ...]


@dataclass(frozen=True, eq=False)
class FiniteGaussianRisk(Risk):
    r"""The population risk of quadratic tasks on Gaussian inputs, for finite prompts.

    By symmetry descent from zero stays at multiples Q = c I of the identity. The
    parameter is c, (1,). A unit of it stands for d entries of Q, which is the metric. A
    token enters by its component :math:`X \sim N(0, 1)` along the query :math:`x_q` of
    length r, with the score :math:`c r X`. With :math:`s = X^2 - r^2`, the errors of
    two tokens have the mean product

    .. math:: \sigma_a^2 (s s' + d - 1) + \sigma_b^2 (X - r)(X' - r),

    and the square of one exceeds that of its node by
    :math:`(d - 1)[\sigma_a^2 (2 X^2 + d) + \sigma_b^2] + \sigma^2`.

    The averages over tokens and over the length are trapezoid rules, refined until the
    loss is accurate to the ``tolerance``. `error` estimates the error of the loss. See
    docs/theory.md, "Gaussian inputs".

    Parameters
    ----------
    law : QuadraticLaw
        Law of the tasks.
    N : int
        Prompt length.
    noise : float
        Standard deviation σ of the label noise, label units.
    tolerance : float
        Relative error of the loss, 1e-12 to 1e-2, at which the average over the length
        of the query is refined no further.

    Examples
    --------
    >>> import icl_theory as icl
    >>> law = icl.regression.QuadraticLaw(d=1, sigma_a=0.0, sigma_b=1.0)
    >>> risk = icl.regression.FiniteGaussianRisk(law, N=100)
    >>> round(risk.loss([1.0]), 6), round(risk.best, 3)
    (0.032409, 1.015)
    """

    law: QuadraticLaw
    N: int
    noise: float = 0.0
    tolerance: float = 1e-10

    def __post_init__(self) -> None:
        instance("law", self.law, QuadraticLaw, "a QuadraticLaw")
        if self.law.d > MOST_WITH_FINITE_PROMPTS:
            raise argument_error(
                "d",
                self.law.d,
                f"at most {MOST_WITH_FINITE_PROMPTS} for finite prompts",
            )
        set_fields(
            self,
            N=integer("N", self.N, minimum=1, maximum=MOST_TOKENS),
            noise=number("noise", self.noise, zero=True, maximum=LARGEST),
            tolerance=number("tolerance", self.tolerance, minimum=1e-12, maximum=1e-2),
        )

    @property
    def initial(self) -> Array:
        """Zero, (1,)."""
        return np.zeros(1)

    @property
    def metric(self) -> float:
        """Number of entries of Q that c stands for."""
        return float(self.law.d)

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its derivative with respect to c, (1,)."""
        loss = 0.0
        slope = 0.0
        for probability, score_slope, risk in self._lengths(_reach(params)):
            loss_at_length, gradient = risk.evaluate(params[0] * score_slope)
            loss = loss + probability * loss_at_length
            slope = slope + probability * float(gradient @ score_slope)
        return loss, np.array([slope])

    def hessian_product(self, params: Array, direction: Array) -> Array:
        """Second derivative times the direction, (1,)."""
        curvature = 0.0
        for probability, score_slope, risk in self._lengths(_reach(params)):
            scores = params[0] * score_slope
            change = risk.hessian_product(scores, score_slope)
            curvature = curvature + probability * float(score_slope @ change)
        return curvature * direction

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Alignment c, and the excess over the floor, () each."""
        loss = self.evaluate(params)[0]
        return {
            "alignment": np.asarray(params[0]),
            "excess": np.asarray(loss - self.floor()),
        }

    @cached_property
    def best(self) -> float:
        """The c of the least loss; 1 for a single token, which has all attention."""
        from scipy.optimize import minimize_scalar

        if self.N == 1:
            return 1.0

        def loss(c: float) -> float:
            return self.evaluate(np.array([c]))[0]

        minimum = minimize_scalar(loss, bounds=(0.0, 2.0), options={"xatol": 1e-8})
        return float(minimum.x)

    def floor(self) -> float:
        """Least loss over c."""
        return self._floor

    @cached_property
    def _floor(self) -> float:
        return self.evaluate(np.array([self.best]))[0]

    @cached_property
    def rate(self) -> float:
        """Largest second derivative on the way to the minimum, over the metric.

        It is the largest of nine values between c = 0 and the minimum, squared label
        units.
        """
        path = np.linspace(0.0, self.best, 9)
        curvatures = [
            float(self.hessian_product(np.array([c]), np.ones(1))[0]) for c in path
        ]
        return max(curvatures) / self.metric

    def error(self, params: ArrayLike) -> float:
        """Estimate of the error of the loss, from above, squared label units.

        It is the sum of two parts. The first is twice the distance to the loss with
        twice as many lengths of queries and with tokens of lower probability. The
        second is the mean error of the losses at the single lengths
        (`TokenRisk.error`).
        """
        c = self._checked(params)
        rule = self._rule(_reach(c))
        finer = self._queries_at(
            _reach(c), 0.5 * rule.step, log_precision=LOG_PRECISION_OF_ERROR
        )
        finer_loss = sum(
            length.probability * length.risk.evaluate(c * length.score_slope)[0]
            for length in finer
        )
        loss = 0.0
        error_within = 0.0
        for probability, score_slope, risk in rule.lengths:
            loss += probability * risk.evaluate(c * score_slope)[0]
            error_within += probability * risk.error(c * score_slope)
        return float(2.0 * abs(loss - finer_loss) + error_within)

    def loss_error(self, params: ArrayLike) -> float:
        """Return `error`."""
        return self.error(params)

    def _lengths(self, largest: float) -> tuple[_QueryLength, ...]:
        """The lengths of queries for all c up to the largest one."""
        return self._rule(largest).lengths

    @lru_cache(maxsize=4)  # noqa: B019
    def _rule(self, largest: float) -> _LengthRule:
        """The rule whose losses are accurate to the tolerance."""
        step = 2.0 * usual_step(self.law.d)
        lengths = self._queries_at(largest, step)
        for _ in range(MOST_HALVINGS):
            if self._is_accurate(lengths, largest):
                break
            step *= 0.5
            lengths = self._queries_at(largest, step)
        return _LengthRule(step, lengths)

    def _is_accurate(self, lengths: tuple[_QueryLength, ...], largest: float) -> bool:
        """Whether the losses are accurate to the tolerance.

        They are compared with those of every other length. Half the distance between
        the lengths raises the error to a power of 1.7 or more if the error is below
        1e-5, as measured for d from 1 to 100 (docs/theory.md, "Gaussian inputs"). The
        power 1/0.6 that is assumed is less than that.
        """
        weights = np.array([length.probability for length in lengths])
        for c in (0.0, 0.5 * largest, largest):
            losses = np.array(
                [length.risk.evaluate(c * length.score_slope)[0] for length in lengths]
            )
            loss = weights @ losses / weights.sum()
            coarse_loss = weights[::2] @ losses[::2] / weights[::2].sum()
            if abs(coarse_loss - loss) > self.tolerance**0.6 * loss:
                return False
        return True

    def _queries_at(
        self, largest: float, step: float, log_precision: float = LOG_PRECISION
    ) -> tuple[_QueryLength, ...]:
        """The lengths of queries that are a step from each other."""
        law = self.law
        d = law.d
        lengths = []
        for probability, r, X, probs in gaussian_queries(
            d, self.N, largest, step, log_precision
        ):
            # The mean label of a node in three coordinates of the task: the entry of A
            # along the query, the sum of its other diagonal entries, and the entry of b
            # along the query.
            constant = np.full_like(X, law.sigma_a * math.sqrt(d - 1.0))
            values = np.stack([law.sigma_a * X * X, constant, law.sigma_b * X], axis=1)
            target = np.array([law.sigma_a * r * r, 0.0, law.sigma_b * r])
            across = law.sigma_a**2 * (2.0 * X * X + d) + law.sigma_b**2
            spread = (d - 1.0) * across + self.noise**2
            risk = TokenRisk([Kind(self.N, probs, values, spread)], target)
            lengths.append(_QueryLength(probability, r * X, risk))
        return tuple(lengths)


def _reach(params: Array) -> float:
    """The size of c, rounded up to a power of two, for which nodes are computed."""
    return reach_of(abs(float(params[0])), 1.0)


@dataclass(frozen=True, eq=False)
class SampledGaussianRisk(PromptRisk):
    r"""Squared error of softmax attention on sampled prompts with Gaussian inputs.

    One layer predicts :math:`\hat y = \sum_i \mathrm{softmax}_i(x_i^\top Q x_q)\, y_i`
    from N tokens. As N grows the mean loss tends to that of `GaussianRisk`, but slowly:
    if :math:`|Qx_q|^2` exceeds ln N, the prediction depends on the few tokens nearest
    to :math:`Qx_q`. See docs/theory.md, "Gaussian inputs".

    Parameters
    ----------
    law : QuadraticLaw
        Law of the tasks.
    N, batch, seed, dataset, noise
        As for `SampledRisk`.

    Examples
    --------
    >>> import icl_theory as icl
    >>> law = icl.regression.QuadraticLaw.lipschitz(d=2, L=1.0)
    >>> risk = icl.regression.SampledGaussianRisk(law, N=50, batch=64, seed=0)
    >>> run = icl.descend(risk, eta=0.3, steps=30)
    >>> bool(run.observed["alignment"][-1] > 0.5)
    True
    """

    law: QuadraticLaw
    N: int
    batch: int
    seed: int
    dataset: int | None = None
    noise: float = 0.0

    def __post_init__(self) -> None:
        instance("law", self.law, QuadraticLaw, "a QuadraticLaw")
        set_fields(self, noise=number("noise", self.noise, zero=True, maximum=LARGEST))
        self._prepare()

    @property
    def initial(self) -> Array:
        """The zero matrix, (d, d)."""
        return np.zeros((self.law.d, self.law.d))

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Alignment tr(Q)/d, and the mean largest weight on a token, () each.

        The mean is over the prompts of the step.
        """
        heaviest = []
        for part in self.parts(self.prompts(step)):
            attention, _ = self._attended(params, part)
            heaviest.append(attention.max(axis=1))
        return {
            "alignment": np.asarray(np.trace(params) / self.law.d),
            "heaviest": np.asarray(np.mean(np.concatenate(heaviest))),
        }

    def _bytes(self, size: int) -> float:
        d = self.law.d
        points_and_matrices = 2.0 * (self.N + 1) + d
        return super()._bytes(size) + 16.0 * size * d * points_and_matrices

    def _draw(self, rng: np.random.Generator, size: int) -> Prompts:
        law = self.law
        points = rng.normal(size=(size, self.N + 1, law.d))
        functions = quadratics(rng, size, law.d, law.sigma_a, law.sigma_b)
        values = functions(points)
        label = values[:, :-1]
        if self.noise:
            label = label + rng.normal(0.0, self.noise, label.shape)
        # There is no finite set of features whose indices a prompt could hold.
        no_features = np.zeros((size, 0), dtype=np.intp)
        return Prompts(
            no_features,
            no_features,
            label,
            values[:, -1],
            points[:, :-1],
            points[:, -1],
        )
