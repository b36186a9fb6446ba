"""A record of answers: what the package says to many calls, kept whole, so that no answer changes unnoticed.

A module of this folder has sections, functions that yield a name and a call. What comes back is kept in
``tests/data/answers``: numbers, words, warnings, what is printed, and the sentence of a refusal. The record says
that an answer is what it was, not that it is right; the other tests ask for that. ``python -m tests.answers``
writes it again, of the modules that are named or of all, and lists what changed. Whoever changes an answer on
purpose reads that list, and commits the new record with the change.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import importlib
import inspect
import io
import json
import math
import pkgutil
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

RECORDS = Path(__file__).parents[1] / "data" / "answers"
DEEP = 5  # objects within objects
LONG = 400  # entries of a list that are kept one by one
FEW = 24  # numbers of an array that are kept one by one
NUMBER = re.compile(r"(?<![\w.])[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?", re.IGNORECASE)
FILLED = re.compile(r"([ -])\1+")  # columns are as wide as their numbers
MAGNITUDE = 0.9  # rtol of estimates of errors: to a factor of ten
ROUNDING = 1e-12  # of a number by cancellation, beside the largest number of its array
TINY, NOTHING = 1e-8, 1e-13
ELSEWHERE = {  # said otherwise on another machine: its memory, and the step at which a diverging run stops
    re.compile(r"and \S+ \w+ are free"): "and ... are free",
    re.compile(r"diverged at step [\d,]+"): "diverged at step ...",
}


@dataclass(frozen=True)
class Call:
    """A call and how far its numbers may move: relative to each, and absolutely (rounding where the truth is 0)."""

    ask: Callable[[], Any]
    rtol: float = 1e-8
    atol: float = 0.0


Section = Callable[[], Iterator[tuple[str, Call | Callable[[], Any]]]]


def modules() -> list[str]:
    """Return the names of the modules; one whose library is not installed may have no sections."""
    return sorted(
        info.name
        for info in pkgutil.iter_modules(__path__)
        if not info.name.startswith("_")
    )


def sections() -> dict[str, Section]:
    """Return the sections of all modules, by the name of the module and their own."""
    found = {}
    for module in modules():
        loaded = importlib.import_module(f"{__name__}.{module}")
        for name, function in vars(loaded).items():
            if (
                inspect.isgeneratorfunction(function)
                and function.__module__ == loaded.__name__
                and name[0] != "_"
            ):
                found[f"{module}: {name}"] = function
    return found


def answer(ask: Callable[[], Any]) -> Any:
    """Return all that a call gives as JSON takes it; what it writes, it writes in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(record=True) as heard,
        ):
            warnings.simplefilter("always")
            try:
                found = plain(ask())
            except (Exception, SystemExit) as error:  # a refusal is an answer
                found = {"raises": type(error).__name__, "says": str(error)}
        said = {
            "out": out.getvalue(),
            "err": err.getvalue(),
            "warns": [str(one.message) for one in heard],
        }
        if any(said.values()):
            found = {"gives": found} | {
                key: value for key, value in said.items() if value
            }
        text = json.dumps(found).replace(folder, "FOLDER")
        for words, instead in ELSEWHERE.items():
            text = words.sub(instead, text)
        return json.loads(text)


def plain(value: Any, depth: int = 0) -> Any:
    """Return a value in the types of JSON: arrays thinned, objects of the package by all that they show."""
    if isinstance(value, enum.Enum):
        return value.name
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | np.floating):
        return (
            float(f"{float(value):.12g}")
            if math.isfinite(value)
            else repr(float(value))
        )
    if isinstance(value, complex | np.ndarray | np.generic):
        return array(np.asarray(value))
    if isinstance(value, type) or inspect.isroutine(value):
        return f"{value.__module__}.{value.__qualname__}"
    if depth > DEEP or isinstance(value, Path):
        return f"{type(value).__name__} {value if isinstance(value, Path) else ''}"
    return whole(value, depth)


def whole(value: Any, depth: int) -> Any:
    """Return a value that holds others."""
    value = value._asdict() if hasattr(value, "_asdict") else value
    library = type(value).__module__.split(".")[0]
    if library == "matplotlib":
        return drawn(value)
    if library in ("pandas", "xarray"):
        value = {str(name): np.asarray(value[name]) for name in value}
    if isinstance(value, Mapping):
        return {str(key): plain(entry, depth + 1) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset) or inspect.isgenerator(value):
        entries = (
            sorted(value, key=repr)
            if isinstance(value, set | frozenset)
            else list(value)
        )
        return (
            [plain(entry, depth + 1) for entry in entries]
            if len(entries) <= LONG
            else array(np.asarray(entries))
        )
    return {"a": type(value).__name__} | {
        name: shown(value, name, depth) for name in attributes(value)
    }


def attributes(value: Any) -> list[str]:
    """Names of what an object shows: fields and properties."""
    fields = (
        [field.name for field in dataclasses.fields(value)]
        if dataclasses.is_dataclass(value)
        else []
    )
    names = {*fields, *getattr(value, "__dict__", {}), *properties(type(value))}
    return sorted(name for name in names if not name.startswith("_"))


def properties(kind: type) -> list[str]:
    cached = ("cached_property", "property")
    return [
        name
        for base in kind.__mro__
        for name, held in vars(base).items()
        if type(held).__name__ in cached
    ]


def shown(value: Any, name: str, depth: int) -> Any:
    try:
        return plain(getattr(value, name), depth + 1)
    except Exception as error:  # a property may refuse as well
        return {"raises": type(error).__name__, "says": str(error)}


def array(values: np.ndarray) -> Any:
    """Return an array of few numbers whole; of more, some of them and two sums in which every number has a part."""
    if values.dtype.kind == "c":
        return [array(values.real), array(values.imag)]
    if values.dtype.kind not in "fiub":
        return [plain(entry, DEEP) for entry in values.ravel()[:LONG].tolist()]
    flat = values.ravel()
    kept: dict[str, Any] = {"shape": list(values.shape), "of": values.dtype.name}
    if flat.size <= FEW:
        return kept | {"values": [plain(x) for x in flat.tolist()]}
    some = flat[np.linspace(0, flat.size - 1, FEW // 2).round().astype(int)]
    finite = np.where(np.isfinite(flat), flat, 0.0).astype(float)
    sums = [np.abs(finite).sum(), np.abs(finite) @ (1.0 + np.cos(np.arange(flat.size)))]
    return kept | {
        "some": [plain(x) for x in some.tolist()],
        "sums": [plain(float(x)) for x in sums],
    }


def drawn(figure: Any) -> Any:
    """Return what a Matplotlib figure shows: words, limits, and the data of all that is drawn."""
    from matplotlib.text import Text

    figure = getattr(figure, "figure", figure)
    found = []
    for axes in figure.axes:
        told: dict[str, Any] = {
            "limits": [axes.get_xlim(), axes.get_ylim()],
            "scales": [axes.get_xscale(), axes.get_yscale()],
            "words": [
                text.get_text() for text in axes.findobj(Text) if text.get_text()
            ],
        }
        for line in axes.lines:
            told.setdefault("lines", []).append(
                [array(np.asarray(part, float)) for part in line.get_data()]
            )
        for shape in axes.patches:
            told.setdefault("shapes", []).append(
                array(np.asarray(shape.get_path().vertices, float))
            )
        for many in (*axes.collections, *axes.images):
            held = (
                many.get_array() if many.get_array() is not None else many.get_offsets()
            )
            told.setdefault("many", []).append(
                array(np.ma.filled(np.ma.asarray(held, float), np.nan))
            )
        found.append(told)
    return {"size": plain(figure.get_size_inches()), "axes": plain(found)}


def differences(found: Any, kept: Any, call: Call, where: str = "") -> Iterator[str]:
    """Yield the places in which two answers differ: words exactly, numbers as far as rounding may move them."""
    if (
        isinstance(kept, dict)
        and isinstance(found, dict)
        and found.keys() == kept.keys()
    ):
        beside = (
            beside_largest(call, kept.get("values", kept.get("some")))
            if "shape" in kept
            else call
        )
        for key in kept:
            is_estimate = key == "error" and "steps" in kept  # of a run, or of a sweep
            asked = (
                replace(call, rtol=MAGNITUDE, atol=NOTHING) if is_estimate else beside
            )
            yield from differences(found[key], kept[key], asked, f"{where}.{key}")
    elif isinstance(kept, list) and isinstance(found, list) and len(found) == len(kept):
        beside = beside_largest(call, kept)
        for i, (one, other) in enumerate(zip(found, kept, strict=True)):
            yield from differences(one, other, beside, f"{where}[{i}]")
    elif (
        isinstance(kept, float)
        and isinstance(found, int | float)
        and not isinstance(found, bool)
    ):
        if not math.isclose(found, kept, rel_tol=call.rtol, abs_tol=call.atol):
            yield f"{where}: {found!r} for {kept!r}"
    elif isinstance(kept, str) and isinstance(found, str):
        if not same_words(found, kept, call.rtol):
            yield f"{where}: {found!r} for {kept!r}"
    elif type(found) is not type(kept) or found != kept:
        yield f"{where}: {found!r} for {kept!r}"


def beside_largest(call: Call, values: Any) -> Call:
    """Return a call that takes numbers for equal whose difference is rounding beside the largest of an array."""
    numbers = [abs(x) for x in values or () if isinstance(x, float)]
    return replace(call, atol=max(call.atol, ROUNDING * max(numbers, default=0.0)))


def same_words(found: str, kept: str, rtol: float) -> bool:
    """Whether two texts are equal but for the rounding of their numbers, and the spaces and lines beside these."""
    if found == kept:
        return True
    numbers, kept_numbers = NUMBER.findall(found), NUMBER.findall(kept)
    words, kept_words = (
        FILLED.sub(r"\1", NUMBER.sub("0", text)) for text in (found, kept)
    )
    if words != kept_words or len(numbers) != len(kept_numbers):
        return False
    return all(
        near(one, other, rtol) for one, other in zip(numbers, kept_numbers, strict=True)
    )


def near(one: str, other: str, rtol: float) -> bool:
    """Whether two printed numbers differ by rounding alone; integers do not.

    It moves a number by its share ``rtol``, or the last one of at least two printed digits. A number below `TINY` with
    an exponent is an error that rounding makes: its size counts, and of one below `NOTHING` not even that.
    """
    if one == other:
        return True
    if one.lstrip("+-").isdigit() and other.lstrip("+-").isdigit():
        return False
    x, y = float(one), float(other)
    if math.isclose(x, y, rel_tol=rtol) or max(abs(x), abs(y)) < NOTHING:
        return True
    if max(abs(x), abs(y)) < TINY:
        return x * y > 0.0 and 0.01 < x / y < 100.0
    digits, last = zip(printed(one), printed(other), strict=True)
    return max(digits) >= 2 and abs(x - y) <= 1.01 * min(last)


def printed(number: str) -> tuple[int, float]:
    """Return how many digits a printed number has, and the size of one in its last digit."""
    digits, _, power = number.lower().partition("e")
    places = len(digits.partition(".")[2])
    return len(digits.replace(".", "").lstrip("+-0")), 10.0 ** (
        int(power or 0) - places
    )


def read(module: str) -> dict[str, Any]:
    """Return the kept answers of a module."""
    path = RECORDS / f"{module}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def called(asked: Section) -> Iterator[tuple[str, Call]]:
    """Yield the calls of a section with their names."""
    for name, one in asked():
        yield name, one if isinstance(one, Call) else Call(one)


def compare(section: str, asked: Section) -> list[str]:
    """Return where the answers to a section's calls differ from those that are kept."""
    module, _, title = section.partition(": ")
    kept, found = read(module).get(title, {}), []
    for name, call in called(asked):
        if name not in kept:
            found.append(f"{name}: has no answer on record")
            continue
        found += [
            f"{name}{text}"
            for text in differences(answer(call.ask), kept.pop(name), call)
        ]
    return found + [f"{name}: is on record, but not asked any more" for name in kept]
