"""Messages of the management node: decoding of requests, encoding of responses.

``to`` is the URI, ``subject`` the method or the status code, the body an amqp-value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.codec import decode, encode
from amqp10broker.protocols.amqp10.errors import DecodeError
from amqp10broker.protocols.amqp10.performatives import (
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    PROPERTIES,
    Properties,
    decode_composite,
)
from amqp10broker.protocols.amqp10.sections import SECTION_CODES
from amqp10broker.protocols.amqp10.types import Described, Symbol, ULong

MessageId = int | UUID | bytes | str | None

_SECTIONS: Final[Mapping[str | int, int]] = {
    key: code for name, code in SECTION_CODES.items() for key in (name, code)
}

_HTTP_RESPONSE: Final = encode(Described(ULong(APPLICATION_PROPERTIES), {"http:response": "1.1"}))


@dataclass(frozen=True, slots=True)
class ManagementRequest:
    """A decoded request.

    Attributes:
        to: the URI; empty if there is none, or it is not a string.
        message_id: of any of its types, None if there is none.
        body: the value of an amqp-value, or the bytes of data sections.
    """

    method: str
    to: str
    message_id: MessageId
    body: Any


def read_request(payload: bytes) -> ManagementRequest:
    """Decode a request. Missing fields, and those of a wrong type, are empty or None, and refused later.

    Sections may be in any order: proton writes the body of null in front of the properties. Raises
    `DecodeError` if it is not a message.
    """
    properties = Properties()
    chunks: list[bytes] = []
    body: Any = None
    pos = 0
    while pos < len(payload):
        start = pos
        section, pos = decode(payload, pos)
        descriptor = section.descriptor if isinstance(section, Described) else None
        code = _SECTIONS.get(descriptor) if isinstance(descriptor, ULong | Symbol) else None
        if code is None:
            raise DecodeError(f"failed to parse message: no section begins at byte {start}")
        if code == PROPERTIES:
            decoded, _ = decode_composite(payload, start)
            assert isinstance(decoded, Properties)
            properties = decoded
        elif code == AMQP_VALUE:
            body = section.value
        elif code == DATA:
            if not isinstance(section.value, bytes):
                raise DecodeError("failed to parse message: a data section is no binary")
            chunks.append(section.value)
    if not pos:
        raise DecodeError("failed to parse message: it is empty")
    return ManagementRequest(
        method=properties.subject or "",
        to=properties.to if isinstance(properties.to, str) else "",
        message_id=properties.message_id,
        body=b"".join(chunks) if chunks else body,
    )


def response(status: int, correlation_id: MessageId, body: Any) -> bytes:
    properties = Properties(subject=str(status), correlation_id=correlation_id)
    return properties.encode() + _HTTP_RESPONSE + encode(Described(ULong(AMQP_VALUE), body))
