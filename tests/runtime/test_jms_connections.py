"""What clients of JMS find of connections, and of subscriptions that outlive them (docs/jms.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from amqp10broker.metadata.catalog import VHOSTS
from amqp10broker.metadata.users import Permission
from amqp10broker.protocols.amqp10 import performatives as amqp10
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.runtime.broker import Broker
from amqp10broker.sessions.amqp10.attach import SHARED
from tests.support.declaring import add_vhost, declare, set_permission
from tests.support.rawframes import attach_sender, begin, credit, frame, login, message, open_frame, transfer
from tests.support.trioclient import Client, connect, running_broker, settle_down

SOLE = Symbol("sole-connection-for-container")
JMS = (SOLE, Symbol("DELAYED_DELIVERY"), Symbol("ANONYMOUS-RELAY"), Symbol("SHARED-SUBS"))
"""What Qpid JMS desires."""
TOPIC = Symbol("topic")


async def opened(broker: Broker, *desired: Symbol, **fields: Any) -> tuple[Client, amqp10.Open]:
    client = connect(broker)
    assert (await client.call(amqp10.SaslOutcome, login())).code == 0
    await client.send(open_frame(desired_capabilities=desired or None, **fields))
    return client, await client.expect(amqp10.Open)


async def leave(client: Client) -> None:
    await client.send(frame(0, amqp10.Close()))
    await client.rest()
    await settle_down()


def subscribe(handle: int, name: str, *, durable: bool, **fields: Any) -> bytes:
    """Attach to the topic news, as Qpid JMS does."""
    source = amqp10.Source(
        address="news",
        durable=2 if durable else 0,
        expiry_policy=Symbol("never" if durable else "link-detach"),
        distribution_mode=Symbol("copy") if durable else None,
        capabilities=fields.pop("capabilities", (TOPIC,)),
    )
    return frame(
        0, amqp10.Attach(name=name, handle=handle, role=True, source=source, target=amqp10.Target(), **fields)
    )


def queues(broker: Broker) -> list[str]:
    return [queue.name for queue in broker.catalog]


# --- connections ---------------------------------------------------------------------------------


async def test_capabilities_of_jms_are_offered_to_clients_that_desire_one(broker: Broker) -> None:
    """The topic prefix comes with them; other clients get neither."""
    _, answer = await opened(broker, *JMS)
    offered = set(answer.offered_capabilities or ())
    assert offered >= {SOLE, "SHARED-SUBS", "DELAYED_DELIVERY", "ANONYMOUS-RELAY", "LINK_PAIR_V1_0"}
    assert (answer.properties or {})["topic-prefix"] == "/topics/"
    assert "queue-prefix" not in (answer.properties or {})
    _, answer = await opened(broker, Symbol("SHARED-SUBS"), container_id="other")
    assert SOLE not in (answer.offered_capabilities or ())
    assert (answer.properties or {})["topic-prefix"] == "/topics/"
    for desired in ((), (Symbol("ANONYMOUS-RELAY"),)):
        _, answer = await opened(broker, *desired, container_id="third")
        assert answer.offered_capabilities == ("LINK_PAIR_V1_0", "ANONYMOUS-RELAY")
        assert "topic-prefix" not in (answer.properties or {})


async def test_a_second_connection_of_a_container_that_wants_to_be_alone_is_refused(broker: Broker) -> None:
    """Either connection may ask for it; the first goes on, and its end makes room. Other names and other
    virtual hosts are free.
    """
    add_vhost(broker.catalog, "other")
    set_permission(broker.catalog, "guest", "other", Permission())
    first, _ = await opened(broker, SOLE, container_id="c")
    for desired in ((SOLE,), ()):
        second, answer = await opened(broker, *desired, container_id="c")
        assert (answer.properties or {})["amqp:connection-establishment-failed"] is True
        error = (await second.expect(amqp10.Close)).error
        assert error.condition == "amqp:invalid-field"
        assert error.info == {"invalid-field": "container-id"}
        assert error.description == "container-id 'c' is in use in vhost '/', for one connection only"
        await second.send(frame(0, amqp10.Close()))
        assert await second.rest() == []
    for free in ({"container_id": "d"}, {"container_id": "c", "hostname": "vhost:other"}):
        _, answer = await opened(broker, SOLE, **free)
        assert "amqp:connection-establishment-failed" not in (answer.properties or {})
    assert broker.catalog.usage.counts[VHOSTS]["/"] == 2
    await leave(first)
    plain, _ = await opened(broker, container_id="c")
    _, answer = await opened(broker, container_id="c")
    assert "amqp:connection-establishment-failed" not in (answer.properties or {})
    _, answer = await opened(broker, SOLE, container_id="c")
    assert (answer.properties or {})["amqp:connection-establishment-failed"] is True
    await leave(plain)


async def test_queues_made_by_clients_of_jms_give_messages_by_priority(broker: Broker) -> None:
    """They come from an attach or the anonymous terminus; others may redeclare them as plain. Queues of
    other clients and older queues stay as they are.
    """
    other = await connect(broker).open()
    await other.call(amqp10.Attach, attach_sender(0, "plain"))
    client, _ = await opened(broker, *JMS, container_id="jms")
    anonymous = frame(
        0, amqp10.Attach(name="relay", handle=1, role=False, target=amqp10.Target(), initial_delivery_count=0)
    )
    await client.send(begin(), attach_sender(0, "jms"), anonymous, attach_sender(2, "plain"))
    await client.take(amqp10.Attach, 3)
    await client.send(transfer(1, 0, amqp10.Properties(to="relayed").encode() + message(b"m"), raw=True))
    await client.until(amqp10.Disposition)
    vhost = broker.catalog.lookup_vhost("/")
    kept = {queue.name: queue.effective.settings for queue in vhost}
    assert {name: each.max_priority for name, each in kept.items()} == {"jms": 9, "relayed": 9, "plain": None}
    assert kept["jms"].default_priority == 4
    assert declare(broker.catalog, vhost, "jms")[0] is vhost.lookup("jms")


# --- subscriptions -------------------------------------------------------------------------------


@pytest.mark.real_clock
async def test_a_durable_subscription_survives_a_restart(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    persistent = amqp10.Header(durable=True).encode() + message(b"kept")
    async with running_broker(data_dir=folder) as broker:
        client, _ = await opened(broker, *JMS, container_id="c")
        await client.send(begin(), subscribe(0, "sub", durable=True), attach_sender(1, "/topics/news"))
        await client.take(amqp10.Attach, 2)
        await client.call(amqp10.Disposition, transfer(1, 0, persistent, raw=True))
        await client.vanish()
    async with running_broker(data_dir=folder) as broker:
        assert queues(broker) == ["subscription:c:sub"]
        client, _ = await opened(broker, *JMS, container_id="c")
        await client.call(amqp10.Attach, begin(), attach_sender(1, "/topics/news"))
        await client.send(transfer(1, 0, b"new"))
        await client.send(subscribe(0, "sub", durable=True), credit(0, 10))
        came = [got.payload for got in await client.take(amqp10.Transfer, 2)]
        assert [each.endswith(body) for each, body in zip(came, (b"kept", b"new"), strict=True)] == [
            True,
            True,
        ]


async def test_a_volatile_shared_subscription_ends_with_its_last_link(broker: Broker) -> None:
    """The first link's end leaves it, global or not."""
    clients = []
    for number in range(2):
        client, _ = await opened(broker, container_id=f"c{number}")
        capabilities = (TOPIC, SHARED, Symbol("global"))
        await client.send(
            begin(), subscribe(0, "s|global-volatile1", durable=False, capabilities=capabilities)
        )
        await client.until(amqp10.Attach)
        clients.append(client)
    await settle_down()
    assert queues(broker) == ["subscription-shared:*:s"]
    await clients[0].call(amqp10.Detach, frame(0, amqp10.Detach(handle=0, closed=True)))
    await settle_down()
    assert queues(broker) == ["subscription-shared:*:s"]
    await leave(clients[1])
    assert queues(broker) == []
