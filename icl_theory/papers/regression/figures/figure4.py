"""
Figure 4: quadratic tasks on Gaussian inputs
============================================

Random second-degree polynomials on inputs from N(0, I), without a finite set of
features. Lines are gradient descent on the exact loss of infinitely long prompts.
Dashes are a sampled trainer on fresh prompts of N tokens: its loss on other prompts, as
the mean over independent runs with two standard errors. Dotted are the floors, the
lowest losses that any parameters have for N = ∞. L is the root mean square gradient. We
chose all values.

Flat and sharp are one curve at two scales of loss and time (lower left, for the largest
L of each). With a larger L training ends sooner, and at a higher floor. The excess over
the floor decays exponentially. With K features it decays like 1/t (lower right,
relative to its initial value, against time in units of its half-life).
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import BLUE, CYCLE, RED, Curve, Panel, draw_panels

QUICK = {"runs": 2, "N": 20, "steps": (60, 20), "test": 200}


def figure(
    *,
    flat: tuple[float, ...] = (0.6, 0.8, 1.0),
    sharp: tuple[float, ...] = (2.4, 3.2, 4.0),
    d: int = 2,
    curved: float = 0.5,
    N: int = 300,
    eta: float = 0.05,
    steps: tuple[int, int] = (500, 100),
    batch: int = 32,
    test: int = 1000,
    runs: int = 6,
    K: int = 10,
) -> Figure:
    """Draw the loss in both regimes, all losses on common scales, and the excess above
    the floor.
    """
    panels = []
    scaled = []
    for name, constants, last in zip(
        ("flat", "sharp"), (flat, sharp), steps, strict=True
    ):
        curves = []
        for L, colour in zip(constants, CYCLE[1:], strict=False):
            law = icl.regression.QuadraticLaw.lipschitz(d, L, curved)
            exact = icl.descend(icl.GaussianRisk(law), eta, steps=last)
            # a run ends where steps no longer change the loss
            steps_taken = np.append(exact.t, last)
            loss = np.append(exact.loss, exact.loss[-1])
            losses = []
            others = icl.regression.SampledGaussianRisk(
                law, N, test, runs, dataset=test
            )
            for seed in range(runs):
                run = icl.descend(
                    icl.regression.SampledGaussianRisk(law, N, batch, seed),
                    eta,
                    steps=last,
                )
                losses.append([others.evaluate(Q)[0] for Q in run.states])
            mean = Curve.mean("", run.t, losses, "--", colour)
            floor = Curve(
                "", [0, last], [exact.floor, exact.floor], style=":", colour=colour
            )
            curves += [
                Curve(f"$L = {L:g}$", steps_taken, loss, colour=colour),
                mean,
                floor,
            ]
            if constants[-1] == L:  # one of a regime: the others lie on it
                pace = eta * L**2
                colour = BLUE if name == "flat" else RED
                style = "o"
                every = np.unique(np.geomspace(1, len(loss) - 1, 16).astype(int))
                if name == "sharp":
                    # step 0 has no place on this axis
                    style = "-"
                    every = np.arange(1, len(loss))
                x = pace * np.array(mean.x)[1:]
                y = np.array(mean.y)[1:] / L**2
                names = (
                    ("sharp, exact", f"sharp, $N = {N}$")
                    if name == "sharp"
                    else ("", "")
                )
                scaled += [
                    Curve(
                        names[0],
                        pace * steps_taken[every],
                        loss[every] / L**2,
                        style=style,
                        colour=colour,
                    ),
                    Curve(names[1], x, y, style="--", colour=colour),
                ]
        note = (
            "lines: exact, $N = \\infty$\ndashes: sampled\ndots: floors"
            if name == "sharp"
            else ""
        )
        panels.append(Panel(curves, "step", "loss", name, note=note))
    note = f"blue: flat\ndots: exact\ndashes: $N = {N}$"
    title = f"both, rescaled: $L = {flat[-1]:g}$ and $L = {sharp[-1]:g}$"
    panels.append(
        Panel(
            scaled,
            r"$\eta L^2\,\times$ step",
            "loss / $L^2$",
            title,
            limits=(0.01, 1.0),
            note=note,
        )
    )

    law = icl.regression.QuadraticLaw.lipschitz(d, 1.0, curved)
    gaussian = icl.descend(icl.GaussianRisk(law), 0.01, steps=10**4)
    finite = icl.simulate(1.0, 1.0, 0.01, K=K, epsilon=1e-6)
    curves = []
    for run, label, colour in (
        (gaussian, "Gaussian", BLUE),
        (finite, f"$K = {K}$", RED),
    ):
        excess = run.observed.get("excess", run.loss) / (run.loss[0] - run.floor)
        half = min(run.t[excess <= 0.5], default=max(run.t[-1], 1))
        curves.append(Curve(label, run.t[1:] / half, excess[1:], colour=colour))
    panels.append(
        Panel(
            curves,
            "step / half-life",
            "excess / initial excess",
            "tails",
            limits=(1e-6, 1.5),
        )
    )
    return draw_panels(panels, columns=2)


if __name__ == "__main__":
    script(__file__)
