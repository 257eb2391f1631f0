"""TLS with real clients of both protocols: proton, pika, and sockets that speak what they should not."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingConnection
from proton import Delivery, Message, SSLDomain

from tests.support.broker_process import BrokerProcess, run_program
from tests.support.certificates import Certificates, certificates
from tests.support.proton_client import ProtonClient

__all__ = ["certificates"]

pytestmark = pytest.mark.usefixtures("deadline")

SOCKET_S = 20.0


class TlsBroker:
    """A broker with a TLS listener, and ways to it."""

    def __init__(self, process: BrokerProcess, certificates: Certificates) -> None:
        self.process = process
        self.certificates = certificates
        address, *_ = process.status()["broker"]["tls_listeners"]
        self.port = int(address.rpartition(":")[2])

    def proton(self, certificate: tuple[str, str] | None = None, **options: Any) -> ProtonClient:
        domain = SSLDomain(SSLDomain.MODE_CLIENT)
        domain.set_trusted_ca_db(self.certificates.ca)
        domain.set_peer_authentication(SSLDomain.VERIFY_PEER)
        if certificate is not None:
            domain.set_credentials(*certificate, None)
        return ProtonClient(self.port, scheme="amqps", ssl_domain=domain, **options)

    def pika(
        self, certificate: tuple[str, str] | None = None, *, port: int | None = None, **options: Any
    ) -> BlockingConnection:
        """Connect pika, which checks our certificate and the name in it."""
        context = self.certificates.client_context(certificate)
        return BlockingConnection(
            pika.ConnectionParameters(
                host="127.0.0.1",
                port=port or self.port,
                ssl_options=pika.SSLOptions(context, "localhost"),
                socket_timeout=SOCKET_S,
                stack_timeout=SOCKET_S,
                **options,
            )
        )

    @contextmanager
    def socket(self) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=SOCKET_S) as sock:
            yield sock

    def status_of(self, user: str) -> dict[str, Any]:
        """The status of the one connection of a user."""
        (found,) = [each for each in self.process.status()["connections"] if each["user"] == user]
        return dict(found)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[TlsBroker]:
    """One broker that takes clients with and without a certificate."""
    with BrokerProcess(
        tmp_path_factory.mktemp("tls-broker"),
        *("--tls-certificate", certificates.server, "--tls-key", certificates.server_key),
        *("--tls-port", "0", "--tls-ca", certificates.ca, "--tls-verify", "optional"),
        *("--auth-failure-delay-ms", "10", "--user", "guest:guest", "--user", "worker:secret"),
    ) as process:
        yield TlsBroker(process, certificates)
        process.check_log()


# --- speaking ------------------------------------------------------------------------------------


def test_both_protocols_on_the_tls_port(tls: TlsBroker) -> None:
    """A message goes in by one and out by the other, and both logged in with a password."""
    channel = tls.pika().channel()
    channel.queue_declare("both", durable=True)
    client = tls.proton()
    sender = client.sender("/queues/both")
    (outcome,) = sender.send(Message(body=b"from proton", inferred=True))
    assert outcome.state == Delivery.ACCEPTED
    assert channel.basic_get("both", auto_ack=True)[2] == b"from proton"
    channel.basic_publish("", "both", b"from pika")
    receiver = client.receiver("/queues/both", credit=1)
    (received,) = receiver.take()
    assert received.message.body == b"from pika"
    receiver.settle(received)
    client.close()
    channel.connection.close()


# --- files ---------------------------------------------------------------------------------------


def test_wrong_files_end_the_start(tmp_path: Path) -> None:
    """One sentence that names the setting, on standard error, and exit code 1; nothing listened.

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
