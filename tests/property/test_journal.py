"""Files of the journal and of pages through faults of disks."""

from __future__ import annotations

import errno
import random
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from amqp10broker.config import Config
from amqp10broker.errors import DiskFull, StorageError
from amqp10broker.message.amqp10 import make_head
from amqp10broker.protocols.amqp10 import performatives
from amqp10broker.protocols.amqp10.connection import FrameReader
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.commands import NO_BOUND, Command, ConsumerRef, Credit, Deliver, Publish, Subscribe
from amqp10broker.queues.machine import TURN_MAX
from amqp10broker.queues.quorum.queue import QuorumQueue
from amqp10broker.sessions.amqp10.session import BrokerSession
from amqp10broker.spark.errors import SpoolError
from amqp10broker.spark.queue_source import QueueOffsets, SegmentFiller, message_ids, recall
from amqp10broker.spark.spool import SpoolOwner, open_spool
from tests.support.declaring import declare
from tests.support.disks import PowerLoss, SimDisk
from tests.support.examples import tried
from tests.support.journal_harness import LONG, Harness, new_disk, walk
from tests.support.queue_handles import QueueHost
from tests.support.rawframes import FrameCutter, attach_sender, frame, transfer
from tests.support.reply_addresses import new_reply_to
from tests.support.session_context import make_catalog, make_context

SIZES = st.sampled_from((0, 1, 20, 100, 480, 512, 1100))
# States after a loss of power that are looked at before one of them is gone on with.
STATES = 8
CODES = st.sampled_from((errno.ENOSPC, errno.EIO))


class JournalMachine(RuleBasedStateMachine):
    """Appends, commits in all their parts, cleaning, full disks, crashes."""

    @initialize(
        file_bytes_max=st.sampled_from((100, 600, 5000)),
        reserve_bytes=st.sampled_from((0, 1000)),
        seed=st.integers(0, 1000),
    )
    def begin(self, file_bytes_max: int, reserve_bytes: int, seed: int) -> None:
        self.world = Harness(new_disk(seed), file_bytes_max, reserve_bytes)
        self.world.recover()
        self.syncing: tuple[int, list[int]] | None = None

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=6), pieces=st.integers(1, 3))
    def append(self, sizes: list[int], pieces: int) -> None:
        for size in sizes:
            self.world.append(size, pieces)

    @precondition(lambda self: self.syncing is None)
    @rule(again=st.booleans())
    def write(self, again: bool) -> None:
        ticket = None
        with self._room_when_full():
            ticket = self.world.write()
            if again:
                ticket = self.world.write() or ticket
        if ticket is not None:
            self.syncing = (ticket, self.world.journal.fds_to_sync())

    @rule()
    def write_early(self) -> None:
        self.world.write_early()

    @precondition(lambda self: self.syncing is not None and self.syncing[1])
    @rule()
    def sync_one(self) -> None:
        self.world.disk.sync(self.syncing[1].pop(0))

    @precondition(lambda self: self.syncing is not None)
    @rule()
    def finish(self) -> None:
        ticket, fds = self.syncing
        for fd in fds:
            self.world.disk.sync(fd)
        self.world.synced(ticket)
        self.syncing = None

    @precondition(lambda self: self.syncing is None)
    @rule()
    def commit(self) -> None:
        with self._room_when_full():
            self.world.commit()

    @precondition(lambda self: self.syncing is None)
    @rule(code=CODES, after=st.integers(0, 2))
    def write_on_a_disk_that_fails(self, code: int, after: int) -> None:
        disk = self.world.disk
        disk.fail = {len(disk.calls) + after: code}
        try:
            ticket = self.world.write()
        except StorageError:
            ticket = None
        disk.fail = {}
        if ticket is not None:
            self.syncing = (ticket, self.world.journal.fds_to_sync())

    @precondition(lambda self: self.world.live)
    @rule(data=st.data())
    def consume(self, data: st.DataObject) -> None:
        live = sorted(self.world.live)
        # From the front, mostly: that is what queues do, and it makes files empty.
        count = data.draw(st.integers(1, len(live)))
        chosen = live[:count] if data.draw(st.booleans()) else live[::2]
        for message in chosen:
            self.world.consume(message)

    @precondition(lambda self: self.syncing is None)
    @rule(seed=st.integers(0, 10_000))
    def wander(self, seed: int) -> None:
        """Take several steps: single rules do not get far in the time."""
        with self._room_when_full():
            walk(self.world, random.Random(seed), 8)

    @rule()
    def clean(self) -> None:
        with self._room_when_full():
            self.world.clean()

    @rule()
    def mark(self) -> None:
        self.world.journal.mark()

    @rule()
    def read(self) -> None:
        self.world.read_all()

    @rule(left=st.sampled_from((0, 200, 5000)))
    def fill_the_disk(self, left: int) -> None:
        """Other files take all but so many bytes; recovery and reads give the same result."""
        self.world.disk.capacity = self.world.disk.used() + left

    @rule()
    def make_room(self) -> None:
        self.world.disk.capacity = None

    @rule()
    def kill(self) -> None:
        self.world.kill()
        self._restart()

    @rule(seed=st.integers(0, 10_000))
    def lose_power(self, seed: int) -> None:
        for other in range(STATES):
            self.world.check(self.world.disk.after_power_loss(other))
        self.world.disk = self.world.disk.after_power_loss(seed)
        self._restart()

    def _restart(self) -> None:
        with self._room_when_full() as full:
            self.world.recover()
        if full:
            self.world.recover()
        self.world.read_all()
        self.syncing = None

    @contextmanager
    def _room_when_full(self) -> Iterator[list[DiskFull]]:
        """An operation may end because there is no room; then the limit is lifted."""
        full: list[DiskFull] = []
        try:
            yield full
        except DiskFull as error:
            full.append(error)
            self.world.disk.capacity = None

    @invariant()
    def sizes_agree(self) -> None:
        if not hasattr(self, "world"):
            return
        journal = self.world.journal
        live = sum(self.world.copies[number].length for number in self.world.live.values())
        assert journal.live_bytes == live
        assert journal.size_bytes >= live
        assert journal.durable <= journal.ticket


TestJournal = JournalMachine.TestCase
TestJournal.settings = settings(
    max_examples=3000 if LONG else tried(100),
    stateful_step_count=60 if LONG else 40,
    deadline=None,
    # Without "explain", which takes minutes here.
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)


LINKS = {
    0: "/queues/q",
    1: "/queues/q",
    2: "/exchanges/amq.direct/nowhere",  # its messages are answered at once: they are released
    3: None,  # the anonymous terminus: each message has its own way
}
MAX_BYTES = 60

Step = tuple[str, int, int]
"""What kind of frame; the handle; the delivery-id."""

KINDS = (*["plain"] * 6, "settled", "bad", "large", "txn", "first", "aborted", "detach")


def encoded(step: Step) -> bytes:
    kind, handle, number = step
    fields: dict[str, Any] = {}
    if kind == "txn":
        fields["state"] = performatives.TransactionalState(txn_id=b"unknown!")
    elif kind in ("first", "aborted"):
        fields[{"first": "more", "aborted": "aborted"}[kind]] = True
    elif kind == "detach":
        return frame(0, performatives.Detach(handle=handle, closed=True))
    body = b"m" * (MAX_BYTES if kind == "large" else 3)
    if kind == "bad":
        return transfer(handle, number, b"\x00\x53\x75\xa0", raw=True)
    return transfer(handle, number, body, settled=kind == "settled", **fields)


def outcome(writes: Sequence[bytes]) -> dict[str, Any]:
    """Return all that the session sent to the queues for each link, and to the client."""
    catalog = make_catalog(QueueHost())
    declare(catalog, "/", "q")
    config = Config(max_message_size_bytes=MAX_BYTES)
    context = make_context(catalog, config, new_reply_to("client"), object())
    begin = performatives.Begin(next_outgoing_id=0, incoming_window=1_000, outgoing_window=1_000)
    session = BrokerSession(0, begin, context, frame_size_max=4_096, alarm=False)
    reader, cutter = FrameReader(), FrameCutter()
    letters: list[Command] = []
    told: dict[int, set[str]] = {}  # those of an id that was used twice may be told together
    ends: list[Any] = []
    attaches = b"".join(
        attach_sender(handle, str(address), target=performatives.Target(address=address))
        for handle, address in LINKS.items()
    )
    for data in (attaches, *writes):
        for _, items in reader.read(data):
            session.receive(items)
        letters += [command for _, command in session.take_commands()]
        for got in cutter.feed(b"".join(session.take_output())):
            if isinstance(got.body, performatives.Disposition):
                last = got.body.first if got.body.last is None else got.body.last
                for number in range(got.body.first, last + 1):
                    told.setdefault(number, set()).add(str(got.body.state))
            elif isinstance(got.body, performatives.Detach | performatives.End):
                ends.append((type(got.body), getattr(got.body, "handle", None), got.body.error))
    published: dict[Any, list[Any]] = {}
    for letter in letters:
        if isinstance(letter, Publish):
            published.setdefault(letter.publisher.handle, []).extend(
                zip(letter.ids, letter.messages, strict=True)
            )
    return {"published": published, "told": told, "ends": ends}


def steps(*run: Step) -> list[Step]:
    """Begin with a frame by which the layout is learned."""
    return [("plain", 0, 100), *run]


@given(
    st.lists(
        st.tuples(st.sampled_from(KINDS), st.sampled_from((0, 0, 0, 1, 2, 3)), st.integers(0, 12)),
        max_size=30,
    )
)
@example(steps(("plain", 0, 1), ("bad", 0, 2), ("plain", 0, 1)))
@example(steps(("plain", 0, 1), ("plain", 0, 2), ("plain", 0, 1), ("plain", 0, 3)))
@example(steps(("plain", 0, 1), ("plain", 0, 2), ("plain", 0, 1), ("large", 0, 3)))
@example(steps(("plain", 0, 1), ("large", 0, 2), ("plain", 0, 1)))
@example(steps(("txn", 0, 1), ("txn", 0, 2), ("txn", 0, 1)))
@example(steps(("first", 0, 1), ("plain", 0, 1), ("bad", 0, 2), ("plain", 0, 3), ("plain", 0, 3)))
@example(steps(("plain", 2, 1), ("plain", 2, 2), ("plain", 2, 1), ("plain", 2, 1)))
@example(steps(("plain", 1, 1), ("plain", 0, 2), ("bad", 0, 3), ("plain", 0, 1)))
@example([("plain", 2, 0), ("plain", 2, 0), ("plain", 2, 0), ("plain", 2, 3)])
def test_one_write_has_the_outcome_of_single_frames(run: list[Step]) -> None:
    """The cuts between writes do not matter for faults, ids used again and parts of deliveries."""
    frames = [encoded(step) for step in run]
    assert outcome([b"".join(frames)]) == outcome(frames)


def test_what_stands_before_an_id_in_flight_is_published() -> None:
    """The second use of the id ends the session, and the first has gone to its queue."""
    run = steps(("plain", 0, 1), ("plain", 0, 2), ("plain", 0, 1), ("plain", 0, 3))
    got = outcome([b"".join(map(encoded, run))])
    (published,) = got["published"].values()
    assert [number for number, _ in published] == [100, 1, 2]
    assert [kind for kind, _, _ in got["ends"]] == [performatives.End]


HEAD = make_head(None, None, "", "q")


def quorum() -> QuorumQueue:
    return QuorumQueue("q", now_ms=0)


class Model:
    """One message at a time goes to the first of those that have credit, which is the last of them then."""

    def __init__(self) -> None:
        self.ready: deque[tuple[int, int]] = deque()
        self.rings: dict[int, deque[list[Any]]] = {}
        self.got: dict[ConsumerRef, list[int]] = {}

    def credit(self, ref: ConsumerRef, priority: int, credit: int, room: int) -> None:
        self.got[ref] = []
        self.rings.setdefault(priority, deque()).append([ref, credit, room])
        self.serve()

    def publish(self, messages: list[tuple[int, int]]) -> None:
        self.ready += messages
        self.serve()

    def serve(self) -> None:
        while self.ready and self.rings:
            ring = self.rings[max(self.rings)]
            first = ring.popleft()
            number, size = self.ready.popleft()
            self.got[first[0]].append(number)
            first[1] -= 1
            first[2] -= size
            if first[1] and first[2] > 0:
                ring.append(first)
            elif not ring:
                del self.rings[max(self.rings)]


KINDS_ROTATION = pytest.mark.parametrize(
    "make", [lambda: ClassicQueue("q", durable=False), quorum], ids=["classic", "quorum"]
)


def steps_of(consumers: int, credit_max: int) -> Any:
    """Draw consumers that come with credit, and publishes as lists of message sizes."""
    asked = st.tuples(
        st.sampled_from([0, 0, 0, 1]),
        st.integers(1, credit_max),
        st.one_of(st.just(NO_BOUND), st.integers(1, 400)),
    )
    publish = st.lists(st.integers(0, 50), min_size=1, max_size=120)
    return st.tuples(st.just(consumers), st.lists(st.one_of(asked, publish), min_size=1, max_size=25))


@KINDS_ROTATION
@given(given=st.one_of(steps_of(8, 60), steps_of(25, 15)))
@settings(max_examples=tried(150), deadline=None)
def test_each_message_goes_to_the_next_in_rotation(make: Any, given: tuple[int, list[Any]]) -> None:
    """Seed 001: round robin holds among few consumers, or consumers that ask for few at a time."""
    consumers, steps = given
    queue, model, party = make(), Model(), new_reply_to("s")
    publisher, published = party.publisher(), 0
    got: dict[ConsumerRef, list[int]] = {}
    for step in steps:
        if isinstance(step, list):
            ids = range(published, published + len(step))
            queue.apply(Publish(publisher, ids, [(HEAD, bytes(size)) for size in step], True), 0)
            model.publish(list(zip(ids, step, strict=True)))
            published += len(step)
        elif len(model.got) < consumers:
            priority, credit, room = step
            ref = party.consumer()
            queue.apply(Subscribe(ref, settled=False, priority=priority), 0)
            queue.apply(Credit(ref, 0, credit, drain=False, seen=0, room=room), 0)
            model.credit(ref, priority, credit, room)
        for effect in queue.take_effects().get(party.id, []):
            if isinstance(effect, Deliver):
                got.setdefault(effect.consumer, []).extend(effect.keys)
    assert got == {ref: numbers for ref, numbers in model.got.items() if numbers}
    assert queue.ready == len(model.ready)


@KINDS_ROTATION
@pytest.mark.parametrize("batch", [1, 7, 40, 2000])
def test_many_consumers_that_ask_for_many_have_had_as_much_within_a_turn(make: Any, batch: int) -> None:
    """Each batch is cut into few parts, and the next batch goes to the next consumers."""
    queue, party = make(), new_reply_to("s")
    got = {party.consumer(): 0 for _ in range(30)}
    for ref in got:
        queue.apply(Subscribe(ref, settled=False), 0)
        queue.apply(Credit(ref, 0, 1000, drain=False, seen=0), 0)
    publish = Publish(party.publisher(), range(batch), [(HEAD, b"")] * batch, True)
    for _ in range(2000 // batch):
        queue.apply(publish, 0)
        for effect in queue.take_effects().get(party.id, []):
            if isinstance(effect, Deliver):
                got[effect.consumer] += len(effect.keys)
    assert sum(got.values()) == 2000 // batch * batch
    assert max(got.values()) - min(got.values()) <= TURN_MAX


PATH = "/spools/orders"
OWNER = SpoolOwner("stream", "orders", "127.0.0.1:5672", "")
WINDOW = 1_000_000


class ModelQueue:
    """A queue that gives back, to their places, what was received and not settled."""

    def __init__(self) -> None:
        self.ready: list[int] = []
        self.unsettled: list[int] = []
        self.settling_is_lost = False
        self.losses = 0

    def count(self) -> int | None:
        return len(self.ready)

    def receive(self, count: int, wait_s: float) -> Sequence[bytes]:
        assert not self.unsettled
        self.unsettled, self.ready = self.ready[:count], self.ready[count:]
        return [b"%d" % number for number in self.unsettled]

    def settle(self) -> None:
        if self.settling_is_lost:
            self.losses += 1
            self.drop()
        self.unsettled = []
        self.settling_is_lost = False

    def drop(self) -> None:
        self.ready = self.unsettled + self.ready
        self.unsettled = []

    def close(self) -> None:
        self.drop()


def decode(payloads: Sequence[bytes]) -> pa.RecordBatch:
    """Message-id and body are the number; every seventh message has no message-id."""
    ids = [None if int(each) % 7 == 6 else f"m{each.decode()}" for each in payloads]
    return pa.RecordBatch.from_arrays(
        [pa.array(ids, pa.string()), pa.array(list(payloads), pa.binary())], ["messageId", "body"]
    )


class QueueToSpark(RuleBasedStateMachine):
    """Without deduplication: at least once."""

    deduplicate = False

    @initialize(seed=st.integers(0, 1000))
    def begin(self, seed: int) -> None:
        self.disk = SimDisk(seed)
        self.disk.make_folder("/spools")
        self.disk.sync(self.disk.open_folder("/"))
        self.queue = ModelQueue()
        self.published = 0
        # Spark's checkpoint: begin, ends of batches, and how many of them are done.
        self.initial: dict[str, Any] | None = None
        self.ends: list[dict[str, Any]] = []
        self.done = 0
        self.rows: dict[int, list[int]] = {}
        self.query: QueueOffsets | None = None
        self.ran = False
        self.crashes = 0
        self.settlings_lost = 0
        self.repeated = 0

    # --- what the world does --------------------------------------------------------------------------

    @rule(count=st.integers(1, 12))
    def publish(self, count: int) -> None:
        self.queue.ready += range(self.published, self.published + count)
        self.published += count

    @precondition(lambda self: self.published > 0)
    @rule(which=st.integers(0, 10_000))
    def publish_again(self, which: int) -> None:
        """A publisher that missed its confirm publishes again."""
        self.queue.ready.append(which % self.published)
        self.repeated += 1

    @rule()
    def lose_the_next_settling(self) -> None:
        """The connection breaks between the sync and the settling."""
        self.queue.settling_is_lost = True
        self.settlings_lost += 1

    @rule(seed=st.integers(0, 10_000), power=st.booleans())
    def crash(self, seed: int, power: bool) -> None:
        self.disk = self.disk.after_power_loss(seed) if power else self.disk.after_kill()
        self.queue.drop()
        self.query = None
        self.ran = False
        self.crashes += 1

    # --- what Spark does ------------------------------------------------------------------------------

    @rule(
        fault=st.none() | st.tuples(st.sampled_from(["power", "kill", "fail"]), st.integers(0, 25)),
        seed=st.integers(0, 10_000),
        rows_max=st.none() | st.integers(1, 15),
    )
    def step(self, fault: tuple[str, int] | None, seed: int, rows_max: int | None) -> None:
        """Do Spark's next step, perhaps with a crash or a failing disk in the middle of it."""
        if fault is not None:
            kind, call = fault
            number = len(self.disk.calls) + call
            if kind == "fail":
                self.disk.fail[number] = 5  # EIO
            else:
                self.disk.lose_power_at = number
        try:
            self._step(rows_max)
        except PowerLoss:
            self.crash(seed, fault[0] == "power")
        except SpoolError:
            assert fault[0] == "fail"
            assert self.disk.fail.keys() & range(len(self.disk.calls)), "an error without a failing disk"
            if self.query is not None:
                self.query.close()
            self.crash(seed, power=False)
        finally:
            self.disk.lose_power_at = None
            self.disk.fail.clear()

    @precondition(lambda self: self.query is not None and not self.ran and len(self.ends) > self.done)
    @rule()
    def run_again(self) -> None:
        self._run()
        self.ran = False

    @precondition(lambda self: self.query is not None and len(self.ends) == self.done > 0)
    @rule()
    def write_down_a_batch_without_rows(self) -> None:
        """Spark does so when a watermark has moved: the offset before is then that of the newest segment."""
        self.ends.append(self.ends[-1])
        self.query.commit(self.ends[-2])

    def _step(self, rows_max: int | None) -> None:
        if self.query is None:
            self._start()
        elif len(self.ends) > self.done:
            if not self.ran:
                self._run()
            else:
                self.done += 1
                self.ran = False
        else:
            self._plan(rows_max)

    def _start(self) -> None:
        spool = open_spool(PATH, OWNER, disk=self.disk, lock_wait_s=0)
        seen = None
        if self.deduplicate:
            seen = recall(spool, WINDOW, lambda segment: message_ids(spool, segment))
        query = QueueOffsets(spool, SegmentFiller(self.queue, spool, decode, seen, 3), seen, 4, None)
        if self.initial is None:
            self.initial = query.initial()
        self.query = query

    def _plan(self, rows_max: int | None) -> None:
        """Call latestOffset, write the end down, and commit the batch before the last."""
        start = self.ends[-1] if self.ends else self.initial
        end = self.query.latest(start, rows_max)
        if end == start:
            return
        assert end["segment"] > start["segment"]
        self.ends.append(end)
        if len(self.ends) > 1:
            self.query.commit(self.ends[-2])

    def _run(self) -> None:
        """Plan and read the batch that is written down and not yet done."""
        number = len(self.ends) - 1
        start = self.ends[-2] if number else self.initial
        spool = self.query.spool
        found: list[int] = []
        for segment in self.query.segments(start, self.ends[-1]):
            table = pa.ipc.open_file(pa.py_buffer(spool.read(segment))).read_all()
            rows = [int(body) for body in table.column("body").to_pylist()]
            assert len(rows) == segment.count > 0
            found += rows
        assert self.rows.setdefault(number, found) == found, "a replayed batch has other rows"
        self.ran = True

    def teardown(self) -> None:
        """Run to the end: each published message has been read."""
        if not hasattr(self, "queue"):
            return
        self.queue.settling_is_lost = False
        before = None
        while (
            before != (state := (len(self.ends), self.done, self.ran, self.query is None)) or self.queue.ready
        ):
            before = state
            self._step(None)
        read = Counter(number for rows in self.rows.values() for number in rows)
        assert set(read) == set(range(self.published)), "messages were lost"
        assert not self.queue.ready
        if self.deduplicate:
            again = [number for number, times in read.items() if times > 1 and number % 7 != 6]
            assert not again, f"came twice: {again}"
        elif not self.crashes and not self.settlings_lost:
            assert sum(read.values()) == self.published + self.repeated


class QueueToSparkOnce(QueueToSpark):
    """With deduplication: a message with a message-id comes exactly once."""

    deduplicate = True


SETTINGS = settings(
    max_examples=tried(60),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestQueueToSpark = QueueToSpark.TestCase
TestQueueToSpark.settings = SETTINGS
TestQueueToSparkOnce = QueueToSparkOnce.TestCase
TestQueueToSparkOnce.settings = SETTINGS
