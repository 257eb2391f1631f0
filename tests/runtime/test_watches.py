"""Links that are watched: their timeline beside a trace of frames, who may watch what, and how it ends."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.observe import timeline as rings
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.observe import watches
from tests.support.admin_requests import ask, asked
from tests.support.rawframes import attach_receiver, attach_sender, credit, disposition, flow, transfer
from tests.support.trioclient import Client, connect, running_broker, settle_down
from tests.support.trioclient091 import Client091, connect091


async def publisher_and_consumer(broker: Broker) -> Client:
    await ask(broker, "declare-queue", name="q")
    client = await connect(broker).open()
    await client.send(attach_sender(0, "/queues/q", name="in"), attach_receiver(1, "/queues/q", name="out"))
    await client.idle()
    return client


async def some_traffic(client: Client) -> None:
    await client.send(*[transfer(0, number, b"body") for number in range(30)])
    await client.idle()
    await client.send(credit(1, 10))
    await client.idle()
    await client.send(disposition(0, 4, role=True, settled=True, state=None))
    await client.send(credit(1, 40, delivery_count=10, drain=True, echo=True))
    await client.idle()
    await client.send(flow(next_incoming_id=30, incoming_window=7, next_outgoing_id=30, echo=True))
    await client.idle()


async def test_the_curves_end_where_status_is(broker: Broker) -> None:
    """They include the queue's credit and the writer, which no frame shows."""
    client = await publisher_and_consumer(broker)
    begun_at = {}
    for link in ("in", "out"):
        begun_at[link] = await ask(broker, "watch-link", connection=1, link=link)
    assert begun_at["out"]["role"] == "receiver"
    assert begun_at["out"]["queue"] == "q"
    await some_traffic(client)
    status = (await ask(broker, "status"))["connections"][0]["sessions"][0]
    for view in status["links"]:
        found = await ask(broker, "timeline", watch=begun_at[view["name"]]["watch"])
        at_end = dict(found["start"])
        for step in found["steps"]:
            at_end |= step["values"]
        for name in ("credit", "delivery_count", "drain", "queue_credit", "pending"):
            assert at_end[name] == view[name], (view["name"], name)
        for name in ("incoming_window", "remote_incoming_window", "next_incoming_id", "next_outgoing_id"):
            assert at_end[name] == status[name], name
        assert at_end["writer_waiting_bytes"] == 0
        assert not at_end["writer_blocked"]
    assert (found["more"], found["lost"], found["ended"]) == (False, 0, None)


async def test_who_asks_again_gets_what_came_since(broker: Broker) -> None:
    """Bounded answers in sequence are the whole; after the last one there is nothing."""
    client = await publisher_and_consumer(broker)
    number = (await ask(broker, "watch-link", connection=1, link="out"))["watch"]
    await some_traffic(client)
    whole = await ask(broker, "timeline", watch=number)
    since, steps = None, []
    while True:
        part = await ask(broker, "timeline", watch=number, since=since, limit=2)
        steps += part["steps"]
        since = part["next"]
        if not part["more"]:
            break
    assert steps == whole["steps"]
    assert (await ask(broker, "timeline", watch=number, since=since))["steps"] == []
    await client.send(credit(1, 3, delivery_count=50))
    await client.idle()
    (again, *_) = (await ask(broker, "timeline", watch=number, since=since))["steps"]
    assert (again["values"]["credit"], again["direction"]) == (3, "in")


async def test_nothing_listens_when_nobody_looks(broker: Broker) -> None:
    """Two watches of one link may end in either order; two links of a session share its tap."""
    await publisher_and_consumer(broker)
    session = next(iter(broker.connections[1].parts.values()))
    engine: Any = session.service.session  # type: ignore[union-attr]
    first, again, other = [
        (await ask(broker, "watch-link", connection=1, link=link))["watch"] for link in ("in", "in", "out")
    ]
    assert (first, other) == (again, first + 1)
    for number in (first, first, other):
        assert engine.output.tap is not None
        await ask(broker, "unwatch-link", watch=number)
    assert engine.output.tap is None
    assert session.on_turn is None  # type: ignore[union-attr]
    refused = await asked(broker, "timeline", watch=first)
    assert (refused["ok"], refused["kind"]) == (False, "NotFound")


async def test_a_watch_that_nobody_asks_for_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next turn of its session ends it; a watch whose session has no turn is forgotten too."""
    now = [0]
    monkeypatch.setattr(rings, "SEGMENT_RECORDS", 4)
    monkeypatch.setattr(watches.Watches.__init__, "__defaults__", (lambda: now[0],))
    async with running_broker() as broker:
        client = await publisher_and_consumer(broker)
        session: Any = next(iter(broker.connections[1].parts.values()))
        number = (await ask(broker, "watch-link", connection=1, link="out"))["watch"]
        now[0] = watches.LEASE_NS
        await client.send(credit(1, 1))
        await client.idle()
        assert (await ask(broker, "timeline", watch=number))["ended"] is None
        now[0] *= 3
        for count in range(5):
            await client.send(credit(1, count))
            await client.idle()
        assert session.service.session.output.tap is None
        refused = await asked(broker, "timeline", watch=number)
        assert refused["error"].startswith(f"no watch {number}: it was never begun, or nobody asked for it")


@pytest.mark.parametrize("way", ["detach", "lost"])
async def test_a_link_that_goes_ends_its_timeline(broker: Broker, way: str) -> None:
    """Its past remains available, with the reason."""
    client = await publisher_and_consumer(broker)
    number = (await ask(broker, "watch-link", connection=1, link="out"))["watch"]
    await client.send(credit(1, 5))
    await client.idle()
    if way == "lost":
        await client.vanish()
    else:
        await ask(broker, "delete-queue", name="q")
    await settle_down()
    found = await ask(broker, "timeline", watch=number)
    assert ("the link is detached" if way == "detach" else "is over") in found["ended"]
    assert any(step["values"].get("credit") == 5 for step in found["steps"])
    assert ("DETACH" in found["steps"][-1]["frame"]) == (way == "detach")


async def test_what_cannot_be_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "WATCHES_MAX", 1)
    async with running_broker() as broker:
        client = await publisher_and_consumer(broker)
        await client.send(attach_sender(2, "/queues/q", name="out"))
        await client.idle()
        for given, kind, text in (
            ({"connection": 9, "link": "in"}, "NotFound", "no connection 9"),
            ({"connection": 1, "link": "no"}, "NotFound", "link list"),
            ({"connection": 1}, "BadRequest", "name one of its links"),
            ({"connection": 1, "link": "in", "channel": 5}, "NotFound", "no attached link 'in'"),
            ({"connection": 1, "link": "in", "role": "receiver"}, "NotFound", "no attached link 'in'"),
            ({"connection": 1, "link": "out"}, "NotAllowed", "give the role"),
        ):
            refused = await asked(broker, "watch-link", **given)
            assert refused["kind"] == kind, refused
            assert text in refused["error"], refused
        assert (await ask(broker, "watch-link", connection=1, link="out", role="sender"))["role"] == "sender"
        refused = await asked(broker, "watch-link", connection=1, link="in")
        assert "1 links are watched already" in refused["error"]


# --- AMQP 0-9-1 -----------------------------------------------------------------------------------


async def channel_with_consumer(broker: Broker) -> Client091:
    """Open a confirm-mode channel that consumes its own publishes, two unacknowledged at a time."""
    await ask(broker, "declare-queue", name="q")
    client = await connect091(broker).open()
    await client.send(
        1, methods.BasicQos(prefetch_count=2), methods.BasicConsume(queue="q", consumer_tag="c")
    )
    await client.expect(methods.BasicQosOk)
    await client.expect(methods.BasicConsumeOk)
    await client.call(1, methods.ConfirmSelect(), methods.ConfirmSelectOk)
    return client


async def test_a_channel_that_goes_ends_its_timeline(broker: Broker) -> None:
    """A cancel, a channel.close or the connection's end does so; then no tap is left."""
    client = await channel_with_consumer(broker)
    service: Any = broker.connections[1].parts[1].service
    consumer, channel = [
        (await ask(broker, "watch-link", connection=1, channel=1, link=link))["watch"] for link in ("c", None)
    ]
    assert len(service.taps) == len(service.consuming.taps) == 2
    await client.submit(1, methods.BasicCancel(consumer_tag="c"))
    assert (await ask(broker, "timeline", watch=consumer))["ended"] == "the consumer is cancelled"
    assert len(service.taps) == 1
    await client.submit(1, methods.ChannelClose(reply_code=200, reply_text="", class_id=0, method_id=0))
    found = await ask(broker, "timeline", watch=channel)
    assert "closed" in found["ended"] or "over" in found["ended"]
    told = [step["frame"] for step in found["steps"] if step["direction"]]
    assert told[-1].startswith("channel.close-ok")
    for given, text in (
        ({"connection": 1}, "give the number of a channel"),
        ({"connection": 1, "channel": 1}, "no open channel 1"),
    ):
        assert text in (await asked(broker, "watch-link", **given))["error"]
