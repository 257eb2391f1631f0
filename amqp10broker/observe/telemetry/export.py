"""A bounded queue of spans, and a thread that passes them to an exporter.

The SDK's own processor drops surplus spans without counting them, and its shutdown waits for an exporter that
hangs, which the broker's loop must not do.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any, Final

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

from amqp10broker.observe.metrics.gather import MetricSamples
from amqp10broker.observe.metrics.table import MetricKind

# Limit of spans that have ended and are not sent; more are lost.
WAITING_MAX: Final = 4_096
BATCH_MAX: Final = 512
# Between two batches that are not full.
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
        """How many spans are lost if no more are sent."""
        return self.lost + self.taken - self.sent - self._failed

    def shutdown(self) -> None:
        """Have the remaining spans sent and the thread ended; returns at once."""
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
