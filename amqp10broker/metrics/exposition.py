"""Samples as text, by prometheus-client: the only file that knows it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import Final

from prometheus_client import exposition
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics_exposition
from prometheus_client.registry import Collector

from amqp10broker.metrics.gather import Gathering, Samples, Source
from amqp10broker.metrics.table import Kind
from amqp10broker.metrics.wanted import Wanted

SAMPLES_AT_ONCE: Final = 500
"""A step writes so many: a few thousandths of a second."""
CLIENT_VERSION: Final = version("prometheus-client")

_END: Final = b"# EOF\n"


class _One(Collector):
    """What the library takes a metric from."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def scrape(source: Source, wanted: Wanted) -> Iterator[bytes]:
    """The whole answer, step by step; most steps only look, and give nothing.

    Args:
        source: the broker.
        wanted: what is asked for.
    """
    gathering = Gathering(source, wanted)
    for _ in gathering.steps():
        yield b""
    for samples in gathering.samples():
        yield from _texts(samples, openmetrics=wanted.openmetrics)
    if wanted.openmetrics:
        yield _END


def _texts(samples: Samples, *, openmetrics: bool) -> Iterator[bytes]:
    """A metric in pieces of which only the first has its meaning and its kind."""
    rows = samples.samples
    for first in range(0, len(rows), SAMPLES_AT_ONCE):
        text = _text(samples, first, openmetrics=openmetrics)
        if first:
            text = text.split(b"\n", 2)[2]
        yield text


def _text(samples: Samples, first: int, *, openmetrics: bool) -> bytes:
    family = samples.family
    is_counter = family.kind is Kind.COUNTER
    total = is_counter and family.name.endswith("_total")
    # RabbitMQ has counters whose names have no such end; OpenMetrics, and the library, have none.
    kind = "unknown" if family.kind is Kind.UNTYPED or (is_counter and not total) else family.kind.value
    name = family.name.removesuffix("_total") if total else family.name
    metric = Metric(name, family.help, kind)
    histogram = (*samples.labels, "le")
    for suffix, labels, value in samples.samples[first : first + SAMPLES_AT_ONCE]:
        names = histogram if suffix == "_bucket" else samples.labels
        metric.add_sample(family.name + suffix, dict(zip(names, labels, strict=True)), value)
    if openmetrics:
        whole: bytes = openmetrics_exposition.generate_latest(_One(metric))  # type: ignore[no-untyped-call]
        return whole.removesuffix(_END)
    text = exposition.generate_latest(_One(metric))
    return text.replace(b" untyped\n", b" counter\n", 1) if is_counter and not total else text
