"""Direct reply-to with AMQP 1.0, and across the protocols."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from amqp10broker.metadata.users import Permission
from amqp10broker.protocols.amqp091.content import Content
from amqp10broker.protocols.amqp091.methods import BasicConsume, BasicConsumeOk, QueueDeclare, QueueDeclareOk
from amqp10broker.protocols.amqp091.properties import decode_properties
from amqp10broker.protocols.amqp10 import performatives as amqp10
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.runtime.broker import Broker
from tests.support import rawframes as raw
from tests.support.declaring import declare, set_permission
from tests.support.trioclient import Client, connect, queue_counts
from tests.support.trioclient091 import Client091, connect091

VOLATILE = Symbol("rabbitmq:volatile-queue")
PREFIX = "/queues/amq.rabbitmq.reply-to."


def requester(handle: int = 0, *, channel: int = 0, **changes: Any) -> bytes:
    source = {
        "dynamic": True,
        "capabilities": (VOLATILE,),
        "expiry_policy": Symbol("link-detach"),
        "durable": amqp10.TerminusDurability.NONE,
        "timeout": 0,
    }
    mode = changes.pop("snd_settle_mode", 1)
    return raw.attach_receiver(
        handle, "", channel=channel, source=amqp10.Source(**{**source, **changes}), snd_settle_mode=mode
    )


async def attached(client: Client, handle: int = 0) -> str:
    await client.send(requester(handle))
    attach = await client.expect(amqp10.Attach)
    assert isinstance(attach.source, amqp10.Source)
    assert isinstance(attach.source.address, str)
    assert attach.source.address.startswith(PREFIX)
    return attach.source.address


def request(reply_to: str, body: bytes = b"request", **fields: Any) -> bytes:
    return amqp10.Properties(reply_to=reply_to, **fields).encode() + raw.message(body)


transfer = partial(raw.transfer, raw=True)


def properties_of(payload: bytes) -> amqp10.Properties:
    at = payload.index(b"\x00\x53\x73")
    found, _ = amqp10.decode_composite(payload, at)
    assert isinstance(found, amqp10.Properties)
    return found


async def refused(client: Client, attach: bytes) -> tuple[str, str]:
    await client.send(attach)
    reply = await client.expect(amqp10.Attach)
    assert reply.source is None or reply.target is None
    error = (await client.expect(amqp10.Detach)).error
    assert error.description is not None
    return str(error.condition), error.description


# --- the requester's link ------------------------------------------------------------------------


async def test_the_reply_says_what_was_made(broker: Broker) -> None:
    """It has address, dynamic and capability, settled; each link gets a name of its own."""
    client = await connect(broker).open()
    await client.send(requester(), requester(1))
    first, second = await client.expect(amqp10.Attach), await client.expect(amqp10.Attach)
    assert first.snd_settle_mode == 1
    source = first.source
    assert isinstance(source, amqp10.Source)
    assert isinstance(second.source, amqp10.Source)
    assert source.address != second.source.address
    assert source.dynamic
    assert source.capabilities == (VOLATILE,)
    assert source.expiry_policy == "link-detach"
    assert source.durable == amqp10.TerminusDurability.NONE
    assert source.timeout == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"snd_settle_mode": 0},
        {"snd_settle_mode": 2},
        {"durable": amqp10.TerminusDurability.UNSETTLED_STATE},
        {"expiry_policy": Symbol("session-end")},
        {"timeout": 1},
        {"address": "mine"},
    ],
    ids=str,
)
async def test_a_request_that_could_not_be_kept_is_refused(broker: Broker, changes: dict[str, Any]) -> None:
    """Only at-most-once delivery for the lifetime of the link is possible."""
    client = await connect(broker).open()
    condition, text = await refused(client, requester(**changes))
    assert condition == "amqp:not-implemented"
    assert text.startswith("Dynamic source not supported")
    assert not broker.catalog.vhosts["/"].queues


# --- replies -------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("direct_reply_to_amqp_SUITE", "responder_attaches_queue_target")
@pytest.mark.parametrize("fixed", [True, False], ids=["fixed target", "anonymous terminus"])
async def test_a_reply_reaches_the_requester(broker: Broker, fixed: bool) -> None:
    """A request goes through a queue, its reply to the address in it; unsettled replies are accepted at
    once.
    """
    declare(broker.catalog, "/", "requests")
    asking, answering = await connect(broker).open(), await connect(broker).open()
    address = await attached(asking)
    await asking.call(amqp10.Flow, raw.credit(0, 10), raw.attach_sender(1, "/queues/requests"))
    await asking.call(amqp10.Disposition, transfer(1, 0, request(address, correlation_id="c")))

    await answering.send(raw.attach_receiver(0, "/queues/requests"), raw.credit(0, 1))
    await answering.expect(amqp10.Attach)
    (got,) = await answering.take(amqp10.Transfer, 1)
    to = properties_of(got.payload).reply_to
    assert to == address
    await answering.send(raw.attach_sender(1, address if fixed else "", target=amqp10.Target(address=None)))
    if fixed:
        await answering.send(
            raw.frame(0, amqp10.Detach(handle=1, closed=True)),
            raw.attach_sender(2, address),
            raw.attach_sender(3, address),
        )
    handle = 2 if fixed else 1
    await answering.until(amqp10.Attach)
    reply = amqp10.Properties(to=None if fixed else address, correlation_id="c").encode() + raw.message(
        b"reply"
    )
    await answering.send(transfer(handle, 0, reply), transfer(handle, 1, reply, settled=True))
    disposition = await answering.until(amqp10.Disposition)
    assert (disposition.first, disposition.last or 0, disposition.settled) == (0, 0, True)
    assert type(disposition.state).__name__ == "Accepted"
    came = await asking.take(amqp10.Transfer, 2)
    assert [raw.body_of(each.payload) for each in came] == [b"reply", b"reply"]
    assert all(each.body.settled for each in came)
    assert properties_of(came[0].payload).correlation_id == "c"


@pytest.mark.rabbitmq("direct_reply_to_amqp_SUITE", "responder_attaches_queue_target")
async def test_without_credit_a_reply_is_dropped(broker: Broker) -> None:
    """It is accepted all the same; replies after the grant are delivered, and credit counts."""
    client = await connect(broker).open()
    address = await attached(client)
    await client.call(amqp10.Flow, raw.attach_sender(1, address))
    await client.send(*[transfer(1, number, raw.message(b"early")) for number in range(3)])
    got = await client.idle()
    assert {type(each.body).__name__ for each in got} == {"Disposition"}
    await client.send(raw.credit(0, 2))
    await client.send(*[transfer(1, number, raw.message(b"%d" % number)) for number in range(3, 7)])
    transfers = [each for each in await client.idle() if type(each.body) is amqp10.Transfer]
    assert [raw.body_of(each.payload) for each in transfers] == [b"3", b"4"]
    assert queue_counts(broker, address.rpartition("/")[2]) == (0, 0)


async def test_drain_is_answered(broker: Broker) -> None:
    """No message is ever available: the credit is used up at once."""
    client = await connect(broker).open()
    await attached(client)
    answer = await client.call(amqp10.Flow, raw.credit(0, 10, drain=True))
    assert (answer.delivery_count, answer.link_credit, answer.available) == (10, 0, 0)


@pytest.mark.rabbitmq("direct_reply_to_amqp_SUITE", "many_volatile_queues_same_session")
async def test_many_volatile_queues_in_one_session(broker: Broker) -> None:
    client = await connect(broker).open()
    addresses = [await attached(client, handle) for handle in range(5)]
    await client.send(*[raw.credit(handle, 1) for handle in range(5)])
    await client.call(amqp10.Flow, raw.attach_sender(9, "", target=amqp10.Target()))
    for number, address in enumerate(addresses):
        payload = amqp10.Properties(to=address).encode() + raw.message(b"%d" % number)
        await client.send(transfer(9, number, payload, settled=True))
    came = {got.body.handle: raw.body_of(got.payload) for got in await client.take(amqp10.Transfer, 5)}
    assert sorted(came.values()) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.rabbitmq(
    "direct_reply_to_amqp_SUITE",
    "failure_multiple_consumers_different_session_same_queue",
    "failure_multiple_consumers_same_session_same_queue",
)
@pytest.mark.parametrize("channel", [0, 1], ids=["same session", "another session"])
async def test_only_the_creator_may_consume(broker: Broker, channel: int) -> None:
    """In failure_multiple_consumers_same_session_same_queue and _different_session_ the link is refused."""
    client = await connect(broker).open(channels=2)
    address = await attached(client)
    condition, text = await refused(client, raw.attach_receiver(1, address, channel=channel))
    assert condition == "amqp:unauthorized-access"
    name = address.rpartition("/")[2]
    assert text == f"only creator channel may consume from queue '{name}'"


# --- the end -------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("direct_reply_to_amqp_SUITE", "responder_attaches_queue_target")
@pytest.mark.parametrize("way", ["detach", "end", "vanish"])
async def test_the_queue_goes_with_its_link(broker: Broker, way: str) -> None:
    """Its publishers are detached; a later publisher gets not-found."""
    asking, answering = await connect(broker).open(), await connect(broker).open()
    address = await attached(asking)
    name = address.rpartition("/")[2]
    await answering.call(amqp10.Flow, raw.attach_sender(0, address))
    if way == "detach":
        await asking.send(raw.frame(0, amqp10.Detach(handle=0, closed=True)))
    elif way == "end":
        await asking.send(raw.frame(0, amqp10.End()))
    else:
        await asking.vanish()
    detach = await answering.until(amqp10.Detach)
    assert detach.error.condition == "amqp:resource-deleted"
    condition, text = await refused(answering, raw.attach_sender(1, address))
    assert (condition, text) == ("amqp:not-found", f"no queue '{name}' in vhost '/'")
    assert not broker.catalog.vhosts["/"].queues


@pytest.mark.rabbitmq("amqp_auth_SUITE", "attach_source_queue_dynamic_volatile")
@pytest.mark.parametrize(
    ("permission", "text"),
    [
        (Permission("", ".*", ".*"), "configure access to queue '"),
        (Permission(".*", ".*", ""), "read access to queue '"),
    ],
)
async def test_a_volatile_queue_needs_configure_and_read(
    broker: Broker, permission: Permission, text: str
) -> None:
    """They apply to its generated name; the session ends."""
    client = await connect(broker).open()
    set_permission(broker.catalog, "guest", "/", permission)
    await client.send(requester())
    end = await client.expect(amqp10.End)
    assert end.error.condition == "amqp:unauthorized-access"
    assert end.error.description.startswith(text + "amq.rabbitmq.reply-to.")
    assert end.error.description.endswith("' in vhost '/' refused for user 'guest'")
    assert not broker.catalog.vhosts["/"].queues
    set_permission(broker.catalog, "guest", "/", Permission(r"^amq\.rabbitmq", "", r"^amq\.rabbitmq"))
    await client.send(raw.frame(0, amqp10.End()), raw.begin(0))
    await client.expect(amqp10.Begin)
    await attached(client)


# --- across the protocols ------------------------------------------------------------------------


@pytest.mark.rabbitmq("direct_reply_to_amqpl_SUITE", "amqp_amqpl_amqp")
async def test_a_1_0_requester_and_a_0_9_1_responder(broker: Broker) -> None:
    """The responder gets the queue's name and replies to it by the default exchange."""
    declare(broker.catalog, "/", "requests")
    asking = await connect(broker).open()
    answering = await connect091(broker).open()
    address = await attached(asking)
    await asking.call(amqp10.Flow, raw.credit(0, 10), raw.attach_sender(1, "/queues/requests"))
    await asking.call(
        amqp10.Disposition, transfer(1, 0, request(address, correlation_id="c", message_id="m"))
    )

    await answering.call(1, BasicConsume(queue="requests", no_ack=True), BasicConsumeOk)
    got = await answering.expect(Content)
    assert got.body == b"request"
    assert decode_properties(got.properties).correlation_id == "c"
    name = decode_properties(got.properties).reply_to
    assert name == address.removeprefix("/queues/")
    assert (await answering.call(1, QueueDeclare(queue=name, passive=True), QueueDeclareOk)).queue == name
    await answering.publish("", name, b"reply", correlation_id="c", headers={"number": 7})

    (reply,) = await asking.take(amqp10.Transfer, 1)
    assert reply.body.settled
    assert raw.body_of(reply.payload) == b"reply"
    assert properties_of(reply.payload).correlation_id == "c"


async def ask091(client: Client091, body: bytes = b"request") -> None:
    await client.call(1, BasicConsume(queue="amq.rabbitmq.reply-to", no_ack=True), BasicConsumeOk)
    await client.publish("", "requests", body, reply_to="amq.rabbitmq.reply-to", correlation_id="c")


@pytest.mark.rabbitmq("direct_reply_to_amqpl_SUITE", "amqpl_amqp_amqpl")
@pytest.mark.parametrize("fixed", [True, False], ids=["fixed target", "anonymous terminus"])
async def test_a_0_9_1_requester_and_a_1_0_responder(broker: Broker, fixed: bool) -> None:
    """The responder gets an address and publishes to it."""
    declare(broker.catalog, "/", "requests")
    asking = await connect091(broker).open()
    answering = await connect(broker).open()
    await ask091(asking)
    await answering.send(raw.attach_receiver(0, "/queues/requests"), raw.credit(0, 1))
    await answering.expect(amqp10.Attach)
    (got,) = await answering.take(amqp10.Transfer, 1)
    given = properties_of(got.payload)
    assert given.correlation_id == "c"
    assert isinstance(given.reply_to, str)
    assert given.reply_to.startswith(PREFIX)
    target = amqp10.Target(address=given.reply_to if fixed else None)
    await answering.call(amqp10.Flow, raw.attach_sender(1, "", target=target))
    reply = amqp10.Properties(to=given.reply_to, correlation_id="c").encode() + raw.message(b"reply")
    accepted = await answering.call(amqp10.Disposition, transfer(1, 0, reply))
    assert accepted.state == amqp10.Accepted()
    delivered = await asking.expect(Content)
    assert (delivered.body, decode_properties(delivered.properties).correlation_id) == (b"reply", "c")


async def test_a_1_0_link_may_not_consume_the_replies_of_a_channel(broker: Broker) -> None:
    """Nor may it attach there once the channel is gone."""
    declare(broker.catalog, "/", "requests")
    asking = await connect091(broker).open()
    other = await connect(broker).open()
    await ask091(asking)
    await other.send(raw.attach_receiver(0, "/queues/requests"), raw.credit(0, 1))
    (got,) = await other.take(amqp10.Transfer, 1)
    address = properties_of(got.payload).reply_to
    assert isinstance(address, str)
    name = address.removeprefix("/queues/")
    condition, text = await refused(other, raw.attach_receiver(1, address))
    assert (condition, text) == (
        "amqp:unauthorized-access",
        f"only creator channel may consume from queue '{name}'",
    )
    await other.call(amqp10.Flow, raw.attach_sender(2, address))
    await asking.stream.aclose()
    detach = await other.until(amqp10.Detach)
    assert detach.error.condition == "amqp:resource-deleted"
    await other.call(amqp10.Flow, raw.flow(echo=True))
