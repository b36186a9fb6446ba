"""`icl-theory sweep`."""

from __future__ import annotations

import contextlib
import sys
import tomllib
from concurrent.futures import Executor
from pathlib import Path
from typing import Annotated, Any

import typer

from icl_theory._validate import choice, integer, refuse
from icl_theory.cli.axes import parse_axis
from icl_theory.cli.outputs import Outputs, report_failures
from icl_theory.cli.simulate import FAMILIES, TaskName
from icl_theory.descent import MAX_STEPS

PARAMETERS = {
    "L": None, "delta": None, "eta": None, "K": "20", "N": "inf", "epsilon": "1e-3", "noise": "0",
    "imbalance": None,
}  # fmt: skip
OTHERS = {"task": "exchangeable", "coordinates": "class", "method": "auto", "max_steps": MAX_STEPS}
REQUIRED = ("L", "delta", "eta")
FILES = ("table", "csv", "latex", "parquet", "plot", "store")
KEYS = (*PARAMETERS, *OTHERS, *FILES, "over", "workers", "dask")
RANGE = "Number, list 1,2,5 or range 0.1:10:log:25 (or lin)."


def sweep(
    context: typer.Context,
    L: Annotated[str | None, typer.Option("--L", help=f"Lipschitz constant. {RANGE}")] = None,
    delta: Annotated[str | None, typer.Option("--delta", help="Feature gap.")] = None,
    eta: Annotated[
        str | None, typer.Option("--eta", help="Learning rate; auto takes the stable one of each point.")
    ] = None,
    K: Annotated[str | None, typer.Option("--K", help="Number of features [20].")] = None,
    N: Annotated[str | None, typer.Option("--N", help="Prompt length [inf].")] = None,
    epsilon: Annotated[str | None, typer.Option("--epsilon", help="Target loss [1e-3].")] = None,
    noise: Annotated[str | None, typer.Option("--noise", help="Standard deviation of the label noise [0].")] = None,
    imbalance: Annotated[
        str | None, typer.Option("--imbalance", help="Imbalance of the prompts, for the theorems.")
    ] = None,
    task: Annotated[TaskName | None, typer.Option("--task", help="Task family [exchangeable].")] = None,
    coordinates: Annotated[
        str | None, typer.Option("--coordinates", help="class, embedding or factored [class].")
    ] = None,
    method: Annotated[str | None, typer.Option("--method", help="As in simulate [auto].")] = None,
    max_steps: Annotated[int | None, typer.Option("--max-steps", help="Largest number of steps.")] = None,
    config: Annotated[Path | None, typer.Option("--config", help="TOML file of these options; flags win.")] = None,
    over: Annotated[
        str | None, typer.Option("--over", help="Swept parameter whose values follow one another [the first].")
    ] = None,
    table: Annotated[Path | None, typer.Option("--table", help="Write the table as Markdown (.md).")] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write the table as CSV.")] = None,
    latex: Annotated[
        Path | None, typer.Option("--latex", help="Write the table as LaTeX, booktabs (.tex).")
    ] = None,
    parquet: Annotated[Path | None, typer.Option("--parquet", help="Write the table as Parquet.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Write the figure (png, pdf or svg).")] = None,
    store: Annotated[
        Path | None, typer.Option("--store", help="Keep finished chunks in this folder (.zarr), to go on from.")
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="Start this many processes.")] = None,
    dask: Annotated[str | None, typer.Option("--dask", help="Address of a running Dask scheduler.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how much work it would be.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> int:
    """Simulate over a grid of parameters and make phase-transition tables; status 3 if points failed."""
    given = locals()
    settings: dict[str, Any] = dict.fromkeys(KEYS) | PARAMETERS | OTHERS
    if config is not None:
        settings |= _from_file(config)
    settings |= {key: given[key] for key in KEYS if given[key] is not None}
    for key in REQUIRED:
        if settings[key] is None:
            raise refuse(key, None, f"given, as --{key} or in the file of --config")
    axes = {key: _axis(key, settings[key]) for key in PARAMETERS if settings[key] is not None}
    return _run(axes, settings, dry_run, quiet, context.obj)


def _run(axes: dict[str, Any], settings: dict[str, Any], dry_run: bool, quiet: bool, command: str) -> int:
    from icl_theory.grids.workers import cluster, processes
    from icl_theory.sweep import check_picklable, estimate, plan, run

    outputs = Outputs(*(None if settings[name] is None else Path(settings[name]) for name in Outputs._fields))
    if settings["workers"] is not None:
        integer("workers", settings["workers"], minimum=1, maximum=10_000)
        if settings["dask"] is not None:
            raise refuse("workers", settings["workers"], "left out with --dask")
    family = FAMILIES.get(TaskName(choice("task", str(settings["task"]), list(TaskName))))
    made = plan(axes, task=family, **{key: settings[key] for key in ("coordinates", "method", "max_steps")})
    outputs.check(settings["over"], [axis.name for axis in made.grid.axes if axis.swept])
    if dry_run:
        for line in estimate(made, settings["workers"] or 1):
            print(line)
        return 0
    with contextlib.ExitStack() as stack:
        executor: Executor | None = None
        if settings["workers"] is not None:
            check_picklable(made.model)
            executor = stack.enter_context(processes(settings["workers"]))
        elif settings["dask"] is not None:
            executor = stack.enter_context(cluster(str(settings["dask"])))
        dataset = run(*made, executor=executor, store=settings["store"], progress=not quiet, command=command)
    done = int((dataset["status"].values != "pending").sum())
    if done:
        outputs.write(dataset, settings["over"])
    status = report_failures(dataset)
    if not dataset.attrs["interrupted"]:
        return status
    how = "the same command goes on from there" if settings["store"] else "with --store it could be gone on with"
    print(f"icl-theory: interrupted after {done} of {made.grid.size} points; {how}", file=sys.stderr)
    return 130


def _axis(name: str, value: Any) -> Any:
    """Return the values of a parameter, from a flag or from the file."""
    if isinstance(value, str):
        return parse_axis(name, value)
    if isinstance(value, list):
        return [parse_axis(name, each) if isinstance(each, str) else each for each in value]
    return value


def _from_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            found = {key.replace("-", "_"): value for key, value in tomllib.load(file).items()}
    except tomllib.TOMLDecodeError as error:
        raise refuse("config", str(path), f"a TOML file ({error})") from None
    for key in found:
        if key not in KEYS:
            raise refuse("config", key, "made of the keys " + ", ".join(KEYS))
    return found
