"""Skipped steps against steps that were taken, closed forms and the definition of the expansion."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from skipping import (
    outcome,
)  # in scripts: the random problems of `measurements.py skipping`

import icl_theory as icl
from icl_theory import tasks
from icl_theory.engine.capabilities import gain_at
from icl_theory.engine.skip import Skipper
from icl_theory.engine.strides import distance_growth
from tests.linear import LinearAttention, MergedLinearAttention
from tests.problems import Bowl
from tests.references import Array

# Problems that take less than a second: of two features, of an embedding, of a task of
# each kind and of other probabilities; 180 is stiff.
QUICK = (12, 16, 31, 180, 4114)
SLOWER = (2, 3, 5, 7, 11, 14, 18, 20, 25, 28, 32, 36, 37, 4165)


class Power(icl.Risk):
    """Loss |x|^q/q from x = 1, with an optional floor."""

    initial = np.array([1.0])

    def __init__(self, q: float, floor: float = 0.0) -> None:
        self.q, self._floor = q, floor

    def evaluate(self, params: np.ndarray, step: int = 0) -> tuple[float, np.ndarray]:
        return float(np.abs(params[0]) ** self.q) / self.q + self._floor, np.sign(
            params
        ) * np.abs(params) ** (self.q - 1)

    def floor(self) -> float:
        return self._floor


def unequal(
    K: int, seed: int, N: float = math.inf, noise: float = 0.0
) -> icl.PopulationRisk:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(K, K))
    features = icl.Features.simplex(K, 1.0, rng.dirichlet(np.full(K, 3.0)))
    return icl.PopulationRisk(features, tasks.KernelTask(values @ values.T), N, noise)


PROBLEMS: dict[str, tuple[Callable[[], icl.Risk], float, str]] = {
    "scores": (lambda: unequal(8, 1), 1.0, "gd"),
    "normalised": (lambda: unequal(5, 2), 1e-3, "ngd"),
    "finite prompts": (lambda: unequal(4, 3, N=30), 1.0, "gd"),
    "label noise": (lambda: unequal(4, 4, N=12, noise=0.5), 1.0, "gd"),
    "one number": (lambda: icl.ExchangeableRisk(20, 2.0, 40, 0.1), 4.0, "gd"),
    "embedding": (
        lambda: icl.in_coordinates(
            unequal(6, 5), "embedding", icl.Features.random(6, 4, 0.5, seed=0).vectors
        ),
        1.0,
        "gd",
    ),
    "factored": (
        lambda: icl.in_coordinates(
            unequal(6, 6), "factored", icl.Features.simplex(6, 1.0).vectors, rank=3
        ),
        4.0,
        "gd",
    ),
    "groups": (lambda: icl.SymmetricRisk([1, 30], [0.4, 0.02], 2.0), 4.0, "gd"),
    "degenerate": (
        lambda: icl.PopulationRisk(icl.Features.simplex(6, 1.0), tasks.Halfspace(2.0)),
        4.0,
        "gd",
    ),
}


@cache
def every_step(name: str) -> icl.Trajectory:
    """Return a run of which two tests need every step."""
    make, eta, rule = PROBLEMS[name]
    return icl.descend(
        make(),
        eta,
        # Strides have begun in the first hundreds of steps.
        steps=1_200 if name in ("finite prompts", "label noise") else 2_500,
        rule=rule,
    )


@pytest.mark.parametrize("name", PROBLEMS)
def test_skipping_gives_the_scores_and_the_loss_of_taking_every_step(name: str) -> None:
    make, eta, rule = PROBLEMS[name]
    risk = make()
    exact = every_step(name)
    steps = int(exact.t[-1])
    fast = icl.descend(risk, eta, steps=steps, rule=rule, method="fast")
    assert fast.states_error is not None
    assert fast.states_error <= 5e-7
    shared = np.isin(exact.t, fast.t)
    gain = max(gain_at(risk, state) for state in fast.states)
    compared = fast.states[np.isin(fast.t, exact.t)]
    assert gain * np.abs(exact.states[shared] - compared).max() <= fast.states_error
    assert (
        abs(exact.loss[shared][-1] / fast.loss[-1] - 1.0) < 1e-8 or fast.t[-1] < steps
    )


@pytest.mark.parametrize(
    "name", ["scores", "embedding", "factored", "groups", "finite prompts"]
)
def test_the_first_step_below_epsilon_is_that_of_taking_every_step(name: str) -> None:
    make, eta, rule = PROBLEMS[name]
    risk = make()
    exact = every_step(name)
    for share in (0.3, 0.9):
        target = float(exact.loss[int(share * (len(exact.t) - 1))]) * 1.0001
        first = exact.first(lambda state, target=target: state.loss <= target)  # type: ignore[misc]
        found = icl.descend(risk, eta, epsilon=target, rule=rule, method="fast").steps
        assert first is not None
        assert found is not None
        assert abs(first - found) <= 1


@settings(max_examples=settings.default.max_examples // 2)
@given(
    K=st.integers(2, 200),
    c=st.floats(-3.0, 1.0),
    drop=st.floats(-12.0, -4.0),
)
def test_beyond_a_million_steps_the_first_one_is_within_1e_9_of_the_closed_form(
    K: int, c: float, drop: float
) -> None:
    risk = icl.ExchangeableRisk(K, gamma=2.0)
    eta = 10.0**c * (K - 1) ** 2 / (2.0 * K)
    epsilon = risk.loss(0.0) * 10.0**drop
    closed = icl.simulate(2.0, 1.0, eta, K=K, epsilon=epsilon).steps
    fast = icl.descend(risk, eta, epsilon=epsilon, method="fast").steps
    assert closed is not None
    assert fast is not None
    assert abs(fast - closed) <= max(1.0, 1e-9 * closed)


@pytest.mark.parametrize(
    ("K", "c", "drop"),
    [
        (2, -1.5, -9.0),
        (3, -3.0, -9.0),
        (10, 0.5, -12.0),
        (15, 0.15, -10.47),
        (96, 0.8, -10.85),
        (174, -0.85, -9.36),
    ],
)
def test_a_count_owes_nothing_to_interpolation(K: int, c: float, drop: float) -> None:
    """Here counts were off by 1.4e-9 to 2.1e-9 of themselves, as states between steps of the solver are."""
    risk = icl.ExchangeableRisk(K, gamma=2.0)
    eta = 10.0**c * (K - 1) ** 2 / (2.0 * K)
    epsilon = risk.loss(0.0) * 10.0**drop
    closed = icl.simulate(2.0, 1.0, eta, K=K, epsilon=epsilon).steps
    fast = icl.descend(risk, eta, epsilon=epsilon, method="fast").steps
    assert closed is not None
    assert fast is not None
    assert abs(fast - closed) <= 1e-9 * closed


class Counted(icl.ExchangeableRisk):
    """Counts its gradients."""

    count = 0

    def evaluate(self, params: np.ndarray, step: int = 0) -> tuple[float, np.ndarray]:
        type(self).count += 1
        return super().evaluate(params, step)


def test_many_saved_states_in_one_long_step_do_not_cost_a_step_each() -> None:
    """They took 2746 gradients beyond the first 4096."""
    Counted.count = 0
    icl.descend(Counted(20, 2.0), 4.0, steps=10**12, method="auto")
    assert Counted.count < 4096 + 2000


@pytest.mark.parametrize("index", QUICK)
def test_on_a_random_problem_no_state_and_no_count_is_off_by_more_than_estimated(
    index: int,
) -> None:
    found = outcome(index)
    assert found.skipped
    assert not found.wrong, found


@pytest.mark.slow
@pytest.mark.parametrize("index", SLOWER)
def test_on_a_longer_random_problem_none_is_off_by_more_than_estimated(
    index: int,
) -> None:
    found = outcome(index)
    assert not found.wrong, found


class Swing(icl.Risk):
    """A slow u sharpens v, which rests at 0, until v swings between two values; rounding says which is first."""

    initial = np.array([0.0, 0.2])

    def __init__(self, pace: float) -> None:
        self.pace = pace

    def evaluate(self, params: np.ndarray, step: int = 0) -> tuple[float, np.ndarray]:
        u, v = params
        loss = 0.5 * self.pace * (u - 0.52) ** 2 + 0.5 * (1.5 + u) * v**2 + 0.25 * v**4
        return float(loss), np.array(
            [self.pace * (u - 0.52) + 0.5 * v**2, (1.5 + u) * v + v**3]
        )


def swung(pace: float, steps: int) -> tuple[icl.Trajectory, float]:
    """A fast run, and how far it is from the truth."""
    fast = icl.descend(Swing(pace), 1.0, steps=steps, method="fast")
    exact = icl.descend(Swing(pace), 1.0, steps=int(fast.t[-1]))
    return fast, float(
        np.abs(exact.states[np.isin(exact.t, fast.t)] - fast.states).max()
    )


def test_a_swing_whose_phase_rounding_picks_is_in_the_estimate() -> None:
    """A run swung 0.022 beside the truth, where 0.017 was estimated."""
    fast, off = swung(2e-4, 30_000)
    assert fast.states_error is not None
    assert 1e-3 < off <= fast.states_error
    assert "accuracy" in fast.notes


def test_a_mode_that_oscillates_is_still_known_when_strides_are_tried_again() -> None:
    """Strides passed over a swing that had ended those before: states were off by 0.022, a count by 1701 steps."""
    fast, off = swung(3e-4, 20_000)
    assert fast.states_error is not None
    assert off <= fast.states_error < 1e-9


@pytest.mark.slow
def test_errors_that_cancel_what_parts_run_and_shadow_are_in_the_estimate() -> None:
    """In one stride the shadow came back to the run by its own error: two thirds of the distance were forgotten."""
    found = outcome(97_094)
    assert found.skipped
    assert 2e-8 < found.error <= found.estimate, found


@pytest.mark.parametrize(
    ("before", "after", "new", "least", "most"),
    [
        (1.0, 2.5, 0.0, 2.5, 2.5),  # the shadow has moved like the run
        (
            3.0,
            1.0,
            2.0,
            0.3,
            1.0,
        ),  # its own error may have taken two thirds of the distance
        (1.0, 6.0, 5.0, 1.0, 1.0),  # or be all that has come
        (2.0, 9.0, 1.0, 4.0, 4.5),  # what it cannot have added has grown
        (0.0, 1.0, 0.5, 1.0 / 3.0, 1.0),  # nothing is known of growth
    ],
)
def test_errors_grow_as_distances_do_but_for_the_shadow_s_own(
    before: float, after: float, new: float, least: float, most: float
) -> None:
    growth = distance_growth(*(np.array([each]) for each in (before, after, new)))
    assert least <= growth.cautious[0] <= most


def test_states_between_steps_of_the_solver_are_as_good_as_the_steps() -> None:
    """Here states inside a transition were off by 1.1e-6 where 1.1e-8 was estimated."""
    rng = np.random.default_rng(213)
    values, probs = rng.normal(size=(4, 4)), rng.dirichlet(np.ones(4))
    task, features = (
        tasks.KernelTask(values @ values.T),
        icl.Features.simplex(4, 1.0, probs),
    )
    risk, eta = (
        icl.PopulationRisk(features, task),
        4.0 / float(task.variogram(features).max()),
    )
    exact = icl.descend(risk, eta, steps=4_000)  # the transition is at a thousand
    fast = icl.descend(risk, eta, steps=4_000, method="fast")
    assert fast.states_error is not None
    assert np.abs(exact.states[np.isin(exact.t, fast.t)] - fast.states).max() < 1e-7
    assert (
        np.abs(exact.states[np.isin(exact.t, fast.t)] - fast.states).max()
        <= fast.states_error
    )


@pytest.mark.parametrize(("decay", "eta"), [(1.0, 0.02), (2.0, 0.1)])
def test_several_curvature_scales_are_within_the_estimate_at_every_step(
    decay: float, eta: float
) -> None:
    """Every mode is known: Γ_j = Γ*_j (1 - (1 - η λ_j m_j)^t)."""
    risk = MergedLinearAttention(np.arange(1.0, 11.0) ** -decay, 100)
    run = icl.descend(risk, eta, steps=100_000, method="fast")
    assert run.states_error is not None
    between = np.unique(np.geomspace(1000.0, 90_000.0, 9).astype(int)).tolist()
    for t, state in [
        *zip(run.t.tolist(), run.states, strict=True),
        *((t, run.at(t).params) for t in between),
    ]:
        assert np.abs(state - risk.iterate(t, eta)).max() <= run.states_error
    assert run.states_error <= 1e-7 or "accuracy" in run.notes


@pytest.mark.parametrize("scale", [1e-2, 1e-4, 1e-6])
def test_from_a_small_start_near_a_saddle_the_estimate_holds(scale: float) -> None:
    """A plateau, and one drop: what went wrong on the plateau is multiplied in it."""
    risk = LinearAttention(2, 20, scale)
    exact = icl.descend(risk, 3e-3, steps=10_000)
    fast = icl.descend(risk, 3e-3, steps=10_000, method="fast")
    assert fast.states_error is not None
    shared = np.isin(exact.t, fast.t)
    apart = np.abs(exact.states[shared] - fast.states[np.isin(fast.t, exact.t)]).max()
    assert apart <= fast.states_error
    assert apart <= 1e-7 or "accuracy" in fast.notes


def test_the_error_of_a_count_is_below_one_only_where_the_count_is_right() -> None:
    """A target that lies between two losses that differ by less than the error cannot be told."""
    risk = icl.ExchangeableRisk(20, 2.0)
    steps = icl.simulate(2.0, 1.0, 4.0, epsilon=1e-8).steps
    run = icl.descend(risk, 4.0, epsilon=1e-8, method="fast")
    assert steps is not None
    assert run.steps is not None
    assert run.error is not None
    assert abs(run.steps - steps) <= run.error
    tie = icl.descend(
        risk, 4.0, epsilon=float(run.at(run.steps - 1).loss), method="fast"
    )
    assert tie.error is not None
    assert tie.error >= 1.0


def test_a_power_law_is_followed_over_fifteen_decades() -> None:
    """Steps of x³ give x^-2 = 2ηn + (3η/2) ln(2ηn) + O(1) after n of them."""
    run = icl.descend(Power(4.0), 0.01, steps=10**15, method="fast")
    assert run.t[-1] == 10**15
    assert run.params[0] ** -2 / (2.0 * 0.01 * 1e15) == pytest.approx(1.0, rel=1e-9)
    assert run.stop_reason.startswith("took all")


@pytest.mark.slow
def test_state_between_saved_steps_is_that_of_a_longer_look() -> None:
    risk = unequal(5, 0)
    run = icl.descend(risk, 1.0, steps=50_000, method="fast")
    t = int(run.t[-2]) + 137
    direct = icl.descend(risk, 1.0, steps=t)
    np.testing.assert_allclose(run.at(t).params, direct.params, rtol=0.0, atol=1e-7)
    assert run.at(t).loss == pytest.approx(direct.loss[-1], rel=1e-8)


@pytest.mark.parametrize("method", ["fast", "flow"])
@pytest.mark.parametrize("start", [2 * 10**14, 10**15])
def test_steps_that_ln_t_does_not_tell_apart_have_states(
    method: str, start: int
) -> None:
    """From 1e14 steps on neighbours are the same number ln(1 + t) to rounding: their states were not numbers."""
    run = icl.descend(Power(4.0), 0.01, steps=start, method=method)
    for late in (12, 7, 5, 4, 3, 2, 1):  # each is followed from the end of the run
        state = run.at(start + late)
        assert float(state.params[0]) == pytest.approx(float(run.params[0]), rel=1e-12)
        assert state.loss == pytest.approx(run.loss[-1], rel=1e-12)


def test_a_tighter_tolerance_gives_more_digits() -> None:
    risk = unequal(6, 7)
    exact = icl.descend(risk, 1.0, steps=3_000).params
    errors = [
        np.abs(
            icl.descend(
                risk, 1.0, steps=3_000, method="fast", tolerance=10.0**-k
            ).params
            - exact
        ).max()
        for k in (5, 8, 11)
    ]
    assert errors[2] < 1e-11
    assert errors[1] < 1e-8
    assert errors[2] < errors[1] < errors[0]


@cache
def five_thousand_steps() -> icl.Trajectory:
    return icl.descend(
        icl.ExchangeableRisk(5, 2.0, 7), 0.05, steps=5000, method="exact"
    )


@pytest.mark.parametrize("end", [200, 4000])
@pytest.mark.parametrize("tolerance", [1e-5, 1e-9, 1e-12])
def test_any_step_is_as_exact_as_was_asked_for(tolerance: float, end: int) -> None:
    """Also those that are not saved, and those beyond the end, which are followed when they are asked for."""
    exact = five_thousand_steps()
    run = icl.descend(
        icl.ExchangeableRisk(5, 2.0, 7),
        0.05,
        steps=end,
        method="fast",
        tolerance=tolerance,
    )
    assert run.states_error is not None
    for t in (190, 530, 999, 1777, 4999):
        assert t not in run.t
        assert (
            abs(float(run.at(t).params - exact.at(t).params))
            <= tolerance + run.states_error
        )


@pytest.mark.parametrize("eta", [1e-4, 1e-8, 1e-12])
def test_a_slow_beginning_is_no_end(eta: float) -> None:
    """With so small a rate thousands of steps move nothing by the tolerance, but each as much as the last one."""
    run = icl.descend(Bowl(), eta, epsilon=0.1, method="fast")
    assert run.steps == pytest.approx(
        np.log(0.1) / (2.0 * np.log1p(-eta)), rel=1e-5, abs=1.0
    )


def test_a_tolerance_below_rounding_is_reported_as_missed() -> None:
    run = icl.descend(unequal(4, 8), 1.0, steps=5000, method="fast", tolerance=1e-16)
    assert run.states_error is None or run.states_error > 1e-16
    assert (
        "above the tolerance" in run.notes.get("accuracy", "") or run.method == "fast"
    )
    assert np.isfinite(run.loss).all()


def test_steps_that_oscillate_are_taken_one_by_one() -> None:
    """At eta = 1.9 the parabola's iterates alternate in sign: no flow through them exists."""
    run = icl.descend(Power(2.0), 1.9, epsilon=1e-12, method="fast")
    assert run.steps == icl.descend(Power(2.0), 1.9, epsilon=1e-12).steps
    assert run.states_error is None


class Cliff(icl.Risk):
    """A loss that oscillates for ever."""

    initial = np.array([1.0])

    def evaluate(self, params: np.ndarray, step: int = 0) -> tuple[float, np.ndarray]:
        return 1.0 + 0.1 * float(params[0] > 0), np.sign(params) * 1.5


@pytest.mark.parametrize(
    ("make", "eta", "arguments", "words"),
    [
        pytest.param(
            lambda: Cliff(),
            1.0,
            {"steps": 10**12},
            "used the 200,000 gradient evaluations",
            marks=pytest.mark.slow,  # it takes them all
        ),
        (lambda: Cliff(), 1.0, {"epsilon": 0.5}, "settles above epsilon"),
        (
            lambda: Power(2.0, floor=1.0),
            0.1,
            {"steps": 10**12},
            "cannot change the loss",
        ),
        (lambda: Power(2.0, floor=1.0), 0.1, {"epsilon": 0.5}, "at the floor 1"),
        (
            lambda: icl.ExchangeableRisk(5, 2.0, 20, 1.0),
            4.0,
            {"steps": 10**12},
            "stagnated at step",
        ),
        (
            lambda: unequal(4, 4, N=12, noise=1.0),
            4.0,
            {"epsilon": 1e-9},
            "at the floor",
        ),
        (lambda: unequal(2, 4), 1e9, {"epsilon": 1e-9}, "reached epsilon"),
        (lambda: Power(2.0), 3.0, {"epsilon": 1e-9}, "diverged"),
        (
            lambda: icl.PopulationRisk(
                icl.Features.simplex(6, 1.0), tasks.Halfspace(2.0)
            ),
            4.0,
            {"steps": 10**14},
            "took all",
        ),
        (
            lambda: icl.ExchangeableRisk(20, 2e-10),
            4.0,
            {"epsilon": 1e-11},
            "reached epsilon",
        ),
    ],
)
def test_every_run_ends_and_says_why(
    make: Callable[[], icl.Risk], eta: float, arguments: dict[str, float], words: str
) -> None:
    run = icl.descend(make(), eta, method="fast", **arguments)  # type: ignore[arg-type]
    assert words in run.stop_reason
    assert np.isfinite(run.states).all()
    assert np.isfinite(run.loss).all()


def test_a_run_that_skips_nothing_ends_when_its_gradients_are_used_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Skipper.__init__.__kwdefaults__["budget"] == 200_000
    monkeypatch.setitem(Skipper.__init__.__kwdefaults__, "budget", 2000)
    run = icl.descend(Cliff(), 1.0, steps=10**12, method="fast")
    assert "used the 2,000 gradient evaluations" in run.stop_reason
    assert 1000 < run.t[-1] <= 2000
    assert np.isfinite(run.states).all()


class Broken(Power):
    """A loss whose gradient is NaN near the minimum."""

    def evaluate(self, params: np.ndarray, step: int = 0) -> tuple[float, np.ndarray]:
        loss, gradient = super().evaluate(params, step)
        return loss, gradient if params[0] > 0.05 else gradient * math.nan


def test_a_gradient_that_stops_being_a_number_ends_a_fast_run() -> None:
    run = icl.descend(Broken(4.0), 0.01, steps=10**9, method="fast")
    assert np.isfinite(run.params).all()
    assert not run.converged


def test_a_run_whose_parameters_have_no_gain_any_more_ends() -> None:
    """The gain is a largest singular value, which NaN does not have."""

    class WithGain(Broken):
        def gain(self, params: np.ndarray) -> float:
            return float(np.linalg.norm(params[None], 2))

    run = icl.descend(WithGain(4.0), 0.01, steps=10**9, method="fast")
    assert "the loss left the range of float64" in run.stop_reason
    assert np.isfinite(run.params).all()
    assert not run.converged


def test_a_run_of_factors_whose_product_overflows_ends() -> None:
    risk = icl.PopulationRisk(icl.Features.simplex(4, 1.0), tasks.Linear(2.0), N=10)
    factored = icl.in_coordinates(risk, "factored", risk.features.vectors, rank=2)
    with np.errstate(all="ignore"):
        run = icl.descend(factored, 1e300, steps=300)
    assert run.stop_reason.startswith(("reached", "diverged", "stagnated"))


def test_auto_takes_its_first_steps_one_by_one_and_says_which_way_it_went() -> None:
    risk = icl.ExchangeableRisk(20, 2.0, 40)
    short = icl.descend(risk, 4.0, steps=4000, method="auto")
    exact = icl.descend(risk, 4.0, steps=4000)
    assert short.method == "exact"
    assert (short.params == exact.params).all()
    assert icl.descend(risk, 4.0, steps=10**6, method="auto").method == "fast"
    assert (
        icl.simulate(2.0, 1.0, 4.0, K=3, probs=[0.5, 0.3, 0.2], epsilon=1e-7).method
        == "fast"
    )
    assert icl.simulate(2.0, 1.0, 4.0, epsilon=1e-7).method == "closed"


def test_interrupting_a_fast_run_keeps_what_it_has() -> None:
    def impatient(step: int, loss: float) -> None:
        if step > 10**6:
            raise KeyboardInterrupt

    run = icl.descend(
        unequal(4, 0), 1.0, steps=10**9, method="fast", callback=impatient
    )
    assert run.stop_reason.startswith("interrupted at step")
    assert run.t[-1] > 10**6


def test_errors_are_saved_with_the_run(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("run") / "a.npz"
    run = icl.descend(unequal(4, 0), 1.0, epsilon=1e-6, method="fast")
    run.save(path)
    again = icl.load(path)
    assert (again.error, again.states_error) == (run.error, run.states_error)


@pytest.mark.parametrize("steps", [2**63, 10**30])
def test_more_steps_than_int64_holds_are_refused(steps: int) -> None:
    with pytest.raises(ValueError, match="steps = "):
        icl.descend(Power(2.0), 0.1, steps=steps, method="fast")


@pytest.mark.parametrize("scale", [0.25, 16.0])
def test_the_error_is_one_of_scores_however_large_the_features_are(
    scale: float,
) -> None:
    """Features s times as large take the same scores through the same steps at a rate s⁴ times smaller."""
    vectors = icl.Features.random(6, 4, 0.5, seed=0).vectors
    one, other = (
        icl.descend(
            icl.in_coordinates(unequal(6, 5), "embedding", s * vectors),
            s**-4.0,
            steps=1500,
            method="fast",
        )
        for s in (1.0, scale)
    )
    np.testing.assert_allclose(one.loss[-1], other.loss[-1], rtol=1e-9)
    assert one.states_error is not None
    assert other.states_error == pytest.approx(one.states_error, rel=1e-3)


def test_a_target_soon_after_the_first_stride_is_counted_for_certain() -> None:
    """Single steps end at 4096, and the shadow begins there; nothing is known of it before."""

    class Slope(icl.Risk):
        initial = np.array([0.5, -0.2])

        def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
            return float(np.sum(np.logaddexp(0.0, -params))), -1.0 / (
                1.0 + np.exp(params)
            )

    exact = icl.descend(Slope(), 0.05, steps=4210)
    for step in (4100, 4205):
        epsilon = 0.5 * (exact.at(step - 1).loss + exact.at(step).loss)
        run = icl.descend(Slope(), 0.05, epsilon=epsilon, method="auto")
        assert (run.method, run.steps) == ("fast", step)
        assert run.error is not None
        assert run.error < 1.0
