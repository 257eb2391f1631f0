"""The consumers of a quorum queue: subscriptions, credit, rotation, settlement and time-outs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from amqp10broker.message.message import Message
from amqp10broker.protocols.serial import MASK, limit_left
from amqp10broker.queues.commands import (
    ActiveChanged,
    Cancel,
    ConsumerRef,
    Credit,
    CreditReply,
    Deliver,
    DeliveryOutcome,
    GiveBack,
    PeerId,
    Settle,
    Subscribe,
    Subscribed,
    TimedOut,
    Unsubscribe,
)
from amqp10broker.queues.machine import Outbox, RoundRobin, next_takers, turn_of, turn_within
from amqp10broker.queues.quorum.commands import Selected, encoded
from amqp10broker.queues.quorum.consumer import Activity, ConsumerRotation, QuorumConsumer
from amqp10broker.queues.quorum.messages import Messages
from amqp10broker.queues.quorum.node_links import ConsumerFacts, NodeLinks
from amqp10broker.queues.quorum.ordered_entries import SIZE_BITS, delivered_at, size_of
from amqp10broker.queues.quorum.ready import Place
from amqp10broker.queues.quorum.selecting import Selecting


class QuorumConsumers:
    """All consumers of one queue.

    Attributes:
        timeout_at, give_up_at: lower bounds of the times, in ms, at which a delivery has been held, or a node
            has been unreachable, for too long.
        unused_since: when the last consumer left or the last message was fetched.
        suspects: unreachable nodes, by number and incarnation -> since when; None: for so long that the
            deliveries of their consumers were returned.
    """

    def __init__(self, name: str, messages: Messages, outbox: Outbox, links: NodeLinks, now_ms: int) -> None:
        self._name = name
        self._messages = messages
        self._outbox = outbox
        self._links = links
        self.by_ref: dict[ConsumerRef, QuorumConsumer] = {}
        self.count = 0
        self.made = 0
        self.turns = ConsumerRotation()
        self.activity = Activity(self.by_ref)
        self.selecting = Selecting(messages)
        self.timeout_at: int | None = None
        self.unused_since = now_ms
        self.delivered_ms: int | None = None
        self.suspects: dict[tuple[int, int], int | None] = {}
        self.give_up_at: int | None = None

    def restore(self, turns: list[QuorumConsumer], holder: QuorumConsumer | None) -> None:
        for consumer in self.by_ref.values():
            self._suspend(consumer)
        self._find_give_up()
        self.count = sum(1 for each in self.by_ref.values() if each.counted and not each.cancelled)
        for consumer in turns:
            self.turns.add(consumer)
        self.activity = Activity(self.by_ref)
        self.activity.holder = holder
        for ref, consumer in self.by_ref.items():
            if consumer.selection is not None:
                self.selecting.by_ref[ref] = consumer
                self._update_turn(consumer)
        self._find_timeout()

    def delete(self) -> None:
        self._outbox.end(self.by_ref.values(), self._name)
        self._clear()

    def suspect(self, node: int, incarnation: int) -> None:
        key = node, incarnation
        if key in self.suspects:
            return
        self.suspects[key] = self._messages.now_ms
        for consumer in self.by_ref.values():
            self._suspend(consumer)
            self._update_turn(consumer)
        self.give_up()

    def back(self, node: int, incarnation: int) -> None:
        key = node, incarnation
        if key not in self.suspects:
            return
        del self.suspects[key]
        for consumer in self.by_ref.values():
            if consumer.suspended and consumer.ref.reply_to[:2] == key:
                consumer.suspended = consumer.given_up = False
                self._rank(consumer)
        self.choose_active()
        for consumer in self.by_ref.values():
            self._update_turn(consumer)
        self._find_give_up()
        self.serve()

    def give_up(self) -> None:
        """Return the deliveries of nodes that were unreachable for too long. They do not count as failed,
        because the nodes may only be cut off. Those that were sent settled stay.
        """
        limit = self._messages.settings.consumer_disconnected_timeout_ms
        now = self._messages.now_ms
        late = [key for key, since in self.suspects.items() if since is not None and since + limit <= now]
        if late:
            self.suspects |= dict.fromkeys(late)
            held: list[tuple[int, int]] = []
            for consumer in list(self.by_ref.values()):
                if consumer.ref.reply_to[:2] not in late:
                    continue
                consumer.given_up = True
                if not consumer.settled:
                    held += consumer.unsettled.items()
                    consumer.unsettled.clear()
                    if consumer.cancelled:
                        self._forget(consumer.ref)
            self._messages.decide(sorted(held), DeliveryOutcome.REQUEUE)
            self._find_timeout()
            self.choose_active()
            self.serve()
        self._find_give_up()

    def _suspend(self, consumer: QuorumConsumer) -> None:
        key = consumer.ref.reply_to[:2]
        consumer.suspended = key in self.suspects
        consumer.given_up = consumer.suspended and self.suspects[key] is None

    def _find_give_up(self) -> None:
        limit = self._messages.settings.consumer_disconnected_timeout_ms
        self.give_up_at = min(
            (since + limit for since in self.suspects.values() if since is not None), default=None
        )

    def forget_suspects(self, node: int, incarnation: int) -> None:
        for key in [each for each in self.suspects if each[0] == node and each[1] <= incarnation]:
            del self.suspects[key]
        self._find_give_up()

    def lose(self, is_gone: Callable[[PeerId], bool]) -> None:
        """Remove the consumers of lost sessions and return their deliveries. The lease of an unused queue
        begins again: while the node was unreachable, none of its clients could use the queue.
        """
        lost = [each for each in self.by_ref.values() if is_gone(each.ref.reply_to)]
        held = sorted(item for each in lost if not each.settled for item in each.unsettled.items())
        # Deliveries sent settled may have arrived, and must not be delivered twice.
        self._messages.gone([key for each in lost if each.settled for key in each.unsettled])
        for consumer in lost:
            self._forget(consumer.ref)
            self.turns.remove(consumer)
            self._outbox.withdraw(consumer)
            if consumer.counted and not consumer.cancelled:
                self.count -= 1
        self._messages.decide(held, DeliveryOutcome.REQUEUE_FAILED)
        self.unused_since = self._messages.now_ms
        self._find_timeout()
        self.choose_active()
        self.serve()

    def _forget(self, ref: ConsumerRef) -> None:
        del self.by_ref[ref]
        if self.selecting:
            self.selecting.forget(ref)

    def _clear(self) -> None:
        self.by_ref.clear()
        self.selecting.clear()
        self.count = 0
        self.turns.clear()
        self.activity = Activity(self.by_ref)
        self.timeout_at = None

    def single_active_changed(self) -> None:
        self.activity = Activity(self.by_ref)
        for consumer in self.by_ref.values():
            consumer.active = False
            self._update_turn(consumer)
        self.choose_active()

    def subscribe(self, command: Subscribe) -> None:
        ref = command.consumer
        consumer = QuorumConsumer(
            ref,
            self.made,
            settled=command.settled,
            counted=command.counted,
            priority=command.priority,
            timeout_ms=command.timeout_ms,
            name=command.name,
        )
        self.made += 1
        self.by_ref[ref] = consumer
        wanted = encoded(command.filters)
        if wanted is not None:
            self.selecting.add(consumer, wanted)
        if self.suspects:
            self._suspend(consumer)
        if command.answer:
            self._outbox.tell(ref.reply_to, Subscribed(ref))
        if not command.counted:
            self.unused_since = self._messages.now_ms
            return
        self.count += 1
        if self._messages.settings.single_active_consumer:
            self.activity.rank(consumer)
            self.choose_active()
            if not consumer.active:
                self._outbox.tell(ref.reply_to, ActiveChanged(ref, active=False))
            self.serve()

    def cancel(self, command: Cancel) -> None:
        consumer = self.by_ref.get(command.consumer)
        if consumer is None or consumer.cancelled:
            return
        consumer.cancelled = True
        consumer.credit = 0
        if consumer.settled or not consumer.unsettled:
            self._forget(command.consumer)
            self._messages.gone(list(consumer.unsettled))
        self._end_of(consumer)

    def unsubscribe(self, command: Unsubscribe) -> None:
        consumer = self.by_ref.get(command.consumer)
        if consumer is None:
            return
        self._take_back(consumer, command.unsent, command.unsent_messages, command.seen)
        self._forget(command.consumer)
        if consumer.settled:
            self._messages.gone(list(consumer.unsettled))
        else:
            self._messages.decide(list(consumer.unsettled.items()), command.delivery_outcome)
        if not consumer.cancelled:
            self._end_of(consumer)
        self.serve()

    def credit(self, command: Credit) -> None:
        consumer = self.by_ref.get(command.consumer)
        if consumer is None or consumer.cancelled:
            return
        selection = consumer.selection
        if selection is not None and selection.ends is not None:
            self._drained(consumer)
        if consumer.settled:
            on_its_way = consumer.handed_out - command.seen
            arrived = list(consumer.unsettled)[: len(consumer.unsettled) - on_its_way]
            for key in arrived:
                del consumer.unsettled[key]
            self._messages.gone(arrived)
        if not consumer.counted:
            self.unused_since = self._messages.now_ms
        credit = limit_left(command.delivery_count, command.credit, consumer.delivery_count)
        consumer.turn = turn_within(credit)
        consumer.credit = credit
        consumer.room = command.room
        self._rank(consumer)
        self._heard_of(consumer)
        self._update_turn(consumer)
        self.serve()
        if not command.drain:
            self._reply(consumer, drain=False)
        elif selection is not None and (consumer.suspended or consumer.ref in self.selecting.able):
            # The present ends of the queue: messages that come during the search do not count for the drain.
            selection.ends = self.selecting.ends()
            self._look_for_end(consumer)
        else:
            if self.selecting.able and consumer.queued:
                # A drain gets the messages that wait now, even those that other consumers have yet to look
                # at.
                self._hand_out(consumer, min(consumer.credit, self._messages.ready.length), None)
            self._drained(consumer)

    def _drained(self, consumer: QuorumConsumer) -> None:
        if consumer.credit:
            consumer.delivery_count = (consumer.delivery_count + consumer.credit) & MASK
            consumer.credit = 0
            self._rank(consumer)
        self.turns.remove(consumer)
        selection = consumer.selection
        if selection is None:
            self._reply(consumer, drain=True)
            return
        selection.ends = None
        self.selecting.able.pop(consumer.ref, None)
        # The answer comes later than the request, so the number of the applied command does not imply it.
        self._links.keep(consumer.ref.reply_to, self._reply(consumer, drain=True))

    def _look_for_end(self, consumer: QuorumConsumer) -> None:
        selection = consumer.selection
        if selection is not None and selection.ends is not None and self.selecting.passed(consumer):
            self._drained(consumer)

    def _reply(self, consumer: QuorumConsumer, *, drain: bool) -> CreditReply:
        return self._outbox.reply(consumer, self._available(consumer), drain=drain)

    def _available(self, consumer: QuorumConsumer) -> int:
        single = self._messages.settings.single_active_consumer
        if single and consumer.counted and self.activity.holder is not consumer:
            return 0
        sees = consumer.selection is None or self.selecting.has_more(consumer)
        return self._messages.ready.length if sees else 0

    def selected(self, command: Selected) -> None:
        selecting = self.selecting
        left: list[Place] = []
        for look in command.looks:
            consumer = selecting.by_ref.get(look.consumer)
            able = look.consumer in selecting.able and consumer is not None
            count, room = (consumer.credit, consumer.room) if consumer is not None and able else (0, 0)
            indexes, sizes, more = self._messages.select(look.taken, count, room)
            left += more
            if consumer is None:
                continue
            if indexes:
                assert consumer.selection is not None
                consumer.selection.passed += len(indexes)
                self._have(consumer, indexes, sizes, self._read(indexes))
            selecting.advance(consumer, look.at)
            self._update_turn(consumer)
        selecting.stand_again(left)
        for look in command.looks:
            if look.consumer in selecting.able:
                self._look_for_end(selecting.by_ref[look.consumer])
        if selecting.again.places:
            selecting.forget_passed()
        self.serve()

    def settle(self, command: Settle) -> None:
        consumer = self.by_ref.get(command.consumer)
        if consumer is None:
            return
        consumer.settled_ms = self._messages.now_ms
        pop = consumer.unsettled.pop
        delivery_outcome = command.delivery_outcome
        if delivery_outcome is DeliveryOutcome.ACCEPT:
            self._messages.gone([key for key in command.keys if pop(key, None) is not None])
        else:
            held = [(key, value) for key in command.keys if (value := pop(key, None)) is not None]
            self._messages.decide(held, delivery_outcome, command.annotations)
        self._heard_of(consumer)
        if consumer.cancelled and not consumer.unsettled:
            self._forget(command.consumer)
        self.serve()

    def give_back(self, command: GiveBack) -> None:
        consumer = self.by_ref.get(command.consumer)
        if consumer is None:
            return
        self._take_back(consumer, command.keys, command.messages, command.seen)
        if consumer.selection is not None and consumer.selection.ends is not None:
            self._drained(consumer)
        consumer.delivery_count = command.delivery_count
        consumer.epoch = command.epoch
        consumer.credit = 0
        self._rank(consumer)
        self._update_turn(consumer)
        self._heard_of(consumer)
        self.serve()

    def _take_back(
        self, consumer: QuorumConsumer, keys: Sequence[int], messages: Sequence[Message], seen: int
    ) -> None:
        self._outbox.withdraw(consumer)
        unsettled = consumer.unsettled
        on_its_way = max(0, consumer.handed_out - seen)
        back = list(unsettled)[-on_its_way:] if on_its_way else []
        consumer.handed_out -= on_its_way
        back += [key for key in keys if key in unsettled]
        if consumer.settled:
            # The queue has no trimmed messages any more: the session's copy is the only one.
            for key, message in zip(keys, messages, strict=True):
                if key not in unsettled:
                    place = self._messages.put_back_unknown(key, message)
                    if self.selecting:
                        self.selecting.stand_again([place])
        if back:
            back = list(dict.fromkeys(back))
            places = self._messages.ready.places_of(back) if self.selecting else []
            self._messages.ready.put_back(back, [size_of(unsettled.pop(key)) for key in back])
            if places:
                self.selecting.stand_again(places)

    def _end_of(self, consumer: QuorumConsumer) -> None:
        self.turns.remove(consumer)
        self.selecting.able.pop(consumer.ref, None)
        if consumer.counted:
            self.count -= 1
            self.unused_since = self._messages.now_ms
            self.choose_active()
            self.serve()

    def serve(self) -> None:
        if self.selecting.able:
            self._serve_in_turns()
            return
        turns, ready = self.turns, self._messages.ready
        while turns and (left := ready.length):
            group = turns.first()
            takers, count, room = next_takers(group, left)
            indexes, sizes = self._take(count, room, None)
            if not indexes:
                continue
            messages = self._read(indexes)
            step = len(takers)
            for place, taker in enumerate(takers[: len(indexes)]):
                part = slice(place, None, step)
                self._have(taker, indexes[part], sizes[part], messages[part])
            group.turn_by(takers, len(indexes))
            for taker in takers:
                if not taker.credit:
                    turns.remove(taker)

    def _serve_in_turns(self) -> None:
        turns, ready = self.turns, self._messages.ready
        group: RoundRobin[QuorumConsumer] | None = None
        bounds: Sequence[int] | None = None
        waiting = 0  # consumers still to be served in this round
        while turns and (left := ready.length):
            if group is not turns.first():
                group = turns.first()
                waiting = len(group)
                if self.selecting.able:
                    bounds = self.selecting.bounds(next(iter(group)).priority)
            if bounds is not None and not ready.has_before(bounds):
                return  # other consumers have yet to look at the rest
            consumer = next(iter(group))
            count = turn_of(consumer, group, left, waiting)
            self._hand_out(consumer, count, bounds)
            if consumer.credit:
                group.move_to_end(consumer)
            else:
                turns.remove(consumer)
            waiting = waiting - 1 or len(group)

    def _hand_out(self, consumer: QuorumConsumer, count: int, bounds: Sequence[int] | None) -> None:
        indexes, sizes = self._take(count, consumer.room, bounds)
        if indexes:
            self._have(consumer, indexes, sizes, self._read(indexes))

    def _take(self, count: int, room: int, bounds: Sequence[int] | None) -> tuple[list[int], list[int]]:
        ready = self._messages.ready
        indexes: list[int] = []
        sizes: list[int] = []
        while len(indexes) < count and room > 0 and ready.length:
            if bounds is None:
                more, more_sizes = ready.take(count - len(indexes), self._messages.expired_at, room)
            elif ready.has_before(bounds):
                more, more_sizes = ready.take_before(bounds, self._messages.expired_at, room)
            else:
                break
            room -= sum(more_sizes)
            if not more:
                self._messages.expire()
            elif indexes:
                indexes += more
                sizes += more_sizes
            else:
                indexes, sizes = more, more_sizes
        return indexes, sizes

    def _read(self, indexes: Sequence[int]) -> list[Message]:
        return [] if self._messages.replaying else self._messages.read(indexes)

    def _have(
        self, consumer: QuorumConsumer, indexes: list[int], sizes: list[int], messages: list[Message]
    ) -> None:
        count = len(indexes)
        consumer.room -= sum(sizes)
        consumer.credit = consumer.credit - count if consumer.room > 0 else 0
        consumer.handed_out += count
        consumer.delivery_count = (consumer.delivery_count + count) & MASK
        self.delivered_ms = self._messages.now_ms
        stamp = self._messages.now_ms << SIZE_BITS
        consumer.unsettled.update(zip(indexes, [stamp | size for size in sizes], strict=True))
        limit = self._timeout_of(consumer)
        if limit is not None:
            timeout_at = self._messages.now_ms + limit
            if self.timeout_at is None or timeout_at < self.timeout_at:
                self.timeout_at = timeout_at
        if self._messages.replaying:
            return
        self._outbox.deliver(consumer, indexes, messages, again=bool(self._messages.counts))

    def _update_turn(self, consumer: QuorumConsumer) -> None:
        able = consumer.credit and not (consumer.silent or consumer.suspended or consumer.cancelled)
        if able and (consumer.active or not self._messages.settings.single_active_consumer):
            if consumer.selection is None:
                self.turns.add(consumer)
            elif consumer.ref in self.by_ref:
                self.selecting.able.setdefault(consumer.ref, consumer)
            return
        self.turns.remove(consumer)
        if consumer.selection is not None:
            self.selecting.able.pop(consumer.ref, None)
            if consumer.selection.ends is not None and not consumer.suspended:
                self._drained(consumer)

    def _heard_of(self, consumer: QuorumConsumer) -> None:
        # Any command of the session shows that its client is alive. This one may have settled its last
        # delivery.
        if consumer.silent:
            consumer.silent = False
            self._rank(consumer)
            self.choose_active()
            self._update_turn(consumer)
        elif self.activity.holder is consumer and not consumer.active and not consumer.busy:
            self.choose_active()

    def _rank(self, consumer: QuorumConsumer) -> None:
        if self._messages.settings.single_active_consumer:
            self.activity.rank(consumer)

    def choose_active(self) -> None:
        if not self._messages.settings.single_active_consumer:
            return
        activity = self.activity
        activity.choose()
        for consumer in activity.take_changed():
            self._update_turn(consumer)
            if consumer.ref in self.by_ref and not consumer.cancelled:
                # Deliveries from its active time must be reported before the change.
                self._outbox.flush(consumer)
                self._outbox.tell(consumer.ref.reply_to, ActiveChanged(consumer.ref, consumer.active))

    def beyond(self, ref: ConsumerRef, seen: int) -> tuple[Deliver | None, int]:
        """Return the deliveries that a consumer's node has not seen, and how many were taken back since.
        These are the oldest, because deliveries that the node has seen are removed first.
        """
        consumer = self.by_ref[ref]
        count = max(0, consumer.handed_out - seen)
        keys = list(consumer.unsettled)[-count:] if count else []
        if not keys:
            return None, count
        counts = self._messages.counts
        again = any(key in counts for key in keys)
        deliver = Deliver(ref, keys, self._messages.read(keys), consumer.epoch, consumer.room <= 0, again)
        return deliver, count - len(keys)

    def facts(self, ref: ConsumerRef, missed: int) -> ConsumerFacts:
        consumer = self.by_ref[ref]
        single = self._messages.settings.single_active_consumer
        tells = single and consumer.counted and not consumer.cancelled
        return ConsumerFacts(
            consumer.delivery_count,
            consumer.credit,
            self._available(consumer),
            consumer.epoch,
            consumer.active if tells else None,
            missed,
        )

    def time_out(self) -> None:
        now = self._messages.now_ms
        for consumer in list(self.by_ref.values()):
            limit = self._timeout_of(consumer)
            if limit is None:
                continue
            overdue: list[tuple[int, int]] = []
            for key, value in consumer.unsettled.items():
                if delivered_at(value) + limit > now:
                    break
                overdue.append((key, value))
            if overdue:
                self._take_from(consumer, overdue)
        self._find_timeout()

    def _find_timeout(self) -> None:
        times = [
            delivered_at(next(iter(consumer.unsettled.values()))) + limit
            for consumer in self.by_ref.values()
            if consumer.unsettled and (limit := self._timeout_of(consumer)) is not None
        ]
        self.timeout_at = min(times, default=None)

    def _take_from(self, consumer: QuorumConsumer, overdue: list[tuple[int, int]]) -> None:
        keys = [key for key, _ in overdue]
        for key in keys:
            del consumer.unsettled[key]
        self._outbox.flush(consumer)
        timed_out = TimedOut(consumer.ref, keys, self._name)
        self._outbox.tell(consumer.ref.reply_to, timed_out)
        self._links.keep(consumer.ref.reply_to, timed_out)
        self._messages.decide(overdue, DeliveryOutcome.REQUEUE)
        consumer.silent = True
        if consumer.cancelled and not consumer.unsettled:
            self._forget(consumer.ref)
        self._update_turn(consumer)
        self.choose_active()

    def _timeout_of(self, consumer: QuorumConsumer) -> int | None:
        # A time-out of 0 means none; settled deliveries are not held.
        timeout_ms = consumer.timeout_ms
        if timeout_ms is None:
            timeout_ms = self._messages.settings.consumer_timeout_ms
        return timeout_ms if timeout_ms and not consumer.settled else None
