"""The quadratic forms of the mean squared errors of queries.

Query k has the form :math:`C^{(k)}_{mj} = E[(f_m - f_k)(f_j - f_k)]` over K features.
`ErrorForm` multiplies a vector z for each of Q queries by the form C of this query. It
uses the variogram Γ of the task, or the factor Φ of Γ if the rank r of Φ is low. The
variogram is Γ_mj = ½ E(f_m - f_j)², and the rows φ_m of Φ, (K, r), have Γ_mj = ½ ‖φ_m -
φ_j‖² (see `icl_theory.regression.tasks.law`). `at_nodes` multiplies J vectors for each
query, one for each node of the integral over finite prompts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array, argument_error
from icl_theory.memory import blocks
from icl_theory.regression.features import Features
from icl_theory.regression.tasks import Task

# How many numbers a block of rows has. Such a block takes 256 kB and stays in the
# processor's cache.
CACHED = 2**15
# Variograms below this can be multiplied by probabilities and numbers of tokens within
# the range of float64.
LARGEST_VARIOGRAM = 1e250
# Up to this rank, the row φ_k of the query is subtracted from the rows φ_m before the
# sum over m, which keeps more digits but takes time for each column of Φ.
LOW_RANK = 3


class ErrorForm:
    """The quadratic forms C^(k), k = 1..K, applied without forming the K matrices.

    ``C^(k)_mj = Γ_mk + Γ_kj - Γ_mj = (φ_m - φ_k)·(φ_j - φ_k)``. A product with all
    forms takes one product with the (K, K) variogram Γ, or two with the (K, r) factor
    Φ. The factor is used if the task has a formula for it and r <= K/2.
    """

    def __init__(self, task: Task, features: Features) -> None:
        # An overflow needs no warning, because it is refused below.
        with np.errstate(over="ignore", invalid="ignore"):
            self.variogram = np.ascontiguousarray(task.variogram(features))
            is_finite = np.isfinite(self.variogram).all()
            if not (is_finite and self.variogram.max() < LARGEST_VARIOGRAM):
                raise argument_error(
                    "task",
                    task,
                    "a task whose mean squared differences are finite and below 1e250",
                )
            # A task without a formula has the general factor of `Task`, which would
            # cost an eigenvalue decomposition.
            has_formula = type(task).factor is not Task.factor
            if has_formula:
                factor = np.ascontiguousarray(task.factor(features))
            else:
                factor = np.zeros((features.K, 0))
        self.use_factor = has_formula and 2 * factor.shape[1] <= features.K
        if not self.use_factor:
            # A copy frees the factor, which may be as large as the variogram.
            factor = factor[:, :0].copy()
        self.factor = factor

    def __call__(
        self, z: Array, own: NDArray[np.intp], mass: Array, scale: Array
    ) -> tuple[Array, Array]:
        """Return the form of each query, (Q,), and its slopes in the scores, (K, Q).

        For query q the form is z^T C z, and the slope in the score of feature m is
        z_m ((C z)_m - z^T C z / mass) times ``scale``.

        Column q of z, (K, Q), has the attention weights of the query ``own[q]``, but
        zero in place of the weight in the row ``own[q]``. ``mass``, (Q,), is the sum of
        all weights with this one, so that z/mass is the attention. ``scale``, (Q,), is
        any factor. During the call z may be changed, but afterwards it is as before.
        """
        if self.use_factor:
            squared, product, shift = self._by_factor(z, own)
        else:
            squared, product, shift = self._by_variogram(z, own)
        mean = squared / mass
        # The result is written over the product, in blocks that stay in the cache.
        for rows in blocks(len(z), z.shape[1], CACHED):
            block = product[rows]
            if self.use_factor:
                # The shift is added before the mean is subtracted. For a feature with
                # the same values as the query's own, product and shift then cancel
                # exactly.
                block += shift
                block -= mean
            else:
                np.subtract(shift - mean, block, out=block)
            block *= z[rows]
            block *= scale
        return squared, product

    def _by_factor(self, z: Array, own: NDArray[np.intp]) -> tuple[Array, Array, Array]:
        """Return ``z^T C z``, (Q,), a product, (K, Q), and a shift, (Q,).

        ``C z`` is the sum of the product and the shift.
        """
        # e = Σ_m z_m (φ_m - φ_k), with z^T C z = |e|² and (C z)_m = (φ_m - φ_k)·e
        error = self._mean_difference(z, own, total=np.add.reduce(z, axis=0))
        squared = np.einsum("rq,rq->q", error, error)
        product = self.factor @ error
        # -φ_k·e
        shift = -product[own, np.arange(z.shape[1])]
        return squared, product, shift

    def _by_variogram(
        self, z: Array, own: NDArray[np.intp]
    ) -> tuple[Array, Array, Array]:
        """Return ``z^T C z``, (Q,), a product, (K, Q), and a shift, (Q,).

        ``C z`` is the shift minus the product. During the call other numbers are
        written to the rows ``own`` of z, which are zero before and after it.
        """
        columns = np.arange(z.shape[1])
        # For small arrays, `reduce` is faster than the method `sum`.
        total = np.add.reduce(z, axis=0)
        # (C z)_m = Γ_mk Σz + (Γz)_k - (Γz)_m. With -Σz in the row of the query's own
        # feature, the product Γz includes the first term, with its sign turned. Its row
        # k is still (Γz)_k, because Γ_kk = 0. So C z is this row, the shift, minus the
        # product.
        z[own, columns] = -total
        # Γ is real. In a view of a complex z as float64, real and imaginary parts stand
        # side by side, so that one real product serves both.
        product = (self.variogram @ z.view(np.float64)).view(z.dtype)
        z[own, columns] = 0.0
        shift = product[own, columns].copy()
        # z^T C z is a mean square: rounding must not make it negative. (For complex
        # numbers, NumPy compares real parts.)
        squared = np.maximum(total * shift - np.einsum("mq,mq->q", z, product), 0.0)
        return squared, product, shift

    def against(
        self,
        top: NDArray[np.intp],
        z: Array,
        query: NDArray[np.intp],
        needs_digits: NDArray[np.bool_] | None = None,
    ) -> Array:
        """Return ``(C z)_m - (C z)_top``, (K, Q), with one feature ``top`` per column.

        Column q of z, (K, Q), belongs to the query ``query[q]``. For the entries (m, q)
        of the mask ``needs_digits``, (K, Q), row ``top[q]`` of C is subtracted from row
        m before the sum over z. This keeps the digits if the task has nearly the same
        values at m and ``top[q]``, and gives zero if they are equal.
        """
        columns = np.arange(z.shape[1])
        total = z.sum(axis=0)
        # C z up to a constant of each column, which cancels in the difference
        if self.use_factor:
            error = self._mean_difference(z, query, total)
            result = self.factor @ error
        else:
            result = self.variogram[:, query] * total - self.variogram @ z
        result -= result[top, columns]
        if needs_digits is None:
            return result
        for column in np.flatnonzero(needs_digits.any(axis=0)):
            rows = np.flatnonzero(needs_digits[:, column])
            top_row = top[column]
            if self.use_factor:
                # (φ_m - φ_top)·e
                difference = self.factor[rows] - self.factor[top_row]
                result[rows, column] = difference @ error[:, column]
            else:
                # (Γ_mk - Γ_top,k) Σz + Σ_j (Γ_top,j - Γ_mj) z_j
                own = query[column]
                to_own = self.variogram[rows, own] - self.variogram[top_row, own]
                between = self.variogram[top_row] - self.variogram[rows]
                from_others = between @ z[:, column]
                result[rows, column] = to_own * total[column] + from_others
        return result

    def _mean_difference(self, z: Array, own: NDArray[np.intp], total: Array) -> Array:
        """Return ``Σ_m z_m (φ_m - φ_k)``, (r, Q), with k = ``own`` for each column.

        ``total`` is Σ_m z_m. Up to the rank `LOW_RANK` the difference is taken before
        the sum. This keeps the digits of a small loss, to which only features close to
        the query's own contribute. For higher ranks this would take too long, and φ_k
        Σ_m z_m is subtracted after the sum.
        """
        if self.factor.shape[1] > LOW_RANK:
            error = self.factor.T @ z
            error -= self.factor[own].T * total
            return error
        error = np.zeros((self.factor.shape[1], z.shape[1]), dtype=z.dtype)
        for rows in blocks(len(z), z.shape[1], CACHED):
            for axis, coordinate in enumerate(self.factor.T):
                # Coordinate ``axis`` of φ_m - φ_k, for the features of a block, (M, Q)
                difference = coordinate[rows, None] - coordinate[own]
                error[axis] += np.einsum("mq,mq->q", z[rows], difference)
        return error


def at_nodes(
    variograms: Array,
    factors: Array,
    queries: NDArray[np.intp],
    z: Array,
    product: Array,
) -> None:
    """Write ``C z`` to ``product``, for z, (q, K, J), with a row for each query.

    There are P problems with K queries each, with variograms (P, K, K) and factors
    (P, K, r). If r is 0, the variograms are used. ``queries``, (q,), has the numbers of
    the queries. Query number i is the feature i modulo K of a problem. The number of
    this problem is i // K modulo P.
    """
    problem, own = np.divmod(queries, variograms.shape[1])
    # The queries of all problems may be repeated, for several matrices of scores.
    problem %= len(variograms)
    selected: NDArray[np.intp] | slice = problem
    if len(variograms) == 1:
        # A view: a single problem is not copied for each query.
        selected = slice(None)
    if factors.shape[2]:
        # φ_m - φ_k, (q, K, r), and the sums of z_m (φ_m - φ_k) over m, (q, r, J)
        difference = factors[selected] - factors[problem, own][:, None]
        error = np.matmul(difference.swapaxes(1, 2), z)
        np.matmul(difference, error, out=product)
    else:
        # Γ_mk, (q, K), and C_mj = Γ_mk + Γ_kj - Γ_mj, (q, K, K)
        to_own = variograms[problem, own]
        error_form = to_own[:, :, None] + to_own[:, None] - variograms[selected]
        np.matmul(error_form, z, out=product)
