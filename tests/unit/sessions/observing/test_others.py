"""What observers of connections, queues and the process tell."""

from __future__ import annotations

from amqp10broker.observe.flow import ConnectionObserver, QueueObserver
from amqp10broker.observe.flow_events import NO_REASON, EventKind
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
