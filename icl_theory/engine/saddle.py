"""Whether descent that seems to stand still is on a saddle that it leaves later."""

from __future__ import annotations

import numpy as np

from icl_theory.engine.modes import Layout, modes_of
from icl_theory.engine.steps import Descent, Point

GROWTH = 0.1  # in e-folds: near a degenerate saddle growth becomes faster and faster
NOISE = 1e-11  # of the largest curvature: what rounding makes of none


class Saddle:
    """Asks the Hessian, where all of its modes can be found, whether a direction grows.

    Parameters
    ----------
    descent : Descent
        The map.
    """

    def __init__(self, descent: Descent) -> None:
        self._layout = Layout(descent)
        self._asked, self._rate = 0, -1.0

    def is_left(self, point: Point, steps: int) -> bool:
        """Whether some direction grows enough within so many steps; asked again where their number has doubled."""
        rows = self._layout.rows(point.params)
        if not self._layout.plain or rows.shape[1] > 1024 or not point.params.any():
            return False  # what rests at zero is moved by rounding alone
        if self._rate < 0.0 or point.step >= 2 * self._asked:
            modes = modes_of(self._layout, rows, np.zeros(len(rows)))
            least, most = (0.0, 0.0) if modes is None else (-float(modes.rates.min()), abs(float(modes.rates.max())))
            self._asked, self._rate = point.step, least if least > NOISE * most else 0.0
        return self._rate * steps > GROWTH
