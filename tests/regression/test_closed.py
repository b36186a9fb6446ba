"""The closed form against plain iteration in extended precision, on and beside every threshold of its branches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import icl_theory as icl
from icl_theory.regression import StepCounter
from icl_theory.regression.closed.runs import closed_runs
from icl_theory.regression.phases import tail_start

Array = NDArray[Any]
LIMIT = 3000  # steps


def _drawn(count: int) -> tuple[Array, Array, Array, Array]:
    """K, γ, η and ε: a third at a threshold of the step size, equal to it or one unit in the last place away.

    The thresholds are c g(0) = 1/32, that is ηL²Δ² = K²/16, and c g = 1/32 at the peak
    of g, that is c = 27/128. Targets include half of the initial loss, the initial loss
    itself, and its neighbours.
    """
    rng = np.random.default_rng(1)
    K = np.where(
        rng.random(count) < 0.5,
        np.round(10.0 ** rng.uniform(0.31, 6.0, count)),
        rng.integers(2, 30, count),
    )
    kind = rng.integers(0, 6, count)
    size = (
        10.0 ** rng.uniform(-2, 3, count) * K**2 / 16.0 / K ** rng.uniform(0, 1, count)
    )  # ηL²Δ²
    size = np.where(
        kind == 2,
        K**2 / 16 * (K**3 * 4 / 27 / (K - 1) ** 2) ** rng.uniform(0, 1, count),
        size,
    )
    exact = np.where(kind == 0, K**2 / 16.0, 27.0 / 64.0 * (K - 1.0) ** 2 / K)
    exact = np.nextafter(
        exact,
        rng.choice([0.0, np.inf], count),
        where=rng.random(count) < 0.6,
        out=exact.copy(),
    )
    size = np.where(kind <= 1, exact, size)
    gamma = np.where(
        rng.random(count) < 0.5,
        0.5 * 4.0 ** rng.integers(-3, 4, count),
        10.0 ** rng.uniform(-2, 2, count),
    )
    start = 0.5 * gamma * (1.0 - 1.0 / K)
    epsilon = start * 10.0 ** rng.uniform(-2.5, 0.0, count)
    pick = rng.integers(0, 8, count)
    epsilon = np.where(pick == 0, 0.5 * start, np.where(pick == 1, start, epsilon))
    epsilon = np.where(
        pick == 1, np.nextafter(epsilon, rng.choice([0.0, np.inf], count)), epsilon
    )
    return K, gamma, size / (2.0 * gamma), epsilon


def _iterated(
    K: Array, c: Array, gamma: Array, epsilon: Array, tail: Array
) -> tuple[Array, Array, Array]:
    """First steps with loss <= ε, with a >= ½ and with 1 - a <= s*, each -1 where it is not reached."""
    K, c, gamma, epsilon = (
        np.asarray(x, np.longdouble) for x in (K, c, gamma, epsilon)
    )
    hit, half, late = (np.full(K.size, -1) for _ in range(3))
    u, left = np.zeros_like(K), np.arange(K.size)
    for step in range(LIMIT + 1):
        w = (K - 1) * np.exp(-u)
        a, s = 1 / (1 + w), w / (1 + w)
        for found, reached in (
            (half, a >= 0.5),
            (late, s <= tail),
            (hit, gamma * K / (K - 1) * s * s / 2 <= epsilon),
        ):
            found[left[reached & (found[left] < 0)]] = step
        u = u + c * a * s * s
        on = hit[left] < 0
        K, c, gamma, epsilon, tail, u, left = (
            x[on] for x in (K, c, gamma, epsilon, tail, u, left)
        )
    return hit, half, late


def test_counts_and_phases_are_those_of_plain_iteration_on_and_beside_every_threshold() -> (
    None
):
    K, gamma, eta, epsilon = _drawn(27_000)
    c = eta * gamma * K / (K - 1.0) ** 2
    tail = np.array([tail_start(int(k)) for k in K])
    counter = StepCounter(K, c)
    found = closed_runs(counter, gamma, epsilon, LIMIT, tail)
    hit, half, late = _iterated(K, c, gamma, epsilon, tail)
    seen = hit >= 0
    assert seen.sum() >= 20_000
    difference = np.abs(found.hit - hit)[seen]
    assert (difference <= found.error[seen]).all()
    assert (
        difference > 0
    ).mean() < 0.03  # where the target is the initial loss to rounding
    attends = np.where(half < 0, hit, half)
    tails = np.maximum(attends, np.where(late < 0, hit, late))
    for boundary, expected in ((found.attends, attends), (found.tails, tails)):
        assert (np.abs(boundary - expected)[seen] <= found.error[seen]).all()


def test_step_zero_is_the_start_at_every_point() -> None:
    K, gamma, eta, _ = _drawn(27_000)
    counter = StepCounter(K, eta * gamma * K / (K - 1.0) ** 2)
    assert (counter.position(0) == 0.0).all()


@pytest.mark.parametrize(("L", "K"), [(1.0, 4), (5.0, 20), (0.5, 2), (25.0, 100)])
@pytest.mark.parametrize("ulp", [-1, 0, 1])
def test_a_first_step_at_the_threshold_of_small_steps_is_counted(
    L: float, K: int, ulp: int
) -> None:
    """``η L² Δ² = K²/16``, where the closed form once began at step -1."""
    eta = (
        float(np.nextafter(K**2 / 16.0 / L**2, np.inf * ulp))
        if ulp
        else K**2 / 16.0 / L**2
    )
    run = icl.simulate(L, 1.0, eta, K=K, epsilon=1e-2 * L**2)
    exact = icl.simulate(L, 1.0, eta, K=K, epsilon=1e-2 * L**2, method="exact")
    assert run.method == "closed"
    assert run.steps == exact.steps
    assert run.attention[0] == pytest.approx(1.0 / K, rel=1e-15)
    np.testing.assert_allclose(run.loss[0], 0.25 * L**2 * (1.0 - 1.0 / K), rtol=1e-15)
    assert run.phases == exact.phases


def test_the_initial_loss_as_target_is_reached_at_step_zero_or_said_to_be_in_doubt() -> (
    None
):
    start = float(icl.simulate(2.0, 1.0, 4.0).loss[0])
    for target in (np.nextafter(start, 0.0), start, np.nextafter(start, 2.0)):
        run = icl.simulate(2.0, 1.0, 4.0, epsilon=float(target))
        assert run.steps in (0, 1)
        assert run.error == 1.0


def _problems(rng: np.random.Generator, count: int) -> list[dict[str, Any]]:
    """Problems whose runs take from one step to some hundreds to a thousandth of their initial loss."""
    drawn = []
    for _ in range(count):
        K, L, delta = (
            int(rng.integers(2, 40)),
            10.0 ** rng.uniform(-1, 1),
            10.0 ** rng.uniform(-1, 1),
        )
        gamma = 0.5 * (L * delta) ** 2
        eta = 10.0 ** rng.uniform(-1, 2.5) / gamma * (K - 1.0) ** 2 / K
        epsilon = 0.5 * gamma * (1.0 - 1.0 / K) * 10.0 ** rng.uniform(-3, -0.1)
        drawn.append({"L": L, "delta": delta, "eta": eta, "K": K, "epsilon": epsilon})
    return drawn


def test_an_error_below_one_means_the_count_of_single_steps_also_where_the_target_is_the_loss_of_a_step() -> (
    None
):
    rng, differ, tied = np.random.default_rng(5), 0, []
    for problem in _problems(rng, 100):
        path = icl.simulate(**problem, method="exact", max_steps=300)
        step = int(rng.integers(1, path.t[-1] + 1))
        before, loss = (float(path.at(t).loss) for t in (step - 1, step))
        tied.append(problem | {"epsilon": loss})
        exact, run = (
            icl.simulate(**tied[-1], method=method) for method in ("exact", "closed")
        )
        assert run.error >= 1.0
        assert abs(run.steps - exact.steps) <= run.error
        differ += run.steps != exact.steps
        between = icl.simulate(
            **problem | {"epsilon": np.sqrt(before * loss)}, method="closed"
        )
        if before > loss * (1.0 + 1e-6):
            assert (between.steps, between.error < 1e-3) == (step, True)
    assert differ >= 5
    P = {name: np.array([problem[name] for problem in tied]) for name in tied[0]}
    gamma = 0.5 * (P["L"] * P["delta"]) ** 2
    counter = StepCounter(P["K"], P["eta"] * gamma * P["K"] / (P["K"] - 1.0) ** 2)
    assert (
        closed_runs(counter, gamma, P["epsilon"], LIMIT, np.full(100, 0.1)).error >= 1.0
    ).all()


def test_the_error_column_of_a_sweep_says_where_the_target_is_the_loss_of_a_step() -> (
    None
):
    path = icl.simulate(2.0, 1.0, 1.0, K=3, epsilon=1e-3, method="exact")
    losses = [float(path.at(t).loss) for t in range(1, 60)]
    found = icl.sweep(epsilon=losses, L=2.0, delta=1.0, eta=1.0, K=3)
    assert (found.method == "closed").all()
    off = np.abs(found.steps.values.ravel() - np.arange(1, 60))
    assert 0 < np.count_nonzero(off) < 59
    assert (found.error.values.ravel() >= np.maximum(off, 1)).all()


def test_where_steps_are_lost_in_rounding_the_error_counts_them_all() -> None:
    """One long step ends where many of the next ones together do not move u in float64."""
    mp, rng, far = pytest.importorskip("mpmath").mp.clone(), np.random.default_rng(6), 0
    mp.dps = 40
    for _ in range(60):
        K, c = int(rng.integers(2, 40)), 10.0 ** rng.uniform(1.0, 2.8)
        counter, gamma, u, losses = StepCounter(K, c), 1.0, mp.mpf(0), []
        for _step in range(100):
            w = (K - 1) * mp.exp(-u)
            losses.append(gamma * K / (K - 1) * (w / (1 + w)) ** 2 / 2)
            u += mp.mpf(c) * w**2 / (1 + w) ** 3
        longest = int(np.argmax([losses[t - 1] / losses[t] for t in range(1, 20)]))
        step = longest + int(rng.integers(1, 20))
        epsilon = float(losses[step])
        true = next(
            (t for t, loss in enumerate(losses) if loss <= epsilon), len(losses)
        )
        found = closed_runs(
            counter, np.array([gamma]), np.array([epsilon]), 2**62, np.array([0.1])
        )
        assert found.error[0] >= max(1, abs(true - int(found.hit[0])))
        far += abs(true - int(found.hit[0])) > 1
    assert far >= 3
    run = icl.simulate(
        0.0911444180352321,
        5.661261507243687,
        102470.16841286594,
        K=22,
        epsilon=1.0167549615434345e-23,
    )
    assert (
        abs(run.steps - 91_044) <= run.error <= 2e6
    )  # 91,044 by iteration with 60 digits
