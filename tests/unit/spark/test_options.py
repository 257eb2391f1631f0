"""What is read of a stream: options, offsets, conditions that the broker checks."""

from __future__ import annotations

import pickle
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from amqp10broker.message.filters.sql_parser import tokenize
from amqp10broker.spark import stream_source
from amqp10broker.spark.datasource import Amqp10DataSource
from amqp10broker.spark.errors import DataLost, OptionError
from amqp10broker.spark.options import (
    EARLIEST,
    LATEST,
    ConnectionOptions,
    StartKind,
    StartPosition,
    StreamOptions,
    check_at_load,
    parse_source,
)
from amqp10broker.spark.rows import COLUMNS, DDL, arrow_schema
from tests.support.spark_schema import SCHEMA

URL = "amqp://guest:guest@localhost:5673/shop"
STREAM = {"url": URL, "stream": "orders"}
QUEUE = {"url": URL, "queue": "orders", "spoolLocation": "/spool"}


def stream(streaming: bool = False, **more: Any) -> StreamOptions:
    options = parse_source({**STREAM, **more}, streaming=streaming)
    assert isinstance(options, StreamOptions)
    return options


def refused(given: dict[str, str], *, streaming: bool = False) -> str:
    with pytest.raises(OptionError) as raised:
        parse_source(given, streaming=streaming)
    return str(raised.value)


# --- what is read -----------------------------------------------------------------------------------


def test_defaults_of_a_stream() -> None:
    assert stream() == StreamOptions(
        connection=ConnectionOptions(
            host="localhost",
            port=5673,
            tls=False,
            vhost="shop",
            username="guest",
            password="guest",
            mechanism="PLAIN",
        ),
        stream="orders",
        start=EARLIEST,
        end_offset=None,
        max_offsets_per_trigger=None,
        min_partitions=None,
        fail_on_data_loss=True,
        link_credit=1000,
        arrow_batch_rows=4096,
        idle_timeout_s=30.0,
        filter=None,
        pushdown=False,
    )


def test_every_option_of_a_stream() -> None:
    """Names come in any case, as Spark passes them."""
    options = stream(
        STARTINGOFFSETS='{"orders": 7}',
        endingoffsets="900",
        minPartitions="4",
        failOnDataLoss="False",
        linkCredit="50",
        arrowBatchSize="10",
        idleTimeout="1500ms",
        filter="a > 3",
        pushdown="true",
        retryTimeout="2m",
    )
    assert options.start == StartPosition(StartKind.OFFSET, 7)
    assert (options.end_offset, options.min_partitions, options.fail_on_data_loss) == (900, 4, False)
    assert (options.link_credit, options.arrow_batch_rows, options.idle_timeout_s) == (50, 10, 1.5)
    assert (options.filter, options.pushdown, options.connection.retry_timeout_s) == ("a > 3", True, 120.0)
    assert stream(True, maxOffsetsPerTrigger="99").max_offsets_per_trigger == 99


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", EARLIEST),
        ("Latest", LATEST),
        ("12", StartPosition(StartKind.OFFSET, 12)),
        ('{"orders": 0}', StartPosition(StartKind.OFFSET, 0)),
        # Copied from a query's progress.
        ('{"orders": 9, "orders.start": 5, "orders.pieces": 2}', StartPosition(StartKind.OFFSET, 9)),
    ],
)
def test_where_to_begin(text: str, start: StartPosition) -> None:
    assert stream(startingOffsets=text).start == start


# --- reaching the broker ----------------------------------------------------------------------------


def connection(**given: str) -> ConnectionOptions:
    return parse_source({"stream": "s", **given}, streaming=False).connection


@pytest.mark.parametrize(
    ("url", "host", "port", "tls", "vhost"),
    [
        ("amqp://broker", "broker", 5672, False, None),
        ("amqps://broker/", "broker", 5671, True, None),
        ("amqp://[::1]:1/%2F", "::1", 1, False, "/"),
        ("AMQP://h:2/a%20b", "h", 2, False, "a b"),
    ],
)
def test_urls(url: str, host: str, port: int, tls: bool, vhost: str | None) -> None:
    got = connection(url=url)
    assert (got.host, got.port, got.tls, got.vhost) == (host, port, tls, vhost)
    assert (got.username, got.mechanism) == (None, "ANONYMOUS")


def test_user_and_password_in_the_url_are_percent_encoded() -> None:
    got = connection(url="amqp://m%40e:p%2Fw@broker")
    assert (got.username, got.password) == ("m@e", "p/w")


def test_passwords_are_not_shown() -> None:
    secret = "hunter2"
    assert secret not in repr(stream(url=f"amqp://me:{secret}@h"))
    url = f"amqp://me:{secret}@h"
    faults = [
        {"url": f"http://me:{secret}@h", "stream": "s"},
        {"url": f"amqp://me:{secret}@h:port", "stream": "s"},
        {"url": f"amqp://me:{secret}@h/a/b", "stream": "s"},
        {"url": f"amqp://me:{secret}@/v", "stream": "s"},
        {"url": f"amqp://me:{secret}@h?x=1", "stream": "s"},
        {"url": f"amqp://me:x#{secret}@h", "stream": "s"},
        {"url": url, "stream": "s", "password": secret},
        {"url": url, "stream": "s", "username": "me"},
        {"url": url, "stream": "s", "saslMechanism": "ANONYMOUS"},
        {"url": "amqp://h", "stream": "s", "password": secret},
        {"url": url, "stream": "s", "passwort": secret},
    ]
    for fault in faults:
        assert secret not in refused(fault)


def test_options_travel_to_workers() -> None:
    """Readers are pickled with them, the password included, and so are errors."""
    options = stream()
    assert pickle.loads(pickle.dumps(options)) == options
    error = OptionError("linkCredit", "is 0", "must be an integer from 1")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


# --- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"linkCredits": "1"}, "option linkCredits is unknown; did you mean linkCredit?"),
        ({"startingOfsets": "earliest"}, "did you mean startingOffsets?"),
        ({"zzz": "1"}, "option zzz is unknown; known here: arrowBatchSize, endingOffsets"),
        ({"path": "/x"}, "use load() and save() without path"),
        ({"linkCredit": "many"}, "option linkCredit is 'many'; must be an integer from 1 to 1000000"),
        ({"linkCredit": "0"}, "option linkCredit is 0; must be an integer from 1"),
        ({"failOnDataLoss": "maybe"}, "option failOnDataLoss is 'maybe'; must be true or false"),
        ({"idleTimeout": "0s"}, "option idleTimeout is '0s'; must be a time above 0"),
        ({"idleTimeout": "soon"}, "must be a time above 0 such as 30s"),
        ({"startingOffsets": "first"}, "must be earliest, latest, an offset from 0"),
        ({"startingOffsets": "-1"}, "option startingOffsets is '-1'"),
        ({"startingOffsets": "1.5"}, "option startingOffsets is '1.5'"),
        ({"startingOffsets": "true"}, "option startingOffsets is 'true'"),
        ({"startingOffsets": '{"other": 1}'}, "does not name the stream 'orders' alone"),
        ({"startingOffsets": '{"orders": 1, "orders.eu": 1}'}, "does not name the stream 'orders' alone"),
        ({"endingOffsets": "earliest"}, "must be latest, an offset"),
        ({"startingOffsets": "5", "endingOffsets": "4"}, "is 4, before startingOffsets 5"),
        ({"startingTimestamp": "yesterday"}, "must be milliseconds since 1970"),
        ({"startingTimestamp": "2026-01-31T12:00:00"}, "without a zone"),
        ({"startingTimestamp": "1969-01-31T12:00:00Z"}, "before 1970"),
        ({"startingTimestamp": "9" * 20}, "is 99999999999999999999; must be an integer from 0"),
        ({"startingTimestamp": "9" * 5000}, "must be an integer from 0"),
        ({"startingOffsets": "[" * 100_000}, "must be earliest, latest, an offset from 0"),
        ({"endingOffsets": '{"orders":' * 100_000}, "must be latest, an offset from 0"),
        ({"startingOffsets": "9" * 5000}, "must be earliest, latest, an offset from 0"),
        ({"linkCredit": "9" * 5000}, "must be an integer from 1 to 1000000"),
        ({"idleTimeout": "9" * 400}, "and no more than a year"),
        ({"retryTimeout": "8761h"}, "and no more than a year"),
        ({"tls.caFile": "a\0b"}, "option tls.caFile has a character 0 in it"),
        ({"filter": "a = '\ud800'"}, "option filter has half a character in it"),
        ({"startingTimestamp": "1", "startingOffsets": "1"}, "given together with startingOffsets"),
        ({"filter": ""}, "option filter is empty"),
        ({"maxOffsetsPerTrigger": "1"}, "it is for streaming queries of a stream only"),
        ({"spoolLocation": "/x"}, "option spoolLocation does not apply here; it is for queues only"),
        ({"routingKey": "/x"}, "it is for sinks only"),
        ({"queue": "q"}, "option queue is given together with stream; give exactly one"),
        ({"LINKCREDIT": "1", "linkCredit": "1"}, "option linkCredit is given twice"),
        ({"tls.caFile": "/ca"}, "url begins with amqp://"),
        ({"vhost": "v"}, "url names a virtual host, too"),
        ({"saslMechanism": "SCRAM"}, "must be PLAIN or ANONYMOUS or EXTERNAL"),
    ],
)
def test_what_is_wrong_with_a_stream(more: dict[str, str], message: str) -> None:
    told = refused({**STREAM, **more})
    assert message in told
    assert len(told) < 600


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "option stream is missing"),
        ({"steam": "x"}, "did you mean stream?"),
        ({"stream": "s"}, "option url is missing"),
        ({"stream": "", "url": URL}, "option stream is empty"),
        ({"url": URL, "queue": "q"}, "option spoolLocation is missing"),
        ({**QUEUE, "deduplicate": "yes"}, "must be none or messageId"),
        ({"stream": "s", "url": "amqp://me@h"}, "give the password of user 'me'"),
        ({"stream": "s", "url": "amqp://h", "saslMechanism": "PLAIN"}, "option username is missing"),
        ({"stream": "s", "url": "amqps://h", "saslMechanism": "EXTERNAL"}, "logs in with it"),
        ({"stream": "s", "url": "amqps://h", "tls.keyFile": "k"}, "option tls.certificateFile is missing"),
    ],
)
def test_what_is_wrong_with_a_source(given: dict[str, str], message: str) -> None:
    assert message in refused(given)


def test_options_of_batch_queries_are_refused_by_streaming_ones() -> None:
    assert "it is for batch queries of a stream only" in refused(
        {**STREAM, "endingOffsets": "latest"}, streaming=True
    )


# --- at load, when the kind of query is not known yet ------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        STREAM,
        QUEUE,
        {**STREAM, "endingOffsets": "5", "pushdown": "true"},
        {**STREAM, "maxOffsetsPerTrigger": "5"},
        {"provider": "amqp10", "owner": "me"},
        {"url": URL, "option.url": URL, "provider": "amqp10"},
    ],
)
def test_what_may_be_right_is_let_through_at_load(given: dict[str, str]) -> None:
    """This includes a table that is created, whose options may come later."""
    check_at_load(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"url": URL}, "option stream is missing"),
        ({"stream": "s"}, "option url is missing"),
        ({**STREAM, "linkCredits": "1"}, "did you mean linkCredit?"),
        ({**STREAM, "linkCredit": "x"}, "option linkCredit is 'x'"),
        ({**STREAM, "endingOffsets": "5", "linkCredit": "x"}, "option linkCredit is 'x'"),
        ({**STREAM, "maxOffsetsPerTrigger": "5", "linkCredit": "x"}, "option linkCredit is 'x'"),
        ({**STREAM, "maxOffsetsPerTrigger": "5", "endingOffsets": "5"}, "does not apply here"),
        ({"url": URL, "queue": "q"}, "option spoolLocation is missing"),
        ({"url": URL, "address": "/queues/q"}, "option address does not apply here; it is for sinks only"),
    ],
)
def test_what_no_query_can_be_made_of_is_refused_at_load(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as raised:
        check_at_load(given)
    assert message in str(raised.value)


GIVEN = {"url": "amqp://guest:guest@localhost", "stream": "s"}


def options(**more: str) -> StreamOptions:
    parsed = parse_source({**GIVEN, **more}, streaming=False)
    assert isinstance(parsed, StreamOptions)
    return parsed


@given(st.integers(0, 10**12), st.integers(0, 10**6), st.integers(1, 50))
def test_pieces_are_the_range(start: int, count: int, pieces: int) -> None:
    """They have no gap or overlap, are of nearly one size, and fewer only if there are fewer offsets."""
    found = stream_source.split(start, start + count, pieces, dense=True)
    assert len(found) == min(pieces, count)
    if found:
        assert (found[0].start, found[-1].end) == (start, start + count)
        assert all(one.end == other.start for one, other in pairwise(found))
        sizes = {piece.end - piece.start for piece in found}
        assert max(sizes) - min(sizes) <= 1


class Ends:
    """Says what it was told to say."""

    def __init__(self, bounds: stream_source.StreamBounds) -> None:
        self._bounds = bounds

    def bounds(self) -> stream_source.StreamBounds:
        return self._bounds


def reading(
    piece: stream_source.StreamRange, bounds: stream_source.StreamBounds, **more: str
) -> stream_source._Reading:
    made = stream_source._Reading(options(**more), piece, None)
    made._ends = Ends(bounds)
    return made


def batch_of(*offsets: int) -> pa.RecordBatch:
    model: dict[str, Any] = dict.fromkeys(COLUMNS)
    return pa.RecordBatch.from_pylist([{**model, "offset": each} for each in offsets], schema=arrow_schema())


def test_a_gap_is_a_loss() -> None:
    """Each offset is a message there: retention was faster than the task, within its range."""
    at = reading(stream_source.StreamRange(0, 100, True), stream_source.StreamBounds(5, 100, dense=True))
    with pytest.raises(DataLost, match="3 messages of stream 's' are lost to the reader: 5 came after 1"):
        at._trimmed(batch_of(0, 1, 5, 6))
    with pytest.raises(DataLost, match="2 messages of stream 's' are lost to the reader: 2 came after -1"):
        reading(
            stream_source.StreamRange(0, 100, True), stream_source.StreamBounds(2, 100, dense=True)
        )._trimmed(batch_of(2, 3))


def test_a_gap_of_a_broker_that_uses_offsets_for_itself() -> None:
    """It is no loss, unless the stream now begins behind it."""
    at = reading(stream_source.StreamRange(0, 100, False), stream_source.StreamBounds(0, 100, dense=False))
    assert len(at._trimmed(batch_of(0, 1, 5, 6))) == 4
    assert at.position == 7
    at = reading(stream_source.StreamRange(0, 100, False), stream_source.StreamBounds(4, 100, dense=False))
    with pytest.raises(DataLost, match="3 messages"):
        at._trimmed(batch_of(0, 1, 5, 6))


def test_the_data_source_chooses_by_its_options() -> None:
    def source(**more: str) -> Amqp10DataSource:
        return Amqp10DataSource({**GIVEN, **more})

    assert Amqp10DataSource.name() == "amqp10"
    assert source().schema() == DDL
    assert tuple(arrow_schema().names) == COLUMNS
    assert type(source().reader(SCHEMA)) is stream_source.StreamReader
    assert type(source(pushdown="true").reader(SCHEMA)) is stream_source.PushdownReader
    reader = source().streamReader(SCHEMA)
    assert type(reader) is stream_source.StreamStreamReader
    assert type(pickle.loads(pickle.dumps(reader))) is stream_source.StreamStreamReader
    with pytest.raises(OptionError, match="linkCredit is 0"):
        source(linkCredit="0").reader(SCHEMA)


OFFSET = ("offset",)


def pushed(*filters: Filter) -> tuple[stream_source.Pushed, list[Filter]]:
    into = stream_source.Pushed()
    return into, list(stream_source.push(filters, into))


@pytest.mark.parametrize(
    ("condition", "low", "high"),
    [
        (GreaterThan(OFFSET, 5), 6, None),
        (GreaterThanOrEqual(OFFSET, 5), 5, None),
        (LessThan(OFFSET, 5), 0, 5),
        (LessThanOrEqual(OFFSET, 5), 0, 6),
        (EqualTo(OFFSET, 5), 5, 6),
        (LessThan(OFFSET, -3), 0, 0),
    ],
)
def test_conditions_on_the_offset_become_a_range(condition: Filter, low: int, high: int | None) -> None:
    into, left = pushed(condition)
    assert (into.low, into.high, left) == (low, high, [])


@pytest.mark.parametrize(
    "condition",
    [
        In(OFFSET, (1, 2)),
        Not(EqualTo(OFFSET, 1)),
        IsNotNull(OFFSET),
        EqualNullSafe(OFFSET, 5),
        EqualTo(("body",), b"x"),
        GreaterThan(("subject",), "a"),
        EqualTo(("applicationProperties", "k"), "v"),
    ],
)
def test_the_rest_is_left_to_spark(condition: Filter) -> None:
    into, left = pushed(condition)
    assert left == [condition]
    assert into == stream_source.Pushed()


@pytest.mark.parametrize(
    ("column", "value", "sql"),
    [
        ("subject", "it's", "p.subject = 'it''s'"),
        ("messageId", "a", "p.message_id = 'a'"),
        ("messageId", "17", "(p.message_id = '17' OR p.message_id = 17)"),
        ("messageId", "017", "p.message_id = '017'"),
        ("messageId", "0x00ff", "(p.message_id = '0x00ff' OR p.message_id = 0x00FF)"),
        ("messageId", "0xABCD", "p.message_id = '0xABCD'"),
    ],
)
def test_texts_become_sql_and_are_checked_again(column: str, value: str, sql: str) -> None:
    """A column shows ids of other types as text, and the condition must let them through."""
    condition = EqualTo((column,), value)
    into, left = pushed(condition)
    assert left == [condition]
    assert into.sql(None) == sql
    assert into.sql("a > 1 OR b") == f"(a > 1 OR b) AND {sql}"


@pytest.mark.parametrize(
    "value", ["0x", "12345678901234567890", "00000000-0000-0000-0000-000000000001", "x" * 4096, "line\nbreak"]
)
def test_ids_that_no_sql_says_exactly(value: str) -> None:
    into, left = pushed(EqualTo(("messageId",), value))
    assert into.sql(None) is None
    assert len(left) == 1


@pytest.mark.parametrize("given", [" OR ".join(["a = 1"] * 49), "a = '" + "x" * 4000 + "'"])
def test_a_long_filter_leaves_no_room(given: str) -> None:
    """A broker takes at most 200 tokens and 4096 characters; Spark evaluates the rest."""
    into, left = pushed(*(EqualTo(("subject",), f"{number}" * 80) for number in range(5)))
    assert into.sql(given) == given
    assert len(left) == 5


def test_as_many_conditions_as_there_is_room_for() -> None:
    into, _ = pushed(EqualTo(("subject",), "x" * 4090), EqualTo(("subject",), "y"))
    assert into.sql("a") == "(a) AND p.subject = 'y'"
    into, _ = pushed(*(EqualTo(("subject",), f"{number}") for number in range(100)))
    sql = into.sql(None)
    assert sql.count("p.subject") > 20
    assert tokenize(sql)
