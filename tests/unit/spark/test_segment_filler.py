"""Queues as a source: spool, segments, repeated messages, credit."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa
import pytest

from amqp10broker.client.blocking import BulkEnd
from amqp10broker.client.message import data_message, decode_message
from amqp10broker.client.session import ClientSession
from amqp10broker.protocols.amqp10.performatives import Accepted, Released
from amqp10broker.spark import queue_source
from amqp10broker.spark.errors import SpoolError, UnreadableMessage
from amqp10broker.spark.spool import QueueSpool, SpoolOwner, open_spool
from tests.support.disks import PowerLoss, SimDisk
from tests.unit.client.back_to_back import BackToBack

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


def a_filler(
    queue: FakeQueue, spool: QueueSpool, seen: queue_source.SeenIds | None = None
) -> queue_source.SegmentFiller:
    return queue_source.SegmentFiller(queue, spool, decode, seen, 2)


def held(spool: QueueSpool) -> list[list[str | None]]:
    return [queue_source.message_ids(spool, segment) for segment in spool.segments]


def test_messages_are_settled_when_their_segment_is_there(spool: QueueSpool) -> None:
    queue = FakeQueue("a", "b", "c")
    assert a_filler(queue, spool).take(2, 0.0)
    assert queue.said == ["gave 2", "settled 2"]
    assert held(spool) == [["a", "b"]]


def test_what_cannot_be_stored_goes_back(spool: QueueSpool) -> None:
    """A message that cannot be read must not affect others."""
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
    seen = queue_source.SeenIds()
    filler = a_filler(FakeQueue("a", "b", "c", "d"), spool, seen)
    filler.take_all_of(2, None)
    spool.remove_through(1, lambda segment: seen.of(segment.number))
    again = open_spool("/spools/orders", OWNER, disk=disk.after_kill(), lock_wait_s=0)
    found = queue_source.recall(again, 100, lambda segment: queue_source.message_ids(again, segment))
    assert found.fresh(["a", "d", "e"]) == [2]


def test_recall_forgets_beyond_the_window_also_on_the_disk(spool: QueueSpool) -> None:
    seen = queue_source.SeenIds()
    a_filler(FakeQueue(*"abcdef"), spool, seen).take_all_of(2, None)
    spool.remove_through(2, lambda segment: seen.of(segment.number))
    assert [file.number for file in spool.ids] == [1, 2]
    found = queue_source.recall(spool, 4, lambda segment: queue_source.message_ids(spool, segment))
    assert [file.number for file in spool.ids] == [2]
    assert found.fresh(["a", "c", "e"]) == [0]


def test_segments_are_divided_where_more_tasks_are_wanted(spool: QueueSpool) -> None:
    """The division is by record batches, of two rows here; a segment of one batch stays whole."""
    queue = FakeQueue(*"abcdefg")
    a_filler(queue, spool).take_all_of(6, None)
    whole = queue_source.parts(spool, spool.segments, None)
    assert [(part.first, part.stop) for part in whole] == [(0, None), (0, None)]
    divided = queue_source.parts(spool, spool.segments, 4)
    assert [(part.first, part.stop) for part in divided] == [(0, 1), (1, 2), (2, 3), (0, None)]


def test_offsets_name_spool_and_segment(spool: QueueSpool) -> None:
    queue = FakeQueue("a", "b", "c")
    offsets = queue_source.QueueOffsets(spool, a_filler(queue, spool), None, 10, None)
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
    """A repetition ignores the option's new value; without a new batch, the offset is the old one."""

    def offsets(wanted: int | None) -> queue_source.QueueOffsets:
        return queue_source.QueueOffsets(spool, a_filler(queue, spool), None, 10, wanted)

    queue = FakeQueue(*"abcdefgh")
    start = offsets(4).initial()
    end = offsets(4).latest(start, 8)
    assert end == {"spool": spool.id, "segment": 1, "parts": 4}
    for wanted in (None, 2, 4):
        again = offsets(wanted)
        assert len(queue_source.parts(spool, again.segments(start, end), end["parts"])) == 4
        assert again.latest(end, 8) == end
    queue.ready = ["i"]
    assert offsets(None).latest(end, 8)["parts"] == 1


PATH = "/spools/orders"


def a_disk(seed: int = 0) -> SimDisk:
    disk = SimDisk(seed)
    disk.make_folder("/spools")
    disk.sync(disk.open_folder("/"))
    return disk


def opened(disk: SimDisk, owner: SpoolOwner = OWNER, path: str = PATH) -> QueueSpool:
    return open_spool(path, owner, disk=disk, lock_wait_s=0)


def contents(spool: QueueSpool) -> dict[int, bytes]:
    return {segment.number: spool.read(segment) for segment in spool.segments}


def test_the_newest_segment_is_never_removed() -> None:
    """Its number must not be given again."""
    spool = opened(a_disk())
    for data in (b"1", b"2", b"3"):
        spool.append([data], 1)
    spool.remove_through(2)
    assert contents(spool) == {3: b"3"}
    spool.remove_through(9)
    assert contents(spool) == {3: b"3"}
    assert spool.append([b"4"], 1).number == 4


def test_a_range_with_a_segment_that_is_gone_is_refused() -> None:
    spool = opened(a_disk())
    for data in (b"1", b"2", b"3"):
        spool.append([data], 1)
    assert [segment.number for segment in spool.between(1, 3)] == [2, 3]
    assert spool.between(3, 3) == []
    spool.remove_through(1)
    with pytest.raises(SpoolError, match="segment 1 is gone"):
        spool.between(0, 3)
    with pytest.raises(SpoolError, match="segment 4 is gone"):
        spool.between(2, 4)


@pytest.mark.parametrize(
    "other",
    [
        SpoolOwner("stream", "invoices", "127.0.0.1:5672", ""),
        SpoolOwner("stream", "orders", "10.0.0.1:5672", ""),
        SpoolOwner("stream", "orders", "127.0.0.1:5672", "shop"),
        SpoolOwner("batch", "orders", "127.0.0.1:5672", ""),
    ],
)
def test_the_spool_of_somebody_else_is_refused(other: SpoolOwner) -> None:
    disk = a_disk()
    opened(disk).close()
    with pytest.raises(
        SpoolError, match="is the spool of a stream query of queue 'orders' at 127.0.0.1:5672"
    ):
        opened(disk, other)
    opened(disk)  # the lock was let go of


def test_a_folder_with_other_files_is_refused_and_left_alone() -> None:
    disk = a_disk()
    disk.make_folder(PATH)
    disk.overwrite(f"{PATH}/letter.tmp", b"dear")
    with pytest.raises(SpoolError, match="holds other files and no spool"):
        opened(disk)
    assert disk.names(PATH) == ["letter.tmp"]


def test_a_spool_without_the_folder_that_it_belongs_in_is_refused() -> None:
    """A file system that is not mounted must not become a spool on the local disk."""
    with pytest.raises(SpoolError, match="there is no folder /mnt/shared for the spool orders"):
        opened(a_disk(), path="/mnt/shared/orders")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"format": 1}', b"\xff"])
def test_a_damaged_manifest_is_refused(data: bytes) -> None:
    disk = a_disk()
    opened(disk).close()
    disk.overwrite(f"{PATH}/spool.json", data)
    with pytest.raises(SpoolError, match="spool.json is damaged"):
        opened(disk)


def test_message_ids_take_the_place_of_a_removed_segment() -> None:
    disk = a_disk()
    spool = opened(disk)
    spool.append([b"one"], 1)
    spool.append([b"two"], 1)
    spool.remove_through(1, lambda segment: bytes([segment.number]) * 32)
    (kept,) = spool.ids
    assert (kept.number, kept.count, kept.kind) == (1, 2, "ids")
    later = disk.after_kill()
    again = opened(later)
    assert again.ids == [kept]
    assert again.read(kept) == b"\x01" * 32
    again.remove_ids(kept)
    assert again.ids == []
    assert kept.name not in later.names(PATH)


def test_removals_that_a_loss_of_power_undid_leave_no_gap() -> None:
    """Whichever come back, the segments after the removed ones exist, without a gap before them."""
    disk = a_disk()
    spool = opened(disk)
    for number in range(1, 7):
        spool.append([b"%d" % number], 1)
    spool.remove_through(4)
    seen = set()
    for seed in range(200):
        again = opened(disk.after_power_loss(seed))
        numbers = [segment.number for segment in again.segments]
        assert numbers == list(range(numbers[0], 7))
        assert numbers[0] <= 5
        seen.add(numbers[0])
    assert len(seen) > 2


def _a_life(disk: SimDisk, told: list[tuple[int, bytes]]) -> None:
    """Open, append two segments, remove one, seal; gets each segment whose append returned."""
    spool = opened(disk)
    for data in (b"first segment", b"second segment"):
        segment = spool.append([data], 1)
        told.append((segment.number, data))
    spool.remove_through(1, lambda _: b"x" * 16)
    spool.seal()


def _calls_of_a_life() -> int:
    disk = a_disk()
    start = len(disk.calls)
    _a_life(disk, [])
    return len(disk.calls) - start


def _check_what_was_told(disk: SimDisk, told: list[tuple[int, bytes]]) -> None:
    spool = opened(disk)
    found = contents(spool)
    for number, data in told:
        if number == spool.newest or number not in (1,):
            assert found[number] == data
        else:  # the first may have been removed
            assert found.get(number, data) == data
    assert spool.newest >= len(told)
    assert spool.append([b"next"], 1).number == spool.newest


@pytest.mark.parametrize("end", [SimDisk.after_kill, lambda disk: disk.after_power_loss(1)])
def test_a_crash_at_every_call_loses_nothing_that_was_told(end: Callable[[SimDisk], SimDisk]) -> None:
    """The spool opens again, and has every segment for which append returned."""
    calls = _calls_of_a_life()
    assert calls > 40
    for number in range(calls):
        disk = a_disk(number)
        disk.lose_power_at = len(disk.calls) + number
        told: list[tuple[int, bytes]] = []
        with pytest.raises(PowerLoss):
            _a_life(disk, told)
        _check_what_was_told(end(disk), told)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failure_of_every_call_is_an_error_that_says_what_to_do(code: int) -> None:
    """No failure passes for success, and after a repair the spool has all acknowledged segments."""
    for number in range(_calls_of_a_life()):
        disk = a_disk(number)
        disk.fail[len(disk.calls) + number] = code
        told: list[tuple[int, bytes]] = []
        with pytest.raises(SpoolError, match="start the query again"):
            _a_life(disk, told)
        _check_what_was_told(disk.after_kill(), told)


def test_after_a_failed_write_nothing_more_is_written() -> None:
    """A number that may or may not be on the disk must not be given to other messages."""
    disk = a_disk()
    spool = opened(disk)
    disk.fail[len(disk.calls) + 3] = errno.EIO  # create, write, sync, then the rename
    with pytest.raises(SpoolError, match="cannot write"):
        spool.append([b"one"], 1)
    with pytest.raises(SpoolError, match="a write failed before"):
        spool.append([b"two"], 1)


def test_ids_seen_before_or_earlier_among_themselves_are_not_fresh() -> None:
    seen = queue_source.SeenIds()
    assert seen.fresh(["a", "b"]) is None
    seen.add(1, [queue_source.digest("a"), queue_source.digest("b")])
    assert seen.fresh(["b", "c", "c", "a", "d"]) == [1, 4]


def test_the_window_forgets_whole_segments_and_never_the_newest() -> None:
    seen = queue_source.SeenIds(window=3)
    assert seen.add(1, [queue_source.digest("a"), queue_source.digest("b")]) == []
    assert seen.add(2, [queue_source.digest("c")]) == []
    assert seen.add(3, [queue_source.digest("d")]) == [1]
    assert seen.fresh(["a", "b", "c", "d"]) == [0, 1]
    assert seen.add(4, [queue_source.digest(f"{number}") for number in range(9)]) == [2, 3]
    assert len(seen) == 9
    assert seen.fresh(["c", "d", "0"]) == [0, 1]


def test_an_id_that_came_again_is_remembered_by_its_later_segment() -> None:
    seen = queue_source.SeenIds(window=2)
    seen.add(1, [queue_source.digest("a")])
    seen.add(2, [queue_source.digest("a")])
    assert seen.add(3, [queue_source.digest("b")]) == [1]
    assert seen.fresh(["a"]) == []


def test_ids_of_a_segment_can_be_stored_and_taken_in_again() -> None:
    seen = queue_source.SeenIds()
    seen.add(7, [queue_source.digest("a"), queue_source.digest("b")])
    data = seen.of(7)
    again = queue_source.SeenIds()
    again.add(7, (data[at : at + 16] for at in range(0, len(data), 16)))
    assert again.fresh(["a", "b", "c"]) == [2]
    assert seen.of(8) == b""


ROOM = 100 * (queue_source.MESSAGE_COST_BYTES + 1000)


def came(grants: queue_source.CreditPacing, *sizes: int) -> int:
    kept = grants.keep(sizes)
    grants.end_grant()
    return kept


def test_large_messages_are_asked_for_one_by_one() -> None:
    grants = queue_source.CreditPacing(1000, ROOM)
    came(grants, *[1] * queue_source.FIRST_CREDIT)
    came(grants, ROOM // 2)
    grants.held_bytes = 0
    assert grants.next(100) == 1
    came(grants, 1000)
    assert grants.next(100) == 8


def test_many_tiny_messages_weigh_more_than_their_bytes() -> None:
    grants = queue_source.CreditPacing(1000, ROOM)
    assert grants.keep([1] * 1000) < 500


ROOM_LINK = 50_000
LARGE = 10_000


def filled(pair: BackToBack, session: ClientSession, sizes: list[int]) -> list[bytes]:
    made = [b"%d" % number + bytes(size) for number, size in enumerate(sizes)]
    sender = session.sender("q")
    keys = sender.send([data_message(body) for body in made])
    pair.carry()
    assert sender.take_outcomes(keys) == [Accepted()] * len(made)
    return made


def bodies(payloads: Iterable[bytes]) -> list[bytes]:
    return [decode_message(payload).body for payload in payloads]


def attached(pair: BackToBack, session: ClientSession, grants: queue_source.CreditPacing) -> BulkEnd:
    end = session.receiver("q", end_type=BulkEnd)
    assert isinstance(end, BulkEnd)
    pair.carry()
    assert end.attached
    end.keep = grants.keep
    return end


@pytest.mark.parametrize("chunk_bytes", [7, 3000, 1 << 20])
def test_what_there_is_no_room_for_goes_back_in_order(chunk_bytes: int) -> None:
    """This holds for any number under way when the credit was taken back, and for any cut."""
    pair = BackToBack(chunk_bytes=chunk_bytes, frame_size_max_bytes=4096)
    session = pair.opened()
    messages = filled(pair, session, [1] * 20 + [LARGE] * 80)
    grants = queue_source.CreditPacing(1000, ROOM_LINK)
    end = attached(pair, session, grants)
    end.grant(300)
    pair.carry()
    kept = bodies(end.payloads)
    held = sum(len(payload) + queue_source.MESSAGE_COST_BYTES for payload in end.payloads)
    assert kept == messages[: len(kept)]
    assert 20 < len(kept) < 26
    assert ROOM_LINK <= held < ROOM_LINK + LARGE + queue_source.MESSAGE_COST_BYTES + 100
    assert grants.full
    assert end.credit == 200

    end.stop()
    assert not end.stopped
    pair.carry()
    assert end.stopped
    end.settle_all(end.surplus, Released())
    pair.carry()
    assert pair.broker.queue("q") == (100 - len(kept), len(kept))

    end.settle_all(end.unsettled, Accepted())
    end.payloads.clear()
    grants.held_bytes = 0
    end.grant(3)
    pair.carry()
    assert bodies(end.payloads) == messages[len(kept) : len(kept) + 3]
    assert pair.broker.queue("q") == (100 - len(kept) - 3, 3)


def test_messages_that_come_after_the_stop_are_not_kept() -> None:
    """They were under way, and the credit that covered them has been taken back meanwhile."""
    pair = BackToBack()
    session = pair.opened()
    messages = filled(pair, session, [LARGE] * 3)
    grants = queue_source.CreditPacing(1000, LARGE)
    end = attached(pair, session, grants)
    end.grant(2)
    up = pair.client.take_output()
    pair.broker.receive(up)
    coming = pair.broker.run()
    grants.keep([LARGE])
    assert grants.full
    end.stop()
    pair.client.receive(coming)
    assert pair.client.failure is None
    assert end.failure is None
    assert not end.stopped
    assert end.payloads == []
    pair.carry()
    assert end.stopped
    end.settle_all(end.surplus, Released())
    pair.carry()
    assert pair.broker.queue("q") == (3, 0)
    grants.held_bytes = 0
    end.grant(1)
    pair.carry()
    assert bodies(end.payloads) == messages[:1]
