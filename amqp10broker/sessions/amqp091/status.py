"""The state of one channel for the management API."""

from __future__ import annotations

from amqp10broker.operations.snapshot import ChannelView, ConsumerView
from amqp10broker.sessions.amqp091.channel import BrokerChannel
from amqp10broker.sessions.diagnosis.waits import WaitContext
from amqp10broker.sessions.diagnosis.why_channel import why_channel_waits, why_consumer_waits


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
