"""The real process on a disk whose syncs take as long as the test says: nobody else waits for them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingConnection

from tests.support.broker_process import REPOSITORY, BrokerProcess
from tests.support.pika_client import parameters

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]

PERSISTENT = BasicProperties(delivery_mode=2)


class Syncs:
    """Every sync of the broker and its helper waits while they are held."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def hold(self) -> None:
        self._path.touch()

    def let_go(self) -> None:
        self._path.unlink(missing_ok=True)


@pytest.fixture
def syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Syncs:
    shim = tmp_path / "held_syncs.so"
    source = REPOSITORY / "tests" / "support" / "held_syncs.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(shim))
    monkeypatch.setenv("SYNCS_HELD", str(tmp_path / "held"))
    return Syncs(tmp_path / "held")


@pytest.fixture
def slow_broker(tmp_path: Path, syncs: Syncs) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, "--data-dir", str(tmp_path / "data")) as broker:
        yield broker
        syncs.let_go()


def ping(client: BlockingConnection) -> None:
    """A message to a queue that is in memory only, and back."""
    channel = client.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_publish("", queue, b"ping")
    assert channel.basic_get(queue, auto_ack=True)[2] == b"ping"


def test_while_the_disk_syncs_what_one_client_has_declared_another_is_served(
    slow_broker: BrokerProcess, syncs: Syncs
) -> None:
    """Also what is published to it, a stream's first file and a stream that is deleted."""
    with (
        BlockingConnection(parameters(slow_broker)) as one,
        BlockingConnection(parameters(slow_broker)) as other,
    ):
        channel = one.channel()
        channel.confirm_delivery()
        channel.queue_declare("gone", durable=True, arguments={"x-queue-type": "stream"})
        channel.basic_publish("", "gone", b"x", PERSISTENT)
        syncs.hold()
        channel = one.channel()
        for kind in ("classic", "stream"):
            channel.queue_declare(kind, durable=True, arguments={"x-queue-type": kind})
            channel.basic_publish("", kind, b"x", PERSISTENT)
            ping(other)
        channel.queue_delete("gone")
        ping(other)
        syncs.let_go()
        channel.confirm_delivery()
        for kind in ("classic", "stream"):
            channel.basic_publish("", kind, b"y", PERSISTENT)
            assert channel.queue_declare(kind, passive=True).method.message_count == 2
