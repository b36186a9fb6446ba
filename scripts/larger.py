"""Peak memory of sweeps that are larger than the memory they may take, and of what is made of their stores.

python scripts/larger.py --points 1000000 4000000
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

PREPARED = """
import resource, sys
import numpy as np, icl_theory as icl
from icl_theory.sweeps import grid
from icl_theory.results.tables import write_table
path, length, free = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
grid.free = lambda: free  # a quarter of them is too much for results
"""
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
MEASURED = """
sys.stderr.write(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}")
"""


def peak(part: str, store: Path, length: int, free: float) -> float:
    """Return the largest memory of a process that does one part, in MB."""
    code = f"{PREPARED}\nimport atexit\natexit.register(lambda: exec({MEASURED!r}))\n{PARTS[part]}"
    line = [sys.executable, "-c", code, str(store), str(length), str(free)]
    said = subprocess.run(
        line, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ).stderr
    if "peak " not in said or "Error" in said:
        raise RuntimeError(f"{part}: {said}")
    return float(said.rpartition("peak ")[2]) / 1024.0


def main() -> None:
    """Print the peaks, a line a part."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=[*PARTS], default=[*PARTS])
    parser.add_argument("--points", type=int, nargs="+", default=[10**6, 4 * 10**6])
    parser.add_argument(
        "--free",
        type=float,
        default=4e6,
        help="bytes that are free on the machine, as it is told",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        # the other parts read the stores that the sweep writes
        for part in dict.fromkeys(["sweep", *options.parts]):
            stores = {each: Path(name) / str(each) for each in options.points}
            peaks = [
                peak(part, store, each // 1000, options.free)
                for each, store in stores.items()
            ]
            sys.stdout.write(
                f"{part}: {', '.join(f'{each:.0f} MB' for each in peaks)}\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
