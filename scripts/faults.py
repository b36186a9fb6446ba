"""Would anybody notice? Plants faults in the package, one at a time, and says whether audit and tests find them.

Each fault of `scripts/planted.py` is planted in a fresh process: the source of one file is changed as it is
imported, so that no copy of a name and no cache keeps the right one, and no file is touched. Then the rows of the
audit are measured, and `check_bounds` of some runs, as far as they call the function with the fault. With
``--tests`` the test files nearest to the fault run too, until one test fails.

    python scripts/faults.py --quick --tests --kept faults.json --out docs/faults.md

goes on where it was interrupted. Delete ``faults.json`` when the package has changed.
"""

from __future__ import annotations

import argparse
import ast
import functools
import gc
import importlib
import importlib.util
import itertools
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from multiprocessing.context import ForkContext, ForkProcess
from multiprocessing.pool import Pool
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
HOLDS, FAILS = "holds", "fails"
FINDINGS = ("COUNTEREXAMPLE", "ONLY")  # outcomes that contradict a paper, in whole or in part
ROOT = Path(__file__).parents[1]
MEASURES_THE_AUDIT = ("test_audit.py", "test_faults.py")  # and so no tests beside it
ROW = "| {} | {} | {} | {} | {} |"
HEAD = """# Planted faults

Would anybody notice if the package were wrong? Each line of the tables is an experiment. It plants one fault in the
source, in a process of its own. Two things may find it.

**The audit**: its [rows](audit.md), on their smaller grids, and `check_bounds` of some runs. Listed are those that
hold without the fault and fail with it. If one raises an exception, its name is given. Some rows report a failure
of a paper's statement even without a fault: their verdicts begin with *fails: counterexample* or *holds only*. Such
a row is listed if its verdict, with the numbers as printed, *reads otherwise* with the fault. A check that fails on
a run without a fault is not listed for this run.

**The tests**: the files of tests that name the module or the function with the fault, without slow tests and those
that measure the audit. The first test that fails is named. Tests farther away might find more.

{shares}

Shares of faults that were chosen for what they are tried on say nothing about others. Those of fresh ones do, once:
when they are planted for the first time.

The page is the output of `python scripts/faults.py --quick --tests --out docs/faults.md`. Three lines in
`scripts/planted.py` plant one more.
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
    """What another process does: which fault it plants, which test files it runs, and how long at most."""

    fault: Fault | None
    files: list[str]
    seconds: int = 600


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


def _guarded(make: Callable[[], Any], seconds: int = SECONDS) -> Any:
    """Return the result, or in words the exception, one of which is that it takes too long."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
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


def relevant(fault: Fault) -> list[str]:
    """Return the test files for a fault, from the root of the checkout, the nearest first.

    First the one that it names itself and that with the name of its module, then those that name the module or the
    function or class it is in, most often first, those with the name of its folder, and the examples in its module.
    If there are none but these: all in the folder of tests that is named after one of its folders, or that import
    from there.
    """
    source, stem, folders = source_of(fault), Path(fault.path).stem, Path(fault.path).parts[-2::-1]
    line = source[: source.index(fault.old)].count("\n") + 1
    around = [
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    names = re.compile("|".join([rf"{folders[0]}(\.| import .*\b){stem}\b", *(rf"\b{name}\b" for name in around)]))
    tests = ROOT / "tests"
    inside = next((tests / folder for folder in folders if (tests / folder).is_dir()), tests)
    files = [path for path in sorted(tests.rglob("test_*.py")) if path.name not in MEASURES_THE_AUDIT]
    texts = {path: path.read_text(encoding="utf-8") for path in files if path.parent in (inside, tests)}
    named = {path: len(names.findall(text)) for path, text in texts.items()}
    near = [tests / fault.tests] if fault.tests else []
    near += [path for path in texts if path.name == f"test_{stem}.py"]
    near += sorted((path for path in texts if named[path]), key=lambda path: -named[path])
    near += [path for path in texts if path.name.startswith(f"test_{folders[0]}")]
    near = near or [path for path in texts if path.parent == inside != tests]
    near = near or [path for path, text in texts.items() if f"icl_theory.{folders[0]}" in text]
    return [str(path.relative_to(ROOT)) for path in dict.fromkeys([*near, ROOT / "icl_theory" / fault.path])]


def failing(task: Tests) -> str:
    """Return the first test that fails with a fault, "" if none does; in a process that has not the package yet."""
    import pytest

    assert "icl_theory" not in sys.modules
    if task.fault is not None:
        sys.meta_path.insert(0, Planter(task.fault))  # type: ignore[arg-type]
    failed: list[str] = []

    class First:
        """Keeps the names of what fails."""

        def pytest_runtest_logreport(self, report: Any) -> None:
            failed.extend([report.nodeid] * report.failed)

        pytest_collectreport = pytest_runtest_logreport

    os.chdir(ROOT)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    options = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-m", "not slow"]
    ended = _guarded(lambda: int(pytest.main([*options, *task.files], plugins=[First()])), task.seconds)
    if time.process_time() > task.seconds:
        return "takes too long"
    return failed[0] if failed else "" if ended == 0 else "imports" if isinstance(ended, int) else ended


class Alone(ForkProcess):
    """A process that may start others, as some tests do."""

    daemon = property(lambda self: False, lambda self, value: None)  # type: ignore[assignment]


class Forked(ForkContext):
    """Starts such processes."""

    Process = Alone


class Result(NamedTuple):
    """What finds a fault: keys of the audit with outcomes; the first test that fails, "" if none, None: not run."""

    audit: dict[Key, str]
    test: str | None


def shares(results: dict[str, Result]) -> Iterator[str]:
    """Say for each group how many faults audit and tests find."""
    for group in GROUPS:
        some = [results[fault.name] for fault in group.faults if fault.name in results]
        tried = [each for each in some if each.test is not None]
        by_audit, by_test = sum(bool(each.audit) for each in some), sum(bool(each.test) for each in tried)
        either = sum(bool(each.audit or each.test) for each in some)
        yield (
            f"- **{group.title}.** {group.chosen} Of {len(some)} faults the audit finds {by_audit}. The tests find"
            f" {by_test} of the {len(tried)} that they were tried on. One or the other finds {either}."
        )


def page(right: Found, results: dict[str, Result]) -> str:
    """Return a table for each group, and under them the rows and checks that no fault turned."""
    lines = [HEAD.format(shares="\n".join(shares(results)))]
    for group in GROUPS:
        lines += [f"## {group.title}", ""]
        lines += [ROW.format("fault", "what is wrong", "file", "audit", "tests"), "|---|---|---|---|---|"]
        for fault in group.faults:
            if fault.name in results:
                some, test = results[fault.name]
                words = "; ".join(in_words(some, right.names)).replace("|", "\\|")
                said = "not run" if test is None else f"`{test.removeprefix('tests/')}`" if test else ""
                nothing = "**nothing**" if not (some or test) else ""
                lines.append(
                    ROW.format(fault.name, fault.wrong, f"`{fault.file}`", words or nothing or "–", said or "–")
                )
        lines.append("")
    hit = {key for each in results.values() for key in each.audit}
    idle = [right.names[key[1]] for key in right.outcomes if key[0] == "row" and key not in hit]
    checks = {key[2] for key in right.outcomes if key[0] == "run"} - {key[2] for key in hit}
    lines += ["## Rows and checks that none of these faults turns", ""]
    lines += [f"- {name}" for name in idle] + [f"- `check_bounds`: {name}" for name in sorted(checks)]
    return "\n".join(lines) + "\n"


def kept(path: Path | None) -> dict[str, Result]:
    """Return the results that a file holds."""
    if path is None or not path.exists():
        return {}
    found = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {
        each["fault"]: Result({tuple(key): outcome for *key, outcome in each["audit"]}, each["test"])
        for each in found
    }


def main() -> None:
    """Plant the faults and print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="rows on their smaller grids")
    parser.add_argument("--tests", action="store_true", help="run tests, too")
    parser.add_argument("--out", type=Path, help="write the tables as Markdown")
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
    results = kept(given.kept)
    left = [fault for fault in faults if fault.name not in results]
    with Pool(given.jobs, maxtasksperchild=1, context=Forked()) as pool:
        right = pool.apply(measure, (Task(None, given.quick, None, rows),))
        tasks = [Task(fault, given.quick, within_reach(fault, right), rows) for fault in left]
        tests = [Tests(fault, relevant(fault)) for fault in left if given.tests]
        some = pool.imap(failing, tests, chunksize=1) if given.tests else itertools.repeat(None, len(left))
        for fault, wrong, test in zip(left, pool.imap(measure, tasks, chunksize=1), some, strict=True):
            results[fault.name] = found = Result(turned(right, wrong), test)
            said = "; ".join(in_words(found.audit, right.names)) or "nothing"
            print(f"{fault.name}: {said}; {test}", file=sys.stderr, flush=True)
            if given.kept is not None:
                each = {
                    "fault": fault.name,
                    "audit": [[*key, how] for key, how in found.audit.items()],
                    "test": test,
                }
                with given.kept.open("a", encoding="utf-8") as file:
                    print(json.dumps(each, ensure_ascii=False), file=file)
        sure = sorted({each.test for each in results.values() if each.test and "::" in each.test})
        if sure and (broken := pool.apply(failing, (Tests(None, sure),))):
            parser.error(f"{broken} fails without a fault")
    results = {fault.name: results[fault.name] for fault in faults}
    if given.out is not None:
        given.out.write_text(page(right, results), encoding="utf-8")
    if given.json:
        words = {
            name: [*in_words(each.audit, right.names), *filter(None, [each.test])] for name, each in results.items()
        }
        print(json.dumps(words, ensure_ascii=False))
    elif given.out is None:
        print(page(right, results), end="")
    sys.exit(0 if all(each.audit or each.test for each in results.values()) else 1)


if __name__ == "__main__":
    main()
