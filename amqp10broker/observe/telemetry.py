"""OpenTelemetry (the extra ``otel``): spans of messages, and the export of spans and metrics.

Spans are made of the commands of a session or channel to queues and the effects from them, which publishes,
routing, deliveries and settlement all cross.

===========  ========  ======================================================================================
span         kind      from, to
===========  ========  ======================================================================================
``publish``  server    the iteration that processed the message; the last of its queues has answered
``route``    internal  the same beginning; its queues are known. Child of ``publish``
``deliver``  server    the queue's delivery has come; the client has settled it, or it was returned
``settle``   server    the iteration that processed the client's outcome; it goes to the queue. Child of
                       ``deliver``
===========  ========  ======================================================================================

Spans are exported by a bounded queue and a thread: the SDK's own processor drops surplus spans without
counting them, and its shutdown waits for an exporter that hangs, which the broker's loop must not do.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
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

from amqp10broker.message.message import Message
from amqp10broker.message.tracing import destination, ids, trace_fields
from amqp10broker.metadata.queue import QueueCommand, QueueHandle
from amqp10broker.observe.metrics import MetricKind, MetricSamples
from amqp10broker.queues.commands import (
    Cancel,
    Confirmed,
    ConsumerRef,
    Deliver,
    Effect,
    GiveBack,
    Publish,
    PublisherRef,
    PublishRejected,
    QueueDeleted,
    QueueDown,
    Settle,
    Subscribe,
    TimedOut,
    Unconfirmed,
    Unsubscribe,
)
from amqp10broker.sessions.amqp091.channel import BrokerChannel
from amqp10broker.sessions.amqp10.session import BrokerSession
from amqp10broker.sessions.context import ChannelContext, Outlet, SessionContext, SessionEndpoint
from amqp10broker.sessions.messages import SessionMessage

SYSTEM: Final = "amqp10broker"
# The spans that have not ended, in the whole broker. More are not begun, and count as lost.
OPEN_MAX: Final = 10_000
_PROPAGATOR: Final = TraceContextTextMapPropagator()

Attributes = dict[str, Any]


class Traces:
    """The state that all sessions and channels of a broker share. `open` counts spans that have not ended."""

    def __init__(
        self,
        tracer: Tracer,
        *,
        roots: bool,
        now_ns: Callable[[], int],
        queue_name: Callable[[QueueHandle], str],
        lost: Callable[[], None],
    ) -> None:
        self.tracer = tracer
        self.now_ns = now_ns
        self.queue_name = queue_name
        self.open = 0
        self._roots = roots
        self._lost = lost

    def context_of(self, message: Message, *, may_begin: bool) -> Context | None:
        """Return a message's trace context, or None. `may_begin`: a message without one begins a trace."""
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
        """Begin a span; None: it is not sampled, or there are too many."""
        if self.open >= OPEN_MAX:
            self._lost()
            return None
        span = self.tracer.start_span(name, context, kind, attributes, links, at_ns)
        if not span.is_recording():
            return None
        self.open += 1
        return span

    def end(self, span: Any, at_ns: int, error: str = "") -> None:
        """End a span. `error` is a short reason, empty for success."""
        if error:
            span.set_attribute("error.type", error)
            span.set_status(Status(StatusCode.ERROR))
        span.end(at_ns)
        self.open -= 1


class _Publish:
    # A message being routed. `left` counts queues that have not answered, under one of `keys`.

    __slots__ = ("error", "keys", "left", "span")

    def __init__(self, span: Any, left: int, keys: set[tuple[PublisherRef, int]]) -> None:
        self.span = span
        self.left = left
        self.keys = keys
        self.error = ""


class _ConsumerSpans:
    __slots__ = ("cancelled", "epoch", "held", "queue", "settled")

    def __init__(self, queue: str, settled: bool) -> None:
        self.queue = queue
        self.settled = settled
        self.epoch = 0
        self.cancelled = False
        self.held: dict[int, Any] = {}


class PartSpans:
    """The spans of one session or channel."""

    def __init__(self, traces: Traces, version: str, vhost: str) -> None:
        self._traces = traces
        self._common: Attributes = {
            "messaging.system": SYSTEM,
            "network.protocol.name": "amqp",
            "network.protocol.version": version,
            "amqp10broker.vhost": vhost,
        }
        self._began_ns: int | None = None
        self._publishes: dict[tuple[PublisherRef, int], _Publish] = {}
        self._consumers: dict[ConsumerRef, _ConsumerSpans] = {}
        # Deliveries of this iteration that the client has not settled.
        self._sent: list[Any] = []

    # --- events -------------------------------------------------------------------------------------

    def heard(self, message: object) -> None:
        """Observe effects from queues before they are processed."""
        if self._began_ns is None:
            self._began_ns = self._traces.now_ns()
        if isinstance(message, list):
            for effect in message:
                self._heard(effect)

    def _heard(self, effect: Effect) -> None:
        match effect:
            case Confirmed():
                self._answered(effect.publisher, effect.ids, "")
            case Unconfirmed():
                self._answered(effect.publisher, effect.ids, "unavailable" if effect.failed else "deleted")
            case PublishRejected():
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

    def posted(self, mail: Sequence[QueueCommand]) -> None:
        """Observe the commands of an iteration when they are sent to queues."""
        now_ns = self._traces.now_ns()
        began_ns = now_ns if self._began_ns is None else self._began_ns
        self._began_ns = None
        # A message that is routed to several queues is in one list, which they share.
        batches: dict[int, list[tuple[QueueHandle, Publish]]] = {}
        for handle, command in mail:
            match command:
                case Publish():
                    batches.setdefault(id(command.messages), []).append((handle, command))
                case Settle():
                    self._settle(command, began_ns, now_ns)
                case Subscribe():
                    name = self._traces.queue_name(handle)
                    self._consumers[command.consumer] = _ConsumerSpans(name, command.settled)
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
        """Record messages of the client without a queue."""
        now_ns = self._traces.now_ns()
        began_ns = now_ns if self._began_ns is None else self._began_ns
        for message in messages:
            span = self._begin_publish(message, began_ns)
            if span is not None:
                self._traces.end(span, now_ns, "unroutable")

    def close(self) -> None:
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
            # In AMQP 1.0 all queues answer under one reference, in 0-9-1 each under another.
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
            return  # the session rejects them, too
        traces = self._traces
        for key, message in zip(effect.keys, effect.messages, strict=True):
            context = traces.context_of(message, may_begin=False)
            if context is None:
                continue
            attributes = self._of_message(message, "deliver", "receive")
            attributes["messaging.destination.name"] = consumer.queue
            # The consumer's span links to the span that created the message, whatever its parent there is.
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
        delivery_outcome, queue = command.delivery_outcome.name.lower(), consumer.queue
        for span in self._taken(command.consumer, command.keys):
            settle = self._traces.begin(
                f"settle {queue}",
                set_span_in_context(span, Context()),
                {
                    **self._common,
                    "messaging.operation.name": "settle",
                    "messaging.operation.type": "settle",
                    "messaging.destination.name": queue,
                    "amqp10broker.verdict": delivery_outcome,
                },
                began_ns,
            )
            if settle is not None:
                self._traces.end(settle, now_ns)
            self._traces.end(span, now_ns)
        self._forget_if_idle(command.consumer, consumer)

    def _forget_if_idle(self, ref: ConsumerRef, consumer: _ConsumerSpans) -> None:
        # After a consumer was cancelled, a channel observes only the settlement of its deliveries.
        if consumer.cancelled and not consumer.held:
            del self._consumers[ref]

    def _back(self, ref: ConsumerRef, keys: Iterable[int], error: str) -> None:
        for span in self._taken(ref, keys):
            span.add_event("given back", timestamp=self._traces.now_ns())
            self._traces.end(span, self._traces.now_ns(), error)

    def _gone(self, ref: ConsumerRef, error: str) -> None:
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


class _Traced(SessionEndpoint):
    # `super()` calls the session or channel that is the next base of the classes below.
    _spans: PartSpans

    def handle(self, message: SessionMessage) -> None:
        self._spans.heard(message)
        super().handle(message)  # type: ignore[safe-super]

    def take_commands(self) -> list[QueueCommand]:
        commands = super().take_commands()
        self._spans.posted(commands)
        return commands

    def write_output(self, outlet: Outlet) -> None:
        super().write_output(outlet)
        if not self.commands:
            self._spans.posted(())  # otherwise it is called when they are taken

    def release(self) -> None:
        self._spans.close()
        super().release()  # type: ignore[safe-super]


class TracedSession(_Traced, BrokerSession):
    def __init__(
        self, traces: Traces, channel: int, begin: Any, context: SessionContext, **rest: Any
    ) -> None:
        self._spans = PartSpans(traces, "1.0", context.vhost.name)
        super().__init__(channel, begin, replace(context, on_unroutable=self._spans.unroutable), **rest)


class TracedChannel(_Traced, BrokerChannel):
    def __init__(self, traces: Traces, number: int, context: ChannelContext) -> None:
        self._spans = PartSpans(traces, "0.9.1", context.vhost.name)
        super().__init__(number, replace(context, on_unroutable=self._spans.unroutable))


# --- export -----------------------------------------------------------------------------------------

# Spans that have ended and are not sent; more are lost.
WAITING_MAX: Final = 4_096
BATCH_MAX: Final = 512
# The pause between two batches that are not full.
PAUSE_S: Final = 2.0
Tell = Callable[[str, int], None]
"""Called from any thread with a reason and the total of lost spans; an empty reason: sending works again."""


class SpanQueue(SpanProcessor):
    """`taken`: spans accepted in time; some of them wait, or are being exported."""

    def __init__(self, exporter: SpanExporter, tell: Tell) -> None:
        self._exporter = exporter
        self._tell = tell
        self._waiting: deque[ReadableSpan] = deque()
        self._lock = threading.Lock()
        self._more = threading.Event()
        self._ended = False
        self._losing = False
        self.lost = 0
        self.sent = 0
        self.taken = 0
        self._failed = 0
        # A daemon ends with the process, whatever the exporter does.
        self._thread = threading.Thread(target=self._work, name="traces", daemon=True)
        self._thread.start()

    def on_end(self, span: ReadableSpan) -> None:
        """Add a span that has ended; never blocks."""
        with self._lock:
            full = len(self._waiting) >= WAITING_MAX
            if not full:
                self.taken += 1
                self._waiting.append(span)
                if len(self._waiting) == BATCH_MAX:
                    self._more.set()
        if full:
            self.lose(1, "they end faster than they are sent")

    def lose(self, count: int, why: str) -> None:
        with self._lock:
            self.lost += count
            first, self._losing = not self._losing, True
        if first:
            self._tell(why, self.lost)

    @property
    def lost_at_last(self) -> int:
        """Return how many spans are lost if no more are sent."""
        return self.lost + self.taken - self.sent - self._failed

    def shutdown(self) -> None:
        """Request that the remaining spans are sent and the thread ends; returns at once."""
        self._ended = True
        self._more.set()

    def join(self, within_s: float) -> bool:
        """Wait for the end of the thread; return whether it has ended."""
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Do nothing: no span waits for long."""
        return True

    def _work(self) -> None:
        while True:
            with self._lock:
                count = min(BATCH_MAX, len(self._waiting))
                batch = [self._waiting.popleft() for _ in range(count)]
                self._more.clear()
            if batch:
                self._send(batch)
            elif self._ended:
                break
            if len(batch) < BATCH_MAX and not self._ended:
                self._more.wait(PAUSE_S)
        self._exporter.shutdown()

    def _send(self, batch: list[ReadableSpan]) -> None:
        try:
            done = self._exporter.export(batch) is SpanExportResult.SUCCESS
            why = "the exporter could not send them; does a receiver of OTLP over HTTP listen there?"
        except Exception as error:
            done, why = False, f"the exporter failed: {type(error).__name__}: {error}"
        if not done:
            self._failed += len(batch)
            self.lose(len(batch), why)
            return
        self.sent += len(batch)
        with self._lock:
            # While the queue is nearly full, more may be lost.
            again = self._losing and len(self._waiting) < WAITING_MAX // 2
            self._losing = self._losing and not again
        if again:
            self._tell("", self.lost)


def provider(resource: Resource, ratio: float, queue: SpanQueue) -> TracerProvider:
    made = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(ratio)), resource=resource, shutdown_on_exit=False
    )
    made.add_span_processor(queue)
    return made


def resource(service: str, version: str, instance: str) -> Resource:
    """Return the resource of this broker, with the attributes of ``OTEL_RESOURCE_ATTRIBUTES``."""
    attributes = {"service.name": service, "service.version": version, "service.instance.id": instance}
    return Resource.create(attributes)


SCOPE: Final = "amqp10broker"
_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE


def data_of(
    found: Iterable[MetricSamples], resource: Resource, version: str, began_ns: int, now_ns: int
) -> Iterator[MetricsData | None]:
    """Convert all metrics step by step; only the last step yields data. `began_ns`: of the counters."""
    metrics: dict[str, Metric] = {}
    for samples in found:
        family = samples.family
        rows = list(samples.samples)
        yield None
        data: Any
        match family.kind:
            case MetricKind.COUNTER:
                data = Sum(_numbers(samples.labels, rows, began_ns, now_ns), _CUMULATIVE, is_monotonic=True)
            case MetricKind.HISTOGRAM:
                data = Histogram(_histograms(samples.labels, rows, began_ns, now_ns), _CUMULATIVE)
            case _:
                data = Gauge(_numbers(samples.labels, rows, now_ns, now_ns))
        if family.name in metrics:
            metrics[family.name].data.data_points.extend(data.data_points)
        else:
            metrics[family.name] = Metric(family.name, family.help, "", data)
    scope = ScopeMetrics(InstrumentationScope(SCOPE, version), list(metrics.values()), "")
    yield MetricsData([ResourceMetrics(resource, [scope], "")])


Row = tuple[str, tuple[str, ...], float]


def _numbers(
    labels: tuple[str, ...], rows: Iterable[Row], began_ns: int, now_ns: int
) -> list[NumberDataPoint]:
    return [
        NumberDataPoint(dict(zip(labels, values, strict=True)), began_ns, now_ns, value)
        for _, values, value in rows
    ]


def _histograms(
    labels: tuple[str, ...], rows: Iterable[Row], began_ns: int, now_ns: int
) -> list[HistogramDataPoint]:
    # Converts cumulative buckets to single ones.
    ends: defaultdict[tuple[str, ...], list[tuple[float, int]]] = defaultdict(list)
    sums: dict[tuple[str, ...], float] = {}
    for suffix, values, value in rows:
        if suffix == "_bucket":
            ends[values[:-1]].append((float(values[-1]), int(value)))
        elif suffix == "_sum":
            sums[values] = value
    points = []
    for values, buckets in ends.items():
        below = [0, *(count for _, count in buckets)]
        counts = [after - before for before, after in pairwise(below)]
        bounds = [end for end, _ in buckets if end != float("inf")]
        total = below[-1]
        # Minimum and maximum are unknown, only their buckets.
        unknown: Any = None
        attributes = dict(zip(labels, values, strict=True))
        points.append(
            HistogramDataPoint(
                attributes, began_ns, now_ns, total, sums[values], counts, bounds, unknown, unknown
            )
        )
    return points
