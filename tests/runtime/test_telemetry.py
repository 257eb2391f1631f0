"""Traces of messages through a running broker, of both protocols, by the SDK's exporter into memory."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from amqp10broker.cli import serve
from amqp10broker.client import trio as client
from amqp10broker.client.errors import NotAcceptedError
from amqp10broker.client.message import Message
from amqp10broker.errors import ConfigError
from amqp10broker.observe import telemetry as observed
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import Content
from amqp10broker.protocols.amqp10.performatives import Properties
from amqp10broker.routing.exchange import Binding, Destination
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.observe import telemetry
from tests.runtime.conftest import LogRecorder
from tests.support.declaring import bind, declare, declare_exchange
from tests.support.trioclient import quiet_config
from tests.support.trioclient091 import Client091, connect091

pytestmark = pytest.mark.real_clock

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{PARENT}-01"
NOT_SAMPLED = f"00-{TRACE}-{PARENT}-00"


class Spans:
    """Those that were exported, when the broker has ended."""

    def __init__(self) -> None:
        self.exporter: Any = InMemorySpanExporter()
        self.endpoints: list[str] = []

    def make(self, endpoint: str) -> Any:
        self.endpoints.append(endpoint)
        return self.exporter

    def named(self, name: str) -> list[Any]:
        return [each for each in self.exporter.get_finished_spans() if each.name == name]

    def one(self, name: str) -> Any:
        (found,) = self.named(name)
        return found

    @property
    def names(self) -> list[str]:
        return sorted(each.name for each in self.exporter.get_finished_spans())


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Spans:
    made = Spans()
    monkeypatch.setattr(telemetry, "OTLPSpanExporter", made.make)
    return made


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> LogRecorder:
    recorder = LogRecorder()
    monkeypatch.setattr(telemetry, "_log", recorder)
    return recorder


@asynccontextmanager
async def traced(**settings: Any) -> AsyncIterator[Broker]:
    given: dict[str, Any] = {"otel_endpoint": "http://127.0.0.1:4318/", "otel_metrics": False, **settings}
    async with Broker(quiet_config(**given)) as broker:
        declare_exchange(broker.catalog, "/", "shop", "topic")
        for name in ("orders", "copies"):
            declare(broker.catalog, "/", name)
            bind(broker.catalog, "/", Binding("shop", Destination("queue", name), "order.#"))
        yield broker


@asynccontextmanager
async def amqp10(broker: Broker) -> AsyncIterator[client.TrioClient]:
    async with client.connect(*broker.addresses[0], user="guest", password="guest") as connection:
        yield connection


@asynccontextmanager
async def amqp091(broker: Broker) -> AsyncIterator[Client091]:
    connection = await connect091(broker).open()
    yield connection
    await connection.stream.aclose()


def message(traceparent: str | None = SAMPLED, **more: Any) -> bytes:
    """Make an AMQP 1.0 message with the trace in application-properties."""
    fields = {} if traceparent is None else {"traceparent": traceparent, "tracestate": "vendor=1"}
    return Message(b"body", Properties(**more), fields or None).encode()


def parent_of(span: Any) -> str:
    return format(span.parent.span_id, "016x")


def attributes(span: Any) -> dict[str, Any]:
    return dict(span.attributes)


async def test_a_message_of_amqp10_is_traced_from_its_publish_to_its_settlement(found: Spans) -> None:
    """Spans have the names of the conventions, and all are in the publisher's trace."""
    async with traced() as broker, amqp10(broker) as connection:
        sender = await connection.sender("/exchanges/shop/order.new")
        await sender.send(message(message_id="m-1", correlation_id="c-1"))
        receiver = await connection.receiver("/queues/orders", credit=1)
        delivery = await receiver.receive()
        receiver.accept(delivery)
        await receiver.detach()
    assert found.endpoints == ["http://127.0.0.1:4318/v1/traces"]
    assert found.names == ["deliver orders", "publish shop", "route shop", "settle orders"]
    publish, route = found.one("publish shop"), found.one("route shop")
    deliver, settle = found.one("deliver orders"), found.one("settle orders")
    assert {format(each.context.trace_id, "032x") for each in (publish, route, deliver, settle)} == {TRACE}
    assert [parent_of(publish), parent_of(deliver)] == [PARENT, PARENT]
    assert parent_of(route) == format(publish.context.span_id, "016x")
    assert parent_of(settle) == format(deliver.context.span_id, "016x")
    assert [each.kind for each in (publish, route, deliver, settle)] == [
        *(SpanKind.SERVER, SpanKind.INTERNAL, SpanKind.SERVER, SpanKind.SERVER)
    ]
    assert publish.context.trace_state.get("vendor") == "1"
    assert [format(link.context.span_id, "016x") for link in deliver.links] == [PARENT]
    assert attributes(publish) == {
        "messaging.system": "amqp10broker",
        "network.protocol.name": "amqp",
        "network.protocol.version": "1.0",
        "amqp10broker.vhost": "/",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.message.envelope.size": attributes(publish)["messaging.message.envelope.size"],
        "messaging.message.id": "m-1",
        "messaging.message.conversation_id": "c-1",
        "messaging.rabbitmq.destination.routing_key": "order.new",
        "messaging.destination.name": "shop:order.new",
    }
    assert attributes(publish)["messaging.message.envelope.size"] > len(SAMPLED)
    assert sorted(attributes(route)["amqp10broker.queues"]) == ["copies", "orders"]
    assert attributes(deliver)["messaging.destination.name"] == "orders"
    assert attributes(deliver)["messaging.operation.type"] == "receive"
    assert attributes(settle)["amqp10broker.verdict"] == "accept"
    assert publish.start_time <= route.end_time <= publish.end_time
    assert deliver.start_time <= settle.end_time == deliver.end_time


async def test_a_message_of_amqp091_is_traced_and_crosses_to_amqp10(found: Spans) -> None:
    """Headers of one protocol are application-properties of the other, and the trace is the same."""
    async with traced() as broker:
        async with amqp091(broker) as publisher:
            await publisher.call(1, methods.ConfirmSelect(), methods.ConfirmSelectOk)
            headers = {"traceparent": SAMPLED}
            await publisher.publish("shop", "order.new", b"x", headers=headers, message_id="m-2")
            await publisher.expect(methods.BasicAck)
            await publisher.call(
                1, methods.BasicConsume(queue="copies", consumer_tag="c", no_ack=True), methods.BasicConsumeOk
            )
            await publisher.expect(Content)
        async with amqp10(broker) as connection:
            receiver = await connection.receiver("/queues/orders", credit=1)
            receiver.reject(await receiver.receive())
            await receiver.detach()
    assert found.names == [
        *("deliver copies", "deliver orders", "publish shop", "route shop", "settle orders")
    ]
    publish = found.one("publish shop")
    assert attributes(publish)["network.protocol.version"] == "0.9.1"
    assert attributes(publish)["messaging.message.id"] == "m-2"
    assert attributes(found.one("deliver orders"))["network.protocol.version"] == "1.0"
    assert attributes(found.one("settle orders"))["amqp10broker.verdict"] == "discard_failed"
    assert {parent_of(each) for each in (publish, found.one("deliver copies"))} == {PARENT}


async def test_the_flag_of_the_parent_decides_and_without_one_the_ratio(found: Spans) -> None:
    """An unsampled parent is not recorded here; with ratio 1 a publish without a trace begins one."""
    async with traced(otel_traces_sampler_ratio="1") as broker, amqp10(broker) as connection:
        sender = await connection.sender("/queues/orders")
        receiver = await connection.receiver("/queues/orders", credit=9)
        for text in (NOT_SAMPLED, None, "00-none-of-them-01"):
            await sender.send(message(text))
            receiver.accept(await receiver.receive())
        await receiver.detach()
    # What cannot be read is no trace.
    assert found.names == ["publish orders"] * 2 + ["route orders"] * 2
    assert all(each.parent is None for each in found.named("publish orders"))
    assert len({each.context.trace_id for each in found.named("publish orders")}) == 2


async def test_without_a_ratio_only_messages_with_a_trace_are_traced(found: Spans) -> None:
    async with traced() as broker, amqp10(broker) as connection:
        sender = await connection.sender("/queues/orders")
        for text in (None, NOT_SAMPLED, SAMPLED):
            await sender.send(message(text))
    assert found.names == ["publish orders", "route orders"]


async def test_what_goes_wrong_stands_in_the_span(found: Spans) -> None:
    """The queue is full, the message unroutable, or the delivery requeued."""
    async with traced() as broker:
        declare(broker.catalog, "/", "full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
        async with amqp10(broker) as connection:
            for address in ("/queues/full", "/exchanges/shop/nowhere"):
                sender = await connection.sender(address)
                with pytest.raises(NotAcceptedError):
                    await sender.send(message())
            sender = await connection.sender("/queues/orders")
            await sender.send(message())
            receiver = await connection.receiver("/queues/orders", credit=1)
            await receiver.receive()
    errors = {each.name: each.attributes.get("error.type") for each in found.exporter.get_finished_spans()}
    assert errors["publish full"] == "full"
    assert errors["publish shop"] == "unroutable"
    assert errors["publish orders"] is None
    assert not found.one("publish full").status.is_ok
    assert [event.name for event in found.one("deliver orders").events] == ["given back"]
    assert found.named("settle orders") == []


async def test_a_session_that_is_not_traced_is_of_the_usual_kind(found: Spans) -> None:
    """With tracing off neither a branch nor a module of it is there."""
    usual = Broker(quiet_config())
    async with usual, amqp10(usual) as connection:
        await connection.sender(None)
        (number,) = usual.connections
        kinds = {type(part.service) for part in usual.connections[number].parts.values()}
    assert kinds == {telemetry.BrokerSession}
    assert found.endpoints == []


def test_a_broker_that_tells_nobody_imports_nothing_of_it() -> None:
    """The import would take a third of a second and 30 MB."""
    look = "import amqp10broker.runtime.broker, sys; print(*(m for m in sys.modules if 'telemetry' in m))"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


class Hanging:
    """A receiver that takes nothing, and does not say so."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.free = threading.Event()

    def export(self, batch: Any) -> SpanExportResult:
        self.asked.set()
        self.free.wait(30)
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        """Nothing is held."""


async def test_an_exporter_that_hangs_holds_up_nobody(
    found: Spans, log: LogRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages go on, the stop keeps its time limit, and lost spans are logged once and counted."""
    found.exporter = hanging = Hanging()
    monkeypatch.setattr(observed, "WAITING_MAX", 5)
    monkeypatch.setattr(observed, "BATCH_MAX", 1)
    monkeypatch.setattr(telemetry, "FINISH_S", 0.01)
    try:
        async with traced() as broker, amqp10(broker) as connection:
            sender = await connection.sender("/queues/orders")
            for _ in range(20):
                await sender.send(message())
            assert await trio.to_thread.run_sync(hanging.asked.wait, 30)
        warnings = log.of("warning")
        assert [event for event, _ in warnings] == ["spans are lost", "spans were lost"]
        assert warnings[0][1]["reason"] == "they end faster than they are sent"
        # Those that wait, and the one that the exporter has, too.
        assert warnings[1][1] == {"lost": 40, "sent": 0}
    finally:
        hanging.free.set()


async def test_a_receiver_that_comes_back_is_told(found: Spans, log: LogRecorder) -> None:
    """The log has one entry for the first loss of spans, and one for its end."""
    answers = [SpanExportResult.FAILURE, SpanExportResult.FAILURE, SpanExportResult.SUCCESS]
    batches: list[int] = []

    class Exporter:
        def export(self, batch: Any) -> SpanExportResult:
            batches.append(len(batch))
            return answers[min(len(batches) - 1, 2)]

        def shutdown(self) -> None:
            """Nothing is held."""

    queue = observed.SpanQueue(Exporter(), telemetry._tell_of_spans)
    tracer = observed.provider(observed.resource("s", "1", "n"), 1.0, queue).get_tracer("test")
    for count in (2, 3, 4):
        for _ in range(count):
            tracer.start_span("x").end()
        before = len(batches)
        queue._more.set()
        await trio.to_thread.run_sync(
            _wait_for, lambda before=before: len(batches) > before and not queue._waiting
        )
    queue.shutdown()
    assert await trio.to_thread.run_sync(queue.join, 10)
    assert queue.lost + queue.sent == queue.taken == 9
    assert queue.lost_at_last == queue.lost
    assert [(level, event) for level, event, _ in log.entries] == [
        ("warning", "spans are lost"),
        ("info", "spans are sent again"),
    ]


def _wait_for(condition: Callable[[], bool]) -> None:
    waiter = threading.Event()
    for _ in range(2000):
        if condition():
            return
        waiter.wait(0.005)
    raise AssertionError("it did not come")


async def test_spans_that_are_open_are_bounded(found: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes a client that settles nothing; further spans are counted as lost."""
    monkeypatch.setattr(observed, "OPEN_MAX", 3)
    async with traced() as broker, amqp10(broker) as connection:
        sender = await connection.sender("/queues/orders")
        for _ in range(6):
            await sender.send(message())
        receiver = await connection.receiver("/queues/orders", credit=6)
        for _ in range(6):
            await receiver.receive()
    assert len(found.named("deliver orders")) == 3


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"otel_endpoint": "127.0.0.1:4318"}, "must be http://HOST:PORT"),
        ({"otel_endpoint": "http://127.0.0.1:1"}, "which is not installed; install it with: pip install"),
    ],
)
async def test_what_cannot_be_is_told_at_the_start(
    settings: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "installed" in said:
        monkeypatch.setitem(sys.modules, "amqp10broker.runtime.observe.telemetry", None)
    with pytest.raises(ExceptionGroup) as caught:
        async with Broker(quiet_config(**settings)):
            pass  # it does not come up
    (error,) = serve.leaves(caught.value)
    assert isinstance(error, ConfigError)
    assert said in str(error)
