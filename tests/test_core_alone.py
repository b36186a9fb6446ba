"""The core runs without papers, proofs and the explorer, from a folder of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import icl_theory as icl

PACKAGE = Path(icl.__file__).parent
OPTIONAL = ("papers", "certified", "explorer")


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a copy of the package from which the optional parts are missing."""
    folder = tmp_path_factory.mktemp("core")
    shutil.copytree(
        PACKAGE,
        folder / "icl_theory",
        ignore=shutil.ignore_patterns("__pycache__", *OPTIONAL),
    )
    return folder


def python(core: Path, *arguments: str) -> str:
    """Run Python in the folder, with no other copy of the package in sight, and return what it prints."""
    # -P and an empty PYTHONPATH leave only installed packages, of which the checkout
    # may be one; the folder comes first on the path and hides it.
    environment = os.environ | {"PYTHONPATH": str(core)}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=core,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Scripts that are run one after the other in one process, each as a module of its own.
SCRIPTS = {
    "parts": f"""
import importlib.util as u
from pathlib import Path
import icl_theory
print(Path(icl_theory.__file__).parent)
print([u.find_spec(f'icl_theory.{{p}}') for p in {OPTIONAL}])
""",
    "methods": """
import icl_theory as icl
for method in ("closed", "exact", "fast", "flow"):
    print(method, icl.simulate(2.0, 1.0, 4.0, method=method).steps)
print(*icl.list_families())
""",
    "sweep": """
import icl_theory as icl
done = icl.sweep(L=[1.0, 2.0], delta=1.0, eta=4.0, imbalance=0.1, store="st")
again = icl.load_sweep("st")
print(done.steps.values.tolist() == again.steps.values.tolist(), done.steps.values[1])
print("theorem_1" in done)
print(len(icl.phase_table(again)))
""",
    "own": """
from dataclasses import dataclass
from typing import ClassVar
import numpy as np
import icl_theory as icl
from icl_theory import testing

others = icl.Kind(10, probs=[0.5, 0.5], values=[0.0, 1.0])
query = icl.Kind(1, probs=[1.0], values=[1.0])
risk = icl.TokenRisk([others, query], target=1.0)
testing.check_risk(risk)
print(round(risk.loss([0.0, 0.0, 0.0]), 12))

@dataclass(frozen=True, eq=False)
class Bowl(icl.Family):
    name: ClassVar[str] = "bowl"
    title: ClassVar[str] = "a bowl"
    eta: float = icl.parameter(0.5, kind=icl.families.Number(), meaning="learning rate")
    x: float = icl.parameter(2.0, kind=icl.families.Number(), meaning="start")

    def risk(self):
        return BowlRisk(self.x)

class BowlRisk(icl.Risk):
    def floor(self):
        return 0.0

    def __init__(self, x):
        self.x = x

    @property
    def initial(self):
        return np.array([self.x])

    def evaluate(self, params, step=0):
        return 0.5 * float(params @ params), params.copy()

testing.check_risk(BowlRisk(2.0))
testing.check_family(Bowl)
run = icl.simulate(2.0, 1.0, 4.0)
try:
    icl.check_bounds(run)
except ValueError as error:
    print(error)
print(icl.crosscheck(icl.simulate(2.0, 1.0, 4.0, K=4, N=20), batch=64).passed)
""",
}


@pytest.fixture(scope="module")
def printed(core: Path) -> dict[str, list[str]]:
    """The lines that each of the scripts prints."""
    for name, code in SCRIPTS.items():
        (core / f"script_{name}.py").write_text(code, encoding="utf-8")
    code = "; ".join(f"import script_{name}; print('----')" for name in SCRIPTS)
    parts = python(core, "-c", code).split("----\n")
    return {
        name: part.splitlines() for name, part in zip(SCRIPTS, parts[:-1], strict=True)
    }


def test_the_optional_parts_are_missing(
    core: Path, printed: dict[str, list[str]]
) -> None:
    assert printed["parts"] == [str(core / "icl_theory"), "[None, None, None]"]


def test_every_method_simulates(printed: dict[str, list[str]]) -> None:
    *exact, flow, families = printed["methods"]
    assert exact == [f"{method} 1413" for method in ("closed", "exact", "fast")]
    assert flow.startswith("flow ")
    assert families == "regression grouped-regression gaussian-regression"


def test_a_sweep_is_stored_and_read_again(printed: dict[str, list[str]]) -> None:
    assert printed["sweep"] == ["True 1413", "False", "2"]


def test_a_token_risk_and_a_family_of_ones_own_are_checked(
    printed: dict[str, list[str]],
) -> None:
    loss, refusal, passed = printed["own"]
    assert loss == "0.113636363636"
    assert "statements to check" in refusal
    assert passed == "True"


def test_the_command_line_runs_and_lacks_only_what_is_missing(core: Path) -> None:
    run = "-m", "icl_theory"
    assert "1,413" in python(
        core, *run, "simulate", "--L", "2", "--delta", "1", "--eta", "4"
    )
    help_text = python(core, *run, "--help")
    assert "sweep" in help_text
    assert "explore" not in help_text
