"""A message in the broker: a head of our making, and the publisher's bytes untouched.

A `Message` is a plain tuple ``(head, bare)``:

- `head` is the encoded header and message-annotations as they will be delivered. It depends on few
  things (the publisher's header and annotations, exchange, routing key), so that thousands of
  messages share one object.
- `bare` is properties, application-properties, body and footer, byte for byte as published.

Two bytes objects in a tuple are the cheapest thing that can wait in a queue: 56 bytes beside the
content, and the collector drops tuples of atoms from its books at the first pass (with a million
objects waiting, that is the difference between no pause and 150 ms). What the broker wants to know
of a message later it reads from `head`, by a cache keyed on it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from amqp10broker.amqp10.codec import decode, encode
from amqp10broker.amqp10.errors import AmqpLinkError, Condition, DecodeError
from amqp10broker.amqp10.performatives import Header, Properties, decode_composite
from amqp10broker.amqp10.sections import locate
from amqp10broker.amqp10.types import Described, Map, Symbol, ULong

Message = tuple[bytes, bytes]

X_EXCHANGE: Final = Symbol("x-exchange")
X_ROUTING_KEY: Final = Symbol("x-routing-key")
_MESSAGE_ANNOTATIONS: Final = ULong(0x72)
_CACHE_ENTRIES: Final = 4096

_HEADER8: Final = b"\x00\x53\x70\xc0"
_DATA8: Final = b"\x00\x53\x75\xa0"
_DATA32: Final = b"\x00\x53\x75\xb0"


class MessageReader:
    """Turns payloads into messages for one exchange and routing key, with a memory for heads.

    A publisher writes the same header and annotations over and over; each different prefix is
    decoded once.
    """

    __slots__ = ("_exchange", "_heads", "_plain_head", "_routing_key", "_user")

    def __init__(self, exchange: str, routing_key: str, user: str) -> None:
        """Read for one route.

        Args:
            exchange: name for the x-exchange annotation, empty for the default exchange.
            routing_key: for the x-routing-key annotation.
            user: the authenticated user; a user-id in properties must equal it.
        """
        self._exchange = exchange
        self._routing_key = routing_key
        self._user = user
        self._plain_head = make_head(None, None, exchange, routing_key)
        self._heads: dict[bytes, bytes] = {b"": self._plain_head}

    def read(self, payload: bytes) -> Message:
        """Check a message and make it ready for queue and consumer.

        Raises:
            AmqpLinkError: malformed, reserved annotations, or a user-id that is not the user's.
        """
        # The commonest shapes, a header seen before (or none) and one data section, need no search.
        if payload[:4] == _DATA8 and len(payload) > 4 and payload[4] + 5 == len(payload):
            return self._plain_head, payload
        at = 5 + payload[4] if payload.startswith(_HEADER8) and len(payload) > 4 else 0
        head = self._heads.get(payload[:at])
        if head is not None and len(payload) > at + 8:
            code = payload[at : at + 4]
            if (code == _DATA8 and at + 5 + payload[at + 4] == len(payload)) or (
                code == _DATA32 and at + 8 + int.from_bytes(payload[at + 4 : at + 8], "big") == len(payload)
            ):
                return head, payload[at:] if at else payload
        return self.read_with_properties(payload)[0]

    def read_with_properties(self, payload: bytes) -> tuple[Message, Properties | None]:
        """As `read`, and the decoded properties, which an anonymous terminus routes by."""
        try:
            sections = locate(payload)
            prefix = payload[: sections.bare]
            head = self._heads.get(prefix)
            if head is None:
                head = self._decode_head(payload, sections.header, sections.message_annotations)
                if len(self._heads) >= _CACHE_ENTRIES:
                    self._heads.clear()
                self._heads[prefix] = head
        except DecodeError as error:
            text = error.description
            if not text.startswith("failed to parse message"):
                text = f"failed to parse message: {text}"
            raise AmqpLinkError(Condition.DECODE_ERROR, text) from error
        properties = sections.properties
        if properties is not None and properties.user_id is not None:
            self._check_user(properties.user_id)
        return (head, payload[sections.bare :] if sections.bare else payload), properties

    def _check_user(self, user_id: bytes) -> None:
        if user_id != self._user.encode():
            raise AmqpLinkError(
                Condition.UNAUTHORIZED_ACCESS,
                f"user_id property set to '{user_id.decode('utf-8', 'backslashreplace')}' "
                f"but authenticated user was '{self._user}'",
            )

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
        return make_head(header, annotations, self._exchange, self._routing_key)


def make_head(
    header: Header | None, annotations: dict[Any, Any] | None, exchange: str, routing_key: str
) -> bytes:
    """Header and message-annotations of a message that nobody has acquired yet.

    Args:
        header: the publisher's, or None; its first-acquirer and delivery-count are ours to set.
        annotations: the publisher's, or None.
        exchange: replaces x-exchange.
        routing_key: replaces x-routing-key.
    """
    merged = dict(annotations) if annotations else {}
    merged[X_EXCHANGE] = exchange
    merged[X_ROUTING_KEY] = routing_key
    given = header or Header()
    fresh = Header(
        durable=bool(given.durable),
        priority=given.priority,
        ttl=given.ttl,
        first_acquirer=True,
        delivery_count=0,
    )
    return fresh.encode() + encode(Described(_MESSAGE_ANNOTATIONS, merged))


@lru_cache(maxsize=_CACHE_ENTRIES)
def header_of(head: bytes) -> Header:
    """The header in a message's head. Shared by all that ask: read it, do not change it."""
    header, _ = decode_composite(head)
    assert isinstance(header, Header)
    return header


@lru_cache(maxsize=_CACHE_ENTRIES)
def _acquired_head(head: bytes, failed: bool) -> bytes:
    header, end = decode_composite(head)
    assert isinstance(header, Header)
    header.first_acquirer = False
    header.delivery_count = (header.delivery_count or 0) + int(failed)
    return header.encode() + head[end:]


def acquired(message: Message, *, failed: bool) -> Message:
    """The message as the next consumer sees it after one consumer had it.

    Args:
        message: as it was delivered.
        failed: the delivery counts as a failed attempt (`modified` with delivery-failed).
    """
    return _acquired_head(message[0], failed), message[1]
