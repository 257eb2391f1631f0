"""Connections of the data source against real brokers: patience, and what is said of each failure."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from amqp10broker.client.blocking import Client
from amqp10broker.client.options import queue_address
from amqp10broker.spark.connection import dial, with_retries
from amqp10broker.spark.errors import BrokerRefused, QueueUnusable, SparkSourceError
from amqp10broker.spark.options import ConnectionOptions, parse_source
from benchmarks.processes import reserved_port
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Certificates, certificates

__all__ = ["certificates"]

pytestmark = pytest.mark.usefixtures("deadline")


def options(url: str, **more: str) -> ConnectionOptions:
    return parse_source({"url": url, "stream": "s", **more}, streaming=False).connection


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port where nobody listens, and nobody else will."""
    with reserved_port() as port:
        yield port


def open_client(given: ConnectionOptions) -> Client:
    return with_retries(given, lambda: dial(given, purpose="test"))


def said(given: ConnectionOptions, kind: type[SparkSourceError]) -> str:
    with pytest.raises(kind) as raised:
        open_client(given).close()
    return str(raised.value)


def test_a_broker_that_comes_back_is_found(silent_port: int, tmp_path: Path) -> None:
    """It starts while the client tries already."""
    port = silent_port
    started: list[BrokerProcess] = []

    def start() -> None:
        started.append(BrokerProcess(tmp_path, "--port", str(port)))

    thread = threading.Thread(target=start)
    thread.start()
    try:
        open_client(options(f"amqp://guest:guest@127.0.0.1:{port}", retryTimeout="30s")).close()
    finally:
        thread.join()
        started[0].stop()


def test_a_bad_password_is_told_however_short_the_patience(broker: BrokerProcess) -> None:
    """The broker answers it after a second, and that is not the same as no answer."""
    given = options(f"amqp://guest:hunter2@{broker.host}:{broker.port}", retryTimeout="100ms")
    assert "does not let user 'guest' in by SASL PLAIN" in said(given, BrokerRefused)


def test_what_is_refused_is_not_tried_again(broker: BrokerProcess) -> None:
    given = options(f"amqp://guest:guest@{broker.host}:{broker.port}")
    tried: list[int] = []

    def attempt() -> None:
        tried.append(1)
        with open_client(given) as client:
            client.receiver(queue_address("missing"))

    with pytest.raises(QueueUnusable):
        with_retries(given, attempt, queue="missing")
    assert len(tried) == 1


def test_tls_faults(tmp_path: Path, certificates: Certificates) -> None:
    """An authority that is not given, a file that is missing, and the right one."""
    with BrokerProcess(
        tmp_path,
        *("--tls-certificate", certificates.server, "--tls-key", certificates.server_key, "--tls-port", "0"),
    ) as process:
        address, *_ = process.status()["broker"]["tls_listeners"]
        url = f"amqps://guest:guest@localhost:{address.rpartition(':')[2]}"
        words = said(options(url), BrokerRefused)
        assert "is not trusted" in words
        assert "tls.caFile" in words
        words = said(options(url, **{"tls.caFile": "/not/there.pem"}), BrokerRefused)
        assert "option tls.caFile is '/not/there.pem', which cannot be used: No such file" in words
        words = said(options(url, **{"tls.certificateFile": certificates.ca}), BrokerRefused)
        assert "both in PEM format, are wanted" in words
        with open_client(options(url, **{"tls.caFile": certificates.ca})) as client:
            assert client.core.opened
