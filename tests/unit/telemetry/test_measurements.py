"""Metrics as OTLP has them: the same numbers as Prometheus is told."""

from __future__ import annotations

from typing import Any

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

from amqp10broker.observe.metrics.gather import MetricSamples
from amqp10broker.observe.metrics.table import Family, MetricKind
from amqp10broker.observe.telemetry.export import data_of, resource

INF = "+Inf"


def sent(*samples: MetricSamples) -> dict[str, Any]:
    *steps, data = data_of(samples, resource("s", "1", "n"), "1", 10, 20)
    assert steps == [None] * len(samples)
    assert data is not None
    request = encode_metrics(data)
    (scope,) = request.resource_metrics[0].scope_metrics
    return {metric.name: metric for metric in scope.metrics}


def test_counters_gauges_and_histograms_keep_their_meaning() -> None:
    """A histogram of Prometheus counts all below each end, one of OTLP what lies between two."""
    buckets = [("_bucket", ("link", end), count) for end, count in (("0.1", 2.0), ("1.0", 5.0), (INF, 6.0))]
    found = sent(
        MetricSamples(
            Family("c_total", MetricKind.COUNTER, "counts"), ("p",), [("", ("a",), 3.0), ("", ("b",), 4.0)]
        ),
        MetricSamples(Family("g", MetricKind.GAUGE, "stands"), (), [("", (), 7.0)]),
        MetricSamples(
            Family("h", MetricKind.HISTOGRAM, "lasts"),
            ("of",),
            [*buckets, ("_count", ("link",), 6.0), ("_sum", ("link",), 9.5)],
        ),
    )
    counter = found["c_total"].sum
    assert (counter.is_monotonic, counter.aggregation_temporality) == (True, 2)
    assert [(p.attributes[0].value.string_value, p.as_double) for p in counter.data_points] == [
        ("a", 3),
        ("b", 4),
    ]
    assert {(p.start_time_unix_nano, p.time_unix_nano) for p in counter.data_points} == {(10, 20)}
    (gauge,) = found["g"].gauge.data_points
    assert (gauge.as_double, list(gauge.attributes)) == (7.0, [])
    (histogram,) = found["h"].histogram.data_points
    assert list(histogram.bucket_counts) == [2, 3, 1]
    assert list(histogram.explicit_bounds) == [0.1, 1.0]
    assert (histogram.count, histogram.sum) == (6, 9.5)
    assert not histogram.HasField("min")
    assert found["h"].description == "lasts"


def test_a_metric_in_pieces_is_one() -> None:
    family = Family("g", MetricKind.GAUGE, "stands")
    found = sent(
        MetricSamples(family, ("q",), [("", ("a",), 1.0)]),
        MetricSamples(family, ("q",), [("", ("b",), 2.0)], run_inline=True),
    )
    assert [point.as_double for point in found["g"].gauge.data_points] == [1.0, 2.0]
