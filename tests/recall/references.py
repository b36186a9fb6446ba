"""Independent references for in-context recall: all sentences one by one, all words one by one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

import icl_theory as icl


class Sentence(NamedTuple):
    tokens: tuple[int, ...]
    q: int
    y: int
    weight: float


def enumerate_sentences(
    task: icl.recall.RecallTask, density: float, noise: float
) -> list[Sentence]:
    """All sentences with their probabilities, from the sequential model and the definition alone."""
    found: list[Sentence] = []
    for p, q in zip(task.probs, task.triggers.tolist(), strict=True):
        for y in task.outputs.tolist():
            here = []
            for tokens in itertools.product(range(task.V), repeat=task.H - 1):
                weight = _sequential(tokens, q, y, task, density, noise)
                if weight > 0 and (q, y) in itertools.pairwise(tokens):
                    here.append(Sentence((*tokens, q), q, y, weight))
            total = sum(s.weight for s in here)
            found += [
                s._replace(weight=p * s.weight / total / len(task.outputs))
                for s in here
            ]
    return found


def _sequential(
    tokens: tuple[int, ...],
    q: int,
    y: int,
    task: icl.recall.RecallTask,
    density: float,
    noise: float,
) -> float:
    """Probability of the words before the last, each drawn given the one before it; the last is the trigger."""
    weight, previous = 1.0, -1
    for word in tokens:
        if previous == q:
            weight *= (
                (1 - noise) if word == y else noise if word == task.noise_word else 0.0
            )
        else:
            weight *= density if word == q else (1 - density) / (task.V - 1)
        previous = word
    return (
        0.0 if previous == q else weight
    )  # the last word is a trigger drawn freely, not what follows one


def bigrams(tokens: tuple[int, ...], first: int, second: int) -> int:
    return sum(pair == (first, second) for pair in itertools.pairwise(tokens))


def logits(
    task: icl.recall.RecallTask,
    attention: str,
    tokens: tuple[int, ...],
    strength: float,
    scale: float,
    gamma: float,
) -> list[float]:
    """The reparameterised transformer word by word: attention, value, feed-forward, read-out."""
    q = tokens[-1]
    scores = [
        strength if h > 0 and tokens[h - 1] == q else 0.0
        for h in range(len(tokens) - 1)
    ]
    if attention == "softmax":
        top = max(scores)
        weights = [math.exp(s - top) for s in scores]
        weights = [w / sum(weights) for w in weights]
    else:
        weights = [max(s, 0.0) if attention == "relu" else s for s in scores]
    result = [0.0] * task.V
    for word, weight in zip(tokens[:-1], weights, strict=True):
        if word not in task.triggers and word != task.noise_word:
            result[word] += scale * weight
    if task.alpha > 0:
        result[task.noise_word] = gamma + sum(result)
    return result


def cross_entropy(task: icl.recall.RecallTask, values: list[float], y: int) -> float:
    top = max(values)
    total = top + math.log(sum(math.exp(v - top) for v in values))
    return total - (1 - task.alpha) * values[y] - task.alpha * values[task.noise_word]


def all_losses(
    task: icl.recall.RecallTask,
    attention: str,
    sentences: list[Sentence],
    strengths: np.ndarray,
    scale: float,
    gamma: float,
) -> Iterator[tuple[float, float]]:
    """Weight and loss of every sentence."""
    of = dict(zip(task.triggers.tolist(), strengths.tolist(), strict=True))
    for s in sentences:
        yield (
            s.weight,
            cross_entropy(
                task, logits(task, attention, s.tokens, of[s.q], scale, gamma), s.y
            ),
        )
