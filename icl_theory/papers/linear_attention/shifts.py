"""Distribution shifts: the exact loss of a trained matrix on prompts of another law.

`shift_table` trains on the prompts of one problem after the other, and tests each
trained matrix on the prompts of all problems.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from icl_theory._validate import Array, argument_error, choice
from icl_theory.papers.linear_attention.family import LinearAttention
from icl_theory.results import notebook
from icl_theory.results.numbers import markdown, number

# The matrix that is tested: the best one of a law, or the one at the end of a run.
TRAINED = ("minimiser", "descent")


@dataclass(frozen=True, eq=False)
class ShiftTable:
    """Losses of matrices, by the law of training and the law of the tests.

    Attributes
    ----------
    names : tuple of str
        Names of the laws.
    floor : ndarray, (n,)
        Least loss of any matrix on each law, squared label units.
    excess : ndarray, (n, n)
        Loss above the floor. The row is the law of training, and the column the law of
        the tests.
    """

    names: tuple[str, ...]
    floor: Array
    excess: Array

    @property
    def loss(self) -> Array:
        """Loss on the law of the tests (columns) after training on a law (rows).

        Its shape is (n, n).
        """
        return self.floor + self.excess

    def columns(self) -> dict[str, list[str]]:
        """Return the excess as columns of text, with the floor in the last row.

        The first column has the laws of training, and there is a column for each law of
        the tests.
        """
        rows = np.vstack([self.excess, self.floor])
        columns = {"trained on": [*self.names, "floor"]}
        for name, values in zip(self.names, rows.T, strict=True):
            columns[name] = [number(float(value)) for value in values]
        return columns

    def to_markdown(self) -> str:
        """Return the table as Markdown."""
        return markdown(self.columns())

    def _repr_html_(self) -> str:
        """Return the table as HTML, which notebooks show."""
        return notebook.table(
            self.columns(), "Excess of the loss: trained on (rows), tested on (columns)"
        )


def shift_table(
    problems: Mapping[str, LinearAttention], trained: str = "minimiser"
) -> ShiftTable:
    r"""Train on the prompts of each problem, and test on the prompts of all problems.

    With the matrix :math:`\Gamma_i` trained on law i, the excess on law j is
    :math:`\tfrac12\|\Lambda_{q,j}^{1/2}(\Gamma_i - \Gamma_j^*)M_j^{1/2}\|_F^2`. Here
    :math:`\Gamma_j^*` is the best matrix on law j, :math:`\Lambda_{q,j}` the second
    moment of its query, and :math:`M_j` the second moment of h, the mean of label times
    token. Laws that differ in the query alone share their minimiser. See
    docs/linear-attention-theory.md, "Shifts".

    Parameters
    ----------
    problems : mapping of str to LinearAttention
        Problems of one dimension, by name.
    trained : {"minimiser", "descent"}
        Whether to test the best matrix of each problem, or the matrix at the end of its
        training run.

    Returns
    -------
    ShiftTable

    Raises
    ------
    ValueError
        The problems differ in dimension, or one has several layers.

    Examples
    --------
    >>> import icl_theory as icl
    >>> base = icl.LinearAttention(d=4, N=20)
    >>> problems = {"N = 20": base, "N = 5": base.changed(N=5)}
    >>> table = icl.linear_attention.shift_table(problems)
    >>> table.excess.round(3).tolist()
    [[0.0, 0.36], [0.225, 0.0]]
    """
    choice("trained", trained, TRAINED)
    problems = _comparable(problems)
    laws = [problem.law() for problem in problems.values()]
    excess = np.empty((len(laws), len(laws)))
    # Row i of the table is for training on law i, and column j for tests on law j.
    for i, problem in enumerate(problems.values()):
        if trained == "minimiser":
            gamma = laws[i].best
        else:
            gamma = problem.gamma(problem.simulate().params)
        for j, law in enumerate(laws):
            excess[i, j] = law.excess(gamma)
    floor = np.array([law.floor for law in laws])
    return ShiftTable(tuple(problems), floor, excess)


def _comparable(problems: object) -> Mapping[str, LinearAttention]:
    """Return problems by name, which must have the same dimension and one layer each.

    Anything else is refused by a ``ValueError``.
    """
    allowed = "a mapping of names to LinearAttention"
    if not isinstance(problems, Mapping):
        raise argument_error("problems", problems, allowed)
    if not all(isinstance(problem, LinearAttention) for problem in problems.values()):
        raise argument_error("problems", problems, allowed)
    dimensions = {problem.d for problem in problems.values()}
    if len(dimensions) != 1 or any(problem.depth > 1 for problem in problems.values()):
        raise argument_error(
            "problems",
            dict(problems),
            "one or more problems of the same dimension, with one layer each",
        )
    return problems
