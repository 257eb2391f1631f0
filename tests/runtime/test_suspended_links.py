"""Links that outlive their connections, with the broker's own tasks: letters, time, takeover."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from amqp10broker.config import FaultInjection
from amqp10broker.errors import DamagedFile
from amqp10broker.protocols.amqp10 import performatives as amqp10
from amqp10broker.protocols.amqp10.delivery import unsettled_map
from amqp10broker.queues.commands import Publish
from amqp10broker.queues.journal import ENDED, GROUP, LINK, SETTLED, TAKEN, ResumableLinksInJournal
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.mailbox import Mailbox
from amqp10broker.runtime.queues.queue_task import SessionCommits
from amqp10broker.sessions.messages import SessionMessage
from tests.support import rawframes as raw
from tests.support.admin_requests import ask, asked
from tests.support.declaring import declare, declare_exchange
from tests.support.stored_queue import make_message
from tests.support.trioclient import Client, connect, queue_counts, running_broker, settle_down

SECOND = amqp10.ReceiverSettleMode.SECOND


def kept_sender(**fields: Any) -> bytes:
    target = amqp10.Target(address="q", timeout=60)
    return raw.attach_sender(0, "q", target=target, rcv_settle_mode=SECOND, **fields)


async def resumed(client: Client, *tags: bytes) -> dict[bytes, Any]:
    await client.send(kept_sender(unsettled=dict.fromkeys(tags)))
    return unsettled_map(await client.until(amqp10.Attach))


def tag(number: int) -> bytes:
    return number.to_bytes(4, "big")


async def test_a_lost_connection_loses_no_outcome() -> None:
    """This holds for sent ones, and for a confirm after the session's end."""
    delay = FaultInjection(confirm_delay_ms=(("q", 500),))
    async with running_broker(test_mode=True, fault_injection=delay) as broker:
        client = await connect(broker).open()
        await client.call(amqp10.Disposition, kept_sender(), raw.transfer(0, 0, b"first"))
        await client.submit(raw.transfer(0, 1, b"second"))
        await client.lose()
        other = await connect(broker).open()
        assert await resumed(other, tag(0), tag(1), tag(2)) == {tag(0): amqp10.Accepted(), tag(1): None}
        again = amqp10.Transfer(handle=0, delivery_id=0, delivery_tag=tag(1), message_format=0, resume=True)
        told = await other.call(amqp10.Disposition, raw.frame(0, again, b""))
        assert (told.first, told.state, told.settled) == (0, amqp10.Accepted(), False)
        await other.submit(raw.disposition(0, role=False, state=amqp10.Accepted()))
        assert queue_counts(broker, "q") == (2, 0)
        assert [kept.unsettled for kept in broker.resumable_links] == [1]


async def test_a_suspended_link_ends_in_time_and_leaves_nothing(broker: Broker) -> None:
    client = await connect(broker).open()
    others = len(broker.reply_registry)
    await client.call(amqp10.Disposition, kept_sender(), raw.transfer(0, 0, b"first"))
    assert len(broker.reply_registry) == others + 1
    await client.vanish()
    other = await connect(broker).open()
    await other.idle(59)
    (shown,) = broker.node_view().suspended_links
    assert (shown.name, shown.container_id, shown.user) == ("out-0-0-q", "test", "guest")
    assert (shown.role, shown.unsettled) == ("sender", 1)
    assert round(shown.age_s + shown.left_s) == 60
    await other.idle(2)
    assert len(broker.resumable_links) == 0
    assert len(broker.reply_registry) == others
    assert await resumed(other, tag(0)) == {}


async def test_another_connection_takes_a_link_over_that_has_not_ended(broker: Broker) -> None:
    """2.6.1: a client returns before the broker has noticed its lost connection."""
    client = await connect(broker).open()
    await client.call(amqp10.Disposition, kept_sender(), raw.transfer(0, 0, b"first"))
    other = await connect(broker).open()
    assert await resumed(other, tag(0)) == {tag(0): amqp10.Accepted()}
    stolen = await client.until(amqp10.Detach)
    assert (stolen.closed, stolen.error.condition) == (True, "amqp:link:stolen")
    # The end of its connection does not end what another has.
    await client.lose()
    assert (await other.call(amqp10.Disposition, raw.transfer(0, 5, b"more"))).first == 5
    assert queue_counts(broker, "q") == (2, 0)


async def test_an_attach_that_waits_for_a_link_may_be_lost_itself(broker: Broker) -> None:
    """The link endpoint that it stole is free, and the next attach gets it."""
    client = await connect(broker).open()
    await client.call(amqp10.Disposition, kept_sender(), raw.transfer(0, 0, b"first"))
    for _ in range(3):
        hurried = await connect(broker).open()
        await hurried.send(kept_sender(unsettled={tag(0): None}))
        await hurried.vanish()
    await settle_down()
    other = await connect(broker).open()
    assert await resumed(other, tag(0)) == {tag(0): amqp10.Accepted()}
    assert len(broker.resumable_links) == 1


def kept_receiver(queue: str, **fields: Any) -> bytes:
    source = amqp10.Source(address=queue, timeout=60)
    return raw.attach_receiver(1, queue, source=source, rcv_settle_mode=SECOND, **fields)


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
    broker: Broker, made_again: Callable[[Broker], Awaitable[None]], suspended: bool
) -> None:
    """A later one of the same name is a different one."""
    client = await connect(broker).open()
    await client.call(amqp10.Disposition, kept_sender(), raw.transfer(0, 0, b"first"))
    if suspended:
        await client.lose()
    await made_again(broker)
    await settle_down()
    other = await connect(broker).open()
    assert await resumed(other, tag(0)) == {}
    assert len(broker.resumable_links) == 1


async def test_the_durable_links_of_a_deleted_user_do_not_come_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """This also holds for a power failure after the deletion, before the journal has the end of its links."""
    async with running_broker(data_dir=str(tmp_path / "data")) as broker:
        client = await connect(broker).open()
        await client.send(raw.attach_sender(1, "q"))
        await attached(client, target=durable_target())
        await client.lose()
        assert len(broker.resumable_links) == 1
        with monkeypatch.context() as power:
            power.setattr(ResumableLinksInJournal, "end", lambda records, number: None)
            await ask(broker, "delete-user", user="guest")
            await settle_down()
    async with running_broker(data_dir=str(tmp_path / "data")) as broker:
        assert len(broker.resumable_links) == 0
        await ask(broker, "add-user", user="guest", password="guest")
        await ask(broker, "set-permissions", user="guest", configure=".*", write=".*", read=".*")
    async with running_broker(data_dir=str(tmp_path / "data")) as broker:
        assert len(broker.resumable_links) == 0


async def test_what_a_deleted_users_link_held_goes_back(broker: Broker) -> None:
    for suspended in True, False:
        client = await connect(broker).open()
        await client.call(amqp10.Disposition, raw.attach_sender(0, "q"), raw.transfer(0, 0, b"first"))
        await client.call(amqp10.Transfer, kept_receiver("q"), raw.credit(1, 10))
        if suspended:
            await client.lose()
        await _user_made_again(broker)
        await settle_down()
        assert queue_counts(broker, "q")[1] == 0
        assert len(broker.resumable_links) == 0
    assert queue_counts(broker, "q") == (2, 0)


async def test_an_operator_ends_a_suspended_link(broker: Broker) -> None:
    """The number selects it; an attached link is refused."""
    client = await connect(broker).open()
    await client.call(amqp10.Disposition, raw.attach_sender(0, "q"), raw.transfer(0, 0, b"first"))
    await client.call(amqp10.Transfer, kept_receiver("q"), raw.credit(1, 10))
    assert await ask(broker, "list-suspended-links") == []
    refused = await asked(broker, "end-suspended-link", link=1)
    assert (refused["kind"], refused["error"]) == ("NotFound", "no link of number 1 is suspended")
    await client.lose()
    (shown,) = await ask(broker, "list-suspended-links")
    assert (shown["link"], shown["role"], shown["unsettled"]) == (1, "receiver", 1)
    assert queue_counts(broker, "q") == (0, 1)
    assert await ask(broker, "end-suspended-link", link=1) == shown
    await settle_down()
    assert queue_counts(broker, "q") == (1, 0)
    assert await ask(broker, "list-suspended-links") == []
    assert not (await asked(broker, "end-suspended-link", link=1))["ok"]


# --- a restart --------------------------------------------------------------------------------------


def durable_target(durable: int = 2, **fields: Any) -> amqp10.Target:
    return amqp10.Target(**{"address": "q", "durable": durable, "timeout": 60, **fields})


async def attached(client: Client, sends: bool = True, **fields: Any) -> amqp10.Attach:
    attach = raw.attach_sender if sends else raw.attach_receiver
    await client.send(attach(0, "q", name="mine", rcv_settle_mode=SECOND, **fields))
    return await client.until(amqp10.Attach)


async def test_a_restart_leaves_of_a_link_what_was_granted(tmp_path: Path) -> None:
    """Either the terminus or also the unsettled map survives; the timer of an attached link starts."""
    folder = {"data_dir": str(tmp_path / "data")}
    for durable, ours in (2, {tag(0): amqp10.Accepted()}), (1, {}), (0, None):
        async with running_broker(**folder) as broker:
            client = await connect(broker).open()
            target = (await attached(client, target=durable_target(durable))).target
            assert isinstance(target, amqp10.Target)
            assert target.durable == durable
            await client.call(amqp10.Disposition, raw.transfer(0, 0, b"first"), raw.transfer(0, 1, b"second"))
            await client.submit(raw.disposition(1, role=False, state=amqp10.Accepted()))
        async with running_broker(**folder) as broker:
            shown = broker.node_view().suspended_links
            assert [each.unsettled for each in shown] == ([] if ours is None else [len(ours)])
            assert all(each.left_s is not None and 0 < each.left_s <= 60 for each in shown)
            client = await connect(broker).open()
            answer = await attached(client, target=None, unsettled={tag(0): None, tag(1): None})
            assert isinstance(answer.target, amqp10.Target)
            assert answer.target.address == (None if ours is None else "q")
            assert answer.target.durable == durable
            assert unsettled_map(answer) == (ours or {})
            await client.call(amqp10.Detach, raw.frame(0, amqp10.Detach(handle=0, closed=True)))
        async with running_broker(**folder) as broker:
            assert len(broker.resumable_links) == 0


async def test_a_link_that_was_suspended_keeps_its_time_over_a_restart(tmp_path: Path) -> None:
    """The timer runs while the broker is down; an expired link does not come back."""
    async with running_broker(data_dir=str(tmp_path / "data")) as broker:
        client = await connect(broker).open()
        await attached(client, target=durable_target())
        await client.vanish()
        await connect(broker).idle(20)
        due = broker.resumable_links.deadline_ms
    async with running_broker(data_dir=str(tmp_path / "data")) as broker:
        assert broker.resumable_links.deadline_ms == due
        assert due is not None
        await trio.sleep_until(broker.clock.trio_time(due) + 1)
        assert len(broker.resumable_links) == 0
    async with running_broker(data_dir=str(tmp_path / "data")) as broker:
        assert len(broker.resumable_links) == 0


async def test_the_terminus_of_a_durable_consumer_survives_and_its_deliveries_go_back(tmp_path: Path) -> None:
    """No more is granted, and the answer says so."""
    async with running_broker(data_dir=str(tmp_path / "data")) as broker:
        client = await connect(broker).open()
        await client.send(raw.attach_sender(1, "q"))
        body = amqp10.Header(durable=True).encode() + raw.message(b"first")
        await client.call(amqp10.Disposition, raw.transfer(1, 0, body, raw=True))
        source = amqp10.Source(address="q", durable=2, timeout=60, default_outcome=amqp10.Modified())
        answer = await attached(client, sends=False, source=source)
        assert isinstance(answer.source, amqp10.Source)
        assert answer.source.durable == 1
        await client.call(amqp10.Transfer, raw.credit(0, 1))
    async with running_broker(data_dir=str(tmp_path / "data")) as broker:
        assert queue_counts(broker, "q") == (1, 0)
        client = await connect(broker).open()
        answer = await attached(client, sends=False, source=None, unsettled={tag(0): None})
        assert isinstance(answer.source, amqp10.Source)
        assert (answer.source.address, answer.source.durable) == ("q", 1)
        assert answer.source.default_outcome == amqp10.Modified()
        assert unsettled_map(answer) == {}
        await client.send(raw.credit(0, 1))
        assert raw.body_of((await client.take(amqp10.Transfer, 1))[0].payload) == b"first"


@pytest.mark.parametrize("address", ["/queues/transient", "/exchanges/transient/key", "/queues/q"])
async def test_durable_is_granted_only_where_it_is_true(tmp_path: Path, address: str) -> None:
    """Nothing survives for a queue that a restart removes, nor without a data folder."""
    memory = address == "/queues/q"
    async with running_broker(data_dir=None if memory else str(tmp_path / "data")) as broker:
        declare(broker.catalog, "/", "transient", durable=False)
        declare(broker.catalog, "/", "q")
        declare_exchange(broker.catalog, "/", "transient", durable=False)
        client = await connect(broker).open()
        granted = (await attached(client, target=durable_target(address=address))).target
        assert granted == durable_target(0, address=address)


async def test_a_link_that_goes_on_is_granted_no_more_than_before(tmp_path: Path) -> None:
    """Its earlier deliveries were not recorded."""
    async with running_broker(data_dir=str(tmp_path / "data")) as broker:
        client = await connect(broker).open()
        await attached(client, target=durable_target(0))
        await client.call(amqp10.Disposition, raw.transfer(0, 0, b"first"))
        await client.vanish()
        client = await connect(broker).open()
        answer = await attached(client, target=durable_target(2), unsettled={tag(0): None})
        assert (answer.target, unsettled_map(answer)) == (durable_target(0), {tag(0): amqp10.Accepted()})
        # Less is granted at once, and nothing is left of what was more.
        await client.vanish()
        client = await connect(broker).open()
        assert (await attached(client, target=durable_target(2))).target == durable_target(2)
        await client.vanish()
        client = await connect(broker).open()
        assert (await attached(client, target=durable_target(0), unsettled={})).target == durable_target(0)
    async with running_broker(data_dir=str(tmp_path / "data")) as broker:
        assert len(broker.resumable_links) == 0


async def test_a_full_queue_rejects_what_it_has_no_room_for(tmp_path: Path) -> None:
    """It decides singly: of a batch that is too large it takes those that fit, and none of the rest."""
    folder = {"data_dir": str(tmp_path / "data")}
    async with running_broker(**folder) as broker:
        declare(broker.catalog, "/", "q", arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
        client = await connect(broker).open()
        await attached(client, target=durable_target())
        await client.send(*(raw.transfer(0, number, b"%d" % number) for number in range(4)))
        told = [each.body for each in await client.idle() if isinstance(each.body, amqp10.Disposition)]
        states = {
            number: type(each.state)
            for each in told
            for number in range(each.first, (each.last or each.first) + 1)
        }
        assert states == {0: amqp10.Accepted, 1: amqp10.Accepted, 2: amqp10.Rejected, 3: amqp10.Rejected}
        assert queue_counts(broker, "q")[0] == 2
    async with running_broker(**folder) as broker:
        assert [each.unsettled for each in broker.resumable_links] == [2]


async def test_what_survives_costs_a_record_a_delivery_and_others_cost_none(tmp_path: Path) -> None:
    """This is the maximum; each joint settlement adds one record."""
    async with running_broker(data_dir=str(tmp_path / "data")) as broker:
        records = broker.resumable_links.records
        assert isinstance(records, ResumableLinksInJournal)
        appended: list[int] = []
        journal, append = broker.journal_task.journal, broker.journal_task.journal.append

        def noting(group: int, kind: int, *rest: Any, **more: Any) -> tuple[int, int, int]:
            if group == GROUP and kind in (LINK, TAKEN, SETTLED, ENDED):
                appended.append(kind)
            return append(group, kind, *rest, **more)

        journal.append = noting  # type: ignore[method-assign]
        for durable, expected in (2, [LINK, TAKEN, TAKEN, TAKEN, SETTLED]), (1, [LINK]), (0, []):
            client = await connect(broker).open()
            await attached(client, target=durable_target(durable))
            await client.send(*(raw.transfer(0, number, b"m") for number in range(3)))
            await client.idle()
            await client.submit(raw.disposition(0, 2, role=False, state=amqp10.Accepted()))
            assert appended == expected
            appended.clear()
            await client.call(amqp10.Detach, raw.frame(0, amqp10.Detach(handle=0, closed=True)))
            assert appended == [ENDED] * bool(durable)
            appended.clear()


async def test_a_queue_that_was_declared_just_now_takes_part_in_a_commit(tmp_path: Path) -> None:
    """Its task has had no turn yet, and starts after the commit."""
    async with running_broker(data_dir=str(tmp_path / "data")) as broker:
        box: Mailbox[SessionMessage] = Mailbox()
        commits = SessionCommits(box, broker.journal_task)
        for name in "one", "two":
            declare(broker.catalog, "/", name)
        handles = [broker.catalog.vhosts["/"].lookup(name).handle for name in ("one", "two")]
        reply_to = broker.reply_registry.open("test", box)
        publish = Publish(reply_to.publisher(), range(1), [make_message(0)], False)
        assert commits.commit((), [(handle, publish) for handle in handles]) is None
        for handle in handles:
            handle.post(publish)
        await settle_down()
        assert [handle.ready for handle in handles] == [2, 2]


async def test_an_operator_and_a_deleted_user_end_durable_links_for_good(tmp_path: Path) -> None:
    folder = {"data_dir": str(tmp_path / "data")}
    for end in "user", "operator", "vhost":
        async with running_broker(**folder) as broker:
            client = await connect(broker).open()
            await attached(client, target=durable_target())
            if end == "operator":
                await client.lose()
                (shown,) = await ask(broker, "list-suspended-links")
                await ask(broker, "end-suspended-link", link=shown["link"])
            else:
                await (_user_made_again if end == "user" else _vhost_made_again)(broker)
        async with running_broker(**folder) as broker:
            assert len(broker.resumable_links) == 0


async def test_a_link_that_cannot_be_understood_stops_the_start(tmp_path: Path) -> None:
    async with running_broker(data_dir=str(tmp_path / "data")) as broker:
        records = broker.resumable_links.records
        records.put(1, b"[99]\n")
    with pytest.RaisesGroup(DamagedFile, flatten_subgroups=True, allow_unwrapped=True):
        async with running_broker(data_dir=str(tmp_path / "data")):
            pass
