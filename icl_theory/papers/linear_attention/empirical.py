r"""The loss of linear attention on given prompts, a quadratic form in Γ.

The prediction :math:`x^\top\Gamma h` is linear in Γ, so that the mean squared error
over M prompts is a quadratic form in Γ. `EmpiricalRisk` reduces the M least-squares
equations for the d² entries of Γ to d² + 1 or fewer. From these it finds the modes, and
gives descent in closed form, as accurately as for the population loss. The prediction
of a whole layer is linear in its tensor B, which then takes the place of Γ.

A prompt has N pairs of a token and a label, a query x and its label y, the answer. The
mean of label times token over the pairs is h.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import (
    LARGEST,
    Array,
    argument_error,
    integer,
    plain_numbers,
    set_fields,
)
from icl_theory.engine.counting import ROUNDING, Counted, Steps
from icl_theory.engine.risk import Risk, Solution, WithStart
from icl_theory.engine.rules import Rule, is_plain_descent
from icl_theory.memory import blocks, check_fits
from icl_theory.papers.linear_attention.law import shaped

# Largest size of a system: the number of its equations or of the entries of Γ,
# whichever is smaller. The singular values of larger systems take minutes.
LARGEST_SYSTEM = 1600
# Prompts are reduced to equations in blocks of about this many numbers, 32 MB. Smaller
# blocks need more decompositions, and larger ones more memory.
BLOCK = 2**22


class Equations(NamedTuple):
    r"""Equations :math:`C\,\mathrm{vec}(\Gamma) = t` with the loss of M prompts.

    The loss is half the squared norm of their residual.
    """

    # C, (r, p), with r = min(M, p + 1) and a column for each of the p entries of Γ.
    rows: Array
    target: Array  # t, (r,)


class EmpiricalModes(NamedTuple):
    """Axes of Γ along which the loss is a sum of squares, and scales of these axes."""

    s: Array  # singular values of C, (k,); those that are zero are left out
    axes: Array  # right singular vectors of C, in rows; p entries each, (k, p)
    reach: Array  # s times the coordinates of the best Γ along the axes, (k,)
    rest: Array  # the part of the target that no Γ reaches, (r,)


def equations(query: ArrayLike, h: ArrayLike, answer: ArrayLike) -> Equations:
    r"""Reduce M prompts to equations that have the same loss.

    A prompt has the equation :math:`x^\top\Gamma h = y`. The factor R of a QR
    decomposition of these equations is a smaller system with the same loss. It keeps
    digits that normal equations, whose entries are squares, would lose.

    Parameters
    ----------
    query : array_like, (M, d)
        Queries x.
    h : array_like, (M, d)
        Means :math:`h = \frac1N\sum_i y_ix_i` over the pairs of a prompt.
    answer : array_like, (M,)
        Labels y of the queries.

    Returns
    -------
    Equations

    Raises
    ------
    ValueError
        The shapes contradict each other, or a number is not finite or exceeds 1e40.
    """
    query = plain_numbers("query", query, -LARGEST, LARGEST)
    if query.ndim != 2 or query.size == 0:
        raise argument_error("query", query.shape, "of shape (M, d)")
    M, d = query.shape
    h = shaped("h", h, (M, d))
    answer = shaped("answer", answer, (M,))
    return bilinear_equations(query, h, answer)


def bilinear_equations(left: Array, right: Array, answer: Array) -> Equations:
    r"""Reduce M equations :math:`a_m^\top\Gamma b_m = y_m` for a matrix of any shape.

    For the tensor B of a whole layer, a has all entries of :math:`EE^\top/N`, in which
    the matrix E has the pairs and (x, 0) as columns, and b is the query.

    Parameters
    ----------
    left, right : ndarray, (M, i), (M, j)
        The vectors a and b, with i and j entries; Γ is (i, j).
    answer : ndarray, (M,)
        Labels y of the queries.
    """
    M = len(left)
    size = left.shape[1] * right.shape[1]
    # Bytes of the reduced equations, and of a block with its products; 8 for a number.
    check_fits("prompts", M, 8.0 * min(M, size + 1) * (size + 1) + 16.0 * BLOCK)
    # Each row has the coefficients of an equation, and its answer in the last column.
    system = np.zeros((0, size + 1))
    for part in blocks(M, size + 1, BLOCK):
        products = np.einsum("mi,mj->mij", left[part], right[part]).reshape(-1, size)
        # The loss is half the mean of M squared errors, so each equation is divided by
        # √M.
        block = np.column_stack([products, answer[part]]) / math.sqrt(M)
        system = np.concatenate([system, block])
        if len(system) > size + 1:
            # Only the factor R is kept.
            _, system = np.linalg.qr(system)
    return Equations(rows=system[:, :-1].copy(), target=system[:, -1].copy())


@dataclass(frozen=True, eq=False)
class EmpiricalRisk(WithStart, Risk):
    r"""The loss of M given prompts over the matrix Γ.

    .. math:: \mathcal L_M(\Gamma) = \frac1{2M}\sum_{m=1}^M
        \bigl(x_m^\top\Gamma h_m - y_m\bigr)^2
        = \mathcal L_M^* + \tfrac12\sum_j\bigl(s_ja_j^\top\Gamma - r_j\bigr)^2

    Here :math:`s_j` are the singular values of the equations, :math:`a_j` their axes,
    and :math:`r_j` is :math:`s_j` times the coordinate of the best Γ along the axis.
    The gradient is :math:`\sum_j s_j(s_ja_j^\top\Gamma - r_j)\,a_j`. Descent multiplies
    :math:`s_ja_j^\top\Gamma - r_j` by :math:`1 - \eta s_j^2` in each step. Components
    of Γ on which the loss of no prompt depends keep their initial values.

    Parameters
    ----------
    equations : Equations
        The prompts, from `equations`.
    start : array_like, (d, d)
        Γ at step 0; or an array of any other shape with an entry for each column of the
        equations.

    Examples
    --------
    Two prompts in one dimension, whose answers contradict each other:

    >>> import icl_theory as icl
    >>> from icl_theory.papers.linear_attention.empirical import *
    >>> system = equations([[1.0], [1.0]], [[1.0], [1.0]], [1.0, 3.0])
    >>> risk = EmpiricalRisk(system, [[0.0]])
    >>> risk.best.round(12).tolist(), round(risk.floor(), 12)
    ([[2.0]], 0.5)
    """

    equations: Equations
    start: Array

    def __post_init__(self) -> None:
        if not isinstance(self.equations, Equations):
            raise argument_error(
                "equations", self.equations, "the result of empirical.equations"
            )
        size = self.equations.rows.shape[1]
        shape = np.shape(self.start)
        if math.prod(shape) != size:
            # `shaped` then refuses the start, by an error that names the shape of Γ.
            d = math.isqrt(size)
            shape = (d, d)
        set_fields(self, start=shaped("start", self.start, shape))

    @cached_property
    def modes(self) -> EmpiricalModes:
        """The singular value decomposition of the equations."""
        rows, target = self.equations
        U, s, axes = np.linalg.svd(rows, full_matrices=False)
        # Singular values below the rounding of the largest one are treated as zeros: no
        # prompt has a component along their axes.
        rounding = max(rows.shape) * np.finfo(float).eps * s[0]
        is_nonzero = s > rounding
        U = U[:, is_nonzero]
        reach = target @ U
        rest = target - U @ reach
        # If all equations are independent, a Γ solves all of them, and a nonzero rest
        # would be rounding.
        if U.shape[0] == U.shape[1]:
            rest = np.zeros_like(rest)
        return EmpiricalModes(s[is_nonzero], axes[is_nonzero], reach, rest)

    @cached_property
    def curvature(self) -> Array:
        """Eigenvalues of the Hessian that are not zero, (k,)."""
        return np.asarray(self.modes.s**2)

    @cached_property
    def best(self) -> Array:
        """Of all matrices with the least loss, the one that is nearest to the start."""
        s, axes, reach, _ = self.modes
        change = (reach - s * (axes @ self.start.ravel())) / s
        # Along all other directions of Γ the loss is constant.
        return self.start + (change @ axes).reshape(self.start.shape)

    def _gaps(self, params: Array) -> Array:
        """Return the numbers s_j a_jᵀΓ - r_j, (k,).

        The excess is half the sum of their squares.
        """
        s, axes, reach, _ = self.modes
        return np.asarray(s * (axes @ params.ravel()) - reach)

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and gradient."""
        s, axes, _, _ = self.modes
        gaps = self._gaps(params)
        gradient = (s * gaps) @ axes
        loss = self.floor() + 0.5 * float(gaps @ gaps)
        return loss, gradient.reshape(params.shape)

    def hessian_product(self, params: Array, direction: Array) -> Array:
        """Product with the Hessian, which is the same for all Γ."""
        axes = self.modes.axes
        along_axes = self.curvature * (axes @ direction.ravel())
        return (along_axes @ axes).reshape(direction.shape)

    def excess(self, params: ArrayLike) -> float:
        """Loss above the floor, a sum of squares."""
        gaps = self._gaps(self._checked(params))
        return 0.5 * float(gaps @ gaps)

    def floor(self) -> float:
        """Least loss of all matrices; zero if the answers of all prompts can be fitted.

        The answers of d² prompts or fewer can almost always be fitted.
        """
        return self._floor

    @cached_property
    def _floor(self) -> float:
        """The floor, which is computed once."""
        rest = self.modes.rest
        return 0.5 * float(rest @ rest)

    def loss_error(self, params: ArrayLike) -> float:
        """Error of the loss by rounding."""
        checked = self._checked(params)
        gaps = self._gaps(checked)
        return float(_rounding(self, checked.ravel(), gaps) + ROUNDING * self.floor())

    def closed_form(self, eta: float, rule: str | Rule) -> Solution | None:
        """Return descent in closed form, or None if it has none.

        Plain gradient descent has a closed form at rates at which it does not diverge.
        """
        converges = eta * self.curvature.max(initial=0.0) <= 2.0
        if not is_plain_descent(rule) or not converges:
            return None
        return EmpiricalSteps(self, eta)


def gap_constant(d: int, N: int) -> float:
    r"""Return the limit C of M times the mean gap between test and training loss.

    Let :math:`\hat\Gamma` have the least loss on M prompts of isotropic tokens and
    tasks without label noise. Then

    .. math:: C = \lim_{M\to\infty} M\,E\bigl[\mathcal L(\hat\Gamma) - \mathcal
        L_M(\hat\Gamma)\bigr] = E\,e^2\,|x|^2\,\frac{|h|^2}m

    Here e is the error of the best matrix γI, and mI the second moment of h. Half of
    the gap is the excess of the population loss. The other half is the distance by
    which the loss of the M prompts is below the population floor. In axes whose first
    one is along the task w, h is ‖w‖ times the first column of a Wishart matrix over N,
    whose moments give

    .. math:: C = \frac{d(d + 2)^2}{m}\bigl[\gamma^2(A_4 + 2\tfrac{d-1}NA_3 +
        \tfrac{d^2-1}{N^2}A_2) - 2\gamma(A_3 + \tfrac{d-1}NA_2) + m\bigr]

    with :math:`m = 1/\gamma = 1 + (d + 1)/N`. Here :math:`A_k = N(N + 2)\cdots(N + 2k -
    2)/N^k` is the k-th moment of a mean of N squares of standard normal numbers. For
    long prompts C is :math:`2(d + 2)^2` times the floor.

    Parameters
    ----------
    d, N : int
        Dimension of the tokens, and pairs in a prompt.

    Returns
    -------
    float, squared label units

    References
    ----------
    Takeuchi 1976: the gap is the trace of the inverse Hessian times the covariance of
    the gradient of a prompt.

    Examples
    --------
    >>> from icl_theory.papers.linear_attention.empirical import gap_constant
    >>> round(gap_constant(5, 20), 3)
    56.092
    """
    d = integer("d", d, minimum=1, maximum=10**6)
    N = integer("N", N, minimum=1, maximum=10**9)
    A2 = (N + 2.0) / N
    A3 = A2 * (N + 4.0) / N
    A4 = A3 * (N + 6.0) / N
    m = 1.0 + (d + 1.0) / N
    # Let a be the part of h/‖w‖ along the task, and b the part orthogonal to it. Then
    # E a^k = A_k, and for a given a the square ‖b‖² has the mean a(d - 1)/N.
    across = (d - 1.0) / N
    h_to_the_4 = A4 + 2.0 * across * A3 + across * (d + 1.0) / N * A2  # E (a² + ‖b‖²)²
    h2_along_task = A3 + across * A2  # E a (a² + ‖b‖²)
    # The bracket of the formula, with γ = 1/m.
    bracket = h_to_the_4 / m**2 - 2.0 * h2_along_task / m + m
    return d * (d + 2.0) ** 2 / m * bracket


class EmpiricalSteps(Counted):
    r"""Descent on an `EmpiricalRisk` at a rate of at most 2 over the largest curvature.

    After t steps the share :math:`1 - (1 - \eta s_j^2)^t` of the way to the best matrix
    is covered along axis j.
    """

    risk: EmpiricalRisk

    def __init__(self, risk: EmpiricalRisk, eta: float) -> None:
        super().__init__(risk)
        self.eta = eta
        self.shrink = eta * risk.curvature
        s, axes, reach, _ = risk.modes
        # The change from the start to the best coordinates along the axes, (k,).
        self.way_to_best = reach / s - axes @ risk.start.ravel()

    def states(self, steps: Steps) -> Array:
        """Return Γ at T steps, (T, ...)."""
        t = np.asarray(steps, dtype=float)[:, None]
        # The covered share is 1 - (1 - shrink)^t. For slow modes, expm1 and log1p keep
        # the digits that a difference from 1 would lose. Near ½, where the form
        # changes, both are accurate. Each form gets 0 for the modes that the other form
        # computes.
        is_slow = self.shrink <= 0.5
        log_factor = np.log1p(-np.where(is_slow, self.shrink, 0.0))
        covered_slowly = -np.expm1(t * log_factor)
        covered_fast = 1.0 - np.where(is_slow, 0.0, 1.0 - self.shrink) ** t
        covered = np.where(is_slow, covered_slowly, covered_fast)
        change = (covered * self.way_to_best) @ self.risk.modes.axes
        return self.risk.start + change.reshape(len(t), *self.risk.start.shape)

    def blur(self, steps: Steps) -> Array:
        """Return errors of the loss by rounding, at T steps, (T,)."""
        errors = []
        for step, state in zip(steps, self.states(steps), strict=True):
            gaps = self.risk._gaps(state)
            # Rounding moves all singular values as far as the largest one, by up to
            # len(s) ROUNDING s[0]. The excess of a mode falls like exp(-2 η s² t). If s
            # changes by δ, the excess changes by the relative amount 4 η t s δ. The
            # excess is half of gaps²; the missing factor ½ makes the error cautious.
            s = self.risk.modes.s
            # In units of ``ROUNDING``.
            relative_changes = 4.0 * self.eta * float(step) * s * s[0] * len(s)
            rate_errors = ROUNDING * float(np.sum(relative_changes * gaps**2))
            errors.append(_rounding(self.risk, state.ravel(), gaps) + rate_errors)
        return np.array(errors)


def _rounding(risk: EmpiricalRisk, params: Array, gaps: Array) -> float:
    """Return the error of the loss by rounding of Γ and of the singular vectors.

    ``params`` are the entries of Γ, and ``gaps`` the numbers s_j a_jᵀΓ - r_j.
    """
    s, _, reach, _ = risk.modes
    if s.size == 0:
        return 0.0  # the loss is its floor for all Γ
    # The decomposition is exact for equations that differ from the given ones by
    # rounding of the largest singular value. So each of the len(s) gaps has an error of
    # ROUNDING times the size of its terms. If the vector of gaps changes by δ, half its
    # squared length changes by at most ‖gaps‖ ‖δ‖ + ‖δ‖².
    term_size = float(s[0] * np.linalg.norm(params) + np.linalg.norm(reach))
    delta_norm = ROUNDING * math.sqrt(len(s)) * term_size
    gaps_norm = float(np.linalg.norm(gaps))
    return delta_norm * (gaps_norm + delta_norm)
