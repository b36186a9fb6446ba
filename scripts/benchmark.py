"""Measure the speed of the package in processor time, and write it as JSON.

With one thread of BLAS, a busy machine hardly changes processor time. A ratio compares
a time with a yardstick, which is timed in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

import icl_theory as icl
from icl_theory import tasks
from icl_theory.engine.sgd_runs import sgd_losses


class Row(NamedTuple):
    """The median seconds of a computation, and of its yardstick if it has one.

    The yardstick is another computation, with which the first is compared.
    """

    name: str
    seconds: float
    yardstick: str = ""
    yardstick_seconds: float | None = None

    @property
    def ratio(self) -> float | None:
        """The seconds divided by those of the yardstick; None without a yardstick."""
        if self.yardstick_seconds is None:
            return None
        return self.seconds / self.yardstick_seconds


def spent() -> float:
    """Return the processor seconds of this process and of those that it started."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def fewer(repeat: int) -> int:
    """Return the number of times to call a function that takes long.

    Short ones are called ``repeat`` times. The result is a fifth of that, but at least
    5 unless ``repeat`` itself is smaller.
    """
    return min(repeat, max(5, repeat // 5))


def median(*calls: Callable[[], object], repeat: int) -> list[float]:
    """Return the median processor time of each call.

    The calls are made in turn, so that a drift of the machine meets all of them.
    """
    times_of_calls: list[list[float]] = [[] for _ in calls]
    for _ in range(repeat + 1):
        for call, times in zip(calls, times_of_calls, strict=True):
            start = spent()
            call()
            times.append(spent() - start)
    # The first call of each fills caches and loads modules, so it does not count.
    return [statistics.median(times[1:]) for times in times_of_calls]


def gradients(repeat: int, sizes: Sequence[int]) -> list[Row]:
    """Time exact gradients for N = ∞ and K in ``sizes``.

    The yardstick is a product of two K x K matrices.
    """
    rows = []
    rng = np.random.default_rng(0)
    for K in sizes:
        features = icl.Features.orthonormal(K, 2**-0.5)
        scores = rng.normal(size=(K, K))
        left = rng.normal(size=(K, K))
        right = rng.normal(size=(K, K))
        out = np.empty((K, K))
        full = icl.PopulationRisk(features, tasks.Exchangeable(2.0))
        wave = icl.PopulationRisk(features, tasks.RandomCosine(2.0))
        flat = icl.Features.random(K, min(K, 10), 0.1, seed=0)
        line = icl.PopulationRisk(flat, tasks.Linear(2.0))
        risks = {
            "full rank": full,
            "cosine, rank 2": wave,
            f"linear in {min(K, 10)} dimensions": line,
        }
        product, *seconds = median(
            partial(np.matmul, left, right, out=out),
            *(partial(risk.evaluate, scores) for risk in risks.values()),
            repeat=repeat if K < 1000 else fewer(repeat),
        )
        for name, risk_seconds in zip(risks, seconds, strict=True):
            row = Row(
                name=f"exact gradient, K = {K}, {name}",
                seconds=risk_seconds,
                yardstick=f"one {K} x {K} product",
                yardstick_seconds=product,
            )
            rows.append(row)
    return rows


def runs(repeat: int) -> list[Row]:
    """Time whole runs, and single steps on exact and on sampled losses."""
    scores = np.random.default_rng(0).normal(size=(20, 20))
    features = icl.Features.simplex(20, 1.0)
    finite = icl.PopulationRisk(features, tasks.Exchangeable(2.0), N=100)
    sampled = icl.SampledRisk(
        features, tasks.Exchangeable(2.0), N=100, batch=512, seed=0
    )
    # This trainer draws how often each feature occurs, and not token by token.
    counted = icl.Regression(L=2.0, delta=1.0, eta=1.0, N=100).sampled(512)
    # Each call of a trainer is another step, with other prompts.
    counter = iter(range(10**9))
    closed, short, finite_step, sampled_step, counted_step = median(
        lambda: icl.simulate(2.0, 1.0, 4.0, epsilon=1e-9),
        lambda: icl.simulate(2.0, 1.0, 4.0, epsilon=1e-3, method="exact"),
        lambda: finite.evaluate(scores),
        lambda: sampled.evaluate(scores, next(counter)),
        lambda: counted.evaluate(scores, next(counter)),
        repeat=repeat,
    )
    return [
        Row("simulate, epsilon = 1e-9, 1.2e9 steps, closed", closed),
        Row("simulate, epsilon = 1e-3, 1413 steps, exact", short),
        Row("finite N = 100 loss and gradient, K = 20", finite_step),
        Row("sampled step, K = 20, N = 100, batch 512", sampled_step),
        Row(
            "the same, drawn by counts",
            counted_step,
            "drawn token by token",
            sampled_step,
        ),
    ]


def sgd_bands(repeat: int, steps: int) -> list[Row]:
    """Time 16 runs of SGD at once, as `Trajectory.compare` trains them.

    The yardstick is one such run.
    """
    regression = icl.simulate(2.0, 1.0, 4.0, K=20, N=100, above=1e-3)
    nodes = np.linspace(-1.0, 1.0, 60)
    probs = np.full(60, 1.0 / 60)
    kind = icl.Kind(100, probs, nodes, spread=2.0 - nodes**2)
    over_tokens = icl.TokenRisk([kind], target=np.ones(1))
    tokens = icl.descend(over_tokens, 0.5, steps=steps)
    attention = icl.LinearAttention(d=8, N=40).simulate()
    t = np.arange(steps + 1)
    rows = []
    for name, run, trainer in (
        (
            "regression, K = 20, N = 100, batch 512",
            regression,
            regression.family.sampled(512),
        ),
        (
            "TokenRisk, 60 nodes, 100 tokens, batch 256",
            tokens,
            over_tokens.sampled(256),
        ),
        (
            "linear attention, d = 8, N = 40, batch 256",
            attention,
            attention.family.sampled(256),
        ),
    ):
        one, band = median(
            partial(icl.descend, trainer, run.eta, steps=steps),
            partial(sgd_losses, run, t, trainer.batch, 16, 0),
            repeat=min(repeat, 10),
        )
        rows.append(
            Row(f"16 SGD runs of {steps} steps, {name}", band, "one SGD run", one)
        )
    return rows


def commands(repeat: int) -> list[Row]:
    """Time whole processes: an import of the package, and a command."""
    line = ["simulate", "--L", "2", "--delta", "1", "--eta", "4", "--epsilon", "1e-9"]
    python, package, command = median(
        lambda: subprocess.run([sys.executable, "-c", "pass"], check=True),
        lambda: subprocess.run([sys.executable, "-c", "import icl_theory"], check=True),
        lambda: subprocess.run(
            [sys.executable, "-m", "icl_theory", *line],
            check=True,
            stdout=subprocess.DEVNULL,
        ),
        repeat=fewer(repeat),
    )
    return [
        Row("import icl_theory, less the interpreter's start", package - python),
        Row("icl-theory simulate, whole command", command),
    ]


# A program that prints the seconds of a sweep over finite prompts, scaled to the number
# of points that is its argument. A small sweep comes first, which loads modules.
TOGETHER = """
import sys, time
import numpy as np
import icl_theory as icl
points = int(sys.argv[1])
N = np.unique(np.geomspace(50, 800, 50).astype(int))
given = dict(delta=1.0, eta=4.0, K=20, N=N, epsilon=1e-2, progress=False)
icl.sweep(L=[1.0, 2.0], **given)
start = time.process_time()
found = icl.sweep(L=np.geomspace(0.2, 20.0, points // len(N)), **given)
print((time.process_time() - start) * points / found["steps"].size)
"""
# A program that prints the seconds of a first small sweep, then those of a sweep of as
# many points as its argument says, in closed form, and the bytes of memory for a point.
SWEEP = """
import resource, sys, time
import numpy as np
import icl_theory as icl
icl.papers.regression.fitted_constants()
start = time.process_time()
icl.sweep([1.0, 2.0], 1.0, 4.0, epsilon=1e-4, imbalance=0.1, progress=False)
loaded = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(time.process_time() - start)
start = time.process_time()
points = int(sys.argv[1])
L, eta = np.geomspace(0.03, 30, points // 1000), np.geomspace(0.01, 100, 100)
K = [2, 3, 5, 10, 20, 50, 100, 200, 500, 1000]
found = icl.sweep(L, 1.0, eta, K=K, epsilon=1e-4, imbalance=0.1, progress=False)
assert found["steps"].size == points and (found["status"] == "reached").all()
taken = time.process_time() - start
print(taken, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - loaded) * 1024 / points)
"""


def sweeps(repeat: int, closed: int, finite: int) -> list[Row]:
    """Time two sweeps, in processes of their own.

    One has ``closed`` points in closed form, and the other ``finite`` points with
    finite prompts. The row of the first sweep also says how much memory a point takes.
    """
    # A row for each process: seconds of the first sweep, of the large one, and bytes.
    printed_numbers = [
        [float(number) for number in _printed(SWEEP, closed).split()]
        for _ in range(min(3, repeat))
    ]
    loading, seconds_taken, memory = (
        statistics.median(column) for column in zip(*printed_numbers, strict=True)
    )
    large_sweep = (
        f"sweep of {closed:,} exchangeable points after it, {memory:.0f} bytes a point"
        " at most"
    )
    return [
        Row("first sweep of a process, of two points: it loads xarray", loading),
        Row(large_sweep, seconds_taken),
        Row(
            f"sweep of {finite:,} exchangeable points with N = 50 ... 800",
            float(_printed(TOGETHER, finite)),
        ),
    ]


def _printed(code: str, points: int) -> str:
    """Run the program ``code`` on a number of points, and return what it prints."""
    line = [sys.executable, "-c", code, str(points)]
    return subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout


def matrices(targets: Sequence[float]) -> list[Row]:
    """Time points over 10 x 10 scores with finite prompts, in a sweep and one by one.

    Eight of the points of the sweep are simulated, and their counts of steps must be
    those of the sweep. There is a row for each target.
    """
    L = np.geomspace(0.7, 4.0, 8)
    eta = [0.25, 0.5, 1.0, 2.0]
    N = [50, 100]
    # Eight of the 64 points of the sweep, in which each value of L occurs once, and each
    # pair of eta and N once.
    points = [
        {"L": L[i], "eta": eta[i % 4], "N": N[(i // 4 + i) % 2]} for i in range(len(L))
    ]
    rows = []
    for epsilon in targets:
        common: dict[str, Any] = {
            "delta": 4.0,
            "K": 10,
            "task": "cosine",
            "epsilon": epsilon,
        }

        def sweep(common: dict[str, Any] = common) -> Any:
            return icl.sweep(L=L, eta=eta, N=N, **common, progress=False)

        def simulate_points(common: dict[str, Any] = common) -> list[icl.Trajectory]:
            return [icl.simulate(**point, **common) for point in points]

        steps = sweep()["steps"]
        for point, run in zip(points, simulate_points(), strict=True):
            assert run.steps == int(steps.sel(point))
        together, alone = median(sweep, simulate_points, repeat=1)
        name = (
            f"point of a sweep of {steps.size}, K = 10, cosine, N = 50, 100, epsilon ="
            f" {epsilon:g}, {int(steps.min())} to {int(steps.max())} steps"
        )
        alone_per_point = alone / len(points)
        rows.append(Row(name, together / steps.size, "one by one", alone_per_point))
    return rows


def main() -> None:
    """Time everything, print a table, and write JSON if there is a file for it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument(
        "--repeat", type=int, default=25, help="timed calls of each short thing"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small sizes, each timed once: to see that it runs",
    )
    parser.add_argument(
        "--bands", action="store_true", help="only the rows of many SGD runs"
    )
    arguments = parser.parse_args()
    repeat = 1 if arguments.quick else arguments.repeat
    sizes = (20,) if arguments.quick else (20, 100, 1000)
    closed, finite = (1000, 500) if arguments.quick else (10**6, 10**5)
    targets = (0.3,) if arguments.quick else (1e-2, 1e-3)
    steps = 10 if arguments.quick else 100
    with threadpool_limits(limits=1):
        if arguments.bands:
            show(sgd_bands(repeat, steps), arguments.json)
            return
        rows = [
            *runs(repeat),
            *sgd_bands(repeat, steps),
            *gradients(repeat, sizes),
            *sweeps(repeat, closed, finite),
            *matrices(targets),
            *commands(repeat),
        ]
    show(rows, arguments.json)


def show(rows: Sequence[Row], path: Path | None) -> None:
    """Print the rows as a table, and write them as JSON if there is a path."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("what", "median", "yardstick", "ratio"):
        table.add_column(
            heading, justify="left" if heading in ("what", "yardstick") else "right"
        )
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        table.add_row(row.name, f"{1e3 * row.seconds:.3g} ms", row.yardstick, ratio)
    Console().print(table)
    if path:
        text = json.dumps(
            [row._asdict() | {"ratio": row.ratio} for row in rows], indent=2
        )
        path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
