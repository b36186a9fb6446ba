"""Planted deviations of sampled curves, and the explanations that comparisons name."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deviations import MODELS, train

import icl_theory as icl
from icl_theory.cli import main
from icl_theory.engine.evidence import INDEPENDENT_PART, Evidence
from icl_theory.engine.rules import rule_of
from icl_theory.engine.trainings import TooLongError, Trainings
from icl_theory.engine.windows import Windows
from icl_theory.results import plots

REGRESSION = MODELS["regression"]
LINEAR = MODELS["linear-attention"]
# A short training of each model, with small batches.
PLANS = {
    "regression": replace(REGRESSION.plan, steps=24, batch=1000, N=8),
    "linear-attention": replace(LINEAR.plan, steps=40, batch=1000, N=8),
}


def planted(name: str, changes: dict[str, Any]) -> Any:
    """Compare a sampled curve with changes with the run without them."""
    model, plan = MODELS[name], PLANS[name]
    curve = train(model, replace(plan, **changes), seed=3)
    return model.problem(plan).simulate().compare(curve.losses, errors=curve.errors)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize(
    ("cause", "changes"),
    [
        ("factor", {"factor": 2.0}),
        ("factor", {"factor": 2.0, "trains_on_factor": True}),
        ("momentum", {"optimiser": "momentum"}),
        ("label noise", {"answer_noise": 0.5}),
        ("positions", {"positions": True}),
        ("prompt length", {"N": 5}),
    ],
)
def test_the_planted_cause_is_among_the_first_two(
    name: str, cause: str, changes: dict[str, Any]
) -> None:
    compared = planted(name, changes)
    names = [item.name for item in compared.explanations[:2]]
    assert any(cause in name.split(" and ") for name in names), names
    first = compared.explanations[0]
    assert first.sentence in compared.remarks
    assert first.losses is not None
    assert first.losses.shape == compared.t.shape


@pytest.mark.parametrize("name", PLANS)
def test_the_run_s_own_training_needs_no_explanation(name: str) -> None:
    compared = planted(name, {"precision": np.float32})
    assert compared.passed
    assert compared.explanations == ()


@pytest.mark.parametrize(
    ("rule", "name"), [("adam", "factor"), ("gd", "factor and adam")]
)
def test_adam_that_forgets_the_half_is_recognised_at_step_0(
    rule: str, name: str
) -> None:
    """Under Adam the loss falls at once, and the doubled gradient changes nothing."""
    plan = replace(PLANS["regression"], eta=0.1, steps=16)
    changed = replace(plan, optimiser="adam", factor=2.0, trains_on_factor=True)
    curve = train(REGRESSION, changed, seed=1)
    run = REGRESSION.problem(plan).changed(rule=rule).simulate()
    compared = run.compare(curve.losses, errors=curve.errors)
    assert compared.leaves == (0, 0)
    assert compared.explanations[0].name == name
    assert compared.explanations[0].parameters["scale"] == 0.5


def test_adam_is_recognised_in_units_of_the_mean_squared_error() -> None:
    """The candidate must have the factor 2 of the run's loss."""
    problem = icl.Regression(
        L=2.0, delta=1.0, K=5, N=20, eta=0.02, loss="mse", max_steps=199
    )
    adam = problem.changed(rule="adam").simulate()
    steps = np.arange(200)
    losses = [adam.at(int(step)).loss for step in steps]
    found = problem.simulate().compare(losses, steps=steps, errors=2e-3)
    assert [explanation.name for explanation in found.explanations] == ["adam"]


def test_fitted_parameters_are_those_of_the_training() -> None:
    """Losses by plain iteration of the quadratic loss of linear attention.

    For isotropic tokens Γ = g·I has the loss ½ (d - 2 d g + g² d m) with the second
    moment m = 1 + (d + 1)/N, d times the same for each direction.
    """
    d, N, eta, start = 3, 10, 0.05, 0.02
    m = 1.0 + (d + 1.0) / N
    run = icl.LinearAttention(
        d=d, N=N, noise=0.0, eta=eta, start=start, max_steps=60
    ).simulate()

    def losses(rate: float = eta, g: float = start, constant: float = 0.0) -> Any:
        values = []
        for _ in range(60):
            values.append(0.5 * d * (1.0 - 2.0 * g + m * g * g) + constant)
            g -= rate * (m * g - 1.0)
        return np.array(values)

    assert run.compare(losses(), errors=1e-9).passed
    for factor in (0.47, 0.77, 1.3, 1.6):
        rate = run.compare(losses(rate=factor * eta), errors=1e-4).explanations[0]
        assert rate.name == "rate"
        assert rate.parameters["eta"] == pytest.approx(factor * eta, rel=1e-3)
    begun = run.compare(losses(g=0.3), errors=1e-4).explanations[0]
    assert begun.name == "start"
    assert begun.parameters["start"] == pytest.approx(0.3, rel=1e-3)
    noisy = run.compare(losses(constant=0.02), errors=1e-4).explanations[0]
    assert noisy.name == "label noise"
    assert noisy.parameters["answer_noise"] == pytest.approx(0.2, rel=1e-3)
    later = run.compare(losses()[1:], errors=1e-4).explanations[0]
    assert later.name == "after the update"
    counted = run.compare(losses()[:-1], np.arange(1, 60), errors=1e-4).explanations[0]
    assert counted.sentence == "its steps are counted from 1"


def test_a_run_without_a_family_has_the_explanations_that_need_none() -> None:
    risk = icl.PopulationRisk(icl.Features.simplex(3, 1.0), icl.tasks.Exchangeable(2.0))
    run = icl.descend(risk, 2.0, steps=40)
    fast = icl.descend(risk, 2.0, steps=40, rule="heavy-ball")
    losses = [fast.at(step).loss for step in range(40)]
    compared = run.compare(losses, errors=1e-3)
    assert [item.name for item in compared.explanations] == ["momentum"]


def test_a_difference_without_an_explanation_says_where_it_begins() -> None:
    run = icl.simulate(2.0, 1.0, 4.0, K=4, max_steps=60)
    losses = np.array([run.at(step).loss for step in range(60)])
    bent = losses * np.where(np.arange(60) < 20, 1.0, 1.3)
    compared = run.compare(bent, errors=1e-3 * losses)
    assert compared.explanations == ()
    assert "step 0 agrees" in compared.remarks
    assert "the end is 30 % above" in compared.remarks


def test_a_factor_of_step_0_alone_has_the_misfit_of_all_steps() -> None:
    """The mean square of what is left of the curve divided by 2, in standard errors."""
    run = icl.simulate(2.0, 1.0, 4.0, K=4, N=12, max_steps=8)
    losses = np.array([run.at(step).loss for step in range(8)])
    bent = losses * [1.0, 1.3, 0.7, 1.3, 0.7, 1.3, 0.7, 1.3]
    (explanation,) = run.compare(2.0 * bent, errors=1e-3).explanations
    assert explanation.name == "factor"
    assert "the later steps are not explained" in explanation.sentence
    z = (bent - losses) / 0.5e-3
    assert explanation.misfit == pytest.approx(np.mean(z**2), rel=1e-4)


@pytest.mark.parametrize(("steps", "untried"), [(75, True), (60, False)])
def test_explanations_that_take_long_are_not_tried(steps: int, untried: bool) -> None:
    """Random starts of 60² numbers: 24 trainings of 75 steps are 1e5 gradients times √n / 60."""
    risk = icl.PopulationRisk(
        icl.Features.simplex(60, 1.0), icl.tasks.RandomCosine(2.0)
    )
    run = icl.descend(risk, 1.0, steps=steps)
    losses = np.array([run.at(step).loss for step in range(steps)])
    bent = losses * np.where(np.arange(steps) < 20, 1.0, 1.3)
    compared = run.compare(bent, errors=1e-3 * losses)
    assert ("start" in compared.untried) == untried
    assert ("it takes long: start" in compared.remarks) == untried


def test_the_size_of_a_fixed_set_has_two_digits() -> None:
    plan = replace(LINEAR.plan, steps=40, batch=100, N=8)
    curve = train(LINEAR, replace(plan, prompts=340), seed=3)
    run = LINEAR.problem(plan).simulate()
    first = run.compare(curve.losses, errors=curve.errors).explanations[0]
    assert first.name == "fixed set"
    assert first.parameters == {"dataset": 350}
    assert "about 350 prompts" in first.sentence


def test_losses_below_the_floor_are_not_those_of_fresh_prompts() -> None:
    """This risk has no sampler, so that no fixed set can be followed."""
    risk = icl.PopulationRisk(
        icl.Features.simplex(3, 1.0), icl.tasks.Exchangeable(2.0), N=6, noise=0.5
    )
    run = icl.descend(risk, 2.0, steps=16)
    assert run.floor > 0.0
    low = np.where(run.t < 8, run.loss, 0.9 * run.floor)
    (explanation,) = run.compare(low, run.t, errors=1e-3).explanations
    assert explanation.name == "fixed set"
    assert "below the floor" in explanation.sentence


def test_rounding_to_float32_is_no_evidence() -> None:
    """Zero standard errors, as at a start where every prompt has the loss ln V."""
    run = icl.simulate(2.0, 1.0, 4.0, K=4, max_steps=20)
    losses = np.array([run.at(step).loss for step in range(20)])
    rounded = losses.astype(np.float32)
    assert run.compare(rounded, errors=0.0).passed
    assert run.compare(rounded.astype(float), errors=1e-9).passed
    written = [float(str(value)) for value in rounded]
    assert run.compare(written, errors=0.0).passed
    assert run.compare([float(f"{value:.6g}") for value in losses], errors=0.0).passed
    assert run.compare(losses, errors=0.0).passed
    assert not run.compare(losses * (1.0 + 1e-7), errors=0.0).passed
    assert not run.compare((rounded * np.float32(1.00002)), errors=0.0).passed


def test_the_best_explanation_is_drawn_dashed_and_printed_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = icl.simulate(2.0, 1.0, 4.0, K=4, max_steps=20)
    losses = 1.2 * np.array([run.at(step).loss for step in range(20)])
    compared = run.compare(losses, errors=1e-3)
    ax: Any = compared.plot()
    assert ax.lines[-1].get_linestyle() == "--"
    np.testing.assert_allclose(ax.lines[-1].get_ydata(), losses)
    plots.release(ax)
    monkeypatch.chdir(tmp_path)
    run.save("run.npz")
    np.savetxt("curve.txt", np.column_stack([np.arange(20), losses, losses * 1e-3]))
    with pytest.raises(SystemExit) as ended:
        main(["compare", "run.npz", "curve.txt", "--json"])
    assert ended.value.code == 1
    explanation = json.loads(capsys.readouterr().out)["explanations"][0]
    assert explanation["name"] == "factor"
    assert explanation["parameters"]["scale"] == pytest.approx(1.0 / 1.2)


FILES = {
    "W&B": (
        '"Step","run-1 - loss","run-1 - loss__MIN"\n"0","0.9","0.8"\n"5","0.7","0.6"\n',
        None,
        [0, 5],
        [0.9, 0.7],
    ),
    "W&B, two runs": (
        "Step,a - loss,b - loss\n0,0.9,0.8\n5,0.7,0.6\n",
        "b - loss",
        [0, 5],
        [0.8, 0.6],
    ),
    "TensorBoard": (
        "Wall time,Step,Value\n1.5,0,0.9\n2.5,5,0.7\n",
        None,
        [0, 5],
        [0.9, 0.7],
    ),
    "one column": ("9.0e-01\n7.0e-01\n", None, [0, 1], [0.9, 0.7]),
    "two columns": ("0 0.9\n5 0.7\n", None, [0, 5], [0.9, 0.7]),
    "commas": ("0,0.9,0.1\n5,0.7,0.1\n", None, [0, 5], [0.9, 0.7]),
    "savetxt with a header": ("# step loss\n0 0.9\n5 0.7\n", None, [0, 5], [0.9, 0.7]),
    "pandas with an index": (
        ",step,loss\n0,10,0.9\n1,15,0.7\n",
        None,
        [10, 15],
        [0.9, 0.7],
    ),
    "savetxt with commas": ("# step,loss\n0,0.9\n5,0.7\n", None, [0, 5], [0.9, 0.7]),
    "tabs and an empty line": (
        "step\tloss\n0\t0.9\n5\t0.7\n\n",
        None,
        [0, 5],
        [0.9, 0.7],
    ),
    "second of many": ("1 2 0.9 4\n1 2 0.7 4\n", "3", [0, 1], [0.9, 0.7]),
    "another title": ("step,train\n0,0.9\n5,0.7\n", "train", [0, 5], [0.9, 0.7]),
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_other_programs_are_read(name: str, tmp_path: Path) -> None:
    text, column, steps, losses = FILES[name]
    (tmp_path / "curve.csv").write_text(text)
    run = icl.simulate(2.0, 1.0, 4.0, K=4, N=12, above=1e-3)
    compared = run.compare(tmp_path / "curve.csv", errors=9.0, column=column)
    assert (compared.t.tolist(), compared.losses.tolist()) == (steps, losses)


REFUSED = {
    "epoch,loss\n0,0.9\n1,0.8\n": (
        None,
        r"header step,loss \(its first line is 'epoch",
    ),
    "step,loss,loss\n0,1,1\n1,1,1\n": (None, "one column for the loss, not loss, loss"),
    "step,step,loss\n0,0,1\n1,1,1\n": (None, "one column for the step"),
    "Step,a - loss,b - loss\n0,1,1\n": (None, "choose one with the argument column"),
    "step,loss\n0,0.9\n": (None, "at least two losses"),
    "step,loss\n0,0.9\n1,nan\n": (None, r"losses\[1\] = nan: .* at step 1"),
    "0.9,0.8\n0.7,0.6\n": (None, "increasing steps in its first column"),
    "1 2 3 4\n1 2 3 4\n": (None, "it has 4 columns"),
    "0.9\n0.8\n": ("2", "column = '2': must be a number from 1 to 1"),
    "step,b\n0,0.9\n1,0.8\n": ("c", "column = 'c': must be the title of one column"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_file_that_may_mean_several_curves_or_none_is_refused(
    text: str, tmp_path: Path
) -> None:
    column, words = REFUSED[text]
    (tmp_path / "curve.csv").write_text(text)
    run = icl.simulate(2.0, 1.0, 4.0, K=4, N=12, above=1e-3)
    with pytest.raises(ValueError, match=words):
        run.compare(tmp_path / "curve.csv", errors=1.0, column=column)
    with pytest.raises(ValueError, match="left out unless losses is a file"):
        run.compare([0.9, 0.8], errors=1.0, column="loss")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"warmup": 40}, r"warms up during about (3\d|4\d) steps"),
        ({"schedule": "step", "decay_steps": 25, "decay_factor": 0.5}, "is halved"),
    ],
)
def test_a_schedule_is_named_if_nothing_else_fits(
    settings: dict[str, Any], words: str
) -> None:
    problem = icl.LinearAttention(d=4, N=16, decay=2.0, eta=0.1, max_steps=120)
    problem = problem.changed(above=1e-9, method="exact")
    run = problem.simulate()
    scheduled = problem.changed(**settings).simulate()
    losses = np.array([scheduled.at(step).loss for step in range(120)])
    compared = run.compare(losses, errors=2e-4 * losses)
    assert [item.name for item in compared.explanations] == ["schedule"]
    assert re.search(words, compared.explanations[0].sentence)


def test_the_residual_of_a_random_training_is_that_of_its_covariance() -> None:
    """χ² and the determinant against the matrix C, written out."""
    rng = np.random.default_rng(0)
    windows = Windows(np.arange(6), np.arange(6))
    sigma = rng.uniform(0.5, 2.0, 6)
    evidence = Evidence(
        windows,
        exact=np.ones(6),
        means=rng.normal(size=6),
        errors=sigma,
        limit=3.0,
        freedom=math.inf,
        rounding=0.0,
        errors_of_curve=True,
        is_smooth=False,
    )
    modes = rng.normal(size=(2, 6))
    expected = rng.normal(size=6)
    residual = evidence.residual(expected, modes)
    # A part of the scatter is independent in each window.
    share = INDEPENDENT_PART
    covariance = np.diag(sigma**2 + share * np.sum(modes**2, axis=0))
    covariance += (1.0 - share) * modes.T @ modes
    difference = evidence.means - expected
    square = difference @ np.linalg.solve(covariance, difference)
    _, log_det = np.linalg.slogdet(covariance)
    assert residual.square == pytest.approx(square, rel=1e-12)
    assert residual.log_det_ratio == pytest.approx(
        log_det - 2.0 * np.log(sigma).sum(), rel=1e-12
    )


def test_a_training_of_forty_thousand_steps_without_a_closed_form_skips_them() -> None:
    """So that explanations of long curves are tried. A rule that cannot skip has too many steps."""
    risk = icl.ExchangeableRisk(4, 2.0, N=12)
    rule = rule_of("gd")
    assert risk.closed_form(0.1, rule) is None
    run, twice = (
        icl.descend(risk, eta, steps=40_000, method="fast") for eta in (0.1, 0.2)
    )
    trainings = Trainings(run, rule, Windows.of(run.t), run.loss)
    losses = trainings.losses(eta=0.2)
    assert losses is not None
    assert losses[0] == twice.loss[0]
    assert losses[-1] == pytest.approx(twice.loss[-1], rel=1e-9)
    with pytest.raises(TooLongError):
        trainings.losses(rule=rule_of("adam"))
