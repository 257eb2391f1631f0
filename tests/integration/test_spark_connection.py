"""Connections of the data source against real brokers: patience, and what is said of each failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from amqp10broker.client.blocking import Client
from amqp10broker.spark.connection import dial, with_retries
from amqp10broker.spark.errors import BrokerRefused, SparkSourceError
from amqp10broker.spark.options import ConnectionOptions, parse_source
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Certificates, certificates

__all__ = ["certificates"]

pytestmark = pytest.mark.usefixtures("deadline")


def options(url: str, **more: str) -> ConnectionOptions:
    return parse_source({"url": url, "stream": "s", **more}, streaming=False).connection


def open_client(given: ConnectionOptions) -> Client:
    return with_retries(given, lambda: dial(given, purpose="test"))


def said(given: ConnectionOptions, kind: type[SparkSourceError]) -> str:
    with pytest.raises(kind) as raised:
        open_client(given).close()
    return str(raised.value)


def test_a_bad_password_is_told_however_short_the_patience(broker: BrokerProcess) -> None:
    """The broker answers it after a second, and the error differs from that of no answer."""
    given = options(f"amqp://guest:hunter2@{broker.host}:{broker.port}", retryTimeout="100ms")
    assert "does not let user 'guest' in by SASL PLAIN" in said(given, BrokerRefused)


def test_tls_faults(tmp_path: Path, certificates: Certificates) -> None:
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
