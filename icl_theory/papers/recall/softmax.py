r"""Softmax attention at finite H, exactly: the mean over all sentences of a task.

Sentences are grouped into cells by the denominator of the attention. This denominator
is known once the numbers of bigrams of the trigger with its output and with noise are
given. Only the counts of the other words are then random: they are multinomial, and the
loss against these words is `icl_theory.tokens.labels.shared_log_loss`. `cells` lists
the groups once for a task; `excess` evaluates the loss and its gradient on them at
given parameters. See docs/theory.md, "Softmax attention at finite H".
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from icl_theory._validate import Array
from icl_theory.papers.recall.counts import Counts
from icl_theory.papers.recall.divergence import divergence
from icl_theory.papers.recall.task import RecallTask, Words
from icl_theory.tokens.labels import LogLoss, shared_log_loss

RARE = 1e-30  # sentences of a smaller probability are left out
LARGEST_LOGIT = 1e13  # beyond it, nodes in ln s coincide in float64


class Cell(NamedTuple):
    """Sentences with one denominator Z = near e^λ + far; arrays are (kinds,)."""

    group: int  # index of the λ
    near: int  # attended words with the score λ
    far: int  # attended words with the score 0
    heads: int  # how often the trigger is attended to
    n: int  # words that fill the sentence around the bigrams
    c: Array  # bigrams with the output
    c_tau: Array  # bigrams with noise
    own: Array  # outputs among the n words
    free: Words  # of the n words, those that are neither y nor noted
    passed: Array  # of the n words, those that may be outputs
    weight: Array  # probability


class Fillers(NamedTuple):
    """Numbers of words, other than y, that fill a sentence."""

    loud: int  # with logits β n_x
    silent: int  # with the logit 0
    noted: int  # triggers, if the logit of noise depends on their number


def fillers(task: RecallTask, weights: str) -> Fillers:
    """Return the kinds of words that fill the sentences of a task."""
    if task.law == "planted":
        return Fillers(task.V - task.Q - 2, 0, 0)
    if weights == "identity":
        return Fillers(task.V - 2, 0, 0)
    loud = task.V - task.Q - 2
    if task.alpha:
        return Fillers(loud, 0, task.Q)
    return Fillers(loud, task.Q, 0)


def cells(task: RecallTask, weights: str, groups: int) -> list[Cell]:
    """Return the sentences of a task, grouped by the denominator of the attention.

    Sentences of a probability below `RARE` are left out.
    """
    kinds = fillers(task, weights)
    grouped = []
    for group, law in enumerate(task.counts[:groups]):
        share = 1.0 if groups == 1 else float(task.probs[group])
        grouped += _cells_of_group(task, weights, kinds, group, law, share)
    return grouped


def _cells_of_group(
    task: RecallTask,
    weights: str,
    kinds: Fillers,
    group: int,
    law: Counts,
    share: float,
) -> list[Cell]:
    """Cells of the sentences with one λ, which have the probability ``share``."""
    c, c_tau = np.nonzero(law.pmf)
    blocks = c + c_tau
    # With weights "identity" and noise, W contains -E(τ), which cancels the score of
    # (q, τ): only the bigrams with the output then have the score λ.
    noise_cancelled = weights == "identity" and task.alpha > 0
    near = c if noise_cancelled else blocks
    attended = task.H - 1 if weights == "projection" else task.H
    denominators = sorted(set(zip(near.tolist(), blocks.tolist(), strict=True)))
    grouped = []
    for n_near, n_blocks in denominators:
        rows = np.flatnonzero((near == n_near) & (blocks == n_blocks))
        n = task.H - 1 - 2 * n_blocks
        row, split, chance = _background(n, len(rows), kinds)
        row = rows[row]
        weight = share * law.pmf[c, c_tau][row] * chance
        kept = weight >= min(RARE, weight.max())
        row = row[kept]
        heads = n_blocks + 1 if weights == "identity" else 0
        grouped.append(
            Cell(
                group=group,
                near=n_near,
                far=attended - n_near,
                heads=heads,
                n=n,
                c=c[row].astype(float),
                c_tau=c_tau[row].astype(float),
                own=split.own[kept].astype(float),
                free=split.free[kept],
                passed=(n - split.noted[kept]).astype(float),
                weight=weight[kept],
            )
        )
    return grouped


class _Split(NamedTuple):
    """How many of the n words around the bigrams are of which kind."""

    own: Words  # the output
    noted: Words  # triggers, if the logit of noise depends on their number
    free: Words  # all others


def _background(n: int, rows: int, kinds: Fillers) -> tuple[Words, _Split, Array]:
    """All splits of n words for each of the rows: row, split and probability."""
    from scipy.special import gammaln, xlogy

    most_noted = n if kinds.noted else 0
    lattice = np.indices((rows, n + 1, most_noted + 1))
    row, own, noted = lattice.reshape(3, -1)
    free = n - own - noted
    possible = free >= 0
    row = row[possible]
    own = own[possible]
    noted = noted[possible]
    free = free[possible]
    # The multinomial coefficient, times the number of words of each kind to the power
    # of its count, over the number of all words to the power of n.
    log_chance = (
        gammaln(n + 1)
        - gammaln(own + 1)
        - gammaln(noted + 1)
        - gammaln(free + 1)
        - n * math.log(1 + sum(kinds))
    )
    log_chance = (
        log_chance + xlogy(noted, kinds.noted) + xlogy(free, kinds.loud + kinds.silent)
    )
    return row, _Split(own, noted, free), np.exp(log_chance)


class Slopes(NamedTuple):
    """Excess over the entropy of the noise, nats, its slopes, and the attention."""

    excess: float
    by_strength: Array  # derivative with respect to λ, of the shape of λ
    by_value: float  # derivative with respect to v
    by_gamma: float
    attention: Array  # mean attention on each y


def excess(
    grouped: list[Cell],
    kinds: Fillers,
    C: float,
    kappa: int,
    alpha: float,
    strength: Array,
    v: float,
    gamma: float,
) -> Slopes:
    r"""Mean over all sentences; infinite if a logit may exceed `LARGEST_LOGIT`.

    With A = e^λ/Z and B = 1/Z the logits are v(cA + n_y B) for y, v n_x B for the other
    words that fill, γ(1 + κ v h B) + v(a A + b B) for noise, and v h B for a trigger
    that is attended to h times; C words have the logit 0. The weights "projection" have
    κ = -1; then a = c, and b counts the words that may be outputs.
    """
    noise_gain = 1.0 + max(kappa, 0) * abs(v)
    largest_logit = abs(v) + abs(gamma if alpha else 0.0) * noise_gain
    if largest_logit > LARGEST_LOGIT:
        zeros = np.zeros(len(strength))
        return Slopes(math.inf, zeros, 0.0, 0.0, zeros)
    groups = [cell.group for cell in grouped]
    weights = [cell.weight.sum() for cell in grouped]
    shares = np.bincount(groups, weights).astype(np.float64)
    mean = _MeanOverSentences(kinds, C, kappa, alpha, strength, v, gamma, shares)
    for cell in grouped:
        mean.add(cell)
    return Slopes(
        mean.value, mean.by_strength, mean.by_value, mean.by_gamma, mean.attention
    )


class _Logits(NamedTuple):
    """Logits of the words of a cell whose logits do not depend on the random counts."""

    top: Array  # of y
    head: float  # v h B, of a trigger that is attended to
    rest: float  # log-sum over the trigger and the C words with the logit 0


class _Noise(NamedTuple):
    """The logit γ gain + v(a A + b B) of the noise word, see `excess`."""

    gain: float
    a: Array
    b: Array
    logit: Array


class _MeanOverSentences:
    """Sums of the excess and of its derivatives over the cells added so far."""

    def __init__(
        self,
        kinds: Fillers,
        C: float,
        kappa: int,
        alpha: float,
        strength: Array,
        v: float,
        gamma: float,
        shares: Array,
    ) -> None:
        self.kinds = kinds
        self.C = C
        self.kappa = kappa
        self.alpha = alpha
        self.strength = strength
        self.v = v
        self.gamma = gamma
        self.shares = shares
        self.value = 0.0
        self.by_strength = np.zeros(len(strength))
        self.by_value = 0.0
        self.by_gamma = 0.0
        self.attention = np.zeros(len(strength))

    def add(self, cell: Cell) -> None:
        """Add the sentences of a cell."""
        # A and B, without overflow: they are a sigmoid of the log of near e^λ/far and
        # of its opposite, over the number of words that share it.
        log_ratio = float(self.strength[cell.group])
        log_ratio = log_ratio + math.log(cell.near) - math.log(cell.far)
        near_share = math.exp(-np.logaddexp(0.0, -log_ratio))
        far_share = math.exp(-np.logaddexp(0.0, log_ratio))
        A = near_share / cell.near
        B = far_share / cell.far
        A_slope = A * far_share
        B_slope = -B * near_share

        logits = self._logits(cell, A, B)
        if self.alpha:
            slope_A, slope_B = self._add_noisy(cell, logits, A, B)
        else:
            slope_A, slope_B = self._add_noiseless(cell, logits, B)
        self.by_value += slope_A * A + slope_B * B
        self.by_strength[cell.group] += self.v * (slope_A * A_slope + slope_B * B_slope)
        on_output = float(cell.weight @ cell.c) * A
        self.attention[cell.group] += on_output / self.shares[cell.group]

    def _logits(self, cell: Cell, A: float, B: float) -> _Logits:
        """Return the logits in a cell, for A = e^λ/Z and B = 1/Z."""
        top = self.v * (cell.c * A + cell.own * B)
        head = self.v * B * cell.heads
        if not cell.heads:
            return _Logits(top, head, math.log(self.C))
        log_C = math.log(self.C) if self.C else -math.inf
        return _Logits(top, head, float(np.logaddexp(log_C, head)))

    def _add_noiseless(
        self, cell: Cell, logits: _Logits, B: float
    ) -> tuple[float, float]:
        """Add the loss of a cell; return its derivatives by A and B, divided by v."""
        loss = self._loss_against_fillers(cell, logits, logits.top, B)
        self.value += float(cell.weight @ loss.value)
        by_top = cell.weight * loss.by_top
        slope_A = float(by_top @ cell.c)
        slope_B = float(by_top @ cell.own + cell.weight @ loss.by_beta)
        return slope_A, slope_B + self._slope_of_trigger(cell, logits, loss)

    def _add_noisy(
        self, cell: Cell, logits: _Logits, A: float, B: float
    ) -> tuple[float, float]:
        """Add the loss of a cell; return its derivatives by A and B, divided by v.

        The loss is the divergence of noise against y, plus the loss of both of them
        together against all other words.
        """
        noise = self._noise(cell, logits, A, B)
        self.value += float(
            cell.weight @ divergence(self.alpha, noise.logit - logits.top)
        )
        noise_odds = logits.top - noise.logit
        noise_share = np.exp(-np.logaddexp(0.0, noise_odds))
        surplus = noise_share - self.alpha
        both = np.logaddexp(logits.top, noise.logit)
        loss = self._loss_against_fillers(cell, logits, both, B)
        self.value += float(cell.weight @ loss.value)

        by_top = cell.weight * (loss.by_top * (1.0 - noise_share) - surplus)
        slope_A = float(by_top @ cell.c)
        slope_B = float(by_top @ cell.own + cell.weight @ loss.by_beta)
        slope_B += self._slope_of_trigger(cell, logits, loss)

        by_noise = cell.weight * (loss.by_top * noise_share + surplus)
        total = float(by_noise.sum())
        slope_A += float(by_noise @ noise.a)
        gain_by_B = self.gamma * max(self.kappa, 0) * cell.heads
        slope_B += float(by_noise @ noise.b) + gain_by_B * total
        self.by_gamma += noise.gain * total
        return slope_A, slope_B

    def _noise(self, cell: Cell, logits: _Logits, A: float, B: float) -> _Noise:
        if self.kappa < 0:
            a = cell.c
            b = cell.passed
        else:
            a = self.kappa * cell.c
            b = (self.kappa + 1) * cell.c_tau
        gain = 1.0 + max(self.kappa, 0) * logits.head
        logit = self.gamma * gain + self.v * (a * A + b * B)
        return _Noise(gain, a, b, logit)

    def _loss_against_fillers(
        self, cell: Cell, logits: _Logits, top: Array, B: float
    ) -> LogLoss:
        """Return the loss of a logit against all words but y and noise."""
        # The n words are spread over y and all kinds of fillers. The density sets the
        # nodes of the integral and must be positive.
        words = 1 + self.kinds.loud + self.kinds.silent + self.kinds.noted
        return shared_log_loss(
            top,
            self.v * B,
            logits.rest,
            cell.free,
            self.kinds.loud,
            self.kinds.silent,
            density=max(cell.n, 1) / words,
        )

    @staticmethod
    def _slope_of_trigger(cell: Cell, logits: _Logits, loss: LogLoss) -> float:
        """Return the derivative by B, over v, through the logit of the trigger."""
        share_of_trigger = math.exp(logits.head - logits.rest)
        return float(cell.weight @ loss.by_rest) * cell.heads * share_of_trigger
