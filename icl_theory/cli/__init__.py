"""The command line `icl-theory`: its program, which finds and runs the commands.

A command is made when it is needed. A Python function becomes a command of typer, and
its parameters become the options. The commands of a family are made from the parameters
that the family declares.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import io
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from icl_theory._version import __version__
from icl_theory.cli.completion import PROGRAM, VARIABLE
from icl_theory.cli.options import example, with_fewer_conversions
from icl_theory.cli.shared import INTERRUPTED, say_left_out
from icl_theory.engine.interrupts import none_swallowed, returns_runs
from icl_theory.families import Family
from icl_theory.families.plug_ins import left_out
from icl_theory.families.registry import COMMANDS, broken, default, families_known

# The commands that every family has. Without the name of a family before them, they
# work on the default family, regression.
OF_FAMILIES = ("simulate", "sweep")
# A command is in the module of its own name in this folder, except for the following
# commands.
MODULES = {
    "table": "icl_theory.cli.sweep",
    "report": "icl_theory.cli.pages",
    "reproduce": "icl_theory.cli.pages",
    "explore": "icl_theory.explorer.command",
}


class _Commands(Mapping[str, Any]):
    """Commands by name, each made when it is first needed.

    Therefore a command line loads little more than the modules of its own command.
    ``names`` returns the names of all commands, and ``make`` makes the command of a
    name.
    """

    def __init__(
        self, names: Callable[[], Iterable[str]], make: Callable[[str], Any]
    ) -> None:
        self._names = names
        self._make = functools.cache(make)

    def __getitem__(self, name: str) -> Any:
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len([*self._names()])


class _Program(TyperGroup):
    """The program, which has the commands of this installation and a group per family.

    Typer makes a context from the command line, and then invokes the command with it.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = _Commands(
            lambda: [*_installed_commands(), *families_known()], _command
        )

    def make_context(self, *arguments: Any, **settings: Any) -> Any:
        with _aborting():
            return super().make_context(*arguments, **settings)

    @returns_runs
    def invoke(self, context: Any) -> Any:
        with _aborting():
            return super().invoke(context)


@contextlib.contextmanager
def _aborting() -> Iterator[None]:
    """Turn Ctrl-C into typer.Abort, which every version of typer passes on to `main`.

    Newer versions of typer catch a KeyboardInterrupt, print nothing, and only return an
    exit status.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise typer.Abort from interrupt


def _command(name: str) -> Any:
    """Make one of `COMMANDS`, or the group of commands of a family.

    An unknown name raises a KeyError, as a mapping must: ``_Commands`` makes its items
    by this function.
    """
    if name in OF_FAMILIES:
        return _of_family(name, default())
    if name not in _installed_commands():
        return _group(families_known()[name])
    module = importlib.import_module(MODULES.get(name, f"icl_theory.cli.{name}"))
    return _typer_command(name, getattr(module, name))


@functools.cache
def _installed_commands() -> tuple[str, ...]:
    """Return the commands of this installation, which may lack an optional part."""
    names = []
    for name in COMMANDS:
        module = MODULES.get(name, f"icl_theory.cli.{name}")
        # The explorer is a package of its own, and an installation may lack it.
        package, _, _ = module.rpartition(".")
        if importlib.util.find_spec(package) is not None:
            names.append(name)
    return tuple(names)


def _group(family: type[Family]) -> Any:
    """Return the group of commands of a family.

    These are `simulate` and `sweep`, and a command for each related problem that the
    family names in its slot ``commands``.
    """
    group: Any = TyperGroup(
        name=family.name,
        help=f"{family.title[0].upper()}{family.title[1:]}.",
        no_args_is_help=True,
        rich_markup_mode="rich",
    )
    # The family that each command simulates or sweeps, by the name of the command.
    problems = dict.fromkeys(OF_FAMILIES, family)
    messages: list[str] = []
    # An error in the slot of a family becomes a message, and the group lacks the
    # commands of the slot.
    with left_out(f"the slot commands of the family {family.name}", messages):
        problems |= family.commands
    say_left_out(messages)
    group.commands = _Commands(
        lambda: problems, lambda name: _of_family(name, problems[name], family.name)
    )
    return with_fewer_conversions(group)


def _of_family(name: str, family: type[Family], *group: str) -> Any:
    """Make `simulate` or `sweep` of a family, or the command of a related problem.

    The command of a related problem has the name of the problem, and simulates it;
    ``family`` is then the family of this problem. ``group`` is the name of the group in
    which the command stands, if it stands in one.
    """
    action = name if name in OF_FAMILIES else "simulate"
    # `simulate_command` and `sweep_command` make a function from a family.
    module = importlib.import_module(f"icl_theory.cli.{action}")
    make_command = getattr(module, f"{action}_command")
    function = make_command(family)
    command = " ".join(["icl-theory", *group, name])
    command_line = example(command, family, is_sweep=action == "sweep")
    function.__doc__ += f"\n\nExample: {command_line}"
    return _typer_command(name, function, family.parameters())


def _typer_command(
    name: str, function: Callable[..., Any], texts: Iterable[str] = ()
) -> Any:
    """Make a command from a function; ``texts`` names the options that stay texts.

    A family reads its parameters from texts by itself, so typer need not convert them.
    """
    program = typer.Typer(
        add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False
    )
    program.command(name)(function)
    return with_fewer_conversions(typer.main.get_command(program), texts)


app = typer.Typer(
    cls=_Program,
    help="Exact training dynamics of in-context learning.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


# After Ctrl-C a run is returned as far as it has come, but only if all functions that
# wait for the run are marked by `returns_runs`. A command prints the part of the run,
# which counts as returning it.
@returns_runs
def main(arguments: list[str] | None = None) -> None:
    """Run the command line.

    Wrong input gives one line on standard error and the exit status 2.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that lacks Greek letters shows question marks instead.
            stream.reconfigure(errors="replace")
    _say_broken(arguments)
    try:
        status = _run(arguments)
    except ValueError as error:
        _fail(str(error))
    except OSError as error:
        has_file = error.filename is not None and error.strerror is not None
        _fail(f"{error.filename}: {error.strerror}" if has_file else str(error))
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except Exception as error:
        # Typer's usage errors have no public class, but they have the method
        # `format_message`. Any other error is a mistake in the package, and its
        # traceback is shown.
        if not hasattr(error, "format_message"):
            raise
        _fail(_usage(error))
    # A command without an exit status returns None, which means success.
    sys.exit(status if isinstance(status, int) else 0)


def _say_broken(arguments: list[str]) -> None:
    """Print a line for each family or plug-in that cannot be used."""
    # While a command line is completed, nothing else may be printed.
    if VARIABLE in os.environ:
        return
    # Without the name of a family, `simulate` and `sweep` work on the default family.
    # They need no other family, so do not spend time on loading all families.
    is_of_default_family = bool(arguments) and arguments[0] in OF_FAMILIES
    if is_of_default_family:
        return
    for line in broken():
        print(f"icl-theory: {line}", file=sys.stderr)


@returns_runs
def _run(arguments: list[str]) -> Any:
    """Run a command, and return its exit status; None if the command has none."""
    program = with_fewer_conversions(typer.main.get_command(app))
    # `none_swallowed` raises a Ctrl-C that Python has ignored in the block.
    with none_swallowed():
        return program(
            args=arguments,
            prog_name=PROGRAM,
            # With standalone_mode, typer would handle errors itself and end the
            # process.
            standalone_mode=False,
            # A command finds its own command line as the attribute obj of its context.
            obj=shlex.join(["icl-theory", *arguments]),
        )


def _usage(error: Any) -> str:
    """Return the message of a usage error of the command line.

    If the user wrote an option in the wrong case, the message suggests the right one.
    """
    options = _options_of_other_case(error)
    if options:
        # The text of format_message() ends with the suggestions in this attribute.
        error.possibilities = options
    message: str = error.format_message()
    return message


def _options_of_other_case(error: Any) -> list[str]:
    """Return the options that differ from an unknown one only in capitals."""
    name = str(getattr(error, "option_name", "")).lower()
    context = getattr(error, "ctx", None)
    if not context:
        return []
    options = [text for option in context.command.params for text in option.opts]
    return [text for text in options if text.lower() == name]


def _fail(message: str) -> None:
    """Print an error on one line, and exit with status 2."""
    # A command without its arguments is a usage error, too. Typer has then printed the
    # help, and the message is empty.
    if message:
        print("icl-theory: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(2)


def _version(is_given: bool) -> None:
    """Print the version and end the program if the option --version is given."""
    if is_given:
        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Declare the options of the program itself; their callbacks do the work."""
