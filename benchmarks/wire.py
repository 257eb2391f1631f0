"""AMQP 1.0 bytes: the frames of the load generator that have something of its own, and how frames are read.

What is written or read once in a while goes through the broker's own codec, so that there is one. The
layout of a transfer is here: frames that are written millions of times are made of it by `blocks`, and
frames that are read millions of times are read by `scan`, which shares nothing with the broker.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.connection import TYPE_AMQP, TYPE_SASL, encode_frame
from amqp10broker.protocols.amqp10.errors import DecodeError
from amqp10broker.protocols.amqp10.link import FRAME_HEADER_BYTES
from amqp10broker.protocols.amqp10.performatives import (
    APPLICATION_PROPERTIES,
    DATA,
    Accepted,
    Attach,
    Composite,
    Disposition,
    Error,
    Header,
    Properties,
    SaslInit,
    Source,
    Target,
    Transfer,
    decode_composite,
)
from amqp10broker.protocols.amqp10.types import Described, Symbol, UInt, ULong
from benchmarks.errors import WireError

SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
OFFSET_SPEC: Final = Symbol("rabbitmq:stream-offset-spec")
"""Descriptor of the filter that says where in a stream to begin."""
_U32: Final = Struct(">I")
_TRANSFER: Final = bytes((0x00, 0x53, Transfer.DESCRIPTOR, 0xC0))
_BOOLEANS: Final = (b"\x42", b"\x41")


def frame(body: bytes | Composite, *, channel: int = 0, frame_type: int = TYPE_AMQP) -> bytes:
    """Return the frame of a performative, or of bytes that begin with one."""
    return encode_frame(channel, body if isinstance(body, bytes) else body.encode(), frame_type)


def sasl_init(user: str | None = None, password: str = "") -> bytes:
    """Return sasl-init for ANONYMOUS (RFC 4505), or PLAIN (RFC 4616): authzid NUL authcid NUL password."""
    mechanism, response = "ANONYMOUS", "benchmark"
    if user is not None:
        mechanism, response = "PLAIN", f"\0{user}\0{password}"
    start = SaslInit(mechanism=Symbol(mechanism), initial_response=response.encode())
    return frame(start, frame_type=TYPE_SASL)


def attach_frame(
    channel: int,
    handle: int,
    *,
    name: str,
    receiver: bool,
    address: str,
    presettled: bool,
    offset: str = "",
) -> bytes:
    """Return an attach frame (part 2 §2.7.3).

    Args:
        channel: channel of the session.
        handle: our handle for the link.
        name: link name, unique between the two containers.
        receiver: our role; False when we send.
        address: the queue: target address when we send, source address when we receive.
        presettled: snd-settle-mode settled, else unsettled.
        offset: where in a stream to begin, when we receive; empty says nothing.
    """
    filters = {Symbol("offset"): Described(OFFSET_SPEC, offset)} if offset else None
    attach = Attach(
        name=name,
        handle=handle,
        role=receiver,
        snd_settle_mode=int(presettled),
        source=Source(address=address if receiver else None, filter=filters),
        target=Target(address=None if receiver else address),
        initial_delivery_count=None if receiver else 0,
    )
    return frame(attach, channel=channel)


def disposition_frame(channel: int, *, receiver: bool, first: int, last: int | None) -> bytes:
    """Return a disposition that settles first..last as accepted (part 2 §2.7.6)."""
    settled = Disposition(role=receiver, first=first, last=last, settled=True, state=Accepted())
    return frame(settled, channel=channel)


def transfer_performative(
    handle: int, delivery_id: int, *, settled: bool, more: bool = False, tag: bytes | None = None
) -> bytes:
    """Return a transfer performative with the generator's fixed layout.

    The handle is always a smalluint and the delivery-id a four-byte uint, so that every field keeps its
    place and `blocks` can rewrite them column by column. A tag is unique among unsettled deliveries of
    its link (part 2 §2.6.12); the delivery-id's own four bytes are. The message-format is 0.
    """
    number = _U32.pack(delivery_id)
    tag = number if tag is None else tag
    fields = bytes((0x52, handle, 0x70)) + number + bytes((0xA0, len(tag))) + tag + b"\x43"
    fields += _BOOLEANS[settled] + _BOOLEANS[more]
    return _TRANSFER + bytes((len(fields) + 1, 6)) + fields


def data_message(body: bytes, *, durable: bool = False, sections: bool = False) -> bytes:
    """Return an encoded message (part 3 §3.2).

    Args:
        body: what the one data section holds.
        durable: put a header section in front that says so.
        sections: put properties and application-properties in front, as a client library would:
            message-id, to, content-type, creation-time, and three entries.
    """
    message = Header(durable=True).encode() if durable else b""
    if sections:
        message += Properties(
            message_id="3f1c2c1e-4c57-4c51-9a3c-0d2b0c6a7f10",
            to="/queues/bench",
            content_type=Symbol("application/octet-stream"),
            creation_time=1_700_000_000_000,
        ).encode()
        entries = {"tenant": "blue", "attempt": UInt(1), "urgent": False}
        message += encode(Described(ULong(APPLICATION_PROPERTIES), entries))
    return message + encode(Described(ULong(DATA), body))


def decode_performative(data: bytes, position: int = FRAME_HEADER_BYTES) -> tuple[Composite, int]:
    """Return the performative at a position of a frame, and where what follows it begins.

    Raises:
        WireError: it cannot be read.
    """
    try:
        return decode_composite(data, position)
    except DecodeError as error:
        raise WireError(str(error)) from error


def describe_error(error: Error | None) -> str:
    """Say condition and description in one line."""
    if error is None:
        return "no error given"
    return f"{error.condition}: {error.description}" if error.description else str(error.condition)
