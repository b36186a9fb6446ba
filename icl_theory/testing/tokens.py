"""The tokens of a `TokenRisk` against the sum over all short prompts, each with its softmax."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np

from icl_theory._validate import Array
from icl_theory.testing.common import expect
from icl_theory.tokens.risk import TokenRisk


def check_tokens(
    risk: TokenRisk, params: Array, where: str, prompts: int = 5000
) -> None:
    """Compare the loss of short prompts with the sum over all of them, up to ``prompts`` of them.

    Prompts are as long as their number allows, up to that of the risk, with at least
    one token of each kind. Each token is at one of the nodes, of which the most
    probable ones are left if there are many.
    """
    kept = [min(len(kind.probs), 8) for kind in risk.kinds]
    while math.prod(kept) > prompts:
        kept[int(np.argmax(kept))] -= 1
    lengths = ([min(n, kind.number) for kind in risk.kinds] for n in range(12, 0, -1))
    numbers = next(
        each for each in lengths if math.prod(map(pow, kept, each)) <= prompts
    )
    nodes = [
        np.argsort(-kind.probs, kind="stable")[:size]
        for kind, size in zip(risk.kinds, kept, strict=True)
    ]
    first = np.cumsum([0, *(len(kind.probs) for kind in risk.kinds[:-1])])
    rows = np.concatenate(
        [start + node for start, node in zip(first, nodes, strict=True)]
    )
    kinds = [
        replace(
            kind,
            number=n,
            probs=kind.probs[at] / kind.probs[at].sum(),
            values=kind.values[at],
            spread=kind.spread[at],
        )
        for kind, n, at in zip(risk.kinds, numbers, nodes, strict=True)
    ]
    second = None if risk.second is None else risk.second[np.ix_(rows, rows)]
    small = TokenRisk(kinds, risk.target, risk.queries, second)
    scores = params[rows]
    expected = sum(
        asked * _enumerated(small, scores.reshape(len(rows), -1)[:, q], q)
        for q, asked in enumerate(small.asked)
    )
    found = small.evaluate(scores)[0]
    size = np.abs(small.errors).max() ** 2 + float(small.own.max())
    what = f"loss of prompts of {sum(numbers)} tokens at {where}"
    expect(
        abs(found - expected) <= 1e-12 * size,
        what,
        f"the sum over all prompts, {expected!r}",
        found,
    )


def _enumerated(risk: TokenRisk, scores: Array, q: int) -> float:
    """Half the mean square of the error of the attention over all prompts, of query q."""
    loss = 0.0
    laws = []
    for kind, count in zip(risk.kinds, risk.counts, strict=True):
        nodes = range(count.rows.start, count.rows.stop)
        lengths = range(1, kind.number + 1) if kind.each else (kind.number,)
        laws.append(
            [
                (1.0 / len(lengths), each)
                for n in lengths
                for each in itertools.product(nodes, repeat=n)
            ]
        )
    for prompt in itertools.product(*laws):
        at = [node for _, part in prompt for node in part]
        chance = math.prod(share for share, _ in prompt) * float(
            np.prod(risk.probs[at])
        )
        attention = np.exp(scores[at] - scores[at].max())
        attention /= attention.sum()
        error = attention @ risk.errors[q][at]
        loss += 0.5 * chance * float(error @ error + attention**2 @ risk.spread[at, q])
    return loss
