"""`icl-theory simulate`."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from icl_theory import tasks
from icl_theory._validate import refuse
from icl_theory.cli.shared import LossProgress, check_targets, integer_or_inf, print_facts
from icl_theory.descent import MAX_STEPS
from icl_theory.regression.coordinates import compare_coordinates
from icl_theory.regression.simulate import simulate as run_simulation
from icl_theory.trajectory import Trajectory


class TaskName(StrEnum):
    """Task families that the command line can name."""

    exchangeable = "exchangeable"
    linear = "linear"
    cosine = "cosine"
    fourier = "fourier"
    quadratic = "quadratic"
    halfspace = "halfspace"


FAMILIES = {
    TaskName.linear: tasks.Linear,
    TaskName.cosine: tasks.RandomCosine,
    TaskName.fourier: tasks.RandomFourier,
    TaskName.quadratic: tasks.Quadratic,
    TaskName.halfspace: tasks.Halfspace,
}


def simulate(
    context: typer.Context,
    L: Annotated[float, typer.Option("--L", help="Lipschitz constant of the tasks.")],
    delta: Annotated[float, typer.Option("--delta", help="Feature gap.")],
    eta: Annotated[float, typer.Option("--eta", help="Learning rate.")],
    K: Annotated[int, typer.Option("--K", help="Number of features.")] = 20,
    N: Annotated[str, typer.Option("--N", help="Prompt length, or inf.")] = "inf",
    epsilon: Annotated[float, typer.Option("--epsilon", help="Target loss.")] = 1e-3,
    noise: Annotated[float, typer.Option("--noise", help="Standard deviation of the label noise.")] = 0.0,
    task: Annotated[TaskName, typer.Option("--task", help="Task family.")] = TaskName.exchangeable,
    coordinates: Annotated[
        str, typer.Option("--coordinates", help="class, embedding, factored, or all three.")
    ] = "class",
    method: Annotated[str, typer.Option("--method", help="auto, closed, exact, fast or flow.")] = "auto",
    imbalance: Annotated[
        float | None, typer.Option("--imbalance", help="Imbalance of the prompts, for the paper's rule.")
    ] = None,
    max_steps: Annotated[int, typer.Option("--max-steps", help="Largest number of steps.")] = MAX_STEPS,
    plot: Annotated[Path | None, typer.Option("--plot", help="Write the figure (png, pdf or svg).")] = None,
    save: Annotated[Path | None, typer.Option("--save", help="Write the run, for icl_theory.load.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the run as JSON instead of a summary.")] = False,
) -> int:
    """Train on in-context regression until the loss is epsilon, and say when each phase ends."""
    check_targets(plot, save=save)
    length = integer_or_inf("N", N)
    if coordinates == "all" and save is not None:
        raise refuse("save", str(save), "left out with --coordinates all: a file holds one run")
    with LossProgress(epsilon) as progress:
        arguments: dict[str, Any] = {
            "K": K, "N": length, "epsilon": epsilon, "noise": noise, "task": FAMILIES.get(task), "method": method,
            "max_steps": max_steps, "imbalance": imbalance, "callback": progress.update,
        }  # fmt: skip
        if coordinates == "all":
            runs = compare_coordinates(L, delta, eta, **arguments)
        else:
            runs = {coordinates: run_simulation(L, delta, eta, coordinates=coordinates, **arguments)}
    for each in runs.values():
        each.command = context.obj
    run = runs.get(coordinates)
    if as_json:
        found = run.to_dict() if run is not None else {name: each.to_dict() for name, each in runs.items()}
        print(json.dumps(found, allow_nan=False))
    elif run is not None:
        print_facts(run)
    else:
        _print_side_by_side(runs)
    if save is not None and run is not None:
        run.save(save)
    if plot is not None:
        from icl_theory.results.plots import compare_runs
        from icl_theory.results.plots import save as save_figure

        save_figure(compare_runs(list(runs.values())) if run is None else run.plot(), str(plot))
    return 130 if any(each.stop_reason.startswith("interrupted") for each in runs.values()) else 0


def _print_side_by_side(runs: dict[str, Trajectory]) -> None:
    table = Table(box=None, pad_edge=False)
    facts = {name: run.facts() for name, run in runs.items()}
    table.add_column("")
    for name in runs:
        table.add_column(name, ratio=1, overflow="fold")
    for row in dict.fromkeys(row for each in facts.values() for row in each if row != "run"):
        table.add_row(row, *(each.get(row, "") for each in facts.values()))
    Console(highlight=False).print(table)
