"""Every number that linear attention states of a law or a run, computed a second time.

The references know the loss as a quadratic form, ½ tr Λq(ΓMΓᵀ - 2ΓΛW + W), M from its
definition, and nothing else.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory import linear_attention
from icl_theory.papers.linear_attention import task_diversity
from tests.linear_attention.references import Law, random_law
from tests.references import slopes

LinearAttention = icl.LinearAttention


def made(law: Law) -> linear_attention.PromptLaw:
    return linear_attention.PromptLaw(
        law.covariance, law.prior, law.query, N=law.N, noise=law.noise
    )


def second(law: Law) -> Any:
    """E hhᵀ = (1 + 1/N) ΛWΛ + (tr ΛW + σ²)Λ/N."""
    A, W = law.covariance, law.prior
    return (1 + 1 / law.N) * A @ W @ A + (np.trace(A @ W) + law.noise**2) / law.N * A


def loss(law: Law, gamma: Any) -> float:
    A, W, q = law.covariance, law.prior, law.query
    return 0.5 * float(
        np.trace(q @ (gamma @ second(law) @ gamma.T - 2 * gamma @ A @ W + W))
    )


def best(law: Law) -> Any:
    return law.prior @ law.covariance @ np.linalg.inv(second(law))


def law_of(problem: icl.LinearAttention, new: bool = False) -> Law:
    """The law of a problem, from its parameters."""
    d = problem.d

    def matrix(value: Any, other: Any) -> Any:
        found = other if value is None else np.array(value)
        return np.diag(found) if found.ndim == 1 else found

    spectrum = matrix(problem.covariance, np.arange(1.0, d + 1) ** -problem.decay)
    prior, query = matrix(problem.prior, np.eye(d)), matrix(problem.query, spectrum)
    if problem.tasks is not None and not new:
        tasks = np.array(problem.tasks)
        prior = tasks.T @ tasks / len(tasks)
    return Law(spectrum, prior, query, int(problem.N), problem.noise)


TOKENS = random_law(3, 5, 0.3, seed=4)
TASKS = ((1.0, 0.2, -0.3), (-0.5, 1.0, 0.1), (0.3, 0.3, 2.0), (0.1, -1.0, 0.4))
PROBLEMS: dict[str, dict[str, Any]] = {
    "diagonal": {"d": 4, "decay": 1.0, "N": 9, "noise": 0.4},
    "query": {
        "d": 3,
        "decay": 0.5,
        "N": 9,
        "query": (1.0, 0.1, 3.0),
        "prior": (0.2, 1.0, 2.0),
    },
    "dense": {
        "covariance": TOKENS.covariance,
        "prior": TOKENS.prior,
        "query": TOKENS.query,
        "N": 5,
        "noise": 0.3,
    },
    "tasks": {"d": 3, "N": 7, "noise": 0.5, "tasks": TASKS},
    "query, tasks": {
        "d": 3,
        "decay": 0.5,
        "N": 7,
        "noise": 0.5,
        "tasks": TASKS,
        "query": (1.0, 0.1, 3.0),
    },
    "dense, tasks": {
        "covariance": TOKENS.covariance,
        "N": 7,
        "noise": 0.5,
        "tasks": TASKS,
    },
    "pair": {"d": 3, "decay": 1.0, "N": 9, "coordinates": "pair", "start": 0.3},
    "pair, dense": {
        "covariance": TOKENS.covariance,
        "N": 9,
        "coordinates": "pair",
        "start": 0.3,
    },
    "heads": {
        "d": 3,
        "decay": 0.5,
        "N": 9,
        "coordinates": "heads",
        "heads": 3,
        "start": 0.4,
        "seed": 1,
    },
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_columns_of_a_run_are_those_of_its_last_matrix(name: str) -> None:
    """Also where it ended before everything was learnt."""
    learnt = []
    for above in (1e-3, 0.05, 0.3):
        problem = LinearAttention(**PROBLEMS[name], above=above)
        run = problem.simulate()
        gamma = problem.gamma(run.params)
        gamma = np.diag(gamma) if gamma.ndim == 1 else gamma
        law = law_of(problem)
        least = best(law)
        found = problem.measure(run)
        assert found["excess"] == pytest.approx(
            loss(law, gamma) - loss(law, least), rel=1e-6, abs=1e-12
        )
        assert run.loss[-1] == pytest.approx(loss(law, gamma), rel=1e-9)
        axes = np.linalg.eigh(law.covariance)[1]
        along, wanted = (np.diag(axes.T @ each @ axes) for each in (gamma, least))
        learnt.append(int(np.sum((along >= 0.5 * wanted) & (wanted > 0))))
        assert found["learnt"] == learnt[-1]
        assert (
            run.notes["learnt"]
            == f"{learnt[-1]} of {law.covariance.shape[0]} directions"
        )
        np.testing.assert_allclose(
            np.sort(run.observed["gamma"][-1]), np.sort(along), rtol=1e-9, atol=1e-12
        )
        over = run.observed["excess"] <= 0.9 * run.observed["excess"][0]
        if "plateau" in run.phases.present():
            end = run.phases.plateau[1]
            assert (
                run.at(end).observed["excess"] <= 0.9 * run.observed["excess"][0]
                or not over.any()
            )
            assert (
                end == 0
                or run.at(end - 1).observed["excess"] > 0.9 * run.observed["excess"][0]
            )
        if "tasks" in name:
            assert found["new_loss"] == pytest.approx(
                loss(law_of(problem, new=True), gamma), rel=1e-9
            )
            least_new = loss(law_of(problem, new=True), best(law_of(problem, new=True)))
            assert (
                run.notes["new tasks"]
                == f"{found['new_loss']:.6g} (best {least_new:.3g})"
            )
        else:
            assert "new_loss" not in found
    assert len(set(learnt)) > 1 or name in (
        "tasks",
        "query, tasks",
        "dense, tasks",
        "query",
        "dense",
        "pair, dense",
        "heads",
    )


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_automatic_rate_is_one_over_the_largest_curvature_of_the_minimum(
    name: str,
) -> None:
    """Of (v, A): at the balanced minimum, for which twice the norm is a bound; of heads a bound too."""
    problem = LinearAttention(**PROBLEMS[name])
    law = law_of(problem)
    hessian = np.kron(law.query, second(law))
    largest = float(np.linalg.eigvalsh(hessian)[-1])
    if problem.coordinates == "merged":
        assert problem.rate() == pytest.approx(1.0 / largest, rel=1e-9)
        return
    values = np.linalg.svd(best(law), compute_uv=False)
    if problem.coordinates == "pair":
        stretch = 2.0 * math.sqrt(float(np.sum(values**2)))
    else:
        stretch = 3.0 * float(values[0]) ** (4 / 3)
    assert problem.rate() == pytest.approx(1.0 / (stretch * largest), rel=1e-9)
    two = problem.changed(rank=2) if problem.coordinates == "heads" else problem
    if problem.coordinates == "heads":
        assert two.rate() == pytest.approx(
            1.0 / (3.0 * float(values[:2].sum()) ** (4 / 3) * largest), rel=1e-9
        )


def test_starts_are_those_that_are_said() -> None:
    base: dict[str, Any] = {"d": 3, "decay": 1.0, "start": 0.2}
    np.testing.assert_array_equal(
        LinearAttention(**base).risk().initial, 0.2 * np.ones(3)
    )
    dense = LinearAttention(covariance=TOKENS.covariance, start=0.2)
    np.testing.assert_array_equal(dense.risk().initial, 0.2 * np.eye(3))
    pair = LinearAttention(**base, coordinates="pair").risk().initial
    np.testing.assert_allclose(
        pair, 0.2 * np.array([1.0, *[1 / math.sqrt(3)] * 3]), rtol=1e-15
    )
    heads = (
        LinearAttention(**base, coordinates="heads", heads=400, rank=2).risk().initial
    )
    assert heads.shape == (400, 13)
    assert np.std(heads) == pytest.approx(0.2, rel=0.05)
    assert LinearAttention().risk().initial[0] == 0.01
    declared = LinearAttention.parameters()
    usual = {
        "d": 8,
        "decay": 0.0,
        "N": 20,
        "noise": 0.0,
        "heads": 1,
        "rank": 1,
        "depth": 1,
        "seed": 0,
        "start": 0.01,
    }
    assert {name: declared[name].default for name in usual} == usual


def test_drawn_tasks_have_the_second_moment_of_the_prior() -> None:
    problem = LinearAttention(
        covariance=TOKENS.covariance, prior=TOKENS.prior, tasks=40_000, N=5, seed=3
    )
    np.testing.assert_allclose(
        problem.law().moments[1], TOKENS.prior, atol=0.03 * np.abs(TOKENS.prior).max()
    )
    np.testing.assert_allclose(problem.new_tasks().moments[1], TOKENS.prior, rtol=1e-14)
    few = [
        LinearAttention(d=3, tasks=2, seed=seed).law().moments[1] for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(few[0], few[1])
    assert np.abs(few[0] - few[2]).max() > 0.1
    assert np.linalg.matrix_rank(few[0]) == 2


@pytest.mark.parametrize("d", [1, 3])
def test_diversity_is_the_loss_of_the_best_matrix_for_the_drawn_tasks(d: int) -> None:
    problem = LinearAttention(d=d, N=6, noise=0.4)
    found = linear_attention.task_diversity(problem, [2, 5], draws=3, seed=4)
    for i, k in enumerate((2, 5)):
        for j in range(3):
            R = problem.changed(tasks=k, seed=4 + j).law().moments[1]
            R = np.diag(R) if R.ndim == 1 else R
            law, new = (
                Law(np.eye(d), R, np.eye(d), 6, 0.4),
                Law(np.eye(d), np.eye(d), np.eye(d), 6, 0.4),
            )
            gamma = R @ np.linalg.pinv(second(law))
            assert found.pretraining[i, j] == pytest.approx(loss(law, gamma), rel=1e-8)
            assert found.new[i, j] == pytest.approx(loss(new, gamma), rel=1e-8)
    np.testing.assert_allclose(found.mean().new, found.new.mean(axis=1), rtol=1e-14)
    np.testing.assert_allclose(
        found.mean().pretraining, found.pretraining.mean(axis=1), rtol=1e-14
    )
    low, high = found.band()
    np.testing.assert_allclose(low.new, np.quantile(found.new, 0.1, axis=1), rtol=1e-12)
    np.testing.assert_allclose(
        high.pretraining, np.quantile(found.pretraining, 0.9, axis=1), rtol=1e-12
    )


@pytest.mark.parametrize("sigma", [0.7, 3.0])
def test_references_of_a_law_in_general_position_are_posterior_means(
    sigma: float,
) -> None:
    """Ridge and the posterior of some tasks, on prompts that are drawn here."""
    law, rng, size = random_law(2, 4, sigma, seed=1), np.random.default_rng(0), 1500
    tasks = np.array([[1.0, 0.4], [-0.6, 1.1], [0.2, -1.5]])
    A, W, Q = (np.linalg.cholesky(each) for each in law[:3])
    errors: dict[str, list[float]] = {"ridge": [], "old": [], "new": []}
    for _ in range(size):
        X, x = rng.normal(size=(4, 2)) @ A.T, Q @ rng.normal(size=2)
        normal, one = W @ rng.normal(size=2), tasks[rng.integers(3)]
        noise = sigma * rng.normal(size=4)
        ridge = np.linalg.solve(
            X.T @ X + sigma**2 * np.linalg.inv(law.prior), X.T @ (X @ normal + noise)
        )
        errors["ridge"].append(0.5 * float(x @ (ridge - normal)) ** 2)
        for kind, truth in (("old", one), ("new", normal)):
            off = X @ (truth - tasks).T + noise[:, None]
            weight = np.exp(-np.sum(off**2, axis=0) / (2 * sigma**2))
            mean = weight @ tasks / weight.sum()
            errors[kind].append(0.5 * float(x @ (mean - truth)) ** 2)
    package = made(law)
    found = {
        "ridge": linear_attention.ridge_loss(package, size, seed=1),
        "old": linear_attention.posterior_loss(package, tasks, size, seed=1),
        "new": linear_attention.posterior_loss(package, tasks, size, seed=1, new=True),
    }
    for kind, values in errors.items():
        spread = float(np.std(values)) / math.sqrt(size)
        assert abs(found[kind].value - np.mean(values)) < 4.0 * math.hypot(
            spread, found[kind].error
        ), kind
        assert found[kind].error < 1.3 * spread, (
            kind
        )  # the query is no part of their noise


def test_numbers_of_tasks_stay_in_the_order_in_which_they_are_asked_for() -> None:
    problem = LinearAttention(d=3, N=6, noise=0.4)
    up, down = (
        linear_attention.task_diversity(problem, counts, draws=2)
        for counts in ([2, 5, 9], [9, 2, 5])
    )
    assert (up.tasks.tolist(), down.tasks.tolist()) == ([2, 5, 9], [9, 2, 5])
    for name in ("pretraining", "new"):
        np.testing.assert_array_equal(getattr(down, name), getattr(up, name)[[2, 0, 1]])


def test_a_posterior_that_is_sure_answers_by_the_nearest_task() -> None:
    """With little noise all likelihoods but differences are beyond float64."""
    law = linear_attention.PromptLaw(np.ones(2), np.array([2.0, 0.5]), N=6, noise=1e-4)
    alone = linear_attention.posterior_loss(law, [[3.0, -1.0]], 2000, new=True)
    assert abs(alone.value - 0.5 * (2.0 + 0.5 + 9.0 + 1.0)) < 4.0 * alone.error
    tasks = [[3.0, -1.0], [-2.0, 0.5], [0.1, 0.1]]
    assert linear_attention.posterior_loss(law, tasks, 300).value < 1e-20
    assert (
        0.0
        < linear_attention.posterior_loss(law, tasks, 300, new=True).value
        < alone.value
    )


def test_standard_errors_are_the_spread_of_estimates() -> None:
    law = made(random_law(2, 4, 0.7, seed=1))
    tasks = [[1.0, 0.4], [-0.6, 1.1]]
    for estimates in (
        [linear_attention.ridge_loss(law, 30, seed=seed) for seed in range(40)],
        [
            linear_attention.posterior_loss(law, tasks, 30, seed=seed)
            for seed in range(40)
        ],
    ):
        spread = float(np.std([each.value for each in estimates], ddof=1))
        assert math.sqrt(
            np.mean([each.error**2 for each in estimates])
        ) == pytest.approx(spread, rel=0.4)


@pytest.mark.parametrize(
    ("d", "N", "depth", "noise"),
    [(3, 4, 1, 0.6), (3, 4, 3, 0.6), (4, 9, 5, 0.0), (2, 3, 2, 1.5)],
)
def test_a_loop_has_the_derivatives_the_best_length_and_the_rate_of_its_loss(
    d: int, N: int, depth: int, noise: float
) -> None:
    risk = linear_attention.LoopedRisk(d, N, depth, noise, start=0.05)
    for gamma in (0.0, 0.4, 1.3):
        at = np.array([gamma])
        assert risk.gradient(at) == pytest.approx(
            slopes(risk.loss, at), rel=1e-7, abs=1e-9
        )
        bend = float(slopes(lambda x: float(risk.gradient(x)[0]), at)[0])
        assert risk.sharpness([gamma]) == pytest.approx(bend, rel=1e-7)
        assert risk.hessian_product(at, np.array([-2.0]))[0] == pytest.approx(
            -2.0 * bend, rel=1e-7
        )
    grid = np.linspace(0.0, 6.0, 3001)
    losses = [risk.loss([x]) for x in grid]
    assert float(risk.best[0]) == pytest.approx(grid[int(np.argmin(losses))], abs=3e-3)
    assert risk.floor() <= min(losses) + 1e-15
    assert risk.floor() == pytest.approx(min(losses), rel=1e-5)
    worst = max(
        risk.sharpness([x]) for x in np.linspace(0.05, float(risk.best[0]), 301)
    )
    assert risk.stable_rate() == pytest.approx(1.0 / worst, rel=1e-3)
    seen = risk.observe(np.array([0.7]))
    assert (float(seen["excess"]), seen["gamma"].tolist()) == (
        pytest.approx(risk.loss([0.7]) - risk.floor()),
        [0.7],
    )
    if depth == 1:  # the family trains a matrix then
        return
    problem = LinearAttention(d=d, N=N, depth=depth, noise=noise, above=1e-2)
    run = problem.simulate()
    assert problem.rate() == pytest.approx(
        linear_attention.LoopedRisk(d, N, depth, noise, 0.01).stable_rate()
    )
    assert problem.measure(run) == {
        "excess": float(run.observed["excess"][-1]),
        "learnt": d,
    }


@pytest.mark.parametrize("depth", [1, 3])
def test_a_sampled_loop_has_the_derivative_of_its_prompts(depth: int) -> None:
    law = made(random_law(2, 4, 0.7, seed=1))
    trainer = linear_attention.SampledLoop(law, np.array([0.3]), 7, seed=2, depth=depth)

    def losses(at: Any) -> float:
        return float(trainer.evaluate(at, 5)[0])

    prompts = trainer.prompts(5)
    total = 0.0
    for X, y, x, answer in zip(*prompts, strict=True):
        w = np.zeros(2)
        for _ in range(depth):
            w = w + 0.8 / depth * X.T @ (y - X @ w) / 4
        total += 0.5 * float(x @ w - answer) ** 2 / 7
    assert losses(np.array([0.8])) == pytest.approx(total, rel=1e-12)
    assert trainer.evaluate(np.array([0.8]), 5)[1] == pytest.approx(
        slopes(losses, np.array([0.8])), rel=1e-7
    )


def test_stretch_is_the_largest_change_of_the_matrix() -> None:
    """A bound that is attained: a rate derived from a larger one would be too small."""
    rng = np.random.default_rng(3)
    for coordinates, options in (("pair", {}), ("heads", {"heads": 1})):
        problem = LinearAttention(
            covariance=TOKENS.covariance,
            coordinates=coordinates,
            start=0.3,
            seed=2,
            **options,
        )
        risk: Any = problem.risk()
        params = rng.normal(size=risk.initial.shape)
        size = params.size
        jacobian = np.array(
            [
                risk.map.push(params, np.eye(size)[i].reshape(params.shape)).ravel()
                for i in range(size)
            ]
        )
        assert risk.map.stretch(params) == pytest.approx(
            np.linalg.norm(jacobian, 2), rel=1e-9
        )


def test_a_rate_of_exactly_two_over_the_curvature_leaves_the_steepest_mode_where_it_is() -> (
    None
):
    law = linear_attention.PromptLaw([1.0, 0.25])
    risk = linear_attention.MergedRisk(law, [0.0, 0.0])
    largest = float(risk.curvature.max())
    run = icl.descend(risk, 2.0 / largest, steps=7, method="closed")
    assert run.params[0] == pytest.approx(2.0, rel=1e-12)  # from 0 to 2 and back
    assert run.method == "closed"


@pytest.mark.parametrize("decay", [0.0, 1.0])
@pytest.mark.parametrize("coordinates", ["pair", "heads"])
def test_expected_steps_are_those_of_the_first_plateau(
    coordinates: str, decay: float
) -> None:
    """Up to a factor, and with the same dependence on the start."""
    ratios = []
    for start in (3e-2, 3e-3):
        options = {"heads": 4} if coordinates == "heads" else {}
        problem = LinearAttention(
            d=4, decay=decay, coordinates=coordinates, start=start, seed=1, **options
        )
        at_start = problem.risk().observe(problem.risk().initial)["excess"]
        run = problem.changed(above=0.8 * float(at_start)).simulate()
        expected = problem.expected_steps()
        assert expected is not None
        ratios.append(run.phases.plateau[1] / expected)
    assert 0.45 < min(ratios) <= max(ratios) < 1.25
    assert LinearAttention(d=4).expected_steps() is None


def test_sweeps_in_closed_form_have_the_numbers_of_the_iteration() -> None:
    """All steps of Γ_jj <- Γ_jj - η λ_j (m_j Γ_jj - λ_j), one by one."""
    d, N, noise, eta = 3, 7, 0.5, 0.3
    found = icl.sweep(
        LinearAttention,
        d=d,
        decay=[0.0, 1.0],
        N=N,
        noise=noise,
        eta=eta,
        above=0.02,
        progress=False,
    )
    for i, decay in enumerate((0.0, 1.0)):
        spectrum = np.arange(1.0, d + 1) ** -decay
        law = Law(np.diag(spectrum), np.eye(d), np.diag(spectrum), N, noise)
        m, least = np.diag(second(law)), np.diag(best(law))
        gamma, excess = np.full(d, 0.01), []
        while True:
            excess.append(0.5 * float(np.sum(spectrum * m * (gamma - least) ** 2)))
            if excess[-1] <= 0.02:
                break
            gamma = gamma - eta * spectrum * (m * gamma - spectrum)
        row = {name: found[name].values.ravel()[i] for name in found.data_vars}
        plateau = next(n for n, value in enumerate(excess) if value <= 0.9 * excess[0])
        last = len(excess) - 1
        assert (row["steps"], row["last"], row["T_plateau"], row["T_learning"]) == (
            last,
            last,
            plateau,
            last - plateau,
        )
        assert row["excess"] == pytest.approx(excess[-1], rel=1e-9)
        assert row["learnt"] == int(np.sum(gamma >= 0.5 * least))
        assert row["floor"] == pytest.approx(loss(law, np.diag(least)), rel=1e-12)
        assert row["loss"] == pytest.approx(row["floor"] + excess[-1], rel=1e-12)
        assert row["eta_used"] == eta


@pytest.mark.parametrize("trained", ["minimiser", "descent"])
def test_a_table_of_shifts_is_made_of_losses(trained: str) -> None:
    problems = {
        "a": LinearAttention(d=3, N=5, noise=0.3, above=1e-2),
        "b": LinearAttention(d=3, decay=1.0, N=50, above=1e-2),
        "c": LinearAttention(covariance=TOKENS.covariance, N=9, above=1e-2),
    }
    table = linear_attention.shift_table(
        problems, **({} if trained == "minimiser" else {"trained": trained})
    )
    for i, one in enumerate(problems.values()):
        gamma = (
            best(law_of(one))
            if trained == "minimiser"
            else one.gamma(one.simulate().params)
        )
        gamma = np.diag(gamma) if gamma.ndim == 1 else gamma
        for j, two in enumerate(problems.values()):
            law = law_of(two)
            assert table.loss[i, j] == pytest.approx(loss(law, gamma), rel=1e-9)
            assert table.floor[j] == pytest.approx(loss(law, best(law)), rel=1e-9)
            assert table.excess[i, j] == pytest.approx(
                loss(law, gamma) - table.floor[j], rel=1e-7, abs=1e-12
            )
    text = table.columns()
    assert text["trained on"] == ["a", "b", "c", "floor"]
    assert [float(row) for row in text["b"][:3]] == pytest.approx(
        table.excess[:, 1].tolist(), rel=2e-2, abs=1e-12
    )
    assert float(text["c"][3]) == pytest.approx(table.floor[2], rel=2e-2)


def test_a_band_encloses_its_share_of_the_draws() -> None:
    """Of 40 draws, at the ends and in the middle; a share of 1 is all of them, and 0 the median."""
    found = task_diversity(icl.LinearAttention(eta=0.1, d=3, N=10), [2, 5], draws=40)
    for share in (0.0, 0.5, 0.8, 1.0):
        low, high = found.band(share)
        for part, ends in (("pretraining", (low, high)), ("new", (low, high))):
            draws, (first, last) = (
                getattr(found, part),
                (getattr(end, part) for end in ends),
            )
            inside = ((draws >= first[:, None]) & (draws <= last[:, None])).mean(axis=1)
            assert (np.abs(inside - share) <= 0.05).all()
            below, above = (
                (draws < first[:, None]).mean(axis=1),
                (draws > last[:, None]).mean(axis=1),
            )
            assert (np.abs(below - above) <= 0.05).all()
