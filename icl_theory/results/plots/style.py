"""Colours, sizes and files of all figures.

The colours are the palette of Okabe and Ito, which the colour-blind can tell apart.
Matplotlib is imported at the first use, because the import takes long. `load_whole`
imports modules such that Ctrl-C cannot leave one of them half imported.
"""

from __future__ import annotations

import itertools
import os
import sys
from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_theory._validate import argument_error, flag, instance, number
from icl_theory.engine.interrupts import load_whole
from icl_theory.engine.progress import Progress
from icl_theory.files import checked_path, replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from icl_theory.engine.trajectory import Phases

# The largest value on a logarithmic axis. Margins and ticks beyond it must still fit
# into float64.
LARGEST = 1e200
# Step 0 has no place on a logarithmic axis of steps, and is drawn at this value.
FIRST_STEP = 0.5
# The name of a phase is written above it only if the phase is wider than this share of
# the axis. The names of two narrower phases side by side would overlap.
NAMED_PHASE = 0.05
# The colours of the palette that figures use by name
BLUE = "#0072B2"
ORANGE = "#E69F00"
GREEN = "#009E73"
RED = "#D55E00"
BLACK = "#000000"
# The colours of curves, and the colours of phases, in the order in which they are used
CYCLE = (BLACK, BLUE, RED, GREEN, ORANGE, "#CC79A7")
PHASE_COLOURS = (ORANGE, BLUE, GREEN, "#CC79A7", "#56B4E9", "#F0E442")
# Modules that matplotlib loads when it first draws.
DRAWING = (
    "numpy.ma",
    "matplotlib",
    "matplotlib.figure",
    "matplotlib.mathtext",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_mixed",
)
# Modules that matplotlib loads when it first writes a file with one of these endings.
# To write a PNG file, Pillow loads its plug-ins for five formats.
WRITING = {
    ".svg": ("matplotlib.backends.backend_svg",),
    ".pdf": ("matplotlib.backends.backend_pdf", "fontTools.subset"),
    ".png": tuple(
        f"PIL.{name}ImagePlugin" for name in ("Bmp", "Gif", "Jpeg", "Ppm", "Png")
    ),
}
# Parameters of matplotlib for all figures.
STYLE: Any = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 200,
    # Text stays text, which can be searched: SVG names the fonts, and PDF embeds them
    # as TrueType, which matplotlib calls type 42.
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}


def styled(settings: Any = None) -> AbstractContextManager[None]:
    """Return a context in which figures are drawn in the common style.

    ``settings`` are further parameters of matplotlib by name. A parameter that is also
    in `STYLE` has the value in ``settings``.
    """
    load_whole(*DRAWING)
    import matplotlib as mpl

    pyplot = _pyplot()
    if pyplot is not None:
        # This call loads the backend, which changes settings. Within the context below
        # the backend would be loaded at the first figure, and the end of the context
        # would undo these changes.
        pyplot.draw_if_interactive()
    return mpl.rc_context({**STYLE, **(settings or {})})


def axes(name: str, value: Any) -> Axes:
    """Return ``value`` if it is axes of matplotlib.

    Any other value raises a ValueError, which names the argument ``name``.
    """
    load_whole(*DRAWING)
    from matplotlib.axes import Axes

    return instance(name, value, Axes, "matplotlib Axes")


@Progress("writing the figure")
def save(drawn: Axes | Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure, or the figure of axes, whole or not at all.

    The ending of the path chooses the format.
    """
    figure = whole_figure(drawn)
    ending = checked_path(path).suffix.lower()
    load_whole(*DRAWING, *WRITING.get(ending, ()))
    supported_endings = [f".{name}" for name in figure.canvas.get_supported_filetypes()]
    if ending not in supported_endings:
        raise argument_error(
            "path", str(path), "a file name ending in " + ", ".join(supported_endings)
        )
    # Without a date, the same figure always gives the same file.
    undated = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
    with styled(), replacing(path) as temporary:
        figure.savefig(temporary, metadata=undated.get(ending))


def whole_figure(drawn: Axes | Figure) -> Figure:
    """Return the figure that some axes are part of, or the figure itself."""
    if getattr(drawn, "figure", None) is None:
        raise argument_error("drawn", drawn, "axes of a figure, or a figure")
    # The attribute ``figure`` of axes is a figure or a subfigure. A subfigure has the
    # whole figure as its attribute ``figure``, and a figure has itself.
    # get_figure(root=True) would say this better, but needs matplotlib 3.10.
    return drawn.figure.figure


def escape(text: str) -> str:
    """Return a text that matplotlib draws as it is, although it may have dollar signs.

    Matplotlib takes text between two dollar signs to be a formula.
    """
    return text.replace("$", r"\$")


@cache
def mathematics(tex: str, plain: str) -> str:
    """Return a symbol for a figure: its TeX if matplotlib can read it, else ``plain``.

    An empty ``tex`` gives ``plain``, too. Results are kept, because parsing is slow.
    """
    load_whole(*DRAWING)
    from matplotlib.mathtext import MathTextParser

    try:
        MathTextParser("path").parse(f"${tex}$")
    except ValueError:
        return escape(plain)
    return f"${tex}$" if tex else escape(plain)


def new_figure(width: float, height: float, *, returned: bool = False) -> Figure:
    """Return an empty figure of a width and a height in inches.

    If pyplot is in use, the figure belongs to pyplot: a notebook then shows the figure
    below the cell, and ``pyplot.show()`` shows it in a window. A notebook also shows a
    figure that is the value of a cell, so that a returned figure would appear twice.
    To prevent this, a caller that returns the figure to the user passes
    ``returned=True``: in a notebook the figure then does not belong to pyplot.
    """
    flag("returned", returned)
    load_whole(*DRAWING)
    # The limit refuses numbers that are so large that matplotlib fails later, with an
    # error that does not name them.
    width = number("width", width, maximum=1e4)
    height = number("height", height, maximum=1e4)
    pyplot = _pyplot()
    if pyplot is not None:
        # The backend of Jupyter, which shows figures below the cell.
        is_notebook = "inline" in pyplot.get_backend()
        if not (returned and is_notebook):
            return pyplot.figure(figsize=(width, height), layout="constrained")  # type: ignore[no-any-return]
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    # A figure needs a canvas to be saved. The constructor of the canvas sets
    # ``figure.canvas``, so the new object need not be kept here.
    FigureCanvasAgg(figure)
    return figure


def release(drawn: Axes | Figure) -> None:
    """Remove the figure from pyplot, so that pyplot neither keeps nor shows it.

    The figure itself can still be saved.
    """
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close(whole_figure(drawn))


def _pyplot() -> Any:
    """Return pyplot if it is imported or if this is IPython or Jupyter, else None.

    In IPython and Jupyter this function imports pyplot, which shows the figures there.
    """
    ipython = sys.modules.get("IPython")
    # Without IPython, a function that returns None takes the place of `get_ipython`.
    get_shell = getattr(ipython, "get_ipython", lambda: None)
    # An ordinary Python may have imported IPython, but then no shell of it is running.
    if get_shell() is not None:
        load_whole("matplotlib.pyplot")
    return sys.modules.get("matplotlib.pyplot")


def shade(phases: Phases | None, last: float, ax: Axes, labels: bool = True) -> None:
    """Shade the phases of a run of ``last`` steps on an axis of steps.

    With ``labels``, the name of each phase that is wide enough stands above it. Widths
    and the places of names are for a logarithmic axis. The method ``phases.present()``
    returns the first and the last step of each phase.
    """
    if phases is None:
        return
    # The axis goes from FIRST_STEP to the last step, but at least to step 2. Widths are
    # differences of logarithms.
    width_of_axis = np.log(max(2.0, last) / FIRST_STEP)
    intervals = phases.present().items()
    for (name, (begin, end)), colour in zip(intervals, itertools.cycle(PHASE_COLOURS)):
        # Steps are integers of any size, but NumPy cannot take the root of integers
        # beyond 2^63. So they become floats.
        first = max(float(begin), FIRST_STEP)
        last_of_phase = max(float(end), FIRST_STEP)
        ax.axvspan(first, last_of_phase, color=colour, alpha=0.13, linewidth=0)
        width = np.log(last_of_phase / first)
        if labels and width > NAMED_PHASE * width_of_axis:
            # The middle on a logarithmic axis is the geometric mean.
            middle = np.sqrt(first * last_of_phase)
            # By this transform x is a step, and y is a share of the height of the axes:
            # 1.01 is just above them.
            ax.text(
                middle,
                1.01,
                name,
                transform=ax.get_xaxis_transform(),
                ha="center",
                va="bottom",
            )


def level(ax: Axes, value: float, label: str, colour: str, style: str) -> None:
    """Draw a horizontal line at ``value``, with its label at the left.

    A value above `LARGEST` is drawn at `LARGEST`. ``colour`` and ``style`` are a colour
    and a line style of matplotlib.
    """
    value = min(value, LARGEST)
    ax.axhline(value, color=colour, linestyle=style, linewidth=0.9)
    # By these coordinates x is a share of the width of the axes, and y is data.
    ax.annotate(
        label,
        (0.0, value),
        xycoords=("axes fraction", "data"),
        xytext=(4, 2),
        textcoords="offset points",
        color=colour,
    )
