"""The closed forms of the explorer's panel on recall, run by a JavaScript engine, against Python's."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest

import icl_theory as icl
from icl_theory.engine.descent import MAX_STEPS
from tests.javascript import call

RUNS = """
const { Run } = require("recall/closed"), { parameters, sound } = require("recall/panel");
return given[0].map((drawn) => {
  const values = { ...drawn, ...sound(drawn).changes }, run = new Run(values);
  const at = [0, 0.3, 1].map((part) => run.at(Math.round(run.last * part)));
  return { parameters: parameters(values), steps: run.steps, error: run.error, at };
});
"""


@pytest.fixture(scope="module")
def runs() -> list[tuple[dict[str, Any], icl.Trajectory]]:
    """Runs of the page and of Python for settings over the range of the sliders, a third of them without noise."""
    rng, number = np.random.default_rng(0), 250
    drawn = {
        "triggers": np.floor(10 ** rng.uniform(0, 3, number)),
        "V": np.floor(10 ** rng.uniform(0.6, 5, number)),
        "alpha": np.where(
            rng.random(number) < 1 / 3, 0.0, rng.uniform(0.01, 0.95, number)
        ),
        "eta": 10 ** rng.uniform(-7, 0.3, number),
        "counts": rng.integers(1, 17, number).astype(float),
        "above": 10 ** rng.uniform(-9, 0.3, number),
    }
    found = call(
        RUNS,
        [
            {name: float(values[i]) for name, values in drawn.items()}
            for i in range(number)
        ],
    )
    whole = ("V", "triggers", "outputs", "counts", "H")
    problems = [
        page["parameters"] | {name: int(page["parameters"][name]) for name in whole}
        for page in found
    ]
    return [
        (page, icl.Recall(**problem).simulate())
        for page, problem in zip(found, problems, strict=True)
    ]


def steps_known(problem: dict[str, Any]) -> int:
    """First step with (V-1)e^(-λc), or (1-α)(V-2)e^(-λc), at most e^above - 1, in forty digits."""
    with mpmath.workdps(40):
        alpha = mpmath.mpf(problem.get("alpha", 0.0))
        weight = (1 - alpha) * (problem["V"] - 2) if alpha else problem["V"] - 1
        step = (
            mpmath.mpf(problem["eta"])
            * problem["counts"]
            / mpmath.sqrt(problem["triggers"])
        )
        return max(
            0,
            int(
                mpmath.ceil(mpmath.log(weight / mpmath.expm1(problem["above"])) / step)
            ),
        )


def test_steps_are_the_same_integers(
    runs: list[tuple[dict[str, Any], icl.Trajectory]],
) -> None:
    assert all(run.method == "closed" for _, run in runs)
    errors = [max(page["error"], run.error or 0.0) for page, run in runs]
    for (page, run), error in zip(runs, errors, strict=True):
        known = steps_known(page["parameters"])
        assert abs(page["steps"] - known) <= (error if error >= 1.0 else 0.0)
        assert abs(run.steps - known) <= (error if error >= 1.0 else 0.0)
    assert np.mean(np.array(errors) < 1.0) > 0.9
    counts = [run.steps for _, run in runs if run.steps]
    assert len(counts) > 180
    assert max(counts) > 10**8


def test_losses_are_the_same_to_1e_12(
    runs: list[tuple[dict[str, Any], icl.Trajectory]],
) -> None:
    for page, run in runs[:100]:
        for state in page["at"]:
            there = run.at(state["t"])
            assert state["loss"] == pytest.approx(there.loss, rel=1e-12)
            assert state["excess"] == pytest.approx(
                float(there.observed["excess"]), rel=1e-11, abs=1e-300
            )


def test_probabilities_are_a_law_whose_cross_entropy_is_the_loss(
    runs: list[tuple[dict[str, Any], icl.Trajectory]],
) -> None:
    for page, _ in runs:
        alpha = page["parameters"].get("alpha", 0.0)
        for state in page["at"]:
            output, noise = state["output"], state["noise"]
            assert output + noise + state["rest"] == pytest.approx(1.0, abs=1e-14)
            entropy = -(1.0 - alpha) * np.log(output) - (
                alpha * np.log(noise) if alpha else 0.0
            )
            assert state["loss"] == pytest.approx(entropy, rel=1e-10, abs=1e-14)


def test_a_vocabulary_that_is_too_small_is_made_larger() -> None:
    (page,) = call(
        RUNS,
        [
            {
                "triggers": 50,
                "V": 10,
                "alpha": 0.1,
                "eta": 0.1,
                "counts": 1,
                "above": 1e-3,
            }
        ],
    )
    assert page["parameters"]["V"] == 52
    assert icl.Recall(**page["parameters"]).simulate().steps == page["steps"]


def test_a_target_beyond_all_steps_is_not_reached() -> None:
    (page,) = call(
        RUNS,
        [
            {
                "triggers": 4,
                "V": 50,
                "alpha": 0.0,
                "eta": 1e-30,
                "counts": 1,
                "above": 1e-3,
            }
        ],
    )
    assert page["steps"] is None
    run = icl.Recall(**page["parameters"]).simulate()
    assert run.steps is None
    assert run.t[-1] == MAX_STEPS


def test_stated_errors_are_of_the_size_of_those_of_python(
    runs: list[tuple[dict[str, Any], icl.Trajectory]],
) -> None:
    pairs = np.array(
        [
            (page["error"], run.error)
            for page, run in runs
            if page["steps"] and run.steps and run.error
        ]
    )
    assert len(pairs) > 150
    assert (
        np.mean(np.abs(np.log2(pairs[:, 0] / pairs[:, 1])) < 4) > 0.95
    )  # not where one of them is rounded up
