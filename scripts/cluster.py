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
import sys, time, numpy as np, icl_theory as icl
from distributed import Client, LocalCluster
if __name__ == "__main__":
    given = dict(
        L=np.geomspace(0.03, 30.0, int(sys.argv[2])), delta=1.0, eta=np.geomspace(0.01, 100.0, 100),
        K=[2, 3, 5, 10, 20, 50, 100, 200, 500, 1000], epsilon=1e-4, store=sys.argv[1], progress=False,
    )
    if sys.argv[3] == "one":
        start = time.perf_counter()
        icl.sweep(**given)
        print(time.perf_counter() - start)
    else:
        with (
            LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
            Client(cluster) as client,
        ):
            client.wait_for_workers(2)
            start = time.perf_counter()
            icl.sweep(**given, executor=client.get_executor())
            print(time.perf_counter() - start)
"""


def run(store: Path, length: int, how: str, limit: float | None = None) -> float | None:
    """Return the seconds that a sweep takes, None if it was killed after some time."""
    line = [sys.executable, "-c", SWEEP, str(store), str(length), how]
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
    parser.add_argument("--kill-after", type=float, default=20.0, help="seconds, start of the cluster included")
    options = parser.parse_args()
    length = options.points // 1000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        one, two = run(folder / "one.zarr", length, "one"), run(folder / "two.zarr", length, "two")
        assert one is not None
        assert two is not None
        start, kills = time.perf_counter(), 0
        for _ in range(2):
            kills += run(folder / "killed.zarr", length, "two", options.kill_after) is None
        run(folder / "killed.zarr", length, "two")
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
