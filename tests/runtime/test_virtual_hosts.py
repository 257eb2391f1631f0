"""Virtual hosts: which one a connection gets, what keeps it out, how many may be there, and isolation."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from amqp10broker.metadata.catalog import USERS, VHOSTS
from amqp10broker.metadata.plan import UserLimits, VhostLimits
from amqp10broker.metadata.users import PasswordAlgorithm, PasswordRecord, Permission
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import Content
from amqp10broker.protocols.amqp10 import performatives as amqp10
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.routing.exchange import Binding, Destination
from amqp10broker.runtime.broker import Broker
from tests.support import declaring
from tests.support.declaring import add_user as propose_add_user
from tests.support.rawframes import attach_receiver, attach_sender, frame, login, message, open_frame
from tests.support.trioclient import Client, connect, queue_counts, running_broker, settle_down
from tests.support.trioclient091 import Client091, connect091


def add_user(broker: Broker, name: str, *vhosts: str) -> str:
    propose_add_user(broker.catalog, name, PasswordRecord(PasswordAlgorithm.PLAIN, name))
    for vhost in vhosts:
        declaring.set_permission(broker.catalog, name, vhost, Permission())
    return name


async def knock(broker: Broker, user: str = "guest", **fields: Any) -> Client:
    client = connect(broker)
    assert (await client.call(amqp10.SaslOutcome, login("PLAIN", f"\0{user}\0{user}".encode()))).code == 0
    await client.send(open_frame(**fields))
    return client


async def refused(broker: Broker, user: str = "guest", **fields: Any) -> tuple[str, str]:
    client = await knock(broker, user, **fields)
    await client.expect(amqp10.Open)
    error = (await client.expect(amqp10.Close)).error
    await client.send(frame(0, amqp10.Close()))
    assert await client.rest() == []
    assert error.description is not None
    return str(error.condition), error.description


async def refused091(broker: Broker, user: str = "guest", vhost: str = "/") -> tuple[int, str]:
    client = connect091(broker)
    await client.start("PLAIN", f"\0{user}\0{user}".encode())
    await client.tune()
    close = await client.call(0, methods.ConnectionOpen(virtual_host=vhost), methods.ConnectionClose)
    await client.send(0, methods.ConnectionCloseOk())
    assert await client.next_or_end() is None
    return close.reply_code, close.reply_text


# --- choosing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hostname", "vhost"),
    [
        ("vhost:other", "other"),
        ("vhost:/", "/"),
        ("vhost:with space/ü", "with space/ü"),
        ("other", "/"),
        ("broker.example.org", "/"),
        (None, "/"),
        ("", "/"),
        ("VHOST:other", "/"),
    ],
)
async def test_the_hostname_of_open_chooses(broker: Broker, hostname: str | None, vhost: str) -> None:
    """``vhost:NAME`` selects one; any other is the default."""
    for name in ("other", "with space/ü"):
        declaring.add_vhost(broker.catalog, name)
        declaring.set_permission(broker.catalog, "guest", name, Permission())
    client = await connect(broker).open(channels=0, hostname=hostname)
    assert client.task.vhost == vhost
    assert broker.status()["connections"][0]["vhost"] == vhost


# --- keeping out ---------------------------------------------------------------------------------


@pytest.mark.rabbitmq(
    "amqp_auth_SUITE", "vhost_absent", differs="open and close with the condition instead of a closed socket"
)
@pytest.mark.parametrize("name", ["gone", "", "/x", "gone limit"])
async def test_a_virtual_host_that_does_not_exist(broker: Broker, name: str) -> None:
    assert await refused(broker, hostname=f"vhost:{name}") == (
        "amqp:unauthorized-access",
        f"AMQP 1.0 connection failed: virtual host '{name}' does not exist",
    )
    assert await refused091(broker, vhost=name) == (530, f"NOT_ALLOWED - vhost {name} not found")
    await settle_down()
    assert not broker.connections


@pytest.mark.parametrize("then", ["waits", "begins", "closes", "leaves"])
async def test_why_an_open_is_refused_is_told_with_it(then: str) -> None:
    """They come together, so no client takes the open for a success; further input changes nothing."""
    async with running_broker(auth_failure_delay_ms=700) as broker:
        started = trio.current_time()
        client = await knock(broker, hostname="vhost:none")
        if then == "begins":
            await client.send(
                frame(0, amqp10.Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1))
            )
        elif then == "closes":
            await client.send(frame(0, amqp10.Close()))
        elif then == "leaves":
            await client.stream.aclose()
        if then != "leaves":
            properties = (await client.expect(amqp10.Open)).properties
            assert trio.current_time() - started == pytest.approx(0.7, abs=0.1)
            assert properties["amqp:connection-establishment-failed"] is True
            assert properties["product"] == "RabbitMQ"
            (close,) = [each.body for each in client.waiting]
            assert close.error.condition == "amqp:unauthorized-access"
            if then != "closes":
                await client.send(frame(0, amqp10.Close()))
            await client.vanish()
        await settle_down()
        await trio.sleep(1)
        assert not broker.connections


@pytest.mark.parametrize(
    ("properties", "channel_max", "hostname", "silent"),
    [
        ({"product": "RabbitMQ"}, 65_535, "vhost:none", True),
        ({"product": "RabbitMQ AMQP 1.0 Client"}, 255, "vhost:none", True),
        (None, 32_767, "vhost:none", True),
        ({"product": "QpidJMS"}, 32_767, "vhost:none", False),
        (None, 65_535, "vhost:none", False),
        (None, 32_767, "none", False),
    ],
)
async def test_clients_of_rabbitmq_are_refused_as_rabbitmq_does(
    properties: Any, channel_max: int, hostname: str, silent: bool
) -> None:
    """No open comes, only the end of the stream: for Java's client by its properties, for Python's by its
    settings.
    """
    said = {Symbol(key): value for key, value in properties.items()} if properties else None
    async with running_broker(auth_failure_delay_ms=700, default_vhost="other") as broker:
        declaring.change_vhost(broker.catalog, "other", limits=VhostLimits(max_connections=0))
        client = await knock(broker, hostname=hostname, properties=said, channel_max=channel_max)
        started = trio.current_time()
        assert [type(each.body) for each in await client.idle(1)] == (
            [] if silent else [amqp10.Open, amqp10.Close]
        )
        assert client.ended is silent
        assert trio.current_time() - started >= 0.7


@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "access_failure_not_allowed")
@pytest.mark.parametrize("user", ["ann", "limited limit"])
async def test_a_virtual_host_in_which_the_user_has_no_permission(broker: Broker, user: str) -> None:
    """Permissions in other virtual hosts do not count."""
    declaring.add_vhost(broker.catalog, "closed limit")
    add_user(broker, user, "/")
    text = f"access to vhost 'closed limit' refused for user '{user}'"
    assert await refused(broker, user, hostname="vhost:closed limit") == ("amqp:unauthorized-access", text)
    assert await refused091(broker, user, "closed limit") == (530, f"NOT_ALLOWED - {text}")
    assert broker.catalog.usage.counts[USERS][user] == 0
    declaring.set_permission(broker.catalog, user, "closed limit", Permission("", "", ""))
    await (await knock(broker, user, hostname="vhost:closed limit")).expect(amqp10.Open)


# --- limits --------------------------------------------------------------------------------------


async def both(broker: Broker, user: str, vhost: str) -> tuple[Client, Client091]:
    newer = await knock(broker, user, hostname=f"vhost:{vhost}")
    await newer.expect(amqp10.Open)
    older = await connect091(broker).open(user=user, password=user, vhost=vhost, channels=0)
    return newer, older


@pytest.mark.rabbitmq(
    "amqp_auth_SUITE",
    "vhost_connection_limit",
    differs="open and close with the condition instead of a closed socket",
)
@pytest.mark.rabbitmq(
    "per_vhost_connection_limit_SUITE", "single_node_multiple_vhosts_limit", "single_node_single_vhost_limit"
)
async def test_the_connection_limit_of_a_virtual_host(broker: Broker) -> None:
    """Both protocols count together; other virtual hosts have room; a closed connection frees a place."""
    declaring.add_vhost(broker.catalog, "small", limits=VhostLimits(max_connections=2))
    for user in ("ann", "bob"):
        add_user(broker, user, "/", "small")
    newer, older = await both(broker, "ann", "small")
    assert broker.catalog.usage.counts[VHOSTS]["small"] == 2
    text = "access to vhost 'small' refused for user 'bob': vhost connection limit (2) is reached"
    assert await refused(broker, "bob", hostname="vhost:small") == ("amqp:resource-limit-exceeded", text)
    assert await refused091(broker, "bob", "small") == (530, f"NOT_ALLOWED - {text}")
    await both(broker, "bob", "/")
    await newer.lose()
    await (await knock(broker, "bob", hostname="vhost:small")).expect(amqp10.Open)
    assert (await refused091(broker, "bob", "small"))[0] == 530
    await older.stream.aclose()
    await settle_down()
    await connect091(broker).open(user="bob", password="bob", vhost="small", channels=0)


@pytest.mark.parametrize("by_client", [False, True])
async def test_a_connection_that_was_told_its_end_is_counted_no_more(broker: Broker, by_client: bool) -> None:
    """Its client may connect again at once, also when the broker's close was not answered."""
    add_user(broker, "ann", "/")
    declaring.set_user_limits(broker.catalog, "ann", UserLimits(max_connections=2))
    newer, older = await both(broker, "ann", "/")
    if by_client:
        await newer.send(frame(0, amqp10.Close()))
        await older.send(0, methods.ConnectionClose(200, "bye", 0, 0))
    else:
        for connection in list(broker.connections.values()):
            connection.close("test", node_stops=False)
    await newer.expect(amqp10.Close)
    await older.next_or_end()
    assert broker.catalog.usage.counts[USERS]["ann"] == 0
    await both(broker, "ann", "/")


@pytest.mark.rabbitmq(
    "per_user_connection_channel_limit_SUITE",
    "single_node_multiple_users_connection_and_channel_count",
    "single_node_single_user_connection_and_channel_count",
)
@pytest.mark.rabbitmq(
    "per_vhost_connection_limit_SUITE",
    "single_node_multiple_vhosts_connection_count",
    "single_node_single_vhost_connection_count",
)
async def test_a_refused_connection_is_not_counted(broker: Broker) -> None:
    add_user(broker, "ann", "/")
    declaring.set_user_limits(broker.catalog, "ann", UserLimits(max_connections=1))
    client = await knock(broker, "ann")
    await client.expect(amqp10.Open)
    for _ in range(3):
        await refused(broker, "ann")
    await settle_down()
    assert broker.catalog.usage.counts[USERS]["ann"] == 1
    assert broker.catalog.usage.counts[VHOSTS]["/"] == 1
    await client.lose()
    assert broker.catalog.usage.counts[USERS]["ann"] == 0
    assert broker.catalog.usage.counts[VHOSTS]["/"] == 0


# --- isolation -----------------------------------------------------------------------------------


async def test_the_same_names_are_other_things_elsewhere(broker: Broker) -> None:
    """Queues, exchanges and bindings of one virtual host are invisible in another, in both protocols."""
    declaring.add_vhost(broker.catalog, "other")
    declaring.set_permission(broker.catalog, "guest", "other", Permission())
    here, there = broker.catalog.lookup_vhost("/"), broker.catalog.lookup_vhost("other")
    for vhost in (here, there):
        declaring.declare(broker.catalog, vhost, "q")
        declaring.declare_exchange(broker.catalog, vhost, "x", "fanout")
        declaring.bind(broker.catalog, vhost, Binding("x", Destination("queue", "q")))
    declaring.declare(broker.catalog, there, "only-there")
    client = await connect(broker).open(hostname="vhost:other")
    await client.call(amqp10.Flow, attach_sender(0, "/exchanges/x"))
    await client.send(
        frame(0, amqp10.Transfer(handle=0, delivery_id=0, delivery_tag=b"0"), message(b"there"))
    )
    assert type((await client.until(amqp10.Disposition)).state).__name__ == "Accepted"
    assert there.lookup("q").handle.figures().messages_ready == 1
    assert queue_counts(broker, "q") == (0, 0)

    stranger = await connect(broker).open()
    await stranger.send(attach_receiver(0, "/queues/only-there"))
    await stranger.expect(amqp10.Attach)
    detach = await stranger.expect(amqp10.Detach)
    assert detach.error.description == "no queue 'only-there' in vhost '/'"
    await stranger.call(amqp10.Flow, attach_sender(1, "", target=amqp10.Target()))
    payload = amqp10.Properties(to="/queues/only-there").encode() + message(b"x")
    await stranger.send(frame(0, amqp10.Transfer(handle=1, delivery_id=0, delivery_tag=b"0"), payload))
    assert type((await stranger.until(amqp10.Disposition)).state).__name__ == "Released"

    older = await connect091(broker).open()
    await older.call(1, methods.BasicGet(queue="q", no_ack=True), methods.BasicGetEmpty)
    older_there = await connect091(broker).open(vhost="other")
    assert (await older_there.call(1, methods.BasicGet(queue="q", no_ack=True), Content)).body == b"there"
