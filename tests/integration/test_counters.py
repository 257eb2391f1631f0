"""Counters and full queues as the commands show them of the real process: pika, proton."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import NackError, UnroutableError

from tests.support.broker_process import BrokerProcess
from tests.support.command_line import CommandLine
from tests.support.pika_client import Connect, put
from tests.support.proton_client import ProtonClient

pytestmark = pytest.mark.integration


@pytest.fixture
def run(broker: BrokerProcess) -> CommandLine:
    return CommandLine(broker)


def row(run: CommandLine, noun: str, name: str, *columns: str) -> dict[str, Any]:
    """The columns of one queue or exchange."""
    rows = run.json(f"list-{noun}", "name", *columns)
    return next({column: each[column] for column in columns} for each in rows if each["name"] == name)


def test_a_full_queue_says_so_and_counts_what_it_refuses(
    channel: BlockingChannel, run: CommandLine, queue: str
) -> None:
    """pika hears of each; so does who looks at the queue."""
    channel.queue_declare(queue, durable=True, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    channel.confirm_delivery()
    put(channel, queue, "a", "b")
    for _ in range(3):
        with pytest.raises(NackError):
            channel.basic_publish("", queue, b"c")
    shown = row(run, "queues", queue, "full", "published", "rejected", "dropped")
    assert shown == {"full": True, "published": 2, "rejected": 3, "dropped": 0}
    status = next(each for each in run.broker.status()["queues"] if each["name"] == queue)
    assert status["limits"] == {"messages": 2, "bytes": None, "overflow": "reject-publish"}
    channel.queue_purge(queue)
    assert row(run, "queues", queue, "full", "rejected") == {"full": False, "rejected": 3}


def test_what_a_queue_drops_and_what_expires_in_it(
    channel: BlockingChannel, run: CommandLine, queue: str
) -> None:
    """Without a dead-letter exchange nobody else could tell."""
    channel.queue_declare(queue, durable=True, arguments={"x-max-length": 1})
    channel.confirm_delivery()
    put(channel, queue, "a", "b", "c")
    channel.basic_publish("", queue, b"d", pika.BasicProperties(expiration="1"))
    run.broker.wait_for_counts(queue, ready=0)
    shown = row(run, "queues", queue, "published", "dropped", "expired", "dead_lettered")
    assert shown == {"published": 4, "dropped": 3, "expired": 1, "dead_lettered": 0}


def test_what_has_no_queue(connect: Connect, run: CommandLine, queue: str) -> None:
    """Unroutable at the exchange and at the channel; returned where the client asked for it."""
    connection = connect(client_properties={"connection_name": queue})
    channel = connection.channel()
    channel.exchange_declare(queue, "direct", auto_delete=False)
    channel.confirm_delivery()
    channel.basic_publish(queue, "nowhere", b"x")
    with pytest.raises(UnroutableError):
        channel.basic_publish(queue, "nowhere", b"x", mandatory=True)
    assert row(run, "exchanges", queue, "published", "unroutable") == {"published": 2, "unroutable": 2}
    connections = run.json("list-connections", "client", "published", "confirmed", "unroutable", "returned")
    mine = next(each for each in connections if queue in each["client"])
    assert (mine["published"], mine["confirmed"]) == (2, 2)
    assert (mine["unroutable"], mine["returned"]) == (2, 1)
    channel.exchange_delete(queue)


def test_links_of_proton(client: ProtonClient, run: CommandLine, queue: str) -> None:
    """What is sent, delivered and accepted; what is not of the link's role is empty."""
    sender = client.sender(queue)
    sender.send("a", "b", "c")
    receiver = client.receiver(queue, credit=3)
    receiver.settle(receiver.take(3))

    def settled() -> bool:
        links = {each["role"]: each for each in run.broker.links(queue)}
        return bool(links["receiver"]["counters"]["acknowledged"] == 3)

    client.wait(settled, "three acknowledged deliveries")
    links = {each["role"]: each["counters"] for each in run.broker.links(queue)}
    assert (links["sender"]["published"], links["sender"]["confirmed"]) == (3, 3)
    assert links["sender"]["delivered"] is None
    assert links["receiver"]["delivered"] == 3
    assert links["receiver"]["published"] is None
