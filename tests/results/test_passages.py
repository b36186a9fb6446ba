"""Transitions and exponents of step counts with known powers; every grid point by point."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray

import icl_theory as icl
from icl_theory.results.transitions import (
    predicted_transition,
    transition,
    transition_notes,
)
from icl_theory.sweeps.exponents import local_exponent
from icl_theory.sweeps.grid import Axis, Grid, once


@pytest.mark.parametrize(
    ("first", "second"),
    [(-2.0, 0.0), (0.0, 2.0), (1.0, 2.0), (-6.0, -4.0), (2.0, -1.0), (0.0, -1.0)],
)
@pytest.mark.parametrize("where", [0.3, 20.0])
def test_the_exponent_passes_half_way_where_two_powers_are_equal(
    first: float, second: float, where: float
) -> None:
    """(x/x₀)^p below and (x/x₀)^q above: their sum for p < q, one over the sum of their inverses elsewhere."""
    x = np.geomspace(where / 207, where * 431, 61)
    one, two = (x / where) ** first, (x / where) ** second
    count = 1e12 * (one + two if first < second else 1 / (1 / one + 1 / two))
    for order in (slice(None), slice(None, None, -1)):
        found = transition(count[order], x[order], (first, second))
        assert found.measured == pytest.approx(where, rel=1e-3)
        assert abs(found.measured - where) <= found.error < 0.05 * where
    assert math.isnan(
        transition(count, x, (second, first)).measured
    )  # passed in the other direction
    assert math.isnan(transition(count[:20], x[:20], (first, second)).measured)
    fewer = transition(count[::3], x[::3], (first, second))
    assert fewer.error > found.error  # twice the spacing errs by more


def test_the_error_grows_with_the_rounding_of_small_counts() -> None:
    x = np.geomspace(0.011, 107.0, 41)
    errors = []
    for size in (30.0, 3e3, 3e8):
        count = np.round(size * (1 + x**-2.0))
        found = transition(count, x, (-2.0, 0.0))
        errors.append(found.error)
        assert abs(found.measured - 1.0) <= found.error
    assert errors[0] > errors[1] > errors[2]


@pytest.mark.parametrize("powers", [(0.0, 3.0), (1.0, 4.0), (0.0, 6.0)])
def test_a_few_steps_are_rounded_within_the_error(powers: tuple[float, float]) -> None:
    """Counts from one step on, of which neighbours differ by large factors: the smaller one decides."""
    for size, shift in itertools.product(
        np.geomspace(1.3, 40.0, 40), np.linspace(0.0, 0.3, 4)
    ):
        x = np.geomspace(0.05, 30.0, 9) * math.exp(shift)
        count = np.maximum(np.round(size * (x ** powers[0] + x ** powers[1])), 1.0)
        found = transition(count, x, powers)
        assert abs(found.measured - 1.0) <= found.error


@pytest.mark.parametrize("power", [-1.5, 0.0, 2.0])
@pytest.mark.parametrize("dimension", [0, 1])
def test_exponents_are_those_of_the_powers(power: float, dimension: int) -> None:
    x = np.array([3.0, 1.0, 2.0, 8.0, 5.0])
    other = np.array([10.0, 1e6])
    steps = np.outer(x**power, other) * 1e3
    found = local_exponent(steps if dimension == 0 else steps.T, x, dimension)
    np.testing.assert_allclose(found, np.full_like(found, power), atol=1e-12)
    steps[
        1
    ] = (
        -1.0
    )  # missing: the ends of the line of sorted values 1, 2, 3, 5, 8 are one-sided
    found = local_exponent(steps, x, 0)
    missing = np.isnan(found[:, 0])
    assert missing.tolist() == [False, True, True, False, False]


@pytest.mark.parametrize("span", [(0.1, 10.0), (10.0, 100.0), (0.01, 0.2)])
def test_a_boundary_is_crossed_where_its_parameter_has_its_value(
    span: tuple[float, float],
) -> None:
    """Between points, and beyond them by the power law; in decreasing order, too."""
    eps = np.geomspace(*span, 5)
    for x, order in itertools.product((eps,), (slice(None), slice(None, None, -1))):
        line = xarray.Dataset(
            {"edge": ("epsilon", 2.0 * np.sqrt(x[order]), {"of": "L"})},
            {"epsilon": x[order], "L": 3.0},
        )
        assert predicted_transition(line, "epsilon", "edge") == pytest.approx(
            2.25, rel=1e-12
        )  # 2 √ε = 3
    bent = xarray.Dataset(
        {"edge": ("epsilon", 1.0 + eps, {"of": "L"})}, {"epsilon": eps, "L": 1e4}
    )
    assert math.isnan(predicted_transition(bent, "epsilon", "edge"))
    flat = xarray.Dataset(
        {"edge": ("epsilon", np.full(5, 2.0), {"of": "L"})}, {"epsilon": eps, "L": 3.0}
    )
    assert math.isnan(predicted_transition(flat, "epsilon", "edge"))
    itself = xarray.Dataset({"edge": ("L", np.full(5, 2.0), {"of": "L"})}, {"L": eps})
    assert predicted_transition(itself, "L", "edge") == pytest.approx(2.0, rel=1e-12)


def test_exponents_and_tables_of_a_sweep_are_those_of_its_steps() -> None:
    L = np.geomspace(0.2, 5.0, 9)
    found = icl.sweep(
        L=L, delta=1.0, eta=0.01, epsilon=[1e-4, 1e-3], K=8, progress=False
    )
    T = found.steps.transpose("epsilon", "L").values.astype(float)
    x, log = np.log(L), np.log(T)
    inner = np.empty_like(log)
    for i in range(9):
        a, b = max(i - 1, 0), min(i + 1, 8)
        if 0 < i < 8:  # the parabola through three points
            left, right = x[i] - x[a], x[b] - x[i]
            slopes = (log[:, i] - log[:, a]) / left, (log[:, b] - log[:, i]) / right
            inner[:, i] = (slopes[0] * right + slopes[1] * left) / (left + right)
        else:
            inner[:, i] = (log[:, b] - log[:, a]) / (x[b] - x[a])
    np.testing.assert_allclose(
        found.exponent_L.transpose("epsilon", "L").values, inner, rtol=1e-9
    )
    table = icl.phase_table(found)
    assert table["T_ε"].tolist() == T.astype(int).ravel().tolist()
    assert table["L"].tolist() == [*L.tolist(), *L.tolist()]
    assert (
        table["epsilon" if "epsilon" in table else "ε"].tolist()
        == [1e-4] * 9 + [1e-3] * 9
    )
    np.testing.assert_allclose(
        table["exponent"].astype(float), inner.ravel(), rtol=1e-9
    )


@pytest.mark.parametrize("shape", [(1,), (5,), (3, 4), (4, 1, 3), (2, 3, 5), (7, 2)])
@pytest.mark.parametrize("chunk", [1, 2, 4, 6, 100])
def test_tiles_of_a_grid_are_blocks_of_its_points(
    shape: tuple[int, ...], chunk: int
) -> None:
    axes = tuple(
        Axis(name, np.arange(float(size)) + 10.0 * i, "", "a number", True)
        for i, (name, size) in enumerate(zip("xyzw", shape, strict=False))
    )
    grid = Grid(axes, chunk)
    every = list(itertools.product(*(axis.values for axis in axes)))
    assert (grid.shape, grid.size) == (shape, len(every))
    assert math.prod(grid.tile) <= chunk
    seen: list[int] = []
    for tile in range(grid.chunks):
        index = grid.indices_of(tile)
        seen += index.tolist()
        wanted: Any = [every[i] for i in index]
        for points in (grid.points(index), grid.points_of(tile)):
            np.testing.assert_array_equal(
                np.column_stack([points[axis.name] for axis in axes]), wanted
            )
        region = grid.region(tile)
        block = np.arange(len(every)).reshape(shape)[region]
        np.testing.assert_array_equal(block.ravel(), index)
        assert all(
            part.stop - part.start <= length
            for part, length in zip(region, grid.tile, strict=True)
        )
    assert sorted(seen) == list(range(len(every)))
    # as many points of the last axis as there may be, then of the one before
    left = chunk
    for length, part in zip(reversed(shape), reversed(grid.tile), strict=True):
        assert part == min(length, left)
        left //= part


@pytest.mark.parametrize(
    "values", [np.full(4, math.nan), np.full(4, -0.0), np.full(4, "flat"), np.arange(1)]
)
def test_a_column_is_kept_as_one_value_where_it_is_the_same_at_all_points(
    values: Any,
) -> None:
    found = once(values)
    assert found.shape == (1,)
    np.testing.assert_array_equal(np.broadcast_to(found, values.shape), values)


def test_a_column_that_differs_in_the_middle_is_kept_whole() -> None:
    only_the_middle_differs = np.zeros(24)
    only_the_middle_differs[10] = 1.0
    assert once(only_the_middle_differs) is only_the_middle_differs


@pytest.mark.parametrize("unit", [1.0, 1e-3, 1e6])
def test_of_two_passages_the_better_resolved_one_is_the_transition(unit: float) -> None:
    """In proportion to where it is, whatever the unit: the nearer to zero, the smaller is any error in itself."""
    x = np.geomspace(1.3e-6, 1.1e3, 61)
    rise, steep = np.log(x), 6.0 * np.log(x / 1e-4)
    exponent = -2.0 + 2.0 * np.maximum(
        1 / (1 + np.exp(-2.0 * rise)),
        1 / (1 + np.exp(-steep)) / (1 + np.exp(steep - 12)),
    )
    logs = np.concatenate(
        [[60.0], 60.0 + np.cumsum(0.5 * (exponent[1:] + exponent[:-1]) * np.diff(rise))]
    )
    found = transition(np.exp(logs), unit * x, (-2.0, 0.0))
    assert found.measured == pytest.approx(unit, rel=0.01)
    assert abs(found.measured - unit) <= found.error < 0.05 * unit


def test_no_order_of_the_values_changes_what_is_said_of_a_line() -> None:
    """Measured and predicted transitions, their sentences, the rows of the table and the curves of the figure."""
    L, common = (
        np.geomspace(0.03, 30.0, 12),
        {"delta": 1.0, "eta": 0.01, "epsilon": 1e-4, "progress": False},
    )
    order = np.array([4, 9, 1, 6, 11, 0, 3, 8, 10, 2, 7, 5])
    found, mixed = icl.sweep(L=L, **common), icl.sweep(L=L[order], **common)
    pd.testing.assert_frame_equal(
        icl.transition_table(mixed), icl.transition_table(found)
    )
    assert transition_notes(mixed) == transition_notes(found)
    rows = icl.phase_table(mixed).sort_values("L", ignore_index=True)
    pd.testing.assert_frame_equal(rows, icl.phase_table(found))
    for one, two in zip(
        *(icl.plot_sweep(each).figure.axes for each in (mixed, found)), strict=True
    ):
        for line, same in zip(one.lines, two.lines, strict=True):
            np.testing.assert_array_equal(line.get_xydata(), same.get_xydata())
