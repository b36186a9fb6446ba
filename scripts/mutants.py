"""Change random places of the core, one at a time, and see whether a test notices.

    python scripts/mutants.py --number 300 --seed 1 --out mutants.md

A mutant is the code with one change. The script needs cosmic-ray (``pip install
cosmic-ray``), which can change an operator, a comparison, a number or a branch, and it
takes hours. Every mutant is made in a copy of the checkout. The tests that mention the
changed function and its module run first. A mutant is found if a test fails, raises an
error, or runs for too long.

It takes a tenth of the time if it knows which tests run which lines, from pytest-cov:

    python -m pytest -m "not slow" --cov=icl_theory --cov-context=test --cov-report=
    python scripts/mutants.py --number 300 --seed 1 --coverage .coverage

Then the tests that run the changed line take the place of those that mention it.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from icl_theory.results.numbers import markdown

ROOT = Path(__file__).resolve().parents[1]
# The folders of the package whose code is changed.
CORE = (
    "engine",
    "tokens",
    "families",
    "regression",
    "sweeps",
    "statements",
    "results",
    "testing",
    "cli",
)
# The kinds of changes, which are operators of cosmic-ray. Its other operators change
# type hints, or make changes that are seldom made by mistake.
OPERATORS = re.compile(
    r"core/(ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Div|Div_Mul|Pow_Mul)"
    r"|ReplaceComparisonOperator_(Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Eq_NotEq|NotEq_Eq|Lt_Gt|Gt_Lt)"
    r"|ReplaceUnaryOperator_Delete_Not|ReplaceUnaryOperator_USub_UAdd|AddNot"
    r"|ReplaceAndWithOr|ReplaceOrWithAnd|ReplaceTrueWithFalse|ReplaceFalseWithTrue"
    r"|ReplaceBreakWithContinue|NumberReplacer)"
)
# The parts of the checkout that the tests need.
COPIED = ("icl_theory", "tests", "scripts", "docs", "README.md", "pyproject.toml")
# The number of test files that run before all others.
FIRST = 10
# The number of tests of a line that run first, and the number that run if these pass. A
# line of the engine is run by thousands of tests, of which a few find most mutants.
FIRST_TESTS = 40
MORE_TESTS = 600
# The environment variable with the names of the tests to run, which this script reads
# if pytest has loaded it as a plugin.
SELECTED = "ICL_THEORY_SELECTED_TESTS"


class Mutant(NamedTuple):
    """A change of the code: an operator of cosmic-ray at one place in a file."""

    path: str  # of the file
    operator: str
    occurrence: int  # the number of the place among those that the operator can change
    line: int
    function: str  # the innermost function around the place


def places() -> list[Mutant]:
    """Return a mutant for every place within a function that an operator can change."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.plugins import get_operator, operator_names

    operators = [name for name in operator_names() if OPERATORS.fullmatch(name)]
    mutants = []
    for folder in CORE:
        for path in sorted((ROOT / "icl_theory" / folder).rglob("*.py")):
            functions = _functions(path)
            nodes = list(ast_nodes(get_ast_from_path(path)))
            for name in operators:
                positions: Iterator[Any] = (
                    position
                    for node in nodes
                    for position in get_operator(name)().mutation_positions(node)
                )
                # A position is a start and an end, each a line and a column.
                for occurrence, ((line, _), _) in enumerate(positions):
                    mutant = Mutant(
                        path=path.relative_to(ROOT).as_posix(),
                        operator=name,
                        occurrence=occurrence,
                        line=line,
                        function=functions.get(line, ""),
                    )
                    mutants.append(mutant)
    return [mutant for mutant in mutants if mutant.function]


def _functions(path: Path) -> dict[int, str]:
    """Return the name of the innermost function around each line that is in one."""
    names: dict[int, str] = {}
    # ast.walk visits outer functions before inner ones, which replace their names.
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            first = node.body[0].lineno
            names |= dict.fromkeys(
                range(first, (node.end_lineno or first) + 1), node.name
            )
    return names


def nearest(mutant: Mutant) -> list[str]:
    """Return all test files; those that mention the changed place most come first."""
    module = Path(mutant.path).stem
    folder = Path(mutant.path).parts[1]
    function = mutant.function.strip("_")

    def rank(path: Path) -> float:
        """Return a number that is smaller for files with more mentions.

        A mention of the function counts most, and one of the folder least. The square
        root of the length keeps long files from always being first.
        """
        text = path.read_text(encoding="utf-8")
        mentions = 20 * text.count(function)
        mentions += 5 * text.count(module)
        mentions += text.count(folder)
        return -mentions / len(text) ** 0.5

    # test_record.py would take long: it compares all results with recorded ones.
    files = [
        path
        for path in (ROOT / "tests").rglob("test_*.py")
        if path.name != "test_record.py"
    ]
    return [path.relative_to(ROOT).as_posix() for path in sorted(files, key=rank)]


def covering(mutant: Mutant, data_file: Path) -> list[str]:
    """Return the tests that run the changed line, according to a file of pytest-cov.

    The first `FIRST_TESTS` are drawn at random, because tests of one file often overlook
    the same mutants. Then come the tests of the files that `nearest` puts first.
    """
    from coverage import CoverageData

    data = CoverageData(basename=str(data_file))
    data.read()
    contexts: set[str] = set()
    for path in data.measured_files():
        if path.endswith(mutant.path):
            contexts |= set(data.contexts_by_lineno(path).get(mutant.line, ()))
    # The context of a test ends with its phase: "tests/test_a.py::test_b|run".
    tests = sorted({context.split("|")[0] for context in contexts if context})
    random.Random(mutant.line).shuffle(tests)
    rank = {path: number for number, path in enumerate(nearest(mutant))}

    # Examples in docstrings have no rank, and come last.
    def rank_of_file(test: str) -> int:
        return rank.get(test.split("::")[0], len(rank))

    further = sorted(tests[FIRST_TESTS:], key=rank_of_file)
    return tests[:FIRST_TESTS] + further


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leave out the tests that are not selected; pytest calls this in its plugins.

    The environment variable `SELECTED` has the names of tests, or of whole files, a
    line each. The list ``items`` of collected tests is changed in place.
    """
    names = set(os.environ[SELECTED].split("\n"))
    files = {name for name in names if "::" not in name}
    kept = [
        item
        for item in items
        if item.nodeid in names or item.nodeid.split("::")[0] in files
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def first_failure(folder: Path, tests: list[str], seconds: float) -> str:
    """Run tests or whole files until a test fails; return its name, or "" if none does.

    ``folder`` is the copy of the checkout. If the tests do not end within ``seconds``,
    or cannot be collected, the result says so.
    """
    # pytest refuses some names of tests with unusual characters as arguments. So it
    # gets the files, and this script as a plugin that selects tests.
    files = sorted({test.split("::")[0] for test in tests})
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    command += ["-m", "not slow", "-p", "no:randomly", "-p", "scripts.mutants", *files]
    environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    environment[SELECTED] = "\n".join(tests)
    # Seconds of the processor, because other work may slow the tests down. Tests that
    # only wait are ended by the time on the clock.
    limit = f"ulimit -t {round(seconds)}; exec {shlex.join(command)}"
    try:
        done = subprocess.run(
            ["bash", "-c", limit],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=10 * seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "the tests do not end"
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return "the tests do not end"
    if done.returncode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return failed[1] if failed else "the tests cannot be collected"


class Group(NamedTuple):
    """Tests that run together, and how long they may take."""

    tests: list[str]
    seconds: float


def noticed_by(mutant: Mutant, groups: list[Group]) -> str:
    """Return the first test that notices a mutant, or "" if none does.

    A group of tests runs only if the groups before it have passed.
    """
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in COPIED:
            source = ROOT / part
            if source.is_dir():
                ignore = shutil.ignore_patterns("__pycache__", "_build", "gallery")
                shutil.copytree(source, folder / part, ignore=ignore)
            else:
                shutil.copy(source, folder / part)
        target = folder / mutant.path
        code = target.read_text(encoding="utf-8")
        changed = mutate_code(code, get_operator(mutant.operator)(), mutant.occurrence)
        target.write_text(changed, encoding="utf-8")
        for group in groups:
            test = first_failure(folder, group.tests, group.seconds)
            if test:
                return test
        return ""


def groups_of_tests(mutant: Mutant, arguments: argparse.Namespace) -> list[Group]:
    """Return the tests to run on a mutant, in groups.

    With a file of coverage, they are tests of the changed line, and otherwise the files
    that mention it. ``arguments`` are those of the command line.
    """
    seconds = arguments.seconds
    if arguments.coverage:
        tests = covering(mutant, arguments.coverage)
        groups = [
            Group(tests[:FIRST_TESTS], seconds),
            Group(tests[FIRST_TESTS : FIRST_TESTS + MORE_TESTS], seconds),
        ]
        groups = [group for group in groups if group.tests]
        # A line that only other processes run seems to have no tests. Then go on as
        # without the file of coverage.
        if groups:
            return groups
    files = nearest(mutant)
    groups = [Group(files[:FIRST], seconds)]
    if arguments.whole:
        groups.append(Group(files[FIRST:], 10 * seconds))
    return groups


def main() -> None:
    """Draw mutants, and print for each the test that notices it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--number", type=int, default=300, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=1, help="of the draw")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument(
        "--only", type=int, nargs="*", help="numbers of the mutants to try again"
    )
    parser.add_argument(
        "--seconds", type=float, default=240.0, help="limit of a group of tests"
    )
    parser.add_argument(
        "--whole", action="store_true", help="run all tests if the nearest ones pass"
    )
    parser.add_argument("--coverage", type=Path, help="which tests run which lines")
    parser.add_argument("--out", type=Path, help="file for the table")
    arguments = parser.parse_args()
    drawn = random.Random(arguments.seed).sample(places(), arguments.number)
    rows: dict[str, list[str]] = {"place": [], "change": [], "noticed by": []}
    for number in arguments.only or range(arguments.first, arguments.number):
        mutant = drawn[number]
        start = time.monotonic()
        test = noticed_by(mutant, groups_of_tests(mutant, arguments))
        place = f"{mutant.path}:{mutant.line} {mutant.function}"
        change = mutant.operator.removeprefix("core/")
        rows["place"].append(place)
        rows["change"].append(change)
        rows["noticed by"].append(test or "nothing")
        seconds = time.monotonic() - start
        print(
            f"{number} {place} {change}: {test or 'NOTHING'} ({seconds:.0f} s)",
            flush=True,
        )
    survivors = rows["noticed by"].count("nothing")
    share = 1.0 - survivors / max(len(rows["place"]), 1)
    print(f"{len(rows['place'])} mutants, {survivors} not noticed, {share:.0%} found")
    if arguments.out:
        arguments.out.write_text(markdown(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
