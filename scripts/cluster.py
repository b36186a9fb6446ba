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
from pathlib import Path

import numpy as np

import icl_theory as icl

SWEEP = """
import shutil, sys, time, numpy as np, icl_theory as icl
from distributed import Client, LocalCluster
def begin():
    import icl_theory
    icl_theory.sweep(L=[1.0, 2.0], delta=1.0, eta=1.0, epsilon=1e-4, progress=False)  # loads what a sweep needs
if __name__ == "__main__":
    begin()
    given = dict(
        L=np.geomspace(0.03, 30.0, int(sys.argv[2])), delta=1.0, eta=np.geomspace(0.01, 100.0, 100),
        K=[2, 3, 5, 10, 20, 50, 100, 200, 500, 1000], epsilon=1e-4, store=sys.argv[1], progress=False,
    )
    def shortest(**executor):
        found = []
        for again in range(int(sys.argv[4])):
            if again:
                shutil.rmtree(sys.argv[1])
            start = time.perf_counter()
            icl.sweep(**given, **executor)
            found.append(time.perf_counter() - start)
        print(min(found))
    if sys.argv[3] == "one":
        shortest()
    else:
        workers = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
        with workers, Client(workers, direct_to_workers=True) as client:
            client.wait_for_workers(2)
            client.run(begin)
            shortest(executor=client.get_executor())
"""


def run(store: Path, length: int, how: str, times: int, limit: float | None = None) -> float | None:
    """Return the seconds that a sweep takes, at the least of some times, None if it was killed after a while."""
    line = [sys.executable, "-c", SWEEP, str(store), str(length), how, str(times)]
    child = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        return float(child.communicate(timeout=limit)[0])
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, 9)  # with its workers
        child.communicate()
        return None


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--points", type=int, default=10**6)
    parser.add_argument("--times", type=int, default=3, help="sweeps of which the shortest counts")
    parser.add_argument("--kill-after", type=float, default=20.0, help="seconds, start of the cluster included")
    options = parser.parse_args()
    length = options.points // 1000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        one, two = (run(folder / f"{how}.zarr", length, how, options.times) for how in ("one", "two"))
        assert one is not None
        assert two is not None
        start, kills = time.perf_counter(), 0
        for _ in range(2):
            kills += run(folder / "killed.zarr", length, "two", 1, options.kill_after) is None
        run(folder / "killed.zarr", length, "two", 1)
        spent = time.perf_counter() - start
        found = [icl.load_sweep(folder / f"{each}.zarr").drop_attrs() for each in ("one", "two", "killed")]
        same = all(each.identical(found[0]) for each in found)
        size = sum(file.stat().st_size for file in (folder / "one.zarr").rglob("*") if file.is_file())
        points = int(np.prod([*found[0].sizes.values()]))
    sys.stdout.write(
        f"{points:,} points, {1e6 * one / points:.2f} us and {size / points:.0f} bytes on the disk each\n"
        f"one process {one:.1f} s; two workers {two:.1f} s, efficiency {one / (2 * two):.2f}\n"
        f"killed {kills} times: {spent:.0f} s in all; {'the same bits' if same else 'OTHER VALUES'}\n"
    )
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
