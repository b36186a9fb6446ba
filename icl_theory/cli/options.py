"""Options of the command line, made from the parameters that a family declares."""

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

from icl_theory._validate import argument_error
from icl_theory.engine.interrupts import returns_runs
from icl_theory.families import Family, Parameter
from icl_theory.families.parameters import nearest
from icl_theory.families.rule_parameters import RULE_PARAMETERS

RULE_PANEL = "Update rule"  # heading in --help
RANGE = "a number, a list a,b,c or a range first:last:log:count or first:last:lin:count"


def flag(name: str) -> str:
    """Return the option of a parameter."""
    return "--" + name.replace("_", "-")


def with_options(
    function: Callable[..., int], **groups: Mapping[str, Any]
) -> Callable[..., int]:
    """Return a command with an option for each annotation of a group, in place of an argument of ``function``.

    The function gets those that are given as a dict.
    """
    every: list[inspect.Parameter] = []
    for own in inspect.signature(function, eval_str=True).parameters.values():
        for name, annotation in groups.get(
            own.name, {own.name: own.annotation}
        ).items():
            default = None if own.name in groups else own.default
            every.append(
                inspect.Parameter(
                    name, own.KEYWORD_ONLY, default=default, annotation=annotation
                )
            )

    @returns_runs
    def command(**options: Any) -> int:
        for group, names in groups.items():
            given = {name: options.pop(name) for name in names}
            options[group] = {
                name: value for name, value in given.items() if value is not None
            }
        return function(**options)

    command.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in every}
    command.__doc__ = function.__doc__
    command.__name__ = function.__name__
    return command


def options_of(
    family: type[Family], help_of: Callable[[Parameter], str]
) -> dict[str, Any]:
    """Return an option for each parameter of a family that has a text; those of the update rule under a heading."""
    options: dict[str, Any] = {}
    for name, declared in family.parameters().items():
        if not declared.kind.text:
            continue
        panel = RULE_PANEL if name in RULE_PARAMETERS else None
        option = typer.Option(
            flag(name),
            help=escape(help_of(declared)),
            show_default=False,
            rich_help_panel=panel,
        )
        options[name] = Annotated[str | None, option]
    return options


def spared(command: Any, texts: Iterable[str] = ()) -> Any:
    """Return a command of typer that converts neither ``texts`` nor options that are not given.

    Typer loads pydantic and importlib.metadata for conversions, a tenth of the time of
    `icl-theory simulate`.
    """
    every = command.get_params

    def get_params(context: Any) -> list[Any]:
        for each in (found := every(context)):  # --help among them
            if not isinstance(each.process_value, functools.partial):
                each.process_value = functools.partial(
                    _processed, each, each.process_value, each.name in texts
                )
        return found

    command.get_params = get_params
    return command


def _processed(
    option: Any, convert: Callable[..., Any], text: bool, context: Any, value: Any
) -> Any:
    if option.required or not (text or value is None):
        return convert(context, value)
    return value if option.callback is None else option.callback(context, option, value)


def help_text(declared: Parameter) -> str:
    """Return the meaning of a parameter, the words that it may be, and its default."""
    words = f" ({declared.kind.allowed})" if declared.kind.allowed else ""
    value = "required" if declared.required else declared.default
    # as it is spelt there
    value = ",".join(map(str, value)) if isinstance(value, tuple) else value
    default = (
        ""
        if value is None
        else f" [{value:g}]"
        if isinstance(value, float | int)
        else f" [{value}]"
    )
    text = declared.meaning + words + default
    return text[0].upper() + text[1:] + "."


def example(words: str, family: type[Family], sweep: bool) -> str:
    """Return a command line that works: with what is required, and two learning rates for a sweep."""
    values = {name: "1" for name, each in family.parameters().items() if each.required}
    values |= {"eta": "0.1,0.2"} if sweep else {}
    return " ".join(
        [words, *(f"{flag(name)} {value}" for name, value in values.items())]
    )


def require(family: type[Family], settings: dict[str, Any]) -> None:
    """Refuse settings without the parameters that have no default, and name all of them."""
    missing = {
        name: each
        for name, each in family.parameters().items()
        if each.required and name not in settings
    }
    if missing:
        words = {
            name: f" (a number or {each.kind.allowed})"
            for name, each in missing.items()
            if each.kind.allowed
        }
        flags = ", ".join(flag(name) + words.get(name, "") for name in missing)
        give = "it as an option" if len(missing) == 1 else "them as options"
        raise ValueError(f"{flags}: give {give} or in the file of --config")


def parse_value(declared: Parameter, text: str) -> Any:
    """Read one value, for a single run."""
    if declared.axis and declared.kind.numeric and (":" in text or "," in text):
        raise ValueError(
            f"{declared.name} = {text!r}: simulate takes one value; sweep takes lists and ranges"
        )
    return declared.kind.parse(declared.name, text.strip().removesuffix(","))


def parse_axis(declared: Parameter, text: str) -> Any:
    """Read one value, a list or a range, for a sweep.

    The text is like ``2``, ``0.5,1,2``, ``0.03:30:log:25`` or ``0:1:lin:11``, or words.
    A list or a range makes a dimension, even of one value, ``2,``; a range of integers
    is rounded.
    """
    text, is_list = text.strip().removesuffix(","), "," in text
    if not declared.axis:
        return declared.kind.parse(declared.name, text)
    if ":" in text and declared.kind.numeric:
        return _range(declared, text)
    try:
        values = [
            declared.kind.parse(declared.name, part.strip()) for part in text.split(",")
        ]
    except ValueError:
        if not declared.kind.numeric:
            raise
        words = f", or {declared.kind.allowed}" if declared.kind.words else ""
        raise argument_error(declared.name, text, RANGE + words) from None
    return values if is_list else values[0]


def _range(declared: Parameter, text: str, most: int = 10_000_000) -> Any:
    """Read a range of at most ``most`` values: more points are a typing error."""
    name = declared.name
    parts = text.split(":")
    if len(parts) != 4 or parts[2] not in ("log", "lin"):
        raise argument_error(name, text, RANGE)
    try:
        first = float(parts[0])
        last = float(parts[1])
        count = int(parts[3])
    except ValueError:
        raise argument_error(name, text, RANGE) from None
    if not (math.isfinite(first) and math.isfinite(last)) or not 2 <= count <= most:
        raise argument_error(
            name, text, f"a range between finite numbers, of 2 to {most:,} values"
        )
    if first == last:
        raise argument_error(name, text, "a range between two different numbers")
    if parts[2] == "log" and (first <= 0 or last <= 0):
        raise argument_error(
            name, text, "a range between positive numbers if it is logarithmic"
        )
    values = (
        np.geomspace(first, last, count)
        if parts[2] == "log"
        else np.linspace(first, last, count)
    )
    if declared.kind.whole:
        values = np.round(values)
        if (different := len(np.unique(values))) < count:
            many = f"a range of at most {different} values, because rounded to integers some are equal"
            raise argument_error(name, text, many)
    return values


def _configured(context: typer.Context, path: Path | None) -> Path | None:
    """Take the options in a TOML file as defaults, each spelt as on the command line."""
    if path is None:
        return None
    every = [each for each in context.command.params if each.name != "config"]
    known = {
        option.lstrip("-").replace("-", "_"): each.name
        for each in every
        for option in each.opts
    }
    context.default_map = {}
    for key, value in _toml(path).items():
        name = key.replace("-", "_")
        if name not in known:
            options = ", ".join(known)
            raise ValueError(
                f"config: there is no option {key!r}{nearest(name, known)}; the options are {options}"
            )
        values = value if isinstance(value, list) else [value]
        if any(isinstance(each, dict | list) for each in values):
            raise argument_error(name, value, "a number, a text, or a list of them")
        alone = isinstance(value, list) and len(values) == 1
        context.default_map[known[name]] = ",".join(map(str, values)) + "," * alone
    return path


def _toml(path: Path) -> dict[str, Any]:
    import tomllib  # few commands read a file

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise argument_error(
            "config", str(path), f"a TOML file that can be read ({reason})"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise argument_error("config", str(path), f"a TOML file ({error})") from None
    except ValueError:  # Python's limit on the digits of an integer
        most = sys.get_int_max_str_digits()
        raise argument_error(
            "config", str(path), f"a TOML file with integers of at most {most} digits"
        ) from None


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        is_eager=True,
        callback=_configured,
        help="TOML file of these options; flags win.",
    ),
]
