"""Update rules: how a gradient becomes a step."""

from __future__ import annotations

import math
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from icl_theory._validate import Array, refuse
from icl_theory.engine.risk import Risk


@runtime_checkable
class Rule(Protocol):
    """A rule that turns a gradient into a step; inherit from it and define ``name`` and ``move``.

    Attributes
    ----------
    name : str
        What runs and the command line call it.
    autonomous : bool
        Whether the move depends on the gradient alone and not on the number of the step, as it must where steps are
        skipped. Training in stages, for instance, is not autonomous.

    Examples
    --------
    Only the first parameter is trained for five steps, and then both:

    >>> import numpy as np, icl_theory as icl
    >>> from icl_theory.engine import Rule
    >>> class Staged(Rule):
    ...     name, autonomous = "staged", False
    ...     def move(self, risk, gradient, eta, step):
    ...         return -eta * gradient * (np.array([1.0, 0.0]) if step < 5 else 1.0)
    >>> class Bowl(icl.Risk):
    ...     initial = np.ones(2)
    ...     def evaluate(self, params, step=0):
    ...         return 0.5 * float(params @ params), params
    >>> icl.descend(Bowl(), 0.5, steps=6, rule=Staged()).params
    array([0.015625, 0.5     ])
    """

    name: ClassVar[str]
    autonomous: ClassVar[bool] = True

    def move(self, risk: Risk, gradient: Array, eta: float, step: int) -> Array:
        """Return the change of the parameters, of the shape of the gradient, for a learning rate."""
        ...


class GradientDescent(Rule):
    r"""Gradient descent, :math:`-\eta M^{-1}g` with the metric M of the coordinates."""

    name = "gd"

    def move(self, risk: Risk, gradient: Array, eta: float, step: int) -> Array:
        """Return the change of the parameters."""
        return -eta * gradient / risk.metric


class Normalised(Rule):
    r"""Descent by steps of length η, :math:`-\eta M^{-1}g/\sqrt{g^\top M^{-1}g}`."""

    name = "ngd"

    def move(self, risk: Risk, gradient: Array, eta: float, step: int) -> Array:
        """Return the change of the parameters."""
        return _of_length(eta, gradient, risk.metric)


class NormalisedBlocks(Rule):
    """Descent in which each block of the parameters, see `Risk.blocks`, takes a step of length η of its own."""

    name = "ngd-blocks"

    def move(self, risk: Risk, gradient: Array, eta: float, step: int) -> Array:
        """Return the change of the parameters."""
        gradient = np.asarray(gradient)  # that of a risk of one number may be a float, which has no blocks
        check_blocks(risk, gradient.shape)
        change = np.empty_like(gradient)
        metric = np.broadcast_to(np.asarray(risk.metric, dtype=float), gradient.shape)
        for to, part, weight in zip(risk.blocks(change), risk.blocks(gradient), risk.blocks(metric), strict=True):
            to[...] = _of_length(eta, part, weight)
        return change


def check_blocks(risk: Risk, shape: tuple[int, ...]) -> None:
    """Refuse blocks that are copies, overlap, or leave entries out: a step would take these from anywhere.

    Raises
    ------
    ValueError
        `Risk.blocks` returns such.
    """
    held = np.zeros(shape)
    blocks = risk.blocks(held)
    for block in blocks:
        block += 1  # in place, where it is a view
    if (held != 1).any():
        shapes = [np.shape(block) for block in blocks]
        raise refuse("blocks", shapes, f"views that together hold each entry of an array of shape {shape} once")


def _of_length(eta: float, gradient: Array, metric: float | Array) -> Array:
    """Return the step of length ``eta`` down a gradient, 0 where that is 0."""
    largest = float(np.abs(gradient).max(initial=0.0))
    if not 0.0 < largest < math.inf:
        return -eta * gradient / metric
    gradient = gradient / largest  # squares of tiny gradients would be zero
    step = gradient / metric
    return np.asarray(-eta * step / math.sqrt(float(np.sum(gradient * step))))


RULES: dict[str, Rule] = {rule.name: rule for rule in (GradientDescent(), Normalised(), NormalisedBlocks())}


def rule_of(rule: str | Rule) -> Rule:
    """Return the rule of a name, or the rule itself.

    Raises
    ------
    ValueError
        An unknown name, or an object that is no rule.
    """
    if isinstance(rule, str) and rule in RULES:
        return RULES[rule]
    if not isinstance(rule, Rule):
        raise refuse("rule", rule, f"one of {', '.join(RULES)}, or an icl_theory.engine.Rule")
    return rule
