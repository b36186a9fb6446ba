"""The loss of a `TokenRisk` against the sum over all short prompts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.testing.common import expect
from icl_theory.tokens.lengths import Lengths
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
    size = np.abs(small.errors).max() ** 2 + float(small.mean_square.max())
    tokens = sum(int(kind.most) for kind in small.kinds)
    expect(
        abs(loss - expected) <= 1e-12 * size,
        f"loss of prompts of up to {tokens} tokens at {where}",
        f"the sum over all prompts, {expected!r}",
        loss,
    )


def _shortened(risk: TokenRisk, prompts: int) -> tuple[TokenRisk, NDArray[np.intp]]:
    """Return a risk with at most ``prompts`` prompts, and the rows of its scores."""
    # First so few nodes that prompts with one token of each kind are few enough, then
    # the longest prompts over these nodes that are few enough.
    lengths = len(_lengths(risk))
    # A kind keeps at most 8 nodes, and tokens number at most 12, as in `_lengths`.
    sizes = [min(len(kind.probs), 8) for kind in risk.kinds]
    while math.prod(sizes) * lengths > prompts and max(sizes) > 1:
        sizes[int(np.argmax(sizes))] -= 1
    for longest in range(12, 0, -1):
        most = [int(min(longest, kind.most)) for kind in risk.kinds]
        if math.prod(map(pow, sizes, most)) * lengths <= prompts:
            break
    kinds = []
    rows = []
    first_row = 0
    for kind, size in zip(risk.kinds, sizes, strict=True):
        nodes = np.argsort(-kind.probs, kind="stable")[:size]
        rows.append(first_row + nodes)
        first_row += len(kind.probs)
        kinds.append(
            replace(
                kind,
                number=_shorter(kind.number, longest),
                probs=kind.probs[nodes] / kind.probs[nodes].sum(),
                values=kind.values[nodes],
                spread=kind.spread[nodes],
            )
        )
    kept = np.concatenate(rows)
    second = risk.second
    if second is not None:
        second = second[np.ix_(kept, kept)]
    small = TokenRisk(kinds, risk.target, risk.queries, second, risk.lengths)
    return small, kept


def _shorter(number: int | Lengths | NDArray[np.int64], longest: int) -> Any:
    """Cut the number of tokens of a kind at ``longest``.

    A law with no number of tokens up to ``longest`` becomes this number.
    """
    if not isinstance(number, Lengths):
        return np.minimum(number, longest)
    if longest < number.least:
        return Lengths([1.0], first=longest)
    return number.at_most(longest)


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
    for probability_of_length, numbers in _lengths(risk):
        parts_by_kind = []
        for count, number in zip(risk.counts, numbers, strict=True):
            nodes = range(count.rows.start, count.rows.stop)
            parts_by_kind.append(itertools.product(nodes, repeat=number))
        for parts in itertools.product(*parts_by_kind):
            prompt = [node for part in parts for node in part]
            probability = float(np.prod(risk.probs[prompt]))
            yield prompt, probability_of_length * probability


def _lengths(risk: TokenRisk) -> list[tuple[float, list[int]]]:
    """Return probabilities and the numbers of tokens of all kinds, for short prompts.

    Laws without a largest number of tokens end at 12.
    """
    if risk.grow_together:
        numbers: list[Any] = [kind.number for kind in risk.kinds]
        columns = np.broadcast_arrays(*(np.atleast_1d(number) for number in numbers))
        rows = np.stack(columns, axis=1)
        probs = np.full(len(rows), 1.0 / len(rows))
        if risk.lengths is not None:
            probs = np.asarray(risk.lengths)
        return list(zip(probs.tolist(), rows.tolist(), strict=True))
    laws = []
    for kind in risk.kinds:
        if isinstance(kind.number, Lengths):
            probs = kind.number.probabilities(min(int(kind.most), 12))
            laws.append([(p, n) for n, p in enumerate(probs.tolist()) if p > 0.0])
        else:
            laws.append([(1.0, int(np.max(kind.number)))])
    lengths = []
    for parts in itertools.product(*laws):
        probability = math.prod(p for p, _ in parts)
        lengths.append((probability, [n for _, n in parts]))
    return lengths
