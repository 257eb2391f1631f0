"""Connections of the data source against real brokers: patience, and what is said of each failure."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from amqp10broker.client.errors import ClientError
from amqp10broker.client.url import queue_address
from amqp10broker.spark.connection import open_client, translated, with_retries
from amqp10broker.spark.errors import BrokerRefused, BrokerUnreachable, QueueUnusable, SparkSourceError
from amqp10broker.spark.options import ConnectionOptions, parse_source
from benchmarks.processes import reserved_port
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Certificates, certificates

__all__ = ["certificates"]

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]


def options(url: str, **more: str) -> ConnectionOptions:
    return parse_source({"url": url, "stream": "s", **more}, streaming=False).connection


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port where nobody listens, and nobody else will."""
    with reserved_port() as port:
        yield port


def said(given: ConnectionOptions, kind: type[SparkSourceError]) -> str:
    with pytest.raises(kind) as raised:
        open_client(given, purpose="test").close()
    return str(raised.value)


def test_opens_with_user_and_password(broker: BrokerProcess) -> None:
    url = f"amqp://guest:guest@{broker.host}:{broker.port}"
    with open_client(options(url), purpose="test") as client:
        assert client.core.opened
        (entry,) = [
            each
            for each in broker.status()["connections"]
            if each["container_id"] == client.core.options.container_id
        ]
        assert entry["container_id"].startswith("spark-test-")


def test_nobody_listens(silent_port: int) -> None:
    """Tried for the time allowed, not for ever, and not only once."""
    started = time.monotonic()
    words = said(options(f"amqp://127.0.0.1:{silent_port}", retryTimeout="300ms"), BrokerUnreachable)
    assert 0.3 <= time.monotonic() - started < 10
    assert "does not answer (tried" in words
    assert "start the broker" in words


def test_a_broker_that_comes_back_is_found(silent_port: int, tmp_path: Path) -> None:
    """It starts while the client tries already."""
    port = silent_port
    started: list[BrokerProcess] = []

    def start() -> None:
        started.append(BrokerProcess(tmp_path, "--port", str(port)))

    thread = threading.Thread(target=start)
    thread.start()
    try:
        open_client(
            options(f"amqp://guest:guest@127.0.0.1:{port}", retryTimeout="30s"), purpose="test"
        ).close()
    finally:
        thread.join()
        started[0].stop()


def test_bad_password(broker: BrokerProcess) -> None:
    """Refused at once, and the password is not in the text."""
    url = f"amqp://guest:hunter2@{broker.host}:{broker.port}"
    words = said(options(url), BrokerRefused)
    assert "does not let user 'guest' in by SASL PLAIN" in words
    assert "options username, password" in words
    assert "hunter2" not in words


def test_a_bad_password_is_told_however_short_the_patience(broker: BrokerProcess) -> None:
    """The broker answers it after a second, and that is not the same as no answer."""
    given = options(f"amqp://guest:hunter2@{broker.host}:{broker.port}", retryTimeout="100ms")
    assert "does not let user 'guest' in by SASL PLAIN" in said(given, BrokerRefused)


def test_wrong_virtual_host(broker: BrokerProcess) -> None:
    url = f"amqp://guest:guest@{broker.host}:{broker.port}/nowhere"
    words = said(options(url), BrokerRefused)
    assert "nowhere" in words
    assert "vhost" in words


def test_missing_queue(broker: BrokerProcess) -> None:
    given = options(f"amqp://guest:guest@{broker.host}:{broker.port}")
    with open_client(given, purpose="test") as client, pytest.raises(ClientError) as raised:
        client.receiver(queue_address("not there"))
    error = translated(raised.value, given, queue="not there")
    assert isinstance(error, QueueUnusable)
    assert "there is no queue or stream 'not there' in the default virtual host" in str(error)
    assert "declare it first" in str(error)


def test_what_is_refused_is_not_tried_again(broker: BrokerProcess) -> None:
    given = options(f"amqp://guest:guest@{broker.host}:{broker.port}")
    tried: list[int] = []

    def attempt() -> None:
        tried.append(1)
        with open_client(given, purpose="test") as client:
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
        (address,) = process.status()["broker"]["tls_listeners"]
        url = f"amqps://guest:guest@localhost:{address.rpartition(':')[2]}"
        words = said(options(url), BrokerRefused)
        assert "is not trusted" in words
        assert "tls.caFile" in words
        words = said(options(url, **{"tls.caFile": "/not/there.pem"}), BrokerRefused)
        assert "option tls.caFile is '/not/there.pem', which cannot be used: No such file" in words
        words = said(options(url, **{"tls.certificateFile": certificates.ca}), BrokerRefused)
        assert "both in PEM format, are wanted" in words
        with open_client(options(url, **{"tls.caFile": certificates.ca}), purpose="test") as client:
            assert client.core.opened
