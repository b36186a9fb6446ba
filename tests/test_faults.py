"""The planted faults: their texts are in the package, and the quick audit notices a dozen of them."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import icl_theory as icl

PACKAGE = Path(icl.__file__).parent
SCRIPTS = Path(__file__).parents[1] / "scripts"
DOZEN = {  # and the rows' functions that notice them
    "gradient": "lemma_2_identity",
    "n-minus-one": "lemma_1_identity",
    "spread": "lemma_1_identity",
    "noise-missing": "lemma_1_identity",
    "floor": "noise_floor",
    "step-constant": "closed_counts",
    "off-by-one": "closed_counts",
    "metric": "embedding",
    "recall-gradient": "lemma_adding",
    "recall-background": "lemma_averaging",
    "recall-closed": "linear_convergence",
    "normalised": "linear_convergence",
    "noise-cost": "learnt_frequency",
    "feed-forward": "part_roles",
}

spec = importlib.util.spec_from_file_location("planted", SCRIPTS / "planted.py")
assert spec is not None
assert spec.loader is not None
planted = importlib.util.module_from_spec(spec)
spec.loader.exec_module(planted)


@pytest.mark.parametrize("fault", planted.FAULTS, ids=lambda fault: fault.name)
def test_a_fault_changes_one_place_of_the_package(fault: planted.Fault) -> None:  # type: ignore[name-defined]
    source = (PACKAGE / fault.file).read_text(encoding="utf-8")
    assert source.count(fault.old) == 1
    ast.parse(source.replace(fault.old, fault.new))


def test_names_are_told_apart() -> None:
    names = [fault.name for fault in planted.FAULTS]
    assert len(set(names)) == len(names) >= 45


def test_a_dozen_faults_are_noticed_by_the_quick_audit() -> None:
    command = [sys.executable, "-W", "ignore", str(SCRIPTS / "faults.py"), "--quick", "--json", "--jobs", "2"]
    command += ["--only", ",".join(DOZEN), "--rows", ",".join(sorted(set(DOZEN.values())))]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"})
    found = json.loads(done.stdout)
    assert [name for name in DOZEN if not found[name]] == []
    assert done.returncode == 0
