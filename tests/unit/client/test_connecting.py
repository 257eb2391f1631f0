"""Hosts and ports that are none: each client says what to do, and no socket's own words get out alone."""

from __future__ import annotations

import pytest
import trio

from amqp10broker.client import blocking
from amqp10broker.client import trio as on_trio
from amqp10broker.client.errors import ConnectError, place_of

PLACES = [
    ("a..b", 5672, "cannot connect to a..b:5672: no host can be called so; give a name"),
    ("h" * 70, 5672, "no host can be called so"),
    ("127.0.0.1", 0, "there is no such port; give one from 1 to 65535"),
    ("127.0.0.1", -1, "there is no such port"),
    ("127.0.0.1", 65_536, "there is no such port"),
    ("::1", 1, r"cannot connect to \[::1\]:1: "),
]


@pytest.mark.parametrize(("host", "port", "message"), PLACES)
def test_what_is_no_host_or_port(host: str, port: int, message: str) -> None:
    with pytest.raises(ConnectError, match=message):
        blocking.connect(host, port, timeout_s=60.0)


@pytest.mark.parametrize(("host", "port", "message"), PLACES)
def test_what_is_no_host_or_port_on_trio(host: str, port: int, message: str) -> None:
    async def attempt() -> None:
        async with on_trio.connect(host, port, timeout_s=60.0):
            raise AssertionError("connected")

    with pytest.raises(ConnectError, match=message):
        trio.run(attempt)


def test_hosts_and_ports_as_people_write_them() -> None:
    assert [place_of(host, 1) for host in ("h", "127.0.0.1", "::1")] == ["h:1", "127.0.0.1:1", "[::1]:1"]
