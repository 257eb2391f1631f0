"""What the checkpoint says of a batch, and that a batch is repeated with the same rows in the same places."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

from amqp10broker.spark import stream_source
from amqp10broker.spark.errors import DataLost, OptionError, QueueUnusable
from amqp10broker.spark.options import Cut, StreamOptions, parse_source

ALL = ReadAllAvailable()
Place = tuple[int, int]
"""The number of a partition and of a row in it: what the sink makes message-ids of."""


class Broker:
    """A stream that is where it is told to be."""

    def __init__(self, first: int, next_: int) -> None:
        self.first, self.next = first, next_
        self.id: str | None = None

    def bounds(self) -> stream_source.StreamBounds:
        return stream_source.StreamBounds(self.first, self.next, dense=True, declaration_id=self.id)

    def close(self) -> None:
        """Nothing is open."""


def reader(broker: Broker, **more: str) -> stream_source.StreamStreamReader:
    options = parse_source({"url": "amqp://localhost", "stream": "s", **more}, streaming=True)
    assert isinstance(options, StreamOptions)
    made = stream_source.StreamStreamReader(options)
    made._questions = broker  # type: ignore[assignment]
    return made


def as_json(offset: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


def places(pieces: Iterable[Any]) -> dict[Place, int]:
    found = {}
    for number, piece in enumerate(pieces):
        assert isinstance(piece, stream_source.StreamRange)
        for row, offset in enumerate(range(piece.start, piece.end)):
            found[number, row] = offset
    return found


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)


# --- repeated -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"minPartitions": "3"}])
def test_on_another_machine_or_with_another_option(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, str]
) -> None:
    broker = Broker(0, 100_000)
    query = reader(broker, **more)
    start = as_json(query.initialOffset())
    end = as_json(query.latestOffset(start, ALL))
    before = places(query.partitions(start, end))
    assert len({number for number, _ in before}) == int(more.get("minPartitions", 2))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    broker.next = 150_000
    for other in ({}, {"minPartitions": "5"}, more):
        assert places(reader(broker, **other).partitions(start, end)) == before


@pytest.mark.parametrize(("begin", "at"), [("latest", 1000), ("earliest", 100), ("500", 500)])
def test_the_first_batch_whatever_the_query_would_begin_with_now(begin: str, at: int) -> None:
    """Spark requests the initial offset again when it repeats the first batch."""
    broker = Broker(100, 1000)
    query = reader(broker, startingOffsets=begin)
    start = as_json(query.initialOffset())
    broker.next = 1500
    end = as_json(query.latestOffset(start, ALL))
    before = places(query.partitions(start, end))
    assert list(before.values()) == list(range(at, 1500))
    broker.next = 2000
    again = reader(broker, startingOffsets=begin)
    assert places(again.partitions(as_json(again.initialOffset()), end)) == before


@pytest.mark.parametrize("first", [1, 10, 250, 499, 500, 501, 999, 1000, 2000])
def test_after_retention(first: int, caplog: pytest.LogCaptureFixture) -> None:
    """No place has another row than before; rows of whole pieces are in their old places."""
    broker = Broker(0, 1000)
    query = reader(broker, minPartitions="4", failOnDataLoss="false")
    start = as_json(query.initialOffset())
    end = as_json(query.latestOffset(start, ALL))
    before = places(query.partitions(start, end))
    broker.first, broker.next = first, 2000
    with caplog.at_level(logging.WARNING):
        after = places(reader(broker, minPartitions="7", failOnDataLoss="false").partitions(start, end))
    assert sorted(after.values()) == list(range(first, 1000))
    assert all(before.get(place, offset) == offset for place, offset in after.items())
    moved = [offset for place, offset in after.items() if place not in before]
    assert len(moved) == -first % 250 if first < 1000 else not moved
    assert f"{min(first, 1000)} messages of stream 's' are lost to the reader" in caplog.text
    with pytest.raises(DataLost, match="set failOnDataLoss to false"):
        reader(broker, minPartitions="4").partitions(start, end)


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 30), st.data())
def test_retention_never_puts_a_row_in_the_place_of_another(
    start: int, count: int, pieces: int, data: st.DataObject
) -> None:
    cut = Cut(start, pieces)
    end = start + count
    options = reader(Broker(0, 0), failOnDataLoss="false")._options
    gone = sorted(data.draw(st.lists(st.integers(0, end + 10), max_size=2)))
    whole = stream_source.recut(options, cut, end, stream_source.StreamBounds(0, end, dense=True))
    cut_through = set()
    seen = places(whole)
    for first in gone:
        cut_in = {n for n, piece in enumerate(whole) if piece.start < first < piece.end}
        if cut_in & cut_through:
            break
        cut_through |= cut_in
        found = places(
            stream_source.recut(options, cut, end, stream_source.StreamBounds(first, end, dense=True))
        )
        assert sorted(found.values()) == list(range(max(start, min(first, end)), end))
        assert all(seen.setdefault(place, offset) == offset for place, offset in found.items())


def test_what_was_lost_when_the_batch_was_planned(caplog: pytest.LogCaptureFixture) -> None:
    """It is not cut: the rest is cut evenly, and stays so when the batch is repeated."""
    broker = Broker(600, 1000)
    query = reader(broker, minPartitions="4", failOnDataLoss="false")
    end = as_json(query.latestOffset({"s": 10}, ALL))
    with caplog.at_level(logging.WARNING):
        pieces = query.partitions({"s": 10}, end)
    assert [(piece.start, piece.end) for piece in pieces] == [(n, n + 100) for n in range(600, 1000, 100)]
    assert "590 messages of stream 's' are lost to the reader" in caplog.text
    broker.first = 800
    again = reader(broker, failOnDataLoss="false").partitions({"s": 10}, end)
    assert places(again) == {place: offset for place, offset in places(pieces).items() if offset >= 800}
    with pytest.raises(DataLost, match="590 messages"):
        reader(broker).partitions({"s": 10}, end)
    # All of it lost: nothing is cut, and the next batch begins behind it.
    broker.first = broker.next = 2000
    end = query.latestOffset({"s": 10}, ALL)
    assert query.partitions({"s": 10}, end) == []
    assert query.latestOffset(end, ALL) is end


def test_pieces_that_are_gone_are_not_read() -> None:
    """No connection is opened for them: no broker listens where the options point."""
    broker = Broker(0, 10)
    options = {"url": "amqp://127.0.0.1:1", "retryTimeout": "1ms", "failOnDataLoss": "false"}
    query = reader(broker, **options)
    end = query.latestOffset({"s": 0}, ALL)
    broker.first = broker.next = 10
    (piece,) = query.partitions({"s": 0}, end)
    assert list(query.read(piece)) == []


# --- deleted and declared again -----------------------------------------------------------------------


def test_a_stream_that_was_declared_again_with_more_messages() -> None:
    """The checkpoint lies within it, and refers to other messages."""
    broker = Broker(0, 1000)
    broker.id = "a"
    query = reader(broker)
    first = as_json(query.initialOffset())
    end = as_json(query.latestOffset(first, ALL))
    assert len(places(query.partitions(first, end))) == 1000
    assert query.latestOffset(end, ALL) == end
    broker.id, broker.next = "b", 3000
    for ask in (lambda: reader(broker).latestOffset(end, ALL), lambda: reader(broker).partitions(first, end)):
        with pytest.raises(QueueUnusable, match="deleted and declared again since .* set failOnDataLoss"):
            ask()


@pytest.mark.parametrize("next_", [3000, 1000, 500])
def test_going_on_with_the_new_stream(next_: int, caplog: pytest.LogCaptureFixture) -> None:
    """It is read from its beginning; the switch is in the offset, and replayed as any batch."""
    broker = Broker(100, next_)
    broker.id = "b"
    start = {"s": 1000, "s.id": "a", "s.start": 0, "s.pieces": 1}
    query = reader(broker, failOnDataLoss="false", minPartitions="2")
    end = as_json(query.latestOffset(start, ALL))
    with caplog.at_level(logging.WARNING):
        found = places(query.partitions(start, end))
    assert sorted(found.values()) == list(range(100, next_))
    assert "what was not read of the old one, from 1000 on, is lost to the reader" in caplog.text
    assert places(reader(broker, failOnDataLoss="false").partitions(start, end)) == found
    broker.next += 10
    more = query.latestOffset(end, ALL)
    assert sorted(places(query.partitions(end, more)).values()) == list(range(next_, next_ + 10))
    with pytest.raises(QueueUnusable, match="deleted and declared again"):
        reader(broker).partitions(start, end)


def test_a_batch_whose_stream_is_no_more(caplog: pytest.LogCaptureFixture) -> None:
    """It is repeated with as many partitions, all of them empty."""
    broker = Broker(0, 2000)
    broker.id = "b"
    end = {"s": 1000, "s.id": "a", "s.start": 200, "s.pieces": 2, "s.lost": 10}
    for start in ({"s": 190, "s.id": "a"}, {"s": 0, "s.id": "b", "s.initial": True}):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            pieces = reader(broker, failOnDataLoss="false").partitions(start, end)
        assert (len(pieces), places(pieces)) == (2, {})
        assert "810 messages of stream 's' are lost to the reader: it was deleted and" in caplog.text
        with pytest.raises(QueueUnusable, match="deleted and declared again"):
            reader(broker).partitions(start, end)


# --- where a query begins -----------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"failOnDataLoss": "false"}])
def test_a_start_beyond_the_end(monkeypatch: pytest.MonkeyPatch, more: dict[str, str]) -> None:
    """No message was lost, and the checkpoint is right: the number is wrong."""
    words = (
        r"option startingOffsets is 1001, and stream 's' ends at 1000; must be earliest, latest, or at most"
    )
    broker = Broker(0, 1000)
    monkeypatch.setattr(stream_source, "Questions", lambda options: broker)

    def batch(start: str) -> stream_source.StreamReader:
        given = {"url": "amqp://localhost", "stream": "s", "startingOffsets": start, **more}
        options = parse_source(given, streaming=False)
        assert isinstance(options, StreamOptions)
        return stream_source.StreamReader(options)

    with pytest.raises(OptionError, match=words):
        reader(broker, startingOffsets="1001", **more).initialOffset()
    with pytest.raises(OptionError, match=words):
        batch("1001").partitions()
    # Behind the last message is where a query may wait for the next one.
    assert reader(broker, startingOffsets="1000", **more).initialOffset()["s"] == 1000
    assert batch("1000").partitions() == []


# --- offsets as they are written ----------------------------------------------------------------------


def test_a_checkpoint_that_is_written_by_hand() -> None:
    query = reader(Broker(0, 1000), minPartitions="2")
    assert query.partitions({"s": 700}, {"s": 700}) == []
    assert query.latestOffset({"s": 700}, ALL) == {"s": 1000, "s.start": 700, "s.pieces": 2}
