"""What waits, and timelines of links, over HTTP: what is told, to whom, and live."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from amqp10broker.observe import timeline as rings
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp10.performatives import Open, SaslOutcome
from amqp10broker.runtime.broker import Broker
from tests.support.declaring import declare
from tests.support.http_user import HttpUser, add_login, http_user
from tests.support.rawframes import attach_receiver, attach_sender, begin, credit, login, open_frame, transfer
from tests.support.trioclient import Client, connect, running_broker, settle_down
from tests.support.trioclient091 import connect091


async def client_of(broker: Broker, user: str, peer: str = "127.0.0.1:40001") -> Client:
    """Connect a user with a link 'out' from queue q and one 'in' to it."""
    client = connect(broker, peer=peer)
    await client.call(SaslOutcome, login("PLAIN", f"\0{user}\0pw".encode()))
    await client.call(Open, open_frame(container_id="ten"), begin())
    await client.send(attach_sender(0, "/queues/q", name="in"), attach_receiver(1, "/queues/q", name="out"))
    await client.idle()
    return client


def three_users(broker: Broker) -> None:
    declare(broker.catalog, "/", "q")
    for name, tags in (("ann", ["management"]), ("bob", ["management"]), ("mon", ["monitoring"])):
        add_login(broker, f"{name}:pw", *tags, vhosts=["/"])


async def test_what_waits_is_told_with_what_to_do(broker: Broker) -> None:
    """Monitoring users get everything, others only their own."""
    three_users(broker)
    await client_of(broker, "ann")
    async with (
        http_user(broker, "ann:pw") as ann,
        http_user(broker, "bob:pw") as bob,
        http_user(broker, "mon:pw") as mon,
    ):
        await ann.ask("POST", "/exchanges/%2F/amq.default/publish", published())
        await trio.sleep(3)
        found = await mon.get("/waiting")
        (one,) = found["waiting"]
        told = {key: one[key] for key in ("kind", "name", "role", "queue", "user", "waits", "idle")}
        assert told == {
            "kind": "link",
            "name": "out",
            "role": "receiver",
            "queue": "q",
            "user": "ann",
            "waits": "no-credit-never-granted",
            "idle": False,
        }
        assert one["waits_for_s"] >= 3
        assert one["to_do"].startswith("let the client grant credit")
        assert [each["name"] for each in await mon.get("/connections")] == [one["connection_name"]]
        assert (found["summary"]["waiting"], found["summary"]["links"]) == (1, 2)
        assert [each["name"] for each in (await ann.get("/waiting"))["waiting"]] == ["out"]
        others = await bob.get("/waiting")
        assert (others["waiting"], others["summary"]["connections"]) == ([], 0)
        for query, count in (
            *(("queue=q", 1), ("queue=other", 0), ("link=o*", 1), ("reason=no-credit", 1)),
            *(("longer=2", 1), ("longer=60", 0), ("user=bob", 0), ("limit=1", 1), ("idle=true", 1)),
        ):
            assert len((await mon.get(f"/waiting?{query}"))["waiting"]) == count, query
        for query, reason in (
            ("reason=nonsense", "there is no reason 'nonsense'"),
            ("longer=soon", "'longer' must be a whole number"),
            ("idle=perhaps", "'idle' must be true or false"),
        ):
            heard = await mon.ask("GET", f"/waiting?{query}")
            assert (heard.status, reason in heard.json["reason"]) == (400, True)
        assert (await bob.ask("GET", "/waiting?user=ann")).status == 401


def published() -> dict[str, Any]:
    return {"routing_key": "q", "properties": {}, "payload": "x", "payload_encoding": "string"}


async def watched(user: HttpUser, **body: Any) -> Any:
    (connection,) = await user.get("/connections")
    heard = await user.ask("POST", "/timelines", {"connection": connection["name"], **body})
    assert heard.status == 201, heard
    assert heard.headers["location"] == f"timelines/{heard.json['watch']}"
    return heard.json


async def test_a_link_is_watched_followed_and_left(broker: Broker) -> None:
    """A live stream sends each step once: all its events together are the whole answer."""
    three_users(broker)
    client = await client_of(broker, "ann")
    async with http_user(broker, "ann:pw") as ann, http_user(broker, "ann:pw") as page:
        view = await watched(ann, channel=0, link="out")
        assert (view["user"], view["queue"], view["role"]) == ("ann", "q", "receiver")
        path = f"/timelines/{view['watch']}"
        assert await ann.get("/timelines") == [view]
        events = await page.follow(f"/live?interval=100&path={path}?limit=5")
        name, first = await events.next()
        assert (name, first["value"]["watched"], first["value"]["steps"]) == ("whole", view, [])
        await client.send(credit(1, 10), *[transfer(0, number, b"secret") for number in range(4)])
        await client.idle()
        await client.send(credit(1, 50, delivery_count=4, drain=True, echo=True))
        await client.idle()
        whole = await ann.get(path)
        steps: list[Any] = []
        while len(steps) < len(whole["steps"]):
            name, heard = await events.next()
            assert name == "more"
            assert len(heard["value"]["steps"]) <= 5
            assert "watched" not in heard["value"]
            steps += heard["value"]["steps"]
        assert steps == whole["steps"]
        assert {mark for step in steps for mark in step["marks"]} == {"flow", "drain", "echo"}
        assert any(b"secret".hex() in step["bytes"] for step in steps)
        curves = await ann.get(f"{path}?frames=false&limit=2")
        assert [set(step) for step in curves["steps"]] == [{"number", "at_ns", "link", "values"}] * 2
        assert await ann.delete(path) == 204
        while name == "more":
            name, heard = await events.next()
        assert (name, heard["status"]) == ("refused", 404)
        heard = await ann.ask("GET", path)
        assert (heard.status, "with POST /api/timelines" in heard.json["reason"]) == (404, True)
        assert await ann.get("/timelines") == []


async def test_frames_of_others_are_for_administrators(broker: Broker) -> None:
    """Monitoring users see all curves and the kinds of frames; other users do not see the link."""
    three_users(broker)
    client = await client_of(broker, "ann")
    async with (
        http_user(broker, "mon:pw") as mon,
        http_user(broker, "bob:pw") as bob,
        http_user(broker) as guest,
    ):
        view = await watched(mon, link="in")
        path = f"/timelines/{view['watch']}"
        await client.send(*[transfer(0, number, b"secret") for number in range(3)])
        await client.idle()
        by_admin, by_monitor = await guest.get(path), await mon.get(path)
        assert b"secret".hex() in str(by_admin)
        assert {step["frame"] for step in by_monitor["steps"]} >= {"TRANSFER", "DISPOSITION"}
        assert not any(step["bytes"] for step in by_monitor["steps"])
        for one, other in zip(by_admin["steps"], by_monitor["steps"], strict=True):
            assert one["values"] == other["values"]
            assert one["frame"].startswith(other["frame"])
            assert " " not in other["frame"]
        assert await bob.get("/timelines") == []
        for method, where in (("GET", path), ("DELETE", path)):
            assert (await bob.ask(method, where)).status == 404
        body = {"connection": (await mon.get("/connections"))[0]["name"], "link": "in"}
        assert (await bob.ask("POST", "/timelines", body)).status == 404


async def test_what_cannot_be_watched_is_told(broker: Broker) -> None:
    three_users(broker)
    await client_of(broker, "ann")
    async with http_user(broker, "mon:pw") as mon:
        connection = (await mon.get("/connections"))[0]["name"]
        for body, status, reason in (
            ({}, 400, "{key_missing,connection}"),
            ({"connection": 1}, 400, "must be the name of a connection"),
            ({"connection": "nowhere"}, 404, "Not Found"),
            ({"connection": connection}, 400, "name one of its links"),
            ({"connection": connection, "link": "no"}, 404, "no attached link 'no'"),
            ({"connection": connection, "link": 5}, 400, "link"),
            ({"connection": connection, "link": "in", "role": "both"}, 400, "role"),
            ({"connection": connection, "link": "in", "channel": "x"}, 400, "must be a whole number"),
        ):
            heard = await mon.ask("POST", "/timelines", body)
            assert (heard.status, reason in heard.json["reason"]) == (status, True), heard
        assert (await mon.ask("GET", "/timelines/9")).status == 404
        assert (await mon.ask("GET", "/timelines/x")).status == 400
        view = await watched(mon, link="in")
        assert (await mon.ask("GET", f"/timelines/{view['watch']}?limit=9999")).status == 400


async def test_a_gap_is_told_to_one_who_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ring overflows before the client's next request: the answer has the number of lost steps."""
    monkeypatch.setattr(rings, "SEGMENT_RECORDS", 4)
    monkeypatch.setattr(rings, "RECORDS_MAX", 16)
    async with running_broker() as broker:
        three_users(broker)
        client = await client_of(broker, "ann")
        async with http_user(broker, "ann:pw") as ann:
            view = await watched(ann, link="out")
            events = await ann.follow(f"/live?interval=60000&path=/timelines/{view['watch']}")
            assert (await events.next())[0] == "whole"
            for count in range(1, 60):
                await client.send(credit(1, count))
                await client.idle()
            name, heard = await events.next()
            value = heard["value"]
            assert name == "more"
            assert value["lost"] == value["since"] == value["steps"][0]["number"] > 0


async def test_a_channel_of_0_9_1_is_watched(broker: Broker, user: HttpUser) -> None:
    declare(broker.catalog, "/", "q")
    client = connect091(broker)
    await client.start("PLAIN", b"\0guest\0guest")
    await client.tune()
    await client.call(0, methods.ConnectionOpen(virtual_host="/"), methods.ConnectionOpenOk)
    await client.call(1, methods.ChannelOpen(), methods.ChannelOpenOk)
    await client.send(
        1, methods.BasicQos(prefetch_count=7), methods.BasicConsume(queue="q", consumer_tag="c")
    )
    await client.expect(methods.BasicQosOk)
    await client.expect(methods.BasicConsumeOk)
    view = await watched(user, channel=1, link="c")
    assert (view["role"], view["link"]) == ("consumer", "c")
    await client.publish("", "q", b"body")
    await settle_down()
    found = await user.get(f"/timelines/{view['watch']}")
    assert found["start"]["prefetch"] == 7
    assert [step["frame"].split()[0] for step in found["steps"] if step["direction"]] == [
        "basic.publish",
        "basic.deliver",
    ]
