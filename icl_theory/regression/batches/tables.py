"""The losses of many exchangeable points with finite prompts, from tabulated functions.

For K features and prompts of N tokens the loss is γ A(u) + σ² B(u), with the variogram
γ of the task and the variance σ² of the label noise (docs/theory/model.md, "Finite
prompts"). A *point* is one problem of a sweep, and its *position* u is the gap between
the score of the query's own feature and the other scores. A, B, their derivatives and
the attention depend on K and N alone. Each is an average over the number of tokens with
the query's own feature in a prompt, a sum of up to thousands of terms. `table`
interpolates these functions once, to rounding, by polynomials on short intervals of u,
the *panels*. `TabulatedLosses` evaluates them for a batch of points, and counts the
steps of descent between two positions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.regression.batches.doubts import Index
from icl_theory.regression.risks.exchangeable import Averages

# The functions are tabulated for 0 <= u <= LAST, on PANELS intervals of equal WIDTH. At
# the end e^-u is 4e-18, below rounding. The functions are analytic for |Im u| < π, far
# beyond a panel of half a unit. So polynomials of degree 11 are exact to rounding.
LAST = 40.0
PANELS = 80
WIDTH = LAST / PANELS
DEGREE = 11
# Indices of A, A', B, B' and the attention in a table.
BIAS, BIAS_SLOPE, NOISE, NOISE_SLOPE, ATTENTION = range(5)
# Number of terms in the expansion of the velocity, and number of nodes for the integral
# of 1/velocity over half a panel. A rule with FEWER_NODES estimates the error of the
# integral. With more terms and nodes an integral takes longer, and with fewer of them
# more points are in doubt.
TERMS = 9
NODES = 10
FEWER_NODES = NODES - 3
# The relative error of the rule with `NODES` nodes is below this multiple of the square
# of the relative error with `FEWER_NODES`. The largest measured multiple is 22,000,
# near the minimum of a loss with noise, where 1/velocity grows without bound.
SQUARES = 5e4


# A table takes 38 kB, so that all cached ones take 80 MB at most.
@lru_cache(maxsize=2048)
def table(K: int, N: int) -> Array:
    """Coefficients of A, A', B, B' and the attention on each panel, constants first.

    Parameters
    ----------
    K : int
        Number of features.
    N : int
        Number of tokens of a prompt.

    Returns
    -------
    ndarray, (5, DEGREE + 1, PANELS)
        Polynomials in a variable that runs from -1 to 1 on each panel.
    """
    # Chebyshev's nodes of a panel
    nodes = np.cos(np.pi * (np.arange(DEGREE + 1) + 0.5) / (DEGREE + 1))
    middles = WIDTH * (np.arange(PANELS) + 0.5)
    u = middles + 0.5 * WIDTH * nodes[:, None]  # (node, panel)
    # `Averages` maps w = e^-u to A, A', B, B' and the attention, in this order. It
    # needs w with a last axis of length 1, along which it averages.
    averages = Averages(K, N)
    # The axes are at first (node, function, panel), and then (function, node, panel).
    values_at_nodes = np.array([averages(w[:, None]) for w in np.exp(-u)])
    values = values_at_nodes.swapaxes(0, 1)
    # For each function and panel, the polynomial through the values at the nodes
    powers = np.vander(nodes, increasing=True)
    return np.asarray(np.linalg.solve(powers, values))


class Velocity(NamedTuple):
    """The velocity of a flow that moves u by one step of descent in a unit of time."""

    value: Array  # of the shape of the positions u
    relative_error: Array  # the last term of the expansion, divided by the value


class StepCount(NamedTuple):
    """Numbers of steps as real numbers, and estimates of their errors."""

    steps: Array
    error: Array


class TabulatedLosses:
    """Losses ``γ A(u) + σ² B(u)`` and steps ``-c (γ A'(u) + σ² B'(u))`` of P points.

    A step is the move of u in one step of descent, with a constant c for each point.
    The functions A and B belong to the K and N of the point.

    The methods take positions u, and an array ``index`` with the number of the point
    that each position belongs to.

    Parameters
    ----------
    K, N : ndarray, (P,)
        Numbers of features and of tokens.
    gamma, noise_variance : ndarray, (P,)
        γ and σ².
    step_factor : ndarray, (P,)
        The constants c.
    """

    def __init__(
        self,
        K: Array,
        N: Array,
        gamma: Array,
        noise_variance: Array,
        step_factor: Array,
    ) -> None:
        pairs, table_of_point = np.unique(np.stack([K, N]), axis=1, return_inverse=True)
        tables = [table(int(K), int(N)) for K, N in pairs.T]
        # The panels of all tables stand side by side: (5, DEGREE + 1, tables * PANELS).
        self._coefficients = np.concatenate(tables, axis=2)
        # The index of each point's table, and of the first panel of this table, (P,)
        self._table = np.ravel(table_of_point)
        self._first_panel = self._table * PANELS
        self.gamma = gamma
        self.noise_variance = noise_variance
        self.step_factor = step_factor

    def loss(self, u: Array, index: Index) -> Array:
        """``γ A(u) + σ² B(u)``."""
        return self._weighted(BIAS, NOISE, u, index)

    def slope(self, u: Array, index: Index) -> Array:
        """``γ A'(u) + σ² B'(u)``."""
        return self._weighted(BIAS_SLOPE, NOISE_SLOPE, u, index)

    def attention(self, u: Array, index: Index) -> Array:
        """Expected attention on the query's feature."""
        return self._function(ATTENTION, u, index)

    def step(self, u: Array, index: Index) -> Array:
        """``-c (γ A'(u) + σ² B'(u))``, by which u moves in one step of descent."""
        return -self.step_factor[index] * self.slope(u, index)

    def _weighted(self, bias_row: int, noise_row: int, u: Array, index: Index) -> Array:
        """Return γ times one tabulated function plus σ² times another one.

        ``bias_row`` and ``noise_row`` are the rows of these functions in a table.
        """
        bias = self.gamma[index] * self._function(bias_row, u, index)
        noise_variance = self.noise_variance[index]
        # Without noise, half of the work is saved.
        if not noise_variance.any():
            return bias
        return bias + noise_variance * self._function(noise_row, u, index)

    def _function(self, row: int, u: Array, index: Index) -> Array:
        """Evaluate one row of the tables by Horner's method."""
        u_over_width = u / WIDTH
        # The end of the last panel, u = LAST, belongs to this panel.
        panel = np.minimum(u_over_width.astype(np.intp), PANELS - 1)
        # x runs from -1 to 1 on the panel.
        x = 2.0 * (u_over_width - panel) - 1.0
        column = self._first_panel[index] + panel
        coefficients = self._coefficients[row]
        value = coefficients[DEGREE].take(column)
        for power in range(DEGREE - 1, -1, -1):
            value *= x
            value += coefficients[power].take(column)
        return value

    def relative_change_of_steps(self) -> Array:
        """Bound on the difference between a step and the next one, divided by the step.

        A step is -c times the derivative of the loss. So by the mean value theorem the
        bound is c times the largest second derivative of the loss from u on.

        Returns
        -------
        ndarray, (P, PANELS)
            A bound for all u from the beginning of each panel on.
        """
        bias = self._largest_derivative(BIAS_SLOPE)
        noise = self._largest_derivative(NOISE_SLOPE)
        curvature = self.gamma[:, None] * bias + self.noise_variance[:, None] * noise
        return self.step_factor[:, None] * curvature

    def _largest_derivative(self, row: int) -> Array:
        """Bound on the size of a tabulated function's derivative, from each panel on.

        ``row`` is the row of the function in a table. The result is (P, PANELS).
        """
        powers = np.arange(1, DEGREE + 1)[:, None]
        # The derivative of Σ c_k x^k is at most Σ k |c_k|, because |x| <= 1 on a panel.
        # And du = WIDTH/2 dx.
        terms = np.abs(powers * self._coefficients[row, 1:])
        on_panel = terms.sum(axis=0).reshape(-1, PANELS) * 2.0 / WIDTH
        # The running maximum, from the last panel to the first
        from_panel_on = np.maximum.accumulate(on_panel[:, ::-1], axis=1)[:, ::-1]
        return from_panel_on[self._table]

    def velocity(self, u: Array, index: Index) -> Velocity:
        """Velocity v(u) of the flow that moves u by one step in a unit of time.

        The operator v d/du is the logarithm of the shift by one step. So v = Δu - Δ²u/2
        + Δ³u/3 - ..., with the differences Δ between the iterates from u on.
        """
        steps = []
        for _ in range(TERMS):
            step = self.step(u, index)
            steps.append(step)
            u = u + step
        velocity = steps[0]
        last_term = steps[0]
        # The steps are the first differences of the iterates.
        differences = np.array(steps)
        for order in range(2, TERMS + 1):
            differences = np.diff(differences, axis=0)
            difference_at_u = differences[0]
            last_term = (-1.0) ** (order + 1) / order * difference_at_u
            velocity = velocity + last_term
        return Velocity(velocity, np.abs(last_term / velocity))

    def steps_between(self, start: Array, end: Array, index: Index) -> StepCount:
        """Number of steps from one position to another: the integral of du / v(u).

        Gauss's rule integrates 1/v with `NODES` nodes, and once more with fewer nodes
        to estimate the error.

        Parameters
        ----------
        start, end : ndarray, (n,) or (n, parts)
            Positions. A row may have several parts of one path.
        index : ndarray, (n,)
            The point of each row.
        """
        steps, error = self._integral(start, end, index, NODES)
        rough_steps, rough_error = self._integral(start, end, index, FEWER_NODES)
        velocity_error = np.maximum(error, rough_error)
        # The difference of the two results is about the error of the rule with fewer
        # nodes. The relative error with all nodes is estimated as `SQUARES` times the
        # square of the relative error with fewer nodes, but never as more than this
        # relative error itself.
        difference = np.abs(steps - rough_steps)
        size = np.abs(steps)
        relative_difference = difference / size
        rule_error = difference * np.minimum(1.0, SQUARES * relative_difference)
        rounding = 1e-13 * size  # a generous estimate: some 500 roundings
        return StepCount(steps, velocity_error + rule_error + rounding)

    def _integral(
        self, start: Array, end: Array, index: Index, nodes: int
    ) -> StepCount:
        """Integrate 1/velocity by Gauss's rule with ``nodes`` nodes.

        The error of the result comes from the velocity alone, and not from the rule.
        """
        x, weight = np.polynomial.legendre.leggauss(nodes)
        half_length = 0.5 * (end - start)[..., None]
        u = start[..., None] + half_length * (x + 1.0)
        # Row i of u has the nodes of all parts, which belong to the point ``index[i]``.
        index_of_node = np.repeat(index, u.size // index.size)
        velocity = self.velocity(u.ravel(), index_of_node)
        weighted = half_length * weight / velocity.value.reshape(u.shape)
        errors = np.abs(weighted * velocity.relative_error.reshape(u.shape))
        return StepCount(weighted.sum(axis=-1), errors.sum(axis=-1))


def first_position(holds: Callable[[Array], NDArray[np.bool_]], size: int) -> Array:
    """Least position u from which a condition holds, or `LAST` if it holds nowhere.

    It is found by bisection for P points at once. A condition that holds at some u must
    hold for all larger u, too. The result is above 0 even if the condition holds at 0.

    Parameters
    ----------
    holds : callable
        Takes a position for each point, (P,), and returns a mask, (P,), of the points
        whose condition holds at their position.
    size : int
        The number of points P.
    """
    low = np.zeros(size)
    high = np.full(size, LAST)
    # After 60 halvings the interval is 40 · 2^-60 = 3e-17: only rounding is left.
    for _ in range(60):
        middle = 0.5 * (low + high)
        is_beyond = holds(middle)
        low = np.where(is_beyond, low, middle)
        high = np.where(is_beyond, middle, high)
    return high
