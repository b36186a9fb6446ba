"""Does the audit notice? Plants faults in the package, one at a time, and prints which rows and checks then fail.

Each fault of `scripts/planted.py` is planted in a fresh process: the source of one file is changed as it is
imported, so that no copy of a name and no cache keeps the right one. Then the rows of the audit are measured, and
`check_bounds` of some runs, as far as they call the function with the fault. A fault is found if a row or check
that holds without it fails, or raises an exception.

    python scripts/faults.py --quick --out docs/faults.md
"""

from __future__ import annotations

import argparse
import ast
import functools
import gc
import importlib
import importlib.util
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

from planted import FAULTS, Fault

HEAVY = (
    "numpy", "scipy.integrate", "scipy.linalg", "scipy.optimize", "scipy.signal", "scipy.sparse.linalg",
    "scipy.special", "scipy.stats", "xarray",
)  # fmt: skip
SECONDS = 30  # of the processor, for one row or run
PACKAGE = "/icl_theory/"
HOLDS, FAILS = "holds", "fails"
FINDINGS = ("COUNTEREXAMPLE", "ONLY")  # outcomes that contradict a paper, in whole or in part
ROW = "| {} | {} | {} | {} |"
HEAD = """# Planted faults

Would the audit notice if the package were wrong? Each line of the table is an experiment. It plants one fault
in the source, in a process of its own, and measures the [rows of the audit](audit.md), on their smaller grids,
and `check_bounds` of some runs. (Rows and runs that do not call the changed function are not measured again.)

*What fails* lists the rows and checks that hold without the fault and fail with it. If one raises an exception,
its name is given. Some rows report a failure of a paper's statement even without a fault: their verdicts begin
with *fails: counterexample* or *holds only*. Such a row is listed if its verdict, with the numbers as printed,
*reads otherwise* with the fault. A check that fails on a run without a fault is not listed for this run.

Of {count} faults {found} are found. The page is the output of `python scripts/faults.py --quick --out
docs/faults.md`. Three lines in `scripts/planted.py` plant one more.

"""

Key = tuple[str, str, str]  # "row", its number, ""; or "run", its name, the check's
Unit = tuple[str, str]  # "row", its number; or "run", its name
Place = tuple[str, int]  # file, first line of a function in it


class Found(NamedTuple):
    """Whether rows and checks hold, or what they find; the names of the claims; the functions that each unit calls.

    The functions are recorded for the reference only.
    """

    outcomes: dict[Key, str]
    names: dict[str, str]
    calls: dict[Unit, set[Place]]


class Task(NamedTuple):
    """What one process does: which fault it plants (none for the reference), what it measures (None: all)."""

    fault: Fault | None
    quick: bool
    units: frozenset[Unit] | None
    rows: tuple[str, ...] = ()


class Planted(SourceFileLoader):
    """Loads a module with a fault in it."""

    fault: Fault

    def get_code(self, fullname: str) -> CodeType:
        """Compile the changed source, whatever is cached of the right one."""
        source = self.get_data(self.path).decode()
        return self.source_to_code(source.replace(self.fault.old, self.fault.new).encode(), self.path)


class Planter:
    """Finds the module with the fault before Python does."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.module = "icl_theory." + fault.path.removesuffix(".py").replace("/", ".")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's own place with the loader that plants the fault."""
        if fullname != self.module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.origin is not None
        loader = Planted(fullname, spec.origin)
        loader.fault = self.fault
        return importlib.util.spec_from_file_location(fullname, spec.origin, loader=loader)


def runs() -> dict[str, Callable[[], Any]]:
    """Return the runs that `check_bounds` is given, by name."""
    import icl_theory as icl
    from icl_theory import tasks

    points = icl.Features.random(8, 2, 0.5, seed=1)
    unequal = [0.4, 0.3, 0.2, 0.1]
    return {
        "flat": lambda: icl.simulate(0.2, 1.0, 4.0, epsilon=1.1e-4, imbalance=0.1),
        "sharp": lambda: icl.simulate(2.0, 1.0, 4.0, epsilon=1e-9, imbalance=0.1),
        "fifty features": lambda: icl.simulate(2.0, 1.0, 4.0, K=50, epsilon=0.1, imbalance=0.1),
        "many features": lambda: icl.simulate(2.0, 1.0, 4.0, K=3000, epsilon=0.1, imbalance=0.1),
        "many features, large L": lambda: icl.simulate(20.0, 1.0, 0.04, K=3000, epsilon=0.1, imbalance=0.1),
        "large steps": lambda: icl.simulate(2.0, 1.0, 300.0, epsilon=1e-6),
        "single steps": lambda: icl.simulate(2.0, 1.0, 4.0, K=5, epsilon=1e-3, method="exact"),
        "skipped steps": lambda: icl.simulate(2.0, 1.0, 0.1, K=5, epsilon=1e-6, method="fast"),
        "flow": lambda: icl.simulate(2.0, 1.0, 4.0, K=5, epsilon=1e-3, method="flow"),
        "finite N": lambda: icl.simulate(2.0, 1.0, 4.0, K=5, N=13, epsilon=0.2),
        "finite N, unequal p": lambda: icl.simulate(2.0, 1.0, 4.0, K=4, N=9, probs=unequal, epsilon=0.5),
        "noise": lambda: icl.simulate(2.0, 1.0, 2.0, K=4, N=20, noise=0.5, probs=unequal, epsilon=0.3),
        "unequal p": lambda: icl.simulate(2.0, 1.0, 4.0, K=4, probs=unequal, epsilon=1e-4),
        "embedding": lambda: icl.simulate(2.0, 1.3, 1.0, K=5, epsilon=1e-4, coordinates="embedding"),
        "factored": lambda: icl.simulate(2.0, 1.3, 1.0, K=4, epsilon=0.1, coordinates="factored", max_steps=500),
        "low rank": lambda: icl.simulate(2.0, 0.5, 1.0, features=points, task=tasks.Linear, epsilon=1e-2),
        "sampled": lambda: icl.descend(
            icl.Regression(L=2.0, delta=1.0, eta=1.0, K=4, N=20).sampled(64), 1.0, steps=150
        ),
        "cosine": lambda: icl.simulate(2.0, 0.5, 1.0, features=points, task=tasks.RandomCosine, epsilon=1e-2),
        "Fourier": lambda: icl.simulate(2.0, 0.5, 1.0, features=points, task=tasks.RandomFourier, epsilon=1e-2),
    }


def measure(task: Task) -> Found:
    """Measure rows and runs in this process, which must not have imported the package yet."""
    assert "icl_theory" not in sys.modules
    if task.fault is not None:
        sys.meta_path.insert(0, Planter(task.fault))  # type: ignore[arg-type]
    found = Found({}, {}, {})
    try:
        rows = importlib.import_module("icl_theory.claims.audit").rows()
        check = importlib.import_module("icl_theory").check_bounds
    except Exception as error:
        found.outcomes["import", "", ""] = f"raises {type(error).__name__}"
        return found
    work: dict[Unit, Callable[[], Any]] = {
        ("row", str(number)): functools.partial(row, task.quick)
        for number, row in enumerate(rows)
        if not task.rows or getattr(row, "__name__", "") in task.rows
    }
    if not task.rows:
        work |= {("run", name): (lambda make=make: check(make())) for name, make in runs().items()}  # type: ignore[misc]
    for unit, make in work.items():
        if task.units is not None and unit not in task.units:
            continue
        with _recorded(found.calls.setdefault(unit, set()), on=task.fault is None):
            result = _guarded(make)
        if isinstance(result, str):
            found.outcomes[*unit, ""] = result
        elif unit[0] == "row":
            found.names[unit[1]] = result.name
            found.outcomes[*unit, ""] = outcome_of(result.verdict)
        else:
            found.outcomes.update({(*unit, c.name): FAILS if c.holds is False else HOLDS for c in result})
    return found


def outcome_of(verdict: Any) -> str:
    """Whether a row holds or fails; of a finding the verdict itself."""
    if verdict.outcome.name in FINDINGS:
        return str(verdict)
    return FAILS if verdict.outcome.name == "FAILS" else HOLDS


@contextmanager
def _recorded(calls: set[Place], on: bool) -> Iterator[None]:
    """Record which functions of the package are called, with nothing remembered of what was called before."""
    if not on:
        yield
        return
    for held in gc.get_objects():
        if isinstance(held, functools._lru_cache_wrapper):
            held.cache_clear()

    def record(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and PACKAGE in frame.f_code.co_filename:
            calls.add((frame.f_code.co_filename.rpartition(PACKAGE)[2], frame.f_code.co_firstlineno))

    sys.setprofile(record)
    try:
        yield
    finally:
        sys.setprofile(None)


def source_of(fault: Fault) -> str:
    """Return the source of the file of a fault."""
    found = importlib.util.find_spec("icl_theory")
    assert found is not None
    assert found.origin is not None
    return (Path(found.origin).parent / fault.path).read_text(encoding="utf-8")


def within_reach(fault: Fault, right: Found) -> frozenset[Unit]:
    """Return rows and runs that call the function which the fault is in.

    No other can be touched by it: they are deterministic. Of a fault in no function, or in one that is called when
    the module is imported, they are those that call any function of the file.
    """
    source = source_of(fault)
    line = source[: source.index(fault.old)].count("\n") + 1
    inner = 0
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.body[0].lineno <= line <= (node.end_lineno or 0):
            inner = max(inner, min([node.lineno, *(d.lineno for d in node.decorator_list)]))
    calling = {unit: {first for file, first in calls if file == fault.path} for unit, calls in right.calls.items()}
    itself = frozenset(unit for unit, lines in calling.items() if inner in lines)
    return itself or frozenset(unit for unit, lines in calling.items() if lines)


def _guarded(make: Callable[[], Any]) -> Any:
    """Return the result, or in words the exception, one of which is that it takes too long."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        return make()
    except Exception as error:
        return f"raises {type(error).__name__}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


def turned(right: Found, wrong: Found) -> dict[Key, str]:
    """Return what holds without the fault and not with it, and findings that are others with it."""
    result = {}
    for key, outcome in wrong.outcomes.items():
        before = right.outcomes.get(key, HOLDS)
        if before == HOLDS and outcome != HOLDS:
            result[key] = outcome if outcome.startswith("raises") else FAILS
        elif before not in (HOLDS, FAILS) and outcome != before:
            result[key] = outcome if outcome.startswith("raises") or outcome == FAILS else "reads otherwise"
    return result


def in_words(found: dict[Key, str], names: dict[str, str]) -> list[str]:
    """Name rows by their claims, and checks with the runs that they fail on."""
    result: list[str] = []
    where: dict[str, list[str]] = {}
    for (kind, label, check), outcome in found.items():
        raised = "" if outcome == FAILS else f" ({outcome})"
        if kind == "run" and not raised:
            where.setdefault(check, []).append(label)
        elif kind == "run":
            result.append(f"`check_bounds` of *{label}*{raised}")
        else:
            result.append(names.get(label, kind) + raised)
    return result + [f"`check_bounds`: {check} (*{', '.join(labels)}*)" for check, labels in where.items()]


def page(faults: Sequence[Fault], right: Found, found: Sequence[dict[Key, str]]) -> str:
    """Return the table, and under it the faults that nothing found and the rows and checks that no fault turned."""
    lines = [
        HEAD.format(count=len(faults), found=sum(map(bool, found))),
        ROW.format("fault", "what is wrong", "file", "what fails"),
        "|---|---|---|---|",
    ]
    for fault, some in zip(faults, found, strict=True):
        words = "; ".join(in_words(some, right.names)) or "**nothing**"
        lines.append(ROW.format(fault.name, fault.wrong, f"`{fault.file}`", words.replace("|", "\\|")))
    hit = {key for some in found for key in some}
    idle = [right.names[key[1]] for key in right.outcomes if key[0] == "row" and key not in hit]
    checks = {key[2] for key in right.outcomes if key[0] == "run"} - {key[2] for key in hit}
    lines += ["", "## Rows and checks that none of these faults turns", ""]
    lines += [f"- {name}" for name in idle] + [f"- `check_bounds`: {name}" for name in sorted(checks)]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Plant the faults and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="rows on their smaller grids")
    parser.add_argument("--out", type=Path, help="write the table as Markdown")
    parser.add_argument("--only", default="", help="names of faults, separated by commas")
    parser.add_argument("--rows", default="", help="functions of rows, separated by commas; no others, and no runs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--json", action="store_true", help="print what fails for each fault as JSON")
    given = parser.parse_args()
    only = [name for name in given.only.split(",") if name]
    unknown = set(only) - {fault.name for fault in FAULTS}
    if unknown:
        parser.error(f"unknown faults: {', '.join(sorted(unknown))}")
    faults = [fault for fault in FAULTS if not only or fault.name in only]
    for fault in faults:
        if source_of(fault).count(fault.old) != 1:
            parser.error(f"{fault.name}: its text must occur once in {fault.file}")
    rows = tuple(name for name in given.rows.split(",") if name)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in HEAVY:
        importlib.import_module(name)
    found: list[dict[Key, str]] = []
    with multiprocessing.get_context("fork").Pool(given.jobs, maxtasksperchild=1) as pool:
        right = pool.apply(measure, (Task(None, given.quick, None, rows),))
        tasks = [Task(fault, given.quick, within_reach(fault, right), rows) for fault in faults]
        for fault, wrong in zip(faults, pool.imap(measure, tasks, chunksize=1), strict=True):
            found.append(turned(right, wrong))
            said = "; ".join(in_words(found[-1], right.names)) or "nothing"
            print(f"{fault.name}: {said}", file=sys.stderr, flush=True)
    text = page(faults, right, found)
    if given.out is not None:
        given.out.write_text(text, encoding="utf-8")
    if given.json:
        words = (in_words(some, right.names) for some in found)
        print(json.dumps({fault.name: each for fault, each in zip(faults, words, strict=True)}, ensure_ascii=False))
    elif given.out is None:
        print(text, end="")
    sys.exit(0 if all(found) else 1)


if __name__ == "__main__":
    main()
