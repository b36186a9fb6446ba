"""Independent references for attention over chains: all sequences one by one, and counts of two states."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import mpmath
import numpy as np
from numpy.typing import NDArray

from icl_theory.tokens.chain import Chains

Long = Any  # arrays of 80-bit numbers


class Problem(NamedTuple):
    """A law of sequences with its arguments, normalised, a length and scores."""

    transitions: NDArray[np.float64]  # (C, k, k)
    probs: NDArray[np.float64]  # (C,)
    start: NDArray[np.float64]  # (C, k**m)
    window: int
    length: int
    scores: NDArray[np.float64]  # (k**m, k) or (T, k**m, k)

    @property
    def chains(self) -> Chains:
        return Chains(self.transitions, self.window, probs=self.probs, start=self.start)


class Sequences(NamedTuple):
    """All sequences of a problem: n of them, with T + m - 1 symbols each."""

    symbols: NDArray[np.intp]  # (n, T + m - 1)
    windows: NDArray[np.intp]  # (n, T)
    probability: Long  # (C, n)


def all_sequences(problem: Problem) -> Sequences:
    k = problem.transitions.shape[1]
    m, T = problem.window, problem.length
    symbols = np.indices((k,) * (T + m - 1)).reshape(T + m - 1, -1).T
    digits = k ** np.arange(m)[::-1]
    windows = np.stack([symbols[:, t : t + m] @ digits for t in range(T)], axis=1)
    transitions, start, probs = (
        x.astype(np.longdouble)
        for x in (problem.transitions, problem.start, problem.probs)
    )
    probability = probs[:, None] * start[:, windows[:, 0]]
    for t in range(m, T + m - 1):
        probability = probability * transitions[:, symbols[:, t - 1], symbols[:, t]]
    return Sequences(symbols, windows, probability)


def softmax(problem: Problem, every: Sequences, scores: Long) -> Long:
    """Attention of every sequence on its positions, (n, T)."""
    q = every.symbols[:, -1:]
    at = (
        scores[every.windows, q]
        if scores.ndim == 2
        else scores[np.arange(problem.length), every.windows, q]
    )
    weight = np.exp(at - at.real.max(axis=1, keepdims=True))
    return weight / weight.sum(axis=1, keepdims=True)


def enumerated_loss(problem: Problem, every: Sequences, scores: Long) -> Long:
    """½ E|o - P_q|² in 80-bit numbers, an analytic function of the scores."""
    attention, x = (
        softmax(problem, every, scores),
        every.symbols[:, problem.window - 1 :],
    )
    total, k = np.longdouble(0), problem.transitions.shape[1]
    output = np.stack(
        [(attention * (x == symbol)).sum(axis=1) for symbol in range(k)], axis=1
    )
    for P, probability in zip(
        problem.transitions.astype(np.longdouble), every.probability, strict=True
    ):
        total = (
            total + (probability * ((output - P[x[:, -1]]) ** 2).sum(axis=1)).sum() / 2
        )
    return total


def enumerated_slope(
    problem: Problem, every: Sequences, direction: NDArray[np.float64]
) -> Long:
    """Derivative of the loss along a direction of the scores, by a step into the complex plane."""
    step = np.longdouble(1e-30)
    scores = problem.scores.astype(np.clongdouble) + 1j * step * direction
    return enumerated_loss(problem, every, scores).imag / step


def enumerated_attention(problem: Problem, every: Sequences) -> NDArray[np.float64]:
    """Expected attention given the last symbol, of the shape of the scores."""
    attention = softmax(problem, every, problem.scores.astype(np.longdouble))
    likely, q = every.probability.sum(axis=0), every.symbols[:, -1]
    shape = problem.length, problem.start.shape[1], problem.transitions.shape[1]
    found = np.zeros(shape, dtype=np.longdouble)
    np.add.at(
        found,
        (np.arange(problem.length), every.windows, q[:, None]),
        attention * likely[:, None],
    )
    often = np.array([likely[q == symbol].sum() for symbol in range(shape[2])])
    found /= np.where(often > 0, often, 1)
    return np.asarray(
        found if problem.scores.ndim == 3 else found.sum(axis=0), dtype=np.float64
    )


def mp_enumerated(problem: Problem) -> tuple[Any, dict[tuple[int, int], Any]]:
    """Loss and its gradient in the scores by window and last symbol, with 400 digits."""
    every, k = all_sequences(problem), problem.transitions.shape[1]
    loss, gradient = mpmath.mpf(0), {}
    with mpmath.workdps(400):
        weight = [
            [mpmath.exp(mpmath.mpf(s)) for s in row] for row in problem.scores.tolist()
        ]
        for symbols, windows in zip(
            every.symbols.tolist(), every.windows.tolist(), strict=True
        ):
            q, x = symbols[-1], symbols[problem.window - 1 :]
            total = mpmath.fsum(weight[w][q] for w in windows)
            attention = [weight[w][q] / total for w in windows]
            output = [
                mpmath.fsum(a for a, y in zip(attention, x, strict=True) if y == s)
                for s in range(k)
            ]
            for P, start, p in zip(
                problem.transitions, problem.start, problem.probs, strict=True
            ):
                likely = mpmath.mpf(p) * mpmath.mpf(start[windows[0]])
                for a, b in itertools.pairwise(x):
                    likely *= mpmath.mpf(P[a, b])
                error = [
                    o - mpmath.mpf(target)
                    for o, target in zip(output, P[q], strict=True)
                ]
                loss += likely * mpmath.fsum(e * e for e in error) / 2
                mean = mpmath.fsum(e * o for e, o in zip(error, output, strict=True))
                for a, y, w in zip(attention, x, windows, strict=True):
                    gradient[w, q] = gradient.get((w, q), 0) + likely * a * (
                        error[y] - mean
                    )
    return loss, gradient


def counted_loss(problem: Problem) -> float:
    """½ E|o - P_q|² for two states and windows of two symbols, from a stationary start, by the numbers of pairs.

    A sequence from u to v with n_01 changes has r_0 runs of 0 and r_1 of 1, in which
    the n_00 and n_11 steps that change nothing are distributed freely.
    """
    total, T, P = np.zeros(len(problem.probs)), problem.length, problem.transitions
    for u, v in np.ndindex(2, 2):
        first = P[:, 1 - u, u] / (P[:, 0, 1] + P[:, 1, 0])
        w = np.exp(problem.scores[:, v] - problem.scores[:, v].max())
        for up in range(T + 1):
            down = up - (u < v) + (u > v)
            runs = up + (v == 0), down + (v == 1)
            for n in range(T - up - down + 1 if down >= 0 else 0):
                stay = n, T - up - down - n
                if any(not r and s for r, s in zip(runs, stay, strict=True)):
                    continue
                ways = math.prod(
                    math.comb(s + r - 1, s)
                    for s, r in zip(stay, runs, strict=True)
                    if r
                )
                likely = (
                    P[:, 0, 0] ** stay[0]
                    * P[:, 0, 1] ** up
                    * P[:, 1, 0] ** down
                    * P[:, 1, 1] ** stay[1]
                )
                output = (w[1] * up + w[3] * stay[1]) / (
                    w @ [stay[0], up, down, stay[1]]
                )
                total += (
                    float(ways) * likely * first * (output - P[:, v, 1]) ** 2
                )  # ½ of two equal components
    return float(problem.probs @ total)
