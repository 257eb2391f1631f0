"""The helper process that syncs: real files, a real process."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import socket
import struct
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from amqp10broker import syncing
from amqp10broker.errors import StorageFailed
from amqp10broker.runtime.broker import SLICE_NS
from amqp10broker.runtime.journal import journal_task as syncer_module
from amqp10broker.runtime.journal.journal_task import Committer, Syncer, open_syncer
from amqp10broker.storage.disk import Disk
from amqp10broker.storage.folder import open_data_folder
from amqp10broker.storage.journal import Journal
from tests.support.broker_process import BrokerProcess
from tests.support.trioclient import alongside


def _helper(of: int | str = "self") -> int:
    """Return the process number of a process's helper, whichever thread has started it."""
    found: set[int] = set()
    while not found:  # a thread that ends while we look leaves its children to another
        for file in Path(f"/proc/{of}/task").glob("*/children"):
            with suppress(FileNotFoundError, ProcessLookupError):
                for child in map(int, file.read_text().split()):
                    if b"syncing.py" in Path(f"/proc/{child}/cmdline").read_bytes():
                        found.add(child)
    (child,) = found
    return child


async def test_files_and_folders_are_synced_and_a_bad_descriptor_is_told(tmp_path: Path) -> None:
    disk = Disk()
    file = disk.create(str(tmp_path / "file"))
    folder = disk.open_folder(str(tmp_path))
    disk.write(file, 0, [b"x"])
    reading, writing = os.pipe()
    with trio.fail_after(60):
        async with open_syncer() as syncer:
            for _ in range(3):
                await syncer.sync([file, folder])
            # The system cannot sync a pipe.
            with pytest.raises(StorageFailed, match="cannot be synced: Invalid argument"):
                await syncer.sync([writing])
    for fd in (file, folder, reading, writing):
        os.close(fd)


async def test_more_files_are_synced_than_fit_into_one_request(tmp_path: Path) -> None:
    file = Disk().create(str(tmp_path / "file"))
    reading, writing = os.pipe()
    with trio.fail_after(60):
        async with open_syncer() as syncer:
            await syncer.sync([])
            await syncer.sync([file] * (2 * syncing.FDS_MAX + 1))
            with pytest.raises(StorageFailed, match="Invalid argument"):
                await syncer.sync([*[file] * (2 * syncing.FDS_MAX), writing])
            with pytest.raises(StorageFailed, match="Invalid argument"):
                await syncer.sync([writing, *[file] * syncing.FDS_MAX])
            # All is answered for: the next is not taken for one of those.
            await syncer.sync([file])
    for fd in (file, reading, writing):
        os.close(fd)


async def test_a_helper_that_dies_is_told_and_not_replaced(tmp_path: Path) -> None:
    fd = Disk().create(str(tmp_path / "file"))
    with trio.fail_after(60):
        async with open_syncer() as syncer:
            await syncer.sync([fd])
            os.kill(_helper(), signal.SIGKILL)
            with pytest.raises(StorageFailed, match="the helper process that syncs files"):
                await syncer.sync([fd])
            with pytest.raises(StorageFailed, match="start the broker again"):
                await syncer.sync([fd])
    os.close(fd)


async def test_a_cancelled_sync_does_not_answer_for_the_next(tmp_path: Path) -> None:
    fd = Disk().create(str(tmp_path / "file"))
    with trio.fail_after(60):
        async with open_syncer() as syncer:
            for _ in range(5):
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await syncer.sync([fd])
                await syncer.sync([fd])
            # An error of a cancelled one is told by the next.
            reading, writing = os.pipe()
            os.kill(_helper(), signal.SIGSTOP)
            async with alongside(partial(syncer.sync, [writing])):
                await trio.testing.wait_all_tasks_blocked()
            os.kill(_helper(), signal.SIGCONT)
            with pytest.raises(StorageFailed, match="Invalid argument"):
                await syncer.sync([fd])
    for each in (fd, reading, writing):
        os.close(each)


async def test_the_helper_is_deaf_to_signals_that_stop_a_service_and_ends_with_the_socket() -> None:
    ours, theirs = socket.socketpair()
    process = await trio.lowlevel.open_process(
        [sys.executable, "-I", "-S", syncing.__file__, str(theirs.fileno())], pass_fds=[theirs.fileno()]
    )
    theirs.close()
    ours.setblocking(False)
    with ours, trio.fail_after(60):
        syncer = Syncer(ours)
        reading, writing = os.pipe()
        with pytest.raises(StorageFailed):
            await syncer.sync([writing])  # it is up
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process.send_signal(number)
        with pytest.raises(StorageFailed, match="Invalid argument"):
            await syncer.sync([writing])
    with trio.fail_after(60):
        assert await process.wait() == 0
    os.close(reading)
    os.close(writing)


async def test_a_helper_that_cannot_be_started_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syncer_module.sys, "executable", "/nonexistent/python")
    with pytest.raises(StorageFailed, match="cannot be started: No such file"):
        async with open_syncer():
            raise AssertionError("it was started")


async def test_a_delay_is_added_for_benchmarks(tmp_path: Path) -> None:
    fd = Disk().create(str(tmp_path / "file"))
    with trio.fail_after(60):
        async with open_syncer(delay_ms=30) as syncer:
            began = trio.current_time()
            await syncer.sync([fd])
            assert trio.current_time() - began >= 0.03
    os.close(fd)


async def test_a_journal_on_a_real_disk_is_committed_and_comes_back(tmp_path: Path) -> None:
    disk = Disk()
    folder = open_data_folder(disk, str(tmp_path / "data"), "a test")
    journal = Journal(disk, folder.journal, folder.inventory.part("journal"), file_bytes_max=20_000)
    assert list(journal.recover()) == []
    with trio.fail_after(60):
        async with open_syncer() as syncer, trio.open_nursery() as nursery:
            committer = Committer(journal, syncer.sync, also=[folder.inventory])
            nursery.start_soon(committer.run)
            for batch in range(20):
                for number in range(50):
                    ticket, _, _ = journal.append(1, 1, 50 * batch + number, [b"head", bytes(100)])
                await committer.wait_durable(ticket)
            committer.stop()
    journal.close()
    folder.close()
    folder = open_data_folder(disk, str(tmp_path / "data"), "a test")
    journal = Journal(disk, folder.journal, folder.inventory.part("journal"), file_bytes_max=20_000)
    found = [record.index for batch in journal.recover() for record in batch]
    assert found == list(range(1000))
    assert journal.files > 5
    journal.close()
    folder.close()


@pytest.mark.skipif(
    tuple(map(int, platform.release().split(".")[:2])) < (6, 12) or platform.machine() != "x86_64",
    reason="only Linux 6.12 and later gives slices, and numbers of calls differ between machines",
)
def test_broker_and_helper_ask_for_short_slices(tmp_path: Path) -> None:
    """With short slices neither waits for the end of another's slice at each confirm."""
    with BrokerProcess(tmp_path, "--data-dir", str(tmp_path / "data")) as broker:
        for pid in (broker.pid, _helper(broker.pid)):
            found = ctypes.create_string_buffer(48)
            assert ctypes.CDLL(None).syscall(315, pid, found, len(found), 0) == 0
            policy, _, nice, _, slice_ns = struct.unpack_from("=IQiIQ", found, 4)
            assert (policy, nice, slice_ns) == (0, os.getpriority(os.PRIO_PROCESS, 0), SLICE_NS)
