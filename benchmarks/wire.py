"""AMQP 1.0 bytes: what the load generator writes, and how it reads values.

This module owns the encoding of every frame the generator sends and a small general decoder (OASIS
AMQP 1.0 part 1 §1.6, part 2 §2.3 and §2.7, part 5 §5.3). It holds no state. Frames that are written
millions of times are made by `blocks`, frames that are read millions of times by `scan`; both use the
layouts defined here.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

from benchmarks.errors import WireError

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"

FRAME_HEADER: Final = Struct(">IBBH")
"""size, doff, type, channel (part 2 §2.3.1)."""
FRAME_HEADER_BYTES: Final = 8
OFFSET_SPEC: Final = "rabbitmq:stream-offset-spec"
"""Descriptor of the filter that says where in a stream to begin."""

FRAME_AMQP: Final = 0
FRAME_SASL: Final = 1
HEARTBEAT: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"
"""A frame without a body (part 2 §2.4.5)."""
# Before open has been exchanged no frame may be larger than this (part 2 §2.4.1).
FRAME_SIZE_BYTES_MIN: Final = 512

# Descriptors of performatives (part 2 §2.7), of a few other types, and of a message's sections.
OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
ACCEPTED, SOURCE, TARGET = 0x24, 0x28, 0x29
SASL_MECHANISMS, SASL_INIT, SASL_OUTCOME = 0x40, 0x41, 0x44
MESSAGE_HEADER, MESSAGE_PROPERTIES, MESSAGE_APPLICATION_PROPERTIES, MESSAGE_DATA = 0x70, 0x73, 0x74, 0x75

NULL: Final = b"\x40"
TRUE: Final = b"\x41"
FALSE: Final = b"\x42"
STATE_ACCEPTED: Final = b"\x00\x53\x24\x45"
"""The outcome `accepted`: a described empty list (part 3 §3.4.2)."""

SERIAL_MASK: Final = 0xFFFFFFFF
"""delivery-id, delivery-count and transfer-id wrap at 2**32 (RFC 1982)."""

_U32: Final = Struct(">I")
_U64: Final = Struct(">Q")


class Described(NamedTuple):
    """A described value: its descriptor (a number or a symbol) and the value below it."""

    descriptor: Any
    value: Any


def serial_difference(a: int, b: int) -> int:
    """Return the signed RFC 1982 distance from `b` to `a`, in -2**31 to 2**31 - 1."""
    distance = (a - b) & SERIAL_MASK
    return distance - 0x100000000 if distance & 0x80000000 else distance


# --- values ---------------------------------------------------------------------------------------


def uint(value: int) -> bytes:
    """Encode a uint in its shortest form."""
    if value == 0:
        return b"\x43"
    return bytes((0x52, value)) if value < 256 else b"\x70" + _U32.pack(value)


def ubyte(value: int) -> bytes:
    """Encode a ubyte."""
    return bytes((0x50, value))


def ushort(value: int) -> bytes:
    """Encode a ushort."""
    return b"\x60" + value.to_bytes(2, "big")


def boolean(value: bool) -> bytes:
    """Encode a boolean in its one-byte form."""
    return TRUE if value else FALSE


def _variable(short_code: int, data: bytes) -> bytes:
    """Encode variable-width data; the long form's code is the short one's plus 0x10."""
    if len(data) < 256:
        return bytes((short_code, len(data))) + data
    return bytes((short_code + 0x10,)) + _U32.pack(len(data)) + data


def binary(value: bytes) -> bytes:
    """Encode a binary."""
    return _variable(0xA0, value)


def string(value: str) -> bytes:
    """Encode a string as UTF-8."""
    return _variable(0xA1, value.encode())


def symbol(value: str) -> bytes:
    """Encode a symbol."""
    return _variable(0xA3, value.encode("ascii"))


def encoded_list(fields: Sequence[bytes]) -> bytes:
    """Encode a list of values that are already encoded."""
    body = b"".join(fields)
    if not fields:
        return b"\x45"
    if len(body) + 1 < 256 and len(fields) < 256:
        return bytes((0xC0, len(body) + 1, len(fields))) + body
    return b"\xd0" + _U32.pack(len(body) + 4) + _U32.pack(len(fields)) + body


def encoded_map(items: Sequence[bytes]) -> bytes:
    """Encode a map of keys and values that are already encoded, fewer than 250 bytes of them."""
    body = b"".join(items)
    return bytes((0xC1, len(body) + 1, len(items))) + body


def described(code: int, fields: Sequence[bytes]) -> bytes:
    """Encode a described list, leaving out the nulls at its end (part 1 §1.4)."""
    count = len(fields)
    while count and fields[count - 1] == NULL:
        count -= 1
    return bytes((0x00, 0x53, code)) + encoded_list(fields[:count])


# --- frames of set-up and ending ------------------------------------------------------------------


def frame(body: bytes, *, channel: int = 0, frame_type: int = FRAME_AMQP) -> bytes:
    """Put the eight header bytes in front of a frame body."""
    return FRAME_HEADER.pack(FRAME_HEADER_BYTES + len(body), 2, frame_type, channel) + body


def sasl_init(user: str | None = None, password: str = "") -> bytes:
    """Return sasl-init for ANONYMOUS (RFC 4505), or PLAIN (RFC 4616): authzid NUL authcid NUL password."""
    mechanism, response = "ANONYMOUS", "benchmark"
    if user is not None:
        mechanism, response = "PLAIN", f"\0{user}\0{password}"
    fields = (symbol(mechanism), binary(response.encode()))
    return frame(described(SASL_INIT, fields), frame_type=FRAME_SASL)


def open_frame(
    container_id: str, *, hostname: str = "localhost", max_frame_size_bytes: int, channel_max: int
) -> bytes:
    """Return an open frame without an idle time-out: the generator asks for no heartbeats."""
    fields = (string(container_id), string(hostname), uint(max_frame_size_bytes), ushort(channel_max))
    return frame(described(OPEN, fields))


def begin_frame(
    channel: int,
    *,
    incoming_window: int,
    handle_max: int,
    next_outgoing_id: int = 0,
    remote_channel: int | None = None,
) -> bytes:
    """Return a begin frame; `remote_channel` is set only by the peer that answers (part 2 §2.7.2)."""
    fields = (
        NULL if remote_channel is None else ushort(remote_channel),
        uint(next_outgoing_id),
        uint(incoming_window),
        uint(0xFFFFFFFF),
        uint(handle_max),
    )
    return frame(described(BEGIN, fields), channel=channel)


def attach_frame(
    channel: int,
    handle: int,
    *,
    name: str,
    receiver: bool,
    address: str,
    presettled: bool | None,
    source_address: str | None = None,
    offset: str = "",
) -> bytes:
    """Return an attach frame (part 2 §2.7.3).

    Args:
        channel: channel of the session.
        handle: our handle for the link.
        name: link name, unique between the two containers.
        receiver: our role; False when we send.
        address: the queue: target address when we send, source address when we receive.
        presettled: snd-settle-mode settled (True), unsettled (False) or mixed (None).
        source_address: address of the far terminus, where a broker wants one.
        offset: where in a stream to begin, when we receive; empty says nothing.

    Returns:
        The whole frame; initial-delivery-count is 0 when we send, unset when we receive.
    """
    far = string(source_address) if source_address is not None else NULL
    mine: tuple[bytes, ...] = (string(address),)
    if offset:
        # The filter is the eighth field of a source.
        spec = b"\x00" + symbol(OFFSET_SPEC) + string(offset)
        mine = (*mine, *([NULL] * 6), encoded_map((symbol("offset"), spec)))
    fields = (
        string(name),
        uint(handle),
        boolean(receiver),
        ubyte(2 if presettled is None else int(presettled)),
        ubyte(0),
        described(SOURCE, mine if receiver else (far,)),
        described(TARGET, (far,) if receiver else mine),
        NULL,
        NULL,
        NULL if receiver else uint(0),
    )
    return frame(described(ATTACH, fields), channel=channel)


def detach_frame(channel: int, handle: int) -> bytes:
    """Return a detach frame that closes the link."""
    return frame(described(DETACH, (uint(handle), TRUE)), channel=channel)


def end_frame(channel: int) -> bytes:
    """Return an end frame."""
    return frame(described(END, ()), channel=channel)


def close_frame() -> bytes:
    """Return a close frame."""
    return frame(described(CLOSE, ()))


# --- frames of the running session ----------------------------------------------------------------

# Every number is written as the five-byte uint, so that one Struct makes the whole frame.
_FLOW_SESSION: Final = Struct(">IBBH 3sBBB BIBIBIBI")
# A receiver of messages has nothing to say in `available`: the last three bytes are null, drain, echo.
_FLOW_LINK: Final = Struct(">IBBH 3sBBB BIBIBIBIBIBIBI 3s")
_FLOW_PREFIX: Final = b"\x00\x53\x13"
_DISPOSITION: Final = Struct(">IBBH 3sBBB s BIBI s4s")
_DISPOSITION_PREFIX: Final = b"\x00\x53\x15"


def session_flow_frame(
    channel: int, *, next_incoming_id: int, incoming_window: int, next_outgoing_id: int
) -> bytes:
    """Return a flow frame that speaks of the session only (part 2 §2.7.4)."""
    size = _FLOW_SESSION.size
    numbers = (0x70, next_incoming_id, 0x70, incoming_window, 0x70, next_outgoing_id, 0x70, 0xFFFFFFFF)
    return _FLOW_SESSION.pack(size, 2, 0, channel, _FLOW_PREFIX, 0xC0, size - 13, 4, *numbers)


def link_flow_frame(
    channel: int,
    handle: int,
    *,
    delivery_count: int,
    link_credit: int,
    next_incoming_id: int,
    incoming_window: int,
    next_outgoing_id: int,
    drain: bool = False,
    echo: bool = False,
) -> bytes:
    """Return a flow frame that sets the credit of one link and restates the session's windows."""
    size = _FLOW_LINK.size
    return _FLOW_LINK.pack(
        *(size, 2, 0, channel, _FLOW_PREFIX, 0xC0, size - 13, 10),
        *(0x70, next_incoming_id, 0x70, incoming_window, 0x70, next_outgoing_id, 0x70, 0xFFFFFFFF),
        *(0x70, handle, 0x70, delivery_count, 0x70, link_credit),
        NULL + boolean(drain) + boolean(echo),
    )


def disposition_frame(channel: int, *, receiver: bool, first: int, last: int) -> bytes:
    """Return a disposition that settles first..last as accepted (part 2 §2.7.6)."""
    size = _DISPOSITION.size
    return _DISPOSITION.pack(
        *(size, 2, 0, channel, _DISPOSITION_PREFIX, 0xC0, size - 13, 5),
        boolean(receiver),
        *(0x70, first, 0x70, last),
        *(TRUE, STATE_ACCEPTED),
    )


def transfer_performative(
    handle: int, delivery_id: int, *, settled: bool, more: bool = False, tag: bytes | None = None
) -> bytes:
    """Return a transfer performative with the generator's fixed layout.

    The handle is always a smalluint and the delivery-id a four-byte uint, so that every field keeps its
    place and `blocks` can rewrite them column by column. A tag is unique among unsettled deliveries of
    its link (part 2 §2.6.12); the delivery-id's own four bytes are.
    """
    fields = (
        bytes((0x52, handle)),
        b"\x70" + _U32.pack(delivery_id),
        binary(_U32.pack(delivery_id) if tag is None else tag),
        uint(0),
        boolean(settled),
        boolean(more),
    )
    return bytes((0x00, 0x53, TRANSFER)) + encoded_list(fields)


def data_message(body: bytes, *, durable: bool = False, sections: bool = False) -> bytes:
    """Return an encoded message (part 3 §3.2).

    Args:
        body: what the one data section holds.
        durable: put a header section in front that says so.
        sections: put properties and application-properties in front, as a client library would:
            message-id, to, content-type, creation-time, and three entries.
    """
    message = described(MESSAGE_HEADER, (TRUE,)) if durable else b""
    if sections:
        created = b"\x83" + _U64.pack(1_700_000_000_000)
        message += described(
            MESSAGE_PROPERTIES,
            (
                string("3f1c2c1e-4c57-4c51-9a3c-0d2b0c6a7f10"),
                NULL,
                string("/queues/bench"),
                *(NULL, NULL, NULL),
                symbol("application/octet-stream"),
                *(NULL, NULL),
                created,
            ),
        )
        entries = (string("tenant"), string("blue"), string("attempt"), uint(1), string("urgent"), FALSE)
        body_of_map = b"".join(entries)
        message += bytes((0x00, 0x53, MESSAGE_APPLICATION_PROPERTIES))
        message += bytes((0xC1, len(body_of_map) + 1, len(entries))) + body_of_map
    return message + bytes((0x00, 0x53, MESSAGE_DATA)) + binary(body)


# --- reading --------------------------------------------------------------------------------------

# The upper half of a constructor says how wide its data is; part 1 §1.6 has the list.
_WIDTHS: Final = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
_EMPTY: Final[dict[int, Any]] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0, 0x45: []}
_SIGNED: Final = frozenset((0x51, 0x54, 0x55, 0x61, 0x71, 0x81, 0x83))
_UNSIGNED: Final = frozenset((0x50, 0x52, 0x53, 0x60, 0x70, 0x80))
_OPAQUE: Final = frozenset((0x72, 0x73, 0x74, 0x82, 0x84, 0x94, 0x98))


def decode(data: bytes | bytearray, position: int) -> tuple[Any, int]:
    """Decode one value.

    Args:
        data: bytes that hold the whole value.
        position: offset of its constructor.

    Returns:
        The value and the offset behind it. Floats, decimals, characters and uuids stay bytes.

    Raises:
        WireError: an unknown constructor, or the value runs over the end.
    """
    try:
        return _decode(data, position)
    except (IndexError, RecursionError) as error:
        raise WireError(f"value at offset {position} runs over the end of its frame") from error


def _decode(data: bytes | bytearray, position: int) -> tuple[Any, int]:
    if data[position] == 0x00:
        descriptor, position = _decode(data, position + 1)
        value, position = _decode(data, position)
        return Described(descriptor, value), position
    return _decode_as(data[position], data, position + 1)


def _decode_as(code: int, data: bytes | bytearray, position: int) -> tuple[Any, int]:
    """Decode the data of one value whose constructor has been read."""
    if code in _EMPTY:
        return [] if code == 0x45 else _EMPTY[code], position
    family, kind = code >> 4, code & 0x0F
    if family in _WIDTHS:
        raw = data[position : (end := position + _WIDTHS[family])]
        if code in _SIGNED or code in _UNSIGNED:
            return int.from_bytes(raw, "big", signed=code in _SIGNED), end
        if code == 0x56:
            return data[position] == 1, end
        if code in _OPAQUE:
            return bytes(raw), end
    elif family >= 0xA:
        # Even families have sizes and counts of one byte, odd ones of four.
        width = 4 if family & 1 else 1
        start = position + width
        end = start + int.from_bytes(data[position:start], "big")
        if end > len(data):
            raise IndexError
        if family in (0xA, 0xB):
            raw = data[start:end]
            return bytes(raw) if kind == 0 else bytes(raw).decode("utf-8" if kind == 1 else "ascii"), end
        items = _items(family >= 0xE, data, start + width, int.from_bytes(data[start : start + width], "big"))
        return dict(zip(items[::2], items[1::2], strict=True)) if code in (0xC1, 0xD1) else items, end
    raise WireError(f"unknown constructor 0x{code:02x} at offset {position - 1}")


def _items(array: bool, data: bytes | bytearray, position: int, count: int) -> list[Any]:
    """Decode the elements of a list or map, or of an array, which have one constructor."""
    items: list[Any] = []
    descriptor: Any = None
    code = 0
    if array:
        if data[position] == 0x00:
            descriptor, position = _decode(data, position + 1)
        code = data[position]
        position += 1
    for _ in range(count):
        value, position = _decode_as(code, data, position) if array else _decode(data, position)
        items.append(value if descriptor is None else Described(descriptor, value))
    return items


class Performative(NamedTuple):
    """A frame body, decoded field by field; the slow path's view of a frame."""

    code: int
    fields: list[Any]
    end: int
    """Offset behind the performative: where a transfer's payload starts."""

    def field(self, index: int) -> Any:
        """Return a field, or None where the peer left it out."""
        return self.fields[index] if index < len(self.fields) else None


def decode_performative(data: bytes | bytearray, position: int) -> Performative:
    """Decode the performative at `position`.

    Raises:
        WireError: the bytes are no described list with a numeric descriptor.
    """
    value, end = decode(data, position)
    if not isinstance(value, Described) or not isinstance(value.value, list):
        raise WireError(f"no performative at offset {position}")
    descriptor = value.descriptor
    if not isinstance(descriptor, int):
        raise WireError(f"descriptor {descriptor!r} is not a number this generator knows")
    return Performative(descriptor, value.value, end)


def describe_error(value: Any) -> str:
    """Say an `error` field (condition and description) in one line."""
    if isinstance(value, Described) and isinstance(value.value, list) and value.value:
        description = value.value[1] if len(value.value) > 1 else None
        return f"{value.value[0]}: {description}" if description else str(value.value[0])
    return "no error given"
