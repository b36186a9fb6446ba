"""K x K scores, many points at once, against one simulation each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.families.registry import find
from icl_theory.regression.batches.score_batch import ScoreBatch
from icl_theory.regression.batches.scores import crossing
from icl_theory.sweeps.sweep import plan

NUMBERS = ("steps", "last", "T_I", "T_II", "T_III", "regime", "status", "message")
# what a simulation skips to is right to 1e-7 in the scores
REALS = {
    "loss": 1e-7,
    "attention": 1e-7,
    "tail_ratio": 1e-6,
    "floor": 0.0,
    "tail_constant": 0.0,
    "eta_used": 0.0,
}


@pytest.mark.parametrize("task", ["cosine", "kernel"])
def test_moves_of_points_side_by_side_are_those_of_each(task: str) -> None:
    """Cosines have rank 2; a random kernel has full rank."""
    K, rng = 5, np.random.default_rng(0)
    risks = []
    for i in range(3):
        features = icl.Features(rng.normal(size=(K, 4)), rng.dirichlet(np.ones(K)))
        root = rng.normal(size=(K, K))
        law = (
            icl.tasks.RandomCosine(1.0 + i)
            if task == "cosine"
            else icl.tasks.KernelTask(root @ root.T)
        )
        risks.append(icl.PopulationRisk(features, law, 7, 0.2 * i))
    check_moves(risks)


def test_moves_for_infinite_prompts_are_those_of_each() -> None:
    rng = np.random.default_rng(1)
    features = icl.Features(rng.normal(size=(5, 4)), rng.dirichlet(np.ones(5)))
    laws = (icl.tasks.RandomCosine(L) for L in (1.0, 0.3, 4.0))
    check_moves([icl.PopulationRisk(features, law) for law in laws])


def check_moves(risks: list[icl.PopulationRisk]) -> None:
    eta, points = np.array([0.3, 1.0, 2.0]), np.array([2, 0])
    states = np.random.default_rng(2).normal(size=(2, 5, 5))
    rows = states.swapaxes(1, 2).reshape(10, 5)
    seen = ScoreBatch(risks, eta).observation(rows, points)
    for j, i in enumerate(points):
        loss, gradient = risks[i].evaluate(states[j])
        np.testing.assert_allclose(
            seen.move[j].reshape(5, 5).T, eta[i] * gradient, rtol=1e-12, atol=1e-16
        )
        assert seen.loss[j] == pytest.approx(loss, rel=1e-13)
        np.testing.assert_allclose(
            seen.attention[j], np.diagonal(risks[i].attention(states[j])), rtol=1e-12
        )


COSINES: dict[str, Any] = {"delta": 4.0, "task": "cosine"}
CASES: list[tuple[dict[str, Any], float]] = [
    (
        COSINES | {"L": [1.0, 3.0], "eta": 2.0, "K": 6, "N": [15, 30], "epsilon": 1e-2},
        1.0,
    ),
    (
        {
            "L": [1.0, 4.0],
            "delta": 1.0,
            "eta": "auto",
            "K": 4,
            "N": [15, 60],
            "task": "linear",
            "above": 1e-3,
        },
        1.0,
    ),
    (
        {
            "L": [0.6, 2.0],
            "delta": 1.0,
            "eta": 1.0,
            "K": 3,
            "N": [30, 50],
            "probs": [0.5, 0.3, 0.2],
            "above": 6e-3,
        },
        1.0,
    ),
    (
        COSINES
        | {
            "L": [1.0, 2.0],
            "eta": 0.7,
            "K": 5,
            "N": 20,
            "noise": [0.2, 0.6],
            "above": 0.03,
        },
        1.0,
    ),
    (COSINES | {"L": [0.5, 1.0, 2.5], "eta": [0.3, 2.0], "K": 6, "epsilon": 1e-2}, 1.0),
    (
        {
            "L": [1.0, 3.0],
            "delta": 1.0,
            "eta": [2.0, 5.0],
            "K": 4,
            "probs": [0.4, 0.3, 0.2, 0.1],
            "epsilon": 5e-4,
        },
        1.0,
    ),
    (COSINES | {"L": [1.0, 2.0], "eta": 1.0, "K": 5, "N": 9, "epsilon": 1e-9}, 0.0),
    (
        COSINES
        | {"L": [2.0], "eta": 1.0, "K": 6, "N": 40, "epsilon": 3e-3, "max_steps": 100},
        0.0,
    ),
]


@pytest.mark.parametrize(("given", "share"), CASES)
def test_points_followed_together_have_the_integers_of_one_simulation_each(
    given: dict[str, Any], share: float
) -> None:
    made = plan(find("regression"), given)
    points = made.grid.points(np.arange(made.grid.size))
    found = made.model.batched(points)
    done = ~np.isnan(found["loss"])
    assert done.mean() >= share
    if share == 0.0:
        assert not done.any()
        return
    expected = made.model.one_by_one(
        {name: values[done] for name, values in points.items()}
    )
    for name in NUMBERS:
        assert found[name][done].tolist() == expected[name].tolist(), name
    for name, off in REALS.items():
        np.testing.assert_allclose(
            found[name][done], expected[name], rtol=off, err_msg=name
        )


def test_a_sweep_simulates_what_the_strides_leave_in_doubt() -> None:
    """The attention of each of two queries is half of what it can be at the start, to rounding."""
    given: dict[str, Any] = {
        "L": 2.0,
        "delta": 4.0,
        "eta": 1.0,
        "task": "cosine",
        "above": 2e-2,
    }
    found = icl.sweep(K=[2, 6], N=[9, 80], **given, progress=False)
    for K in (2, 6):
        for N in (9, 80):
            run = icl.simulate(K=K, N=N, **given)
            assert int(found.steps.sel(K=K, N=N)) == run.steps
            assert int(found.T_I.sel(K=K, N=N)) == run.phases.I[1]


def test_points_that_begin_in_their_tail_have_no_step_before_phase_3() -> None:
    """In a prompt of two tokens, the query has most of its attention from the start."""
    given: dict[str, Any] = {"delta": 1.0, "eta": 50.0, "K": 4, "N": 2}
    given |= {"task": "cosine", "above": 1e-3}
    found = icl.sweep(L=[1.0, 3.0], **given, progress=False)
    for L in (1.0, 3.0):
        point = found.sel(L=L)
        run = icl.simulate(L=L, **given)
        phases = (run.phases.I, run.phases.II, run.phases.III)
        assert phases == ((0, 0), (0, 0), (0, run.steps))
        assert (int(point.T_I), int(point.T_II)) == (0, 0)
        assert int(point.T_III) == int(point.steps) == run.steps > 0


def test_the_same_points_have_the_same_bits_on_workers() -> None:
    given: dict[str, Any] = {
        "L": np.geomspace(1, 3, 4),
        "delta": 4.0,
        "eta": [0.5, 1.0],
        "K": 4,
        "N": [30, 50],
    }
    given |= {"task": "cosine", "epsilon": 2e-2, "progress": False}
    one, two = icl.sweep(**given), icl.sweep(**given, workers=2)
    for name in one.data_vars:
        np.testing.assert_array_equal(one[name].values, two[name].values)


def test_a_tail_that_begins_within_the_last_stride_is_no_tail() -> None:
    """The ratio to its limit passes 2 upwards a few steps before the end."""
    given: dict[str, Any] = {
        "L": 1.0,
        "delta": 1.0,
        "eta": 0.0476220315,
        "K": 2,
        "N": 5,
        "probs": [0.52, 0.48],
    }
    found = icl.sweep(above=[0.0438142], task="linear", progress=False, **given)
    run = icl.simulate(above=0.0438142, task="linear", **given)
    assert run.phases.III is None
    assert (int(found.steps[0]), int(found.T_III[0]), str(found.regime.values[0])) == (
        run.steps,
        0,
        run.regime,
    )


def test_a_crossing_on_a_sharp_bend_is_found() -> None:
    """The method of Pegasus comes near to it slowly: after ten iterations it is half of the way off."""
    power, level = np.array([3.0, 20.0]), np.array([0.3, 1e-4])

    def value(x: np.ndarray) -> np.ndarray:
        return x**power - level

    found = crossing(value, np.zeros(2), np.ones(2), -level, 1.0 - level)
    np.testing.assert_allclose(found, level ** (1.0 / power), rtol=1e-12)


@pytest.mark.slow
def test_every_step_is_taken_where_that_is_asked_for() -> None:
    given: dict[str, Any] = {
        "L": [1.0, 2.0],
        "eta": 0.2,
        "K": 4,
        "N": 40,
        "epsilon": [2e-2, 1e-3],
        **COSINES,
    }
    for method, batched in (("exact", False), ("auto", True)):
        made = plan(find("regression"), given | {"method": method})
        found = made.model.batched(
            made.grid.points(np.arange(made.grid.size)), max_steps=0
        )
        assert np.isfinite(found["loss"]).tolist() == [batched] * 4
    swept = icl.sweep(**given, method="exact", max_steps=4200, progress=False)
    assert (swept["last"] > 4096).any()
    assert (swept["method"] == "exact").all()
