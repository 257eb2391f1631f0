"""A thousand open connections to the HTTP port: bounded, and nobody else is disturbed."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Final

import pika

from tests.support.broker_process import BrokerProcess

MAX: Final = 1_000
"""The usual `http_connection_max`."""
HELD_BYTES: Final = 100 * 1024
"""That one connection may take, with what the process had not touched before."""
PATIENCE_S: Final = 60.0


def opened(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S)


def answered(client: socket.socket) -> bool:
    """Return whether a request is answered; otherwise the broker closed the connection on accept."""
    try:
        client.sendall(b"GET /api/version HTTP/1.1\r\nhost: h\r\n\r\n")
        return client.recv(65_536).startswith(b"HTTP/1.1 401")
    except (BrokenPipeError, ConnectionResetError):
        return False


def test_a_thousand_open_connections_of_http_leave_others_alone(tmp_path: Path) -> None:
    """One more is closed at once and AMQP is served; after they close there is room again."""
    broker = BrokerProcess(tmp_path, "--http-port", "0")
    clients: list[socket.socket] = []
    try:
        address = str(broker.wait_for_log("HTTP API")["address"])
        port = int(address.rstrip("/").rpartition(":")[2])
        before = broker.resident_bytes
        for _ in range(MAX):
            clients.append(opened(port))
            assert answered(clients[-1])
        with opened(port) as beyond:
            assert not answered(beyond)
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            queue = channel.queue_declare("", exclusive=True).method.queue
            channel.confirm_delivery()
            channel.basic_publish("", queue, b"meanwhile")
            assert channel.basic_get(queue, auto_ack=True)[2] == b"meanwhile"
        assert broker.resident_bytes - before < MAX * HELD_BYTES
        while clients:
            clients.pop().close()
        until = time.monotonic() + PATIENCE_S
        served = False
        while not served:
            assert time.monotonic() < until, "there is no room again"
            with opened(port) as client:
                served = answered(client)
    finally:
        for client in clients:
            client.close()
        broker.stop()
