"""Every number that a run, a sweep or a formula of in-context regression gives, computed a second time.

The references iterate u <- u + c a s² and integrate the flow with mpmath; they share no
formula with the package.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import mpmath
import numpy as np
import pytest

import icl_theory as icl
from icl_theory import regression
from tests.references import compositions, slopes

L, DELTA, ETA, K, IMBALANCE = 1.5, 0.8, 3.0, 8, 0.3


@functools.cache
def flow_time(K: int, deficit: float) -> Any:
    """∫ du / (a s²) from the start to an attention deficit, 1/(a² s³) da."""
    with mpmath.workdps(30):
        return mpmath.quad(
            lambda a: 1 / (a * a * (1 - a) ** 3),
            mpmath.linspace(mpmath.mpf(1) / K, 1 - deficit, 6),
        )


class Reference(NamedTuple):
    """A run by plain iteration: its steps, u, attention and loss at all of them."""

    c: float
    u: list[float]
    a: list[float]
    loss: list[float]

    @property
    def last(self) -> int:
        return len(self.u) - 1

    def first(self, attention: float) -> int:
        return next(n for n, a in enumerate(self.a) if a >= attention)


@functools.cache
def iterated(L: float, delta: float, K: int, eta: float, epsilon: float) -> Reference:
    """Scores u on the diagonal, 0 elsewhere; γ = L²Δ²/2 and the loss ½γ s² K/(K-1)."""
    gamma = L * L * delta * delta / 2.0
    c = eta * gamma * K / (K - 1.0) ** 2
    found = Reference(c, [], [], [])
    u = 0.0
    while True:
        w = (K - 1) * math.exp(-u)
        a, s = 1.0 / (1.0 + w), w / (1.0 + w)
        for values, value in zip(
            found[1:], (u, a, 0.5 * gamma * s * s * K / (K - 1.0)), strict=True
        ):
            values.append(value)
        if found.loss[-1] <= epsilon:
            return found
        u += c * a * s * s


def tail_deficit(K: int, square: bool) -> float:
    """The smaller s with s² Φ(s) = 1, or with a² s² Φ(s) = 1."""
    low, high = 1e-3, (1.0 / 3.0 if square else 0.5)
    for _ in range(60):
        s = 0.5 * (low + high)
        below = (1.0 - s if square else 1.0) ** 2 * s * s * float(
            flow_time_fast(K, s)
        ) < 1.0
        low, high = (s, high) if below else (low, s)
    return s


def flow_time_fast(K: int, s: float) -> float:
    """The same integral by partial fractions: 1/(a² (1-a)³) = 3/a + 1/a² + 3/(1-a) + 2/(1-a)² + 1/(1-a)³."""

    def primitive(a: float) -> float:
        return 3 * math.log(a / (1 - a)) - 1 / a + 2 / (1 - a) + 0.5 / (1 - a) ** 2

    return primitive(1.0 - s) - primitive(1.0 / K)


def test_the_reference_is_the_integral() -> None:
    for s in (0.4, 0.05, 1e-3):
        assert flow_time_fast(8, s) == pytest.approx(float(flow_time(8, s)), rel=1e-12)
        assert regression.flow_time(1.0 - s, 8) == pytest.approx(
            float(flow_time(8, s)), rel=1e-11
        )


@pytest.mark.parametrize("K", [7, 20, 300])
def test_crossovers_are_where_their_equations_hold(K: int) -> None:
    """The loss ½γ s² K/(K-1) is ε at the deficit s: L Δ = √(4ε(K-1)/K)/s."""
    for number, square in (
        (regression.crossover(1e-3, 2.0, K), False),
        (regression.half_way(1e-3, 2.0, K), True),
    ):
        s = math.sqrt(4e-3 * (K - 1) / K) / (2.0 * number)
        a = 1.0 - s if square else 1.0
        assert (a * s) ** 2 * flow_time_fast(K, s) == pytest.approx(1.0, rel=1e-9)
    assert regression.tail_start(K) ** 2 * flow_time_fast(
        K, regression.tail_start(K)
    ) == pytest.approx(1.0, rel=1e-9)
    leading = regression.crossover(1e-3, 2.0, K, leading_order=True)
    # K²/(ηγ) and (K-1)/(4ηε) are equal there, γ = L²Δ²/2
    assert K * K / (leading * 2.0) ** 2 * 2 == pytest.approx((K - 1) / 4e-3, rel=1e-12)


@pytest.mark.parametrize("defaults", [{}, {"K": 20}])
def test_twenty_features_are_the_default(defaults: dict[str, int]) -> None:
    for function in (regression.crossover, regression.half_way):
        assert function(1e-3, 1.0) == function(1e-3, 1.0, 20)
    assert icl.simulate(2.0, 1.0, 4.0, **defaults).risk.K == 20  # type: ignore[arg-type, union-attr]


@pytest.mark.parametrize(
    ("L", "flat"),
    [(1.0 / (0.8 * 0.3) * (1 - 1e-12), True), (1.0 / (0.8 * 0.3) * 1.001, False)],
)
def test_the_papers_rule_compares_l_with_the_imbalance(L: float, flat: bool) -> None:
    assert (regression.papers_regime(L, 0.8, 0.3) == "flat") is flat


def test_the_curvature_constant_is_the_largest_value_of_its_polynomial() -> None:
    t = np.linspace(0.0, 1.0, 2_000_001)
    kappa = float(np.max(4 * t**2 * (1 - t) * (2 - 3 * t)))
    assert float(regression.curvature_bound(3.0, 5)) == pytest.approx(
        kappa * 3.0 / 5, rel=1e-10
    )
    noisy = regression.curvature_bound(
        3.0,
        np.array([5.0, 5.0, 2.0]),
        noise=np.array([2.0, 2.0, 0.5]),
        N=np.array([math.inf, 7, 1]),
    )
    np.testing.assert_allclose(
        noisy, kappa * np.array([3.0 / 5, 7.0 / 5, 3.25 / 2]), rtol=1e-10
    )
    rates = regression.stable_rate(
        3.0, 5.0, noise=2.0, N=9, speed=np.array([1.0, 0.25])
    )
    np.testing.assert_allclose(
        rates, np.array([1.0, 4.0]) * 5 / (kappa * 7.0), rtol=1e-10
    )


@pytest.mark.parametrize(
    ("K", "c", "u"),
    [(8, 0.3, 5.0), (8, 0.3, 0.5), (50, 2.0, 9.0), (3, 1e-3, 0.2), (2, 0.4, 6.0)],
)
def test_certified_bounds_are_the_stated_ones(K: int, c: float, u: float) -> None:
    def at(u: float) -> tuple[float, float]:
        w = (K - 1) * math.exp(-u)
        return w / (1 + w), w * w / (1 + w) ** 3  # s, and g = a s²

    def between(first: float, last: float) -> float:
        return (flow_time_fast(K, at(last)[0]) - flow_time_fast(K, at(first)[0])) / c

    peak = max(0.0, math.log((K - 1) / 2.0))
    g_p, g_0, g = at(peak)[1], at(0.0)[1], at(u)[1]
    if u <= peak:
        wanted = between(0.0, u), between(0.0, u) + math.log(g / g_0)
    else:
        R = math.exp(2 * c * 4 / 27)
        beyond = peak + c * g_p if peak else 0.0
        low = between(0.0, peak) + max(
            0.0, between(beyond, u) - (R - 1) / math.log(R) * math.log(g_p / g)
        )
        wanted = low, between(0.0, u) + (math.log(g_p / g_0) + 1 if peak else 0.0)
    assert regression.step_bounds(K, c, u) == pytest.approx(wanted, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("K", "c"), [(3, 0.5), (40, 0.02)])
def test_bounds_with_constants_are_the_stated_ones(K: int, c: float) -> None:
    gamma_eta = c * (K - 1) ** 2 / K
    wanted = (
        flow_time_fast(K, 2.0 / 3.0) / c,
        1.5 * K * K / gamma_eta + math.log(K / 3) + 2,
    )
    assert regression.phase_one_bounds(K, c) == pytest.approx(wanted, rel=1e-12)
    assert regression.phase_one_bounds(2, c) == (0.0, 0.0)
    assert regression.after_phase_one(K, 0.3, 2e-3) == pytest.approx(
        7 / 16 * (K - 1) / (0.3 * 2e-3) + 1, rel=1e-14
    )
    first, last = math.sqrt(2 * 0.3 / 4.0), math.sqrt(2 * 2e-3 / 4.0)
    time = 4 / (4.0 * 0.07) * (flow_time_fast(2, last) - flow_time_fast(2, first))
    wanted_steps = time + 2 * math.log((1 - last) / (1 - first))
    assert regression.tail_steps(0.3, 2e-3, 4.0, 0.07) == pytest.approx(
        wanted_steps, rel=1e-12
    )


def test_progress_of_a_step_is_certified_for_every_feature() -> None:
    p = np.array([0.5, 0.3, 0.2])
    risk = icl.PopulationRisk(
        icl.Features.simplex(3, 1.0, p), icl.tasks.Exchangeable(2.0)
    )
    bend = 0.3081171402 * p * 2.0
    wanted = (1 - 0.5 * 0.9 * bend) * 4 * 0.9 * p * 3 / 2
    np.testing.assert_allclose(regression.step_rate(risk, 0.9), wanted, rtol=1e-9)


# ---- what a run and a sweep say of it


def columns_of(run: icl.Trajectory) -> dict[str, Any]:
    assert run.family is not None
    return run.family.measured(run)


@pytest.mark.parametrize("epsilon", [0.06, 2e-5])
@pytest.mark.parametrize("made", ["simulated", "swept"])
def test_columns_of_an_exchangeable_run_are_those_of_the_iteration(
    epsilon: float, made: str
) -> None:
    arguments: dict[str, Any] = {
        "L": L,
        "delta": DELTA,
        "eta": ETA,
        "K": K,
        "epsilon": epsilon,
        "imbalance": IMBALANCE,
    }
    ref = iterated(L, DELTA, K, ETA, epsilon)
    if made == "simulated":
        run = icl.simulate(**arguments)
        found = columns_of(run)
        assert run.steps == ref.last
        lengths = [end - begin for begin, end in run.phases.present().values()]
    else:
        data = icl.sweep(**{**arguments, "L": [L]}, progress=False)
        found = {name: data[name].values.ravel()[0] for name in data.data_vars}
        assert found["steps"] == found["last"] == ref.last
        assert found["loss"] == pytest.approx(ref.loss[-1], rel=1e-9)
        assert found["eta_used"] == ETA
        lengths = [n for n in (found["T_I"], found["T_II"], found["T_III"]) if n]
    first, tail = ref.first(0.5), tail_deficit(K, False)
    second = ref.first(1.0 - tail) if ref.a[-1] >= 1.0 - tail else ref.last
    assert lengths == [n for n in (first, second - first, ref.last - second) if n]
    assert found["regime"] == ("sharp" if second < ref.last else "flat")
    assert (epsilon < 1e-3) == (found["regime"] == "sharp")
    assert found["attention"] == pytest.approx(ref.a[-1], rel=1e-9)
    limit = (K - 1) / (4 * ETA)
    assert found["tail_constant"] == pytest.approx(limit, rel=1e-12)
    assert found["tail_ratio"] == pytest.approx(
        ref.last * ref.loss[-1] / limit, rel=1e-8
    )
    gamma = L * L * DELTA * DELTA / 2
    assert found["predicted_steps"] == pytest.approx(
        K * K / (ETA * gamma) + (K - 1) / (4 * ETA * epsilon), rel=1e-12
    )
    size = math.sqrt(4 * epsilon * (K - 1) / K) / DELTA
    assert found["L_star"] == pytest.approx(size / tail, rel=1e-9)
    assert found["L_half"] == pytest.approx(size / tail_deficit(K, True), rel=1e-9)
    assert found["L_star_leading"] == pytest.approx(
        math.sqrt(8 * epsilon * K * K / (K - 1)) / DELTA, rel=1e-12
    )
    low, high = regression.step_bounds(K, ref.c, ref.u[-1])
    assert (found["steps_low"], found["steps_high"]) == pytest.approx(
        (low, high), rel=1e-7
    )
    assert found["certified"] == 1
    # L < 1/(Δδ): the first theorem is stated, the second is not
    log = math.log(K * L * DELTA / math.sqrt(epsilon))
    constant = icl.papers.regression.fitted_constants()["Theorem 1"].highest
    bound = constant * log * K / (ETA * (L * DELTA * IMBALANCE) ** 2)
    assert found["theorem_1_bound"] == pytest.approx(bound, rel=1e-10)
    assert found["theorem_1"] == (ref.last - first - 1 <= 2 * bound)
    assert not np.isfinite(found.get("theorem_2_bound", math.nan))


def test_the_second_theorem_is_stated_for_large_l() -> None:
    arguments: dict[str, Any] = {
        "L": 9.0,
        "delta": DELTA,
        "eta": 0.5,
        "K": K,
        "epsilon": 1e-2,
        "imbalance": IMBALANCE,
    }
    ref = iterated(9.0, DELTA, K, 0.5, 1e-2)
    bound = (
        K
        * math.log(K * 9.0 * DELTA / 0.1)
        / (0.5 * 1e-2)
        * icl.papers.regression.fitted_constants()["Theorem 2"].highest
    )
    swept = icl.sweep(**{**arguments, "L": [9.0]}, progress=False)
    for found in (
        columns_of(icl.simulate(**arguments)),
        {n: swept[n].values.ravel()[0] for n in swept.data_vars},
    ):
        assert found["theorem_2_bound"] == pytest.approx(bound, rel=1e-10)
        assert found["theorem_2"] == (ref.last - ref.first(0.5) - 1 <= 2 * bound)
        assert not np.isfinite(found.get("theorem_1_bound", math.nan))


@pytest.mark.parametrize("epsilon", [0.06, 2e-5])
def test_checks_of_an_exchangeable_run_have_the_numbers_of_the_iteration(
    epsilon: float,
) -> None:
    """What is measured and what it is held against, statement by statement."""
    run = icl.simulate(L, DELTA, ETA, K=K, epsilon=epsilon, imbalance=IMBALANCE)
    ref, checks = (
        iterated(L, DELTA, K, ETA, epsilon),
        {check.name: check for check in icl.check_bounds(run)},
    )
    gamma, first, n = L * L * DELTA * DELTA / 2, ref.first(0.5), ref.last
    s, loss = 1.0 - ref.a[-1], ref.loss[-1]
    c_k = gamma * K / (K - 1)
    wanted: dict[str, tuple[float, Any]] = {
        "Lemma 1, identity": (loss, loss),
        "Lemma 1, envelope": (c_k, (c_k, 2 * gamma)),
        "Prop. 1, attention": (s, s),
        "Prop. 1, prediction": (L * DELTA * s, L * DELTA * s),
        "step count": (n, regression.step_bounds(K, ref.c, ref.u[-1])),
        "Phase I, explicit": (first, regression.phase_one_bounds(K, ref.c)),
        "Theorem 2, explicit": (n - first, 7 / 16 * (K - 1) / (ETA * epsilon) + 1),
    }
    if epsilon >= gamma * IMBALANCE**2 / 2:
        wanted["Theorem 1, explicit"] = (
            n - first,
            7 / 8 * (K - 1) / (ETA * gamma * IMBALANCE**2) + 1,
        )
    else:
        assert checks["Theorem 1, explicit"].holds is None
        wanted["tail law"] = (n * loss * 4 * ETA / (K - 1), 1.0)
    for name, (measured, bound) in wanted.items():
        check = checks[name]
        assert check.holds is True, name
        assert check.measured == pytest.approx(measured, rel=1e-7), name
        assert check.bound == pytest.approx(bound, rel=1e-7), name
    growth = checks["Lemma 2, identity"]
    # the loss falls along the scores like dL/du over their change per unit of u,
    # √((K-1))
    slope = (run.risk.loss(ref.u[-1] + 1e-5) - run.risk.loss(ref.u[-1] - 1e-5)) / 2e-5  # type: ignore[union-attr]
    assert growth.measured == pytest.approx(-slope / math.sqrt(K - 1), rel=1e-5)


@pytest.mark.parametrize(
    ("size", "epsilon"), [(1.2, 0.02), (1.2, 1e-4), (7.0, 0.5), (7.0, 2e-2)]
)
def test_orders_of_magnitude_are_measured_on_the_steps_of_the_iteration(
    size: float, epsilon: float
) -> None:
    imbalance = 0.3
    eta = 0.02 * 49 / (8 * size**2 / 2)
    run = icl.simulate(size, 1.0, eta, K=8, epsilon=epsilon, imbalance=imbalance)
    ref, constants = (
        iterated(size, 1.0, 8, eta, epsilon),
        icl.papers.regression.fitted_constants(),
    )
    checks = {
        check.name: check
        for check in icl.check_bounds(run)
        if check.kind == "order-wise"
    }
    moves = np.diff(ref.u) * 7 / 8  # of the target score, S_kk = u (K-1)/K
    first, flat = ref.first(0.5), size * imbalance <= 1.0
    order, log = eta * size**2, math.log(8 * size / math.sqrt(epsilon))
    until = next((n for n, a in enumerate(ref.a) if a >= 1 - imbalance), ref.last)
    early, late, middle = (
        moves[:first],
        moves[first:],
        moves[first : max(until, first + 1)],
    )
    wanted: dict[str, tuple[Any, float]] = {
        "Phase I growth": (early, order / 64),
        "Phase I cross terms": (early / 7, order / 512),
        "Phase I duration": (np.array([first - 1.0]), math.log(8) * 64 / order),
    }
    if flat:
        unit = order * imbalance**2
        wanted |= {
            "Phase II growth": (middle, unit / 8),
            "Phase II growth to ε": (late, unit / 8),
            "Phase II cross terms": (middle / 7, unit / 64),
            "Theorem 1": (np.array([ref.last - first - 1.0]), 8 * log / unit),
        }
    else:
        wanted |= {
            "Phase III growth": (late, eta * epsilon / 8),
            "Phase III cross terms": (late / 7, eta * epsilon / 64),
            "Theorem 2": (
                np.array([ref.last - first - 1.0]),
                8 * log / (eta * epsilon),
            ),
        }
    assert {name for name, check in checks.items() if check.holds is not None} == set(
        wanted
    )
    for name, (values, scale) in wanted.items():
        check, fitted = checks[name], constants[name]
        if isinstance(check.bound, tuple):
            assert check.bound == pytest.approx(
                (scale * fitted.lowest, scale * fitted.highest), rel=1e-9
            ), name
            over, under = (
                values.max() / scale / fitted.highest,
                fitted.lowest * scale / values.min(),
            )
            assert check.measured == pytest.approx(
                values.max() if over > under else values.min(), rel=0.02
            ), name
            assert check.holds == (over <= 2.0 and under <= 2.0), name
        else:
            assert check.bound == pytest.approx(scale * fitted.highest, rel=1e-9), name
            assert check.measured == pytest.approx(values.max(), rel=0.02), name
            assert check.holds == (values.max() <= 2.0 * check.bound), name


@pytest.mark.parametrize(("K", "holds"), [(56, True), (64, False)])
def test_an_order_of_magnitude_holds_up_to_twice_its_constant(
    K: int, holds: bool
) -> None:
    run = icl.simulate(
        1.0, 1.0, 0.1 * (K - 1) ** 2 / K, K=K, epsilon=2.5e-3, imbalance=0.1
    )
    check = next(
        check for check in icl.check_bounds(run) if check.name == "Phase I growth"
    )
    assert isinstance(check.bound, tuple)
    assert check.holds is holds
    assert check.measured is not None
    assert check.measured / check.bound[1] == pytest.approx(
        1.9 if holds else 2.15, abs=0.09
    )
    assert check.slack == pytest.approx(check.bound[1] / check.measured, rel=1e-6)


def test_checks_of_unequal_features_have_the_numbers_of_their_saved_states() -> None:
    """One step from each state, and the steps of each query's tail, with ℓ_k = ½ γ (s² + Σ a_m²) over wrong m."""
    p, eta, gamma = np.array([0.5, 0.3, 0.2]), 2.0, 2.0
    run = icl.simulate(2.0, 1.0, eta, K=3, probs=p, epsilon=1e-4)
    checks = {check.name: check for check in icl.check_bounds(run)}

    def losses(scores: Any) -> tuple[Any, Any]:
        a = p[:, None] * np.exp(scores)
        a /= a.sum(axis=0)
        wrong = a * (1 - np.eye(3))
        return gamma / 2 * (
            wrong.sum(axis=0) ** 2 + (wrong**2).sum(axis=0)
        ), np.diagonal(a)

    rate = (1 - 0.5 * eta * 0.30811714 * p * gamma) * 4 * eta * p * 3 / 2
    growth = []
    for scores in run.states:
        before, own = losses(scores)
        gradient = slopes(lambda S: float(p @ losses(S)[0]), np.array(scores))
        after, _ = losses(scores - eta * gradient)
        seen = np.abs(before - after) > 1e-7 * before
        growth += list(((1 / after - 1 / before) / (rate * own**2))[seen])
    assert checks["one step, any task"].measured == pytest.approx(min(growth), rel=1e-3)
    c = gamma * 3 / 2
    each = np.array([losses(scores)[0] for scores in run.states])
    tails = []
    for k in range(3):
        inside = np.flatnonzero(each[:, k] <= c / 8)
        first, last = each[inside[0], k], each[inside[-1], k]
        bound = regression.tail_steps(float(first), float(last), c, float(rate[k]))
        tails.append((float(run.t[inside[-1]] - run.t[inside[0]]), bound))
    steps, bound = max(tails, key=lambda pair: pair[0] / pair[1])
    check = checks["tail steps, any task"]
    assert (check.measured, check.bound) == pytest.approx((steps, bound), rel=1e-6)
    assert check.slack == pytest.approx(bound / steps, rel=1e-6)
    law = checks["tail law"]  # ηt p_k ℓ_k tends to (K-1)/(4K) for each query
    assert law.measured == pytest.approx(
        float(run.t[-1]) * float(p @ each[-1]) * 4 * eta / 2, rel=1e-9
    )
    assert run.risk is not None
    np.testing.assert_allclose(regression.tail_constant(run.risk), 0.5, rtol=1e-12)
    for k, phases in enumerate(regression.query_phases(run)):
        attends = next(t for t in range(10**4) if run.at(t).attention[k] >= 0.5)
        assert phases.present()["I"] == (0, attends)


@pytest.mark.parametrize("N", [math.inf, 4])
@pytest.mark.parametrize("K", [2, 3, 5])
def test_the_tail_over_orthonormal_embeddings_is_that_of_their_one_number(
    K: int, N: float
) -> None:
    """(K-1)/(4 Δ⁴/4), where all features of a level stay together."""
    delta = 0.7
    features, wanted = (
        icl.Features.orthonormal(K, delta / math.sqrt(2)),
        (K - 1) / delta**4,
    )
    risk = icl.PopulationRisk(features, icl.tasks.Exchangeable(2.0), N)
    whole = icl.in_coordinates(risk, "embedding", features.vectors)
    assert regression.tail_constant(whole) == pytest.approx(wanted, rel=1e-9)
    one = icl.ExchangeableRisk(K, 2.0 * delta**2, N, speed=delta**4 / 4)
    assert regression.tail_constant(one) == pytest.approx(wanted, rel=1e-12)
    scores = icl.PopulationRisk(features, icl.tasks.Exchangeable(2.0), N)
    assert regression.tail_constant(scores) == pytest.approx((K - 1) / 4, rel=1e-9)


@pytest.mark.parametrize("N", [math.inf, 1])
@pytest.mark.parametrize("u", [-30.0, -4.0, -0.5, 0.0, 2.0, 40.0])
def test_one_number_has_the_loss_of_its_attention_on_either_side_of_zero(
    u: float, N: float
) -> None:
    """Also where the scores of the other features are higher; a prompt of one token is read as it is."""
    K, gamma = 6, 1.3
    risk = icl.ExchangeableRisk(K, gamma, N)
    with mpmath.workdps(40):
        s = (K - 1) / (mpmath.exp(mpmath.mpf(u)) + K - 1)
        wanted = float(s * s * K / (K - 1) * gamma / 2)
    if N == 1:
        s, wanted = mpmath.mpf(K - 1) / K, gamma * (K - 1) / K
    assert risk.loss(u) == pytest.approx(wanted, rel=1e-12)
    assert float(risk.observe(np.array(u))["attention"]) == pytest.approx(
        float(1 - s), rel=1e-12
    )
    slope = float(slopes(lambda x: float(risk.loss(x)), np.array(u)))
    assert float(risk.gradient(np.array(u))) == pytest.approx(slope, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("N", [1, 3, 6])
@pytest.mark.parametrize("confidence", [0.05, 0.4, 0.9, 1 - 1e-9])
def test_the_smallest_imbalance_is_the_first_whose_box_is_likely_enough(
    N: int, confidence: float
) -> None:
    """Over all counts of a prompt, sorted by their largest deviation."""
    p = [0.5, 0.3, 0.2]
    each: dict[float, float] = {}
    for counts in compositions(N, 3):
        chance = math.factorial(N) * math.prod(
            q**n / math.factorial(n) for q, n in zip(p, counts, strict=True)
        )
        deviation = max(
            round(abs(n / N - q), 12) for n, q in zip(counts, p, strict=True)
        )
        each[deviation] = each.get(deviation, 0.0) + chance
    total = 0.0
    for deviation in sorted(each):
        total += each[deviation]
        found = icl.papers.regression.concentration_probability(N, p, deviation + 1e-9)
        assert found.value == pytest.approx(total, rel=1e-9)
        if total >= confidence - 1e-12:
            break
    assert icl.papers.regression.smallest_imbalance(N, p, confidence) == pytest.approx(
        deviation, abs=1e-9
    )
