"""The real process on a disk that is full to the last byte: all kinds of queue are consumed.

On a file system in memory where this user may mount one, and everywhere on a disk that plays one
(`tests.support.small_disk_serve`).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import pika
import pytest
from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import AMQPError

from tests.support.broker_process import BrokerProcess
from tests.support.pika_client import Connect, Inbox
from tests.support.small_disk_serve import TOTAL_BYTES

COUNT: Final = 300
BODY: Final = bytes(1000)
LARGE: Final = bytes(60_000)
HUGE: Final = bytes(6_000_000)
BATCH: Final = 10
PERSISTENT: Final = pika.BasicProperties(delivery_mode=2)
TRANSIENT: Final = pika.BasicProperties(delivery_mode=1)
KINDS: Final = ("classic", "quorum", "stream", "transient")


Connected = Callable[[BrokerProcess], BlockingConnection]


class Disk(Protocol):
    """Where the data folder is."""

    def start(self, directory: Path) -> BrokerProcess:
        """A broker on it; its log goes to `directory`."""

    def fill(self) -> None:
        """Others take all that is free."""


class PlayedDisk:
    def __init__(self, folder: Path) -> None:
        self._full = folder / "full"
        self._data = folder / "data"

    def start(self, directory: Path) -> BrokerProcess:
        program = ("-m", "tests.support.small_disk_serve", str(self._full))
        return BrokerProcess(directory, "--data-dir", str(self._data), program=program)

    def fill(self) -> None:
        self._full.touch()


class MountedDisk:
    """A file system in memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._filler = folder / "filler"

    def start(self, directory: Path) -> BrokerProcess:
        return BrokerProcess(directory, "--data-dir", str(self._folder / "data"), "--disk-free-limit", "0")

    def fill(self) -> None:
        with self._filler.open("ab", buffering=0) as file:
            while True:
                try:
                    file.write(bytes(4096))
                except OSError:
                    break
        found = os.statvfs(self._folder)
        assert found.f_bavail == 0


def _mount(folder: Path) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", f"size={TOTAL_BYTES}", "tmpfs", str(folder)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.fixture(params=["mounted", "played"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if request.param == "played" or not _mount(folder):
        yield PlayedDisk(folder)
    else:
        try:
            yield MountedDisk(folder)
        finally:
            subprocess.run(["umount", str(folder)], check=True)


def _queues(broker: BrokerProcess, connect: Connected) -> None:
    channel = connect(broker).channel()
    channel.confirm_delivery()
    for kind in (*KINDS, "held"):
        arguments = {"x-queue-type": "classic" if kind in ("transient", "held") else kind}
        channel.queue_declare(kind, durable=True, arguments=arguments)
    for kind in KINDS:
        for _ in range(COUNT):
            channel.basic_publish("", kind, BODY, TRANSIENT if kind == "transient" else PERSISTENT)
    channel.close()


def _publish_until_held(broker: BrokerProcess, connect: Connected) -> int:
    """Publish until even the space allocated beside the reserve is used; return the number."""
    channel = connect(broker).channel()
    published = 0
    while not _alarms(broker):
        for _ in range(BATCH):
            channel.basic_publish("", "held", LARGE, PERSISTENT)
        published += BATCH
    return published


def _consume(broker: BrokerProcess, connect: Connected, kind: str, count: int) -> None:
    channel = connect(broker).channel()
    channel.basic_qos(prefetch_count=50)
    arguments = {"x-stream-offset": "first"} if kind == "stream" else {}
    inbox = Inbox(channel, kind, arguments=arguments)
    for _ in range(count):
        (message,) = inbox.take()
        channel.basic_ack(message.tag)
    channel.close()
    if kind != "stream":
        broker.wait_until(lambda: _left(broker, kind) == COUNT - count, f"{kind} has been consumed")


def _left(broker: BrokerProcess, kind: str) -> int:
    found = broker.queue(kind)
    return int(found["messages_ready"]) + int(found["messages_unsettled"])


def test_consumers_go_on_and_what_they_settled_survives(disk: Disk, tmp_path: Path, connect: Connect) -> None:
    opened: list[BlockingConnection] = []

    def connected(broker: BrokerProcess) -> BlockingConnection:
        opened.append(connect(broker))
        return opened[-1]

    first = disk.start(_made(tmp_path / "first"))
    try:
        _queues(first, connected)
        disk.fill()
        # The first to find out that the disk is full is larger than all that is reserved.
        connected(first).channel().basic_publish("", "held", HUGE, PERSISTENT)
        first.wait_until(lambda: _alarms(first) == ["disk"], "the disk counts as full")
        for kind in KINDS:
            _consume(first, connected, kind, COUNT if kind in ("stream", "transient") else COUNT // 2)
        assert _alarms(first) == ["disk"]
    finally:
        _stop(first, opened)
    # And a start on the same full disk.
    disk.fill()
    second = disk.start(_made(tmp_path / "second"))
    try:
        for kind in ("classic", "quorum"):
            second.wait_until(lambda kind=kind: _left(second, kind) == COUNT // 2, f"{kind} is there")
        assert _left(second, "transient") == _left(second, "held") == 0
        channel = connected(second).channel()
        for kind in ("classic", "quorum"):
            inbox = Inbox(channel, kind)
            channel.basic_ack(inbox.take(COUNT // 2)[-1].tag, multiple=True)
            second.wait_until(lambda kind=kind: _left(second, kind) == 0, f"{kind} is empty")
        published = _publish_until_held(second, connected)
        # Nobody else makes room: what is acknowledged does, and then what had to wait comes, too.
        inbox = Inbox(channel, "held")
        for _ in range(published):
            channel.basic_ack(inbox.take()[0].tag)
        second.wait_until(lambda: not _alarms(second), "there is room again")
        channel = connected(second).channel()
        channel.confirm_delivery()
        channel.basic_publish("", "quorum", BODY, PERSISTENT)
    finally:
        _stop(second, opened)


def _alarms(broker: BrokerProcess) -> list[str]:
    found: list[str] = broker.status()["broker"]["alarms"]
    return found


def _stop(broker: BrokerProcess, opened: list[BlockingConnection]) -> None:
    """Stop in order; the log reports the full disk, and no other fault."""
    broker.terminate()
    assert broker.wait_ended() == 0
    faults = [entry for entry in broker.log if entry["level"] in ("error", "critical")]
    for each in opened:
        with suppress(AMQPError):
            each.close()  # it hears that the broker is gone
    assert all(entry["event"].startswith("the disk is full") for entry in faults), faults


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
