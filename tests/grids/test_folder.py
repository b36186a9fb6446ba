"""Stores in whose folder there is something else: links, pipes and files that no sweep has written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from icl_theory.grids import store
from tests.grids.test_damage import SMALL, path, refused
from tests.grids.test_grid import equal
from tests.grids.test_store import run

__all__ = ["path"]  # the fixture


@pytest.mark.parametrize("name", ["square/c.1.0", "square", "_sweep/mark", "_sweep", "zarr.json", "x/zarr.json"])
def test_links_to_elsewhere_are_refused(path: Path, name: str) -> None:
    elsewhere = path.with_name("elsewhere")
    (path / name).rename(elsewhere)
    (path / name).symlink_to(elsewhere)
    before = sorted(each.stat().st_mtime_ns for each in [elsewhere, *elsewhere.rglob("*")])
    assert f"its file {name} is not: " in refused(path)
    assert sorted(each.stat().st_mtime_ns for each in [elsewhere, *elsewhere.rglob("*")]) == before


def test_the_folder_itself_may_be_a_link(path: Path) -> None:
    link = path.with_name("link.zarr")
    link.symlink_to(path)
    assert equal(store.read(link).values, store.read(path).values)
    assert not run(link, made=SMALL).interrupted


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
@pytest.mark.parametrize("name", ["zarr.json", "x/c.0", "_sweep/mark/c.1.0.0.0"])
def test_what_is_no_file_is_refused_and_not_waited_for(path: Path, name: str) -> None:
    (path / name).unlink()
    os.mkfifo(path / name)
    assert f"its file {name} is not: it is no plain file" in refused(path)


@pytest.mark.parametrize("name", ["more", ".zgroup", ".zmetadata"])
def test_what_zarr_would_take_for_more_of_the_store_is_refused(path: Path, name: str) -> None:
    (path / name).mkdir()
    assert f"its file {name} is not: no sweep has written it" in refused(path)


def test_what_file_browsers_leave_behind_is_no_obstacle(path: Path) -> None:
    (path / ".DS_Store").write_text("")
    assert store.read(path).finished


@pytest.mark.parametrize(
    "name", ["c.9.0.0.0", "c.1.0", "c.-1.0.0.0", "c.1.0.0.0.0", "cx", "c.9" + 19 * "9" + ".0.0.0"]
)
def test_a_mark_of_no_chunk_is_refused(path: Path, name: str) -> None:
    (path / "_sweep" / "mark" / name).write_text("")
    assert f"its file _sweep/mark/{name} is not: the sweep has no such chunk" in refused(path)
