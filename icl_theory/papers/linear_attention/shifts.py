"""Distribution shifts: the exact loss of a trained matrix on prompts of another law."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from icl_theory._validate import Array, argument_error, choice
from icl_theory.papers.linear_attention.family import LinearAttention
from icl_theory.results import notebook
from icl_theory.results.numbers import markdown, number

TRAINED = ("minimiser", "descent")


@dataclass(frozen=True, eq=False)
class ShiftTable:
    """Losses of matrices trained on some laws of prompts (rows) and tested on others (columns).

    Attributes
    ----------
    names : tuple of str
        Names of the laws.
    floor : ndarray, (n,)
        Least loss of all matrices on the law of the tests, squared label units.
    excess : ndarray, (n, n)
        Loss above the floor.
    """

    names: tuple[str, ...]
    floor: Array
    excess: Array

    @property
    def loss(self) -> Array:
        """Loss by the law of training (rows) and of the tests (columns), (n, n)."""
        return self.floor + self.excess

    def columns(self) -> dict[str, list[str]]:
        """Return the table as columns of text: the excess, and the floor in the last row."""
        rows = np.vstack([self.excess, self.floor])
        found = {"trained on": [*self.names, "floor"]}
        return found | {
            name: list(map(number, map(float, rows[:, i])))
            for i, name in enumerate(self.names)
        }

    def to_markdown(self) -> str:
        """Return the table as Markdown."""
        return markdown(self.columns())

    def _repr_html_(self) -> str:
        return notebook.table(
            self.columns(), "Excess of the loss: trained on (rows), tested on (columns)"
        )


def shift_table(
    problems: Mapping[str, LinearAttention], trained: str = "minimiser"
) -> ShiftTable:
    r"""Train on the prompts of each problem, and test on those of all problems.

    With :math:`\Gamma_i` trained on law i, the excess on law j is
    :math:`\tfrac12\|\Lambda_{q,j}^{1/2}(\Gamma_i - \Gamma_j^*)M_j^{1/2}\|_F^2`. Laws
    that differ in the query alone share their minimiser. See
    docs/linear-attention-theory.md, "Shifts".

    Parameters
    ----------
    problems : mapping of str to LinearAttention
        Problems of one dimension, by name.
    trained : {"minimiser", "descent"}
        Test the best matrix of each problem, or the one at the end of its training run.

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
    >>> table = icl.linear_attention.shift_table({"N = 20": base, "N = 5": base.changed(N=5)})
    >>> table.excess.round(3).tolist()
    [[0.0, 0.36], [0.225, 0.0]]
    """
    choice("trained", trained, TRAINED)
    if not isinstance(problems, Mapping) or not all(
        isinstance(each, LinearAttention) for each in problems.values()
    ):
        raise argument_error(
            "problems", problems, "a mapping of names to LinearAttention"
        )
    sizes = {problem.d for problem in problems.values()}
    if len(sizes) != 1 or any(problem.depth > 1 for problem in problems.values()):
        raise argument_error(
            "problems", dict(problems), "one or more of one dimension and one layer"
        )
    laws = [problem.law() for problem in problems.values()]
    if trained == "minimiser":
        found = [law.best for law in laws]
    else:
        found = [
            problem.gamma(problem.simulate().params) for problem in problems.values()
        ]
    excess = np.array([[law.excess(gamma) for law in laws] for gamma in found])
    return ShiftTable(tuple(problems), np.array([law.floor for law in laws]), excess)
