"""The population risk over the matrix Γ of the prediction xᵀΓh, or over its factors.

`MergedRisk` is the risk over Γ itself. It is quadratic, so that descent on it has a
closed form (`ModeSteps`, and `closed_runs` for many diagonal risks at once). `Pair` and
`Heads` map the parameters of a layer to Γ; `Pullback` of the engine makes risks of
them.
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
from icl_theory.engine.counting import ROUNDING, Counted, Steps, first_steps
from icl_theory.engine.descent import VISIBLE
from icl_theory.engine.pullback import Map
from icl_theory.engine.risk import Risk, Solution, WithStart
from icl_theory.engine.rules import Rule, is_plain_descent
from icl_theory.papers.linear_attention.law import PromptLaw, prompt_law, shaped
from icl_theory.papers.linear_attention.layer import SampledRisk

# A plateau ends when the excess has fallen to this share of its value at the start.
PLATEAU = 0.9

# The derivative of a polynomial is Im p(x + ih)/h for a tiny h, exact to rounding: it
# contains no difference in which digits could cancel.
IMAGINARY_STEP = 1e-100j
INVERSE_STEP = 1e100


class BestKnown(Risk):
    """A risk whose ``best`` parameters have a formula, trained from ``start``."""

    start: Any
    best: Any

    @property
    def initial(self) -> Array:
        """Parameters at step 0."""
        return np.atleast_1d(self.start)

    def floor(self) -> float:
        """Loss of the best parameters."""
        return self.evaluate(self.best)[0]

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Loss above the floor."""
        return {"excess": np.asarray(max(self.evaluate(params)[0] - self.floor(), 0.0))}


@dataclass(frozen=True, eq=False)
class MergedRisk(BestKnown):
    r"""The risk over the matrix Γ, a quadratic form in :math:`\Gamma - \Gamma^*`.

    With :math:`\Lambda_q = \sum q_a u_a u_a^\top`, :math:`M = \sum m_b v_b v_b^\top`
    and :math:`C_{ab} = u_a^\top(\Gamma - \Gamma^*)v_b` the loss is :math:`\mathcal
    L_\infty + \tfrac12\sum q_a m_b C_{ab}^2`, and descent multiplies :math:`C_{ab}` by
    :math:`1 - \eta q_a m_b` in each step.

    See docs/linear-attention-theory.md, "Merged parameters".

    Parameters
    ----------
    law : PromptLaw
    start : array_like, (d, d) or (d,)
        Γ at step 0, up to 1e40; (d,), the diagonal of a matrix that stays diagonal, if
        all moments are.
    rank : int, optional
        Largest rank of Γ if it is a product of factors; the floor is that of this rank.

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
        """Eigenvalues of the Hessian in the modes, of the shape of the parameters."""
        q, s, _, _ = self.law.modes
        if self.start.ndim == 1:
            return np.asarray(q * s**2)
        return np.asarray(np.multiply.outer(q, s**2))

    @cached_property
    def best(self) -> Array:
        """The minimiser, of the shape of the parameters."""
        best = self.law.best
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
        """Coordinates of a matrix, or of many, in the modes."""
        return self._modes(self._matrices("gamma", gamma))

    def back(self, modes: Array) -> Array:
        """Matrix from its coordinates in the modes."""
        return self._back(self._matrices("modes", modes))

    def _matrices(self, name: str, value: ArrayLike) -> Array:
        """Return matrices of the shape of Γ, or diagonals."""
        matrices = plain_numbers(name, value, -LARGEST, LARGEST)
        shape = np.shape(self.initial)
        if matrices.shape[-len(shape) :] != shape:
            sizes = ", ".join(map(str, shape))
            raise argument_error(
                name, matrices.shape, f"of shape {shape}, or (..., {sizes})"
            )
        return matrices

    def _modes(self, gamma: Array) -> Array:
        bases = self.law.modes.bases
        if bases is None:
            return gamma
        U, V = bases
        return U.T @ gamma @ V

    def _back(self, modes: Array) -> Array:
        bases = self.law.modes.bases
        if bases is None:
            return modes
        U, V = bases
        return U @ modes @ V.T

    def excess(self, params: ArrayLike) -> float:
        """Loss above the floor: a sum of squares, minus the cost of a small rank."""
        return self._excess(self._checked(params))

    def _excess(self, params: Array) -> float:
        """The excess, which is infinite beyond the range of float64."""
        with np.errstate(over="ignore"):
            excess = self.law._excess_of_gaps(self.law._gaps(params))
            return max(excess - self._rank_excess, 0.0)

    @cached_property
    def _rank_excess(self) -> float:
        """Least loss of this rank above the least loss of all matrices."""
        return 0.0 if self.rank is None else self.law.rank_excess(self.rank)

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        r"""Loss and its gradient, :math:`\Lambda_q(\Gamma - \Gamma^*)M`."""
        q, s, _, _ = self.law.modes
        gaps = self.law._gaps(params)
        # The gaps are a matrix in the modes, (d, d), or its diagonal, (d,).
        if gaps.ndim == 2:
            q = q[:, None]
        gradient = self._back(q * gaps * s)
        return self.law.floor + self.law._excess_of_gaps(gaps), gradient

    def hessian_product(self, params: Array, direction: Array) -> Array:
        r""":math:`\Lambda_q\,\delta\Gamma\,M`."""
        return self._back(self.curvature * self._modes(direction))

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Loss above the floor, and `components` of Γ."""
        return {
            "excess": np.asarray(self._excess(params)),
            "gamma": self._components(params),
        }

    def components(self, params: Array) -> Array:
        """Entries of Γ along the eigenvectors of Λ, largest eigenvalue first, (d,)."""
        return self._components(self._checked(params))

    def _components(self, params: Array) -> Array:
        if self.law.diagonal:
            diagonal = params if params.ndim == 1 else np.diag(params)
            return diagonal[self._principal]
        return np.sum(self._principal * (params @ self._principal), axis=0)

    @cached_property
    def _principal(self) -> NDArray[Any]:
        """Order of the axes for diagonal moments, else the eigenvectors."""
        covariance = self.law.covariance
        if self.law.diagonal:
            return np.argsort(-covariance, kind="stable")
        return np.ascontiguousarray(np.linalg.eigh(covariance)[1][:, ::-1])

    def floor(self) -> float:
        """Loss of the best matrix of the rank."""
        return self.law.floor + self._rank_excess

    def closed_form(self, eta: float, rule: str | Rule) -> Solution | None:
        """Return descent in closed form, or None if it has none.

        Plain gradient descent has a closed form at rates at which it does not diverge.
        """
        converges = eta * self.curvature.max() <= 2.0
        if not is_plain_descent(rule) or not converges:
            return None
        return ModeSteps(self, eta)


def modes_after(start: Array, best: Array, shrink: Array, steps: Steps) -> Array:
    r"""Return the modes after t steps, for arrays that broadcast.

    A mode is :math:`x_t = x^* + (1 - \eta\kappa)^t(x_0 - x^*)`; ``shrink`` is
    :math:`\eta\kappa`, from 0 to 2.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        log_factor = np.where(
            shrink <= 0.5, np.log1p(-shrink), np.log(np.abs(1.0 - shrink))
        )
        remaining = np.where(steps == 0, 1.0, np.exp(steps * log_factor))
    changes_sign = (shrink > 1.0) & (steps % 2 == 1)
    remaining = np.where(changes_sign, -remaining, remaining)
    # For slow modes, the start plus the progress keeps the digits that the best value
    # minus the rest would lose.
    covered = -np.expm1(steps * np.log1p(-np.minimum(shrink, 0.5)))
    is_slow = shrink * steps < 0.5
    return np.where(
        is_slow,
        start + (best - start) * covered,
        best + (start - best) * remaining,
    )


class ModeSteps(Counted):
    """Descent on a `MergedRisk` at a rate of at most 2 over the largest curvature."""

    risk: MergedRisk

    def __init__(self, risk: MergedRisk, eta: float) -> None:
        super().__init__(risk)
        _, s, reach, bases = risk.law.modes
        self.eta = eta
        self.shrink = eta * risk.curvature
        if bases is None:
            self.best = risk.best
        else:
            # Γ* in the modes; a mode without curvature stays at its start.
            zeros = np.zeros_like(reach)
            self.best = np.divide(reach, s, out=zeros, where=s > 0.0)
        self.start = risk._modes(risk.start)

    @cached_property
    def _curvature_rounding(self) -> Array:
        """Rounding of the curvatures to first order, in units of rounding, (d, d).

        Rounding moves all eigenvalues of Λ and Λ_q like the largest one: small ones by
        more than their digits.
        """
        law = self.risk.law
        covariance, prior, _ = law.moments
        q, s, _, bases = law.modes
        assert bases is not None
        V = bases[1]
        covariance_V = covariance @ V
        largest = float(np.linalg.eigvalsh(covariance)[-1])
        label_variance = float(np.sum(covariance * prior)) + law.noise**2
        # By how much the eigenvalues of M move for a unit change of Λ: first the terms
        # in ΛWΛ, then those in (tr ΛW + σ²) Λ.
        by_signal = np.linalg.norm(prior @ covariance_V, axis=0)
        by_trace = float(np.trace(prior)) * np.sum(V * covariance_V, axis=0)
        slope = 2.0 * (1.0 + 1.0 / law.N) * by_signal
        slope = slope + 1.0 / law.N * (by_trace + label_variance)
        return np.asarray(q.max() * s**2 + np.multiply.outer(q, largest * slope))

    def states(self, steps: Steps) -> Array:
        """Return Γ at these steps, (T, d, d) or (T, d)."""
        column = np.asarray(steps).reshape(-1, *(1,) * self.shrink.ndim)
        modes = modes_after(self.start, self.best, self.shrink, column)
        return np.asarray(self.risk._back(modes))

    def blur(self, steps: Steps) -> Array:
        """Return errors of the loss by rounding, (T,).

        Γ, its products with the bases, and the curvatures are rounded.
        """
        law = self.risk.law
        T = len(steps)
        states = self.states(steps)
        gaps = np.array([law._gaps(state) for state in states])
        q, s, _, bases = law.modes
        if gaps.ndim == 3:
            q = q[:, None]
        gradient = np.abs(q * gaps * s).reshape(T, -1)
        sizes = np.maximum(np.abs(states), np.abs(self.risk.best)).reshape(T, -1)
        errors = sizes.max(axis=1) * gradient.sum(axis=1)
        if bases is not None:
            squares = q * gaps**2
            by_products = law.d * squares.sum(axis=(1, 2))
            rates = law.d * self.risk.curvature + self._curvature_rounding
            by_rates = self.eta * steps * np.sum(squares * rates, axis=(1, 2))
            errors += by_products + by_rates
        return np.asarray(ROUNDING * errors)


class _DiagonalRuns:
    """Descent on P diagonal risks of one dimension, side by side; arrays are (P, d)."""

    def __init__(self, risks: Sequence[MergedRisk], eta: Array) -> None:
        self.start = np.stack([risk.start for risk in risks])
        self.best = np.stack([risk.best for risk in risks])
        self.curvature = np.stack([risk.curvature for risk in risks])
        self.q = np.stack([risk.law.modes.q for risk in risks])
        self.s = np.stack([risk.law.modes.s for risk in risks])
        self.floor = np.array([risk.floor() for risk in risks])
        self.shrink = eta[:, None] * self.curvature

    def states(self, steps: Steps) -> Array:
        return modes_after(self.start, self.best, self.shrink, steps[:, None])

    def excess(self, steps: Steps) -> Array:
        gaps = (self.states(steps) - self.best) * self.s
        return 0.5 * np.sum(self.q * gaps**2, axis=1)

    def loss(self, steps: Steps) -> Array:
        return self.floor + self.excess(steps)

    def rounding(self, steps: Steps) -> Array:
        """Errors of the loss by rounding of Γ."""
        states = self.states(steps)
        size = np.maximum(np.abs(states), np.abs(self.best)).max(axis=1)
        gradient = self.curvature * (states - self.best)
        return np.asarray(ROUNDING * size * np.sum(np.abs(gradient), axis=1))

    def learnt(self, steps: Steps) -> NDArray[np.int64]:
        """Number of directions along which Γ is half of the best one, or more."""
        is_learnt = (self.states(steps) >= 0.5 * self.best) & (self.best > 0.0)
        return np.asarray(np.sum(is_learnt, axis=1))


def closed_runs(
    risks: Sequence[MergedRisk], eta: Array, above: Array, last: int
) -> Mapping[str, Any]:
    """Return the columns of a sweep over diagonal risks of one dimension.

    The loss is NaN if ``above`` is too small beside the floor to be resolved: then the
    point has to be simulated by itself.

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
    """
    runs = _DiagonalRuns(risks, eta)
    hit, error = first_steps(runs.loss, runs.floor + above, last, runs.rounding)
    reached = hit <= last
    end = np.where(reached, hit, last)
    plateau_excess = PLATEAU * runs.excess(np.zeros_like(end))
    plateau_end, _ = first_steps(runs.excess, plateau_excess, last)
    plateau_end = np.minimum(plateau_end, end)
    excess = runs.excess(end)
    is_unresolved = above < VISIBLE * runs.floor
    return {
        "eta_used": eta,
        "steps": np.where(reached, hit, -1),
        "T_plateau": plateau_end,
        "T_learning": end - plateau_end,
        "last": end,
        "method": "closed",
        "error": np.where(reached, error, 0.0),
        "loss": np.where(is_unresolved, np.nan, runs.floor + excess),
        "floor": runs.floor,
        "excess": excess,
        "learnt": runs.learnt(end),
    }


@dataclass(frozen=True, eq=False)
class Pair(WithStart, Map):
    r"""The matrix :math:`\Gamma = vA`: a value, and keys and queries merged.

    The gradient is :math:`(\langle G, A\rangle, vG)` with :math:`G =
    \nabla_\Gamma\mathcal L`; the flow conserves :math:`v^2 - \|A\|_F^2`.

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
        """Return ⟨G, A⟩ and vG."""
        flat = gradient.ravel()
        return np.concatenate([[flat @ params[1:]], params[0] * flat])

    def push(self, params: Array, direction: Array) -> Array:
        """Return δv A + v δA."""
        change = direction[0] * params[1:] + params[0] * direction[1:]
        return np.asarray(change.reshape(self.shape))

    def bend(self, params: Array, direction: Array, gradient: Array) -> Array:
        """Return ⟨G, δA⟩ and δv G."""
        return self.outward(direction, gradient)

    def stretch(self, params: Array) -> float:
        """Largest change of Γ for a unit change of v and A."""
        return float(np.linalg.norm(params))

    def blocks(self, array: Array) -> Sequence[Array]:
        """The value and the matrix."""
        return array[:1], array[1:].reshape(self.shape)


class _HeadParts(NamedTuple):
    """The parts of the parameters of H heads with R rows."""

    values: Array  # (H, 1, 1)
    keys: Array  # (H, R, d)
    queries: Array  # (H, R, d)


@dataclass(frozen=True, eq=False)
class Heads(WithStart, Map):
    r"""The matrix of H heads, :math:`\Gamma = \sum_h v_h Q_h^\top K_h`.

    Each head has a value, and keys and queries of its own.

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
        rows, remainder = divmod(start.shape[1] - 1, 2 * self.d)
        if len(start) == 0 or rows < 1 or remainder != 0:
            raise argument_error(
                "start",
                start.shape,
                f"of shape (H, 1 + 2R·{self.d}), with one head and one row or more",
            )
        set_fields(self, start=start)

    def _split(self, params: Array) -> _HeadParts:
        """Return values, keys and queries of H heads; they broadcast to (H, R, d)."""
        keys_and_queries = params[:, 1:].reshape(len(params), 2, -1, self.d)
        return _HeadParts(
            values=params[:, :1, None],
            keys=keys_and_queries[:, 0],
            queries=keys_and_queries[:, 1],
        )

    def inward(self, params: Array) -> Array:
        """Return the sum over heads."""
        v, keys, queries = self._split(params)
        # All rows of all heads under one another: one product sums over the heads.
        return (v * queries).reshape(-1, self.d).T @ keys.reshape(-1, self.d)

    def outward(self, params: Array, gradient: Array) -> Array:
        """Return the gradients ⟨Q_hᵀK_h, G⟩, v_h Q_h G and v_h K_h Gᵀ."""
        v, keys, queries = self._split(params)
        heads = len(params)
        queries_gradient = queries @ gradient
        by_values = np.sum(queries_gradient * keys, axis=(1, 2))
        by_keys = v * queries_gradient
        by_queries = v * (keys @ gradient.T)
        return np.concatenate(
            [
                by_values.reshape(heads, -1),
                by_keys.reshape(heads, -1),
                by_queries.reshape(heads, -1),
            ],
            axis=1,
        )

    def push(self, params: Array, direction: Array) -> Array:
        """Return the change of Γ in a direction."""
        beside = params + IMAGINARY_STEP * direction
        return self.inward(beside).imag * INVERSE_STEP

    def bend(self, params: Array, direction: Array, gradient: Array) -> Array:
        """Return the change of the three gradients in a direction."""
        beside = params + IMAGINARY_STEP * direction
        return self.outward(beside, gradient).imag * INVERSE_STEP

    def stretch(self, params: Array) -> float:
        """Upper bound on the norm of the change of Γ for a unit change of the heads."""
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
    r"""Return the flow of :math:`(v, A)` for isotropic tokens and tasks.

    .. math:: \gamma(\tau) = \frac{\gamma^*}
        {1 + (\gamma^*/\gamma_0 - 1)\,e^{-2\sqrt d\,\lambda^2\tau}}, \qquad
        \Gamma = \gamma I,\ \gamma_0 = v_0^2/\sqrt d.

    The flow starts with :math:`v = \|A\|_F` and A along I. See
    docs/linear-attention-theory.md, "A value and a matrix".

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
    best = float(law.best[0])
    exponent = -2.0 * sqrt_d * query[0] ** 2 * times
    # The denominator 1 + (γ*/γ0 - 1) e^x, without a difference of numbers near 1.
    denominator = best / gamma0 * np.exp(exponent) - np.expm1(exponent)
    return np.asarray(best / denominator)
