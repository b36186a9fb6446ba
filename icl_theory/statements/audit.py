"""The audit: every claim of the theory measured, and the open questions answered.

Each family lists its rows and questions in its slot ``claims``. `audit` measures all
rows and answers all questions; its result, an `Audit`, holds two tables, one of claims
and one of answers. `answer` answers a single question.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

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
from icl_theory.statements.paper import Claims, Paper
from icl_theory.statements.statement import OURS

# The command fails if a claim of one of these kinds is violated. An order of magnitude
# or an observation may turn out wrong: that is a finding.
BINDING = (Status.EXACT, Status.CERTIFIED)
# The columns of the table of answers: each is an attribute of `Answer`.
ANSWER_HEADINGS = ("question", "answer", "command")
# For each value of `Claim.formula`: how the summary says whose formula was judged.
WHOSE = {
    "paper": "in a paper's own words",
    RECONSTRUCTED: "in formulas that we reconstructed",
    OURS: "of this package",
}
Result = TypeVar("Result", Claim, Answer)


def all_claims() -> tuple[dict[str, Claims], list[str]]:
    """Return the claims by the name of their family, and a line per faulty slot."""
    lines: list[str] = []
    claims = dict(claims_in_order(lines))
    return claims, lines


def claims_in_order(lines: list[str]) -> Iterator[tuple[str, Claims]]:
    """Yield the name and the claims of each family, in the order of the audit's table.

    A family is loaded when its turn comes. If its slot ``claims`` cannot be loaded, the
    family is passed over and the reason is appended to ``lines``.
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
    """Yield all families, the default one as early as the plug-ins allow."""
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
    """Return the rows of every family, in the order of the audit's table."""
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
        The measured claims; each is a row of the first table.
    answers : tuple of Answer
        The answered questions; each is a row of the second table.
    failures : tuple of str
        A line for each row, question or family that could not be measured; there should
        be none.
    seconds : mapping of str to float
        Processor time of the rows and questions of each paper, by the name of the
        paper. A row that belongs to two papers counts for both.
    """

    claims: tuple[Claim, ...]
    answers: tuple[Answer, ...]
    failures: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(
        default_factory=dict, compare=False, repr=False
    )

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
        """Two sentences: whose statements were judged, and whose statements fail.

        The text is empty if there is no claim.
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
        """The tables of claims and of answers, each as its cells by heading."""
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
        # A reader of the page sees claims and not the attributes of `Claim`.
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
        """Return the tables and counts as text and numbers, for strict JSON.

        The curves of the answers are left out.
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
    """Return "1 claim is" or "n claims are"."""
    return f"{claims} claim is" if claims == 1 else f"{claims} claims are"


def _listed(parts: list[str]) -> str:
    """Join parts as in "a, b and c"."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def audit(
    *,
    quick: bool = False,
    claim: int | None = None,
    paper: str | None = None,
    jobs: int = 1,
) -> Audit:
    """Measure every claim and answer every open question.

    Parameters
    ----------
    quick : bool
        Measure on smaller grids.
    claim : int, optional
        Measure only the claim with this number in the table (the first is 1), and
        answer no question.
    paper : str, optional
        Measure only the claims of the paper with this name, and answer only its
        questions.
    jobs : int
        Number of processes that measure rows and answer questions; there are at most as
        many as processors.

    Returns
    -------
    Audit
        The same tables at every call, for any number of processes. A row or question
        that raises an exception is left out of them, and ``failures`` has a line about
        it.

    Raises
    ------
    ValueError
        No claim has the number ``claim``, no paper has the name ``paper``, both
        arguments are given, or ``jobs`` is no number of processes.

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
    jobs = integer("jobs", jobs, minimum=1, maximum=10_000)
    if claim is not None:
        if paper is not None:
            raise ValueError(f"claim = {claim}: give a claim or a paper, not both")
        failures: list[str] = []
        claims = _measured([_row_at(claim)], quick, failures, {})
        return Audit(claims, (), tuple(failures))
    claims_by_family, failures = all_claims()
    if paper is not None:
        claims_by_family = _claims_of(paper, claims_by_family)
    rows, names = _rows_and_names(claims_by_family)
    seconds: dict[Row | str, float] = {}
    answers: list[Answer] = []
    if jobs == 1:
        claims = _measured(rows, quick, failures, seconds)
        answers += _answered(names, quick, failures, seconds)
    else:
        parts = _in_processes(rows, names, quick, paper, jobs)
        claims = tuple(claim for part in parts for claim in part.claims)
        for part in parts:
            answers += part.answers
            failures += part.failures
            seconds |= {rows[number][1]: s for number, s in part.row_seconds.items()}
            seconds |= part.answer_seconds
    seconds_of_papers = {}
    for family_claims in claims_by_family.values():
        for measured_paper in family_claims.papers:
            time_spent = _seconds_of(measured_paper, seconds)
            seconds_of_papers[measured_paper.name] = time_spent
    return Audit(claims, tuple(answers), tuple(failures), seconds_of_papers)


def _rows_and_names(
    claims_by_family: Mapping[str, Claims],
) -> tuple[list[tuple[str, Row]], list[tuple[str, str]]]:
    """Return all rows, and the names of all questions, each with its family's name."""
    rows = []
    names = []
    for family, claims in claims_by_family.items():
        rows += [(family, row) for row in claims.rows]
        names += [(family, question.name) for question in claims.questions]
    return rows, names


def _answered(
    names: Iterable[tuple[str, str]],
    quick: bool,
    failures: list[str],
    seconds: dict[Row | str, float],
) -> list[Answer]:
    """Return the answers to questions; the rest is as in `_measured`."""
    answers: list[Answer] = []
    for family, name in names:
        start = time.process_time()
        with left_out(f"the question {name} of the family {family}", failures):
            answers.append(answer(name, quick=quick))
        seconds[name] = time.process_time() - start
    return answers


class _Part(NamedTuple):
    """What a process has measured."""

    claims: tuple[Claim, ...]
    answers: list[Answer]
    failures: list[str]
    row_seconds: dict[int, float]  # by the number of the row
    answer_seconds: dict[Row | str, float]  # by the name of the question


def _measured_part(
    numbers: range, names: list[tuple[str, str]], quick: bool, paper: str | None
) -> _Part:
    """Measure a range of rows and answer questions, in a process of its own.

    Some rows cannot be sent to another process, so they are sent by their numbers.
    """
    claims_by_family, _ = all_claims()
    if paper is not None:
        claims_by_family = _claims_of(paper, claims_by_family)
    rows, _ = _rows_and_names(claims_by_family)
    part = [rows[number] for number in numbers]
    failures: list[str] = []
    row_seconds: dict[Row | str, float] = {}
    answer_seconds: dict[Row | str, float] = {}
    claims = _measured(part, quick, failures, row_seconds)
    answers = _answered(names, quick, failures, answer_seconds)
    by_number = {number: row_seconds[rows[number][1]] for number in numbers}
    return _Part(claims, answers, failures, by_number, answer_seconds)


def _in_processes(
    rows: list[tuple[str, Row]],
    names: list[tuple[str, str]],
    quick: bool,
    paper: str | None,
    jobs: int,
) -> list[_Part]:
    """Measure rows and answer questions in some processes, and keep their order."""
    from icl_theory.sweeps.workers import processes  # few audits need it

    # Rows of a module share runs, so one process measures them.
    modules = [row.__module__ for _, row in rows]
    starts = [n for n in range(len(rows)) if n == 0 or modules[n] != modules[n - 1]]
    ends = [*starts[1:], len(rows)]
    # More processes than processors would take turns.
    count = min(jobs, len(starts) + len(names), os.cpu_count() or 1)
    with processes(count) as pool:
        futures = [
            pool.submit(_measured_part, range(start, end), [], quick, paper)
            for start, end in zip(starts, ends, strict=True)
        ]
        futures += [
            pool.submit(_measured_part, range(0), [name], quick, paper)
            for name in names
        ]
        return [future.result() for future in counted(futures, "parts")]


def _claims_of(name: str, claims_by_family: Mapping[str, Claims]) -> dict[str, Claims]:
    """Return the claims of one paper by the name of the family that it is about."""
    families_and_papers = {}
    for family, claims in claims_by_family.items():
        for paper in claims.papers:
            families_and_papers[paper.name] = (family, paper)
    family, paper = families_and_papers[choice("paper", name, families_and_papers)]
    return {family: Claims(papers=(paper,))}


def _seconds_of(paper: Paper, seconds: Mapping[Row | str, float]) -> float:
    """Return the processor time that a paper's rows and questions took together.

    ``seconds`` holds the time of each row, and of each question by its name.
    """
    claims = Claims(papers=(paper,))
    measured: list[Row | str] = [*claims.rows]
    measured += [question.name for question in claims.questions]
    return sum(seconds.get(part, 0.0) for part in measured)


def _row_at(number: int) -> tuple[str, Row]:
    """Return the name of a family, and its row that has this number in the table.

    Families that come after this one in the table are not loaded, because loading
    takes longer than most rows.
    """
    rows: list[tuple[str, Row]] = []
    for family, claims in claims_in_order([]):
        rows += [(family, row) for row in claims.rows]
        if type(number) is int and 1 <= number <= len(rows):
            return rows[number - 1]
    # Only now is the number of rows known, which the message of a refusal states.
    number = integer("claim", number, minimum=1, maximum=len(rows))
    return rows[number - 1]


def _measured(
    rows: list[tuple[str, Row]],
    quick: bool,
    failures: list[str],
    seconds: dict[Row | str, float],
) -> tuple[Claim, ...]:
    """Return the claims that rows measure; each row comes with its family's name.

    A row that raises an exception yields no claim but a line in ``failures``. The
    processor time of each row is entered into ``seconds``.
    """
    claims: list[Claim] = []
    for family, row in counted(rows, "claims"):
        start = time.process_time()
        with left_out(f"the row {name_of(row)} of the family {family}", failures):
            claims.append(_checked(row(quick), Claim))
        seconds[row] = time.process_time() - start
    return tuple(claims)


def name_of(row: Row) -> str:
    """Return the name of a row's function."""
    return str(getattr(row, "__name__", row))


def _checked(result: Any, kind: type[Result]) -> Result:
    """Return the result of a row or question, or raise if it is of another kind."""
    if not isinstance(result, kind):
        article = "a" if kind is Claim else "an"
        raise TypeError(f"it must return {article} {kind.__name__}, not {result!r}")
    return result


def answer(name: str, *, quick: bool = False) -> Answer:
    """Answer one open question by measurement.

    Parameters
    ----------
    name : str
        Name of the question, for example "linear"; ``icl-theory audit`` prints all
        names.
    quick : bool
        Use shorter runs.

    Returns
    -------
    Answer
        The answer in words and the curves that show it, which
        `icl_theory.results.plots.plot_answer` draws.

    Raises
    ------
    ValueError
        There is no question with this name.

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
