"""What figures show, read back from their marks: places, bands, boundaries, limits and colours."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray

import icl_theory as icl
from icl_theory.engine.curves import CurveComparison
from icl_theory.results.plots import Curve, Panel, draw_maps, draw_panels
from icl_theory.results.plots.runs import (
    compare_runs,
    plot_answer,
    plot_comparison,
    plot_run,
)
from icl_theory.results.plots.style import CYCLE, new_figure, shade
from icl_theory.statements.claim import Answer, Series


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


def points(line: Any) -> Any:
    return np.asarray(line.get_xydata())


def panels(ax: Any) -> Any:
    """Return the axes of the whole figure."""
    return ax.figure.axes


def bars(ax: Any) -> list[Any]:
    """Centres and ends of horizontal error bars."""
    found = []
    for each in ax.containers:
        line, _, (across,) = each.lines
        ends = np.array(
            [
                np.ravel(each[:, 0] if np.ndim(each) == 2 else [np.nan] * 2)
                for each in across.get_segments()
            ]
        )
        found.append((points(line), ends, each.get_label()))
    return found


@pytest.mark.parametrize(("over", "limits"), [("L", (-2.0, 0.0)), ("K", (1.0, 2.0))])
def test_a_line_of_a_sweep_shows_every_quantity_where_it_is(
    over: str, limits: tuple[float, float]
) -> None:
    values = (
        np.geomspace(0.02, 20, 25)
        if over == "L"
        else np.unique(np.geomspace(3, 3000, 25).round().astype(int))
    )
    found = swept(**{over: values})
    top, bottom = panels(icl.plot_sweep(found))
    lines = {line.get_label(): points(line) for line in top.lines}
    # phases, predictions: each under its own symbol
    for name, x in found.data_vars.items():
        label = (
            f"${x.attrs['tex']}$" if x.attrs.get("tex") else x.attrs.get("symbol", name)
        )
        if x.attrs.get("role") in ("phase", "predicted") and (x.values > 0).any():
            np.testing.assert_allclose(lines[label][:, 0], values)
            np.testing.assert_array_equal(
                lines[label][:, 1], np.where(x.values > 0, x.values, np.nan)
            )
    np.testing.assert_array_equal(
        points(bottom.lines[0])[:, 1], found[f"exponent_{over}"].values
    )
    levels = sorted(
        line.get_ydata()[0] for line in bottom.lines if len(set(line.get_ydata())) == 1
    )
    assert {*limits} <= {*levels}
    middle, width = sum(limits) / 2, limits[1] - limits[0]
    low, high = bottom.get_ylim()
    assert low < limits[0] < limits[1] < high
    assert high - low < 2 * width
    row = icl.transition_table(found, over).iloc[0]
    if math.isfinite(row["measured"]):
        ((centre, ends, label),) = bars(bottom)
        np.testing.assert_allclose(centre, [[row["measured"], middle]])
        # the error is one of the logarithm
        factor = 1.0 + row["error"] / row["measured"]
        np.testing.assert_allclose(
            ends, [[row["measured"] / factor, row["measured"] * factor]]
        )
        assert label.endswith("measured")
    if math.isfinite(row.get("predicted", math.nan)):
        diamond = next(line for line in bottom.lines if line.get_marker() == "D")
        np.testing.assert_allclose(points(diamond), [[row["predicted"], middle]])
    # every boundary of the table that lies on the axis is a line through both panels
    named = [
        row[name]
        for name in row.index
        if name not in ("measured", "error") and math.isfinite(row[name])
    ]
    left, right = top.get_xlim()
    for ax in (top, bottom):
        drawn = [
            line.get_xdata()[0] for line in ax.lines if list(line.get_ydata()) == [0, 1]
        ]
        assert sorted(drawn) == pytest.approx(
            sorted(each for each in named if left < each < right)
        )


@pytest.mark.parametrize("kind", ["log", "linear", "words"])
def test_cells_of_a_diagram_have_the_colours_and_the_places_of_their_points(
    kind: str,
) -> None:
    other: Any = {
        "log": {"K": [10, 20, 30, 50, 100, 300]},
        "linear": {"delta": np.linspace(1.0, 2.0, 7)},
        "words": {"K": list(range(3, 14)), "N": [np.inf]},
    }[kind]
    found = swept(L=np.geomspace(1e-3, 20.0, 9), **other, max_steps=10**9)
    found = found.isel(N=0) if "N" in found.dims else found
    name = next(each for each in found.dims if each != "L")
    ax: Any = icl.plot_sweep(found, over="L")
    mesh = ax.collections[0]
    T = found.steps.transpose(name, "L").values
    expected = np.where(T > 0, np.log10(np.maximum(T, 1)), np.nan)
    np.testing.assert_allclose(np.ma.filled(mesh.get_array(), np.nan), expected)
    x, y = mesh.get_coordinates()[0, :, 0], mesh.get_coordinates()[:, 0, 1]
    for edges, places in ((x, found.L.values), (y, found[name].values)):
        assert len(edges) == len(places) + 1
        assert np.all((edges[:-1] < places) & (places < edges[1:]))
        # half-way between neighbours on the axis as it is drawn
        drawn = (
            np.log
            if places.min() > 0 and places.max() >= 10 * places.min()
            else np.asarray
        )
        np.testing.assert_allclose(
            drawn(edges[1:-1]), (drawn(places[1:]) + drawn(places[:-1])) / 2
        )
        np.testing.assert_allclose(np.diff(drawn(edges))[0], np.diff(drawn(places))[0])
    assert ax.get_xlim() == pytest.approx((x[0], x[-1]))
    assert ax.get_ylim() == pytest.approx((y[0], y[-1]))
    # points without steps, by their kinds
    kinds = {
        "no step": T == 0,
        "not reached": (T < 0)
        & (found.status.transpose(name, "L").values == "not reached"),
    }
    shown = [
        ~np.ma.getmaskarray(each.get_array())
        for each in ax.collections[1:]
        if hasattr(each, "get_coordinates")
    ]
    for mask, area in zip(
        (mask for mask in kinds.values() if mask.any()), shown, strict=False
    ):
        np.testing.assert_array_equal(area, mask)
    # measured transitions, one for each line along L
    table = icl.transition_table(found, "L")
    if table["measured"].notna().any():
        ((centres, ends, _),) = bars(ax)
        np.testing.assert_allclose(
            centres, np.column_stack([table["measured"], found[name].values])
        )
        kept = table["measured"].notna().to_numpy()
        factor = 1.0 + table["error"][kept] / table["measured"][kept]
        np.testing.assert_allclose(ends[kept, 1] / ends[kept, 0], factor**2, rtol=1e-6)


def test_the_figure_of_a_run_shows_its_numbers() -> None:
    run = icl.simulate(
        2.0, 1.0, 4.0, K=3, N=12, noise=0.3, probs=[0.5, 0.3, 0.2], above=0.02
    )
    top, bottom = panels(plot_run(run))
    t = np.maximum(run.t, 0.5)
    np.testing.assert_allclose(points(top.lines[0]), np.column_stack([t, run.loss]))
    levels = sorted(line.get_ydata()[0] for line in top.lines[1:])
    assert levels == pytest.approx(sorted([run.epsilon, run.floor]))
    words = {text.get_text(): text.xy[1] for text in top.texts if hasattr(text, "xy")}
    assert words == {
        r"$\epsilon$": pytest.approx(run.epsilon),
        "floor": pytest.approx(run.floor),
    }
    right, missing = bottom.lines
    np.testing.assert_allclose(
        points(right), np.column_stack([t, run.attention.mean(axis=1)])
    )
    np.testing.assert_allclose(
        points(missing), np.column_stack([t, 1 - run.attention.mean(axis=1)])
    )
    ((vertices,),) = [
        [path.vertices for path in each.get_paths()] for each in bottom.collections
    ]
    for i in (1, len(t) // 2, len(t) - 2):
        there = vertices[np.isclose(vertices[:, 0], t[i]), 1]
        assert (there.min(), there.max()) == pytest.approx(
            (run.attention[i].min(), run.attention[i].max())
        )
    low, high = bottom.get_ylim()
    assert low < min(run.attention.mean(axis=1).min(), 1 - run.attention[-1].mean())
    assert high >= 1
    assert run.phases is not None
    for ax in (top, bottom):
        assert ax.get_xlim() == pytest.approx((0.5, run.t[-1]))
        spans = [
            (patch.get_x(), patch.get_x() + patch.get_width()) for patch in ax.patches
        ]
        assert spans == [
            (max(begin, 0.5), end) for begin, end in run.phases.present().values()
        ]
    for text in top.texts:
        if text.get_text() in run.phases.present():
            begin, end = run.phases.present()[text.get_text()]
            assert text.get_position()[0] == pytest.approx(
                math.sqrt(max(begin, 0.5) * end)
            )
    title = top.get_title()
    for value in ("3", "12", "0.3"):
        assert f"= {value}" in title


def test_runs_side_by_side_have_their_own_curves_and_say_what_differs() -> None:
    runs = [
        icl.simulate(
            2.0, 1.0, 4.0, K=4, probs=[0.4, 0.3, 0.2, 0.1], epsilon=1e-2, task=task
        )
        for task in ("exchangeable", "linear")
    ]
    every = panels(compare_runs(runs))
    for column, run in enumerate(runs):
        np.testing.assert_allclose(points(every[column].lines[0])[:, 1], run.loss)
        np.testing.assert_allclose(
            points(every[2 + column].lines[0])[:, 1], run.attention.mean(axis=1)
        )
        assert run.info["task"] in every[column].get_title()
        assert (
            run.info["coordinates"] not in every[column].get_title()
        )  # as it is the same
        assert every[2 + column].get_xlabel() == "step"
    assert every[0].get_ylim() == every[1].get_ylim()
    bowl = icl.descend(
        icl.PopulationRisk(icl.Features.simplex(3, 1.0), icl.tasks.Linear(2.0)),
        1.0,
        steps=3,
    )
    del bowl.observed["attention"]
    assert len(panels(compare_runs([runs[0], bowl]))) == 2


def test_the_figure_of_a_comparison_has_both_curves_their_band_and_where_they_part() -> (
    None
):
    t = np.array([0, 1, 10, 100])
    exact, curve, errors = (
        np.array([4.0, 3.0, 2.0, 1.0]),
        np.array([4.1, 2.9, 2.5, 2.0]),
        np.full(4, 0.2),
    )
    found = CurveComparison((), "", ((0, 1), (10, 100)), t, exact, curve, errors, None)
    for leaves in (None, (10, 100)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CurveComparison, "leaves", leaves)
            ax: Any = plot_comparison(found)
        lines = {line.get_label(): points(line) for line in ax.lines}
        for label, values in (("your curve", curve), ("exact", exact)):
            np.testing.assert_allclose(
                lines.pop(label), np.column_stack([np.maximum(t, 0.5), values])
            )
        assert {label: line[0, 0] for label, line in lines.items()} == (
            {"leaves at 10": 10} if leaves else {}
        )
        vertices = ax.collections[0].get_paths()[0].vertices
        for i in (1, 2):
            there = vertices[np.isclose(vertices[:, 0], t[i]), 1]
            assert (there.min(), there.max()) == pytest.approx(
                (exact[i] - 0.4, exact[i] + 0.4)
            )
        assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")


def test_levels_of_a_family_lie_where_the_curve_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = icl.Recall(counts=1, alpha=0.2).simulate()
    levels = {"one": run.floor + 0.5, "two": run.floor + 0.1}
    monkeypatch.setattr(icl.Recall, "levels", lambda problem: levels)
    (ax,) = panels(plot_run(run))
    assert "floor" in ax.get_ylabel()
    places = {text.get_text(): text.xy[1] for text in ax.texts if hasattr(text, "xy")}
    for name, loss in levels.items():
        assert places[name] == pytest.approx(loss - run.floor)


def test_curves_have_the_colours_they_are_given_and_labels_where_they_are_seen_last() -> (
    None
):
    x = np.array([1.0, 10.0, 100.0])
    given = Curve("given", x, x, colour="#123456"), Curve("next", x, 2.0 * x)
    ax: Any = draw_panels([Panel(given, "x", "y", limits=(0.5, 30.0))]).axes[0]
    assert [line.get_color() for line in ax.lines[:2]] == ["#123456", CYCLE[0]]
    seen = {text.get_text(): text.xy for text in ax.texts if hasattr(text, "xy")}
    assert seen["given"] == pytest.approx((10.0, 10.0))
    assert seen["next"] == pytest.approx((10.0, 20.0))


def test_phases_without_room_have_no_name() -> None:
    run = icl.simulate(2.0, 1.0, 4.0)
    run.phases = SimpleNamespace(
        present=lambda: {"long": (0, 1000), "short": (1000, 1010)}
    )  # type: ignore[assignment]
    words = [text.get_text() for text in plot_run(run).texts]
    assert "long" in words
    assert "short" not in words


def test_normalised_descent_that_arrives_has_a_linear_axis_and_its_excess() -> None:
    run = icl.Recall(counts=1, alpha=0.2).simulate()
    (ax,) = panels(plot_run(run))
    np.testing.assert_allclose(
        points(ax.lines[0]), np.column_stack([run.t, run.observed["excess"]])
    )
    assert ax.get_xscale() == "linear"
    assert ax.get_xlim() == pytest.approx((0, run.t[-1]))
    short = icl.Recall(counts=1, alpha=0.2, max_steps=5).simulate()
    assert plot_run(short).get_xscale() == "log"


def test_maps_are_drawn_as_they_are_with_queries_across() -> None:
    rng = np.random.default_rng(0)
    maps = [rng.random((3, 3)) for _ in range(4)]
    axes: Any
    *axes, bar = draw_maps({"one": maps[:2], "two": maps[2:]}, ["start", "end"]).axes
    for ax, each in zip(axes, maps, strict=True):
        np.testing.assert_array_equal(ax.images[0].get_array(), each)
        assert (ax.images[0].norm.vmin, ax.images[0].norm.vmax) == (0.0, 1.0)
        assert ax.images[0].origin == "upper"
    assert axes[0].get_shared_x_axes().joined(axes[0], axes[3])
    assert axes[0].get_shared_y_axes().joined(axes[0], axes[3])
    assert [ax.get_title() for ax in axes[:2]] == ["start", "end"]
    assert [axes[i].get_ylabel() for i in (0, 2)] == ["one\nkey", "two\nkey"]
    assert [axes[i].get_xlabel() for i in (2, 3)] == ["query", "query"]
    dark = (
        axes[0]
        .images[0]
        .cmap(axes[0].images[0].norm([0.0, 0.1, 0.5, 1.0]))[:, :3]
        .sum(axis=1)
    )
    assert np.all(np.diff(dark) < 0)  # darker is more attention
    assert bar.get_ylabel() == "attention"


def test_points_without_steps_are_marked_at_the_edge_that_they_have_passed() -> None:
    """No step is needed: at the bottom. The target is not reached: at the top."""
    found = swept(
        L=[*np.geomspace(1e-3, 10.0, 12), 1e200], epsilon=1e-6, max_steps=10**7
    ).isel(L=slice(0, 13))
    found = found.assign_coords(L=[*found.L.values[:-1], 100.0])
    top = panels(icl.plot_sweep(found))[0]
    kinds = ("no step", "not reached", "failed")
    marks = {line.get_label(): line for line in top.lines if line.get_label() in kinds}
    for label, edge in zip(kinds, (0.0, 1.0, 1.0), strict=True):
        missing = found.steps == 0 if label == "no step" else found.status == label
        places = points(marks[label])
        np.testing.assert_allclose(places[:, 0], found.L.values[missing])
        np.testing.assert_array_equal(places[:, 1], edge)
        assert (
            marks[label].get_transform() == top.get_xaxis_transform()
        )  # a share of the height
    assert len({line.get_marker() for line in marks.values()}) == 3


def test_the_title_leaves_out_numbers_that_are_zero_or_infinite() -> None:
    title = plot_run(icl.simulate(2.0, 1.0, 4.0)).get_title()
    for symbol in ("L", r"\Delta", r"\eta", "K", r"\varepsilon"):
        assert f"${symbol}$ = " in title
    assert "N" not in title
    assert "sigma" not in title
    assert title.endswith("sharp regime")


def test_panels_share_an_axis_only_if_it_means_the_same() -> None:
    x = np.array([1.0, 10.0, 100.0])

    def panel(
        size: float,
        y: str = "loss",
        across: str = "step",
        scales: tuple[str, str] = ("log", "log"),
    ) -> Panel:
        return Panel([Curve("", x * size, x * size)], across, y, scales=scales)

    shared = (
        panel(1.0),
        panel(50.0, across="other"),
        panel(1.0, "attention"),
        panel(50.0, "attention", "other"),
    )
    first, second, third, fourth = draw_panels(shared, 2).axes
    assert first.get_ylim() == second.get_ylim()
    assert (
        first.get_xlim() == third.get_xlim() != second.get_xlim() == fourth.get_xlim()
    )
    assert [ax.get_ylabel() for ax in (first, second, third, fourth)] == [
        "loss",
        "",
        "attention",
        "",
    ]
    assert [ax.get_xlabel() for ax in (first, second, third, fourth)] == [
        "",
        "",
        "step",
        "other",
    ]
    upper, lower = draw_panels([panel(1.0), panel(50.0, across="other")], 1).axes
    assert upper.get_xlim() != lower.get_xlim()
    assert upper.get_xlabel() == "step"
    for other in (panel(50.0, "attention"), panel(50.0, scales=("log", "linear"))):
        left, right = draw_panels([panel(1.0), other], 2).axes
        assert left.get_ylim() != right.get_ylim()
        assert right.get_ylabel() == other.y


def test_levels_lie_at_their_values_and_labels_do_not_overlap() -> None:
    x = np.array([1.0, 10.0, 100.0])
    curves = [Curve(f"curve {i}", x, x * (1 + 0.01 * i)) for i in range(6)]
    figure = draw_panels(
        [
            Panel(
                curves,
                "step",
                "loss",
                levels={"here": 5.0, "there": 70.0},
                limits=(1.0, 200.0),
            )
        ]
    )
    (ax,) = figure.axes
    flat = [line.get_ydata()[0] for line in ax.lines if len(set(line.get_ydata())) == 1]  # type: ignore[index, arg-type]
    assert flat == [5.0, 70.0]
    words: Any = {text.get_text(): text for text in ax.texts}
    assert (words["here"].xy[1], words["there"].xy[1]) == (5.0, 70.0)
    figure.draw_without_rendering()
    boxes = [words[f"curve {i}"].get_window_extent() for i in range(6)]
    for lower, upper in itertools.pairwise(boxes):  # in the order of the curves
        assert lower.y0 < upper.y0
        assert upper.y0 - lower.y0 > 0.75 * upper.height
    middle = 0.5 * (boxes[0].y0 + boxes[-1].y1)
    assert (
        abs(middle - ax.transData.transform((100.0, 102.5))[1]) < 2.5 * boxes[0].height
    )


@pytest.mark.parametrize("scale", ["log", "linear"])
def test_the_figure_of_an_answer_has_its_series(scale: str) -> None:
    x = np.arange(1.0, 6.0)
    series = Series("line", x, x**2), Series("dots", 2 * x, 1 / x, points=True)
    ax: Any = plot_answer(
        Answer("name", "What?", "That.", series, "across", "up", scale)
    )
    for line, each in zip(ax.lines, series, strict=True):
        np.testing.assert_array_equal(points(line), np.column_stack([each.x, each.y]))
        assert line.get_label() == each.label
        assert (
            (line.get_linestyle() == "None")
            == (line.get_marker() == "o")
            == each.points
        )
    assert (ax.get_xscale(), ax.get_yscale()) == (scale, "log")
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title()) == (
        "across",
        "up",
        "What?",
    )


def test_phases_of_a_third_of_the_axis_have_names() -> None:
    ax = new_figure(4.0, 3.0).subplots()
    shade(icl.engine.Phases(I=(0, 10), II=(10, 200), III=(200, 1000)), 1000.0, ax)
    assert [text.get_text() for text in ax.texts] == ["I", "II", "III"]
