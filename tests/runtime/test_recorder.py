"""Recording inside a running broker: who is looked at, what a slow helper costs, what ends a recording."""

from __future__ import annotations

import json
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, Self

import pytest
import trio

from amqp10broker.errors import BrokerError
from amqp10broker.observe.flow import Observer
from amqp10broker.observe.flow_events import NO_REASON, PACK, EventKind, EventRing
from amqp10broker.observe.recording import LinkName, RecordingError, numbered
from amqp10broker.operations.snapshot import document
from amqp10broker.protocols.amqp091.methods import ChannelClose, QueueDeclare, QueueDeclareOk
from amqp10broker.protocols.amqp10.performatives import Attach
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.observe import flow_sampler, recorder
from amqp10broker.runtime.observe.flow_sampler import FlowSampler
from amqp10broker.runtime.observe.recorder import RecorderProcess
from amqp10broker.runtime.observe.recorder_child import END, EVENTS, FRAME, NOTE, RUN
from amqp10broker.runtime.queues.queue_task import QueueTask
from amqp10broker.sessions.diagnosis.wait_reasons import Wait
from tests.runtime.conftest import LogRecorder
from tests.support import trioclient091
from tests.support.declaring import declare as propose_declare
from tests.support.declaring import remove
from tests.support.rawframes import attach_sender, transfer
from tests.support.trioclient import connect, pipe_pair, queue_counts, running_broker, settle_down
from tests.support.trioclient091 import Client091, message
from tests.support.watching import Event, reasons, total

FOLDER = "/recording"
HELD_NS = 7_000_000_000


class Helper:
    """In place of the process that writes: keeps what it is sent, as long as nobody stops it.

    Attributes:
        frames: kind, payload and the count of dropped events of each.
        goes_on: not set: it takes nothing.
        answers: what it says, as a memory channel; its end is that of the process.
        taken: run ids that its folder has.
    """

    def __init__(self) -> None:
        self.frames: list[tuple[int, bytes, int]] = []
        self.rows: list[dict[str, Any]] = []
        self.begun: dict[str, Any] = {}
        self.taken: set[str] = set()
        self.run_inline = trio.Event()
        self.run_inline.set()
        self.error: RecordingError | None = None
        self.closed = False
        self.says, self._answers = trio.open_memory_channel[dict[str, Any]](10)
        self._unsent: deque[tuple[int, bytes, int]] = deque()

    async def start(self, folder: str, row: Mapping[str, Any]) -> Self:
        assert folder == FOLDER
        if self.error is not None:
            raise self.error
        self.rows.append(dict(row))
        self.begun = self.begin(row)
        return self

    def begin(self, row: Mapping[str, Any]) -> dict[str, Any]:
        numbers = (number for number in range(1, 1000) if numbered(row["run_id"], number) not in self.taken)
        run_id = numbered(row["run_id"], number := next(numbers))
        self.taken.add(run_id)
        return {"ready": True, "run_id": run_id, "number": number}

    async def send(self, kind: int, payload: bytes, dropped: int = 0) -> None:
        """As in the real process, a cancelled sender leaves its frame to the next sender."""
        self._unsent.append((kind, payload, dropped))
        await self.run_inline.wait()
        await trio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error
        while self._unsent:
            self._take(*self._unsent.popleft())

    def _take(self, kind: int, payload: bytes, dropped: int) -> None:
        self.frames.append((kind, payload, dropped))
        if kind == RUN:
            self.rows.append(json.loads(payload))
            self.says.send_nowait(self.begin(self.rows[-1]))
        if kind == END:
            self.says.close()

    async def answer(self) -> dict[str, Any] | None:
        try:
            return await self._answers.receive()
        except trio.EndOfChannel:
            return None

    async def close(self, *, end_s: float = 0) -> None:
        self.closed = True

    # --- what tests ask ---------------------------------------------------------------------------

    def events(self, run: int = 0) -> list[Event]:
        runs: list[list[Event]] = [[]]
        for kind, payload, _ in self.frames:
            if kind == RUN:
                runs.append([])
            elif kind == EVENTS:
                runs[-1] += [Event(*columns) for columns in PACK.iter_unpack(payload)]
        return runs[run]

    def notes(self) -> dict[str, Any]:
        found: dict[str, Any] = {"queues": {}}
        for kind, payload, _ in self.frames:
            if kind == NOTE:
                note = json.loads(payload)
                found["queues"] |= note.pop("queues", {})
                found |= note
        return found

    def names(self) -> list[LinkName]:
        notes = [json.loads(payload) for kind, payload, _ in self.frames if kind == NOTE]
        return [LinkName(**link) for note in notes for link in note.get("links", [])]

    def protocols(self) -> list[list[str] | None]:
        """Return the last note of the connections of each run."""
        found: list[list[str] | None] = [None]
        for kind, payload, _ in self.frames:
            if kind == RUN:
                found.append(None)
            elif kind == NOTE:
                found[-1] = json.loads(payload).get("protocols", found[-1])
        return found


@pytest.fixture
def helper(monkeypatch: pytest.MonkeyPatch) -> Helper:
    fake = Helper()
    monkeypatch.setattr(recorder, "RecorderProcess", fake)
    return fake


@pytest.fixture
def rec_log(monkeypatch: pytest.MonkeyPatch) -> LogRecorder:
    log = LogRecorder()
    monkeypatch.setattr(recorder, "_log", log)
    return log


async def record(broker: Broker, every_ms: int = 50, run_id: str | None = "r") -> None:
    await broker.recordings.start(FOLDER, every_ms=every_ms, run_id=run_id)
    await settle_down()


async def looked(broker: Broker) -> None:
    """Wait for one more complete look at everything. Its duration depends on the duration of looks."""
    recorder = broker.recordings.recorder
    looks = recorder._looks
    enough = looks.count + 2  # the first may be under way
    while looks.count < enough:  # noqa: ASYNC110 (looks tell nobody that they are over)
        await trio.sleep(0.05)


async def publisher(broker: Broker) -> Any:
    client = await connect(broker).open()
    await client.call(Attach, attach_sender(0, "/queues/q"))
    await client.idle()
    return client


async def publish(client: Any, first: int, count: int) -> None:
    await client.send(*[transfer(0, number, b"x") for number in range(first, first + count)])
    assert await client.idle()


def declare(broker: Broker, name: str = "q") -> None:
    propose_declare(broker.catalog, "/", name)


async def connect091(broker: Broker) -> Client091:
    return await trioclient091.connect091(broker, pair=partial(pipe_pair, 10_000_000)).open()


# --- what is told ---------------------------------------------------------------------------------


async def test_a_session_is_told_from_the_beginning_of_the_recording(helper: Helper) -> None:
    """Earlier work does not count; a later session counts whole, even if it ends before a look."""
    async with running_broker() as broker:
        declare(broker)
        early = await publisher(broker)
        await publish(early, 0, 7)
        await record(broker)
        await publish(early, 7, 5)
        late = await connect(broker).open()
        await late.submit(attach_sender(0, "/queues/q"), *[transfer(0, number, b"x") for number in range(3)])
        await late.lose()
        assert queue_counts(broker, "q") == (15, 0)
        await broker.recordings.stop()
    events = helper.events()
    assert total(events, EventKind.LINK_IN) == 8
    assert helper.frames[-1][0] == END
    assert helper.closed


async def test_nobody_is_observed_after_the_end(broker: Broker, helper: Helper) -> None:
    """Sessions and channels are as they were before the beginning."""
    declare(broker)
    client = await publisher(broker)
    old = await connect091(broker)
    parts = [*client.task.parts.values(), *old.task.parts.values()]
    assert [part.on_wake for part in parts] == [None, None]
    await record(broker)
    assert None not in [part.on_wake for part in parts]
    await broker.recordings.stop()
    assert [part.on_wake for part in parts] == [None, None]
    assert broker.recordings.recorder is None
    await publish(client, 0, 3)
    assert total(helper.events(), EventKind.LINK_IN) == 0


async def test_queues_are_numbered_and_named(helper: Helper) -> None:
    """They are listed as long as they exist."""
    async with running_broker() as broker:
        declare(broker, "a")
        await record(broker, 50)
        declare(broker, "b")
        await looked(broker)
        remove(broker.catalog, "/", "a")
        await looked(broker)
        await broker.recordings.stop()
    named = {number: entry["name"] for number, entry in helper.notes()["queues"].items()}
    assert named == {"1": "a", "2": "b"}
    assert {event.handle for event in helper.events() if event.kind == EventKind.QUEUE} == {1, 2}


async def test_no_more_links_are_named_than_there_is_room_for(
    helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that attaches and detaches for ever does not fill the disk with names."""
    monkeypatch.setattr(recorder, "LINKS_NAMED_MAX", 2)
    async with running_broker() as broker:
        declare(broker)
        await record(broker)
        client = await publisher(broker)
        for handle in range(1, 5):
            await client.send(attach_sender(handle, "/queues/q"))
        await settle_down()
        await broker.recordings.stop()
    assert [name.handle for name in helper.names()] == [0, 1]


async def test_the_run_begins_when_the_helper_is_there(helper: Helper) -> None:
    """The helper's start time is not part of the run."""
    async with running_broker() as broker:
        await record(broker, 50)
        status = document(broker.recordings.view())
        await trio.sleep(1)
        await broker.recordings.stop()
    assert helper.notes()["began_ns"] == status["began_ns"] >= helper.rows[0]["began_ns"]
    assert (helper.rows[0]["sample_ms"], helper.rows[0]["run_id"]) == (50, "r")


async def test_a_reader_that_stands_still_is_told(helper: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    """AMQP 0-9-1: the entry covers the time from stop to resumption and names the awaited channel."""
    async with running_broker() as broker:
        client = await connect091(broker)
        await client.call(1, QueueDeclare("q", durable=True), QueueDeclareOk)
        await record(broker)
        post_all = QueueTask.post_all
        kept: list[Callable[[], None]] = []
        monkeypatch.setattr(
            QueueTask, "post_all", lambda queue, commands: kept.append(partial(post_all, queue, commands))
        )
        now_ns = [time.monotonic_ns()]
        for name in ("times", "_set_times"):
            monkeypatch.setattr(FlowSampler, name, lambda looks: (now_ns[0], now_ns[0]))
        await client.submit(1, message(1, "q", b"x") * 2000)
        assert client.task.reader_waits == Wait.CREDIT_FLOW.number
        await looked(broker)
        now_ns[0] += HELD_NS
        monkeypatch.setattr(QueueTask, "post_all", post_all)
        for post in kept:
            post()
        await settle_down()
        assert client.task.reader_waits == NO_REASON
        await looked(broker)
        now_ns[0] += HELD_NS
        await client.submit(1, message(1, "q", b"x"))
        assert queue_counts(broker, "q") == (2001, 0)
        await broker.recordings.stop()
    events = helper.events()
    assert total(events, EventKind.LINK_IN) == 2001
    assert reasons(events, EventKind.LINK_IN)[Wait.CREDIT_FLOW.number] == HELD_NS


async def test_an_alarm_stops_a_reader_too(helper: Helper) -> None:
    """It stops AMQP 0-9-1 connections that have published since."""
    async with running_broker() as broker:
        client = await connect091(broker)
        await client.call(1, QueueDeclare("q", durable=True), QueueDeclareOk)
        await record(broker, 50)
        broker.resource_monitor.set_alarm("memory", on=True)
        await client.submit(1, message(1, "q", b"x"))
        assert client.task.reader_waits == Wait.BLOCKED_BY_ALARM.number
        await trio.sleep(0.2)
        await broker.recordings.stop()
    assert Wait.BLOCKED_BY_ALARM.number in reasons(helper.events(), EventKind.CONNECTION_IN)


async def test_a_channel_that_ends_during_a_look_is_not_probed(
    broker: Broker, helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parts are gone when the reader that waited for its credit reports one more wake."""
    client = await connect091(broker)
    monkeypatch.setattr(flow_sampler, "TURN_NS", 0)
    await record(broker, 50)
    recorder = broker.recordings.recorder
    (channel,) = client.task.parts.values()
    original = FlowSampler._look_at_queues
    ends = trio.Event()

    def look(self: FlowSampler, *, whole: bool) -> Any:
        # The others' turn that a look makes when it has taken long comes just here.
        ends.set()
        for _ in range(1000):
            if not channel.inbox.closed:
                yield
        yield from original(self, whole=whole)

    monkeypatch.setattr(FlowSampler, "_look_at_queues", look)
    await ends.wait()
    await client.send(1, ChannelClose(200, "", 0, 0))
    await looked(broker)
    assert channel.inbox.closed
    assert channel.on_wake is None
    assert recorder.failed is None


# --- bounds ---------------------------------------------------------------------------------------


async def test_a_helper_that_does_not_follow_costs_events_and_nothing_else(
    helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients are served; dropped events are counted, noted in the file, and shown."""
    monkeypatch.setattr(recorder, "EventRing", lambda: EventRing(16))
    async with running_broker() as broker:
        declare(broker)
        await record(broker)
        helper.run_inline = trio.Event()
        client = await publisher(broker)
        for number in range(50):
            await publish(client, number, 1)
        status = document(broker.recordings.view())
        assert queue_counts(broker, "q") == (50, 0)
        assert status["events_dropped"] > 0
        helper.run_inline.set()
        await trio.sleep(0.5)
        assert total(helper.events(), EventKind.DROPPED) >= status["events_dropped"]
        await publish(client, 50, 1)
        last = await broker.recordings.stop()
    events = helper.events()
    told = [event for event in events if event.kind != EventKind.DROPPED]
    assert last.events == len(told) + last.events_dropped
    assert total(events, EventKind.DROPPED) == last.events_dropped == helper.frames[-1][2]


async def test_a_look_that_takes_long_is_not_repeated_soon(
    helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks take at most 2 % of the time."""
    began: list[float] = []

    async def look(self: FlowSampler) -> None:
        began.append(trio.current_time())
        self.cost_ns += 200_000_000

    async with running_broker() as broker:
        await record(broker, 50)
        monkeypatch.setattr(FlowSampler, "look_in_turns", look)
        await trio.sleep(25)
        await broker.recordings.stop()
    pauses = [round(later - earlier, 3) for earlier, later in pairwise(began)]
    assert pauses[:2] == [10, 10]


async def test_runs_that_follow_each_other_faster_than_they_are_written_lose_events(
    helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backlog for the helper is bounded, whatever an operator does."""
    monkeypatch.setattr(recorder, "BACKLOG_BYTES_MAX", 2_000)
    async with running_broker() as broker:
        declare(broker)
        await record(broker)
        helper.run_inline = trio.Event()
        client = await publisher(broker)
        for number in range(30):
            await publish(client, number, 1)
            broker.set_flow("max_link_credit", 100 + number, source="test")
        under_way = broker.recordings.recorder
        waiting = sum(len(payload) for kind, payload, _ in under_way._backlog if kind == EVENTS)
        assert waiting <= 2_000
        helper.run_inline.set()
        await trio.sleep(0.5)
        await publish(client, 30, 1)
        await broker.recordings.stop()
    assert [row["max_link_credit"] for row in helper.rows[1:]] == list(range(100, 130))
    dropped = [dropped for kind, _, dropped in helper.frames if kind in (RUN, END)]
    told = sum(len(helper.events(run)) for run in range(31))
    notes = sum(total(helper.events(run), EventKind.DROPPED) for run in range(31))
    assert len(dropped) == 31
    assert sum(dropped) == under_way._ring.dropped >= notes > 0
    in_files = told - sum(
        event.kind == EventKind.DROPPED for run in range(31) for event in helper.events(run)
    )
    assert in_files + sum(dropped) == under_way._ring.offered


# --- runs -----------------------------------------------------------------------------------------


async def test_another_setting_begins_another_run(helper: Helper) -> None:
    """Earlier events belong to the first run; the next one has the given name with a number."""
    async with running_broker() as broker:
        declare(broker)
        await record(broker, 1000)
        client = await publisher(broker)
        await client.send(*[transfer(0, number, b"x") for number in range(4)])
        await settle_down()  # no time passes, and nobody looks
        broker.set_flow("max_queue_credit", 99, source="test")
        await publish(client, 4, 3)
        status = document(await broker.recordings.stop())
    assert [row["run_id"] for row in helper.rows] == ["r", "r"], "the helper finds the number"
    assert [row["max_queue_credit"] for row in helper.rows] == [256, 99]
    assert [row["repetition"] for row in helper.rows] == [0, 0]
    assert [total(helper.events(run), EventKind.LINK_IN) for run in (0, 1)] == [4, 3]
    assert status["run_id"] == "r-2"
    began_ns = helper.rows[1]["began_ns"]
    assert all(event.ts_ns <= began_ns for event in helper.events(0))


async def test_a_repetition_is_one_of_the_same_configuration(helper: Helper) -> None:
    """Benchmarks count repetitions so; runs of others do not count."""
    async with running_broker() as broker:
        await record(broker)
        for credit in (99, 256, 99, 99):
            broker.set_flow("max_queue_credit", credit, source="test")
        await broker.recordings.stop()
    found = [(row["max_queue_credit"], row["repetition"]) for row in helper.rows]
    assert found == [(256, 0), (99, 0), (256, 1), (99, 1), (99, 2)]


async def test_a_setting_is_not_changed_if_the_next_run_cannot_be(
    helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is half done: otherwise the row of the run would be false."""
    async with running_broker() as broker:
        await record(broker)
        under_way = broker.recordings.recorder
        assert under_way is not None

        def refuse(run_id: str, config: object) -> None:
            raise ValueError("planted")

        monkeypatch.setattr(under_way, "_new_row", refuse)
        with pytest.raises(ValueError, match="planted"):
            broker.set_flow("max_queue_credit", 99, source="test")
        assert broker.config.flow.max_queue_credit == 256
        last = await broker.recordings.stop()
    assert last.run_id == "r"


async def test_what_the_connections_speak_is_noted(helper: Helper) -> None:
    """Each run has them, also for connections that end before a look or precede the run."""
    async with running_broker() as broker:
        declare(broker)
        await record(broker, 1000)
        settled = await connect091(broker)
        await trio.sleep(2.5)
        broker.set_flow("max_queue_credit", 99, source="test")
        short = await publisher(broker)
        await short.lose()
        broker.set_flow("max_queue_credit", 100, source="test")
        await settled.vanish()
        await trio.sleep(2.5)
        broker.set_flow("max_queue_credit", 101, source="test")
        await trio.sleep(2.5)
        await broker.recordings.stop()
    assert helper.protocols() == [["amqp091"], ["amqp091", "amqp10"], ["amqp091"], None]


# --- ends -----------------------------------------------------------------------------------------


async def test_the_recording_of_the_configuration_ends_with_the_broker(helper: Helper) -> None:
    """It ends after the connections, so their last events are in it."""
    async with running_broker(record=FOLDER, record_every=50, record_run="r") as broker:
        declare(broker)
        client = await publisher(broker)
        await publish(client, 0, 4)
    assert helper.frames[-1][0] == END
    assert total(helper.events(), EventKind.LINK_IN) == 4


@pytest.mark.parametrize("how", ["it says so", "its end", "sending"])
async def test_a_helper_that_fails_ends_the_recording_only(
    broker: Broker, helper: Helper, rec_log: LogRecorder, how: str
) -> None:
    declare(broker)
    client = await publisher(broker)
    await record(broker)
    if how == "it says so":
        await helper.says.send({"failed": "no room left", "written": 2})
    elif how == "its end":
        helper.says.close()
    else:
        helper.error = RecordingError("has ended")
    await publish(client, 0, 4)
    assert broker.recordings.recorder is None
    assert [part.on_wake for part in client.task.parts.values()] == [None]
    ((event, logged),) = rec_log.of("error")
    assert event == "recording ended: the broker goes on without"
    failed = broker.recordings.failed
    assert failed is not None
    assert document(failed) == logged
    assert failed.events_lost == failed.events - failed.events_written > 0
    assert failed.events_written == (2 if how == "it says so" else 0)
    assert broker.status()["broker"]["recording_failed"] == document(failed)
    with pytest.raises(BrokerError, match=f"is not recording.*failed: .*{failed.reason}"):
        await broker.recordings.stop()
    helper.error = None
    helper.says, helper._answers = trio.open_memory_channel[dict[str, Any]](10)
    await record(broker)
    assert broker.recordings.failed is None


@pytest.mark.parametrize("seldom", [False, True])
async def test_a_fault_of_ours_ends_the_recording_only(
    helper: Helper, rec_log: LogRecorder, monkeypatch: pytest.MonkeyPatch, seldom: bool
) -> None:
    """The fault may be in an observer, at a wake or in a look: clients are unaffected."""

    def fail(*arguments: Any, **named: Any) -> None:
        raise ZeroDivisionError("planted")

    async with running_broker() as broker:
        declare(broker)
        client, old = await publisher(broker), await connect091(broker)
        await record(broker, 1000 if seldom else 10)
        monkeypatch.setattr(Observer, "probe" if seldom else "observe", fail)
        await publish(client, 0, 4)
        await old.send(1, message(1, "q", b"x"))
        await old.idle()
        assert queue_counts(broker, "q") == (5, 0)
        assert broker.recordings.recorder is None
        events = [event for event, _ in rec_log.of("error")]
        assert events == [
            "an observer failed by a fault in the broker",
            "recording ended: the broker goes on without",
        ]


async def test_one_recording_at_a_time(helper: Helper) -> None:
    """Two may begin at the same moment."""
    refused: list[str] = []

    async def start(broker: Broker) -> None:
        try:
            await broker.recordings.start(FOLDER, every_ms=50, run_id=None)
        except BrokerError as error:
            refused.append(str(error))

    async with running_broker() as broker:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(start, broker)
            nursery.start_soon(start, broker)
        await start(broker)
    assert len(refused) == 2
    assert all("records already" in text for text in refused)


@pytest.mark.real_clock
async def test_who_is_cancelled_while_sending_leaves_no_half_frame() -> None:
    """The next sender continues where it stopped."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)  # a machine's own may be of megabytes
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        process = RecorderProcess(ours, None)  # type: ignore[arg-type]
        payloads = [bytes([number]) * 1_000_000 for number in range(2)]
        with trio.move_on_after(0.05) as limit:
            await process.send(EVENTS, payloads[0])
        assert limit.cancelled_caught, "the socket took a megabyte at once"
        received = bytearray()
        whole = 2 * (FRAME.size + 1_000_000)

        async def take() -> None:
            while len(received) < whole:
                await trio.lowlevel.wait_readable(theirs)
                received.extend(theirs.recv(65_536))

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(take)
                await process.send(EVENTS, payloads[1])
        frames = [FRAME.pack(EVENTS, len(payload), 0) + payload for payload in payloads]
        assert bytes(received) == b"".join(frames)
