"""Streams as RabbitMQ's own AMQP 1.0 client reads them: offsets, filters, and what the management says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from proton import Delivery, Message, symbol
from rabbitmq_amqp_python_client import (
    AddressHelper,
    Connection,
    Environment,
    MessageProperties,
    OffsetSpecification,
    QueueType,
    StreamConsumerOptions,
    StreamFilterOptions,
    StreamSpecification,
)

from tests.integration.test_rabbitmq_amqp_client import Collect, Done, within
from tests.support.broker_process import BrokerProcess
from tests.support.proton_client import ProtonClient


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
    """Its options for streams, one by one."""
    assert consume(environment, stream, len(expected), StreamConsumerOptions(**options)) == expected


@pytest.mark.rabbitmq(
    "management_SUITE",
    "queue_topology",
    note="kind, arguments and counts of each kind; members are n/a: there is one node",
)
@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "format", "queue_info")
def test_management_says_which_offsets_there_are(rabbit: Connection, stream: str) -> None:
    answer = rabbit.management().request(None, AddressHelper.queue_address(stream), "GET", [200])
    found = {name: answer.body[name] for name in ("type", "message_count", "first_offset", "next_offset")}
    assert found == {"type": "stream", "message_count": 20, "first_offset": 0, "next_offset": 20}
    assert len(answer.body["declaration_id"]) == 16
    assert rabbit.management().queue_info(stream).queue_type == QueueType.stream
