"""Update rules: their definitions, their memory across every restart, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory._validate import Array
from icl_theory.engine import (
    Adam,
    AdamW,
    Clipped,
    Decayed,
    GradientDescent,
    HeavyBall,
    Nesterov,
    Projected,
    Rule,
    Scheduled,
)
from icl_theory.engine.rules import NO_MEMORY, RULES
from icl_theory.engine.rules.schedules import (
    Cosine,
    InverseSqrt,
    Piecewise,
    StepDecay,
    WarmUp,
)
from icl_theory.testing import check_rule
from icl_theory.testing.rules import QuarticBowl

EVERY: dict[str, Rule] = {
    **RULES,
    "heavy ball with decay": HeavyBall(0.5, weight_decay=0.1),
    "Adam with decay": Adam(0.8, 0.9, weight_decay=0.1),
    "AdamW": AdamW(weight_decay=0.2),
    "decoupled decay": Decayed(HeavyBall(), 0.1),
    "clipped": Clipped(Adam(), 0.1),
    "clipped blocks": Clipped(GradientDescent(), 0.1, blocks=True),
    "ball": Projected(HeavyBall(), 0.5),
    "sphere": Projected(GradientDescent(), 2.0, "sphere"),
    "spheres": Projected(HeavyBall(), 1.5, "sphere", blocks=True),
    "cosine": Scheduled(Nesterov(), Cosine(80)),
    "warm-up": Scheduled(AdamW(), WarmUp(7, StepDecay(10))),
    "of one's own": Scheduled(
        Clipped(Decayed(HeavyBall(), 0.1), 0.3), lambda t: 1.0 / (1.0 + t)
    ),
}


@pytest.mark.parametrize("name", EVERY)
def test_every_rule_keeps_its_promises(name: str) -> None:
    rule = EVERY[name]
    if name != "of one's own":  # a lambda cannot be pickled
        check_rule(rule, steps=40)
    run = icl.descend(QuarticBowl(), 0.05, steps=300, rule=rule)
    steps = np.random.default_rng(1).integers(1, rule.horizon or 300, 8).tolist()
    for t in steps:
        shorter = icl.descend(QuarticBowl(), 0.05, steps=t, rule=rule)
        np.testing.assert_array_equal(run.at(t).params, shorter.params)
    longer = icl.descend(QuarticBowl(), 0.05, steps=350, rule=rule)
    if rule.horizon is None:
        np.testing.assert_array_equal(run.at(350).params, longer.params)
    else:
        with pytest.raises(
            ValueError,
            match=r"^t = 350: must be at most 80: from there on the learning rate",
        ):
            run.at(350)


# ---- definitions, as PyTorch's documentation writes its algorithms


def _torch_sgd(
    params: Array,
    gradient: Callable[[Array], Array],
    lr: float,
    steps: int,
    **options: Any,
) -> Array:
    """SGD as torch.optim documents it."""
    momentum, decay = options.get("momentum", 0.0), options.get("weight_decay", 0.0)
    buffer = None
    for _ in range(steps):
        g = gradient(params) + decay * params
        buffer = g if buffer is None else momentum * buffer + g
        g = g + momentum * buffer if options.get("nesterov") else buffer
        params = params - lr * g
    return params


def _torch_adam(
    params: Array,
    gradient: Callable[[Array], Array],
    lr: float,
    steps: int,
    **options: Any,
) -> Array:
    """Adam and AdamW as torch.optim documents them."""
    beta1, beta2 = options.get("betas", (0.9, 0.999))
    decay, decoupled = options.get("weight_decay", 0.0), options.get("decoupled", False)
    m = np.zeros_like(params)
    v = np.zeros_like(params)
    for t in range(1, steps + 1):
        g = gradient(params)
        if decoupled:
            params = params - lr * decay * params
        else:
            g = g + decay * params
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        params = params - lr * (m / (1 - beta1**t)) / (
            np.sqrt(v / (1 - beta2**t)) + 1e-8
        )
    return params


@pytest.mark.parametrize(
    ("rule", "reference", "options"),
    [
        (HeavyBall(0.9), _torch_sgd, {"momentum": 0.9}),
        (HeavyBall(0.5, 0.1), _torch_sgd, {"momentum": 0.5, "weight_decay": 0.1}),
        (Nesterov(0.9), _torch_sgd, {"momentum": 0.9, "nesterov": True}),
        (
            Nesterov(0.7, 0.2),
            _torch_sgd,
            {"momentum": 0.7, "weight_decay": 0.2, "nesterov": True},
        ),
        (Adam(), _torch_adam, {}),
        (
            Adam(0.8, 0.99, weight_decay=0.1),
            _torch_adam,
            {"betas": (0.8, 0.99), "weight_decay": 0.1},
        ),
        (AdamW(), _torch_adam, {"weight_decay": 0.01, "decoupled": True}),
    ],
)
def test_rules_are_the_algorithms_of_pytorch(
    rule: Rule, reference: Any, options: dict[str, Any]
) -> None:
    bowl = QuarticBowl()
    expected = reference(
        bowl.initial, lambda params: bowl.evaluate(params)[1], 0.05, 150, **options
    )
    trained = icl.descend(bowl, 0.05, steps=150, rule=rule, give_up=False).params
    np.testing.assert_allclose(trained, expected, rtol=1e-11, atol=1e-14)


def test_schedules_have_the_factors_of_pytorch() -> None:
    cosine = Cosine(10)
    assert [round(cosine.factor(t), 12) for t in (0, 5, 10, 11)] == [1.0, 0.5, 0.0, 0.0]
    assert [StepDecay(3, 0.5).factor(t) for t in (0, 2, 3, 6)] == [1.0, 1.0, 0.5, 0.25]
    assert [Piecewise((2, 5), 0.5).factor(t) for t in (1, 2, 4, 5)] == [
        1.0,
        0.5,
        0.5,
        0.25,
    ]
    assert [InverseSqrt().factor(t) for t in (0, 3, 99)] == [1.0, 0.5, 0.1]
    assert [InverseSqrt(5).factor(t) for t in (0, 15, 495)] == [1.0, 0.5, 0.1]
    warm = WarmUp(4, StepDecay(3, 0.5))
    assert [warm.factor(t) for t in (0, 3, 4, 6, 7)] == [0.25, 1.0, 1.0, 1.0, 0.5]


def test_a_run_ends_where_its_schedule_ends() -> None:
    run = icl.descend(
        QuarticBowl(),
        0.05,
        steps=500,
        rule=Scheduled(GradientDescent(), WarmUp(3, Cosine(20))),
    )
    assert int(run.t[-1]) == 23


def test_clipping_shortens_gradients_to_the_norm_and_no_other() -> None:
    bowl = QuarticBowl()
    gradient = bowl.evaluate(bowl.initial)[1]
    norm = float(np.linalg.norm(gradient))
    short = Clipped(GradientDescent(), 0.1).clipped(bowl, gradient)
    assert np.linalg.norm(short) == pytest.approx(0.1, rel=1e-5)
    np.testing.assert_array_equal(
        Clipped(GradientDescent(), 2.0 * norm).clipped(bowl, gradient), gradient
    )


@pytest.mark.parametrize("onto", ["ball", "sphere"])
def test_projections_keep_parameters_where_they_belong(onto: str) -> None:
    run = icl.descend(
        QuarticBowl(), 0.01, steps=200, rule=Projected(GradientDescent(), 0.8, onto)
    )
    lengths = np.linalg.norm(run.states[1:].reshape(len(run.t) - 1, -1), axis=1)
    assert (lengths <= 0.8 * (1.0 + 1e-12)).all()
    assert onto == "ball" or np.allclose(lengths, 0.8, rtol=1e-12)


def test_inside_the_ball_a_change_keeps_all_its_digits() -> None:
    """A change of 1e-18 of the parameters has none left in their sum."""
    params, gradient = np.array([0.3, -0.2]), np.array([1e-18, 3e-19])
    change, _memory = Projected(GradientDescent(), 0.8).step(
        QuarticBowl(), params, gradient, 0.5, NO_MEMORY, 1
    )
    np.testing.assert_array_equal(change, -0.5 * gradient)


def test_a_projection_of_tiny_parameters_is_on_the_sphere() -> None:
    """The squares of these parameters underflow."""
    params = np.array([3e-200, 4e-200])
    change, _memory = Projected(GradientDescent(), 1.0, "sphere").step(
        QuarticBowl(), params, np.zeros(2), 0.5, NO_MEMORY, 1
    )
    np.testing.assert_allclose(params + change, [0.6, 0.8], rtol=1e-14)


@pytest.mark.parametrize("onto", ["ball", "sphere"])
def test_projection_by_blocks_is_that_of_each_block(onto: str) -> None:
    """Two vectors of which the first grows beyond the radius, in a loop of one's own."""

    class Pull(icl.Risk):
        initial = np.array([[0.3, 0.1], [0.2, -0.4]])

        def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
            gap = params - np.array([[2.0, 1.0], [0.1, -0.2]])
            return 0.5 * float(np.sum(gap**2)), gap

        def blocks(self, array: Array) -> list[Array]:
            return list(array)

    rule = Projected(GradientDescent(), 0.6, onto, blocks=True)
    run = icl.descend(Pull(), 0.2, steps=12, rule=rule)
    params = Pull.initial
    for _ in range(12):
        params = params - 0.2 * Pull().evaluate(params)[1]
        for row in params:
            length = np.linalg.norm(row)
            if onto == "sphere" or length > 0.6:
                row *= 0.6 / length
    np.testing.assert_allclose(run.params, params, rtol=1e-14)
    lengths = np.linalg.norm(run.params, axis=1)
    assert lengths[0] == pytest.approx(0.6, rel=1e-14)
    assert (lengths[1] < 0.5) == (onto == "ball")


# ---- reductions of the parameters


@pytest.mark.parametrize("rule", ["gd", "ngd", "heavy-ball", "nesterov"])
def test_reduced_parameters_train_like_the_full_ones(rule: str) -> None:
    reduced = icl.Regression(L=2.0, delta=1.0, eta=0.3, K=5, N=20, rule=rule)
    features = icl.Features.simplex(5, 1.0)
    full = icl.PopulationRisk(features, icl.tasks.Exchangeable(2.0), N=20)
    one = icl.descend(reduced.risk(), 0.3, steps=18, rule=rule, give_up=False)
    many = icl.descend(full, 0.3, steps=18, rule=rule, give_up=False)
    np.testing.assert_allclose(one.loss, many.loss, rtol=1e-9)


def test_adam_trains_the_full_parameters() -> None:
    problem = icl.Regression(
        L=2.0, delta=1.0, eta=0.1, K=5, N=20, rule="adam", max_steps=100
    )
    run = problem.simulate()
    assert run.states.shape[1:] == (5, 5)
    risk = icl.PopulationRisk(
        icl.Features.simplex(5, 1.0), icl.tasks.Exchangeable(2.0), N=20
    )
    expected = _torch_adam(np.zeros((5, 5)), risk.gradient, 0.1, int(run.t[-1]))
    np.testing.assert_allclose(run.params, expected, rtol=1e-9, atol=1e-12)
    with pytest.raises(
        ValueError, match=r"^rule = 'adam': must be one that commutes with reductions"
    ):
        icl.descend(icl.ExchangeableRisk(5, 2.0), 0.1, steps=3, rule="adam")


# ---- restarts


@pytest.mark.parametrize(
    "settings",
    [
        {"rule": "heavy-ball", "momentum": 0.8},
        {"rule": "nesterov"},
        {"rule": "adam", "beta1": 0.7},
        {"rule": "adamw", "weight_decay": 0.1},
        {"weight_decay": 0.01},
        {"rule": "heavy-ball", "clip": 0.01},
        {"schedule": "cosine", "decay_steps": 400, "warmup": 20},
        {"rule": "adam", "schedule": "inverse-sqrt"},
        {"rule": "ngd", "schedule": "piecewise", "milestones": (10, 30)},
    ],
)
def test_a_saved_run_goes_on_with_the_same_bits(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    problem = icl.Regression(
        L=2.0, delta=1.0, eta=0.05, K=4, N=9, above=1e-9, max_steps=100, **settings
    )
    run = problem.simulate()
    run.save(tmp_path / "run.npz")
    loaded = icl.load(tmp_path / "run.npz")
    assert loaded.family is not None
    assert loaded.trained_by == run.trained_by
    longer = problem.changed(max_steps=130).simulate()
    for t in (1, 37, 71, 99, 115, 130):
        np.testing.assert_array_equal(loaded.at(t).params, longer.at(t).params)
        np.testing.assert_array_equal(run.at(t).params, longer.at(t).params)


def test_the_step_from_an_iterate_is_computed_once() -> None:
    counts: dict[int, int] = {}

    class Counting(Rule):
        name = "counting"
        may_stagnate = True

        def step(
            self,
            risk: icl.Risk,
            params: Array,
            gradient: Array,
            eta: float,
            memory: Array,
            t: int,
        ) -> tuple[Array, Array]:
            counts[t] = counts.get(t, 0) + 1
            return -eta * gradient, memory

    icl.descend(QuarticBowl(), 0.1, steps=500, rule=Counting())
    assert counts == dict.fromkeys(range(500), 1)


# ---- what is refused


class Broken(Rule):
    """Gradient descent with a fault."""

    name = "broken"

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def init(self, risk: icl.Risk, params: Array) -> Array:
        return [0.0] if self.fault == "list" else np.zeros(3)  # type: ignore[return-value]

    def step(
        self,
        risk: icl.Risk,
        params: Array,
        gradient: Array,
        eta: float,
        memory: Array,
        t: int,
    ) -> tuple[Array, Array]:
        if self.fault == "in place":
            gradient *= 0.5
        if self.fault == "alone":
            return -eta * gradient  # type: ignore[return-value]
        change = -eta * gradient
        return (change[:1] if self.fault == "change" else change), (
            memory[:1] if self.fault == "memory" else memory
        )


def test_a_rule_whose_init_is_missing_is_named() -> None:
    class Forgotten(Rule):
        name = "forgotten"

        def step(
            self,
            risk: icl.Risk,
            params: Array,
            gradient: Array,
            eta: float,
            memory: Array,
            t: int,
        ) -> tuple[Array, Array]:
            velocity = 0.9 * memory + gradient
            return -eta * velocity, velocity

    with pytest.raises(
        ValueError,
        match=r"^the rule 'forgotten' defines no init, and its step fails without one",
    ):
        icl.descend(QuarticBowl(), 0.1, steps=5, rule=Forgotten())


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("list", r"^memory of the rule 'broken' = \[0.0\]: must be an array"),
        ("alone", r"^step of the rule 'broken' = .*: must be a pair of arrays"),
        (
            "change",
            r"^change of the rule 'broken' = \(1, 2\): must be of shape \(2, 2\)",
        ),
        ("memory", r"^memory of the rule 'broken' = \(1,\): must be of shape \(3,\)"),
        ("in place", r"^the rule 'broken' changes its argument gradient"),
    ],
)
def test_a_broken_rule_is_named(fault: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        icl.descend(QuarticBowl(), 0.1, steps=5, rule=Broken(fault))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"momentum": 0.9},
            "momentum = 0.9: must be left out for the rule 'gd'; it belongs to heavy-ball, nesterov",
        ),
        (
            {"rule": "heavy-ball", "momentum": 1.0},
            "momentum = 1.0: must be a number from 0 to below 1",
        ),
        (
            {"rule": "heavy-ball", "momentum": -0.1},
            "momentum = -0.1: must be a number from 0 to below 1",
        ),
        (
            {"rule": "adam", "beta1": 1.0},
            "beta1 = 1.0: must be a number from 0 to below 1",
        ),
        (
            {"rule": "adam", "beta2": np.nan},
            "beta2 = nan: must be a number from 0 to below 1",
        ),
        ({"weight_decay": -1.0}, "weight_decay = -1.0: must be a finite number >= 0"),
        ({"clip": 0.0}, "clip = 0.0: must be a finite number > 0"),
        (
            {"schedule": "cosine"},
            "decay_steps = None: must be given with schedule = 'cosine'",
        ),
        (
            {"schedule": "piecewise"},
            "milestones = None: must be given with schedule = 'piecewise'",
        ),
        (
            {"decay_steps": 5},
            "decay_steps = 5: must be left out unless schedule is cosine or step or inverse-sqrt",
        ),
        ({"schedule": "cosin"}, "schedule = 'cosin': must be one of"),
        (
            {"schedule": lambda t: np.nan},
            "schedule at step 0 = nan: must be a finite number > 0",
        ),
        (
            {"schedule": lambda t: 0.0},
            "schedule at step 0 = 0.0: must be a finite number > 0",
        ),
        (
            {"schedule": lambda t: -1.0},
            "schedule at step 0 = -1.0: must be a finite number > 0",
        ),
        (
            {"schedule": lambda t: np.ones(2)},
            "schedule = .*: must be one number at step 0",
        ),
        (
            {"rule": "adams"},
            r"rule = 'adams': must be one of .* \(did you mean adam\?\)",
        ),
        ({"rule": HeavyBall}, "rule = <class .*: must be one of"),
        (
            {"rule": HeavyBall(), "momentum": 0.5},
            "momentum = 0.5: must be left out: the rule HeavyBall",
        ),
        (
            {"rule": "adam", "method": "closed"},
            "method = 'closed': must be 'exact' or 'auto' for the rule 'adam'",
        ),
        (
            {"rule": "heavy-ball", "method": "flow"},
            "method = 'flow': must be 'exact', 'fast' or 'auto' for the rule 'heavy-ball', because a step that",
        ),
        (
            {"rule": "nesterov", "method": "fast"},
            "method = 'fast': must be 'exact' or 'auto' for the rule",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        icl.simulate(2.0, 1.0, 0.1, K=4, N=9, max_steps=20, **settings)


def test_sampled_runs_beside_a_curve_are_trained_with_the_settings_of_the_rule() -> (
    None
):
    """Without momentum the heavy ball is gradient descent; with another momentum its samples stray elsewhere."""

    class WithSampler(icl.PopulationRisk):
        def sampled(self, batch: int, seed: int = 0) -> icl.Risk:
            return icl.SampledRisk(self.features, self.task, 6, batch, seed)

    risk = WithSampler(icl.Features.simplex(3, 1.0), icl.tasks.Exchangeable(2.0), N=6)
    losses = risk.loss(risk.initial) * np.ones(12)
    errors = []
    for rule in (GradientDescent(), HeavyBall(0.0), HeavyBall(0.5)):
        run = icl.descend(risk, 0.5, steps=20, rule=rule, give_up=False)
        found = run.compare(losses, batch=16, runs=4, seed=3)
        errors.append([check.standard_error for check in found.checks])
    assert errors[0] == errors[1]
    assert errors[0] != errors[2]


class Skippable(Rule):
    """The heavy ball, with a second memory of squares or with a scale that is none."""

    name = "skippable"
    skippable = True

    def __init__(self, scale: float, copies: int) -> None:
        self.scale, self.copies = scale, copies

    def init(self, risk: icl.Risk, params: Array) -> Array:
        return (
            np.zeros_like(params)
            if self.copies == 1
            else np.zeros((self.copies, *np.shape(params)))
        )

    def step(
        self,
        risk: icl.Risk,
        params: Array,
        gradient: Array,
        eta: float,
        memory: Array,
        t: int,
    ) -> tuple[Array, Array]:
        velocity = 0.5 * memory + gradient / risk.metric
        return -eta * (velocity if self.copies == 1 else velocity[0]), velocity

    def memory_scale(self, eta: float) -> float:
        return self.scale


class Measured(Skippable):
    """The same with its derivative."""

    def jacobian(self, rates: Array, eta: float) -> Array:
        return HeavyBall(0.5).jacobian(rates, eta)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            Skippable(1.0, 2),
            r"memory of the skippable rule 'skippable' = \(2, 3, 3\): must be of the shape of the",
        ),
        (
            Skippable(1.0, 1),
            r"jacobian of the skippable rule 'skippable' = None: must be derivatives of a step with",
        ),
        (
            Measured(0.0, 1),
            r"memory_scale of the rule 'skippable' = 0.0: must be a finite number > 0",
        ),
        (
            Measured(np.nan, 1),
            r"memory_scale of the rule 'skippable' = nan: must be a finite number > 0",
        ),
    ],
)
def test_a_memory_that_cannot_be_skipped_over_is_named(
    rule: Rule, message: str
) -> None:
    risk = icl.PopulationRisk(icl.Features.simplex(3, 1.0), icl.tasks.Linear(2.0), N=9)
    for method in ("fast", "auto"):
        with pytest.raises(ValueError, match=f"^{message}"):
            icl.descend(risk, 0.1, steps=10_000, rule=rule, method=method)
    if rule.memory_scale(1.0) == 1.0:
        with pytest.raises(
            AssertionError,
            match=r"^(memory|jacobian) of a skippable rule: expected an array of shape",
        ):
            check_rule(rule)


def test_a_skippable_rule_of_ones_own_skips_like_the_heavy_ball() -> None:
    risk = icl.PopulationRisk(icl.Features.simplex(3, 1.0), icl.tasks.Linear(2.0))
    check_rule(Measured(1.0, 1), steps=20)
    own, heavy_ball = (
        icl.descend(risk, 0.1, steps=3000, rule=rule, method="fast", give_up=False)
        for rule in (Measured(1.0, 1), HeavyBall(0.5))
    )
    exact = icl.descend(risk, 0.1, steps=3000, rule=HeavyBall(0.5), give_up=False)
    for run in (own, heavy_ball):
        assert run.states_error is not None
        assert np.abs(run.params - exact.params).max() <= run.states_error < 1e-6


def test_the_scale_of_a_velocity_is_the_distance_that_it_moves_without_gradients() -> (
    None
):
    risk, rule, eta = QuarticBowl(), HeavyBall(0.9), 0.3
    params, velocity, distance = np.array(risk.initial), np.array(1.0), 0.0
    for t in range(400):
        move, velocity = rule.step(risk, params, np.array(0.0), eta, velocity, t)
        distance += abs(float(move))
    # The velocity itself moves nothing before it is multiplied by β.
    assert rule.memory_scale(eta) == pytest.approx(distance / 0.9, rel=1e-12)


def test_an_unknown_setting_suggests_the_nearest() -> None:
    with pytest.raises(
        TypeError,
        match=r"simulate\(\) has no argument 'momentun' \(did you mean momentum\?\)",
    ):
        icl.simulate(2.0, 1.0, 0.1, momentun=0.9)


class PlainNorm(Rule):
    """A rule of one's own that ignores the metric, as if no parameter stood for many."""

    name = "plain-norm"

    def step(
        self,
        risk: icl.Risk,
        params: Array,
        gradient: Array,
        eta: float,
        memory: Array,
        t: int,
    ) -> tuple[Array, Array]:
        return np.asarray(-eta * gradient / np.linalg.norm(gradient)), NO_MEMORY


class Entrywise(PlainNorm):
    """The same, which says so."""

    reducible = False


def test_a_rule_that_reduced_parameters_change_is_found_and_told_what_to_do() -> None:
    message = r"reduced parameters in step 0 \(divide .* or set reducible = False\)"
    with pytest.raises(AssertionError, match=message):
        check_rule(PlainNorm())
    check_rule(Entrywise())
