"""How a range of offsets is cut into tasks, and what the data source chooses."""

from __future__ import annotations

import pickle
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.spark.datasource import Amqp10DataSource
from amqp10broker.spark.errors import DataLost, OptionError
from amqp10broker.spark.options import StreamOptions, parse_source
from amqp10broker.spark.schema import COLUMNS, DDL, arrow_schema
from amqp10broker.spark.stream_ends import Bounds
from amqp10broker.spark.stream_range import StreamRange, split
from amqp10broker.spark.stream_source import (
    ROWS_WORTH_A_TASK,
    PushdownReader,
    StreamReader,
    StreamStreamReader,
    plan,
)

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


def test_an_empty_range_has_no_pieces() -> None:
    assert split(5, 5, 3, dense=True) == []
    assert split(7, 5, 3, dense=True) == []


def test_few_rows_are_one_task() -> None:
    """Unless the option says otherwise."""
    bounds = Bounds(0, 10**9, dense=True)
    assert len(plan(options(), 0, ROWS_WORTH_A_TASK, bounds)) == 1
    assert len(plan(options(minPartitions="3"), 0, 10, bounds)) == 3


def test_what_retention_took_is_reported() -> None:
    bounds = Bounds(100, 200, dense=True)
    with pytest.raises(DataLost, match="90 messages of stream 's' are lost to the reader: offset 10"):
        plan(options(), 10, 200, bounds)
    (piece,) = plan(options(failOnDataLoss="false"), 10, 200, bounds)
    assert piece == StreamRange(100, 200, True)
    assert plan(options(failOnDataLoss="false"), 10, 50, bounds) == []


def test_the_data_source_chooses_by_its_options() -> None:
    def source(**more: str) -> Amqp10DataSource:
        return Amqp10DataSource({**GIVEN, **more})

    assert Amqp10DataSource.name() == "amqp10"
    assert source().schema() == DDL
    assert tuple(arrow_schema().names) == COLUMNS
    assert type(source().reader(None)) is StreamReader
    assert type(source(pushdown="true").reader(None)) is PushdownReader
    reader = source().streamReader(None)
    assert type(reader) is StreamStreamReader
    assert type(pickle.loads(pickle.dumps(reader))) is StreamStreamReader
    with pytest.raises(OptionError, match="linkCredit is 0"):
        source(linkCredit="0").reader(None)
