"""Sweeps of in-context recall against single runs."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.cli import main


def test_each_point_is_a_run_of_simulate() -> None:
    found = icl.sweep(
        icl.Recall,
        eta=[0.2, 0.5],
        triggers=[2, 5],
        alpha=0.1,
        above=0.05,
        progress=False,
    )
    assert dict(found.sizes) == {"eta": 2, "triggers": 2}
    for eta in (0.2, 0.5):
        for triggers in (2, 5):
            run = icl.recall.simulate(eta=eta, triggers=triggers, alpha=0.1, above=0.05)
            point = found.sel(eta=eta, triggers=triggers)
            assert int(point.steps) == run.steps
            assert float(point.loss) == run.loss[-1]
    assert (found.status == "reached").all()


@pytest.mark.parametrize(
    "task",
    [
        icl.recall.RecallTask(12, 3, 4, alpha=0.1),
        icl.recall.RecallTask(12, [4, 5, 6], [1, 2, 3, 8], alpha=0.1),
        icl.recall.RecallTask(
            12,
            3,
            4,
            counts=[icl.recall.Counts.fixed(1 + q) for q in range(3)],
            alpha=0.1,
        ),
    ],
    ids=["first words", "words of its own", "laws of counts"],
)
def test_the_coordinates_of_a_sweep_of_a_task_are_those_of_the_task(
    task: icl.recall.RecallTask,
) -> None:
    found = icl.sweep(icl.Recall, task=task, eta=[0.2, 0.5], above=0.05, progress=False)
    run = icl.recall.simulate(task=task, eta=0.2, above=0.05)
    info = run.info
    assert (int(found.steps[0]), float(found.loss[0])) == (run.steps, run.loss[-1])
    numbers = {
        name: found.coords[name].item()
        for name in ("V", "triggers", "outputs", "alpha", "H")
    }
    assert (
        numbers
        == {name: info[name] for name in numbers}
        == {**numbers, "V": 12, "triggers": 3, "outputs": 4}
    )
    with pytest.raises(
        ValueError,
        match=r"V = \[12, 13\]: the task already sets V; give one of the two",
    ):
        icl.sweep(icl.Recall, task=task, V=[12, 13])


PARTS = {
    "V": 13,
    "triggers": 2,
    "outputs": 3,
    "alpha": 0.2,
    "H": 9,
    "law": "planted",
    "probs": (0.5, 0.3, 0.2),
    "counts": 2,
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_beside_a_task_is_refused_wherever_both_are_given(name: str) -> None:
    """One of the two would be left out in silence."""
    task, given = icl.recall.RecallTask(12, 3, 4, alpha=0.1, H=17), {name: PARTS[name]}
    for made in (
        lambda: icl.recall.simulate(task=task, **given),  # type: ignore[arg-type]
        lambda: icl.Recall(task=task, **given),
        lambda: icl.sweep(
            icl.Recall, task=task, eta=[0.2, 0.5], progress=False, **given
        ),
    ):
        with pytest.raises(
            ValueError,
            match=f"^{name} = .*: the task already sets {name}; give one of the two",
        ):
            made()


def test_of_several_parts_beside_a_task_the_first_is_named() -> None:
    """The sentence does not depend on the order in which a set holds its words."""
    task = icl.recall.RecallTask(12, 3, 4, H=17)
    for last in range(1, len(PARTS)):
        given = dict(list(PARTS.items())[-last - 1 :][::-1])
        with pytest.raises(ValueError, match=f"^{list(given)[-1]} = "):
            icl.sweep(icl.Recall, task=task, progress=False, **given)  # type: ignore[arg-type]


def test_steps_grow_like_the_root_of_the_number_of_triggers() -> None:
    found = icl.sweep(
        icl.Recall, eta=0.01, triggers=[4, 16, 64], V=200, counts=1, progress=False
    )
    np.testing.assert_allclose(found.exponent_triggers, 0.5, atol=1e-3)


def test_workers_and_a_store_change_no_bit(tmp_path: Path) -> None:
    axes = {
        "eta": np.geomspace(0.1, 1.0, 12),
        "M": [20, math.inf],
        "alpha": 0.2,
        "above": 0.05,
    }
    alone = icl.sweep(icl.Recall, **axes, progress=False)  # type: ignore[arg-type]
    store = tmp_path / "a"
    shared = icl.sweep(icl.Recall, **axes, workers=2, store=store, progress=False)  # type: ignore[arg-type]
    again = icl.sweep(icl.Recall, **axes, store=store, progress=False)  # type: ignore[arg-type]
    assert alone.equals(shared)
    assert alone.equals(again)
    assert icl.load_sweep(store).identical(again)
    with pytest.raises(ValueError, match="attention"):
        icl.sweep(icl.Recall, **axes, attention="relu", store=store, progress=False)  # type: ignore[arg-type]


def test_a_point_that_fails_is_recorded_and_the_rest_goes_on() -> None:
    found = icl.sweep(icl.Recall, triggers=[2, 60], V=50, progress=False)
    assert found.status.values.tolist() == ["reached", "failed"]
    assert "V" in str(found.message.values[1])
    assert icl.phase_table(found)["status"].tolist() == ["reached", "failed"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"alpha": 1.0}, "alpha = 1.0"),
        ({"triggers": []}, "triggers = "),
        ({"M": 0}, "M = 0"),
        ({"attention": "cubic"}, "attention = 'cubic'"),
        ({"words": 3}, "words: the family recall has no such parameter"),
        ({"eta": [0.1, 0.1]}, "eta = "),
    ],
)
def test_refuses_wrong_arguments(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        icl.sweep(icl.Recall, progress=False, **arguments)  # type: ignore[arg-type]


def test_command_writes_the_table_and_prints_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    line = ["recall", "sweep", "--triggers", "4,16", "--counts", "1", "--quiet"]
    with pytest.raises(SystemExit) as stop:
        main([*line, "--csv", str(tmp_path / "a.csv")])
    assert not stop.value.code
    rows = list(
        csv.DictReader(io.StringIO((tmp_path / "a.csv").read_text(encoding="utf-8")))
    )
    assert [row["steps"] for row in rows] == ["44", "87"]
    assert [row["V"] for row in rows] == ["50", "50"]
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(line)
    assert {"44", "87"} < set(capsys.readouterr().out.split())


def test_command_reports_failed_points_and_wrong_input(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for line, status in (
        (["--triggers", "2,60"], 3),
        (["--triggers", "2:x"], 2),
        (["--alpha", "1.5"], 2),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["recall", "sweep", *line, "--quiet"])
        assert stop.value.code == status
        assert capsys.readouterr().err.startswith("icl-theory: ")
