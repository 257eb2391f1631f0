"""Message sections (part 3, section 3.2): where each begins and ends, without decoding the body.

Header, delivery-annotations and message-annotations may be rewritten by nodes; properties,
application-properties and body are the bare message, which must not be changed; then comes the footer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.codec import decode, skip
from amqp10broker.protocols.amqp10.errors import DecodeError
from amqp10broker.protocols.amqp10.performatives import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Properties,
    decode_composite,
)
from amqp10broker.protocols.amqp10.types import Symbol, ULong

SECTIONS_MAX: Final = 10_000
"""RabbitMQ's limit; only data and amqp-sequence may be repeated."""

_LIST: Final = frozenset((0x45, 0xC0, 0xD0))
_MAP: Final = frozenset((0xC1, 0xD1))
_BINARY: Final = frozenset((0xA0, 0xB0))

_SECTIONS: Final = (
    (HEADER, "amqp:header:list", _LIST),
    (DELIVERY_ANNOTATIONS, "amqp:delivery-annotations:map", _MAP),
    (MESSAGE_ANNOTATIONS, "amqp:message-annotations:map", _MAP),
    (PROPERTIES, "amqp:properties:list", _LIST),
    (APPLICATION_PROPERTIES, "amqp:application-properties:map", _MAP),
    (DATA, "amqp:data:binary", _BINARY),
    (AMQP_SEQUENCE, "amqp:amqp-sequence:list", _LIST),
    (AMQP_VALUE, "amqp:amqp-value:*", None),
    (FOOTER, "amqp:footer:map", _MAP),
)
_CONSTRUCTORS: Final = {code: constructors for code, _, constructors in _SECTIONS}
SECTION_CODES: Final[Mapping[str, int]] = {name: code for code, name, _ in _SECTIONS}
_SMALL_DESCRIPTOR: Final = b"\x00\x53"
_BODY: Final = (DATA, AMQP_SEQUENCE, AMQP_VALUE)


@dataclass(eq=False, slots=True)
class Sections:
    """Byte ranges within one message; None: the section is absent. `properties`: decoded, because there are
    rules about its fields. `bare`: where the bare message begins.
    """

    header: tuple[int, int] | None = None
    message_annotations: tuple[int, int] | None = None
    properties: Properties | None = None
    bare: int = 0


def locate(payload: bytes, found: Sections | None = None) -> Sections:
    """Find the sections of a message and check their order, count and form. The body may be absent, although
    3.2 requires one: JMS's plain Message, go-amqp and other clients send none. Raises `DecodeError`.
    """
    found = found or Sections()
    end = len(payload)
    pos = 0
    previous = 0
    body = 0
    count = 0
    bare: int | None = None
    while pos < end:
        start = pos
        if payload.startswith(_SMALL_DESCRIPTOR, pos) and pos + 2 < end and payload[pos + 2] in _CONSTRUCTORS:
            code = payload[pos + 2]
            pos += 3
        else:
            code, pos = _descriptor(payload, pos, end)
        count += 1
        if count > SECTIONS_MAX:
            raise DecodeError(f"failed to parse message: more than {SECTIONS_MAX} sections")
        if code in _BODY:
            if body and (code != body or code == AMQP_VALUE):
                raise DecodeError(
                    f"failed to parse message: section 0x{code:02x} after body section 0x{body:02x}"
                )
            body = code
        if code < previous or (code == previous and code not in (DATA, AMQP_SEQUENCE)):
            raise DecodeError(f"failed to parse message: section 0x{code:02x} after section 0x{previous:02x}")
        allowed = _CONSTRUCTORS[code]
        if pos >= end or (allowed is not None and payload[pos] not in allowed):
            raise DecodeError(f"failed to parse message: section 0x{code:02x} has a value of a wrong type")
        if code == PROPERTIES:
            properties, pos = decode_composite(payload, start, end)
            assert isinstance(properties, Properties)
            found.properties = properties
        else:
            pos = skip(payload, pos, end)
        if code == HEADER:
            found.header = (start, pos)
        elif code == MESSAGE_ANNOTATIONS:
            found.message_annotations = (start, pos)
        if bare is None and code >= PROPERTIES:
            bare = start
        previous = code
    found.bare = end if bare is None else bare
    return found


def _descriptor(payload: bytes, pos: int, end: int) -> tuple[int, int]:
    if payload[pos] != 0:
        raise DecodeError(f"failed to parse message: no section begins at byte {pos}")
    descriptor, pos = decode(payload, pos + 1, end)
    # Section 1.3.3 of part 1: a symbol or a ulong.
    if isinstance(descriptor, Symbol):
        code = SECTION_CODES.get(descriptor)
    else:
        code = int(descriptor) if isinstance(descriptor, ULong) else None
    if code is None or code not in _CONSTRUCTORS:
        raise DecodeError(f"failed to parse message: unknown section {descriptor!r}")
    return code, pos
