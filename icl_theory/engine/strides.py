"""Strides over many iterates of gradient descent, with an estimate of the error.

`Strides` follows blocks of parameters by collocation
(`icl_theory.engine.collocation`). Each block has strides of its own. Beside the run
goes its shadow, a second run by the same strides with one node less. The shadow is less
accurate, so the distance between the two estimates the error. See docs/theory.md,
"Skipping ahead".
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine.blocks import Blocks, Modes
from icl_theory.engine.capabilities import gain_at
from icl_theory.engine.collocation import (
    Index,
    Mask,
    Solved,
    collocate,
    legendre,
    legendre_at_nodes,
    polynomial_values,
    radau,
    stride_weights,
)
from icl_theory.engine.steps import Ended, Steps, TooFast
from icl_theory.engine.trajectory import Stop

NODES = 9  # of a stride of the run
SHADOW_NODES = NODES - 1
# Twice the derivatives of the Legendre polynomials at 1. The slope in x at the end of a
# stride is their product with the coefficients, divided by the length of the stride.
END_SLOPES = np.arange(NODES + 1.0) * np.arange(1.0, NODES + 2.0)
# The equations of the shadow may be solved less accurately than those of the run, by
# this factor. For the run the solver may leave a thousandth of a stride's error, and
# for the shadow 3 % of it.
SHADOW_TOLERANCE_FACTOR = 30.0
# An error of a solution may move the later run by this factor times as much.
SOLVER_ERROR_FACTOR = 2.0
# The run may be this many times as far from the truth as from its shadow.
MARGIN = 2.0
# A stride may add this many times the error that is estimated for it.
STRIDE_ERROR_FACTOR = 4.0
ROUNDING = 2.0**-52
# In x. Rounding parts the end of a stride from the beginning of the next one.
SLACK = 1e-14


class StrideErrors(NamedTuple):
    """Error estimates of n strides.

    Attributes
    ----------
    error : ndarray of shape (n,)
        Largest error of the run in the stride.
    distance : ndarray of shape (n,)
        Largest distance between run and shadow in the stride.
    margin : ndarray of shape (n,)
        The error of the run over its distance from the shadow.
    """

    error: Array
    distance: Array
    margin: Array


class StrideProblem(NamedTuple):
    """The strides to be made from n states.

    Attributes
    ----------
    blocks : ndarray of shape (n,)
        The block of each state.
    begin, length : ndarray of shape (n,)
        Where the stride begins in x = ln(1 + t), and its length.
    start : ndarray of shape (n, m)
        The states.
    noise : ndarray of shape (n,)
        Rounding errors, below which the equations need not be solved.
    """

    blocks: Index
    begin: Array
    length: Array
    start: Array
    noise: Array

    @property
    def end(self) -> Array:
        """Where the strides end in x."""
        return self.begin + self.length

    def places(self, stages: int) -> Array:
        """The nodes in x, (n, s)."""
        return self.begin[:, None] + radau(stages).nodes * self.length[:, None]

    def select(self, mask: Mask) -> StrideProblem:
        """Select strides."""
        return StrideProblem(
            self.blocks[mask],
            self.begin[mask],
            self.length[mask],
            self.start[mask],
            self.noise[mask],
        )


class StrideRecord(NamedTuple):
    """Accepted strides of n blocks.

    Attributes
    ----------
    blocks : ndarray of shape (n,)
        The blocks.
    begin, length : ndarray of shape (n,)
        Where each stride begins in x, and its length.
    run, shadow : ndarray of shape (n, s + 1, m)
        Legendre coefficients; without a shadow, those of the run with one less.
    errors : StrideErrors or None
        Error estimates; None without a shadow.
    """

    blocks: Index
    begin: Array
    length: Array
    run: Array
    shadow: Array
    errors: StrideErrors | None

    @property
    def end(self) -> Array:
        """Where the strides end in x."""
        return self.begin + self.length


class RunErrors:
    """Estimated errors of the run in n blocks, which are carried from stride to stride.

    Attributes
    ----------
    solver_error : ndarray of shape (n,)
        The part of the error that comes from the solutions of the equations. The
        distance to the shadow does not show it.
    margin : ndarray of shape (n,)
        The error of the run over its distance from the shadow.
    """

    def __init__(self, count: int) -> None:
        self.solver_error = np.zeros(count)
        self.margin = np.full(count, MARGIN)
        self._error = np.zeros(count)

    def continued(self) -> RunErrors:
        """Errors at the beginning of later strides without a shadow."""
        errors = RunErrors(len(self.margin))
        errors.solver_error[:] = self.solver_error
        errors.margin[:] = self.margin
        return errors

    def start(self, distance: Array) -> None:
        """Begin with a shadow at these distances from the run, (n,)."""
        self._error = self.margin * distance

    def add_unwatched(self, blocks: Index, run: Solved) -> None:
        """Add the errors of strides that no shadow follows."""
        self.solver_error[blocks] += SOLVER_ERROR_FACTOR * run.solver_error

    def add(
        self, blocks: Index, distance_before: Array, run: Solved, shadow: Solved
    ) -> StrideErrors:
        """Add the errors of strides, and return the estimates in each stride.

        Parameters
        ----------
        blocks : ndarray of shape (k,)
            The blocks.
        distance_before : ndarray of shape (k,)
            The distances between run and shadow at the beginnings of the strides.
        run, shadow : Solved
            The k strides.
        """
        difference = run.coefficients.copy()
        difference[:, :NODES] -= shadow.coefficients
        at_nodes = legendre_at_nodes(NODES, NODES) @ difference
        distance = np.abs(at_nodes).max(axis=(1, 2))
        distance_after = np.abs(shadow.end - run.end).max(axis=1)
        # The coefficient that the shadow lacks may be small by chance. The distance
        # inside the stride is not.
        distance_inside = distance - np.maximum(distance_before, distance_after)
        shadow_error = np.maximum(run.last_coefficient, distance_inside)
        stride_error = STRIDE_ERROR_FACTOR * (
            run.error_ratio * shadow_error + run.solver_error
        )
        distance_added = run.last_coefficient + SOLVER_ERROR_FACTOR * (
            run.solver_error + shadow.solver_error
        )
        growth = distance_growth(distance_before, distance_after, distance_added)
        inherited = self._error[blocks]
        grown = _grown_error(inherited, growth.cautious, distance_after)
        error = np.maximum(inherited, grown) + stride_error
        error_after = grown + stride_error
        self._error[blocks] = error_after
        inherited_solver_error = (
            np.minimum(1.0, growth.nearest) * self.solver_error[blocks]
        )
        self.solver_error[blocks] = (
            inherited_solver_error + SOLVER_ERROR_FACTOR * run.solver_error
        )
        # Single steps from the end of the stride enlarge the error at the end, and not
        # the one inside. So the margin is at least that at the end, up to MARGIN.
        margin_at_end = error_after / np.maximum(distance_after, 1e-300)
        margin = np.maximum(
            error / np.maximum(distance, 1e-300), np.minimum(MARGIN, margin_at_end)
        )
        self.margin[blocks] = margin
        return StrideErrors(error, distance, margin)


def _grown_error(inherited: Array, growth: Array, distance_after: Array) -> Array:
    """Errors that strides inherit, multiplied by the growth of distances."""
    grown = growth * inherited
    # If the distance is far below the error, it does not show how errors grow: it may
    # have been all but rounding, and the shadow's own error then looks like growth. So
    # errors grow at most to MARGIN times the distance.
    bounded = np.maximum(inherited, np.minimum(grown, MARGIN * distance_after))
    return np.where(growth > 1.0, bounded, grown)


class Growth(NamedTuple):
    """Factors by which distances between run and shadow may grow in n strides.

    Attributes
    ----------
    nearest : ndarray of shape (n,)
        The possible factor nearest to 1.
    cautious : ndarray of shape (n,)
        A factor between the least possible one and ``nearest``.
    """

    nearest: Array
    cautious: Array


def distance_growth(
    before: Array, after: Array, added: Array, weight: float = 1.0 / 3.0
) -> Growth:
    """Estimate how much strides enlarge the distance between run and shadow.

    The shadow's own error in a stride may add to the distance, and the growth is then
    the least that is possible. Or it may cancel some of the distance, but nothing of
    the run's error. The growth is taken to be the least possible one, and with some
    weight the one nearest to 1.

    Parameters
    ----------
    before, after : ndarray of shape (n,)
        Distances at the beginning and at the end of each stride.
    added : ndarray of shape (n,)
        The distance that the stride adds or takes away by itself.
    weight : float
        With the weight 0 the estimate of the error hardly held; with 1/2 other
        estimates were twice as large.
    """
    # If run and shadow were together, the growth of their distance is unknown.
    before = np.where(before > 0.0, before, after + added)
    least = np.maximum(after - added, 0.0)
    nearest = np.clip(before, least, after + added)
    cautious = least + weight * (nearest - least)
    is_positive = before > 0.0
    ones = np.ones_like(before)
    return Growth(
        np.divide(nearest, before, out=ones.copy(), where=is_positive),
        np.divide(cautious, before, out=ones, where=is_positive),
    )


class StrideLengths:
    """The lengths of the next strides of n blocks, from the errors of the last ones.

    Parameters
    ----------
    count : int
        The number of blocks.
    first : float
        The length of the first strides, in x.
    aim : float
        The part of the length with the allowed error that is used. Shorter strides are
        refused less often.
    """

    def __init__(self, count: int, first: float, aim: float) -> None:
        self.next = np.full(count, first)
        self._last_ideal = np.zeros(count)
        self._aim = aim

    def update(
        self,
        blocks: Index,
        length: Array,
        error_ratio: Array,
        iterations: NDArray[np.int64],
        is_accepted: Mask,
    ) -> None:
        """Set the lengths after strides with these errors over the allowed ones."""
        with np.errstate(divide="ignore", over="ignore"):
            factor = self._aim * error_ratio ** (-1.0 / (NODES + 1))
        # Strides whose equations are hard to solve must not become longer.
        largest_accepted = np.where(iterations > 7, 0.8, 2.0)
        factor = np.clip(factor, 0.2, np.where(is_accepted, largest_accepted, 0.7))
        ideal = np.where(np.isfinite(error_ratio), factor, 0.4) * length
        last_ideal = self._last_ideal[blocks]
        trend = np.divide(
            ideal,
            last_ideal,
            out=np.ones(len(length)),
            where=is_accepted & (last_ideal > 0.0),
        )
        # Towards a drop of the loss each stride must be shorter than the last one, so
        # lengths are taken to go on shrinking as they did.
        self.next[blocks] = ideal * np.clip(trend, 0.5, 1.0)
        self._last_ideal[blocks] = np.where(is_accepted, ideal, last_ideal)


class StrideDebts:
    """Gradients spent in excess of two for each skipped step, by block.

    Run and shadow would need two gradients for each step that is not skipped.
    """

    def __init__(self, count: int) -> None:
        self.gradients = np.zeros(count)

    def charge(self, blocks: Index, gradients: float, skipped: Array) -> None:
        """Add the gradients spent for each block, less two for each skipped step."""
        debt = self.gradients[blocks] + gradients - 2.0 * skipped
        self.gradients[blocks] = np.maximum(0.0, debt)


class Strides:
    """Blocks of parameters, each with strides of its own, and their shadows.

    Parameters
    ----------
    blocks : Blocks
        How parameters split into n rows of m numbers.
    tolerance : float
        Absolute, in scores; for a flow it is relative to the parameters as well.
    run_start : ndarray of shape (n, m)
        The states of the run.
    shadow_start : ndarray of shape (n, m) or None
        The states of the shadow, if there is one.
    t : float
        The time of these states, in steps.
    first_length : float
        The length of the first strides in x = ln(1 + t).
    budget : int
        The largest number of gradients.
    flow : bool
        Whether the flow is followed instead of the map.
    share : float
        The part of the tolerance that one stride uses, so that dozens of strides keep
        to it.
    aim : float
        See `StrideLengths`. Use a smaller one if blocks wait for each other.
    separate : bool
        Whether blocks belong to different runs. Those that cannot be followed are then
        abandoned; otherwise `TooFast` is raised.
    solver_share : float
        The part of the allowed error of a stride that the solution of its equations may
        leave.
    previous : Strides, optional
        Earlier strides of the same blocks. They give the errors so far and the
        direction of the fastest mode.

    Attributes
    ----------
    run_end, shadow_end : ndarray of shape (n, m)
        The states up to which each block has been followed.
    x : ndarray of shape (n,)
        The times ln(1 + t) of these states.
    errors : RunErrors
        The estimated errors there.
    abandoned : ndarray of shape (n,)
        Whether a block is followed no longer.
    oscillates : bool
        Whether a mode of the last strides oscillates.
    """

    def __init__(
        self,
        blocks: Blocks,
        tolerance: float,
        run_start: Array,
        shadow_start: Array | None,
        t: float,
        first_length: float,
        budget: int,
        flow: bool,
        share: float = 0.01,
        aim: float = 0.9,
        separate: bool = False,
        solver_share: float = 0.001,
        previous: Strides | None = None,
    ) -> None:
        self._blocks = blocks
        self._map = blocks.update_map
        self._budget = budget
        self._flow = flow
        self._tolerance = tolerance
        self._share = share
        self._solver_share = solver_share
        self._separate = separate
        n, m = run_start.shape
        self.run_end = run_start
        self.shadow_end = shadow_start
        self.x = np.full(n, math.log1p(t))
        self.errors = RunErrors(n)
        if previous is not None:
            self.errors = previous.errors.continued()
        if shadow_start is not None:
            self.errors.start(np.abs(shadow_start - run_start).max(axis=1))
        self.abandoned = np.zeros(n, dtype=bool)
        self.oscillates = False
        self._records: list[StrideRecord] = []
        self._gain = gain_at(self._map.risk, blocks.params(run_start))
        self._lengths = StrideLengths(n, first_length, aim)
        self._debts = StrideDebts(n)
        # The moves at the beginnings of the last strides, and their sizes in x.
        self._move = np.zeros((n, m))
        self._pace = np.zeros(n)
        # The polynomials of the last strides, which give the first guess of the next.
        self._last_coefficients = np.zeros((n, NODES + 1, m))
        self._last_begin = np.zeros(n)
        self._last_length = np.zeros(n)
        # The power method turns it towards the fastest mode, by a step each stride.
        if previous is None:
            self._direction = np.random.default_rng(n).normal(size=(n, m))
        else:
            self._direction = previous._direction
        self._modes: Modes | None = None
        # Gradients of the iterations that known modes would have saved.
        self._saved_by_modes = 0.0
        # The part of a gradient that is spent but not counted yet.
        self._uncounted = 0.0

    @property
    def begin(self) -> float:
        """Where the first stride begins in x; 0 if there is none."""
        return min((float(record.begin.min()) for record in self._records), default=0.0)

    @property
    def last_step(self) -> int:
        """The last step that all blocks have reached."""
        return math.floor(math.expm1(float(self.x.min()) + SLACK))

    def guess_from(self, iterates: dict[int, Array]) -> None:
        """Guess that the first strides continue iterates, NODES + 1 of them by step."""
        x = np.log1p([*iterates])
        rows = np.stack([*iterates.values()], axis=1)
        degree = len(x) - 1
        self._last_begin[:] = x[0]
        self._last_length[:] = x[-1] - x[0]
        scaled = 2.0 * (x - x[0]) / (x[-1] - x[0]) - 1.0
        self._last_coefficients = np.linalg.inv(legendre(scaled, degree)) @ rows

    def reach(self, x: Array | float, cached_numbers: int = 2**20) -> None:
        """Follow all blocks up to a time x = ln(1 + t) or beyond.

        Parameters
        ----------
        x : float or ndarray of shape (n,)
            The time, or one for each block.
        cached_numbers : int
            Blocks are moved in groups of so many numbers, which a cache holds.

        Raises
        ------
        TooFast
            Strides are too short to pay, or might skip over an oscillation.
        """
        group_size = max(1, cached_numbers // (NODES * self.run_end.shape[1]))
        behind = self._blocks_behind(x)
        while behind.size:
            for start in range(0, len(behind), group_size):
                self._stride(behind[start : start + group_size])
            behind = self._blocks_behind(x)

    def _blocks_behind(self, x: Array | float) -> Index:
        return np.flatnonzero((self.x < x - SLACK) & ~self.abandoned)

    def _stride(self, blocks: Index) -> None:
        """Try one stride of some blocks."""
        spent_before = self._spent
        problem = self._next_problem(blocks)
        run = self._solve(NODES, problem, self._guess(problem))
        error = run.error
        end_slope = np.abs(END_SLOPES @ run.coefficients).max(axis=1) / problem.length
        end_pace = np.where(np.isfinite(error), end_slope, np.inf)
        with np.errstate(invalid="ignore"):
            allowed = np.maximum(self._allowed_error(run.end, end_pace), problem.noise)
        is_accepted = error <= allowed
        if is_accepted.any():
            is_accepted[is_accepted] = self._accept(
                problem.select(is_accepted), run.select(is_accepted)
            )
        self._lengths.update(
            blocks, problem.length, error / allowed, run.iterations, is_accepted
        )
        if self._flow:
            if self._lengths.next.min() < 1e-13:
                raise Ended(Stop.FLOW)
        else:
            skipped = np.expm1(problem.end) - np.expm1(problem.begin)
            spent = (self._spent - spent_before) * len(self.x) / len(blocks)
            self._charge(blocks, spent, np.where(is_accepted, skipped, 0.0))
        self._look_for_modes(run)

    def _charge(
        self,
        blocks: Index,
        gradients: float,
        skipped: Array,
        largest_debt: float = 400.0,
        fewest_steps: float = 8.0,
    ) -> None:
        """Charge blocks for a stride, and abandon those whose strides do not pay."""
        self._debts.charge(blocks, gradients, skipped)
        debt = self._debts.gradients
        is_in_debt = debt > largest_debt
        if not self._separate:
            is_in_debt = np.full(len(debt), debt.mean() > largest_debt)
        next_steps = self._lengths.next * np.exp(self.x)
        self._abandon(is_in_debt | (next_steps < fewest_steps))

    def _abandon(self, mask: Mask) -> None:
        """Abandon some blocks, or none."""
        if mask.any() and not self._separate:
            raise TooFast
        self.abandoned |= mask

    def _look_for_modes(
        self, run: Solved, easy_iterations: int = 5, least_numbers: float = 2500.0
    ) -> None:
        """Compute the modes once they would have saved more than they cost.

        The time of an iteration with few numbers is that of calls of NumPy: it takes as
        long as one with ``least_numbers``.
        """
        is_solved = np.isfinite(run.solver_error)
        saved = np.where(is_solved, run.iterations - easy_iterations, run.iterations)
        saved = saved.clip(min=0)
        n, m = self.run_end.shape
        by_all = float(saved.sum()) * NODES
        by_hardest = float(saved.max()) * least_numbers / m
        self._saved_by_modes += max(by_all, by_hardest) / n
        blocks = self._blocks
        if blocks.can_find_modes and self._saved_by_modes > blocks.modes_cost:
            self._saved_by_modes = 0.0
            self._modes = blocks.modes(self.run_end, self.x)

    @property
    def _spent(self) -> float:
        return self._map.evaluations + self._uncounted

    def _moves(self, rows: Array, blocks: Index) -> Array:
        """Moves of rows, (r, m), that belong to some blocks, (r,)."""
        if self._blocks.column_gradients is not None:
            # The gradient of one block counts as its share of a whole gradient.
            self._uncounted += len(rows) / len(self.x)
            whole = int(self._uncounted)
            self._map.evaluations = self._map.evaluations + whole
            self._uncounted = self._uncounted % 1.0
        if self._map.evaluations > self._budget:
            raise Ended(Stop.WORK, work=self._budget)
        return self._blocks.moves(rows, blocks)

    def _next_problem(self, blocks: Index) -> StrideProblem:
        """Set up strides of some blocks, after a look at the moves near their states.

        All moves are asked for together: one at the state, for the first guess; one a
        little along the fastest mode, for its rate; and one with other last bits, for
        the rounding errors.
        """
        start = self.run_end[blocks]
        begin = self.x[blocks]
        length = self._lengths.next[blocks]
        size = np.abs(start).max(axis=1)
        nudge = self._nudge_along_fastest_mode(blocks, size)
        states = [start, start + nudge]
        if self._modes is not None:
            is_odd = np.arange(start.shape[1]) % 2
            states.append(start * (1.0 + np.where(is_odd, ROUNDING, -ROUNDING)))
        count = len(states)
        all_moves = self._moves(np.concatenate(states), np.tile(blocks, count))
        move, nudged_move, *rounded_moves = np.split(all_moves, count)
        self._move[blocks] = move
        self._pace[blocks] = np.abs(move).max(axis=1) * np.exp(begin)
        self._turn_to_fastest_mode(blocks, nudge, nudged_move - move)
        noise = 2.0**-47 * size + 1e-300
        if self._modes is not None:
            steps = np.expm1(begin + length) - np.expm1(begin)
            accumulated = self._modes.accumulated_changes(
                rounded_moves[0] - move, begin, steps, blocks
            )
            # Other bits may change the moves by more.
            noise += 8.0 * np.abs(accumulated).max(axis=1)
        return StrideProblem(blocks, begin, length, start, noise)

    def _nudge_along_fastest_mode(self, blocks: Index, size: Array) -> Array:
        """A small change of states of some size along the fastest mode, (k, m)."""
        parameter_part = self._blocks.parameter_part
        direction = np.zeros((len(blocks), self.run_end.shape[1]))
        # Only parameters are nudged: the change of their move shows the curvature, no
        # matter what the memory does.
        parameter_part(direction)[:] = parameter_part(self._direction[blocks])
        length = 1e-5 * np.maximum(1.0, size) / np.abs(direction).max(axis=1)
        return np.asarray(length[:, None] * direction)

    def _turn_to_fastest_mode(
        self, blocks: Index, nudge: Array, move_change: Array
    ) -> None:
        """Make a step of the power method, and abandon blocks that oscillate."""
        parameter_part = self._blocks.parameter_part
        change = np.zeros_like(nudge)
        parameter_part(change)[:] = parameter_part(move_change)
        change_norm = np.linalg.norm(change, axis=1)
        nudge_norm = np.linalg.norm(nudge, axis=1)
        if not self._flow:
            # At the largest stable rate a mode oscillates for ever, and just below it
            # for so long that it is not at rest.
            largest_rate = 0.95 * self._blocks.largest_stable_rate
            is_too_fast = np.zeros(len(self.x), dtype=bool)
            is_too_fast[blocks[change_norm > largest_rate * nudge_norm]] = True
            self.oscillates = bool(is_too_fast.any())
            self._abandon(is_too_fast)
        is_visible = change_norm > 1e-200
        unit = change[is_visible] / change_norm[is_visible, None]
        self._direction[blocks[is_visible]] = unit

    def _allowed_error(self, states: Array, pace: Array) -> Array:
        """Error that strides to some states may have, (k,).

        It is a share of the tolerance, or of the tolerance times the pace dθ/dx if that
        is less: an error of the time amounts to that times dθ/dx.
        """
        size = np.abs(states).max(axis=1)
        gain = self._gain
        if len(self.x) == 1 and np.isfinite(states).all():
            # The only block holds all parameters, so their gain can be computed.
            gain = gain_at(self._map.risk, self._blocks.params(states))
        relative = self._tolerance * size if self._flow else 0.0
        largest = np.maximum(self._tolerance / gain, relative)
        # A hundred times the rounding error of the parameters.
        least = 2.3e-14 / self._share * size
        limit = np.minimum(largest, np.maximum(self._tolerance * pace, least))
        limit = np.where(np.isfinite(limit), limit, 0.0)
        return self._share * np.maximum(limit, 1e-200)

    def _guess(self, problem: StrideProblem) -> Array:
        """Guess the states at the nodes, (k, s, m).

        The last stride is extrapolated; before the first one the move is constant.
        """
        blocks = problem.blocks
        places = problem.places(NODES)
        steps = np.expm1(places) - np.expm1(problem.begin)[:, None]
        move = self._move[blocks]
        guess = problem.start[:, None] + steps[:, :, None] * move[:, None]
        has_last = self._last_length[blocks] > 0.0
        known = blocks[has_last]
        guess[has_last] = polynomial_values(
            self._last_coefficients[known],
            places[has_last],
            self._last_begin[known],
            self._last_length[known],
        )
        return guess

    def _solve(
        self,
        stages: int,
        problem: StrideProblem,
        guess: Array,
        min_iterations: int = 1,
    ) -> Solved:
        """Solve the equations of strides of the run, or of the shadow.

        If the modes are known, the iterations are those of Newton's method.
        """
        blocks = problem.blocks
        weights = stride_weights(stages, problem.begin, problem.length, self._flow)
        factor = 1.0 if stages == NODES else SHADOW_TOLERANCE_FACTOR
        allowed = self._allowed_error(problem.start, self._pace[blocks])
        precondition = None
        if self._modes is not None:
            precondition = self._modes.newton(weights, problem.places(stages), blocks)
        elif self._blocks.has_memory:
            precondition = self._blocks.memory_newton(weights)
        return collocate(
            self._moves,
            blocks,
            weights,
            problem.start,
            guess,
            self._solver_share * factor * allowed,
            problem.noise,
            precondition,
            min_iterations,
        )

    def _accept(self, problem: StrideProblem, run: Solved) -> Mask:
        """Let the shadow follow, and go on from the ends of strides where it can."""
        if self.shadow_end is None:
            self.errors.add_unwatched(problem.blocks, run)
            self._advance(problem, run, run.coefficients[:, :NODES], None)
            return np.ones(len(problem.blocks), dtype=bool)
        shadow_start = self.shadow_end[problem.blocks]
        offset = shadow_start - self.run_end[problem.blocks]
        at_nodes = legendre_at_nodes(SHADOW_NODES, NODES) @ run.coefficients
        guess = at_nodes + offset[:, None]
        # The guess is the solution of the run: after a single iteration the shadow
        # would have much of the same solver error, which their distance would not show.
        shadow = self._solve(
            SHADOW_NODES, problem._replace(start=shadow_start), guess, min_iterations=2
        )
        is_solved = np.isfinite(shadow.solver_error)
        if is_solved.any():
            problem = problem.select(is_solved)
            run = run.select(is_solved)
            shadow = shadow.select(is_solved)
            distance = np.abs(offset[is_solved]).max(axis=1)
            errors = self.errors.add(problem.blocks, distance, run, shadow)
            self.shadow_end[problem.blocks] = shadow.end
            self._advance(problem, run, shadow.coefficients, errors)
        return is_solved

    def _advance(
        self,
        problem: StrideProblem,
        run: Solved,
        shadow_coefficients: Array,
        errors: StrideErrors | None,
    ) -> None:
        """Record strides, and go on from their ends."""
        blocks = problem.blocks
        self.run_end[blocks] = run.end
        self.x[blocks] = problem.end
        self._last_coefficients[blocks] = run.coefficients
        self._last_begin[blocks] = problem.begin
        self._last_length[blocks] = problem.length
        record = StrideRecord(
            blocks,
            problem.begin,
            problem.length,
            run.coefficients,
            shadow_coefficients,
            errors,
        )
        self._records.append(record)

    def phase_reversal(self, oscillation: Array) -> Array:
        """Change of the states, (n, m), that reverses the phase of the fastest mode.

        ``oscillation``, (n, m), is how the run oscillates from step to step.
        """
        norm = np.linalg.norm(self._direction, axis=1, keepdims=True)
        unit = self._direction / norm
        amplitude = np.sum(unit * oscillation, axis=1)
        # Solver errors may hide an oscillation of their size.
        amplitude = amplitude + np.copysign(self.errors.solver_error, amplitude)
        return np.asarray(-amplitude[:, None] * unit)

    def forget(self, t: int) -> None:
        """Drop the strides that end before a step."""
        x = math.log1p(t) - SLACK
        self._records = [record for record in self._records if (record.end >= x).any()]

    def worst_until(self, x: Array) -> tuple[Array, Array]:
        """Largest error and largest distance from the shadow up to some times x, (q,).

        They are taken over the strides that begin up to each time.
        """
        errors = [
            record.errors for record in self._records if record.errors is not None
        ]
        if not errors:
            return np.zeros_like(x), np.zeros_like(x)
        begin = np.concatenate([record.begin for record in self._records])
        order = np.argsort(begin)
        # The first stride begins before any of the times, except for rounding.
        last_begun = np.maximum(np.searchsorted(begin[order], x, side="right") - 1, 0)
        error = np.concatenate([estimate.error for estimate in errors])[order]
        distance = np.concatenate([estimate.distance for estimate in errors])[order]
        return (
            np.maximum.accumulate(error)[last_begun],
            np.maximum.accumulate(distance)[last_begun],
        )

    def margins_at(self, x: float) -> Array:
        """The error of the run over its distance from the shadow at a time x, (n,)."""
        margins = np.array(self.errors.margin)
        for record in self._records:
            if record.errors is not None:
                is_on = (record.begin <= x + SLACK) & (x <= record.end + SLACK)
                margins[record.blocks[is_on]] = record.errors.margin[is_on]
        return margins

    def states(self, steps: Steps) -> tuple[Array, Array]:
        """Run and shadow at steps that all blocks have reached, (q, n, m) each.

        They are NaN at steps whose strides have been dropped.
        """
        n = len(self.x)
        x = np.broadcast_to(np.log1p(steps)[:, None], (len(steps), n))
        return self.at(x, np.arange(n))

    def at(self, x: Array, blocks: Index) -> tuple[Array, Array]:
        """Run and shadow of k blocks at times x of each, (..., k): (..., k, m) each.

        They are NaN where no stride is known.
        """
        shape = (*x.shape, self.run_end.shape[1])
        run = np.full(shape, np.nan)
        shadow = np.full(shape, np.nan)
        if not self._records:
            # From t = 1e14 on, x does not distinguish the next few steps from the start
            # of the first stride.
            is_start = np.abs(x - self.x[blocks]) <= SLACK
            run[is_start] = np.broadcast_to(self.run_end[blocks], shape)[is_start]
            if self.shadow_end is not None:
                start = np.broadcast_to(self.shadow_end[blocks], shape)
                shadow[is_start] = start[is_start]
        # The position of each block in `blocks`; -1 if it is not among them.
        position = np.full(len(self.x), -1)
        position[blocks] = np.arange(len(blocks))
        for record in self._records:
            wanted = np.flatnonzero(position[record.blocks] >= 0)
            offset = x[..., position[record.blocks[wanted]]] - record.begin[wanted]
            is_on = (offset >= -SLACK) & (offset <= record.length[wanted] + SLACK)
            *times, column = np.nonzero(is_on)
            if not column.size:
                continue
            row = wanted[column]
            target = (*times, position[record.blocks[row]])
            places = x[target][:, None]
            begin = record.begin[row]
            length = record.length[row]
            run_values = polynomial_values(record.run[row], places, begin, length)
            shadow_values = polynomial_values(record.shadow[row], places, begin, length)
            run[target] = run_values[:, 0]
            shadow[target] = shadow_values[:, 0]
        return run, shadow

    def land(self, t: int) -> tuple[Array, Array]:
        """Run and shadow at a step, (n, m) each, by strides that end there.

        The ends of strides are far more accurate than the states between.
        """
        x = math.log1p(t)
        run_states, shadow_states = self.states(np.array([t]))
        run, shadow = run_states[0], shadow_states[0]
        for record in self._records:
            is_on = (record.begin < x - SLACK) & (x <= record.end + SLACK)
            if is_on.any():
                self._land_on(x, record, is_on, NODES, record.run, run)
                self._land_on(x, record, is_on, SHADOW_NODES, record.shadow, shadow)
        return run, shadow

    def _land_on(
        self,
        x: float,
        record: StrideRecord,
        is_on: Mask,
        stages: int,
        coefficients: Array,
        states: Array,
    ) -> None:
        """Write the states at x that strides from the same starts have there."""
        coefficients = coefficients[is_on]
        begin = record.begin[is_on]
        # Legendre polynomials are 1 and -1 in turn at -1.
        start = ((-1.0) ** np.arange(coefficients.shape[1])) @ coefficients
        noise = 2.0**-47 * np.abs(start).max(axis=1)
        problem = StrideProblem(record.blocks[is_on], begin, x - begin, start, noise)
        guess = polynomial_values(
            coefficients, problem.places(stages), begin, record.length[is_on]
        )
        solved = self._solve(stages, problem, guess)
        is_solved = np.isfinite(solved.solver_error)
        states[problem.blocks[is_solved]] = solved.end[is_solved]
