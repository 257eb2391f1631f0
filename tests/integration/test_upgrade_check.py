"""`amqp10broker upgrade-check`: uses of what another version of RabbitMQ refuses or does otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from amqp10broker.cli import main
from amqp10broker.emulation import QUORUM, ROWS
from amqp10broker.errors import BrokerError
from amqp10broker.testing import running
from amqp10broker.testing.servers import RunningBroker
from tests.support.deadline import deadline

__all__ = ["deadline"]

pytestmark = pytest.mark.usefixtures("deadline")

OF_QUEUES = {
    "transient_nonexcl_queues": ("deprecated", "transient"),
    "queue_master_locator": ("denied", "located"),
    "limit_counts_failed": ("changed", "quorum"),
    "drops_next": ("changed", "quorum"),
    "unlimited_returns_last": ("changed", "unlimited"),
}
OF_CLIENTS = {"global_qos": "denied", "amqp_address_v1": "denied"}
OF_FRAMES = {
    "transient_nonexcl_queues": "deprecated",
    "queue_master_locator": "denied",
    "limit_counts_failed": "changed",
    "priority_levels": "changed",
    **OF_CLIENTS,
}


@contextmanager
def channel_of(broker: RunningBroker) -> Iterator[BlockingChannel]:
    parameters = pika.URLParameters(broker.url)
    parameters.client_properties = {"connection_name": "old program"}
    with pika.BlockingConnection(parameters) as connection:
        yield connection.channel()


def quorum(channel: BlockingChannel, name: str, **arguments: Any) -> None:
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum", **arguments})


@contextmanager
def uses(broker: RunningBroker) -> Iterator[None]:
    """A client of each protocol uses everything that 4.3 refuses or does otherwise."""
    with channel_of(broker) as channel, broker.client() as client:
        channel.queue_declare("transient")
        channel.queue_declare("located", durable=True, arguments={"x-queue-master-locator": "random"})
        quorum(channel, "quorum", **{"x-max-length": 5})
        quorum(channel, "unlimited", **{"x-delivery-limit": -1})
        channel.confirm_delivery()
        channel.basic_publish("", "quorum", b"urgent", pika.BasicProperties(priority=9))
        method, _, _ = channel.basic_get("quorum")
        channel.basic_nack(method.delivery_tag)
        channel.basic_qos(prefetch_count=5, global_qos=True)
        client.receiver("bare")
        yield


def found(broker: RunningBroker, to: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = broker.ask("upgrade-check", to=to)["findings"]
    return rows


def test_what_is_declared_and_who_is_connected_is_found() -> None:
    with running() as broker, uses(broker):
        rows = found(broker, "4.3")
        queues = {each["finding"]: (each["state"], each["who"]) for each in rows if each["kind"] == "queue"}
        assert queues == OF_QUEUES
        clients = {each["finding"]: each["state"] for each in rows if each["kind"] == "client"}
        assert clients == OF_CLIENTS
        assert all(each["what"] and each["to_do"] and each["vhost"] == "/" for each in rows)
        assert [each["state"] for each in rows] == sorted((each["state"] for each in rows), key=ORDER.index)


ORDER = ["denied", "changed", "deprecated"]


def test_a_policy_is_found() -> None:
    with running() as broker:
        definition = {"queue-master-locator": "client-local"}
        broker.ask("set-policy", name="old", pattern=".*", definition=definition)
        (row,) = found(broker, "4.3")
        assert (row["finding"], row["kind"], row["who"]) == ("queue_master_locator", "policy", "old")
    with running(emulate="4.3") as broker, pytest.raises(BrokerError, match="queue_master_locator"):
        broker.ask("set-policy", name="old", pattern=".*", definition=definition)


def test_a_queue_that_has_the_rules_of_the_version_is_not_found() -> None:
    """Its rules are those of the version that was emulated when it was declared."""
    with running(emulate="4.3") as broker, channel_of(broker) as channel:
        quorum(channel, "q", **{"x-max-length": 5})
        assert found(broker, "4.3") == []
        assert [each["finding"] for each in found(broker, "4.2")] == ["drops_next"]


def test_a_default_limit_is_found_from_and_to_3_13() -> None:
    with running(emulate="3.13") as broker, channel_of(broker) as channel:
        quorum(channel, "q")
        (row,) = found(broker, "4.0")
        assert (row["finding"], row["what"]) == (
            "delivery_limit",
            "it sets no delivery limit; the limit is none",
        )
        quorum(channel, "stated", **{"x-delivery-limit": 3})
        assert [each["who"] for each in found(broker, "4.0")] == ["q"]


def test_every_row_that_a_client_can_use_is_found_by_one_of_these() -> None:
    """Programs read x-delivery-count; no broker observes that."""
    seen = {*OF_QUEUES, *OF_CLIENTS, *OF_FRAMES, "delivery_limit"}
    assert {row.name for row in ROWS} - seen == {"version", "platform", "shows_no_failures"}
    assert {row.name for row in QUORUM} - seen == {"shows_no_failures"}


def test_an_assertion_finds_clients_that_have_ended() -> None:
    """Their frames are recorded; the test's own calls do not count."""
    with running() as broker:
        broker.declare("fine")
        broker.publish("fine", b"x")
        broker.assert_upgradable("4.3")
        with uses(broker):
            pass
        with pytest.raises(AssertionError) as failed:
            broker.assert_upgradable("4.3", ignore=["drops_next"])
        text = str(failed.value)
        for name, state in OF_FRAMES.items():
            assert f"  {name} ({state}): client " in text
        assert "client old program at 127.0.0.1" in text
        assert "to do: write /queues/ before the name of the queue" in text
        assert "drops_next" not in text
        broker.assert_upgradable("4.3", ignore=[row.name for row in ROWS])
        with pytest.raises(BrokerError, match="no finding of an upgrade is called global"):
            broker.assert_upgradable("4.3", ignore=["global"])


def test_a_command_looks_at_recorded_clients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(record_frames=str(tmp_path)) as broker, uses(broker):
        pass
    (file,) = tmp_path.iterdir()
    assert main.main(["upgrade-check", "--to", "4.3", "--file", str(file), "--formatter", "json"]) == 1
    rows = json.loads(capsys.readouterr().out)["findings"]
    assert {each["finding"]: each["state"] for each in rows} == OF_FRAMES
    assert main.main(["upgrade-check", "--to", "4.2", "--file", str(file), "--formatter", "plain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.partition("\t")[0] for line in lines[1:]} == {"deprecated"}


def test_an_unknown_version_is_answered_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with running() as broker, pytest.raises(BrokerError, match=r"3\.13, 4\.0, 4\.2, 4\.3"):
        found(broker, "5.0")
    with pytest.raises(SystemExit):
        main.main(["upgrade-check", "--to", "5.0"])
    assert "{3.13,4.0,4.2,4.3}" in capsys.readouterr().err
