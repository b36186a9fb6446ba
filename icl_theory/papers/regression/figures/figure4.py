"""
Figure 4: quadratic tasks on Gaussian inputs
============================================

Random second-degree polynomials on inputs from N(0, I), without a finite set of
features. Lines show gradient descent on the exact loss of infinitely long prompts.
Dashes show a sampled trainer on fresh prompts of N tokens: its loss on other prompts,
as the mean over independent runs with two standard errors. Dotted lines show the
floors, the lowest losses that any parameters have for N = ∞. L is the root mean square
gradient of the polynomials. We chose the values of all parameters.

The losses of the flat and the sharp regime are one curve at two scales of loss and time
(lower left, for the largest L of each regime). With a larger L training ends sooner,
and at a higher floor. The excess over the floor decays exponentially. With K features
it decays like 1/t (lower right, relative to its initial value, against time in units of
its half-life).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory._validate import Array
from icl_theory.cli.figures import script
from icl_theory.results.plots import BLUE, CYCLE, RED, Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
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
    """Draw losses in both regimes, then rescaled to coincide, then the excess.

    ``flat`` and ``sharp`` have the L of each regime, and ``steps`` the number of steps
    in each. Inputs have ``d`` dimensions, and ``curved`` is the share of the quadratic
    part of the polynomials in L². Each of the ``runs`` sampled trainers takes ``batch``
    prompts of N tokens a step, and is tested on ``test`` prompts. The tail is compared
    with the tail for ``K`` features.
    """
    sampling = Sampling(N=N, batch=batch, test=test, runs=runs, eta=eta)
    panels = []
    scaled = []
    for name, constants, last_step in zip(
        ("flat", "sharp"), (flat, sharp), steps, strict=True
    ):
        curves = []
        # Leave out the first colour, black. The cycle has more colours than curves.
        for L, colour in zip(constants, CYCLE[1:], strict=False):
            law = icl.regression.QuadraticLaw.lipschitz(d, L, curved)
            losses = _losses(law, sampling, last_step)
            curves += _loss_curves(losses, L, colour, last_step)
        # The rescaled curves of a regime coincide. The curves of the last L, which is
        # the largest one of the regime, stand for all.
        is_sharp = name == "sharp"
        scaled += _scaled_curves(losses, L, sampling, is_sharp)
        note = ""
        if is_sharp:
            note = "lines: exact, $N = \\infty$\ndashes: sampled\ndots: floors"
        panels.append(Panel(curves, "step", "loss", name, note=note))
    panels.append(
        Panel(
            scaled,
            r"$\eta L^2\,\times$ step",
            "loss / $L^2$",
            f"both, rescaled: $L = {flat[-1]:g}$ and $L = {sharp[-1]:g}$",
            limits=(0.01, 1.0),
            note=f"blue: flat\ndots: exact\ndashes: $N = {N}$",
        )
    )
    panels.append(
        Panel(
            _tail_curves(icl.regression.QuadraticLaw.lipschitz(d, 1.0, curved), K),
            "step / half-life",
            "excess / initial excess",
            "tails",
            limits=(1e-6, 1.5),
        )
    )
    return draw_panels(panels, columns=2)


class Sampling(NamedTuple):
    """How the sampled trainers are run, and the learning rate of all runs."""

    N: int  # tokens of a prompt
    batch: int  # prompts of a step
    test: int  # prompts on which the loss is measured
    runs: int  # number of sampled trainers for each law
    eta: float  # learning rate


class Losses(NamedTuple):
    """Losses of one law along exact descent and sampled training.

    Attributes
    ----------
    exact_steps, exact : ndarray
        Steps and losses of exact descent.
    floor : float
        The lowest loss that any parameters have.
    sampled : Curve
        The mean loss of sampled trainers on test prompts.
    """

    exact_steps: Array
    exact: Array
    floor: float
    sampled: Curve


def _losses(
    law: icl.regression.QuadraticLaw, sampling: Sampling, last_step: int
) -> Losses:
    """Train on tasks of a law up to ``last_step``, and return the losses."""
    eta = sampling.eta
    exact = icl.descend(icl.GaussianRisk(law), eta, steps=last_step)
    # The trainers have the seeds from 0 to `runs` - 1, so that this seed draws other
    # prompts. With ``dataset`` these are the same at every evaluation.
    test_seed = sampling.runs
    test_risk = icl.regression.SampledGaussianRisk(
        law, sampling.N, sampling.test, test_seed, dataset=sampling.test
    )
    test_losses = []
    for seed in range(sampling.runs):
        trainer = icl.regression.SampledGaussianRisk(
            law, sampling.N, sampling.batch, seed
        )
        run = icl.descend(trainer, eta, steps=last_step)
        losses_of_run = []
        for Q in run.states:
            loss, _ = test_risk.evaluate(Q)
            losses_of_run.append(loss)
        test_losses.append(losses_of_run)
    return Losses(
        # A run ends early if steps no longer change the loss: draw it to the end.
        exact_steps=np.append(exact.t, last_step),
        exact=np.append(exact.loss, exact.loss[-1]),
        floor=exact.floor,
        # All trainers are saved at the same steps.
        sampled=Curve.mean("", run.t, test_losses, style="--"),
    )


def _loss_curves(losses: Losses, L: float, colour: str, last_step: int) -> list[Curve]:
    """Return the curves of one law: the exact and the sampled loss, and the floor."""
    floor = [losses.floor, losses.floor]
    return [
        Curve(f"$L = {L:g}$", losses.exact_steps, losses.exact, colour=colour),
        replace(losses.sampled, colour=colour),
        Curve("", [0, last_step], floor, style=":", colour=colour),
    ]


def _scaled_curves(
    losses: Losses, L: float, sampling: Sampling, is_sharp: bool
) -> list[Curve]:
    """Return curves of the loss divided by L², against ηL² times the step.

    Exact losses are a line in the sharp regime, and dots in the flat one, so that both
    can be seen where they coincide.
    """
    time_per_step = sampling.eta * L**2
    # All curves leave out step 0, because time 0 has no place on a logarithmic axis.
    count = len(losses.exact)
    if is_sharp:
        colour = RED
        style = "-"
        exact_label = "sharp, exact"
        sampled_label = f"sharp, $N = {sampling.N}$"
        shown = np.arange(1, count)
    else:
        colour = BLUE
        style = "o"
        exact_label = ""
        sampled_label = ""
        # At most sixteen dots: their indices among the saved losses grow by equal
        # factors.
        shown = np.unique(np.geomspace(1, count - 1, 16).astype(int))
    sampled_steps = np.array(losses.sampled.x)[1:]
    sampled_losses = np.array(losses.sampled.y)[1:]
    return [
        Curve(
            exact_label,
            time_per_step * losses.exact_steps[shown],
            losses.exact[shown] / L**2,
            style=style,
            colour=colour,
        ),
        Curve(
            sampled_label,
            time_per_step * sampled_steps,
            sampled_losses / L**2,
            style="--",
            colour=colour,
        ),
    ]


def _tail_curves(law: icl.regression.QuadraticLaw, K: int) -> list[Curve]:
    """Return the excess over the floor against time, for two problems.

    One problem has quadratic functions of Gaussian inputs, and the other has
    exchangeable tasks on K features. The unit of time is the half-life of the excess,
    so that any small learning rate will do.
    """
    eta = 0.01
    gaussian = icl.descend(icl.GaussianRisk(law), eta, steps=10**4)
    finite = icl.simulate(L=1.0, delta=1.0, eta=eta, K=K, epsilon=1e-6)
    gaussian_excess = gaussian.observed["excess"]
    finite_excess = finite.loss  # the floor is 0 for N = ∞
    curves = []
    for run, excess, label, colour in (
        (gaussian, gaussian_excess, "Gaussian", BLUE),
        (finite, finite_excess, f"$K = {K}$", RED),
    ):
        relative_excess = excess / (run.loss[0] - run.floor)
        # The first saved step with at most half of the initial excess. A run that does
        # not fall that far is drawn over its own length, at least one step.
        half_life = max(run.t[-1], 1)
        has_halved = relative_excess <= 0.5
        if has_halved.any():
            half_life = run.t[has_halved][0]
        # Time 0 has no place on a logarithmic axis.
        t = run.t[1:] / half_life
        curves.append(Curve(label, t, relative_excess[1:], colour=colour))
    return curves


if __name__ == "__main__":
    script(__file__)
