"""Whose the data folder is, and that nothing foreign is touched."""

from __future__ import annotations

import errno
import stat
from pathlib import Path

import pytest

from amqp10broker.errors import DamagedFile, FolderInUse, StorageError
from amqp10broker.storage.disk import Disk
from amqp10broker.storage.folder import inspect_data_folder, open_data_folder
from tests.support.disks import SimDisk

DISK = Disk()


def test_a_folder_is_made_for_its_owner_only_and_opens_again(tmp_path: Path) -> None:
    path = tmp_path / "data"
    for _ in range(2):
        folder = open_data_folder(DISK, str(path), "process 1")
        assert sorted(each.name for each in path.iterdir()) == [
            "catalog", "format", "inventory.log", "journal", "lock", "streams",
        ]  # fmt: skip
        assert folder.free_bytes() > 0
        folder.close()
        folder.close()
    for each in (path, path / "journal", path / "catalog", path / "streams"):
        assert stat.S_IMODE(each.stat().st_mode) == 0o700
    assert (path / "format").read_text() == "amqp10broker data folder, format 1\n"


def test_a_second_broker_is_told_who_has_the_folder(tmp_path: Path) -> None:
    path = str(tmp_path / "data")
    held = open_data_folder(DISK, path, "process 4711")
    with pytest.raises(FolderInUse, match=r"in use by process 4711; stop that broker, or give another"):
        open_data_folder(DISK, path, "process 2")
    with pytest.raises(FolderInUse, match="process 4711"):
        inspect_data_folder(DISK, path)
    held.close()
    open_data_folder(DISK, path, "process 3").close()


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(StorageError, match=r"something in it \('thesis.tex'\); give an empty folder"):
        open_data_folder(DISK, str(tmp_path), "us")
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    "half",
    [
        ["lock"],
        ["lock", "inventory.log.new"],
        ["lock", "inventory.log"],
        ["lock", "inventory.log", "format.new"],
    ],
)
def test_a_folder_made_half_is_finished(tmp_path: Path, half: list[str]) -> None:
    for name in half:
        (tmp_path / name).write_text("amqp10br")
    open_data_folder(DISK, str(tmp_path), "us").close()
    assert (tmp_path / "format").read_text().endswith("format 1\n")
    assert not (tmp_path / "format.new").exists()


@pytest.mark.parametrize("number", [2, 4])
def test_another_format_is_refused_unchanged(tmp_path: Path, number: int) -> None:
    """A folder of format 4 has records of quorum queues under tags that have other meanings now."""
    path = tmp_path / "data"
    open_data_folder(DISK, str(path), "us").close()
    (path / "format").write_text(f"amqp10broker data folder, format {number}\n")
    before = {each.name: each.read_bytes() for each in path.iterdir() if each.is_file()}
    refusal = f"has format {number}, and this broker reads format 1"
    with pytest.raises(StorageError, match=refusal):
        open_data_folder(DISK, str(path), "us")
    with pytest.raises(StorageError, match=refusal):
        inspect_data_folder(DISK, str(path))
    after = {each.name: each.read_bytes() for each in path.iterdir() if each.is_file()}
    assert after.pop("lock") is not None
    assert after == {name: text for name, text in before.items() if name != "lock"}


def test_a_garbled_format_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "data")
    open_data_folder(DISK, path, "us").close()
    (tmp_path / "data" / "format").write_text("nonsense\n")
    with pytest.raises(StorageError, match="does not say which format"):
        open_data_folder(DISK, path, "us")
    # The refusals have let go of the lock.
    (tmp_path / "data" / "format").write_text("amqp10broker data folder, format 1\n")
    open_data_folder(DISK, path, "us").close()


def test_the_inventory_of_a_folder_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "data"
    open_data_folder(DISK, str(path), "us").close()
    (path / "inventory.log").unlink()
    with pytest.raises(DamagedFile, match=r"inventory.log: the file is missing"):
        open_data_folder(DISK, str(path), "us")
    with pytest.raises(DamagedFile, match=r"inventory.log: the file is missing"):
        inspect_data_folder(DISK, str(path))


def test_what_the_system_refuses_is_told_with_the_path(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"missing/data: the data folder cannot be used: No such file"):
        open_data_folder(DISK, str(tmp_path / "missing" / "data"), "us")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"file: the data folder cannot be here: this is a file; name a"):
        open_data_folder(DISK, str(tmp_path / "file"), "us")


def test_looking_changes_nothing_and_needs_a_data_folder(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="there is no such folder"):
        inspect_data_folder(DISK, str(tmp_path / "none"))
    with pytest.raises(StorageError, match="is no data folder"):
        inspect_data_folder(DISK, str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    path = tmp_path / "data"
    open_data_folder(DISK, str(path), "first").close()
    inspect_data_folder(DISK, str(path)).close()
    assert (path / "lock").read_text() == "first\n"
    # A copy may lack the lock; there is nobody to keep out then.
    (path / "lock").unlink()
    inspect_data_folder(DISK, str(path)).close()
    assert not (path / "lock").exists()


def test_a_folder_that_opened_is_there_after_a_loss_of_power() -> None:
    """Also if the broker that made it was killed before its name was durable."""
    disk = SimDisk()
    disk.make_folder("/data")
    killed = disk.after_kill()
    open_data_folder(killed, "/data", "us")
    for seed in range(50):
        found = killed.after_power_loss(seed)
        assert found.is_folder("/data")
        open_data_folder(found, "/data", "us").close()


@pytest.mark.parametrize("disk", [Disk(), SimDisk()], ids=["os", "sim"])
def test_a_folder_is_held_when_its_lock_file_was_removed(disk: Disk, tmp_path: Path) -> None:
    path = str(tmp_path) if isinstance(disk, Disk) else "/data"
    held = open_data_folder(disk, path, "process 1")
    disk.unlink(f"{path}/lock")
    for _ in range(2):
        with pytest.raises(FolderInUse, match="is in use by another process; stop that broker"):
            open_data_folder(disk, path, "process 2")
        with pytest.raises(FolderInUse, match="is in use by another process; stop that broker"):
            inspect_data_folder(disk, path)
    held.close()
    open_data_folder(disk, path, "process 2").close()


def test_a_file_system_that_locks_no_folder_has_the_lock_file() -> None:
    disk = SimDisk()
    open_data_folder(disk, "/data", "process 1").close()
    made = len(disk.calls)
    held = open_data_folder(disk, "/data", "process 1")
    held.close()
    of_folder = made + disk.calls[made:].index(("lock", "/data"))
    refusing = disk.after_kill()
    refusing.fail = {of_folder - made: errno.EBADF}
    open_data_folder(refusing, "/data", "process 1")
    refusing.fail = {len(refusing.calls) + of_folder - made: errno.EBADF}
    with pytest.raises(FolderInUse, match="is in use by process 1; stop that broker"):
        open_data_folder(refusing, "/data", "process 2")
