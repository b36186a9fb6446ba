"""The update rule of a family: its parameters, and the rule that they describe."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    nearest,
    parameter,
)

SCHEDULES = ("constant", "cosine", "step", "inverse-sqrt", "piecewise")


@dataclass(frozen=True)
class BelowOne(Number):
    """A number from 0 to below 1."""

    zero: bool = True
    maximum: float = math.nextafter(1.0, 0.0)

    def value(self, name: str, value: Any) -> float:
        """Return the float."""
        return below_one(name, value)


@dataclass(frozen=True)
class RuleKind(Word):
    """The name of an update rule, or from Python a `Rule`."""

    def value(self, name: str, value: Any) -> Any:
        """Return a rule, or refuse what is none."""
        if not is_rule(value):
            raise argument_error(
                name, value, f"one of {self.allowed}, or an icl_theory.engine.Rule"
            )
        return value


def _schedule(name: str, value: Any) -> Any:
    """Return a schedule of one's own."""
    if isinstance(value, str | type) or not (
        isinstance(value, Schedule) or callable(value)
    ):
        allowed = f"one of {', '.join(SCHEDULES)}, a Schedule, or a function of the step number"
        suggestion = nearest(value, SCHEDULES) if isinstance(value, str) else ""
        raise argument_error(name, value, allowed + suggestion)
    return value


def update_rule(default: str = "gd", meaning: str = "update rule") -> Any:
    """Declare the rule."""
    kind = RuleKind(words=tuple(RULES))
    instance("meaning", meaning, str, "a text")
    return parameter(kind.check("default", default), kind=kind, meaning=meaning)


@dataclass(frozen=True, eq=False)
class RuleParameters:
    """The parameters of every `Family` that describe how it is trained, besides the learning rate.

    Parameters
    ----------
    rule : {"gd", "ngd", "ngd-blocks", "heavy-ball", "nesterov", "adam", "adamw"} or Rule
        Gradient descent; normalised by the norm of the gradient, or of each of its
        blocks; with momentum; Adam. A `Rule` of `icl_theory.engine` brings its own
        settings.
    momentum : float, optional
        β of "heavy-ball" and "nesterov"; 0.9 by default.
    beta1, beta2 : float, optional
        Those of "adam" and "adamw"; 0.9 and 0.999 by default.
    weight_decay : float, optional
        λ. As in PyTorch it joins the gradient of "heavy-ball", "nesterov" and "adam";
        for the other rules each step shrinks the parameters by the factor 1 - ηλ
        besides. It is 0.01 for "adamw" and 0 for the others by default.
    clip : float, optional
        Largest norm of the gradient; longer ones are shortened.
    schedule : {"constant", "cosine", "step", "inverse-sqrt", "piecewise"}, Schedule or callable
        The learning rate in step t is ``eta`` times a factor: half a cosine from 1 to 0
        within ``decay_steps``, where the run ends; ``decay_factor`` once more every
        ``decay_steps``, or at each of the ``milestones``; or 1/√(1 + t/decay_steps). Or
        a function of t.
    warmup : int, optional
        Number of steps in which the rate first rises in equal parts to ``eta``.
    decay_steps : int, optional
        For "cosine" and "step", which need it, and "inverse-sqrt", where it is 1 by
        default.
    decay_factor : float, optional
        For "step" and "piecewise"; 0.1 by default.
    milestones : sequence of int, optional
        For "piecewise", which needs them: increasing steps.
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
        declared = {
            field.name: field.metadata["parameter"]
            for field in dataclasses.fields(self)
        }
        for name, declaration in declared.items():
            object.__setattr__(
                self, name, declaration._replace(name=name).check(getattr(self, name))
            )
        rule_from(vars(self))  # refuses settings that do not fit


RULE_PARAMETERS = tuple(field.name for field in dataclasses.fields(RuleParameters))
DEFAULTS = {field.name: field.default for field in dataclasses.fields(RuleParameters)}
SCHEDULE_SETTINGS = {
    "constant": (),
    "cosine": ("decay_steps",),
    "step": ("decay_steps", "decay_factor"),
    "inverse-sqrt": ("decay_steps",),
    "piecewise": ("milestones", "decay_factor"),
}
RULE_SETTINGS = ("momentum", "beta1", "beta2")


def rule_from(parameters: Mapping[str, Any]) -> Rule:
    """Return the rule that the parameters of a family describe; those left out have their defaults.

    Raises
    ------
    ValueError
        A setting that the rule or the schedule does not have, or one that the schedule
        needs and is not given.
    """
    values = {name: parameters.get(name, default) for name, default in DEFAULTS.items()}
    # most problems choose a rule at most, and making one anew takes as long as a closed
    # form
    if all(
        values[name] is default for name, default in DEFAULTS.items() if name != "rule"
    ):
        return rule_of(values["rule"])
    rule = _with_settings(values)
    # from inside out: gradients are clipped before the rule sees them, and the schedule
    # scales the rate
    if values["clip"] is not None:
        rule = Clipped(rule, values["clip"])
    schedule = _schedule_from(values)
    return rule if isinstance(schedule, Constant) else Scheduled(rule, schedule)


def _with_settings(values: Mapping[str, Any]) -> Rule:
    """Return the rule with its settings, and with its weight decay."""
    rule = rule_of(values["rule"])
    given = {name: values[name] for name in RULE_SETTINGS if values[name] is not None}
    if not isinstance(values["rule"], str):
        for name, value in given.items():
            raise argument_error(
                name, value, f"left out: the rule {rule!r} brings its own settings"
            )
    fields: set[str] = set()
    if dataclasses.is_dataclass(rule):
        fields = {field.name for field in dataclasses.fields(rule)}
    for name, value in given.items():
        if name not in fields:
            with_it = ", ".join(
                word for word, candidate in RULES.items() if hasattr(candidate, name)
            )
            raise argument_error(
                name,
                value,
                f"left out for the rule {rule.name!r}; it belongs to {with_it}",
            )
    # a named rule with a weight decay of its own treats it as PyTorch does; for all
    # others it is decoupled
    decay = values["weight_decay"]
    if (
        decay is not None
        and "weight_decay" in fields
        and isinstance(values["rule"], str)
    ):
        given["weight_decay"] = decay
        decay = None
    if given:
        rule = dataclasses.replace(rule, **given)  # type: ignore[type-var]
    return Decayed(rule, decay) if decay else rule


def _schedule_from(values: Mapping[str, Any]) -> Schedule:
    """Return the schedule of the learning rate."""
    name = values["schedule"]
    allowed_settings = SCHEDULE_SETTINGS[name] if isinstance(name, str) else ()
    for setting in ("decay_steps", "decay_factor", "milestones"):
        if values[setting] is not None and setting not in allowed_settings:
            words = [
                word for word, needed in SCHEDULE_SETTINGS.items() if setting in needed
            ]
            raise argument_error(
                setting,
                values[setting],
                f"left out unless schedule is {' or '.join(words)}",
            )
    schedule = (
        _named_schedule(name, values) if isinstance(name, str) else _own_schedule(name)
    )
    return schedule if values["warmup"] is None else WarmUp(values["warmup"], schedule)


def _own_schedule(schedule: Schedule | Callable[[int], Any]) -> Schedule:
    return schedule if isinstance(schedule, Schedule) else Function(schedule)


def _named_schedule(name: str, values: Mapping[str, Any]) -> Schedule:
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
    """Return the rules at the points of a grid, each once; None stands for settings that do not fit together.

    Parameters
    ----------
    axes : mapping of str to sequence
        The values of each parameter that is an axis of the grid.
    common : mapping
        The parameters that all points share.
    """
    shared = {name: common[name] for name in RULE_PARAMETERS if name in common}
    varied = [name for name in RULE_PARAMETERS if name in axes]
    values = [[np.asarray(value).item() for value in axes[name]] for name in varied]
    return [
        _rule_or_none(shared | dict(zip(varied, point, strict=True)))
        for point in itertools.product(*values)
    ]


def within(
    scope: Scope, points: Mapping[str, NDArray[Any]], common: Mapping[str, Any]
) -> NDArray[np.bool_]:
    """Whether theory of a scope speaks of each of some points of a sweep, (P,).

    Parameters
    ----------
    scope : Scope
        The training of which the theory speaks.
    points : mapping of str to ndarray, each (P,)
        The parameters that are numbers or words.
    common : mapping
        All others.
    """
    size = len(next(iter(points.values())))
    shared = {name: common[name] for name in RULE_PARAMETERS if name in common}
    varied = [
        name for name in RULE_PARAMETERS if name in points and points[name].size > 0
    ]
    method = str(common.get("method", ""))
    if not varied:
        return np.full(size, scope.covers(_rule_or_none(shared), method))
    # few settings occur: each rule is made once
    settings = np.stack(
        [np.unique(points[name], return_inverse=True)[1] for name in varied], axis=1
    )
    _, first, which = np.unique(
        settings, axis=0, return_index=True, return_inverse=True
    )
    covered = np.zeros(len(first), dtype=bool)
    for group, place in enumerate(first.tolist()):
        settings_of_group = {
            name: np.asarray(points[name][place]).item() for name in varied
        }
        covered[group] = scope.covers(_rule_or_none(shared | settings_of_group), method)
    return covered[which.ravel()]


def _rule_or_none(parameters: Mapping[str, Any]) -> Rule | None:
    try:
        return rule_from(parameters)
    except ValueError:  # such a point fails when it is run
        return None
