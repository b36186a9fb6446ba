r"""The exact test error of linear attention as a function of the test tasks.

A layer predicts :math:`\hat y = x^\top(\Gamma h + \gamma s)` from the means :math:`h =
\frac1N\sum_i y_ix_i` and :math:`s = \frac1N\sum_i y_i^2` of a prompt. For any matrix Γ
its mean squared error is an affine function of the second moment W of the test tasks,
and the column γ adds a quadratic one. `ErrorKernel` holds the coefficients. See
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
    r"""The test error of one layer, for tests with tasks of any covariance.

    .. math:: E(W) = \langle W, K\rangle + \sigma^2(1 + g)
        + b\bigl[(\mathrm{tr}\,\Lambda W + \sigma^2)^2
        + 2\,\mathrm{tr}\,(\Lambda W)^2\bigr]

    Parameters
    ----------
    matrix : array_like, (d, d)
        K.
    noise_gain : float
        g, the share of the label noise of the prompt that reaches the prediction.
    squares_gain : float
        b, the weight of the mean of squared labels; 0 without the column γ.
    covariance : array_like, (d, d)
        Covariance Λ of the tokens.
    noise : float
        Standard deviation σ of the label noise, label units.

    Raises
    ------
    ValueError
        A shape, or a number, is not allowed; the message names it.

    References
    ----------
    docs/theory/alignment.md. Letey et al. 2026 have the limit of many dimensions.

    Examples
    --------
    A layer that was trained on tasks along the first axis, and tests along both:

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
        """Return the mean squared error for the label of the query, with its noise.

        Parameters
        ----------
        tasks : array_like, (d, d) or (d,)
            Second moment W of the test tasks, or its diagonal. Tasks are normal with
            mean zero if the layer has a column γ.

        Returns
        -------
        float, squared label units

        Raises
        ------
        ValueError
            ``tasks`` is no second moment in d dimensions.
        """
        W = _dense(moment("tasks", tasks, self.d))
        variance = self.noise**2
        affine = float(np.sum(W * self.matrix)) + variance * (1.0 + self.noise_gain)
        if self.squares_gain == 0.0:
            return affine
        product = self.covariance @ W
        label_variance = float(np.trace(product)) + variance
        # The mean of (wᵀΛw + σ²)² over normal tasks.
        fourth = label_variance**2 + 2.0 * float(np.sum(product * product.T))
        return affine + self.squares_gain * fourth


def error_kernel(gamma: ArrayLike, law: PromptLaw) -> ErrorKernel:
    r"""Return the exact test error of a layer, for all covariances of test tasks.

    With :math:`g = \frac1N\mathrm{tr}\,\Lambda_q\Gamma\Lambda\Gamma^\top`,

    .. math:: K = (\Gamma\Lambda - I)^\top\Lambda_q(\Gamma\Lambda - I)
        + \tfrac1N\Lambda\Gamma^\top\Lambda_q\Gamma\Lambda + g\Lambda, \qquad
        b = \bigl(1 + \tfrac2N\bigr)\,\gamma^\top\Lambda_q\gamma .

    Parameters
    ----------
    gamma : array_like, (d, d), (d,) or (d, d + 1)
        Γ, or its diagonal, or Γ followed by the column γ.
    law : PromptLaw
        Tokens, query, length and label noise of the test prompts. Its prior is not
        used.

    Returns
    -------
    ErrorKernel

    Raises
    ------
    ValueError
        ``gamma`` does not fit the law, or ``law`` is no `PromptLaw`.

    Examples
    --------
    >>> import icl_theory as icl
    >>> from icl_theory.papers.alignment.kernel import error_kernel
    >>> law = icl.linear_attention.PromptLaw([1.0, 0.5], N=10, noise=0.3)
    >>> kernel = error_kernel(law.best, law)
    >>> bool(abs(kernel.error([1.0, 1.0]) - 2 * law.floor - 0.09) < 1e-14)
    True
    """
    checked_law = prompt_law(law)
    d = checked_law.d
    whole = shaped("gamma", gamma, (d,), (d, d), (d, d + 1))
    if whole.ndim == 1:
        whole = np.diag(whole)
    matrix = whole[:, :d]
    column = whole[:, d:]
    covariance, _, query = checked_law.dense.moments
    N = checked_law.N
    learnt = matrix @ covariance
    bias = learnt - np.eye(d)
    noise_gain = float(np.sum(query * (learnt @ matrix.T))) / N
    K = bias.T @ query @ bias
    K += learnt.T @ query @ learnt / N
    K += noise_gain * covariance
    squares_gain = (1.0 + 2.0 / N) * float(np.sum(column * (query @ column)))
    return ErrorKernel(
        0.5 * (K + K.T), noise_gain, squares_gain, covariance, checked_law.noise
    )


def _dense(entries: Array) -> Array:
    """Return the matrix that has these entries, or this diagonal."""
    return np.diag(entries) if entries.ndim == 1 else entries
