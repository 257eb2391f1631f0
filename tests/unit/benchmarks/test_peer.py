"""The generator keeps the rules of flow control, and ends the run when the broker does not."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.protocols.amqp10.performatives import Begin, Disposition, Flow
from benchmarks import spec, wire
from benchmarks.errors import PeerError
from benchmarks.peer import Peer
from benchmarks.scan import Scanner
from benchmarks.session import PeerSession
from benchmarks.stream import Stream

ENDPOINT = spec.Endpoint("127.0.0.1", 1)


def flow(
    *,
    next_incoming_id: int = 0,
    incoming_window: int = 1000,
    handle: int | None = None,
    delivery_count: int = 0,
    credit: int | None = None,
    drain: bool = False,
) -> Flow:
    """Return a flow as the broker would send it."""
    return Flow(
        next_incoming_id=next_incoming_id,
        incoming_window=incoming_window,
        next_outgoing_id=0,
        outgoing_window=0xFFFFFFFF,
        handle=handle,
        delivery_count=delivery_count,
        link_credit=credit,
        drain=drain,
    )


def session_of(*, publish: spec.Publish | None = None, consume: spec.Consume | None = None) -> PeerSession:
    """Return an attached session whose broker handles are the same as ours."""
    what = spec.Session(
        publish=() if publish is None else (publish,), consume=() if consume is None else (consume,)
    )
    peer = Peer(ENDPOINT, (what,), [Stream()])
    (session,) = peer.sessions
    begin = Begin(remote_channel=0, next_outgoing_id=0, incoming_window=1000, outgoing_window=1000)
    peer.on_performative(0, begin)
    for sender in session.senders:
        for index in range(len(sender.sent)):
            session.sending[sender.first_handle + index] = (sender, index)
    for receiver in session.receivers:
        receiver.start()
        receiver.top_up()
        for index in range(len(receiver.credit)):
            session.receiving[receiver.first_handle + index] = (receiver, index)
    peer.out.clear()
    return session


def produce_all(session: PeerSession) -> int:
    """Send until nothing more may be sent; return the number of messages."""
    (sender,) = session.senders
    before = sender.stream.published
    while sender.produce(0):
        pass
    return sender.stream.published - before


def deliver(session: PeerSession, first: int, count: int, *, handle: int = 0) -> None:
    """Let the broker send unsettled deliveries."""
    payload = wire.data_message(b"x")
    data = b"".join(
        wire.frame(wire.transfer_performative(handle, first + index, settled=False) + payload)
        for index in range(count)
    )
    Scanner(session.peer).scan(bytearray(data), 0, len(data))


def frames(data: bytes | bytearray) -> list[Any]:
    """Decode everything that was written."""
    found, position = [], 0
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        found.append(wire.decode_performative(bytes(data[position : position + size]))[0])
        position += size
    return found


def test_credit_is_counted_from_the_brokers_delivery_count() -> None:
    """link-credit(snd) = delivery-count(rcv) + link-credit(rcv) - delivery-count(snd); set, not added."""
    session = session_of(publish=spec.Publish(("q",)))
    session.flow(flow(handle=0, credit=10))
    assert produce_all(session) == 10
    session.flow(flow(handle=0, delivery_count=4, credit=10))
    assert produce_all(session) == 4
    session.flow(flow(handle=0, delivery_count=14, credit=3))
    session.flow(flow(handle=0, delivery_count=14, credit=3))
    assert produce_all(session) == 3


def test_the_brokers_window_stops_transfers_although_there_is_credit() -> None:
    """remote-incoming-window = next-incoming-id + incoming-window - our next-outgoing-id (§2.5.6)."""
    session = session_of(publish=spec.Publish(("q",)))
    session.flow(flow(incoming_window=5, handle=0, credit=100))
    assert produce_all(session) == 5
    session.flow(flow(next_incoming_id=3, incoming_window=5))
    assert produce_all(session) == 3
    session.flow(flow(next_incoming_id=3, incoming_window=0))
    assert produce_all(session) == 0


def test_credit_is_topped_up_when_half_is_used() -> None:
    """The flow names the deliveries counted so far and the full credit."""
    session = session_of(consume=spec.Consume(("q",), credit=10))
    deliver(session, 0, 4)
    session.after_read()
    assert [type(one) for one in frames(session.peer.out)] == [Disposition]
    session.peer.out.clear()
    deliver(session, 4, 1)
    session.after_read()
    settled, granted = frames(session.peer.out)
    assert (settled.role, settled.first, settled.last, settled.settled) == (True, 4, 4, True)
    assert granted.next_incoming_id == 5
    assert (granted.handle, granted.delivery_count, granted.link_credit) == (0, 5, 10)


def test_a_broker_that_exceeds_credit_ends_the_run() -> None:
    """Its figures would not be those of AMQP."""
    session = session_of(consume=spec.Consume(("q",), credit=3))
    with pytest.raises(PeerError, match="1 deliveries more than link-credit"):
        deliver(session, 0, 4)
