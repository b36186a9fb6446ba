"""Options of the command line, made from the parameters that a family declares.

A `Parameter`, here called ``declared``, has a kind of values, ``declared.kind``. The
method ``parse`` of the kind reads a value from text. The attributes of the kind are
``words`` (the words that the value may be), ``allowed`` (a phrase for these words in
messages), ``arrays`` (whether the value may be an array), ``numeric`` and ``whole``
(whether all values other than words are numbers, or integers) and ``text`` (whether the
command line can give the value). ``declared.axis`` is true if a sweep may vary the
parameter.
"""

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

from icl_theory._names import nearest
from icl_theory._validate import argument_error
from icl_theory.cli import completion
from icl_theory.engine.interrupts import returns_runs
from icl_theory.families import Family, Parameter
from icl_theory.families.fixed_set import SET_PARAMETERS
from icl_theory.families.parameters import ENDINGS
from icl_theory.families.rule_parameters import RULE_PARAMETERS

# Headings in --help.
RULE_PANEL = "Update rule"
SET_PANEL = "Fixed training set"
# How an error describes the values that a sweep takes.
RANGE = "a number, a list a,b,c or a range first:last:log:count or first:last:lin:count"


def flag(name: str) -> str:
    """Return the option of a parameter, such as "--max-steps" for max_steps."""
    return "--" + name.replace("_", "-")


def with_options(
    function: Callable[..., int], **groups: Mapping[str, Any]
) -> Callable[..., int]:
    """Return a command that has options in place of some arguments of ``function``.

    Each keyword in ``groups`` names an argument of the function, and its value has the
    annotations of options by their names. The command has these options in place of the
    argument. The function gets a dict as this argument, with the values of those
    options that the user has set.
    """
    # The parameters of the command's signature. They are keyword-only, because only
    # then may one without a default follow one with a default.
    parameters: list[inspect.Parameter] = []
    for argument in inspect.signature(function, eval_str=True).parameters.values():
        if argument.name not in groups:
            parameters.append(argument.replace(kind=argument.KEYWORD_ONLY))
            continue
        for name, annotation in groups[argument.name].items():
            option = inspect.Parameter(
                name, argument.KEYWORD_ONLY, default=None, annotation=annotation
            )
            parameters.append(option)

    # Typer calls this with a value for each option, which is None if it is not given.
    # The mark `returns_runs` lets Ctrl-C end a run early and return a part of it.
    @returns_runs
    def command(**options: Any) -> int:
        for group, names in groups.items():
            values = {name: options.pop(name) for name in names}
            options[group] = {
                name: value for name, value in values.items() if value is not None
            }
        return function(**options)

    # Typer makes the options of a command from these attributes.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {
        parameter.name: parameter.annotation for parameter in parameters
    }
    command.__doc__ = function.__doc__
    command.__name__ = function.__name__
    return command


def options_of(
    family: type[Family],
    help_of: Callable[[Parameter], str],
    completer_of: Callable[
        [Parameter], completion.Completer | None
    ] = completion.of_parameter,
) -> dict[str, Any]:
    """Return an option for each parameter of a family that can be written as text.

    ``help_of`` returns the help of a parameter, and ``completer_of`` a function that
    completes its value, or None. In --help the parameters of the update rule have a
    heading of their own, and so do those of a fixed training set.
    """
    options: dict[str, Any] = {}
    for name, declared in family.parameters().items():
        if not declared.kind.text:
            continue
        option = typer.Option(
            flag(name),
            # Escape the brackets around a default, which are not markup for styles.
            help=escape(help_of(declared)),
            show_default=False,
            rich_help_panel=_panel(name),
            autocompletion=completer_of(declared),
        )
        # An option that is not given is None, and the family's default then applies.
        options[name] = Annotated[str | None, option]
    return options


def _panel(name: str) -> str | None:
    """Return the heading of a parameter in --help; None for the usual heading."""
    if name in RULE_PARAMETERS:
        return RULE_PANEL
    if name in SET_PARAMETERS:
        return SET_PANEL
    return None


def with_fewer_conversions(command: Any, texts: Iterable[str] = ()) -> Any:
    """Return a command of typer that converts only the options that need it.

    An option is not converted if it is not given, or if it is among ``texts``, which
    stay texts. Typer loads pydantic and importlib.metadata for conversions, which takes
    a tenth of the time of `icl-theory simulate`. The command is changed in place.
    """
    # The method `get_params` of typer returns the options of the command and --help.
    all_options = command.get_params

    def get_params(context: Any) -> list[Any]:
        """Return the options, each of which converts its value only if needed."""
        options: list[Any] = all_options(context)
        for option in options:
            # A later call returns the same options, whose method has already been
            # replaced by a partial.
            if not isinstance(option.process_value, functools.partial):
                option.process_value = functools.partial(
                    _processed, option, option.process_value, option.name in texts
                )
        return options

    command.get_params = get_params
    return command


def _processed(
    option: Any, convert: Callable[..., Any], is_text: bool, context: Any, value: Any
) -> Any:
    """Return the value of an option, converted only if it needs a conversion.

    ``convert`` is the method of typer that converts a value and calls the callback of
    the option. It also refuses a required option that is not given. ``context`` and
    ``value`` are the arguments of ``convert``; an option that is not given has the
    value None.
    """
    needs_conversion = value is not None and not is_text
    if option.required or needs_conversion:
        return convert(context, value)
    if option.callback is None:
        return value
    return option.callback(context, option, value)


def help_text(declared: Parameter) -> str:
    """Return the meaning of a parameter, the words that it may be, and its default."""
    text = declared.meaning
    if declared.kind.allowed:
        text += f" ({declared.kind.allowed})"
    if declared.kind.arrays:
        text += f"; an array from a file ({', '.join(ENDINGS)})"
    # The default, or the word "required", stands in brackets.
    value = "required" if declared.required else declared.default
    if isinstance(value, tuple):
        # A list is written with commas, as on the command line.
        text += f" [{','.join(map(str, value))}]"
    elif isinstance(value, float | int):
        text += f" [{value:g}]"
    elif value is not None:
        text += f" [{value}]"
    return text[0].upper() + text[1:] + "."


def example(command: str, family: type[Family], is_sweep: bool) -> str:
    """Return a command line that works.

    ``command`` is the beginning of the command line. The example has the required
    parameters, and two learning rates for a sweep.
    """
    values = {}
    for name, declared in family.parameters().items():
        if declared.required:
            # The required parameters of all families of the package may be 1.
            values[name] = "1"
    if is_sweep:
        values["eta"] = "0.1,0.2"
    options = [f"{flag(name)} {value}" for name, value in values.items()]
    return " ".join([command, *options])


def require(family: type[Family], settings: dict[str, Any]) -> None:
    """Refuse settings that lack a required parameter.

    The error names the options of all missing parameters; ``settings`` has the values
    of parameters by name.
    """
    missing = []
    for name, declared in family.parameters().items():
        if not declared.required or name in settings:
            continue
        words = ""
        if declared.kind.allowed:
            words = f" (a number or {declared.kind.allowed})"
        missing.append(flag(name) + words)
    if missing:
        give = "it as an option" if len(missing) == 1 else "them as options"
        flags = ", ".join(missing)
        raise ValueError(f"{flags}: give {give} or in the file of --config")


def parse_value(declared: Parameter, text: str) -> Any:
    """Read the value of a parameter for a single run."""
    if declared.kind.arrays:
        # In a single run a list is a vector. In a sweep it would be the values of an
        # axis.
        return declared.kind.parse(declared.name, text.strip())
    if declared.axis and declared.kind.numeric and (":" in text or "," in text):
        raise ValueError(
            f"{declared.name} = {text!r}: simulate takes one value; sweep takes lists"
            " and ranges"
        )
    return _parse_single(declared, text)


def _parse_single(declared: Parameter, text: str) -> Any:
    """Read one value, which may also be written as a list of one value, ``2,``."""
    return declared.kind.parse(declared.name, text.strip().removesuffix(","))


def parse_axis(declared: Parameter, text: str) -> Any:
    """Read one value, a list or a range, for a sweep.

    The text is like ``2``, ``0.5,1,2``, ``0.03:30:log:25`` or ``0:1:lin:11``. Values
    may also be words. A list or a range becomes a dimension of the sweep. A list may
    have one value: ``2,``. A range of a whole-number parameter is rounded.
    """
    # A parameter that cannot be swept has one value, and an array is one value.
    if not declared.axis or declared.kind.is_array(text):
        return _parse_single(declared, text)
    is_list = "," in text
    text = text.strip().removesuffix(",")
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


def _range(declared: Parameter, text: str) -> Any:
    """Read a range, whose values must all be different."""
    values = _spaced(declared.name, text)
    if declared.kind.whole:
        count = len(values)
        values = np.round(values)
        distinct = len(np.unique(values))
        if distinct < count:
            raise argument_error(
                declared.name,
                text,
                f"a range of at most {distinct} values, because rounded to integers"
                " some are equal",
            )
    return values


def _spaced(name: str, text: str, most: int = 10_000_000) -> Any:
    """Return the numbers of a range, ``first:last:spacing:count``.

    The spacing is "log" or "lin", and ``name`` is the name of the parameter. A range of
    more than ``most`` values is taken for a typing error.
    """
    parts = text.split(":")
    if len(parts) != 4:
        raise argument_error(name, text, RANGE)
    first_text, last_text, spacing, count_text = parts
    if spacing not in ("log", "lin"):
        raise argument_error(name, text, RANGE)
    try:
        first = float(first_text)
        last = float(last_text)
        count = int(count_text)
    except ValueError:
        raise argument_error(name, text, RANGE) from None
    if not (math.isfinite(first) and math.isfinite(last)) or not 2 <= count <= most:
        raise argument_error(
            name, text, f"a range between finite numbers, of 2 to {most:,} values"
        )
    if first == last:
        raise argument_error(name, text, "a range between two different numbers")
    if spacing == "log" and (first <= 0 or last <= 0):
        raise argument_error(
            name, text, "a range between positive numbers if it is logarithmic"
        )
    if spacing == "log":
        return np.geomspace(first, last, count)
    return np.linspace(first, last, count)


def _configured(context: typer.Context, path: Path | None) -> Path | None:
    """Make the options in a TOML file the defaults of a command.

    The keys of the file are spelt like the options of the command line.
    """
    if path is None:
        return None
    parameter_of = _parameters_by_key(context.command)
    # From this mapping typer takes the defaults of the options that it reads later.
    context.default_map = {}
    for spelling, value in _toml(path).items():
        key = spelling.replace("-", "_")
        if key not in parameter_of:
            raise ValueError(
                f"config: there is no option {spelling!r}{nearest(key, parameter_of)};"
                f" the options are {', '.join(parameter_of)}"
            )
        context.default_map[parameter_of[key]] = _option_text(key, value)
    return path


def _parameters_by_key(command: Any) -> dict[str, str]:
    """Return the names of the parameters of a command by their keys in a file.

    A key is an option without its leading hyphens. An option and the parameter that it
    sets may have different names.
    """
    parameter_of: dict[str, str] = {}
    for parameter in command.params:
        # A file cannot name another file.
        if parameter.name != "config":
            for option in parameter.opts:
                # Hyphens within an option may be written as underscores in the file.
                key = option.lstrip("-").replace("-", "_")
                parameter_of[key] = parameter.name
    return parameter_of


def _option_text(name: str, value: Any) -> str:
    """Return a value of a TOML file as it is written on the command line."""
    entries = value if isinstance(value, list) else [value]
    if entries and all(isinstance(entry, list) for entry in entries):
        return _matrix_text(name, entries)
    if any(isinstance(entry, dict | list) for entry in entries):
        raise argument_error(
            name, value, "a number, a text, a list of them, or a list of rows"
        )
    text = ",".join(map(str, entries))
    # The comma at the end marks a list of a single value, too.
    is_list_of_one = isinstance(value, list) and len(entries) == 1
    return text + "," if is_list_of_one else text


def _matrix_text(name: str, rows: list[list[Any]]) -> str:
    """Return the rows of a matrix as they are written on the command line."""
    texts = []
    for row in rows:
        if any(isinstance(entry, dict | list) for entry in row):
            raise argument_error(
                name, rows, "rows of numbers; a file holds arrays of more dimensions"
            )
        texts.append(",".join(map(str, row)))
    # The semicolon at the end marks a matrix of a single row, too.
    return ";".join(texts) + ";"


def _toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Any error becomes a ValueError for the option --config.
    """
    import tomllib  # imported here because few commands read such a file

    # The order of the clauses matters: an error of TOML or of decoding is a ValueError,
    # too.
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise argument_error(
            "config", str(path), f"a TOML file that can be read ({reason})"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise argument_error("config", str(path), f"a TOML file ({error})") from None
    except ValueError:
        # Python reads only integers of a limited number of digits.
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
        help="TOML file with values of these options; the command line takes"
        " precedence.",
    ),
]
