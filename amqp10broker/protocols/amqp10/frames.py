"""Frames: part 2, section 2.3. Bytes from a socket become frame bodies, grouped by channel.

A publisher repeats one transfer layout; only delivery-id and tag change. The reader learns each layout (see
`transfer.TransferLayout`), reads later frames of it with one struct, and joins adjacent ones into a
`TransferRun`. Other frames are decoded by the generated tables.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Final

from amqp10broker.protocols.amqp10 import settling as dispositions
from amqp10broker.protocols.amqp10 import transfer as transfers
from amqp10broker.protocols.amqp10.errors import Condition, DecodeError
from amqp10broker.protocols.amqp10.performatives import (
    Begin,
    Close,
    Disposition,
    End,
    Open,
    Transfer,
    decode_composite,
)
from amqp10broker.protocols.amqp10.settling import DispositionLayout, DispositionRun
from amqp10broker.protocols.amqp10.transfer import LIST32, TransferFrame, TransferLayout, TransferRun

FRAME_HEADER: Final = Struct(">IBBH")
"""size in bytes (header included), doff in 4-byte words, type, channel (section 2.3.1)."""
FRAME_HEADER_BYTES: Final = 8
TYPE_AMQP: Final = 0
TYPE_SASL: Final = 1

PRE_OPEN_FRAME_SIZE_MAX: Final = 8192
"""Largest frame before open is exchanged. Section 2.4.1 requires that open itself fits 512 bytes; real
clients put more properties into it, and RabbitMQ reads 8192.
"""

# Per connection; a client with more layouts than this does not repeat itself.
_LAYOUTS_MAX: Final = 4096

HEARTBEAT: Final = FRAME_HEADER.pack(FRAME_HEADER_BYTES, 2, TYPE_AMQP, 0)

_STRUCTURAL: Final = (Open, Begin, End, Close)


def encode_frame(channel: int, body: bytes, frame_type: int = TYPE_AMQP) -> bytes:
    return FRAME_HEADER.pack(FRAME_HEADER_BYTES + len(body), 2, frame_type, channel) + body


class FrameReader:
    """Cuts a byte stream into frames and decodes their performatives.

    Attributes:
        frame_size_max: bytes; a longer frame is a framing error.
        singly_max: the most frames of no learned layout that are read in one call.
        more: whether the last call left whole frames for the next one, because of `singly_max`.
        fault: why no more can be read; the connection must be closed with its condition.
    """

    def __init__(self) -> None:
        self.frame_size_max = PRE_OPEN_FRAME_SIZE_MAX
        self.frame_type = TYPE_AMQP
        self.frames = 0
        self.singly_max = sys.maxsize
        self.more = False
        self.fault: DecodeError | None = None
        self._rest = b""
        self._layouts: dict[bytes, TransferLayout | DispositionLayout] = {}
        # The run that the last frame of a new layout has begun.
        self._begun: tuple[TransferLayout, TransferRun] | None = None

    def read(self, data: bytes, *, stop_after_first: bool = False) -> list[tuple[int, list[object]]]:
        """Return the bodies of all frames that are now complete, within `singly_max`, as ``(channel,
        items)``. Items of one channel are in order; frames of different channels may be regrouped, but never
        across open, begin, end or close, each of which is a group of its own. `stop_after_first`: for the
        phases in which a frame changes what the bytes behind it mean (SASL outcome, open). Raises
        `DecodeError`, after the frames before the fault were returned and `fault` was set.
        """
        if self.fault is not None:
            raise self.fault
        buf = self._rest + data if self._rest else data
        end = len(buf)
        pos = 0
        layouts = self._layouts
        get_layout = layouts.get
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
            layout = get_layout(buf[pos + 4 : pos + 17])
            if layout is LIST32:
                layout = get_layout(buf[pos + 4 : pos + 23])
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
                    self._rest = buf[pos:]
                    raise
                break  # the frames before it must not depend on how the socket cut the bytes
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
        self._rest = buf[pos:] if pos else buf
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
        # Returns where the frame ends, None when it is not complete.
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
        # Each transaction has a layout of its own: its first transfer begins the run of those behind it.
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
        size = FRAME_HEADER.unpack_from(self._rest)[0]
        self._rest = self._rest[size:]
        self.fault = None
        return True

    @property
    def unread(self) -> bytes:
        return self._rest

    def take_rest(self) -> bytes:
        rest, self._rest = self._rest, b""
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
