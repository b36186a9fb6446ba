"""What answers on the engine share: small risks, and all that runs and risks say of themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import icl_theory as icl
from icl_theory._validate import Array, argument_error
from icl_theory.engine.capabilities import (
    column_gradients_of,
    gain_at,
    gradients_at,
    series_at,
)

HELD = (
    "t",
    "loss",
    "states",
    "observed",
    "steps",
    "stop_reason",
    "floor",
    "method",
    "rule",
    "eta",
    "epsilon",
    "error",
    "states_error",
    "phases",
    "regime",
    "notes",
    "labels",
    "info",
    "command",
    "converged",
    "interrupted",
)


class Bowl(icl.Risk):
    """½ (x - m)ᵀ A (x - m) + 0.3, whose curvature has no symmetry, in unequal coordinates."""

    initial = np.array([1.5, -0.5, 0.25])
    curvature = np.array([[2.0, 0.5, 0.1], [0.5, 1.0, -0.2], [0.1, -0.2, 0.6]])
    mean = np.array([0.4, 0.1, -0.3])
    metric = np.array([1.0, 2.0, 0.5])

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        slope = self.curvature @ (params - self.mean)
        return 0.3 + 0.5 * float((params - self.mean) @ slope), slope

    def floor(self) -> float:
        return 0.3

    def blocks(self, array: Array) -> Any:
        return (array[:1], array[1:])

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        return {
            "attention": 1.0 / (1.0 + np.exp(-params)),
            "size": np.asarray(np.abs(params).sum()),
        }


class Unknown(Bowl):
    """The same with a floor of 0, which no parameters reach, and one attention."""

    def floor(self) -> float:
        return 0.0

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        return {"attention": np.asarray(1.0 / (1.0 + np.exp(-params.sum())))}


class Slope(icl.Risk):
    """Σ c ln(1 + e^-x), whose minimum is at infinity; its columns are independent."""

    initial = np.array([[0.5, -0.2], [0.0, 0.3]])
    weights = np.array([[1.0, 0.4], [0.7, 0.2]])

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        return float(
            np.sum(self.weights * np.logaddexp(0.0, -params))
        ), -self.weights / (1.0 + np.exp(params))


class Columns(Slope):
    @property
    def column_gradients(self) -> Any:
        return lambda columns, which: -self.weights[:, which] / (1.0 + np.exp(columns))


class Saddle(icl.Risk):
    """½x² - ½y² + ¼y⁴ + ¼ from beside the saddle at 0."""

    initial = np.zeros(2)

    def __init__(self, beside: float) -> None:
        self.initial = np.array([1.0, beside])

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        x, y = params.tolist()
        return 0.25 + 0.5 * x * x - 0.5 * y * y + 0.25 * y**4, np.array([x, y**3 - y])


def told(run: icl.engine.Trajectory, skip: tuple[str, ...] = ()) -> dict[str, Any]:
    """All that a run says, but for the risk."""
    found = {name: getattr(run, name) for name in HELD if name not in skip}
    return found | {
        "stop": run.stop.name,
        "shown": repr(run),
        "summary": run.summary().splitlines(),
    }


def counted(run: icl.engine.Trajectory) -> dict[str, Any]:
    """Estimates of a run that skips steps, which rounding may move: the other half of `followed`."""
    whole = run.error is not None and run.error.is_integer()
    return {"error": run.error, "whole": whole, "states_error": run.states_error}


def followed(run: icl.engine.Trajectory) -> dict[str, Any]:
    """All that a run that skips steps says, but for estimates of its errors."""
    found = told(run, ("error", "states_error", "notes"))
    found["summary"] = [
        line for line in found["summary"] if not line.startswith(("method", "accuracy"))
    ]
    return found


def of_risk(
    risk: icl.Risk, params: Any, step: int = 0, every: bool = False
) -> dict[str, Any]:
    """What a risk says at some parameters; of what it inherits only if ``every`` method is asked."""
    at = np.asarray(params, dtype=float)
    loss, gradient = risk.evaluate(at, step)
    states, steps = np.stack([at, 0.5 * at]), np.array([step, step + 1])
    many = {"gradients": (states,), "series": (states, steps)}
    functions = {"gradients": gradients_at, "series": series_at}
    own = {name for name in many if every or hasattr(type(risk), name)}
    return {
        "initial": risk.initial,
        "loss": loss,
        "gradient": gradient,
        "floor": risk.floor(),
        "metric": risk.metric,
        "stochastic": risk.stochastic,
        "gain": gain_at(risk, at),
        "observed": risk.observe(at, step),
        "blocks": [np.shape(block) for block in risk.blocks(np.array(gradient))],
        "excess": risk.excess(at),
        "columns": column_gradients_of(risk)
        and column_gradients_of(risk)(at[:, [-1, 0]], np.array([at.shape[1] - 1, 0])),
        "closed": None if risk.closed_form(0.5, "gd") is None else "known",
    } | {name: functions[name](risk, *many[name]) for name in sorted(own)}


def bent(risk: icl.Risk, params: Any, seed: int = 1) -> dict[str, Any]:
    """Curvatures of a risk at some parameters."""
    at = np.asarray(params, dtype=float)
    direction = np.random.default_rng(seed).normal(size=at.shape)
    return {
        "product": risk.hessian_product(at, direction),
        "sharpness": risk.sharpness(at),
    }


def every(values: Mapping[str, Any], check: Callable[[Any], Any]) -> dict[str, Any]:
    """What is made of each value; and the words of each refusal, with all that are refused in these words."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        try:
            given = check(value)
            found[name] = (
                "an integer without end"
                if isinstance(given, int) and given > 2**999
                else given
            )
        except Exception as error:
            usual, said = (
                str(argument_error("x", value, "")),
                f"{type(error).__name__}: {error}",
            )
            words = said.removeprefix(f"ValueError: {usual}")
            if words == said:  # it does not name the value
                found[name] = said
            else:
                found[words] = " ".join(
                    [*found.get(words, "").split(), name.replace(" ", "_")]
                )
    return found
