"""Print the peak memory of sweeps that are larger than the memory they may take.

python scripts/larger.py --points 1000000 4000000

The sweeps write stores. For each use of a store, such as a table, the peak memory of a
process that makes this use of it is printed, too.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

# The beginning of every program. Its arguments are the path of a store, the number of
# values of L, and the bytes that are said to be free.
PREPARED = """
import resource, sys
import numpy as np, icl_theory as icl
from icl_theory.sweeps import grid
from icl_theory.results.tables import write_table
path, length, free = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
grid.free = lambda: free  # a quarter of them is too much for results
"""
# The rest of the programs: the sweep, and uses of its store.
PARTS = {
    "sweep": """
given = dict(delta=1.0, eta=np.geomspace(0.01, 100.0, 100), K=[2, 5, 10, 20, 50, 100, 200, 500, 800, 1000])
icl.sweep(L=np.geomspace(0.03, 30.0, length), **given, epsilon=1e-4, store=path, progress=False)
""",
    "opening it": "icl.load_sweep(path)",
    "mean of a quantity": "icl.load_sweep(path).steps.mean().compute()",
    "CSV": "write_table(icl.load_sweep(path), path + '.csv')",
    "transitions": "icl.transition_table(icl.load_sweep(path))",
    "Parquet": "write_table(icl.load_sweep(path), path + '.parquet')",
    "table in a terminal": "from icl_theory.cli import main; sys.argv = ['x', 'table', path]; main()",
    "figure of a part": "icl.plot_sweep(icl.load_sweep(path).isel(eta=slice(None, None, 20), K=0, drop=False))",
}
# Code that every program runs at its end: it prints the peak memory in KB.
MEASURED = """
sys.stderr.write(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}")
"""


def peak(part: str, store: Path, length: int, free: float) -> float:
    """Return the peak memory of a process that runs one of `PARTS`, in MB.

    ``length`` is the number of values of L, and ``free`` the number of bytes that the
    package is told are free.
    """
    # A part may end by sys.exit(), so the peak is printed by a function for the exit.
    code = (
        f"{PREPARED}\nimport atexit\n"
        f"atexit.register(lambda: exec({MEASURED!r}))\n{PARTS[part]}"
    )
    line = [sys.executable, "-c", code, str(store), str(length), str(free)]
    errors = subprocess.run(
        line, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ).stderr
    if "peak " not in errors or "Error" in errors:
        raise RuntimeError(f"{part}: {errors}")
    _, _, kilobytes = errors.rpartition("peak ")
    return float(kilobytes) / 1024.0


def main() -> None:
    """Print a line for each part, with the peak for each number of points."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=[*PARTS], default=[*PARTS])
    parser.add_argument("--points", type=int, nargs="+", default=[10**6, 4 * 10**6])
    parser.add_argument(
        "--free",
        type=float,
        default=4e6,
        help="bytes that the package is told are free on the machine",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # The sweep comes first, because the other parts read the stores that it writes.
        for part in dict.fromkeys(["sweep", *options.parts]):
            peaks = []
            for points in options.points:
                store = Path(folder) / str(points)
                # Each value of L has 1000 points.
                megabytes = peak(part, store, points // 1000, options.free)
                peaks.append(f"{megabytes:.0f} MB")
            sys.stdout.write(f"{part}: {', '.join(peaks)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
