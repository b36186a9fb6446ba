"""Prompts of several laws: each prompt first draws its law.

The covariance Λ of the tokens is then random, and one matrix Γ of the prediction xᵀΓh
must serve all laws. Here x is the query, with the second moment Λ_q, and h the mean of
label times token, with the second moment M. W is the second moment of the tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import (
    Array,
    argument_error,
    probabilities,
    sequence,
    set_fields,
)
from icl_theory.memory import check_fits
from icl_theory.papers.linear_attention.law import PromptLaw, shaped
from icl_theory.papers.linear_attention.risks import BestKnown


class _LeastSquares(NamedTuple):
    """The terms of the loss floor + ½‖A vec Γ - b‖²."""

    A: Array  # (number of equations of all laws, number of entries of Γ)
    b: Array  # targets of the equations, one for each row of A
    floor: float  # mean of the floors of the laws


@dataclass(frozen=True, eq=False)
class MixtureRisk(BestKnown):
    r"""The risk over Γ for prompts of several laws.

    The risk is the mean :math:`\mathcal L(\Gamma) = \sum_i p_i\mathcal L_i(\Gamma)` of
    the laws' risks. Like the risks of the laws it is quadratic, with the gradient
    :math:`\sum_i p_i\Lambda_{q,i}(\Gamma M_i - W_i\Lambda_i)`. One Γ cannot adapt to
    the covariance of a prompt, so that the floor is above the mean of the laws' own
    floors. See docs/linear-attention-theory.md, "Mixtures".

    Parameters
    ----------
    laws : sequence of PromptLaw
        The laws, all of one dimension d.
    probs : array_like, (n,), optional
        Probabilities of the laws; equal by default.
    start : array_like, (d, d) or (d,), optional
        Γ at step 0, by default zero. If all moments are diagonal, it may be the
        diagonal, (d,), of a matrix that stays diagonal.

    References
    ----------
    Zhang, Frei, Bartlett 2024, on random covariances.

    Examples
    --------
    >>> import icl_theory as icl
    >>> short = icl.linear_attention.PromptLaw([1.0, 0.5], N=5)
    >>> long = icl.linear_attention.PromptLaw([1.0, 0.5], N=50)
    >>> risk = icl.linear_attention.MixtureRisk([short, long])
    >>> risk.best.round(3), round(risk.floor() - 0.5 * (short.floor + long.floor), 4)
    (array([0.784, 1.389]), 0.0242)
    """

    laws: Sequence[PromptLaw]
    probs: Array | None = None
    start: Array | None = None

    def __post_init__(self) -> None:
        laws = sequence("laws", self.laws, PromptLaw, "one PromptLaw or more")
        d = laws[0].d
        count = len(laws)
        if any(law.d != d for law in laws):
            raise argument_error("laws", [law.d for law in laws], "of one dimension")
        probs = np.full(count, 1.0 / count)
        if self.probs is not None:
            probs = probabilities("probs", self.probs, count)
        start = self._checked_start(d, all(law.diagonal for law in laws))
        # A generous bound, in bytes: three copies of the equations of all laws, which
        # have count · size² numbers.
        check_fits("laws", d, 24.0 * count * start.size**2)
        if start.ndim == 2:
            # Laws stored as diagonals would give equations for a diagonal Γ alone.
            laws = [law.dense for law in laws]
        set_fields(self, laws=tuple(laws), probs=probs, start=start)

    def _checked_start(self, d: int, diagonal: bool) -> Array:
        """Return Γ at step 0, (d, d), or its diagonal, (d,), if ``diagonal`` is true.

        ``diagonal`` says whether all moments are diagonal.
        """
        shapes: list[tuple[int, ...]] = [(d, d)]
        if diagonal:
            shapes = [(d,), (d, d)]
        if self.start is None:
            return np.zeros(shapes[0])
        return shaped("start", self.start, *shapes)

    @cached_property
    def _squares(self) -> _LeastSquares:
        """The mean risk as one least-squares problem in the entries of Γ.

        Here vec Γ lists the entries row by row, or is Γ itself if Γ is a diagonal.
        """
        assert self.probs is not None  # the constructor has replaced None
        A = list[Array]()
        b = list[Array]()
        floors = list[float]()
        for p, law in zip(self.probs, self.laws, strict=True):
            law_A, law_b = _equations(p, law)
            A.append(law_A)
            b.append(law_b)
            floors.append(law.floor)
        floor = float(self.probs @ floors)
        return _LeastSquares(np.vstack(A), np.concatenate(b), floor)

    @cached_property
    def best(self) -> Array:
        """The minimiser, of the shape of the parameters.

        If the prompts of all laws miss a direction of Γ, the loss does not depend on
        the component of Γ along it. There are many minimisers then, and the result is
        the one of least norm.
        """
        A, b, _ = self._squares
        solution = np.linalg.lstsq(A, b)[0]
        return np.asarray(solution.reshape(self.initial.shape))

    def excess(self, params: ArrayLike) -> float:
        """Loss above the least loss of a single Γ, as a sum of squares."""
        # At the best Γ the residual A vec Γ - b is orthogonal to all columns of A. So
        # the excess is ½‖A vec(Γ - best Γ)‖².
        gap = self._checked(params) - self.best
        # If products overflow with both signs, their sum is NaN. An error below then
        # names the argument.
        with np.errstate(over="ignore", invalid="ignore"):
            excess = 0.5 * float(np.sum((self._squares.A @ gap.ravel()) ** 2))
        if np.isnan(excess):
            raise argument_error(
                "params",
                params,
                "less extreme: the excess is beyond the range of float64",
            )
        return excess

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient."""
        A, b, floor = self._squares
        residual = A @ params.ravel() - b
        gradient = (residual @ A).reshape(params.shape)
        return floor + 0.5 * float(residual @ residual), gradient

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Loss above the floor, as "excess"."""
        # A sum of squares keeps the digits of a small excess, which the difference of
        # loss and floor in the base class loses.
        return {"excess": np.asarray(self.excess(params))}


def _equations(p: float, law: PromptLaw) -> tuple[Array, Array]:
    """Return the rows of A and their targets b that belong to a law of probability p.

    The loss of the law is its floor plus half the sum of q_a (u_aᵀ Γ v_b s_b - r_ab)²
    over all a and b. Here q_a and u_a are the eigenvalues and eigenvectors of Λ_q, s_b²
    and v_b those of M, and r_ab = u_aᵀ Γ* v_b s_b for the best matrix Γ* of the law. So
    the row of (a, b) is √(p q_a) s_b vec(u_a v_bᵀ), and its target is √(p q_a) r_ab.
    """
    modes = law.modes
    weight = np.sqrt(p * modes.q)
    if modes.bases is None:
        # Γ is a diagonal, and the only pairs are those with a = b.
        A = (weight * modes.s).reshape(-1, 1) * np.eye(law.d)
        b = weight * modes.reach
    else:
        U, V = modes.bases
        # A column of the Kronecker product is vec(u_a v_bᵀ), and so a row of ``axes``.
        axes = np.asarray(np.kron(U, V).T, dtype=np.float64)
        A = (weight[:, None] * modes.s).reshape(-1, 1) * axes
        b = (weight[:, None] * modes.reach).ravel()
    return A, b
