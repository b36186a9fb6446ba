"""The figures of the papers and of this package, each made by a short script.

A plug-in, a package that adds families, may have a folder of scripts
(`icl_theory.families.PlugIn`). A family may add figures of its own in its slot
``figures``: scripts, or functions with a default for each parameter. A script or such a
function is called the recipe of the figure. A script defines a function ``figure``, and
may define QUICK, the values of parameters with which drawing takes seconds.
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
from icl_theory.families.plug_ins import discover, left_out
from icl_theory.families.registry import filled_slots
from icl_theory.files import checked_path, replacing
from icl_theory.results.plots import draw_maps, release, save

if TYPE_CHECKING:
    from matplotlib.animation import FuncAnimation
    from matplotlib.figure import Figure

# The path of a script, or a function.
Recipe = str | os.PathLike[str] | Callable[..., Any]
# The endings of the files that are written for each figure.
ENDINGS = (".pdf", ".png")
# A film of the default number of frames plays for five seconds.
FRAMES_PER_SECOND = 12
FILM_DOTS_PER_INCH = 120

__all__ = ["animate", "available", "draw", "parameters", "write"]
__getattr__ = _suggesting(__name__, __all__)


def __dir__() -> list[str]:
    return sorted(__all__)


def available() -> dict[str, str]:
    """Return the titles of all figures by name, in alphabetical order."""
    by_name, _messages = recipes()
    return {name: title(recipe) for name, recipe in by_name.items()}


def parameters(name: str, *, quick: bool = False) -> dict[str, Any]:
    """Return the parameters of a figure by name, with their default values.

    With ``quick`` the values are those with which drawing takes seconds. The texts of
    the papers from which we worked state no values, so we have chosen all of them.
    """
    flag("quick", quick)
    defined = _recipe(name)
    declared = inspect.signature(defined["figure"]).parameters
    values = {key: parameter.default for key, parameter in declared.items()}
    quick_values = defined.get("QUICK", {}) if quick else {}
    return values | quick_values


def draw(name: str, *, quick: bool = False, **changes: Any) -> Figure:
    """Compute a figure and draw it.

    Parameters
    ----------
    name : str
        One of `available`.
    quick : bool
        Whether to draw fewer or shorter runs, which takes seconds.
    **changes
        Values for the figure's `parameters`.

    Raises
    ------
    ValueError
        The name is unknown, the figure does not have a parameter, or a value is not
        allowed.
    KeyboardInterrupt
        Ctrl-C was pressed. A run that it interrupts is not drawn in part.

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
        # An annotation such as tuple[int, ...] says that a tuple may have any length.
        same_length = "..." not in str(declared[key].annotation)
        values[key] = _checked(key, value, declared[key].default, same_length)
    with Progress(f"drawing {name}"):
        figure: Figure = draw_figure(**values)
    return figure


def _checked(name: str, value: Any, default: Any, same_length: bool) -> Any:
    """Return a value converted to the type of the default, or refuse it.

    If the default is a tuple, the value must be a tuple or a list of numbers. With
    ``same_length`` it must have as many numbers as the default. The figure itself
    checks any further limits.
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
    """Return an integer if the default is an integer, and otherwise a float.

    An integer is at least 1, or at least the default if this is smaller. A float is
    positive, or may also be 0 with ``zero``.
    """
    if isinstance(default, int):
        return integer(name, value, minimum=min(1, default))
    return number(name, value, zero=zero)


def write(figure: Figure, folder: str | os.PathLike[str], name: str) -> list[Path]:
    """Write a figure as ``name``.pdf and .png into a folder.

    The folder is made if it does not exist, and refused if it cannot be made or written
    to. Each file is written as a whole or not at all. The paths of the files are
    returned.
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
    """Write a film of the attention maps of two runs during training.

    The runs are those of the figure ``maps``, one with flat and one with sharp tasks;
    with ``quick`` they have fewer features. The frames, at least two, show steps t that
    are evenly spaced in ln(1 + t). The files are ``maps.gif``, and ``maps.mp4`` if
    ffmpeg is installed. Their paths are returned.
    """
    # Ctrl-C is put off while matplotlib is loaded.
    load_whole("matplotlib.animation")
    import numpy as np
    from matplotlib import animation

    # The film ends at the last step of the full figure, even if ``quick`` is True.
    last = parameters("maps")["steps"][-1]
    run_parameters = parameters("maps", quick=quick)
    count = integer("frames", frames, minimum=2)
    check_folder(folder)
    evenly_spaced = np.expm1(np.linspace(0.0, np.log1p(last), count))
    # If there are many frames, the first ones are rounded to the same step. Each step
    # is kept once.
    steps = np.unique(np.rint(evenly_spaced).astype(int)).tolist()
    # The script of the figure defines the function `attention`. It returns, for each
    # run by name, the attention maps at all steps.
    film_parameters = run_parameters | {"steps": tuple(steps)}
    maps_of_runs = _recipe("maps")["attention"](**film_parameters)
    film = _film(maps_of_runs, steps)
    writers: dict[str, animation.AbstractMovieWriter] = {
        ".gif": animation.PillowWriter(fps=FRAMES_PER_SECOND)
    }
    if animation.FFMpegWriter.isAvailable():
        writers[".mp4"] = animation.FFMpegWriter(fps=FRAMES_PER_SECOND)
    paths = [Path(folder) / f"maps{ending}" for ending in writers]
    for path, writer in zip(paths, writers.values(), strict=True):
        with replacing(path) as temporary:
            film.save(temporary, writer=writer, dpi=FILM_DOTS_PER_INCH)
    return paths


def _film(maps_of_runs: Mapping[str, Any], steps: list[int]) -> FuncAnimation:
    """Return a film. Each frame shows the attention maps of all runs at one step.

    ``maps_of_runs`` has the maps of each run by its name, a map for each step.
    """
    from matplotlib import animation

    # The figure has one column, with a map of each run at the first step.
    first_maps = {name: maps[:1] for name, maps in maps_of_runs.items()}
    figure = draw_maps(first_maps, ["step 0"], size=1.9)
    # The film draws the figure itself, so pyplot need not keep it.
    release(figure)
    # The title of the first map names the step of the frame.
    first_axes, *_ = figure.axes

    def show(frame: int) -> list[Any]:
        """Change the title and the maps to those of a frame; return the maps."""
        first_axes.set_title(f"step {steps[frame]:,}", fontsize=9)
        # The axes of the colour bar have no image.
        images = [axes.images[0] for axes in figure.axes if axes.images]
        for image, maps in zip(images, maps_of_runs.values(), strict=True):
            image.set_data(maps[frame])
        return images

    return animation.FuncAnimation(figure, show, frames=len(steps))


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Make a folder, or refuse one that cannot be made or written to."""
    checked_path(folder, "out")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argument_error(
            "out", str(folder), f"a folder that can be made ({error.strerror})"
        ) from None
    # Making a file in a folder needs the permissions to write and to execute.
    if not os.access(folder, os.W_OK | os.X_OK):
        raise argument_error("out", str(folder), "a folder that can be written to")


def recipes() -> tuple[dict[str, Recipe], list[str]]:
    """Return the recipe of each figure by the name of the figure.

    The second result has a message for each figure that cannot be used.
    """
    # Messages about faulty plug-ins are left out: `registry.broken` returns them.
    plug_ins, _messages_of_plug_ins = discover()
    # For the name of each family that fills the slot ``figures``, its figures by name;
    # and a message for each family whose slot cannot be loaded.
    slots, messages = filled_slots("figures")
    by_name: dict[str, Recipe] = {}
    # `left_out` runs its block, and appends a message if the block raises an error. So
    # a faulty figure is missing, and all other figures can be used.
    for plug_in in plug_ins:
        if not plug_in.figures:
            continue
        for path in plug_in.figures.glob("*.py"):
            with left_out(f"the figure {path.stem} of {plug_in.figures}", messages):
                _check_new(path.stem, by_name)
                title(path)  # raises an error if the recipe cannot be read
                by_name[path.stem] = path
    for family, figures in slots.items():
        with left_out(f"the slot figures of the family {family}", messages):
            for name, recipe in figures.items():
                _check_new(name, by_name)
                title(recipe)
                by_name[name] = recipe
    return dict(sorted(by_name.items())), messages


def _check_new(name: str, by_name: Mapping[str, Recipe]) -> None:
    """Refuse the name of a figure if another figure has this name already."""
    if name in by_name:
        raise argument_error(
            "name", name, "another name: there is already a figure with this name"
        )


def _recipe(name: str) -> dict[str, Any]:
    """Return the objects that the script of a figure defines, by name.

    One of them is the function ``figure``, which draws the figure. If the recipe is a
    function, it is the only object, under the name ``figure``.
    """
    by_name, _messages = recipes()
    recipe = by_name[choice("figure", name, by_name)]
    return {"figure": recipe} if callable(recipe) else runpy.run_path(str(recipe))


def title(recipe: Recipe) -> str:
    """Return the first line of the docstring of a recipe, or its name if it has none.

    A script is not run.
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
