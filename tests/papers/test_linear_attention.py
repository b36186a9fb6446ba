"""The audit's rows and questions on linear attention; that wrong formulas turn them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.families.linear_attention import LoopedRisk, PromptLaw, ShiftTable
from icl_theory.papers import linear_attention as evidence


def test_answer_on_depth_has_the_losses_of_a_loop_and_of_layers_of_their_own() -> None:
    found = icl.answer("linear-attention-depth", quick=True)
    assert "0.155 of one layer, 0.015 of 8 in a loop" in found.answer
    assert all((series.y > 0.0).all() for series in found.series)
    ends = {series.label: series.y[[0, -1]] for series in found.series}
    for N in (20, 80):
        loop, own = ends[f"loop, N = {N}"], ends[f"own, N = {N}"]
        assert loop[0] == pytest.approx(own[0], rel=1e-9)  # one layer is one layer
        assert own[1] < 0.2 * loop[1]


def test_wrong_second_moment_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PromptLaw, "scatter", property(lambda self: 1.01 * self.covariance / self.N))
    assert evidence.population_loss(True).violated


def test_cost_of_a_shifted_query_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "shift_table", lambda laws: ShiftTable(tuple(laws), np.ones(6), np.ones((6, 6))))
    assert evidence.shifts(True).violated


@pytest.mark.parametrize("name", ["query", "covariate", "length", "noise", "task"])
def test_every_other_shift_has_to_cost_something(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("base", "query", "covariate", "length", "noise", "task")

    def table(laws: Any, changed: dict[str, float]) -> ShiftTable:
        excess = {"base": 0.0, "query": 9e-13, **dict.fromkeys(names[2:], 1.1e-3), **changed}
        return ShiftTable(tuple(laws), np.ones(6), np.tile([excess[each] for each in laws], (6, 1)))

    monkeypatch.setattr(evidence, "shift_table", lambda laws: table(laws, {}))
    assert not evidence.shifts(True).violated
    monkeypatch.setattr(
        evidence, "shift_table", lambda laws: table(laws, {name: 2e-12 if name == "query" else 9e-4})
    )
    assert evidence.shifts(True).violated


def test_shifts_cost_nothing_for_the_query_alone() -> None:
    assert evidence.shifts(True).verdict.startswith("holds only for the query alone")


def test_a_layer_that_does_not_memorise_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss on the k tasks counts, not that on new ones alone."""
    right = evidence.task_diversity

    def wrong(*arguments: Any, **options: Any) -> Any:
        found = right(*arguments, **options)
        return dataclasses.replace(found, pretraining=found.new)

    monkeypatch.setattr(evidence, "task_diversity", wrong)
    assert evidence.transition(True).violated


def test_layers_that_do_not_help_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoopedRisk, "floor", lambda self: 1.0)
    assert evidence.depth(True).violated
