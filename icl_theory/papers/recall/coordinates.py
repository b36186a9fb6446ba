"""The full transformer in the few parameters of the theory.

The transformer has the matrices W (attention), 𝒱 (values) and F (feed-forward layer).
Each is (2V, 2V) for a vocabulary of V words. A word x has two embeddings. E(x) stands
for x itself, and Ẽ(x) for x as the word before another one. The embeddings are unit
vectors with 2V entries: E(x) has its 1 at entry x, and Ẽ(x) at entry V + x. q is one of
Q triggers, and τ the noise word. The parameters are a strength λ for each trigger, the
scale v of the values 𝒱, and the log-odds γ of noise in the feed-forward matrix F.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import block_diag, csc_array

from icl_theory._validate import Array, argument_error, instance, signed
from icl_theory.engine.pullback import Affine, Pullback, SampledPullback
from icl_theory.papers.recall.sampled import MATRICES, TransformerRisk
from icl_theory.papers.recall.weights import gates


def reparameterised(
    full: TransformerRisk, gamma: float | None = None, v: float | None = None
) -> SampledPullback:
    r"""Return the risk of a transformer whose matrices depend on a few parameters.

    Only these parameters are trained, on the sentences of ``full``. They are
    ``(lambda_1, ..., lambda_Q, [v], [gamma])``: v with softmax attention and γ with
    noise, unless they are held. The sums below are over the triggers q, and over the
    words x that are neither triggers nor noise:

    .. math::
        W = \sum_q \lambda_q E(q)\tilde E(q)^\top, \qquad \mathcal V = v\sum_x
        E(x)E(x)^\top, \qquad F = \gamma\sum_q E(\tau)E(q)^\top + \sum_x
        E(\tau)E(x)^\top,

    or with the weights "identity" :math:`W = \sum_q \lambda_q E(q)(\tilde E(q) -
    E(\tau))^\top` (without :math:`E(\tau)` if there is no noise), :math:`\mathcal V =
    vI` and :math:`F = \sum_q E(\tau)(\gamma E(q) + \tilde E(q))^\top`. The matrices are
    affine functions of the parameters. So the derivative of the loss with respect to a
    parameter is a sum over the entries of the matrices: the derivative with respect to
    the entry, times the coefficient of the parameter in the entry. See docs/theory.md,
    "In-context recall".

    Parameters
    ----------
    full : TransformerRisk
        A transformer that trains W, 𝒱 and (with noise) F.
    gamma, v : float, optional
        Hold γ or v at this value instead of training it.

    Returns
    -------
    SampledPullback
        The risk, which starts from zero. The field ``risk`` is the full risk, and
        ``map.inward`` returns the matrices.

    Raises
    ------
    ValueError
        The full risk trains other matrices, or a parameter to be held does not exist.

    Examples
    --------
    >>> import icl_theory as icl
    >>> task = icl.recall.RecallTask(V=8, triggers=2, outputs=3, H=9)
    >>> full = icl.recall.TransformerRisk(task)
    >>> icl.recall.reparameterised(full).initial
    array([0., 0.])
    """
    instance("full", full, TransformerRisk, "a TransformerRisk")
    task = full.task
    _check_trained(full)
    has_scale = full.attention == "softmax"
    if gamma is not None and not task.alpha:
        raise argument_error("gamma", gamma, "left out if alpha = 0")
    if v is not None and not has_scale:
        raise argument_error("v", v, "left out unless attention = 'softmax'")

    # W is 0 at λ = 0.
    attention_map = _AffineMatrix(
        base=np.zeros((2 * task.V) ** 2), derivatives=_strength_derivatives(full)
    )
    maps = [attention_map, _value_map(full, v)]
    if task.alpha:
        maps.append(_feed_forward_map(full, gamma))
    # Some update rules treat blocks of parameters separately. The parameters of each
    # matrix are one block. A matrix without parameters has no block.
    parameter_counts = [matrix.derivatives.shape[1] for matrix in maps]
    block_sizes = tuple(count for count in parameter_counts if count)
    # The entries of all matrices, in one list, are base + derivatives @ parameters.
    # ``axis=None`` flattens the bases, some of which are columns.
    base = np.concatenate([matrix.base for matrix in maps], axis=None)
    derivatives = block_diag([matrix.derivatives for matrix in maps], "csc")
    return SampledPullback(Pullback(full, Affine(base, derivatives, block_sizes)))


class _AffineMatrix(NamedTuple):
    """One of the matrices W, 𝒱 and F as an affine function of its parameters."""

    # The (2V)² entries of the matrix at zero parameters, flat or in one column.
    base: Array
    # Derivatives of the entries, a column for each parameter. A parameter that is held
    # has no column.
    derivatives: Any  # ((2V)², parameters)


def _value_map(full: TransformerRisk, v: float | None) -> _AffineMatrix:
    """Return 𝒱 as a function of v, which is trained if ``v`` is None.

    Attention other than softmax has v = 1.
    """
    # `gates` returns 𝒱 for v = 1, and F. 𝒱 does not depend on γ.
    value = gates(full.task, full.weights, gamma=0.0)["value"].reshape(-1, 1)
    no_column = value[:, :0]
    if full.attention != "softmax":
        return _AffineMatrix(base=value, derivatives=no_column)
    if v is not None:
        return _AffineMatrix(base=signed("v", v) * value, derivatives=no_column)
    return _AffineMatrix(base=0.0 * value, derivatives=value)


def _feed_forward_map(full: TransformerRisk, gamma: float | None) -> _AffineMatrix:
    """Return F as a function of γ, which is trained if ``gamma`` is None."""

    def feed_forward(log_odds: float) -> Array:
        """Return the entries of F, in one column, if γ has the value ``log_odds``."""
        return gates(full.task, full.weights, log_odds)["feed_forward"].reshape(-1, 1)

    if gamma is not None:
        held = feed_forward(signed("gamma", gamma))
        no_column = held[:, :0]
        return _AffineMatrix(base=held, derivatives=no_column)
    # F is affine in γ, so its derivative is F at γ = 1 minus F at γ = 0.
    base = feed_forward(0.0)
    return _AffineMatrix(base=base, derivatives=feed_forward(1.0) - base)


def _check_trained(full: TransformerRisk) -> None:
    """Refuse a transformer that does not train all of its matrices."""
    # Without noise there is no feed-forward layer.
    expected = MATRICES if full.task.alpha else MATRICES[:2]
    if full.trained != expected:
        raise argument_error(
            "full", full.trained, "a TransformerRisk that trains " + ", ".join(expected)
        )


def _strength_derivatives(full: TransformerRisk) -> csc_array:
    """Return the derivatives of the entries of W with respect to λ, ((2V)², Q).

    The derivative with respect to λ_q is E(q)Ẽ(q)ᵀ, or with noise and the weights
    "identity" E(q)(Ẽ(q) - E(τ))ᵀ.
    """
    task = full.task
    width = 2 * task.V
    shape = (width * width, task.Q)
    ones = np.ones(task.Q)
    column = np.arange(task.Q)
    # E(q) selects a row of W, whose entries are successive in the flat W. Ẽ(q) or E(τ)
    # selects an entry of the row.
    row_start = task.triggers * width
    at_trigger = row_start + task.V + task.triggers
    derivatives = csc_array((ones, (at_trigger, column)), shape)
    if full.weights == "identity" and task.alpha:
        at_noise = row_start + task.noise_word
        derivatives -= csc_array((ones, (at_noise, column)), shape)
    return derivatives
