"""Minimise the losses of several queries from many starts at once.

One evaluation of `icl_theory.tokens.square.moments` at hundreds of score vectors costs
much less than hundreds of evaluations. So the descents from all starts of all queries
run side by side, each with a BFGS matrix of its own. A descent is a row of each array.
`minimise_from` runs each descent until it has converged or is expected to gain too
little.

In the shapes below, Q is the number of queries, S the number of starts of a query, C
the number of classes of features, and n the number of descents that still run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.regression.risks.level_loss import INFINITE_GAP, Mask, Query
from icl_theory.tokens.generating import TokenCount
from icl_theory.tokens.square import moments

Index = NDArray[np.intp]

# The step of the integral over prompts, which gives the loss to a relative 2e-8. It is
# twice the usual step, so that an evaluation takes half the time.
COARSE_STEP = 0.4
# Losses with a smaller relative difference count as equal.
RELATIVE_ERROR = 1e-7
# Number of rounds before a descent may stop. In the first rounds the curvature is not
# known yet, and the predicted decrease is too small.
FIRST_ROUNDS = 5
# Armijo's condition: a move has to lower the loss by this share of the decrease that
# the gradient predicts. This is the usual share; any small one would do.
SUFFICIENT_DECREASE = 1e-4
# Factor on the length of the next move after a move that does not meet the condition.
# It affects the number of rounds only.
BACKTRACK = 0.3
# The inverse Hessian is updated only if the curvature along a step s, s·y/s·s with the
# change y of the gradient, is above this. A smaller curvature may be rounding.
SMALLEST_CURVATURE = 1e-12
# This number avoids a division by zero, and is below every number that matters.
TINY = 1e-300


class RelativeLosses:
    """Losses of Q queries in prompts without the classes ``above``, (Q, C).

    All queries have C classes and the same prompt length. Each loss is divided by its
    ``scale``, (Q,).
    """

    def __init__(self, queries: Sequence[Query], above: Mask, scale: Array) -> None:
        # The fields of all queries: (Q, C, C), (Q, C) and (Q, C)
        self._error_forms = np.array([query.error_form for query in queries])
        self._squared_errors = np.array([query.squared_errors for query in queries])
        self._probs = np.array([query.probs for query in queries])
        self._count = TokenCount(queries[0].N)
        self._above = above
        self._scale = scale

    def __call__(self, scores: Array, query: Index) -> tuple[Array, Array]:
        """Losses, (n,), and gradients, (n, C), at the scores (n, C) of n descents.

        Descent i minimises the loss of ``query[i]``.
        """

        # `moments` calls this function to write the products of error forms and vectors
        # z, for the descents ``rows``, to ``product``. The slice ``nodes`` selects the
        # classes of one kind of token. Here there is only one kind, so it selects all
        # classes and is not used.
        def form(rows: Index, nodes: slice, z: Array, product: Array) -> None:
            np.matmul(self._error_forms[query[rows]], z, out=product)

        above = self._above[query]
        # `moments` takes a column for each descent. A class with the score -inf never
        # occurs.
        result = moments(
            np.where(above, -np.inf, scores).T,
            self._probs[query].T,
            self._squared_errors[query].T,
            self._count,
            form,
            step=COARSE_STEP,
        )
        scale = self._scale[query]
        gradient = np.where(above, 0.0, result.gradient.T / scale[:, None])
        return result.loss / scale, gradient


class Descents:
    """Descents that run side by side by the BFGS method, with one row for each.

    ``index``, (n,), has the numbers of the descents that still run, and ``query``,
    (n,), the number of the query of each. ``loss`` and ``step_length`` are (n,),
    ``scores`` and ``gradient`` (n, C), and ``inverse_hessian`` (n, C, C).
    """

    def __init__(self, losses: RelativeLosses, scores: Array, query: Index) -> None:
        self._losses = losses
        self.index = np.arange(len(scores))
        self.query = query
        self.scores = scores
        self.loss, self.gradient = losses(scores, query)
        # The first move changes the score with the steepest slope by one.
        steepest = np.maximum(np.abs(self.gradient).max(axis=1), TINY)
        self.inverse_hessian = np.eye(scores.shape[1]) / steepest[:, None, None]
        # Factor on the next move, below 1 if the last move was rejected.
        self.step_length = np.ones(len(scores))

    def moves(self) -> Array:
        """Move of each descent to the minimum of its quadratic model, (n, C)."""
        return -np.einsum("nij,nj->ni", self.inverse_hessian, self.gradient)

    def predicted_decrease(self, moves: Array) -> Array:
        """Decrease of each loss by its move, to first order, (n,)."""
        return -_dot(self.gradient, moves)

    def keep(self, goes_on: Mask) -> None:
        """Keep the descents for which ``goes_on`` is true, and stop all others."""
        self.index = self.index[goes_on]
        self.query = self.query[goes_on]
        self.scores = self.scores[goes_on]
        self.loss = self.loss[goes_on]
        self.gradient = self.gradient[goes_on]
        self.inverse_hessian = self.inverse_hessian[goes_on]
        self.step_length = self.step_length[goes_on]

    def advance(self, moves: Array, longest: float) -> None:
        """Try the moves, shortened so that no score changes by more than ``longest``.

        A move that does not lower the loss enough is not made, and the next move of
        this descent is shorter.
        """
        size = np.maximum(np.abs(moves).max(axis=1), TINY)
        shortening = self.step_length * np.minimum(1.0, longest / size)
        moves = moves * shortening[:, None]
        trial = self.scores + moves
        # A score that is more than INFINITE_GAP below the highest one does not change
        # the loss any more, and would only fall without bound.
        highest = trial.max(axis=1, keepdims=True)
        trial = np.maximum(trial, highest - INFINITE_GAP)
        trial_loss, trial_gradient = self._losses(trial, self.query)
        predicted_change = _dot(self.gradient, moves)
        largest_accepted = self.loss + SUFFICIENT_DECREASE * predicted_change
        is_accepted = trial_loss <= largest_accepted
        self._update(trial - self.scores, trial_gradient - self.gradient, is_accepted)
        self.step_length = np.where(is_accepted, 1.0, BACKTRACK * self.step_length)
        self.scores = np.where(is_accepted[:, None], trial, self.scores)
        self.loss = np.where(is_accepted, trial_loss, self.loss)
        self.gradient = np.where(is_accepted[:, None], trial_gradient, self.gradient)

    def _update(self, step: Array, change: Array, is_accepted: Mask) -> None:
        r"""Update the inverse Hessians H from steps s and changes y of the gradients.

        .. math:: H \leftarrow (I - \rho s y^\top) H (I - \rho y s^\top)
            + \rho s s^\top, \qquad \rho = 1 / s^\top y

        Descents whose move was not accepted keep their H.
        """
        curvature = _dot(step, change)
        # H stays positive definite only if the loss curves upwards along the step.
        is_convex = is_accepted & (curvature > SMALLEST_CURVATURE * _dot(step, step))
        # The square root of 1/ρ divides both s and y.
        root = np.sqrt(np.where(is_convex, curvature, 1.0))[:, None]
        s = step / root
        y = change / root
        projection = np.eye(step.shape[1]) - s[:, :, None] * y[:, None, :]
        updated = projection @ self.inverse_hessian @ projection.swapaxes(1, 2)
        updated = updated + s[:, :, None] * s[:, None, :]
        self.inverse_hessian = np.where(
            is_convex[:, None, None], updated, self.inverse_hessian
        )


def minimise_from(
    starts: Array,
    queries: Sequence[Query],
    above: Mask,
    scale: Array,
    longest: float,
    rounds: int = 60,
    slow: float = 1e-3,
) -> tuple[Array, Array]:
    """Minimise the loss of each query from its starts.

    A descent stops if its predicted decrease is below ``slow`` times the difference
    between its loss and the least loss that is known for its query. The relative error
    of losses is below 1e-7. The number of ``rounds`` need not be enough for all
    descents to converge, because `icl_theory.regression.risks.floors` minimises the
    best ends further.

    Parameters
    ----------
    starts : ndarray, (Q, S, C)
        Scores of the C classes at S starts of each query.
    queries : sequence of Query
        Queries over C classes, with the same prompt length.
    above : ndarray of bool, (Q, C)
        Classes that the prompts do not have.
    scale : ndarray, (Q,)
        The least known loss of each query before this search; it must be positive.
    longest : float
        Largest change of a score in a round.
    rounds : int
        Largest number of rounds.
    slow : float
        Share of the gap to the least loss below which a descent stops. At this pace it
        would need 1 / ``slow`` further rounds to close the gap.

    Returns
    -------
    losses : ndarray, (Q, S)
        Losses at the ends.
    ends : ndarray, (Q, S, C)
        Scores at the ends.
    """
    Q, S, C = starts.shape
    scores = starts.reshape(Q * S, C)
    # The S descents of a query follow each other.
    query = np.arange(len(scores)) // S
    descents = Descents(RelativeLosses(queries, above, scale), scores, query)
    losses = descents.loss.copy()
    ends = scores.copy()
    for completed in range(rounds):
        moves = descents.moves()
        # The least known loss of each query. Losses are divided by ``scale``, the least
        # loss that was known before. In these units ``scale`` is 1.
        least = np.minimum(1.0, losses.reshape(Q, S).min(axis=1))
        # The least loss is lowered by its possible error, which keeps the gap of the
        # best descent above zero.
        gap = descents.loss - least[descents.query] * (1.0 - RELATIVE_ERROR)
        goes_on = descents.predicted_decrease(moves) > slow * gap
        goes_on |= completed < FIRST_ROUNDS
        if not goes_on.any():
            break
        descents.keep(goes_on)
        descents.advance(moves[goes_on], longest)
        losses[descents.index] = descents.loss
        ends[descents.index] = descents.scores
    return losses.reshape(Q, S) * scale[:, None], ends.reshape(Q, S, C)


def _dot(first: Array, second: Array) -> Array:
    """Return the inner product of each row of an array with the same row of another."""
    return np.einsum("nc,nc->n", first, second)
