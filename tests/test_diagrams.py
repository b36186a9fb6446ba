from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import xarray

import icl_theory as icl
from icl_theory.diagrams import plot_sweep
from icl_theory.plotting import save


def swept(**axes: Any) -> xarray.Dataset:
    return icl.sweep(**{"L": 1.0, "delta": 1.0, "eta": 0.01, "epsilon": 1e-4, "progress": False, **axes})


def test_a_line_shows_steps_exponent_and_transition() -> None:
    found = swept(L=np.geomspace(0.02, 20.0, 25))
    ax = plot_sweep(found)
    figure = ax.get_figure()
    assert figure is not None
    steps, exponent = figure.axes
    np.testing.assert_array_equal(steps.lines[0].get_ydata(), np.where(found.steps > 0, found.steps, np.nan))
    np.testing.assert_array_equal(exponent.lines[0].get_ydata(), found.exponent_L)
    labels = [text.get_text() for text in steps.get_legend().get_texts()]
    assert labels[-2:] == ["exact $L^*$", "leading-order $L^*$"]
    assert (steps.get_xscale(), steps.get_yscale()) == ("log", "log")


def test_a_diagram_has_the_predicted_boundary_over_it() -> None:
    found = swept(L=np.geomspace(0.02, 20.0, 40), K=[10, 30, 100, 300], eta=1e-3)
    ax = plot_sweep(found)
    boundary = next(item for item in ax.collections if isinstance(item, mpl.contour.ContourSet))
    points = np.vstack([path.vertices for path in boundary.get_paths()])
    points = points[np.argsort(points[:, 1])]
    predicted = [icl.regression.crossover(1e-4, 1.0, K) for K in (10, 30, 100, 300)]
    np.testing.assert_allclose(np.interp([10, 30, 100, 300], points[:, 1], points[:, 0]), predicted, rtol=0.02)
    assert ax.get_xlabel() == "$L$"
    assert plot_sweep(found, over="K").get_xlabel() == "$K$"


@pytest.mark.parametrize(
    "axes",
    [
        {"L": [1.0]},
        {"L": [1.0, 2.0], "K": [5]},
        {"eta": [0.1, 0.2]},
        {"N": [20, 40], "epsilon": 0.1, "K": 3, "eta": 1.0},
        {"noise": [0.0, 0.1], "N": 20, "epsilon": 0.1, "K": 3, "eta": 1.0},
        {"L": [1.0, 2.0, 1e200]},
        {"L": [1e-5, 2e-5]},
        {"K": [20, 5, 10], "L": [3.0, 1.0, 2.0, 0.1]},
        {"L": [1.0, 2.0], "epsilon": [1e-9, 1e-3], "max_steps": 1000},
        {"imbalance": [0.1, 0.2], "eta": [1.0, 2.0]},
    ],
    ids=["one", "one by two", "eta", "prompts", "noise", "failed", "no steps", "unsorted", "not reached", "linear"],
)
def test_odd_sweeps_can_be_drawn(axes: dict[str, Any], tmp_path: Path) -> None:
    save(plot_sweep(swept(**axes)), str(tmp_path / "a.png"))


def test_what_cannot_be_drawn_is_refused() -> None:
    cube = swept(L=[1.0, 2.0], eta=[0.1, 0.2], K=[5, 6])
    with pytest.raises(ValueError, match="one parameter or two"):
        plot_sweep(cube)
    plot_sweep(cube.sel(K=5))
    with pytest.raises(ValueError, match="over = 'K': must be one of L"):
        plot_sweep(swept(L=[1.0, 2.0]), over="K")
    with pytest.raises(ValueError, match="finite values"):
        plot_sweep(swept(L=[1.0, 2.0], N=[20, np.inf], epsilon=0.1, K=3, eta=1.0))
