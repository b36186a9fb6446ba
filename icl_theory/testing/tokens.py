"""The loss of a `TokenRisk` against the sum over all short prompts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.testing.common import expect
from icl_theory.tokens.risk import TokenRisk


def check_tokens(
    risk: TokenRisk, params: Array, where: str, prompts: int = 5000
) -> None:
    """Compare the loss of short prompts with the sum over all of them.

    Prompts are as long as the risk's, or shorter if there are more than ``prompts`` of
    them; they have at least one token of each kind. Each token is at one of the nodes;
    of many nodes only the most probable are kept.
    """
    small, rows = _shortened(risk, prompts)
    scores = params[rows]
    expected = 0.0
    for q, probability in enumerate(small.asked):
        query_scores = scores.reshape(len(rows), -1)[:, q]
        expected = expected + probability * _enumerated(small, query_scores, q)
    loss = small.evaluate(scores)[0]
    # the scale of the square errors
    size = np.abs(small.errors).max() ** 2 + float(small.own.max())
    tokens = sum(kind.number for kind in small.kinds)
    expect(
        abs(loss - expected) <= 1e-12 * size,
        f"loss of prompts of {tokens} tokens at {where}",
        f"the sum over all prompts, {expected!r}",
        loss,
    )


def _shortened(risk: TokenRisk, prompts: int) -> tuple[TokenRisk, NDArray[np.intp]]:
    """Return a risk with at most ``prompts`` prompts, and the rows of its scores."""
    # First so few nodes that prompts with one token of each kind are few enough, then
    # the longest prompts over these nodes that are few enough.
    sizes = [min(len(kind.probs), 8) for kind in risk.kinds]
    while math.prod(sizes) > prompts:
        sizes[int(np.argmax(sizes))] -= 1
    numbers = [1 for _ in risk.kinds]
    for longest in range(12, 0, -1):
        numbers = [min(longest, kind.number) for kind in risk.kinds]
        if math.prod(map(pow, sizes, numbers)) <= prompts:
            break
    kinds = []
    rows = []
    first_row = 0
    for kind, size, number in zip(risk.kinds, sizes, numbers, strict=True):
        nodes = np.argsort(-kind.probs, kind="stable")[:size]
        rows.append(first_row + nodes)
        first_row += len(kind.probs)
        kinds.append(
            replace(
                kind,
                number=number,
                probs=kind.probs[nodes] / kind.probs[nodes].sum(),
                values=kind.values[nodes],
                spread=kind.spread[nodes],
            )
        )
    kept = np.concatenate(rows)
    second = risk.second
    if second is not None:
        second = second[np.ix_(kept, kept)]
    return TokenRisk(kinds, risk.target, risk.queries, second), kept


def _enumerated(risk: TokenRisk, scores: Array, q: int) -> float:
    """Return half the mean square error of query q's attention over all prompts."""
    loss = 0.0
    for nodes, probability in _prompts(risk):
        # The largest score is subtracted, so that no exponential overflows.
        attention = np.exp(scores[nodes] - scores[nodes].max())
        attention /= attention.sum()
        error = attention @ risk.errors[q][nodes]
        square = float(error @ error + attention**2 @ risk.spread[nodes, q])
        loss += 0.5 * probability * square
    return loss


def _prompts(risk: TokenRisk) -> Iterator[tuple[list[int], float]]:
    """Yield the nodes of each prompt, and its probability."""
    parts_by_kind = []
    for kind, count in zip(risk.kinds, risk.counts, strict=True):
        lengths = [kind.number]
        if kind.each:
            # All lengths up to the number are equally probable.
            lengths = list(range(1, kind.number + 1))
        nodes = range(count.rows.start, count.rows.stop)
        probability_of_length = 1.0 / len(lengths)
        parts: list[tuple[tuple[int, ...], float]] = []
        for length in lengths:
            for part in itertools.product(nodes, repeat=length):
                parts += [(part, probability_of_length)]
        parts_by_kind.append(parts)
    for prompt in itertools.product(*parts_by_kind):
        nodes_of_prompt: list[int] = []
        probability = 1.0
        for part, factor in prompt:
            nodes_of_prompt += part
            probability *= factor
        yield nodes_of_prompt, probability * float(np.prod(risk.probs[nodes_of_prompt]))
