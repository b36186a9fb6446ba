"""Tables, transitions, notebooks and reports of sweeps and runs."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import icl_theory as icl
from icl_theory.results import (
    columns,
    notebook,
    numbers,
    reading,
    report,
    representations,
    tables,
    transitions,
)
from icl_theory.statements.audit import Audit
from icl_theory.statements.claim import Answer, Series
from tests.answers import Call
from tests.answers import _sweeps as swept
from tests.answers._families import Bowl, Dish
from tests.answers._showing import (
    PICTURE,
    every,
    files,
    held,
    installed,
    refused,
    table_of,
    unversioned,
)

Asked = Iterator[tuple[str, Call | Callable[[], Any]]]
SWEEPS, RUNS = swept.SWEEPS, swept.RUNS
TIGHT = 1e-6  # of half-way points, which a root finder has


def _plain(text: str, whole: bool = False) -> list[str]:
    text = re.sub(
        r"<style>.*?</style>", "STYLE", PICTURE.sub("PICTURE", text), flags=re.DOTALL
    )
    kept: list[str] = []
    lines = (
        re.sub(' style="[^"]*"| scope="[^"]*"', "", unversioned(text))
        .partition("<main>")[2 if whole else 0]
        .splitlines()
    )
    for i, line in enumerate(lines):
        row = [
            each.startswith("<tr>")
            for each in (lines[max(i - 3, 0)], *lines[i : i + 2])
        ]
        if not all(row):  # of a long table the first rows and the last one
            kept.append(line)
    return kept


def numbers_in_words() -> Asked:
    values = [
        1187646524,
        -12345,
        9999,
        10000,
        0.123456,
        1e-7,
        123456.0,
        -0.5,
        math.nan,
        math.inf,
        -math.inf,
        True,
        False,
        None,
        "flat",
        "a|b",
        np.float64(2.5),
        np.int64(-1),
        np.bool_(True),
        "",
    ]
    yield (
        "number",
        lambda: [
            [numbers.number(each), numbers.number(each, 2), numbers.number(each, 12)]
            for each in values
        ],
    )
    several = (
        [1.23456, 2.0],
        [0.00012345, 7.0],
        [1.0, 1.00001],
        [1, 2.0, "a"],
        [0.1, 0.1],
        [1.0, math.nextafter(1.0, 2.0)],
        [],
        [12345, 12346],
        [math.nan, 1.0],
        [3.14159, 3.14161, 2.0],
    )
    yield "told apart", lambda: [numbers.told_apart(each) for each in several]
    yield (
        "goes right",
        lambda: [
            numbers.goes_right(each)
            for each in (
                [1, 2.5],
                [1, "a"],
                [],
                [None, ""],
                [True, 1],
                [None, 3],
                [math.nan],
                ["", 2],
                [np.float64(3.0)],
            )
        ],
    )
    yield (
        "markdown",
        lambda: [
            numbers.markdown(
                {"a|b": [1, 2.5], "word": ["x", "y|z"], "none": [None, 10000]}
            ),
            numbers.markdown([("a", [1]), ("a", ["2"])]),
            numbers.markdown({"a": []}),
        ],
    )
    yield "escaped", lambda: tables.escaped("50 % & $x_1^2$ #{a} ✓ ✗ ∞ −3 ± \\ ε")


def headings() -> Asked:
    for name, make in SWEEPS.items():
        found = make()
        names = [str(each) for each in found.data_vars]
        yield (
            f"of {name}",
            partial(
                lambda found, names: {
                    "symbols": [
                        columns.symbol(found, each) for each in (*found.coords, *names)
                    ],
                    "roles": columns.with_role(
                        found,
                        "steps",
                        "word",
                        "verdict",
                        "predicted",
                        "boundary",
                        "exponent",
                        "phase",
                    ),
                    "steps": columns.steps_of(found),
                    "dimensions": columns.dimensions(found),
                    "over": refused(columns.dimension, found, "K")
                    if not found.dims
                    else [
                        columns.dimension(found, None),
                        refused(columns.dimension, found, "no"),
                    ],
                    "meanings": columns.meanings(found, [*found.dims, *names]),
                    "has values": [
                        each for each in names if not columns.has_values(found[each])
                    ],
                    "lines": [
                        point
                        for point, _ in columns.lines(
                            found, *[str(each) for each in found.dims][:1]
                        )
                    ][:9],
                },
                found,
                names,
            ),
        )
    yield (
        "facts of a point",
        lambda: {
            name: held(each)
            for name, each in columns.point_facts(swept.point()).items()
        },
    )
    yield (
        "facts of a point that failed",
        lambda: {
            name: held(each)
            for name, each in columns.point_facts(
                swept.bowl().isel(eta=0, width=1)
            ).items()
        },
    )
    yield (
        "no sweeps",
        lambda: [
            refused(columns.dimensions, each)
            for each in (3, swept.bowl()[["steps"]], swept.bowl().steps)
        ],
    )


def parts() -> Asked:
    yield (
        "count",
        lambda: [
            [
                reading.count(make(), status)
                for status in ("reached", "failed", "pending")
            ]
            for make in SWEEPS.values()
        ],
    )
    yield (
        "places",
        lambda: [
            [*reading.places_of(swept.bowl()["status"] == status)]
            for status in ("failed", "reached", "pending", "not reached")
        ],
    )
    yield (
        "place of a point",
        lambda: [
            [*reading.places_of(swept.point()["status"] == status)]
            for status in ("reached", "failed")
        ],
    )

    def cut(over: str, most: int) -> Any:
        return [
            [
                dict(part.sizes),
                {str(name): part[name].values.tolist() for name in part.dims},
            ]
            for part in reading.parts(swept.three(), over, most)
        ]

    for over, most in (
        ("eta", 5),
        ("count", 2),
        ("tilt", 1),
        ("width", 7),
        ("width", 100),
    ):
        yield f"parts {over} {most}", partial(cut, over, most)

    def slabs(most: int) -> Any:
        with patch("icl_theory.results.reading.SLAB", most):
            found = [dict(part.sizes) for part in reading.slabs(swept.three(), "width")]
            places = (
                [*reading.places_of(swept.three()["status"] == "failed")],
                [
                    *reading.places_of(
                        swept.three()["count"] + 0 * swept.three()["steps"] == 8
                    )
                ],
            )
            lazy = [
                dict(part.sizes)
                for part in reading.slabs(swept.three().chunk(), "width")
            ]
            first = reading.first_part(swept.pending(), "width")
            return [found, places, lazy, dict(first.sizes), first.eta.values.tolist()]

    for most in (3, 100):
        yield f"slabs of {most}", partial(slabs, most)


def phase_tables() -> Asked:
    for name, make in SWEEPS.items():
        for over in [*make().dims][
            :: 1 if name in ("bowl", "regression", "three") else 2
        ]:
            for all_of_them in (
                (False, True) if name in ("bowl", "counts") else (False,)
            ):
                yield (
                    f"{name} over {over}{', every' * all_of_them}",
                    partial(
                        lambda make, over, each: table_of(
                            tables.phase_table(make(), over, every=each)
                        ),
                        make,
                        over,
                        all_of_them,
                    ),
                )
    yield (
        "refusals",
        lambda: [
            refused(tables.phase_table, swept.point()),
            refused(tables.phase_table, swept.bowl(), "eps"),
            refused(tables.phase_table, swept.bowl(), every=1),
            refused(tables.phase_table, 3),
        ],
    )


def written_tables() -> Asked:
    def written(make: Callable[[], Any], over: str | None, *endings: str) -> Any:
        for ending in endings:
            tables.write_table(make(), f"table{ending}", over)
        return files()

    for name, over in (
        ("regression", "K"),
        ("bowl", "width"),
        ("words", "width"),
        ("infinite", None),
        ("plain", "eta"),
    ):
        yield f"{name} over {over}", partial(written, SWEEPS[name], over, ".md", ".tex")
    for name, over in (
        ("bowl", "width"),
        ("pending", "eta"),
        ("counts", None),
        ("infinite", None),
        ("words", "shape"),
    ):
        yield (
            f"data of {name} over {over}",
            partial(written, SWEEPS[name], over, ".csv", ".parquet"),
        )

    def slabbed() -> Any:
        with patch("icl_theory.results.reading.SLAB", 2):
            return written(swept.three, "width", ".csv", ".parquet")

    yield "data in slabs", slabbed
    table = partial(tables.phase_table, swept.words(), "width")
    yield (
        "notes",
        lambda: [
            tables.to_markdown(table(), ("One.", "Two ± 3 %.")),
            tables.to_latex(table(), ("One.", "Two ± 3 %.")),
            tables.to_latex(table()),
            tables.to_markdown(table()),
        ],
    )
    yield (
        "refusals",
        lambda: (
            [
                refused(tables.write_table, swept.bowl(), path)
                for path in ("a.txt", "a", "", "no/a.md", "A.CSV")
            ]
            + [
                refused(tables.write_table, swept.bowl(), "a.md", "no"),
                refused(tables.write_table, swept.point(), "a.md"),
                *(
                    refused(tables.check_format, Path(f"a{ending}"), rows)
                    for ending in (".md", ".tex", ".csv", ".parquet")
                    for rows in (100_000, 100_001)
                ),
                refused(tables.to_markdown, 3),
                refused(tables.to_latex, table(), "one"),
                refused(tables.to_latex, table(), 3),
                refused(tables.to_markdown, table().iloc[:, :0]),
            ]
        ),
    )

    def without() -> Any:
        with patch("icl_theory.results.tables.find_spec", lambda name: None):
            return [
                refused(tables.write_table, swept.bowl(), path)
                for path in ("a.parquet", "a.csv")
            ]

    yield "without pyarrow", without


def changes() -> Asked:
    for name in ("regression", "line", "bowl", "words", "many", "diagram"):
        make = SWEEPS[name]
        for over in make().dims:
            yield (
                f"{name} over {over}",
                Call(
                    partial(
                        lambda make, over: every(
                            {
                                "limits": lambda: transitions.limits_of(make(), over),
                                "table": lambda: table_of(
                                    transitions.transition_table(make(), over)
                                ),
                                "notes": lambda: transitions.transition_notes(
                                    make(), over
                                ),
                                "few": lambda: transitions.transitions_of(
                                    make(), over, 100
                                ),
                            }
                        ),
                        make,
                        over,
                    ),
                    rtol=TIGHT,
                ),
            )
    yield (
        "of a point",
        lambda: [
            refused(transitions.transition_table, swept.point()),
            refused(transitions.transition_table, swept.bowl(), "no"),
        ],
    )
    x = np.geomspace(0.1, 10.0, 15)
    steps = {
        "rising": 1e4 / x**2 + 900.0,
        "falling": 1.0 / (x**2 / 1e4 + 1 / 900.0),
        "constant": np.full(15, 40.0),
        "missing": np.where(x > 5, -1, 1e4 / x**2 + 900.0),
        "few": 20 / x**2 + 3,
        "twice": 1e4 / x**2 + 900.0 + 300 * np.sin(3 * x),
    }
    for name, count in steps.items():
        for limits in ((-2.0, 0.0), (0.0, -2.0), (-1.0, -1.0)):
            yield (
                f"transition {name} {limits}",
                Call(
                    partial(
                        lambda count, limits: transitions.transition(
                            count.round(), x, limits
                        ),
                        count,
                        limits,
                    ),
                    rtol=TIGHT,
                ),
            )
    order = np.array([3, 1, 0, 2, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4])
    yield (
        "transition, unsorted",
        Call(
            lambda: transitions.transition(
                steps["rising"][order].round(), x[order], (-2.0, 0.0)
            ),
            rtol=TIGHT,
        ),
    )
    yield (
        "transition of few",
        lambda: [
            transitions.transition(steps["rising"][:n].round(), x[:n], (-2.0, 0.0))
            for n in (0, 1, 2, 3)
        ],
    )
    near = np.concatenate([x, x * 1.001])
    yield (
        "transition, near points",
        Call(
            lambda: transitions.transition(
                (1e4 / near**2 + 900.0).round(), near, (-2.0, 0.0)
            ),
            rtol=TIGHT,
        ),
    )
    yield (
        "apart",
        lambda: [
            transitions._thinned(np.array(each))
            for each in (
                [],
                [1.0],
                [0.0, 0.01, 0.021, 0.04, 0.045, 1.0],
                [0.0, 0.02, 0.04],
            )
        ],
    )

    def crossing(x: list[float], values: list[float], edge: Any) -> float:
        import xarray

        found = xarray.Dataset(
            {
                "edge": (
                    "x",
                    np.broadcast_to(np.array(edge, float), len(x)),
                    {"of": "y"},
                ),
                "y": ("x", values),
            },
            coords={"x": x},
        )
        return transitions.predicted_transition(found, "x", "edge")

    cases = {
        "inside": ([1.0, 2.0, 4.0], [1.0, 2.0, 4.0], 3.0),
        "at a point": ([1.0, 2.0, 4.0], [1.0, 2.0, 4.0], 2.0),
        "beyond, a power": ([1.0, 2.0, 4.0], [1.0, 4.0, 16.0], 100.0),
        "before": ([1.0, 2.0, 4.0], [1.0, 4.0, 16.0], 0.01),
        "beyond, nearly a power": ([1.0, 2.0, 4.0], [1.0, 2.0, 4.06], 100.0),
        "beyond, a power to rounding": ([1.0, 2.0, 4.0], [1.0, 2.0, 4.0 + 1e-7], 100.0),
        "beyond, no power": ([1.0, 2.0, 4.0], [1.0, 2.0, 9.0], 100.0),
        "level": ([1.0, 2.0, 4.0], [1.0, 1.0, 1.0], 2.0),
        "unsorted": ([4.0, 1.0, 2.0], [4.0, 1.0, 2.0], 3.0),
        "missing": ([1.0, 2.0, 4.0], [1.0, math.nan, 4.0], 3.0),
        "one": ([1.0], [1.0], 1.0),
        "varied": ([1.0, 2.0, 4.0], [1.0, 2.0, 4.0], [1.5, 1.5, 6.0]),
        "twice": ([1.0, 2.0, 4.0], [1.0, 5.0, 1.0], 3.0),
    }
    yield "predicted", lambda: {name: crossing(*case) for name, case in cases.items()}
    rows = (
        {
            "measured": 1.23456,
            "error": 0.0123,
            "predicted": 1.3,
            "onset": 2.0,
            "none": math.nan,
        },
        {"measured": math.nan, "error": math.nan},
        {"measured": 3.0, "error": 0.5, "other": 4.0},
        {"measured": math.nan, "error": math.nan, "predicted": 2.5},
    )
    yield "sentences", lambda: [transitions._sentence("L", dict(row)) for row in rows]


def _answers() -> list[Answer]:
    series = tuple(
        Series(
            f"curve {i}" + i * " of a long name",
            np.array([1.0, 10.0, 100.0]),
            np.array([1.0, 2.0 + i, 0.5]),
            points=i == 1,
        )
        for i in range(5)
    )
    return [
        Answer(
            "one",
            "Is it <so> & true? " * 4,
            "Yes: 50 % of $it$.",
            series[:2],
            "x in m",
            "y",
        ),
        Answer("all", "And all?", "No.", series, "x", "y", "linear", "log"),
        Answer("map", "A map?", "Maybe.", series[:3], "x", "y", "log", "linear"),
    ]


def notebooks() -> Asked:
    table = {
        "a <b>": [1, 2.5, math.nan],
        "words": ["x & y", "a word that is longer than that", ""],
        "small": ["u", "v", None],
        "sixteen": ["exactly sixteen.", "a", "b"],
        "seventeen": ["exactly seventeen", "a", "b"],
        "whole": [10000, -1, 3],
        "yes": [True, False, True],
        "bad": ["\x00a", "\ud800", "\x7f"],
    }
    yield (
        "table",
        lambda: [
            notebook.table(table),
            notebook.table(table, "Caption <1>"),
            notebook.table({"a": []}),
        ],
    )
    yield (
        "facts",
        lambda: [
            notebook.facts({"a": 1.23456, "b <": "x\ny", "c": None, "d": True}),
            notebook.facts({}),
        ],
    )
    yield (
        "pieces",
        lambda: [
            notebook.text('<a href="x">'),
            notebook.paragraph("a & b"),
            notebook.section("T <", "one", "", "two"),
            notebook.section("T", "", ""),
            notebook.figure("data:x", 'a "caption" <'),
            [notebook._side(column) for column in table.values()],
        ],
    )
    for name, given in {
        "nothing": {},
        "all": {"version": "9.9", "source": "a <b>", "date": "DAY"},
    }.items():
        for commands in (
            [],
            ["icl.sweep(L=1)"],
            ["icl-theory a 'b c'", "second & last"],
        ):
            yield (
                f"page, {name}, {len(commands)}",
                partial(
                    lambda given, commands: _plain(
                        notebook.page("Title <", ["one", "", "two"], commands, **given)
                    ),
                    given,
                    commands,
                ),
            )
    shown: dict[str, Callable[[], Any]] = {
        **RUNS,
        **{
            f"answer {each.name}": partial(lambda each: each, each)
            for each in _answers()
        },
    }
    shown |= {
        "checks": lambda: icl.check_bounds(swept.closed()),
        "audit": lambda: Audit((), tuple(_answers()), ("a line",)),
        "curve": _curve,
    }
    for name, make in shown.items():
        yield (
            f"html of {name}",
            partial(lambda make: _plain(representations.html(make())), make),
        )
    yield (
        "what has none",
        lambda: [refused(representations.html, 3), refused(representations.plot, "a")],
    )
    yield (
        "audit",
        lambda: [
            Audit((), tuple(_answers()), ("a line",)).to_markdown(),
            Audit((), tuple(_answers())).to_dict(),
        ],
    )


def _curve() -> Any:
    run = swept.closed()
    t = np.arange(0, 60, 3)
    losses = np.array([run.at(int(2 * step)).loss for step in t])
    lines = "\n".join(
        f"{step},{loss!r},{0.01 * loss!r}"
        for step, loss in zip(t.tolist(), losses.tolist(), strict=True)
    )
    Path("curve.csv").write_text(f"step,loss,error\n{lines}\n", encoding="utf-8")
    return run.compare("curve.csv")


def _reported(make: Callable[[], Any], **given: Any) -> list[str]:
    """Return a report, in which pictures are named after their axes: drawing them takes longest."""

    def named(ax: Any) -> str:
        return f"PICTURE of {[each.get_ylabel() for each in ax.figure.axes]}"

    with patch("icl_theory.results.report.picture", named):
        return _plain(report.html_report(make(), **given), True)


def _problems() -> Any:
    """Return what a report says of more points that fail or miss their targets than it has room for."""
    rates = np.linspace(0.01, 0.02, 13)
    found = icl.sweep(Bowl, eta=rates, width=[1.0, 3.0], max_steps=5, **swept.QUIET)
    return [
        report._problems(found, {"failed": many, "not reached": 13}).split("\n")
        for many in (0, 13)
    ]


def reports() -> Asked:
    for name, make in RUNS.items():
        yield (
            f"run {name}",
            partial(
                lambda make: _plain(
                    report.html_report(
                        make(), source="run's.npz", date=datetime.date(2026, 1, 2)
                    ),
                    True,
                ),
                make,
            ),
        )
    for name, make in (SWEEPS | {"none": swept.none}).items():
        if name in ("line", "rates", "diagram", "many"):
            continue  # which are like others
        for over in (*make().dims, None)[: 2 if name in ("bowl", "regression") else 1]:
            yield (
                f"sweep {name} over {over}",
                Call(partial(_reported, make, over=over), rtol=TIGHT),
            )
    yield (
        "stored sweep",
        lambda: _plain(
            report.html_report(
                swept.pending().assign_attrs(command="icl-theory a\nicl-theory b"),
                over="width",
                source="a store",
                date=datetime.date(2026, 12, 31),
            )
        ),
    )

    def long() -> Any:
        found = icl.sweep(
            Dish,
            eta=np.linspace(0.1, 0.4, 120),
            width=[1.0, 2.0],
            tilt=[0.0, 1.0, 2.0, 3.0, 4.0],
            count=[4, 5],
            max_steps=9,
            **swept.QUIET,
        )
        text = _reported(lambda: found)
        return [line for line in text if not line.startswith("<tr>")]

    yield "long", long

    def lines() -> Any:
        found = icl.sweep(
            Bowl,
            eta=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
            width=[1.0, 1.5, 2.0, 2.5],
            **swept.QUIET,
        )
        return [
            text
            for text in _reported(lambda: found, over="width")
            if "Figure" not in text
        ]

    yield "many lines", Call(lines, rtol=TIGHT)
    yield (
        "many transitions",
        Call(
            lambda: [
                text
                for text in _reported(
                    lambda: icl.sweep(
                        L=np.geomspace(0.03, 30, 12),
                        delta=1.0,
                        eta=[0.01, 0.02, 0.03, 0.04, 0.05],
                        epsilon=1e-3,
                        **swept.QUIET,
                    )
                )
                if "half" in text
                or "measured" in text
                or text.startswith(("<h2", "<p"))
            ],
            rtol=TIGHT,
        ),
    )
    yield (
        "far values",
        lambda: [
            text
            for text in _reported(
                lambda: icl.sweep(
                    L=[1.0, 2.0],
                    delta=1.0,
                    eta=[1e-120, 0.1, 0.2, 0.3, 0.4, 1e120],
                    epsilon=0.3,
                    **swept.QUIET,
                ),
                over="eta",
            )
            if "without" in text or "figure" in text
        ],
    )
    run = swept.closed()
    yield (
        "refusals",
        lambda: [
            refused(report.html_report, run, source=3),
            refused(report.html_report, run, date="today"),
            refused(report.html_report, run, over="L"),
            refused(report.html_report, 3),
            refused(report.html_report, swept.bowl(), over="no"),
            refused(report.html_report, swept.bowl()[["steps"]]),
        ],
    )
    yield (
        "values",
        lambda: [
            report._values(np.array(each))
            for each in (
                3.0,
                [1.0, 2.0],
                np.arange(9.0),
                np.arange(8),
                ["a", "b"],
                [0.1, 0.10001],
            )
        ],
    )

    def broken() -> Any:
        with patch(
            "icl_theory.results.report.check_bounds",
            side_effect=TypeError("no\nstatements"),
        ):
            return report._statements(run)

    yield "problems", _problems
    yield "statements that fail", broken

    def shown(**given: Any) -> Any:
        with installed(Bowl):
            return [unversioned(swept.phased()._repr_html_()[:40])]

    yield "in a notebook", shown
