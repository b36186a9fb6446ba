"""Calls of everything public with valid extremes and wrong types, held against the contract of errors.

python scripts/fuzz.py --calls 100000 --seed 1

A call may return, or raise a ValueError (an OSError where it has a path). It may not return NaN where it returns
numbers, warn, or compute for 20 seconds without a word of how far it is; then it is ended either way. Every call
follows from the seed and its number, so that ``--only NUMBER`` makes it again.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import inspect
import io
import pkgutil
import re
import signal
import sys
import tempfile
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from fuzz_values import FEATURES, KINDS, PROBLEMS, RISKS, RUNS, SHOWN, TASKS, Pool, pools, wrong

import icl_theory as icl
from icl_theory import claims, explorer

LIMIT = 20  # seconds of computing, however busy the machine is
WRONG = 0.12  # of the arguments
REFERENCE = Path(__file__).parents[1] / "docs" / "api"
# what only the package makes, and declarations of the author of a family, in the reference for their fields
MADE = {
    "Answer", "Audit", "Axis", "BoundCheck", "BoundChecks", "Check", "Claim", "ClosedForm", "Column",
    "Comparison", "Constants", "Count", "CrossCheck", "Curve", "Descent", "Diversity", "Evaluated", "Family",
    "Fraction", "GaussianPrompts", "Grid", "Heads", "Kind", "Label", "Later", "Map", "Measure", "Model",
    "Number", "Object", "Outcome", "Pair", "Panel", "Parameter", "Phases", "Point", "Probabilities",
    "Probability", "PromptRisk", "Prompts", "Risk", "Rule", "SampledPhases", "Sentences", "Series",
    "ShiftTable", "Stability", "State", "Status", "Stop", "Storage", "Task", "Trajectory", "Verdict", "Weights",
    "Whole", "Wholes", "Word", "assembled", "evaluate", "judged", "parameter", "point_by_point",
}  # fmt: skip
# what only the engine calls, in the innermost loop or with what it has made itself
ENGINE = {
    "back", "bend", "blocks", "check", "closed_form", "closed_mask", "closed_values", "components", "count",
    "cycle", "describe", "described", "drawn", "evaluate", "every_column", "excess", "functions", "gain",
    "gradients", "hessian_product", "index", "inward", "joint_mask", "joint_size", "joint_values", "later",
    "limits", "matrices", "measure", "measured", "modes", "named", "observe", "on", "outward",
    "population_excess", "predict", "push", "refuse_unknown", "sample", "sampled", "series", "stretch", "to_dict",
    "unpack", "validate",
}  # fmt: skip
MODULES: Mapping[str, Any] = {
    "icl": icl, "icl.regression": icl.regression, "icl.recall": icl.recall, "icl.tasks": icl.tasks,
    "icl.engine": icl.engine, "icl.linear_attention": icl.linear_attention, "icl.claims": claims,
}  # fmt: skip


class Breach(NamedTuple):
    """A call that broke the contract: its number, what was called and how it ended."""

    number: int
    call: str
    end: str


class _Silent(BaseException):
    """A call that takes long."""


class Target(NamedTuple):
    """Something public: what it is called, how it is got hold of, and its parameters."""

    name: str
    get: Callable[[], Callable[..., Any]]
    parameters: Mapping[str, inspect.Parameter]


def _itself(thing: Any) -> Any:
    return thing


def named() -> Iterator[tuple[str, Any]]:
    """Yield everything that a module exports or the reference names, with the name by which it is called."""
    for prefix, module in MODULES.items():
        yield from ((f"{prefix}.{name}", getattr(module, name)) for name in module.__all__)
    for page in sorted({*REFERENCE.glob("*.rst")} - {REFERENCE / "index.rst"}):
        for name in re.findall(r"^   ([a-zA-Z_][\w.]*)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            yield name, pkgutil.resolve_name(f"icl_theory.{name}")
    yield "explorer.page", explorer.page


@functools.cache
def targets() -> tuple[Target, ...]:
    """Every public function, class and method, each under one name."""
    found: dict[str, Target] = {}
    known: list[Any] = []
    for title, thing in named():
        plain = callable(thing) and not isinstance(thing, types.ModuleType)
        if plain and title.rpartition(".")[2] not in MADE and not any(thing is each for each in known):
            known.append(thing)
            found[title] = Target(title, functools.partial(_itself, thing), inspect.signature(thing).parameters)
    for number, make in enumerate((*FEATURES[:1], *TASKS, *RISKS, *RUNS, *PROBLEMS, *KINDS, *SHOWN)):
        made = functools.cache(make)
        for name in dir(type(made())):
            hidden = name.startswith("_") or name in ENGINE or hasattr(list, name)
            method = None if hidden else getattr(type(made()), name)
            if callable(method) and not isinstance(method, type):
                title = f"{type(made()).__name__}[{number}].{name}"
                signature = inspect.signature(getattr(made(), name))
                get = functools.partial(getattr, made(), name)
                found[title] = Target(title, get, signature.parameters)
    return tuple(found.values())


# names of parameters that mean another thing in some functions, and what they are then
OTHERWISE = (
    ("Sampled", "dataset", "dataset"), ("", "dataset", "dataset_of_sweep"), ("figures.", "name", "figure"),
    ("write", "name", "width"), ("linear_attention", "law", "prompts_law"), ("balanced_flow", "start", "ratio"),
    ("linear_attention", "start", "array"), ("LinearAttention", "start", "array"), ("linear_attention", "gamma",
    "array"),
    ("PromptLaw", "gamma", "array"), ("LinearAttention", "tasks", "count_of_tasks"),
    ("linear_attention", "tasks", "list_of_tasks"), ("shift_table", "trained", "trained_by"),
    ("crosscheck", "points", "few"), ("compare", "points", "few"), ("figures.write", "figure", "drawn_figure"),
    ("plots.", "ax", "axes"), ("write_table", "path", "table_path"),
    ("plots.save", "path", "picture_path"), ("compare_runs", "runs", "several"), ("ecall", "law", "recall_law"),
    ("Training", "law", "recall_law"), ("Layer", "law", "prompts_law"),
)  # fmt: skip


def pool_of(target: Target, name: str) -> Pool:
    """Values to give to a parameter."""
    name = next((other for part, each, other in OTHERWISE if each == name and part in target.name), name)
    numbers = (0, 1, 2, 0.5, 3.0, 1e-3, 1e12, 1e40, None)
    return pools().get(name, numbers)


def arguments(target: Target, rng: np.random.Generator) -> tuple[list[Any], dict[str, Any]]:
    """Draw arguments: in order where they are required, by name where they are not."""
    placed: list[Any] = []
    named: dict[str, Any] = {}
    parameters: dict[str, Any] = dict(target.parameters)
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        parameters |= icl.Regression.parameters() if re.search("sweep|compare_", target.name) else {}
    # one argument in most calls that are wrong, so that what is behind the first check is reached
    for name, each in parameters.items():
        kind = getattr(each, "kind", None)
        if kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            continue
        required = each.default is inspect.Parameter.empty or getattr(each, "required", False)
        if not required and rng.random() < 0.5 and name not in ("max_steps", "progress", "quick", "steps"):
            continue
        odd = rng.random() < WRONG
        values = wrong() if odd else pool_of(target, name)
        value = values[rng.integers(len(values))]
        if name in ("callback", "condition") and odd and callable(value):
            value = None  # what a function of the caller raises is the caller's
        if kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY) and required:
            placed.append(value)
        else:
            named[name] = value
    if "progress" in named and named.get("steps", 0) is None:
        named["progress"] = None  # a run without an end must say how far it is
    if target.name == "icl.audit":  # takes minutes
        return [], {"quick": 3}
    return placed, named | ({"max_steps": 7} if "compare_coordinates" in target.name else {})


def has_nan(found: Any, depth: int = 0) -> bool:
    """Whether some number in a result is NaN; datasets and tables say where they have no value."""
    if isinstance(found, float | np.floating | complex):
        return bool(np.isnan(found))
    if isinstance(found, np.ndarray):
        return found.dtype.kind in "fc" and bool(np.isnan(found).any())
    if depth > 4:
        return False
    if isinstance(found, Mapping):
        return any(has_nan(value, depth + 1) for value in found.values())
    if isinstance(found, tuple | list):
        return any(has_nan(value, depth + 1) for value in found)
    if dataclasses.is_dataclass(found) and not isinstance(found, type):
        return any(has_nan(getattr(found, each.name, None), depth + 1) for each in dataclasses.fields(found))
    return False


def outcome(target: Target, placed: list[Any], named: dict[str, Any]) -> str | None:
    """Make a call; return what was wrong with how it ended, None if nothing was."""
    paths = {"path", "store", "folder"} & target.parameters.keys()
    said = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(said):
            warnings.simplefilter("error")
            return "returns NaN" if has_nan(target.get()(*placed, **named)) else None
    except ValueError as error:
        text = str(error)
        return None if text and "\n" not in text and type(error) is ValueError else _said(error)
    except OSError as error:
        return None if paths else _said(error)
    except AssertionError as error:
        return None if "testing" in target.name else _said(error)
    except TypeError as error:  # Python's own: an argument too many, too few or unknown
        frames = traceback.extract_tb(error.__traceback__)
        own = len(frames) == 1 or "unexpected keyword" in str(error)
        return None if own else _said(error)
    except _Silent:
        return None if said.getvalue() else f"more than {LIMIT} s"
    except Exception as error:
        return _said(error)


def _said(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "icl_theory" in frame.filename]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "outside"
    return f"{type(error).__name__} at {where}: {str(error)[:120]!r}"


def fuzz(calls: int, seed: int, first: int = 0) -> Iterator[Breach]:
    """Make calls, and yield those that break the contract."""
    every = targets()

    def late(*_: Any) -> None:
        raise _Silent

    before = signal.signal(signal.SIGPROF, late)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # some calls write files
        try:
            for number in range(first, first + calls):
                rng = np.random.default_rng([seed, number])
                target = every[rng.integers(len(every))]
                placed, named = arguments(target, rng)
                signal.setitimer(signal.ITIMER_PROF, LIMIT)
                end = outcome(target, placed, named)
                signal.setitimer(signal.ITIMER_PROF, 0)
                if end is not None:
                    shown = ", ".join(
                        [*map(_short, placed), *(f"{name}={_short(value)}" for name, value in named.items())]
                    )
                    yield Breach(number, f"{target.name}({shown})", end)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def main() -> None:
    """Print the breaches and count them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="make the call of this number")
    options = parser.parse_args()
    first, calls = (0, options.calls) if options.only is None else (options.only, 1)
    count = 0
    for breach in fuzz(calls, options.seed, first):
        count += 1
        sys.stdout.write(f"{breach.number}: {breach.call}\n    {breach.end}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{calls} calls of {len(targets())} targets, {count} outside the contract\n")
    sys.exit(1 if count else 0)


if __name__ == "__main__":
    main()
