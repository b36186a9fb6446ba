"""Phases of sampled runs against those of the exact run: their lengths, and the growth of own scores in each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array, argument_error, instance, integer, prompt_length
from icl_theory.engine.comparison import Comparison, limit_of, mean_check
from icl_theory.engine.progress import Progress
from icl_theory.engine.pullback import core_params, core_risk
from icl_theory.engine.risk import Risk
from icl_theory.engine.scope import DESCENT_OR_FLOW
from icl_theory.engine.trajectory import Trajectory
from icl_theory.memory import check_fits
from icl_theory.regression.family import Regression
from icl_theory.regression.phases import TAIL_RATIO
from icl_theory.regression.risks.exchangeable import ExchangeableRisk, expanded
from icl_theory.regression.risks.population import PopulationRisk
from icl_theory.regression.risks.prompts import presence
from icl_theory.regression.tails import resting_loss, tail_limit


@dataclass(frozen=True)
class SampledPhases(Comparison):
    """Outcome of `sampled_phases`.

    The ``checks`` are of the times T_I, T_II, T_III and T_ε in steps, and of the growth
    of the mean own score per step in each phase.
    """

    exact: Trajectory  # on the same prompts


class _Path:
    """A run on K x K scores, exact or sampled, seen through the population risk."""

    def __init__(
        self, risk: PopulationRisk, scores: Callable[[int], Array], last: int
    ) -> None:
        self.risk = risk
        self.scores = scores
        self.last = last
        self.at = cache(self._at)

    def _at(self, t: int) -> tuple[Array, float]:
        """Attention of every query on prompts with its feature, (K,), and the loss."""
        seen = self.risk.observe(self.scores(t))
        loss = float(self.risk.features.probs @ seen["loss_per_query"])
        return np.asarray(
            seen["attention"] / presence(self.risk.features.probs, self.risk.N)
        ), loss

    def crossing(
        self, height: Callable[[int], float], *, last: bool = False, coarse: int = 48
    ) -> float:
        """First (or last) step, with fraction, at which a height falls to 0, or infinity.

        The height is evaluated at ``coarse`` steps, and then by bisection between two
        of them.
        """
        grid = np.unique(np.geomspace(1, self.last + 1, coarse).astype(int) - 1)
        above = np.array([height(int(t)) > 0.0 for t in grid])
        falls = np.flatnonzero(above[:-1] & ~above[1:])
        if not falls.size:
            return math.inf
        low, high = (int(t) for t in grid[falls[-1 if last else 0] :][:2])
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if height(middle) > 0.0 else (low, middle)
        return low + height(low) / (height(low) - height(high))


def sampled_length(N: int | None, default: int = 100) -> float:
    """Return the prompt length with which infinite prompts are replaced."""
    return prompt_length(default if N is None else N)


def sampled_phases(
    run: Trajectory,
    *,
    N: int | None = None,
    runs: int = 16,
    batch: int = 512,
    seed: int = 0,
) -> SampledPhases:
    r"""Compare the phases of independent sampled runs with those of the exact run.

    Each run is stochastic gradient descent on fresh prompts, drawn by their counts.
    Loss and attention are those of the population risk at its scores, without the noise
    of a batch. Phase I ends when the attention on prompts with the query's feature
    passes ½, Phase III begins when t·(loss − floor) falls to twice its limit for good,
    and the run ends when the loss passes ε. Times have fractions, by linear
    interpolation between two steps. The growth in a phase is that of the mean own score
    per step, between the steps at which the exact run enters and leaves the phase.

    Means over the runs are compared by Student's t. All rows together raise a false
    alarm once in a thousand times, provided that SGD follows gradient descent on
    average: its bias is of order eta/batch. See docs/theory.md, "Population against
    samples".

    Parameters
    ----------
    run : Trajectory
        Of `simulate`, in any coordinates, by gradient descent.
    N : int, optional
        Prompt length if the run has N = ∞, which cannot be sampled; 100 by default.
    runs : int
        Number of sampled runs, at least 3.
    batch, seed : int
        Prompts in a step, and seed of all runs.

    Returns
    -------
    SampledPhases
        With ``passed`` and ``to_markdown``.

    Raises
    ------
    ValueError
        The run is not of `simulate`, or does not reach ε with such prompts in 2 to
        100,000 steps.

    Examples
    --------
    >>> import icl_theory as icl
    >>> run = icl.simulate(2.0, 1.0, 2.0, K=4, epsilon=0.02)
    >>> found = icl.regression.sampled_phases(run, N=40, runs=4)
    >>> [check.name for check in found.checks][:4], found.passed
    (['T_I', 'T_II', 'T_III', 'T_ε'], True)
    """
    problem = instance("run", run, Trajectory, "a run").family
    if not isinstance(problem, Regression) or not DESCENT_OR_FLOW.applies(run):
        raise argument_error(
            "run",
            run.stop_reason,
            "one of simulate by gradient descent, not loaded from a file",
        )
    runs = integer("runs", runs, minimum=3)
    batch = integer("batch", batch, minimum=1)
    seed = integer("seed", seed, minimum=0)
    if math.isinf(problem.N):
        problem = problem.changed(N=sampled_length(N))
    elif N not in (None, problem.N):
        raise ValueError(f"N = {N!r} contradicts the run (N = {problem.N:g})")
    exact = problem.changed(method="auto", max_steps=100_000).simulate()
    if exact.steps is None or exact.steps < 2 or exact.phases is None:
        raise argument_error(
            "run",
            exact.stop_reason,
            "one that reaches its target in two steps or more with this N",
        )
    assert exact.risk is not None
    reduced = exact.risk if isinstance(exact.risk, ExchangeableRisk) else None
    whole = expanded(exact.risk)
    core = core_risk(whole)

    def inward(params: Array) -> Array:
        return core_params(whole, params)

    def exact_scores(t: int) -> Array:
        params = exact.at(t).params
        return inward(params) if reduced is None else reduced.scores(float(params))

    last = int(1.2 * exact.steps) + 1  # sampled runs may take a fifth longer
    check_fits(
        "run", f"of {exact.steps:,} steps", 8.0 * (last + 1) * exact.risk.initial.size
    )
    check_fits("runs", runs, 1e3 * runs)
    path = _Path(core, exact_scores, int(exact.t[-1]) + 1)
    attention, _ = path.at(exact.phases.I[1])
    # queries alike up to rounding are averaged
    slowest = attention <= attention.min() + 1e-9
    measure = partial(
        _measure, asked=slowest, exact=exact, tail=tail_limit(exact.risk, exact.eta)
    )
    expected = measure(path)
    sampled = []
    with Progress("", "sampled steps") as shown:
        shown.update(0, runs * last)
        for each in (
            np.random.SeedSequence(seed).generate_state(runs, dtype=np.uint32).tolist()
        ):
            states = run_states(
                problem.sampled(batch, each), exact.eta, last, shown.add
            )
            sampled.append(
                measure(_Path(core, lambda t, states=states: inward(states[t]), last))  # type: ignore[misc]
            )
    if not all(sampled):
        raise argument_error(
            "batch",
            batch,
            f"larger: a sampled run does not pass all phases in {last} steps",
        )
    limit = limit_of(1.0 / len(expected), runs - 1)
    checks = [
        mean_check(name, value, np.array([found[name] for found in sampled]), limit)
        for name, value in expected.items()
    ]
    note = f"{runs} sampled runs, {batch} prompts of N = {core.N:g} tokens a step"
    return SampledPhases(tuple(checks), note, exact)


def run_states(
    trainer: Risk, eta: float, last: int, add: Callable[[], None] = lambda: None
) -> Array:
    """Parameters at every step of stochastic gradient descent, (last + 1, ...)."""
    states = np.empty((last + 1, *np.shape(trainer.initial)))
    states[0] = trainer.initial
    for step in range(last):
        states[step + 1] = (
            states[step]
            - eta * trainer.evaluate(states[step], step)[1] / trainer.metric
        )
        add()
    return states


def _measure(
    path: _Path, asked: NDArray[np.bool_], exact: Trajectory, tail: float | None
) -> dict[str, float]:
    """Times and growth of a path in the phases of the exact run; nothing if it does not pass all of them."""
    phases: dict[str, tuple[int, int]] = (
        {} if exact.phases is None else exact.phases.present()
    )
    ends = [path.crossing(lambda t: 0.5 - float(path.at(t)[0][asked].mean()))]
    if tail is not None and "III" in phases:
        rest = resting_loss(exact.risk, exact.floor)
        ends.append(
            path.crossing(
                lambda t: t * (path.at(t)[1] - rest) - TAIL_RATIO * tail, last=True
            )
        )
    ends.append(path.crossing(lambda t: path.at(t)[1] - exact.epsilon))
    ends = ends[-len(phases) :]  # a run that ends in Phase I has only its end
    if math.inf in ends:
        return {}
    found = {
        f"T_{name}": length
        for name, length in zip(phases, np.diff([0.0, *ends]).tolist(), strict=True)
    }
    found["T_ε"] = ends[-1]
    for name, (first, last) in phases.items():
        rise = np.mean(np.diagonal(path.scores(last) - path.scores(first)))
        found[f"growth in {name}"] = float(rise) / (last - first)
    return found
