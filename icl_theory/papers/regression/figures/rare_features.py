"""
Four phases of a rare query
===========================

Half of all tokens have the same feature, the dominant one; all other features are rare.
Above: the attention of a query of a rare feature. Below: the query's scores, divided by
ln K. Dotted lines are the ends of its first three phases. The first phase ends when the
score of the dominant feature has fallen to -0.49 ln K, the second when the query's own
feature has as much attention as the dominant one, and the third when its own feature
has half of the attention. In the fourth phase the loss converges.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory._validate import Array
from icl_theory.cli.figures import script
from icl_theory.engine.trajectory import State
from icl_theory.results.plots import Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
QUICK = {"K": 50}
# There are two groups of features: the dominant feature alone, with the index 0, and
# all rare features, with this index. The curves are for a query of the second group.
RARE = 1
# The scores, and the attention, of a query are in this order. The legend has the names.
NAMES = ("own feature", "dominant feature", "all others")
OWN, DOMINANT = 0, 1
# The score of the dominant feature falls to about -½ ln K, where the query's own
# feature takes over. The first phase ends a little before that; see
# docs/theory/descent.md, "Imbalanced features".
LEVEL_OF_FALL = 0.49


def figure(
    *, K: int = 200, dominant: float = 0.5, eta: float = 1.0, epsilon: float = 3e-4
) -> Figure:
    """Draw the attention and the scores of a query of a rare feature.

    ``dominant`` is the share of the dominant feature in all tokens; K - 1 features
    share the rest.
    """
    problem = icl.regression.GroupedRegression(
        L=1.0,
        delta=math.sqrt(2.0),  # the variogram L²Δ²/2 is 1
        sizes=(1, K - 1),
        shares=(dominant, 1.0 - dominant),
        eta=eta,
        epsilon=epsilon,
    )
    run = problem.simulate()
    risk: Any = problem.risk()
    steps = np.linspace(0, int(run.t[-1]), 400).astype(np.int64)
    states = [run.at(step).params for step in steps.tolist()]
    # The attention has a row for each entry of NAMES. The scores, divided by ln K, have
    # rows for the first two entries: the scores of all others stay near 0.
    attention = np.transpose([risk.attention(params)[RARE] for params in states])
    scaled_scores = np.transpose([params[RARE, :2] / math.log(K) for params in states])
    # Time in units of K²/η steps.
    times = steps * eta / K**2
    ends = [step * eta / K**2 for step in _ends_of_phases(run, risk, K)]
    attention_panel = _panel(
        times, attention, ends, "attention", f"a rare query, $K={K}$"
    )
    score_panel = _panel(times, scaled_scores, ends, "score / $\\ln K$", "")
    return draw_panels([attention_panel, score_panel], size=(4.6, 2.0))


def _panel(
    times: Array, values: Array, ends: list[float], ordinate: str, title: str
) -> Panel:
    """Return a panel with a curve for each row of values, and the ends of phases.

    Times, and the ``ends`` of phases, are in units of K²/η steps.
    """
    # Scores have no row for the last name.
    curves = [
        Curve(name, times, curve) for name, curve in zip(NAMES, values, strict=False)
    ]
    limits = (float(values.min()) - 0.05, float(values.max()) + 0.05)
    # A vertical line at the end of each phase
    curves.extend(
        Curve("", [end, end], limits, style=":", colour="0.6") for end in ends
    )
    return Panel(
        curves,
        "steps $\\eta/K^2$",
        ordinate,
        title,
        scales=("linear", "linear"),
        limits=limits,
        legend=True,
    )


def _ends_of_phases(run: icl.Trajectory, risk: Any, K: int) -> list[int]:
    """Return the steps at which the phases of a rare query end, if they do."""

    def dominant_has_fallen(state: State) -> bool:
        """Whether the score of the dominant feature is at the level of its fall."""
        return bool(state.params[RARE, DOMINANT] <= -LEVEL_OF_FALL * math.log(K))

    def own_has_overtaken(state: State) -> bool:
        """Whether the query's own feature has as much attention as the dominant one."""
        attention = risk.attention(state.params)[RARE]
        return bool(attention[OWN] >= attention[DOMINANT])

    def own_has_half(state: State) -> bool:
        """Whether the query's own feature has half of its attention."""
        return bool(state.attention[RARE] >= 0.5)

    conditions = (dominant_has_fallen, own_has_overtaken, own_has_half)
    ends = [run.first(condition) for condition in conditions]
    return [end for end in ends if end is not None]


if __name__ == "__main__":
    script(__file__)
