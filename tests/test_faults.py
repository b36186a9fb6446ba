"""The planted faults: their texts are in the package, and audit and tests notice some of them."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import icl_theory as icl
from icl_theory.claims import Outcome, Verdict

PACKAGE = Path(icl.__file__).parent
SCRIPTS = Path(__file__).parents[1] / "scripts"
DOZEN = {  # and the rows' functions that notice them
    "noise-missing": "direct_sums",
    "attention": "direct_sums",
    "hessian": "derivatives",
    "backward": "derivatives",
    "groups-metric": "reductions",
    "metric": "reductions",
    "floor": "noise_floor",
    "few-terms": "closed_counts",
    "phase-one": "closed_counts",
    "skipping": "skipped_steps",
    "linear": "laws",
    "sampler-noise": "laws",
    "stable-rate": "stable_rates",
    "papers-rule": "papers_rule",
    "concentration-value": "concentration",
    "recall-gradient": "lemma_adding",
    "recall-background": "lemma_averaging",
    "recall-closed": "linear_convergence",
    "normalised": "linear_convergence",
    "noise-cost": "learnt_frequency",
    "feed-forward": "part_roles",
}


def _script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


planted = _script("planted")
faults = _script("faults")


@pytest.mark.parametrize("fault", planted.FAULTS, ids=lambda fault: fault.name)
def test_a_fault_changes_one_place_of_the_package(fault: planted.Fault) -> None:  # type: ignore[name-defined]
    source = (PACKAGE / fault.path).read_text(encoding="utf-8")
    assert source.count(fault.old) == 1
    ast.parse(source.replace(fault.old, fault.new))


def test_names_are_told_apart() -> None:
    names = [fault.name for fault in planted.FAULTS]
    assert len(set(names)) == len(names) >= 45


def test_what_is_called_on_import_reaches_all_that_use_its_file() -> None:
    named = {fault.name: fault for fault in planted.FAULTS}
    right = faults.Found({}, {}, {
        ("row", "0"): {("engine/interpolant.py", 1)},
        ("row", "1"): {("risk.py", 1)},
    })  # fmt: skip
    assert faults.within_reach(named["skipping"], right) == {("row", "0")}


def test_findings_count_where_they_read_otherwise() -> None:
    row, guard = ("row", "0", ""), ("row", "1", "")
    right = faults.Found({row: faults.outcome_of(Verdict(Outcome.ONLY, " for 48%")), guard: faults.HOLDS}, {}, {})
    for verdict, said in (
        (Verdict(Outcome.ONLY, " for 47%"), "reads otherwise"),
        (Verdict(Outcome.HOLDS), "reads otherwise"),
        (Verdict(Outcome.FAILS, ": x"), "fails"),
    ):
        wrong = faults.Found({row: faults.outcome_of(verdict), guard: faults.HOLDS}, {}, {})
        assert faults.turned(right, wrong) == {row: said}
    assert faults.turned(right, right) == {}
    assert faults.turned(
        right, faults.Found({guard: faults.outcome_of(Verdict(Outcome.ONLY, " here"))}, {}, {})
    ) == {guard: "fails"}


def test_the_page_has_every_fault_and_each_is_found() -> None:
    page = (SCRIPTS.parent / "docs" / "faults.md").read_text(encoding="utf-8")
    rows = [line[2:].split(" | ")[0] for line in page.splitlines() if line.startswith("| ")]
    assert [name for name in rows if name != "fault"] == [fault.name for fault in planted.FAULTS]
    assert "**nothing**" not in page


def test_the_page_counts_what_audit_and_tests_find_apart() -> None:
    one, two, three = (fault.name for fault in planted.MISSED[:3])
    key = ("row", "0", "")
    found = {
        one: faults.Result({key: faults.FAILS}, ""),
        two: faults.Result({}, "tests/test_x.py::test_y"),
        three: faults.Result({}, ""),
    }
    (said,) = (line for line in faults.shares(found) if "Of 3 faults" in line)
    assert "Of 3 faults the audit finds 1. The tests find 1 of the 3" in said
    assert said.endswith("One or the other finds 2.")
    page = faults.page(faults.Found({key: faults.HOLDS}, {"0": "a row"}, {}), found).splitlines()
    cells = [
        line[2:-2].split(" | ")[3:] for line in page if line.startswith(tuple(f"| {name} |" for name in found))
    ]
    assert cells == [["a row", "–"], ["–", "`test_x.py::test_y`"], ["**nothing**", "–"]]


@pytest.mark.parametrize("fault", planted.FAULTS[::7], ids=lambda fault: fault.name)
def test_the_nearest_tests_are_there(fault: planted.Fault) -> None:  # type: ignore[name-defined]
    files = faults.relevant(fault)
    assert all((SCRIPTS.parent / name).is_file() for name in files)
    assert f"icl_theory/{fault.path}" in files
    assert fault.tests in files[0]


@pytest.mark.slow
def test_the_first_test_that_fails_with_a_fault_is_named_and_remembered(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", str(SCRIPTS / "faults.py"), "--quick", "--json", "--jobs", "1"]
    command += ["--only", "half-passage", "--rows", "papers_rule", "--tests", "--kept", str(tmp_path / "kept.json")]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True)
        (found,) = json.loads(done.stdout)["half-passage"]
        assert found.startswith("tests/results/test_transitions.py::")
    assert len((tmp_path / "kept.json").read_text(encoding="utf-8").splitlines()) == 1


def test_a_dozen_faults_are_noticed_by_the_quick_audit() -> None:
    command = [sys.executable, "-W", "ignore", str(SCRIPTS / "faults.py"), "--quick", "--json", "--jobs", "2"]
    command += ["--only", ",".join(DOZEN), "--rows", ",".join(sorted(set(DOZEN.values())))]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"})
    found = json.loads(done.stdout)
    assert [name for name in DOZEN if not found[name]] == []
    assert done.returncode == 0
