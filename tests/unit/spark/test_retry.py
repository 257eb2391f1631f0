"""For how long failures are put up with, in each place where something is tried again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pyarrow as pa
import pytest

from amqp10broker.client.blocking import Sender
from amqp10broker.client.errors import ConnectionEndedError
from amqp10broker.spark import errors
from amqp10broker.spark.errors import BrokerUnreachable
from amqp10broker.spark.options import SinkOptions, StreamOptions, parse_sink, parse_source
from amqp10broker.spark.row_layouts import arrow_schema
from amqp10broker.spark.sink import Sending
from amqp10broker.spark.stream import range as stream_range
from amqp10broker.spark.stream.range import StreamRange, read_range
from tests.support.sleeping_clock import SleepingClock

URL = {"url": "amqp://guest:guest@localhost", "retryTimeout": "1s"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SleepingClock:
    made = SleepingClock()
    monkeypatch.setattr(errors, "time", made)
    return made


def test_a_long_scan_that_loses_its_connection_is_tried_again(
    clock: SleepingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter without a match is no progress, and may be looked at for longer than retryTimeout."""
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
    monkeypatch.setattr(stream_range, "_Reading", lambda *_: scan)
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

    with pytest.raises(BrokerUnreachable):
        task.send_by(never)
