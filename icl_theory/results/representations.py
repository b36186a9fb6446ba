"""How runs, answers, checks and audits appear in notebooks and figures."""

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
def plot(found: Any, ax: Axes | None = None) -> Axes:
    """Draw the figure of an object."""
    raise TypeError(f"{type(found).__name__} has no figure")


plot.register(Trajectory, plot_run)
plot.register(Answer, plot_answer)
plot.register(CurveComparison, plot_comparison)


@singledispatch
def html(found: Any) -> str:
    """Return the HTML of an object for a notebook."""
    raise TypeError(f"{type(found).__name__} has no table")


@html.register
def _(run: Trajectory) -> str:
    return (
        notebook.facts(run.facts())
        + "\n"
        + notebook.image(plot_run(run), run.stop_reason)
    )


@html.register
def _(answer: Answer) -> str:
    words = (
        f"<p><b>{notebook.text(answer.question)}</b></p>",
        f"<p>{notebook.text(answer.answer)}</p>",
    )
    image = notebook.image(plot_answer(answer), f"{answer.y} against {answer.x}")
    return "\n".join(
        [*words, image, f"<p><code>{notebook.text(answer.command)}</code></p>"]
    )


@html.register
def _(checks: BoundChecks) -> str:
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
    columns["bound"] = [
        " to ".join(map(number, x)) if isinstance(x, tuple) else x
        for x in columns["bound"]
    ]
    return notebook.table(columns)


@html.register
def _(found: Comparison) -> str:
    names = ("name", "population", "sampled", "standard_error", "z", "limit", "passed")
    return notebook.table(_columns(found.checks, names), found.remarks)


@html.register
def _(audit: Audit) -> str:
    claims, answers = audit.columns
    return (
        notebook.table(claims, "Claims")
        + "\n"
        + notebook.table(answers, "Open questions")
    )


def _columns(rows: Any, names: tuple[str, ...]) -> dict[str, list[Any]]:
    return {name: [getattr(row, name) for row in rows] for name in names}
