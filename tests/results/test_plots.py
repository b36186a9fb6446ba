from __future__ import annotations

import math
from pathlib import Path
from statistics import stdev
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.engine.trajectory import Label, Phases
from icl_theory.results.plots import (
    Curve,
    Panel,
    compare_runs,
    draw_panels,
    plot_answer,
    save,
    whole_figure,
)
from icl_theory.results.plots.style import new_figure, shade, styled
from icl_theory.statements.claim import Answer, Series
from tests.problems import Bowl


@pytest.mark.parametrize("ending", ["png", "pdf", "svg"])
def test_figure_is_written_in_the_format_of_its_name(
    ending: str, tmp_path: Path
) -> None:
    path = tmp_path / f"run.{ending}"
    figure = Figure((1.0, 1.0))
    figure.suptitle(r"$\eta$ ≤ 1")
    save(figure, str(path))
    start = path.read_bytes()[:5]
    assert start.startswith(
        {"png": b"\x89PNG", "pdf": b"%PDF-", "svg": b"<?xml"}[ending]
    )


@pytest.mark.parametrize("name", [" ", "run", "run.", "run.xyz", ".png"])
def test_a_name_of_no_format_is_refused_with_the_known_ones(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(
        ValueError, match=r"path = .*: must be a file name ending in .*\.pdf"
    ):
        save(Figure(), tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("apart", [0.0, 1e-15, -1e-15])
def test_labels_of_curves_that_meet_are_in_the_order_of_the_curves(
    apart: float,
) -> None:
    figure = draw_panels(
        [
            Panel(
                [
                    Curve("one", [0, 1], [0, 0.5]),
                    Curve("two", [0, 1], [1, 0.5 + apart]),
                ],
                "x",
                "y",
            )
        ]
    )
    heights = {
        text.get_text(): text.xy[1] for text in figure.axes[0].texts if text.get_text()
    }
    assert heights["one"] < heights["two"]


def test_loss_curve_is_drawn_on_given_axes_with_logarithmic_scales() -> None:
    ax = Figure().subplots()
    run = icl.simulate(2.0, 1.0, 4.0)
    assert run.plot(ax) is ax
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), run.loss)


def test_attention_is_drawn_with_what_it_misses_and_the_band_of_its_queries() -> None:
    run = icl.simulate(2.0, 1.0, 4.0, K=3, probs=[0.6, 0.3, 0.1], epsilon=1e-2)
    ax = run.plot().get_figure().axes[1]  # type: ignore[union-attr]
    target, missing = (line.get_ydata() for line in ax.lines)
    np.testing.assert_allclose(target, run.attention.mean(axis=1))
    np.testing.assert_allclose(missing, 1.0 - run.attention.mean(axis=1))
    (band,) = (each for each in ax.collections if isinstance(each, PolyCollection))
    ends = band.get_paths()[0].vertices[:, 1]
    assert (ends.min(), ends.max()) == (run.attention.min(), run.attention.max())
    starts: Any = {text.get_text(): text.xy[1] for text in ax.texts}
    assert starts == {"target": target[0], "1 − target": missing[0]}


def test_panels_show_the_numbers_of_their_curves_and_bands() -> None:
    x, y = np.array([1.0, 2.0, 4.0]), np.array([3.0, 2.0, 1.0])
    curves = [Curve("a", x, y, low=0.5 * y, high=1.5 * y), Curve("b", x, 2.0 * y)]
    (ax,) = draw_panels([Panel(curves, "x", "y")]).axes
    for line, curve in zip(ax.lines, curves, strict=False):
        np.testing.assert_array_equal(
            line.get_xydata(), np.column_stack([curve.x, curve.y])
        )
    (band,) = (each for each in ax.collections if isinstance(each, PolyCollection))
    ends = {tuple(end) for end in band.get_paths()[0].vertices}
    assert ends == {*zip(x, 0.5 * y, strict=True), *zip(x, 1.5 * y, strict=True)}


def test_phases_are_shaded_where_they_are() -> None:
    run = icl.simulate(2.0, 1.0, 4.0)
    ax = Figure().subplots()
    run.plot(ax)
    assert run.phases is not None
    labels = [text.get_text() for text in ax.texts]
    assert [name for name in ("I", "II", "III") if name in labels] == ["I", "II", "III"]
    edges = [
        patch.get_extents().transformed(ax.transData.inverted()).x0
        for patch in ax.patches
    ]
    assert edges == pytest.approx(
        [0.5, run.phases.I[1], run.phases.III[0]] if run.phases.III else []
    )


ODD_RUNS = {
    "no step": {"epsilon": 5.0},
    "two features": {"K": 2, "epsilon": 0.4},
    "queries": {"K": 4, "probs": [0.1, 0.2, 0.3, 0.4], "epsilon": 1e-2},
    "floor": {"N": 30, "epsilon": 1e-2},
    "one step": {"L": 1e12, "eta": 1e9, "epsilon": 1e-9},
}


def odd_run(name: str) -> icl.Trajectory:
    return icl.simulate(**{"L": 2.0, "delta": 1.0, "eta": 4.0} | ODD_RUNS[name])


@pytest.mark.parametrize("name", ODD_RUNS)
def test_odd_runs_can_be_drawn(name: str) -> None:
    whole_figure(odd_run(name).plot()).draw_without_rendering()


def test_odd_runs_can_be_compared() -> None:
    """Five runs in one figure, some of whose curves are single points."""
    drawn = compare_runs([odd_run(name) for name in ODD_RUNS])
    whole_figure(drawn).draw_without_rendering()


class FarAway(icl.PopulationRisk):
    """No query attends to its own feature: exp(-2000) is 0."""

    initial = -2000.0 * np.eye(4)  # type: ignore[assignment]


def test_runs_out_of_range_are_drawn_without_a_warning(tmp_path: Path) -> None:
    """Losses near the end of float64, whose axis would need margins beyond it, and attention that is exactly 0."""
    problem = {
        "V": 20,
        "triggers": 2,
        "outputs": 2,
        "gamma": "trained",
        "alpha": 0.3,
        "rule": "gd",
    }
    huge = icl.recall.simulate(**problem, eta=1e305, max_steps=50)
    assert huge.loss.max() > 1e300
    none = icl.descend(
        FarAway(icl.Features.random(4, 2, 1.0, 0), icl.tasks.Exchangeable(2.0)),
        1.0,
        steps=3,
    )
    assert none.attention.max() == 0.0
    for run in (huge, none):
        assert run._repr_html_()
        curves = [
            Curve("loss", run.t, run.loss),
            Curve("twice", run.t, np.minimum(run.loss, 1e307) * 2.0),
        ]
        save(draw_panels([Panel(curves, "step", "loss")]), tmp_path / "a.png")


def test_a_target_beyond_the_range_of_the_axis_is_drawn() -> None:
    run = icl.simulate(1.0, 1e-3, 0.1, epsilon=1e300)
    run.plot().figure.canvas.draw()
    assert run.converged


def test_words_of_a_file_in_the_title_are_no_formulas(tmp_path: Path) -> None:
    run = icl.simulate(2.0, 1.0, 4.0)
    run.info["coordinates"] = run.regime = "$\\frac$"
    run.labels = run.labels | {"L": Label("$L$", r"\frac", "", "")}
    save(compare_runs([run, icl.simulate(2.0, 1.0, 4.0)]), tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "coordinates = $\\frac$, $\\frac$ regime" in drawn
    assert "$L$ = 2" in drawn


def test_the_title_has_the_labels_of_the_run_also_when_it_was_loaded(
    tmp_path: Path,
) -> None:
    run = icl.simulate(2.0, 1.0, 4.0, N=50, epsilon=1e-2)
    run.save(tmp_path / "a.npz")
    titles = [each.plot().get_title() for each in (run, icl.load(tmp_path / "a.npz"))]
    assert titles[0] == titles[1]
    words = (
        "$L$ = 2",
        r"$\Delta$ = 1",
        r"$\eta$ = 4",
        "$K$ = 20",
        "$N$ = 50",
        r"$\varepsilon$ = 0.01",
        "sharp regime",
    )
    assert all(word in titles[0] for word in words)
    run.labels = {}
    assert run.plot().get_title().startswith("L = 2, delta = 1, eta = 4, K = 20")


def test_phases_whose_steps_multiply_beyond_64_bits_are_named() -> None:
    """NumPy takes no root of a Python integer beyond 2^63."""
    with styled():
        ax = new_figure(3.0, 2.0).subplots()
        shade(Phases(I=(0, 10**10), II=(10**10, 10**15)), 1e15, ax)
    assert [text.get_text() for text in ax.texts] == ["I", "II"]
    assert ax.texts[1].get_position()[0] == pytest.approx(10.0**12.5)


def test_phases_of_any_names_are_shaded_and_named() -> None:
    run = icl.simulate(2.0, 1.0, 4.0)
    run.phases = SimpleNamespace(
        present=lambda: {"search": (0, 69), "settle": (69, 1413)}
    )  # type: ignore[assignment]
    ax = run.plot()
    labels = [text.get_text() for text in ax.texts]
    assert {"search", "settle"} <= set(labels)
    assert len({patch.get_facecolor() for patch in ax.patches}) == 2


def test_a_risk_without_attention_has_a_loss_panel_only() -> None:
    ax = icl.descend(Bowl(), 0.1, steps=10).plot()
    assert len(ax.get_figure().axes) == 1  # type: ignore[union-attr]


def test_axes_of_a_part_of_a_figure_belong_to_the_whole_one() -> None:
    figure = Figure()
    assert whole_figure(figure) is figure
    assert whole_figure(figure.subplots()) is figure
    assert whole_figure(figure.subfigures(1, 2)[0].subplots()) is figure
    gone = Figure().subplots()
    gone.remove()
    with pytest.raises(ValueError, match="axes of a figure"):
        whole_figure(gone)


@pytest.mark.parametrize("count", [2, 3, 20])
def test_bands_are_two_standard_errors_wide_on_either_side(count: int) -> None:
    runs = np.random.default_rng(count).normal(size=(count, 5))
    curve = Curve.mean("runs", np.arange(5.0), [*runs[:-1], np.append(runs[-1], 0.0)])
    half = (
        2.0 * np.array([stdev(column) for column in runs.T.tolist()]) / math.sqrt(count)
    )
    np.testing.assert_allclose(curve.y, runs.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(curve.low, curve.y - half, rtol=1e-12)
    np.testing.assert_allclose(curve.high, curve.y + half, rtol=1e-12)


@pytest.mark.parametrize("family", ["regression", "recall", "linear-attention"])
def test_the_target_is_drawn_where_the_curve_of_the_loss_meets_it(family: str) -> None:
    run = {
        "regression": lambda: icl.simulate(2.0, 1.0, 4.0, K=5, N=8, above=1e-2),
        "recall": lambda: icl.recall.simulate(alpha=0.2, above=1e-2),
        "linear-attention": lambda: icl.linear_attention.LinearAttention(
            noise=0.3, above=1e-2
        ).simulate(),
    }[family]()
    assert run.steps is not None
    assert run.floor > 0.1 * run.epsilon
    ax = run.plot().get_figure().axes[0]  # type: ignore[union-attr]
    (curve, target) = (
        np.asarray(line.get_ydata(), dtype=float) for line in ax.lines[:2]
    )
    assert curve[-1] <= target[0] < curve[-2]
    least = run.floor if "floor" in ax.get_ylabel() else 0.0
    assert target[0] == pytest.approx(run.epsilon - least, rel=1e-9)


@pytest.mark.parametrize(
    "label", ["a short one", "3 states, 2 lags, square loss, all of the matrices"]
)
def test_a_legend_of_many_lines_is_in_the_figure_and_below_the_axes(label: str) -> None:
    """A legend beside the axes was cut off on both sides, and moved when the figure was drawn again."""
    x = np.arange(1.0, 9.0)
    answer = Answer(
        "a", "Why?", "So.", tuple(Series(label, x, x**k) for k in range(6)), "x", "y"
    )
    drawn = plot_answer(answer)
    figure = whole_figure(drawn)
    places = []
    for _ in range(2):
        figure.draw_without_rendering()
        (legend,) = figure.legends
        places.append(legend.get_window_extent().extents)
    assert (places[1][:2] > 0.0).all()
    assert places[1][2] < figure.bbox.width
    assert places[1][3] < drawn.get_window_extent().y0
    np.testing.assert_array_equal(*places)


@pytest.mark.parametrize("lengths", [(3, 5), (5, 3, 4), (5, 5)])
def test_a_mean_of_runs_is_as_long_as_the_shortest_and_begins_where_they_begin(
    lengths: tuple[int, ...],
) -> None:
    x, size = np.arange(1.0, 6.0), min(lengths)
    curve = Curve.mean(
        "a", x, [10.0 * i + x[:length] ** 2 for i, length in enumerate(lengths)]
    )
    np.testing.assert_array_equal(curve.x, x[:size])
    np.testing.assert_allclose(curve.y, x[:size] ** 2 + 5.0 * (len(lengths) - 1))
