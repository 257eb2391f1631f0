"""The real process sends traces and metrics to a receiver of OTLP over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from pika.adapters.blocking_connection import BlockingConnection

from tests.support.broker_process import BrokerProcess, StartBroker
from tests.support.pika_client import Properties, parameters

pytestmark = pytest.mark.usefixtures("deadline")

TRACE = "0af7651916cd43dd8448eb211c80319c"


class Receiver:
    """A collector that keeps what comes."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.metrics: dict[str, Any] = {}
        self.resources: list[dict[str, str]] = []
        kept = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                kept.take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *arguments: Any) -> None:
                """Not to standard error."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for part in ExportTraceServiceRequest.FromString(body).resource_spans:
                self._note(part.resource)
                for scope in part.scope_spans:
                    self.spans += scope.spans
            return
        assert path == "/v1/metrics"
        for part in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            self._note(part.resource)
            for scope in part.scope_metrics:
                self.metrics |= {metric.name: metric for metric in scope.metrics}

    def _note(self, resource: Any) -> None:
        self.resources.append({each.key: each.value.string_value for each in resource.attributes})


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


def publish(broker: BrokerProcess) -> None:
    """Publish a traced message, then consume and acknowledge it."""
    connection = BlockingConnection(parameters(broker))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("q")
    channel.basic_publish(
        "", "q", b"x", Properties(headers={"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"})
    )
    method, _, _ = channel.basic_get("q")
    channel.basic_ack(method.delivery_tag)
    connection.close()


def test_traces_and_metrics_reach_a_receiver(receiver: Receiver, start_broker: StartBroker) -> None:
    """The service has the broker's name; pending data is sent before the process ends."""
    broker = start_broker(
        *("--otel-endpoint", receiver.url, "--otel-metrics-interval-ms", "1000"),
        *("--otel-service-name", "shop", "--container-id", "node-7"),
    )
    publish(broker)
    broker.wait_until(lambda: receiver.metrics, "metrics")
    broker.stop()
    assert {span.trace_id.hex() for span in receiver.spans} == {TRACE}
    assert sorted(span.name for span in receiver.spans) == ["deliver q", "publish q", "route q", "settle q"]
    assert {"rabbitmq_connections", "amqp10broker_links_waiting", "rabbitmq_identity_info"} <= set(
        receiver.metrics
    )
    received = receiver.metrics["rabbitmq_global_messages_received_total"].sum
    assert received.is_monotonic
    for told in receiver.resources:
        assert (told["service.name"], told["service.instance.id"]) == ("shop", "node-7")
    assert [entry for entry in broker.log if entry["level"] == "warning"] == []
