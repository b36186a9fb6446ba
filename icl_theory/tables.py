"""Phase-transition tables of sweeps, and the files they are written to."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icl_theory._validate import Array, choice, refuse
from icl_theory.files import replacing
from icl_theory.sweep import local_exponent

if TYPE_CHECKING:
    import pandas as pd
    import xarray

FORMATS = {".md": "Markdown", ".csv": "CSV", ".tex": "LaTeX", ".parquet": "Parquet"}
# d ln T / d ln x where learning to attend decides and where the tail does, at a fixed learning rate
LIMITS = {"L": (-2.0, 0.0), "delta": (-2.0, 0.0), "K": (2.0, 1.0), "epsilon": (0.0, -1.0)}
# with the stable rate η ~ K/(L²Δ²), divided by the speed of the coordinates
AUTO_LIMITS = {"L": (0.0, 2.0), "delta": (0.0, 2.0), "K": (1.0, 0.0), "epsilon": (0.0, -1.0)}
MARKS = {1: "✓", 0: "✗", -1: ""}
HEADINGS = {
    "regime": "regime", "T_I": "T_I", "T_II": "T_II", "T_III": "T_III", "steps": "T_ε",
    "predicted_steps": "predicted T_ε", "L_star": "L*", "certified": "certified",
    "theorem_1": "Thm 1", "theorem_2": "Thm 2", "status": "status",
}  # fmt: skip
STEPS = ("T_I", "T_II", "T_III", "steps")
TEX = {
    "T_I": r"$T_{\mathrm{I}}$", "T_II": r"$T_{\mathrm{II}}$", "T_III": r"$T_{\mathrm{III}}$",
    "T_ε": r"$T_\varepsilon$", "predicted T_ε": r"predicted $T_\varepsilon$", "L*": "$L^*$",
    "L": "$L$", "delta": r"$\Delta$", "eta": r"$\eta$", "K": "$K$", "N": "$N$", "epsilon": r"$\varepsilon$",
    "noise": r"$\sigma$", "imbalance": r"$\delta$", "✓": r"$\checkmark$", "✗": r"$\times$",
}  # fmt: skip


class Transition(NamedTuple):
    """Where an exponent passes half-way between two limits, with an estimate of the error of its interpolation."""

    measured: float
    error: float


NOWHERE = Transition(math.nan, math.nan)


def phase_table(dataset: xarray.Dataset, over: str | None = None) -> pd.DataFrame:
    r"""Return the phases along a swept parameter, a row a point.

    Parameters
    ----------
    dataset : xarray.Dataset
        From `sweep` or `load_sweep`.
    over : str, optional
        The parameter whose values follow one another; the first dimension unless given. Other dimensions become
        columns in front.

    Returns
    -------
    pandas.DataFrame
        Parameters, regime, lengths of the phases and T_ε in steps, the measured local exponent
        :math:`d\ln T/d\ln x`, the leading-order T_ε and the exact L* that are predicted, the certified bounds
        and Theorems 1 and 2 as ✓ (holds), ✗ (fails) or nothing (does not apply), and the status where not all
        points reached their target. Points not computed are left out.

    Raises
    ------
    ValueError
        ``over`` is no dimension of the dataset.

    Examples
    --------
    >>> import icl_theory as icl
    >>> found = icl.sweep(L=[0.1, 1.0, 10.0], delta=1.0, eta=4.0, epsilon=1e-4)
    >>> icl.phase_table(found)[["L", "regime", "T_I", "T_ε"]].to_string(index=False).splitlines()[-1].split()
    ['10.0', 'sharp', '4', '11967']
    """
    over = _dimension(dataset, over)
    others = [str(name) for name in dataset.dims if name != over]
    variables = [*HEADINGS, "exponent_" + over]
    if "regime" not in dataset:
        raise refuse("dataset", list(dataset), "one of `sweep`: only in-context regression has phases")
    chosen = dataset[[name for name in variables if name in dataset]]
    frame = chosen.to_dataframe(dim_order=[*others, over]).reset_index()
    frame = frame[frame["status"] != "pending"].reset_index(drop=True)
    table = frame[[*others, over]].copy()
    for name, heading in HEADINGS.items():
        column = frame[name]
        if name in STEPS:
            table[heading] = column.astype("Int64").mask(column < 0)
        elif name in ("certified", "theorem_1", "theorem_2"):
            table[heading] = column.map(MARKS)
        else:
            table[heading] = column
        if name == "steps" and "exponent_" + over in frame:
            table["exponent"] = frame["exponent_" + over]
    if (frame["status"] == "reached").all():
        del table["status"]
    return table


def transition_table(dataset: xarray.Dataset, over: str | None = None) -> pd.DataFrame:
    """Return where the regimes change along a parameter, measured and predicted, a row for each other combination.

    Measured is where the local exponent passes half-way from its limit in the flat regime to that in the sharp one,
    -2 and 0 for L at a fixed learning rate. Its error combines what linear and cubic interpolation make of it, what
    every other point of the grid makes of it, and the rounding of steps to integers.

    Parameters
    ----------
    dataset : xarray.Dataset
        From `sweep` or `load_sweep`.
    over : str, optional
        L, delta, K or epsilon; the first dimension unless given.

    Returns
    -------
    pandas.DataFrame
        Other parameters; ``measured`` and ``error`` (NaN where the exponent does not pass, as for K < 7),
        ``predicted`` by the exact L* and ``leading order``, in units of the parameter.

    Examples
    --------
    >>> import icl_theory as icl, numpy as np
    >>> found = icl.sweep(L=np.geomspace(0.03, 30.0, 61), delta=1.0, eta=0.01, epsilon=1e-4)
    >>> icl.transition_table(found).round(4).to_dict("records")
    [{'measured': 0.1429, 'error': 0.0002, 'predicted': 0.1991, 'leading order': 0.1298}]
    """
    import pandas as pd

    over = _dimension(dataset, over)
    if over not in LIMITS:
        raise refuse("over", over, "one of " + ", ".join(LIMITS) + " for a transition")
    rows = []
    for point, line in _lines(dataset, over):
        measured, error = transition(
            line["steps"].values, line[over].values.astype(np.float64), half_way_value(line, over)
        )
        predictions = {
            "predicted": predicted_transition(line, over, "L_star"),
            "leading order": predicted_transition(line, over, "L_star_leading"),
        }
        rows.append({**point, "measured": measured, "error": error, **predictions})
    return pd.DataFrame(rows)


def half_way_value(dataset: xarray.Dataset, over: str) -> float:
    """Return the exponent half-way between its two limits."""
    arguments = json.loads(dataset.attrs["arguments"])
    limits = (AUTO_LIMITS if arguments["eta"] == "auto" else LIMITS)[over]
    # the speed Δ⁴/4 of embedding coordinates comes on top, unless the learning rate makes up for it
    extra = (
        4.0 if over == "delta" and arguments["coordinates"] == "embedding" and arguments["eta"] != "auto" else 0.0
    )
    return 0.5 * sum(limits) - extra


def transition(steps: Array, values: Array, half_way: float) -> Transition:
    """Where the exponent rises through ``half_way``, from steps at some values of a parameter.

    It rises in every parameter; where it falls through, the run is about to have nothing to learn.

    Examples
    --------
    >>> import numpy as np
    >>> from icl_theory.tables import transition
    >>> L = np.geomspace(0.01, 100.0, 41)
    >>> found = transition(1e9 * (1 + 4.0 / L**2), L, -1.0)
    >>> abs(found.measured - 2.0) < found.error < 0.01
    True
    """
    order = np.argsort(values)
    x, count = values[order], steps[order]
    candidates = [_refined(x, count, half_way, i) for i in _rises(local_exponent(count, x, 0), half_way)]
    # single steps that go far make the exponent jump: of several passages the best resolved one is meant
    return min(candidates, key=lambda found: found.error / found.measured, default=NOWHERE)


def _refined(values: Array, count: Array, half_way: float, i: int) -> Transition:
    """The passage between two neighbouring values, the i-th and the next one."""
    x, exponent = np.log(values), local_exponent(count, values, 0)
    linear = _crossing(x, exponent, half_way, i)
    spline = _smooth(x, exponent, half_way, linear)
    # centred differences err by the square of the spacing, so that twice the spacing errs by four times as much
    spread = []
    for half in (slice(0, None, 2), slice(1, None, 2)):
        wide = local_exponent(count[half], values[half], 0) if len(x[half]) > 2 else np.zeros(0)
        passages = [_crossing(x[half], wide, half_way, j) for j in _rises(wide, half_way)]
        spread += [min(abs(place - linear) for place in passages) / 3.0] if passages else []
    width, rise = x[i + 1] - x[i], exponent[i + 1] - exponent[i]
    rounding = 0.5 / float(min(count[i], count[i + 1])) / rise
    error = abs(spline - linear) + max(spread, default=float(width)) + rounding
    return Transition(math.exp(spline), math.exp(spline) * math.expm1(min(error, 700.0)))


def predicted_transition(line: xarray.Dataset, over: str, boundary: str) -> float:
    """Value of a parameter at which L is the predicted crossover, along one line of a sweep."""
    x = np.log(line[over].values.astype(np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = np.log(np.broadcast_to(line["L"].values, x.shape) / line[boundary].values)
    order = np.argsort(x)
    x, excess = x[order], excess[order]
    if not np.isfinite(excess).all() or len(x) < 2:
        return math.nan
    sign = np.flatnonzero(excess[:-1] * excess[1:] <= 0)
    first = int(sign[0]) if sign.size else 0 if abs(excess[0]) < abs(excess[-1]) else len(x) - 2
    if not sign.size and over == "K":
        return math.nan  # not a power of K: nothing to be said beyond the grid
    slope = (excess[first + 1] - excess[first]) / (x[first + 1] - x[first])
    return math.exp(x[first] - excess[first] / slope) if slope else math.nan


def write_table(table: pd.DataFrame, path: str | os.PathLike[str], notes: tuple[str, ...] = ()) -> None:
    """Write a table in the format that the ending of the path names: .md, .csv, .tex (booktabs) or .parquet.

    Parameters
    ----------
    table : pandas.DataFrame
        From `phase_table` or `transition_table`.
    path : path-like
        The file, written whole or not at all.
    notes : tuple of str
        Lines below the table, where the format has room for them (Markdown, LaTeX).

    Raises
    ------
    ValueError
        Another ending, or Parquet without pyarrow.
    """
    target = Path(path)
    form = FORMATS.get(target.suffix)
    if form is None:
        raise refuse("path", str(path), "a file name ending in " + ", ".join(FORMATS))
    with replacing(target) as temporary:
        if form == "Parquet":
            check_parquet(target)
            table.to_parquet(temporary, index=False)
        elif form == "CSV":
            table.to_csv(temporary, index=False)
        else:
            text = to_markdown(table, notes) if form == "Markdown" else to_latex(table, notes)
            temporary.write_text(text, encoding="utf-8")


def check_parquet(path: Path) -> None:
    """Refuse a Parquet file where pyarrow is missing."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise refuse("path", str(path), "another format: Parquet needs pip install 'icl-theory[parquet]'") from None


def to_markdown(table: pd.DataFrame, notes: tuple[str, ...] = ()) -> str:
    """Return a table in Markdown, numbers to four digits and to the right, ``notes`` (sentences) below it.

    Examples
    --------
    >>> import pandas as pd
    >>> from icl_theory.tables import to_markdown
    >>> print(to_markdown(pd.DataFrame({"L": [0.5], "regime": ["flat"]})), end="")
    | L | regime |
    |--:|:--|
    | 0.5 | flat |
    """
    lines = [
        list(map(str, table.columns)),
        ["--:" if right else ":--" for right in _numeric(table)],
        *_cells(table),
    ]
    lines = [[cell.replace("|", r"\|") for cell in line] for line in lines]
    text = [
        ("|" + "|".join(line) + "|") if i == 1 else ("| " + " | ".join(line) + " |") for i, line in enumerate(lines)
    ]
    return "\n".join(text + [f"\n{note}" for note in notes]) + "\n"


def to_latex(table: pd.DataFrame, notes: tuple[str, ...] = ()) -> str:
    r"""Return a table in LaTeX, which needs ``\usepackage{booktabs,amssymb}``, ``notes`` (sentences) below it.

    Examples
    --------
    >>> import pandas as pd
    >>> from icl_theory.tables import to_latex
    >>> print(to_latex(pd.DataFrame({"L": [0.5], "regime": ["flat"]})), end="")
    % \usepackage{booktabs,amssymb}
    \begin{tabular}{rl}
    \toprule
    $L$ & regime \\
    \midrule
    0.5 & flat \\
    \bottomrule
    \end{tabular}
    """
    rows = [" & ".join(_tex(cell) for cell in row) + r" \\" for row in ([*map(str, table.columns)], *_cells(table))]
    columns = "".join("r" if right else "l" for right in _numeric(table))
    head = [
        r"% \usepackage{booktabs,amssymb}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        rows[0],
        r"\midrule",
    ]
    foot = [r"\bottomrule", r"\end{tabular}", *(r"\par " + _tex(note) for note in notes)]
    return "\n".join([*head, *rows[1:], *foot]) + "\n"


def transition_notes(dataset: xarray.Dataset, over: str | None = None) -> tuple[str, ...]:
    """Return the transitions of a sweep in words, a line each, for below its table; none where it has none."""
    over = _dimension(dataset, over)
    if over not in LIMITS or dataset.sizes[over] < 4:
        return ()
    lines = []
    for row in transition_table(dataset, over).to_dict("records"):
        where = ", ".join(f"{name} = {_number(value)}" for name, value in row.items() if name in dataset.dims)
        found = (
            "the measured exponent does not pass half-way"
            if math.isnan(row["measured"])
            else f"measured transition {over} = {row['measured']:.4g} ± {row['error']:.1g}"
        )
        if not math.isnan(row["predicted"]):
            found += f", predicted {row['predicted']:.4g} (leading order {row['leading order']:.4g})"
        lines.append(f"{where}: {found}." if where else found[0].upper() + found[1:] + ".")
    return tuple(lines)


def _dimension(dataset: xarray.Dataset, over: str | None) -> str:
    names = [str(name) for name in dataset.dims]
    if not names:
        raise refuse("over", over, "a swept parameter; this sweep has a single point")
    return names[0] if over is None else choice("over", over, names)


def _lines(dataset: xarray.Dataset, over: str) -> Iterator[tuple[dict[str, float], xarray.Dataset]]:
    """Lines of a sweep along one parameter, each with the values of the others."""
    others = [str(name) for name in dataset.dims if name != over]
    for index in np.ndindex(*(dataset.sizes[name] for name in others)):
        line = dataset.isel(dict(zip(others, index, strict=True)))
        yield {name: line[name].item() for name in others}, line


def _rises(exponent: Array, level: float) -> list[int]:
    """Indices of values between which and the next ones the exponent rises through a level."""
    with np.errstate(invalid="ignore"):
        return [int(i) for i in np.flatnonzero((exponent[:-1] < level) & (exponent[1:] >= level))]


def _crossing(x: Array, exponent: Array, level: float, i: int) -> float:
    """Where it does so, by linear interpolation."""
    return float(x[i] + (level - exponent[i]) / (exponent[i + 1] - exponent[i]) * (x[i + 1] - x[i]))


def _smooth(x: Array, exponent: Array, level: float, near: float) -> float:
    """The same by a cubic spline, the root next to the linear one."""
    from scipy.interpolate import CubicSpline

    good = np.isfinite(exponent)
    if good.sum() < 4:
        return near
    roots = CubicSpline(x[good], exponent[good] - level).roots(extrapolate=False)
    return float(roots[np.argmin(np.abs(roots - near))]) if roots.size else near


def _numeric(table: pd.DataFrame) -> list[bool]:
    return [table[name].dtype.kind in "iufIF" for name in table.columns]


def _cells(table: pd.DataFrame) -> list[list[str]]:
    columns = [[_number(value) for value in table[name]] for name in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def _number(value: Any) -> str:
    """Integers in full, other numbers to four digits, nothing for what is missing."""
    import pandas as pd

    if isinstance(value, str):
        return value
    if value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return ""
    return str(int(value)) if isinstance(value, int | np.integer) else f"{value:.4g}"


def _tex(text: str) -> str:
    if text in TEX:
        return TEX[text]
    for symbol, command in (("\\", r"\textbackslash "), *((c, "\\" + c) for c in "&%$#_{}"), ("±", r"$\pm$")):
        text = text.replace(symbol, command)
    return text
