"""The loss of a `TokenRisk`, compared with the sum over all short prompts.

The tokens of a prompt are of several kinds. Each token is at one of the nodes of its
kind, with a probability, and its score depends on the node and the query. A prompt is
described by the nodes of its tokens, so short prompts can be enumerated. All nodes are
numbered in one list, kind after kind; the scores have a row for each node and, if there
are several queries, a column for each query.
"""

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
from icl_theory.tokens.risk import Kind, TokenRisk

# The search for a risk with few prompts, in `_small_size`, begins with at most this
# many tokens and this many nodes of each kind. Both limits seldom matter, because the
# limit of the number of prompts, (nodes)^(tokens), usually requires fewer.
MOST_TOKENS_OF_KIND = 12
MOST_NODES_OF_KIND = 8


def check_tokens(
    risk: TokenRisk, params: Array, where: str, most_prompts: int = 5000
) -> None:
    """Compare the loss of short prompts with the sum over all of them.

    A sum over more than ``most_prompts`` prompts would take long. So the comparison is
    made for a smaller risk if necessary. It has fewer tokens of each kind, but at least
    one, and only the most probable nodes. ``where`` names the parameters ``params`` in
    error messages.
    """
    small, rows = _shortened(risk, most_prompts)
    scores = params[rows]
    expected = 0.0
    # ``asked`` has the probability of each query.
    for q, probability in enumerate(small.asked):
        # A risk with a single query may have scores without an axis of queries.
        query_scores = scores.reshape(len(rows), -1)[:, q]
        expected = expected + probability * _enumerated(small, query_scores, q)
    loss = small.evaluate(scores)[0]
    # The loss and the sum are both means of square errors of up to this size, so their
    # rounding errors are multiples of 1e-16 times this size.
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

    The rows are the indices of its nodes among the nodes of ``risk``. If there are too
    many lengths, the risk may have more prompts even with one node and one token of
    each kind.
    """
    node_counts, longest = _small_size(risk, most_prompts)
    kinds = []
    rows_of_kinds = []
    first_row = 0
    for kind, node_count in zip(risk.kinds, node_counts, strict=True):
        # The most probable nodes. A stable sort keeps the order of equal probabilities.
        nodes = np.argsort(-kind.probs, kind="stable")[:node_count]
        rows_of_kinds.append(first_row + nodes)
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
    rows = np.concatenate(rows_of_kinds)
    # Second moments of the errors at two nodes. The first two axes are for the nodes.
    second = risk.second
    if second is not None:
        second = second[np.ix_(rows, rows)]
    small = TokenRisk(kinds, risk.target, risk.queries, second, risk.lengths)
    return small, rows


def _small_size(risk: TokenRisk, most_prompts: int) -> tuple[list[int], int]:
    """Return how many nodes each kind keeps, and how many tokens it may have.

    First choose the numbers of nodes, so that there are at most ``most_prompts``
    prompts with one token of each kind. Then choose the largest number of tokens of a
    kind that keeps the number of prompts within this limit.
    """
    length_count = len(_lengths(risk))
    node_counts = [min(len(kind.probs), MOST_NODES_OF_KIND) for kind in risk.kinds]
    while math.prod(node_counts) * length_count > most_prompts and max(node_counts) > 1:
        node_counts[int(np.argmax(node_counts))] -= 1
    for longest in range(MOST_TOKENS_OF_KIND, 0, -1):
        token_counts = [int(min(longest, kind.most)) for kind in risk.kinds]
        # A kind of n tokens at m nodes has m^n arrangements, independently of the other
        # kinds. No length has more prompts than the longest one.
        prompts_of_longest = math.prod(map(pow, node_counts, token_counts))
        if prompts_of_longest * length_count <= most_prompts:
            break
    return node_counts, longest


def _shorter(number: int | Lengths | NDArray[np.int64], longest: int) -> Any:
    """Cut the number of tokens of a kind at ``longest``.

    ``number`` is a fixed number, an array with a number for each length of a prompt, or
    the law of a random number. If all numbers of a law are larger than ``longest``, the
    number is always ``longest``.
    """
    if not isinstance(number, Lengths):
        return np.minimum(number, longest)
    if longest < number.least:
        return Lengths([1.0], first=longest)
    # The law under the condition that the number is at most ``longest``.
    return number.at_most(longest)


def _enumerated(risk: TokenRisk, scores: Array, q: int) -> float:
    """Return half the mean square error of query ``q``, a mean over all prompts.

    ``scores`` has the score of query q for each node.
    """
    loss = 0.0
    for nodes, probability in _prompts(risk):
        # The largest score is subtracted, so that no exponential overflows.
        attention = np.exp(scores[nodes] - scores[nodes].max())
        attention /= attention.sum()
        # The error is a vector, (D,): `errors` has the mean of value minus target at
        # each node, (Q, U, D).
        error = attention @ risk.errors[q][nodes]
        # `spread`, (U, Q), is the variance of a value around the mean of its node. The
        # values of tokens scatter independently around the mean values of their
        # nodes.
        square = float(error @ error + attention**2 @ risk.spread[nodes, q])
        loss += 0.5 * probability * square
    return loss


def _prompts(risk: TokenRisk) -> Iterator[tuple[list[int], float]]:
    """Yield the nodes of each prompt, and its probability."""
    for probability_of_length, token_counts in _lengths(risk):
        # For each kind, all ways to put its tokens at its nodes.
        arrangements_of_kinds = []
        for kind_count, token_count in zip(risk.counts, token_counts, strict=True):
            # ``rows`` is the slice of the nodes of this kind among all nodes.
            nodes = range(kind_count.rows.start, kind_count.rows.stop)
            arrangements = itertools.product(nodes, repeat=token_count)
            arrangements_of_kinds.append(arrangements)
        for nodes_by_kind in itertools.product(*arrangements_of_kinds):
            prompt = list(itertools.chain(*nodes_by_kind))
            probability = float(np.prod(risk.probs[prompt]))
            yield prompt, probability_of_length * probability


def _lengths(risk: TokenRisk) -> list[tuple[float, list[int]]]:
    """Return a pair for each possible length of a prompt.

    The pair has the probability of the length, and the number of tokens of each kind. A
    random number of tokens that is larger than `MOST_TOKENS_OF_KIND` is left out.
    """
    if risk.grow_together:
        return _lengths_of_growing_kinds(risk)
    # The numbers of tokens of different kinds are independent.
    lengths = []
    for pairs in itertools.product(*map(_law_of_number, risk.kinds)):
        probability = math.prod(p for p, _ in pairs)
        lengths.append((probability, [n for _, n in pairs]))
    return lengths


def _lengths_of_growing_kinds(risk: TokenRisk) -> list[tuple[float, list[int]]]:
    """Return the pairs of `_lengths` for a risk whose kinds grow together.

    A prompt then has one of several lengths. Each kind has an array with its number of
    tokens at each length, or one number for all lengths.
    """
    numbers: list[Any] = [kind.number for kind in risk.kinds]
    columns = np.broadcast_arrays(*(np.atleast_1d(number) for number in numbers))
    token_counts = np.stack(columns, axis=1)  # (lengths, kinds)
    # All lengths are equally probable unless the risk gives their probabilities.
    length_count = len(token_counts)
    probs = np.full(length_count, 1.0 / length_count)
    if risk.lengths is not None:
        probs = np.asarray(risk.lengths)
    return list(zip(probs.tolist(), token_counts.tolist(), strict=True))


def _law_of_number(kind: Kind) -> list[tuple[float, int]]:
    """Return each possible number of tokens of a kind, after its probability."""
    if not isinstance(kind.number, Lengths):
        return [(1.0, int(np.max(kind.number)))]
    longest = min(int(kind.most), MOST_TOKENS_OF_KIND)
    # The probabilities of 0, 1, ..., ``longest`` tokens.
    probs = kind.number.probabilities(longest)
    return [(p, n) for n, p in enumerate(probs.tolist()) if p > 0.0]
