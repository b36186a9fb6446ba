"""How runs, answers, checks, comparisons and audits appear in notebooks and figures.

`plot` and `html` choose a function by the type of the result. The classes of results
call `plot` in their ``plot`` methods, and `html` in notebooks.
"""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING, Any

from icl_theory.engine.comparison import Comparison
from icl_theory.engine.curves import CurveComparison
from icl_theory.engine.trajectory import Trajectory
from icl_theory.results import notebook
from icl_theory.results.numbers import number
from icl_theory.results.plots.runs import plot_answer, plot_comparison, plot_run
from icl_theory.statements.audit import Audit
from icl_theory.statements.claim import Answer, BoundChecks

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@singledispatch
def plot(result: Any, ax: Axes | None = None) -> Axes:
    """Draw the figure of a result."""
    raise TypeError(f"{type(result).__name__} has no figure")


plot.register(Trajectory, plot_run)
plot.register(Answer, plot_answer)
plot.register(CurveComparison, plot_comparison)


@singledispatch
def html(result: Any) -> str:
    """Return the HTML of a result for a notebook."""
    raise TypeError(f"{type(result).__name__} has no table")


@html.register
def _(run: Trajectory) -> str:
    """Return the facts of a run, and its figure."""
    facts = notebook.facts(run.facts())
    image = notebook.image(plot_run(run), run.stop_reason)
    return f"{facts}\n{image}"


@html.register
def _(answer: Answer) -> str:
    """Return the question, the answer, its figure, and the command that answers it."""
    parts = [
        f"<p><b>{notebook.text(answer.question)}</b></p>",
        f"<p>{notebook.text(answer.answer)}</p>",
        notebook.image(plot_answer(answer), f"{answer.y} against {answer.x}"),
        f"<p><code>{notebook.text(answer.command)}</code></p>",
    ]
    return "\n".join(parts)


@html.register
def _(checks: BoundChecks) -> str:
    """Return a table with a row for each statement that was checked on a run."""
    # The statement comes first: a narrow window cuts off the last columns.
    names = (
        "statement",
        "holds",
        "measured",
        "bound",
        "slack",
        "name",
        "kind",
        "source",
        "note",
    )
    columns = _columns(checks, names)
    columns["bound"] = [_bound(bound) for bound in columns["bound"]]
    return notebook.table(columns)


def _bound(bound: Any) -> Any:
    """Return a bound as a cell of a table: two-sided bounds as "a to b"."""
    if isinstance(bound, tuple):
        return " to ".join(map(number, bound))
    return bound


@html.register
def _(comparison: Comparison) -> str:
    """Return a table of sampled and exact numbers, with remarks as its caption."""
    names = ("name", "population", "sampled", "standard_error", "z", "limit", "passed")
    return notebook.table(_columns(comparison.checks, names), comparison.remarks)


@html.register
def _(audit: Audit) -> str:
    """Return the table of claims and the table of open questions."""
    claims, answers = audit.columns
    claims_table = notebook.table(claims, "Claims")
    answers_table = notebook.table(answers, "Open questions")
    return f"{claims_table}\n{answers_table}"


def _columns(rows: Any, names: tuple[str, ...]) -> dict[str, list[Any]]:
    """Return a column for each attribute in ``names``, with its value in every row."""
    columns = {}
    for name in names:
        columns[name] = [getattr(row, name) for row in rows]
    return columns
