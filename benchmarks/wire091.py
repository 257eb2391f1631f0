"""AMQP 0-9-1 bytes: what the load generator writes, and how it reads methods.

This module owns the encoding of every frame the generator (and its floor peer) sends, and a table of the
arguments of every method it may meet (AMQP 0-9-1 chapter 4 and the XML definition, with RabbitMQ's confirm
class). It holds no state. Frames that are written millions of times are made by `blocks091`, frames that
are read millions of times by `scan091`; both use the layouts defined here.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from struct import error as StructError
from typing import Any, Final

from benchmarks.errors import WireError

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
FRAME_HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
FRAME_HEAD: Final = Struct(">BHI")
"""type, channel, size of the payload (§4.2.3); one octet follows the payload."""
FRAME_HEAD_BYTES: Final = 7
FRAME_OVERHEAD_BYTES: Final = 8
HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

ARGUMENTS: Final[dict[int, str]] = {}
"""Of each method. o: octet, or up to eight bits; s: short; l: long; L: longlong; t: shortstr; S: longstr;
T: table."""


def _method(class_id: int, method_id: int, arguments: str) -> int:
    """Return class and method as one number, as they stand in a frame."""
    code = class_id << 16 | method_id
    ARGUMENTS[code] = arguments
    return code


CONNECTION_START: Final = _method(10, 10, "ooTSS")
CONNECTION_START_OK: Final = _method(10, 11, "TtSt")
CONNECTION_TUNE: Final = _method(10, 30, "sls")
CONNECTION_TUNE_OK: Final = _method(10, 31, "sls")
CONNECTION_OPEN: Final = _method(10, 40, "tto")
CONNECTION_OPEN_OK: Final = _method(10, 41, "t")
CONNECTION_CLOSE: Final = _method(10, 50, "stss")
CONNECTION_CLOSE_OK: Final = _method(10, 51, "")
CONNECTION_BLOCKED: Final = _method(10, 60, "t")
CONNECTION_UNBLOCKED: Final = _method(10, 61, "")
CHANNEL_OPEN: Final = _method(20, 10, "t")
CHANNEL_OPEN_OK: Final = _method(20, 11, "S")
CHANNEL_FLOW: Final = _method(20, 20, "o")
CHANNEL_FLOW_OK: Final = _method(20, 21, "o")
CHANNEL_CLOSE: Final = _method(20, 40, "stss")
CHANNEL_CLOSE_OK: Final = _method(20, 41, "")
QUEUE_DECLARE: Final = _method(50, 10, "stoT")
QUEUE_DECLARE_OK: Final = _method(50, 11, "tll")
QUEUE_PURGE: Final = _method(50, 30, "sto")
QUEUE_PURGE_OK: Final = _method(50, 31, "l")
BASIC_QOS: Final = _method(60, 10, "lso")
BASIC_QOS_OK: Final = _method(60, 11, "")
BASIC_CONSUME: Final = _method(60, 20, "sttoT")
BASIC_CONSUME_OK: Final = _method(60, 21, "t")
BASIC_CANCEL: Final = _method(60, 30, "to")
BASIC_PUBLISH: Final = _method(60, 40, "stto")
BASIC_RETURN: Final = _method(60, 50, "sttt")
BASIC_DELIVER: Final = _method(60, 60, "tLott")
BASIC_ACK: Final = _method(60, 80, "Lo")
BASIC_NACK: Final = _method(60, 120, "Lo")
CONFIRM_SELECT: Final = _method(85, 10, "o")
CONFIRM_SELECT_OK: Final = _method(85, 11, "")
CARRY_CONTENT: Final = frozenset({BASIC_PUBLISH, BASIC_RETURN, BASIC_DELIVER})

DECLARE_PASSIVE: Final = 1
DECLARE_DURABLE: Final = 2
CONSUME_NO_ACK: Final = 2
PUBLISH_MANDATORY: Final = 1
ACK_MULTIPLE: Final = 1

NUMBERS: Final = {"o": Struct(">B"), "s": Struct(">H"), "l": Struct(">I"), "L": Struct(">Q")}
_U32: Final = NUMBERS["l"]
_CONTENT_HEAD: Final = Struct(">HHQ")
"""class, weight, body size (§4.2.6.1); the property flags follow."""
CONTENT_SIZE_OFFSET: Final = FRAME_HEAD_BYTES + 4
"""Where in a content header frame the body size stands."""
_CLASS_BASIC: Final = 60

_CLIENT_PROPERTIES: Final[Mapping[str, Any]] = {
    "product": "benchmark",
    "capabilities": {
        "publisher_confirms": True,
        "basic.nack": True,
        "connection.blocked": True,
        "consumer_cancel_notify": True,
        "authentication_failure_close": True,
    },
}


# --- values ---------------------------------------------------------------------------------------


def shortstr(value: str) -> bytes:
    """Encode a short string, at most 255 bytes of UTF-8."""
    data = value.encode()
    return bytes((len(data),)) + data


def longstr(value: bytes) -> bytes:
    """Encode a long string."""
    return _U32.pack(len(value)) + value


def table(values: Mapping[str, Any]) -> bytes:
    """Encode a field table of texts, truths, integers and tables."""
    return longstr(b"".join(shortstr(name) + _field(value) for name, value in values.items()))


def _field(value: Any) -> bytes:
    if isinstance(value, bool):
        return b"t" + bytes((value,))
    if isinstance(value, int):
        return b"I" + value.to_bytes(4, "big", signed=True)
    if isinstance(value, str):
        return b"S" + longstr(value.encode())
    return b"F" + table(value)


# --- frames ---------------------------------------------------------------------------------------


def frame(frame_type: int, channel: int, payload: bytes) -> bytes:
    """Put a payload into a frame."""
    return FRAME_HEAD.pack(frame_type, channel, len(payload)) + payload + b"\xce"


def method(channel: int, code: int, *values: Any) -> bytes:
    """Return the frame of a method; the values are its arguments as `ARGUMENTS` lists them."""
    parts = [_U32.pack(code)]
    for kind, value in zip(ARGUMENTS[code], values, strict=True):
        if kind in NUMBERS:
            parts.append(NUMBERS[kind].pack(value))
        elif kind == "t":
            parts.append(shortstr(value))
        else:
            parts.append(longstr(value) if kind == "S" else table(value))
    return frame(FRAME_METHOD, channel, b"".join(parts))


def start_ok(user: str, password: str) -> bytes:
    """Answer connection.start by SASL PLAIN."""
    response = f"\0{user}\0{password}".encode()
    return method(0, CONNECTION_START_OK, _CLIENT_PROPERTIES, "PLAIN", response, "en_US")


def content_header(channel: int, body_bytes: int, properties: bytes = b"\x00\x00") -> bytes:
    """Return the content header frame of class basic.

    Args:
        channel: of the content.
        body_bytes: length of the body.
        properties: flags and values; the default has none.
    """
    return frame(FRAME_HEADER, channel, _CONTENT_HEAD.pack(_CLASS_BASIC, 0, body_bytes) + properties)


def properties(*, content_type: str = "", durable: bool = False, sections: bool = False) -> bytes:
    """Return flags and values of a message's properties (§4.2.6.1), in order of their flag bits.

    Args:
        content_type: the property of this name, if set.
        durable: delivery-mode 2.
        sections: what a client library would add: the same things as `wire.data_message`.
    """
    flags = 0
    values = b""
    if content_type or sections:
        flags |= 0x8000
        values += shortstr(content_type or "application/octet-stream")
    if sections:
        flags |= 0x2000
        values += table({"tenant": "blue", "attempt": 1, "urgent": False})
    if durable:
        flags |= 0x1000
        values += b"\x02"
    if sections:
        flags |= 0x0080 | 0x0040
        values += shortstr("3f1c2c1e-4c57-4c51-9a3c-0d2b0c6a7f10") + NUMBERS["L"].pack(1_700_000_000)
    return NUMBERS["s"].pack(flags) + values


def content(channel: int, body: bytes, properties: bytes, frame_max: int) -> bytes:
    """Return header and body frames of one message.

    Args:
        channel: of the content.
        body: may be empty; then there is no body frame.
        properties: flags and values.
        frame_max: largest frame the receiver takes, all of it counted.
    """
    room = frame_max - FRAME_OVERHEAD_BYTES
    pieces = [frame(FRAME_BODY, channel, body[start : start + room]) for start in range(0, len(body), room)]
    return content_header(channel, len(body), properties) + b"".join(pieces)


# --- reading --------------------------------------------------------------------------------------


def arguments(code: int, data: bytes | bytearray, position: int) -> list[Any]:
    """Return the arguments of a method; field tables come as their bytes.

    Args:
        code: class and method.
        data: the frame, or a buffer it lies in.
        position: of the first argument.

    Raises:
        WireError: the method is not one that this generator can meet, or it is cut short.
    """
    kinds = ARGUMENTS.get(code)
    if kinds is None:
        raise WireError(f"method {code >> 16}.{code & 0xFFFF} is not expected")
    found: list[Any] = []
    try:
        for kind in kinds:
            if kind in NUMBERS:
                (value,) = NUMBERS[kind].unpack_from(data, position)
                position += NUMBERS[kind].size
            elif kind == "t":
                end = position + 1 + data[position]
                value = bytes(data[position + 1 : end]).decode()
                position = end
            else:
                (size,) = _U32.unpack_from(data, position)
                value = bytes(data[position + 4 : position + 4 + size])
                position += 4 + size
            found.append(value)
    except (IndexError, ValueError, StructError) as error:
        raise WireError(f"method {code >> 16}.{code & 0xFFFF} is cut short: {error}") from None
    return found


def reason(close_arguments: list[Any]) -> str:
    """Say why connection.close or channel.close came, from its arguments."""
    code, text, class_id, method_id = close_arguments
    where = f" (method {class_id}.{method_id})" if class_id else ""
    return f"{code} {text}{where}"
