"""Addresses and termini as proton uses them: named queues, the anonymous relay, dynamic sources."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery, Message, Terminus, symbol

from tests.support.broker_process import BrokerProcess, StartBroker
from tests.support.proton_client import LinkEnd, ProtonClient

pytestmark = pytest.mark.integration


def refused(link: LinkEnd) -> tuple[str | None, str | None]:
    """Condition and description with which the broker refuses an attach."""
    link.wait_refused()
    return link.condition, link.description


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
