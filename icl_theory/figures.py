"""The figures of the papers and of this package, each made by a short script.

A plug-in has a folder of scripts (`icl_theory.families.PlugIn`). A family adds its own
by the slot ``figures``: scripts, or functions with a default for each parameter.
"""

from __future__ import annotations

import ast
import inspect
import os
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icl_theory._names import suggesting as _suggesting
from icl_theory._validate import argument_error, choice, flag, integer, number
from icl_theory.engine.interrupts import load_whole
from icl_theory.engine.progress import Progress
from icl_theory.families import filled_slots
from icl_theory.families.plug_ins import discover, left_out
from icl_theory.files import checked_path, replacing
from icl_theory.results.plots import draw_maps, release, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Recipe = str | os.PathLike[str] | Callable[..., Any]
ENDINGS = (".pdf", ".png")
# The film: pauses between frames on screen in milliseconds, frames in a second of a
# file, width of a map in inches, and dots per inch.
PAUSE = 80
FRAMES_PER_SECOND = 12
MAP_SIZE = 1.9
DPI = 120

__all__ = ["animate", "available", "draw", "parameters", "write"]
__getattr__ = _suggesting(__name__, __all__)


def __dir__() -> list[str]:
    return sorted(__all__)


def available() -> dict[str, str]:
    """Return the titles of all figures by name, in alphabetical order."""
    by_name, _messages = recipes()
    return {name: title(recipe) for name, recipe in by_name.items()}


def parameters(name: str, *, quick: bool = False) -> dict[str, Any]:
    """Return the parameters of a figure by name, with their values.

    With ``quick`` they have the values of the script's dictionary ``QUICK``, if any.
    The texts of the papers that this package was made from state no values. All values
    are chosen here.
    """
    flag("quick", quick)
    recipe = _recipe(name)
    declared = inspect.signature(recipe["figure"]).parameters
    values = {key: parameter.default for key, parameter in declared.items()}
    if quick:
        values |= recipe.get("QUICK", {})
    return values


def draw(name: str, *, quick: bool = False, **changes: Any) -> Figure:
    """Compute a figure and draw it.

    Parameters
    ----------
    name : str
        One of `available`.
    quick : bool
        Take seconds, with fewer or shorter runs.
    **changes
        Values for its `parameters`.

    Raises
    ------
    ValueError
        An unknown name, a parameter that the figure does not have, or a value that is
        not allowed.
    KeyboardInterrupt
        After Ctrl-C, also during a run: a figure shows whole runs.

    Examples
    --------
    >>> from icl_theory import figures
    >>> len(figures.draw("maps", quick=True, K=5).axes) > 4
    True
    """
    values = parameters(name, quick=quick)
    draw_figure = _recipe(name)["figure"]
    declared = inspect.signature(draw_figure).parameters
    for key, value in changes.items():
        choice("parameter", key, values)
        # The annotation of a tuple of any length has three dots, as tuple[float, ...].
        same_length = "..." not in str(declared[key].annotation)
        values[key] = _checked(key, value, declared[key].default, same_length)
    with Progress(f"drawing {name}"):
        figure: Figure = draw_figure(**values)
    return figure


def _checked(name: str, value: Any, default: Any, same_length: bool) -> Any:
    """Return a value of the type of the default: a number, or a tuple of numbers.

    With ``same_length`` a tuple must be as long as the default. The figure itself
    checks the range of the numbers.
    """
    if not isinstance(default, tuple):
        return _checked_number(name, value, default, zero=True)
    is_series = isinstance(value, list | tuple) and len(value) > 0
    if not is_series or (same_length and len(value) != len(default)):
        count = len(default) if same_length else "one or more"
        raise argument_error(name, value, f"{count} numbers, like {default}")
    # Most series are of sizes or rates, which are positive. If 0 is allowed, the
    # default begins with it.
    allows_zero = default[0] == 0
    return tuple(
        _checked_number(name, entry, default[0], zero=allows_zero) for entry in value
    )


def _checked_number(name: str, value: Any, default: float, *, zero: bool) -> float:
    """Return an integer if the default is one, else a float.

    An integer may be 0 only if the default is 0. A float may be 0 only if ``zero`` is
    True.
    """
    if isinstance(default, int):
        return integer(name, value, minimum=min(1, default))
    return number(name, value, zero=zero)


def write(figure: Figure, folder: str | os.PathLike[str], name: str) -> list[Path]:
    """Write a figure as ``name``.pdf and .png into a folder.

    The folder is made if it does not exist. Each file is written as a whole or not at
    all. If the folder cannot be made or written to, a ValueError is raised.
    """
    check_folder(folder)
    checked_path(name, "name")
    paths = [Path(folder) / f"{name}{ending}" for ending in ENDINGS]
    for path in paths:
        save(figure, path)
    return paths


@Progress("drawing the film")
def animate(
    folder: str | os.PathLike[str], *, quick: bool = False, frames: int = 60
) -> list[Path]:
    """Write a film of the attention maps of a flat and a sharp run during training.

    The runs are those of the figure ``maps``, or with ``quick`` those of its quick
    version, which has fewer features. The frames are evenly spaced in ln(1 + t). The
    files are ``maps.gif``, and ``maps.mp4`` if ffmpeg is installed. A film has two
    frames or more.
    """
    load_whole("matplotlib.animation")
    from matplotlib import animation

    last_step = parameters("maps")["steps"][-1]
    chosen = parameters("maps", quick=quick)
    count = integer("frames", frames, minimum=2)
    check_folder(folder)
    steps = _log_spaced_steps(last_step, count)
    # The script of the figure has a function that computes the attention maps of each
    # run at some steps, by the name of the run.
    maps_by_run = _recipe("maps")["attention"](**chosen | {"steps": tuple(steps)})
    first_maps = {name: maps[:1] for name, maps in maps_by_run.items()}
    figure = draw_maps(first_maps, ["step 0"], size=MAP_SIZE)
    # pyplot would keep the figure, and a notebook would show it beside the film.
    release(figure)
    titled_axes = figure.axes[0]

    def show(frame: int) -> list[Any]:
        """Put the maps of a frame in the place of those of the frame before."""
        titled_axes.set_title(f"step {steps[frame]:,}", fontsize=9)
        images = [ax.images[0] for ax in figure.axes if ax.images]
        for image, maps in zip(images, maps_by_run.values(), strict=True):
            image.set_data(maps[frame])
        return images

    film = animation.FuncAnimation(figure, show, frames=len(steps), interval=PAUSE)
    writers: dict[str, animation.AbstractMovieWriter] = {
        ".gif": animation.PillowWriter(fps=FRAMES_PER_SECOND)
    }
    if animation.FFMpegWriter.isAvailable():
        writers[".mp4"] = animation.FFMpegWriter(fps=FRAMES_PER_SECOND)
    paths = []
    for ending, writer in writers.items():
        path = Path(folder) / f"maps{ending}"
        with replacing(path) as temporary:
            film.save(temporary, writer=writer, dpi=DPI)
        paths.append(path)
    return paths


def _log_spaced_steps(last: int, count: int) -> list[int]:
    """Return up to ``count`` distinct steps from 0 to ``last``, even in ln(1 + t)."""
    import numpy as np

    log_times = np.linspace(0.0, np.log1p(last), count)
    steps: list[int] = np.unique(np.rint(np.expm1(log_times)).astype(int)).tolist()
    return steps


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Make a folder, or refuse one that cannot be made or written to."""
    checked_path(folder, "out")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argument_error(
            "out", str(folder), f"a folder that can be made ({error.strerror})"
        ) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise argument_error("out", str(folder), "a folder that can be written to")


def recipes() -> tuple[dict[str, Recipe], list[str]]:
    """Return the recipe of each figure by name, and messages about faulty figures.

    A figure that is faulty, or whose name is taken, is left out: within ``left_out`` an
    error appends a message and does not go further.
    """
    plug_ins, _messages_of_plug_ins = discover()
    slots, messages = filled_slots("figures")
    by_name: dict[str, Recipe] = {}
    for plug_in in plug_ins:
        if not plug_in.figures:
            continue
        for path in plug_in.figures.glob("*.py"):
            with left_out(f"the figure {path.stem} of {plug_in.figures}", messages):
                _check_new(path.stem, by_name)
                by_name[path.stem] = path
    for family, figures in slots.items():
        with left_out(f"the slot figures of the family {family}", messages):
            for name, recipe in figures.items():
                _check_new(name, by_name)
                # The title fails if the recipe is no script or function.
                title(recipe)
                by_name[name] = recipe
    return dict(sorted(by_name.items())), messages


def _check_new(name: str, known: Mapping[str, Recipe]) -> None:
    """Refuse a name that another figure has."""
    if name in known:
        raise argument_error(
            "name", name, "another name: a figure of this name is known already"
        )


def _recipe(name: str) -> dict[str, Any]:
    """Return what the script of a figure defines, by name.

    The name ``figure`` stands for the function that draws the figure. If the recipe is
    a function itself, there is no other name.
    """
    by_name, _messages = recipes()
    recipe = by_name[choice("figure", name, by_name)]
    if callable(recipe):
        return {"figure": recipe}
    return runpy.run_path(str(recipe))


def title(recipe: Recipe) -> str:
    """Return the title of a figure from its recipe, a script or a function.

    It is the first line of the docstring, or the name of the recipe if there is none.
    """
    if callable(recipe):
        docstring = inspect.getdoc(recipe)
        name = str(getattr(recipe, "__name__", recipe))
    else:
        docstring = ast.get_docstring(
            ast.parse(Path(recipe).read_text(encoding="utf-8"))
        )
        name = Path(recipe).stem
    return (docstring or name).splitlines()[0]
