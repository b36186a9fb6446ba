"""In-context recall as a function of points in parameter space: columns in, columns out, for sweeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import choice, integer, number, refuse
from icl_theory.descent import RULES
from icl_theory.grid import Column
from icl_theory.recall.counts import Counts
from icl_theory.recall.population import RecallRisk
from icl_theory.recall.simulate import simulate
from icl_theory.recall.task import RecallTask
from icl_theory.whole import whole


@dataclass(frozen=True)
class RecallPoints:
    """What all points of a sweep have in common, and the function that evaluates a chunk of them.

    Parameters
    ----------
    epsilon : float
        Target excess of the training loss over its floor, nats.
    outputs : int
        Number of outputs.
    H : int
        Words of a sentence.
    count : int, optional
        So many bigrams of trigger and output in each sentence; the law of random sentences unless given.
    rule : {"ngd", "gd"}
        Normalised or plain gradient descent.
    hold_gamma : bool
        Hold the log-odds of noise at their optimum instead of training them.
    max_steps : int
        Largest number of steps.
    seed : int
        Seed of the sentences where M is finite: they depend on it and on the point's own values.

    Examples
    --------
    >>> import numpy as np
    >>> from icl_theory.recall.points import RecallPoints
    >>> RecallPoints(count=1).evaluate({"Q": np.array([4, 16])})["steps"].tolist()
    [44, 87]
    """

    epsilon: float = 1e-3
    outputs: int = 8
    H: int = 33
    count: int | None = None
    rule: str = "ngd"
    hold_gamma: bool = False
    max_steps: int = 10**6
    seed: int = 0

    inputs: ClassVar[tuple[Column, ...]] = (
        Column("eta", "f8", "", "learning rate"),
        Column("Q", "i8", "", "number of triggers, equally likely"),
        Column("V", "i8", "", "number of words"),
        Column("alpha", "f8", "", "probability that the next word is noise"),
        Column("M", "f8", "", "number of sentences trained on, inf for the population"),
        Column("attention", "U7", "", "linear, relu or softmax"),
    )
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            "steps", "i8", "step", "first step with training loss <= its floor + epsilon, -1 where not reached",
            "T_ε", r"T_\varepsilon", "steps",
        ),
        Column("last", "i8", "step", "where the run ended"),
        Column("loss", "f8", "nat", "training loss at the end"),
        Column("excess", "f8", "nat", "population loss above the Bayes risk at the end"),
        Column("bayes_risk", "f8", "nat", "entropy of the noise"),
    )  # fmt: skip
    defaults: ClassVar[Mapping[str, Any]] = {
        "eta": 0.5, "Q": 4, "V": 50, "alpha": 0.0, "M": np.inf, "attention": "linear",
    }  # fmt: skip

    def __post_init__(self) -> None:
        number("epsilon", self.epsilon, minimum=1e-12)
        choice("rule", self.rule, RULES)
        integer("max_steps", self.max_steps, minimum=1)
        integer("seed", self.seed, minimum=0)

    def evaluate(self, points: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Train at every point.

        Parameters
        ----------
        points : mapping of str to ndarray, each (n,)
            Some of ``inputs``, by name; those that are missing have their ``defaults``.

        Returns
        -------
        dict of str to ndarray, each (n,)
            The ``columns``. A function of the points alone, in any order and any chunks.

        Raises
        ------
        ValueError
            An unknown column, columns of different lengths, or a value out of range.
        """
        for name in points:
            choice("column", name, self.defaults)
        arrays = {name: np.atleast_1d(np.asarray(points.get(name, value))) for name, value in self.defaults.items()}
        try:
            table = dict(zip(arrays, np.broadcast_arrays(*arrays.values()), strict=True))
        except ValueError:
            raise refuse("points", {k: v.shape for k, v in arrays.items()}, "columns of one length") from None
        rows = [self._point(*(column[i] for column in table.values())) for i in range(len(table["eta"]))]
        return {
            column.name: np.array([row[i] for row in rows], dtype=column.dtype)
            for i, column in enumerate(self.columns)
        }

    def _point(self, eta: Any, Q: Any, V: Any, alpha: Any, M: Any, attention: Any) -> tuple[float, ...]:
        counts = None if self.count is None else Counts.fixed(self.count)
        task = RecallTask(
            integer("V", V, minimum=3), integer("Q", Q, minimum=1), self.outputs,
            alpha=alpha, counts=counts, H=self.H,
        )  # fmt: skip
        gamma = task.best_gamma if self.hold_gamma and task.alpha else None
        size, attention = None if np.inf == M else integer("M", M, minimum=1), str(attention)
        run = whole(
            simulate(
                eta=eta, task=task, attention=attention, gamma=gamma, M=size, seed=self._seed(task, size),
                rule=self.rule, above=self.epsilon, max_steps=self.max_steps,
            )
        )  # fmt: skip
        population = RecallRisk(task, attention, gamma, tied=task.alike and size is None)
        steps = -1 if run.steps is None else run.steps
        return steps, int(run.t[-1]), float(run.loss[-1]), population.excess(run.params), task.bayes_risk

    def _seed(self, task: RecallTask, M: int | None) -> int:
        """Mix the seed with the values of the point that its sentences depend on."""
        words = [self.seed, task.Q, task.V, int(np.float64(task.alpha).view(np.uint64)), M or 0]
        return int(np.random.SeedSequence(words).generate_state(1)[0])
