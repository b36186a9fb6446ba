"""Base classes of risks and trainers that wrap an inner risk or trainer.

A change of coordinates (`engine.pullback`) and a factor of the loss (`engine.scaled`)
change the loss as a function of the parameters, but not the data: the inner risk or
trainer draws them. The wrappers of both modules inherit the methods that concern data
from the classes of this module.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from icl_theory.engine.risk import Risk
from icl_theory.engine.sampling import Trainer


class AroundRisk(Risk):
    """A risk that wraps an inner risk, the attribute ``risk``."""

    risk: Risk

    @property
    def stochastic(self) -> bool:
        """Whether the inner risk draws data."""
        return self.risk.stochastic

    @property
    def scheduled(self) -> bool:
        """Whether the loss of the inner risk changes from step to step."""
        return self.risk.scheduled


class AroundTrainer(Trainer[Any]):
    """A trainer whose inner trainer, the attribute ``risk``, draws the prompts."""

    risk: Trainer[Any]

    @property
    def batch(self) -> int:  # type: ignore[override]
        """Number of prompts in a step."""
        return self.risk.batch

    @property
    def seed(self) -> int:  # type: ignore[override]
        """Seed of the prompts."""
        return self.risk.seed

    def draw(self, rng: np.random.Generator, size: int) -> Any:
        """Let the inner trainer draw ``size`` prompts."""
        return self.risk.draw(rng, size)

    def prompts(self, step: int = 0) -> Any:
        """Return the prompts that the inner trainer draws for a step."""
        return self.risk.prompts(step)

    def generator(self, step: int) -> np.random.Generator:
        """Return the random generator that the inner trainer uses in a step."""
        return self.risk.generator(step)

    def draw_runs(self, rng: np.random.Generator, runs: int) -> list[Any]:
        """Let the inner trainer draw the batches of several runs.

        `Trainer.draw_runs` describes the list that is returned.
        """
        return self.risk.draw_runs(rng, runs)
