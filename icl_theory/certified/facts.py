"""What is proved of a run: losses and gradients at saved states, numbers of steps, and constants."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
from flint import arb, ctx

from icl_theory._validate import refuse
from icl_theory.certified import constants
from icl_theory.certified.counts import mode_steps, steps_to, steps_to_loss
from icl_theory.certified.losses import enclosed
from icl_theory.certified.proof import Proved, Steps
from icl_theory.engine.pullback import innermost
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.linear_attention.risks import MergedRisk
from icl_theory.families.regression.family import Regression
from icl_theory.families.regression.phases import crossover, half_way
from icl_theory.families.regression.risks.exchangeable import ExchangeableRisk

T = TypeVar("T")
SHARP = 24  # bits that a loss must have to count as known
LONGEST = 1000  # prompts whose floor is enclosed: a second of work


def facts(run: Trajectory, bits: int, states: int) -> Iterator[Proved]:
    """Yield losses and gradients, and what gradient descent has in closed form."""
    yield from _losses(run, bits, states)
    risk = run.risk
    if run.rule == "gd" and isinstance(risk, ExchangeableRisk):
        yield from _exchangeable(run, risk, bits)
    if run.rule != "gd" or not isinstance(risk, MergedRisk) or risk.start.ndim > 1:
        return
    if run.method != "flow" and run.epsilon > 0.0 and run.steps:
        above, basis = getattr(run.family, "above", None), "the modes of Γ for the second moments, η and the target"
        count = functools.partial(mode_steps, risk, run.eta, run.epsilon, above)
        yield _counted(bits, "steps", count, f"{basis} as they are", run.steps, run.error)


def _losses(run: Trajectory, bits: int, states: int) -> Iterator[Proved]:
    risk, gamma = run.risk, _variogram(run)
    assert risk is not None
    core, _ = innermost(risk)
    closed = isinstance(core, MergedRisk) or math.isinf(getattr(core, "N", 0.0))
    basis = f"the {'doubles of the risk' if gamma is None else 'parameters L and Δ'} and of the state as they are, "
    basis += "and closed formulas in balls" if closed else "and sums in balls with the proved error of their rule"
    for i in sorted({round(each) for each in np.linspace(0, len(run.t) - 1, min(states, len(run.t))).tolist()}):
        state, step = run.states[i], int(run.t[i])
        loss, gradient = _sharp(
            bits,
            f"the loss at step {step}",
            lambda bits, state=state: enclosed(risk, state, bits, gamma),  # type: ignore[misc]
            lambda found: found[0].rel_accuracy_bits() >= SHARP or found[0].is_zero(),
        )
        for name, ball, double in zip(("loss", "gradient"), (loss, gradient), risk.evaluate(state), strict=True):
            yield Proved(f"{name} at step {step}", ball, basis, np.asarray(double)[()])


def _sharp(bits: int, what: str, find: Callable[[int], T], known: Callable[[T], bool], doublings: int = 4) -> T:
    """Return what is found with some bits, if that says enough; else say how many bits would do."""
    first = None
    for more in (bits * 2**k for k in range(doublings + 1)):
        with contextlib.suppress(ArithmeticError):
            found = find(more)
            first = found if more == bits else first
            if known(found) and more > bits:
                raise refuse("bits", bits, f"at least {more} for {what}")
            if known(found):
                return found
    if first is None:
        raise refuse("bits", bits, f"more than {bits * 2**doublings} for {what}")
    return first  # an honest interval, which more bits do not make one number


def _variogram(run: Trajectory) -> arb | None:
    """Return γ = L²Δ²/2 exactly, where a run was made from L and Δ; else None."""
    if not isinstance(run.family, Regression) or getattr(run.risk, "origin", 0) is not None:
        return None
    with ctx.workprec(512):  # four doubles multiplied
        return (arb(run.family.L) * arb(run.family.delta)) ** 2 / 2


def _counted(
    bits: int, name: str, count: Callable[[], Steps], basis: str, double: int | None, stated: float | None = 0.0
) -> Proved:
    """Count steps with some bits, and 32 more for the steps themselves."""

    def found(bits: int) -> Steps:
        with ctx.workprec(bits + 32):
            return count()

    steps = _sharp(bits, name, found, lambda steps: steps.low == steps.high)
    return Proved(name, steps, basis, double, stated or 0.0)


def _exchangeable(run: Trajectory, risk: ExchangeableRisk, bits: int) -> Iterator[Proved]:
    known, K, goal = _variogram(run), risk.K, run.epsilon > 0.0
    gamma = arb(risk.gamma) if known is None else known
    with ctx.workprec(bits + 32):
        if math.isfinite(risk.N):
            if risk.N <= LONGEST:
                floor = constants.least_loss(K, gamma, int(risk.N), risk.noise)
                yield Proved("floor", floor, "the sum over the counts of one feature", run.floor)
            return
        embedded = known is not None and run.family.coordinates == "embedding"
        speed = arb(run.family.delta) ** 4 / 4 if embedded else arb(risk.speed)
        yield Proved("tail constant", (arb(K) - 1) / (4 * speed), "docs/tail-laws.md, Theorem 1")
    if run.method != "flow":

        def c() -> arb:
            return arb(run.eta) * speed * gamma * K / arb(K - 1) ** 2

        what = "γ" if known is None else "L, Δ"
        basis = f"the map u ← u + c a s² for {what}, η and ε as they are, and a bounded sum"
        later = (None, None) if run.phases is None else (run.phases.II, run.phases.III)
        second, third = (phase and phase[0] for phase in later)
        if goal:
            found = run.steps, run.error
            yield _counted(bits, "steps", lambda: steps_to_loss(K, c(), gamma, run.epsilon), basis, *found)
        yield _counted(bits, "end of Phase I", lambda: steps_to(K, c(), arb(1) / 2), basis, second)
        start = "start of Phase III"
        yield _counted(bits, start, lambda: steps_to(K, c(), constants.tail_deficit(K)), basis, third)
    if known is not None and goal:
        epsilon, delta = run.epsilon, run.family.delta
        places: list[Any] = [("L*", constants.tail_deficit, crossover), ("L½", constants.half_deficit, half_way)]
        for name, deficit, double in places[: 2 if K >= 7 else 1]:
            with ctx.workprec(bits + 32):
                L = constants.lipschitz(deficit(K), arb(epsilon), arb(delta), K)
            basis = "a change of sign in the equation of the flow time, the first one"
            yield Proved(name, L, basis, double(epsilon, delta, K))
