"""A value and a matrix, and heads: gradients, conserved quantities, closed forms, plateaus and staircases."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

import icl_theory as icl
from icl_theory.engine import Pullback
from icl_theory.papers.linear_attention import (
    Heads,
    MergedRisk,
    Pair,
    PromptLaw,
    balanced_flow,
)
from icl_theory.testing import check_risk
from tests.linear_attention.references import layer, merged, random_law
from tests.test_cli import run_main


def some_law(d: int = 3) -> PromptLaw:
    return PromptLaw(*random_law(d, 6, 0.4, seed=d)[:3], N=6, noise=0.4)


def test_heads_sum_what_each_attends_to() -> None:
    """Σ_h v_h Σ_i (K_h x_i · Q_h x) y_i / N, summed over heads and tokens of every prompt of a grid."""
    found = random_law(2, 2, 0.5)
    law = PromptLaw(*found[:3], N=2, noise=0.5)
    start = np.random.default_rng(0).normal(size=(3, 1 + 2 * 2 * 2))
    risk = Pullback(MergedRisk(law, np.zeros((2, 2))), Heads(start, 2))
    gamma = sum(
        head[0] * np.outer(head[1 + 4 + 2 * r : 7 + 2 * r], head[1 + 2 * r : 3 + 2 * r])
        for head in start
        for r in range(2)
    )
    np.testing.assert_allclose(risk.map.inward(start), gamma, rtol=1e-13)
    assert risk.loss(start) == pytest.approx(merged(found, gamma)[0], rel=1e-12)
    P, K = np.zeros((3, 3)), np.zeros((3, 3))
    P[2, 2], K[:2, :2] = 1.0, gamma.T
    assert risk.loss(start) == pytest.approx(layer(found, P, K)[0], rel=1e-12)


@pytest.mark.parametrize("kind", ["pair", "heads"])
def test_gradients_and_hessians_are_those_of_the_loss(kind: str) -> None:
    merged_risk = MergedRisk(some_law(), np.zeros((3, 3)))
    rng = np.random.default_rng(1)
    factors = (
        Pair(rng.normal(size=10), (3, 3))
        if kind == "pair"
        else Heads(rng.normal(size=(4, 13)), 3)
    )
    check_risk(Pullback(merged_risk, factors))


@pytest.mark.parametrize("value", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("kind", ["pair", "heads"])
def test_no_change_moves_the_matrix_farther_than_the_stretch(
    kind: str, value: float
) -> None:
    start = np.random.default_rng(3).normal(
        size=(1 if kind == "pair" else 4, 10 if kind == "pair" else 13)
    )
    start[:, 0] *= value
    factors = Pair(start[0], (3, 3)) if kind == "pair" else Heads(start, 3)
    at = factors.initial
    units = np.eye(at.size).reshape(-1, *at.shape)
    jacobian = np.array([factors.push(at, unit).ravel() for unit in units])
    assert np.linalg.norm(jacobian, 2) <= factors.stretch(at)


def test_flow_of_the_pair_conserves_the_difference_of_squares() -> None:
    start = np.random.default_rng(2).normal(0.0, 0.3, 10)
    risk = Pullback(MergedRisk(some_law(), np.zeros((3, 3))), Pair(start, (3, 3)))
    run = icl.descend(risk, 0.05, steps=2000, method="flow")
    assert run.observed["excess"][-1] < 0.2 * run.observed["excess"][0]
    kept = run.states[:, 0] ** 2 - np.sum(run.states[:, 1:] ** 2, axis=1)
    assert np.ptp(kept) < 1e-8


@pytest.mark.parametrize(
    ("d", "N", "noise"), [(2, 3, 0.0), (7, 50, 0.6), (5, math.inf, 0.0)]
)
def test_balanced_pair_flows_along_the_logistic_curve(
    d: int, N: float, noise: float
) -> None:
    problem = icl.LinearAttention(
        d=d,
        N=N,
        noise=noise,
        coordinates="pair",
        start=1e-3,
        eta=0.01,
        above=1e-8,
        method="flow",
    )
    run = problem.simulate()
    learnt = run.states[:, 0] * run.states[:, 1]
    np.testing.assert_allclose(
        learnt, balanced_flow(problem.law(), 1e-3, 0.01 * run.t), rtol=2e-8
    )


@pytest.mark.parametrize(
    "law",
    [
        PromptLaw([1.0, 0.5], N=5),
        PromptLaw([1.0, 1.0], query=[2.0, 2.0]),
        PromptLaw([1.0, 1.0], [2.0, 2.0]),
        PromptLaw([1.0, 1.0], [1.0, 0.9]),
        PromptLaw([1.0, 0.5], query=[1.0, 1.0]),
        PromptLaw(np.eye(2) + 0.1),
    ],
)
def test_logistic_curve_is_refused_where_it_does_not_hold(law: PromptLaw) -> None:
    with pytest.raises(ValueError, match="isotropic"):
        balanced_flow(law, 0.1, [0.0])


@pytest.mark.parametrize(
    ("start", "time", "words"),
    [
        (0.1, [1.0, -1e-9], "time = "),
        (0.1, math.nan, "time = "),
        (0.1, [1e41], "time = "),
        (0.0, 1.0, "start = 0.0"),
        (-0.1, 1.0, "start = -0.1"),
        (1e41, 1.0, r"start = 1e\+41"),
    ],
)
def test_the_logistic_curve_has_a_start_and_goes_forward(
    start: float, time: Any, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        balanced_flow(PromptLaw([1.0, 1.0], N=5), start, time)


def test_balanced_flow_begins_where_it_begins_and_ends_at_the_best() -> None:
    law = PromptLaw([1.0, 1.0], N=10)
    for start in (1e-12, 1.0, 1e12):
        first, last = balanced_flow(law, start, [0.0, 1e40])
        assert first == pytest.approx(start**2 / math.sqrt(2.0), rel=1e-15)
        assert last == law.best[0]


def test_sharpness_of_the_pair_at_its_balanced_minimum_is_the_formula() -> None:
    law = some_law()
    risk = Pullback(MergedRisk(law, np.zeros((3, 3))), Pair(np.ones(10), (3, 3)))
    v = math.sqrt(float(np.linalg.norm(law.best)))
    minimum = np.concatenate([[v], law.best.ravel() / v])
    hessian = np.kron(law.moments[2], law.second)
    a = minimum[1:]
    wanted = np.linalg.eigvals((v**2 * np.eye(9) + np.outer(a, a)) @ hessian).real.max()
    assert risk.sharpness(minimum) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("coordinates", ["pair", "heads"])
def test_a_plateau_is_expected_to_last_as_long_in_other_axes(coordinates: str) -> None:
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    tokens, tasks = np.array([1.0, 0.3, 0.1]), np.array([0.5, 2.0, 1.0])
    straight, turned = (
        icl.LinearAttention(
            covariance=covariance,
            prior=prior,
            coordinates=coordinates,
            start=1e-3,
            eta=0.1,
        )
        for covariance, prior in (
            (tokens, tasks),
            ((turn * tokens) @ turn.T, (turn * tasks) @ turn.T),
        )
    )
    assert turned.expected_steps() == pytest.approx(straight.expected_steps(), rel=1e-9)
    pull = tokens**2 * tasks
    least = 1.0 / (1e-3 * 0.1 * pull.max())
    if coordinates == "pair":
        size = math.sqrt(float(np.linalg.norm(straight.law().best)))
        least = math.log(size / 1e-3) / float(np.linalg.norm(pull)) / 0.1
    assert straight.expected_steps() == pytest.approx(least, rel=1e-12)


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ({"coordinates": "pair"}, [1, 3]),
        ({"coordinates": "pair", "covariance": np.eye(3) + 0.1}, [1, 9]),
        ({"coordinates": "heads", "heads": 2, "rank": 2}, [1, 6, 6] * 2),
        ({"coordinates": "merged-heads", "heads": 2}, [1, 9] * 2),
        ({"coordinates": "layer", "heads": 2}, [16] * 4),
        ({}, [3]),
    ],
)
def test_a_step_by_blocks_is_as_long_for_every_part(
    given: dict[str, Any], sizes: list[int]
) -> None:
    """Value and matrix, and value, keys and queries of every head, each with a gradient of its own."""
    options: dict[str, Any] = {"d": 3} | given
    problem = icl.LinearAttention(
        **options, start=0.3, eta=0.1, rule="ngd-blocks", max_steps=1, above=1e-9
    )
    run = problem.simulate()
    moved = np.split(np.ravel(run.states[1] - run.states[0]), np.cumsum(sizes)[:-1])
    assert [float(np.linalg.norm(each)) for each in moved] == pytest.approx(
        [0.1] * len(sizes), rel=1e-9
    )


@pytest.mark.parametrize("coordinates", ["pair", "heads"])
@pytest.mark.parametrize("decay", [0.0, 1.0])
def test_automatic_rate_is_below_the_edge_of_stability(
    coordinates: str, decay: float
) -> None:
    problem = icl.LinearAttention(
        d=4, decay=decay, coordinates=coordinates, start=0.1, max_steps=20_000
    )
    if coordinates == "heads":
        problem = problem.changed(heads=4)
    run = problem.simulate()
    assert run.risk is not None
    worst = max(icl.engine.sharpness_along(run, points=20)[1])
    assert problem.rate() * worst < 2.0
    assert np.all(np.diff(run.loss) <= 1e-12)


@pytest.mark.parametrize("arguments", [{"coordinates": "pair"}, {"depth": 4}], ids=str)
def test_rate_beyond_stability_is_said_with_the_limit(
    arguments: dict[str, Any],
) -> None:
    problem = icl.LinearAttention(d=3, max_steps=20, **arguments)
    limit = 2.0 * problem.rate()
    assert (
        f"below η = {limit:.4g}"
        in problem.changed(eta=1.01 * limit).simulate().notes["stability"]
    )
    for changes in ({"eta": 0.99 * limit}, {"eta": 1.01 * limit, "rule": "ngd"}):
        assert "stability" not in problem.changed(**changes).simulate().notes


def test_all_parameterisations_are_drawn_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A family without attention."""
    monkeypatch.setenv("MPLBACKEND", "Agg")
    command = (
        "linear-attention simulate --d 1 --coordinates all --start 0.3 --above 0.1"
    )
    plot = ("--plot", str(tmp_path / "all.png"))
    assert run_main(capsys, *command.split(), *plot)[0] == 0
    assert (tmp_path / "all.png").stat().st_size > 1000


def test_plateau_of_the_pair_grows_like_the_logarithm_of_the_start() -> None:
    """A tenth of the start: ln 10 / ln(1 + η‖ΛqWΛ‖) steps more, up to the step at which it ends."""
    eta, plateaus = 0.002, []
    for start in (1e-4, 1e-6):
        problem = icl.LinearAttention(
            d=4, decay=1.0, coordinates="pair", start=start, eta=eta, above=0.5
        )
        run = problem.simulate()
        assert run.phases is not None
        plateaus.append(run.phases.plateau[1])
    rate = math.log1p(eta * math.sqrt(sum(j**-4 for j in range(1, 5))))
    more = (plateaus[1] - plateaus[0]) * rate / math.log(100.0)
    assert more == pytest.approx(1.0, abs=2e-3)


def test_aligned_heads_learn_one_direction_after_the_other_at_the_predicted_times() -> (
    None
):
    """Head j along axis j with v = |k| = |q| = s: s' = λ(λ - m s³)s², half of the best at a time in closed form."""
    d, s, eta = 3, 0.02, 0.005
    start = np.zeros((d, 1 + 2 * d))
    start[:, 0] = s
    for j in range(d):
        start[j, 1 + j] = start[j, 1 + d + j] = s
    problem = icl.LinearAttention(
        d=d,
        decay=1.0,
        N=50,
        coordinates="heads",
        heads=d,
        start=start,
        eta=eta,
        above=1e-2,
        method="flow",
    )
    run = problem.simulate()
    law = problem.law()
    for j, (spectrum, m, best) in enumerate(
        zip(law.covariance, law.second, law.best, strict=True)
    ):
        x = np.linspace(s, (0.5 * best) ** (1 / 3), 200_001)
        slope = 1.0 / (spectrum * (spectrum - m * x**3) * x**2)
        time = float(np.sum(0.5 * (slope[1:] + slope[:-1]) * np.diff(x))) / eta
        half = run.first(
            lambda state, j=j, best=best: state.observed["gamma"][j] >= 0.5 * best
        )  # type: ignore[misc]
        assert half is not None
        assert -1e-6 * time < half - time < 1.0 + 1e-6 * time  # the first whole step


def test_staircase_has_the_losses_of_principal_component_regression() -> None:
    """On its plateaus Γ is the best one along the first directions, and nothing along the others."""
    problem = icl.LinearAttention(
        d=3,
        decay=1.0,
        N=100,
        coordinates="heads",
        heads=3,
        start=5e-2,
        eta=0.1,
        seed=1,
        above=1e-4,
        method="exact",
    )
    run, law = problem.simulate(), problem.law()
    excess = run.observed["excess"]
    steps = law.moments[2] * law.second * law.best**2 / 2.0
    for learnt in (1, 2):
        level = float(steps[learnt:].sum())
        assert np.min(np.abs(excess / level - 1.0)) < 0.02
    order = [
        int(np.argmax(run.observed["gamma"][:, j] >= 0.5 * law.best[j]))
        for j in range(3)
    ]
    assert order == sorted(order)
    assert min(order) > 0


@pytest.mark.parametrize(
    ("heads", "rank", "query"),
    [
        (2, 1, "full"),
        (1, 2, "full"),
        (3, 1, "full"),
        (1, 1, "singular"),
        # as many directions as the query has
        (1, 2, "singular"),
    ],
)
def test_few_heads_have_the_floor_of_their_rank(
    heads: int, rank: int, query: str
) -> None:
    """The least that BFGS finds from ten random starts, in three dimensions, with moments that do not commute."""
    d, found = 3, random_law(3, 6, 0.4, seed=heads + 3 * rank)
    asked = (
        found.query if query == "full" else found.query[:, :2] @ found.query[:, :2].T
    )
    law = PromptLaw(found.covariance, found.prior, asked, N=6, noise=0.4)
    W, L = law.moments[1], law.covariance
    M = (1 + 1 / 6) * L @ W @ L + (np.trace(L @ W) + 0.16) / 6 * L

    def loss(flat: Any) -> Any:
        left, right = (
            half.reshape(shape)
            for half, shape in zip(np.split(flat, 2), ((d, -1), (-1, d)), strict=True)
        )
        G = left @ right
        slope = asked @ (G @ M - W @ L)
        value = 0.5 * np.trace(asked @ (G @ M @ G.T - 2.0 * G @ L @ W + W))
        return value, np.concatenate(
            [(slope @ right.T).ravel(), (left.T @ slope).ravel()]
        )

    rng = np.random.default_rng(0)
    starts = rng.normal(size=(10, 2 * d * heads * rank))
    least = min(
        minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-9}).fun
        for start in starts
    )
    assert law.floor + law.rank_excess(heads * rank) == pytest.approx(least, rel=1e-8)
    problem = icl.LinearAttention(
        covariance=L,
        prior=W,
        query=asked,
        N=6,
        noise=0.4,
        coordinates="heads",
        heads=heads,
        rank=rank,
    )
    assert problem.risk().floor() == law.floor + law.rank_excess(heads * rank)


def test_heads_of_too_small_a_rank_reach_targets_above_their_floor() -> None:
    problem = icl.LinearAttention(
        d=4, decay=1.0, N=20, coordinates="heads", start=0.1, above=1e-8
    )
    for seed in range(3):
        run = problem.changed(seed=seed).simulate()
        assert run.converged
        assert run.floor == pytest.approx(0.60845367, abs=1e-8)
        assert 0.0 <= run.observed["excess"][-1] <= 1.01e-8
    assert icl.LinearAttention(
        d=4, coordinates="heads", heads=2, rank=2
    ).risk().floor() == pytest.approx(
        icl.LinearAttention(d=4).risk().floor(), rel=1e-14
    )
