"""Large messages: what is read and sent of them at a time, and that others have their turns meanwhile."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import trio

from amqp10broker.protocols.amqp091.content import body_pieces
from amqp10broker.protocols.amqp10.delivery import OutgoingDelivery
from amqp10broker.protocols.amqp10.performatives import Attach, Disposition, Flow, Transfer
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.connections import client_connection, sockets
from tests.support.rawframes import attach_receiver, attach_sender, credit, pieces, transfer
from tests.support.trioclient import connect, pipe_pair, running_broker, settle_down

MIB = 1024 * 1024
BODY = bytes(range(256)) * 4096
"""1 MiB in which each place can be told from its neighbours."""


def test_reads_grow_while_large_frames_fill_them_and_are_small_again_for_small_ones() -> None:
    sizes = [sockets.READ_BYTES]
    for frames in (1, 4, 8, 4, 8):
        sizes.append(client_connection.next_read_bytes(sizes[-1], frames, 1))
    assert sizes == [
        sockets.READ_BYTES,
        2 * sockets.READ_BYTES,
        4 * sockets.READ_BYTES,
        client_connection.READ_BYTES_MAX,
        client_connection.READ_BYTES_MAX,
        client_connection.READ_BYTES_MAX,
    ]
    assert (
        client_connection.next_read_bytes(client_connection.READ_BYTES_MAX, 10_000, 1) == sockets.READ_BYTES
    )
    assert client_connection.next_read_bytes(sockets.READ_BYTES - 1, 1, 1) == sockets.READ_BYTES


@pytest.mark.real_clock
@pytest.mark.parametrize(
    ("parts", "most"),
    [
        (0, client_connection.READ_BYTES_MAX),
        (1, client_connection.READ_BYTES_MAX),
        (4, client_connection.READ_BYTES_MAX // 4),
        (8, sockets.READ_BYTES),
        (255, sockets.READ_BYTES),
    ],
)
def test_what_is_read_at_once_is_shared_by_the_sessions_of_a_client(parts: int, most: int) -> None:
    """Each session may have reads waiting, so many of them with large ones would take much memory."""
    assert client_connection.next_read_bytes(16 * MIB, 1, parts) == most


def test_what_is_left_of_several_buffers_begins_behind_what_was_sent() -> None:
    buffers = [b"abc", b"", memoryview(b"defg"), b"h"]
    for sent in range(9):
        assert b"".join(sockets.unsent(buffers, sent)) == b"abcdefgh"[sent:]


@pytest.mark.real_clock
@pytest.mark.parametrize(
    ("waits_s", "most"),
    [
        ([sockets.UNSENT_FAST_S / 2], 2 * sockets.UNSENT_BYTES),
        ([sockets.UNSENT_FAST_S / 2] * 9, sockets.UNSENT_BYTES_MAX),
        ([sockets.UNSENT_SLOW_S * 2], sockets.UNSENT_BYTES),
        (
            [sockets.UNSENT_FAST_S / 2] * 9 + [(sockets.UNSENT_FAST_S + sockets.UNSENT_SLOW_S) / 2] * 9,
            sockets.UNSENT_BYTES_MAX,
        ),
        ([sockets.UNSENT_FAST_S / 2] * 9 + [sockets.UNSENT_SLOW_S * 2] * 2, sockets.UNSENT_BYTES_MAX // 4),
        ([sockets.UNSENT_FAST_S / 2] * 9 + [sockets.UNSENT_SLOW_S * 2] * 9, sockets.UNSENT_BYTES),
    ],
    ids=["fast", "fast for long", "slow", "neither", "less fast", "slow again"],
)
async def test_the_system_holds_more_unsent_for_a_peer_that_takes_it_fast(
    mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, waits_s: list[float], most: int
) -> None:
    """Unsent bytes wait some milliseconds at most, and so does a frame behind them."""
    waits = iter(waits_s)

    async def writable(_: socket.socket) -> None:
        mock_clock.jump(next(waits))

    monkeypatch.setattr(trio.lowlevel, "wait_writable", writable)
    with _tcp_pair() as (ours, _):
        transport = sockets.SocketTransport(ours)
        takes = iter([0] * len(waits_s) + [1])
        monkeypatch.setattr(sockets.SocketTransport, "try_send", lambda _, data: next(takes))
        await transport.send_all(b"x")
        assert next(takes, None) is None
        assert transport.unsent_max == most
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == most


@pytest.mark.real_clock
async def test_many_buffers_go_through_a_socket_that_takes_little(nursery: trio.Nursery) -> None:
    """There are more than one system call takes, and each call takes a part of them."""
    with _tcp_pair() as (ours, theirs):
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        sent = [b"%d," % number * (number % 50) for number in range(3 * sockets.PIECES_MAX)] + [BODY, b"end"]
        transport = sockets.SocketTransport(ours)
        nursery.start_soon(transport.send_pieces, sent)
        theirs.setblocking(False)
        got = b""
        whole = b"".join(sent)
        while len(got) < len(whole):
            await trio.lowlevel.wait_readable(theirs)
            got += theirs.recv(30_000)
        assert got == whole
        await transport.aclose()


@contextmanager
def _tcp_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours = server.accept()[0]
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("room", [1, 2, 3, 7, 100])
def test_a_delivery_is_cut_into_frames_across_its_parts(room: int) -> None:
    delivery = OutgoingDelivery(1, 1, (b"head", b"content"))
    taken: list[bytes] = []
    while delivery.position < delivery.size_bytes:
        frame = b"".join(delivery.take(room))
        assert len(frame) == min(room, 11 - sum(map(len, taken)))
        taken.append(frame)
    assert b"".join(taken) == b"headcontent"
    assert delivery.take(room) == []


def test_the_frames_of_a_large_body_are_parts_of_it() -> None:
    found = body_pieces(7, BODY, 131_072)
    views = [piece for piece in found if isinstance(piece, memoryview)]
    assert all(view.obj is BODY for view in views)
    assert b"".join(views) == BODY
    assert b"".join(found) == b"".join(body_pieces(7, BODY, 131_072))


@pytest.mark.parametrize("capacity", [5_000, 100_000, 10_000_000])
@pytest.mark.parametrize("frame_bytes", [131_072, 30_000, 2_000])
async def test_a_large_message_arrives_as_it_was_sent(
    broker: Broker, capacity: int, frame_bytes: int
) -> None:
    """The socket may cut it anywhere, and a small one of another link goes between its frames."""
    pair = partial(pipe_pair, capacity, direct=True)
    client = await connect(broker, pair=pair).open(max_frame_size=frame_bytes)
    await client.send(attach_sender(0, "large"), attach_sender(1, "small"))
    await client.take(Flow, 2)
    await client.send(attach_receiver(2, "large"), attach_receiver(3, "small"))
    await client.take(Attach, 2)
    await client.send(credit(2, 10), credit(3, 10))
    for each in pieces(0, 0, BODY, 130_000):
        await client.send(each)
    await client.send(transfer(1, 1, b"small"))
    got: dict[int, bytes] = {}
    done = 0
    while done < 2:
        each = await client.next()
        if type(each.body) is Transfer:
            got[each.body.handle] = got.get(each.body.handle, b"") + each.payload
            done += not each.body.more
    # What the publisher wrote is the end of what comes, behind a head of ours.
    assert {payload[-20:] for payload in got.values()} >= {BODY[-20:]}
    assert any(payload.endswith(BODY) for payload in got.values())
    assert any(payload.endswith(b"small") for payload in got.values())


async def test_others_are_confirmed_while_a_message_of_16_mib_comes_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between another client's publish and its confirm, the large one is read a few times, each bounded."""
    reads: list[tuple[object, int]] = []
    receive = client_connection.ClientConnection.receive

    async def counted(line: client_connection.ClientConnection) -> bytes:
        data = await receive(line)
        reads.append((line, len(data)))
        return data

    monkeypatch.setattr(client_connection.ClientConnection, "receive", counted)
    async with running_broker() as broker:
        large = await connect(broker, pair=partial(pipe_pair, 4 * MIB)).open()
        await large.call(Flow, attach_sender(0, "large"))
        other = await connect(broker).open()
        await other.call(Flow, attach_sender(0, "small"))
        await settle_down()
        theirs = large.task
        between: list[int] = []
        whole = trio.Event()

        async def publish() -> None:
            for each in pieces(0, 0, bytes(16 * MIB - 100), 130_000):
                await large.send(each)
            await large.until(Disposition)
            whole.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            number = 0
            while not whole.is_set():
                del reads[:]
                await other.call(Disposition, transfer(0, number, b"x"))
                between.append(sum(size for line, size in reads if line is theirs))
                number += 1
    assert max(between) > 2 * sockets.READ_BYTES, "the large one had no large reads"
    # The way of the small one takes some turns of the loop, in each of which the large one may be read.
    assert max(between) <= 8 * client_connection.READ_BYTES_MAX, between
    assert sum(map(bool, between)) >= 3, between
