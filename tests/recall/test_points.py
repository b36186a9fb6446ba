from __future__ import annotations

import math
import pickle

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.recall.points import RecallPoints

POINTS = {
    "eta": np.array([0.5, 0.1, 0.5, 0.5, 4.0]),
    "Q": np.array([4, 4, 16, 2, 3]),
    "V": np.array([50, 50, 60, 20, 30]),
    "alpha": np.array([0.0, 0.1, 0.0, 0.2, 0.0]),
    "M": np.array([math.inf, math.inf, math.inf, 30.0, 7.0]),
    "attention": np.array(["linear", "softmax", "softmax", "linear", "relu"]),
}


def test_columns_are_as_announced() -> None:
    table = RecallPoints(epsilon=1e-2, max_steps=3000).evaluate(POINTS)
    for column in RecallPoints.columns:
        assert table[column.name].dtype == np.dtype(column.dtype)
        assert table[column.name].shape == (5,)
        assert np.isfinite(table[column.name]).all()
    assert table["steps"][0] == icl.recall.simulate(above=1e-2).steps
    assert {column.name for column in RecallPoints.inputs} == set(RecallPoints.defaults)


def test_points_are_independent_of_order_and_chunks() -> None:
    function = pickle.loads(pickle.dumps(RecallPoints(epsilon=1e-2, max_steps=3000)))
    whole = function.evaluate(POINTS)
    for i in range(5):
        single = function.evaluate({name: values[i : i + 1] for name, values in POINTS.items()})
        for name, values in single.items():
            assert values[0] == whole[name][i], name


def test_held_gamma_and_plain_descent_are_the_options_of_simulate() -> None:
    held = RecallPoints(hold_gamma=True, count=2).evaluate({"alpha": np.array([0.1])})
    counts = icl.recall.Counts.fixed(2)
    task = icl.recall.RecallTask(50, 4, 8, alpha=0.1, counts=counts)
    assert held["steps"][0] == icl.recall.simulate(task=task, gamma=task.best_gamma).steps
    plain = RecallPoints(rule="gd", epsilon=0.1).evaluate({"eta": np.array([2.0])})
    assert plain["steps"][0] == icl.recall.simulate(eta=2.0, rule="gd", above=0.1).steps


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ({"L": np.array([1.0])}, "column = 'L'"),
        ({"eta": np.array([1.0, 2.0]), "Q": np.array([1, 2, 3])}, "columns of one length"),
        ({"alpha": np.array([1.0])}, "alpha = "),
        ({"M": np.array([0.0])}, "M = "),
        ({"M": np.array([2.5])}, "M = "),
        ({"attention": np.array(["x"])}, "attention = 'x'"),
    ],
)
def test_wrong_input_is_named(points: dict[str, np.ndarray], words: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the words are checked below
        RecallPoints().evaluate(points)
    assert words in str(error.value)


def test_wrong_options_are_named() -> None:
    for options in ({"epsilon": 0.0}, {"rule": "x"}, {"max_steps": 0}, {"seed": -1}):
        with pytest.raises(ValueError, match=next(iter(options))):
            RecallPoints(**options)  # type: ignore[arg-type]
