"""Queues over HTTP, against a running broker."""

from __future__ import annotations

import re
from typing import Any

import pytest
import trio

from amqp10broker.api import calls
from amqp10broker.metadata import patterns
from amqp10broker.metadata.users import Permission
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import Content
from amqp10broker.queues import queue_status as stats
from amqp10broker.runtime.admin.admin import run_operation
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.http import http_api
from amqp10broker.runtime.http.http_api import HttpApi
from tests.support.declaring import add_vhost, declare, set_permission
from tests.support.http_user import HttpUser, add_login, http_user
from tests.support.trioclient import running_broker, settle_down
from tests.support.trioclient091 import connect091

ACCESS_REFUSED = {"error": "not_authorised", "reason": "Access refused."}
NOT_FOUND = {"error": "Object Not Found", "reason": "Not Found"}


async def test_a_queue_is_declared_shown_and_deleted(broker: Broker, user: HttpUser) -> None:
    body = {"durable": "true", "arguments": {"x-max-length": 10}}
    assert await user.put("/queues/%2F/a%2Fb", body) == 201
    assert await user.put("/queues/%2F/a%2Fb", body) == 204
    shown = await user.get("/queues/%2F/a%2Fb")
    expected = {
        "name": "a/b",
        "vhost": "/",
        "type": "classic",
        "node": "broker",
        "state": "running",
        "durable": True,
        "auto_delete": False,
        "exclusive": False,
        "arguments": {"x-max-length": 10, "x-queue-type": "classic"},
        "policy": None,
        "effective_policy_definition": {},
        "messages": 0,
        "consumers": 0,
    }
    assert {key: shown[key] for key in expected} == expected
    assert await user.delete("/queues/%2F/a%2Fb") == 204
    heard = await user.ask("DELETE", "/queues/%2F/a%2Fb")
    assert (heard.status, heard.json) == (404, NOT_FOUND)
    assert (await user.ask("GET", "/queues/%2F/a%2Fb")).status == 404


async def test_what_is_wrong_with_a_declaration_is_told(broker: Broker, user: HttpUser) -> None:
    add_vhost(broker.catalog, "v")
    set_permission(broker.catalog, "guest", "v", Permission())
    assert await user.put("/queues/v/q", {"durable": True}) == 201
    differs = "inequivalent arg 'durable' for queue 'q' in vhost 'v'"
    wrong: list[tuple[Any, str]] = [
        ({"durable": False}, f"{differs}: received 'false' but current is 'true'"),
        ({"durable": "yes"}, "'durable' must be true or false"),
        ({"arguments": 3}, "'arguments' must be an object"),
    ]
    for body, reason in wrong:
        heard = await user.ask("PUT", "/queues/v/q", body)
        assert (heard.status, heard.json) == (400, {"error": "bad_request", "reason": reason})
    heard = await user.ask("PUT", "/queues/v/quorum", {"arguments": {"x-queue-type": "quorum"}})
    assert heard.status == 400
    assert heard.json["reason"].startswith("invalid property 'non-durable' for queue 'quorum'")
    heard = await user.ask("PUT", "/queues/v/new", {"arguments": {"x-max-length": -1}})
    assert heard.status == 400
    assert heard.json["reason"].startswith("invalid arg 'x-max-length' for queue 'new'")
    heard = await user.ask("PUT", "/queues/v/amq.mine", {})
    assert (heard.status, heard.json) == (401, ACCESS_REFUSED)
    heard = await user.ask("PUT", "/queues/nowhere/q", {})
    assert (heard.status, heard.json) == (404, {"error": "not_found", "reason": "Not Found"})
    assert (await user.ask("POST", "/queues/v/q/actions", {"action": "sync"})).json == {
        "error": "bad_request",
        "reason": "unknown",
    }


async def test_numbers_that_json_lacks_are_shown_as_text(broker: Broker, user: HttpUser) -> None:
    """A client of AMQP may declare with NaN or an infinity; every list with that queue still works."""
    declare(broker.catalog, "/", "q", arguments={"x-own": float("nan"), "x-list": [float("-inf"), 1.5]})
    shown = {"x-own": "nan", "x-list": ["-inf", 1.5], "x-queue-type": "classic"}
    assert (await user.get("/queues/%2F/q"))["arguments"] == shown
    for path in ("/queues", "/definitions"):
        found = await user.get(path)
        [queue] = found if isinstance(found, list) else found["queues"]
        assert queue["arguments"]["x-own"] == "nan"


async def test_permissions_are_those_of_amqp(broker: Broker) -> None:
    """A user without permissions in a virtual host does not see it; any permission shows all its queues."""
    for name in ("q", "secret"):
        declare(broker.catalog, "/", name)
    add_login(broker, "ann:pw", "management")
    async with http_user(broker, "ann:pw") as ann:
        for path in ("/queues/%2F", "/queues/%2F/q"):
            heard = await ann.ask("GET", path)
            assert (heard.status, heard.json) == (404, {"error": "not_found", "reason": "Not Found"})
        assert await ann.get("/queues") == []
        assert await ann.put("/queues/%2F/mine", {}) == 404
        set_permission(broker.catalog, "ann", "/", Permission(configure="^q", write="^q", read="^q"))
        assert [each["name"] for each in await ann.get("/queues")] == ["q", "secret"]
        for method, path in (
            ("PUT", "/queues/%2F/other"),
            ("DELETE", "/queues/%2F/secret"),
            ("DELETE", "/queues/%2F/secret/contents"),
        ):
            heard = await ann.ask(method, path, {})
            assert (heard.status, heard.json) == (401, ACCESS_REFUSED), path
        assert await ann.delete("/queues/%2F/q/contents") == 204
        assert await ann.delete("/queues/%2F/q") == 204


async def test_an_administrator_sees_every_queue_and_needs_a_permission_to_change_one(
    broker: Broker, user: HttpUser
) -> None:
    add_vhost(broker.catalog, "v")
    declare(broker.catalog, "v", "q")
    assert [each["vhost"] for each in await user.get("/queues/v")] == ["v"]
    heard = await user.ask("DELETE", "/queues/v/q")
    assert (heard.status, heard.json) == (401, ACCESS_REFUSED)


async def test_a_queue_goes_only_if_it_is_unused_or_empty(broker: Broker, user: HttpUser) -> None:
    declare(broker.catalog, "/", "q")
    client = await connect091(broker).open()
    await client.publish("", "q", b"x")
    await client.call(1, methods.BasicConsume(queue="q", no_ack=False), methods.BasicConsumeOk)
    heard = await user.ask("DELETE", "/queues/%2F/q?if-unused=true")
    assert (heard.status, heard.json["reason"]) == (400, "queue 'q' in vhost '/' in use")
    await client.publish("", "q", b"x")
    declare(broker.catalog, "/", "full")
    await client.publish("", "full", b"x")
    await settle_down()
    heard = await user.ask("DELETE", "/queues/%2F/full?if-empty=true")
    assert (heard.status, heard.json["reason"]) == (400, "queue 'full' in vhost '/' not empty")
    assert await user.delete("/queues/%2F/full/contents") == 204
    assert await user.delete("/queues/%2F/full?if-empty=true&if-unused=true") == 204
    assert await user.delete("/queues/%2F/q") == 204


async def test_messages_and_consumers_are_counted(broker: Broker, user: HttpUser) -> None:
    declare(broker.catalog, "/", "q")
    client = await connect091(broker).open()
    for _ in range(3):
        await client.publish("", "q", b"x")
    await client.call(1, methods.BasicQos(prefetch_count=1), methods.BasicQosOk)
    await client.call(1, methods.BasicConsume(queue="q"), methods.BasicConsumeOk)
    await settle_down()
    columns = "messages,messages_ready,messages_unacknowledged,consumers"
    counted = {"messages": 3, "messages_ready": 2, "messages_unacknowledged": 1, "consumers": 1}
    assert await user.get(f"/queues?columns={columns}") == [counted]
    assert await user.get(f"/queues/%2F/q?columns={columns}") == counted
    assert await user.get(f"/queues/detailed?columns={columns}") == [counted]


@pytest.mark.rabbitmq("quorum_queue_SUITE", "message_bytes_metrics")
@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_bytes_of_messages_are_told(broker: Broker, user: HttpUser, kind: str) -> None:
    """Ready bytes, unacknowledged bytes and their sum are shown."""
    durable = {"durable": kind == "quorum", "arguments": {"x-queue-type": kind}}
    assert await user.put("/queues/%2F/q", durable) == 201
    client = await connect091(broker).open()
    for body in (b"1", b"22", b"333", b"4444"):
        await client.publish("", "q", body)
    await client.call(1, methods.BasicQos(prefetch_count=3), methods.BasicQosOk)
    await client.call(1, methods.BasicConsume(queue="q"), methods.BasicConsumeOk)
    for _ in range(3):
        await client.expect(Content)
    (shown,) = await user.get("/queues")
    told = {
        "messages_persistent": 4 if kind == "quorum" else 0,
        "message_bytes": 10,
        "message_bytes_ready": 4,
        "message_bytes_unacknowledged": 6,
        "message_bytes_persistent": 10 if kind == "quorum" else 0,
    }
    if kind == "classic":
        ram = {"messages_ram": 4, "messages_ready_ram": 1, "messages_unacknowledged_ram": 3}
        told |= ram | {"message_bytes_ram": 10, "memory": 410}
    assert {key: value for key, value in shown.items() if "bytes" in key or key in told} == told
    assert await user.put("/queues/%2F/s", {"durable": True, "arguments": {"x-queue-type": "stream"}}) == 201
    assert "message_bytes" not in await user.get("/queues/%2F/s")


@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_bytes_that_would_take_long_to_add_up_are_left_out(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte counts of many messages in several parts are left out; the queue's other fields stay."""
    monkeypatch.setattr(stats, "LOOKED_THROUGH_MAX", 2)
    async with running_broker() as broker, http_user(broker) as user:
        await user.put("/queues/%2F/q", {"durable": True, "arguments": {"x-queue-type": kind}})
        client = await connect091(broker).open()
        for _ in range(3):
            await client.publish("", "q", b"x")
        await client.call(1, methods.BasicConsume(queue="q"), methods.BasicConsumeOk)
        for _ in range(3):
            await client.expect(Content)
        held = await user.get("/queues/%2F/q")
        assert held["messages_unacknowledged"] == 3
        assert held["message_bytes_ready"] == 0
        assert not {"message_bytes", "message_bytes_unacknowledged", "message_bytes_ram", "memory"} & set(
            held
        )
        await client.call(1, methods.ChannelClose(0, "", 0, 0), methods.ChannelCloseOk)
        await settle_down()
        returned = await user.get("/queues/%2F/q")
        assert (returned["messages_ready"], returned.get("message_bytes_ready")) == (
            3,
            3 if kind == "quorum" else None,
        )


async def test_a_get_that_finds_nothing_is_counted(broker: Broker, user: HttpUser) -> None:
    declare(broker.catalog, "/", "q")
    client = await connect091(broker).open()
    assert "message_stats" not in await user.get("/queues/%2F/q")
    await client.call(1, methods.BasicGet(queue="q"), methods.BasicGetEmpty)
    (channel,) = await user.get("/channels")
    for shown in (await user.get("/queues/%2F/q"), channel, await user.get("/overview")):
        stats = shown["message_stats"]
        assert (stats["get_empty"], stats["get"], stats["deliver_get"]) == (1, 0, 0)
    asked = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    assert (await user.ask("POST", "/queues/%2F/q/get", asked)).json == []
    assert (await user.get("/queues/%2F/q"))["message_stats"]["get_empty"] == 2


async def test_a_queue_that_does_nothing_says_since_when(broker: Broker, user: HttpUser) -> None:
    """Flower shows it; sampling limits its precision."""
    declare(broker.catalog, "/", "q")
    client = await connect091(broker).open()
    assert "idle_since" not in await user.get("/queues/%2F/q")
    (channel,) = await user.get("/channels")
    assert "idle_since" not in channel
    await trio.sleep(20)
    (channel,) = await user.get("/channels")
    assert "idle_since" in channel
    since = (await user.get("/queues/%2F/q"))["idle_since"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", since)
    await trio.sleep(20)
    assert (await user.get("/queues/%2F/q"))["idle_since"] == since
    await client.publish("", "q", b"x")
    await settle_down()
    assert "idle_since" not in await user.get("/queues/%2F/q")
    (channel,) = await user.get("/channels")
    assert "idle_since" not in channel


async def test_what_became_of_messages_is_counted(broker: Broker, user: HttpUser) -> None:
    declare(broker.catalog, "/", "q", arguments={"x-single-active-consumer": True})
    declare(broker.catalog, "/", "quiet")
    client = await connect091(broker).open()
    await client.publish("", "q", b"x")
    await client.call(
        1, methods.BasicConsume(queue="q", consumer_tag="t", no_ack=True), methods.BasicConsumeOk
    )
    await client.expect(Content)
    rows = {each["name"]: each for each in await user.get("/queues")}
    assert "message_stats" not in rows["quiet"]
    stats = rows["q"]["message_stats"]
    assert (stats["publish"], stats["deliver_no_ack"], stats["deliver_get"], stats["ack"]) == (1, 1, 1, 0)
    assert "single_active_consumer_tag" not in rows["q"]
    tags = [each["single_active_consumer_tag"] for each in await user.get("/queues/detailed")]
    assert tags == ["t", None]
    assert (await user.get("/queues/%2F/q"))["single_active_consumer_tag"] == "t"
    default = await user.get("/exchanges/%2F/amq.default")
    assert default["message_stats"] == {
        "publish_in": 1,
        "publish_in_details": {"rate": 0.0},
        "publish_out": 1,
        "publish_out_details": {"rate": 0.0},
    }
    assert "message_stats" not in await user.get("/exchanges/%2F/amq.topic")
    bare = await user.get("/exchanges?disable_stats=true")
    assert [each for each in bare if "message_stats" in each] == []


async def test_a_queue_names_its_consumers_and_its_owner(broker: Broker, user: HttpUser) -> None:
    declare(broker.catalog, "/", "other")
    client = await connect091(broker, peer="127.0.0.1:40001").open()
    await client.call(1, methods.QueueDeclare(queue="hers", exclusive=True), methods.QueueDeclareOk)
    for queue, exclusive in (("hers", True), ("other", False)):
        await client.call(
            1,
            methods.BasicConsume(queue=queue, consumer_tag=f"of {queue}", exclusive=exclusive),
            methods.BasicConsumeOk,
        )
    hers, other = [await user.get(f"/queues/%2F/{name}") for name in ("hers", "other")]
    assert hers["owner_pid_details"] == {
        "name": "127.0.0.1:40001",
        "peer_host": "127.0.0.1",
        "peer_port": 40001,
    }
    assert [each["consumer_tag"] for each in hers["consumer_details"]] == ["of hers"]
    assert (hers["exclusive"], hers["exclusive_consumer_tag"]) == (True, "of hers")
    assert [each["consumer_tag"] for each in other["consumer_details"]] == ["of other"]
    assert (other["exclusive"], other["exclusive_consumer_tag"]) == (False, None)
    assert "owner_pid_details" not in other


async def test_rates_are_what_changed_since_the_look_before(broker: Broker, user: HttpUser) -> None:
    """KEDA and pages read them so; a history is as old as the first sample."""
    declare(broker.catalog, "/", "q")
    client = await connect091(broker).open()
    await client.publish("", "q", b"x")
    await settle_down()
    first = await user.get("/queues/%2F/q")
    assert first["messages_details"] == first["message_stats"]["publish_details"] == {"rate": 0.0}
    for _ in range(20):
        await client.publish("", "q", b"x")
    await trio.sleep(5)
    keda = (await user.get("/queues?page=1&name=q&columns=messages,messages_details,message_stats"))["items"]
    assert keda[0]["messages"] == 21
    assert keda[0]["messages_details"]["rate"] == pytest.approx(4.0, rel=0.01)
    assert keda[0]["message_stats"]["publish_details"]["rate"] == pytest.approx(4.0, rel=0.01)
    ages = "lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5"
    aged = await user.get(f"/queues/%2F/q?{ages}")
    assert [each["sample"] for each in aged["messages_details"]["samples"]] == [21, 1]
    assert aged["message_stats"]["publish_details"]["avg_rate"] == pytest.approx(4.0, rel=0.01)
    assert (await user.ask("GET", "/queues?lengths_age=9000&lengths_incr=1")).status == 400


async def test_without_statistics_only_what_is_declared_is_shown(broker: Broker, user: HttpUser) -> None:
    declare(broker.catalog, "/", "q")
    (bare,) = await user.get("/queues?disable_stats=true")
    assert "messages" not in bare
    assert {"policy", "state", "node"} < set(bare)
    (totals,) = await user.get("/queues?disable_stats=true&enable_queue_totals=true")
    assert set(totals) == {
        *("name", "vhost", "type", "node", "state", "arguments", "auto_delete", "durable", "exclusive"),
        *("messages", "messages_ready", "messages_unacknowledged"),
    }
    assert "incoming" not in await user.get("/queues/%2F/q?disable_stats=true")
    assert "incoming" in await user.get("/queues/%2F/q")


async def test_queues_come_in_pages_by_what_is_declared_or_counted(broker: Broker, user: HttpUser) -> None:
    for number in range(5):
        declare(broker.catalog, "/", f"q{number}")
    client = await connect091(broker).open()
    for _ in range(2):
        await client.publish("", "q3", b"x")
    await client.publish("", "q1", b"x")
    await settle_down()
    page = await user.get("/queues/%2F?page=1&page_size=2&sort=messages&sort_reverse=true&columns=name")
    assert page["items"] == [{"name": "q3"}, {"name": "q1"}]
    assert (page["total_count"], page["page_count"], page["item_count"]) == (5, 3, 2)
    page = await user.get("/queues?page=2&page_size=2&columns=name,messages")
    assert page["items"] == [{"name": "q2", "messages": 0}, {"name": "q3", "messages": 2}]
    keda = await user.get("/queues?page=1&use_regex=true&pagination=false&name=^q[13]$&page_size=100")
    assert [(each["name"], each["messages"]) for each in keda["items"]] == [("q1", 1), ("q3", 2)]
    heard = await user.ask("GET", "/queues?page=4&page_size=2")
    assert (heard.status, heard.json["error"]) == (400, "page_out_of_range")


async def test_a_pattern_is_searched_for_in_so_many_steps_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound holds for lists, subscriptions, metrics, health checks and policies."""
    monkeypatch.setattr(patterns, "FINDING_STEPS_MAX", 3_000)
    checks = "/api/health/checks/quorum-queues-without-elected-leaders/vhost/%2F/pattern"
    async with running_broker() as broker, http_user(broker, prefix="") as user:
        for at in range(9):
            body = {"durable": True, "arguments": {"x-queue-type": "quorum"}}
            assert await user.put(f"/api/queues/%2F/{at}{'a' * 200}!", body) == 201
        hostile = "([a-z]%2B%5C.%3F)%2B$"
        policy = {"pattern": "([a-z]+\\.?)+$", "definition": {"max-length": 1}}
        for method, path, body in (
            ("GET", f"/api/queues?page=1&use_regex=true&name={hostile}", None),
            ("GET", f"{checks}/{hostile}", None),
            ("GET", f"/metrics/detailed?family=queue_coarse_metrics&queue={hostile}", None),
            ("PUT", "/api/policies/%2F/p", policy),
            ("PUT", "/api/operator-policies/%2F/p", policy),
        ):
            heard = await user.ask(method, path, body)
            assert (heard.status, heard.json["error"]) == (400, "bad_request"), path
            assert "takes too long to search for in so many names" in heard.json["reason"]


async def test_a_page_asks_only_the_queues_that_are_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Declared properties need no request to a queue; a long list yields to other tasks in between."""
    monkeypatch.setattr(calls, "PORTION", 3)
    asked: list[list[str]] = []
    pauses: list[None] = []
    pause = HttpApi.pause

    async def counted_run(broker: Broker, operation: str, given: Any, *rest: Any) -> Any:
        if given.get("counts"):
            asked.append(list(given["names"]))
        return await run_operation(broker, operation, given, *rest)

    async def counted_pause(broker_api: HttpApi) -> None:
        pauses.append(None)
        await pause(broker_api)

    monkeypatch.setattr(http_api, "run_operation", counted_run)
    monkeypatch.setattr(HttpApi, "pause", counted_pause)
    async with running_broker() as broker, http_user(broker) as user:
        for number in range(8):
            declare(broker.catalog, "/", f"q{number}")
        assert len(await user.get("/queues?columns=name,durable,type")) == 8
        assert asked == []
        assert len(await user.get("/queues?columns=name,node,policy")) == 8
        assert asked == []
        await user.get("/queues?page=2&page_size=2")
        assert asked == [["q2", "q3"]]
        asked.clear()
        pauses.clear()
        assert len(await user.get("/queues")) == 8
        assert [len(each) for each in asked] == [3, 3, 2]
        assert len(pauses) >= 6


async def test_queues_of_a_user_are_those_that_its_connections_have_for_themselves(broker: Broker) -> None:
    declare(broker.catalog, "/", "anybodys")
    add_login(broker, "ann:pw", "management", vhosts=["/"])
    client = await connect091(broker).open(user="ann", password="pw")
    await client.call(1, methods.QueueDeclare(queue="hers", exclusive=True), methods.QueueDeclareOk)
    async with http_user(broker, "ann:pw") as ann:
        assert [each["name"] for each in await ann.get("/users/ann/queues")] == ["hers"]
        heard = await ann.ask("GET", "/users/guest/queues")
        assert (heard.status, heard.json["reason"]) == (401, "User not authorised to access object")
    async with http_user(broker) as guest:
        assert await guest.get("/users/guest/queues") == []
        assert (await guest.ask("GET", "/users/nobody/queues")).status == 404
