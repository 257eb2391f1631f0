"""TLS with real clients of both protocols: proton, pika, and the client of this project on both drivers."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingConnection
from proton import Delivery, Message, SSLDomain

from amqp10broker.client.errors import ConnectionEndedError, TlsError
from amqp10broker.client.links import Accepted
from amqp10broker.client.message import data_message
from tests.support.broker_process import BrokerProcess, run_program
from tests.support.certificates import Certificates, certificates
from tests.support.client_drivers import Connect, connect
from tests.support.proton_client import ProtonClient

__all__ = ["certificates", "connect"]

pytestmark = pytest.mark.usefixtures("deadline")

BIG = bytes(range(256)) * 8_000
"""Two megabytes: several frames, and more records of TLS than one."""


@pytest.fixture(scope="module")
def tls_port(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[int]:
    with BrokerProcess(
        tmp_path_factory.mktemp("tls-broker"),
        *("--tls-certificate", certificates.server, "--tls-key", certificates.server_key),
        *("--tls-port", "0", "--tls-ca", certificates.ca, "--tls-verify", "optional"),
        *("--auth-failure-delay-ms", "10", "--user", "guest:guest", "--user", "worker:secret"),
    ) as process:
        address, *_ = process.status()["broker"]["tls_listeners"]
        yield int(address.rpartition(":")[2])


def test_both_protocols_on_the_tls_port(tls_port: int, certificates: Certificates) -> None:
    """A message enters by one and leaves by the other; both verify our certificate and its name."""
    options = pika.SSLOptions(certificates.client_context(), "localhost")
    parameters = pika.ConnectionParameters("127.0.0.1", tls_port, ssl_options=options)
    domain = SSLDomain(SSLDomain.MODE_CLIENT)
    domain.set_trusted_ca_db(certificates.ca)
    domain.set_peer_authentication(SSLDomain.VERIFY_PEER)
    with BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.queue_declare("both", durable=True)
        client = ProtonClient(tls_port, scheme="amqps", ssl_domain=domain)
        (outcome,) = client.sender("/queues/both").send(Message(body=b"from proton", inferred=True))
        assert outcome.state == Delivery.ACCEPTED
        assert channel.basic_get("both", auto_ack=True)[2] == b"from proton"
        channel.basic_publish("", "both", b"from pika")
        (received,) = client.receiver("/queues/both", credit=1).take()
        assert received.message.body == b"from pika"
        client.close()


# --- the client of this project -------------------------------------------------------------------


def over_tls(connect: Connect, port: int, context: ssl.SSLContext, **more: object) -> Any:
    given = {"user": "guest", "password": "guest", "timeout_s": 20.0, **more}
    return connect("localhost", port, ssl_context=context, **given)


def test_messages_small_and_big(tls_port: int, certificates: Certificates, connect: Connect) -> None:
    """They fill several TLS records both ways; data that OpenSSL holds back is still read."""
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
    """TLS 1.3 reports it after the handshake; in both versions the connection is not made."""
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


# --- files ---------------------------------------------------------------------------------------


def test_wrong_files_end_the_start(tmp_path: Path) -> None:
    """Standard error has one sentence that names the setting; the exit code is 1, and no port was opened.
    The other sentences are in `unit/auth/test_tls.py`.
    """
    missing = tmp_path / "missing.pem"
    nowhere = ("--port", "0", "--admin-socket", "")
    result = run_program("serve", *nowhere, "--tls-port", "0", "--tls-certificate", str(missing))
    assert result.returncode == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    sentence = f"tls_certificate names {missing}, which cannot be read: No such file or directory"
    assert line.startswith(f"amqp10broker: {sentence}"), line
