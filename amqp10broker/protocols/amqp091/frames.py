"""Frames: section 2.3.5. Bytes from a socket become methods and contents.

A publisher repeats itself: the method frame, the content header and the header of the body frame are the same
bytes for all messages of one layout. The reader learns them (see `layouts`) and reads many such messages with
one comparison; everything else goes frame by frame.
"""

from __future__ import annotations

import sys
from typing import Final

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
    read_acks,
)
from amqp10broker.protocols.amqp091.errors import AmqpHardError, ReplyCode
from amqp10broker.protocols.amqp091.methods import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    BasicAck,
    BasicPublish,
    ChannelCloseOk,
    Method,
    decode_method,
)
from amqp10broker.protocols.connection import Budget

CONTENT_BYTES_MAX: Final = 512 * 1024 * 1024
"""The default limit of a body; a larger one is not collected."""

# Method frames cached per connection; a publisher with more routing keys than this does not repeat itself.
_LAYOUTS_MAX: Final = 4096

_NO_LIMIT: Final = 2**32


class _Batch:
    # The items of one call, with the last one of each channel, which may still grow.
    __slots__ = ("items", "tails")

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.tails: dict[int, tuple[PublishLayout, PublishRun] | AckRun] = {}

    def publishes(self, layout: PublishLayout) -> PublishRun:
        # The run that the next message of a layout belongs to.
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
        # The run that the next ack of a channel belongs to.
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
    """Cuts a byte stream into frames and assembles contents.

    Attributes:
        frame_max: bytes, the largest frame allowed; 0 for no limit. Eight more are tolerated, as RabbitMQ
            does.
        singly_max: the most frames of no learned layout that are read in one call.
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
        # One message of the largest size always fits, with the overhead of its frames.
        self.unfinished = Budget(max(unfinished_bytes_max, 2 * content_bytes_max), "on this connection")
        self._contents: dict[int, PendingContent] = {}
        # Contents with a header that has come in this call.
        self._announced: list[tuple[int, PendingContent]] = []
        self._layouts: dict[bytes, PublishLayout] = {}
        # Bytes not read yet, and how many are needed to read on: a long frame is joined once, not per call.
        self._pieces: list[bytes] = []
        self._held = 0
        self._need = 0

    def feed(self, data: bytes, *, stop_after_first: bool = False) -> list[Item]:
        """Return the items that are now complete, within `singly_max`, in the order of their channel.
        Publishes and acks of one channel are joined across those of others, never across a frame on channel
        0. `stop_after_first`: for phases in which a frame changes what the bytes behind it mean. Raises
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
        """Drop a content that is not wanted. Without effect if it has become complete meanwhile."""
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
        """Return the bytes not read; if there is a fault, the faulty frame is the first of them."""
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
        # Reads whole frames: all, if `singly_max` allows. Returns where reading stopped, and which position
        # must be reached to read on.
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
        # Returns where the frame ends; if that is behind the bytes, nothing was done.
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
            self._finish(channel, content, batch)

    def _check_header(self, kind: int, channel: int, size: int) -> None:
        # Refuses a frame that cannot become valid before all of it is here.
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
            # A peer may leave a content incomplete after we closed its channel, and then send close-ok.
            if not pending.discarded and payload != _CLOSE_OK:
                raise pending.unexpected()
            self.unfinished.give_back(pending.held)
            del self._contents[channel]
        layout = self._layouts.get(frame)
        method: Method = layout.method if layout is not None else decode_method(payload)
        if (method.CLASS_ID == CONNECTION_CLASS) != (channel == 0):
            raise _wrong_channel(channel, method)
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

    def _finish(self, channel: int, content: PendingContent, batch: _Batch) -> None:
        assert content.properties is not None
        if content.layout is None:
            batch.add(Content(channel, content.method, content.properties, content.take_body()))
            return
        run = batch.publishes(content.layout)
        run.properties.append(content.properties)
        run.bodies.append(content.take_body())


_CLOSE_OK: Final = ChannelCloseOk().encode()


def _wrong_channel(channel: int, method: Method) -> AmqpHardError:
    if channel:
        code, text = ReplyCode.COMMAND_INVALID, f"{method.NAME} belongs on channel 0, not {channel}"
    else:
        code, text = ReplyCode.CHANNEL_ERROR, f"{method.NAME} belongs on an open channel, not on channel 0"
    return AmqpHardError(code, text, method.CLASS_ID, method.METHOD_ID)


def _count(item: Item) -> int:
    return len(item.bodies) if type(item) is PublishRun else len(item.tags) if type(item) is AckRun else 1
