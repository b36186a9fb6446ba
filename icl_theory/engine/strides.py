"""Strides over many iterates of gradient descent, with an estimate of the error.

The terms of this module:

move
    The change of the parameters in one step, θ(t + 1) - θ(t).
block
    A part of the parameters that does not affect the other parts. There are n blocks
    of m numbers, the rows of an array. See `icl_theory.engine.blocks`.
memory
    If the update rule has a memory, such as a momentum, the m numbers of a block are
    its parameters and, behind them, the memory.
stride
    An interval in x = ln(1 + t) on which a polynomial approximates one block. At a few
    points, the nodes, the polynomial satisfies the equations of the run. See
    `icl_theory.engine.collocation`. Each block has its own strides.
solver error
    The equations of a stride are solved by iteration. The solver error is the error
    that the iteration leaves.
shadow
    A less accurate second run, which takes the same strides with one node less. The
    distance between run and shadow is the largest absolute difference between their
    entries. This distance estimates the error of the run.
mode
    An eigenvector of the Hessian of a block. Its rate is the learning rate times the
    eigenvalue. The modes are computed only after some strides, and not for large
    blocks.
pace
    The largest absolute entry of dθ/dx.
gain
    The largest change of a score for a change of the parameters by 1. The scores are
    the numbers to which the tolerance applies, usually attention scores.

`Strides` follows all blocks. See docs/theory.md, "Skipping ahead".
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

# The numbers of nodes in a stride of the run, and in a stride of its shadow. More nodes
# would allow longer strides, but each node costs a gradient in each iteration.
NODES = 9
SHADOW_NODES = NODES - 1
# Twice the derivatives of the Legendre polynomials P_j at 1, which are j (j + 1)/2. The
# product of these numbers with the coefficients of a stride, divided by the length of
# the stride, is the slope in x at the end of the stride: a stride is the interval
# [-1, 1] of the polynomials, so its length in x stands for 2.
END_SLOPES = np.arange(NODES + 1.0) * np.arange(1.0, NODES + 2.0)
# The solver error of the shadow may be this many times the solver error of the run. By
# default the solver error of the run may be 0.1 % of the allowed error of a stride, so
# the solver error of the shadow may be 3 % of it. The shadow is less accurate anyway,
# so a smaller factor would only cost iterations.
SHADOW_TOLERANCE_FACTOR = 30.0
# The next three numbers are margins of the error estimate, which is tested and not
# proved (docs/theory/descent.md, "Skipping ahead"). Larger margins make the estimate
# more cautious, and do not change the run itself.
#
# A solver error in one stride is taken to displace the later run by at most this many
# times the solver error.
SOLVER_ERROR_FACTOR = 2.0
# The error of the run may be this many times its distance from the shadow.
MARGIN = 2.0
# A stride may add this many times the error that is estimated for it.
STRIDE_ERROR_FACTOR = 4.0
# The relative spacing of float64 numbers.
ROUNDING = 2.0**-52
# Times x that differ by less than this count as the same time: rounding may separate
# the end of a stride from the beginning of the next one. Up to 10^15 steps, x is at
# most 35, where the spacing of float64 numbers is 7e-15.
SLACK = 1e-14
# Avoids division by zero, and is below every number that matters.
TINY = 1e-300
# Changes of moves below this number are ignored, and no limit on an error is smaller.
# Any number far below the changes that matter would do.
SMALLEST_CHANGE = 1e-200
# The largest rounding error of a state, relative to its largest entry: 32 units in the
# last place. A smaller number costs iterations that only move rounding errors.
STATE_ROUNDING = 2.0**-47
# The rounding error of a move may be this many times the one that a single trial shows.
# It is a cautious choice: with a smaller number the solver might try to remove errors
# that are mere rounding, and with a larger one it leaves larger errors.
ROUNDING_MARGIN = 8.0
# About a hundred times ROUNDING. However slowly a block moves, it need not be followed
# with a smaller error than this, relative to the size of its state.
SMALLEST_STRIDE_ERROR = 2.3e-14
# The length by which states are displaced along the fastest mode, relative to the size
# of the state or to 1, whichever is larger. The change of the move must be far above
# rounding, and the curvature nearly constant along the displacement.
NUDGE = 1e-5
# At the largest stable rate a mode oscillates forever. Above this share of that rate it
# oscillates for so long that strides could not skip the oscillation. For gradient
# descent the largest stable rate is 2. At 0.95 of it a mode changes by the factor -0.9
# in each step, so that its size falls by half in about seven steps.
FASTEST_SMOOTH_RATE = 0.95

# Only the estimated error decides whether a stride is accepted. The numbers from here
# to SMALLEST_GROWTH, and SMALLEST_TREND, only set the lengths that are tried: with
# longer strides more of them are refused, and with shorter strides more of them are
# needed.
#
# The next stride is at most this many times as long as the last one.
LARGEST_GROWTH = 2.0
# The next stride is at most this many times as long if the equations of the last stride
# took more than HARD_ITERATIONS iterations. A longer stride would be even harder.
GROWTH_AFTER_HARD_STRIDE = 0.8
HARD_ITERATIONS = 7
# After a refused stride the next one, which must be shorter, is at most this many times
# as long.
GROWTH_AFTER_REFUSAL = 0.7
# After a stride whose equations were not solved, so that its error is unknown, the next
# one is this many times as long.
GROWTH_AFTER_FAILURE = 0.4
# The next stride is at least this many times as long as the last one: an error estimate
# far above the allowed error is unreliable.
SMALLEST_GROWTH = 0.2
# A flow cannot be followed if its strides become shorter than this length in x, which
# is close to the rounding error of x.
SHORTEST_FLOW_STRIDE = 1e-13
# If lengths shrink, they are expected to shrink again by the same ratio, but the ratio
# is not taken to be smaller than this.
SMALLEST_TREND = 0.5
# Strides of a block are given up if they have cost this many gradients more than single
# steps would have. This is the cost of about five strides: a stride of the run and one
# of its shadow together take 85 gradients in EASY_ITERATIONS.
LARGEST_DEBT = 400.0
# Strides are also given up if the next one would skip fewer steps than this. In each
# iteration each of the NODES nodes of a stride costs a gradient, so the stride would
# then cost more than single steps.
FEWEST_SKIPPED_STEPS = 8.0
# A stride takes about this many iterations if the modes are known.
EASY_ITERATIONS = 5
# An iteration over fewer numbers than this takes as long as one over this many, because
# most of the time is spent in calls of NumPy. This number decides only when the modes
# are computed, so a rough value is enough.
FEWEST_NUMBERS = 2500.0
# Blocks take their strides in groups whose states at the nodes have about this many
# numbers, 8 MiB, so that a processor's cache can hold them.
CACHED_NUMBERS = 2**20


class StrideErrors(NamedTuple):
    """Error estimates of n strides.

    Attributes
    ----------
    error : ndarray of shape (n,)
        The largest error of the run in each stride.
    distance : ndarray of shape (n,)
        The largest distance between run and shadow in each stride.
    margin : ndarray of shape (n,)
        The error of the run divided by its distance from the shadow.
    """

    error: Array
    distance: Array
    margin: Array


class StrideProblem(NamedTuple):
    """The next strides of n blocks, which are still to be solved.

    Attributes
    ----------
    blocks : ndarray of shape (n,)
        The index of each block.
    begin, length : ndarray of shape (n,)
        The value of x = ln(1 + t) at the beginning of each stride, and the length of
        the stride in x.
    start : ndarray of shape (n, m)
        The states of the blocks at the beginning.
    noise : ndarray of shape (n,)
        The rounding error of each stride. The equations need not be solved with a
        smaller error.
    """

    blocks: Index
    begin: Array
    length: Array
    start: Array
    noise: Array

    @property
    def end(self) -> Array:
        """The values of x at the ends of the strides."""
        return self.begin + self.length

    def places(self, stages: int) -> Array:
        """The values of x at the ``stages`` nodes of each stride, (n, stages)."""
        return self.begin[:, None] + radau(stages).nodes * self.length[:, None]

    def select(self, mask: Mask) -> StrideProblem:
        """Keep the strides whose entry in ``mask`` is True."""
        return StrideProblem(
            blocks=self.blocks[mask],
            begin=self.begin[mask],
            length=self.length[mask],
            start=self.start[mask],
            noise=self.noise[mask],
        )


class StrideRecord(NamedTuple):
    """Accepted strides of n blocks.

    Attributes
    ----------
    blocks : ndarray of shape (n,)
        The index of each block.
    begin, length : ndarray of shape (n,)
        The value of x at the beginning of each stride, and the length of the stride.
    run : ndarray of shape (n, NODES + 1, m)
        The Legendre coefficients of the run.
    shadow : ndarray of shape (n, NODES, m)
        The Legendre coefficients of the shadow. If there is no shadow, these are the
        coefficients of the run without the last one.
    errors : StrideErrors or None
        The error estimates; None if there is no shadow.
    """

    blocks: Index
    begin: Array
    length: Array
    run: Array
    shadow: Array
    errors: StrideErrors | None

    @property
    def end(self) -> Array:
        """The values of x at the ends of the strides."""
        return self.begin + self.length


class RunErrors:
    """Estimated errors of the run in n blocks, which are carried from stride to stride.

    Attributes
    ----------
    solver_error : ndarray of shape (n,)
        The part of the error that comes from the solver errors of all strides so far.
        The distance from the shadow does not show this part, because the iteration for
        the shadow begins with the solution of the run.
    margin : ndarray of shape (n,)
        The error of the run divided by its distance from the shadow, in the last
        stride of each block.
    """

    def __init__(self, count: int) -> None:
        self.solver_error = np.zeros(count)
        self.margin = np.full(count, MARGIN)
        # The estimated error of each block at the end of its last stride.
        self._error = np.zeros(count)

    def continued(self) -> RunErrors:
        """Return the errors with which later strides of the same blocks begin.

        `start` sets the errors that depend on the distance from the shadow. The arrays
        are copies, because they change in place.
        """
        errors = RunErrors(len(self.margin))
        errors.solver_error[:] = self.solver_error
        errors.margin[:] = self.margin
        return errors

    def start(self, distance: Array) -> None:
        """Set the errors of a run whose shadow begins at these distances, (n,)."""
        self._error = self.margin * distance

    def add_unwatched(self, blocks: Index, run: Solved) -> None:
        """Add the solver errors of strides that have no shadow.

        Without a shadow no other errors are estimated.
        """
        self.solver_error[blocks] += SOLVER_ERROR_FACTOR * run.solver_error

    def add(
        self, blocks: Index, distance_before: Array, run: Solved, shadow: Solved
    ) -> StrideErrors:
        """Add the errors of one stride in each of k blocks, and return the estimates.

        Parameters
        ----------
        blocks : ndarray of shape (k,)
            The index of each block.
        distance_before : ndarray of shape (k,)
            The distances between run and shadow at the beginnings of the strides.
        run, shadow : Solved
            The solved strides of the run and of the shadow.
        """
        distance = _largest_distance(run, shadow)
        distance_after = np.abs(shadow.end - run.end).max(axis=1)
        # The last coefficient of the run, which the shadow lacks, measures the error of
        # the shadow in this stride. It may be small by chance. So if the distance
        # inside the stride exceeds the distances at both ends by more than this
        # coefficient, the excess is used instead.
        excess_inside = distance - np.maximum(distance_before, distance_after)
        shadow_error = np.maximum(run.last_coefficient, excess_inside)
        # The new error of the run has two parts: the error of the shadow, multiplied by
        # the estimated ratio of the run's error to the shadow's, and the solver error.
        stride_error = STRIDE_ERROR_FACTOR * (
            run.error_ratio * shadow_error + run.solver_error
        )
        # The distance that new errors of run and shadow may have added.
        distance_added = run.last_coefficient + SOLVER_ERROR_FACTOR * (
            run.solver_error + shadow.solver_error
        )
        # The factors by which the stride may have enlarged earlier errors: ``nearest``
        # is the possible factor that is nearest to 1, ``cautious`` is at most as large.
        growth = distance_growth(distance_before, distance_after, distance_added)
        inherited = self._error[blocks]
        grown = _grown_error(inherited, growth.cautious, distance_after)
        # The part that earlier errors cause is taken to be largest at one of the ends
        # of the stride.
        error = np.maximum(inherited, grown) + stride_error
        error_after = grown + stride_error
        self._error[blocks] = error_after
        # If the stride reduces the distance, it reduces earlier solver errors by the
        # same factor. They do not grow here, because SOLVER_ERROR_FACTOR already stands
        # for their growth.
        inherited_solver_error = (
            np.minimum(1.0, growth.nearest) * self.solver_error[blocks]
        )
        self.solver_error[blocks] = (
            inherited_solver_error + SOLVER_ERROR_FACTOR * run.solver_error
        )
        margin = _margins(error, distance, error_after, distance_after)
        self.margin[blocks] = margin
        return StrideErrors(error, distance, margin)


def _largest_distance(run: Solved, shadow: Solved) -> Array:
    """The largest distance between run and shadow at the nodes of n strides, (n,)."""
    # The polynomial of the shadow lacks the last coefficient.
    difference = run.coefficients.copy()
    difference[:, :NODES] -= shadow.coefficients
    # The matrix of the Legendre polynomials at the nodes turns coefficients, (n, NODES
    # + 1, m), into values at the nodes, (n, NODES, m).
    at_nodes = legendre_at_nodes(NODES, NODES) @ difference
    return np.asarray(np.abs(at_nodes).max(axis=(1, 2)))


def _margins(
    error: Array, distance: Array, error_after: Array, distance_after: Array
) -> Array:
    """Errors of the run, divided by its distances from the shadow, in n strides, (n,).

    ``error`` and ``distance``, (n,), are the largest error and distance in each stride.
    ``error_after`` and ``distance_after``, (n,), are the error and distance at its end.
    """
    # The error of steps that are taken singly after the stride is estimated as this
    # margin times the distance of run and shadow. Such steps enlarge the error at the
    # end of the stride, and not the largest error inside, so the margin must cover the
    # error at the end, too. The margin at the end is cut to MARGIN, which is also the
    # margin before the first stride: if the distance at the end is small by chance, the
    # quotient is large and says nothing about later steps.
    margin_at_end = error_after / np.maximum(distance_after, TINY)
    margin_inside = error / np.maximum(distance, TINY)
    return np.maximum(margin_inside, np.minimum(MARGIN, margin_at_end))


def _grown_error(inherited: Array, growth: Array, distance_after: Array) -> Array:
    """The part of the errors at the ends of n strides that earlier errors cause, (n,).

    It is computed from the errors at the beginnings, ``inherited``: they are multiplied
    by the ``growth`` of the distances between run and shadow, and bounded. All arrays
    have the shape (n,).
    """
    grown = growth * inherited
    # If the distance is far below the error, it does not show how errors grow: the
    # distance before the stride may have been mere rounding, and the shadow's own error
    # in the stride then looks like growth. So errors grow at most to MARGIN times the
    # distance.
    bounded = np.maximum(inherited, np.minimum(grown, MARGIN * distance_after))
    return np.where(growth > 1.0, bounded, grown)


class Growth(NamedTuple):
    """Factors by which distances between run and shadow may grow in n strides.

    Attributes
    ----------
    nearest : ndarray of shape (n,)
        Of all possible factors, the one nearest to 1.
    cautious : ndarray of shape (n,)
        A factor between the smallest possible one and ``nearest``.
    """

    nearest: Array
    cautious: Array


def distance_growth(
    before: Array, after: Array, added: Array, weight: float = 1.0 / 3.0
) -> Growth:
    """Estimate how much strides enlarge the distance between run and shadow.

    The distance after a stride is the sum of the earlier distance, which has grown, and
    of the error that the shadow makes in the stride; only the sum is known. If this
    error adds to the distance, the earlier distance has grown by the smallest possible
    factor. But the error may also cancel part of the distance, while the error of the
    run remains. The true factor is then larger. So the ``cautious`` factor is a
    weighted mean of the smallest possible factor and of the possible factor that is
    nearest to 1.

    Parameters
    ----------
    before, after : ndarray of shape (n,)
        Distances at the beginning and at the end of each stride.
    added : ndarray of shape (n,)
        The largest distance that each stride may add or cancel by its own error.
    weight : float
        The weight of the growth nearest to 1. In trials with the weight 0, one estimate
        was hardly above the true error; with 1/2, other estimates were twice as large.
    """
    # If run and shadow coincided before the stride, the growth of their distance is
    # unknown. The distance before is then assumed to be such that the growth is about
    # 1.
    assumed_before = np.where(before > 0.0, before, after + added)
    # The grown distance is between `after - added` and `after + added`. The distance in
    # this interval that is nearest to the distance before gives the factor nearest
    # to 1.
    smallest_distance = np.maximum(after - added, 0.0)
    nearest_distance = np.clip(assumed_before, smallest_distance, after + added)
    cautious_distance = smallest_distance + weight * (
        nearest_distance - smallest_distance
    )
    # The distance before is still zero if ``before``, ``after`` and ``added`` are all
    # zero. The factor is then 1: np.divide leaves these entries of `out` as they are.
    is_positive = assumed_before > 0.0
    nearest = np.divide(
        nearest_distance,
        assumed_before,
        out=np.ones_like(assumed_before),
        where=is_positive,
    )
    cautious = np.divide(
        cautious_distance,
        assumed_before,
        out=np.ones_like(assumed_before),
        where=is_positive,
    )
    return Growth(nearest=nearest, cautious=cautious)


class TimesInside(NamedTuple):
    """Pairs of a time and of a recorded stride that contains this time.

    Attributes
    ----------
    indices : tuple of ndarray, each of shape (number of pairs,)
        The indices of the times in an array of times: one array for each of its axes.
    stride : ndarray of shape (number of pairs,)
        The indices of the strides in the record.
    """

    indices: tuple[Index, ...]
    stride: Index


def _times_inside(record: StrideRecord, x: Array, position: Index) -> TimesInside:
    """Find the times that lie inside the strides of a record.

    Parameters
    ----------
    record : StrideRecord
        The strides.
    x : ndarray of shape (..., k)
        Times ln(1 + t) of k blocks.
    position : ndarray of shape (n,)
        For each of all n blocks, its position among the k blocks; -1 if it is not one
        of them.
    """
    # For each recorded stride, the position of its block among the k blocks.
    position_of_block = position[record.blocks]
    # The recorded strides of the k blocks.
    candidates = np.flatnonzero(position_of_block >= 0)
    # The times of the block of each of these strides, and their distances from the
    # beginning of the stride: both (..., number of candidates).
    times_of_block = x[..., position_of_block[candidates]]
    offset = times_of_block - record.begin[candidates]
    is_inside = (offset >= -SLACK) & (offset <= record.length[candidates] + SLACK)
    *leading_indices, candidate_number = np.nonzero(is_inside)
    stride = candidates[candidate_number]
    # The last axis of x has one entry for each of the k blocks, not for each candidate.
    return TimesInside((*leading_indices, position_of_block[stride]), stride)


class StrideLengths:
    """The lengths of the next strides, from the errors of the last strides.

    Parameters
    ----------
    count : int
        The number of blocks.
    first : float
        The length of the first strides, in x.
    aim : float
        The length of a stride, divided by the length at which its error would be equal
        to the allowed error. With a value below 1 strides are shorter, and fewer of
        them are refused.

    Attributes
    ----------
    next : ndarray of shape (count,)
        The length in x of the next stride of each block.
    """

    def __init__(self, count: int, first: float, aim: float) -> None:
        self.next = np.full(count, first)
        # The lengths that `update` has found to be ideal after the last accepted
        # strides; 0 before there is one.
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
        """Set the next lengths after one stride in each of k blocks.

        Parameters
        ----------
        blocks : ndarray of shape (k,)
            The index of each block.
        length : ndarray of shape (k,)
            The length of each stride, in x.
        error_ratio : ndarray of shape (k,)
            The error of each stride divided by its allowed error; infinite if the
            equations were not solved.
        iterations : ndarray of shape (k,)
            The number of iterations that the equations of each stride took.
        is_accepted : ndarray of shape (k,)
            Whether the stride was accepted.
        """
        # The error is proportional to length^(NODES + 1). So with the aim 1, a stride
        # that is `growth` times as long would have exactly the allowed error. An error
        # of 0 gives an infinite factor, which is limited below.
        with np.errstate(divide="ignore"):
            growth = self._aim * error_ratio ** (-1.0 / (NODES + 1))
        is_hard = iterations > HARD_ITERATIONS
        largest_growth = np.where(is_hard, GROWTH_AFTER_HARD_STRIDE, LARGEST_GROWTH)
        largest_growth = np.where(is_accepted, largest_growth, GROWTH_AFTER_REFUSAL)
        growth = np.clip(growth, SMALLEST_GROWTH, largest_growth)
        is_solved = np.isfinite(error_ratio)
        # The ideal length of the next stride, as long as errors depend on the length
        # alone.
        ideal = np.where(is_solved, growth, GROWTH_AFTER_FAILURE) * length
        last_ideal = self._last_ideal[blocks]
        # The ratio of the last two ideal lengths; 1 if there are not yet two of them,
        # and after a refused stride, whose new length is short anyway.
        trend = np.divide(
            ideal,
            last_ideal,
            out=np.ones(len(length)),
            where=is_accepted & (last_ideal > 0.0),
        )
        # Towards a drop of the loss each stride must be shorter than the last one. So
        # lengths that have shrunk are expected to shrink again by the same factor.
        self.next[blocks] = ideal * np.clip(trend, SMALLEST_TREND, 1.0)
        self._last_ideal[blocks] = np.where(is_accepted, ideal, last_ideal)


class StrideDebts:
    """The gradients that strides have cost in excess of single steps, for each block.

    A single step of run and shadow takes two gradients. So a stride saves gradients if
    it takes fewer than two for each step that it skips.

    Attributes
    ----------
    gradients : ndarray of shape (count,)
        The excess of each block, at least 0.
    """

    def __init__(self, count: int) -> None:
        self.gradients = np.zeros(count)

    def charge(self, blocks: Index, gradients: float, skipped: Array) -> None:
        """Add the gradients of k blocks, one stride each, less two per skipped step.

        ``gradients`` is the number of gradients for one block, and ``skipped``, (k,),
        has the number of steps that each block has skipped.
        """
        debt = self.gradients[blocks] + gradients - 2.0 * skipped
        self.gradients[blocks] = np.maximum(0.0, debt)


class Strides:
    """The strides of n blocks, and the strides of their shadows.

    Parameters
    ----------
    blocks : Blocks
        Splits the parameters into n blocks of m numbers.
    tolerance : float
        The absolute tolerance on the scores. For a flow it is also the tolerance on the
        parameters relative to their size; the larger of the two applies.
    run_start : ndarray of shape (n, m)
        The states of the run. They are overwritten when blocks take strides.
    shadow_start : ndarray of shape (n, m) or None
        The states of the shadow, if there is one. They are overwritten, too.
    t : float
        The step number at which the run has the states ``run_start``.
    first_length : float
        The length of the first strides in x = ln(1 + t).
    budget : int
        The largest number of gradients.
    flow : bool
        Whether the strides approximate the gradient flow instead of the iterates.
    share : float
        The share of the tolerance that the error of one stride may take. It is small
        because dozens of strides together must keep the tolerance.
    aim : float
        See `StrideLengths`. Use a smaller value if a refused stride of one block makes
        the other blocks wait.
    separate : bool
        Whether the blocks belong to different runs. If so, a block that oscillates, or
        whose strides cost too much, is abandoned. Otherwise `TooFast` is raised.
    solver_share : float
        The share of a stride's allowed error that the solver of its equations may
        leave. It is small, because the distance between run and shadow does not show
        the solver's errors. A smaller share takes more iterations.
    previous : Strides, optional
        Earlier strides of the same blocks, from which the errors so far and the
        direction of the fastest mode are taken. They must not be continued.

    Attributes
    ----------
    run_end, shadow_end : ndarray of shape (n, m)
        The states at the end of the last stride of each block; ``shadow_end`` is None
        if there is no shadow.
    x : ndarray of shape (n,)
        The times ln(1 + t) at the ends of the last strides.
    errors : RunErrors
        The estimated errors at the ends of the last strides.
    abandoned : ndarray of shape (n,)
        Whether the block is no longer followed.
    oscillates : bool
        Whether, at the beginnings of the last strides, the fastest mode of a block
        changed its sign from step to step and decayed too slowly, or not at all. See
        FASTEST_SMOOTH_RATE.
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
        # The gain at the start. `_allowed_error` says when a later one is used.
        self._gain = gain_at(self._map.risk, blocks.params(run_start))
        self._lengths = StrideLengths(n, first_length, aim)
        self._debts = StrideDebts(n)
        # The moves at the beginnings of the last strides, and the paces there.
        self._move = np.zeros((n, m))
        self._pace = np.zeros(n)
        # The polynomials of the last strides, from which the next ones are guessed. The
        # length is 0 before the first stride.
        self._last_coefficients = np.zeros((n, NODES + 1, m))
        self._last_begin = np.zeros(n)
        self._last_length = np.zeros(n)
        # An approximation of the fastest mode of each block. One iteration of the power
        # method improves it at each stride. The approximation starts at random, so that
        # no mode is missing from it; the fixed seed makes the run reproducible.
        if previous is None:
            self._direction = np.random.default_rng(n).normal(size=(n, m))
        else:
            # No copy is needed: the earlier strides do not use it any more.
            self._direction = previous._direction
        self._modes: Modes | None = None
        # The number of gradients that known modes would have saved so far.
        self._saved_by_modes = 0.0
        # The fraction of a gradient, below 1, that is spent but not yet counted.
        self._uncounted = 0.0

    @property
    def begin(self) -> float:
        """The value of x at the beginning of the first stride; 0 if there is none."""
        return min((float(record.begin.min()) for record in self._records), default=0.0)

    @property
    def last_step(self) -> int:
        """The last step that all blocks have reached."""
        return math.floor(math.expm1(float(self.x.min()) + SLACK))

    def guess_from(self, iterates: dict[int, Array]) -> None:
        """Let the guesses of the first strides extrapolate NODES + 1 iterates.

        The guess of a stride extrapolates the polynomial of the block's previous
        stride. Before the first stride, a polynomial through the iterates takes its
        place. ``iterates`` maps increasing step numbers to states of all blocks,
        (n, m).
        """
        # The keys are the step numbers t.
        x = np.log1p(list(iterates))
        # The iterates become the second axis: (n, NODES + 1, m).
        states = np.stack(list(iterates.values()), axis=1)
        degree = len(x) - 1
        begin = x[0]
        length = x[-1] - x[0]
        self._last_begin[:] = begin
        self._last_length[:] = length
        # Legendre polynomials belong to the interval from -1 to 1. Row i of the matrix
        # `values` has the values of all polynomials at iterate i, so the matrix turns
        # coefficients into states, and its inverse turns states into coefficients.
        scaled = 2.0 * (x - begin) / length - 1.0
        values = legendre(scaled, degree)
        self._last_coefficients = np.linalg.inv(values) @ states

    def reach(self, x: Array | float) -> None:
        """Take strides until every block has passed the time x = ln(1 + t).

        Parameters
        ----------
        x : float or ndarray of shape (n,)
            One time for all blocks, or a time for each block.

        Raises
        ------
        TooFast
            The strides cost more gradients than single steps, or might skip over an
            oscillation.
        Ended
            The budget of gradients is used up, or a flow needs strides that are too
            short for float64.
        """
        # The states of a block at the nodes are NODES times m numbers.
        group_size = max(1, CACHED_NUMBERS // (NODES * self.run_end.shape[1]))
        behind = self._blocks_behind(x)
        while behind.size:
            for start in range(0, len(behind), group_size):
                self._stride(behind[start : start + group_size])
            behind = self._blocks_behind(x)

    def _blocks_behind(self, x: Array | float) -> Index:
        """Return the blocks that have not reached the time x and are still followed."""
        return np.flatnonzero((self.x < x - SLACK) & ~self.abandoned)

    def _stride(self, blocks: Index) -> None:
        """Try one stride of each of k blocks, and set the lengths of the next strides.

        A block moves to the end of its stride if the stride is accepted, and otherwise
        stays where it is.
        """
        spent_before = self._spent
        problem = self._next_problem(blocks)
        run = self._solve(NODES, problem, self._guess(problem))
        # The estimated error of each stride; infinite if its equations are not solved.
        error = run.error
        # The slopes in x at the ends give the paces there, see END_SLOPES.
        end_slope = np.abs(END_SLOPES @ run.coefficients).max(axis=1) / problem.length
        # The end of an unsolved stride means nothing, and may be NaN. An infinite pace
        # sets no limit; the stride is refused because its error is infinite.
        end_pace = np.where(np.isfinite(error), end_slope, np.inf)
        with np.errstate(invalid="ignore"):
            allowed = self._allowed_error(run.end, end_pace)
        # No stride can be more accurate than rounding.
        allowed = np.maximum(allowed, problem.noise)
        is_accepted = error <= allowed
        if is_accepted.any():
            # A stride whose shadow cannot be solved is not accepted after all.
            # `_accept` returns one entry for each stride that has been accepted so far.
            is_accepted[is_accepted] = self._accept(
                problem.select(is_accepted), run.select(is_accepted)
            )
        self._lengths.update(
            blocks, problem.length, error / allowed, run.iterations, is_accepted
        )
        if self._flow:
            # Strides no longer than the rounding error of x make no progress.
            if self._lengths.next.min() < SHORTEST_FLOW_STRIDE:
                raise Ended(Stop.FLOW)
        else:
            skipped = np.expm1(problem.end) - np.expm1(problem.begin)
            # A gradient of k of the n blocks was counted as k/n of a whole gradient.
            # So n/k times the count is the number of gradients of each block.
            spent_by_block = (self._spent - spent_before) * len(self.x) / len(blocks)
            # A refused stride skips no steps.
            self._charge(blocks, spent_by_block, np.where(is_accepted, skipped, 0.0))
        self._look_for_modes(run)

    def _charge(self, blocks: Index, gradients: float, skipped: Array) -> None:
        """Charge blocks for a stride, and abandon blocks whose strides cost too much.

        ``gradients`` and ``skipped`` are as in `StrideDebts.charge`. Strides cost too
        much if the debt exceeds LARGEST_DEBT, or if the next stride would skip fewer
        steps than FEWEST_SKIPPED_STEPS. The blocks of one run share their debts.
        """
        self._debts.charge(blocks, gradients, skipped)
        debt = self._debts.gradients
        if self._separate:
            is_in_debt = debt > LARGEST_DEBT
        else:
            is_in_debt = np.full(len(debt), debt.mean() > LARGEST_DEBT)
        # As dt/dx = e^x, a stride of length h in x skips h e^x steps to first order.
        next_steps = self._lengths.next * np.exp(self.x)
        self._abandon(is_in_debt | (next_steps < FEWEST_SKIPPED_STEPS))

    def _abandon(self, mask: Mask) -> None:
        """Abandon the blocks in ``mask``; raise `TooFast` if they belong to one run."""
        if mask.any() and not self._separate:
            raise TooFast
        self.abandoned |= mask

    def _look_for_modes(self, run: Solved) -> None:
        """Compute the modes when they would have saved more gradients than they cost.

        ``run`` holds the strides that were tried. With the modes a stride takes about
        EASY_ITERATIONS, so all iterations of a stride beyond this number would have
        been saved. If a stride was not solved, all its iterations count.
        """
        is_solved = np.isfinite(run.solver_error)
        saved_iterations = np.where(
            is_solved, run.iterations - EASY_ITERATIONS, run.iterations
        )
        saved_iterations = saved_iterations.clip(min=0)
        n, m = self.run_end.shape
        # Both savings are counted in gradients of a block, each 1/n of a whole
        # gradient, and the larger one is taken. An iteration of one stride computes
        # NODES of these gradients.
        saved_by_arithmetic = float(saved_iterations.sum()) * NODES
        # All strides are iterated together, so the hardest stride decides how many
        # calls are saved. A call on few numbers is dominated by NumPy's overhead, and
        # takes as long as FEWEST_NUMBERS / m gradients of a block.
        saved_by_calls = float(saved_iterations.max()) * FEWEST_NUMBERS / m
        self._saved_by_modes += max(saved_by_arithmetic, saved_by_calls) / n
        would_pay = self._saved_by_modes > self._blocks.modes_cost
        if self._blocks.can_find_modes and would_pay:
            # From here on the sum counts the gradients that newer modes would save,
            # because the modes change along the run.
            self._saved_by_modes = 0.0
            self._modes = self._blocks.modes(self.run_end, self.x)

    @property
    def _spent(self) -> float:
        """The number of gradients so far, with the fraction that is not yet counted."""
        return self._map.evaluations + self._uncounted

    def _moves(self, rows: Array, blocks: Index) -> Array:
        """Return the moves of r states, (r, m), and count their gradients.

        ``rows``, (r, m), holds a state of one block in each row, and ``blocks``, (r,),
        the indices of these blocks. The run ends if the budget is exceeded.
        """
        if self._blocks.column_gradients is not None:
            # `Blocks.moves` counts gradients of all parameters, but not gradients of
            # single columns, so these are counted here. The gradient of one of n
            # blocks counts as 1/n of a whole gradient. The counter takes whole
            # gradients only, so a fraction is kept for later.
            self._uncounted += len(rows) / len(self.x)
            whole = int(self._uncounted)
            self._map.evaluations = self._map.evaluations + whole
            self._uncounted = self._uncounted % 1.0
        if self._map.evaluations > self._budget:
            raise Ended(Stop.WORK, work=self._budget)
        return self._blocks.moves(rows, blocks)

    def _next_problem(self, blocks: Index) -> StrideProblem:
        """Set up the next strides of k blocks.

        Two or three moves of each block are computed in one call. The move at the state
        of the block gives the pace, and the guess for a first stride. The move at a
        state that is displaced a little along the fastest mode gives the rate of this
        mode; blocks in which this rate is too large are abandoned. If the modes are
        known, the move at a state whose last bits are changed gives the rounding error.

        The moves, the paces and the directions of the fastest modes are kept in
        ``_move``, ``_pace`` and ``_direction``.
        """
        start = self.run_end[blocks]
        begin = self.x[blocks]
        length = self._lengths.next[blocks]
        size = np.abs(start).max(axis=1)
        nudge = self._nudge_along_fastest_mode(blocks, size)
        states = [start, start + nudge]
        if self._modes is not None:
            # Change the last bits of all entries, up and down in turn.
            is_odd = np.arange(start.shape[1]) % 2 == 1
            states.append(start * (1.0 + np.where(is_odd, ROUNDING, -ROUNDING)))
        # Two or three arrays (k, m) become one of 2 k or 3 k rows, and so do the moves.
        states_of_block = len(states)
        all_moves = self._moves(
            np.concatenate(states), np.tile(blocks, states_of_block)
        )
        # `rounded_moves` has one entry if the modes are known, and none otherwise.
        move, nudged_move, *rounded_moves = np.split(all_moves, states_of_block)
        self._move[blocks] = move
        # dθ/dx is dθ/dt times e^x.
        self._pace[blocks] = np.abs(move).max(axis=1) * np.exp(begin)
        self._turn_to_fastest_mode(blocks, nudge, nudged_move - move)
        noise = STATE_ROUNDING * size
        for rounded_move in rounded_moves:
            noise += self._accumulated_rounding(
                blocks, rounded_move - move, begin, length
            )
        return StrideProblem(
            blocks=blocks, begin=begin, length=length, start=start, noise=noise
        )

    def _accumulated_rounding(
        self, blocks: Index, rounding: Array, begin: Array, length: Array
    ) -> Array:
        """Errors of k states, (k,), which rounding of their moves causes in a stride.

        ``rounding``, (k, m), are the rounding errors of the moves, from one trial. They
        are taken to be the same in all steps, and may then add up. How far they add up
        depends on the modes, which must be known.
        """
        assert self._modes is not None
        steps = np.expm1(begin + length) - np.expm1(begin)
        accumulated = self._modes.accumulated_changes(rounding, begin, steps, blocks)
        # The rounding errors of a single trial may be small by chance.
        return np.asarray(ROUNDING_MARGIN * np.abs(accumulated).max(axis=1))

    def _nudge_along_fastest_mode(self, blocks: Index, size: Array) -> Array:
        """A small displacement of k states along the fastest modes, (k, m).

        ``size``, (k,), is the largest entry of each state.
        """
        parameter_part = self._blocks.parameter_part
        direction = np.zeros((len(blocks), self.run_end.shape[1]))
        # Only the parameters are displaced, not the memory of the rule: the change of
        # their move shows the curvature, no matter what the memory does. The assignment
        # fills `direction`, of which `parameter_part` returns a view.
        parameter_part(direction)[:] = parameter_part(self._direction[blocks])
        length = NUDGE * np.maximum(1.0, size) / np.abs(direction).max(axis=1)
        return np.asarray(length[:, None] * direction)

    def _turn_to_fastest_mode(
        self, blocks: Index, nudge: Array, move_change: Array
    ) -> None:
        """Make an iteration of the power method, and abandon blocks that oscillate.

        ``move_change``, (k, m), is the change of the moves that ``nudge``, (k, m),
        causes. For gradient descent it is -η times the Hessian times the nudge. So the
        norm of the change, divided by the norm of the nudge, approaches the largest
        rate.
        """
        parameter_part = self._blocks.parameter_part
        # The memory's part of the change stays zero, because the rate belongs to the
        # parameters. `parameter_part` returns a view, which the assignment fills.
        change = np.zeros_like(nudge)
        parameter_part(change)[:] = parameter_part(move_change)
        change_norm = np.linalg.norm(change, axis=1)
        nudge_norm = np.linalg.norm(nudge, axis=1)
        if not self._flow:
            # The steps of a flow are infinitely small, so it does not oscillate.
            self._abandon_oscillating(blocks, change_norm, nudge_norm)
        # The computed norm is 0 if the true norm is below SMALLEST_CHANGE, because the
        # squares of the entries underflow. Such a change gives no direction.
        is_visible = change_norm > SMALLEST_CHANGE
        unit = change[is_visible] / change_norm[is_visible, None]
        self._direction[blocks[is_visible]] = unit

    def _abandon_oscillating(
        self, blocks: Index, change_norm: Array, nudge_norm: Array
    ) -> None:
        """Abandon the blocks in which the rate of the fastest mode is too large.

        For each of k blocks the rate is ``change_norm``, (k,), divided by
        ``nudge_norm``, (k,). The attribute ``oscillates`` tells whether there is such a
        block.
        """
        largest_rate = FASTEST_SMOOTH_RATE * self._blocks.largest_stable_rate
        exceeds_rate = change_norm > largest_rate * nudge_norm
        is_too_fast = np.zeros(len(self.x), dtype=bool)
        is_too_fast[blocks[exceeds_rate]] = True
        self.oscillates = bool(is_too_fast.any())
        self._abandon(is_too_fast)

    def _allowed_error(self, states: Array, pace: Array) -> Array:
        """The allowed errors of k strides, (k,), which end at ``states``, (k, m).

        An allowed error is the smaller of two limits, times the attribute ``_share``,
        the part of the tolerance that one stride may use. The first limit is the
        tolerance on the parameters, and for a flow at least a relative tolerance. The
        second is the tolerance times ``pace``, (k,), the size of dθ/dx at the states.
        It keeps the error δx of the time below the tolerance, because such an error
        displaces the parameters by δx dθ/dx. However small the pace is, the second
        limit allows an error of SMALLEST_STRIDE_ERROR times the size of the state.
        """
        size = np.abs(states).max(axis=1)
        gain = self._gain
        if len(self.x) == 1 and np.isfinite(states).all():
            # The only block holds all parameters, so their gain can be computed. With
            # several blocks, or parameters that are not finite, the gain at the start
            # is used.
            gain = gain_at(self._map.risk, self._blocks.params(states))
        # An error of the scores is the gain times an error of the parameters, so the
        # tolerance on the parameters is the tolerance on the scores divided by the
        # gain.
        tolerance_on_params = self._tolerance / gain
        relative = self._tolerance * size if self._flow else 0.0
        first_limit = np.maximum(tolerance_on_params, relative)
        # The limit is multiplied by the share below. The product must not be less than
        # the smallest error, which is therefore divided by the share here.
        smallest_limit = SMALLEST_STRIDE_ERROR / self._share * size
        second_limit = np.maximum(self._tolerance * pace, smallest_limit)
        limit = np.minimum(first_limit, second_limit)
        # A stride that ends at NaN or infinity has no allowed error, and is refused.
        limit = np.where(np.isfinite(limit), limit, 0.0)
        return self._share * np.maximum(limit, SMALLEST_CHANGE)

    def _guess(self, problem: StrideProblem) -> Array:
        """Guess the states of k strides at the nodes, (k, NODES, m).

        The polynomial of the block's last stride is extrapolated. A block without a
        last stride is taken to change by the same move in each step.
        """
        blocks = problem.blocks
        places = problem.places(NODES)
        # The number of steps from the beginning to each node; t is e^x - 1.
        steps = np.expm1(places) - np.expm1(problem.begin)[:, None]
        move = self._move[blocks]
        guess = problem.start[:, None] + steps[:, :, None] * move[:, None]
        has_last = self._last_length[blocks] > 0.0
        blocks_with_last = blocks[has_last]
        guess[has_last] = polynomial_values(
            self._last_coefficients[blocks_with_last],
            places[has_last],
            self._last_begin[blocks_with_last],
            self._last_length[blocks_with_last],
        )
        return guess

    def _solve(
        self,
        stages: int,
        problem: StrideProblem,
        guess: Array,
        min_iterations: int = 1,
    ) -> Solved:
        """Solve the equations of k strides, from a guess of the states at the nodes.

        The guess has the shape (k, ``stages``, m). With NODES ``stages`` these are
        strides of the run, and with SHADOW_NODES strides of the shadow. If the modes
        are known, the equations are solved by Newton's method. If they are not known
        and the rule has a memory, Newton's method treats the memory alone. A stride
        does not count as solved before ``min_iterations`` iterations.
        """
        blocks = problem.blocks
        weights = stride_weights(stages, problem.begin, problem.length, self._flow)
        is_shadow = stages != NODES
        factor = SHADOW_TOLERANCE_FACTOR if is_shadow else 1.0
        # The ends of the strides are not known yet, so the allowed errors are computed
        # from the states and paces at their beginnings.
        allowed = self._allowed_error(problem.start, self._pace[blocks])
        # Without a precondition the equations are solved by fixed-point iteration.
        precondition = None
        if self._modes is not None:
            precondition = self._modes.newton(weights, problem.places(stages), blocks)
        elif self._blocks.has_memory:
            precondition = self._blocks.memory_newton(weights)
        return collocate(
            self._moves,
            blocks,
            weights,
            start=problem.start,
            guess=guess,
            tolerance=self._solver_share * factor * allowed,
            noise=problem.noise,
            precondition=precondition,
            min_iterations=min_iterations,
        )

    def _accept(self, problem: StrideProblem, run: Solved) -> Mask:
        """Solve the strides of the shadow, and record them with those of the run.

        ``run`` holds solved strides of the run. Return the mask of the strides whose
        shadow was solved; only these are recorded. Without a shadow all strides are
        recorded.
        """
        if self.shadow_end is None:
            self.errors.add_unwatched(problem.blocks, run)
            # A record must have coefficients of a shadow. If there is no shadow, the
            # states that are computed from these coefficients are not used.
            self._advance(problem, run, run.coefficients[:, :NODES], errors=None)
            return np.ones(len(problem.blocks), dtype=bool)
        shadow_start = self.shadow_end[problem.blocks]
        offset = shadow_start - self.run_end[problem.blocks]
        # Guess that the shadow keeps its offset from the run at all of its nodes.
        run_at_nodes = legendre_at_nodes(SHADOW_NODES, NODES) @ run.coefficients
        guess = run_at_nodes + offset[:, None]
        # The guess comes from the solution of the run. After a single iteration the
        # shadow would share much of the run's solver error, and the distance between
        # run and shadow would not show it.
        shadow = self._solve(
            SHADOW_NODES, problem._replace(start=shadow_start), guess, min_iterations=2
        )
        # The solver error of a stride that is not solved is infinite.
        is_solved = np.isfinite(shadow.solver_error)
        if is_solved.any():
            problem = problem.select(is_solved)
            run = run.select(is_solved)
            shadow = shadow.select(is_solved)
            distance_before = np.abs(offset[is_solved]).max(axis=1)
            errors = self.errors.add(problem.blocks, distance_before, run, shadow)
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
        """Record accepted strides, and move the blocks to the ends of these strides."""
        blocks = problem.blocks
        self.run_end[blocks] = run.end
        self.x[blocks] = problem.end
        self._last_coefficients[blocks] = run.coefficients
        self._last_begin[blocks] = problem.begin
        self._last_length[blocks] = problem.length
        record = StrideRecord(
            blocks=blocks,
            begin=problem.begin,
            length=problem.length,
            run=run.coefficients,
            shadow=shadow_coefficients,
            errors=errors,
        )
        self._records.append(record)

    def phase_reversal(self, oscillation: Array) -> Array:
        """Change of the states, (n, m), that reverses the phase of the fastest mode.

        The states oscillate between two phases. ``oscillation``, (n, m), is the present
        phase minus the opposite one: twice the part of the states that changes its sign
        at each step.
        """
        norm = np.linalg.norm(self._direction, axis=1, keepdims=True)
        unit = self._direction / norm
        # The component of each block along its fastest mode, (n,).
        component = np.sum(unit * oscillation, axis=1)
        # Solver errors may hide an oscillation that is as small as they are, so their
        # size is added to the size of the component, whose sign is kept.
        component = component + np.copysign(self.errors.solver_error, component)
        return np.asarray(-component[:, None] * unit)

    def forget(self, t: int) -> None:
        """Drop the records whose strides all end before the step t."""
        x = math.log1p(t) - SLACK
        self._records = [record for record in self._records if (record.end >= x).any()]

    def worst_until(self, x: Array) -> tuple[Array, Array]:
        """The largest error, and distance from the shadow, up to each of q times.

        Each is the maximum over the strides of all blocks that begin at or before the
        time. It is 0 if there is no shadow.

        Parameters
        ----------
        x : ndarray of shape (q,)
            The times ln(1 + t).

        Returns
        -------
        error, distance : ndarray of shape (q,)
        """
        errors = [
            record.errors for record in self._records if record.errors is not None
        ]
        # With a shadow all records have estimates, and without one none has.
        if not errors:
            return np.zeros_like(x), np.zeros_like(x)
        begin = np.concatenate([record.begin for record in self._records])
        error = np.concatenate([estimate.error for estimate in errors])
        distance = np.concatenate([estimate.distance for estimate in errors])
        # In the order of their beginnings, the strides that begin at or before a time
        # are the first ones, up to the index `last_begun`. There is at least one: every
        # time is after the beginning of the first stride, except for rounding.
        order = np.argsort(begin)
        last_begun = np.maximum(np.searchsorted(begin[order], x, side="right") - 1, 0)
        largest_error = np.maximum.accumulate(error[order])
        largest_distance = np.maximum.accumulate(distance[order])
        return largest_error[last_begun], largest_distance[last_begun]

    def margins_at(self, x: float) -> Array:
        """The margins of all blocks at a time x, (n,).

        A margin is the error of a block, divided by its distance from the shadow, in
        the stride that contains x. If no recorded stride of the block contains x, the
        block's last stride is used.
        """
        margins = np.array(self.errors.margin)
        for record in self._records:
            if record.errors is not None:
                contains_x = (record.begin <= x + SLACK) & (x <= record.end + SLACK)
                margins[record.blocks[contains_x]] = record.errors.margin[contains_x]
        return margins

    def states(self, steps: Steps) -> tuple[Array, Array]:
        """The states of run and shadow at q steps, two arrays of shape (q, n, m).

        All blocks must have reached the steps. States are NaN at a step whose strides
        have been dropped.
        """
        n = len(self.x)
        x = np.broadcast_to(np.log1p(steps)[:, None], (len(steps), n))
        return self.at(x, np.arange(n))

    def at(self, x: Array, blocks: Index) -> tuple[Array, Array]:
        """The states of run and shadow of k blocks, two arrays of shape (..., k, m).

        Entries of a state are NaN at a time for which no stride is recorded.

        Parameters
        ----------
        x : ndarray of shape (..., k)
            The times ln(1 + t) of each block.
        blocks : ndarray of shape (k,)
            The index of each block.
        """
        shape = (*x.shape, self.run_end.shape[1])
        run = np.full(shape, np.nan)
        shadow = np.full(shape, np.nan)
        if not self._records:
            self._fill_starts(x, blocks, run, shadow)
        # The position of each block in `blocks`; -1 if it is not among them.
        position = np.full(len(self.x), -1)
        position[blocks] = np.arange(len(blocks))
        for record in self._records:
            inside = _times_inside(record, x, position)
            if not inside.stride.size:
                continue
            # Each polynomial is evaluated at one time.
            times = x[inside.indices][:, None]
            begin = record.begin[inside.stride]
            length = record.length[inside.stride]
            run_values = polynomial_values(
                record.run[inside.stride], times, begin, length
            )
            shadow_values = polynomial_values(
                record.shadow[inside.stride], times, begin, length
            )
            run[inside.indices] = run_values[:, 0]
            shadow[inside.indices] = shadow_values[:, 0]
        return run, shadow

    def _fill_starts(self, x: Array, blocks: Index, run: Array, shadow: Array) -> None:
        """Fill in the states at the start, before there is a stride.

        If the start is at t = 1e14 or later, x = ln(1 + t) at the next steps is within
        SLACK of its value at the start, so no stride is taken to reach these steps. The
        states at these steps are taken to be the states at the start. ``x`` and
        ``blocks`` are the arguments of `at`. ``run`` and ``shadow``, (..., k, m), are
        filled in place.
        """
        # Before the first stride `self.x`, `run_end` and `shadow_end` still hold the
        # time and the states at the start.
        is_start = np.abs(x - self.x[blocks]) <= SLACK
        run[is_start] = np.broadcast_to(self.run_end[blocks], run.shape)[is_start]
        if self.shadow_end is not None:
            start = np.broadcast_to(self.shadow_end[blocks], run.shape)
            shadow[is_start] = start[is_start]

    def land(self, t: int) -> tuple[Array, Array]:
        """The states of run and shadow at step t, by strides that end at this step.

        Both arrays have the shape (n, m). The state at the end of a stride is far more
        accurate than the states inside it, so the recorded strides around the step are
        solved again with other lengths.
        """
        x = math.log1p(t)
        run_states, shadow_states = self.states(np.array([t]))
        run = run_states[0]
        shadow = shadow_states[0]
        for record in self._records:
            # A stride that begins at x has no part before x that could be solved.
            contains_x = (record.begin < x - SLACK) & (x <= record.end + SLACK)
            if contains_x.any():
                # These calls change the states of the blocks in place.
                self._land_on(
                    x, record, contains_x, NODES, coefficients=record.run, states=run
                )
                self._land_on(
                    x,
                    record,
                    contains_x,
                    SHADOW_NODES,
                    coefficients=record.shadow,
                    states=shadow,
                )
        return run, shadow

    def _land_on(
        self,
        x: float,
        record: StrideRecord,
        mask: Mask,
        stages: int,
        coefficients: Array,
        states: Array,
    ) -> None:
        """Solve shorter strides that end at x, and write their ends into ``states``.

        The strides begin at the beginnings of the recorded strides in ``mask``, and
        have ``stages`` nodes. ``coefficients`` are the Legendre coefficients of all
        strides of the record, and give the start and the guess. If the equations of a
        block are not solved, its state stays as it is.
        """
        recorded = coefficients[mask]
        begin = record.begin[mask]
        # The beginning of a stride is at -1, where the Legendre polynomial of degree j
        # is (-1)^j.
        start = ((-1.0) ** np.arange(recorded.shape[1])) @ recorded
        noise = STATE_ROUNDING * np.abs(start).max(axis=1)
        problem = StrideProblem(
            blocks=record.blocks[mask],
            begin=begin,
            length=x - begin,
            start=start,
            noise=noise,
        )
        guess = polynomial_values(
            recorded, problem.places(stages), begin, record.length[mask]
        )
        solved = self._solve(stages, problem, guess)
        is_solved = np.isfinite(solved.solver_error)
        states[problem.blocks[is_solved]] = solved.end[is_solved]
