"""basic.consume and basic.cancel of one channel, in both directions, direct reply-to, and basic.get."""

from __future__ import annotations

from amqp10broker.errors import AccessRefused, NotFound, NotSupported, PreconditionFailed, Unavailable
from amqp10broker.message.convert import to_amqp091
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.deliver import get_ok_frames
from amqp10broker.protocols.amqp091.errors import AmqpChannelError, AmqpHardError, ReplyCode
from amqp10broker.queues.commands import DELETE, ConsumerRef, PublisherRef
from amqp10broker.queues.effects import (
    CreditReply,
    QueueDeleted,
    QueueDown,
    Refusal,
    Subscribed,
    SubscribeRefused,
    TimedOut,
)
from amqp10broker.routing.declaration import DIRECT_REPLY_TO
from amqp10broker.sessions.amqp091.base import ChannelBase
from amqp10broker.sessions.amqp091.consumer import ChannelConsumer
from amqp10broker.sessions.amqp091.consumer_arguments import (
    DEFAULT_OPTIONS,
    check_stream_consumer,
    read_consumer_arguments,
)
from amqp10broker.sessions.jobs import check_gettable

CANCEL_NOTIFY = "consumer_cancel_notify"


class Subscribing:
    """Subscription and cancellation of a channel's consumers, basic.get, and its direct reply-to."""

    def __init__(self, channel: ChannelBase) -> None:
        self._channel = channel
        self._context = channel.context
        self._asked: dict[ConsumerRef, tuple[ChannelConsumer, bool]] = {}
        self._reply_queue: DeclaredQueue | None = None
        self._reply_tag = ""
        # Of the basic.get that waits for its queue.
        self._fetcher: ChannelConsumer | None = None

    @property
    def reply_address(self) -> str | None:
        return None if self._reply_queue is None else self._reply_queue.name

    # --- from the client --------------------------------------------------------------------------

    def consume(self, method: methods.BasicConsume) -> None:
        consuming = self._channel.consuming
        context = self._context
        tag = method.consumer_tag or f"amq.ctag-{context.new_id()}"
        if tag in consuming.consumers:
            raise AmqpHardError(ReplyCode.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
        limit = context.config.consumer_max_per_channel
        if limit and len(consuming.consumers) >= limit:
            raise AmqpHardError(ReplyCode.NOT_ALLOWED, f"reached maximum ({limit}) of consumers per channel")
        options = DEFAULT_OPTIONS
        if method.queue == DIRECT_REPLY_TO:
            queue = self._open_reply_queue(method, tag)
        else:
            name = self._channel.queue_named(method.queue)
            context.access.read("queue", name)
            queue = self._channel.usable(name)
            if queue.kind.volatile:
                raise AccessRefused(
                    f"queue '{name}'", f"only creator channel may consume from queue '{name}'"
                )
            options = read_consumer_arguments(queue, method.arguments)
            self._check_kind(queue, method)
        consumer = consuming.subscribe(
            tag,
            queue,
            no_ack=method.no_ack,
            # Other kinds of queue have no exclusive consumers, and ignore the flag.
            exclusive=method.exclusive and queue.kind.exclusive_consumers,
            options=options,
        )
        self._asked[consumer.ref] = (consumer, method.no_wait)
        self._channel.pause()

    def _check_kind(self, queue: DeclaredQueue, method: methods.BasicConsume) -> None:
        # Refuses what the kind of queue does not support.
        resource = f"queue '{queue.name}' in vhost '{queue.vhost}'"
        if self._channel.consuming.global_prefetch and not queue.kind.global_prefetch:
            raise NotSupported(resource, f"{resource} does not support global qos")
        if queue.kind.replays:
            check_stream_consumer(queue, no_ack=method.no_ack, prefetch=self._channel.consuming.prefetch)
        if (
            method.exclusive
            and queue.kind.exclusive_consumers
            and queue.effective.settings.single_active_consumer
        ):
            # A consumer that waits to become the active one could never be admitted.
            raise _in_exclusive_use(queue)

    def cancel(self, method: methods.BasicCancel) -> None:
        self._channel.consuming.cancel(method.consumer_tag)
        if self._reply_queue is not None and method.consumer_tag == self._reply_tag:
            self._close_reply_queue()
        if not method.no_wait:
            self._channel.write(methods.BasicCancelOk(method.consumer_tag))

    # --- basic.get: one message is requested with drain --------------------------------------------

    def get(self, method: methods.BasicGet) -> None:
        channel, context = self._channel, self._context
        name = channel.queue_named(method.queue)
        context.access.read("queue", name)
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

    def _end_fetch(self, ref: ConsumerRef) -> ChannelConsumer | None:
        # Returns None if the client waits for another fetcher, or for none.
        fetcher = self._fetcher
        if fetcher is None or fetcher.ref != ref:
            return None
        self._fetcher = None
        self._channel.consuming.forget(ref)
        self._channel.paused = False
        return fetcher

    # --- direct reply-to --------------------------------------------------------------------------

    def _open_reply_queue(self, method: methods.BasicConsume, tag: str) -> DeclaredQueue:
        if not method.no_ack:
            raise PreconditionFailed("basic.consume", "reply consumer cannot acknowledge")
        if self._reply_queue is not None:
            raise PreconditionFailed("basic.consume", "reply consumer already set")
        context = self._context
        self._reply_queue = context.volatile(context.vhost, context.connection, lambda name: None)
        self._reply_tag = tag
        return self._reply_queue

    def _close_reply_queue(self) -> None:
        queue, self._reply_queue = self._reply_queue, None
        if queue is not None:
            self._context.vhost.remove_volatile(queue)
            self._channel.to_queue((queue.handle, DELETE))

    # --- from queues ------------------------------------------------------------------------------

    def on_subscribed(self, effect: Subscribed) -> None:
        asked = self._asked.pop(effect.consumer, None)
        if asked is None:
            return
        consumer, no_wait = asked
        self._channel.paused = False
        if not no_wait:
            self._channel.write(methods.BasicConsumeOk(consumer.terms.tag))
        self._channel.consuming.start(consumer)

    def on_refused(self, effect: SubscribeRefused) -> None:
        if self._end_fetch(effect.consumer) is not None:
            queue = f"queue '{effect.queue}'"
            text = f"Cannot get a message from {queue} in vhost '{self._context.vhost.name}'"
            raise Unavailable(queue, f"{text}: it has had no leader for too long")
        asked = self._asked.pop(effect.consumer, None)
        if asked is None:
            return
        consumer, _ = asked
        self._channel.paused = False
        self._channel.consuming.forget(effect.consumer)
        if effect.why is Refusal.NO_LEADER:
            resource = f"queue '{effect.queue}'"
            text = f"timed out consuming from quorum {resource} in vhost '{consumer.queue.vhost}'"
            raise Unavailable(resource, text)
        raise _in_exclusive_use(consumer.queue)

    def on_timed_out(self, effect: TimedOut) -> None:
        """Handle a consumer that has held deliveries for too long, and that its queue has taken back.

        It is cancelled if its client supports that, and may still acknowledge, without effect. Raises
        `AmqpChannelError` if the client would not notice, so the channel ends.
        """
        consuming = self._channel.consuming
        consumer = consuming.find(effect.consumer)
        if consumer is None or consumer.cancelled:
            return
        if consumer.terms.tag and CANCEL_NOTIFY in self._context.capabilities:
            self.cancel_for_us(consumer, "it held deliveries for too long")
            return
        allowed_ms = consumer.terms.timeout_ms
        if allowed_ms is None:
            allowed_ms = consumer.queue.effective.settings.consumer_timeout_ms
        raise AmqpChannelError(
            ReplyCode.PRECONDITION_FAILED,
            f"delivery acknowledgement on channel {self._channel.number} timed out. Timeout value used: "
            f"{allowed_ms} ms. Acknowledge sooner, or set x-consumer-timeout of the consumer or its queue",
            queue=consumer.queue.name,
        )

    def on_queue_deleted(self, effect: QueueDeleted) -> None:
        """End the consumer of a deleted queue, and notify a client that supports it."""
        ref = effect.ref
        if isinstance(ref, PublisherRef):
            return
        if self._fetcher is not None and ref == self._fetcher.ref:
            self._fetcher = None
            self._channel.write(methods.BasicGetEmpty())
            self._channel.paused = False
        asked = self._asked.pop(ref, None)
        consumer = self._channel.consuming.find(ref)
        # One that the client cancelled itself is still here as long as it holds deliveries.
        lasted = consumer is not None and not consumer.cancelled
        self._channel.consuming.forget(ref)
        if asked is not None:
            self._channel.paused = False
            # Deleted a moment ago. One of that name that is there now is another queue.
            raise NotFound(
                f"queue '{effect.queue}'", f"no queue '{effect.queue}' in vhost '{self._context.vhost.name}'"
            )
        if consumer is not None and lasted and consumer.terms.tag:
            self._tell_cancelled(consumer, "consumer cancelled: its queue was deleted")

    def on_queue_down(self, effect: QueueDown) -> None:
        """End the consumer of an unreachable queue; raise `NotFound` if its basic.consume or the basic.get is
        unanswered.
        """
        fetcher = self._end_fetch(effect.consumer)
        if fetcher is not None:
            raise fetcher.queue.inaccessible()
        asked = self._asked.pop(effect.consumer, None)
        consumer = self._channel.consuming.find(effect.consumer)
        lasted = consumer is not None and not consumer.cancelled
        self._channel.consuming.forget(effect.consumer)
        if asked is not None:
            self._channel.paused = False
            raise asked[0].queue.inaccessible()
        if consumer is not None and lasted and consumer.terms.tag:
            self._tell_cancelled(consumer, "consumer cancelled: its queue's node is down or inaccessible")

    def cancel_for_us(self, consumer: ChannelConsumer, reason: str) -> None:
        self._channel.consuming.cancel(consumer.terms.tag)
        self._tell_cancelled(consumer, f"consumer cancelled: {reason}")

    def _tell_cancelled(self, consumer: ChannelConsumer, event: str) -> None:
        # Notifies the client, if it supports that, and the log.
        told = CANCEL_NOTIFY in self._context.capabilities
        if told:
            self._channel.write(methods.BasicCancel(consumer.terms.tag, True))
        self._channel.warn(
            event,
            consumer=consumer.terms.tag,
            queue=consumer.queue.name,
            text="basic.cancel" if told else None,
        )

    def check_access(self) -> None:
        """Check that the user may still read the queues of all consumers. Raises `PermissionDenied`."""
        for consumer in self._channel.consuming.lasting:
            if not consumer.queue.kind.volatile:
                self._context.access.read("queue", consumer.queue.name)

    def close(self) -> None:
        self._asked.clear()
        self._close_reply_queue()


def _in_exclusive_use(queue: DeclaredQueue) -> AccessRefused:
    return AccessRefused(
        f"queue '{queue.name}'", f"queue '{queue.name}' in vhost '{queue.vhost}' in exclusive use"
    )
