"""Messages published with AMQP 1.0: reading a payload, and reading and writing heads.

The head is the encoded header and message-annotations as they will be delivered; the bare part is
properties, application-properties, body and footer, byte for byte as published (`message`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, TypeAlias, TypeVar

from amqp10broker.message.layouts import MessageLayouts, header_end
from amqp10broker.protocols.amqp10.codec import decode, encode
from amqp10broker.protocols.amqp10.errors import AmqpLinkError, Condition, DecodeError
from amqp10broker.protocols.amqp10.performatives import Header, Properties, decode_composite
from amqp10broker.protocols.amqp10.sections import Sections, locate
from amqp10broker.protocols.amqp10.types import Array, Described, Map, Symbol, ULong

T = TypeVar("T")

X_EXCHANGE: Final = Symbol("x-exchange")
X_ROUTING_KEY: Final = Symbol("x-routing-key")
X_CC: Final = Symbol("x-cc")
X_OPT_DEATHS: Final = Symbol("x-opt-deaths")
_MESSAGE_ANNOTATIONS: Final = ULong(0x72)
_CACHE_ENTRIES: Final = 4096
HEAD_BYTES_MAX: Final = 1024
"""Longer heads are made and read each time: thousands of them would take too much memory."""

_HEADER8: Final = b"\x00\x53\x70\xc0"
_DATA8: Final = b"\x00\x53\x75\xa0"
_DATA32: Final = b"\x00\x53\x75\xb0"
_number = int.from_bytes


HeadAndContent: TypeAlias = tuple[bytes, bytes]


class MessageReader:
    """Turns payloads into messages for one exchange and routing key, with caches for heads and layouts.

    A publisher writes the same header and annotations over and over; each different prefix is decoded once.
    Messages of a known layout need not be checked thoroughly (`layouts`). `has_extra_keys`: some message so
    far had an x-cc annotation: call `extra_keys` for each.
    """

    __slots__ = (
        "_exchange",
        "_heads",
        "_impersonator",
        "_layouts",
        "_plain_head",
        "_routing_key",
        "_user",
        "has_extra_keys",
    )

    def __init__(self, exchange: str, routing_key: str, user: str, impersonator: bool = False) -> None:
        self._exchange = exchange
        self._routing_key = routing_key
        self._user = user
        self._impersonator = impersonator
        self.has_extra_keys = False
        self._plain_head = make_head(None, None, exchange, routing_key)
        self._heads: dict[bytes, bytes] = {b"": self._plain_head}
        self._layouts = MessageLayouts()

    def read(self, payload: bytes) -> HeadAndContent:
        """Check a payload and return its message. Raises `AmqpLinkError`."""
        # The commonest prefix, a header seen before (or none) and one data section, needs no search.
        start = payload[:4]
        size = len(payload)
        if start == _DATA8 and size > 4 and payload[4] + 5 == size:
            return self._plain_head, payload
        at = 5 + payload[4] if start == _HEADER8 and size > 4 else 0
        code = payload[at : at + 4]
        if code == _DATA8:
            head = self._heads.get(payload[:at])
            if head is not None and size > at + 4 and at + 5 + payload[at + 4] == size:
                return head, payload[at:]
        elif code == _DATA32:
            head = self._heads.get(payload[:at])
            if head is not None and at + 8 + _number(payload[at + 4 : at + 8], "big") == size:
                return head, payload[at:]
        layout = self._layouts.find(payload, at)
        if layout is not None:
            return layout.head, payload[layout.bare :]
        return self._learn(payload)[0]

    def to_of(self, payload: bytes) -> Any:
        """Return the `to` of a payload's properties. Raises as `read`."""
        layout = self._layouts.find(payload, header_end(payload))
        if layout is not None and layout.to is not None:
            return payload[layout.to].decode()
        properties = self._learn(payload)[1] if layout is None else self.read_with_properties(payload)[1]
        return None if properties is None else properties.to

    def _learn(self, payload: bytes) -> tuple[HeadAndContent, Properties | None]:
        message, properties = self.read_with_properties(payload)
        head, bare = message
        self._layouts.learn(payload, header_end(payload), len(payload) - len(bare), head)
        return message, properties

    def read_with_properties(self, payload: bytes) -> tuple[HeadAndContent, Properties | None]:
        try:
            sections = locate(payload)
            prefix = payload[: sections.bare]
            head = self._heads.get(prefix)
            if head is None:
                head = self._decode_head(payload, sections.header, sections.message_annotations)
                if len(prefix) <= HEAD_BYTES_MAX:
                    if len(self._heads) >= _CACHE_ENTRIES:
                        self._heads.clear()
                    self._heads[prefix] = head
        except DecodeError as error:
            text = error.description
            if not text.startswith("failed to parse message"):
                text = f"failed to parse message: {text}"
            raise AmqpLinkError(Condition.DECODE_ERROR, text) from error
        properties = sections.properties
        user_id = None if properties is None else properties.user_id
        if user_id is not None and user_id != self._user.encode() and not self._impersonator:
            raise AmqpLinkError(
                Condition.UNAUTHORIZED_ACCESS,
                f"user_id property set to '{user_id.decode('utf-8', 'backslashreplace')}' "
                f"but authenticated user was '{self._user}'",
            )
        return (head, payload[sections.bare :] if sections.bare else payload), properties

    def _decode_head(
        self, payload: bytes, header_at: tuple[int, int] | None, annotations_at: tuple[int, int] | None
    ) -> bytes:
        header: Header | None = None
        if header_at is not None:
            decoded, _ = decode_composite(payload, *header_at)
            assert isinstance(decoded, Header)
            header = decoded
        annotations: dict[Any, Any] | None = None
        if annotations_at is not None:
            described, _ = decode(payload, *annotations_at)
            annotations = described.value
            if isinstance(annotations, Map) or not all(
                isinstance(key, Symbol) and key.startswith("x-") for key in annotations or ()
            ):
                raise AmqpLinkError(
                    Condition.INVALID_FIELD,
                    "reserved_annotation_key: keys of message-annotations must be symbols that start with x-",
                )
        if annotations and X_CC in annotations:
            self.has_extra_keys = True
        return make_head(header, annotations, self._exchange, self._routing_key)


def to_at_start(payload: bytes) -> Any:
    """Return the `to` of a message's beginning; None: there is none, or it is further on."""
    found = Sections()
    with suppress(DecodeError):  # the properties are cut off, and read again when the message is complete
        locate(payload, found)
    return None if found.properties is None else found.properties.to


def make_head(
    header: Header | None, annotations: dict[Any, Any] | None, exchange: str, routing_key: str
) -> bytes:
    """Make the head of a message that was not acquired yet.

    The broker sets first-acquirer, delivery-count, x-exchange and x-routing-key.
    """
    merged = dict(annotations) if annotations else {}
    merged[X_EXCHANGE] = exchange
    merged[X_ROUTING_KEY] = routing_key
    if X_OPT_DEATHS in merged:
        merged = with_deaths_placed(merged, ours=False)
    given = header or Header()
    fresh = Header(
        durable=bool(given.durable),
        priority=given.priority,
        ttl=given.ttl,
        first_acquirer=True,
        delivery_count=0,
    )
    return encode_head(fresh, merged)


def encode_head(header: Header, annotations: dict[Any, Any]) -> bytes:
    return header.encode() + encode(Described(_MESSAGE_ANNOTATIONS, annotations))


def decode_head(head: bytes) -> tuple[Header, dict[Any, Any]]:
    """Return header and message-annotations as copies that the caller may change."""
    header, end = decode_composite(head)
    assert isinstance(header, Header)
    described, _ = decode(head, end)
    annotations: dict[Any, Any] = described.value
    return header, annotations


def with_deaths_placed(annotations: dict[Any, Any], *, ours: bool) -> dict[Any, Any]:
    others = {key: value for key, value in annotations.items() if key != X_OPT_DEATHS}
    deaths = {X_OPT_DEATHS: annotations[X_OPT_DEATHS]}
    return {**deaths, **others} if ours else {**others, **deaths}


def has_own_deaths(annotations: dict[Any, Any]) -> bool:
    return next(iter(annotations), None) == X_OPT_DEATHS


def remembering(compute: Callable[[bytes], T]) -> Callable[[bytes], T]:
    """Cache what is computed of a head: most messages have one of few heads. Long ones are not cached."""
    remembered = lru_cache(maxsize=_CACHE_ENTRIES)(compute)
    return lambda head: remembered(head) if len(head) <= HEAD_BYTES_MAX else compute(head)


@remembering
def header_of(head: bytes) -> Header:
    """The header in a message's head. It is shared: do not change it."""
    header, _ = decode_composite(head)
    assert isinstance(header, Header)
    return header


def extra_keys(head: bytes) -> tuple[str, ...]:
    """The routing keys that the publisher's x-cc annotation adds. Raises `AmqpLinkError`."""
    # Most messages have no such annotation, and searching the bytes for its name is the fastest check.
    return _extra_keys(head) if X_CC.encode() in head else ()


@remembering
def _extra_keys(head: bytes) -> tuple[str, ...]:
    value = decode_head(head)[1].get(X_CC, ())
    if not isinstance(value, list | tuple | Array) or not all(type(key) is str for key in value):
        raise AmqpLinkError(
            Condition.INVALID_FIELD,
            f"bad value for 'x-cc' message-annotation: {value!r}; give a list of strings",
        )
    return tuple(value)


def acquired_head(head: bytes, failed: bool) -> bytes:
    return (_acquired if len(head) <= HEAD_BYTES_MAX else _acquired.__wrapped__)(head, failed)


@lru_cache(maxsize=_CACHE_ENTRIES)
def _acquired(head: bytes, failed: bool) -> bytes:
    header, end = decode_composite(head)
    assert isinstance(header, Header)
    header.first_acquirer = False
    header.delivery_count = (header.delivery_count or 0) + failed
    return header.encode() + head[end:]


def aged(messages: Sequence[HeadAndContent], waited_ms: int) -> Sequence[HeadAndContent]:
    """Shorten the times to live of AMQP 1.0 messages by the time that they have waited (part 3, 3.2.1)."""
    heads = {head: header_of(head).ttl for head in set(map(itemgetter(0), messages))}
    older = {head: _aged(head, max(0, ttl - waited_ms)) for head, ttl in heads.items() if ttl is not None}
    if not older:
        return messages
    return [(older.get(head, head), content) for head, content in messages]


def _aged(head: bytes, ttl_ms: int) -> bytes:
    header, annotations = decode_head(head)
    header.ttl = ttl_ms
    return encode_head(header, annotations)
