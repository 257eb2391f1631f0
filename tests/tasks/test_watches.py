"""Links that are watched: their timeline beside a trace of frames, who may watch what, and how it ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from amqp10broker.service.timeline import ring as rings
from amqp10broker.tasks import admin, watches
from amqp10broker.tasks.broker import Broker
from tests.support.rawframes import attach_receiver, attach_sender, credit, disposition, flow, transfer
from tests.support.trioclient import Client, connect, running_broker, settle_down
from tests.tasks.test_tracing import begun


async def asked(broker: Broker, op: str, /, **given: Any) -> dict[str, Any]:
    return await admin.answer(broker, json.dumps({"op": op, "arguments": given}).encode())


async def ask(broker: Broker, op: str, /, **given: Any) -> Any:
    response = await asked(broker, op, **given)
    assert response["ok"], response
    return response["result"]


async def publisher_and_consumer(broker: Broker) -> Client:
    """Of one queue, in one session: links 'in' and 'out'."""
    await ask(broker, "declare-queue", name="q")
    client = await connect(broker).open()
    await client.send(attach_sender(0, "/queues/q", name="in"), attach_receiver(1, "/queues/q", name="out"))
    await client.idle()
    return client


async def some_traffic(client: Client) -> None:
    """Transfers, credit, a drain with echo, settlement, a window, and a session flow."""
    await client.send(*[transfer(0, number, b"body") for number in range(30)])
    await client.idle()
    await client.send(credit(1, 10))
    await client.idle()
    await client.send(disposition(0, 4, role=True, settled=True, state=None))
    await client.send(credit(1, 40, delivery_count=10, drain=True, echo=True))
    await client.idle()
    await client.send(flow(next_incoming_id=30, incoming_window=7, next_outgoing_id=30, echo=True))
    await client.idle()


def frames_of(steps: list[dict[str, Any]], direction: str) -> list[str]:
    return [
        step["frame"].split()[0]
        for step in steps
        if step["direction"] == direction
        for _ in range(step["frames"])
    ]


async def test_every_step_is_a_frame_of_the_trace_and_every_frame_a_step(autojump_clock: object) -> None:
    """In both directions; what a run holds together are frames of one read or one write."""
    async with running_broker() as broker:
        client = await publisher_and_consumer(broker)
        trace = begun(broker, "1")
        numbers = [
            (await ask(broker, "watch-link", connection=1, link=link))["watch"] for link in ("in", "out")
        ]
        await some_traffic(client)
        lines = [line.split() for line in trace.lines]
        for number in numbers:
            found = await ask(broker, "timeline", watch=number)
            for direction, arrow in (("in", "<-"), ("out", "->")):
                expected = [line[3] for line in lines if line[0] == arrow]
                assert frames_of(found["steps"], direction) == expected
            marks = {mark for step in found["steps"] for mark in step["marks"]}
            assert marks == {"flow", "drain", "echo"}


async def test_the_curves_end_where_status_is(autojump_clock: object) -> None:
    """The queue's credit and the writer, too, which no frame tells."""
    async with running_broker() as broker:
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


async def test_who_asks_again_gets_what_came_since(autojump_clock: object) -> None:
    """Bounded answers, one behind the other, are the whole; behind the last there is nothing."""
    async with running_broker() as broker:
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


async def test_the_oldest_goes_when_the_ring_is_full(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks for what is gone hears how much that was, and the rest is as exact as before."""
    monkeypatch.setattr(rings, "SEGMENT_RECORDS", 4)
    monkeypatch.setattr(rings, "RECORDS_MAX", 16)
    async with running_broker() as broker:
        client = await publisher_and_consumer(broker)
        number = (await ask(broker, "watch-link", connection=1, link="out"))["watch"]
        for count in range(1, 40):
            await client.send(credit(1, count))
            await client.idle()
        found = await ask(broker, "timeline", watch=number, since=0)
        assert found["lost"] == found["since"] > 0
        assert len(found["steps"]) <= 16 + 4 + 4
        credits = [step["values"]["credit"] for step in found["steps"] if "credit" in step["values"]]
        assert credits == list(range(credits[0], 40))
        assert found["start"]["credit"] == credits[0] - 1


async def test_nothing_listens_when_nobody_looks(autojump_clock: object) -> None:
    """Two look at one link, and each may go first; two links of a session share its tap."""
    async with running_broker() as broker:
        await publisher_and_consumer(broker)
        session = next(iter(broker.connections[1].parts.values()))
        engine: Any = session.service.session  # type: ignore[union-attr]
        first, again, other = [
            (await ask(broker, "watch-link", connection=1, link=link))["watch"]
            for link in ("in", "in", "out")
        ]
        assert (first, other) == (again, first + 1)
        for number in (first, first, other):
            assert engine.tap is not None
            await ask(broker, "unwatch-link", watch=number)
        assert engine.tap is None
        assert session.on_turn is None  # type: ignore[union-attr]
        refused = await asked(broker, "timeline", watch=first)
        assert (refused["ok"], refused["kind"]) == (False, "NotFound")


async def test_a_watch_that_nobody_asks_for_ends(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next turn of its session ends it; also one that never has a turn is forgotten."""
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
        assert session.service.session.tap is None
        refused = await asked(broker, "timeline", watch=number)
        assert refused["error"].startswith(f"no watch {number}: it was never begun, or nobody asked for it")


@pytest.mark.parametrize("way", ["detach", "lost"])
async def test_a_link_that_goes_ends_its_timeline(autojump_clock: object, way: str) -> None:
    """What was can still be asked for, with the reason."""
    async with running_broker() as broker:
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
        assert found["ended"] == "the link is detached" if way == "detach" else "is over" in found["ended"]
        assert any(step["values"].get("credit") == 5 for step in found["steps"])
        assert ("DETACH" in found["steps"][-1]["frame"]) == (way == "detach")


async def test_what_cannot_be_watched(autojump_clock: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each refusal says what to do."""
    monkeypatch.setattr(watches, "WATCHES_MAX", 1)
    async with running_broker() as broker:
        client = await publisher_and_consumer(broker)
        await client.send(attach_sender(2, "/queues/q", name="out"))
        await client.idle()
        for given, kind, text in (
            ({"connection": 9, "link": "in"}, "NotFound", "no connection 9"),
            ({"connection": 1, "link": "no"}, "NotFound", "list-links"),
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
