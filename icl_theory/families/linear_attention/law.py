"""The law of the prompts of in-context linear regression: moments, best matrix, floor, loss of any matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import LARGEST, Array, instance, number, plain_numbers, prompt_length, refuse, store

SYMMETRIC = 1e-12  # relative
Bases = tuple[Array, Array] | None


@dataclass(frozen=True, eq=False)
class PromptLaw:
    r"""Prompts :math:`(x_i, y_i)`, :math:`y_i = w^\top x_i + \sigma\varepsilon_i`, and a query of one task each.

    Parameters
    ----------
    covariance : array_like, (d, d) or (d,)
        Covariance Λ of the tokens :math:`x_i \sim \mathcal N(0, \Lambda)`; (d,) is a diagonal.
    prior : array_like, (d, d) or (d,), optional
        Second moment :math:`W = E\,ww^\top` of the tasks; I unless given.
    query : array_like, (d, d) or (d,), optional
        Second moment :math:`\Lambda_q` of the query; Λ unless given.
    N : int or math.inf
        Pairs in a prompt.
    noise : float
        Standard deviation σ of the label noise, label units.

    References
    ----------
    docs/linear-attention-theory.md, "The population loss".

    Examples
    --------
    >>> import icl_theory as icl
    >>> law = icl.linear_attention.PromptLaw([1.0, 0.5], N=10)
    >>> law.minimiser().round(3)
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
            found = [np.diag(matrix) if matrix.ndim == 1 else matrix for matrix in found]
        store(self, covariance=found[0], prior=found[1], query=found[2], N=prompt_length(self.N))
        store(self, noise=number("noise", self.noise, zero=True, maximum=LARGEST))

    @property
    def d(self) -> int:
        """Dimension of the tokens."""
        return len(self.covariance)

    @property
    def diagonal(self) -> bool:
        """Whether all three matrices are diagonal, and then vectors."""
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
        """Λ, W and Λ_q, (d, d) each, or (d,) where all are diagonal."""
        assert self.prior is not None
        assert self.query is not None
        return self.covariance, self.prior, self.query

    @cached_property
    def scatter(self) -> Array:
        r"""Covariance of :math:`h = \frac1N\sum y_i x_i` for a given task, averaged over the tasks.

        :math:`\Lambda W\Lambda/N + (\mathrm{tr}\,\Lambda W + \sigma^2)\Lambda/N`, (d, d) or (d,).
        """
        covariance, prior, _ = self.moments
        if self.diagonal:
            power = float(covariance @ prior) + self.noise**2
            return (covariance**2 * prior + power * covariance) / self.N
        power = float(np.sum(covariance * prior)) + self.noise**2
        return np.asarray((covariance @ prior @ covariance + power * covariance) / self.N)

    @cached_property
    def second(self) -> Array:
        r"""Second moment of h, :math:`M = \Lambda W\Lambda` plus `scatter`, (d, d) or (d,)."""
        covariance, prior, _ = self.moments
        signal = covariance**2 * prior if self.diagonal else covariance @ prior @ covariance
        return np.asarray(signal + self.scatter)

    @cached_property
    def modes(self) -> tuple[Array, Array, Bases]:
        """Eigenvalues q of the query's moment and m of M, (d,) each, with their bases (U, V); None for the axes."""
        if self.diagonal:
            return self.moments[2], self.second, None
        (q, U), (m, V) = np.linalg.eigh(self.moments[2]), np.linalg.eigh(self.second)
        least = self.d * np.finfo(float).eps
        return np.where(q > least * q[-1], q, 0.0), np.where(m > least * m[-1], m, 0.0), (U, V)

    @cached_property
    def best(self) -> Array:
        """What `minimiser` returns."""
        covariance, prior, _ = self.moments
        _, m, bases = self.modes
        inverse = np.divide(1.0, m, out=np.zeros_like(m), where=m > 0.0)
        if bases is None:
            return np.asarray(prior * covariance * inverse)
        V = bases[1]
        return np.asarray((prior @ covariance @ V * inverse) @ V.T)

    def minimiser(self) -> Array:
        r"""Return the best matrix, :math:`\Gamma^* = W\Lambda M^{-1}`, whatever the law of the query.

        Returns
        -------
        ndarray, (d, d), or (d,) where all is diagonal
            With the pseudo-inverse where M is singular.

        References
        ----------
        Ahn, Cheng, Daneshmand, Sra 2023, Theorem 1; Zhang, Frei, Bartlett 2024.
        """
        return self.best.copy()

    @cached_property
    def floor(self) -> float:
        """Loss of the best matrix, squared label units."""
        return self.loss(self.best)

    def _matrix(self, gamma: ArrayLike) -> Array:
        """Return a matrix, or a diagonal, that fits and whose loss is within float64."""
        found = plain_numbers("gamma", gamma, -LARGEST, LARGEST)
        if found.shape not in {(self.d,), (self.d, self.d)}:
            raise refuse("gamma", found.shape, f"of shape ({self.d},) or ({self.d}, {self.d})")
        return found

    def loss(self, gamma: ArrayLike) -> float:
        r"""Population loss of the prediction :math:`\hat y = x^\top\Gamma h`.

        .. math:: \mathcal L = \tfrac12\mathrm{tr}\,\Lambda_q\bigl[(\Gamma\Lambda - I)W(\Gamma\Lambda - I)^\top
            + \Gamma\,\mathrm{Cov}(h \mid w)\,\Gamma^\top\bigr],

        a sum of squares, so that no digits are lost where it is small.

        Parameters
        ----------
        gamma : array_like, (d, d) or (d,)
            The matrix, or its diagonal; entries up to 1e40.

        Returns
        -------
        float
            Squared label units.

        Raises
        ------
        ValueError
            It does not fit the dimension, or is too large.
        """
        gamma = self._matrix(gamma)
        covariance, prior, query = self.moments
        if self.diagonal and gamma.ndim == 1:
            missing = gamma * covariance - 1.0
            return 0.5 * float(query @ (missing**2 * prior + gamma**2 * self.scatter))
        if self.diagonal:
            return self.dense.loss(gamma)
        matrix = np.diag(gamma) if gamma.ndim == 1 else gamma
        missing = matrix @ covariance - np.eye(self.d)
        return 0.5 * float(np.sum(query * (missing @ prior @ missing.T + matrix @ self.scatter @ matrix.T)))

    def excess(self, gamma: ArrayLike) -> float:
        r"""Return the loss above the floor, :math:`\tfrac12\|\Lambda_q^{1/2}(\Gamma - \Gamma^*)M^{1/2}\|_F^2`.

        Parameters
        ----------
        gamma : array_like, (d, d) or (d,)
            The matrix, or its diagonal; entries up to 1e40.

        Returns
        -------
        float
            Squared label units.

        Raises
        ------
        ValueError
            It does not fit the dimension, or is too large.
        """
        gamma = self._matrix(gamma)
        if self.diagonal and gamma.ndim == 2:
            return self.dense.excess(gamma)
        q, m, bases = self.modes
        if bases is None:
            return 0.5 * float(np.sum(q * m * (gamma - self.best) ** 2))
        off = bases[0].T @ ((np.diag(gamma) if gamma.ndim == 1 else gamma) - self.best) @ bases[1]
        return 0.5 * float(np.sum(q[:, None] * m * off**2))

    def largest_curvature(self) -> float:
        r"""Largest eigenvalue of the Hessian :math:`\Lambda_q \otimes M` of Γ."""
        q, m, _ = self.modes
        return float(q.max() * m.max())


def prompt_law(law: object) -> PromptLaw:
    """Refuse what is no law of prompts."""
    return instance("law", law, PromptLaw, "a PromptLaw")


def root(matrix: Array) -> Array:
    r"""Return a matrix F with :math:`F^\top F` the given one, (d, d)."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))).T)


def moment(name: str, value: object, d: int | None = None) -> Array:
    """Return a symmetric, positive semidefinite matrix that is not zero, or the diagonal of one."""
    size = "d" if d is None else str(d)
    allowed = f"a symmetric, positive semidefinite matrix ({size} x {size}), or {size} numbers >= 0 on its diagonal"
    try:
        found = np.array(plain_numbers(name, value, -math.inf))  # type: ignore[arg-type]
    except ValueError:
        raise refuse(name, value, allowed) from None
    fits = found.ndim in (1, 2) and found.size > 0 and found.shape in {(len(found),), (len(found), len(found))}
    if not fits or (d is not None and len(found) != d) or not np.isfinite(found).all():
        raise refuse(name, value, allowed)
    largest = float(np.abs(found).max())
    if not 1e-40 <= largest <= LARGEST:
        raise refuse(name, value, f"{allowed}; its largest entry between 1e-40 and {LARGEST:g}")
    if found.ndim == 1:
        if (found < 0.0).any():
            raise refuse(name, value, f"{allowed} (the least is {found.min():.3g})")
        return found
    apart = float(np.abs(found - found.T).max())
    if apart > SYMMETRIC * largest:
        raise refuse(name, value, f"{allowed} (it differs from its transpose by {apart:.3g})")
    found = 0.5 * (found + found.T)
    least = float(np.linalg.eigvalsh(found)[0])
    if least < -SYMMETRIC * len(found) * largest:
        raise refuse(name, value, f"{allowed} (its least eigenvalue is {least:.3g})")
    return found
