"""Families of problems: frozen dataclasses whose fields are parameters.

A family declares each parameter once, by `parameter`, and has one duty, `Family.risk`.
Everything else that the package does with a family (commands, files, sweeps, tables,
figures, the audit) follows from these declarations and from the optional slots of
`Family`. The package knows no family by name.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from icl_theory._calls import written_problem
from icl_theory._validate import argument_error, iterable, mapping
from icl_theory.engine.descent import MAX_STEPS, METHODS, Callback, descend
from icl_theory.engine.interrupts import returns_runs
from icl_theory.engine.progress import Progress
from icl_theory.engine.pullback import core_risk, replace_core
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules import Rule, refuse_reduced, rule_of
from icl_theory.engine.scope import DESCENT_OR_FLOW, Scope
from icl_theory.engine.trajectory import Label, Trajectory
from icl_theory.families.parameters import (
    LOSS,
    RESERVED,
    LazySlot,
    Number,
    Parameter,
    Whole,
    Word,
    learning_rate,
    nearest,
    parameter,
)
from icl_theory.families.plug_ins import Contributed
from icl_theory.families.rule_parameters import (
    DEFAULTS,
    RULE_PARAMETERS,
    RuleParameters,
    rule_from,
)
from icl_theory.sweeps.grid import MESSAGE, NOT_REACHED, REACHED, STATUS, Column

TARGET = Number(optional=True, minimum=1e-300)
# Parameters of every family, in the order of commands and tables.
SHARED = (
    "eta",
    "epsilon",
    "above",
    *RULE_PARAMETERS,
    "method",
    "max_steps",
)


@dataclass(frozen=True, eq=False)
class Family(RuleParameters):
    r"""A family of problems; inherit from it, declare parameters and define ``risk``.

    `risk` is the only slot that a family has to fill; all others have defaults. The
    list below says which part of the package asks for which slot, so that a family that
    has no use for that part can ignore it.

    ============================ ======================================================
    slots                        used for
    ============================ ======================================================
    `risk`                       training, and all else
    ``name``, ``title``          the command line, lists and reports
    ``goal``, ``loss_unit``      the default target; labels and tables
    `validate`                   parameters that are sound one by one but not together
    `stable_rate`                ``eta="auto"``
    ``phase_names``, `describe`  phases, regime and notes of a run
    ``columns``, `measure`       columns of sweeps
    `sampled`                    the trainer on samples, if the risk has none of its own
    `update`                     rules that no parameter can name, such as training in
                                 stages
    `levels`                     lines of reference in the figure of a run
    `expected_steps`             estimates of the work before a sweep (``--dry-run``)
    `limits`                     exponents on both sides of a transition
    `batched`                    sweeps that compute many points in one array
    ``theory``                   the training of which the three slots `expected_steps`,
                                 `limits` and ``theory_columns`` speak
    ``theory_columns``           columns of sweeps that a theory predicts
    ``claims``, ``figures``      the audit, pages of papers and ``icl-theory figures``
    ``explorer``, ``commands``   the explorer, and commands of the family
    ============================ ======================================================

    Most families need none of these five: `update` and `levels` are there for induction
    heads, `limits` for regression, `batched` for regression and linear attention, and
    `expected_steps` for these two and regression on Gaussian inputs.

    Every family has these parameters besides its own.

    Parameters
    ----------
    eta : float
        Learning rate; ``"auto"`` takes `stable_rate` if the family has one.
    epsilon : float, optional
        Target loss, in the unit of the loss.
    above : float, optional
        Target excess of the loss over its floor, instead of ``epsilon``. The default
        target is the family's ``goal``.
    rule, momentum, beta1, beta2, weight_decay, clip, schedule, warmup, decay_steps,
    decay_factor, milestones
        The update rule, its settings, and the schedule of the learning rate; see
        `icl_theory.families.RuleParameters`.
    method : {"auto", "closed", "exact", "fast", "flow"}
        How steps are computed, see `icl_theory.descend`.
    max_steps : int
        Largest number of steps.

    Attributes
    ----------
    name, title : str
        The name on the command line, and a title in words.
    goal : tuple of str and float, optional
        ``("epsilon", value)`` or ``("above", value)``: the default target. With None
        there is no target, and runs take ``max_steps`` steps.
    loss_unit : str
        Unit of the loss.
    phase_names : tuple of str
        Names of the phases that `describe` may set.
    columns : tuple of Column
        Columns that `measure` gives to sweeps, in addition to those of every family.
    claims : Claims, optional
        Papers, rows of the audit, open questions, checks of runs and comparison with
        samples. If the family gives no claims, plug-ins may give them (`PlugIn`); the
        same holds for ``explorer`` and ``theory_columns``.
    figures : dict of path or callable
        Figures for ``icl-theory figures`` by name: scripts, or functions that return a
        matplotlib figure and have a default for each of their parameters.
    explorer : Panel, optional
        The panel of the family in the explorer.
    theory_columns : TheoryColumns, optional
        Predictions of a theory at each point of a sweep.
    theory : Scope
        The training of which expected steps, limits of exponents and predicted columns
        speak: gradient descent or its flow unless the family says otherwise. They are
        left out for other rules.
    commands : dict of type
        Other problems of the family, classes like this one, by the words that run them
        on the command line.

    References
    ----------
    docs/guide/your-own-family.md.
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    goal: ClassVar[tuple[str, float] | None] = ("above", 1e-3)
    loss_unit: ClassVar[str] = "squared label units"
    phase_names: ClassVar[tuple[str, ...]] = ()
    columns: ClassVar[tuple[Column, ...]] = ()
    claims: ClassVar[Any] = Contributed("claims")
    figures: ClassVar[Mapping[str, str | Path | Callable[..., Any]] | LazySlot] = {}
    explorer: ClassVar[Any] = Contributed("explorer")
    theory_columns: ClassVar[Any] = Contributed("theory_columns")
    commands: ClassVar[Mapping[str, type[Family]] | LazySlot] = {}
    theory: ClassVar[Scope] = DESCENT_OR_FLOW

    eta: float | str = learning_rate()
    epsilon: float | None = parameter(
        None,
        kind=TARGET,
        symbol="ε",
        tex=r"\varepsilon",
        unit=LOSS,
        meaning="target loss",
    )
    above: float | None = parameter(
        None, kind=TARGET, unit=LOSS, meaning="target excess of the loss over its floor"
    )
    method: str = parameter(
        "auto", kind=Word(words=METHODS), meaning="how steps are computed", axis=False
    )
    max_steps: int = parameter(
        MAX_STEPS, kind=Whole(), meaning="largest number of steps", axis=False
    )

    def __post_init__(self) -> None:
        declarations = self.parameters()
        if self.epsilon is None and self.above is None and self.goal is not None:
            object.__setattr__(self, *self.goal)
        for name, declared in declarations.items():
            value = getattr(self, name)
            # The settings of the rule are many, and most problems have none of them.
            # Leaving them out here makes problems faster to make.
            if value is None and declared.default is None:
                continue
            object.__setattr__(self, name, declared.check(value))
        if self.epsilon is not None and self.above is not None:
            raise argument_error(
                "above",
                self.above,
                f"left out where epsilon = {self.epsilon!r} is given: both are targets",
            )
        # These refuse settings that do not fit together.
        self.update()
        self.validate()
        self.rate()
        if not self.trained_by.reducible:
            refuse_reduced(self.risk(), self.trained_by)

    @classmethod
    @cache
    def parameters(cls) -> Mapping[str, Parameter]:
        """Return the parameters by name.

        Those without a default come first, then the family's own, then those of every
        family.

        Raises
        ------
        ValueError
            A field was not declared by `parameter`, or the class was not made a
            dataclass, or a parameter has a name that is taken.
        """
        if any(isinstance(value, dataclasses.Field) for value in vars(cls).values()):
            raise argument_error(
                cls.__name__, cls, "decorated by @dataclass(frozen=True, eq=False)"
            )
        declarations = cls._declarations()
        if cls.goal is not None and cls.goal[0] not in ("epsilon", "above"):
            raise argument_error(
                f"{cls.__name__}.goal",
                cls.goal,
                '("epsilon", value) or ("above", value), or None',
            )
        own = [name for name in inspect.get_annotations(cls) if name in declarations]
        shared = [name for name in SHARED if name not in own]
        inherited = [name for name in declarations if name not in {*own, *shared}]
        order = [*own, *inherited, *shared]
        order.sort(key=lambda name: not declarations[name].required)
        return {name: declarations[name] for name in order}

    @classmethod
    def _declarations(cls) -> dict[str, Parameter]:
        """Return the declaration of each field, or refuse a field."""
        taken = cls._taken_names()
        declarations = {}
        for field in dataclasses.fields(cls):
            declared = field.metadata.get("parameter")
            if declared is None:
                raise argument_error(
                    f"{cls.__name__}.{field.name}",
                    field.default,
                    "declared by icl_theory.parameter(...)",
                )
            if field.name in taken:
                raise argument_error(
                    f"{cls.__name__}.{field.name}",
                    field.name,
                    "called something else: the name is taken",
                )
            declarations[field.name] = declared._replace(name=field.name)
        return declarations

    @classmethod
    def _taken_names(cls) -> set[str]:
        """Return names that no parameter may have: of options, slots and columns."""
        parameters = {field.name for field in dataclasses.fields(Family)}
        columns = {column.name for column in cls.own_columns()}
        # The parameter "method" and the column of this name mean the same.
        return (({*RESERVED, *vars(Family)} - parameters) | columns) - {"method"}

    @classmethod
    def refuse_unknown(cls, names: Any) -> None:
        """Refuse names that are no parameters, suggesting the nearest."""
        listed = [*iterable("names", names, "names of parameters")]
        if not all(isinstance(name, str) for name in listed):
            raise argument_error("names", names, "names of parameters")
        declared = cls.parameters()
        for name in listed:
            if name not in declared:
                suggestion = nearest(name, declared)
                raise ValueError(
                    f"{name}: the family {cls.name} has no such parameter{suggestion}; "
                    f"it has {', '.join(declared)}"
                )

    @classmethod
    def labels(cls) -> dict[str, Label]:
        """Return the labels of the parameters in tables, plots and reports."""
        return dict(cls._labels())

    @classmethod
    @cache
    def _labels(cls) -> Mapping[str, Label]:
        declared = cls.parameters()
        return {name: declared[name].label(cls.loss_unit) for name in declared}

    # ---- the one duty

    def risk(self) -> Risk:
        """Return the risk that is trained."""
        raise NotImplementedError(
            f"the family {self.name or type(self).__name__} has no method risk"
        )

    # ---- optional slots

    def validate(self) -> None:
        """Refuse parameters that contradict each other; each is checked before.

        The package calls this method itself, and calls `describe` and `measure` with
        runs of this problem. None of the three checks its arguments; `described` and
        `measured` do.
        """

    def stable_rate(self) -> float:
        """Return the learning rate that ``eta="auto"`` stands for."""
        raise argument_error(
            "eta",
            self.eta,
            f"a number: the family {self.name} has no rule for its learning rate",
        )

    def update(self) -> str | Rule:
        """Return the rule that trains; by default the parameters describe it.

        It is asked for when a problem is made, at each run, and again when a run is
        loaded.
        """
        return self._rule

    @cached_property
    def _rule(self) -> Rule:
        """The rule that the parameters describe, made once."""
        return rule_from({name: getattr(self, name) for name in RULE_PARAMETERS})

    @property
    def trained_by(self) -> Rule:
        """The update rule with its settings."""
        return rule_of(self.update())

    def sampled(self, batch: int, seed: int = 0) -> Risk:
        """Return a trainer on sampled data whose mean is the risk.

        By default it is the trainer of the innermost risk, in the same coordinates.
        """
        risk = self.risk()
        core = core_risk(risk)
        if not hasattr(core, "sampled"):
            raise argument_error("family", self.name, "one that can be sampled")
        return replace_core(risk, core.sampled(batch, seed))

    def describe(self, run: Trajectory) -> None:
        """Add phases, regime and notes to a run of this problem."""

    def measure(self, run: Trajectory) -> dict[str, Any]:
        """Return the family's own ``columns`` of a run.

        A column that is left out has no value: NaN, -1 or the empty text.
        """
        return {}

    def levels(self) -> Mapping[str, float]:
        """Return losses that figures of a run draw as lines, by name.

        They may be the losses of known predictors, for example.
        """
        return {}

    def expected_steps(self) -> float | None:
        """Return a rough number of steps to the target, for estimates of the work.

        It is asked for only within the ``theory``.
        """
        return None

    @classmethod
    def limits(cls, arguments: Mapping[str, Any]) -> Mapping[str, tuple[float, float]]:
        """Return the limits of d ln T/d ln x at small and at large x, by parameter x.

        They are asked for if all points of a sweep are within the ``theory``.

        Parameters
        ----------
        arguments : mapping
            The parameters that are words and have the same value at all points.
        """
        mapping("arguments", arguments, "parameters")
        return {}

    @classmethod
    def batched(
        cls, points: Mapping[str, NDArray[Any]], common: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """Compute points in whole arrays, each as one simulation would.

        Parameters
        ----------
        points : mapping of str to ndarray, each (P,)
            The parameters that are numbers or words.
        common : mapping
            All other parameters.

        Returns
        -------
        mapping of str to array_like, each (P,) or one value for all, or None
            Columns of `every_column` by name; columns without a value may be left out.
            ``stop`` names the `icl_theory.engine.Stop` of points whose ``steps`` are
            -1; it is ``"STEPS"`` by default. Points whose ``loss`` is NaN are simulated
            one by one. If None is returned, all points are.

        Notes
        -----
        To choose the size of its chunks, a sweep first asks which points can be
        batched: it passes 0 as ``max_steps``, and reads nothing but ``method`` and
        whether ``loss`` is NaN.

        A sweep passes parameters that it has checked; ``check_points`` refuses any
        others.
        """
        mapping("points", points, "parameters")
        mapping("common", common, "parameters")
        return None

    # ---- methods of every family

    def rate(self) -> float:
        """Return the learning rate as a number."""
        return self.stable_rate() if isinstance(self.eta, str) else self.eta

    def changed(self, **parameters: Any) -> Self:
        """Return the same problem with other parameters.

        A new target replaces the old one, be it ``epsilon`` or ``above``.
        """
        if parameters.keys() & {"epsilon", "above"}:
            parameters = {"epsilon": None, "above": None} | parameters
        self.refuse_unknown(parameters)
        return dataclasses.replace(self, **parameters)

    def arguments(self) -> dict[str, Any]:
        """Return the parameters that are not None, by name."""
        values = {name: getattr(self, name) for name in self.parameters()}
        return {name: value for name, value in values.items() if value is not None}

    def plain(self) -> dict[str, Any] | None:
        """Return the family's name and the parameters as values that JSON can hold.

        The result is None if a parameter is an object. Infinity becomes a text.
        """
        parameters = {}
        for name, value in self.arguments().items():
            if not _is_plain(value):
                return None
            is_infinite = value in (math.inf, -math.inf)
            parameters[name] = str(value) if is_infinite else value
        return {"name": self.name, "parameters": parameters}

    @returns_runs
    def simulate(self, *, callback: Callback | None = None) -> Trajectory:
        """Train until the target is reached or cannot be.

        Parameters
        ----------
        callback : callable, optional
            Called with (step, loss) now and then, for progress displays.

        Returns
        -------
        Trajectory
            The run with the family's phases, regime and notes; ``run.family`` is this
            problem.
        """
        with Progress("before the first step", quiet=callback is not None):
            risk = self.risk()
            rate = self.rate()
        run = descend(
            risk,
            rate,
            epsilon=self.epsilon,
            above=self.above,
            steps=self.max_steps,
            rule=self.update(),
            method=self.method,
            give_up=True,
            callback=callback,
        )
        return self._described(run)

    def _own(self, run: Any) -> Trajectory:
        """Return a run of this problem, or refuse another one."""
        if not isinstance(run, Trajectory) or not self._fits(run):
            raise argument_error("run", run, f"a run of this problem: {self!r}")
        return run

    def _fits(self, run: Trajectory) -> bool:
        """Whether the parameters and observations of a run are those of this problem.

        The run may be of another problem of the family.
        """
        if run.family is self:
            return True
        if run.family is not None and type(run.family) is not type(self):
            return False
        risk = self.risk()
        if np.shape(run.params) != np.shape(risk.initial):
            return False
        observed = risk.observe(np.asarray(risk.initial))
        return run.observed.keys() == observed.keys()

    def described(self, run: Trajectory) -> Trajectory:
        """Return a run with the family's phases, regime, notes and command."""
        return self._described(self._own(run))

    def _described(self, run: Trajectory) -> Trajectory:
        self.describe(self._named(run))
        run.command = written_problem(self)
        return run

    def named(self, run: Trajectory) -> Trajectory:
        """Return a run with this problem as its family, and with its parameters."""
        return self._named(self._own(run))

    def _named(self, run: Trajectory) -> Trajectory:
        run.family = self
        hidden = {"method", "max_steps"}
        for name, default in DEFAULTS.items():
            if getattr(self, name) == default:
                hidden.add(name)
        run.info = {}
        for name in self.parameters():
            if name not in hidden:
                run.info[name] = getattr(self, name)
        # The run has the number for "auto".
        run.info["eta"] = run.eta
        run.labels = self.labels()
        return run

    @classmethod
    @cache
    def every_column(cls) -> tuple[Column, ...]:
        """Columns measured at every sweep point, in addition to status and message."""
        theory = cls.theory_columns
        return cls.own_columns() + (() if theory is None else theory.columns)

    @classmethod
    @cache
    def own_columns(cls) -> tuple[Column, ...]:
        """Return the columns of `every_column` that need no theory from a plug-in."""
        unit = cls.loss_unit
        phases = [_phase_column(name) for name in cls.phase_names]
        return (
            Column("eta_used", "f8", "", "learning rate η", "η"),
            Column(
                "steps",
                "i8",
                "steps",
                "first step at the target; -1 where it was not reached",
                "T_ε",
                r"T_\varepsilon",
                "steps",
            ),
            *phases,
            Column("last", "i8", "steps", "step at which the run ended"),
            Column(
                "method", "U8", "", "how a simulation computes the steps", role="word"
            ),
            Column(
                "error",
                "f8",
                "steps",
                "estimated error of steps; 0 where each was taken, NaN where unknown",
            ),
            Column("loss", "f8", unit, "loss at the end"),
            Column("floor", "f8", unit, "irreducible loss"),
            *cls.columns,
        )

    def measured(self, run: Trajectory) -> dict[str, Any]:
        """Return every column of a run, with its status and message."""
        run = self._own(run)
        values: dict[str, Any] = {
            "eta_used": run.eta,
            "steps": -1 if run.steps is None else run.steps,
        }
        intervals = {} if run.phases is None else run.phases.present()
        for name in self.phase_names:
            first, last = intervals.get(name, (0, 0))
            values[f"T_{name}"] = last - first
        values["last"] = int(run.t[-1])
        values["method"] = run.method
        values["error"] = _error_of_steps(run)
        values["loss"] = float(run.loss[-1])
        values["floor"] = run.floor
        values[STATUS.name] = REACHED if run.converged else NOT_REACHED
        values[MESSAGE.name] = "" if run.converged else run.stop_reason
        values |= self.measure(run)
        if self.theory_columns is not None:
            values |= self.theory_columns.measure(run)
        return values


def _phase_column(name: str) -> Column:
    return Column(
        f"T_{name}",
        "i8",
        "steps",
        f"length of Phase {name}, 0 where the run ends before",
        f"T_{name}",
        rf"T_{{\mathrm{{{name}}}}}",
        "phase",
        (("phase", name),),
    )


def _error_of_steps(run: Trajectory) -> float:
    if run.error is not None:
        return run.error
    return 0.0 if run.method == "exact" else math.nan


def check_points(
    family: type[Family], points: Mapping[str, NDArray[Any]], common: Mapping[str, Any]
) -> None:
    """Refuse arguments of `Family.batched` that no sweep would give.

    Parameters
    ----------
    family : type
        The family.
    points : mapping of str to ndarray, each (P,)
        Parameters that are numbers or words.
    common : mapping
        All other parameters. Those of the update rule may be left out; they then have
        their defaults.

    Raises
    ------
    ValueError
        A parameter is missing, unknown, not an array of P values, or a value is out of
        range.
    """
    mapping("points", points, "parameters")
    mapping("common", common, "parameters")
    family.refuse_unknown([*points, *common])
    _check_arrays(family, points)
    for name, value in common.items():
        # With max_steps = 0 a sweep asks which points can be batched.
        if name == "max_steps" and value == 0:
            continue
        family.parameters()[name].check(value)
    for name, declared in family.parameters().items():
        if name in points or name in common or name in RULE_PARAMETERS:
            continue
        if declared.default is not None:
            raise argument_error(
                "points",
                [*points],
                f"all parameters that are not in common; {name} is in neither",
            )


def _check_arrays(family: type[Family], points: Mapping[str, NDArray[Any]]) -> None:
    lengths = set()
    for name, values in points.items():
        if not isinstance(values, np.ndarray) or values.ndim != 1 or not values.size:
            raise argument_error(
                f"points[{name!r}]", values, "an array of one value for each point"
            )
        declared = family.parameters()[name]
        # Numbers are checked by their extremes. Words are few, so each is checked once.
        is_numeric = declared.kind.numeric
        declared.check_all(values if is_numeric else np.unique(values).tolist())
        lengths.add(values.size)
    if len(lengths) != 1:
        raise argument_error(
            "points", sorted(lengths), "arrays of the same length, at least one"
        )


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, int | float | str)
