"""Repeated bytes of a publisher or a consumer, and reading many messages with them at once.

A `PublishLayout` is a method frame of basic.publish that was read, with the bytes before the body of its last
message: method frame, content header, header of the body frame. A message with the same arguments, properties
and body size begins with the same bytes and has the same length.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp091.framing import (
    BASIC_CLASS,
    CONTENT_HEADER_BYTES_MIN,
    CONTENT_START,
    CONTENT_START_BYTES,
    END,
    FRAME_OVERHEAD,
    HEADER,
    HEADER_BYTES,
)
from amqp10broker.protocols.amqp091.items import AckRun, PublishRun
from amqp10broker.protocols.amqp091.methods import FRAME_BODY, FRAME_END, FRAME_HEADER, BasicPublish

ACK: Final = b"\x00\x3c\x00\x50"
ACK_PAYLOAD_BYTES: Final = 13
ACK_BYTES: Final = 21
# A whole basic.ack frame: all up to the tag, the tag, and the bit with the end octet.
_ACK_ROW: Final = Struct(">11sQ2s")
_ACK_ENDS: Final = {b"\x00" + END: False, b"\x01" + END: True}

PREFIX_BYTES_MAX: Final = 2048
"""The longest prefix that is learned: with thousands of layouts, longer ones would use much memory."""

_unpack_header = HEADER.unpack_from
_unpack_content = CONTENT_START.unpack_from

# The number of messages compared first; four times as many each time all were alike, so that fewer bytes are
# read in vain than with success.
_FIRST_ROWS: Final = 4


@dataclass(eq=False, slots=True)
class PublishLayout:
    channel: int
    method: BasicPublish
    prefix: bytes = b""
    properties: bytes = b""
    body_at: int = 0
    stride: int = 0
    _row: Struct | None = None

    def read(self, buf: bytes, pos: int, head_at: int, frame_limit: int, body_limit: int) -> int:
        """Read a message whose body is one frame, behind the method frame, and learn from it. Returns where
        it ends; behind the end of the bytes: how many are needed to read on; 0: it is not such a message, or
        malformed.
        """
        end = len(buf)
        kind, channel, size, class_id, weight, body_bytes = _unpack_content(buf, head_at)
        if (
            kind != FRAME_HEADER
            or channel != self.channel
            or class_id != BASIC_CLASS
            or weight
            or not CONTENT_HEADER_BYTES_MIN <= size <= frame_limit
            or not 0 < body_bytes <= body_limit
        ):
            return 0
        head_stop: int = head_at + size + FRAME_OVERHEAD
        body_at = head_stop + HEADER_BYTES
        stop: int = body_at + body_bytes + 1
        if stop > end:
            # A header with a wrong end octet is reported when it is here: its body may never come.
            if head_stop > end:
                return head_stop
            if buf[head_stop - 1] != FRAME_END:
                return 0
            if body_at > end:
                return body_at
        elif buf[stop - 1] != FRAME_END or buf[head_stop - 1] != FRAME_END:
            return 0
        if _unpack_header(buf, head_stop) != (FRAME_BODY, channel, body_bytes):
            return 0
        if stop <= end:
            self.prefix = buf[pos:body_at]
            self.properties = buf[head_at + CONTENT_START_BYTES : head_stop - 1]
            self.body_at = body_at - pos
            self.stride = stop - pos
            self._row = None
        return stop

    def read_rows(self, buf: bytes, pos: int, end: int, run: PublishRun) -> int:
        """Add the messages at `pos` that are like the last one; return where the first other byte is."""
        row = self._row
        if row is None:
            row = self._row = Struct(f"{self.body_at}s{self.stride - self.body_at - 1}sc")
        prefix = self.prefix
        stride = self.stride
        count = _FIRST_ROWS
        found = count
        while found == count:
            count = min(count, (end - pos) // stride)
            if not count:
                break
            bodies = []
            for start, body, last in row.iter_unpack(memoryview(buf)[pos : pos + count * stride]):
                if start != prefix or last != END:
                    break
                bodies.append(body)
            found = len(bodies)
            run.bodies += bodies
            run.properties += [self.properties] * found
            pos += found * stride
            if found == count:
                count = found = count * 4
        return pos


def is_ack(buf: bytes, pos: int, end: int) -> bool:
    """Whether a whole basic.ack frame with bit octet 0 or 1 begins there; its payload has the right size."""
    stop = pos + ACK_BYTES
    return (
        buf.startswith(ACK, pos + HEADER_BYTES)
        and stop <= end
        and buf[stop - 1] == FRAME_END
        and buf[stop - 2] < 2
    )


def read_acks(buf: bytes, pos: int, end: int, run: AckRun) -> int:
    """Add the basic.ack frames with bit octet 0 or 1 at `pos`; return where the first other byte is."""
    head = buf[pos : pos + 11]
    ends = _ACK_ENDS
    count = _FIRST_ROWS
    while True:
        count = min(count, (end - pos) // ACK_BYTES)
        before = len(run.tags)
        for start, tag, last in _ACK_ROW.iter_unpack(memoryview(buf)[pos : pos + count * ACK_BYTES]):
            if start != head or last not in ends:
                break
            run.tags.append((tag, ends[last]))
        found = len(run.tags) - before
        pos += found * ACK_BYTES
        if found < count or not count:
            return pos
        count *= 4
