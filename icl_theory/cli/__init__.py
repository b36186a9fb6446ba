"""The command line: everything the package prints, it prints here."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

import typer

from icl_theory._version import __version__
from icl_theory.cli.audit import audit
from icl_theory.cli.explore import explore
from icl_theory.cli.figures import figures
from icl_theory.cli.report import report
from icl_theory.cli.reproduce import reproduce
from icl_theory.cli.simulate import simulate_command
from icl_theory.cli.sweep import sweep_command
from icl_theory.cli.table import table
from icl_theory.families import broken, default, families_known

app = typer.Typer(
    help="Exact training dynamics of in-context learning.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("simulate")(simulate_command(default()))
app.command("sweep")(sweep_command(default()))
app.command()(table)
app.command()(report)
app.command()(audit)
app.command()(figures)
app.command()(reproduce)
app.command()(explore)
for _name, _family in families_known().items():
    group = typer.Typer(help=f"{_family.title[0].upper()}{_family.title[1:]}.", no_args_is_help=True)
    group.command("simulate")(simulate_command(_family))
    group.command("sweep")(sweep_command(_family))
    for _word, _problem in _family.commands.items():
        group.command(_word)(simulate_command(_problem))
    app.add_typer(group, name=_name)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; wrong input is one line on standard error and exit status 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for line in broken():
        print(f"icl-theory: {line}", file=sys.stderr)
    try:
        status = app(args=arguments, standalone_mode=False, obj=shlex.join(["icl-theory", *arguments]))
    except (ValueError, OSError) as error:
        _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        # typer's usage errors have no public class of their own
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        _fail(message())
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str) -> None:
    if message:  # a bare command has printed its help instead
        print("icl-theory: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(2)


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
