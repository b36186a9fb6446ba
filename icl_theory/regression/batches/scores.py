"""Batches of K x K scores: many points of a sweep in one array, by the strides that single runs take.

A point is done where its run, its shadow and what rounding leaves agree on every count.
Others, and those that a simulation might end for another reason than their target, are
simulated one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine.blocks import Blocks
from icl_theory.engine.capabilities import ColumnGradients
from icl_theory.engine.collocation import Index
from icl_theory.engine.counting import ROUNDING
from icl_theory.engine.descent import AUTO_STEPS, TOLERANCE, VISIBLE
from icl_theory.engine.progress import Progress
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules import GradientDescent
from icl_theory.engine.skip import NODES, Strides
from icl_theory.engine.steps import Descent
from icl_theory.engine.stops import SETTLED, STALL_AFTER
from icl_theory.engine.trajectory import saved_steps
from icl_theory.regression.batches.finite_prompts import BLUR, MOST
from icl_theory.regression.phases import TAIL_RATIO
from icl_theory.regression.risks.error_form import at_nodes
from icl_theory.regression.risks.population import PopulationRisk
from icl_theory.regression.risks.prompts import presence
from icl_theory.regression.tails import resting_loss, tail_limit
from icl_theory.tokens.square import Count, moments

Mask = NDArray[np.bool_]
SINGLE = 64  # steps that are taken one by one at first
# those that show where runs lead
FITTED = np.round(np.geomspace(SINGLE / 4.0, SINGLE, NODES + 1)).astype(int)
GRID = 0.2  # in x: distance of the times at which runs are looked at
APART = 3e-8  # relative distance of run and shadow at the end
CAUTION = 2.0  # how far, by this factor, a run must be from where a simulation gives up


class ScoreBatch(Risk):
    """Scores of several points with the same K and N side by side, (K, P K).

    No column meets another one, and the gradient of each has the learning rate of its
    point in it. For finite prompts the error forms have one rank; for infinite ones
    features are the same, and variograms are multiples.
    """

    def __init__(self, risks: Sequence[PopulationRisk], eta: Array) -> None:
        self.K = risks[0].features.K
        self.N = risks[0].N
        self.count = len(risks)
        self.point, self.query = np.divmod(np.arange(self.count * self.K), self.K)
        self.probs = np.array([risk.features.probs for risk in risks])
        self._variograms, self._factors = (
            np.array([getattr(risk._form, name) for risk in risks])
            for name in ("variogram", "factor")
        )
        self._first = risks[0]
        self._scale = np.array([_largest(risk) for risk in risks]) / _largest(risks[0])
        noise = np.array([risk.noise**2 for risk in risks])
        self._spread = noise[self.point] if noise.any() else None
        own = 2.0 * self._variograms + noise[:, None, None]
        self._own = own[self.point, :, self.query].T
        self._probs = self.probs[self.point].T
        self._weight = self.probs.ravel()
        self._rate = (
            (eta[:, None] * self.probs).ravel()
            if math.isfinite(self.N)
            else (eta * self._scale)[self.point]
        )

    @property
    def initial(self) -> Array:
        """Zero scores."""
        return np.zeros((self.K, self.point.size))

    def columns(self, columns: Array, which: Index) -> tuple[Array, Array, Array]:
        """Gradients times learning rates of some columns, (K, n), their parts of the loss, and target attention."""
        if math.isinf(self.N):
            losses, gradient, attention = self._first._infinite(
                columns, self.query[which]
            )
            return (
                self._rate[which] * gradient,
                (self._weight * self._scale[self.point])[which] * losses,
                attention,
            )

        def form(some: NDArray[np.intp], rows: slice, z: Array, product: Array) -> None:
            at_nodes(self._variograms, self._factors, which[some], z, product)

        own = self._own[:, which]
        spread = None
        if self._spread is not None:
            spread = np.broadcast_to(self._spread[which], own.shape)
        found = moments(
            columns, self._probs[:, which], own, [Count(self.N)], form, spread=spread
        )
        attention = found.attention[self.query[which], np.arange(which.size)]
        return (
            self._rate[which] * found.gradient,
            self._weight[which] * found.loss,
            attention,
        )

    @property
    def column_gradients(self) -> ColumnGradients:
        """Gradients of single columns, times their learning rates."""
        return lambda columns, which: self.columns(columns, which)[0]

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Gradient of all columns; there is no loss of all points."""
        return 0.0, self.columns(params, np.arange(self.point.size))[0]

    def of(self, points: Index) -> Index:
        """Columns of some points."""
        return np.asarray((points[:, None] * self.K + np.arange(self.K)).ravel())


class Seen(NamedTuple):
    """Of some points: loss, target attention of each query, gradient times learning rate, (n,), (n, K), (n, K²)."""

    loss: Array
    attention: Array
    gradient: Array


def look(batch: ScoreBatch, rows: Array, points: Index) -> Seen:
    """See points whose columns are ``rows``, (n K, K)."""
    gradient, loss, attention = batch.columns(
        np.ascontiguousarray(rows.T), batch.of(points)
    )
    shape = len(points), batch.K
    return Seen(
        loss.reshape(shape).sum(axis=1),
        attention.reshape(shape),
        gradient.T.reshape(len(points), -1),
    )


class _Followed(NamedTuple):
    """Runs at the times t, (T,): what `_summary` says, (4, T, P)."""

    t: Array
    seen: Array
    strides: Strides


def _summary(batch: ScoreBatch, seen: Seen, points: Index) -> Array:
    """Loss, least share of the attention that a query can have, largest move, and mean attention, (4, n)."""
    share = (seen.attention / presence(batch.probs[points], batch.N)).min(axis=1)
    return np.array(
        [
            seen.loss,
            share,
            np.abs(seen.gradient).max(axis=1),
            seen.attention.mean(axis=1),
        ]
    )


def _follow(
    batch: ScoreBatch, target: Array, last: float, first: float = 0.6
) -> _Followed:
    """Follow points until they have their target losses, with a ``first`` stride in x."""
    rows = np.ascontiguousarray(batch.initial.T)
    every = np.arange(batch.count)
    carry = np.zeros_like(rows)
    seen = []
    taken = {}
    for t in range(SINGLE + 1):
        here = look(batch, rows, every)
        seen.append(_summary(batch, here, every))
        if t in FITTED:
            taken[t] = rows
        if t < SINGLE:
            part = -here.gradient.reshape(rows.shape) - carry  # Kahan's compensated sum
            moved = rows + part
            carry = (moved - rows) - part
            rows = moved
    finite = np.isfinite(rows).reshape(batch.count, -1).all(axis=1)
    active: Mask = np.asarray((np.array(seen)[:, 0] > target).all(axis=0) & finite)
    # moved by what rounding does in many steps, which an orbit may enlarge
    other = rows * (1.0 + np.where(np.arange(batch.K) % 2, 2.0**-44, -(2.0**-44)))
    strides = Strides(
        Blocks(Descent(batch, 1.0, GradientDescent())),
        TOLERANCE,
        rows,
        other,
        SINGLE,
        first,
        10**9,
        False,
        share=0.03,
        aim=0.8,
        separate=True,
        solved=0.01,
    )
    strides.expect(taken)
    times = [*map(float, range(SINGLE + 1))]
    x = math.log1p(SINGLE)
    while active.any() and times[-1] < last:
        ahead = x + GRID * np.arange(1, 3)
        strides.reach(np.where(active[batch.point], ahead[-1], 0.0))
        active &= (strides.x >= ahead[-1] - 1e-9).reshape(batch.count, -1).all(axis=1)
        for x in ahead.tolist():
            points = np.flatnonzero(active)
            row = np.full((4, batch.count), np.nan)
            if points.size:
                columns = batch.of(points)
                run, _ = strides.at(np.full(len(columns), x), columns)
                row[:, points] = _summary(batch, look(batch, run, points), points)
            times.append(math.expm1(x))
            seen.append(row)
            active &= ~(row[0] <= target)
    return _Followed(np.array(times), np.array(seen).swapaxes(0, 1), strides)


class _Count(NamedTuple):
    """Whole numbers of steps as floats, (P,), infinite where there is none; their errors; which are certain."""

    steps: Array
    error: Array
    sure: Mask


Value = Callable[[Array, Seen, Index], Array]


def _crossings(
    batch: ScoreBatch,
    found: _Followed,
    values: Array,
    value: Value,
    blur: Array,
    after: Array,
    doubt: float = 0.1,
) -> _Count:
    """Count steps until a value, (T, P), has risen to zero for the first time after some rows.

    How far the value of the shadow is from that of the run there says how late the run
    may be. Counts that may be off by ``doubt`` of a step are left to a simulation.
    """
    beyond = (values >= 0.0) & (np.arange(len(values))[:, None] > after)
    row = beyond.argmax(axis=0)
    ever = beyond.any(axis=0)
    steps = np.where(ever, found.t[row], np.inf)
    error = np.zeros(batch.count)
    points = np.flatnonzero(ever & (row > SINGLE))
    if points.size:
        columns = batch.of(points)
        low = row[points] - 1
        high = row[points]
        ends = found.t[low], found.t[high], values[low, points], values[high, points]

        def states(x: Array) -> tuple[Array, Array]:
            return found.strides.at(np.repeat(x, batch.K), columns)

        def at(x: Array, side: int = 0) -> Array:
            return value(np.expm1(x), look(batch, states(x)[side], points), points)

        x = crossing(at, np.log1p(ends[0]), np.log1p(ends[1]), *ends[2:])
        steps[points] = time = np.expm1(x)
        # where the value is bent in one sense, it rises by no less than it does on one
        # of the sides
        slope = np.fmin(ends[2] / (ends[0] - time), ends[3] / (ends[1] - time))
        margin = found.strides.margin.reshape(batch.count, -1).max(axis=1)[points]
        missed = at(x)
        apart = at(x, 1) - missed
        late = np.maximum(
            margin * np.abs(apart) / slope,
            _late(batch, found.strides, *states(x), points),
        )
        error[points] = late + (blur[points] + np.abs(missed)) / slope
    near = np.abs(values[: SINGLE + 1]) <= BLUR / ROUNDING * blur
    clear = (
        ~near.any(axis=0)
        & (np.ceil(steps - error) == np.ceil(steps + error))
        & (error < doubt)
    )
    last = values[np.isfinite(values).sum(axis=0) - 1, np.arange(batch.count)]
    return _Count(np.ceil(steps), error, np.where(ever, clear, last < -APART))


def _late(
    batch: ScoreBatch, strides: Strides, run: Array, shadow: Array, points: Index
) -> Array:
    """By how many steps runs may be early or late: what parts them from their shadows, over a step's decrease."""
    gradient = look(batch, run, points).gradient
    columns = batch.of(points)
    off = (
        strides.margin[columns, None] * np.abs(run - shadow)
        + strides.left[columns, None]
    )
    off = off.reshape(len(points), -1)
    return np.asarray(
        np.sum(off * np.abs(gradient), axis=1) / np.sum(gradient**2, axis=1)
    )


def crossing(
    value: Callable[[Array], Array], low: Array, high: Array, below: Array, above: Array
) -> Array:
    """Zeros between two places by the method of Pegasus; the values are of different signs."""
    for _ in range(30):
        with np.errstate(divide="ignore", invalid="ignore"):
            middle = high - above * (high - low) / (above - below)
            middle = np.where(above == 0.0, high, middle)
            here = value(middle)
            crossed = here * above <= 0.0
            low = np.where(crossed, high, low)
            below = np.where(crossed, above, below * above / (above + here))
        moved = np.abs(middle - high).max()
        high = middle
        above = here
        if not moved > 1e-13:
            break
    return high


def batched_scores(
    posed: Mapping[int, tuple[Any, PopulationRisk]], max_steps: int
) -> Iterator[tuple[list[int], dict[str, Array]]]:
    """Yield some problems at a time, and columns as one simulation each gives them; a loss in doubt is NaN."""
    groups: list[list[int]] = []
    for i, (_, risk) in posed.items():
        group = next(
            (group for group in groups if _go_together(posed[group[0]][1], risk)), []
        )
        if not group:
            groups.append(group)
        group.append(i)
    with Progress("", "runs") as shown:
        for done, members in enumerate(groups):
            shown.update(done, len(groups))
            yield members, _measured([posed[i] for i in members], max_steps)


def _measured(
    posed: Sequence[tuple[Any, PopulationRisk]], max_steps: int
) -> dict[str, Array]:
    """Columns of points that go together."""
    problems = [problem for problem, _ in posed]
    risks = [risk for _, risk in posed]
    eta = np.array([problem.rate() for problem in problems])
    floor = np.array([risk.floor() for risk in risks])
    goal, above = (
        np.array([getattr(each, name) or 0.0 for each in problems])
        for name in ("epsilon", "above")
    )
    target = np.where(above > 0.0, floor + above, goal)
    plain = (target > floor * (1.0 + BLUR)) & (
        (above == 0.0) | (above >= VISIBLE * floor)
    )
    batch = ScoreBatch(risks, eta)
    with np.errstate(all="ignore"):
        found = _follow(
            batch, np.where(plain, target, np.inf), min(max_steps + 1.0, MOST)
        )
        t = found.t[:, None]
        share = found.seen[1]
        first_row = np.full(len(risks), -1)
        hit = _crossings(
            batch,
            found,
            target - found.seen[0],
            lambda t, seen, points: target[points] - seen.loss,
            ROUNDING * target,
            first_row,
        )
        last = np.where(hit.sure & (hit.steps <= max_steps), hit.steps, 0.0)
        sure = plain & hit.sure & (hit.steps <= max_steps) & _undisturbed(found, last)
        present = presence(batch.probs, batch.N)
        attends = _crossings(
            batch,
            found,
            share - 0.5,
            lambda t, seen, points: (
                (seen.attention / present[points]).min(axis=1) - 0.5
            ),
            np.full(len(risks), ROUNDING),
            first_row,
        )
        falls = ((t[1:] < last) & (share[:-1] >= 0.5) & (share[1:] < 0.5)).any(axis=0)
        sure &= (attends.sure & ~falls) | (
            attends.steps - np.nan_to_num(attends.error) - 1.0 > last
        )
        loss, attention = _ends(batch, found, last)
        rest = np.array(
            [resting_loss(*pair) for pair in zip(risks, floor.tolist(), strict=True)]
        )
        tail = np.array(
            [
                tail_limit(risk, rate) or math.nan
                for risk, rate in zip(risks, eta, strict=True)
            ]
        )
        schedule = saved_steps(max_steps, batch.K**2)
        second, certain = _tail(
            batch, found, rest, TAIL_RATIO * tail, last, loss, schedule
        )
        first = np.minimum(attends.steps, last)
        sure &= certain | (first >= last)  # then Phase I is all there is
    second = np.maximum(first, np.minimum(second, last))
    fast = last > AUTO_STEPS
    decays = second < last
    return {
        "eta_used": eta,
        "steps": last,
        "T_I": first,
        "T_II": second - first,
        "T_III": last - second,
        "last": last,
        "method": np.where(fast, "fast", "exact"),
        "error": np.where(fast, hit.error, 0.0),
        "loss": np.where(sure, loss, np.nan),
        "floor": floor,
        "attention": attention,
        "tail_constant": tail,
        "tail_ratio": last * (loss - rest) / tail,
        "regime": np.where(np.isnan(tail), "", np.where(decays, "sharp", "flat")),
    }


def _ends(batch: ScoreBatch, found: _Followed, last: Array) -> tuple[Array, Array]:
    """Loss and mean attention at the last steps, (P,); NaN where run and shadow are too far apart."""
    loss, _, _, attention = found.seen[
        :, np.minimum(last, SINGLE).astype(int), np.arange(batch.count)
    ]
    points = np.flatnonzero(last > SINGLE)
    if points.size:
        columns = batch.of(points)
        states = found.strides.at(np.log1p(last)[batch.point[columns]], columns)
        ours, theirs = (
            _summary(batch, look(batch, rows, points), points) for rows in states
        )
        near = (np.abs(ours - theirs) <= APART * np.abs(ours))[[0, 3]].all(axis=0)
        loss[points], attention[points] = np.where(near, ours[[0, 3]], np.nan)
    return loss, attention


def _undisturbed(found: _Followed, last: Array) -> Mask:
    """Whether the loss of each run falls all the way, and a simulation sees neither a stall nor a standstill."""
    t, (loss, _, move, _), decade = (
        found.t[:, None],
        found.seen,
        round(math.log(10.0) / GRID) - 1,
    )
    until = t < last
    rises = until[1:] & (np.diff(loss, axis=0) >= 0.0)
    slow = until & (t > SINGLE) & (move * (1.0 + t) < CAUTION * SETTLED * TOLERANCE)
    late = until[decade:] & (t[decade:] > STALL_AFTER / CAUTION)
    stalls = late & (loss[:-decade] - loss[decade:] < 1e-3 * CAUTION * loss[decade:])
    return np.asarray(~(rises.any(axis=0) | slow.any(axis=0) | stalls.any(axis=0)))


def _tail(
    batch: ScoreBatch,
    found: _Followed,
    rest: Array,
    limit: Array,
    last: Array,
    loss: Array,
    schedule: Index,
) -> tuple[Array, Mask]:
    """Step at which t (loss - rest) falls below its limit for good; meaningless beyond ``last``.

    A simulation looks for it behind the last saved step that is above the limit.
    """
    t = found.t[:, None]
    under = limit - t * (found.seen[0] - rest)
    over = (under < 0.0) & (t <= last)
    end = last * (loss - rest)
    rises = over.copy()
    rises[1:] &= ~over[:-1]
    # meaningless if it is never above
    begins = len(over) - 1 - rises[::-1].argmax(axis=0)
    count = _crossings(
        batch,
        found,
        under,
        lambda t, seen, points: limit[points] - t * (seen.loss - rest[points]),
        ROUNDING * (limit + last * rest),
        begins,
    )
    until = np.minimum(count.steps - 1.0, last)
    saved = np.searchsorted(schedule, until, side="right") > np.searchsorted(
        schedule, found.t[begins]
    )
    passes = over.any(axis=0) & (end <= limit)
    # a parabola through three looks passes the one in the middle by an eighth of their
    # second difference at most
    rise = under[1:-1] - under[:-2]
    fall = under[1:-1] - under[2:]
    nearly = (
        (rise * fall >= 0.0)
        & (np.abs(under[1:-1]) <= np.abs(rise + fall))
        & (t[1:-1] <= last)
    )
    sure = (
        (~passes | (count.sure & saved))
        & (np.abs(end - limit) > APART * limit)
        & ~nearly.any(axis=0)
    )
    steps = np.where(end > limit, np.inf, np.where(passes, count.steps, 0.0))
    without = np.isnan(limit)
    return np.where(without, np.inf, steps), without | sure


def _largest(risk: PopulationRisk) -> float:
    return float(risk._form.variogram.max())


def _go_together(
    one: PopulationRisk, other: PopulationRisk, alike: float = 1e-14
) -> bool:
    """Whether a batch may have both points; ``alike`` is rounding in variograms that are multiples."""
    if (one.features.K, one.N) != (other.features.K, other.N):
        return False
    if math.isfinite(one.N):
        return one._form.factor.shape == other._form.factor.shape
    scale = _largest(other) / _largest(one) if _largest(one) > 0.0 else 0.0
    off = np.abs(other._form.variogram - scale * one._form.variogram).max()
    return np.array_equal(one.features.probs, other.features.probs) and bool(
        off <= alike * _largest(other)
    )
