"""Gaussian inputs and random quadratic tasks: closed forms without a finite set of features.

Softmax attention over infinitely many tokens x ~ N(0, I) with scores x^T Q x_q is the
Gaussian N(Q x_q, I). Training moves its mean; its width is fixed. Finite prompts are
tokens whose nodes lie along the query.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

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

MOST_DIMENSIONS = 10_000  # a matrix of them takes 0.8 GB
MOST_FOLLOWED = 100  # of finite prompts: the weights of tokens span e^(20 √d)
MOST_HALVINGS = (
    5  # of the distance of the lengths of queries; as many lengths as that take minutes
)

Queries = tuple[tuple[float, Array, TokenRisk], ...]


@dataclass(frozen=True)
class QuadraticLaw:
    r"""Random second-degree polynomials :math:`f(x) = x^\top A x + b^\top x` on inputs :math:`x \sim N(0, I_d)`.

    All entries of A, which is not symmetric, and of b are independent and normal with
    mean zero. (f depends on the symmetric part of A alone, whose law is invariant under
    rotations. A symmetric A with entries of equal variance would not be.) The risks
    depend only on second moments. See docs/theory.md, "Gaussian inputs".

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
            if 0.0 < value < 1.0 / LARGEST:  # products of squares would underflow
                raise argument_error(
                    name, value, f"0, or between {1.0 / LARGEST:g} and {LARGEST:g}"
                )
            set_fields(self, **{name: value})
        if self.sigma_a == self.sigma_b == 0.0:
            raise argument_error("sigma_b", self.sigma_b, "positive if sigma_a is 0")

    @classmethod
    def lipschitz(cls, d: int, L: float, curved: float = 0.5) -> QuadraticLaw:
        r"""Law with a given root mean square gradient; A contributes the share ``curved`` of its square.

        A polynomial of degree two is not Lipschitz on the whole space. In place of the
        Lipschitz constant stands

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
        return cls(
            d,
            L * math.sqrt(curved / (2.0 * d * (d + 1))),
            L * math.sqrt((1.0 - curved) / d),
        )

    @property
    def variances(self) -> tuple[float, float]:
        """Squares of sigma_a and sigma_b."""
        return self.sigma_a**2, self.sigma_b**2

    @property
    def L(self) -> float:
        """Root mean square norm of the gradient, √(2d(d+1) σ_A² + d σ_b²)."""
        return math.hypot(
            math.sqrt(2.0 * self.d * (self.d + 1)) * self.sigma_a,
            math.sqrt(self.d) * self.sigma_b,
        )


@dataclass(frozen=True, eq=False)
class GaussianRisk(Risk):
    r"""The exact population risk of quadratic tasks on Gaussian inputs, a function of Q, (d, d), for N = ∞.

    The attention on the tokens is :math:`N(Qx_q, I)`, the prediction
    :math:`(Qx_q)^\top A(Qx_q) + b^\top Qx_q + \operatorname{tr} A`, and with :math:`P =
    Q^\top Q`

    .. math:: \mathcal L = \tfrac12\sigma_a^2\bigl[(\operatorname{tr} P)^2 + 2\operatorname{tr} P^2
        - 2(\operatorname{tr} Q)^2 - 2\operatorname{tr} Q^2 + d(d+1)\bigr]
        + \tfrac12\sigma_b^2 \lVert Q - I\rVert_F^2 .

    Its minimum, at a multiple :math:`c_*I` of the identity with :math:`c_* < 1`, is
    positive unless the tasks are linear. The polynomial is evaluated around it, so that
    the excess over the floor and the gradient keep their digits. Label noise averages
    out. See docs/theory.md, "Gaussian inputs".

    Parameters
    ----------
    law : QuadraticLaw
        Law of the tasks.

    Raises
    ------
    ValueError
        ``law`` is no `QuadraticLaw`.

    Examples
    --------
    >>> import icl_theory as icl
    >>> risk = icl.GaussianRisk(icl.regression.QuadraticLaw(d=2, sigma_a=1.0, sigma_b=0.0))
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
        r"""The multiple c of the identity that minimises the loss, from √((d+1)/(d+2)) to 1.

        The one positive root of :math:`2\sigma_a^2[(d+2)c^3 - (d+1)c] =
        \sigma_b^2(1-c)`.
        """
        d, (a, b) = self.law.d, self.law.variances
        c = 1.0
        # convex and increasing to the right of the root: Newton's method comes down to
        # it
        while True:
            slope = 2.0 * a * (3.0 * (d + 2) * c * c - (d + 1)) + b
            below = (
                c - (2.0 * a * ((d + 2) * c**3 - (d + 1) * c) + b * (c - 1.0)) / slope
            )
            if not below < c:
                return c
            c = below

    @cached_property
    def rate(self) -> float:
        r"""Largest eigenvalue of the Hessian at the minimum, squared label units.

        .. math:: \lambda = 2\sigma_a^2[3(d+2)c_*^2 - (d+1)] + \sigma_b^2

        Its eigenvector is I. Descent from zero approaches the minimum like :math:`(1 -
        \eta\lambda)^t`, and comes closer at every step if :math:`\eta \le 1/\lambda`.
        """
        d, (a, b) = self.law.d, self.law.variances
        return 2.0 * a * (3.0 * (d + 2) * self.best**2 - (d + 1)) + b

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient with respect to Q, (d, d); the loss is infinite beyond the range of float64."""
        excess, gradient = self._around(params)
        return self.floor() + excess, gradient

    def excess(self, params: ArrayLike) -> float:
        """Loss above the floor, without cancellation, squared label units."""
        return self._around(self._checked(params))[0]

    def floor(self) -> float:
        r"""Minimum over all Q, :math:`\tfrac d2\{\sigma_a^2[(d+1)(1-c_*^2)^2 + c_*^4] + \sigma_b^2(1-c_*)^2\}`."""
        d, c, (a, b) = self.law.d, self.best, self.law.variances
        return (
            0.5 * d * (a * ((d + 1) * (1.0 - c * c) ** 2 + c**4) + b * (1.0 - c) ** 2)
        )

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Alignment tr(Q)/d, residual ``|Q - c* I|`` / √d and the excess over the floor, () each.

        The alignment tells how far along x_q the centre of the attention lies; its best
        value is c*. It replaces the target attention, which needs features.
        """
        d = self.law.d
        residual = np.linalg.norm(params - self.best * np.eye(d)) / math.sqrt(d)
        return {
            "alignment": np.asarray(np.trace(params) / d),
            "residual": np.asarray(residual),
            "excess": np.asarray(self._around(params)[0]),
        }

    def hessian_product(self, params: Array, direction: Array) -> Array:
        """Product of the Hessian with a direction, exactly, (d, d); refused beyond the range of float64."""
        with np.errstate(over="ignore", invalid="ignore"):
            product = change_along(lambda Q: self._around(Q)[1], params, direction)
        if not np.isfinite(product).all():
            largest = float(np.abs(params).max())
            raise argument_error(
                "params",
                largest,
                "entries with a finite Hessian (the largest is shown)",
            )
        return product

    def _around(self, Q: Array) -> tuple[float, Array]:
        """Excess and gradient, expanded around the minimum, Q = c I + D; the terms of order 1 in D vanish.

        D is divided by its size s if that is above 1, so that fourth powers do not
        overflow.
        """
        d, (a, b) = self.law.d, self.law.variances
        D = Q - self.best * np.eye(d)
        s = max(1.0, float(np.abs(D).max()))
        # terms of lower degree get a factor t1 for each power of s
        D = D / s
        c = self.best / s
        t1 = 1.0 / s
        gram = D.T @ D
        both = D + D.T
        # tr D² is the last one
        trace = np.trace(D)
        norm = np.trace(gram)
        square = np.sum(D * D.T)
        quartic = norm**2 + 2.0 * np.sum(gram * gram)
        cubic = 4.0 * c * (trace * norm + np.sum(both * gram))
        quadratic = c * c * (4.0 * trace**2 + (2 * d + 8) * norm + 4.0 * square)
        quadratic -= 2.0 * t1**2 * (trace**2 + square)
        excess = 0.5 * a * (quartic + cubic + quadratic)
        gradient = 4.0 * (D @ gram + c * (D @ both + gram) + c * c * (2.0 * D + D.T))
        gradient += 2.0 * (d * c * c + 2.0 * c * trace + norm) * D - 2.0 * t1**2 * D.T
        gradient[np.diag_indices(d)] += (
            4.0 * c * c * trace + 2.0 * c * norm - 2.0 * t1**2 * trace
        )
        with np.errstate(
            over="ignore"
        ):  # the linear part, of lower degree, is the whole loss if a = 0
            excess = excess * s * s + 0.5 * b * norm
            gradient = a * gradient * s * s + b * D
            return max(float(excess.real * s * s), 0.0), gradient * s


@dataclass(frozen=True, eq=False)
class FiniteGaussianRisk(Risk):
    r"""The population risk of quadratic tasks on Gaussian inputs and finite prompts, for Q = c I.

    By symmetry descent from zero stays at multiples of the identity; the parameter is
    c, (1,), and a unit of it stands for d entries of Q, which is the metric. A token
    enters by its component :math:`X \sim N(0, 1)` along the query :math:`x_q` of length
    r, with the score :math:`c r X`. With :math:`s = X^2 - r^2`, the errors of two
    tokens have the mean product

    .. math:: \sigma_a^2 (s s' + d - 1) + \sigma_b^2 (X - r)(X' - r),

    and the square of one exceeds that of its node by
    :math:`(d - 1)[\sigma_a^2 (2 X^2 + d) + \sigma_b^2] + \sigma^2`.

    The averages over tokens and over the length are trapezoid rules, refined until the
    loss is good to the ``tolerance``; `error` estimates what is left. See
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
        Relative error of the loss at which the average over the length of the query is
        refined no more, 1e-12 to 1e-2.

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
        if self.law.d > MOST_FOLLOWED:
            raise argument_error(
                "d", self.law.d, f"at most {MOST_FOLLOWED} for finite prompts"
            )
        set_fields(self, N=integer("N", self.N, minimum=1, maximum=MOST_TOKENS))
        set_fields(self, noise=number("noise", self.noise, zero=True, maximum=LARGEST))
        set_fields(
            self,
            tolerance=number("tolerance", self.tolerance, minimum=1e-12, maximum=1e-2),
        )

    @property
    def initial(self) -> Array:
        """Zero, (1,)."""
        return np.zeros(1)

    @property
    def metric(self) -> float:
        """Entries of Q that c stands for."""
        return float(self.law.d)

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its derivative by c, (1,)."""
        loss, slope = 0.0, 0.0
        for weight, X, risk in self._queries(_largest(params)):
            found, gradient = risk.evaluate(params[0] * X)
            loss = loss + weight * found
            slope = slope + weight * float(gradient @ X)
        return loss, np.array([slope])

    def hessian_product(self, params: Array, direction: Array) -> Array:
        """Second derivative times the direction, (1,)."""
        queries = self._queries(_largest(params))
        bend = sum(
            weight * float(X @ risk.hessian_product(params[0] * X, X))
            for weight, X, risk in queries
        )
        return bend * direction

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

        def loss(c: float) -> float:
            return self.evaluate(np.array([c]))[0]

        return (
            1.0
            if self.N == 1
            else float(
                minimize_scalar(loss, bounds=(0.0, 2.0), options={"xatol": 1e-8}).x
            )
        )

    def floor(self) -> float:
        """Least loss over c."""
        return self._floor

    @cached_property
    def _floor(self) -> float:
        return self.evaluate(np.array([self.best]))[0]

    @cached_property
    def rate(self) -> float:
        """Largest second derivative between 0 and the minimum over the metric, squared label units."""
        path = np.linspace(0.0, self.best, 9)
        return (
            max(float(self.hessian_product(np.array([c]), np.ones(1))[0]) for c in path)
            / self.metric
        )

    def error(self, params: ArrayLike) -> float:
        """Estimate of the error of the loss, from above, squared label units.

        Twice the distance to the loss with twice as many lengths of queries and with
        tokens of lower probability, and the errors of the losses at the single lengths
        (`TokenRisk.error`).
        """
        c = self._checked(params)
        queries = self._queries(_largest(c))
        loss = sum(weight * risk.evaluate(c * X)[0] for weight, X, risk in queries)
        finer = sum(
            weight * risk.evaluate(c * X)[0]
            for weight, X, risk in self._finer(_largest(c))
        )
        within = sum(weight * risk.error(c * X) for weight, X, risk in queries)
        return float(2.0 * abs(loss - finer) + within)

    def loss_error(self, params: ArrayLike) -> float:
        """Return `error`."""
        return self.error(params)

    def _queries(self, largest: float) -> Queries:
        """Weights of the lengths r, derivatives r X of the scores, and risks, for c up to the largest."""
        return self._refined(largest)[1]

    def _finer(self, largest: float) -> Queries:
        """Twice as many lengths, and six more powers of e, than `_queries` has."""
        return self._at(largest, 0.5 * self._refined(largest)[0], digits=42.0)

    @lru_cache(maxsize=4)  # noqa: B019
    def _refined(self, largest: float) -> tuple[float, Queries]:
        """Halve the distance of the lengths until the loss is good to the tolerance; return it and the queries."""
        step = 2.0 * usual_step(self.law.d)
        queries = self._at(largest, step)
        for _ in range(MOST_HALVINGS):
            if self._is_fine(queries, largest):
                break
            step *= 0.5
            queries = self._at(largest, step)
        return step, queries

    def _is_fine(self, queries: Queries, largest: float) -> bool:
        """Whether every other length alone gives losses so near that all lengths are good to the tolerance.

        Half the distance raises the error to a power of 1.7 or more where it is below
        1e-5, as measured for d from 1 to 100 (docs/theory.md, "Gaussian inputs"); 1/0.6
        is less than that.
        """
        weights = np.array([weight for weight, _, _ in queries])
        for c in (0.0, 0.5 * largest, largest):
            losses = np.array([risk.evaluate(c * X)[0] for _, X, risk in queries])
            loss = weights @ losses / weights.sum()
            coarse = weights[::2] @ losses[::2] / weights[::2].sum()
            if abs(coarse - loss) > self.tolerance**0.6 * loss:
                return False
        return True

    def _at(self, largest: float, step: float, digits: float = 36.0) -> Queries:
        """Queries whose lengths are a step from each other."""
        law = self.law
        d = self.law.d
        found = []
        for weight, r, X, probs in gaussian_queries(d, self.N, largest, step, digits):
            constant = np.full_like(X, law.sigma_a * math.sqrt(d - 1.0))
            values = np.stack([law.sigma_a * X * X, constant, law.sigma_b * X], axis=1)
            spread = (d - 1.0) * (
                law.sigma_a**2 * (2.0 * X * X + d) + law.sigma_b**2
            ) + self.noise**2
            target = np.array([law.sigma_a * r * r, 0.0, law.sigma_b * r])
            found.append(
                (
                    weight,
                    r * X,
                    TokenRisk([Kind(self.N, probs, values, spread)], target),
                )
            )
        return tuple(found)


def _largest(params: Array) -> float:
    """The size of c, rounded up to a power of two, for which nodes are made."""
    return reach_of(abs(float(params[0])), 1.0)


@dataclass(frozen=True, eq=False)
class SampledGaussianRisk(PromptRisk):
    r"""Squared error of one-layer softmax attention on sampled prompts with Gaussian inputs.

    :math:`\hat y = \sum_i \mathrm{softmax}_i(x_i^\top Q x_q)\, y_i` for N tokens. As N
    grows the mean loss tends to that of `GaussianRisk`, but slowly: if :math:`|Qx_q|^2`
    exceeds ln N, the prediction depends on the few tokens nearest to :math:`Qx_q`. See
    docs/theory.md, "Gaussian inputs".

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
    >>> run = icl.descend(icl.regression.SampledGaussianRisk(law, N=50, batch=64, seed=0), eta=0.3, steps=30)
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
        """Alignment tr(Q)/d, and the mean over the step's prompts of the largest weight on a token, () each."""
        parts = self.parts(self.prompts(step))
        heaviest = [self._attended(params, part)[0].max(axis=1) for part in parts]
        return {
            "alignment": np.asarray(np.trace(params) / self.law.d),
            "heaviest": np.asarray(np.mean(np.concatenate(heaviest))),
        }

    def _bytes(self, size: int) -> float:
        return super()._bytes(size) + 16.0 * size * self.law.d * (
            2.0 * (self.N + 1) + self.law.d
        )

    def _draw(self, rng: np.random.Generator, size: int) -> Prompts:
        d = self.law.d
        points = rng.normal(size=(size, self.N + 1, d))
        values = quadratics(rng, size, d, self.law.sigma_a, self.law.sigma_b)(points)
        label = values[:, :-1]
        if self.noise:
            label = label + rng.normal(0.0, self.noise, label.shape)
        none = np.zeros((size, 0), dtype=np.intp)
        return Prompts(none, none, label, values[:, -1], points[:, :-1], points[:, -1])
