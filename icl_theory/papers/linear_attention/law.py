r"""The law of the prompts of in-context linear regression.

A `PromptLaw` holds the second moments of tokens, tasks and query, the length N of a
prompt and the label noise. From these it computes three things: the population loss of
a prediction :math:`\hat y = x^\top\Gamma h` for any matrix Γ, the best matrix with its
loss (the floor), and the axes in which the loss is a sum of squares. Here x is the
query, and :math:`h = \frac1N\sum y_i x_i` the mean of label times token over the pairs
:math:`(x_i, y_i)`. All risks of this folder are built on this law.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icl_theory._validate import (
    LARGEST,
    Array,
    argument_error,
    floats,
    instance,
    integer,
    number,
    plain_numbers,
    prompt_length,
    set_fields,
    symmetric,
)

# Products of several moments would underflow if all entries were smaller than this.
SMALLEST_MOMENT = 1e-40
# A negative eigenvalue up to this size is taken for rounding in the computation of the
# matrix. The size is relative to d times the largest entry; it is generous.
MOMENT_ROUNDING = 1e-12


class Modes(NamedTuple):
    """The axes in which the loss of Γ is a sum of squares.

    The axes are the eigenvectors u of Λ_q = Σ q_a u_a u_aᵀ, the second moment of the
    query, and the eigenvectors v of M = Σ s_b² v_b v_bᵀ, the second moment of h. With
    the best matrix Γ*, the loss of Γ is the floor plus ½ Σ q_a [u_aᵀ(Γ - Γ*)v_b s_b]².
    """

    q: Array  # eigenvalues of Λ_q, (d,)
    s: Array  # roots of the eigenvalues of M, (d,)
    # The coordinates of the best Γ in the modes, scaled: u_aᵀ Γ* v_b s_b, (d, d), or
    # their diagonal, (d,).
    reach: Array
    # (U, V) with the u and the v in columns, or None if they are the coordinate axes.
    bases: tuple[Array, Array] | None


class _Factors(NamedTuple):
    r"""Factors of the moments: Λ = LLᵀ, W = FFᵀ and LᵀF = ZτYᵀ.

    Z and Y are orthogonal, and c = (tr ΛW + σ²)/N.
    """

    tau: Array  # singular values of LᵀF, (d,)
    # (1 + 1/N) τ² + c, (d,). M is LZ times the diagonal matrix of these numbers times
    # (LZ)ᵀ.
    whitened_second: Array
    tokens: Array  # L Z, (d, d), or its diagonal, (d,)
    tasks: Array  # F Y, (d, d), or its diagonal, (d,)


@dataclass(frozen=True, eq=False)
class PromptLaw:
    r"""The law of prompts, each of which has pairs, a query and a task.

    The N pairs are :math:`(x_i, y_i)`, with tokens :math:`x_i` and labels :math:`y_i`.
    The labels are :math:`y_i = w^\top x_i + \sigma\varepsilon_i` for the task w of the
    prompt.

    If a matrix is not diagonal, its eigenvalues below :math:`d\cdot 2.2\cdot 10^{-16}`
    times the largest one are treated as zeros. This matters for infinite prompts, whose
    floor jumps when an eigenvalue vanishes: a direction that no token has cannot be
    learnt. See docs/linear-attention-theory.md, "The population loss".

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
        prior = np.ones(d)
        if self.prior is not None:
            prior = moment("prior", self.prior, d)
        query = covariance
        if self.query is not None:
            query = moment("query", self.query, d)
        # All three moments are vectors, or all three are matrices.
        if max(covariance.ndim, prior.ndim, query.ndim) == 2:
            covariance = _as_matrix(covariance)
            prior = _as_matrix(prior)
            query = _as_matrix(query)
        set_fields(self, covariance=covariance, prior=prior, query=query)
        set_fields(self, N=prompt_length(self.N))
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
        """The same law, with its moments stored as matrices."""
        if not self.diagonal:
            return self
        covariance, prior, query = map(np.diag, self.moments)
        return PromptLaw(covariance, prior, query, self.N, self.noise)

    @property
    def moments(self) -> tuple[Array, Array, Array]:
        """Λ, W and Λ_q, (d, d) each, or (d,) if all are diagonal."""
        # The constructor has replaced None by the defaults.
        assert self.prior is not None
        assert self.query is not None
        return self.covariance, self.prior, self.query

    @property
    def _signal(self) -> Array:
        """ΛWΛ, the second moment over tasks of the mean of h for a given task."""
        covariance, prior, _ = self.moments
        if self.diagonal:
            return np.asarray(covariance**2 * prior)
        return np.asarray(covariance @ prior @ covariance)

    @cached_property
    def scatter(self) -> Array:
        r"""The mean over tasks of the covariance of h for a given task.

        Here :math:`h = \frac1N\sum y_i x_i`. The mean, (d, d) or (d,), is
        :math:`\Lambda W\Lambda/N + (\mathrm{tr}\,\Lambda W + \sigma^2)\Lambda/N`.
        """
        covariance, prior, _ = self.moments
        # As Λ is symmetric, tr ΛW is the sum of products of the entries of Λ and W.
        if self.diagonal:
            trace = float(covariance @ prior)
        else:
            trace = float(np.sum(covariance * prior))
        label_variance = trace + self.noise**2
        return np.asarray((self._signal + label_variance * covariance) / self.N)

    @cached_property
    def second(self) -> Array:
        r"""Second moment M of h, the sum of :math:`\Lambda W\Lambda` and `scatter`.

        Its shape is (d, d), or (d,) if all matrices are diagonal.
        """
        return np.asarray(self._signal + self.scatter)

    @property
    def _scatter_factor(self) -> float:
        """The factor c = (tr ΛW + σ²)/N of Λ in M."""
        covariance, prior, _ = self.moments
        # The sum of the products of entries is tr ΛW.
        return (float(np.sum(covariance * prior)) + self.noise**2) / self.N

    @cached_property
    def _factors(self) -> _Factors:
        """The decomposition LᵀF = ZτYᵀ of the factors of Λ = LLᵀ and W = FFᵀ."""
        # Formulas in τ keep digits that an inverse of M would lose: if W = I, Λ has the
        # condition number of τ², and M may have the condition number of τ⁴.
        covariance, prior, _ = self.moments
        if self.diagonal:
            tokens = np.sqrt(covariance)
            tasks = np.sqrt(prior)
            tau = tokens * tasks
        else:
            # `root` returns Lᵀ and Fᵀ.
            L = root(covariance).T
            F = root(prior).T
            Z, tau, Y_transposed = np.linalg.svd(L.T @ F)
            tau = _without_rounding(tau, largest=tau[0])
            tokens = L @ Z
            tasks = F @ Y_transposed.T
        whitened_second = (1.0 + 1.0 / self.N) * tau**2 + self._scatter_factor
        return _Factors(tau, whitened_second, tokens, tasks)

    @cached_property
    def modes(self) -> Modes:
        """The axes of Γ in which the excess is a sum of squares, and their scales.

        The scales are the numbers q_a and s_b of ``Modes``.
        """
        _, _, query = self.moments
        if self.diagonal:
            s = np.sqrt(self.second)
            return Modes(q=query, s=s, reach=self.best * s, bases=None)
        tau, whitened_second, tokens, tasks = self._factors
        # With the letters of `_Factors` and p for ``whitened_second``, M = XXᵀ for
        # X = LZ p^½, whose singular value decomposition is V s R. Then Γ*X = FY τ p^-½
        # needs no inverse of M (docs/linear-attention-theory.md, "Without an inverse of
        # M"), and in the modes Γ* is Uᵀ Γ* V s = Uᵀ (Γ*X) Rᵀ.
        root_p = np.sqrt(whitened_second)
        V, s, R = np.linalg.svd(tokens * root_p)
        best_X = tasks * _quotient(tau, root_p, where=whitened_second > 0.0)
        # Eigenvalues come in increasing order, and singular values in falling order.
        q, U = np.linalg.eigh(query)
        q = _without_rounding(q, largest=q[-1])
        s = _without_rounding(s, largest=s[0])
        return Modes(q=q, s=s, reach=U.T @ (best_X @ R.T), bases=(U, V))

    @cached_property
    def best(self) -> Array:
        r"""The best matrix :math:`\Gamma^* = W\Lambda M^{-1}`, for any query law.

        If M is singular, its pseudo-inverse takes the place of the inverse. The shape
        is (d, d), or (d,) if all matrices are diagonal.

        References
        ----------
        Ahn, Cheng, Daneshmand, Sra 2023, Theorem 1; Zhang, Frei, Bartlett 2024.
        """
        if self.diagonal:
            covariance, prior, _ = self.moments
            second = self.second
            return _quotient(prior * covariance, second, where=second > 0.0)
        _, s, reach, bases = self.modes
        assert bases is not None  # they are None for diagonal laws alone
        U, V = bases
        # `reach` is Uᵀ Γ* V s. It was computed without an inverse of M, which would
        # lose digits.
        return np.asarray(U @ _quotient(reach, s, where=s > 0.0) @ V.T)

    @cached_property
    def floor(self) -> float:
        r"""Loss of the best matrix, squared label units.

        It is :math:`\tfrac12\sum_j\frac{\tau_j^2/N + c}{(1 + 1/N)\tau_j^2 +
        c}\,f_j^\top\Lambda_q f_j`, a sum of terms that are not negative. Here
        :math:`c = (\mathrm{tr}\,\Lambda W + \sigma^2)/N`. With :math:`\Lambda =
        LL^\top` and :math:`W = FF^\top`, the :math:`\tau_j` are the singular values of
        :math:`L^\top F = Z\tau Y^\top`, and the :math:`f_j` the columns of FY.
        """
        tau, whitened_second, _, tasks = self._factors
        # In infinite prompts, for which c = 0, a direction with τ = 0 is not explained
        # at all.
        unexplained = np.divide(
            tau**2 / self.N + self._scatter_factor,
            whitened_second,
            out=np.ones_like(tau),
            where=whitened_second > 0.0,
        )
        _, _, query = self.moments
        # f_jᵀ Λ_q f_j for each column f_j of ``tasks``.
        if self.diagonal:
            target_variance = query * tasks**2
        else:
            target_variance = np.sum(tasks * (query @ tasks), axis=0)
        return 0.5 * float(unexplained @ target_variance)

    def rank_excess(self, rank: int) -> float:
        r"""Return how far the least loss of matrices up to a rank is above the floor.

        The result is :math:`\tfrac12\sum_{j > r}\sigma_j^2` with :math:`\sigma_1 \ge
        \sigma_2 \ge \dots` the singular values of
        :math:`\Lambda_q^{1/2}\Gamma^*M^{1/2}`. See docs/linear-attention-theory.md,
        "Heads".

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
            # The singular values of a diagonal matrix, largest first.
            sizes = np.sort(np.sqrt(q) * np.abs(reach))
            singular_values = np.asarray(sizes[::-1])
        else:
            # ``target`` is Uᵀ Λ_q^½ Γ* M^½ V. The orthogonal matrices U and V do not
            # change its singular values.
            target = np.sqrt(q)[:, None] * reach
            singular_values = np.asarray(np.linalg.svd(target, compute_uv=False))
        return 0.5 * float(np.sum(singular_values[rank:] ** 2))

    def loss(self, gamma: ArrayLike) -> float:
        r"""Population loss of the prediction :math:`\hat y = x^\top\Gamma h`.

        .. math:: \mathcal L = \tfrac12\mathrm{tr}\,\Lambda_q\bigl[
            (\Gamma\Lambda - I)W(\Gamma\Lambda - I)^\top
            + \Gamma S\Gamma^\top\bigr].

        Here S is `scatter`, the mean over tasks of the covariance of h for a given
        task. The formula is a sum of squares, so that small losses keep their digits.

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
        if self.diagonal and gamma.ndim == 2:
            return self.dense.loss(gamma)
        # `errors` is the matrix in brackets, or its diagonal. As Λ_q is symmetric, the
        # trace is the sum of products of the entries of Λ_q and `errors`.
        if self.diagonal:
            bias = gamma * covariance - 1.0
            errors = bias**2 * prior + gamma**2 * self.scatter
            return 0.5 * float(query @ errors)
        gamma = _as_matrix(gamma)
        bias = gamma @ covariance - np.eye(self.d)
        errors = bias @ prior @ bias.T + gamma @ self.scatter @ gamma.T
        return 0.5 * float(np.sum(query * errors))

    def excess(self, gamma: ArrayLike) -> float:
        r"""Return the loss above the floor.

        It is :math:`\tfrac12\|\Lambda_q^{1/2}(\Gamma - \Gamma^*)M^{1/2}\|_F^2`.
        """
        return self._excess_of_gaps(self.off(gamma))

    def off(self, gamma: ArrayLike) -> Array:
        r"""Return :math:`u_a^\top(\Gamma - \Gamma^*)v_b s_b`, the gaps in the modes.

        A gap is how far Γ is off the best matrix along the axes :math:`u_a` and
        :math:`v_b` of ``Modes``, times the scale :math:`s_b`. The result has the shape
        (d, d) for a matrix, and (d,) for a diagonal.
        """
        checked = shaped("gamma", gamma, (self.d,), (self.d, self.d))
        if not self.diagonal:
            checked = _as_matrix(checked)
        return self._gaps(checked)

    def _gaps(self, gamma: Array) -> Array:
        """Return the gaps of `off` for an argument that was checked.

        ``gamma`` may also be n matrices, (n, d, d).
        """
        _, s, reach, bases = self.modes
        if bases is not None:
            U, V = bases
            return np.asarray((U.T @ gamma @ V) * s - reach)
        best = self.best
        if gamma.ndim >= 2:
            best = np.diag(best)
        return np.asarray((gamma - best) * s)

    def excess_of(self, off: ArrayLike) -> float:
        """Return the excess, squared label units, from the gaps that `off` returns."""
        return self._excess_of_gaps(shaped("off", off, (self.d,), (self.d, self.d)))

    def _excess_of_gaps(self, gaps: Array) -> float:
        """Return half the sum of q_a times the squared gaps."""
        q = self.modes.q
        if gaps.ndim == 2:
            q = q[:, None]  # row a of the gaps belongs to the axis u_a
        return 0.5 * float(np.sum(q * gaps**2))

    def largest_curvature(self) -> float:
        r"""Largest curvature of the loss as a function of Γ.

        It is the largest eigenvalue of the Hessian :math:`\Lambda_q \otimes M`.
        """
        return float(self.modes.q.max() * self.modes.s.max() ** 2)


def prompt_law(law: object) -> PromptLaw:
    """Return ``law`` if it is a `PromptLaw`, and refuse anything else."""
    return instance("law", law, PromptLaw, "a PromptLaw")


def shaped(name: str, value: ArrayLike, *shapes: tuple[int, ...]) -> Array:
    """Return a copy of an array, which must have one of the given shapes.

    Entries up to 1e40 are allowed. Other arrays are refused by a ``ValueError`` about
    the argument ``name``.
    """
    array = plain_numbers(name, value, -LARGEST, LARGEST)
    if array.shape not in shapes:
        allowed = " or ".join(map(str, shapes))
        raise argument_error(name, array.shape, f"of shape {allowed}")
    return array.copy()


def root(matrix: Array) -> Array:
    r"""Return a matrix F with :math:`F^\top F` equal to ``matrix``, (d, d)."""
    values, vectors = np.linalg.eigh(matrix)  # values in increasing order
    # Rounding may make an eigenvalue of zero negative, which would have no root.
    values = _without_rounding(values, largest=values[-1])
    return np.asarray((vectors * np.sqrt(values)).T)


def moment(name: str, value: object, d: int | None = None) -> Array:
    """Return a copy of a second moment: a nonzero, positive semidefinite matrix.

    A matrix that is given as its diagonal stays a diagonal. Anything but such a matrix
    or diagonal is refused by a ``ValueError`` about the argument ``name``. ``d`` is the
    dimension, if it is known.
    """
    size = "d" if d is None else str(d)
    allowed = (
        f"a symmetric, positive semidefinite matrix ({size} x {size}), "
        f"or {size} numbers >= 0 on its diagonal"
    )
    entries = floats(value)
    if entries is None or not _is_moment_shape(entries, d):
        raise argument_error(name, value, allowed)
    if not np.isfinite(entries).all():
        raise argument_error(name, value, allowed)
    largest = float(np.abs(entries).max())
    if not SMALLEST_MOMENT <= largest <= LARGEST:
        raise argument_error(
            name,
            value,
            f"{allowed}; its largest entry between {SMALLEST_MOMENT:g} and {LARGEST:g}",
        )
    if entries.ndim == 1:
        least = float(entries.min())
        if least < 0.0:
            raise argument_error(name, value, f"{allowed} (the least is {least:.3g})")
        return entries.copy()
    return _semidefinite(name, value, entries, largest, allowed)


def _is_moment_shape(entries: Array, d: int | None) -> bool:
    """Whether entries are a diagonal or a square matrix (of dimension d, if given)."""
    if entries.ndim not in (1, 2) or entries.size == 0:
        return False
    size = len(entries) if d is None else d
    return all(length == size for length in entries.shape)


def _semidefinite(
    name: str, value: object, matrix: Array, largest: float, allowed: str
) -> Array:
    """Return a matrix, which must be symmetric and without negative eigenvalues.

    The error message shows ``value``, the argument of the user, and ``allowed``, the
    description of the allowed values. ``largest`` is the largest entry, without sign.
    """
    matrix = symmetric(name, value, matrix, allowed)
    least = float(np.linalg.eigvalsh(matrix)[0])
    # A negative eigenvalue above this limit is rounding in the user's computation.
    if least < -MOMENT_ROUNDING * len(matrix) * largest:
        raise argument_error(
            name, value, f"{allowed} (its least eigenvalue is {least:.3g})"
        )
    return matrix


def _as_matrix(array: Array) -> Array:
    """Return a matrix as it is, or the matrix with this diagonal."""
    return np.diag(array) if array.ndim == 1 else array


def _quotient(dividend: Array, divisor: Array, where: NDArray[np.bool_]) -> Array:
    """Divide where a condition holds; the quotient is zero everywhere else."""
    zeros = np.zeros_like(dividend)
    return np.asarray(np.divide(dividend, divisor, out=zeros, where=where))


def _without_rounding(values: Array, largest: float) -> Array:
    """Replace values by zero if they are not above the rounding of the largest one.

    The decomposition of a (d, d) matrix moves all d values by about the rounding of the
    largest one.
    """
    rounding = len(values) * np.finfo(float).eps * largest
    return np.where(values > rounding, values, 0.0)
