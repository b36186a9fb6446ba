"""Does this theory apply? The one question that is asked before theory is shown beside a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from icl_theory._validate import argument_error, flag, instance, text
from icl_theory.engine.rules import GradientDescent, Normalised, Rule, is_rule


class Training(Protocol):
    """A run or a problem: it knows the rule by which it is trained, and how its steps are computed."""

    @property
    def method(self) -> str:
        """How its steps are computed."""
        ...

    @property
    def trained_by(self) -> Rule | None:
        """The update rule with its settings; None if it is not known."""
        ...


@dataclass(frozen=True)
class Scope:
    """The training of which a piece of theory speaks.

    Statements, predicted columns of sweeps, limits of exponents and estimates of the
    work have one each. They are shown only for training within it.

    Parameters
    ----------
    rules : tuple of type
        The rules of which it speaks. A rule around one of them, a schedule say, is
        another rule.
    iteration, flow : bool
        Whether it speaks of the iteration, and whether of its limit of small steps.

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
        if not all(
            isinstance(rule, type) and Rule in rule.__mro__ for rule in self.rules
        ):
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
        """Whether the theory speaks of a run or a problem."""
        if not (hasattr(training, "trained_by") and hasattr(training, "method")):
            raise argument_error("training", training, "a run or a problem of a family")
        return self.covers(training.trained_by, training.method)

    def covers(self, rule: Rule | None, method: str) -> bool:
        """Whether the theory speaks of training by a rule and a method."""
        text("method", method)
        if rule is not None and not is_rule(rule):
            raise argument_error(
                "rule", rule, "an update rule, or None if it is not known"
            )
        return type(rule) in self.rules and (
            self.flow if method == "flow" else self.iteration
        )

    def why_not(self, training: Training) -> str:
        """Return in words why the theory does not apply to a run or a problem; the empty text if it does."""
        if self.applies(training):
            return ""
        rule = training.trained_by
        if type(rule) not in self.rules:
            is_another = (
                "the rule of this run is not known"
                if rule is None
                else f"this is training by {rule.name}"
            )
        else:
            is_another = (
                "this is its flow"
                if training.method == "flow"
                else "this is the iteration"
            )
        return f"for {self.words}, and {is_another}"

    def outside(self, rules: Iterable[Rule | None], method: str, most: int = 3) -> str:
        """Return in a sentence beside which of some rules the theory is not shown; the empty text if there is none.

        Parameters
        ----------
        rules : iterable of Rule or None
            Those of the points of a sweep; None stands for one that is not known.
        method : str
            How the steps of all points are computed.
        most : int
            The number of rules that are named.
        """
        allowed = "rules, with None for one that is not known"
        try:
            given = list(rules)
        except TypeError:
            raise argument_error("rules", rules, allowed) from None
        for rule in given:
            if rule is not None and not is_rule(rule):
                raise argument_error("rules", rule, allowed)
        names = [
            rule.name
            for rule in given
            if rule is not None and not self.covers(rule, method)
        ]
        distinct = list(dict.fromkeys(names))
        if not distinct:
            return ""
        listed = [f'"{name}"' for name in distinct[:most]]
        if len(distinct) > most:
            listed.append(f"{len(distinct) - most} more")
        named = " and ".join(filter(None, (", ".join(listed[:-1]), listed[-1])))
        training = (
            f"the flow of {named}" if method == "flow" else f"training by {named}"
        )
        first = f"The theory is for {self.words} and not applicable to {training}"
        return f"{first}: no predictions and statements are shown beside it."

    @property
    def words(self) -> str:
        """The training in words."""
        names: dict[type[Rule], str] = {
            GradientDescent: "gradient descent",
            Normalised: "normalised descent",
        }
        rules = " or ".join(names.get(rule, rule.__name__) for rule in self.rules)
        return rules if self.iteration else f"the flow of {rules}"


DESCENT = Scope()
ONLY_FLOW = Scope(iteration=False, flow=True)
DESCENT_OR_FLOW = Scope(flow=True)
