"""Rights that are taken away: whoever is connected loses them at once, and hears why."""

from __future__ import annotations

import pytest

from amqp10broker.auth.passwords import plain_record
from amqp10broker.metadata.users import Permission
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import Content
from amqp10broker.protocols.amqp10 import performatives as amqp10
from amqp10broker.routing.exchange_types import Binding, Destination
from amqp10broker.runtime.broker import Broker
from tests.support import declaring
from tests.support import rawframes as raw
from tests.support.trioclient import Client, connect, queue_counts, settle_down
from tests.support.trioclient091 import Client091, connect091

READ_REFUSED = "read access to queue 'q' in vhost '/' refused for user 'ann'"
VHOST_REFUSED = "access to vhost '/' refused for user 'ann'"


def add_ann(broker: Broker, *, tags: tuple[str, ...] = ()) -> None:
    declaring.add_user(broker.catalog, "ann", plain_record("secret"), tags=tags)
    declaring.set_permission(broker.catalog, "ann", "/", Permission())
    for name in ("q", "other"):
        declaring.declare(broker.catalog, "/", name)


async def ann10(broker: Broker) -> Client:
    client = connect(broker)
    assert (await client.call(amqp10.SaslOutcome, raw.login("PLAIN", b"\0ann\0secret"))).code == 0
    await client.call(amqp10.Open, raw.open_frame(), raw.begin())
    return client


async def ann091(broker: Broker, *, channels: int = 1) -> Client091:
    return await connect091(broker).open(user="ann", password="secret", channels=channels)


async def fill(broker: Broker, queue: str, *bodies: bytes) -> None:
    client = await connect091(broker).open()
    for body in bodies:
        await client.publish("", queue, body)
    await settle_down()
    await client.stream.aclose()


# --- the right to read ----------------------------------------------------------------------------


async def test_a_link_that_may_not_read_its_queue_any_more_is_detached(broker: Broker) -> None:
    """The detach has the reason; its deliveries are requeued, and the session's other links go on."""
    add_ann(broker)
    await fill(broker, "q", b"1", b"2")
    client = await ann10(broker)
    await client.send(raw.attach_receiver(0, "/queues/q"), raw.attach_receiver(1, "/queues/other"))
    await client.take(amqp10.Attach, 2)
    await client.call(amqp10.Transfer, raw.credit(0, 1), raw.credit(1, 10))
    assert queue_counts(broker, "q") == (1, 1)
    declaring.set_permission(broker.catalog, "ann", "/", Permission(read="^other$"))
    detach = await client.until(amqp10.Detach)
    assert (detach.handle, detach.closed) == (0, True)
    assert (detach.error.condition, detach.error.description) == ("amqp:unauthorized-access", READ_REFUSED)
    await settle_down()
    assert queue_counts(broker, "q") == (2, 0)
    await fill(broker, "other", b"for the other link")
    assert (await client.until(amqp10.Transfer)).handle == 1


async def test_a_link_that_may_not_write_to_its_target_any_more_is_detached(broker: Broker) -> None:
    """This comes before a publish: RabbitMQ's Java client waits for it after it has set a token."""
    add_ann(broker)
    client = await ann10(broker)
    targets = ("/queues/q", "/exchanges/amq.topic/a", "/exchanges/amq.direct/a", None)
    await client.send(*(raw.attach_sender(handle, target) for handle, target in enumerate(targets)))
    await client.take(amqp10.Attach, 4)
    declaring.set_permission(broker.catalog, "ann", "/", Permission(write="^amq.direct$"))
    ended = [await client.until(amqp10.Detach) for _ in range(2)]
    assert [(each.handle, each.error.condition) for each in ended] == [
        (0, "amqp:unauthorized-access"),
        (1, "amqp:unauthorized-access"),
    ]
    assert not {amqp10.Detach} & {type(each.body) for each in await client.idle()}


async def test_a_channel_that_may_not_read_a_queue_any_more_is_closed(broker: Broker) -> None:
    """The code is 403, as for a new basic.consume; deliveries are requeued, and other channels go on."""
    add_ann(broker)
    await fill(broker, "q", b"1", b"2")
    client = await ann091(broker, channels=2)
    await client.send(
        1, methods.BasicQos(prefetch_count=1), methods.BasicConsume(queue="q", consumer_tag="a")
    )
    await client.expect(methods.BasicQosOk)
    await client.expect(methods.BasicConsumeOk)
    await client.expect(Content)
    await client.call(2, methods.BasicConsume(queue="other", consumer_tag="b"), methods.BasicConsumeOk)
    declaring.set_permission(broker.catalog, "ann", "/", Permission(read="^other$"))
    close = await client.expect(methods.ChannelClose)
    assert (close.reply_code, close.reply_text) == (403, f"ACCESS_REFUSED - {READ_REFUSED}")
    await settle_down()
    assert queue_counts(broker, "q") == (2, 0)
    await fill(broker, "other", b"for the other channel")
    assert (await client.expect(Content)).method.consumer_tag == "b"


async def test_rights_that_are_given_or_of_others_disturb_nobody(broker: Broker) -> None:
    """Changes of write permission, of another user or of another virtual host have no effect."""
    add_ann(broker)
    client10, client091 = await ann10(broker), await ann091(broker)
    await client10.call(amqp10.Attach, raw.attach_receiver(0, "/queues/q"), raw.credit(0, 10))
    await client091.call(1, methods.BasicConsume(queue="other"), methods.BasicConsumeOk)
    catalog = broker.catalog
    declaring.add_vhost(catalog, "elsewhere")
    declaring.set_permission(catalog, "ann", "elsewhere", Permission())
    declaring.clear_permission(catalog, "ann", "elsewhere")
    declaring.set_permission(catalog, "guest", "/", Permission(read=""))
    declaring.set_permission(catalog, "ann", "/", Permission(configure="", write="", read="^(q|other)$"))
    declaring.set_tags(catalog, "ann", ["monitoring"])
    assert await client10.idle() == []
    declaring.set_permission(catalog, "guest", "/", Permission())
    for queue in ("q", "other"):
        await fill(broker, queue, b"m")
    await client10.until(amqp10.Transfer)
    await client091.expect(Content)


async def test_a_queue_made_for_a_link_is_not_asked_about(broker: Broker) -> None:
    """Attaching a dynamic source asks for configure; the queue is the link's own."""
    add_ann(broker)
    client = await ann10(broker)
    await client.call(amqp10.Attach, raw.attach_receiver(0, "", source=amqp10.Source(dynamic=True)))
    declaring.set_permission(broker.catalog, "ann", "/", Permission(read=""))
    assert [each for each in await client.idle() if type(each.body) is amqp10.Detach] == []


# --- the right to be in a virtual host ------------------------------------------------------------


async def test_who_may_not_be_in_the_virtual_host_any_more_is_disconnected(broker: Broker) -> None:
    """The text is that of a refused open, over both protocols; others stay connected."""
    add_ann(broker)
    client10, client091 = await ann10(broker), await ann091(broker)
    other = await connect(broker).open()
    declaring.clear_permission(broker.catalog, "ann", "/")
    close10 = await client10.until(amqp10.Close)
    assert (close10.error.condition, close10.error.description) == ("amqp:unauthorized-access", VHOST_REFUSED)
    close091 = await client091.expect(methods.ConnectionClose)
    assert (close091.reply_code, close091.reply_text) == (530, f"NOT_ALLOWED - {VHOST_REFUSED}")
    assert await other.idle() == []
    assert other.task is not None


async def test_a_user_that_is_gone_otherwise_than_by_an_operator_is_disconnected(broker: Broker) -> None:
    """A program may delete it in the catalog."""
    add_ann(broker)
    client = await ann10(broker)
    declaring.delete_user(broker.catalog, "ann")
    assert (await client.until(amqp10.Close)).error.description == VHOST_REFUSED


async def test_what_changes_during_the_handshake_is_asked_at_open(broker: Broker) -> None:
    """A client that has logged in but not opened yet is refused at open."""
    add_ann(broker)
    client = connect(broker)
    assert (await client.call(amqp10.SaslOutcome, raw.login("PLAIN", b"\0ann\0secret"))).code == 0
    declaring.clear_permission(broker.catalog, "ann", "/")
    await settle_down()
    assert (await client.call(amqp10.Close, raw.open_frame())).error.description == VHOST_REFUSED


# --- publishing -----------------------------------------------------------------------------------


def in_anothers_name(body: bytes) -> bytes:
    return amqp10.Properties(user_id=b"bob", to="/queues/q").encode() + raw.message(body)


@pytest.mark.parametrize("address", ["/queues/q", "/exchanges/amq.direct/k", None])
async def test_a_foreign_user_id_is_refused_when_the_tag_is_gone(broker: Broker, address: str | None) -> None:
    """The link goes to a queue, an exchange or the anonymous terminus; it took equal messages before."""
    add_ann(broker, tags=("impersonator",))
    vhost = broker.catalog.lookup_vhost("/")
    declaring.bind(broker.catalog, vhost, Binding("amq.direct", Destination("queue", "q"), "k"))
    client = await ann10(broker)
    await client.call(amqp10.Flow, raw.attach_sender(0, "", target=amqp10.Target(address=address)))
    for number in range(2):
        transfer = amqp10.Transfer(handle=0, delivery_id=number, delivery_tag=b"%d" % number)
        await client.call(amqp10.Disposition, raw.frame(0, transfer, in_anothers_name(b"m")))
    assert queue_counts(broker, "q")[0] == 2
    declaring.set_tags(broker.catalog, "ann", [])
    transfer = amqp10.Transfer(handle=0, delivery_id=2, delivery_tag=b"2")
    error = (await client.call(amqp10.Detach, raw.frame(0, transfer, in_anothers_name(b"m")))).error
    assert error.condition == "amqp:unauthorized-access"
    assert error.description == "user_id property set to 'bob' but authenticated user was 'ann'"
    assert queue_counts(broker, "q")[0] == 2
