r"""The population loss of L layers that descend, for tokens of any covariance.

A prompt holds N pairs :math:`(x_i, y_i)` with :math:`x_i \sim \mathcal N(0, \Sigma)`
and :math:`y_i = w^\top x_i + \sigma\varepsilon_i` with standard normal
:math:`\varepsilon_i`. The tasks have the second moment :math:`E\,ww^\top = \Omega`.
With :math:`\hat\Sigma = \frac1N\sum x_ix_i^\top` the layers predict

.. math:: f(x) = \frac1L\,x^\top\Gamma \sum_{\ell<L}
    \Bigl(I - \tfrac1L\hat\Sigma\Gamma\Bigr)^\ell \frac1N\sum_i x_iy_i .

The loss depends on Γ through :math:`A = \Sigma^{1/2}\Gamma\Sigma^{1/2}/L` and on the
tasks through :math:`\tilde\Omega = \Sigma^{1/2}\Omega\Sigma^{1/2}`. It is a polynomial
in the traces :math:`p_n = \mathrm{tr}\,A^n` and :math:`q_m = \mathrm{tr}\,\tilde\Omega
A^m`. See docs/theory/depth-covariance.md.
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

# Largest number of layers. Each further layer multiplies the cost of the exact moments;
# one layer more would take the seconds and gigabytes below.
DEEPEST = 6
# Seconds on one core, and gigabytes, that the terms of seven layers take, and the
# factors by which each further layer multiplies them.
SECONDS_OF_SEVEN = 6.0
GIGABYTES_OF_SEVEN = 0.2
SECONDS_FACTOR = 5.0
GIGABYTES_FACTOR = 3.0
# Beyond this dimension d the eigenvectors of a (d, d) matrix take too long in each
# step; a cautious choice.
LARGEST_MATRIX = 4000
# The error of an eigenvalue of A, or of an entry of Ω̃ in the eigenbasis of A, is at
# most this number times the dimension times the largest eigenvalue of the same matrix.
# The factor 20 is generous.
EIGENVALUE_ROUNDING = 20.0 * 2.0**-52
# The gradient is a polynomial. The imaginary part of the gradient at
# params + i·step·direction, divided by the step, is the derivative of the gradient
# along the direction. No digits cancel, as they would in a difference. The relative
# error is of the order of the squared step, so any step that is far below 1e-8 and does
# not underflow would do.
IMAGINARY_STEP = 1e-30


def checked_depth(depth: object) -> int:
    """Return ``depth`` if it is a number of layers that the exact moments allow.

    If there are too many, the error says how much time and memory they would take.
    """
    allowed = f"a whole number from 1 to {DEEPEST}"
    L = integer("depth", depth, minimum=1)
    if L > DEEPEST:
        # Estimates for hundreds of layers would overflow. For more than 67 layers the
        # error gives the estimates for 67, which are absurd already.
        beyond_seven = min(L - 7, 60)
        seconds = SECONDS_OF_SEVEN * SECONDS_FACTOR**beyond_seven
        gigabytes = GIGABYTES_OF_SEVEN * GIGABYTES_FACTOR**beyond_seven
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
        trained. Each diagonal entry of the gradient with respect to all of Γ is 1/d of
        the derivative with respect to γ, so the metric is d.
    leading : bool
        Keep only the terms that remain if d and N grow in proportion, that is, the
        asymptotic loss.
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
        # `size` uses the checked fields, which are therefore set before.
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
        """Number of diagonal entries of Γ for which a parameter stands."""
        return float(self.d) if self.rotated else 1.0

    @cached_property
    def _polynomial(self) -> LossPolynomial:
        """The loss as a polynomial in p and q; for finite N only."""
        return loss_polynomial(self.depth, self.N, self.noise, self.leading)

    @cached_property
    def _task(self) -> Array:
        """Diagonal of the task matrix Ω̃ = ΣΩ, (d,)."""
        return self.covariance * self.prior

    def eigenvalues(self, params: ArrayLike) -> Array:
        """Return the eigenvalues of Γ in the eigenbasis of Σ, (d,)."""
        return self._eigenvalues(self._checked(params))

    def _eigenvalues(self, params: Array) -> Array:
        """Return the eigenvalues of Γ, (d,), for checked parameters.

        The result is a view that cannot be written to.
        """
        return np.broadcast_to(params, (self.d,))

    @np.errstate(over="ignore", invalid="ignore")
    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient."""
        loss, gradient = self._evaluate(params)
        # Terms of large parameters overflow, and their sum may be NaN, which the engine
        # refuses. Such parameters are given an infinite loss.
        if not (np.isfinite(loss) and np.isfinite(gradient).all()):
            return math.inf, np.zeros_like(params)
        return float(loss), gradient

    def _evaluate(self, params: Array) -> tuple[Any, Array]:
        """Return loss and gradient, for real or complex parameters."""
        # The eigenvalues of A = ΣΓ/L divided by the eigenvalues of Γ, (d,).
        a_over_gamma = self.covariance / self.depth
        a = self._eigenvalues(params) * a_over_gamma
        if math.isinf(self.N):
            loss, a_gradient = _evaluate_infinite_prompts(a, self._task, self.depth)
        else:
            loss, a_gradient = self._evaluate_finite_prompts(a)
        gradient = a_gradient * a_over_gamma
        if self.rotated:
            # All eigenvalues of Γ are the one parameter γ.
            gradient = gradient.sum(keepdims=True)
        return loss, gradient

    def _evaluate_finite_prompts(self, a: Array) -> tuple[Any, Array]:
        """Return the loss for finite N, and its gradient, (d,).

        The gradient is with respect to the eigenvalues a of A, (d,).
        """
        degree = 2 * self.depth
        p, q = traces(a, self._task, degree)
        loss, p_gradient, q_gradient = self._polynomial.evaluate(p, q)
        # ∂p_n/∂a = n a^(n - 1) and ∂q_n/∂a = task n a^(n - 1). The first q is q_0,
        # which does not depend on a.
        n = np.arange(1, degree + 1)
        powers = eigenvalue_powers(a, degree - 1)
        a_gradient = (n * p_gradient) @ powers
        a_gradient = a_gradient + self._task * ((n * q_gradient[1:]) @ powers)
        return loss, a_gradient

    def loss_error(self, params: ArrayLike) -> float:
        """Bound the rounding error of the loss to first order."""
        eigenvalues = self._eigenvalues(self._checked(params))
        a = eigenvalues * self.covariance / self.depth
        with np.errstate(over="ignore", invalid="ignore"):
            if math.isinf(self.N):
                error = self._error_for_infinite_prompts(a)
            else:
                p, q = traces(np.abs(a), self._task, 2 * self.depth)
                error = self._polynomial.rounding(p, q, self.d)
        # The bound may be NaN if terms overflow.
        return error if math.isfinite(error) else math.inf

    def _error_for_infinite_prompts(self, a: Array) -> float:
        """Bound the rounding error of the loss for N = ∞, for eigenvalues a of A, (d,).

        An error of the base 1 - a changes (1 - a)^(2L) by this error times
        :math:`2L |1 - a|^{2L - 1}`, and the power itself has up to 2L roundings.
        """
        # In units of ROUNDING: one rounding of the difference, and two of a.
        base_error = np.abs(1.0 - a) + 2.0 * np.abs(a)
        terms = self._task * np.abs(1.0 - a) ** (2 * self.depth - 1) * base_error
        # A generous bound, also for the sum over d numbers.
        roundings = 4.0 * self.depth + 32.0
        return ROUNDING * roundings * float(terms.sum())

    @np.errstate(over="ignore", invalid="ignore")
    def hessian_product(self, params: Array, direction: Array) -> Array:
        """Second derivatives times a direction, by a complex step (IMAGINARY_STEP)."""
        _, gradient = self._evaluate(params + 1j * IMAGINARY_STEP * direction)
        return np.asarray(gradient.imag / IMAGINARY_STEP)

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """The eigenvalues of Γ, (d,)."""
        return {"eigenvalues": self._eigenvalues(params).copy()}

    def sampled(self, batch: int, seed: int = 0) -> SampledDepth:
        """Return the trainer on sampled prompts, with explicit layers."""
        return SampledDepth(self, batch, seed)


def _evaluate_infinite_prompts(a: Array, task: Array, depth: int) -> tuple[Any, Array]:
    """Return the loss ½ Σ task (1 - a)^(2L) for N = ∞, and its gradient, (d,).

    The sum is over the eigenvalues a of A, (d,), and the gradient is with respect to
    them. ``task``, (d,), is the diagonal of Ω̃.
    """
    remaining = 1.0 - a
    loss = 0.5 * np.sum(task * remaining ** (2 * depth))
    return loss, -depth * task * remaining ** (2 * depth - 1)


@dataclass(frozen=True, eq=False)
class SymmetricRisk(WithStart, Risk):
    r"""The loss of L layers over all symmetric matrices Γ, for any Σ and Ω.

    The parameters are the entries of Γ, (d, d). A matrix that is not symmetric has the
    loss of its symmetric part, so that the gradient is symmetric.

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
    Γ/L is the inverse of the matrix diag(1, 1/2), and the prompts have another
    covariance:

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
            # A diagonal or a matrix is checked, and becomes a matrix.
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
        """Return the matrix A and the task matrix Ω̃ in an eigenbasis of A."""
        symmetric = 0.5 * (params + params.T)
        A = self._root @ symmetric @ self._root / self.depth
        a, vectors = np.linalg.eigh(A)
        to_basis = vectors.T @ self._root
        return _Diagonal(a, to_basis @ self.prior @ to_basis.T, to_basis)

    @np.errstate(over="ignore", invalid="ignore")
    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient."""
        a, task, to_basis = self._diagonal(params)
        if math.isinf(self.N):
            loss, A_gradient = self._evaluate_infinite_prompts(a, task)
        else:
            loss, A_gradient = self._evaluate_finite_prompts(a, task)
        # ``A_gradient``, D, is in the eigenbasis V of A. As A = Σ^½ΓΣ^½/L, the gradient
        # with respect to Γ is Σ^½VDVᵀΣ^½/L.
        gradient = to_basis.T @ A_gradient @ to_basis / self.depth
        # Terms of large parameters overflow, and their sum may be NaN, which the engine
        # refuses. Such parameters are given an infinite loss.
        if not (math.isfinite(loss) and np.isfinite(gradient).all()):
            return math.inf, np.zeros_like(params)
        return float(loss), gradient

    def _evaluate_infinite_prompts(self, a: Array, task: Array) -> tuple[float, Array]:
        """Return the loss ½ tr Ω̃ (I - A)^2L for N = ∞, and its gradient, (d, d).

        The gradient with respect to A is minus half the sum of (I - A)^b Ω̃ (I - A)^c
        over all b and c with b + c = 2L - 1. The eigenvalues a of A are (d,). The
        matrix ``task``, which is Ω̃, and the gradient are in the eigenbasis of A.
        """
        degree = 2 * self.depth
        # Row b has the eigenvalues of (I - A)^b. In the reversed order the rows have
        # the exponents c = 2L - 1 - b.
        remaining = eigenvalue_powers(1.0 - a, degree - 1)
        loss = 0.5 * float(np.diag(task) @ (1.0 - a) ** degree)
        return loss, -0.5 * task * (remaining.T @ remaining[::-1])

    def _evaluate_finite_prompts(self, a: Array, task: Array) -> tuple[float, Array]:
        """Return the loss for finite N, and its gradient with respect to A, (d, d).

        The eigenvalues a, (d,), the matrix ``task``, (d, d), and the gradient are in
        the eigenbasis of A.
        """
        degree = 2 * self.depth
        polynomial = loss_polynomial(self.depth, self.N, self.noise)
        p, q = traces(a, np.diag(task), degree)
        loss, p_gradient, q_gradient = polynomial.evaluate(p, q)
        n = np.arange(1, degree + 1)
        powers = eigenvalue_powers(a, degree - 1)
        # The derivative of p_n = tr A^n is n A^(n - 1). The derivative of
        # q_m = tr Ω̃ A^m is the sum of A^b Ω̃ A^c over all b + c = m - 1. The entry
        # (i, j) of this sum is Ω̃_ij times the sum of a_i^b a_j^c. The first entry of
        # ``p_gradient`` is for p_1. The first entry of ``q_gradient`` is for q_0, which
        # does not depend on A.
        A_gradient = np.diag((n * p_gradient) @ powers)
        for m in n:
            powers_sum = powers[:m].T @ powers[:m][::-1]
            A_gradient = A_gradient + q_gradient[m] * task * powers_sum
        return loss, A_gradient

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """The diagonal of Γ in the eigenbasis of Σ, (d,).

        These are the eigenvalues of Γ if it commutes with Σ. The entry for the largest
        eigenvalue of Σ is the first.
        """
        _, vectors = np.linalg.eigh(self.covariance)
        diagonal = np.einsum("ik,ij,jk->k", vectors, params, vectors)
        largest_first = diagonal[::-1]  # eigh has the smallest eigenvalue first
        return {"eigenvalues": largest_first.copy()}

    def loss_error(self, params: ArrayLike) -> float:
        """Bound the rounding error of the loss, including errors of the eigenvalues."""
        a, task, _ = self._diagonal(self._checked(params))
        d = len(a)
        degree = 2 * self.depth
        # The error of each eigenvalue is relative to the largest one. So the bound is
        # computed for a matrix whose eigenvalues all have the largest size.
        largest = np.full(d, np.abs(a).max())
        # With equal eigenvalues the traces q depend on Ω̃ through its trace alone.
        mean_task = np.full(d, np.trace(task) / d)
        # The polynomial is for finite N. At an N of 1e40 all terms with 1/N are below
        # rounding, so that the bound holds for N = ∞.
        N = LARGEST if math.isinf(self.N) else self.N
        polynomial = loss_polynomial(self.depth, N, self.noise)
        with np.errstate(over="ignore", invalid="ignore"):
            p, q = traces(largest, mean_task, degree)
            error = polynomial.rounding(p, q, d)
            # A term has up to 2L eigenvalues of A as factors.
            eigenvalue_error = EIGENVALUE_ROUNDING * d * degree
            error += eigenvalue_error * polynomial.magnitude(p, q)
        # The bound may be NaN if terms overflow.
        return error if math.isfinite(error) else math.inf


class _Diagonal(NamedTuple):
    """The matrix A and the task matrix Ω̃ in an eigenbasis V of A."""

    a: Array  # eigenvalues of A, (d,)
    task: Array  # Ω̃ in the eigenbasis, (d, d)
    to_basis: Array  # VᵀΣ^½: Σ^½, and then the change to the eigenbasis, (d, d)


@dataclass(frozen=True, eq=False)
class SampledDepth(Trainer[Prompts]):
    r"""Squared error of the layers on sampled prompts, token by token.

    The rows of X are the N tokens of a prompt. The vector y has its labels, minus the
    predictions of earlier layers for them. A layer computes :math:`h = X^\top y/N`,
    adds :math:`\frac1L h^\top\Gamma x` to the prediction for the query x, and
    subtracts :math:`\frac1L X\Gamma h` from y. The trainer shares no formula with the
    population loss. Tasks are normal.

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
        """Generous bound on the numbers that a prompt takes in memory.

        The numbers are three copies of the N + 1 tokens with their labels, and of the
        rotation.
        """
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
        """Draw ``size`` prompts."""
        # `prompts_to_draw` checks the size, and that the prompts fit in memory.
        B = prompts_to_draw(rng, size, self._numbers)
        N = int(self.risk.N)
        d = self.risk.d
        # All numbers are drawn in the eigenbasis of Σ and Ω.
        scale = np.sqrt(self.risk.covariance)
        tokens = scale * rng.normal(size=(B, N, d))
        query = scale * rng.normal(size=(B, d))
        task = np.sqrt(self.risk.prior) * rng.normal(size=(B, d))
        noise = self.risk.noise * rng.normal(size=(B, N))
        labels = np.einsum("bnd,bd->bn", tokens, task) + noise
        answer = np.sum(query * task, axis=1)
        # A rotation of tokens, query and task together changes no label or answer.
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
        """Mean loss of B prompts, and its gradient by a backward pass."""
        errors, h_of_layers = self._forward(params, prompts)
        X, y, query, _ = prompts
        N = y.shape[1]
        step = self.risk._eigenvalues(params) / self.risk.depth  # diagonal of Γ/L
        # Gradients of the sum of the losses over the prompts.
        step_gradient = np.zeros(self.risk.d)
        # With respect to the labels that a layer passes on, (B, N). No layer reads the
        # labels of the last layer.
        labels_gradient = np.zeros_like(y)
        # The loop goes from the last layer back to the first. In `_forward` each layer
        # has a change Γh/L. The layer adds the product of change and query to the
        # error, and subtracts the products of change and tokens from the labels.
        for h in reversed(h_of_layers):
            change_gradient = query * errors[:, None]
            change_gradient = change_gradient - np.einsum(
                "bnd,bn->bd", X, labels_gradient
            )
            step_gradient += np.sum(change_gradient * h, axis=0)
            h_gradient = step * change_gradient
            labels_gradient = (
                labels_gradient + np.einsum("bnd,bd->bn", X, h_gradient) / N
            )
        # step = Γ/L, and the loss is a mean over the prompts.
        gradient = step_gradient / (self.risk.depth * len(errors))
        if self.risk.rotated:
            # All eigenvalues of Γ are the one parameter γ.
            gradient = gradient.sum(keepdims=True)
        return 0.5 * float(np.mean(errors**2)), gradient

    def _forward(self, params: Array, prompts: Prompts) -> tuple[Array, list[Array]]:
        """Return the errors of the predictions, (B,), and each layer's h, (B, d).

        An error is the prediction minus the answer.
        """
        X, y, query, answer = prompts
        N = y.shape[1]
        step = self.risk._eigenvalues(params) / self.risk.depth  # diagonal of Γ/L
        errors = -answer  # the prediction of no layers is zero
        h_of_layers = []
        for _ in range(self.risk.depth):
            h = np.einsum("bnd,bn->bd", X, y) / N
            h_of_layers.append(h)
            change = step * h
            errors = errors + np.sum(change * query, axis=1)
            y = y - np.einsum("bnd,bd->bn", X, change)
        return errors, h_of_layers


def _rotations(rng: np.random.Generator, count: int, d: int) -> Array:
    """Draw orthogonal matrices from the uniform law, (count, d, d)."""
    rotation, triangle = np.linalg.qr(rng.normal(size=(count, d, d)))
    # The factor Q of a normal matrix is uniform if the diagonal of R is positive.
    # Without these signs the law would depend on the convention of the factorisation.
    signs = np.sign(np.diagonal(triangle, axis1=1, axis2=2))
    return np.asarray(rotation * signs[:, None, :])
