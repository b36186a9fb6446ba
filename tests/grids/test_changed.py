"""Datasets that are read lazily, and stores that change under them."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest

import icl_theory as icl
from icl_theory.sweeps import sweep as sweeps
from tests.grids import changes

CHANGES = changes.REFUSED | changes.READABLE
# These differ from another learning rate only in the argument.
SAME = ("another L", "another target")
WORDS = {
    "another learning rate": "it holds another sweep now",
    "no folder": "it was removed",
    "a part that was removed": "it was removed after the sweep was opened",
    "a forged part": "it was removed after the sweep was opened",
    "a flipped bit in a part": "it is damaged",
}


@pytest.mark.parametrize("name", [name for name in CHANGES if name not in SAME])
def test_a_store_that_changes_is_refused_in_words_or_gives_the_same_numbers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "is_large", lambda *_: True)
    monkeypatch.setattr(sweeps, "CLOSED_CHUNK", 8)  # three parts
    said = changes.outcome(tmp_path, CHANGES[name], seed=1)
    assert not changes.wrong({name: [said]})
    assert WORDS.get(name, "") in said


@pytest.mark.slow
def test_none_of_many_changed_stores_gives_other_numbers_silently() -> None:
    assert not changes.wrong(changes.tried(44))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (
            "status",
            "evil",
            "status = 'evil': must be one of reached, not reached, failed",
        ),
        (
            "status",
            "pending",
            "status = 'pending': must be one of reached, not reached, failed",
        ),
        ("loss", math.nan, "loss has no value at a point that reached its target"),
        ("steps", -1, "steps has no value at a point that reached its target"),
        ("steps", -5, "steps = -5: must be >= 0, or -1 if there is no value"),
        ("T_I", -5, "T_I = -5: must be >= 0, or -1 if there is no value"),
        ("theorem_1", 7, "theorem_1 = 7: must be 0, 1 or -1"),
    ],
)
def test_a_well_signed_part_of_values_that_no_sweep_gives_is_refused(
    name: str,
    value: Any,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # One of each kind of column is read lazily, the others at once.
    is_lazy = value in ("evil", -5, 7)
    monkeypatch.setattr(sweeps, "is_large", lambda *_: is_lazy)
    path = tmp_path / "a"
    changes.swept(path)
    changes.forged(path, random.Random(0), name, value)
    with pytest.raises(
        ValueError, match=r"cannot be used: no sweep has written it \("
    ) as refusal:
        icl.load_sweep(path)[name].compute(scheduler="synchronous")
    assert words in str(refusal.value)
    with pytest.raises(
        ValueError, match="no sweep has written it"
    ):  # nor is it gone on with
        changes.swept(path).compute(scheduler="synchronous")
