"""Skipping past saddles: staircases of heads and plateaus of factors against single steps and closed forms."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad

import icl_theory as icl
from icl_theory.engine.capabilities import gain_at
from icl_theory.engine.collocation import collocate, stride_weights
from icl_theory.engine.rules import rule_of
from icl_theory.engine.steps import UpdateMap
from icl_theory.engine.stops import Saddle


class Counted(icl.Risk):
    """Counts gradients, and products of the Hessian as one each."""

    initial = np.zeros(0)

    def __init__(self, risk: icl.Risk) -> None:
        self.risk, self.count, self.initial = risk, 0, risk.initial

    def gain(self, params: np.ndarray) -> float:
        return gain_at(self.risk, params)

    def evaluate(self, params: np.ndarray, step: int = 0) -> tuple[float, np.ndarray]:
        self.count += 1
        return self.risk.evaluate(params, step)

    def hessian_product(self, params: np.ndarray, direction: np.ndarray) -> np.ndarray:
        self.count += 1
        return self.risk.hessian_product(params, direction)

    def floor(self) -> float:
        return self.risk.floor()


def aligned(d: int, size: float) -> np.ndarray:
    """Heads with head j along axis j, v = k = q = size."""
    start = np.zeros((d, 1 + 2 * d))
    start[:, 0] = size
    for j in range(d):
        start[j, 1 + j] = start[j, 1 + d + j] = size
    return start


def levels(problem: icl.LinearAttention) -> np.ndarray:
    """Excess half-way between the plateaus on which the first directions are learnt."""
    law = problem.law()
    drops = np.sort(0.5 * law.moments[2] * law.second * law.best**2)[::-1]
    plateaus = np.append(np.cumsum(drops[::-1])[::-1], 0.0)
    return np.asarray(0.5 * (plateaus[1:] + plateaus[:-1]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("decay", "start", "gain"), [(1.0, 5e-3, 2.0), (0.5, 3e-3, 1.0)]
)
def test_a_staircase_drops_where_single_steps_do(
    decay: float, start: float, gain: float
) -> None:
    """Random starts: to within a step of 10⁴ at each drop; no state is off by more than estimated."""
    problem = icl.LinearAttention(
        d=3,
        heads=3,
        start=start,
        coordinates="heads",
        decay=decay,
        above=1e-6,
        method="exact",
        seed=3,
    )
    exact = icl.descend(problem.risk(), problem.rate(), above=1e-6)
    risk = Counted(problem.risk())
    fast = icl.descend(risk, problem.rate(), above=1e-6, method="fast")
    assert exact.steps is not None
    assert fast.steps == exact.steps
    assert exact.steps > gain * risk.count
    assert fast.states_error is not None
    shared = np.intersect1d(exact.t, fast.t)
    ours, theirs = (
        fast.states[np.isin(fast.t, shared)],
        exact.states[np.isin(exact.t, shared)],
    )
    off = [
        gain_at(risk, a) * float(np.abs(a - b).max())
        for a, b in zip(ours, theirs, strict=True)
    ]
    assert max(off) <= fast.states_error
    for level in levels(problem) + risk.floor():
        ours_at, theirs_at = (
            run.first(lambda state, level=level: state.loss <= level)
            for run in (fast, exact)
        )  # type: ignore[misc]
        assert ours_at is not None
        assert theirs_at is not None
        assert abs(ours_at - theirs_at) <= 1e-4 * theirs_at


@pytest.mark.slow
def test_eight_heads_from_a_small_start_cost_a_twentieth_of_the_steps_and_less() -> (
    None
):
    """18,594,261 steps, counted one by one in C; 8 heads in 8 dimensions, start 1e-4, λ_j = 1/j."""
    problem = icl.LinearAttention(
        d=8,
        heads=8,
        start=1e-4,
        coordinates="heads",
        decay=1.0,
        above=1e-6,
        method="fast",
    )
    risk = Counted(problem.risk())
    run = icl.descend(risk, problem.rate(), above=1e-6, method="fast")
    assert run.steps is not None
    assert abs(run.steps - 18_594_261) <= 1
    assert run.error is not None
    assert abs(run.steps - 18_594_261) <= run.error
    assert 200 * risk.count < run.steps


def test_aligned_heads_drop_after_the_steps_of_the_logarithm_of_their_map() -> None:
    """Each head follows s ← s + g(s) alone; steps are ∫ ds/(g - gg'/2 + gg'²/3 + g²g''/12 - …)."""
    size, share = 1e-4, 1e-8
    problem = icl.LinearAttention(
        d=2,
        heads=2,
        decay=1.0,
        coordinates="heads",
        start=aligned(2, size),
        eta=0.05,
        above=1e-6,
        method="fast",
    )
    run, law = problem.simulate(), problem.law()
    assert run.states_error is not None
    for j, (spectrum, m, best) in enumerate(
        zip(law.covariance, law.second, law.best, strict=True)
    ):
        a, b = 0.05 * spectrum**2, 0.05 * spectrum * m

        def pace(u: float, a: float = a, b: float = b) -> float:
            s = math.exp(u)
            g, first, second = (
                a * s**2 - b * s**5,
                2.0 * a * s - 5.0 * b * s**4,
                2.0 * a - 20.0 * b * s**3,
            )
            return s / (g - g * first / 2.0 + g * first**2 / 3.0 + g**2 * second / 12.0)

        end = math.log(0.5 * best) / 3.0
        pieces = np.linspace(math.log(size), end, 40)
        steps = sum(
            quad(pace, low, high, epsabs=0.0, epsrel=1e-13)[0]
            for low, high in pairwise(pieces.tolist())
        )
        half = run.first(
            lambda state, j=j, best=best: state.observed["gamma"][j] >= 0.5 * best
        )  # type: ignore[misc]
        assert half is not None
        assert -share * steps - 1e-2 < half - steps < 1.01 + share * steps
    assert run.error is not None
    assert (
        half - steps - 1.01 < run.error
    )  # the last drop is that in which the target is reached


def test_factored_scores_leave_their_plateau_where_single_steps_do() -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(size=(5, 5))
    features = icl.Features.simplex(5, 1.0, rng.dirichlet(np.full(5, 3.0)))
    inner = icl.PopulationRisk(features, icl.tasks.KernelTask(values @ values.T))
    risk = icl.in_coordinates(
        inner, "factored", features.vectors, rank=2, scale=1e-4, seed=1
    )
    exact = icl.descend(risk, 0.5, steps=5000)
    fast = icl.descend(risk, 0.5, steps=5000, method="fast")
    assert fast.states_error is not None
    for share in (0.9, 0.5):
        level = float(exact.loss[-1] + share * (exact.loss[0] - exact.loss[-1]))
        ours, theirs = (
            run.first(lambda state, level=level: state.loss <= level)
            for run in (fast, exact)
        )  # type: ignore[misc]
        assert ours == theirs
    shared = np.isin(exact.t, fast.t)
    apart = np.abs(exact.states[shared] - fast.states[np.isin(fast.t, exact.t)]).max(
        axis=(1, 2, 3)
    )
    assert max(
        gain_at(risk, state) * off
        for state, off in zip(exact.states[shared], apart, strict=True)
    ) <= (fast.states_error)


@pytest.mark.parametrize("rate", [-0.01, 0.02, 0.6, 1.5])
def test_collocation_of_the_map_has_the_iterates_of_a_linear_map(rate: float) -> None:
    """s ← s + 1e-3 - rate·s: from its fixed point, or for slow modes and growing ones a little beside it."""
    begin, n = 1000.0, 20.0
    rest = 1e-3 / rate
    grown = rest + 0.1 * rest * (1.0 - rate) ** n if rate < 0.1 else rest
    start = np.array([1.1 * rest if rate < 0.1 else rest])
    x, h = math.log1p(begin), math.log1p(n / (begin + 1.0))
    weights = stride_weights(9, np.array([x]), np.array([h]), flow=False)
    step = collocate(
        lambda rows, which: 1e-3 - rate * rows,
        np.zeros(1, dtype=int),
        weights,
        start[None],
        np.full((1, 9, 1), start),
        np.array([1e-16]),
        np.array([1e-16]),
    )
    assert step.end[0, 0] == pytest.approx(grown, rel=1e-12)


def test_a_saddle_is_told_from_a_minimum() -> None:
    """½x² - ½·1e-9·y²: what stands still there leaves within 10¹¹ steps, and not within 10⁷."""

    class Bowl(icl.Risk):
        initial = np.zeros(2)

        def __init__(self, second: float) -> None:
            self.second = second

        def evaluate(
            self, params: np.ndarray, step: int = 0
        ) -> tuple[float, np.ndarray]:
            slope = np.array([1.0, self.second]) * params
            return 0.5 * float(params @ slope), slope

        def hessian_product(
            self, params: np.ndarray, direction: np.ndarray
        ) -> np.ndarray:
            return np.array([1.0, self.second]) * direction

    for second, steps, left in (
        (-1e-9, 10**11, True),
        (-1e-9, 10**7, False),
        (1e-9, 10**15, False),
    ):
        descent = UpdateMap(Bowl(second), 1.0, rule_of("gd"))
        assert (
            Saddle(descent).is_left(descent.point(np.array([0.0, 1e-8]), 0), steps)
            is left
        )
        assert not Saddle(descent).is_left(
            descent.point(np.zeros(2), 0), steps
        )  # only rounding moves it there


@pytest.mark.slow
def test_a_run_from_a_tiny_start_does_not_stop_on_the_saddle() -> None:
    """The gradient is 1e-16 there: at its present slope the loss would not move in 10¹⁵ steps."""
    problem = icl.LinearAttention(
        d=2,
        heads=2,
        start=1e-8,
        coordinates="heads",
        above=1e-6,
        method="fast",
        decay=1.0,
    )
    run = problem.simulate()
    assert run.stop_reason.startswith("reached")
    again = problem.changed(start=1e-6).simulate()
    assert run.steps is not None
    assert again.steps is not None
    assert run.steps / again.steps == pytest.approx(
        100.0, rel=1e-4
    )  # the plateau grows like 1/start
