"""What is tried again, what is not, and how a client's errors are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives import serialization

from amqp10broker.client.blocking import Sender
from amqp10broker.client.errors import (
    ClientError,
    ConnectError,
    ConnectionEndedError,
    LinkDetachedError,
    LinkRefusedError,
    LoginError,
    MessageTooLargeError,
    SessionEndedError,
    TimedOutError,
    TlsError,
)
from amqp10broker.protocols.amqp10.errors import Condition
from amqp10broker.spark import errors, stream_source
from amqp10broker.spark.connection import may_pass, tls_context, translated, with_retries
from amqp10broker.spark.options import ConnectionOptions, SinkOptions, StreamOptions, parse_sink, parse_source
from amqp10broker.spark.rows import arrow_schema
from amqp10broker.spark.sink import Sending
from amqp10broker.spark.stream_source import StreamRange, read_range
from tests.support.certificates import Certificates, certificates


class SleepingClock:
    """Seconds that pass in `sleep`, and when a test says so; `pauses` has the argument of each call."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


OPTIONS = ConnectionOptions(
    host="broker",
    port=5672,
    tls=False,
    vhost="shop",
    username="me",
    password="hunter2",
    mechanism="PLAIN",
    retry_timeout_s=5.0,
)


def refused(kind: type[ClientError], condition: str, **more: str | None) -> ClientError:
    return kind("the broker said no", condition=condition, **more)


def tls(cause: BaseException) -> TlsError:
    error = TlsError("no TLS")
    error.__cause__ = cause
    return error


CASES = [
    (ConnectError("nobody"), True, errors.BrokerUnreachable),
    (TimedOutError("answer", 1.0), True, errors.BrokerUnreachable),
    (ConnectionEndedError("lost"), True, errors.BrokerUnreachable),
    (refused(ConnectionEndedError, Condition.CONNECTION_FORCED), True, errors.BrokerUnreachable),
    (refused(ConnectionEndedError, Condition.NOT_FOUND), False, errors.BrokerRefused),
    (refused(ConnectionEndedError, Condition.UNAUTHORIZED_ACCESS), False, errors.BrokerRefused),
    (refused(SessionEndedError, Condition.NOT_FOUND), False, errors.QueueUnusable),
    (refused(SessionEndedError, Condition.UNAUTHORIZED_ACCESS), False, errors.BrokerRefused),
    (refused(SessionEndedError, Condition.INTERNAL_ERROR), True, errors.BrokerUnreachable),
    (LoginError("refused"), False, errors.BrokerRefused),
    (tls(ConnectionResetError()), True, errors.BrokerRefused),
    (tls(OSError("certificate")), False, errors.BrokerRefused),
    (refused(LinkRefusedError, Condition.NOT_FOUND, address="q"), False, errors.QueueUnusable),
    (refused(LinkRefusedError, Condition.UNAUTHORIZED_ACCESS, address="q"), False, errors.BrokerRefused),
    (refused(LinkRefusedError, Condition.PRECONDITION_FAILED, address="q"), False, errors.QueueUnusable),
    (refused(LinkDetachedError, Condition.RESOURCE_DELETED, address="q"), False, errors.QueueUnusable),
    (refused(LinkDetachedError, Condition.INTERNAL_ERROR, address="q"), True, errors.QueueUnusable),
    (MessageTooLargeError(5, 4), False, errors.SparkSourceError),
]


@pytest.mark.parametrize(("error", "again", "kind"), CASES, ids=lambda each: str(each)[:40])
def test_each_error(error: ClientError, again: bool, kind: type[errors.SparkSourceError]) -> None:
    """Its class decides the action; its text names the broker or the option, and no password."""
    assert may_pass(error) is again
    told = translated(error, OPTIONS, queue="orders")
    assert type(told) is kind
    assert "broker" in str(told)
    assert "hunter2" not in str(told)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SleepingClock:
    made = SleepingClock()
    monkeypatch.setattr(errors, "time", made)
    return made


def test_it_succeeds_when_the_broker_is_back(clock: SleepingClock) -> None:
    tries: list[int] = []

    def attempt() -> str:
        tries.append(1)
        if len(tries) < 4:
            raise ConnectionEndedError("lost")
        return "there"

    assert with_retries(OPTIONS, attempt) == "there"
    assert len(clock.pauses) == 3


def test_work_that_took_longer_than_the_time_allowed_is_tried_again(clock: SleepingClock) -> None:
    """The time allowed begins with the loss, not with the work."""
    tries: list[int] = []

    def attempt() -> str:
        tries.append(1)
        clock.now += 100.0
        if len(tries) < 2:
            raise ConnectionEndedError("lost")
        return "done"

    assert with_retries(OPTIONS, attempt) == "done"


def test_a_part_of_other_work_has_the_time_that_is_left_to_it(clock: SleepingClock) -> None:
    """The work has lost its connection before, and connecting alone is no progress of it."""

    def attempt() -> None:
        raise ConnectError("away")

    shared = errors.RetryBudget(OPTIONS.retry_timeout_s)
    assert shared.failed()
    assert with_retries(OPTIONS, lambda: "connected", patience=shared) == "connected"
    clock.now = 104.0
    with pytest.raises(errors.BrokerUnreachable):
        with_retries(OPTIONS, attempt, patience=shared)
    assert clock.now == pytest.approx(105.0)


URL = {"url": "amqp://guest:guest@localhost", "retryTimeout": "1s"}


def test_a_long_scan_that_loses_its_connection_is_tried_again(
    clock: SleepingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter without a match makes no progress, and may scan for longer than retryTimeout."""
    scan = _Scan(clock, [(2.0, 0)])
    assert _read(monkeypatch, scan) == 0
    assert scan.attempts == 2


class _Scan:
    """In place of a range: each attempt takes time, reads rows, and loses its connection."""

    def __init__(self, clock: SleepingClock, lost: list[tuple[float, int]]) -> None:
        self.position = 0
        self.attempts = 0
        self._clock = clock
        self._lost = lost

    def rows(self) -> Iterator[pa.RecordBatch]:
        self.attempts += 1
        if self.attempts > len(self._lost):
            return
        seconds, count = self._lost[self.attempts - 1]
        self._clock.now += seconds
        for _ in range(count):
            self.position += 1
            yield pa.RecordBatch.from_pylist([{"offset": self.position}], schema=arrow_schema())
        raise ConnectionEndedError("closed by an operator")


def _read(monkeypatch: pytest.MonkeyPatch, scan: _Scan) -> int:
    monkeypatch.setattr(stream_source, "_Reading", lambda *_: scan)
    options = parse_source({**URL, "stream": "s"}, streaming=False)
    assert isinstance(options, StreamOptions)
    return sum(len(batch) for batch in read_range(options, StreamRange(0, 100, True), None))


class _Task(Sending):
    """The sending side of a task, whose link is always open."""

    def _open(self) -> Sender:
        return cast(Sender, None)

    def send_by(self, work: Callable[[Any], None]) -> None:
        self._retrying(work)


def test_a_long_task_that_loses_its_connection_is_tried_again(clock: SleepingClock) -> None:
    options = parse_sink({**URL, "address": "/queues/q"}, streaming=False)
    assert isinstance(options, SinkOptions)
    task = _Task(options, "/queues/q")
    tries: list[int] = []

    def work(_: Any) -> None:
        tries.append(1)
        clock.now += 100
        if len(tries) == 1:
            raise ConnectionEndedError("lost")

    task.send_by(work)
    assert len(tries) == 2

    def never(_: Any) -> None:
        tries.append(1)
        raise ConnectionEndedError("lost")

    with pytest.raises(errors.BrokerUnreachable):
        task.send_by(never)


__all__ = ["certificates"]

NAMES = {"ca": "tls.caFile", "certificate": "tls.certificateFile", "key": "tls.keyFile"}


def context_of(**files: str) -> Any:
    given = {NAMES[name]: path for name, path in files.items()}
    return tls_context(parse_source({"url": "amqps://h", "stream": "s", **given}, streaming=False).connection)


def refused_tls(**files: str) -> str:
    with pytest.raises(errors.BrokerRefused) as raised:
        context_of(**files)
    return str(raised.value)


@pytest.fixture
def encrypted(certificates: Certificates, tmp_path: Path) -> str:
    key = serialization.load_pem_private_key(Path(certificates.server_key).read_bytes(), None)
    path = tmp_path / "encrypted.key"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"hunter2"),
        )
    )
    return str(path)


def test_what_can_be_used(certificates: Certificates, tmp_path: Path) -> None:
    context_of(ca=certificates.ca, certificate=certificates.server, key=certificates.server_key)
    both = tmp_path / "both.pem"
    both.write_text(Path(certificates.server).read_text() + Path(certificates.server_key).read_text())
    context_of(certificate=str(both))


def test_an_encrypted_key_is_refused(certificates: Certificates, encrypted: str, tmp_path: Path) -> None:
    told = refused_tls(certificate=certificates.server, key=encrypted)
    assert f"tls.keyFile '{encrypted}': the key is encrypted; give one without a pass phrase" in told
    both = tmp_path / "both.pem"
    both.write_text(Path(certificates.server).read_text() + Path(encrypted).read_text())
    assert f"tls.certificateFile is '{both}': the key is encrypted" in refused_tls(certificate=str(both))


def test_files_that_are_something_else(certificates: Certificates, tmp_path: Path) -> None:
    junk = certificates.file("junk.pem", "junk")
    _, other_key = certificates.client("somebody")
    server = certificates.server
    assert "option tls.caFile is '/not/there', which cannot be used: No such file" in refused_tls(
        ca="/not/there"
    )
    assert "option tls.caFile" in refused_tls(ca=junk)
    assert "option tls.certificateFile is '/not/there', which" in refused_tls(certificate="/not/there")
    assert "option tls.keyFile is '/not/there', which" in refused_tls(certificate=server, key="/not/there")
    assert "option tls.keyFile is '/', which" in refused_tls(certificate=server, key="/")
    assert "does not belong to the certificate" in refused_tls(certificate=server, key=other_key)
    for certificate in (junk, server):
        assert f"is '{certificate}', which cannot be used: a certificate and its private key" in refused_tls(
            certificate=certificate
        )
    assert f"'{server}' and tls.keyFile '{junk}', which" in refused_tls(certificate=server, key=junk)
