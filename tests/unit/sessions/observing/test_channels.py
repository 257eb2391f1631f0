"""Flow events of channels, sessions, connections and queues."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from amqp10broker.metadata.queue import QUORUM, QueueSpec
from amqp10broker.observe import flow
from amqp10broker.observe.flow_events import NO_REASON, EventKind
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.queues.commands import TimedOut
from amqp10broker.sessions.diagnosis.wait_reasons import Wait, WaitContext
from tests.support.channel_harness import ChannelEnds, Harness
from tests.support.clocked_queue import ClockedQueue
from tests.support.declaring import declare
from tests.support.scenario import Scenario
from tests.support.session_harness import FakeQueueTask
from tests.support.watching import Seen, reasons, total

S = 1_000_000_000


class Watched:
    """A channel with a queue `q` that is observed when the test says so, each time a millisecond later."""

    def __init__(self, **arguments: Any) -> None:
        self.channel: ChannelEnds = Harness().channel()
        self.world = self.channel.world
        declare(self.world.catalog, self.world.vhost, "q", arguments=arguments)
        self.seen = Seen()
        self.observer = self.observe_anew()
        self.around = WaitContext()
        self.probing = False

    def observe_anew(self) -> flow.Observer:
        samples = partial(flow.channel_samples, self.channel.service)
        return flow.Observer(samples, 7, 1, self.seen.add, self.seen.link)

    def probe(self) -> None:
        self.probing = True
        self.observer.begin_probe()

    def look(self, *, after_ns: int = 1_000_000, whole: bool = False) -> None:
        self.seen.now_ns += after_ns
        self.observer.observe(
            self.seen.now_ns,
            self.seen.now_ns + S,
            self.around._replace(reader_credit=self.channel.credit.credit),
            whole=whole,
        )
        if self.probing:
            self.observer.probe(self.seen.now_ns, self.seen.now_ns + S)

    def publish(self, count: int) -> None:
        self.channel.publish("q", *[b"x"] * count)
        self.look()


def test_what_is_published_is_counted_once() -> None:
    """This holds before and after confirm.select, which counts from 1 again, and after a new channel.open."""
    watched = Watched()
    watched.publish(3)
    watched.channel.publish("q", b"x", b"x")
    watched.channel.say(methods.ConfirmSelect())
    watched.publish(10)
    assert total(watched.seen.take(), EventKind.LINK_IN) == 15
    watched.channel.publish("q", b"x")
    watched.channel.say(methods.ChannelClose(200, "", 0, 0), methods.ChannelOpen())
    watched.observer.finish(watched.seen.now_ns + 1, S)
    assert total(watched.seen.take(), EventKind.LINK_IN) == 1


def test_a_channel_opened_anew_counts_from_the_beginning() -> None:
    watched = Watched()
    watched.publish(3)
    service = watched.channel.service
    service._reset()
    watched.channel.publish("q", b"x")
    watched.look()
    assert total(watched.seen.take(), EventKind.LINK_IN) == 4


def test_messages_of_a_transaction_count_when_it_is_committed() -> None:
    watched = Watched()
    watched.channel.say(methods.TxSelect())
    watched.publish(3)
    assert watched.seen.take() == []
    watched.channel.say(methods.TxCommit())
    watched.look()
    assert total(watched.seen.take(), EventKind.LINK_IN) == 3


def test_what_the_client_has_left_is_told() -> None:
    """link_credit: contents that the reader may still give; queue_credit: messages without confirmation."""
    watched = Watched()
    watched.world.box("q").stalled = True
    watched.channel.say(methods.ConfirmSelect())
    watched.publish(5)
    watched.publish(5)
    events = watched.seen.take(EventKind.LINK_IN)
    assert [(event.n, event.link_credit, event.queue_credit) for event in events][-1] == (5, 395, 5)


def test_a_channel_that_is_not_read_says_why() -> None:
    watched = Watched()
    watched.publish(5)
    for reason, around in (
        (Wait.CREDIT_FLOW.number, WaitContext(holds_reader=True)),
        (Wait.BLOCKED_BY_ALARM.number, WaitContext(blocked_ms=0)),
        (Wait.READER_HELD.number, WaitContext(held_by="channel 2")),
    ):
        watched.around = around
        watched.look()
        watched.around = WaitContext()
        watched.look(after_ns=7)
        assert reasons(watched.seen.take(), EventKind.LINK_IN)[reason] == 7


def test_confirms_are_timed() -> None:
    watched = Watched()
    watched.channel.say(methods.ConfirmSelect())
    watched.publish(1)
    watched.probe()
    watched.world.box("q").stalled = True
    watched.publish(4)
    watched.publish(2)
    watched.world.box("q").stalled = False
    watched.world.rest()
    watched.look()
    events = watched.seen.take(EventKind.CONFIRM)
    assert [(event.n, event.value_ns) for event in events] == [(4, 2_000_000), (2, 1_000_000)]


def unsent(watched: Watched) -> None:
    watched.channel.budget_bytes = 0
    watched.channel.consume("q", "c")
    watched.channel.publish("q", b"x", b"x", b"x")
    watched.look()


def test_what_goes_back_unsent_is_not_told() -> None:
    for end in (methods.BasicCancel("c"), methods.QueueDelete("q")):
        watched = Watched()
        unsent(watched)
        watched.channel.say(end)
        watched.look()
        assert total(watched.seen.take(), EventKind.LINK_OUT) == 0


def waits(watched: Watched) -> dict[int, int]:
    watched.look(whole=True)
    watched.seen.take()
    watched.look(after_ns=5, whole=True)
    return reasons(watched.seen.take(), EventKind.LINK_OUT)


def test_a_quorum_queue_limits_a_consumer_without_prefetch() -> None:
    watched = Watched(**{"x-queue-type": "quorum"})
    watched.channel.consume("q", "c")
    (consumer,) = watched.channel.service.consuming.consumers.values()
    consumer.unacked = QUORUM.held_max or 0
    assert waits(watched) == {Wait.PREFETCH_FULL.number: 5}


def test_a_probe_times_what_comes_next() -> None:
    """It covers publishing and consuming, with bounded wakes; then it reports that it is done."""
    watched = Watched()
    watched.channel.say(methods.ConfirmSelect())
    watched.channel.consume("q", "c")
    watched.publish(2)
    watched.seen.take()
    watched.observer.begin_probe()
    for wakes in range(flow.PROBE_WAKES_MAX + 1):
        watched.channel.publish("q", b"x")
        watched.seen.now_ns += 10
        assert watched.observer.probe(watched.seen.now_ns, S) is True, wakes
    assert total(watched.seen.take(), EventKind.CONFIRM) == flow.PROBE_WAKES_MAX
    watched.channel.say(methods.BasicAck(2 + flow.PROBE_WAKES_MAX, True))
    watched.seen.now_ns += 10
    assert watched.observer.probe(watched.seen.now_ns, S) is False
    events = watched.seen.take(EventKind.SETTLE)
    assert [(event.n, event.value_ns) for event in events] == [
        (1, 10 * (wakes + 2)) for wakes in reversed(range(flow.PROBE_WAKES_MAX))
    ]


class SessionWatched:
    """A scene that is observed after each line, one millisecond apart."""

    def __init__(self, *queues: str, begin: str = "C> BEGIN") -> None:
        self.scene = Scenario(*queues)
        if begin != "C> BEGIN":
            self.scene.do("C> END", begin)
        self.client = self.scene.world.clients["C"]
        self.seen = Seen()
        self.probing = False
        self.observe_anew()

    def observe_anew(self) -> None:
        self.service = self.client.sessions[0].service
        self.observer = flow.Observer(
            partial(flow.session_samples, self.service), 7, 0, self.seen.add, self.seen.link
        )

    def probe(self) -> None:
        self.probing = True
        self.observer.begin_probe()

    def look(self, *, after_ns: int = 1_000_000, whole: bool = False) -> None:
        self.seen.now_ns += after_ns
        now_ns = self.seen.now_ns
        self.observer.observe(
            now_ns, now_ns + S, WaitContext(writer_blocked=self.client.blocked), whole=whole
        )
        if self.probing:
            self.observer.probe(now_ns, now_ns + S)

    def do(self, *lines: str) -> None:
        for line in lines:
            self.scene.do(line)
            self.look()


def test_a_link_is_named_once_when_it_is_seen_first() -> None:
    """The event has its name and address; another link of the same handle is another link."""
    watched = SessionWatched("q")
    watched.scene.do(
        "C> ATTACH h=0 name=a target=/queues/q", "C> ATTACH h=1 name=b source=/queues/q role=receiver"
    )
    watched.look()
    first = watched.seen.now_ns
    watched.look()
    watched.scene.do("C> DETACH h=0 closed=true", "C> ATTACH h=0 name=c target=/queues/q")
    watched.look()
    assert watched.seen.links == [
        (first, EventKind.LINK_IN, 0, 0, "a", "/queues/q"),
        (first, EventKind.LINK_OUT, 0, 1, "b", "/queues/q"),
        (watched.seen.now_ns, EventKind.LINK_IN, 0, 0, "c", "/queues/q"),
    ]


def test_a_link_that_has_begun_since_is_told_whole() -> None:
    """It includes events before the first look; a link counts from its client's initial number."""
    watched = SessionWatched("q")
    watched.scene.do("C> ATTACH h=0 idc=4294967290 target=/queues/q", "C> TRANSFER h=0 did=0..19")
    watched.look()
    (event,) = watched.seen.take(EventKind.LINK_IN)
    assert (event.n, event.value_ns) == (20, 0)


def test_deliveries_out_are_those_that_were_written() -> None:
    """Deliveries returned by a lowered credit, or given up by a drain, do not count."""
    watched = SessionWatched("q", begin="C> BEGIN iw=3")
    watched.scene.do("publish q 10")
    watched.do("C> ATTACH h=1 source=/queues/q", "C> FLOW h=1 dc=0 cr=8", "C> FLOW h=1 dc=3 cr=0 iw=100")
    watched.do("C> FLOW h=1 dc=3 cr=9 iw=100 drain=true")
    events = watched.seen.take(EventKind.LINK_OUT)
    assert total(events, EventKind.LINK_OUT) == 10
    assert [event.n for event in events if event.n] == [3, 7]


def test_what_the_queue_took_back_before_it_was_sent_is_not_told() -> None:
    """A consumer has held deliveries too long, and one of them was written."""
    watched = SessionWatched("q", begin="C> BEGIN iw=1")
    watched.scene.do("publish q 3")
    watched.do("C> ATTACH h=1 source=/queues/q", "C> FLOW h=1 dc=0 cr=3")
    (consumer,) = watched.service.consumers
    keys = [key for _, key in watched.service.session.outbound.unsettled.values()]
    assert (consumer.credit.written, consumer.credit.waiting) == (1, 2)
    watched.service.on_effects([TimedOut(consumer.ref, range(min(keys), min(keys) + 3), "q")])
    watched.look()
    assert total(watched.seen.take(), EventKind.LINK_OUT) == 1
    assert consumer.credit.waiting == 0


REASONS: dict[int, tuple[str, ...]] = {
    Wait.NO_CREDIT_NEVER_GRANTED.number: ("C> ATTACH h=1 source=/queues/q",),
    Wait.QUEUE_EMPTY_NOTHING_ROUTED.number: ("C> ATTACH h=1 source=/queues/q", "C> FLOW h=1 dc=0 cr=8"),
    Wait.QUEUE_CREDIT_IN_FLIGHT.number: (
        "C> ATTACH h=1 source=/queues/q", "stall q", "C> FLOW h=1 dc=0 cr=8",
    ),
    Wait.DRAINING.number: (
        "C> ATTACH h=1 source=/queues/q", "stall q", "C> FLOW h=1 dc=0 cr=8 drain=true",
    ),
    Wait.PEER_WINDOW_CLOSED.number: (
        "publish q 3", "C> END", "C> BEGIN iw=0", "C> ATTACH h=1 source=/queues/q", "C> FLOW h=1 dc=0 cr=8",
    ),
    Wait.WRITER_BLOCKED.number: (
        "publish q 3", "C> ATTACH h=1 source=/queues/q", "block C", "C> FLOW h=1 dc=0 cr=8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("reason", REASONS)
def test_why_a_consumer_waits_is_told(reason: int) -> None:
    """A reason holds until the next look."""
    watched = SessionWatched("q")
    for line in REASONS[reason]:
        watched.scene.do(line)
    watched.observe_anew()
    watched.look(after_ns=0)
    watched.look(after_ns=5, whole=True)
    watched.look(after_ns=7, whole=True)
    assert reasons(watched.seen.take(), EventKind.LINK_OUT) == {reason: 12}


def test_a_consumer_that_is_not_the_active_one() -> None:
    watched = SessionWatched()
    scene = watched.scene

    def start_queue(spec: QueueSpec) -> Any:
        queue = ClockedQueue(spec)
        running = scene.world.queues[spec.name] = FakeQueueTask(scene.world, queue)  # type: ignore[arg-type]
        return running

    scene.world.start_queue = start_queue  # type: ignore[method-assign]
    declare(
        scene.world.catalog,
        scene.world.vhost,
        "q",
        arguments={"x-queue-type": "quorum", "x-single-active-consumer": True},
    )
    scene.receiver("/queues/q", 1)
    scene.receiver("/queues/q", 2)
    scene.do("C> FLOW h=1 dc=0 cr=1", "C> FLOW h=2 dc=0 cr=9")
    scene.world.publish("q", 3)
    watched.look()
    watched.look(after_ns=5, whole=True)
    (waits,) = [event for event in watched.seen.take() if event.handle == 2]
    assert (waits.reason, waits.value_ns, waits.queue_depth) == (Wait.NOT_ACTIVE.number, 5, 2)


# --- latencies ------------------------------------------------------------------------------------


def test_confirms_are_timed_session() -> None:
    watched = SessionWatched("q")
    watched.do("C> ATTACH h=0 target=/queues/q", "withhold q")
    watched.probe()
    watched.do("C> TRANSFER h=0 did=0..4", "C> TRANSFER h=0 did=5..9", "confirm q 3", "confirm q 4")
    events = watched.seen.take(EventKind.CONFIRM)
    assert [(event.n, event.value_ns) for event in events] == [
        (3, 2_000_000), (2, 3_000_000), (2, 2_000_000),
    ]  # fmt: skip
    assert {(event.connection, event.handle) for event in events} == {(7, 0)}


def test_a_probe_times_what_comes_next_session() -> None:
    """Transfers under way do not count, and wakes are bounded; then it reports that it is done."""
    watched = SessionWatched("q")
    watched.do("C> ATTACH h=0 target=/queues/q", "withhold q", "C> TRANSFER h=0 did=0..4")
    watched.seen.take()
    watched.observer.begin_probe()

    def wake(line: str) -> bool:
        watched.scene.do(line)
        watched.seen.now_ns += 10
        return watched.observer.probe(watched.seen.now_ns, S)

    for wakes in range(flow.PROBE_WAKES_MAX + 2):
        assert wake(f"C> TRANSFER h=0 did={5 + wakes}"), "confirms are still to come"
    assert watched.seen.events == []
    assert wake("confirm q 6")
    (first,) = watched.seen.take()
    assert (first.kind, first.n, first.value_ns) == (EventKind.CONFIRM, 1, 10 * (flow.PROBE_WAKES_MAX + 2))
    assert not wake("confirm q 5"), "what came behind the probe is not waited for"
    assert [event.n for event in watched.seen.take()] == [1] * (flow.PROBE_WAKES_MAX - 1)


def test_bytes_of_a_connection() -> None:
    seen = Seen()
    observer = flow.ConnectionObserver(3, seen.add, 0, bytes_in=100, bytes_out=200)
    observer.observe(5, S, bytes_in=150, bytes_out=210, waiting=7, reason=Wait.CREDIT_FLOW.number)
    observer.observe(9, S, bytes_in=151, bytes_out=210, waiting=0, reason=NO_REASON)
    events = seen.take()
    assert total(events, EventKind.CONNECTION_IN, "bytes") == 51
    assert total(events, EventKind.CONNECTION_OUT, "bytes") == 10
    assert reasons(events, EventKind.CONNECTION_IN) == {NO_REASON: 5, Wait.CREDIT_FLOW.number: 4}
    assert [event.queue_depth for event in events if event.kind == EventKind.CONNECTION_OUT] == [0, 7]
    assert {event.connection for event in events} == {3}


def test_the_depth_of_a_queue_is_what_held() -> None:
    seen = Seen()
    observer = flow.QueueObserver(2, seen.add, 0)
    observer.observe(0, S, depth=5, unsettled=1)
    observer.observe(10, S, depth=5, unsettled=1)
    observer.observe(30, S, depth=8, unsettled=0)
    observer.observe(40, S, depth=8, unsettled=0, whole=True)
    events = seen.take(EventKind.QUEUE)
    assert [(event.handle, event.queue_depth, event.n, event.value_ns) for event in events] == [
        (2, 5, 1, 30), (2, 8, 0, 10),
    ]  # fmt: skip
