"""The exchangeable case in closed form: steps, positions, flow, polynomials, phases, and what they refuse."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from icl_theory.regression import phases
from icl_theory.regression.closed import abel, abel_function, flow, polynomials, runs
from icl_theory.regression.closed.abel import StepCounter
from tests.answers import Call
from tests.answers._runs import Asked, refused

INT64_MAX = 2**63 - 1
# a head and no single steps, both, single steps alone, long first steps, K = 2 and K = 3, and a frozen tail
POINTS = (
    (20, 0.443),
    (20, 0.01),
    (5, 1.7),
    (2, 0.2),
    (3, 0.6),
    (1000, 25.0),
    (50, 3e4),
    (7, 1e-19),
    (2, 1e30),
)
STEPS = np.array([0, 1, 2, 17, 400, 10**5, 10**12, INT64_MAX])
GOALS = np.array([-1.0, 0.0, 1e-3, 0.5, 2.0, 4.0, 7.5, 12.0, 25.0, 40.0])


def counted(K: Any, c: Any) -> dict[str, Any]:
    counter = StepCounter(K, c)
    steps = STEPS.reshape(-1, *(1,) * len(counter.shape))
    goals = GOALS.reshape(-1, *(1,) * len(counter.shape))
    return {
        "K": counter.K,
        "c": counter.c,
        "shape": counter.shape,
        "position": counter.position(steps),
        "steps_to": counter.steps_to(goals),
    }


def counters() -> Asked:
    for K, c in POINTS:
        yield f"K = {K}, c = {c}", partial(counted, K, c)
    yield "several", partial(counted, [K for K, _ in POINTS], [c for _, c in POINTS])
    yield (
        "several of one K",
        partial(counted, 20, np.geomspace(0.01, 1e3, 9).reshape(3, 3)),
    )
    yield "none with single steps", partial(counted, [20, 300], [0.01, 0.02])
    yield (
        "one goal for each",
        lambda: StepCounter([5, 20, 90], 0.4).steps_to([3.0, 4.0, 5.0]),
    )
    yield (
        "one number for each",
        lambda: StepCounter([5, 20, 90], 0.4).position(np.array([30, 400, 5000])),
    )
    yield (
        "between steps",
        lambda: [
            StepCounter(20, 2.3).steps_to(StepCounter(20, 2.3).position(n) + shift)
            for n in (3, 40, 10**7)
            for shift in (-1e-9, 0.0, 1e-9)
        ],
    )
    yield from refused(
        {
            "K": partial(StepCounter, 1, 0.1),
            "K large": partial(StepCounter, 2e9, 0.1),
            "c": partial(StepCounter, 5, -0.1),
            "c not a number": partial(StepCounter, 5, float("nan")),
            "K and c": partial(StepCounter, [5, 6], [0.1, 0.2, 0.3]),
            "n": lambda: StepCounter(5, 0.1).position(-1),
            "n word": lambda: StepCounter(5, 0.1).position("three"),
            "n, shape": lambda: StepCounter([5, 6], 0.1).position(np.array([1, 2, 3])),
            "u": lambda: StepCounter(5, 0.1).steps_to(float("nan")),
            "u, shape": lambda: StepCounter([5, 6], 0.1).steps_to([1.0, 2.0, 3.0]),
            "c zero": lambda: StepCounter(5, 0.0).steps_to(1.0),
        }
    )


def series() -> Asked:
    for form in ("a", "s"):
        yield f"polynomials in {form}", partial(polynomials.abel_polynomials, form)
        yield f"quotients in {form}", partial(polynomials.QUOTIENTS.get, form)
        yield (
            f"integers in {form}",
            lambda form=form: [
                [p[:3], str(d)] for p, d in polynomials.POLYNOMIALS[form]
            ],
        )
        yield (
            f"series in {form}",
            partial(
                abel_function.series, np.array([0.1, 2.0]), np.array([0.05, 0.01]), form
            ),
        )
        yield (
            f"series of one in {form}",
            partial(abel_function.series, np.array([0.3]), np.array([0.04]), form),
        )
    yield "polynomials in x", partial(polynomials.abel_polynomials, "x")
    yield "constants", lambda: [abel.ROUNDING, abel.SMALL_STEP, polynomials.TERMS]
    here, there = (
        flow.Place.of(np.array([0.3, 2.0]), 9.0),
        flow.Place.of(np.array([1.1, 6.0]), 9.0),
    )
    yield "leading", partial(abel_function.leading, np.array([0.1, 2.0]), here, there)
    yield "slope", partial(abel_function.slope, np.array([0.1, 2.0]), there)


def places() -> Asked:
    place = flow.Place.of(
        np.array([0.0, 0.5, 3.0, 30.0]), np.array([2.0, 5.0, 20.0, 7.0])
    )
    yield "place", lambda: place
    yield "weighted", partial(flow.Place.weighted, 1.5, 0.25)
    yield "at some", partial(place.at, np.array([2, 0]))
    yield "at a slice", partial(place.at, slice(1, 3))
    yield (
        "small",
        lambda: [place.small("a"), place.small("s"), place.growth(), place.step(0.3)],
    )
    yield (
        "attention pair",
        lambda: [
            flow.attention_pair(u, 9)
            for u in (-800.0, -2.0, 0.0, 0.4, 5.0, 45.0, 800.0)
        ],
    )
    yield (
        "loss curve",
        partial(
            flow.loss_curve, np.array([0.0, 1.0, 50.0]), 1.7, np.array([3.0, 9.0, 20.0])
        ),
    )
    yield (
        "flow difference",
        partial(
            flow.flow_difference, np.array([0.1, 2.0]), np.array([3.0, 2.0 + 1e-9]), 9.0
        ),
    )
    yield (
        "flow time",
        lambda: [
            flow.flow_time(a, K)
            for a, K in ((0.05, 20), (0.3, 20), (1 - 1e-12, 7), (0.5, 2))
        ],
    )
    yield "flow time at the edge", partial(flow.flow_time, 1.0 / 3.0 * (1.0 - 1e-15), 3)
    yield from refused(
        {
            "flow time, small a": partial(flow.flow_time, 0.049, 20),
            "flow time, a = 1": partial(flow.flow_time, 1.0, 20),
            "flow time, K": partial(flow.flow_time, 0.9, 1),
            "flow time, K large": partial(flow.flow_time, 0.9, 10**9 + 1),
            "flow time, a": partial(flow.flow_time, "half", 20),
        }
    )


def whole_runs() -> Asked:
    K = np.array([20.0, 5.0, 2.0, 300.0, 20.0, 9.0])
    gamma, eta = (
        np.array([2.0, 0.3, 1.0, 8.0, 2.0, 1e-3]),
        np.array([4.0, 0.5, 1.0, 30.0, 4.0, 1e-9]),
    )
    epsilon = np.array([1e-9, 1e-3, 1e-2, 1e-5, 5.0, 1e-6])
    c = runs.step_constant(eta, 1.0, gamma, K)
    tail = np.array([phases.tail_start(int(k)) for k in K])
    yield (
        "closed runs",
        lambda: runs.closed_runs(StepCounter(K, c), gamma, epsilon, INT64_MAX, tail),
    )
    yield (
        "closed runs, few steps",
        lambda: runs.closed_runs(StepCounter(K, c), gamma, epsilon, 1000, tail),
    )
    start = 0.5 * 2.0 * 19 / 20
    close = start * np.array([1.0, 1.0 + 1e-13, 1.0 - 1e-13, 1.0 - 1e-9, 0.6, 0.5])
    yield (
        "near the start",
        lambda: runs.closed_runs(
            StepCounter(np.full(6, 20.0), np.full(6, 0.4)),
            np.full(6, 2.0),
            close,
            10**9,
            np.full(6, 0.1),
        ),
    )
    path = runs.ExchangeableSteps(2.0, StepCounter(20, 0.443))
    yield (
        "steps of one",
        lambda: {
            "states": path.states(np.array([0, 5, 10**9])),
            "first below": [
                path.first_below(*each)
                for each in (
                    (1e-3, 10**6),
                    (1e-3, 100),
                    (1e-9, INT64_MAX),
                    (1e-40, INT64_MAX),
                    (2.0, 10),
                    (0.95, 10),
                )
            ],
            "first missing": path.first_missing(0.5, 0.1, 1e-9, 1e-30),
            "K, gamma": [path.K, path.gamma],
        },
    )
    hit = float(flow.loss_curve(path.states(np.array([300])), 2.0, 20.0)[0][0])
    yield (
        "the loss of a step",
        lambda: [
            path.first_below(hit * x, last)
            for x in (1.0, 1 + 1e-15, 1 - 1e-15)
            for last in (299, 300, 301)
        ],
    )
    yield (
        "leading order",
        partial(runs.leading_order, eta, gamma, K, epsilon, np.full(6, 1.0)),
    )
    yield (
        "leading order of one",
        partial(runs.leading_order, *map(np.asarray, (4.0, 2.0, 20.0, 1e-3, np.inf))),
    )
    yield "step constant", partial(runs.step_constant, eta, 0.25, gamma, K)
    yield "step constant, large", partial(runs.step_constant, 1e200, 1e100, 1e100, 3)


def boundaries() -> Asked:
    yield (
        "tail start",
        lambda: [phases.tail_start(K) for K in (2, 3, 4, 7, 20, 1000, 10**9)],
    )
    yield (
        "crossover",
        lambda: [
            phases.crossover(1e-3, 0.5),
            phases.crossover(1e-5, 2.0, 50),
            phases.crossover(0.1, 1.0, 2),
        ],
    )
    yield (
        "crossover, leading",
        lambda: [
            phases.crossover(1e-5, 2.0, K, leading_order=True) for K in (2, 20, 900)
        ],
    )
    yield (
        "half way",
        lambda: [
            phases.half_way(1e-4, 0.5),
            *(phases.half_way(1e-6, 2.0, K) for K in (7, 8, 100, 10**9)),
        ],
    )
    yield (
        "papers' regime",
        lambda: [
            phases.papers_regime(*x)
            for x in (
                (2.0, 0.5, 0.1),
                (20.0, 0.5, 0.1),
                (20.0, 0.5, 0.11),
                (3.0, 2.0, 0.5),
            )
        ],
    )
    yield (
        "phases of",
        lambda: [
            phases.phases_of(*x)
            for x in (
                (10, None, None),
                (10, 10, None),
                (10, 3, None),
                (10, 3, 10),
                (10, 3, 7),
                (10, 7, 3),
                (10, 0, 0),
                (10, 10, 4),
            )
        ],
    )
    yield from refused(
        {
            "tail start, K": partial(phases.tail_start, 1),
            "tail start, K large": partial(phases.tail_start, 10**9 + 1),
            "crossover, epsilon": partial(phases.crossover, 0.0, 1.0),
            "crossover, delta": partial(phases.crossover, 1e-3, -1.0),
            "crossover, K": partial(phases.crossover, 1e-3, 1.0, 1),
            "crossover, flag": partial(phases.crossover, 1e-3, 1.0, leading_order=1),
            "half way, K": partial(phases.half_way, 1e-3, 1.0, 6),
            "half way, epsilon": partial(phases.half_way, -1e-3, 1.0),
            "half way, delta": partial(phases.half_way, 1e-3, 0.0),
            "papers' regime, imbalance": partial(phases.papers_regime, 2.0, 1.0, 1.0),
            "papers' regime, L": partial(phases.papers_regime, 0.0, 1.0, 0.5),
            "papers' regime, delta": partial(
                phases.papers_regime, 1.0, float("inf"), 0.5
            ),
        }
    )
    yield "constants", Call(lambda: phases.TAIL_RATIO)
