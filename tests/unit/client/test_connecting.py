"""Hosts and ports that are none, and sockets that break: no socket's own words get out alone."""

from __future__ import annotations

import socket
import struct

import pytest

from amqp10broker.client import blocking
from amqp10broker.client.core import ClientCore
from amqp10broker.client.errors import ConnectError, ConnectionEndedError
from amqp10broker.client.options import ClientOptions
from tests.support.client_drivers import Connect, connect

__all__ = ["connect"]

PLACES = [
    ("a..b", 5672, "cannot connect to a..b:5672: no host can be called so; give a name"),
    ("h" * 70, 5672, "no host can be called so"),
    ("127.0.0.1", 0, "there is no such port; give one from 1 to 65535"),
    ("127.0.0.1", -1, "there is no such port"),
    ("127.0.0.1", 65_536, "there is no such port"),
    ("::1", 1, r"cannot connect to \[::1\]:1: "),
]


@pytest.mark.parametrize(("host", "port", "message"), PLACES)
def test_what_is_no_host_or_port(connect: Connect, host: str, port: int, message: str) -> None:
    with pytest.raises(ConnectError, match=message):
        connect(host, port, timeout_s=60.0)


def test_flush_tells_that_the_connection_is_lost() -> None:
    """Or settled messages would be taken for written."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
        # Reset instead of an end in order: the first write fails.
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        theirs.close()
    client = blocking.Client(ours, ClientCore(ClientOptions()))
    client.core.start(None, None)
    with pytest.raises(ConnectionEndedError, match="lost"):
        client.flush()
    client.abort()
