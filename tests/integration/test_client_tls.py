"""The client over TLS, on both drivers: passwords, certificates as logins, and what is said when it fails."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from amqp10broker.client.errors import ConnectionEndedError, TlsError
from amqp10broker.client.links import Accepted
from amqp10broker.client.message import data_message
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Certificates, certificates
from tests.support.client_drivers import Connect, connect

__all__ = ["certificates", "connect"]

pytestmark = pytest.mark.usefixtures("deadline")

BIG = bytes(range(256)) * 8_000
"""Two megabytes: several frames, and more records of TLS than one."""


@pytest.fixture(scope="module")
def tls_port(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[int]:
    """One broker that takes clients with and without a certificate."""
    with BrokerProcess(
        tmp_path_factory.mktemp("tls-broker"),
        *("--tls-certificate", certificates.server, "--tls-key", certificates.server_key),
        *("--tls-port", "0", "--tls-ca", certificates.ca, "--tls-verify", "optional"),
        *("--auth-failure-delay-ms", "10", "--user", "guest:guest", "--user", "worker:secret"),
    ) as process:
        address, *_ = process.status()["broker"]["tls_listeners"]
        yield int(address.rpartition(":")[2])
        process.check_log()


def over_tls(connect: Connect, port: int, context: ssl.SSLContext, **more: object) -> Any:
    given = {"user": "guest", "password": "guest", "timeout_s": 20.0, **more}
    return connect("localhost", port, ssl_context=context, **given)


def test_messages_small_and_big(tls_port: int, certificates: Certificates, connect: Connect) -> None:
    """More than one record of TLS at a time, both ways, and what OpenSSL holds back is not forgotten."""
    with over_tls(connect, tls_port, certificates.client_context()) as client:
        sender = client.sender("tls-bodies")
        bodies = [b"%d" % number for number in range(3000)]
        assert sender.send_many(map(data_message, bodies)) == [Accepted()] * 3000
        sender.send(data_message(BIG))
        receiver = client.receiver("tls-bodies", credit=500)
        got: list[bytes] = []
        while len(got) < 3001:
            deliveries = receiver.receive_many(1000)
            assert deliveries
            got += [delivery.message().body for delivery in deliveries]
            receiver.accept(deliveries)
        assert got == [*bodies, BIG]


def test_external_logs_in_as_the_certificate_says(
    tls_port: int, certificates: Certificates, connect: Connect
) -> None:
    context = certificates.client_context(certificates.client("worker"))
    with over_tls(connect, tls_port, context, user=None, password=None, mechanism="EXTERNAL") as client:
        client.sender("tls-external").send(data_message(b"x"))


def test_a_client_certificate_of_a_stranger(
    tls_port: int, certificates: Certificates, connect: Connect
) -> None:
    """TLS 1.3 tells us after the handshake: either way the connection is not made."""
    context = certificates.client_context(certificates.client("worker", trusted=False))
    with pytest.raises((TlsError, ConnectionEndedError)):
        over_tls(connect, tls_port, context)


def test_the_broker_goes_while_tls_is_up(certificates: Certificates, connect: Connect) -> None:
    """The end of the stream under TLS is the end of the connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server, certificates.server_key)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def shake_and_leave() -> None:
            sock, _ = listener.accept()
            context.wrap_socket(sock, server_side=True).close()

        thread = threading.Thread(target=shake_and_leave)
        thread.start()
        with pytest.raises(ConnectionEndedError):
            over_tls(connect, listener.getsockname()[1], certificates.client_context())
        thread.join()
