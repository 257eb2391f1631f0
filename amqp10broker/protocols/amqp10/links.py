"""The links of one session (part 2, sections 2.6.1 to 2.6.6) and their deliveries (2.5.6, 2.6.7 and
2.7.5).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Final

from amqp10broker.protocols.amqp10.credit import IncomingWindow, OutgoingWindow
from amqp10broker.protocols.amqp10.delivery import (
    DeliveryBatch,
    OutgoingDelivery,
    PartialDelivery,
    Parts,
    ResumedDelivery,
    State,
    unsettled_map,
)
from amqp10broker.protocols.amqp10.errors import (
    AmqpConnectionError,
    AmqpError,
    AmqpLinkError,
    AmqpSessionError,
    Condition,
)
from amqp10broker.protocols.amqp10.link import (
    FRAME_HEADER_BYTES,
    LINK_TRANSITIONS,
    DeliveriesReceived,
    DeliveriesSent,
    DeliveryBegun,
    DeliveryResumed,
    LinkAttached,
    LinkAttaching,
    LinkDetached,
    LinkInput,
    LinkState,
    MarkerReached,
    PumpEvent,
    ReceiverLink,
    SenderLink,
    SessionEvent,
    TransferHead,
    TransferRun,
    delivery_tag,
)
from amqp10broker.protocols.amqp10.performatives import (
    Attach,
    Detach,
    ReceiverSettleMode,
    Role,
    SenderSettleMode,
    TransactionalState,
    Transfer,
)
from amqp10broker.protocols.amqp10.settling import Output, Settling, message_too_large, over_limit, to_error
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.protocols.connection import Unfinished
from amqp10broker.protocols.serial import MASK

# Keys of one batch are closer together than this, so the largest is searched for only above it.
_LARGE_KEY: Final = MASK - 0x1000_0000

# The number of deliveries that one link sends before the next link of the session.
_QUANTUM_FRAMES: Final = 128


class Outbound:
    """Makes transfer frames of messages; `unsettled` has link and key by delivery-id."""

    def __init__(self, window: OutgoingWindow, output: Output, channel: int, frame_size_max: int) -> None:
        self._window = window
        self._output = output
        self._channel = channel
        self._frame_size_max = frame_size_max
        self.next_delivery_id = 0
        self._closed = False
        self.unsettled: dict[int, tuple[SenderLink, int]] = {}
        self.turns: deque[SenderLink] = deque()

    def take_turn(self, link: SenderLink, budget: int) -> tuple[int, int, object | None]:
        """Write transfers of one link; return bytes written, deliveries begun, marker reached or None."""
        if link.partial is not None:
            if budget <= 0 or self._window.remote_incoming_window == 0:
                return 0, 0, None
            return self._send_piece(link), 0, None
        while link.pending:
            entry = link.pending[0]
            if not isinstance(entry, DeliveryBatch):
                if type(entry) is ResumedDelivery:
                    return self._resume_next(link, entry, budget), 0, None
                link.pending.popleft()
                return 0, 0, entry
            left = len(entry.messages) - entry.position
            if left:
                return *self._send_next(link, entry, left, budget), None
            link.pending.popleft()
        return 0, 0, None

    def _send_next(self, link: SenderLink, entry: DeliveryBatch, left: int, budget: int) -> tuple[int, int]:
        # Return bytes and deliveries written.
        limit = min(left, self._window.remote_incoming_window, link.credit.link_credit, _QUANTUM_FRAMES)
        if limit <= 0 or budget <= 0:
            return 0, 0
        spent, sent = self._send_whole(link, entry, limit, budget)
        if sent == 0:
            key, message = entry.keys[entry.position], entry.messages[entry.position]
            spent, sent = self._begin_large(link, key, message, settled=link.settled, txn_id=link.txn_id), 1
            entry.position += 1
        if sent == left:
            link.pending.popleft()
        return spent, sent

    def _resume_next(self, link: SenderLink, entry: ResumedDelivery, budget: int) -> int:
        # Return bytes written. A resumed delivery needs credit, too.
        if budget <= 0 or self._window.remote_incoming_window == 0 or link.credit.link_credit <= 0:
            return 0
        spent = self._begin_large(link, entry.key, entry.message, settled=entry.settled, resumed=entry)
        link.pending.popleft()
        link.resuming -= 1
        return spent

    def _send_whole(self, link: SenderLink, batch: DeliveryBatch, limit: int, budget: int) -> tuple[int, int]:
        # Write up to the first that does not fit one frame.
        layout = link.head
        assert layout is not None
        position = batch.position
        keys = batch.keys[position : position + limit]
        if keys[-1] > _LARGE_KEY and max(keys) > MASK:
            layout = TransferHead(
                self._channel, link.handle, settled=link.settled, tag_bytes=8, txn_id=link.txn_id
            )
        pack = layout.pack
        head_bytes = layout.head_bytes
        before, between, after = layout.before, layout.between, layout.after
        first_id = delivery_id = self.next_delivery_id
        size_max = self._frame_size_max
        peer_max = link.peer_max_message_size
        if peer_max:
            size_max = min(size_max, peer_max + head_bytes)
        pieces = self._output.pieces
        add = pieces.append
        begins_at = len(pieces)
        spent = 0
        for key, (head, bare) in zip(keys, batch.messages[position : position + limit], strict=True):
            size = head_bytes + len(head) + len(bare)
            if size > size_max:
                break
            add(pack(size, before, delivery_id, between, key, after))
            add(head)
            add(bare)
            delivery_id = (delivery_id + 1) & MASK
            spent += size
            if spent >= budget:
                break
        sent = (delivery_id - first_id) & MASK
        if sent:
            if not link.settled:
                ids: Iterable[int] = range(first_id, first_id + sent)
                if delivery_id < first_id:
                    ids = [number & MASK for number in ids]
                self.unsettled.update(zip(ids, zip(repeat(link), keys, strict=False), strict=False))
            self.next_delivery_id = delivery_id
            batch.position = position + sent
            self._window.spend(sent)
            link.credit.spend(sent)
            if self._output.tap is not None:
                self._output.tap.sent_run(link, first_id, sent, bytes(pieces[begins_at]))
        return spent, sent

    def _begin_large(
        self,
        link: SenderLink,
        key: int,
        message: Parts,
        *,
        settled: bool,
        resumed: ResumedDelivery | None = None,
        txn_id: bytes | None = None,
    ) -> int:
        size = len(message[0]) + len(message[1])
        if link.peer_max_message_size and size > link.peer_max_message_size:
            raise message_too_large(size, link.peer_max_message_size)
        delivery_id = self.next_delivery_id
        self.next_delivery_id = (delivery_id + 1) & MASK
        link.credit.spend(1)
        if not settled:
            self.unsettled[delivery_id] = (link, key)
        link.partial = OutgoingDelivery(delivery_id, key, message, resumed, txn_id)
        return self._send_piece(link)

    def _send_piece(self, link: SenderLink) -> int:
        # Return the bytes of one frame of `link.partial`.
        partial = link.partial
        assert partial is not None
        performative = Transfer(
            handle=link.handle,
            delivery_id=partial.delivery_id,
            delivery_tag=delivery_tag(partial.key),
            message_format=0,
            settled=link.settled,
            more=True,
        )
        if partial.txn_id is not None:
            performative.state = TransactionalState(txn_id=partial.txn_id)
        if partial.aborted:
            performative.aborted = True
        resumed = partial.resumed
        if resumed is not None:
            performative.resume, performative.state = True, resumed.state
            performative.settled, performative.aborted = resumed.settled, resumed.aborted
        transfer = performative.encode()
        room = self._frame_size_max - 8 - len(transfer)
        first = not partial.position
        begins_at = partial.position
        pieces = partial.take(room)
        more = partial.position < partial.size_bytes
        if not more:
            performative.more = False
            transfer = performative.encode()
        size = 8 + len(transfer) + partial.position - begins_at
        head = size.to_bytes(4, "big") + self._output.frame_tail + transfer
        self._output.pieces.append(head)
        self._output.pieces += pieces
        self._window.spend(1)
        if self._output.tap is not None:
            self._output.tap.sent_piece(link, partial.delivery_id, head, first=first, last=not more)
        if not more:
            link.partial = None
        return size

    def queue_deliveries(self, link: SenderLink, keys: Sequence[int], messages: Sequence[Parts]) -> None:
        link.pending.append(DeliveryBatch(keys, messages))
        self._enqueue(link)

    def queue_resumed(self, link: SenderLink, deliveries: Sequence[ResumedDelivery]) -> None:
        """Hand over deliveries to resume, before any other of the link."""
        link.pending.extend(deliveries)
        link.resuming += len(deliveries)
        self._enqueue(link)

    def name_transaction(self, link: SenderLink, txn_id: bytes | None) -> None:
        """Acquire later deliveries of the link in a transaction, or in none (part 4, 4.4.3)."""
        link.txn_id = txn_id
        link.head = TransferHead(self._channel, link.handle, settled=link.settled, txn_id=txn_id)

    def abort(self, link: SenderLink, marker: object) -> None:
        """Abort the delivery that has begun; the marker is reached when the abort is written."""
        assert link.partial is not None
        link.partial.abort()
        self.unsettled.pop(link.partial.delivery_id, None)
        link.pending.appendleft(marker)
        self._enqueue(link)

    def queue_marker(self, link: SenderLink, marker: object) -> None:
        """Request a `MarkerReached` after everything handed over before has been written."""
        link.pending.append(marker)
        self._enqueue(link)

    def _enqueue(self, link: SenderLink) -> None:
        if not link.queued and not self._closed:
            link.queued = True
            self.turns.append(link)

    def pump(self, budget_bytes: int) -> tuple[int, list[PumpEvent], tuple[SenderLink, AmqpLinkError] | None]:
        """Write transfers of the links in rotation, as far as windows and budget allow, up to a marker.
        Returns bytes of transfers, events, and a link that must be detached because its next delivery is too
        large for its peer.
        """
        written = 0
        events: list[PumpEvent] = []
        turns = self.turns
        blocked = 0
        while turns and blocked < len(turns):
            link = turns[0]
            try:
                spent, sent, marker = self.take_turn(link, budget_bytes - written)
            except AmqpLinkError as fault:
                return written, events, (link, fault)
            written += spent
            if sent:
                events.append(DeliveriesSent(link, sent))
            if not link.pending and link.partial is None:
                turns.popleft()
                link.queued = False
            else:
                turns.rotate(-1)
                blocked = 0 if spent else blocked + 1
            if marker is not None:
                events.append(MarkerReached(link, marker))
                return written, events, None
        return written, events, None

    def close(self) -> None:
        """Stop sending: no transfer may follow this end's end (2.5.5)."""
        self._closed = True
        for link in self.turns:
            link.queued = False
        self.turns.clear()

    def drop(self, link: SenderLink) -> list[tuple[int, Parts]]:
        if link.queued:
            self.turns.remove(link)
            link.queued = False
        gone = [number for number, (owner, _) in self.unsettled.items() if owner is link]
        link.left = [self.unsettled.pop(number)[1] for number in gone]
        unsent: list[tuple[int, Parts]] = []
        if link.settled and link.partial is not None:
            unsent.append((link.partial.key, link.partial.message))
        for entry in link.pending:
            if type(entry) is DeliveryBatch:
                unsent.extend(zip(*entry.cut(0), strict=True))
        link.pending.clear()
        link.resuming = 0
        link.partial = None
        return unsent


class Inbound:
    """Makes messages of transfer frames; `unsettled` has deliveries received and not settled by this end.
    `grants`: links whose new grant, if any, is sent with the next output.
    """

    __slots__ = ("_unfinished", "_window", "grants", "unsettled")

    def __init__(self, window: IncomingWindow, unfinished: Unfinished) -> None:
        self._window = window
        self._unfinished = unfinished
        self.unsettled: dict[int, ReceiverLink] = {}
        self.grants: dict[ReceiverLink, None] = {}

    def take_run(
        self, link: ReceiverLink, run: TransferRun, events: list[SessionEvent]
    ) -> TransferRun | None:
        """Take a run of complete deliveries, or, within a partial one, its end.

        Returns the part to take after the owner has acted on `events`: after the end of a partial delivery,
        or from a delivery-id on that is in flight. Raises `AmqpLinkError` (deliveries before the fault are in
        `events`), and `AmqpSessionError` if the first delivery-id is in flight.
        """
        if link.partial is not None:
            # The first transfer of the run is the last of a delivery that has begun.
            transfer = Transfer(
                handle=run.handle,
                delivery_id=run.delivery_ids[0],
                delivery_tag=run.tags[0],
                message_format=run.message_format,
                settled=run.settled,
                state=None if run.txn_id is None else TransactionalState(txn_id=run.txn_id),
            )
            self.take_transfer(link, transfer, run.payloads[0], events)
            return part_of_run(run, 1, len(run.delivery_ids)) if len(run.delivery_ids) > 1 else None
        settled = bool(run.settled)
        check_settled(link, settled)
        ids = run.delivery_ids
        tags = run.tags
        payloads = run.payloads
        credit = link.credit
        fault: AmqpLinkError | None = None
        rest: TransferRun | None = None
        limit = link.max_message_size
        if limit and max(map(len, payloads)) > limit:
            at, size = next((at, len(each)) for at, each in enumerate(payloads) if len(each) > limit)
            fault = message_too_large(size, limit)
            ids, tags, payloads = ids[:at], tags[:at], payloads[:at]
        if not settled and ids:
            if credit.link_credit <= 0 and not credit.covers_one:
                raise over_limit()
            fit = self._note_first_unsettled(ids, link)
            if fit < len(ids):
                if not fit:
                    raise _in_flight(ids[0])
                fault, rest = None, part_of_run(run, fit, len(run.delivery_ids))
                ids, tags, payloads = ids[:fit], tags[:fit], payloads[:fit]
        covered = credit.receive(len(ids))
        if credit.granted is not None:
            self.grants[link] = None
        if covered < len(ids):
            fault, rest = over_limit(), None
            if not settled:
                for _ in range(len(ids) - covered):
                    self.unsettled.popitem()
            ids, tags, payloads = ids[:covered], tags[:covered], payloads[:covered]
        if ids:
            kind = run.message_format or 0
            events.append(DeliveriesReceived(link, ids, tags, payloads, settled, kind, run.txn_id))
        if fault is not None:
            raise fault
        return rest

    def note_unsettled(self, delivery_id: int, link: ReceiverLink) -> None:
        """Note a delivery that this end must settle. Raises `AmqpSessionError` if its id is in flight."""
        if delivery_id in self.unsettled:
            raise _in_flight(delivery_id)
        self.unsettled[delivery_id] = link

    def _note_first_unsettled(self, ids: Sequence[int], link: ReceiverLink) -> int:
        # Return how many are noted: those before the first in flight.
        unsettled = self.unsettled
        before = len(unsettled)
        # With setdefault a delivery-id that is in flight stays with its link.
        deque(map(unsettled.setdefault, ids, repeat(link)), maxlen=0)
        noted = len(unsettled) - before
        if noted == len(ids):
            return noted
        for _ in range(noted):
            unsettled.popitem()
        for at, delivery_id in enumerate(ids):
            if delivery_id in unsettled:
                return at
            unsettled[delivery_id] = link
        raise AssertionError("one of them is in flight")

    def take_transfer(
        self, link: ReceiverLink, transfer: Transfer, payload: bytes, events: list[SessionEvent]
    ) -> None:
        partial = link.partial
        if partial is None:
            partial = PartialDelivery.of(transfer)
            if not link.credit.covers_one:
                raise over_limit()
            if (
                transfer.rcv_settle_mode == ReceiverSettleMode.SECOND
                and link.rcv_settle_mode == ReceiverSettleMode.FIRST
            ):
                raise AmqpLinkError(
                    Condition.INVALID_FIELD,
                    "rcv-settle-mode second on a transfer of a link whose rcv-settle-mode is first",
                )
            if transfer.more and link.manages:
                raise AmqpLinkError(
                    Condition.NOT_IMPLEMENTED,
                    f"a delivery of several transfers (more=true) is not supported on link '{link.name}'",
                )
            if not partial.resumed:
                check_settled(link, partial.settled)
                if not partial.settled:
                    self.note_unsettled(partial.delivery_id, link)
        else:
            partial.check_continuation(transfer)
        if transfer.aborted:
            # "Aborted messages SHOULD be discarded by the recipient ... An aborted message is
            # implicitly settled" (2.7.5). It used its credit all the same.
            self._end_partial(link, partial)
            self._drop_delivery(link, partial)
            if partial.resumed and link.resumes:
                events.append(_resumed(link, partial, aborted=True))
            return
        if partial.resumed:
            payload = b""
        partial.add(payload)
        if link.max_message_size and partial.size_bytes > link.max_message_size:
            raise message_too_large(partial.size_bytes, link.max_message_size)
        if transfer.more:
            if link.looks_ahead and link.partial is None and not partial.resumed:
                events.append(DeliveryBegun(link, payload))
            link.partial = partial
            partial.held_bytes += self._unfinished.keep(len(payload))
            return
        self._end_partial(link, partial)
        if partial.resumed:
            # Its content, if any, was here before: parts of deliveries are not retained.
            self._drop_delivery(link, partial)
            if link.resumes:
                events.append(_resumed(link, partial, aborted=False))
            return
        if not link.credit.receive(1):
            raise over_limit()
        self.grants[link] = None
        events.append(
            DeliveriesReceived(
                link,
                [partial.delivery_id],
                [partial.tag],
                [b"".join(partial.chunks)],
                partial.settled,
                partial.message_format or 0,
                partial.txn_id,
            )
        )

    def _end_partial(self, link: ReceiverLink, partial: PartialDelivery) -> None:
        link.partial = None
        self._unfinished.give_back(partial.held_bytes)
        partial.held_bytes = 0

    def _drop_delivery(self, link: ReceiverLink, partial: PartialDelivery) -> None:
        link.credit.receive(1)
        self.finish(link, 1)
        self.unsettled.pop(partial.delivery_id, None)

    def finish(self, link: ReceiverLink, deliveries: int) -> None:
        link.credit.finish(deliveries)
        self.grants[link] = None

    def top_up(self, link: ReceiverLink) -> None:
        link.credit.top_up()
        self.grants[link] = None

    def drop(self, link: ReceiverLink) -> None:
        self.drop_partial(link)
        unsettled = self.unsettled
        for number in [number for number, owner in unsettled.items() if owner is link]:
            del unsettled[number]
        self.grants.pop(link, None)

    def drop_partial(self, link: ReceiverLink) -> None:
        if link.partial is not None:
            self._end_partial(link, link.partial)


def _resumed(link: ReceiverLink, partial: PartialDelivery, *, aborted: bool) -> DeliveryResumed:
    return DeliveryResumed(link, partial.delivery_id, partial.tag, partial.settled, aborted)


def _in_flight(delivery_id: int) -> AmqpSessionError:
    return AmqpSessionError(
        Condition.INVALID_FIELD,
        f"a delivery-id of {delivery_id}..{delivery_id} is still in flight: use it again when it is settled",
    )


def part_of_run(run: TransferRun, first: int, stop: int) -> TransferRun:
    return TransferRun(
        *(run.handle, run.message_format, run.settled, run.txn_id),
        run.delivery_ids[first:stop],
        run.tags[first:stop],
        run.payloads[first:stop],
    )


def check_settled(link: ReceiverLink, settled: bool) -> None:
    """Raises `AmqpLinkError` if a delivery's settled flag contradicts the link's mode (2.8.2)."""
    mode = link.snd_settle_mode
    if (mode == SenderSettleMode.UNSETTLED and settled) or (mode == SenderSettleMode.SETTLED and not settled):
        raise AmqpLinkError(
            Condition.INVALID_FIELD,
            f"sender settle mode is '{SenderSettleMode(mode).name.lower()}' but transfer settled flag is "
            f"interpreted as being '{str(settled).lower()}'",
        )


class Links:
    """The handle tables of a session, and the transitions of its links."""

    def __init__(
        self,
        channel: int,
        handle_max: int,
        output: Output,
        inbound: Inbound,
        outbound: Outbound,
        settling: Settling,
        on_fault: Callable[[SenderLink | ReceiverLink, AmqpError, bool], None],
    ) -> None:
        self._channel = channel
        self._output = output
        self._in = inbound
        self._out = outbound
        self._settling = settling
        self._on_fault = on_fault
        self.handle_max = handle_max
        self.by_handle: dict[int, SenderLink | ReceiverLink] = {}
        self.by_remote: dict[int, SenderLink | ReceiverLink] = {}

    def __iter__(self) -> Iterator[SenderLink | ReceiverLink]:
        return iter(self.by_handle.values())

    def attach(
        self,
        name: str,
        role: bool,
        *,
        source: Any,
        target: Any,
        snd_settle_mode: int = SenderSettleMode.MIXED,
        rcv_settle_mode: int = ReceiverSettleMode.FIRST,
        credit_limit: int = 0,
        max_message_size: int = 0,
        desired_capabilities: tuple[Symbol, ...] | None = None,
        properties: Any = None,
    ) -> SenderLink | ReceiverLink:
        """Attach a link of this end. `credit_limit`: credit is topped up to it; 0 leaves it to
        `Session.grant`.
        """
        handle = next(number for number in range(self.handle_max + 2) if number not in self.by_handle)
        link: SenderLink | ReceiverLink
        link = SenderLink(name, handle) if role == Role.SENDER else ReceiverLink(name, handle)
        link.move(LinkInput.SEND_ATTACH)
        link.snd_settle_mode = snd_settle_mode
        link.rcv_settle_mode = rcv_settle_mode
        if type(link) is ReceiverLink:
            link.credit.limit = credit_limit
            link.max_message_size = max_message_size
        self.by_handle[handle] = link
        attach = _attach_of(link, source, target, max_message_size, properties)
        attach.desired_capabilities = desired_capabilities
        self._output.write(attach)
        return link

    def on_attach(self, attach: Attach, events: list[SessionEvent]) -> None:
        """Handle an attach. Raises `AmqpConnectionError` if the handle is too large, and `AmqpSessionError`
        if a link uses it that this end did not detach.
        """
        if attach.handle > self.handle_max:
            raise AmqpConnectionError(
                Condition.FRAMING_ERROR,
                f"link handle value ({attach.handle}) exceeds maximum link handle value ({self.handle_max})",
            )
        held = self.by_remote.get(attach.handle)
        if held is not None:
            if held.state is not LinkState.DETACH_SENT:
                raise AmqpSessionError(
                    Condition.HANDLE_IN_USE, f"handle {attach.handle} is already associated with a link"
                )
            # This end refused or detached that link, and the peer has not sent its detach yet. RabbitMQ
            # removes such a link at once, so some clients do not answer and use the number again.
            held.move(LinkInput.RECEIVE_DETACH)
            self._forget(held)
        for link in self.by_handle.values():
            if (
                link.remote_handle is None
                and link.name == attach.name
                and (type(link) is SenderLink) == attach.role
            ):
                self._complete_attach(link, attach, events)
                return
        self._new_link(attach, events)

    def _new_link(self, attach: Attach, events: list[SessionEvent]) -> None:
        # The same handle on both sides makes traces readable.
        handle = attach.handle
        while handle in self.by_handle:
            handle += 1
        link: SenderLink | ReceiverLink
        link = SenderLink(attach.name, handle) if attach.role else ReceiverLink(attach.name, handle)
        link.move(LinkInput.RECEIVE_ATTACH)
        self.by_handle[handle] = link
        self._take_over(link, attach)
        fault = _bad_attach(attach)
        if fault is not None:
            self.refuse(link, fault)
            return
        events.append(LinkAttaching(link, attach))

    def _complete_attach(
        self, link: SenderLink | ReceiverLink, attach: Attach, events: list[SessionEvent]
    ) -> None:
        link.move(LinkInput.RECEIVE_ATTACH)
        self._take_over(link, attach)
        if link.state is LinkState.DETACH_SENT:
            return
        link.snd_settle_mode = attach.snd_settle_mode
        link.rcv_settle_mode = attach.rcv_settle_mode
        self._start(link)
        events.append(LinkAttached(link, attach))

    def _take_over(self, link: SenderLink | ReceiverLink, attach: Attach) -> None:
        link.remote_handle = attach.handle
        link.remote_attach = attach
        link.peer_max_message_size = attach.max_message_size or 0
        link.address = getattr(attach.source if type(link) is SenderLink else attach.target, "address", None)
        self.by_remote[attach.handle] = link
        if type(link) is ReceiverLink:
            link.credit.delivery_count = attach.initial_delivery_count or 0
        if attach.properties is not None:
            link.peer_properties = None

    def _start(self, link: SenderLink | ReceiverLink) -> None:
        if type(link) is SenderLink:
            link.settled = link.snd_settle_mode == SenderSettleMode.SETTLED
            link.head = TransferHead(self._channel, link.handle, settled=link.settled)
        else:
            assert type(link) is ReceiverLink
            self._in.top_up(link)

    def accept(
        self,
        link: SenderLink | ReceiverLink,
        *,
        source: Any,
        target: Any,
        snd_settle_mode: int,
        rcv_settle_mode: int,
        credit_limit: int = 0,
        max_message_size: int = 0,
        offered_capabilities: tuple[Symbol, ...] | None = None,
        properties: Any = None,
        unsettled: Mapping[bytes, State] | None = None,
    ) -> bool:
        """Answer the peer's attach; the first credit of a receiver link follows at once.

        `credit_limit`: as in `attach`. `unsettled`: this end's map; None: no earlier state exists here, which
        is sent as an empty map if the peer has sent a map. Returns whether the whole map is sent: if it does
        not fit a frame, its first entries are.
        """
        link.move(LinkInput.SEND_ATTACH)
        link.snd_settle_mode = snd_settle_mode
        link.rcv_settle_mode = rcv_settle_mode
        asked = link.remote_attach
        assert asked is not None
        resuming = bool(asked.unsettled) or asked.incomplete_unsettled
        # It must not use memory as long as the link lives.
        asked.unsettled = None
        if type(link) is ReceiverLink:
            link.address = getattr(target, "address", None)
            link.max_message_size = max_message_size
            link.credit.limit = credit_limit
        else:
            link.address = getattr(source, "address", None)
        answer = _attach_of(link, source, target, max_message_size, properties)
        answer.offered_capabilities = offered_capabilities
        if unsettled is not None:
            answer.unsettled = dict(unsettled)
            self._cut(answer)
        elif resuming:
            answer.unsettled = {}
        self._output.write(answer)
        self._start(link)
        return not answer.incomplete_unsettled

    def _cut(self, answer: Attach) -> None:
        # Send fewer entries of an unsettled map if the whole map does not fit a frame: 2.6.13.
        entries = list((answer.unsettled or {}).items())
        count = len(entries)
        while count and len(answer.encode()) > self._output.frame_size_max - FRAME_HEADER_BYTES:
            count //= 2
            answer.unsettled, answer.incomplete_unsettled = dict(entries[:count]), True

    def refuse(self, link: SenderLink | ReceiverLink, error: AmqpError) -> None:
        """Answer the peer's attach with an attach without a terminus, then detach (2.6.3)."""
        link.move(LinkInput.SEND_ATTACH)
        attach = link.remote_attach
        assert attach is not None
        attach.unsettled = None
        if attach.snd_settle_mode in _SND_MODES:
            link.snd_settle_mode = attach.snd_settle_mode
        if attach.rcv_settle_mode in _RCV_MODES:
            link.rcv_settle_mode = attach.rcv_settle_mode
        # "the local terminus is null": the source where this end sends, the target where it receives
        sender = type(link) is SenderLink
        source, target = (None, attach.target) if sender else (attach.source, None)
        self._output.write(_attach_of(link, source, target))
        self._detach(link, error, closed=True)
        self._on_fault(link, error, True)

    def detach(
        self, link: SenderLink | ReceiverLink, error: AmqpError | None = None, *, closed: bool = True
    ) -> list[tuple[int, Parts]]:
        """Send detach; return key and message of each delivery that has not begun."""
        unsent = self._detach(link, error, closed=closed)
        if error is not None:
            self._on_fault(link, error, False)
        return unsent

    def _detach(
        self, link: SenderLink | ReceiverLink, error: AmqpError | None, *, closed: bool
    ) -> list[tuple[int, Parts]]:
        self._settling.flush()
        link.move(LinkInput.SEND_DETACH)
        self._output.write(Detach(handle=link.handle, closed=closed, error=to_error(error)))
        unsent = self.drop(link)
        if link.state is LinkState.DETACHED:
            self._forget(link)
        return unsent

    def on_detach(self, detach: Detach, events: list[SessionEvent]) -> None:
        link = self.by_remote.get(detach.handle)
        if link is None:
            # A second detach of the peer is harmless, and RabbitMQ accepts it.
            return
        if (link.state, LinkInput.RECEIVE_DETACH) not in LINK_TRANSITIONS:
            raise AmqpSessionError(
                Condition.UNATTACHED_HANDLE, f"detach for handle {detach.handle} in state {link.state.name}"
            )
        link.move(LinkInput.RECEIVE_DETACH)
        if link.state is LinkState.DETACHED:
            self._forget(link)
            return
        events.append(LinkDetached(link, detach.closed, detach.error, None))

    def _forget(self, link: SenderLink | ReceiverLink) -> None:
        self.by_handle.pop(link.handle, None)
        if link.remote_handle is not None:
            self.by_remote.pop(link.remote_handle, None)

    def drop(self, link: SenderLink | ReceiverLink) -> list[tuple[int, Parts]]:
        """Remove a link and its deliveries without a frame. Returns those that have not begun, and one that
        was begun settled and not finished, because its receiver discards it.
        """
        if type(link) is ReceiverLink:
            self._in.drop(link)
            return []
        assert type(link) is SenderLink
        return self._out.drop(link)

    def forget_all(self) -> None:
        for link in list(self.by_handle.values()):
            link.state = LinkState.DETACHED
            if type(link) is ReceiverLink:
                self._in.drop_partial(link)
        self.by_handle.clear()
        self.by_remote.clear()


def _attach_of(
    link: SenderLink | ReceiverLink,
    source: Any,
    target: Any,
    max_message_size: int = 0,
    properties: Any = None,
) -> Attach:
    sender = type(link) is SenderLink
    return Attach(
        name=link.name,
        handle=link.handle,
        role=not sender,
        snd_settle_mode=link.snd_settle_mode,
        rcv_settle_mode=link.rcv_settle_mode,
        source=source,
        target=target,
        initial_delivery_count=link.credit.delivery_count if sender else None,
        max_message_size=max_message_size or None,
        properties=properties,
    )


_SND_MODES: Final = frozenset(SenderSettleMode)
_RCV_MODES: Final = frozenset(ReceiverSettleMode)


def _bad_attach(attach: Attach) -> AmqpLinkError | None:
    # Return why an attach is invalid whatever it requests; None if it is valid.
    if not attach.role and attach.initial_delivery_count is None:
        text = "initial-delivery-count must be set when the role of attach is sender"
    elif attach.snd_settle_mode not in _SND_MODES:
        text = f"snd-settle-mode {attach.snd_settle_mode} is none of 0, 1, 2"
    elif attach.rcv_settle_mode not in _RCV_MODES:
        text = f"rcv-settle-mode {attach.rcv_settle_mode} is none of 0, 1"
    else:
        try:
            unsettled_map(attach)
        except AmqpLinkError as fault:
            return fault
        return None
    return AmqpLinkError(Condition.INVALID_FIELD, text)
