"""Figures of sweeps: curves along one parameter, phase diagrams over two."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array, choice
from icl_theory.engine.progress import Progress
from icl_theory.results.columns import dimensions, lines, steps_of, symbol, with_role
from icl_theory.results.numbers import told_apart
from icl_theory.results.plots import style
from icl_theory.results.plots.panels import label_ends
from icl_theory.results.plots.style import (
    BLACK,
    BLUE,
    CYCLE,
    PHASE_COLOURS,
    RED,
    escape,
    new_figure,
    styled,
)
from icl_theory.results.transitions import (
    bars,
    limits_of,
    predicted_transition,
    transitions_of,
)

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes

HOLLOW: Any = {"markerfacecolor": "none"}
FEW = 5  # integers that are drawn side by side like words
# points without a positive number of steps, by their status: marker on a line, and
# colour in a diagram
MISSING = {
    "no step": ("v", "0.88"),
    "not reached": ("^", "0.6"),
    "failed": ("x", "#CC79A7"),
    "pending": ("", "1"),
}


class Scale(NamedTuple):
    """Places of a parameter's values on an axis: logarithmic, linear, or words."""

    name: str
    label: str
    places: Array
    kind: str
    words: list[str]

    def apply(self, ax: Axes, axis: str) -> None:
        """Set up an axis, "x" or "y"."""
        ax.set(**{f"{axis}label": self.label})
        if self.kind == "words":
            ax.set(**{f"{axis}ticks": self.places, f"{axis}ticklabels": self.words})
            ax.tick_params(axis=axis, which="both", length=0)  # type: ignore[arg-type]
            ax.set(**{f"{axis}lim": (-0.5, len(self.places) - 0.5)})
        else:
            ax.set(**{f"{axis}scale": self.kind})

    def edges(self) -> Array:
        """Return the boundaries of cells around the places.

        They are half-way between neighbours on the drawn axis.
        """
        places = np.log(self.places) if self.kind == "log" else self.places
        gaps = np.diff(places)
        if len(places) == 1:
            # A single cell is as wide as its place is far from zero.
            gaps = np.array([abs(places[0]) or 1.0])
        before = places[0] - gaps[0]
        after = places[-1] + gaps[-1]
        extended = np.concatenate([[before], places, [after]])
        middles = 0.5 * (extended[:-1] + extended[1:])
        return np.exp(middles) if self.kind == "log" else middles


@Progress("drawing the figure")
def plot_sweep(dataset: xarray.Dataset, over: str | None = None) -> Axes:
    """Draw steps and exponents along one parameter, or a phase diagram over two.

    On the horizontal axis words, and up to five integers, stand side by side. Words,
    and up to five values, of the other parameter have a curve each. An axis of more
    than 2000 values shows evenly spaced ones.

    Parameters
    ----------
    dataset : xarray.Dataset
        From `sweep` or `load_sweep`, with one or two dimensions.
    over : str, optional
        The parameter on the horizontal axis; the first one with many values unless
        given.

    Returns
    -------
    matplotlib Axes
        The (first) axes of the figure.

    Raises
    ------
    ValueError
        Three dimensions or more (choose with ``dataset.sel(...)``), no steps, or
        infinity among many values.

    Examples
    --------
    >>> import icl_theory as icl, numpy as np
    >>> L = np.geomspace(0.1, 10.0, 9)
    >>> found = icl.sweep(L=L, delta=1.0, eta=0.1, K=np.arange(5, 50, 5))
    >>> icl.plot_sweep(found).get_ylabel()
    '$K$'
    """
    names = dimensions(dataset)
    if len(names) not in (1, 2):
        raise ValueError(
            f"dataset: a figure has one parameter or two, not {names}; "
            "choose with dataset.sel"
        )
    if steps_of(dataset) is None:
        raise ValueError(
            "dataset: no variable has the role 'steps', so there is nothing to draw"
        )
    for name in names:
        if not drawable(dataset, name, np.inf).all():
            raise ValueError(
                f"dataset: {name} is infinite; "
                "an axis of many values needs finite values"
            )
    if over is None:
        over = next(
            (name for name in names if not _is_row_of_words(dataset, name)), names[0]
        )
    over = choice("over", over, names)
    dataset = dataset.sortby(
        [name for name in names if not _is_row_of_words(dataset, name)]
    )
    dataset = dataset.isel(
        {name: slice(None, None, stride) for name, stride in thinned(dataset).items()}
    )
    with styled():
        other = next((name for name in names if name != over), None)
        if other is None:
            return _draw_line(dataset, _scale(dataset, over))
        scales = _scale(dataset, over), _scale(dataset, other)
        most_curves = 2 * FEW if "words" in (scales[0].kind, scales[1].kind) else FEW
        if dataset.sizes[other] <= most_curves:
            return _draw_curves(dataset, *scales)
        return _draw_diagram(dataset.transpose(other, over), *scales)


def thinned(dataset: xarray.Dataset, most: int = 2000) -> dict[str, int]:
    """Return one in how many values is drawn, for parameters with too many values.

    They have more than ``most`` values, as many as a figure has pixels.
    """
    return {
        name: -(-dataset.sizes[name] // most)
        for name in dimensions(dataset)
        if dataset.sizes[name] > most
    }


def drawable(
    dataset: xarray.Dataset, name: str, largest: float = 1e100
) -> NDArray[np.bool_]:
    """Return which values of a parameter have a place on an axis.

    Labels are legible up to ``largest``.
    """
    values = dataset[name].values
    if _is_row_of_words(dataset, name):
        return np.ones(len(values), dtype=bool)
    return np.asarray(np.isfinite(values) & (np.abs(values) <= largest))


def _is_row_of_words(dataset: xarray.Dataset, name: str) -> bool:
    values = dataset[name].values
    if values.dtype.kind not in "iuf":
        return True
    return len(values) <= FEW and bool(
        values.dtype.kind in "iu" or not np.isfinite(values).all()
    )


def _scale(dataset: xarray.Dataset, name: str) -> Scale:
    label = _symbol(dataset, name)
    values = dataset[name].values
    if _is_row_of_words(dataset, name):
        words = [escape(word) for word in told_apart(values.tolist())]
        return Scale(name, label, np.arange(float(len(values))), "words", words)
    places = values.astype(np.float64)
    logarithmic = places.min() > 0 and places.max() >= 10.0 * places.min()
    return Scale(name, label, places, "log" if logarithmic else "linear", [])


def _symbol(dataset: xarray.Dataset, name: str) -> str:
    return style.mathematics(dataset[name].attrs.get("tex", ""), symbol(dataset, name))


def _steps(dataset: xarray.Dataset) -> tuple[Array, dict[str, NDArray[np.bool_]]]:
    """Return the steps (NaN if missing), and for each status a mask of such points."""
    count = dataset[steps_of(dataset)].values
    status = dataset["status"].values
    missing = {
        name: count == 0 if name == "no step" else (count < 0) & (status == name)
        for name in MISSING
    }
    return np.where(count > 0, count, np.nan).astype(np.float64), missing


def _draw_line(dataset: xarray.Dataset, scale: Scale) -> Axes:
    panels = _panels(dataset, scale)
    top = panels[0]
    _plot_steps(top, dataset, scale, BLACK, _symbol(dataset, str(steps_of(dataset))))
    others = [
        *zip(
            with_role(dataset, "phase"),
            itertools.cycle(PHASE_COLOURS),
            itertools.repeat("-"),
        ),
        *zip(
            with_role(dataset, "predicted"),
            itertools.cycle((RED, BLUE)),
            itertools.repeat("--"),
        ),
    ]
    for quantity, colour, dash in others:
        values = dataset[quantity].values.astype(np.float64)
        if (values > 0).any():
            look = _look(scale, dash, colour) | {
                "linewidth": 1.1,
                "label": _symbol(dataset, quantity),
            }
            top.plot(scale.places, np.where(values > 0, values, np.nan), **look)
    if len(panels) > 1:
        _plot_exponent(panels[1], dataset, scale, BLACK)
        panels[1].set_xlim(top.get_xlim())
    low, high = top.get_xlim()
    looks = zip(
        itertools.cycle((RED, "0.4", "0.4")), itertools.cycle((":", "-.", "--"))
    )
    boundaries = (
        _boundaries(dataset, scale)
        if scale.kind != "words" and len(scale.places) > 1
        else []
    )
    for (label, name), (colour, dash) in zip(boundaries, looks, strict=False):
        value = predicted_transition(dataset, scale.name, name)
        for ax in panels if low < value < high else ():
            ax.axvline(
                value,
                color=colour,
                linestyle=dash,
                linewidth=1.0,
                label=label if ax is top else None,
            )
    _legend(panels)
    return top


def _draw_curves(dataset: xarray.Dataset, scale: Scale, other: Scale) -> Axes:
    panels = _panels(dataset, scale)
    ends = []
    words = told_apart(dataset[other.name].values.tolist())
    for i, (word, colour) in enumerate(
        zip(words, itertools.cycle(CYCLE), strict=False)
    ):
        line = dataset.isel({other.name: i})
        drawn = _plot_steps(panels[0], line, scale, colour)
        if len(panels) > 1:
            _plot_exponent(panels[1], line, scale, colour)
        if np.isfinite(drawn).any():
            text = (
                f"{other.label} = {word}"
                if dataset[other.name].dtype.kind in "iuf"
                else escape(word)
            )
            ends.append((float(drawn[np.isfinite(drawn)][-1]), text, colour))
    label_ends(panels[0], ends, 2.4 if len(panels) > 1 else 3.6)
    _legend(panels)
    return panels[0]


def _panels(dataset: xarray.Dataset, scale: Scale) -> list[Axes]:
    exponent = _exponent(dataset, scale)
    both = exponent is not None and bool(np.isfinite(dataset[exponent].values).any())
    panels = new_figure(4.4, 5.6 if both else 3.6).subplots(
        1 + both, 1, sharex=True, squeeze=False
    )[:, 0]
    scale.apply(panels[-1], "x")
    panels[0].set(yscale="log", ylabel="steps")
    return list(panels)


def _exponent(dataset: xarray.Dataset, scale: Scale) -> str | None:
    names = with_role(dataset, "exponent", of=scale.name)
    return names[0] if names and scale.kind != "words" else None


def _look(scale: Scale, dash: str, colour: str) -> dict[str, Any]:
    """Draw words as marks, and numbers as lines, with marks if they are few."""
    if scale.kind == "words":
        mark = (
            {"marker": "o"}
            if dash == "-"
            else {"marker": "D", "markersize": 9, **HOLLOW}
        )
        return {"linestyle": "none", "color": colour} | mark
    return {
        "linestyle": dash,
        "color": colour,
        "marker": "." if len(scale.places) < 20 else "",
    }


def _plot_steps(
    ax: Axes, line: xarray.Dataset, scale: Scale, colour: str, label: str | None = None
) -> Array:
    """Draw steps, and marks at the edges of the axes for points that have none."""
    steps, missing = _steps(line)
    ax.plot(scale.places, steps, **_look(scale, "-", colour), label=label)
    for name, (marker, _) in MISSING.items():
        if marker and missing[name].any():
            places = scale.places[missing[name]]
            edge = np.full(len(places), 0.0 if name == "no step" else 1.0)
            ax.plot(
                places,
                edge,
                marker,
                color=colour,
                **HOLLOW,
                markersize=5,
                transform=ax.get_xaxis_transform(),
                clip_on=False,
                label=name,
            )
    return steps


def _plot_exponent(ax: Axes, line: xarray.Dataset, scale: Scale, colour: str) -> None:
    name = str(_exponent(line, scale))
    ax.plot(scale.places, line[name].values, color=colour)
    ax.set_ylabel(
        rf"$d\,\ln$ {_symbol(line, str(steps_of(line)))} $/\,d\,\ln$ {scale.label}"
    )
    limits = limits_of(line, scale.name)
    if limits is None:
        return
    for value in limits:
        ax.axhline(value, color="0.6", linewidth=0.8)
    # near the ends of the curve, where nothing is left to learn, the exponent may leave
    # its limits
    middle = 0.5 * sum(limits)
    width = abs(limits[1] - limits[0])
    ax.set_ylim(middle - 0.75 * width, middle + 0.75 * width)
    table = transitions_of(line, scale.name)
    if table is not None:
        found = table.iloc[0]
        if np.isfinite(found["measured"]):
            ax.errorbar(
                found["measured"],
                middle,
                xerr=bars([found["measured"]], [found["error"]]),
                color=colour,
                marker="o",
                markersize=4,
                capsize=3,
                label=f"half-way in {scale.label}, measured",
            )
        if np.isfinite(found.get("predicted", np.nan)):
            label = f"half-way in {scale.label}, predicted"
            ax.plot(
                found["predicted"],
                middle,
                "D",
                color=colour,
                **HOLLOW,
                markersize=7,
                label=label,
            )


def _boundaries(dataset: xarray.Dataset, over: Scale) -> list[tuple[str, str]]:
    """Return the words for each boundary in a legend, and its name."""
    found = []
    for name in with_role(dataset, "boundary"):
        label = escape(
            str(dataset[name].attrs.get("definition") or symbol(dataset, name))
        )
        if over.name in dataset[name].attrs.get("half_way", ()):
            label = f"half-way in {over.label}, predicted"
        found.append((label, name))
    return found


def _legend(panels: list[Axes], **look: Any) -> None:
    """Explain the marks of all panels below the figure, not over the data."""
    unique: dict[str, Any] = {}
    for ax in panels:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            unique.setdefault(label, handle)
    if unique:
        look |= {"loc": "outside lower center", "ncols": 2, "fontsize": 8}
        panels[0].figure.figure.legend(list(unique.values()), list(unique), **look)


def _draw_diagram(dataset: xarray.Dataset, over: Scale, other: Scale) -> Axes:
    import matplotlib as mpl

    figure = new_figure(5.0, 4.2)
    ax = figure.subplots()
    steps, missing = _steps(dataset)
    edges = over.edges(), other.edges()
    name = str(steps_of(dataset))
    tex = dataset[name].attrs.get("tex")
    log = style.mathematics(
        rf"\log_{{10}}\,{tex}" if tex else "", f"log10 {symbol(dataset, name)}"
    )
    shown = np.ma.masked_invalid(np.log10(steps))
    mesh = ax.pcolormesh(*edges, shown, cmap="viridis", rasterized=True)
    if not shown.mask.all():
        figure.colorbar(mesh, ax=ax, label=log)
    for scale, axis in ((over, "x"), (other, "y")):
        scale.apply(ax, axis)
    for what, (_, colour) in MISSING.items():
        if missing[what].any():
            area = np.ma.masked_array(np.zeros(steps.shape), mask=~missing[what])
            ax.pcolormesh(
                *edges, area, cmap=mpl.colors.ListedColormap([colour]), rasterized=True
            )
            ax.plot([], [], "s", color=colour, label=what)
    if over.kind != "words":
        _draw_transitions(ax, dataset, over, other)
    ax.set(xlim=edges[0][[0, -1]], ylim=edges[1][[0, -1]])
    _legend([ax], frameon=True, facecolor="0.35", labelcolor="white")
    return ax


def _draw_transitions(
    ax: Axes, dataset: xarray.Dataset, over: Scale, other: Scale, most: int = 40
) -> None:
    """Draw predicted boundaries as curves and measured transitions as points.

    There are no more points than can be told apart.
    """
    for (label, name), dash in zip(
        _boundaries(dataset, over), itertools.cycle(("-", "--", ":"))
    ):
        x, y = _boundary(dataset, name, over, other)
        if np.isfinite(x * y).sum() > 1:
            ax.plot(x, y, dash, color="white", label=label)
    few = slice(None, None, -(-len(other.places) // most))
    transitions = transitions_of(dataset.isel({other.name: few}), over.name)
    if transitions is not None and transitions["measured"].notna().any():
        measured = transitions["measured"]
        ax.errorbar(
            measured,
            other.places[few],
            xerr=bars(measured, transitions["error"]),
            color=RED,
            marker="o",
            markersize=3,
            linestyle="none",
            label=f"half-way in {over.label}, measured",
        )


def _boundary(
    dataset: xarray.Dataset, name: str, over: Scale, other: Scale
) -> tuple[Array, Array]:
    """Return a boundary as a curve.

    These are its values if they bound an axis, otherwise its crossing with each line.
    """
    # In memory first: the threads of dask would look for the largest number of chunks
    # that hold none, and the filters against NumPy's warnings are not safe in threads.
    values = dataset[name].compute()
    of = values.attrs["of"]
    if of in dataset.dims and np.allclose(
        values.max(of), values.min(of), rtol=1e-9, atol=0.0, equal_nan=True
    ):
        along = values.max(of).values
        return (along, other.places) if of == over.name else (over.places, along)
    crossings = [
        predicted_transition(line, over.name, name)
        for _, line in lines(dataset, over.name)
    ]
    return np.array(crossings), other.places
