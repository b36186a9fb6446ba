"""Prompts of several laws: each prompt is of a law that is drawn first, so that covariances are random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

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


@dataclass(frozen=True, eq=False)
class MixtureRisk(BestKnown):
    r"""The risk over Γ for prompts of several laws, :math:`\mathcal L(\Gamma) = \sum_i p_i\mathcal L_i(\Gamma)`.

    It is quadratic, too, with the gradient :math:`\sum_i p_i\Lambda_{q,i}(\Gamma M_i -
    W_i\Lambda_i)`. One Γ cannot adapt to the covariance of a prompt, so that the floor
    is above the mean of the laws' own floors. See docs/linear-attention-theory.md,
    "Mixtures".

    Parameters
    ----------
    laws : sequence of PromptLaw
        Of one dimension d.
    probs : array_like, (n,), optional
        Probabilities of the laws; equal by default.
    start : array_like, (d, d) or (d,), optional
        Γ at step 0, by default zero; (d,), the diagonal of a matrix that stays
        diagonal, if all moments are.

    References
    ----------
    Zhang, Frei, Bartlett 2024, on random covariances.

    Examples
    --------
    >>> import icl_theory as icl
    >>> short, long = (icl.linear_attention.PromptLaw([1.0, 0.5], N=N) for N in (5, 50))
    >>> risk = icl.linear_attention.MixtureRisk([short, long])
    >>> risk.best.round(3), round(risk.floor() - 0.5 * (short.floor + long.floor), 4)
    (array([0.784, 1.389]), 0.0242)
    """

    laws: Sequence[PromptLaw]
    probs: Array | None = None
    start: Array | None = None

    def __post_init__(self) -> None:
        laws = tuple(sequence("laws", self.laws, PromptLaw, "one PromptLaw or more"))
        d = laws[0].d
        count = len(laws)
        flat = all(law.diagonal for law in laws)
        if any(law.d != d for law in laws):
            raise argument_error("laws", [law.d for law in laws], "of one dimension")
        probs = (
            np.full(count, 1.0 / count)
            if self.probs is None
            else probabilities("probs", self.probs, count)
        )
        start = np.zeros((d,) if flat else (d, d)) if self.start is None else self.start
        start = shaped("start", start, *[(d,)] * flat, (d, d))
        check_fits("laws", d, 24.0 * count * start.size**2)
        set_fields(
            self,
            laws=laws if start.ndim == 1 else tuple(law.dense for law in laws),
            probs=probs,
            start=start,
        )

    @cached_property
    def _squares(self) -> tuple[Array, Array, float]:
        """A, b and c: the loss is c + ½‖A vec Γ - b‖², with the mean c of the laws' floors."""
        assert self.probs is not None
        rows = []
        ends = []
        for p, law in zip(self.probs, self.laws, strict=True):
            q, s, reach, bases = law.modes
            weight = np.sqrt(p * q) if bases is None else np.sqrt(p * q)[:, None]
            axes = np.eye(law.d) if bases is None else np.kron(bases[0], bases[1]).T
            rows.append((weight * s).reshape(-1, 1) * axes)
            ends.append((weight * reach).ravel())
        return (
            np.vstack(rows),
            np.concatenate(ends),
            float(self.probs @ [law.floor for law in self.laws]),
        )

    @cached_property
    def best(self) -> Array:
        """The minimiser, of the shape of the parameters; the smallest one where a direction is never seen."""
        return np.asarray(
            np.linalg.lstsq(*self._squares[:2])[0].reshape(self.initial.shape)
        )

    def excess(self, params: ArrayLike) -> float:
        """Loss above the floor, as a sum of squares."""
        off = self._checked(params) - self.best
        with np.errstate(over="ignore", invalid="ignore"):
            excess = 0.5 * float(np.sum((self._squares[0] @ off.ravel()) ** 2))
        if np.isnan(excess):
            raise argument_error(
                "params",
                params,
                "less extreme: the excess is beyond the range of float64",
            )
        return excess

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient."""
        rows, ends, least = self._squares
        off = rows @ params.ravel() - ends
        return least + 0.5 * float(off @ off), (off @ rows).reshape(params.shape)

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Loss above the floor."""
        return {"excess": np.asarray(self.excess(params))}
