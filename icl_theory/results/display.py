"""How runs, answers, checks and audits show themselves: one function a type; other packages register theirs."""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING, Any

from icl_theory.engine.comparison import Comparison
from icl_theory.engine.trajectory import Trajectory
from icl_theory.papers.audit import ANSWER_HEADINGS, Audit
from icl_theory.papers.claim import HEADINGS, Answer, BoundChecks
from icl_theory.results import notebook
from icl_theory.results.numbers import number
from icl_theory.results.plots.runs import plot_answer, plot_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@singledispatch
def plot(shown: Any, ax: Axes | None = None) -> Axes:
    """Draw the figure of something."""
    raise TypeError(f"{type(shown).__name__} has no figure")


plot.register(Trajectory, plot_run)
plot.register(Answer, plot_answer)


@singledispatch
def html(shown: Any) -> str:
    """Return the HTML that a notebook shows for an object."""
    raise TypeError(f"{type(shown).__name__} has no table")


@html.register
def _(run: Trajectory) -> str:
    """The summary as a table, and the figure."""
    return notebook.facts(run.facts()) + "\n" + notebook.image(plot_run(run), run.stop_reason)


@html.register
def _(answer: Answer) -> str:
    """Question, answer, figure and command."""
    words = (f"<p><b>{notebook.text(answer.question)}</b></p>", f"<p>{notebook.text(answer.answer)}</p>")
    image = notebook.image(plot_answer(answer), f"{answer.y} against {answer.x}")
    return "\n".join([*words, image, f"<p><code>{notebook.text(answer.command)}</code></p>"])


@html.register
def _(checks: BoundChecks) -> str:
    """One row a check."""
    order = ("name", "kind", "measured", "bound", "holds", "slack", "note", "statement", "source")
    columns: dict[str, list[Any]] = {name: [getattr(check, name) for check in checks] for name in order}
    columns["bound"] = [
        " to ".join(map(number, bound)) if isinstance(bound, tuple) else bound for bound in columns["bound"]
    ]
    return notebook.table(columns)


@html.register
def _(found: Comparison) -> str:
    """One row a comparison."""
    names = ("name", "population", "sampled", "standard_error", "z", "limit", "passed")
    columns = {name: [getattr(check, name) for check in found.checks] for name in names}
    return notebook.table(columns, found.remarks)


@html.register
def _(audit: Audit) -> str:
    """Both tables."""
    claims = dict(zip(HEADINGS, zip(*(claim.cells() for claim in audit.claims), strict=True), strict=False))
    answers = {name: [getattr(found, name) for found in audit.answers] for name in ANSWER_HEADINGS}
    return notebook.table(claims, "Claims") + "\n" + notebook.table(answers, "Open questions")
