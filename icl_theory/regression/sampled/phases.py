"""Comparison of the phases of sampled runs with the phases of the exact run.

Two results are compared: the lengths of the phases, and the growth of *own scores* in
each phase. An own score is the score of tokens that show the query's feature.

Phase I ends when the attention on the query's feature passes ½. Phase III is the tail:
it begins when t (loss - L_∞) falls to twice its limit for good, with the number t of
steps and the loss L_∞ that the exact run approaches, usually the floor. Phase II lies
between the two. The *core* of a risk is the risk over K x K scores inside all changes
of coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

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

# Largest number of steps of the exact run. Sampled runs cannot skip steps, and draw a
# batch of prompts for each of them, so that their time grows with this number.
MOST_STEPS = 100_000
# Sampled runs may take a fifth more steps than the exact run, because a slow run
# reaches the target later. A longer allowance would cost time in every run.
LONGER = 1.2
# Number of steps at which a run is first evaluated to find the step at which a quantity
# falls to 0. With fewer steps a short fall and rise may be missed, but each further
# step costs an evaluation.
GRID_STEPS = 48
# Attentions that differ by less than this are equal up to rounding.
EQUAL_ATTENTION = 1e-9
# Rough memory of a sampled run, in bytes: its trainer and its measures.
BYTES_PER_RUN = 1e3


@dataclass(frozen=True)
class SampledPhases(Comparison):
    """Outcome of `sampled_phases`.

    The ``checks`` compare the times T_I, T_II, T_III and T_ε in steps, and the growth
    of the mean own score per step in each phase.
    """

    exact: Trajectory  # the exact run with the prompt length of the sampled runs


class _Point(NamedTuple):
    """The population risk at a step of a run."""

    # Attention of each query on its feature, as a mean over the prompts that contain
    # this feature, (K,).
    attention: Array
    loss: float


class _Path:
    """The K x K scores of an exact or sampled run, with the population risk at them.

    Parameters
    ----------
    risk : PopulationRisk
        The population risk.
    scores : callable
        Returns the scores, (K, K), at a step.
    last : int
        The last step.
    """

    def __init__(
        self, risk: PopulationRisk, scores: Callable[[int], Array], last: int
    ) -> None:
        self.risk = risk
        self.scores = scores
        self.last = last
        # Every step is evaluated only once: several quantities are read from it.
        self.at = cache(self._at)

    def _at(self, t: int) -> _Point:
        """Return the attention and the loss at a step."""
        observed = self.risk.observe(self.scores(t))
        probs = self.risk.features.probs
        attention = observed["attention"] / presence(probs, self.risk.N)
        loss = float(probs @ observed["loss_per_query"])
        return _Point(np.asarray(attention), loss)

    def crossing(self, height: Callable[[int], float], *, last: bool = False) -> float:
        """First step, with a fraction, at which ``height`` falls to 0.

        The function ``height`` is evaluated at `GRID_STEPS` steps, and then by
        bisection between two of these steps. The fraction comes from linear
        interpolation. If the function falls to 0 several times, ``last`` asks for the
        last time. If it does not fall from above 0 to 0, the result is infinite.
        """
        # The grid goes from step 0 to the last step. Its distances grow in proportion
        # to the step, and steps that occur twice after rounding are dropped.
        grid = np.unique(np.geomspace(1, self.last + 1, GRID_STEPS).astype(int) - 1)
        is_above = np.array([height(int(t)) > 0.0 for t in grid])
        falls = np.flatnonzero(is_above[:-1] & ~is_above[1:])
        if not falls.size:
            return math.inf
        interval = falls[-1] if last else falls[0]
        low = int(grid[interval])
        high = int(grid[interval + 1])
        # The height is above 0 at ``low``, and not above 0 at ``high``.
        while high - low > 1:
            middle = (low + high) // 2
            if height(middle) > 0.0:
                low = middle
            else:
                high = middle
        return low + height(low) / (height(low) - height(high))


def sampled_length(N: int | None, default: int = 100) -> float:
    """Return N, or the default, as the prompt length that replaces an infinite one."""
    return prompt_length(default if N is None else N)


def sampled_phases(
    run: Trajectory,
    *,
    N: int | None = None,
    runs: int = 16,
    batch: int = 512,
    seed: int = 0,
) -> SampledPhases:
    r"""Compare the phases of independent sampled runs with the exact run.

    Each run is stochastic gradient descent on fresh prompts, drawn by their counts.
    Loss and attention are evaluated by the population risk at the scores of the run,
    without the noise of a batch. Phase I ends when the attention, as a mean over the
    prompts that contain the query's feature, passes ½. Phase III begins when
    t·(loss − floor) falls to twice its limit for good. (If the exact run approaches a
    loss above the floor, this loss takes the place of the floor.) The run ends when the
    loss passes ε. Times have fractions, by linear interpolation between two steps. The
    growth in a phase is the increase of the mean own score per step, between the steps
    at which the exact run enters and leaves the phase.

    Means over the runs are compared by Student's t. All rows together raise a false
    alarm once in a thousand times, provided that SGD follows gradient descent on
    average: its bias is of order eta/batch. See docs/theory.md, "Population against
    samples".

    Parameters
    ----------
    run : Trajectory
        A run of `simulate`, in any coordinates, by gradient descent.
    N : int, optional
        Prompt length if the run has N = ∞, which cannot be sampled; 100 by default.
    runs : int
        Number of sampled runs, at least 3.
    batch, seed : int
        Prompts in a step, and seed of all runs.

    Returns
    -------
    SampledPhases
        The checks, with ``passed`` and ``to_markdown()``.

    Raises
    ------
    ValueError
        The run is not a run of `simulate`, or does not reach ε in 2 to 100,000 steps
        with prompts of this length.

    Examples
    --------
    >>> import icl_theory as icl
    >>> run = icl.simulate(2.0, 1.0, 2.0, K=4, epsilon=0.02)
    >>> found = icl.regression.sampled_phases(run, N=40, runs=4)
    >>> [check.name for check in found.checks][:4], found.passed
    (['T_I', 'T_II', 'T_III', 'T_ε'], True)
    """
    problem = _sampled_problem(run, N)
    runs = integer("runs", runs, minimum=3)
    batch = integer("batch", batch, minimum=1)
    seed = integer("seed", seed, minimum=0)
    exact = problem.changed(method="auto", max_steps=MOST_STEPS).simulate()
    if exact.steps is None or exact.steps < 2 or exact.phases is None:
        raise argument_error(
            "run",
            exact.stop_reason,
            "one that reaches its target in two steps or more with this N",
        )
    assert exact.risk is not None  # `simulate` returns a run whose risk is known
    last = int(LONGER * exact.steps) + 1
    # The parameters of a sampled run are kept at every step, as numbers of 8 bytes.
    n_parameters = exact.risk.initial.size
    check_fits("run", f"of {exact.steps:,} steps", 8.0 * (last + 1) * n_parameters)
    check_fits("runs", runs, BYTES_PER_RUN * runs)

    # The population risk over all scores, in the coordinates of the problem
    full_risk = expanded(exact.risk)
    core = core_risk(full_risk)
    # One step more than the run took: the loss of its last step is evaluated anew over
    # all scores, and rounding may leave it above the target.
    path = _Path(core, _exact_scores(exact, full_risk), last=int(exact.t[-1]) + 1)
    ruler = _Ruler.of(exact, path)
    expected = ruler.measure(path)
    seeds = np.random.SeedSequence(seed).generate_state(runs, dtype=np.uint32)
    trainers = [problem.sampled(batch, run_seed) for run_seed in seeds.tolist()]
    measures_of_runs = _measures_of_runs(trainers, exact.eta, last, full_risk, ruler)
    # A run that does not pass all phases has no measures, an empty dictionary.
    if not all(measures_of_runs):
        raise argument_error(
            "batch",
            batch,
            f"larger: a sampled run does not pass all phases in {last} steps",
        )
    # Every row has an equal share of the probability of a false alarm. A mean of n runs
    # has n - 1 degrees of freedom.
    limit = limit_of(share=1.0 / len(expected), freedom=runs - 1)
    checks = []
    for name, value in expected.items():
        measured = np.array([measures[name] for measures in measures_of_runs])
        checks.append(mean_check(name, value, measured, limit))
    note = f"{runs} sampled runs, {batch} prompts of N = {core.N:g} tokens a step"
    return SampledPhases(tuple(checks), note, exact)


def _sampled_problem(run: Trajectory, N: int | None) -> Regression:
    """Return the problem of a run, with ``N`` in place of an infinite prompt length."""
    # `instance` refuses anything but a run. A run that `simulate` has not made has
    # another family, or none.
    problem = instance("run", run, Trajectory, "a run").family
    if not isinstance(problem, Regression) or not DESCENT_OR_FLOW.applies(run):
        raise argument_error(
            "run",
            run.stop_reason,
            "one of simulate by gradient descent, not loaded from a file",
        )
    if math.isinf(problem.N):
        return problem.changed(N=sampled_length(N))
    if N not in (None, problem.N):
        raise ValueError(f"N = {N!r} contradicts the run (N = {problem.N:g})")
    return problem


def _measures_of_runs(
    trainers: Sequence[Risk], eta: float, last: int, full_risk: Risk, ruler: _Ruler
) -> list[dict[str, float]]:
    """Train on sampled prompts for ``last`` steps, and measure every run.

    ``full_risk`` is the population risk over all scores, in the coordinates of the
    trainers.
    """
    core = core_risk(full_risk)
    measures_of_runs = []
    with Progress(words="", unit="sampled steps") as progress:
        progress.update(done=0, total=len(trainers) * last)
        for trainer in trainers:
            states = run_states(trainer, eta, last, progress.add)
            path = _Path(core, _scores_of(states, full_risk), last)
            measures_of_runs.append(ruler.measure(path))
    return measures_of_runs


def _exact_scores(exact: Trajectory, full_risk: Risk) -> Callable[[int], Array]:
    """Return the scores, (K, K), of the exact run as a function of the step.

    ``full_risk`` is the population risk over all scores, in the coordinates of the run.
    """
    risk = exact.risk
    # An exchangeable run has a single parameter: the gap u, by which the score of the
    # query's feature exceeds all other scores.
    if isinstance(risk, ExchangeableRisk):
        return lambda t: risk.scores(float(exact.at(t).params))
    return lambda t: core_params(full_risk, exact.at(t).params)


def _scores_of(states: Array, full_risk: Risk) -> Callable[[int], Array]:
    """Return the scores, (K, K), of a sampled run as a function of the step.

    ``states`` has the parameters at every step, in the coordinates of ``full_risk``.
    """
    return lambda t: core_params(full_risk, states[t])


def run_states(
    trainer: Risk, eta: float, last: int, add: Callable[[], None] = lambda: None
) -> Array:
    """Parameters at every step of stochastic gradient descent, (last + 1, ...).

    The function ``add`` is called after each step, to show progress.
    """
    states = np.empty((last + 1, *np.shape(trainer.initial)))
    states[0] = trainer.initial
    for step in range(last):
        _loss, gradient = trainer.evaluate(states[step], step)
        # Descent in the metric of the risk, as in the exact run
        states[step + 1] = states[step] - eta * gradient / trainer.metric
        add()
    return states


class _Ruler(NamedTuple):
    """Measures when a path passes its phases, and how its own scores grow.

    The growth is measured in the phases of the exact run, so that a path that is late
    is compared over the same steps.
    """

    exact: Trajectory
    slowest: NDArray[np.bool_]  # mask of the queries that leave Phase I last, (K,)
    tail: float | None  # limit of t (loss - L_∞), None if it is unknown or 0

    @classmethod
    def of(cls, exact: Trajectory, path: _Path) -> _Ruler:
        """Return the ruler of an exact run, which is also given as a path."""
        # `sampled_phases` has refused exact runs without phases, and `simulate` returns
        # a run whose risk is known.
        assert exact.risk is not None
        assert exact.phases is not None
        _start, end_of_phase_1 = exact.phases.I
        attention = path.at(end_of_phase_1).attention
        # Several queries may be slowest up to rounding. Their attentions are averaged.
        slowest = attention <= attention.min() + EQUAL_ATTENTION
        return cls(exact, slowest, tail_limit(exact.risk, exact.eta))

    def measure(self, path: _Path) -> dict[str, float]:
        """Return times and growth by name; {} if the path does not pass all phases.

        A path does not pass a phase if `_ends` has an infinite time for its end.
        """
        exact = self.exact
        assert exact.phases is not None
        # The first and last step of each phase that the exact run has, by its name
        phases = exact.phases.present()
        ends = self._ends(path)
        if len(phases) == 1:
            # The exact run ends in Phase I. The last entry of ``ends``, the end of the
            # run, then ends this phase, and the attention need not pass ½.
            ends = ends[-1:]
        if math.inf in ends:
            return {}
        measures = {}
        lengths = np.diff([0.0, *ends]).tolist()
        for name, length in zip(phases, lengths, strict=True):
            measures[f"T_{name}"] = length
        measures["T_ε"] = ends[-1]
        for name, (first, last) in phases.items():
            own_score_rise = np.diagonal(path.scores(last) - path.scores(first))
            measures[f"growth in {name}"] = float(np.mean(own_score_rise)) / (
                last - first
            )
        return measures

    def _ends(self, path: _Path) -> list[float]:
        """Return the ends of Phase I, of Phase II if there is a tail, and of the run.

        There is a tail if the exact run has one. The ends are steps with fractions. An
        end that the path does not reach is infinite.
        """
        exact = self.exact
        tail = self.tail
        ends = []

        def attention_gap(t: int) -> float:
            # This is positive until the mean attention of the slowest queries is ½.
            return 0.5 - float(path.at(t).attention[self.slowest].mean())

        ends.append(path.crossing(attention_gap))
        if tail is not None and exact.phases is not None and exact.phases.III:
            # The loss that the run approaches, which may be above the floor
            loss_at_infinity = resting_loss(exact.risk, exact.floor)

            def tail_gap(t: int) -> float:
                # Phase III begins when this number falls to 0 for good.
                excess = path.at(t).loss - loss_at_infinity
                return t * excess - TAIL_RATIO * tail

            ends.append(path.crossing(tail_gap, last=True))
        ends.append(path.crossing(lambda t: path.at(t).loss - exact.epsilon))
        return ends
