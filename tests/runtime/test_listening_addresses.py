"""The addresses that a broker listens on: `open_sockets`."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest

from amqp10broker.runtime.connections import sockets
from amqp10broker.runtime.connections.sockets import addresses_of, open_sockets


def has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as sock:
        try:
            sock.bind(("::1", 0))
        except OSError:
            return False
    return True


async def test_localhost_is_both_loopback_addresses_with_one_port() -> None:
    """A client that resolves localhost may get either address first."""
    opened = await open_sockets("localhost", 0)
    first, *others = addresses_of(opened)
    assert first[0] == "127.0.0.1"
    assert others == ([("::1", first[1])] if has_ipv6() else [])
    for sock in opened:
        sock.close()


async def test_an_address_that_the_machine_does_not_have_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """This is the case where IPv6 is off; for a single address it is an error."""
    bound_to = sockets._bound_to

    def without_ipv6(family: int, address: tuple[Any, ...]) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return bound_to(family, address)

    monkeypatch.setattr(sockets, "_bound_to", without_ipv6)
    (sock,) = await open_sockets("localhost", 0)
    assert sock.getsockname()[0] == "127.0.0.1"
    sock.close()
    with pytest.raises(OSError, match="Cannot assign"):
        await open_sockets("::1", 0)


async def test_a_port_that_is_taken_at_one_address_is_refused_or_another_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A given port is refused and nothing stays bound; without a given port the next is tried."""
    taken: list[int] = []
    bound_to = sockets._bound_to

    def taken_elsewhere(family: int, address: tuple[Any, ...]) -> socket.socket:
        if family == socket.AF_INET6 and address[1] in taken:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        sock = bound_to(family, address)
        if not taken:
            taken.append(sock.getsockname()[1])
        return sock

    monkeypatch.setattr(sockets, "_bound_to", taken_elsewhere)
    opened = await open_sockets("localhost", 0)
    (port,) = {each[1] for each in addresses_of(opened)}
    assert port not in taken
    with pytest.raises(OSError, match="in use"):
        await open_sockets("localhost", taken[0])
    for sock in opened:
        sock.close()
    with socket.create_server(("127.0.0.1", taken[0])):
        pass
