"""Wrong arguments of the laws and risks of tokens are refused by name, whatever they are."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.tokens import (
    ChainRisk,
    Chains,
    CountRisk,
    IndependentCounts,
    TwoLayerTransformer,
    TwoStateCounts,
    mean_log_loss,
    mean_loss,
)

CHAINS = Chains([[0.9, 0.1], [0.3, 0.7]], window=2)
COIN = IndependentCounts(2, [0.5, 0.5], [[1, 0], [0, 1]], [0.5, 0.5])
PAIRS = TwoStateCounts(4)
KIND = icl.Kind(2, [0.5, 0.5], [1.0, 2.0])
TOKENS = icl.TokenRisk(KIND)
HEADS = icl.HeadsRisk(TOKENS, 2)
HEAD = icl.InductionHeads(T=6)
WHOLE = TwoLayerTransformer(CHAINS, 4, 3, 0, [0.0, 0.0, 0.0])
MATRICES = TwoLayerTransformer(CHAINS, 4, 3, 0, [0.0, 0.0, 0.0], "all")
DICTIONARY = icl.Representation(K=4, m=3, N=2, heads=2).risk()


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def hidden(array: Any) -> Any:
    """Return an array of which the first entry is masked."""
    mask = np.zeros(np.shape(array), dtype=bool)
    mask.flat[0] = True
    return np.ma.array(np.asarray(array, dtype=float), mask=mask)


# a function of one argument, the name that its refusal gives, and an array that would
# be right
PLACES: dict[str, tuple[Callable[[Any], Any], str, Any]] = {
    "Chains.last": (CHAINS.last, "length", 3),
    "Chains.irreducible": (CHAINS.irreducible, "length", 3),
    "Chains.draw: rng": (lambda x: CHAINS.draw(x, 3, 2), "rng", 3),
    "Chains.draw: length": (lambda x: CHAINS.draw(rng(), x, 2), "length", 3),
    "Chains.draw: size": (lambda x: CHAINS.draw(rng(), 3, x), "size", 3),
    "IndependentCounts.draw: rng": (lambda x: COIN.draw(x, 2), "rng", 3),
    "IndependentCounts.draw: size": (lambda x: COIN.draw(rng(), x), "size", 3),
    "TwoStateCounts.draw: rng": (lambda x: PAIRS.draw(x, 2), "rng", 3),
    "TwoStateCounts.draw: size": (lambda x: PAIRS.draw(rng(), x), "size", 3),
    "TwoStateCounts": (
        lambda x: TwoStateCounts(4, x),
        "concentration",
        [[1.0, 1.0], [1.0, 2.0]],
    ),
    "Table.mean": (PAIRS.table.mean, "values", PAIRS.table.probability),
    "mean_loss": (lambda x: mean_loss(PAIRS.table, x), "predicted", PAIRS.table.truth),
    "HeadsRisk.quadratic": (HEADS.quadratic, "scores", [[0.0, 1.0], [2.0, 3.0]]),
    "HeadsRisk.best_output": (HEADS.best_output, "scores", [[0.0, 1.0], [2.0, 3.0]]),
    "HeadsRisk.loss": (HEADS.loss, "params", np.ones((2, 3))),
    "TokenRisk: second": (lambda x: icl.TokenRisk(KIND, second=x), "second", np.eye(2)),
    "TokenRisk: target": (lambda x: icl.TokenRisk(KIND, x), "target", [1.0]),
    "TokenRisk: target and second": (
        lambda x: icl.TokenRisk(KIND, x, second=np.eye(2)),
        "target|second",
        [1.0],
    ),
    "TokenRisk.attention": (TOKENS.attention, "params", [0.0, 1.0]),
    "TokenRisk.error": (TOKENS.error, "params", [0.0, 1.0]),
    "ChainRisk: scores": (lambda x: ChainRisk(CHAINS, 4, x), "scores", np.ones((4, 2))),
    "ChainRisk: sink": (lambda x: ChainRisk(CHAINS, 4, sink=x), "sink", [0.5, 0.5]),
    "ChainRisk.attention": (ChainRisk(CHAINS, 4).attention, "params", np.ones((4, 2))),
    "CountRisk: sink": (lambda x: CountRisk(PAIRS, "square", x), "sink", [0.5, 0.5]),
    "CountRisk.excess": (CountRisk(PAIRS, "square").excess, "params", np.ones((4, 2))),
    "mean_log_loss: rest": (
        lambda x: mean_log_loss([1.0], 0.5, x, [2], 3),
        "log_rest",
        0.0,
    ),
    "InductionHeads.outcome": (HEAD.outcome, "params", [0.0, 1.0, 2.0]),
    "InductionHeads.average_error": (HEAD.average_error, "params", [0.0, 1.0, 2.0]),
    "TwoLayerTransformer.of_reduction": (
        WHOLE.of_reduction,
        "reduced",
        [0.0, 1.0, 2.0],
    ),
    "TwoLayerTransformer.matrices": (WHOLE.matrices, "params", [0.0, 1.0, 2.0]),
    "TwoLayerTransformer.outside": (MATRICES.outside, "params", MATRICES.initial),
    "DictionaryRisk.coefficients": (
        DICTIONARY.coefficients,
        "params",
        DICTIONARY.start,
    ),
}
WRONG: list[Any] = [
    object(),
    "a",
    -5,
    1.5,
    True,
    1j,
    np.nan,
    {},
    [[1.0], [2.0, 3.0]],
    np.array([1.0 + 1j, 2.0]),
    np.zeros(2, dtype=[("a", float), ("b", float)]),
    10**400,
]
SOMETIMES_RIGHT = {
    "TwoStateCounts": [1.5, True],
    "TokenRisk: target": [-5, 1.5],
    "mean_log_loss: rest": [-5, 1.5],
}


@pytest.mark.parametrize("place", PLACES)
def test_wrong_arguments_are_named(place: str) -> None:
    function, name, _ = PLACES[place]
    right = SOMETIMES_RIGHT.get(place, [])
    for value in WRONG:
        if any(
            value is known or (type(value) is type(known) and value == known)
            for known in right
        ):
            continue
        with pytest.raises(ValueError, match=rf"^({name}) = .*: must be ") as error:
            function(value)
        assert re.match(r"(\w+) = ", str(error.value))


@pytest.mark.parametrize(
    "place", [place for place, given in PLACES.items() if np.ndim(given[2])]
)
def test_masked_arrays_are_refused(place: str) -> None:
    function, name, right = PLACES[place]
    if place != "TokenRisk: target and second":
        function(right)  # without the mask
    with pytest.raises(ValueError, match=rf"^({name}) = "):
        function(hidden(right))


@pytest.mark.parametrize("length", [0, -5])
def test_sequences_have_a_symbol(length: int) -> None:
    for function in (CHAINS.last, CHAINS.irreducible):
        with pytest.raises(ValueError, match=r"length = .*: must be an integer >= 1"):
            function(length)


def test_scores_of_heads_are_as_many_as_the_tokens() -> None:
    with pytest.raises(
        ValueError,
        match=r"scores = \(1, 3\): must be of shape \(H, 2\), a row for each head",
    ):
        HEADS.quadratic([[0.0, 1.0, 2.0]])
