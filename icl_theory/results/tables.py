"""Tables of sweeps, with a row for each point, and files of these tables."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icl_theory import _validate
from icl_theory._extras import install
from icl_theory._validate import argument_error, flag
from icl_theory.engine.interrupts import load_whole
from icl_theory.engine.progress import Progress
from icl_theory.files import checked_path, replacing
from icl_theory.memory import check_fits
from icl_theory.results.columns import (
    dimension,
    dimensions,
    has_values,
    meanings,
    symbol,
    with_role,
)
from icl_theory.results.numbers import is_right_aligned, markdown, number
from icl_theory.results.reading import TEXT_SIZE, computed, slabs
from icl_theory.results.transitions import transition_notes
from icl_theory.sweeps.grid import PENDING, REACHED

if TYPE_CHECKING:
    import pandas as pd
    import xarray

# The largest number of rows of a table in Markdown or LaTeX. Such a table is meant for
# readers, and its text is made in memory as a whole. CSV and Parquet have no limit,
# because they are written in parts.
MOST_ROWS = 100_000
# The signs in a table for a statement that holds, ✓, and for one that fails, ✗.
HOLDS = number(True)
FAILS = number(False)
# The formats of tables, by the ending of the file name.
FORMATS = {".md": "Markdown", ".csv": "CSV", ".tex": "LaTeX", ".parquet": "Parquet"}
# How LaTeX writes the signs of `number`, and the ± of `transition_notes`.
SIGNS = {
    "✓": r"$\checkmark$",
    "✗": r"$\times$",
    "∞": r"$\infty$",
    "−": "$-$",
    "±": r"$\pm$",
}
# How LaTeX writes the characters that it would read as commands, and the SIGNS.
ESCAPES = str.maketrans(
    {character: rf"\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}"}
    | SIGNS
)


@Progress("making the table")
def phase_table(
    dataset: xarray.Dataset, over: str | None = None, *, every: bool = False
) -> pd.DataFrame:
    r"""Return the results of a sweep as a table with one row for each point.

    Parameters
    ----------
    dataset : xarray.Dataset
        From `sweep` or `load_sweep`.
    over : str, optional
        The parameter that varies fastest from row to row; the first dimension unless
        given. Other dimensions become the first columns.
    every : bool
        Also have columns for the quantities of the roles "word" and "detail" that the
        family does not mark for tables, except messages.

    Returns
    -------
    pandas.DataFrame
        Swept parameters under their names and quantities under their symbols: the
        regime, the length of each phase, the first step T_ε at the target, the measured
        local exponent :math:`d\ln T/d\ln x`, the population loss if training is on a
        fixed set of prompts, the predictions for T_ε and for the boundaries between
        regimes, the family's own quantities, statements as ✓ (holds), ✗ (fails) or
        nothing (does not apply), and the status unless all points reached their target.
        Points that are not computed yet are left out. ``attrs["notes"]`` is a tuple
        with one text that explains the headings, or an empty tuple if there is nothing
        to explain.

    Raises
    ------
    ValueError
        ``over`` is not a dimension of the dataset, the dataset has no dimension, or the
        table does not fit into memory.

    Examples
    --------
    >>> import icl_theory as icl
    >>> dataset = icl.sweep(L=[0.1, 1.0, 10.0], delta=1.0, eta=4.0, epsilon=1e-4)
    >>> table = icl.phase_table(dataset)[["L", "regime", "T_I", "T_ε"]]
    >>> [str(value) for value in table.iloc[-1]]
    ['10.0', 'sharp', '4', '11967']
    """
    over = dimension(dataset, over)
    flag("every", every)
    dataset = computed(dataset)
    _refuse_large(dataset)
    quantities = _columns(dataset, over, every)
    # `_frame` needs the status to leave out pending points.
    with_status = quantities if "status" in quantities else [*quantities, "status"]
    frame = _frame(dataset[with_status], over)
    # A statement is 1 if it holds, 0 if it fails, and missing if it does not apply.
    for name in with_role(dataset, "verdict"):
        frame[name] = frame[name].map({1: HOLDS, 0: FAILS}).fillna("")
    parameters = [*(name for name in dimensions(dataset) if name != over), over]
    headings = _headings(dataset, parameters, quantities)
    table = frame[[*parameters, *quantities]].rename(columns=headings)
    # The TeX of each heading that has one, for `to_latex`.
    table.attrs["tex"] = {}
    for name in (*parameters, *quantities):
        tex = dataset[name].attrs.get("tex")
        if tex:
            # The heading of a parameter is its name.
            table.attrs["tex"][headings.get(name, name)] = f"${tex}$"
    table.attrs["notes"] = meanings(dataset, quantities)
    return table


def _headings(
    dataset: xarray.Dataset, parameters: list[str], quantities: list[str]
) -> dict[str, str]:
    """Return the headings of the columns of quantities, by the name of the quantity.

    The table has columns for the ``parameters``, and to the right of them columns for
    the ``quantities``, in this order. A heading is the symbol of the quantity, or its
    name if a column to the left already has this symbol as its heading.
    """
    headings: dict[str, str] = {}
    for name in quantities:
        heading = symbol(dataset, name)
        if heading in (*parameters, *headings.values()):
            heading = name
        headings[name] = heading
    return headings


def _refuse_large(dataset: xarray.Dataset) -> None:
    """Refuse a table that does not fit into memory.

    Its columns are held three times: as arrays, as one row for each point, and as the
    rows that remain without pending points.
    """
    # The item size of a text is only the size of a pointer, so TEXT_SIZE replaces it.
    row_size = 0
    for variable in (*dataset.data_vars.values(), *dataset.coords.values()):
        row_size += TEXT_SIZE if variable.dtype.hasobject else variable.dtype.itemsize
    points = dataset["status"].size
    check_fits("points", points, 3.0 * row_size * points)


def _columns(dataset: xarray.Dataset, over: str, every: bool) -> list[str]:
    """Return the names of the quantities in a table, from left to right.

    Quantities are chosen by their roles. Unless ``every`` is True, words and details
    need the attribute ``table=1``, and details also need a value. Quantities of
    training on a fixed set of prompts are left out if they have no value.
    """
    details = with_role(dataset, "detail", table=1)
    # Quantities of training on a fixed set of prompts.
    of_fixed_sets = with_role(dataset, "set")
    names = [
        *with_role(dataset, "word", table=1),
        *with_role(dataset, "phase", "steps"),
        *(name for name in of_fixed_sets if has_values(dataset[name])),
        *with_role(dataset, "exponent", of=over),
        *with_role(dataset, "predicted", "boundary"),
        *(name for name in details if dataset[name].notnull().any()),
        *with_role(dataset, "verdict"),
    ]
    if every:
        # Messages are too long for a column of a table.
        excluded = {*names, "message"}
        words_and_details = with_role(dataset, "word", "detail")
        names += [name for name in words_and_details if name not in excluded]
    # Pending points are not in the table. If all other points reached their target, a
    # column of statuses would say nothing.
    all_reached = bool(dataset["status"].isin([REACHED, PENDING]).all())
    return names if all_reached else [*names, "status"]


def _frame(dataset: xarray.Dataset, over: str) -> pd.DataFrame:
    """Return the parameters and quantities of the computed points as a table.

    The table has a row for each of these points, and ``over`` varies fastest from row
    to row. The columns are named as in the dataset. A missing value is NaN, NA or the
    empty text.
    """
    other_dimensions = [name for name in dimensions(dataset) if name != over]
    # The last dimension varies fastest.
    frame = dataset.to_dataframe(dim_order=[*other_dimensions, over]).reset_index()
    frame = frame[frame["status"] != PENDING].reset_index(drop=True)
    for name in dataset.data_vars:
        if frame[name].dtype.kind == "i":
            # Int64 of pandas has a missing value, NA, which int64 of NumPy lacks. The
            # dataset has -1 for it.
            frame[name] = frame[name].astype("Int64").mask(frame[name] == -1)
    # Coordinates that are not dimensions are parameters with a single value.
    fixed = [name for name in dataset.coords if name not in dataset.dims]
    return frame[[*other_dimensions, over, *fixed, *dataset.data_vars]]


def write_table(
    dataset: xarray.Dataset, path: str | os.PathLike[str], over: str | None = None
) -> None:
    """Write the table of a sweep in the format that the ending of the path names.

    Parameters
    ----------
    dataset : xarray.Dataset
        From `sweep` or `load_sweep`.
    path : path-like
        The file, written whole or not at all. Markdown (.md) and LaTeX (.tex, booktabs)
        have the columns of `phase_table`, and below the table sentences on the
        transitions; Markdown also explains the headings. CSV (.csv) and Parquet
        (.parquet) have every parameter and every quantity under its name in the
        dataset, and a statement in them is 1 (holds), 0 (fails) or blank (does not
        apply).
    over : str, optional
        As for `phase_table`.

    Raises
    ------
    ValueError
        The file has another ending, it is Parquet and pyarrow is missing, it is
        Markdown or LaTeX and the dataset has more than 100,000 points, or ``over`` is
        not a dimension of the dataset.
    """
    target = checked_path(path)
    ending = target.suffix.lower()
    if ending not in FORMATS:
        raise argument_error(
            "path", str(path), "a file name ending in " + ", ".join(FORMATS)
        )
    over = dimension(dataset, over)
    # `check_format` refuses a format that cannot work. It is called before the dataset
    # is read, which may take long.
    check_format(target, dataset["status"].size)
    dataset = computed(dataset)
    # These modules are loaded at their first use. Ctrl-C must not leave one of them
    # half loaded.
    load_whole("pandas.io.formats.csvs", "pyarrow.parquet")
    with replacing(target) as temporary, Progress(f"writing {target}"):
        if ending == ".parquet":
            _write_parquet(dataset, temporary, over)
        elif ending == ".csv":
            for i, part in enumerate(slabs(dataset, over)):
                is_first = i == 0
                _frame(part, over).to_csv(
                    temporary, index=False, header=is_first, mode="a"
                )
        else:
            table = phase_table(dataset, over)
            notes = transition_notes(dataset, over)
            if ending == ".md":
                text = to_markdown(table, (*table.attrs["notes"], *notes))
            else:
                text = to_latex(table, notes)
            temporary.write_text(text, encoding="utf-8")


def _write_parquet(dataset: xarray.Dataset, path: Path, over: str) -> None:
    """Write a sweep part by part.

    The first part fixes the types of the columns, because a file has one type for each
    column. In a later part a column may have no value from which to find the type.
    """
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    writer = None
    for part in slabs(dataset, over):
        schema = None if writer is None else writer.schema
        table = pyarrow.Table.from_pandas(
            _frame(part, over), schema=schema, preserve_index=False
        )
        if writer is None:
            writer = ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def check_format(path: Path, rows: int, most: int = MOST_ROWS) -> None:
    """Refuse Parquet without pyarrow, and Markdown or LaTeX of more than ``most`` rows.

    The ending of the path names the format.
    """
    ending = path.suffix.lower()
    if ending in (".md", ".tex") and rows > most:
        form = FORMATS[ending]
        raise ValueError(
            f"path = {str(path)!r}: {rows:,} rows are too many for {form}; "
            "write CSV or Parquet"
        )
    if ending == ".parquet" and find_spec("pyarrow") is None:
        raise argument_error(
            "path", str(path), f"another format: Parquet needs {install('parquet')}"
        )


def to_markdown(table: pd.DataFrame, notes: tuple[str, ...] = ()) -> str:
    """Return a table in Markdown, and below it the sentences in ``notes``."""
    paragraphs = "".join(f"\n{note}\n" for note in _sentences(notes))
    return f"{markdown(contents(table))}\n{paragraphs}"


def to_latex(table: pd.DataFrame, notes: tuple[str, ...] = ()) -> str:
    r"""Return a table in LaTeX, and below it the sentences in ``notes``.

    The document needs ``\usepackage{booktabs,amssymb}``. ``table.attrs["tex"]``, which
    `phase_table` sets, has the TeX of headings. A heading without TeX is written as
    text.
    """
    headings, columns = zip(*contents(table), strict=True)
    # Numbers are aligned at the right, r, and words at the left, l.
    alignments = "".join("r" if is_right_aligned(column) else "l" for column in columns)
    tex_of_headings = table.attrs.get("tex", {})
    heading_cells = [
        tex_of_headings.get(heading, escaped(heading)) for heading in headings
    ]
    lines = [
        r"% \usepackage{booktabs,amssymb}",
        rf"\begin{{tabular}}{{{alignments}}}",
        r"\toprule",
        _latex_row(heading_cells),
        r"\midrule",
        *(_latex_row(map(_latex_cell, row)) for row in zip(*columns, strict=True)),
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\par {escaped(note)}" for note in _sentences(notes)),
    ]
    return "\n".join(lines) + "\n"


def _latex_cell(value: Any) -> str:
    """Return a value as the text of a cell in LaTeX."""
    return escaped(number(value))


def _latex_row(cells: Iterable[str]) -> str:
    """Return a row of a table from the LaTeX of its cells."""
    return " & ".join(cells) + r" \\"


def escaped(text: str) -> str:
    """Return a text as LaTeX, in which ``&%$#_{}`` and the backslash are escaped.

    The SIGNS become mathematics. The characters ^ and ~ stay as they are.
    """
    return text.translate(ESCAPES)


def contents(table: pd.DataFrame) -> list[tuple[str, list[Any]]]:
    """Return the columns of a table, as pairs of heading and values.

    The pairs are not a dictionary, because two columns may have the same heading.
    """
    if not hasattr(table, "columns") or not len(table.columns):
        raise argument_error(
            "table", table, "a pandas DataFrame with at least one column"
        )
    return [(str(name), list(column)) for name, column in table.items()]


def _sentences(notes: Iterable[str]) -> list[str]:
    """Return the notes as a list.

    A single text, or an entry that is not a text, raises a ValueError.
    """
    allowed = "a tuple of sentences"
    sentences = [*_validate.iterable("notes", notes, allowed)]
    if not all(isinstance(sentence, str) for sentence in sentences):
        raise argument_error("notes", notes, allowed)
    return sentences
