"""Reading after we sent connection.close: only close and close-ok on channel 0 count (section 4.10).

The peer may have sent much before it received our close, so frames are skipped without being stored, however
long they are; reading ends when the bytes are not frames any more.
"""

from __future__ import annotations

from amqp10broker.protocols.amqp091.errors import AmqpHardError
from amqp10broker.protocols.amqp091.framing import FRAME_MIN_SIZE, FRAME_OVERHEAD, HEADER, HEADER_BYTES
from amqp10broker.protocols.amqp091.methods import (
    FRAME_END,
    FRAME_METHOD,
    ConnectionClose,
    ConnectionCloseOk,
    decode_method,
)


class ClosingReader:
    """Finds connection.close and connection.close-ok in the remaining bytes."""

    __slots__ = ("_deaf", "_rest", "_skip")

    def __init__(self) -> None:
        self._rest = b""
        self._skip = 0
        self._deaf = False

    def feed(self, data: bytes) -> list[ConnectionClose | ConnectionCloseOk]:
        """Take bytes in, return the methods among them that count."""
        found: list[ConnectionClose | ConnectionCloseOk] = []
        if self._skip >= len(data):
            self._skip -= len(data)
            return found
        buf = self._rest + data[self._skip :]
        self._rest = b""
        self._skip = 0
        pos = 0
        while not self._deaf and len(buf) - pos >= HEADER_BYTES:
            kind, channel, size = HEADER.unpack_from(buf, pos)
            counts = kind == FRAME_METHOD and channel == 0 and size <= FRAME_MIN_SIZE
            stop = pos + size + FRAME_OVERHEAD
            if stop > len(buf):
                if not counts:
                    self._skip = stop - len(buf)
                    return found
                break
            if buf[stop - 1] != FRAME_END:
                self._deaf = True
            elif counts:
                _add_if_it_counts(buf[pos + HEADER_BYTES : stop - 1], found)
            pos = stop
        self._rest = b"" if self._deaf else buf[pos:]
        return found


def _add_if_it_counts(payload: bytes, found: list[ConnectionClose | ConnectionCloseOk]) -> None:
    try:
        method = decode_method(payload)
    except AmqpHardError:
        return  # one fault has been reported already
    if isinstance(method, ConnectionClose | ConnectionCloseOk):
        found.append(method)
