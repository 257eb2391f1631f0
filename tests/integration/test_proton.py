"""proton end to end: addresses, connections, credit, messages, settlement, topics as operators see them."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery, Link, Message, Terminus, symbol

from amqp10broker.message.amqp10 import locate
from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.types import Described as OwnDescribed
from amqp10broker.protocols.amqp10.types import ULong as OwnULong
from tests.support.broker_process import BrokerProcess, StartBroker
from tests.support.command_line import CommandLine
from tests.support.proton_client import LinkEnd, ProtonClient, Received, ReceivingEnd


def fill(client: ProtonClient, queue: str, count: int, *, first: int = 0, body: bytes | None = None) -> None:
    """Put numbered messages into a queue and wait until all are accepted."""
    sender = client.sender(queue)
    tags = [
        sender.transfer(Message(body=number if body is None else body))
        for number in range(first, first + count)
    ]
    for tag in tags:
        assert sender.outcome(tag).state == Delivery.ACCEPTED
    sender.close()


def fence(receiver: ReceivingEnd) -> None:
    """Wait until the broker has answered everything said before on this link."""
    receiver.drain()


# --- F5 -------------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_client_SUITE", "stop_classic_queue", "stop_quorum_queue", "stop_stream")
def test_stop_while_deliveries_are_on_the_wire(
    broker: BrokerProcess, client: ProtonClient, queue: str
) -> None:
    """Deliveries that cross the stop are taken; the broker does not send beyond what it had sent by then.

    proton's own count of credit is then negative, and it writes that as link-credit 2**32 - n in its
    next flow, counted from a higher delivery-count: read as what it is, a limit that is not new.
    """
    fill(client, queue, 2000, body=b"x" * 2000)
    receiver = client.receiver(queue, credit=2000)
    client.wait(lambda: len(receiver.received) >= 50, "the first deliveries")
    receiver.stop()
    stopped_at = len(receiver.received)
    fence(receiver)
    fill(client, queue, 1)
    fence(receiver)
    assert len(receiver.received) == stopped_at
    assert stopped_at < 2000, "the broker went on delivering after the stop"
    broker.wait_for_counts(queue, ready=2001 - stopped_at, unsettled=stopped_at)


# --- fairness and isolation -----------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_client_SUITE", "link_flow_control")
def test_slow_target_does_not_delay_a_fast_one_on_the_same_session(
    start_broker: StartBroker, clients: Any
) -> None:
    """F2: a queue that confirms late withholds credit from its link only.

    Asserted by counts: the fast link takes ten times what the slow one may have unconfirmed, while
    not a single message of the slow one has been confirmed.
    """
    broker = start_broker("--test-mode", "--confirm-delay", "slow*=120000", "--shutdown-timeout-ms", "500")
    client = clients(broker)
    slow = client.sender("slow-queue")
    fast = client.sender("fast-queue")
    assert slow.link.session == fast.link.session
    for number in range(170 + 85):  # the credit at first, and one top-up at half of it
        slow.transfer(Message(body=number))
    client.flush()
    broker.wait_until(
        lambda: broker.links("slow-queue")[0]["waits"] == "credit-withheld", "the slow link out of credit"
    )
    tags = [fast.transfer(Message(body=number)) for number in range(1700)]
    for tag in tags:
        assert fast.outcome(tag).state == Delivery.ACCEPTED
    assert not slow.outcomes
    assert slow.link.credit == 0
    (link,) = broker.links("slow-queue")
    assert link["unsettled"] == 255
    consumer = client.receiver("fast-queue", credit=1700)
    consumer.settle(consumer.take(1700))
    broker.wait_for_counts("fast-queue", ready=0)
    assert not slow.outcomes


# --- publishers -----------------------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_client_SUITE", "sender_settle_mode_mixed")
def test_mixed_link_answers_the_unsettled_deliveries_only(
    broker: BrokerProcess, client: ProtonClient, queue: str
) -> None:
    """Section 2.8.2 mixed: settled and unsettled transfers on one link."""
    sender = client.sender(queue)
    assert sender.link.remote_snd_settle_mode == Link.SND_MIXED
    tags = [sender.transfer(Message(body=number), settled=number % 2 == 0) for number in range(20)]
    for tag in tags[1::2]:
        assert sender.outcome(tag).state == Delivery.ACCEPTED
    assert set(sender.outcomes) == set(tags[1::2])
    broker.wait_for_counts(queue, ready=20)
    receiver = client.receiver(queue, credit=20)
    receiver.take(20)
    assert receiver.bodies == list(range(20))


# --- what goes away without settling --------------------------------------------------------------


def test_disposition_after_detach_is_ignored(broker: BrokerProcess, client: ProtonClient, queue: str) -> None:
    """The deliveries of a link that has gone are no longer its client's to settle; the session lives."""
    fill(client, queue, 2)
    receiver = client.receiver(queue, credit=2)
    received = receiver.take(2)
    receiver.detach()
    broker.wait_for_counts(queue, ready=2)
    for each in received:
        each.delivery.update(Delivery.ACCEPTED)
        each.delivery.settle()
    client.flush()
    second = client.receiver(queue, credit=2)
    second.take(2)
    assert second.bodies == [0, 1]


def refused(link: LinkEnd) -> tuple[str | None, str | None]:
    """Condition and description with which the broker refuses an attach."""
    link.wait_refused()
    return link.condition, link.description


def test_queues_of_the_configuration_exist(start_broker: StartBroker, clients: Any, tmp_path: Any) -> None:
    """[[queue]] in the file declares; with declare_on_attach off nothing else does."""
    config = tmp_path / "broker.toml"
    config.write_text(
        'declare_on_attach = false\n[[queue]]\nname = "orders"\n[[queue]]\nname = "brief"\ndurable = false\n'
    )
    client = clients(start_broker("--config", str(config)))
    client.sender("/queues/orders").send("x")
    client.sender("brief").send("x")
    assert refused(client.sender("others", wait=False)) == (
        "amqp:not-found",
        "no queue 'others' in vhost '/'",
    )


# --- dynamic sources ------------------------------------------------------------------------------


def temporary(link: Any) -> None:
    """Ask for a temporary queue in so many words."""
    link.source.capabilities.put_object(symbol("temporary-queue"))


@pytest.mark.rabbitmq("amqp_client_SUITE", "dynamic_source_rpc")
@pytest.mark.parametrize("apply", [(), (temporary,)], ids=["plain", "temporary-queue"])
def test_dynamic_source_serves_request_and_response(
    broker: BrokerProcess, clients: Any, queue: str, apply: Any
) -> None:
    """The requester's replies come to a queue of its own, whose address the broker makes up."""
    requester, responder = clients(broker), clients(broker)
    service = responder.receiver(queue, credit=10)
    answers = responder.sender(None)
    replies = requester.receiver(None, credit=10, dynamic=True, apply=apply)
    address = replies.link.remote_source.address
    assert address.startswith("/queues/amq.dyn-")
    assert replies.link.remote_source.dynamic
    requests = requester.sender(queue)
    requests.send(*(Message(body=at, reply_to=address, correlation_id=at) for at in range(5)))
    for request in service.take(5):
        message = request.message
        (outcome,) = answers.send(
            Message(address=message.reply_to, body=message.body * 2, correlation_id=message.correlation_id)
        )
        assert outcome.state == Delivery.ACCEPTED
    got = [(each.message.correlation_id, each.message.body) for each in replies.take(5)]
    assert got == [(at, 2 * at) for at in range(5)]


# --- login ----------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_auth_SUITE", "sasl_anonymous_success")
def test_anonymous_login(broker: BrokerProcess, clients: Any, queue: str) -> None:
    """SASL ANONYMOUS logs in as the configured user, guest by default."""
    client = clients(broker, user=None, password=None, mechanisms="ANONYMOUS", container_id=queue)
    assert client.sender(queue).send("x")[0].state == Delivery.ACCEPTED
    connection = broker.connection(queue)
    assert connection["user"] == "guest"


# --- the end of the broker ------------------------------------------------------------------------


def test_clients_hear_of_a_shutdown(start_broker: StartBroker, clients: Any, queue: str) -> None:
    """SIGTERM: every client gets a close with amqp:connection:forced, and the broker ends with 0, soon."""
    broker = start_broker("--shutdown-timeout-ms", "60000")
    sending, receiving, idle = (clients(broker) for _ in range(3))
    sender = sending.sender(queue)
    sender.send(*(str(number) for number in range(20)))
    receiving.receiver(queue, credit=10).take(10)
    broker.terminate()
    for client in (sending, receiving, idle):
        condition, description = client.wait_closed()
        assert condition == "amqp:connection:forced"
        assert description == "Connection forced: the broker is shutting down"
        client.close()
    assert broker.wait_ended() == 0  # long before the time that clients have to leave
    broker.stop()


def test_shutdown_in_the_middle_of_traffic(start_broker: StartBroker, clients: Any, queue: str) -> None:
    """Publishers and consumers at full speed: all hear of it, and the broker ends in order."""
    broker = start_broker()
    publishing, consuming = clients(broker), clients(broker)
    sender = publishing.sender(queue)
    receiver = consuming.receiver(queue, credit=100_000)
    sent = 0
    terminated = False
    while publishing.remote_close is None:
        if sender.link.credit > 0:
            sender.transfer_now(Message(body=sent))
            sent += 1
        else:
            publishing._turn()
        if sent > 1000 and not terminated:
            terminated = True
            broker.terminate()
        assert sent < 1_000_000, "the broker goes on taking messages"
    assert publishing.remote_close[0] == "amqp:connection:forced"
    assert consuming.wait_closed()[0] == "amqp:connection:forced"
    assert receiver.bodies == list(range(len(receiver.received)))
    publishing.close()
    consuming.close()
    assert broker.wait_ended() == 0
    broker.stop()


MIB = 1024 * 1024


def through(client: ProtonClient, queue: str, *payloads: bytes | Message) -> list[Received]:
    sender = client.sender(queue)
    assert [each.state for each in sender.send(*payloads)] == [Delivery.ACCEPTED] * len(payloads)
    receiver = client.receiver(queue, credit=len(payloads))
    received = receiver.take(len(payloads))
    receiver.settle(received)
    receiver.close()
    sender.close()
    return received


def bare(payload: bytes) -> bytes:
    return payload[locate(payload).bare :]


def section(code: int, value: Any) -> bytes:
    return encode(OwnDescribed(OwnULong(code), value))


# --- sizes ----------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "fragmentation")
@pytest.mark.parametrize("frame_size", [512, 4096, 131_072, None])
def test_one_mebibyte_through_every_frame_size(
    broker: BrokerProcess, clients: Any, queue: str, frame_size: int | None
) -> None:
    """Section 2.6.14: messages are cut by the peer's max-frame-size, 512 bytes being the least."""
    options = {} if frame_size is None else {"max_frame_size": frame_size}
    client = clients(broker, **options)
    sent = section(0x75, bytes(range(256)) * (MIB // 256))
    first, second = through(client, queue, sent, sent)
    assert bare(first.raw) == sent
    assert bare(second.raw) == sent


def test_message_of_exactly_the_maximum_size(broker: BrokerProcess, client: ProtonClient, queue: str) -> None:
    """16 MiB are accepted, with the header that proton adds not counted twice, and come back whole."""
    head = len(section(0x75, b"x" * 1000)) - 1000
    sent = section(0x75, b"m" * (16 * MIB - head))
    assert len(sent) == 16 * MIB
    (received,) = through(client, queue, sent)
    assert bare(received.raw) == sent


def test_message_too_large_for_the_consumer_is_not_sent_to_it(
    broker: BrokerProcess, clients: Any, queue: str
) -> None:
    """Section 2.7.3: the consumer's max-message-size ends that link; the message stays in the queue."""
    client = clients(broker)
    sender = client.sender(queue)
    sender.send(section(0x75, b"m" * 5000), section(0x75, b"small"))
    small = client.receiver(queue, credit=2, max_message_size=1000, wait=False)
    assert small.wait_refused() == "amqp:link:message-size-exceeded"
    assert not small.received
    large = client.receiver(queue, credit=2)
    assert [len(bare(each.raw)) for each in large.take(2)] == [5008, 10]


def durable(link: Link) -> None:
    link.source.durability = Terminus.DELIVERIES
    link.source.expiry_policy = Terminus.EXPIRE_NEVER


def topic(link: Link) -> None:
    (link.source if link.is_receiver else link.target).capabilities.put_object(symbol("topic"))


def bodies(receiver: ReceivingEnd, count: int) -> list[Any]:
    receiver.grant(count)
    taken = receiver.take(count)
    receiver.settle(taken)
    return [each.message.body for each in taken]


def test_a_durable_subscription_is_seen_and_deleted_by_an_operator(
    broker: BrokerProcess, clients: Any, queue: str
) -> None:
    """Its queue has a name that says whose it is, an argument that says what it is, and a command ends it."""
    client = clients(broker, container_id=queue)
    first = client.receiver(queue, name="sub", apply=[topic, durable])
    assert first.link.remote_source.durability == Terminus.CONFIGURATION
    assert first.link.remote_source.expiry_policy == Terminus.EXPIRE_NEVER
    first.detach()
    sender = client.sender(f"/topics/{queue}")
    sender.send("kept")
    name = f"subscription:{queue}:sub"
    command_line = CommandLine(broker)
    listed = command_line.json("queue", "list", "name", "arguments")
    queues = {each["name"]: each["arguments"] for each in listed}
    assert queues[name]["x-subscription"] == {
        "topic": queue,
        "container": queue,
        "name": "sub",
        "durable": True,
    }
    again = client.receiver(queue, name="sub", apply=[topic, durable])
    assert bodies(again, 1) == ["kept"]
    assert name in command_line("binding", "list")
    command_line("queue", "delete", name)
    assert again.wait_refused() == "amqp:resource-deleted"
