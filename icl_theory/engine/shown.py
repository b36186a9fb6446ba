"""What appears in notebooks and figures, by a function for each type in `icl_theory.results.representations`.

That module is loaded by name when it is first needed: the engine does not depend on how its results are drawn.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REPRESENTATIONS = "icl_theory.results.representations"


class Shown:
    """Shows itself in a notebook."""

    def _repr_html_(self) -> str:
        text: str = _representations().html(self)
        return text


class Drawn(Shown):
    """Shows itself in a notebook, and has a figure."""

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the figure.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Where to draw: of a run the loss, which has the attention below it on a figure that is made here.

        Returns
        -------
        matplotlib Axes
            The axes of the figure, of a run those of the loss.
        """
        axes: Axes = _representations().plot(self, ax)
        return axes


def _representations() -> Any:
    return importlib.import_module(REPRESENTATIONS)
