"""Spans and measurements for OpenTelemetry."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from amqp10broker.client.message import Message as Made
from amqp10broker.message.amqp10 import MessageReader
from amqp10broker.message.message import Message
from amqp10broker.observe.metrics import Family, MetricKind, MetricSamples
from amqp10broker.observe.telemetry import PartSpans, Traces, data_of, resource
from amqp10broker.queues.commands import (
    Cancel,
    Confirmed,
    ConsumerRef,
    Deliver,
    DeliveryOutcome,
    GiveBack,
    PeerId,
    Publish,
    PublishRejected,
    QueueDeleted,
    QueueDown,
    ReplyTo,
    Settle,
    Subscribe,
    TimedOut,
    Unconfirmed,
    Unsubscribe,
)

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Part:
    """The spans of one session or channel, by the letters that it is shown."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        time = count(1)
        self.traces = Traces(
            provider.get_tracer("test"),
            roots=False,
            now_ns=lambda: next(time),
            queue_name=str,
            lost=lambda: None,
        )
        self.spans = PartSpans(self.traces, "1.0", "/")
        self.reply_to = ReplyTo(PeerId(0, 1, 1), "part")

    def post(self, queue: Any, *commands: Any) -> None:
        self.spans.heard(object())
        self.spans.posted([(queue, command) for command in commands])

    def hear(self, *effects: Any) -> None:
        self.spans.heard(list(effects))
        self.spans.posted([])

    def ended(self) -> list[tuple[str, str]]:
        found = [
            (span.name, str((span.attributes or {}).get("error.type", "")))
            for span in self.exporter.get_finished_spans()
            if not span.name.startswith("route")
        ]
        self.exporter.clear()
        return found

    def consumer(self, *, settled: bool = False) -> ConsumerRef:
        ref = self.reply_to.consumer()
        self.post("q", Subscribe(ref, settled))
        self.hear(Deliver(ref, (1, 2), (traced(), traced()), 0))
        return ref


@pytest.fixture
def part() -> Iterator[Part]:
    made = Part()
    yield made
    made.spans.close()
    # Whatever has begun has ended, and nothing is kept.
    assert made.traces.open == 0
    assert not made.spans._publishes
    assert not made.spans._consumers


def traced() -> Message:
    return MessageReader("", "q", "guest", False).read(
        Made(b"x", application_properties={"traceparent": PARENT}).encode()
    )


@pytest.mark.parametrize("one_reference", [True, False])
def test_a_publish_ends_with_the_last_of_its_queues(part: Part, one_reference: bool) -> None:
    """In AMQP 1.0 all queues answer under one reference, in 0-9-1 under their own; the first fault stands."""
    first = part.reply_to.publisher()
    second = first if one_reference else part.reply_to.publisher()
    messages = [traced(), traced()]
    part.spans.posted(
        [("q", Publish(first, (1, 2), messages, False)), ("r", Publish(second, (1, 2), messages, False))]
    )
    part.hear(Confirmed(first, (1, 2), False))
    assert part.ended() == []
    part.hear(PublishRejected(second, (1,), False, "r"))
    assert part.ended() == [("publish q", "full")]
    part.hear(Unconfirmed(second, (2,), False))
    assert part.ended() == [("publish q", "deleted")]


def test_deliveries_go_back_for_many_reasons(part: Part) -> None:
    """Each span ends; only a return that the client did not want is an error."""
    one = part.consumer()
    part.hear(TimedOut(one, (1,), "q"))
    part.post("q", GiveBack(one, (2,), (traced(),), 2, 2, 1))
    assert part.ended() == [("deliver q", "timed out"), ("deliver q", "")]
    for effect, error in (
        (lambda ref: QueueDeleted(ref, "q"), "deleted"),
        (lambda ref: QueueDown(ref, "q"), "unavailable"),
    ):
        part.hear(effect(part.consumer()))
        assert part.ended() == [("deliver q", error)] * 2
    part.post("q", Unsubscribe(part.consumer(), (), (), 2, DeliveryOutcome.REQUEUE))
    assert part.ended() == [("deliver q", "")] * 2


def test_a_consumer_that_was_cancelled_is_forgotten_with_its_last_delivery(part: Part) -> None:
    """A channel may have any number of consumers, one after the other."""
    ref = part.consumer()
    part.post("q", Cancel(ref))
    part.hear(Deliver(ref, (3,), (traced(),), 0))
    assert ref in part.spans._consumers
    part.post("q", Settle(ref, (1, 2, 3), DeliveryOutcome.REQUEUE))
    assert part.ended() == [("settle q", ""), ("deliver q", "")] * 2
    assert part.spans._consumers == {}
    idle = part.reply_to.consumer()
    part.post("q", Subscribe(idle, False), Cancel(idle))
    assert part.spans._consumers == {}


INF = "+Inf"


def sent(*samples: MetricSamples) -> dict[str, Any]:
    *steps, data = data_of(samples, resource("s", "1", "n"), "1", 10, 20)
    assert steps == [None] * len(samples)
    assert data is not None
    request = encode_metrics(data)
    (scope,) = request.resource_metrics[0].scope_metrics
    return {metric.name: metric for metric in scope.metrics}


def test_counters_gauges_and_histograms_keep_their_meaning() -> None:
    """A Prometheus bucket counts all values below its bound, an OTLP bucket those between two."""
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
