"""Streams over AMQP 1.0, with proton and with RabbitMQ's own client: offsets, filters, credit, drain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from proton import Delivery, Described, Message, Terminus, symbol
from rabbitmq_amqp_python_client import (
    AddressHelper,
    Connection,
    Environment,
    MessageProperties,
    OffsetSpecification,
    StreamConsumerOptions,
    StreamFilterOptions,
    StreamSpecification,
)

from tests.integration.test_rabbitmq_amqp_client import Collect, Done, within
from tests.support.broker_process import BrokerProcess
from tests.support.proton_client import ProtonClient, ReceivingEnd

OFFSET = symbol("x-stream-offset")


def filters(**described: Any) -> dict[Any, Any]:
    """A filter-set: the names of rabbitmq's filters with _ for -, and sql."""
    names = {"sql": ("sql-filter", "amqp:sql-filter")}
    result = {}
    for key, value in described.items():
        name, descriptor = names.get(key, (f"rabbitmq:stream-{key}".replace("_", "-"),) * 2)
        result[symbol(name)] = Described(symbol(descriptor), value)
    return result


def reader(
    client: ProtonClient, stream: str, filter_set: Any = None, *, browses: bool = False, **options: Any
) -> ReceivingEnd:
    """A receiver with a filter-set; from the first message on if it is None. It may ask for copies."""
    given = filters(offset_spec="first") if filter_set is None else filter_set

    def put(link: Any) -> None:
        link.source.filter.put_dict(given)
        if browses:
            link.source.distribution_mode = Terminus.DIST_MODE_COPY

    return client.receiver(stream, apply=[put], **options)


def offsets(receiver: ReceivingEnd) -> list[int]:
    return [int(each.message.annotations[OFFSET]) for each in receiver.received]


@pytest.fixture
def environment(broker: BrokerProcess) -> Iterator[Environment]:
    created = Environment(uri=f"amqp://guest:guest@{broker.host}:{broker.port}/")
    yield created
    created.close()


@pytest.fixture
def rabbit(environment: Environment) -> Connection:
    created = environment.connection()
    created.dial()
    return created


@pytest.fixture
def stream(rabbit: Connection, client: ProtonClient, queue: str) -> Iterator[str]:
    """A stream with the messages 0 .. 19, with an application property n and a subject, in 20 chunks."""
    management = rabbit.management()
    management.declare_queue(StreamSpecification(name=queue))
    sender = client.sender(queue)
    for number in range(20):
        message = Message(
            body=number,
            properties={"n": number},
            subject="even" if number % 2 == 0 else "odd",
            annotations={symbol("x-stream-filter-value"): "low" if number < 10 else "high"},
        )
        assert sender.outcome(sender.transfer(message)).state == Delivery.ACCEPTED
    sender.close()
    yield queue
    management.delete_queue(queue)


# --- the attach -------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_client_SUITE", "stream_bloom_filter")
@pytest.mark.rabbitmq("amqp_filter_prop_SUITE", "multiple_sections")
def test_the_reply_says_which_filters_are_in_place(client: ProtonClient, stream: str) -> None:
    """Those that are valid and known; distribution-mode is copy, and the extensions are offered."""
    asked = filters(offset_spec="first", filter="low", sql="n > 3") | {
        symbol("unknown"): Described(symbol("no:such-filter"), 1),
        symbol("bare"): "first",
    }
    receiver = reader(client, stream, asked)
    source = receiver.link.remote_source
    source.filter.rewind()
    source.filter.next()
    assert set(source.filter.get_object()) == {
        "rabbitmq:stream-offset-spec", "rabbitmq:stream-filter", "sql-filter"
    }  # fmt: skip
    assert source.distribution_mode == source.DIST_MODE_COPY


# --- where to begin ---------------------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "streams")
@pytest.mark.parametrize(
    ("spec", "first"),
    [("first", 0), (symbol("first"), 0), ("last", 19), (0, 0), (7, 7), (19, 19), ("1h", 0)],
    ids=str,
)
def test_a_receiver_begins_where_it_asks(client: ProtonClient, stream: str, spec: Any, first: int) -> None:
    receiver = reader(client, stream, filters(offset_spec=spec), credit=100)
    receiver.take(20 - first)
    assert offsets(receiver) == receiver.bodies == list(range(first, 20))


# --- both protocols, and the end --------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_client_SUITE", "durable_field_quorum_queue", "durable_field_stream")
@pytest.mark.parametrize("durable", [True, False])
def test_the_durable_field_is_kept(client: ProtonClient, stream: str, durable: bool) -> None:
    sender = client.sender(stream)
    sender.send(Message(body="x", durable=durable))
    receiver = reader(client, stream, filters(offset_spec="last"), credit=1)
    [received] = receiver.take(1)
    assert received.message.durable is durable


# --- RabbitMQ's client ------------------------------------------------------------------------------


def consume(environment: Environment, stream: str, count: int, options: StreamConsumerOptions) -> list[int]:
    connection = environment.connection()
    connection.dial()
    handler = Collect(count, None)
    handler.bodies = []
    taken: list[int] = []

    def on_message(event: Any) -> None:
        taken.append(int(event.message.annotations["x-stream-offset"]))
        if len(taken) == count:
            raise Done

    handler.on_amqp_message = on_message  # type: ignore[method-assign]
    consumer = connection.consumer(
        AddressHelper.queue_address(stream), message_handler=handler, consumer_options=options
    )
    with pytest.raises(Done), within(20.0):
        consumer.run()
    connection.close()
    return taken


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
    """Its options for streams, one by one."""
    assert consume(environment, stream, len(expected), StreamConsumerOptions(**options)) == expected


def test_management_says_which_offsets_there_are(rabbit: Connection, stream: str) -> None:
    answer = rabbit.management().request(None, AddressHelper.queue_address(stream), "GET", [200])
    found = {name: answer.body[name] for name in ("type", "message_count", "first_offset", "next_offset")}
    assert found == {"type": "stream", "message_count": 20, "first_offset": 0, "next_offset": 20}
    assert type(answer.body["declaration_id"]) is str
