"""The audit: every claim of the theory compared with measurements, and the open questions answered."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from icl_theory._validate import choice, flag, integer
from icl_theory.engine.display import Displayable
from icl_theory.engine.progress import Progress, counted
from icl_theory.families import filled_slots
from icl_theory.families.plug_ins import left_out
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
# by `Claim.formula`
WHOSE = {
    "paper": "in a paper's own words",
    RECONSTRUCTED: "in formulas that we reconstructed",
    OURS: "of this package",
}


def known() -> tuple[dict[str, Claims], list[str]]:
    """Return what is claimed of each family, by its name, and a line for each whose slot ``claims`` is at fault."""
    found, lines = filled_slots("claims")
    for name in [
        name for name, claims in found.items() if not isinstance(claims, Claims)
    ]:
        lines.append(
            f"the slot claims of the family {name} is left out: it is no Claims: {found.pop(name)!r}"
        )
    return found, lines


def rows() -> tuple[Row, ...]:
    """Return the rows of every family, in the order of the table."""
    return tuple(row for claims in known()[0].values() for row in claims.rows)


def questions() -> dict[str, Question]:
    """Return the open questions of every family by name."""
    return {
        each.name: each for claims in known()[0].values() for each in claims.questions
    }


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
        """Claims marked exact or certified that the measurements contradict; there should be none."""
        return tuple(
            claim for claim in self.claims if claim.violated and claim.status in BINDING
        )

    @property
    def formulas(self) -> dict[str, int]:
        """How many claims judge a paper's own words, a formula that we reconstructed, and this package's own."""
        counts = Counter(claim.formula for claim in self.claims)
        return {whose: counts[whose] for whose in WHOSE}

    @property
    def summary(self) -> str:
        """Whose statements were judged, and whose of them fail, in two sentences; nothing without a claim."""
        if not self.claims:
            return ""
        whose = [f"{count} {WHOSE[name]}" for name, count in self.formulas.items()]
        failing = Counter(claim.formula for claim in self.claims if claim.violated)
        fails = [f"{failing[name]} {WHOSE[name]}" for name in WHOSE if failing[name]]
        verdicts = (
            f"Those that fail: {_listed(fails)}" if fails else "None of them fails"
        )
        return f"{_number(len(self.claims))} judged: {_listed(whose)}. {verdicts}."

    @property
    def columns(self) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        """Return both tables by columns."""
        claims = {
            name: [claim.cells()[place] for claim in self.claims]
            for place, name in enumerate(HEADINGS)
        }
        return claims, {
            name: [getattr(each, name) for each in self.answers]
            for name in ANSWER_HEADINGS
        }

    def to_markdown(self) -> str:
        """Return both tables as Markdown."""
        claims, answers = self.columns
        claims = {"claim": claims.pop("name")} | claims
        answers["command"] = [f"`{command}`" for command in answers["command"]]
        parts = [
            "# Audit",
            *filter(None, [self.summary]),
            "## Claims",
            markdown(claims),
        ]
        parts += ["## Open questions", markdown(answers)]
        parts += (
            ["## Left out", "\n".join(f"- {line}" for line in self.failures)]
            if self.failures
            else []
        )
        return "\n\n".join(parts) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Return both tables and the counts as text and numbers (strict JSON), without the figures' data."""
        names = ("name", *ANSWER_HEADINGS)
        return {
            "formulas": self.formulas,
            "claims": [
                dict(zip(HEADINGS, claim.cells(), strict=True)) for claim in self.claims
            ],
            "questions": [
                {name: getattr(answer, name) for name in names}
                for answer in self.answers
            ],
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
    claims = list[Claim]()
    answers = list[Answer]()
    families, failures = known()
    every = [(family, row) for family, each in families.items() for row in each.rows]
    asked = [
        (family, name)
        for family, each in families.items()
        for name, _ in each.questions
    ]
    wanted = every
    if claim is not None:
        claim = integer("claim", claim, minimum=1, maximum=len(every))
        wanted = every[claim - 1 : claim]
        asked = []
        failures = []
    for family, row in counted(wanted, "claims"):
        with left_out(f"the row {name_of(row)} of the family {family}", failures):
            claims.append(_checked(row(quick), Claim))
    for family, name in asked:
        with left_out(f"the question {name} of the family {family}", failures):
            answers.append(answer(name, quick=quick))
    return Audit(tuple(claims), tuple(answers), tuple(failures))


def name_of(row: Row) -> str:
    """Return the name of a row's function."""
    return str(getattr(row, "__name__", row))


def _checked(found: Any, kind: type) -> Any:
    if not isinstance(found, kind):
        raise TypeError(
            f"it must return {'a' if kind is Claim else 'an'} {kind.__name__}, not {found!r}"
        )
    return found


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
    every = questions()
    with Progress(f"answering question {choice('question', name, every)}"):
        found: Answer = _checked(every[name].answer(quick), Answer)
        return found
