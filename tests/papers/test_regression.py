"""Rows of the audit and checks of a run notice a fault: each test plants one."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory import tasks
from icl_theory.papers.regression.statements import (
    dynamics,
    experiments,
    lemmas,
    questions,
)
from icl_theory.papers.regression.statements.common import (
    cross_ratios,
    random_risk,
    random_scores,
)
from icl_theory.regression import bounds as certified
from icl_theory.regression.closed.runs import ExchangeableSteps
from icl_theory.regression.risks.population import PopulationRisk
from icl_theory.statements.claim import Claim
from icl_theory.statements.numbers import decade

Array = np.ndarray


def check(name: str, run: icl.Trajectory) -> icl.statements.BoundCheck:
    return next(one for one in icl.check_bounds(run) if one.name == name)


def cosine_run() -> icl.Trajectory:
    return icl.simulate(
        2.0, 1.0, 4.0, K=5, task=tasks.RandomCosine, method="exact", max_steps=20
    )


def scaled(original: Callable[..., Any], by: float) -> Callable[..., Any]:
    return lambda *arguments, **options: by * original(*arguments, **options)


def test_a_doubled_factor_is_no_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tasks.RandomCosine, "factor", scaled(tasks.RandomCosine.factor, 2.0)
    )
    assert check("Lemma 1, identity", cosine_run()).holds is False
    assert lemmas.direct_sums(True).violated


def test_a_loss_off_by_one_per_cent_is_no_identity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        PopulationRisk, "loss_per_query", scaled(PopulationRisk.loss_per_query, 1.01)
    )
    assert lemmas.direct_sums(True).violated
    assert lemmas.lemma_1_envelope(True).violated


def test_a_growth_of_the_wrong_sign_or_size_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = cosine_run()
    for by in (-1.0, 1.01):
        monkeypatch.setattr(PopulationRisk, "growth", scaled(PopulationRisk.growth, by))
        assert check("Lemma 2, sign", run).holds is False
        assert lemmas.lemma_2_signs(True).violated
        monkeypatch.undo()
    assert check("Lemma 2, sign", run).holds is True


def test_attention_off_by_one_per_cent_breaks_proposition_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, whole = cosine_run(), PopulationRisk.attention

    def faulty(self: PopulationRisk, scores: Array) -> Array:
        attention = whole(self, scores)
        return 1.01 * attention - 0.01 * np.eye(len(attention)) * attention.sum(axis=0)

    monkeypatch.setattr(PopulationRisk, "attention", faulty)
    assert check("Prop. 1, prediction", run).holds is False
    assert lemmas.proposition_1(True).violated


def test_prediction_is_summed_over_prompts() -> None:
    run = icl.simulate(
        2.0, 1.0, 4.0, K=3, N=4, probs=[0.5, 0.3, 0.2], epsilon=1e-9, max_steps=20
    )
    assert check("Prop. 1, prediction", run).slack == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("by", [0.99, 1.01])
def test_a_wrong_non_degeneracy_constant_is_seen(
    monkeypatch: pytest.MonkeyPatch, by: float
) -> None:
    monkeypatch.setattr(
        tasks.Task, "nondegeneracy", scaled(tasks.Task.nondegeneracy, by)
    )
    assert lemmas.lemma_1_envelope(True).violated


@pytest.mark.parametrize("by", [0.85, 1.2])
def test_a_wrong_start_of_the_tail_is_seen(
    monkeypatch: pytest.MonkeyPatch, by: float
) -> None:
    """The phases of runs and L* share it: only the tail ratio itself can tell."""
    original = icl.regression.tail_start
    for module in ("phases", "family"):
        monkeypatch.setattr(
            import_module(f"icl_theory.regression.{module}"),
            "tail_start",
            scaled(original, by),
        )
    assert dynamics.regimes(True).violated


def test_a_phase_off_by_one_step_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ExchangeableSteps.first_with_deficits
    monkeypatch.setattr(
        ExchangeableSteps,
        "first_with_deficits",
        lambda self, *s: [n + 1 for n in original(self, *s)],
    )
    assert dynamics.closed_counts(True).violated


def test_a_counterexample_that_does_not_reproduce_is_a_violation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert lemmas.lemma_1_degenerate(True).status != "exact"
    monkeypatch.setattr(
        tasks.Halfspace,
        "nondegeneracy",
        lambda self, features: np.full(features.K, 0.1),
    )
    claim = lemmas.lemma_1_degenerate(True)
    assert (claim.status, claim.violated) == ("exact", True)


@pytest.mark.parametrize(
    "row", [lemmas.after_phase_one_explicit, lemmas.theorem_1_explicit]
)
@pytest.mark.parametrize("by", [0.98, 1.02])
def test_a_wrong_constant_of_theorem_2_is_seen(
    monkeypatch: pytest.MonkeyPatch, row: Callable[[bool], Claim], by: float
) -> None:
    monkeypatch.setattr(
        icl.regression, "after_phase_one", scaled(certified.after_phase_one, by)
    )
    assert row(True).violated


@pytest.mark.parametrize("by", [0.9, 1.1])
def test_a_wrong_bound_on_phase_one_is_seen(
    monkeypatch: pytest.MonkeyPatch, by: float
) -> None:
    def faulty(K: Array, c: Array) -> tuple[Array, Array]:
        low, high = certified.phase_one_bounds(K, c)
        return by * low, by * high

    monkeypatch.setattr(icl.regression, "phase_one_bounds", faulty)
    assert lemmas.phase_one_explicit(True).violated


def test_cross_terms_are_smaller_than_the_growth_for_more_than_exchangeable_tasks() -> (
    None
):
    claim = lemmas.lemma_2_signs(True)
    assert (
        "holds for exchangeable tasks and the kernel diag(1, 1.3, 0.8), not for random kernels"
        in str(claim.verdict)
    )
    task = tasks.KernelTask(np.diag([1.0, 1.3, 0.8]))
    run = icl.descend(
        icl.PopulationRisk(icl.Features.simplex(3, 1.0), task), 1.0, steps=2000
    )
    assert isinstance(run.risk, PopulationRisk)
    assert max(lemmas.cross_ratios(run.risk, state).max() for state in run.states) < 1.0


def test_the_separation_says_which_limits_are_reached() -> None:
    words = icl.answer("separation", quick=True).answer
    assert (
        "T ~ L^-2 is reached to 5 % for K = 1000, T independent of L for K = 20 and K = 1000"
        in words
    )
    assert "For K = 20 the exponent comes down to -1.49, 74% of the way to -2" in words
    assert "it does not reach -1.8" in words


def test_a_transition_is_described_from_its_numbers() -> None:
    lipschitz = np.geomspace(1.0, 100.0, 201)
    flat = questions._transition(5, lipschitz, np.linspace(-1.2, 0.0, 201), 10.0)
    assert "comes down to -1.20, 60% of the way to -2" in flat
    assert "it does not reach -1.8" in flat
    steep = questions._transition(5, lipschitz, np.linspace(-2.0, 0.0, 201), 10.0)
    assert "from -1.8 to -0.2 it takes 1.6 decades" in steep
    assert "It is -1 at 1.00 L*" in steep


@pytest.mark.parametrize(
    ("with_it", "without", "needed"),
    [
        ([1.0, 0.5, 0.2], [1.0, 1.0, 1.0], False),
        ([1.0, 1.0, 1.0], [1.0, 2.0, 5.0], True),
    ],
)
def test_whether_a_logarithm_is_needed_is_computed(
    with_it: list[float], without: list[float], needed: bool
) -> None:
    words = questions._moves(
        "T", ("ln K", "1"), "K = 1 and 3", np.array(with_it), np.array(without)
    )
    assert words.startswith(
        f"T over ln K goes from 1 to {with_it[-1]:.2g} between K = 1 and 3, T over 1 from 1 to"
    )
    assert words.endswith(
        "the logarithm is needed." if needed else "the logarithm is not needed."
    )


def test_a_degenerate_task_that_learns_is_no_yes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        tasks.Halfspace,
        "nondegeneracy",
        lambda self, features: np.full(features.K, 0.1),
    )
    assert icl.answer("degenerate", quick=True).answer.startswith("No:")


def test_exact_runs_are_judged_with_the_same_verdicts() -> None:
    closed, exact = (
        icl.simulate(2.0, 1.0, 4.0, imbalance=0.1, epsilon=1e-3, method=method)
        for method in ("closed", "exact")
    )
    for one, other in zip(
        icl.check_bounds(closed), icl.check_bounds(exact), strict=True
    ):
        assert one.holds == other.holds
        assert math.isclose(
            one.measured or 0.0, other.measured or 0.0, rel_tol=1e-6, abs_tol=1e-12
        )


@pytest.mark.parametrize(
    "error", [0.0, 1e-17, 3e-16, 1e-15, 1.01e-15, 9.9e-12, 1e-3, 0.5, 1.0, 7.0]
)
def test_errors_are_rounded_up_to_a_power_of_ten(error: float) -> None:
    said = float(decade(error))
    assert said >= error
    assert said <= 10.0 * max(error, 1e-17) * (1.0 + 1e-12) or said == 1e-16


@pytest.mark.parametrize("kind", ["piecewise quadratics", "networks"])
def test_drawn_functions_have_their_lipschitz_constant(kind: str) -> None:
    points = np.random.default_rng(1).normal(size=(60, 3))
    values = experiments.drawn_functions(kind, points, 2.5, count=50)
    i, j = np.triu_indices(60, 1)
    slopes = np.abs(values[:, i] - values[:, j]) / np.linalg.norm(
        points[i] - points[j], axis=1
    )
    assert 0.4 * 2.5 < slopes.max() <= 2.5 * (1.0 + 1e-12)
    assert np.ptp(values, axis=1).min() > 0.0
    np.testing.assert_allclose(
        experiments.drawn_functions(kind, points, 5.0, count=50),
        2.0 * values,
        rtol=1e-12,
    )


def test_cross_terms_are_those_of_each_query_over_its_own_growth() -> None:
    risk, scores = random_risk(3, 4), random_scores(3, 4, 1.0)
    growth = risk.growth(scores)
    expected = [
        max(abs(growth[m, k]) for m in range(4) if m != k) / growth[k, k]
        for k in range(4)
    ]
    np.testing.assert_allclose(cross_ratios(risk, scores), expected, rtol=1e-14)


def test_attention_that_is_off_or_never_turns_is_noticed_by_the_row_on_oscillation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = PopulationRisk.attention
    with monkeypatch.context() as changed:
        changed.setattr(
            PopulationRisk, "attention", lambda self, scores: 0.99 * right(self, scores)
        )
        assert experiments.oscillation(True).violated
    counted = experiments.turns
    with monkeypatch.context() as changed:
        changed.setattr(experiments, "turns", lambda path: 0 * counted(path))
        assert experiments.oscillation(True).violated
    with monkeypatch.context() as changed:
        changed.setattr(
            experiments, "turns", lambda path: counted(path) + 1
        )  # exchangeable tasks never turn
        assert experiments.oscillation(True).violated


def test_exact_descent_turns_more_often_at_a_large_rate() -> None:
    """Linear tasks in three dimensions, long prompts, by a loop of its own."""
    vectors, L = icl.Features.random(6, 3, 0.7, seed=1).vectors, 2.0
    found = {}
    for eta in (2.0, 100.0):
        scores, path = np.zeros((6, 6)), []
        for _ in range(101):
            attention = np.exp(scores - scores.max(axis=0))
            attention /= attention.sum(axis=0)
            path.append(attention)
            predicted = attention.T @ vectors
            pull = np.einsum(
                "kd,mkd->mk", predicted - vectors, vectors[:, None] - predicted
            )
            scores = scores - eta * attention * pull * L**2 / 3 / 6
        found[eta] = int(
            np.max(experiments.turns(np.array(path))[~np.eye(6, dtype=bool)])
        )
    assert found[2.0] <= 3 < 10 < found[100.0]
    said = experiments.oscillation(True).measured
    assert f"at most {found[100.0]} times, median 0 (linear, η = 100)" in said
    assert f"at most {found[2.0]} times, median 0 (linear, η = 2)" in said


def test_targets_tied_to_the_imbalance_are_those_at_which_the_two_thresholds_meet() -> (
    None
):
    runs = dynamics.law_runs()
    tied = dynamics._tied(runs, 1.0)
    for i in range(0, 400, 37):
        leading = icl.regression.crossover(
            float(tied.epsilon[i]), 1.0, int(runs.K[i]), leading_order=True
        )
        assert leading * float(runs.imbalance[i]) == pytest.approx(1.0, rel=1e-12)
    ratios = dynamics._tied(runs, 10.0).epsilon / tied.epsilon
    assert 0.1 <= ratios.min() < 0.15
    assert 7.0 < ratios.max() <= 10.0


def test_adam_takes_the_steps_of_its_definition() -> None:
    """The moments as sums over all gradients so far, in a block whose attention is its parameters."""
    gradients = np.random.default_rng(0).normal(size=(30, 4))

    class Block:
        initial = np.zeros(4)

        def evaluate(self, params: Array, step: int) -> tuple[float, Array]:
            return 0.0, gradients[step] + params

        def observe(self, params: Array) -> dict[str, Array]:
            return {"attention": params}

    params, seen = np.zeros(4), []
    for n in range(1, 31):
        seen.append(gradients[n - 1] + params)
        age = np.arange(n)[::-1, None]
        first = 0.1 * np.sum(0.9**age * np.array(seen), axis=0) / (1 - 0.9**n)
        second = (
            0.001 * np.sum(0.999**age * np.array(seen) ** 2, axis=0) / (1 - 0.999**n)
        )
        params = params - 0.003 * first / (np.sqrt(second) + 1e-8)
    found = experiments.attention_by_adam(Block(), 30)  # type: ignore[arg-type]
    assert found == pytest.approx(float(np.mean(params)), rel=1e-12)
