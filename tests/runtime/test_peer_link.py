"""One connection between nodes: what is put goes out whole and in order, from whichever task."""

from __future__ import annotations

import random
import socket
import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from amqp10broker.cluster.hello import Hello, Identity
from amqp10broker.cluster.wire import ConnectionPurpose, Decoder, FrameKind, encode
from amqp10broker.raft.groups import ELECTIONS_MAX, Groups, Member
from amqp10broker.raft.ids import member_id
from amqp10broker.raft.messages import MESSAGE, Configuration, Hard, Point, PreVote, Stored
from amqp10broker.runtime.cluster.peer_link import FRAMES_A_TURN, JOIN_S, READ_BYTES, PeerLink
from amqp10broker.runtime.connections.sockets import SocketTransport
from tests.support.deadline import DEADLINE_S

pytestmark = pytest.mark.real_clock

HELLO = Hello(Identity(2, "b", 1, "c"), ConnectionPurpose.RAFT, bytes(16), bytes(16))
LARGE = 16 * 1024 * 1024


class Counted(SocketTransport):
    """Counts calls of the system that send."""

    calls = 0

    def try_send(self, data: bytes | bytearray | memoryview) -> int:
        self.calls += 1
        return super().try_send(data)


def connection() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]


async def test_a_frame_goes_out_before_any_other_task_runs() -> None:
    """The writing task takes no turn in between as long as the socket accepts everything."""
    ours, theirs = connection()
    with theirs:
        link = PeerLink(SocketTransport(ours), HELLO, b"", lambda link, frames: None)
        link.put(encode(FrameKind.RAFT, 7, [b"one"]))
        assert not link.backlog_bytes
        assert [frame.body for frame in Decoder().feed(theirs.recv(READ_BYTES))] == [b"one"]
        link.close("enough")
        await link.run()


async def test_of_many_frames_at_once_the_first_goes_alone_and_the_others_together(
    mock_clock: MockClock,
) -> None:
    """Hundreds of groups that send in one turn of the loop do not cause as many system calls."""
    ours, theirs = connection()
    counted = Counted(ours)
    link = PeerLink(counted, HELLO, b"", lambda link, frames: None)
    bodies = [b"%d" % number for number in range(300)]
    got, decoder = [], Decoder()
    other = SocketTransport(theirs)
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            for body in bodies:
                link.put(encode(FrameKind.RAFT, 7, [body]))
            assert counted.calls == 1
            nursery.start_soon(link.run)
            while len(got) < len(bodies):
                got += decoder.feed(await other.receive_some())
            assert counted.calls == 2
            mock_clock.jump(JOIN_S)
            link.put(encode(FrameKind.RAFT, 7, [b"later"]))
            assert counted.calls == 3
            got += decoder.feed(await other.receive_some())
            link.close("enough")
    await other.aclose()
    assert [frame.body for frame in got] == [*bodies, b"later"]


async def test_all_that_many_groups_ask_a_node_for_in_one_step_is_one_frame() -> None:
    """With one frame for each of thousands of elections, frames would cost more than the elections."""
    ours, theirs = memory_stream_pair()
    link = PeerLink(ours, HELLO, b"", lambda link, frames: None)
    now_ms = 0
    groups = Groups(lambda: now_ms, lambda node, group, data: node == 2 and link.put_message(group, data))
    config = Configuration(tuple(member_id(node) for node in (1, 2, 3)))
    stored = Stored(Point(1, 0, config), Hard(0, None, 0), 1, [], [])
    for group in range(1, ELECTIONS_MAX + 1):
        store = cast("Any", SimpleNamespace(stored=stored, on_compact=None))
        machine = cast("Any", SimpleNamespace(status=lambda status: None))
        groups.add(Member(group, member_id(1), store, machine, groups, random.random))
    now_ms = 60_000
    groups.tick()
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            data = bytes(await theirs.receive_some(READ_BYTES))
            assert len(data) == struct.unpack_from("<I", data)[0] + 4
            link.close("enough")
    asked = {frame.group: type(MESSAGE.decode(frame.body)) for frame in Decoder().feed(data)}
    assert asked == dict.fromkeys(range(1, ELECTIONS_MAX + 1), PreVote)


async def test_what_the_socket_does_not_take_goes_before_all_that_is_put_later() -> None:
    """It also precedes priority frames: a frame that is partly sent must be completed."""
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


async def test_of_many_frames_in_one_read_others_have_their_turn_between() -> None:
    """Elections of thousands of groups must not hold heartbeats up."""
    ours, theirs = connection()
    count = 2 * FRAMES_A_TURN + 1
    sizes: list[int] = []
    turns = 0
    frames = b"".join(b"".join(encode(FrameKind.RAFT, group, [b""])) for group in range(1, count + 1))
    assert len(frames) <= READ_BYTES
    link = PeerLink(SocketTransport(ours), HELLO, frames, lambda link, frames: sizes.append(len(frames)))

    async def look() -> None:
        nonlocal turns
        while sum(sizes) < count:
            turns += bool(sizes)
            await trio.lowlevel.checkpoint()
        link.close("enough")

    with theirs, trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            nursery.start_soon(look)
    assert sizes == [FRAMES_A_TURN, FRAMES_A_TURN, 1]
    # Trio shuffles who runs in a round: the link may have the last turn of one and the first of the next.
    assert turns >= 1
