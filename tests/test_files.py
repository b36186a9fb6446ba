from __future__ import annotations

import errno
import os
import socket
import sys
import threading
from pathlib import Path

import pytest

from icl_theory import files
from icl_theory.files import replacing
from tests.processes import PATIENCE


def test_failure_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    with (
        pytest.raises(FileNotFoundError) as failure,
        replacing(tmp_path / "missing" / "run.txt") as temporary,
    ):
        temporary.write_text("")
    assert (
        str(failure.value)
        == f"[Errno 2] No such file or directory: '{tmp_path}/missing/run.txt'"
    )


def test_full_disk_is_reported_with_the_file(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match=r"space left on device: .*run\.txt") as failure,
        replacing(tmp_path / "run.txt"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert failure.value.errno == errno.ENOSPC


def test_failure_of_another_file_is_left_as_it_is(tmp_path: Path) -> None:
    with (
        pytest.raises(FileNotFoundError, match="elsewhere"),
        replacing(tmp_path / "run.txt"),
    ):
        (tmp_path / "elsewhere").read_text()


def write(path: Path, text: str = "new") -> None:
    with replacing(path) as temporary:
        temporary.write_text(text)


def test_a_link_stays_and_the_file_at_its_end_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file.txt").write_text("old")
    (tmp_path / "two.txt").symlink_to(tmp_path / "folder" / "file.txt")
    (tmp_path / "one.txt").symlink_to("two.txt")
    write(tmp_path / "one.txt")
    assert (tmp_path / "one.txt").is_symlink()
    assert (tmp_path / "two.txt").is_symlink()
    assert (tmp_path / "folder" / "file.txt").read_text() == "new"
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "file.txt",
        "folder",
        "one.txt",
        "two.txt",
    ]


def test_the_end_of_a_link_that_leads_nowhere_is_made(tmp_path: Path) -> None:
    (tmp_path / "one.txt").symlink_to("two.txt")
    write(tmp_path / "one.txt")
    assert (tmp_path / "one.txt").is_symlink()
    assert (tmp_path / "two.txt").read_text() == "new"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_permissions_are_kept(tmp_path: Path, mode: int) -> None:
    (tmp_path / "a.txt").write_text("old")
    (tmp_path / "a.txt").chmod(mode)
    write(tmp_path / "a.txt")
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == mode


def test_a_new_file_has_the_permissions_of_any_other(tmp_path: Path) -> None:
    write(tmp_path / "a.txt")
    (tmp_path / "b.txt").write_text("")
    assert (tmp_path / "a.txt").stat().st_mode == (tmp_path / "b.txt").stat().st_mode


def test_a_pipe_with_a_name_is_written_through(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    os.mkfifo(path)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(path.read_text()))
    reader.start()
    write(path)
    reader.join(timeout=PATIENCE)
    assert found == ["new"]
    assert path.is_fifo()


def test_a_device_is_written_through(tmp_path: Path) -> None:
    link = tmp_path / "a.txt"
    link.symlink_to(os.devnull)
    for path in (Path(os.devnull), link):
        write(path)
        assert path.is_char_device()
    with pytest.raises(OSError, match=r"No space left on device: '/dev/full'"):
        write(Path("/dev/full"))


@pytest.mark.skipif(sys.platform == "darwin", reason="paths of sockets are short there")
def test_a_socket_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
        with pytest.raises(
            ValueError, match=r"path = .*: must be a file, a pipe or a terminal"
        ):
            write(path)
    assert path.is_socket()


def test_a_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sda").touch()
    monkeypatch.setattr(files.stat, "S_ISBLK", lambda mode: True)
    with pytest.raises(ValueError, match="must be a file"):
        write(tmp_path / "sda")
    assert [path.name for path in tmp_path.iterdir()] == ["sda"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")

    def interrupted() -> None:
        with replacing(tmp_path / "a.txt") as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_a_full_disk_is_reported_also_where_a_library_stumbles_over_it(
    tmp_path: Path,
) -> None:
    """As matplotlib does, whose PDF has no position any more when its stream is ended."""

    def stumbles() -> None:
        with replacing(tmp_path / "a.pdf"):
            try:
                raise OSError(errno.ENOSPC, "No space left on device")
            finally:
                raise AttributeError("'Stream' object has no attribute 'pos'")

    with pytest.raises(OSError, match=r"No space left on device: .*a\.pdf"):
        stumbles()


def test_an_error_of_another_kind_is_left_as_it_is(tmp_path: Path) -> None:
    def fails() -> None:
        with replacing(tmp_path / "a.txt"):
            try:
                raise OSError(errno.ENOSPC, "No space left on device")
            except OSError:
                raise ValueError("what it means") from None

    with pytest.raises(ValueError, match="what it means"):
        fails()
