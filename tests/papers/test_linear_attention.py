"""The audit's rows and questions on linear attention; that wrong formulas turn them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.papers.linear_attention import LoopedRisk, PromptLaw, ShiftTable
from icl_theory.papers.linear_attention import statements as evidence


def test_answer_on_depth_has_the_losses_of_a_loop_and_of_layers_of_their_own() -> None:
    found = icl.answer("linear-attention-depth", quick=True)
    assert "0.155 of one layer, 0.015 of 8 in a loop" in found.answer
    assert all((series.y > 0.0).all() for series in found.series)
    ends = {series.label: series.y[[0, -1]] for series in found.series}
    for N in (20, 80):
        loop, own = ends[f"loop, N = {N}"], ends[f"own, N = {N}"]
        assert loop[0] == pytest.approx(own[0], rel=1e-9)  # one layer is one layer
        assert own[1] < 0.2 * loop[1]


def test_wrong_second_moment_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        PromptLaw, "scatter", property(lambda self: 1.01 * self.covariance / self.N)
    )
    assert evidence.population_loss(True).violated


def test_cost_of_a_shifted_query_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        evidence,
        "shift_table",
        lambda laws: ShiftTable(tuple(laws), np.ones(5), np.ones((5, 5))),
    )
    assert evidence.shifts(True).violated


def test_shifts_cost_what_explicit_matrices_say() -> None:
    """The best layer of one law on another: traces of dense matrices, with a formula of each."""
    j = np.arange(1.0, 9.0)
    identity = np.eye(8)

    def best_and_loss(
        covariance: Any, W: Any, query: Any, noise: float, N: int, gamma: Any = None
    ) -> Any:
        S = (
            covariance @ W @ covariance
            + (np.trace(covariance @ W) + noise**2) * covariance
        ) / N
        if gamma is None:
            gamma = W @ covariance @ np.linalg.inv(covariance @ W @ covariance + S)
        off = gamma @ covariance - identity
        return gamma, 0.5 * np.trace(query @ (off @ W @ off.T + gamma @ S @ gamma.T))

    base, steep, tasks = np.diag(1.0 / j), np.diag(j**-2.0), np.diag(1.0 / j)
    changed = {
        "queries": (base, identity, np.diag(j), 0.5),
        "W": (base, tasks, base, 0.5),
        "noise": (base, identity, base, 2.0),
        "covariance": (steep, identity, steep, 0.5),
    }
    lengths = (20, 2000)
    shares = evidence.shifted(lengths)
    for at, N in enumerate(lengths):
        gamma, _ = best_and_loss(base, identity, base, 0.5, N)
        for name, law in changed.items():
            least = best_and_loss(*law, N)[1]
            share = best_and_loss(*law, N, gamma)[1] / least - 1.0
            assert shares[name][at] == pytest.approx(share, rel=1e-8, abs=1e-12)


def test_a_published_formula_with_a_slip_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of theorem 4.2 and its bound with another length, σ(t) with the other dimension."""
    error, drop = evidence.published_error, evidence.published_drop
    bound = evidence.published_bound
    for row, name, slip in (
        (
            evidence.other_labels,
            "published_error",
            lambda law, N, M, moments: error(law, N + 1, M, moments),
        ),
        (
            evidence.other_labels,
            "published_error",
            lambda law, N, M, moments: error(law, N, M + 1, moments),
        ),
        (evidence.one_drop, "published_drop", lambda d, *rest: drop(d + 1, *rest)),
        (
            evidence.bound_on_error,
            "published_bound",
            lambda spectrum, N, epsilon: bound(spectrum, 2 * N, epsilon),
        ),
        (
            evidence.bound_on_error,
            "published_bound",
            lambda spectrum, N, epsilon: (
                bound(spectrum, N, 2.0 * epsilon)[0],
                bound(spectrum, N, epsilon)[1],
            ),
        ),
    ):
        assert not row(True).violated
        with monkeypatch.context() as changed:
            changed.setattr(evidence, name, slip)
            assert row(True).violated


def test_limits_of_another_layer_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that is not balanced ends at the same Γ with other factors."""
    pair = evidence.Pair
    assert not evidence.limits(True).violated
    monkeypatch.setattr(
        evidence,
        "Pair",
        lambda start, shape: pair(
            start * np.append(3.0, np.ones(len(start) - 1)), shape
        ),
    )
    assert evidence.limits(True).violated


@pytest.mark.slow
def test_heads_of_rank_one_rest_at_every_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row is about rank two: four heads of rank one, in their place, turn it."""
    rests = evidence.rests_of_rank
    monkeypatch.setattr(
        evidence, "rests_of_rank", lambda d, rank, starts, seeds: rests(d, 1, starts, 1)
    )
    assert evidence.rank_of_heads(True).violated


def test_times_at_levels_are_those_of_a_finely_stepped_flow() -> None:
    """Two heads of rank one in two dimensions, stepped here with Runge-Kutta, timed by interpolation."""
    problem = icl.LinearAttention(
        d=2, decay=1.0, N=31, coordinates="heads", heads=2, seed=1
    )
    found = evidence.times_at_levels(problem, 0.1)
    spectrum = np.array([1.0, 0.5])
    second = (1.0 + 1.0 / 31.0) * spectrum**2 + spectrum.sum() / 31.0 * spectrum
    levels = np.append(np.cumsum((0.5 * spectrum**3 / second)[::-1])[::-1], 0.0)
    x = problem.changed(start=0.1).risk().initial.ravel()

    def flow(x: Any) -> Any:
        v, k, q = np.split(x.reshape(2, 5), [1, 3], axis=1)
        gamma = np.einsum("h,hi,hj->ij", v[:, 0], q, k)
        G = np.diag(spectrum) @ (gamma @ np.diag(second) - np.diag(spectrum))
        slopes = [
            np.einsum("hi,ij,hj->h", q, G, k)[:, None],
            v * (q @ G),
            v * (k @ G.T),
        ]
        return -np.concatenate(slopes, axis=1).ravel()

    def excess(x: Any) -> float:
        v, k, q = np.split(x.reshape(2, 5), [1, 3], axis=1)
        off = np.einsum("h,hi,hj->ij", v[:, 0], q, k) - np.diag(spectrum / second)
        return 0.5 * float(np.sum(spectrum[:, None] * off**2 * second))

    times, excesses, h = [0.0], [excess(x)], 0.1
    while excesses[-1] > 0.3 * levels[1]:
        a = flow(x)
        b = flow(x + 0.5 * h * a)
        c = flow(x + 0.5 * h * b)
        x = x + h / 6.0 * (a + 2.0 * b + 2.0 * c + flow(x + h * c))
        times.append(times[-1] + h)
        excesses.append(excess(x))
    falls = -np.diff(levels)
    bounds = [
        levels[0] - 0.1 * falls[0],
        levels[1] + 0.1 * falls[0],
        levels[1] - 0.1 * falls[1],
    ]
    reached = np.interp(-np.log(bounds), -np.log(excesses), times)
    assert found == pytest.approx([reached[0], reached[2] - reached[1]], rel=0.05)


def test_a_layer_that_does_not_memorise_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss on the k tasks counts, not that on new ones alone."""
    right = evidence.task_diversity

    def wrong(*arguments: Any, **options: Any) -> Any:
        found = right(*arguments, **options)
        return dataclasses.replace(found, pretraining=found.new)

    monkeypatch.setattr(evidence, "task_diversity", wrong)
    assert evidence.transition(True).violated


def test_layers_that_do_not_help_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoopedRisk, "floor", lambda self: 1.0)
    assert evidence.depth(True).violated
