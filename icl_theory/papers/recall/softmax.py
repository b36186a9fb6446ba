"""Softmax attention at finite H, exactly: the mean over all sentences, grouped by what the attention sees.

Given the numbers of bigrams of the trigger with its output and with noise, the
denominator of the attention is known, and only the counts of the other words are
random: they are multinomial, and the loss against them is
`icl_theory.tokens.labels.shared_log_loss`. See docs/theory.md, "Softmax
attention at finite H".
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from icl_theory._validate import Array
from icl_theory.papers.recall.divergence import divergence
from icl_theory.papers.recall.task import RecallTask, Words
from icl_theory.tokens.labels import shared_log_loss

RARE = 1e-30  # probabilities below it are left out


class Cell(NamedTuple):
    """Sentences with one denominator Z = near e^λ + far, in A kinds; arrays are (A,)."""

    group: int  # index of the λ
    near: int
    far: int
    heads: int  # how often the trigger is attended to
    n: int  # words that fill the sentence around the bigrams
    c: Array  # bigrams with the output
    c_tau: Array  # bigrams with noise
    own: Array  # outputs among the n words
    free: Words  # of the n words, those that are neither the output nor noted for noise
    passed: Array  # of the n words, those that may be outputs
    weight: Array  # probability


class Fillers(NamedTuple):
    """Numbers of words, other than y, that fill a sentence."""

    loud: int  # with logits β n_x
    silent: int  # with the logit 0
    noted: int  # that feed the noise logit


def fillers(task: RecallTask, weights: str) -> Fillers:
    """Return the kinds of words that fill the sentences of a task."""
    if task.law == "planted":
        return Fillers(task.V - task.Q - 2, 0, 0)
    if weights == "identity":
        return Fillers(task.V - 2, 0, 0)
    loud = task.V - task.Q - 2
    return Fillers(loud, 0, task.Q) if task.alpha else Fillers(loud, task.Q, 0)


def cells(task: RecallTask, weights: str, groups: int) -> list[Cell]:
    """Return the sentences of a task, except those of a probability below `RARE`, grouped by denominator."""
    from scipy.special import gammaln, xlogy

    kinds = fillers(task, weights)
    found = []
    total = 1 + sum(kinds)
    # -E(τ) removes (q, τ) from the scores
    cancelled = weights == "identity" and task.alpha > 0
    for group, law in enumerate(task.counts[:groups]):
        share = 1.0 if groups == 1 else float(task.probs[group])
        c, c_tau = np.nonzero(law.pmf)
        near = c if cancelled else c + c_tau
        attended = task.H - 1 if weights == "projection" else task.H
        for key in sorted(set(zip(near.tolist(), (c + c_tau).tolist(), strict=True))):
            rows = np.flatnonzero((near == key[0]) & (c + c_tau == key[1]))
            n = task.H - 1 - 2 * key[1]
            row, own, noted = (
                each.ravel()
                for each in np.indices((len(rows), n + 1, n + 1 if kinds.noted else 1))
            )
            free = n - own - noted
            real = free >= 0
            row = row[real]
            own = own[real]
            noted = noted[real]
            free = free[real]
            log = (
                gammaln(n + 1)
                - gammaln(own + 1)
                - gammaln(noted + 1)
                - gammaln(free + 1)
                - n * math.log(total)
            )
            log = (
                log + xlogy(noted, kinds.noted) + xlogy(free, kinds.loud + kinds.silent)
            )
            weight = share * law.pmf[c, c_tau][rows[row]] * np.exp(log)
            often = weight >= min(RARE, weight.max())
            row = row[often]
            own = own[often]
            noted = noted[often]
            free = free[often]
            heads = key[1] + 1 if weights == "identity" else 0
            found.append(
                Cell(
                    group,
                    key[0],
                    attended - key[0],
                    heads,
                    n,
                    c[rows[row]].astype(float),
                    c_tau[rows[row]].astype(float),
                    own.astype(float),
                    free,
                    (n - noted).astype(float),
                    weight[often],
                )
            )
    return found


class Slopes(NamedTuple):
    """Excess over the entropy of the noise, nats, its derivatives by λ, v and γ, and the attention on each y."""

    excess: float
    by_strength: Array
    by_value: float
    by_gamma: float
    attention: Array


def excess(
    found: list[Cell],
    kinds: Fillers,
    C: float,
    kappa: int,
    alpha: float,
    strength: Array,
    v: float,
    gamma: float,
) -> Slopes:
    r"""Mean over all sentences; infinite if a logit may exceed 1e13, where nodes in ln s coincide in float64.

    With A = e^λ/Z and B = 1/Z the logits are v(cA + n_y B) for y, v n_x B for the other
    words that fill, γ(1 + κ v h B) + v(a A + b B) for noise, and v h B for a trigger
    that is attended to h times; C words have the logit 0. The weights "projection" have
    κ = -1; then a = c, and b counts the words that may be outputs.
    """
    value = by_value = by_gamma = 0.0
    by_strength = np.zeros(len(strength))
    attention = np.zeros(len(strength))
    if abs(v) + abs(gamma if alpha else 0.0) * (1.0 + max(kappa, 0) * abs(v)) > 1e13:
        return Slopes(math.inf, by_strength, 0.0, 0.0, attention)
    shares = np.bincount(
        [cell.group for cell in found], [cell.weight.sum() for cell in found]
    )
    for cell in found:
        shifted = float(strength[cell.group]) + math.log(cell.near) - math.log(cell.far)
        on = math.exp(-np.logaddexp(0.0, -shifted))
        off = math.exp(-np.logaddexp(0.0, shifted))
        A = on / cell.near
        B = off / cell.far
        A_slope = A * off
        B_slope = -B * on
        beta = v * B
        w = cell.weight
        top = v * (cell.c * A + cell.own * B)
        head = beta * cell.heads
        rest = (
            float(np.logaddexp(math.log(C) if C else -math.inf, head))
            if cell.heads
            else math.log(C)
        )
        far = np.zeros_like(top)
        if alpha:
            near_noise, far_noise = (
                (cell.c, cell.passed)
                if kappa < 0
                else (kappa * cell.c, (kappa + 1) * cell.c_tau)
            )
            loud = 1.0 + max(kappa, 0) * head
            noise = gamma * loud + v * (near_noise * A + far_noise * B)
            far = np.exp(-np.logaddexp(0.0, top - noise))
            value += float(w @ divergence(alpha, noise - top))
        against = shared_log_loss(
            np.logaddexp(top, noise) if alpha else top,
            beta,
            rest,
            cell.free,
            kinds.loud,
            kinds.silent,
            density=max(cell.n, 1) / (1.0 + sum(kinds)),
        )
        surplus = far - alpha
        value += float(w @ against.value)
        up = w * (against.by_top * (1.0 - far) - surplus)
        slope_A = float(up @ cell.c)
        slope_B = float(up @ cell.own + w @ against.by_beta)
        slope_B += float(w @ against.by_rest) * cell.heads * math.exp(head - rest)
        if alpha:
            out = w * (against.by_top * far + surplus)
            slope_A += float(out @ near_noise)
            slope_B += float(out @ far_noise) + gamma * max(
                kappa, 0
            ) * cell.heads * float(out.sum())
            by_gamma += loud * float(out.sum())
        by_value += slope_A * A + slope_B * B
        by_strength[cell.group] += v * (slope_A * A_slope + slope_B * B_slope)
        attention[cell.group] += float(w @ cell.c) * A / shares[cell.group]
    return Slopes(value, by_strength, by_value, by_gamma, attention)
