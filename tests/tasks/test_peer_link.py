"""One connection between nodes: what is put goes out whole and in order, from whichever task."""

from __future__ import annotations

import socket

import trio

from amqp10broker.replication.frames import Decoder, encode
from amqp10broker.replication.hello import Hello, Identity
from amqp10broker.replication.wire import FrameKind, Purpose
from amqp10broker.tasks.peer_link import READ_BYTES, PeerLink
from amqp10broker.tasks.socket_transport import SocketTransport
from tests.support.deadline import DEADLINE_S

HELLO = Hello(Identity(2, "b", 1, "c"), Purpose.RAFT, bytes(16), bytes(16))
LARGE = 16 * 1024 * 1024


def connection() -> tuple[socket.socket, socket.socket]:
    """Both ends of one on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]


async def test_a_frame_goes_out_before_any_other_task_runs() -> None:
    """There is no turn of the writing task between, as long as the socket takes all."""
    ours, theirs = connection()
    with theirs:
        link = PeerLink(SocketTransport(ours), HELLO, b"", lambda link, frames: None)
        link.put(encode(FrameKind.RAFT, 7, [b"one"]))
        link.put(encode(FrameKind.RAFT, 7, [b"two"]))
        assert not link.backlog_bytes
        assert [frame.body for frame in Decoder().feed(theirs.recv(READ_BYTES))] == [b"one", b"two"]
        link.close("enough")
        await link.run()


async def test_what_the_socket_does_not_take_goes_before_all_that_is_put_later() -> None:
    """Also before what goes first: a frame of which a part is sent must be ended."""
    ours, theirs = connection()
    link = PeerLink(SocketTransport(ours), HELLO, b"", lambda link, frames: None)
    large = bytes(LARGE)
    link.put(encode(FrameKind.RAFT, 7, [large]))
    assert 0 < link.backlog_bytes < LARGE
    link.put(encode(FrameKind.RAFT, 7, [b"later"]))
    link.put(encode(FrameKind.HEARTBEAT, 0, [b"beat"]), first=True)
    got, decoder = [], Decoder()
    other = SocketTransport(theirs)
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            while len(got) < 3:
                got += decoder.feed(await other.receive_some())
            link.close("enough")
    await other.aclose()
    assert [frame.body for frame in got] == [large, b"beat", b"later"]
    assert not link.backlog_bytes
