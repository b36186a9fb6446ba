"""Figures of sweeps: steps and local exponents along one parameter, phase diagrams over two."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from icl_theory._validate import refuse
from icl_theory.plotting import BLACK, BLUE, GREEN, ORANGE, RED, STYLE, new_figure
from icl_theory.points import point_table
from icl_theory.tables import LIMITS, half_way_value, transition_table

if TYPE_CHECKING:
    import pandas as pd
    import xarray
    from matplotlib.axes import Axes

SYMBOLS = {
    "L": "$L$", "delta": r"$\Delta$", "eta": r"$\eta$", "K": "$K$", "N": "$N$", "epsilon": r"$\epsilon$",
    "noise": r"$\sigma$", "imbalance": r"$\delta$", "Q": "$|Q|$", "V": "$V$", "alpha": r"$\alpha$", "M": "$M$",
}  # fmt: skip


def plot_sweep(dataset: xarray.Dataset, over: str | None = None) -> Axes:
    """Draw a sweep: over one parameter steps and local exponent, over two the phase diagram.

    Parameters
    ----------
    dataset : xarray.Dataset
        From `sweep`, `sweep_recall` or `load_sweep`, with one or two dimensions.
    over : str, optional
        The parameter on the horizontal axis; the first dimension unless given.

    Returns
    -------
    matplotlib Axes
        The (first) axes of the figure.

    Raises
    ------
    ValueError
        Another number of dimensions: choose with ``dataset.sel(...)``.

    Examples
    --------
    >>> import icl_theory as icl, numpy as np
    >>> found = icl.sweep(L=np.geomspace(0.1, 10.0, 9), delta=1.0, eta=0.1, K=[5, 20, 100])
    >>> from icl_theory.diagrams import plot_sweep
    >>> plot_sweep(found).get_ylabel()
    '$K$'
    """
    names = [str(name) for name in dataset.dims]
    if len(names) not in (1, 2):
        raise refuse("dataset", names, "swept over one parameter or two (choose others with dataset.sel)")
    over = names[0] if over is None else over
    if over not in names:
        raise refuse("over", over, "one of " + ", ".join(names))
    with mpl.rc_context(STYLE):
        if len(names) == 1:
            return _draw_line(dataset, over)
        other = names[1 - names.index(over)]
        return _draw_diagram(dataset.transpose(other, over).sortby([other, over]), over, other)


def _draw_line(dataset: xarray.Dataset, over: str) -> Axes:
    table = point_table(dataset, over).sort_values(over)
    with_exponent = "exponent" in table and bool(table["exponent"].notna().any())
    panels = new_figure(4.4, 5.0 if with_exponent else 3.2).subplots(
        2 if with_exponent else 1, 1, sharex=True, squeeze=False
    )[:, 0]
    top = panels[0]
    marker = "." if len(table) < 20 else ""
    for name, colour, style in (("T_ε", BLACK, "-"), ("T_I", ORANGE, "-"), ("predicted T_ε", BLUE, "--")):
        if name not in table:
            continue
        values = table[name].astype("float64").to_numpy(na_value=np.nan)
        label = {"T_ε": r"$T_\epsilon$", "T_I": r"$T_{\rm I}$"}.get(name, r"leading order of $T_\epsilon$")
        if (values > 0).any():
            top.plot(table[over], np.where(values > 0, values, np.nan), style + marker, color=colour, label=label)
    top.set_yscale("log")
    top.set_ylabel("steps")
    if with_exponent:
        _draw_exponent(panels[1], table, dataset, over)
    found = transition_table(dataset, over).iloc[0] if over in LIMITS and dataset.sizes[over] > 3 else {}
    _scale(top, over, table[over].to_numpy(dtype=np.float64), "x")
    low, high = top.get_xlim()
    for name, colour, label in (("predicted", RED, "exact $L^*$"), ("leading order", GREEN, "leading-order $L^*$")):
        value = found.get(name, math.nan)
        for ax in panels if low < value < high else ():
            ax.axvline(value, color=colour, linestyle=":", linewidth=1.2, label=label if ax is top else None)
    if math.isfinite(found.get("measured", math.nan)) and with_exponent:
        height = half_way_value(dataset, over)
        panels[1].errorbar(
            found["measured"], height, xerr=found["error"], color=BLACK, marker="o", markersize=4, capsize=3,
            label="half-way",
        )  # fmt: skip
        panels[1].legend(fontsize=8)
    if top.get_legend_handles_labels()[0]:
        top.legend(fontsize=8, frameon=True, framealpha=0.85, edgecolor="none")
    panels[-1].set_xlabel(SYMBOLS.get(over, over))
    return top  # type: ignore[no-any-return]


def _draw_exponent(ax: Axes, table: pd.DataFrame, dataset: xarray.Dataset, over: str) -> None:
    ax.plot(table[over], table["exponent"], color=BLACK)
    ax.set_ylabel(rf"$d\,\ln T_\epsilon\,/\,d\,\ln$ {SYMBOLS.get(over, over)}")
    if over in LIMITS:
        middle = half_way_value(dataset, over)
        width = abs(LIMITS[over][0] - LIMITS[over][1])
        for value in (middle - 0.5 * width, middle + 0.5 * width):
            ax.axhline(value, color="0.6", linewidth=0.8)
        # next to its ends, where there is nothing to learn, the exponent has no limit
        ax.set_ylim(middle - 0.75 * width, middle + 0.75 * width)


def _draw_diagram(dataset: xarray.Dataset, over: str, other: str) -> Axes:
    figure = new_figure(5.0, 3.8)
    ax = figure.subplots()
    x, y = (dataset[name].values.astype(np.float64) for name in (over, other))
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise refuse("dataset", f"{over} and {other}", "swept over finite values to be drawn")
    steps = dataset["steps"].values.astype(np.float64)
    shown = np.ma.MaskedArray(np.log10(np.maximum(steps, 1.0)), mask=steps < 1)
    colours = mpl.colormaps["viridis"].with_extremes(bad="0.85")
    mesh = ax.pcolormesh(_edges(x), _edges(y), shown, cmap=colours, rasterized=True)
    figure.colorbar(mesh, ax=ax, label=r"$\log_{10}\,T_\epsilon$")
    handles: list[Any] = []
    style: Any
    for name, style, label in (
        ("L_star", "-", "predicted boundary"),
        ("L_star_leading", "--", "leading order"),
    ):
        excess = _excess(dataset, name)
        if excess is not None and min(excess.shape) > 1 and excess.min() < 0 < excess.max():
            ax.contour(x, y, excess, levels=[0.0], colors="white", linestyles=style, linewidths=1.6)
            handles.append(Line2D([], [], color="white", linestyle=style, label=label))
    if over in LIMITS and dataset.sizes[over] > 3:
        found = transition_table(dataset, over)
        points = ax.errorbar(
            found["measured"], found[other], xerr=found["error"], color=RED, marker="o", markersize=3,
            linestyle="none", label="measured transition",
        )  # fmt: skip
        if found["measured"].notna().any():
            handles.append(points)
    for name, values, axis in ((over, x, "x"), (other, y, "y")):
        _scale(ax, name, values, axis)
    ax.set_xlim(_edges(x)[[0, -1]])
    ax.set_ylim(_edges(y)[[0, -1]])
    if shown.mask.any():
        handles.append(Patch(color="0.85", label="no step, or not reached"))
    if handles:
        ax.legend(handles=handles, fontsize=8, facecolor="0.35", labelcolor="white", frameon=True, framealpha=0.8)
    ax.set_xlabel(SYMBOLS.get(over, over))
    ax.set_ylabel(SYMBOLS.get(other, other))
    return ax  # type: ignore[no-any-return]


def _excess(dataset: xarray.Dataset, boundary: str) -> Any:
    """``ln(L/L*)`` on the grid, positive in the sharp regime; None where no L* is predicted."""
    if boundary not in dataset:
        return None
    excess: Any = dataset["L"] / dataset[boundary]
    excess = np.log(excess.transpose(*dataset["steps"].dims).values)
    return excess if np.isfinite(excess).all() else None


def _is_logarithmic(values: Any) -> bool:
    return bool(values.min() > 0 and values.max() >= 10.0 * values.min())


def _scale(ax: Axes, name: str, values: Any, axis: str) -> None:
    if _is_logarithmic(values):
        ax.set(**{f"{axis}scale": "log"})


def _edges(values: Any) -> Any:
    """Boundaries of cells around values, half-way between neighbours on the axis that is drawn."""
    logarithmic = _is_logarithmic(values)
    places = np.log(values) if logarithmic else values
    if len(places) == 1:
        inner, width = np.zeros(0), 0.5 * (abs(places[0]) or 1.0)
        first = last = width
    else:
        inner = 0.5 * (places[:-1] + places[1:])
        first, last = inner[0] - places[0], places[-1] - inner[-1]
    edges = np.concatenate([[places[0] - first], inner, [places[-1] + last]])
    return np.exp(edges) if logarithmic else edges
