"""Spans of what one session or channel does with messages, made of its letters to and from queues.

A publish, its routing, a delivery and its settlement all cross the boundary between a session or channel and
its queues, as commands and effects. So what traces looks at these, and at nothing else (ADR 0071).

===========  ========  ======================================================================================
span         kind      from, to
===========  ========  ======================================================================================
``publish``  server    the wake in which the message was handled; the last of its queues has answered
``route``    internal  the same beginning; its queues are known. Child of ``publish``
``deliver``  server    the queue's delivery has come; the client has settled it, or it went back
``settle``   server    the wake in which the client's decision was handled; it goes to the queue. Child of
                       ``deliver``
===========  ========  ======================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from amqp10broker.catalog.queue import QueueHandle
from amqp10broker.message.message import Message
from amqp10broker.message.trace_context import destination, ids, trace_fields
from amqp10broker.queues.commands import (
    Cancel,
    Command,
    ConsumerRef,
    GiveBack,
    Publish,
    PublisherRef,
    Settle,
    Subscribe,
    Unsubscribe,
)
from amqp10broker.queues.effects import (
    Confirmed,
    Deliver,
    Effect,
    QueueDeleted,
    QueueDown,
    Rejected,
    TimedOut,
    Unconfirmed,
)

SYSTEM: Final = "amqp10broker"
OPEN_MAX: Final = 10_000
"""Spans that have begun and not ended, of the whole broker. Others are not begun, and count as lost."""

_PROPAGATOR: Final = TraceContextTextMapPropagator()

Attributes = dict[str, Any]


class Traces:
    """What all sessions and channels of a broker share.

    Attributes:
        open: spans that have begun and not ended.
    """

    def __init__(
        self,
        tracer: Tracer,
        *,
        roots: bool,
        now_ns: Callable[[], int],
        queue_name: Callable[[QueueHandle], str],
        lost: Callable[[], None],
    ) -> None:
        """Begin with nothing.

        Args:
            tracer: makes spans; its sampler decides about those without a parent.
            roots: messages without a trace may begin one.
            now_ns: the time, since 1970.
            queue_name: the name of a queue.
            lost: told of each span that could not be begun.
        """
        self.tracer = tracer
        self.now_ns = now_ns
        self.queue_name = queue_name
        self.open = 0
        self._roots = roots
        self._lost = lost

    def context_of(self, message: Message, *, may_begin: bool) -> Context | None:
        """The trace of a message; None: nothing is to be traced.

        Args:
            message: looked at.
            may_begin: without a trace of its own it may get one.
        """
        fields = trace_fields(message)
        if fields is None:
            return None
        if fields:
            context = _PROPAGATOR.extract(fields, Context())
            span_context = get_current_span(context).get_span_context()
            if span_context.is_valid:
                return context if span_context.trace_flags.sampled else None
        return Context() if may_begin and self._roots else None

    def begin(
        self,
        name: str,
        context: Context,
        attributes: Attributes,
        at_ns: int,
        *,
        kind: SpanKind = SpanKind.SERVER,
        links: Sequence[Link] = (),
    ) -> Any:
        """A span; None: it is not sampled, or there are too many."""
        if self.open >= OPEN_MAX:
            self._lost()
            return None
        span = self.tracer.start_span(name, context, kind, attributes, links, at_ns)
        if not span.is_recording():
            return None
        self.open += 1
        return span

    def end(self, span: Any, at_ns: int, error: str = "") -> None:
        """End a span.

        Args:
            span: that has begun.
            at_ns: when.
            error: what went wrong, in a word or two.
        """
        if error:
            span.set_attribute("error.type", error)
            span.set_status(Status(StatusCode.ERROR))
        span.end(at_ns)
        self.open -= 1


class _Publish:
    """A message on its way into queues.

    Attributes:
        span: of it.
        left: queues that have not answered.
        keys: under which they will.
        error: of those that have.
    """

    __slots__ = ("error", "keys", "left", "span")

    def __init__(self, span: Any, left: int, keys: set[tuple[PublisherRef, int]]) -> None:
        self.span = span
        self.left = left
        self.keys = keys
        self.error = ""


class _Consumer:
    """A consumer's deliveries.

    Attributes:
        queue: its name.
        settled: the client settles nothing.
        epoch: of its last `GiveBack`; deliveries of an older one do not count.
        cancelled: nor does any more.
        held: spans by the queue's number of the delivery.
    """

    __slots__ = ("cancelled", "epoch", "held", "queue", "settled")

    def __init__(self, queue: str, settled: bool) -> None:
        self.queue = queue
        self.settled = settled
        self.epoch = 0
        self.cancelled = False
        self.held: dict[int, Any] = {}


class PartSpans:
    """Those of one session or channel."""

    def __init__(self, traces: Traces, version: str, vhost: str) -> None:
        """Begin with nothing.

        Args:
            traces: of the broker.
            version: of AMQP.
            vhost: the client's virtual host.
        """
        self._traces = traces
        self._common: Attributes = {
            "messaging.system": SYSTEM,
            "network.protocol.name": "amqp",
            "network.protocol.version": version,
            "amqp10broker.vhost": vhost,
        }
        self._began_ns: int | None = None
        self._publishes: dict[tuple[PublisherRef, int], _Publish] = {}
        self._consumers: dict[ConsumerRef, _Consumer] = {}
        # Deliveries of this wake that nobody will settle.
        self._sent: list[Any] = []

    # --- letters ------------------------------------------------------------------------------------

    def heard(self, letter: object) -> None:
        """A letter is about to be handled."""
        if self._began_ns is None:
            self._began_ns = self._traces.now_ns()
        if isinstance(letter, list):
            for effect in letter:
                self._heard(effect)

    def _heard(self, effect: Effect) -> None:
        match effect:
            case Confirmed():
                self._answered(effect.publisher, effect.ids, "")
            case Unconfirmed():
                self._answered(effect.publisher, effect.ids, "unavailable" if effect.failed else "deleted")
            case Rejected():
                self._answered(effect.publisher, effect.ids, "full")
            case Deliver():
                self._deliver(effect)
            case TimedOut():
                self._back(effect.consumer, effect.keys, "timed out")
            case QueueDeleted(ref=ConsumerRef() as consumer):
                self._gone(consumer, "deleted")
            case QueueDown():
                self._gone(effect.consumer, "unavailable")
            case _:
                return

    def posted(self, mail: Sequence[tuple[QueueHandle, Command]]) -> None:
        """A wake is over: letters go to queues, and what could be written is written."""
        now_ns = self._traces.now_ns()
        began_ns = now_ns if self._began_ns is None else self._began_ns
        self._began_ns = None
        # A message that goes to several queues is in one list, which all of them get.
        batches: dict[int, list[tuple[QueueHandle, Publish]]] = {}
        for handle, command in mail:
            match command:
                case Publish():
                    batches.setdefault(id(command.messages), []).append((handle, command))
                case Settle():
                    self._settle(command, began_ns, now_ns)
                case Subscribe():
                    name = self._traces.queue_name(handle)
                    self._consumers[command.consumer] = _Consumer(name, command.settled)
                case GiveBack():
                    self._back(command.consumer, command.keys, "")
                    if (consumer := self._consumers.get(command.consumer)) is not None:
                        consumer.epoch = command.epoch
                case Cancel():
                    if (consumer := self._consumers.get(command.consumer)) is not None:
                        consumer.cancelled = True
                        self._forget_if_idle(command.consumer, consumer)
                case Unsubscribe():
                    self._gone(command.consumer, "")
                case _:
                    pass
        for batch in batches.values():
            self._publish(batch, began_ns, now_ns)
        for span in self._sent:
            self._traces.end(span, now_ns)
        self._sent.clear()

    def unroutable(self, messages: Sequence[Message]) -> None:
        """There is no queue for messages of the client."""
        now_ns = self._traces.now_ns()
        began_ns = now_ns if self._began_ns is None else self._began_ns
        for message in messages:
            span = self._begin_publish(message, began_ns)
            if span is not None:
                self._traces.end(span, now_ns, "unroutable")

    def close(self) -> None:
        """It is over: what has begun ends."""
        now_ns = self._traces.now_ns()
        for publish in {id(each): each for each in self._publishes.values()}.values():
            self._traces.end(publish.span, now_ns, "connection ended")
        self._publishes.clear()
        for ref in list(self._consumers):
            self._gone(ref, "connection ended")

    # --- publishing ---------------------------------------------------------------------------------

    def _publish(self, batch: list[tuple[QueueHandle, Publish]], began_ns: int, now_ns: int) -> None:
        first = batch[0][1]
        names: list[str] = []
        for number, message in zip(first.ids, first.messages, strict=True):
            span = self._begin_publish(message, began_ns)
            if span is None:
                continue
            names = names or [self._traces.queue_name(handle) for handle, _ in batch]
            exchange, _ = destination(message)
            route = self._traces.begin(
                f"route {exchange or names[0]}",
                set_span_in_context(span, Context()),
                {**self._common, "messaging.operation.name": "route", "amqp10broker.queues": names},
                began_ns,
                kind=SpanKind.INTERNAL,
            )
            if route is not None:
                self._traces.end(route, now_ns)
            # Of AMQP 1.0 all queues answer under one reference, of 0-9-1 each under another.
            keys = {(command.publisher, number) for _, command in batch}
            publish = _Publish(span, len(batch), keys)
            self._publishes.update(dict.fromkeys(keys, publish))

    def _begin_publish(self, message: Message, began_ns: int) -> Any:
        context = self._traces.context_of(message, may_begin=True)
        if context is None:
            return None
        exchange, key = destination(message)
        attributes = self._of_message(message, "publish", "send")
        attributes["messaging.rabbitmq.destination.routing_key"] = key
        attributes["messaging.destination.name"] = (
            f"{exchange}:{key}" if exchange and key else exchange or key
        )
        return self._traces.begin(f"publish {exchange or key}", context, attributes, began_ns)

    def _answered(self, publisher: PublisherRef, numbers: Iterable[int], error: str) -> None:
        if not self._publishes:
            return
        for number in numbers:
            publish = self._publishes.get((publisher, number))
            if publish is None:
                continue
            publish.left -= 1
            publish.error = publish.error or error
            if publish.left == 0:
                for key in publish.keys:
                    del self._publishes[key]
                self._traces.end(publish.span, self._traces.now_ns(), publish.error)

    # --- consuming ----------------------------------------------------------------------------------

    def _deliver(self, effect: Deliver) -> None:
        consumer = self._consumers.get(effect.consumer)
        if consumer is None or consumer.cancelled or effect.epoch != consumer.epoch:
            return  # the session does not take them either
        traces = self._traces
        for key, message in zip(effect.keys, effect.messages, strict=True):
            context = traces.context_of(message, may_begin=False)
            if context is None:
                continue
            attributes = self._of_message(message, "deliver", "receive")
            attributes["messaging.destination.name"] = consumer.queue
            # The consumer's side links to where the message was made, whoever is its parent there.
            links = [Link(get_current_span(context).get_span_context())]
            name = f"deliver {consumer.queue}"
            span = traces.begin(name, context, attributes, traces.now_ns(), links=links)
            if span is None:
                continue
            if consumer.settled:
                self._sent.append(span)
            else:
                consumer.held[key] = span

    def _settle(self, command: Settle, began_ns: int, now_ns: int) -> None:
        consumer = self._consumers.get(command.consumer)
        if consumer is None:
            return
        verdict, queue = command.verdict.name.lower(), consumer.queue
        for span in self._taken(command.consumer, command.keys):
            settle = self._traces.begin(
                f"settle {queue}",
                set_span_in_context(span, Context()),
                {
                    **self._common,
                    "messaging.operation.name": "settle",
                    "messaging.operation.type": "settle",
                    "messaging.destination.name": queue,
                    "amqp10broker.verdict": verdict,
                },
                began_ns,
            )
            if settle is not None:
                self._traces.end(settle, now_ns)
            self._traces.end(span, now_ns)
        self._forget_if_idle(command.consumer, consumer)

    def _forget_if_idle(self, ref: ConsumerRef, consumer: _Consumer) -> None:
        """A channel says no more of a consumer that was cancelled than what becomes of its deliveries."""
        if consumer.cancelled and not consumer.held:
            del self._consumers[ref]

    def _back(self, ref: ConsumerRef, keys: Iterable[int], error: str) -> None:
        """Deliveries went back to the queue."""
        for span in self._taken(ref, keys):
            span.add_event("given back", timestamp=self._traces.now_ns())
            self._traces.end(span, self._traces.now_ns(), error)

    def _gone(self, ref: ConsumerRef, error: str) -> None:
        """The consumer is gone, and what it held goes back."""
        consumer = self._consumers.get(ref)
        if consumer is not None:
            self._back(ref, list(consumer.held), error)
            del self._consumers[ref]

    def _taken(self, ref: ConsumerRef, keys: Iterable[int]) -> Iterator[Any]:
        consumer = self._consumers.get(ref)
        if consumer is None or not consumer.held:
            return
        for key in keys:
            span = consumer.held.pop(key, None)
            if span is not None:
                yield span

    def _of_message(self, message: Message, operation: str, kind: str) -> Attributes:
        message_id, correlation_id = ids(message)
        attributes = {
            **self._common,
            "messaging.operation.name": operation,
            "messaging.operation.type": kind,
            "messaging.message.envelope.size": len(message[0]) + len(message[1]),
        }
        if message_id is not None:
            attributes["messaging.message.id"] = message_id
        if correlation_id is not None:
            attributes["messaging.message.conversation_id"] = correlation_id
        return attributes
