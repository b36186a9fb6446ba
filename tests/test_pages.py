"""Committed pages and pictures are what their commands write now; `make pages` writes all of them again.

Pages of papers are compared as a whole, with the numbers of the audit in them. The
audit itself is measured again, and pictures are drawn again, by the tests that are
marked slow.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import indexes
import numpy as np
import pytest
import remake
from PIL import Image, ImageSequence
from scipy.ndimage import maximum_filter, minimum_filter

import icl_theory as icl
from icl_theory import figures
from icl_theory.cli import main
from icl_theory.results.plots import draw_maps, plot_answer, release, save
from icl_theory.statements.audit import questions, rows
from icl_theory.statements.claim import (
    HEADINGS,
)
from icl_theory.statements.paper import Claims
from tests.smaller import NAMES

DOCS = remake.DOCS
PAPERS = sorted(
    path.stem for path in (DOCS / "papers").glob("*.md") if path.stem != "index"
)
NUMBER = re.compile(r"[0-9][0-9,]*(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?")
# smaller numbers are errors of rounding, which every machine makes in its own way
ROUNDING = 1e-12
LIKE = 32.0  # of 255: colours that are hardly told apart
MOVED = 1e-4  # of all pixels


def differs(kept: str, made: str) -> str:
    """Return what differs: words and integers must be the same, other numbers to a unit of their last digit."""
    ours, theirs = NUMBER.findall(kept), NUMBER.findall(made)
    if NUMBER.sub("#", kept) != NUMBER.sub("#", made):
        return f"{kept}\n{made}"
    return ", ".join(
        f"{one} and {other}"
        for one, other in zip(ours, theirs, strict=True)
        if not alike(one, other)
    )


def alike(one: str, other: str) -> bool:
    if one == other:
        return True
    a, b = sorted(float(number.replace(",", "")) for number in (one, other))
    decades = (
        one.startswith("1e") and other.startswith("1e") and b <= 10.001 * a
    )  # of an error that is rounded up
    return decades or b - a <= 1.001 * min(unit(one), unit(other)) or b < ROUNDING


def unit(number: str) -> float:
    """Return what one more in the last digit adds; nothing for integers, and for zero, which has no digit."""
    digits, _, power = number.partition("e")
    if float(digits.replace(",", "")) == 0.0 or not (power or "." in digits):
        return 0.0
    return float(f"1e{int(power or 0) - len(digits.partition('.')[2])}")


def unlike(kept: Path, made: Path) -> float:
    """Return the share of pixels with a colour that the other picture does not have nearby.

    Another version of matplotlib sets letters a little wider and moves the axes with
    them; the same one does not.
    """
    (one, version), (other, now) = _pixels(kept), _pixels(made)
    if one.shape != other.shape:
        return 1.0
    reach = (1, *(2 * [3 if version == now else 9]), 1)
    return max(
        float(
            np.mean(
                (a < minimum_filter(b, reach) - LIKE)
                | (a > maximum_filter(b, reach) + LIKE)
            )
        )
        for a, b in ((one, other), (other, one))
    )


def _pixels(path: Path) -> tuple[np.ndarray, Any]:
    with Image.open(path) as picture:
        frames = [
            np.asarray(frame.convert("RGB"), dtype=float)
            for frame in ImageSequence.Iterator(picture)
        ]
        return np.stack(frames), picture.info.get("Software")


class Shown(NamedTuple):
    """A picture on a paper's page: its title, and its file."""

    title: str
    file: str


def shown(page: str) -> list[Shown]:
    text = (DOCS / "papers" / f"{page}.md").read_text(encoding="utf-8")
    return [
        Shown(*found)
        for found in re.findall(r"^!\[(.+)\]\((\S+)\)$", text, re.MULTILINE)
    ]


PICTURES = {picture.file: picture for page in PAPERS for picture in shown(page)}
# These take ten seconds to minutes each. `make docs` draws them in short, and `make
# pages` at full length.
LONG_FIGURES = {
    "block",
    "block_maps",
    "figure1",
    "figure4",
    "finite_size",
    "layers",
    "markov_basins",
    "minimal_heads",
    "recall_finite",
    "recall_layers",
    "recall_models",
    "recall_samples",
    "softmax-limit",
    "task-alignment",
    "task_diversity",
    "two_heads",
}
FIGURES = [
    name
    for name in PICTURES
    if name.removesuffix(".png") not in {*questions(), *LONG_FIGURES}
]
# The animation is one of them.
GUIDES = [
    name
    for name in remake.commands()
    if name.startswith("images/") and name != "images/maps.gif"
]

# Rows and questions that take more than a few seconds each, most of the time of the
# audit. tests/papers/test_audit.py measures them on their smaller grids, and `make pages`
# at full length.
LONG = {
    "Lemmas 1, 2 against samples",
    "Phase I, proved",
    "block",
    "depth covariance: finite size",
    "depth covariance: samples",
    "descent layers: curvature",
    "descent layers: each layer",
    "linear attention: softmax",
    "descent layers: rare prompts",
    "descent layers: three trained",
    "dictionary: heads",
    "dictionary: labels alone",
    "dictionary: linear convergence",
    "dictionary: ridge regression",
    "first layer first",
    "first layer: parent against lag 0",
    "induction heads: plateaus",
    "linear attention: ReLU attention",
    "linear attention: early stopping",
    "linear attention: finitely many prompts",
    "linear attention: levels",
    "linear attention: plateau",
    "linear attention: rank of heads",
    "linear attention: staircase",
    "linear attention: two layers",
    "linear attention: Σ⁻¹ layers",
    "linear functions: Phase I",
    "linear functions: Phase IV",
    "linear functions: Phases II, III",
    "linear functions: dominant first",
    "linear functions: short prompts",
    "linear functions: small K",
    "match and copy: condition",
    "match and copy: finite",
    "match and copy: growth",
    "match and copy: loss",
    "match and copy: margin",
    "match and copy: next tokens",
    "match and copy: samples",
    "minimal heads: baselines",
    "minimal heads: counts as logits",
    "minimal heads: plateaus",
    "minimal heads: rates",
    "minimal heads: the published mask",
    "minimal heads: useless unigrams",
    "noisy tokens",
    "one layer: basins",
    "one layer: basins of descent",
    "one layer: energy",
    "other functions",
    "phases of sampled runs",
    "recall: Bayes-optimal",
    "recall: Lemma 4.1",
    "recall: Theorem 3.2",
    "recall: Theorem 3.3",
    "recall: Theorem 4.2",
    "recall: Theorem 4.2, 𝒱 = λI",
    "recall: Theorem 5.5",
    "recall: plain descent",
    "recall: sample complexity",
    "recall: starts with noise",
    "single location: off the manifold",
    "single location: on the manifold",
    "single location: positions",
    "single location: softmax",
    "softmax limit: error",
    "softmax limit: flow",
    "softmax limit: mean over queries",
    "softmax limit: regression",
    "sphere: learnt by descent",
    "stable learning rates",
    "step count, proved",
    "tail law, embeddings",
    "tail law, finite N",
    "task alignment: diversity",
    "task alignment: kernel",
    "task alignment: limit",
    "task alignment: limit of prompts",
    "task alignment: measure",
    "task alignment: steeper pretraining",
    "token selection: W",
    "token selection: where runs end",
    "token selection: where runs stay",
    "two heads: better than one",
    "two heads: debiased descent",
    "two heads: descent from random starts",
    "two heads: minima",
    "two heads: near Bayes",
    "two layers: the reduction",
}
LONG_QUESTIONS = {
    "finite-samples",
    "fixed-set-early-stopping",
    "fixed-set-gap",
    "fixed-set-tail",
    "induction-basins",
    "induction-diversity",
    "induction-emergence",
    "induction-plateau",
    "learning-rate",
    "optimisers",
    "recall-samples",
    "whole-transformer",
}
NUMBERS = {claim.name: i for i, claim in enumerate(remake.printed()[0], start=1)}
TITLES = figures.available()


@pytest.fixture(autouse=True)
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every page asks for the titles of all figures, which are read from their sources."""
    monkeypatch.setattr(figures, "available", TITLES.copy)


def test_every_page_and_picture_has_a_command() -> None:
    drawn = {f"papers/{name}" for name in PICTURES}
    found = {
        path.relative_to(DOCS).as_posix()
        for folder in ("images", "papers")
        for path in (DOCS / folder).iterdir()
    }
    found -= {name for name in found if name.endswith(".html")} | {"papers/index.md"}
    known = {"audit.md", *found}
    assert known == {*remake.commands(), *remake.BY_HAND, *drawn}


def test_the_lists_of_papers_are_made_of_the_papers_own_entries() -> None:
    for name, text in indexes.rewritten().items():
        assert text == (DOCS.parent / name).read_text(encoding="utf-8"), name


def test_the_audits_page_has_the_rows_and_questions_that_there_are() -> None:
    claims, answers = remake.printed()
    assert len(claims) == len(rows())
    assert list(answers) == list(questions())


@pytest.mark.parametrize("name", ["debiased-descent", "statistical-induction-heads"])
def test_the_rows_of_one_paper_take_their_places_in_the_audits_page(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the page has none of them yet; a page without other rows is refused."""
    paper = remake.papers()[name]
    own = Claims(papers=(paper,))
    claims, answers = remake.printed()
    by_row = dict(zip(rows(), claims, strict=True))
    new_claims = [by_row[row] for row in own.rows]
    new_answers = {question.name: answers[question.name] for question in own.questions}
    old_claims = [claim for claim in claims if claim not in new_claims]
    old_answers = {key: answers[key] for key in answers if key not in new_answers}
    page = (DOCS / "audit.md").read_text(encoding="utf-8")
    for present in ((claims, answers), (old_claims, old_answers)):
        monkeypatch.setattr(remake, "printed", lambda present=present: present)
        assert remake.with_paper(paper, new_claims, new_answers).to_markdown() == page

    with pytest.raises(SystemExit, match="--rows PAPER"):
        remake.paper_page(name)
    with pytest.raises(
        SystemExit, match=f"left out: try icl-theory audit --paper {name}"
    ):
        remake.with_paper(paper, new_claims[1:], new_answers)
    monkeypatch.setattr(remake, "printed", lambda: (old_claims[1:], old_answers))
    with pytest.raises(SystemExit, match=r"remake\.py audit\.md measures all"):
        remake.with_paper(paper, new_claims, new_answers)


@pytest.mark.parametrize("name", PAPERS)
def test_a_papers_page_is_made_of_the_audits(name: str) -> None:
    """Nothing is measured: the numbers that the prose quotes are those of the audit's page."""
    page = (DOCS / "papers" / f"{name}.md").read_text(encoding="utf-8")
    assert page == remake.paper_page(name).to_markdown()
    for reading in remake.papers()[name].readings:
        # a finding quotes no row of another statement
        assert remake.paper_page(name, reading.name).overview["finding"]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(NUMBERS.keys() - LONG - {*NAMES["whole"]}))
def test_a_row_of_the_audit_is_what_is_measured(name: str) -> None:
    """Those that take no time are measured by tests/papers/test_papers.py."""
    number = NUMBERS[name]
    (claim,) = icl.audit(claim=number).claims
    printed = remake.printed()[0][number - 1]
    assert [
        differs(*pair) for pair in zip(printed.cells(), claim.cells(), strict=True)
    ] == [""] * len(HEADINGS)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(questions().keys() - LONG_QUESTIONS))
def test_an_answer_and_its_picture_are_what_is_found(name: str, tmp_path: Path) -> None:
    printed = remake.printed()[1][name]
    found = icl.answer(name)
    assert found.question == printed.question
    assert differs(printed.answer, found.answer) == ""
    file = f"{name}.png"
    if file in PICTURES:
        save(plot_answer(found), tmp_path / file)
        assert unlike(DOCS / "papers" / file, tmp_path / file) < MOVED


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_a_papers_figure_is_what_its_command_draws(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["figures", name.removesuffix(".png"), "--out", "."])
    assert not stop.value.code
    assert unlike(DOCS / "papers" / name, tmp_path / name) < MOVED


@pytest.mark.slow
@pytest.mark.parametrize("name", GUIDES)
def test_a_picture_of_the_guides_is_what_its_command_draws(
    name: str, tmp_path: Path
) -> None:
    assert remake.make(name, tmp_path) == 0
    assert unlike(DOCS / name, tmp_path / name) < MOVED


def test_numbers_may_differ_in_the_last_digit_and_words_and_counts_may_not() -> None:
    for kept, made in (
        ("error below 1e-9", "error below 1e-8"),
        ("|z| 2.4, λ up to 12,345.6 steps", "|z| 2.5, λ up to 12,345.5 steps"),
        ("4e-15 of 3", "0e+00 of 3"),
        ("1.00e-03", "9.99e-04"),
    ):
        assert differs(kept, made) == ""
    for kept, made in (
        ("0 of 8", "1 of 8"),
        ("|z| 2.4", "|z| 2.6"),
        ("holds", "holds, loose"),
        ("loss 11", "loss 12"),
        ("4e-9", "0e+00"),
        ("12,345 steps", "12,346 steps"),
        ("1e-7", "1e-5"),
    ):
        assert differs(kept, made)


def test_pictures_may_be_set_otherwise_but_not_show_something_else(
    tmp_path: Path,
) -> None:
    """A grey of another scale, a curve's label elsewhere and a dash of another colour are noticed."""

    def drawn(
        name: str, grey: float, label: float, colour: str, moved: float = 0.0
    ) -> Path:
        figure = draw_maps({"L = 2": [np.full((3, 3), grey)]}, ["start"], size=0.8)
        ax = figure.add_axes((0.1 + moved, 0.5, 0.8, 0.4))
        ax.plot([0.0, 1.0], [0.0, 1.0], "--", color=colour)
        ax.annotate("K²/ηγ", (label, 0.1))
        save(figure, tmp_path / f"{name}.png")
        release(figure)
        return tmp_path / f"{name}.png"

    kept = drawn("kept", 0.1, 0.2, "black")
    assert unlike(kept, drawn("same", 0.1, 0.2, "black", moved=0.003)) < MOVED
    for name, *changes in (
        ("grey", 0.3, 0.2, "black"),
        ("label", 0.1, 0.5, "black"),
        ("dash", 0.1, 0.2, "red"),
    ):
        assert unlike(kept, drawn(name, *changes)) > MOVED  # type: ignore[arg-type]
