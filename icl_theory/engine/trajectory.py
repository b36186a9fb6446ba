"""A training run: its saved steps, losses, states and observations.

A `Trajectory` says why it ended (`Stop`), computes the `State` at any step, finds the
first step at which a condition holds, and is exported to xarray, JSON or a file.
"""

from __future__ import annotations

import json
import math
import os
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array, argument_error, integer, text
from icl_theory._version import __version__
from icl_theory.engine.display import Plottable
from icl_theory.engine.interrupts import load_whole
from icl_theory.engine.risk import Risk, Solution
from icl_theory.memory import check_fits

if TYPE_CHECKING:
    import xarray

    from icl_theory.engine.curves import CurveComparison
    from icl_theory.engine.rules import Rule

Interval = tuple[int, int]
# Fields that a run in closed form computes when one of them is first used.
CURVES = ("loss", "states", "observed")
# Attributes of a run that its file and its exports contain in addition to the arrays.
FACTS = (
    "steps",
    "stop_reason",
    "floor",
    "method",
    "rule",
    "eta",
    "epsilon",
    "error",
    "states_error",
    "regime",
    "notes",
    "command",
    "version",
    "phases",
    "labels",
    "info",
    "stop",
    "family",
)
# Names that no observation may have, because runs and their exports use them for other
# entries.
TAKEN = frozenset({*FACTS, *CURVES, "t", "query", "memory", "carry"})
# Stands for an array that is computed later.
_NOT_COMPUTED = np.zeros(0)
# A summary mentions the estimated error of the step count if it exceeds this number of
# steps. A smaller error hardly ever changes the rounded step count.
SMALLEST_STATED_ERROR = 0.1
# The number of saved steps in a factor of ten if states are small. Neighbouring steps
# then differ by 7.5 %, which makes smooth figures.
STEPS_PER_DECADE = 32.0
# The smallest number of saved steps in a factor of ten, if states are large. With fewer
# steps a figure would not show the form of the loss curve.
FEWEST_STEPS_PER_DECADE = 4.0
# About the largest number of floats in all saved states together; they take 256 MiB. If
# states are large, fewer steps are saved, so that this number suffices.
SAVED_NUMBERS = 2**25
# A summary shows arrays of up to this many numbers in full. Longer ones would fill
# several lines.
SHOWN_NUMBERS = 16
# The width of a summary, and the column in which its texts begin.
SUMMARY_WIDTH = 80
SUMMARY_COLUMN = 12


class Phases(dict[str, Interval | None]):
    """The first and last step of each phase, by the name of the phase, in order.

    The value is None if the run ends before the phase begins. Names are also
    attributes: ``run.phases.I``.
    """

    def __getattr__(self, name: str) -> Any:
        """Return the interval of the phase of this name."""
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"no phase {name!r}; there are {', '.join(self)}"
            ) from None

    def present(self) -> dict[str, Interval]:
        """Return the intervals of the phases that have begun, by name."""
        return {
            name: interval for name, interval in self.items() if interval is not None
        }


class Label(NamedTuple):
    """How a parameter is shown.

    Attributes
    ----------
    text, tex : str
        Its symbol, as plain text and as TeX.
    unit, meaning : str
        Its unit and its meaning in words.
    """

    text: str
    tex: str
    unit: str
    meaning: str


class Stop(Enum):
    """Why a run ended. The value is a sentence with placeholders for numbers."""

    REACHED = "reached epsilon = {epsilon:g} at step {step}"
    FLOOR = "stagnated at the floor {floor:.6g} > epsilon = {epsilon:g} by step {step}"
    STEPS = "took all {step} steps without reaching epsilon = {epsilon:g}"
    UNMOVED = "stagnated at step {step}: the remaining steps cannot change the loss"
    ABOVE = "stagnated at step {step}: the loss settles above epsilon"
    SETTLED = "stagnated at step {step}: the scores settled to within the tolerance"
    LOSS = "diverged at step {step}: the loss left the range of float64"
    PARAMETERS = "diverged at step {step}: the parameters left the range of float64"
    FLOW = "diverged: the flow cannot be followed any further"
    WORK = "used the {work:,} gradient evaluations that such a run may take"
    INTERRUPTED = "interrupted at step {step}"

    def say(self, **facts: float) -> str:
        """Return the sentence, with the numbers ``facts`` in its placeholders."""
        return self.value.format(**facts)


class State(NamedTuple):
    """One point of a run: step number, parameters, loss and observations."""

    t: int
    params: Array  # of the shape of the risk's parameters
    loss: float
    observed: dict[str, Array]  # the risk's observations by name

    @property
    def attention(self) -> Array:
        """Target attention at this step: one number, or one for each of K queries."""
        return _attention(self.observed)


@dataclass(eq=False, repr=False)
class Trajectory(Plottable):
    """A training run, saved at T log-spaced steps.

    Attributes
    ----------
    t : ndarray of int64, (T,)
        Saved steps, increasing. The first is 0, and the last is the step at which the
        run stopped.
    loss : ndarray, (T,)
        Loss at the saved steps, in squared label units (nats for recall).
    states : ndarray, (T, ...)
        Parameters at the saved steps.
    observed : dict of ndarray, each (T, ...)
        The observations of the risk, by name.
    steps : int or None
        First step with loss <= epsilon; None if epsilon was not reached.
    converged : bool
        Whether ``epsilon`` was reached.
    stop : Stop
        Why the run ended.
    stop_reason : str
        Why the run ended, in words.
    floor : float
        Irreducible loss of the risk.
    method, rule : str
        How the steps were computed ("exact", "closed", "fast", "flow") and the name of
        the update rule.
    eta, epsilon : float
        Learning rate and target loss.
    error : float or None
        Estimated absolute error of ``steps``. If it is below 1, a run that takes every
        step has the same ``steps``: the losses at this step and at the step before
        differ from ``epsilon`` by more than their errors. If one of these two losses
        equals ``epsilon`` up to rounding, the error is 1 or more, whatever the method.
        It is None for a flow, whose steps are times. It is also None for a run that
        took every step, unless one of the two losses equals ``epsilon`` up to rounding.
        Except in closed form, it is also None if ``epsilon`` was not reached.
    states_error : float or None
        Estimated absolute error of the scores at the saved steps; None if no step was
        skipped.
    phases : Phases or None
        The phases of the run, if the model defines them.
    regime : {"flat", "sharp"} or None
        The regime of the run, if the model defines it.
    notes : dict of str
        Further remarks of the model on the run, by name.
    info : dict
        Parameters of the run, by name.
    labels : dict of str to Label
        Symbols, units and meanings of these parameters.
    family : Family or None
        The problem to which the run belongs, if a family made the run or its file names
        the problem.
    command : str or None
        Command line or Python call that makes the run again; None if it is unknown.
    version : str or None
        Version of the package that made the run; None if its file does not state it.
    memory : ndarray, (T, ...), or None
        The memory of the update rule at the saved steps, empty for a rule without one;
        None for a closed form.
    carry : ndarray, (T, ...), or None
        The rounding error of the parameters at the saved steps. With it a run that is
        continued from a saved step has the same bits as an uninterrupted run. None for
        a closed form.
    trained_by : Rule or None
        The update rule with its settings; None if they are unknown.
    """

    t: NDArray[np.int64]
    loss: Array
    states: Array
    observed: dict[str, Array]
    steps: int | None
    stop: Stop
    stop_reason: str
    floor: float
    method: str
    rule: str
    eta: float
    epsilon: float
    error: float | None = None
    states_error: float | None = None
    phases: Phases | None = None
    regime: str | None = None
    notes: dict[str, str] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, Label] = field(default_factory=dict)
    family: Any = field(default=None, repr=False)
    command: str | None = None
    version: str | None = __version__
    memory: Array | None = field(default=None, repr=False)
    carry: Array | None = field(default=None, repr=False)
    trained_by: Rule | None = field(default=None, repr=False)
    # The trained risk, and the iterates by their step numbers. Both are None if the run
    # is from a file that does not say what was trained.
    risk: Risk | None = field(default=None, repr=False)
    solution: Solution | None = field(default=None, repr=False)

    @classmethod
    def later(cls, curves: Callable[[], dict[str, Any]], **fields: Any) -> Trajectory:
        """Make a run that computes its loss, states and observations at first use.

        ``curves`` takes no arguments. It is called when one of the three attributes is
        read for the first time, and returns them by name.
        """
        run = cls(loss=_NOT_COMPUTED, states=_NOT_COMPUTED, observed={}, **fields)
        # `__getattr__` computes these three attributes. Python calls it only for an
        # attribute that the object does not have, so they are deleted.
        for name in CURVES:
            del run.__dict__[name]
        run.__dict__["curves"] = curves
        return run

    def __getattr__(self, name: str) -> Any:
        """Compute the CURVES of a run that `later` has made, and return one of them.

        All three are then ordinary attributes, so this happens once.
        """
        if name in CURVES and "curves" in self.__dict__:
            compute = self.__dict__.pop("curves")
            self.__dict__.update(compute())
            return self.__dict__[name]
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}"
        )

    @property
    def converged(self) -> bool:
        """Whether the loss reached ``epsilon``."""
        return self.steps is not None

    def __repr__(self) -> str:
        loss = f"loss {self.loss[0]:.4g} -> {self.loss[-1]:.4g}"
        return f"<Trajectory: {self.stop_reason}; {loss}, {len(self.t)} saved steps>"

    @property
    def on_fixed_set(self) -> bool:
        """Whether the run is training on a fixed set of prompts."""
        if self.family is not None:
            return bool(getattr(self.family, "on_fixed_set", False))
        if self.risk is not None:
            # Imported here because few runs need it.
            from icl_theory.engine.fixed_set import FixedSetRisk

            return isinstance(self.risk, FixedSetRisk)
        # The run is from a file that does not say what was trained. But only training
        # on a fixed set observes the population loss.
        return "population_loss" in self.observed

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the run."""
        return self.stop is Stop.INTERRUPTED

    @property
    def params(self) -> Array:
        """Final parameters."""
        return np.asarray(self.states[-1])

    @property
    def attention(self) -> Array:
        """Target attention at the saved steps, (T,), or (T, K) if queries differ."""
        return _attention(self.observed)

    def at(self, t: int) -> State:
        """State at any step, which may lie between or beyond the saved steps.

        A state that was not saved is computed from the closed form of the run, or else
        from the nearest saved state before it.

        Parameters
        ----------
        t : int
            Step number.

        Returns
        -------
        State
            A tuple with the fields ``t``, ``params``, ``loss`` and ``observed``, and
            the property ``attention``.

        Raises
        ------
        ValueError
            The step is not saved, and either the run was loaded from a file that does
            not say what was trained, or the run cannot be followed to the step.

        Examples
        --------
        >>> import icl_theory as icl
        >>> run = icl.simulate(2.0, 1.0, 4.0)
        >>> bool(run.at(0).loss == run.loss[0])
        True
        """
        t = integer("t", t, minimum=0)
        # The first saved step at t or later.
        index = int(np.searchsorted(self.t, t))
        if index < len(self.t) and self.t[index] == t:
            return self._saved_state(index)
        if self.solution is None or self.risk is None:
            raise argument_error(
                "t",
                t,
                "a saved step (see .t): the file of this run has no risk from which "
                "others could be computed",
            )
        (state,) = self.solution.states(np.array([t]))
        params = np.asarray(state)
        # If the loss is beyond the range of float64, the error below says so, and no
        # warning is needed.
        with np.errstate(over="ignore", invalid="ignore"):
            loss, _gradient = self.risk.evaluate(params, t)
        if not (math.isfinite(loss) and np.isfinite(params).all()):
            raise argument_error(
                "t",
                t,
                "a step at which loss and parameters are within the range of float64",
            )
        return State(t, params, loss, self.risk.observe(params, t))

    def _saved_state(self, index: int) -> State:
        """Return the saved state at an index of ``t``."""
        params = np.asarray(self.states[index])
        observed = {
            name: np.asarray(values[index]) for name, values in self.observed.items()
        }
        return State(int(self.t[index]), params, float(self.loss[index]), observed)

    def first(self, condition: Callable[[State], bool], after: int = 0) -> int | None:
        """First step at which a condition holds.

        The condition is tested at ``after`` and at the later saved steps, until it
        holds at one of them. The first step is found by bisection between this step and
        the tested step before it. The result is right if the condition, once it holds,
        holds at all later steps.

        Parameters
        ----------
        condition : callable
            A function of a `State` that returns a bool.
        after : int
            The first step that may be the result.

        Returns
        -------
        int or None
            None if the condition holds at no tested step. If the run was loaded from a
            file that does not say what was trained, the result is the first *saved*
            step at which the condition holds.

        Examples
        --------
        >>> import icl_theory as icl
        >>> run = icl.simulate(2.0, 1.0, 4.0)
        >>> run.first(lambda state: state.attention >= 0.5) == run.phases.I[1]
        True
        """
        if not callable(condition):
            raise argument_error("condition", condition, "a function of a state")
        after = integer("after", after, minimum=0, maximum=int(self.t[-1]))
        steps_to_test = self.t[self.t >= after].tolist()
        # Without a solution only saved steps have a state.
        if self.solution is not None and steps_to_test[0] != after:
            steps_to_test.insert(0, after)
        fails_at = None
        holds_at = None
        for step in steps_to_test:
            if condition(self.at(step)):
                holds_at = step
                break
            fails_at = step
        # There is nothing to bisect if the condition never holds, or holds at the first
        # tested step, or if steps in between have no state.
        if holds_at is None or fails_at is None or self.solution is None:
            return holds_at
        # Bisection: the condition holds at `holds_at`, and does not at `fails_at`.
        while holds_at - fails_at > 1:
            middle = (fails_at + holds_at) // 2
            if condition(self.at(middle)):
                holds_at = middle
            else:
                fails_at = middle
        return int(holds_at)

    def compare(
        self,
        losses: Any,
        steps: Any = None,
        *,
        batch: int | None = None,
        errors: Any = None,
        scale: float | None = None,
        runs: int = 16,
        seed: int = 0,
        column: str | None = None,
    ) -> CurveComparison:
        """Compare a loss curve of another trainer, such as your own, with this run.

        Both curves are averaged over windows of steps. Step 0 is a window of its own,
        and the later steps are split into at most 24 windows of equal length in
        ln(t + 1). In each window the two means are compared. Their difference may not
        exceed a limit. For a curve from the same training, the limit is exceeded in
        some window in at most one of a thousand cases.

        If the curves differ, trainings that differ from the run in one respect are
        tried: another learning rate or factor of the loss, another prompt length,
        momentum 0.9 or Adam, another start, label noise in the answers, a fixed set of
        prompts, losses after the update, a mean over positions; and schedules of the
        learning rate if none of these fits. The result names the trainings with which
        the curve agrees.

        Parameters
        ----------
        losses : array_like, path or callable
            At least two losses, each computed *before* the update of its step. Or give
            the path of a file of at most 64 MB with comma-separated values. The
            file has the columns ``step``, ``loss`` and optionally ``error``, or the
            columns that TensorBoard or Weights & Biases write, or numbers without a
            header, as ``numpy.savetxt`` writes them. Or give a function of a `State`
            that returns one loss, or the losses of single prompts.
        steps : array_like of int, optional
            The increasing steps of the losses. By default they are 0, 1, 2, ...; for a
            function they are the saved steps.
        batch : int, optional
            Number of prompts in a batch, if the losses are batch losses of SGD. The
            standard errors then come from runs of SGD with such batches, made by the
            family's sampler, and include the distance of SGD from the exact run. If the
            mean loss of the runs of SGD leaves the exact curve, the losses are compared
            with this mean. If a file or the losses of single prompts also give standard
            errors, runs of SGD are made only if the curve differs from the run by more
            than these errors.
        errors : array_like, optional
            Standard errors, if ``batch`` is not given: one for all losses or one for
            each, in the unit of ``losses``; 0 for losses that do not scatter. They need
            not be given if a file contains them, or if a function returns the losses of
            single prompts, from which they are computed.
        scale : float, optional
            Factor by which the losses are multiplied.
        runs, seed : int
            Number of runs of SGD, 4 to 1000, and the seed of their prompts.
        column : str, optional
            If ``losses`` is a file: the title of the column with the losses, or the
            number of this column, from 1, if the file has no header.

        Returns
        -------
        CurveComparison
            The outcome, with ``leaves``, ``explanations``, ``checks``,
            ``to_markdown()`` and ``plot()``.

        Raises
        ------
        ValueError
            The losses are not a curve, neither or both of ``batch`` and ``errors`` are
            given, or the run cannot be sampled.

        References
        ----------
        docs/guide/your-own-run.md.

        Examples
        --------
        >>> import icl_theory as icl
        >>> run = icl.simulate(2.0, 1.0, 4.0, K=5, N=20, above=1e-3)
        >>> compared = run.compare(1.1 * run.loss, run.t, errors=0.01)
        >>> compared.leaves
        (0, 0)
        >>> compared.explanations[0].sentence
        'its losses are 1.1 times the exact ones'
        """
        # Imported here because few runs are compared.
        from icl_theory.engine.curves import compare_with_run
        from icl_theory.engine.loss_curve import loss_curve

        if self.risk is not None and self.risk.stochastic:
            raise argument_error(
                "run", repr(self), "a run on exact losses, not on sampled ones"
            )
        if column is not None:
            column = text("column", column)
        curve = loss_curve(self, losses, steps, errors, column)
        has_errors = curve.errors is not None
        # A batch may be given together with errors from a file or from single prompts,
        # but not together with the argument `errors`.
        is_ambiguous = batch is not None and errors is not None
        if is_ambiguous or (batch is None and not has_errors):
            raise ValueError(
                f"batch = {batch!r}: give either batch or errors, which say how far "
                "losses scatter (a function may return the loss of each prompt instead "
                "of their mean)"
            )
        if batch is not None and has_errors:
            # The batch is checked here, because runs of SGD may turn out not to be
            # needed, and would then not check it.
            batch = integer("batch", batch, minimum=1)
        # The comparison needs the variance of Student's t distribution with runs - 1
        # degrees of freedom, which is finite from 3 degrees on. The maximum only
        # refuses numbers of runs that take too long.
        runs = integer("runs", runs, minimum=4, maximum=1000)
        seed = integer("seed", seed, minimum=0)
        return compare_with_run(self, curve, batch, scale, runs, seed)

    def summary(self) -> str:
        """Describe the run in a few lines of text, each of at most 80 columns."""
        paragraphs = []
        for name, value in self.facts().items():
            line = f"{name:<{SUMMARY_COLUMN - 1}} {value}"
            paragraph = textwrap.fill(
                line, width=SUMMARY_WIDTH, subsequent_indent=" " * SUMMARY_COLUMN
            )
            paragraphs.append(paragraph)
        return "\n".join(paragraphs)

    def facts(self) -> dict[str, str]:
        """Return the facts of `summary`: texts by their names."""
        method = self.method
        if self.error is not None and self.error > SMALLEST_STATED_ERROR:
            method += f" (the step count may be off by {self.error:.1g})"
        facts = {
            "run": self._parameters_text(),
            "method": method,
            "stopped": self.stop_reason,
            "loss": f"{self.loss[0]:.6g} -> {self.loss[-1]:.6g} "
            f"(floor {self.floor:.3g})",
        }
        if "attention" in self.observed:
            first = np.mean(self.attention[0])
            last = np.mean(self.attention[-1])
            facts["attention"] = f"{first:.6g} -> {last:.6g}"
            if self.attention.ndim > 1:
                facts["attention"] += " (mean over queries)"
        if self.phases is not None:
            phases = []
            for name, (begin, end) in self.phases.present().items():
                phases.append(f"{name} {begin:,} - {end:,}")
            facts["phases"] = "   ".join(phases)
        if self.regime is not None:
            facts["regime"] = self.regime
        return facts | self.notes

    def _parameters_text(self) -> str:
        """Return the known parameters of the run, or its learning rate and rule."""
        parameters = []
        for name, value in self.info.items():
            if value is not None:
                parameters.append(f"{name}={_short(value)}")
        if not parameters:
            parameters = [f"eta={self.eta:g}", f"rule={self.rule}"]
        return ", ".join(parameters)

    def to_xarray(self) -> xarray.Dataset:
        """Return loss and observations as a dataset with the dimension ``t``.

        An observation with one value for each query also has the dimension ``query``.
        """
        # Put Ctrl-C off while these modules, which xarray uses, are loaded.
        load_whole("numpy.ma", "pandas", "xarray", "dask.array")
        import xarray

        # xarray takes a variable as a pair of its dimensions and its values.
        variables: dict[str, Any] = {"loss": ("t", self.loss)}
        for name, values in self.observed.items():
            variables[name] = (["t", *self._dimensions(name)], values)
        # Attributes that are a dict or None could not be written to a file.
        attributes = {}
        for name, value in self._meta().items():
            if isinstance(value, dict):
                attributes[name] = json.dumps(value)
            elif value is not None:
                attributes[name] = value
        return xarray.Dataset(variables, coords={"t": self.t}, attrs=attributes)

    def _dimensions(self, name: str) -> list[str]:
        """Return names for the dimensions of an observation, except the first, ``t``.

        They are "query" or numbered names such as "excess_0".
        """
        values = self.observed[name]
        # The attention, (T, K), has one number for each query. Another observation of
        # the same shape is taken to have one number for each query as well.
        has_attention = "attention" in self.observed
        if has_attention and values.ndim == 2 and values.shape == self.attention.shape:
            return ["query"]
        return [f"{name}_{i}" for i in range(values.ndim - 1)]

    def to_dict(self) -> dict[str, Any]:
        """Return the run as a dict of numbers, texts, lists and dicts, without states.

        The result can be written as strict JSON.
        """
        values = self._meta()
        values["t"] = self.t.tolist()
        values["loss"] = self.loss.tolist()
        for name, observed in self.observed.items():
            values[name] = observed.tolist()
        return values

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the run to one file, a NumPy archive without pickle.

        The run is first written to a temporary file, which then replaces ``path``.
        Therefore a crash or a full disk leaves an existing file unchanged.
        """
        # Imported here because few runs are saved.
        from icl_theory.files import replacing

        # The archive holds arrays only, so the facts are one array of text.
        facts = json.dumps(self._meta() | {"holds": self.holds()})
        arrays: dict[str, Any] = {
            "t": self.t,
            "loss": self.loss,
            "states": self.states,
            "meta": np.array(facts),
        }
        for name, values in self.observed.items():
            arrays[f"observed_{name}"] = values
        if self.memory is not None and self.memory.size:
            arrays["memory"] = self.memory
        if self.carry is not None:
            arrays["carry"] = self.carry
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.savez(file, **arrays)

    def holds(self) -> dict[str, Any]:
        """Return facts about the arrays, which the loader of a saved file checks.

        These are the shapes of the observations, the least loss, and whether this loss
        is below the floor.
        """
        least_loss = float(self.loss.min())
        shapes = {
            name: list(values.shape) for name, values in sorted(self.observed.items())
        }
        return {
            "observed": shapes,
            "least": least_loss,
            "below": least_loss < self.floor,
        }

    def _meta(self) -> dict[str, Any]:
        """Return the FACTS as values that JSON can hold."""
        # JSON cannot hold the phases, labels, info, stop and family as they are, so
        # these are replaced below.
        meta = {name: getattr(self, name) for name in FACTS}
        if self.phases is not None:
            meta["phases"] = {
                name: None if interval is None else list(interval)
                for name, interval in self.phases.items()
            }
        # The labels may include parameters that the run does not state.
        labels = {}
        for name, label in self.labels.items():
            if name in self.info:
                labels[name] = list(label)
        meta["labels"] = labels
        meta["info"] = {name: _plain(value) for name, value in self.info.items()}
        meta["stop"] = self.stop.name
        meta["family"] = None if self.family is None else self.family.plain()
        return meta


def named(observed: Mapping[str, Any]) -> dict[str, Array]:
    """Return observations as arrays.

    Names that runs use for other entries are refused.
    """
    for name in observed:
        if name in TAKEN:
            raise argument_error(
                "observation",
                name,
                "another name: runs use this one for an entry of their own",
            )
    return {name: np.asarray(values) for name, values in observed.items()}


def _attention(observed: dict[str, Array]) -> Array:
    """Return the observed attention, or raise an error if it was not observed."""
    if "attention" not in observed:
        raise argument_error(
            "attention",
            sorted(observed),
            "among the observations: the observe() of this risk does not record it",
        )
    return observed["attention"]


def saved_steps(last: int, size: int) -> NDArray[np.int64]:
    """Log-spaced steps from 0 to ``last``, to save states of ``size`` numbers.

    There are STEPS_PER_DECADE steps in each factor of ten. If states are large, there
    are fewer, but at least FEWEST_STEPS_PER_DECADE.

    Raises
    ------
    ValueError
        The states at these steps would not fit into the free memory.
    """
    # The number of factors of ten. A run of one step would have 0, so take at least 1,
    # to avoid a division by zero.
    decades = math.log10(max(last, 10))
    # With this many steps in a factor of ten, all states together have SAVED_NUMBERS
    # numbers.
    most_per_decade = SAVED_NUMBERS / (size * decades)
    per_decade = min(STEPS_PER_DECADE, max(FEWEST_STEPS_PER_DECADE, most_per_decade))
    exponents = np.arange(0.0, decades, 1.0 / per_decade)
    powers = np.power(10.0, exponents).astype(np.int64)
    # Several small powers are rounded down to the same integer, so a set is used, which
    # keeps each integer once. In a run of fewer than ten steps, powers beyond the last
    # step are replaced by it.
    distinct = {0, last, *np.minimum(powers, last).tolist()}
    steps = np.array(sorted(distinct), dtype=np.int64)
    # There are a few hundred steps at most, so states of one number always fit. A
    # number takes 8 bytes.
    if size > 1:
        check_fits("steps", last, 8.0 * size * len(steps))
    return steps


def _plain(value: Any) -> Any:
    """Return a value that strict JSON can hold.

    Arrays and tuples become lists. Infinity, NaN and other objects become text.
    """
    if isinstance(value, np.ndarray | tuple):
        return np.asarray(value).tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float | bool | list):
        return value
    return repr(value)


def _short(value: Any) -> str:
    """Return the text of a parameter in a summary.

    Of an array with more than SHOWN_NUMBERS numbers, only the shape is shown.
    """
    # Families keep their arrays as tuples.
    if isinstance(value, tuple) and np.size(np.asarray(value)) > SHOWN_NUMBERS:
        shape = " x ".join(map(str, np.shape(value)))
        return f"({shape} numbers)"
    return f"{value:g}" if isinstance(value, float) else str(_plain(value))
