"""What one channel is doing, as `amqp10broker status` and `list-channels` show it."""

from __future__ import annotations

from typing import Any

from amqp10broker.catalog.last_error import shown
from amqp10broker.service.channels.channel import BrokerChannel
from amqp10broker.service.channels.surroundings import Surroundings
from amqp10broker.service.channels.why import why_channel_waits, why_consumer_waits


def channel_status(channel: BrokerChannel, around: Surroundings) -> dict[str, Any]:
    """One channel; it is only read.

    Args:
        channel: the channel.
        around: what its connection does for it.
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
        "reader_credit": around.reader_credit,
        "consumers": [
            {
                "tag": consumer.tag,
                "queue": consumer.queue.name,
                "no_ack": consumer.no_ack,
                "prefetch": consumer.prefetch,
                "unacknowledged": consumer.unacked,
                "unsent": consumer.unsent,
                **why_consumer_waits(channel, consumer, around).document(),
            }
            for consumer in consuming.consumers.values()
        ],
        "last_error": shown(channel.last_error),
        "counters": channel.counters.document(),
        **why_channel_waits(channel, around).document(),
    }
