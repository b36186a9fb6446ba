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

# The largest number of tokens of a kind in a prompt, and of nodes of a kind. With them
# the choice of a shorter risk looks at few sizes. They seldom matter: the number of
# prompts, which is a power with the number of tokens as its exponent, is the narrower
# limit.
MOST_TOKENS_OF_KIND = 12
MOST_NODES_OF_KIND = 8


def check_tokens(
    risk: TokenRisk, params: Array, where: str, most_prompts: int = 5000
) -> None:
    """Compare the loss of short prompts with the sum over all of them.

    Prompts are as long as those of the risk, or shorter if there are more than
    ``most_prompts`` of them, over which the sum would take long. They have at least one
    token of each kind. Each token is at one of the nodes, and of many nodes only the
    most probable are used. ``where`` names the parameters ``params`` in error messages.
    """
    small, rows = _shortened(risk, most_prompts)
    scores = params[rows]
    expected = 0.0
    for q, probability in enumerate(small.asked):
        query_scores = scores.reshape(len(rows), -1)[:, q]
        expected = expected + probability * _enumerated(small, query_scores, q)
    loss = small.evaluate(scores)[0]
    # Both sums are means of square errors of up to this size, so their rounding is a
    # multiple of 1e-16 of it.
    size = np.abs(small.errors).max() ** 2 + float(small.mean_square.max())
    tokens = sum(int(kind.most) for kind in small.kinds)
    expect(
        abs(loss - expected) <= 1e-12 * size,
        f"loss of prompts of up to {tokens} tokens at {where}",
        f"the sum over all prompts, {expected!r}",
        loss,
    )


def _shortened(
    risk: TokenRisk, most_prompts: int
) -> tuple[TokenRisk, NDArray[np.intp]]:
    """Return a risk with at most ``most_prompts`` prompts, and the rows of its scores.

    The rows are the places of its nodes among those of ``risk``. With one node of each
    kind and one token of each, the result may still have more prompts.
    """
    node_counts, longest = _small_size(risk, most_prompts)
    kinds = []
    rows = []
    first_row = 0
    for kind, node_count in zip(risk.kinds, node_counts, strict=True):
        nodes = np.argsort(-kind.probs, kind="stable")[:node_count]
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
    all_rows = np.concatenate(rows)
    second = risk.second
    if second is not None:
        second = second[np.ix_(all_rows, all_rows)]
    small = TokenRisk(kinds, risk.target, risk.queries, second, risk.lengths)
    return small, all_rows


def _small_size(risk: TokenRisk, most_prompts: int) -> tuple[list[int], int]:
    """Return how many nodes each kind keeps, and the largest number of its tokens.

    First there are so few nodes that the prompts with one token of each kind are few
    enough. Then the tokens are as many as these nodes allow.
    """
    length_count = len(_lengths(risk))
    node_counts = [min(len(kind.probs), MOST_NODES_OF_KIND) for kind in risk.kinds]
    while math.prod(node_counts) * length_count > most_prompts and max(node_counts) > 1:
        node_counts[int(np.argmax(node_counts))] -= 1
    for longest in range(MOST_TOKENS_OF_KIND, 0, -1):
        token_counts = [int(min(longest, kind.most)) for kind in risk.kinds]
        # n tokens at m nodes are m^n prompts; the kinds are independent.
        prompts_of_length = math.prod(map(pow, node_counts, token_counts))
        if prompts_of_length * length_count <= most_prompts:
            break
    return node_counts, longest


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
    """Return half the mean square error of query q over all prompts.

    ``scores`` has the score of query q for each node.
    """
    loss = 0.0
    for nodes, probability in _prompts(risk):
        # The largest score is subtracted, so that no exponential overflows.
        attention = np.exp(scores[nodes] - scores[nodes].max())
        attention /= attention.sum()
        error = attention @ risk.errors[q][nodes]
        # The values of tokens scatter independently around those of their nodes.
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
    """Return the probable lengths of prompts.

    Each has its probability, and the number of tokens of each kind. The law of a kind
    ends at `MOST_TOKENS_OF_KIND` tokens.
    """
    if risk.grow_together:
        # A kind has a list of numbers, or a single one. Length i has entry i of each.
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
            longest = min(int(kind.most), MOST_TOKENS_OF_KIND)
            probs = kind.number.probabilities(longest)
            laws.append([(p, n) for n, p in enumerate(probs.tolist()) if p > 0.0])
        else:
            laws.append([(1.0, int(np.max(kind.number)))])
    lengths = []
    # The numbers of tokens of different kinds are independent.
    for length in itertools.product(*laws):
        probability = math.prod(p for p, _ in length)
        lengths.append((probability, [n for _, n in length]))
    return lengths
