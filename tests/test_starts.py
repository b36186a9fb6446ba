"""Training from a start of the user's choice, in every family."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.engine import with_start
from icl_theory.families import list_families
from tests.test_cli import run_main

rng = np.random.default_rng(5)
SMALL: dict[str, Any] = {"V": 12, "triggers": 2, "outputs": 3, "H": 12}
SCORES = rng.normal(size=(4, 4))

# A problem of each family, from a start that nothing but the array could make.
STARTS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "scores": ("regression", {"L": 2, "delta": 1, "eta": 1, "K": 4}, SCORES),
    "finite prompts": (
        "regression",
        {"L": 2, "delta": 1, "eta": 1, "K": 4, "N": 8, "task": "cosine"},
        SCORES,
    ),
    "embedding": (
        "regression",
        {"L": 2, "delta": 1, "eta": 1, "K": 4, "coordinates": "embedding"},
        SCORES,
    ),
    "factors": (
        "regression",
        {"L": 2, "delta": 1, "eta": 0.1, "K": 4, "coordinates": "factored"},
        rng.normal(size=(2, 3, 4)),
    ),
    "groups": (
        "grouped-regression",
        {"L": 2, "delta": 1, "N": 9},
        rng.normal(size=(2, 3)),
    ),
    "Q": ("gaussian-regression", {"L": 2}, 0.3 * rng.normal(size=(4, 4))),
    "c": ("gaussian-regression", {"L": 2, "N": 3, "eta": 0.1, "max_steps": 2}, [0.3]),
    "Γ": ("linear-attention", {"d": 3}, rng.normal(size=(3, 3))),
    "pair": (
        "linear-attention",
        {"d": 3, "coordinates": "pair"},
        rng.normal(size=10),
    ),
    "one λ": ("recall", {}, [1.5]),
    "λ of each trigger": ("recall", {"alpha": 0.1}, [1.5, 0.2, 0.3, 0.1]),
    "λ and γ": ("recall", {"alpha": 0.1, "gamma": "trained"}, [1.5, 0.2]),
    "softmax heads": ("softmax-heads", {"N": 3, "max_steps": 2}, [0.1, 0.3]),
    "dictionary": (
        "representation",
        {"K": 4, "m": 3, "N": 2, "heads": 2},
        rng.normal(size=(2, 17)),
    ),
    "κ": ("sphere", {}, [0.4]),
    "p": ("token-selection", {"d": 3}, [0.1, 0.2, 0.3]),
    "W": ("token-selection", {"d": 3, "trained": "W"}, rng.normal(size=(3, 3))),
    "K, Q": (
        "token-selection",
        {"d": 3, "trained": "KQ", "eta": 0.1},
        rng.normal(size=(2, 2, 3)),
    ),
    "softmax": ("single-location", {}, [0.5, 0.1, 0.4, -0.2, 0.3]),
    "manifold": ("single-location", {"attention": "erf"}, [0.5, 0.1, 0.4, -0.2]),
    "sphere": ("single-location", {"attention": "linear"}, rng.normal(size=(2, 4))),
    "depth": ("depth-covariance", {"d": 2}, [0.2, 0.3]),
    "depth, multiple": ("depth-covariance", {"coordinates": "multiple"}, [0.2]),
    "depth, matrix": (
        "depth-covariance",
        {"d": 2, "coordinates": "matrix"},
        [[0.2, 0.1], [0.1, 0.3]],
    ),
    "match": ("match-copy", {"d": 2, "prompts": 3}, [[0.1, 0.2], [0.0, 0.3]]),
    "match, all": ("match-copy", {"d": 2, "prompts": math.inf, "max_steps": 2}, [0.2]),
    "layers": ("descent-layers", {"d": 2, "depth": 2}, [0.2, 0.3, 0.1]),
    "chain": ("fixed-chain", {}, [0.6, -0.2]),
    "chain, u and b": (
        "fixed-chain",
        {"bias": "trained"},
        [0.6, -0.2, 0.4, 0.1],
    ),
}


def problem_of(name: str, **changes: Any) -> icl.Family:
    family, parameters, start = STARTS[name]
    return list_families()[family](
        start=start, **{"max_steps": 12, "method": "exact", **parameters, **changes}
    )


@functools.cache
def descent_of(name: str) -> icl.Trajectory:
    """Gradient descent, which in some families first searches for the lowest loss, for a second."""
    return problem_of(name, rule="gd").simulate()


def test_no_family_is_left_out() -> None:
    # In induction-heads `start` is the law of the first symbol; scores, match and sink
    # are its parameters at step 0.
    accepting = set()
    for name, family in list_families().items():
        declared = family.parameters().get("start")
        if declared is not None and declared.kind.arrays:
            accepting.add(name)
    assert {family for family, _, _ in STARTS.values()} == accepting
    assert len(accepting) >= 11


@pytest.mark.parametrize("name", STARTS)
def test_a_run_begins_at_its_start_and_follows_the_gradient(name: str) -> None:
    run = descent_of(name)
    start = np.array(STARTS[name][2]).reshape(run.states[0].shape)
    assert np.array_equal(run.states[0], start)
    # The loop of a user: the gradient of the risk, which knows nothing of its start.
    risk = problem_of(name, rule="gd").risk()
    params = start
    for _ in range(int(run.t[-1])):
        params = params - run.eta * risk.gradient(params) / risk.metric
    np.testing.assert_allclose(run.params, params, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", STARTS)
def test_a_saved_run_goes_on_from_its_start(name: str, tmp_path: Path) -> None:
    problem = problem_of(name)
    run = descent_of(name) if problem.rule == "gd" else problem.simulate()
    run.save(tmp_path / "run.npz")
    again = icl.load(tmp_path / "run.npz")
    assert "family" not in again.notes
    step = int(run.t[-1]) + 1
    assert np.array_equal(again.at(step).params, run.at(step).params)


@pytest.mark.parametrize("name", STARTS)
def test_other_shapes_are_refused(name: str) -> None:
    family, parameters, _ = STARTS[name]
    for wrong in (np.ones((2, 3, 5)), np.ones(7), np.full((1, 1), np.nan)):
        with pytest.raises(ValueError, match=r"start = ") as error:
            list_families()[family](**{**parameters, "start": wrong})
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("shape", [(2, 4), (2, 5, 4), (3, 1, 4), (2, 1, 4, 3)])
def test_a_start_in_factored_coordinates_is_two_factors(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="of shape \\(2, rank, 4\\)"):
        icl.Regression(
            L=2.0,
            delta=1.0,
            eta=0.1,
            K=4,
            coordinates="factored",
            start=np.full(shape, 0.1),
        )


def test_zero_scores_are_the_usual_start() -> None:
    usual = icl.simulate(2.0, 1.0, 4.0, K=5, epsilon=1e-2)
    run = icl.simulate(2.0, 1.0, 4.0, K=5, epsilon=1e-2, start=np.zeros((5, 5)))
    assert run.steps == usual.steps
    np.testing.assert_allclose(run.attention[-1], usual.attention[-1], rtol=1e-12)
    # The theory is for the usual start, so the columns of its predictions stay blank.
    values = run.family.measured(run)
    assert "predicted_steps" not in values
    checks = icl.check_bounds(run)
    notes = {check.note for check in checks if check.measured is None}
    assert any("start of its own" in note for note in notes)


def test_skipped_steps_are_the_steps_from_that_start() -> None:
    exact = problem_of("scores", max_steps=2000)
    fast = exact.changed(method="fast")
    np.testing.assert_allclose(
        fast.simulate().params, exact.simulate().params, atol=1e-6
    )


def test_a_start_of_groups_is_that_of_all_features() -> None:
    """Groups are exchangeable features, so that their scores are K x K scores."""
    sizes = (1, 3)
    groups = icl.regression.GroupedRegression(
        L=2.0,
        delta=1.0,
        eta=0.7,
        sizes=sizes,
        shares=(0.4, 0.6),
        start=[[0.3, -0.2, 0.5], [0.1, 0.4, -0.3]],
        max_steps=9,
        method="exact",
    )
    reduced: Any = icl.regression.GroupedRegression(
        L=2.0, delta=1.0, sizes=sizes, shares=(0.4, 0.6)
    ).risk()
    whole = icl.Regression(
        L=2.0,
        delta=1.0,
        eta=0.7,
        K=4,
        probs=(0.4, 0.2, 0.2, 0.2),
        start=reduced.scores(groups.start),
        max_steps=9,
        method="exact",
    )
    run = whole.simulate()
    np.testing.assert_allclose(run.loss, groups.simulate().loss, rtol=1e-12)


def test_sampled_trainers_have_the_same_start() -> None:
    problem = problem_of("finite prompts")
    trainer = problem.sampled(16, seed=1)
    assert np.array_equal(trainer.initial, SCORES)
    groups = problem_of("groups").sampled(8, seed=1)
    assert groups.initial.shape == (20, 20)
    assert groups.initial.any()


def test_recall_is_trained_on_sentences_from_a_vector() -> None:
    training = icl.recall.Training(
        model="reparameterised", **SMALL, max_steps=3, start=[0.1, 0.2]
    )
    assert training.simulate().states[0].tolist() == [0.1, 0.2]
    with pytest.raises(ValueError, match=r"scale = 0.5: must be left out"):
        training.changed(scale=0.5)


def test_a_matrix_of_matches_starts_an_induction_head() -> None:
    match = [[1.0, 0.2], [-0.3, 0.5]]
    run = icl.InductionHeads(second="matrix", match=match, max_steps=2).simulate()
    assert run.states[0].tolist() == [0.0, 0.0, 1.0, 0.2, -0.3, 0.5]
    with pytest.raises(ValueError, match=r"match = \(2, 2\): must be a number"):
        icl.InductionHeads(match=match)


def test_tokens_of_your_own() -> None:
    tokens = rng.normal(size=(3, 4, 2))
    values = rng.normal(size=(3, 4))
    p = np.array([0.3, -0.7])
    problem = icl.TokenSelection(tokens=tokens, values=values, start=p, max_steps=1)
    run = problem.simulate()
    weights = np.exp(tokens @ p)
    weights /= weights.sum(axis=1, keepdims=True)
    loss = np.mean(np.log1p(np.exp(-np.sum(weights * values, axis=1))))
    assert run.loss[0] == pytest.approx(loss, rel=1e-12)
    assert (problem.n, problem.T, problem.d) == (3, 4, 2)
    with pytest.raises(ValueError, match=r"d = 5: must be 2, as tokens have it"):
        icl.TokenSelection(tokens=tokens, d=5)


def test_features_of_an_array_are_saved(tmp_path: Path) -> None:
    vectors = rng.normal(size=(4, 3))
    gap = icl.Features(vectors).gap
    run = icl.simulate(2.0, gap, 1.0, features=vectors, max_steps=9, method="exact")
    run.save(tmp_path / "run.npz")
    again = icl.load(tmp_path / "run.npz")
    assert again.at(5).loss == run.at(5).loss
    assert np.array_equal(again.family.features.vectors, vectors)


def test_with_start_keeps_metric_and_columns() -> None:
    risk = icl.ExchangeableRisk(20, gamma=2.0, N=10.0)
    moved = with_start(risk, 1.5)
    assert moved.metric == risk.metric
    assert moved.initial == 1.5
    assert moved.closed_form(1.0, "gd") is None
    icl.testing.check_risk(with_start(icl.PopulationRisk(_features(), _law()), SCORES))


def _features() -> icl.Features:
    return icl.Features.simplex(4, 1.0)


def _law() -> icl.tasks.Task:
    return icl.tasks.Linear(2.0)


def test_commands_read_files(capsys: Any, tmp_path: Path) -> None:
    start = tmp_path / "start.npy"
    covariance = tmp_path / "covariance.csv"
    np.save(start, [[0.1, 0.0], [0.2, 0.3]])
    np.savetxt(covariance, [[1.0, 0.2], [0.2, 0.5]], delimiter=",")
    config = tmp_path / "run.toml"
    config.write_text(f'start = "{start}"\ncovariance = [[1.0, 0.2], [0.2, 0.5]]\n')
    command = ["linear-attention", "simulate", "--json"]
    options = ["--start", str(start), "--covariance", str(covariance)]
    printed = []
    for given in (options, ["--config", str(config)]):
        status, out, err = run_main(capsys, *command, *given)
        assert (status, err) == (0, "")
        printed.append(json.loads(out))
    problem = icl.LinearAttention(
        start=[[0.1, 0.0], [0.2, 0.3]], covariance=[[1.0, 0.2], [0.2, 0.5]]
    )
    for run in printed:
        assert run["loss"] == problem.simulate().loss.tolist()


def test_sweeps_hold_a_file_fixed(capsys: Any, tmp_path: Path) -> None:
    start = tmp_path / "start.npy"
    np.save(start, [0.1, 0.2])
    dataset = icl.sweep(
        icl.LinearAttention, d=2, start=str(start), noise=[0.0, 1.0], progress=False
    )
    assert dataset.steps.dims == ("noise",)
    for noise in (0.0, 1.0):
        run = icl.LinearAttention(d=2, start=[0.1, 0.2], noise=noise).simulate()
        assert int(dataset.steps.sel(noise=noise)) == run.steps
    assert json.loads(dataset.attrs["arguments"])["start"] == [0.1, 0.2]
    options = ["--d", "2", "--start", str(start), "--noise", "0,1", "--json"]
    status, out, _ = run_main(capsys, "linear-attention", "sweep", *options)
    assert status == 0
    swept = json.loads(out)["data_vars"]["steps"]["data"]
    assert swept == dataset.steps.values.tolist()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--start", "none.npy"], "start = 'none.npy': must be a file that exists"),
        (["--start", "1,2,3"], "start = (3,): must be of shape (2,)"),
        (["--start", "big"], "or a file of an array (.npy, .npz, .csv, .txt)"),
        (["--covariance", "1,x"], "covariance = '1,x': must be a file"),
    ],
)
def test_wrong_options_are_one_line(
    capsys: Any, options: list[str], words: str
) -> None:
    status, _, err = run_main(
        capsys, "linear-attention", "simulate", "--d", "2", *options
    )
    assert status == 2
    assert words in err
    assert err.count("\n") == 1


def test_single_location_takes_a_vector_and_all_words(capsys: Any) -> None:
    command = ["single-location", "simulate", "--max-steps", "2"]
    status, out, _ = run_main(capsys, *command, "--start", "1,0,1,0,0.5")
    assert status == 0
    assert "start=[1.0, 0.0, 1.0, 0.0, 0.5]" in " ".join(out.split())
    status, _, err = run_main(capsys, *command, "--start", "mainfold")
    assert status == 2
    assert "did you mean manifold?" in err


@pytest.mark.parametrize("finite", [{}, {"N": 20, "noise": 0.1}], ids=["inf", "N"])
def test_points_of_a_sweep_begin_at_its_start(finite: dict[str, Any]) -> None:
    """Runs from zero scores would be computed in a batch."""
    given = {"delta": 1.0, "eta": 0.3, "K": 5, "epsilon": 0.5, **finite}
    start = 0.3 * np.eye(5)
    dataset = icl.sweep(L=[1.0, 2.0], start=start, **given, progress=False)
    runs = [icl.simulate(L, start=start, **given) for L in (1.0, 2.0)]
    assert dataset.steps.values.tolist() == [run.steps for run in runs]
    np.testing.assert_allclose(dataset.loss.values, [run.loss[-1] for run in runs])
    from_zero = icl.sweep(L=[1.0, 2.0], **given, progress=False)
    assert dataset.steps.values[1] < from_zero.steps.values[1]
