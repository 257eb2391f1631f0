"""The proxy that does to connections what networks do."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.support.cutting_proxy import BACK, TO_TARGET, WINDOW_BYTES, CuttingProxy

WAIT_S = 20.0
SILENT_S = 0.05
"""So long nothing comes that would come at once."""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """What is behind the proxy."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT_S)
        yield server


@pytest.fixture
def proxy(listener: socket.socket) -> Iterator[CuttingProxy]:
    with CuttingProxy(listener.getsockname()[1]) as process:
        yield process


@pytest.fixture
def near(proxy: CuttingProxy) -> Iterator[socket.socket]:
    """Has connected to the proxy."""
    with socket.create_connection(("127.0.0.1", proxy.port), WAIT_S) as client:
        yield client


@pytest.fixture
def far(listener: socket.socket, near: socket.socket) -> Iterator[socket.socket]:
    """The other end of that connection."""
    accepted, _ = listener.accept()
    with accepted:
        accepted.settimeout(WAIT_S)
        yield accepted


def read(each: socket.socket, count: int) -> bytes:
    """So many bytes."""
    data = b""
    while len(data) < count:
        more = each.recv(count - len(data))
        assert more, "ended"
        data += more
    return data


def is_silent(each: socket.socket) -> bool:
    each.settimeout(SILENT_S)
    try:
        each.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return True
    finally:
        each.settimeout(WAIT_S)
    return False


def test_both_directions_are_handed_on_and_so_is_the_end(near: socket.socket, far: socket.socket) -> None:
    near.sendall(b"to")
    assert read(far, 2) == b"to"
    far.sendall(b"back")
    assert read(near, 4) == b"back"
    near.shutdown(socket.SHUT_WR)
    assert far.recv(1) == b""
    far.sendall(b"late")
    far.close()
    assert read(near, 4) == b"late"
    assert near.recv(1) == b""


@pytest.mark.parametrize("way", [TO_TARGET, BACK])
def test_what_is_sent_over_a_cut_comes_when_it_is_mended(
    proxy: CuttingProxy, near: socket.socket, far: socket.socket, way: int
) -> None:
    """The end of the connection, too; the other direction is not touched."""
    sender, receiver = (near, far) if way == TO_TARGET else (far, near)
    proxy.cut(way)
    sender.sendall(b"held")
    receiver.sendall(b"passes")
    assert read(sender, 6) == b"passes"
    sender.close()
    assert is_silent(receiver)
    proxy.mend()
    assert read(receiver, 4) == b"held"
    assert receiver.recv(1) == b""


@pytest.mark.parametrize("way", [TO_TARGET, BACK])
def test_nothing_is_connected_over_a_cut(listener: socket.socket, proxy: CuttingProxy, way: int) -> None:
    """Who waits is connected when it is mended; who has given up is not."""
    proxy.cut(way)
    patient = socket.create_connection(("127.0.0.1", proxy.port), WAIT_S)
    hasty = socket.create_connection(("127.0.0.1", proxy.port), WAIT_S)
    hasty.sendall(b"hasty")
    patient.sendall(b"patient")
    hasty.close()
    listener.settimeout(SILENT_S)
    with pytest.raises(TimeoutError):
        listener.accept()
    listener.settimeout(WAIT_S)
    proxy.mend()
    accepted, _ = listener.accept()
    with patient, accepted:
        assert read(accepted, 7) == b"patient"
    assert proxy.connections == 1


def test_a_sender_waits_when_its_window_is_full(
    proxy: CuttingProxy, near: socket.socket, far: socket.socket
) -> None:
    proxy.cut()
    sent = 0
    near.settimeout(SILENT_S)
    with suppress(TimeoutError):
        while sent < 1000 * WINDOW_BYTES:
            sent += near.send(bytes(65_536))
    assert WINDOW_BYTES < sent < 1000 * WINDOW_BYTES
    near.settimeout(WAIT_S)
    proxy.mend()
    assert len(read(far, sent)) == sent


def test_what_is_slow_comes_whole_and_in_order(
    proxy: CuttingProxy, near: socket.socket, far: socket.socket
) -> None:
    proxy.delay(0.01, TO_TARGET)
    near.sendall(b"slow")
    assert read(far, 4) == b"slow"
    proxy.delay(3600, TO_TARGET)
    near.sendall(b"more")
    assert is_silent(far)
    proxy.delay(0)
    near.sendall(b"over")
    near.close()
    assert is_silent(far)
    proxy.mend()
    assert read(far, 8) == b"moreover"
    assert far.recv(1) == b""


def test_a_reset_is_told_to_both_ends(proxy: CuttingProxy, near: socket.socket, far: socket.socket) -> None:
    proxy.reset()
    for each in (near, far):
        with pytest.raises(ConnectionResetError):
            each.recv(1)


def test_a_connection_is_lost_after_so_many_bytes(listener: socket.socket, proxy: CuttingProxy) -> None:
    """From whichever side they come; the next is kept."""
    proxy.cut_after = [(3, None), (None, 3)]
    for way in (TO_TARGET, BACK, None):
        with socket.create_connection(("127.0.0.1", proxy.port), WAIT_S) as near:
            far, _ = listener.accept()
            with far:
                far.settimeout(WAIT_S)
                sender, receiver = (far, near) if way == BACK else (near, far)
                sender.sendall(b"four")
                if way is None:
                    assert read(receiver, 4) == b"four"
                else:
                    assert read(receiver, 3) == b"fou"
                    with pytest.raises((ConnectionResetError, AssertionError), match=r"reset|ended"):
                        read(receiver, 1)
