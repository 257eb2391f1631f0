"""The reason why a channel, or one of its consumers, waits, with the evidence: the nearest cause first."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from amqp10broker.operations.snapshot import ChannelView, ConsumerView
from amqp10broker.sessions.amqp091.channel import BrokerChannel
from amqp10broker.sessions.amqp091.consuming import ChannelConsumer
from amqp10broker.sessions.diagnosis.idle import because, idle_wait, storage_text, why_idle
from amqp10broker.sessions.diagnosis.wait_reasons import NO_WAIT, Wait, WaitContext, Waiting, count, seconds

# Waits that an acknowledgement ends. It may have been sent and not be handled yet.
_ENDED_BY_THE_CLIENT: Final = frozenset({Wait.PREFETCH_FULL, Wait.CHANNEL_PREFETCH_FULL, Wait.UNSETTLED_HERE})

QUEUES_SHOWN: Final = 3
"""The most queues that are named in one sentence. If there are more, only their number is given."""


# --- channels -------------------------------------------------------------------------------------


def channel_wait(channel: BrokerChannel, around: WaitContext) -> Wait | None:
    if around.blocked_ms is not None:
        return Wait.BLOCKED_BY_ALARM
    if around.holds_reader and (channel.publishing.blocked or not channel.busy):
        return Wait.CREDIT_FLOW
    if channel.busy:
        return Wait.METHOD_IN_FLIGHT
    if around.held_by is not None:
        return Wait.READER_HELD
    return Wait.WRITER_BLOCKED if around.writer_blocked or around.stuck else None


def why_channel_waits(channel: BrokerChannel, around: WaitContext) -> Waiting:
    wait = channel_wait(channel, around)
    match wait:
        case None:
            return Waiting(None, _turn(channel, around))
        case Wait.BLOCKED_BY_ALARM:
            since_ms = around.blocked_ms
            which = " and ".join(around.alarms) or "a resource"
            why = (
                f"the alarm of {which} is on, and the connection, on which something was published since, is "
                "not read (status says what ends it): consume, or raise its limit"
            )
        case Wait.CREDIT_FLOW:
            since_ms = around.held_ms
            why = f"the whole connection is not read: {_held_up(channel, around.now_ms)}"
        case Wait.METHOD_IN_FLIGHT:
            since_ms = channel.paused_ms
            why = _in_flight(channel, around.now_ms)
            if around.holds_reader:
                why += "; the whole connection is not read"
        case Wait.READER_HELD:
            since_ms = around.held_ms
            why = f"the connection is not read, because {around.held_by} of it takes nothing"
        case _:
            since_ms = around.writer_ms
            why = _writer(around)
    return Waiting(wait, why, None if since_ms is None else around.now_ms - since_ms)


def _held_up(channel: BrokerChannel, now_ms: int) -> str:
    outlets = channel.publishing.held_by
    if not outlets:
        return "the channel has not worked off what came"
    told = []
    for outlet in outlets[:QUEUES_SHOWN]:
        handle = outlet.queue.handle
        text = (
            f"queue '{outlet.queue.name}' has not confirmed {count(outlet.outstanding, 'message')} of this "
            "channel and its credit_flow is used up"
        )
        unconfirmed_ms = handle.queue_status().unconfirmed_ms
        if unconfirmed_ms is not None:
            text += f"; its oldest unconfirmed message waits for {seconds(now_ms - unconfirmed_ms)}"
        told.append(text + because(handle.progress(), now_ms))
    if len(outlets) > QUEUES_SHOWN:
        told.append(f"and {len(outlets) - QUEUES_SHOWN} more queues")
    return "; ".join(told)


def _in_flight(channel: BrokerChannel, now_ms: int) -> str:
    method = channel.in_hand
    name = getattr(method, "queue", "")
    queue = channel.context.vhost.find(name) if name else None
    of = f" of queue '{name}'" if name else ""
    why = f"{method.NAME}{of} waits for an answer of the queue"
    if queue is not None:
        why += storage_text(queue.handle.progress(), now_ms)
    if method.NAME == "tx.commit":
        why = f"{method.NAME} waits for {count(channel.publishing.unconfirmed, 'message')} to be confirmed"
        if channel.modes.parked is not None:
            why = f"{method.NAME} waits for a queue that was declared just now, or is read after a start"
    behind = len(channel.backlog)
    if behind:
        why += f"; {count(behind, 'frame')} {'waits' if behind == 1 else 'wait'} behind it"
    return why


def _writer(around: WaitContext) -> str:
    waiting = count(around.writer_bytes, "byte")
    return f"the client does not read its socket: {waiting} wait for it, and deliveries behind them"


def _turn(channel: BrokerChannel, around: WaitContext) -> str:
    publishing = channel.publishing
    if not publishing.published:
        return ""
    why = f"its turn: {count(around.reader_credit, 'content')} until the connection waits"
    if publishing.unconfirmed:
        why += f"; {count(publishing.unconfirmed, 'message')} unconfirmed"
    return f"{why}; it published last {seconds(around.now_ms - publishing.published_ms)} ago"


# --- consumers ------------------------------------------------------------------------------------


def consumer_wait(channel: BrokerChannel, consumer: ChannelConsumer, around: WaitContext) -> Wait | None:
    wait = _near_wait(channel, consumer, around)
    if wait is None and not consumer.unsent:
        wait = idle_wait(consumer.queue, consumer.ref)
    if wait in _ENDED_BY_THE_CLIENT:
        return _unanswered(channel, around) or wait
    return wait


def _near_wait(channel: BrokerChannel, consumer: ChannelConsumer, around: WaitContext) -> Wait | None:
    if around.stuck or (consumer.unsent and around.writer_blocked):
        return Wait.WRITER_BLOCKED
    if consumer.full:
        return Wait.PREFETCH_FULL
    if channel.consuming.full and not consumer.terms.no_ack:
        return Wait.CHANNEL_PREFETCH_FULL
    if consumer.credit.in_flight and not consumer.unsent:
        unled = consumer.queue.handle.progress().unled_ms is not None
        return Wait.NO_LEADER if unled else Wait.QUEUE_CREDIT_IN_FLIGHT
    return None


def _unanswered(channel: BrokerChannel, around: WaitContext) -> Wait | None:
    # Return why acknowledgements of the client are not handled.
    wait = channel_wait(channel, around)
    if wait is Wait.WRITER_BLOCKED or (wait is Wait.METHOD_IN_FLIGHT and not channel.backlog):
        return None  # this stops no frame of the client, or no frame has come
    return wait


def why_consumer_waits(channel: BrokerChannel, consumer: ChannelConsumer, around: WaitContext) -> Waiting:
    wait = consumer_wait(channel, consumer, around)
    now_ms = around.now_ms
    queue = f"queue '{consumer.queue.name}'"
    match wait:
        case None:
            return NO_WAIT
        case Wait.WRITER_BLOCKED:
            since_ms = around.writer_ms
            unsent = consumer.unsent
            what = f"{count(unsent, 'delivery')} of {queue} {'waits' if unsent == 1 else 'wait'}"
            why = f"{what if unsent else 'what is delivered waits'}; {_writer(around)}"
        case Wait.BLOCKED_BY_ALARM | Wait.CREDIT_FLOW | Wait.METHOD_IN_FLIGHT | Wait.READER_HELD:
            hold_up = why_channel_waits(channel, around)
            held = count(consumer.holds, "delivery")
            why = f"it holds {held}, and acknowledgements have to wait: {hold_up.why}"
            return Waiting(wait, why, hold_up.for_ms)
        case Wait.PREFETCH_FULL:
            since_ms = consumer.moved_ms
            why = f"{_prefetch(channel, consumer, now_ms)}; {_ready(consumer)}"
        case Wait.CHANNEL_PREFETCH_FULL:
            since_ms = channel.consuming.moved_ms
            unacked, most = channel.consuming.unacked, channel.consuming.global_prefetch
            why = (
                f"the channel holds {unacked} of {most} deliveries that it may have unacknowledged "
                f"(basic.qos with global), {consumer.unacked} of them here{_uncommitted(channel, consumer)}; "
                f"{_ready(consumer)}"
            )
        case Wait.QUEUE_CREDIT_IN_FLIGHT:
            since_ms = consumer.asked_ms
            why = f"{count(consumer.credit.granted, 'message')} were asked of {queue}: no answer yet"
            why += storage_text(consumer.queue.handle.progress(), now_ms)
        case _:
            idle = why_idle(consumer.queue, consumer.ref, now_ms, consumer.idle_ms, channel.context.vhost)
            if wait is Wait.UNSETTLED_HERE:
                return replace(idle, why=idle.why + _uncommitted(channel, consumer))
            return idle
    return Waiting(wait, why, None if since_ms is None else now_ms - since_ms)


def _uncommitted(channel: BrokerChannel, consumer: ChannelConsumer) -> str:
    number = channel.modes.uncommitted(consumer)
    if not number:
        return ""
    return f"; the client has decided on {number} of them in a transaction and not committed it"


def _prefetch(channel: BrokerChannel, consumer: ChannelConsumer, now_ms: int) -> str:
    of = "that it may have unacknowledged (basic.qos)"
    if not consumer.terms.prefetch:
        of = f"that a consumer of a {consumer.queue.kind.name} queue may have without basic.qos"
    why = f"it holds {consumer.holds} of {consumer.holds_max} deliveries {of}"
    uncommitted = _uncommitted(channel, consumer)
    if uncommitted:
        return f"{why}{uncommitted}"
    if consumer.settled_ms is None:
        return f"{why}; the client has acknowledged none"
    return f"{why}; the client acknowledged last {seconds(now_ms - consumer.settled_ms)} ago"


def _ready(consumer: ChannelConsumer) -> str:
    queue = consumer.queue
    if queue.kind.replays:
        return f"stream '{queue.name}' goes on when it does"
    return f"{count(queue.handle.ready, 'message')} ready in queue '{queue.name}'"


def channel_view(channel: BrokerChannel, around: WaitContext) -> ChannelView:
    publishing, consuming = channel.publishing, channel.consuming
    consumers = tuple(
        ConsumerView(
            tag=consumer.terms.tag,
            queue=consumer.queue.name,
            no_ack=consumer.terms.no_ack,
            prefetch=consumer.terms.prefetch,
            unacknowledged=consumer.unacked,
            unsent=consumer.unsent,
            wait=why_consumer_waits(channel, consumer, around).view(),
            exclusive=consumer.terms.exclusive,
            timeout_ms=consumer.terms.timeout_ms,
            arguments=consumer.terms.arguments,
        )
        for consumer in consuming.consumers.values()
    )
    return ChannelView(
        number=channel.number,
        state=channel.state.name.lower(),
        confirm=publishing.confirming,
        transactional=publishing.transactional,
        unconfirmed=publishing.unconfirmed,
        unacknowledged=consuming.unacked,
        prefetch=consuming.prefetch,
        global_prefetch=consuming.global_prefetch,
        reader_credit=around.reader_credit,
        consumers=consumers,
        last_error=channel.last_error,
        counters=channel.counted().document(),
        wait=why_channel_waits(channel, around).view(),
    )
