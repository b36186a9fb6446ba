"""Compare `descend(method="fast")` on random problems with runs that take every step.

The states of both runs are compared at every saved step, and so is the number of steps
to a target. `table` prints how often an estimated error is exceeded; the command
``python scripts/measurements.py skipping`` calls it.
"""

from __future__ import annotations

import math
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

import icl_theory as icl
from icl_theory import tasks
from icl_theory.engine.capabilities import column_gradients_of, gain_at

# Any seed would do. With another one, other problems are drawn.
SEED = 20_000
# A run whose estimated error is larger than this says so in a note.
TOLERANCE = 1e-7
# The kinds of tasks. Problems of few features have one of the first three.
KINDS = (
    "kernel",
    "cosine",
    "linear",
    "exchangeable",
)
# The laws of the probabilities of the features.
PROBABILITIES = ("Dirichlet(1)", "Dirichlet(3)", "down to 1e-4", "uniform")


class Problem(NamedTuple):
    """A risk that is trained at a learning rate for a number of steps."""

    words: str  # a description of the problem
    risk: icl.Risk
    eta: float
    steps: int


class Outcome(NamedTuple):
    """The errors of a fast run, and the errors that it estimates.

    Attributes
    ----------
    words : str
        The description of the problem.
    skipped : bool
        Whether the run skipped steps; otherwise there is nothing to compare.
    error, estimate : float
        The largest error of the scores at a saved step, and its estimate by the run.
    noted : bool
        Whether a note of the run says that it is not accurate to `TOLERANCE`.
    count_off, count_error : float
        The error of the number of steps to a target, and its estimate by the run. Both
        are NaN if no such number was compared.
    """

    words: str
    skipped: bool
    error: float
    estimate: float
    noted: bool
    count_off: float
    count_error: float

    @property
    def wrong(self) -> bool:
        """Whether an error exceeds its estimate, or the tolerance without a note."""
        lacks_note = self.error > TOLERANCE and not self.noted
        # NaN is not larger than NaN, so a count that was not compared is not wrong.
        return self.skipped and (
            self.error > self.estimate
            or lacks_note
            or self.count_off > self.count_error
        )


def problem(index: int, many: bool = False) -> Problem:
    """Draw a problem; the same index gives the same problem.

    Drawn are the task, the probabilities of the features, the length and the noise of
    prompts, the coordinates, the learning rate and the number of steps. With ``many``
    there are 12 to 40 features instead of 2 to 8, class scores are trained, and prompts
    are infinitely long, N = ∞.
    """
    rng = np.random.default_rng([SEED, index])
    K = int(rng.integers(12, 41) if many else rng.integers(2, 9))
    kind = str(rng.choice(KINDS if many else KINDS[:3]))
    law = str(rng.choice(PROBABILITIES))
    # The order of the draws from ``rng`` decides which problem an index gives.
    N = math.inf
    if not many:
        N = float(rng.choice([math.inf, 3.0, 50.0], p=[0.6, 0.2, 0.2]))
    noise = 0.0
    if math.isfinite(N):
        noise = float(rng.choice([0.0, 0.5]))
    coordinates = "class"
    if not many:
        names = ["class", "embedding", "factored"]
        coordinates = str(rng.choice(names, p=[0.5, 0.25, 0.25]))
    d = int(rng.integers(2, K + 1))
    # These tasks depend on the vectors of the features, so the vectors are random.
    if kind in ("cosine", "linear"):
        features = icl.Features.random(K, d, 0.3, seed=index)
    else:
        features = icl.Features.simplex(K, 1.0)
    features = type(features)(features.vectors, _probabilities(rng, law, K))
    values = rng.normal(size=(K, K))
    task: tasks.Task = {
        "kernel": tasks.KernelTask(values @ values.T),
        "cosine": tasks.RandomCosine(float(rng.uniform(0.5, 3.0))),
        "linear": tasks.Linear(float(rng.uniform(0.5, 3.0))),
        "exchangeable": tasks.Exchangeable(2.0),
    }[kind]
    inner = icl.PopulationRisk(features, task, N, noise)
    embedded = icl.in_coordinates(inner, "embedding", features.vectors)
    risk: icl.Risk = inner if coordinates == "class" else embedded
    # The largest stable learning rate. For factors it is that of their product, because
    # the sharpness at their small start would say nothing about the run.
    limit = 2.0 / max(risk.sharpness(risk.initial), 1e-12)
    if coordinates == "factored":
        scale = float(10.0 ** rng.uniform(-3.0, -0.5))
        risk = icl.in_coordinates(
            inner, "factored", features.vectors, scale=scale, seed=index
        )
    share = float(10.0 ** rng.uniform(-2.0, math.log10(0.9)))
    # From 10³ steps to 10⁵, or to 10⁴ with finite prompts, whose steps take longer. The
    # power 1.5 makes short runs, which take less time, more frequent.
    decades = 2.0 if math.isinf(N) else 1.0
    steps = int(10.0 ** (3.0 + decades * rng.uniform() ** 1.5))
    words = (
        f"{index}: {kind}, K = {K}, p {law}, N = {N:g}, noise {noise:g}, {coordinates},"
        f" {share:.2g} of the limit, {steps} steps"
    )
    return Problem(words, risk, share * limit, steps)


def _probabilities(rng: np.random.Generator, law: str, K: int) -> np.ndarray:
    """Draw the probabilities of K features from one of the laws `PROBABILITIES`."""
    if law == "uniform":
        return np.full(K, 1.0 / K)
    if law == "down to 1e-4":
        weights = 10.0 ** rng.uniform(-4.0, 0.0, K)
        weights = np.maximum(weights / weights.sum(), 1e-4)
        return np.asarray(weights / weights.sum())
    return rng.dirichlet(np.full(K, 1.0 if law == "Dirichlet(1)" else 3.0))


def compare(case: Problem) -> Outcome:
    """Train with skipped steps and with every step, and compare the two runs."""
    risk = case.risk
    fast = icl.descend(risk, case.eta, steps=case.steps, method="fast")
    # The estimate is None if no step was skipped.
    if fast.states_error is None:
        return Outcome(
            words=case.words,
            skipped=False,
            error=0.0,
            estimate=0.0,
            noted=False,
            count_off=math.nan,
            count_error=math.nan,
        )
    exact = icl.descend(risk, case.eta, steps=int(fast.t[-1]))
    saved_by_both = np.intersect1d(exact.t, fast.t)
    fast_states = fast.states[np.isin(fast.t, saved_by_both)]
    exact_states = exact.states[np.isin(exact.t, saved_by_both)]
    # The gain turns differences of the parameters into those of the scores.
    errors = [
        gain_at(risk, state) * float(np.abs(state - exact_state).max())
        for state, exact_state in zip(fast_states, exact_states, strict=True)
    ]
    count_off, count_error = _count_errors(case, exact)
    return Outcome(
        words=case.words,
        skipped=True,
        error=max(errors),
        estimate=fast.states_error,
        noted="accuracy" in fast.notes,
        count_off=count_off,
        count_error=count_error,
    )


def _count_errors(case: Problem, exact: icl.Trajectory) -> tuple[float, float]:
    """Return the error of a fast run's number of steps to a target, and its estimate.

    ``exact`` is the run that takes every step. Both results are NaN if there is no
    suitable target.
    """
    lowest = np.minimum.accumulate(exact.loss)
    # Saved steps from 1000 on, before which few steps are skipped, at which the loss is
    # lower than ever before.
    new_lows = [
        i
        for i, t in enumerate(exact.t.tolist())
        if t >= 1000 and exact.loss[i] < lowest[i - 1]
    ]
    if not new_lows:
        return math.nan, math.nan
    # One of them, as if at random.
    i = new_lows[case.steps % len(new_lows)]
    # A loss that is first reached between the saved steps i - 1 and i.
    high, low = exact.loss[i - 1 : i + 1].tolist()
    epsilon = low + 0.3 * (high - low)
    fast = icl.descend(
        case.risk, case.eta, epsilon=epsilon, steps=case.steps, method="fast"
    )
    first = exact.first(lambda state: state.loss <= epsilon, after=int(exact.t[i - 1]))
    if fast.steps is None or first is None or fast.error is None:
        return math.nan, math.nan
    return float(abs(fast.steps - first)), fast.error


def outcome(index: int, many: bool = False) -> Outcome:
    """Draw a problem, and compare its runs; worker processes call this function."""
    return compare(problem(index, many))


def table(first: int, problems: int, workers: int, columns: bool, many: bool) -> None:
    """Compare the runs of random problems, and print how good the estimates are.

    The problems are those with the indices from ``first`` on. With ``columns``, only
    problems whose loss is a sum over columns of the parameters are compared. ``many``
    is an argument of `problem`. Every problem with a wrong estimate is printed.
    """
    outcomes: list[Outcome] = []
    numbers = [
        i
        for i in range(first, first + problems)
        if not columns or column_gradients_of(problem(i, many).risk)
    ]
    # One thread of BLAS for each process, so that processes do not wait for another.
    with ProcessPoolExecutor(
        workers, initializer=threadpool_limits, initargs=(1,)
    ) as pool:
        for compared in pool.map(partial(outcome, many=many), numbers, chunksize=4):
            outcomes.append(compared)
            if compared.wrong:
                print(f"WRONG: {compared}", flush=True)
    skipped = [compared for compared in outcomes if compared.skipped]
    print(
        f"{len(outcomes)} problems, {len(skipped)} with steps skipped, the others are"
        " taken step by step"
    )
    _print_errors(skipped)
    _print_counts(skipped)


def _print_errors(skipped: list[Outcome]) -> None:
    """Print how the errors of the scores compare with their estimates."""
    error = np.array([compared.error for compared in skipped])
    estimate = np.array([compared.estimate for compared in skipped])
    noted = np.array([compared.noted for compared in skipped], dtype=bool)
    is_large = error > TOLERANCE
    print(f"estimate exceeded: {np.sum(error > estimate)}")
    print(
        f"error above {TOLERANCE:g}: {np.sum(is_large)}, of which without a note"
        f" {np.sum(is_large & ~noted)}; notes: {np.sum(noted)}"
    )
    for name, values in (
        ("error", error),
        ("estimate", estimate),
        ("error / estimate", error / estimate),
    ):
        print(
            f"{name}: median {np.median(values):.2g},"
            f" 90 % {np.quantile(values, 0.9):.2g}, most {values.max():.2g}"
        )
    ratio = estimate[error > 0.0] / error[error > 0.0]
    print(
        f"estimate / error: least {ratio.min():.3g}, median {np.median(ratio):.3g},"
        f" 90 % {np.quantile(ratio, 0.9):.3g}, most {ratio.max():.3g}"
    )


def _print_counts(skipped: list[Outcome]) -> None:
    """Print how the errors of numbers of steps compare with their estimates."""
    counted = [compared for compared in skipped if not math.isnan(compared.count_off)]
    off = np.array([compared.count_off for compared in counted])
    estimate = np.array([compared.count_error for compared in counted])
    print(
        f"step counts: {len(counted)}, other than the exact one: {np.sum(off > 0)};"
        f" error exceeded: {np.sum(off > estimate)};"
        f" estimated at 1 or more: {np.sum(estimate >= 1.0)}"
    )
