"""
Test tasks of another covariance
================================

Above: the mean test error against the number k of pretraining tasks, in d = 20
dimensions. Points are means over draws of the tasks; for each draw the error is exact.
Lines are the limit of many dimensions. Below: how far the mean error is above the
limit, against the dimension.
"""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure

from icl_theory.cli.figures import script
from icl_theory.papers.alignment.limit import AlignmentLimit
from icl_theory.papers.alignment.pretraining import Pretraining
from icl_theory.papers.alignment.statements import departures, power_law
from icl_theory.results.plots import CYCLE, Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
QUICK = {"d": 8, "draws": 20, "sizes": (4, 6)}


def figure(
    *, d: int = 20, draws: int = 300, sizes: tuple[int, ...] = (5, 7, 10, 14, 19)
) -> Figure:
    """Draw the errors against k/d, and their distance from the limit against d.

    The errors are for dimension ``d``, and the distances for the dimensions ``sizes``.
    ``draws`` is the number of draws in a mean.
    """
    panels = [_errors(d, draws), _departures(sizes, draws)]
    return draw_panels(panels, size=(3.4, 2.4))


def _errors(d: int, draws: int) -> Panel:
    """Draw test errors by the number of pretraining tasks, for three test spectra.

    Lines are the limit, and dots are means over draws in d dimensions.
    """
    spectrum = power_law(d, 1.0)
    tests = {
        "reverse": spectrum[::-1],
        "isotropic": np.ones(d),
        "same": spectrum,
    }
    numbers_of_tasks = np.unique(np.round(d * np.geomspace(0.1, 10.0, 9)).astype(int))
    means = []
    for k in numbers_of_tasks.tolist():
        problem = Pretraining(spectrum, N=2 * d, tasks=k, noise=0.1)
        # The mean over draws of the error for each test.
        means.append(problem.errors(list(tests.values()), draws).mean(axis=0))
    # The ratios κ = k/d at which the limit is drawn.
    diversities = np.geomspace(0.1, 10.0, 60)
    # ``context`` is N/d, which is 2 for the means above, too.
    limits = [
        AlignmentLimit(spectrum, context=2.0, diversity=kappa, noise=0.1)
        for kappa in diversities
    ]
    curves = []
    means_by_test = np.transpose(means)  # (test spectra, numbers of tasks)
    styles = ("-", "--", ":")
    # CYCLE has more colours than there are tests, so zip() must not be strict.
    for (name, test), mean_errors, style, colour in zip(
        tests.items(), means_by_test, styles, CYCLE, strict=False
    ):
        limit_errors = [limit.error(test) for limit in limits]
        curves.append(
            Curve(name, diversities, limit_errors, style=style, colour=colour)
        )
        # The line of this colour has the label, and the dots have none.
        dots = Curve("", numbers_of_tasks / d, mean_errors, style="o", colour=colour)
        curves.append(dots)
    return Panel(
        curves,
        "pretraining tasks per dimension, $k/d$",
        "test error",
        f"$d={d}$, $N={2 * d}$, $n=\\infty$",
        ("log", "linear"),
    )


def _departures(sizes: tuple[int, ...], draws: int) -> Panel:
    """Draw by how many per cent the error in finite dimensions exceeds the limit.

    There are curves for infinitely many prompts, and for a fit to n = 4d² prompts
    without and with the column γ of squared labels.
    """
    infinite = departures(sizes, draws, prompts=math.inf, squares=False)
    # A fit to prompts takes about a second at d = 19, so a fifth of the draws must do.
    fitted_draws = max(draws // 5, 2)
    # ``prompts`` is the ratio n/d².
    without_column = departures(sizes, fitted_draws, prompts=4.0, squares=False)
    with_column = departures(sizes, fitted_draws, prompts=4.0, squares=True)
    curves = [
        Curve("with $\\gamma$", sizes, 100.0 * with_column, style=":", colour=CYCLE[2]),
        Curve("$n=4d^2$", sizes, 100.0 * without_column, style="--", colour=CYCLE[1]),
        Curve("$n=\\infty$", sizes, 100.0 * infinite, style="-", colour=CYCLE[0]),
    ]
    return Panel(
        curves,
        "dimension $d$",
        "above the limit, %",
        "$N=k=2d$, same covariance",
        ("linear", "linear"),
    )


if __name__ == "__main__":
    script(__file__)
