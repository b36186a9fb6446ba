"""The command line: everything it prints, it prints here."""

from __future__ import annotations

import json
import math
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from icl_theory import __version__, tasks
from icl_theory._validate import refuse
from icl_theory.audit import Audit
from icl_theory.audit import answer as measure_answer
from icl_theory.audit import audit as measure_audit
from icl_theory.claims import Answer
from icl_theory.descent import MAX_STEPS
from icl_theory.regression.simulate import simulate as run_simulation
from icl_theory.trajectory import Trajectory

app = typer.Typer(
    help="Exact training dynamics of in-context learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class TaskName(StrEnum):
    """Task families that the command line can name."""

    exchangeable = "exchangeable"
    linear = "linear"
    cosine = "cosine"
    fourier = "fourier"
    quadratic = "quadratic"
    halfspace = "halfspace"


FORMATS = (".png", ".pdf", ".svg")
FAMILIES = {
    TaskName.linear: tasks.Linear,
    TaskName.cosine: tasks.RandomCosine,
    TaskName.fourier: tasks.RandomFourier,
    TaskName.quadratic: tasks.Quadratic,
    TaskName.halfspace: tasks.Halfspace,
}


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; wrong input is one line on standard error and exit status 2."""
    try:
        status = app(args=arguments, standalone_mode=False)
    except (ValueError, OSError) as error:
        _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        # typer's usage errors have no public class of their own
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        _fail(message())
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str) -> None:
    if message:  # a bare command has printed its help instead
        print("icl-theory: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(2)


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def simulate(
    L: Annotated[float, typer.Option("--L", help="Lipschitz constant of the tasks.")],
    delta: Annotated[float, typer.Option("--delta", help="Feature gap.")],
    eta: Annotated[float, typer.Option("--eta", help="Learning rate.")],
    K: Annotated[int, typer.Option("--K", help="Number of features.")] = 20,
    N: Annotated[str, typer.Option("--N", help="Prompt length, or inf.")] = "inf",
    epsilon: Annotated[float, typer.Option("--epsilon", help="Target loss.")] = 1e-3,
    noise: Annotated[float, typer.Option("--noise", help="Standard deviation of the label noise.")] = 0.0,
    task: Annotated[TaskName, typer.Option("--task", help="Task family.")] = TaskName.exchangeable,
    coordinates: Annotated[str, typer.Option("--coordinates", help="class, embedding or factored.")] = "class",
    method: Annotated[str, typer.Option("--method", help="auto, closed, exact or flow.")] = "auto",
    imbalance: Annotated[
        float | None, typer.Option("--imbalance", help="Imbalance of the prompts, for the paper's rule.")
    ] = None,
    max_steps: Annotated[int, typer.Option("--max-steps", help="Largest number of steps.")] = MAX_STEPS,
    plot: Annotated[Path | None, typer.Option("--plot", help="Write the figure (png, pdf or svg).")] = None,
    save: Annotated[Path | None, typer.Option("--save", help="Write the run, for icl_theory.load.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the run as JSON instead of a summary.")] = False,
) -> int:
    """Train on in-context regression until the loss is epsilon, and say when each phase ends."""
    _check_targets(plot, save=save)
    length = math.inf if N.lower() in ("inf", "infinity") else _integer("N", N)
    with _Progress(epsilon) as progress:
        run = run_simulation(
            L, delta, eta, K=K, N=length, epsilon=epsilon, noise=noise, task=FAMILIES.get(task),
            coordinates=coordinates, method=method, max_steps=max_steps,
            imbalance=imbalance, callback=progress.update,
        )  # fmt: skip
    if as_json:
        print(json.dumps(run.to_dict(), allow_nan=False))
    else:
        _print_summary(run)
    if save is not None:
        run.save(save)
    if plot is not None:
        from icl_theory.plotting import save as save_figure

        save_figure(run.plot(), str(plot))
    return 130 if run.stop_reason.startswith("interrupted") else 0


@app.command()
def audit(
    out: Annotated[Path | None, typer.Option("--out", help="Write both tables as Markdown.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the tables as JSON.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller grids.")] = False,
    question: Annotated[str | None, typer.Option("--question", help="Answer one open question only.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Write the figure of --question.")] = None,
) -> int:
    """Hold every claim of the theory against measurements; status 1 if an exact one is violated."""
    _check_targets(plot=plot, out=out)
    if plot is not None and question is None:
        raise refuse("plot", str(plot), "given together with --question")
    if question is not None:
        if out is not None:
            raise refuse("out", str(out), "left out with --question, which prints its answer")
        _print_answer(measure_answer(question, quick=quick), plot, as_json)
        return 0
    console = Console(stderr=True)
    with console.status("measuring") as status:
        report = measure_audit(quick=quick, callback=lambda name: status.update(f"measuring {name}"))
    if out is not None:
        out.write_text(report.to_markdown(), encoding="utf-8")
    if as_json:
        print(json.dumps(report.to_dict(), allow_nan=False, ensure_ascii=False))
    else:
        _print_audit(report)
    return 1 if report.violations else 0


def _print_answer(found: Answer, plot: Path | None, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"question": found.question, "answer": found.answer}, ensure_ascii=False))
    else:
        console = Console(highlight=False)
        console.print(found.question, style="bold")
        console.print(found.answer)
    if plot is not None:
        from icl_theory.plotting import plot_answer
        from icl_theory.plotting import save as save_figure

        save_figure(plot_answer(found), str(plot))


def _print_audit(report: Audit) -> None:
    console = Console(highlight=False)
    claims = Table(box=box.SIMPLE, pad_edge=False, show_lines=False, expand=False)
    for heading, ratio in (("claim", 2), ("measured", 4), ("verdict", 3)):
        claims.add_column(heading, ratio=ratio, overflow="fold")
    for claim in report.claims:
        style = "red" if claim in report.violations else None
        claims.add_row(f"{claim.name} ({claim.status})", claim.measured, claim.verdict, style=style)
    console.print(claims)
    for found in report.answers:
        console.print(found.question, style="bold")
        console.print(found.answer)
        console.print(f"  {found.command}\n", style="dim")
    violated = ", ".join(claim.name for claim in report.violations)
    print(f"Violated: {violated}" if violated else "No exact or certified claim is violated.")


def _check_targets(plot: Path | None, **others: Path | None) -> None:
    """Refuse files that cannot be written before anything is computed."""
    for name, path in {"plot": plot, **others}.items():
        if path is not None and not path.absolute().parent.is_dir():
            raise refuse(name, str(path), "in a folder that exists")
    if plot is not None and plot.suffix not in FORMATS:
        raise refuse("plot", str(plot), "a file name ending in " + ", ".join(FORMATS))


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise refuse(name, text, "an integer >= 1, or inf") from None


def _print_summary(run: Trajectory) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in run.facts().items():
        table.add_row(name, value)
    Console(highlight=False).print(table)


class _Progress:
    """Progress on standard error after a second: a live line in a terminal, plain lines elsewhere."""

    def __init__(self, epsilon: float) -> None:
        self._epsilon = epsilon
        self._next = time.monotonic() + 1.0
        self._display: Progress | None = None

    def __enter__(self) -> _Progress:
        return self

    def update(self, step: int, loss: float) -> None:
        """Take note of a step and its loss."""
        if time.monotonic() < self._next:
            return
        if not sys.stderr.isatty():
            print(f"step {step:,}  loss {loss:.4g} (target {self._epsilon:g})", file=sys.stderr, flush=True)
            self._next = time.monotonic() + 10.0
            return
        if self._display is None:
            self._display = Progress(
                SpinnerColumn(),
                TextColumn(
                    "step {task.fields[step]:,}  loss {task.fields[loss]:.4g} (target {task.fields[target]:g})"
                ),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._display.start()
            self._task = self._display.add_task("", total=None, step=0, loss=loss, target=self._epsilon)
        self._display.update(self._task, step=step, loss=loss)
        self._next = time.monotonic() + 0.1

    def __exit__(self, *_: object) -> None:
        if self._display is not None:
            self._display.stop()


if __name__ == "__main__":
    main()
