"""Frames of AMQP 0-9-1 out of bytes cut anywhere, and what ends the connection."""

from __future__ import annotations

import itertools
import sys
from collections import defaultdict
from typing import Any

import pamqp.header
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from amqp10broker.protocols.amqp091.codec import encode_table
from amqp10broker.protocols.amqp091.connection import FrameReader
from amqp10broker.protocols.amqp091.content import (
    END,
    HEADER,
    HEARTBEAT,
    AckRun,
    Content,
    ContentOpened,
    ContentTooLarge,
    Heartbeat,
    Item,
    MethodFrame,
    PublishRun,
    body_pieces,
    content_frames,
    content_header_frame,
    method_frame,
)
from amqp10broker.protocols.amqp091.errors import AmqpHardError, ReplyCode
from amqp10broker.protocols.amqp091.methods import (
    FRAME_BODY,
    BasicAck,
    BasicNack,
    BasicPublish,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ConnectionCloseOk,
    QueueDeclare,
    TxSelect,
)
from tests.support.examples import tried

FRAME_MAX = 8192
PERSISTENT = b"\x10\x00\x02"
PLAIN = b"\x00\x00"


def body_frames(channel: int, body: bytes, frame_max: int) -> bytes:
    return b"".join(body_pieces(channel, body, frame_max))


def publish(
    channel: int = 1,
    body: bytes = b"hello",
    *,
    key: str = "q",
    properties: bytes = PERSISTENT,
    frame_max: int = FRAME_MAX,
) -> bytes:
    method = BasicPublish(exchange="amq.direct", routing_key=key, mandatory=True)
    return content_frames(channel, method, properties, body, frame_max)


def ack(tag: int, channel: int = 1, *, multiple: bool = False) -> bytes:
    return method_frame(channel, BasicAck(delivery_tag=tag, multiple=multiple))


def run_of(items: list[Item]) -> PublishRun:
    (run,) = items
    assert isinstance(run, PublishRun)
    return run


def flat(items: list[Item]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = defaultdict(list)
    for item in items:
        assert not isinstance(item, ContentTooLarge)
        match item:
            case PublishRun():
                assert len(item.properties) == len(item.bodies) > 0
                arguments = (item.exchange, item.routing_key, item.mandatory, item.immediate)
                found[item.channel] += [
                    (arguments, *message) for message in zip(item.properties, item.bodies, strict=True)
                ]
            case AckRun():
                assert item.tags
                found[item.channel] += item.tags
            case Content():
                found[item.channel].append((item.method, item.properties, item.body))
            case ContentOpened():
                continue  # only of what the next bytes complete
            case MethodFrame():
                found[item.channel].append(item.method)
            case Heartbeat():
                found[0].append("heartbeat")
    return dict(found)


def by_pamqp(data: bytes) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = defaultdict(list)
    pending: dict[int, list[Any]] = {}
    while data:
        read, channel, frame = pamqp.frame.unmarshal(data)
        raw, data = data[:read], data[read:]
        name = getattr(frame, "name", "")
        if name == "Basic.Publish":
            pending[channel] = [
                (frame.exchange, frame.routing_key, frame.mandatory, frame.immediate),
                None,
                b"",
                0,
            ]
        elif isinstance(frame, pamqp.header.ContentHeader):
            pending[channel][1] = raw[19:-1]
            pending[channel][3] = frame.body_size
        elif isinstance(frame, pamqp.body.ContentBody):
            pending[channel][2] += frame.value
        elif name == "Basic.Ack":
            found[channel].append((frame.delivery_tag, frame.multiple))
        elif name == "Heartbeat":
            found[0].append("heartbeat")
        else:
            found[channel].append(name)
        whole = pending.get(channel)
        if whole is not None and whole[1] is not None and len(whole[2]) == whole[3]:
            found[channel].append(tuple(pending.pop(channel)[:3]))
    return dict(found)


def with_names(found: dict[int, list[Any]]) -> dict[int, list[Any]]:
    """Replace methods by pamqp's names for them."""
    return {
        channel: [
            value.NAME.title().replace("-", "") if hasattr(value, "NAME") else value for value in values
        ]
        for channel, values in found.items()
    }


def read(
    data: bytes, cuts: list[int] | None = None, frame_max: int = FRAME_MAX, singly_max: int = sys.maxsize
) -> list[Item]:
    reader = FrameReader(frame_max)
    reader.singly_max = singly_max
    items: list[Item] = []
    for start, stop in itertools.pairwise([0, *sorted(cuts or []), len(data)]):
        items += reader.feed(data[start:stop])
        while reader.more:
            items += reader.feed(b"")
    assert reader.fault is None
    return items


# --- contents --------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("unit_amqp091_content_framing_SUITE", "content_transcoding")
def test_body_frames_may_be_cut_anyhow() -> None:
    """Empty frames are allowed too: the announced size determines the end of the content."""
    method = BasicPublish(routing_key="q")
    frames = [method_frame(3, method), content_header_frame(3, PLAIN, 4)]
    frames += [b"\x03\x00\x03\x00\x00\x00\x00\xce", body_frames(3, b"abc", 0), body_frames(3, b"d", 0)]
    assert flat(read(b"".join(frames))) == {3: [(("", "q", False, False), PLAIN, b"abcd")]}


def test_contents_of_two_channels_may_be_interleaved() -> None:
    """Their frames alternate; each channel has its own."""

    def frames(channel: int, body: bytes) -> list[bytes]:
        method = BasicPublish(routing_key="q")
        return [
            method_frame(channel, method),
            content_header_frame(channel, PLAIN, len(body)),
            body_frames(channel, body[:2], 0),
            body_frames(channel, body[2:], 0),
        ]

    one, two = frames(1, b"first"), frames(2, b"other")
    mixed = b"".join(itertools.chain.from_iterable(zip(one, two, strict=True))) + ack(1, 3)
    arguments = ("", "q", False, False)
    assert flat(read(mixed * 2)) == {
        1: [(arguments, PLAIN, b"first")] * 2,
        2: [(arguments, PLAIN, b"other")] * 2,
        3: [(1, False)] * 2,
    }


def test_a_content_that_announces_too_much_is_reported_and_read_over() -> None:
    """The report comes before the body, and the channel continues after it."""
    reader = FrameReader(FRAME_MAX, content_bytes_max=10)
    method = BasicPublish(routing_key="q")
    head = method_frame(1, method) + content_header_frame(1, PLAIN, 11)
    assert reader.feed(head) == [ContentTooLarge(1, method, 11, 10)]
    assert reader.feed(body_frames(1, b"0123456789a", 0)) == []
    run = run_of(reader.feed(content_frames(1, method, PLAIN, b"0123456789", 0)))
    assert run.bodies == [b"0123456789"]


def test_a_content_that_is_not_whole_is_announced_once() -> None:
    """The announcement comes at the end of the read with its header, if it is incomplete then."""
    reader = FrameReader(FRAME_MAX)
    method = BasicPublish(routing_key="q")
    run_of(reader.feed(content_frames(1, method, PLAIN, b"ab", 0)))
    assert reader.feed(method_frame(1, method)) == []
    assert reader.publishing
    (opened,) = reader.feed(content_header_frame(1, PLAIN, 3) + body_frames(1, b"a", 0))
    assert isinstance(opened, ContentOpened)
    assert (opened.channel, opened.method) == (1, method)
    assert reader.feed(body_frames(1, b"b", 0)) == []
    run = run_of(reader.feed(body_frames(1, b"c", 0)))
    assert (run.bodies, reader.publishing, reader.unfinished.held_bytes) == ([b"abc"], False, 0)


def test_a_content_that_nobody_wants_is_forgotten_and_read_over() -> None:
    """Its frames are dropped, and do not reach the next content of that channel."""
    reader = FrameReader(FRAME_MAX)
    method = BasicPublish(routing_key="q")
    (opened,) = reader.feed(
        method_frame(1, method) + content_header_frame(1, PLAIN, 3000) + body_frames(1, b"x" * 1000, 0)
    )
    assert isinstance(opened, ContentOpened)
    assert reader.unfinished.held_bytes > 1000
    reader.discard(opened)
    assert (reader.unfinished.held_bytes, reader.publishing) == (0, False)
    assert reader.feed(body_frames(1, b"x" * 1000, 0)) == []
    assert reader.unfinished.held_bytes == 0
    close_ok = method_frame(1, ChannelCloseOk())
    other = method_frame(1, BasicPublish(routing_key="other"))
    _, second = reader.feed(close_ok + other + content_header_frame(1, PLAIN, 2))
    assert isinstance(second, ContentOpened)
    reader.discard(opened)
    run = run_of(reader.feed(body_frames(1, b"ok", 0)))
    assert run.bodies == [b"ok"]


@pytest.mark.parametrize("piece", [0, 1, 1000])
def test_unfinished_contents_are_bounded_together(piece: int) -> None:
    """The error is 506 when they exceed the connection's limit, however small or empty the frames are."""
    reader = FrameReader(FRAME_MAX, content_bytes_max=10_000, unfinished_bytes_max=50_000)
    head = b"".join(
        method_frame(number, BasicPublish()) + content_header_frame(number, PLAIN, 9_999)
        for number in range(1, 51)
    )
    assert len(reader.feed(head)) == 50
    frames = b"".join(HEADER.pack(FRAME_BODY, number, piece) + b"x" * piece + END for number in range(1, 51))
    with pytest.raises(AmqpHardError, match="contents that are not whole hold more than 50000") as caught:
        feed_again(reader, frames)
    assert caught.value.code == ReplyCode.RESOURCE_ERROR
    assert reader.unfinished.held_bytes <= 50_000 + 64 + piece


def feed_again(reader: FrameReader, data: bytes) -> None:
    for _ in range(1000):
        reader.feed(data)


def test_one_content_of_the_largest_size_always_fits() -> None:
    reader = FrameReader(FRAME_MAX, content_bytes_max=10_000, unfinished_bytes_max=1)
    items = read_all(reader, content_frames(1, BasicPublish(routing_key="q"), PLAIN, b"x" * 10_000, 1000))
    (run,) = [item for item in items if isinstance(item, PublishRun)]
    assert (run.bodies, reader.unfinished.held_bytes) == ([b"x" * 10_000], 0)


def read_all(reader: FrameReader, data: bytes) -> list[Item]:
    return [item for at in range(len(data)) for item in reader.feed(data[at : at + 1])]


@pytest.mark.parametrize("closing", [ChannelCloseOk(), ChannelClose(200, "bye", 0, 0)])
def test_a_content_read_over_may_be_left_unfinished(closing: Any) -> None:
    """The channel is closed for it, and any method on the channel ends the content."""
    reader = FrameReader(FRAME_MAX, content_bytes_max=10)
    reader.feed(method_frame(1, BasicPublish()) + content_header_frame(1, PLAIN, 11))
    assert reader.feed(body_frames(1, b"01", 0) + method_frame(1, closing)) == [MethodFrame(1, closing)]


def test_close_ok_ends_an_unfinished_content() -> None:
    """A publisher may stop within a message when the broker closes its channel."""
    head = method_frame(1, BasicPublish()) + content_header_frame(1, PLAIN, 5)
    items = read(head + method_frame(1, ChannelCloseOk()) + method_frame(1, ChannelOpen()) + publish())
    assert [type(item) for item in items] == [MethodFrame, MethodFrame, PublishRun]


# --- chunks ----------------------------------------------------------------------------------------


def test_one_frame_at_a_time_when_so_asked() -> None:
    """The rest waits for the next call, which needs no new bytes."""
    reader = FrameReader(FRAME_MAX)
    first, second = ChannelOpen(), QueueDeclare(queue="q")
    data = method_frame(1, first) + method_frame(1, second)
    assert reader.feed(data[:-3], stop_after_first=True) == [MethodFrame(1, first)]
    assert reader.feed(b"", stop_after_first=True) == []
    assert reader.feed(data[-3:], stop_after_first=True) == [MethodFrame(1, second)]
    assert reader.take_rest() == b""


def test_a_call_reads_no_more_single_frames_than_allowed_and_any_number_of_learned_ones() -> None:
    """The next call reads the remaining frames, and needs no new bytes."""
    reader = FrameReader(FRAME_MAX)
    reader.feed(publish())
    reader.singly_max = 3
    declares = [method_frame(1, QueueDeclare(queue=name)) for name in "abcde"]
    portions = [reader.feed(b"".join([publish() * 100, *declares]))]
    assert reader.more
    portions.append(reader.feed(b""))
    assert not reader.more
    assert [[type(item) for item in each] for each in portions] == [
        [PublishRun, MethodFrame, MethodFrame, MethodFrame],
        [MethodFrame, MethodFrame],
    ]


def test_a_long_frame_may_come_in_many_pieces() -> None:
    """This holds without a frame size limit too."""
    body = bytes(1_000_000)
    data = publish(body=b"x", frame_max=0) + publish(body=body, frame_max=0)
    runs = read(data, list(range(0, len(data), 1000)), frame_max=0)
    assert [run_of([each]).bodies for each in runs] == [[b"x"], [body]]


BODIES = st.sampled_from([b"", b"x", b"hello", b"\xce" * 7, publish(), bytes(9000)]) | st.binary(max_size=40)
FRAMES = st.one_of(
    st.builds(
        publish,
        st.integers(1, 3),
        BODIES,
        key=st.sampled_from("abc"),
        properties=st.sampled_from([PLAIN, PERSISTENT, b"\x10\x80\x02\x03abc"]),
        frame_max=st.sampled_from([0, FRAME_MAX, 20]),
    ),
    st.builds(ack, st.integers(1, 2**40), st.integers(1, 3), multiple=st.booleans()),
    st.builds(lambda tag: method_frame(1, BasicNack(delivery_tag=tag)), st.integers(1, 9)),
    st.just(method_frame(2, QueueDeclare(queue="q"))),
    st.just(HEARTBEAT),
)
STREAMS = st.lists(st.tuples(FRAMES, st.integers(1, 12)), max_size=12).map(
    lambda rows: b"".join(frame * times for frame, times in rows)
)


@settings(max_examples=tried(300))
@given(STREAMS, st.data())
def test_what_is_read_does_not_depend_on_the_cut(stream: bytes, data: st.DataObject) -> None:
    """pamqp reads the same for each channel frame by frame; so do reads in portions of any size."""
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=10))
    singly_max = data.draw(st.sampled_from([sys.maxsize, 1, 2, 5]))
    found = with_names(flat(read(stream, cuts, frame_max=16384, singly_max=singly_max)))
    assert found == by_pamqp(stream)


def test_large_properties_are_not_kept() -> None:
    """Many routing keys and large headers of a publisher do not take much memory in the broker."""
    tracemalloc = pytest.importorskip("tracemalloc", reason="PyPy does not trace memory")
    reader = FrameReader(0)
    properties = b"\x20\x00" + encode_table({"x": "x" * 100_000})
    tracemalloc.start()
    try:
        for number in range(100):
            run = run_of(reader.feed(publish(key=f"k{number}", properties=properties, frame_max=0) * 2))
            assert run.properties == [properties] * 2
            assert run.bodies == [b"hello"] * 2
        del run
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2_000_000


PUBLISH = method_frame(1, BasicPublish(routing_key="q"))
CONTENT_HEADER = content_header_frame(1, PLAIN, 5)
BEGUN = PUBLISH + CONTENT_HEADER + body_frames(1, b"he", 0)
GOOD = content_frames(1, BasicPublish(routing_key="q"), PLAIN, b"hello", FRAME_MAX)


def frame(kind: int, channel: int, payload: bytes, end: int = 0xCE) -> bytes:
    return HEADER.pack(kind, channel, len(payload)) + payload + bytes((end,))


def feed_all(reader: FrameReader, data: bytes, chunk: int) -> None:
    for start in range(0, len(data), chunk):
        reader.feed(data[start : start + chunk])
    reader.feed(b"")


def fault_of(data: bytes) -> AmqpHardError:
    """Return the bytes' fault, which depends neither on cuts nor on earlier input."""
    faults = []
    for chunk in (len(data), 1, 5):
        for before in (b"", GOOD * 3):
            reader = FrameReader(FRAME_MAX)
            if before:
                assert len(reader.feed(before)) == 1
            with pytest.raises(AmqpHardError) as caught:
                feed_all(reader, data, chunk)
            assert reader.fault is caught.value
            faults.append(caught.value)
    assert len({(fault.code, fault.text, fault.class_id, fault.method_id) for fault in faults}) == 1
    return faults[0]


def test_a_fault_is_raised_behind_the_good_frames_before_it() -> None:
    """The good frames are returned, `fault` is set, and the next call raises."""
    reader = FrameReader(FRAME_MAX)
    run = run_of(reader.feed(GOOD * 2 + frame(9, 1, b"") + GOOD))
    assert len(run.bodies) == 2
    assert reader.fault is not None
    with pytest.raises(AmqpHardError) as caught:
        reader.feed(GOOD)
    assert caught.value is reader.fault
    assert reader.take_rest() == frame(9, 1, b"") + GOOD


PUBLISHING = (60, 40)
"""basic.publish: the class and the method that a fault in a content is about."""
TOO_LARGE = "type 3, 8193 octets payload, max 8184"
WRONG_END = "instead of 206"
NO_METHOD = "expected method frame, got non method frame instead"
NO_HEADER = "expected content header for class 60, got non content header frame instead"
NO_BODY = "expected content body, got non content body frame instead"
FAULTS = {
    "payload above frame-max": (HEADER.pack(3, 1, FRAME_MAX + 1), 501, (0, 0), TOO_LARGE),
    "end of a method": (frame(1, 1, ChannelOpen().encode(), end=0xCF), 501, (0, 0), WRONG_END),
    "end of a header": (
        PUBLISH + CONTENT_HEADER[:-1] + b"\0" + body_frames(1, b"hello", 0),
        501,
        (0, 0),
        WRONG_END,
    ),
    "end of a body": (PUBLISH + CONTENT_HEADER + frame(3, 1, b"hello", end=0), 501, (0, 0), WRONG_END),
    "end of a heartbeat": (HEARTBEAT[:-1] + b"\x00", 501, (0, 0), WRONG_END),
    "heartbeat on a channel": (frame(8, 1, b""), 501, (0, 0), ""),
    "heartbeat with a payload": (frame(8, 0, b"x"), 501, (0, 0), ""),
    "connection method on a channel": (method_frame(1, ConnectionCloseOk()), 503, (10, 51), ""),
    "tx.select on channel 0": (method_frame(0, TxSelect()), 504, (90, 10), ""),
    "basic.publish on channel 0": (method_frame(0, BasicPublish()), 504, PUBLISHING, ""),
    "header without a method": (content_header_frame(1, PLAIN, 1), 505, (0, 0), NO_METHOD),
    "header on channel 0": (content_header_frame(0, PLAIN, 1), 505, (0, 0), NO_METHOD),
    "body without a method": (body_frames(1, b"x", 0), 505, (0, 0), NO_METHOD),
    "body on channel 0": (body_frames(0, b"x", 0), 505, (0, 0), NO_METHOD),
    "method for a header": (PUBLISH + method_frame(1, TxSelect()), 505, PUBLISHING, NO_HEADER),
    "publish for a header": (PUBLISH + PUBLISH, 505, PUBLISHING, NO_HEADER),
    "body for a header": (PUBLISH + body_frames(1, b"x", 0), 505, PUBLISHING, NO_HEADER),
    "method for a body": (BEGUN + method_frame(1, TxSelect()), 505, PUBLISHING, NO_BODY),
    "publish for a body": (BEGUN + PUBLISH, 505, PUBLISHING, NO_BODY),
    "header for a body": (BEGUN + CONTENT_HEADER, 505, PUBLISHING, NO_BODY),
    "empty header": (PUBLISH + frame(2, 1, b""), 501, PUBLISHING, ""),
    "header of 11 bytes": (PUBLISH + frame(2, 1, CONTENT_HEADER[7:18]), 501, PUBLISHING, ""),
    "header of 13 bytes": (PUBLISH + frame(2, 1, CONTENT_HEADER[7:20]), 501, PUBLISHING, ""),
    "body too long": (PUBLISH + CONTENT_HEADER + body_frames(1, b"hello!", 0), 501, PUBLISHING, ""),
    "second body too long": (BEGUN + body_frames(1, b"llo!", 0), 501, PUBLISHING, ""),
}


@pytest.mark.parametrize(("data", "code", "method", "text"), FAULTS.values(), ids=list(FAULTS))
def test_a_fault_ends_the_connection_with_the_code_of_its_rule(
    data: bytes, code: int, method: tuple[int, int], text: str
) -> None:
    """501 is for bytes that are no frame, 503 and 504 for a wrong channel, 505 for a wrong order."""
    fault = fault_of(data)
    assert (fault.code, (fault.class_id, fault.method_id)) == (code, method)
    assert text in fault.text


STREAM = (
    GOOD * 3
    + method_frame(1, BasicAck(7)) * 3
    + content_frames(2, BasicPublish(routing_key="q"), PLAIN, bytes(20), 16)
    + method_frame(1, QueueDeclare(queue="q", arguments={"a": [True, 1, "x"]}))
    + HEARTBEAT
    + GOOD
)


def outcome(data: bytes, cuts: list[int]) -> tuple[list[Any], tuple[Any, ...] | None]:
    reader = FrameReader(FRAME_MAX)
    found: list[Any] = []
    try:
        for start, stop in itertools.pairwise([0, *sorted(cuts), len(data)]):
            for item in reader.feed(data[start:stop]):
                if isinstance(item, PublishRun):
                    messages = zip(item.properties, item.bodies, strict=True)
                    found += [(item.channel, item.exchange, item.routing_key, *each) for each in messages]
                elif isinstance(item, AckRun):
                    found += [(item.channel, *tag) for tag in item.tags]
                elif not isinstance(item, ContentOpened):  # it tells what is not here yet
                    found.append((item.channel, item))
        reader.feed(b"")
    except AmqpHardError as fault:
        return sorted(found, key=lambda each: each[0]), (fault.code, fault.text, fault.class_id)
    return sorted(found, key=lambda each: each[0]), None


@settings(max_examples=tried(500))
@given(
    st.lists(st.tuples(st.integers(0, len(STREAM) - 1), st.integers(0, 255)), min_size=1, max_size=3),
    st.lists(st.integers(0, len(STREAM)), max_size=8),
)
# The last content header claims 21 bytes instead of 14: its end octet is wrong, and no body frame follows.
@example(changes=[(379, 21)], cuts=[373])
@example(changes=[(379, 21)], cuts=[373, 385])
@example(changes=[(129, 1)], cuts=[239])
def test_broken_bytes_have_one_outcome_however_they_are_cut(
    changes: list[tuple[int, int]], cuts: list[int]
) -> None:
    """The good frames and the fault are the same, and no other exception is raised."""
    data = bytearray(STREAM)
    for position, value in changes:
        data[position] = value
    assert outcome(bytes(data), cuts) == outcome(bytes(data), [])
