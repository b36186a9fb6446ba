"""Descent on the merged matrix in closed form: against single steps, against mpmath, and in sweeps."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

import icl_theory as icl
from icl_theory.engine.trajectory import Stop
from icl_theory.papers.linear_attention import MergedRisk, PromptLaw
from icl_theory.testing import check_family
from tests.linear_attention.references import random_law


@pytest.mark.parametrize("rate", [0.5, 1.0, 1.9])
def test_closed_form_is_descent_step_by_step(rate: float) -> None:
    """Matrices that do not commute, from any start; beyond rate 1 the fastest modes change their sign."""
    found = random_law(4, 6, 0.4, seed=2)
    law = PromptLaw(*found[:3], N=6, noise=0.4)
    risk = MergedRisk(law, np.random.default_rng(3).normal(size=(4, 4)))
    eta = rate / float(risk.curvature.max())
    exact = icl.descend(risk, eta, above=1e-4)
    closed = icl.descend(risk, eta, above=1e-4, method="closed")
    assert closed.steps == exact.steps
    assert exact.steps is not None
    assert exact.steps > 100
    form = risk.closed_form(eta, "gd")
    assert form is not None
    assert (
        np.abs(form.states(exact.t) - exact.states).max()
        < 1e-10 * np.abs(exact.states).max()
    )
    some = [closed.at(int(t)).observed["excess"] for t in exact.t]
    np.testing.assert_allclose(some, exact.observed["excess"], rtol=1e-10)


def test_number_of_steps_of_a_slow_mode_is_right() -> None:
    """One mode in 10^12 steps, counted by mpmath."""
    law = PromptLaw([1.0, 1e-4], N=math.inf)
    run = icl.descend(MergedRisk(law, [1.0, 0.0]), 1.0, above=1e-9, method="closed")
    with mpmath.workdps(40):
        h = mpmath.mpf(1e-4) ** 3  # λ_q m = λ·λ², from 0 to 1/λ
        ratio = mpmath.mpf(1e-9) / (h / mpmath.mpf(1e-4) ** 2 / 2)
        exact = int(mpmath.ceil(mpmath.log(ratio) / (2 * mpmath.log1p(-h))))
    assert run.steps is not None
    assert run.error is not None
    assert abs(run.steps - exact) <= max(1.0, run.error)
    assert run.error < 1e-3 * exact


def test_an_error_below_one_means_the_count_of_single_steps_also_where_the_target_is_the_loss_of_a_step() -> (
    None
):
    rng, differ = np.random.default_rng(8), 0
    for _ in range(40):
        d = int(rng.integers(1, 6))
        covariance = np.diag(10.0 ** rng.uniform(-2.0, 0.5, d))
        axes = np.linalg.qr(rng.standard_normal((d, d)))[0]
        if rng.random() < 0.6:
            covariance = axes @ covariance @ axes.T
        law = PromptLaw(
            0.5 * (covariance + covariance.T),
            N=(5.0, 1000.0, math.inf)[rng.integers(3)],
        )
        risk = MergedRisk(law, np.zeros((d, d)))
        eta = 10.0 ** rng.uniform(-2.0, 0.25) / float(risk.curvature.max())
        start = risk.excess(risk.initial)
        above = max(start * 10.0 ** rng.uniform(-4.0, -0.1), 2e-9 * risk.floor())
        path = icl.descend(risk, eta, above=above, method="exact", steps=200)
        tied = float(path.at(int(rng.integers(1, path.t[-1] + 1))).loss)
        exact, run = (
            icl.descend(risk, eta, epsilon=tied, method=method)
            for method in ("exact", "closed")
        )
        assert exact.steps is not None
        assert run.steps is not None
        assert run.error is not None
        assert run.error >= max(1, abs(run.steps - exact.steps))
        differ += run.steps != exact.steps
    assert differ >= 3


@pytest.mark.parametrize(
    ("N", "least", "open_by"),
    [
        (math.inf, 1e-3, 0.1),
        (math.inf, 1e-4, 100.0),
        (math.inf, 3e-5, 3e4),
        (20, 1e-6, 1.0),
        (20, 1e-9, 1e6),
    ],
)
@pytest.mark.parametrize("seed", [0, 4])
def test_the_error_of_a_count_covers_what_rounding_does_to_small_eigenvalues(
    N: float, least: float, open_by: float, seed: int
) -> None:
    """They are known to the digits of the largest one; the count is that of the last mode, in 60 digits."""
    turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))[0]
    covariance = (turn * [1.0, 0.3, least]) @ turn.T
    covariance = 0.5 * (covariance + covariance.T)
    query = None if math.isinf(N) else np.eye(3)
    base = icl.LinearAttention(
        covariance=covariance, query=query, N=N, noise=0.5, start=0.0, eta=0.4
    )
    with mpmath.workdps(60):
        L = mpmath.matrix(covariance.tolist())
        low, share = (
            min(mpmath.eigsy(L, eigvals_only=True)),
            0 if math.isinf(N) else mpmath.mpf(1) / N,
        )
        m = (1 + share) * low**2 + share * (L[0, 0] + L[1, 1] + L[2, 2] + 0.25) * low
        q = low if query is None else 1
        height = (
            q * m * (low / m) ** 2 / 2
        )  # of the excess of the last mode at the start
        above = float(height / 10)
        wanted = int(
            mpmath.ceil(
                mpmath.log(mpmath.mpf(above) / height) / 2 / mpmath.log1p(-0.4 * q * m)
            )
        )
    run = base.changed(above=above).simulate()
    assert run.method == "closed"
    assert run.steps is not None
    assert run.error is not None
    assert abs(run.steps - wanted) <= (run.error if run.error >= 1.0 else 0.0)
    assert run.error < open_by


def test_the_error_column_of_a_sweep_says_where_the_target_is_the_loss_of_a_step() -> (
    None
):
    family = icl.LinearAttention(d=3, N=math.inf, decay=1.0, above=1e-2)
    path = icl.descend(family.merged(), family.rate(), above=1e-2, method="exact")
    losses = [float(path.at(t).loss) for t in range(1, int(path.t[-1]))][:40]
    found = icl.sweep(
        icl.LinearAttention, d=3, N=math.inf, decay=1.0, above=losses, progress=False
    )
    assert set(found.method.values.ravel()) == {"closed"}
    off = np.abs(found.steps.values.ravel() - np.arange(1, len(losses) + 1))
    assert (found.error.values.ravel() >= np.maximum(off, 1)).all()


def test_sweep_in_closed_form_is_the_simulations() -> None:
    axes = {
        "d": [3, 8],
        "N": [5, math.inf],
        "start": [0.0, 0.1],
        "decay": 1.0,
        "noise": 0.5,
    }
    found = icl.sweep(
        icl.LinearAttention, above=1e-2, max_steps=2000, progress=False, **axes
    )
    assert set(found.method.values.ravel()) == {"closed"}
    assert set(found.status.values.ravel()) == {"reached"}
    for i, d in enumerate(axes["d"]):  # type: ignore[arg-type]
        point = found.isel(d=i, N=0, start=1)
        run = icl.LinearAttention(
            d=d, N=5, start=0.1, decay=1.0, noise=0.5, above=1e-2
        ).simulate()
        assert run.phases is not None
        assert (int(point.steps), int(point.T_plateau)) == (
            run.steps,
            run.phases.plateau[1],
        )
        assert float(point.excess) == run.observed["excess"][-1]


def test_phases_in_a_sweep_of_runs_that_miss_their_target_end_with_them() -> None:
    given = {"d": 8, "N": 5, "decay": 1.0, "noise": 0.5, "max_steps": 50}
    rates = [0.05, 0.1, 1e-6]  # the last one is on its plateau still
    found = icl.sweep(
        icl.LinearAttention, above=1e-9, eta=rates, progress=False, **given
    )
    assert set(found.method.values) == {"closed"}
    for i, eta in enumerate(rates):
        problem = icl.LinearAttention(above=1e-9, eta=eta, **given)  # type: ignore[arg-type]
        measured = problem.measured(problem.simulate())
        for name in ("steps", "T_plateau", "T_learning", "last"):
            assert int(found[name].values[i]) == measured[name], name
        assert measured["T_plateau"] + measured["T_learning"] == 50


def test_rate_beyond_stability_fails_in_a_sweep_with_the_limit() -> None:
    found = icl.sweep(icl.LinearAttention, eta=[0.5, 5.0], progress=False)
    assert found.status.values.tolist() == ["reached", "failed"]
    assert "2/(q_max m_max) = 1.37931" in str(found.message.values[1])


def test_a_target_that_rounding_hides_fails_in_a_sweep_as_it_does_alone() -> None:
    found = icl.sweep(
        icl.LinearAttention, above=[1e-2, 1e-20], noise=0.5, progress=False
    )
    assert found.status.values.tolist() == ["reached", "failed"]
    with pytest.raises(ValueError, match="above = 1e-20") as error:
        icl.LinearAttention(above=1e-20, noise=0.5).simulate()
    assert str(error.value) in str(found.message.values[1])


@pytest.mark.parametrize(("factor", "falls"), [(0.999, True), (1.001, False)])
def test_stability_ends_where_it_is_said_to(factor: float, falls: bool) -> None:
    risk = icl.LinearAttention(d=4, N=6, decay=1.0).merged()
    run = icl.descend(risk, factor * 2.0 / float(risk.curvature.max()), steps=4000)
    assert (run.loss[-1] < run.loss[0]) == falls


def test_slow_modes_of_ill_conditioned_tokens_keep_their_digits() -> None:
    """Eigenvalues of Λ down to 1e-9, N infinite, so that Γ* has entries of 1e9: states iterated by mpmath."""
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    covariance = (turn * [1.0, 1e-4, 1e-9]) @ turn.T
    law = PromptLaw(0.5 * (covariance + covariance.T), query=np.eye(3))
    risk, eta = MergedRisk(law, 0.1 * np.eye(3)), 1.5
    form = risk.closed_form(eta, "gd")
    assert form is not None
    with mpmath.workdps(60):
        L, gamma = (
            mpmath.matrix(law.covariance.tolist()),
            mpmath.matrix(risk.start.tolist()),
        )
        for t in range(101):
            if t in (0, 1, 10, 100):
                exact = np.array(gamma.tolist(), dtype=float)
                np.testing.assert_allclose(
                    form.states(np.array([t]))[0], exact, atol=1e-13
                )
            gamma -= eta * (gamma * L - mpmath.eye(3)) * L


@pytest.mark.parametrize(
    "arguments",
    [
        {"d": 8, "noise": 0.5},
        {"d": 4, "decay": 1.5, "N": 10, "eta": 1.0},
        {"d": 5, "tasks": 3},
        {
            "covariance": [[1.0, 0.2], [0.2, 0.5]],
            "prior": [1.0, 2.0],
            "query": [[1.0, 0.1], [0.1, 3.0]],
        },
        {"d": 3, "decay": 0.5, "coordinates": "pair", "above": 0.05},
        {
            "covariance": [[1.0, 0.2], [0.2, 0.5]],
            "coordinates": "pair",
            "above": 0.1,
            "start": 0.3,
        },
        {
            "d": 3,
            "coordinates": "heads",
            "heads": 2,
            "rank": 2,
            "start": 0.1,
            "above": 1e-2,
            "max_steps": 500,
        },
    ],
    ids=str,
)
def test_family_is_sound(arguments: dict[str, object]) -> None:
    check_family(icl.LinearAttention, rows=False, **arguments)


@pytest.mark.parametrize("rate", [2.1, 50.0])
def test_a_rate_at_which_descent_diverges_has_no_closed_form(rate: float) -> None:
    """Powers of what a mode grows by are beyond float64 before long; single steps end where the loss is."""
    risk = MergedRisk(PromptLaw([[2.0, 1.0], [1.0, 3.0]]), 0.1 * np.eye(2))
    eta = rate / float(risk.curvature.max())
    assert risk.closed_form(eta, "gd") is None
    run = icl.descend(risk, eta, above=1e-3, steps=10**5)
    assert run.stop is Stop.LOSS
    assert np.isfinite(run.loss).all()
    with pytest.raises(ValueError, match="there is no closed form"):
        icl.descend(risk, eta, above=1e-3, method="closed")


def test_a_run_of_one_step_says_why() -> None:
    run = icl.LinearAttention().simulate()
    assert run.steps == 1
    assert run.notes["modes"].startswith("all alike, and one step")
    for other in (
        icl.LinearAttention(decay=1.0),
        icl.LinearAttention(eta=0.1),
        icl.LinearAttention(rule="ngd"),
    ):
        assert "modes" not in other.simulate().notes
