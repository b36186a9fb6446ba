"""Files that released versions wrote, and what this version makes of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import icl_theory as icl

DATA = Path(__file__).parent / "data" / "released"
RUNS = sorted(DATA.glob("*/*.npz"))
STORES = sorted(path.parent for path in DATA.glob("*/*/_sweep.json"))
SWEEP = {"L": [0.2, 1.0, 5.0], "delta": 1.0, "eta": 0.1, "K": 20, "epsilon": 1e-4}


def name_of(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


@pytest.mark.parametrize("path", RUNS, ids=name_of)
def test_a_released_run_is_read_and_goes_on(path: Path) -> None:
    run = icl.load(path)
    assert run.version == path.parent.name
    # its problem was found, and gives the losses of the file
    assert "family" not in run.notes
    beyond = 2 * int(run.t[-1])
    again = type(run.family)(**run.family.arguments())
    assert run.at(beyond).loss == pytest.approx(again.simulate().at(beyond).loss)
    assert np.isfinite(run.loss).all()


@pytest.mark.parametrize("path", STORES, ids=name_of)
def test_a_released_store_is_read_and_not_continued(path: Path, tmp_path: Path) -> None:
    shutil.copytree(path, tmp_path / "store")
    read = icl.load_sweep(tmp_path / "store")
    now = icl.sweep(**SWEEP, progress=False)
    assert read["steps"].values.tolist() == now["steps"].values.tolist()
    # what the older version did not compute is missing, and a note says so
    assert "population_loss" in read.attrs["notes"]
    assert "not computed when the store was made" in read.attrs["notes"]
    assert np.isnan(read["population_loss"].values).all()
    # one version computes all points of a store
    version = path.parent.name
    with pytest.raises(
        ValueError, match=f"version = '{version}' there, '{icl.__version__}' here"
    ):
        icl.sweep(**SWEEP, store=tmp_path / "store", progress=False)


def test_a_store_of_another_format_is_refused_by_both_versions(tmp_path: Path) -> None:
    shutil.copytree(STORES[0], tmp_path / "store")
    manifest = tmp_path / "store" / "_sweep.json"
    document = json.loads(manifest.read_text(encoding="utf-8"))
    document["format"] += 1
    document["arguments"]["version"] = "9.0"
    manifest.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ValueError, match=r"has format \d+, written by version 9.0"):
        icl.load_sweep(tmp_path / "store")
