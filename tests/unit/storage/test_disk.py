"""The system's files behind the protocol."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from amqp10broker.storage import disk as disk_module
from amqp10broker.storage.disk import Disk


def _file(tmp_path: Path) -> tuple[Disk, int, Path]:
    disk = Disk()
    path = tmp_path / "file"
    return disk, disk.create(str(path)), path


@pytest.mark.parametrize("size", [10, 5000], ids=["joined", "in pieces"])
def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    disk, fd, path = _file(tmp_path)
    pwrite = disk_module.pwrite

    def short(fd: int, data: bytes, offset: int) -> int:
        return pwrite(fd, bytes(data)[:7], offset)

    monkeypatch.setattr(disk_module, "pwrite", short)
    monkeypatch.setattr(disk_module, "pwritev", lambda fd, data, offset: short(fd, b"".join(data), offset))
    pieces = [os.urandom(size) for _ in range(3)]
    disk.write(fd, 0, pieces)
    assert path.read_bytes() == b"".join(pieces)
    disk.close(fd)


def test_a_write_that_writes_nothing_is_an_error_and_no_endless_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, fd, _ = _file(tmp_path)
    monkeypatch.setattr(disk_module, "pwrite", lambda fd, data, offset: 0)
    with pytest.raises(OSError, match="writes nothing"):
        disk.write(fd, 0, [b"a", b"b"])
    disk.close(fd)


def test_a_short_read_is_continued_up_to_the_end_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, fd, _ = _file(tmp_path)
    disk.write(fd, 0, [b"0123456789"])
    pread = disk_module.pread
    monkeypatch.setattr(disk_module, "pread", lambda fd, n, offset: pread(fd, min(n, 3), offset))
    assert disk.read(fd, 1, 5) == b"12345"
    assert disk.read(fd, 4, 100) == b"456789"
    assert disk.read(fd, 10, 5) == b""
    disk.close(fd)


def test_files_and_folders_are_for_their_owner_only(tmp_path: Path) -> None:
    disk, fd, path = _file(tmp_path)
    disk.make_folder(str(tmp_path / "folder"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o700
    with pytest.raises(FileExistsError):
        disk.create(str(path))
    disk.close(fd)


def test_a_lock_holds_until_it_is_closed(tmp_path: Path) -> None:
    disk, fd, path = _file(tmp_path)
    assert disk.lock(fd)
    other = disk.open(str(path))
    assert not disk.lock(other)
    disk.close(fd)
    assert disk.lock(other)
    disk.close(other)
