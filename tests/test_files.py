from __future__ import annotations

import errno
from pathlib import Path

import pytest

from icl_theory.files import replacing


def test_failure_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as failure, replacing(tmp_path / "missing" / "run.txt") as temporary:
        temporary.write_text("")
    assert str(failure.value) == f"[Errno 2] No such file or directory: '{tmp_path}/missing/run.txt'"


def test_full_disk_is_reported_with_the_file(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match=r"space left on device: .*run\.txt") as failure,
        replacing(tmp_path / "run.txt"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert failure.value.errno == errno.ENOSPC


def test_failure_of_another_file_is_left_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="elsewhere"), replacing(tmp_path / "run.txt"):
        (tmp_path / "elsewhere").read_text()
