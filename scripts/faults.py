"""Would anybody notice? Plants faults in the package, one at a time, and says whether audit and tests find them.

Each fault of `scripts/planted.py` is planted in a fresh process: the source of one file is changed as it is
imported, so that no copy of a name and no cache keeps the right one, and no file is touched. Then the rows of the
audit are measured, and `check_bounds` of some runs, as far as they call the function with the fault. With
``--tests`` the test files nearest to the fault run too, until one test fails. The scripts of the explorer are
changed as the page is made of them.

    python scripts/faults.py --quick --tests --kept faults.json --out docs/faults.md

goes on where it was interrupted. With ``--no-audit`` it runs the tests alone, which takes a fraction of the time.
Delete ``faults.json`` when the package has changed.
"""

from __future__ import annotations

import argparse
import ast
import functools
import gc
import importlib
import importlib.util
import json
import multiprocessing.process
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from multiprocessing.context import ForkContext, ForkProcess
from multiprocessing.pool import Pool, ThreadPool
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

from planted import FAULTS, GROUPS, Fault

HEAVY = (
    "numpy", "scipy.integrate", "scipy.linalg", "scipy.optimize", "scipy.signal", "scipy.sparse.linalg",
    "scipy.special", "scipy.stats", "xarray", "pandas", "matplotlib.figure", "typer", "pytest",
)  # fmt: skip
SECONDS = 30  # of the processor, for one row or run
PACKAGE = "/icl_theory/"
HOLDS, FAILS, LATE = "holds", "fails", "ran out of time"
FINDINGS = ("COUNTEREXAMPLE", "ONLY")  # outcomes that contradict a paper, in whole or in part
ROOT = Path(__file__).parents[1]
MEASURES_THE_AUDIT = ("test_audit.py", "test_faults.py")  # and so no tests beside it
ROW = "| {} | {} | {} | {} | {} |"
HEAD = """# Planted faults

Would anybody notice if the package were wrong? Each line of the tables is an experiment. It plants one fault in the
source, in a process of its own. Two things may find it.

**The audit**: its [rows](audit.md), on their smaller grids, and `check_bounds` of some runs. Listed are those that
hold without the fault and fail with it. If one raises an exception, its name is given. One that *ran out of time*,
after 30 seconds of the processor, found nothing. Some rows report a failure of a paper's statement even without a
fault: their verdicts begin with *fails: counterexample* or *holds only*. Such a row is listed if its verdict, with
the numbers as printed, *reads otherwise* with the fault. A check that fails on a run without a fault is not listed
for this run.

**The tests**: the files of tests that name the module or the function with the fault, or that the fault itself
names, without slow tests and those that measure the audit; after them the record of what the package answers to
many calls (`tests/answers/`). The first test that fails with the fault, and not without it, is named. Tests farther
away might find more.

*Not run* is what was not tried; no share counts it.

{shares}

Shares of faults that were chosen for what they are tried on say nothing about others. Those of fresh ones do, once:
when they are planted for the first time.

The page is the output of `python scripts/faults.py --quick --tests --kept faults.json --out docs/faults.md`, which
takes hours and goes on where it was interrupted. Three lines in `scripts/planted.py` plant one more.
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


class Tests(NamedTuple):
    """What another process does: which fault it plants, which test files it runs, how long, and without which."""

    fault: Fault | None
    files: list[str]
    seconds: int
    without: tuple[str, ...] = ()


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
        self.module = "icl_theory." + fault.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

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
        inside = spec.submodule_search_locations  # of a package
        return importlib.util.spec_from_file_location(
            fullname, spec.origin, loader=loader, submodule_search_locations=inside
        )


def plant(fault: Fault) -> None:
    """Plant a fault in this process, in which the file with it must not have been imported yet."""
    if fault.path.endswith(".py"):
        sys.meta_path.insert(0, Planter(fault))  # type: ignore[arg-type]
        return
    explorer = importlib.import_module("icl_theory.explorer")
    read, place = explorer._read, explorer.HERE.parent / fault.path

    def changed(path: Path) -> str:
        text: str = read(path)
        return text.replace(fault.old, fault.new) if path == place else text

    explorer._read = changed  # type: ignore[attr-defined]


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
        plant(task.fault)
    found = Found({}, {}, {})
    try:
        rows = importlib.import_module("icl_theory.papers.audit").rows()
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
            result = _guarded(make, 0 if task.fault is None else SECONDS)
        if isinstance(result, str):
            found.outcomes[*unit, ""] = result
        elif unit[0] == "row":
            found.names[unit[1]] = result.name
            found.outcomes[*unit, ""] = outcome_of(result)
        else:
            found.outcomes.update({(*unit, c.name): FAILS if c.holds is False else HOLDS for c in result})
    return found


def outcome_of(claim: Any) -> str:
    """Whether a row holds or fails; of a finding the verdict itself."""
    if claim.outcome.name in FINDINGS:
        return str(claim.verdict)
    return FAILS if claim.outcome.name == "FAILS" else HOLDS


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
    the module is imported, they are those that call any function of the file. None runs a script of the explorer.
    """
    if not fault.path.endswith(".py"):
        return frozenset()
    source = source_of(fault)
    line = source[: source.index(fault.old)].count("\n") + 1
    inner = 0
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.body[0].lineno <= line <= (node.end_lineno or 0):
            inner = max(inner, min([node.lineno, *(d.lineno for d in node.decorator_list)]))
    calling = {unit: {first for file, first in calls if file == fault.path} for unit, calls in right.calls.items()}
    itself = frozenset(unit for unit, lines in calling.items() if inner in lines)
    return itself or frozenset(unit for unit, lines in calling.items() if lines)


def _guarded(make: Callable[[], Any], seconds: float) -> Any:
    """Return the result, or in words the exception or that time ran out; 0 seconds are no limit."""
    ended: list[int] = []

    def late(number: int, frame: FrameType | None) -> None:
        ended.append(number)
        raise TimeoutError

    signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds, seconds)
    try:
        result = make()
    except Exception as error:
        result = f"raises {type(error).__name__}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
    return LATE if ended else result  # also if what was interrupted went on: pytest does


def turned(right: Found, wrong: Found) -> dict[Key, str]:
    """Return what holds without the fault and not with it, findings that are others with it, and what is late."""
    result = {}
    for key, outcome in wrong.outcomes.items():
        before = right.outcomes.get(key, HOLDS)
        said = outcome.startswith("raises") or outcome == LATE
        if before == HOLDS and outcome != HOLDS:
            result[key] = outcome if said else FAILS
        elif before not in (HOLDS, FAILS) and outcome != before:
            result[key] = outcome if said or outcome == FAILS else "reads otherwise"
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


def relevant(fault: Fault) -> list[str]:
    """Return the test files for a fault, from the root of the checkout, the nearest first.

    First the one that it names itself and that with the name of its module, then those that name the module or the
    function or class it is in, most often first, those with the name of one of its folders, and the examples in its
    module. If there are none but these: all in the folders of tests that are named after one of its folders, or
    that import from there. The record of answers is the last.
    """
    source, path = source_of(fault), Path(fault.path)
    stem, folders = path.stem, path.parts[-2::-1] or ("icl_theory",)
    line, python = source[: source.index(fault.old)].count("\n") + 1, fault.path.endswith(".py")
    around = [
        node.name
        for node in ast.parse(source if python else "").body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    names = re.compile("|".join([rf"{folders[0]}(\.| import .*\b){stem}\b", *(rf"\b{name}\b" for name in around)]))
    tests = ROOT / "tests"
    inside = [tests / folder for folder in folders if (tests / folder).is_dir()]
    files = [path for path in sorted(tests.rglob("test_*.py")) if path.name not in MEASURES_THE_AUDIT]
    texts = {path: path.read_text(encoding="utf-8") for path in files if path.parent in (*inside, tests)}
    named = {path: len(names.findall(text)) for path, text in texts.items()}
    near = [tests / fault.tests] if fault.tests else []
    near += [path for path in texts if path.name == f"test_{stem}.py"]
    near += sorted((path for path in texts if named[path]), key=lambda path: -named[path])
    near += [path for path in texts if path.name.startswith(tuple(f"test_{name}" for name in folders))]
    near = near or [path for path in texts if path.parent in inside]
    near = near or [path for path, text in texts.items() if f"icl_theory.{folders[0]}" in text]
    near += [ROOT / "icl_theory" / fault.path] if python else []
    near += [tests / "test_answers.py"]
    return [str(path.relative_to(ROOT)) for path in dict.fromkeys(near)]


def failing(task: Tests) -> str:
    """Return the first test that fails with a fault, "" if none does; in a process that has not the package yet."""
    import pytest

    assert "icl_theory" not in sys.modules
    if task.fault is not None:
        plant(task.fault)
    failed: list[str] = []

    class First:
        """Keeps the names of what fails."""

        def pytest_runtest_logreport(self, report: Any) -> None:
            failed.extend([report.nodeid] * report.failed)

        pytest_collectreport = pytest_runtest_logreport

    os.chdir(ROOT)
    multiprocessing.process._parent_process = None  # type: ignore[attr-defined]  # no worker: those are silent
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    options = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-m", "not slow or answers"]
    options += [f"--deselect={name}" for name in task.without]
    ended = _guarded(lambda: int(pytest.main([*options, *task.files], plugins=[First()])), task.seconds)
    if ended == LATE:
        return LATE
    return failed[0] if failed else "" if ended in (0, 5) else "imports" if isinstance(ended, int) else ended


class Alone(ForkProcess):
    """A process that may start others, as some tests do."""

    daemon = property(lambda self: False, lambda self, value: None)  # type: ignore[assignment]


class Forked(ForkContext):
    """Starts such processes."""

    Process = Alone


class Result(NamedTuple):
    """What the audit finds, in words, and the first test that fails, "" if none does; None if they were not run."""

    audit: list[str] | None = None
    test: str | None = None

    @property
    def by_audit(self) -> bool:
        """Whether the audit finds it."""
        return any(not word.endswith(f"({LATE})") for word in self.audit or ())

    @property
    def by_test(self) -> bool:
        """Whether a test finds it."""
        return self.test not in (None, "", LATE)


def shares(results: dict[str, Result]) -> Iterator[str]:
    """Say for each group how many faults audit and tests find, of how many they were tried on."""
    for group in GROUPS:
        some = [results.get(fault.name, Result()) for fault in group.faults]
        audited, tested = ([each for each in some if each[place] is not None] for place in range(2))
        by_audit, by_test = sum(each.by_audit for each in some), sum(each.by_test for each in some)
        either = sum(each.by_audit or each.by_test for each in some)
        tried = sum(each != Result() for each in some)
        yield (
            f"- **{group.title}**, {len(some)} faults. {group.chosen}"
            f" The audit {f'was tried on {len(audited)} and finds {by_audit}' if audited else 'was not run'},"
            f" the tests {f'were tried on {len(tested)} and find {by_test}' if tested else 'were not run'}."
            f" One or the other finds {either} of {tried}."
        )


def page(claims: Sequence[str], results: dict[str, Result]) -> str:
    """Return a table for each group, and under them the rows and checks that no fault turned."""
    lines = [HEAD.format(shares="\n".join(shares(results)))]
    for group in GROUPS:
        lines += [f"## {group.title}", ""]
        lines += [ROW.format("fault", "what is wrong", "file", "audit", "tests"), "|---|---|---|---|---|"]
        for fault in group.faults:
            if fault.name in results:
                found = results[fault.name]
                nothing = "–" if found.by_audit or found.by_test else "**nothing**"
                audit = "not run" if found.audit is None else "; ".join(found.audit) or nothing
                other = {None: "not run", "": nothing, LATE: LATE}
                said = other.get(found.test, f"`{(found.test or '').removeprefix('tests/')}`")
                cells = (fault.name, fault.wrong, f"`{fault.file}`", audit, said)
                lines.append(ROW.format(*(cell.replace("|", "\\|") for cell in cells)))
        lines.append("")
    words = [word for each in results.values() for word in each.audit or () if not word.endswith(f"({LATE})")]
    lines += ["## Rows and checks that none of these faults turns", ""]
    lines += [f"- {name}" for name in claims if not any(f"{word} (".startswith(f"{name} (") for word in words)]
    return "\n".join(lines) + "\n"


def claims_of(right: Found) -> list[str]:
    """Return the names of rows and checks, as in_words has them."""
    checks = {key[2] for key in right.outcomes if key[0] == "run"}
    rows = [right.names[key[1]] for key in right.outcomes if key[0] == "row"]
    return rows + [f"`check_bounds`: {name}" for name in sorted(checks)]


def kept(path: Path | None) -> tuple[list[str], dict[str, Result]]:
    """Return the names of rows and checks and the results that a file holds, of each what was measured last."""
    claims: list[str] = []
    results: dict[str, Result] = {}
    if path is not None and path.exists():
        for each in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            name = each.pop("fault", None)
            if name is None:
                claims = each["claims"]
            else:
                results[name] = results.get(name, Result())._replace(**each)
    return claims, results


def main() -> None:
    """Plant the faults and print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="rows on their smaller grids")
    parser.add_argument("--tests", action="store_true", help="run tests, too")
    parser.add_argument("--out", type=Path, help="write the tables as Markdown")
    parser.add_argument("--no-audit", action="store_true", help="leave the audit out")
    parser.add_argument("--seconds", type=int, default=900, help="of the processor for the tests, for each fault")
    parser.add_argument("--kept", type=Path, help="file of results: what it holds is not measured again")
    parser.add_argument("--only", default="", help="names of faults, separated by commas")
    parser.add_argument("--rows", default="", help="functions of rows, separated by commas; no others, and no runs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--json", action="store_true", help="print what finds each fault as JSON")
    given = parser.parse_args()
    named = {fault.name: fault for fault in FAULTS}
    only = [name for name in given.only.split(",") if name]
    if unknown := sorted(set(only) - set(named)):
        parser.error(f"unknown faults: {', '.join(unknown)}")
    faults = [fault for fault in FAULTS if not only or fault.name in only]
    for fault in faults:
        if source_of(fault).count(fault.old) != 1:
            parser.error(f"{fault.name}: its text must occur once in {fault.file}")
    rows = tuple(name for name in given.rows.split(",") if name)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in HEAVY:
        importlib.import_module(name)
    claims, results = kept(given.kept)

    def keep(**each: Any) -> None:
        print(*each.values(), sep=": ", file=sys.stderr, flush=True)
        if given.kept is not None:
            with given.kept.open("a", encoding="utf-8") as file:
                print(json.dumps(each, ensure_ascii=False), file=file)

    some = {fault.name: results.get(fault.name, Result()) for fault in faults}
    tried = [fault for fault in faults if given.tests and some[fault.name].test is None]
    left = [fault for fault in faults if not given.no_audit and some[fault.name].audit is None]
    with Pool(given.jobs, maxtasksperchild=1, context=Forked()) as pool:

        def first(fault: Fault) -> str:
            """Return the first test that fails with the fault and not without it."""
            broken: tuple[str, ...] = ()
            while True:
                test: str = pool.apply(failing, (Tests(fault, relevant(fault), given.seconds, broken),))
                if "/" not in test or not pool.apply(failing, (Tests(None, [test], given.seconds),)):
                    return test
                broken += (test,)

        for fault, test in zip(tried, ThreadPool(given.jobs).imap(first, tried), strict=True):
            some[fault.name] = some[fault.name]._replace(test=test)
            keep(fault=fault.name, test=test)
        if left:
            right = pool.apply(measure, (Task(None, given.quick, None, rows),))
            if not rows:
                keep(claims=(claims := claims_of(right)))
            tasks = [Task(fault, given.quick, within_reach(fault, right), rows) for fault in left]
            for fault, wrong in zip(left, pool.imap(measure, tasks, chunksize=1), strict=True):
                words = in_words(turned(right, wrong), right.names)
                some[fault.name] = some[fault.name]._replace(audit=words)
                keep(fault=fault.name, audit=words)
    if given.out is not None:
        given.out.write_text(page(claims, some), encoding="utf-8")
    if given.json:
        found = {name: [*(each.audit or ()), *filter(None, [each.test])] for name, each in some.items()}
        print(json.dumps(found, ensure_ascii=False))
    elif given.out is None:
        print(page(claims, some), end="")
    sys.exit(0 if all(each.by_audit or each.by_test for each in some.values()) else 1)


if __name__ == "__main__":
    main()
