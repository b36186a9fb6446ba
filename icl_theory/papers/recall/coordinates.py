"""The full transformer in the few parameters of the theory."""

from __future__ import annotations

import numpy as np
from scipy.sparse import block_diag, csc_array

from icl_theory._validate import argument_error, instance, signed
from icl_theory.engine.pullback import Affine, Pullback
from icl_theory.papers.recall.sampled import TransformerRisk
from icl_theory.papers.recall.weights import gates


def reparameterised(
    full: TransformerRisk, gamma: float | None = None, v: float | None = None
) -> Pullback:
    r"""Return a transformer on the same sentences, trained in ``(lambda_1, ..., lambda_Q, [v], [gamma])`` alone.

    With sums over the triggers q and the words x that may be outputs, seen or not,

    .. math::
        W = \sum_q \lambda_q E(q)\tilde E(q)^\top, \qquad \mathcal V = v\sum_x
        E(x)E(x)^\top, \qquad F = \gamma\sum_q E(\tau)E(q)^\top + \sum_x
        E(\tau)E(x)^\top,

    or with the weights "identity" :math:`W = \sum_q \lambda_q E(q)(\tilde E(q) -
    E(\tau))^\top` (without :math:`E(\tau)` if there is no noise), :math:`\mathcal V =
    vI` and :math:`F = \sum_q E(\tau)(\gamma E(q) + \tilde E(q))^\top`. The map is
    affine: the gradient is that of the full matrices, summed over the entries set by a
    parameter. See docs/theory.md, "In-context recall".

    Parameters
    ----------
    full : TransformerRisk
        It trains W, 𝒱 and (with noise) F.
    gamma, v : float, optional
        Hold γ or v at this value instead of training it.

    Returns
    -------
    Pullback
        The risk, from zero; its ``risk`` is the full one, and its ``map.inward``
        returns the matrices.

    Raises
    ------
    ValueError
        The full risk trains other matrices, or a parameter to be held does not exist.

    Examples
    --------
    >>> import icl_theory as icl
    >>> full = icl.recall.TransformerRisk(icl.recall.RecallTask(V=8, triggers=2, outputs=3, H=9))
    >>> icl.recall.reparameterised(full).initial
    array([0., 0.])
    """
    instance("full", full, TransformerRisk, "a TransformerRisk")
    task = full.task
    softmax = full.attention == "softmax"
    noisy = bool(task.alpha)
    d = 2 * task.V
    wanted = ("attention", "value", "feed_forward") if noisy else ("attention", "value")
    if full.trained != wanted:
        raise argument_error(
            "full", full.trained, "a TransformerRisk that trains " + ", ".join(wanted)
        )
    for name, value, there in (("gamma", gamma, noisy), ("v", v, softmax)):
        if value is not None and not there:
            raise argument_error(
                name,
                value,
                "left out if alpha = 0"
                if name == "gamma"
                else "left out unless softmax",
            )
    whole = full.weights == "identity"
    fixed = gates(task, full.weights, 0.0 if gamma is None else signed("gamma", gamma))
    scale = 1.0 if not softmax else 0.0 if v is None else signed("v", v)
    base = [np.zeros((d, d)), scale * fixed["value"], fixed["feed_forward"]][
        : len(wanted)
    ]

    # what λ, v and γ add to each matrix; those that are held, or do not exist, have no
    # column
    rows = task.triggers * d
    order = np.arange(task.Q)
    by_strength = csc_array(
        (np.ones(task.Q), (rows + task.V + task.triggers, order)), (d * d, task.Q)
    )
    if whole and noisy:
        by_strength -= csc_array(
            (np.ones(task.Q), (rows + task.noise_word, order)), (d * d, task.Q)
        )
    # where γ is 0, or held
    by_gamma = gates(task, full.weights, 1.0)["feed_forward"] - fixed["feed_forward"]
    by_value = fixed["value"].reshape(-1, 1)
    by_gamma = by_gamma.reshape(-1, 1)
    parts = [
        by_strength,
        by_value[:, : int(softmax and v is None)],
        by_gamma[:, : int(noisy and gamma is None)],
    ]
    parts = parts[: len(wanted)]
    sizes = tuple(part.shape[1] for part in parts if part.shape[1])
    return Pullback(
        full, Affine(np.concatenate(base, axis=None), block_diag(parts, "csc"), sizes)
    )
