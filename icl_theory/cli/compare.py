"""`icl-theory compare`: compare a user's loss curve with an exact run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from icl_theory.cli.shared import PlotFile, check_targets, print_json
from icl_theory.families.saved import load
from icl_theory.results import plots


def compare(
    run: Annotated[Path, typer.Argument(help="File of a run, from simulate --save.")],
    curve: Annotated[
        Path,
        typer.Argument(
            help="CSV file with the columns step and loss, and maybe error; "
            "or a file of TensorBoard, Weights & Biases or numpy.savetxt."
        ),
    ],
    batch: Annotated[
        int | None,
        typer.Option("--batch", help="Prompts in a batch of the curve's training."),
    ] = None,
    runs: Annotated[
        int,
        typer.Option(
            "--runs", help="Number of SGD runs that measure the scatter of the losses."
        ),
    ] = 16,
    scale: Annotated[
        float | None, typer.Option("--scale", help="Factor on the losses of the curve.")
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(
            "--column",
            help="Title of the column with the losses, or its number if the file has no"
            " header.",
        ),
    ] = None,
    plot: PlotFile = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the comparison as JSON.")
    ] = False,
) -> int:
    """Compare a loss curve of your own with an exact run; exit status 1 if they part.

    If they part, the answer names the changes of the run that explain the curve.

    Example: icl-theory compare run.npz my_run.csv --batch 256 --plot both.png
    """
    check_targets(plot)
    comparison = load(run).compare(
        curve, batch=batch, scale=scale, runs=runs, column=column
    )
    if as_json:
        print_json(
            {
                "leaves": comparison.leaves,
                "pace": comparison.pace,
                "explanations": [item.plain() for item in comparison.explanations],
                "untried": comparison.untried,
                "note": comparison.remarks,
                "checks": [check._asdict() for check in comparison.checks],
            }
        )
    else:
        print(comparison.to_markdown())
    if plot is not None:
        plots.save(comparison.plot(), str(plot))
    return 0 if comparison.passed else 1
