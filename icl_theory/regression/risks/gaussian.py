"""Gaussian inputs and random quadratic tasks: exact losses without a set of features.

Let the tokens be infinitely many points x ~ N(0, I), and their scores x^T Q x_q for a
query x_q. The softmax attention then has the density of N(Q x_q, I) over the points:
training Q moves the mean, and the width is fixed. So the loss of `GaussianRisk` is a
polynomial in Q. `FiniteGaussianRisk` has finite prompts and Q = c I. It replaces the
law of a token by nodes, points with probabilities, on the line along the query.
`SampledGaussianRisk` draws prompts instead, for any Q. All three take the law of the
tasks, a `QuadraticLaw`.

Everywhere d is the dimension of the inputs, N the number of tokens of a prompt, and
σ_a and σ_b are the standard deviations ``sigma_a`` and ``sigma_b`` of the entries of A
and b, for tasks x^T A x + b^T x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

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
from icl_theory.tokens.gaussian import gaussian_queries, next_power_of_two, usual_step
from icl_theory.tokens.lengths import MOST_TOKENS
from icl_theory.tokens.risk import Kind, TokenRisk
from icl_theory.tokens.square import change_along

# A matrix of 10 000 x 10 000 numbers takes 0.8 GB.
MOST_DIMENSIONS = 10_000
# Largest dimension d with finite prompts. The errors of the quadrature rules were
# measured up to this dimension. The weights of tokens span a factor e^(20 √d), at most
# e^200, and so stay within float64.
MOST_WITH_FINITE_PROMPTS = 100
# Largest number of times that the step between the lengths of queries is halved. After
# five halvings one loss takes minutes.
MOST_HALVINGS = 5
# A rule over the lengths of queries counts as accurate to the tolerance if a rule with
# twice its step has a relative error below the tolerance raised to this power.
# `FiniteGaussianRisk._is_accurate` gives the reason.
ERROR_POWER = 0.6
# Number of values of c, from 0 to the minimum, at which the second derivative is taken.
# More values would find a peak of the curvature more exactly, but each takes time.
CURVATURE_POINTS = 9
# The nodes of the tokens have a relative error of e^-36 = 2e-16, the rounding of a
# number. The estimate of this error compares them with nodes whose error is e^-42.
LOG_PRECISION = 36.0
LOG_PRECISION_OF_ERROR = 42.0


@dataclass(frozen=True)
class QuadraticLaw:
    r"""Random second-degree polynomials :math:`f(x) = x^\top A x + b^\top x`.

    The inputs are :math:`x \sim N(0, I_d)`. All entries of A and of b are independent
    and normal with mean zero. A is not symmetric, but f depends only on its symmetric
    part, and the law of this part is invariant under rotations. (A symmetric matrix
    whose entries have equal variances would not have such a law.) The risks depend only
    on the second moments of A and b. See docs/theory.md, "Gaussian inputs".

    Parameters
    ----------
    d : int
        Dimension of the inputs.
    sigma_a, sigma_b : float
        Standard deviations of the entries of A and of b, in label units. Each is 0 or
        between 1e-40 and 1e40, and they are not both 0.
    """

    d: int
    sigma_a: float
    sigma_b: float

    def __post_init__(self) -> None:
        set_fields(self, d=integer("d", self.d, minimum=1, maximum=MOST_DIMENSIONS))
        for name in ("sigma_a", "sigma_b"):
            value = number(name, getattr(self, name), zero=True, maximum=LARGEST)
            # Products of the squares of smaller numbers would underflow.
            if 0.0 < value < 1.0 / LARGEST:
                raise argument_error(
                    name, value, f"0, or between {1.0 / LARGEST:g} and {LARGEST:g}"
                )
            set_fields(self, **{name: value})
        if self.sigma_a == self.sigma_b == 0.0:
            raise argument_error("sigma_b", self.sigma_b, "positive if sigma_a is 0")

    @classmethod
    def lipschitz(cls, d: int, L: float, curved: float = 0.5) -> QuadraticLaw:
        r"""Return the law whose gradient has a given root mean square.

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
        """The squares of sigma_a and sigma_b."""
        return self.sigma_a**2, self.sigma_b**2

    @property
    def L(self) -> float:
        """Root mean square norm of the gradient, √(2d(d+1) σ_a² + d σ_b²)."""
        quadratic_part = math.sqrt(2.0 * self.d * (self.d + 1)) * self.sigma_a
        linear_part = math.sqrt(self.d) * self.sigma_b
        return math.hypot(quadratic_part, linear_part)


@dataclass(frozen=True, eq=False)
class GaussianRisk(Risk):
    r"""The exact population risk of quadratic tasks on Gaussian inputs, for N = ∞.

    It is a function of Q, (d, d). The attention on the tokens has the density of
    :math:`N(Qx_q, I)`, and the prediction is
    :math:`(Qx_q)^\top A(Qx_q) + b^\top Qx_q + \operatorname{tr} A`. With
    :math:`P = Q^\top Q` the loss is

    .. math:: \mathcal L = \tfrac12\sigma_a^2\bigl[(\operatorname{tr} P)^2
        + 2\operatorname{tr} P^2 - 2(\operatorname{tr} Q)^2
        - 2\operatorname{tr} Q^2 + d(d+1)\bigr]
        + \tfrac12\sigma_b^2 \lVert Q - I\rVert_F^2 .

    The loss has its minimum at a multiple :math:`c_*I` of the identity with
    :math:`c_* < 1` (for linear tasks :math:`c_* = 1`). The least loss is positive
    unless the tasks are linear. The polynomial is expanded around the minimum, so that
    the excess over the least loss and the gradient keep their digits. Label noise
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

        It is the only positive root of :math:`2\sigma_a^2[(d+2)c^3 - (d+1)c] =
        \sigma_b^2(1-c)`, and lies between :math:`\sqrt{(d+1)/(d+2)}` and 1.
        """
        d = self.law.d
        variance_a, variance_b = self.law.variances
        c = 1.0
        # To the right of the root, the left side of the equation minus its right side
        # is convex and increasing, so that the iterates of Newton's method fall from 1
        # towards the root. Near the root, rounding makes an iterate stay or rise, which
        # ends the loop.
        while True:
            cubic = (d + 2) * c**3 - (d + 1) * c
            difference = 2.0 * variance_a * cubic + variance_b * (c - 1.0)
            slope = 2.0 * variance_a * (3.0 * (d + 2) * c * c - (d + 1)) + variance_b
            lower = c - difference / slope
            if not lower < c:
                return c
            c = lower

    @cached_property
    def rate(self) -> float:
        r"""Largest eigenvalue of the Hessian at the minimum, squared label units.

        .. math:: \lambda = 2\sigma_a^2[3(d+2)c_*^2 - (d+1)] + \sigma_b^2

        Its eigenvector is the identity matrix, and descent from zero stays at multiples
        of the identity. So the distance from the minimum falls like :math:`(1 -
        \eta\lambda)^t`, and falls at every step if :math:`\eta \le 1/\lambda`.
        """
        d = self.law.d
        variance_a, variance_b = self.law.variances
        quadratic_part = 2.0 * variance_a * (3.0 * (d + 2) * self.best**2 - (d + 1))
        return quadratic_part + variance_b

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient with respect to Q, (d, d).

        The loss is infinite if it exceeds the range of float64.
        """
        excess, gradient = self._around_minimum(params)
        return self.floor() + excess, gradient

    def excess(self, params: ArrayLike) -> float:
        """Loss above the floor, without cancellation, squared label units."""
        Q = self._checked(params)
        excess, _gradient = self._around_minimum(Q)
        return excess

    def floor(self) -> float:
        r"""Minimum over all Q, squared label units.

        .. math:: \tfrac d2\{\sigma_a^2[(d+1)(1-c_*^2)^2 + c_*^4]
            + \sigma_b^2(1-c_*)^2\}
        """
        d = self.law.d
        c = self.best
        variance_a, variance_b = self.law.variances
        quadratic_part = variance_a * ((d + 1) * (1.0 - c * c) ** 2 + c**4)
        linear_part = variance_b * (1.0 - c) ** 2
        return 0.5 * d * (quadratic_part + linear_part)

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Alignment tr(Q)/d, residual ``|Q - c* I|`` / √d and excess loss, () each.

        The centre of the attention is Q x_q. The alignment is the mean component of
        this centre along x_q, in units of x_q; its best value is c*. The alignment
        takes the place of the target attention, which is defined for finitely many
        features only. The excess is the loss above the floor.
        """
        d = self.law.d
        residual = np.linalg.norm(params - self.best * np.eye(d)) / math.sqrt(d)
        excess, _gradient = self._around_minimum(params)
        return {
            "alignment": np.asarray(np.trace(params) / d),
            "residual": np.asarray(residual),
            "excess": np.asarray(excess),
        }

    def hessian_product(self, params: Array, direction: Array) -> Array:
        """Product of the Hessian with a direction, exactly, (d, d).

        If an entry of the product is beyond the range of float64, the parameters are
        refused.
        """

        def gradient(Q: Array) -> Array:
            _excess, gradient_at_Q = self._around_minimum(Q)
            return gradient_at_Q

        # `change_along` differentiates the gradient by a complex step. An overflow is
        # not reported as a warning, because it is refused below.
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
        r"""Excess and gradient, as polynomials in the deviation from the minimum.

        With :math:`D = Q - cI`, :math:`G = D^\top D`, :math:`t = \operatorname{tr} D`,
        :math:`n = \operatorname{tr} G` and :math:`q = \operatorname{tr} D^2` the excess
        is

        .. math:: \tfrac12\sigma_a^2\bigl[n^2 + 2\operatorname{tr} G^2
            + 4c\,(tn + \operatorname{tr}\,(D + D^\top) G)
            + c^2 (4t^2 + (2d + 8)n + 4q) - 2(t^2 + q)\bigr] + \tfrac12\sigma_b^2 n .

        There are no terms of first order in D, because c is the minimum. Q may be
        complex, for derivatives by complex steps.
        """
        variance_a, variance_b = self.law.variances
        D = Q - self.best * np.eye(self.law.d)
        # Fourth powers of a large D would overflow, so D, c and 1 are divided by a
        # unit: the largest absolute value in D, or 1 if all are smaller. Every term of
        # the bracket in the formula has four factors that are divided: its terms of
        # second order, for example, contain c² or 1².
        unit = max(1.0, float(np.abs(D).max()))
        D = D / unit
        part = _quadratic_part(D, c=self.best / unit, one=1.0 / unit)
        excess = 0.5 * variance_a * part.excess
        # A loss beyond float64 becomes infinite without a warning, as documented.
        with np.errstate(over="ignore"):
            # The part of the excess due to A must be multiplied by unit⁴, and its
            # gradient by unit³. The terms of sigma_b² must be multiplied by two factors
            # fewer, so they are added after the first two multiplications. If they were
            # divided by unit² instead, they might underflow.
            excess = excess * unit * unit + 0.5 * variance_b * part.squared_norm
            gradient = variance_a * part.gradient * unit * unit + variance_b * D
            # Complex steps differentiate the gradient alone, so the imaginary part of
            # the excess is dropped. Rounding may make its real part negative.
            excess = max(float(excess.real * unit * unit), 0.0)
            return excess, gradient * unit


class _QuadraticPart(NamedTuple):
    """The part of the excess that is due to A, see `GaussianRisk._around_minimum`.

    Its numbers are complex if D is.
    """

    excess: Any  # the bracket in the formula, which is to be multiplied by ½ sigma_a²
    gradient: Array  # half the gradient of this bracket with respect to D
    squared_norm: Any  # n = tr DᵀD


def _quadratic_part(D: Array, c: float, one: float) -> _QuadraticPart:
    """Evaluate the part of the excess that is due to A, in powers of D.

    D and c are divided by some unit, and ``one`` is 1 divided by this unit. The letters
    are defined in `GaussianRisk._around_minimum`.
    """
    d = len(D)
    G = D.T @ D
    symmetric = D + D.T
    t = np.trace(D)
    n = np.trace(G)
    q = np.sum(D * D.T)
    quartic = n**2 + 2.0 * np.sum(G * G)
    cubic = 4.0 * c * (t * n + np.sum(symmetric * G))
    quadratic = c * c * (4.0 * t**2 + (2 * d + 8) * n + 4.0 * q)
    quadratic -= 2.0 * one**2 * (t**2 + q)
    # The gradient uses dt/dD = I, dn/dD = 2D, dq/dD = 2Dᵀ and d(tr G²)/dD = 4DG. The
    # trace of (D + Dᵀ)G has the derivative 2(D(D + Dᵀ) + G). The result is half the
    # gradient. The terms with dt/dD = I are added on the diagonal.
    gradient = 4.0 * (D @ G + c * (D @ symmetric + G) + c * c * (2.0 * D + D.T))
    gradient += 2.0 * (d * c * c + 2.0 * c * t + n) * D - 2.0 * one**2 * D.T
    along_identity = 4.0 * c * c * t + 2.0 * c * n - 2.0 * one**2 * t
    gradient[np.diag_indices(d)] += along_identity
    return _QuadraticPart(quartic + cubic + quadratic, gradient, n)


class _QueryLength(NamedTuple):
    """The queries of one length r, with U nodes for a token."""

    probability: float  # of this length, its weight in the average
    # r X, the derivatives of the scores c r X with respect to c, (U,). X is the
    # component of a node along the query.
    score_slope: Array
    risk: TokenRisk  # of these queries, as a function of the scores of the nodes, (U,)


class _LengthRule(NamedTuple):
    """A trapezoid rule for the average over the lengths of queries."""

    step: float  # in the variable x of `icl_theory.tokens.gaussian.query_lengths`
    lengths: tuple[_QueryLength, ...]


@dataclass(frozen=True, eq=False)
class FiniteGaussianRisk(Risk):
    r"""The population risk of quadratic tasks on Gaussian inputs, for finite prompts.

    By symmetry, descent from zero stays at multiples Q = c I of the identity. The only
    parameter is c, (1,). A change of c by 1 changes d entries of Q by 1, so the metric
    is d. Let the query :math:`x_q` have the length r, and a token the component
    :math:`X \sim N(0, 1)` along it. The score of the token is :math:`c r X`. The error
    of a token is its label minus the target. With :math:`s = X^2 - r^2` and
    :math:`s' = X'^2 - r^2`, the errors of two tokens at X and X' have the mean product

    .. math:: \sigma_a^2 (s s' + d - 1) + \sigma_b^2 (X - r)(X' - r).

    The mean square of one error is larger than this product at X' = X, by
    :math:`(d - 1)[\sigma_a^2 (2 X^2 + d) + \sigma_b^2] + \sigma^2`.

    The averages over X and over r are trapezoid rules. The rule over X is exact to
    rounding, and the rule over r is refined until the relative error of the loss is
    below the ``tolerance``. `error` estimates the error of the loss. See
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
        Relative error of the loss, from 1e-12 to 1e-2. Once it is reached, the average
        over the length of the query is not refined further.

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
        """The c with the least loss.

        It is set to 1 for prompts of a single token, whose attention does not depend on
        c.
        """
        # SciPy's optimisers are loaded here, because many runs do not need them.
        from scipy.optimize import minimize_scalar

        if self.N == 1:
            return 1.0

        def loss(c: float) -> float:
            return self.evaluate(np.array([c]))[0]

        # The minimum is near 1, its place for N = ∞ and linear tasks. The loss is flat
        # there: an error of 1e-8 in c changes it in the sixteenth digit.
        minimum = minimize_scalar(loss, bounds=(0.0, 2.0), options={"xatol": 1e-8})
        return float(minimum.x)

    def floor(self) -> float:
        """Least loss over c."""
        return self._floor

    @cached_property
    def _floor(self) -> float:
        """The loss at the best c, which is computed once."""
        return self.evaluate(np.array([self.best]))[0]

    @cached_property
    def rate(self) -> float:
        """Largest curvature along descent from zero, squared label units.

        The curvature is the second derivative of the loss with respect to c, divided by
        the metric. It may be largest before the minimum, so it is taken at nine values
        of c from 0 to the minimum. ``eta="auto"`` is 1/rate: at this learning rate no
        step leads past the minimum.
        """
        direction = np.ones(1)
        second_derivatives = []
        for c in np.linspace(0.0, self.best, CURVATURE_POINTS):
            (second_derivative,) = self.hessian_product(np.array([c]), direction)
            second_derivatives.append(float(second_derivative))
        return max(second_derivatives) / self.metric

    def error(self, params: ArrayLike) -> float:
        """Estimate of the error of the loss, from above, squared label units.

        It is the sum of two parts. The first is twice the difference from the loss by a
        finer rule, which has twice as many lengths of queries and more accurate nodes
        of tokens. The second is the mean, over the lengths, of the errors of their
        losses (`TokenRisk.error`).
        """
        c = self._checked(params)  # (1,)
        rule = self._rule(_reach(c))
        # Half the step of the lengths, and more accurate nodes of tokens
        finer = self._queries_at(
            _reach(c), 0.5 * rule.step, log_precision=LOG_PRECISION_OF_ERROR
        )
        finer_loss = 0.0
        for probability, score_slope, risk in finer:
            loss_at_length, _gradient = risk.evaluate(c * score_slope)
            finer_loss += probability * loss_at_length
        loss = 0.0
        mean_error = 0.0
        for probability, score_slope, risk in rule.lengths:
            loss_at_length, _gradient = risk.evaluate(c * score_slope)
            loss += probability * loss_at_length
            mean_error += probability * risk.error(c * score_slope)
        return float(2.0 * abs(loss - finer_loss) + mean_error)

    def loss_error(self, params: ArrayLike) -> float:
        """Return the estimate of `error`; the engine asks for it by this name."""
        return self.error(params)

    def _lengths(self, largest: float) -> tuple[_QueryLength, ...]:
        """Return the queries of the rule for all c up to ``largest``."""
        return self._rule(largest).lengths

    # ``largest`` is a power of two (see `_reach`). A run needs rules for a few of them,
    # and the four latest rules are kept. The cache also keeps this risk alive, which
    # the linter warns about (B019).
    @lru_cache(maxsize=4)  # noqa: B019
    def _rule(self, largest: float) -> _LengthRule:
        """Return a rule that is accurate to the tolerance for all c up to ``largest``.

        After `MOST_HALVINGS` halvings of the step, it may be less accurate.
        """
        # The usual step gives ten digits. Twice this step is often enough, so begin
        # with it.
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

        The loss of the rule is compared with the loss of a coarser rule, which has
        every second length. If the coarser rule has a relative error e below 1e-5, the
        finer one has an error of e^1.7 or less, as measured for d from 1 to 100
        (docs/theory.md, "Gaussian inputs"). The test assumes the weaker e^(1/0.6), so
        that e may be as large as the tolerance to the power 0.6.
        """
        # The weights of every second length sum to about ½ only, so each loss is
        # divided by the sum of its weights.
        weights = np.array([length.probability for length in lengths])
        every_second = slice(None, None, 2)
        coarse_weights = weights[every_second]
        # The rule must hold for all c up to ``largest``. It is tested at both ends of
        # this range and in the middle.
        for c in (0.0, 0.5 * largest, largest):
            losses_at_lengths = []
            for length in lengths:
                loss_at_length, _gradient = length.risk.evaluate(c * length.score_slope)
                losses_at_lengths.append(loss_at_length)
            losses = np.array(losses_at_lengths)
            loss = weights @ losses / weights.sum()
            coarse_sum = coarse_weights @ losses[every_second]
            coarse_loss = coarse_sum / coarse_weights.sum()
            if abs(coarse_loss - loss) > self.tolerance**ERROR_POWER * loss:
                return False
        return True

    def _queries_at(
        self, largest: float, step: float, log_precision: float = LOG_PRECISION
    ) -> tuple[_QueryLength, ...]:
        """Return the queries at the nodes of a trapezoid rule over their lengths.

        The nodes are spaced by ``step`` in the variable x of
        `icl_theory.tokens.gaussian.query_lengths`. The nodes of tokens have a relative
        error of about e^-log_precision.
        """
        law = self.law
        d = law.d
        lengths = []
        # For each length r of the query: its probability, and the nodes of a token,
        # with their components X along the query and their probabilities. The nodes are
        # close enough for scores c r X with |c| up to ``largest``.
        for probability, r, X, probs in gaussian_queries(
            d, self.N, largest, step, log_precision
        ):
            # The mean label of a node is linear in three coordinates of the task, each
            # of variance 1 after scaling: the entry of A along the query, the sum of
            # the other diagonal entries of A, and the entry of b along the query.
            constant = np.full_like(X, law.sigma_a * math.sqrt(d - 1.0))
            values = np.stack([law.sigma_a * X * X, constant, law.sigma_b * X], axis=1)
            target = np.array([law.sigma_a * r * r, 0.0, law.sigma_b * r])
            # The variance of a label around the mean label of its node. Each direction
            # i of the d - 1 across the query adds 2σ_a²X² from the terms A_qi and A_iq,
            # dσ_a² from its share of the terms A_ij across the query, and σ_b² from the
            # term b_i.
            across = law.sigma_a**2 * (2.0 * X * X + d) + law.sigma_b**2
            spread = (d - 1.0) * across + self.noise**2
            tokens = Kind(self.N, probs=probs, values=values, spread=spread)
            risk = TokenRisk([tokens], target)
            lengths.append(_QueryLength(probability, score_slope=r * X, risk=risk))
        return tuple(lengths)


def _reach(params: Array) -> float:
    """Return the size of c, the only parameter, rounded up to a power of two >= 1.

    Nodes are computed for all c up to this size, so that many c share their nodes.
    """
    return next_power_of_two(abs(float(params[0])), least=1.0)


@dataclass(frozen=True, eq=False)
class SampledGaussianRisk(PromptRisk):
    r"""Squared error of softmax attention on sampled prompts with Gaussian inputs.

    One layer predicts :math:`\hat y = \sum_i \mathrm{softmax}_i(x_i^\top Q x_q)\, y_i`
    from N tokens. As N grows, the mean loss tends to the loss of `GaussianRisk`, but
    slowly. If :math:`|Qx_q|^2` exceeds 2 ln N, the few tokens with the largest scores
    have nearly all attention. See docs/theory.md, "Gaussian inputs".

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
        # This checks the other fields and draws the data set, so it comes last.
        self._prepare()

    @property
    def initial(self) -> Array:
        """The zero matrix, (d, d)."""
        return np.zeros((self.law.d, self.law.d))

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Alignment tr(Q)/d, and the largest attention on a token, () each.

        The second, ``heaviest``, is a mean over the prompts of the step.
        """
        heaviest = []
        for part in self.parts(self.prompts(step)):
            # the attention of each prompt on its tokens, (prompts, N)
            attention, _prediction = self._attended(params, part)
            heaviest.append(attention.max(axis=1))
        return {
            "alignment": np.asarray(np.trace(params) / self.law.d),
            "heaviest": np.asarray(np.mean(np.concatenate(heaviest))),
        }

    def _bytes(self, size: int) -> float:
        """Return a rough estimate of the memory that ``size`` drawn prompts need.

        A prompt has N + 1 points and a task with a (d, d) matrix A. To allow for copies
        and intermediate results, an entry has 16 bytes, and points are counted twice.
        """
        d = self.law.d
        points_and_matrices = 2.0 * (self.N + 1) + d
        return super()._bytes(size) + 16.0 * size * d * points_and_matrices

    def _draw(self, rng: np.random.Generator, size: int) -> Prompts:
        """Draw points, tasks and labels. The last point of a prompt is its query."""
        law = self.law
        points = rng.normal(size=(size, self.N + 1, law.d))
        # A random polynomial for each prompt, which gives its values, (size, N + 1)
        functions = quadratics(rng, size, law.d, law.sigma_a, law.sigma_b)
        values = functions(points)
        label = values[:, :-1]
        if self.noise:
            label = label + rng.normal(0.0, self.noise, label.shape)
        # There is no finite set of features whose indices a prompt could hold.
        no_features = np.zeros((size, 0), dtype=np.intp)
        return Prompts(
            token=no_features,
            query=no_features,
            label=label,
            answer=values[:, -1],
            key=points[:, :-1],
            asked=points[:, -1],
        )
