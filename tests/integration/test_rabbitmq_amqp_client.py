"""RabbitMQ's own AMQP 1.0 client for Python, unmodified: it manages, publishes and consumes here.

Some of its errors are no `Exception` but a bare `BaseException`. What it does not hand out (the text of a
refusal) is read from its lowest public call, `Management.request`.
"""

from __future__ import annotations

import secrets
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from rabbitmq_amqp_python_client import (
    AddressHelper,
    AMQPMessagingHandler,
    ClassicQueueSpecification,
    Connection,
    ConsumerOptions,
    ConsumerSettleStrategy,
    Converter,
    Environment,
    ExchangeSpecification,
    ExchangeToExchangeBindingSpecification,
    ExchangeToQueueBindingSpecification,
    ExchangeType,
    Management,
    Message,
    MessageProperties,
    OffsetSpecification,
    OutcomeState,
    QueueType,
    QuorumConsumerOptions,
    QuorumQueueSpecification,
    StreamConsumerOptions,
    StreamFilterOptions,
    StreamSpecification,
)
from rabbitmq_amqp_python_client.qpid.proton import symbol
from rabbitmq_amqp_python_client.qpid.proton.utils import SendException

from tests.support.broker_process import BrokerProcess


class Done(Exception):
    """Leaves the client's loop, which has no other way out of a handler."""


class Collect(AMQPMessagingHandler):
    """Takes a number of messages, does something with each, and ends."""

    def __init__(self, count: int, settle: Callable[[Any, Any], None] | None) -> None:
        super().__init__(auto_settle=settle is None)
        self.count = count
        self.settle = settle
        self.bodies: list[str] = []
        self.annotations: list[dict[str, Any]] = []

    def on_amqp_message(self, event: Any) -> None:
        self.bodies.append(Converter.bytes_to_string(event.message.body))
        self.annotations.append({str(key): value for key, value in event.message.annotations.items()})
        if self.settle is not None:
            self.settle(self.delivery_context, event)
        if len(self.bodies) == self.count:
            raise Done


@pytest.fixture
def environment(broker: BrokerProcess) -> Iterator[Environment]:
    created = Environment(uri=f"amqp://guest:guest@{broker.host}:{broker.port}/")
    yield created
    created.close()


@pytest.fixture
def connection(environment: Environment) -> Connection:
    created = environment.connection()
    created.dial()
    return created


@pytest.fixture
def management(connection: Connection) -> Management:
    return connection.management()


@pytest.fixture
def exchange() -> str:
    return f"x-{secrets.token_hex(4)}"


def text(body: str) -> Message:
    return Message(body=Converter.string_to_bytes(body), inferred=True)


def publish(connection: Connection, address: str, *bodies: str) -> None:
    publisher = connection.publisher(address)
    for body in bodies:
        assert publisher.publish(text(body)).remote_state == OutcomeState.ACCEPTED
    publisher.close()


def consume(
    environment: Environment,
    queue: str,
    count: int,
    settle: Callable[[Any, Any], None] | None,
    options: ConsumerOptions | None = None,
) -> Collect:
    """Consume on a separate connection; closing it writes the last settlements."""
    connection = environment.connection()
    connection.dial()
    handler = Collect(count, settle)
    consumer = connection.consumer(
        AddressHelper.queue_address(queue), message_handler=handler, consumer_options=options
    )
    with pytest.raises(Done), within(20.0):
        consumer.run()
    connection.close()
    return handler


@contextmanager
def within(limit_s: float) -> Iterator[None]:
    def give_up(*_: object) -> None:
        raise TimeoutError(f"not within {limit_s:g} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# --- managing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ClassicQueueSpecification, QuorumQueueSpecification, StreamSpecification])
def test_a_queue_is_deleted_under_links_of_its_session(
    connection: Connection, management: Management, queue: str, kind: Any
) -> None:
    """The answer precedes their detach, which this client would take for its failure."""
    management.declare_queue(kind(name=queue))
    address = AddressHelper.queue_address(queue)
    connection.consumer(address)
    connection.publisher(address).publish(text("one"))
    management.delete_queue(queue)
    connection.close()


def test_a_classic_queue_is_declared_again_and_deleted(management: Management, queue: str) -> None:
    """queue_info returns the arguments that were requested."""
    wanted = ClassicQueueSpecification(name=queue, max_len=100, dead_letter_exchange="amq.fanout")
    for _ in range(2):
        assert management.declare_queue(wanted) is wanted
    info = management.queue_info(queue)
    assert (info.name, info.queue_type, info.is_durable) == (queue, QueueType.classic, True)
    assert (info.is_exclusive, info.is_auto_delete) == (False, False)
    assert (info.message_count, info.consumer_count) == (0, 0)
    assert info.arguments == {
        "x-queue-type": "classic",
        "x-max-length": 100,
        "x-dead-letter-exchange": "amq.fanout",
    }
    assert list(info.members) == [info.leader]
    management.delete_queue(queue)
    management.delete_queue(queue)


# --- publishing -----------------------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "routing")
@pytest.mark.rabbitmq("management_SUITE", "all_management_operations")
def test_through_exchanges_to_a_queue(
    management: Management, connection: Connection, environment: Environment, exchange: str, queue: str
) -> None:
    inner = f"{exchange}-inner"
    management.declare_exchange(ExchangeSpecification(name=exchange, exchange_type=ExchangeType.topic))
    management.declare_exchange(ExchangeSpecification(name=inner, exchange_type=ExchangeType.fanout))
    management.declare_queue(ClassicQueueSpecification(name=queue))
    management.bind(ExchangeToExchangeBindingSpecification(exchange, inner, "a.*"))
    path = management.bind(ExchangeToQueueBindingSpecification(inner, queue))
    publish(connection, AddressHelper.exchange_address(exchange, "a.b"), "one", "two")
    publisher = connection.publisher(AddressHelper.exchange_address(exchange, "b.a"))
    with pytest.raises(SendException):
        publisher.publish(text("nowhere"))
    publisher.close()
    handler = consume(environment, queue, 2, lambda context, event: context.accept(event))
    assert handler.bodies == ["one", "two"]
    assert [each["x-exchange"] for each in handler.annotations] == [exchange, exchange]
    assert [each["x-routing-key"] for each in handler.annotations] == ["a.b", "a.b"]
    management.unbind(path)
    management.delete_exchange(exchange)
    management.delete_exchange(inner)
    management.delete_queue(queue)


# --- consuming ------------------------------------------------------------------------------------


def test_a_consumer_knows_when_it_is_there_whether_it_is_the_active_one(
    management: Management, environment: Environment, queue: str
) -> None:
    """The client reads nothing between attach and consuming: the flow with the state is behind the attach,
    in the same write.
    """
    management.declare_queue(QuorumQueueSpecification(name=queue, single_active_consumer=True))
    told: list[list[bool]] = [[], []]
    for number in range(2):
        connection = environment.connection()
        connection.dial()
        connection.consumer(
            AddressHelper.queue_address(queue),
            message_handler=Collect(1, None),
            consumer_options=QuorumConsumerOptions(sac_state_handler=told[number].append),
        )
    assert told == [[True], [False]]


def test_direct_reply_to(
    connection: Connection, environment: Environment, management: Management, broker: BrokerProcess
) -> None:
    """The broker names the queue, which stores nothing; the management node finds it."""
    requester = environment.connection()
    requester.dial()
    handler = Collect(1, None)
    options = ConsumerOptions(ConsumerSettleStrategy.DirectReplyTo)
    consumer = requester.consumer(message_handler=handler, consumer_options=options)
    address = consumer.address
    name = address.removeprefix("/queues/")
    assert name.startswith("amq.rabbitmq.reply-to.")
    shown = management.request(None, address, "GET", [200]).body
    assert (shown["type"], shown["durable"], shown["message_count"]) == ("rabbit_volatile_queue", False, 0)

    def reply() -> None:
        # Without credit a reply is dropped, and the client grants it when its loop runs.
        broker.wait_until(lambda: any(link["credit"] for link in broker.links(name)), "credit for replies")
        publish(connection, address, "reply")

    with ThreadPoolExecutor() as pool:
        replied = pool.submit(reply)
        with pytest.raises(Done), within(20.0):
            consumer.run()
        replied.result(20.0)
    assert handler.bodies == ["reply"]
    requester.close()


# --- streams --------------------------------------------------------------------------------------


@pytest.fixture
def stream(management: Management, connection: Connection, queue: str) -> Iterator[str]:
    """The stream has messages 0 .. 19, with an application property n and a subject, in 20 chunks."""
    management.declare_queue(StreamSpecification(name=queue))
    publisher = connection.publisher(AddressHelper.queue_address(queue))
    for number in range(20):
        message = Message(
            body=Converter.string_to_bytes(str(number)),
            inferred=True,
            application_properties={"n": number},
            subject="even" if number % 2 == 0 else "odd",
            annotations={symbol("x-stream-filter-value"): "low" if number < 10 else "high"},
        )
        assert publisher.publish(message).remote_state == OutcomeState.ACCEPTED
    publisher.close()
    yield queue
    management.delete_queue(queue)


@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "streams")
@pytest.mark.rabbitmq("amqp_client_SUITE", "stream_bloom_filter")
@pytest.mark.rabbitmq("amqp_filter_prop_SUITE", "multiple_sections")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"offset_specification": OffsetSpecification.first}, [0, 1, 2]),
        ({"offset_specification": 16}, [16, 17, 18, 19]),
        ({"offset_specification": OffsetSpecification.last}, [19]),
        (
            {"offset_specification": OffsetSpecification.first,
             "filter_options": StreamFilterOptions(values=["high"])},
            [10, 11, 12],
        ),
        (
            {"offset_specification": OffsetSpecification.first,
             "filter_options": StreamFilterOptions(sql="n > 14 AND properties.subject = 'odd'")},
            [15, 17, 19],
        ),
        (
            {"offset_specification": OffsetSpecification.first,
             "filter_options": StreamFilterOptions(message_properties=MessageProperties(subject="odd"))},
            [1, 3, 5],
        ),
        (
            {"offset_specification": OffsetSpecification.first,
             "filter_options": StreamFilterOptions(application_properties={"n": 4})},
            [4],
        ),
    ],
    ids=["first", "offset", "last", "values", "sql", "properties", "application properties"],
)  # fmt: skip
def test_rabbitmqs_client_reads_what_it_asks_for(
    environment: Environment, stream: str, options: dict[str, Any], expected: list[int]
) -> None:
    handler = consume(environment, stream, len(expected), None, StreamConsumerOptions(**options))
    assert [int(each["x-stream-offset"]) for each in handler.annotations] == expected


@pytest.mark.rabbitmq(
    "management_SUITE",
    "queue_topology",
    note="kind, arguments and counts of each kind; members are n/a: there is one node",
)
@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "format", "queue_info")
def test_management_says_which_offsets_there_are(management: Management, stream: str) -> None:
    answer = management.request(None, AddressHelper.queue_address(stream), "GET", [200])
    found = {name: answer.body[name] for name in ("type", "message_count", "first_offset", "next_offset")}
    assert found == {"type": "stream", "message_count": 20, "first_offset": 0, "next_offset": 20}
    assert len(answer.body["declaration_id"]) == 16
    assert management.queue_info(stream).queue_type == QueueType.stream
