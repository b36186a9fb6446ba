"""
Softmax attention and its linear limit
======================================

Above: S₂, the mean of the sum of the squared weights of one softmax average, against
the number of tokens. The error of the average falls like S₂. Dotted: e^v/N, for scores
of the variance v. Below: the risk of in-context regression, for the head at which
training on infinitely long prompts ends, and for the best head.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from icl_theory.cli.figures import script
from icl_theory.papers.softmax_linear.attention import weight_moments
from icl_theory.papers.softmax_linear.regression import HeadRisk
from icl_theory.results.plots import CYCLE, Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
QUICK = {"points": 3, "risks": 2, "d": 2}


def figure(*, d: int = 5, points: int = 25, risks: int = 9) -> Figure:
    """Draw S₂ against N for three score variances, and the risks against N.

    S₂ = E Σp² is the mean of the sum of the squared weights. The risks are for tokens
    in ``d`` dimensions. The first panel has at most ``points`` values of N, and the
    second panel has ``risks`` values.
    """
    return draw_panels([_moments(points), _risks(d, risks)], size=(3.4, 2.4))


def _moments(points: int) -> Panel:
    """Return the panel of S₂ against the number N of tokens, with e^v/N for large N.

    There are at most ``points`` values of N.
    """
    lengths = np.unique(np.round(np.geomspace(1.0, 1e7, points)).astype(int))
    curves = []
    styles = ("-", "--", "-.")
    variances = (9.0, 4.0, 1.0)
    # CYCLE has more colours than there are variances.
    for variance, style, colour in zip(variances, styles, CYCLE, strict=False):
        squares = [weight_moments(N, variance).squares for N in lengths.tolist()]
        leading = np.exp(variance) / lengths
        label = f"$v={variance:.0f}$"
        curves.append(Curve(label, lengths, squares, style=style, colour=colour))
        # S₂ is at most 1, and its leading term is not drawn above 1.
        is_shown = leading < 1.0
        curves.append(
            Curve("", lengths[is_shown], leading[is_shown], style=":", colour=colour)
        )
    return Panel(curves, "tokens $N$", "$S_2$")


def _risks(d: int, points: int) -> Panel:
    """Return the panel of two risks against N, the number of pairs in a prompt.

    A head has the scores a xᵀΣ⁻¹x_i for the query x, and the output weight b. One curve
    is the risk of the head at which training in the limit N → ∞ ends. Another one is
    the least risk over all a and b at each N. A dotted curve shows 1/N.
    """
    lengths = np.round(np.geomspace(10.0, 1e6, points)).astype(int)
    end_risks = []
    least_risks = []
    for N in lengths.tolist():
        risk = HeadRisk(d, N)
        # For N → ∞ and Σ = I training ends at a = d^-¼ and b = d^¼, see
        # docs/theory/softmax-limit.md.
        end_risks.append(risk.risk(a=d**-0.25, b=d**0.25))
        least_risks.append(risk.minimum().risk)
    untrained_risk = 0.5 * d  # of the prediction 0
    curves = [
        Curve(
            "end in the limit", lengths, np.array(end_risks) / untrained_risk, style="-"
        ),
        Curve(
            "least",
            lengths,
            np.array(least_risks) / untrained_risk,
            style="--",
            colour=CYCLE[1],
        ),
        Curve("1/N", lengths, 1.0 / lengths, style=":", colour="0.4"),
    ]
    return Panel(curves, "tokens $N$", "risk / (d/2)", f"$d={d}$, $\\Sigma=I$")


if __name__ == "__main__":
    script(__file__)
