from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray

import icl_theory as icl
from icl_theory import plot_sweep
from icl_theory.results.plots import save
from icl_theory.results.plots.sweeps import _scale, drawable, thinned


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


def test_a_line_shows_steps_exponent_and_transition() -> None:
    found = swept(L=np.geomspace(0.02, 20.0, 25))
    ax = plot_sweep(found)
    figure = ax.get_figure()
    assert figure is not None
    steps, exponent = figure.axes
    np.testing.assert_array_equal(
        steps.lines[0].get_ydata(), np.where(found.steps > 0, found.steps, np.nan)
    )
    np.testing.assert_array_equal(exponent.lines[0].get_ydata(), found.exponent_L)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {
        "half-way in $L$, predicted",
        "half-way in $L$, measured",
        "exact onset of the tail",
    } <= set(labels)
    places = {
        line.get_label(): line.get_xdata()[0]
        for line in steps.lines
        if ":" in str(line.get_linestyle())
    }  # type: ignore[index]
    assert places == {
        "half-way in $L$, predicted": pytest.approx(
            icl.regression.half_way(1e-4, 1.0, 20)
        )
    }
    assert (steps.get_xscale(), steps.get_yscale()) == ("log", "log")


def test_a_line_of_two_points_has_the_boundaries_between_them() -> None:
    lines = plot_sweep(swept(L=[0.05, 5.0])).lines
    places = {line.get_label(): line.get_xdata()[0] for line in lines}  # type: ignore[index]
    assert places["exact onset of the tail"] == pytest.approx(
        icl.regression.crossover(1e-4, 1.0, 20)
    )
    assert places["half-way in $L$, predicted"] == pytest.approx(
        icl.regression.half_way(1e-4, 1.0, 20)
    )


def test_a_diagram_has_the_predicted_boundary_over_it() -> None:
    many = [10, 20, 30, 50, 100, 300]
    found = swept(L=np.geomspace(0.02, 20.0, 9), K=many, eta=1e-3)
    ax = plot_sweep(found)
    curves = {line.get_label(): line.get_xydata() for line in ax.lines}
    crossovers = [icl.regression.crossover(1e-4, 1.0, K) for K in many]
    np.testing.assert_allclose(
        curves["exact onset of the tail"],
        np.column_stack([crossovers, many]),
        rtol=1e-12,
    )
    halves = [icl.regression.half_way(1e-4, 1.0, K) for K in many]
    np.testing.assert_allclose(
        curves["half-way in $L$, predicted"],
        np.column_stack([halves, many]),
        rtol=1e-12,
    )
    assert ax.get_xlabel() == "$L$"
    turned = plot_sweep(found, over="K")
    assert turned.get_xlabel() == "$K$"
    curves = {line.get_label(): line.get_xydata() for line in turned.lines}
    np.testing.assert_allclose(
        curves["exact onset of the tail"],
        np.column_stack([many, crossovers]),
        rtol=1e-12,
    )
    assert "half-way in L" in curves, "which is not that in K"
    assert "half-way in $K$, predicted" not in curves


def test_a_boundary_that_varies_along_its_own_parameter_is_where_lines_cross_it() -> (
    None
):
    """L = c (L/0.1)^0.1 has the root L = (c 0.1^-0.1)^(1/0.9)."""
    many = [10, 20, 30, 50, 100, 300]
    found = swept(L=np.geomspace(0.02, 20.0, 9), K=many, eta=1e-3)
    found["L_star"] = (found["L_star"] * (found.L / 0.1) ** 0.1).assign_attrs(
        found["L_star"].attrs
    )
    ax = plot_sweep(found)
    curves = {line.get_label(): line.get_xydata() for line in ax.lines}
    crossovers = np.array([icl.regression.crossover(1e-4, 1.0, K) for K in many])
    np.testing.assert_allclose(
        curves["exact onset of the tail"][:, 0],
        (crossovers * 0.1**-0.1) ** (1.0 / 0.9),
        rtol=1e-9,
    )


def test_a_boundary_of_a_parameter_that_is_held_is_where_its_lines_cross_it() -> None:
    """Between points, where it is no contour of a coarse grid, but the root of a power law."""
    found = swept(
        L=0.5, epsilon=np.geomspace(1e-5, 1e-2, 7), delta=np.geomspace(0.1, 10.0, 9)
    )
    curves = {
        line.get_label(): line.get_xydata()
        for line in plot_sweep(found, over="epsilon").lines
    }
    critical = curves["exact onset of the tail"]
    for epsilon, delta in critical:
        assert icl.regression.crossover(epsilon, delta, 20) == pytest.approx(
            0.5, rel=1e-9
        )


def test_points_without_a_number_of_steps_are_told_apart() -> None:
    found = swept(
        L=np.geomspace(1e-3, 10.0, 12),
        epsilon=1e-6,
        K=np.arange(10, 20),
        max_steps=10**7,
    )
    assert {"no step", "not reached"} <= set(_legend(plot_sweep(found)))
    assert len({mesh.cmap(0) for mesh in plot_sweep(found).collections[-2:]}) == 2  # type: ignore[attr-defined]
    for mesh, wanted in zip(
        plot_sweep(found).collections[-2:],
        (found.steps == 0, found.steps < 0),
        strict=True,
    ):
        drawn = ~np.ma.getmaskarray(mesh.get_array())
        np.testing.assert_array_equal(drawn, wanted.transpose("K", "L").values)
    line = plot_sweep(found.isel(K=0))
    marks = {each.get_label(): each.get_marker() for each in line.lines}
    assert marks["no step"] != marks["not reached"]
    count = {each.get_label(): len(each.get_xdata()) for each in line.lines}  # type: ignore[arg-type]
    assert count["no step"] == int((found.isel(K=0).steps == 0).sum())
    assert count["not reached"] == int((found.isel(K=0).steps < 0).sum())


def _legend(ax: Any) -> list[str]:
    return [text.get_text() for text in ax.figure.legends[0].get_texts()]


def test_the_legend_lies_beside_the_data() -> None:
    for found in (
        swept(L=np.geomspace(0.02, 20, 9)),
        swept(L=np.geomspace(0.02, 20, 9), K=np.arange(10, 16)),
    ):
        ax = plot_sweep(found)
        ax.figure.draw_without_rendering()  # type: ignore[union-attr]
        legend = ax.figure.legends[0].get_window_extent()
        assert not any(
            legend.overlaps(panel.get_window_extent()) for panel in ax.figure.axes
        )


def test_few_integers_have_a_curve_each_with_its_name_at_the_end() -> None:
    found = swept(
        L=np.geomspace(1.0, 2.0, 6), N=[40, 80, np.inf], K=8, eta=2.0, epsilon=0.02
    )
    ax = plot_sweep(found)
    assert sorted(text.get_text() for text in ax.texts) == [
        "$N$ = 40",
        "$N$ = 80",
        "$N$ = ∞",
    ]
    np.testing.assert_array_equal(ax.lines[1].get_ydata(), found.steps.sel(N=80))
    names = [text.get_text() for text in sorted(ax.texts, key=lambda text: text.xy[1])]
    last = found.steps.isel(L=-1).values
    assert names == [
        f"$N$ = {word}"
        for word in np.array(["40", "80", "∞"])[np.argsort(last, kind="stable")]
    ]
    turned = plot_sweep(found, over="N")
    assert [label.get_text() for label in turned.get_xticklabels()] == ["40", "80", "∞"]
    assert {line.get_linestyle() for line in turned.lines} == {"None"}


@pytest.mark.parametrize(
    ("axes", "most"), [({"L": np.geomspace(1.0, 2.0, 7)}, 5), ({"L": [3, 1, 2]}, 5)]
)
def test_up_to_five_values_have_a_curve_and_more_are_a_diagram(
    axes: dict[str, Any], most: int
) -> None:
    for many in (most, most + 1):
        ax = plot_sweep(swept(**axes, delta=np.linspace(1.0, 2.0, many)), over="L")
        assert (len(ax.collections) == 0) == (many == most)


def test_words_and_few_integers_keep_their_order() -> None:
    ax = plot_sweep(swept(K=[20, 5, 10], L=np.geomspace(1.0, 2.0, 7)), over="K")
    assert [label.get_text() for label in ax.get_xticklabels()] == ["20", "5", "10"]


def test_a_diagram_has_at_most_forty_measured_transitions() -> None:
    found = swept(L=np.geomspace(0.02, 20.0, 25), K=np.arange(20, 101), eta=0.1)
    ((bar,),) = [plot_sweep(found, over="L").containers]
    np.testing.assert_array_equal(bar.lines[0].get_ydata(), found.K.values[::3])


def test_few_points_are_marked_on_a_solid_line() -> None:
    steps = plot_sweep(swept(L=np.geomspace(0.02, 20.0, 12))).lines[0]
    assert (steps.get_linestyle(), steps.get_marker()) == ("-", ".")


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
    ids=[
        "one",
        "one by two",
        "eta",
        "prompts",
        "noise",
        "failed",
        "no steps",
        "unsorted",
        "not reached",
        "linear",
    ],
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
        plot_sweep(swept(N=[20, 21, 22, 23, 24, np.inf], epsilon=0.1, K=3, eta=1.0))


def test_of_many_values_some_are_drawn_and_the_report_says_which() -> None:
    found = icl.sweep(
        L=np.geomspace(0.1, 10.0, 4001),
        delta=1.0,
        eta=[0.1, 0.2],
        epsilon=1e-3,
        progress=False,
    )
    line = icl.plot_sweep(found.isel(eta=0)).get_lines()[0]
    assert np.array_equal(line.get_xdata(), found.L.values[::3])
    assert np.array_equal(line.get_ydata(), found.steps.values[::3, 0])
    assert "Steps over L and η, one value of L in 3." in icl.html_report(found)


@pytest.mark.parametrize(
    ("size", "every"), [(1, 0), (2000, 0), (2001, 2), (4000, 2), (4001, 3)]
)
def test_an_axis_is_thinned_only_where_it_has_more_values_than_are_drawn(
    size: int, every: int
) -> None:
    status = (("L", "K"), np.full((size, 3), "reached"))
    found = xarray.Dataset(
        {"status": status}, {"L": np.arange(size) + 1.0, "K": [1, 2, 3]}
    )
    assert thinned(found) == ({"L": every} if every else {})
    assert found.L.values[:: every or 1].size <= 2000


@pytest.mark.parametrize(
    ("last", "kind"), [(9.9, "linear"), (10.0, "log"), (1e5, "log")]
)
@pytest.mark.parametrize("first", [1.0, 0.0, -1.0])
def test_an_axis_is_logarithmic_from_a_factor_of_ten_on(
    first: float, last: float, kind: str
) -> None:
    """And only between positive values; the order of these does not matter."""
    found = xarray.Dataset(coords={"L": [5.0, last, first, 2.0, 3.0, 4.0]})
    assert _scale(found, "L").kind == (kind if first > 0 else "linear")


def test_values_have_a_place_on_an_axis_up_to_the_largest_that_is_legible() -> None:
    values = [0.0, -1e100, 1e100, np.nextafter(1e100, np.inf), -1e101, np.inf, np.nan]
    found = xarray.Dataset(coords={"L": values, "word": ["a", "b"], "N": [1, 2]})
    assert drawable(found, "L").tolist() == [
        True,
        True,
        True,
        False,
        False,
        False,
        False,
    ]
    assert drawable(found, "L", np.inf).tolist() == [True] * 5 + [False] * 2
    assert drawable(found, "word").all()
    assert drawable(found, "N").all()
