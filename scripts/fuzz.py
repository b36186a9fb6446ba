"""Call everything public with valid extremes and wrong types, and check how calls end.

python scripts/fuzz.py --calls 100000 --commands 1000 --seed 1

The contract of a call: it may return, or raise a ValueError, or an OSError if it has a
path as an argument. It may not return NaN among numbers, use numbers that a masked
array hides, or warn. A call that takes long must show its progress. Once it has, it is
ended to save time; if it never does, it is ended later, and counts as a breach of the
contract. `UNCHECKED` lists the methods that are left out, and why. If the call of a
class returns an object, one of its methods is called, too.

The contract of a command: it may print, with ``--json`` one document without NaN, or
end with status 2 and one line on standard error.

Every call follows from the seed and its number, so that ``--only NUMBER`` repeats it.
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

# Seconds of processor time after which a call is ended if it has shown its progress.
# Most calls take less, and the rest of a long one shows nothing new.
ENOUGH = 5
# Seconds of processor time after which a call is ended if it has shown no progress,
# which is a breach.
ENDLESS = 20
SILENT = f"{ENDLESS} s without a word"
# The share of wrong arguments. It is so small that most calls with a wrong argument
# have only one: with several of them, the check of the first would hide the checks of
# the others.
WRONG = 0.12
# Shares of the calls for which arguments of their own are drawn: states of the shape of
# a risk's parameters, points of a batch, and a wrong value among these points.
OWN_STATES = 0.7
OWN_POINTS = 0.7
WRONG_POINTS = 0.8
# The depth of containers within containers to which results are searched for NaN.
DEEPEST = 4
# How many values are taken from an iterator.
MOST_VALUES = 20
REFERENCE = Path(__file__).parents[1] / "docs" / "api"
# Names that are not called: classes to inherit from, enumerations of words, and classes
# and functions whose arguments only the package or the author of a family makes.
NOT_CALLED = {
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
# Methods that the documentation calls unchecked, by the class whose documentation says
# so. A comment says why they are unchecked.
UNCHECKED: tuple[tuple[type, set[str]], ...] = (
    # The engine calls them in its innermost loop, with states of its own.
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
    # It takes any value, and says whether it is an array.
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
    # Trainers call them, with prompts that they have drawn.
    (icl.TokenRisk, {"draw_lengths", "draw_queries", "losses_of_scores"}),
    # The method `check` calls the first, and the second gets what `check` has returned.
    (icl.families.ParameterKind, {"value", "plain"}),
    # The family calls it with parameters that it has checked.
    (SphereRisk, {"of_kernel"}),
    # An author of a family overrides them, and the package calls them with its runs.
    (icl.Family, {"describe", "measure", "population_excess", "validate"}),
    # The engine makes runs by it.
    (icl.Trajectory, {"later"}),
)
# Methods whose results may have NaN, with a meaning: a point to be simulated by itself,
# or an error that is unknown.
MAY_BE_NAN = (".batched", ".measured")
# The public modules whose names are called, by the prefix of these names.
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
    """A stream in memory that claims to be a terminal, so that calls show progress."""

    isatty = io.StringIO.readable  # a method that returns True


class Breach(NamedTuple):
    """A call or a command that broke the contract."""

    number: int
    call: str  # as it is written
    end: str  # what was wrong with its end


class _Late(BaseException):
    """Raised in a call that takes too long.

    It is no Exception, so that no handler of the package catches it.
    """


class Target(NamedTuple):
    """Something public that is called: a function, a class or a method."""

    name: str
    get: Callable[[], Callable[..., Any]]  # returns what is called
    parameters: Mapping[str, inspect.Parameter]


def _itself(thing: Any) -> Any:
    """Return the argument; a partial of this is the ``get`` of a `Target`."""
    return thing


def named() -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of everything public.

    These are the names that `MODULES` export, and those in the reference.
    """
    for prefix, module in MODULES.items():
        yield from (
            (f"{prefix}.{name}", getattr(module, name)) for name in module.__all__
        )
    # On a page of the reference, each name stands on an indented line of its own.
    for page in sorted({*REFERENCE.glob("*.rst")} - {REFERENCE / "index.rst"}):
        for name in re.findall(
            r"^   ([a-zA-Z_][\w.]*)$", page.read_text(encoding="utf-8"), re.MULTILINE
        ):
            yield name, pkgutil.resolve_name(f"icl_theory.{name}")
    yield "explorer.page", explorer.page


@functools.cache
def targets() -> tuple[Target, ...]:
    """Return every public function, class and method, each under one name."""
    by_name: dict[str, Target] = {}
    things: list[Any] = []
    for title, thing in named():
        is_called = callable(thing) and not isinstance(thing, types.ModuleType)
        _, _, name = title.rpartition(".")
        # The same thing may be exported under several names.
        is_new = not any(thing is earlier for earlier in things)
        if is_called and name not in NOT_CALLED and is_new:
            things.append(thing)
            get = functools.partial(_itself, thing)
            by_name[title] = Target(title, get, inspect.signature(thing).parameters)
    makers = (*FEATURES[:1], *TASKS, *RISKS, *RUNS, *PROBLEMS, *KINDS, *SHOWN, *OTHERS)
    for number, make in enumerate(makers):
        instance = make()
        # Several objects of a class have different names.
        title = f"{type(instance).__name__}[{number}]"
        for target in methods(instance, title):
            by_name[target.name] = target
    return tuple(by_name.values())


def methods(instance: Any, title: str) -> Iterator[Target]:
    """Yield targets for the public methods of an object, and for its properties.

    The target of a property is a function that reads it. ``title`` is the name of the
    object.
    """
    for name in dir(type(instance)):
        if name.startswith("_") or not _is_checked(instance, name):
            continue
        member = inspect.getattr_static(type(instance), name)
        if isinstance(member, property | functools.cached_property):
            get_reader = functools.partial(_reading, instance, name)
            yield Target(f"{title}.{name}", get_reader, {})
            continue
        bound = getattr(instance, name)
        if callable(bound) and not isinstance(bound, type):
            get = functools.partial(_itself, bound)
            yield Target(f"{title}.{name}", get, inspect.signature(bound).parameters)


def _is_checked(instance: Any, name: str) -> bool:
    """Whether an attribute is defined in the package, and not listed in `UNCHECKED`."""
    owner = next((cls for cls in type(instance).__mro__ if name in vars(cls)), type)
    if not owner.__module__.startswith("icl_theory"):
        return False
    return not any(
        isinstance(instance, cls) and name in names for cls, names in UNCHECKED
    )


def _reading(instance: Any, name: str) -> Callable[[], Any]:
    """Return a function that reads a property."""
    return lambda: getattr(instance, name)


# Parameters that mean different things in different functions. Each entry has a part of
# the name of a function, the parameter, and the name of the pool of its values there.
# In any other function the pool has the name of the parameter. The first entry that
# fits counts.
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


# Parameters that are always given: without them a call may take long.
ALWAYS_GIVEN = ("max_steps", "progress", "quick", "steps")
# The kinds of parameters that may be given by position.
POSITIONAL = (
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.POSITIONAL_ONLY,
)


def pool_of(target: Target, name: str) -> Pool:
    """Return the values among which that of a parameter is drawn."""
    pool_name = name
    for part_of_target, parameter, other_name in OTHERWISE:
        if parameter == name and part_of_target in target.name:
            pool_name = other_name
            break
    # The values of a parameter without a pool.
    numbers = (0, 1, 2, 0.5, 3.0, 1e-3, 1e12, 1e40, None)
    return pools().get(pool_name, numbers)


def arguments(
    target: Target, rng: np.random.Generator
) -> tuple[list[Any], dict[str, Any]]:
    """Draw the arguments of a call, and return those by position and those by name.

    Required arguments are given by position if they may be. Of the others, about half
    are given, by name.
    """
    placed: list[Any] = []
    named: dict[str, Any] = {}
    for name, parameter in _parameters_of(target).items():
        kind = getattr(parameter, "kind", None)
        if kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            continue
        # Parameters of a family are objects of this package, with a field ``required``.
        is_required = parameter.default is inspect.Parameter.empty
        is_required = is_required or getattr(parameter, "required", False)
        if not is_required and rng.random() < 0.5 and name not in ALWAYS_GIVEN:
            continue
        value = _drawn_value(target, name, rng)
        if is_required and kind in POSITIONAL:
            placed.append(value)
        else:
            named[name] = value
    if "progress" in named and named.get("steps", 0) is None:
        # A run without an end must say how far it is.
        named["progress"] = None
    if target.name == "icl.audit":
        # An audit takes minutes, so it is only called with a wrong argument.
        return [], {"quick": 3}
    if "compare_coordinates" in target.name:
        # It makes several runs, which would take long.
        named["max_steps"] = 7
    return placed, named


def _parameters_of(target: Target) -> dict[str, Any]:
    """Return the parameters of a target.

    Sweeps and comparisons pass keywords on to a family, so the parameters of regression
    are among theirs.
    """
    parameters: dict[str, Any] = dict(target.parameters)
    kinds = [parameter.kind for parameter in parameters.values()]
    takes_any = inspect.Parameter.VAR_KEYWORD in kinds
    if takes_any and re.search("sweep|compare_", target.name):
        parameters |= icl.Regression.parameters()
    return parameters


def _drawn_value(target: Target, name: str, rng: np.random.Generator) -> Any:
    """Draw the value of a parameter, a wrong one with the probability `WRONG`."""
    is_wrong = rng.random() < WRONG
    values = wrong() if is_wrong else pool_of(target, name)
    value = values[rng.integers(len(values))]
    if name in ("callback", "condition") and is_wrong and callable(value):
        # A wrong function of the caller may raise any error, which is no breach.
        return None
    return value


def has_nan(result: Any, depth: int = 0) -> bool:
    """Whether some number in a result is NaN.

    Datasets and tables are not searched, because NaN is their missing value.
    """
    if isinstance(result, float | np.floating | complex):
        return bool(np.isnan(result))
    if isinstance(result, np.ndarray):
        return result.dtype.kind in "fc" and bool(np.isnan(result).any())
    if depth > DEEPEST:
        return False
    parts: list[Any] = []
    if isinstance(result, Mapping):
        parts = [*result.values()]
    elif isinstance(result, tuple | list):
        parts = [*result]
    elif dataclasses.is_dataclass(result) and not isinstance(result, type):
        names = [field.name for field in dataclasses.fields(result)]
        parts = [getattr(result, name, None) for name in names]
    return any(has_nan(part, depth + 1) for part in parts)


def alike(initial: Any) -> Pool:
    """Return sound, extreme and wrong states with the shape of a risk's parameters."""
    start = np.array(initial, dtype=float)
    first = (0,) * start.ndim
    masked = np.ma.array(start, mask=False)
    masked[first] = np.ma.masked
    with_nan = start.copy()
    with_nan[first] = math.nan
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
        with_nan,
        start.astype(str),
        start.astype(complex),
        start + math.inf,
        start[None],
    )


def of_points(target: Target) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a sweep over two points gives the method ``batched`` of a family.

    The first result has arrays of the parameters that differ, and the second the values
    of all others, by name.
    """
    family = getattr(target.get(), "__self__", None)
    declared = family.parameters() if family is not None else {}
    points = {}
    common = {}
    for name, parameter in declared.items():
        common[name] = 1.0 if parameter.required else parameter.default
    for name in ("L", "d", "eta", "above"):
        if name in common:
            del common[name]
            points[name] = np.array([1.0, 2.0])
    return points, common


def call(
    target: Target, rng: np.random.Generator, made: list[Any]
) -> tuple[str, str | None]:
    """Draw the arguments of a target and call it.

    Return how the call is written, and what was wrong with its end, or None. ``made``
    is empty, or it has the object whose method is called. An object of the package that
    the call returns is added to it.
    """
    placed, named = arguments(target, rng)
    # The object whose method is called.
    owner = made[0] if made else getattr(target.get(), "__self__", None)
    takes_state = "params" in target.parameters
    if isinstance(owner, icl.Risk) and takes_state and rng.random() < OWN_STATES:
        states = alike(owner.initial)
        # The parameters are the first argument, which is replaced.
        placed[:1] = [states[rng.integers(len(states))]]
    if target.name.endswith(".batched") and rng.random() < OWN_POINTS:
        points, common = of_points(target)
        wrong_value = wrong()[rng.integers(len(wrong()))]
        changed = points if rng.random() < 0.5 else common
        if rng.random() < WRONG_POINTS:
            # "K" may belong to the other mapping, and "no_such" is no parameter.
            changed[rng.choice([*changed, "K", "no_such"])] = wrong_value
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
    """Call a target; return what was wrong with how the call ended, or None.

    ``placed`` are the arguments by position, and ``named`` those by name. If the target
    is a class of the package, its new object is added to ``made``, unless it is a
    record without checks.
    """
    has_path = bool({"path", "store", "folder"} & target.parameters.keys())
    progress = Terminal()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(progress):
            warnings.simplefilter("error")
            result = target.get()(*placed, **named)
        return _wrong_result(target, result, placed, named, made)
    except ValueError as error:
        text = str(error)
        is_one_line = bool(text) and "\n" not in text
        # Python's own subclasses, such as UnicodeDecodeError, are raw exceptions.
        kind = type(error)
        is_plain = kind is ValueError or kind.__module__.startswith("icl_theory")
        return None if is_one_line and is_plain else _described(error)
    except OSError as error:
        return None if has_path else _described(error)
    except AssertionError as error:
        return None if "testing" in target.name else _described(error)
    except TypeError as error:
        # Python itself raises this error if there is an argument too many, too few or
        # unknown, which is allowed. Its traceback then has only the frame of this
        # function, or its message has these words.
        frames = traceback.extract_tb(error.__traceback__)
        is_of_python = len(frames) == 1 or "unexpected keyword" in str(error)
        return None if is_of_python else _described(error)
    except _Late:
        return None if progress.getvalue() else SILENT
    except Exception as error:
        return _described(error)


def _wrong_result(
    target: Target,
    result: Any,
    placed: list[Any],
    named: dict[str, Any],
    made: list[Any],
) -> str | None:
    """Return what is wrong with the result of a call, or None."""
    is_instance_of_ours = isinstance(target.get(), type) and type(
        result
    ).__module__.startswith("icl_theory")
    # A record without checks of its fields takes any value, even a masked array.
    is_record = is_instance_of_ours and _has_no_checks(result)
    if is_instance_of_ours and not is_record:
        made.append(result)
    if not is_record and any(map(np.ma.is_masked, (*placed, *named.values()))):
        return "takes a masked array"
    if isinstance(result, Iterator):
        result = [*itertools.islice(result, MOST_VALUES)]
    # If an argument has NaN, the result may have it.
    if target.name.endswith(MAY_BE_NAN) or has_nan([placed, named]):
        return None
    return "returns NaN" if has_nan(result) else None


def _has_no_checks(result: Any) -> bool:
    """Whether an object is a tuple, or a dataclass that does not check its fields."""
    if isinstance(result, tuple):
        return True
    return dataclasses.is_dataclass(result) and not hasattr(result, "__post_init__")


def _described(error: BaseException) -> str:
    """Return the type of an error, its place, and the beginning of its message.

    The place is the last line of the package in the traceback.
    """
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
    """Make the calls number ``first``, ``first + 1``, ..., and yield the breaches."""
    every_target = targets()
    with _folder():
        for number in range(first, first + calls):
            rng = np.random.default_rng([seed, number])
            made: list[Any] = []
            target = every_target[rng.integers(len(every_target))]
            written_call, end = call(target, rng, made)
            uses: list[Target] = []
            if made and end is None:
                uses = [*methods(made[0], type(made[0]).__name__)]
            if uses:
                # Call a method of the object that the first call has made.
                written_use, end = call(uses[rng.integers(len(uses))], rng, made)
                written_call += f": {written_use}"
            if end is not None:
                yield Breach(number, written_call, end)


def _short(value: Any) -> str:
    """Return a value as text of at most 60 characters, on one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


# The values of options that name files, or a parameter of a stored sweep.
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
# Commands that take minutes, or open a browser, unless their options are wrong.
LONG = ("audit", "explore", "figures", "reproduce")
# How often each word in the help of an option stands among the option's values.
REPEATED = 4


def commands(command: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the words that name a command, and the command.

    If ``command`` is a group, all commands in it are yielded, and otherwise itself.
    ``words`` are the words that name ``command``.
    """
    if not hasattr(command, "commands"):
        yield words, command
        return
    for name, part in command.commands.items():
        yield from commands(part, *words, name)


def words_named(option: Any) -> list[str]:
    """Return the words that the help of an option names in parentheses.

    Each is returned `REPEATED` times, so that words are drawn as often as numbers.
    """
    match = re.search(r"\(([\w-]+(?:, [\w-]+)*)\)", option.help or "")
    return match[1].split(", ") * REPEATED if match else []


def words_of(value: Any, is_wrong: bool) -> str | None:
    """Return a value as it is written on a command line; None if it cannot be written.

    A wrong value is always written, as Python prints it.
    """
    plain = value.tolist() if isinstance(value, np.ndarray) else value
    is_list = isinstance(plain, list) and bool(plain)
    if is_list and all(isinstance(entry, int | float) for entry in plain):
        return ",".join(map(str, plain))
    return str(plain) if is_wrong or isinstance(plain, int | float | str) else None


def command_line(
    words: tuple[str, ...], command: Any, rng: np.random.Generator
) -> list[str]:
    """Return a command line with options that are drawn, few or many.

    ``words`` name the command. A third of the lines may have wrong options. In a fifth
    of the lines, about half of the options are in the file a.toml, which this function
    writes.
    """
    line = [*words]
    lines_of_file = []
    has_config = any(option.name == "config" for option in command.params)
    uses_file = rng.random() < 0.2 and has_config
    share_given = rng.choice([0.0, 0.05, 0.3])
    share_wrong = rng.choice([0.0, 0.0, WRONG])
    for option in command.params:
        # The parameter of --json is as_json.
        name = option.name.removeprefix("as_")
        is_wrong = bool(rng.random() < share_wrong)
        is_needed = option.required or name in ("L", "delta", "eta", "max_steps")
        # A scheduler and workers would start processes, unless the value is wrong.
        starts_processes = name in ("dask", "workers") and not is_wrong
        if name == "config" or starts_processes:
            continue
        if not is_needed and rng.random() >= share_given:
            continue
        text = _drawn_text(words, option, name, is_wrong, rng)
        if not text and not is_wrong:
            continue
        if getattr(option, "is_flag", False):
            line.append(option.opts[0])
        elif option.param_type_name == "argument":
            line.append(text)
        elif uses_file and rng.random() < 0.5:
            is_plain = is_wrong or re.fullmatch("[0-9][0-9.e+-]*", text)
            value = text if is_plain else json.dumps(text)
            lines_of_file.append(f"{name} = {value}")
        else:
            line.append(f"{option.opts[0]}={text}")
    if uses_file:
        content = "\n".join(lines_of_file)
        Path("a.toml").write_text(content, encoding="utf-8", errors="replace")
        line.append("--config=a.toml")
    # Long commands are only run with an option that does not exist.
    return [*line, "--no-such=1"] if words[0] in LONG else line


def _drawn_text(
    words: tuple[str, ...],
    option: Any,
    name: str,
    is_wrong: bool,
    rng: np.random.Generator,
) -> str:
    """Draw the value of an option, or a list of two for a parameter of a sweep.

    ``words`` name the command, and ``name`` is the name of the option's parameter.
    """
    # The words in the help of the option, and the values of a parameter of this name.
    valid = FILES.get(name) or (*words_named(option), *pools().get(name, (1,)))
    values = wrong() if is_wrong else valid
    is_swept = words[-1] == "sweep" and name not in FILES and rng.random() < 0.3
    # One value, or two for a list.
    indices = rng.integers(len(values), size=1 + is_swept)
    texts = [words_of(values[i], is_wrong) for i in indices]
    return ",".join(text for text in texts if text is not None)


def ended(line: list[str]) -> str | None:
    """Run a command; return what was wrong with how it ended, or None."""
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
        return _described(error)
    if status == 2:
        lines = err.getvalue().splitlines()
        is_refused = bool(lines) and "icl-theory: " in lines[-1]
        return None if is_refused else f"status 2: {lines!r}"
    try:
        if "--json" in line and "--help" not in line:
            # Python's reader calls this function for NaN and infinity, which are no
            # JSON. A lambda cannot raise an error otherwise than by dividing by zero.
            json.loads(out.getvalue(), parse_constant=lambda word: 1 / 0)
    except (ValueError, ZeroDivisionError):
        return f"status {status}, and no document of JSON: {out.getvalue()[:60]!r}"
    return None if status in (0, 1, 3) else f"status {status}"


def fuzz_commands(count: int, seed: int, first: int = 0) -> Iterator[Breach]:
    """Run the commands number ``first``, ``first + 1``, ..., and yield the breaches."""
    every_command = [*commands(typer.main.get_command(cli.app))]
    with _folder():
        # The files of `FILES` that commands read.
        icl.simulate(2.0, 1.0, 4.0).save("run.npz")
        icl.sweep(L=[1.0, 2.0], delta=1.0, eta=[1.0, 4.0], store="grid", progress=False)
        for number in range(first, first + count):
            rng = np.random.default_rng([seed, number, 1])
            words, command = every_command[rng.integers(len(every_command))]
            line = command_line(words, command, rng)
            with limited():
                end = ended(line)
            if end is not None:
                yield Breach(number, " ".join(map(repr, line)), end)
            # The next command must not depend on what this one has written.
            for path in Path().glob("a.*"):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """End a call in the block that takes long, by raising `_Late` in it.

    Every `ENOUGH` seconds of processor time, the call ends if it has shown progress by
    then. After `ENDLESS` seconds it ends in any case.
    """
    spent = 0

    def end_if_late(*_: Any) -> None:
        """Handle the signal of the timer, which comes every `ENOUGH` seconds."""
        nonlocal spent
        spent += ENOUGH
        # Standard error is a `Terminal` then, whose text is the progress. A real stream
        # lacks the method; str() is the empty text.
        progress = getattr(sys.stderr, "getvalue", str)()
        if spent >= ENDLESS or progress:
            raise _Late

    handler_before = signal.signal(signal.SIGPROF, end_if_late)
    signal.setitimer(signal.ITIMER_PROF, ENOUGH, ENOUGH)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler_before)


@contextlib.contextmanager
def _folder() -> Iterator[None]:
    """Make a temporary folder the working folder within the block."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        yield


def main() -> None:
    """Print the breaches and their number; exit with 1 if there is any."""
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
    tried = f"{calls} calls of {len(targets())} targets and {options.commands} commands"
    sys.stdout.write(f"{tried}, {count} outside the contract\n")
    sys.exit(1 if count else 0)


if __name__ == "__main__":
    main()
