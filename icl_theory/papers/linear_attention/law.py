"""The law of the prompts of in-context linear regression: moments, best matrix, floor, loss of any matrix."""

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
    floats,
    instance,
    integer,
    is_masked,
    number,
    plain_numbers,
    prompt_length,
    set_fields,
)


class Modes(NamedTuple):
    """The axes in which the loss of Γ is a sum of squares: those of Λ_q = Σ q u uᵀ and of M = Σ s² v vᵀ."""

    q: Array  # (d,)
    s: Array  # (d,)
    reach: Array  # u_a^T Γ* v_b s_b, (d, d), or its diagonal, (d,)
    bases: tuple[Array, Array] | None  # (U, V), or None for the coordinate axes


@dataclass(frozen=True, eq=False)
class PromptLaw:
    r"""Prompts :math:`(x_i, y_i)`, :math:`y_i = w^\top x_i + \sigma\varepsilon_i`, and a query of one task each.

    If a matrix is not diagonal, its eigenvalues below :math:`d\cdot 2.2\cdot 10^{-16}`
    of the largest one count as zeros. With infinite prompts the floor jumps when an
    eigenvalue vanishes: a direction that is never seen cannot be learnt. See
    docs/linear-attention-theory.md, "The population loss".

    Parameters
    ----------
    covariance : array_like, (d, d) or (d,)
        Covariance Λ of the tokens :math:`x_i \sim \mathcal N(0, \Lambda)`; (d,) is a
        diagonal.
    prior : array_like, (d, d) or (d,), optional
        Second moment :math:`W = E\,ww^\top` of the tasks; by default I.
    query : array_like, (d, d) or (d,), optional
        Second moment :math:`\Lambda_q` of the query; by default Λ.
    N, noise : int or math.inf, float
        Pairs in a prompt, and standard deviation σ of the label noise, label units.

    Examples
    --------
    >>> import icl_theory as icl
    >>> law = icl.linear_attention.PromptLaw([1.0, 0.5], N=10)
    >>> law.best.round(3)
    array([0.8  , 1.429])
    >>> round(law.floor, 4)
    0.1714
    """

    covariance: Array
    prior: Array | None = None
    query: Array | None = None
    N: float = math.inf
    noise: float = 0.0

    def __post_init__(self) -> None:
        covariance = moment("covariance", self.covariance)
        d = len(covariance)
        prior = np.ones(d) if self.prior is None else moment("prior", self.prior, d)
        query = covariance if self.query is None else moment("query", self.query, d)
        found = [covariance, prior, query]
        if any(matrix.ndim == 2 for matrix in found):
            found = [
                np.diag(matrix) if matrix.ndim == 1 else matrix for matrix in found
            ]
        set_fields(
            self,
            covariance=found[0],
            prior=found[1],
            query=found[2],
            N=prompt_length(self.N),
        )
        set_fields(self, noise=number("noise", self.noise, zero=True, maximum=LARGEST))

    @property
    def d(self) -> int:
        """Dimension of the tokens."""
        return len(self.covariance)

    @property
    def diagonal(self) -> bool:
        """Whether all three matrices are diagonal and stored as vectors."""
        return self.covariance.ndim == 1

    @cached_property
    def dense(self) -> PromptLaw:
        """The same law with matrices."""
        if not self.diagonal:
            return self
        covariance, prior, query = map(np.diag, self.moments)
        return PromptLaw(covariance, prior, query, self.N, self.noise)

    @property
    def moments(self) -> tuple[Array, Array, Array]:
        """Λ, W and Λ_q, (d, d) each, or (d,) if all are diagonal."""
        assert self.prior is not None
        assert self.query is not None
        return self.covariance, self.prior, self.query

    @cached_property
    def scatter(self) -> Array:
        r"""Covariance of :math:`h = \frac1N\sum y_i x_i` for a given task, averaged over the tasks.

        :math:`\Lambda W\Lambda/N + (\mathrm{tr}\,\Lambda W + \sigma^2)\Lambda/N`, (d,
        d) or (d,).
        """
        covariance, prior, _ = self.moments
        power = (
            float(covariance @ prior if self.diagonal else np.sum(covariance * prior))
            + self.noise**2
        )
        return np.asarray((self._signal + power * covariance) / self.N)

    @property
    def _signal(self) -> Array:
        covariance, prior, _ = self.moments
        return np.asarray(
            covariance**2 * prior if self.diagonal else covariance @ prior @ covariance
        )

    @cached_property
    def second(self) -> Array:
        r"""Second moment of h, :math:`M = \Lambda W\Lambda` plus `scatter`, (d, d) or (d,)."""
        return np.asarray(self._signal + self.scatter)

    @cached_property
    def _seen(self) -> tuple[Array, Array, Array, Array]:
        r"""Return τ, :math:`(1 + 1/N)\tau^2 + c`, L Z and F Y.

        Here Λ = LLᵀ, W = FFᵀ, c = (tr ΛW + σ²)/N and LᵀF = ZτYᵀ. Λ has the condition
        number of τ² and M that of τ⁴, so that formulas in τ keep digits that an inverse
        of M loses.
        """
        (covariance, prior, _), c = self.moments, self._noise
        if self.diagonal:
            left = np.sqrt(covariance)
            right = np.sqrt(prior)
            tau = left * right
        else:
            L, F = root(covariance).T, root(prior).T
            Z, tau, Y = np.linalg.svd(L.T @ F)
            tau = _kept(tau, tau[0])
            left = L @ Z
            right = F @ Y.T
        return tau, (1.0 + 1.0 / self.N) * tau**2 + c, left, right

    @property
    def _noise(self) -> float:
        """The factor c of Λ in M."""
        covariance, prior, _ = self.moments
        return (float(np.sum(covariance * prior)) + self.noise**2) / self.N

    @cached_property
    def modes(self) -> Modes:
        """Axes and scales in which the excess is a sum of squares."""
        query = self.moments[2]
        if self.diagonal:
            s = np.sqrt(self.second)
            return Modes(query, s, self.best * s, None)
        tau, power, left, right = self._seen
        # M = XXᵀ with X = LZ power^½, and Γ*X = FY τ power^-½ needs no inverse of M
        V, s, R = np.linalg.svd(left * np.sqrt(power))
        reach = (
            right
            * np.divide(tau, np.sqrt(power), out=np.zeros_like(tau), where=power > 0.0)
            @ R.T
        )
        q, U = np.linalg.eigh(query)
        return Modes(_kept(q, q[-1]), _kept(s, s[0]), U.T @ reach, (U, V))

    @cached_property
    def best(self) -> Array:
        r"""The best matrix, :math:`\Gamma^* = W\Lambda M^{-1}`, for every law of the query: (d, d) or (d,).

        With the pseudo-inverse if M is singular; (d,) if all matrices are diagonal.

        References
        ----------
        Ahn, Cheng, Daneshmand, Sra 2023, Theorem 1; Zhang, Frei, Bartlett 2024.
        """
        covariance, prior, _ = self.moments
        if self.diagonal:
            second = self.second
            return np.divide(
                prior * covariance,
                second,
                out=np.zeros_like(second),
                where=second > 0.0,
            )
        _, s, reach, bases = self.modes
        assert bases is not None
        U, V = bases
        return np.asarray(
            U @ np.divide(reach, s, out=np.zeros_like(reach), where=s > 0.0) @ V.T
        )

    @cached_property
    def floor(self) -> float:
        r"""Loss of the best matrix, squared label units.

        :math:`\tfrac12\sum_j\frac{\tau_j^2/N + c}{(1 + 1/N)\tau_j^2 +
        c}\,f_j^\top\Lambda_q f_j`, a sum of squares.
        """
        tau, power, _, right = self._seen
        left = np.divide(
            tau**2 / self.N + self._noise,
            power,
            out=np.ones_like(tau),
            where=power > 0.0,
        )
        query = self.moments[2]
        return 0.5 * float(
            left
            @ (
                query * right**2
                if self.diagonal
                else np.sum(right * (query @ right), axis=0)
            )
        )

    def rank_excess(self, rank: int) -> float:
        r"""Least loss of all matrices up to a rank, above the floor.

        It is :math:`\tfrac12\sum_{j > r}\sigma_j^2`, :math:`\sigma_1 \ge \sigma_2 \ge
        \dots` the singular values of :math:`\Lambda_q^{1/2}\Gamma^*M^{1/2}`. See
        docs/linear-attention-theory.md, "Heads".

        Parameters
        ----------
        rank : int
            Largest rank r of the matrix, at least 0.

        Returns
        -------
        float, squared label units

        Examples
        --------
        >>> import icl_theory as icl
        >>> law = icl.linear_attention.PromptLaw([1.0, 0.5, 0.25], N=10)
        >>> [round(law.floor + law.rank_excess(rank), 4) for rank in range(4)]
        [0.875, 0.4828, 0.3104, 0.241]
        """
        rank = integer("rank", rank, minimum=0)
        q, _, reach, bases = self.modes
        if bases is None:
            sizes: Array = np.sort(np.sqrt(q) * np.abs(reach))[::-1]
        else:
            sizes = np.asarray(
                np.linalg.svd(np.sqrt(q)[:, None] * reach, compute_uv=False)
            )
        return 0.5 * float(np.sum(sizes[rank:] ** 2))

    def loss(self, gamma: ArrayLike) -> float:
        r"""Population loss of the prediction :math:`\hat y = x^\top\Gamma h`.

        .. math:: \mathcal L = \tfrac12\mathrm{tr}\,\Lambda_q\bigl[(\Gamma\Lambda - I)W(\Gamma\Lambda - I)^\top
            + \Gamma\,\mathrm{Cov}(h \mid w)\,\Gamma^\top\bigr],

        a sum of squares, so that small losses keep their digits.

        Parameters
        ----------
        gamma : array_like, (d, d) or (d,)
            The matrix, or its diagonal; entries up to 1e40.

        Returns
        -------
        float, squared label units

        Raises
        ------
        ValueError
            The matrix does not fit the dimension, or an entry is too large.
        """
        gamma = shaped("gamma", gamma, (self.d,), (self.d, self.d))
        covariance, prior, query = self.moments
        if self.diagonal and gamma.ndim == 1:
            missing = gamma * covariance - 1.0
            return 0.5 * float(query @ (missing**2 * prior + gamma**2 * self.scatter))
        if self.diagonal:
            return self.dense.loss(gamma)
        matrix = np.diag(gamma) if gamma.ndim == 1 else gamma
        missing = matrix @ covariance - np.eye(self.d)
        return 0.5 * float(
            np.sum(
                query * (missing @ prior @ missing.T + matrix @ self.scatter @ matrix.T)
            )
        )

    def excess(self, gamma: ArrayLike) -> float:
        r"""Return the loss above the floor, :math:`\tfrac12\|\Lambda_q^{1/2}(\Gamma - \Gamma^*)M^{1/2}\|_F^2`."""
        gamma = shaped("gamma", gamma, (self.d,), (self.d, self.d))
        return self._excess_of(
            self._off(
                np.diag(gamma) if gamma.ndim == 1 and not self.diagonal else gamma
            )
        )

    def off(self, gamma: ArrayLike) -> Array:
        r"""Return :math:`u_a^\top(\Gamma - \Gamma^*)v_b s_b` of a matrix, (d, d), or of a diagonal, (d,)."""
        checked = shaped("gamma", gamma, (self.d,), (self.d, self.d))
        return self._off(
            np.diag(checked) if checked.ndim == 1 and not self.diagonal else checked
        )

    def _off(self, gamma: Array) -> Array:
        _, s, reach, bases = self.modes
        if bases is None:
            return np.asarray(
                (gamma - (np.diag(self.best) if gamma.ndim == 2 else self.best)) * s
            )
        return np.asarray((bases[0].T @ gamma @ bases[1]) * s - reach)

    def excess_of(self, off: ArrayLike) -> float:
        """Return the excess from the result of `off`."""
        return self._excess_of(shaped("off", off, (self.d,), (self.d, self.d)))

    def _excess_of(self, off: Array) -> float:
        q = self.modes.q
        return 0.5 * float(np.sum((q if off.ndim == 1 else q[:, None]) * off**2))

    def largest_curvature(self) -> float:
        r"""Largest eigenvalue of the Hessian :math:`\Lambda_q \otimes M` of Γ."""
        return float(self.modes.q.max() * self.modes.s.max() ** 2)


def prompt_law(law: object) -> PromptLaw:
    """Refuse anything but a `PromptLaw`."""
    return instance("law", law, PromptLaw, "a PromptLaw")


def shaped(name: str, value: ArrayLike, *shapes: tuple[int, ...]) -> Array:
    """Return a copy of an array of one of these shapes, with entries up to 1e40."""
    found = plain_numbers(name, value, -LARGEST, LARGEST)
    if found.shape not in shapes:
        raise argument_error(
            name, found.shape, "of shape " + " or ".join(map(str, shapes))
        )
    return found.copy()


def root(matrix: Array) -> Array:
    r"""Return a matrix F with :math:`F^\top F` the given one, (d, d)."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.sqrt(_kept(values, values[-1]))).T)


def _kept(values: Array, largest: float) -> Array:
    """Set values to zero that are zero up to rounding."""
    return np.where(values > len(values) * np.finfo(float).eps * largest, values, 0.0)


def moment(name: str, value: object, d: int | None = None) -> Array:
    """Check a symmetric, positive semidefinite matrix that is not zero, or the diagonal of one."""
    size = "d" if d is None else str(d)
    allowed = f"a symmetric, positive semidefinite matrix ({size} x {size}), or {size} numbers >= 0 on its diagonal"
    found = None if is_masked(value) else floats(value)
    fits = (
        found is not None
        and found.ndim in (1, 2)
        and found.size > 0
        and {*found.shape} == {d or len(found)}
    )
    if found is None or not fits or not np.isfinite(found).all():
        raise argument_error(name, value, allowed)
    largest = float(np.abs(found).max())
    if not 1e-40 <= largest <= LARGEST:
        raise argument_error(
            name, value, f"{allowed}; its largest entry between 1e-40 and {LARGEST:g}"
        )
    if found.ndim == 1:
        if (found < 0.0).any():
            raise argument_error(
                name, value, f"{allowed} (the least is {found.min():.3g})"
            )
        return found.copy()
    apart = float(np.abs(found - found.T).max())
    if apart > 1e-12 * largest:
        raise argument_error(
            name, value, f"{allowed} (it differs from its transpose by {apart:.3g})"
        )
    found = 0.5 * (found + found.T)
    least = float(np.linalg.eigvalsh(found)[0])
    if least < -1e-12 * len(found) * largest:
        raise argument_error(
            name, value, f"{allowed} (its least eigenvalue is {least:.3g})"
        )
    return found
