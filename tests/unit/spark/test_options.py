"""Options of the data source: what is read, and what is said of each mistake."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from amqp10broker.spark.errors import OptionError
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
    """Names in any case, as Spark hands them over."""
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
    """Neither by repr nor by any error, whatever is wrong."""
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
    for given in faults:
        assert secret not in refused(given)


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
    """Also a table that is created, whose options may come later."""
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
