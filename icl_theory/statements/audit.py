"""The audit: every claim of the theory measured, and the open questions answered.

Each family lists its rows and questions in its slot ``claims``, an attribute that
plug-ins can fill. A row is a function that measures a statement and returns a `Claim`.
`audit` measures all rows and answers all questions; its result, an `Audit`, holds two
tables, one of claims and one of answers. `answer` answers a single question.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from icl_theory._validate import choice, flag, integer
from icl_theory.engine.display import Displayable
from icl_theory.engine.progress import Progress, counted
from icl_theory.families import registry
from icl_theory.families.plug_ins import contributed, discover, left_out
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

# `icl-theory audit` fails if a claim with one of these statuses is violated. If an
# order of magnitude or an observation turns out wrong, that is a finding.
BINDING = (Status.EXACT, Status.CERTIFIED)
# The columns of the table of answers: each is an attribute of `Answer`.
ANSWER_HEADINGS = ("question", "answer", "command")
# For each value of `Claim.formula`, the words of the summary that say whose formula was
# judged.
WHOSE = {
    "paper": "in a paper's own words",
    RECONSTRUCTED: "in formulas that we reconstructed",
    OURS: "of this package",
}
# A larger number of processes is taken for a mistake.
MOST_JOBS = 10_000
Result = TypeVar("Result", Claim, Answer)


class AllClaims(NamedTuple):
    """The claims of all families."""

    by_family: dict[str, Claims]  # by the name of the family
    messages: list[str]  # one for each slot ``claims`` that cannot be used


def all_claims() -> AllClaims:
    """Return the claims of all families, in the order of the audit's table."""
    messages: list[str] = []
    by_family = dict(claims_in_order(messages))
    return AllClaims(by_family, messages)


def claims_in_order(messages: list[str]) -> Iterator[tuple[str, Claims]]:
    """Yield the name and the claims of each family, in the order of the audit's table.

    The claims of a family are loaded when its turn comes. If they cannot be loaded, the
    family is passed over and the reason is appended to ``messages``.
    """
    for family in _families_in_order():
        slot = f"the slot claims of the family {family}"
        claims: Any = None
        # `left_out` catches an error of its block, and appends a message.
        with left_out(slot, messages):
            claims = _slot_of(family)
        if isinstance(claims, Claims):
            yield family, claims
        elif claims is not None:
            messages.append(f"{slot} is left out: it is no Claims: {claims!r}")


def _families_in_order() -> Iterator[str]:
    """Yield the names of all families, the default one as early as plug-ins allow."""
    # Most rows are of the default family, which has the order 0. Unless a plug-in has a
    # negative order, the default family comes first. It is then yielded before
    # `families_known` loads the others.
    plug_ins, _messages = discover()
    default_is_first = all(plug_in.order >= 0.0 for plug_in in plug_ins)
    if default_is_first:
        yield registry.DEFAULT
    for name in registry.families_known():
        if not (default_is_first and name == registry.DEFAULT):
            yield name


def _slot_of(family: str) -> Any:
    """Return the value of the slot ``claims`` of a family."""
    # The default family belongs to the core, which knows no paper, so only plug-ins
    # fill its slot. The family itself is not loaded here: a row loads what it needs.
    if family == registry.DEFAULT:
        return contributed(family, "claims")
    return registry.families_known()[family].claims


def rows() -> tuple[Row, ...]:
    """Return the rows of every family, in the order of the audit's table."""
    claims_by_family, _messages = all_claims()
    return tuple(row for claims in claims_by_family.values() for row in claims.rows)


def questions() -> dict[str, Question]:
    """Return the open questions of every family by name."""
    by_name: dict[str, Question] = {}
    claims_by_family, _messages = all_claims()
    for claims in claims_by_family.values():
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
        """The number of claims about each kind of formula.

        The kinds are the values of `Claim.formula`: a formula in a paper's own words, a
        formula that we reconstructed, and a formula of this package.
        """
        counts = Counter(claim.formula for claim in self.claims)
        return {formula: counts[formula] for formula in WHOSE}

    @property
    def summary(self) -> str:
        """Two sentences: whose statements were judged, and whose statements fail.

        The text is empty if there is no claim.
        """
        if not self.claims:
            return ""
        judged = [f"{n} {WHOSE[formula]}" for formula, n in self.formulas.items()]
        counts = Counter(claim.formula for claim in self.claims if claim.violated)
        failing = [
            f"{counts[formula]} {WHOSE[formula]}"
            for formula in WHOSE
            if counts[formula]
        ]
        verdicts = "None of them fails"
        if failing:
            verdicts = f"Those that fail: {_listed(failing)}"
        return f"{_claims_are(len(self.claims))} judged: {_listed(judged)}. {verdicts}."

    @property
    def columns(self) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        """The tables of claims and of answers, each as its columns by heading."""
        table_rows = [claim.cells() for claim in self.claims]
        claims: dict[str, list[str]] = {}
        for index, heading in enumerate(HEADINGS):
            claims[heading] = [cells[index] for cells in table_rows]
        answers: dict[str, list[str]] = {}
        for heading in ANSWER_HEADINGS:
            answers[heading] = [getattr(answer, heading) for answer in self.answers]
        return claims, answers

    def to_markdown(self) -> str:
        """Return both tables as Markdown."""
        # Loaded here, because most audits are not written as a page.
        from icl_theory.results.numbers import markdown

        claims, answers = self.columns
        # The page calls the name of a claim "claim", in the first column.
        claims = {"claim": claims.pop("name")} | claims
        answers["command"] = [f"`{command}`" for command in answers["command"]]
        paragraphs = ["# Audit"]
        if self.summary:
            paragraphs.append(self.summary)
        paragraphs += ["## Claims", markdown(claims)]
        paragraphs += ["## Open questions", markdown(answers)]
        if self.failures:
            lines = [f"- {line}" for line in self.failures]
            paragraphs += ["## Left out", "\n".join(lines)]
        return "\n\n".join(paragraphs) + "\n"

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


def _claims_are(count: int) -> str:
    """Return "1 claim is" or "n claims are" for a count of n."""
    return f"{count} claim is" if count == 1 else f"{count} claims are"


def _listed(items: list[str]) -> str:
    """Join one or more items as in "a, b and c"."""
    if len(items) == 1:
        return items[0]
    return f"{', '.join(items[:-1])} and {items[-1]}"


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
        Number of processes that measure rows and answer questions. If it is larger than
        the number of processors, there is one process for each processor.

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
        arguments are given, or ``jobs`` is not a positive integer.

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
    jobs = integer("jobs", jobs, minimum=1, maximum=MOST_JOBS)
    if claim is not None:
        if paper is not None:
            raise ValueError(f"claim = {claim}: give a claim or a paper, not both")
        failures: list[str] = []
        measured = _measured([_row_at(claim)], quick, failures, _Seconds.none())
        return Audit(measured, (), tuple(failures))
    claims_by_family, failures = all_claims()
    if paper is not None:
        claims_by_family = _claims_of(paper, claims_by_family)
    tasks = _tasks_of(claims_by_family)
    # Both ways of measuring fill ``failures`` and ``seconds``.
    seconds = _Seconds.none()
    if jobs == 1:
        measured = _measured(tasks.rows, quick, failures, seconds)
        answers = _answered(tasks.questions, quick, failures, seconds)
    else:
        results = _in_processes(tasks, quick, paper, jobs)
        measured, answers = _joined(results, tasks.rows, failures, seconds)
    return Audit(
        claims=measured,
        answers=answers,
        failures=tuple(failures),
        seconds=_seconds_of_papers(claims_by_family, seconds),
    )


class _FamilyRow(NamedTuple):
    """A row of the audit."""

    family: str  # name of the family whose claims have it
    row: Row


class _FamilyQuestion(NamedTuple):
    """An open question."""

    family: str  # name of the family whose claims have it
    name: str  # name of the question


class _Tasks(NamedTuple):
    """The rows to measure and the questions to answer, in the order of the tables."""

    rows: list[_FamilyRow]
    questions: list[_FamilyQuestion]


class _Seconds(NamedTuple):
    """The processor time that rows and questions took."""

    of_rows: dict[Row, float]
    of_questions: dict[str, float]  # by the name of the question

    @classmethod
    def none(cls) -> _Seconds:
        """Return two empty mappings, which the measurements fill."""
        return cls(of_rows={}, of_questions={})


def _tasks_of(claims_by_family: Mapping[str, Claims]) -> _Tasks:
    """Return all rows and questions of the families in ``claims_by_family``."""
    tasks = _Tasks(rows=[], questions=[])
    for family, claims in claims_by_family.items():
        for row in claims.rows:
            tasks.rows.append(_FamilyRow(family, row))
        for question in claims.questions:
            tasks.questions.append(_FamilyQuestion(family, question.name))
    return tasks


def _answered(
    questions: Iterable[_FamilyQuestion],
    quick: bool,
    failures: list[str],
    seconds: _Seconds,
) -> tuple[Answer, ...]:
    """Return the answers to questions.

    A question that raises an exception has no answer but a line in ``failures``. The
    processor time of each question is entered into ``seconds``.
    """
    answers: list[Answer] = []
    for family, name in questions:
        start = time.process_time()
        with left_out(f"the question {name} of the family {family}", failures):
            answers.append(answer(name, quick=quick))
        seconds.of_questions[name] = time.process_time() - start
    return tuple(answers)


class _ProcessResult(NamedTuple):
    """The result of a process that has measured some rows or answered questions."""

    claims: tuple[Claim, ...]
    answers: tuple[Answer, ...]
    failures: list[str]
    row_seconds: dict[int, float]  # by the number of the row among all rows
    question_seconds: dict[str, float]  # by the name of the question


def _measure_in_process(
    row_numbers: range,
    questions: list[_FamilyQuestion],
    quick: bool,
    paper: str | None,
) -> _ProcessResult:
    """Measure a range of rows and answer questions, in a process of its own.

    Some rows cannot be pickled, so the process gets the numbers of the rows, which
    count from 0 in the list that ``_tasks_of`` makes.
    """
    # The calling process reports the families whose claims cannot be loaded.
    claims_by_family, _messages = all_claims()
    if paper is not None:
        claims_by_family = _claims_of(paper, claims_by_family)
    rows = _tasks_of(claims_by_family).rows
    failures: list[str] = []
    seconds = _Seconds.none()
    own_rows = [rows[number] for number in row_numbers]
    claims = _measured(own_rows, quick, failures, seconds)
    answers = _answered(questions, quick, failures, seconds)
    row_seconds = {n: seconds.of_rows[rows[n].row] for n in row_numbers}
    return _ProcessResult(claims, answers, failures, row_seconds, seconds.of_questions)


def _in_processes(
    tasks: _Tasks, quick: bool, paper: str | None, jobs: int
) -> list[_ProcessResult]:
    """Measure rows and answer questions in several processes.

    The results are in the order of the rows and then of the questions.
    """
    from icl_theory.sweeps.workers import processes  # few audits need it

    ranges = _ranges_of_modules(tasks.rows)
    # More processes than processors would take turns.
    count = min(jobs, len(ranges) + len(tasks.questions), os.cpu_count() or 1)
    with processes(count) as pool:
        futures = [
            pool.submit(_measure_in_process, row_numbers, [], quick, paper)
            for row_numbers in ranges
        ]
        futures += [
            pool.submit(_measure_in_process, range(0), [question], quick, paper)
            for question in tasks.questions
        ]
        return [future.result() for future in counted(futures, "parts")]


def _ranges_of_modules(rows: list[_FamilyRow]) -> list[range]:
    """Return the numbers of the rows, in ranges of successive rows of one module.

    Rows of a module share runs, so one process measures them.
    """
    modules = [row.__module__ for _, row in rows]
    ranges = []
    start = 0
    for end in range(1, len(modules) + 1):
        if end == len(modules) or modules[end] != modules[start]:
            ranges.append(range(start, end))
            start = end
    return ranges


def _joined(
    results: list[_ProcessResult],
    rows: list[_FamilyRow],
    failures: list[str],
    seconds: _Seconds,
) -> tuple[tuple[Claim, ...], tuple[Answer, ...]]:
    """Join the claims and the answers of all processes.

    Their failures are appended to ``failures``, and their times entered into
    ``seconds``.
    """
    claims: list[Claim] = []
    answers: list[Answer] = []
    for result in results:
        claims += result.claims
        answers += result.answers
        failures += result.failures
        for number, row_seconds in result.row_seconds.items():
            seconds.of_rows[rows[number].row] = row_seconds
        seconds.of_questions.update(result.question_seconds)
    return tuple(claims), tuple(answers)


def _claims_of(name: str, claims_by_family: Mapping[str, Claims]) -> dict[str, Claims]:
    """Return the claims of one paper by the name of the family that it is about."""
    family_and_paper = {}
    for family, claims in claims_by_family.items():
        for paper in claims.papers:
            family_and_paper[paper.name] = (family, paper)
    # `choice` refuses a name that no paper has.
    choice("paper", name, family_and_paper)
    family, paper = family_and_paper[name]
    return {family: Claims(papers=(paper,))}


def _seconds_of_papers(
    claims_by_family: Mapping[str, Claims], seconds: _Seconds
) -> dict[str, float]:
    """Return the processor time of rows and questions, by the name of their paper."""
    seconds_of_papers = {}
    for claims in claims_by_family.values():
        for paper in claims.papers:
            seconds_of_papers[paper.name] = _seconds_of(paper, seconds)
    return seconds_of_papers


def _seconds_of(paper: Paper, seconds: _Seconds) -> float:
    """Return the processor time that a paper's rows and questions took together."""
    # `Claims` collects the rows and questions of this paper's readings.
    claims = Claims(papers=(paper,))
    names = [question.name for question in claims.questions]
    times = [seconds.of_rows.get(row, 0.0) for row in claims.rows]
    times += [seconds.of_questions.get(name, 0.0) for name in names]
    return sum(times)


def _row_at(number: int) -> _FamilyRow:
    """Return the row with the number ``number`` in the table.

    The claims of families that come later in the table are not loaded, because loading
    takes longer than most rows.
    """
    rows: list[_FamilyRow] = []
    # Messages about families that cannot be loaded are thrown away.
    for family, claims in claims_in_order([]):
        rows += [_FamilyRow(family, row) for row in claims.rows]
        # Return the row as soon as it is loaded. A number that is no int, or that is
        # beyond the rows so far, is checked at the end.
        if type(number) is int and 1 <= number <= len(rows):
            return rows[number - 1]
    # Only now is the number of rows known, which the message of a refusal states.
    number = integer("claim", number, minimum=1, maximum=len(rows))
    return rows[number - 1]


def _measured(
    rows: list[_FamilyRow], quick: bool, failures: list[str], seconds: _Seconds
) -> tuple[Claim, ...]:
    """Return the claims that rows measure.

    A row that raises an exception yields no claim but a line in ``failures``. The
    processor time of each row is entered into ``seconds``.
    """
    claims: list[Claim] = []
    for family, row in counted(rows, "claims"):
        start = time.process_time()
        with left_out(f"the row {name_of(row)} of the family {family}", failures):
            claims.append(_checked(row(quick), Claim))
        seconds.of_rows[row] = time.process_time() - start
    return tuple(claims)


def name_of(row: Row) -> str:
    """Return the name of a row's function."""
    return str(getattr(row, "__name__", row))


def _checked(result: Any, kind: type[Result]) -> Result:
    """Return the result of a row or question, or raise if it is of the wrong class."""
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
