"""Tables of sweeps, a row a point, and the files they are written to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icl_theory import _validate
from icl_theory._validate import flag, refuse
from icl_theory.files import checked_path, replacing
from icl_theory.grids.grid import PENDING, REACHED
from icl_theory.results.columns import dimension, dimensions, escaped, symbol, tex, with_role
from icl_theory.results.numbers import goes_right, markdown_lines, number
from icl_theory.results.reading import reading, slabs
from icl_theory.results.transitions import transition_notes

if TYPE_CHECKING:
    import pandas as pd
    import xarray

FORMATS = {".md": "Markdown", ".csv": "CSV", ".tex": "LaTeX", ".parquet": "Parquet"}
MARKS = {1: "✓", 0: "✗"}


@reading("making the table")
def phase_table(dataset: xarray.Dataset, over: str | None = None, *, every: bool = False) -> pd.DataFrame:
    r"""Return the results of a sweep as a table with one row for each point.

    Parameters
    ----------
    dataset : xarray.Dataset
        From `sweep` or `load_sweep`.
    over : str, optional
        The parameter whose values follow one another; the first dimension unless given. Other dimensions become
        columns in front.
    every : bool
        Have a column for every quantity, not only for those that describe phases.

    Returns
    -------
    pandas.DataFrame
        Swept parameters under their names and quantities under their symbols: the regime, lengths of the phases and
        T_ε in steps, the measured local exponent :math:`d\ln T/d\ln x`, what is predicted of T_ε and of the
        boundaries between regimes, what the family puts into tables, statements as ✓ (holds), ✗ (fails) or nothing
        (does not apply), and the status where not all points reached their target. Points not computed are left
        out.

    Raises
    ------
    ValueError
        ``over`` is no dimension of the dataset, or it has none.

    Examples
    --------
    >>> import icl_theory as icl
    >>> found = icl.sweep(L=[0.1, 1.0, 10.0], delta=1.0, eta=4.0, epsilon=1e-4)
    >>> icl.phase_table(found)[["L", "regime", "T_I", "T_ε"]].to_string(index=False).splitlines()[-1].split()
    ['10.0', 'sharp', '4', '11967']
    """
    over = dimension(dataset, over)
    return _table(dataset, over, _columns(dataset, over, flag("every", every)))


def _columns(dataset: xarray.Dataset, over: str, every: bool = False) -> list[str]:
    """Return the names of the quantities in the table of a sweep, in their order."""
    words, details = (
        [name for name in with_role(dataset, role) if dataset[name].attrs.get("table") == 1]
        for role in ("word", "detail")
    )
    details = [name for name in details if bool(dataset[name].notnull().any())]
    exponent = [name for name in with_role(dataset, "exponent") if dataset[name].attrs.get("of") == over]
    order = [
        *words, *with_role(dataset, "phase", "steps"), *exponent, *with_role(dataset, "predicted", "boundary"),
        *details, *with_role(dataset, "verdict"),
    ]  # fmt: skip
    if every:
        order += [
            name for name in with_role(dataset, "word", "detail") if name not in (*words, *details, "message")
        ]
    complete = bool(dataset["status"].isin([REACHED, PENDING]).all())
    return order if complete else [*order, "status"]


def _table(dataset: xarray.Dataset, over: str, order: list[str]) -> pd.DataFrame:
    """Return some quantities of computed points under their symbols, behind the parameters."""
    frame = _frame(dataset[list(dict.fromkeys([*order, "status"]))], over)
    for name in with_role(dataset, "verdict"):
        frame[name] = frame[name].map(MARKS).fillna("")
    parameters = [*(name for name in dimensions(dataset) if name != over), over]
    headings: dict[str, str] = {}
    for name in order:
        taken = {*parameters, *headings.values()}
        headings[name] = name if symbol(dataset, name) in taken else symbol(dataset, name)
    table = frame[[*parameters, *order]].rename(columns=headings)
    table.attrs["tex"] = {headings.get(name, name): tex(dataset, name) for name in [*parameters, *order]}
    return table


def _frame(dataset: xarray.Dataset, over: str) -> pd.DataFrame:
    """Every parameter and quantity of the computed points under its name, with nothing for what is missing."""
    others = [name for name in dimensions(dataset) if name != over]
    frame = dataset.to_dataframe(dim_order=[*others, over]).reset_index()
    frame = frame[frame["status"] != "pending"].reset_index(drop=True)
    for name in dataset.data_vars:
        if frame[name].dtype.kind == "i":
            frame[name] = frame[name].astype("Int64").mask(frame[name] == -1)
    fixed = [name for name in dataset.coords if name not in dataset.dims]
    return frame[[*others, over, *fixed, *dataset.data_vars]]


def write_table(dataset: xarray.Dataset, path: str | os.PathLike[str], over: str | None = None) -> None:
    """Write the table of a sweep in the format that the ending of the path names.

    Parameters
    ----------
    dataset : xarray.Dataset
        From `sweep` or `load_sweep`.
    path : path-like
        The file, written whole or not at all. Markdown (.md) and LaTeX (.tex, booktabs) have the columns of
        `phase_table` and the transitions in words below. CSV (.csv) and Parquet (.parquet) have every parameter and
        every quantity under its name in the dataset, with 1, 0 or nothing for statements.
    over : str, optional
        As for `phase_table`.

    Raises
    ------
    ValueError
        Another ending, Parquet without pyarrow, or ``over`` is no dimension of the dataset.
    """
    target = checked_path(path)
    form = FORMATS.get(target.suffix)
    if form is None:
        raise refuse("path", str(path), "a file name ending in " + ", ".join(FORMATS))
    over = dimension(dataset, over)
    if form == "Parquet":
        check_parquet(target)
    with replacing(target) as temporary, reading(f"writing {target}"):
        if form == "Parquet":
            _write_parquet(dataset, temporary, over)
        elif form == "CSV":
            for i, part in enumerate(slabs(dataset, over)):
                _frame(part, over).to_csv(temporary, index=False, header=not i, mode="a")
        else:
            order, make = _columns(dataset, over), _markdown if form == "Markdown" else _latex
            with temporary.open("w", encoding="utf-8") as file:
                file.writelines(make(_table(part, over, order) for part in slabs(dataset, over)))
                file.writelines(_notes(form, transition_notes(dataset, over)))


def _write_parquet(dataset: xarray.Dataset, path: Path, over: str) -> None:
    """Write all points, a part at a time."""
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    writer = None
    for part in slabs(dataset, over):
        schema = None if writer is None else writer.schema
        table = pyarrow.Table.from_pandas(_frame(part, over), schema=schema, preserve_index=False)
        writer = writer or ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def check_parquet(path: Path) -> None:
    """Refuse a Parquet file where pyarrow is missing."""
    try:
        import pyarrow  # noqa: F401
    except ModuleNotFoundError:
        raise refuse("path", str(path), "another format: Parquet needs pip install 'icl-theory[parquet]'") from None


def to_markdown(table: pd.DataFrame, notes: tuple[str, ...] = ()) -> str:
    """Return a table in Markdown, numbers to four digits and to the right, ``notes`` (sentences) below it.

    Examples
    --------
    >>> import pandas as pd
    >>> from icl_theory.results.tables import to_markdown
    >>> print(to_markdown(pd.DataFrame({"L": [0.5], "regime": ["flat"]})), end="")
    | L | regime |
    |--:|---|
    | 0.5 | flat |
    """
    return "".join([*_markdown([_checked(table)]), *_notes("Markdown", _sentences(notes))])


def to_latex(table: pd.DataFrame, notes: tuple[str, ...] = ()) -> str:
    r"""Return a table in LaTeX, which needs ``\usepackage{booktabs,amssymb}``, ``notes`` (sentences) below it.

    Examples
    --------
    >>> import pandas as pd
    >>> from icl_theory.results.tables import to_latex
    >>> print(to_latex(pd.DataFrame({"L": [0.5], "regime": ["flat"]})), end="")
    % \usepackage{booktabs,amssymb}
    \begin{tabular}{rl}
    \toprule
    L & regime \\
    \midrule
    0.5 & flat \\
    \bottomrule
    \end{tabular}
    """
    return "".join([*_latex([_checked(table)]), *_notes("LaTeX", _sentences(notes))])


def _markdown(parts: Iterable[pd.DataFrame]) -> Iterator[str]:
    """Yield a table in Markdown, part by part."""
    for i, part in enumerate(parts):
        lines = markdown_lines(list(map(str, part.columns)), *_content(part))
        yield from (f"{line}\n" for line in lines[2 * (i > 0) :])


def _latex(parts: Iterable[pd.DataFrame]) -> Iterator[str]:
    """Yield a table in LaTeX, part by part."""
    for i, part in enumerate(parts):
        columns, right = _content(part)
        if not i:
            sides = "".join("r" if side else "l" for side in right)
            symbols = part.attrs.get("tex", {})
            headings = " & ".join(symbols.get(name, escaped(str(name))) for name in part.columns)
            yield "% \\usepackage{booktabs,amssymb}\n"
            yield f"\\begin{{tabular}}{{{sides}}}\n\\toprule\n{headings} \\\\\n\\midrule\n"
        cells = ([escaped(number(value)) for value in values] for values in columns)
        yield from (" & ".join(row) + " \\\\\n" for row in zip(*cells, strict=True))
    yield "\\bottomrule\n\\end{tabular}\n"


def _checked(table: pd.DataFrame) -> pd.DataFrame:
    """Refuse what is no table."""
    if not hasattr(table, "columns"):
        raise refuse("table", table, "a table of pandas")
    return table


def _content(table: pd.DataFrame) -> tuple[list[list[Any]], list[bool]]:
    """Return the columns of a table, and which are set to the right: by their types, which all its parts share."""
    columns = [table.iloc[:, place] for place in range(table.shape[1])]
    found = [list(values) for values in columns]
    kinds = (values.dtype.kind for values in columns)
    return found, [kind in "iuf" or goes_right(each) for kind, each in zip(kinds, found, strict=True)]


def _notes(form: str, sentences: Iterable[str]) -> list[str]:
    """Return sentences for below a table."""
    return [f"\n{x}\n" if form == "Markdown" else rf"\par {escaped(x)}" + "\n" for x in sentences]


def _sentences(notes: Iterable[str]) -> list[str]:
    if isinstance(notes, str) or not isinstance(notes, Iterable) or not _validate.dimensions(notes):
        raise refuse("notes", notes, "sentences, one or more in a tuple")
    return list(map(str, notes))


def contents(table: pd.DataFrame) -> dict[str, list[Any]]:
    """Return the columns of a table by heading."""
    return {str(name): list(table[name]) for name in table.columns}


def point_facts(dataset: xarray.Dataset) -> dict[str, Any]:
    """Return the quantities of a single point that have a value, by symbol."""
    return {symbol(dataset, str(name)): x.values for name, x in dataset.data_vars.items() if has_values(x)}


def has_values(values: xarray.DataArray) -> bool:
    """Return whether anything is there that is not missing: NaN, -1 or the empty text."""
    missing = {"i": -1, "U": "", "O": ""}.get(values.dtype.kind)
    empty = values.isnull() if values.dtype.kind == "f" else values.isin([missing])
    return not bool(empty.all())
