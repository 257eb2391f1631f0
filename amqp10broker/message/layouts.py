"""Layouts of AMQP 1.0 messages: common parts of a publisher's messages, learned from those it sent.

The messages of one publisher mostly have the same constructors, sizes and keys in the same places, and
differ in the content of a few values: a message-id, a time, an application property, the body. Whether a
message is well-formed depends on the former only. So once a message has been checked thoroughly, one
comparison of numbers checks the next one: everything up to the body's content, read as one big number,
with the variable bits masked out.

A bit may vary only if no value of it makes another message of it than the one that was learned:

* all of an integer, a floating-point number, a time, a uuid or a binary;
* all but the highest bit of each byte of a string or a symbol in ASCII. So a match is ASCII, which is
  UTF-8, and other text is checked thoroughly unless it is the very same.

All else must be equal: header and annotations, constructors, sizes, keys, the user-id, and every value
that is not listed here. The size of the body is checked against the end of the message.
"""

from __future__ import annotations

from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.codec import skip
from amqp10broker.protocols.amqp10.performatives import AMQP_VALUE, APPLICATION_PROPERTIES, DATA, PROPERTIES

LENGTH_MAX: Final = 512
"""Messages with more bytes before the body's content are not learned: the cost of big numbers grows with
their length.
"""
LAYOUTS_MAX: Final = 64
"""MessageLayouts that one reader remembers: with the other limits, below 100 kB."""
ALIKE_MAX: Final = 8
"""The most layouts with an equal beginning, which have to be tried one after the other."""
PAUSE_MAX: Final = 64
"""The most unmatched messages that are skipped before one of them is learned."""

_KEY_BYTES: Final = 7
"""Beginning of the section after the header, up to the constructor of its first item. Properties have their
size in it, so messages with ids of different sizes differ. The key must consist of fixed bytes, which the
first four are also if the section is the body.
"""
_KEY_BYTES_OF_BODY: Final = 4
_HEADER_LIST0: Final = b"\x00\x53\x70\x45"
_SMALL_ULONG: Final = b"\x00\x53"
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
"""Constructors of fixed width with a value in every content. Not so boolean and char; decimals are too
rare.
"""
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
    """The layouts that one reader has learned.

    Learning takes about as long as checking thoroughly. A publisher that never repeats a layout must not
    pay for it each time, so the more was learned, the more unmatched messages are skipped before the next
    one is learned. A publisher that does repeat layouts has few unmatched messages.
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
        """Return the layout of a message, or None if it is not known to be well-formed."""
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
                # Below its length the size field does not fit, above its maximum the sum below would run over
                # from the size field into the constructor.
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
        # Reinserted at the end: the layouts that were extended last are forgotten last.
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
    """Return where a header in the commonest encoding ends, 0 if the message does not begin with one."""
    return 5 + payload[4] if payload.startswith(b"\x00\x53\x70\xc0") and len(payload) > 4 else 0


def layout_of(payload: bytes, bare: int, head: bytes) -> MessageLayout | None:
    """Arguments as of `MessageLayouts.learn`. None if the body is not one data section or a binary or
    string as amqp-value, if another section follows it, if it is too long, or if it encodes descriptors in an
    unusual way.
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
    # The size field is the end of the number. Its required value is added when a message is compared.
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
    # The keys stay, since they must differ.
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
    if layout is None:  # the list without items has a constructor of its own
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
