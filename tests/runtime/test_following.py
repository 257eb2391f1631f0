"""A virtual host that is followed: its links and channels are watched from their beginning on."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.protocols.amqp091.content import Content
from amqp10broker.protocols.amqp091.methods import BasicGet, ChannelClose, ChannelCloseOk
from amqp10broker.protocols.amqp10.performatives import Detach
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.observe import watches
from tests.support.admin_requests import ask, asked
from tests.support.rawframes import attach_receiver, attach_sender, credit, frame, transfer
from tests.support.trioclient import connect, running_broker, settle_down
from tests.support.trioclient091 import connect091


def shown(followed: dict[str, Any]) -> list[tuple[str | None, str, str | None]]:
    return [(each["link"], each["role"], each["queue"]) for each in followed["watches"]]


async def timeline(broker: Broker, watch: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = await ask(broker, "timeline", watch=watch["watch"])
    return found


async def test_links_are_watched_from_the_turn_of_their_attach_on(broker: Broker) -> None:
    """Credit sent with the attach is in the timeline's start; each later frame is a step."""
    await ask(broker, "declare-queue", name="q")
    assert shown(await ask(broker, "follow-links")) == []
    client = await connect(broker).open()
    await client.send(
        attach_sender(0, "/queues/q", name="in"), attach_receiver(1, "/queues/q", name="out"), credit(1, 5)
    )
    await client.idle()
    await client.send(transfer(0, 0, b"body"))
    await client.idle()
    followed = await ask(broker, "follow-links")
    assert sorted(shown(followed)) == [("in", "sender", "q"), ("out", "receiver", "q")]
    assert followed["left_out"] == 0
    by_name = {each["link"]: each for each in followed["watches"]}
    out = await timeline(broker, by_name["out"])
    assert out["start"]["credit"] == 5
    assert [step["values"]["credit"] for step in out["steps"] if "credit" in step["values"]] == [4]
    into = await timeline(broker, by_name["in"])
    assert into["start"]["credit"] == 170
    assert into["steps"][0]["frame"].startswith("TRANSFER")


async def test_a_link_that_is_gone_can_still_be_asked_for(broker: Broker) -> None:
    """It can while its virtual host is followed, even without a request for minutes."""
    await ask(broker, "declare-queue", name="q")
    await ask(broker, "follow-links")
    client = await connect(broker).open()
    await client.send(attach_receiver(0, "/queues/q", name="out"), credit(0, 5))
    await client.idle()
    await client.send(frame(0, Detach(handle=0, closed=True)))
    await client.idle()
    broker.watches._now_ns = later = lambda: watches.LEASE_NS * 10**6
    await client.stream.aclose()
    await settle_down()
    (watch,) = (await ask(broker, "follow-links"))["watches"]
    found = await timeline(broker, watch)
    assert found["ended"] == "the link is detached"
    assert found["now_ns"] == later()
    ended = await ask(broker, "follow-links", on=False)
    assert ended["watches"] == [watch]
    assert "no watch" in (await asked(broker, "timeline", watch=watch["watch"]))["error"]
    assert "is not followed" in (await asked(broker, "follow-links", on=False))["error"]


async def test_a_channel_is_watched_when_it_is_open(broker: Broker) -> None:
    await ask(broker, "declare-queue", name="q")
    await ask(broker, "follow-links")
    client = await connect091(broker).open()
    await client.publish("", "q", b"x")
    await client.call(1, BasicGet(queue="q"), Content)
    followed = await ask(broker, "follow-links")
    assert shown(followed) == [(None, "channel", None)]
    found = await timeline(broker, followed["watches"][0])
    steps = [step for step in found["steps"] if step["direction"]]
    assert [step["frame"].split()[0] for step in steps] == ["basic.publish", "basic.get", "basic.get-ok"]
    assert steps[-1]["values"]["channel_unacknowledged"] == 1
    await client.call(1, ChannelClose(reply_code=200, reply_text="", class_id=0, method_id=0), ChannelCloseOk)
    assert (await timeline(broker, followed["watches"][0]))["ended"] is not None


async def test_links_of_other_virtual_hosts_are_not_watched(broker: Broker) -> None:
    await ask(broker, "declare-queue", name="q")
    await ask(broker, "add-vhost", name="followed")
    await ask(broker, "follow-links", vhost="followed")
    client = await connect(broker).open()
    await client.send(attach_receiver(0, "/queues/q", name="out"))
    await client.idle()
    assert (await ask(broker, "follow-links", vhost="followed"))["watches"] == []
    assert "nowhere" in (await asked(broker, "follow-links", vhost="nowhere"))["error"]
    (connection,) = broker.connections.values()
    (session,) = connection.parts.values()
    assert session.on_turn is None


async def test_what_is_beyond_the_bound_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "FOLLOWED_MAX", 2)
    async with running_broker() as broker:
        await ask(broker, "declare-queue", name="q")
        await ask(broker, "follow-links")
        client = await connect(broker).open()
        for handle in range(3):
            await client.send(attach_receiver(handle, "/queues/q", name=f"out-{handle}"))
            await client.idle()
        followed = await ask(broker, "follow-links")
        assert [each["link"] for each in followed["watches"]] == ["out-0", "out-1"]
        assert followed["left_out"] == 1


async def test_watches_by_hand_go_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A followed link has one watch for all observers; unwatching by hand leaves it to the follower."""
    monkeypatch.setattr(watches, "WATCHES_MAX", 1)
    async with running_broker() as broker:
        await ask(broker, "declare-queue", name="q")
        early = await connect(broker).open()
        await early.send(attach_receiver(0, "/queues/q", name="early"))
        await early.idle()
        await ask(broker, "follow-links")
        client = await connect(broker).open()
        await client.send(attach_receiver(0, "/queues/q", name="out"))
        await client.idle()
        (watch,) = (await ask(broker, "follow-links"))["watches"]
        assert (await ask(broker, "watch-link", connection=2, link="out"))["watch"] == watch["watch"]
        await ask(broker, "unwatch-link", watch=watch["watch"])
        by_hand = await ask(broker, "watch-link", connection=1, link="early")
        await ask(broker, "unwatch-link", watch=by_hand["watch"])
        await client.send(credit(0, 7))
        await client.idle()
        assert (await timeline(broker, watch))["steps"][0]["values"]["credit"] == 7
