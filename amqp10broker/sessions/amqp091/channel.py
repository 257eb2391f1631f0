"""The broker's side of one AMQP 0-9-1 channel, in the steps of `sessions/context.py`.

A step takes frames and the effects of queues, and returns frames and commands for queues. Methods are handled
strictly one after another. Frames behind a method that waits for a queue, or for the agreement of the
cluster's nodes, are held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, Final, TypeVar, assert_never

from amqp10broker.emulation import GLOBAL_QOS
from amqp10broker.errors import RefusedError
from amqp10broker.message.message import Message
from amqp10broker.metadata.plan import Decided
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.codec import method_name
from amqp10broker.protocols.amqp091.content import (
    AckRun,
    Content,
    ContentOpened,
    ContentTooLarge,
    MethodFrame,
    PublishRun,
    return_frames,
)
from amqp10broker.protocols.amqp091.errors import Amqp091Error, AmqpChannelError, AmqpHardError, ReplyCode
from amqp10broker.protocols.amqp091.methods import Method
from amqp10broker.queues.commands import (
    ActiveChanged,
    Answer,
    Confirmed,
    CreditReply,
    Deliver,
    Effect,
    PublishRejected,
    QueueDeleted,
    QueueDown,
    RequestRef,
    Settled,
    Subscribed,
    SubscribeRefused,
    TimedOut,
    Unconfirmed,
)
from amqp10broker.sessions.amqp091.base import DECLARING, ChannelBase, Modes, Subscribing, to_amqp091_error
from amqp10broker.sessions.amqp091.consuming import ChannelConsumers, ChannelTap
from amqp10broker.sessions.amqp091.publishing import CreditFlow, Publishing
from amqp10broker.sessions.context import ChannelContext
from amqp10broker.sessions.counters import ClientCounters
from amqp10broker.sessions.credit import add_consumed
from amqp10broker.sessions.messages import (
    AlarmChanged,
    Committed,
    ConfigChanged,
    Frames,
    LinkFree,
    LinkStolen,
    Notice,
    SessionMessage,
    Stop,
)

T = TypeVar("T")


class ChannelState(Enum):
    """A channel is opened and closed any number of times (specification 1.5)."""

    UNOPENED = auto()
    OPEN = auto()
    CLOSING = auto()
    """The broker has sent channel.close: everything but its answer is ignored."""
    CLOSED = auto()
    """Frames that the client sent before it read the broker's close-ok are ignored."""


class BrokerChannel(ChannelBase):
    """One channel of one client.

    Attributes:
        in_hand: the method that is being handled, or the last one.
        backlog: items that wait behind it.
        credit: the credit of the connection's reader for contents.
        unwanted: an incomplete content that is or will be refused, so that it need not be stored.
    """

    def __init__(self, number: int, context: ChannelContext) -> None:
        super().__init__(number, context)
        self.state = ChannelState.UNOPENED
        self.stopping = False
        self.backlog: deque[object] = deque()
        self._opened: ContentOpened | None = None
        self.unwanted: ContentOpened | None = None
        self.in_hand: Method | type[Method] = methods.ChannelOpen
        self._counters = ClientCounters()
        self.credit = CreditFlow(context.config)
        self._reset()

    def _reset(self) -> None:
        self.last_queue = ""
        self.consuming = ChannelConsumers(self.number, self.context, self.to_queue, self._counters)
        self.modes = Modes(self)
        self.subscribing = Subscribing(self)
        self.publishing = Publishing(
            self.context,
            self.to_queue,
            self._return,
            lambda: self.subscribing.reply_address,
            self._counters,
        )

    def counted(self) -> ClientCounters:
        return add_consumed(ClientCounters.sum_of([self._counters]), self.consuming.credits())

    # --- input ------------------------------------------------------------------------------------

    def handle(self, message: SessionMessage) -> None:
        match message:
            case list():
                self.on_effects(message)
            case Decided():
                self.on_decided(message)
            case Frames():
                self.receive(message.items)
            case Notice.WRITER_READY | AlarmChanged():
                return
            case ConfigChanged():
                self.context.config = message.config
            case Notice.ACCESS_CHANGED:
                self.on_access_changed()
            case Stop():
                self.stopping = True
            case LinkStolen() | LinkFree():
                raise AssertionError("a channel has no links")
            case Committed():
                self.modes.on_ready(message.ref)
            case Notice.TRANSACTIONS_DUE:
                raise AssertionError("a channel's transaction may be open for ever")
            case _:
                assert_never(message)

    def receive(self, items: Sequence[object]) -> None:
        """Handle frames of the client. Raises `AmqpHardError`."""
        self.backlog.extend(items)
        self._work()

    @property
    def busy(self) -> bool:
        """Whether a method of the client is not done."""
        return self.paused or bool(self.backlog)

    def _work(self) -> None:
        backlog = self.backlog
        while backlog and not self.paused:
            item = backlog.popleft()
            for tap in self.taps:
                tap.received(item)
            self._on_item(item)

    def on_effects(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            self._on_effect(effect)
        self._work()

    def on_decided(self, decided: Decided) -> None:
        self._go_on(decided.ref, decided)
        self._work()

    def on_access_changed(self) -> None:
        if self.state is ChannelState.OPEN:
            self._guarded(self.subscribing.check_access)

    # --- output -----------------------------------------------------------------------------------

    @property
    def has_unsent(self) -> bool:
        return self.consuming.has_unsent

    def pump(self, budget_bytes: int) -> int:
        tracker = self.publishing.tracker
        if self.state is ChannelState.OPEN and (tracker.acks or tracker.nacks):
            self.modes.write_confirms()
        consuming = self.consuming
        if not (consuming.consumers or consuming.stirred):
            return 0
        spent = consuming.write(budget_bytes, self._out) if budget_bytes > 0 else 0
        consuming.top_up()
        return spent

    def listen(self, taps: tuple[ChannelTap, ...]) -> None:
        self.taps = self.consuming.taps = taps

    def take_output(self) -> list[bytes | memoryview]:
        out, self._out = self._out, []
        return out

    def close(self) -> None:
        self._give_everything_back()
        self.backlog.clear()

    def release(self) -> None:
        del self.consuming, self.modes, self.subscribing, self.publishing

    def _give_everything_back(self) -> None:
        self.consuming.close()
        self.subscribing.close()
        self.modes.close()
        self._then = None
        self.paused = False

    def _go_on(self, request: RequestRef, heard: Answer | Decided) -> None:
        if request != self._request or self._then is None:
            return  # requested before the channel was closed
        then, self._then = self._then, None
        self.paused = False
        self._guarded(then, heard)

    # --- frames -----------------------------------------------------------------------------------

    def _on_item(self, item: object) -> None:
        self.in_hand = _method_of(item)
        if self.state is not ChannelState.OPEN:
            self._on_item_while_closed(item)
            return
        self._opened = None
        if type(item) is PublishRun:
            self.credit.unreturned += len(item.bodies)
            self._guarded(self.publishing.publish, item)
        elif type(item) is AckRun:
            self._guarded(self.modes.acks, item.tags)
        elif type(item) is MethodFrame:
            handler = _HANDLERS.get(type(item.method))
            if handler is None:
                raise _not_for_a_server(item.method)
            self._guarded(handler, self, item.method)
        elif type(item) is ContentTooLarge:
            self.credit.unreturned += 1
            self._guarded(self._on_too_large, item)
        elif type(item) is ContentOpened:
            self._opened = item
            self._guarded(self._check_opened, item.method)
        else:
            assert isinstance(item, Content), f"no channel handles {item!r}"
            raise _not_for_a_server(item.method)

    def _guarded(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except AmqpChannelError as error:
            self._fail(error)
        except RefusedError as refusal:
            fault = to_amqp091_error(refusal)
            if isinstance(fault, AmqpHardError):
                self._name_method(fault)
                raise fault from refusal
            self._fail(fault)
        except AmqpHardError as error:
            self._name_method(error)
            raise

    def _name_method(self, error: Amqp091Error) -> None:
        if not error.class_id:
            error.class_id, error.method_id = self.in_hand.CLASS_ID, self.in_hand.METHOD_ID

    def _fail(self, error: Amqp091Error) -> None:
        self._name_method(error)
        self.unwanted = self._opened
        self.modes.write_confirms()
        # Frames behind the failed method are dropped one by one, because the reader counts their contents.
        self._give_everything_back()
        self.state = ChannelState.CLOSING
        self.write(methods.ChannelClose(int(error.code), error.reply_text, error.class_id, error.method_id))
        self.warn(
            "channel closed by the broker",
            method=method_name(error.class_id, error.method_id),
            queue=error.queue or getattr(self.in_hand, "queue", None) or None,
            code=int(error.code),
            text=error.reply_text,
        )

    def _on_item_while_closed(self, item: object) -> None:
        if type(item) is PublishRun:
            self.credit.unreturned += len(item.bodies)
        elif type(item) is ContentTooLarge:
            self.credit.unreturned += 1
        elif type(item) is ContentOpened and self.state is not ChannelState.UNOPENED:
            self.unwanted = item
        method = item.method if type(item) is MethodFrame else None
        if self.state is ChannelState.CLOSING:
            if isinstance(method, methods.ChannelCloseOk):
                self.state = ChannelState.CLOSED
            elif isinstance(method, methods.ChannelClose):
                self.write(methods.ChannelCloseOk())
            return
        if isinstance(method, methods.ChannelOpen):
            self._reset()
            self.state = ChannelState.OPEN
            self.write(methods.ChannelOpenOk())
        elif isinstance(method, methods.ChannelCloseOk):
            self.state = ChannelState.CLOSED
        elif self.state is ChannelState.UNOPENED:
            error = AmqpHardError(ReplyCode.CHANNEL_ERROR, "expected 'channel.open'")
            self._name_method(error)
            raise error

    # --- channel ----------------------------------------------------------------------------------

    def _open(self, method: methods.ChannelOpen) -> None:
        raise AmqpHardError(ReplyCode.CHANNEL_ERROR, "second 'channel.open' seen")

    def _close(self, method: methods.ChannelClose) -> None:
        self.modes.write_confirms()
        self._give_everything_back()
        self.write(methods.ChannelCloseOk())
        self.state = ChannelState.CLOSED

    def _flow(self, method: methods.ChannelFlow) -> None:
        if not method.active:
            raise AmqpHardError(ReplyCode.NOT_IMPLEMENTED, "active=false")
        self.write(methods.ChannelFlowOk(True))

    def _access_request(self, method: methods.AccessRequest) -> None:
        # access.request is a method of AMQP 0-8: old clients request a ticket.
        self.write(methods.AccessRequestOk(1))

    def _qos(self, method: methods.BasicQos) -> None:
        if method.prefetch_size:
            raise AmqpHardError(ReplyCode.NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})")
        if method.global_ and GLOBAL_QOS not in self.context.config.rules.denied:
            self.consuming.set_global_prefetch(method.prefetch_count)
        else:
            self.consuming.prefetch = method.prefetch_count
        self.write(methods.BasicQosOk())

    # --- publishing -------------------------------------------------------------------------------

    def _return(self, message: Message) -> None:
        frame_max = self.context.frame_max
        self.write_content(return_frames(self.number, ReplyCode.NO_ROUTE, "NO_ROUTE", message, frame_max))

    def _check_opened(self, method: Method) -> None:
        # This runs before the body has come.
        if not isinstance(method, methods.BasicPublish):
            raise _not_for_a_server(method)
        self.publishing.find(method.exchange, method.routing_key, immediate=method.immediate)

    def _on_too_large(self, item: ContentTooLarge) -> None:
        # RabbitMQ checks the size last.
        self._check_opened(item.method)
        raise AmqpChannelError(
            ReplyCode.PRECONDITION_FAILED,
            f"message size {item.size} is larger than configured max size {item.limit}",
        )

    # --- effects ----------------------------------------------------------------------------------

    def _on_effect(self, effect: Effect) -> None:
        match effect:
            case Confirmed() | Unconfirmed() | PublishRejected():
                self._guarded(self.modes.on_confirmed, effect)
            case Deliver():
                self.consuming.on_deliver(effect)
            case CreditReply():
                consumer = self.consuming.on_reply(effect)
                if consumer is not None:
                    self.subscribing.on_reply(consumer, effect)
            case Answer():
                self._go_on(effect.request, effect)
            case Subscribed():
                self._guarded(self.subscribing.on_subscribed, effect)
            case SubscribeRefused():
                self._guarded(self.subscribing.on_refused, effect)
            case TimedOut():
                self._guarded(self.subscribing.on_timed_out, effect)
            case ActiveChanged():
                # AMQP 0-9-1 has no method for it: the consumer gets messages, or it does not.
                return
            case Settled():
                raise AssertionError("channels do not ask whether acknowledgements are durable")
            case QueueDeleted():
                self._guarded(self.subscribing.on_queue_deleted, effect)
            case QueueDown():
                self._guarded(self.subscribing.on_queue_down, effect)
            case _:
                assert_never(effect)


def _not_for_a_server(method: Method) -> AmqpHardError:
    return AmqpHardError(
        ReplyCode.COMMAND_INVALID,
        f"{method.NAME} is not a method that a client sends on a channel",
        method.CLASS_ID,
        method.METHOD_ID,
    )


def _method_of(item: object) -> Method | type[Method]:
    # Contents and acknowledgements come in runs: for these only the class of the method is known.
    if type(item) is PublishRun:
        return methods.BasicPublish
    if type(item) is AckRun:
        return methods.BasicAck
    assert isinstance(item, MethodFrame | Content | ContentOpened | ContentTooLarge), (
        f"no channel handles {item!r}"
    )
    return item.method


_HANDLERS: Final[dict[type[Any], Callable[..., None]]] = {
    methods.ChannelOpen: BrokerChannel._open,
    methods.ChannelClose: BrokerChannel._close,
    methods.ChannelFlow: BrokerChannel._flow,
    methods.ChannelFlowOk: lambda channel, method: None,
    methods.AccessRequest: BrokerChannel._access_request,
    **DECLARING,
    methods.BasicQos: BrokerChannel._qos,
    methods.BasicConsume: lambda channel, method: channel.subscribing.consume(method),
    methods.BasicCancel: lambda channel, method: channel.subscribing.cancel(method),
    methods.BasicCancelOk: lambda channel, method: None,
    methods.BasicGet: lambda channel, method: channel.subscribing.get(method),
    methods.BasicNack: lambda channel, method: channel.modes.nack(method),
    methods.BasicReject: lambda channel, method: channel.modes.reject(method),
    methods.BasicRecover: lambda channel, method: channel.modes.recover(method),
    methods.BasicRecoverAsync: lambda channel, method: channel.modes.recover(method),
    methods.ConfirmSelect: lambda channel, method: channel.modes.select_confirms(method),
    methods.TxSelect: lambda channel, method: channel.modes.select_transactions(),
    methods.TxCommit: lambda channel, method: channel.modes.commit(),
    methods.TxRollback: lambda channel, method: channel.modes.rollback(),
}
