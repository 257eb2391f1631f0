"""A data folder, its check, and the calls beneath."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from amqp10broker.cli import main
from amqp10broker.errors import DamagedFile, FolderInUse, StorageError
from amqp10broker.metadata.plan import NUMBERS, Put
from amqp10broker.queues.stream.log import StreamLog
from amqp10broker.runtime.journal.data import FURNISHED
from amqp10broker.storage import disk as disk_module
from amqp10broker.storage.catalog_log import open_catalog_log
from amqp10broker.storage.check import Checked, check_folder
from amqp10broker.storage.disk import Disk
from amqp10broker.storage.entry_log import Key, Value
from amqp10broker.storage.folder import DataFolder, inspect_data_folder, open_data_folder
from amqp10broker.storage.journal import Journal
from amqp10broker.storage.logfile import JOURNAL
from amqp10broker.storage.record import FileHeader, Purpose, Record
from amqp10broker.storage.stream_files import FileShelf, part_of
from tests.support.catalog_log import logged_catalog
from tests.support.declaring import declare, declare_exchange
from tests.support.disks import SimDisk
from tests.support.streams import make_room

DISK = Disk()


def refused(path: Path, error: type[StorageError], match: str) -> None:
    with pytest.raises(error, match=match):
        open_data_folder(DISK, str(path), "us")
    with pytest.raises(error, match=match):
        inspect_data_folder(DISK, str(path))


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
    with pytest.raises(StorageError, match=r"contains 'thesis.tex'; give an empty folder"):
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
    refused(path, StorageError, f"has format {number}, and this broker reads format 1")
    after = {each.name: each.read_bytes() for each in path.iterdir() if each.is_file()}
    assert after.pop("lock") is not None
    assert after == {name: text for name, text in before.items() if name != "lock"}


def test_a_garbled_format_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "data")
    open_data_folder(DISK, path, "us").close()
    (tmp_path / "data" / "format").write_text("nonsense\n")
    with pytest.raises(StorageError, match="does not contain the format"):
        open_data_folder(DISK, path, "us")
    # The refusals have let go of the lock.
    (tmp_path / "data" / "format").write_text("amqp10broker data folder, format 1\n")
    open_data_folder(DISK, path, "us").close()


def test_the_inventory_of_a_folder_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "data"
    open_data_folder(DISK, str(path), "us").close()
    (path / "inventory.log").unlink()
    refused(path, DamagedFile, r"inventory.log: the file is missing")


def test_what_the_system_refuses_is_told_with_the_path(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"missing/data: the data folder cannot be used: No such file"):
        open_data_folder(DISK, str(tmp_path / "missing" / "data"), "us")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"file: is a file, not a folder; give a"):
        open_data_folder(DISK, str(tmp_path / "file"), "us")


def test_looking_changes_nothing_and_needs_a_data_folder(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(StorageError, match="contains 'thesis.tex'; give the folder of serve --data-dir"):
        inspect_data_folder(DISK, str(tmp_path))
    (tmp_path / "thesis.tex").unlink()
    with pytest.raises(StorageError, match="the folder does not exist"):
        inspect_data_folder(DISK, str(tmp_path / "none"))
    with pytest.raises(StorageError, match="is not a data folder of amqp10broker"):
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
    """This holds if the broker that made it was killed before its name was durable."""
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


file_name = JOURNAL.name


class Declared:
    """Contents of which nothing is known but that there is a stream."""

    streams = (7,)

    def __init__(self) -> None:
        self.records = 0

    def declare(self, path: str, entries: Iterable[tuple[Key, Value]]) -> None:
        """Of no consequence."""

    def take(self, records: Sequence[Record]) -> None:
        self.records += len(records)

    def faults(self) -> Iterator[StorageError]:
        yield from ()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    folder = open_data_folder(DISK, str(path), "a test")
    catalog, kept = logged_catalog()
    catalog.apply([Put(NUMBERS, 6)])
    declare(catalog, "/", "s", arguments={"x-queue-type": "stream"})
    log = open_catalog_log(DISK, folder, folder.inventory.part("catalog"))
    log.put([*kept.entries(), (FURNISHED, {"default_records": {}})])
    for name in ("a", "b"):
        declare_exchange(catalog, "/", name)
        log.put([entry for entry in kept.entries() if name in entry[0]])
    log.sync()
    log.let_go()
    journal = Journal(DISK, folder.journal, folder.inventory.part("journal"), file_bytes_max=300)
    list(journal.recover())
    for index in range(20):
        journal.append(1, 1, index, [b"x" * 30])
    while (ticket := journal.write()) is not None:
        for fd in journal.fds_to_sync():
            DISK.sync(fd)
        journal.synced(ticket)
    journal.close()
    (path / "catalog" / "catalog.log.new").write_bytes(b"half")
    (path / "streams" / "8.deleted").mkdir()
    (path / "streams" / "8.deleted" / "0.log").write_bytes(b"anything")
    stream = StreamLog(FileShelf(DISK, folder.streams, 7, part_of(folder.inventory, 7), _never))
    assert list(stream.recover()) == []
    stream.segment_bytes = 200
    for count in (1, 2, 3, 2):
        make_room(stream, DISK.sync)
        stream.append(count, 0, b"", [b"messages" * 10])
        stream.commit(stream.write())
    stream.shelf.close()
    folder.close()
    return path


def _never(fds: Sequence[int], done: Callable[[], None]) -> None:
    raise AssertionError("nothing is deleted")


def _damage(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 4
    path.write_bytes(content)


def _check(path: Path) -> dict[str, Checked]:
    folder: DataFolder = inspect_data_folder(DISK, str(path))
    try:
        return {each.path: each for each in check_folder(DISK, folder, Declared())}
    finally:
        folder.close()


def test_every_file_is_read_and_left_as_it_is(data: Path) -> None:
    before = {file: file.read_bytes() for file in data.rglob("*") if file.is_file()}
    checked = _check(data)
    journal = [name for name in checked if name.startswith("journal/")]
    assert journal == [f"journal/{file_name(number)}" for number in range(1, len(journal) + 1)]
    assert len(journal) >= 4
    assert sum(checked[name].records for name in journal) == 20
    rest = {name: each.records for name, each in checked.items() if name not in journal}
    assert rest.pop("inventory.log") > 4
    assert rest == {
        "catalog/catalog.log": 3,
        "streams/7/00000000000000000000.log": 2,
        "streams/7/00000000000000000003.log": 2,
    }
    assert all(each.torn is None and each.fault is None for each in checked.values())
    assert all(each.bytes == (data / name).stat().st_size for name, each in checked.items())
    assert before == {file: file.read_bytes() for file in data.rglob("*") if file.is_file()}


def test_a_torn_end_is_no_fault_in_the_last_file_and_one_elsewhere(data: Path) -> None:
    for name in ("catalog/catalog.log", "streams/7/00000000000000000000.log"):
        path = data / name
        path.write_bytes(path.read_bytes()[:-5])
    checked = _check(data)
    catalog = checked["catalog/catalog.log"]
    assert (catalog.torn is not None, catalog.fault, catalog.records) == (True, None, 2)
    fault = checked["streams/7/00000000000000000000.log"].fault
    assert "the file was synced up to" in str(fault)


def test_the_file_before_an_unused_last_one_may_be_torn(data: Path) -> None:
    names = sorted(file.name for file in (data / "journal").iterdir())
    path = data / "journal" / names[-1]
    if path.stat().st_size > 32:
        number = int(names[-1].split(".")[0]) + 1
        (data / "journal" / file_name(number)).write_bytes(FileHeader(Purpose.JOURNAL, number, 5).encode())
    else:
        path = data / "journal" / names[-2]
    path.write_bytes(path.read_bytes()[:-5])
    assert _check(data)[f"journal/{path.name}"].torn is not None


def test_damage_is_told_and_the_other_files_are_read(data: Path) -> None:
    _damage(data / "journal" / file_name(2), 150)
    (data / "journal" / file_name(3)).unlink()
    checked = _check(data)
    fault = checked[f"journal/{file_name(2)}"].fault
    assert fault.offset <= 150
    assert 0 < checked[f"journal/{file_name(2)}"].records < 6
    assert "missing" in str(checked[f"journal/{file_name(3)}"].fault)
    assert checked[f"journal/{file_name(4)}"].fault is None
    assert checked["catalog/catalog.log"].records == 3


# --- the command ----------------------------------------------------------------------------------


def test_the_command_says_of_each_file_whether_it_is_whole(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = data / "catalog" / "catalog.log"
    path.write_bytes(path.read_bytes()[:-5])
    assert main.main(["storage", "check", str(data)]) == 0
    lines = capsys.readouterr().out.splitlines()
    last = "streams/7/00000000000000000003.log"
    assert f"{last}: 2 records, {(data / last).stat().st_size} bytes; whole" in lines
    (torn,) = [line for line in lines if line.startswith("catalog/")]
    size = path.stat().st_size
    assert torn.startswith(f"catalog/catalog.log: 2 records, {size} bytes; torn end of ")
    assert lines[-1].endswith(" bytes: no damage")


def test_the_command_ends_with_1_when_something_is_damaged(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _damage(data / "journal" / file_name(1), 40)
    assert main.main(["storage", "check", str(data)]) == 1
    out = capsys.readouterr().out
    assert f"journal/{file_name(1)}: 0 records" in out
    assert "BAD at offset 32: the record is damaged (the file was synced up to" in out
    assert "truncate -s 32" in out
    assert out.splitlines()[-1].endswith("1 bad; the broker does not start with this folder")
    assert main.main(["storage", "check", str(data), "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["damaged"] == 1
    journal = [each for each in document["files"] if each["path"].startswith("journal/")]
    assert journal[0]["fault"]["offset"] == 32
    assert journal[1] == {
        "path": f"journal/{file_name(2)}",
        "records": journal[1]["records"],
        "bytes": journal[1]["bytes"],
    }


def test_what_is_missing_is_told_and_can_be_given_up(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = data / "journal" / file_name(1)
    segment = data / "streams" / "7" / "00000000000000000003.log"
    first.unlink()
    segment.write_bytes(segment.read_bytes()[:-7])
    assert main.main(["storage", "check", str(data)]) == 1
    out = capsys.readouterr().out
    assert (
        f"journal/{file_name(1)}: 0 records, 0 bytes; BAD: the file is missing; nothing was changed; bring"
        in out
    )
    assert "the file was synced up to" in out
    assert "2 bad" in out.splitlines()[-1]
    assert main.main(["storage", "accept", str(data)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"accepted as lost: {first}: missing",
        f"accepted as lost: {segment}: 7 bytes at its end",
    ]
    assert main.main(["storage", "check", str(data)]) == 0
    assert "torn end" in capsys.readouterr().out
    assert main.main(["storage", "accept", str(data), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"given_up": []}
    assert main.main(["storage", "accept", str(data / "none")]) == 1
    assert not (data / "none").exists()


def test_the_command_refuses_what_is_no_data_folder_or_in_use(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["storage", "check", str(tmp_path / "none")]) == 1
    assert "the folder does not exist" in capsys.readouterr().err
    folder = open_data_folder(DISK, str(data), "process 42")
    assert main.main(["storage", "check", str(data)]) == 1
    assert "in use by process 42; stop that broker" in capsys.readouterr().err
    folder.close()
