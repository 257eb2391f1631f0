"""Addresses and termini as proton uses them: named queues, the anonymous relay, dynamic sources."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery, Message, symbol

from tests.support.broker_process import BrokerProcess, StartBroker
from tests.support.proton_client import LinkEnd

pytestmark = pytest.mark.integration


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
