"""Training on the mean squared error, twice the loss of this package."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.engine import ScaledRisk
from icl_theory.families import list_families
from icl_theory.papers.descent_layers.family import DescentLayers
from tests.test_cli import run_main

LINEAR: dict[str, Any] = {"L": 2.0, "delta": 1.0, "K": 4, "task": "linear"}
COMMON = {"d": 3, "N": 9, "noise": 0.4, "decay": 1.0}

# Problems with half the loss; twins on the mean squared error have twice the targets
# and half the learning rate.
HALVES: dict[str, tuple[type[icl.Family], dict[str, Any]]] = {
    "closed": (icl.Regression, {"L": 2.0, "delta": 1.0, "eta": 4.0, "epsilon": 1e-3}),
    "finite prompts": (
        icl.Regression,
        {"L": 2.0, "delta": 1.0, "eta": 4.0, "K": 5, "N": 20, "above": 1e-2},
    ),
    "auto": (icl.Regression, {**LINEAR, "eta": "auto", "epsilon": 1e-2}),
    "fast": (
        icl.Regression,
        {**LINEAR, "eta": 4.0, "epsilon": 1e-4, "method": "fast"},
    ),
    "flow": (
        icl.Regression,
        {**LINEAR, "eta": 4.0, "epsilon": 1e-2, "method": "flow"},
    ),
    "start": (
        icl.Regression,
        {**LINEAR, "eta": 4.0, "epsilon": 1e-2, "start": np.eye(4)},
    ),
    "groups": (
        icl.regression.GroupedRegression,
        {"L": 2.0, "delta": 1.0, "eta": 2.0, "above": 1e-2},
    ),
    "gaussian": (icl.regression.GaussianRegression, {"L": 2.0, "above": 1e-3}),
    "linear attention": (icl.LinearAttention, {**COMMON, "above": 1e-3}),
    "pair": (
        icl.LinearAttention,
        {**COMMON, "coordinates": "pair", "eta": 0.1, "above": 1e-3},
    ),
    "few tasks": (icl.LinearAttention, {**COMMON, "tasks": 2, "above": 1e-3}),
    "sphere": (icl.Sphere, {"above": 1e-3}),
    "depth": (icl.DepthCovariance, {"d": 2, "eta": 0.3, "epsilon": 0.4}),
    "match": (
        icl.MatchCopy,
        {"d": 3, "N": 3, "prompts": 4, "eta": 1.0, "epsilon": 1e-2},
    ),
    "layers": (DescentLayers, {"d": 2, "depth": 2, "eta": 0.04, "epsilon": 0.4}),
    "heads": (
        icl.SoftmaxHeads,
        {"d": 1, "N": 2, "eta": 0.1, "above": 1e-3, "max_steps": 3},
    ),
    "dictionary": (
        icl.Representation,
        {"K": 4, "m": 3, "N": 2, "eta": 1.0, "above": 0.05},
    ),
    "location": (
        icl.SingleLocation,
        {"attention": "erf", "eta": 0.5, "max_steps": 40},
    ),
}


@cache
def twins(name: str) -> tuple[icl.Family, icl.Family]:
    """Return a problem with half the loss, and the same training on all of it."""
    family, parameters = HALVES[name]
    doubled = {**parameters, "loss": "mse"}
    for target in ("epsilon", "above"):
        if target in parameters:
            doubled[target] = 2.0 * parameters[target]
    if isinstance(parameters.get("eta"), float):
        doubled["eta"] = parameters["eta"] / 2.0
    return family(**parameters), family(**doubled)


@cache
def runs(name: str) -> tuple[icl.Trajectory, icl.Trajectory]:
    """Return the runs of both."""
    half, mse = twins(name)
    return half.simulate(), mse.simulate()


def test_every_family_with_squares_offers_the_choice() -> None:
    offering = {
        name
        for name, family in list_families().items()
        if "loss" in family.parameters()
    }
    assert offering == {problem[0].name for problem in HALVES.values()}


@pytest.mark.parametrize("name", HALVES)
def test_descent_takes_the_same_steps_at_half_the_rate(name: str) -> None:
    run, doubled = runs(name)
    # Products with 2 and 1/2 are exact, and so are these comparisons.
    assert doubled.steps == run.steps
    assert np.array_equal(doubled.states, run.states)
    assert np.array_equal(doubled.loss, 2.0 * run.loss)
    assert (doubled.floor, doubled.epsilon) == (2.0 * run.floor, 2.0 * run.epsilon)
    assert doubled.eta == run.eta / 2.0
    assert (doubled.phases, doubled.regime) == (run.phases, run.regime)
    assert f"η = {run.eta:g}" in doubled.notes["factor"]


@pytest.mark.parametrize("name", HALVES)
def test_columns_are_those_of_half_the_loss(name: str) -> None:
    half, mse = twins(name)
    run, run_of_mse = runs(name)
    values = half.measured(run)
    doubled = mse.measured(run_of_mse)
    unit = {column.name: column.unit for column in half.every_column()}
    assert doubled.keys() == values.keys()
    for column, value in values.items():
        if column in ("message", "status"):
            continue
        factor = 1.0
        if column == "eta_used":
            factor = 0.5
        elif unit[column] == half.loss_unit:
            factor = 2.0
        expected = value if factor == 1.0 else factor * value
        is_nan = isinstance(value, float) and math.isnan(value)
        assert is_nan or doubled[column] == expected, column


def test_a_prediction_counts_the_steps_in_either_unit() -> None:
    """The leading order K²/(ηγ) + (K-1)/(4ηε) is for half the loss."""
    _, mse = twins("closed")
    values = mse.measured(runs("closed")[1])
    eta, epsilon, K, gamma = 4.0, 1e-3, 20, 2.0
    predicted = K**2 / (eta * gamma) + (K - 1) / (4 * eta * epsilon)
    assert values["predicted_steps"] == pytest.approx(predicted, rel=0.1)
    assert values["certified"] == 1


def _mse_of_linear_attention(
    gamma: np.ndarray[Any, Any], spectrum: np.ndarray[Any, Any], N: int, noise: float
) -> tuple[float, np.ndarray[Any, Any]]:
    r"""Mean squared error of Γ by moments of a Gaussian prompt, and its gradient.

    With :math:`\hat y = x_q^\top\Gamma\sum_i y_ix_i/N` and covariance Λ, the second
    moment of the sum is :math:`M = \Lambda\,(\Lambda(N+1) + \mathrm{tr}\Lambda +
    \sigma^2)/N`, and its moment with the task is Λ.
    """
    moment = spectrum * (spectrum * (N + 1) + spectrum.sum() + noise**2) / N
    error = gamma**2 * moment - 2 * gamma * spectrum + 1.0
    gradient = spectrum * (2 * gamma * moment - 2 * spectrum)
    return float(spectrum @ error), gradient


@pytest.mark.parametrize("rule", ["gd", "adam", "heavy-ball", "clip"])
def test_own_loops_on_the_mean_squared_error(rule: str) -> None:
    """Descent, Adam, momentum and clipping, written out for PyTorch's loss."""
    settings: dict[str, Any] = {"rule": "gd", "clip": 0.3}
    if rule != "clip":
        settings = {"rule": rule}
    problem = icl.LinearAttention(
        **COMMON,
        loss="mse",
        eta=0.05,
        start=[0.2, 0.1, 0.3],
        above=1e-12,
        max_steps=40,
        method="exact",
        **settings,
    )
    run = problem.simulate()
    spectrum = 1.0 / np.arange(1.0, 4.0)
    gamma = np.array([0.2, 0.1, 0.3])
    first = np.zeros(3)
    second = np.zeros(3)
    losses = []
    for t in range(1, 42):
        loss, gradient = _mse_of_linear_attention(gamma, spectrum, 9, 0.4)
        losses.append(loss)
        if rule == "adam":
            first = 0.9 * first + 0.1 * gradient
            second = 0.999 * second + 0.001 * gradient**2
            size = np.sqrt(second / (1 - 0.999**t)) + 1e-8
            gradient = first / (1 - 0.9**t) / size
        elif rule == "heavy-ball":
            first = 0.9 * first + gradient
            gradient = first
        elif rule == "clip":
            # PyTorch's clip_grad_norm_ adds 1e-6 to the norm.
            norm = np.linalg.norm(gradient) + 1e-6
            gradient = gradient * min(1.0, 0.3 / norm)
        gamma = gamma - 0.05 * gradient
    np.testing.assert_allclose(run.loss, np.array(losses)[run.t], rtol=1e-11)


def test_adam_is_not_a_change_of_the_rate() -> None:
    problem = icl.Regression(
        **LINEAR, eta=0.05, rule="adam", loss="mse", max_steps=30, epsilon=1e-9
    )
    run = problem.simulate()
    half = problem.half.simulate()
    # Adam's steps hardly depend on the size of the loss, so no rate is converted.
    assert problem.half.eta == problem.eta
    np.testing.assert_allclose(run.loss[5:], 2.0 * half.loss[5:], rtol=1e-4)
    assert not np.array_equal(run.loss, 2.0 * half.loss)
    assert "η" not in run.notes["factor"]
    with pytest.raises(ValueError, match=r"loss = 'mse': must be 'half' for this"):
        icl.check_bounds(run)


@pytest.mark.parametrize("changes", [{}, {"N": 20}, {"rule": "adam", "K": 3}])
def test_sweeps_are_their_points(changes: dict[str, Any]) -> None:
    """Whole arrays and single runs agree, and both are in the user's units."""
    eta = [0.05, 0.1] if "rule" in changes else [0.5, 2.0]
    dataset = icl.sweep(
        L=[0.5, 3.0],
        delta=1.0,
        eta=eta,
        above=0.2,
        loss="mse",
        progress=False,
        **changes,
    )
    for L in (0.5, 3.0):
        for rate in eta:
            point = dataset.sel(L=L, eta=rate)
            problem = icl.Regression(
                L=L, delta=1.0, eta=rate, above=0.2, loss="mse", **changes
            )
            values = problem.measured(problem.simulate())
            for name in ("steps", "eta_used", "tail_constant", "T_I", "L_star"):
                if name in values:
                    expected = float(values[name])
                    assert float(point[name]) == pytest.approx(expected, nan_ok=True)
            assert float(point["loss"]) == pytest.approx(values["loss"], rel=1e-6)
            assert float(point["floor"]) == pytest.approx(values["floor"], abs=1e-12)
    assert json.loads(dataset.attrs["arguments"])["loss"] == "mse"


def test_sweeps_of_linear_attention_in_closed_form() -> None:
    shared = {**COMMON, "progress": False, "d": [2, 3]}
    half = icl.sweep(icl.LinearAttention, **shared, eta=[0.1, 0.2], above=1e-3)
    mse = icl.sweep(
        icl.LinearAttention, **shared, eta=[0.05, 0.1], above=2e-3, loss="mse"
    )
    assert np.array_equal(mse.steps.values, half.steps.values)
    assert np.array_equal(mse.excess.values, 2.0 * half.excess.values)
    assert "loss" not in json.loads(half.attrs["arguments"])


@pytest.mark.parametrize("name", ["closed", "fast", "few tasks", "start"])
def test_a_saved_run_goes_on(name: str, tmp_path: Path) -> None:
    _, run = runs(name)
    run.save(tmp_path / "run.npz")
    again = icl.load(tmp_path / "run.npz")
    step = int(run.t[-1]) + 7
    assert again.at(step).loss == run.at(step).loss
    assert again.family.loss == "mse"
    assert again.notes["factor"] == run.notes["factor"]


def test_a_saved_run_of_adam_goes_on_with_its_memory(tmp_path: Path) -> None:
    start = np.random.default_rng(1).normal(size=(4, 4))
    rule = {"rule": "adam", "eta": 0.05, "loss": "mse", "start": start}
    problem = icl.Regression(**LINEAR, **rule, epsilon=1e-9, max_steps=30)
    run = problem.simulate()
    run.save(tmp_path / "run.npz")
    longer = problem.changed(max_steps=50).simulate()
    again = icl.load(tmp_path / "run.npz").at(50)
    assert np.array_equal(again.params, longer.params)
    assert again.loss == longer.loss[-1]


def test_statements_and_samples_are_compared_in_units_of_theory() -> None:
    half, mse = runs("closed")
    assert icl.check_bounds(mse) == icl.check_bounds(half)
    _, run = runs("finite prompts")
    assert icl.crosscheck(run, batch=128, steps=20).passed
    with pytest.raises(ValueError, match=r"loss = 'mse': must be 'half' for a cert"):
        icl.certify(run)


def test_curves_are_compared_in_the_same_units() -> None:
    """Batch losses of SGD on the mean squared error lie around the exact curve."""
    problem = icl.LinearAttention(
        d=2, N=8, coordinates="pair", start=0.3, eta=0.02, above=0.01, loss="mse"
    )
    run = problem.simulate()
    trainer: Any = ScaledRisk(problem.sampled(64, seed=3), 2.0)
    params = trainer.initial
    losses = []
    for step in range(60):
        loss, gradient = trainer.evaluate(params, step)
        losses.append(loss)
        params = params - 0.02 * gradient
    assert run.compare(losses, batch=64, runs=8).passed
    # With half the rate in the exact run the curves would part.
    half = problem.half.simulate()
    assert not half.compare(losses, batch=64, runs=8, scale=1.0).passed


def test_scaled_risks_keep_the_contract() -> None:
    features = icl.Features.simplex(4, 1.0)
    risk = icl.PopulationRisk(features, icl.tasks.Linear(2.0), N=9, noise=0.3)
    icl.testing.check_risk(ScaledRisk(risk, 2.0))
    icl.testing.check_risk(ScaledRisk(icl.ExchangeableRisk(5, gamma=2.0), 2.0))


@pytest.mark.slow
def test_families_keep_the_contract() -> None:
    linear = {**LINEAR, "eta": 2.0, "epsilon": 2e-2, "loss": "mse", "N": 9}
    icl.testing.check_family(icl.Regression, rows=False, **linear)
    few = {**COMMON, "tasks": 2, "above": 2e-3, "loss": "mse"}
    icl.testing.check_family(icl.LinearAttention, rows=False, **few)


def test_wrong_choices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"loss = 'half mse': must be one of half"):
        icl.LinearAttention(loss="half mse")
    # Descent on Γ diverges from 1/(q m) on, half of the limit of half the loss.
    stable = icl.LinearAttention(**COMMON).stable_rate()
    icl.LinearAttention(**COMMON, eta=1.1 * stable)
    with pytest.raises(ValueError, match=r"beyond which descent diverges \(in units"):
        icl.LinearAttention(**COMMON, eta=1.1 * stable, loss="mse")
    assert icl.LinearAttention(**COMMON, loss="mse").rate() == stable / 2.0


def test_commands_say_so(capsys: Any) -> None:
    options = ["--L", "2", "--delta", "1", "--eta", "2", "--epsilon", "2e-3"]
    status, out, _ = run_main(capsys, "simulate", *options, "--loss", "mse")
    half, _ = runs("closed")
    words = " ".join(out.split())
    assert status == 0
    assert f"at step {half.steps}" in words
    assert "losses without the factor 1/2" in words
    assert "the rate is η = 4" in words
    options = ["--L", "1,2", "--delta", "1", "--eta", "2", "--loss", "mse"]
    status, out, _ = run_main(capsys, "sweep", *options)
    assert status == 0
    assert "for the mean squared error, without the factor 1/2" in out
