"""One AMQP 0-9-1 connection, the server's end: section 2.2.4 of the specification, and 2.3.5 for its frames.

Bytes after the protocol header go in (`receive`), and events come out; commands go in and bytes come out
(`take_output`). A channel is only a number here. Passwords and secrets do not appear in reprs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp091.content import (
    ACK_PAYLOAD_BYTES,
    CONNECTION_CLASS,
    CONTENT_START_BYTES,
    FRAME_MIN_SIZE,
    FRAME_OVERHEAD,
    HEADER,
    HEADER_BYTES,
    PREFIX_BYTES_MAX,
    AckRun,
    Content,
    ContentOpened,
    ContentTooLarge,
    Heartbeat,
    Item,
    MethodFrame,
    PendingContent,
    PublishLayout,
    PublishRun,
    is_ack,
    method_frame,
    read_acks,
)
from amqp10broker.protocols.amqp091.errors import Amqp091Error, AmqpHardError, ReplyCode, cut_reply_text
from amqp10broker.protocols.amqp091.methods import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    BasicAck,
    BasicPublish,
    ChannelCloseOk,
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
from amqp10broker.protocols.connection import Budget

# --- frames --------------------------------------------------------------------------------------

CONTENT_BYTES_MAX: Final = 512 * 1024 * 1024
"""The default limit of a body."""

# The number of method frames cached for each connection.
_LAYOUTS_MAX: Final = 4096

_NO_LIMIT: Final = 2**32


class _Batch:
    # The items of one call, with the last one of each channel, to which more may be joined.
    __slots__ = ("items", "tails")

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.tails: dict[int, tuple[PublishLayout, PublishRun] | AckRun] = {}

    def publishes(self, layout: PublishLayout) -> PublishRun:
        tail = self.tails.get(layout.channel)
        if type(tail) is tuple and tail[0] is layout:
            return tail[1]
        method = layout.method
        run = PublishRun(
            layout.channel, method.exchange, method.routing_key, method.mandatory, method.immediate
        )
        self.tails[layout.channel] = (layout, run)
        self.items.append(run)
        return run

    def acks(self, channel: int) -> AckRun:
        tail = self.tails.get(channel)
        if type(tail) is AckRun:
            return tail
        run = AckRun(channel)
        self.tails[channel] = run
        self.items.append(run)
        return run

    def add(self, item: Item) -> None:
        if item.channel:
            self.tails.pop(item.channel, None)
        else:
            self.tails.clear()
        self.items.append(item)


class FrameReader:
    """Cuts a byte stream into frames and assembles contents. It learns the bytes of each publisher's frames,
    and reads many such messages with one comparison.

    Attributes:
        frame_max: bytes of the largest frame; 0 for no limit. Eight more are tolerated, as in RabbitMQ.
        singly_max: the most frames without a learned layout that are read in one call.
        more: whether the last call left bytes for the next one, because of `singly_max`.
        fault: why no more can be read; the connection must be closed with it.
    """

    def __init__(
        self,
        frame_max: int = FRAME_MIN_SIZE,
        *,
        content_bytes_max: int = CONTENT_BYTES_MAX,
        unfinished_bytes_max: int = CONTENT_BYTES_MAX,
    ) -> None:
        self.frame_max = frame_max
        self.open = True
        self.content_bytes_max = content_bytes_max
        self.fault: AmqpHardError | None = None
        self.singly_max = sys.maxsize
        self.more = False
        self.frames = 0
        # A message of the largest size always fits, with the overhead of its frames.
        self.unfinished = Budget(max(unfinished_bytes_max, 2 * content_bytes_max), "on this connection")
        self._contents: dict[int, PendingContent] = {}
        # Contents with a header that came in this call.
        self._announced: list[tuple[int, PendingContent]] = []
        self._layouts: dict[bytes, PublishLayout] = {}
        # The unread bytes, and the number of bytes needed to continue: a long frame is joined once.
        self._pieces: list[bytes] = []
        self._held = 0
        self._need = 0

    def feed(self, data: bytes, *, stop_after_first: bool = False) -> list[Item]:
        """Return the complete items, within `singly_max`, in the order of their channel. Publishes and acks
        of one channel are joined across those of others, never across a frame on channel 0.
        `stop_after_first`: for phases in which a frame changes the meaning of the bytes behind it. Raises
        `AmqpHardError`, after the items before the fault were returned and `fault` was set.
        """
        self._raise_fault()
        self.more = False
        if self._pieces:
            self._pieces.append(data)
            self._held += len(data)
            if self._held < self._need:
                return []
            data = b"".join(self._pieces)
            self._pieces.clear()
        batch = _Batch()
        if stop_after_first:
            pos, need = self._read_one(data, batch)
        else:
            pos, need = self._read(data, batch)
        if self._announced:
            for channel, content in self._announced:
                if self._contents.get(channel) is content and not content.discarded:
                    batch.add(ContentOpened(channel, content.method, content))
            self._announced.clear()
        if pos < len(data):
            self._pieces.append(data[pos:] if pos else data)
            self._held = len(data) - pos
            self._need = need - pos
        if not batch.items:
            self._raise_fault()
        self.frames += sum(map(_count, batch.items))
        return batch.items

    @property
    def publishing(self) -> bool:
        return any(not content.discarded for content in self._contents.values())

    def discard(self, opened: ContentOpened) -> None:
        """Drop a content that is still incomplete."""
        if self._contents.get(opened.channel) is opened.content:
            self.unfinished.give_back(opened.content.held)
            opened.content.discard()

    def _raise_fault(self) -> None:
        if self.fault is not None:
            raise self.fault

    @property
    def unread(self) -> bytes:
        return b"".join(self._pieces)

    def take_rest(self) -> bytes:
        """Return the unread bytes, a faulty frame first."""
        rest = self.unread
        self._pieces.clear()
        return rest

    def _read_one(self, buf: bytes, batch: _Batch) -> tuple[int, int]:
        try:
            stop = self._read_frame(buf, 0, batch) if len(buf) >= HEADER_BYTES else HEADER_BYTES
        except AmqpHardError as fault:
            self.fault = fault
            return 0, 0
        return (stop, stop) if stop <= len(buf) else (0, stop)

    def _read(self, buf: bytes, batch: _Batch) -> tuple[int, int]:
        # Return where reading stopped, and the position that is needed to continue.
        end = len(buf)
        pos = 0
        layout: PublishLayout | None = None  # of the last message, if no other frame came after it
        run: PublishRun | None = None
        unpack_header = HEADER.unpack_from
        starts_with = buf.startswith
        get_layout = self._layouts.get
        contents = self._contents
        frame_limit = self.frame_max or _NO_LIMIT
        body_limit = min(frame_limit, self.content_bytes_max)
        left = self.singly_max
        while end - pos >= HEADER_BYTES:
            if layout is not None and starts_with(layout.prefix, pos):
                # Its channel has no pending content: it had none before the message just read.
                stop = pos + layout.stride
                if stop > end:
                    return pos, stop
                if buf[stop - 1] == FRAME_END:
                    assert run is not None
                    run.properties.append(layout.properties)
                    run.bodies.append(buf[pos + layout.body_at : stop - 1])
                    pos = stop
                    if starts_with(layout.prefix, pos):
                        pos = layout.read_rows(buf, pos, end, run)
                    continue
            kind, channel, size = unpack_header(buf, pos)
            if kind == FRAME_METHOD and channel not in contents:
                head_at = pos + size + FRAME_OVERHEAD
                if size == ACK_PAYLOAD_BYTES and channel and self.open and is_ack(buf, pos, end):
                    pos = read_acks(buf, pos, end, batch.acks(channel))
                    layout = None
                    continue
                found = get_layout(buf[pos:head_at])
                if found is not None and end - head_at >= CONTENT_START_BYTES:
                    stop = found.read(buf, pos, head_at, frame_limit, body_limit)
                    if stop > end:
                        return pos, stop
                    if stop:
                        if found is not layout:
                            layout = found
                            run = batch.publishes(found)
                        assert run is not None
                        run.properties.append(found.properties)
                        run.bodies.append(buf[pos + found.body_at : stop - 1])
                        if found.body_at > PREFIX_BYTES_MAX:
                            found.prefix = found.properties = b""
                            layout = None  # the next is read as this one
                        pos = stop
                        continue
            layout = None
            try:
                stop = self._read_frame(buf, pos, batch)
            except AmqpHardError as fault:
                self.fault = fault
                return pos, 0
            if stop > end:
                return pos, stop
            pos = stop
            left -= 1
            if left <= 0 and pos < end:
                self.more = True
                return pos, pos
        return pos, pos + HEADER_BYTES

    def _read_frame(self, buf: bytes, pos: int, batch: _Batch) -> int:
        # Return where the frame ends; a position after the bytes if nothing was done.
        kind, channel, size = HEADER.unpack_from(buf, pos)
        stop: int = pos + size + FRAME_OVERHEAD
        self._check_header(kind, channel, size)
        if stop > len(buf):
            return stop
        if buf[stop - 1] != FRAME_END:
            raise AmqpHardError(
                ReplyCode.FRAME_ERROR,
                f"type {kind}, {size} octets payload, end octet {buf[stop - 1]} instead of {FRAME_END}",
            )
        payload = buf[pos + HEADER_BYTES : stop - 1]
        if kind == FRAME_METHOD:
            self._on_method(channel, payload, buf[pos:stop], batch)
        elif kind == FRAME_HEARTBEAT:
            batch.add(Heartbeat())
        else:
            content = self._contents.get(channel)
            if content is None:
                raise AmqpHardError(
                    ReplyCode.UNEXPECTED_FRAME, "expected method frame, got non method frame instead"
                )
            self._on_content(channel, content, kind, payload, batch)
        return stop

    def _on_content(
        self, channel: int, content: PendingContent, kind: int, payload: bytes, batch: _Batch
    ) -> None:
        held = content.held
        if kind == FRAME_HEADER:
            size = content.header(payload)
            if size > self.content_bytes_max:
                content.discard()
                batch.add(ContentTooLarge(channel, content.method, size, self.content_bytes_max))
            elif size:
                self._announced.append((channel, content))
        else:
            content.body(payload)
        if content.remaining:
            if (short := self.unfinished.take(content.held - held)) is not None:
                self.unfinished.give_back(held)
                content.discard()
                raise AmqpHardError(
                    ReplyCode.RESOURCE_ERROR,
                    f"contents that are not whole hold more than {short.bytes_max} bytes {short.whose}: "
                    "finish some before you begin others",
                    content.method.CLASS_ID,
                    content.method.METHOD_ID,
                )
            return
        self.unfinished.give_back(held)
        del self._contents[channel]
        if not content.discarded:
            assert content.properties is not None
            if content.layout is None:
                batch.add(Content(channel, content.method, content.properties, content.take_body()))
                return
            run = batch.publishes(content.layout)
            run.properties.append(content.properties)
            run.bodies.append(content.take_body())

    def _check_header(self, kind: int, channel: int, size: int) -> None:
        # Refuse an invalid frame before all of it has come.
        if kind not in (FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT):
            raise AmqpHardError(ReplyCode.FRAME_ERROR, f"type {kind}, {size} octets payload, unknown type")
        if self.frame_max and size > self.frame_max:
            room = self.frame_max - FRAME_OVERHEAD
            raise AmqpHardError(ReplyCode.FRAME_ERROR, f"type {kind}, {size} octets payload, max {room}")
        if kind == FRAME_HEARTBEAT:
            if channel or size:
                raise AmqpHardError(
                    ReplyCode.FRAME_ERROR, f"heartbeat on channel {channel} with {size} octets payload"
                )
        elif channel and not self.open:
            raise AmqpHardError(
                ReplyCode.UNEXPECTED_FRAME, f"type {kind} on channel {channel} before the connection is open"
            )

    def _on_method(self, channel: int, payload: bytes, frame: bytes, batch: _Batch) -> None:
        pending = self._contents.get(channel)
        if pending is not None:
            # A peer may leave a content incomplete after its channel was closed, and then send close-ok.
            if not pending.discarded and payload != _CLOSE_OK:
                raise pending.unexpected()
            self.unfinished.give_back(pending.held)
            del self._contents[channel]
        layout = self._layouts.get(frame)
        method: Method = layout.method if layout is not None else decode_method(payload)
        if (method.CLASS_ID == CONNECTION_CLASS) != (channel == 0):
            if channel:
                code, text = ReplyCode.COMMAND_INVALID, f"{method.NAME} belongs on channel 0, not {channel}"
            else:
                code = ReplyCode.CHANNEL_ERROR
                text = f"{method.NAME} belongs on an open channel, not on channel 0"
            raise AmqpHardError(code, text, method.CLASS_ID, method.METHOD_ID)
        if isinstance(method, BasicPublish):
            if layout is None:
                if len(self._layouts) >= _LAYOUTS_MAX:
                    self._layouts.clear()
                layout = self._layouts[frame] = PublishLayout(channel, method)
            self._contents[channel] = PendingContent(method, layout)
        elif method.HAS_CONTENT:
            self._contents[channel] = PendingContent(method)
        elif isinstance(method, BasicAck):
            batch.acks(channel).tags.append((method.delivery_tag, method.multiple))
        else:
            batch.add(MethodFrame(channel, method))


_CLOSE_OK: Final = ChannelCloseOk().encode()


def _count(item: Item) -> int:
    return len(item.bodies) if type(item) is PublishRun else len(item.tags) if type(item) is AckRun else 1


# --- events --------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class ChannelItems:
    """Items for one channel, which checks that the first is channel.open."""

    channel: int
    items: list[Item]


@dataclass(frozen=True, slots=True)
class ConnectionFailed:
    """The client broke a rule of the connection. connection.close has been written; wait for close-ok."""

    error: Amqp091Error


ConnectionEvent = (
    ConnectionStartOk
    | ConnectionSecureOk
    | ConnectionTuneOk
    | ConnectionOpen
    | ChannelItems
    | ConnectionUpdateSecret
    | ConnectionClose
    | ConnectionCloseOk
    | ConnectionFailed
)
"""Answer start-ok and secure-ok with `secure`, `tune` or `fail`, and open with `open_ok` or `fail`; then
`receive` the rest. Answer update-secret with `update_secret_ok`, and close, after the end of the channels,
with `close_ok`. After close-ok write the rest, and close the socket.
"""


CHANNEL_MAX: Final = 65535


class ConnectionState(Enum):
    """The state of a connection. In START, AUTHENTICATING and OPEN_RECEIVED the owner must act, in the other
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

_CLOSED: Final = (_S.CLOSE_RECEIVED, _S.CLOSING, _S.END)
_TALKING: Final = [state for state in _S if state is not _S.START and state not in _CLOSED]

# An absent pair is refused: from the client it is a 504, from the owner an internal error. When the broker's
# close has been sent, the client's close is only answered.
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
        frame_max: bytes of the largest frame in either direction; 0 for no limit.
        channel_max: the number of channels that may be open at one time. As in RabbitMQ the owner counts
            them, and clients choose numbers freely.
        heartbeat_s: the negotiated heartbeat; 0 for none.
    """

    def __init__(
        self,
        *,
        content_bytes_max: int = CONTENT_BYTES_MAX,
        unfinished_bytes_max: int = CONTENT_BYTES_MAX,
        frames_singly_max: int = sys.maxsize,
    ) -> None:
        """Create it. `unfinished_bytes_max`: of incomplete contents; twice `content_bytes_max` is always
        allowed.
        """
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
        """Take bytes from the socket.

        A fault of the client becomes a `ConnectionFailed` event, the last of its batch. Bytes that came while
        the owner must act are retained: call this without bytes after the answer, and read no more from the
        socket until then. Do the same as long as there is `more`.
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
                    return  # frames of the client after its close do not count

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
        if isinstance(method, ConnectionStartOk):
            self.client_properties = method.client_properties
            capabilities = method.client_properties.get("capabilities")
            if isinstance(capabilities, dict):
                self.capabilities = frozenset(name for name, value in capabilities.items() if value is True)
        elif isinstance(method, ConnectionTuneOk):
            offered = self._offered
            frame_min = min(FRAME_MIN_SIZE, offered.frame_max or FRAME_MIN_SIZE)
            _check_negotiated("frame_max", method.frame_max, frame_min, offered.frame_max)
            _check_negotiated("channel_max", method.channel_max, 1, offered.channel_max)
            self.frame_max = self.reader.frame_max = method.frame_max
            self.channel_max = method.channel_max or CHANNEL_MAX
            self.heartbeat_s = method.heartbeat
        events.append(method)  # type: ignore[arg-type]  # each class of `_RECEIVED` is an event

    def _receive_closing(self, data: bytes, events: list[ConnectionEvent]) -> None:
        for method in self._closing.feed(data):
            if self.state is not ConnectionState.CLOSING:
                return
            self._move(_RECEIVED[type(method)])
            if isinstance(method, ConnectionClose):
                self._write(ConnectionCloseOk())
            events.append(method)

    # --- commands of the owner --------------------------------------------------------------------

    def start(
        self,
        mechanisms: Sequence[str],
        server_properties: Mapping[str, Any] | None = None,
    ) -> None:
        self._move(ConnectionInput.SEND_START)
        self._write(
            ConnectionStart(
                version_major=0,
                version_minor=9,
                server_properties=dict(server_properties or {}),
                mechanisms=" ".join(mechanisms).encode(),
                locales=b"en_US",
            )
        )

    def secure(self, challenge: bytes) -> None:
        self._move(ConnectionInput.SEND_SECURE)
        self._write(ConnectionSecure(challenge))

    def tune(self, *, channel_max: int, frame_max: int, heartbeat_s: int) -> None:
        """Accept the client's authentication, and send the broker's limits; 0 for no limit."""
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
        """Close because of a fault, if the connection is not closing already."""
        if self.state not in _CLOSED:
            self._send_close(error)

    def close(self, code: ReplyCode, text: str) -> None:
        self.fail(AmqpHardError(code, text))

    def close_ok(self) -> None:
        """Answer the client's close; these are the last bytes."""
        self._move(ConnectionInput.SEND_CLOSE_OK)
        self._write(ConnectionCloseOk())

    # --- common -----------------------------------------------------------------------------------

    def _send_close(self, error: Amqp091Error) -> None:
        self._move(ConnectionInput.SEND_CLOSE)
        self.fault = error
        self._write(ConnectionClose(int(error.code), error.reply_text, error.class_id, error.method_id))
        # The faulty frame is the first of the rest; `ClosingReader` skips it.
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


class ClosingReader:
    """Skips the frames that the peer has sent before it received our close, without storing them, until the
    bytes are not frames any more.
    """

    __slots__ = ("_deaf", "_rest", "_skip")

    def __init__(self) -> None:
        self._rest = b""
        self._skip = 0
        self._deaf = False

    def feed(self, data: bytes) -> list[ConnectionClose | ConnectionCloseOk]:
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
