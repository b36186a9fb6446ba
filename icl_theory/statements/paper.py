"""The claims of a family: its papers, and the rows and checks that test them.

The slot ``claims`` of a family holds a `Claims`. It lists the papers about the family,
and each `Paper` has a `Reading` for each of its statements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from icl_theory._validate import argument_error, set_fields
from icl_theory.statements.claim import Question, Row


@dataclass(frozen=True)
class Reading:
    """A statement of a paper as this package reads it, and the evidence about it.

    Attributes
    ----------
    name : str
        The paper's name for the statement, for example "Theorem 1".
    says : str
        The statement in our words.
    rows : tuple of callable
        Rows of the audit that measure the statement: functions that return a `Claim`.
    question : Question, optional
        An open question about the statement.
    figure : str
        Name of the figure that shows the statement, one of
        `icl_theory.figures.available`; empty if there is none.
    reconstructed : str
        The constants or formulas of the statement that we reconstructed because the
        text of the paper lacks them; empty if there are none.
    """

    name: str
    says: str
    rows: tuple[Row, ...] = ()
    question: Question | None = None
    figure: str = ""
    reconstructed: str = ""


class Setting(NamedTuple):
    """A setting of the explorer (a page of HTML) that shows the model of a paper.

    Attributes
    ----------
    place : str
        Address of the setting in the explorer, for example ``"regression?K=50&L=4"``.
    text : str
        A description of the view at that address.
    """

    place: str
    text: str


class ModelEntry(NamedTuple):
    """A paper's line in the table of models, which ``scripts/indexes.py`` writes.

    Attributes
    ----------
    data : str
        The data of which prompts are made.
    attention : str
        The kind of attention.
    trained : str
        The parameters that are trained.
    command : str
        A command that runs the model.
    """

    data: str
    attention: str
    trained: str
    command: str


@dataclass(frozen=True)
class Paper:
    """A paper and its statements; ``reproduce`` makes a page of it.

    Attributes
    ----------
    name : str
        Name of the paper on the command line: small letters, digits and dashes.
    title, authors : str
        Title and authors as on the title page.
    year : int
        Year of the version that was read.
    identifier : str
        The identifier of the paper, for example "arXiv:2507.20443", or its journal or
        address.
    readings : tuple of Reading
        The statements of the paper, in its order.
    setting : Setting, optional
        The setting of the explorer that shows the paper's model.
    credit : str
        The results for which the paper should be cited.
    related : str
        Works to cite beside the paper, as Markdown.
    entry : ModelEntry, optional
        The paper's line in the table of models.
    folder : Path, optional
        Folder with the prose of the page: a Markdown file with the name of the paper
        (``icl_theory.results.prose``). ``reproduce`` refuses a paper without a folder.

    Examples
    --------
    >>> from icl_theory.statements.paper import Paper
    >>> paper = Paper("a", "On Attention", "A. Author", 2025, "arXiv:0000.00000", ())
    >>> paper.reference
    'A. Author. On Attention. 2025. arXiv:0000.00000.'
    """

    name: str
    title: str
    authors: str
    year: int
    identifier: str
    readings: tuple[Reading, ...]
    setting: Setting | None = None
    credit: str = ""
    related: str = ""
    entry: ModelEntry | None = None
    folder: Path | None = None

    @property
    def reference(self) -> str:
        """Return the full reference: authors, title, year and identifier."""
        # A title that ends in a punctuation mark needs no full stop.
        end = "" if self.title.endswith(("?", "!", ".")) else "."
        return f"{self.authors}. {self.title}{end} {self.year}. {self.identifier}."

    @property
    def source(self) -> str:
        """Return authors, year and identifier, for a page with the title as heading."""
        return f"{self.authors}. {self.year}. {self.identifier}."


@dataclass(frozen=True)
class Claims:
    """All claims about a family, for the slot ``claims`` of a `Family`.

    Attributes
    ----------
    rows : tuple of callable
        Rows of the audit: each is called with ``quick``, a bool, and returns a `Claim`.
        `row` makes them. By default these are the rows that the papers name, in order.
    questions : tuple of Question
        Open questions, which `question` makes. By default these are the questions that
        the papers name.
    papers : tuple of Paper
        The papers about the family, for ``icl-theory reproduce``.
    check : callable, optional
        A function of a run that evaluates the statements of the theory on it and
        returns a `BoundChecks`.
    compare : callable, optional
        The family's own comparison with samples: a function of a run or a risk, and of
        options, that returns a `CrossCheck`.

    Raises
    ------
    ValueError
        ``rows``, ``questions`` or ``papers`` is not a tuple of rows, of questions or
        of papers.
    """

    rows: tuple[Row, ...] = ()
    questions: tuple[Question, ...] = ()
    papers: tuple[Paper, ...] = ()
    check: Callable[..., Any] | None = None
    compare: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        # Wrong values are refused here, because they would otherwise fail in the middle
        # of an audit.
        if not (isinstance(self.rows, tuple) and all(map(callable, self.rows))):
            raise argument_error(
                "rows", self.rows, "a tuple of functions that return a Claim"
            )
        if not _is_tuple_of(self.questions, Question):
            raise argument_error("questions", self.questions, "a tuple of Questions")
        if not _is_tuple_of(self.papers, Paper):
            raise argument_error("papers", self.papers, "a tuple of Papers")
        # Several readings may share a row or a question. The keys of a dict keep each
        # row and each question once, in order.
        rows: dict[Row, None] = {}
        questions: dict[Question, None] = {}
        for paper in self.papers:
            for reading in paper.readings:
                rows |= dict.fromkeys(reading.rows)
                if reading.question:
                    questions[reading.question] = None
        # Rows and questions that are given as arguments replace those in the readings.
        set_fields(
            self,
            rows=self.rows or tuple(rows),
            questions=self.questions or tuple(questions),
        )

    def __add__(self, other: Claims) -> Claims:
        """Join the claims of two plug-ins about one family.

        The functions ``check`` and ``compare`` are taken from the first plug-in. A
        function that the first lacks is taken from the second.
        """
        return Claims(
            rows=self.rows + other.rows,
            questions=self.questions + other.questions,
            papers=self.papers + other.papers,
            check=self.check or other.check,
            compare=self.compare or other.compare,
        )


def _is_tuple_of(values: Any, kind: type) -> bool:
    """Whether ``values`` is a tuple with entries of one kind only."""
    return isinstance(values, tuple) and all(
        isinstance(value, kind) for value in values
    )
