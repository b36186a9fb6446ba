r"""The exact test error of linear attention as a function of the test tasks.

A layer predicts :math:`\hat y = x^\top(\Gamma h + \gamma s)` for the query x, from the
means :math:`h = \frac1N\sum_i y_ix_i` and :math:`s = \frac1N\sum_i y_i^2` over the N
pairs of a prompt. If γ = 0, the mean squared error of the layer is an affine function
of the second moment W of the test tasks, for any matrix Γ. The column γ adds a
quadratic function of W. `ErrorKernel` holds the coefficients of both functions. See
docs/theory/alignment.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import LARGEST, Array, number, set_fields
from icl_theory.papers.linear_attention.law import PromptLaw, moment, prompt_law, shaped


@dataclass(frozen=True, eq=False)
class ErrorKernel:
    r"""The test error of one layer as a function of the second moment W of test tasks.

    .. math:: E(W) = \langle W, K\rangle + \sigma^2(1 + g)
        + b\bigl[(\mathrm{tr}\,\Lambda W + \sigma^2)^2
        + 2\,\mathrm{tr}\,(\Lambda W)^2\bigr]

    Here :math:`\langle W, K\rangle = \mathrm{tr}\,WK`.

    Parameters
    ----------
    matrix : array_like, (d, d)
        K.
    noise_gain : float
        g, the variance of :math:`x^\top\Gamma h` if all labels are noise of variance 1.
    squares_gain : float
        b, the factor of E v² in the error. Here v is the label variance of a task, and
        the mean is over tasks. Without the column γ, b is 0.
    covariance : array_like, (d, d)
        Covariance Λ of the tokens.
    noise : float
        Standard deviation σ of the label noise, label units.

    Raises
    ------
    ValueError
        A shape or a number is not allowed; the message names the argument.

    References
    ----------
    docs/theory/alignment.md. Letey et al. 2026 have the limit of many dimensions.

    Examples
    --------
    A layer that was trained on tasks mostly along the first axis, tested on tasks along
    the first axis and on tasks along the second:

    >>> import icl_theory as icl
    >>> from icl_theory.papers.alignment.kernel import error_kernel
    >>> law = icl.linear_attention.PromptLaw([1.0, 1.0], [1.0, 0.01], N=40)
    >>> kernel = error_kernel(law.best, law)
    >>> [round(kernel.error(tasks), 3) for tasks in ([1.0, 0.0], [0.0, 1.0])]
    [0.05, 0.543]
    """

    matrix: Array
    noise_gain: float
    squares_gain: float
    covariance: Array
    noise: float

    def __post_init__(self) -> None:
        # `moment` refuses an array that is not a second moment, and `shaped` refuses an
        # array of another shape.
        covariance = _dense(moment("covariance", self.covariance))
        set_fields(
            self,
            matrix=shaped("matrix", self.matrix, covariance.shape),
            noise_gain=number("noise_gain", self.noise_gain, zero=True),
            squares_gain=number("squares_gain", self.squares_gain, zero=True),
            covariance=covariance,
            noise=number("noise", self.noise, zero=True, maximum=LARGEST),
        )

    @property
    def d(self) -> int:
        """Dimension of the tokens."""
        return len(self.matrix)

    def error(self, tasks: ArrayLike) -> float:
        """Return the mean squared error for the noisy label of the query.

        Parameters
        ----------
        tasks : array_like, (d, d) or (d,)
            Second moment W of the test tasks, or its diagonal. If the layer has a
            column γ, the error is for normal tasks with mean zero. Otherwise it is for
            any tasks with this second moment.

        Returns
        -------
        float, squared label units

        Raises
        ------
        ValueError
            ``tasks`` is not a second moment in d dimensions.
        """
        W = _dense(moment("tasks", tasks, self.d))
        noise_variance = self.noise**2
        affine = float(np.sum(W * self.matrix))  # ⟨W, K⟩
        affine += noise_variance * (1.0 + self.noise_gain)
        if self.squares_gain == 0.0:
            return affine
        # The label variance of a task is v = wᵀΛw + σ². Over normal tasks it has the
        # mean tr ΛW + σ² and the variance 2 tr (ΛW)².
        covariance_W = self.covariance @ W
        mean_v = float(np.trace(covariance_W)) + noise_variance
        mean_v_square = mean_v**2 + 2.0 * float(np.sum(covariance_W * covariance_W.T))
        return affine + self.squares_gain * mean_v_square


def error_kernel(gamma: ArrayLike, law: PromptLaw) -> ErrorKernel:
    r"""Return the exact test error of a layer, for all second moments of test tasks.

    Tokens have the covariance Λ, and queries have the second moment
    :math:`\Lambda_q`. With :math:`g =
    \frac1N\mathrm{tr}\,\Lambda_q\Gamma\Lambda\Gamma^\top`,

    .. math:: K = (\Gamma\Lambda - I)^\top\Lambda_q(\Gamma\Lambda - I)
        + \tfrac1N\Lambda\Gamma^\top\Lambda_q\Gamma\Lambda + g\Lambda, \qquad
        b = \bigl(1 + \tfrac2N\bigr)\,\gamma^\top\Lambda_q\gamma .

    Parameters
    ----------
    gamma : array_like, (d, d), (d,) or (d, d + 1)
        Γ, or its diagonal, or Γ followed by the column γ.
    law : PromptLaw
        Tokens, query, length and label noise of the test prompts. The prior, which is
        the second moment of the tasks of the law, is not used.

    Returns
    -------
    ErrorKernel

    Raises
    ------
    ValueError
        ``gamma`` does not fit the law, or ``law`` is not a `PromptLaw`.

    Examples
    --------
    >>> import icl_theory as icl
    >>> from icl_theory.papers.alignment.kernel import error_kernel
    >>> law = icl.linear_attention.PromptLaw([1.0, 0.5], N=10, noise=0.3)
    >>> kernel = error_kernel(law.best, law)
    >>> bool(abs(kernel.error([1.0, 1.0]) - 2 * law.floor - 0.09) < 1e-14)
    True
    """
    checked_law = prompt_law(law)  # refuses any other object
    d = checked_law.d
    matrix_and_column = shaped("gamma", gamma, (d,), (d, d), (d, d + 1))
    if matrix_and_column.ndim == 1:
        matrix_and_column = np.diag(matrix_and_column)
    matrix = matrix_and_column[:, :d]
    # The column γ, (d, 1), or no column, (d, 0), for which the sum below is 0.
    column = matrix_and_column[:, d:]
    covariance, _, query = checked_law.dense.moments  # Λ, the prior, Λ_q
    N = checked_law.N
    matrix_covariance = matrix @ covariance  # ΓΛ
    # For a task w the mean of Γh - w over prompts is (ΓΛ - I)w.
    bias = matrix_covariance - np.eye(d)
    # For symmetric A and any B, np.sum(A * B) is tr AB.
    noise_gain = float(np.sum(query * (matrix_covariance @ matrix.T))) / N
    K = bias.T @ query @ bias
    K += matrix_covariance.T @ query @ matrix_covariance / N
    K += noise_gain * covariance
    squares_gain = (1.0 + 2.0 / N) * float(np.sum(column * (query @ column)))
    return ErrorKernel(
        # K is symmetric up to rounding, which the mean with the transpose removes.
        matrix=0.5 * (K + K.T),
        noise_gain=noise_gain,
        squares_gain=squares_gain,
        covariance=covariance,
        noise=checked_law.noise,
    )


def _dense(entries: Array) -> Array:
    """Return a matrix, (d, d), as it is, or the matrix with a given diagonal, (d,)."""
    return np.diag(entries) if entries.ndim == 1 else entries
