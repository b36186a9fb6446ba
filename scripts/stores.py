"""Stores that are damaged, and runs that are killed: nothing may be lost or taken for what it is not.

python scripts/stores.py --flips 6000 --kills 100

Every byte of the JSON file has a bit flipped, and random bytes of the parts; parts
change places; then sweeps are killed at random moments and gone on with, by one process
or, with ``--workers``, by several that write chunks. What the last call returns and
what it leaves are those of a sweep that was not killed. ``python -m tests.grids.crash
FOLDER 1``, with ``torn`` or ``worker`` or both, ends one at any file operation.
"""

from __future__ import annotations

import argparse
import itertools
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import icl_theory as icl

SWEEP = """
import pickle, sys, numpy as np, icl_theory as icl
given = dict(L=np.geomspace(0.5, 2.0, 6), delta=1.0, eta=[1.0, 2.0, 4.0, 8.0], K=3, task="linear", above=0.03)
found = icl.sweep(**given, store=sys.argv[1], workers=int(sys.argv[2]) or None, progress=False)
pickle.dump(found, open(sys.argv[1] + ".returned", "wb"))
"""


def silent_flips(path: Path, flips: int, seed: int = 0) -> tuple[int, list[str]]:
    """Flip single bits of a store; return how many and which went unnoticed."""
    expected = icl.load_sweep(path)
    rng = random.Random(seed)
    silent = []
    tried = 0
    [said], chunks = path.glob("*.json"), sorted(path.glob("part-*"))
    metadata = [(said, place) for place in range(said.stat().st_size)]
    some = [
        (each, rng.randrange(each.stat().st_size))
        for each in rng.choices(chunks, k=flips)
    ]
    for file, place in [*rng.sample(metadata, min(flips, len(metadata))), *some]:
        content = bytearray(file.read_bytes())
        whole = bytes(content)
        content[place] ^= 1 << rng.randrange(8)
        file.write_bytes(content)
        try:
            found = icl.load_sweep(path)
            if not found.identical(expected):
                silent.append(
                    f"{file.relative_to(path)}, byte {place}: read as something else"
                )
            else:
                silent.append(f"{file.relative_to(path)}, byte {place}: not noticed")
        except ValueError as error:
            if "\n" in str(error):
                silent.append(f"{file.relative_to(path)}, byte {place}: {error!r}")
        file.write_bytes(whole)
        tried += 1
    return tried, silent


def silent_swaps(path: Path) -> tuple[int, list[str]]:
    """Swap every two parts, and rename each to the place of another; return how many and which went unnoticed."""
    silent = []
    tried = 0

    def note(said: str) -> None:
        nonlocal tried
        tried += 1
        try:
            icl.load_sweep(path)
            silent.append(f"{said}, not noticed")
        except ValueError:
            pass

    for one, two in itertools.permutations(sorted(path.glob("part-*")), 2):
        first = one.read_bytes()
        second = two.read_bytes()
        one.write_bytes(second)
        two.write_bytes(first)
        note(f"{one.name} and {two.name}: swapped")
        one.write_bytes(first)
        two.unlink()
        moved = one.rename(path / (two.name[:11] + one.name[11:]))
        note(f"{one.name} in the place of {two.name}")
        moved.rename(one)
        two.write_bytes(second)
    return tried, silent


def lost_after_kills(
    folder: Path, kills: int, workers: int = 0, seed: int = 0
) -> tuple[int, list[str]]:
    """Kill sweeps at random moments until each is done; return how many kills there were and what differed."""
    rng = random.Random(seed)
    wrong = []
    killed = 0
    command = [sys.executable, "-c", SWEEP]
    start = time.perf_counter()
    subprocess.run([*command, str(folder / "whole"), str(workers)], check=True)
    length = time.perf_counter() - start
    expected = icl.load_sweep(folder / "whole")
    number = 0
    returned = _returned(folder / "whole")
    while killed < kills:
        path = folder / str(number)
        number = number + 1
        before = killed
        start = time.perf_counter()
        while True:
            run = subprocess.Popen(
                [*command, str(path), str(workers)], stderr=subprocess.PIPE, text=True
            )
            try:
                run.wait(rng.uniform(0.3, 1.1) * length if killed < kills else None)
            except subprocess.TimeoutExpired:
                run.send_signal(signal.SIGKILL)
                killed += 1
            said = run.communicate()[1]
            if run.returncode == 0:
                break
            if run.returncode != -signal.SIGKILL:
                wrong.append(f"store {number}: {said.splitlines()[-1]}")
                break
        if killed == before:  # the machine may be busier or less busy than before
            length = time.perf_counter() - start
        if run.returncode == 0 and not icl.load_sweep(path).identical(expected):
            wrong.append(
                f"store {number}: other values than those of a run that was not killed"
            )
        if run.returncode == 0 and not _returned(path).equals(returned):
            wrong.append(
                f"store {number}: the call returned other values than one that was not killed"
            )
        shutil.rmtree(path)
    return killed, wrong


def _returned(path: Path) -> Any:
    """Return the dataset that the call of a sweep returned."""
    return pickle.loads(path.with_name(path.name + ".returned").read_bytes())


def main() -> None:
    """Print what was tried, and what was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--flips",
        type=int,
        default=1000,
        help="of bits in the metadata, and as many in chunks",
    )
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument(
        "--workers", type=int, default=0, help="processes of the sweeps that are killed"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        icl.sweep(
            L=np.geomspace(0.1, 10.0, 9),
            delta=1.0,
            eta=0.1,
            K=[5, 20],
            store=folder / "a",
            progress=False,
        )
        flips, wrong = silent_flips(folder / "a", options.flips)
        # three chunks
        many: dict[str, Any] = {
            "delta": 1.0,
            "eta": 4.0,
            "K": 3,
            "N": 20,
            "above": 0.1,
            "method": "exact",
        }
        icl.sweep(
            L=np.geomspace(1.0, 2.0, 20), **many, store=folder / "b", progress=False
        )
        swaps, unnoticed = silent_swaps(folder / "b")
        killed, lost = (
            lost_after_kills(folder, options.kills, options.workers)
            if options.kills
            else (0, [])
        )
    for line in [*wrong, *unnoticed, *lost]:
        sys.stdout.write(line + "\n")
    sys.stdout.write(
        f"{flips} bits flipped, {len(wrong)} wrong; {swaps} files swapped, {len(unnoticed)} wrong; "
    )
    sys.stdout.write(f"{killed} runs killed, {len(lost)} wrong\n")
    sys.exit(1 if wrong or unnoticed or lost else 0)


if __name__ == "__main__":
    main()
