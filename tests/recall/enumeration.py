"""All sentences of a task, from the definition alone, and transformers that read them with matrices written out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

import icl_theory as icl


def sentences(
    task: icl.recall.RecallTask,
) -> Iterator[tuple[tuple[int, ...], int, int, float]]:
    """Tokens, trigger, output and probability, without the last word: fillings times arrangements of the blocks."""
    for index, q in enumerate(task.triggers.tolist()):
        planted = [
            x for x in range(task.V) if x not in task.triggers and x != task.noise_word
        ]
        words = (
            planted if task.law == "planted" else [x for x in range(task.V) if x != q]
        )
        for (c, c_tau), chance in np.ndenumerate(task.counts[index].pmf):
            if not chance:
                continue
            n, k = task.H - 1 - 2 * (c + c_tau), c + c_tau
            orders = sorted(
                set(itertools.permutations(["."] * n + ["y"] * c + ["t"] * c_tau))
            )
            weight = (
                task.probs[index]
                * chance
                / len(task.outputs)
                / len(orders)
                / len(words) ** n
            )
            for order, y in itertools.product(orders, task.outputs.tolist()):
                for fill in itertools.product(words, repeat=n):
                    rest = iter(fill)
                    pairs = {"y": (q, y), "t": (q, task.noise_word)}
                    tokens = [
                        word
                        for slot in order
                        for word in (pairs[slot] if slot != "." else (next(rest),))
                    ]
                    assert len(tokens) == n + 2 * k
                    yield (*tokens, q), q, y, weight


def matrices(
    task: icl.recall.RecallTask,
    weights: str,
    strength: np.ndarray,
    v: float,
    gamma: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """W, 𝒱 and F from their definitions, (2V, 2V) each."""
    V, tau, noisy = task.V, task.noise_word, task.alpha > 0
    W, value, F = (np.zeros((2 * V, 2 * V)) for _ in range(3))
    for q, x in zip(task.triggers.tolist(), strength.tolist(), strict=True):
        W[q, V + q] += x
        if weights == "identity" and noisy:
            W[q, tau] -= x
        F[tau, q] = gamma if noisy else 0.0
        if weights == "identity" and noisy:
            F[tau, V + q] = 1.0
    may = [x for x in range(V) if x not in task.triggers and x != tau]
    if weights == "identity":
        value = v * np.eye(2 * V)
    else:
        value[may, may] = v
        F[tau, may] = 1.0 if noisy else 0.0
    return W, value, F


def loss(
    task: icl.recall.RecallTask,
    attention: str,
    weights: str,
    kappa: int,
    strength: np.ndarray,
    v: float,
    gamma: float,
) -> float:
    """Mean cross-entropy over all sentences, each read by the transformer."""
    V, parts = task.V, []
    W, value, F = matrices(task, weights, strength, v, gamma)
    eye = np.eye(2 * V)
    for tokens, q, y, weight in sentences(task):
        x = np.array(
            [
                eye[z] + (eye[V + tokens[h - 1]] if h else 0.0)
                for h, z in enumerate(tokens)
            ]
        )
        keys = x if weights == "identity" else x[:-1]
        scores = keys @ (W.T @ x[-1])
        if attention == "softmax":
            a = np.exp(scores - scores.max())
            a /= a.sum()
        else:
            a = np.maximum(scores, 0.0) if attention == "relu" else scores
        u = value @ (keys.T @ a)
        logits = (u + F @ (x[-1] + kappa * u))[:V]
        top = logits.max()
        total = top + math.log(np.exp(logits - top).sum())
        parts.append(
            weight
            * (
                total
                - (1 - task.alpha) * logits[y]
                - task.alpha * logits[task.noise_word]
            )
        )
        assert q == tokens[-1]
    return math.fsum(parts)
