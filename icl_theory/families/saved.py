"""Runs read from files; a run goes on from its file if its problem can be made again.

A file may come from a stranger: nothing is allocated or believed before it is checked.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, BinaryIO
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import (
    Array,
    argument_error,
    choice,
    instance,
    integer,
    number,
    signed,
)
from icl_theory.engine.descent import METHODS, attach
from icl_theory.engine.progress import Progress
from icl_theory.engine.risk import Risk, Solution
from icl_theory.engine.rules import Rule, rule_of
from icl_theory.engine.trajectory import Label, Phases, Stop, Trajectory, named
from icl_theory.families import find
from icl_theory.families.family import Family
from icl_theory.files import checked_path
from icl_theory.memory import check_fits

LOSS_TOLERANCE = 1e-6  # relative: what releases with better formulas may differ by
# may be None
UNKNOWN = (
    "steps",
    "phases",
    "regime",
    "command",
    "version",
    "error",
    "states_error",
    "family",
)


@Progress("making the problem of the run")
def load(path: str | os.PathLike[str]) -> Trajectory:
    """Read a run written by `Trajectory.save`.

    Parameters
    ----------
    path : path-like
        The file.

    Returns
    -------
    Trajectory
        As saved. The file of a run says which problem was trained if its parameters are
        numbers and words. Such a run carries its risk and knows every step; other runs
        know only their saved steps, and if the problem cannot be made here, or gives
        other losses at the saved states, ``notes["family"]`` says why. A family with a
        `simulate` of its own runs it again for a step that was not saved.

    Raises
    ------
    ValueError
        The file is not a saved run.

    Examples
    --------
    >>> import icl_theory as icl, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "run.npz")
    >>> icl.simulate(2.0, 1.0, 4.0).save(path)
    >>> again = icl.load(path)
    >>> again.steps, again.at(10**9).loss == icl.simulate(2.0, 1.0, 4.0).at(10**9).loss
    (1413, True)
    """
    return loaded(path, find)


def loaded(
    path: str | os.PathLike[str], find: Callable[[str], type[Family]]
) -> Trajectory:
    """Read a run, with its problem if that can be made here, of a family that is found by its name."""
    try:
        file = checked_path(path)
        if file.is_dir():
            raise ValueError(
                "it is a folder; icl_theory.load_sweep reads the store of a sweep"
            )
        with open(file, "rb") as stream:
            check_fits("path", os.fspath(path), 3.0 * os.fstat(stream.fileno()).st_size)
            arrays = _arrays(stream)
        run = _checked(arrays, json.loads(str(arrays.pop("meta")[()])))
    except (FileNotFoundError, PermissionError):
        raise
    except (
        Exception
    ) as error:  # damage shows as anything, a SyntaxError of a header among others
        reason = " ".join(str(error).split())[:200]
        raise argument_error(
            "path", path, f"a file written by Trajectory.save ({reason})"
        ) from None
    said, run.family = run.family, None
    try:
        if said is not None:
            _revive(run, _problem(find(said["name"]), said))
    # a family that is not installed or of another version, a problem too large for this
    # machine or not that of the
    # run; a family of another package may raise anything
    except Exception as error:
        name = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        run.notes["family"] = (
            f"not available here, so only saved steps are known: {name}{error}"
        )
    return run


def _arrays(stream: BinaryIO, most: int = 100) -> dict[str, NDArray[Any]]:
    """Read the arrays of an archive that holds, byte by byte, what it claims: then they fit, as the file does."""
    with ZipFile(stream) as archive:
        members = archive.infolist()
        claimed = sum(member.file_size for member in members)
        if len(members) > most or claimed > os.fstat(stream.fileno()).st_size:
            raise ValueError("it claims more than it holds")
        if any(member.compress_type for member in members):
            raise ValueError("it is compressed")
        if (
            damaged := archive.testzip()
        ) is not None:  # NumPy stops where a header says that an array ends
            raise ValueError(f"{damaged} is damaged")
    stream.seek(0)
    with np.load(stream) as file:
        return dict(file)


def _checked(arrays: dict[str, NDArray[Any]], meta: dict[str, Any]) -> Trajectory:
    """Return a run whose ``family`` is what the file says of it."""
    t, loss, states = (arrays.pop(name) for name in ("t", "loss", "states"))
    memory, carry = (arrays.pop(name, None) for name in ("memory", "carry"))
    observed = named(
        {name.removeprefix("observed_"): values for name, values in arrays.items()}
    )
    if (
        t.dtype != np.int64
        or t.ndim != 1
        or not t.size
        or t[0] != 0
        or (np.diff(t) <= 0).any()
    ):
        raise ValueError("t has no increasing steps from 0 on")
    if loss.shape != t.shape:
        raise ValueError(f"loss has shape {loss.shape}, and {t.shape} is right")
    restarts: dict[str, Any] = {}
    if memory is not None:
        restarts["memory"] = memory
    if carry is not None:
        restarts["carry"] = carry
    for name, values in {
        "loss": loss,
        "states": states,
        **restarts,
        **observed,
    }.items():
        if (
            values.shape[:1] != t.shape
            or values.dtype.kind not in "fiub"
            or not np.isfinite(values).all()
        ):
            raise ValueError(
                f"{name} is not a finite number or array at each of {len(t)} steps"
            )
    if carry is not None and carry.shape != states.shape:
        raise ValueError(f"carry has shape {carry.shape}, and {states.shape} is right")
    step = partial(integer, "step", minimum=0, maximum=int(t[-1]))

    def phases(found: dict[str, Any]) -> Phases:
        every = {
            name: pair and (step(pair[0]), step(pair[1]))
            for name, pair in found.items()
        }
        if any(pair and pair[0] > pair[1] for pair in every.values()):
            raise ValueError("a phase ends before it begins")
        return Phases(every)

    def error(value: Any) -> float:
        return math.inf if value == math.inf else number("error", value, zero=True)

    checks: dict[str, Callable[[Any], Any]] = {
        "stop": Stop.__getitem__,
        "eta": partial(number, "eta"),
        "steps": step,
        "phases": phases,
        "family": dict,
        "method": lambda method: choice("method", method, METHODS),
        "notes": lambda notes: {name: _text(note) for name, note in notes.items()},
        "info": lambda info: {
            name: math.inf if value == "inf" else value for name, value in info.items()
        },
        "labels": lambda labels: {
            name: Label(*map(_text, label)) for name, label in labels.items()
        },
        **dict.fromkeys(("floor", "epsilon"), partial(signed, "floor or epsilon")),
        **dict.fromkeys(("error", "states_error"), error),
        **dict.fromkeys(("stop_reason", "rule", "regime", "command", "version"), _text),
    }
    absent = {name for name in UNKNOWN if meta[name] is None}
    facts: dict[str, Any] = {
        n: None if n in absent else check(meta[n]) for n, check in checks.items()
    }
    run = Trajectory(
        t=t, loss=loss, states=states, observed=observed, **restarts, **facts
    )
    if meta["holds"] != (holds := run.holds()):
        raise ValueError(f"it says that it holds {meta['holds']}, and holds {holds}")
    return run


def _text(value: Any) -> str:
    return instance("text", value, str, "text")


def _revive(run: Trajectory, problem: Family) -> None:
    """Have a run go on as one of its problem, if the two agree."""
    risk = problem.risk()
    _refuse_other_losses(run, risk)
    if type(problem).simulate is Family.simulate:
        rule = rule_of(problem.update())
        if rule.name != run.rule:
            raise ValueError(
                f"the run was trained by {run.rule}, and its problem is by {rule.name}"
            )
        # "auto" may be another number in another release
        is_given = not isinstance(problem.eta, str)
        if is_given and not math.isclose(problem.rate(), run.eta, rel_tol=1e-9):
            raise ValueError(
                f"the run has the learning rate {run.eta:g}, and its problem {problem.rate():g}"
            )
        _refuse_other_memory(run, rule, risk)
        attach(run, risk, rule=rule)
    else:  # only the family knows how its runs go on
        run.risk = risk
        run.solution = _Again(problem)
    run.family = problem


def _refuse_other_memory(run: Trajectory, rule: Rule, risk: Risk) -> None:
    """Refuse a run that does not hold what its rule remembers, without which it cannot go on."""
    if run.method == "closed":
        return
    wanted = rule.init(risk, risk.initial).shape
    held = (0,) if run.memory is None else run.memory.shape[1:]
    if held != wanted:
        raise ValueError(
            f"the memory of its rule has the shape {wanted}, and the file has {held}"
        )


def _refuse_other_losses(run: Trajectory, risk: Risk, seconds: float = 0.5) -> None:
    """Refuse a risk that gives other losses at the saved states than the file has.

    The file may have been altered, or the formula of another release or plug-in may be
    another one. On another processor the same formula differs by 1e-12 at most. All
    states are evaluated if that takes half a second, else as many as it allows, at
    least one: the last, the first, then those half-way between.
    """
    shape = np.shape(risk.initial)
    if run.states.shape[1:] != shape:
        raise ValueError(
            f"its states have the shape {run.states.shape[1:]}, and its problem has {shape}"
        )
    begin = time.process_time()
    allowed = LOSS_TOLERANCE * np.abs(run.loss) + 1e-12 * np.abs(run.loss).max()
    for index in _from_the_ends(len(run.t)):
        step = int(run.t[index])
        with np.errstate(all="ignore"):
            loss = risk.evaluate(np.asarray(run.states[index], dtype=np.float64), step)[
                0
            ]
        if not abs(loss - run.loss[index]) <= allowed[index]:
            raise ValueError(
                f"at step {step} the file has the loss {run.loss[index]:.6g}, and its problem gives {loss:.6g} "
                "there: the file was altered, or the formula has changed since it was written"
            )
        if time.process_time() - begin > seconds:
            return


def _from_the_ends(count: int) -> Iterator[int]:
    """Yield the numbers below ``count``: the last, the first, and then those half-way between, again and again."""
    before: set[int] = set()
    parts = 1
    while len(before) < count:
        places = np.linspace(count - 1, 0, parts + 1).round().astype(int).tolist()
        for place in places:
            if place not in before:
                before.add(place)
                yield place
        parts *= 2


class _Again(Solution):
    """The iterates of a run that is made again when one of them is first asked for."""

    def __init__(self, problem: Family) -> None:
        self._problem = problem
        self._simulated: Trajectory | None = (
            None  # no functools.cache: it cannot be pickled
        )

    def _run(self) -> Trajectory:
        if self._simulated is None:
            self._simulated = self._problem.simulate()
        return self._simulated

    def states(self, steps: NDArray[np.int64]) -> Array:
        return np.stack([self._run().at(t).params for t in steps.tolist()])

    def first_below(self, epsilon: float, last: int) -> tuple[int | None, float | None]:
        found = self._run().first(lambda state: state.loss <= epsilon)
        return (found, None) if found is not None and found <= last else (None, None)


def _problem(family: type[Family], said: Mapping[str, Any]) -> Family:
    known = family.parameters()
    family.refuse_unknown(said["parameters"])
    values: dict[str, Any] = {
        name: math.inf if value == "inf" and known[name].kind.numeric else value
        for name, value in said["parameters"].items()
    }
    return family(**values)
