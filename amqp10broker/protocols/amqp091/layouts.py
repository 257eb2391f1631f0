"""Repeated bytes of a publisher or a consumer, and reading many messages with them at once.

A `PublishLayout` is a method frame of basic.publish that was read, with the bytes before the body of its last
message: method frame, content header, header of the body frame. A message with the same arguments, properties
and body size begins with the same bytes and has the same length.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from amqp10broker.protocols.amqp091.framing import END
from amqp10broker.protocols.amqp091.items import AckRun, PublishRun
from amqp10broker.protocols.amqp091.methods import BasicPublish

ACK: Final = b"\x00\x3c\x00\x50"
ACK_PAYLOAD_BYTES: Final = 13
ACK_BYTES: Final = 21
# A whole basic.ack frame: all up to the tag, the tag, and the bit with the end octet.
_ACK_ROW: Final = Struct(">11sQ2s")
_ACK_ENDS: Final = {b"\x00" + END: False, b"\x01" + END: True}

PREFIX_BYTES_MAX: Final = 2048
"""The longest prefix that is learned: with thousands of layouts, longer ones would use much memory."""

# The number of messages compared first; four times as many each time all were alike, so that fewer bytes are
# read in vain than with success.
_FIRST_ROWS: Final = 4


class PublishLayout:
    """A method frame of basic.publish, and the bytes before the body of its last message."""

    __slots__ = ("_row", "body_at", "channel", "method", "prefix", "properties", "stride")

    def __init__(self, channel: int, method: BasicPublish) -> None:
        self.channel = channel
        self.method = method
        self.prefix = b""
        self.properties = b""
        self.body_at = 0
        self.stride = 0
        self._row: Struct | None = None

    def learn(self, prefix: bytes, properties: bytes, body_bytes: int) -> None:
        self.prefix = prefix
        self.properties = properties
        self.body_at = len(prefix)
        self.stride = len(prefix) + body_bytes + 1
        self._row = None

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
