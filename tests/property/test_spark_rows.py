"""The bulk decoder gives the rows that reading message by message gives, whatever the messages are."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from amqp10broker.client.message import BodyKind, Header, Message, Properties, decode_message
from amqp10broker.client.options import UrlError, parse_url
from amqp10broker.message.amqp10 import MessageReader
from amqp10broker.message.stream_heads import delivered_with_time, kept
from amqp10broker.protocols.amqp10 import types
from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.errors import DecodeError
from amqp10broker.spark.errors import OptionError, UnreadableMessage
from amqp10broker.spark.options import check_at_load, parse_sink, parse_source
from amqp10broker.spark.rows import MS_MAX, RowDecoder, microseconds, read_row, text_of
from tests.support.engine import section
from tests.support.examples import tried

TEXT = st.text(max_size=8) | st.text("ab", min_size=250, max_size=260)
ASCII = st.text(st.characters(codec="ascii"), max_size=8)
INT64 = st.integers(-(2**63), 2**63 - 1)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    TEXT,
    ASCII.map(types.Symbol),
    st.binary(max_size=8),
    INT64,
    INT64.map(types.Long),
    st.integers(-(2**31), 2**31 - 1).map(types.Int),
    st.integers(0, 2**64 - 1).map(types.ULong),
    st.integers(0, 2**32 - 1).map(types.UInt),
    st.integers(0, 2**16 - 1).map(types.UShort),
    st.integers(-(2**15), 2**15 - 1).map(types.Short),
    st.integers(0, 255).map(types.UByte),
    st.integers(-128, 127).map(types.Byte),
    INT64.map(types.Timestamp),
    st.floats(allow_nan=False),
    st.floats(width=32, allow_nan=False).map(types.Float),
    st.characters(codec="utf-8").map(types.Char),
    st.uuids(),
)
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(TEXT, SCALARS, max_size=3)
MESSAGE_IDS = (
    st.none() | TEXT | st.binary(max_size=5) | st.uuids() | st.integers(0, 2**64 - 1).map(types.ULong)
)
PROPERTIES = st.none() | st.builds(
    Properties,
    message_id=MESSAGE_IDS,
    user_id=st.none() | st.binary(max_size=5),
    to=st.none() | TEXT,
    subject=st.none() | TEXT,
    content_type=st.none() | ASCII.map(types.Symbol),
    creation_time=st.none() | INT64,
    group_sequence=st.none() | st.integers(0, 2**32 - 1),
)
ANNOTATIONS = st.none() | st.builds(
    lambda offset, kind, time, more: {
        **{types.Symbol(key): value for key, value in more.items()},
        **({} if time is None else {types.Symbol("x-opt-enqueued-time"): types.Timestamp(time)}),
        **({} if offset is None else {types.Symbol("x-stream-offset"): kind(offset)}),
    },
    st.none() | st.integers(0, 2**63 - 1),
    st.sampled_from([types.Long, types.ULong]),  # a long of this broker and of RabbitMQ
    st.none() | st.integers(-(2**62), 2**62),
    st.dictionaries(ASCII.map("x-".__add__), SCALARS, max_size=2),
)
BODIES = st.one_of(
    st.tuples(st.binary(max_size=8) | st.binary(min_size=254, max_size=258), st.just(BodyKind.DATA)),
    st.tuples(VALUES, st.just(BodyKind.VALUE)),
    st.tuples(st.lists(SCALARS, max_size=3), st.just(BodyKind.SEQUENCE)),
)
MESSAGES = st.builds(
    lambda body, properties, application, annotations, header: Message(
        body[0], properties, application, header=header, message_annotations=annotations, kind=body[1]
    ),
    BODIES,
    PROPERTIES,
    st.none() | st.dictionaries(TEXT, VALUES, max_size=3),
    ANNOTATIONS,
    st.none() | st.builds(Header, durable=st.booleans(), priority=st.integers(0, 9)),
)
MUTATIONS = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=3)


def plain(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows with times as numbers, since Python has none beyond the year 9999."""
    place = batch.schema.names.index("enqueuedTime")
    return batch.set_column(place, "enqueuedTime", batch.column(place).cast(pa.int64())).to_pylist()


def expected(payloads: list[bytes], *, of_stream: bool = True) -> list[dict[str, Any]]:
    """Decode rows one by one, as `RowDecoder` does with few messages."""
    decoder = RowDecoder("s", of_stream=of_stream)
    found: list[dict[str, Any]] = []
    for payload in payloads:
        found += plain(decoder.batch([payload]))
    return found


def variants(message: Message, count: int, seed: int) -> list[bytes]:
    """Make messages like one with other values of the same types, as a publisher does."""
    random_source = random.Random(seed)
    encoded = []
    for number in range(count):
        annotations = dict(message.message_annotations or {})
        kind = type(annotations.get(types.Symbol("x-stream-offset"), types.Long(0)))
        annotations[types.Symbol("x-stream-offset")] = kind(number + 2**33)
        properties = message.properties
        if properties is not None and isinstance(properties.message_id, str):
            properties = Properties(message_id=f"{number}", subject=properties.subject)
        body = message.body
        if isinstance(body, bytes) and message.kind is BodyKind.DATA:
            body = bytes(random_source.randrange(256) for _ in range(random_source.randrange(30)))
        encoded.append(
            Message(
                body,
                properties,
                message.application_properties,
                header=message.header,
                message_annotations=annotations,
                kind=message.kind,
            ).encode()
        )
    return encoded


@settings(max_examples=tried(40))
@given(st.lists(MESSAGES, min_size=1, max_size=4), st.integers(0, 2**32), st.data())
def test_mixtures_of_layouts(messages: list[Message], seed: int, data: st.DataObject) -> None:
    """Messages of several publishers are mixed; layouts learned from one batch are used on the next."""
    payloads = [payload for message in messages for payload in variants(message, 12, seed)]
    random.Random(seed).shuffle(payloads)
    decoder = RowDecoder("s")
    half = data.draw(st.integers(0, len(payloads)))
    found = plain(decoder.batch(payloads[:half])) + plain(decoder.batch(payloads[half:]))
    assert found == expected(payloads)


@settings(max_examples=tried(40))
@given(st.lists(MESSAGES.map(Message.encode), min_size=8, max_size=20))
def test_arbitrary_messages(payloads: list[bytes]) -> None:
    assert plain(RowDecoder("s").batch(payloads)) == expected(payloads)


@settings(max_examples=tried(40))
@given(
    st.lists(MESSAGES, min_size=1, max_size=3),
    st.integers(0, 2**32),
    st.integers(1, 36),
    st.lists(st.integers(0, 2**48), min_size=1, max_size=4),
)
def test_messages_that_say_when_they_were_enqueued(
    messages: list[Message], seed: int, size: int, times_ms: list[int]
) -> None:
    """In bulk and one by one the broker's time of the chunk counts, whatever publishers wrote."""
    reader = MessageReader("", "s", "guest", impersonator=True)
    published = [reader.read(payload) for message in messages for payload in variants(message, 12, seed)]
    random.Random(seed).shuffle(published)
    payloads: list[bytes] = []
    wanted: list[tuple[int, int | None]] = []
    for first in range(0, len(published), size):
        chunk = kept(published[first : first + size])
        offsets = range(first, first + len(chunk))
        time_ms = times_ms[first // size % len(times_ms)]
        payloads += [head + bare for head, bare in delivered_with_time(chunk, offsets, time_ms)]
        wanted += [(offset, time_ms * 1000 if time_ms <= MS_MAX else None) for offset in offsets]
    found = plain(RowDecoder("s").batch(payloads))
    assert found == expected(payloads)
    assert [(row["offset"], row["enqueuedTime"]) for row in found] == wanted


@settings(max_examples=tried(40))
@given(MESSAGES, st.integers(0, 2**32), SCALARS)
def test_a_queues_messages_have_no_offset(message: Message, seed: int, value: Any) -> None:
    """This holds for any message, and for any value of the annotation."""
    payloads = []
    for payload in variants(message, 12, seed):
        annotated = decode_message(payload)
        annotations = {**(annotated.message_annotations or {}), types.Symbol("x-stream-offset"): value}
        payloads.append(replace(annotated, message_annotations=annotations).encode())
    found = plain(RowDecoder("s", of_stream=False).batch(payloads))
    assert found == expected(payloads, of_stream=False)
    assert [row["offset"] for row in found] == [None] * 12


@settings(max_examples=tried(40))
@given(MESSAGES, st.integers(0, 2**32), MUTATIONS, st.integers(0, 19))
def test_damaged_messages(message: Message, seed: int, mutations: list[tuple[int, int]], at: int) -> None:
    """One of many is damaged: it is read or refused as it would be by itself."""
    payloads = variants(message, 20, seed)
    damaged = bytearray(payloads[at])
    for place, octet in mutations:
        damaged[place % len(damaged)] = octet
    payloads[at] = bytes(damaged)
    try:
        wanted = expected(payloads)
    except UnreadableMessage:
        with pytest.raises(UnreadableMessage) as raised:
            RowDecoder("s").batch(payloads)
        assert str(raised.value).startswith(f"message {at} of a batch of 's' ")
    else:
        assert plain(RowDecoder("s").batch(payloads)) == wanted


@settings(max_examples=tried(40))
@given(MESSAGES)
def test_reading_one_agrees_with_the_clients_decoder(message: Message) -> None:
    """The client's `decode_message` builds every value."""
    payload = message.encode()
    row = read_row(payload)
    decoded = decode_message(payload)
    properties = decoded.properties or Properties()
    assert row.subject == properties.subject
    assert row.message_id == text_of(properties.message_id)
    annotations = decoded.message_annotations or {}
    assert row.offset == annotations.get(types.Symbol("x-stream-offset"))
    annotated_ms = annotations.get(types.Symbol("x-opt-enqueued-time"))
    created_ms = properties.creation_time
    assert row.enqueued_us == microseconds(created_ms if annotated_ms is None else annotated_ms)
    application = decoded.application_properties
    assert row.application_properties == (
        None if application is None else {text_of(key): text_of(value) for key, value in application.items()}
    )
    match decoded.body:
        case bytes():
            assert row.body == decoded.body
        case str() if not isinstance(decoded.body, types.Char):
            assert row.body == decoded.body.encode()
        case None:
            assert row.body is None
        case value:
            assert row.body == encode(value)


def test_every_single_byte_damaged() -> None:
    message = Message(
        b"body",
        Properties(message_id="id", to="to", subject="s", content_type=types.Symbol("ct"), creation_time=5),
        {"region": "EU", "n": types.Int(1000), "yes": True},
        header=Header(durable=True),
        message_annotations={types.Symbol("x-text"): "t", types.Symbol("x-binary"): b"b"},
    )
    payloads = variants(message, 20, 1)
    good = expected(payloads)
    model = payloads[7]
    for place in range(len(model)):
        for octet in {0, 0xFF, model[place] ^ 1, model[place] + 1 & 0xFF}:
            damaged = model[:place] + bytes((octet,)) + model[place + 1 :]
            mixed = [*payloads[:7], damaged, *payloads[8:]]
            try:
                wanted = [*good[:7], *expected([damaged]), *good[8:]]
            except UnreadableMessage:
                with pytest.raises(UnreadableMessage) as raised:
                    RowDecoder("s").batch(mixed)
                assert str(raised.value).startswith("message 7 of a batch of 's' ")
            else:
                assert plain(RowDecoder("s").batch(mixed)) == wanted


@pytest.mark.parametrize(
    "message",
    [
        Message(b"", Properties(content_type=types.Symbol("ct"))),
        Message(b"", application_properties={"k": types.Symbol("ct")}),
        Message(types.Symbol("ct"), kind=BodyKind.VALUE),
    ],
)
def test_symbols_that_are_not_ascii(message: Message) -> None:
    """Valid UTF-8 is still no symbol, wherever it stands."""
    payload = message.encode()
    damaged = payload.replace(b"ct", "é".encode())
    with pytest.raises(UnreadableMessage) as raised:
        RowDecoder("s").batch([payload] * 9 + [damaged] + [payload] * 9)
    assert str(raised.value).startswith("message 9 of a batch of 's' ")


# --- cases by name ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "body"),
    [
        (section(0x75, b"a") + section(0x75, b"bc"), b"abc"),
        (section(0x76, [1]) + section(0x76, ["x"]), encode([1]) + encode(["x"])),
        (section(0x77, "grün"), "grün".encode()),
        (section(0x77, types.Symbol("s")), b"s"),
        (section(0x77, b"raw"), b"raw"),
        (section(0x77, None), None),
        (section(0x77, 5), encode(5)),
        (section(0x77, types.Char("x")), encode(types.Char("x"))),
        (section(0x77, {"a": 1}), encode({"a": 1})),
        (section(0x70, []), None),
        (b"", None),
    ],
)
def test_bodies(payload: bytes, body: bytes | None) -> None:
    assert read_row(payload).body == body
    assert RowDecoder("s").batch([payload] * 10).column("body").to_pylist() == [body] * 10


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (b"\x01\xff", "0x01ff"),
        (b"", "0x"),
        (types.ULong(2**64 - 1), "18446744073709551615"),
        (types.Timestamp(1_700_000_000_123), "2023-11-14T22:13:20.123Z"),
        (types.Timestamp(2**62), str(2**62)),
        (True, "true"),
        (1.5, "1.5"),
        (types.Float(0.1), "0.10000000149011612"),
        ([1], "0x" + encode([1]).hex()),
        (None, None),
    ],
)
def test_values_as_text(value: Any, text: str | None) -> None:
    assert text_of(value) == text
    payload = Message(b"", application_properties={"k": value}).encode()
    found = RowDecoder("s").batch([payload] * 10).column("applicationProperties").to_pylist()
    assert found == [[("k", text)]] * 10


def test_a_section_that_comes_twice() -> None:
    """The later section counts, as a whole."""
    payload = Properties(subject="s").encode() + Properties(message_id="m").encode() + section(0x75, b"")
    assert (read_row(payload).subject, read_row(payload).message_id) == (None, "m")
    assert plain(RowDecoder("s").batch([payload] * 10)) == expected([payload] * 10)


def test_keys_that_become_the_same_text() -> None:
    """A binary or number as a key becomes text; of two equal ones the later counts."""
    pairs = types.Map(((types.ULong(1), "a"), ("1", "b"), (b"k", "c")))
    payload = section(0x74, pairs) + section(0x75, b"")
    assert read_row(payload).application_properties == {"1": "b", "0x6b": "c"}
    assert plain(RowDecoder("s").batch([payload] * 10)) == expected([payload] * 10)


@pytest.mark.parametrize(
    "payload",
    [
        b"garbage",
        section(0x75, "text"),
        section(0x75, b"") + section(0x77, 1),
        section(0x74, [1]),
        b"\x00\x53\x99\x40",
        section(0x72, {types.Symbol("x-stream-offset"): "seven"}) + section(0x75, b""),
    ],
)
def test_what_is_no_message(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        read_row(payload)
    good = section(0x75, b"good")
    with pytest.raises(UnreadableMessage, match="message 3 of a batch of 's' is no AMQP 1.0 message"):
        RowDecoder("s").batch([good] * 3 + [payload] + [good] * 20)


@pytest.mark.parametrize("value", ["foo", types.ULong(2**63), types.ULong(7), None, [1]])
def test_an_offset_that_somebody_wrote_into_a_queues_message(value: Any) -> None:
    """A queue's messages have no offset, and an impossible value is ignored."""
    annotated = Message(b"x", message_annotations={types.Symbol("x-stream-offset"): value}).encode()
    assert read_row(annotated, of_stream=False).offset is None
    decoder = RowDecoder("q", of_stream=False)
    for count in (1, 20):
        assert decoder.batch([annotated] * count).column("offset").to_pylist() == [None] * count


JANUARY_3_1 = -62_135_596_800_000 + 2 * 86_400_000
DECEMBER_31_9999 = 253_402_300_800_000 - 86_400_000


@pytest.mark.parametrize("annotation", [False, True])
@pytest.mark.parametrize(
    ("ms", "kept"),
    [
        (JANUARY_3_1, True),
        (JANUARY_3_1 - 1, False),
        (DECEMBER_31_9999 - 1, True),
        (DECEMBER_31_9999, False),
        (1_700_000_000_000_000, False),
        (2**63 - 1, False),
        (-(2**63), False),
    ],
)
@pytest.mark.parametrize("count", [1, 20])
def test_times_that_python_does_not_know(ms: int, kept: bool, annotation: bool, count: int) -> None:
    """They are null, alone or in bulk, so that the other rows can be collected."""
    message = (
        Message(b"x", message_annotations={types.Symbol("x-opt-enqueued-time"): types.Timestamp(ms)})
        if annotation
        else Message(b"x", Properties(creation_time=ms))
    )
    rows = plain(RowDecoder("s").batch([message.encode()] * count))
    assert [row["enqueuedTime"] for row in rows] == [ms * 1000 if kept else None] * count


def test_many_layouts_and_then_one_again() -> None:
    """There are more layouts than are kept: the newest replaces the oldest, and all rows are right."""
    kinds = [Message(b"x", application_properties={f"k{number}": "v"}) for number in range(40)]
    decoder = RowDecoder("s")
    for _ in range(2):
        for kind in kinds:
            payloads = variants(kind, 10, 1)
            assert plain(decoder.batch(payloads)) == expected(payloads)
    mixed = [payload for kind in kinds for payload in variants(kind, 10, 1)]
    assert plain(decoder.batch(mixed)) == expected(mixed)


NAMES = (
    *("url", "vhost", "username", "password", "saslMechanism", "tls.caFile", "retryTimeout", "idleTimeout"),
    *("stream", "queue", "linkCredit", "minPartitions", "startingOffsets", "endingOffsets", "filter"),
    *("startingTimestamp", "maxOffsetsPerTrigger", "failOnDataLoss", "pushdown", "spoolLocation"),
    *("deduplicate", "address", "exchange", "durable", "maxInFlight"),
)
TEXTS = st.one_of(
    st.text(),
    st.integers().map(str),
    st.datetimes(timezones=st.timezones()).map(lambda moment: moment.isoformat()),
    st.from_regex(r"[\[{\"0-9:,}\]]{0,40}", fullmatch=True),
    st.from_regex(r"[0-9]{1,400}(\.[0-9]{1,20})?(ms|s|m|h)?", fullmatch=True),
)
SECRET = "hunter2"
PIECES = st.text(alphabet="ab/@:?#[]%,.0 ", max_size=8)


def refusal(parse: Callable[[], object]) -> str:
    try:
        parse()
    except (OptionError, UrlError) as error:
        return str(error)
    return ""


@given(
    st.dictionaries(st.sampled_from(NAMES), TEXTS), st.sampled_from(["stream", "queue", ""]), st.booleans()
)
def test_options_are_read_or_refused(options: dict[str, str], kind: str, url: bool) -> None:
    """No text raises an error that is not ours, or one too long to read."""
    given_too = ({kind: "s"} if kind else {}) | ({"url": "amqp://h"} if url else {})
    merged = {**options, **given_too}
    for parse in (
        lambda: parse_source(merged, streaming=False),
        lambda: parse_source(merged, streaming=True),
        lambda: parse_sink(merged, streaming=False),
        lambda: check_at_load(merged),
    ):
        assert len(refusal(parse)) < 1000


@given(PIECES, PIECES, PIECES)
@example("12/", "", "h")
@example("", "/12", "h/v")
def test_a_password_is_never_taken_for_a_host(before: str, behind: str, place: str) -> None:
    """Even if it shifts the rest of the url, it is the password or is neither read nor shown."""
    text = f"amqp://me:{before}{SECRET}{behind}@{place}"
    told = refusal(lambda: parse_url(text))
    assert SECRET not in told
    if not told:
        url = parse_url(text)
        assert SECRET in (url.password or "")
        assert SECRET not in repr(url)
