"""The base class of a channel, and its parts other than publishing and consuming.

`Subscribing` handles consumers and basic.get, `Modes` handles confirms, acknowledgements and transactions.
The methods of exchanges and queues are operations (`operations.bindings`, `operations.queues`); this file has
what is specific to AMQP 0-9-1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from amqp10broker.errors import (
    AccessRefused,
    BadRequest,
    LimitExceeded,
    NotAllowed,
    NotFound,
    NotSupported,
    PreconditionFailed,
    RefusedError,
    ResourceLocked,
    Unavailable,
)
from amqp10broker.message.convert import to_amqp091
from amqp10broker.metadata.plan import Decided
from amqp10broker.metadata.queue import DeclaredQueue, LastError, QueueCommand
from amqp10broker.operations import bindings, queues
from amqp10broker.operations.node import Caller, Steps, Wait
from amqp10broker.operations.operation import Operation
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.codec import plain
from amqp10broker.protocols.amqp091.content import get_ok_frames, method_frame
from amqp10broker.protocols.amqp091.errors import Amqp091Error, AmqpChannelError, AmqpHardError, ReplyCode
from amqp10broker.protocols.amqp091.methods import Method
from amqp10broker.queues.commands import (
    DELETE,
    Answer,
    Confirmed,
    ConsumerRef,
    CreditReply,
    DeliveryOutcome,
    Publish,
    PublisherRef,
    PublishRejected,
    QueueDeleted,
    QueueDown,
    Refusal,
    RequestRef,
    Settle,
    Subscribed,
    SubscribeRefused,
    TimedOut,
    Unconfirmed,
)
from amqp10broker.routing.exchange import DIRECT_REPLY_TO, stripped
from amqp10broker.sessions.amqp091.consuming import (
    DEFAULT_OPTIONS,
    ChannelConsumer,
    ChannelConsumers,
    ChannelTap,
    Held,
    check_stream_consumer,
    read_consumer_arguments,
)
from amqp10broker.sessions.amqp091.publishing import Publishing
from amqp10broker.sessions.context import ChannelContext, SessionEndpoint
from amqp10broker.sessions.jobs import check_gettable
from amqp10broker.sessions.messages import NotYet

GENERATED_PREFIX: Final = "amq.gen-"


class ChannelBase(SessionEndpoint):
    """The state and methods of a channel that its parts use. `last_queue`: the queue declared last, to which
    an empty queue name refers. `paused`: no further method is handled until an answer has come.
    """

    consuming: ChannelConsumers
    publishing: Publishing

    def __init__(self, number: int, context: ChannelContext) -> None:
        super().__init__(context.moment)
        self.number = number
        self.context = context
        self.last_queue = ""
        self.last_error: LastError | None = None
        self.taps: tuple[ChannelTap, ...] = ()
        self.paused = False
        self.paused_ms = 0
        self._out: list[bytes | memoryview] = []
        self._then: Callable[[Any], None] | None = None
        self._request: RequestRef | None = None

    def write(self, method: Method) -> None:
        self._out.append(method_frame(self.number, method))
        for tap in self.taps:
            tap.sent(method)

    def write_content(self, frames: bytes) -> None:
        self._out.append(frames)
        for tap in self.taps:
            tap.sent_content(frames)

    def warn(self, event: str, **details: Any) -> None:
        self.last_error = self.context.log.warning(event, channel=self.number, **details)

    def pause(self) -> None:
        self.paused = True
        self.paused_ms = self.context.moment.ms

    def perform(
        self, operation: Operation, no_wait: bool, done: Callable[[Any], Method], /, **given: object
    ) -> None:
        """Carry out an operation; no other method is handled until it is done. `done` makes the reply."""

        def then(result: Any) -> None:
            method = done(result)
            if not no_wait:
                self.write(method)

        context = self.context
        caller = Caller(
            context.catalog,
            context.vhost,
            context.access,
            context.connection,
            propose=context.propose,
            new_request=context.reply_to.request,
            new_name=lambda: GENERATED_PREFIX + context.new_id(),
        )
        self._advance(caller.perform(operation, given), then, None)

    def _advance(
        self, steps: Steps[Any], then: Callable[[Any], None], answer: Answer | Decided | None
    ) -> None:
        try:
            wait = steps.send(answer)
        except StopIteration as done:
            result = done.value
        else:
            assert isinstance(wait, Wait), "the caller has no node"
            self._request = wait.ref
            self._then = partial(self._advance, steps, then)
            self.pause()
            if wait.queue is not None and wait.command is not None:
                self.to_queue((wait.queue, wait.command))
            return
        then(result)

    def queue_named(self, name: str) -> str:
        if name:
            return stripped(name)
        if not self.last_queue:
            raise NotFound("queue ''", "no previously declared queue")
        return self.last_queue

    def usable(self, name: str) -> DeclaredQueue:
        """Return the queue of this name that the connection may use. Raises `NotFound`, `ResourceLocked`."""
        vhost = self.context.vhost
        return vhost.for_connection(vhost.lookup(name), self.context.connection)


# The first entry that matches counts. 404, 403, 405 and 406 close the channel, the others the connection.
_CODES: Final[tuple[tuple[type[RefusedError], ReplyCode], ...]] = (
    (NotFound, ReplyCode.NOT_FOUND),
    (AccessRefused, ReplyCode.ACCESS_REFUSED),
    (ResourceLocked, ReplyCode.RESOURCE_LOCKED),
    (PreconditionFailed, ReplyCode.PRECONDITION_FAILED),
    (LimitExceeded, ReplyCode.PRECONDITION_FAILED),
    (BadRequest, ReplyCode.PRECONDITION_FAILED),
    (NotSupported, ReplyCode.NOT_IMPLEMENTED),
    (NotAllowed, ReplyCode.NOT_ALLOWED),
)
_HARD: Final = (ReplyCode.NOT_IMPLEMENTED, ReplyCode.NOT_ALLOWED, ReplyCode.INTERNAL_ERROR)


def to_amqp091_error(refusal: RefusedError) -> Amqp091Error:
    code = next((code for kind, code in _CODES if isinstance(refusal, kind)), ReplyCode.INTERNAL_ERROR)
    kind = AmqpHardError if code in _HARD else AmqpChannelError
    return kind(code, refusal.description)


CANCEL_NOTIFY = "consumer_cancel_notify"


class Subscribing:
    """Handles the subscription and cancellation of a channel's consumers, basic.get, and direct reply-to."""

    def __init__(self, channel: ChannelBase) -> None:
        self._channel = channel
        self._context = channel.context
        self._asked: dict[ConsumerRef, tuple[ChannelConsumer, bool]] = {}
        self._reply_queue: DeclaredQueue | None = None
        self._reply_tag = ""
        # The consumer of the basic.get that waits for its queue.
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
        """Cancel a consumer that has held deliveries for too long. It may still acknowledge them, without
        effect. Raises `AmqpChannelError` if its client does not support cancel notifications.
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
        ref = effect.ref
        if isinstance(ref, PublisherRef):
            return
        if self._end_fetch(ref) is not None:
            self._channel.write(methods.BasicGetEmpty())
        elif self._lose(ref, "its queue was deleted") is not None:
            # The queue was deleted a moment ago. A queue of that name that exists now is another queue.
            raise NotFound(
                f"queue '{effect.queue}'", f"no queue '{effect.queue}' in vhost '{self._context.vhost.name}'"
            )

    def on_queue_down(self, effect: QueueDown) -> None:
        reason = "its queue's node is down or inaccessible"
        lost = self._end_fetch(effect.consumer) or self._lose(effect.consumer, reason)
        if lost is not None:
            raise lost.queue.inaccessible()

    def _lose(self, ref: ConsumerRef, reason: str) -> ChannelConsumer | None:
        # End a consumer that its queue has ended, and notify a client that supports it. Return a consumer
        # whose basic.consume is unanswered.
        asked = self._asked.pop(ref, None)
        consumer = self._channel.consuming.find(ref)
        # A consumer that the client cancelled itself stays here as long as it holds deliveries.
        lasted = consumer is not None and not consumer.cancelled
        self._channel.consuming.forget(ref)
        if asked is not None:
            self._channel.paused = False
            return asked[0]
        if consumer is not None and lasted and consumer.terms.tag:
            self._tell_cancelled(consumer, reason)
        return None

    def cancel_for_us(self, consumer: ChannelConsumer, reason: str) -> None:
        self._channel.consuming.cancel(consumer.terms.tag)
        self._tell_cancelled(consumer, reason)

    def _tell_cancelled(self, consumer: ChannelConsumer, reason: str) -> None:
        told = CANCEL_NOTIFY in self._context.capabilities
        if told:
            self._channel.write(methods.BasicCancel(consumer.terms.tag, True))
        self._channel.warn(
            f"consumer cancelled: {reason}",
            consumer=consumer.terms.tag,
            queue=consumer.queue.name,
            text="basic.cancel" if told else None,
        )

    def check_access(self) -> None:
        """Check that the user may still read the queues of all consumers."""
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


# --- exchanges --------------------------------------------------------------------------------


def exchange_declare(channel: ChannelBase, method: methods.ExchangeDeclare) -> None:
    name = stripped(method.exchange)
    if method.passive:
        channel.perform(
            bindings.get_exchange,
            method.no_wait,
            lambda found: methods.ExchangeDeclareOk(),
            name=name,
        )
        return
    channel.perform(
        bindings.declare_exchange,
        method.no_wait,
        lambda declared: methods.ExchangeDeclareOk(),
        name=name,
        type=method.type,
        durable=method.durable,
        auto_delete=method.auto_delete,
        internal=method.internal,
        arguments=plain(method.arguments),
    )


def exchange_delete(channel: ChannelBase, method: methods.ExchangeDelete) -> None:
    channel.perform(
        bindings.delete_exchange,
        method.no_wait,
        lambda gone: methods.ExchangeDeleteOk(),
        name=stripped(method.exchange),
        if_unused=method.if_unused,
    )


_BINDINGS: Final[dict[type[Method], tuple[Operation, Callable[[], Method]]]] = {
    methods.ExchangeBind: (bindings.bind, methods.ExchangeBindOk),
    methods.ExchangeUnbind: (bindings.unbind, methods.ExchangeUnbindOk),
    methods.QueueBind: (bindings.bind, methods.QueueBindOk),
    methods.QueueUnbind: (bindings.unbind, methods.QueueUnbindOk),
}


def bind(
    channel: ChannelBase,
    method: methods.ExchangeBind | methods.ExchangeUnbind | methods.QueueBind | methods.QueueUnbind,
) -> None:
    operation, answer = _BINDINGS[type(method)]
    key = method.routing_key
    if isinstance(method, methods.ExchangeBind | methods.ExchangeUnbind):
        source = method.source
        destination = {"destination_exchange": stripped(method.destination)}
    else:
        source = method.exchange
        name = channel.queue_named(method.queue)
        destination = {"destination_queue": name}
        # "If the queue name is empty and the routing key is empty too, the key is the queue's name."
        key = key if key or method.queue else name
    no_wait = not isinstance(method, methods.QueueUnbind) and method.no_wait
    channel.perform(
        operation,
        no_wait,
        lambda done: answer(),
        source=stripped(source),
        **destination,
        binding_key=key,
        arguments=plain(method.arguments),
    )


# --- queues -----------------------------------------------------------------------------------


def queue_declare(channel: ChannelBase, method: methods.QueueDeclare) -> None:
    name = stripped(method.queue)
    if name == DIRECT_REPLY_TO or name.startswith(DIRECT_REPLY_TO + "."):
        _declare_direct_reply_to(channel, name, method.no_wait)
    elif method.passive:
        channel.context.catalog.usage.queues_declared += 1
        channel.perform(
            queues.get_queue,
            method.no_wait,
            partial(_declared, channel),
            name=channel.queue_named(name),
            for_use=True,
        )
    else:
        channel.perform(
            queues.declare_queue,
            method.no_wait,
            lambda declared: _declared(channel, declared["queue"]),
            name=name,
            # RabbitMQ's rule for AMQP 0-9-1 alone: a queue declared over management stays as declared.
            durable=method.durable and not method.exclusive,
            exclusive=method.exclusive,
            auto_delete=method.auto_delete,
            arguments=plain(method.arguments),
        )


def _declared(channel: ChannelBase, queue: dict[str, Any]) -> Method:
    channel.last_queue = queue["name"]
    return methods.QueueDeclareOk(queue["name"], queue["message_count"], queue["consumer_count"])


def _declare_direct_reply_to(channel: ChannelBase, name: str, no_wait: bool) -> None:
    # A passive declaration of a reply queue checks whether its owner still exists.
    if name != DIRECT_REPLY_TO:
        channel.context.vhost.lookup(name)
    if not no_wait:
        channel.write(methods.QueueDeclareOk(name, 0, 1))


def queue_purge(channel: ChannelBase, method: methods.QueuePurge) -> None:
    channel.perform(
        queues.purge_queue,
        method.no_wait,
        lambda purged: methods.QueuePurgeOk(purged["message_count"]),
        name=channel.queue_named(method.queue),
    )


def queue_delete(channel: ChannelBase, method: methods.QueueDelete) -> None:
    channel.perform(
        queues.delete_queue,
        method.no_wait,
        lambda gone: methods.QueueDeleteOk(gone["message_count"]),
        name=channel.queue_named(method.queue),
        if_unused=method.if_unused,
        if_empty=method.if_empty,
    )


DECLARING: Final[dict[type[Any], Callable[..., None]]] = {
    methods.ExchangeDeclare: exchange_declare,
    methods.ExchangeDelete: exchange_delete,
    methods.ExchangeBind: bind,
    methods.ExchangeUnbind: bind,
    methods.QueueDeclare: queue_declare,
    methods.QueueBind: bind,
    methods.QueueUnbind: bind,
    methods.QueuePurge: queue_purge,
    methods.QueueDelete: queue_delete,
}

_PARTS: Final = frozenset((Publish, Settle))


class Modes:
    """Applies the client's decisions on deliveries, and the channel's mode: confirm, transactional, or
    neither. `parked`: the commands of a commit that waits until its queues are ready.
    """

    def __init__(self, channel: ChannelBase) -> None:
        self._channel = channel
        self._in_tx: list[tuple[Held, DeliveryOutcome]] = []
        # True while a commit waits until the queues have taken the messages published in it.
        self._committing = False
        self.parked: tuple[RequestRef, list[QueueCommand]] | None = None
        self._ends = channel.context.moment.measures.transactions

    # --- acknowledgements --------------------------------------------------------------------------

    def acks(self, tags: Sequence[tuple[int, bool]]) -> None:
        self._settle(tags, DeliveryOutcome.ACCEPT)

    def nack(self, method: methods.BasicNack) -> None:
        # basic.nack does not count a delivery as failed (RabbitMQ 4.3), even requeued; basic.reject does.
        delivery_outcome = DeliveryOutcome.REQUEUE if method.requeue else DeliveryOutcome.DISCARD
        self._settle([(method.delivery_tag, method.multiple)], delivery_outcome)

    def reject(self, method: methods.BasicReject) -> None:
        delivery_outcome = (
            DeliveryOutcome.REQUEUE_FAILED if method.requeue else DeliveryOutcome.DISCARD_FAILED
        )
        self._settle([(method.delivery_tag, False)], delivery_outcome)

    def recover(self, method: methods.BasicRecover | methods.BasicRecoverAsync) -> None:
        if not method.requeue:
            raise AmqpHardError(ReplyCode.NOT_IMPLEMENTED, "requeue=false")
        self._channel.consuming.recover()
        if isinstance(method, methods.BasicRecover):
            self._channel.write(methods.BasicRecoverOk())

    def _settle(self, tags: Sequence[tuple[int, bool]], delivery_outcome: DeliveryOutcome) -> None:
        channel = self._channel
        taken: list[Held] = []
        try:
            channel.consuming.held.ack_run(tags, taken)
        finally:
            # Acknowledgements before an unknown tag remain valid.
            if channel.publishing.transactional:
                self._in_tx.extend((held, delivery_outcome) for held in taken)
            elif taken:
                channel.consuming.settle(taken, delivery_outcome)

    # --- confirms and transactions ----------------------------------------------------------------

    def select_confirms(self, method: methods.ConfirmSelect) -> None:
        self._channel.publishing.select_confirms()
        if not method.no_wait:
            self._channel.write(methods.ConfirmSelectOk())

    def write_confirms(self) -> None:
        channel = self._channel
        for tag, multiple, nack in channel.publishing.take_confirms():
            method = methods.BasicNack(tag, multiple, False) if nack else methods.BasicAck(tag, multiple)
            channel.write(method)

    def select_transactions(self) -> None:
        self._channel.publishing.select_transactions()
        self._channel.write(methods.TxSelectOk())

    def commit(self) -> None:
        channel = self._channel
        self._require_tx()
        self._ends["committed"] += 1
        before = len(channel.commands)
        settled, self._in_tx = self._in_tx, []
        for delivery_outcome in DeliveryOutcome:
            held = [part for part, its in settled if its is delivery_outcome]
            if held:
                channel.consuming.settle(held, delivery_outcome)
        taken = channel.publishing.commit()
        posted = channel.commands[before:]
        del channel.commands[before:]
        self._do_at_once(posted)
        if taken and self.parked is None:
            channel.write(methods.TxCommitOk())
        else:
            self._committing = True
            channel.pause()

    def _do_at_once(self, posted: list[QueueCommand]) -> None:
        # Where a queue is full or remote, each queue carries out its part separately, as in RabbitMQ.
        channel = self._channel
        commits = channel.context.commits
        parts = [each for each in posted if type(each[1]) in _PARTS]
        if commits is None or len(parts) < 2 or not all(commits.takes(handle) for handle, _ in parts):
            channel.commands += posted
            return
        commands = [*channel.commands]
        channel.commands.clear()
        refused = commits.commit(commands, parts)
        if isinstance(refused, NotYet):
            ref = channel.context.reply_to.request()
            self.parked = ref, posted
            commits.when_ready(parts, ref)
        elif refused:
            channel.commands += posted
        else:
            channel.commands += [each for each in posted if type(each[1]) not in _PARTS]

    def uncommitted(self, consumer: ChannelConsumer) -> int:
        return sum(len(held.keys) for held, _ in self._in_tx if held.consumer is consumer)

    def on_ready(self, ref: RequestRef) -> None:
        if self.parked is None or self.parked[0] != ref:
            return
        (_, posted), self.parked = self.parked, None
        self._do_at_once(posted)
        if self.parked is None and self._channel.publishing.committed:
            self._committing = False
            self._channel.paused = False
            self._channel.write(methods.TxCommitOk())

    def rollback(self) -> None:
        channel = self._channel
        self._require_tx()
        self._ends["rolled-back"] += 1
        channel.publishing.rollback()
        channel.consuming.held.restore([held for held, _ in self._in_tx])
        self._in_tx = []
        channel.write(methods.TxRollbackOk())

    def _require_tx(self) -> None:
        if not self._channel.publishing.transactional:
            raise AmqpChannelError(ReplyCode.PRECONDITION_FAILED, "channel is not transactional")

    def on_confirmed(self, effect: Confirmed | Unconfirmed | PublishRejected) -> None:
        channel = self._channel
        publishing = channel.publishing
        if isinstance(effect, Confirmed):
            failed = False
        else:
            # A queue that was deleted before it could confirm counts as a queue that has confirmed.
            failed = isinstance(effect, PublishRejected) or effect.failed
        publishing.on_confirmed(effect.publisher, effect.ids, settled=effect.settled, failed=failed)
        if self._committing and self.parked is None and publishing.committed:
            self._committing = False
            channel.paused = False
            if publishing.commit_failed:
                raise AmqpChannelError(ReplyCode.PRECONDITION_FAILED, "partial tx completion")
            channel.write(methods.TxCommitOk())

    def close(self) -> None:
        self._in_tx = []
        self._committing = False
        self.parked = None
