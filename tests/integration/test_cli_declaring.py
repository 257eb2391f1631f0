"""declare, delete, bind, unbind, purge, and the lists of what is declared, against the real process."""

from __future__ import annotations

import csv
import io

import pytest

from tests.support.broker_process import BrokerProcess, StartBroker
from tests.support.command_line import CommandLine
from tests.support.proton_client import ProtonClient

pytestmark = pytest.mark.integration


@pytest.fixture
def run(broker: BrokerProcess) -> CommandLine:
    return CommandLine(broker)


def test_the_articles_table(start_broker: StartBroker) -> None:
    """``queue list name type messages`` prints it to the letter, in the order of names."""
    run = CommandLine(start_broker())
    run("queue", "declare", "classic-queue-amqp-10", "--type", "classic")
    run("queue", "declare", "quorum-queue-amqp-10", "--type", "quorum")
    run("publish", "--queue", "classic-queue-amqp-10", "m", "--count", "1089")
    run("publish", "--queue", "quorum-queue-amqp-10", "m", "--count", "148")
    assert run("queue", "list", "name", "type", "messages") == (
        "┌───────────────────────┬─────────┬──────────┐\n"
        "│ name                  │ type    │ messages │\n"
        "├───────────────────────┼─────────┼──────────┤\n"
        "│ classic-queue-amqp-10 │ classic │ 1089     │\n"
        "├───────────────────────┼─────────┼──────────┤\n"
        "│ quorum-queue-amqp-10  │ quorum  │ 148      │\n"
        "└───────────────────────┴─────────┴──────────┘\n"
    )
    assert run("queue", "list", "messages", "--format", "plain", "--no-header") == "1089\n148\n"
    rows = list(csv.DictReader(io.StringIO(run("queue", "list", "name", "type", "--format", "csv"))))
    assert rows == [
        {"name": "classic-queue-amqp-10", "type": "classic"},
        {"name": "quorum-queue-amqp-10", "type": "quorum"},
    ]


@pytest.mark.rabbitmq("quorum_queue_SUITE", "format")
def test_a_queue_is_declared_with_its_arguments_and_found_as_such(run: CommandLine, queue: str) -> None:
    """Typed arguments; declaring it again agrees, or says in what it differs."""
    declare = (
        "queue",
        "declare",
        queue,
        "--argument",
        "x-max-length=10",
        "--argument",
        "x-overflow=drop-head",
    )
    assert run(*declare) == f"queue '{queue}' declared\n"
    assert run(*declare) == f"queue '{queue}' is there already, as asked for\n"
    (row,) = [each for each in run.json("queue", "list", "name", "arguments") if each["name"] == queue]
    assert row["arguments"]["x-max-length"] == 10
    assert row["arguments"]["x-overflow"] == "drop-head"
    complaint = run.fails(1, "queue", "declare", queue)
    assert "inequivalent arg" in complaint
    assert complaint.endswith("(declare it as it is, or delete it first)")
    complaint = run.fails(1, "queue", "declare", f"{queue}2", "--argument", 'x-max-length="ten"')
    assert "x-max-length" in complaint
    assert "reserved prefix" in run.fails(1, "queue", "declare", "amq.mine")


@pytest.mark.rabbitmq("bindings_SUITE", "list_bindings")
def test_exchanges_and_bindings(run: CommandLine, queue: str) -> None:
    """Declared, bound to a queue and to an exchange, listed, unbound, deleted."""
    one, two = f"{queue}.1", f"{queue}.2"
    run("queue", "declare", queue)
    assert run("exchange", "declare", one, "--type", "topic") == f"exchange '{one}' declared\n"
    run("exchange", "declare", two, "--type", "headers", "--no-durable", "--internal")
    run("binding", "add", one, queue, "--key", "a.*")
    arguments = ("--argument", "x-match=any", "--argument", "n=1")
    run("binding", "add", one, two, "--to-exchange", "--key", "#")
    run("binding", "add", two, queue, *arguments)
    columns = ("name", "type", "durable", "internal")
    assert [each for each in run.json("exchange", "list", *columns) if each["name"] in (one, two)] == [
        {"name": one, "type": "topic", "durable": True, "internal": False},
        {"name": two, "type": "headers", "durable": False, "internal": True},
    ]
    mine = [each for each in run.json("binding", "list") if each["source_name"] in (one, two)]
    assert sorted(
        (
            each["source_name"],
            each["destination_name"],
            each["destination_kind"],
            each["routing_key"],
            each["arguments"],
        )
        for each in mine
    ) == [
        (one, queue, "queue", "a.*", {}),
        (one, two, "exchange", "#", {}),
        (two, queue, "queue", "", {"x-match": "any", "n": 1}),
    ]
    run("publish", "--exchange", one, "--key", "b", "--header", "n=1", "m")
    run.broker.wait_for_counts(queue, ready=1)

    assert "is not bound so" in run.fails(1, "binding", "delete", two, queue)
    run("binding", "delete", two, queue, *arguments)
    assert "in use" in run.fails(1, "exchange", "delete", one, "--if-unused")
    run("binding", "delete", one, two, "--to-exchange", "--key", "#")
    assert run("exchange", "delete", one) == f"exchange '{one}' deleted\n"
    run("exchange", "delete", two, "--if-unused")
    assert f"no exchange '{one}'" in run.fails(1, "exchange", "delete", one)
    assert "no exchange 'nothing'" in run.fails(1, "binding", "add", "nothing", queue)
    assert "x-nonsense" in run.fails(1, "exchange", "declare", one, "--type", "x-nonsense")


@pytest.mark.rabbitmq("amqp_client_SUITE", "list_connections")
@pytest.mark.rabbitmq("per_user_connection_channel_limit_SUITE", "single_node_list_in_user")
@pytest.mark.rabbitmq("per_vhost_connection_limit_SUITE", "single_node_list_in_vhost")
def test_what_clients_do_is_listed(run: CommandLine, client: ProtonClient, queue: str) -> None:
    """Connections, sessions, links and consumers of AMQP 1.0, joined by the connection's number."""
    client.sender(queue).send("1")
    client.receiver(queue, credit=5).take()
    (link, other) = run.broker.wait_until(
        lambda: [each for each in run.json("link", "list", *LINK) if each["queue"] == queue], "links"
    )
    assert {link["role"], other["role"]} == {"sender", "receiver"}
    number = link["connection"]
    (connection,) = [
        each
        for each in run.json("connection", "list", "id", "user", "client", "sessions")
        if each["id"] == number
    ]
    assert (connection["user"], connection["sessions"]) == ("guest", 1)
    (session,) = [
        each for each in run.json("session", "list", "connection", "links") if each["connection"] == number
    ]
    assert session["links"] == 2
    (consumer,) = [each for each in run.json("consumer", "list") if each["connection"] == number]
    assert (consumer["queue"], consumer["prefetch"], consumer["unacknowledged"]) == (queue, 4, 1)
    assert run.json("connection", "list", "--vhost", "nothing") == []


LINK = ("connection", "role", "queue")


@pytest.mark.rabbitmq(
    "rabbit_stream_queue_SUITE",
    "consumer_metrics_cleaned_on_connection_close",
    note="consumers are listed while they are there",
)
@pytest.mark.rabbitmq("unit_queue_consumers_SUITE", "list_consumers")
def test_channels_and_their_consumers_are_listed(run: CommandLine, channel: object, queue: str) -> None:
    channel.queue_declare(queue)  # type: ignore[attr-defined]
    channel.confirm_delivery()  # type: ignore[attr-defined]
    channel.basic_qos(prefetch_count=7)  # type: ignore[attr-defined]
    channel.basic_consume(queue, lambda *_: None, consumer_tag="mine")  # type: ignore[attr-defined]
    (consumer,) = run.broker.wait_until(
        lambda: [each for each in run.json("consumer", "list") if each["queue"] == queue], "the consumer"
    )
    assert (consumer["tag"], consumer["prefetch"]) == ("mine", 7)
    columns = ("connection", "channel", "confirm", "consumers")
    (row,) = [
        each for each in run.json("channel", "list", *columns) if each["connection"] == consumer["connection"]
    ]
    assert (row["channel"], row["confirm"], row["consumers"]) == (consumer["channel"], True, 1)
