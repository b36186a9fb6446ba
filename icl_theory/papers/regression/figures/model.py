"""
The model: from a prompt to a prediction
========================================

One prompt on its way through the model, with its numbers. Each token is one of K
features, with the value of an unknown function at this feature as its label; the query
asks for the value at one feature. The score of a token is an entry of the one matrix
that is trained. The softmax of the scores over the tokens is the attention, and the
prediction is the mean of the labels, weighted by attention. Before training all tokens
have the same attention; afterwards the tokens of the query's feature have nearly all of
it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import BLUE, RED, new_figure
from icl_theory.results.plots.style import styled

# Arguments of `figure` for a quick drawing.
QUICK = {"steps": 100}
# The size of a box, in units of the axes. A column is 1 wide.
BOX_WIDTH = 0.9
BOX_HEIGHT = 0.7


def figure(
    *, K: int = 4, N: int = 8, L: float = 2.0, eta: float = 4.0, steps: int = 1000
) -> Figure:
    """Draw the tokens of a prompt in columns, with scores and attention in rows below.

    Training takes ``steps`` steps. The prompt has N tokens of K features.
    """
    features = icl.Features.simplex(K, delta=1.0)
    run = icl.descend(
        icl.PopulationRisk(features, icl.tasks.Exchangeable(L)), eta, steps=steps
    )
    # The prompt has all features equally often, if N is a multiple of K, and the query
    # is the second feature.
    rng = np.random.default_rng(3)
    tokens = np.arange(N) % K
    values = np.round(rng.normal(size=K), 1)
    query = 1 % K  # counted from 0
    rng.shuffle(tokens)
    labels = values[tokens]
    # A state has the score of each feature (row) for each query (column).
    scores_before = run.states[0][tokens, query]
    scores_after = run.states[-1][tokens, query]
    # In the figure features count from 1.
    words = [f"$v_{token + 1}$\n{values[token]:+.1f}" for token in tokens]
    token_colours = [BLUE if token == query else "0.9" for token in tokens]
    with styled():
        # The size is in inches. `returned` keeps a notebook from showing the figure
        # twice.
        drawn = new_figure(8.0, 4.2, returned=True)
        # In these axes a column, one for each token, is 1 wide. Heights are chosen so
        # that the rows do not touch.
        ax = drawn.subplots()
        ax.set(xlim=(-2.2, N + 3.0), ylim=(-0.3, 6.6))
        ax.axis("off")
        _row(ax, 5.5, "prompt\n(feature, label)", words, token_colours)
        _query(ax, N, f"$v_{query + 1}$\n?", f"true value {values[query]:+.1f}")
        _stage(ax, 4.6, "before training", scores_before, labels)
        _stage(ax, 2.2, f"after {steps:,} steps", scores_after, labels)
    return drawn


def _query(ax: Any, N: int, words: str, true_value: str) -> None:
    """Draw the query to the right of the N tokens, and its true value at the bottom.

    ``words`` are in the box of the query, and ``true_value`` is the text at the bottom.
    """
    query_column = N + 0.5
    middle = query_column + 0.5 * BOX_WIDTH
    _row(ax, 5.5, "", [words], [RED], query_column)
    ax.text(middle, 6.5, "query", ha="center", va="top", color=RED)
    ax.text(middle, -0.1, true_value, ha="center", va="center", color=RED)


def _stage(ax: Any, top: float, title: str, scores: Any, labels: Any) -> None:
    """Draw rows of scores and attention of the tokens, and the prediction beside them.

    ``top`` is the height of the title.
    """
    N = len(scores)
    # The softmax of the scores. The largest is subtracted, so that nothing overflows.
    attention = np.exp(scores - scores.max())
    attention /= attention.sum()
    ax.text(N / 2, top + 0.05, title, ha="center", va="center", fontweight="bold")
    _row(
        ax,
        top - 0.95,
        "scores\n(trained)",
        [f"{score:.1f}" for score in scores],
        N * ["0.97"],
    )
    # Colours go from white to blue. A token with half of the attention or more has the
    # full colour.
    shades = [
        (1.0 - 0.6 * saturation, 1.0 - 0.4 * saturation, 1.0)
        for saturation in np.minimum(2.0 * attention, 1.0)
    ]
    _row(
        ax,
        top - 1.8,
        "attention\n(softmax)",
        [f"{weight:.3f}" for weight in attention],
        shades,
    )
    query_column = N + 0.5
    _row(ax, top - 1.4, "", [f"{attention @ labels:+.2f}"], ["1.0"], query_column)
    name = "prediction =\nattention · labels"
    middle = query_column + 0.5 * BOX_WIDTH
    ax.text(middle, top - 0.45, name, ha="center", va="center", fontsize=8)


def _row(
    ax: Any,
    bottom: float,
    name: str,
    words: list[str],
    colours: list[Any],
    first_column: float = 0.0,
) -> None:
    """Draw a row of boxes with words in them, and the name of the row on its left.

    ``bottom`` is the height at which the boxes begin. They are in the columns from
    ``first_column`` on. A colour such as "0.9" is a grey.
    """
    middle_height = bottom + 0.5 * BOX_HEIGHT
    ax.text(first_column - 0.2, middle_height, name, ha="right", va="center")
    for column, (word, colour) in enumerate(zip(words, colours, strict=True)):
        middle = first_column + column + 0.5 * BOX_WIDTH
        ax.bar(
            middle,
            height=BOX_HEIGHT,
            width=BOX_WIDTH,
            bottom=bottom,
            facecolor=colour,
            edgecolor="0.6",
            linewidth=0.6,
        )
        text_colour = "white" if colour in (BLUE, RED) else "black"
        ax.text(
            middle,
            middle_height,
            word,
            ha="center",
            va="center",
            fontsize=8,
            color=text_colour,
        )


if __name__ == "__main__":
    script(__file__)
