"""The columns that a store keeps, matched with those that the present code computes.

A store keeps the columns with which it was made. If a family gains or loses a column
later, or a plug-in adds one, the stored columns and the computed ones differ. The store
can still be read, and its sweep continued:

    match = ColumnMatch(stored, computed)
    match.every              # columns of the dataset
    match.conform(values)    # the stored columns, from newly computed values
    match.notes(path)        # sentences for ``attrs["notes"]``
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from icl_theory._validate import argument_error
from icl_theory.sweeps.grid import FILL, MESSAGE, STATUS, Column, Values

# The words by which an error calls the values of a column, by the first letter of the
# column's dtype.
TEXT = "text"
KIND_NAMES = {"f": "a real number", "i": "a whole number", "U": TEXT, "O": TEXT}


@dataclass(frozen=True)
class ColumnMatch:
    """The columns of a store and of the present code, both without status and message.

    Parameters
    ----------
    stored : tuple of Column
        The columns of the store, as its manifest describes them.
    computed : tuple of Column
        The columns that the present code computes at a point.

    Examples
    --------
    >>> from icl_theory.sweeps.grid import Column
    >>> from icl_theory.sweeps.stored_columns import ColumnMatch
    >>> loss = Column("loss", "f8", "", "loss at the end")
    >>> old = Column("width", "f8", "", "a column of an earlier version")
    >>> new = Column("area", "f8", "", "a column that was added")
    >>> match = ColumnMatch(stored=(loss, old), computed=(loss, new))
    >>> [column.name for column in match.every]
    ['loss', 'area', 'width']
    """

    stored: tuple[Column, ...]
    computed: tuple[Column, ...]

    @cached_property
    def unknown(self) -> tuple[Column, ...]:
        """Stored columns that the present code does not compute."""
        computed_names = {column.name for column in self.computed}
        return tuple(
            column for column in self.stored if column.name not in computed_names
        )

    @cached_property
    def missing(self) -> tuple[Column, ...]:
        """Computed columns that the store does not keep."""
        stored_names = {column.name for column in self.stored}
        return tuple(
            column for column in self.computed if column.name not in stored_names
        )

    @cached_property
    def every(self) -> tuple[Column, ...]:
        """Columns of the dataset: the computed ones in order, then the unknown ones.

        A column that is both stored and computed is described as the present code
        describes it. If its unit or type has changed, it is described as in the store,
        because the stored values have that unit and type.
        """
        stored_by_name = {column.name: column for column in self.stored}
        described = []
        for column in self.computed:
            # A column that the store lacks is compared with itself.
            stored_column = stored_by_name.get(column.name, column)
            # A new description alone does not change the meaning of stored values.
            has_other_type = stored_column.dtype != column.dtype
            has_other_unit = stored_column.unit != column.unit
            if has_other_type or has_other_unit:
                described.append(stored_column)
            else:
                described.append(column)
        return (*described, *self.unknown)

    def check_kinds(self, path: Path) -> None:
        """Refuse a store if a column now has values of another kind.

        An example is a column of texts in the store that the present code computes as a
        number.
        """
        computed_by_name = {column.name: column for column in self.computed}
        for column in self.stored:
            # A column that is no longer computed is compared with itself.
            computed_column = computed_by_name.get(column.name, column)
            stored_kind = KIND_NAMES[column.dtype[0]]
            computed_kind = KIND_NAMES[computed_column.dtype[0]]
            if stored_kind != computed_kind:
                raise argument_error(
                    "store",
                    str(path),
                    f"one whose column {column.name} is {computed_kind}, "
                    f"not {stored_kind}",
                )

    def conform(self, values: Values) -> Values:
        """Return the stored columns, the status and the message from computed values.

        A column that is no longer computed has a single missing value, which stands for
        all points.
        """
        kept = {}
        for column in (*self.stored, STATUS, MESSAGE):
            if column.name in values:
                kept[column.name] = values[column.name]
            else:
                kept[column.name] = np.array([FILL[column.dtype[0]]], column.dtype)
        return kept

    def notes(self, path: Path) -> list[str]:
        """Return a sentence on the unknown and one on the missing columns, if any.

        ``path`` is the folder of the store, which the sentences name.
        """
        notes = []
        if self.unknown:
            notes.append(
                f"store {str(path)!r}: kept the values of {_listed(self.unknown)}: "
                "they are in the store, and the family does not compute them now"
            )
        if self.missing:
            notes.append(
                f"store {str(path)!r}: the values of {_listed(self.missing)} are "
                "missing: they were not computed when the store was made"
            )
        return notes


def _listed(columns: tuple[Column, ...], most: int = 5) -> str:
    """Return a text with up to ``most`` names of columns, and the number of the others.

    With the default, the names take about one line.
    """
    shown = ", ".join(column.name for column in columns[:most])
    if len(columns) > most:
        shown += f" and {len(columns) - most} more"
    return shown
