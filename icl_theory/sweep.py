"""Sweeps: simulations over a grid of parameters, from a thousand points in a blink to a cluster's week."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from icl_theory import store as storage
from icl_theory._calls import written_call
from icl_theory._validate import (
    LARGEST,
    MOST_FEATURES,
    choice,
    fraction,
    integer,
    number,
    prompt_length,
    refuse,
)
from icl_theory.descent import MAX_STEPS
from icl_theory.exponents import local_exponent
from icl_theory.grid import Axis, Column, Grid, Model, assembled, axis_values, blank, evaluate
from icl_theory.progress import PointProgress, duration
from icl_theory.recall.points import RecallPoints
from icl_theory.recall.simulate import LABELS as RECALL_LABELS
from icl_theory.regression.orderwise import fitted_constants
from icl_theory.regression.points import COLUMNS, THEOREMS, RegressionModel, exponent_limits
from icl_theory.regression.simulate import LABELS
from icl_theory.regression.tasks import Task
from icl_theory.risk import COORDINATES
from icl_theory.trajectory import Label
from icl_theory.workers import processes

if TYPE_CHECKING:
    import xarray

CLOSED_CHUNK = 16384  # points of a closed form: a tenth of a second
CHUNK = 8  # points that are simulated one by one
SECONDS_PER_POINT = 6e-6  # of a closed form
SEED = 0  # of the random start in factored coordinates; nothing else is drawn
AXES: dict[str, Callable[[Any], float]] = {
    "L": lambda value: number("L", value),
    "delta": lambda value: number("delta", value),
    "eta": lambda value: number("eta", value),
    "K": lambda value: integer("K", value, minimum=2, maximum=MOST_FEATURES),
    "N": prompt_length,
    "epsilon": lambda value: number("epsilon", value, minimum=1e-300),
    "noise": lambda value: number("noise", value, zero=True, maximum=LARGEST),
    "imbalance": lambda value: fraction("imbalance", value),
}
# title, columns and parameters of each model
MODELS: dict[str, tuple[str, tuple[Column, ...], dict[str, Label]]] = {
    "regression": ("in-context regression", COLUMNS, LABELS),
    "recall": ("in-context recall", RecallPoints.columns, RECALL_LABELS),
}
LOGARITHMIC = ("L", "delta", "eta", "K", "epsilon", "Q", "V")  # parameters with a local exponent


class Plan(NamedTuple):
    """A sweep before it is run: its grid, model, and the plain arguments that its results depend on."""

    grid: Grid
    model: RegressionModel
    arguments: dict[str, Any]


def sweep(
    L: ArrayLike,
    delta: ArrayLike,
    eta: ArrayLike,
    *,
    K: ArrayLike = 20,
    N: ArrayLike = math.inf,
    epsilon: ArrayLike = 1e-3,
    noise: ArrayLike = 0.0,
    imbalance: ArrayLike | None = None,
    task: Task | Callable[[float], Task] | None = None,
    coordinates: str = "class",
    method: str = "auto",
    max_steps: int = MAX_STEPS,
    executor: Executor | None = None,
    workers: int | None = None,
    store: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> xarray.Dataset:
    r"""Simulate at every point of a grid of parameters.

    Parameters
    ----------
    L, delta, eta, K, N, epsilon, noise, imbalance : float or sequence of float
        As in `simulate`. Sequences become dimensions of the result, in this order. ``eta="auto"`` takes the
        stable learning rate of each point, :math:`\eta = K/(\tfrac32\max\Gamma + \sigma^2[N<\infty])`.
    task, coordinates, method, max_steps
        As in `simulate`, for all points.
    executor : concurrent.futures.Executor, optional
        Who computes the chunks of the grid: a pool of processes, or ``client.get_executor()`` of a Dask client.
        This process unless given.
    workers : int, optional
        Start this many processes for the sweep instead.
    store : path-like, optional
        Folder ``*.zarr`` in which finished chunks are kept; the same call goes on where a run was ended.
    progress : bool
        Show how far it is on standard error: a bar in a terminal, plain lines elsewhere.

    Returns
    -------
    xarray.Dataset
        One variable a quantity, with unit and description as attributes; besides what each point gives, the
        local exponents ``exponent_L`` = d ln T/d ln L and so on along every swept parameter, by centred
        differences in logarithms (one-sided at the ends; NaN where steps are missing or zero). Points that fail
        have the status "failed" and a message. After Ctrl-C the points not done have the status "pending" and
        ``attrs["interrupted"]`` is 1.

    Raises
    ------
    ValueError
        An argument out of range, an empty sequence, duplicates, or a store of another sweep.
    OSError
        The store cannot be written.

    References
    ----------
    docs/sweeps.md; docs/theory.md, "Where the transition lies", "A stable learning rate".

    Examples
    --------
    >>> import icl_theory as icl, numpy as np
    >>> found = icl.sweep(L=np.geomspace(0.03, 30.0, 25), delta=1.0, eta=4.0, K=[5, 20], epsilon=1e-4)
    >>> dict(found.sizes), found.regime.values[[0, -1], 1].tolist()
    ({'L': 25, 'K': 2}, ['flat', 'sharp'])
    >>> int(found.steps.sel(K=20)[-1]) == icl.simulate(30.0, 1.0, 4.0, epsilon=1e-4).steps
    True
    """
    command = written_call("icl.sweep", sweep, locals())
    axes = {"L": L, "delta": delta, "eta": eta, "K": K, "N": N, "epsilon": epsilon, "noise": noise}
    if imbalance is not None:
        axes["imbalance"] = imbalance
    made = plan(axes, task=task, coordinates=coordinates, method=method, max_steps=max_steps)
    return run_with(*made, executor=executor, workers=workers, store=store, progress=progress, command=command)


def plan(
    axes: Mapping[str, ArrayLike],
    *,
    task: Task | Callable[[float], Task] | None = None,
    coordinates: str = "class",
    method: str = "auto",
    max_steps: int = MAX_STEPS,
) -> Plan:
    """Check the arguments of a sweep and lay out its grid.

    Examples
    --------
    >>> from icl_theory.sweep import plan
    >>> plan({"L": [1, 2], "delta": 1, "eta": 4, "K": 20, "N": 50, "epsilon": 1e-2, "noise": 0}).grid.size
    2
    """
    from icl_theory.regression.simulate import METHODS

    choice("coordinates", coordinates, COORDINATES)
    choice("method", method, METHODS)
    max_steps = integer("max_steps", max_steps, minimum=1)
    if not (task is None or isinstance(task, Task) or callable(task)):
        raise refuse("task", task, "a Task or a function that makes one from L (see icl_theory.tasks)")
    auto_eta = isinstance(axes["eta"], str) and axes["eta"] == "auto"
    if auto_eta and coordinates == "factored":
        raise refuse("eta", "auto", "a number in factored coordinates, in which the curvature has no bound")
    made = []
    limits = exponent_limits(auto_eta, coordinates)
    for name, check in AXES.items():
        if name not in axes or (name == "eta" and auto_eta):
            continue
        values, swept = axis_values(name, axes[name], check)
        made.append(described(name, values, swept, LABELS, limits))
    constants = fitted_constants()
    model = RegressionModel(
        task,
        coordinates,
        method,
        max_steps,
        auto_eta,
        tuple(constants[name].highest for name in THEOREMS),  # type: ignore[arg-type]
    )
    closed = bool(model.is_closed(next(axis.values for axis in made if axis.name == "N")).all())
    from icl_theory import __version__

    arguments = {
        "version": __version__, "model": "regression", "seed": SEED, "task": _identity(task),
        "coordinates": coordinates, "method": method, "max_steps": max_steps, "eta": "auto" if auto_eta else "axis",
    }  # fmt: skip
    return Plan(Grid(tuple(made), CLOSED_CHUNK if closed else CHUNK), model, arguments)


def run_with(
    grid: Grid,
    model: Model,
    arguments: Mapping[str, Any],
    *,
    executor: Executor | None,
    workers: int | None,
    store: str | os.PathLike[str] | None,
    progress: bool,
    command: str | None = None,
) -> xarray.Dataset:
    """Do what `run` does, on an executor or on processes started for it."""
    if executor is not None and workers is not None:
        raise refuse("workers", workers, "left out where an executor is given")
    with contextlib.ExitStack() as stack:
        if workers is not None:
            count = integer("workers", workers, minimum=1, maximum=10_000)
            check_picklable(model)
            executor = stack.enter_context(processes(count))
        return run(grid, model, arguments, executor=executor, store=store, progress=progress, command=command)


def run(
    grid: Grid,
    model: Model,
    arguments: Mapping[str, Any],
    *,
    executor: Executor | None = None,
    store: str | os.PathLike[str] | None = None,
    progress: bool = True,
    command: str | None = None,
) -> xarray.Dataset:
    """Evaluate any model on any grid, with storage and progress, as `sweep` does for in-context regression.

    ``command`` is the call or command line that makes the sweep, kept for the record where it is known.
    """
    with contextlib.ExitStack() as stack:
        kept = None
        if store is not None:
            kept = stack.enter_context(storage.opened(store, grid, model.columns, arguments, command))
        shown = stack.enter_context(PointProgress(progress))
        found = evaluate(grid, model, executor=executor, storage=kept, progress=shown.update)
    dataset = labelled(grid, model.columns, found.values, arguments, found.interrupted)
    return dataset if command is None else dataset.assign_attrs(command=command)


def load_sweep(path: str | os.PathLike[str]) -> xarray.Dataset:
    """Read what a store holds, finished or not, without running anything.

    Parameters
    ----------
    path : path-like
        The folder.

    Returns
    -------
    xarray.Dataset
        As `sweep` returns it; points not done have the status "pending". ``attrs["command"]`` has the command
        lines or calls that it was filled by, one a line.

    Raises
    ------
    ValueError
        It is no store of a sweep.
    """
    manifest = storage.read_manifest(path)
    given = manifest["arguments"]
    _, columns, known = MODELS.get(given.get("model", ""), ("", (), {}))
    if not columns or [column.name for column in columns] != manifest["columns"]:
        raise refuse("store", os.fspath(path), "one written by this version of the package")
    limits = exponent_limits(given["eta"] == "auto", given["coordinates"]) if given["model"] == "regression" else {}
    axes = [
        described(name, np.array([float(x) for x in axis["values"]]), axis["swept"], known, limits)
        for name, axis in manifest["axes"].items()
    ]
    grid = Grid(tuple(axes), manifest["chunk"])
    kept = storage.reader(path, grid, columns)
    values = blank(columns, grid.size)
    values["status"][:] = "pending"
    for chunk in np.flatnonzero(kept.done):
        for name, part in kept.read(int(chunk)).items():
            values[name][grid.span(int(chunk))] = part
    dataset = labelled(grid, columns, values, given, not kept.done.all())
    commands = storage.read_commands(path)
    return dataset.assign_attrs(command="\n".join(commands)) if commands else dataset


def described(
    name: str, values: Any, swept: bool, labels: Mapping[str, Label], limits: Mapping[str, tuple[float, float]]
) -> Axis:
    """Return an axis with what is known of its parameter."""
    label = labels.get(name, Label(name, "", "", name))
    return Axis(name, values, label.unit, label.meaning, swept, label.text, label.tex, limits.get(name))


def labelled(
    grid: Grid, columns: tuple[Column, ...], values: dict[str, Any], arguments: Mapping[str, Any], interrupted: bool
) -> xarray.Dataset:
    """Return the dataset of some results, with local exponents where they have steps."""
    attributes = {
        "family": arguments.get("model", ""),
        "title": MODELS.get(arguments.get("model", ""), ("",))[0],
        "version": arguments["version"],
        "seed": arguments["seed"],
        "arguments": json.dumps(dict(arguments), ensure_ascii=False),
        "interrupted": int(interrupted),
    }
    dataset = assembled(grid, columns, values, attributes)
    for name in ("K", "N", "Q", "V"):
        if name in dataset.coords and np.isfinite(dataset[name]).all():
            dataset = dataset.assign_coords({name: dataset[name].astype(np.int64)})
    for axis in grid.axes:
        if axis.swept and axis.name in LOGARITHMIC and len(axis.values) > 1 and "steps" in dataset:
            exponent = local_exponent(dataset["steps"].values, axis.values, dataset["steps"].dims.index(axis.name))
            meta = {
                "description": f"local exponent d ln steps / d ln {axis.name}, centred differences",
                "symbol": "exponent",
                "tex": rf"d\ln T/d\ln {axis.tex or axis.name}",
                "role": "exponent",
                "of": axis.name,
            }
            dataset[f"exponent_{axis.name}"] = (dataset["steps"].dims, exponent, meta)
    return dataset


def estimate(made: Plan, workers: int = 1) -> list[str]:
    """Say how much work a sweep is: points, methods and time, from a few of its points.

    Examples
    --------
    >>> from icl_theory.sweep import estimate, plan
    >>> made = plan({"L": [1, 2], "delta": 1, "eta": 4, "K": 20, "N": float("inf"), "epsilon": 1e-2, "noise": 0})
    >>> estimate(made)[:2]
    ['2 points in 1 chunk', '2 in closed form, 0 simulated one by one (method auto)']
    """
    grid, model = made.grid, made.model
    N = next(axis for axis in grid.axes if axis.name == "N")
    others = grid.size // len(N.values)
    closed = int(model.is_closed(N.values).sum()) * others
    seconds = 0.0
    sample = np.random.default_rng(0).integers(grid.size, size=8)
    each = [
        {name: float(value[0]) for name, value in grid.points(slice(int(i), int(i) + 1)).items()} for i in sample
    ]
    slow = [point for point in each if not model.is_closed(np.array([point["N"]]))[0]]
    if slow:
        seconds += (grid.size - closed) * float(np.mean([model.seconds(point) for point in slow]))
    seconds += closed * SECONDS_PER_POINT
    plural = "" if grid.chunks == 1 else "s"
    lines = [
        f"{grid.size:,} points in {grid.chunks:,} chunk{plural}",
        f"{closed:,} in closed form, {grid.size - closed:,} simulated one by one (method {model.method})",
    ]
    by = f" on {workers} workers" if workers > 1 else ""
    limit = "at most " if closed < grid.size else ""
    return [*lines, f"about {limit}{duration(seconds / workers)}{by}"]


def check_picklable(model: object) -> None:
    """Refuse a model that cannot be sent to other processes."""
    try:
        pickle.dumps(model)
    except Exception:
        raise refuse(
            "task", getattr(model, "task", model), "a Task or a named function, to be sent to workers"
        ) from None


def _identity(task: object) -> str:
    """Return a text that tells tasks apart."""
    if task is None:
        return "exchangeable"
    if not isinstance(task, Task):
        return f"{getattr(task, '__module__', '')}.{getattr(task, '__qualname__', repr(task))}"
    return f"{task!r} #{zlib.crc32(pickle.dumps(task, protocol=4)):08x}"
