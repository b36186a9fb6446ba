"""What modules of calls share: the facts of a run, and tables by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from icl_theory.engine.trajectory import Trajectory
from tests.answers import MAGNITUDE, NOTHING, Call

Asked = Iterator[tuple[str, Call | Callable[[], Any]]]
DOUBTS = (
    "error",
    "states_error",
)  # estimates by the rounding of two runs: their size, not their digits
LEFT_OUT = ("version", "family", "risk", "solution", *DOUBTS)


def facts(run: Trajectory) -> dict[str, Any]:
    """Everything that a run shows but what it was made of, its version, and its estimates of errors."""
    shown = (
        "steps",
        "stop",
        "stop_reason",
        "floor",
        "method",
        "rule",
        "eta",
        "epsilon",
        "phases",
        "regime",
        "notes",
    )
    others = (
        "info",
        "command",
        "t",
        "loss",
        "states",
        "observed",
        "converged",
        "interrupted",
    )
    return {name: getattr(run, name) for name in (*shown, *others)} | {
        "repr": repr(run)
    }


def doubts(run: Trajectory) -> dict[str, Any]:
    """Estimates of errors; None for steps that were taken."""
    return {name: getattr(run, name) for name in DOUBTS}


def run_calls(
    name: str, make: Callable[[], Trajectory], *, rtol: float = 1e-8, atol: float = 0.0
) -> Asked:
    """Yield the two calls of a run, made once: its facts, and its estimates of errors."""
    made: list[Trajectory] = []

    def once(show: Callable[[Trajectory], Any]) -> Any:
        if not made:
            made.append(make())
        return show(made[0])

    yield name, Call(partial(once, facts), rtol, atol)
    yield (
        f"{name}: estimates",
        Call(partial(once, doubts), rtol=MAGNITUDE, atol=NOTHING),
    )


def refused(calls: Mapping[str, Callable[[], Any]]) -> Asked:
    """Yield calls that are refused, or only just not."""
    for name, ask in calls.items():
        yield f"refused: {name}", ask


def measured(run: Trajectory) -> dict[str, Any]:
    """What a sweep has of a run; the estimate of an error only where it is not that of the run (see `doubts`)."""
    found = dict(run.family.measured(run))
    if found["error"] == run.error:
        found["error"] = "of the run"
    return found


def seen(risk: Any, params: Any, toward: Any) -> dict[str, Any]:
    """What a risk says at some parameters, and in a direction."""
    loss, gradient = risk.evaluate(params)
    return {
        "loss": [loss, risk.loss(params)],
        "gradient": gradient,
        "hessian": risk.hessian_product(params, toward),
        "observe": risk.observe(params),
        "initial": risk.initial,
        "floor": risk.floor(),
        "metric": risk.metric,
        "best": getattr(risk, "best", None),
    }
