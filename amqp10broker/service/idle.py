"""Why a queue gives a consumer nothing that it could take: for both protocols.

The consumer has credit with the queue, the queue has answered, and nothing is on its way. Queue empty is said
only when it is; otherwise who or what has the messages.
"""

from __future__ import annotations

from amqp10broker.catalog.queue import DeclaredQueue, QueueType
from amqp10broker.catalog.vhost import VirtualHost
from amqp10broker.queues.commands import ConsumerRef
from amqp10broker.queues.effects import Reason
from amqp10broker.queues.outlook import Outlook, Part, Progress, Reading
from amqp10broker.routing.exchange import Destination
from amqp10broker.service.waits import NO_WAIT, Wait, Waiting, count, seconds


def why_idle(
    queue: DeclaredQueue, ref: ConsumerRef, now_ms: int, idle_ms: int, vhost: VirtualHost
) -> Waiting:
    """Why the queue gives the consumer nothing.

    Args:
        queue: only read.
        ref: under which the queue knows the consumer.
        now_ms: the present.
        idle_ms: since when the consumer could have had the next delivery.
        vhost: the queue's.
    """
    return _Idle(queue, ref, now_ms, idle_ms, vhost).find()


def idle_wait(queue: DeclaredQueue, ref: ConsumerRef) -> Wait | None:
    """The code alone, for those who ask often."""
    return _Idle(queue, ref, 0, 0, None).find().wait


class _Idle:
    def __init__(
        self,
        queue: DeclaredQueue,
        ref: ConsumerRef,
        now_ms: int,
        idle_ms: int,
        vhost: VirtualHost | None,
    ) -> None:
        self._queue = queue
        self._ref = ref
        self._now_ms = now_ms
        self._idle_ms = idle_ms
        self._vhost = vhost
        self._name = f"queue '{queue.name}'"
        self._outlook: Outlook = queue.handle.outlook()

    def find(self) -> Waiting:
        outlook = self._outlook
        own = outlook.parts.get(self._ref)
        if own is not None and own.silent:
            return self._say(
                Wait.TIMED_OUT,
                "a delivery was taken back after the consumer timeout, and the client has neither settled "
                "nor sent a flow since",
            )
        if outlook.single and outlook.active is not None and outlook.active is not self._ref:
            return self._not_active(outlook.parts.get(outlook.active), outlook.active)
        if own is not None and own.quiescing:
            return self._say(
                Wait.NOT_ACTIVE,
                f"a consumer of higher priority becomes the active one of {self._name} when this one has "
                f"settled what it holds: {self._held(own)}",
            )
        if self._queue.type == QueueType.STREAM:
            return self._of_stream(outlook.readings.get(self._ref))
        if outlook.ready:
            return NO_WAIT  # the queue will come to it
        return self._of_queue(outlook, own)

    def _say(self, wait: Wait, why: str, *since_ms: int | None) -> Waiting:
        since = max([self._idle_ms, *(each for each in since_ms if each is not None)])
        return Waiting(wait, why, self._now_ms - since)

    def _ago(self, since_ms: int) -> str:
        return seconds(self._now_ms - since_ms)

    # --- queues -----------------------------------------------------------------------------------

    def _not_active(self, active: Part | None, ref: ConsumerRef) -> Waiting:
        why = f"{self._name} has a single active consumer, and that is {ref}"
        if active is not None:
            if active.held:
                why += f", which holds {self._held(active)}"
            if not active.credit:
                why += "; it takes no more at present: see why it waits"
            elif not self._outlook.ready:
                why += "; it would take the next message, there is none ready"
        return self._say(Wait.NOT_ACTIVE, why)

    def _of_queue(self, outlook: Outlook, own: Part | None) -> Waiting:
        if outlook.unsynced:
            return self._unsynced(outlook, self._queue.handle.progress())
        ahead = outlook.ahead_of(self._ref) if outlook.arrived else None
        if ahead is not None and own is not None:
            return self._say(
                Wait.LOWER_PRIORITY,
                f"{ahead.ref} has priority {ahead.priority}, this one {own.priority}; it takes what comes to "
                f"{self._name} first, and could have {ahead.credit} more",
            )
        holders = outlook.holders()
        if holders:
            return self._unsettled(outlook, own, holders)
        if outlook.delayed:
            due_ms = outlook.delayed_until_ms or 0
            return self._say(
                Wait.MESSAGES_DELAYED,
                f"{count(outlook.delayed, 'message')} of {self._name} came back to be tried again later, "
                f"the first in {seconds(due_ms - self._now_ms)}",
            )
        counters = outlook.counters
        if not outlook.arrived and not counters.rejected and self._queue.type in set(QueueType):
            return self._say(
                Wait.QUEUE_EMPTY_NOTHING_ROUTED,
                f"nothing was ever put into {self._name}, as far as this broker remembers; {self._bound()}",
            )
        expired_ms, delivered_ms = outlook.expired_ms, outlook.delivered_ms
        expired = counters.lost[Reason.EXPIRED]
        if expired and expired_ms is not None and expired_ms >= (delivered_ms or 0):
            return self._say(
                Wait.QUEUE_EMPTY_EXPIRED,
                f"{self._name} is empty: {count(expired, 'message')} expired in it, the last "
                f"{self._ago(expired_ms)} ago",
                None,
            )
        return self._empty(outlook)

    def _bound(self) -> str:
        if self._vhost is None:
            return ""
        bindings = self._vhost.topology.bindings(destination=Destination("queue", self._queue.name))
        exchanges = sorted({each.source for each in bindings if each.source})
        if not exchanges:
            return "no exchange is bound to it, so publishers reach it by its name only"
        return f"it is bound to {' and '.join(map(repr, exchanges[:3]))}" + (
            f" and {len(exchanges) - 3} more" if len(exchanges) > 3 else ""
        )

    def _empty(self, outlook: Outlook) -> Waiting:
        why = f"{self._name} has no ready message"
        if outlook.dead:
            why += f"; its dead-letter exchange has not taken {count(outlook.dead, 'dead message')} yet"
        dropped, rejected = outlook.counters.lost[Reason.MAXLEN], outlook.counters.rejected
        if dropped or rejected:
            why += f"; its length limit has dropped {dropped} and rejected {rejected}"
        if outlook.delivered_ms is not None:
            why += f", the last one was handed out {self._ago(outlook.delivered_ms)} ago"
        return self._say(Wait.QUEUE_EMPTY, why)

    def _unsynced(self, outlook: Outlook, progress: Progress) -> Waiting:
        why = (
            f"{self._name} holds {count(outlook.unsynced, 'message')} back until the disk has them"
            f"{storage_text(progress, self._now_ms)}"
        )
        return self._say(Wait.MESSAGES_NOT_SYNCED, why, outlook.unsynced_ms)

    def _unsettled(self, outlook: Outlook, own: Part | None, holders: list[Part]) -> Waiting:
        total = sum(each.held for each in holders)
        mine = own.held if own is not None else 0
        others = [each for each in holders if each.ref is not self._ref]
        whole = f"all {total} messages of {self._name} are unsettled, "
        if total == 1:
            whole = f"the only message of {self._name} is unsettled, "
        if mine > total - mine:
            assert own is not None
            why = f"{whole}{mine} of them here" if others else f"{whole}here"
            why += self._since(own)
            if others:
                why += f", and {total - mine} at {others[0].ref}" + _and_others(others)
            return self._say(Wait.UNSETTLED_HERE, why, own.held_ms)
        most = others[0]
        why = (
            f"{whole}{most.held} of them at {most.ref}"
            if mine or len(others) > 1
            else f"{whole}at {most.ref}"
        )
        why += self._since(most) + _and_others(others)
        if mine:
            why += f", and {mine} here"
        return self._say(Wait.UNSETTLED_ELSEWHERE, why)

    def _held(self, part: Part) -> str:
        return f"{count(part.held, 'unsettled delivery')}{self._since(part)}"

    def _since(self, part: Part) -> str:
        text = f" for {self._ago(part.held_ms)}"
        if part.settled_ms is None:
            return f"{text} (it has never settled any)"
        return f"{text} (it settled last {self._ago(part.settled_ms)} ago)"

    # --- streams ----------------------------------------------------------------------------------

    def _of_stream(self, reading: Reading | None) -> Waiting:
        outlook = self._outlook
        if reading is None or outlook.next_offset is None:
            return NO_WAIT
        end = outlook.next_offset
        if reading.end is not None and reading.position >= reading.end:
            return self._say(
                Wait.FILTER_PASSED_NONE if not reading.passed else Wait.STREAM_END,
                f"its filter wants nothing from offset {reading.end} on, and it has read up to there",
            )
        if reading.position < end:
            return NO_WAIT
        if outlook.unsynced:
            return self._unsynced(outlook, self._queue.handle.progress())
        if not end:
            return self._say(
                Wait.QUEUE_EMPTY_NOTHING_ROUTED, f"nothing was ever put into stream '{self._queue.name}'"
            )
        if reading.filtered and reading.looked_at and not reading.passed:
            return self._say(
                Wait.FILTER_PASSED_NONE,
                f"its filter passed 0 of {count(reading.looked_at, 'message')}; it is at the end of stream "
                f"'{self._queue.name}' (offset {end})",
            )
        why = f"it is at the end of stream '{self._queue.name}': the next offset is {end}"
        if reading.filtered and reading.looked_at:
            why += f"; its filter passed {reading.passed} of {count(reading.looked_at, 'message')}"
        elif not reading.looked_at:
            why += ", and it began there: older messages are only given to who asks for an older offset"
        return self._say(Wait.STREAM_END, why)


def storage_text(progress: Progress, now_ms: int) -> str:
    """What keeps a queue from getting on, as the end of a sentence."""
    if progress.recovering:
        return ": the journal is being read after the start"
    if progress.full_ms is not None:
        return f": the disk has been full for {seconds(now_ms - progress.full_ms)}"
    if progress.sync_ms is not None:
        return f": a sync has been running for {seconds(now_ms - progress.sync_ms)}"
    return ""


def _and_others(holders: list[Part]) -> str:
    if len(holders) < 2:
        return ""
    return f" and {count(len(holders) - 1, 'other consumer')}"
