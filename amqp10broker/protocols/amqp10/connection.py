"""One AMQP 1.0 connection end, in either role: part 2, sections 2.3 and 2.4, and SASL (part 5, section 5.3).

Bytes go in (`receive`) and events come out; commands go in and bytes come out (`take_output`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Mapping
from enum import Enum, auto
from struct import Struct
from typing import Any, Final

from amqp10broker.protocols.amqp10 import link as transfers
from amqp10broker.protocols.amqp10 import settling as dispositions
from amqp10broker.protocols.amqp10.errors import AmqpConnectionError, AmqpError, Condition, DecodeError
from amqp10broker.protocols.amqp10.link import (
    FRAME_HEADER_BYTES,
    LIST32,
    SHORT_KEY_BYTES,
    BeginReceived,
    ConnectionEvent,
    ConnectionFailed,
    FramesReceived,
    TransferFrame,
    TransferLayout,
    TransferRun,
)
from amqp10broker.protocols.amqp10.performatives import (
    MIN_MAX_FRAME_SIZE,
    Begin,
    Close,
    Disposition,
    End,
    Open,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Transfer,
    decode_composite,
)
from amqp10broker.protocols.amqp10.settling import DispositionLayout, DispositionRun, to_error
from amqp10broker.protocols.amqp10.types import Symbol

# --- frames --------------------------------------------------------------------------------------

FRAME_HEADER: Final = Struct(">IBBH")
"""size in bytes (header included), doff in 4-byte words, type, channel (section 2.3.1)."""
TYPE_AMQP: Final = 0
TYPE_SASL: Final = 1

PRE_OPEN_FRAME_SIZE_MAX: Final = 8192
"""Largest frame before open is exchanged. Section 2.4.1 requires that open itself fits 512 bytes; real
clients put more properties into it, and RabbitMQ reads 8192.
"""

# The limit for one connection; a client with more layouts than this does not repeat them.
_LAYOUTS_MAX: Final = 4096

HEARTBEAT: Final = FRAME_HEADER.pack(FRAME_HEADER_BYTES, 2, TYPE_AMQP, 0)

_STRUCTURAL: Final = (Open, Begin, End, Close)


def encode_frame(channel: int, body: bytes, frame_type: int = TYPE_AMQP) -> bytes:
    return FRAME_HEADER.pack(FRAME_HEADER_BYTES + len(body), 2, frame_type, channel) + body


class _Layouts(dict[bytes, TransferLayout | DispositionLayout | None]):
    def __missing__(self, key: bytes) -> TransferLayout | DispositionLayout | None:
        return self.get(key[:SHORT_KEY_BYTES])


class FrameReader:
    """Cuts a byte stream into frames, grouped by channel, and decodes their performatives.

    It learns the layout of each transfer (`link.TransferLayout`), reads later frames of it with one struct,
    and joins adjacent ones into a `TransferRun`.

    Attributes:
        frame_size_max: bytes; a longer frame is a framing error.
        singly_max: the most frames without a learned layout that are read in one call.
        more: whether the last call left whole frames for the next one, because of `singly_max`.
        fault: why no more can be read; the connection must be closed with it.
    """

    def __init__(self) -> None:
        self.frame_size_max = PRE_OPEN_FRAME_SIZE_MAX
        self.frame_type = TYPE_AMQP
        self.frames = 0
        self.singly_max = sys.maxsize
        self.more = False
        self.fault: DecodeError | None = None
        self.rest = b""
        self._layouts = _Layouts()
        # The run that the last frame with a new layout has begun.
        self._begun: tuple[TransferLayout, TransferRun] | None = None

    def read(self, data: bytes, *, stop_after_first: bool = False) -> list[tuple[int, list[object]]]:
        """Return the bodies of all complete frames, within `singly_max`, as ``(channel, items)``.

        Frames of different channels may be regrouped, but never across open, begin, end or close, each of
        which is a separate group. `stop_after_first`: for phases in which a frame changes the meaning of the
        following bytes. Raises `DecodeError`, after the frames before the fault were returned and `fault` was
        set.
        """
        if self.fault is not None:
            raise self.fault
        buf = self.rest + data if self.rest else data
        end = len(buf)
        pos = 0
        layouts = self._layouts
        groups: list[tuple[int, list[object]]] = []
        open_groups: dict[int, list[object]] = {}

        def add(channel: int, item: object) -> None:
            items = open_groups.get(channel)
            if items is None:
                items = open_groups[channel] = []
                groups.append((channel, items))
            items.append(item)

        last_layout: TransferLayout | DispositionLayout | None = None
        ids: list[int] = []
        tags: list[bytes] = []
        payloads: list[bytes] = []
        spans: list[tuple[int, int]] = []
        frames = 0
        singly = 0
        self.more = False
        while end - pos >= FRAME_HEADER_BYTES:
            layout = layouts[buf[pos + 4 : pos + 17]]
            if layout is LIST32:
                layout = layouts.get(buf[pos + 4 : pos + 23])
            if layout is None or end - pos < layout.head_bytes:
                pass
            elif isinstance(layout, TransferLayout):
                size, delivery_id, tag_code, tag, suffix = layout.unpack_from(buf, pos)
                stop = pos + size
                if stop > end and size <= self.frame_size_max:
                    break
                if (
                    tag_code == layout.tag_code
                    and suffix == layout.suffix
                    and layout.head_bytes <= size <= self.frame_size_max
                ):
                    if layout is not last_layout:
                        run = TransferRun(layout.handle, layout.message_format, layout.settled, layout.txn_id)
                        add(layout.channel, run)
                        last_layout = layout
                        ids, tags, payloads = run.delivery_ids, run.tags, run.payloads
                    ids.append(delivery_id)
                    tags.append(tag)
                    payloads.append(buf[pos + layout.head_bytes : stop])
                    frames += 1
                    pos = stop
                    continue
            else:
                span = layout.read(buf, pos)
                if span is not None:
                    if layout is not last_layout:
                        spans = []
                        like = layout.disposition
                        add(layout.channel, DispositionRun(like.role, like.settled, like.state, spans))
                        last_layout = layout
                    spans.append(span)
                    frames += 1
                    pos += layout.head_bytes
                    continue
            try:
                stop = self._read_other(buf, pos, end, add, groups, open_groups)
            except DecodeError as fault:
                self.fault = fault
                if not groups:
                    self.rest = buf[pos:]
                    raise
                break  # the frames before it must not depend on the boundaries of socket reads
            if stop is None:
                break
            frames += 1
            last_layout = None
            begun, self._begun = self._begun, None
            if begun is not None:
                last_layout, run = begun
                ids, tags, payloads = run.delivery_ids, run.tags, run.payloads
            pos = stop
            if stop_after_first:
                break
            singly += 1
            if singly >= self.singly_max:
                self.more = pos < end
                break
        self.frames += frames
        self.rest = buf[pos:] if pos else buf
        return groups

    def _read_other(
        self,
        buf: bytes,
        pos: int,
        end: int,
        add: Callable[[int, object], None],
        groups: list[tuple[int, list[object]]],
        open_groups: dict[int, list[object]],
    ) -> int | None:
        # Return where the frame ends, or None if it is not complete.
        size, doff, frame_type, channel = FRAME_HEADER.unpack_from(buf, pos)
        self._check_header(size, doff, frame_type)
        stop: int = pos + size
        if stop > end:
            return None
        body = pos + doff * 4
        if body == stop:  # an empty frame only shows that the peer is alive (section 2.4.5)
            if frame_type == TYPE_SASL:
                raise DecodeError("a SASL frame has no body", Condition.FRAMING_ERROR)
            return stop
        item, body_end = decode_composite(buf, body, stop)
        if isinstance(item, Transfer):
            learned = transfers.learn(buf, pos, item, body_end) if doff == 2 else None
            self._learn(learned)
            add(channel, self._transfer(item, buf[body_end:stop], learned))
        elif body_end != stop:
            name = type(item).__name__.lower()
            raise DecodeError(f"{stop - body_end} bytes follow the {name} performative in its frame")
        elif isinstance(item, _STRUCTURAL):
            open_groups.clear()
            groups.append((channel, [item]))
        else:
            if isinstance(item, Disposition) and doff == 2:
                self._learn(dispositions.learn(buf, pos, item, stop))
            add(channel, item)
        return stop

    def _transfer(
        self, item: Transfer, payload: bytes, learned: Mapping[bytes, TransferLayout] | None
    ) -> TransferRun | TransferFrame:
        # Each transaction has a separate layout: its first transfer begins the run of the following ones.
        layout = None if learned is None else next(iter(learned.values()))
        if layout is None or layout.txn_id is None:
            return TransferFrame(item, payload)
        run = TransferRun(layout.handle, layout.message_format, layout.settled, layout.txn_id)
        assert item.delivery_id is not None, "else there is no layout"
        assert item.delivery_tag is not None, "else there is no layout"
        run.delivery_ids.append(item.delivery_id)
        run.tags.append(item.delivery_tag)
        run.payloads.append(payload)
        self._begun = layout, run
        return run

    def _learn(self, layouts: Mapping[bytes, TransferLayout | DispositionLayout] | None) -> None:
        if layouts is not None:
            if len(self._layouts) >= _LAYOUTS_MAX:
                self._layouts.clear()
            self._layouts.update(layouts)

    def recover(self) -> bool:
        """Skip a frame with a faulty body; return False if the beginning of the next one is unknown."""
        if self.fault is None or self.fault.condition == Condition.FRAMING_ERROR:
            return False
        size = FRAME_HEADER.unpack_from(self.rest)[0]
        self.rest = self.rest[size:]
        self.fault = None
        return True

    def take_rest(self) -> bytes:
        rest, self.rest = self.rest, b""
        return rest

    def _check_header(self, size: int, doff: int, frame_type: int) -> None:
        if size < FRAME_HEADER_BYTES:
            problem = f"frame size {size} is less than the frame header of 8 bytes"
        elif size > self.frame_size_max:
            problem = f"frame size {size} exceeds the maximum frame size {self.frame_size_max}"
        elif doff < 2 or doff * 4 > size:
            problem = f"data offset {doff} does not fit a frame of {size} bytes"
        elif frame_type != self.frame_type:
            problem = f"frame type {frame_type} where type {self.frame_type} is expected"
        else:
            return
        raise DecodeError(problem, Condition.FRAMING_ERROR)


# --- the connection ------------------------------------------------------------------------------

HEADER_AMQP: Final = b"AMQP\x00\x01\x00\x00"
HEADER_SASL: Final = b"AMQP\x03\x01\x00\x00"
ESTABLISHMENT_FAILED: Final = Symbol("amqp:connection-establishment-failed")
"""The property of an open that announces a close with the reason, as Apache's brokers and clients use it."""

IDLE_TIMEOUT_MS_MIN: Final = 1000
"""A server refuses shorter ones of a client: they cost more frames than they detect dead peers. A client
accepts its server's value, which is half of 1000 for a broker with the lowest setting.
"""


class ConnectionState(Enum):
    """The states of section 2.4.6, after the phases of the SASL layer."""

    START = auto()
    SASL_HEADER_SENT = auto()
    SASL_NEGOTIATING = auto()
    SASL_DONE = auto()
    HEADER_SENT = auto()
    HEADER_EXCHANGED = auto()
    OPEN_PIPE = auto()
    OPEN_SENT = auto()
    OPEN_RECEIVED = auto()
    OPENED = auto()
    CLOSE_SENT = auto()
    CLOSE_RECEIVED = auto()
    DISCARDING = auto()
    END = auto()


class ConnectionInput(Enum):
    RECEIVE_SASL_HEADER = auto()
    SEND_SASL_HEADER = auto()
    SASL_OK = auto()
    SASL_FAILED = auto()
    RECEIVE_HEADER = auto()
    SEND_HEADER = auto()
    RECEIVE_OPEN = auto()
    SEND_OPEN = auto()
    RECEIVE_CLOSE = auto()
    SEND_CLOSE = auto()
    SEND_CLOSE_ERROR = auto()


_S = ConnectionState
_I = ConnectionInput

# Section 2.4.6. An absent pair closes the connection. A server makes the RECEIVE_ step before SEND_, a client
# in the other order.
CONNECTION_TRANSITIONS: Final[dict[tuple[ConnectionState, ConnectionInput], ConnectionState]] = {
    (_S.START, _I.SEND_SASL_HEADER): _S.SASL_HEADER_SENT,
    (_S.START, _I.RECEIVE_SASL_HEADER): _S.SASL_NEGOTIATING,
    (_S.SASL_HEADER_SENT, _I.RECEIVE_SASL_HEADER): _S.SASL_NEGOTIATING,
    (_S.SASL_NEGOTIATING, _I.SASL_OK): _S.SASL_DONE,
    (_S.SASL_NEGOTIATING, _I.SASL_FAILED): _S.END,
    (_S.SASL_DONE, _I.SEND_HEADER): _S.HEADER_SENT,
    (_S.SASL_DONE, _I.RECEIVE_HEADER): _S.HEADER_EXCHANGED,  # the server answers in the same step
    (_S.HEADER_SENT, _I.RECEIVE_HEADER): _S.HEADER_EXCHANGED,
    (_S.HEADER_SENT, _I.SEND_OPEN): _S.OPEN_PIPE,
    (_S.OPEN_PIPE, _I.RECEIVE_HEADER): _S.OPEN_SENT,
    (_S.HEADER_EXCHANGED, _I.SEND_OPEN): _S.OPEN_SENT,
    (_S.HEADER_EXCHANGED, _I.RECEIVE_OPEN): _S.OPEN_RECEIVED,
    (_S.OPEN_SENT, _I.RECEIVE_OPEN): _S.OPENED,
    (_S.OPEN_RECEIVED, _I.SEND_OPEN): _S.OPENED,
    (_S.OPENED, _I.RECEIVE_CLOSE): _S.CLOSE_RECEIVED,
    (_S.OPENED, _I.SEND_CLOSE): _S.CLOSE_SENT,
    (_S.OPENED, _I.SEND_CLOSE_ERROR): _S.DISCARDING,
    (_S.CLOSE_RECEIVED, _I.SEND_CLOSE): _S.END,
    (_S.CLOSE_RECEIVED, _I.SEND_CLOSE_ERROR): _S.END,
    (_S.CLOSE_SENT, _I.RECEIVE_CLOSE): _S.END,
    (_S.DISCARDING, _I.RECEIVE_CLOSE): _S.END,
}

_READING_HEADER: Final = (_S.START, _S.SASL_HEADER_SENT, _S.SASL_DONE, _S.HEADER_SENT, _S.OPEN_PIPE)


class Connection:
    """One connection end. `frame_size_max`: bytes of the largest frame that the peer accepts. `fault`: why
    this end closed the connection.
    """

    def __init__(
        self,
        *,
        server: bool,
        frame_size_max: int,
        channel_max: int,
        mechanisms: tuple[str, ...] = (),
        frames_singly_max: int = sys.maxsize,
    ) -> None:
        """Create an end. `frame_size_max`: bytes of the largest frame that it accepts, at least 512."""
        self.server = server
        self.state = ConnectionState.START
        self.remote_open: Open | None = None
        self.channel_max = channel_max
        self.frame_size_max = MIN_MAX_FRAME_SIZE
        self.frames = FrameReader()
        self.frames.singly_max = frames_singly_max
        self.fault: AmqpError | None = None
        self._local_frame_size_max = frame_size_max
        self._mechanisms = mechanisms
        self._out = bytearray()
        self._head = b""
        self._channels: set[int] = set()
        self._credentials: tuple[str, bytes, str | None] | None = None
        self._sasl_awaited: type[SaslInit | SaslResponse] | None = SaslInit

    def take_output(self) -> bytes:
        out = bytes(self._out)
        self._out.clear()
        return out

    # --- bytes in ---------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[ConnectionEvent]:
        """Take bytes from the socket.

        A fault of the peer becomes a `ConnectionFailed` event, the last of its batch. Bytes that came while
        the owner must act (SASL outcome, open) are retained: call `receive` without bytes after the answer,
        and as long as there is `more`.
        """
        events: list[ConnectionEvent] = []
        if self.state is ConnectionState.END:
            return events
        if self.fault is not None and self.frames.fault is not None and not self.frames.recover():
            return events  # only the end of the bytes can still come
        try:
            self._receive(data, events)
        except AmqpConnectionError as fault:
            self.fail(fault)
            events.append(ConnectionFailed(fault))
        return events

    @property
    def more(self) -> bool:
        """Whether `receive` has left frames for its next call."""
        return self.frames.more and self.state is ConnectionState.OPENED

    @property
    def frames_read(self) -> int:
        return self.frames.frames

    @property
    def unread(self) -> bytes:
        return self._head + self.frames.rest

    def _receive(self, data: bytes, events: list[ConnectionEvent]) -> None:
        while self._is_in(_READING_HEADER):
            # A client that does not wait has sent its header after the last frame.
            self._head += self.frames.take_rest() + data
            data = b""
            if len(self._head) < len(HEADER_AMQP):
                if not HEADER_AMQP.startswith(self._head) and not HEADER_SASL.startswith(self._head):
                    self._bad_header(self._head)
                return
            header, data = self._head[:8], self._head[8:]
            self._head = b""
            self._on_header(header)
        while self.state is not ConnectionState.OPENED:
            if self.state is ConnectionState.END:
                return
            # One frame at a time: each may change what the bytes after it mean.
            groups = self.frames.read(data, stop_after_first=True)
            data = b""
            if self.frames.fault is not None:
                raise self.frames.fault
            if not groups:
                return
            for channel, items in groups:
                for item in items:
                    self._on_early(channel, item, events)
            if self._is_in(_READING_HEADER):
                self._receive(b"", events)
                return
            if self.server and self._is_in((_S.SASL_NEGOTIATING, _S.OPEN_RECEIVED)):
                return  # the owner must answer
        for channel, items in self.frames.read(data):
            self._dispatch(channel, items, events)
        if self.frames.fault is not None and self.state is ConnectionState.OPENED:
            raise self.frames.fault

    def _is_in(self, states: Container[ConnectionState]) -> bool:
        return self.state in states

    def _on_header(self, header: bytes) -> None:
        state = self.state
        if state in (ConnectionState.START, ConnectionState.SASL_HEADER_SENT):
            if header != HEADER_SASL:
                self._bad_header(header)
            self._move(ConnectionInput.RECEIVE_SASL_HEADER)
            self.frames.frame_type = TYPE_SASL
            if self.server:
                self._out += HEADER_SASL
                offered = tuple(Symbol(name) for name in self._mechanisms)
                self._write_sasl(SaslMechanisms(sasl_server_mechanisms=offered))
            return
        if header != HEADER_AMQP:
            self._bad_header(header)
        self._move(ConnectionInput.RECEIVE_HEADER)
        self.frames.frame_type = TYPE_AMQP
        if self.server:
            self._out += HEADER_AMQP

    def _bad_header(self, header: bytes) -> None:
        # "the server MUST write a supported protocol header and close the socket" (2.2).
        if self.server:
            self._out += HEADER_SASL if self.state is ConnectionState.START else HEADER_AMQP
        text = f"unsupported protocol header {header!r}"
        if self.state is ConnectionState.START and header == HEADER_AMQP:
            text = "the client began without SASL, which is needed: let it log in, by ANONYMOUS if that is on"
        self.state = ConnectionState.END
        raise AmqpConnectionError(Condition.FRAMING_ERROR, text)

    def _on_early(self, channel: int, item: object, events: list[ConnectionEvent]) -> None:
        # This handles items before the connection is open, and after close was sent.
        match item:
            case Close() if self.state is not ConnectionState.SASL_NEGOTIATING:
                self._on_close(item, events)
            case _ if self.state in (ConnectionState.DISCARDING, ConnectionState.CLOSE_SENT):
                return
            case SaslMechanisms() if not self.server:
                self._choose(item)
            case SaslInit() | SaslResponse() if self._sasl_awaited is type(item):
                self._sasl_awaited = None
                events.append(item)
            case SaslChallenge() if not self.server:
                self._write_sasl(SaslResponse(response=b""))
            case SaslOutcome() if not self.server:
                events.append(item)
                self._move(ConnectionInput.SASL_OK if item.code == 0 else ConnectionInput.SASL_FAILED)
                if item.code == 0:
                    self._out += HEADER_AMQP
                    self._move(ConnectionInput.SEND_HEADER)
            case Open():
                self._on_open(item, events)
            case _:
                raise AmqpConnectionError(
                    Condition.ILLEGAL_STATE,
                    f"{type(item).__name__} frame in connection state {self.state.name.lower()}",
                )

    def _on_open(self, performative: Open, events: list[ConnectionEvent]) -> None:
        self._move(ConnectionInput.RECEIVE_OPEN)
        self.remote_open = performative
        self.channel_max = min(self.channel_max, performative.channel_max)
        self.frame_size_max = max(performative.max_frame_size, MIN_MAX_FRAME_SIZE)
        self.frames.frame_size_max = self._local_frame_size_max
        if performative.max_frame_size < MIN_MAX_FRAME_SIZE:
            raise AmqpConnectionError(
                Condition.FRAME_SIZE_TOO_SMALL,
                f"max-frame-size {performative.max_frame_size} is below the minimum of {MIN_MAX_FRAME_SIZE}",
            )
        idle = performative.idle_time_out
        if self.server and idle is not None and 0 < idle < IDLE_TIMEOUT_MS_MIN:
            raise AmqpConnectionError(
                Condition.NOT_ALLOWED,
                f"idle-time-out ({idle} ms) < minimum idle-time-out ({IDLE_TIMEOUT_MS_MIN} ms)",
            )
        events.append(performative)

    def _dispatch(self, channel: int, items: list[object], events: list[ConnectionEvent]) -> None:
        first = items[0]
        if self.state is not ConnectionState.OPENED:
            # After close nothing but the peer's close counts.
            if isinstance(first, Close):
                self._on_close(first, events)
            return
        if isinstance(first, Begin) and channel not in self._channels:
            if channel > self.channel_max:
                raise AmqpConnectionError(
                    Condition.FRAMING_ERROR,
                    f"channel number ({channel}) exceeds maximum channel number ({self.channel_max})",
                )
            if self.server and first.remote_channel is not None:
                # "If a session is locally initiated, the remote-channel MUST NOT be set" (2.7.2).
                raise AmqpConnectionError(
                    Condition.INVALID_FIELD,
                    f"begin names remote-channel {first.remote_channel}, but no session was begun from there",
                )
            self._channels.add(channel)
            events.append(BeginReceived(channel, first))
        elif isinstance(first, Close):
            self._on_close(first, events)
        elif isinstance(first, Open):
            raise AmqpConnectionError(Condition.ILLEGAL_STATE, "open was received twice")
        elif channel not in self._channels:
            raise AmqpConnectionError(
                Condition.ILLEGAL_STATE,
                f"{type(first).__name__.lower()} on channel {channel} without a session: send begin first",
            )
        else:
            ended = isinstance(first, End)
            if ended:
                self._channels.discard(channel)
            events.append(FramesReceived(channel, items, ended))

    def _on_close(self, performative: Close, events: list[ConnectionEvent]) -> None:
        if (self.state, ConnectionInput.RECEIVE_CLOSE) in CONNECTION_TRANSITIONS:
            self._move(ConnectionInput.RECEIVE_CLOSE)
        else:
            self.state = ConnectionState.END
        events.append(performative)

    # --- SASL -------------------------------------------------------------------------------------

    def sasl_challenge(self, challenge: bytes) -> None:
        self._sasl_awaited = SaslResponse
        self._write_sasl(SaslChallenge(challenge=challenge))

    def sasl_outcome(self, code: int, additional_data: bytes | None = None) -> None:
        """Send the outcome, a `SaslCode`; all but 0 end the connection."""
        self._write_sasl(SaslOutcome(code=code, additional_data=additional_data))
        self._move(ConnectionInput.SASL_OK if code == 0 else ConnectionInput.SASL_FAILED)

    def start(self, mechanism: str, initial_response: bytes, hostname: str | None = None) -> None:
        assert not self.server
        self._credentials = (mechanism, initial_response, hostname)
        self._out += HEADER_SASL
        self._move(ConnectionInput.SEND_SASL_HEADER)

    def _choose(self, offered: SaslMechanisms) -> None:
        assert self._credentials is not None
        mechanism, initial_response, hostname = self._credentials
        if mechanism not in offered.sasl_server_mechanisms:
            raise AmqpConnectionError(
                Condition.UNAUTHORIZED_ACCESS,
                f"SASL {mechanism} is not offered, only {', '.join(offered.sasl_server_mechanisms)}",
            )
        self._write_sasl(
            SaslInit(mechanism=Symbol(mechanism), initial_response=initial_response, hostname=hostname)
        )

    def _write_sasl(self, performative: Any) -> None:
        self._out += encode_frame(0, performative.encode(), TYPE_SASL)

    # --- open, sessions, close --------------------------------------------------------------------

    def open(
        self,
        container_id: str,
        *,
        hostname: str | None = None,
        idle_time_out_ms: int | None = None,
        offered_capabilities: tuple[Symbol, ...] | None = None,
        properties: Any = None,
    ) -> None:
        self._move(ConnectionInput.SEND_OPEN)
        self._write(
            Open(
                container_id=container_id,
                hostname=hostname,
                max_frame_size=self._local_frame_size_max,
                channel_max=self.channel_max,
                idle_time_out=idle_time_out_ms,
                offered_capabilities=offered_capabilities,
                properties=properties,
            )
        )
        if self.state is ConnectionState.OPEN_SENT:
            self.frames.frame_size_max = max(self._local_frame_size_max, PRE_OPEN_FRAME_SIZE_MAX)

    def close(self, error: AmqpError | None = None) -> None:
        self._move(ConnectionInput.SEND_CLOSE if error is None else ConnectionInput.SEND_CLOSE_ERROR)
        self._write(Close(error=to_error(error)))

    def abandon(self) -> None:
        self.state = ConnectionState.END

    def fail(self, fault: AmqpError) -> None:
        """Close because of a fault, and notify the peer if the phase allows it."""
        self.fault = fault
        if self.state in (ConnectionState.OPENED, ConnectionState.CLOSE_RECEIVED):
            self.close(fault)
        elif self.state in (ConnectionState.OPEN_RECEIVED, ConnectionState.HEADER_EXCHANGED) and self.server:
            # "each peer sends exactly one open before close": without ours the reason is not legal.
            self._write(Open(container_id="", max_frame_size=self._local_frame_size_max))
            self._write(Close(error=to_error(fault)))
            self.state = ConnectionState.DISCARDING
        elif self.state not in (ConnectionState.CLOSE_SENT, ConnectionState.DISCARDING):
            self.state = ConnectionState.END

    def _write(self, performative: Open | Close) -> None:
        self._out += encode_frame(0, performative.encode())

    def _move(self, step: ConnectionInput) -> None:
        state = CONNECTION_TRANSITIONS.get((self.state, step))
        if state is None:
            raise AmqpConnectionError(
                Condition.ILLEGAL_STATE, f"{step.name.lower()} in connection state {self.state.name.lower()}"
            )
        self.state = state
