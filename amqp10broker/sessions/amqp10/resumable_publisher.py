"""The state of a link on which a client sends that survives its session (part 2, section 2.6.13).

It has the deliveries that the broker has taken and that may be unsettled for the client, without partial ones
and those posted in a transaction. With rcv-settle-mode second an entry stays until the client has settled;
with first until the client must have received the outcome, because that may have been lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from typing import assert_never

from amqp10broker.dataclass import dataclass
from amqp10broker.metadata.queue import QueueCommand
from amqp10broker.protocols.amqp10.errors import AmqpDeliveryError, AmqpLinkError, Condition
from amqp10broker.protocols.amqp10.faults import to_error
from amqp10broker.protocols.amqp10.performatives import Attach, Rejected, Target, TerminusDurability
from amqp10broker.protocols.amqp10.resumption import (
    UNSETTLED_ENTRIES_MAX,
    State,
    resume_as_receiver,
    unsettled_map,
)
from amqp10broker.protocols.amqp10.settling import ACCEPTED, RELEASED, Outcome
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.queues.commands import PublisherRef
from amqp10broker.queues.effects import Confirmed, Effect, PublishRejected, Unconfirmed
from amqp10broker.sessions.amqp10.resumable_links import Host, Key, ResumableLink


@dataclass(eq=False, slots=True)
class Tally:
    """The outcomes of the deliveries of one publishing link. `left`: of deliveries that went to several
    queues: how many have not answered, and the outcome so far.
    """

    left: dict[int, tuple[int, Outcome]] = field(default_factory=dict)

    def expect(self, ids: Iterable[int], queues: int) -> None:
        """Expect answers of several queues (more than one) for each of these deliveries."""
        for delivery_id in ids:
            self.left[delivery_id] = (queues, RELEASED)

    def count_down(self, ids: Sequence[int], outcome: Outcome) -> list[tuple[Outcome, Sequence[int]]]:
        """Count a queue's answer; return deliveries for which it was the last: rejected, accepted or
        released.
        """
        if not self.left:
            return [(outcome, ids)]
        answered: list[tuple[Outcome, list[int]]] = []
        for delivery_id in ids:
            left, worst = self.left.get(delivery_id, (1, RELEASED))
            if isinstance(outcome, Rejected) or worst is RELEASED:
                worst = outcome
            if left > 1:
                self.left[delivery_id] = (left - 1, worst)
                continue
            self.left.pop(delivery_id, None)
            if not answered or answered[-1][0] is not worst:
                answered.append((worst, []))
            answered[-1][1].append(delivery_id)
        return [(worst, its_ids) for worst, its_ids in answered]


def refusal_of(effect: Unconfirmed | PublishRejected) -> AmqpDeliveryError | None:
    """Return why a queue does not accept messages; None if it was deleted, which releases them."""
    if isinstance(effect, PublishRejected):
        return AmqpDeliveryError(
            Condition.RESOURCE_LIMIT_EXCEEDED,
            f"queue '{effect.queue}' exceeded maximum length",
            {Symbol("queue"): effect.queue, Symbol("reason"): Symbol("maxlen")},
        )
    if not effect.failed:
        return None
    return AmqpDeliveryError(
        Condition.PRECONDITION_FAILED,
        f"queue '{effect.queue}' is unavailable",
        {Symbol("queue"): effect.queue, Symbol("reason"): Symbol("unavailable")},
    )


def outcome_of(effect: Confirmed | Unconfirmed | PublishRejected) -> Outcome:
    match effect:
        case Confirmed():
            return ACCEPTED
        case Unconfirmed() | PublishRejected():
            refusal = refusal_of(effect)
            return RELEASED if refusal is None else Rejected(error=to_error(refusal))
        case _:
            assert_never(effect)


@dataclass(eq=False, slots=True)
class Entry:
    """One delivery. `outcome`: None: queues have not answered. `number`: its delivery-id in the present
    session, if the client waits for the outcome there.
    """

    tag: bytes
    outcome: Outcome | None = None
    number: int | None = None
    posted: bool = False


TellLate = Callable[[Entry, int], None]
"""Sends the outcome of a delivery that was sent before the link was suspended."""


class ResumablePublisher(ResumableLink):
    """A link on which a client sends; `entries` are by delivery-tag, in order of arrival."""

    def __init__(self, key: Key, host: Host, target: Target) -> None:
        super().__init__(key, host)
        self.terminus: Target = target
        self.entries: dict[bytes, Entry] = {}
        self.tell_late: TellLate | None = None
        self._most = 0
        # Of each end that it had: deliveries that queues have not answered, by delivery-id.
        self._flights: dict[PublisherRef, tuple[Tally, dict[int, Entry]]] = {}
        # Of the present end: outcomes that were sent and that the client has not settled, by delivery-id.
        self._told: dict[int, Entry] = {}

    @property
    def unsettled(self) -> int:
        return len(self.entries)

    # --- restart ---------------------------------------------------------------------------------------

    @property
    def keeps_unsettled(self) -> bool:
        """Whether unsettled deliveries survive a restart; then those sent to queues are `noted`."""
        return self.records is not None and self.terms.durable == TerminusDurability.UNSETTLED_STATE

    def noted(self, ref: PublisherRef, ids: Sequence[int]) -> None:
        """Record deliveries of its end, in the same group of records in which queues get them."""
        flight = self._flights[ref][1]
        if self.records is not None:
            self.records.take(self.number, [flight[number].tag for number in ids if number in flight])

    def restore(self, tags: Iterable[bytes]) -> None:
        for tag in tags:
            entry = self.entries[tag] = Entry(tag)
            entry.outcome = ACCEPTED
            entry.posted = True

    def _forgotten(self, tags: Iterable[bytes]) -> None:
        if self.records is not None:
            self.records.settle(self.number, tags)

    # --- attaching and suspending -----------------------------------------------------------------

    def attached(self, tell_late: TellLate, ref: PublisherRef, tally: Tally) -> None:
        """Attach another end, which publishes under this reference."""
        self.tell_late = tell_late
        self._flights[ref] = tally, {}

    def resume(self, attach: Attach) -> dict[bytes, State]:
        """Compare the client's unsettled map with ours; return ours for the answer."""
        ours: dict[bytes, State] = {tag: entry.outcome for tag, entry in self.entries.items()}
        plan = resume_as_receiver(ours, unsettled_map(attach), incomplete=attach.incomplete_unsettled)
        for tag in plan.settled:
            del self.entries[tag]
        self._forgotten(plan.settled)
        return plan.awaited | {tag: ours[tag] for tag in plan.open}

    def suspended(self, ref: PublisherRef) -> None:
        self.tell_late = None
        self._told.clear()
        for entry in self.entries.values():
            entry.number = None
        flight = self._flights[ref][1]
        for number, entry in list(flight.items()):
            if not entry.posted:
                # It waited for a declaration, or was refused with the session: no queue has it.
                del flight[number]
                self.forget(entry)
        self._landed(ref)

    def _landed(self, ref: PublisherRef) -> None:
        if not self._flights[ref][1]:
            del self._flights[ref]

    # --- deliveries -------------------------------------------------------------------------------

    def began(
        self, ref: PublisherRef, ids: Sequence[int], tags: Sequence[bytes], *, second: bool, credit: int
    ) -> None:
        """Note new deliveries of its end. Raises `AmqpLinkError` if a tag is in use, or too many are not
        settled by the client.
        """
        entries = self.entries
        most = UNSETTLED_ENTRIES_MAX + 2 * credit
        if len(entries) + len(ids) > most:
            raise AmqpLinkError(
                Condition.RESOURCE_LIMIT_EXCEEDED,
                f"more than {most} deliveries of link '{self.key.name}' are not settled: "
                "settle those whose outcome is told",
            )
        flight = self._flights[ref][1]
        self._forgotten(tags)
        for number, tag in zip(ids, tags, strict=True):
            # With mode first an entry that has its outcome is settled: its tag is free.
            there = entries.get(tag)
            if there is not None and (second or there.outcome is None):
                raise AmqpLinkError(
                    Condition.NOT_ALLOWED,
                    f"delivery-tag 0x{tag.hex()} is that of another delivery of link '{self.key.name}' which "
                    "is not settled",
                )
            entries.pop(tag, None)
            entries[tag] = flight[number] = Entry(tag)

    def posted(self, ref: PublisherRef, ids: Sequence[int]) -> None:
        """Note deliveries that went to queues, which will answer."""
        flight = self._flights[ref][1]
        for number in ids:
            if number in flight:
                flight[number].posted = True

    def decided(
        self, ref: PublisherRef, ids: Sequence[int], outcome: Outcome, *, second: bool, most: int
    ) -> None:
        """Note the outcome sent for deliveries; at most `most` are held for the client to settle."""
        flight = self._flights[ref][1]
        for number in ids:
            entry = flight.pop(number, None)
            if entry is not None:
                self._decide(entry, outcome)
                if second:
                    self._told[number] = entry
        # Deliveries sent before the limit was lowered may still be on their way.
        self._most = max(self._most, most)
        if not second:
            self._trim(self._most)

    def _decide(self, entry: Entry, outcome: Outcome) -> None:
        entry.outcome = outcome
        if outcome is not ACCEPTED:
            self._forgotten((entry.tag,))  # a delivery that no queue has taken is sent again after a restart

    def _trim(self, most: int) -> None:
        excess = len(self.entries) - most
        if excess > 0:
            old = [tag for tag, entry in self.entries.items() if entry.outcome is not None]
            for tag in old[:excess]:
                del self.entries[tag]
            self._forgotten(old[:excess])

    def told(self, number: int, entry: Entry) -> None:
        """Note that an outcome is sent again, under this delivery-id, and is settled later."""
        self._told[number] = entry

    def settled(self, ids: Sequence[int]) -> None:
        told = (self._told.pop(number, None) for number in ids)
        self.forget(*(entry for entry in told if entry is not None))

    def forget(self, *over: Entry) -> None:
        tags = [entry.tag for entry in over if self.entries.get(entry.tag) is entry]
        for tag in tags:
            del self.entries[tag]
        self._forgotten(tags)

    # --- from queues ------------------------------------------------------------------------------

    def take(self, effect: Effect) -> None:
        if not isinstance(effect, Confirmed | Unconfirmed | PublishRejected):
            return
        tally, flight = self._flights.get(effect.publisher, (None, {}))
        if tally is None:
            return
        for outcome, ids in tally.count_down(effect.ids, outcome_of(effect)):
            for number in ids:
                entry = flight.pop(number, None)
                if entry is None:
                    continue
                self._decide(entry, outcome)
                if self.tell_late is not None and entry.number is not None:
                    self.tell_late(entry, entry.number)
        self._landed(effect.publisher)

    def give_up(self) -> list[QueueCommand]:
        return []
