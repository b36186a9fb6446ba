"""Exchangeable points with finite prompts, thousands at once: the steps of one simulation each, in whole arrays.

For given K and N the loss is γ A(u) + σ² B(u): two functions of u, their derivatives
and the attention serve all points. They are tabulated by polynomials on short panels,
to rounding. Steps are taken while they are long, and counted by an integral from where
they are not. What rounding or the error of the integral might decide, and what becomes
of a point otherwise, is left to a simulation.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine.counting import ROUNDING
from icl_theory.engine.descent import AUTO_STEPS, TOLERANCE, VISIBLE
from icl_theory.engine.stops import FLOOR_RTOL, SETTLED
from icl_theory.engine.trajectory import saved_steps
from icl_theory.regression.phases import TAIL_RATIO
from icl_theory.regression.risks.exchangeable import Averages

# the functions are analytic up to ±iπ, and each panel is half a unit long
PANELS = 80
LAST = 40.0
DEGREE = 11
WIDTH = LAST / PANELS
BLUR = 1e-11  # relative distance at which rounding might decide
# of the field that interpolates the steps, and of the integral over half a panel
TERMS = 9
NODES = 10
MOST = 1e9  # steps that are counted
BIAS, BIAS_SLOPE, NOISE, NOISE_SLOPE, ATTENTION = range(5)


class Points(NamedTuple):
    """Exchangeable points, (P,) each: variogram γ, σ², learning rate, speed, target, and how it is meant."""

    K: Array
    N: Array
    gamma: Array
    noise: Array
    eta: Array
    speed: Array
    target: Array
    is_excess: bool


@lru_cache(maxsize=2048)
def table(K: int, N: int) -> Array:
    """Coefficients of A, A', B, B' and the attention on the panels, (5, DEGREE + 1, PANELS), constants first."""
    nodes = np.cos(np.pi * (np.arange(DEGREE + 1) + 0.5) / (DEGREE + 1))
    u = WIDTH * (np.arange(PANELS) + 0.5) + 0.5 * WIDTH * nodes[:, None]
    averages = Averages(K, N)
    values = np.array([averages(w[:, None]) for w in np.exp(-u)]).swapaxes(0, 1)
    powers = np.vander(nodes, increasing=True)
    return np.asarray(np.linalg.solve(powers, values))


class _Tables:
    """The functions of some points."""

    def __init__(self, points: Points) -> None:
        pairs = np.stack([points.K, points.N])
        distinct, index = np.unique(pairs, axis=1, return_inverse=True)
        every = [table(int(K), int(N)) for K, N in distinct.T]
        self._rows = np.concatenate(every, axis=2)  # (5, DEGREE + 1, tables * PANELS)
        self._first = np.ravel(index) * PANELS
        self.gamma, self.noise = points.gamma, points.noise

    def value(self, which: int, u: Array, at: NDArray[np.intp]) -> Array:
        """Evaluate one of the functions at u of some points."""
        place = u / WIDTH
        panel = np.minimum(place.astype(np.intp), PANELS - 1)
        x = 2.0 * (place - panel) - 1.0
        row = self._first[at] + panel
        coefficients = self._rows[which]
        found = coefficients[DEGREE].take(row)
        for power in range(DEGREE - 1, -1, -1):
            found *= x
            found += coefficients[power].take(row)
        return found

    def both(self, bias: int, noise: int, u: Array, at: NDArray[np.intp]) -> Array:
        """Evaluate the loss, or its slope."""
        found = self.gamma[at] * self.value(bias, u, at)
        noisy = self.noise[at]
        return found + noisy * self.value(noise, u, at) if noisy.any() else found

    def loss(self, u: Array, at: NDArray[np.intp]) -> Array:
        """Loss at u."""
        return self.both(BIAS, NOISE, u, at)

    def slope(self, u: Array, at: NDArray[np.intp]) -> Array:
        """Derivative of the loss at u."""
        return self.both(BIAS_SLOPE, NOISE_SLOPE, u, at)

    def bend(self, steps: Array) -> Array:
        """Return bounds on the change of a step from one to the next, from each panel on, (P, PANELS)."""
        powers = np.arange(1, DEGREE + 1)[:, None]
        found = []
        for which in (BIAS_SLOPE, NOISE_SLOPE):
            most = (
                np.abs(powers * self._rows[which, 1:]).sum(axis=0).reshape(-1, PANELS)
                * 2.0
                / WIDTH
            )
            found.append(
                np.maximum.accumulate(most[:, ::-1], axis=1)[:, ::-1][
                    self._first // PANELS
                ]
            )
        bias, noise = found
        return steps[:, None] * (
            self.gamma[:, None] * bias + self.noise[:, None] * noise
        )

    def field(
        self, u: Array, at: NDArray[np.intp], steps: Array
    ) -> tuple[Array, Array]:
        """Return the field v whose flow for a unit of time is one step, and its last term relative to it.

        It is the logarithm of a shift by one step, v = Δu - Δ²u/2 + Δ³u/3 - ..., along
        the next steps from u.
        """
        moves = []
        c = steps[at]
        for _ in range(TERMS):
            moves.append(-c * self.slope(u, at))
            u = u + moves[-1]
        found = moves[0]
        last = moves[0]
        differences = np.array(moves)
        for order in range(2, TERMS + 1):
            differences = np.diff(differences, axis=0)
            last = (-1.0) ** (order + 1) / order * differences[0]
            found = found + last
        return found, np.abs(last / found)

    def time(
        self, start: Array, end: Array, at: NDArray[np.intp], steps: Array
    ) -> tuple[Array, Array]:
        """Return the numbers of steps between positions, and estimates of their errors."""
        parts = []
        errors = np.zeros(start.shape)
        for count in (NODES, NODES - 3):
            x, weight = np.polynomial.legendre.leggauss(count)
            u = start[..., None] + 0.5 * (end - start)[..., None] * (x + 1.0)
            field, term = self.field(u.ravel(), np.repeat(at, u.size // at.size), steps)
            weighted = 0.5 * (end - start)[..., None] * weight / field.reshape(u.shape)
            parts.append(weighted.sum(axis=-1))
            errors = np.maximum(
                errors, np.abs(weighted * term.reshape(u.shape)).sum(axis=-1)
            )
        # the difference is the error of the rule with fewer nodes: squares of it are
        # generous for that with more
        off = np.abs(parts[0] - parts[1])
        return parts[0], errors + off * np.minimum(
            1.0, 1e3 * off / np.abs(parts[0])
        ) + 1e-13 * np.abs(parts[0])


def _crossing(holds: Any, size: int) -> Array:
    """Least u at which a condition holds from then on, by bisection; LAST where it does not."""
    low = np.zeros(size)
    high = np.full(size, LAST)
    for _ in range(60):
        middle = 0.5 * (low + high)
        beyond = holds(middle)
        low = np.where(beyond, low, middle)
        high = np.where(beyond, middle, high)
    return high


class _Goals(NamedTuple):
    """Where points end, (P,) each; ``sure`` says for which that is where a simulation ends, too."""

    sure: NDArray[np.bool_]
    attainable: NDArray[np.bool_]  # else the goal is the floor
    floor: Array
    threshold: Array  # loss at the goal
    goal: Array  # in u
    blur: Array  # of the goal
    half: Array  # u at the end of Phase I


def _goals(tables: _Tables, points: Points) -> _Goals:
    size = len(points.K)
    noisy = points.noise > 0
    every = np.arange(size)
    zero = np.zeros(size)
    # the loss falls up to u*, its minimum, which is at infinity without noise
    best = np.where(noisy, _crossing(lambda u: tables.slope(u, every) >= 0, size), LAST)
    inverse = 1.0 / (points.K - 1.0)
    absent = np.exp(points.N * np.log1p(-1.0 / points.K))
    bare = 0.5 * points.gamma * absent * (1.0 + inverse + (1.0 - inverse) / points.N)
    floor = np.where(noisy, tables.loss(best, every), bare)
    sure = ~noisy | ((best < LAST) & (best > 0))
    target = floor + points.target if points.is_excess else points.target
    sure &= ~(points.is_excess & (points.target < VISIBLE * floor)) & (
        np.abs(target - floor) > 1e-9 * floor
    )
    attainable = target > floor
    threshold = np.where(attainable, target, floor * (1.0 + FLOOR_RTOL))
    goal = np.minimum(
        _crossing(lambda u: (tables.loss(u, every) <= threshold) | (u >= best), size),
        best,
    )
    sure &= goal < LAST - WIDTH
    present = -np.expm1(points.N * np.log1p(-1.0 / points.K))
    half = _crossing(lambda u: tables.value(ATTENTION, u, every) >= 0.5 * present, size)
    attention = tables.value(ATTENTION, zero, every)
    start = tables.loss(zero, every)
    for which, edge in ((start, threshold), (attention, 0.5 * present)):
        sure &= np.abs(which - edge) > BLUR * edge
    goal = np.where(start <= threshold, 0.0, goal)
    blur = ROUNDING * threshold / -tables.slope(goal, every)
    return _Goals(
        sure,
        attainable,
        floor,
        threshold,
        goal,
        blur,
        np.where(attention >= 0.5 * present, 0.0, half),
    )


def together(
    points: Points, max_steps: int, small: float = 1.0 / 40.0
) -> dict[str, Any]:
    """Columns of points as one simulation each gives them, a loss only of those that are certain.

    Each descends to its target or its floor: integers are exact, losses are right to
    rounding. Steps are counted where each differs from the next by ``small`` of itself
    at most.
    """
    tables = _Tables(points)
    size = len(points.K)
    sure, attainable, floor, threshold, goal, blur, half = _goals(tables, points)
    every = np.arange(size)
    quiet = (points.noise == 0) & (points.N > 1)
    rate = points.eta * points.speed
    c = rate / (points.K - 1.0)
    limit = np.where(quiet, TAIL_RATIO * (points.K - 1.0) / (4.0 * rate), np.inf)
    u = np.zeros(size)
    carry = np.zeros(size)
    pace = np.full(size, np.inf)
    begin = np.zeros(size, dtype=np.int64)
    last, attends, first_above, last_above = (np.full(size, -1) for _ in range(4))
    rises = np.zeros(size, dtype=np.int64)
    error = np.zeros(size)
    alike = np.pad(tables.bend(c) <= small, ((0, 0), (0, 1)), constant_values=True)
    counted = WIDTH * np.argmax(alike, axis=1)  # from here on steps are counted
    active = every[sure]
    waiting = np.zeros(size, dtype=bool)
    for t in range(min(AUTO_STEPS, max_steps) + 1):
        here = u[active]
        close = np.abs(here - goal[active]) <= BLUR * (1.0 + here) + blur[active]
        close |= np.abs(here - half[active]) <= BLUR * (1.0 + here)
        sure[active[close & (here > 0)]] = False
        begun = active[(attends[active] < 0) & (here >= half[active])]
        attends[begun] = t
        if (t * tables.gamma[active] > limit[active]).any():
            excess = tables.loss(here, active)
            slack = t * (excess - floor[active]) - limit[active]
            sure[active[np.abs(slack) <= 10.0 * BLUR * t * excess]] = False
            above = slack > 0
            rises[active] += above & (last_above[active] != t - 1)
            first_above[active] = np.where(
                above & (first_above[active] < 0), t, first_above[active]
            )
            last_above[active] = np.where(above, t, last_above[active])
        done = (here >= goal[active]) | (t >= max_steps)
        last[active[done]] = t
        waits = ~done & (here >= counted[active])
        waiting[active[waits]], begin[active[waits]] = True, t
        active = active[~done & ~waits & sure[active]]
        if not active.size:
            break
        here = u[active]
        move = -c[active] * tables.slope(here, active) - carry[active]
        moved = here + move
        carry[active] = (moved - here) - move
        u[active] = moved
        pace[active] = np.minimum(pace[active], move)
        lost = ~((moved >= 0) & (moved < LAST))
        sure[active[lost]], u[active[lost]] = False, 0.0
        active = active[~lost]
    later = every[waiting & sure]
    if later.size:
        found = _count(
            tables,
            later,
            u[later],
            goal[later],
            blur[later],
            half[later],
            begin[later],
            c,
            floor,
            limit,
        )
        sure[later] &= found.sure & (found.last <= max_steps)
        last[later], u[later], error[later] = found.last, found.u, found.error
        attends[later] = np.where(attends[later] < 0, found.attends, attends[later])
        pace[later] = np.minimum(pace[later], -c[later] * tables.slope(found.u, later))
        # once above its limit in single steps and once in counted ones is not told
        # apart from once
        met = (
            found.above
            & (last_above[later] >= 0)
            & (last_above[later] < begin[later] - 1)
        )
        sure[later] &= ~met
        first_above[later] = np.where(
            found.above & (first_above[later] < 0), begin[later], first_above[later]
        )
        last_above[later] = np.where(found.above, found.last_above, last_above[later])
    loss = tables.loss(u, every)
    sure &= (last >= 0) & (rises <= 1)
    # steps so short that a simulation might call the run settled, or itself unable to
    # move
    sure &= (pace > 1.01 * SETTLED * TOLERANCE) | (last <= 1)
    beyond = loss <= threshold  # not so where a step has led past the minimum
    sure &= np.where(u >= goal, beyond, last >= max_steps)
    schedule = saved_steps(max_steps, 1)
    seen = np.searchsorted(
        schedule, np.minimum(last_above, last), side="right"
    ) > np.searchsorted(schedule, first_above)
    sure &= (first_above < 0) | seen | (last_above == last)
    reached = attainable & (u >= goal)
    first = np.where(attends < 0, last, attends)
    second = np.maximum(
        first, np.where(np.isinf(limit) | (last_above == last), last, last_above + 1)
    )
    constant = np.where(
        quiet, (points.K - 1.0) / (4.0 * points.speed) / points.eta, np.nan
    )
    taken = last <= AUTO_STEPS  # one by one, by a simulation
    decays = second < last
    return {
        "eta_used": points.eta,
        "steps": np.where(reached, last, -1),
        "T_I": first,
        "T_II": second - first,
        "T_III": last - second,
        "last": last,
        "method": np.where(taken, "exact", "fast"),
        "error": np.where(taken, 0.0, np.where(reached, error, np.nan)),
        "loss": np.where(sure, loss, np.nan),
        "floor": floor,
        "attention": tables.value(ATTENTION, u, every),
        "tail_constant": constant,
        "tail_ratio": last * (loss - floor) / constant,
        "regime": np.where(
            quiet & (reached | decays), np.where(decays, "sharp", "flat"), ""
        ),
        "stop": np.where(~attainable & (u >= goal), "FLOOR", "STEPS"),
    }


class _Counted(NamedTuple):
    """Points whose last steps were counted, (P,) each: numbers of steps, and the position at the end."""

    sure: NDArray[np.bool_]
    last: NDArray[np.int64]
    attends: NDArray[np.int64]
    above: NDArray[np.bool_]
    last_above: NDArray[np.int64]
    error: Array
    u: Array


def _count(
    tables: _Tables,
    at: NDArray[np.intp],
    u: Array,
    goal: Array,
    blur: Array,
    half: Array,
    begin: NDArray[np.int64],
    c: Array,
    floor: Array,
    limit: Array,
    newton: int = 5,
) -> _Counted:
    """Count the steps of some points from u to their goals; ``newton`` steps lead to where the tail begins."""
    parts = max(1, int(np.ceil(2.0 * float((goal - u).max()) / WIDTH)))
    edges = np.linspace(u, goal, parts + 1, axis=1)
    each, errors = tables.time(edges[:, :-1], edges[:, 1:], at, c)
    t = begin[:, None] + np.concatenate(
        [np.zeros((len(u), 1)), np.cumsum(each, axis=1)], axis=1
    )
    error = errors.sum(axis=1)
    # attention
    ahead = half > u
    inside = np.clip(half, u, goal)
    first = np.minimum(((inside - u) / (goal - u) * parts).astype(np.intp), parts - 1)
    row = np.arange(len(u))
    spent, doubt = tables.time(edges[row, first], inside, at, c)
    to_half = t[row, first] + spent
    attends = np.where(ahead & (half < goal), np.ceil(to_half), -1).astype(np.int64)
    sure = ~ahead | (half >= goal) | _clear(to_half, error + doubt)
    # the tail, where t (loss - floor) falls below its limit for the last time
    rest = floor[at]

    def slack(times: Array, places: Array) -> Array:
        return times * (tables.loss(places, at) - rest) - limit[at]

    slacks = np.stack([slack(t[:, j], edges[:, j]) for j in range(parts + 1)], axis=1)
    over = slacks > 0
    above = np.asarray(over.any(axis=1))
    index = np.minimum(parts - np.argmax(over[:, ::-1], axis=1), parts - 1)
    low = edges[row, index]
    high = edges[row, index + 1]
    below = slacks[row, index]
    beyond = slacks[row, index + 1]
    crosses = above & ~over[:, -1]
    sure &= np.count_nonzero(np.diff(over.astype(np.int8), axis=1) < 0, axis=1) <= 1
    middle = np.where(
        crosses,
        (low * beyond - high * below) / np.where(crosses, beyond - below, 1.0),
        low,
    )
    crossing = t[row, index]
    doubt = error
    for _ in range(newton if crosses.any() else 0):
        spent, doubt = tables.time(low, middle, at, c)
        crossing = t[row, index] + spent
        pace = tables.field(middle, at, c)[0]
        bend = (tables.loss(middle, at) - rest) / pace + crossing * tables.slope(
            middle, at
        )
        move = np.clip(middle - slack(crossing, middle) / bend, low, high) - middle
        doubt += np.abs(move / pace) + ROUNDING * crossing * tables.loss(
            middle, at
        ) / np.abs(bend * pace)
        middle = middle + move
        crossing = crossing + move / pace
    sure &= ~crosses | _clear(crossing, error + doubt)
    error = error + blur / tables.field(goal, at, c)[0]
    last = np.ceil(t[:, -1])
    sure &= _clear(t[:, -1], error) & (last < MOST)
    last = np.where(sure, last, 0.0)
    # the goal is passed within the last step: follow the field for the rest of it
    end = goal + (last - t[:, -1]) * tables.field(goal, at, c)[0] * np.where(
        sure, 1.0, 0.0
    )
    for _ in range(3):
        more, _unused = tables.time(goal, end, at, c)
        end = (
            end
            + np.where(sure, last - t[:, -1] - more, 0.0) * tables.field(end, at, c)[0]
        )
    last_above = np.where(over[:, -1], last, np.ceil(crossing) - 1.0)
    return _Counted(
        sure,
        last.astype(np.int64),
        attends,
        above,
        last_above.astype(np.int64),
        error,
        end,
    )


def _clear(count: Array, error: Array, doubt: float = 1e-3) -> NDArray[np.bool_]:
    """Whether errors leave no doubt about counts rounded up; above ``doubt`` a simulation decides."""
    return (error < doubt) & (np.abs(count - np.round(count)) > 2.0 * error)
