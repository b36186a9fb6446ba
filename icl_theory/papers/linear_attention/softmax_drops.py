r"""Drops of the loss of softmax heads, which take the place of linear heads.

The query x scores the tokens, and a head averages the labels y_n with the softmax of
the scores as weights:

.. math:: \hat y = \sum_{h=1}^H v_h\sum_{n=1}^N p_{hn} y_n, \qquad
    p_{hn} \propto e^{x_n^\top A_h x} .

This module has no formula for the mean loss of several such heads over all prompts. The
loss is therefore a mean over M prompts that are drawn once. Labels are w·x_n with a
standard normal task w, and the mean over w is exact:

.. math:: \mathcal L = \frac12\,\frac1M\sum_{m=1}^M
    \Bigl|x - \sum_h v_h T_h\Bigr|^2, \qquad T_h = \sum_n p_{hn}x_n .

Shapes: M prompts of N tokens in d dimensions, H heads.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.risk import Risk, WithStart
from icl_theory.statements.claim import Claim, row
from icl_theory.statements.numbers import listed

# At the ends of a drop the loss falls this many times more slowly than within it.
SLOWER = 10.0
# A drop lowers the loss by at least this share of the first loss. Smaller falls are not
# counted: right after the start, the values of the heads adapt to the mean of the
# prompts.
LEAST_DROP = 0.02


class PromptSet(NamedTuple):
    """M prompts without their tasks."""

    tokens: Array  # (M, N, d)
    query: Array  # (M, d)

    @classmethod
    def draw(cls, eigenvalues: Array, N: int, M: int, seed: int) -> PromptSet:
        """Draw tokens and queries with a diagonal covariance of these eigenvalues."""
        rng = np.random.default_rng(seed)
        deviations = np.sqrt(eigenvalues)
        d = len(eigenvalues)
        return cls(
            tokens=rng.standard_normal((M, N, d)) * deviations,
            query=rng.standard_normal((M, d)) * deviations,
        )


class _LossAndGradients(NamedTuple):
    """The loss of H heads, and its gradients."""

    loss: float
    values: Array  # with respect to the values v_h, (H,)
    matrices: Array  # with respect to the matrices A_h, (H, d, d)


def _evaluate(prompts: PromptSet, values: Array, matrices: Array) -> _LossAndGradients:
    """Return the loss and its gradients, for values (H,) and matrices (H, d, d)."""
    # In the subscripts of einsum m is the prompt, n the token, h the head, and d, i and
    # j are entries of vectors.
    tokens, query = prompts
    M = len(tokens)
    # The vectors u_h = A_h x, whose products with the tokens are the scores, (M, H, d).
    directions = np.einsum("hij,mj->mhi", matrices, query)
    scores = directions @ tokens.swapaxes(1, 2)
    # The largest score is subtracted, which does not change the softmax, so that no
    # exponential overflows.
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    averages = weights @ tokens  # T_h, (M, H, d)
    residuals = query - np.einsum("h,mhd->md", values, averages)  # x - Σ_h v_h T_h
    # For a head, dT/du = Σ p_n x_n (x_n - T)ᵀ, a (d, d) matrix for each prompt. It is
    # not computed: the residual r is multiplied first with the tokens and with T, and
    # the product of r and dT/du is Σ p_n (r·x_n - r·T) x_nᵀ.
    along_tokens = np.einsum("mnd,md->mn", tokens, residuals)
    along_averages = np.einsum("mhd,md->mh", averages, residuals)
    # The numbers p_n (r·x_n - r·T), (M, H, N), are the slopes of r·T in the scores.
    score_slopes = weights * (along_tokens[:, None, :] - along_averages[:, :, None])
    direction_gradients = -values[:, None] * (score_slopes @ tokens) / M
    return _LossAndGradients(
        loss=0.5 * float(np.sum(residuals**2)) / M,
        values=-along_averages.mean(axis=0),
        matrices=np.einsum("mhi,mj->hij", direction_gradients, query),
    )


@dataclass(frozen=True, eq=False)
class MergedSoftmax(WithStart, Risk):
    """The loss of heads whose keys and queries are merged into one matrix.

    The parameters of a head are its value and its matrix A row by row, (H, 1 + d²) for
    all heads.
    """

    start: Array
    prompts: PromptSet

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient, (H, 1 + d²)."""
        H = len(params)
        d = self.prompts.query.shape[1]
        values = params[:, 0]
        matrices = params[:, 1:].reshape(H, d, d)
        result = _evaluate(self.prompts, values, matrices)
        gradient = np.empty_like(params)
        gradient[:, 0] = result.values
        gradient[:, 1:] = result.matrices.reshape(H, d * d)
        return result.loss, gradient


@dataclass(frozen=True, eq=False)
class SeparateSoftmax(WithStart, Risk):
    """The loss of heads with one key k and one query q each, A = kqᵀ.

    The parameters of a head are its value, its key and its query, (H, 1 + 2d) for all
    heads.
    """

    start: Array
    prompts: PromptSet

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient, (H, 1 + 2d)."""
        d = self.prompts.query.shape[1]
        values, keys, queries = np.split(params, [1, 1 + d], axis=1)
        matrices = keys[:, :, None] * queries[:, None, :]  # kqᵀ for each head
        result = _evaluate(self.prompts, values[:, 0], matrices)
        # With the gradient G with respect to A = kqᵀ, the gradients with respect to k
        # and q are Gq and Gᵀk.
        gradient = np.empty_like(params)
        gradient[:, 0] = result.values
        gradient[:, 1 : 1 + d] = np.einsum("hij,hj->hi", result.matrices, queries)
        gradient[:, 1 + d :] = np.einsum("hij,hi->hj", result.matrices, keys)
        return result.loss, gradient


class Descent(NamedTuple):
    """A run of gradient descent, with the loss of every step."""

    losses: Array  # before each step, (steps,)
    end: Array  # the parameters after the last step


def descent(risk: Risk, eta: float, steps: int) -> Descent:
    """Take steps of gradient descent, and save the loss before each of them.

    A run of `icl_theory.descend` saves about a hundred states, and a short drop late in
    the run would fall between two of them.
    """
    params = risk.initial
    losses = np.empty(steps)
    for t in range(steps):
        loss, gradient = risk.evaluate(params)
        losses[t] = loss
        params = params - eta * gradient
    return Descent(losses, params)


def count_of_drops(losses: Array) -> int:
    """Return how many times the loss drops from a plateau.

    A drop begins when the loss falls `SLOWER` times as fast as in the slowest step
    since the last drop. It ends when the loss falls `SLOWER` times more slowly than in
    the fastest step of the drop, or with the run. Drops below `LEAST_DROP` do not
    count.
    """
    least_drop = LEAST_DROP * losses[0]
    drops = 0
    is_dropping = False
    # The loss at the slowest step since the last drop. The next drop is measured from
    # this loss.
    plateau_loss = losses[0]
    # The decreases of the loss in the slowest step since the last drop, and in the
    # fastest step of a drop. The second number is set when a drop begins.
    slowest = losses[0] - losses[1]
    fastest = slowest
    for loss, next_loss in itertools.pairwise(losses):
        speed = loss - next_loss
        if is_dropping:
            fastest = max(fastest, speed)
            if speed < fastest / SLOWER:
                drops += int(plateau_loss - loss > least_drop)
                is_dropping = False
                slowest = speed
                plateau_loss = loss
        elif speed > SLOWER * slowest:
            is_dropping = True
            fastest = speed
        elif speed < slowest:
            slowest = speed
            plateau_loss = loss
    if is_dropping:
        drops += int(plateau_loss - losses[-1] > least_drop)
    return drops


@row(
    "linear attention: softmax",
    "Zhang, Singh, Latham, Saxe 2025, introduction",
    bound="1; > 1",
)
def softmax_drops(quick: bool) -> Claim:
    """in softmax attention, too, the loss has a single drop with keys and queries
    merged, and several drops with separate ones of rank one
    """
    d = 2 if quick else 4
    M = 100 if quick else 500  # prompts of a set
    draws = 1 if quick else 3  # sets of prompts
    start = 0.03 if quick else 0.01  # standard deviation of the parameters at step 0
    # The last drop of separate heads ends before this step.
    steps = 700 if quick else 4000
    eta = 0.5 if quick else 1.0
    N = 31
    eigenvalues = np.arange(d, 0.0, -1.0)
    eigenvalues /= eigenvalues.sum()
    merged_drops = []
    separate_drops = []
    relative_sums = []
    for seed in range(draws):
        prompts = PromptSet.draw(eigenvalues, N, M, seed)
        # The 1 makes the heads independent of the prompts, whose seed is ``seed``.
        rng = np.random.default_rng((seed, 1))
        # There are H = d heads: a row for each, of a value and a matrix A, or of a
        # value, a key and a query.
        merged_start = start * rng.standard_normal((d, 1 + d * d))
        separate_start = start * rng.standard_normal((d, 1 + 2 * d))
        merged = descent(MergedSoftmax(merged_start, prompts), eta, steps)
        separate = descent(SeparateSoftmax(separate_start, prompts), eta, steps)
        merged_drops.append(count_of_drops(merged.losses))
        separate_drops.append(count_of_drops(separate.losses))
        # How far the values of the heads, in column 0, cancel: |Σ v_h| / Σ |v_h| is 0
        # if they cancel altogether. At scores of zero every head predicts a mean of the
        # labels, times its value. This part of the prediction then vanishes.
        for run in (merged, separate):
            values = run.end[:, 0]
            relative_sums.append(abs(values.sum()) / np.abs(values).sum())
    return Claim.of(
        all(drops == 1 for drops in merged_drops)
        and all(drops > 1 for drops in separate_drops),
        f"d = H = {d}, λ_j = ({d + 1} - j)/{d * (d + 1) // 2}, N = {N}, sets of {M}"
        f" prompts (draws: {draws}), random starts of size {start}, {steps} steps of"
        f" η = {eta:g}",
        f"drops: merged {listed(merged_drops)}; separate {listed(separate_drops)};"
        f" |Σv|/Σ|v| of the heads at the end at most {max(relative_sums):.2f}",
        "holds in our runs on fixed sets of prompts",
    )
