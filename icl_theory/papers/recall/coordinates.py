"""The full transformer in the few parameters of the theory."""

from __future__ import annotations

import numpy as np
from scipy.sparse import block_diag, csc_array

from icl_theory._validate import Array, argument_error, instance, signed
from icl_theory.engine.pullback import Affine, Pullback, SampledPullback
from icl_theory.papers.recall.sampled import MATRICES, TransformerRisk
from icl_theory.papers.recall.weights import gates


def reparameterised(
    full: TransformerRisk, gamma: float | None = None, v: float | None = None
) -> SampledPullback:
    r"""Return a transformer on the same sentences, trained in a few parameters alone.

    The parameters are ``(lambda_1, ..., lambda_Q, [v], [gamma])``. The sums are over
    the triggers q and the words x that may be outputs, seen or not:

    .. math::
        W = \sum_q \lambda_q E(q)\tilde E(q)^\top, \qquad \mathcal V = v\sum_x
        E(x)E(x)^\top, \qquad F = \gamma\sum_q E(\tau)E(q)^\top + \sum_x
        E(\tau)E(x)^\top,

    or with the weights "identity" :math:`W = \sum_q \lambda_q E(q)(\tilde E(q) -
    E(\tau))^\top` (without :math:`E(\tau)` if there is no noise), :math:`\mathcal V =
    vI` and :math:`F = \sum_q E(\tau)(\gamma E(q) + \tilde E(q))^\top`. The map is
    affine: the derivative with respect to a parameter is the sum of the derivatives
    with respect to the entries that it sets. See docs/theory.md, "In-context recall".

    Parameters
    ----------
    full : TransformerRisk
        A transformer that trains W, 𝒱 and (with noise) F.
    gamma, v : float, optional
        Hold γ or v at this value instead of training it.

    Returns
    -------
    SampledPullback
        The risk, from zero; its ``risk`` is the full one, and its ``map.inward``
        returns the matrices.

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
        raise argument_error("v", v, "left out unless softmax")

    # For each matrix: ``base`` is the matrix at zero parameters, as a flat vector, and
    # the columns of ``derivatives`` are the derivatives of its entries with respect to
    # its parameters. A parameter that is held has no column.
    held_gamma = 0.0 if gamma is None else signed("gamma", gamma)
    fixed = gates(task, full.weights, held_gamma)
    base: list[Array] = [np.zeros((2 * task.V) ** 2)]
    derivatives = [_strength_derivatives(full)]

    value = fixed["value"].reshape(-1, 1)
    trains_v = has_scale and v is None
    scale = 1.0
    if has_scale:
        scale = 0.0 if v is None else signed("v", v)
    base.append(scale * value)
    derivatives.append(value if trains_v else value[:, :0])

    if task.alpha:
        feed_forward = fixed["feed_forward"].reshape(-1, 1)
        base.append(feed_forward)
        # F is affine in γ, so that its derivative is a difference. It is not used if γ
        # is held, when ``feed_forward`` is not the matrix at γ = 0.
        at_one = gates(task, full.weights, 1.0)["feed_forward"].reshape(-1, 1)
        gamma_derivative = at_one - feed_forward
        trains_gamma = gamma is None
        derivatives.append(
            gamma_derivative if trains_gamma else gamma_derivative[:, :0]
        )
    # numbers of parameters of the matrices that have any: the blocks of some rules
    sizes = tuple(part.shape[1] for part in derivatives if part.shape[1])
    matrices = Affine(
        np.concatenate(base, axis=None), block_diag(derivatives, "csc"), sizes
    )
    return SampledPullback(Pullback(full, matrices))


def _check_trained(full: TransformerRisk) -> None:
    """Refuse a transformer that does not train all of its matrices."""
    expected = MATRICES if full.task.alpha else MATRICES[:2]
    if full.trained != expected:
        raise argument_error(
            "full", full.trained, "a TransformerRisk that trains " + ", ".join(expected)
        )


def _strength_derivatives(full: TransformerRisk) -> csc_array:
    """Return the derivatives of the entries of W with respect to λ, ((2V)², Q)."""
    task = full.task
    width = 2 * task.V
    shape = (width * width, task.Q)
    ones = np.ones(task.Q)
    column = np.arange(task.Q)
    # E(q) selects a row of entries of the flat W, and Ẽ(q) or E(τ) an entry of the row.
    row_start = task.triggers * width
    at_trigger = row_start + task.V + task.triggers
    derivatives = csc_array((ones, (at_trigger, column)), shape)
    if full.weights == "identity" and task.alpha:
        at_noise = row_start + task.noise_word
        derivatives -= csc_array((ones, (at_noise, column)), shape)
    return derivatives
