"""TLS with real clients of both protocols: proton, pika, and sockets that speak what they should not."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingConnection
from pika.credentials import ExternalCredentials
from pika.exceptions import AMQPConnectionError, AMQPError
from proton import Delivery, Message, SSLDomain

from amqp10broker.protocols.preface import AMQP_091_HEADER, SASL_HEADER
from tests.support.broker_process import REPOSITORY, BrokerProcess, StartBroker
from tests.support.certificates import Certificates, certificates
from tests.support.proton_client import Disconnected, ProtonClient
from tests.support.rawframes import FrameCutter

__all__ = ["certificates"]

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]

SOCKET_S = 20.0
BIG = bytes(range(256)) * 20_000
"""Five megabytes: forty frames, and more records of TLS."""


class TlsBroker:
    """A broker with a TLS listener, and ways to it."""

    def __init__(self, process: BrokerProcess, certificates: Certificates) -> None:
        self.process = process
        self.certificates = certificates
        (address,) = process.status()["broker"]["tls_listeners"]
        self.port = int(address.rpartition(":")[2])

    def proton(self, certificate: tuple[str, str] | None = None, **options: Any) -> ProtonClient:
        """Connect proton, which checks our certificate."""
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
        """A plain socket to the TLS port."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=SOCKET_S) as sock:
            yield sock

    def status_of(self, user: str) -> dict[str, Any]:
        """The status of the one connection of a user."""
        (found,) = [each for each in self.process.status()["connections"] if each["user"] == user]
        return dict(found)


StartTls = Callable[..., TlsBroker]


@pytest.fixture
def start_tls(start_broker: StartBroker, certificates: Certificates) -> StartTls:
    """Start a broker for this test alone, with TLS on any free port."""

    def start(*arguments: str) -> TlsBroker:
        process = start_broker(
            *("--tls-certificate", certificates.server, "--tls-key", certificates.server_key),
            *("--tls-port", "0", "--tls-ca", certificates.ca, "--auth-failure-delay-ms", "10"),
            *arguments,
        )
        return TlsBroker(process, certificates)

    return start


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


def test_big_messages_over_tls(tls: TlsBroker) -> None:
    """Many records of TLS and many frames, both ways, byte for byte."""
    channel = tls.pika().channel()
    channel.confirm_delivery()
    channel.queue_declare("big", durable=True)
    channel.basic_publish("", "big", BIG)
    client = tls.proton()
    (outcome,) = client.sender("/queues/big").send(Message(body=BIG[::-1], inferred=True))
    assert outcome.state == Delivery.ACCEPTED
    receiver = client.receiver("/queues/big", credit=1)
    (first,) = receiver.take()
    assert bytes(first.message.body) == BIG
    receiver.settle(first)
    assert channel.basic_get("big", auto_ack=True)[2] == BIG[::-1]
    client.close()
    channel.connection.close()


def test_many_small_messages_over_tls(tls: TlsBroker) -> None:
    """In order, none lost, in batches of whatever size the records make of them."""
    count = 2_000
    texts = [b"%d" % number for number in range(count)]
    channel = tls.pika().channel()
    channel.queue_declare("small", durable=True)
    for text in texts:
        channel.basic_publish("", "small", text)
    client = tls.proton()
    receiver = client.receiver("/queues/small", credit=count)
    got = receiver.take(count)
    assert [bytes(each.message.body) for each in got] == texts
    receiver.settle(got)
    receiver.close()
    sender = client.sender("/queues/small")
    outcomes = sender.send(*[Message(body=text, inferred=True) for text in texts])
    assert {outcome.state for outcome in outcomes} == {Delivery.ACCEPTED}
    bodies: list[bytes | None] = []
    for _, _, body in channel.consume("small", auto_ack=True, inactivity_timeout=SOCKET_S):
        bodies.append(body)
        if len(bodies) == count:
            break
    assert bodies == texts
    client.close()
    channel.connection.close()


def test_a_client_that_trusts_somebody_else_does_not_connect(tls: TlsBroker) -> None:
    """The broker's certificate is the authority's that was configured, and of nobody else."""
    with tls.socket() as sock:
        context = ssl.create_default_context()
        with pytest.raises(ssl.SSLCertVerificationError):
            context.wrap_socket(sock, server_hostname="localhost")


# --- certificates of clients ---------------------------------------------------------------------


def test_external_logs_in_by_certificate(tls: TlsBroker) -> None:
    """No password: the common name is the user, in both protocols."""
    certificate = tls.certificates.client("worker")
    client = tls.proton(certificate, user=None, password=None, mechanisms="EXTERNAL")
    assert tls.status_of("worker")["protocol"] == "AMQP 1.0"
    client.close()
    tls.process.wait_until(lambda: not tls.process.status()["connections"], "end of proton's connection")
    connection = tls.pika(certificate, credentials=ExternalCredentials())
    assert tls.status_of("worker")["protocol"] == "AMQP 0-9-1"
    connection.close()


def test_a_certificate_of_nobody_does_not_log_in(tls: TlsBroker) -> None:
    """It is a good certificate, but there is no such user; a password still counts."""
    certificate = tls.certificates.client("stranger")
    with pytest.raises(Disconnected):
        tls.proton(certificate, user=None, password=None, mechanisms="EXTERNAL")
    with pytest.raises(AMQPConnectionError):
        tls.pika(certificate, credentials=ExternalCredentials())
    tls.process.wait_for_log("login failed", reason="user 'stranger' of the certificate does not exist")
    connection = tls.pika(certificate)
    assert tls.status_of("guest")["state"] == "running"
    connection.close()


def test_external_is_not_offered_without_a_certificate(tls: TlsBroker) -> None:
    """Nor on the plain port."""
    with pytest.raises(Disconnected):
        tls.proton(user=None, password=None, mechanisms="EXTERNAL")
    with tls.socket() as sock:
        context = tls.certificates.client_context()
        with context.wrap_socket(sock, server_hostname="localhost") as stream:
            assert "EXTERNAL" not in offered(stream)
    certificate = tls.certificates.client("worker")
    with tls.socket() as sock:
        context = tls.certificates.client_context(certificate)
        with context.wrap_socket(sock, server_hostname="localhost") as stream:
            assert "EXTERNAL" in offered(stream)


def offered(stream: socket.socket) -> tuple[str, ...]:
    """The mechanisms that a client of AMQP 1.0 is offered on a stream."""
    stream.sendall(SASL_HEADER)
    cutter = FrameCutter()
    frames: list[Any] = []
    while not frames:
        data = stream.recv(65_536)
        assert data, "the broker closed"
        frames += cutter.feed(data)
    return tuple(str(each) for each in frames[0].body.sasl_server_mechanisms)


@pytest.mark.parametrize("verify", ["optional", "required"])
def test_a_certificate_of_another_authority_is_refused(start_tls: StartTls, verify: str) -> None:
    """Also where none would do: who shows one must show a good one."""
    broker = start_tls("--tls-verify", verify)
    bad = broker.certificates.client("guest", trusted=False)
    with pytest.raises(AMQPError):
        broker.pika(bad)
    with pytest.raises(Disconnected):
        broker.proton(bad)
    entry = broker.process.wait_for_log("TLS handshake failed")
    assert "CERTIFICATE_VERIFY_FAILED" in entry["reason"].upper().replace(" ", "_")


@pytest.mark.parametrize(("verify", "served"), [("none", True), ("optional", True), ("required", False)])
def test_a_client_without_a_certificate(start_tls: StartTls, verify: str, served: bool) -> None:
    """Refused where one is required."""
    broker = start_tls("--tls-verify", verify)
    if served:
        broker.pika().close()
        broker.proton().close()
    else:
        with pytest.raises(AMQPError):
            broker.pika()
        with pytest.raises(Disconnected):
            broker.proton()
        entry = broker.process.wait_for_log("TLS handshake failed")
        assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in entry["reason"].upper().replace(" ", "_")
        certificate = broker.certificates.client("guest")
        broker.pika(certificate).close()
        broker.proton(certificate).close()


@pytest.mark.parametrize(
    ("part", "names", "user"),
    [
        ("common_name", (), "guest"),
        ("san_dns", ("worker.example.org",), "worker.example.org"),
        ("san_email", ("worker@example.org",), "worker@example.org"),
        ("distinguished_name", (), None),
    ],
)
def test_the_user_may_stand_elsewhere_in_the_certificate(
    start_tls: StartTls, part: str, names: tuple[str, ...], user: str | None
) -> None:
    """tls_user_from."""
    users = ["guest:guest"] if user in (None, "guest") else ["guest:guest", f"{user}:x"]
    broker = start_tls(
        *("--tls-verify", "required", "--tls-user-from", part),
        *[word for each in users for word in ("--user", each)],
    )
    certificate = broker.certificates.client("guest", *names)
    if user is None:
        with pytest.raises(AMQPConnectionError):
            broker.pika(certificate, credentials=ExternalCredentials())
        entry = broker.process.wait_for_log("login failed")
        assert entry["reason"].startswith("user 'CN=guest,"), entry
    else:
        connection = broker.pika(certificate, credentials=ExternalCredentials())
        assert broker.status_of(user)["state"] == "running"
        connection.close()


# --- the wrong thing on a port -------------------------------------------------------------------


@pytest.mark.parametrize("header", [SASL_HEADER, AMQP_091_HEADER, b"GET / HTTP/1.1\r\n\r\n"])
def test_plain_text_on_the_tls_port(tls: TlsBroker, header: bytes) -> None:
    """Closed, and not one byte of AMQP is said in plain."""
    with tls.socket() as sock:
        sock.sendall(header.ljust(64, b"\0"))
        data = b""
        try:
            while received := sock.recv(65_536):
                data += received
        except ConnectionResetError:
            pass
    assert b"AMQP" not in data


def test_tls_on_the_plain_port(tls: TlsBroker) -> None:
    """The hello is no protocol header: the client is told what would be, which is no TLS either."""
    with (
        socket.create_connection(("127.0.0.1", tls.process.port), timeout=SOCKET_S) as sock,
        pytest.raises(ssl.SSLError) as caught,
    ):
        tls.certificates.client_context().wrap_socket(sock, server_hostname="localhost")
    assert "WRONG_VERSION" in str(caught.value) or "wrong version" in str(caught.value)
    with pytest.raises(ssl.SSLError):
        tls.pika(port=tls.process.port)


# --- passwords in the clear ----------------------------------------------------------------------


def test_plain_may_need_tls(start_tls: StartTls) -> None:
    """plain_needs_tls: on the plain port PLAIN and AMQPLAIN are neither offered nor taken."""
    broker = start_tls("--plain-needs-tls", "--anonymous-login-user", "")
    with socket.create_connection(("127.0.0.1", broker.process.port), timeout=SOCKET_S) as sock:
        assert offered(sock) == ("SCRAM-SHA-256",)
    with broker.socket() as sock:
        context = broker.certificates.client_context()
        with context.wrap_socket(sock, server_hostname="localhost") as stream:
            assert offered(stream) == ("PLAIN", "AMQPLAIN", "SCRAM-SHA-256")
    with pytest.raises(AMQPConnectionError):
        BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.process.port))
    with pytest.raises(Disconnected):
        ProtonClient(broker.process.port, allow_insecure_mechs=True)
    broker.pika().close()
    broker.proton().close()


# --- files ---------------------------------------------------------------------------------------


def test_wrong_files_end_the_start(tmp_path: Path) -> None:
    """One sentence that names the setting, on standard error, and exit code 1; nothing listened.

    The other sentences are in `unit/auth/test_tls.py`.
    """
    missing = tmp_path / "missing.pem"
    command = [sys.executable, "-m", "amqp10broker", "serve", "--port", "0", "--admin-socket", ""]
    result = subprocess.run(
        [*command, "--tls-port", "0", "--tls-certificate", str(missing)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert result.returncode == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    sentence = f"tls_certificate names {missing}, which cannot be read: No such file or directory"
    assert line.startswith(f"amqp10broker: {sentence}"), line
