from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import xarray

import icl_theory as icl
from icl_theory.regression import crossover, half_way
from icl_theory.results.numbers import number
from icl_theory.results.transitions import (
    _thinned,
    bars,
    limits_of,
    predicted_transition,
    transition,
    transition_notes,
)

L_LIMITS = (-2.0, 0.0)


def swept(**axes: Any) -> xarray.Dataset:
    return icl.sweep(
        **{
            "L": 1.0,
            "delta": 1.0,
            "eta": 0.01,
            "epsilon": 1e-4,
            "progress": False,
            **axes,
        }
    )


@pytest.fixture(scope="module")
def over_L() -> xarray.Dataset:
    return swept(L=np.geomspace(0.02, 20.0, 61), K=[10, 20, 100], imbalance=0.1)


@pytest.mark.parametrize("K", [10, 20, 100])
def test_measured_transition_is_the_half_way_point_of_gradient_flow(
    over_L: xarray.Dataset, K: int
) -> None:
    row = icl.transition_table(over_L).set_index("K").loc[K]
    expected = half_way(1e-4, 1.0, K)
    assert abs(row["measured"] - expected) < row["error"] < 0.01 * expected
    assert row["predicted"] == pytest.approx(expected, rel=1e-12)
    assert row["exact onset of the tail"] == pytest.approx(
        crossover(1e-4, 1.0, K), rel=1e-12
    )
    leading = crossover(1e-4, 1.0, K, leading_order=True)
    assert row["leading order in K"] == pytest.approx(leading, rel=1e-12)


def test_error_of_a_transition_covers_its_error_on_any_grid() -> None:
    expected = half_way(1e-4, 1.0, 20)
    for count in (11, 16, 25, 40, 80):
        for shift in (1.0, 1.05, 1.1):
            L = shift * np.geomspace(0.02, 20.0, count)
            found = transition(swept(L=L)["steps"].values, L, L_LIMITS)
            assert abs(found.measured - expected) < found.error, (count, shift)


def test_the_error_covers_rounding_and_grids_without_a_second_passage() -> None:
    """Of steps that are small integers, and of so few points that every other one does not pass half-way."""
    for where in np.geomspace(0.5, 2.0, 30):
        x = np.geomspace(0.011, 107.0, 41)
        found = transition(np.round(12.0 * (1.0 + (where / x) ** 2.0)), x, L_LIMITS)
        assert abs(found.measured - where) <= found.error
        few = np.array([0.11, 1.0, 9.0, 110.0])
        found = transition(1e9 * (1.0 + (where / few) ** 2.0), few, L_LIMITS)
        assert abs(found.measured - where) <= found.error


def test_near_values_are_thinned_out_to_the_spacing() -> None:
    kept = _thinned(np.array([0.0, 0.01, 0.02, 0.03, 0.045, 0.1, 0.119, 0.121]))
    assert kept == [0, 2, 4, 5, 7]
    assert _thinned(np.zeros(0)) == []


@pytest.mark.parametrize("count", [60, 2000, 20_000])
def test_jumps_of_single_steps_on_a_fine_grid_are_no_transition(count: int) -> None:
    """Beyond L = 10 the second step, or the first one, may reach the target: thousands of steps become a few."""
    found = swept(L=np.geomspace(0.03, 30.0, count), eta=np.geomspace(0.1, 10.0, 9))
    table = icl.transition_table(found)
    assert (np.abs(table.measured - table.predicted) < 3.0 * table.error).all()
    assert (table.error < 0.005 * table.measured).all()


def test_transition_of_falling_exponents_is_found_too() -> None:
    x = np.geomspace(0.01, 100.0, 41)
    rising, falling = (
        transition(1e9 * (1 + 4.0 / x**2), x, L_LIMITS),
        transition(1e9 * (1 + x), x, (0.0, 1.0)),
    )
    assert abs(falling.measured - 1.0) < falling.error < 0.01
    assert abs(rising.measured - 2.0) < rising.error < 0.01
    found = transition(1e9 * x / (1 + x), x, (1.0, 0.0))
    assert abs(found.measured - 1.0) < found.error < 0.01
    assert math.isnan(transition(1e9 * x / (1 + x), x, (0.0, 1.0)).measured)


def test_transition_over_other_parameters_is_where_L_is_critical() -> None:
    gap = swept(delta=np.geomspace(0.02, 20.0, 61))
    [row] = icl.transition_table(gap).to_dict("records")
    assert abs(row["measured"] - half_way(1e-4, 1.0, 20)) < row["error"]
    assert row["predicted"] == pytest.approx(half_way(1e-4, 1.0, 20))
    assert row["exact onset of the tail"] == pytest.approx(crossover(1e-4, 1.0, 20))
    target = swept(epsilon=np.geomspace(1e-6, 1e-1, 41))
    [row] = icl.transition_table(target, over="epsilon").to_dict("records")
    assert crossover(row["exact onset of the tail"], 1.0, 20) == pytest.approx(1.0)
    assert half_way(row["predicted"], 1.0, 20) == pytest.approx(1.0)
    assert abs(row["measured"] - row["predicted"]) < row["error"]
    features = swept(L=0.5, K=np.unique(np.round(np.geomspace(10, 5000, 60))))
    [row] = icl.transition_table(features, over="K").to_dict("records")
    assert crossover(1e-4, 1.0, round(row["exact onset of the tail"])) == pytest.approx(
        0.5, rel=0.01
    )
    with pytest.raises(
        ValueError,
        match=r"over = 'eta': must be a swept parameter whose exponent has two limits",
    ):
        icl.transition_table(swept(eta=[0.1, 0.2]))


def test_the_half_way_point_of_one_exponent_is_no_prediction_of_that_of_another() -> (
    None
):
    """In K the exponent has other limits, and passes half-way between them elsewhere than those in L, Δ and ε."""
    [row] = icl.transition_table(
        swept(L=0.5, K=np.unique(np.round(np.geomspace(10, 5000, 60))))
    ).to_dict("records")
    assert "predicted" not in row
    assert half_way(1e-4, 1.0, round(row["half-way in L"])) == pytest.approx(
        0.5, rel=0.01
    )


def test_limits_depend_on_the_learning_rate_and_the_coordinates() -> None:
    assert limits_of(swept(L=[1.0, 2.0]), "L") == (-2.0, 0.0)
    assert limits_of(swept(L=[1.0, 2.0], eta="auto"), "L") == (0.0, 2.0)
    assert limits_of(swept(delta=[1.0, 2.0], coordinates="embedding"), "delta") == (
        -6.0,
        -4.0,
    )
    embedded = swept(
        delta=np.geomspace(0.02, 20.0, 61), coordinates="embedding", eta=1e-3
    )
    assert icl.transition_table(embedded)["measured"][0] == pytest.approx(
        half_way(1e-4, 1.0, 20), rel=0.01
    )
    automatic = swept(L=np.geomspace(0.02, 2.0, 61), eta="auto", epsilon=1e-4, K=200)
    found = icl.transition_table(automatic).iloc[0]
    assert abs(found["measured"] - half_way(1e-4, 1.0, 200)) < found[
        "error"
    ] + 0.02 * half_way(1e-4, 1.0, 200)


def test_limits_are_those_of_the_exponents_far_out() -> None:
    """Where learning to attend decides the power of L is -2, in the tail it is 0; at the stable rate 0 and 2."""
    flat = {"K": 10**4, "L": 3e-3, "epsilon": 1e-7, "eta": 0.1}
    sharp = {"K": 1000, "L": 3.0, "epsilon": 1e-9, "eta": 0.1}
    for at, common in ((0, flat), (1, sharp)):
        for name in ("L", "delta", "K", "epsilon"):
            value = common.get(name, 1.0)
            found = swept(**common | {name: [value, 1.01 * value]})
            limits = limits_of(found, name)
            assert limits is not None
            # flat at small L and Δ, but at large K and ε
            expected = limits[at if name in ("L", "delta") else 1 - at]
            assert float(found[f"exponent_{name}"][0]) == pytest.approx(
                expected, abs=0.01
            )
    stable = swept(**sharp | {"L": [3.0, 3.03], "eta": "auto"})
    assert float(stable.exponent_L[0]) == pytest.approx(
        limits_of(stable, "L")[1], abs=0.01
    )  # type: ignore[index]


def test_there_is_no_transition_where_the_exponent_does_not_pass() -> None:
    few = icl.transition_table(swept(L=np.geomspace(0.02, 20.0, 61), K=5)).iloc[0]
    assert math.isnan(few["measured"])
    assert math.isnan(few["predicted"])
    assert few["exact onset of the tail"] == pytest.approx(crossover(1e-4, 1.0, 5))
    sharp = icl.transition_table(swept(L=np.geomspace(2.0, 20.0, 9))).iloc[0]
    assert math.isnan(sharp["measured"])
    assert math.isnan(
        transition(np.array([-1, -1, -1]), np.array([1.0, 2.0, 3.0]), L_LIMITS).measured
    )
    assert math.isnan(transition(np.array([5]), np.array([1.0]), L_LIMITS).measured)


def test_prediction_needs_no_grid_point_near_but_a_law() -> None:
    finite = swept(L=[1.0, 2.0], N=30, epsilon=0.1, K=3, eta=1.0)
    assert math.isnan(predicted_transition(finite, "L", "L_star"))
    assert math.isnan(predicted_transition(swept(L=5.0, K=[10, 15, 20]), "K", "L_star"))


def test_notes_compare_the_measured_half_way_point_with_the_predicted_one(
    over_L: xarray.Dataset,
) -> None:
    notes = transition_notes(over_L)
    assert len(notes) == 3
    assert re.fullmatch(
        r"K = 20: measured half-way point L = 0\.14\d+ ± \S+, predicted 0\.143; other boundaries: 0\.1991 "
        r"\(exact onset of the tail\), 0\.1298 \(leading order in K\)\.",
        notes[1],
    )
    [row] = icl.transition_table(over_L.sel(K=[20])).to_dict("records")
    assert abs(row["measured"] - row["predicted"]) < row["error"]
    assert (
        f" = {number(row['measured'])} ± {number(row['error'], 1)}, predicted {number(row['predicted'])}"
        in notes[1]
    )
    assert transition_notes(swept(eta=[0.1, 0.2, 0.3, 0.4])) == ()


def test_lines_of_four_points_have_notes_with_the_symbols_of_the_other_parameters() -> (
    None
):
    L = np.geomspace(0.03, 30.0, 4)
    notes = transition_notes(swept(L=L, delta=[1.0, 2.0], eta=[0.01, 0.02]))
    assert [note.split(":")[0] for note in notes] == [
        f"Δ = {x}, η = {y}" for x in (1, 2) for y in (0.01, 0.02)
    ]
    assert transition_notes(swept(L=L[1:], delta=[1.0, 2.0])) == ()


@pytest.mark.parametrize("points", [4, 5, 7, 31])
@pytest.mark.parametrize("span", [(0.05, 5.0), (0.05, 2.0)])
def test_notes_put_the_half_way_point_between_positive_bounds(
    span: tuple[float, float], points: int
) -> None:
    """A coarse grid has a large error: the sentence must not allow a negative parameter."""
    found = swept(L=np.geomspace(*span, points))
    row = icl.transition_table(found).iloc[0]
    [sentence] = transition_notes(found)
    value = re.search(r"half-way point L = (\S+?),? ", sentence)
    assert value is not None
    measured = float(value[1])
    if " ± " in sentence:
        margin = float(sentence.split(" ± ")[1].split(",")[0])
        assert measured - margin > 0.0
        assert margin == pytest.approx(row["error"], rel=0.5)
    else:
        factor = float(sentence.split("to within a factor of ")[1].split(",")[0])
        assert measured * factor == pytest.approx(
            row["measured"] + row["error"], rel=0.05
        )
    below, above = bars(row["measured"], row["error"])
    assert (row["measured"] - below) * (row["measured"] + above) == pytest.approx(
        row["measured"] ** 2
    )
