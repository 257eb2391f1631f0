"""The reasons why a queue delivers nothing to a consumer that could take it, for both protocols.

The consumer has credit with the queue, the queue has answered, and no delivery is on its way.
"""

from __future__ import annotations

from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.queues.commands import ConsumerRef, DeadLetterReason
from amqp10broker.queues.queue_status import ConsumerStatus, QueueProgress, QueueStatus, StreamReading
from amqp10broker.routing.exchange import Destination
from amqp10broker.sessions.diagnosis.wait_reasons import NO_WAIT, Wait, Waiting, count, seconds


def idle_wait(queue: DeclaredQueue, ref: ConsumerRef) -> Wait | None:
    """Return only the code of the wait, which is cheaper than `why_idle`."""
    if queue.handle.progress().unled_ms is not None:
        return Wait.NO_LEADER
    queue_status = queue.handle.queue_status()
    own = queue_status.parts.get(ref)
    if own is not None and own.away:
        return Wait.NO_LEADER
    if own is not None and own.silent:
        return Wait.TIMED_OUT
    browses = own is not None and own.browses
    if queue_status.single and queue_status.active is not None and queue_status.active != ref and not browses:
        return Wait.NOT_ACTIVE
    if own is not None and own.quiescing:
        return Wait.NOT_ACTIVE
    if queue.kind.replays:
        return _stream_wait(queue_status, queue_status.readings.get(ref))
    if queue_status.ready:
        # Otherwise the queue will reach the consumer by itself.
        rests = own is not None and own.looking is not None and own.looking.rests
        return Wait.NO_MESSAGE_MATCHES if rests else None
    return _queue_wait(queue_status, ref, own, volatile=queue.kind.volatile)


def _queue_wait(
    queue_status: QueueStatus, ref: ConsumerRef, own: ConsumerStatus | None, *, volatile: bool
) -> Wait:
    if queue_status.unsynced:
        return Wait.MESSAGES_NOT_SYNCED
    if queue_status.arrived and queue_status.ahead_of(ref) is not None:
        return Wait.LOWER_PRIORITY
    held = sum(each.held for each in queue_status.parts.values())
    if held:
        mine = 0 if own is None else own.held
        return Wait.UNSETTLED_HERE if mine > held - mine else Wait.UNSETTLED_ELSEWHERE
    if queue_status.delayed:
        return Wait.MESSAGES_DELAYED
    counters = queue_status.counters
    if not (queue_status.arrived or counters.rejected or volatile):
        return Wait.QUEUE_EMPTY_NOTHING_ROUTED
    expired_ms = queue_status.expired_ms
    if expired_ms is not None and expired_ms >= (queue_status.delivered_ms or 0):
        return Wait.QUEUE_EMPTY_EXPIRED
    return Wait.QUEUE_EMPTY


def _stream_wait(queue_status: QueueStatus, reading: StreamReading | None) -> Wait | None:
    end = queue_status.next_offset
    if reading is None or end is None:
        return None
    if reading.end is not None and reading.position >= reading.end:
        return Wait.STREAM_END if reading.passed else Wait.FILTER_PASSED_NONE
    if reading.position < end:
        return None
    if queue_status.unsynced:
        return Wait.MESSAGES_NOT_SYNCED
    if not end:
        return Wait.QUEUE_EMPTY_NOTHING_ROUTED
    if reading.filtered and reading.looked_at and not reading.passed:
        return Wait.FILTER_PASSED_NONE
    return Wait.STREAM_END


def why_idle(
    queue: DeclaredQueue, ref: ConsumerRef, now_ms: int, idle_ms: int, vhost: VirtualHost
) -> Waiting:
    """Return why the queue delivers nothing to the consumer. `idle_ms`: how long it could have."""
    wait = idle_wait(queue, ref)
    if wait is None:
        return NO_WAIT
    since_ms = idle_ms
    queue_status = queue.handle.queue_status()
    if wait is Wait.MESSAGES_NOT_SYNCED and queue_status.unsynced_ms is not None:
        since_ms = max(since_ms, queue_status.unsynced_ms)
    elif wait is Wait.NO_LEADER:
        since_ms = queue.handle.progress().unled_ms or since_ms
    elif wait is Wait.UNSETTLED_HERE:
        since_ms = max(since_ms, queue_status.parts[ref].held_ms)
    return Waiting(wait, _Sentence(queue, ref, now_ms, vhost).of(wait), now_ms - since_ms)


class _Sentence:
    def __init__(self, queue: DeclaredQueue, ref: ConsumerRef, now_ms: int, vhost: VirtualHost) -> None:
        self._queue = queue
        self._ref = ref
        self._now_ms = now_ms
        self._vhost = vhost
        self._name = f"{queue.kind.noun} '{queue.name}'"
        self._queue_status = queue.handle.queue_status()
        self._own = self._queue_status.parts.get(ref)

    def of(self, wait: Wait) -> str:
        queue_status = self._queue_status
        match wait:
            case Wait.TIMED_OUT:
                return (
                    "a delivery was taken back after the consumer timeout, and the client has neither "
                    "settled nor sent a flow since"
                )
            case Wait.NO_LEADER if self._own is not None and self._own.away:
                return (
                    f"the leader of {self._name} has not heard this node, and gives its consumers nothing "
                    "until it does"
                )
            case Wait.NO_LEADER:
                return (
                    f"no member of {self._name} leads it as far as this node knows, or its node cannot be "
                    f"reached{storage_text(self._queue.handle.progress(), self._now_ms)}"
                )
            case Wait.NOT_ACTIVE:
                return self._not_active()
            case Wait.MESSAGES_NOT_SYNCED:
                return (
                    f"{self._name} holds {count(queue_status.unsynced, 'message')} back until the disk has "
                    f"them{storage_text(self._queue.handle.progress(), self._now_ms)}"
                )
            case Wait.LOWER_PRIORITY:
                return self._lower_priority()
            case Wait.UNSETTLED_HERE | Wait.UNSETTLED_ELSEWHERE:
                return self._unsettled(here=wait is Wait.UNSETTLED_HERE)
            case Wait.MESSAGES_DELAYED:
                due_ms = queue_status.delayed_until_ms or 0
                return (
                    f"{count(queue_status.delayed, 'message')} of {self._name} {self._later}, "
                    f"the first in {seconds(due_ms - self._now_ms)}"
                )
            case Wait.QUEUE_EMPTY_NOTHING_ROUTED:
                return (
                    f"nothing was ever put into {self._name}, as far as this broker remembers; "
                    f"{self._bound()}"
                )
            case Wait.QUEUE_EMPTY_EXPIRED:
                expired = queue_status.counters.lost[DeadLetterReason.EXPIRED]
                return (
                    f"{self._name} is empty: {count(expired, 'message')} expired in it, the last "
                    f"{self._for(queue_status.expired_ms or 0)} ago"
                )
            case Wait.NO_MESSAGE_MATCHES:
                return self._none_matches()
            case Wait.STREAM_END | Wait.FILTER_PASSED_NONE:
                return self._at_end(queue_status.readings[self._ref])
            case _:
                return self._empty()

    def _for(self, since_ms: int) -> str:
        return seconds(self._now_ms - since_ms)

    def _not_active(self) -> str:
        queue_status, own = self._queue_status, self._own
        if own is not None and own.quiescing:
            return (
                f"a consumer of higher priority becomes the active one of {self._name} when this one has "
                f"settled what it holds: {self._held(own)}"
            )
        assert queue_status.active is not None
        active = queue_status.parts[queue_status.active]
        why = f"{self._name} has a single active consumer, and that is {active.name}"
        if active.held:
            why += f", which holds {self._held(active)}"
        if not active.credit:
            why += "; it takes no more at present: see why it waits"
        elif not queue_status.ready:
            why += "; it would take the next message, there is none ready"
        return why

    def _lower_priority(self) -> str:
        ahead = self._queue_status.ahead_of(self._ref)
        assert ahead is not None
        assert self._own is not None
        return (
            f"{ahead.name} has priority {ahead.priority}, this one {self._own.priority}; it takes what comes "
            f"to {self._name} first, and could have {ahead.credit} more"
        )

    def _unsettled(self, *, here: bool) -> str:
        holders = self._queue_status.holders
        total = sum(each.held for each in holders)
        mine = 0 if self._own is None else self._own.held
        others = [each for each in holders if each.ref != self._ref]
        whole = f"all {total} messages of {self._name} are unsettled, "
        if total == 1:
            whole = f"the only message of {self._name} is unsettled, "
        if others_wait := self._not_ready():
            are = "is" if total == 1 else "are"
            whole = f"{self._name} has no ready message{others_wait}, and {total} {are} unsettled, "
        if here:
            assert self._own is not None
            why = f"{whole}{mine} of them here" if others else f"{whole}here"
            why += self._since(self._own)
            if others:
                why += f", and {total - mine} at {others[0].name}{_and_others(others)}"
            return why
        most = others[0]
        where = f"{most.held} of them at {most.name}" if mine or len(others) > 1 else f"at {most.name}"
        why = f"{whole}{where}{self._since(most)}{_and_others(others)}"
        return f"{why}, and {mine} here" if mine else why

    @property
    def _later(self) -> str:
        # A quorum queue also delays returned messages, not only delayed ones.
        returns = self._queue_status.delayed_returns == self._queue_status.delayed
        return "came back to be tried again later" if returns else "may not be delivered before their time"

    def _not_ready(self) -> str:
        # Report messages that the queue delivers later, or never.
        queue_status, text = self._queue_status, ""
        if queue_status.delayed:
            due_ms = (queue_status.delayed_until_ms or 0) - self._now_ms
            text = f": {queue_status.delayed} {self._later}, the first in {seconds(due_ms)}"
        if queue_status.dead:
            text += f"; its dead-letter exchange has not taken {count(queue_status.dead, 'dead message')} yet"
        return text

    def _held(self, part: ConsumerStatus) -> str:
        return f"{count(part.held, 'unsettled delivery')}{self._since(part)}"

    def _since(self, part: ConsumerStatus) -> str:
        text = f" for {self._for(part.held_ms)}"
        if part.settled_ms is None:
            return f"{text} (it has never settled any)"
        return f"{text} (it settled last {self._for(part.settled_ms)} ago)"

    def _bound(self) -> str:
        bindings = self._vhost.topology.bindings(destination=Destination("queue", self._queue.name))
        exchanges = sorted({each.source for each in bindings if each.source})
        if not exchanges:
            return "no exchange is bound to it, so publishers reach it by its name only"
        more = f" and {len(exchanges) - 3} more" if len(exchanges) > 3 else ""
        return f"it is bound to {' and '.join(map(repr, exchanges[:3]))}{more}"

    def _empty(self) -> str:
        queue_status = self._queue_status
        why = f"{self._name} has no ready message"
        if queue_status.dead:
            why += f"; its dead-letter exchange has not taken {count(queue_status.dead, 'dead message')} yet"
        counters = queue_status.counters
        dropped, rejected = counters.lost[DeadLetterReason.MAXLEN], counters.rejected
        if dropped or rejected:
            why += f"; its length limit has dropped {dropped} and rejected {rejected}"
        if queue_status.delivered_ms is not None:
            why += f", the last one was handed out {self._for(queue_status.delivered_ms)} ago"
        return why

    def _none_matches(self) -> str:
        queue_status, own = self._queue_status, self._own
        assert own is not None
        assert own.looking is not None
        ready = f"{count(queue_status.ready, 'message')} ready in {self._name}"
        looking = own.looking
        done = "was shown" if own.browses else "got"
        if looking.selects:
            looked_at = count(looking.looked_at, "message")
            return f"no message matches: {ready}; it looked at {looked_at}, and {done} {looking.passed}"
        return f"it browses, and has been shown all there is: {ready}; it {done} {looking.passed}"

    def _at_end(self, reading: StreamReading) -> str:
        if reading.end is not None and reading.position >= reading.end:
            return f"its filter wants nothing from offset {reading.end} on, and it has read up to there"
        end = self._queue_status.next_offset
        looked_at = count(reading.looked_at, "message")
        if reading.filtered and reading.looked_at and not reading.passed:
            return f"its filter passed 0 of {looked_at}; it is at the end of {self._name} (offset {end})"
        why = f"it is at the end of {self._name}: the next offset is {end}"
        if reading.filtered and reading.looked_at:
            why += f"; its filter passed {reading.passed} of {looked_at}"
        elif not reading.looked_at:
            why += ", and it began there: older messages are only given to who asks for an older offset"
        return why


def storage_text(progress: QueueProgress, now_ms: int) -> str:
    """Return why a queue's storage makes no progress, as the end of a sentence."""
    if progress.unled_ms is not None:
        return f": the queue has had no leader here for {seconds(now_ms - progress.unled_ms)}"
    if progress.recovering:
        return ": the journal is being read after the start"
    if progress.full_ms is not None:
        return f": the disk has been full for {seconds(now_ms - progress.full_ms)}"
    if progress.sync_ms is not None:
        return f": a sync has been running for {seconds(now_ms - progress.sync_ms)}"
    return ""


def because(progress: QueueProgress, now_ms: int) -> str:
    text = storage_text(progress, now_ms)
    return f", because{text[1:]}" if text else ""


def _and_others(holders: list[ConsumerStatus]) -> str:
    if len(holders) < 2:
        return ""
    return f" and {count(len(holders) - 1, 'other consumer')}"
