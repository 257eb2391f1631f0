"""Metrics for OTLP, from the samples for Prometheus, with the same names and labels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
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
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from amqp10broker.observe.metrics.gather import MetricSamples
from amqp10broker.observe.metrics.table import MetricKind

SCOPE: Final = "amqp10broker"
_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE


def data_of(
    found: Iterable[MetricSamples], resource: Resource, version: str, began_ns: int, now_ns: int
) -> Iterator[MetricsData | None]:
    """Convert all metrics step by step; only the last step yields data. `began_ns`: beginning of the
    counters, since 1970.
    """
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
