"""What one channel is doing, as `amqp10broker status` and `list-channels` show it."""

from __future__ import annotations

from typing import Any

from amqp10broker.service.channels.channel import BrokerChannel


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
    slow = publishing.slow_queues
    waits = None
    if holds_reader:
        waits = "the reader of the whole connection waits for this channel"
        if slow:
            waits += f": queue {', '.join(repr(name) for name in slow)} does not follow"
    elif channel.waiting:
        waits = "methods wait for a queue's answer"
    elif writer_blocked:
        waits = "deliveries wait: the client does not read its socket fast enough"
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
            }
            for consumer in consuming.consumers.values()
        ],
        "waits": waits,
    }
