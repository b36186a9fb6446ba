"""What is proved of a run: losses and gradients at saved states, numbers of steps, and constants."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from flint import arb, ctx

from icl_theory._validate import Array, refuse
from icl_theory.certified import closed
from icl_theory.certified.losses import Balls, enclosed
from icl_theory.engine.pullback import innermost
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.linear_attention.risks import MergedRisk
from icl_theory.families.regression.family import Regression
from icl_theory.families.regression.phases import crossover, half_way
from icl_theory.families.regression.risks.exchangeable import ExchangeableRisk

SPARE = 32  # bits beyond those asked for
EXACT = 1024  # for products of doubles
SHARP = 24  # bits that a number must have to count as known
LONGEST = 1000  # prompts whose floor is enclosed: a second of work


def facts(run: Trajectory, bits: int, states: int) -> Iterator[tuple[Any, ...]]:
    """Yield what makes a `Proved`: losses and gradients, and what gradient descent has in closed form."""
    risk, given = run.risk, _given(run)
    assert risk is not None
    core, _ = innermost(risk)
    sums = not isinstance(core, MergedRisk) and math.isfinite(getattr(core, "N", 0.0))
    basis = f"the {'parameters L and Δ' if given else 'doubles of the risk'} and of the state as they are, "
    basis += "and sums in balls with the proved error of their rule" if sums else "and closed formulas in balls"

    def at(state: Array) -> tuple[arb, Balls]:
        return enclosed(risk, state, ctx.prec - SPARE, given and given[0])

    for i in sorted({round(each) for each in np.linspace(0, len(run.t) - 1, min(states, len(run.t))).tolist()}):
        state, step = run.states[i], f"at step {run.t[i]}"
        found = _answer(bits, f"the loss {step}", partial(at, state))
        for name, ball, double in zip(("loss", "gradient"), found, risk.evaluate(state), strict=True):
            yield f"{name} {step}", ball, basis, np.asarray(double)[()]
    for name, enclose, *others in _closed_forms(run, given) if run.rule == "gd" else ():
        yield name, _answer(bits, name, enclose), *others


def _answer(bits: int, name: str, enclose: Callable[[], Any], doublings: int = 4) -> Any:
    """Return what some bits enclose; if that says too little, say how many would do."""
    first = None
    for more in (bits * 2**k for k in range(doublings + 1)):
        with contextlib.suppress(ArithmeticError), ctx.workprec(more + SPARE):
            found = enclose()
            first = found if more == bits else first
            if _known(found) and more > bits:
                raise refuse("bits", bits, f"at least {more} for {name}")
            if _known(found):
                return found
    if first is None:
        raise refuse("bits", bits, f"more than {bits * 2**doublings} for {name}")
    return first  # an honest interval, which more bits do not make one number


def _known(found: Any) -> bool:
    """Whether a number of steps is single, or a number has digits; a gradient has those of its loss."""
    if isinstance(found, range):
        return found[0] == found[-1]
    number = found[0] if isinstance(found, tuple) else found
    return bool(number.is_zero() or number.rel_accuracy_bits() >= SHARP)


def _given(run: Trajectory) -> tuple[arb, arb] | None:
    """Return γ = L²Δ²/2 and the speed, 1 or Δ⁴/4, exactly, where a run was made from L and Δ; else None."""
    if not isinstance(run.family, Regression) or getattr(run.risk, "origin", 0) is not None:
        return None
    L, delta = arb(run.family.L), arb(run.family.delta)
    with ctx.workprec(EXACT):
        return (L * delta) ** 2 / 2, delta**4 / 4 if run.family.coordinates == "embedding" else arb(1)


def _closed_forms(run: Trajectory, given: tuple[arb, arb] | None) -> Iterator[tuple[Any, ...]]:
    """Yield what gradient descent has in closed form, as in `facts`; in place of the ball what encloses it."""
    risk, epsilon, stepped = run.risk, run.epsilon, run.method != "flow"
    said = run.steps, run.error or 0.0
    if isinstance(risk, MergedRisk) and risk.start.ndim == 1 and stepped and epsilon > 0.0 and run.steps:
        count = partial(closed.mode_steps, risk, run.eta, epsilon, getattr(run.family, "above", None))
        yield "steps", count, "the modes of Γ for the second moments, η and the target as they are", *said
    if not isinstance(risk, ExchangeableRisk):
        return
    K, (gamma, speed) = risk.K, given or (arb(risk.gamma), arb(risk.speed))
    if math.isfinite(risk.N):
        if risk.N <= LONGEST:
            floor = partial(closed.least_loss, K, gamma, int(risk.N), risk.noise)
            yield "floor", floor, "the sum over the counts of one feature", run.floor
        return
    yield "tail constant", lambda: (K - 1) / (4 * speed), "docs/tail-laws.md, Theorem 1"
    if stepped and risk.gamma > 0.0:  # without γ nothing stepped
        basis = f"the map u ← u + c a s² for {'L, Δ' if given else 'γ'}, η and ε as they are, and a bounded sum"
        begun = {name: part and part[0] for name, part in (run.phases or {}).items()}
        with ctx.workprec(EXACT):
            c = run.eta * speed * gamma * K / arb(K - 1) ** 2
        if epsilon > 0.0:
            yield "steps", partial(closed.steps_to_loss, K, c, gamma, epsilon), basis, *said
        yield "end of Phase I", partial(closed.steps_to, K, c, arb(1) / 2), basis, begun.get("II")
        yield "start of Phase III", lambda: closed.steps_to(K, c, closed.deficit(K, 0)), basis, begun.get("III")
    if given and epsilon > 0.0:
        delta, basis = run.family.delta, "a change of sign in the equation of the flow time, the first one"

        def L(power: int) -> arb:  # at which the loss is ε at a deficit
            return (4 * arb(epsilon) * (K - 1) / K).sqrt() / (closed.deficit(K, power) * delta)

        yield "L*", partial(L, 0), basis, crossover(epsilon, delta, K)
        if K >= 7:
            yield "L½", partial(L, 2), basis, half_way(epsilon, delta, K)
