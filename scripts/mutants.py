"""Changes random places of the core, one at a time, and asks the tests to notice.

    python scripts/mutants.py --number 300 --seed 1 --out mutants.md

It needs cosmic-ray (``pip install cosmic-ray``), which knows how to change an operator, a
comparison, a number or a branch, and takes hours. Every mutant is made in a copy of the
checkout. The tests that mention the changed function and its module run first. A mutant
that makes tests run for too long counts as found, as one that raises an error does.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from icl_theory.results.numbers import markdown

ROOT = Path(__file__).resolve().parents[1]
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
# Others change type hints, or are seldom made by mistake.
OPERATORS = re.compile(
    r"core/(ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Div|Div_Mul|Pow_Mul)"
    r"|ReplaceComparisonOperator_(Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Eq_NotEq|NotEq_Eq|Lt_Gt|Gt_Lt)"
    r"|ReplaceUnaryOperator_Delete_Not|ReplaceUnaryOperator_USub_UAdd|AddNot"
    r"|ReplaceAndWithOr|ReplaceOrWithAnd|ReplaceTrueWithFalse|ReplaceFalseWithTrue"
    r"|ReplaceBreakWithContinue|NumberReplacer)"
)
COPIED = ("icl_theory", "tests", "scripts", "docs", "README.md", "pyproject.toml")
FIRST = 10  # test files that run before all others


class Mutant(NamedTuple):
    """A place and what is done to it: the occurrence of an operator in a file."""

    path: str
    operator: str
    occurrence: int
    line: int
    function: str


def places() -> list[Mutant]:
    """Return every place that an operator can change."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.plugins import get_operator, operator_names

    operators = [name for name in operator_names() if OPERATORS.fullmatch(name)]
    found = []
    for room in CORE:
        for path in sorted((ROOT / "icl_theory" / room).rglob("*.py")):
            functions = _functions(path)
            nodes = list(ast_nodes(get_ast_from_path(path)))
            for name in operators:
                positions: Iterator[Any] = (
                    position
                    for node in nodes
                    for position in get_operator(name)().mutation_positions(node)
                )
                for occurrence, (start, _) in enumerate(positions):
                    function = functions.get(start[0], "")
                    relative = path.relative_to(ROOT).as_posix()
                    found.append(Mutant(relative, name, occurrence, start[0], function))
    return [mutant for mutant in found if mutant.function]


def _functions(path: Path) -> dict[int, str]:
    """Return the name of the innermost function of every line that is in one."""
    names: dict[int, str] = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            first = node.body[0].lineno
            names |= dict.fromkeys(
                range(first, (node.end_lineno or first) + 1), node.name
            )
    return names


def nearest(mutant: Mutant) -> list[str]:
    """Return all test files, those first that mention most of the changed place."""
    module = Path(mutant.path).stem
    room = Path(mutant.path).parts[1]

    def mentions(path: Path) -> float:
        text = path.read_text(encoding="utf-8")
        public = mutant.function.strip("_")
        size = len(text) ** 0.5
        return (
            -(20 * text.count(public) + 5 * text.count(module) + text.count(room))
            / size
        )

    files = [
        path
        for path in (ROOT / "tests").rglob("test_*.py")
        if path.name != "test_record.py"
    ]
    return [path.relative_to(ROOT).as_posix() for path in sorted(files, key=mentions)]


def first_failure(folder: Path, tests: list[str], seconds: float) -> str:
    """Run tests until one fails; return its name, or "" if all of them pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    command += ["-m", "not slow", "-p", "no:randomly", *tests]
    environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "the tests do not end"
    if done.returncode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return failed[1] if failed else "the tests cannot be collected"


def noticed_by(mutant: Mutant, seconds: float, whole: bool) -> str:
    """Return the first test that notices a mutant, or "" if none does."""
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
        tests = nearest(mutant)
        test = first_failure(folder, tests[:FIRST], seconds)
        if not test and whole:
            test = first_failure(folder, tests[FIRST:], 10 * seconds)
        return test


def main() -> None:
    """Draw mutants, and write which of them are noticed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--number", type=int, default=300, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=1, help="of the draw")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument(
        "--seconds", type=float, default=240.0, help="limit of a mutant"
    )
    parser.add_argument(
        "--whole", action="store_true", help="run all tests if the nearest ones pass"
    )
    parser.add_argument("--out", type=Path, help="file for the table")
    arguments = parser.parse_args()
    drawn = random.Random(arguments.seed).sample(places(), arguments.number)
    rows: dict[str, list[str]] = {"place": [], "change": [], "noticed by": []}
    for number, mutant in enumerate(drawn[arguments.first :], arguments.first):
        start = time.monotonic()
        test = noticed_by(mutant, arguments.seconds, arguments.whole)
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
