"""The command line: every command with its options, what it prints and writes, and what it refuses."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import icl_theory as icl
from icl_theory import cli, families
from icl_theory.cli import options, shared
from icl_theory.cli import sweep as sweeping
from icl_theory.engine import progress
from icl_theory.engine.progress import Display, Progress
from icl_theory.families import find
from icl_theory.statements.audit import Audit
from icl_theory.statements.claim import Claim
from tests.answers import Call
from tests.answers import _sweeps as swept
from tests.answers._families import Bowl, Dish, Plain
from tests.answers._showing import (
    clocked,
    command,
    every,
    flat,
    installed,
    refused,
    unversioned,
    values_of,
    write,
)
from tests.answers.results import _answers

Asked = Iterator[tuple[str, Call | Callable[[], Any]]]
REGRESSION = "simulate --L 2 --delta 1.5 --eta 0.5"


def _with(
    *lines: Any,
    families: Any = (Bowl, Dish, Plain),
    shown: bool = True,
    before: Callable[[], Any] | None = None,
) -> Any:
    with installed(*families):
        if before is not None:
            before()
        return command(*lines, shown=shown)


def _read(*lines: Any, **more: Any) -> Any:
    """Run command lines whose output is JSON, and return it with the rest."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        found = _with(*lines, **more)
    return found | {
        "printed": [
            flat(json.loads(unversioned(line))) if line[:1] == "{" else line
            for line in out.getvalue().splitlines()
        ]
    }


def simulations() -> Asked:
    lines = {
        "summary": f"{REGRESSION} --K 7 --epsilon 1e-3",
        "not reached": f"{REGRESSION} --K 3 --N 6 --noise 0.3 --epsilon 1e-3 --max-steps 50",
        "above": f"{REGRESSION} --K 3 --N 6 --noise 0.3 --above 0.05 --max-steps 900",
        "task": f"{REGRESSION} --K 4 --N 9 --task cosine --above 0.3 --method exact --max-steps 70",
        "all": f"{REGRESSION} --K 4 --epsilon 0.05 --coordinates all",
        "rules": f"{REGRESSION} --K 4 --epsilon 0.05 --rule all --max-steps 40",
        "auto": "simulate --L 2 --delta 1.5 --eta auto --K 5 --epsilon 0.1",
        "recall": "recall simulate --triggers 4 --V 30 --eta 0.3 --alpha 0.1 --above 0.05",
        "linear": "linear-attention simulate --d 3 --N 5 --eta 0.05 --noise 0.5 --above 0.1 --max-steps 2000",
        "bowl": "bowl simulate --eta 0.2 --width 2.5 --shape flat --epsilon 0.05 --tilt -1.5 --sizes 3,4 --weights 0.25,0.75",
        "plain": "plain simulate --width wide --eta 0.1 --max-steps 30",
        "lost": "plain simulate --width 2 --eta 900 --max-steps 400",
        "fails": "bowl simulate --eta 0.2 --width 3",
        "proved": f"{REGRESSION} --K 6 --epsilon 0.05 --certify",
        "both proved": f"{REGRESSION} --K 3 --epsilon 0.2 --coordinates all --certify",
        "shapes": "bowl simulate --eta 0.3 --shape all --rule gd --max-steps 50",
        "two of all": "bowl simulate --eta 0.3 --shape all --rule all --max-steps 50",
    }
    for name, line in lines.items():
        yield name, partial(_with, line)
    for name in ("not reached", "proved", "bowl"):
        yield f"{name}, JSON", partial(_read, f"{lines[name]} --json")
    yield (
        "files",
        partial(
            _with,
            f"{REGRESSION} --K 5 --epsilon 0.01 --plot a.png --save b.npz",
            f"{REGRESSION} --K 3 --epsilon 0.1 --coordinates all --plot all.svg",
        ),
    )

    def configured(text: str, *lines: Any) -> Any:
        Path("a.toml").write_text(text, encoding="utf-8")
        return _with(*(f"{line} --config a.toml" for line in lines))

    good = 'L = 2\ndelta = "1.5"\neta = 0.5\n"max-steps" = 60\nK = 4\nN = 6\nabove = 0.01\n'
    yield "config", partial(configured, good, "simulate", "simulate --K 3 --above 0.3")
    yield (
        "config of a sweep",
        partial(
            configured,
            'L = [1, 2.5]\ndelta = 1\neta = [0.5]\nepsilon = 0.01\nquiet = true\ntable = "t.md"\n',
            "sweep",
            "sweep --L 3,",
        ),
    )
    for name, text in {
        "no TOML": "L = ",
        "key": "LL = 3\n",
        "value": "[L]\na = 1\n",
        "inner": "L = [[1]]\n",
        "date": "L = 1979-05-27\n",
        "many digits": f"L = {'9' * 5000}\n",
        "true": "json = true\nL = 2\ndelta = 1\neta = 1\nK = 2\nepsilon = 0.1\n",
        "itself": 'config = "b"\n',
    }.items():
        yield f"config: {name}", partial(configured, text, "simulate --max-steps 3")
    yield "no config", partial(_with, "simulate --config none.toml")
    yield (
        "refused",
        partial(
            _with,
            *(
                "simulate",
                "simulate --L 2",
                "simulate --L 2 --eta 1",
                f"{REGRESSION} --K 1",
                f"{REGRESSION} --L 1,2",
                f"{REGRESSION} --L 1:2:log:4",
                f"{REGRESSION} --coordinates clas",
                f"{REGRESSION} --rule sgd",
                f"{REGRESSION} --k 3",
                f"{REGRESSION} --kk 3",
                f"{REGRESSION} more",
                f"{REGRESSION} --plot a.txt",
                f"{REGRESSION} --plot no/a.png",
                f"{REGRESSION} --save no/a.npz",
                f"{REGRESSION} --save a.npz --coordinates all",
                f"{REGRESSION} --epsilon 1 --above 1",
                f"{REGRESSION} --N many",
                f"{REGRESSION} --K 2.5",
                f"{REGRESSION} --K 4e0 --epsilon 0.3",
                f"{REGRESSION} --N inf --epsilon 0.5",
                f"{REGRESSION} --noise nan",
                f"{REGRESSION} --probs 0.5,x",
                f"{REGRESSION} --method closed --noise 0.3 --N 5",
                f"{REGRESSION} --L",
                "train",
                "bowl train",
                "bowl simulate --shape squar --eta 0.1",
                "bowl simulate --sizes 1,x --eta 0.1",
                "bowl simulate --weights 0.5,0.6 --eta 0.1",
                "bowl simulate --eta auto --width 45 --shape flat",
                "plain simulate",
                "plain simulate --eta auto --width 2",
                "plain simulate --eta 0.1 --width narrow",
                "--nothing",
            ),
        ),
    )
    yield "versions", lambda: _version()
    yield (
        "broken families",
        lambda: _broken(
            "recall simulate --eta 0.1 --triggers 2 --above 1",
            "simulate --L 2 --delta 1 --eta 1 --epsilon 1",
            "sweep --help",
            "figures --list maps",
        ),
    )


def _version() -> Any:
    with patch("icl_theory.cli.__version__", "1.2.3"):
        return _with("--version")


def _broken(*lines: str) -> Any:
    with (
        contextlib.redirect_stdout(io.StringIO()),
        installed(
            Bowl, lines=("the family x (y) is left out: ImportError: no", "second")
        ),
    ):
        return command(*lines, "bowl", "")["status"]


GRID = "sweep --L 0.05:20:log:9 --delta 1.5 --eta 0.02 --epsilon 1e-3"


def sweeps() -> Asked:
    lines = {
        "table": f"{GRID} --K 4,9",
        "over": f"{GRID} --K 4,9 --over K",
        "one line": GRID,
        "words": "bowl sweep --eta 0.3 --shape round,flat --width 4,1,2 --max-steps 100",
        "failing": "bowl sweep --eta 0.5,0.01 --width 1,3,1.5 --max-steps 300",
        "point": "bowl sweep --eta 0.3 --width 2.5 --epsilon 0.2",
        "point that fails": "bowl sweep --eta 0.3 --width 3",
        "one value": "bowl sweep --eta 0.3, --width 2",
        "linear": "bowl sweep --eta 0.1:0.5:lin:3 --count 3:9:log:3 --tilt=-1.5:1.5:lin:3",
        "many rows": "dish sweep --eta 0.3 --tilt=-2:2:lin:40 --width 1,2",
        "long run": "dish sweep --eta 0.01 --width 1,6 --max-steps 20",
        "method": "bowl sweep --eta 0.3,0.2 --sizes 4,5 --method exact",
        "all": f"{GRID} --coordinates class,factored --K 3",
    }
    for name, line in lines.items():
        yield name, Call(partial(_with, line), rtol=1e-6)
    yield "narrow", lambda: _narrow(lines["table"], "50")
    yield (
        "JSON",
        partial(_read, "bowl sweep --eta 0.5,0.01 --width 1,3 --max-steps 300 --json"),
    )
    yield (
        "files",
        partial(
            _with,
            f"{lines['failing']} --table a.md --csv b.csv --latex c.tex --parquet d.parquet --plot e.pdf",
            f"{lines['words']} --table f.MD --over shape --csv g.csv",
        ),
    )
    stored = "bowl sweep --eta 0.5,0.2 --width 1,2.5"
    yield (
        "stored",
        lambda: _kept(
            [*stored.split(), "--store", "it's kept", "--quiet"], "it's kept"
        ),
    )
    odd = [
        "bowl",
        "sweep",
        "--eta",
        "0.5,",
        "--tilt",
        "-1.5,2",
        "--store",
        "a b",
        "--table",
        "odd $x.md",
    ]
    yield "odd values", lambda: _kept(odd, "a b")
    yield (
        "resumed",
        lambda: [
            _with(
                f"{stored} --store kept", f"{stored} --store kept --workers 2 --json"
            ),
            _commands("kept"),
        ],
    )
    yield (
        "other store",
        partial(
            _with,
            f"{stored} --store kept",
            f"{stored} --store kept --count 4",
            "table kept",
            "report kept --out a.txt",
            "report kept --out a.html --over width",
            "table kept --over eta --csv a.csv --plot p.png",
            "table kept --over no",
            "table none",
            f"{stored} --store a.html",
            shown=False,
        ),
    )
    yield (
        "point of a store",
        partial(
            _with,
            "bowl sweep --eta 0.5 --width 2 --store kept",
            "table kept",
            "table kept --csv a.csv",
            "report kept --out a.html",
        ),
    )
    yield (
        "failing store",
        partial(
            _with,
            f"{lines['failing']} --store kept",
            "table kept --quiet --latex a.tex",
            "report kept --out a.html",
            shown=False,
        ),
    )
    yield "unfinished", lambda: _unfinished(stored)
    yield "interrupted", lambda: _interrupted(stored)
    for name, more in {
        "dry": "",
        "three": " --workers 3",
        "max_steps": " --max-steps 5",
        "stored": " --store x",
        "exact": " --method exact",
    }.items():
        yield (
            f"dry run: {name}",
            partial(
                _dry,
                f"bowl sweep --eta 0.001,0.002 --width 1,2 --epsilon 1e-6 --dry-run{more}",
            ),
        )
    yield (
        "dry run: JSON",
        lambda: _dry(
            "dish sweep --eta 0.1:0.3:lin:40 --width 1,2 --dry-run --json --workers 2"
        ),
    )
    yield "dry run: closed", lambda: _dry(f"{GRID} --dry-run")
    yield (
        "refused",
        partial(
            _with,
            *(
                "sweep",
                "sweep --L 1",
                f"{GRID} --over eta",
                f"{GRID} --over nothing",
                f"{GRID} --table a.txt",
                f"{GRID} --csv no/a.csv",
                f"{GRID} --parquet a.md",
                f"{GRID} --latex a.md",
                f"{GRID} --plot a.md",
                "bowl sweep --eta 0.1 --table a.md",
                "bowl sweep --eta 0.1 --plot a.png",
                "bowl sweep --eta 0.1,0.2 --width 1,2 --count 3,4 --plot a.png",
                "bowl sweep --eta 0.1,0.2 --width 1,2 --count 3,4 --over count --csv a.csv",
                f"{GRID} --workers 0",
                f"{GRID} --workers x",
                f"{GRID} --workers 2 --dask tcp://a:1",
                f"{GRID} --K 1:3:log:9",
                f"{GRID} --K 2:3",
                f"{GRID} --K 2:3:cube:4",
                f"{GRID} --K 2:x:lin:4",
                f"{GRID} --K 2:9:lin:1",
                f"{GRID} --noise 0:1:log:3",
                f"{GRID} --noise 1:1:lin:3",
                f"{GRID} --noise 1:inf:lin:3",
                f"{GRID} --noise 1,x",
                f"{GRID} --noise 1,1",
                f"{GRID} --max-steps 1,2",
                f"{GRID} --task linear,cubic",
                "plain sweep --eta 0.1 --width 1,narrow",
                "plain sweep --eta 0.1 --width wide",
                "plain sweep --eta auto,0.1 --width 1",
                "bowl sweep --eta 0.1 --shape round:flat",
                "bowl sweep --eta 0.1 --width 51",
                "bowl sweep --eta 0.1 --epsilon 1 --above 1",
                "bowl sweep --eta 0.1,0.2 --store a --quite",
            ),
            shown=False,
        ),
    )


def _narrow(line: str, columns: str) -> Any:
    with installed(Bowl):
        return command(line, COLUMNS=columns)


def _commands(store: str) -> list[str]:
    with installed(Bowl, Dish):
        return str(icl.load_sweep(store).attrs["command"]).splitlines()


def _kept(line: list[str], store: str) -> Any:
    """Keep a sweep, and run its command again as it is recorded, in another folder."""
    import os
    import shlex

    first = _with(line, shown=False)
    [said] = _commands(store)
    os.mkdir("again")
    os.chdir("again")
    second = _with(shlex.split(said)[1:], shown=False)
    with installed(Bowl, Dish):
        found = icl.load_sweep(store)
        again = values_of(found)
    os.chdir("..")
    return [
        first,
        said,
        second,
        again,
        _with(["report", store, "--out", "r.html"], shown=False)["status"],
        [
            each
            for each in Path("r.html").read_text().splitlines()
            if "icl-theory bowl" in each or "icl-theory table" in each
        ],
    ]


def _unfinished(line: str) -> Any:
    from icl_theory.sweeps import sweep
    from icl_theory.sweeps.store import opened

    with installed(Bowl):
        laid = sweep.plan(Bowl, {"eta": np.linspace(0.1, 0.5, 10), "width": [1.0, 2.0]})
        with opened("none", laid.grid, laid.model.columns, laid.arguments, "a command"):
            pass
        with opened(
            "some", laid.grid, laid.model.columns, laid.arguments, "a command"
        ) as kept:
            kept.write(1, laid.model.evaluate(laid.grid.points_of(1)))
    return _with(
        "table none",
        "report none --out none.html",
        "table some --csv some.csv",
        "table some --over eta",
        "report some --out some.html",
        shown=False,
    ) | {
        "csv": Path("some.csv").read_text().splitlines()[:3],
        "report": [
            each
            for each in Path("some.html").read_text().splitlines()
            if "points" in each
        ],
    }


def _interrupted(line: str) -> Any:
    found = []
    for more in ("", " --store kept"):
        with patch.object(Bowl, "measure", side_effect=[{}, {}, {}, KeyboardInterrupt]):
            found.append(_with(f"{line} --count 3,4,5,6,7 {more}", shown=False))
    with patch("icl_theory.engine.descent.descend", side_effect=KeyboardInterrupt):
        found.append(_with("figures --list maps"))
    return found


def _dry(line: str) -> Any:
    with (
        clocked("icl_theory.sweeps.estimate.time.perf_counter"),
        patch("icl_theory.sweeps.estimate.free", lambda: 8e9),
        patch("icl_theory.sweeps.grid.free", lambda: 8e9),
    ):
        return _with(line)


def pages() -> Asked:
    run = f"{REGRESSION} --K 5 --epsilon 0.01 --save run.npz"
    yield (
        "report",
        partial(
            _with,
            run,
            "report run.npz --out a.html",
            "report run.npz --out a.html --over L",
            "report run.npz --out run.npz",
            "report none --out b.html",
            "report run.npz --out no/b.html",
            "report run.npz --out b.htm",
            "report run.npz",
        ),
    )
    yield "list of papers", partial(_with, "reproduce")
    yield (
        "papers",
        partial(
            _with,
            "reproduce no-paper",
            "reproduce nonlinear-regression --only nothing",
            shown=False,
        ),
    )
    yield "explored", lambda: _explored()
    yield (
        "explored, refused",
        partial(_with, "explore --out no/a.html", "explore --browse"),
    )

    def compared(*more: str) -> Any:
        found = icl.simulate(2.0, 1.5, 0.5, K=5, epsilon=0.01)
        t = range(0, 40, 2)
        write(
            a_csv="step,loss\n"
            + "".join(f"{step},{found.at(step).loss * 1.001!r}\n" for step in t)
        )
        write(
            b_csv="step,loss,error\n"
            + "".join(f"{step},{found.at(3 * step).loss!r},0.001\n" for step in t)
        )
        return _with(run, *more, shown=False)

    yield (
        "compared",
        lambda: compared(
            "compare run.npz a.csv",
            "compare run.npz b.csv",
            "compare run.npz b.csv --scale 2",
            "compare run.npz b.csv --scale 0",
            "compare run.npz b.csv --scale -1",
            "compare run.npz b.csv --plot c.png",
            "compare none.npz a.csv",
            "compare run.npz none.csv",
            "compare run.npz a.csv --scale 0",
            "compare run.npz a.csv --runs 1",
            "compare run.npz a.csv --batch 0",
            "compare run.npz a.csv --plot a.txt",
            "compare run.npz",
        ),
    )
    yield (
        "compared, JSON",
        lambda: compared(
            "compare run.npz b.csv --json",
            "compare run.npz a.csv --batch 4 --runs 2 --json",
        ),
    )


def _explored() -> Any:
    with patch("webbrowser.open", side_effect=[True, False]) as shown:
        found = _with(
            "explore --out a.html",
            "explore --out b.html",
            "explore --no-browser --out c.html",
            shown=False,
        )
        return [
            found,
            [call.args[0].rpartition("/")[2] for call in shown.call_args_list],
        ]


def _audit() -> Audit:
    claims = tuple(
        Claim(
            name,
            "here (exact form)",
            "a ≤ b",
            status,
            "a grid",
            f"{i} of 3",
            "3",
            verdict,
        )
        for i, (name, status, verdict) in enumerate(
            (
                ("one", "exact", "holds"),
                ("two", "exact", "fails at L = 2"),
                ("three", "order", "fails"),
                ("four", "certified", "holds in part"),
            )
        )
    )
    return Audit(claims, tuple(_answers()[:2]), ("a line that failed",))


def audits() -> Asked:
    def asked(*lines: str, found: Any = None, answered: Any = None) -> Any:
        made = found or Audit(_audit().claims[:1], tuple(_answers()[:1]))
        with (
            patch("icl_theory.cli.audit.measure_audit", return_value=made) as measured,
            patch("icl_theory.cli.audit.questions", lambda: ["one", "two"]),
            patch(
                "icl_theory.cli.audit.measure_answer",
                side_effect=answered or [*_answers()],
            ) as answers,
        ):
            return [
                command(*lines),
                [dict(call.kwargs) for call in measured.call_args_list],
                [[*call.args, dict(call.kwargs)] for call in answers.call_args_list],
            ]

    yield (
        "good",
        lambda: asked(
            "audit",
            "audit --quick --json",
            "audit --claim 1",
            "audit --out a.md --quick",
        ),
    )
    yield (
        "violated",
        lambda: asked(
            "audit", "audit --json", "audit --claim 2 --json", found=_audit()
        ),
    )
    yield "failed", lambda: asked("audit", found=Audit((), (), ("b", "a")))
    yield (
        "questions",
        lambda: asked(
            "audit --question one",
            "audit --question two --quick --json",
            "audit --question one --plot a.png",
        ),
    )
    yield (
        "failing question",
        lambda: asked(
            "audit --question one --plot a.png", answered=[ValueError("no\nanswer")]
        ),
    )
    yield (
        "refused",
        lambda: asked(
            "audit --claim 1 --question one",
            "audit --plot a.png",
            "audit --question on",
            "audit --question one --out a.md",
            "audit --out no/a.md",
            "audit --question one --plot a.txt",
            "audit --claim x",
        ),
    )


def helps() -> Asked:
    def parameters(made: Any) -> Any:
        return [
            made.help.split("\n"),
            [
                [
                    each.name,
                    each.opts,
                    each.secondary_opts,
                    each.required,
                    getattr(each, "help", None),
                    str(each.default),
                ]
                for each in made.params
            ],
        ]

    for name in cli.COMMANDS:
        yield name, partial(lambda name: parameters(cli._command(name)), name)
    for name in ("recall", "bowl", "plain"):
        yield f"of {name}", partial(lambda name: _group(name, parameters), name)
    yield (
        "alike",
        partial(
            _with,
            f"{REGRESSION} --EPSILON 3",
            f"{REGRESSION} --max_steps 3",
            "sweep --Workers 3",
            "bowl simulate --Eta 3",
        ),
    )
    yield (
        "help texts",
        lambda: [
            options.help_text(each)
            for family in (Bowl, Plain, find("regression"))
            for each in family.parameters().values()
        ],
    )
    yield (
        "examples",
        lambda: [
            options.example("x", family, sweep)
            for family in (Bowl, Plain, find("regression"), find("recall"))
            for sweep in (True, False)
        ],
    )
    yield "flags", lambda: [options.flag("max_steps"), options.flag("L")]
    known = Bowl.parameters() | {"L": Plain.parameters()["width"]}
    texts = (
        "2",
        " 2.5, ",
        "1,2",
        "1:3:lin:3",
        "3:1:log:3",
        "1e0",
        "wide",
        " flat ",
        "round,flat",
        "2,",
        "",
        "1:2:lin:10000001",
        "1:0:log:3",
        "-1:1:log:3",
        "1:-2:lin:3",
        "2:2:log:2",
        "1:2:lin:2",
        "1:2:lin:1",
    )
    for name in (
        "width",
        "count",
        "shape",
        "sizes",
        "share",
        "tilt",
        "weights",
        "eta",
        "max_steps",
        "L",
    ):
        yield (
            f"values of {name}",
            partial(
                lambda name: {text: _parsed(known[name], text) for text in texts}, name
            ),
        )
    yield (
        "required",
        lambda: [
            refused(options.require, family, given)
            for family, given in (
                (Bowl, {}),
                (Plain, {}),
                (Plain, {"width": 1}),
                (find("regression"), {"L": 1}),
                (find("recall"), {}),
            )
        ],
    )


def _status(dataset: Any) -> int:
    with patch.object(sweeping, "print_json"):
        return sweeping._show(dataset, sweeping.Outputs(), None, as_json=True)


def _parsed(declared: Any, text: str) -> Any:
    return every(
        {
            "one": lambda: options.parse_value(declared, text),
            "axis": lambda: np.asarray(options.parse_axis(declared, text)),
        }
    )


def _group(name: str, shown: Callable[[Any], Any]) -> Any:
    with installed(Bowl, Dish, Plain):
        group = cli._group(find(name))
        return [
            group.help,
            {each: shown(group.commands[each]) for each in group.commands},
        ]


def printing() -> Asked:
    yield "facts", lambda: shared.print_facts({"a": "b", "a longer name": "long " * 40})
    yield (
        "rows",
        lambda: [
            shared.print_rows([("a", "b"), ("c", "d")]),
            shared.print_rows([("a", "b")], "one", "two"),
            shared.print_rows([]),
        ],
    )
    yield (
        "JSON",
        lambda: shared.print_json(
            {
                "a": float("nan"),
                "b": [float("inf"), -float("inf"), 1.5],
                "c": {"d": Path("x")},
                "e": None,
                "é": "ü",
            }
        ),
    )
    yield "left out", lambda: shared.say_left_out({"b", "a"})
    yield (
        "targets",
        lambda: [
            refused(
                shared.check_targets,
                Path(plot) if plot else None,
                out=Path(out) if out else None,
            )
            for plot, out in (
                ("a.png", None),
                ("a.SVG", "b"),
                ("a.jpg", None),
                ("no/a.png", None),
                (None, "no/b"),
                (None, "b"),
            )
        ],
    )
    yield (
        "failures",
        lambda: [
            _status(each)
            for each in (
                swept.bowl(),
                swept.line(),
                swept.bowl().isel(width=1, eta=0),
                swept.pending(),
            )
        ],
    )
    yield (
        "tables",
        lambda: [
            sweeping._print_table(swept.pending(), None, 8),
            sweeping._print_table(swept.three(), "tilt", 24, 5),
        ],
    )
    yield (
        "transitions of many",
        lambda: [
            sweeping.Outputs().show(swept.line(), None, 13, most) for most in (12, 13)
        ],
    )
    yield "main", lambda: _mains()


def _mains() -> Any:
    with (
        patch.object(sys, "argv", ["icl-theory", "--version"]),
        patch("icl_theory.cli.__version__", "1.2.3"),
    ):
        first = refused(cli.main)
    with patch(
        "icl_theory.cli.figures.recipes.available",
        side_effect=OSError("the disk\nis gone"),
    ):
        second = refused(cli.main, ["figures"])
    with patch(
        "icl_theory.cli.figures.recipes.available", side_effect=KeyError("a fault")
    ):
        third = refused(cli.main, ["figures"])
    with patch(
        "icl_theory.cli.figures.recipes.available", side_effect=KeyboardInterrupt
    ):
        fourth = refused(cli.main, ["figures"])
    return [first, second, third, fourth]


def progresses() -> Asked:
    def lines(
        *updates: tuple[Any, ...],
        words: str = "",
        unit: str = "points",
        tick: float = 0.5,
        adds: tuple[int, ...] = (),
    ) -> Any:
        with (
            clocked("icl_theory.engine.progress.time.monotonic", tick=tick),
            patch("icl_theory.engine.progress.DISPLAY", Display(1e9)),
        ):
            with Progress(words, unit) as shown:
                said = [shown.line()]
                for update in updates:
                    shown.update(*update)
                    said.append(shown.line())
                for count in adds:
                    shown.add(count)
                    said.append(shown.line())
            return [said, shown.done, shown.total]

    yield "points", lambda: lines((1000, 90000), (2500, 90000), (90000, 90000))
    yield (
        "steps",
        lambda: lines(
            (0, -1, 0.123456),
            (12345, -1, 1e-9),
            (99999, 200000, 3.0),
            unit="steps",
            tick=100.0,
        ),
    )
    yield (
        "words",
        lambda: [
            lines(words="drawing the figure", tick=100.0),
            lines(words=""),
            lines((3, 9), words="x", adds=(2, 1)),
        ],
    )
    yield (
        "durations",
        lambda: [
            progress.duration(each) for each in (0, 59.9, 60, 3599, 3600, 86400.5, 1e6)
        ],
    )

    def counted() -> Any:
        display = Display(1e9)
        with (
            clocked("icl_theory.engine.progress.time.monotonic"),
            patch("icl_theory.engine.progress.DISPLAY", display),
        ):
            said = [
                [item, *(work.line() for work in display.works)]
                for item in progress.counted("abc", "letters")
            ]
            said += [
                [item, *(work.line() for work in display.works)]
                for item in progress.counted(iter("ab"), "letters")
            ]
            with Progress("outer"), Progress("hidden", quiet=True), Progress("inner"):
                said.append(
                    [work.words for work in display.shown()] + [len(display.works)]
                )
        return [said, display.works, display.live]

    yield "counted", counted

    def drawn(*, terminal: bool, taken: bool, delay: float) -> Any:
        display = Display(delay)

        class Live:
            def __init__(self, get_renderable: Any, **given: Any) -> None:
                self.get, self.said = (
                    get_renderable,
                    [
                        {
                            name: str(value)
                            for name, value in given.items()
                            if name != "console"
                        }
                    ],
                )

            def start(self, refresh: bool) -> None:
                self.said.append({"refresh": str(refresh)})

            def stop(self) -> None:
                self.said.append({"stopped": ""})

        with (
            clocked("icl_theory.engine.progress.time.monotonic"),
            patch("icl_theory.engine.progress.DISPLAY", display),
            patch("icl_theory.engine.progress._is_terminal", lambda stream: terminal),
            patch("icl_theory.engine.progress._is_taken", lambda: taken),
            patch("rich.live.Live", Live),
        ):
            with Progress("outer") as outer:
                outer.update(3, 10)
                with Progress("inner", "steps") as inner:
                    inner.update(1, -1, 0.5)
                    inner.update(4, -1, 0.25)
                    grid = display.live.get() if display.live else None
                    cells = (
                        []
                        if grid is None
                        else [
                            [
                                str(cell)
                                if i
                                else [
                                    cell.total,
                                    cell.completed,
                                    cell.pulse,
                                    cell.width,
                                ]
                                for i, cell in enumerate(row)
                            ]
                            for row in zip(
                                *(column._cells for column in grid.columns), strict=True
                            )
                        ]
                    )
                    live = display.live
            return [cells, live.said if live else live, display.live]

    for terminal, taken, delay in (
        (True, False, 1.0),
        (True, True, 1.0),
        (False, False, 1.0),
        (True, False, 1e6),
    ):
        yield (
            f"drawn {terminal} {taken} {delay}",
            partial(drawn, terminal=terminal, taken=taken, delay=delay),
        )


def _known(*points: tuple[str, Any]) -> Any:
    """Return what is known of families that entry points bring."""

    class Point:
        def __init__(self, name: str, brings: Any) -> None:
            self.name, self.value, self.brings = name, f"a.module:{name}", brings

        def load(self) -> Any:
            if isinstance(self.brings, BaseException):
                raise self.brings
            return self.brings

    with patch(
        "importlib.metadata.entry_points",
        lambda group: [Point(*each) for each in points],
    ):
        known, lines = families._installed.__wrapped__()
        return [sorted(known), lines]


def known_families() -> Asked:
    class Twin(Dish):
        name = "bowl"

    class Own(Dish):
        name = "recall"

    named = {
        word: type("Named", (Dish,), {"name": word})
        for word in ("Big", "a b", "1a", "simulate", "", "a-1")
    }
    yield (
        "brought",
        lambda: _known(
            ("b", Bowl),
            ("a", Twin),
            ("c", Own),
            ("d", ImportError("no\n module")),
            ("e", SystemExit(3)),
            ("f", dict),
            ("g", Plain),
        ),
    )
    yield (
        "sound",
        lambda: (
            {name: refused(families.sound, each) for name, each in named.items()}
            | {
                "untitled": refused(
                    families.sound, type("Untitled", (Dish,), {"title": ""})
                ),
                "no risk": refused(
                    families.sound,
                    type("NoRisk", (families.Family,), {"name": "x", "title": "y"}),
                ),
                "no class": refused(families.sound, 3),
                "no family": refused(families.sound, dict),
                "number": refused(families.sound, type("Number", (Dish,), {"name": 3})),
            }
        ),
    )

    def found(name: Any) -> Any:
        with (
            installed(Bowl, Dish, lines=("a line",)),
            patch.object(Bowl, "commands", {"deep": Plain}),
        ):
            return families.find(name).title

    yield (
        "found",
        lambda: every(
            {
                repr(name): partial(found, name)
                for name in ("bowl", "plain", "recall", "bowls", "regresion", "", 3)
            }
        ),
    )

    def listed() -> Any:
        with installed(Bowl, lines=("a line",)):
            return [
                list(icl.list_families()),
                families.broken(),
                families.default().name,
            ]

    yield "listed", listed

    def asked() -> Any:
        class Broken:
            def __get__(self, instance: Any, owner: Any) -> Any:
                raise KeyError("no\n slot")

        with installed(Bowl, Dish), patch.object(Dish, "figures", {"a": 1}):
            kept = Bowl.explorer
            Bowl.explorer = Broken()
            try:
                return [
                    [sorted(each), lines]
                    for each, lines in (
                        families.filled_slots(slot)
                        for slot in ("explorer", "figures", "claims")
                    )
                ]
            finally:
                type.__setattr__(Bowl, "explorer", kept)

    yield "asked", asked
    yield (
        "left out",
        lambda: _left_out(ValueError("a\n b"), SystemExit(2), ValueError()),
    )
    yield "script", lambda: _script()


def _left_out(*errors: BaseException) -> list[str]:
    lines: list[str] = []
    for error in errors:
        with families.left_out("it", lines):
            raise error
    return lines


def _script() -> Any:
    from icl_theory.cli.figures import script

    found = []
    for arguments in (["--list"], ["--out", "no/where", "--lis"]):
        with patch.object(sys, "argv", ["maps.py", *arguments]):
            found.append(refused(script, "/a/folder/maps.py"))
    return found
