"""Families of problems: frozen dataclasses whose fields are parameters.

A family is a class, and an object of it is a problem: a risk to train, together with
all parameters of the training. The family declares each parameter once, by `parameter`,
and must define one method, `Family.risk`. A slot is an attribute or method of `Family`
that a family may override. Everything that the package does with a family (commands,
files, sweeps, tables, figures, the audit) follows from its parameters and slots, so
that no other code of the package needs to name a family.
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
from icl_theory._names import nearest
from icl_theory._validate import argument_error, iterable, mapping
from icl_theory.engine.descent import MAX_STEPS, METHODS, Callback, descend
from icl_theory.engine.interrupts import returns_runs
from icl_theory.engine.progress import Progress
from icl_theory.engine.pullback import core_risk
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules import (
    Rule,
    is_plain_descent,
    refuse_reduced,
    rule_of,
)
from icl_theory.engine.sampling import Trainer, trainer_of
from icl_theory.engine.scope import DESCENT_OR_FLOW, Scope
from icl_theory.engine.trajectory import Label, Trajectory
from icl_theory.families.fixed_set import (
    SET_PARAMETERS,
    WITHOUT_SET,
    FixedSetParameters,
    measured_on_set,
    note_on_set,
    set_columns,
)
from icl_theory.families.parameters import (
    HALF,
    LOSS,
    MSE,
    RESERVED,
    LazySlot,
    LossForm,
    Number,
    Parameter,
    Whole,
    Word,
    learning_rate,
    parameter,
)
from icl_theory.families.plug_ins import Contributed
from icl_theory.families.rule_parameters import (
    DEFAULTS,
    RULE_PARAMETERS,
    RuleParameters,
    rule_from,
)
from icl_theory.sweeps.grid import MESSAGE, NOT_REACHED, REACHED, STATUS
from icl_theory.sweeps.grid import Column as Column

# The values that a target loss may have. Numbers below 2.2e-308 have fewer digits in
# float64; the minimum is far above these numbers.
TARGET = Number(optional=True, minimum=1e-300)
# Parameters that every family has, in the order in which commands and tables show them.
SHARED = (
    "eta",
    "epsilon",
    "above",
    *RULE_PARAMETERS,
    *SET_PARAMETERS,
    "method",
    "max_steps",
)


@dataclass(frozen=True, eq=False)
class Family(RuleParameters, FixedSetParameters):
    r"""A family of problems; inherit from it, declare parameters and define ``risk``.

    A slot is an attribute or method that a family may override. `risk` is the only slot
    that it has to fill; all others have defaults. The table below shows the use of each
    slot. A family that does not need a part of the package can ignore the slots of this
    part.

    ============================ ======================================================
    slots                        used for
    ============================ ======================================================
    `risk`                       training, and all else
    ``name``, ``title``          the command line, lists and reports
    ``goal``, ``loss_unit``      the default target; labels and tables
    `validate`                   parameters that are allowed alone but not together
    `stable_rate`                ``eta="auto"``
    ``phase_names``, `describe`  phases, regime and notes of a run
    ``columns``, `measure`       columns of sweeps
    `sampled`                    the trainer on samples, if the risk does not have one
    `unreduced`, `set_trainer`   training on a fixed set of prompts, if `risk` and
                                 `sampled` have different parameters
    `update`                     rules that no parameter can name, such as training in
                                 stages
    `levels`                     reference lines in the figure of a run
    `expected_steps`             estimates of the work before a sweep (``--dry-run``)
    `limits`                     exponents on both sides of a transition
    `batched`                    sweeps that compute many points in one array
    ``theory``                   the training to which the slots `expected_steps`,
                                 `limits` and ``theory_columns`` apply
    ``theory_columns``           columns of sweeps that a theory predicts
    ``claims``, ``figures``      the audit, pages of papers and ``icl-theory figures``
    ``explorer``, ``commands``   the explorer, and commands of the family
    ============================ ======================================================

    Most families need none of these five slots: `update`, `levels`, `limits`, `batched`
    and `expected_steps`. Induction heads use `update` and `levels`, their minimal model
    uses `levels`, and single-location regression uses `update`. Regression uses
    `limits`, `batched` and `expected_steps`, linear attention uses `batched` and
    `expected_steps`, and regression on Gaussian inputs uses `expected_steps`.

    Every family has the following parameters in addition to its own.

    Parameters
    ----------
    eta : float
        Learning rate; ``"auto"`` takes `stable_rate` if the family has one.
    epsilon : float, optional
        Target loss, in the unit of the loss.
    above : float, optional
        Target excess of the loss over its floor, instead of ``epsilon``. The default
        target is the family's ``goal``.
    loss : {"half", "mse"}, optional
        The loss that is trained: half the mean squared error, or all of it. Only
        families with a squared loss have this parameter (`loss_form`). The learning
        rate, targets and losses are in the units of the chosen loss.
    rule, momentum, beta1, beta2, weight_decay, clip, schedule, warmup, decay_steps,
    decay_factor, milestones
        The update rule, its settings, and the schedule of the learning rate; see
        `icl_theory.families.RuleParameters`.
    dataset, dataset_seed, dataset_batch : int, optional
        Training on a fixed set of prompts instead of the population; see
        `icl_theory.families.FixedSetParameters`.
    method : {"auto", "closed", "exact", "fast", "flow"}
        How the steps are computed; see `icl_theory.descend`.
    max_steps : int
        Largest number of steps.

    Attributes
    ----------
    name, title : str
        The name on the command line, and a title in words.
    goal : tuple of str and float, optional
        The default target, ``("epsilon", value)`` or ``("above", value)``. If it is
        None, there is no target, and runs take ``max_steps`` steps.
    loss_unit : str
        Unit of the loss.
    phase_names : tuple of str
        Names of the phases that `describe` may set.
    columns : tuple of Column
        Columns that `measure` adds to the columns that every family has in sweeps.
    claims : Claims, optional
        Papers, rows of the audit, open questions, checks of runs and the comparison
        with samples. If the family does not define this slot, plug-ins may define it
        (`PlugIn`). The same holds for ``explorer`` and ``theory_columns``.
    figures : dict of path or callable
        Figures for ``icl-theory figures`` by name: scripts, or functions that return a
        matplotlib figure and have a default for each of their parameters.
    explorer : Panel, optional
        The panel of the family in the explorer.
    theory_columns : TheoryColumns, optional
        Predictions of a theory at each point of a sweep.
    theory : Scope
        The training to which `expected_steps`, `limits` and ``theory_columns`` apply;
        by default gradient descent and its flow. For any other training these three are
        left out.
    commands : dict of type
        Related families, which the command line runs as ``icl-theory NAME WORD``. The
        keys are the words.

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
        # Fields of a frozen dataclass can be set only by object.__setattr__.
        if self.epsilon is None and self.above is None and self.goal is not None:
            target, default = self.goal
            object.__setattr__(self, target, default)
        for name, declared in declarations.items():
            value = getattr(self, name)
            # A parameter whose default is None may be None. Most problems set none of
            # the many settings of rules, and are created faster if the checks of these
            # settings are skipped.
            if value is None and declared.default is None:
                continue
            object.__setattr__(self, name, declared.check(value))
        if self.epsilon is not None and self.above is not None:
            raise argument_error(
                "above",
                self.above,
                f"left out if epsilon = {self.epsilon!r} is given: both are targets",
            )
        self._check_together()

    def _check_together(self) -> None:
        """Refuse parameters that are allowed alone but contradict each other."""
        # Each of these calls refuses such parameters; their results are not needed.
        self._check_set()
        self.update()
        self.validate()
        if self.on_fixed_set:
            # This refuses a population and a trainer with different parameters. Any
            # batch and seed will do, because the parameters do not depend on them.
            self._population_and_trainer(batch=1, seed=0)
        self.rate()
        if self._has_mse:
            self._check_half()
        # A rule that is not reducible, such as Adam, scales each parameter separately.
        # So it must not train a parameter that stands for several others. The metric of
        # the risk shows whether there are such parameters.
        if not self.trained_by.reducible:
            refuse_reduced(self.trained_risk(), self.trained_by)

    @classmethod
    @cache
    def parameters(cls) -> Mapping[str, Parameter]:
        """Return the parameters by name.

        Parameters without a default come before parameters with a default. In both
        groups, parameters that the class declares itself come first, then inherited
        ones, and last the parameters that every family has.

        Raises
        ------
        ValueError
            A field was not declared by `parameter`, the class was not made a dataclass,
            or the name of a parameter is used for something else.
        """
        # @dataclass replaces each Field in the class by its default or removes it. A
        # Field that is still in the class shows that the decorator was forgotten.
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
        annotations = inspect.get_annotations(cls)  # of this class only
        own_names = [name for name in annotations if name in declarations]
        shared = [name for name in SHARED if name not in own_names]
        inherited = [name for name in declarations if name not in {*own_names, *shared}]
        names = [*own_names, *inherited, *shared]
        required = [name for name in names if declarations[name].required]
        optional = [name for name in names if not declarations[name].required]
        return {name: declarations[name] for name in [*required, *optional]}

    @classmethod
    def _declarations(cls) -> dict[str, Parameter]:
        """Return the declaration of each field, or refuse a field without one."""
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
            # A column is called "loss". Only the parameter that chooses the loss may
            # have this name, too.
            is_choice_of_loss = isinstance(declared.kind, LossForm)
            if field.name in taken and not is_choice_of_loss:
                raise argument_error(
                    f"{cls.__name__}.{field.name}",
                    field.name,
                    "called something else: the name is taken",
                )
            declarations[field.name] = declared._replace(name=field.name)
        return declarations

    @classmethod
    def _taken_names(cls) -> set[str]:
        """Return the names that no parameter may have.

        They are the names of options, of slots and other attributes, and of columns.
        """
        # A family may declare a parameter of `Family` again, so its name is not taken.
        parameters = {field.name for field in dataclasses.fields(Family)}
        attributes = set(vars(Family)) - parameters
        reserved = set(RESERVED) - parameters
        columns = {column.name for column in cls.own_columns()}
        # The name "method" is allowed, because the parameter and the column of this
        # name mean the same.
        return (reserved | attributes | columns) - {"method"}

    @classmethod
    def refuse_unknown(cls, names: Any) -> None:
        """Refuse names that are not parameters, and suggest the most similar one."""
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
        """Return the labels in a mapping that all callers share and must not change."""
        declared = cls.parameters()
        return {name: declared[name].label(cls.loss_unit) for name in declared}

    # ---- the one duty

    def risk(self) -> Risk:
        """Return the population risk, which is trained unless a dataset is given."""
        raise NotImplementedError(
            f"the family {self.name or type(self).__name__} has no method risk"
        )

    # ---- optional slots

    def validate(self) -> None:
        """Refuse parameters that contradict each other.

        The package calls this method when it creates a problem, after it has checked
        each parameter alone.
        """

    def stable_rate(self) -> float:
        """Return the learning rate for which ``eta="auto"`` stands."""
        raise argument_error(
            "eta",
            self.eta,
            f"a number: the family {self.name} has no rule for its learning rate",
        )

    def update(self) -> str | Rule:
        """Return the update rule, or its name.

        By default it is the rule that the parameters describe. The package calls this
        method when a problem is created, for each run, and when a run is loaded.
        """
        return self._rule

    @cached_property
    def _rule(self) -> Rule:
        """The rule that the parameters describe, created once."""
        return rule_from({name: getattr(self, name) for name in RULE_PARAMETERS})

    @property
    def trained_by(self) -> Rule:
        """The update rule with its settings."""
        return rule_of(self.update())

    def sampled(self, batch: int, seed: int = 0) -> Trainer[Any]:
        """Return a trainer on sampled prompts, whose mean loss is the loss of `risk`.

        It draws ``batch`` prompts in each step; ``seed`` is the seed of the prompts. By
        default it is the trainer of the risk.
        """
        risk = self.risk()
        # `core_risk` removes wrappers, such as other coordinates of the parameters.
        if not hasattr(core_risk(risk), "sampled"):
            raise argument_error("family", self.name, "one that can be sampled")
        return trainer_of(risk, batch, seed)

    def unreduced(self) -> Risk:
        """Return the population risk over all parameters that `sampled` trains.

        A population may have a symmetry that a fixed set of prompts lacks. `risk` may
        make use of the symmetry and train fewer parameters than `sampled`. In this case
        a family defines this method, which returns the risk without that reduction.
        """
        return self.risk()

    def set_trainer(self, batch: int, seed: int = 0) -> Trainer[Any]:
        """Return a trainer whose prompts may form a fixed set; by default `sampled`.

        It trains the same parameters as the risk `unreduced`.
        """
        return self.sampled(batch, seed)

    def describe(self, run: Trajectory) -> None:
        """Add phases, regime and notes to a run of this problem.

        The package calls this method with runs of this problem only, so the method need
        not check its argument. Call `described` with any other run.
        """

    def measure(self, run: Trajectory) -> dict[str, Any]:
        """Return the values of the family's ``columns`` for a run, by name.

        A column that is left out has no value; sweeps then show NaN, -1 or the empty
        text. The package calls this method with runs of this problem only, so the
        method need not check its argument. Call `measured` with any other run.
        """
        return {}

    def levels(self) -> Mapping[str, float]:
        """Return losses that the figure of a run draws as reference lines, by name.

        Examples are the losses of known predictors.
        """
        return {}

    def expected_steps(self) -> float | None:
        """Return a rough number of steps to the target, to estimate a sweep's work.

        The package calls this method only for training to which ``theory`` applies.
        """
        return None

    @classmethod
    def limits(cls, arguments: Mapping[str, Any]) -> Mapping[str, tuple[float, float]]:
        """Return the limits of d ln T/d ln x at small and at large x, for parameters x.

        T is the number of steps to the target. The package calls this method only if
        ``theory`` applies to the training at all points of a sweep.

        Parameters
        ----------
        arguments : mapping
            The parameters whose values are words, each with the one value that it has
            at all points of the sweep.

        Returns
        -------
        mapping of str to tuple of two floats
            For the name of each parameter x, the exponent at small x and at large x.
        """
        mapping("arguments", arguments, "parameters")
        return {}

    @classmethod
    def batched(
        cls, points: Mapping[str, NDArray[Any]], common: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """Compute P points of a sweep together.

        The results must be the same as if each point were simulated by itself.

        Parameters
        ----------
        points : mapping of str to ndarray, each (P,)
            The parameters that are numbers or words, with a value for each point.
        common : mapping
            All other parameters, which have the same value at all points.

        Returns
        -------
        mapping of str to array_like, each (P,) or one value for all, or None
            Columns of `every_column` by name; columns without a value may be left out.
            A point that did not reach its target has ``steps`` -1, and the further
            column ``stop`` then names its `icl_theory.engine.Stop`, ``"STEPS"`` by
            default. Points whose ``loss`` is NaN are simulated one by one. If the
            result is None, all points are simulated one by one.

        Notes
        -----
        To choose the size of its chunks, a sweep first finds out which points can be
        computed together. It calls this method with 0 as ``max_steps``, and looks only
        at ``method`` and at which entries of ``loss`` are NaN.

        A sweep passes only parameters that it has checked. For any other caller,
        ``check_points`` checks them.
        """
        mapping("points", points, "parameters")
        mapping("common", common, "parameters")
        return None

    # ---- methods of every family

    @property
    def on_fixed_set(self) -> bool:
        """Whether training is on a fixed set of prompts."""
        return self.dataset is not None and math.isfinite(self.dataset)

    def _check_set(self) -> None:
        """Refuse settings of a fixed set without ``dataset``, and too large batches."""
        if self.dataset is None:
            for name in SET_PARAMETERS:
                value = getattr(self, name)
                if value is not None:
                    raise argument_error(
                        name, value, "left out unless dataset is given"
                    )
            return
        if self.dataset_batch is not None and self.dataset_batch > self.dataset:
            raise argument_error(
                "dataset_batch",
                self.dataset_batch,
                f"at most dataset = {self.dataset:.0f}",
            )

    @cached_property
    def _set_risk(self) -> Risk:
        """The loss on the fixed set, as a function of the trained parameters."""
        # Imported here because most problems have no fixed set.
        from icl_theory.engine.fixed_set import FixedSetRisk

        assert self.dataset is not None  # or `on_fixed_set` would be False
        M = int(self.dataset)
        seed = 0 if self.dataset_seed is None else self.dataset_seed
        batch = M if self.dataset_batch is None else self.dataset_batch
        population, trainer = self._population_and_trainer(batch, seed)
        return FixedSetRisk(population, trainer, M, self.dataset_batch, seed)

    def _population_and_trainer(
        self, batch: int, seed: int
    ) -> tuple[Risk, Trainer[Any]]:
        """Return the population risk, and the trainer that draws the fixed set.

        A fixed set is refused if the parameters of both do not have the same shape, or
        if the family cannot be sampled. The trainer has the given ``batch`` and
        ``seed``.
        """
        assert self.dataset is not None  # or `on_fixed_set` would be False
        M = int(self.dataset)
        try:
            trainer = self.set_trainer(batch, seed)
        except ValueError as error:
            raise ValueError(f"dataset = {M}: {error}") from None
        population = self.unreduced()
        if np.shape(population.initial) != np.shape(trainer.initial):
            raise argument_error(
                "dataset",
                M,
                f"left out: the family {self.name} has no exact loss over the "
                "parameters that are trained on prompts",
            )
        return population, trainer

    @property
    def own_start(self) -> bool:
        """Whether training starts at other parameters than ``theory`` supposes.

        A family overrides this property if its theory is for one start only.
        """
        return False

    @property
    def outside_theory(self) -> str:
        """The reason why no theory covers this training, or the empty text.

        Reasons that depend on the update rule do not count.
        """
        if self.on_fixed_set:
            return "this is training on a fixed set of prompts"
        if self.own_start:
            return "this is training from a start of its own"
        if self._has_mse:
            return "this loss has no factor 1/2"
        return ""

    @property
    def _has_mse(self) -> bool:
        """Whether the trained loss has no factor 1/2."""
        return getattr(self, "loss", HALF) == MSE

    @property
    def _has_plain_descent(self) -> bool:
        """Whether the rule is plain descent.

        If so, training on twice the loss is the same as training at twice the rate.
        """
        return is_plain_descent(self.update())

    @cached_property
    def half(self) -> Self:
        """The same training with half the mean squared error as its loss.

        With ``loss="mse"`` the targets are halved, and the learning rate of plain
        descent is doubled so that its steps are the same. (By another rule the steps
        may differ, because the rate is kept.) With any other loss the result is the
        problem itself. Slots and theory refer to the problem with the halved loss.
        """
        if not self._has_mse:
            return self
        values: dict[str, Any] = {"loss": HALF}
        for name in ("epsilon", "above"):
            target = getattr(self, name)
            values[name] = None if target is None else target / self.loss_factor
        # "auto" stands for the stable rate of each problem, so it needs no change.
        if self._has_plain_descent and not isinstance(self.eta, str):
            values["eta"] = self.loss_factor * self.eta
        return dataclasses.replace(self, **values)

    def _check_half(self) -> None:
        """Refuse a problem whose parameters are out of range in `half`."""
        try:
            # Reading the property creates the problem, which checks its parameters.
            self.half  # noqa: B018
        except ValueError as error:
            raise ValueError(
                f"{error} (in units of half the squared error, with twice the rate)"
            ) from None

    @property
    def loss_factor(self) -> float:
        """The loss of a run divided by the loss of `risk`: 1, or 2 for "mse"."""
        return 2.0 if self._has_mse else 1.0

    def trained_risk(self) -> Risk:
        """Return the risk that is trained.

        The result is `risk`, or the loss on the fixed set of prompts. With
        ``loss="mse"`` it is twice this loss.
        """
        risk = self._set_risk if self.on_fixed_set else self.risk()
        if not self._has_mse:
            return risk
        # Imported here because few problems need this module.
        from icl_theory.engine.scaled import ScaledRisk

        return ScaledRisk(risk, self.loss_factor)

    def rate(self) -> float:
        """Return the learning rate as a number, from `stable_rate` if it is "auto"."""
        if not isinstance(self.eta, str):
            return self.eta
        # A stable rate for twice the loss is half as large.
        return self.stable_rate() / self.loss_factor

    def changed(self, **parameters: Any) -> Self:
        """Return the same problem with some parameters changed.

        A new target, ``epsilon`` or ``above``, replaces the old target.
        """
        if parameters.keys() & {"epsilon", "above"}:
            no_target = {"epsilon": None, "above": None}
            parameters = no_target | parameters
        self.refuse_unknown(parameters)
        return dataclasses.replace(self, **parameters)

    def arguments(self) -> dict[str, Any]:
        """Return the parameters that are not None, by name."""
        values = {name: getattr(self, name) for name in self.parameters()}
        return {name: value for name, value in values.items() if value is not None}

    def plain(self) -> dict[str, Any] | None:
        """Return the family's name and the parameters as values that JSON can hold.

        Infinity becomes text. The result is None if the value of a parameter is
        anything other than a number, a text or a nested tuple of these.
        """
        parameters = {}
        declared = self.parameters()
        for name, argument in self.arguments().items():
            value = declared[name].kind.plain(argument)
            if not _is_plain_value(value):
                return None
            is_infinite = value in (math.inf, -math.inf)
            parameters[name] = str(value) if is_infinite else value
        return {"name": self.name, "parameters": parameters}

    @returns_runs
    def simulate(self, *, callback: Callback | None = None) -> Trajectory:
        """Train until the target is reached or seems out of reach, or to ``max_steps``.

        Parameters
        ----------
        callback : callable, optional
            A function of a step and the loss at this step. It is called at some steps,
            for progress displays.

        Returns
        -------
        Trajectory
            The run with the family's phases, regime and notes; ``run.family`` is this
            problem.
        """
        # Making the risk may take long, so progress is shown. With a callback, the
        # caller has its own progress display.
        with Progress("before the first step", quiet=callback is not None):
            risk = self.trained_risk()
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
        """Return ``run`` if it is a run of this problem, or refuse it."""
        if not isinstance(run, Trajectory) or not self._fits(run):
            raise argument_error("run", run, f"a run of this problem: {self!r}")
        return run

    def _fits(self, run: Trajectory) -> bool:
        """Whether a run may be a run of this problem.

        A run of another problem of this family fits, too, and so does a run without a
        family, if its trained parameters have the same shape and its observations the
        same names.
        """
        if run.family is self:
            return True
        if run.family is not None and type(run.family) is not type(self):
            return False
        risk = self.trained_risk()
        if np.shape(run.params) != np.shape(risk.initial):
            return False
        observed = risk.observe(np.asarray(risk.initial))
        return run.observed.keys() == observed.keys()

    def described(self, run: Trajectory) -> Trajectory:
        """Add the family's phases, regime and notes to a run, and return the run.

        Raises
        ------
        ValueError
            The run is not a run of this problem.
        """
        return self._described(self._own(run))

    def _described(self, run: Trajectory) -> Trajectory:
        """Add phases, regime and notes to a run of this problem, and return the run.

        Unlike `described`, this does not check that the run is one of this problem.
        """
        self._named(run)
        if self._has_mse:
            self._describe_half(run)
        else:
            self.describe(run)
            if self.dataset is not None and self.on_fixed_set:
                run.notes["fixed set"] = note_on_set(run, self.dataset)
        run.command = written_problem(self)
        return run

    def _describe_half(self, run: Trajectory) -> None:
        """Add the phases, regime and notes of the same run with its losses halved."""
        half_run = self.half._described(self._halved(run))
        run.phases = half_run.phases
        run.regime = half_run.regime
        note = (
            "losses without the factor 1/2: in this package's units, as in the lines"
            " below, they are half as large"
        )
        if self._has_plain_descent:
            note += f", and the rate is η = {half_run.eta:g}"
        run.notes["factor"] = note
        run.notes |= half_run.notes

    def _halved(self, run: Trajectory) -> Trajectory:
        """Return a run on the mean squared error with its losses halved."""
        # Imported here because few problems need this module.
        from icl_theory.families.loss_units import in_half_units

        return in_half_units(run, self.half, self._has_plain_descent)

    def in_theory_units(self, run: Trajectory) -> Trajectory:
        """Return a run of this problem with losses that have the factor 1/2.

        The theory is written for these losses. With ``loss="mse"`` the losses of the
        run are halved; otherwise the result is the run itself.

        Raises
        ------
        ValueError
            The run is not a run of this problem; or ``loss="mse"`` and the rule is not
            plain descent. With most other rules, no learning rate gives the same run on
            half the loss.
        """
        run = self._own(run)
        if not self._has_mse:
            return run
        if not self._has_plain_descent:
            raise argument_error(
                "loss",
                MSE,
                f"'half' for this, unless the rule is gd: with {self.trained_by.name}"
                " twice the loss is not the same as twice the rate",
            )
        return self._halved(run)

    def named(self, run: Trajectory) -> Trajectory:
        """Add this problem and its parameters to a run, and return the run.

        Raises
        ------
        ValueError
            The run is not a run of this problem.
        """
        return self._named(self._own(run))

    def _named(self, run: Trajectory) -> Trajectory:
        """Add this problem and its parameters to a run of it, and return the run.

        Unlike `named`, this does not check that the run is one of this problem.
        """
        run.family = self
        # Parameters that `run.info` leaves out: how the run is computed, the loss if it
        # is half the squared error, and settings of the rule and of the fixed set that
        # have their defaults.
        hidden = {"method", "max_steps"}
        if not self._has_mse:
            hidden.add("loss")
        for name, default in DEFAULTS.items():
            if getattr(self, name) == default:
                hidden.add(name)
        for name in SET_PARAMETERS:
            if getattr(self, name) is None:
                hidden.add(name)
        run.info = {}
        for name in self.parameters():
            if name not in hidden:
                run.info[name] = getattr(self, name)
        # The run knows the number for which "auto" stands.
        run.info["eta"] = run.eta
        run.labels = self.labels()
        return run

    @classmethod
    @cache
    def every_column(cls) -> tuple[Column, ...]:
        """Columns measured at every sweep point, in addition to status and message."""
        if cls.theory_columns is None:
            return cls.own_columns()
        columns: tuple[Column, ...] = cls.own_columns() + cls.theory_columns.columns
        return columns

    @classmethod
    @cache
    def own_columns(cls) -> tuple[Column, ...]:
        """Return the columns of `every_column` other than the columns of a theory."""
        unit = cls.loss_unit
        phases = [_phase_column(name) for name in cls.phase_names]
        return (
            Column("eta_used", "f8", "", "learning rate η", symbol="η"),
            Column(
                "steps",
                "i8",
                "steps",
                "first step at the target; -1 if it was not reached",
                symbol="T_ε",
                tex=r"T_\varepsilon",
                role="steps",
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
                "estimated error of the number of steps; 0 if every step was taken,"
                " NaN if unknown",
            ),
            Column("loss", "f8", unit, "loss at the end"),
            Column("floor", "f8", unit, "irreducible loss"),
            *set_columns(unit),
            *cls.columns,
        )

    def measured(self, run: Trajectory) -> dict[str, Any]:
        """Return the value of each column for a run, and its status and message.

        Raises
        ------
        ValueError
            The run is not a run of this problem.
        """
        run = self._own(run)
        if self._has_mse:
            # Imported here because few problems need this module.
            from icl_theory.families.loss_units import in_mse

            values_in_half = self.half.measured(self._halved(run))
            # The halved run has the rate for half the loss.
            return {**in_mse(type(self), values_in_half), "eta_used": run.eta}
        values: dict[str, Any] = {
            "eta_used": run.eta,
            "steps": -1 if run.steps is None else run.steps,
        }
        # A phase that the run did not reach has the length 0.
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
        values |= measured_on_set(run) if self.on_fixed_set else WITHOUT_SET
        values |= self.measure(run)
        if self.theory_columns is not None:
            values |= self.theory_columns.measure(run)
        return values


def _phase_column(name: str) -> Column:
    """Return the column with the length of a phase in steps."""
    return Column(
        f"T_{name}",
        "i8",
        "steps",
        f"length of Phase {name}, 0 if the run ends before it",
        symbol=f"T_{name}",
        tex=rf"T_{{\mathrm{{{name}}}}}",
        role="phase",
        extra=(("phase", name),),
    )


def _error_of_steps(run: Trajectory) -> float:
    """Return the estimated error of ``run.steps``, or NaN if it is unknown.

    With the method "exact" every step was taken, so that there is no error.
    """
    if run.error is not None:
        return run.error
    return 0.0 if run.method == "exact" else math.nan


def check_points(
    family: type[Family], points: Mapping[str, NDArray[Any]], common: Mapping[str, Any]
) -> None:
    """Refuse arguments of `Family.batched` that no sweep would pass.

    Parameters
    ----------
    family : type
        The family.
    points : mapping of str to ndarray, each (P,)
        The parameters that are numbers or words, with a value for each of P points.
    common : mapping
        All other parameters. Parameters of the update rule, parameters that are None by
        default, and the choice of the loss may be left out, and then have their
        defaults.

    Raises
    ------
    ValueError
        A parameter is missing or unknown, a value is out of range, or an entry of
        ``points`` is not an array of P values.
    """
    mapping("points", points, "parameters")
    mapping("common", common, "parameters")
    family.refuse_unknown([*points, *common])
    _check_arrays(family, points)
    for name, value in common.items():
        # No problem may have max_steps = 0, but a sweep passes it to find out which
        # points can be computed together.
        if name == "max_steps" and value == 0:
            continue
        family.parameters()[name].check(value)
    for name, declared in family.parameters().items():
        if name in points or name in common or name in RULE_PARAMETERS:
            continue
        # The choice of the loss may be left out: losses then have the factor 1/2.
        if isinstance(declared.kind, LossForm):
            continue
        # A parameter that is None by default may be left out, too.
        if declared.default is not None:
            raise argument_error(
                "points",
                [*points],
                f"all parameters that are not in common; {name} is in neither",
            )


def _check_arrays(family: type[Family], points: Mapping[str, NDArray[Any]]) -> None:
    """Refuse ``points`` unless they are arrays of one length with allowed values."""
    lengths = set()
    for name, values in points.items():
        if not isinstance(values, np.ndarray) or values.ndim != 1 or not values.size:
            raise argument_error(
                f"points[{name!r}]", values, "an array of one value for each point"
            )
        declared = family.parameters()[name]
        # check_all looks only at the extremes of an array of numbers. It would check
        # every entry of an array of words, so pass it each word only once.
        if declared.kind.numeric:
            declared.check_all(values)
        else:
            declared.check_all(np.unique(values).tolist())
        lengths.add(values.size)
    if len(lengths) != 1:
        raise argument_error(
            "points", sorted(lengths), "arrays of the same length, at least one"
        )


def _is_plain_value(value: Any) -> bool:
    """Whether a value is a number, a text or a nested tuple of these."""
    if isinstance(value, tuple):
        return all(map(_is_plain_value, value))
    return isinstance(value, int | float | str)
