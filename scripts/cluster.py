"""Compare a sweep on a local Dask cluster of two workers with a sweep in one process.

python scripts/cluster.py --points 1000000

The sweep is timed in three ways: in one process, by two workers, and as two sweeps of
half the points, one on each worker, which need not wait for each other. Then a sweep by
two workers is killed twice and continued. It must have the same bits as the sweep in
one process.
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

# A program that sweeps. Its first argument is the number of values of L, each of which
# has 1000 points. If there are two arguments, the second one is a store, into which two
# workers sweep. If there are three, the second one is a folder, in which the program
# makes the stores "one" and "two". Then it prints the seconds of some rounds, as many
# as the third argument says.
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
    """Run the program `SWEEP` with arguments, and return what it prints."""
    return subprocess.run(
        _line(arguments), stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def kill(store: Path, chunks: int, *arguments: object) -> None:
    """Start a sweep into a store, and kill it once the store has ``chunks`` chunks.

    Its workers are killed, too. ``arguments`` are the arguments of `SWEEP` that come
    before the store.
    """
    # In a session of its own, the process and its workers form a group.
    child = subprocess.Popen([*_line(arguments), str(store)], start_new_session=True)
    while child.poll() is None and count(store) < chunks:
        time.sleep(0.01)
    assert child.poll() is None, "it ended too early to be killed"
    os.killpg(child.pid, 9)
    child.wait()


def count(store: Path) -> int:
    """Return the number of computed chunks in a store, each of which is a file."""
    return sum(1 for _ in store.glob("part-*"))


def _line(arguments: Sequence[object]) -> list[str]:
    """Return the command line that runs the program `SWEEP` with arguments."""
    return [sys.executable, "-c", SWEEP, *map(str, arguments)]


def main() -> None:
    """Print times and efficiencies; exit with 1 if the stores have different values."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--points", type=int, default=10**6)
    parser.add_argument(
        "--times",
        type=int,
        default=9,
        help="rounds: one process, two workers, and each worker half of the points on its own",
    )
    options = parser.parse_args()
    # The number of values of L: each has 1000 points, for 100 rates and 10 values of K.
    length = options.points // 1000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = {how: folder / how for how in ("one", "two", "killed")}
        printed = run(length, folder, options.times)
        # A row for each round: seconds in one process, by two workers, and of the two
        # sweeps of half the points.
        rounds = np.array(printed.split(), dtype=np.float64).reshape(-1, 3)
        one, two, halves = rounds.min(axis=0)
        # The efficiency is 1 if two workers take half the time of one process.
        efficiencies = rounds[:, :1] / (2.0 * rounds[:, 1:])
        of_workers, of_halves = np.median(efficiencies, axis=0)
        low, high = np.quantile(efficiencies[:, 0], (0.25, 0.75))
        start = time.perf_counter()
        chunks = count(paths["one"])
        for thirds in (1, 2):
            kill(paths["killed"], thirds * chunks // 3, length)
        run(length, paths["killed"])
        seconds_with_kills = time.perf_counter() - start
        # Only values are compared: attributes say how a sweep was made.
        datasets = [icl.load_sweep(path).drop_attrs() for path in paths.values()]
        are_equal = all(dataset.identical(datasets[0]) for dataset in datasets)
        files = [file for file in paths["one"].rglob("*") if file.is_file()]
        size = sum(file.stat().st_size for file in files)
        points = int(np.prod([*datasets[0].sizes.values()]))
    sys.stdout.write(
        f"{points:,} points, {1e6 * one / points:.2f} us and {size / points:.0f} bytes"
        " on the disk each\n"
        f"one process {one:.1f} s; two workers {two:.1f} s; two sweeps of half the"
        f" points each {halves:.1f} s\n"
        f"efficiency of {len(rounds)} rounds: median {of_workers:.2f}, half of them"
        f" {low:.2f} to {high:.2f}; of the two sweeps, which need not wait for each"
        f" other: median {of_halves:.2f}\n"
        f"killed twice: {seconds_with_kills:.0f} s in all;"
        f" {'the same bits' if are_equal else 'OTHER VALUES'}\n"
    )
    sys.exit(0 if are_equal else 1)


if __name__ == "__main__":
    main()
