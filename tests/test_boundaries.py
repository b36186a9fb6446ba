"""Validators at both sides of their limits, and what a run says of itself in each of its forms."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory import _validate

UP, DOWN = (
    (lambda x: float(np.nextafter(x, math.inf))),
    (lambda x: float(np.nextafter(x, -math.inf))),
)
INSIDE: dict[str, tuple[Callable[[Any], Any], list[Any], list[Any]]] = {
    "number": (
        lambda x: _validate.number("x", x),
        [5e-324, 1.0, 1e300],
        [0.0, -0.0, -1.0, math.inf, math.nan],
    ),
    "number or zero": (
        lambda x: _validate.number("x", x, zero=True),
        [0.0, 5e-324],
        [-5e-324, math.inf, math.nan],
    ),
    "number up to 2": (
        lambda x: _validate.number("x", x, maximum=2.0),
        [2.0, DOWN(2.0)],
        [UP(2.0), 3.0],
    ),
    "signed up to 2": (
        lambda x: _validate.signed("x", x, maximum=2.0),
        [-2.0, 0.0, 2.0],
        [UP(2.0), DOWN(-2.0)],
    ),
    "integer from 1": (
        lambda x: _validate.integer("x", x, minimum=1),
        [1, 2, 3.0],
        [0, -1, 1.5, math.inf],
    ),
    "integer to 9": (
        lambda x: _validate.integer("x", x, minimum=1, maximum=9),
        [1, 8, 9],
        [0, 10],
    ),
    "fraction": (
        lambda x: _validate.fraction("x", x),
        [5e-324, 0.5, DOWN(1.0)],
        [0.0, 1.0, -0.1, 1.1, math.nan],
    ),
    "kernel": (
        lambda x: icl.tasks.KernelTask(1e-20 * np.array([[1.0, x], [0.5, 1.0]])),
        [0.5, 0.5 + 1e-11],
        [0.5 + 1e-8, 0.6],
    ),
    "kernel's sign": (
        lambda x: icl.tasks.KernelTask(1e-20 * np.array([[1.0, x], [x, 1.0]])),
        [1.0, -1.0, 1.0 + 1e-12],
        [1.0 + 1e-8, -2.0],
    ),
}


def assert_ends(
    check: Callable[[Any], Any], inside: list[Any], outside: list[Any], match: str
) -> None:
    """Some values are taken, and others refused in words."""
    for value in inside:
        check(value)
    for value in outside:
        with pytest.raises(ValueError, match=match):
            check(value)


@pytest.mark.parametrize("name", INSIDE)
def test_limits_are_where_they_are_said_to_be(name: str) -> None:
    assert_ends(*INSIDE[name], match="must be")


@pytest.mark.parametrize(
    "given", [[0.5, 0.3, 0.2], [0.5, 0.3, 0.2 + 9e-7], [0.5, 0.3, 0.2 - 9e-7]]
)
def test_shares_that_are_nearly_one_together_are_made_one(given: list[float]) -> None:
    """Row by row, also where a row has zeros; what is farther off is refused."""
    wanted = np.array(given) / math.fsum(given)
    np.testing.assert_allclose(
        _validate.probabilities("p", given, 3), wanted, rtol=1e-15
    )
    rows = [given, [1.0, 0.0, 0.0], [0.25, 0.75 + 5e-7, 0.0]]
    sums = [math.fsum(row) for row in rows]
    np.testing.assert_allclose(
        _validate.distributions("p", rows),
        np.array(rows) / np.array(sums)[:, None],
        rtol=1e-15,
    )
    np.testing.assert_allclose(_validate.distributions("p", given), wanted, rtol=1e-15)
    for off in (given[2] + 3e-6, given[2] - 3e-6):
        for check in (
            lambda row: _validate.probabilities("p", row, 3),
            lambda row: _validate.distributions("p", row),
        ):
            with pytest.raises(ValueError, match="sum to 1"):
                check([*given[:2], off])


def test_arrays_of_lengths_and_numbers_have_limits_on_both_sides() -> None:
    """Integers are exact up to 2**53, also as integers of NumPy, which floats would round."""
    for fine in (1, 2**53, [1.0, math.inf], np.array([2**53])):
        np.testing.assert_array_equal(
            _validate.prompt_lengths(fine), np.asarray(fine, dtype=float)
        )
    for wrong in (
        0,
        1.5,
        np.array([2**53 + 1]),
        [1, math.nan],
        -math.inf,
        2.0**54,
        True,
        [3, -1],
    ):
        with pytest.raises(ValueError, match="N = "):
            _validate.prompt_lengths(wrong)
    for given in (1, 2**53, np.int64(7), 7.0, math.inf):
        assert _validate.prompt_length(given) == given
    for wrong in (0, 2**53 + 1, 1.1, -math.inf, math.nan, "inf"):
        with pytest.raises(ValueError, match=r"N = .*math\.inf"):
            _validate.prompt_length(wrong)
    np.testing.assert_array_equal(
        _validate.plain_numbers("x", [[-1.0, 2.0]], -1.0, 2.0), [[-1.0, 2.0]]
    )
    for outside in ([UP(2.0)], [DOWN(-1.0)], [0.0, math.nan], math.inf):
        with pytest.raises(ValueError, match="between -1 and 2"):
            _validate.plain_numbers("x", outside, -1.0, 2.0)


@pytest.mark.parametrize("many", [1, 2, 3, 32, 33, 300])
def test_the_index_of_a_value_is_its_place_among_those_that_occur(many: int) -> None:
    values = np.random.default_rng(many).integers(0, many, size=(7, 90)) * 0.5 - 3.0
    distinct, index = _validate.indexed(values)
    assert distinct.tolist() == sorted({*values.ravel().tolist()})
    np.testing.assert_array_equal(distinct[index], values)
    assert index.dtype == np.intp


RUNS: dict[str, Callable[[], icl.Trajectory]] = {
    "closed": lambda: icl.simulate(2.0, 1.0, 4.0, epsilon=1e-3, imbalance=0.1),
    "no target": lambda: icl.descend(icl.ExchangeableRisk(4, 1.0, 10), 1.0, steps=5),
    "finite": lambda: icl.simulate(
        2.0, 1.0, 4.0, K=3, N=20, probs=[0.5, 0.3, 0.2], above=1e-2
    ),
    "recall": lambda: icl.recall.simulate(V=20, alpha=0.1, H=9, max_steps=5),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_dataset_of_a_run_has_all_that_its_dictionary_has(name: str) -> None:
    run = RUNS[name]()
    plain, dataset = run.to_dict(), run.to_xarray()
    series = {"t", "loss", *run.observed}
    assert set(dataset.variables) == series
    for each in series:
        np.testing.assert_array_equal(dataset[each].values, np.array(plain[each]))
    said = {
        key: value
        for key, value in plain.items()
        if key not in series and value is not None
    }
    assert set(dataset.attrs) == set(said)
    for key, value in said.items():
        found = dataset.attrs[key]
        assert (json.loads(found) if isinstance(value, dict) else found) == json.loads(
            json.dumps(value)
        )
