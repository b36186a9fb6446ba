"""Datasets that are read lazily while something happens to their store: no number of anything else is returned.

python -m tests.grids.changes 200

Each dataset is opened, some of it is read, its store is changed, and all of it is read.
Then its values are those that it had when it was opened, or a ValueError says what has
happened.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import xarray
from pyarrow.parquet import read_table, write_table

import icl_theory as icl
from icl_theory.sweeps import store
from icl_theory.sweeps import sweep as sweeps

GIVEN: dict[str, Any] = {"L": [1.0, 2.0, 3.0], "delta": 1.0, "K": 5, "epsilon": 1e-3}
RATES = np.linspace(0.5, 2.0, 8)
Change = Callable[[Path, random.Random], object]


def swept(path: Path, **changes: Any) -> xarray.Dataset:
    return icl.sweep(**GIVEN | {"eta": RATES} | changes, store=path, progress=False)


def a_part(path: Path, rng: random.Random) -> Path:
    return rng.choice(sorted(path.glob("part-*")))


def flip(file: Path, rng: random.Random) -> None:
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def replaced(path: Path, **changes: Any) -> None:
    shutil.rmtree(path)
    swept(path, **changes)


def forged(
    path: Path, rng: random.Random, name: str = "loss", value: Any = 3.0
) -> None:
    """Replace a part by a well signed one of the same sweep that has another value at its first point."""
    file = a_part(path, rng)
    table = read_table(file, partitioning=None)
    place = table.column_names.index(name)
    values = pyarrow.array(
        [value, *table.column(name).to_pylist()[1:]], table.schema.field(name).type
    )
    table = table.set_column(
        place, pyarrow.field(name, values.type, nullable=False), values
    )
    buffer = pyarrow.BufferOutputStream()
    write_table(
        table, buffer, compression="none", write_statistics=False, store_schema=False
    )
    content = buffer.getvalue().to_pybytes()
    chunk = int(file.name.split("-")[1])
    manifest = store.existing(path).manifest
    file.unlink()
    (path / store.part_name(manifest, chunk, content)).write_bytes(content)


def swapped(path: Path, rng: random.Random) -> None:
    one, two = rng.sample(sorted(path.glob("part-*")), 2)
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)


def another_in_its_place(path: Path, rng: random.Random) -> None:
    """The folder becomes a link to the store of another sweep."""
    elsewhere = path.with_name(path.name + "-other")
    swept(elsewhere, eta=RATES + rng.random())
    shutil.rmtree(path)
    path.symlink_to(elsewhere)


def other_parts(path: Path, rng: random.Random) -> None:
    """The parts of another sweep under the names of these."""
    elsewhere = path.with_name(path.name + "-other")
    swept(elsewhere, eta=RATES + rng.random())
    for chunk, name in store.existing(elsewhere).names.items():
        for file in path.glob(f"part-{chunk:06d}-*"):
            shutil.copyfile(elsewhere / name, file)


def a_folder_becomes_a_file(path: Path, rng: random.Random) -> None:
    shutil.rmtree(path)
    path.write_bytes(rng.randbytes(100))


def other_command(path: Path, rng: random.Random) -> None:
    """The same sweep gone on with by another call, which computes what a removed part had."""
    a_part(path, rng).unlink()
    with store.opened(path, *_described(path), command="another call"):
        pass
    swept(path)


def _described(path: Path) -> tuple[Any, ...]:
    manifest = store.existing(path).manifest
    return manifest.grid, manifest.columns[:-2], manifest.arguments


def edited(path: Path, rng: random.Random) -> None:
    """Another learning rate in the JSON file, with a digest that fits."""
    file = path / store.MANIFEST
    content = json.loads(file.read_text())
    del content["digest"]
    axes = {axis["name"]: axis for axis in content["axes"]}
    axes["eta"]["values"][-1] += rng.random()
    content["digest"] = store.digest(json.dumps(content, sort_keys=True).encode())
    file.write_text(json.dumps(content, sort_keys=True))


REFUSED: dict[str, Change] = {
    "another learning rate": lambda path, rng: replaced(path, eta=RATES + rng.random()),
    "another L": lambda path, rng: replaced(path, L=[1.0, 2.0, 3.0 + rng.random()]),
    "another shape": lambda path, rng: replaced(path, L=[1.0, 2.0]),
    "another target": lambda path, rng: replaced(path, epsilon=2e-3),
    "another family": lambda path, _: (
        shutil.rmtree(path),
        icl.sweep("recall", triggers=[4, 16], counts=1, store=path, progress=False),
    ),
    "a link to another store": another_in_its_place,
    "parts of another sweep": other_parts,
    "a forged part": forged,
    "a flipped bit in a part": lambda path, rng: flip(a_part(path, rng), rng),
    "a flipped bit in the manifest": lambda path, rng: flip(path / store.MANIFEST, rng),
    "an edited manifest": edited,
    "two parts swapped": swapped,
    "a part that was cut": lambda path, rng: a_part(path, rng).write_bytes(b"PAR1"),
    "a part that was removed": lambda path, rng: a_part(path, rng).unlink(),
    "no manifest": lambda path, _: (path / store.MANIFEST).unlink(),
    "no folder": lambda path, _: shutil.rmtree(path),
    "no folder but a file": a_folder_becomes_a_file,
}
READABLE: dict[str, Change] = {
    "gone on with": lambda path, _: swept(path),
    "gone on with by another call": other_command,
    "computed anew": lambda path, _: replaced(path),
    "moved away and back": lambda path, _: path.rename(path.with_name("away")).rename(
        path
    ),
    "a foreign file": lambda path, _: (path / "Thumbs.db").touch(),
}


def outcome(folder: Path, change: Change, seed: int) -> str:
    """Return the refusal of a dataset that is read after a change, "the same", or "other numbers"."""
    rng = random.Random(seed)
    path = folder / "store"
    returned = swept(path)
    if change is READABLE["gone on with"]:
        a_part(path, rng).unlink()
        returned = icl.load_sweep(path)
    dataset = rng.choice([returned, icl.load_sweep(path)])
    expected = dataset.compute(scheduler="synchronous")
    if rng.random() < 0.5:
        dataset["steps"].compute(scheduler="synchronous")
    change(path, rng)
    try:
        values = dataset.compute(scheduler="synchronous")
    except ValueError as error:
        return str(error)
    return "the same" if values.identical(expected) else "other numbers"


def tried(count: int) -> dict[str, list[str]]:
    """Change that many stores, each kind of change in turn; return the outcomes by kind."""
    kinds = REFUSED | READABLE
    found: dict[str, list[str]] = {}
    large, chunk = sweeps.is_large, sweeps.CLOSED_CHUNK
    sweeps.is_large, sweeps.CLOSED_CHUNK = (lambda *_: True), 6
    try:
        for seed in range(count):
            name = [*kinds][seed % len(kinds)]
            with tempfile.TemporaryDirectory() as folder:
                found.setdefault(name, []).append(
                    outcome(Path(folder), kinds[name], seed)
                )
    finally:
        sweeps.is_large, sweeps.CLOSED_CHUNK = large, chunk
    return found


def wrong(found: dict[str, list[str]]) -> list[str]:
    """Return a line for each outcome that should not be."""
    lines = []
    for name, outcomes in found.items():
        for said in outcomes:
            is_right = (
                said == "the same" if name in READABLE else said.startswith("store ")
            )
            if not is_right or "\n" in said:
                lines.append(f"{name}: {said}")
    return lines


if __name__ == "__main__":
    outcomes = tried(int(sys.argv[1]))
    faults = wrong(outcomes)
    for line in faults:
        sys.stdout.write(line + "\n")
    sys.stdout.write(
        f"{sum(map(len, outcomes.values()))} stores changed, {len(faults)} wrong\n"
    )
    sys.exit(1 if faults else 0)
