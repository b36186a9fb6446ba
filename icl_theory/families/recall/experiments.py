"""The paper's experiments: the models that it compares, trained side by side."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.families.recall.training import Training

FEW = 2_000_000  # words read by all runs together that are not worth processes of their own
MODELS: dict[str, dict[str, Any]] = {
    "λ, linear": {"model": "reparameterised"},
    "λ and v, softmax": {"model": "reparameterised", "attention": "softmax", "v": "trained"},
    "W, linear": {"model": "attention"},
    "all, linear": {"model": "full"},
    "all, softmax": {"model": "full", "attention": "softmax"},
}


class Observed(NamedTuple):
    """Saved steps of a run, (T,), and what was observed there, (T,) each by name."""

    t: NDArray[np.int64]
    values: Mapping[str, Array]


def observe(problems: Sequence[Training]) -> list[Observed]:
    """Train models, in as many processes as there are processors where that pays.

    Parameters
    ----------
    problems : sequence of Training
        What to train.

    Returns
    -------
    list of Observed
        In the same order, the same for any number of processes.

    Examples
    --------
    >>> import icl_theory as icl
    >>> from icl_theory.families.recall.experiments import observe
    >>> problem = icl.recall.Training(model="attention", V=12, triggers=2, outputs=3, H=12, max_steps=9)
    >>> float(observe([problem])[0].values["unseen_loss"][0]) > 2.4
    True
    """
    words = sum(problem.max_steps * problem.batch * problem.H for problem in problems)
    workers = min(len(os.sched_getaffinity(0)), len(problems)) if words > FEW * len(problems) else 1
    if workers == 1:
        return [_observed(problem) for problem in problems]
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(_observed, problems))


def _observed(problem: Training) -> Observed:
    run = problem.simulate()
    return Observed(run.t, dict(run.observed))
