"""K x K scores: points of a sweep whose iterates are followed side by side.

What the strides of `icl_theory.engine.multistep` leave in doubt, or a simulation might end for another reason than
its target, is left to a simulation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine.descent import AUTO_STEPS, TOLERANCE, VISIBLE
from icl_theory.engine.multistep import SINGLE, Index, Sights, follow
from icl_theory.engine.recorder import SETTLED, STALL_AFTER
from icl_theory.engine.trajectory import Stop, Trajectory, saved_steps
from icl_theory.families.regression.error_form import at_nodes
from icl_theory.families.regression.phases import TAIL_RATIO, phases_of
from icl_theory.families.regression.population import PopulationRisk
from icl_theory.families.regression.prompts import moments, presence
from icl_theory.families.regression.tails import tail_limit
from icl_theory.grids.grid import Column, Values, blank

QUERIES, INFINITE = 1024, 8192  # that are evaluated at a time: of finite prompts, and for N = ∞
WIDEST = 200  # queries of one point at most
STRIDES = (0.04, 0.02, 0.01)  # in x: shorter ones for points that longer ones leave in doubt
HOPELESS = 0.01  # relative error of a count above which they are left to a simulation instead
FARTHEST = 1e9  # steps
MARGIN = 2.0  # the shadow may be nearer to the run than the truth is, by this factor,
LEVELS, SHARES = (
    (1.3, 1.1),
    (1.0, 0.9, 0.7),
)  # and by more at one place: others are multiples of target and last step
DOUBT, APART = 0.1, 3e-8  # steps by which a count may be off; relative distance of values of run and shadow
BLUR, ALIKE = 1e-11, 1e-14  # relative distances at which rounding might decide, and that it may be
CAUTION = 2.0  # how far, by this factor, a run must be from where a simulation gives up
NEAR = 0.01  # relative distance to its limit at which the maximum between two strides might be on the other side
LOSS, ATTENTION, MOVE = 0, slice(1, -1), -1  # of what is seen: the attention has a column for each query


class Stack:
    """The moves of several points with the same K and N, evaluated together.

    Parameters
    ----------
    risks : sequence of PopulationRisk
        Of finite prompts; their error forms have one rank.
    eta : ndarray, (P,)
        Learning rates.
    """

    def __init__(self, risks: Sequence[PopulationRisk], eta: Array) -> None:
        self.N, self.eta = risks[0].N, eta
        self.probs = np.array([risk.features.probs for risk in risks])
        self._variograms = np.array([risk._form.variogram for risk in risks])
        self._factors = np.array([risk._form.factor for risk in risks])
        self._own = 2.0 * self._variograms + np.array([risk.noise**2 for risk in risks])[:, None, None]

    def __call__(self, states: Array, which: Index) -> tuple[Array, Array]:
        """Moves of points at scores, (n, K, K), and loss, attention of the queries and largest move, (n, K + 2)."""
        (points, K), forms = self.probs[which].shape, (self._variograms[which], self._factors[which])

        def form(queries: NDArray[np.intp], z: Array, product: Array) -> Array:
            return at_nodes(*forms, queries, z, product)

        probs = self.probs[which]
        each = np.broadcast_to(probs[:, :, None], states.shape)
        scores, each, own = (_beside(arrays) for arrays in (states, each, self._own[which]))
        found = moments(scores, each, own, self.N, form)
        gradient = probs[:, None] * found.gradient.reshape(K, points, K).swapaxes(0, 1)
        moves = -self.eta[which, None, None] * gradient
        loss = np.einsum("pk,pk->p", probs, found.loss.reshape(points, K))
        attention = np.einsum("kpk->pk", found.attention.reshape(K, points, K))
        return moves, np.column_stack([loss, attention, np.abs(moves).max(axis=(1, 2))])


class InfiniteStack:
    """The same for N = ∞, of points whose variograms are multiples of one another.

    Parameters
    ----------
    risks : sequence of PopulationRisk
        Of infinite prompts, of the same features.
    eta : ndarray, (P,)
        Learning rates.
    """

    def __init__(self, risks: Sequence[PopulationRisk], eta: Array) -> None:
        self.N, self._first = math.inf, risks[0]
        self.probs = np.array([risk.features.probs for risk in risks])
        self._scale = np.array([_largest(risk) for risk in risks]) / _largest(risks[0])
        self._rate = eta * self._scale

    def __call__(self, states: Array, which: Index) -> tuple[Array, Array]:
        """As those of a `Stack`."""
        points, K, _ = states.shape
        scores, query = _beside(states), np.tile(np.arange(K), points)
        weight, total = self._first._softmax(scores)
        attention = weight[query, np.arange(points * K)] / total
        losses, gradient = self._first._infinite(scores, query)
        moves = -self._rate[which, None, None] * gradient.reshape(K, points, K).swapaxes(0, 1)
        loss = self._scale[which] * np.einsum("pk,pk->p", self.probs[which], losses.reshape(points, K))
        return moves, np.column_stack([loss, attention.reshape(points, K), np.abs(moves).max(axis=(1, 2))])


def _largest(risk: PopulationRisk) -> float:
    return float(risk._form.variogram.max())


def _go_together(one: PopulationRisk, other: PopulationRisk) -> bool:
    """Whether a stack may have both points."""
    if (one.features.K, one.N) != (other.features.K, other.N):
        return False
    if math.isfinite(one.N):
        return one._form.factor.shape == other._form.factor.shape
    scale = _largest(other) / _largest(one) if _largest(one) > 0.0 else 0.0
    off = np.abs(other._form.variogram - scale * one._form.variogram).max()
    return np.array_equal(one.features.probs, other.features.probs) and bool(off <= ALIKE * _largest(other))


def _beside(arrays: Array) -> Array:
    """Matrices, (n, K, K), side by side, (K, n K)."""
    return np.ascontiguousarray(arrays.swapaxes(0, 1)).reshape(arrays.shape[1], -1)


class _Count(NamedTuple):
    """Whole numbers of steps as floats, (P,); estimates of their errors; which of them are beyond doubt."""

    steps: Array
    error: Array
    sure: NDArray[np.bool_]


def stacked(
    columns: tuple[Column, ...], problems: Sequence[Any], risks: Sequence[Any], max_steps: int
) -> tuple[Values, NDArray[np.bool_]]:
    """Measure problems of regression as one simulation each does, and say for which of them that is certain.

    The risks are those of the problems, each a `PopulationRisk`.
    """
    values, sure = blank(columns, len(problems)), np.zeros(len(problems), dtype=bool)
    groups: list[list[int]] = []
    for i in (i for i, risk in enumerate(risks) if risk.features.K <= WIDEST):
        group = next((group for group in groups if _go_together(risks[group[0]], risks[i])), None)
        if group is None:
            groups.append([i])
        else:
            group.append(i)
    for members in groups:
        first = risks[members[0]]
        size = (QUERIES if math.isfinite(first.N) else INFINITE) // first.features.K
        for start in range(0, len(members), size):
            left = members[start : start + size]
            for stride in STRIDES:
                found = _followed([problems[i] for i in left], [risks[i] for i in left], max_steps, stride)
                for i, run in zip(left, found.runs, strict=True):
                    if run is not None:
                        sure[i] = True
                        for name, value in problems[i].measured(run).items():
                            values[name][i] = value
                left = [i for i, again in zip(left, found.again, strict=True) if again]
                if not left:
                    break
    return values, sure


class _Found(NamedTuple):
    """Runs with a first and a last state, None where there is any doubt, and where shorter strides may help."""

    runs: list[Trajectory | None]
    again: NDArray[np.bool_]


def _followed(
    problems: Sequence[Any], risks: Sequence[PopulationRisk], max_steps: int, stride: float
) -> _Found:  # fmt: skip
    """Follow points to their targets."""
    eta, floor = np.array([problem.rate() for problem in problems]), np.array([risk.floor() for risk in risks])
    goal = np.array([problem.epsilon or 0.0 for problem in problems])
    above = np.array([problem.above or 0.0 for problem in problems])
    target = np.where(above > 0.0, floor + above, goal)
    plain = (target > floor * (1.0 + BLUR)) & ((above == 0.0) | (above >= VISIBLE * floor))
    stack = (Stack if math.isfinite(risks[0].N) else InfiniteStack)(risks, eta)
    start = np.zeros((len(risks), *risks[0].initial.shape))
    with np.errstate(all="ignore"):
        both = follow(
            stack, start, lambda seen, which: (seen[:, LOSS] <= target[which]) | ~plain[which],
            min(max_steps + 1.0, FARTHEST), stride,
        )  # fmt: skip
        losses = [-run.seen[:, :, LOSS] for run in both]
        late = np.max([_count(both, losses, -level * target).error for level in LEVELS], axis=0)
        late = np.where(np.isfinite(late), late, 0.0)
        hit = _count(both, losses, -target, late)
        last = np.where(hit.sure & (hit.steps <= max_steps), hit.steps, 0.0)
        plain &= (hit.steps <= max_steps) & _undisturbed(both[0], last)
        first, attends = _attends(both, 0.5 * presence(stack.probs, stack.N), last, late)
        tail = np.array([tail_limit(risk, rate) or math.nan for risk, rate in zip(risks, eta, strict=True)])
        schedule = saved_steps(max_steps, start[0].size)
        second, tails = _tail(both, floor, TAIL_RATIO * tail, last, late, schedule)
        tails |= first >= last  # then Phase I is all there is
        sure = plain & hit.sure & attends & tails
        for share in SHARES:
            ours, theirs = (run.every(np.maximum(share * last, np.minimum(last, SINGLE)))[:MOVE] for run in both)
            sure &= (np.abs(ours - theirs) <= APART * np.abs(ours)).all(axis=0)
        seen = both[0].every(last)

    def run(i: int) -> Trajectory:
        steps, fast = int(last[i]), last[i] > AUTO_STEPS
        attention = np.array([both[0].seen[0, i, ATTENTION], seen[ATTENTION, i]])
        found = Trajectory(
            t=np.array([0, steps]), loss=np.array([both[0].seen[0, i, LOSS], seen[LOSS, i]]),
            states=np.zeros((2, 0)), observed={"attention": attention}, steps=steps, stop=Stop.REACHED,
            stop_reason=Stop.REACHED.say(step=steps, epsilon=target[i], floor=floor[i]), floor=float(floor[i]),
            method="fast" if fast else "exact", rule="gd", eta=float(eta[i]), epsilon=float(target[i]),
            error=float(hit.error[i]) if fast else None, states_error=None, risk=risks[i],
        )  # fmt: skip
        ends = (int(each[i]) if each[i] <= last[i] else None for each in (first, second))
        found.phases = phases_of(steps, *ends)
        if not math.isnan(tail[i]):
            found.regime = "sharp" if found.phases.III else "flat"
        return problems[i].named(found)

    again = plain & ~sure & (hit.error <= HOPELESS * hit.steps)
    return _Found([run(i) if sure[i] else None for i in range(len(risks))], again)


def _count(
    both: tuple[Sights, Sights], values: Sequence[Array], level: Array, late: Array | float = 0.0,
    after: Sequence[Any] = (-1, -1),
) -> _Count:  # fmt: skip
    """First whole steps at which values have risen to a level, from a run and its shadow; infinite where never.

    The run may be ``late`` by so many steps at least.
    """
    ours, theirs = (run.first(*each) for run, *each in zip(both, values, (level, level), after, strict=True))
    single, never = ours <= SINGLE, np.isinf(ours) & np.isinf(theirs)
    error = np.where(single | never, 0.0, np.maximum(MARGIN * np.abs(ours - theirs), late) + 1e-13 * ours)
    clear = (np.abs(values[0][: SINGLE + 1] - level) > BLUR * np.abs(level)).all(axis=0)
    certain = clear & (np.ceil(ours - error) == np.ceil(ours + error)) & (error < DOUBT)
    return _Count(np.ceil(ours), error, never | certain)


def _undisturbed(run: Sights, last: Array) -> NDArray[np.bool_]:
    """Whether the loss of each run falls all the way, and a simulation sees neither a stall nor a standstill."""
    t, loss = run.t, run.seen[:, :, LOSS]
    until, decade = t[:, None] < last, round(math.log(10.0) / run.stride) - 1
    rises = until[SINGLE + 1 :] & (np.diff(loss[SINGLE:], axis=0) >= 0.0)
    pace = run.seen[:, :, MOVE] * (1.0 + t[:, None])
    slow = until & (t[:, None] > SINGLE) & (pace < CAUTION * SETTLED * TOLERANCE)
    late = until[decade:] & (t[decade:, None] > STALL_AFTER / CAUTION)
    stalls = late & (loss[:-decade] - loss[decade:] < 1e-3 * CAUTION * loss[decade:])
    return np.asarray(~(rises.any(axis=0) | slow.any(axis=0) | stalls.any(axis=0)))


def _attends(
    both: tuple[Sights, Sights], half: Array, last: Array, late: Array
) -> tuple[Array, NDArray[np.bool_]]:  # fmt: skip
    """Step from which on every query has half its attention on its feature; of no use where it is beyond last."""
    values = [run.seen[:, :, ATTENTION].reshape(len(run.t), -1) for run in both]
    each = _count(both, values, half.ravel(), np.repeat(late, half.shape[1]))
    until = (both[0].t[:, None] < np.repeat(last, half.shape[1]))[1:]
    above = values[0] >= half.ravel()
    falls = (until & above[:-1] & ~above[1:]).any(axis=0)
    steps = each.steps.reshape(half.shape).max(axis=1)
    early = (each.steps + each.error + 1.0).reshape(half.shape) < steps[:, None]  # another query decides
    certain = (early | each.sure.reshape(half.shape)) & ~falls.reshape(half.shape)
    return steps, (certain | (steps > last)[:, None]).all(axis=1)


def _tail(
    both: tuple[Sights, Sights], floor: Array, limit: Array, last: Array, late: Array, schedule: NDArray[np.int64]
) -> tuple[Array, NDArray[np.bool_]]:
    """Step at which t (loss - floor) falls below its limit for good; of no use where it is beyond last.

    A simulation looks for it behind the last saved step that is above the limit.
    """
    excess = [run.t[:, None] * (run.seen[:, :, LOSS] - floor) for run in both]
    over = [(each > limit) & (run.t[:, None] <= last) for run, each in zip(both, excess, strict=True)]
    begins = [_last_rise(each) for each in over]
    some = over[0].any(axis=0)
    found = _count(both, [-each for each in excess], -limit, late, begins)
    end = np.minimum(found.steps - 1.0, last)
    saved = np.searchsorted(schedule, end, side="right") > np.searchsorted(schedule, both[0].t[begins[0]])
    sure = ~some | (found.sure & (saved | (end == last)))
    most = np.where(both[0].t[:, None] <= last, excess[0], 0.0).max(axis=0)
    without = np.isnan(limit)
    steps = np.where(without, np.inf, np.where(some, found.steps, 0.0))
    return steps, without | (sure & (np.abs(most - limit) > NEAR * limit))


def _last_rise(over: NDArray[np.bool_]) -> Index:
    """Row at which each column, (T, P), becomes true for the last time, or any where it never does."""
    rises = over.copy()
    rises[1:] &= ~over[:-1]
    return np.asarray(len(over) - 1 - rises[::-1].argmax(axis=0))
