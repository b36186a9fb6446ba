"""The update rule of a family: its parameters, and the rule that they describe.

`RuleParameters`, from which every family inherits, declares the parameters, and
`rule_from` makes the rule. For the points of a sweep, `rules_of_points` returns the
rules, and `within` says at which points a theory applies.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from icl_theory._names import nearest
from icl_theory._validate import argument_error, below_one, instance
from icl_theory.engine.rules import (
    RULES,
    Clipped,
    Decayed,
    Rule,
    Schedule,
    Scheduled,
    is_rule,
    rule_of,
)
from icl_theory.engine.rules.schedules import (
    DECAY_FACTOR,
    Constant,
    Cosine,
    Function,
    InverseSqrt,
    Piecewise,
    StepDecay,
    WarmUp,
)
from icl_theory.engine.scope import Scope
from icl_theory.families.parameters import (
    Number,
    Object,
    Whole,
    Wholes,
    Word,
    parameter,
)

SCHEDULES = ("constant", "cosine", "step", "inverse-sqrt", "piecewise")


@dataclass(frozen=True)
class BelowOne(Number):
    """A number that is at least 0 and below 1."""

    zero: bool = True  # the number may be zero
    maximum: float = math.nextafter(1.0, 0.0)  # the largest float below 1

    def value(self, name: str, value: Any) -> float:
        """Return the float, or refuse the value."""
        return below_one(name, value)


@dataclass(frozen=True)
class RuleKind(Word):
    """The name of an update rule, or a `Rule`, which only Python code can give."""

    def value(self, name: str, value: Any) -> Any:
        """Return a `Rule`, or refuse any other value.

        ``check`` accepts names of rules itself, and calls this method for other values.
        """
        if not is_rule(value):
            raise argument_error(
                name, value, f"one of {self.allowed}, or an icl_theory.engine.Rule"
            )
        return value


def _schedule(name: str, value: Any) -> Any:
    """Return a `Schedule` or a function, or refuse any other object.

    The words of `SCHEDULES` are accepted before this function is called.
    """
    # A class is also callable, but calling it makes an object and returns no factor for
    # a step number.
    is_function = callable(value) and not isinstance(value, type)
    if is_function or isinstance(value, Schedule):
        return value
    suggestion = nearest(value, SCHEDULES) if isinstance(value, str) else ""
    raise argument_error(
        name,
        value,
        f"one of {', '.join(SCHEDULES)}, a Schedule, or a function of the step number"
        f"{suggestion}",
    )


def update_rule(default: str = "gd", meaning: str = "update rule") -> Any:
    """Declare the update rule of a family, with a default chosen for this family.

    Parameters
    ----------
    default : str
        Name of a rule, such as ``"gd"`` or ``"adam"``.
    meaning : str
        Its description in help texts and tables.

    Returns
    -------
    dataclasses.Field
        The field ``rule``, for the body of a `Family`. All other settings of the rule
        are declared by `RuleParameters`.
    """
    kind = RuleKind(words=tuple(RULES))
    instance("meaning", meaning, str, "a text")
    default = kind.check("default", default)
    return parameter(default, kind=kind, meaning=meaning)


@dataclass(frozen=True, eq=False)
class RuleParameters:
    """The parameters of every `Family` that describe its update rule.

    Parameters
    ----------
    rule : {"gd", "ngd", "ngd-blocks", "heavy-ball", "nesterov", "adam", "adamw"}, Rule
        Gradient descent ("gd"); gradient descent normalised by the norm of the gradient
        ("ngd") or of each of its blocks ("ngd-blocks"); two kinds of momentum; Adam
        without and with decoupled weight decay. A `Rule` of `icl_theory.engine` brings
        its own settings.
    momentum : float, optional
        β of "heavy-ball" and "nesterov"; 0.9 by default.
    beta1, beta2 : float, optional
        β₁ and β₂ of "adam" and "adamw"; 0.9 and 0.999 by default.
    weight_decay : float, optional
        λ, by default 0.01 for "adamw" and 0 for all other rules. As in PyTorch,
        "heavy-ball", "nesterov" and "adam" add λ times the parameters to the gradient.
        With the other rules each step also multiplies the parameters by 1 - ηλ.
    clip : float, optional
        Largest norm of the gradient; longer gradients are shortened to it.
    schedule : {"constant", "cosine", "step", "inverse-sqrt", "piecewise"}, or object
        The learning rate in step t is ``eta`` times a factor. The factor of "cosine"
        falls from 1 to 0 along half a period of the cosine, within ``decay_steps``
        steps, and the run then ends. The factor of "step" is multiplied by
        ``decay_factor`` every ``decay_steps`` steps, and the factor of "piecewise" at
        each of the ``milestones``. The factor of "inverse-sqrt" is
        1/√(1 + t/decay_steps). An object may be a `Schedule`, or a function of t that
        returns the factor.
    warmup : int, optional
        Number of steps at the beginning in which the rate rises to ``eta`` in equal
        increments.
    decay_steps : int, optional
        Time scale of the schedules "cosine" and "step", which need it, and of
        "inverse-sqrt", for which it is 1 by default.
    decay_factor : float, optional
        Factor of "step" and "piecewise"; 0.1 by default.
    milestones : sequence of int, optional
        Steps of "piecewise", which needs them, in increasing order.
    """

    rule: str | Rule = update_rule()
    momentum: float | None = parameter(
        None,
        kind=BelowOne(optional=True),
        symbol="β",
        tex=r"\beta",
        meaning="momentum, for heavy-ball and nesterov",
    )
    beta1: float | None = parameter(
        None,
        kind=BelowOne(optional=True),
        symbol="β₁",
        tex=r"\beta_1",
        meaning="decay of Adam's mean of gradients",
    )
    beta2: float | None = parameter(
        None,
        kind=BelowOne(optional=True),
        symbol="β₂",
        tex=r"\beta_2",
        meaning="decay of Adam's mean of squared gradients",
    )
    weight_decay: float | None = parameter(
        None,
        kind=Number(optional=True, zero=True),
        symbol="λ",
        tex=r"\lambda",
        meaning="weight decay",
    )
    clip: float | None = parameter(
        None, kind=Number(optional=True), meaning="largest norm of the gradient"
    )
    schedule: Any = parameter(
        "constant",
        kind=Object(words=SCHEDULES, checker=_schedule),
        meaning="how the learning rate changes",
    )
    warmup: int | None = parameter(
        None,
        kind=Whole(optional=True),
        unit="steps",
        meaning="length of the warm-up of the learning rate",
    )
    decay_steps: int | None = parameter(
        None,
        kind=Whole(optional=True),
        unit="steps",
        meaning="time scale of the schedule",
    )
    decay_factor: float | None = parameter(
        None,
        kind=Number(optional=True),
        meaning="factor of the step and piecewise schedules",
    )
    milestones: Any = parameter(
        None,
        kind=Wholes(optional=True),
        meaning="steps of the piecewise schedule",
        axis=False,
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            # The declaration needs a name for its errors, and does not know the name of
            # the field that it describes.
            declared = field.metadata["parameter"]._replace(name=field.name)
            value = declared.check(getattr(self, field.name))
            object.__setattr__(self, field.name, value)
        # The rule is made only to refuse settings that do not fit together.
        rule_from(vars(self))


# The names of the parameters of `RuleParameters`, and their defaults by name.
RULE_PARAMETERS = tuple(field.name for field in dataclasses.fields(RuleParameters))
DEFAULTS = {field.name: field.default for field in dataclasses.fields(RuleParameters)}
# The settings that each schedule has.
SCHEDULE_SETTINGS = {
    "constant": (),
    "cosine": ("decay_steps",),
    "step": ("decay_steps", "decay_factor"),
    "inverse-sqrt": ("decay_steps",),
    "piecewise": ("milestones", "decay_factor"),
}
# Settings of rules that have a memory, such as a momentum. The class of a rule has a
# field with the name of each of these settings that the rule has.
RULE_SETTINGS = ("momentum", "beta1", "beta2")


def rule_from(parameters: Mapping[str, Any]) -> Rule:
    """Return the rule that the parameters of a family describe.

    Parameters that are left out have their defaults.

    Raises
    ------
    ValueError
        A setting is given that the rule or the schedule does not have, or a setting
        that the schedule needs is missing.
    """
    values = {name: parameters.get(name, default) for name, default in DEFAULTS.items()}
    # Most problems choose a rule by its name and have no settings. They share one rule
    # object, because making a rule takes as long as evaluating a closed form. (If a
    # setting equals its default without being the same object, a new rule is made.)
    has_settings = any(
        values[name] is not default
        for name, default in DEFAULTS.items()
        if name != "rule"
    )
    if not has_settings:
        return rule_of(values["rule"])
    rule = _with_settings(values)
    # The rule is wrapped from inside out: gradients are clipped before the rule sees
    # them, and the schedule multiplies the learning rate of the clipped rule.
    if values["clip"] is not None:
        rule = Clipped(rule, values["clip"])
    schedule = _schedule_from(values)
    return rule if isinstance(schedule, Constant) else Scheduled(rule, schedule)


def _with_settings(values: Mapping[str, Any]) -> Rule:
    """Return the rule with its settings, and with its weight decay."""
    rule = rule_of(values["rule"])
    is_named = isinstance(values["rule"], str)
    settings = {}
    for name in RULE_SETTINGS:
        if values[name] is not None:
            settings[name] = values[name]
    _refuse_settings(rule, settings, is_named)
    decay = values["weight_decay"]
    # A named rule that has the setting ``weight_decay`` applies the decay as PyTorch
    # does. For all other rules, `Decayed` adds the decay to the step and leaves the
    # gradient as it is.
    has_own_decay = is_named and "weight_decay" in _fields_of(rule)
    if decay is not None and has_own_decay:
        settings["weight_decay"] = decay
    if settings:
        rule = dataclasses.replace(rule, **settings)  # type: ignore[type-var]
    # A decay of None or 0 changes nothing.
    if decay and not has_own_decay:
        return Decayed(rule, decay)
    return rule


def _refuse_settings(rule: Rule, settings: Mapping[str, Any], is_named: bool) -> None:
    """Refuse settings that the rule does not have, or that it brings itself.

    A rule that was not given by its name brings all its settings itself.
    """
    fields = _fields_of(rule)
    for name, value in settings.items():
        if not is_named:
            raise argument_error(
                name, value, f"left out: the rule {rule!r} brings its own settings"
            )
        if name not in fields:
            rules_with_it = [
                word for word, other in RULES.items() if name in _fields_of(other)
            ]
            raise argument_error(
                name,
                value,
                f"left out for the rule {rule.name!r}; "
                f"it belongs to {', '.join(rules_with_it)}",
            )


def _fields_of(rule: Rule) -> set[str]:
    """Return the names of a rule's settings, which are the fields of a dataclass.

    A rule of another package need not be a dataclass, and then has no settings.
    """
    if not dataclasses.is_dataclass(rule):
        return set()
    return {field.name for field in dataclasses.fields(rule)}


def _schedule_from(values: Mapping[str, Any]) -> Schedule:
    """Return the schedule of the learning rate, with its settings and the warm-up."""
    chosen = values["schedule"]
    is_named = isinstance(chosen, str)
    settings_of_chosen = SCHEDULE_SETTINGS[chosen] if is_named else ()
    for setting in ("decay_steps", "decay_factor", "milestones"):
        if values[setting] is not None and setting not in settings_of_chosen:
            _refuse_schedule_setting(setting, values[setting])
    schedule = _named_schedule(chosen, values) if is_named else _own_schedule(chosen)
    return schedule if values["warmup"] is None else WarmUp(values["warmup"], schedule)


def _refuse_schedule_setting(setting: str, value: Any) -> NoReturn:
    """Refuse a setting that the chosen schedule does not have."""
    schedules_with_it = [
        word for word, settings in SCHEDULE_SETTINGS.items() if setting in settings
    ]
    raise argument_error(
        setting, value, f"left out unless schedule is {' or '.join(schedules_with_it)}"
    )


def _own_schedule(schedule: Schedule | Callable[[int], Any]) -> Schedule:
    """Return a schedule as it is, or turn a function of the step into a schedule."""
    return schedule if isinstance(schedule, Schedule) else Function(schedule)


def _named_schedule(name: str, values: Mapping[str, Any]) -> Schedule:
    """Return the schedule of a given name, or refuse it if a setting is missing."""
    steps = values["decay_steps"]
    milestones = values["milestones"]
    factor = DECAY_FACTOR if values["decay_factor"] is None else values["decay_factor"]
    if name in ("cosine", "step") and steps is None:
        raise argument_error("decay_steps", None, f"given with schedule = {name!r}")
    if name == "piecewise" and milestones is None:
        raise argument_error("milestones", None, "given with schedule = 'piecewise'")
    match name:
        case "cosine":
            return Cosine(steps)
        case "step":
            return StepDecay(steps, factor)
        case "inverse-sqrt":
            return InverseSqrt(1 if steps is None else steps)
        case "piecewise":
            return Piecewise(milestones, factor)
    return Constant()


def rules_of_points(
    axes: Mapping[str, Sequence[Any] | NDArray[Any]], common: Mapping[str, Any]
) -> list[Rule | None]:
    """Return the update rules at the points of a grid.

    Parameters
    ----------
    axes : mapping of str to sequence
        The values of each parameter that is an axis of the grid.
    common : mapping
        The parameters that all points share.

    Returns
    -------
    list of Rule or None
        An entry for each combination of values on the axes that are parameters of the
        rule. The entry is None if the settings do not fit together.
    """
    shared = {name: common[name] for name in RULE_PARAMETERS if name in common}
    varied = [name for name in RULE_PARAMETERS if name in axes]
    # A list of values for each varied parameter. item() turns numbers of NumPy into
    # numbers of Python.
    values = [[np.asarray(value).item() for value in axes[name]] for name in varied]
    rules = []
    for combination in itertools.product(*values):
        settings = dict(zip(varied, combination, strict=True))
        rules.append(_rule_or_none(shared | settings))
    return rules


def within(
    scope: Scope, points: Mapping[str, NDArray[Any]], common: Mapping[str, Any]
) -> NDArray[np.bool_]:
    """Return an array (P,): whether a theory applies to each of P points of a sweep.

    Parameters
    ----------
    scope : Scope
        The training to which the theory applies.
    points : mapping of str to ndarray, each (P,)
        The parameters that are numbers or words.
    common : mapping
        All other parameters.
    """
    P = len(next(iter(points.values())))
    shared = {name: common[name] for name in RULE_PARAMETERS if name in common}
    # Without any points (P = 0), no parameter has a value that could be looked up.
    varied = [
        name for name in RULE_PARAMETERS if name in points and points[name].size > 0
    ]
    method = str(common.get("method", ""))
    if not varied:
        return np.full(P, scope.covers(_rule_or_none(shared), method))
    # The many points have only a few different settings. Points with the same settings
    # form a group, whose rule is made once. The values of each parameter, numbers or
    # words, are replaced by their ranks. The settings of a point are then a row of
    # integers, and points with equal rows form a group.
    ranks = []
    for name in varied:
        _, rank_of_point = np.unique(points[name], return_inverse=True)
        ranks.append(rank_of_point)
    _, first_points, group_of_point = np.unique(
        np.stack(ranks, axis=1), axis=0, return_index=True, return_inverse=True
    )
    is_covered = np.zeros(len(first_points), dtype=bool)
    for group, point in enumerate(first_points.tolist()):
        settings = {name: np.asarray(points[name][point]).item() for name in varied}
        is_covered[group] = scope.covers(_rule_or_none(shared | settings), method)
    # Some versions of NumPy return the groups with a second axis, which ravel()
    # removes.
    return is_covered[group_of_point.ravel()]


def _rule_or_none(parameters: Mapping[str, Any]) -> Rule | None:
    """Return the rule that parameters describe, or None if they do not fit together."""
    try:
        return rule_from(parameters)
    except ValueError:
        # A point with these parameters fails when it is run, and then shows this error.
        return None
