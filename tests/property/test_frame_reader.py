"""The learning frame reader against one that never learns, and messages whose bytes must not change."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from amqp10broker.message.amqp10 import MessageReader, header_of, locate
from amqp10broker.message.traits import acquired
from amqp10broker.protocols.amqp10 import connection as frames_module
from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.connection import FrameReader
from amqp10broker.protocols.amqp10.errors import AmqpLinkError, DecodeError
from amqp10broker.protocols.amqp10.link import TransferFrame, TransferRun
from amqp10broker.protocols.amqp10.performatives import (
    Accepted,
    Disposition,
    Error,
    Flow,
    Header,
    Properties,
    Rejected,
    TransactionalState,
    Transfer,
    decode_composite,
)
from amqp10broker.protocols.amqp10.settling import DispositionRun
from amqp10broker.protocols.amqp10.types import Symbol
from tests.support.engine import section
from tests.support.examples import tried
from tests.support.rawframes import frame, transfer

# --- frames ------------------------------------------------------------------------------------------


def plain(raw: bytes) -> tuple[list[tuple[int, Any]], str | None]:
    """Decode each frame with a reader that has learned nothing; return the frames and the fault, if any."""
    items: list[tuple[int, Any]] = []
    pos = 0
    while len(raw) - pos >= 8:
        size = int.from_bytes(raw[pos : pos + 4], "big")
        try:
            groups = FrameReader().read(raw[pos : pos + max(size, 8)])
        except DecodeError as error:
            return items, error.condition
        if len(raw) - pos < size:
            break
        for channel, found in groups:
            items += [(channel, each) for each in flat(found)]
        pos += size
    return items, None


def learning(
    chunks: list[bytes], singly_max: int = sys.maxsize
) -> tuple[list[tuple[int, Any]], str | None, int]:
    reader = FrameReader()
    reader.singly_max = singly_max
    items: list[tuple[int, Any]] = []
    waiting = [*chunks, b""]  # a fault behind good frames is raised by the next call
    while waiting or reader.more:
        try:
            groups = reader.read(b"" if reader.more else waiting.pop(0))
        except DecodeError as error:
            return items, error.condition, reader.frames
        for channel, found in groups:
            items += [(channel, each) for each in flat(found)]
    return items, None, reader.frames


def flat(items: list[Any]) -> list[Any]:
    """Return frame bodies one by one, in a form in which batches and single frames compare equal."""
    result: list[Any] = []
    for item in items:
        match item:
            case TransferRun():
                result += [
                    (
                        Transfer(
                            handle=item.handle,
                            delivery_id=delivery_id,
                            delivery_tag=tag,
                            message_format=item.message_format,
                            settled=item.settled,
                            state=None if item.txn_id is None else TransactionalState(txn_id=item.txn_id),
                        ),
                        payload,
                    )
                    for delivery_id, tag, payload in zip(
                        item.delivery_ids, item.tags, item.payloads, strict=True
                    )
                ]
            case TransferFrame():
                result.append((replace(item.performative, batchable=False), item.payload))
            case DispositionRun():
                result += [(item.role, item.settled, item.state, first, last) for first, last in item.spans]
            case Disposition():
                last = item.first if item.last is None else item.last
                result.append((item.role, item.settled, item.state, item.first, last))
            case _:
                result.append(item)
    return result


def by_channel(items: list[tuple[int, Any]]) -> dict[int, list[Any]]:
    result: dict[int, list[Any]] = {}
    for channel, item in items:
        result.setdefault(channel, []).append(item)
    return result


def uint(form: int, value: int) -> bytes:
    if form == 0x43:
        return b"\x43"
    if form == 0x52:
        return bytes((0x52, value & 0xFF))
    if form == 0x40:
        return b"\x40"
    return b"\x70" + value.to_bytes(4, "big")


def composite(descriptor: int, fields: list[bytes], shape: int, count_off: int) -> bytes:
    """Encode a list in one of its encodings; `count_off` falsifies its count."""
    body = b"".join(fields)
    count = max(0, len(fields) + count_off)
    if shape == 8 and len(body) < 255:
        return bytes((0, 0x53, descriptor, 0xC0, len(body) + 1, count)) + body
    head = bytes((0, 0x53, descriptor)) if shape != 80 else b"\x00\x80" + descriptor.to_bytes(8, "big")
    return head + b"\xd0" + (len(body) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + body


def wrapped(channel: int, body: bytes, *, doff: int = 2) -> bytes:
    size = 4 * doff + len(body)
    return (
        size.to_bytes(4, "big")
        + bytes((doff, 0))
        + channel.to_bytes(2, "big")
        + b"\xee" * (4 * doff - 8)
        + body
    )


numbers = st.one_of(st.integers(0, 3), st.sampled_from((255, 256, 2**16, 2**31, 2**32 - 1)))
forms = st.sampled_from((0x43, 0x52, 0x52, 0x70, 0x70))
flags = st.sampled_from((b"\x41", b"\x41", b"\x42", b"\x42", b"\x40", b"\x56\x01", b"\x56\x00"))
shapes = st.sampled_from((8, 8, 8, 32, 32, 80))
doffs = st.sampled_from((2, 2, 2, 2, 3))
channels = st.sampled_from((0, 0, 0, 1, 300))
offs = st.sampled_from((0,) * 20 + (-1, 1))


STATES = (
    *(b"\x40", b"\x40", b"\x00\x53\x24\x45"),
    *(TransactionalState(txn_id=txn_id).encode() for txn_id in (b"12345678", b"12345679")),
    TransactionalState(txn_id=b"12345678", outcome=Accepted()).encode(),
)


@st.composite
def transfers(draw: st.DrawFn) -> bytes:
    tag = draw(st.binary(max_size=5)) if draw(st.booleans()) else b"tag!"
    tag_head = bytes((0xA0, len(tag))) if draw(st.integers(0, 9)) else b"\xb0" + len(tag).to_bytes(4, "big")
    fields = [
        uint(draw(forms), draw(numbers)),
        uint(draw(st.sampled_from((0x43, 0x52, 0x70, 0x70, 0x40))), draw(numbers)),
        tag_head + tag if draw(st.integers(0, 9)) else b"\x40",
        draw(st.sampled_from((b"\x43", b"\x43", b"\x40", b"\x52\x07"))),
        draw(flags),
    ]
    tail = [
        draw(flags),  # more
        draw(st.sampled_from((b"\x40", b"\x40", b"\x50\x00", b"\x50\x01"))),
        draw(st.sampled_from(STATES)),
        draw(flags),
        draw(flags),
        draw(flags),
    ]
    fields += tail[: draw(st.sampled_from((0, 0, 0, 0, 1, 2, 3, 6)))]
    body = composite(0x14, fields, draw(shapes), draw(offs)) + draw(st.binary(max_size=8))
    return wrapped(draw(channels), body, doff=draw(doffs))


@st.composite
def dispositions(draw: st.DrawFn) -> bytes:
    fields = [
        draw(st.sampled_from((b"\x41", b"\x41", b"\x42", b"\x56\x01"))),
        uint(draw(forms), draw(numbers)),
        uint(draw(st.sampled_from((0x40, 0x40, 0x43, 0x52, 0x70))), draw(numbers)),
        draw(flags),
        draw(st.sampled_from((b"\x00\x53\x24\x45", b"\x00\x53\x24\x45", b"\x00\x53\x26\x45", b"\x40"))),
        draw(flags),
    ][: draw(st.integers(2, 6))]
    return wrapped(draw(channels), composite(0x15, fields, draw(shapes), draw(offs)), doff=draw(doffs))


others = st.sampled_from(
    (
        b"\x00\x00\x00\x08\x02\x00\x00\x00",
        frame(0, Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=0)),
        frame(1, Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=0, handle=0)),
        wrapped(0, b"\x00\x53\x17\x45"),
    )
)


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Draw frames, many of them repeated, some of the repeats with one byte changed."""
    base = draw(st.lists(st.one_of(transfers(), transfers(), dispositions(), others), min_size=1, max_size=6))
    steps = st.tuples(st.integers(0, 5), st.sampled_from("===~~?"), st.integers(0, 60), st.integers(0, 255))
    result: list[bytes] = []
    for which, change, at, value in draw(st.lists(steps, min_size=1, max_size=20)):
        raw = base[which % len(base)]
        # "~" turns one constructor without content into another: true, false, null, 0 are all one byte.
        places = [place for place in range(8, len(raw)) if raw[place] in _ONE_BYTE] if change == "~" else []
        if places:
            place = places[at % len(places)]
            raw = raw[:place] + bytes((_ONE_BYTE[value % 4],)) + raw[place + 1 :]
        elif change == "?" and 4 + at < len(raw):
            raw = raw[: 4 + at] + bytes((value,)) + raw[5 + at :]
        result.append(raw)
    return result


_ONE_BYTE = b"\x40\x41\x42\x43"


def cut(raw: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(raw), *(place % (len(raw) + 1) for place in cuts)})
    return [raw[start:stop] for start, stop in pairwise(places)]


def test_examples_are_learned_at_all() -> None:
    """The comparison below is idle if nothing is learned: repeated frames become one run."""
    reader = FrameReader()
    ((_, items),) = reader.read(b"".join(transfer(0, number + 70_000, b"x") for number in range(10)))
    assert [type(item) for item in items] == [TransferFrame, TransferRun]
    raw = b"".join(
        transfer(0, number + 70_000, b"x", state=TransactionalState(txn_id=b"%d" % (number // 5)))
        for number in range(10)
    )
    ((_, items),) = reader.read(raw)
    assert [type(item) for item in items] == [TransferRun] * 2
    assert [item.txn_id for item in items] == [b"0", b"1"]
    assert [len(item.delivery_ids) for item in items] == [5, 5]
    raw = b"".join(
        frame(0, Disposition(role=True, first=70_000 + number, settled=True, state=Accepted()))
        for number in range(10)
    )
    ((_, items),) = reader.read(raw)
    assert [type(item) for item in items] == [Disposition, DispositionRun]
    fields = [b"\x40", b"\x41", b"\0\x53\x24\x45"]
    raw = b"".join(
        wrapped(0, composite(0x15, [b"\x41", uint(0x70, 70_000 + number), *fields], 32, 0))
        for number in range(10)
    )
    ((_, items),) = reader.read(raw)  # as go-amqp sends them
    assert [type(item) for item in items] == [Disposition, DispositionRun]


def test_small_delivery_ids_have_one_layout() -> None:
    """The one-byte delivery-id behind a one-byte handle or role is not part of the key."""
    reader = FrameReader()
    ((_, items),) = reader.read(b"".join(transfer(0, number, b"x") for number in range(1, 4)))
    assert [type(item) for item in items] == [TransferFrame, TransferRun]
    dispositions = [Disposition(role=True, first=number, settled=True, state=Accepted()) for number in (1, 2)]
    ((_, items),) = reader.read(b"".join(frame(0, each) for each in dispositions))
    assert [type(item) for item in items] == [Disposition, DispositionRun]


@settings(max_examples=tried(500), deadline=None)
@given(streams(), st.lists(st.integers(0, 5_000), max_size=12), st.sampled_from([sys.maxsize, 1, 2, 3]))
@example([transfer(0, 1, b"x"), transfer(0, 2, b"y"), transfer(0, 3, b"")], [30], sys.maxsize)
def test_learned_layouts_read_what_the_plain_decoder_reads(
    raws: list[bytes], cuts: list[int], singly_max: int
) -> None:
    """Any frames, also near-identical ones, in any chunks give the same items, or the same fault."""
    raw = b"".join(raws)
    expected, fault = plain(raw)
    found, found_fault, count = learning(cut(raw, cuts), singly_max)
    assert found_fault == fault
    want, have = by_channel(expected), by_channel(found)
    assert have == want
    if fault is None and len(raw) == sum(int.from_bytes(each[:4], "big") for each in raws):
        assert count == len(raws)


@settings(max_examples=tried(200), deadline=None)
@given(
    st.lists(st.one_of(transfers(), dispositions()), min_size=1, max_size=4),
    st.integers(2, 6),
    st.integers(1, 40),
)
def test_byte_by_byte_is_the_same_as_at_once(raws: list[bytes], repeats: int, step: int) -> None:
    raw = b"".join(raws) * repeats
    slow = learning([raw[at : at + step] for at in range(0, len(raw), step)])
    at_once = learning([raw])
    assert slow[1] == at_once[1]
    assert by_channel(slow[0]) == by_channel(at_once[0])
    assert slow[2] == at_once[2]


def test_a_call_reads_no_more_single_frames_than_allowed_and_any_number_of_learned_ones() -> None:
    """The next call reads the other whole frames, and needs no bytes for it."""
    flows = [frame(0, Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1))] * 5
    same = [transfer(0, 5, b"x")] * 100
    reader = FrameReader()
    reader.singly_max = 3
    reader.read(same[0])
    portions = [reader.read(b"".join([*same[1:], *flows]))]
    assert reader.more
    portions.append(reader.read(b""))
    assert not reader.more
    assert [[type(item) for _, items in each for item in items] for each in portions] == [
        [TransferRun, Flow, Flow, Flow],
        [Flow, Flow],
    ]
    assert reader.frames == 105


TAIL = b"\x43\x41"
LEARNED = {
    "transfer": wrapped(
        0, composite(0x14, [b"\x52\x01", b"\x70\0\1\2\3", b"\xa0\4tag!", TAIL[:1], TAIL[1:]], 8, 0) + b"pay"
    ),
    "transfer on handle 0": wrapped(
        1, composite(0x14, [b"\x43", b"\x52\x09", b"\xa0\2ab", b"\x43", b"\x42"], 8, 0) + b"p"
    ),
    "transfer in a list32": wrapped(
        0, composite(0x14, [b"\x52\x01", b"\x70\0\1\2\3", b"\xa0\0", b"\x43", b"\x41"], 32, 0)
    ),
    "disposition of one": wrapped(
        0, composite(0x15, [b"\x41", b"\x70\0\1\2\3", b"\x40", b"\x41", b"\0\x53\x24\x45"], 8, 0)
    ),
    "disposition of a range": wrapped(
        0, composite(0x15, [b"\x41", b"\x52\x03", b"\x52\x07", b"\x41", b"\0\x53\x24\x45"], 8, 0)
    ),
    "disposition in a list32": wrapped(
        0, composite(0x15, [b"\x41", b"\x70\0\1\2\3", b"\x40", b"\x41", b"\0\x53\x24\x45"], 32, 0)
    ),
    "disposition of a range in a list32": wrapped(
        0, composite(0x15, [b"\x41", b"\x52\x03", b"\x52\x07", b"\x41", b"\0\x53\x24\x45"], 32, 0)
    ),
    "disposition without state": wrapped(
        2, composite(0x15, [b"\x42", b"\x70\0\1\2\3", b"\x70\0\1\2\4", b"\x41"], 8, 0)
    ),
}


@pytest.mark.parametrize("shape", list(LEARNED))
def test_frame_that_differs_from_a_learned_one_in_any_byte_is_read_as_what_it_is(shape: str) -> None:
    """Each byte of the frame takes every value, between frames of the learned layout and as the last."""
    raw = LEARNED[shape]
    for at in range(4, len(raw)):
        for value in range(256):
            changed = raw[:at] + bytes((value,)) + raw[at + 1 :]
            for stream in ([raw, raw, changed, raw], [raw, changed]):
                expected, fault = plain(b"".join(stream))
                found, found_fault, _ = learning([b"".join(stream)])
                assert (found_fault, by_channel(found)) == (fault, by_channel(expected)), (at, value)


def test_layouts_are_bounded_whatever_a_client_sends() -> None:
    """A client that never repeats itself must not fill the memory with learned layouts."""
    reader = FrameReader()
    raw = []
    for length in range(90):
        state = Rejected(error=Error(condition=Symbol("x"), description="d" * length))
        for first in range(100):
            raw.append(frame(first % 50, Disposition(role=True, first=first, settled=True, state=state)))
    reader.read(b"".join(raw))
    assert len(reader._layouts) <= frames_module._LAYOUTS_MAX
    reader.read(
        b"".join(
            transfer(handle % 250, first, b"", channel=handle) for handle in range(200) for first in range(50)
        )
    )
    assert len(reader._layouts) <= frames_module._LAYOUTS_MAX + 1


# --- messages ----------------------------------------------------------------------------------------


simple = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 300), st.text(max_size=10), st.binary(max_size=10)
)
maps = st.dictionaries(st.text(max_size=8), simple, max_size=4)
annotations = st.dictionaries(
    st.text("abc-", max_size=5).map(lambda key: Symbol("x-" + key)), simple, max_size=3
)
bodies = st.one_of(
    st.lists(st.binary(max_size=300), min_size=1, max_size=3).map(
        lambda parts: [section(0x75, part) for part in parts]
    ),
    st.lists(st.lists(simple, max_size=3), min_size=1, max_size=3).map(
        lambda parts: [section(0x76, part) for part in parts]
    ),
    simple.map(lambda value: [section(0x77, value)]),
)


@st.composite
def messages(draw: st.DrawFn) -> tuple[bytes, bytes, Header | None, dict[Any, Any]]:
    """Return a message, its bare part with footer, its header and its annotations."""
    header = None
    head = b""
    if draw(st.booleans()):
        header = Header(
            durable=draw(st.booleans()),
            priority=draw(st.sampled_from((4, 0, 9))),
            ttl=draw(st.sampled_from((None, 0, 1000))),
            first_acquirer=draw(st.booleans()),
            delivery_count=draw(st.integers(0, 9)),
        )
        head += header.encode()
    if draw(st.booleans()):
        head += section(
            0x71, draw(st.dictionaries(st.text("abc", max_size=3).map(Symbol), simple, max_size=2))
        )
    given_annotations: dict[Any, Any] = {}
    if draw(st.booleans()):
        given_annotations = draw(annotations)
        head += section(0x72, given_annotations)
    bare = b""
    if draw(st.booleans()):
        bare += Properties(
            to=draw(st.one_of(st.none(), st.text(max_size=5))), subject=draw(st.text(max_size=5))
        ).encode()
    if draw(st.booleans()):
        bare += section(0x74, draw(maps))
    bare += b"".join(draw(bodies))
    if draw(st.booleans()):
        bare += section(0x78, {Symbol("f"): 1})
    return head + bare, bare, header, given_annotations


@settings(max_examples=tried(300), deadline=None)
@given(messages())
def test_bare_message_is_kept_byte_for_byte_and_the_head_is_ours(
    made: tuple[bytes, bytes, Header | None, dict[Any, Any]],
) -> None:
    """Properties to footer are unchanged; the broker writes header and annotations anew."""
    payload, bare, header, given_annotations = made
    sections = locate(payload)
    assert payload[sections.bare :] == bare
    reader = MessageReader("", "q", "guest")
    for _ in range(2):  # the second time from its memory
        head, kept = reader.read(payload)
        assert kept == bare
        found = header_of(head)
        assert found.first_acquirer is True
        assert found.delivery_count == 0
        wanted = header or Header()
        assert (found.durable, found.priority, found.ttl) == (
            bool(wanted.durable),
            wanted.priority,
            wanted.ttl,
        )
        _, end = decode_composite(head)
        again = locate(head + kept)
        assert again.header == (0, end)
        assert again.bare == len(head)
    rest = head[end:]
    for key, value in given_annotations.items():
        assert encode(key) + encode(value) in rest
    returned, still = acquired((head, kept), failed=True)
    assert still is kept
    assert header_of(returned).delivery_count == 1
    assert header_of(returned).first_acquirer is False
    assert MessageReader("", "q", "guest").read(returned + kept)[1] == bare if not given_annotations else True


@pytest.mark.rabbitmq("binary_parser_SUITE", "validate_malformed_encodings")
@settings(max_examples=tried(300), deadline=None)
@given(messages(), st.integers(0, 400), st.integers(0, 255), st.booleans())
def test_damaged_message_is_read_or_refused_with_a_link_error(
    made: tuple[bytes, bytes, Header | None, dict[Any, Any]], at: int, value: int, truncate: bool
) -> None:
    """After a changed byte or a cut only AmqpLinkError is raised; an accepted message keeps its bytes."""
    payload = made[0]
    at %= len(payload)
    damaged = payload[:at] if truncate else payload[:at] + bytes((value,)) + payload[at + 1 :]
    try:
        head, bare = MessageReader("", "q", "guest").read(damaged)
    except AmqpLinkError:
        return
    assert damaged.endswith(bare)
    assert header_of(head).delivery_count == 0
