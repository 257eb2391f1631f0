"""Deliveries going out: part 2, sections 2.5.6, 2.6.7 and 2.7.5, from messages to transfer frames."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Final

from amqp10broker.protocols.amqp10.credit import OutgoingWindow
from amqp10broker.protocols.amqp10.delivery import DeliveryBatch, OutgoingDelivery, Parts, ResumedDelivery
from amqp10broker.protocols.amqp10.errors import AmqpLinkError
from amqp10broker.protocols.amqp10.events import DeliveriesSent, MarkerReached, PumpEvent
from amqp10broker.protocols.amqp10.faults import message_too_large
from amqp10broker.protocols.amqp10.link import SenderLink
from amqp10broker.protocols.amqp10.performatives import TransactionalState, Transfer
from amqp10broker.protocols.amqp10.settling import Output
from amqp10broker.protocols.amqp10.transfer import TransferHead, delivery_tag
from amqp10broker.protocols.serial import MASK

# Keys of one batch are closer together than this, so the largest is only searched for above it.
_LARGE_KEY: Final = MASK - 0x1000_0000

# Deliveries that one link sends before the next link of the session.
_QUANTUM_FRAMES: Final = 128


class Outbound:
    """The sending half of a session; `unsettled` has link and key by delivery-id."""

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
        # Returns bytes and deliveries of the next batch that are written in this round.
        limit = min(left, self._window.remote_incoming_window, link.credit.link_credit, _QUANTUM_FRAMES)
        if limit <= 0 or budget <= 0:
            return 0, 0
        spent, sent = self._send_whole(link, entry, limit, budget)
        if sent == 0:
            spent, sent = self._send_large(link, entry), 1
        if sent == left:
            link.pending.popleft()
        return spent, sent

    def _resume_next(self, link: SenderLink, entry: ResumedDelivery, budget: int) -> int:
        # Returns bytes written. A resumed delivery needs credit as any.
        if budget <= 0 or self._window.remote_incoming_window == 0 or link.credit.link_credit <= 0:
            return 0
        self._check_size(link, entry.message)
        link.pending.popleft()
        link.resuming -= 1
        delivery_id = self.next_delivery_id
        self.next_delivery_id = (delivery_id + 1) & MASK
        link.credit.spend(1)
        if not entry.settled:
            self.unsettled[delivery_id] = (link, entry.key)
        link.partial = OutgoingDelivery(delivery_id, entry.key, entry.message, entry)
        return self._send_piece(link)

    def _check_size(self, link: SenderLink, message: Parts) -> None:
        size = len(message[0]) + len(message[1])
        if link.peer_max_message_size and size > link.peer_max_message_size:
            raise message_too_large(size, link.peer_max_message_size)

    def _send_whole(self, link: SenderLink, batch: DeliveryBatch, limit: int, budget: int) -> tuple[int, int]:
        # Up to the first that does not fit one frame.
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

    def _send_large(self, link: SenderLink, batch: DeliveryBatch) -> int:
        key, message = batch.keys[batch.position], batch.messages[batch.position]
        self._check_size(link, message)
        delivery_id = self.next_delivery_id
        self.next_delivery_id = (delivery_id + 1) & MASK
        batch.position += 1
        link.credit.spend(1)
        if not link.settled:
            self.unsettled[delivery_id] = (link, key)
        link.partial = OutgoingDelivery(delivery_id, key, message, txn_id=link.txn_id)
        return self._send_piece(link)

    def _send_piece(self, link: SenderLink) -> int:
        # Returns the bytes of one frame of the multi-frame delivery under way.
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
        """Hand deliveries over that are to be resumed, before any other of the link."""
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
        """Write transfers of the links in rotation, as far as windows and budget allow, up to a marker: its
        owner writes frames there. Call again until no event is returned. Returns bytes of transfers, events,
        and a link that must be detached because its next delivery is larger than its peer takes.
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
        """Stop sending after our end, which no transfer may follow (2.5.5)."""
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
