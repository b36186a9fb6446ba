"""A sweep on a local Dask cluster of two workers, killed twice and gone on with, against one process.

python scripts/cluster.py --points 1000000
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import icl_theory as icl

SWEEP = """
import dask, shutil, sys, time, numpy as np, icl_theory as icl
from distributed import Client, LocalCluster
from pathlib import Path
given = dict(
    L=np.geomspace(0.03, 30.0, int(sys.argv[1])), delta=1.0, eta=np.geomspace(0.01, 100.0, 100),
    K=[2, 3, 5, 10, 20, 50, 100, 200, 500, 1000], epsilon=1e-4, progress=False,
)
def begin():
    import icl_theory
    icl_theory.sweep(L=[1.0, 2.0], delta=1.0, eta=1.0, epsilon=1e-4, progress=False)  # loads what a sweep needs
def half(which, store):
    import icl_theory
    icl_theory.sweep(**{**given, "L": given["L"][which::2]}, store=store)
if __name__ == "__main__":
    begin()
    dask.config.set({  # the scheduler and its workers watch themselves: less often, where they share two cores
        "distributed.worker.profile.enabled": False, "distributed.worker.memory.monitor-interval": "1s",
        "distributed.admin.tick.interval": "1s", "distributed.admin.system-monitor.interval": "5s",
    })
    workers = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with workers, Client(workers) as client:
        client.wait_for_workers(2)
        client.run(begin)
        executor, each = client.get_executor(pure=False), list(client.scheduler_info()["workers"])
        def one(store):
            icl.sweep(**given, store=store)
        def two(store):
            icl.sweep(**given, store=store, executor=executor)
        def halves(store):
            parts = [f"{store}/{i}" for i in range(2)]
            client.gather([client.submit(half, i, parts[i], workers=each[i], pure=False) for i in range(2)])
        def seconds(how, store):
            shutil.rmtree(store, ignore_errors=True)
            start = time.perf_counter()
            how(store)
            return time.perf_counter() - start
        if len(sys.argv) == 3:
            two(sys.argv[2])
        else:
            folder, times = Path(sys.argv[2]), int(sys.argv[3])
            one(folder / "one")  # these are compared, and not timed: they take memory for the first time
            two(folder / "two")
            for _ in range(times):
                print(*(seconds(how, str(folder / "timed")) for how in (one, two, halves)), flush=True)
            shutil.rmtree(folder / "timed")
"""


def run(*arguments: object) -> str:
    """Return what a process prints that sweeps."""
    return subprocess.run(
        _line(arguments), stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def kill(store: Path, chunks: int, *arguments: object) -> None:
    """Start such a process, and kill it with its workers when the store has so many chunks."""
    child = subprocess.Popen([*_line(arguments), str(store)], start_new_session=True)
    while child.poll() is None and count(store) < chunks:
        time.sleep(0.01)
    assert child.poll() is None, "it ended too early to be killed"
    os.killpg(child.pid, 9)
    child.wait()


def count(store: Path) -> int:
    """Return how many chunks count in a store."""
    return sum(1 for _ in store.glob("part-*"))


def _line(arguments: Sequence[object]) -> list[str]:
    return [sys.executable, "-c", SWEEP, *map(str, arguments)]


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--points", type=int, default=10**6)
    parser.add_argument(
        "--times",
        type=int,
        default=9,
        help="rounds: one process, two workers, and each worker half of the points on its own",
    )
    options = parser.parse_args()
    length = options.points // 1000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = {how: folder / how for how in ("one", "two", "killed")}
        rounds = np.array(
            run(length, folder, options.times).split(), dtype=np.float64
        ).reshape(-1, 3)
        one, two, halves = rounds.min(axis=0)
        efficiencies = rounds[:, :1] / (2.0 * rounds[:, 1:])
        middle, (low, high) = (
            np.median(efficiencies, axis=0),
            np.quantile(efficiencies[:, 0], (0.25, 0.75)),
        )
        begun = time.perf_counter()
        chunks = count(paths["one"])
        for third in (1, 2):
            kill(paths["killed"], third * chunks // 3, length)
        run(length, paths["killed"])
        whole = time.perf_counter() - begun
        stores = [icl.load_sweep(path).drop_attrs() for path in paths.values()]
        same = all(each.identical(stores[0]) for each in stores)
        size = sum(
            file.stat().st_size for file in paths["one"].rglob("*") if file.is_file()
        )
        points = int(np.prod([*stores[0].sizes.values()]))
    sys.stdout.write(
        f"{points:,} points, {1e6 * one / points:.2f} us and {size / points:.0f} bytes on the disk each\n"
        f"one process {one:.1f} s; two workers {two:.1f} s; two sweeps of half the points each {halves:.1f} s\n"
        f"efficiency of {len(rounds)} rounds: median {middle[0]:.2f}, half of them {low:.2f} to {high:.2f}; "
        f"of the two sweeps, which need not wait for each other: median {middle[1]:.2f}\n"
        f"killed twice: {whole:.0f} s in all; {'the same bits' if same else 'OTHER VALUES'}\n"
    )
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
