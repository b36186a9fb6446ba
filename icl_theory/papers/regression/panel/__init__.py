"""The panel of regression in the explorer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from icl_theory.families.parameters import Panel
from icl_theory.regression.closed.polynomials import QUOTIENTS, TERMS
from icl_theory.regression.closed.single_steps import SMALL_STEP
from icl_theory.regression.risks.stability import CURVATURE


def constants() -> dict[str, Any]:
    """Return the numbers that the JavaScript of the panel shares with this package.

    The numbers are the coefficients and the number of the polynomials that expand the
    Abel function, the longest step for which this expansion is used, and the constant κ
    of the bound on the curvature. The Abel function counts steps in closed form.
    """
    return {
        "quotients": QUOTIENTS,
        "terms": TERMS,
        "smallStep": SMALL_STEP,
        "curvature": CURVATURE,
    }


PANEL = Panel(
    Path(__file__).parent,
    ("closed.js", "rules.js", "picture.js", "panel.js"),
    constants,
)
