r"""Softmax attention at finite H, exactly: the mean over all sentences of a task.

A sentence has H words, and ends with the trigger q. The bigrams of the trigger are c
pairs (q, y) with its output y, and c_τ pairs (q, τ) with noise τ. Sentences are grouped
into cells by the denominator of the attention, which is known if the numbers of bigrams
are given. Only the counts of the other words are then random: they are multinomial, and
the loss against these words is `icl_theory.tokens.labels.shared_log_loss`. `cells`
lists the cells once for a task; `excess` evaluates the loss and its gradient on them at
given parameters.

The parameters are the strengths λ, the scale v of the values 𝒱, and the log-odds γ of
noise in the feed-forward layer F. F reads κ = 0 or 1 times the output of attention, and
adds to the logit of noise. See docs/theory.md, "Softmax attention at finite H".
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

# Kinds of sentences with a smaller probability are left out. Together they contribute
# less to the mean than its rounding error.
RARE = 1e-30
# `shared_log_loss` integrates over a variable s, with nodes in ln s. For larger logits
# than this the nodes coincide in float64.
LARGEST_LOGIT = 1e13


class Cell(NamedTuple):
    """Sentences with the same denominator of attention, Z = scored e^λ + unscored.

    Sentences of a cell that have the same counts are one kind. Arrays are (kinds,).
    """

    group: int  # index of the λ
    scored: int  # attended words with the score λ
    unscored: int  # attended words with the score 0
    trigger_count: int  # how often the trigger is attended to; 0 if 𝒱 blocks it
    n: int  # words that fill the sentence around the bigrams
    c: Array  # bigrams with the output
    c_tau: Array  # bigrams with noise
    outputs: Array  # how many of the n words are the output y
    remaining: Words  # how many of the n words are neither y nor blocked (`Fillers`)
    # How many of the n words may be outputs. Only the logit of noise depends on this
    # number, and only with the weights "projection".
    passing: Array
    probability: Array


class Fillers(NamedTuple):
    """Numbers of different words, other than y, that may fill a sentence."""

    loud: int  # words that 𝒱 lets through: their logit is v n_x B, see `excess`
    silent: int  # without F, words that 𝒱 blocks: their logit is 0
    # With F, words that 𝒱 blocks and F does not read: τ and the triggers other than q.
    # F reads all other words that fill the sentence, so the logit of noise depends on
    # how often blocked words occur.
    blocked: int

    @property
    def different_words(self) -> int:
        """Number of all different words that may fill a sentence, y among them."""
        return 1 + self.loud + self.silent + self.blocked


def fillers(task: RecallTask, weights: str) -> Fillers:
    """Return how many words of each kind may fill the sentences of a task."""
    # V words without y, τ and the triggers
    other_outputs = task.V - task.Q - 2
    if task.law == "planted":
        # Neither triggers nor τ fill planted sentences.
        return Fillers(loud=other_outputs, silent=0, blocked=0)
    if weights == "identity":
        # All words but q may fill a sentence, and 𝒱 = vI lets them through. `Fillers`
        # does not count y.
        return Fillers(loud=task.V - 2, silent=0, blocked=0)
    # τ and all triggers but q
    not_outputs = task.Q
    if task.alpha:
        return Fillers(loud=other_outputs, silent=0, blocked=not_outputs)
    # Without noise there is no F, so that no logit depends on these words.
    return Fillers(loud=other_outputs, silent=not_outputs, blocked=0)


def cells(task: RecallTask, weights: str, groups: int) -> list[Cell]:
    """Return the sentences of a task, grouped by the denominator of the attention.

    There is one λ for each of the ``groups`` of triggers: either one λ for each trigger
    or one for all. Kinds of sentences with a probability below ``RARE`` are left out.
    """
    filler_numbers = fillers(task, weights)
    cells_of_task = []
    for group, law in enumerate(task.counts[:groups]):
        share = 1.0 if groups == 1 else float(task.probs[group])
        cells_of_task += _cells_of_group(
            task, weights, filler_numbers, group, law, share
        )
    return cells_of_task


def _cells_of_group(
    task: RecallTask,
    weights: str,
    filler_numbers: Fillers,
    group: int,
    law: Counts,
    share: float,
) -> list[Cell]:
    """Return the cells of the sentences with one λ.

    These sentences have the probability ``share``. ``law`` is the law of their counts c
    and c_τ.
    """
    c, c_tau = np.nonzero(law.pmf)  # all possible pairs of counts
    probability_of_pair = law.pmf[c, c_tau]
    bigrams = c + c_tau
    # With weights "identity" and noise, W contains -E(τ), which cancels the score of
    # (q, τ): only the bigrams with the output then have the score λ.
    noise_cancelled = weights == "identity" and task.alpha > 0
    scored = c if noise_cancelled else bigrams
    # The weights "identity" attend to the last word, the trigger, too.
    attends_to_last = weights == "identity"
    attended = task.H if attends_to_last else task.H - 1
    # The numbers of scored words and of bigrams determine the denominator of a cell.
    numbers_of_cells = sorted(set(zip(scored.tolist(), bigrams.tolist(), strict=True)))
    cells_of_group = []
    for n_scored, n_bigrams in numbers_of_cells:
        # Pairs of counts with these numbers, and the n words around their bigrams.
        matching = np.flatnonzero((scored == n_scored) & (bigrams == n_bigrams))
        n = task.H - 1 - 2 * n_bigrams
        splits = _background(n, len(matching), filler_numbers)
        row = matching[splits.row]  # the pair of counts of each split
        probability = share * probability_of_pair[row] * splits.probability
        # The likeliest kind stays even if it is rare, so that no cell is empty.
        is_kept = probability >= min(RARE, probability.max())
        row = row[is_kept]
        cells_of_group.append(
            Cell(
                group=group,
                scored=n_scored,
                unscored=attended - n_scored,
                # With the weights "projection" 𝒱 blocks triggers: they have the logit 0
                # however often they are attended to.
                trigger_count=n_bigrams + 1 if attends_to_last else 0,
                n=n,
                c=c[row].astype(float),
                c_tau=c_tau[row].astype(float),
                outputs=splits.outputs[is_kept].astype(float),
                remaining=splits.remaining[is_kept],
                passing=(n - splits.blocked[is_kept]).astype(float),
                probability=probability[is_kept],
            )
        )
    return cells_of_group


class _Splits(NamedTuple):
    """All S ways to split n words into outputs, blocked words and others; (S,) each.

    A way counts once for each row, a pair of counts c and c_τ of bigrams.
    """

    row: Words  # the row of each split, from 0 on
    outputs: Words  # how many of the n words are the output y
    blocked: Words  # how many are blocked, see `Fillers`
    remaining: Words  # how many are neither
    probability: Array  # of the split


def _background(n: int, rows: int, filler_numbers: Fillers) -> _Splits:
    """Return all splits of the n words around the bigrams, once for each of the rows.

    A row stands for a pair of counts c and c_τ of bigrams.
    """
    from scipy.special import gammaln, xlogy  # slow to load

    # All combinations. Combinations of more than n words are left out below.
    most_blocked = n if filler_numbers.blocked else 0
    lattice = np.indices((rows, n + 1, most_blocked + 1))
    row, outputs, blocked = lattice.reshape(3, -1)
    remaining = n - outputs - blocked
    is_possible = remaining >= 0
    row = row[is_possible]
    outputs = outputs[is_possible]
    blocked = blocked[is_possible]
    remaining = remaining[is_possible]
    # A split has the probability n!/(outputs! blocked! remaining!) × (number of
    # different blocked words)^blocked × (number of different other words)^remaining /
    # (number of all different words)^n. The output is a single word.
    log_probability = (
        gammaln(n + 1)
        - gammaln(outputs + 1)
        - gammaln(blocked + 1)
        - gammaln(remaining + 1)
        - n * math.log(filler_numbers.different_words)
    )
    log_probability = (
        log_probability
        + xlogy(blocked, filler_numbers.blocked)
        + xlogy(remaining, filler_numbers.loud + filler_numbers.silent)
    )
    return _Splits(row, outputs, blocked, remaining, np.exp(log_probability))


class Slopes(NamedTuple):
    """Excess over the entropy of the noise, its derivatives, and the attention."""

    excess: float  # nats
    strength_slope: Array  # derivative with respect to λ, of the shape of λ
    v_slope: float  # derivative with respect to v
    gamma_slope: float  # derivative with respect to γ
    # For each λ, the total attention on y after its trigger, averaged over sentences.
    attention: Array


def excess(
    cells_of_task: list[Cell],
    filler_numbers: Fillers,
    C: float,
    kappa: int,
    alpha: float,
    strength: Array,
    v: float,
    gamma: float,
) -> Slopes:
    r"""Return the mean over all sentences of the loss minus the entropy of the noise.

    The derivatives of this excess and the attention are returned, too. ``strength`` has
    the λ of each trigger, or the single λ, and ``alpha`` is the probability of noise.

    Let A = e^λ/Z and B = 1/Z, with the denominator Z of the attention, and let the word
    x occur n_x times among the words that fill the sentence around the bigrams. The
    logits are

    - v(cA + n_y B) for y, and v n_x B for any other word x that fills,
    - γ(1 + κ v h B) + v(a A + b B) for noise,
    - v h B for the trigger q, if it is attended to h > 0 times,
    - 0 for the other words, of which there are C.

    With the weights "identity", F adds κv times the attention on the words that follow
    the trigger, cA + c_τ B, to the logit of noise. 𝒱 lets noise through, which adds
    v c_τ B. So a = κc and b = (κ + 1)c_τ. With the weights "projection", F adds to
    this logit v times the attention on all words that may be outputs. So a = c, and b
    is the number of such words among the n words that fill the sentence. For these
    weights the argument ``kappa`` is -1: the formulas
    then hold with κ = 1 but without the term γκ v h B, because 𝒱 blocks the trigger.

    The excess is infinite if a logit may exceed ``LARGEST_LOGIT``.
    """
    # The attention weights sum to 1, so that |v| bounds the parts v(...) of all logits.
    # `largest_gain` bounds the factor 1 + κ v h B of γ.
    largest_gain = 1.0 + max(kappa, 0) * abs(v)
    largest_logit = abs(v) + abs(gamma if alpha else 0.0) * largest_gain
    if largest_logit > LARGEST_LOGIT:
        zeros = np.zeros(len(strength))
        return Slopes(
            excess=math.inf,
            strength_slope=zeros,
            v_slope=0.0,
            gamma_slope=0.0,
            attention=zeros,
        )
    # The total probability of the sentences of each λ.
    groups = [cell.group for cell in cells_of_task]
    probabilities = [cell.probability.sum() for cell in cells_of_task]
    shares = np.bincount(groups, probabilities).astype(np.float64)
    mean = _MeanOverSentences(
        filler_numbers=filler_numbers,
        C=C,
        kappa=kappa,
        alpha=alpha,
        strength=strength,
        v=v,
        gamma=gamma,
        shares=shares,
    )
    for cell in cells_of_task:
        mean.add(cell)
    return Slopes(
        mean.excess,
        mean.strength_slope,
        mean.v_slope,
        mean.gamma_slope,
        mean.attention,
    )


class _Logits(NamedTuple):
    """Logits of the words of a cell, except noise and the fillers.

    Arrays are (kinds,), as in `Cell`.
    """

    output: Array  # v(cA + n_y B), of y
    trigger: float  # v h B, of a trigger that is attended to h times
    rest: float  # log-sum-exp over the trigger and the C words with the logit 0


class _Noise(NamedTuple):
    """The logit γ gain + v(a A + b B) of the noise word, see `excess`; (kinds,)."""

    gain: float  # 1 + κ v h B
    a: Array
    b: Array
    logit: Array


class _AttentionSlopes(NamedTuple):
    """Derivatives of a cell's excess with respect to v times the attention on a word.

    The cell's excess is the sum over its kinds of sentences, weighted with their
    probabilities.
    """

    scored: float  # with respect to vA, for the attention A on a word with the score λ
    unscored: float  # with respect to vB, for the attention B on a word of score 0


class _MeanOverSentences:
    """Excess and derivatives, summed with probabilities over the cells added so far.

    ``shares`` are the probabilities of the sentences of each λ. The other arguments are
    as for `excess`.
    """

    def __init__(
        self,
        filler_numbers: Fillers,
        C: float,
        kappa: int,
        alpha: float,
        strength: Array,
        v: float,
        gamma: float,
        shares: Array,
    ) -> None:
        self.filler_numbers = filler_numbers
        self.C = C
        self.kappa = kappa
        self.alpha = alpha
        self.strength = strength
        self.v = v
        self.gamma = gamma
        self.shares = shares
        self.excess = 0.0
        self.strength_slope = np.zeros(len(strength))
        self.v_slope = 0.0
        self.gamma_slope = 0.0
        self.attention = np.zeros(len(strength))

    def add(self, cell: Cell) -> None:
        """Add the sentences of a cell."""
        # Together the words with the score λ have the attention scored
        # e^λ/Z = sigmoid(ln(scored e^λ/unscored)). All other words have the rest of the
        # attention. In this form nothing overflows. In a bigram (q, y) the word y has
        # the score λ and q the score 0, so that both logarithms are finite.
        log_ratio = float(self.strength[cell.group])
        log_ratio = log_ratio + math.log(cell.scored) - math.log(cell.unscored)
        scored_share = math.exp(-np.logaddexp(0.0, -log_ratio))
        unscored_share = math.exp(-np.logaddexp(0.0, log_ratio))
        A = scored_share / cell.scored
        B = unscored_share / cell.unscored
        # derivatives with respect to λ
        A_slope = A * unscored_share
        B_slope = -B * scored_share

        logits = self._logits(cell, A, B)
        if self.alpha:
            slopes = self._add_noisy(cell, logits, A, B)
        else:
            slopes = self._add_noiseless(cell, logits, B)
        # v and λ enter the logits only through vA and vB.
        self.v_slope += slopes.scored * A + slopes.unscored * B
        self.strength_slope[cell.group] += self.v * (
            slopes.scored * A_slope + slopes.unscored * B_slope
        )
        output_attention = float(cell.probability @ cell.c) * A
        self.attention[cell.group] += output_attention / self.shares[cell.group]

    def _logits(self, cell: Cell, A: float, B: float) -> _Logits:
        """Return the logits in a cell, for A = e^λ/Z and B = 1/Z."""
        output = self.v * (cell.c * A + cell.outputs * B)
        trigger = self.v * B * cell.trigger_count
        if not cell.trigger_count:
            # The trigger is one of the C words.
            return _Logits(output, trigger, math.log(self.C))
        # In a small vocabulary there may be no word with the logit 0.
        log_C = math.log(self.C) if self.C else -math.inf
        return _Logits(output, trigger, float(np.logaddexp(log_C, trigger)))

    def _add_noiseless(self, cell: Cell, logits: _Logits, B: float) -> _AttentionSlopes:
        """Add the loss of a cell, and return its derivatives."""
        loss = self._loss_against_fillers(cell, logits, logits.output, B)
        self.excess += float(cell.probability @ loss.value)
        # The logit of y is c vA + n_y vB, and the logits of fillers are β n_x with
        # β = vB. ``by_top`` is the derivative with respect to the logit of y.
        output_slope = cell.probability * loss.by_top
        slope_vA = float(output_slope @ cell.c)
        slope_vB = float(output_slope @ cell.outputs + cell.probability @ loss.by_beta)
        return _AttentionSlopes(
            slope_vA, slope_vB + self._trigger_slope(cell, logits, loss)
        )

    def _add_noisy(
        self, cell: Cell, logits: _Logits, A: float, B: float
    ) -> _AttentionSlopes:
        """Add the loss of a cell and the derivative with respect to γ.

        The loss has two parts: the divergence between the true and the predicted odds
        of noise against y, and the loss of y and noise together against all other
        words. The other derivatives are returned.
        """
        noise = self._noise(cell, logits, A, B)
        log_odds = noise.logit - logits.output
        self.excess += float(cell.probability @ divergence(self.alpha, log_odds))
        # The probability of noise against y alone. Its surplus over α is the derivative
        # of the divergence with respect to the log-odds of noise.
        noise_share = np.exp(-np.logaddexp(0.0, logits.output - noise.logit))
        surplus = noise_share - self.alpha
        output_or_noise = np.logaddexp(logits.output, noise.logit)
        loss = self._loss_against_fillers(cell, logits, output_or_noise, B)
        self.excess += float(cell.probability @ loss.value)

        # The logit of y is c vA + n_y vB, and the logits of fillers are β n_x with
        # β = vB. ``by_top`` is the derivative with respect to `output_or_noise`, in
        # which y and noise have the shares 1 - noise_share and noise_share. The
        # divergence has the derivative -surplus with respect to the logit of y, and
        # surplus with respect to the logit of noise.
        output_slope = cell.probability * (loss.by_top * (1.0 - noise_share) - surplus)
        slope_vA = float(output_slope @ cell.c)
        slope_vB = float(output_slope @ cell.outputs + cell.probability @ loss.by_beta)
        slope_vB += self._trigger_slope(cell, logits, loss)

        # The logit of noise is γ(1 + κ h vB) + a vA + b vB.
        noise_slope = cell.probability * (loss.by_top * noise_share + surplus)
        total_noise_slope = float(noise_slope.sum())
        slope_vA += float(noise_slope @ noise.a)
        gain_slope = self.gamma * max(self.kappa, 0) * cell.trigger_count
        slope_vB += float(noise_slope @ noise.b) + gain_slope * total_noise_slope
        self.gamma_slope += noise.gain * total_noise_slope
        return _AttentionSlopes(slope_vA, slope_vB)

    def _noise(self, cell: Cell, logits: _Logits, A: float, B: float) -> _Noise:
        """Return the logit of noise and its parts."""
        # κ < 0 stands for the weights "projection", see `excess`.
        if self.kappa < 0:
            a = cell.c
            b = cell.passing
        else:
            a = self.kappa * cell.c
            b = (self.kappa + 1) * cell.c_tau
        gain = 1.0 + max(self.kappa, 0) * logits.trigger
        logit = self.gamma * gain + self.v * (a * A + b * B)
        return _Noise(gain, a, b, logit)

    def _loss_against_fillers(
        self, cell: Cell, logits: _Logits, logit: Array, B: float
    ) -> LogLoss:
        """Return the loss of a logit against all words but y and noise.

        It is the mean over the counts of the fillers, with its derivatives with respect
        to ``logit`` (``by_top``), to β = vB and to ``logits.rest``.
        """
        # The n words are spread over y and all fillers. The density, the mean number of
        # times that one of these words occurs, determines at which points
        # `shared_log_loss` evaluates its integrand. It must be positive, even if n = 0.
        return shared_log_loss(
            top=logit,
            beta=self.v * B,
            log_rest=logits.rest,
            tokens=cell.remaining,
            labels=self.filler_numbers.loud,
            silent=self.filler_numbers.silent,
            density=max(cell.n, 1) / self.filler_numbers.different_words,
        )

    @staticmethod
    def _trigger_slope(cell: Cell, logits: _Logits, loss: LogLoss) -> float:
        """Return the derivative with respect to vB through the logit h vB of q.

        It is 0 if q is not attended to, h = 0.
        """
        trigger_share = math.exp(logits.trigger - logits.rest)
        return (
            float(cell.probability @ loss.by_rest) * cell.trigger_count * trigger_share
        )
