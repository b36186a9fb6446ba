"""Runs that end at any moment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no process is copied here")
@pytest.mark.parametrize(
    ("apart", "how"),
    [(4, "clean"), pytest.param(1, "torn", marks=pytest.mark.slow)],
    ids=["clean", "torn"],
)
def test_a_sweep_that_is_ended_at_any_file_operation_goes_on(
    tmp_path: Path, apart: int, how: str
) -> None:
    line = [sys.executable, "-m", "tests.grids.crash", str(tmp_path), str(apart), how]
    found = subprocess.run(line, capture_output=True, text=True, cwd=ROOT)
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) > 4
