"""Scripts that are run from a checkout, in short."""

from __future__ import annotations

from pathlib import Path

import pytest
from lowest import PROJECT, lowest
from stores import silent_flips

import icl_theory as icl


def test_no_flipped_bit_of_a_store_of_a_sweep_goes_unnoticed(tmp_path: Path) -> None:
    icl.sweep(L=[0.1, 1.0, 10.0], delta=1.0, eta=0.1, K=[5, 20], store=tmp_path / "a.zarr", progress=False)
    tried, silent = silent_flips(tmp_path / "a.zarr", 20)
    assert (tried, silent) == (40, [])


def test_constraints_hold_every_dependency_at_its_lower_bound() -> None:
    assert lowest(["a>=1.9", "a[x]>=1.10", "b>=3"]) == ["a==1.10", "b==3"]
    with pytest.raises(ValueError, match="dependency = 'a<2': must be a name and a lower bound"):
        lowest(["a<2"])
    assert "numpy>=2.0" in PROJECT.read_text()
