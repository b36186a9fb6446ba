"""What a family of another package brings and does wrong is left out with a line; all else goes on."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory import explorer, figures
from icl_theory.families import Family, LazySlot, Panel, list_families
from icl_theory.families.registry import filled_slots, find
from icl_theory.results.reproduction import papers, reproduce
from icl_theory.statements import Claim, Claims, Paper, Reading, row
from icl_theory.statements.claim import Question
from tests.browser import visit
from tests.pages import write_prose
from tests.test_cli import run_main
from tests.test_families import Bowl, Parabola


@row("theirs", "a paper", bound="2")
def fine(quick: bool) -> Claim:
    """1 + 1 = 2"""
    return Claim.of(1 + 1 == 2, "a point", "2")


def raising(quick: bool) -> Any:
    raise KeyError("lost")


def disc(*, radius: float = 1.0) -> Any:
    """A disc of a family's own."""
    from matplotlib.figure import Figure

    figure = Figure()
    figure.add_subplot().plot(
        radius * np.cos(np.arange(9)), radius * np.sin(np.arange(9))
    )
    return figure


PAPER = Paper(
    "theirs",
    "T",
    "A",
    2026,
    "none",
    (Reading("one", "1 + 1 = 2", (fine, raising), figure="disc"),),
)


@dataclass(frozen=True, eq=False)
class Good(Bowl):
    name, title = "good", "a sound family"
    claims = Claims((raising, fine), (Question("why", raising),), (PAPER,))
    figures = {"disc": disc}  # noqa: RUF012


@dataclass(frozen=True, eq=False)
class Lost(Family):
    name, title = "lost", "a family all of whose slots are at fault"
    claims = LazySlot("no_such_module:CLAIMS")
    figures = LazySlot("no_such_module:FIGURES")
    explorer = LazySlot("no_such_module:PANEL")
    commands = LazySlot("no_such_module:COMMANDS")

    def risk(self) -> icl.Risk:
        return Parabola()


@dataclass(frozen=True, eq=False)
class Shown(Bowl):
    name, title = "shown", "a family whose panel is at fault"
    explorer = Panel(Path("/nowhere"))


def audited(monkeypatch: pytest.MonkeyPatch, families: dict[str, Any]) -> None:
    """Let these be all families, without the default one.

    The default family comes first unless a plug-in has a negative order.
    """
    # As an attribute of its package, `audit` is the function and not the module.
    module = importlib.import_module("icl_theory.statements.audit")
    monkeypatch.setattr(module, "discover", lambda: ([SimpleNamespace(order=-1.0)], []))
    monkeypatch.setattr("icl_theory.families.registry.families_known", lambda: families)


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    every = {"recall": icl.Recall} | {each.name: each for each in (Good, Lost, Shown)}
    audited(monkeypatch, every)


def line(slot: str) -> str:
    reason = "ModuleNotFoundError: No module named 'no_such_module'"
    return f"the slot {slot} of the family lost is left out: {reason}"


def no_disc(*, radius: float = 1.0) -> Any:
    """A figure that cannot be drawn."""
    raise KeyError("lost")


@pytest.fixture
def without_recall(monkeypatch: pytest.MonkeyPatch) -> None:
    audited(monkeypatch, {"good": Good, "lost": Lost})


def test_a_row_and_a_question_that_raise_leave_the_audit_whole(
    without_recall: None,
) -> None:
    found = icl.audit(quick=True)
    assert [claim.name for claim in found.claims] == ["theirs"]
    assert found.failures == (
        line("claims"),
        "the row raising of the family good is left out: KeyError: 'lost'",
        "the question why of the family good is left out: KeyError: 'lost'",
    )
    assert all(each in found.to_markdown() for each in found.failures)


def test_the_command_writes_the_audit_and_says_what_is_missing(
    without_recall: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run_main(
        capsys, "audit", "--quick", "--out", str(tmp_path / "audit.md")
    )
    assert status == 1
    assert "| theirs |" in (tmp_path / "audit.md").read_text(encoding="utf-8")
    assert err.splitlines() == [
        f"icl-theory: {each}" for each in sorted(icl.audit(quick=True).failures)
    ]


@pytest.mark.slow
def test_other_claims_and_papers_are_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, out, err = run_main(capsys, "audit", "--quick", "--claim", "10")
    # the claims of families behind that of the row are not loaded
    assert (status, "recall: " in out, err) == (0, True, "")
    status, out, err = run_main(capsys, "reproduce")
    assert (status, err) == (0, f"icl-theory: {line('claims')}\n")
    assert "in-context-recall" in out
    assert [*papers()] == ["in-context-recall", "theirs"]


def test_a_paper_has_the_figure_of_its_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = replace(PAPER.readings[0], rows=(fine,))
    paper = write_prose(tmp_path, replace(PAPER, readings=(reading,)), ["holds"])
    monkeypatch.setattr(Good, "claims", Claims(papers=(paper,)))
    (part,) = reproduce("theirs").parts
    assert [each.name for each in part.drawn] == ["disc"]
    assert [claim.name for claim in part.claims] == ["theirs"]


def test_a_page_with_a_row_that_raises_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paper = write_prose(tmp_path, PAPER, ["holds"])
    monkeypatch.setattr(Good, "claims", Claims(papers=(paper,)))
    with pytest.raises(ValueError, match="the row raising of the paper theirs is left"):
        reproduce("theirs")


def test_a_family_has_figures_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert figures.available()["disc"] == "A disc of a family's own."
    assert figures.parameters("disc", quick=True) == {"radius": 1.0}
    status, _, err = run_main(capsys, "figures", "disc", "--out", str(tmp_path))
    assert (status, err) == (0, f"icl-theory: {line('figures')}\n")
    assert (tmp_path / "disc.pdf").is_file()


def test_a_figure_and_a_question_that_raise_are_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Good, "figures", {"a_disc": no_disc, "disc": disc})
    status, out, err = run_main(
        capsys, "figures", "a_disc", "disc", "--out", str(tmp_path)
    )
    assert (status, "disc.pdf" in out) == (1, True)
    assert "icl-theory: the figure a_disc is left out: KeyError: 'lost'\n" in err
    status, out, err = run_main(capsys, "audit", "--question", "why")
    assert (status, out) == (1, "")
    assert (
        err.splitlines()[-1]
        == "icl-theory: the question why is left out: KeyError: 'lost'"
    )


def test_the_name_of_a_figure_is_not_taken_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Good, "figures", {"figure1": disc})
    (wrong,) = (each for each in figures.recipes()[1] if "good" in each)
    assert "name = 'figure1': must be another name" in wrong


def test_a_panel_that_cannot_be_read_is_left_out_of_the_explorer() -> None:
    with pytest.warns(UserWarning, match="the slot explorer of the family") as caught:
        page = explorer.page()
    assert str(caught[0].message) == line("explorer")
    assert str(caught[1].message).startswith(
        "the slot explorer of the family shown is left out: FileNotFoundError"
    )
    assert 'new Shell(["recall"], ' in page


def test_the_command_says_in_a_line_which_panel_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run_main(
        capsys, "explore", "--no-browser", "--out", str(tmp_path / "page.html")
    )
    assert (status, err.count("\n")) == (0, 2)
    assert err.startswith(f"icl-theory: {line('explorer')}\n")


@pytest.mark.slow
def test_a_panel_that_raises_leaves_the_others_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "panel.js").write_text("exports.tab = 'Wrong';\n", encoding="utf-8")
    monkeypatch.setattr(Shown, "explorer", Panel(tmp_path))
    monkeypatch.setattr(
        "icl_theory.families.registry.families_known",
        lambda: {"shown": Shown, "recall": icl.Recall},
    )
    body = "return { told: [text('problems'), document.querySelectorAll('[role=tab]').length, text('headline')] };"
    problems, tabs, headline = visit(tmp_path, "", body)["told"]
    assert (
        problems
        == "The panel of the family shown is left out: ReferenceError: exports is not defined"
    )
    assert (tabs, headline != "") == (1, True)


def test_problems_of_other_families_are_found() -> None:
    assert filled_slots("commands")[1] == [line("commands")]
    assert find(icl.recall.Training.name) is icl.recall.Training


def test_commands_of_a_family_that_cannot_be_read_are_left_out_with_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icl_theory.cli.families_known", lambda: {"lost": Lost})
    status, out, err = run_main(capsys, "lost", "--help")
    assert (status, "simulate" in out, "sweep" in out) == (0, True, True)
    assert f"icl-theory: {line('commands')}\n" in err


def test_the_list_of_commands_has_the_family(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "lost" in list_families()
    assert run_main(capsys, "--help")[0] == 0


def test_rows_that_are_not_given_are_those_of_the_papers() -> None:
    assert Claims(papers=(PAPER, PAPER)).rows == (fine, raising)
    assert Claims((raising,), papers=(PAPER,)).rows == (raising,)


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        ("rows", raising),
        ("rows", (3,)),
        ("questions", (raising,)),
        ("papers", ("a paper",)),
    ],
)
def test_claims_of_another_kind_are_refused_by_name(part: str, wrong: Any) -> None:
    with pytest.raises(ValueError, match=f"^{part} = .*: must be a (tuple|dict) of"):
        Claims(**{part: wrong})
