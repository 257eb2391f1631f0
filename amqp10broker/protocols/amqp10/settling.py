"""Settlement: part 2, sections 2.6.12 and 2.7.6. Outcomes from both sides, for both directions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from amqp10broker.protocols.amqp10.disposition import DispositionRun, Outcome, Settlements, State
from amqp10broker.protocols.amqp10.events import DeliveriesSettled, DeliveriesUpdated, SessionEvent
from amqp10broker.protocols.amqp10.link import ReceiverLink, SenderLink
from amqp10broker.protocols.amqp10.output import Output
from amqp10broker.protocols.amqp10.performatives import Disposition, Role
from amqp10broker.protocols.serial import MASK, diff


class Settling:
    """The outcomes of a session's deliveries; `of_received` and `of_sent` are not written yet."""

    __slots__ = ("_output", "_received", "_sent", "of_received", "of_sent")

    def __init__(
        self,
        channel: int,
        output: Output,
        received: dict[int, ReceiverLink],
        sent: dict[int, tuple[SenderLink, int]],
    ) -> None:
        self._output = output
        self._received = received
        self._sent = sent
        self.of_received = Settlements(channel, Role.RECEIVER)
        self.of_sent = Settlements(channel, Role.SENDER)

    def on_disposition(self, performative: Disposition, events: list[SessionEvent]) -> None:
        last = performative.first if performative.last is None else performative.last
        self._update(
            performative.role, performative.settled, performative.state, [(performative.first, last)], events
        )

    def on_run(self, run: DispositionRun, events: list[SessionEvent]) -> None:
        self._update(run.role, run.settled, run.state, run.spans, events)

    def _update(
        self,
        role: bool,
        settled: bool,
        state: Any,
        spans: list[tuple[int, int]],
        events: list[SessionEvent],
    ) -> None:
        unsettled: dict[int, Any] = self._sent if role == Role.RECEIVER else self._received
        if not unsettled:
            return
        by_link: dict[Any, list[int]] = {}
        keys_by_link: dict[Any, list[int]] = {}
        for first, last in spans:
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
                events.append(DeliveriesUpdated(link, keys_by_link[link], ids, state, settled))
            else:
                events.append(DeliveriesSettled(link, ids, state, settled))

    def settle_received(
        self, delivery_ids: Sequence[int], state: State | None, *, settled: bool = True
    ) -> None:
        """Send the outcome of deliveries that we received to the peer."""
        if settled:
            pop = self._received.pop
            for delivery_id in delivery_ids:
                pop(delivery_id, None)
        self.of_received.add(delivery_ids, state, settled=settled)

    def settle_sent(self, delivery_ids: Sequence[int], state: Outcome | None) -> None:
        """Settle deliveries that we sent, after the peer stated their outcome without settling."""
        pop = self._sent.pop
        for delivery_id in delivery_ids:
            pop(delivery_id, None)
        self.of_sent.add(delivery_ids, state, settled=True)

    def tell_sent(self, link: SenderLink, keys: Collection[int], state: Outcome) -> list[int]:
        """Send the state of deliveries that we sent and the peer has not settled; it still has to."""
        ids = [number for number, (owner, key) in self._sent.items() if owner is link and key in keys]
        self.of_sent.add(ids, state, settled=False)
        return ids

    def forget(self) -> None:
        self.of_received.clear()
        self.of_sent.clear()

    def flush(self) -> None:
        if self.of_received.waiting:
            self._output.extend(self.of_received.take())
        if self.of_sent.waiting:
            self._output.extend(self.of_sent.take())


def _known(unsettled: dict[int, Any], first: int, last: int) -> Iterable[int]:
    # Ascending, and never more than are in the map, whatever range the peer sends.
    span = diff(last, first)
    if span < 0:
        return ()
    if span < len(unsettled):
        if first <= last:
            return range(first, last + 1)
        return [(first + offset) & MASK for offset in range(span + 1)]
    inside = [number for number in unsettled if 0 <= diff(number, first) <= span]
    inside.sort(key=lambda number: (number - first) & MASK)
    return inside
