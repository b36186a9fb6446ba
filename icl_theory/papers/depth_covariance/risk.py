r"""The population loss of L layers that descend, for tokens of any covariance.

A prompt holds N pairs :math:`(x_i, y_i)` with :math:`x_i \sim \mathcal N(0, \Sigma)`
and :math:`y_i = w^\top x_i + \sigma\varepsilon_i`, where :math:`E\,ww^\top = \Omega`.
With :math:`\hat\Sigma = \frac1N\sum x_ix_i^\top` the layers predict

.. math:: f(x) = \frac1L\,x^\top\Gamma \sum_{\ell<L}
    \Bigl(I - \tfrac1L\hat\Sigma\Gamma\Bigr)^\ell \frac1N\sum_i x_iy_i .

See docs/theory/depth-covariance.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import (
    LARGEST,
    Array,
    argument_error,
    flag,
    integer,
    number,
    prompt_length,
    real_array,
    set_fields,
)
from icl_theory.engine.risk import Risk, WithStart
from icl_theory.engine.sampling import Trainer, prompts_to_draw
from icl_theory.memory import check_fits
from icl_theory.papers.depth_covariance.moments import (
    moment_diagonal,
    moment_matrix,
    positive_definite,
)
from icl_theory.papers.depth_covariance.polynomial import (
    ROUNDING,
    LossPolynomial,
    eigenvalue_powers,
    loss_polynomial,
    traces,
)
from icl_theory.papers.linear_attention.layer import Prompts

# Most layers.
DEEPEST = 6
# Seconds on one core, and gigabytes, that the terms of seven layers take, and the
# factors that each layer more costs.
SECONDS_OF_SEVEN = 6.0
GIGABYTES_OF_SEVEN = 0.2
SECONDS_FACTOR = 5.0
GIGABYTES_FACTOR = 3.0
# A matrix of d² numbers, and its eigenvectors, cost too much beyond this dimension.
LARGEST_MATRIX = 4000
# The error of an eigenvalue or of an entry in the eigenbasis, for each dimension and
# relative to the largest one.
EIGENVALUE_ROUNDING = 20.0 * 2.0**-52
# The gradient is a polynomial, so a complex step gives derivatives without error.
IMAGINARY_STEP = 1e-30


def checked_depth(depth: object) -> int:
    """Return a number of layers, or say what more layers would take."""
    allowed = f"a whole number from 1 to {DEEPEST}"
    L = integer("depth", depth, minimum=1)
    if L > DEEPEST:
        more = min(L - 7, 60)
        seconds = SECONDS_OF_SEVEN * SECONDS_FACTOR**more
        gigabytes = GIGABYTES_OF_SEVEN * GIGABYTES_FACTOR**more
        raise argument_error(
            "depth",
            depth,
            f"{allowed}: the moments of {L} layers would take about {seconds:.2g} s and"
            f" {gigabytes:.2g} GB"
            " (the asymptotic `limit_loss` takes up to 100)",
        )
    return L


@dataclass(frozen=True, eq=False)
class DepthRisk(WithStart, Risk):
    r"""The loss of L layers over the eigenvalues of Γ, which commutes with Σ.

    With :math:`A = \Sigma\Gamma/L`, :math:`S` a Wishart matrix of mean I, and
    :math:`\varphi(z) = (1 - (1 - z)^L)^2/z`,

    .. math:: \mathcal L = \tfrac12 E\,\mathrm{tr}\,\Sigma\Omega(I - SA)^L(I - AS)^L
        + \frac{\sigma^2}{2N} E\,\mathrm{tr}\,A\varphi(SA) ,

    a polynomial in the traces of powers of A. The parameters are the eigenvalues
    :math:`\gamma_1 \ldots \gamma_d` of Γ in the eigenbasis of Σ, or one number γ with
    :math:`\Gamma = \gamma I` if each prompt has a randomly rotated covariance.

    Parameters
    ----------
    covariance : array_like, (d,)
        Eigenvalues of Σ, all positive.
    N : int
        Pairs in a prompt (or math.inf).
    depth : int
        Number of layers L, at most 6.
    prior : array_like, (d,), optional
        Diagonal of Ω in the eigenbasis of Σ; by default ones.
    noise : float
        Standard deviation σ of the label noise, label units.
    rotated : bool
        Whether Σ and Ω are rotated together, at random, in each prompt. Then Γ = γI is
        trained; the entries of a gradient on all of Γ are the derivative with respect
        to γ, divided by d, which is the metric.
    leading : bool
        Keep only the terms that remain for d and N in proportion: the asymptotic loss.
    start : array_like, (d,) or (1,), optional
        The parameters at step 0, which are zero by default.

    Raises
    ------
    ValueError
        An argument is out of range; the message names it.

    References
    ----------
    docs/theory/depth-covariance.md. Bordelon, Letey, Pehlevan 2025 define the model.

    Examples
    --------
    Two layers on a spectrum 1, 1/2, 1/3 and prompts of ten pairs:

    >>> from icl_theory.papers.depth_covariance.risk import DepthRisk
    >>> risk = DepthRisk([1.0, 1 / 2, 1 / 3], N=10, depth=2)
    >>> round(risk.loss([0.0, 0.0, 0.0]), 4)
    0.9167
    >>> round(risk.loss([1.0, 2.0, 3.0]), 4)
    0.1755
    """

    covariance: Array
    N: float
    depth: int = 1
    prior: Array = None  # type: ignore[assignment]
    noise: float = 0.0
    rotated: bool = False
    leading: bool = False
    start: Array = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        covariance = positive_definite("covariance", self.covariance)
        if covariance.ndim != 1:
            raise argument_error(
                "covariance", covariance.shape, "eigenvalues, of shape (d,)"
            )
        d = len(covariance)
        prior = np.ones(d)
        if self.prior is not None:
            prior = moment_diagonal("prior", self.prior, d)
        set_fields(
            self,
            covariance=covariance,
            N=prompt_length(self.N),
            depth=checked_depth(self.depth),
            prior=prior,
            noise=number("noise", self.noise, zero=True, maximum=LARGEST),
            rotated=flag("rotated", self.rotated),
            leading=flag("leading", self.leading),
        )
        start = np.zeros(self.size) if self.start is None else self.start
        set_fields(self, start=real_array("start", start, 1, LARGEST))
        if self.start.shape != (self.size,):
            raise argument_error("start", self.start.shape, f"of shape ({self.size},)")

    @property
    def d(self) -> int:
        """Dimension of the tokens."""
        return len(self.covariance)

    @property
    def size(self) -> int:
        """Number of parameters."""
        return 1 if self.rotated else self.d

    @property
    def metric(self) -> float:
        """How many entries of Γ a parameter stands for."""
        return float(self.d) if self.rotated else 1.0

    @cached_property
    def _polynomial(self) -> LossPolynomial:
        return loss_polynomial(self.depth, self.N, self.noise, self.leading)

    @cached_property
    def _task(self) -> Array:
        """Diagonal of the task matrix Ω̃ = ΣΩ, (d,)."""
        return self.covariance * self.prior

    def eigenvalues(self, params: ArrayLike) -> Array:
        """Return the eigenvalues of Γ in the eigenbasis of Σ, (d,)."""
        return self._eigenvalues(self._checked(params))

    def _eigenvalues(self, params: Array) -> Array:
        return np.broadcast_to(params, (self.d,))

    @np.errstate(over="ignore", invalid="ignore")
    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient."""
        loss, gradient = self._evaluate(params)
        if not (np.isfinite(loss) and np.isfinite(gradient).all()):
            return math.inf, np.zeros_like(params)
        return float(loss), gradient

    def _evaluate(self, params: Array) -> tuple[Any, Array]:
        """Loss and gradient, for real or complex parameters."""
        per_gamma = self.covariance / self.depth
        a = self._eigenvalues(params) * per_gamma
        if math.isinf(self.N):
            loss, by_a = _without_samples(a, self._task, self.depth)
        else:
            loss, by_a = self._with_samples(a)
        gradient = by_a * per_gamma
        if self.rotated:
            gradient = gradient.sum(keepdims=True)
        return loss, gradient

    def _with_samples(self, a: Array) -> tuple[Any, Array]:
        """Loss, and its gradient with respect to the eigenvalues of A, for finite N."""
        degree = 2 * self.depth
        p, q = traces(a, self._task, degree)
        loss, by_p, by_q = self._polynomial.evaluate(p, q)
        orders = np.arange(1, degree + 1)
        powers = eigenvalue_powers(a, degree - 1)
        by_a = (orders * by_p) @ powers
        by_a = by_a + self._task * ((orders * by_q[1:]) @ powers)
        return loss, by_a

    def loss_error(self, params: ArrayLike) -> float:
        """Bound the rounding of the loss to first order."""
        at = self._checked(params)
        a = self._eigenvalues(at) * self.covariance / self.depth
        with np.errstate(over="ignore", invalid="ignore"):
            if math.isinf(self.N):
                size = np.abs(1.0 - a) + 2.0 * np.abs(a)
                terms = self._task * np.abs(1.0 - a) ** (2 * self.depth - 1) * size
                error = ROUNDING * (4.0 * self.depth + 32.0) * float(terms.sum())
            else:
                p, q = traces(np.abs(a), self._task, 2 * self.depth)
                error = self._polynomial.rounding(p, q, self.d)
        return error if math.isfinite(error) else math.inf

    @np.errstate(over="ignore", invalid="ignore")
    def hessian_product(self, params: Array, direction: Array) -> Array:
        """Second derivatives times a direction, by a complex step."""
        beside = params + 1j * IMAGINARY_STEP * direction
        return np.asarray(self._evaluate(beside)[1].imag / IMAGINARY_STEP)

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """The eigenvalues of Γ, (d,)."""
        return {"eigenvalues": self._eigenvalues(params).copy()}

    def sampled(self, batch: int, seed: int = 0) -> SampledDepth:
        """Return the trainer on sampled prompts, with explicit layers."""
        return SampledDepth(self, batch, seed)


def _without_samples(a: Array, task: Array, depth: int) -> tuple[Any, Array]:
    """Loss and gradient by the eigenvalues of A for N = ∞, where S = I."""
    remaining = 1.0 - a
    loss = 0.5 * np.sum(task * remaining ** (2 * depth))
    return loss, -depth * task * remaining ** (2 * depth - 1)


@dataclass(frozen=True, eq=False)
class SymmetricRisk(WithStart, Risk):
    r"""The loss of L layers over all symmetric matrices Γ, for any Σ and Ω.

    The parameters are the entries of Γ, (d, d). The loss is that of their symmetric
    part, so that the gradient is symmetric.

    Parameters
    ----------
    covariance : array_like, (d, d) or (d,)
        Covariance Σ, positive definite; (d,) is a diagonal.
    N, depth, noise
        As for `DepthRisk`.
    prior : array_like, (d, d) or (d,), optional
        Second moment Ω of the tasks; by default I.
    start : array_like, (d, d), optional
        Γ at step 0, which is zero by default.

    Raises
    ------
    ValueError
        An argument is out of range; the message names it.

    References
    ----------
    docs/theory/depth-covariance.md, "Matrices".

    Examples
    --------
    A matrix Γ that inverts another covariance than the one of the prompts:

    >>> import numpy as np
    >>> from icl_theory.papers.depth_covariance.risk import SymmetricRisk
    >>> risk = SymmetricRisk([[1.0, 0.3], [0.3, 0.5]], N=50, depth=2)
    >>> round(risk.loss(2 * np.diag([1.0, 2.0])), 4)
    0.1026
    """

    covariance: Array
    N: float
    depth: int = 1
    prior: Array = None  # type: ignore[assignment]
    noise: float = 0.0
    start: Array = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        covariance = moment_matrix(positive_definite("covariance", self.covariance))
        d = len(covariance)
        if d > LARGEST_MATRIX:
            raise argument_error(
                "covariance",
                covariance.shape,
                f"of dimension {LARGEST_MATRIX} at most; `DepthRisk` takes more",
            )
        prior = np.eye(d)
        if self.prior is not None:
            prior = moment_matrix(moment_diagonal("prior", self.prior, d, whole=True))
        set_fields(
            self,
            covariance=covariance,
            N=prompt_length(self.N),
            depth=checked_depth(self.depth),
            prior=prior,
            noise=number("noise", self.noise, zero=True, maximum=LARGEST),
        )
        start = np.zeros((d, d)) if self.start is None else self.start
        set_fields(self, start=real_array("start", start, 2, LARGEST))
        if self.start.shape != (d, d):
            raise argument_error("start", self.start.shape, f"of shape ({d}, {d})")

    @cached_property
    def _root(self) -> Array:
        """The square root of Σ."""
        values, vectors = np.linalg.eigh(self.covariance)
        return np.asarray((vectors * np.sqrt(values)) @ vectors.T)

    def _diagonal(self, params: Array) -> _Diagonal:
        """The matrix A and the tasks in the eigenbasis of A."""
        symmetric = 0.5 * (params + params.T)
        A = self._root @ symmetric @ self._root / self.depth
        a, vectors = np.linalg.eigh(A)
        to_basis = vectors.T @ self._root
        return _Diagonal(a, to_basis @ self.prior @ to_basis.T, to_basis)

    @np.errstate(over="ignore", invalid="ignore")
    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient."""
        a, task, to_basis = self._diagonal(params)
        degree = 2 * self.depth
        orders = np.arange(1, degree + 1)
        powers = eigenvalue_powers(a, degree - 1)
        if math.isinf(self.N):
            remaining = eigenvalue_powers(1.0 - a, degree - 1)
            loss = 0.5 * float(np.diag(task) @ (1.0 - a) ** degree)
            by_A = -0.5 * task * (remaining.T @ remaining[::-1])
        else:
            polynomial = loss_polynomial(self.depth, self.N, self.noise)
            p, q = traces(a, np.diag(task), degree)
            loss, by_p, by_q = polynomial.evaluate(p, q)
            by_A = np.diag((orders * by_p) @ powers)
            for m in orders:
                # The derivative of tr(Ω̃ A^m) is the sum of A^b Ω̃ A^c, b + c = m - 1.
                by_A = by_A + by_q[m] * task * (powers[:m].T @ powers[:m][::-1])
        gradient = to_basis.T @ by_A @ to_basis / self.depth
        if not (math.isfinite(loss) and np.isfinite(gradient).all()):
            return math.inf, np.zeros_like(params)
        return float(loss), gradient

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """The diagonal of Γ in the eigenbasis of Σ, largest λ first, (d,)."""
        _, vectors = np.linalg.eigh(self.covariance)
        diagonal = np.einsum("ik,ij,jk->k", vectors, params, vectors)
        return {"eigenvalues": diagonal[::-1].copy()}

    def loss_error(self, params: ArrayLike) -> float:
        """Bound the rounding of the loss, with that of the eigenvalues of A."""
        a, task, _ = self._diagonal(self._checked(params))
        d = len(a)
        degree = 2 * self.depth
        # All eigenvalues have an error that is proportional to the largest one.
        largest = np.full(d, np.abs(a).max())
        N = LARGEST if math.isinf(self.N) else self.N
        polynomial = loss_polynomial(self.depth, N, self.noise)
        with np.errstate(over="ignore", invalid="ignore"):
            p, q = traces(largest, np.full(d, np.trace(task) / d), degree)
            error = polynomial.rounding(p, q, d)
            of_eigenvalues = EIGENVALUE_ROUNDING * d * degree
            error += of_eigenvalues * polynomial.magnitude(p, q)
        return error if math.isfinite(error) else math.inf


class _Diagonal(NamedTuple):
    """The matrix A and the tasks Ω̃ in an eigenbasis of A."""

    a: Array  # eigenvalues, (d,)
    task: Array  # (d, d)
    to_basis: Array  # from the basis of Γ: the eigenvectors' transpose times Σ^½


@dataclass(frozen=True, eq=False)
class SampledDepth(Trainer[Prompts]):
    r"""Squared error of the layers on sampled prompts, token by token.

    With the labels Δ that remain, a layer computes :math:`h = X^\top\Delta/N`, adds
    :math:`\frac1L h^\top\Gamma x` to the prediction for the query x, and subtracts
    :math:`\frac1L X\Gamma h` from Δ. The trainer shares no formula with the population
    loss. Tasks are normal.

    Parameters
    ----------
    risk : DepthRisk
        The problem, with finite prompts.
    batch, seed : int
        Prompts in a step, and the seed.

    Raises
    ------
    ValueError
        An argument is out of range, the prompts are infinite, or the risk keeps only
        its leading terms.
    """

    risk: DepthRisk
    batch: int
    seed: int = 0

    def __post_init__(self) -> None:
        if math.isinf(self.risk.N):
            raise argument_error(
                "N", self.risk.N, "finite: infinite prompts cannot be sampled"
            )
        if self.risk.leading:
            raise argument_error(
                "leading", True, "False: no prompts have the asymptotic loss"
            )
        set_fields(self, batch=integer("batch", self.batch, minimum=1))
        set_fields(self, seed=integer("seed", self.seed, minimum=0))
        check_fits("batch", self.batch, 8.0 * self.batch * self._numbers)

    @property
    def _numbers(self) -> float:
        """How many numbers a prompt takes in memory."""
        d = self.risk.d
        rotation = 3.0 * d * d if self.risk.rotated else 0.0
        return 3.0 * (self.risk.N + 1.0) * (d + 1.0) + rotation

    @property
    def initial(self) -> Array:
        """Parameters at step 0, as in the risk."""
        return self.risk.initial

    @property
    def metric(self) -> float:
        """The metric of the risk."""
        return self.risk.metric

    def draw(self, rng: np.random.Generator, size: int) -> Prompts:
        """Draw prompts."""
        B = prompts_to_draw(rng, size, self._numbers)
        N = int(self.risk.N)
        d = self.risk.d
        scale = np.sqrt(self.risk.covariance)
        tokens = scale * rng.normal(size=(B, N, d))
        query = scale * rng.normal(size=(B, d))
        task = np.sqrt(self.risk.prior) * rng.normal(size=(B, d))
        noise = self.risk.noise * rng.normal(size=(B, N))
        labels = np.einsum("bnd,bd->bn", tokens, task) + noise
        answer = np.sum(query * task, axis=1)
        if self.risk.rotated:
            rotation = _rotations(rng, B, d)
            tokens = tokens @ rotation
            query = np.einsum("bd,bde->be", query, rotation)
        return Prompts(tokens, labels, query, answer)

    def losses_on(self, params: Array, prompts: Prompts) -> Array:
        """Loss of each of B prompts, (B,)."""
        errors, _ = self._forward(params, prompts)
        return 0.5 * errors**2

    def evaluate_on(self, params: Array, prompts: Prompts) -> tuple[float, Array]:
        """Mean loss of some prompts, and its gradient by a backward pass."""
        errors, sums = self._forward(params, prompts)
        X, y, query, _ = prompts
        N = y.shape[1]
        step = self.risk._eigenvalues(params) / self.risk.depth
        by_step = np.zeros(self.risk.d)
        by_labels = np.zeros_like(y)
        for h in reversed(sums):
            by_change = query * errors[:, None]
            by_change = by_change - np.einsum("bnd,bn->bd", X, by_labels)
            by_step += np.sum(by_change * h, axis=0)
            by_labels = by_labels + np.einsum("bnd,bd->bn", X, step * by_change) / N
        gradient = by_step / (self.risk.depth * len(errors))
        if self.risk.rotated:
            gradient = gradient.sum(keepdims=True)
        return 0.5 * float(np.mean(errors**2)), gradient

    def _forward(self, params: Array, prompts: Prompts) -> tuple[Array, list[Array]]:
        """Errors of the predictions, (B,), and the sums h of each layer, (B, d)."""
        X, y, query, answer = prompts
        N = y.shape[1]
        step = self.risk._eigenvalues(params) / self.risk.depth
        errors = -answer
        sums = []
        for _ in range(self.risk.depth):
            h = np.einsum("bnd,bn->bd", X, y) / N
            sums.append(h)
            change = step * h
            errors = errors + np.sum(change * query, axis=1)
            y = y - np.einsum("bnd,bd->bn", X, change)
        return errors, sums


def _rotations(rng: np.random.Generator, count: int, d: int) -> Array:
    """Orthogonal matrices of the uniform law, (count, d, d)."""
    rotation, triangle = np.linalg.qr(rng.normal(size=(count, d, d)))
    # Without these signs the law would depend on the convention of the factorisation.
    signs = np.sign(np.diagonal(triangle, axis1=1, axis2=2))
    return np.asarray(rotation * signs[:, None, :])
