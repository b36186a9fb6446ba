"""The audit: every claim of the theory measured, and the open questions answered.

`audit` measures the rows of all families, which their slots ``claims`` list, and
`answer` answers one question. The result is two tables, an `Audit`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from icl_theory import families
from icl_theory._validate import choice, flag, integer
from icl_theory.engine.display import Displayable
from icl_theory.engine.progress import Progress, counted
from icl_theory.families import Family
from icl_theory.families.plug_ins import discover, left_out
from icl_theory.results.numbers import markdown
from icl_theory.statements.claim import (
    HEADINGS,
    RECONSTRUCTED,
    Answer,
    Claim,
    Question,
    Row,
    Status,
)
from icl_theory.statements.paper import Claims
from icl_theory.statements.statement import OURS

BINDING = (Status.EXACT, Status.CERTIFIED)
ANSWER_HEADINGS = ("question", "answer", "command")
# Whose statement a claim judges, in words, by `Claim.formula`.
WHOSE = {
    "paper": "in a paper's own words",
    RECONSTRUCTED: "in formulas that we reconstructed",
    OURS: "of this package",
}
Result = TypeVar("Result", Claim, Answer)


def all_claims() -> tuple[dict[str, Claims], list[str]]:
    """Return the claims of each family by name, and a line for each faulty slot."""
    lines: list[str] = []
    claims = dict(claims_in_order(lines))
    return claims, lines


def claims_in_order(lines: list[str]) -> Iterator[tuple[str, Claims]]:
    """Yield the name and the claims of each family, in the order of the table.

    A family is loaded when its turn comes. A slot ``claims`` that cannot be loaded adds
    a line.
    """
    for family in _families_in_order():
        slot = f"the slot claims of the family {family.name}"
        claims: Any = None
        with left_out(slot, lines):
            claims = family.claims
        if isinstance(claims, Claims):
            yield family.name, claims
        elif claims is not None:
            lines.append(f"{slot} is left out: it is no Claims: {claims!r}")


def _families_in_order() -> Iterator[type[Family]]:
    # Most rows are of the default family. It comes first unless a plug-in asks for an
    # earlier place, and it can be yielded before any other family is loaded.
    default_is_first = all(plug_in.order >= 0.0 for plug_in in discover()[0])
    default = families.default()
    if default_is_first:
        yield default
    for family in families.families_known().values():
        if not (default_is_first and family is default):
            yield family


def rows() -> tuple[Row, ...]:
    """Return the rows of every family, in the order of the table."""
    return tuple(row for claims in all_claims()[0].values() for row in claims.rows)


def questions() -> dict[str, Question]:
    """Return the open questions of every family by name."""
    by_name: dict[str, Question] = {}
    for claims in all_claims()[0].values():
        for question in claims.questions:
            by_name[question.name] = question
    return by_name


@dataclass(frozen=True)
class Audit(Displayable):
    """A table of claims with verdicts, and a table of answered questions.

    Attributes
    ----------
    claims : tuple of Claim
        One row a claim.
    answers : tuple of Answer
        One row a question.
    failures : tuple of str
        A line for each row, question or family that could not be measured; there should
        be none.
    """

    claims: tuple[Claim, ...]
    answers: tuple[Answer, ...]
    failures: tuple[str, ...] = ()

    @property
    def violations(self) -> tuple[Claim, ...]:
        """Exact or certified claims that the measurements contradict; ideally none."""
        return tuple(
            claim for claim in self.claims if claim.violated and claim.status in BINDING
        )

    @property
    def formulas(self) -> dict[str, int]:
        """How many claims judge each kind of formula.

        The kinds are a paper's own words, a formula that we reconstructed, and a
        formula of this package.
        """
        counts = Counter(claim.formula for claim in self.claims)
        return {whose: counts[whose] for whose in WHOSE}

    @property
    def summary(self) -> str:
        """Whose statements were judged, and whose of them fail, in two sentences.

        It is empty if there is no claim.
        """
        if not self.claims:
            return ""
        judged = [f"{count} {WHOSE[name]}" for name, count in self.formulas.items()]
        failing = Counter(claim.formula for claim in self.claims if claim.violated)
        failures = [f"{failing[name]} {WHOSE[name]}" for name in WHOSE if failing[name]]
        verdicts = "None of them fails"
        if failures:
            verdicts = f"Those that fail: {_listed(failures)}"
        return f"{_number(len(self.claims))} judged: {_listed(judged)}. {verdicts}."

    @property
    def columns(self) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        """Return both tables by columns."""
        cells = [claim.cells() for claim in self.claims]
        claims: dict[str, list[str]] = {}
        for index, heading in enumerate(HEADINGS):
            claims[heading] = [row[index] for row in cells]
        answers: dict[str, list[str]] = {}
        for heading in ANSWER_HEADINGS:
            answers[heading] = [getattr(answer, heading) for answer in self.answers]
        return claims, answers

    def to_markdown(self) -> str:
        """Return both tables as Markdown."""
        claims, answers = self.columns
        claims = {"claim": claims.pop("name")} | claims
        answers["command"] = [f"`{command}`" for command in answers["command"]]
        parts = ["# Audit"]
        if self.summary:
            parts.append(self.summary)
        parts += ["## Claims", markdown(claims)]
        parts += ["## Open questions", markdown(answers)]
        if self.failures:
            lines = [f"- {line}" for line in self.failures]
            parts += ["## Left out", "\n".join(lines)]
        return "\n\n".join(parts) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Return tables and counts as text and numbers, for strict JSON.

        The data of the figures are left out.
        """

        def by_heading(claim: Claim) -> dict[str, str]:
            return dict(zip(HEADINGS, claim.cells(), strict=True))

        def words(answer: Answer) -> dict[str, str]:
            return {name: getattr(answer, name) for name in ("name", *ANSWER_HEADINGS)}

        return {
            "formulas": self.formulas,
            "claims": [by_heading(claim) for claim in self.claims],
            "questions": [words(answer) for answer in self.answers],
            "failures": list(self.failures),
        }


def _number(claims: int) -> str:
    return f"{claims} claim is" if claims == 1 else f"{claims} claims are"


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def audit(*, quick: bool = False, claim: int | None = None) -> Audit:
    """Measure every claim and answer every open question.

    Parameters
    ----------
    quick : bool
        Smaller grids.
    claim : int, optional
        Measure one claim, the one with this number in the table (the first is 1), and
        answer no question.

    Returns
    -------
    Audit
        The same tables at every call. What raises an exception is left out, with a line
        in ``failures``.

    Raises
    ------
    ValueError
        There is no claim with the number ``claim``.

    References
    ----------
    docs/theory.md; each row names its source.

    Examples
    --------
    >>> import icl_theory as icl
    >>> icl.audit(claim=5).claims[0].name
    'derivatives'
    """
    flag("quick", quick)
    if claim is not None:
        failures: list[str] = []
        claims = _measured([_row_at(claim)], quick, failures)
        return Audit(claims, (), tuple(failures))
    claims_by_family, failures = all_claims()
    rows = []
    names = []
    for family, family_claims in claims_by_family.items():
        rows += [(family, row) for row in family_claims.rows]
        names += [(family, question.name) for question in family_claims.questions]
    claims = _measured(rows, quick, failures)
    answers: list[Answer] = []
    for family, name in names:
        with left_out(f"the question {name} of the family {family}", failures):
            answers.append(answer(name, quick=quick))
    return Audit(claims, tuple(answers), tuple(failures))


def _row_at(number: int) -> tuple[str, Row]:
    """Return the row with a number in the table, and the name of its family.

    The claims of families behind it are not loaded.
    """
    rows: list[tuple[str, Row]] = []
    for family, claims in claims_in_order([]):
        rows += [(family, row) for row in claims.rows]
        if type(number) is int and 1 <= number <= len(rows):
            return rows[number - 1]
    number = integer("claim", number, minimum=1, maximum=len(rows))
    return rows[number - 1]


def _measured(
    rows: list[tuple[str, Row]], quick: bool, failures: list[str]
) -> tuple[Claim, ...]:
    """Measure rows of families; each that raises an exception adds a failure."""
    claims: list[Claim] = []
    for family, row in counted(rows, "claims"):
        with left_out(f"the row {name_of(row)} of the family {family}", failures):
            claims.append(_checked(row(quick), Claim))
    return tuple(claims)


def name_of(row: Row) -> str:
    """Return the name of a row's function."""
    return str(getattr(row, "__name__", row))


def _checked(result: Any, kind: type[Result]) -> Result:
    if not isinstance(result, kind):
        article = "a" if kind is Claim else "an"
        raise TypeError(f"it must return {article} {kind.__name__}, not {result!r}")
    return result


def answer(name: str, *, quick: bool = False) -> Answer:
    """Answer one open question by measurement.

    Parameters
    ----------
    name : str
        "linear" or the name of another question; ``icl-theory audit`` prints them all.
    quick : bool
        Shorter runs.

    Returns
    -------
    Answer
        With the data of its figure (`icl_theory.results.plots.plot_answer`).

    Raises
    ------
    ValueError
        An unknown name.

    Examples
    --------
    >>> import icl_theory as icl
    >>> icl.answer("degenerate", quick=True).answer[:4]
    'Yes:'
    """
    flag("quick", quick)
    by_name = questions()
    with Progress(f"answering question {choice('question', name, by_name)}"):
        return _checked(by_name[name].answer(quick), Answer)
