from __future__ import annotations

import itertools
import math
import tracemalloc
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.sparse import csc_array

import icl_theory as icl
from icl_theory._validate import Array
from icl_theory.engine import Rule
from icl_theory.engine.counting import first_steps
from icl_theory.engine.pullback import Affine, Factored, Pullback
from icl_theory.engine.rules import rule_of
from icl_theory.engine.skip import Skipper
from icl_theory.engine.steps import SingleSteps, UpdateMap
from icl_theory.engine.stops import Recorder, Saved
from icl_theory.engine.trajectory import Stop, saved_steps


class Power(icl.Risk):
    """Loss |x|^q/q from x = 1, with an optional floor."""

    initial = np.array([1.0])

    def __init__(self, q: float = 2.0, floor: float = 0.0) -> None:
        self.q, self._floor = q, floor

    def evaluate(self, params: np.ndarray, step: int = 0) -> tuple[float, np.ndarray]:
        loss = float(np.sum(np.abs(params) ** self.q)) / self.q + self._floor
        return loss, np.sign(params) * np.abs(params) ** (self.q - 1)

    def floor(self) -> float:
        return self._floor


def test_gradient_descent_of_a_parabola_contracts_by_one_minus_eta() -> None:
    run = icl.descend(Power(), 0.1, steps=50)
    np.testing.assert_allclose(run.states[:, 0], 0.9 ** run.t.astype(float), rtol=1e-14)


def test_normalised_descent_moves_by_eta_in_the_metric() -> None:
    class Reduced(Power):
        @property
        def metric(self) -> float:
            return 4.0

    run = icl.descend(Reduced(), 0.01, rule="ngd", steps=100)
    np.testing.assert_allclose(run.states[:, 0], 1.0 - 0.005 * run.t, rtol=1e-12)


def test_normalised_descent_moves_by_eta_where_squares_of_the_gradient_underflow() -> (
    None
):
    run = icl.descend(Exponential(), 0.5, rule="ngd", steps=1400)
    np.testing.assert_array_equal(run.states[:, 0], 0.5 * run.t)
    assert run.loss[-1] < 1e-300


def test_normalised_descent_that_goes_round_in_a_cycle_gives_up() -> None:
    run = icl.descend(Power(), 0.3, rule="ngd", epsilon=1e-6)
    assert run.stop_reason.endswith("the loss settles above epsilon")
    assert run.t[-1] == pytest.approx(10_000, rel=0.1)


class Exponential(icl.Risk):
    """Loss e^-x from x = 0: the gradient of a separable problem."""

    initial = np.array([0.0])

    def evaluate(self, params: np.ndarray, step: int = 0) -> tuple[float, np.ndarray]:
        return math.exp(-float(params[0])), -np.exp(-params)


def test_compensated_sums_lose_no_digits() -> None:
    class Slope(icl.Risk):
        initial = np.array([1.0])

        def evaluate(
            self, params: np.ndarray, step: int = 0
        ) -> tuple[float, np.ndarray]:
            return 2.0 - float(params[0]), np.array([-0.1])

    n = 60_000
    run = icl.descend(Slope(), 1e-7, steps=n)
    assert run.params[0] == pytest.approx(1.0 + n * 1e-8, abs=3e-16)
    plain = 1.0
    for _ in range(n):
        plain += 1e-8
    assert abs(plain - (1.0 + n * 1e-8)) > 1e-13


@pytest.mark.parametrize("unit", [0.01, 1.0, 30.0])
def test_pace_is_that_of_the_scores_in_every_unit_of_the_parameters(
    unit: float,
) -> None:
    """With η/unit² a step changes the score by η times the slope, 1."""
    risk = Pullback(Power(), Affine(np.ones(1), csc_array([[unit]]), (1,)))
    descent = UpdateMap(risk, 0.1 / unit**2, rule_of("gd"))
    assert descent.pace(descent.point(risk.initial, 4)) == pytest.approx(0.1, rel=1e-12)


@pytest.mark.parametrize(("rank", "size"), [(1, 1.0), (2, 1.0), (3, 0.01), (2, 30.0)])
def test_factors_stretch_by_the_norm_of_their_derivative(
    rank: int, size: float
) -> None:
    """The derivative of the scores is made of differences, one for each entry of the factors."""
    factors = (
        np.random.default_rng(rank).normal(size=(2, rank, 4))
        * np.array([1.0, size])[:, None, None]
    )
    h, units = 1e-3 * size, np.eye(factors.size).reshape(-1, *factors.shape)
    inward = Factored(factors).inward
    derivative = [
        (inward(factors + h * unit) - inward(factors - h * unit)).ravel() / (2.0 * h)
        for unit in units
    ]
    assert Factored(factors).stretch(factors) == pytest.approx(
        np.linalg.norm(derivative, 2), rel=1e-9
    )


def test_flow_of_a_power_follows_its_solution() -> None:
    run = icl.descend(Power(4.0), 0.1, steps=10_000, method="flow")
    np.testing.assert_allclose(run.states[:, 0], (1.0 + 0.2 * run.t) ** -0.5, rtol=1e-8)


def test_flow_finds_the_first_integer_time_below_epsilon() -> None:
    epsilon = 1.01e-4  # with 1e-4 the time would be a whole number
    run = icl.descend(Power(4.0), 0.1, epsilon=epsilon, method="flow")
    t = ((4 * epsilon) ** -0.5 - 1.0) / 0.2
    assert run.steps == math.ceil(t)
    assert run.loss[-1] <= epsilon < run.at(math.ceil(t) - 1).loss


@pytest.mark.parametrize("method", ["exact", "flow"])
def test_state_between_saved_steps_is_that_of_a_longer_look(method: str) -> None:
    run = icl.descend(Power(4.0), 0.1, steps=2000, method=method)
    t = int(run.t[-2]) + 7
    assert t not in run.t
    direct = icl.descend(Power(4.0), 0.1, steps=t, method=method)
    assert run.at(t).params[0] == pytest.approx(direct.params[0], rel=1e-9)
    assert run.at(t).loss == pytest.approx(direct.loss[-1], rel=1e-9)


def test_the_first_step_below_a_loss_does_not_depend_on_earlier_questions() -> None:
    """With momentum the loss oscillates: it is below 1.2e-4 at step 19, then above."""

    class Bowl(icl.Risk):
        initial = np.array([2.0])

        def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
            return 0.5 * float(params @ params), params

    rule = icl.engine.HeavyBall(0.9)
    run = icl.descend(Bowl(), 0.3, rule=rule, steps=200, method="exact")
    losses = [run.at(step).loss for step in range(101)]
    for epsilon in (1e-4, 1.2e-4, 1e-4):
        first = next(step for step, loss in enumerate(losses) if loss <= epsilon)
        assert run.solution.first_below(epsilon, 400)[0] == first


def test_every_solution_answers_for_any_step_and_counts_the_steps_to_a_loss() -> None:
    """In closed form 0.9^t and 0.9^2t/2, which is at most 1e-3 from step 30 on, and 1e-9 from step 96 on."""

    class Geometric(icl.engine.Solution):
        def states(self, steps: np.ndarray) -> np.ndarray:
            return 0.9 ** steps[:, None].astype(float)

        def first_below(
            self, epsilon: float, last: int
        ) -> tuple[int | None, float | None]:
            hit = math.ceil(math.log(2.0 * epsilon) / (2.0 * math.log(0.9)))
            return (hit, 0.0) if hit <= last else (None, None)

    descents = [UpdateMap(Power(), 0.1, rule_of("gd")) for _ in range(2)]
    times = np.array([2000, 0, 7, 300])
    for solution in (Geometric(), SingleSteps(descents[0]), Skipper(descents[1], 1e-7)):
        np.testing.assert_allclose(
            solution.states(times)[:, 0],
            0.9 ** times.astype(float),
            rtol=0.0,
            atol=1e-12,
        )
        counts = [
            solution.first_below(epsilon, last)[0]
            for epsilon, last in ((1e-9, 500), (1e-3, 500), (1e-3, 29))
        ]
        assert counts == [96, 30, None]


def test_first_finds_the_step_itself() -> None:
    run = icl.descend(Power(), 0.01, steps=5000)
    expected = next(t for t in itertools.count() if 0.99**t < 0.3)
    assert run.first(lambda state: state.params[0] < 0.3) == expected
    assert run.first(lambda state: state.params[0] < -1.0) is None


@pytest.mark.parametrize(
    ("call", "words", "converged"),
    [
        (
            lambda: icl.descend(Power(), 0.5, epsilon=1e-3),
            "reached epsilon = 0.001 at step 5",
            True,
        ),
        (
            lambda: icl.descend(Power(), 0.5, epsilon=0.75),
            "reached epsilon = 0.75 at step 0",
            True,
        ),
        (
            lambda: icl.descend(Power(), 0.5, epsilon=1e-30, steps=3),
            "took all 3 steps",
            False,
        ),
        (
            lambda: icl.descend(Power(floor=0.1), 0.5, epsilon=0.05),
            "stagnated at the floor 0.1",
            False,
        ),
        (lambda: icl.descend(Power(), 3.0, epsilon=1e-9), "diverged at step", False),
    ],
)
def test_stop_reason_says_why(
    call: Callable[[], icl.Trajectory], words: str, converged: bool
) -> None:
    run = call()
    assert words in run.stop_reason
    assert run.converged is converged is (run.steps is not None)
    assert np.isfinite(run.states).all()
    assert np.isfinite(run.loss).all()


def test_stops_where_nothing_can_change() -> None:
    class Flat(Power):
        def evaluate(
            self, params: np.ndarray, step: int = 0
        ) -> tuple[float, np.ndarray]:
            return 1.0, np.zeros(1)

    assert (
        "remaining steps cannot change the loss"
        in icl.descend(Flat(), 1.0, epsilon=0.0).stop_reason
    )


def test_a_stiff_flow_follows_its_slow_part_until_it_rests() -> None:
    class Stiff(icl.Risk):
        initial = np.array([1.0, 1.0])

        def evaluate(
            self, params: np.ndarray, step: int = 0
        ) -> tuple[float, np.ndarray]:
            scales = np.array([1.0, 1e-9])
            return 0.5 * float(params @ (scales * params)), scales * params

    run = icl.descend(Stiff(), 1.0, epsilon=0.0, method="flow")
    assert "settled" in run.stop_reason
    np.testing.assert_allclose(
        run.states[:, 1], np.exp(-1e-9 * run.t), rtol=0.0, atol=1e-8
    )


def test_interrupt_returns_what_there_is() -> None:
    class Impatient(Power):
        def evaluate(
            self, params: np.ndarray, step: int = 0
        ) -> tuple[float, np.ndarray]:
            if step == 100:
                raise KeyboardInterrupt
            return super().evaluate(params, step)

    run = icl.descend(Impatient(), 0.01, epsilon=0.0)
    assert run.stop_reason == "interrupted at step 99"
    assert run.t[-1] == 99
    assert run.params[0] == pytest.approx(0.99**99)


def test_callback_sees_saved_steps_and_losses() -> None:
    seen: list[tuple[int, float]] = []
    run = icl.descend(
        Power(), 0.01, steps=200, callback=lambda step, loss: seen.append((step, loss))
    )
    assert dict(seen) == dict(
        zip(run.t[:-1].tolist(), run.loss[:-1].tolist(), strict=True)
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"eta": 0.0}, "eta = 0.0"),
        ({"eta": math.nan}, "eta = nan"),
        ({"eta": "1"}, "eta = '1'"),
        ({"epsilon": -1.0}, "epsilon = -1.0"),
        ({"steps": 0}, "steps = 0"),
        ({"steps": 2**63}, "steps = 9223372036854775808"),
        ({"steps": 1.5}, "steps = 1.5"),
        ({"rule": "sgd"}, "rule = 'sgd': must be one of gd, ngd"),
        ({"method": "magic"}, "method = 'magic'"),
        ({"method": "closed"}, "method = 'closed': must be .* there is no closed form"),
        ({"steps": None}, "epsilon = None: give epsilon, above or steps"),
        (
            {"epsilon": 0.1, "above": 0.1},
            "above = 0.1: must be left out if epsilon = 0.1 is given",
        ),
        ({"above": 0.0}, "above = 0.0"),
        ({"above": -1.0}, "above = -1.0"),
        ({"tolerance": 0.0, "method": "fast"}, "tolerance = 0.0"),
        ({"give_up": 1}, "give_up = 1"),
        ({"progress": "yes"}, "progress = 'yes'"),
        ({"callback": 3}, "callback = 3"),
    ],
)
def test_refuses_wrong_arguments(arguments: dict[str, object], words: str) -> None:
    given: dict[str, object] = {"eta": 0.1, "steps": 5, **arguments}
    with pytest.raises(ValueError, match=words):
        icl.descend(Power(), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("floor", [1e-6, 1.0, 1e6])
def test_a_target_above_the_floor_must_be_visible_beside_it(floor: float) -> None:
    run = icl.descend(Power(floor=floor), 0.1, above=1e-12 * floor, steps=1)
    assert run.epsilon == floor + 1e-12 * floor
    with pytest.raises(
        ValueError, match=r"^above = .*: must be at least 1e-13 of the floor"
    ):
        icl.descend(Power(floor=floor), 0.1, above=1e-14 * floor, steps=1)


@pytest.mark.parametrize("method", ["closed", "fast", "flow"])
def test_a_rule_that_changes_has_its_steps_taken_one_by_one(method: str) -> None:
    class Fading(Rule):
        name = "fading"

        def step(
            self,
            risk: icl.Risk,
            params: Array,
            gradient: Array,
            eta: float,
            memory: Array,
            t: int,
        ) -> tuple[Array, Array]:
            return -eta / (t + 1.0) * gradient, memory

    run = icl.descend(Power(), 0.5, steps=3, rule=Fading(), method="auto")
    assert (run.method, run.params[0]) == (
        "exact",
        pytest.approx(0.5 * 0.75 * (1.0 - 0.5 / 3.0)),
    )
    with pytest.raises(
        ValueError, match=r"method = .* must be 'exact' or 'auto' for the rule 'fading'"
    ):
        icl.descend(Power(), 0.5, steps=3, rule=Fading(), method=method)


@pytest.mark.parametrize("rule", ["gd", "ngd", "ngd-blocks"])
def test_a_closed_form_is_that_of_the_rate_and_the_rule(rule: str) -> None:
    arguments = []

    class Recording(Power):
        def closed_form(self, eta: float, rule: str | Rule) -> None:
            arguments.append((eta, rule_of(rule).name))

    run = icl.descend(Recording(), 0.3, steps=3, rule=rule, method="auto")
    assert arguments == [(0.3, rule)]
    assert run.method == "exact"


def test_a_run_has_no_state_at_which_what_is_observed_is_not_finite() -> None:
    class Bursting(Power):
        def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
            return {"seen": np.asarray(np.inf if 3 <= step < 6 else params[0])}

    run = icl.descend(Bursting(), 0.1, steps=9)
    assert np.isfinite(run.observed["seen"]).all()
    assert run.t.tolist() == [t for t in saved_steps(9, 1) if not 3 <= t < 6]


def test_refuses_what_is_not_a_risk() -> None:
    with pytest.raises(ValueError, match="must be a Risk"):
        icl.descend(object(), 0.1)  # type: ignore[arg-type]


def test_interrupt_while_a_state_is_observed_leaves_no_half_of_it() -> None:
    class Watched(Power):
        def observe(self, params: np.ndarray, step: int = 0) -> dict[str, np.ndarray]:
            if step == 10 and not self.seen:
                self.seen = True
                raise KeyboardInterrupt
            return {"x": params}

        seen = False

    run = icl.descend(Watched(), 0.01, epsilon=0.0)
    assert run.stop_reason == "interrupted at step 10"
    assert (np.diff(run.t) > 0).all()
    assert len(run.observed["x"]) == len(run.t) == len(run.loss)


def test_interrupt_in_the_callback_keeps_the_steps_in_order() -> None:
    def impatient(step: int, loss: float) -> None:
        if step == 20:
            raise KeyboardInterrupt

    run = icl.descend(Power(), 0.01, epsilon=0.0, callback=impatient)
    assert run.t[-1] == 20
    assert (np.diff(run.t) > 0).all()


class Noisy(Power):
    """A stochastic risk whose first batches have no loss."""

    stochastic = True

    def evaluate(self, params: np.ndarray, step: int = 0) -> tuple[float, np.ndarray]:
        return (0.0, np.zeros(1)) if step < 3 else super().evaluate(params, step)


def test_a_lucky_batch_does_not_end_a_stochastic_run() -> None:
    run = icl.descend(Noisy(), 0.1, steps=20)
    assert run.t[-1] == 20
    assert run.params[0] == pytest.approx(0.9**17)


def test_a_stochastic_risk_has_no_flow() -> None:
    with pytest.raises(ValueError, match="method = 'flow'"):
        icl.descend(Noisy(), 0.1, steps=20, method="flow")


def test_a_loss_that_no_longer_falls_ends_the_run() -> None:
    class Cliff(Power):
        """A loss that oscillates between two values."""

        def evaluate(
            self, params: np.ndarray, step: int = 0
        ) -> tuple[float, np.ndarray]:
            return 1.0 + 0.1 * float(params[0] > 0), np.sign(params) * 1.5

    run = icl.descend(Cliff(), 1.0, epsilon=1e-3)
    assert "settles above epsilon" in run.stop_reason
    assert run.t[-1] < 20_000
    assert (
        "took all 30000"
        in icl.descend(Cliff(), 1.0, epsilon=1e-3, steps=30_000).stop_reason
    )


@pytest.mark.parametrize("method", ["exact", "flow"])
def test_a_gradient_that_is_not_a_number_ends_the_run(method: str) -> None:
    class Broken(Power):
        def evaluate(
            self, params: np.ndarray, step: int = 0
        ) -> tuple[float, np.ndarray]:
            loss, gradient = super().evaluate(params, step)
            return loss, gradient if params[0] > 0.5 else gradient * math.nan

    run = icl.descend(Broken(), 0.1, steps=1000, method=method)
    assert np.isfinite(run.params).all()
    assert np.isfinite(run.loss).all()
    assert not run.converged


def test_first_looks_between_the_saved_steps_after_a_given_one() -> None:
    run = icl.descend(Power(), 0.001, steps=20_000)
    assert run.first(lambda state: state.t >= 100, after=17_787) == 17_787
    assert run.first(lambda state: state.t >= 18_000, after=17_787) == 18_000
    with pytest.raises(ValueError, match="after = -1"):
        run.first(lambda state: True, after=-1)


def test_a_target_just_above_the_floor_is_still_reached() -> None:
    """The excess of x⁴/4 + 1 falls like 1/t²; 1e-9 above the floor takes some thirty thousand steps."""
    run = icl.descend(Power(4.0, floor=1.0), 0.5, epsilon=1.0 + 1e-9)
    assert run.converged
    assert run.t[-1] > 10_000


def test_progress_shows_step_and_loss_and_changes_nothing(heard: list[str]) -> None:
    risk = icl.PopulationRisk(icl.Features.simplex(4, 1.0), icl.tasks.Linear(2.0))
    called: list[tuple[int, float]] = []
    quiet = icl.descend(risk, 4.0, steps=20, progress=False)
    assert not heard
    run = icl.descend(
        risk, 4.0, steps=20, progress=True, callback=lambda *given: called.append(given)
    )
    assert len(heard) >= len(called) > 10
    assert heard[-1].startswith(f"{called[-1][0]:,} steps, loss {called[-1][1]:.4g}, ")
    assert (run.loss == quiet.loss).all()


def test_a_run_that_is_ended_between_two_points_has_what_came_before() -> None:
    """The generator of iterates may end a run, and so may Ctrl-C within it."""

    class Parabola(icl.Risk):
        initial = np.array([2.0])

        def evaluate(self, params: Any, step: int = 0) -> tuple[float, Any]:
            if step == 3:
                raise KeyboardInterrupt
            return 0.5 * float(params @ params), params

    run = icl.descend(Parabola(), eta=0.5, epsilon=1e-6)
    assert (run.interrupted, int(run.t[-1])) == (True, 2)


def test_a_large_run_holds_fewer_than_eight_matrices_beside_its_saved_states() -> None:
    """At the end: four states, which are moved into an array as large, and the last gradients and their scratch.

    What rounding has left out of the states is saved with them.
    """
    K, steps = 200, 3
    features = icl.Features.orthonormal(K, 0.5**0.5)
    tracemalloc.start()
    try:
        risk = icl.PopulationRisk(features, icl.tasks.Exchangeable(2.0))
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        run = icl.descend(risk, 4.0, steps=steps)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert (peak - run.states.nbytes - run.carry.nbytes) / (8.0 * K * K) < 8.0


class Bowl(icl.Risk):
    """½|x|² on three numbers; its gradient, or its blocks, may be replaced."""

    initial = np.ones(3)

    def __init__(self, blocks: Any = None, slope: Any = None) -> None:
        self._blocks, self._slope = blocks, slope

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        return 0.5 * float(
            params @ params
        ), params if self._slope is None else self._slope(params)

    def blocks(self, array: Array) -> Any:
        return self._blocks(array)


@pytest.mark.parametrize(
    "blocks",
    [
        lambda a: (a[:1],),
        lambda a: (a[:1], a[:1], a[:1]),
        lambda a: (a[:2], a[1:]),
        lambda a: (a[:1].copy(), a[1:]),
        lambda a: (a[[0, 1]], a[2:]),
        lambda a: (),
    ],
    ids=["omits", "repeats", "overlaps", "copies", "copies by an index", "none"],
)
def test_blocks_that_do_not_hold_each_entry_once_are_refused(blocks: Any) -> None:
    with pytest.raises(
        ValueError,
        match=r"blocks = \[.*\]: must be views that together hold each entry",
    ):
        icl.descend(Bowl(blocks), 0.1, steps=2, rule="ngd-blocks")


@pytest.mark.parametrize("method", ["exact", "auto", "fast", "flow"])
@pytest.mark.parametrize(
    "slope",
    [lambda p: p[:1], lambda p: p.sum(), lambda p: p[None], lambda p: p[:, None]],
)
def test_a_gradient_of_another_shape_is_not_broadcast(slope: Any, method: str) -> None:
    with pytest.raises(
        ValueError,
        match=r"gradient = \(.*\): must be of the shape of the parameters, \(3,\)",
    ):
        icl.descend(Bowl(slope=slope), 0.1, steps=2, method=method)


class Waiting(Rule):
    """The first parameter is trained for 20 000 steps, and then the others."""

    name = "waiting"

    def step(
        self,
        risk: icl.Risk,
        params: Array,
        gradient: Array,
        eta: float,
        memory: Array,
        t: int,
    ) -> tuple[Array, Array]:
        return -eta * gradient * np.where(
            [t < 20_000, t >= 20_000, t >= 20_000], 1.0, 0.0
        ), memory


@pytest.mark.parametrize("arguments", [{"give_up": True}, {"steps": 10**6}, {}])
def test_a_stage_in_which_the_loss_rests_does_not_end_a_run_of_stages(
    arguments: dict[str, Any],
) -> None:
    run = icl.descend(
        Bowl(), 0.5, epsilon=0.01, rule=Waiting(), method="auto", **arguments
    )
    assert (run.steps, run.method) == (
        20_004,
        "exact",
    )  # ¼ to the power 4 is the first below 0.01


def test_a_run_of_stages_still_ends_at_a_floor_above_its_target() -> None:
    class Raised(Bowl):
        def floor(self) -> float:
            return 0.5

        def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
            loss, gradient = super().evaluate(params, step)
            return loss + 0.5, gradient

    assert (
        icl.descend(Raised(), 0.5, epsilon=0.01, rule=Waiting(), method="auto").stop
        is icl.engine.Stop.FLOOR
    )


def test_auto_takes_every_step_of_a_risk_that_draws_data() -> None:
    risk = icl.SampledRisk(
        icl.Features.simplex(3, 1.0), icl.tasks.Linear(1.0), N=9, batch=4, seed=0
    )
    assert icl.descend(risk, 0.1, steps=3, method="auto").method == "exact"


class Drift(icl.Risk):
    """A slow fall to 1, of little height: 1 + h x, by the rate r in each step."""

    initial = np.ones(1)

    def __init__(self, height: float, rate: float) -> None:
        self.height, self.rate = height, rate

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        x = float(params[0])
        return 1.0 + 0.5 * self.height * x * x, np.array([self.height * x])


@pytest.mark.parametrize("target", [0.3, 0.03, 0.003])
def test_a_slow_run_goes_on_while_it_falls_by_more_than_is_missing(
    target: float,
) -> None:
    """The loss moves by less than a thousandth of itself; its count is that of a geometric series."""
    height, rate = 4e-5, 5e-5
    risk = Drift(height, rate)
    run = icl.descend(
        risk, rate / height, epsilon=1.0 + 0.5 * height * target, method="exact"
    )
    expected = math.log(target) / (2.0 * math.log1p(-rate))
    assert run.steps is not None
    assert abs(run.steps - expected) <= 1.0


def test_counts_of_rates_that_rounding_parts_differ_by_less_than_their_errors() -> None:
    """Losses e^(-rt) at two rates one unit in the last place apart, up to 4e18 steps."""
    for rate in (1e-3, 1e-10, 1e-17):
        found = [
            first_steps(
                lambda t, r=r: np.exp(-r * t.astype(float)),
                np.array([math.exp(-30.0)]),
                2**62,
            )
            for r in (rate, rate * (1.0 + 2.0**-52))
        ]
        (one, error), (other, more) = (
            (int(count[0]), float(doubt[0])) for count, doubt in found
        )
        assert abs(one - other) <= error + more


def test_first_steps_are_those_of_a_search_through_all_losses() -> None:
    """Losses that fall, some by nothing for a while, and targets on, between and outside of them."""
    rng = np.random.default_rng(0)
    for last in (0, 1, 2, 3, 7, 100):
        for _ in range(20):
            losses = np.sort(rng.integers(1, 2 * last + 3, (6, last + 4)), axis=1)[
                :, ::-1
            ].astype(float)
            targets = rng.integers(0, 2 * last + 4, 6) + rng.choice([0.5, 1.0], 6)

            def loss(
                t: np.ndarray, given: np.ndarray = losses, end: int = last + 3
            ) -> np.ndarray:
                return given[np.arange(6), np.minimum(t, end)] - np.maximum(
                    t - end, 0
                )  # it falls on by 1 a step

            found, error = first_steps(loss, targets, last)
            for row, target, step, doubt in zip(
                losses, targets, found.tolist(), error, strict=True
            ):
                reached = np.flatnonzero(row[: last + 1] <= target)
                assert step == (reached[0] if reached.size else 2**63 - 1)
                if not reached.size or not step:
                    assert doubt == 0.0
                # rounding decides where the target, or the loss before it, is met
                # exactly
                else:
                    assert (doubt >= 1.0) == (target in row[step - 1 : step + 1])


@pytest.mark.parametrize("rate", [1e-3, 1e-9, 1e-13])
def test_errors_of_first_steps_are_the_doubt_of_the_loss_over_its_slope(
    rate: float,
) -> None:
    """Of e^(-rt), whose slope is r times the loss: by rounding of the loss, of its rate twice, and as given."""
    target = math.exp(-5.0)

    def loss(t: np.ndarray) -> np.ndarray:
        return np.exp(-rate * t.astype(float))

    for given in (0.0, 1e-12, 1e-7):
        (step,), (error,) = first_steps(
            loss,
            np.array([target]),
            2**62,
            lambda t, b=given: np.full(len(t), b * target),
        )
        expected = 2.0**-50 * (1.0 / rate + 2.0 * float(step)) + given / rate
        assert error == pytest.approx(expected, rel=0.02, abs=1.0)
        assert abs(float(step) - 5.0 / rate) <= error + 1.0


class Level(icl.Risk):
    """A loss that stays where it is, although it has a slope."""

    initial = np.array([1.0])

    def __init__(self, loss: float, floor: float) -> None:
        self._loss, self._floor = loss, floor

    def evaluate(self, params: np.ndarray, step: int = 0) -> tuple[float, np.ndarray]:
        return self._loss, np.ones(1)

    def floor(self) -> float:
        return self._floor


def test_a_loss_at_a_level_exactly_has_reached_it() -> None:
    """The floor counts as reached a thousandth above it, where the target is below."""
    level = 2.0 * (1.0 + 1e-3)
    for loss, epsilon, stop in (
        (level, 1.0, Stop.FLOOR),
        (np.nextafter(level, 3.0), 1.0, Stop.STEPS),
        (level, level, Stop.REACHED),
        (2.0, 2.0, Stop.REACHED),
    ):
        run = icl.descend(
            Level(float(loss), 2.0), 0.1, epsilon=epsilon, steps=20, give_up=True
        )
        assert run.stop is stop


# a saved loss, one ten times as many steps later, the slopes there, the target, and
# whether the run stalls
STALLS: dict[str, tuple[float, float, float, float, float, bool]] = {
    "settles": (1.0, 1.0 - 9e-4, 2e-8, 0.98e-8, 0.5, True),
    "the slope is more than half of it": (1.0, 1.0 - 9e-4, 2e-8, 1.02e-8, 0.5, False),
    "moves by a thousandth": (1.0, 1.0 - 1.01e-3, 2e-8, 0.9e-8, 0.5, False),
    "moves by more than is missing": (
        1.0,
        1.0 - 9e-4,
        2e-8,
        0.5e-8,
        1.0 - 1.7e-3,
        False,
    ),
    "moves by less than is missing": (
        1.0,
        1.0 - 9e-4,
        2e-8,
        0.5e-8,
        1.0 - 1.9e-3,
        True,
    ),
    "a cycle moves by less than 1 % of what slopes promise": (
        1.0,
        1.0 - 8e-4,
        1e-6,
        1e-6,
        0.5,
        True,
    ),
    "moves by more than 1 %": (1.0, 1.0 - 8e-4, 0.88e-6, 0.88e-6, 0.5, False),
    "the lesser slope promises": (1.0, 1.0 - 8e-4, 0.88e-6, 1.0, 0.5, False),
    "a cycle moves by a thousandth": (1.0, 1.0 - 2e-3, 1.0, 1.0, 0.5, False),
    "rounding": (1.0, 1.0 - 0.9e-13, 1e-20, 1e-20, 0.5, True),
    "more than rounding": (1.0, 1.0 - 1.2e-13, 1e-20, 1e-20, 0.5, False),
    "half a per cent of a small loss": (0.01, 0.00995, 1e-9, 1e-10, 0.001, False),
    "the slope of a plateau grows": (1.0, 1.0 - 1e-6, 1e-11, 1e-10, 0.5, False),
}


@pytest.mark.parametrize("name", STALLS)
def test_a_run_that_stalls_is_told_from_a_plateau(name: str) -> None:
    before, now, early, late, epsilon, stalled = STALLS[name]
    for last in (9_999, 10_000, 10**5):
        recorder = Recorder(Power(), 10**6)
        for step, loss, slope in (
            (0, 2.0, 1.0),
            (last // 10, before, early),
            (last, now, late),
        ):
            scaled = (
                slope * 10**5 / last if step else slope
            )  # what a step promises, times the steps, is the same
            recorder.saved.append(Saved(step, loss, scaled, np.zeros(1), {}))
        assert recorder.has_stalled(epsilon) == (stalled and last >= 10_000)


def test_each_block_moves_by_eta_in_the_metric_of_its_entries() -> None:
    class Split(icl.Risk):
        initial = np.array([3.0, 4.0, 1.0])
        metric = np.array([1.0, 4.0, 9.0])

        def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
            return 0.5 * float(params @ params), params

        def blocks(self, array: Array) -> Any:
            return array[:2], array[2:]

    move = icl.descend(Split(), 0.1, steps=1, rule="ngd-blocks").states
    lengths = Split.metric * (move[1] - move[0]) ** 2
    assert [lengths[:2].sum(), lengths[2]] == pytest.approx([0.01, 0.01], rel=1e-12)


def test_a_run_that_may_not_give_up_goes_on_where_its_loss_rests() -> None:
    def leave(step: int, _: Any) -> None:
        if step >= 3000:
            raise KeyboardInterrupt

    stuck = Level(1.0, 2.0)
    assert icl.descend(stuck, 0.1, epsilon=0.5, callback=leave).t[-1] < 3000
    run = icl.descend(stuck, 0.1, epsilon=0.5, callback=leave, give_up=False)
    assert run.t[-1] >= 3000
    assert run.interrupted


def test_a_long_run_in_single_steps_goes_on_for_a_while() -> None:
    risk = icl.ExchangeableRisk(3, 0.5)
    run = icl.descend(risk, 1e-3, steps=10_010, method="exact")
    longer = icl.descend(risk, 1e-3, steps=10_030, method="exact")
    np.testing.assert_allclose(run.at(10_030).params, longer.params, rtol=1e-13)


def exchangeable_losses(K: int, L: float, eta: float, steps: int) -> list[mpmath.mpf]:
    """Losses of the exchangeable class by its map of one number, with 113 bits."""
    with mpmath.workprec(113):
        gamma = mpmath.mpf(L) ** 2 / 2
        scale = gamma * K / mpmath.mpf(K - 1)
        u, losses = mpmath.mpf(0), []
        for _ in range(steps + 1):
            w = (K - 1) * mpmath.exp(-u)
            attention, missed = 1 / (1 + w), w / (1 + w)
            losses.append(scale * missed**2 / 2)
            u += mpmath.mpf(eta) * scale / (K - 1) * attention * missed**2
    return losses


@pytest.mark.parametrize("method", ["exact", "auto", "fast"])
def test_ties_are_within_the_error_of_single_steps_and_other_counts_are_right(
    method: str,
) -> None:
    """Targets at the losses of the first ten and some later steps, a few units of rounding up or down."""
    for K, L, eta in ((3, 1.3, 2.0), (7, 0.8, 11.0), (40, 2.1, 30.0)):
        features = icl.Features.simplex(K, 1.0)
        risk = icl.ExchangeableRisk(
            K, float(icl.tasks.Exchangeable(L).variogram(features)[0, 1])
        )
        losses = exchangeable_losses(K, L, eta, 130)
        for step in (0, 1, 2, 3, 10, 60, 120):
            tie = float(losses[step])
            for units in (-3, 0, 2):
                epsilon = tie * (1.0 + units * 2.0**-52)
                run = descend_in_steps(risk, eta, epsilon, method)
                right = next(n for n, loss in enumerate(losses) if loss <= epsilon)
                assert run.error is not None
                assert 1.0 <= run.error < 3.0
                assert abs(run.steps - right) <= run.error
            if step:
                between = float(0.5 * (losses[step - 1] + losses[step]))
                run = descend_in_steps(risk, eta, between, method)
                assert run.steps == step
                assert run.error is None or run.error < 1.0


def descend_in_steps(
    risk: icl.Risk, eta: float, epsilon: float, method: str
) -> icl.Trajectory:
    """Train a risk without its closed form."""

    class Stepped(icl.Risk):
        initial = risk.initial
        metric = risk.metric

        def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
            return risk.evaluate(params, step)

    return icl.descend(Stepped(), eta, epsilon=epsilon, method=method)


@pytest.mark.parametrize("eta", [0.1, 0.37])
def test_ties_of_a_parabola_are_within_the_error_in_exact_arithmetic(
    eta: float,
) -> None:
    risk, factor = Power(), 1 - Fraction(eta)
    for step in range(12):
        exact = factor ** (2 * step) / 2
        for epsilon in (
            float(exact),
            math.nextafter(float(exact), 0.0),
            float(exact) * (1.0 + 1e-9),
        ):
            run = icl.descend(risk, eta, epsilon=epsilon)
            right = next(
                n for n in range(20) if factor ** (2 * n) / 2 <= Fraction(epsilon)
            )
            assert abs(run.steps - right) <= (run.error or 0.0)
            assert (run.error is None) == (
                abs(Fraction(epsilon) / exact - 1) > Fraction(1, 10**10)
            )


def test_a_tie_as_wide_as_the_error_of_the_risk_is_told() -> None:
    """A risk that knows its loss to a relative 1e-6 alone, in two coordinates."""

    class Rough(Power):
        def loss_error(self, params: Any) -> float:
            return 1e-6 * self.loss(params)

    loss = float(Fraction(9, 10) ** 6 / 2)
    for risk in (
        Rough(),
        Pullback(Rough(), Affine(np.array([1.0]), csc_array([[1.0]]), (1,))),
    ):
        assert icl.descend(
            risk, 0.1, epsilon=loss * (1.0 + 5e-7)
        ).error == pytest.approx(1.0, abs=1e-3)
        assert icl.descend(risk, 0.1, epsilon=loss * (1.0 + 5e-6)).error is None
    assert icl.descend(Power(), 0.1, epsilon=loss * (1.0 + 5e-7)).error is None
