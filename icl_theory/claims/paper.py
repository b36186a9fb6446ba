"""What a family says of the papers behind it: their statements, and what each is tested by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from icl_theory.claims.claim import Claim


@dataclass(frozen=True)
class Reading:
    """A statement of a paper as this package reads it, and the evidence on it.

    Attributes
    ----------
    name : str
        What the paper calls it, "Theorem 1" say.
    says : str
        What it says, in our words.
    rows : tuple of callable
        Rows of the audit that measure it.
    question : str
        Name of an open question of the family that belongs to it, if any.
    figure : str
        Name of the figure that shows it, one of `icl_theory.figures.available`, if any.
    reconstructed : str
        Which constants or formulas of it were reconstructed; empty where none had to be.
    """

    name: str
    says: str
    rows: tuple[Callable[[bool], Claim], ...] = ()
    question: str = ""
    figure: str = ""
    reconstructed: str = ""


@dataclass(frozen=True)
class Paper:
    """A paper and its statements, for the slot ``papers`` of a `Family`; ``reproduce`` makes a page of it.

    Attributes
    ----------
    name : str
        What the command line calls it: small letters, digits and dashes.
    title, authors : str
        As on the paper.
    year : int
        Of the version that is meant.
    identifier : str
        "arXiv:2507.20443", or where else it is found.
    readings : tuple of Reading
        Its statements, in their order.
    note : str
        What holds for all of them: the version that was read, what is chosen.

    Examples
    --------
    >>> from icl_theory.claims.paper import Paper
    >>> Paper("attention", "On Attention", "A. Author", 2025, "arXiv:0000.00000", ()).reference
    'A. Author. On Attention. 2025. arXiv:0000.00000.'
    """

    name: str
    title: str
    authors: str
    year: int
    identifier: str
    readings: tuple[Reading, ...]
    note: str = ""

    @property
    def reference(self) -> str:
        """Return the full reference."""
        end = "" if self.title.endswith("?") else "."
        return f"{self.authors}. {self.title}{end} {self.year}. {self.identifier}."
