"""Random problems on which `descend(method="fast")` is held against every step taken, at every saved state."""

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

SEED = 20_000
TOLERANCE = 1e-7
# the last one where there are many features
KINDS = (
    "kernel",
    "cosine",
    "linear",
    "exchangeable",
)
PROBABILITIES = ("Dirichlet(1)", "Dirichlet(3)", "down to 1e-4", "uniform")


class Problem(NamedTuple):
    """A risk, a learning rate and a number of steps; in words, what it is."""

    words: str
    risk: icl.Risk
    eta: float
    steps: int


class Outcome(NamedTuple):
    """What a fast run claims, and what is true of it."""

    words: str
    skipped: bool
    truth: float
    estimate: float
    noted: bool
    count_off: float
    count_error: float

    @property
    def wrong(self) -> bool:
        """Whether the truth exceeds an estimate, or the tolerance without a note."""
        unsaid = self.truth > TOLERANCE and not self.noted
        return self.skipped and (
            self.truth > self.estimate or unsaid or self.count_off > self.count_error
        )


def problem(index: int, many: bool = False) -> Problem:
    """Draw a problem: task, probabilities, prompts, noise, coordinates, learning rate and number of steps.

    ``many`` features are 12 to 40 instead of 2 to 8, in class scores with N = ∞.
    """
    rng = np.random.default_rng([SEED, index])
    K = int(rng.integers(12, 41) if many else rng.integers(2, 9))
    kind = str(rng.choice(KINDS if many else KINDS[:3]))
    law = str(rng.choice(PROBABILITIES))
    N = (
        math.inf
        if many
        else float(rng.choice([math.inf, 3.0, 50.0], p=[0.6, 0.2, 0.2]))
    )
    noise = 0.0 if math.isinf(N) else float(rng.choice([0.0, 0.5]))
    coordinates = (
        "class"
        if many
        else str(rng.choice(["class", "embedding", "factored"], p=[0.5, 0.25, 0.25]))
    )
    d = int(rng.integers(2, K + 1))
    drawn = kind in ("cosine", "linear")
    features = (
        icl.Features.random(K, d, 0.3, seed=index)
        if drawn
        else icl.Features.simplex(K, 1.0)
    )
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
    limit = 2.0 / max(risk.sharpness(risk.initial), 1e-12)
    if coordinates == "factored":
        scale = float(10.0 ** rng.uniform(-3.0, -0.5))
        risk = icl.in_coordinates(
            inner, "factored", features.vectors, scale=scale, seed=index
        )
    share = float(10.0 ** rng.uniform(-2.0, math.log10(0.9)))
    steps = int(10.0 ** (3.0 + (2.0 if math.isinf(N) else 1.0) * rng.uniform() ** 1.5))
    words = (
        f"{index}: {kind}, K = {K}, p {law}, N = {N:g}, noise {noise:g}, {coordinates},"
        f" {share:.2g} of the limit, {steps} steps"
    )
    return Problem(words, risk, share * limit, steps)


def _probabilities(rng: np.random.Generator, law: str, K: int) -> np.ndarray:
    if law == "uniform":
        return np.full(K, 1.0 / K)
    if law == "down to 1e-4":
        weights = 10.0 ** rng.uniform(-4.0, 0.0, K)
        weights = np.maximum(weights / weights.sum(), 1e-4)
        return np.asarray(weights / weights.sum())
    return rng.dirichlet(np.full(K, 1.0 if law == "Dirichlet(1)" else 3.0))


def compare(case: Problem) -> Outcome:
    """Take every step, and skip; compare the scores at every saved step, and the first step below a loss."""
    risk = case.risk
    eta = case.eta
    steps = case.steps
    fast = icl.descend(risk, eta, steps=steps, method="fast")
    if fast.states_error is None:  # every step was taken
        return Outcome(case.words, False, 0.0, 0.0, False, math.nan, math.nan)
    exact = icl.descend(risk, eta, steps=int(fast.t[-1]))
    shared = np.intersect1d(exact.t, fast.t)
    ours = fast.states[np.isin(fast.t, shared)]
    theirs = exact.states[np.isin(exact.t, shared)]
    apart = [
        gain_at(risk, a) * float(np.abs(a - b).max())
        for a, b in zip(ours, theirs, strict=True)
    ]
    off, error = math.nan, math.nan
    lowest = np.minimum.accumulate(exact.loss)
    later = [
        i
        for i, t in enumerate(exact.t.tolist())
        if t >= 1000 and exact.loss[i] < lowest[i - 1]
    ]
    if later:
        index = later[steps % len(later)]
        high, low = exact.loss[index - 1 : index + 1].tolist()
        epsilon = low + 0.3 * (high - low)
        found = icl.descend(risk, eta, epsilon=epsilon, steps=steps, method="fast")
        first = exact.first(
            lambda state: state.loss <= epsilon, after=int(exact.t[index - 1])
        )
        if found.steps is not None and first is not None and found.error is not None:
            off = float(abs(found.steps - first))
            error = found.error
    return Outcome(
        case.words,
        True,
        max(apart),
        fast.states_error,
        "accuracy" in fast.notes,
        off,
        error,
    )


def outcome(index: int, many: bool = False) -> Outcome:
    """Draw a problem and compare."""
    return compare(problem(index, many))


def table(first: int, problems: int, workers: int, columns: bool, many: bool) -> None:
    """Print what a number of problems give, and every one in which a claim is wrong."""
    found: list[Outcome] = []
    numbers = [
        i
        for i in range(first, first + problems)
        if not columns or column_gradients_of(problem(i, many).risk)
    ]
    with ProcessPoolExecutor(
        workers, initializer=threadpool_limits, initargs=(1,)
    ) as pool:
        for each in pool.map(partial(outcome, many=many), numbers, chunksize=4):
            found.append(each)
            if each.wrong:
                print(f"WRONG: {each}", flush=True)
    skipped = [each for each in found if each.skipped]
    counted = [each for each in skipped if not math.isnan(each.count_off)]
    truth, estimate = (
        np.array([getattr(each, name) for each in skipped])
        for name in ("truth", "estimate")
    )
    print(
        f"{len(found)} problems, {len(skipped)} with steps skipped, the others are taken step by step"
    )
    print(f"estimate exceeded: {np.sum(truth > estimate)}")
    print(
        f"error above {TOLERANCE:g}: {np.sum(truth > TOLERANCE)}, of which without a note",
        end=" ",
    )
    print(sum(each.truth > TOLERANCE and not each.noted for each in skipped), end="; ")
    print(f"notes: {sum(each.noted for each in skipped)}")
    for name, values in (
        ("error", truth),
        ("estimate", estimate),
        ("error / estimate", truth / estimate),
    ):
        print(
            f"{name}: median {np.median(values):.2g}, 90 % {np.quantile(values, 0.9):.2g}, most {values.max():.2g}"
        )
    ratio = estimate[truth > 0.0] / truth[truth > 0.0]
    print(
        f"estimate / error: least {ratio.min():.3g}, median {np.median(ratio):.3g}, 90 % {np.quantile(ratio, 0.9):.3g}, most {ratio.max():.3g}"
    )
    print(
        f"step counts: {len(counted)}, other than the exact one: {sum(each.count_off > 0 for each in counted)}",
        end="; ",
    )
    print(
        f"error exceeded: {sum(each.count_off > each.count_error for each in counted)}",
        end="; ",
    )
    print(f"estimated at 1 or more: {sum(each.count_error >= 1.0 for each in counted)}")
