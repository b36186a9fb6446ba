"""Calls of everything public with valid extremes and wrong types, held against the contract of errors.

python scripts/fuzz.py --calls 100000 --commands 1000 --seed 1

A call may return, or raise a ValueError (an OSError where it has a path). It may not
return NaN where it returns numbers, take numbers from below a mask, or warn. A long
call must say how far it is: once it has, it is ended to save time, and one that never
says a word is ended later as a breach. `UNCHECKED` lists the methods that are left out,
and why. What a class makes is used: a method of it is called. A command may print, with
``--json`` one document without NaN, or end with status 2 and one line. Every call
follows from the seed and its number, so that ``--only NUMBER`` makes it again.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import inspect
import io
import itertools
import json
import math
import pkgutil
import re
import shutil
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
import typer
from fuzz_values import (
    FEATURES,
    KINDS,
    OTHERS,
    PROBLEMS,
    RISKS,
    RUNS,
    SHOWN,
    TASKS,
    Pool,
    pools,
    wrong,
)

import icl_theory as icl
from icl_theory import cli, explorer, statements, tokens
from icl_theory.tokens.sphere import SphereRisk

# seconds of computing, however busy the machine is, after which a call that speaks is
# ended
ENOUGH = 5
ENDLESS = 20  # the same where nothing was said
SILENT = f"{ENDLESS} s without a word"
WRONG = 0.12  # of the arguments
REFERENCE = Path(__file__).parents[1] / "docs" / "api"
# classes to inherit from, words, and what takes only what the package or the author of
# a family makes
MADE = {
    "UpdateMap",
    "Family",
    "Grid",
    "Map",
    "Model",
    "Object",
    "Outcome",
    "Phases",
    "Point",
    "Rule",
    "Samplable",
    "Schedule",
    "Solution",
    "HasColumnGradients",
    "HasGain",
    "HasGradients",
    "HasSeries",
    "Status",
    "Stop",
    "Storage",
    "Task",
    "Trainer",
    "assembled",
    "evaluate",
    "parameter",
}
# Methods that the documentation calls unchecked, by the class that says so, and why
# they are.
UNCHECKED: tuple[tuple[type, set[str]], ...] = (
    # the engine calls them in its innermost loop, with states of its own
    (
        icl.Risk,
        {
            "blocks",
            "closed_form",
            "evaluate",
            "gain",
            "gradients",
            "hessian_product",
            "observe",
            "series",
        },
    ),
    (icl.engine.Trainer, {"draw_runs", "evaluate_on", "evaluate_runs", "losses_on"}),
    # it asks a question of any value
    (icl.families.ParameterKind, {"is_array"}),
    (icl.engine.Map, {"bend", "blocks", "inward", "outward", "push", "stretch"}),
    (
        icl.engine.Rule,
        {
            "clipped",
            "init",
            "jacobian",
            "memory_scale",
            "scaled_step",
            "step",
            "uphill",
        },
    ),
    (icl.TokenRisk, {"moments"}),
    # trainers call them, with prompts that they have drawn
    (icl.TokenRisk, {"draw_lengths", "draw_queries", "losses_of_scores"}),
    # `check` calls the first, and the second gets what `check` has returned
    (icl.families.ParameterKind, {"value", "plain"}),
    # the family makes them of parameters that it has checked
    (SphereRisk, {"of_kernel"}),
    # hooks for the author of a family: the package calls them with runs of this family
    (icl.Family, {"describe", "measure", "population_excess", "validate"}),
    # the engine makes runs by it
    (icl.Trajectory, {"later"}),
)
# methods whose NaN stands for something: a point to be simulated, an error that nobody
# knows
MAY_BE_NAN = (".batched", ".measured")
MODULES: Mapping[str, Any] = {
    "icl": icl,
    "icl.regression": icl.regression,
    "icl.recall": icl.recall,
    "icl.tasks": icl.tasks,
    "icl.engine": icl.engine,
    "icl.linear_attention": icl.linear_attention,
    "icl.papers.regression": icl.papers.regression,
    "icl.statements": statements,
    "icl.tokens": tokens,
}


class Terminal(io.StringIO):
    """A stream on which calls say how far they are, as they do for users."""

    isatty = io.StringIO.readable  # yes


class Breach(NamedTuple):
    """A call that broke the contract: its number, what was called and how it ended."""

    number: int
    call: str
    end: str


class _Late(BaseException):
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
        yield from (
            (f"{prefix}.{name}", getattr(module, name)) for name in module.__all__
        )
    for page in sorted({*REFERENCE.glob("*.rst")} - {REFERENCE / "index.rst"}):
        for name in re.findall(
            r"^   ([a-zA-Z_][\w.]*)$", page.read_text(encoding="utf-8"), re.MULTILINE
        ):
            yield name, pkgutil.resolve_name(f"icl_theory.{name}")
    yield "explorer.page", explorer.page


@functools.cache
def targets() -> tuple[Target, ...]:
    """Every public function, class and method, each under one name."""
    found: dict[str, Target] = {}
    known: list[Any] = []
    for title, thing in named():
        plain = callable(thing) and not isinstance(thing, types.ModuleType)
        if (
            plain
            and title.rpartition(".")[2] not in MADE
            and not any(thing is each for each in known)
        ):
            known.append(thing)
            found[title] = Target(
                title,
                functools.partial(_itself, thing),
                inspect.signature(thing).parameters,
            )
    for number, make in enumerate(
        (*FEATURES[:1], *TASKS, *RISKS, *RUNS, *PROBLEMS, *KINDS, *SHOWN, *OTHERS)
    ):
        made = make()
        found |= {
            each.name: each
            for each in methods(made, f"{type(made).__name__}[{number}]")
        }
    return tuple(found.values())


def methods(made: Any, title: str) -> Iterator[Target]:
    """Yield the methods of an object that users call, and a reading of each of its properties."""
    for name in dir(type(made)):
        owner = next((kind for kind in type(made).__mro__ if name in vars(kind)), type)
        if name.startswith("_") or not owner.__module__.startswith("icl_theory"):
            continue
        if any(isinstance(made, kind) and name in names for kind, names in UNCHECKED):
            continue
        member = inspect.getattr_static(type(made), name)
        if isinstance(member, property | functools.cached_property):
            yield Target(f"{title}.{name}", functools.partial(_reading, made, name), {})
        elif callable(getattr(made, name)) and not isinstance(
            getattr(made, name), type
        ):
            bound = getattr(made, name)
            get = functools.partial(_itself, bound)
            yield Target(f"{title}.{name}", get, inspect.signature(bound).parameters)


def _reading(made: Any, name: str) -> Callable[[], Any]:
    """Return a function that reads a property."""
    return lambda: getattr(made, name)


# names of parameters that mean another thing in some functions, and what they are then
OTHERWISE = (
    ("Sampled", "dataset", "dataset"),
    ("", "dataset", "dataset_of_sweep"),
    ("figures.", "name", "figure"),
    ("write", "name", "width"),
    ("linear_attention", "law", "prompts_law"),
    ("balanced_flow", "start", "ratio"),
    ("linear_attention", "start", "array"),
    ("LinearAttention", "start", "array"),
    ("linear_attention", "gamma", "array"),
    ("PromptLaw", "gamma", "array"),
    ("LinearAttention", "tasks", "count_of_tasks"),
    ("linear_attention", "tasks", "list_of_tasks"),
    ("shift_table", "trained", "trained_by"),
    ("crosscheck", "points", "few"),
    ("compare", "points", "few"),
    ("figures.write", "figure", "drawn_figure"),
    ("plots.", "ax", "axes"),
    ("write_table", "path", "table_path"),
    ("plots.save", "path", "picture_path"),
    ("compare_runs", "runs", "several"),
    ("ecall", "law", "recall_law"),
    ("Training", "law", "recall_law"),
    ("Trajectory", "steps", "curve_steps"),
    ("Layer", "law", "prompts_law"),
)


def pool_of(target: Target, name: str) -> Pool:
    """Values to give to a parameter."""
    name = next(
        (
            other
            for part, each, other in OTHERWISE
            if each == name and part in target.name
        ),
        name,
    )
    numbers = (0, 1, 2, 0.5, 3.0, 1e-3, 1e12, 1e40, None)
    return pools().get(name, numbers)


def arguments(
    target: Target, rng: np.random.Generator
) -> tuple[list[Any], dict[str, Any]]:
    """Draw arguments: in order where they are required, by name where they are not."""
    placed: list[Any] = []
    named: dict[str, Any] = {}
    parameters: dict[str, Any] = dict(target.parameters)
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        parameters |= (
            icl.Regression.parameters()
            if re.search("sweep|compare_", target.name)
            else {}
        )
    # one argument in most calls that are wrong, so that what is behind the first check
    # is reached
    for name, each in parameters.items():
        kind = getattr(each, "kind", None)
        if kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            continue
        required = each.default is inspect.Parameter.empty or getattr(
            each, "required", False
        )
        if (
            not required
            and rng.random() < 0.5
            and name not in ("max_steps", "progress", "quick", "steps")
        ):
            continue
        odd = rng.random() < WRONG
        values = wrong() if odd else pool_of(target, name)
        value = values[rng.integers(len(values))]
        if name in ("callback", "condition") and odd and callable(value):
            value = None  # what a function of the caller raises is the caller's
        if (
            kind
            in (
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                inspect.Parameter.POSITIONAL_ONLY,
            )
            and required
        ):
            placed.append(value)
        else:
            named[name] = value
    if "progress" in named and named.get("steps", 0) is None:
        named["progress"] = None  # a run without an end must say how far it is
    if target.name == "icl.audit":  # takes minutes
        return [], {"quick": 3}
    return placed, named | (
        {"max_steps": 7} if "compare_coordinates" in target.name else {}
    )


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
        return any(
            has_nan(getattr(found, each.name, None), depth + 1)
            for each in dataclasses.fields(found)
        )
    return False


def alike(initial: Any) -> Pool:
    """Return states of the shape of a risk's parameters, sound, extreme and wrong ones."""
    start = np.array(initial, dtype=float)
    first = (0,) * start.ndim
    masked = np.ma.array(start, mask=False)
    lost = start.copy()
    masked[first] = np.ma.masked
    lost[first] = math.nan
    sound = (
        start,
        start + 0.3,
        start - 700.0,
        start + 1e40,
        start - 1e-300,
        start.tolist(),
    )
    return (
        *sound,
        masked,
        lost,
        start.astype(str),
        start.astype(complex),
        start + math.inf,
        start[None],
    )


def of_points(target: Target) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a sweep over two points gives the method ``batched`` of a family."""
    family = getattr(target.get(), "__self__", None)
    declared = family.parameters() if family is not None else {}
    common = {
        name: 1.0 if each.required else each.default for name, each in declared.items()
    }
    points = {
        name: np.array([1.0, 2.0])
        for name in ("L", "d", "eta", "above")
        if name in common
    }
    return points, {name: value for name, value in common.items() if name not in points}


def call(
    target: Target, rng: np.random.Generator, made: list[Any]
) -> tuple[str, str | None]:
    """Make a call; return how it is written and what was wrong with its end. ``made`` is what is used, or to be."""
    placed, named = arguments(target, rng)
    owner = made[0] if made else getattr(target.get(), "__self__", None)
    if (
        isinstance(owner, icl.Risk)
        and "params" in target.parameters
        and rng.random() < 0.7
    ):
        states = alike(owner.initial)
        placed[:1] = [states[rng.integers(len(states))]]
    if target.name.endswith(".batched") and rng.random() < 0.7:
        points, common = of_points(target)
        odd = wrong()[rng.integers(len(wrong()))]
        changed = points if rng.random() < 0.5 else common
        if rng.random() < 0.8:
            changed[rng.choice([*changed, "K", "no_such"])] = odd
        placed = [points, common]
        named = {}
    with limited():
        end = outcome(target, placed, named, made)
    words = [
        *map(_short, placed),
        *(f"{name}={_short(value)}" for name, value in named.items()),
    ]
    return f"{target.name}({', '.join(words)})", end


def outcome(
    target: Target, placed: list[Any], named: dict[str, Any], made: list[Any]
) -> str | None:
    """Make a call; return what was wrong with how it ended, None if nothing was. What a class made is added."""
    paths = {"path", "store", "folder"} & target.parameters.keys()
    said = Terminal()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(said):
            warnings.simplefilter("error")
            found = target.get()(*placed, **named)
        # a record, which checks nothing
        plain = isinstance(found, tuple) or (
            dataclasses.is_dataclass(found) and not hasattr(found, "__post_init__")
        )
        plain = (
            plain
            and isinstance(target.get(), type)
            and type(found).__module__.startswith("icl_theory")
        )
        if (
            isinstance(target.get(), type)
            and type(found).__module__.startswith("icl_theory")
            and not plain
        ):
            made.append(found)
        if not plain and any(map(np.ma.is_masked, (*placed, *named.values()))):
            return "takes a masked array"
        if isinstance(found, Iterator):
            found = [*itertools.islice(found, 20)]
        lacks = (
            has_nan(found)
            and not has_nan([placed, named])
            and not target.name.endswith(MAY_BE_NAN)
        )
        return "returns NaN" if lacks else None
    except ValueError as error:
        text = str(error)
        return (
            None
            if text and "\n" not in text and type(error) is ValueError
            else _said(error)
        )
    except OSError as error:
        return None if paths else _said(error)
    except AssertionError as error:
        return None if "testing" in target.name else _said(error)
    except TypeError as error:  # Python's own: an argument too many, too few or unknown
        frames = traceback.extract_tb(error.__traceback__)
        own = len(frames) == 1 or "unexpected keyword" in str(error)
        return None if own else _said(error)
    except _Late:
        return None if said.getvalue() else SILENT
    except Exception as error:
        return _said(error)


def _said(error: BaseException) -> str:
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "icl_theory" in frame.filename
    ]
    where = (
        f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "outside"
    )
    return f"{type(error).__name__} at {where}: {str(error)[:120]!r}"


def fuzz(calls: int, seed: int, first: int = 0) -> Iterator[Breach]:
    """Make calls, and yield those that break the contract."""
    every = targets()
    with _folder():
        for number in range(first, first + calls):
            rng = np.random.default_rng([seed, number])
            made: list[Any] = []
            shown, end = call(every[rng.integers(len(every))], rng, made)
            uses = (
                [*methods(made[0], type(made[0]).__name__)]
                if made and end is None
                else []
            )
            if uses:
                more, end = call(uses[rng.integers(len(uses))], rng, made)
                shown += f": {more}"
            if end is not None:
                yield Breach(number, shown, end)


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


# options that name files, and commands that take minutes unless they are wrong
FILES = {
    "csv": ("a.csv",),
    "curve": ("a.csv", "run.npz"),
    "run": ("run.npz", "a.npz"),
    "found": ("run.npz", "grid", "a.npz"),
    "latex": ("a.tex",),
    "out": ("a.html",),
    "parquet": ("a.parquet",),
    "plot": ("a.png",),
    "save": ("a.npz",),
    "store": ("grid", "a"),
    "table": ("a.md",),
    "over": ("L", "eta", "V", "d", "none"),
}
LONG = ("audit", "explore", "figures", "reproduce")


def commands(command: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command with the words that name it."""
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, *words, name)
    if not hasattr(command, "commands"):
        yield words, command


def words_named(option: Any) -> list[str]:
    """Return the words that the help of an option names, each as often as to be drawn beside numbers."""
    found = re.search(r"\(([\w-]+(?:, [\w-]+)*)\)", option.help or "")
    return found[1].split(", ") * 4 if found else []


def words_of(value: Any, odd: bool) -> str | None:
    """Write a value as on a command line; None where it cannot be written."""
    each = value.tolist() if isinstance(value, np.ndarray) else value
    if (
        isinstance(each, list)
        and each
        and all(isinstance(one, int | float) for one in each)
    ):
        return ",".join(map(str, each))
    return str(each) if odd or isinstance(each, int | float | str) else None


def command_line(
    words: tuple[str, ...], command: Any, rng: np.random.Generator
) -> list[str]:
    """Draw options of a command, few or many, wrong ones in a third of the lines; some are in a file."""
    line = [*words]
    lines = []
    inside = rng.random() < 0.2 and any(
        option.name == "config" for option in command.params
    )
    share = rng.choice([0.0, 0.05, 0.3])
    wrongs = rng.choice([0.0, 0.0, WRONG])
    for option in command.params:
        name = option.name.removeprefix("as_")
        odd = bool(rng.random() < wrongs)
        needed = option.required or name in ("L", "delta", "eta", "max_steps")
        if (
            name == "config"
            or (name in ("dask", "workers") and not odd)
            or not (needed or rng.random() < share)
        ):
            continue
        valid = FILES.get(name) or (*words_named(option), *pools().get(name, (1,)))
        values = wrong() if odd else valid
        swept = words[-1] == "sweep" and name not in FILES and rng.random() < 0.3
        drawn = [
            words_of(values[i], odd) for i in rng.integers(len(values), size=1 + swept)
        ]
        text = ",".join(each for each in drawn if each is not None)
        if not text and not odd:
            continue
        if getattr(option, "is_flag", False):
            line += [option.opts[0]]
        elif option.param_type_name == "argument":
            line += [text]
        elif inside and rng.random() < 0.5:
            lines += [
                f"{name} = {text if re.fullmatch('[0-9][0-9.e+-]*', text) or odd else json.dumps(text)}"
            ]
        else:
            line += [f"{option.opts[0]}={text}"]
    if inside:
        Path("a.toml").write_text("\n".join(lines), encoding="utf-8", errors="replace")
        line += ["--config=a.toml"]
    return [*line, "--no-such=1"] if words[0] in LONG else line


def ended(line: list[str]) -> str | None:
    """Run a command; return what was wrong with how it ended, None if nothing was."""
    out = io.StringIO()
    err = Terminal()
    status = 0
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            warnings.simplefilter("error")
            cli.main(line)
    except SystemExit as error:
        status = int(error.code or 0)
    except _Late:
        return None if err.getvalue() else SILENT
    except Exception as error:
        return _said(error)
    if status == 2:
        refused = err.getvalue().splitlines()
        return (
            None
            if refused and "icl-theory: " in refused[-1]
            else f"status 2: {refused!r}"
        )
    try:
        if "--json" in line and "--help" not in line:
            json.loads(out.getvalue(), parse_constant=lambda word: 1 / 0)
    except (ValueError, ZeroDivisionError):
        return f"status {status}, and no document of JSON: {out.getvalue()[:60]!r}"
    return None if status in (0, 1, 3) else f"status {status}"


def fuzz_commands(count: int, seed: int, first: int = 0) -> Iterator[Breach]:
    """Run commands, and yield those that break the contract."""
    every = [*commands(typer.main.get_command(cli.app))]
    with _folder():
        icl.simulate(2.0, 1.0, 4.0).save("run.npz")
        icl.sweep(L=[1.0, 2.0], delta=1.0, eta=[1.0, 4.0], store="grid", progress=False)
        for number in range(first, first + count):
            rng = np.random.default_rng([seed, number, 1])
            line = command_line(*every[rng.integers(len(every))], rng)
            with limited():
                end = ended(line)
            if end is not None:
                yield Breach(number, " ".join(map(repr, line)), end)
            for each in Path().glob("a.*"):  # the next command must not depend on it
                shutil.rmtree(each) if each.is_dir() else each.unlink()


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """End a call that takes long: soon after it has said something, or else when it would be taken for endless."""
    spent = 0

    def look(*_: Any) -> None:
        nonlocal spent
        spent += ENOUGH
        if spent >= ENDLESS or getattr(sys.stderr, "getvalue", str)():
            raise _Late

    before = signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, ENOUGH, ENOUGH)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextlib.contextmanager
def _folder() -> Iterator[None]:
    """Work in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        yield


def main() -> None:
    """Print the breaches and count them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--commands", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="make the call of this number")
    options = parser.parse_args()
    first, calls = (0, options.calls) if options.only is None else (options.only, 1)
    count = 0
    for breach in itertools.chain(
        fuzz(calls, options.seed, first), fuzz_commands(options.commands, options.seed)
    ):
        count += 1
        sys.stdout.write(f"{breach.number}: {breach.call}\n    {breach.end}\n")
        sys.stdout.flush()
    made = f"{calls} calls of {len(targets())} targets and {options.commands} commands"
    sys.stdout.write(f"{made}, {count} outside the contract\n")
    sys.exit(1 if count else 0)


if __name__ == "__main__":
    main()
