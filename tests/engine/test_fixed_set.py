"""Training on a fixed set of prompts: loss, gradient, population, batches, refusals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.cli import main
from icl_theory.engine import FixedSetRisk, Scope
from icl_theory.engine.sampling import selected
from icl_theory.families.registry import find
from icl_theory.papers.linear_attention.layer import LayerRisk
from icl_theory.regression.sampled.counts import CountedRisk
from icl_theory.regression.sampled.layer import Prompts
from icl_theory.regression.sampled.risk import SampledRisk
from icl_theory.testing import check_family

K = 4
N = 6


def parts(batch: int = 5, noise: float = 0.3) -> tuple[Any, SampledRisk]:
    features = icl.Features.simplex(K, delta=1.0)
    task = icl.tasks.Exchangeable(2.0)
    population = icl.PopulationRisk(features, task, N=N, noise=noise)
    return population, SampledRisk(features, task, N, batch, seed=3, noise=noise)


def loss_by_hand(scores: Any, prompts: Prompts) -> float:
    """Softmax over the tokens of each prompt, one prompt after the other."""
    losses = []
    for token, query, label, answer in zip(*prompts[:4], strict=True):
        weights = [math.exp(scores[m, query]) for m in token]
        total = sum(weights)
        mean = sum(w * y for w, y in zip(weights, label, strict=True)) / total
        losses.append(0.5 * (mean - answer) ** 2)
    return sum(losses) / len(losses)


@pytest.mark.parametrize("M", [1, 2, 10])
def test_loss_and_gradient_are_those_of_the_prompts(M: int) -> None:
    population, trainer = parts()
    risk = FixedSetRisk(population, trainer, M, seed=1)
    assert risk.M == M
    assert not risk.stochastic
    scores = np.random.default_rng(0).normal(size=(K, K))
    expected = loss_by_hand(scores, risk.prompts)
    assert risk.loss(scores) == pytest.approx(expected, rel=1e-12)
    gradient = risk.gradient(scores)
    for index in np.ndindex(K, K):
        step = np.zeros((K, K))
        step[index] = 1e-5
        ahead = loss_by_hand(scores + step, risk.prompts)
        behind = loss_by_hand(scores - step, risk.prompts)
        assert gradient[index] == pytest.approx((ahead - behind) / 2e-5, abs=1e-9)


def test_a_large_set_has_the_population_loss_and_gradient() -> None:
    population, trainer = parts()
    M = 40_000
    risk = FixedSetRisk(population, trainer, M)
    scores = np.random.default_rng(0).normal(size=(K, K))
    losses = trainer.losses_on(scores, risk.prompts)
    error = losses.std() / math.sqrt(M)
    assert abs(risk.loss(scores) - population.loss(scores)) < 4.0 * error
    observed = risk.observe(scores)
    assert observed["population_loss"] == population.loss(scores)
    parts_of_set = np.array_split(np.arange(M), 100)
    gradients = np.array(
        [
            trainer.evaluate_on(scores, selected(risk.prompts, rows))[1]
            for rows in parts_of_set
        ]
    )
    errors = gradients.std(axis=0, ddof=1) / 10.0
    difference = np.abs(risk.gradient(scores) - population.gradient(scores))
    # 16 entries
    assert (difference < 4.0 * errors).all()


def test_prompts_may_be_given() -> None:
    population, trainer = parts()
    prompts = trainer.draw(np.random.default_rng(7), 12)
    risk = FixedSetRisk(population, trainer, prompts)
    scores = np.eye(K)
    assert risk.loss(scores) == pytest.approx(loss_by_hand(scores, prompts), rel=1e-12)
    again = FixedSetRisk(population, trainer, risk.prompts)
    assert again.loss(scores) == risk.loss(scores)


def test_the_population_may_be_unknown() -> None:
    law = icl.linear_attention.PromptLaw([1.0, 0.5], N=5)
    trainer = LayerRisk.of(law, [0.1, 0.1, 0.1], batch=1)
    risk = FixedSetRisk(None, trainer, 20)
    run = icl.descend(risk, 0.05, steps=20)
    # On a set, entries of the layer move that stay zero on the population.
    assert np.abs(run.params[0, -1, :-1]).min() > 0.0
    assert run.observed == {}
    assert run.on_fixed_set


def test_the_set_is_drawn_by_its_seed_alone() -> None:
    population, trainer = parts()
    other_batches = parts(batch=9)[1]
    first = FixedSetRisk(population, trainer, 8, seed=5)
    same = FixedSetRisk(population, other_batches, 8, seed=5)
    other = FixedSetRisk(population, trainer, 8, seed=6)
    assert np.array_equal(first.prompts.label, same.prompts.label)
    assert not np.array_equal(first.prompts.label, other.prompts.label)


def test_batches_come_from_the_set_and_from_the_step() -> None:
    population, trainer = parts()
    risk = FixedSetRisk(population, trainer, 10, batch=4, seed=2)
    whole = FixedSetRisk(population, trainer, 10, seed=2)
    assert risk.stochastic
    scores = np.eye(K)
    losses = trainer.losses_on(scores, risk.prompts)
    rows_of_steps = []
    for step in range(50):
        batch = risk.sampled(4, seed=2).prompts(step)
        rows = [risk.prompts.answer.tolist().index(answer) for answer in batch.answer]
        assert len(set(rows)) == 4
        loss = risk.evaluate(scores, step)[0]
        assert loss == pytest.approx(losses[rows].mean(), rel=1e-12)
        rows_of_steps.append(tuple(rows))
    assert len(set(rows_of_steps)) > 40
    assert risk.observe(scores, 3)["set_loss"] == whole.loss(scores)
    # A batch of the whole set is the set.
    assert not FixedSetRisk(population, trainer, 10, batch=10, seed=2).stochastic
    run = icl.descend(risk, 2.0, steps=30)
    assert run.at(17).loss == risk.evaluate(run.at(17).params, 17)[0]


def test_coordinates_train_on_the_same_prompts() -> None:
    problem = icl.Regression(
        L=2.0, delta=1.0, eta=1.0, K=3, N=8, noise=0.1, dataset=20, max_steps=30
    )
    Q = problem.changed(coordinates="embedding").simulate()
    vectors = icl.Features.simplex(3, 1.0).vectors
    over_scores = problem.trained_risk()
    over_Q = problem.changed(coordinates="embedding").trained_risk()
    state = Q.params
    scores = vectors @ state @ vectors.T
    assert over_Q.loss(state) == pytest.approx(over_scores.loss(scores), rel=1e-12)
    gradient = over_scores.gradient(scores)
    assert over_Q.gradient(state) == pytest.approx(vectors.T @ gradient @ vectors)


@pytest.mark.parametrize(
    ("family", "parameters"),
    [
        ("grouped-regression", {"L": 1.0, "delta": 1.0, "sizes": (2, 2), "N": 8}),
        ("sphere", {"N": 20}),
        ("single-location", {}),
        ("representation", {}),
        ("linear-attention", {"d": 3, "coordinates": "pair"}),
        ("linear-attention", {"d": 3, "coordinates": "heads", "heads": 2}),
        ("linear-attention", {"d": 3, "depth": 2}),
        ("linear-attention", {"d": 3, "coordinates": "layer"}),
        ("linear-attention", {"d": 3, "loss": "mse"}),
    ],
)
def test_every_family_with_a_sampler(family: str, parameters: dict[str, Any]) -> None:
    problem = find(family)(**parameters, dataset=30, max_steps=3)
    run = problem.simulate()
    risk = problem.trained_risk()
    assert run.on_fixed_set
    population = problem.unreduced()
    for index in range(len(run.t)):
        state = run.states[index]
        population_loss = problem.loss_factor * population.loss(state)
        assert run.observed["population_loss"][index] == population_loss
    # The gradient is that of the loss, by a central difference along itself.
    state = risk.initial + 0.1
    gradient = risk.gradient(state)
    length = float(np.linalg.norm(gradient))
    direction = gradient / length
    ahead = risk.loss(state + 1e-5 * direction)
    behind = risk.loss(state - 1e-5 * direction)
    assert (ahead - behind) / 2e-5 == pytest.approx(length, rel=1e-6)


def test_saved_runs_restart_on_their_set(tmp_path: Path) -> None:
    problem = icl.Regression(
        L=2.0, delta=1.0, eta=2.0, K=4, N=9, dataset=25, dataset_seed=4, max_steps=40
    )
    for changed in (problem, problem.changed(dataset_batch=5, rule="adam", eta=0.05)):
        run = changed.simulate()
        path = tmp_path / "run.npz"
        run.save(path)
        again = icl.load(path)
        assert again.family is not None
        assert again.family.dataset == 25
        for step in (3, 29, 60):
            assert again.at(step).loss == run.at(step).loss
        assert again.observed.keys() == run.observed.keys()


def test_theory_of_the_population_does_not_apply() -> None:
    problem = icl.Regression(L=2.0, delta=1.0, eta=2.0, K=4, N=9, max_steps=5)
    fixed = problem.changed(dataset=25)
    scope = Scope(flow=True)
    assert scope.applies(problem)
    assert not scope.applies(fixed)
    assert scope.why_not(fixed).endswith("this is training on a fixed set of prompts")
    run = fixed.simulate()
    assert not scope.applies(run)
    assert not scope.applies(icl.descend(fixed.trained_risk(), 2.0, steps=5))
    assert not problem.changed(dataset=math.inf).on_fixed_set


def test_a_sweep_over_sizes_has_the_population_beside_the_set() -> None:
    table = icl.sweep(
        "linear-attention",
        d=3,
        dataset=[30.0, 300.0, math.inf],
        above=1e-6,
        progress=False,
    )
    problem = icl.LinearAttention(d=3, above=1e-6, dataset=30)
    run = problem.simulate()
    row = table.isel(dataset=0)
    population_loss = run.observed["population_loss"]
    assert row["population_loss"] == population_loss[-1]
    assert row["test_gap"] == population_loss[-1] - run.loss[-1]
    assert row["best_loss"] == population_loss.min()
    assert row["best_step"] == run.t[population_loss.argmin()]
    without_set = table.isel(dataset=2)
    assert np.isnan(without_set["population_loss"])
    assert without_set["steps"] == icl.LinearAttention(d=3, above=1e-6).simulate().steps


def test_wrong_sets_are_named() -> None:
    population, trainer = parts()
    prompts = trainer.draw(np.random.default_rng(0), 5)
    with pytest.raises(ValueError, match="prompts = 0: must be an integer >= 1"):
        FixedSetRisk(population, trainer, 0)
    with pytest.raises(ValueError, match="prompts that this trainer can evaluate"):
        FixedSetRisk(population, trainer, prompts._replace(token=prompts.token[:, :3]))
    short = prompts._replace(token=prompts.token[:, :3], label=prompts.label[:, :3])
    with pytest.raises(ValueError, match=r"label of the prompts = .5, 3.*\(B, 6\)"):
        FixedSetRisk(population, trainer, short)
    nan_labels = prompts._replace(label=np.full_like(prompts.label, np.nan))
    with pytest.raises(ValueError, match=r"label of the prompts.*finite"):
        FixedSetRisk(population, trainer, nan_labels)
    negative = prompts._replace(query=-1 - prompts.query)
    with pytest.raises(ValueError, match=r"query of the prompts.*>= 0"):
        FixedSetRisk(population, trainer, negative)
    too_large = prompts._replace(query=prompts.query + K)
    with pytest.raises(ValueError, match="prompts that this trainer can evaluate"):
        FixedSetRisk(population, trainer, too_large)
    with pytest.raises(ValueError, match=r"batch = 6: must be an integer in \[1, 5\]"):
        FixedSetRisk(population, trainer, prompts, batch=6)
    with pytest.raises(ValueError, match="a Trainer, which draws prompts"):
        FixedSetRisk(population, population, 5)
    counter = CountedRisk(trainer.features, trainer.task, N, 5, 0, every_query=False)
    counted = counter.draw(np.random.default_rng(0), 5)
    with pytest.raises(ValueError, match=r"counts of the prompts.*sum to N = 6"):
        FixedSetRisk(population, counter, counted._replace(counts=counted.counts + 1))
    smaller = icl.PopulationRisk(icl.Features.simplex(3, 1.0), icl.tasks.Linear(1.0))
    with pytest.raises(ValueError, match=r"population = \(3, 3\).*\(4, 4\)"):
        FixedSetRisk(smaller, trainer, 5)


@pytest.mark.parametrize(
    ("family", "parameters", "message"),
    [
        ("Regression", {"dataset": 0, "N": 5}, "dataset = 0: must be"),
        ("Regression", {"dataset": 9}, "dataset = 9: N = inf: must be finite"),
        ("Regression", {"dataset_seed": 1}, "dataset_seed = 1: must be left out"),
        (
            "Regression",
            {"dataset": 9, "dataset_batch": 10, "N": 5},
            "dataset_batch = 10: must be at most dataset = 9",
        ),
        ("Recall", {"dataset": 9}, "dataset = 9.*: must be left out: M is"),
        ("FixedChain", {"dataset": 9}, "dataset = 9: .*one that can be sampled"),
    ],
)
def test_wrong_parameters_are_named(
    family: str, parameters: dict[str, Any], message: str
) -> None:
    required = {}
    if family == "Regression":
        required = {"L": 2.0, "delta": 1.0, "eta": 4.0}
    with pytest.raises(ValueError, match=message):
        getattr(icl, family)(**required, **parameters)


def test_skipped_steps_agree_with_single_steps() -> None:
    problem = icl.Regression(
        L=2.0, delta=1.0, eta=4.0, K=3, N=8, dataset=20, epsilon=1e-9, max_steps=2000
    )
    fast = problem.changed(method="fast").simulate()
    exact = problem.changed(method="exact").simulate()
    assert fast.states_error is not None
    for step in (100, 700, 2000):
        difference = np.abs(fast.at(step).params - exact.at(step).params).max()
        assert difference <= fast.states_error + 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "parameters"),
    [
        ("linear-attention", {"d": 3, "dataset": 40, "above": 1e-4}),
        (
            "regression",
            {
                **{"L": 2.0, "delta": 1.0, "eta": 1.0, "K": 3, "N": 9},
                **{"dataset": 30, "dataset_batch": 10, "max_steps": 60},
            },
        ),
    ],
)
def test_families_keep_their_promises(family: str, parameters: dict[str, Any]) -> None:
    check_family(find(family), rows=False, **parameters)


def test_comparison_with_batches_draws_from_the_set() -> None:
    problem = icl.Regression(
        L=2.0, delta=1.0, eta=2.0, K=3, N=6, dataset=40, max_steps=60, epsilon=1e-9
    )
    run = problem.simulate()
    losses = np.array([run.at(t).loss for t in range(60)])
    assert run.compare(losses, batch=30).passed
    # Batches of the whole set do not scatter, and new prompts would.
    assert run.compare(losses, batch=40).passed
    assert not run.compare(1.02 * losses, batch=40).passed


def test_the_command_line_trains_on_a_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    config = tmp_path / "set.toml"
    config.write_text("d = 3\nN = 10\nabove = 1e-6\ndataset = 50\ndataset_seed = 2\n")
    with pytest.raises(SystemExit) as stop:
        main(["linear-attention", "simulate", "--config", str(config)])
    assert stop.value.code == 0
    problem = icl.LinearAttention(d=3, N=10, above=1e-6, dataset=50, dataset_seed=2)
    assert problem.simulate().notes["fixed set"] in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["linear-attention", "sweep", "--d", "3", "--dataset", "40,400"])
    printed = capsys.readouterr().out
    assert "population_loss" in printed
    assert "best_step" in printed
    with pytest.raises(SystemExit):
        main(["linear-attention", "sweep", "--d", "3", "--N", "10,20"])
    assert "best_step" not in capsys.readouterr().out
