"""The planted faults: their texts are in the package, and audit and tests notice some of them."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import icl_theory as icl
from icl_theory import explorer
from icl_theory.papers import Claim, Status

PACKAGE = Path(icl.__file__).parent
SCRIPTS = Path(__file__).parents[1] / "scripts"
NOTICED = {  # and the rows' functions that notice them
    "attention": "direct_sums",
    "hessian": "derivatives",
    "metric": "reductions",
    "few-terms": "closed_counts",
    "sampler-noise": "laws",
    "papers-rule": "papers_rule",
    "recall-closed": "linear_convergence",
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


def test_a_fault_changes_one_place_of_the_package() -> None:
    sources = {
        path: (PACKAGE / path).read_text(encoding="utf-8") for path in {each.path for each in planted.FAULTS}
    }
    assert [each.name for each in planted.FAULTS if sources[each.path].count(each.old) != 1] == []
    for fault in planted.FAULTS:
        if fault.path.endswith(".py"):
            ast.parse(sources[fault.path].replace(fault.old, fault.new), fault.name)


def test_a_fault_is_in_the_module_that_is_changed() -> None:
    """Also in one that is a package, whose module is not named after its file."""
    modules = {each.path: faults.Planter(each).module for each in planted.FAULTS if each.path.endswith(".py")}
    assert {path: getattr(importlib.util.find_spec(name), "origin", None) for path, name in modules.items()} == {
        path: str(PACKAGE / path) for path in modules
    }


def test_names_are_told_apart() -> None:
    names = [fault.name for fault in planted.FAULTS]
    assert len(set(names)) == len(names) >= 45


def test_what_is_called_on_import_reaches_all_that_use_its_file() -> None:
    named = {fault.name: fault for fault in planted.FAULTS}
    right = faults.Found({}, {}, {
        ("row", "0"): {(named["worst-curvature"].path, 1)},
        ("row", "1"): {("risk.py", 1)},
    })  # fmt: skip
    assert faults.within_reach(named["worst-curvature"], right) == {("row", "0")}


def reads(verdict: str) -> str:
    return faults.outcome_of(Claim("a", "b", "c", Status.EXACT, "d", "e", "f", verdict))


def test_findings_count_where_they_read_otherwise() -> None:
    row, guard = ("row", "0", ""), ("row", "1", "")
    right = faults.Found({row: reads("holds only for 48%"), guard: faults.HOLDS}, {}, {})
    for verdict, said in (
        ("holds only for 47%", "reads otherwise"),
        ("holds", "reads otherwise"),
        ("fails: x", "fails"),
    ):
        wrong = faults.Found({row: reads(verdict), guard: faults.HOLDS}, {}, {})
        assert faults.turned(right, wrong) == {row: said}
    assert faults.turned(right, right) == {}
    assert faults.turned(right, faults.Found({guard: reads("holds only here")}, {}, {})) == {guard: "fails"}


def test_the_page_has_every_fault_and_each_is_found() -> None:
    page = (SCRIPTS.parent / "docs" / "faults.md").read_text(encoding="utf-8")
    rows = [line[2:].split(" | ")[0] for line in page.splitlines() if line.startswith("| ")]
    assert [name for name in rows if name != "fault"] == [fault.name for fault in planted.FAULTS]
    assert "**nothing**" not in page


def test_the_shares_of_the_page_are_those_of_its_tables() -> None:
    page = (SCRIPTS.parent / "docs" / "faults.md").read_text(encoding="utf-8")
    table = {cells[0]: cells[3:] for line in page.splitlines() if len(cells := _cells(line)) == 5}
    for group in planted.GROUPS:
        (said,) = (line for line in page.splitlines() if line.startswith(f"- **{group.title}**"))
        counts = []
        for place in range(2):
            cells = [table[fault.name][place] for fault in group.faults]
            tried = [cell for cell in cells if cell != "not run"]
            late = rf"–|\*\*nothing\*\*|([^;]*\({faults.LATE}\)(; )?)+|{faults.LATE}"
            if tried:
                counts.append((str(len(tried)), str(sum(not re.fullmatch(late, cell) for cell in tried))))
        assert re.findall(r"tried on (\d+) and finds? (\d+)", said) == counts


def test_each_line_of_the_tables_has_five_cells() -> None:
    lines = [
        line for line in (SCRIPTS.parent / "docs" / "faults.md").read_text("utf-8").splitlines() if line[:1] == "|"
    ]
    assert len(lines) > len(planted.FAULTS)
    assert {len(_cells(line)) for line in lines} == {5}
    barred = {fault.name: faults.Result(["|x|"], "test_x.py::test[a|b]") for fault in planted.FAULTS}
    made = [line for line in faults.page([], barred).splitlines() if line[:1] == "|"]
    assert {len(_cells(line)) for line in made} == {5}


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_the_page_counts_what_audit_and_tests_find_apart() -> None:
    names = [fault.name for fault in planted.MISSED[:6]]
    late = f"a row ({faults.LATE})"
    found = dict(zip(names, (
        faults.Result(["a row", late], ""),
        faults.Result([], "tests/test_x.py::test_y"),
        faults.Result([], ""),
        faults.Result(None, "tests/test_x.py::test_z"),
        faults.Result(["a row (raises ValueError)"], None),
        faults.Result([late], faults.LATE),
    ), strict=True))  # fmt: skip
    (said,) = (line for line in faults.shares(found) if planted.GROUPS[1].title in line)
    assert "The audit was tried on 5 and finds 2, the tests were tried on 5 and find 2." in said
    assert said.endswith("One or the other finds 4 of 6.")
    lines = faults.page(["a row", "a row of its own"], found).splitlines()
    assert [_cells(line)[3:] for line in lines if line.startswith(tuple(f"| {name} |" for name in names))] == [
        [f"a row; {late}", "–"],
        ["–", "`test_x.py::test_y`"],
        ["**nothing**", "**nothing**"],
        ["not run", "`test_x.py::test_z`"],
        ["a row (raises ValueError)", "not run"],
        [late, faults.LATE],
    ]
    assert lines[-1:] == ["- a row of its own"]


def test_what_runs_out_of_time_is_told_apart_from_what_raises() -> None:
    def patient() -> int:
        for _ in range(2):
            with contextlib.suppress(TimeoutError):
                while True:
                    pass
        return 1

    assert faults._guarded(patient, 0.02) == faults.LATE
    assert faults._guarded(lambda: 1 // 0, 10) == "raises ZeroDivisionError"
    assert faults._guarded(lambda: 1, 0) == 1
    row = ("row", "0", "")
    for before in (faults.HOLDS, "holds only for 48%"):
        late = faults.turned(faults.Found({row: before}, {}, {}), faults.Found({row: faults.LATE}, {}, {}))
        assert faults.in_words(late, {"0": "a row"}) == [f"a row ({faults.LATE})"]


@pytest.mark.parametrize("fault", planted.FAULTS[::7], ids=lambda fault: fault.name)
def test_the_nearest_tests_are_there(fault: planted.Fault) -> None:  # type: ignore[name-defined]
    files = faults.relevant(fault)
    assert all((SCRIPTS.parent / name).is_file() for name in files)
    assert (f"icl_theory/{fault.path}" in files) == fault.path.endswith(".py")
    assert fault.tests in files[0]


def test_the_scripts_of_the_explorer_are_changed_as_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    (fault,) = (each for each in planted.FAULTS if each.name == "tail-in-words")
    right = explorer.page()
    monkeypatch.setattr(explorer, "_read", explorer._read)  # undone at the end
    faults.plant(fault)
    assert explorer.page() == right.replace(fault.old, fault.new) != right


@pytest.mark.slow
def test_the_first_test_that_fails_with_a_fault_is_named_and_remembered(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", str(SCRIPTS / "faults.py"), "--quick", "--json", "--jobs", "1"]
    command += ["--only", "half-passage", "--rows", "papers_rule", "--tests", "--kept", str(tmp_path / "kept.json")]
    kept = []
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True)
        (found,) = json.loads(done.stdout)["half-passage"]
        assert found.startswith("tests/results/test_transitions.py::")
        kept.append((tmp_path / "kept.json").read_text(encoding="utf-8"))
    assert kept[0] == kept[1]


@pytest.mark.slow
def test_some_faults_are_noticed_by_the_quick_audit() -> None:
    command = [sys.executable, "-W", "ignore", str(SCRIPTS / "faults.py"), "--quick", "--json", "--jobs", "2"]
    command += ["--only", ",".join(NOTICED), "--rows", ",".join(sorted(set(NOTICED.values())))]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"})
    found = json.loads(done.stdout)
    assert [name for name in NOTICED if not found[name]] == []
    assert done.returncode == 0
