"""Trained on one law of prompts, tested on another, and on k tasks, tested on new ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

import icl_theory as icl
from icl_theory.papers.linear_attention import (
    LayerRisk,
    diversity_limit,
    posterior_loss,
    pretrained,
    pretraining_limit,
    ridge_loss,
    shift_table,
    task_diversity,
)
from tests.linear_attention.references import Law, merged

BASE = icl.LinearAttention(d=2, decay=1.0, N=2, noise=0.3)
LAWS = {
    "base": BASE,
    "tokens": icl.LinearAttention(covariance=[[1.0, 0.5], [0.5, 0.4]], N=2, noise=0.3),
    "length": BASE.changed(N=1),
    "noise": BASE.changed(noise=1.0),
    "tasks": BASE.changed(prior=[[1.0, -0.6], [-0.6, 1.5]]),
    "query": BASE.changed(query=[[0.2, 0.1], [0.1, 2.0]]),
}


def test_table_has_the_loss_of_all_prompts_of_each_law() -> None:
    table = shift_table(LAWS)
    for j, other in enumerate(LAWS.values()):
        law = other.law().dense
        whole = Law(*law.moments, int(law.N), law.noise)
        for i, trained in enumerate(LAWS.values()):
            gamma = trained.law().best
            loss, _ = merged(whole, np.diag(gamma) if gamma.ndim == 1 else gamma)
            assert table.loss[i, j] == pytest.approx(loss, rel=1e-12)


def test_only_the_shift_of_the_query_costs_nothing() -> None:
    excess = shift_table(LAWS).excess
    assert np.abs(np.diag(excess)).max() < 1e-30
    assert excess[0, 5] < 1e-30
    assert (excess[0, 1:5] > 1e-4).all()


def test_table_of_descent_tends_to_that_of_the_minimisers() -> None:
    laws = {
        name: LAWS[name].changed(above=1e-12) for name in ("base", "tokens", "length")
    }
    trained = shift_table(laws, "descent")
    np.testing.assert_allclose(trained.excess, shift_table(laws).excess, atol=1e-4)
    assert trained.to_markdown().count("\n") == 5
    assert "<table" in trained._repr_html_()


def test_laws_of_unequal_dimension_are_refused() -> None:
    with pytest.raises(ValueError, match="the same dimension"):
        shift_table({"a": BASE, "b": icl.LinearAttention(d=3)})


@pytest.mark.parametrize(
    "use",
    [
        lambda problem: shift_table({"one": BASE, "several": problem}),
        lambda problem: shift_table({"several": problem}, "descent"),
        lambda problem: task_diversity(problem, [2], draws=2),
        lambda problem: pretrained(problem, 9),
        lambda problem: pretraining_limit(problem, [9]),
    ],
)
def test_what_is_known_of_one_layer_is_not_said_of_several(
    use: Callable[[icl.LinearAttention], object],
) -> None:
    use(icl.LinearAttention(d=2, N=2, above=1e-2))
    with pytest.raises(ValueError, match=r"one layer|several layers"):
        use(icl.LinearAttention(d=2, N=2, above=1e-2, depth=2))


def test_loss_on_tasks_and_on_new_ones_is_that_of_all_prompts() -> None:
    """Three given tasks, enumerated one by one: h and the answer are averaged over prompts of each."""
    tasks = np.array([[1.0, 0.2], [-0.5, 1.0], [0.3, 0.3]])
    problem = icl.LinearAttention(d=2, N=2, noise=0.4, tasks=tasks)
    gamma = problem.law().best
    whole = [
        merged(
            Law(np.eye(2), np.outer(w, w) + 1e-15 * np.eye(2), np.eye(2), 2, 0.4), gamma
        )[0]
        for w in tasks
    ]
    assert problem.law().floor == pytest.approx(np.mean(whole), rel=1e-6)
    new = merged(Law(np.eye(2), np.eye(2), np.eye(2), 2, 0.4), gamma)[0]
    assert problem.new_tasks().loss(gamma) == pytest.approx(new, rel=1e-12)
    assert problem.measure(problem.simulate())["new_loss"] == pytest.approx(
        new, rel=0.05
    )


def test_table_of_a_sweep_over_tasks_has_the_loss_on_new_ones() -> None:
    found = icl.sweep(
        icl.LinearAttention, d=3, tasks=[1, 50], N=9, above=1e-2, progress=False
    )
    table = icl.phase_table(found)
    assert table["new_loss"].tolist() == found.new_loss.values.tolist()
    assert table["new_loss"][0] > 2.0 * table["new_loss"][1]
    assert "new_loss" not in icl.phase_table(
        icl.sweep(icl.LinearAttention, d=[3, 4], above=1e-2, progress=False)
    )


def test_sampled_layer_has_the_new_loss() -> None:
    """Drawn tasks in 8 dimensions: the minimiser in the whole layer on 10^5 prompts with new tasks."""
    problem = icl.LinearAttention(d=8, N=16, noise=0.5, tasks=6, seed=3)
    gamma, law = problem.law().best, problem.new_tasks()
    trainer = LayerRisk.of(law, np.concatenate([[1.0], gamma.ravel()]), 2000, seed=1)
    losses = np.array(
        [trainer.evaluate(trainer.initial, step)[0] for step in range(50)]
    )
    assert abs(losses.mean() - law.loss(gamma)) < 4.0 * losses.std(ddof=1) / math.sqrt(
        50
    )


def test_limit_is_approached_as_the_dimension_grows() -> None:
    """At k/d = 1/2, 1, 2, N = 4d: the distance from the limit falls at least like 1/d, with its spread."""
    off = []
    for d in (16, 128):
        problem = icl.LinearAttention(d=d, N=4 * d, noise=math.sqrt(d) / 4)
        found = task_diversity(
            problem, [d // 2, d, 2 * d], draws=160 // d + 3, seed=5
        ).mean()
        limit = diversity_limit(d, 4 * d, math.sqrt(d) / 4, [0.5, 1.0, 2.0])
        off.append(
            max(
                float(np.abs(a / b - 1.0).max())
                for a, b in zip(found, limit, strict=True)
            )
        )
    assert off[1] < 0.01
    assert off[1] < 0.5 * off[0]


def test_limit_is_the_integral_over_the_marchenko_pastur_density() -> None:
    d, N, noise = 64, 256, 0.5
    a, c = 1 + 1 / N, (d + noise**2) / N
    for ratio in (0.3, 1.5, 20.0):
        y = 1 / ratio
        low, high = (1 - math.sqrt(y)) ** 2, (1 + math.sqrt(y)) ** 2
        theta = (np.arange(20_000) + 0.5) * math.pi / 20_000
        r = 0.5 * (low + high) + 0.5 * (high - low) * np.cos(theta)
        weight = (
            (0.5 * (high - low) * np.sin(theta)) ** 2
            / (2 * math.pi * y * r)
            * math.pi
            / 20_000
        )
        mass = max(0.0, 1 - ratio)
        assert weight.sum() + mass == pytest.approx(1.0, abs=1e-9)
        g = r / (a * r + c)
        new = mass + np.sum(weight * ((a + c) * g**2 - 2 * g + 1))
        old = np.sum(weight * r * (1 - g))
        found = diversity_limit(d, N, noise, ratio)
        assert float(found.new) == pytest.approx(0.5 * d * new, rel=1e-8)
        assert float(found.pretraining) == pytest.approx(0.5 * d * old, rel=1e-8)


@pytest.mark.parametrize(
    ("N", "noise", "ratio"),
    [
        (256, 1e12, 3.0),
        (10**15, 1e-9, 0.5),
        (10**15, 1e-9, 2.0),
        (4, 1e3, 1e9),
        (7, 0.0, 1e-9),
    ],
)
def test_limit_keeps_its_digits_where_the_noise_is_large_or_small(
    N: int, noise: float, ratio: float
) -> None:
    """Integrals of the Marchenko-Pastur law, in 120 digits, from its Stieltjes transform and the derivative."""
    d, found = 2, diversity_limit(2, N, noise, ratio)
    with mpmath.workdps(120):
        y, a, c = (
            1 / mpmath.mpf(ratio),
            1 + 1 / mpmath.mpf(N),
            (d + mpmath.mpf(noise) ** 2) / N,
        )

        def stieltjes(z: Any) -> Any:
            return (y - 1 - z + mpmath.sqrt((z + 1 - y) ** 2 + 4 * y * z)) / (2 * y * z)

        z = c / a
        s, t = stieltjes(z), -mpmath.diff(stieltjes, z, h=z * mpmath.mpf(10) ** -40)
        learnt, squared = (1 - z * s) / a, (1 - 2 * z * s + z**2 * t) / a**2
        new, old = (a + c) * squared - 2 * learnt + 1, 1 - 1 / a + z / a * (1 - z * s)
        assert float(found.new) == pytest.approx(float(d * new / 2), rel=1e-13)
        assert float(found.pretraining) == pytest.approx(float(d * old / 2), rel=1e-13)


def test_limit_of_infinite_prompts_turns_at_as_many_tasks_as_dimensions() -> None:
    found = diversity_limit(10, math.inf, 0.0, [0.25, 0.75, 1.0, 4.0])
    np.testing.assert_allclose(found.new, [3.75, 1.25, 0.0, 0.0])
    near = diversity_limit(10, 10**9, 0.0, [0.25, 0.75, 4.0])
    np.testing.assert_allclose(near.new, [3.75, 1.25, 0.0], atol=1e-6)


def test_band_holds_its_share_of_the_draws() -> None:
    found = task_diversity(icl.LinearAttention(d=8, N=16), [2, 32], draws=20)
    low, high = found.band(0.5)
    inside = (found.new >= low.new[:, None]) & (found.new <= high.new[:, None])
    assert (np.abs(inside.mean(axis=1) - 0.5) <= 0.05).all()


def test_ridge_is_the_posterior_mean_and_below_every_layer() -> None:
    """One dimension, where the loss is ½ E 1/(1 + s/σ²) over a χ² law; and the best layer is no better."""
    N, noise = 6, 0.8
    problem = icl.LinearAttention(d=1, N=N, noise=noise)
    found = ridge_loss(problem.law(), 4000, seed=1)
    s = np.linspace(0.0, 80.0, 400_001)[1:]
    density = s ** (N / 2 - 1) * np.exp(-s / 2)
    exact = 0.5 * np.sum(density / (1 + s / noise**2)) / density.sum()
    assert abs(found.value - exact) < 4.0 * found.error
    assert found.value < problem.law().floor
    short = ridge_loss(icl.LinearAttention(d=5, N=3).law(), 10)
    assert short.value == pytest.approx(
        1.0
    )  # without noise two of five directions are unseen
    assert short.error < 1e-12


def test_discrete_posterior_is_the_sum_over_tasks() -> None:
    """Two opposite tasks in one dimension: the mean is w tanh(w Σxy/σ²), its loss an integral by Gauss–Hermite."""
    w, N, noise = 0.7, 2, 1.0
    law = icl.LinearAttention(d=1, N=N, noise=noise).law()
    found = posterior_loss(law, [[w], [-w]], prompts=20_000, seed=2)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    total = 0.0
    for (x, p), (z, q) in itertools.product(zip(nodes, weights, strict=True), repeat=2):
        s = math.hypot(x, z)  # Σ xy = s²w + sσε
        total += (
            p
            * q
            * float(
                weights
                @ (w * np.tanh(w * (s**2 * w + s * noise * nodes) / noise**2) - w) ** 2
            )
        )
    assert abs(found.value - 0.5 * total) < 4.0 * found.error


def test_many_known_tasks_are_as_good_as_ridge() -> None:
    problem = icl.LinearAttention(d=2, N=4, noise=1.0)
    tasks = np.random.default_rng(0).normal(size=(4000, 2))
    ridge, known, few = (
        ridge_loss(problem.law(), 2000),
        posterior_loss(problem.law(), tasks, 4000, seed=1, new=True),
        posterior_loss(problem.law(), tasks[:4], 4000, seed=1, new=True),
    )
    assert abs(known.value - ridge.value) < 4.0 * math.hypot(known.error, ridge.error)
    assert few.value > 1.5 * ridge.value


NOISY, CLEAN = icl.LinearAttention(d=2, noise=1.0).law(), icl.LinearAttention(d=2).law()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: posterior_loss(CLEAN, [[1.0, 0.0]]), "noise = 0"),
        (lambda: posterior_loss(NOISY, [[1.0]]), r"tasks = \(1, 1\)"),
        (lambda: ridge_loss(icl.LinearAttention(N=math.inf).law()), "N = inf"),
        (lambda: diversity_limit(8, 20, 0.0, [0.0]), "ratio"),
        (lambda: task_diversity(BASE, [0]), "tasks = 0"),
    ],
)
def test_reference_that_cannot_be_is_refused(
    call: Callable[[], object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call()
