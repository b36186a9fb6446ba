"""Results that are shown in a notebook or drawn in a figure.

The engine must not import the modules that draw its results. Therefore the package sets
``Displayable._display`` to the name of a module of `icl_theory.results`, which has the
functions ``html`` and ``plot`` and is loaded when a result is first shown.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, ClassVar

from icl_theory.engine.interrupts import deferred

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Displayable:
    """A result that a notebook shows."""

    # The name of the module that shows results, which the package sets.
    _display: ClassVar[str]

    def _repr_html_(self) -> str:
        """Return the HTML text that a notebook shows; notebooks call this method."""
        text: str = self._module().html(self)
        return text

    def _module(self) -> Any:
        """Return the module that shows results, loaded at its first use."""
        # Ctrl-C is put off: a module whose loading was interrupted may stay unusable.
        with deferred():
            return importlib.import_module(self._display)


class Plottable(Displayable):
    """A result that a notebook shows and that has a figure."""

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the figure.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Axes to draw on. By default a new figure is made. For a run this figure
            shows the attention below the loss.

        Returns
        -------
        matplotlib Axes
            The axes of the figure; for a run, the axes of the loss.
        """
        axes: Axes = self._module().plot(self, ax)
        return axes
