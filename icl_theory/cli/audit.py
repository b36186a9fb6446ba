"""`icl-theory audit`: measure claims or answer a question; print and write results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from icl_theory._validate import choice
from icl_theory.cli import completion
from icl_theory.cli.shared import check_targets, print_facts, say_left_out
from icl_theory.families.plug_ins import left_out
from icl_theory.files import replacing
from icl_theory.statements.audit import Audit, all_claims, questions
from icl_theory.statements.audit import answer as measure_answer
from icl_theory.statements.audit import audit as measure_audit
from icl_theory.statements.claim import HEADINGS, Answer


def audit(
    out: Annotated[
        Path | None, typer.Option("--out", help="Write both tables as Markdown.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the tables as JSON.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Use smaller grids.")] = False,
    claim: Annotated[
        int | None,
        typer.Option("--claim", help="Measure one claim only, by its number."),
    ] = None,
    paper: Annotated[
        str | None,
        typer.Option(
            "--paper",
            help="Measure one paper only, by its name.",
            autocompletion=completion.of_words(completion.papers),
        ),
    ] = None,
    question: Annotated[
        str | None,
        typer.Option(
            "--question",
            help="Answer one open question only.",
            autocompletion=completion.of_words(completion.questions),
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Write the figure of --question.")
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", help="Measure in this many processes.")
    ] = 1,
) -> int:
    """Measure every claim of the theory; exit status 1 if an exact one is violated.

    Example: icl-theory audit --question tightness --quick --plot tightness.png
    """
    # Options that contradict each other are refused before anything is measured.
    check_targets(plot=plot, out=out)
    selections = {"claim": claim, "paper": paper, "question": question}
    given = [name for name, value in selections.items() if value is not None]
    if len(given) > 1:
        first, second = given[:2]
        raise ValueError(
            f"{first} = {selections[first]!r}: give --{first} or --{second}, not both"
        )
    if plot is not None and question is None:
        raise ValueError(
            f"plot = {str(plot)!r}: only an answer has a figure; give --question, too"
        )
    if question is None:
        return _audit_claims(out, as_json, quick, claim, paper, jobs)
    if out is not None:
        raise ValueError(
            f"out = {str(out)!r}: --question prints its answer and writes no file"
        )
    return _answer_question(question, plot, as_json, quick)


def _audit_claims(
    out: Path | None,
    as_json: bool,
    quick: bool,
    claim: int | None,
    paper: str | None,
    jobs: int,
) -> int:
    """Measure claims, write and print them, and return the exit status.

    ``claim`` is the number of the only claim to measure, and ``paper`` the name of the
    only paper. Without them all claims are measured.
    """
    report = measure_audit(quick=quick, claim=claim, paper=paper, jobs=jobs)
    if out is not None:
        with replacing(out) as temporary:
            temporary.write_text(report.to_markdown(), encoding="utf-8")
    if as_json:
        print(json.dumps(report.to_dict(), allow_nan=False, ensure_ascii=False))
    elif claim is not None and report.claims:
        print_facts(dict(zip(HEADINGS, report.claims[0].cells(), strict=True)))
    else:
        _print_audit(report)
    failures = {*report.failures}
    if claim is None:
        # Also name families whose claims cannot be loaded. For a single claim they are
        # not named, because finding them would load families that the claim does not
        # need.
        _claims, messages = all_claims()
        failures |= {*messages}
    say_left_out(failures)
    return 1 if report.violations or report.failures else 0


def _answer_question(name: str, plot: Path | None, as_json: bool, quick: bool) -> int:
    """Answer a question, print and draw the answer, and return the exit status."""
    choice("question", name, questions())
    # The messages are about families whose claims and questions cannot be loaded.
    _claims, messages = all_claims()
    say_left_out(messages)
    failures: list[str] = []
    # An error in the code of a family becomes a message in ``failures``.
    with left_out(f"the question {name}", failures):
        answer = measure_answer(name, quick=quick)
    if not failures:
        _print_answer(answer, plot, as_json)
    say_left_out(failures)
    return 1 if failures else 0


def _print_answer(answer: Answer, plot: Path | None, as_json: bool) -> None:
    """Print an answer as text or JSON, and draw its figure if ``plot`` is a file."""
    if as_json:
        texts = {"question": answer.question, "answer": answer.answer}
        print(json.dumps(texts, ensure_ascii=False))
    else:
        console = Console(highlight=False)
        console.print(answer.question, style="bold")
        console.print(answer.answer)
    if plot is not None:
        # Loaded here, because most audits draw no figure.
        from icl_theory.results.plots import plot_answer, save

        save(plot_answer(answer), str(plot))


def _print_audit(report: Audit) -> None:
    """Print the claims as a table, then the answers, times and violations."""
    console = Console(highlight=False)
    # Three of the eight columns fit into a terminal, with widths in the ratio 2:4:3;
    # --json and --out have all.
    claims = Table(box=box.SIMPLE, pad_edge=False, show_lines=False, expand=False)
    for heading, ratio in (("claim", 2), ("measured", 4), ("verdict", 3)):
        claims.add_column(heading, ratio=ratio, overflow="fold")
    for claim in report.claims:
        # A violated claim is red. An observation that fails is a finding, not a
        # violation.
        style = "red" if claim in report.violations else None
        name = f"{claim.name} ({claim.status}; {claim.source})"
        claims.add_row(name, claim.measured, claim.finding, style=style)
    console.print(claims)
    if report.summary:
        console.print(f"{report.summary}\n")
    for answer in report.answers:
        console.print(answer.question, style="bold")
        console.print(answer.answer)
        console.print(f"  {answer.command}\n", style="dim")
    if report.seconds:
        times = [f"{name} {seconds:.0f} s" for name, seconds in report.seconds.items()]
        console.print(f"Processor time: {', '.join(times)}.\n", style="dim")
    if report.violations:
        names = ", ".join(claim.name for claim in report.violations)
        print(f"Violated: {names}")
    else:
        print("No exact or certified claim is violated.")
