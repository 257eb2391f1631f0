"""What observers of connections, queues and the process tell."""

from __future__ import annotations

from amqp10broker.observe.flow.latency import Latency
from amqp10broker.observe.flow.others import ConnectionObserver, ProcessObserver, QueueObserver
from amqp10broker.observe.flow_events.schema import NO_REASON, EventKind
from amqp10broker.sessions.diagnosis.waits import Wait
from tests.support.watching import Seen, reasons, total

S = 1_000_000_000


def test_bytes_of_a_connection() -> None:
    """Both directions, what waits to be written, and why it is not read."""
    seen = Seen()
    observer = ConnectionObserver(3, seen.add, 0, bytes_in=100, bytes_out=200)
    observer.observe(5, S, bytes_in=150, bytes_out=210, waiting=7, reason=Wait.CREDIT_FLOW.number)
    observer.observe(9, S, bytes_in=151, bytes_out=210, waiting=0, reason=NO_REASON)
    events = seen.take()
    assert total(events, EventKind.CONNECTION_IN, "bytes") == 51
    assert total(events, EventKind.CONNECTION_OUT, "bytes") == 10
    assert reasons(events, EventKind.CONNECTION_IN) == {NO_REASON: 5, Wait.CREDIT_FLOW.number: 4}
    assert [event.queue_depth for event in events if event.kind == EventKind.CONNECTION_OUT] == [0, 7]
    assert {event.connection for event in events} == {3}


def test_a_quiet_connection_is_told_once_a_second() -> None:
    seen = Seen()
    observer = ConnectionObserver(3, seen.add, 0, bytes_in=0, bytes_out=0)

    def look(now_ns: int, *, whole: bool = False) -> None:
        observer.observe(now_ns, S, bytes_in=0, bytes_out=0, waiting=0, reason=0, whole=whole)

    look(S - 1)
    assert seen.events == []
    look(S)
    look(S, whole=True)
    look(S + 4, whole=True)
    assert [event.value_ns for event in seen.take(EventKind.CONNECTION_IN)] == [S, 4]


def test_the_depth_of_a_queue_is_what_held() -> None:
    seen = Seen()
    observer = QueueObserver(2, seen.add, 0)
    observer.observe(0, S, depth=5, unsettled=1)
    observer.observe(10, S, depth=5, unsettled=1)
    observer.observe(30, S, depth=8, unsettled=0)
    observer.observe(40, S, depth=8, unsettled=0, whole=True)
    events = seen.take(EventKind.QUEUE)
    assert [(event.handle, event.queue_depth, event.n, event.value_ns) for event in events] == [
        (2, 5, 1, 30), (2, 8, 0, 10),
    ]  # fmt: skip


def test_the_process() -> None:
    seen = Seen()
    observer = ProcessObserver(seen.add, 0, processor_ns=1000)
    observer.observe(0, S, rss_bytes=1, processor_ns=1000)
    observer.observe(50, S, rss_bytes=4096, processor_ns=1030)
    (event,) = seen.take()
    assert (event.kind, event.bytes, event.n, event.value_ns) == (EventKind.PROCESS, 4096, 30, 50)


def test_counts_may_wrap() -> None:
    """Delivery-counts are numbers modulo 2**32."""
    seen = Seen()
    latency = Latency(EventKind.CONFIRM, (1, 2, 3), 2**32 - 2, 2**32 - 3)
    latency.see(seen.add, 10, S, 3, 2**32 - 3, taking=True)
    latency.see(seen.add, 15, S, 3, 3, taking=True)
    assert [(event.n, event.value_ns) for event in seen.take()] == [(5, 5)]
