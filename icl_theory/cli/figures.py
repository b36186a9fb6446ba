"""`icl-theory figures`, and `script`, which lets the script of a figure run alone."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Annotated

import typer

from icl_theory import figures as recipes
from icl_theory._validate import argument_error, choice
from icl_theory.cli import completion
from icl_theory.cli.shared import INTERRUPTED, print_rows, say_left_out
from icl_theory.families.plug_ins import left_out


def figures(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names of figures; by default all.",
            autocompletion=completion.of_words(completion.figures),
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", help="Folder for the files, PDF and PNG.")
    ] = Path("figures"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Make fewer and shorter runs.")
    ] = False,
    animate: Annotated[
        bool,
        typer.Option(
            "--animate", help="Write a film of the attention maps during training."
        ),
    ] = False,
    only_list: Annotated[
        bool, typer.Option("--list", help="Print the names and titles of figures.")
    ] = False,
) -> int:
    """Reproduce the figures of the papers and of the documentation.

    Example: icl-theory figures front --quick --out figures
    """
    titles = recipes.available()
    # The messages are about families whose figures cannot be loaded.
    _recipes, messages = recipes.recipes()
    say_left_out(messages)
    for name in names or []:
        choice("figure", name, titles)
    chosen = names or list(titles)
    if only_list:
        print_rows((name, titles[name]) for name in chosen)
        return 0
    recipes.check_folder(out)
    if not animate:
        return _write_figures(chosen, out, quick)
    # Only one figure has a film.
    for name in names or []:
        choice("figure", name, ["maps"])
    for path in recipes.animate(out, quick=quick):
        print(path)
    return 0


def _write_figures(names: list[str], out: Path, quick: bool) -> int:
    """Write figures, print their paths, and return the exit status.

    A figure that fails is left out. Its error is printed after the other figures are
    written.
    """
    failures: list[str] = []
    for name in names:
        try:
            # An error in the block becomes a message in ``failures``.
            with left_out(f"the figure {name}", failures):
                figure = recipes.draw(name, quick=quick)
                for path in recipes.write(figure, out, name):
                    # Figures take long: show each path as soon as its file is written.
                    print(path, flush=True)
        except KeyboardInterrupt:
            print(
                f"icl-theory: interrupted at {name}; the figures before it are"
                " complete",
                file=sys.stderr,
            )
            return INTERRUPTED
    say_left_out(failures)
    return 1 if failures else 0


def script(file: str) -> None:
    """Draw a figure from its own script, as `icl-theory figures NAME` would.

    ``file`` is the path of the script, whose name is the name of the figure. The
    options of the script are passed to the command.

    Raises
    ------
    ValueError
        The script is being imported, not run: the call must stand below
        ``if __name__ == "__main__":``.
    """
    # The globals of the caller say whether it runs as a script.
    frame = inspect.currentframe()
    caller = frame.f_back if frame is not None else None
    if caller is not None and caller.f_globals.get("__name__") != "__main__":
        raise argument_error(
            "script",
            Path(file).name,
            'called below if __name__ == "__main__", because the file is also loaded',
        )
    from icl_theory.cli import main

    try:
        main(["figures", Path(file).stem, *sys.argv[1:]])
    except SystemExit as stop:
        # Even after a success, this exception would end a program that runs the script,
        # such as the gallery of the documentation.
        if stop.code:
            raise
