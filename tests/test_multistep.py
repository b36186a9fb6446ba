"""Orbits followed by strides, against closed forms and single steps."""

from __future__ import annotations

import numpy as np
import pytest

from icl_theory._validate import Array
from icl_theory.engine.multistep import ORDER, SINGLE, Index, Sights, _weights, follow

ADAMS = {  # Bashforth's and Moulton's coefficients, as printed in tables, in units of 1/120960
    "explicit": (434241, -1152169, 2183877, -2664477, 2102243, -1041723, 295767, -36799),
    "implicit": (36799, 139849, -121797, 123133, -88547, 41499, -11351, 1375),
}


@pytest.mark.parametrize("kind", [*ADAMS])
def test_weights_are_those_of_adams(kind: str) -> None:
    np.testing.assert_allclose(getattr(_weights(), kind), np.array(ADAMS[kind]) / 120960, rtol=1e-12)
    assert len(ADAMS[kind]) == ORDER


def reciprocal(y: Array, which: Index) -> tuple[Array, Array]:
    """y → y/(1 + y), of which the reciprocal grows by 1 in each step."""
    return -y * y / (1.0 + y), y


def followed(moves: object, start: Array, level: Array, last: float, stride: float = 0.04) -> tuple[Sights, Sights]:
    return follow(moves, start, lambda seen, which: seen[:, 0] <= level[which], last, stride)  # type: ignore[arg-type]


def test_orbits_with_a_closed_form_are_met_at_any_time() -> None:
    start = np.array([[1.0], [0.01], [1e-4], [30.0]])
    level = np.array([1e-8, 1e-3, 9e-5, 0.2])
    run, shadow = followed(reciprocal, start, level, 1e9)
    truth = 1.0 / level - 1.0 / start[:, 0]
    found, other = (sights.first(-sights.seen[:, :, 0], -level)[0] for sights in (run, shadow))
    assert found[3] == np.ceil(truth[3]) <= SINGLE
    np.testing.assert_allclose(found[:3], truth[:3], rtol=1e-11)
    assert (np.abs(found - truth)[:3] <= np.abs(found - other)[:3] + 1e-12 * truth[:3]).all()
    for t in (0.0, 17.0, 64.0, 65.0, 900.0):
        seen = run.at(run.seen[:, :, 0], np.full(4, t))
        there = np.array([True, True, True, t <= SINGLE])  # the last one is dropped
        np.testing.assert_allclose(seen[there], 1.0 / (1.0 / start[there, 0] + t), rtol=1e-11)


def test_orbits_end_when_they_are_done_and_none_goes_beyond_the_last_time() -> None:
    level = np.array([0.5, 1e-3, 1e-9])
    run, _ = followed(reciprocal, np.ones((3, 1)), level, 1e4)
    rows = np.isfinite(run.seen[:, :, 0]).sum(axis=0)
    assert rows[0] < rows[1] < rows[2] == len(run.t)
    assert run.t[-2] < 1e4 <= run.t[-1]
    assert np.isinf(run.first(-run.seen[:, :, 0], -level)[0][2])


@pytest.mark.parametrize("rate", [1e-5, 1e-3, 0.01, 0.1, 0.5, 1.0, 1.5, 1.9, 2.1])
def test_where_strides_go_wrong_the_shadow_goes_elsewhere(rate: float) -> None:
    """A mode that rests beside a slow tail, or turns over in each step: strides get it right or part visibly."""

    def moves(y: Array, which: Index) -> tuple[Array, Array]:
        slow, fast = y[:, 0], y[:, 1]
        move = np.column_stack([-slow * slow / (1.0 + slow), rate * (slow - fast)])
        return move, np.column_stack([fast, slow])

    start = np.array([[1.0, 0.5]])
    with np.errstate(all="ignore"):
        run, shadow = followed(moves, start, np.zeros(1), 1e6)
    y, t = start.copy(), 0
    for at in (100, 1000, 10_000):
        with np.errstate(all="ignore"):
            while t < at:
                y, t = y + moves(y, np.zeros(1, dtype=int))[0], t + 1
        found, other = (sights.at(sights.seen[:, :, 0], np.full(1, float(at)))[0] for sights in (run, shadow))
        parted = np.isnan(found) or np.isnan(other)
        assert parted or abs(found - y[0, 1]) <= max(2.0 * abs(found - other), 1e-12)


def test_errors_fall_with_about_the_eighth_power_of_the_stride() -> None:
    level = np.array([1e-3])
    off = []
    for stride in (0.06, 0.03):
        run, _ = followed(reciprocal, np.ones((1, 1)), level, 1e9, stride)
        off.append(abs(run.first(-run.seen[:, :, 0], -level)[0][0] - (1e3 - 1.0)))
    assert 2.0**6 < off[0] / off[1] < 2.0**11
