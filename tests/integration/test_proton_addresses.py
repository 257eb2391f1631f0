"""Addresses and termini as proton uses them: named queues, the anonymous relay, dynamic sources."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from proton import Delivery, Message, Terminus, symbol

from tests.support.broker_process import BrokerProcess, StartBroker
from tests.support.proton_client import LinkEnd, ProtonClient

pytestmark = pytest.mark.integration


def refused(link: LinkEnd) -> tuple[str | None, str | None]:
    """Condition and description with which the broker refuses an attach."""
    link.wait_refused()
    return link.condition, link.description


@pytest.mark.rabbitmq("amqp_address_SUITE", "target_bad_v2_address")
@pytest.mark.parametrize("role", ["sender", "receiver"])
def test_bare_name_declares_a_durable_queue(
    broker: BrokerProcess, client: ProtonClient, queue: str, role: str
) -> None:
    """As RabbitMQ 4.0, so that proton's own examples run."""
    getattr(client, role)(queue)
    found = broker.queue(queue)
    assert found is not None
    assert found["durable"] is True


@pytest.mark.rabbitmq("amqp_address_SUITE", "queue", "queue_with_slash")
@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "with space",
        "Käse-€-\U0001f9c0",
        "a/b",
        "100%",
        "?#&=+",
        "q:1;2",
        "\u4f60\u597d",
        "dots.and~",
    ],
)
def test_percent_encoded_names_reach_the_queue(
    broker: BrokerProcess, client: ProtonClient, queue: str, name: str
) -> None:
    """/queues/:queue, RFC 3986 percent-encoding of UTF-8, names the queue that the bare name declares."""
    name = f"{name}-{queue[-8:]}"
    declaring = client.sender(name)
    declaring.close()
    address = "/queues/" + quote(name, safe="")
    sender = client.sender(address)
    assert sender.link.remote_target.address == address
    sender.send("hello")
    broker.wait_for_counts(name, ready=1)
    receiver = client.receiver(address, credit=1)
    assert receiver.link.remote_source.address == address
    receiver.settle(receiver.take())
    assert receiver.bodies == ["hello"]


@pytest.mark.rabbitmq("amqp_address_SUITE", "source_queue_absent", "target_queue_absent")
@pytest.mark.rabbitmq("amqp_client_SUITE", "attach_link_to_non_existing_destination")
@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "attach_receiver_from_missing_queue")
@pytest.mark.parametrize("role", ["sender", "receiver"])
def test_missing_queue_is_a_link_error(broker: BrokerProcess, client: ProtonClient, role: str) -> None:
    """not-found names the queue; the answering attach has no terminus; the session lives."""
    link = getattr(client, role)("/queues/no%20such", wait=False)
    assert refused(link) == ("amqp:not-found", "no queue 'no such' in vhost '/'")
    terminus = link.link.remote_target if role == "sender" else link.link.remote_source
    assert terminus.address is None
    assert terminus.type == Terminus.UNSPECIFIED
    client.sender("alive").close()


@pytest.mark.rabbitmq(
    "amqp_address_SUITE", "source_bad_address", "source_bad_v2_address", "target_bad_address"
)
@pytest.mark.rabbitmq("amqp_address_SUITE", "target_bad_v2_address", differs="a bare name is a queue")
@pytest.mark.rabbitmq(
    "amqp_dotnet_SUITE", "attach_receiver_from_invalid_address", "attach_sender_to_invalid_address"
)
@pytest.mark.parametrize("role", ["sender", "receiver"])
@pytest.mark.parametrize(
    "address",
    [
        *("/queues/", "/queues", "/queue/x", "/topic/x", "/", "//", "/queues/a/b", "/queues/%zz"),
        *("/queues/%", "/queues/%ff", "/queues/a?b", "/queues/a#b", "/queues/" + "x" * 256),
        *("/exchanges/", "/exchanges//key", "/exchanges/amq.default/key", "/exchanges/a/b/c"),
    ],
)
def test_bad_address_is_a_link_error(
    broker: BrokerProcess, client: ProtonClient, role: str, address: str
) -> None:
    """invalid-field, with words that say what is wrong; the session lives."""
    link = getattr(client, role)(address, wait=False)
    condition, description = refused(link)
    assert condition == "amqp:invalid-field"
    assert description is not None
    assert description.startswith("Attach refused: ")
    client.sender("alive").close()


@pytest.mark.rabbitmq("amqp_client_SUITE", "attach_link_to_non_existing_destination")
@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "attach_sender_to_missing_exchange")
def test_missing_exchange_is_a_link_error(broker: BrokerProcess, client: ProtonClient) -> None:
    """There are no exchanges yet; the words are RabbitMQ's."""
    sender = client.sender("/exchanges/none/key", wait=False)
    assert refused(sender) == ("amqp:not-found", "no exchange 'none' in vhost '/'")


@pytest.mark.rabbitmq("amqp_address_SUITE", "source_undefined_address")
def test_receiver_without_source_is_refused(broker: BrokerProcess, client: ProtonClient) -> None:
    """Section 2.6.3: a consumer must say from where, unless it resumes a link, and none is kept here."""

    def unset(link: Any) -> None:
        link.source.type = Terminus.UNSPECIFIED

    receiver = client.receiver(None, wait=False, apply=[unset])
    condition, description = refused(receiver)
    assert condition == "amqp:not-found"
    assert description.startswith("Attach refused: source_required: no link ")


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


# --- anonymous relay ------------------------------------------------------------------------------


def test_anonymous_relay_is_offered(broker: BrokerProcess, client: ProtonClient) -> None:
    """Clients look for the capability before they attach without a target."""
    assert symbol("ANONYMOUS-RELAY") in list(client.connection.remote_offered_capabilities)


def test_anonymous_relay_routes_each_message_by_its_to(
    broker: BrokerProcess, client: ProtonClient, queue: str
) -> None:
    """Null target: the queue is named by properties.to; x-routing-key tells which it was."""
    names = [f"{queue}-a", f"{queue}-b"]
    for name in names:
        client.sender(name).close()
    relay = client.sender(None)
    order = [0, 0, 1, 0, 1, 1, 1, 0]
    outcomes = relay.send(
        *(Message(address=f"/queues/{names[which]}", body=at) for at, which in enumerate(order))
    )
    assert {each.state for each in outcomes} == {Delivery.ACCEPTED}
    for which, name in enumerate(names):
        expected = [at for at, chosen in enumerate(order) if chosen == which]
        receiver = client.receiver(name, credit=10)
        received = receiver.take(len(expected))
        assert receiver.bodies == expected
        assert {each.message.annotations[symbol("x-routing-key")] for each in received} == {name}


def test_anonymous_relay_releases_what_has_no_queue(
    broker: BrokerProcess, client: ProtonClient, queue: str
) -> None:
    """A missing queue: released when unsettled, dropped when settled; the link stays."""
    client.sender(queue).close()
    relay = client.sender(None)
    missing = Message(address="/queues/none", body=1)
    (outcome,) = relay.send(missing)
    assert (outcome.state, outcome.settled) == (Delivery.RELEASED, True)
    relay.send(missing, settled=True)
    (outcome,) = relay.send(Message(address=f"/queues/{queue}", body=2))
    assert outcome.state == Delivery.ACCEPTED
    broker.wait_for_counts(queue, ready=1)


@pytest.mark.parametrize(
    ("to", "condition", "words"),
    [
        (None, "amqp:precondition-failed", "anonymous terminus requires 'to' address to be set"),
        ("/nonsense/x", "amqp:precondition-failed", "bad 'to' address string"),
        ("/queues/%zz", "amqp:precondition-failed", "bad 'to' address string"),
        ("/exchanges/none/key", "amqp:not-found", "no exchange 'none' in vhost '/'"),
    ],
)
def test_anonymous_relay_rejects_bad_addresses(
    broker: BrokerProcess, client: ProtonClient, queue: str, to: str | None, condition: str, words: str
) -> None:
    """Unsettled: rejected with the reason, the link stays. Settled: the link is detached with it."""
    client.sender(queue).close()
    relay = client.sender(None)
    (outcome,) = relay.send(Message(address=to, body=1))
    assert (outcome.state, outcome.settled, outcome.condition) == (Delivery.REJECTED, True, condition)
    assert words in (outcome.description or "")
    assert relay.send(Message(address=f"/queues/{queue}", body=1))[0].state == Delivery.ACCEPTED
    relay.transfer(Message(address=to, body=1), settled=True)
    assert relay.wait_refused() == condition
    assert words in (relay.description or "")
    client.sender("alive").close()


def test_anonymous_relay_is_topped_up_whatever_the_outcome(
    broker: BrokerProcess, client: ProtonClient, queue: str
) -> None:
    """Accepted, released, rejected: each outcome finishes a delivery, so credit never dries up."""
    client.sender(queue).close()
    relay = client.sender(None)
    addresses = [f"/queues/{queue}", "/queues/none", "/nonsense"]
    tags = [relay.transfer(Message(address=addresses[at % 3], body=at)) for at in range(900)]
    states = [relay.outcome(tag).state for tag in tags]
    assert states == [Delivery.ACCEPTED, Delivery.RELEASED, Delivery.REJECTED] * 300
    broker.wait_for_counts(queue, ready=300)


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


def test_other_dynamic_nodes_are_not_made(broker: BrokerProcess, client: ProtonClient) -> None:
    """A capability that names another kind of node is refused."""

    def topic(link: Any) -> None:
        link.source.capabilities.put_object(symbol("temporary-topic"))

    receiver = client.receiver(None, dynamic=True, apply=[topic], wait=False)
    condition, description = refused(receiver)
    assert condition == "amqp:not-implemented"
    assert (description or "").startswith("Dynamic source not supported")


def test_temporary_queue_belongs_to_its_connection(broker: BrokerProcess, clients: Any) -> None:
    """Others may publish to it and may not consume from it."""
    owner, other = clients(broker), clients(broker)
    address = owner.receiver(None, dynamic=True).link.remote_source.address
    assert other.sender(address).send("hello")[0].state == Delivery.ACCEPTED
    condition, description = refused(other.receiver(address, wait=False))
    assert condition == "amqp:resource-locked"
    assert (description or "").startswith("cannot obtain exclusive access to locked queue 'amq.dyn-")
    own = owner.receiver(address, credit=1)
    own.take()


@pytest.mark.parametrize("leave", ["close", "detach", "end", "close connection", "lose connection"])
def test_temporary_queue_is_deleted_with_its_link(broker: BrokerProcess, clients: Any, leave: str) -> None:
    """Lifetime delete-on-close: link, session or connection gone; publishers hear resource-deleted."""
    owner, other = clients(broker), clients(broker)
    session = owner.session()
    replies = owner.receiver(None, dynamic=True, session=session)
    address = replies.link.remote_source.address
    sender = other.sender(address)
    sender.send("x")
    match leave:
        case "close":
            replies.close()
        case "detach":
            replies.detach()
        case "end":
            session.session.close()
            owner.flush()
        case "close connection":
            owner.close()
        case "lose connection":
            owner.lose()
    assert sender.wait_refused() == "amqp:resource-deleted"
    assert refused(other.sender(address, wait=False))[0] == "amqp:not-found"
    name = address.removeprefix("/queues/")
    broker.wait_until(lambda: broker.queue(name) is None, "the end of the queue")


def test_dynamic_target_makes_a_queue(broker: BrokerProcess, client: ProtonClient) -> None:
    """As RabbitMQ 4.1: a sender, too, may ask for a temporary queue."""

    def dynamic(link: Any) -> None:
        link.target.dynamic = True
        link.target.capabilities.put_object(symbol("temporary-queue"))

    sender = client.sender(None, apply=[dynamic])
    address = sender.link.remote_target.address
    assert address.startswith("/queues/amq.dyn-")
    sender.send("x")
    client.receiver(address, credit=1).take()
