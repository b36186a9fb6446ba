"""The audit: every claim of the theory compared with measurements, and the open questions answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from icl_theory._validate import choice, flag, integer, refuse
from icl_theory.claims.claim import HEADINGS, Answer, Claim, Status
from icl_theory.engine.progress import working
from icl_theory.engine.trajectory import Shown
from icl_theory.families import families_known

BINDING = (Status.EXACT, Status.CERTIFIED)
ANSWER_HEADINGS = ("question", "answer", "command")


def rows() -> tuple[Callable[[bool], Claim], ...]:
    """Return the rows of every family, in the order of the table."""
    return tuple(row for family in families_known().values() for row in family.rows)


def questions() -> dict[str, Callable[[bool], Answer]]:
    """Return the open questions of every family by name."""
    return {name: ask for family in families_known().values() for name, ask in family.questions.items()}


@dataclass(frozen=True)
class Audit(Shown):
    """A table of claims with verdicts, and a table of answered questions.

    Attributes
    ----------
    claims : tuple of Claim
        One row a claim.
    answers : tuple of Answer
        One row a question.
    """

    claims: tuple[Claim, ...]
    answers: tuple[Answer, ...]

    @property
    def violations(self) -> tuple[Claim, ...]:
        """Claims marked exact or certified that the measurements contradict; there should be none."""
        return tuple(claim for claim in self.claims if claim.violated and claim.status in BINDING)

    def to_markdown(self) -> str:
        """Return both tables as Markdown."""
        lines = ["# Audit", "", "## Claims", ""]
        lines += _table(("claim", *HEADINGS[1:]), [claim.cells() for claim in self.claims])
        lines += ["", "## Open questions", ""]
        lines += _table(ANSWER_HEADINGS, [(a.question, a.answer, f"`{a.command}`") for a in self.answers])
        return "\n".join(lines) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Return both tables as plain text and numbers (strict JSON); figures' data are left out."""
        answers = [
            {"name": a.name, "question": a.question, "answer": a.answer, "command": a.command} for a in self.answers
        ]
        return {
            "claims": [dict(zip(HEADINGS, claim.cells(), strict=True)) for claim in self.claims],
            "questions": answers,
        }


@working("measuring claims")
def audit(*, quick: bool = False, claim: int | None = None, callback: Callable[[str], None] | None = None) -> Audit:
    """Measure every claim and answer every open question.

    Parameters
    ----------
    quick : bool
        Smaller grids.
    claim : int, optional
        Measure one claim, the one with this number in the table (the first is 1), and answer no question.
    callback : callable, optional
        Called with the name of each row before it is measured, for progress displays.

    Returns
    -------
    Audit
        Deterministic: the same tables at every call.

    Raises
    ------
    ValueError
        There is no claim with the number ``claim``.

    References
    ----------
    docs/theory.md; each row names its source.

    Examples
    --------
    The rows are those of all families, and an audit of none has no violations:

    >>> import icl_theory as icl
    >>> from icl_theory.claims.audit import Audit, rows
    >>> len(rows()) > 70, Audit((), ()).violations
    (True, ())
    >>> icl.audit(claim=5).claims[0].name
    'derivatives'
    """
    flag("quick", quick)
    if not (callback is None or callable(callback)):
        raise refuse("callback", callback, "a function of a row's name")
    claims: list[Claim] = []
    answers: list[Answer] = []
    every = rows()
    if claim is not None:
        claim = integer("claim", claim, minimum=1, maximum=len(every))
    for number, row in enumerate(every, start=1):
        if claim in (None, number):
            if callback is not None:
                callback(f"claim {number} of {len(every)}")
            with working(f"measuring claim {number} of {len(every)}"):
                claims.append(row(quick))
    for name in questions() if claim is None else ():
        if callback is not None:
            callback(f"question {name}")
        answers.append(answer(name, quick=quick))
    return Audit(tuple(claims), tuple(answers))


def answer(name: str, *, quick: bool = False) -> Answer:
    """Answer one open question by measurement.

    Parameters
    ----------
    name : str
        One of "linear", "tightness", "separation", "learning-rate", "unequal-features", "large-L", "label-noise",
        "factored", "finite-samples", "degenerate", "recall-exponent", "recall-noise", "recall-samples",
        "recall-unseen", "recall-roles", "linear-attention-plateau", "linear-attention-depth".
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
    known = questions()
    with working(f"answering question {choice('question', name, known)}"):
        return known[name](quick)


def _table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(headings), "|" + "---|" * len(headings), *map(line, rows)]
