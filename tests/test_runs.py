"""Runs and coordinates: what is kept, computed in between, said and pulled back, against arrays written out."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import optimize
from scipy.sparse import csc_array

import icl_theory as icl
from icl_theory.engine import Affine, Embedding, Factored, Phases, Pullback
from icl_theory.engine.capabilities import gain_at
from tests.references import slopes

RUNS: dict[str, dict[str, Any]] = {
    "closed": {"epsilon": 1e-6},
    "single steps": {"method": "exact", "epsilon": 1e-2},
    "flow": {"method": "flow", "epsilon": 1e-2},
    "skipped": {"method": "fast", "eta": 0.1, "K": 5, "epsilon": 1e-5},
    "queries": {"K": 3, "probs": (0.5, 0.3, 0.2), "epsilon": 1e-2},
    "finite": {"N": 12, "K": 4, "noise": 0.5, "above": 1e-2, "imbalance": 0.2},
    "cut short": {"max_steps": 7, "method": "exact"},
    "done at step 0": {"epsilon": 10.0},
}
KEPT = (
    "steps",
    "converged",
    "stop",
    "stop_reason",
    "floor",
    "method",
    "rule",
    "eta",
    "epsilon",
    "error",
    "states_error",
    "regime",
    "notes",
    "phases",
    "command",
    "version",
    "interrupted",
)


def run_of(name: str) -> icl.Trajectory:
    return icl.simulate(**{"L": 2.0, "delta": 1.0, "eta": 4.0, **RUNS[name]})


@pytest.mark.parametrize("name", RUNS)
def test_every_entry_of_a_run_survives_its_file(name: str, tmp_path: Path) -> None:
    run = run_of(name)
    run.save(tmp_path / "run.npz")
    loaded = icl.load(tmp_path / "run.npz")
    for entry in KEPT:
        assert getattr(loaded, entry) == getattr(run, entry), entry
    assert loaded.observed.keys() == run.observed.keys()
    for entry, values in {
        "t": run.t,
        "loss": run.loss,
        "states": run.states,
        **run.observed,
    }.items():
        there = (
            getattr(loaded, entry)
            if entry in ("t", "loss", "states")
            else loaded.observed[entry]
        )
        np.testing.assert_array_equal(there, values, err_msg=entry)
    assert {k: str(v) for k, v in loaded.info.items()}.keys() == {
        k: str(v) for k, v in run.info.items()
    }.keys()
    assert loaded.labels == {
        name: label for name, label in run.labels.items() if name in run.info
    }
    assert loaded.summary() == run.summary()
    assert loaded.to_dict() == run.to_dict()


@pytest.mark.parametrize(
    ("part", "value", "reason"),
    [
        ("phases", Phases(I=(5, 2)), "a phase ends before it begins"),
        ("steps", 20, r"step = 20: .*\[0, 19\]"),
        ("phases", Phases(I=(0, 20)), r"step = 20: .*\[0, 19\]"),
        ("phases", Phases(I=(-1, 2)), "step = -1"),
        ("t", lambda t: t + 1, "does not consist of increasing steps"),
        ("t", lambda t: t[::-1], "does not consist of increasing steps"),
        ("t", lambda t: np.maximum(t - 1, 0), "does not consist of increasing steps"),
        ("loss", lambda loss: loss[1:], "loss has shape"),
        ("loss", lambda loss: np.nan * loss, "loss is not a finite number"),
        ("states", lambda states: states[1:], "states is not a finite number"),
        ("observed", {"size": np.full(20, math.nan)}, "size is not a finite number"),
        ("observed", {"size": np.full(20, "x")}, "size is not a finite number"),
        ("eta", -1.0, "eta = -1.0"),
        ("eta", math.inf, "eta = inf"),
        ("error", -1.0, "error = -1.0"),
        ("states_error", math.nan, "error = nan"),
        ("method", "guess", "method = 'guess': must be one of"),
        ("floor", math.nan, "floor or epsilon = nan"),
        ("epsilon", -math.inf, "floor or epsilon = -inf"),
        ("regime", 3, "text = 3"),
        ("command", 3.0, "text = 3.0"),
        ("notes", {"a": 1}, "text = 1"),
    ],
)
def test_a_file_is_not_read_if_a_part_of_its_run_cannot_be(
    part: str, value: Any, reason: str, tmp_path: Path
) -> None:
    run = icl.descend(icl.ExchangeableRisk(3, 1.0), 0.5, steps=19)
    setattr(run, part, value(getattr(run, part)) if callable(value) else value)
    run.save(tmp_path / "run.npz")
    with pytest.raises(
        ValueError, match=rf"a file written by Trajectory.save \(.*{reason}"
    ):
        icl.load(tmp_path / "run.npz")


def test_a_run_by_another_rule_than_its_problem_has_its_saved_steps_alone(
    tmp_path: Path,
) -> None:
    run = run_of("skipped")
    run.rule, run.error = "ngd", math.inf
    run.save(tmp_path / "run.npz")
    loaded = icl.load(tmp_path / "run.npz")
    assert loaded.notes["family"].endswith(
        "the run was trained by ngd, and its problem is by gd"
    )
    assert (loaded.family, loaded.error) == (None, math.inf)
    with pytest.raises(ValueError, match="must be a saved step"):
        loaded.at(int(run.t[-2]) + 1)


@pytest.mark.parametrize(
    "name", ["closed", "single steps", "skipped", "queries", "finite"]
)
def test_a_run_answers_for_every_step_as_the_iteration_does(name: str) -> None:
    run = run_of(name)
    single = icl.simulate(
        **{
            "L": 2.0,
            "delta": 1.0,
            "eta": 4.0,
            **RUNS[name],
            "method": "exact",
            "max_steps": 40,
        }
    )
    state, risk = single.risk.initial, single.risk  # type: ignore[union-attr]
    assert risk is not None
    for t in range(41):
        found = run.at(t)
        assert found.t == t
        loss, gradient = risk.evaluate(state)
        assert found.loss == pytest.approx(loss, rel=1e-7)
        np.testing.assert_allclose(found.params, state, rtol=1e-6, atol=1e-7)
        for key, value in risk.observe(state).items():
            np.testing.assert_allclose(
                found.observed[key], value, rtol=1e-6, atol=1e-9, err_msg=key
            )
        np.testing.assert_array_equal(found.attention, found.observed["attention"])
        state = state - run.eta * gradient / risk.metric


@pytest.mark.parametrize("name", ["closed", "queries"])
@pytest.mark.parametrize("after", [0, 3, 18, 60])
def test_the_first_step_is_the_first_of_all(name: str, after: int) -> None:
    run = run_of(name)
    for level in (0.9, 0.5, 0.2, 0.05):
        if run.loss[-1] > level or after > run.t[-1]:
            continue
        wanted = next(
            t for t in range(after, int(run.t[-1]) + 1) if run.at(t).loss <= level
        )
        assert (
            run.first(lambda state, level=level: state.loss <= level, after=after)
            == wanted
        )  # type: ignore[misc]
    assert run.first(lambda state: state.loss < 0.0) is None


@pytest.mark.parametrize("last", [7, 1000, 10**9])
def test_saved_steps_are_32_a_decade(last: int) -> None:
    run = icl.simulate(2.0, 1.0, 0.001, K=20, epsilon=1e-15, max_steps=last)
    assert (run.t[0], run.t[-1]) == (0, last)
    ratios = run.t[1:] / np.maximum(run.t[:-1], 1)
    assert (np.diff(run.t) > 0).all()
    assert (ratios[run.t[1:] > 60] <= 10 ** (1 / 32) * 1.02).all()
    if last > 10**6:
        assert len(run.t) < 32 * 9
        assert (run.t[(run.t >= 10**5) & (run.t < 10**6)]).size == 32
    else:
        assert set(range(min(last, 9))) <= set(run.t.tolist())


@pytest.mark.parametrize("name", RUNS)
def test_exports_and_facts_are_the_run(name: str) -> None:
    run = run_of(name)
    data, plain, facts = run.to_xarray(), run.to_dict(), run.facts()
    json.dumps(plain, allow_nan=False)
    assert plain["t"] == run.t.tolist() == data.t.values.tolist()
    assert plain["loss"] == run.loss.tolist() == data.loss.values.tolist()
    for key, values in run.observed.items():
        assert plain[key] == values.tolist() == data[key].values.tolist()
        assert data[key].dims[0] == "t"
        assert (data[key].dims[1:] == ("query",)) == (
            values.ndim == 2 and values.shape == run.attention.shape
        )
    assert plain["steps"] == run.steps
    assert (
        facts["loss"]
        == f"{run.loss[0]:.6g} -> {run.loss[-1]:.6g} (floor {run.floor:.3g})"
    )
    first, last = float(np.mean(run.attention[0])), float(np.mean(run.attention[-1]))
    queries = " (mean over queries)" if run.attention.ndim > 1 else ""
    assert facts["attention"] == f"{first:.6g} -> {last:.6g}{queries}"
    assert facts["stopped"] == run.stop_reason
    doubtful = run.error is not None and run.error > 0.1
    assert facts["method"] == run.method + (
        f" (the step count may be off by {run.error:.1g})" if doubtful else ""
    )
    assert run.phases is not None
    spans = [
        f"{phase} {a:,} - {b:,}"
        for phase, span in run.phases.items()
        if span is not None
        for a, b in [span]
    ]
    assert facts["phases"] == "   ".join(spans)
    assert ("regime" in facts) == (run.regime is not None)
    assert {k: facts[k] for k in run.notes} == run.notes


# ---- other coordinates


FEATURES = icl.Features.random(5, 3, 0.5, seed=2)
CORE = icl.PopulationRisk(FEATURES, icl.tasks.Linear(1.5))


def test_scores_are_made_of_matrices_and_factors() -> None:
    X, rng = FEATURES.vectors, np.random.default_rng(1)
    Q, factors = rng.normal(size=(3, 3)), rng.normal(size=(2, 2, 3))
    embedded = icl.in_coordinates(CORE, "embedding", X)
    factored = icl.in_coordinates(CORE, "factored", X, rank=2)
    assert icl.in_coordinates(CORE, "class", X) is CORE
    assert embedded.loss(Q) == pytest.approx(CORE.loss(X @ Q @ X.T), rel=1e-13)
    assert factored.loss(factors) == pytest.approx(
        CORE.loss(X @ factors[0].T @ factors[1] @ X.T), rel=1e-13
    )
    np.testing.assert_array_equal(embedded.initial, np.zeros((3, 3)))
    assert embedded.floor() == factored.floor() == CORE.floor()
    for risk, params in ((embedded, Q), (factored, factors)):
        np.testing.assert_allclose(
            risk.gradient(params), slopes(risk.loss, params), rtol=1e-6, atol=1e-9
        )
        direction = rng.normal(size=params.shape)
        near, far = (risk.gradient(params + h * direction) for h in (1e-5, -1e-5))
        np.testing.assert_allclose(
            risk.hessian_product(params, direction),
            (near - far) / 2e-5,
            rtol=1e-5,
            atol=1e-8,
        )


@pytest.mark.parametrize(
    ("options", "shape", "spread"),
    [
        ({}, (2, 40, 40), 0.01 / math.sqrt(40)),
        ({"rank": 10}, (2, 10, 40), 0.01 / math.sqrt(10)),
        ({"rank": 10, "scale": 0.5}, (2, 10, 40), 0.5 / math.sqrt(10)),
    ],
)
def test_factors_start_at_their_size(
    options: dict[str, Any], shape: tuple[int, ...], spread: float
) -> None:
    points = np.random.default_rng(0).normal(size=(6, 40))
    risk = icl.PopulationRisk(icl.Features(points), icl.tasks.Linear(1.0))
    starts = [
        icl.in_coordinates(risk, "factored", points, **options, **seed).initial
        for seed in ({}, {"seed": 0}, {"seed": 1})
    ]
    np.testing.assert_array_equal(starts[0], starts[1])
    assert np.abs(starts[0] - starts[2]).max() > spread
    for start in starts:
        assert start.shape == shape
        assert np.std(start) == pytest.approx(spread, rel=0.08)
        assert abs(np.mean(start)) < 5 * spread / math.sqrt(start.size)
    alone = Factored.random(40, **options)
    np.testing.assert_array_equal(alone.initial, starts[0])
    given = icl.in_coordinates(risk, "factored", points, start=starts[2])
    np.testing.assert_array_equal(given.initial, starts[2])


def test_stretches_are_norms_of_derivatives() -> None:
    rng = np.random.default_rng(4)
    columns = csc_array(rng.normal(size=(6, 3)))
    maps: dict[str, tuple[Any, Any]] = {
        "embedding": (Embedding(FEATURES.vectors), rng.normal(size=(3, 3))),
        "factored": (Factored.random(3, 2), rng.normal(size=(2, 2, 3))),
        "affine": (Affine(rng.normal(size=6), columns, (1, 2)), rng.normal(size=3)),
    }
    for name, (each, params) in maps.items():
        units = np.eye(params.size).reshape(-1, *params.shape)
        jacobian = np.array([each.push(params, unit).ravel() for unit in units])
        moved = [
            (
                each.inward(params + 1e-6 * unit) - each.inward(params - 1e-6 * unit)
            ).ravel()
            / 2e-6
            for unit in units
        ]
        np.testing.assert_allclose(jacobian, moved, rtol=1e-6, atol=1e-8, err_msg=name)
        if (
            name == "factored"
        ):  # attained only if both factors' largest directions belong together
            largest = np.hypot(
                np.linalg.norm(jacobian[:6], 2), np.linalg.norm(jacobian[6:], 2)
            )
            assert np.linalg.norm(jacobian, 2) <= largest
        else:
            largest = (
                np.linalg.norm(jacobian)
                if name == "affine"
                else np.linalg.norm(jacobian, 2)
            )
        assert each.stretch(params) == pytest.approx(largest, rel=1e-10), name
        blocks = each.blocks(params)
        assert [block.size for block in blocks] == {
            "embedding": [9],
            "factored": [6, 6],
            "affine": [1, 2],
        }[name]
        np.testing.assert_array_equal(
            np.concatenate([block.ravel() for block in blocks]), params.ravel()
        )
        gradient = rng.normal(size=np.shape(each.inward(params)))
        np.testing.assert_allclose(
            each.outward(params, gradient).ravel(),
            jacobian @ gradient.ravel(),
            rtol=1e-12,
        )
    over = Pullback(CORE, Embedding(FEATURES.vectors))
    Q = rng.normal(size=(3, 3))
    stretch = np.linalg.norm(FEATURES.vectors, 2) ** 2
    assert gain_at(over, Q) == pytest.approx(
        stretch * gain_at(CORE, FEATURES.vectors @ Q @ FEATURES.vectors.T), rel=1e-12
    )


@pytest.mark.parametrize("points", [2, 5, 1000])
def test_sharpness_is_taken_from_the_first_to_the_last_saved_step(points: int) -> None:
    run = icl.simulate(2.0, 1.0, 4.0, K=3, probs=[0.5, 0.3, 0.2], epsilon=0.05)
    steps, values = icl.engine.sharpness_along(run, points)
    assert len(steps) == min(points, len(run.t))
    assert (steps[0], steps[-1]) == (0, run.t[-1])
    assert run.risk is not None
    for t, value in list(zip(steps.tolist(), values, strict=True))[
        :: max(1, len(steps) // 4)
    ]:
        at, risk = run.at(t).params, run.risk
        units = np.eye(9).reshape(9, 3, 3)
        hessian = np.array(
            [
                (risk.gradient(at + 1e-5 * u) - risk.gradient(at - 1e-5 * u)).ravel()
                / 2e-5
                for u in units
            ]
        )
        assert value == pytest.approx(np.linalg.eigvalsh(hessian)[-1], rel=1e-5)
    assert len(icl.engine.sharpness_along(run)[0]) == min(50, len(run.t))


def test_the_largest_stable_rate_is_two_over_the_curvature_of_the_minimum() -> None:
    risk = icl.ExchangeableRisk(6, gamma=1.5, N=9, noise=0.8)
    found = icl.largest_stable_eta(risk)
    u = float(
        optimize.minimize_scalar(lambda x: float(risk.loss(x)), bounds=(0.0, 12.0)).x
    )
    assert float(found.params) == pytest.approx(u, abs=1e-3)
    bend = float(slopes(lambda x: float(risk.gradient(x)), found.params)) / risk.metric
    assert found.sharpness == pytest.approx(bend, rel=1e-6)
    assert found.eta == pytest.approx(2.0 / bend, rel=1e-6)
    assert found.loss == pytest.approx(risk.loss(found.params), rel=1e-14)


def test_a_run_goes_on_as_exactly_as_it_was_asked_to_be() -> None:
    """With the default tolerance these states are off by 2e-11 and more."""
    risk = icl.Regression(
        L=2.0, delta=1.0, eta=0.1, K=4, probs=[0.4, 0.3, 0.2, 0.1]
    ).risk()
    run = icl.descend(risk, 0.1, steps=200, method="fast", tolerance=1e-11)
    exact = icl.descend(risk, 0.1, steps=20_000)
    for t in (1000, 5000, 20_000):
        np.testing.assert_allclose(
            run.at(t).params, exact.at(t).params, atol=2e-12, rtol=0.0
        )
