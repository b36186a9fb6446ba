"""Compare points of random sweeps, computed together in a batch and one by one.

`table` prints how many points were batched and which numbers differ; the command
``python scripts/measurements.py batches`` calls it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

from icl_theory.families.registry import find
from icl_theory.sweeps.sweep import plan

# Any seed would do. With another one, other problems are drawn.
SEED = 30_000
# The number of points of each sweep.
POINTS = 4
# Integers and words, which must be equal.
EXACT_COLUMNS = ("steps", "last", "T_I", "T_II", "T_III", "regime", "status")
# Floats, which may differ by the share TOLERANCE because of rounding and the errors of
# skipped steps.
FLOAT_COLUMNS = ("loss", "floor", "attention", "tail_constant", "tail_ratio")
TOLERANCE = 1e-7


def problem(index: int) -> dict[str, Any]:
    """Draw the arguments of a sweep over `POINTS` values of L.

    One sweep in four has far too large a learning rate, and another one in four has
    short prompts and a target close to the floor.
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
    """Compare the points of a problem that a batch computes with simulations of them.

    Return two results. The first counts the points, those that a batch computes, and
    among these the points whose simulation skips steps. The second has a line for each
    number that differs.
    """
    planned = plan(find("regression"), problem(index))
    # The parameters of all points, and the columns of the batch, by name.
    points = planned.grid.points(np.arange(planned.grid.size))
    batch = planned.model.batched(points)
    # Points that must be simulated one by one have the loss NaN.
    is_batched = ~np.isnan(batch["loss"])
    counts = Counter(points=POINTS, batched=int(is_batched.sum()))
    if not is_batched.any():
        return counts, []
    together = _chosen(batch, is_batched)
    alone = planned.model.one_by_one(_chosen(points, is_batched))
    differences = []
    for i in range(int(is_batched.sum())):
        differences += [
            f"{index}, point {i}: {name} {together[name][i]!r} instead of"
            f" {alone[name][i]!r}"
            for name in _different_columns(together, alone, i)
        ]
        # The method "fast" skips steps.
        counts["skipped"] += alone["method"][i] == "fast"
    return counts, differences


def _chosen(columns: Mapping[str, Any], is_chosen: Any) -> dict[str, Any]:
    """Return the values of some points, by the names of the columns."""
    return {name: values[is_chosen] for name, values in columns.items()}


def _different_columns(
    together: Mapping[str, Any], alone: Mapping[str, Any], i: int
) -> list[str]:
    """Return the names of the columns in which point i differs.

    ``together`` has the columns of the batch, and ``alone`` those of simulations.
    """
    names = [name for name in EXACT_COLUMNS if together[name][i] != alone[name][i]]
    for name in FLOAT_COLUMNS:
        is_near = np.isclose(
            together[name][i], alone[name][i], rtol=TOLERANCE, atol=0, equal_nan=True
        )
        if not is_near:
            names.append(name)
    return names


def table(first: int, problems: int, workers: int) -> None:
    """Compare random problems, and print how many points were batched.

    The problems have the indices from ``first`` on. Every number that differs is
    printed, too.
    """
    total: Counter[str] = Counter()
    difference_count = 0
    with ProcessPoolExecutor(workers) as pool:
        indices = range(first, first + problems)
        for counts, differences in pool.map(compare, indices, chunksize=4):
            total += counts
            difference_count += len(differences)
            for difference in differences:
                print(f"WRONG: {difference}", flush=True)
    print(
        f"{total['points']} points, {total['batched']} in batches,"
        f" {total['skipped']} of those of more steps"
    )
    print(
        f"than are taken singly; {difference_count} numbers differ from those of one"
        " simulation each"
    )
