"""How a range of offsets is cut into tasks, and what the data source chooses."""

from __future__ import annotations

import pickle
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.spark.datasource import Amqp10DataSource
from amqp10broker.spark.errors import DataLost, OptionError
from amqp10broker.spark.options import StreamOptions, parse_source
from amqp10broker.spark.row_layouts import COLUMNS, DDL, arrow_schema
from amqp10broker.spark.stream.range import StreamBounds, StreamRange, _Reading, split
from amqp10broker.spark.stream.source import PushdownReader, StreamReader, StreamStreamReader
from tests.support.spark_schema import SCHEMA

GIVEN = {"url": "amqp://guest:guest@localhost", "stream": "s"}


def options(**more: str) -> StreamOptions:
    parsed = parse_source({**GIVEN, **more}, streaming=False)
    assert isinstance(parsed, StreamOptions)
    return parsed


@given(st.integers(0, 10**12), st.integers(0, 10**6), st.integers(1, 50))
def test_pieces_are_the_range(start: int, count: int, pieces: int) -> None:
    """Without gap or overlap, of nearly one size, as many as asked for unless there are fewer offsets."""
    found = split(start, start + count, pieces, dense=True)
    assert len(found) == min(pieces, count)
    if found:
        assert (found[0].start, found[-1].end) == (start, start + count)
        assert all(one.end == other.start for one, other in pairwise(found))
        sizes = {piece.end - piece.start for piece in found}
        assert max(sizes) - min(sizes) <= 1


class Ends:
    """Says what it was told to say."""

    def __init__(self, bounds: StreamBounds) -> None:
        self._bounds = bounds

    def bounds(self) -> StreamBounds:
        return self._bounds


def reading(piece: StreamRange, bounds: StreamBounds, **more: str) -> _Reading:
    made = _Reading(options(**more), piece, None)
    made._ends = Ends(bounds)
    return made


def batch_of(*offsets: int) -> pa.RecordBatch:
    model: dict[str, Any] = dict.fromkeys(COLUMNS)
    return pa.RecordBatch.from_pylist([{**model, "offset": each} for each in offsets], schema=arrow_schema())


def test_a_gap_is_a_loss() -> None:
    """Where every offset is a message: retention was faster than the task, in the middle of its range."""
    at = reading(StreamRange(0, 100, True), StreamBounds(5, 100, dense=True))
    with pytest.raises(DataLost, match="3 messages of stream 's' are lost to the reader: 5 came after 1"):
        at._trimmed(batch_of(0, 1, 5, 6))
    with pytest.raises(DataLost, match="2 messages of stream 's' are lost to the reader: 2 came after -1"):
        reading(StreamRange(0, 100, True), StreamBounds(2, 100, dense=True))._trimmed(batch_of(2, 3))


def test_a_gap_of_a_broker_that_uses_offsets_for_itself() -> None:
    """No loss, unless the stream begins behind it by now."""
    at = reading(StreamRange(0, 100, False), StreamBounds(0, 100, dense=False))
    assert len(at._trimmed(batch_of(0, 1, 5, 6))) == 4
    assert at.position == 7
    at = reading(StreamRange(0, 100, False), StreamBounds(4, 100, dense=False))
    with pytest.raises(DataLost, match="3 messages"):
        at._trimmed(batch_of(0, 1, 5, 6))


def test_the_data_source_chooses_by_its_options() -> None:
    def source(**more: str) -> Amqp10DataSource:
        return Amqp10DataSource({**GIVEN, **more})

    assert Amqp10DataSource.name() == "amqp10"
    assert source().schema() == DDL
    assert tuple(arrow_schema().names) == COLUMNS
    assert type(source().reader(SCHEMA)) is StreamReader
    assert type(source(pushdown="true").reader(SCHEMA)) is PushdownReader
    reader = source().streamReader(SCHEMA)
    assert type(reader) is StreamStreamReader
    assert type(pickle.loads(pickle.dumps(reader))) is StreamStreamReader
    with pytest.raises(OptionError, match="linkCredit is 0"):
        source(linkCredit="0").reader(SCHEMA)
