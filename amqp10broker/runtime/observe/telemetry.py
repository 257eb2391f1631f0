"""OpenTelemetry of a running broker: traced sessions and channels, and metrics sent at intervals.

Only threads wait for a receiver: one sends spans while the process runs, and one at a time sends metrics.
Data that a receiver does not accept is lost, counted, and logged once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from time import time_ns
from typing import Final

import trio
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import MetricExportResult

from amqp10broker import __version__
from amqp10broker.config.setting_types import share
from amqp10broker.errors import ConfigError
from amqp10broker.metadata.queue import QueueHandle
from amqp10broker.observe.metrics import Form, Gathering, wanted
from amqp10broker.observe.telemetry import (
    SpanQueue,
    TracedChannel,
    TracedSession,
    Traces,
    data_of,
    provider,
    resource,
)
from amqp10broker.runtime.admin.admin import AdminContext
from amqp10broker.runtime.log import Log
from amqp10broker.runtime.observe.metrics_source import Turn, source_of
from amqp10broker.sessions.amqp091.channel import BrokerChannel
from amqp10broker.sessions.amqp10.session import BrokerSession

_log = Log("amqp10broker.telemetry")

FINISH_S: Final = 2.0
"""How long a stop waits for unsent data."""
NAMES_MAX: Final = 10_000

Traced = tuple[Callable[..., BrokerSession], Callable[..., BrokerChannel]]
"""Makers of traced sessions and channels."""


@asynccontextmanager
async def telling(broker: AdminContext, endpoint: str) -> AsyncIterator[Traced | None]:
    """Send traces and metrics of a broker. Yields the makers of sessions and channels, or None without
    traces. Raises `ConfigError` for an invalid endpoint.
    """
    if not endpoint.startswith(("http://", "https://")):
        allowed = "must be http://HOST:PORT or https://HOST:PORT, without /v1/traces"
        raise ConfigError("otel_endpoint", f"is {endpoint!r}", allowed)
    config = broker.config
    base = endpoint.rstrip("/")
    told_by = resource(config.otel_service_name, __version__, config.node_name or broker.container_id)
    async with trio.open_nursery() as nursery:
        if config.otel_metrics:
            nursery.start_soon(_send_metrics, broker, f"{base}/v1/metrics", told_by)
        if not config.otel_traces:
            yield None
            nursery.cancel_scope.cancel()
            return
        queue = SpanQueue(OTLPSpanExporter(f"{base}/v1/traces"), _tell_of_spans)
        ratio = share(config.otel_traces_sampler_ratio)
        made = provider(told_by, ratio, queue)
        traces = Traces(
            made.get_tracer("amqp10broker", __version__),
            roots=ratio > 0,
            now_ns=time_ns,
            queue_name=QueueNames(broker).of,
            lost=lambda: queue.lose(1, "more are under way than are kept"),
        )
        try:
            yield partial(TracedSession, traces), partial(TracedChannel, traces)
        finally:
            queue.shutdown()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + FINISH_S):
                await trio.to_thread.run_sync(queue.join, FINISH_S, abandon_on_cancel=True)
            if queue.lost_at_last:
                _log.warning("spans were lost", lost=queue.lost_at_last, sent=queue.sent)
        nursery.cancel_scope.cancel()


def _tell_of_spans(why: str, lost: int) -> None:
    if why:
        _log.warning("spans are lost", reason=why)
    else:
        _log.info("spans are sent again", lost=lost)


class QueueNames:
    """The names of queues by their handles."""

    def __init__(self, broker: AdminContext) -> None:
        self._broker = broker
        self._known: dict[QueueHandle, str] = {}

    def of(self, handle: QueueHandle) -> str:
        """Return the name. Queues of direct reply-to are not in the catalog, and share one name."""
        name = self._known.get(handle)
        if name is not None:
            return name
        if len(self._known) >= NAMES_MAX:
            self._known.clear()
        for queue in self._broker.catalog:
            if queue.handle is handle:
                self._known[handle] = queue.name
                return queue.name
        return "(temporary)"


# --- metrics ----------------------------------------------------------------------------------------


async def _send_metrics(broker: AdminContext, endpoint: str, told_by: object) -> None:
    # Gather and send repeatedly. A receiver that hangs only delays the next time.
    exporter = OTLPMetricExporter(endpoint)
    one = trio.CapacityLimiter(1)
    failing = False
    while True:
        await trio.sleep(broker.config.otel_metrics_interval_ms / 1000)
        try:
            data = await _gathered(broker, told_by)
            done = await trio.to_thread.run_sync(exporter.export, data, limiter=one, abandon_on_cancel=True)
            failed = done is not MetricExportResult.SUCCESS
            why = "the exporter could not send them; does a receiver of OTLP over HTTP listen there?"
        except Exception as error:
            failed, why = True, f"{type(error).__name__}: {error}"
        if failed and not failing:
            _log.warning("metrics are not sent", reason=why)
        elif failing and not failed:
            _log.info("metrics are sent again")
        failing = failed


async def _gathered(broker: AdminContext, told_by: object) -> object:
    source = await source_of(broker)
    gathering = Gathering(source, wanted(Form.AGGREGATED))
    turn = Turn()
    for _ in gathering.steps():
        await turn.yield_when_over()
    now_ns = time_ns()
    began_ns = now_ns - int(broker.node_view().uptime_s * 1e9)
    data: object = None
    for piece in data_of(gathering.samples(), told_by, __version__, began_ns, now_ns):
        data = piece
        await turn.yield_when_over()
    return data
