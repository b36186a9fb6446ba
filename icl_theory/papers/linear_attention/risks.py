"""The trained parameters: the matrix Γ of the prediction xᵀΓh, or the factors of Γ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

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
from icl_theory.engine.risk import Risk, Solution, Started
from icl_theory.engine.rules import Rule, is_plain_descent
from icl_theory.papers.linear_attention.law import PromptLaw, prompt_law, shaped

PLATEAU = 0.9  # of the excess at the start: a plateau ends where less is left


class BestKnown(Risk):
    """A risk whose ``best`` parameters are known, trained from ``start``."""

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
    >>> risk = icl.linear_attention.MergedRisk(icl.linear_attention.PromptLaw([1.0, 0.5], N=10), [0.0, 0.0])
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
        return np.asarray(
            q * s**2 if self.start.ndim == 1 else np.multiply.outer(q, s**2)
        )

    @cached_property
    def best(self) -> Array:
        """The minimiser, of the shape of the parameters."""
        best = self.law.best
        return np.diag(best) if best.ndim < self.start.ndim else best

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
            raise argument_error(
                name,
                matrices.shape,
                f"of shape {shape}, or (..., {', '.join(map(str, shape))})",
            )
        return matrices

    def _modes(self, gamma: Array) -> Array:
        bases = self.law.modes.bases
        return gamma if bases is None else bases[0].T @ gamma @ bases[1]

    def _back(self, modes: Array) -> Array:
        bases = self.law.modes.bases
        return modes if bases is None else bases[0] @ modes @ bases[1].T

    def excess(self, params: ArrayLike) -> float:
        """Loss above the floor: a sum of squares, minus the cost of a small rank."""
        return self._excess(self._checked(params))

    def _excess(self, params: Array) -> float:
        """The excess, which is infinite beyond the range of float64."""
        with np.errstate(over="ignore"):
            return max(self.law._excess_of_gaps(self.law._gaps(params)) - self._missed, 0.0)

    @cached_property
    def _missed(self) -> float:
        """Loss of the best matrix of this rank above the loss of the best of all matrices."""
        return 0.0 if self.rank is None else self.law.rank_excess(self.rank)

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        r"""Loss and its gradient, :math:`\Lambda_q(\Gamma - \Gamma^*)M`."""
        (q, s, _, _), off = self.law.modes, self.law._gaps(params)
        gradient = (q if off.ndim == 1 else q[:, None]) * off * s
        return self.law.floor + self.law._excess_of_gaps(off), self._back(gradient)

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
            return (params if params.ndim == 1 else np.diag(params))[self._principal]
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
        return self.law.floor + self._missed

    def closed_form(self, eta: float, rule: str | Rule) -> Solution | None:
        """Return the modes in closed form for plain gradient descent that does not diverge, else None."""
        return (
            ModeSteps(self, eta)
            if is_plain_descent(rule) and eta * self.curvature.max() <= 2.0
            else None
        )


def after(start: Array, best: Array, shrink: Array, steps: Steps) -> Array:
    """Return modes that shrink from ``start`` towards ``best``, for arrays that broadcast."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.where(shrink <= 0.5, np.log1p(-shrink), np.log(np.abs(1.0 - shrink)))
        left = np.where(steps == 0, 1.0, np.exp(steps * rate))
    left = np.where((shrink > 1.0) & (steps % 2 == 1), -left, left)
    # for slow modes: start plus progress keeps the digits that best minus rest loses
    gone = -np.expm1(steps * np.log1p(-np.minimum(shrink, 0.5)))
    return np.where(
        shrink * steps < 0.5,
        start + (best - start) * gone,
        best + (start - best) * left,
    )


class ModeSteps(Counted):
    """Descent on a `MergedRisk` at a rate of at most 2 over the largest curvature."""

    risk: MergedRisk

    def __init__(self, risk: MergedRisk, eta: float) -> None:
        super().__init__(risk)
        _, s, reach, bases = risk.law.modes
        self.eta = eta
        self.shrink = eta * risk.curvature
        self.best = (
            risk.best
            if bases is None
            else np.divide(reach, s, out=np.zeros_like(reach), where=s > 0.0)
        )
        self.start = risk._modes(risk.start)

    @cached_property
    def _doubt(self) -> Array:
        """By how many units of rounding each curvature may be off, (d, d), to first order.

        Rounding moves all eigenvalues of Λ and Λ_q like the largest one: small ones by
        more than their digits.
        """
        law = self.risk.law
        (covariance, prior, _), share = law.moments, 1.0 / law.N
        q, s, _, bases = law.modes
        assert bases is not None
        seen = covariance @ bases[1]
        power = float(np.sum(covariance * prior)) + law.noise**2
        moved = 2.0 * (1.0 + share) * np.linalg.norm(prior @ seen, axis=0)
        moved += share * (
            float(np.trace(prior)) * np.sum(bases[1] * seen, axis=0) + power
        )
        largest = float(np.linalg.eigvalsh(covariance)[-1])
        return np.asarray(q.max() * s**2 + np.multiply.outer(q, largest * moved))

    def states(self, steps: Steps) -> Array:
        """Return Γ at these steps, (T, d, d) or (T, d)."""
        places = np.asarray(steps).reshape(-1, *(1,) * self.shrink.ndim)
        return np.asarray(
            self.risk._back(after(self.start, self.best, self.shrink, places))
        )

    def blur(self, steps: Steps) -> Array:
        """Errors of the loss by rounding of Γ, of products with the bases, and of the rates, which they change."""
        law = self.risk.law
        states = self.states(steps)
        off = np.array([law._gaps(state) for state in states])
        q, scale, _, bases = law.modes
        q = q if off.ndim == 2 else q[:, None]
        gradient = np.abs(q * off * scale).reshape(len(steps), -1)
        size = (
            np.maximum(np.abs(states), np.abs(self.risk.best))
            .reshape(len(steps), -1)
            .max(axis=1)
        )
        found = size * gradient.sum(axis=1)
        if bases is not None:
            squares = q * off**2
            rates = law.d * self.risk.curvature + self._doubt
            moved = self.eta * steps * np.sum(squares * rates, axis=(1, 2))
            found += law.d * squares.sum(axis=(1, 2)) + moved
        return np.asarray(ROUNDING * found)


def closed_runs(
    risks: Sequence[MergedRisk], eta: Array, above: Array, last: int
) -> Mapping[str, Any]:
    """Columns of diagonal risks of one dimension, without a loss where ``above`` is too small; ``eta`` is (P,)."""
    curvature, best, start = (
        np.stack([getattr(risk, name) for risk in risks])
        for name in ("curvature", "best", "start")
    )
    q, s = (
        np.stack([getattr(risk.law.modes, name) for risk in risks])
        for name in ("q", "s")
    )
    floor = np.array([risk.floor() for risk in risks])
    shrink = eta[:, None] * curvature

    def states(steps: Steps) -> Array:
        return after(start, best, shrink, steps[:, None])

    def excess(steps: Steps) -> Array:
        return 0.5 * np.sum(q * ((states(steps) - best) * s) ** 2, axis=1)

    def blur(steps: Steps) -> Array:
        here = states(steps)
        size = np.maximum(np.abs(here), np.abs(best)).max(axis=1)
        return np.asarray(
            ROUNDING * size * np.sum(np.abs(curvature * (here - best)), axis=1)
        )

    hit, error = first_steps(
        lambda steps: floor + excess(steps), floor + above, last, blur
    )
    reached = hit <= last
    end = np.where(reached, hit, last)
    over = np.minimum(
        first_steps(excess, PLATEAU * excess(np.zeros_like(end)), last)[0], end
    )
    left = excess(end)
    return {
        "eta_used": eta,
        "steps": np.where(reached, hit, -1),
        "T_plateau": over,
        "T_learning": end - over,
        "last": end,
        "method": "closed",
        "error": np.where(reached, error, 0.0),
        "loss": np.where(above < VISIBLE * floor, np.nan, floor + left),
        "floor": floor,
        "excess": left,
        "learnt": np.sum((states(end) >= 0.5 * best) & (best > 0.0), axis=1),
    }


@dataclass(frozen=True, eq=False)
class Pair(Started, Map):
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
        return np.asarray(
            (direction[0] * params[1:] + params[0] * direction[1:]).reshape(self.shape)
        )

    def bend(self, params: Array, direction: Array, gradient: Array) -> Array:
        """Return ⟨G, δA⟩ and δv G."""
        return self.outward(direction, gradient)

    def stretch(self, params: Array) -> float:
        """Largest change of Γ for a unit change of v and A."""
        return float(np.linalg.norm(params))

    def blocks(self, array: Array) -> Sequence[Array]:
        """The value and the matrix."""
        return array[:1], array[1:].reshape(self.shape)


@dataclass(frozen=True, eq=False)
class Heads(Started, Map):
    r"""The matrix of H heads with separate keys and queries, :math:`\Gamma = \sum_h v_h Q_h^\top K_h`.

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
        rows, left = divmod(start.shape[1] - 1, 2 * self.d)
        if not len(start) or rows < 1 or left:
            raise argument_error(
                "start",
                start.shape,
                f"of shape (H, 1 + 2R·{self.d}), with one head and one row or more",
            )
        set_fields(self, start=start)

    def _split(self, params: Array) -> tuple[Array, Array, Array]:
        """Return values (H, 1, 1), keys and queries, (H, R, d) each."""
        both = params[:, 1:].reshape(len(params), 2, -1, self.d)
        return params[:, :1, None], both[:, 0], both[:, 1]

    def inward(self, params: Array) -> Array:
        """Return the sum over heads."""
        v, keys, queries = self._split(params)
        return (v * queries).reshape(-1, self.d).T @ keys.reshape(-1, self.d)

    def outward(self, params: Array, gradient: Array) -> Array:
        """Return the gradients ⟨Q_hᵀK_h, G⟩, v_h Q_h G and v_h K_h Gᵀ."""
        v, keys, queries = self._split(params)
        forward = queries @ gradient
        heads = len(params)
        parts = (
            np.sum(forward * keys, axis=(1, 2)),
            v * forward,
            v * (keys @ gradient.T),
        )
        return np.concatenate([part.reshape(heads, -1) for part in parts], axis=1)

    def push(self, params: Array, direction: Array) -> Array:
        """Return the derivative of this polynomial, from its value beside the real axis."""
        return self.inward(params + 1e-100j * direction).imag * 1e100

    def bend(self, params: Array, direction: Array, gradient: Array) -> Array:
        """Return the change of the three gradients in a direction."""
        return self.outward(params + 1e-100j * direction, gradient).imag * 1e100

    def stretch(self, params: Array) -> float:
        """Norm of the change of Γ for a unit change of the heads, from above."""
        v, keys, queries = (
            np.sum(each**2, axis=(1, 2)) for each in self._split(params)
        )
        return float(np.sqrt(np.sum(keys * queries + v * (keys + queries))))

    def blocks(self, array: Array) -> Sequence[Array]:
        """Value, keys and queries of each head."""
        return [
            block for parts in zip(*self._split(array), strict=True) for block in parts
        ]


def balanced_flow(law: PromptLaw, start: float, time: ArrayLike) -> Array:
    r"""Flow of :math:`(v, A)` from :math:`v = \|A\|_F` with A along I, isotropic tokens and tasks, in closed form.

    .. math:: \gamma(\tau) = \frac{\gamma^*}{1 + (\gamma^*/\gamma_0 - 1)\,e^{-2\sqrt d\,\lambda^2\tau}}, \qquad
        \Gamma = \gamma I,\ \gamma_0 = v_0^2/\sqrt d.

    See docs/linear-attention-theory.md, "A value and a matrix".

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
    q = prompt_law(law).moments[2]
    plain = law.diagonal and np.ptp(q) == 0.0 and bool(np.all(law.moments[1] == 1.0))
    if not plain or np.any(q != law.covariance):
        raise argument_error("law", law, "isotropic: Λ = Λ_q = λI and W = I")
    root = np.sqrt(law.d)
    first = number("start", start, minimum=1.0 / LARGEST, maximum=LARGEST) ** 2 / root
    times = plain_numbers("time", time, 0.0, LARGEST)
    best = float(law.best[0])
    past = -2.0 * root * q[0] ** 2 * times
    return np.asarray(best / (best / first * np.exp(past) - np.expm1(past)))
