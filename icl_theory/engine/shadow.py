"""A shadow of a run whose columns do not mix: the same strides with fewer nodes, and the same single steps."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.polynomial import legendre

from icl_theory._validate import Array
from icl_theory.engine.collocation import radau
from icl_theory.engine.columns import Strides, collocate, valued
from icl_theory.engine.steps import TooFast
from icl_theory.engine.strider import Steps, Strider, Walk, walked

ITERATES = 2  # at least: one alone leaves much of what the run has left


class Shadow:
    """Columns that follow a run.

    A stride of the run is nearly what the shadow's is to be, and so the shadow's equations are solved from there,
    to the tolerance that the run has there. With fewer nodes its errors are larger than the run's: what parts the
    two tells of both.

    Parameters
    ----------
    run : Strider
        The run, which is not under way yet.
    stages : int
        Nodes of a stride, fewer than the run has.
    y : ndarray, (n, m)
        Where the shadow begins, at the time of the run.

    Attributes
    ----------
    left : ndarray, (n,)
        What the equations of the strides have left so far.
    """

    def __init__(self, run: Strider, stages: int, y: Array) -> None:
        self._run, self._moves, self._stages = run, run.moves, stages
        n, m = y.shape
        self._y, self._t, self.left = y.copy(), run.t.copy(), np.zeros(n)
        self._terms, self._begin, self._length = np.zeros((n, stages + 1, m)), np.zeros(n), np.zeros(n)

    def follow(self, stops: Steps) -> Array:
        """Follow the last advance of the run; columns at increasing times that it covers, (q, n, m).

        Raises
        ------
        TooFast
            Where the equations of a stride are not solved, or a state is not finite.
        """
        x, found = np.log1p(stops), np.full((len(stops), *self._y.shape), np.nan)
        for record in self._run.records:
            if isinstance(record, Walk):
                self._walk(record)
                place, here = record.within(stops)
                found[place, record.which[here]] = self._y[record.which[here]]
            else:
                place, which, values = self._stride(record).within(x)
                found[place, which] = values
        if not np.isfinite(found).all():
            raise TooFast
        return found

    def _walk(self, record: Walk) -> None:
        """Take single steps up to the times of a record, or go back there within the last stride."""
        which, t, _ = record
        strode = self._length[which] > 0.0
        back, which_back = np.log1p(t[strode])[:, None], which[strode]
        terms, begin, length = self._terms[which_back], self._begin[which_back], self._length[which_back]
        self._y[which_back] = valued(terms, back, begin, length)[:, 0]
        self._length[which_back], self._t[which_back] = 0.0, t[strode]
        y = self._y[which]
        self._y[which] = walked(self._moves, which, y, t - self._t[which], np.zeros_like(y))[0]
        self._t[which] = t

    def _stride(self, record: Strides) -> Strides:
        """Take the strides of a record."""
        which, y = record.which, self._y[record.which]
        guess = _at_nodes(self._stages, record.terms.shape[1]) @ record.terms
        guess += (y - record.departure)[:, None]
        tolerance = self._run.wanted(y, record.leaving)
        step = collocate(
            self._moves, which, record.begin, y, record.stride, tolerance, self._stages, guess, ITERATES
        )
        if not np.isfinite(step.left).all():
            raise TooFast
        self.left[which] += step.left
        self._y[which], self._terms[which] = step.arrival, step.terms
        self._begin[which], self._length[which] = step.begin, step.stride
        return step


@cache
def _at_nodes(stages: int, count: int) -> Array:
    """Values at the nodes of a scheme from so many Legendre coefficients, (stages, count)."""
    return np.asarray(legendre.legvander(2.0 * radau(stages).nodes - 1.0, count - 1))
