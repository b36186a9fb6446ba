"""Momentum and Adam in the explorer, against runs of Python on all scores."""

from __future__ import annotations

import math

import numpy as np
import pytest

import icl_theory as icl
from tests.javascript import call

RUNS = """
const { runOf } = require("regression/rules");
return given[0].map((values) => {
  const run = runOf(values), times = [0, 1, 2, 7, 30, 150];
  return { steps: run.reached ? run.steps : null, losses: times.map((t) => run.at(t).loss) };
});
"""


@pytest.mark.parametrize("number", [12, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rule", ["heavy-ball", "adam"])
def test_rules_of_the_page_take_the_steps_of_python(rule: str, number: int) -> None:
    """Python descends on all K x K scores by Adam, and on their gap by momentum."""
    rng = np.random.default_rng([len(rule), number])
    settings = [
        {
            "L": 10.0 ** rng.uniform(-0.5, 0.7),
            "delta": 10.0 ** rng.uniform(-0.3, 0.3),
            "eta": 10.0 ** rng.uniform(-2.0, 0.0),
            "K": int(rng.integers(2, 25)),
            "epsilon": 10.0 ** rng.uniform(-2.5, -1.0),
            "rule": rule,
        }
        for _ in range(number)
    ]
    counted = 0
    for values, page in zip(settings, call(RUNS, settings), strict=True):
        L, delta, eta = values["L"], values["delta"], values["eta"]
        options = {name: values[name] for name in ("K", "epsilon", "rule")}
        run = icl.simulate(L, delta, eta, max_steps=400, **options)
        for t, loss in zip((0, 1, 2, 7, 30, 150), page["losses"], strict=True):
            assert loss == pytest.approx(run.at(t).loss, rel=1e-9), (values, t)
        if run.steps is not None:
            assert page["steps"] == run.steps
            counted += run.steps > 0
    assert counted >= number // 4


def plain_loop(L: float, eta: float, K: int, steps: int, *, by_adam: bool) -> float:
    """The loss after some steps on one row of scores, with explicit softmax."""
    gamma, scores = 0.5 * L * L, np.zeros(K)
    velocity, mean, square = np.zeros((3, K))
    for t in range(1, steps + 1):
        weights = np.exp(scores) / np.exp(scores).sum()
        # loss of one query = γ/2 (|weights - target|²), of which each has a share 1/K
        distance = weights - np.eye(K)[0]
        slope = gamma * weights * (distance - weights @ distance) / K
        velocity = 0.9 * velocity + slope
        mean = 0.9 * mean + 0.1 * slope
        square = 0.999 * square + 0.001 * slope**2
        root = np.sqrt(square / (1.0 - 0.999**t)) + 1e-8
        change = mean / (1.0 - 0.9**t) / root if by_adam else velocity
        scores = scores - eta * change
    weights = np.exp(scores) / np.exp(scores).sum()
    return float(0.5 * gamma * np.sum((weights - np.eye(K)[0]) ** 2))


@pytest.mark.parametrize("rule", ["heavy-ball", "adam"])
def test_rules_of_the_page_are_a_loop_over_scores(rule: str) -> None:
    values = {"L": 1.5, "delta": 1.0, "eta": 0.05, "K": 7, "epsilon": 1e-3}
    (page,) = call(RUNS, [values | {"rule": rule}])
    for t, loss in zip((0, 1, 2, 7, 30, 150), page["losses"], strict=True):
        expected = plain_loop(1.5, 0.05, 7, t, by_adam=rule == "adam")
        assert loss == pytest.approx(expected, rel=1e-9)
    assert math.isfinite(page["losses"][-1])


WORDS = """
const panel = require("regression/panel"), values = {};
for (const { name, value } of panel.settings) values[name] = value;
Object.assign(values, given[0]);
const model = panel.compute(values), now = panel.moment(model, values);
return { words: panel.words(model, now, values), rivals: model.rivals.map(({ name, steps }) => [name, steps]) };
"""


def test_the_other_optimisers_stand_behind_the_one_that_is_chosen() -> None:
    found = call(WORDS, {"rule": "adam", "eta": 0.5, "t": 3})
    expected = {
        rule: icl.simulate(2.0, 1.0, 0.5, K=20, epsilon=1e-3, rule=rule).steps
        for rule in ("gd", "heavy-ball", "adam")
    }
    assert found["rivals"] == [
        ["gradient descent", expected["gd"]],
        ["momentum 0.9", expected["heavy-ball"]],
    ]
    assert f"after **{expected['adam']} steps**" in found["words"][0]
    # the way is the same, and half of the attention is there sooner
    momentum = {"rule": "heavy-ball", "momentum": 0.9, "max_steps": 1000}
    run = icl.simulate(2.0, 1.0, 1.0, K=20, epsilon=1e-3, **momentum)
    half = run.first(lambda state: float(state.attention) >= 0.5)
    plain = icl.simulate(2.0, 1.0, 1.0, K=20, epsilon=1e-3)
    assert half is not None
    line = call(WORDS, {"rule": "heavy-ball"})["words"][1]
    assert f"after **{half}** steps, and by gradient descent" in line
    assert line.endswith(f"after **{plain.phases.I[1]}** steps.")
    # without memory the picture is of one run alone
    assert call(WORDS, {})["rivals"] == []
