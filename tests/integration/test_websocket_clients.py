"""AMQP over WebSocket as rhea and Qpid JMS speak it (docs/amqp10.md)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Certificates, certificates
from tests.support.jms import Jms
from tests.support.rhea import run_rhea

__all__ = ["certificates"]

RHEA = {
    "messages come in order": "true",
    "the websocket ends": "1005",  # closed by the client, which names no code
    "a request": "QUESTION",
    "a wrong password": "amqp:unauthorized-access",
}
JMS = {"messages come in order": "200", "a wrong password": "JMSSecuritySaslException"}
TRUSTING = "?transport.trustAll=true&transport.verifyHost=false"


class Broker:
    """One that has it at every port."""

    def __init__(self, process: BrokerProcess, certificates: Certificates) -> None:
        self.process = process
        self.certificates = certificates
        found = {each["protocol"]: each["port"] for each in process.ask("list-listeners")}
        self.ports = {"http": found["http/web-amqp"], "amqp": found["amqp"], "tls": found["amqp/ssl"]}


@pytest.fixture(scope="module")
def websocket_broker(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Broker]:
    with BrokerProcess(
        tmp_path_factory.mktemp("websocket"),
        *("--tls-certificate", certificates.server, "--tls-key", certificates.server_key),
        *("--tls-port", "0", "--http-port", "0", "--websocket-on-port", "--auth-failure-delay-ms", "10"),
    ) as process:
        yield Broker(process, certificates)


@pytest.mark.parametrize(("port", "scheme"), [("http", "ws"), ("amqp", "ws"), ("tls", "wss")])
def test_rhea_in_node_works_unchanged(websocket_broker: Broker, port: str, scheme: str) -> None:
    """Node's own WebSocket offers the protocols of rhea's examples."""
    url = f"{scheme}://localhost:{websocket_broker.ports[port]}/"
    ca = websocket_broker.certificates.ca
    assert run_rhea("exchange.cjs", url, f"rhea-{port}", ca=ca) == RHEA
    # One whose login has failed is there a moment longer than its client.
    process = websocket_broker.process
    process.wait_until(lambda: not process.status()["connections"], "the end of all connections")


@pytest.mark.parametrize(
    ("port", "scheme", "options"), [("http", "amqpws", ""), ("tls", "amqpwss", TRUSTING)]
)
def test_qpid_jms_works_unchanged(
    websocket_broker: Broker, jms: Jms, port: str, scheme: str, options: str
) -> None:
    where = websocket_broker.ports[port]
    got = jms.run("WebSocket", where, f"ws{os.getpid()}.{port}.", scheme=scheme, options=options)
    assert got == JMS
