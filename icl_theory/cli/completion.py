"""`icl-theory completion`, and the values of options that Tab completes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated

import typer

from icl_theory._validate import choice
from icl_theory.families import Parameter

PROGRAM = "icl-theory"
# A shell sets this variable when it asks for completions.
VARIABLE = "_ICL_THEORY_COMPLETE"
SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")

Completer = Callable[[str], list[str]]


def of_words(words: Callable[[], Iterable[str]]) -> Completer:
    """Return a completer for one of some words, or for a list of them with commas.

    ``words`` returns the words. It is called only when Tab is pressed, because some
    words take time to load.
    """

    def complete(incomplete: str) -> list[str]:
        # In a list only the word after the last comma is completed.
        before, comma, last = incomplete.rpartition(",")
        return [before + comma + word for word in words() if word.startswith(last)]

    return complete


def of_parameter(declared: Parameter, *more: str) -> Completer | None:
    """Return a completer for the words of a parameter and for the words ``more``.

    The result is None for a parameter that takes no words, such as a number.
    """
    if not declared.kind.words:
        return None
    words = (*declared.kind.words, *more)
    return of_words(lambda: words)


def papers() -> list[str]:
    """Return the names of all papers."""
    from icl_theory.results import reproduction

    return [*reproduction.papers()]


def questions() -> list[str]:
    """Return the names of the open questions."""
    from icl_theory.statements.audit import questions

    return [*questions()]


def figures() -> list[str]:
    """Return the names of the figures."""
    from icl_theory import figures

    return [*figures.available()]


def swept(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a parameter that the command line sweeps.

    These are the parameters to which the command line gives a list or a range, before
    the word that is completed.
    """
    names = []
    for name, value in ctx.params.items():
        # Lists have commas, and ranges have colons.
        is_swept = isinstance(value, str) and ("," in value or ":" in value)
        if is_swept and name.startswith(incomplete):
            names.append(name)
    return names


def completion(
    shell: Annotated[
        str,
        typer.Argument(
            metavar="|".join(SHELLS), autocompletion=of_words(lambda: SHELLS)
        ),
    ],
) -> None:
    """Print a script that makes Tab complete commands, options and their values.

    For bash or zsh, add this line to ~/.bashrc or ~/.zshrc (for zsh below compinit):

    eval "$(icl-theory completion bash)"
    """
    from typer.completion import (  # type: ignore[attr-defined]
        get_completion_script,
    )

    choice("shell", shell, SHELLS)
    print(get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell))
