"""Random points of sweeps over class scores: what a batch gives against one simulation each."""

from __future__ import annotations

import math
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

from icl_theory.families import find
from icl_theory.sweeps.sweep import plan

SEED = 30_000
POINTS = 4  # of each problem
NUMBERS = ("steps", "last", "T_I", "T_II", "T_III", "regime", "status")
REALS = ("loss", "floor", "attention", "tail_constant", "tail_ratio")
SAME = 1e-7  # relative


def problem(index: int) -> dict[str, Any]:
    """Draw a sweep: task, features, prompts, noise, learning rate and target, for some Lipschitz constants.

    One in four has steps that are far too long, one in four short prompts and a target
    next to the floor.
    """
    rng = np.random.default_rng([SEED, index])
    K = int(rng.integers(2, 13))
    task = str(rng.choice(["cosine", "exchangeable", "linear", "fourier"]))
    given: dict[str, Any] = {
        "L": np.geomspace(0.5, 4.0, POINTS) * float(rng.uniform(0.5, 2.0)),
        "delta": float(rng.choice([1.0, 4.0])),
        "eta": "auto" if rng.random() < 0.5 else float(np.exp(rng.uniform(-3.0, 1.5))),
        "K": K,
        "task": task,
        "N": math.inf if rng.random() < 0.3 else int(rng.integers(2, 300)),
    }
    if task == "exchangeable" or rng.random() < 0.4:
        given["probs"] = rng.dirichlet(np.full(K, 3.0))
    noisy = math.isfinite(given["N"]) and rng.random() < 0.3
    if noisy:
        given["noise"] = float(rng.uniform(0.05, 1.0))
    goal = "above" if noisy or rng.random() < 0.6 else "epsilon"
    given[goal] = float(10.0 ** rng.uniform(-4.0, -1.0))
    if index % 4 == 1:
        given["eta"] = float(10.0 ** rng.uniform(0.5, 3.0))
    if index % 4 == 3:
        del given[goal]
        given |= {
            "N": int(rng.integers(2, 7)),
            "above": float(10.0 ** rng.uniform(-9.0, -1.0)),
        }
        given["eta"] = float(10.0 ** rng.uniform(-1.5, 1.7))
    return given


def compare(index: int) -> tuple[Counter[str], list[str]]:
    """Compare the points of a batch; count them, and say in which point what differs."""
    made = plan(find("regression"), problem(index))
    points = made.grid.points(np.arange(made.grid.size))
    found = made.model.batched(points)
    done = ~np.isnan(found["loss"])
    some = {name: values[done] for name, values in points.items()}
    counts = Counter(points=POINTS, batched=int(done.sum()))
    if not done.any():
        return counts, []
    alone = made.model.one_by_one(some)
    wrong = []
    for i in range(int(done.sum())):
        ours, theirs = (
            {name: values[i] for name, values in each.items()}
            for each in ({name: values[done] for name, values in found.items()}, alone)
        )
        off = [name for name in NUMBERS if ours[name] != theirs[name]]
        off += [
            name
            for name in REALS
            if not np.isclose(
                ours[name], theirs[name], rtol=SAME, atol=0, equal_nan=True
            )
        ]
        counts["skipped"] += theirs["method"] == "fast"
        wrong += [
            f"{index}, point {i}: {name} {ours[name]!r} instead of {theirs[name]!r}"
            for name in off
        ]
    return counts, wrong


def table(first: int, problems: int, workers: int) -> None:
    """Print how many points were batched, and every one that differs."""
    total: Counter[str] = Counter()
    wrong: list[str] = []
    with ProcessPoolExecutor(workers) as pool:
        for counts, differences in pool.map(
            compare, range(first, first + problems), chunksize=4
        ):
            total += counts
            wrong += differences
            print(
                *(f"WRONG: {difference}\n" for difference in differences),
                sep="",
                end="",
                flush=True,
            )
    print(
        f"{total['points']} points, {total['batched']} in batches, {total['skipped']} of those of more steps"
    )
    print(
        f"than are taken singly; {len(wrong)} numbers differ from those of one simulation each"
    )
