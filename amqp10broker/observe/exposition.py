"""Samples as text, by prometheus-client, which only this module imports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.metadata import version
from itertools import islice
from typing import Final

from prometheus_client import exposition
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics_exposition
from prometheus_client.registry import Collector

from amqp10broker.observe.metrics import (
    Family,
    Gathering,
    MetricKind,
    MetricSamples,
    MetricSource,
    ScrapeRequest,
)

# The number of samples that a step writes, in a few milliseconds.
SAMPLES_AT_ONCE: Final = 250
CLIENT_VERSION: Final = version("prometheus-client")

_END: Final = b"# EOF\n"


class _One(Collector):
    # The library collects a metric from this object.

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def scrape(source: MetricSource, wanted: ScrapeRequest) -> Iterator[bytes]:
    """Yield the response step by step; most steps only gather, and yield no bytes."""
    gathering = Gathering(source, wanted)
    for _ in gathering.steps():
        yield b""
    for samples in gathering.samples():
        yield from _texts(samples, openmetrics=wanted.openmetrics)
    if wanted.openmetrics:
        yield _END


def _texts(samples: MetricSamples, *, openmetrics: bool) -> Iterator[bytes]:
    # The first piece of a metric has its meaning and its kind.
    rows = iter(samples.samples)
    first = not samples.run_inline
    while some := list(islice(rows, SAMPLES_AT_ONCE)):
        text = _text(samples.family, samples.labels, some, openmetrics=openmetrics)
        yield text if first else text.split(b"\n", 2)[2]
        first = False


def _text(
    family: Family,
    labels: tuple[str, ...],
    samples: Iterable[tuple[str, tuple[str, ...], float]],
    *,
    openmetrics: bool,
) -> bytes:
    is_counter = family.kind is MetricKind.COUNTER
    total = is_counter and family.name.endswith("_total")
    # RabbitMQ has counters without this suffix; OpenMetrics, and the library, do not allow them.
    kind = "unknown" if family.kind is MetricKind.UNTYPED or (is_counter and not total) else family.kind.value
    name = family.name.removesuffix("_total") if total else family.name
    metric = Metric(name, family.help, kind)
    histogram = (*labels, "le")
    for suffix, values, value in samples:
        names = histogram if suffix == "_bucket" else labels
        metric.add_sample(family.name + suffix, dict(zip(names, values, strict=True)), value)
    if openmetrics:
        whole: bytes = openmetrics_exposition.generate_latest(_One(metric))  # type: ignore[no-untyped-call]
        return whole.removesuffix(_END)
    text = exposition.generate_latest(_One(metric))
    return text.replace(b" untyped\n", b" counter\n", 1) if is_counter and not total else text
