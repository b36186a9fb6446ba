"""
Where one layer on a Markov chain ends
======================================

Gradient flow of the embedding e and the weight w from many starts (dots), on two chains
with two states. A chain leaves its states with the probabilities p and q. Blue paths
end where the layer predicts the chain. Orange paths end at e = 0, where the layer
predicts the stationary law. For p + q < 1 (left) only starts with a very negative w are
trapped at e = 0. For p + q > 1 (right) all starts near 0 are trapped.
"""

from __future__ import annotations

import itertools

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import CYCLE, Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
QUICK = {"starts": 4, "steps": 10**4}


def figure(
    *,
    lazy: tuple[float, float] = (0.2, 0.3),
    switching: tuple[float, float] = (0.5, 0.8),
    starts: int = 7,
    steps: int = 10**6,
) -> Figure:
    """Draw the flow on two chains, ``lazy`` and ``switching``.

    Each chain has the probabilities (p, q). On each chain the flow starts from a grid
    of ``starts`` embeddings and ``starts`` weights, and takes at most ``steps`` steps.
    """
    panels = []
    for p, q in (lazy, switching):
        paths = []
        embeddings = np.linspace(0.2, 2.4, starts)
        weights = np.linspace(-2.0, 1.8, starts)
        for e, w in itertools.product(embeddings, weights):
            problem = icl.FixedChain(
                p=p, q=q, e=e, w=w, eta=0.1, method="flow", max_steps=steps
            )
            run = problem.simulate()
            excess = run.loss[-1] - run.floor
            # A prediction of the stationary law has the excess ``gap``, and a
            # prediction of the chain has none.
            is_bigram = excess < 0.5 * problem.risk().gap
            colour = CYCLE[1] if is_bigram else CYCLE[2]
            embedding, weight = run.states.T
            paths.append(Curve("", weight, embedding, colour=colour))
            # A dot at the start.
            paths.append(Curve("", weight[:1], embedding[:1], style="o", colour=colour))
        title = f"$p + q = {p + q:g}$"
        scales = ("linear", "linear")
        panels.append(Panel(paths, "weight w", "embedding e", title, scales))
    return draw_panels(panels, columns=2)


if __name__ == "__main__":
    script(__file__)
