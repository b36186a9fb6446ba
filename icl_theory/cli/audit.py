"""`icl-theory audit`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from icl_theory._validate import choice
from icl_theory.cli.shared import check_targets, print_facts, say_left_out
from icl_theory.families.plug_ins import left_out
from icl_theory.files import replacing
from icl_theory.results.plots import plot_answer
from icl_theory.results.plots import save as save_figure
from icl_theory.statements.audit import Audit, known, questions
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
    quick: Annotated[bool, typer.Option("--quick", help="Smaller grids.")] = False,
    claim: Annotated[
        int | None,
        typer.Option("--claim", help="Measure one claim only, by its number."),
    ] = None,
    question: Annotated[
        str | None, typer.Option("--question", help="Answer one open question only.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Write the figure of --question.")
    ] = None,
) -> int:
    """Compare every claim of the theory with measurements; exit status 1 if an exact one is violated.

    Example: icl-theory audit --question tightness --quick --plot tightness.png
    """
    check_targets(plot=plot, out=out)
    if claim is not None and question is not None:
        raise ValueError(f"claim = {claim}: give --claim or --question, not both")
    if plot is not None and question is None:
        raise ValueError(
            f"plot = {str(plot)!r}: only an answer has a figure; give --question, too"
        )
    if question is not None:
        if out is not None:
            raise ValueError(
                f"out = {str(out)!r}: --question prints its answer and writes no file"
            )
        choice("question", question, questions())
        say_left_out(known()[1])
        failures: list[str] = []
        with left_out(f"the question {question}", failures):
            found = measure_answer(question, quick=quick)
        if not failures:
            _print_answer(found, plot, as_json)
        say_left_out(failures)
        return 1 if failures else 0
    report = measure_audit(quick=quick, claim=claim)
    if out is not None:
        with replacing(out) as temporary:
            temporary.write_text(report.to_markdown(), encoding="utf-8")
    if claim is not None and report.claims and not as_json:
        print_facts(dict(zip(HEADINGS, report.claims[0].cells(), strict=True)))
    elif as_json:
        print(json.dumps(report.to_dict(), allow_nan=False, ensure_ascii=False))
    else:
        _print_audit(report)
    say_left_out({*known()[1], *report.failures})
    return 1 if report.violations or report.failures else 0


def _print_answer(found: Answer, plot: Path | None, as_json: bool) -> None:
    if as_json:
        print(
            json.dumps(
                {"question": found.question, "answer": found.answer}, ensure_ascii=False
            )
        )
    else:
        console = Console(highlight=False)
        console.print(found.question, style="bold")
        console.print(found.answer)
    if plot is not None:
        save_figure(plot_answer(found), str(plot))


def _print_audit(report: Audit) -> None:
    console = Console(highlight=False)
    claims = Table(box=box.SIMPLE, pad_edge=False, show_lines=False, expand=False)
    for heading, ratio in (("claim", 2), ("measured", 4), ("verdict", 3)):
        claims.add_column(heading, ratio=ratio, overflow="fold")
    for claim in report.claims:
        style = "red" if claim in report.violations else None
        name = f"{claim.name} ({claim.status}; {claim.source})"
        claims.add_row(name, claim.measured, claim.finding, style=style)
    console.print(claims)
    if report.summary:
        console.print(f"{report.summary}\n")
    for found in report.answers:
        console.print(found.question, style="bold")
        console.print(found.answer)
        console.print(f"  {found.command}\n", style="dim")
    violated = ", ".join(claim.name for claim in report.violations)
    print(
        f"Violated: {violated}"
        if violated
        else "No exact or certified claim is violated."
    )
