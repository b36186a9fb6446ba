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


def test_wrong_second_moment_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PromptLaw, "scatter", property(lambda self: 1.01 * self.covariance / self.N))
    assert evidence.population_loss(True).violated


def test_cost_of_a_shifted_query_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "shift_table", lambda laws: ShiftTable(tuple(laws), np.ones(6), np.ones((6, 6))))
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
