"""Scopes: the training to which a piece of theory applies.

The package shows a statement or a prediction only beside training within the scope of
this statement or prediction.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from icl_theory._validate import argument_error, flag, instance, text
from icl_theory.engine.rules import GradientDescent, Normalised, Rule, is_rule


class Training(Protocol):
    """A run, or a problem of a family; both know their rule and method.

    A problem is a family with values of its parameters; a run is made from a problem.
    """

    @property
    def method(self) -> str:
        """How the steps of the training are computed."""
        ...

    @property
    def trained_by(self) -> Rule | None:
        """The update rule with its settings; None if it is not known."""
        ...


@dataclass(frozen=True)
class Scope:
    """The training to which a piece of theory applies.

    The theory of each family has a scope, and a single statement may have its own.
    Statements, predicted columns of a sweep and predicted limits of the exponents that
    a sweep measures are shown only for training within the scope.

    Parameters
    ----------
    rules : tuple of type
        The rules to which the theory applies. A rule around one of them, such as
        `Scheduled`, counts as another rule.
    iteration, flow : bool
        Whether the theory applies to the iteration, and to its limit of small steps.

    Examples
    --------
    >>> import icl_theory as icl
    >>> from icl_theory.engine import Scope
    >>> plain = icl.Regression(L=2.0, delta=1.0, eta=4.0)
    >>> Scope().applies(plain), Scope().applies(plain.changed(rule="heavy-ball"))
    (True, False)
    >>> Scope().why_not(plain.changed(method="flow"))
    'for gradient descent, and this is its flow'
    """

    rules: tuple[type[Rule], ...] = (GradientDescent,)
    iteration: bool = True
    flow: bool = False

    def __post_init__(self) -> None:
        instance("rules", self.rules, tuple, "a tuple of classes of rules")
        for rule in self.rules:
            # issubclass() refuses protocols that have attributes, such as `Rule`. So
            # look for `Rule` among the base classes.
            if not (isinstance(rule, type) and Rule in rule.__mro__):
                raise argument_error("rules", self.rules, "classes of rules")
        iteration = flag("iteration", self.iteration)
        flow = flag("flow", self.flow)
        if not self.rules or not (iteration or flow):
            raise argument_error(
                "scope",
                self,
                "one with a rule, and with the iteration, the flow, or both",
            )

    def applies(self, training: Training) -> bool:
        """Whether the theory applies to a run or a problem.

        No theory applies to training on a fixed set of prompts, nor to a problem that
        is outside the theory of its family.
        """
        if not (hasattr(training, "trained_by") and hasattr(training, "method")):
            raise argument_error("training", training, "a run or a problem of a family")
        if _reason_outside_theory(training):
            return False
        return self.covers(training.trained_by, training.method)

    def covers(self, rule: Rule | None, method: str) -> bool:
        """Whether the theory applies to training by a rule and a method.

        It does not apply to an unknown rule, given as None.
        """
        text("method", method)
        if rule is not None and not is_rule(rule):
            raise argument_error(
                "rule", rule, "an update rule, or None if it is not known"
            )
        # All methods but "flow" follow the iteration.
        covers_method = self.flow if method == "flow" else self.iteration
        # A rule of a subclass is not covered, because it may take other steps.
        return covers_method and type(rule) in self.rules

    def why_not(self, training: Training) -> str:
        """Return in words why the theory does not apply to a run or a problem.

        The text is empty if the theory applies.
        """
        if self.applies(training):
            return ""
        rule = training.trained_by
        reason_outside = _reason_outside_theory(training)
        if reason_outside:
            reason = reason_outside
        elif rule is None:
            reason = "the rule of this run is not known"
        elif type(rule) not in self.rules:
            reason = f"this is training by {rule.name}"
        elif training.method == "flow":
            reason = "this is its flow"
        else:
            reason = "this is the iteration"
        return f"for {self.words}, and {reason}"

    def outside(self, rules: Iterable[Rule | None], method: str, most: int = 3) -> str:
        """Return a sentence that names the rules to which the theory does not apply.

        The sentence is empty if the theory applies to all rules that are known.

        Parameters
        ----------
        rules : iterable of Rule or None
            The rules of the points of a sweep; None stands for an unknown rule.
        method : str
            How the steps of all points are computed.
        most : int
            The largest number of rules that are named. Further rules are only counted.
        """
        allowed = "rules, with None for one that is not known"
        try:
            rules = list(rules)
        except TypeError:
            raise argument_error("rules", rules, allowed) from None
        for rule in rules:
            if rule is not None and not is_rule(rule):
                raise argument_error("rules", rule, allowed)
        # The points of a sweep often share their rule, so each name is listed once.
        names: list[str] = []
        for rule in rules:
            if rule is None or self.covers(rule, method):
                continue
            if rule.name not in names:
                names.append(rule.name)
        if not names:
            return ""
        listed = _listed(names, most)
        excluded = f"training by {listed}"
        if method == "flow":
            excluded = f"the flow of {listed}"
        return (
            f"The theory is for {self.words} and not applicable to {excluded}: no "
            "predictions and statements are shown beside it."
        )

    @property
    def words(self) -> str:
        """The training in words, such as "gradient descent".

        The flow is mentioned only if the theory does not apply to the iteration.
        """
        words_of_rule: dict[type[Rule], str] = {
            GradientDescent: "gradient descent",
            Normalised: "normalised descent",
        }
        # A rule without words is called by the name of its class.
        phrases = [words_of_rule.get(rule, rule.__name__) for rule in self.rules]
        rules = " or ".join(phrases)
        return rules if self.iteration else f"the flow of {rules}"


def _reason_outside_theory(training: Any) -> str:
    """Return why a run or a problem is outside all theory of its family.

    The text is empty if there is no such reason. Whether the theory applies to the rule
    and the method is not judged here.
    """
    # The problem of a run is its attribute `family`. A problem has none.
    problem = getattr(training, "family", None) or training
    # A problem may have the text `outside_theory`, which says why.
    reason = str(getattr(problem, "outside_theory", ""))
    # A run on a fixed set may have no problem that gives a reason, so look at the
    # attribute of the run itself, too.
    if not reason and getattr(training, "on_fixed_set", False):
        return "this is training on a fixed set of prompts"
    return reason


def _listed(names: list[str], most: int) -> str:
    """Return up to ``most`` quoted names, and the number of further names, as one text.

    For example, three names and ``most`` = 1 give '"adam" and 2 more'.
    """
    items = [f'"{name}"' for name in names[:most]]
    if len(names) > most:
        items.append(f"{len(names) - most} more")
    if len(items) == 1:
        return items[0]
    return f"{', '.join(items[:-1])} and {items[-1]}"


# The usual scopes: gradient descent as an iteration, its flow, or either.
DESCENT = Scope()
ONLY_FLOW = Scope(iteration=False, flow=True)
DESCENT_OR_FLOW = Scope(flow=True)
