"""What one channel is doing, as `amqp10broker status` and `list-channels` show it, and why it waits."""

from __future__ import annotations

from typing import Any

from amqp10broker.catalog.last_error import shown
from amqp10broker.service.channels.channel import BrokerChannel
from amqp10broker.service.channels.consumer import Consumer
from amqp10broker.service.waits import NO_WAIT, Wait, Waiting


def channel_status(
    channel: BrokerChannel, *, writer_blocked: bool, reader_credit: int, holds_reader: bool
) -> dict[str, Any]:
    """One channel; it is only read.

    Args:
        channel: the channel.
        writer_blocked: its deliveries wait for the connection's writer.
        reader_credit: contents that the connection's reader may give it before it waits.
        holds_reader: the reader waits for this channel, and with it the whole connection.
    """
    publishing = channel.publishing
    consuming = channel.consuming
    return {
        "number": channel.number,
        "state": channel.state.name.lower(),
        "confirm": publishing.confirming,
        "transactional": publishing.transactional,
        "unconfirmed": publishing.unconfirmed,
        "unacknowledged": consuming.unacked,
        "prefetch": consuming.prefetch,
        "global_prefetch": consuming.global_prefetch,
        "reader_credit": reader_credit,
        "consumers": [
            {
                "tag": consumer.tag,
                "queue": consumer.queue.name,
                "no_ack": consumer.no_ack,
                "prefetch": consumer.prefetch,
                "unacknowledged": consumer.unacked,
                "unsent": consumer.unsent,
                **why_consumer_waits(channel, consumer, writer_blocked=writer_blocked).document(),
            }
            for consumer in consuming.consumers.values()
        ],
        "last_error": shown(channel.last_error),
        "counters": channel.counters.document(),
        **why_channel_waits(channel, writer_blocked=writer_blocked, holds_reader=holds_reader).document(),
    }


def why_channel_waits(channel: BrokerChannel, *, writer_blocked: bool, holds_reader: bool) -> Waiting:
    """Why nothing that the client sends on a channel gets on, and what shows it."""
    if holds_reader:
        why = "the reader of the whole connection waits for this channel"
        slow = channel.publishing.slow_queues
        if slow:
            why += f": queue {', '.join(repr(name) for name in slow)} does not follow"
        return Waiting(Wait.CREDIT_FLOW, why)
    if channel.waiting:
        return Waiting(Wait.METHOD_IN_FLIGHT, "methods wait for a queue's answer")
    if writer_blocked:
        return Waiting(
            Wait.WRITER_BLOCKED, "deliveries wait: the client does not read its socket fast enough"
        )
    return NO_WAIT


def why_consumer_waits(channel: BrokerChannel, consumer: Consumer, *, writer_blocked: bool) -> Waiting:
    """Why a consumer gets nothing, and what shows it."""
    full = consumer.full or (channel.consuming.full and not consumer.no_ack)
    wait = consumer_wait(
        consumer, writer_blocked=writer_blocked, full=full, ready=consumer.queue.handle.ready
    )
    if wait is None:
        return NO_WAIT
    queue = f"queue '{consumer.queue.name}'"
    match wait:
        case Wait.WRITER_BLOCKED:
            why = f"{consumer.unsent} deliveries wait; the client does not read its socket fast enough"
        case Wait.PREFETCH_FULL:
            why = f"it holds {consumer.holds} unacknowledged deliveries"
        case Wait.QUEUE_CREDIT_IN_FLIGHT:
            why = f"{consumer.granted} messages were asked of {queue}: no answer yet"
        case Wait.NOT_ACTIVE:
            why = f"{queue} has a single active consumer: this one waits for it to go"
        case _:
            why = f"{queue} has no ready message"
    return Waiting(wait, why)


def consumer_wait(consumer: Consumer, *, writer_blocked: bool, full: bool, ready: int) -> Wait | None:
    """Why a consumer gets nothing; the nearest cause first, as for links of AMQP 1.0.

    Args:
        consumer: only read.
        writer_blocked: deliveries of the channel wait for the connection's writer.
        full: it, or the channel, holds as much as the client has allowed.
        ready: messages of its queue.
    """
    if consumer.unsent and writer_blocked:
        return Wait.WRITER_BLOCKED
    if full:
        return Wait.PREFETCH_FULL
    if consumer.unsent:
        return None
    if consumer.in_flight:
        return Wait.QUEUE_CREDIT_IN_FLIGHT
    if ready == 0:
        return Wait.QUEUE_EMPTY
    if consumer.queue.effective.settings.single_active_consumer:
        return Wait.NOT_ACTIVE
    return None
