"""The generator's WebSocket: what comes out is what went in, however the socket cuts it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from amqp10broker.websocket import WebSocketLayer
from benchmarks.errors import PeerError
from benchmarks.websocket_socket import WebSocket

ANSWER = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n"


def pair(answer: bytes = ANSWER) -> tuple[WebSocket, socket.socket]:
    """A WebSocket and the broker's end of its socket, with the handshake done."""
    ours, theirs = socket.socketpair()
    theirs.sendall(answer)
    try:
        made = WebSocket(ours)
    except PeerError:
        theirs.close()
        raise
    assert theirs.recv(1000).startswith(b"GET / HTTP/1.1\r\n")
    return made, theirs


@pytest.fixture
def ends() -> Iterator[tuple[WebSocket, socket.socket]]:
    ours, theirs = pair()
    with ours, theirs:
        yield ours, theirs


def message(data: bytes) -> bytes:
    sent: bytes = Frame(Opcode.BINARY, data).serialize(mask=False)
    return sent


@given(st.lists(st.sampled_from([0, 1, 5, 125, 126, 300, 70_000]), max_size=6), st.integers(1, 400))
def test_messages_are_read_as_bytes(sizes: list[int], most: int) -> None:
    ours, theirs = pair()
    parts = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    sent = b"".join(map(message, parts))

    def feed() -> None:
        theirs.sendall(sent)
        theirs.close()

    feeder = threading.Thread(target=feed)
    feeder.start()
    got = b""
    with ours:
        while data := ours.recv(most * 100):
            got += data
    feeder.join()
    assert got == b"".join(parts)


@given(st.lists(st.integers(1, 200_000), min_size=1, max_size=3))
def test_bytes_are_sent_as_messages_in_whatever_pieces_the_socket_takes(sizes: list[int]) -> None:
    ours, theirs = pair()
    with ours, theirs:
        ours.setblocking(False)
        layer, got = WebSocketLayer(131_072), b""
        out = b"".join(bytes([number]) * size for number, size in enumerate(sizes))
        wanted = out
        while out:
            try:
                out = out[ours.send(out) :]
            except BlockingIOError:
                got += layer.receive(theirs.recv(100_000))
        while len(got) < len(wanted):
            got += layer.receive(theirs.recv(100_000))
        assert got == wanted
        assert not layer.fault


def test_a_broker_that_wants_none_is_told_of() -> None:
    with pytest.raises(PeerError, match="wants no WebSocket"):
        pair(b"AMQP\x03\x01\x00\x00HTTP")


def test_a_close_ends_the_run(ends: tuple[WebSocket, socket.socket]) -> None:
    ours, theirs = ends
    theirs.sendall(Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=False))
    with pytest.raises(PeerError, match="begins with 0x88"):
        ours.recv(10)
