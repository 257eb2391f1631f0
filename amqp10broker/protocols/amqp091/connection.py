"""One AMQP 0-9-1 connection, the server's end: section 2.2.4 of the specification.

Bytes go in (`receive`) and events come out; commands go in and bytes come out (`take_output`). It begins
behind the protocol header, negotiates, and then passes on the items for channels unchanged: a channel is only
a number here.

The events that `connection.Connection091.receive` reports to its owner.

Passwords and secrets do not appear in reprs, so not in logs either.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from enum import Enum, auto
from typing import Any, Final, assert_never

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp091.content import (
    FRAME_MIN_SIZE,
    FRAME_OVERHEAD,
    HEADER,
    HEADER_BYTES,
    Heartbeat,
    Item,
    MethodFrame,
    method_frame,
)
from amqp10broker.protocols.amqp091.errors import Amqp091Error, AmqpHardError, ReplyCode, cut_reply_text
from amqp10broker.protocols.amqp091.frames import CONTENT_BYTES_MAX, FrameReader
from amqp10broker.protocols.amqp091.methods import (
    FRAME_END,
    FRAME_METHOD,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    ConnectionUnblocked,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
    Method,
    decode_method,
)


@dataclass(frozen=True, slots=True)
class StartOkReceived:
    """The client chose a mechanism: answer with `secure`, `tune` or `fail`, then `receive` the rest."""

    mechanism: str
    response: bytes = field(repr=False)
    client_properties: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SecureOkReceived:
    """The client answered a challenge: answer as to `StartOkReceived`."""

    response: bytes = field(repr=False)


@dataclass(eq=False, slots=True)
class ChannelItems:
    """Items for one channel, in order. The channel checks that the first is channel.open."""

    channel: int
    items: list[Item]


@dataclass(frozen=True, slots=True)
class UpdateSecretReceived:
    """The client has a new secret: answer with `update_secret_ok`."""

    secret: bytes = field(repr=False)
    reason: str


@dataclass(frozen=True, slots=True)
class ConnectionFailed:
    """The client broke a rule of the connection. connection.close has been written; wait for close-ok."""

    error: Amqp091Error


ConnectionEvent = (
    StartOkReceived
    | SecureOkReceived
    | ConnectionTuneOk
    | ConnectionOpen
    | ChannelItems
    | UpdateSecretReceived
    | ConnectionClose
    | ConnectionCloseOk
    | ConnectionFailed
)
"""Methods of the client: answer open with `open_ok` or `fail`, then `receive` the rest; end the channels
before `close_ok`, the answer to close; after close-ok write the rest, and close the socket.
"""


CHANNEL_MAX: Final = 65535
"""The largest number that the wire allows, for a connection without another limit."""


class ConnectionState(Enum):
    """The state of the negotiation. In AUTHENTICATING and OPEN_RECEIVED the owner has to act, in the other
    states before RUNNING the client.
    """

    START = auto()
    STARTING = auto()
    AUTHENTICATING = auto()
    SECURING = auto()
    TUNING = auto()
    OPENING = auto()
    OPEN_RECEIVED = auto()
    RUNNING = auto()
    CLOSE_RECEIVED = auto()
    CLOSING = auto()
    END = auto()


class ConnectionInput(Enum):
    SEND_START = auto()
    RECEIVE_START_OK = auto()
    SEND_SECURE = auto()
    RECEIVE_SECURE_OK = auto()
    SEND_TUNE = auto()
    RECEIVE_TUNE_OK = auto()
    RECEIVE_OPEN = auto()
    SEND_OPEN_OK = auto()
    RECEIVE_UPDATE_SECRET = auto()
    RECEIVE_CLOSE = auto()
    SEND_CLOSE_OK = auto()
    SEND_CLOSE = auto()
    RECEIVE_CLOSE_OK = auto()


_S = ConnectionState
_I = ConnectionInput

_TALKING: Final = (
    _S.STARTING,
    _S.AUTHENTICATING,
    _S.SECURING,
    _S.TUNING,
    _S.OPENING,
    _S.OPEN_RECEIVED,
    _S.RUNNING,
)

# A pair that is absent is refused: from the client it is a 504, from our owner a fault of ours. The client
# may close whenever it may send at all; with our close on its way already, its close is answered and has no
# other effect.
CONNECTION_TRANSITIONS: Final[dict[tuple[ConnectionState, ConnectionInput], ConnectionState]] = {
    (_S.START, _I.SEND_START): _S.STARTING,
    (_S.STARTING, _I.RECEIVE_START_OK): _S.AUTHENTICATING,
    (_S.AUTHENTICATING, _I.SEND_SECURE): _S.SECURING,
    (_S.SECURING, _I.RECEIVE_SECURE_OK): _S.AUTHENTICATING,
    (_S.AUTHENTICATING, _I.SEND_TUNE): _S.TUNING,
    (_S.TUNING, _I.RECEIVE_TUNE_OK): _S.OPENING,
    (_S.OPENING, _I.RECEIVE_OPEN): _S.OPEN_RECEIVED,
    (_S.OPEN_RECEIVED, _I.SEND_OPEN_OK): _S.RUNNING,
    (_S.RUNNING, _I.RECEIVE_UPDATE_SECRET): _S.RUNNING,
    **{(state, _I.RECEIVE_CLOSE): _S.CLOSE_RECEIVED for state in _TALKING},
    **{(state, _I.SEND_CLOSE): _S.CLOSING for state in _TALKING},
    (_S.CLOSE_RECEIVED, _I.SEND_CLOSE_OK): _S.END,
    (_S.CLOSING, _I.RECEIVE_CLOSE): _S.CLOSING,
    (_S.CLOSING, _I.RECEIVE_CLOSE_OK): _S.END,
}

_OWNERS_TURN: Final = (_S.START, _S.AUTHENTICATING, _S.OPEN_RECEIVED)
_CLOSED: Final = (_S.CLOSE_RECEIVED, _S.CLOSING, _S.END)

_RECEIVED: Final[dict[type[Method], ConnectionInput]] = {
    ConnectionStartOk: _I.RECEIVE_START_OK,
    ConnectionSecureOk: _I.RECEIVE_SECURE_OK,
    ConnectionTuneOk: _I.RECEIVE_TUNE_OK,
    ConnectionOpen: _I.RECEIVE_OPEN,
    ConnectionUpdateSecret: _I.RECEIVE_UPDATE_SECRET,
    ConnectionClose: _I.RECEIVE_CLOSE,
    ConnectionCloseOk: _I.RECEIVE_CLOSE_OK,
}


class Connection091:
    """The server's end of one connection.

    Attributes:
        frame_max: bytes, the largest frame in either direction; 0 for no limit.
        channel_max: how many channels may be open at one time. The owner counts them, and does not check
            their numbers: so does RabbitMQ, and clients choose numbers freely.
        heartbeat_s: seconds of silence after which the other side is taken for half dead; 0 for never.
    """

    def __init__(
        self,
        *,
        content_bytes_max: int = CONTENT_BYTES_MAX,
        unfinished_bytes_max: int = CONTENT_BYTES_MAX,
        frames_singly_max: int = sys.maxsize,
    ) -> None:
        """`unfinished_bytes_max`: of incomplete contents; twice `content_bytes_max` is always allowed."""
        self.state = ConnectionState.START
        self.frame_max = FRAME_MIN_SIZE
        self.channel_max = CHANNEL_MAX
        self.heartbeat_s = 0
        self.client_properties: dict[str, Any] = {}
        self.capabilities: frozenset[str] = frozenset()
        self.fault: Amqp091Error | None = None
        self.reader = FrameReader(
            FRAME_MIN_SIZE, content_bytes_max=content_bytes_max, unfinished_bytes_max=unfinished_bytes_max
        )
        self.reader.singly_max = frames_singly_max
        self.reader.open = False
        self._closing = ClosingReader()
        self._offered = ConnectionTune()
        self._early: list[bytes] = []
        self._out = bytearray()

    def take_output(self) -> bytes:
        out = bytes(self._out)
        self._out.clear()
        return out

    # --- bytes in ---------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[ConnectionEvent]:
        """Take bytes from the socket, the first of them behind the protocol header.

        A fault of the client becomes a `ConnectionFailed` event, the last of its batch. Bytes that came while
        the owner has to act are retained: call this without bytes after the answer, and read no more from the
        socket until then. Likewise as long as there is `more`.
        """
        events: list[ConnectionEvent] = []
        try:
            self._receive(data, events)
        except AmqpHardError as fault:
            self._send_close(fault)
            events.append(ConnectionFailed(fault))
        return events

    @property
    def more(self) -> bool:
        """Whether `receive` has left bytes for its next call."""
        return self.reader.more and self.state is ConnectionState.RUNNING

    @property
    def frames_read(self) -> int:
        return self.reader.frames

    @property
    def unread(self) -> bytes:
        return b"".join((self.reader.unread, *self._early))

    def _receive(self, data: bytes, events: list[ConnectionEvent]) -> None:
        if self._early:
            self._early.append(data)
            data = b"".join(self._early)
            self._early.clear()
        while self.state is not ConnectionState.RUNNING:
            if self.state in _OWNERS_TURN:
                if data:
                    self._early.append(data)
                return
            if self.state in _CLOSED:
                if self.state is ConnectionState.CLOSING:
                    self._receive_closing(data, events)
                return
            # One frame at a time: each may change what the bytes after it mean.
            items = self.reader.feed(data, stop_after_first=True)
            data = b""
            if not items:
                return
            self._on_channel_0(items[0], events)
        self._dispatch(self.reader.feed(data), events)
        if self.reader.fault is not None and self.state is ConnectionState.RUNNING:
            raise self.reader.fault

    def _dispatch(self, items: list[Item], events: list[ConnectionEvent]) -> None:
        groups: dict[int, list[Item]] = {}
        for item in items:
            channel = item.channel
            if channel:
                group = groups.get(channel)
                if group is None:
                    group = groups[channel] = []
                    events.append(ChannelItems(channel, group))
                group.append(item)
            elif not isinstance(item, Heartbeat):
                groups.clear()
                self._on_channel_0(item, events)
                if self.state is not ConnectionState.RUNNING:
                    return  # frames of the client behind its close do not count

    def _on_channel_0(self, item: Item, events: list[ConnectionEvent]) -> None:
        if isinstance(item, Heartbeat):
            return
        assert isinstance(item, MethodFrame), "the reader lets only methods of class connection through"
        method = item.method
        state = self.state
        received = _RECEIVED.get(type(method))
        if received is None or (state, received) not in CONNECTION_TRANSITIONS:
            raise AmqpHardError(
                ReplyCode.CHANNEL_ERROR,
                f"unexpected method {method.NAME} in connection state {state.name.lower()}",
                method.CLASS_ID,
                method.METHOD_ID,
            )
        self._move(received)
        match method:
            case ConnectionStartOk():
                self.client_properties = method.client_properties
                capabilities = method.client_properties.get("capabilities")
                if isinstance(capabilities, dict):
                    self.capabilities = frozenset(
                        name for name, value in capabilities.items() if value is True
                    )
                events.append(StartOkReceived(method.mechanism, method.response, method.client_properties))
            case ConnectionSecureOk():
                events.append(SecureOkReceived(method.response))
            case ConnectionTuneOk():
                self._on_tune_ok(method, events)
            case ConnectionOpen():
                events.append(method)
            case ConnectionUpdateSecret():
                events.append(UpdateSecretReceived(method.new_secret, method.reason))
            case ConnectionClose():
                events.append(method)
            case _:
                raise AssertionError(f"{method.NAME} has a row and no meaning here")

    def _on_tune_ok(self, method: ConnectionTuneOk, events: list[ConnectionEvent]) -> None:
        offered = self._offered
        frame_min = min(FRAME_MIN_SIZE, offered.frame_max or FRAME_MIN_SIZE)
        _check_negotiated("frame_max", method.frame_max, frame_min, offered.frame_max)
        _check_negotiated("channel_max", method.channel_max, 1, offered.channel_max)
        self.frame_max = self.reader.frame_max = method.frame_max
        self.channel_max = method.channel_max or CHANNEL_MAX
        self.heartbeat_s = method.heartbeat
        events.append(method)

    def _receive_closing(self, data: bytes, events: list[ConnectionEvent]) -> None:
        for method in self._closing.feed(data):
            if self.state is not ConnectionState.CLOSING:
                return
            self._move(_RECEIVED[type(method)])
            match method:
                case ConnectionClose():
                    self._write(ConnectionCloseOk())
                    events.append(method)
                case ConnectionCloseOk():
                    events.append(method)
                case _:
                    assert_never(method)

    # --- orders of the owner ----------------------------------------------------------------------

    def start(
        self,
        mechanisms: Sequence[str],
        locales: Sequence[str] = ("en_US",),
        server_properties: Mapping[str, Any] | None = None,
    ) -> None:
        self._move(ConnectionInput.SEND_START)
        self._write(
            ConnectionStart(
                version_major=0,
                version_minor=9,
                server_properties=dict(server_properties or {}),
                mechanisms=" ".join(mechanisms).encode(),
                locales=" ".join(locales).encode(),
            )
        )

    def secure(self, challenge: bytes) -> None:
        self._move(ConnectionInput.SEND_SECURE)
        self._write(ConnectionSecure(challenge))

    def tune(self, *, channel_max: int, frame_max: int, heartbeat_s: int) -> None:
        """Accept the client's authentication, and send our limits; 0 for no limit."""
        self._move(ConnectionInput.SEND_TUNE)
        self._offered = ConnectionTune(channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat_s)
        self._write(self._offered)

    def open_ok(self) -> None:
        self._move(ConnectionInput.SEND_OPEN_OK)
        self.reader.open = True
        self._write(ConnectionOpenOk())

    def blocked(self, reason: str) -> bool:
        """Notify the client that its publishes are not read; return False if it does not support that."""
        return self._notify(ConnectionBlocked(cut_reply_text(reason)))

    def unblocked(self) -> bool:
        return self._notify(ConnectionUnblocked())

    def _notify(self, method: Method) -> bool:
        if self.state is not ConnectionState.RUNNING or "connection.blocked" not in self.capabilities:
            return False
        self._write(method)
        return True

    def update_secret_ok(self) -> None:
        if self.state is ConnectionState.RUNNING:
            self._write(ConnectionUpdateSecretOk())

    def abandon(self) -> None:
        self.state = ConnectionState.END

    def fail(self, error: Amqp091Error) -> None:
        """Close for a fault; without effect on a connection that is closing already."""
        if self.state not in _CLOSED:
            self._send_close(error)

    def close(self, code: ReplyCode, text: str) -> None:
        self.fail(AmqpHardError(code, text))

    def close_ok(self) -> None:
        """Answer the client's close; the last bytes."""
        self._move(ConnectionInput.SEND_CLOSE_OK)
        self._write(ConnectionCloseOk())

    # --- common -----------------------------------------------------------------------------------

    def _send_close(self, error: Amqp091Error) -> None:
        self._move(ConnectionInput.SEND_CLOSE)
        self.fault = error
        self._write(ConnectionClose(int(error.code), error.reply_text, error.class_id, error.method_id))
        # The faulty frame is the first of the rest, and may be one that does not count: skip it.
        self._early.insert(0, self.reader.take_rest())

    def _move(self, moved_by: ConnectionInput) -> None:
        target = CONNECTION_TRANSITIONS.get((self.state, moved_by))
        assert target is not None, f"{moved_by.name} in connection state {self.state.name}"
        self.state = target

    def _write(self, method: Method) -> None:
        self._out += method_frame(0, method)


def _check_negotiated(name: str, value: int, minimum: int, maximum: int) -> None:
    # 0 means no limit, on either side.
    if 0 < value < minimum:
        problem = f"lower than the minimum allowed value ({minimum})"
    elif maximum and (value == 0 or value > maximum):
        problem = f"higher than the maximum allowed value ({maximum})"
    else:
        return
    raise AmqpHardError(
        ReplyCode.NOT_ALLOWED,
        f"negotiated {name} = {value} is {problem}",
        ConnectionTune.CLASS_ID,
        ConnectionTune.METHOD_ID,
    )


# The peer may have sent much before it received our close, so frames are skipped without being stored,
# however long they are; reading ends when the bytes are not frames any more.


class ClosingReader:
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
                with suppress(AmqpHardError):  # one fault has been reported already
                    method = decode_method(buf[pos + HEADER_BYTES : stop - 1])
                    if isinstance(method, ConnectionClose | ConnectionCloseOk):
                        found.append(method)
            pos = stop
        self._rest = b"" if self._deaf else buf[pos:]
        return found
