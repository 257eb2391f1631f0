"""basic.get of one channel: one message or none."""

from __future__ import annotations

from amqp10broker.errors import Unavailable
from amqp10broker.message.convert import to_amqp091
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.deliver import get_ok_frames
from amqp10broker.queues.commands import ConsumerRef
from amqp10broker.queues.effects import CreditReply, QueueDeleted, QueueDown, SubscribeRefused
from amqp10broker.sessions.amqp091.base import ChannelBase
from amqp10broker.sessions.amqp091.consumer import ChannelConsumer
from amqp10broker.sessions.jobs import check_gettable


class Fetching:
    """Handles basic.get: requests one message from the queue with drain."""

    def __init__(self, channel: ChannelBase) -> None:
        self._channel = channel
        self._fetcher: ChannelConsumer | None = None

    def get(self, method: methods.BasicGet) -> None:
        channel = self._channel
        name = channel.queue_named(method.queue)
        channel.context.access.read("queue", name)
        queue = channel.usable(name)
        check_gettable(queue)
        self._fetcher = channel.consuming.fetch(queue, no_ack=method.no_ack)
        channel.pause()

    def on_reply(self, fetcher: ChannelConsumer, reply: CreditReply) -> None:
        if fetcher is not self._fetcher:
            return
        self._fetcher = None
        channel = self._channel
        fetched = channel.consuming.take_fetched(fetcher)
        if fetched is None:
            fetcher.credit.counters.got_nothing += 1
            channel.write(methods.BasicGetEmpty())
        else:
            tag, message = fetched
            ours = to_amqp091(message)
            frame_max = channel.context.frame_max
            channel.write_content(get_ok_frames(channel.number, tag, ours, reply.available, frame_max))
        channel.paused = False

    def on_refused(self, effect: SubscribeRefused) -> None:
        """Handle a queue without a leader; raise `Unavailable` if the client waits for a message."""
        if self._end(effect.consumer) is not None:
            queue = f"queue '{effect.queue}'"
            text = f"Cannot get a message from {queue} in vhost '{self._channel.context.vhost.name}'"
            raise Unavailable(queue, f"{text}: it has had no leader for too long")

    def on_queue_down(self, effect: QueueDown) -> None:
        """Handle an unreachable queue; raise `NotFound` if the client waits for a message."""
        fetcher = self._end(effect.consumer)
        if fetcher is not None:
            raise fetcher.queue.inaccessible()

    def _end(self, ref: ConsumerRef) -> ChannelConsumer | None:
        # None if the client waits for another fetcher, or for none.
        fetcher = self._fetcher
        if fetcher is None or fetcher.ref != ref:
            return None
        self._fetcher = None
        self._channel.consuming.forget(ref)
        self._channel.paused = False
        return fetcher

    def on_queue_deleted(self, effect: QueueDeleted) -> None:
        if self._fetcher is not None and effect.ref == self._fetcher.ref:
            self._fetcher = None
            self._channel.write(methods.BasicGetEmpty())
            self._channel.paused = False
