"""Each difference between versions of RabbitMQ, as clients see it of each version that is emulated.

`EXPECTED` says what a client sees; a row is one of `amqp10broker.emulation.ROWS`. With
``AMQP10BROKER_DIFFERENTIAL=amqp://user:password@host:port`` the same is done at that RabbitMQ 4.3.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from amqp10broker.client import blocking
from amqp10broker.client.errors import LinkRefusedError
from amqp10broker.emulation import PERMITTED, ROWS, VERSIONS
from amqp10broker.testing import running
from amqp10broker.testing.servers import RunningBroker
from tests.differential.recorder import Place
from tests.differential.test_differential import URL
from tests.support.deadline import deadline

__all__ = ["deadline"]

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]

UNSET: Final = "unset"
QUEUE: Final = "differential.emulation"
RABBITMQ: Final = "4.3 itself"


def place_of(broker: RunningBroker) -> Place:
    return Place(broker.host, broker.port, "guest", "guest", None)


@contextmanager
def channel_of(place: Place) -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(place.parameters(place.user, place.password)) as open_:
        yield open_.channel()


@contextmanager
def quorum_queue(place: Place, **arguments: Any) -> Iterator[BlockingChannel]:
    with channel_of(place) as channel:
        channel.confirm_delivery()
        channel.queue_delete(QUEUE)
        channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum", **arguments})
        yield channel
        channel.queue_delete(QUEUE)


def publish(channel: BlockingChannel, *priorities: int | None) -> None:
    for number, priority in enumerate(priorities):
        body = f"{number}:{priority}".encode()
        channel.basic_publish("", QUEUE, body, pika.BasicProperties(priority=priority))


def get(channel: BlockingChannel) -> tuple[int, str, dict[str, Any]] | None:
    method, properties, body = channel.basic_get(QUEUE)
    return None if method is None else (method.delivery_tag, body.decode(), properties.headers or {})


def get_all(channel: BlockingChannel) -> list[str]:
    return [got[1] for got in iter(lambda: get(channel), None)]


def property_of(name: str) -> Callable[[Place], str]:
    def scenario(place: Place) -> str:
        with channel_of(place) as channel:
            text: str = channel.connection._impl.server_properties[name]
        return text if name == "version" else text.partition(" ")[0]

    return scenario


def order(place: Place) -> list[str]:
    with quorum_queue(place) as channel:
        publish(channel, 0, 1, 4, None, 5, 9, 40, 4)
        return get_all(channel)


def rejections(place: Place, **arguments: Any) -> int:
    """Reject a message each time it is delivered; return the number of deliveries, up to 30."""
    with quorum_queue(place, **arguments) as channel:
        publish(channel, None)
        count = 0
        while count < 30 and (got := get(channel)):
            count += 1
            channel.basic_reject(got[0], requeue=True)
            channel.queue_declare(QUEUE, passive=True)
        return count


def nacks(place: Place) -> int:
    """Return a message by basic.nack each time, with a limit of two."""
    with quorum_queue(place, **{"x-delivery-limit": 2}) as channel:
        publish(channel, None)
        count = 0
        while count < 6 and (got := get(channel)):
            count += 1
            channel.basic_nack(got[0], requeue=True)
            channel.queue_declare(QUEUE, passive=True)
        return count


def without_limit(place: Place) -> list[str]:
    with quorum_queue(place, **{"x-delivery-limit": -1}) as channel:
        publish(channel, None, None)
        got = get(channel)
        channel.basic_nack(got[0], requeue=True)
        channel.queue_declare(QUEUE, passive=True)
        return get_all(channel)


def count_after_nack(place: Place) -> object:
    with quorum_queue(place) as channel:
        publish(channel, None)
        got = get(channel)
        channel.basic_nack(got[0], requeue=True)
        again = get(channel)
        return again[2].get("x-delivery-count")


def left_when_full(place: Place) -> list[str]:
    with quorum_queue(place, **{"x-max-length": 2}) as channel:
        publish(channel, 0, 9, 4)
        return sorted(get_all(channel))


def declared(arguments: dict[str, Any], *, durable: bool) -> Callable[[Place], str]:
    def scenario(place: Place) -> str:
        try:
            with channel_of(place) as channel:
                channel.queue_delete(QUEUE)
                channel.queue_declare(QUEUE, durable=durable, arguments=arguments)
                channel.queue_delete(QUEUE)
        except pika.exceptions.ConnectionClosedByBroker as closed:
            return f"{closed.reply_code} {closed.reply_text.partition('.')[0]}"
        return "declared"

    return scenario


def global_limit(place: Place) -> int:
    """Return how many of four messages two consumers get on a channel with a global prefetch of 1."""
    with channel_of(place) as channel:
        channel.queue_delete(QUEUE)
        channel.queue_declare(QUEUE, exclusive=True)
        channel.basic_qos(prefetch_count=1, global_qos=True)
        got: list[bytes] = []
        for _ in range(2):
            channel.basic_consume(QUEUE, lambda *delivery: got.append(delivery[3]))
        # The queue has sent what it may once it has confirmed the last message.
        channel.confirm_delivery()
        publish(channel, None, None, None, None)
        ready = channel.queue_declare(QUEUE, passive=True).method.message_count
        while len(got) < 4 - ready:
            channel.connection.process_data_events(time_limit=1.0)
        channel.queue_delete(QUEUE)
        return len(got)


def bare_name(place: Place) -> str:
    user = {"user": place.user, "password": place.password}
    with blocking.connect(place.host, place.port, **user, timeout_s=10.0) as client:
        try:
            client.receiver(QUEUE)
        except LinkRefusedError as refused:
            return str(refused.condition)
    with channel_of(place) as channel:
        channel.queue_delete(QUEUE)
    return "attached"


FAIR: Final = ["4:5", "5:9", "0:0", "6:40", "1:1", "2:4", "3:None", "7:4"]
STRICT: Final = ["6:40", "5:9", "4:5", "2:4", "3:None", "7:4", "1:1", "0:0"]
PLAIN: Final = ["0:0", "1:1", "2:4", "3:None", "4:5", "5:9", "6:40", "7:4"]
DENIED: Final = "541 INTERNAL_ERROR - Feature `{}` is deprecated"
MASTER_LOCATOR: Final = DENIED.format("queue_master_locator")

# Row -> scenario, and what is seen of 3.13, 4.0, 4.2, 4.3 and without the setting.
EXPECTED: Final[dict[str, tuple[Callable[[Place], Any], tuple[Any, ...]]]] = {
    "version": (property_of("version"), ("3.13.7", "4.0.9", "4.2.11", "4.3.6", "4.3.6")),
    "platform": (property_of("platform"), (*["Erlang/OTP"] * 4, "amqp10broker")),
    "priority_levels": (order, (PLAIN, FAIR, FAIR, STRICT, FAIR)),
    "delivery_limit": (rejections, (30, 21, 21, 21, 21)),
    "limit_counts_failed": (nacks, (3, 3, 3, 6, 3)),
    "unlimited_returns_last": (
        without_limit,
        (*[["1:None", "0:None"]] * 3, ["0:None", "1:None"], ["1:None", "0:None"]),
    ),
    "shows_no_failures": (count_after_nack, (0, 0, 0, None, 0)),
    "drops_next": (
        left_when_full,
        (*[["1:9", "2:4"]] * 3, ["0:0", "2:4"], ["1:9", "2:4"]),
    ),
    "transient_nonexcl_queues": (declared({}, durable=False), ("declared",) * 5),
    "global_qos": (global_limit, (1, 1, 1, 2, 1)),
    "amqp_address_v1": (bare_name, (*["attached"] * 3, "amqp:invalid-field", "attached")),
    "queue_master_locator": (
        declared({"x-queue-master-locator": "client-local"}, durable=True),
        (*["declared"] * 3, MASTER_LOCATOR, "declared"),
    ),
}


@pytest.fixture(scope="module", params=[*VERSIONS, UNSET])
def emulating(request: pytest.FixtureRequest) -> Iterator[tuple[int, Place]]:
    """Yield a version's position in `EXPECTED`, and a broker that emulates it."""
    settings = {} if request.param == UNSET else {"emulate": request.param}
    with running(**settings) as broker:
        position = [*VERSIONS, UNSET].index(request.param)
        yield position, place_of(broker)


@pytest.mark.parametrize("row", EXPECTED)
def test_a_version_behaves_as_its_row_says(row: str, emulating: tuple[int, Place]) -> None:
    position, place = emulating
    scenario, seen = EXPECTED[row]
    assert scenario(place) == seen[position]


def test_a_queue_keeps_the_rules_of_its_declaration(tmp_path: Path) -> None:
    """A restart with another version does not change them, and new queues have those of that version."""
    folder = str(tmp_path / "data")
    with running(data_dir=folder, emulate="4.3") as broker, channel_of(place_of(broker)) as channel:
        channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
        exported = json.dumps(broker.ask("export-definitions"))
        assert "priority_levels" not in exported
    with running(data_dir=folder) as broker, channel_of(place_of(broker)) as channel:
        channel.confirm_delivery()
        publish(channel, 0, 9, 5, 4)
        assert get_all(channel) == ["1:9", "2:5", "3:4", "0:0"]
        broker.ask("set-policy", name="p", pattern=".*", definition={"max-length": 2})
        publish(channel, 0, 9, 4)
        assert get_all(channel) == ["2:4", "0:0"]
        broker.ask("clear-policy", name="p")
        assert order(place_of(broker)) == FAIR


def test_every_row_is_tested() -> None:
    assert [row.name for row in ROWS] == list(EXPECTED)
    assert all(find_spec(f"amqp10broker.{row.applied}") for row in ROWS)


# Without an address there is nothing to compare with, and nothing to skip either.
if URL is not None:

    @pytest.mark.parametrize("row", EXPECTED)
    def test_rabbitmq_4_3_behaves_as_its_row_says(row: str) -> None:
        scenario, seen = EXPECTED[row]
        assert scenario(Place.from_url(URL, None)) == seen[VERSIONS.index("4.3")]


USES: Final[dict[str, tuple[Callable[[Place], Any], Any, Any]]] = {
    "transient_nonexcl_queues": (
        declared({}, durable=False),
        "declared",
        DENIED.format("transient_nonexcl_queues"),
    ),
    "global_qos": (global_limit, 1, 2),
    "amqp_address_v1": (bare_name, "attached", "amqp:invalid-field"),
    "queue_master_locator": (
        declared({"x-queue-master-locator": "client-local"}, durable=True),
        "declared",
        MASTER_LOCATOR,
    ),
}


@pytest.mark.rabbitmq(
    "rabbitmq_4_0_deprecations_SUITE",
    "when_queue_master_locator_is_not_permitted_by_default",
    "when_queue_master_locator_is_permitted_from_conf",
    "when_transient_nonexcl_is_not_permitted",
)
@pytest.mark.parametrize("feature", USES)
@pytest.mark.parametrize("permitted", [True, False])
@pytest.mark.parametrize("emulate", ["4.3", "4.2"])
def test_an_operator_permits_or_denies_a_deprecated_feature(
    feature: str, permitted: bool, emulate: str
) -> None:
    """The setting goes before the version, as deprecated_features.permit does in rabbitmq.conf."""
    scenario, used, refused = USES[feature]
    with running(emulate=emulate, **{f"permit_{feature}": permitted}) as broker:
        assert scenario(place_of(broker)) == (used if permitted else refused)


def test_every_deprecated_feature_is_used_above() -> None:
    assert set(USES) == {row.name for row in PERMITTED}
