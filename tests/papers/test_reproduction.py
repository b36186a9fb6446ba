"""Pages of papers: what families declare of them, what is made of it, and the command."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from icl_theory import figures
from icl_theory.cli import main
from icl_theory.results import reproduction
from icl_theory.results.prose import PARTS, fill, read_prose, segments, typeset
from icl_theory.results.reproduction import Reproduction, papers, reproduce
from icl_theory.statements.audit import all_claims
from icl_theory.statements.claim import (
    OURS,
    Answer,
    Claim,
    Outcome,
    Question,
    Series,
    Status,
)
from icl_theory.statements.paper import Claims, Paper, Reading
from tests.pages import Page, write_prose

ROOT = Path(__file__).parents[2]
# Read from the sources of the figures, once for all tests.
TITLES = {**figures.available(), "disc": "A disc.", "ring": "A ring."}


def claim(
    outcome: Outcome, status: str = "exact", source: str = "paper, Thm 1"
) -> Claim:
    return Claim(
        "<row>",
        source,
        "a | b",
        Status(status),
        "nowhere",
        "a ratio of 1e-10, 3 times",
        "2",
        f"{outcome.value} x, because",
    )


def paper_of(*claims: Claim) -> Paper:
    rows = tuple(lambda quick, each=each: each for each in claims)
    reading = Reading("Claim", "so", rows, figure="disc")
    return Paper(
        "theirs", "Is it <so>?", "A. Author", 2025, "arXiv:0000.00000", (reading,)
    )


@pytest.fixture(autouse=True)
def discs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of papers that are made up."""
    draw = figures.draw
    monkeypatch.setattr(figures, "available", lambda: TITLES)
    monkeypatch.setattr(
        figures,
        "draw",
        lambda name, quick=False: (
            Figure((0.1, 0.1)) if name in ("disc", "ring") else draw(name, quick=quick)
        ),
    )


def made(
    paper: Paper, folder: Path, monkeypatch: pytest.MonkeyPatch, *verdicts: str
) -> Reproduction:
    """Return the page of a paper whose findings are written for these verdicts."""
    known = write_prose(folder / "prose", paper, verdicts)
    monkeypatch.setattr(reproduction, "papers", lambda: {"theirs": known})
    return reproduce("theirs")


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


@pytest.mark.parametrize("paper", papers().values(), ids=lambda paper: paper.name)
def test_the_prose_of_a_paper_is_whole(paper: Paper) -> None:
    """A formula, a table of symbols, code that runs, and a summary of a few sentences."""
    prose = read_prose(paper)
    short, model = prose.parts["In short"], prose.parts["The model"]
    assert 3 <= len(re.findall(r"\.(?=\s|$)", short)) <= 5, "In short: 3 to 5 sentences"
    assert short.endswith("."), "In short: whole sentences"
    # results/prose.py says what the parts must have.
    for piece, meaning in {
        "```math": "a formula",
        "| here | meaning |": "a table of symbols with the columns here and meaning",
        "```python\nimport icl_theory as icl\n": "an example that runs",
        "../": "a link to the page that derives the formula",
    }.items():
        assert piece in model, f"The model needs {meaning}: {piece!r}"
    for finding in prose.findings.values():
        assert finding.text[0].isupper(), finding
        assert finding.text.endswith("."), finding


def test_a_page_of_one_statement_has_its_finding_figures_and_evidence() -> None:
    found = reproduce("nonlinear-regression", only="Lemma 1", quick=True)
    command = 'icl-theory reproduce nonlinear-regression --only "Lemma 1" --quick'
    page, text = Page(found.to_html()), found.to_markdown()
    assert found.command == command
    assert page.column(0, "statement") == ["Lemma 1"]
    assert page.column(0, "verdict") == [
        found.prose.findings["Lemma 1"].verdict_in_words
    ]
    assert page.column(2, "claim") == [each.name for each in found.parts[0].claims]
    assert len(page.images) == 1
    assert all(
        each in page.text
        for each in (command, found.paper.source, found.parts[0].reading.says)
    )
    assert text.count(command) == 1
    assert all(each in text for each in (found.paper.source, "](degenerate.png)"))
    assert "In short" not in text


def test_a_row_is_measured_once_on_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def row(quick: bool) -> Claim:
        calls.append(quick)
        return claim(Outcome.HOLDS)

    readings = (Reading("one", "", (row,), figure="disc"), Reading("two", "", (row,)))
    twice = Paper("theirs", "T", "A", 2025, "x", readings)
    found = made(twice, tmp_path, monkeypatch, "holds", "holds")
    assert found.overview["verdict"] == ["holds"] * 2
    assert calls == [False]


@pytest.mark.parametrize(
    ("claims", "verdict", "expected"),
    [
        ((claim(Outcome.HOLDS),), "holds", "holds"),
        ((claim(Outcome.LOOSE), claim(Outcome.HOLDS)), "holds, loose", "holds"),
        ((claim(Outcome.ONLY),), "holds only x", "holds only"),
        (
            (claim(Outcome.LIMIT), claim(Outcome.LOOSE)),
            "“<row>”: fails for x; “<row>”: holds",
            "fails",
        ),
        (
            (claim(Outcome.COUNTEREXAMPLE), claim(Outcome.ONLY)),
            "“<row>”: fails: counterexample x; “<row>”: holds only x",
            "fails",
        ),
        (
            (claim(Outcome.FAILS, source="paper, Thm 1 (reconstructed)"),),
            "our formula fails x",
            "fails",
        ),
        ((), "not tested", "not tested"),
    ],
)
def test_a_verdict_has_the_conditions_of_the_rows(
    claims: tuple[Claim, ...],
    verdict: str,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = made(paper_of(*claims), tmp_path, monkeypatch, expected)
    assert found.overview["verdict"] == [verdict]


def test_a_verdict_names_rows_without_their_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = (
        replace(claim(Outcome.ONLY), name="one layer: basins"),
        replace(claim(Outcome.HOLDS), name="one layer: minima"),
        replace(claim(Outcome.LOOSE), name="saddle"),
    )
    found = made(paper_of(*claims), tmp_path, monkeypatch, "holds only")
    assert found.overview["verdict"] == [
        "“basins”: holds only x; “minima” and “saddle”: hold"
    ]


def test_a_verdict_in_words_stands_in_place_of_the_verdicts_of_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdict before the colon must still be that of the rows."""
    paper = paper_of(claim(Outcome.HOLDS), claim(Outcome.ONLY))
    words = "holds for small steps (η < 1)\n  only"
    found = made(paper, tmp_path, monkeypatch, f"holds only: {words}")
    assert found.overview["verdict"] == ["holds for small steps (η < 1) only"]
    assert found.overview["finding"] == ["Found of Claim."]
    with pytest.raises(ValueError, match="measurements say 'holds only'"):
        made(paper, tmp_path, monkeypatch, f"holds: {words}")


def test_a_verdict_in_words_may_quote_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "holds at {{<row> | of …, ? times}} of 5 points"
    paper = paper_of(claim(Outcome.HOLDS))
    found = made(paper, tmp_path, monkeypatch, f"holds: {words}")
    assert found.overview["verdict"] == ["holds at 3 of 5 points"]
    with pytest.raises(ValueError, match="quotes no row"):
        made(paper, tmp_path, monkeypatch, "holds: {{other | ? times}}").to_markdown()


@pytest.mark.parametrize(
    ("outcome", "source", "explained"),
    [
        (Outcome.HOLDS, "paper, Thm 1", []),
        (Outcome.HOLDS, OURS, ["*Ours*"]),
        (Outcome.LOOSE, "paper, Thm 1 (reconstructed)", ["*Reconstructed*", "*Loose*"]),
    ],
)
def test_words_of_the_table_are_explained_below_it_if_it_uses_them(
    outcome: Outcome,
    source: str,
    explained: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paper = paper_of(claim(outcome, source=source))
    text = made(paper, tmp_path, monkeypatch, "holds").to_markdown()
    words = ["*Reconstructed*", "*Ours*", "*Loose*"]
    assert [word for word in words if f"{word}: " in text] == explained


@pytest.mark.parametrize(
    "remark", ["(reconstructed)", "(exact form)", "(our constant)", "(our constants)"]
)
def test_a_failure_of_our_formula_is_not_laid_to_the_paper(
    remark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = (
        claim(Outcome.COUNTEREXAMPLE, source=f"paper, Thm 1 {remark}"),
        claim(Outcome.HOLDS),
    )
    found = made(paper_of(*claims), tmp_path, monkeypatch, "fails")
    page = Page(found.to_html())
    assert found.overview["source"] == ["reconstructed, the paper"]
    assert found.parts[0].verdict.startswith(
        "“<row>”: our formula fails: counterexample x"
    )
    ours = "as reconstructed: fails: counterexample x, because. This concerns our formula, not the published one"
    assert page.column(2, "verdict") == [ours, "holds x, because"]
    assert all(
        "concerns our formula or model only" in text
        for text in (page.text, found.to_markdown())
    )


def test_a_page_has_its_parts_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures that the prose does not show are with the evidence."""

    def answer(quick: bool) -> Answer:
        curve = Series("curve", np.arange(1, 4), np.arange(1, 4))
        return Answer("why", "Why?", "So.", (curve,), "steps", "loss")

    question = Question("why", answer)
    by = claim(Outcome.HOLDS, source="paper, Thm 2 (exact form)")
    first = Reading("one", "says one", (lambda quick: by,), figure="disc")
    second = Reading("two", "says two", (), question, "ring")
    readings = (replace(first, reconstructed="all of it"), second)
    paper = Paper("theirs", "T", "A", 2025, "x", readings)
    monkeypatch.setattr(
        sys.modules["icl_theory.statements.audit"],
        "questions",
        lambda: {"why": question},
    )
    monkeypatch.setattr(reproduction, "plot_answer", lambda answer: Figure((0.1, 0.1)))
    known = write_prose(tmp_path / "prose", paper, ["holds", "not tested"])
    file = tmp_path / "prose" / "theirs.md"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("![See ring.](ring.png)\n\n", ""), encoding="utf-8")
    flags = "# Flags\n\n## theirs\n\n`--theirs` is `--ours`.\n\n## other\n\nNothing.\n"
    (tmp_path / "prose" / "from_their_flags.md").write_text(flags, encoding="utf-8")
    monkeypatch.setattr(reproduction, "papers", lambda: {"theirs": known})
    page = reproduce("theirs", quick=True)
    text = page.to_markdown()
    order = (
        "# T\n\nA. 2025. x.\n\n**This page is quick.** ",
        "## In short",
        "## The model",
        "## What we find",
        "![A disc.](disc.png)\n\n*See disc.*",
        "| statement | finding | verdict | source |",
        "| one | Found of one. | holds | reconstructed |",
        "| two | Found of two. | not tested | – |",
        "## Beyond the paper",
        "## From the authors' flags to ours\n\n<details><summary>",
        "`--theirs` is `--ours`.\n\n</details>\n\n## Evidence",
        "<details><summary>one</summary>\n\n| the paper states | we reconstructed |",
        "| says one | all of it |",
        "| Why? | So. |",
        "![A ring.](ring.png)",
        "## What we could not read",
        "`icl-theory reproduce theirs --quick` writes this page.",
    )
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert text.count("<details>") == text.count("</details>")
    assert "Nothing." not in text
    html = Page(page.to_html())
    assert html.images == ["See disc.", "See why.", "A ring."]
    assert html.column(0, "finding") == ["Found of one.", "Found of two."]
    written = [path.name for path in page.write(tmp_path / "out")]
    assert written == ["theirs.md", "theirs.html", "disc.png", "why.png", "ring.png"]
    assert sorted(written) == sorted(each.name for each in (tmp_path / "out").iterdir())


REFUSED = [
    ("## The model", "## Model", "must have the parts ## In short"),
    ("## The model\n\nSome words.", "## The model", "the part The model of"),
    ("- Claim (holds)", "- Theorem (holds)", "the statement Claim has no finding"),
    ("- Claim", "- Theorem (holds): So.\n- Claim", "the finding of Theorem belongs"),
    ("![See disc.](disc.png)", "", "shows no figure"),
    ("![See disc.]", "![]", "the figure disc has no caption"),
    ("disc.png", "star.png", "no statement has the figure star"),
    ("(holds)", "(fails)", "written for the verdict 'fails', and the measurements"),
    ("Found of", "{{row | a ratio}} of", "quotes no row or question; there are"),
    ("Found of", "{{<row> | a factor}} of", "has no question mark for a number"),
    ("Found of", "{{<row> | factor ?}} of", "does not occur in the text of the row:"),
    ("- Claim (holds)", "- Claim (true)", "begins with '- Claim (holds):'"),
]


@pytest.mark.parametrize(("old", "new", "reason"), REFUSED)
def test_half_of_a_page_is_refused(
    old: str, new: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paper = write_prose(tmp_path, paper_of(claim(Outcome.HOLDS)), ["holds"])
    file = tmp_path / "theirs.md"
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")
    monkeypatch.setattr(reproduction, "papers", lambda: {"theirs": paper})
    with pytest.raises(
        ValueError, match=r"^paper = 'theirs': its page is not"
    ) as error:
        reproduce("theirs")
    assert reason in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", papers())
def test_every_page_can_be_written_quickly(name: str) -> None:
    page = reproduce(name, quick=True)
    assert page.to_markdown().endswith(f"`{page.command}` writes this page.\n")


@pytest.mark.parametrize("folder", [None, Path("/nowhere")])
def test_a_paper_without_prose_is_refused(
    folder: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    paper = replace(paper_of(claim(Outcome.HOLDS)), folder=folder)
    monkeypatch.setattr(reproduction, "papers", lambda: {"theirs": paper})
    with pytest.raises(ValueError, match=r"folder|cannot be read"):
        reproduce("theirs")


def test_numbers_are_quoted_by_the_words_around_them() -> None:
    paper = paper_of()
    sources = {"a row": "from 2 to 3.5e-07, 4% and -1", "other": "9"}
    for text, expected in (
        ("{{a row | from ?}}", "2"),
        ("x {{a row | from … to ?,}} y {{other | ?}}", "x 3.5·10⁻⁷ y 9"),
        ("{{a row |\n  ?%}} %", "4 %"),
        ("{{a row | and ?}}", "−1"),
        ("\\frac{1}{2}", "\\frac{1}{2}"),
    ):
        assert fill(paper, text, sources) == expected
    # Quick measurements may lack a number, but not a row.
    assert fill(paper, "{{a row | at ?}} %", sources, is_quick=True) == "… %"
    with pytest.raises(ValueError, match="quotes no row"):
        fill(paper, "{{row | at ?}}", sources, is_quick=True)
    assert typeset("1,234") == "1,234"
    assert [typeset("2.5e+05"), typeset("2.5e+06")] == ["250,000", "2.5·10⁶"]
    assert segments("a\n\n![b\nc](d.png)\n\ne") == ["a", ("d", "b c"), "e"]


def test_text_is_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = made(paper_of(claim(Outcome.HOLDS)), tmp_path, monkeypatch, "holds")
    assert Page(found.to_html()).column(2, "claim") == ["<row>"]
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
    made(paper_of(claim(Outcome.FAILS, claimed)), tmp_path, monkeypatch, "fails")
    stops_with(status, "reproduce", "theirs", "--out", str(tmp_path / "new"))
    printed = capsys.readouterr().out
    for ending in (".md", ".html"):
        path = tmp_path / "new" / f"theirs{ending}"
        assert str(path) in printed
        assert "fails x" in path.read_text(encoding="utf-8")


def test_a_refused_page_is_one_line_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raising(quick: bool) -> Claim:
        raise KeyError("lost")

    paper = paper_of(claim(Outcome.HOLDS))
    reading = replace(paper.readings[0], rows=(*paper.readings[0].rows, raising))
    known = write_prose(
        tmp_path / "prose", replace(paper, readings=(reading,)), ["holds"]
    )
    monkeypatch.setattr(reproduction, "papers", lambda: {"theirs": known})
    stops_with(2, "reproduce", "theirs", "--out", str(tmp_path / "new"))
    message = capsys.readouterr().err
    assert "the row raising of the paper theirs is left out: KeyError" in message
    assert message.count("\n") == 1
    assert not list((tmp_path / "new").glob("*"))


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


def test_parts_are_those_of_the_documentation() -> None:
    page = (ROOT / "docs" / "papers" / "index.md").read_text(encoding="utf-8")
    assert all(f"*{part}*" in page for part in PARTS)
