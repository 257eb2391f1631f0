"""The blocking client's bulk receiver and its requests to the management node, against the real process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from amqp10broker.client.blocking import Client, Management, bulk_receiver, connect
from amqp10broker.client.errors import LinkDetachedError, LinkRefusedError, SessionEndedError
from amqp10broker.client.message import data_message, decode_message
from tests.support.broker_process import BrokerProcess

pytestmark = pytest.mark.usefixtures("deadline")


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with connect(broker.host, broker.port, user="guest", password="guest", timeout_s=20.0) as connected:
        yield connected


def bodies(payloads: list[bytes]) -> list[bytes]:
    return [decode_message(payload).body for payload in payloads]


def test_many_messages(client: Client, broker: BrokerProcess, queue: str) -> None:
    """They come in order and leave the queue, and no more come than were granted."""
    sent = [b"%d" % number for number in range(3000)]
    client.sender(queue).send_many(map(data_message, sent))
    receiver = bulk_receiver(client, queue)
    got: list[bytes] = []
    while len(got) < 2500:
        if receiver.credit <= 50:
            receiver.grant(min(100, 2500 - len(got)))
        assert receiver.wait(20.0)
        got += bodies(receiver.take())
    assert got == sent[:2500]
    assert receiver.credit == 0
    broker.wait_for_counts(queue, ready=500)


def test_a_drain_says_that_there_is_no_more(client: Client, queue: str) -> None:
    client.sender(queue).send_many(map(data_message, [b"a", b"b", b"c"]))
    receiver = bulk_receiver(client, queue)
    assert not receiver.exhausted
    receiver.grant(2, drain=True)
    assert receiver.wait(20.0, lambda: receiver.end.drained)
    assert not receiver.exhausted
    assert bodies(receiver.take()) == [b"a", b"b"]
    receiver.grant(2, drain=True)
    assert receiver.wait(20.0, lambda: receiver.end.drained)
    assert receiver.exhausted
    assert bodies(receiver.take()) == [b"c"]
    assert receiver.take() == []


def test_messages_that_are_settled_together(client: Client, broker: BrokerProcess, queue: str) -> None:
    """Released messages return to their places, and so do those beyond the room."""
    sent = [b"%d" % number for number in range(100)]
    client.sender(queue).send_many(map(data_message, sent))
    receiver = bulk_receiver(client, queue, settled=False)
    receiver.grant(60)
    receiver.wait_for("messages", 20.0, lambda: receiver.end.received == 60)
    assert bodies(receiver.take()) == sent[:60]
    receiver.release()
    receiver.end.keep = lambda sizes: min(len(sizes), 10 - len(receiver.end.payloads))
    receiver.grant(30)
    receiver.wait_for("messages", 20.0, lambda: receiver.end.received == 90)
    assert bodies(receiver.take()) == sent[:10]
    receiver.release_surplus()
    broker.wait_for_counts(queue, ready=90, unsettled=10)
    receiver.accept()
    broker.wait_for_counts(queue, ready=90)
    with connect(broker.host, broker.port, user="guest", password="guest") as other:
        assert [each.message().body for each in other.receiver(queue).receive_many(90, count_min=90)] == sent[
            10:
        ]


def test_what_ends_the_link(client: Client, queue: str) -> None:
    """The next call reports it; a refused link is reported at once."""
    with pytest.raises((LinkRefusedError, SessionEndedError)):
        bulk_receiver(client, "/queues/missing")


def test_a_queue_that_is_deleted_meanwhile(client: Client, queue: str) -> None:
    management = Management(client)
    client.sender(queue)
    receiver = bulk_receiver(client, queue)
    receiver.grant(5)
    client.flush()
    assert management.ask("DELETE", f"/queues/{queue}")[0] == 200
    with pytest.raises(LinkDetachedError):
        receiver.wait(20.0)
    with pytest.raises(LinkDetachedError):
        receiver.grant(1)


def test_requests_one_after_another(client: Client, queue: str) -> None:
    """Each has its status and body; two pairs on one connection do not interfere."""
    management = Management(client)
    other = Management(client)
    assert management.ask("GET", f"/queues/{queue}")[0] == 404
    status, body = management.ask("PUT", f"/queues/{queue}", {})
    assert (status, body["name"], body["type"]) == (201, queue, "classic")
    for _ in range(20):
        assert other.ask("GET", f"/queues/{queue}")[0] == 200
    assert management.ask("GET", "/no/such/path")[0] == 404
