"""Public methods refuse wrong input by name, as constructors and functions do."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory._validate import floats, is_masked, iterable, number, sequence
from icl_theory.cli import main
from icl_theory.engine.rules import schedules
from icl_theory.families import RuleParameters, update_rule
from icl_theory.testing import check_rule

MASKED = np.ma.array([0.5, 0.5], mask=[True, False])
LINEAR = icl.tasks.Linear(2.0)
SIMPLEX = icl.Features.simplex(3, 1.0)
RNG = np.random.default_rng(0)
REGRESSION = icl.Regression(L=2.0, delta=1.0, eta=4.0)
OTHER = icl.Regression(L=1.0, delta=1.0, eta=4.0)
MERGED = icl.linear_attention.MergedRisk(
    icl.linear_attention.PromptLaw([1.0, 0.5], N=10), [0.0, 0.0]
)
SAMPLED = icl.SampledRisk(SIMPLEX, LINEAR, N=5, batch=4, seed=0)
SCHEDULES = (
    schedules.Cosine(50),
    schedules.StepDecay(10),
    schedules.Piecewise((5, 10)),
    schedules.InverseSqrt(),
    schedules.WarmUp(5),
)
CALLS: dict[str, Callable[[], Any]] = {
    "rng = 0": lambda: LINEAR.sample(SIMPLEX, 0, 1),
    "size = 1.5": lambda: icl.tasks.Exchangeable(2.0).sample(SIMPLEX, RNG, 1.5),
    "size = None": lambda: icl.tasks.RandomCosine(2.0).functions(
        SIMPLEX, RNG, size=None
    ),
    "gamma = 'x'": lambda: MERGED.modes("x"),
    "modes = ": lambda: MERGED.back(MASKED),
    "params = 0.0": lambda: MERGED.components(0.0),
    "prompts = 5": lambda: SAMPLED.parts(5),
    "names = 5": lambda: icl.Regression.refuse_unknown(5),
    "given = 5": lambda: icl.Recall.unfolded(5),
    "arguments = 5": lambda: icl.Regression.limits(5),
    "points = 10": lambda: icl.Regression.batched(10, {}),
    "common = 'x'": lambda: icl.LinearAttention.batched({"d": np.array([2])}, "x"),
    "all parameters that are not in common; ": lambda: icl.Regression.batched(
        {"L": np.array([1.0])}, {}
    ),
    "L = nan": lambda: icl.Regression.batched({"L": np.array([math.nan])}, {}),
    "run = 5": lambda: REGRESSION.measured(5),
    "training = b'x'": lambda: icl.engine.Scope().applies(b"x"),
    "rules = 'gd'": lambda: icl.engine.Scope("gd"),
    "rules = (5,)": lambda: icl.engine.Scope((5,)),
    "after = 5": lambda: schedules.WarmUp(5, 5),
    "milestones = None": lambda: schedules.Piecewise(None),
    "t = 100000": lambda: schedules.StepDecay(1, 3.0).factor(100000),
    "t = 20": lambda: schedules.Piecewise((5, 10), 1e200).factor(20),
    "momentum = True": lambda: RuleParameters(rule="heavy-ball", momentum=True),
    "beta1 = 0.5": lambda: RuleParameters(beta1=0.5),
    "default = 'x'": lambda: update_rule("x"),
    "L = 5": lambda: icl.Regression.parameters()["L"].check_all(5),
    "L = None": lambda: icl.Regression.parameters()["L"].kind.parse("L", None),
}


@pytest.mark.parametrize("said", CALLS)
def test_a_method_names_the_argument_its_value_and_what_is_allowed(said: str) -> None:
    with pytest.raises(ValueError, match="must be ") as error:
        CALLS[said]()
    assert said in str(error.value)


@pytest.mark.parametrize(
    "schedule", SCHEDULES, ids=lambda schedule: type(schedule).__name__
)
@pytest.mark.parametrize(
    "t", [-1, 0.5, "1", None, np.datetime64("2020-01-01"), MASKED, np.zeros((0, 2))]
)
def test_a_schedule_takes_numbers_of_steps_only(schedule: Any, t: Any) -> None:
    with pytest.raises(ValueError, match="t = "):
        schedule.factor(t)


def test_a_run_of_another_problem_is_neither_measured_nor_described() -> None:
    run = OTHER.simulate()
    for problem in (
        icl.LinearAttention(d=2),
        icl.Regression(L=1.0, delta=1.0, eta=1.0, K=3, probs=[0.5, 0.3, 0.2]),
    ):
        for method in (problem.measured, problem.described, problem.named):
            with pytest.raises(ValueError, match="must be a run of this problem"):
                method(run)
    same = icl.Regression(L=1.0, delta=1.0, eta=4.0)
    assert same.measured(run)["steps"] == run.steps
    unnamed = icl.descend(OTHER.risk(), 4.0, epsilon=1e-3)
    assert OTHER.described(unnamed).family is OTHER
    with pytest.raises(ValueError, match="must be a run of this problem"):
        icl.LinearAttention(d=2).measured(icl.descend(OTHER.risk(), 4.0, epsilon=1e-3))


def test_numbers_of_rules_are_kept_as_plain_numbers() -> None:
    """Fractions would make arrays of objects, and small integers overflow."""
    engine = icl.engine
    half = Fraction(1, 2)
    rules = (
        engine.HeavyBall(half, half),
        engine.Adam(half, half, half, half),
        engine.Clipped(engine.GradientDescent(), half),
        engine.Decayed(engine.GradientDescent(), half),
        engine.Projected(engine.GradientDescent(), half),
    )
    for rule in rules:
        kept = {
            name: value
            for name, value in vars(rule).items()
            if not isinstance(value, str | engine.Rule)
        }
        assert {type(value) for value in kept.values()} <= {float, bool}
        check_rule(rule, steps=10)
    assert (
        schedules.WarmUp(np.int8(3), schedules.StepDecay(np.int8(100))).factor(10**6)
        == 0.0
    )


def test_a_rate_at_which_a_rule_diverges_fails_with_a_sentence() -> None:
    with pytest.raises(AssertionError, match="expected finite numbers"):
        check_rule(icl.engine.HeavyBall(), eta=4.0, steps=300)


def test_rule_that_cannot_be_copied_fails_its_check_with_a_sentence() -> None:
    rule = icl.engine.Scheduled(icl.engine.GradientDescent(), lambda t: 1 / (t + 1))
    with pytest.raises(
        AssertionError, match="copy of the rule by pickle: expected no exception"
    ):
        check_rule(rule)


@pytest.mark.parametrize(
    "value",
    [
        ["1", "2"],
        [1.0, "2"],
        np.array(["1"]),
        np.array([1, "2"], dtype=object),
        np.datetime64("2020-01-01"),
        np.array([1, 2], dtype="m8[s]"),
        [np.timedelta64(3, "D"), 1.0],
        [MASKED, [1.0, 2.0]],
        [[1.0, np.ma.masked]],
        [[1.0], [1.0, 2.0]],
    ],
)
def test_texts_dates_and_nested_masks_are_no_numbers(value: Any) -> None:
    assert floats(value) is None
    with pytest.raises(ValueError, match="x = "):
        number("x", value)


def test_lists_with_masks_are_looked_at_without_a_warning() -> None:
    assert is_masked([1.0, np.ma.masked])
    assert not is_masked([1.0, np.ma.array([1.0, 2.0])])
    assert len([*iterable("x", [1.0, np.ma.masked], "numbers")]) == 2
    with pytest.raises(ValueError, match="x = "):
        sequence("x", [1.0, np.ma.masked], float, "floats")


def test_scores_whose_integral_does_not_fit_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("icl_theory.memory.free", lambda: 2.0**27)
    risk = icl.SingleLocation(eta=1.0).risk()
    with pytest.raises(ValueError, match=r"smaller: this takes .* GB of memory"):
        risk.loss(np.array(risk.initial) + 100.0)


def test_a_missing_curve_is_named_on_the_command_line(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    REGRESSION.simulate().save(tmp_path / "run.npz")
    with pytest.raises(SystemExit):
        main(["compare", str(tmp_path / "run.npz"), "none.csv"])
    assert (
        capsys.readouterr().err == "icl-theory: none.csv: No such file or directory\n"
    )
