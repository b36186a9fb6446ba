"""Public methods that take parameters refuse masked, ragged and foreign ones with a sentence that names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.recall import RecallTask, TransformerRisk

CHAIN = icl.FixedChain(readout=0.5, bias="trained").risk()
TIED = icl.FixedChain().risk()
TOKENS = icl.TokenSelection(n=3, T=3, d=4)
MATRIX = icl.TokenSelection(n=3, T=3, d=4, trained="W")
LOCATION = icl.SingleLocation(attention="erf")
LAW = icl.LinearAttention(d=3, N=5).law()
CORRELATED = icl.linear_attention.PromptLaw(
    np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]]), N=5
)
MERGED = icl.LinearAttention(d=3, N=5).risk()
WORDS = RecallTask(8, 2, 3, H=9, alpha=0.1)
TRANSFORMER = TransformerRisk(WORDS, "linear", batch=4, seed=0)
PAIR = icl.HeadsRisk(
    icl.TokenRisk(icl.Kind(4, probs=[0.5, 0.5], values=[-1.0, 1.0]), target=1.0),
    heads=2,
)

# What is called, and an argument that it takes.
METHODS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "chain, predicted": (CHAIN.predicted, CHAIN.initial),
    "chain, strength": (CHAIN.strength, CHAIN.initial),
    "chain, excess": (CHAIN.excess, CHAIN.initial),
    "tied chain, predicted": (TIED.predicted, TIED.initial),
    "tokens, selected": (TOKENS.selected, np.ones(4)),
    "tokens, margin": (TOKENS.margin, [0, 1, 2]),
    "tokens, is_local": (TOKENS.is_local, [0, 1, 2]),
    "tokens, start": (TOKENS.risk, np.ones(4)),
    "matrix, selected": (MATRIX.selected, np.ones((4, 4))),
    "matrix, start": (MATRIX.risk, np.ones((4, 4))),
    "law, off": (LAW.off, np.ones(3)),
    "correlated law, off": (CORRELATED.off, np.eye(3)),
    "law, excess": (LAW.excess_of, np.ones(3)),
    "merged, excess": (MERGED.excess, MERGED.initial),
    "transformer, matrices": (TRANSFORMER.matrices, TRANSFORMER.initial),
    "heads, quadratic": (PAIR.quadratic, np.ones((2, 2))),
    "heads, best_output": (PAIR.best_output, np.array([[0.0, 0.1], [0.1, 0.0]])),
}


def masked(value: Any) -> np.ma.MaskedArray:
    """The same numbers with one of them masked, which stands for no number."""
    mask = np.zeros(np.shape(value), dtype=bool)
    mask[(0,) * mask.ndim] = True
    return np.ma.array(np.array(value, dtype=float), mask=mask)


@pytest.mark.parametrize("name", METHODS)
def test_wrong_parameters_are_refused_by_name(name: str) -> None:
    method, right = METHODS[name]
    method(right)
    not_finite = np.full(np.shape(right), np.nan)
    longer = np.ones((*np.shape(right), 2))
    foreign = (
        "a",
        object(),
        1j,
        2.5,
        [[1.0, 2.0], [3.0]],
        np.zeros(0),
        longer,
        not_finite,
        masked(right),
    )
    if not name.endswith("start"):  # without one there is a default
        foreign += (None,)
    for wrong in foreign:
        with pytest.raises(ValueError, match=r"^\w+ = .*must be "):
            method(wrong)


@pytest.mark.parametrize(
    "name", ["chain, predicted", "chain, strength", "tied chain, predicted"]
)
def test_logits_beyond_the_range_of_floats_are_refused(name: str) -> None:
    method, right = METHODS[name]
    with pytest.raises(ValueError, match=r"^params = "):
        method(np.full(np.shape(right), 1e200))


def test_directions_of_no_length_are_refused() -> None:
    for risk in (LOCATION.risk(), LOCATION.sampled(4)):
        with pytest.raises(ValueError, match=r"^params = "):
            risk.loss(np.zeros(np.shape(risk.initial)))


@pytest.mark.parametrize("selected", [[0, 1, 3], [0, 1, -1], [0, 1], [0.5, 1, 2]])
def test_tokens_that_no_input_has_are_refused(selected: list[float]) -> None:
    for method in (TOKENS.margin, TOKENS.is_local):
        with pytest.raises(ValueError, match=r"^selected = "):
            method(selected)


def test_other_arguments_are_refused_by_name() -> None:
    for value in (None, "a", np.nan, np.ma.masked):
        with pytest.raises(ValueError, match=r"^s = "):
            TIED.best_bias(value)
    for value in (None, "a", -1.0):
        with pytest.raises(ValueError, match=r"^slack = "):
            TOKENS.is_local([0, 1, 2], value)
    for value in (None, 3, "a"):
        with pytest.raises(ValueError, match=r"^run = "):
            icl.Recall().population_excess(value)
        with pytest.raises(ValueError, match=r"^given = "):
            icl.Recall.unfolded(value)
    for value in (None, [[1, 2], [3]], masked(np.ones((2, 9)))):
        with pytest.raises(ValueError, match=r"^tokens = "):
            WORDS.predict(value)
