"""The paper's experiments: the models that it compares, trained side by side."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from icl_theory._validate import Array
from icl_theory.engine.descent import descend
from icl_theory.engine.pullback import Pullback, innermost
from icl_theory.engine.risk import Risk
from icl_theory.families.recall.sampled import Drawn, TransformerRisk
from icl_theory.families.recall.training import Training
from icl_theory.grids.workers import processes

FEW = 2_000_000  # words read by all runs together that are not worth processes of their own
MODELS: dict[str, dict[str, Any]] = {
    "λ, linear": {"model": "reparameterised"},
    "λ and v, softmax": {"model": "reparameterised", "attention": "softmax", "v": "trained"},
    "W, linear": {"model": "attention"},
    "all, linear": {"model": "full"},
    "all, softmax": {"model": "full", "attention": "softmax"},
}
# what models that see the same sentences may differ in
OWN = ("model", "attention", "gamma", "v", "kappa", "scale")


class Observed(NamedTuple):
    """Saved steps of a run, (T,), and what was observed there, (T,) each by name."""

    t: NDArray[np.int64]
    values: Mapping[str, Array]


@dataclass(frozen=True, eq=False)
class Together(Risk):
    """Models on the same sentences, which are drawn once; the loss is the sum.

    Where each takes steps of a length of its own, ``"ngd-blocks"``, the run of each is the one that it has alone.
    """

    models: Sequence[TransformerRisk | Pullback]  # with the same task, seed and batch

    @property
    def stochastic(self) -> bool:
        """Whether the steps see different sentences."""
        return self.models[0].stochastic

    @property
    def initial(self) -> Array:
        """The parameters of all models at the start."""
        return np.concatenate([model.initial for model in self.models])

    def blocks(self, array: Array) -> Sequence[Array]:
        """Views of the parameters, model by model."""
        return np.split(array, np.cumsum([model.initial.size for model in self.models])[:-1])

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Sum of the losses and its gradient."""
        drawn = innermost(self.models[0])[0].drawn(step)
        found = [_on(model, part, drawn) for model, part in zip(self.models, self.blocks(params), strict=True)]
        return sum(loss for loss, _ in found), np.concatenate([gradient for _, gradient in found])

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """What each model observes; its number comes first in the names."""
        return {
            f"{number} {name}": value
            for number, (model, part) in enumerate(zip(self.models, self.blocks(params), strict=True))
            for name, value in model.observe(part, step).items()
        }


def _on(model: TransformerRisk | Pullback, params: Array, drawn: Drawn) -> tuple[float, Array]:
    """Mean loss of sentences and its gradient."""
    core, inner = innermost(model, params)
    loss, gradient = core.on(inner, drawn)
    return loss, model.map.outward(params, gradient) if isinstance(model, Pullback) else gradient


def observe(problems: Sequence[Training]) -> list[Observed]:
    """Train models, in as many processes as there are processors where that pays.

    Models that see the same sentences and take steps of one length are trained together.
    What is observed comes in the same order, and is the same for any number of processes.
    """
    groups = [list(group) for _, group in itertools.groupby(problems, _sentences)]
    words = sum(problem.max_steps * problem.batch * problem.H for problem in problems)
    workers = min(len(os.sched_getaffinity(0)), len(groups)) if words > FEW * len(problems) else 1
    if workers == 1:
        found = [_observed(group) for group in groups]
    else:
        with processes(workers) as pool:
            found = list(pool.map(_observed, groups))
    return [run for runs in found for run in runs]


def _sentences(problem: Training) -> tuple[Any, ...]:
    """Return what models must have in common that are trained together, something unique where they must not be."""
    if problem.rule != "ngd" or problem.epsilon is not None or problem.above is not None:
        return (id(problem),)
    return tuple(getattr(problem, field.name) for field in fields(problem) if field.name not in OWN)


def _observed(problems: Sequence[Training]) -> list[Observed]:
    first = problems[0]
    with threadpool_limits(limits=1):  # the matrices are small
        if len(problems) == 1:
            run = first.simulate()
            return [Observed(run.t, dict(run.observed))]
        models: Any = [problem.risk() for problem in problems]
        run = descend(Together(models), float(first.eta), rule="ngd-blocks", steps=first.max_steps)
    return [
        Observed(run.t, {name: run.observed[f"{number} {name}"] for name in model.observe(model.initial)})
        for number, model in enumerate(models)
    ]
