"""
Linear attention: trained here, tested there
============================================

The best layer for each law of prompts (rows) is tested on prompts of every law
(columns). The numbers are the excess of its loss over the least loss on these prompts,
in percent of this least loss. A shift of the query alone costs nothing. A change of the
tokens, of the length, of the noise or of the tasks raises the loss.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import new_figure

# Arguments of `figure` for a quick drawing.
QUICK = {"d": 4}
# The nearest setting in the explorer, to which the gallery of figures links.
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

    The base law has the arguments d, decay, N and noise. Each of the other laws differs
    from it in one respect: the second moment of the query is diag(1, ..., d), the decay
    is ``other``, the length is ``short``, the noise is ``loud``, or the second moment
    of the tasks is diag(1, 1/2, ..., 1/d).
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
    # Column j has the tests on law j, and is divided by the floor of this law.
    percent = 100.0 * table.excess / table.floor
    fig = new_figure(4.4, 3.6)
    ax = fig.subplots()
    # Shades are logarithmic, from 0.1 % (white) to the largest number (black).
    shade = np.log10(np.maximum(percent, 0.1))
    lightest = -1.0  # the logarithm of 0.1 %
    ax.imshow(shade, cmap="Greys", vmin=lightest)
    # Text on the darker half of the shades is white.
    middle = 0.5 * (shade.max() + lightest)
    # The number in row i and column j stands at y = i and x = j.
    for (i, j), value in np.ndenumerate(percent):
        is_dark = shade[i, j] > middle
        ax.text(
            j,
            i,
            # Smaller numbers are rounding errors of an excess that is zero.
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
    return fig


if __name__ == "__main__":
    script(__file__)
