"""Pages of papers: what families declare of them, what is made of it, and the command."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from icl_theory import figures
from icl_theory.cli import main
from icl_theory.results import reproduction
from icl_theory.results.reproduction import papers, reproduce
from icl_theory.statements.audit import all_claims
from icl_theory.statements.claim import Answer, Claim, Outcome, Question, Series, Status
from icl_theory.statements.paper import Claims, Paper, Reading
from tests.pages import Page

ROOT = Path(__file__).parents[2]


def claim(
    outcome: Outcome, status: str = "exact", source: str = "paper, Thm 1"
) -> Claim:
    return Claim(
        "<row>",
        source,
        "a | b",
        Status(status),
        "nowhere",
        "1",
        "2",
        f"{outcome.value} x",
    )


def paper_of(*claims: Claim) -> Paper:
    rows = tuple(lambda quick, each=each: each for each in claims)
    return Paper(
        "theirs",
        "Is it <so>?",
        "A. Author",
        2025,
        "arXiv:0000.00000",
        (Reading("Claim", "so", rows),),
    )


@pytest.mark.parametrize(
    ("title", "said"),
    [
        ("On it", "On it. 2025"),
        ("Is it so?", "Is it so? 2025"),
        ("It is!", "It is! 2025"),
        ("It is ...", "It is ... 2025"),
    ],
)
def test_a_title_ends_in_one_stop(title: str, said: str) -> None:
    paper = Paper("theirs", title, "A. Author", 2025, "arXiv:0000.00000", ())
    assert paper.reference == f"A. Author. {said}. arXiv:0000.00000."


def stops_with(status: int, *arguments: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    assert stop.value.code == status


@pytest.mark.parametrize(
    ("claims", "paper"),
    [(claims, paper) for claims in all_claims()[0].values() for paper in claims.papers],
    ids=lambda each: getattr(each, "name", ""),
)
def test_a_paper_names_what_is_claimed_of_its_family(
    claims: Claims, paper: Paper
) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9-]*", paper.name)
    assert len({reading.name for reading in paper.readings}) == len(paper.readings)
    for reading in paper.readings:
        assert reading.rows or reading.question or reading.figure, reading.name
        assert set(reading.rows) <= set(claims.rows), reading.name
        assert reading.question in (None, *claims.questions), reading.name
        assert reading.figure in {"", *figures.available()}, reading.name


def test_papers_are_told_apart_and_are_cited() -> None:
    every = [paper for claims in all_claims()[0].values() for paper in claims.papers]
    assert len(papers()) == len(every) >= 1
    page = (ROOT / "docs" / "citing.md").read_text(encoding="utf-8")
    for paper in every:
        assert paper.identifier in page
        assert paper.identifier in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
        assert paper.title in " ".join(page.split())


def test_a_page_has_statement_command_figure_and_verdict() -> None:
    found = reproduce("nonlinear-regression", only="Lemma 1", quick=True)
    command = 'icl-theory reproduce nonlinear-regression --only "Lemma 1" --quick'
    page, text = Page(found.to_html()), found.to_markdown()
    assert found.overview["command"] == [found.command] == [command]
    assert page.column(0, "verdict") == [found.parts[0].verdict]
    assert page.column(1, "claim") == [each.name for each in found.parts[0].claims]
    assert len(page.images) == 1
    assert all(
        each in page.text
        for each in (command, found.paper.reference, found.parts[0].reading.says)
    )
    assert all(
        each in text for each in (command, found.paper.reference, "](degenerate.png)")
    )


def test_a_row_is_measured_once_on_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def row(quick: bool) -> Claim:
        calls.append(quick)
        return claim(Outcome.HOLDS)

    twice = Paper(
        "theirs",
        "T",
        "A",
        2025,
        "x",
        (Reading("one", "", (row,)), Reading("two", "", (row,))),
    )
    monkeypatch.setattr(reproduction, "papers", lambda: {"theirs": twice})
    assert reproduce("theirs").overview["verdict"] == ["paper: holds (1)"] * 2
    assert calls == [False]


def test_verdicts_are_counted_by_source_the_worst_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claims = (
        *map(claim, (Outcome.LOOSE, Outcome.LIMIT, Outcome.FAILS, Outcome.HOLDS)),
        claim(Outcome.HOLDS, source="this package"),
    )
    monkeypatch.setattr(reproduction, "papers", lambda: {"theirs": paper_of(*claims)})
    (part,) = reproduce("theirs").parts
    assert (
        part.verdict
        == "paper: fails (1), fails in a limit (1), holds, loose (1), holds (1); this package: holds (1)"
    )


@pytest.mark.parametrize(
    "remark", ["(reconstructed)", "(exact form)", "(our constant)", "(our constants)"]
)
def test_a_failure_of_our_formula_is_not_laid_to_the_paper(
    remark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = (
        claim(Outcome.COUNTEREXAMPLE, source=f"paper, Thm 1 {remark}"),
        claim(Outcome.HOLDS),
    )
    monkeypatch.setattr(reproduction, "papers", lambda: {"theirs": paper_of(*claims)})
    found = reproduce("theirs")
    page = Page(found.to_html())
    assert (
        found.parts[0].verdict
        == "as reconstructed: fails: counterexample (1); paper: holds (1)"
    )
    ours = "as reconstructed: fails: counterexample x. This concerns our formula, not the published one"
    assert page.column(1, "verdict") == [ours, "holds x"]
    assert all(
        "comparison" in text and "pending" in text
        for text in (page.text, found.to_markdown())
    )


@pytest.mark.parametrize("quick", [True, False])
def test_a_page_says_how_each_of_its_figures_is_made(
    quick: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []

    def found(quick: bool) -> Answer:
        told.append(quick)
        return Answer(
            "why",
            "Why?",
            "So.",
            (Series("curve", np.arange(1, 4), np.arange(1, 4)),),
            "steps",
            "loss",
        )

    def drawn(name: str, quick: bool = False) -> Figure:
        told.append(quick)
        return Figure((0.1, 0.1))

    asked, formula = (
        Question("why", found),
        claim(Outcome.HOLDS, source="paper, Thm 2 (exact form)"),
    )
    readings = (
        Reading(
            "one",
            "says one",
            (lambda quick: formula,),
            figure="disc",
            reconstructed="all of it",
        ),
        Reading(
            "two", "says two", (lambda quick: claim(Outcome.HOLDS),), asked, "ring"
        ),
    )
    paper = Paper("theirs", "T", "A", 2025, "x", readings, "a note")
    monkeypatch.setattr(reproduction, "papers", lambda: {"theirs": paper})
    monkeypatch.setattr(
        sys.modules["icl_theory.statements.audit"], "questions", lambda: {"why": asked}
    )
    monkeypatch.setattr(reproduction, "plot_answer", lambda answer: Figure((0.1, 0.1)))
    monkeypatch.setattr(figures, "draw", drawn)
    monkeypatch.setattr(
        figures, "available", lambda: {"disc": "A disc.", "ring": "A ring."}
    )
    page, end = reproduce("theirs", quick=quick), " --quick" if quick else ""
    assert told == [quick] * 3
    assert [
        (each.name, each.caption, each.command)
        for part in page.parts
        for each in part.drawn
    ] == [
        ("disc", "A disc.", f"icl-theory figures disc{end}"),
        (
            "why",
            "loss against steps",
            f"icl-theory audit --question why --plot why.png{end}",
        ),
        ("ring", "A ring.", f"icl-theory figures ring{end}"),
    ]
    assert page.overview["tested by"] == [
        "<row>; figure disc",
        "<row>; figure why; figure ring",
    ]
    assert page.overview["command"] == [
        f'icl-theory reproduce theirs --only "{name}"{end}' for name in ("one", "two")
    ]
    assert page.command == f"icl-theory reproduce theirs{end}"
    if quick:  # the pages differ in these commands alone
        return
    html, text = Page(page.to_html()).text, page.to_markdown()
    for words in (
        "a note",
        "says one",
        "all of it",
        "says two",
        "Why? So.",
        "A ring.",
        "is pending",
    ):
        assert words in html
        assert words in text.replace("*", "")
    assert html.count("Reconstructed:") == text.count("*Reconstructed:*") == 1
    written = [path.name for path in page.write(tmp_path)]
    assert written == ["theirs.md", "theirs.html", "disc.png", "why.png", "ring.png"]
    assert sorted(written) == sorted(path.name for path in tmp_path.iterdir())


def test_nothing_is_pending_where_all_formulas_are_the_papers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        reproduction,
        "papers",
        lambda: {"theirs": paper_of(claim(Outcome.COUNTEREXAMPLE))},
    )
    assert "pending" not in reproduce("theirs").to_markdown()


def test_text_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        reproduction, "papers", lambda: {"theirs": paper_of(claim(Outcome.HOLDS))}
    )
    found = reproduce("theirs")
    assert Page(found.to_html()).column(1, "claim") == ["<row>"]
    assert r"a \| b" in found.to_markdown()


@pytest.mark.parametrize(
    ("claimed", "status"), [("exact", 1), ("certified", 1), ("order-wise", 0)]
)
def test_command_writes_the_pages_and_tells_violations(
    claimed: str,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        reproduction,
        "papers",
        lambda: {"theirs": paper_of(claim(Outcome.FAILS, claimed))},
    )
    stops_with(status, "reproduce", "theirs", "--out", str(tmp_path / "new"))
    printed = capsys.readouterr().out
    for ending in (".md", ".html"):
        path = tmp_path / "new" / f"theirs{ending}"
        assert str(path) in printed
        assert "fails x" in path.read_text(encoding="utf-8")


def test_papers_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    stops_with(0, "reproduce")
    printed = capsys.readouterr().out
    assert all(name in printed for name in papers())


@pytest.mark.parametrize(
    "arguments", [("no-paper",), ("nonlinear-regression", "--only", "Lemma 99")]
)
def test_unknown_names_are_refused(
    arguments: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stops_with(2, "reproduce", *arguments, "--out", str(tmp_path))
    message = capsys.readouterr().err
    assert arguments[-1] in message
    assert message.count("\n") == 1
