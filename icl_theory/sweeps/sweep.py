"""Sweeps: a family simulated over a grid of parameters, from a thousand points in a blink to a cluster's week."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import zlib
from collections.abc import Mapping, Sized
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icl_theory._calls import written_sweep
from icl_theory._validate import argument_error, dimensions, flag, instance, integer
from icl_theory._version import __version__
from icl_theory.engine.interrupts import load_whole
from icl_theory.engine.progress import Progress
from icl_theory.families import Family, default, find, sound
from icl_theory.families.rule_parameters import rules_of_points
from icl_theory.sweeps.evaluate import evaluate
from icl_theory.sweeps.exponents import exponent_along
from icl_theory.sweeps.grid import (
    Axis,
    Column,
    Filled,
    Grid,
    Values,
    assembled,
    axis_values,
    is_large,
    whole_numbers,
)
from icl_theory.sweeps.model import FamilyModel
from icl_theory.sweeps.store import (
    Store,
    check_installed,
    existing,
    lazy_values,
    opened,
)
from icl_theory.sweeps.stored_columns import ColumnMatch
from icl_theory.sweeps.workers import processes

if TYPE_CHECKING:
    import xarray

CLOSED_CHUNK = 2**16  # points of a closed form: a twentieth of a second
CHUNK = 8  # points that are simulated one by one
# of columns that are about training by certain rules
THEORY_ROLES = (
    "predicted",
    "boundary",
    "verdict",
)


class Plan(NamedTuple):
    """A sweep before it is run: its grid, model, and the plain arguments that its results depend on."""

    grid: Grid
    model: FamilyModel
    arguments: dict[str, Any]


def sweep(
    *family_and_values: Any,
    executor: Executor | None = None,
    workers: int | None = None,
    store: str | os.PathLike[str] | None = None,
    progress: bool = True,
    **parameters: Any,
) -> xarray.Dataset:
    r"""Simulate a family at every point of a grid of parameters.

    Parameters
    ----------
    *family_and_values
        The family, a class or its name; in-context regression unless given. Values
        after it are those of its first parameters (``L, delta, eta`` of regression).
    executor : concurrent.futures.Executor, optional
        Who computes the chunks of the grid: a pool of processes, or
        ``client.get_executor()`` of a Dask client. This process unless given.
    workers : int, optional
        Start this many processes for the sweep instead.
    store : path-like, optional
        Folder of Parquet files, which pandas, polars and DuckDB read, in which finished
        chunks are kept; the same call goes on where a run was ended.
    progress : bool
        Show in a terminal how far it is.
    **parameters
        Parameters of the family. A sequence of numbers or words becomes a dimension of
        the result, in the order of the family's parameters. ``eta="auto"`` takes the
        stable learning rate of each point, where the family has one.

    Returns
    -------
    xarray.Dataset
        One variable a quantity, with unit, symbol and description as attributes;
        besides what each point gives, the local exponents ``exponent_L`` = d ln T/d ln
        L and so on along every swept parameter that is positive, by centred differences
        in logarithms (one-sided at the ends; NaN where steps are missing or zero).
        Points that fail have the status "failed" and a message. After Ctrl-C the points
        not done have the status "pending" and ``attrs["interrupted"]`` is 1. Where the
        results would take 1 GB, or a quarter of the free memory, and there is a store,
        they stay in it: the variables are Dask arrays that read it a chunk at a time.

    Raises
    ------
    ValueError
        An argument out of range or unknown, an empty sequence, duplicates, or a store
        of another sweep.
    OSError
        The store cannot be written.

    References
    ----------
    docs/sweeps.md; docs/theory.md, "Where the transition lies", "A stable learning
    rate".

    Examples
    --------
    >>> import icl_theory as icl, numpy as np
    >>> found = icl.sweep(L=np.geomspace(0.03, 30.0, 25), delta=1.0, eta=4.0, K=[5, 20], epsilon=1e-4)
    >>> dict(found.steps.sizes), found.regime.values[[0, -1], 1].tolist()
    ({'L': 25, 'K': 2}, ['flat', 'sharp'])
    >>> int(found.steps.sel(K=20)[-1]) == icl.simulate(30.0, 1.0, 4.0, epsilon=1e-4).steps
    True
    >>> icl.sweep(icl.Recall, triggers=[4, 16], counts=1, progress=False).steps.values.tolist()
    [44, 87]
    """
    family = default()
    values = family_and_values
    if values and (
        isinstance(values[0], type)
        or (isinstance(values[0], str) and values[0] != "auto")
    ):
        family = find(values[0]) if isinstance(values[0], str) else sound(values[0])
        values = values[1:]
    names = list(family.parameters())
    if len(values) > len(names) or parameters.keys() & set(names[: len(values)]):
        raise argument_error(
            "sweep", values, f"values of {', '.join(names)}, each given once"
        )
    given = family.unfolded({**dict(zip(names, values, strict=False)), **parameters})
    made = plan(family, given)
    command = written_sweep(family, given, named=family is not default())
    return run_with(
        *made,
        executor=executor,
        workers=workers,
        store=store,
        progress=progress,
        command=command,
    )


def plan(family: type[Family], given: Mapping[str, Any]) -> Plan:
    """Check the parameters of a sweep and lay out its grid."""
    load_whole("numpy.ma")  # NumPy loads it for what comes next
    family.refuse_unknown(given)
    goals = [name for name in ("epsilon", "above") if given.get(name) is not None]
    if len(goals) == 2:
        raise argument_error(
            "above", given["above"], "left out where epsilon is given: both are targets"
        )
    given = (
        dict(given)
        if goals or family.goal is None
        else {**given, family.goal[0]: family.goal[1]}
    )
    axes = []
    common = {}
    labels = family.labels()
    # before the values are looked at, one by one
    integer("points", _count(family, given), minimum=0)
    for name, declared in family.parameters().items():
        if name not in given and declared.required:
            raise argument_error(
                name, None, f"given: the family {family.name} has no default for it"
            )
        value = given.get(name, declared.default)
        swept = dimensions(value) > 0 and not isinstance(value, str | bytes)
        if (
            not declared.axis
            or value is None
            or not (swept or declared.kind.numeric or isinstance(value, str))
        ):
            common[name] = declared.check(value)
            continue
        matrix = declared.kind.matrix and dimensions(value) > 1
        if declared.kind.numeric and (isinstance(value, str) or matrix):
            # a word for a number, "auto" say, is no value of an axis
            common[name] = declared.check(value)
            continue
        found, swept = axis_values(name, value, declared.check_all)
        if found.dtype.kind == "U" and not swept:
            common[name] = str(found[0])
            continue
        text, tex, unit, meaning = labels[name]
        values = whole_numbers(found) if declared.kind.whole else found
        axes.append(Axis(name, values, unit, meaning, swept, text, tex))
    grid = Grid.cut(tuple(axes), CHUNK)
    model = FamilyModel(family, common)
    _refuse_hopeless(grid, model)
    arguments = {"version": __version__, "family": family.name} | {
        name: _identity(value) for name, value in common.items() if value is not None
    }
    return Plan(Grid.cut(tuple(axes), _chunk(grid, model)), model, arguments)


def _count(family: type[Family], given: Mapping[str, Any]) -> int:
    """Return the number of points of a grid, as far as the lengths of its axes of numbers are known."""
    numeric = (
        given.get(name)
        for name, declared in family.parameters().items()
        if declared.kind.numeric
    )
    many = (
        each
        for each in numeric
        if isinstance(each, Sized) and not isinstance(each, str | bytes)
    )
    return math.prod(len(values) for values in many if dimensions(values) > 0)


def _refuse_hopeless(grid: Grid, model: FamilyModel) -> None:
    """Raise why there is no problem at the first point, where that is so at the last one too."""
    reasons = []
    for point in {0, grid.size - 1}:
        try:
            model.problem(grid.points(np.array([point])))
        except ValueError as error:
            reasons.append(str(error))
    if len(reasons) == len({0, grid.size - 1}) and len(set(reasons)) == 1:
        raise ValueError(reasons[0])


def _chunk(
    grid: Grid,
    model: FamilyModel,
    tried: int = 4,
    left: float = 0.1,
    numbers: int = 8192,
) -> int:
    """Points a chunk: what Ctrl-C may lose, and what is computed as a batch, takes a second or two.

    The family says how it would compute some points along each axis: a stopwatch would
    say something else when a sweep goes on. Where it batches all but a share ``left``
    of them, a chunk has up to ``numbers`` parameters, and more where no step is taken.
    """
    along = (
        np.unique(np.linspace(0, len(axis.values) - 1, tried).astype(int))
        for axis in grid.axes
    )
    origin = np.zeros(len(grid.axes), dtype=int)
    places = {
        tuple(np.where(np.arange(origin.size) == j, i, 0))
        for j, some in enumerate(along)
        for i in some
    }
    index = np.ravel_multi_index(np.transpose(sorted(places)), grid.shape)
    points = grid.points(index)
    try:
        found = model.batched(points, max_steps=0)
        answered = ~np.isnan(found["loss"])
        if answered.mean() < 1.0 - left:
            return CHUNK
        if (found["method"][answered] == "closed").all():
            return CLOSED_CHUNK
        size = max(
            np.size(model.problem(grid.points(index[[i]])).risk().initial)
            for i in (0, -1)
        )
    except Exception:  # each point says why when it is computed
        return CHUNK
    return max(CHUNK, min(numbers // 4, numbers // size))


def run_with(
    grid: Grid,
    model: FamilyModel,
    arguments: Mapping[str, Any],
    *,
    executor: Executor | None = None,
    workers: int | None = None,
    store: str | os.PathLike[str] | None = None,
    progress: bool = True,
    command: str | None = None,
) -> xarray.Dataset:
    """Evaluate a planned sweep, on an executor or on processes started for it, with storage and progress.

    ``command`` is the call or command line that makes the sweep, kept for the record
    where it is known.
    """
    if executor is not None:
        instance("executor", executor, Executor, "a concurrent.futures.Executor")
    if executor is not None and workers is not None:
        raise argument_error("workers", workers, "left out where an executor is given")
    with contextlib.ExitStack() as stack:
        if workers is not None:
            count = integer("workers", workers, minimum=1, maximum=10_000)
            check_picklable(model)
            executor = stack.enter_context(processes(count))
        shown = stack.enter_context(Progress(quiet=not flag("progress", progress)))
        kept = None
        match = ColumnMatch(model.columns, model.columns)
        held = store is None or not is_large(model.columns, grid)
        if not held:
            check_installed("dask", extra="distributed")
        if store is not None:
            kept = stack.enter_context(
                opened(store, grid, model.columns, arguments, command)
            )
            match = ColumnMatch(kept.columns, model.columns)
        found = evaluate(
            grid,
            model,
            executor=executor,
            storage=kept,
            progress=shown.update,
            hold=held,
        )
        values = (
            found.values if held or kept is None else lazy_values(kept, match.missing)
        )
    dataset = labelled(
        model.family, grid, match.every, values, arguments, found.interrupted
    )
    if kept is not None:
        _add_notes(dataset, kept, match)
    return dataset if command is None else dataset.assign_attrs(command=command)


@Progress("opening the store")
def load_sweep(path: str | os.PathLike[str]) -> xarray.Dataset:
    """Read the results in a store, finished or not, without running anything.

    Returns
    -------
    xarray.Dataset
        As `sweep` returns it, and likewise left on the disk where it is large; points
        not done have the status "pending". ``attrs["command"]`` has the command lines
        or calls that it was filled by, one a line. Columns that the store has and the
        family has not are kept, with their stored description; columns that the store
        lacks have no values: NaN, -1 or the empty text. ``attrs["notes"]`` names both.

    Raises
    ------
    ValueError
        It is no store of a sweep, a file in it is damaged or has another format, or
        there is not enough memory for its points.
    """
    kept = existing(path)
    grid = kept.manifest.grid
    arguments = kept.manifest.arguments
    family = find(arguments.get("family", ""))
    _check_sweep_of_a_family(kept)
    match = ColumnMatch(kept.columns, family.every_column())
    match.check_kinds(kept.path)
    if is_large(match.every, grid):
        check_installed("dask", extra="distributed")
        values = lazy_values(kept, match.missing)
    else:
        filled = Filled(match.every, grid)
        kept.fill(filled)
        values = filled.values()
    dataset = labelled(
        family, grid, match.every, values, arguments, not kept.done.all()
    )
    _add_notes(dataset, kept, match)
    return (
        dataset.assign_attrs(command="\n".join(kept.commands))
        if kept.commands
        else dataset
    )


def _check_sweep_of_a_family(kept: Store) -> None:
    names = {column.name for column in kept.columns}
    for name in ("steps", "loss"):
        if name not in names:
            raise argument_error(
                "store",
                str(kept.path),
                f"a sweep of a family, which has a column {name}",
            )
    if "version" not in kept.manifest.arguments:
        raise argument_error(
            "store",
            str(kept.path),
            "a sweep whose arguments name the version of the package that made it",
        )


def _add_notes(dataset: xarray.Dataset, kept: Store, match: ColumnMatch) -> None:
    """Say which files of the store are ignored, and which of its columns are not those of today."""
    notes = match.notes(kept.path)
    if kept.foreign:
        notes.insert(0, kept.note())
    if notes:
        dataset.attrs["notes"] = "\n".join(notes)


def labelled(
    family: type[Family],
    grid: Grid,
    columns: tuple[Column, ...],
    values: Values,
    arguments: Mapping[str, Any],
    interrupted: bool,
) -> xarray.Dataset:
    """Return the dataset of some results, with local exponents where they have steps."""
    attributes = {
        "version": arguments["version"],
        "family": family.name,
        "title": family.title,
        "arguments": json.dumps(dict(arguments), ensure_ascii=False, sort_keys=True),
        "interrupted": int(interrupted),
    }
    dataset = assembled(grid, columns, values, attributes)
    rules = rules_of_points({axis.name: axis.values for axis in grid.axes}, arguments)
    method = str(arguments.get("method", ""))
    limits = {
        name: pair
        for name, pair in family.limits(arguments).items()
        if name in dataset.coords
    }
    if all(family.theory.covers(rule, method) for rule in rules):
        for name, pair in limits.items():
            dataset[name].attrs["limits"] = list(pair)
    elif limits or any(column.role in THEORY_ROLES for column in family.every_column()):
        reason = family.theory.outside(rules, method)
        dataset.attrs |= {"not_applicable": reason} if reason else {}
    for axis in grid.axes:
        numbers = axis.swept and len(axis.values) > 1 and axis.values.dtype.kind in "if"
        if numbers and axis.values.min() > 0 and np.isfinite(axis.values).all():
            exponent = exponent_along(dataset["steps"], axis.values, axis.name)
            meta = {
                "description": f"local exponent d ln steps / d ln {axis.name}, centred differences",
                "symbol": "exponent",
                "tex": rf"d\ln T/d\ln {axis.tex or axis.name}",
                "role": "exponent",
                "of": axis.name,
            }
            dataset[f"exponent_{axis.name}"] = (dataset["steps"].dims, exponent, meta)
    return dataset


def check_picklable(model: FamilyModel) -> None:
    """Refuse a model that cannot be sent to other processes, by its first parameter that cannot."""
    allowed = dict.fromkeys(
        model.common, "an object or a named function that can be sent to workers"
    )
    allowed["family"] = "a class that can be sent to workers: defined in a module"
    for name, wanted in allowed.items():
        value = model.common.get(name, model)
        try:
            pickle.dumps(value)
        except Exception:
            raise argument_error(name, value, wanted) from None


def _identity(value: Any) -> Any:
    """Return what tells values apart, as plain JSON: themselves, or a text."""
    if isinstance(value, bool | int | str) or (
        isinstance(value, float) and math.isfinite(value)
    ):
        return value
    if isinstance(value, tuple | list):
        return [_identity(each) for each in value]
    if isinstance(value, type) or callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', repr(value))}"
    return f"{value!r} #{zlib.crc32(pickle.dumps(value, protocol=4)):08x}"
