"""
Linear attention: trained here, tested there
============================================

The best layer for each law of prompts (rows) is tested on prompts of every law
(columns). The numbers are the excess of its loss over the least loss on these prompts,
in percent of this least loss. A shift of the query alone costs nothing. Other tokens,
another length, noise, or other tasks do.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import new_figure

QUICK = {"d": 4}
EXPLORER = "linear-attention?d=8&decay=1&N=20&noise=0.5&test_noise=2&t=1000"


def figure(
    *,
    d: int = 8,
    decay: float = 1.0,
    other: float = 2.0,
    N: int = 20,
    short: int = 5,
    noise: float = 0.5,
    loud: float = 2.0,
) -> Figure:
    """Draw the excess on each law (columns) after training on each law (rows).

    The base law has the arguments d, decay, N and noise. Of the other laws, one has
    the decay ``other``, one the length ``short``, and one the noise ``loud``.
    """
    base = icl.LinearAttention(d=d, decay=decay, N=N, noise=noise)
    laws = {
        "base": base,
        "query": base.changed(query=np.arange(1.0, d + 1.0)),
        "tokens": base.changed(decay=other),
        "length": base.changed(N=short),
        "noise": base.changed(noise=loud),
        "tasks": base.changed(prior=1.0 / np.arange(1.0, d + 1.0)),
    }
    table = icl.linear_attention.shift_table(laws)
    # The floors of the laws belong to the columns, the laws of the tests.
    percent = 100.0 * table.excess / table.floor
    drawn = new_figure(4.4, 3.6)
    ax = drawn.subplots()
    # Shades are logarithmic, from 0.1 % (white) to the largest number (black).
    shade = np.log10(np.maximum(percent, 0.1))
    lightest = -1.0  # the logarithm of 0.1 %
    ax.imshow(shade, cmap="Greys", vmin=lightest)
    # Text on the darker half of the shades is white.
    middle = 0.5 * (shade.max() + lightest)
    for (i, j), value in np.ndenumerate(percent):
        is_dark = shade[i, j] > middle
        ax.text(
            j,
            i,
            # Smaller numbers are rounding of an excess that is zero.
            f"{value:.3g}" if value >= 1e-9 else "0",
            ha="center",
            va="center",
            color="w" if is_dark else "k",
            fontsize=8,
        )
    ticks = range(len(laws))
    ax.set_xticks(ticks, table.names)
    ax.set_yticks(ticks, table.names)
    ax.tick_params(labelsize=8)
    ax.set(xlabel="tested on", ylabel="trained on", title="excess, % of the least loss")
    return drawn


if __name__ == "__main__":
    script(__file__)
