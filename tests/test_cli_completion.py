from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import icl_theory as icl
from icl_theory.cli import main
from icl_theory.cli.completion import SHELLS, VARIABLE
from icl_theory.statements.audit import questions


def completions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str
) -> list[str]:
    """Return what bash offers for the last word of a line, which may be empty."""
    words = line.split(" ")
    monkeypatch.setattr(sys, "argv", ["icl-theory"])
    monkeypatch.setenv(VARIABLE, "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    with pytest.raises(SystemExit) as stop:
        main([])
    assert not stop.value.code
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("icl-theory simulate --task li", ["linear"]),
        ("icl-theory simulate --task q", ["quadratic"]),
        ("icl-theory simulate --rule ada", ["adam", "adamw"]),
        ("icl-theory simulate --rule al", ["all"]),
        ("icl-theory sweep --rule al", []),
        ("icl-theory sweep --rule gd,nes", ["gd,nesterov"]),
        ("icl-theory simulate --eta a", ["auto"]),
        ("icl-theory simulate --schedule cos", ["cosine"]),
        ("icl-theory recall simulate --attention r", ["relu"]),
        ("icl-theory recall simulate --att", ["--attention"]),
        ("icl-theory sweep --L 1,2 --eta 1:9:log:3 --delta 1 --over ", ["L", "eta"]),
        ("icl-theory reproduce nonlin", ["nonlinear-regression"]),
        ("icl-theory audit --paper nonlin", ["nonlinear-regression"]),
        ("icl-theory audit --question tight", ["tightness"]),
        ("icl-theory figures fro", ["front"]),
        ("icl-theory softm", ["softmax-heads"]),
        ("icl-theory completion z", ["zsh"]),
    ],
)
def test_tab_completes(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    offered: list[str],
) -> None:
    assert completions(monkeypatch, capsys, line) == offered


def test_tab_offers_every_question(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    offered = completions(monkeypatch, capsys, "icl-theory audit --question ")
    assert offered == [*questions()]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_for_each_shell(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["completion", shell])
    assert not stop.value.code
    assert VARIABLE in capsys.readouterr().out


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["completion", "zhs"])
    assert stop.value.code == 2
    assert "shell = 'zhs': must be one of bash, zsh" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_with_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["completion", "bash"])
    program = tmp_path / "icl-theory"
    start = f"#!{sys.executable}\nfrom icl_theory.cli import main\nmain()\n"
    program.write_text(start)
    program.chmod(0o755)
    lines = [
        capsys.readouterr().out,
        f"PATH={tmp_path}:$PATH",
        "COMP_WORDS=(icl-theory simulate --task cos)",
        "COMP_CWORD=3",
        "_icl_theory_completion icl-theory",
        'echo "${COMPREPLY[@]}"',
    ]
    ran = subprocess.run(
        ["bash", "-c", "\n".join(lines)], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["cosine"]


@pytest.mark.parametrize(
    ("module", "name", "suggested"),
    [
        (icl, "simulat", "simulate"),
        (icl, "Regresion", "Regression"),
        (icl.engine, "Solutio", "Solution"),
        (icl.families, "Wrod", "Word"),
        (icl.papers, "recal", "recall"),
        (icl.recall, "Recal", "Recall"),
        (icl.tasks, "Liner", "Linear"),
        (icl.regression, "FiniteGausianRisk", "FiniteGaussianRisk"),
        (icl.certified, "Proven", "Proved"),
    ],
)
def test_a_misspelt_name_suggests_the_nearest(
    module: object, name: str, suggested: str
) -> None:
    with pytest.raises(AttributeError, match=rf"{name}' \(did you mean {suggested}\?"):
        getattr(module, name)


def test_a_name_like_no_other_has_no_suggestion() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'zzz'$"):
        icl.zzz  # noqa: B018
    assert not hasattr(icl, "__wrapped__")
