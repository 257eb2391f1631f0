"""An open WebSocket at the server's end, over the package `websockets`.

Incoming messages are a stream of bytes, and their ends have no meaning; outgoing ones are whole AMQP frames::

    layer.receive(bytes of the socket)      # AMQP's bytes in them
    layer.wrap(whole AMQP frames)           # bytes for the socket, with pongs and a close
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from websockets.frames import CloseCode, Opcode
from websockets.protocol import OPEN, Protocol, Side

from amqp10broker.protocols.connection import WireProtocol as Spoken

MESSAGE_BYTES: Final = 65_536
"""The bytes of a message, unless a single AMQP frame has more."""
_BINARY: Final = 0x80 | Opcode.BINARY
_SIZES_OF_16_BITS: Final = 126
_SIZES_OF_64_BITS: Final = 127
_UINT16_MAX: Final = 65_535
_HEADER_AMQP: Final = b"AMQP"
_HEADER_BYTES: Final = 8
_NOT_BINARY: Final = "AMQP comes in binary messages"

Measure: TypeAlias = Callable[[bytes, int], int]
"""Returns the length of the AMQP frame, or protocol header, at a position."""


class WebSocketLayer:
    """The server's end. `pieces`: the number of messages and fragments in the last bytes that came. `fault`:
    why this end closed the WebSocket; empty: it did not.
    """

    def __init__(self, piece_bytes_max: int) -> None:
        """Create the layer. `piece_bytes_max`: of a message or fragment from the client."""
        self._protocol = Protocol(Side.SERVER, max_size=(None, piece_bytes_max))
        self._measure: Measure = _amqp10
        self._pong = b""
        self._close = b""
        self.message_bytes_max = MESSAGE_BYTES
        self.pieces = 0
        self.fault = ""

    @property
    def open(self) -> bool:
        return self._protocol.state is OPEN

    @property
    def closed_by_client(self) -> bool:
        return self._protocol.close_rcvd is not None

    def speaks(self, protocol: Spoken) -> None:
        self._measure = _amqp10 if protocol is Spoken.AMQP_10 else _amqp091

    # --- in ---------------------------------------------------------------------------------------

    def receive(self, data: bytes | memoryview) -> bytes:
        """Take bytes of the socket, and return AMQP's; none after a close or a fault."""
        protocol = self._protocol
        protocol.receive_data(data)
        frames = protocol.events_received()
        self.pieces = len(frames)
        parts: list[bytes] = []
        for frame in frames:
            if frame.opcode is Opcode.BINARY or frame.opcode is Opcode.CONT:
                parts.append(frame.data)
            elif frame.opcode is Opcode.TEXT:
                self.fault = _NOT_BINARY
                if protocol.state is OPEN:
                    protocol.fail(CloseCode.UNSUPPORTED_DATA, _NOT_BINARY)
                break
        if protocol.parser_exc is not None and not self.fault:
            self.fault = str(protocol.parser_exc)
        self._collect()
        return b"".join(parts)

    # --- out --------------------------------------------------------------------------------------

    def wrap(self, data: bytes | bytearray | memoryview) -> bytes:
        """Return messages of AMQP frames, after `take_output`."""
        pieces: list[bytes | bytearray | memoryview] = [self.take_output()]
        if len(data) > self.message_bytes_max:
            for part in whole_frames(bytes(data), self.message_bytes_max, self._measure):
                pieces += (_head(len(part)), part)
        elif data:
            pieces += (_head(len(data)), data)
        return b"".join(pieces)

    def close(self) -> None:
        if self._protocol.state is OPEN:
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
            self._collect()

    @property
    def has_output(self) -> bool:
        return bool(self._pong or self._close)

    def take_output(self) -> bytes:
        """Return an answer to the last ping (RFC 6455, 5.5.3), and a close."""
        data = self._pong + self._close
        self._pong = self._close = b""
        return data

    def _collect(self) -> None:
        for data in self._protocol.data_to_send():
            if data and data[0] & 0x0F == Opcode.PONG:
                self._pong = data
            elif data:
                self._close = data


def whole_frames(data: bytes, most: int, measure: Measure) -> Iterator[bytes | memoryview]:
    """Cut AMQP frames into parts of whole ones, of at most `most` bytes unless one frame has more."""
    view = memoryview(data)
    begin = at = 0
    while at < len(data):
        size = measure(data, at)
        if at > begin and at + size - begin > most:
            yield view[begin:at]
            begin = at
        at += size
    yield view[begin:]


def _head(size: int) -> bytes:
    if size < _SIZES_OF_16_BITS:
        return bytes((_BINARY, size))
    if size <= _UINT16_MAX:
        return bytes((_BINARY, _SIZES_OF_16_BITS)) + size.to_bytes(2, "big")
    return bytes((_BINARY, _SIZES_OF_64_BITS)) + size.to_bytes(8, "big")


def _amqp10(data: bytes, at: int) -> int:
    if data.startswith(_HEADER_AMQP, at):
        return _HEADER_BYTES
    return int.from_bytes(data[at : at + 4], "big")


def _amqp091(data: bytes, at: int) -> int:
    # Type, channel and size come before the payload, and one octet after it.
    return int.from_bytes(data[at + 3 : at + 7], "big") + 8
