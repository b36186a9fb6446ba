"""Columns that do not mix, each with a stride of its own, against every step taken."""

from __future__ import annotations

import math

import numpy as np
import pytest
from costs import LAWS, gradients_of, risk_of  # in scripts
from skipping import problem  # the random problems of `measurements.py skipping`

import icl_theory as icl
from icl_theory import tasks
from icl_theory.engine.blocks import Blocks
from icl_theory.engine.capabilities import column_gradients_of
from icl_theory.engine.collocation import (
    Solved,
    collocate,
    polynomial_values,
    radau,
    step_weights,
    stride_weights,
)
from icl_theory.engine.rules import rule_of
from icl_theory.engine.steps import TooFast, UpdateMap
from icl_theory.engine.strides import NODES, Strides
from icl_theory.testing import check_risk
from tests.test_fastforward import unequal


def lopsided(K: int, first: float, eta: float) -> tuple[icl.PopulationRisk, float]:
    """One frequent feature, the others rare, and a learning rate."""
    probs = np.full(K, (1.0 - first) / (K - 1))
    probs[0] = first
    return icl.PopulationRisk(
        icl.Features.simplex(K, 1.0, probs), tasks.Exchangeable(2.0)
    ), eta


def linear(K: int, probs: np.ndarray, seed: int) -> icl.PopulationRisk:
    """Linear functions in the plane: features between others give their queries an optimum that is finite."""
    return icl.PopulationRisk(
        icl.Features.random(K, 2, 0.3, seed=seed, probs=probs), tasks.Linear(2.0)
    )


# Strides begin in the first hundreds of these steps.
RUNS = {
    "p over two decades": (risk_of(12, "p ~ 1/k"), 4.0, 4_000),
    "a kernel": (unequal(6, 3), 2.0, 4_000),
    "half of all features the same": (*lopsided(20, 0.5, 4.0), 4_000),
    "rare features": (*lopsided(8, 0.99, 1.0), 4_000),
    "cosine": (
        icl.PopulationRisk(
            icl.Features.random(6, 3, 0.3, seed=5), tasks.RandomCosine(1.5)
        ),
        3.0,
        4_000,
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "rare features" else name
        for name in RUNS
    ],
)
def test_every_saved_state_is_that_of_single_steps_within_the_estimate(
    name: str,
) -> None:
    risk, eta, steps = RUNS[name]
    exact, fast = (
        icl.descend(risk, eta, steps=steps, method=method)
        for method in ("exact", "fast")
    )
    assert fast.states_error is not None
    assert fast.states_error < 1e-7
    assert np.array_equal(fast.t, exact.t)
    assert np.abs(fast.states - exact.states).max() <= fast.states_error
    between = (int(fast.t[-2]) + steps) // 2
    assert (
        np.abs(fast.at(between).params - exact.at(between).params).max()
        <= fast.states_error
    )
    epsilon = float(0.3 * exact.loss[-2] + 0.7 * exact.loss[-1])
    counted = icl.descend(risk, eta, epsilon=epsilon, method="fast")
    assert counted.steps == exact.first(lambda state: state.loss <= epsilon)
    assert counted.error is not None
    assert counted.error < 1.0


@pytest.mark.parametrize("law", LAWS)
def test_a_million_steps_take_a_four_hundredth_of_their_gradients(law: str) -> None:
    risk = risk_of(50, law)
    with gradients_of(risk) as calls:
        run = icl.descend(risk, 4.0, steps=10**6, method="fast")
    assert calls[0] <= 10**6 / 400
    assert run.states_error is not None
    assert run.states_error < 1e-7
    assert not run.notes


def test_queries_that_learn_to_a_finite_optimum_are_solved_with_the_modes_of_each() -> (
    None
):
    """There modes rest beside slow ones: fixed-point iterates alone do not converge for strides worth taking."""
    risk = linear(6, np.random.default_rng(0).dirichlet(np.full(6, 3.0)), 0)
    eta = 1.6 / risk.sharpness(risk.initial)
    with gradients_of(risk) as calls:
        fast = icl.descend(risk, eta, steps=8_000, method="fast")
    assert calls[0] < 8_000 / 4
    exact = icl.descend(risk, eta, steps=8_000)
    assert fast.states_error is not None
    assert np.abs(fast.states - exact.states).max() <= fast.states_error
    assert (
        np.abs(fast.at(7_000).params - exact.at(7_000).params).max()
        <= fast.states_error
    )
    epsilon = float(0.5 * (exact.loss[-1] + exact.loss[-3]))
    assert icl.descend(risk, eta, epsilon=epsilon, method="fast").steps == exact.first(
        lambda state: state.loss <= epsilon
    )


def test_where_strides_do_not_pay_run_and_shadow_take_single_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    risk, eta, steps = RUNS["rare features"]
    reach = Strides.reach
    targets = []

    def reach_not_far(strides: Strides, x: float) -> None:
        targets.append(x)
        reach(strides, min(x, float(strides.x.min()) + 0.1))
        if strides.x.min() < x:
            raise TooFast

    monkeypatch.setattr(Strides, "reach", reach_not_far)
    exact, fast = (
        icl.descend(risk, eta, steps=steps, method=method)
        for method in ("exact", "fast")
    )
    assert len(targets) > 10
    shared = np.isin(fast.t, exact.t)
    assert fast.states_error is not None
    apart = fast.states[shared] - exact.states[np.isin(exact.t, fast.t)]
    assert np.abs(apart).max() <= fast.states_error < 1e-7


@pytest.mark.parametrize("number", [40034, 40092, 40099])
def test_a_shadow_that_begins_close_to_its_solution_is_not_lost(number: int) -> None:
    """The first residual may be small by chance, and the next one larger."""
    case = problem(number)
    run = icl.descend(case.risk, case.eta, steps=case.steps, method="fast")
    assert run.states_error is not None
    assert run.states_error < 1e-7


class Rates(icl.Risk):
    """Loss -½ r·θ² for rates r, so that θ ← (1 + r) θ at η = 1; columns do not mix."""

    initial = np.zeros(0)

    def __init__(self, rates: np.ndarray) -> None:
        self.rates, self.initial = rates, np.ones((3, len(rates)))

    def evaluate(self, params: np.ndarray, step: int = 0) -> tuple[float, np.ndarray]:
        return float(-0.5 * np.sum(self.rates * params**2)), -self.rates * params

    @property
    def column_gradients(self):  # type: ignore[no-untyped-def]
        return lambda columns, which: -self.rates[which] * columns


def test_what_parts_run_and_shadow_grows_as_errors_do() -> None:
    """θ ← (1 + r) θ: where r > 0 early errors are multiplied by 3000, far beyond those of any one stride.

    How large those errors are is up to the last iterates, some of which are far better
    than they need be. What a shadow is given that begins 0.1 % away must come out at
    its size.
    """
    risk, stops = Rates(np.array([1e-3, -5e-4])), np.array([2000, 4000, 9000])
    blocks = Blocks(UpdateMap(risk, 1.0, rule_of("gd")))
    growth = (1.0 + risk.rates) ** (stops[:, None] - 1000.0)
    for nudged in (1.0, 1.001):
        start = np.ones((2, 3))
        strides = Strides(
            blocks,
            1e-5,
            start.copy(),
            start * nudged,
            1000,
            0.05,
            10**6,
            flow=False,
            share=1.0,
        )
        strides.reach(math.log1p(9000))
        run, shadow = strides.states(stops)
        error, apart = (
            np.abs(run - other).max(axis=2) for other in (growth[:, :, None], shadow)
        )
        assert error[-1, 1] < 1e-7
        if nudged == 1.0:
            assert (
                error <= 2.0 * apart + strides.errors.solver_error.max() + 1e-12
            ).all()
        else:
            assert apart[-1] == pytest.approx(1e-3 * growth[-1], rel=1e-2)


def test_strides_solved_again_to_end_at_a_step_are_far_more_accurate_there() -> None:
    """A state inside a stride is off by 3e-5 of itself, and by 6e-8 where one ends."""
    risk = Rates(np.array([1e-3, -5e-4]))
    blocks = Blocks(UpdateMap(risk, 1.0, rule_of("gd")))
    run, shadow = np.ones((2, 3)), np.ones((2, 3))
    strides = Strides(
        blocks, 1e-3, run, shadow, 1000, 0.05, 10**6, flow=False, share=1.0
    )
    strides.reach(math.log1p(4000))
    inside, landed = [], []
    for t in (2500, 3000, 3500):
        exact = (1.0 + risk.rates[:, None]) ** (t - 1000.0)
        inside.append(np.abs(strides.states(np.array([t]))[0][0] / exact - 1.0).max())
        landed.append(np.abs(strides.land(t)[0] / exact - 1.0).max())
    assert max(landed) < 0.05 * max(inside)


def test_the_distance_so_far_is_no_less_than_at_any_step() -> None:
    """Where run and shadow part ever faster, it is that of the stride in which a step is."""
    risk = Rates(np.array([1e-3, -5e-4]))
    blocks = Blocks(UpdateMap(risk, 1.0, rule_of("gd")))
    run, shadow = np.ones((2, 3)), np.full((2, 3), 1.001)
    strides = Strides(
        blocks, 1e-5, run, shadow, 1000, 0.05, 10**6, flow=False, share=1.0
    )
    strides.reach(math.log1p(9000))
    steps = np.arange(1001, 9000, 100)
    states = strides.states(steps)
    _error, distance = strides.worst_until(np.log1p(steps))
    assert (distance >= np.abs(states[0] - states[1]).max(axis=(1, 2))).all()
    assert (np.diff(distance) >= 0.0).all()


def test_what_strides_leave_adds_up_over_all_of_them() -> None:
    blocks = Blocks(UpdateMap(Rates(np.array([1e-3, -5e-4])), 1.0, rule_of("gd")))
    strides = Strides(
        blocks, 1e-5, np.ones((2, 3)), None, 1000, 0.05, 10**6, flow=False, share=1.0
    )
    left = [strides.errors.solver_error.copy()]
    for t in range(1100, 9000, 50):
        strides.reach(math.log1p(t))
        left.append(strides.errors.solver_error.copy())
    assert (np.diff(left, axis=0) >= 0.0).all()
    assert (left[-1] > 0.0).all()


def test_beside_an_unstable_query_no_step_is_skipped() -> None:
    """The frequent query goes round in a cycle that is all but unstable; the others go on to their optimum."""
    risk = linear(5, np.array([0.97, 0.0075, 0.0075, 0.0075, 0.0075]), 2)
    eta = 2.2 / risk.sharpness(risk.initial)
    exact, fast = (
        icl.descend(risk, eta, steps=4000, method=method)
        for method in ("exact", "fast")
    )
    assert np.array_equal(fast.states, exact.states)


def test_a_polynomial_changes_by_the_moves_in_one_step() -> None:
    """For θ ← θ + c the iterates are a straight line in t, and so are the polynomials, as far as they can be."""
    scheme, x, h = radau(7), np.array([7.0, 9.0]), np.array([0.05, 0.2])
    places = x[:, None] + scheme.nodes * h[:, None]
    weights = step_weights(scheme, places, h[:, None])
    assert np.allclose(
        weights.sum(axis=2), np.expm1(places) - np.expm1(x)[:, None], rtol=1e-11
    )
    for one, start, length in zip(weights, x, h, strict=True):
        assert np.allclose(
            step_weights(scheme, start + scheme.nodes * length, float(length)),
            one,
            rtol=1e-12,
        )


def test_collocation_follows_a_map_with_a_known_solution() -> None:
    """θ ← (1 - r) θ, a rate for each column, from 1 at t = 1000 on."""
    rates = np.array([1e-3, 2e-4, 1e-5])
    n, x = len(rates), np.full(3, math.log1p(1000.0))
    h, y = np.full(n, 0.1), np.ones((n, 2))
    step = collocate(
        lambda columns, which: -rates[which, None] * columns,
        np.arange(n),
        stride_weights(7, x, h, flow=False),
        y,
        np.ones((n, 7, 2)),
        np.full(n, 1e-12),
        np.full(n, 1e-15),
    )
    assert np.isfinite(step.solver_error).all()
    places = x[:, None] + np.array([0.03, 0.1])
    truth = (1.0 - rates[:, None]) ** (np.expm1(places) - 1000.0)
    assert (
        np.abs(
            polynomial_values(step.coefficients, places, x, h) - truth[:, :, None]
        ).max()
        <= 1e-11
    )
    assert np.abs(step.end - truth[:, -1:]).max() <= 1e-11
    assert (step.error <= 1e-10).all()


def test_a_coefficient_that_is_small_by_chance_does_not_pass_for_accuracy() -> None:
    """Coefficients fall by a factor 10 each; in the second column the last one happens to be zero."""
    sizes = 10.0 ** -np.arange(NODES + 1.0)
    terms = np.stack(
        [
            sizes,
            np.where(np.arange(NODES + 1) == NODES, 0.0, sizes),
            np.zeros(NODES + 1),
        ]
    )[:, :, None]
    step = Solved(terms, np.zeros(3), np.ones(3, dtype=np.int64))
    assert step.error.tolist() == pytest.approx([1e-10, 1e-10, 0.0])


def test_columns_that_are_wrong_do_not_pass_for_those_of_the_gradient() -> None:
    class Wrong(icl.PopulationRisk):
        @property
        def column_gradients(self):  # type: ignore[no-untyped-def]
            return lambda columns, which: self._infinite(columns, which)[1] * 1.0001

    check_risk(unequal(4, 1))
    with pytest.raises(AssertionError, match="column_gradients"):
        check_risk(Wrong(unequal(4, 1).features, unequal(4, 1).task))


def test_where_columns_mix_there_are_no_gradients_of_single_ones() -> None:
    assert column_gradients_of(unequal(4, 1, N=30)) is None
    assert (
        column_gradients_of(
            icl.in_coordinates(
                unequal(4, 1), "embedding", unequal(4, 1).features.vectors
            )
        )
        is None
    )


@pytest.mark.parametrize(
    ("rule", "largest"), [("gd", 2.0), ("heavy-ball", 2.0 * 1.9), ("ngd", 2.0)]
)
def test_the_largest_stable_rate_of_a_mode_is_the_one_that_flips_its_sign(
    rule: str, largest: float
) -> None:
    """It is 2 for gradient descent, also normalised, and 2 (1 + β) for the heavy ball with β = 0.9."""
    blocks = Blocks(UpdateMap(Rates(np.array([1e-3, -5e-4])), 1.0, rule_of(rule)))
    assert blocks.largest_stable_rate == pytest.approx(largest, rel=1e-12)
