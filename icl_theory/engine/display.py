"""How results show themselves: what computes knows nothing of how it is drawn."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, ClassVar

from icl_theory.engine.interrupts import deferred

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Displayable:
    """Shows itself in a notebook, by the functions ``html`` and ``plot`` of a module that the package names."""

    _display: ClassVar[str]

    def _repr_html_(self) -> str:
        text: str = self._loaded().html(self)
        return text

    def _loaded(self) -> Any:
        """Load the module when it is first needed."""
        with deferred():
            return importlib.import_module(self._display)


class Plottable(Displayable):
    """Shows itself in a notebook, and has a figure."""

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the figure.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Where to draw: of a run the loss, which has the attention below it on a
            figure that is made here.

        Returns
        -------
        matplotlib Axes
            The axes of the figure, of a run those of the loss.
        """
        axes: Axes = self._loaded().plot(self, ax)
        return axes
