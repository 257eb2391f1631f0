"""From a model of a queue into a spool: what is settled, given back, bounded, remembered."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from amqp10broker.spark.errors import SpoolError, UnreadableMessage
from amqp10broker.spark.queue.link import SeenIds, SegmentFiller, message_ids, parts, recall
from amqp10broker.spark.queue.source import QueueOffsets
from amqp10broker.spark.queue.spool import QueueSpool, SpoolOwner, open_spool
from tests.support.disks import SimDisk

OWNER = SpoolOwner("stream", "orders", "127.0.0.1:5672", "")


class FakeQueue:
    """Messages by their ids, and what was done with them, as words."""

    def __init__(self, *ids: str, known: bool = True) -> None:
        self.losses = 0
        self.ready = list(ids)
        self.known = known
        self.said: list[str] = []
        self._out: list[str] = []

    def count(self) -> int | None:
        return len(self.ready) if self.known else None

    def receive(self, count: int, wait_s: float) -> Sequence[bytes]:
        self._out, self.ready = self.ready[:count], self.ready[count:]
        self.said.append(f"gave {len(self._out)}")
        return [each.encode() for each in self._out]

    def settle(self) -> None:
        self.said.append(f"settled {len(self._out)}")

    def drop(self) -> None:
        self.said.append(f"took back {len(self._out)}")
        self.ready = self._out + self.ready

    def close(self) -> None:
        self.said.append("closed")


def decode(payloads: Sequence[bytes]) -> pa.RecordBatch:
    ids = [each.decode() for each in payloads]
    if "bad" in ids:
        raise UnreadableMessage("orders", ids.index("bad"), "no section begins at byte 0")
    return pa.RecordBatch.from_arrays([pa.array(ids, pa.string())], ["messageId"])


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.make_folder("/spools")
    return disk


@pytest.fixture
def spool(disk: SimDisk) -> QueueSpool:
    return open_spool("/spools/orders", OWNER, disk=disk, lock_wait_s=0)


def a_filler(queue: FakeQueue, spool: QueueSpool, seen: SeenIds | None = None) -> SegmentFiller:
    return SegmentFiller(queue, spool, decode, seen, 2)


def held(spool: QueueSpool) -> list[list[str | None]]:
    return [message_ids(spool, segment) for segment in spool.segments]


def test_messages_are_settled_when_their_segment_is_there(spool: QueueSpool) -> None:
    queue = FakeQueue("a", "b", "c")
    assert a_filler(queue, spool).take(2, 0.0)
    assert queue.said == ["gave 2", "settled 2"]
    assert held(spool) == [["a", "b"]]


def test_what_cannot_be_stored_goes_back(spool: QueueSpool) -> None:
    """A message that cannot be read must not take others along."""
    queue = FakeQueue("a", "bad")
    with pytest.raises(UnreadableMessage):
        a_filler(queue, spool).take(5, 0.0)
    assert queue.said == ["gave 2", "took back 2"]
    assert queue.ready == ["a", "bad"]
    assert spool.newest == 0


@pytest.mark.parametrize("found_out", ["when settling", "at the next receive"])
def test_what_comes_again_does_not_take_the_place_of_the_rest(spool: QueueSpool, found_out: str) -> None:
    """A connection is lost: the first message comes again, and still the last one is taken."""

    class Losing(FakeQueue):
        def settle(self) -> None:
            super().settle()
            if found_out == "when settling":
                self.lose()

        def receive(self, count: int, wait_s: float) -> Sequence[bytes]:
            if found_out == "at the next receive" and self.said:
                self.lose()
            return super().receive(count, wait_s)

        def lose(self) -> None:
            if not self.losses:
                self.losses += 1
                self.ready = ["a", *self.ready]

    filler = a_filler(Losing("a", "b", "c"), spool)
    filler.take_all_of(1, None)
    assert held(spool) == [["a"], ["a"], ["b"], ["c"]]


def test_recall_takes_in_segments_and_ids_of_removed_ones(spool: QueueSpool, disk: SimDisk) -> None:
    seen = SeenIds()
    filler = a_filler(FakeQueue("a", "b", "c", "d"), spool, seen)
    filler.take_all_of(2, None)
    spool.remove_through(1, lambda segment: seen.of(segment.number))
    again = open_spool("/spools/orders", OWNER, disk=disk.after_kill(), lock_wait_s=0)
    found = recall(again, 100, lambda segment: message_ids(again, segment))
    assert found.fresh(["a", "d", "e"]) == [2]


def test_recall_forgets_beyond_the_window_also_on_the_disk(spool: QueueSpool) -> None:
    seen = SeenIds()
    a_filler(FakeQueue(*"abcdef"), spool, seen).take_all_of(2, None)
    spool.remove_through(2, lambda segment: seen.of(segment.number))
    assert [file.number for file in spool.ids] == [1, 2]
    found = recall(spool, 4, lambda segment: message_ids(spool, segment))
    assert [file.number for file in spool.ids] == [2]
    assert found.fresh(["a", "c", "e"]) == [0]


def test_segments_are_divided_where_more_tasks_are_wanted(spool: QueueSpool) -> None:
    """By record batches, of two rows here; a segment of one batch is not divided."""
    queue = FakeQueue(*"abcdefg")
    a_filler(queue, spool).take_all_of(6, None)
    whole = parts(spool, spool.segments, None)
    assert [(part.first, part.stop) for part in whole] == [(0, None), (0, None)]
    divided = parts(spool, spool.segments, 4)
    assert [(part.first, part.stop) for part in divided] == [(0, 1), (1, 2), (2, 3), (0, None)]


def test_offsets_name_spool_and_segment(spool: QueueSpool) -> None:
    """An offset of another spool, or beyond what is there, is refused."""
    queue = FakeQueue("a", "b", "c")
    offsets = QueueOffsets(spool, a_filler(queue, spool), None, 10, None)
    start = offsets.initial()
    assert start == {"spool": spool.id, "segment": 0, "parts": 1}
    end = offsets.latest(start, 2)
    assert end == {"spool": spool.id, "segment": 1, "parts": 1}
    assert [segment.number for segment in offsets.segments(start, end)] == [1]
    with pytest.raises(SpoolError, match="belongs to another spool"):
        offsets.latest({"spool": "another", "segment": 0}, 2)
    with pytest.raises(SpoolError, match="has read up to segment 9, and the newest here is 1"):
        offsets.segments(start, {"spool": spool.id, "segment": 9})
    offsets.close()
    assert queue.said[-1] == "closed"


def test_a_batch_is_cut_as_it_was_when_it_was_planned(spool: QueueSpool) -> None:
    """Whatever the option says when it is repeated; without a new batch, the offset is the old one."""

    def offsets(wanted: int | None) -> QueueOffsets:
        return QueueOffsets(spool, a_filler(queue, spool), None, 10, wanted)

    queue = FakeQueue(*"abcdefgh")
    start = offsets(4).initial()
    end = offsets(4).latest(start, 8)
    assert end == {"spool": spool.id, "segment": 1, "parts": 4}
    for wanted in (None, 2, 4):
        again = offsets(wanted)
        assert len(parts(spool, again.segments(start, end), end["parts"])) == 4
        assert again.latest(end, 8) == end
    queue.ready = ["i"]
    assert offsets(None).latest(end, 8)["parts"] == 1
