"""Files of runs whose numbers are not those of the problem that they name: a note says so."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.families import saved

SMALL: dict[str, Any] = {
    "L": 2.0,
    "delta": 1.0,
    "eta": 4.0,
    "K": 4,
    "N": 20,
    "above": 1e-3,
}
RUNS: dict[str, Callable[[], icl.Trajectory]] = {
    "closed": lambda: icl.simulate(2.0, 1.0, 4.0, epsilon=1e-4),
    "every step": lambda: icl.Regression(**SMALL, method="exact").simulate(),
    "skipped": lambda: icl.Regression(**SMALL, method="fast").simulate(),
    "flow": lambda: icl.Regression(**SMALL, method="flow").simulate(),
    "normalised": lambda: icl.Regression(**SMALL | {"eta": 0.1}, rule="ngd").simulate(),
    "embedding": lambda: icl.Regression(**SMALL, coordinates="embedding").simulate(),
    "auto": lambda: icl.LinearAttention(d=3, N=10, max_steps=50).simulate(),
    "recall": lambda: icl.Recall().simulate(),
    "drawn": lambda: icl.recall.Training(max_steps=20).simulate(),
    "tokens": lambda: icl.TokenSelection(max_steps=50).simulate(),
    "chains": lambda: icl.FixedChain(max_steps=50).simulate(),
    "induction": lambda: icl.InductionHeads(max_steps=20).simulate(),
}


@cache
def run_of(name: str) -> icl.Trajectory:
    """Return a run; what tests change is its file."""
    return RUNS[name]()


# a parameter of each that its loss depends on, and another value of it
PARAMETERS: dict[str, list[tuple[str, Any]]] = {
    "closed": [("L", 2.5), ("K", 6), ("N", 1000)],
    "every step": [("L", 2.5), ("N", 30), ("K", 5), ("noise", 0.1), ("eta", 4.1)],
    "skipped": [("L", 2.001), ("N", 21), ("eta", 4.1)],
    "flow": [("N", 30)],
    "normalised": [("N", 30), ("rule", "gd")],
    "embedding": [("N", 30), ("K", 5)],
    "auto": [("d", 4), ("N", 12)],
    "recall": [],
    "drawn": [("seed", 5)],
    "tokens": [],
    "chains": [],
    "induction": [],
}
Arrays = dict[str, Any]


def rewritten(path: Path, change: Callable[[Arrays, dict[str, Any]], None]) -> None:
    """Change the arrays and the facts of a file so that they fit together, as somebody by hand would."""
    with np.load(path) as file:
        arrays = dict(file)
    facts = json.loads(str(arrays.pop("meta")))
    change(arrays, facts)
    least = float(arrays["loss"].min())
    facts["holds"] |= {"least": least, "below": least < facts["floor"]}
    np.savez(path, meta=np.array(json.dumps(facts)), **arrays)


def loaded(
    run: icl.Trajectory, path: Path, change: Callable[[Arrays, dict[str, Any]], None]
) -> icl.Trajectory:
    run.save(path)
    rewritten(path, change)
    return icl.load(path)


def is_noted(run: icl.Trajectory) -> bool:
    """Whether a note says why only the saved steps are known, and no other step is made up."""
    if run.family is not None or "family" not in run.notes:
        return False
    between = int(run.t[-1]) + 1
    with pytest.raises(ValueError, match="a saved step"):
        run.at(between)
    return run.notes["family"].startswith(
        "the problem cannot be made on this machine, so only saved steps are known: "
    )


@pytest.mark.parametrize("name", RUNS)
def test_an_honest_file_has_no_note_and_goes_on(name: str, tmp_path: Path) -> None:
    run = run_of(name)
    again = loaded(run, tmp_path / "run.npz", lambda arrays, facts: None)
    assert again.notes == run.notes
    between = int(run.t[-1]) // 2 + 1
    assert again.at(between).loss == run.at(between).loss


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [(n, *pair) for n, pairs in PARAMETERS.items() for pair in pairs],
)
def test_another_parameter_is_noted(
    name: str, key: str, value: Any, tmp_path: Path
) -> None:
    def change(_: Arrays, facts: dict[str, Any]) -> None:
        facts["family"]["parameters"][key] = value

    assert is_noted(loaded(run_of(name), tmp_path / "run.npz", change))


@pytest.mark.parametrize("factor", [1.01, 2.0])
@pytest.mark.parametrize("name", RUNS)
def test_other_states_are_noted(name: str, factor: float, tmp_path: Path) -> None:
    def change(arrays: Arrays, _: dict[str, Any]) -> None:
        arrays["states"] = factor * arrays["states"]

    assert is_noted(loaded(run_of(name), tmp_path / "run.npz", change))


@pytest.mark.parametrize("name", RUNS)
def test_one_loss_of_many_that_is_another_is_noted_wherever_it_is(
    name: str, tmp_path: Path
) -> None:
    run = run_of(name)
    for place in {
        0,
        1,
        len(run.t) // 3,
        len(run.t) // 2,
        len(run.t) - 2,
        len(run.t) - 1,
    }:

        def change(arrays: Arrays, _: dict[str, Any], place: int = place) -> None:
            arrays["loss"][place] *= 1.5

        again = loaded(run, tmp_path / "run.npz", change)
        assert is_noted(again), place
        assert (
            f"at step {run.t[place]} the file has the loss {1.5 * run.loss[place]:.6g}"
            in again.notes["family"]
        )


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays, facts: arrays.update(
            states=arrays["states"][:, None], carry=arrays["carry"][:, None]
        ),
        lambda arrays, facts: arrays.update(states=arrays["states"][::-1]),
        lambda arrays, facts: arrays.update(states=np.zeros_like(arrays["states"])),
        lambda arrays, facts: facts.update(eta=3.0),
    ],
    ids=["another shape", "backwards", "zero", "another rate"],
)
def test_a_run_of_another_shape_or_rate_is_noted(change: Any, tmp_path: Path) -> None:
    problem = icl.Regression(**SMALL, coordinates="embedding")
    assert is_noted(loaded(problem.simulate(), tmp_path / "run.npz", change))


@pytest.mark.parametrize(
    ("off", "passes"), [(1e-13, True), (1e-9, True), (1e-5, False), (0.01, False)]
)
def test_a_formula_that_changed_is_noted_and_rounding_is_not(
    off: float, passes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of("every step")
    run.save(tmp_path / "run.npz")
    evaluate = type(run.risk).evaluate

    def other(risk: Any, params: Any, step: int = 0) -> Any:
        loss, gradient = evaluate(risk, params, step)
        return loss * (1.0 + off), gradient

    monkeypatch.setattr(type(run.risk), "evaluate", other)
    again = icl.load(tmp_path / "run.npz")
    assert (again.family is not None) == passes
    assert (
        "the formula has changed since it was written" in again.notes.get("family", "")
    ) != passes


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("no"),
        ZeroDivisionError("no"),
        IndexError("no"),
        AttributeError("no"),
    ],
)
def test_a_family_that_fails_in_any_way_leaves_the_saved_steps(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of("every step")
    run.save(tmp_path / "run.npz")

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(icl.Regression, "risk", fail)
    again = icl.load(tmp_path / "run.npz")
    assert again.loss.tolist() == run.loss.tolist()
    assert again.notes["family"].endswith(f"are known: {type(error).__name__}: no")


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100, 365])
def test_states_are_looked_at_from_the_ends_inward_and_each_once(count: int) -> None:
    order = [*saved._from_the_ends(count)]
    assert sorted(order) == [*range(count)]
    assert order[: min(count, 2)] == [count - 1, 0][: min(count, 2)]
    for size in (3, 5, 9, 17):
        if count >= 2 * size:
            gaps = np.diff(sorted(order[:size]))
            assert gaps.max() <= math.ceil((count - 1) / (size - 1)) + 1


def test_one_state_is_evaluated_whatever_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = run_of("every step")
    counts: list[int] = []
    evaluate = type(run.risk).evaluate

    def counting(risk: Any, params: Any, step: int = 0) -> Any:
        counts.append(step)
        return evaluate(risk, params, step)

    monkeypatch.setattr(type(run.risk), "evaluate", counting)
    assert run.risk is not None
    saved._refuse_other_losses(run, run.risk, seconds=-1.0)
    assert counts == [run.t[-1]]
    saved._refuse_other_losses(run, run.risk, seconds=math.inf)
    assert sorted(counts[1:]) == run.t.tolist()
