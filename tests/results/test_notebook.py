from __future__ import annotations

import base64
import re

import numpy as np
import pandas as pd
import pytest

import icl_theory as icl
from icl_theory.engine.comparison import Check
from icl_theory.results import notebook, numbers
from icl_theory.results.numbers import number
from tests.pages import Page
from tests.problems import Bowl

HOSTILE = (
    "<script>alert(1)</script> & \"quoted\" 'too' \x00\x1b[31m\ud800 </td></table>"
)


def test_hostile_text_is_escaped_wherever_it_goes() -> None:
    part = notebook.section(
        HOSTILE,
        notebook.paragraph(HOSTILE),
        notebook.figure("data:image/svg+xml;base64,", HOSTILE),
    )
    pieces = [
        notebook.text(HOSTILE),
        notebook.table({HOSTILE: [HOSTILE]}, HOSTILE),
        notebook.facts({HOSTILE: HOSTILE}),
        notebook.image(icl.simulate(2.0, 1.0, 4.0).plot(), HOSTILE),
        notebook.page(
            HOSTILE, [part], [HOSTILE], version=HOSTILE, source=HOSTILE, date=HOSTILE
        ),
    ]
    for piece in pieces:
        page = Page(piece)
        seen = page.images[0] if page.images else page.text
        assert "<script>alert(1)</script> & \"quoted\" 'too'" in seen
        assert not re.search(
            r"<script|['\"]too|\"quoted", re.sub(r'(alt|title)="[^"]*"', "", piece)
        )
        piece.encode("utf-8")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (pd.NA, ""),
        (np.nan, ""),
        (None, ""),
        (np.int64(9999), "9999"),
        (np.int8(-1), "-1"),
        (12345678, "12,345,678"),
        (np.float32(0.5), "0.5"),
        (1e-300, "1e-300"),
        (-np.inf, "−∞"),
        (np.bool_(False), "✗"),
        (np.str_("a"), "a"),
        (1 / 3, "0.3333"),
        (10**15, "1,000,000,000,000,000"),
    ],
)
def test_numbers_have_four_digits_integers_all_and_missing_none(
    value: object, expected: str
) -> None:
    assert numbers.number(value) == expected


def test_the_same_figure_is_the_same_text_without_a_date_and_without_fonts() -> None:
    one, two = (
        notebook.image(icl.simulate(2.0, 1.0, 4.0).plot(), "loss") for _ in range(2)
    )
    assert one == two
    found = re.search(r"base64,([^\"]*)", one)
    assert found
    drawing = base64.b64decode(found[1]).decode("utf-8")
    assert drawing.rstrip().endswith("</svg>")
    assert not re.search(r"<metadata|font-family|<text|href=\"http", drawing)


def test_a_notebook_shows_what_a_run_is() -> None:
    run = icl.simulate(2.0, 1.0, 4.0)
    shown = Page(run._repr_html_())
    assert dict(shown.tables[0]) == run.facts()
    assert len(shown.images) == 1


def test_a_notebook_shows_a_run_without_attention() -> None:
    run = icl.descend(Bowl(), 0.1, steps=4)
    run.info = {"M": "many", "L": "<b>"}
    assert len(Page(run._repr_html_()).images) == 1


def test_a_notebook_shows_bounds_cross_checks_answers_and_audits_as_tables() -> None:
    run = icl.simulate(2.0, 1.0, 4.0, imbalance=0.1)
    checks = icl.check_bounds(run)
    shown = Page(checks._repr_html_())
    assert shown.column(0, "name") == [check.name for check in checks]
    assert set(shown.column(0, "holds")) <= {"✓", "✗", ""}
    for name in shown.tables[0][0]:
        cells = [getattr(check, name) for check in checks]
        said = [
            " to ".join(map(number, x)) if isinstance(x, tuple) else number(x)
            for x in cells
        ]
        assert shown.column(0, name) == said
    assert any(isinstance(check.bound, tuple) for check in checks)
    risk = icl.PopulationRisk(
        icl.Features.simplex(4, delta=1.0), icl.tasks.Linear(2.0), N=20
    )
    found = icl.crosscheck(risk, batch=64, batches=4, points=1, steps=3, runs=3)
    shown = Page(found._repr_html_())
    names = ["name", *Check._fields[1:], "passed"]
    assert shown.tables[0] == [
        names,
        *([number(getattr(check, name)) for name in names] for check in found.checks),
    ]
    answer = icl.answer("degenerate", quick=True)
    shown = Page(answer._repr_html_())
    assert answer.answer in shown.text
    assert shown.images == [f"{answer.y} against {answer.x}"]
    claim = icl.statements.Claim(
        "a", "b", "x < y", icl.statements.Status.EXACT, "", "1", "2", "holds"
    )
    shown = Page(icl.statements.Audit((claim,), (answer,))._repr_html_())
    assert shown.column(0, "statement") == ["x < y"]
    assert shown.column(1, "answer") == [answer.answer]
