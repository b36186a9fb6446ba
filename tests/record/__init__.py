"""A record of answers: public calls, commands and refusals, one a line, and what they give.

The lines are in the text files of this folder. ``name = expression`` names an object for
the lines below it, and ``$ icl-theory ...`` is a command. The answers are kept in
``tests/data/record``: numbers, words, what is printed, the sentence of a refusal. The
record says that an answer is what it was, not that it is right; the other tests ask for
that. ``python -m tests.record`` writes it again and lists what changed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import inspect
import io
import json
import math
import re
import shlex
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import icl_theory as icl
from icl_theory.cli import main

FOLDER = Path(__file__).parent
ANSWERS = FOLDER.parent / "data" / "record"
ASSIGNMENT = re.compile(r"([a-z]\w*) = (.*)")
TOLERANCE = re.compile(r"(.*?)  ~ (\S+)")
NUMBER = re.compile(r"(?<![\w.])[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?", re.IGNORECASE)
PADDING = re.compile(r"([ -])\1+")  # columns are as wide as their numbers
DEPTH = 4  # objects within objects
LONG = 60  # entries of a list that are kept one by one
FEW = 12  # numbers of an array that are kept one by one
ERROR_TOLERANCE = 0.9  # estimates of errors are compared to a factor of ten
ROUNDING = 1e-12  # of a number by cancellation, beside the largest of its array
SMALL_ERROR = 1e-8  # printed numbers below it are errors that rounding makes
NEGLIGIBLE = 1e-13
# Said otherwise on another machine: its memory, and the step at which a run diverges.
VARYING = {
    re.compile(r"and \S+ \w+ are free"): "and ... are free",
    re.compile(r"diverged at step [\d,]+"): "diverged at step ...",
}


@dataclass(frozen=True)
class Tolerance:
    """How far numbers may move: relative to each, and absolutely."""

    relative: float = 1e-8
    absolute: float = 0.0


class Line:
    """A line of a file: what it asks, and how exactly its answer is compared."""

    def __init__(self, text: str, ask: Callable[[], Any], tolerance: Tolerance) -> None:
        self.text = text
        self.ask = ask
        self.tolerance = tolerance


def files() -> list[str]:
    """Return the names of the files with lines."""
    return sorted(path.stem for path in FOLDER.glob("*.txt"))


def lines(name: str) -> Iterator[Line]:
    """Yield the lines of a file that have an answer; names are defined on the way."""
    names: dict[str, Any] = {"icl": icl, "np": np, "math": math}
    for text in (FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if not text or text.startswith("#"):
            continue
        if assignment := ASSIGNMENT.fullmatch(text):
            names[assignment[1]] = eval(assignment[2], names)
            continue
        tolerance = Tolerance()
        expression = text
        if loose := TOLERANCE.fullmatch(text):
            expression = loose[1]
            tolerance = Tolerance(float(loose[2]))
        if text.startswith("$ "):
            words = shlex.split(expression)[2:]
            yield Line(text, lambda words=words: command(words), tolerance)
        else:
            yield Line(text, lambda e=expression: eval(e, names), tolerance)


def command(words: list[str]) -> dict[str, int]:
    """Run a command; what it prints is caught by `answer`."""
    try:
        main(words)
    except SystemExit as end:
        return {"status": int(end.code or 0)}
    return {"status": 0}


def answer(ask: Callable[[], Any]) -> Any:
    """Return all that a call gives, in types of JSON; its files go to an empty folder."""
    out = io.StringIO()
    err = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(record=True) as warned,
    ):
        warnings.simplefilter("always")
        try:
            given = plain(ask())
        except Exception as error:  # a refusal is an answer
            given = {"raises": type(error).__name__, "says": str(error)}
        beside = {
            "out": out.getvalue(),
            "err": err.getvalue(),
            "warns": [str(warning.message) for warning in warned],
        }
        beside = {name: value for name, value in beside.items() if value}
        if beside:
            given = {"gives": given} | beside
        text = json.dumps(given).replace(folder, "FOLDER")
    # A release is no change of an answer.
    text = re.sub(rf"(?<![\d.]){re.escape(icl.__version__)}(?![\d.])", "VERSION", text)
    for pattern, instead in VARYING.items():
        text = pattern.sub(instead, text)
    return json.loads(text)


def plain(value: Any, depth: int = 0) -> Any:
    """Return a value in types of JSON: arrays thinned, objects by all that they show."""
    if isinstance(value, enum.Enum):
        return value.name
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | np.floating):
        number = float(value)
        return float(f"{number:.12g}") if math.isfinite(number) else repr(number)
    if isinstance(value, np.ndarray | np.generic):
        return thinned(np.asarray(value))
    if isinstance(value, type):
        return value.__qualname__
    if inspect.isroutine(value):
        return "a function"
    if depth > DEPTH or isinstance(value, Path):
        return type(value).__name__
    return entries(value, depth)


def entries(value: Any, depth: int) -> Any:
    """Return a value that holds others."""
    library = type(value).__module__.split(".")[0]
    if library == "matplotlib":
        return drawn(value)
    if library in ("pandas", "xarray"):
        value = {str(name): np.asarray(value[name]) for name in value}
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): plain(entry, depth + 1) for key, entry in value.items()}
    if hasattr(value, "__iter__"):
        listed = list(value)
        if len(listed) > LONG:
            return thinned(np.asarray(listed))
        return [plain(entry, depth + 1) for entry in listed]
    shown = {"a": type(value).__name__}
    for name in attributes(value):
        try:
            shown[name] = plain(getattr(value, name), depth + 1)
        except Exception as error:  # a property may refuse as well
            shown[name] = str(error)
    return shown


def attributes(value: Any) -> list[str]:
    """Return the names of what an object shows: fields and properties."""
    names = set(getattr(value, "__dict__", {}))
    if dataclasses.is_dataclass(value):
        names |= {field.name for field in dataclasses.fields(value)}
    for base in type(value).__mro__:
        for name, member in vars(base).items():
            if type(member).__name__ in ("cached_property", "property"):
                names.add(name)
    if isinstance(value, icl.Trajectory):
        # How a run was computed, and what rounding has left out, are no answers.
        names -= {"risk", "solution", "carry"}
    return sorted(name for name in names if not name.startswith("_"))


def thinned(values: np.ndarray) -> Any:
    """Return an array of few numbers whole; of more, some and two sums of all of them."""
    if values.dtype.kind not in "fiub":
        return [plain(entry, DEPTH) for entry in values.ravel()[:LONG].tolist()]
    flat = values.ravel()
    if flat.size <= FEW:
        numbers = [plain(number) for number in flat.tolist()]
        return {"shape": list(values.shape), "values": numbers}
    places = np.linspace(0, flat.size - 1, FEW // 2).round().astype(int)
    sizes = np.abs(np.where(np.isfinite(flat), flat, 0.0).astype(float))
    weights = 1.0 + np.cos(np.arange(flat.size))
    return {
        "shape": list(values.shape),
        "some": [plain(number) for number in flat[places].tolist()],
        "sums": [plain(float(sizes.sum())), plain(float(sizes @ weights))],
    }


def drawn(figure: Any) -> Any:
    """Return what a figure shows: its words, and the data of its lines."""
    from matplotlib.text import Text

    figure = getattr(figure, "figure", figure)
    panels = []
    for axes in figure.axes:
        words = [text.get_text() for text in axes.findobj(Text) if text.get_text()]
        data = [np.asarray(line.get_ydata(), dtype=float) for line in axes.lines]
        panels.append({"words": words, "lines": [thinned(values) for values in data]})
    return panels


def differences(
    new: Any, kept: Any, tolerance: Tolerance, where: str = ""
) -> Iterator[str]:
    """Yield the places in which two answers differ by more than rounding."""
    if isinstance(kept, dict) and isinstance(new, dict) and new.keys() == kept.keys():
        beside = tolerance
        if "shape" in kept:
            beside = beside_largest(tolerance, kept.get("values", kept.get("some")))
        for key in kept:
            # ``error`` beside ``steps`` is the estimated error of a run or sweep
            if key in ("states_error", "error") and "steps" in kept:
                estimate = Tolerance(ERROR_TOLERANCE, NEGLIGIBLE)
                yield from differences(new[key], kept[key], estimate, f"{where}.{key}")
            else:
                yield from differences(new[key], kept[key], beside, f"{where}.{key}")
    elif isinstance(kept, list) and isinstance(new, list) and len(new) == len(kept):
        beside = beside_largest(tolerance, kept)
        for index, (one, other) in enumerate(zip(new, kept, strict=True)):
            yield from differences(one, other, beside, f"{where}[{index}]")
    elif isinstance(kept, float) and type(new) in (int, float):
        close = math.isclose(
            new, kept, rel_tol=tolerance.relative, abs_tol=tolerance.absolute
        )
        if not close:
            yield f"{where}: {new!r} for {kept!r}"
    elif isinstance(kept, str) and isinstance(new, str):
        if not same_words(new, kept, tolerance.relative):
            yield f"{where}: {new!r} for {kept!r}"
    elif type(new) is not type(kept) or new != kept:
        yield f"{where}: {new!r} for {kept!r}"


def beside_largest(tolerance: Tolerance, values: Any) -> Tolerance:
    """Allow for rounding beside the largest number of an array."""
    numbers = [abs(number) for number in values or () if isinstance(number, float)]
    rounding = ROUNDING * max(numbers, default=0.0)
    return replace(tolerance, absolute=max(tolerance.absolute, rounding))


def same_words(new: str, kept: str, relative: float) -> bool:
    """Whether two texts are equal but for the rounding of numbers and their padding."""
    if new == kept:
        return True
    numbers = NUMBER.findall(new)
    kept_numbers = NUMBER.findall(kept)
    words = PADDING.sub(r"\1", NUMBER.sub("0", new))
    kept_words = PADDING.sub(r"\1", NUMBER.sub("0", kept))
    if words != kept_words or len(numbers) != len(kept_numbers):
        return False
    pairs = zip(numbers, kept_numbers, strict=True)
    return all(same_number(one, other, relative) for one, other in pairs)


def same_number(new: str, kept: str, relative: float) -> bool:
    """Whether two printed numbers differ by rounding alone; integers do not.

    Rounding moves a number by a relative amount, or by one in the last of at least two
    printed digits. A tiny number is an error: it is compared to a factor of a hundred.
    """
    if new == kept:
        return True
    if new.lstrip("+-").isdigit() and kept.lstrip("+-").isdigit():
        return False
    x = float(new)
    y = float(kept)
    largest = max(abs(x), abs(y))
    if math.isclose(x, y, rel_tol=relative) or largest < NEGLIGIBLE:
        return True
    if largest < SMALL_ERROR:
        return x * y > 0.0 and 0.01 < x / y < 100.0
    digits = max(printed_digits(new), printed_digits(kept))
    last = min(last_digit(new), last_digit(kept))
    return digits >= 2 and abs(x - y) <= 1.01 * last


def printed_digits(number: str) -> int:
    """Return how many digits a printed number has."""
    return len(number.lower().partition("e")[0].replace(".", "").lstrip("+-0"))


def last_digit(number: str) -> float:
    """Return the size of one in the last digit of a printed number."""
    mantissa, _, exponent = number.lower().partition("e")
    places = len(mantissa.partition(".")[2])
    return 10.0 ** (int(exponent or 0) - places)


def kept_answers(name: str) -> dict[str, Any]:
    """Return the answers on record for a file."""
    path = ANSWERS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def changes(name: str) -> tuple[dict[str, Any], list[str]]:
    """Return the answers of a file now, kept ones where only rounding differs, and what changed."""
    kept = kept_answers(name)
    answers: dict[str, Any] = {}
    changed = []
    for line in lines(name):
        new = answer(line.ask)
        answers[line.text] = kept.get(line.text, new)
        if line.text not in kept:
            changed.append(f"{line.text}: new")
            continue
        different = list(differences(new, kept[line.text], line.tolerance))
        if different:
            answers[line.text] = new
            changed += [f"{line.text}{text}" for text in different]
    changed += [f"{text}: gone" for text in kept if text not in answers]
    return answers, changed
