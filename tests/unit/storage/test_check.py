"""Reading a data folder without a broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from amqp10broker.cli import main
from amqp10broker.errors import FolderInUse
from amqp10broker.storage.check import Checked, check_folder
from amqp10broker.storage.disk import OsDisk
from amqp10broker.storage.folder import DataFolder, inspect_data_folder, open_data_folder
from amqp10broker.storage.journal import Journal
from amqp10broker.storage.logfile import LogFile
from amqp10broker.storage.record import Header, Purpose
from amqp10broker.storage.sequence import file_name

DISK = OsDisk()


def _log(path: Path, purpose: Purpose, number: int, records: int) -> None:
    file = LogFile(DISK, str(path), Header(purpose, number, 99 + number))
    file.make_durable()
    for index in range(records):
        file.append(1, 1, index, (b"payload of record",))
    file.write()
    file.close()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with a journal of four files, a catalog, and a stream of two segments."""
    path = tmp_path / "data"
    folder = open_data_folder(DISK, str(path), "a test")
    journal = Journal(DISK, folder.journal, file_bytes_max=300)
    list(journal.recover())
    for index in range(20):
        journal.append(1, 1, index, [b"x" * 30])
    while (ticket := journal.write()) is not None:
        for fd in journal.fds_to_sync():
            DISK.sync(fd)
        journal.synced(ticket)
    journal.close()
    _log(path / "catalog" / "catalog.log", Purpose.CATALOG, 0, 3)
    (path / "catalog" / "catalog.log.new").write_bytes(b"half")
    (path / "streams" / "7").mkdir()
    (path / "streams" / "8.deleted").mkdir()
    (path / "streams" / "8.deleted" / "0.log").write_bytes(b"anything")
    _log(path / "streams" / "7" / "00000000000000000000.log", Purpose.STREAM, 0, 4)
    _log(path / "streams" / "7" / "00000000000000000004.log", Purpose.STREAM, 4, 2)
    folder.close()
    return path


def _check(path: Path) -> dict[str, Checked]:
    folder: DataFolder = inspect_data_folder(DISK, str(path))
    try:
        return {each.path: each for each in check_folder(DISK, folder)}
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
    assert rest == {
        "catalog/catalog.log": 3,
        "streams/7/00000000000000000000.log": 4,
        "streams/7/00000000000000000004.log": 2,
    }
    assert all(each.torn is None and each.fault is None for each in checked.values())
    assert all(each.bytes == (data / name).stat().st_size for name, each in checked.items())
    assert before == {file: file.read_bytes() for file in data.rglob("*") if file.is_file()}


def test_a_torn_end_is_no_fault_in_the_last_file_and_one_elsewhere(data: Path) -> None:
    for name in ("catalog/catalog.log", "streams/7/00000000000000000000.log"):
        path = data / name
        path.write_bytes(path.read_bytes()[:-5])
    checked = _check(data)
    assert checked["catalog/catalog.log"].torn is not None
    assert checked["catalog/catalog.log"].fault is None
    assert checked["catalog/catalog.log"].records == 2
    fault = checked["streams/7/00000000000000000000.log"].fault
    assert fault is not None
    assert "only the last file" in str(fault)


def test_the_file_before_an_unused_last_one_may_be_torn(data: Path) -> None:
    names = sorted(file.name for file in (data / "journal").iterdir())
    path = data / "journal" / names[-1]
    if path.stat().st_size > 32:
        number = int(names[-1].split(".")[0]) + 1
        (data / "journal" / file_name(number)).write_bytes(Header(Purpose.JOURNAL, number, 5).encode())
    else:
        path = data / "journal" / names[-2]
    path.write_bytes(path.read_bytes()[:-5])
    assert _check(data)[f"journal/{path.name}"].torn is not None


def test_damage_is_told_and_the_other_files_are_read(data: Path) -> None:
    path = data / "journal" / file_name(2)
    content = bytearray(path.read_bytes())
    content[150] ^= 4
    path.write_bytes(content)
    (data / "journal" / file_name(3)).unlink()
    checked = _check(data)
    fault = checked[f"journal/{file_name(2)}"].fault
    assert fault is not None
    assert fault.offset is not None
    assert fault.offset <= 150
    assert 0 < checked[f"journal/{file_name(2)}"].records < 6
    assert "missing" in str(checked[f"journal/{file_name(3)}"].fault)
    assert checked[f"journal/{file_name(4)}"].fault is None
    assert checked["catalog/catalog.log"].records == 3


def test_a_file_for_another_purpose_is_a_fault(data: Path) -> None:
    (data / "catalog" / "catalog.log").write_bytes((data / "journal" / file_name(1)).read_bytes())
    assert "purpose" in str(_check(data)["catalog/catalog.log"].fault)


def test_a_folder_in_use_is_refused(data: Path) -> None:
    folder = open_data_folder(DISK, str(data), "process 42")
    with pytest.raises(FolderInUse, match="process 42"):
        _check(data)
    folder.close()


# --- the command ----------------------------------------------------------------------------------


def test_the_command_says_of_each_file_whether_it_is_whole(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = data / "catalog" / "catalog.log"
    path.write_bytes(path.read_bytes()[:-5])
    assert main.main(["storage", "check", str(data)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "streams/7/00000000000000000004.log: 2 records, 124 bytes; whole" in lines
    (torn,) = [line for line in lines if line.startswith("catalog/")]
    assert torn.startswith("catalog/catalog.log: 2 records, 165 bytes; torn end of 41 bytes at offset 124")
    assert lines[-1].endswith(" bytes: no damage")
    assert " 28 records, " in lines[-1]


def test_the_command_ends_with_1_when_something_is_damaged(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = data / "journal" / file_name(1)
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    assert main.main(["storage", "check", str(data)]) == 1
    out = capsys.readouterr().out
    assert f"journal/{file_name(1)}: 0 records" in out
    assert "BAD at offset 32: the record is damaged (only the last" in out
    assert "truncate -s 32" in out
    assert out.splitlines()[-1].endswith("1 bad; a broker would refuse to start with this folder")
    assert main.main(["storage", "check", str(data), "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["damaged"] == 1
    assert document["files"][0]["fault"]["offset"] == 32
    assert document["files"][1] == {
        "path": f"journal/{file_name(2)}",
        "records": document["files"][1]["records"],
        "bytes": document["files"][1]["bytes"],
    }


def test_the_command_refuses_what_is_no_data_folder_or_in_use(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["storage", "check", str(tmp_path / "none")]) == 1
    assert "there is no such folder" in capsys.readouterr().err
    folder = open_data_folder(DISK, str(data), "process 42")
    assert main.main(["storage", "check", str(data)]) == 1
    assert "in use by process 42; stop that broker" in capsys.readouterr().err
    folder.close()
