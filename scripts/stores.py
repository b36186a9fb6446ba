"""Damage stores of sweeps and kill sweeps, to see that no wrong value is ever read.

python scripts/stores.py --flips 6000 --kills 100

A store is a folder with a JSON file and one file, a part, for each computed chunk of
the sweep. The script damages stores in two ways: it flips a bit of every byte of the
JSON file and of random bytes of the parts, and it lets parts change places. Each time
`load_sweep` must refuse the store. Then sweeps are killed at random moments and
continued, by one process or, with ``--workers``, by several processes that write
chunks. Both the dataset that the last call returns and the store must equal those of a
sweep that was not killed. ``python -m tests.grids.crash FOLDER 1``, with ``torn`` or
``worker`` or both, ends a sweep at any file operation.
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

# A program that sweeps into the store of its first argument. Its second argument is the
# number of workers, and it writes the returned dataset beside the store.
SWEEP = """
import pickle, sys, numpy as np, icl_theory as icl
given = dict(L=np.geomspace(0.5, 2.0, 6), delta=1.0, eta=[1.0, 2.0, 4.0, 8.0], K=3, task="linear", above=0.03)
found = icl.sweep(**given, store=sys.argv[1], workers=int(sys.argv[2]) or None, progress=False)
pickle.dump(found, open(sys.argv[1] + ".returned", "wb"))
"""


def silent_flips(path: Path, flips: int, seed: int = 0) -> tuple[int, list[str]]:
    """Flip single bits of a store, ``flips`` of the JSON file and as many of its parts.

    Return the number of bits that were flipped, and a line for each bit of which
    `load_sweep` did not say in one line that the store is damaged.
    """
    expected = icl.load_sweep(path)
    rng = random.Random(seed)
    (json_file,) = path.glob("*.json")
    parts = sorted(path.glob("part-*"))
    bytes_of_json = [(json_file, place) for place in range(json_file.stat().st_size)]
    bytes_of_parts = [
        (part, rng.randrange(part.stat().st_size))
        for part in rng.choices(parts, k=flips)
    ]
    chosen = rng.sample(bytes_of_json, min(flips, len(bytes_of_json)))
    silent = []
    tried = 0
    for file, place in [*chosen, *bytes_of_parts]:
        content = bytearray(file.read_bytes())
        undamaged = bytes(content)
        content[place] ^= 1 << rng.randrange(8)
        file.write_bytes(content)
        where = f"{file.relative_to(path)}, byte {place}"
        try:
            loaded = icl.load_sweep(path)
            if loaded.identical(expected):
                silent.append(f"{where}: not noticed")
            else:
                silent.append(f"{where}: read as something else")
        except ValueError as error:
            if "\n" in str(error):
                silent.append(f"{where}: {error!r}")
        file.write_bytes(undamaged)
        tried += 1
    return tried, silent


def silent_swaps(path: Path) -> tuple[int, list[str]]:
    """Swap every two parts of a store, and rename each part to the place of another.

    Return the number of changes, and a line for each change that `load_sweep` did not
    notice.
    """
    silent = []
    tried = 0

    def load_damaged(damage: str) -> None:
        """Count a change, and add a line about it unless the store is refused."""
        nonlocal tried
        tried += 1
        try:
            icl.load_sweep(path)
            silent.append(f"{damage}, not noticed")
        except ValueError:
            pass

    for one, two in itertools.permutations(sorted(path.glob("part-*")), 2):
        first = one.read_bytes()
        second = two.read_bytes()
        one.write_bytes(second)
        two.write_bytes(first)
        load_damaged(f"{one.name} and {two.name}: swapped")
        one.write_bytes(first)
        two.unlink()
        # The first 11 characters of a name, such as "part-000001", are the place of the
        # part, and its size and a digest follow.
        moved = one.rename(path / (two.name[:11] + one.name[11:]))
        load_damaged(f"{one.name} in the place of {two.name}")
        moved.rename(one)
        two.write_bytes(second)
    return tried, silent


def lost_after_kills(
    folder: Path, kills: int, workers: int = 0, seed: int = 0
) -> tuple[int, list[str]]:
    """Kill sweeps at random moments, and continue each of them until it is complete.

    Return the number of kills, and a line for each sweep that failed, or whose values
    differ from those of a sweep that was not killed. The sweeps have ``workers``
    processes, or compute in their own process if ``workers`` is 0.
    """
    rng = random.Random(seed)
    wrong = []
    killed = 0
    command = [sys.executable, "-c", SWEEP]
    start = time.perf_counter()
    subprocess.run([*command, str(folder / "whole"), str(workers)], check=True)
    # The seconds of a sweep that is not killed.
    duration = time.perf_counter() - start
    expected = icl.load_sweep(folder / "whole")
    expected_result = returned(folder / "whole")
    number = 0
    while killed < kills:
        path = folder / str(number)
        number = number + 1
        killed_before = killed
        start = time.perf_counter()
        while True:
            sweep = subprocess.Popen(
                [*command, str(path), str(workers)], stderr=subprocess.PIPE, text=True
            )
            # From 0.3 durations on, chunks are being written. Beyond 1 the sweep is
            # usually complete before it would be killed.
            seconds = rng.uniform(0.3, 1.1) * duration if killed < kills else None
            try:
                sweep.wait(seconds)
            except subprocess.TimeoutExpired:
                sweep.send_signal(signal.SIGKILL)
                killed += 1
            _, errors = sweep.communicate()
            if sweep.returncode == 0:
                break
            if sweep.returncode != -signal.SIGKILL:
                wrong.append(f"store {number}: {errors.splitlines()[-1]}")
                break
        if killed == killed_before:
            # The machine may have become slower or faster since the last measurement.
            duration = time.perf_counter() - start
        if sweep.returncode == 0 and not icl.load_sweep(path).identical(expected):
            wrong.append(
                f"store {number}: other values than those of a run that was not killed"
            )
        if sweep.returncode == 0 and not returned(path).equals(expected_result):
            wrong.append(
                f"store {number}: the call returned other values than one that was not"
                " killed"
            )
        shutil.rmtree(path)
    return killed, wrong


def returned(path: Path) -> Any:
    """Return the dataset that the call of a sweep with the store ``path`` returned."""
    return pickle.loads(path.with_name(path.name + ".returned").read_bytes())


def main() -> None:
    """Print how much was tried, and a line for each fault; exit with 1 if any."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--flips",
        type=int,
        default=1000,
        help="number of bits to flip in the JSON file, and as many in parts",
    )
    parser.add_argument("--kills", type=int, default=0, help="number of kills")
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
        flips, unnoticed_flips = silent_flips(folder / "a", options.flips)
        # This sweep has three chunks, so that its store has several parts to swap.
        icl.sweep(
            L=np.geomspace(1.0, 2.0, 20),
            delta=1.0,
            eta=4.0,
            K=3,
            N=20,
            above=0.1,
            method="exact",
            store=folder / "b",
            progress=False,
        )
        swaps, unnoticed_swaps = silent_swaps(folder / "b")
        killed = 0
        lost: list[str] = []
        if options.kills:
            killed, lost = lost_after_kills(folder, options.kills, options.workers)
    faults = [*unnoticed_flips, *unnoticed_swaps, *lost]
    for line in faults:
        sys.stdout.write(line + "\n")
    sys.stdout.write(
        f"{flips} bits flipped, {len(unnoticed_flips)} wrong;"
        f" {swaps} files swapped, {len(unnoticed_swaps)} wrong;"
        f" {killed} runs killed, {len(lost)} wrong\n"
    )
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
