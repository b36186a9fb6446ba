"""The population risk over the matrix Γ of the prediction xᵀΓh, or over its factors.

`MergedRisk` is the risk over Γ itself. It is quadratic, so that descent on it has a
closed form (`ModeSteps`, and `closed_runs` for many diagonal risks at once). `Pair` and
`Heads` map the parameters of a layer to Γ; `Pullback` of the engine turns these maps
into risks.

Letters, as in the module of the law: a prompt has N tokens of covariance Λ, a task with
the second moment W, and label noise of standard deviation σ. x is the query, with the
second moment Λ_q, and h the mean of label times token, with the second moment M. The
best matrix is Γ*, and G the gradient of the loss with respect to Γ. The modes of the
law are the axes u_a and v_b, the eigenvectors of Λ_q and M, in the columns of U and V.
The eigenvalues are q_a and m_b = s_b², and ``law.modes.reach`` has the numbers
u_aᵀ Γ* v_b s_b. A gap is u_aᵀ(Γ - Γ*)v_b s_b.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icl_theory._validate import (
    LARGEST,
    Array,
    argument_error,
    integer,
    number,
    plain_numbers,
    real_array,
    sequence,
    set_fields,
)
from icl_theory.engine.capabilities import gradients_one_by_one
from icl_theory.engine.counting import ROUNDING, Counted, Steps, first_steps
from icl_theory.engine.descent import VISIBLE
from icl_theory.engine.pullback import Map
from icl_theory.engine.risk import Risk, Solution, WithStart
from icl_theory.engine.rules import Rule, is_plain_descent
from icl_theory.papers.linear_attention.law import PromptLaw, prompt_law, shaped
from icl_theory.papers.linear_attention.layer import SampledRisk

# A plateau ends when the excess has fallen to this share of its value at the start.
# After the plateau the excess falls fast, so that the end hardly depends on this share,
# unless it is near 0 or 1.
PLATEAU = 0.9

# The derivative of a polynomial p along v is Im p(x + ihv)/h for a tiny h, exact to
# rounding: it contains no difference in which digits could cancel. Here h is 1e-100:
# h² is far below rounding, and products with h do not underflow.
IMAGINARY_STEP = 1e-100j
INVERSE_STEP = 1e100  # 1/h


class BestKnown(Risk):
    """A risk whose ``best`` parameters are known; training begins at ``start``."""

    start: Any
    best: Any

    @property
    def initial(self) -> Array:
        """Parameters at step 0."""
        # The start of a risk over one parameter may be a number.
        return np.atleast_1d(self.start)

    def floor(self) -> float:
        """Loss of the best parameters."""
        loss, _ = self.evaluate(self.best)
        return loss

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Loss above the floor."""
        loss, _ = self.evaluate(params)
        # Rounding may take the loss below the floor.
        return {"excess": np.asarray(max(loss - self.floor(), 0.0))}


@dataclass(frozen=True, eq=False)
class MergedRisk(BestKnown):
    r"""The risk over the matrix Γ, a quadratic form in :math:`\Gamma - \Gamma^*`.

    With :math:`\Lambda_q = \sum q_a u_a u_a^\top`, :math:`M = \sum m_b v_b v_b^\top`
    and :math:`C_{ab} = u_a^\top(\Gamma - \Gamma^*)v_b` the loss exceeds its least value
    by :math:`\tfrac12\sum q_a m_b C_{ab}^2`, and descent multiplies :math:`C_{ab}` by
    :math:`1 - \eta q_a m_b` in each step.

    See docs/linear-attention-theory.md, "Merged parameters".

    Parameters
    ----------
    law : PromptLaw
        The law of the prompts.
    start : array_like, (d, d) or (d,)
        Γ at step 0, with entries up to 1e40. If all moments are diagonal, it may be the
        diagonal, (d,), of a matrix that stays diagonal.
    rank : int, optional
        Largest rank of Γ if it is a product of factors. The floor is then the least
        loss of matrices up to this rank.

    Examples
    --------
    >>> import icl_theory as icl
    >>> law = icl.linear_attention.PromptLaw([1.0, 0.5], N=10)
    >>> risk = icl.linear_attention.MergedRisk(law, [0.0, 0.0])
    >>> icl.descend(risk, eta=0.5, above=1e-6, method="closed").steps
    67
    """

    law: PromptLaw
    start: Array
    rank: int | None = None

    def __post_init__(self) -> None:
        d = prompt_law(self.law).d
        shapes = [(d,), (d, d)] if self.law.diagonal else [(d, d)]
        set_fields(self, start=shaped("start", self.start, *shapes))
        if self.rank is not None:
            set_fields(self, rank=integer("rank", self.rank, minimum=1))

    @cached_property
    def curvature(self) -> Array:
        """Eigenvalues q_a m_b of the Hessian, of the shape of the parameters."""
        q, s, _, _ = self.law.modes
        m = s**2
        if self.start.ndim == 1:
            return np.asarray(q * m)
        return np.asarray(np.multiply.outer(q, m))

    @cached_property
    def best(self) -> Array:
        """The minimiser, of the shape of the parameters."""
        best = self.law.best
        # The law may store the best Γ as its diagonal, while the parameters are (d, d).
        return np.diag(best) if best.ndim < self.start.ndim else best

    def sampled(self, batch: int, seed: int = 0) -> SampledRisk:
        """Return the trainer on sampled prompts, over the whole matrix Γ, (d, d).

        Raises
        ------
        ValueError
            N is infinite, or an argument is out of range.
        """
        start = self.start if self.start.ndim == 2 else np.diag(self.start)
        return SampledRisk(self.law.dense, start, batch, seed)

    def modes(self, gamma: Array) -> Array:
        """Return the coordinates UᵀΓV of a matrix, or of several, in the modes."""
        return self._modes(self._matrices("gamma", gamma))

    def back(self, modes: Array) -> Array:
        """Return the matrix, or matrices, with these coordinates in the modes."""
        return self._back(self._matrices("modes", modes))

    def _matrices(self, name: str, value: ArrayLike) -> Array:
        """Return numbers as matrices, (..., d, d), or as their diagonals, (..., d).

        The last axes must have the shape of the start. Otherwise the numbers are
        refused by an error about the argument ``name``.
        """
        matrices = plain_numbers(name, value, -LARGEST, LARGEST)
        shape = np.shape(self.initial)
        if matrices.shape[-len(shape) :] != shape:
            sizes = ", ".join(map(str, shape))
            raise argument_error(
                name, matrices.shape, f"of shape {shape}, or (..., {sizes})"
            )
        return matrices

    def _modes(self, gamma: Array) -> Array:
        """Return the result of `modes` for an argument that was checked."""
        bases = self.law.modes.bases
        if bases is None:
            return gamma
        U, V = bases
        return U.T @ gamma @ V

    def _back(self, modes: Array) -> Array:
        """Return the result of `back` for an argument that was checked."""
        bases = self.law.modes.bases
        if bases is None:
            return modes
        U, V = bases
        return U @ modes @ V.T

    def excess(self, params: ArrayLike) -> float:
        """Loss above the floor.

        The excess is a sum of squares. If a rank is given, the least value of this sum
        for matrices up to the rank is subtracted.
        """
        return self._excess(self._checked(params))

    def _excess(self, params: Array) -> float:
        """The excess, which is infinite beyond the range of float64."""
        with np.errstate(over="ignore"):
            excess = self.law._excess_of_gaps(self.law._gaps(params))
            # At the best matrix up to the rank, rounding may take the difference below
            # zero.
            return max(excess - self._rank_excess, 0.0)

    @cached_property
    def _rank_excess(self) -> float:
        """How far the least loss up to the rank is above the least loss of any Γ."""
        return 0.0 if self.rank is None else self.law.rank_excess(self.rank)

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        r"""Loss and its gradient, :math:`\Lambda_q(\Gamma - \Gamma^*)M`."""
        q, s, _, _ = self.law.modes
        gaps = self.law._gaps(params)
        # The gaps are a matrix, (d, d), whose row a belongs to u_a, or its diagonal.
        if gaps.ndim == 2:
            q = q[:, None]
        gradient = self._back(q * gaps * s)
        return self.law.floor + self.law._excess_of_gaps(gaps), gradient

    def gradients(self, states: Array) -> Array:
        """Gradients at n states, of the shape of ``states``."""
        q, s, _, _ = self.law.modes
        # `PromptLaw._gaps` would take n diagonals, (n, d), for one matrix.
        if self.start.ndim == 1:
            return gradients_one_by_one(self, states)
        return self._back(q[:, None] * self.law._gaps(states) * s)

    def hessian_product(self, params: Array, direction: Array) -> Array:
        r"""Product with the Hessian, :math:`\Lambda_q\,\delta\Gamma\,M`."""
        return self._back(self.curvature * self._modes(direction))

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Loss above the floor, and the `components` of Γ as "gamma", (d,)."""
        return {
            "excess": np.asarray(self._excess(params)),
            "gamma": self._components(params),
        }

    def components(self, params: Array) -> Array:
        """Return eᵀΓe for the eigenvectors e of Λ, largest eigenvalue first, (d,)."""
        return self._components(self._checked(params))

    def _components(self, params: Array) -> Array:
        """Return the result of `components` for an argument that was checked."""
        if self.law.diagonal:
            diagonal = params if params.ndim == 1 else np.diag(params)
            return diagonal[self._order]
        # The diagonal of EᵀΓE for the eigenvectors E.
        return np.sum(self._eigenvectors * (params @ self._eigenvectors), axis=0)

    @cached_property
    def _order(self) -> NDArray[np.intp]:
        """The order of the axes by a diagonal Λ, largest eigenvalue first, (d,)."""
        # A stable sort keeps the order of axes with equal eigenvalues.
        return np.argsort(-self.law.covariance, kind="stable")

    @cached_property
    def _eigenvectors(self) -> Array:
        """The eigenvectors of Λ in columns, largest eigenvalue first, (d, d)."""
        _, increasing = np.linalg.eigh(self.law.covariance)
        return np.ascontiguousarray(increasing[:, ::-1])

    def floor(self) -> float:
        """Least loss of matrices up to the rank, or of all if no rank is given."""
        return self.law.floor + self._rank_excess

    def closed_form(self, eta: float, rule: str | Rule) -> Solution | None:
        """Return descent in closed form, or None if it has none.

        Plain gradient descent has a closed form at rates at which it does not diverge.
        """
        is_stable = eta * self.curvature.max() <= 2.0
        if not is_plain_descent(rule) or not is_stable:
            return None
        return ModeSteps(self, eta)


def modes_after(start: Array, best: Array, shrink: Array, steps: Steps) -> Array:
    r"""Return the modes after t steps of descent, for arrays that broadcast.

    A mode of curvature κ is :math:`x_t = x^* + (1 - \eta\kappa)^t(x_0 - x^*)`.
    ``start`` and ``best`` are :math:`x_0` and :math:`x^*`, ``shrink`` is
    :math:`\eta\kappa`, from 0 to 2, and ``steps`` has the numbers t.
    """
    # If shrink is 1, the logarithm is -∞. The product of -∞ with 0 steps is NaN, which
    # is not used. With more steps the power is 0, as it should be. The NaN of log1p for
    # shrink above 1 is not used either.
    with np.errstate(divide="ignore", invalid="ignore"):
        # log1p keeps the digits of a small shrink. Near ½ both forms are accurate.
        log_factor = np.where(
            shrink <= 0.5, np.log1p(-shrink), np.log(np.abs(1.0 - shrink))
        )
        remaining = np.where(steps == 0, 1.0, np.exp(steps * log_factor))
    changes_sign = (shrink > 1.0) & (steps % 2 == 1)
    remaining = np.where(changes_sign, -remaining, remaining)
    # A mode that has hardly moved is computed as its start plus the distance it has
    # covered. The best value minus the remaining distance would lose digits. If about
    # half of the distance is covered, both forms are accurate. A mode with a shrink
    # above ½ counts as near its start only at step 0, at which nothing is covered for
    # any shrink. So `np.minimum` changes no result that is used. It keeps the logarithm
    # finite.
    covered = -np.expm1(steps * np.log1p(-np.minimum(shrink, 0.5)))
    is_near_start = shrink * steps < 0.5
    return np.where(
        is_near_start,
        start + (best - start) * covered,
        best + (start - best) * remaining,
    )


class ModeSteps(Counted):
    """Descent on a `MergedRisk` at a rate of at most 2 over the largest curvature.

    A mode is an entry of UᵀΓV. Each step multiplies its distance from the best value by
    a constant factor.
    """

    risk: MergedRisk

    def __init__(self, risk: MergedRisk, eta: float) -> None:
        super().__init__(risk)
        _, s, reach, bases = risk.law.modes
        self.eta = eta
        self.shrink = eta * risk.curvature
        if bases is None:
            self.best = risk.best
        else:
            # Γ* in the modes. A mode without curvature stays at its start, so that its
            # best value does not matter.
            zeros = np.zeros_like(reach)
            self.best = np.divide(reach, s, out=zeros, where=s > 0.0)
        self.start = risk._modes(risk.start)

    @cached_property
    def _curvature_rounding(self) -> Array:
        """How far rounding moves the curvatures, in units of ``ROUNDING``, (d, d).

        The result is of first order in the rounding. Rounding moves all eigenvalues of
        Λ and Λ_q as far as the largest one, so that small ones lose digits.
        """
        law = self.risk.law
        covariance, prior, _ = law.moments
        q, s, _, bases = law.modes
        assert bases is not None  # `blur` calls this only if the law is not diagonal
        _, V = bases
        covariance_V = covariance @ V
        covariance_norm = float(np.linalg.eigvalsh(covariance)[-1])
        label_variance = float(np.sum(covariance * prior)) + law.noise**2
        # Bound how far the eigenvalue vᵀMv moves for a change δ of Λ with ‖δ‖ = 1. The
        # part (1 + 1/N) ΛWΛ of M moves it by 2 (1 + 1/N) vᵀδWΛv, and the part
        # (tr ΛW + σ²) Λ/N by [tr δW vᵀΛv + (tr ΛW + σ²) vᵀδv]/N.
        signal_change = np.linalg.norm(prior @ covariance_V, axis=0)
        trace_change = float(np.trace(prior)) * np.sum(V * covariance_V, axis=0)
        eigenvalue_change = 2.0 * (1.0 + 1.0 / law.N) * signal_change
        eigenvalue_change = eigenvalue_change + 1.0 / law.N * (
            trace_change + label_variance
        )
        # In units of ``ROUNDING``, rounding changes Λ by a matrix δ whose norm is the
        # norm of Λ, and not 1.
        m_rounding = covariance_norm * eigenvalue_change
        # The curvature is q_a m_b. The first term below is the change of the curvature
        # with q_a, and the second is the change with m_b.
        return np.asarray(q.max() * s**2 + np.multiply.outer(q, m_rounding))

    def states(self, steps: Steps) -> Array:
        """Return Γ at T steps, (T, d, d), or its diagonals, (T, d)."""
        # Steps vary along the first axis, and modes along the others.
        steps_axis = np.asarray(steps).reshape(-1, *(1,) * self.shrink.ndim)
        modes = modes_after(self.start, self.best, self.shrink, steps_axis)
        return np.asarray(self.risk._back(modes))

    def blur(self, steps: Steps) -> Array:
        """Return errors of the loss by rounding, at T steps, (T,).

        Three roundings contribute to these errors: the rounding of Γ, of its products
        with the bases U and V, and of the curvatures.
        """
        law = self.risk.law
        T = len(steps)
        states = self.states(steps)
        gaps = np.array([law._gaps(state) for state in states])
        q, s, _, bases = law.modes
        # The gaps are (T, d, d), with a row for each axis u_a, or (T, d) for diagonals.
        if gaps.ndim == 3:
            q = q[:, None]
        # An entry of Γ is rounded by up to ROUNDING times the largest entry of Γ or Γ*.
        # The loss changes by this error times the gradient. All errors below are in
        # units of ROUNDING.
        gradient = np.abs(q * gaps * s).reshape(T, -1)
        sizes = np.maximum(np.abs(states), np.abs(self.risk.best)).reshape(T, -1)
        errors = sizes.max(axis=1) * gradient.sum(axis=1)
        if bases is not None:
            # A product of matrices adds d rounded terms.
            squares = q * gaps**2
            product_errors = law.d * squares.sum(axis=(1, 2))
            # A mode adds half of its entry in ``squares`` to the loss. This half falls
            # like e^(-2ηκt), so that an error of κ changes it by ηt times the entry.
            curvature_errors = law.d * self.risk.curvature + self._curvature_rounding
            rate_errors = (
                self.eta * steps * np.sum(squares * curvature_errors, axis=(1, 2))
            )
            errors += product_errors + rate_errors
        return np.asarray(ROUNDING * errors)


class _DiagonalRuns:
    """Descent on P risks at once, over diagonal matrices Γ of the same dimension d.

    ``floor`` is of shape (P,), and all other arrays (P, d). The methods take a step
    number for each risk, (P,).
    """

    def __init__(self, risks: Sequence[MergedRisk], eta: Array) -> None:
        self.start = np.stack([risk.start for risk in risks])
        self.best = np.stack([risk.best for risk in risks])
        self.curvature = np.stack([risk.curvature for risk in risks])
        self.q = np.stack([risk.law.modes.q for risk in risks])
        self.s = np.stack([risk.law.modes.s for risk in risks])
        self.floor = np.array([risk.floor() for risk in risks])
        self.shrink = eta[:, None] * self.curvature

    def states(self, steps: Steps) -> Array:
        """Diagonals of Γ, (P, d)."""
        return modes_after(self.start, self.best, self.shrink, steps[:, None])

    def excess(self, steps: Steps) -> Array:
        """Losses above their floors, ½ Σ q (γ - γ*)² s² over the diagonal, (P,)."""
        gaps = (self.states(steps) - self.best) * self.s
        return 0.5 * np.sum(self.q * gaps**2, axis=1)

    def loss(self, steps: Steps) -> Array:
        """Losses, (P,)."""
        return self.floor + self.excess(steps)

    def rounding(self, steps: Steps) -> Array:
        """Errors of the losses by rounding of Γ, (P,); see `ModeSteps.blur`."""
        states = self.states(steps)
        size = np.maximum(np.abs(states), np.abs(self.best)).max(axis=1)
        gradient = self.curvature * (states - self.best)
        return np.asarray(ROUNDING * size * np.sum(np.abs(gradient), axis=1))

    def learnt(self, steps: Steps) -> NDArray[np.int64]:
        """Numbers of directions along which Γ is at least half of the best Γ, (P,)."""
        is_learnt = (self.states(steps) >= 0.5 * self.best) & (self.best > 0.0)
        return np.asarray(np.sum(is_learnt, axis=1))


def closed_runs(
    risks: Sequence[MergedRisk], eta: Array, above: Array, last: int
) -> Mapping[str, Any]:
    """Return the columns of a sweep over risks of diagonal Γ of the same dimension.

    The loss is NaN at a point whose ``above`` is so small, compared with the floor,
    that float64 does not resolve it in the loss. Such a point has to be simulated.

    Parameters
    ----------
    risks : sequence of MergedRisk, P of them
    eta, above : ndarray, (P,)
        Learning rates, and targets of the loss above the floor.
    last : int
        Number of the last step.

    Returns
    -------
    mapping of column names to arrays, (P,)
        Only the column "method" is a single word, for all points. The column "steps" is
        -1 at points that do not reach their target up to the argument ``last``. The
        column "last" has the step at which the run ends: the first step at the target,
        or the argument ``last``.
    """
    runs = _DiagonalRuns(risks, eta)
    # The first step at which each loss is at its target, or a step after the last one
    # if it never is, and the error of this step number.
    hit, error = first_steps(runs.loss, runs.floor + above, last, runs.rounding)
    is_reached = hit <= last
    end = np.where(is_reached, hit, last)
    plateau_excess = PLATEAU * runs.excess(np.zeros_like(end))
    plateau_end, _ = first_steps(runs.excess, plateau_excess, last)
    # A plateau that outlasts the run ends with the run.
    plateau_end = np.minimum(plateau_end, end)
    excess = runs.excess(end)
    # A target below this share of the floor is lost in the rounding of floor plus
    # excess.
    is_unresolved = above < VISIBLE * runs.floor
    return {
        "eta_used": eta,
        "steps": np.where(is_reached, hit, -1),
        "T_plateau": plateau_end,
        "T_learning": end - plateau_end,
        "last": end,
        "method": "closed",
        "error": np.where(is_reached, error, 0.0),
        "loss": np.where(is_unresolved, np.nan, runs.floor + excess),
        "floor": runs.floor,
        "excess": excess,
        "learnt": runs.learnt(end),
    }


@dataclass(frozen=True, eq=False)
class Pair(WithStart, Map):
    r"""The matrix :math:`\Gamma = vA`: a value, and keys and queries merged.

    The gradient is :math:`(\langle G, A\rangle, vG)` with :math:`G =
    \nabla_\Gamma\mathcal L`. Gradient flow conserves :math:`v^2 - \|A\|_F^2`.

    See docs/linear-attention-theory.md, "A value and a matrix".

    Parameters
    ----------
    start : ndarray, (1 + d²,) or (1 + d,)
        v and the entries of A, or its diagonal, at step 0.
    shape : tuple of int
        (d, d) or (d,).
    """

    start: Array
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        size = math.prod(sequence("shape", self.shape, int, "(d, d) or (d,)"))
        set_fields(self, start=shaped("start", self.start, (1 + size,)))

    def inward(self, params: Array) -> Array:
        """Return vA."""
        return np.asarray(params[0] * params[1:].reshape(self.shape))

    def outward(self, params: Array, gradient: Array) -> Array:
        """Return ⟨G, A⟩ and vG for the gradient G with respect to Γ."""
        v = params[0]
        A = params[1:]
        G = gradient.ravel()
        return np.concatenate([[G @ A], v * G])

    def push(self, params: Array, direction: Array) -> Array:
        """Return δv A + v δA, the change of Γ for a change of v and A."""
        change = direction[0] * params[1:] + params[0] * direction[1:]
        return np.asarray(change.reshape(self.shape))

    def bend(self, params: Array, direction: Array, gradient: Array) -> Array:
        """Return ⟨G, δA⟩ and δv G, the change of `outward` along a direction."""
        # `outward` is linear in (v, A).
        return self.outward(direction, gradient)

    def stretch(self, params: Array) -> float:
        """Largest change of Γ for a unit change of v and A.

        It is √(v² + ‖A‖²), since ‖δv A + v δA‖ <= ‖δv‖ ‖A‖ + ‖v‖ ‖δA‖, with equality
        for δA along A.
        """
        return float(np.linalg.norm(params))

    def blocks(self, array: Array) -> Sequence[Array]:
        """The value and the matrix."""
        return array[:1], array[1:].reshape(self.shape)


class _HeadFactors(NamedTuple):
    """The factors of Γ for H heads whose keys and queries have R rows."""

    values: Array  # (H, 1, 1)
    keys: Array  # (H, R, d)
    queries: Array  # (H, R, d)


@dataclass(frozen=True, eq=False)
class Heads(WithStart, Map):
    r"""The matrix of H heads, :math:`\Gamma = \sum_h v_h Q_h^\top K_h`.

    Each head has a value :math:`v_h`, keys :math:`K_h` and queries :math:`Q_h` of its
    own; keys and queries are matrices of R rows.

    Parameters
    ----------
    start : ndarray, (H, 1 + 2Rd)
        The value, the keys (R, d) and the queries (R, d) of each head at step 0.
    d : int
        Dimension of the tokens.

    References
    ----------
    Zhang, Singh, Latham, Saxe 2025; docs/linear-attention-theory.md, "Heads".
    """

    start: Array
    d: int

    def __post_init__(self) -> None:
        set_fields(self, d=integer("d", self.d, minimum=1))
        start = real_array("start", self.start, 2, LARGEST)
        # A head has a value, and R rows of 2d numbers.
        rows, remainder = divmod(start.shape[1] - 1, 2 * self.d)
        if len(start) == 0 or rows < 1 or remainder != 0:
            raise argument_error(
                "start",
                start.shape,
                f"of shape (H, 1 + 2R·{self.d}), with one head and one row or more",
            )
        set_fields(self, start=start)

    def _split(self, params: Array) -> _HeadFactors:
        """Return values, keys and queries, in shapes that broadcast to (H, R, d)."""
        keys_and_queries = params[:, 1:].reshape(len(params), 2, -1, self.d)
        return _HeadFactors(
            values=params[:, :1, None],
            keys=keys_and_queries[:, 0],
            queries=keys_and_queries[:, 1],
        )

    def inward(self, params: Array) -> Array:
        """Return Γ, the sum over heads of v_h Q_hᵀ K_h."""
        v, keys, queries = self._split(params)
        # The rows of all heads are stacked, so that one product sums over the heads.
        return (v * queries).reshape(-1, self.d).T @ keys.reshape(-1, self.d)

    def outward(self, params: Array, gradient: Array) -> Array:
        """Return ⟨Q_hᵀK_h, G⟩, v_h Q_h G and v_h K_h Gᵀ.

        These are the gradients with respect to v_h, K_h and Q_h, for the gradient G
        with respect to Γ.
        """
        v, keys, queries = self._split(params)
        heads = len(params)
        queries_G = queries @ gradient
        v_gradient = np.sum(queries_G * keys, axis=(1, 2))
        keys_gradient = v * queries_G
        queries_gradient = v * (keys @ gradient.T)
        return np.concatenate(
            [
                v_gradient.reshape(heads, -1),
                keys_gradient.reshape(heads, -1),
                queries_gradient.reshape(heads, -1),
            ],
            axis=1,
        )

    def push(self, params: Array, direction: Array) -> Array:
        """Return the derivative of Γ, a cubic polynomial, along a direction."""
        # The derivative is the imaginary part of Γ after a tiny imaginary step, divided
        # by the length of the step.
        stepped = params + IMAGINARY_STEP * direction
        return self.inward(stepped).imag * INVERSE_STEP

    def bend(self, params: Array, direction: Array, gradient: Array) -> Array:
        """Return the derivative of `outward`, of three gradients, along a direction."""
        # The gradients are polynomials, too: see `push`.
        stepped = params + IMAGINARY_STEP * direction
        return self.outward(stepped, gradient).imag * INVERSE_STEP

    def stretch(self, params: Array) -> float:
        """Upper bound on the norm of the change of Γ for a unit change of the heads.

        The change is the sum over heads of δv QᵀK + v δQᵀK + v QᵀδK. Its norm is at
        most the sum of ‖δv‖ ‖Q‖ ‖K‖ + ‖δQ‖ ‖v‖ ‖K‖ + ‖δK‖ ‖v‖ ‖Q‖. By Cauchy and
        Schwarz this is at most the root of the sum of ‖Q‖²‖K‖² + v²(‖K‖² + ‖Q‖²).
        """
        v, keys, queries = self._split(params)
        v2 = np.sum(v**2, axis=(1, 2))
        keys2 = np.sum(keys**2, axis=(1, 2))
        queries2 = np.sum(queries**2, axis=(1, 2))
        return float(np.sqrt(np.sum(keys2 * queries2 + v2 * (keys2 + queries2))))

    def blocks(self, array: Array) -> Sequence[Array]:
        """Value, keys and queries of each head."""
        values, keys, queries = self._split(array)
        blocks = list[Array]()
        for h in range(len(array)):
            blocks += [values[h], keys[h], queries[h]]
        return blocks


def balanced_flow(law: PromptLaw, start: float, time: ArrayLike) -> Array:
    r"""Return γ in :math:`\Gamma = vA = \gamma I` under the flow of :math:`(v, A)`.

    .. math:: \gamma(\tau) = \frac{\gamma^*}
        {1 + (\gamma^*/\gamma_0 - 1)\,e^{-2\sqrt d\,\lambda^2\tau}}, \qquad
        \Gamma^* = \gamma^* I,\ \gamma_0 = v_0^2/\sqrt d.

    Tokens and tasks are isotropic. The flow starts with :math:`v = \|A\|_F = v_0`, and
    A is a multiple of I. See docs/linear-attention-theory.md, "A value and a matrix".

    Parameters
    ----------
    law : PromptLaw
        With Λ = Λ_q = λI and W = I.
    start : float
        :math:`v_0`, from 1e-40 to 1e40.
    time : array_like
        Times τ = ηt.

    Returns
    -------
    ndarray, γ at these times

    Raises
    ------
    ValueError
        The law is not isotropic, a time is negative, or a number exceeds 1e40.

    Examples
    --------
    >>> import icl_theory as icl
    >>> law = icl.linear_attention.PromptLaw([1.0, 1.0], N=10)
    >>> icl.linear_attention.balanced_flow(law, 0.01, [0.0, 10.0]).round(6)
    array([7.10000e-05, 7.69231e-01])
    """
    covariance, prior, query = prompt_law(law).moments
    is_isotropic = (
        law.diagonal
        and np.ptp(query) == 0.0
        and bool(np.all(prior == 1.0))
        and bool(np.all(query == covariance))
    )
    if not is_isotropic:
        raise argument_error("law", law, "isotropic: Λ = Λ_q = λI and W = I")
    v0 = number("start", start, minimum=1.0 / LARGEST, maximum=LARGEST)
    times = plain_numbers("time", time, 0.0, LARGEST)
    sqrt_d = np.sqrt(law.d)
    gamma0 = v0**2 / sqrt_d
    best = float(law.best[0])  # γ*
    exponent = -2.0 * sqrt_d * query[0] ** 2 * times  # λ is any entry of Λ_q
    # The denominator 1 + (γ*/γ0 - 1) e^x is γ*/γ0 e^x - (e^x - 1). In this form no
    # digits cancel when x is near 0.
    denominator = best / gamma0 * np.exp(exponent) - np.expm1(exponent)
    return np.asarray(best / denominator)
