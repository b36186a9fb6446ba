"""The closed forms of the explorer's panel on linear attention, run by a JavaScript engine, against Python's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.papers.linear_attention import PromptLaw
from tests.javascript import call

RUNS = """
const { Run, Law, limit } = require("linear-attention/closed"), { parameters } = require("linear-attention/panel");
return given[0].map(({ part, ...drawn }) => {
  const values = { ...drawn, eta: part * limit(drawn) }, run = new Run(values);
  const at = [0, 0.3, 1].map((share) => run.at(Math.round(run.last * share)));
  const { steps, error, plateau, last, law } = run;
  const test = new Law({ d: drawn.d, decay: 0.3, N: 7, noise: 1.5 });
  return { parameters: parameters(values), steps, error, plateau, last, floor: law.floor, at,
    tested: at.map(({ gamma }) => test.loss(gamma)) };
});
"""


@pytest.fixture(scope="module")
def runs() -> list[tuple[dict[str, Any], icl.Trajectory]]:
    """Runs of the page and of Python for settings over the range of the sliders."""
    rng, number = np.random.default_rng(0), 300
    drawn = {
        "d": np.floor(10 ** rng.uniform(0, 2, number)),
        "decay": rng.uniform(0, 3, number),
        "N": np.floor(10 ** rng.uniform(0, 4, number)),
        "noise": rng.uniform(0, 3, number),
        "part": 10 ** rng.uniform(-4, -0.01, number),
        "start": 10 ** rng.uniform(-6, 0, number),
        "above": 10 ** rng.uniform(-9, 0, number),
    }
    found = call(
        RUNS,
        [
            {name: float(values[i]) for name, values in drawn.items()}
            for i in range(number)
        ],
    )
    problems = [
        page["parameters"]
        | {name: int(page["parameters"][name]) for name in ("d", "N")}
        for page in found
    ]
    return [
        (page, icl.LinearAttention(**problem).simulate())
        for page, problem in zip(found, problems, strict=True)
    ]


def test_steps_are_the_same_integers(
    runs: list[tuple[dict[str, Any], icl.Trajectory]],
) -> None:
    assert all(run.method == "closed" for _, run in runs)
    both = [[page["steps"], run.steps] for page, run in runs]
    counts = np.array(
        [[-1 if steps is None else steps for steps in pair] for pair in both],
        dtype=np.int64,
    )
    error = np.array([max(page["error"], run.error or 0.0) for page, run in runs])
    decided = error < 1.0
    assert np.array_equal(counts[decided, 0], counts[decided, 1])
    assert np.all(np.abs(counts[:, 0] - counts[:, 1]) <= np.ceil(error))
    assert decided.mean() > 0.8
    assert np.mean(counts[:, 1] > 0) > 0.7
    assert counts.max() > 10**8


def test_losses_and_the_plateau_are_those_of_python(
    runs: list[tuple[dict[str, Any], icl.Trajectory]],
) -> None:
    for page, run in runs:
        assert page["floor"] == pytest.approx(run.floor, rel=1e-13)
        assert run.phases is not None
        assert page["plateau"] == run.phases.present()["plateau"][1]
        for state in page["at"]:
            if page["last"] != run.t[-1]:
                continue
            there = run.at(state["t"])
            assert state["loss"] == pytest.approx(there.loss, rel=1e-12)
            assert state["gamma"] == pytest.approx(
                there.observed["gamma"], rel=1e-11, abs=1e-12
            )


def test_another_law_is_the_same_formula_at_the_same_matrix(
    runs: list[tuple[dict[str, Any], icl.Trajectory]],
) -> None:
    for page, _ in runs[:100]:
        law = PromptLaw(
            np.arange(1.0, page["parameters"]["d"] + 1.0) ** -0.3, N=7, noise=1.5
        )
        for state, tested in zip(page["at"], page["tested"], strict=True):
            assert tested == pytest.approx(
                law.loss(np.array(state["gamma"])), rel=1e-12
            )


def test_a_product_of_isotropic_factors_follows_the_logistic_curve() -> None:
    d, start, times = 8, 1e-3, [0.0, 1.0, 2.0, 3.0]
    values = {"d": d, "decay": 0, "N": 20, "noise": 0.5, "start": start}
    body = "const { Law, product } = require('linear-attention/closed'); const law = new Law(given[0]);"
    found = call(
        body + "return given[1].map((tau) => product(given[0], law, tau))",
        values,
        times,
    )
    eta = 1e-3
    pair = icl.LinearAttention(
        d=d,
        N=20,
        noise=0.5,
        coordinates="pair",
        start=math.sqrt(start * math.sqrt(d)),
        eta=eta,
        above=1e-9,
        method="flow",
    )
    run = pair.simulate()
    expected = [run.at(round(tau / eta)).observed["gamma"][0] for tau in times]
    assert found == pytest.approx(np.ravel(expected), rel=1e-6)
