"""The tables that convert the flags of public programs: their commands are commands of ours."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from icl_theory.families import list_families
from tests.test_cli import run_main

PAPERS = Path(__file__).parents[1] / "icl_theory" / "papers"
COMMANDS = [
    line
    for path in sorted(PAPERS.glob("*/from_their_flags.md"))
    for line in path.read_text(encoding="utf-8").splitlines()
    if line.startswith("icl-theory ")
]


@pytest.mark.parametrize("command", COMMANDS)
def test_flags_of_a_converted_command_exist(command: str) -> None:
    _, family, action, *_ = shlex.split(command)
    assert action == "simulate"
    declared = {name.replace("_", "-") for name in list_families()[family].parameters()}
    assert {*re.findall(r"--([\w-]+)", command)} <= declared


@pytest.mark.parametrize(
    "command", [command for command in COMMANDS if ".npy" not in command]
)
def test_a_converted_command_trains(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A few steps of it: no value is refused."""
    short = re.sub(r"--max-steps \d+", "--max-steps 3", command)
    _, out, err = run_main(capsys, *shlex.split(short)[1:])
    assert err == ""
    assert "took all 3 steps" in out
