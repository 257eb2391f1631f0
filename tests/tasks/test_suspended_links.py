"""Links that outlive their connections, with the broker's own tasks: letters, time, takeover."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from amqp10broker.amqp10.performatives import (
    Accepted,
    Attach,
    Detach,
    Disposition,
    ReceiverSettleMode,
    Source,
    Target,
    Transfer,
)
from amqp10broker.amqp10.resumption import unsettled_map
from amqp10broker.config import FaultInjection
from amqp10broker.tasks.broker import Broker
from tests.support.declaring import declare
from tests.support.rawframes import (
    attach_receiver,
    attach_sender,
    body_of,
    credit,
    disposition,
    frame,
    transfer,
)
from tests.support.trioclient import Client, connect, queue_counts, running_broker, settle_down
from tests.tasks.test_watches import ask, asked

SECOND = ReceiverSettleMode.SECOND


def kept_sender(**fields: Any) -> bytes:
    """An attach of a sender that asks for a minute."""
    target = Target(address="q", timeout=60)
    return attach_sender(0, "q", target=target, rcv_settle_mode=SECOND, **fields)


async def resumed(client: Client, *tags: bytes) -> dict[bytes, Any]:
    """Attach again with these unsettled; returns the broker's map."""
    await client.send(kept_sender(unsettled=dict.fromkeys(tags)))
    return unsettled_map(await client.until(Attach))


def tag(number: int) -> bytes:
    """As `transfer` makes it."""
    return number.to_bytes(4, "big")


async def test_a_lost_connection_loses_no_outcome(autojump_clock: object) -> None:
    """Told ones, and one that the queue confirms when the session is over."""
    delay = FaultInjection(confirm_delay_ms=(("q", 500),))
    async with running_broker(test_mode=True, fault_injection=delay) as broker:
        client = await connect(broker).open()
        await client.send(kept_sender(), transfer(0, 0, b"first"))
        await client.until(Disposition)
        await client.send(transfer(0, 1, b"second"))
        await settle_down()
        await client.vanish()
        await settle_down()
        other = await connect(broker).open()
        assert await resumed(other, tag(0), tag(1), tag(2)) == {tag(0): Accepted(), tag(1): None}
        again = Transfer(handle=0, delivery_id=0, delivery_tag=tag(1), message_format=0, resume=True)
        await other.send(frame(0, again, b""))
        told = await other.until(Disposition)
        assert (told.first, told.state, told.settled) == (0, Accepted(), False)
        await other.send(disposition(0, role=False, state=Accepted()))
        await settle_down()
        assert queue_counts(broker, "q") == (2, 0)
        assert [kept.unsettled for kept in broker.kept] == [1]


async def test_a_suspended_link_ends_in_time_and_leaves_nothing(autojump_clock: object) -> None:
    async with running_broker() as broker:
        client = await connect(broker).open()
        others = len(broker.askers)
        await client.send(kept_sender(), transfer(0, 0, b"first"))
        await client.until(Disposition)
        assert len(broker.askers) == others + 1
        await client.vanish()
        other = await connect(broker).open()
        await other.idle(59)
        (shown,) = broker.node_view().suspended_links
        assert (shown.name, shown.container_id, shown.user) == ("out-0-0-q", "test", "guest")
        assert (shown.role, shown.unsettled) == ("sender", 1)
        assert shown.left_s is not None
        assert round(shown.age_s + shown.left_s) == 60
        await other.idle(2)
        assert len(broker.kept) == 0
        assert len(broker.askers) == others
        assert await resumed(other, tag(0)) == {}


async def test_another_connection_takes_a_link_over_that_has_not_ended(autojump_clock: object) -> None:
    """2.6.1: a client comes back before the broker knows that it was gone."""
    async with running_broker() as broker:
        client = await connect(broker).open()
        await client.send(kept_sender(), transfer(0, 0, b"first"))
        await client.until(Disposition)
        other = await connect(broker).open()
        assert await resumed(other, tag(0)) == {tag(0): Accepted()}
        stolen = await client.until(Detach)
        assert stolen.error is not None
        assert (stolen.closed, stolen.error.condition) == (True, "amqp:link:stolen")
        # The end of its connection does not end what another has.
        await client.vanish()
        await settle_down()
        await other.send(transfer(0, 5, b"more"))
        assert (await other.until(Disposition)).first == 5
        assert queue_counts(broker, "q") == (2, 0)


async def test_an_attach_that_waits_for_a_link_may_be_lost_itself(autojump_clock: object) -> None:
    """The end that it stole is free, and the next one has it."""
    async with running_broker() as broker:
        client = await connect(broker).open()
        await client.send(kept_sender(), transfer(0, 0, b"first"))
        await client.until(Disposition)
        for _ in range(3):
            hurried = await connect(broker).open()
            await hurried.send(kept_sender(unsettled={tag(0): None}))
            await hurried.vanish()
        await settle_down()
        other = await connect(broker).open()
        assert await resumed(other, tag(0)) == {tag(0): Accepted()}
        assert len(broker.kept) == 1


def kept_receiver(queue: str, **fields: Any) -> bytes:
    """An attach of a receiver that asks for a minute."""
    source = Source(address=queue, timeout=60)
    return attach_receiver(1, queue, source=source, rcv_settle_mode=SECOND, **fields)


async def test_deliveries_of_a_lost_consumer_are_its_own_until_its_time_is_over(
    autojump_clock: object,
) -> None:
    """Another consumer gets them then, without being asked again."""
    async with running_broker() as broker:
        client = await connect(broker).open()
        await client.send(attach_sender(0, "q"), transfer(0, 0, b"first"), transfer(0, 1, b"second"))
        await client.take(Disposition, 1)
        await client.send(kept_receiver("q"), credit(1, 10))
        await client.take(Transfer, 2)
        await client.vanish()
        other = await connect(broker).open(container_id="other")
        await other.send(attach_receiver(2, "q"), credit(2, 10))
        assert [each for each in await other.idle(59) if type(each.body) is Transfer] == []
        assert queue_counts(broker, "q") == (0, 2)
        assert [body_of(each.payload) for each in await other.take(Transfer, 2)] == [b"first", b"second"]
        assert len(broker.kept) == 0


async def test_a_link_from_a_stream_is_not_kept(autojump_clock: object) -> None:
    """Its client goes on by the offset."""
    async with running_broker() as broker:
        declare(broker.catalog, "/", "s", arguments={"x-queue-type": "stream"})
        client = await connect(broker).open()
        await client.send(kept_receiver("s"))
        source = (await client.until(Attach)).source
        assert isinstance(source, Source)
        assert (source.durable, source.expiry_policy, source.timeout) == (0, "link-detach", 0)
        assert len(broker.kept) == 0


# --- they are ended by others -----------------------------------------------------------------------


async def _user_made_again(broker: Broker) -> None:
    await ask(broker, "delete-user", user="guest")
    await ask(broker, "add-user", user="guest", password="guest")
    await ask(broker, "set-permissions", user="guest", configure=".*", write=".*", read=".*")


async def _vhost_made_again(broker: Broker) -> None:
    await ask(broker, "delete-vhost", name="/")
    await ask(broker, "add-vhost", name="/")
    await ask(broker, "set-permissions", user="guest", vhost="/", configure=".*", write=".*", read=".*")


@pytest.mark.parametrize("made_again", [_user_made_again, _vhost_made_again])
@pytest.mark.parametrize("suspended", [True, False])
async def test_links_go_with_their_user_and_their_virtual_host(
    autojump_clock: object, made_again: Callable[[Broker], Awaitable[None]], suspended: bool
) -> None:
    """Who is called the same later is somebody else."""
    async with running_broker() as broker:
        client = await connect(broker).open()
        await client.send(kept_sender(), transfer(0, 0, b"first"))
        await client.until(Disposition)
        if suspended:
            await client.vanish()
            await settle_down()
        await made_again(broker)
        await settle_down()
        other = await connect(broker).open()
        assert await resumed(other, tag(0)) == {}
        assert len(broker.kept) == 1


async def test_what_a_deleted_users_link_held_goes_back(autojump_clock: object) -> None:
    async with running_broker() as broker:
        for suspended in True, False:
            client = await connect(broker).open()
            await client.send(attach_sender(0, "q"), transfer(0, 0, b"first"))
            await client.until(Disposition)
            await client.send(kept_receiver("q"), credit(1, 10))
            await client.until(Transfer)
            if suspended:
                await client.vanish()
                await settle_down()
            await _user_made_again(broker)
            await settle_down()
            assert queue_counts(broker, "q")[1] == 0
            assert len(broker.kept) == 0
        assert queue_counts(broker, "q") == (2, 0)


async def test_an_operator_ends_a_suspended_link(autojump_clock: object) -> None:
    """By its number; an attached one is its client's."""
    async with running_broker() as broker:
        client = await connect(broker).open()
        await client.send(attach_sender(0, "q"), transfer(0, 0, b"first"))
        await client.until(Disposition)
        await client.send(kept_receiver("q"), credit(1, 10))
        await client.until(Transfer)
        assert await ask(broker, "list-suspended-links") == []
        refused = await asked(broker, "end-suspended-link", link=1)
        assert (refused["kind"], refused["error"]) == ("NotFound", "no link of number 1 is suspended")
        await client.vanish()
        await settle_down()
        (shown,) = await ask(broker, "list-suspended-links")
        assert (shown["link"], shown["role"], shown["unsettled"]) == (1, "receiver", 1)
        assert queue_counts(broker, "q") == (0, 1)
        assert await ask(broker, "end-suspended-link", link=1) == shown
        await settle_down()
        assert queue_counts(broker, "q") == (1, 0)
        assert await ask(broker, "list-suspended-links") == []
        assert not (await asked(broker, "end-suspended-link", link=1))["ok"]
