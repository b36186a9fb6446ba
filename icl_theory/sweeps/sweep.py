"""Sweeps: a family simulated over a grid of parameters.

`sweep` plans the grid (`plan`), evaluates it, with or without workers and a store
(`run_with`), and labels the results (`labelled`). `load_sweep` reads the results in a
store.
"""

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
from numpy.typing import NDArray

from icl_theory._calls import written_sweep
from icl_theory._validate import argument_error, dimensions, flag, instance, integer
from icl_theory._version import __version__
from icl_theory.engine.interrupts import load_whole
from icl_theory.engine.progress import Progress
from icl_theory.families import Family
from icl_theory.families.parameters import HALF, LossForm, Parameter, unfolded
from icl_theory.families.registry import default, find, sound
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

# The number of points in a chunk that is computed in a batch by a closed form. Such a
# chunk takes about a twentieth of a second.
CLOSED_CHUNK = 2**16
# The number of points in a chunk if they are simulated one by one. With a larger
# number, Ctrl-C would lose more work and fewer workers would be busy; with a smaller
# one, a store would have more files.
CHUNK = 8
# The family is asked about this many points along each axis to learn how it computes
# the points of a sweep. With more points, planning would see more of the grid and take
# longer.
TRIED = 4
# If more than this share of the points that the family is asked about cannot be
# computed in a batch, chunks have CHUNK points. The share is a compromise. In a large
# chunk, the points that are not computed in the batch take long. In a small chunk, the
# batch loses its speed.
MOST_UNBATCHED = 0.1
# A chunk that is computed in a batch without a closed form trains up to this many
# numbers, for all its points together. With a larger limit, batches would be more
# efficient, but a chunk would take longer than a second or two, and Ctrl-C loses the
# chunk that is being computed.
MOST_NUMBERS = 8192
# Such a chunk has at most this many points, as if every point trained at least four
# numbers.
LARGEST_BATCH = MOST_NUMBERS // 4
# Roles of columns whose values are right only for training by certain rules.
THEORY_ROLES = ("predicted", "boundary", "verdict")


class Plan(NamedTuple):
    """A sweep before it is run.

    Parameters
    ----------
    grid : Grid
        The points of the sweep.
    model : FamilyModel
        The family that is evaluated at the points.
    arguments : dict
        The arguments on which the results depend, as plain JSON.
    """

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
        The family, a class or its name; by default in-context regression. The values
        after it belong to its first parameters (``L, delta, eta`` of regression).
    executor : concurrent.futures.Executor, optional
        The executor that computes the chunks of the grid: a pool of processes, or
        ``client.get_executor()`` of a Dask client. By default this process computes
        them.
    workers : int, optional
        Number of processes to start for the sweep, instead of an executor.
    store : path-like, optional
        Folder in which finished chunks are kept, as Parquet files, which pandas, polars
        and DuckDB read. If a run was ended, the same call continues it.
    progress : bool
        Show in a terminal how many points are finished.
    **parameters
        Parameters of the family. A sequence of numbers or words becomes a dimension of
        the result, in the order of the family's parameters. ``eta="auto"`` takes the
        stable learning rate of each point, if the family has one.

    Returns
    -------
    xarray.Dataset
        A variable for each column of the family, with its unit, symbol and description
        as attributes. In addition, there are the local exponents of the number T of
        steps: ``exponent_L`` = d ln T/d ln L, and so on for every swept parameter whose
        values, two or more, are all positive and finite. They are centred differences
        of logarithms, one-sided at the ends, and NaN if a number of steps is missing or
        zero. Points that fail have the status "failed" and a message. After Ctrl-C the
        points that were not computed have the status "pending", and
        ``attrs["interrupted"]`` is 1. If there is a store, results that would take more
        than 1 GiB or a quarter of the free memory stay in the store. Their variables
        are Dask arrays, which read the store a chunk at a time.

    Raises
    ------
    ValueError
        An argument is unknown or out of range, a sequence is empty or has duplicates,
        or the store holds another sweep.
    OSError
        The store cannot be written.
    ChildProcessError
        A worker died, and no other worker took over.

    References
    ----------
    docs/sweeps.md; docs/theory.md, "Where the transition lies", "A stable learning
    rate".

    Examples
    --------
    >>> import icl_theory as icl, numpy as np
    >>> L = np.geomspace(0.03, 30.0, 25)
    >>> dataset = icl.sweep(L=L, delta=1.0, eta=4.0, K=[5, 20], epsilon=1e-4)
    >>> dict(dataset.steps.sizes), dataset.regime.values[[0, -1], 1].tolist()
    ({'L': 25, 'K': 2}, ['flat', 'sharp'])
    >>> run = icl.simulate(30.0, 1.0, 4.0, epsilon=1e-4)
    >>> int(dataset.steps.sel(K=20)[-1]) == run.steps
    True
    >>> dataset = icl.sweep(icl.Recall, triggers=[4, 16], counts=1, progress=False)
    >>> dataset.steps.values.tolist()
    [44, 87]
    """
    family, values = _family_and_values(family_and_values)
    names = list(family.parameters())
    are_too_many = len(values) > len(names)
    given_twice = parameters.keys() & set(names[: len(values)])
    if are_too_many or given_twice:
        raise argument_error(
            "sweep", values, f"values of {', '.join(names)}, each given once"
        )
    # The values belong to the first parameters only, so there may be fewer of them.
    by_name = {**dict(zip(names, values, strict=False)), **parameters}
    # An object that determines parameters is replaced by their values.
    given = unfolded(family.parameters(), by_name)
    planned = plan(family, given)
    command = written_sweep(family, given, named=family is not default())
    return run_with(
        *planned,
        executor=executor,
        workers=workers,
        store=store,
        progress=progress,
        command=command,
    )


def _family_and_values(
    arguments: tuple[Any, ...],
) -> tuple[type[Family], tuple[Any, ...]]:
    """Return the family and the values of its first parameters.

    ``arguments`` are the positional arguments of `sweep`: a family, which is a class or
    a name, and then the values. If the first one is no family, all of them are values
    of the default family.
    """
    if not arguments:
        return default(), ()
    first, *rest = arguments
    if isinstance(first, type):
        # `sound` refuses a class that is no family.
        return sound(first), tuple(rest)
    # "auto" is a learning rate and not the name of a family.
    if isinstance(first, str) and first != "auto":
        return find(first), tuple(rest)
    return default(), arguments


def plan(family: type[Family], given: Mapping[str, Any]) -> Plan:
    """Check the parameters of a sweep and lay out its grid."""
    # The code below would load this module. Load it now, with Ctrl-C put off, so that
    # Ctrl-C cannot leave it half loaded.
    load_whole("numpy.ma")
    family.refuse_unknown(given)
    parameters = _with_goal(family, given)
    # Refuse too many points (2^63 or more) before the values are checked one by one.
    integer("points", _count(family, parameters), minimum=0)
    axes = []
    common = {}
    for name, declared in family.parameters().items():
        if name not in parameters and declared.required:
            raise argument_error(
                name, None, f"given: the family {family.name} has no default for it"
            )
        value = parameters.get(name, declared.default)
        if not _may_be_axis(declared, value):
            common[name] = declared.check(value)
            continue
        axis = _axis(family, declared, value)
        # A single number is an axis of length 1, but a single word is not an axis.
        is_word = axis.values.dtype.kind == "U"
        if is_word and not axis.swept:
            common[name] = str(axis.values[0])
        else:
            axes.append(axis)
    # The size of the chunks depends on the model. The first grid only serves to try
    # some points and to find this size.
    grid = Grid.cut(tuple(axes), CHUNK)
    model = FamilyModel(family, common)
    _refuse_hopeless(grid, model)
    final_grid = Grid.cut(tuple(axes), _chunk_size(grid, model))
    return Plan(final_grid, model, _arguments(family, common))


def _axis(family: type[Family], declared: Parameter, value: Any) -> Axis:
    """Return the axis of a parameter that has one value or a sequence of values."""
    values, swept = axis_values(declared.name, value, declared.check_all)
    if declared.kind.whole:
        values = whole_numbers(values)
    symbol, tex, unit, meaning = family.labels()[declared.name]
    return Axis(
        declared.name,
        values,
        unit=unit,
        description=meaning,
        swept=swept,
        symbol=symbol,
        tex=tex,
    )


def _arguments(family: type[Family], common: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a plan: version of the package, family and parameters.

    The parameters are those in ``common``, which all points share. Two kinds are left
    out: parameters with the value None, which are not set, and the loss "half", which
    is the default.
    """
    arguments: dict[str, Any] = {"version": __version__, "family": family.name}
    declarations = family.parameters()
    for name, value in common.items():
        is_default_loss = (
            isinstance(declarations[name].kind, LossForm) and value == HALF
        )
        if value is not None and not is_default_loss:
            arguments[name] = _identity(value)
    return arguments


def _with_goal(family: type[Family], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a sweep, with a target for its runs.

    The target is ``epsilon`` or ``above``, and giving both is an error. If neither is
    given, the target is the goal of the family, if the family has one.
    """
    targets = [name for name in ("epsilon", "above") if given.get(name) is not None]
    if len(targets) == 2:
        raise argument_error(
            "above", given["above"], "left out if epsilon is given: both are targets"
        )
    parameters = dict(given)
    if not targets and family.goal is not None:
        target, target_value = family.goal
        parameters[target] = target_value
    return parameters


def _may_be_axis(declared: Parameter, value: Any) -> bool:
    """Whether a value may be an axis of the grid; if not, all points share it.

    For a parameter whose values are words, the result is also True for a single word:
    `_axis` checks it as a list of one word, and `plan` then lets all points share it.
    """
    if not declared.axis or value is None or declared.kind.is_array(value):
        return False
    is_word = isinstance(value, str)
    if declared.kind.numeric:
        # A word that stands for a number, such as "auto", cannot be on an axis.
        return not is_word
    # Bytes have one dimension, but are a single value, which is refused later.
    is_sequence = dimensions(value) > 0 and not isinstance(value, bytes)
    return is_word or is_sequence


def _count(family: type[Family], given: Mapping[str, Any]) -> int:
    """Return the product of the lengths of the numeric axes.

    This is the number of points unless there are axes of words, too. ``given`` has the
    parameters of the sweep by name.
    """
    count = 1
    for name, declared in family.parameters().items():
        values = given.get(name)
        if not declared.kind.numeric or isinstance(values, str | bytes):
            continue
        # An array can be a single value, such as a matrix.
        if declared.kind.is_array(values):
            continue
        if isinstance(values, Sized) and dimensions(values) > 0:
            count *= len(values)
    return count


def _refuse_hopeless(grid: Grid, model: FamilyModel) -> None:
    """Refuse a sweep whose first and last point fail with the same error.

    Most likely all points fail in this case. In any other case, an error becomes the
    message of the point that causes it.
    """
    reasons = []
    # In a grid of one point, the first point is also the last.
    ends = {0, grid.size - 1}
    for end in ends:
        try:
            # Creating the problem of the point checks its parameters.
            model.problem(grid.points(np.array([end])))
        except ValueError as error:
            reasons.append(str(error))
    if len(reasons) == len(ends) and len(set(reasons)) == 1:
        raise ValueError(reasons[0])


def _chunk_size(grid: Grid, model: FamilyModel) -> int:
    """Return the number of points in a chunk.

    Larger chunks make more efficient batches, but Ctrl-C loses the chunk that is being
    computed, so a batch should take no longer than a second or two. The family says how
    it would compute TRIED points along each axis. There are three cases:

    * More than a share MOST_UNBATCHED of these points cannot be computed in a batch: a
      chunk has CHUNK points.
    * All points that can be computed in a batch have a closed form: a chunk has
      CLOSED_CHUNK points.
    * Otherwise the points of a chunk train up to MOST_NUMBERS numbers together, and a
      chunk has at least CHUNK and at most LARGEST_BATCH points.

    The time is not measured, because a chunk must have the same size when an ended
    sweep continues.
    """
    index = _points_along_axes(grid, TRIED)
    try:
        # With no steps to take, the family only decides which points it can compute in
        # a batch. It leaves the loss of all other points NaN.
        values = model.batched(grid.points(index), max_steps=0)
        is_batched = ~np.isnan(values["loss"])
        if is_batched.mean() < 1.0 - MOST_UNBATCHED:
            return CHUNK
        if (values["method"][is_batched] == "closed").all():
            return CLOSED_CHUNK
        # How many numbers a point trains may depend on the parameters of the sweep.
        first = model.problem(grid.points(index[:1]))
        last = model.problem(grid.points(index[-1:]))
        trained_numbers = max(
            np.size(first.risk().initial), np.size(last.risk().initial)
        )
    except Exception:
        # The error will come again as the message of each point that causes it.
        return CHUNK
    return max(CHUNK, min(LARGEST_BATCH, MOST_NUMBERS // trained_numbers))


def _points_along_axes(grid: Grid, count: int) -> NDArray[np.int64]:
    """Return the flat indices of ``count`` evenly spaced points along each axis.

    A point along one axis has the first value on every other axis.
    """
    # A set, because the first point is the same on all axes, and a short axis has fewer
    # than ``count`` points.
    multi_indices = set()
    for dimension, axis in enumerate(grid.axes):
        indices_on_axis = np.linspace(0, len(axis.values) - 1, count).astype(int)
        for index_on_axis in indices_on_axis.tolist():
            multi_index = [0] * len(grid.axes)
            multi_index[dimension] = index_on_axis
            multi_indices.add(tuple(multi_index))
    # NumPy wants the indices along each axis together, so transpose the array that has
    # a row for each point.
    return np.ravel_multi_index(np.transpose(sorted(multi_indices)), grid.shape)


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
    """Evaluate a planned sweep and return its dataset.

    The first three arguments are the fields of a `Plan`, and the others are as in
    `sweep`. ``command`` is the call or command line that makes the sweep, if it is
    known; the store and the dataset keep it.
    """
    if executor is not None:
        instance("executor", executor, Executor, "a concurrent.futures.Executor")
    if executor is not None and workers is not None:
        raise argument_error("workers", workers, "left out if an executor is given")
    with contextlib.ExitStack() as stack:
        if workers is not None:
            # A larger number is a mistake: no machine has so many processors.
            worker_count = integer("workers", workers, minimum=1, maximum=10_000)
            check_picklable(model)
            executor = stack.enter_context(processes(worker_count))
        display = stack.enter_context(Progress(quiet=not flag("progress", progress)))
        storage = None
        # Without a store, the dataset has exactly the columns of the model.
        match = ColumnMatch(stored=model.columns, computed=model.columns)
        # Large results stay in the store, if there is one.
        in_memory = store is None or not is_large(model.columns, grid)
        if not in_memory:
            check_installed("dask", extra="distributed")
        if store is not None:
            storage = stack.enter_context(
                opened(store, grid, model.columns, arguments, command)
            )
            match = ColumnMatch(stored=storage.columns, computed=model.columns)
        evaluated = evaluate(
            grid,
            model,
            executor=executor,
            storage=storage,
            progress=display.update,
            hold=in_memory,
        )
        values = evaluated.values
        if storage is not None and not in_memory:
            values = lazy_values(storage, match.missing)
    dataset = labelled(
        model.family, grid, match.every, values, arguments, evaluated.interrupted
    )
    if storage is not None:
        _add_notes(dataset, storage, match)
    return dataset if command is None else dataset.assign_attrs(command=command)


@Progress("opening the store")
def load_sweep(path: str | os.PathLike[str]) -> xarray.Dataset:
    """Read the results in a store, finished or not, without running anything.

    Returns
    -------
    xarray.Dataset
        As `sweep` returns it; if it is large, it stays on the disk. Points that were
        not computed have the status "pending". ``attrs["command"]`` has the command
        lines or calls that filled the store, one on each line. Columns of the store
        that the family does not have are kept, with their stored description. Columns
        of the family that the store lacks have no values: NaN, -1 or the empty text.
        ``attrs["notes"]`` names both kinds of columns.

    Raises
    ------
    ValueError
        The folder is not the store of a sweep, a file in it is damaged or has another
        format, or there is not enough memory for its points.
    """
    store = existing(path)
    grid = store.manifest.grid
    arguments = store.manifest.arguments
    family = find(arguments.get("family", ""))
    _check_sweep_of_a_family(store)
    match = ColumnMatch(stored=store.columns, computed=family.every_column())
    match.check_kinds(store.path)
    if is_large(match.every, grid):
        check_installed("dask", extra="distributed")
        values = lazy_values(store, match.missing)
    else:
        filled = Filled(match.every, grid)
        store.fill(filled)
        values = filled.values()
    is_unfinished = not store.done.all()
    dataset = labelled(family, grid, match.every, values, arguments, is_unfinished)
    _add_notes(dataset, store, match)
    if store.commands:
        return dataset.assign_attrs(command="\n".join(store.commands))
    return dataset


def _check_sweep_of_a_family(store: Store) -> None:
    """Refuse a store that cannot be a sweep of a family.

    An example is a store that `evaluate` has filled with the columns of another model.
    """
    names = {column.name for column in store.columns}
    for name in ("steps", "loss"):
        if name not in names:
            raise argument_error(
                "store",
                str(store.path),
                f"a sweep of a family, which has a column {name}",
            )
    if "version" not in store.manifest.arguments:
        raise argument_error(
            "store",
            str(store.path),
            "a sweep whose arguments name the version of the package that made it",
        )


def _add_notes(dataset: xarray.Dataset, store: Store, match: ColumnMatch) -> None:
    """Add the attribute ``notes`` to the dataset of a store, if there are notes.

    The notes are sentences on the files that were ignored, and on the unknown and the
    missing columns of the store.
    """
    notes = match.notes(store.path)
    if store.foreign:
        notes.insert(0, store.note())
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
    """Return results as a dataset, with the local exponents of the steps.

    The dataset also has the theoretical limits of these exponents, see ``_add_theory``.
    ``interrupted`` says whether points may be pending.
    """
    attributes = {
        "version": arguments["version"],
        "family": family.name,
        "title": family.title,
        "arguments": json.dumps(dict(arguments), ensure_ascii=False, sort_keys=True),
        "interrupted": int(interrupted),
    }
    dataset = assembled(grid, columns, values, attributes)
    _add_theory(dataset, family, grid, arguments)
    for axis in grid.axes:
        if _has_exponent(axis):
            _add_exponent(dataset, axis)
    return dataset


def _add_theory(
    dataset: xarray.Dataset,
    family: type[Family],
    grid: Grid,
    arguments: Mapping[str, Any],
) -> None:
    """Add the limits of exponents, or the reason why the theory does not apply.

    If the theory of the family covers every point, the attribute ``limits`` of each
    coordinate has the two limits of the exponent along it. Otherwise the attribute
    ``not_applicable`` of the dataset says why.
    """
    # The training rules of the points, and None for settings that do not fit together.
    rules = rules_of_points({axis.name: axis.values for axis in grid.axes}, arguments)
    method = str(arguments.get("method", ""))
    # A parameter that is no axis has no coordinate, to which limits could be added.
    limits = {
        name: exponents
        for name, exponents in family.limits(arguments).items()
        if name in dataset.coords
    }
    # `covers` says whether the theory applies to a rule, and `outside` says in words
    # why it does not.
    if all(family.theory.covers(rule, method) for rule in rules):
        for name, exponents in limits.items():
            dataset[name].attrs["limits"] = list(exponents)
        return
    # A family without limits and without columns of a theory has no theory that could
    # fail to apply.
    has_theory = any(column.role in THEORY_ROLES for column in family.every_column())
    if limits or has_theory:
        reason = family.theory.outside(rules, method)
        if reason:
            dataset.attrs["not_applicable"] = reason


def _has_exponent(axis: Axis) -> bool:
    """Whether an axis has several values, which are all positive and finite."""
    is_numeric = axis.values.dtype.kind in "if"
    if not (axis.swept and len(axis.values) > 1 and is_numeric):
        return False
    return bool(axis.values.min() > 0 and np.isfinite(axis.values).all())


def _add_exponent(dataset: xarray.Dataset, axis: Axis) -> None:
    """Add the variable ``exponent_NAME`` to a dataset, for an axis of this name.

    Its values are the local exponents d ln T / d ln x, where T is the number of steps
    and x the parameter on the axis.
    """
    steps = dataset["steps"]
    derivative = f"d ln steps / d ln {axis.name}"
    attributes = {
        "description": f"local exponent {derivative}, centred differences",
        "symbol": "exponent",
        "tex": rf"d\ln T/d\ln {axis.tex or axis.name}",
        "role": "exponent",
        "of": axis.name,
    }
    exponent = exponent_along(steps, axis.values, axis.name)
    dataset[f"exponent_{axis.name}"] = (steps.dims, exponent, attributes)


def check_picklable(model: FamilyModel) -> None:
    """Refuse a model that cannot be sent to other processes.

    The error names the first parameter that cannot be pickled, or else the family.
    """
    for name, value in model.common.items():
        if not _is_picklable(value):
            raise argument_error(
                name, value, "an object or a named function that can be sent to workers"
            )
    if not _is_picklable(model):
        raise argument_error(
            "family", model, "a class that can be sent to workers: defined in a module"
        )


def _is_picklable(value: Any) -> bool:
    """Whether `pickle` can write a value."""
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True


def _identity(value: Any) -> Any:
    """Return plain JSON that identifies a value: the value itself, or a text.

    A class or a function is identified by its module and its name, and a tuple or a
    list by its items.
    """
    is_finite_float = isinstance(value, float) and math.isfinite(value)
    if isinstance(value, bool | int | str) or is_finite_float:
        return value
    if isinstance(value, tuple | list):
        return [_identity(item) for item in value]
    if isinstance(value, type) or callable(value):
        module = getattr(value, "__module__", "")
        name = getattr(value, "__qualname__", repr(value))
        return f"{module}.{name}"
    # Two different objects may be printed in the same way, but they differ in their
    # pickles. The protocol is fixed, because another one gives other bytes.
    checksum = zlib.crc32(pickle.dumps(value, protocol=4))
    return f"{value!r} #{checksum:08x}"
