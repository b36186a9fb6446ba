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
from icl_theory.engine.stops import SETTLED, STALL_AFTER
from icl_theory.engine.trajectory import Stop, Trajectory, saved_steps
from icl_theory.families.regression.error_form import at_nodes
from icl_theory.families.regression.phases import TAIL_RATIO, phases_of
from icl_theory.families.regression.population import PopulationRisk
from icl_theory.families.regression.prompts import moments, presence
from icl_theory.families.regression.tails import resting_loss, tail_limit
from icl_theory.grids.grid import Values, blank

QUERIES, INFINITE = 1024, 8192  # that are evaluated at a time: of finite prompts, and for N = ∞
WIDEST, SCORES = 200, 2**18  # queries of one point at most, and scores of all points that are evaluated at a time
STRIDES = (0.04, 0.02, 0.01)  # in x: shorter ones for points that longer ones leave in doubt
HOPELESS = 0.01  # relative error of a count above which they are left to a simulation instead
FARTHEST = 1e9  # steps
MARGIN = 2.0  # the shadow may be nearer to the run than the truth is, by this factor
LEVELS = (1.3, 1.1)  # multiples of the target excess at which run and shadow are compared as well
SHARES = (1.0, 0.9, 0.7)  # of the last step: where their losses and their attention are compared
DOUBT, APART = 0.1, 3e-8  # steps by which a count may be off, and relative distance of run and shadow
ROUNDING, ALIKE = 2.0**-50, 1e-14  # relative: of a loss, and between variograms that are multiples of one another
BLUR = 1e-11  # relative distance to a level at which rounding might decide
CAUTION = 2.0  # how far, by this factor, a run must be from where a simulation gives up
NEAR = 0.01  # relative distance of a maximum to a level that it might pass between two strides
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
        """Moves, and what is seen of the points, as a `Stack` gives them."""
        points, K, _ = states.shape
        scores, query = _beside(states), np.tile(np.arange(K), points)
        losses, gradient, attention = self._first._infinite(scores, query)
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
    """Whole numbers of steps as floats, (P,), and estimates of their errors.

    ``sure`` says which of them are beyond doubt. No run has come so far before ``earliest``.
    """

    steps: Array
    error: Array
    sure: NDArray[np.bool_]
    earliest: Array


def stacked(problems: Sequence[Any], risks: Sequence[Any], max_steps: int) -> Values:
    """Columns of problems of regression as one simulation each gives them, a loss only of those that are certain.

    The risks are those of the problems, each a `PopulationRisk`.
    """
    values = blank(problems[0].every_column(), len(problems))
    groups: list[list[int]] = []
    for i in (i for i, risk in enumerate(risks) if risk.features.K <= WIDEST):
        group = next((group for group in groups if _go_together(risks[group[0]], risks[i])), None)
        if group is None:
            groups.append([i])
        else:
            group.append(i)
    for members in groups:
        K, queries = risks[members[0]].features.K, QUERIES if math.isfinite(risks[members[0]].N) else INFINITE
        size = min(queries // K, SCORES // K**2)
        for start in range(0, len(members), size):
            left = members[start : start + size]
            for stride in STRIDES:
                found = _followed([problems[i] for i in left], [risks[i] for i in left], max_steps, stride)
                for i, run in zip(left, found.runs, strict=True):
                    if run is not None:
                        for name, value in problems[i].measured(run).items():
                            values[name][i] = value
                left = [i for i, again in zip(left, found.again, strict=True) if again]
                if not left:
                    break
    return values


class _Found(NamedTuple):
    """Runs with a first and a last state, None where there is any doubt, and where shorter strides may help."""

    runs: list[Trajectory | None]
    again: NDArray[np.bool_]


def _followed(problems: Sequence[Any], risks: Sequence[PopulationRisk], max_steps: int, stride: float) -> _Found:
    """Follow points to their targets."""
    eta, floor = np.array([problem.rate() for problem in problems]), np.array([risk.floor() for risk in risks])
    goal = np.array([problem.epsilon or 0.0 for problem in problems])
    above = np.array([problem.above or 0.0 for problem in problems])
    target = np.where(above > 0.0, floor + above, goal)
    plain = (target > floor * (1.0 + BLUR)) & ((above == 0.0) | (above >= VISIBLE * floor))
    stack = (Stack if math.isfinite(risks[0].N) else InfiniteStack)(risks, eta)
    start = np.zeros((len(risks), *risks[0].initial.shape))
    tail = np.array([tail_limit(risk, rate) or math.nan for risk, rate in zip(risks, eta, strict=True)])
    with np.errstate(all="ignore"):
        both = follow(
            stack, start, lambda seen, which: (seen[:, LOSS] <= target[which]) | ~plain[which],
            min(max_steps + 1.0, FARTHEST), stride,
        )  # fmt: skip
        losses, blur = [-run.seen[:, :, LOSS] for run in both], ROUNDING * target
        late = np.zeros(len(risks))
        for level in LEVELS:
            late = np.maximum(late, _crossing(both, losses, -(floor + level * (target - floor)), blur)[2])
        hit = _count(both, losses, -target, blur, late)
        last = np.where(hit.sure & (hit.steps <= max_steps), hit.steps, 0.0)
        plain &= (hit.steps <= max_steps) & _undisturbed(both[0], last)
        first, sure = _attends(both, 0.5 * presence(stack.probs, stack.N), last, late)
        rest = np.array([resting_loss(*pair) for pair in zip(risks, floor.tolist(), strict=True)])
        second, certain = _tail(both, rest, TAIL_RATIO * tail, last, late, saved_steps(max_steps, start[0].size))
        sure &= plain & hit.sure & (certain | (first >= last))  # then Phase I is all there is
        for share in SHARES:
            ours, theirs = (run.every(np.maximum(share * last, np.minimum(last, SINGLE)))[:MOVE] for run in both)
            sure &= (np.abs(ours - theirs) <= APART * np.abs(ours)).all(axis=0)
        again = plain & ~sure & (hit.error <= HOPELESS * hit.steps)
        seen = both[0].every(last)

    def run(i: int) -> Trajectory:
        steps, fast = int(last[i]), last[i] > AUTO_STEPS
        states = both[0].seen[0, i], seen[:, i]
        found = Trajectory(
            t=np.array([0, steps]), loss=np.array([state[LOSS] for state in states]), states=np.zeros((2, 0)),
            observed={"attention": np.array([state[ATTENTION] for state in states])}, steps=steps,
            stop=Stop.REACHED, stop_reason="", floor=float(floor[i]),
            method="fast" if fast else "exact", rule="gd", eta=float(eta[i]),
            epsilon=float(target[i]), error=float(hit.error[i]) if fast else None, states_error=None, risk=risks[i],
        )  # fmt: skip
        ends = (int(each[i]) if each[i] <= last[i] else None for each in (first, second))
        found.phases = phases_of(steps, *ends)
        if not math.isnan(tail[i]):
            found.regime = "sharp" if found.phases.III else "flat"
        return problems[i].named(found)

    return _Found([run(i) if sure[i] else None for i in range(len(risks))], again)


def _crossing(
    both: tuple[Sights, Sights], values: Sequence[Array], level: Array, blur: Array, after: Sequence[Any] = (-1, -1)
) -> tuple[Array, Array, Array]:
    """First times at which values of run and shadow have risen to a level, infinite where never, and their errors.

    The values are right to ``blur``; what parts run and shadow shows other errors.
    """
    (ours, rise), (theirs, _) = (
        run.first(each, level, index) for run, each, index in zip(both, values, after, strict=True)
    )
    exact = (ours <= SINGLE) | (np.isinf(ours) & np.isinf(theirs))
    error = MARGIN * np.abs(ours - theirs) + np.where(rise > 0.0, blur / rise, np.inf)
    return ours, theirs, np.where(exact, 0.0, error)


def _count(
    both: tuple[Sights, Sights],
    values: Sequence[Array],
    level: Array,
    blur: Array,
    late: Array,
    after: Sequence[Any] = (-1, -1),
) -> _Count:
    """Count the steps until values have risen to a level; ``late`` is an error in steps that was seen elsewhere."""
    t, other, error = _crossing(both, values, level, blur, after)
    error = np.where(t <= SINGLE, 0.0, np.maximum(error, late))
    clear = (np.abs(values[0][: SINGLE + 1] - level) > BLUR * np.abs(level)).all(axis=0)
    certain = clear & (np.ceil(t - error) == np.ceil(t + error)) & (error < DOUBT)
    never = np.isinf(t) & np.isinf(other)
    earliest = np.fmin(t, other) - np.where(np.isfinite(error), error, late) - 1.0
    return _Count(np.ceil(t), error, certain | never, earliest)


def _undisturbed(run: Sights, last: Array) -> NDArray[np.bool_]:
    """Whether the loss of each run falls all the way, and a simulation sees neither a stall nor a standstill."""
    t, loss = run.t, run.seen[:, :, LOSS]
    until, decade = t[:, None] < last, round(math.log(10.0) / run.stride) - 1
    rises = until[1:] & (np.diff(loss, axis=0) >= 0.0)
    pace = run.seen[:, :, MOVE] * (1.0 + t[:, None])
    slow = until & (t[:, None] > SINGLE) & (pace < CAUTION * SETTLED * TOLERANCE)
    late = until[decade:] & (t[decade:, None] > STALL_AFTER / CAUTION)
    stalls = late & (loss[:-decade] - loss[decade:] < 1e-3 * CAUTION * loss[decade:])
    return np.asarray(~(rises.any(axis=0) | slow.any(axis=0) | stalls.any(axis=0)))


def _attends(both: tuple[Sights, Sights], half: Array, last: Array, late: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Step from which on every query has half its attention on its feature; of no use where it is beyond last."""
    values = [run.seen[:, :, ATTENTION].reshape(len(run.t), -1) for run in both]
    blur = np.full(half.size, ROUNDING)
    each = _count(both, values, half.ravel(), blur, np.repeat(late, half.shape[1]))
    until = (both[0].t[:, None] < np.repeat(last, half.shape[1]))[1:]
    above = values[0] >= half.ravel()
    falls = (until & above[:-1] & ~above[1:]).any(axis=0)
    steps = each.steps.reshape(half.shape).max(axis=1)
    early = (each.steps + each.error + 1.0).reshape(half.shape) < steps[:, None]  # another query decides
    certain = (early | each.sure.reshape(half.shape)) & ~falls.reshape(half.shape)
    beyond = each.earliest.reshape(half.shape).max(axis=1) > last
    return steps, certain.all(axis=1) | beyond


def _tail(
    both: tuple[Sights, Sights], floor: Array, limit: Array, last: Array, late: Array, schedule: NDArray[np.int64]
) -> tuple[Array, NDArray[np.bool_]]:
    """Step at which t (loss - floor) falls below its limit for good; of no use where it is beyond last.

    A simulation looks for it behind the last saved step that is above the limit.
    """
    excess = [run.t[:, None] * (run.seen[:, :, LOSS] - floor) for run in both]
    end, other = (last * (run.at(run.seen[:, :, LOSS], last) - floor) for run in both)
    over = [(each > limit) & (run.t[:, None] <= last) for run, each in zip(both, excess, strict=True)]
    begins = [_last_rise(each) for each in over]
    blur = ROUNDING * (limit + last * floor)
    found = _count(both, [-each for each in excess], -limit, blur, late, begins)
    until = np.minimum(found.steps - 1.0, last)
    saved = np.searchsorted(schedule, until, side="right") > np.searchsorted(schedule, both[0].t[begins[0]])
    passes = over[0].any(axis=0) & (end <= limit)
    sure = (~passes | (found.sure & saved)) & ((end > limit) == (other > limit))
    sure &= (np.abs(end - limit) > APART * limit) & ~_nearly(excess[0], limit, both[0].t[:, None] <= last)
    steps = np.where(end > limit, np.inf, np.where(passes, found.steps, 0.0))
    without = np.isnan(limit)
    return np.where(without, np.inf, steps), without | sure


def _nearly(values: Array, level: Array, until: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether values, (T, P), turn so near to a level that they may pass it between two strides."""
    inner, before, after = values[1:-1], values[:-2], values[2:]
    turns = ((inner >= before) & (inner >= after)) | ((inner <= before) & (inner <= after))
    near = np.abs(inner - level) <= NEAR * level
    return np.asarray((turns & near & until[1:-1]).any(axis=0))


def _last_rise(over: NDArray[np.bool_]) -> Index:
    """Row at which each column, (T, P), becomes true for the last time, or any where it never does."""
    rises = over.copy()
    rises[1:] &= ~over[:-1]
    return np.asarray(len(over) - 1 - rises[::-1].argmax(axis=0))
