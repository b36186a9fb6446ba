"""Update rules, by which gradients become steps.

`RULES` has the rules that have a name on the command line, with their default settings.
A `Wrapper` is a rule around another rule. It changes the gradient, the learning rate or
the step of that rule.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TypeGuard

from icl_theory._names import suggesting as _suggesting
from icl_theory._validate import argument_error
from icl_theory.engine.rules.adam import Adam, AdamW, refuse_reduced
from icl_theory.engine.rules.descent import (
    GradientDescent,
    Normalised,
    NormalisedBlocks,
    check_blocks,
)
from icl_theory.engine.rules.momentum import HeavyBall, Nesterov
from icl_theory.engine.rules.rule import NO_MEMORY, Rule
from icl_theory.engine.rules.schedules import Schedule, Scheduled
from icl_theory.engine.rules.wrappers import Clipped, Decayed, Projected, Wrapper

__all__ = [
    "NO_MEMORY",
    "RULES",
    "Adam",
    "AdamW",
    "Clipped",
    "Decayed",
    "GradientDescent",
    "HeavyBall",
    "Nesterov",
    "Normalised",
    "NormalisedBlocks",
    "Projected",
    "Rule",
    "Schedule",
    "Scheduled",
    "Wrapper",
    "check_blocks",
    "is_plain_descent",
    "is_rule",
    "refuse_reduced",
    "rule_of",
]
# If a name does not exist, the error suggests a similar one.
__getattr__ = _suggesting(__name__, __all__)


def _named_rules() -> dict[str, Rule]:
    """Return the rules that the modules of this folder list in ``NAMED``, by name."""
    # Messages offer the rules in this order: gradient descent, momentum, and the other
    # modules by name.
    first_modules = ["descent", "momentum"]
    modules = sorted(item.name for item in pkgutil.iter_modules(__path__))
    other_modules = [module for module in modules if module not in first_modules]
    rules: dict[str, Rule] = {}
    for module in [*first_modules, *other_modules]:
        loaded = importlib.import_module(f"{__name__}.{module}")
        for rule in getattr(loaded, "NAMED", ()):
            rules[rule.name] = rule
    return rules


# The rules with a name, with their default settings.
RULES = _named_rules()


def is_rule(value: object) -> TypeGuard[Rule]:
    """Whether an object is a rule, and not the class or the name of a rule."""
    if isinstance(value, str | type):
        return False
    # isinstance() is slow for a protocol, and most rules inherit from `Rule`. So look
    # at the base classes first.
    return Rule in type(value).__mro__ or isinstance(value, Rule)


def rule_of(rule: str | Rule) -> Rule:
    """Return the rule that a name stands for, with its default settings.

    A `Rule` is returned as it is.

    Raises
    ------
    ValueError
        The name is unknown, or the object is not a rule.
    """
    if isinstance(rule, str) and rule in RULES:
        return RULES[rule]
    if is_rule(rule):
        return rule
    raise argument_error(
        "rule",
        rule,
        f"one of {', '.join(RULES)}, or an icl_theory.engine.Rule with name, init and "
        "step",
    )


def is_plain_descent(rule: str | Rule) -> bool:
    """Whether a rule is gradient descent with a constant learning rate.

    Most of the theory is about this rule.
    """
    # The types are compared, because a subclass may change the steps.
    return type(rule_of(rule)) is GradientDescent
