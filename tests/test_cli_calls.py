"""Every option of a command reaches the Python call that it stands for; the calls measure nothing here."""

from __future__ import annotations

import datetime
import inspect
import json
import pkgutil
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY, Mock, call

import numpy as np
import pytest
import typer
import xarray

import icl_theory as icl
from icl_theory.certified import Certificate, Proved
from icl_theory.cli import app, main
from icl_theory.cli.figures import script
from icl_theory.engine import progress
from icl_theory.engine.comparison import Check
from icl_theory.results.numbers import number
from icl_theory.statements import Audit
from icl_theory.statements.claim import Answer, Claim, Series, Status
from tests.test_cli import BASE, run_main

ANSWER = Answer(
    "linear", "Why?", "So.", (Series("a", np.ones(2), np.ones(2)),), "x", "y"
)
FAILS = Claim("a", "b", "c", Status.EXACT, "d", "e", "f", "fails")
WRITTEN = {
    "table": "t.md",
    "csv": "t.csv",
    "latex": "t.tex",
    "parquet": "t.parquet",
    "plot": "t.png",
}
TODAY = datetime.date.today()
GRID = "--L 1,2,4 --K 5,20 --delta 1 --eta 0.1"
GRIDDED: dict[str, Any] = {"L": [1.0, 2.0, 4.0], "K": [5, 20], "delta": 1.0, "eta": 0.1}
GIVEN = {
    "batch": None,
    "scale": None,
    "column": None,
    "runs": inspect.signature(icl.Trajectory.compare).parameters["runs"].default,
}


def parts(**found: Any) -> Any:
    """What `reproduce` and `compare` return, without anything in it."""
    empty: dict[str, Any] = {
        "overview": {"statement": [], "verdict": [], "source": []},
        "violations": (),
        "failures": (),
        "checks": (),
        "leaves": None,
        "pace": None,
        "explanations": (),
        "untried": (),
        "remarks": "",
        "passed": True,
        "write": Mock(return_value=[Path("a.md"), Path("a.html")]),
        "to_markdown": lambda: "",
        "plot": lambda: None,
    }
    return SimpleNamespace(**{**empty, **found})


CALLS: list[tuple[str, str, Any, Any]] = [
    (
        "audit",
        "cli.audit.measure_audit",
        Audit((), ()),
        call(quick=False, claim=None, paper=None, jobs=1),
    ),
    (
        "audit --quick",
        "cli.audit.measure_audit",
        Audit((), ()),
        call(quick=True, claim=None, paper=None, jobs=1),
    ),
    (
        "audit --claim 5 --json",
        "cli.audit.measure_audit",
        Audit((), ()),
        call(quick=False, claim=5, paper=None, jobs=1),
    ),
    (
        "audit --paper a --jobs 2",
        "cli.audit.measure_audit",
        Audit((), ()),
        call(quick=False, claim=None, paper="a", jobs=2),
    ),
    (
        "audit --question linear",
        "cli.audit.measure_answer",
        ANSWER,
        call("linear", quick=False),
    ),
    (
        "audit --question linear --quick",
        "cli.audit.measure_answer",
        ANSWER,
        call("linear", quick=True),
    ),
    *(
        (
            f"audit --question linear --plot a.png {words}",
            "results.plots.save",
            None,
            call(ANY, "a.png"),
        )
        for words in ("", "--json")
    ),
    *(
        (
            f"compare run.npz a.csv {words}",
            "engine.trajectory.Trajectory.compare",
            parts(),
            call(Path("a.csv"), **GIVEN | changed),
        )
        for words, changed in (
            ("", {}),
            ("--batch 8", {"batch": 8}),
            ("--scale 0.5", {"scale": 0.5}),
            ("--column 'a - loss'", {"column": "a - loss"}),
            ("--runs 5 --json", {"runs": 5}),
        )
    ),
    ("figures maps", "figures.draw", None, call("maps", quick=False)),
    ("figures maps --quick", "figures.draw", None, call("maps", quick=True)),
    ("figures maps --out there", "figures.write", [], call(ANY, Path("there"), "maps")),
    (
        "figures maps --animate --out there",
        "figures.animate",
        [],
        call(Path("there"), quick=False),
    ),
    (
        "figures --animate --quick",
        "figures.animate",
        [],
        call(Path("figures"), quick=True),
    ),
    (
        "report run.npz --out a.html",
        "cli.pages.html_report",
        "",
        call(ANY, over=None, source="run.npz", date=TODAY),
    ),
    (
        "report store --out a.html --over K --quiet",
        "cli.pages.html_report",
        "",
        call(ANY, over="K", source="store", date=TODAY),
    ),
    ("explore --no-browser --out a.html", "explorer.command.page", "", call()),
    (
        "reproduce a",
        "results.reproduction.reproduce",
        parts(),
        call("a", only=None, quick=False),
    ),
    (
        "reproduce a --only b",
        "results.reproduction.reproduce",
        parts(),
        call("a", only="b", quick=False),
    ),
    (
        "reproduce a --quick --out there",
        "results.reproduction.reproduce",
        parts(),
        call("a", only=None, quick=True),
    ),
    *(
        (
            f"{made} {over} --{name} {file} {'--plot t.svg' * (name == 'plot')}",
            f"cli.sweep.{'plot_sweep' if name == 'plot' else 'write_table'}",
            None,
            call(
                ANY,
                *([] if name == "plot" else [Path(file)]),
                over.removeprefix("--over ") or None,
            ),
        )
        for made in (f"sweep {GRID}", "table store --quiet")
        for name, file in WRITTEN.items()
        for over in ("", "--over K")
    ),
    (f"sweep {GRID}", "cli.sweep.transition_notes", (), call(ANY, None)),
    ("table store --over K", "cli.sweep.transition_notes", (), call(ANY, "K")),
    (f"sweep {GRID} --dry-run", "cli.sweep.estimate", ["soon"], call(ANY, 1)),
    (
        f"sweep {GRID} --dry-run --workers 3 --json",
        "cli.sweep.estimate",
        ["soon"],
        call(ANY, 3),
    ),
    *(
        (
            f"sweep {GRID} {words}",
            "cli.sweep.run_with",
            None,
            call(
                ANY,
                ANY,
                ANY,
                **{
                    "executor": None,
                    "workers": None,
                    "store": None,
                    "command": f"icl-theory sweep {GRID} {words}".strip(),
                    **changed,
                },
            ),
        )
        for words, changed in (
            ("", {}),
            ("--store other", {"store": Path("other")}),
            ("--quiet", {}),
            ("--workers 3", {"workers": 3}),
        )
    ),
    (f"sweep {GRID} --dask tcp://a:1", "cli.sweep.cluster", None, call("tcp://a:1")),
    (" ".join(BASE), "cli.simulate.plots.save", None, None),
    (
        " ".join([*BASE, "--plot a.png"]),
        "cli.simulate.plots.save",
        None,
        call(ANY, "a.png"),
    ),
    (
        " ".join([*BASE, "--coordinates all --plot a.png"]),
        "cli.simulate.plots.compare_runs",
        None,
        call([ANY] * 3),
    ),
    (
        " ".join([*BASE, "--save a.npz --json"]),
        "engine.trajectory.Trajectory.save",
        None,
        call(Path("a.npz")),
    ),
    (" ".join([*BASE, "--certify"]), "certify", SimpleNamespace(), call(ANY)),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, xarray.Dataset]:
    """A folder with a saved run and the store of a sweep, and the sweep."""
    folder = tmp_path_factory.mktemp("called")
    icl.simulate(2.0, 1.0, 4.0).save(folder / "run.npz")
    (folder / "a.csv").touch()
    return folder, icl.sweep(**GRIDDED, store=folder / "store", progress=False)


@pytest.fixture
def dataset(
    made: tuple[Path, xarray.Dataset], monkeypatch: pytest.MonkeyPatch
) -> xarray.Dataset:
    """The sweep, in whose folder commands are called."""
    monkeypatch.chdir(made[0])
    return made[1]


class Entered(Mock):
    """A double that can be entered."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


@pytest.mark.parametrize(
    ("words", "place", "found", "expected"),
    CALLS,
    ids=[f"{words} {place}" for words, place, *_ in CALLS],
)
def test_options_reach_the_call_that_they_stand_for(
    words: str,
    place: str,
    found: Any,
    expected: Any,
    dataset: xarray.Dataset,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    doubles: dict[str, Any] = {
        "figures.draw": None,
        "figures.write": [],
        "cli.sweep.write_table": None,
        "cli.audit.measure_answer": ANSWER,
        "cli.sweep.save": None,
        "cli.simulate.plots.save": None,
        "cli.sweep.cluster": Entered(),
        "cli.sweep.run_with": dataset,
    }
    for name, given in (doubles | ({} if place in doubles else {place: found})).items():
        monkeypatch.setattr(f"icl_theory.{name}", Mock(return_value=given))
    status, _, err = run_main(capsys, *shlex.split(words))
    assert (status, err) == (0, "")
    double = pkgutil.resolve_name(f"icl_theory.{place}")
    assert double.call_args == expected
    if place == "results.reproduction.reproduce":
        assert found.write.call_args == call(
            Path("there" if "there" in words else "reproduced")
        )


@pytest.mark.parametrize("quiet", [False, True])
def test_quiet_sweeps_show_nothing(
    quiet: bool, dataset: xarray.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def run(*planned: Any, **given: Any) -> xarray.Dataset:
        seen.extend(work.quiet for work in progress.DISPLAY.computations)
        return dataset

    monkeypatch.setattr("icl_theory.cli.sweep.run_with", run)
    with pytest.raises(SystemExit):
        main(["sweep", *shlex.split(GRID), *["--quiet"] * quiet])
    assert any(seen) == quiet


@pytest.mark.parametrize(
    "name",
    [
        "audit",
        "compare",
        "figures",
        "report",
        "explore",
        "reproduce",
        "table",
        "sweep",
        "simulate",
    ],
)
def test_no_option_is_left_out(name: str) -> None:
    parameters, command = (
        icl.Regression.parameters(),
        typer.main.get_command(app).commands[name],
    )  # type: ignore[attr-defined]
    known = {
        option
        for each in command.params
        for option in (*each.opts, *each.secondary_opts)
        if option.startswith("--") and each.name not in parameters
    }
    tried = {
        word
        for words, *_ in CALLS
        for word in shlex.split(words)
        if words.startswith(f"{name} ")
    }
    elsewhere = {"--help", "--browser", "--list", "--config", "--out", "--plot"}
    assert known - tried <= elsewhere


@pytest.mark.parametrize("failures", [(), ("a row",)])
@pytest.mark.parametrize("violations", [(), (FAILS,)])
def test_violations_and_failures_are_status_one(
    failures: tuple[str, ...],
    violations: tuple[Claim, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        "icl_theory.cli.audit.measure_audit",
        lambda **given: Audit(violations, (), failures),
    )
    found = parts(violations=violations)
    monkeypatch.setattr(
        "icl_theory.results.reproduction.reproduce", lambda name, **given: found
    )
    for words in (["audit"], ["audit", "--json"]):
        status, out, err = run_main(capsys, *words)
        assert (status, err) == (
            int(bool(failures or violations)),
            "".join(f"icl-theory: {x}\n" for x in failures),
        )
    status, out, err = run_main(capsys, "reproduce", "a", "--out", str(tmp_path))
    assert (status, err) == (int(bool(violations)), "")
    assert out.endswith("a.md\na.html\n")


def test_cells_of_a_printed_audit_stand_under_their_headings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    row = Claim("Row", "paper, Lemma 1", "s", Status.EXACT, "here", "1.5", "2", "holds")
    for claims in ((row, FAILS), (FAILS, row)):
        monkeypatch.setattr(
            "icl_theory.cli.audit.measure_audit",
            lambda given=claims, **_: Audit(given, (ANSWER,)),
        )
        _, head, _, *lines = run_main(capsys, "audit")[1].splitlines()
        for claim, line in zip(claims, lines, strict=False):
            cells = (
                f"{claim.name} ({claim.status}; {claim.source})",
                claim.measured,
                claim.finding,
            )
            places = [
                head.index(heading) for heading in ("claim", "measured", "verdict")
            ]
            assert [
                line[place:].startswith(cell)
                for place, cell in zip(places, cells, strict=True)
            ] == [True] * 3
        assert [line.strip() for line in lines[-5:]] == [
            "Why?",
            "So.",
            ANSWER.command,
            "",
            "Violated: a",
        ]


def test_scripts_of_figures_hand_on_their_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Mock()
    monkeypatch.setattr("icl_theory.cli.main", run)
    monkeypatch.setattr("sys.argv", ["anything", "--quick", "--out", "there"])
    # Only a file that is run, and not loaded, may call it.
    exec('script("somewhere/maps.py")', {"__name__": "__main__", "script": script})
    assert run.call_args == call(["figures", "maps", "--quick", "--out", "there"])


@pytest.mark.parametrize("passed", [True, False])
def test_what_a_comparison_finds_is_printed_and_decides_the_status(
    passed: bool,
    dataset: xarray.Dataset,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    check = Check("window", 1.0, 2.0, 0.1, 10.0, 3.0)
    found = parts(passed=passed, leaves=(3, 5), pace=0.5, remarks="so", checks=[check])
    monkeypatch.setattr(icl.Trajectory, "compare", lambda run, *given, **options: found)
    status, out, _ = run_main(capsys, "compare", "run.npz", "a.csv", "--json")
    assert status == int(not passed)
    assert json.loads(out) == {
        "leaves": [3, 5],
        "pace": 0.5,
        "explanations": [],
        "untried": [],
        "note": "so",
        "checks": [check._asdict()],
    }
    found.leaves = None
    assert run_main(capsys, "compare", "run.npz", "a.csv")[0] == int(not passed)


def test_a_wide_terminal_has_the_first_rows_of_the_phase_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    _, out, _ = run_main(
        capsys,
        "sweep",
        "--L",
        "0.1:10:log:40",
        "--K",
        "5,20",
        "--delta",
        "1",
        "--eta",
        "0.1",
        "--over",
        "K",
    )
    found = icl.sweep(
        L=np.geomspace(0.1, 10.0, 40), K=[5, 20], delta=1.0, eta=0.1, progress=False
    )
    table = icl.phase_table(found, "K")
    said = [line.split() for line in out.splitlines()]
    at = next(i for i, cells in enumerate(said) if cells[:2] == ["L", "K"])
    headings = " ".join(said[at])
    for name in table.columns:
        assert name in headings or not any(map(number, table[name]))
    rows = [
        [number(each) for each in row if number(each)]
        for row in table.head(60).values.tolist()
    ]
    assert said[at + 2 : at + 62] == rows
    assert "... and 20 rows more" in out
    assert "No room" not in out


def test_flags_win_over_the_file_also_where_they_name_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text('plot = "a.svg"\nsave = "a.npz"\nL = 3.0\n')
    assert (
        run_main(
            capsys, *BASE, "--config", "c.toml", "--plot", "b.svg", "--save", "b.npz"
        )[0]
        == 0
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "b.npz",
        "b.svg",
        "c.toml",
    ]
    assert icl.load("b.npz").info["L"] == 2.0
    assert run_main(capsys, *BASE, "--config", "c.toml")[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a.npz",
        "a.svg",
        "b.npz",
        "b.svg",
        "c.toml",
    ]
    for name in ("plot", "save"):  # a folder that is a file
        status, _, err = run_main(capsys, *BASE, f"--{name}", "c.toml/a.svg")
        assert (status, err.count("\n")) == (2, 1)
        assert f"{name} = 'c.toml/a.svg': must be in a folder that exists" in err


def test_runs_side_by_side_have_all_facts_and_each_its_command_and_proof(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def proof(run: icl.Trajectory) -> Certificate:
        return Certificate([Proved(str(run.info["coordinates"]), range(1, 2), "b")])

    monkeypatch.setattr(icl, "certify", proof)
    words = [*BASE, "--epsilon", "0.5", "--K", "5", "--coordinates", "all"]
    found = json.loads(run_main(capsys, *words, "--certify", "--json")[1])
    assert len(found) > 1
    for name, run in found.items():
        assert run["proved"] == [{"name": name, "proved": "1", "rests on": "b"}]
        assert run["command"] == shlex.join(
            ["icl-theory", *words, "--certify", "--json"]
        )
    monkeypatch.setenv("COLUMNS", "300")
    out = run_main(capsys, *words, "--certify")[1]
    assert set(found) <= set(out.splitlines())  # each above its proof
    out = run_main(capsys, *words[:-2], "--certify")[1]
    assert not set(found) & set(out.splitlines())  # one run needs no label
    out = run_main(capsys, *words)[1]
    for name in found:
        for fact in icl.simulate(
            2.0, 1.0, 4.0, epsilon=0.5, K=5, coordinates=name
        ).facts():
            assert fact == "run" or f"\n{fact} " in f"\n{out}"
    monkeypatch.setattr(
        icl.Trajectory, "facts", lambda run: {str(run.info["coordinates"]): "its own"}
    )
    head, *lines = run_main(capsys, *words)[1].splitlines()
    assert head.split() == [line.split()[0] for line in lines] == [*found]
    assert [line.index("its own") for line in lines] == [
        head.index(name) for name in found
    ]


def test_one_parameter_is_compared_at_a_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--L", "2", "--delta", "1", "--eta", "0.1", "--K", "4"]
    compared = ["--rule", "all", "--coordinates", "all"]
    with pytest.raises(SystemExit) as stop:
        main(["simulate", *options, *compared])
    assert stop.value.code == 2
    assert "one parameter is compared at a time" in capsys.readouterr().err
