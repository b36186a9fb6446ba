"""Compare update rules with the optimisers of PyTorch, on the same gradients.

    pip install torch
    python scripts/torch_rules.py

Each rule trains five risks for some steps. The optimiser of PyTorch starts from the
same parameters, and gets the gradients of the risk at its own parameters, in float64.
The largest difference between the final parameters is printed, relative to the largest
parameter. The script needs PyTorch, which the package itself never uses.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import icl_theory as icl
from icl_theory._validate import Array
from icl_theory.engine import (
    Adam,
    AdamW,
    Clipped,
    GradientDescent,
    HeavyBall,
    Nesterov,
    Rule,
    Scheduled,
)
from icl_theory.engine.rules.schedules import Cosine, Piecewise, StepDecay, WarmUp
from icl_theory.testing.rules import QuarticBowl

# The largest relative difference that is allowed. Rounding in 1000 steps is smaller,
# and a rule with another formula differs by far more.
ALLOWED = 1e-12


class Case(NamedTuple):
    """A rule, and the optimiser of PyTorch that should train as it does.

    Attributes
    ----------
    rule : Rule
        The rule of this package.
    optimiser : callable
        A function of the module torch, the parameters and the learning rate that
        returns the optimiser.
    schedule : callable, optional
        A function of the module torch and the optimiser that returns a schedule of the
        learning rate.
    clip : float, optional
        The largest norm of a gradient, to which longer ones are clipped.
    """

    rule: Rule
    optimiser: Callable[[Any, Any, float], Any]
    schedule: Callable[[Any, Any], Any] | None = None
    clip: float | None = None


def cases(steps: int) -> dict[str, Case]:
    """Return the cases by name, for runs of a number of steps."""

    def sgd(**options: Any) -> Callable[[Any, Any, float], Any]:
        """Return the function that makes the optimiser SGD with these options."""
        return lambda torch, params, lr: torch.optim.SGD(params, lr=lr, **options)

    def adam(name: str, **options: Any) -> Callable[[Any, Any, float], Any]:
        """Return the function that makes Adam or AdamW with these options."""
        return lambda torch, params, lr: getattr(torch.optim, name)(
            params, lr=lr, **options
        )

    # The following functions make the schedules of the rules below.

    def cosine(torch: Any, optimiser: Any) -> Any:
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=steps + 1)

    def step(torch: Any, optimiser: Any) -> Any:
        return torch.optim.lr_scheduler.StepLR(optimiser, step_size=100, gamma=0.7)

    def milestones(torch: Any, optimiser: Any) -> Any:
        return torch.optim.lr_scheduler.MultiStepLR(
            optimiser, milestones=[30, 200], gamma=0.5
        )

    def warm_up(torch: Any, optimiser: Any) -> Any:
        schedulers = torch.optim.lr_scheduler
        # From 1/50 of the rate in the first step to the whole rate in the 50th.
        first = schedulers.LinearLR(optimiser, start_factor=1 / 50, total_iters=49)
        then = schedulers.StepLR(optimiser, step_size=100, gamma=0.7)
        return schedulers.SequentialLR(optimiser, [first, then], milestones=[50])

    return {
        "gd": Case(GradientDescent(), sgd()),
        "heavy-ball": Case(HeavyBall(0.9), sgd(momentum=0.9)),
        "heavy-ball, decay": Case(
            HeavyBall(0.9, 0.01), sgd(momentum=0.9, weight_decay=0.01)
        ),
        "nesterov": Case(Nesterov(0.9), sgd(momentum=0.9, nesterov=True)),
        "nesterov, decay": Case(
            Nesterov(0.8, 0.01), sgd(momentum=0.8, nesterov=True, weight_decay=0.01)
        ),
        "adam": Case(Adam(), adam("Adam")),
        "adam, decay": Case(Adam(weight_decay=0.01), adam("Adam", weight_decay=0.01)),
        "adam, betas": Case(Adam(0.8, 0.99), adam("Adam", betas=(0.8, 0.99))),
        "adamw": Case(AdamW(), adam("AdamW")),
        "adam, clipped": Case(Clipped(Adam(), 0.05), adam("Adam"), clip=0.05),
        "gd, cosine": Case(
            Scheduled(GradientDescent(), Cosine(steps + 1)), sgd(), cosine
        ),
        "adam, step": Case(Scheduled(Adam(), StepDecay(100, 0.7)), adam("Adam"), step),
        "heavy-ball, milestones": Case(
            Scheduled(HeavyBall(0.9), Piecewise((30, 200), 0.5)),
            sgd(momentum=0.9),
            milestones,
        ),
        "adamw, warm-up": Case(
            Scheduled(AdamW(), WarmUp(50, StepDecay(100, 0.7))), adam("AdamW"), warm_up
        ),
    }


def risks() -> dict[str, tuple[icl.Risk, float]]:
    """Return risks by name, each with a learning rate.

    The metric of all of them is 1, because optimisers of PyTorch know no other.
    """
    features = icl.Features.simplex(5, 1.0)
    population = icl.PopulationRisk(features, icl.tasks.Linear(2.0), N=20, noise=0.3)
    infinite = icl.PopulationRisk(features, icl.tasks.Exchangeable(2.0))
    kinds = [
        icl.Kind(3, probs=np.array([0.3, 0.7]), values=np.array([0.0, 1.0])),
        icl.Kind(1, probs=np.ones(1), values=np.array([0.5])),
    ]
    embedded = icl.engine.in_coordinates(population, "embedding", features.vectors)
    return {
        "bowl": (QuarticBowl(), 0.02),
        "population, N = 20": (population, 0.05),
        "population, N = inf": (infinite, 0.05),
        "tokens": (icl.TokenRisk(kinds), 0.05),
        "embedding": (embedded, 0.02),
    }


def trained_by_torch(
    torch: Any, case: Case, risk: icl.Risk, eta: float, steps: int
) -> Array:
    """Return the parameters after ``steps`` steps of PyTorch's optimiser."""
    params = torch.nn.Parameter(
        torch.tensor(np.array(risk.initial), dtype=torch.float64)
    )
    optimiser = case.optimiser(torch, [params], eta)
    schedule = None if case.schedule is None else case.schedule(torch, optimiser)
    for _ in range(steps):
        _, gradient = risk.evaluate(params.detach().numpy())
        params.grad = torch.tensor(np.array(gradient), dtype=torch.float64)
        if case.clip is not None:
            torch.nn.utils.clip_grad_norm_([params], case.clip)
        optimiser.step()
        if schedule is not None:
            schedule.step()
    return np.array(params.detach().numpy())


def main() -> int:
    """Print the differences; return 1 if one is larger than `ALLOWED`, and else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--steps", type=int, default=1000, help="steps of each run [1000]"
    )
    steps = parser.parse_args().steps
    try:
        import torch  # type: ignore[import-not-found]
    except ImportError:
        print("PyTorch is not installed: pip install torch", file=sys.stderr)
        return 2
    worst = 0.0
    for name, case in cases(steps).items():
        for risk_name, (risk, eta) in risks().items():
            ours = icl.descend(risk, eta, steps=steps, rule=case.rule, give_up=False)
            theirs = trained_by_torch(torch, case, risk, eta, int(ours.t[-1]))
            difference = float(
                np.abs(ours.params - theirs).max() / np.abs(theirs).max()
            )
            worst = max(worst, difference)
            print(
                f"{name:24} {risk_name:20} {ours.t[-1]:5} steps   {difference:.1e}",
                flush=True,
            )
    print(f"largest relative difference {worst:.1e}, allowed {ALLOWED:g}")
    return int(worst > ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
