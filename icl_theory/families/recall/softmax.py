r"""Softmax attention at finite H, exactly: the mean over all sentences as one integral.

Given the numbers of bigrams of the trigger with its output and with noise, the denominator of the attention is
known, and only the counts of the other words are random: they are multinomial. Let β n_x be the logit of word x, C
the sum of e^logit over the logits that are not random, and D the logit of the target. Then

    E ln(1 + (T + C)e^-D) = ∫ exp(−s e^D) E[1 − e^(−s(T + C))] ds/s,    T = Σ_x e^(β n_x),

and E e^(−sT) is a coefficient of a product of power series, one for each word, found by a sum over a circle. All
terms have one sign, so that small excesses keep their digits. See docs/theory.md, "Softmax attention at finite H".
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from icl_theory._validate import Array
from icl_theory.families.recall.divergence import divergence
from icl_theory.families.recall.task import RecallTask, Words

RARE = 1e-30  # probabilities below it are left out


class Means(NamedTuple):
    """E ln(1 + (T + C)e^-D), and its derivatives with respect to D, β and ln C, (A,) each."""

    value: Array
    by_top: Array
    by_beta: Array
    by_rest: Array


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

    kinds, found = fillers(task, weights), []
    total = 1 + sum(kinds)
    cancelled = weights == "identity" and task.alpha > 0  # -E(τ) removes (q, τ) from the scores
    for group, law in enumerate(task.counts[:groups]):
        share = 1.0 if groups == 1 else float(task.probs[group])
        c, c_tau = np.nonzero(law.pmf)
        near = c if cancelled else c + c_tau
        attended = task.H - 1 if weights == "projection" else task.H
        for key in sorted(set(zip(near.tolist(), (c + c_tau).tolist(), strict=True))):
            rows = np.flatnonzero((near == key[0]) & (c + c_tau == key[1]))
            n = task.H - 1 - 2 * key[1]
            row, own, noted = (each.ravel() for each in np.indices((len(rows), n + 1, n + 1 if kinds.noted else 1)))
            free = n - own - noted
            real = free >= 0
            row, own, noted, free = row[real], own[real], noted[real], free[real]
            log = gammaln(n + 1) - gammaln(own + 1) - gammaln(noted + 1) - gammaln(free + 1) - n * math.log(total)
            log = log + xlogy(noted, kinds.noted) + xlogy(free, kinds.loud + kinds.silent)
            weight = share * law.pmf[c, c_tau][rows[row]] * np.exp(log)
            often = weight >= min(RARE, weight.max())
            row, own, noted, free = row[often], own[often], noted[often], free[often]
            heads = key[1] + 1 if weights == "identity" else 0
            found.append(
                Cell(group, key[0], attended - key[0], heads, n, c[rows[row]].astype(float),
                     c_tau[rows[row]].astype(float), own.astype(float), free, (n - noted).astype(float),
                     weight[often])
            )  # fmt: skip
    return found


def means(
    top: Array, beta: float, log_rest: float, free: Words, n: int, kinds: Fillers, far: float = 60.0
) -> Means:
    """Integrate for D = ``top``, ln C = ``log_rest`` and β = ``beta``; ``free`` of the n words, (A,), are random.

    Points of the circle at which the generating function is below e^-far of its largest value are left out.
    """
    others = kinds.loud + kinds.silent
    radius = max(n, 1) / (1.0 + sum(kinds))
    mean = others * radius
    k = np.arange(n + 1)
    poisson = _poisson(k, radius)
    k, poisson = k[poisson > RARE**2], poisson[poisson > RARE**2]
    points = n + 128
    reach = min(far / ((others - 1) * radius), 2.0) if others > 1 else 2.0
    kept = np.arange(math.ceil(points * math.acos(1.0 - reach) / (2.0 * math.pi)) + 1)
    kept = kept[2 * kept <= points]
    angle = 2.0 * np.pi / points * kept
    there = np.unique(free)
    place = np.searchsorted(there, free)
    circle = np.exp(-1j * angle[:, None] * k)
    both = np.where((kept == 0) | (2 * kept == points), 1.0, 2.0) / points
    back = both[:, None] * np.exp(1j * angle[:, None] * there) / _poisson(there, mean)
    turn = radius * (np.exp(1j * angle) - 1.0).conj()  # z - r
    largest = k[poisson * (others + 1) * (n + 1) > RARE][-1]
    breaks = np.concatenate([-top, -beta * np.arange(largest + 1), [-log_rest]])
    sums = np.zeros((4, len(top)))
    for x, width in _nodes(breaks, -float(top.min()), math.log(others + 1.0)):
        inside = np.minimum(x[:, None] + beta * k, 700.0)
        stays = np.exp(-np.exp(inside))
        gone = (poisson * -np.expm1(-np.exp(inside))) @ circle.T
        slope = (poisson * k * np.exp(inside) * stays) @ circle.T
        missing, change = _products(gone, slope, turn, kinds)
        missing, change = ((each @ back).real[:, place] for each in (missing, change))
        reach_top = np.minimum(x[:, None] + top, 700.0)
        weight = width[:, None] * np.exp(-np.exp(reach_top))
        rest = np.exp(np.minimum(x + log_rest, 700.0))
        left = np.exp(-rest)[:, None]
        integrand = -np.expm1(-rest)[:, None] + left * missing
        sums[0] += np.sum(weight * integrand, axis=0)
        sums[1] -= np.sum(weight * np.exp(reach_top) * integrand, axis=0)
        sums[2] += np.sum(weight * left * change, axis=0)
        sums[3] += np.sum(weight * left * rest[:, None] * (1.0 - missing), axis=0)
    return Means(*sums)


def _products(gone: Array, slope: Array, turn: Array, kinds: Fillers) -> tuple[Array, Array]:
    """Generating functions of 1 − E e^(−sT) and of its derivative by β, over e^(-mean), on the circle.

    If the series of one word is e^(z−r) − h(z), that of 1 − e^(−sT) is e^(m(z−r)) − e^(S(z−r)) (e^(z−r) − h)^P.
    """
    P, S = kinds.loud, kinds.silent
    if not P:
        return np.zeros_like(gone), np.zeros_like(gone)
    ratio = gone * np.exp(-turn)
    small = np.abs(ratio) < 0.5
    square = 2.0 * ratio.real - ratio.real**2 - ratio.imag**2  # 1 - |1 - ratio|²
    with np.errstate(divide="ignore"):
        size = np.where(small, 0.5 * np.log1p(-np.where(small, square, 0.0)), np.log(np.abs(1.0 - ratio)))
    log = np.maximum(size, -1e300) + 1j * np.arctan2(-ratio.imag, 1.0 - ratio.real)
    whole = (P + S) * turn
    missing = np.where(small, -np.exp(whole) * np.expm1(P * log), np.exp(whole) - np.exp(whole + P * log))
    return missing, P * slope * np.exp(whole - turn + (P - 1) * log)


def _nodes(
    breaks: Array, last: float, spread: float, step: float = 0.25, left: float = 42.0, right: float = 6.0
) -> list[tuple[Array, Array]]:
    """Blocks of nodes in ln s and their weights, except where the integrand is constant.

    A factor exp(-s e^D) is constant from a distance ``left`` or ``right`` of ln s = -D on; ``last`` is the last -D.
    ln s = u − e^−(u − u₀): to the left, where the integrand is proportional to s, the nodes thin out. The
    trapezoidal rule in u has the error e^(-π²/step).
    """
    first = float(breaks.min()) - spread - 2.0
    starts, ends = np.sort(breaks) - spread - left, np.sort(breaks) + right
    ends[0] = max(ends[0], first + left)  # where the map is the identity
    new = np.concatenate([[True], starts[1:] > np.maximum.accumulate(ends)[:-1]])
    begin = np.maximum(starts[new], first - 3.8)
    end = np.minimum(np.maximum.accumulate(ends)[np.append(np.flatnonzero(new)[1:] - 1, -1)], last + right)
    u = np.concatenate([np.arange(a, b + step, step) for a, b in zip(begin, end, strict=True) if a < b])
    tail = np.exp(-(u - first))
    x, width = u - tail, step * (1.0 + tail)
    gap = np.flatnonzero(np.diff(u) > 1.5 * step)
    for edge in (gap, gap + 1):
        width[edge] += 0.5 * (x[gap + 1] - x[gap] - step)
    return [(x[i : i + 512], width[i : i + 512]) for i in range(0, len(x), 512)]


def _poisson(k: Words, mean: float) -> Array:
    from scipy.special import gammaln, xlogy

    return np.asarray(np.exp(xlogy(k, mean) - mean - gammaln(k + 1.0)))


class Slopes(NamedTuple):
    """Excess over the entropy of the noise, nats, its derivatives by λ, v and γ, and the attention on each y."""

    excess: float
    by_strength: Array
    by_value: float
    by_gamma: float
    attention: Array


def excess(
    found: list[Cell], kinds: Fillers, C: float, kappa: int, alpha: float, strength: Array, v: float, gamma: float
) -> Slopes:
    r"""Mean over all sentences; infinite if a logit may exceed 1e13, where nodes in ln s coincide in float64.

    With A = e^λ/Z and B = 1/Z the logits are v(cA + n_y B) for y, v n_x B for the other words that fill, γ(1 + κ v
    h B) + v(a A + b B) for noise, and v h B for a trigger that is attended to h times; C words have the logit 0.
    The weights "projection" have κ = -1; then a = c, and b counts the words that may be outputs.
    """
    value = by_value = by_gamma = 0.0
    by_strength, attention = np.zeros(len(strength)), np.zeros(len(strength))
    if abs(v) + abs(gamma if alpha else 0.0) * (1.0 + max(kappa, 0) * abs(v)) > 1e13:
        return Slopes(math.inf, by_strength, 0.0, 0.0, attention)
    shares = np.bincount([cell.group for cell in found], [cell.weight.sum() for cell in found])
    for cell in found:
        shifted = float(strength[cell.group]) + math.log(cell.near) - math.log(cell.far)
        on, off = math.exp(-np.logaddexp(0.0, -shifted)), math.exp(-np.logaddexp(0.0, shifted))
        A, B = on / cell.near, off / cell.far
        A_slope, B_slope = A * off, -B * on
        beta, w = v * B, cell.weight
        top = v * (cell.c * A + cell.own * B)
        head = beta * cell.heads
        rest = float(np.logaddexp(math.log(C) if C else -math.inf, head)) if cell.heads else math.log(C)
        far = np.zeros_like(top)
        if alpha:
            near_noise, far_noise = (
                (cell.c, cell.passed) if kappa < 0 else (kappa * cell.c, (kappa + 1) * cell.c_tau)
            )
            loud = 1.0 + max(kappa, 0) * head
            noise = gamma * loud + v * (near_noise * A + far_noise * B)
            far = np.exp(-np.logaddexp(0.0, top - noise))
            value += float(w @ divergence(alpha, noise - top))
        found_means = means(np.logaddexp(top, noise) if alpha else top, beta, rest, cell.free, cell.n, kinds)
        surplus = far - alpha
        value += float(w @ found_means.value)
        up = w * (found_means.by_top * (1.0 - far) - surplus)
        slope_A, slope_B = float(up @ cell.c), float(up @ cell.own + w @ found_means.by_beta)
        slope_B += float(w @ found_means.by_rest) * cell.heads * math.exp(head - rest)
        if alpha:
            out = w * (found_means.by_top * far + surplus)
            slope_A += float(out @ near_noise)
            slope_B += float(out @ far_noise) + gamma * max(kappa, 0) * cell.heads * float(out.sum())
            by_gamma += loud * float(out.sum())
        by_value += slope_A * A + slope_B * B
        by_strength[cell.group] += v * (slope_A * A_slope + slope_B * B_slope)
        attention[cell.group] += float(w @ cell.c) * A / shares[cell.group]
    return Slopes(value, by_strength, by_value, by_gamma, attention)
