"""Runs and sweeps by every rule have the same bits however they are interrupted, continued or divided."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray

import icl_theory as icl
from icl_theory.cli import main
from icl_theory.engine.rules import RULES
from icl_theory.sweeps.workers import cluster
from tests.grids.crash import KILLED
from tests.test_workers import Cluster

ROOT = Path(__file__).parents[1]
SMALL = {"L": 2.0, "delta": 1.0, "K": 3, "N": 6, "above": 1e-12, "max_steps": 160}

COSINE = {"schedule": "cosine", "decay_steps": 130, "warmup": 12}
STEPS = {"schedule": "piecewise", "milestones": (9, 40), "decay_factor": 0.3}
ROOT_LAW = {"schedule": "inverse-sqrt", "decay_steps": 5}

TRAININGS: dict[str, dict[str, Any]] = {
    **{f"{rule}, constant": {"rule": rule} for rule in RULES},
    **{f"{rule}, cosine": {"rule": rule, **COSINE} for rule in RULES},
    **{f"{rule}, piecewise": {"rule": rule, **STEPS} for rule in RULES},
    "heavy-ball, decay and clipping": {
        "rule": "heavy-ball",
        "weight_decay": 0.01,
        "clip": 0.2,
        **ROOT_LAW,
    },
    "gd, decoupled decay": {"rule": "gd", "weight_decay": 0.02},
    "adam, step": {"rule": "adam", "beta1": 0.5, "schedule": "step", "decay_steps": 11},
}

# many steps, of which most are skipped
SKIPPED: dict[str, dict[str, Any]] = {
    "heavy-ball": {"rule": "heavy-ball", "momentum": 0.8},
    "heavy-ball with decay": {
        "rule": "heavy-ball",
        "momentum": 0.8,
        "weight_decay": 1e-4,
    },
    "gd with decay": {"rule": "gd", "weight_decay": 1e-4},
}


def _problem(settings: dict[str, Any], **changes: Any) -> icl.Regression:
    return icl.Regression(**{**SMALL, "eta": 0.05, **settings, **changes})


def _check_states(settings: dict[str, Any], folder: Path, count: int) -> None:
    """Hold `run.at` at random steps against runs that end there, before and after a file."""
    run = _problem(settings).simulate()
    run.save(folder / "run.npz")
    loaded = icl.load(folder / "run.npz")
    rng = np.random.default_rng(5)
    steps = rng.permutation(int(run.t[-1]) + 1)[:count].tolist()
    for t in steps:
        expected = (
            _problem(settings, max_steps=t).simulate().params if t else run.states[0]
        )
        for again in (run, loaded):
            np.testing.assert_array_equal(again.at(t).params, expected)


# Every rule meets a schedule in those by cosines; for the others two rules are enough.
FEW_TRAININGS = [
    name
    for name in TRAININGS
    if "piecewise" not in name or name.startswith(("nesterov", "adam,"))
]


@pytest.mark.parametrize("name", FEW_TRAININGS)
def test_every_state_is_that_of_a_run_that_ends_there(
    name: str, tmp_path: Path
) -> None:
    _check_states(TRAININGS[name], tmp_path, count=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAININGS)
def test_every_state_is_that_of_a_run_that_ends_there_at_many_steps(
    name: str, tmp_path: Path
) -> None:
    _check_states(TRAININGS[name], tmp_path, count=60)


@pytest.mark.parametrize("name", SKIPPED)
def test_a_loaded_run_skips_to_the_same_bits(name: str, tmp_path: Path) -> None:
    problem = _problem(SKIPPED[name], eta=0.2, method="fast", max_steps=30_000)
    run = problem.simulate()
    run.save(tmp_path / "run.npz")
    loaded = icl.load(tmp_path / "run.npz")
    steps = np.random.default_rng(2).integers(1, int(run.t[-1]), 10)
    for t in steps.tolist():
        np.testing.assert_array_equal(loaded.at(t).params, run.at(t).params)


@pytest.mark.parametrize("rule", RULES)
def test_callbacks_and_interrupts_leave_the_bits_as_they_are(rule: str) -> None:
    problem = _problem({"rule": rule})
    expected = problem.simulate()
    calls: list[tuple[int, float]] = []
    watched = problem.simulate(callback=lambda step, loss: calls.append((step, loss)))
    np.testing.assert_array_equal(watched.states, expected.states)
    assert calls
    assert calls[-1][1] == expected.at(calls[-1][0]).loss

    def interrupt(step: int, loss: float) -> None:
        if step >= 30:
            raise KeyboardInterrupt

    cut = problem.simulate(callback=interrupt)
    assert cut.interrupted
    assert cut.t[-1] < expected.t[-1]
    for t in (int(cut.t[-1]), 77, 160):
        np.testing.assert_array_equal(cut.at(t).params, expected.at(t).params)


# ---- sweeps

SWEEP: dict[str, Any] = {
    "L": [1.0, 2.0],
    "delta": 1.0,
    "eta": 0.05,
    "K": 3,
    "N": 6,
    "above": 1e-3,
    "max_steps": 120,
    "rule": [*RULES],
    "weight_decay": [1e-4, 1e-2],
}
SCHEDULED = SWEEP | {
    "L": 2.0,
    "schedule": "cosine",
    "decay_steps": 60,
    "warmup": [3, 10],
}


def _sweep(given: dict[str, Any], **how: Any) -> xarray.Dataset:
    return icl.sweep(**given, **how, progress=False)


def _assert_same(found: xarray.Dataset, expected: xarray.Dataset) -> None:
    assert not found.attrs["interrupted"]
    assert found.data_vars.keys() == expected.data_vars.keys()
    for name, values in expected.data_vars.items():
        np.testing.assert_array_equal(
            found[name].values, values.values, err_msg=str(name)
        )


@pytest.fixture(scope="module", params=["constant", "cosine"])
def given(request: pytest.FixtureRequest) -> dict[str, Any]:
    return SWEEP if request.param == "constant" else SCHEDULED


@pytest.fixture(scope="module")
def expected(given: dict[str, Any]) -> xarray.Dataset:
    return _sweep(given)


def test_points_of_a_sweep_are_single_runs(
    given: dict[str, Any], expected: xarray.Dataset
) -> None:
    axes = [str(name) for name in expected.dims]
    rng = np.random.default_rng(0)
    for _ in range(4):
        place = {name: int(rng.integers(expected.sizes[name])) for name in axes}
        point = expected.isel(place)
        run = icl.Regression(
            **given | {name: point[name].item() for name in axes}
        ).simulate()
        assert point["loss"].item() == run.loss[-1]
        assert point["steps"].item() == (-1 if run.steps is None else run.steps)


def test_threads_compute_the_same_bits(
    given: dict[str, Any], expected: xarray.Dataset
) -> None:
    with ThreadPoolExecutor(3) as executor:
        _assert_same(_sweep(given, executor=executor), expected)


@pytest.mark.slow
def test_processes_compute_the_same_bits(
    given: dict[str, Any], expected: xarray.Dataset
) -> None:
    _assert_same(_sweep(given, workers=2), expected)


@pytest.mark.slow
def test_a_dask_cluster_computes_the_same_bits(
    given: dict[str, Any], expected: xarray.Dataset, tmp_path: Path
) -> None:
    running = Cluster(tmp_path)
    try:
        running.worker()
        with cluster(running.address) as executor:
            _assert_same(_sweep(given, executor=executor), expected)
    finally:
        running.close()


@pytest.mark.slow
def test_a_sweep_that_is_killed_goes_on_to_the_same_bits(
    given: dict[str, Any], expected: xarray.Dataset, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    code = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "import icl_theory as icl\n"
        "from tests.grids.crash import end_at\n"
        "given, store, operations = json.loads(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])\n"
        "end_at(store, operations, torn=True)\n"
        "icl.sweep(**given, store=store, progress=False)\n"
    )
    killed = 0
    for operations in (8, 14, 20):
        line = [
            sys.executable,
            "-c",
            code,
            json.dumps(given),
            str(store),
            str(operations),
        ]
        ended = subprocess.run(
            line, cwd=ROOT, env=os.environ, capture_output=True, text=True
        )
        assert ended.returncode in (0, KILLED), ended.stderr
        killed += ended.returncode == KILLED
    assert killed
    _assert_same(_sweep(given, store=store), expected)


# ---- the command line


def _status(*words: str) -> Any:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ended.value.code


@pytest.mark.parametrize("rule", RULES)
def test_commands_know_every_rule(
    rule: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    line = [
        "--L",
        "2",
        "--delta",
        "1",
        "--eta",
        "0.05",
        "--K",
        "3",
        "--N",
        "6",
        "--above",
        "1e-3",
    ]
    line += [
        "--max-steps",
        "60",
        "--rule",
        rule,
        "--schedule",
        "cosine",
        "--warmup",
        "5",
        "--decay-steps",
        "40",
    ]
    assert _status(
        "simulate", *line, "--json", "--save", str(tmp_path / "run.npz")
    ) in (0, 1)
    printed = json.loads(capsys.readouterr().out)
    schedule = "cosine after a warm-up of 5 steps"
    assert printed["rule"] == f"{rule}, {schedule}"
    loaded = icl.load(tmp_path / "run.npz")
    assert loaded.family is not None
    assert loaded.at(3).loss == loaded.family.simulate().at(3).loss
    assert _status("sweep", *line, "--L", "1,2", "--dry-run", "--json") == 0
    assert "2 points" in capsys.readouterr().out


def test_help_lists_the_settings_of_the_rule_by_themselves(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in (["simulate"], ["sweep"], ["linear-attention", "simulate"]):
        assert _status(*command, "--help") == 0
        text = capsys.readouterr().out
        assert text.index("Update rule ─") > text.index("--eta")
        assert text.index("--momentum") > text.index("Update rule ─")
