"""Options of the command line, made from the parameters of a family: each is declared there and nowhere else."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape

from icl_theory._validate import refuse
from icl_theory.engine.interrupts import returns_runs
from icl_theory.families import Family, Parameter
from icl_theory.families.kinds import nearest

RANGE = "a number, a list a,b,c or a range first:last:log:count or first:last:lin:count"
MOST = 10_000_000  # values of a range


def flag(name: str) -> str:
    """Return the option of a parameter."""
    return "--" + name.replace("_", "-")


def with_options(
    function: Callable[..., int], family: type[Family], help_of: Callable[[Parameter], str]
) -> Callable[..., int]:
    """Return a command whose options are the parameters of a family, then those of ``function`` itself.

    Parameters
    ----------
    function : callable
        Takes the texts of the parameters that were given, a dict, and its own options by keyword.
    family : type
        The family.
    help_of : callable
        Says what an option is.
    """
    declared = {name: each for name, each in family.parameters().items() if each.kind.text}
    own = [each for each in inspect.signature(function, eval_str=True).parameters.values() if each.name != "given"]
    made = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                str | None, typer.Option(flag(name), help=escape(help_of(each)), show_default=False)
            ],
        )
        for name, each in declared.items()
    ]

    @returns_runs
    def command(**options: Any) -> int:
        given = {name: options.pop(name) for name in declared}
        return function({name: text for name, text in given.items() if text is not None}, **options)

    command.__signature__ = inspect.Signature([*made, *(each.replace(kind=each.KEYWORD_ONLY) for each in own)])  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in (*made, *own)}
    command.__doc__ = function.__doc__
    return command


def spared(command: Any, texts: Iterable[str] = ()) -> Any:
    """Return a command of typer that converts what needs it: not ``texts``, nor options that are not given.

    Typer loads a library for conversions, and makes a converter for every option; that is a quarter of the time
    that `icl-theory simulate` takes.
    """
    every = command.get_params

    def get_params(context: Any) -> list[Any]:
        for each in (found := every(context)):  # --help among them
            if not isinstance(each.process_value, functools.partial):
                each.process_value = functools.partial(_processed, each, each.process_value, each.name in texts)
        return found

    command.get_params = get_params
    return command


def _processed(option: Any, convert: Callable[..., Any], text: bool, context: Any, value: Any) -> Any:
    if option.required or not (text or value is None):
        return convert(context, value)
    return value if option.callback is None else option.callback(context, option, value)


def help_text(declared: Parameter) -> str:
    """Say what a parameter is, which words it may be, and its default."""
    words = f" ({declared.kind.allowed})" if declared.kind.allowed else ""
    default = "" if declared.required or declared.default is None else f" [{_shown(declared.default)}]"
    text = declared.meaning + words + default
    return text[0].upper() + text[1:] + "."


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float | int) else str(value)


def require(family: type[Family], settings: dict[str, Any]) -> None:
    """Refuse settings without the parameters that have no default, and name all of them."""
    missing = {name: each for name, each in family.parameters().items() if each.required and name not in settings}
    if missing:
        flags = [
            flag(name) + (f" (a number or {each.kind.allowed})" if each.kind.allowed else "")
            for name, each in missing.items()
        ]
        raise refuse(", ".join(missing), None, f"given, as {', '.join(flags)} or in the file of --config")


def parse_value(declared: Parameter, text: str) -> Any:
    """Read one value, for a single run.

    Examples
    --------
    >>> from icl_theory.cli.options import parse_value
    >>> from icl_theory.families import find
    >>> parse_value(find("regression").parameters()["K"], "1e3")
    1000
    """
    if declared.axis and declared.kind.numeric and (":" in text or "," in text):
        raise refuse(declared.name, text, "one value here: `sweep` takes lists and ranges")
    return declared.kind.parse(declared.name, text.strip())


def parse_axis(declared: Parameter, text: str) -> Any:
    """Read one value, a list or a range, for a sweep.

    Parameters
    ----------
    declared : Parameter
        The parameter.
    text : str
        ``2``, ``0.5,1,2``, ``0.03:30:log:25`` or ``0:1:lin:11``, or words. A list or range makes a dimension, also
        of one value; values of a range are rounded where the parameter is an integer.

    Returns
    -------
    object
        A value, an array, or a list of words.

    Raises
    ------
    ValueError
        Anything else.

    Examples
    --------
    >>> from icl_theory.cli.options import parse_axis
    >>> from icl_theory.families import find
    >>> known = find("regression").parameters()
    >>> parse_axis(known["L"], "0.1:10:log:3"), parse_axis(known["K"], "5,20"), parse_axis(known["N"], "inf")
    (array([ 0.1,  1. , 10. ]), [5, 20], inf)
    """
    text = text.strip()
    if not declared.axis:
        return declared.kind.parse(declared.name, text)
    if ":" in text and declared.kind.numeric:
        return _range(declared, text)
    parts = text.split(",")
    try:
        values = [declared.kind.parse(declared.name, part.strip()) for part in parts]
    except ValueError:
        if not declared.kind.numeric:
            raise
        words = f", or {declared.kind.allowed}" if declared.kind.words else ""
        raise refuse(declared.name, text, RANGE + words) from None
    return values if len(parts) > 1 else values[0]


def _range(declared: Parameter, text: str) -> Any:
    name, parts = declared.name, text.split(":")
    if len(parts) != 4 or parts[2] not in ("log", "lin"):
        raise refuse(name, text, RANGE)
    try:
        first, last, count = float(parts[0]), float(parts[1]), int(parts[3])
    except ValueError:
        raise refuse(name, text, RANGE) from None
    if not (math.isfinite(first) and math.isfinite(last)) or not 2 <= count <= MOST:
        raise refuse(name, text, f"a range between finite numbers, of 2 to {MOST:,} values")
    if first == last:
        raise refuse(name, text, "a range between two different numbers")
    if parts[2] == "log" and (first <= 0 or last <= 0):
        raise refuse(name, text, "a range between positive numbers where it is logarithmic")
    values = np.geomspace(first, last, count) if parts[2] == "log" else np.linspace(first, last, count)
    if declared.kind.whole:
        values = np.round(values)
        if len(np.unique(values)) < count:
            raise refuse(
                name,
                text,
                f"a range of at most {len(np.unique(values))} values, because rounded to integers some are equal",
            )
    return values


def from_file(path: Path, family: type[Family], others: Mapping[str, type]) -> dict[str, Any]:
    """Read a TOML file of parameters, numbers, texts or lists of them, and of other options with their types.

    Raises
    ------
    ValueError
        It is no such file; the message names the key.
    """
    import tomllib  # few commands read a file

    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise refuse("config", str(path), f"a TOML file ({error})") from None
    except ValueError:  # Python reads no integer of more digits
        most = sys.get_int_max_str_digits()
        raise refuse("config", str(path), f"a TOML file of integers of at most {most} digits") from None
    declared = {name: each for name, each in family.parameters().items() if each.kind.text}
    read: dict[str, Any] = {}
    for key, value in found.items():
        name = key.replace("-", "_")
        known = [*declared, *others]
        if name not in known:
            raise refuse("config", key, f"made of the keys {', '.join(known)}{nearest(name, known)}")
        if name in others:
            kind = others[name]
            if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
                raise refuse(
                    name, value, f"a {'text' if kind is str else 'number' if kind is int else 'true or false'}"
                )
            read[name] = value
            continue
        many = isinstance(value, list)
        values = [
            parse_axis(declared[name], each) if isinstance(each, str) else each
            for each in (value if many else [value])
        ]
        if any(isinstance(each, dict | list) for each in values):
            raise refuse(name, value, "a number, a text, or a list of them")
        read[name] = values if many else values[0]
    return read
