"""Whether descent that seems to stand still is on a saddle that it leaves later."""

from __future__ import annotations

import numpy as np

from icl_theory.engine.blocks import Blocks
from icl_theory.engine.steps import Descent, Point


class Saddle:
    """Asks the Hessian, where all of its modes can be found, whether a direction grows.

    Parameters
    ----------
    descent : Descent
        The map.
    """

    def __init__(self, descent: Descent) -> None:
        self._blocks = Blocks(descent)
        self._asked, self._rate = 0, -1.0

    def is_left(self, point: Point, steps: int, growth: float = 0.1, noise: float = 1e-11) -> bool:
        """Whether some direction grows by ``growth`` e-folds within so many steps.

        So few are enough because growth near a degenerate saddle becomes faster and faster. Rounding makes growth
        of none: less than ``noise`` of the largest curvature counts as none. Asked again once steps have doubled.
        """
        if not self._blocks.solvable or not point.params.any():  # what rests at zero is moved by rounding alone
            return False
        if self._rate < 0.0 or point.step >= 2 * self._asked:
            rows = self._blocks.rows(point.params)
            modes = self._blocks.modes(rows, np.zeros(len(rows)))
            least, most = (0.0, 0.0) if modes is None else (-modes.rates.min(), abs(modes.rates.max()))
            self._asked, self._rate = point.step, float(least) if least > noise * most else 0.0
        return self._rate * steps > growth
