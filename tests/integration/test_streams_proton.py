"""Streams over AMQP 1.0, with proton and with RabbitMQ's own client: offsets, filters, credit, drain."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from proton import Delivery, Described, Link, Message, Terminus, symbol, timestamp
from proton.reactor import Selector
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

pytestmark = pytest.mark.integration

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
    """RabbitMQ's client, which can declare streams."""
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


@pytest.mark.rabbitmq("amqp_filter_sql_SUITE", "invalid_filter")
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"sql": "n >"}, "the end of the expression cannot be here"),
        ({"offset_spec": "never"}, "offset 'never' is neither"),
        ({"filter": 7}, "must be a string"),
    ],
    ids=["sql", "offset", "filter value"],
)
def test_a_filter_that_is_invalid_is_not_in_place(
    broker: BrokerProcess, client: ProtonClient, stream: str, wrong: dict[str, Any], reason: str
) -> None:
    """No error: the client compares, and the log says why."""
    (name,) = filters(**wrong)
    receiver = reader(client, stream, filters(**wrong))
    assert not receiver.closed
    source = receiver.link.remote_source
    source.filter.rewind()
    assert source.filter.next() is None or not source.filter.get_object()
    entry = broker.wait_for_log(
        "filter is not in place", filter=str(name), address=receiver.link.source.address
    )
    assert reason in entry["reason"]


# --- where to begin ---------------------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "streams")
@pytest.mark.parametrize(
    ("spec", "first"),
    [("first", 0), (symbol("first"), 0), ("last", 19), (0, 0), (7, 7), (19, 19), ("1h", 0)],
    ids=str,
)
def test_a_receiver_begins_where_it_asks(client: ProtonClient, stream: str, spec: Any, first: int) -> None:
    """By word, by number, by age."""
    receiver = reader(client, stream, filters(offset_spec=spec), credit=100)
    receiver.take(20 - first)
    assert offsets(receiver) == receiver.bodies == list(range(first, 20))


def test_a_receiver_begins_at_a_time(client: ProtonClient, stream: str) -> None:
    """Milliseconds in AMQP 1.0."""
    now_ms = int(time.time() * 1000)
    receiver = reader(client, stream, filters(offset_spec=timestamp(now_ms - 60_000)), credit=100)
    receiver.take(20)
    receiver = reader(client, stream, filters(offset_spec=timestamp(now_ms + 60_000)), credit=100)
    receiver.drain()
    assert not receiver.received


# --- credit -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("settled", [True, False])
def test_no_more_comes_than_was_granted_and_settling_grants_nothing(
    client: ProtonClient, stream: str, settled: bool
) -> None:
    """Whatever the outcome, nothing is taken away and nothing comes again."""
    mode = Link.SND_SETTLED if settled else Link.SND_UNSETTLED
    receiver = reader(client, stream, credit=6, snd_settle_mode=mode)
    taken = receiver.take(6)
    if not settled:
        for item, state in zip(
            taken, (Delivery.ACCEPTED, Delivery.REJECTED, Delivery.RELEASED) * 2, strict=True
        ):
            receiver.settle(item, state)
    receiver.drain()
    assert offsets(receiver) == [*range(6)]
    receiver.grant(14)
    receiver.take(14)
    assert offsets(receiver) == [*range(20)]


# --- filters ----------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_filter_sql_SUITE", "filter_few_messages_from_many", "multiple_sections")
def test_only_messages_that_pass_the_sql_filter_come(client: ProtonClient, stream: str) -> None:
    """And only they use credit."""
    filter_set = filters(offset_spec="first", sql="n % 5 = 2 AND p.subject = 'even'")
    receiver = reader(client, stream, filter_set)
    receiver.drain(1)
    assert offsets(receiver) == [2]
    receiver.drain(100)
    assert offsets(receiver) == [2, 12]


def test_a_selector_that_is_none_is_refused(client: ProtonClient, stream: str) -> None:
    """Clients do not look whether it is in place: they would take what they did not select."""
    receiver = reader(client, stream, Selector("n BETWEEN 3").filter_set, wait=False)
    assert receiver.wait_refused() == "amqp:invalid-field"
    assert receiver.description == (
        "Attach refused: selector 'selector': BETWEEN needs AND and another value (at character 12)"
    )


# --- both protocols, and the end --------------------------------------------------------------------


@pytest.mark.parametrize("durable", [True, False])
def test_the_durable_field_is_kept(client: ProtonClient, stream: str, durable: bool) -> None:
    """Though a stream keeps all."""
    sender = client.sender(stream)
    sender.send(Message(body="x", durable=durable))
    receiver = reader(client, stream, filters(offset_spec="last"), credit=1)
    [received] = receiver.take(1)
    assert received.message.durable is durable


# --- RabbitMQ's client ------------------------------------------------------------------------------


def consume(environment: Environment, stream: str, count: int, options: StreamConsumerOptions) -> list[int]:
    """The offsets of the first deliveries."""
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
    """As unsigned integers, beside the count."""
    answer = rabbit.management().request(None, AddressHelper.queue_address(stream), "GET", [200])
    found = {name: answer.body[name] for name in ("type", "message_count", "first_offset", "next_offset")}
    assert found == {"type": "stream", "message_count": 20, "first_offset": 0, "next_offset": 20}
    assert type(answer.body["declaration_id"]) is str
