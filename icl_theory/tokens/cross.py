r"""The mean product of two softmax averages with weights of their own, exactly, as a double integral.

Two heads average the same tokens with the weights :math:`w` and :math:`w'`. With
:math:`y_u = s w_u`, :math:`y'_u = t w'_u`, :math:`G = \sum_u \pi_u e^{-y_u - y'_u}` and
the notation of `icl_theory.tokens.square`,

.. math:: E\Bigl[\frac{\sum w e}{\sum w} \cdot \frac{\sum w' e}{\sum w'}\Bigr] =
\int_0^\infty\!\!\int_0^\infty
    \Bigl[\sum_{\kappa\lambda} \partial_{G_\kappa}\partial_{G_\lambda} P\; b_\kappa^\top C b'_\lambda
    + \sum_\kappa \partial_{G_\kappa} P \sum_{u \in \kappa} b_u y'_u E|e_u|^2\Bigr]\,\frac{ds}{s}\frac{dt}{t}.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from icl_theory._validate import Array
from icl_theory.tokens.square import (
    LOG_LATEST,
    Count,
    balanced,
    capped,
    is_kept,
    log_mean,
    mixed,
    summed,
    trapezoid,
)


def product(
    first: Array,
    second: Array,
    probs: Array,
    errors: Array,
    own: Array,
    counts: Sequence[Count],
    step: float = 0.22,
) -> tuple[float, Array, Array]:
    """Return the mean product of two averages, and its gradients in the scores of both heads, (C,) each.

    The ``errors`` of the nodes are (C, D), and ``own`` their mean squares with what is
    spread within them, (C,). The ``step`` in ln s and ln t is exact to rounding unless
    given.
    """
    both = [capped(scores[:, None]) for scores in (first, second)]
    rules = [trapezoid(log_w, counts, step) for log_w in both]
    y, z = (
        np.exp(np.minimum(log_w + rule.log_s, LOG_LATEST))
        for log_w, rule in zip(both, rules, strict=True)
    )
    # every sum over the nodes is one of products of a function of s and a function of
    # t: a product of matrices
    down = np.expm1(-y)
    across = np.expm1(-z)
    p = probs[:, None]
    decay_y = np.exp(-y) * is_kept(y)
    decay_z = np.exp(-z) * is_kept(z)
    x0 = p * decay_y
    x1 = p * y * decay_y
    z0 = decay_z
    z1 = z * decay_z
    x_slope = x1 * (1.0 - y)
    z_slope = z1 * (1.0 - z)
    means = list[tuple[Array, Array]]()
    single = list[Array]()
    kinds = range(len(counts))
    drawn: tuple[list[Array], list[Array]] = ([], [])
    for count in counts:
        rows = count.rows
        gone = p[rows] * down[rows]
        near_one = (
            gone.sum(axis=0)[:, None]
            + (p[rows] * across[rows]).sum(axis=0)
            + gone.T @ across[rows]
        )
        total = x0[rows].T @ z0[rows]
        means.append((total, log_mean(total, near_one)))
        single.append((own[rows, None] * x1[rows]).T @ z1[rows])
        for side, (left, right) in enumerate(((x1, z0), (x0, z1))):
            drawn[side].append(
                (errors[rows].T[:, :, None] * left[rows]).swapaxes(1, 2) @ right[rows]
            )
    weights = mixed(
        counts, means, np.multiply.outer(rules[0].weights, rules[1].weights)
    )
    pairs = [
        [np.einsum("dst,dst->st", drawn[0][k], drawn[1][m]) for m in kinds]
        for k in kinds
    ]
    parts = []
    for k, count in enumerate(counts):
        rows = count.rows
        pull = [
            sum(
                (weights(k, m) * side[m] for m in kinds[1:]),
                start=weights(k, 0) * side[0],
            )
            for side in drawn
        ]
        fall = summed(weights, single, pairs, k)
        e = errors[rows]
        for (s0, s1), (t0, t1) in (
            ((-x1, x_slope), (z0, z1)),
            ((x0, x1), (-z1, z_slope)),
        ):  # by each head's scores
            parts.append(
                (
                    np.einsum("ud,du->u", e, _contracted(s0[rows], pull[0], t1[rows])),
                    np.einsum("ud,du->u", e, _contracted(s1[rows], pull[1], t0[rows])),
                    own[rows] * _contracted(s1[rows], weights(k), t1[rows]),
                    _contracted(s0[rows], fall, t0[rows]),
                )
            )
    by_first, by_second = (
        balanced(
            *(np.concatenate(term)[None] for term in zip(*parts[head::2], strict=True))
        )[0]
        for head in (0, 1)
    )
    return float(summed(weights, single, pairs).sum()), by_first, by_second


def _contracted(left: Array, matrix: Array, right: Array) -> Array:
    """Sum x_us M_st z_ut over s and t, (..., U)."""
    return np.asarray(np.einsum("...ut,ut->...u", left @ matrix, right))
