"""Results that are shown in a notebook or drawn in a figure.

A result names no module that draws. The package sets ``Displayable._display`` to the
module of `icl_theory.results` with the functions ``html`` and ``plot``, which is loaded
when a result is first shown. So the engine does not import what draws its results.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, ClassVar

from icl_theory.engine.interrupts import deferred

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Displayable:
    """A result that a notebook shows."""

    _display: ClassVar[str]

    def _repr_html_(self) -> str:
        text: str = self._module().html(self)
        return text

    def _module(self) -> Any:
        """Load the module that shows results when it is first needed."""
        with deferred():
            return importlib.import_module(self._display)


class Plottable(Displayable):
    """A result that a notebook shows and that has a figure."""

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the figure.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Axes to draw on. Without them a figure is made, in which a run has its
            attention below its loss.

        Returns
        -------
        matplotlib Axes
            The axes of the figure, those of the loss for a run.
        """
        axes: Axes = self._module().plot(self, ax)
        return axes
