"""Problems of every family with options off their defaults: iterations, ends, files, sweeps, samples and units."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory._validate import Array
from icl_theory.engine import Stop
from icl_theory.families import Family, Number
from icl_theory.testing import check_risk
from tests.problems import PROBLEMS, iterates

FEW = {
    "gaussian": 1,
    "softmax heads": 1,
}  # steps of problems whose every step takes tens of milliseconds
STAGED = "induction heads, log"  # has a rule of its own
ALIKE = [name for name in PROBLEMS if name not in (*FEW, STAGED)]
SEEDLESS = ("linear attention", "linear attention, pair", "linear attention, loop")
LONG = ("induction heads", "single location", "recall, softmax", "sphere, cosine")
BATCHED = [
    name
    for name in ALIKE
    if "batched" in vars(type(PROBLEMS[name]))
    # A loop has no batches. Those of any features are those of probabilities.
    and name not in (SEEDLESS[2], "regression, features")
]
# A method is chosen: the closed form, or, as for all others, the exact steps.
AUTO = (
    "regression, closed",
    "recall, relu",
    "linear attention",
    "linear attention, moments",
    "linear attention, tasks",
    "regression",
)
RULES = ("gd", "ngd", "ngd-blocks")


def problem_of(name: str, **changes: Any) -> Any:
    """A problem whose target is out of reach."""
    goal = {"epsilon": 1e-300} if PROBLEMS[name].goal is not None else {}
    return PROBLEMS[name].changed(**{**goal, **changes})


def same(
    found: Any, wanted: Any, what: str = "", rtol: float = 1e-9, atol: float = 1e-12
) -> None:
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol, err_msg=what)


# ---- steps


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ALIKE)
def test_every_family_takes_the_steps_of_every_rule(name: str, rule: str) -> None:
    last = FEW.get(name, 3)
    problem = problem_of(
        name, rule=rule, max_steps=last, method="exact", eta=0.1 * PROBLEMS[name].rate()
    )
    run, risk = problem.simulate(), problem.risk()
    assert (run.rule, run.eta, run.stop, run.t[-1]) == (
        rule,
        problem.rate(),
        Stop.STEPS,
        last,
    )
    wanted = iterates(risk, rule, problem.rate(), last)
    same(run.states, wanted)
    same(run.loss, [risk.evaluate(state, t)[0] for t, state in enumerate(wanted)])
    for t, state in enumerate(wanted):
        for key, value in risk.observe(state, t).items():
            same(run.observed[key][t], value, key)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        (name, method)
        for name in ALIKE
        if name not in LONG
        for method in ("exact", "auto", "fast", "flow")
        if method != "auto" or name in AUTO
    ],
)
def test_a_run_that_goes_on_is_the_longer_run(
    name: str, method: str, tmp_path: Path
) -> None:
    """Beyond its end, between its saved steps, and when it is read from a file."""
    risk = PROBLEMS[name].risk()
    if risk.stochastic and method in ("fast", "flow"):
        with pytest.raises(ValueError, match=r"^method = "):
            problem_of(name, max_steps=3, method=method).simulate()
        return
    short, long = (
        problem_of(name, max_steps=last, method=method).simulate() for last in (3, 12)
    )
    if method != "flow":
        same(long.at(7).params, iterates(risk, long.rule, long.eta, 7)[7], atol=1e-6)
    for t in (1, 3, 4, 9):
        one, two = short.at(t), long.at(t)
        assert one.t == two.t == t
        same(one.params, two.params, atol=1e-6)
        same(one.loss, two.loss, rtol=1e-6)
        assert one.observed.keys() == two.observed.keys()
        for key, value in one.observed.items():
            same(value, two.observed[key], key, rtol=1e-5, atol=1e-6)
    short.save(tmp_path / "run.npz")
    again = icl.load(tmp_path / "run.npz")
    assert again.to_dict() == short.to_dict()
    assert again.summary() == short.summary()
    if again.family is not None:
        assert again.family.arguments() == short.family.arguments()
        same(again.at(9).params, short.at(9).params, rtol=1e-12)


@pytest.mark.parametrize(
    "name", [name for name in ALIKE if name not in ("matrices", *LONG)]
)
def test_a_run_ends_at_the_first_step_at_its_target_and_not_before(name: str) -> None:
    """At a loss exactly; at the start; at the last step that it may take; and not where that is one earlier."""
    changes: dict[str, Any] = {
        "method": "exact",
        "rule": "gd",
        "eta": 0.1 * PROBLEMS[name].rate(),
    }
    loss = problem_of(name, **changes, max_steps=6).simulate().loss
    assert (np.diff(loss) < 0).all()
    for hit in (0, 3):
        for most in (max(1, hit), 6):
            run = (
                PROBLEMS[name]
                .changed(**changes, epsilon=loss[hit], max_steps=most)
                .simulate()
            )
            assert (run.steps, run.t[-1], run.stop, run.converged) == (
                hit,
                hit,
                Stop.REACHED,
                True,
            )
            assert run.stop_reason == f"reached epsilon = {loss[hit]:g} at step {hit}"
            assert (
                run.family.measured(run)["steps"]
                == run.family.measured(run)["last"]
                == hit
            )
    below = float(np.nextafter(loss[3], 0.0))
    if loss[4] < below:
        assert (
            PROBLEMS[name]
            .changed(**changes, epsilon=below, max_steps=6)
            .simulate()
            .steps
            == 4
        )
    short = PROBLEMS[name].changed(**changes, epsilon=loss[3], max_steps=2).simulate()
    assert (short.steps, short.t[-1], short.stop, short.converged) == (
        None,
        2,
        Stop.STEPS,
        False,
    )
    assert (
        short.stop_reason == f"took all 2 steps without reaching epsilon = {loss[3]:g}"
    )
    found = short.family.measured(short)
    assert (found["steps"], found["last"], found["status"], found["loss"]) == (
        -1,
        2,
        "not reached",
        loss[2],
    )


@pytest.mark.parametrize("rule", ["ngd", "ngd-blocks"])
@pytest.mark.parametrize("name", ["regression", "regression, probabilities"])
def test_only_plain_descent_has_a_tail_and_a_regime(name: str, rule: str) -> None:
    """Where the third phase is that of the law of the tail."""
    plain, other = (
        PROBLEMS[name]
        .changed(rule=each, eta=eta, noise=0.0, above=1e-3, max_steps=10**4)
        .simulate()
        for each, eta in (("gd", PROBLEMS[name].rate()), (rule, 0.02))
    )
    assert plain.phases is not None
    assert other.phases is not None
    assert plain.phases.III is not None
    assert plain.regime is not None
    assert other.converged
    assert (other.phases.III, other.regime) == (None, None)


# ---- options


def others(problem: Family, name: str) -> list[Any]:
    """Other values of a parameter: the next number, or all other words."""
    kind, value = problem.parameters()[name].kind, getattr(problem, name)
    if (
        isinstance(kind, Number)
        and isinstance(value, int | float)
        and not isinstance(value, bool)
    ):
        if kind.whole:
            return [value + 1] if math.isfinite(value) else [9]
        return [1.1 * value if value else 0.1]
    return (
        [word for word in kind.words if word != value] if isinstance(value, str) else []
    )


def fingerprint(problem: Any) -> list[Array]:
    run = problem.simulate()
    numbers = [
        np.ravel(value)
        for value in (run.states, run.loss, *run.observed.values(), run.floor)
    ]
    measured = [
        value for value in problem.measure(run).values() if isinstance(value, float)
    ]
    return [*numbers, np.nan_to_num(np.array(measured))]


def moves(problem: Family, before: list[Array]) -> bool:
    after = fingerprint(problem)
    return not all(
        one.shape == two.shape and np.allclose(one, two, rtol=1e-9)
        for one, two in zip(after, before, strict=False)
    )


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in PROBLEMS
        if name not in (*FEW, "induction heads", "recall, relu", "recall, softmax")
    ],
)
def test_every_option_reaches_the_run(name: str) -> None:
    """What a run is, or what is measured of it, changes with each of them."""
    problem, idle = problem_of(name, max_steps=4 if name == STAGED else 1), set()
    before = fingerprint(problem)
    # the first step of a schedule is that of a constant rate
    for parameter in problem.parameters().keys() - {
        "epsilon",
        "above",
        "method",
        "max_steps",
        "schedule",
    }:
        values = [
            value
            for value in others(problem, parameter)
            if fits(problem, parameter, value)
        ]
        if values and not any(
            moves(problem.changed(**{parameter: value}), before) for value in values
        ):
            idle.add(parameter)
    assert idle == IDLE.get(name, set())


IDLE: dict[str, set[str]] = {
    "regression, closed": {"noise"},
    "regression, factored": {"noise"},  # averaged out of infinite prompts
    "regression, features": {"imbalance"},  # a proof's, which none of the numbers is
    "recall": {"outputs", "seed", "H"},
    "recall, sentences": {"outputs"},  # counts stand for H
    **{key: {"seed"} for key in SEEDLESS},
    "linear attention, moments": {"seed", "d"},  # a covariance stands for d
    "single location": {"scale"},  # softmax has none
    "induction heads, log": {"points", "seed"},  # two states are counted by quadrature
    "matrices": {"v"},  # both matrices are trained
}


# ---- sweeps


def fits(problem: Family, name: str, value: Any) -> bool:
    try:
        problem.changed(**{name: value})
    except ValueError:  # does not fit the others
        return False
    return True


@pytest.mark.parametrize("name", BATCHED)
def test_a_point_of_a_sweep_is_the_run_alone(name: str) -> None:
    """With several values of each number and all words, so that a batch holds points that differ in all of them."""
    problem = problem_of(name, max_steps=2)
    given = problem.arguments()
    numbers = [
        key
        for key, declared in problem.parameters().items()
        if declared.axis
        and isinstance(given.get(key), int | float | str)
        and key not in ("epsilon", "above", "eta")
    ]
    for key in numbers:
        # Points of a batch end at different steps. Other words are other batches.
        targets = [1e-300] if isinstance(given[key], str) else [1e-300, 1e300]
        goal = {"epsilon": targets} if problem.goal is not None else {}
        rates = (
            [problem.rate(), 0.9 * problem.rate()]
            if key == numbers[-1]
            else [problem.rate()]
        )
        axes = {"eta": rates, key: [given[key], *others(problem, key)]}
        axes[key] = [value for value in axes[key] if fits(problem, key, value)]
        swept = icl.sweep(type(problem), **{**given, **goal, **axes}, progress=False)
        where = swept.stack(point=list(swept.status.dims))
        for i in range(where.sizes["point"]):
            at = where.isel(point=i)
            point = problem.changed(
                **{axis: at[axis].item() for axis in (*axes, *goal)}
            )
            wanted = point.measured(point.simulate())
            for column, value in wanted.items():
                there = at[column].item()
                if isinstance(value, float) and column != "error":
                    same(there, value, f"{key} {column}", atol=1e-300)
                elif column not in ("error", "message"):
                    assert there == value, (key, column)


# ---- samples

SAMPLED = (
    "regression, probabilities",
    "regression, features",
    "linear attention, moments",
    "linear attention, heads",
    "linear attention, tasks",
    "linear attention, loop",
    "sphere",
    "sphere, cosine",
    "representation",
    "representation, others",
    "softmax heads",
    "single location",
    "single location, erf",
    "induction heads",
    "induction heads, log",
)


@pytest.mark.parametrize("name", SAMPLED)
def test_batches_have_the_mean_of_the_risk_and_a_variance_over_their_size(
    name: str,
) -> None:
    problem, risk = PROBLEMS[name], PROBLEMS[name].risk()
    # A family may sample more parameters than its risk has.
    source = risk if isinstance(problem, icl.SingleLocation) else problem
    few, many = (source.sampled(batch, seed=3) for batch in (16, 256))
    point = risk.initial + 0.3 * np.random.default_rng(1).normal(
        size=risk.initial.shape
    )
    loss, gradient = risk.evaluate(point)
    direction = np.random.default_rng(2).normal(size=risk.initial.shape)
    one, two = (
        np.array(
            [
                (value, np.sum(slope * direction))
                for value, slope in (trainer.evaluate(point, t) for t in range(60))
            ]
        )
        for trainer in (few, many)
    )
    assert len({value for value, _ in one.tolist()}) == 60
    assert (
        few.evaluate(point, 7)[0]
        == one[7, 0]
        == source.sampled(16, seed=3).evaluate(point, 7)[0]
    )
    assert source.sampled(16, seed=4).evaluate(point, 7)[0] != one[7, 0]
    for found in (one, two):
        error = found.std(axis=0, ddof=1) / math.sqrt(60)
        z = (found.mean(axis=0) - (loss, np.sum(gradient * direction))) / error
        assert (np.abs(z) < 4.5).all()
    ratio = one.var(axis=0) / two.var(axis=0)
    assert ((ratio > 5) & (ratio < 50)).all()  # 16 but for the scatter of variances


# ---- units


SCALED: dict[str, dict[str, float]] = {
    "regression": {"L": 1, "noise": 1},
    "regression, closed": {"L": 1},
    "regression, probabilities": {"L": 1, "noise": 1},
    "regression, embedding": {"L": 1, "noise": 1},
    "groups": {"L": 1, "noise": 1},
    "sphere": {"L": 1, "noise": 1},
}  # powers of the unit of labels in parameters


@pytest.mark.parametrize("name", SCALED)
def test_losses_in_other_units_of_the_labels_are_the_same_losses(name: str) -> None:
    """Labels c times as large: losses and excesses c² times, and c² smaller rates take the same steps."""
    c, problem = 1.7, PROBLEMS[name].changed(method="auto")
    target = (
        {"epsilon": problem.epsilon * c**2}
        if problem.epsilon
        else {"above": problem.above * c**2}
    )  # type: ignore[operator]
    changes = {
        key: c**power * getattr(problem, key) for key, power in SCALED[name].items()
    }
    other = problem.changed(**changes, **target, eta=problem.rate() / c**2)
    one, two = problem.simulate(), other.simulate()
    assert (one.steps, one.phases, one.regime) == (two.steps, two.phases, two.regime)
    same(two.states, one.states, atol=1e-8)
    same(two.loss, c**2 * one.loss)
    columns = {column.name: column for column in problem.every_column()}
    before, after = problem.measured(one), other.measured(two)
    for key, value in before.items():
        if isinstance(value, float) and key not in ("error", "eta_used"):
            power = {
                "squared label units": 2,
                "label units": 1,
                "label units per feature unit": 1,
            }.get(columns[key].unit, 0)
            same(after[key], c**power * value, key, rtol=1e-6)


@pytest.mark.parametrize(
    "name", [name for name in PROBLEMS if name not in ("sphere", *FEW, *LONG)]
)
def test_risks_keep_their_promises_off_the_defaults(name: str) -> None:
    check_risk(PROBLEMS[name].risk())
