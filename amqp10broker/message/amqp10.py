"""Messages published with AMQP 1.0: reading a payload, and reading and writing heads.

The head is the encoded header and message-annotations as they will be delivered; the bare part is
properties, application-properties, body and footer, byte for byte as published (`message`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, TypeVar

from amqp10broker.dataclass import dataclass
from amqp10broker.message.message import Message
from amqp10broker.protocols.amqp10.codec import decode, encode, skip
from amqp10broker.protocols.amqp10.errors import AmqpLinkError, Condition, DecodeError
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
    SECTION_CODES,
    Header,
    Properties,
    decode_composite,
)
from amqp10broker.protocols.amqp10.types import Array, Described, Map, Symbol, ULong

SECTIONS_MAX: Final = 10_000
"""RabbitMQ's limit; only data and amqp-sequence may be repeated."""

_SMALL_ULONG: Final = b"\x00\x53"
_LIST: Final = frozenset((0x45, 0xC0, 0xD0))
_MAP: Final = frozenset((0xC1, 0xD1))
_BINARY: Final = frozenset((0xA0, 0xB0))

_CONSTRUCTORS: Final = {
    HEADER: _LIST,
    DELIVERY_ANNOTATIONS: _MAP,
    MESSAGE_ANNOTATIONS: _MAP,
    PROPERTIES: _LIST,
    APPLICATION_PROPERTIES: _MAP,
    DATA: _BINARY,
    AMQP_SEQUENCE: _LIST,
    AMQP_VALUE: None,
    FOOTER: _MAP,
}
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
        if payload.startswith(_SMALL_ULONG, pos) and pos + 2 < end and payload[pos + 2] in _CONSTRUCTORS:
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


LENGTH_MAX: Final = 512
"""The most bytes before the body's content: the cost of big numbers grows with their length."""
LAYOUTS_MAX: Final = 64
"""The most that one reader remembers: with the other limits, below 100 kB."""
ALIKE_MAX: Final = 8
"""The most layouts with an equal beginning, which are compared one after the other."""
PAUSE_MAX: Final = 64
"""The most unmatched messages that are skipped before one of them is learned."""

_KEY_BYTES: Final = 7
"""The beginning of the section after the header, up to the constructor of its first item. It must consist of
fixed bytes; if the section is the body, only the first four bytes are.
"""
_KEY_BYTES_OF_BODY: Final = 4
_HEADER_LIST0: Final = b"\x00\x53\x70\x45"
_USER_ID: Final = 1
_TO: Final = 2

_FREE: Final = frozenset(
    (
        *(0x50, 0x51, 0x52, 0x53, 0x54, 0x55),  # ubyte, byte, small uint, ulong, int, long
        *(0x60, 0x61),  # ushort, short
        *(0x70, 0x71, 0x72),  # uint, int, float
        *(0x80, 0x81, 0x82, 0x83),  # ulong, long, double, timestamp
        0x98,  # uuid
    )
)
"""Constructors of fixed width with a value in every content."""
_BINARIES: Final = {0xA0: 1, 0xB0: 4}
_STRINGS: Final = {0xA1: 1, 0xB1: 4}
_SIZE_WIDTHS: Final = {**_BINARIES, **_STRINGS, 0xA3: 1, 0xB3: 4}
_LIST_STARTS: Final = {0xC0: (3, 1), 0xD0: (9, 4), 0xC1: (3, 1), 0xD1: (9, 4)}
"""By the constructor of a list or map: where its items begin after it, and the width of its count."""

_number = int.from_bytes


@dataclass(frozen=True, slots=True)
class MessageLayout:
    """The common parts of messages, and the head for such a message.

    Attributes:
        length: bytes before the content of the body; the size field is the last of them.
        mask: has 1 for each of the bits that count.
        fixed: those bits, with the body's size field computed for a message of zero bytes, so that the
            message's size is added before the comparison.
        text: the body is a string, which must be UTF-8.
        to: the slice of the `to` in properties; None unless it is a string.
    """

    size_at: int
    length: int
    size_max: int
    mask: int
    fixed: int
    text: bool
    head: bytes
    bare: int
    to: slice | None


class MessageLayouts:
    """The layouts that one reader has learned of its publisher's messages.

    These mostly have the same constructors, sizes and keys in the same places, and differ in the content of a
    few values. Whether a message is well-formed depends on the former only. So once a message has been
    checked thoroughly, one comparison of numbers checks the next one: everything up to the body's content,
    read as one big number, with the variable bits masked out. These are:

    * all of an integer, a floating-point number, a time, a uuid or a binary;
    * all but the highest bit of each byte of a string or a symbol in ASCII. So a match is ASCII, which is
      UTF-8, and other text is checked thoroughly unless it is the very same.

    All else must be equal, the user-id too. The size of the body is checked against the end of the message.

    Learning takes about as long as checking thoroughly. So that a publisher that never repeats a layout does
    not pay for it each time, the more was learned, the more unmatched messages are skipped before the next
    one.
    """

    __slots__ = ("_by_start", "_count", "_learned", "_pause")

    def __init__(self) -> None:
        self._by_start: dict[bytes, list[MessageLayout]] = {}
        self._count = 0
        self._learned = 0
        self._pause = 0

    def __len__(self) -> int:
        return self._count

    def find(self, payload: bytes, at: int) -> MessageLayout | None:
        """Return the layout of a message; None if the message is not known to be well-formed."""
        if not at and payload.startswith(_HEADER_LIST0):
            at = 4
        alike = self._by_start.get(payload[at : at + _KEY_BYTES])
        if alike is None:
            alike = self._by_start.get(payload[at : at + _KEY_BYTES_OF_BODY])
            if alike is None:
                return None
        size = len(payload)
        for layout in alike:
            length = layout.length
            if (
                # With a size below its length the size field does not fit; with one above its maximum the sum
                # below would overflow from the size field into the constructor.
                length <= size <= layout.size_max
                # Rejects most layouts with an equal beginning without a big number.
                and payload[length - 1] == (size - length) & 0xFF
                and _number(payload[:length], "big") & layout.mask == layout.fixed + size
                and (not layout.text or _is_utf8(payload, length))
            ):
                if layout is not alike[0]:
                    alike.remove(layout)
                    alike.insert(0, layout)
                return layout
        return None

    def learn(self, payload: bytes, at: int, bare: int, head: bytes) -> None:
        """Remember the layout of a message, unless it cannot repeat, or the pause since the last one was too
        short. `payload`: a message that has been checked thoroughly, and that `find` has not found. `head`:
        the converted bytes before `bare`.
        """
        if self._pause:
            self._pause -= 1
            return
        layout = layout_of(payload, bare, head)
        self._learned += 1
        self._pause = min(self._learned // 4, PAUSE_MAX)
        if layout is None:
            return
        if not at and payload.startswith(_HEADER_LIST0):
            at = 4
        # It is inserted again at the end: the layouts that were extended last are dropped last.
        width = _KEY_BYTES if at + _KEY_BYTES <= layout.size_at else _KEY_BYTES_OF_BODY
        key = payload[at : at + width]
        alike = self._by_start.pop(key, [])
        self._by_start[key] = alike
        alike.insert(0, layout)
        self._count += 1
        if len(alike) > ALIKE_MAX:
            alike.pop()
            self._count -= 1
        elif self._count > LAYOUTS_MAX:
            oldest = next(iter(self._by_start))
            self._count -= len(self._by_start.pop(oldest))


def header_end(payload: bytes) -> int:
    """Return where a header in the commonest encoding ends; 0: there is none."""
    return 5 + payload[4] if payload.startswith(b"\x00\x53\x70\xc0") and len(payload) > 4 else 0


def layout_of(payload: bytes, bare: int, head: bytes) -> MessageLayout | None:
    """Arguments as of `MessageLayouts.learn`. None if the body is not one data section or a binary or string
    as amqp-value, if another section follows it, if it is too long, or if a descriptor is encoded unusually.
    """
    free: list[tuple[int, int, int]] = []
    to: slice | None = None
    pos = bare
    section = _section_at(payload, pos)
    if section == PROPERTIES:
        pos, to = _properties(payload, pos + 3, free)
        section = _section_at(payload, pos)
    if section == APPLICATION_PROPERTIES and pos <= LENGTH_MAX:
        pos = _application_properties(payload, pos + 3, free)
        section = _section_at(payload, pos)
    if section not in (DATA, AMQP_VALUE):
        return None
    code = payload[pos + 3]
    text = code in _STRINGS
    width = _BINARIES.get(code) or _STRINGS.get(code, 0)
    length = pos + 4 + width
    if not width or length > LENGTH_MAX:
        return None
    if length + _number(payload[length - width : length], "big") != len(payload):
        return None

    free.append((length - width, length, 0))
    mask_bytes = bytearray(b"\xff") * length
    for start, stop, bits in free:
        mask_bytes[start:stop] = bytes((bits,)) * (stop - start)
    # The size field is the end of the number; its value is added when a message is compared.
    mask = _number(mask_bytes, "big")
    fixed = _number(payload[:length], "big") & mask
    size_values = 1 << 8 * width
    return MessageLayout(
        size_at=length - width,
        length=length,
        size_max=length + size_values - 1,
        mask=mask | (size_values - 1),
        fixed=fixed - length,
        text=text,
        head=head,
        bare=bare,
        to=to,
    )


def _is_utf8(payload: bytes, start: int) -> bool:
    try:
        payload[start:].decode()
    except UnicodeDecodeError:
        return False
    return True


def _section_at(payload: bytes, pos: int) -> int:
    return payload[pos + 2] if payload.startswith(_SMALL_ULONG, pos) else 0


def _properties(payload: bytes, pos: int, free: list[tuple[int, int, int]]) -> tuple[int, slice | None]:
    to: slice | None = None
    pos, count = _items(payload, pos)
    for field in range(count):
        stop = skip(payload, pos)
        content = _content(payload, pos)
        if content is not None:
            start, bits = content
            # The user-id has been checked for this user only: it has to stay.
            if field != _USER_ID:
                free.append((start, stop, bits))
            if field == _TO and payload[pos] in _STRINGS:
                to = slice(start, stop)
        pos = stop
    return pos, to


def _application_properties(payload: bytes, pos: int, free: list[tuple[int, int, int]]) -> int:
    # The keys stay fixed, because they must differ.
    pos, count = _items(payload, pos)
    for _ in range(count // 2):
        pos = skip(payload, pos)
        stop = skip(payload, pos)
        content = _content(payload, pos)
        if content is not None:
            start, bits = content
            free.append((start, stop, bits))
        pos = stop
    return pos


def _items(payload: bytes, pos: int) -> tuple[int, int]:
    layout = _LIST_STARTS.get(payload[pos])
    if layout is None:  # the list without items has a separate constructor
        return pos + 1, 0
    start, width = pos + layout[0], layout[1]
    return start, _number(payload[start - width : start], "big")


def _content(payload: bytes, pos: int) -> tuple[int, int] | None:
    code = payload[pos]
    if code in _FREE:
        return pos + 1, 0x00
    width = _SIZE_WIDTHS.get(code)
    if width is None:
        return None
    start = pos + 1 + width
    if code in _BINARIES:
        return start, 0x00
    stop = start + _number(payload[pos + 1 : start], "big")
    return (start, 0x80) if payload[start:stop].isascii() else None


T = TypeVar("T")

X_EXCHANGE: Final = Symbol("x-exchange")
X_ROUTING_KEY: Final = Symbol("x-routing-key")
X_CC: Final = Symbol("x-cc")
X_OPT_DEATHS: Final = Symbol("x-opt-deaths")
_MESSAGE_ANNOTATIONS: Final = ULong(0x72)
_CACHE_ENTRIES: Final = 4096
HEAD_BYTES_MAX: Final = 1024
"""Longer heads are not cached."""

_HEADER8: Final = b"\x00\x53\x70\xc0"
_DATA8: Final = b"\x00\x53\x75\xa0"
_DATA32: Final = b"\x00\x53\x75\xb0"


class MessageReader:
    """Converts payloads to messages for one exchange and routing key, with caches for heads and layouts: a
    publisher writes the same header and annotations again and again. `has_extra_keys`: some message so far
    had an x-cc annotation: call `extra_keys` for each.
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

    def read(self, payload: bytes) -> Message:
        """Check a payload and return its message. Raises `AmqpLinkError`."""
        # The most frequent form: a header seen before (or none) and one data section.
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

    def _learn(self, payload: bytes) -> tuple[Message, Properties | None]:
        message, properties = self.read_with_properties(payload)
        head, bare = message
        self._layouts.learn(payload, header_end(payload), len(payload) - len(bare), head)
        return message, properties

    def read_with_properties(self, payload: bytes) -> tuple[Message, Properties | None]:
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
    """Return the `to` from the beginning of a message, if it has been received."""
    found = Sections()
    with suppress(DecodeError):  # it is cut off
        locate(payload, found)
    return None if found.properties is None else found.properties.to


def make_head(
    header: Header | None, annotations: dict[Any, Any] | None, exchange: str, routing_key: str
) -> bytes:
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
    """Cache the result of a function of a head, unless the head is long."""
    remembered = lru_cache(maxsize=_CACHE_ENTRIES)(compute)
    return lambda head: remembered(head) if len(head) <= HEAD_BYTES_MAX else compute(head)


@remembering
def header_of(head: bytes) -> Header:
    """Return the header in a message's head. It is shared, and must not be changed."""
    header, _ = decode_composite(head)
    assert isinstance(header, Header)
    return header


def extra_keys(head: bytes) -> tuple[str, ...]:
    """The routing keys that the publisher's x-cc annotation adds. Raises `AmqpLinkError`."""
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


def aged(messages: Sequence[Message], waited_ms: int) -> Sequence[Message]:
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
