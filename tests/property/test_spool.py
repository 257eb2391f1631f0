"""A queue, a spool and Spark's two logs, ended after any step: nothing is lost, a batch is always the same.

The model of the queue gives messages back that were not settled; the model of Spark writes an offset down,
runs the batch, writes down that it is done, and after a crash repeats what was written down and not done.
The spool is the real one, on a disk that fails, and that loses power at any call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from amqp10broker.spark.errors import SpoolError
from amqp10broker.spark.queue.link import SegmentFiller, message_ids, recall
from amqp10broker.spark.queue.source import QueueOffsets
from amqp10broker.spark.queue.spool import SpoolOwner, open_spool
from tests.support.disks import PowerLoss, SimDisk

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
        """A publisher that did not hear of its confirm."""
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
        """The next thing that Spark does, perhaps with a crash or a failing disk in the middle of it."""
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
            assert fault is not None
            self.crash(seed, fault[0] == "power")
        except SpoolError:
            assert fault is not None
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
        """A job that failed is planned and run again."""
        self._run()
        self.ran = False

    @precondition(lambda self: self.query is not None and len(self.ends) == self.done > 0)
    @rule()
    def write_down_a_batch_without_rows(self) -> None:
        """As Spark does when a watermark has moved: the offset before is then that of the newest segment."""
        assert self.query is not None
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
        """latestOffset; the end is written down; the batch before the last is committed."""
        assert self.query is not None
        assert self.initial is not None
        start = self.ends[-1] if self.ends else self.initial
        end = self.query.latest(start, rows_max)
        if end == start:
            return
        assert end["segment"] > start["segment"]
        self.ends.append(end)
        if len(self.ends) > 1:
            self.query.commit(self.ends[-2])

    def _run(self) -> None:
        """Plan and read the batch that is written down and not done."""
        assert self.query is not None
        assert self.initial is not None
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
        """Let everything run to its end: all that was published has been read."""
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
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestQueueToSpark = QueueToSpark.TestCase
TestQueueToSpark.settings = SETTINGS
TestQueueToSparkOnce = QueueToSparkOnce.TestCase
TestQueueToSparkOnce.settings = SETTINGS
