from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.papers.regression import theorems
from icl_theory.papers.regression.statements import lemmas
from icl_theory.papers.regression.theorems import orderwise
from icl_theory.papers.regression.theorems.orderwise import (
    INNER,
    STATEMENTS,
    WHOLE,
    OrderStatement,
    Survey,
    counted_runs,
    draw,
    fitted_constants,
    law_runs,
    measured_ratios,
)
from icl_theory.regression.closed.runs import CountedRuns
from tests.references import iterate_gap


def statement(name: str) -> OrderStatement:
    return next(one for one in STATEMENTS if one.name == name)


def one_run(
    K: int, c: float, drop: float, product: float = 0.5, imbalance: float = 0.1
) -> CountedRuns:
    """A run with step constant c whose target is ``drop`` times the first loss."""
    gamma = 0.5 * (product / imbalance) ** 2
    values = (
        product / imbalance,
        c * (K - 1) ** 2 / (K * gamma),
        K,
        drop * 0.5 * gamma * (K - 1) / K,
        imbalance,
    )
    return counted_runs(*(np.array([float(value)]) for value in values))


def iterated_rates(K: int, c: float, begin: float, end: float) -> list[float]:
    """Moves of the target score at all steps with a deficit in [end, begin], by plain iteration."""
    moves, before = [], 0.0

    def stop(n: int, u: float) -> bool:
        nonlocal before
        was = (K - 1) / (np.exp(before) + K - 1)
        if n and end < was <= begin:
            moves.append((u - before) * (K - 1) / K)
        before = u
        return bool((K - 1) / (np.exp(u) + K - 1) <= end)

    iterate_gap(K, c, stop)
    return moves


@pytest.mark.parametrize(("K", "c"), [(3, 0.02), (20, 0.1), (300, 0.5)])
def test_rates_over_phase_one_are_those_of_plain_iteration(K: int, c: float) -> None:
    runs, moves = one_run(K, c, 1e-4), iterated_rates(K, c, 1.0, 0.5)
    low, high = measured_ratios(statement("Phase I growth"), runs)
    scale = float(runs.eta[0] * runs.size[0] ** 2 / K**2)
    assert float(low[0]) == pytest.approx(min(moves) / scale, rel=0.01)
    assert float(high[0]) == pytest.approx(max(moves) / scale, rel=0.01)


def test_rates_over_phase_three_are_those_of_plain_iteration() -> None:
    K, c, drop = 20, 0.2, 1e-3
    runs = one_run(K, c, drop, product=5.0)
    moves = iterated_rates(K, c, 0.5, (drop**0.5) * (1 - 1 / K))
    low, high = measured_ratios(statement("Phase III growth"), runs)
    scale = float(runs.eta[0] * runs.epsilon[0] / K)
    assert float(low[0]) == pytest.approx(min(moves) / scale, rel=0.01)
    assert float(high[0]) == pytest.approx(max(moves) / scale, rel=0.01)


def test_growth_in_phase_one_is_bounded_below_by_a_quarter_and_rises_with_the_number_of_features() -> (
    None
):
    """½K² a s²/(K-1) between a = 1/K and ½: at least ¼, 2K²/(27(K-1)) at a = 1/3."""
    for K in (3, 20, 1000, 10_000):
        low, high = measured_ratios(statement("Phase I growth"), one_run(K, 1e-3, 1e-4))
        assert 0.25 < float(low[0]) < 0.501
        assert float(high[0]) == pytest.approx(2 * K**2 / (27 * (K - 1)), rel=0.02)


def test_the_law_is_drawn_in_its_ranges_and_always_the_same() -> None:
    runs = law_runs()
    assert (runs.K.min(), runs.K.max() > 5000) == (2, True)
    product = runs.size * runs.imbalance
    assert ((product[::2] <= 1) & (product[1::2] >= 1)).all()
    assert (draw(WHOLE, 0).eta == runs.eta).all()
    assert (draw(INNER, 1).K <= 30).all()


def test_step_counts_of_the_law_are_those_of_simulate() -> None:
    runs = law_runs()
    for i in range(0, 400, 40):
        values = (float(x[i]) for x in (runs.size, runs.eta, runs.K, runs.epsilon))
        size, eta, K, epsilon = values
        run = icl.simulate(size, 1.0, eta, K=int(K), epsilon=epsilon)
        assert run.phases is not None
        assert (run.steps, run.phases.I[1]) == (runs.steps[i], runs.attends[i])


@pytest.mark.parametrize(
    "arguments",
    [
        {"L": 1.0, "eta": 10.0, "K": 2, "epsilon": 1e-2},
        {"L": 6.4, "eta": 5e-4, "K": 2, "epsilon": 1.0, "imbalance": 0.2},
    ],
    ids=["no step in Phase I", "two features"],
)
def test_two_features_violate_no_order_of_magnitude(arguments: dict[str, Any]) -> None:
    assert all(
        check.holds is not False
        for check in icl.check_bounds(icl.simulate(delta=1.0, **arguments))
    )


def test_a_run_to_an_excess_is_checked_as_one_to_a_loss() -> None:
    """For N = inf the floor is zero, and both are the same target."""
    given: dict[str, Any] = {"L": 2.0, "delta": 1.0, "eta": "auto", "imbalance": 0.9}
    excess, loss = (
        icl.check_bounds(icl.simulate(**given, **{goal: 1e-6}))
        for goal in ("above", "epsilon")
    )
    assert [*excess] == [*loss]
    assert any(check.name == "Theorem 2" and check.holds for check in excess)


def test_a_step_over_the_phase_leaves_nothing_to_measure() -> None:
    run = icl.simulate(2.0, 1.0, 300.0, K=20, epsilon=1e-6, imbalance=0.1)
    check = next(
        check for check in icl.check_bounds(run) if check.name == "Phase II growth"
    )
    assert check.holds is None
    assert check.note == "no step of the run lies in the phase"


def test_fitted_constants_stay_below_what_is_proved() -> None:
    constants = fitted_constants()
    assert constants["Phase I growth"].lowest > 0.25
    assert constants["Phase I growth"].highest < 2 * 30**2 / (27 * 29)
    assert constants["Theorem 2"].highest < 7 / 16
    assert constants["Phase III growth"].lowest > 1


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("Phase I duration", lambda runs: runs.K**-0.5),
        ("Phase I growth", lambda runs: runs.K),
        ("Phase II growth", lambda runs: runs.imbalance**-0.5),
        ("Phase III growth", lambda runs: runs.K**0.5),
        ("Theorem 2", lambda runs: runs.K**-0.5),
        ("Theorem 2", lambda runs: runs.epsilon / runs.size**2),
    ],
)
def test_a_wrong_power_turns_the_verdict(
    name: str, factor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = lemmas.verdict(statement(name), orderwise.survey(statement(name)))
    planted = replace(
        statement(name), scale=lambda runs: statement(name).scale(runs) * factor(runs)
    )
    ratios = measured_ratios(planted, draw(INNER, 1))
    constants = orderwise.Constants(
        float(np.nanmin(ratios.low)), float(np.nanmax(ratios.high))
    )
    monkeypatch.setattr(orderwise, "fitted_constants", lambda: {name: constants})
    assert before.startswith("holds")
    assert lemmas.verdict(planted, orderwise.survey(planted)).startswith(
        ("fails: counterexample", "holds only as an")
    )


@dataclass
class Case:
    low: float
    high: float
    words: str


@pytest.mark.parametrize(
    "case",
    [
        Case(0.3, 2.0, "holds"),
        Case(0.3, 50.0, "holds only as a lower bound: the ratio rises to 50 at there"),
        Case(
            0.01, 2.0, "holds only as an upper bound: the ratio falls to 0.01 at here"
        ),
        Case(0.01, 50.0, "fails: counterexample here (ratio 0.01)"),
    ],
)
def test_the_verdict_is_made_from_the_ratios(case: Case) -> None:
    found = Survey(9, case.low, case.high, 1.0, {}, {}, ("here", "there"))
    assert lemmas.verdict(statement("Phase I growth"), found) == case.words


def largest_growth(K: float, low: float, high: float) -> float:
    """Largest ½ a (1 - a)²/(K-1), the growth of the own score over L²Δ², for attention between two values."""
    a = np.linspace(low, high, 20_001)
    return float(np.max(0.5 * a * (1.0 - a) ** 2 / (K - 1.0)))


@pytest.mark.parametrize("K", [10, 100, 1000, 10_000])
def test_the_rate_of_the_start_fails_later_in_phase_one_by_the_formula_of_the_growth(
    K: int,
) -> None:
    limit = statement("Phase I growth").rises
    assert limit is not None
    place = limit.values.index(K)
    _, largest = orderwise.extremes_along(statement("Phase I growth"), limit)[place]
    assert largest == pytest.approx(K**2 * largest_growth(K, 1 / K, 0.5), rel=0.05)
    _, others = orderwise.extremes_along(statement("Phase I cross terms"), limit)[place]
    assert others == pytest.approx(largest * K / (K - 1), rel=0.02)


@pytest.mark.parametrize("name", ["Phase II growth", "Phase II growth to ε"])
def test_the_rate_of_the_end_fails_at_the_start_of_phase_two_by_the_formula_of_the_growth(
    name: str,
) -> None:
    limit = statement(name).rises
    assert limit is not None
    for imbalance, (_, largest) in zip(
        limit.values, orderwise.extremes_along(statement(name), limit), strict=True
    ):
        # K = 2 has the largest ratio of all runs: K/(K-1) = 2
        assert largest == pytest.approx(
            2 * largest_growth(2, 0.5, 1 - imbalance) / imbalance**2, rel=0.05
        )


def test_the_rate_of_the_end_fails_at_the_start_of_phase_three_by_the_formula_of_the_growth() -> (
    None
):
    limit = statement("Phase III growth").rises
    assert limit is not None
    found = orderwise.extremes_along(statement("Phase III growth"), limit)
    for share, (_, largest) in zip(limit.values, found, strict=True):
        assert largest == pytest.approx(
            2 * largest_growth(2, 0.5, 1.0) / share, rel=0.05
        )


@pytest.mark.parametrize("share", [0.1, 1e-2, 1e-3])
def test_the_bound_of_theorem_1_is_compared_with_steps_counted_one_by_one(
    share: float,
) -> None:
    """At ε = share (LΔδ)², for one run of the law: steps after Phase I over the order of the theorem."""
    limit = statement("Theorem 1").rises
    assert limit is not None
    K, product, imbalance = 20, 0.5, 0.2
    runs = limit.at(one_run(K, 0.3, 1e-3, product, imbalance), share)
    assert float(runs.epsilon[0]) == pytest.approx(share * product**2)
    size, eta = float(runs.size[0]), float(runs.eta[0])
    deficit = np.sqrt(4.0 * share * (K - 1) / K) * imbalance  # ε = L²Δ²s²K/(4(K-1))
    attended: list[int] = []

    def stop(n: int, u: float) -> bool:
        missed = (K - 1) / (np.exp(u) + K - 1)
        if missed <= 0.5 and not attended:
            attended.append(n)
        return bool(missed <= deficit)

    steps, _ = iterate_gap(K, 0.3, stop)
    assert int(runs.steps[0]) == steps
    order = K * np.log(K * size / np.sqrt(share * product**2)) / (eta * product**2)
    high = measured_ratios(statement("Theorem 1"), runs).high
    assert float(high[0]) == pytest.approx((steps - attended[0] - 1) / order)


def test_other_features_and_another_imbalance_leave_the_rest_of_a_run_alone() -> None:
    run = one_run(7, 0.4, 1e-3, 0.3, 0.05)
    first = run.size**2 * (run.K - 1) / run.K
    for name, value in (("Phase I growth", 50.0), ("Phase II growth", 0.01)):
        limit = statement(name).rises
        assert limit is not None
        turned = limit.at(run, value)
        assert (
            float(getattr(turned, "K" if limit.quantity == "K" else "imbalance")[0])
            == value
        )
        assert turned.counter.c == pytest.approx(run.counter.c)
        assert turned.size * turned.imbalance == pytest.approx(run.size * run.imbalance)
        share = turned.epsilon / (turned.size**2 * (turned.K - 1) / turned.K)
        assert share == pytest.approx(run.epsilon / first)


@pytest.mark.parametrize(
    ("name", "low", "high", "rising", "falling", "words"),
    [
        (
            "Theorem 1",
            1.0,
            1e3,
            (0.78, 4.7, 34.0, 279.0),
            (),
            "fails for ε ≪ (LΔδ)²: the largest ratio is 0.78 at",
        ),
        (
            "Theorem 1",
            1.0,
            1e3,
            (0.78, 4.7, 4.6, 279.0),
            (),
            "fails: counterexample there",
        ),
        ("Theorem 1", 1.0, 2.0, (0.78, 4.7, 34.0, 279.0), (), "holds"),
        (
            "Phase I growth",
            0.3,
            50.0,
            (1.0, 2.0, 3.0, 4.0),
            (),
            "holds only as a lower bound; the upper one fails",
        ),
        (
            "Phase I growth",
            0.3,
            50.0,
            (1.0, 2.0, 2.0, 4.0),
            (),
            "holds only as a lower bound: the ratio rises to 50",
        ),
        (
            "Phase II growth to ε",
            1e-6,
            1e4,
            (1, 2, 3, 4),
            (4, 3, 2, 1),
            "fails for ε ≪ (LΔδ)²: the least",
        ),
        (
            "Phase II growth to ε",
            1e-6,
            1e4,
            (1, 2, 3, 4),
            (4, 3, 3, 1),
            "fails: counterexample here",
        ),
        (
            "Phase II growth to ε",
            1e-6,
            10.0,
            (),
            (4, 3, 2, 1),
            "holds only as an upper bound; the lower one fails",
        ),
    ],
)
def test_the_limit_in_which_an_order_breaks_is_named_only_if_every_ratio_moves_that_way(
    name: str,
    low: float,
    high: float,
    rising: tuple[float, ...],
    falling: tuple[float, ...],
    words: str,
) -> None:
    found = Survey(9, low, high, 1.0, {}, {}, ("here", "there"), rising, falling)
    assert lemmas.verdict(statement(name), found).startswith(words)


def test_cross_terms_are_compared_with_the_growth_by_sums_over_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sum that is off by a millionth turns the row."""
    row = lemmas.ORDERS["Phase III cross terms"]
    assert "|β_mk|(K-1)/α_k off 1 by 1e-1" in row(True).measured
    assert row(True).verdict.endswith("against the growth it holds: |β_mk| = α_k/(K-1)")
    right = theorems.direct

    def wrong(risk: Any, scores: Any) -> Any:
        found = right(risk, scores)
        slope = found.slope.copy()
        slope[1, 0] *= 1.0 + 1e-6
        return found._replace(slope=slope)

    monkeypatch.setattr(theorems, "direct", wrong)
    assert "|β_mk|(K-1)/α_k off 1 by 1e-5" in row(True).measured
    assert row(True).verdict == "fails: see the column 'measured'"


@pytest.mark.parametrize("power", [0.5, -1.0])
def test_the_drift_of_ratios_is_a_factor_for_each_decade(power: float) -> None:
    """Ratios that are a power of one parameter, less one half of it at their lower ends."""

    def measure(runs: Any) -> Any:
        return runs.imbalance ** (0.5 * power), runs.K**power

    statement = OrderStatement(
        "x", "y", "z", False, measure, lambda runs: np.ones(runs.K.size)
    )
    found = orderwise.survey(statement)
    expected = dict.fromkeys(found.rise, 1.0)
    assert found.rise == pytest.approx(expected | {"K": 10.0**power}, rel=1e-9)
    assert found.fall == pytest.approx(
        expected | {"δ": 10.0 ** (0.5 * power)}, rel=1e-9
    )
