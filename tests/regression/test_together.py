"""Exchangeable points with finite prompts, many at once, against one simulation each."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.families.registry import find
from icl_theory.regression.batches.doubts import Doubt
from icl_theory.regression.batches.finite_prompts import Points, descend
from icl_theory.regression.batches.tables import (
    ATTENTION,
    BIAS,
    BIAS_SLOPE,
    DEGREE,
    NOISE,
    NOISE_SLOPE,
    table,
)
from icl_theory.sweeps.sweep import CHUNK, Plan, plan

NUMBERS = ("steps", "last", "T_I", "T_II", "T_III")
WORDS = ("regime", "status", "message", "method")
REALS = {
    "loss": 1e-12,
    "floor": 1e-13,
    "attention": 1e-9,
    "tail_ratio": 1e-8,
    "tail_constant": 1e-14,
    "eta_used": 1e-15,
}


def planned(**given: Any) -> Plan:
    return plan(find("regression"), given)


@pytest.mark.parametrize(
    ("given", "share"),
    [
        (
            {
                "L": np.geomspace(0.2, 8.0, 5),
                "eta": 4.0,
                "N": [50, 200, 800],
                "epsilon": 1e-2,
            },
            1.0,
        ),
        (
            {
                "L": np.geomspace(0.2, 8, 4),
                "eta": 1.0,
                "K": 5,
                "N": [20, 90],
                "noise": [0.1, 1],
                "epsilon": 0.02,
            },
            1,
        ),
        (
            {
                "L": [0.3, 5.0],
                "eta": "auto",
                "K": [2, 7],
                "N": [1, 2, 30, 4000],
                "noise": [0, 1],
                "above": 1e-3,
            },
            0.5,
        ),
        (
            {
                "L": [0.5, 5.0],
                "eta": [0.1, 3.0],
                "K": 4,
                "N": 30,
                "coordinates": "embedding",
                "above": 1e-2,
            },
            0.9,
        ),
        (
            {
                "L": [1.0, 4.0],
                "eta": 1e-3,
                "N": [60, 300],
                "above": 1e-3,
                "max_steps": 700,
            },
            0.0,
        ),
        (
            {"L": [1.0, 4.0], "eta": 1e3, "N": [60, 300], "above": 1e-3, "noise": 0.1},
            0.0,
        ),
        (
            {"L": [1.0, 4.0], "eta": 4.0, "N": [60, math.inf], "epsilon": 1e-2},
            1.0,
        ),  # half of them in closed form
    ],
)
def test_points_computed_together_have_the_integers_of_one_simulation_each(
    given: dict[str, Any], share: float
) -> None:
    """Every step is taken, or skipped by another method, there."""
    made = planned(delta=1.0, **given)
    points = made.grid.points(np.arange(made.grid.size))
    found = made.model.batched(points)
    done = ~np.isnan(found["loss"])
    assert done.mean() >= share
    expected = made.model.one_by_one(
        {name: values[done] for name, values in points.items()}
    )
    for name in (*NUMBERS, *WORDS):
        assert found[name][done].tolist() == expected[name].tolist(), name
    skipped = expected["method"] == "fast"  # whose scores are right to 1e-7
    for name, off in REALS.items():
        for which, allowed in ((~skipped, off), (skipped, max(off, 1e-7))):
            np.testing.assert_allclose(
                found[name][done][which],
                expected[name][which],
                rtol=allowed,
                atol=1e-15,
                err_msg=name,
            )


def test_the_tail_of_a_slow_run_begins_at_the_right_step() -> None:
    """The ratio to its limit falls below 2 between steps 80,147 and 80,148, by 1e-5 a step."""
    L = 0.5403805420516349 * 2.0 ** np.arange(4)
    given = {
        "eta": 0.07368196732988057,
        "K": 12,
        "N": 14,
        "above": 1.426906223263768e-4,
    }
    made = planned(L=L, delta=4.0, task="linear", **given)
    found = made.model.batched(made.grid.points(np.arange(4)))
    expected = made.model.one_by_one(made.grid.points(np.arange(4)))
    assert np.isfinite(found["loss"]).all()
    assert found["T_I"][0] + found["T_II"][0] == 80148
    for name in NUMBERS:
        assert found[name].tolist() == expected[name].tolist()


def test_rounding_of_a_loss_next_to_its_floor_is_part_of_the_doubt() -> None:
    """The excess of 3e-10 is reached near step 33,342,016, to six steps: the loss is known to 1e-15 of itself."""
    made = planned(
        L=1.0, delta=1.0, eta=50.0, K=3, N=3, task="linear", above=[1e-3, 3e-10]
    )
    found = made.model.batched(made.grid.points(np.arange(2)))
    assert np.isfinite(found["loss"]).tolist() == [True, False]


@pytest.mark.parametrize(
    ("changes", "max_steps", "doubt"),
    [
        ({}, 10**15, Doubt.NONE),
        ({"target": 0.0}, 10**15, Doubt.NONE),  # the run ends at its floor
        ({"target": 1e-12, "is_excess": True}, 10**15, Doubt.TARGET_AT_FLOOR),
        ({"target": 1e-20, "is_excess": True}, 10**15, Doubt.INVISIBLE_EXCESS),
        ({"eta": 1e4}, 10**15, Doubt.LEFT_RANGE),
        ({"eta": 1e-3}, 5000, Doubt.UNFINISHED),
    ],
)
def test_a_point_that_is_left_to_a_simulation_has_a_reason(
    changes: dict[str, Any], max_steps: int, doubt: Doubt
) -> None:
    given = {
        "K": 5.0,
        "N": 30.0,
        "gamma": 2.0,
        "noise_variance": 0.0,
        "eta": 1.0,
        "speed": 1.0,
        "target": 0.1,
        "is_excess": False,
    } | changes
    is_excess = given.pop("is_excess")
    columns = {name: np.array([value]) for name, value in given.items()}
    with np.errstate(all="ignore"):
        batch = descend(Points(**columns, is_excess=is_excess), max_steps)
        assert np.isfinite(batch.columns()["loss"][0]) == (doubt == Doubt.NONE)
    assert Doubt(batch.doubts.reason[0]) == doubt


def test_a_sweep_has_them_and_simulates_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {
        "L": [1.0, 4.0],
        "delta": 1.0,
        "eta": [1.0, 1e3],
        "N": [60, math.inf],
        "epsilon": 2e-2,
    }
    found = icl.sweep(**given, progress=False)
    for where, steps in np.ndenumerate(found.steps.values):
        at = [
            dim[i]
            for dim, i in zip(
                (given["L"], given["eta"], given["N"]), where, strict=True
            )
        ]
        run = icl.simulate(at[0], 1.0, at[1], N=at[2], epsilon=2e-2)
        assert steps == (-1 if run.steps is None else run.steps)
        assert int(found["last"].values[where]) == run.t[-1]


def test_chunks_are_large_where_points_are_batched_and_small_where_they_are_not() -> (
    None
):
    many = {
        "L": np.geomspace(0.5, 5, 100),
        "delta": 1.0,
        "eta": 4.0,
        "N": np.arange(50, 100),
        "epsilon": 1e-2,
    }
    assert (
        planned(**many).grid.chunk == planned(**many, task="linear").grid.chunk == 2048
    )
    assert planned(**many, rule="ngd").grid.chunk == CHUNK
    assert planned(**many, imbalance=0.1).grid.chunk == CHUNK
    assert planned(**many, task="cosine").grid.chunk == 8192 // 20**2
    assert planned(**many, task="cosine", K=100).grid.chunk == CHUNK
    assert planned(**many, task="linear", coordinates="factored").grid.chunk == CHUNK


@pytest.mark.parametrize(
    ("K", "N"), [(2, 1), (3, 7), (20, 50), (1000, 30), (20, 10**5)]
)
def test_the_table_has_the_loss_its_derivative_and_the_attention(
    K: int, N: int
) -> None:
    bare, noisy = (
        icl.ExchangeableRisk(K, 1.0, N),
        icl.ExchangeableRisk(K, 0.0, N, noise=1.0),
    )
    coefficients = table(K, N)
    for u in (0.0, 0.49, 0.5, 1.3, 7.77, 20.0, 39.9):
        panel = min(int(u / 0.5), 79)
        x = 2.0 * (u / 0.5 - panel) - 1.0
        values = coefficients[:, :, panel] @ x ** np.arange(DEGREE + 1)
        for which, expected in (
            (BIAS, bare.loss(u)),
            (BIAS_SLOPE, float(bare.gradient(u))),
            (NOISE, noisy.loss(u)),
            (NOISE_SLOPE, float(noisy.gradient(u))),
            (ATTENTION, bare.attention(u)),
        ):
            assert values[which] == pytest.approx(
                expected, rel=3e-13, abs=1e-15 * abs(coefficients[which]).max()
            )
