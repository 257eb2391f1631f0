"""Deliveries coming in: part 2, sections 2.6.7 and 2.7.5, from transfer frames to whole messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import repeat

from amqp10broker.protocols.amqp10.credit import IncomingWindow
from amqp10broker.protocols.amqp10.delivery import PartialDelivery, check_first
from amqp10broker.protocols.amqp10.errors import AmqpLinkError, AmqpSessionError, Condition
from amqp10broker.protocols.amqp10.events import (
    DeliveriesReceived,
    DeliveryBegun,
    DeliveryResumed,
    SessionEvent,
)
from amqp10broker.protocols.amqp10.faults import message_too_large, over_limit
from amqp10broker.protocols.amqp10.link import ReceiverLink
from amqp10broker.protocols.amqp10.performatives import (
    ReceiverSettleMode,
    SenderSettleMode,
    TransactionalState,
    Transfer,
)
from amqp10broker.protocols.amqp10.transfer import TransferRun
from amqp10broker.protocols.budget import Unfinished


class Inbound:
    """The receiving half of a session; `unsettled` has deliveries received and not settled by us."""

    __slots__ = ("_unfinished", "_window", "grants", "unsettled")

    def __init__(self, window: IncomingWindow, unfinished: Unfinished) -> None:
        self._window = window
        self._unfinished = unfinished
        self.unsettled: dict[int, ReceiverLink] = {}
        self.grants: dict[ReceiverLink, None] = {}

    def take_run(
        self, link: ReceiverLink, run: TransferRun, events: list[SessionEvent]
    ) -> TransferRun | None:
        """Take a run of complete deliveries, or, within a partial one, its end. Returns the part that is to
        be taken after the owner has acted on `events`: behind the end of a partial delivery, or from a
        delivery-id on that is in flight. Raises `AmqpLinkError` (deliveries before the fault are in
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
        """Note that a delivery waits to be settled by us. Raises `AmqpSessionError` if its id is in use."""
        if delivery_id in self.unsettled:
            raise _in_flight(delivery_id)
        self.unsettled[delivery_id] = link

    def _note_first_unsettled(self, ids: Sequence[int], link: ReceiverLink) -> int:
        # Returns how many are noted: those before the first that is in flight.
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
            check_first(transfer)
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
            partial = PartialDelivery(transfer)
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
        self.note_grant(link)

    def top_up(self, link: ReceiverLink) -> None:
        """Grant if the link's rule allows it now, as after a change of its limit."""
        link.credit.top_up()
        self.note_grant(link)

    def note_grant(self, link: ReceiverLink) -> None:
        """Send a new grant of the link, if there is one, with the next output."""
        if link.credit.granted is not None:
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
    """Raise `AmqpLinkError` if a delivery's settled flag contradicts the link's mode (2.8.2)."""
    mode = link.snd_settle_mode
    if (mode == SenderSettleMode.UNSETTLED and settled) or (mode == SenderSettleMode.SETTLED and not settled):
        raise AmqpLinkError(
            Condition.INVALID_FIELD,
            f"sender settle mode is '{SenderSettleMode(mode).name.lower()}' but transfer settled flag is "
            f"interpreted as being '{str(settled).lower()}'",
        )
