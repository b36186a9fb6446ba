"""Fixed problems of every kind, and what the package found for them once: what a change of structure may not move.

``python -m tests.golden`` writes the file again. It is written again only where a
result was wrong, and the changelog then says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import icl_theory as icl

FILE = Path(__file__).parent / "data" / "golden.json"
TASKS = (
    None,
    icl.tasks.Linear,
    icl.tasks.RandomCosine,
    icl.tasks.RandomFourier,
    icl.tasks.Halfspace,
)


def regression_points(count: int = 200) -> Iterator[dict[str, Any]]:
    """Closed forms, and every eighth point one whose steps are taken."""
    rng = np.random.default_rng(20)
    for i in range(count):
        L, delta, eta = (float(10.0 ** rng.uniform(-1, 1)) for _ in range(3))
        K = int(10.0 ** rng.uniform(0.4, 4))
        gamma = 0.5 * (L * delta) ** 2
        point = {
            "L": L,
            "delta": delta,
            "eta": eta,
            "K": K,
            "epsilon": gamma * float(10.0 ** rng.uniform(-9, -0.5)),
        }
        if i % 8 == 0:
            point |= {
                "K": 2 + K % 4,
                "N": int(rng.integers(5, 60)),
                "noise": float(rng.choice([0.0, 0.3])),
                "max_steps": 300,
            }
            point |= {
                "task": TASKS[i // 8 % len(TASKS)],
                "eta": 0.3 * point["K"] / gamma,
            }
        yield point


def recall_points(count: int = 50) -> Iterator[dict[str, Any]]:
    """All attention weights, with and without noise, on the population and on samples."""
    rng = np.random.default_rng(21)
    for i in range(count):
        point: dict[str, Any] = {
            "V": int(rng.integers(20, 80)),
            "triggers": int(rng.integers(1, 6)),
            "outputs": int(rng.integers(1, 6)),
            "eta": float(10.0 ** rng.uniform(-1.3, 0)),
            "attention": ("linear", "relu", "softmax-limit")[i % 3],
            "gamma": "trained",
            "above": float(10.0 ** rng.uniform(-3, -1)),
            "max_steps": 500,
        }
        if i % 3 == 2:
            point["v"] = "trained"
        if i % 2:
            point["alpha"] = float(rng.uniform(0.05, 0.5))
        if i % 5 == 0:
            point |= {"M": int(rng.integers(5, 100)), "seed": i}
        yield point


def trajectories(method: str, count: int = 10) -> Iterator[dict[str, Any]]:
    """Runs by one method."""
    rng = np.random.default_rng(22)
    for i in range(count):
        point: dict[str, Any] = {
            "L": float(10.0 ** rng.uniform(-0.5, 0.5)),
            "delta": 1.0,
            "K": int(rng.integers(2, 7)),
            "method": method,
            "max_steps": 3000,
        }
        gamma = 0.5 * point["L"] ** 2
        point |= {
            "eta": 0.2 * point["K"] / gamma,
            "epsilon": gamma * float(10.0 ** rng.uniform(-4, -1.5)),
        }
        if method != "closed":
            point |= {
                "task": TASKS[i % 5],
                "N": (math.inf, 40)[i % 2],
                "probs": rng.dirichlet(np.ones(point["K"])).tolist(),
            }
        yield point


def summary(run: icl.Trajectory) -> dict[str, Any]:
    """What is compared: integers, and doubles as hexadecimal text."""
    present = {} if run.phases is None else run.phases.present()
    return {
        "steps": run.steps,
        "last": int(run.t[-1]),
        "phases": {
            name: [int(step) for step in interval] for name, interval in present.items()
        },
        "regime": run.regime,
        "method": run.method,
        "t": [int(t) for t in run.t[:: max(1, len(run.t) // 6)]],
        "loss": [float(x).hex() for x in run.loss[:: max(1, len(run.t) // 6)]],
        "params": [float(x).hex() for x in np.ravel(run.params)[:6]],
    }


def problems() -> dict[str, list[tuple[Callable[..., icl.Trajectory], dict[str, Any]]]]:
    """Return the functions that simulate and their arguments, by kind."""
    found = {
        "regression": [(icl.simulate, point) for point in regression_points()],
        "recall": [(icl.recall.simulate, point) for point in recall_points()],
    }
    for method in ("closed", "exact", "fast", "flow", "auto"):
        found[method] = [(icl.simulate, point) for point in trajectories(method)]
    return found


def nudged(point: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with another last bit of the learning rate."""
    return point | {"eta": math.nextafter(point["eta"], math.inf)}


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    results = {
        kind: [summary(simulate(**point)) for simulate, point in every]
        for kind, every in problems().items()
    }
    FILE.write_text(json.dumps(results, indent=0) + "\n")
