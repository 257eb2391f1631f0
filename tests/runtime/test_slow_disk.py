"""Nothing in the event loop waits for the disk while clients are served: the helper that syncs does."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock

from amqp10broker.metadata import catalog
from amqp10broker.metadata.queue_requests import DeleteQueue
from amqp10broker.runtime.broker import Broker
from amqp10broker.storage import entry_log
from tests.support.declaring import declare
from tests.support.disks import SimDisk
from tests.support.node import CLASSIC, CONFIG, FOLDER, QUORUM, STREAM, History, Kind, Node, NoMeter, Seat

SYNC_S = 5.0


class SlowNode(Node):
    """Each sync of the helper takes `SYNC_S`; one in the event loop is noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.helping = self.served = False
        self.in_loop: list[str] = []
        sync = SimDisk.sync

        def noting(disk: SimDisk, fd: int) -> None:
            if self.served and not self.helping:
                self.in_loop.append(disk._open[fd][1])
            sync(disk, fd)

        monkeypatch.setattr(SimDisk, "sync", noting)

    async def sync(self, fds: Sequence[int]) -> None:
        theirs = [self.disk.duplicate(fd) for fd in fds]
        await trio.sleep(SYNC_S)
        self.helping = True
        for fd in theirs:
            self.disk.sync(fd)
            self.disk.close(fd)
        self.helping = False

    def serve(self, seconds: float, rng: random.Random) -> None:
        async def work() -> None:
            async with Broker(CONFIG, meter=NoMeter()) as broker:
                self.served = True
                seats = {}
                while trio.current_time() < seconds:
                    for kind in (CLASSIC, QUORUM, STREAM):
                        self._work_on(broker, kind, seats, rng)
                    await trio.sleep(1)
                self.served = False

        trio.run(work, clock=MockClock(autojump_threshold=0))

    def _work_on(self, broker: Broker, kind: Kind, seats: dict[str, Seat], rng: random.Random) -> None:
        self.made += 1
        name = f"{kind.name}{self.made}"
        arguments = {"x-queue-type": kind.name, **dict(kind.arguments)}
        if kind is STREAM:
            arguments["x-max-length-bytes"] = 3000
        queue, _ = declare(broker.catalog, "/", name, arguments=arguments)
        seats[name] = Seat(queue, History(kind))
        for each in rng.sample(sorted(seats), min(len(seats), 5)):
            seats[each].publish(10)
        if len(seats) > 10:
            gone = rng.choice(sorted(seats))
            broker.catalog.propose(DeleteQueue("/", gone))
            seats.pop(gone).end()


@pytest.mark.parametrize("seed", range(2))
def test_no_sync_is_in_the_event_loop_whatever_is_declared_published_and_deleted(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """There are new streams, files, folders and queue numbers, retention, and rewrites of catalog and
    inventory.
    """
    monkeypatch.setattr(entry_log, "SPARE_BYTES", 2000)
    monkeypatch.setattr(catalog, "NUMBERS_RESERVED", 7)
    node = SlowNode(monkeypatch)
    node.serve(120, random.Random(seed))
    called = set(node.disk.calls)
    for file in ("inventory.log", "catalog/catalog.log"):
        assert ("rename", f"{FOLDER}/{file}.new") in called
    assert [path for method, path in called if method == "unlink" and "/streams/" in path]
    assert node.in_loop == []
    assert not [name for name in node.disk.names(f"{FOLDER}/streams") if "deleted" in name]
