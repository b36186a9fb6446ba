"""Reading saved runs.

`load` reads the arrays of a file (``_arrays``). The file also states facts of the run
in JSON, such as its learning rate. Arrays and facts are checked together
(``_read_run``). If the facts include the family and its parameters, `load` also makes
the problem of the run again and attaches it to the run (``_revive``), so that the run
can compute any step. A file may come from a stranger: nothing is allocated or trusted
before it is checked.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple
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
from icl_theory.engine.trajectory import (
    Interval,
    Label,
    Phases,
    Stop,
    Trajectory,
    named,
)
from icl_theory.families.family import Family
from icl_theory.families.parameters import is_array_file
from icl_theory.families.registry import find
from icl_theory.files import checked_path
from icl_theory.memory import check_fits

# The losses of a file may differ by this relative amount from the losses that this
# release computes, because another release may have better formulas.
LOSS_TOLERANCE = 1e-6
# The losses may also differ by this part of the largest loss, because other processors
# round the same formula differently.
PROCESSOR_TOLERANCE = 1e-12
# The largest number of arrays in a file. Generous: a saved run has about ten.
MOST_ARRAYS = 100
# Reading a file takes at most this many bytes of memory for each byte of the file: a
# generous estimate.
MEMORY_PER_BYTE = 3.0
# Processor time in seconds after which the check of a file's losses ends. In a longer
# time more states would be checked, but loading would take longer.
SECONDS_OF_CHECK = 0.5
# Relative difference up to which the learning rates of a run and of its problem are
# treated as equal: larger than rounding errors, and smaller than a deliberate change.
RATE_TOLERANCE = 1e-9
# An error shows this many characters of the reason at most, so that it stays short.
SHOWN_CHARACTERS = 200
# The facts of a run that may be null in a file.
OPTIONAL_FACTS = (
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
        The run as it was saved. If the parameters of its problem are numbers, words and
        arrays, the file contains them. The problem is then made again, so that the run
        can compute any step. Any other run has only its saved steps. If the problem
        cannot be made in this installation, or if it gives other losses at the saved
        states than the file has, the run also has only its saved steps, and
        ``notes["family"]`` says why. If the family defines its own `simulate`, a step
        that was not saved is computed by simulating the whole run.

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
    path: str | os.PathLike[str], find_family: Callable[[str], type[Family]]
) -> Trajectory:
    """Read a run, and make its problem again if that is possible on this machine.

    Parameters
    ----------
    path : path-like
        The file.
    find_family : callable
        A function of the name of a family that returns the family.
    """
    run, saved_problem = _read(path)
    if saved_problem is None:
        return run
    try:
        family = find_family(saved_problem["name"])
        problem = _problem(family, saved_problem["parameters"])
        _revive(run, problem)
    # The family may be missing or of another version. The problem may be too large for
    # this machine, or give other losses than the file has. A family of another package
    # may raise any exception.
    except Exception as error:
        reason = str(error)
        if not isinstance(error, ValueError):
            reason = f"{type(error).__name__}: {error}"
        run.notes["family"] = (
            f"the problem cannot be made on this machine, so only saved steps are"
            f" known: {reason}"
        )
    return run


class _Saved(NamedTuple):
    """The contents of a file.

    Attributes
    ----------
    run : Trajectory
        The run with its saved steps.
    problem : dict or None
        The ``name`` of the family and the ``parameters`` of the problem; None if the
        file does not contain them.
    """

    run: Trajectory
    problem: dict[str, Any] | None


def _read(path: str | os.PathLike[str]) -> _Saved:
    """Read a file and check it, but do not make its problem again."""
    try:
        file = checked_path(path)
        if file.is_dir():
            raise ValueError(
                "it is a folder; icl_theory.load_sweep reads the store of a sweep"
            )
        with open(file, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            check_fits("path", os.fspath(path), MEMORY_PER_BYTE * size)
            arrays = _arrays(stream)
        # The facts are one text in JSON, saved as an array without axes.
        meta = json.loads(str(arrays.pop("meta")[()]))
        return _read_run(arrays, meta)
    except (FileNotFoundError, PermissionError):
        # These errors already say what is wrong, so they are passed on as they are.
        raise
    # A damaged file can raise any exception, for example a SyntaxError in the header of
    # an array.
    except Exception as error:
        reason = " ".join(str(error).split())[:SHOWN_CHARACTERS]
        raise argument_error(
            "path", path, f"a file written by Trajectory.save ({reason})"
        ) from None


def _arrays(stream: BinaryIO) -> dict[str, NDArray[Any]]:
    """Return the arrays of an archive in a dictionary, or refuse the archive.

    The keys are the names of the arrays. An archive is refused if it has more than
    `MOST_ARRAYS` arrays, if they claim to be larger than the file, if it is compressed,
    or if it is damaged. `_read` has checked that an archive of this size fits into
    memory.
    """
    with ZipFile(stream) as archive:
        members = archive.infolist()
        claimed = sum(member.file_size for member in members)
        size = os.fstat(stream.fileno()).st_size
        if len(members) > MOST_ARRAYS or claimed > size:
            raise ValueError("it claims more than a file of this size can hold")
        # Type 0 is "stored", without compression.
        if any(member.compress_type != 0 for member in members):
            raise ValueError("it is compressed")
        # NumPy stops reading at the end of an array, so it would miss damage after it.
        damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"{damaged} is damaged")
    stream.seek(0)
    with np.load(stream) as file:
        return dict(file)


def _read_run(arrays: dict[str, NDArray[Any]], meta: dict[str, Any]) -> _Saved:
    """Check the arrays and the facts of a file, and return the run that they describe.

    ``meta`` holds the facts as JSON gives them.
    """
    t = arrays.pop("t")
    loss = arrays.pop("loss")
    states = arrays.pop("states")
    # Two optional arrays let a run continue from a saved state: the memory of its rule,
    # such as a momentum, and the carry, which is the rounding error of the parameters.
    restart_arrays: dict[str, Any] = {}
    for name in ("memory", "carry"):
        if name in arrays:
            restart_arrays[name] = arrays.pop(name)
    # All other arrays are observations, one for each quantity that the risk observes.
    observed = {}
    for name, values in arrays.items():
        observed[name.removeprefix("observed_")] = values
    # `named` refuses names of observations that runs use for other entries.
    observed = named(observed)
    _check_arrays(t, {"loss": loss, "states": states, **restart_arrays, **observed})

    facts = _Facts(meta, last=int(t[-1])).read()
    problem = facts.pop("family")
    run = Trajectory(
        t=t, loss=loss, states=states, observed=observed, **restart_arrays, **facts
    )
    # The file also states facts about the arrays, such as their shapes and the least
    # loss. These facts must agree with the arrays.
    holds = run.holds()
    if meta["holds"] != holds:
        raise ValueError(f"it says that it holds {meta['holds']}, but it holds {holds}")
    return _Saved(run, problem)


def _check_arrays(t: NDArray[Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Refuse arrays unless each has finite numbers at all steps.

    The steps t must be increasing integers that begin with 0.
    """
    has_steps = t.dtype == np.int64 and t.ndim == 1 and t.size > 0
    if not has_steps or t[0] != 0 or (np.diff(t) <= 0).any():
        raise ValueError("t does not consist of increasing steps that begin with 0")
    loss = arrays["loss"]
    if loss.shape != t.shape:
        raise ValueError(f"loss has shape {loss.shape}, and {t.shape} is right")
    for name, values in arrays.items():
        has_numbers = values.dtype.kind in "fiub"  # floats, integers or bools
        if (
            values.shape[:1] != t.shape
            or not has_numbers
            or not np.isfinite(values).all()
        ):
            raise ValueError(
                f"{name} is not a finite number or array at each of {len(t)} steps"
            )
    carry = arrays.get("carry")
    states = arrays["states"]
    if carry is not None and carry.shape != states.shape:
        raise ValueError(f"carry has shape {carry.shape}, and {states.shape} is right")


class _Facts:
    """The facts of a run other than its arrays, read from the JSON of a file.

    The attribute ``readers`` has a function for each fact, which takes the value in the
    file and returns the value for the run, or refuses it.

    Parameters
    ----------
    meta : dict
        The facts as JSON gives them.
    last : int
        The last saved step.
    """

    def __init__(self, meta: dict[str, Any], last: int) -> None:
        self.meta = meta
        self.last = last
        self.readers: dict[str, Callable[[Any], Any]] = {
            "stop": Stop.__getitem__,  # returns the member with the given name
            "eta": self._learning_rate,
            "steps": self._step,
            "phases": self._phases,
            "family": dict,
            "method": self._method,
            "notes": self._notes,
            "info": self._info,
            "labels": self._labels,
            "floor": self._loss,
            "epsilon": self._loss,
            "error": self._error,
            "states_error": self._error,
            "stop_reason": _text,
            "rule": _text,
            "regime": _text,
            "command": _text,
            "version": _text,
        }

    def read(self) -> dict[str, Any]:
        """Return the facts by name, or refuse the first value that is not allowed."""
        facts = {}
        for name, reader in self.readers.items():
            value = self.meta[name]
            is_absent = value is None and name in OPTIONAL_FACTS
            facts[name] = None if is_absent else reader(value)
        return facts

    def _learning_rate(self, value: Any) -> float:
        """Return a positive finite number."""
        return number("eta", value)

    def _step(self, value: Any) -> int:
        """Return a step of the run, which is at most the last saved one."""
        return integer("step", value, minimum=0, maximum=self.last)

    def _phases(self, value: dict[str, Any]) -> Phases:
        """Return the phases, each with its first and its last step.

        A phase that did not begin is None.
        """
        return Phases({name: self._interval(ends) for name, ends in value.items()})

    def _interval(self, ends: Any) -> Interval | None:
        """Return the first and last step of a phase, or None if it did not begin."""
        # A phase that did not begin is null in the file, and None in the run.
        if ends is None:
            return None
        if not isinstance(ends, list) or len(ends) != 2:
            raise ValueError(f"a phase is {ends!r}: must be a first and a last step")
        first = self._step(ends[0])
        last = self._step(ends[1])
        if first > last:
            raise ValueError("a phase ends before it begins")
        return first, last

    def _method(self, value: Any) -> str:
        return choice("method", value, METHODS)

    def _notes(self, value: dict[str, Any]) -> dict[str, str]:
        return {name: _text(note) for name, note in value.items()}

    def _info(self, value: dict[str, Any]) -> dict[str, Any]:
        # `Trajectory.save` writes infinite numbers of this fact as text.
        return {name: math.inf if x == "inf" else x for name, x in value.items()}

    def _labels(self, value: dict[str, Any]) -> dict[str, Label]:
        return {name: Label(*map(_text, label)) for name, label in value.items()}

    def _loss(self, value: Any) -> float:
        """Return a finite number of either sign."""
        return signed("floor or epsilon", value)

    def _error(self, value: Any) -> float:
        """Return an estimate of an error: a number from 0 to infinity."""
        # An infinite error is saved as Infinity, which `json` reads although it is
        # not standard JSON.
        return math.inf if value == math.inf else number("error", value, zero=True)


def _text(value: Any) -> str:
    """Return a text, or refuse any other value."""
    return instance("text", value, str, "text")


def _problem(family: type[Family], parameters: Mapping[str, Any]) -> Family:
    """Make the problem of a run again from the parameters in its file."""
    declared = family.parameters()
    family.refuse_unknown(parameters)
    values: dict[str, Any] = {}
    for name, value in parameters.items():
        # A file may come from a stranger, who must not name other files to be read.
        if is_array_file(value) and declared[name].kind.arrays:
            raise argument_error(name, value, "an array, not the name of a file")
        # `Family.plain` writes infinite parameters as text.
        is_infinite = value == "inf" and declared[name].kind.numeric
        values[name] = math.inf if is_infinite else value
    return family(**values)


def _revive(run: Trajectory, problem: Family) -> None:
    """Attach a problem to a run, or refuse a problem that did not produce the run."""
    risk = problem.trained_risk()
    _refuse_other_losses(run, risk)
    if type(problem).simulate is Family.simulate:
        rule = rule_of(problem.update())
        _refuse_other_training(run, problem, rule)
        _refuse_other_memory(run, rule, risk)
        # The engine can now compute any step of the run.
        attach(run, risk, rule=rule)
    else:
        # A family with its own `simulate` computes steps in its own way, so the engine
        # cannot continue the run.
        run.risk = risk
        run.solution = _Rerun(problem)
    run.family = problem


def _refuse_other_training(run: Trajectory, problem: Family, rule: Rule) -> None:
    """Refuse a problem whose rule or learning rate differs from the run's."""
    if rule.name != run.rule:
        raise ValueError(
            f"the run was trained by {run.rule}, and its problem is by {rule.name}"
        )
    # In another release "auto" may stand for another number, so only a learning rate
    # that was given as a number is compared.
    is_number = not isinstance(problem.eta, str)
    if is_number and not math.isclose(problem.rate(), run.eta, rel_tol=RATE_TOLERANCE):
        raise ValueError(
            f"the run has the learning rate {run.eta:g}, "
            f"and its problem {problem.rate():g}"
        )


def _refuse_other_memory(run: Trajectory, rule: Rule, risk: Risk) -> None:
    """Refuse a run that lacks the memory of its rule, such as a momentum.

    Without this memory, training could not continue from a saved state.
    """
    # A closed form gives any iterate directly and needs no memory.
    if run.method == "closed":
        return
    needed_shape = rule.init(risk, risk.initial).shape
    # The memory of a rule that needs none has the shape (0,), and is not saved. The
    # first axis of a saved memory counts the saved steps.
    saved_shape = (0,) if run.memory is None else run.memory.shape[1:]
    if saved_shape != needed_shape:
        raise ValueError(
            f"the memory of its rule has the shape {needed_shape}, "
            f"and the file has {saved_shape}"
        )


def _refuse_other_losses(
    run: Trajectory, risk: Risk, seconds: float = SECONDS_OF_CHECK
) -> None:
    """Refuse a risk that gives other losses at the saved states than the file has.

    The file may have been altered, or the formula may differ in another release or
    plug-in. As many states are evaluated as ``seconds`` allow, but at least one: first
    the last state, then the first, then states half-way between.
    """
    shape = np.shape(risk.initial)
    if run.states.shape[1:] != shape:
        raise ValueError(
            f"its states have the shape {run.states.shape[1:]}, "
            f"and its problem has {shape}"
        )
    begin = time.process_time()
    sizes = np.abs(run.loss)
    allowed_differences = LOSS_TOLERANCE * sizes + PROCESSOR_TOLERANCE * sizes.max()
    for index in _from_the_ends(len(run.t)):
        step = int(run.t[index])
        params = np.asarray(run.states[index], dtype=np.float64)
        with np.errstate(all="ignore"):
            loss, _gradient = risk.evaluate(params, step)
        # A comparison with NaN is false. So "not at most" also refuses a loss of NaN,
        # which "more than" would accept.
        if not abs(loss - run.loss[index]) <= allowed_differences[index]:
            raise ValueError(
                f"at step {step} the file has the loss {run.loss[index]:.6g}, "
                f"and its problem gives {loss:.6g} there: the file was altered, or the "
                "formula has changed since it was written"
            )
        if time.process_time() - begin > seconds:
            return


def _from_the_ends(count: int) -> Iterator[int]:
    """Yield each of the numbers from 0 to ``count`` - 1 once, in rounds.

    The first round has the last number and then 0. Each further round adds the numbers
    half-way between the numbers that were yielded before. So the numbers are evenly
    spread after each round.
    """
    yielded: set[int] = set()
    intervals = 1
    while len(yielded) < count:
        evenly_spaced = np.linspace(count - 1, 0, intervals + 1).round().astype(int)
        for index in evenly_spaced.tolist():
            if index not in yielded:
                yielded.add(index)
                yield index
        intervals *= 2


class _Rerun(Solution):
    """The iterates of a run, which is simulated again when an iterate is needed."""

    def __init__(self, problem: Family) -> None:
        self._problem = problem
        # The run after it was simulated. (A functools.cache could not be pickled.)
        self._simulated: Trajectory | None = None

    def _run(self) -> Trajectory:
        """Return the simulated run, which is the same object at each call."""
        if self._simulated is None:
            self._simulated = self._problem.simulate()
        return self._simulated

    def states(self, steps: NDArray[np.int64]) -> Array:
        """Return the parameters at given steps, an entry for each."""
        return np.stack([self._run().at(t).params for t in steps.tolist()])

    def first_below(self, epsilon: float, last: int) -> tuple[int | None, float | None]:
        """Return the first step with loss <= epsilon, and None as its error.

        The step is None if it is beyond ``last``, or if the loss stays above epsilon.
        """
        first = self._run().first(lambda state: state.loss <= epsilon)
        # The error of the step is not known, because the family computes its steps in
        # its own way.
        error = None
        if first is None or first > last:
            return None, error
        return first, error
