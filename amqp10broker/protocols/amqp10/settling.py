"""Settlement: part 2, sections 2.6.12 and 2.7.6; and the output and errors of several parts of the engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from struct import Struct
from typing import Any, Final, Protocol

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.encoder import FALSE, NULL, TRUE, write_compound, write_uint
from amqp10broker.protocols.amqp10.errors import AmqpError, AmqpLinkError, Condition
from amqp10broker.protocols.amqp10.link import (
    KEY8_BYTES,
    KEY32_BYTES,
    LIST32,
    SHORT_KEY_BYTES,
    DeliveriesSettled,
    DeliveriesUpdated,
    ReceiverLink,
    SenderLink,
    SessionEvent,
    TransferLayout,
)
from amqp10broker.protocols.amqp10.performatives import (
    Accepted,
    Attach,
    Begin,
    Declared,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Rejected,
    Released,
    Role,
    TransactionalState,
)
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.protocols.serial import MASK, diff, ranges

DESCRIPTION_BYTES_MAX: Final = 1024
"""Longer descriptions are cut: they repeat data of the peer, and an error has to fit a frame."""


def message_too_large(size: int, limit: int) -> AmqpLinkError:
    return AmqpLinkError(
        Condition.MESSAGE_SIZE_EXCEEDED, f"message size ({size} bytes) > maximum message size ({limit} bytes)"
    )


def over_limit() -> AmqpLinkError:
    return AmqpLinkError(Condition.TRANSFER_LIMIT_EXCEEDED, "transfer without link credit")


def to_error(error: AmqpError | None) -> Error | None:
    if error is None:
        return None
    return Error(
        condition=Symbol(error.condition),
        description=_cut(error.description) or None,
        info=None if error.info is None else {Symbol(name): value for name, value in error.info.items()},
    )


def _cut(text: str) -> str:
    if len(text) * 4 <= DESCRIPTION_BYTES_MAX:
        return text
    encoded = text.encode()
    if len(encoded) <= DESCRIPTION_BYTES_MAX:
        return text
    return encoded[: DESCRIPTION_BYTES_MAX - 3].decode(errors="ignore") + "..."


class FrameTap(Protocol):
    """An observer of one session's frames, in the order in which they take effect; must not raise. A run of a
    thousand transfers is one call.
    """

    def received(self, item: object) -> None:
        """Handle a frame body of the peer, or a run of them, before the session does."""

    def sent(self, frame: bytes) -> None:
        """Handle a written frame without payload."""

    def sent_run(self, link: SenderLink, first_id: int, deliveries: int, head: bytes) -> None:
        """Handle written deliveries of one frame each."""

    def sent_piece(self, link: SenderLink, delivery_id: int, head: bytes, *, first: bool, last: bool) -> None:
        """Handle a written frame of a delivery that takes several."""


class Output:
    """Collects the bytes of one channel. `frame_tail`: the bytes after the size in every frame's header."""

    __slots__ = ("frame_size_max", "frame_tail", "pieces", "tap")

    def __init__(self, channel: int, frame_size_max: int) -> None:
        self.frame_size_max = frame_size_max
        self.pieces: list[bytes | memoryview] = []
        self.frame_tail = b"\x02\x00" + channel.to_bytes(2, "big")
        self.tap: FrameTap | None = None

    def write(self, performative: Begin | Attach | Flow | Detach | End) -> None:
        body = performative.encode()
        frame = (8 + len(body)).to_bytes(4, "big") + self.frame_tail + body
        self.pieces.append(frame)
        if self.tap is not None:
            self.tap.sent(frame)


# Clients that settle message by message send the same frame with another delivery-id. It is read by a learned
# layout, as transfers are (`link.py`).

Outcome = Accepted | Rejected | Released | Modified

State = Outcome | Declared | TransactionalState
ACCEPTED: Final = Accepted()
RELEASED: Final = Released()
_RANKS: Final[dict[type, int]] = {Rejected: 0, Released: 1}
_ENCODED: Final = {Accepted: ACCEPTED.encode(), Released: RELEASED.encode()}

_SMALLUINT: Final = 0x52
_UINT: Final = 0x70


@dataclass(eq=False, slots=True)
class DispositionRun:
    """Adjacent dispositions that differ in their delivery-ids only."""

    role: bool
    settled: bool
    state: Any
    spans: list[tuple[int, int]]


@dataclass(eq=False, slots=True)
class DispositionLayout:
    """The common part of a client's dispositions. `head_bytes`: the length of the whole frame. `last_code`:
    None if `last` is absent or null.
    """

    unpack_from: Callable[..., tuple[Any, ...]]
    suffix: bytes
    head_bytes: int
    last_code: int | None
    channel: int
    disposition: Disposition

    def read(self, buf: bytes, pos: int) -> tuple[int, int] | None:
        """Return the inclusive id range of the frame at `pos`; None: it has another layout."""
        last_code = self.last_code
        if last_code is None:
            size, first, suffix = self.unpack_from(buf, pos)
            last = first
        else:
            size, first, code, last, suffix = self.unpack_from(buf, pos)
            if code != last_code:
                return None
        if size != self.head_bytes or suffix != self.suffix:
            return None
        return first, last


def learn(
    buf: bytes, pos: int, disposition: Disposition, stop: int
) -> dict[bytes, TransferLayout | DispositionLayout] | None:
    """Return the layout of a disposition frame, as `link.learn`."""
    body = pos + 8
    head = buf[body : body + 4]
    if head == b"\x00\x53\x15\xc0":
        at = body + 6
        key_bytes = SHORT_KEY_BYTES if buf[at + 1] == _SMALLUINT else KEY8_BYTES
    elif head == b"\x00\x53\x15\xd0":
        at, key_bytes = body + 12, KEY32_BYTES
    else:
        return None
    if buf[at] not in (0x41, 0x42):
        return None
    first_code = buf[at + 1]
    if first_code not in (_SMALLUINT, _UINT):
        return None
    at += 2
    layout = f">I{at - pos - 4}x{'I' if first_code == _UINT else 'B'}"
    at += 4 if first_code == _UINT else 1
    last_code = None
    if at < stop and buf[at] in (_SMALLUINT, _UINT):
        last_code = buf[at]
        layout += "BI" if last_code == _UINT else "BB"
        at += 5 if last_code == _UINT else 2
    elif at < stop and buf[at] == 0x43:  # a last of 0 in the id's own encoding: not worth a layout
        return None
    unpack_from = Struct(f"{layout}{stop - at}s").unpack_from
    channel = int.from_bytes(buf[pos + 6 : pos + 8], "big")
    learned: dict[bytes, TransferLayout | DispositionLayout] = {
        buf[pos + 4 : pos + 4 + key_bytes]: DispositionLayout(
            unpack_from, buf[at:stop], stop - pos, last_code, channel, disposition
        )
    }
    if key_bytes == KEY32_BYTES:
        learned[buf[pos + 4 : pos + 4 + KEY8_BYTES]] = LIST32
    return learned


class Settling:
    """The outcomes of a session's deliveries. Those decided during a batch are written as few dispositions:
    rejected, then released, then the rest, as RabbitMQ writes them. `waiting`: ids to write, by role, rank,
    settled flag and encoded state.
    """

    __slots__ = ("_output", "_received", "_sent", "waiting")

    def __init__(
        self, output: Output, received: dict[int, ReceiverLink], sent: dict[int, tuple[SenderLink, int]]
    ) -> None:
        self._output = output
        self._received = received
        self._sent = sent
        self.waiting: dict[tuple[bool, int, bool, bytes], list[int]] = {}

    def add(self, role: bool, delivery_ids: Sequence[int], state: State | None, *, settled: bool) -> None:
        if not delivery_ids:
            return
        encoded = NULL if state is None else _ENCODED.get(type(state)) or state.encode()
        key = (role, _RANKS.get(type(state), 2), settled, encoded)
        ids = self.waiting.get(key)
        if ids is None:
            self.waiting[key] = list(delivery_ids)
        else:
            ids.extend(delivery_ids)

    def flush(self) -> None:
        """Write the outcomes, received deliveries first: one frame for each contiguous range."""
        output = self._output
        for key, ids in sorted(self.waiting.items(), key=lambda entry: (not entry[0][0], entry[0][1])):
            role, _, settled, state = key
            first, last = ids[0], ids[-1]
            # A cheap test for the usual case. A client may have used an id again before its outcome was
            # written.
            in_order = last - first == len(ids) - 1 and ids == list(range(first, last + 1))
            for start, end in [(first, last)] if in_order else ranges(ids):
                fields = (
                    (TRUE if role else FALSE)
                    + write_uint(start)
                    + (write_uint(end) if end != start else NULL)
                    + (TRUE if settled else FALSE)
                    + state
                )
                body = b"\x00\x53\x15" + write_compound(0xC0, 0xD0, 5, fields)
                frame = (8 + len(body)).to_bytes(4, "big") + output.frame_tail + body
                output.pieces.append(frame)
                if output.tap is not None:
                    output.tap.sent(frame)
        self.waiting.clear()

    def on_run(self, run: DispositionRun, events: list[SessionEvent]) -> None:
        role, settled = run.role, run.settled
        unsettled: dict[int, Any] = self._sent if role == Role.RECEIVER else self._received
        if not unsettled:
            return
        by_link: dict[Any, list[int]] = {}
        keys_by_link: dict[Any, list[int]] = {}
        for first, last in run.spans:
            for delivery_id in _known(unsettled, first, last):
                entry = unsettled.pop(delivery_id, None) if settled else unsettled.get(delivery_id)
                if entry is None:
                    continue
                if role == Role.RECEIVER:
                    link, key = entry
                    ids = by_link.get(link)
                    if ids is None:
                        ids = by_link[link] = []
                        keys_by_link[link] = []
                    ids.append(delivery_id)
                    keys_by_link[link].append(key)
                else:
                    by_link.setdefault(entry, []).append(delivery_id)
        for link, ids in by_link.items():
            if role == Role.RECEIVER:
                events.append(DeliveriesUpdated(link, keys_by_link[link], ids, run.state, settled))
            else:
                events.append(DeliveriesSettled(link, ids, run.state, settled))

    def settle_received(
        self, delivery_ids: Sequence[int], state: State | None, *, settled: bool = True
    ) -> None:
        if settled:
            pop = self._received.pop
            for delivery_id in delivery_ids:
                pop(delivery_id, None)
        self.add(Role.RECEIVER, delivery_ids, state, settled=settled)

    def settle_sent(self, delivery_ids: Sequence[int], state: Outcome | None) -> None:
        """Settle deliveries that this end sent, after the peer has stated their outcome without settling."""
        pop = self._sent.pop
        for delivery_id in delivery_ids:
            pop(delivery_id, None)
        self.add(Role.SENDER, delivery_ids, state, settled=True)

    def tell_sent(self, link: SenderLink, keys: Collection[int], state: Outcome) -> list[int]:
        """Send the state of unsettled deliveries that this end sent; the peer still has to settle."""
        ids = [number for number, (owner, key) in self._sent.items() if owner is link and key in keys]
        self.add(Role.SENDER, ids, state, settled=False)
        return ids


def _known(unsettled: dict[int, Any], first: int, last: int) -> Iterable[int]:
    # The ids are ascending, and never more than those in the map, whatever range the peer sends.
    if 0 <= last - first < len(unsettled):
        return range(first, last + 1)
    span = diff(last, first)
    if span < 0:
        return ()
    if span < len(unsettled):
        return [(first + offset) & MASK for offset in range(span + 1)]
    inside = [number for number in unsettled if 0 <= diff(number, first) <= span]
    inside.sort(key=lambda number: (number - first) & MASK)
    return inside
