"""Exchanges and bindings over HTTP, against a running broker."""

from __future__ import annotations

from typing import Any

from amqp10broker.runtime.broker import Broker
from tests.support.declaring import declare, declare_exchange
from tests.support.http_user import HttpUser

ACCESS_REFUSED = {"error": "not_authorised", "reason": "Access refused."}
NOT_FOUND = {"error": "Object Not Found", "reason": "Not Found"}
BUILT_IN = [
    *("", "amq.direct", "amq.fanout", "amq.headers", "amq.match"),
    *("amq.rabbitmq.trace", "amq.topic"),
]


async def named(user: HttpUser, path: str, *keys: str) -> list[Any]:
    return [tuple(each[key] for key in keys) for each in await user.get(path)]


async def test_an_exchange_is_declared_shown_and_deleted(broker: Broker, user: HttpUser) -> None:
    body = {"type": "topic", "durable": True, "arguments": {"alternate-exchange": "amq.fanout"}}
    assert await user.put("/exchanges/%2F/e", body) == 201
    assert await user.put("/exchanges/%2F/e", body) == 204
    assert await user.get("/exchanges/%2F/e") == {
        "name": "e",
        "vhost": "/",
        "type": "topic",
        "durable": True,
        "auto_delete": False,
        "internal": False,
        "arguments": {"alternate-exchange": "amq.fanout"},
        "incoming": [],
        "outgoing": [],
    }
    assert await user.put("/exchanges/%2F/usual", {}) == 201
    usual = await user.get("/exchanges/%2F/usual?disable_stats=true&columns=type,durable,internal,incoming")
    assert usual == {"type": "direct", "durable": False, "internal": False}
    assert await user.delete("/exchanges/%2F/e") == 204
    heard = await user.ask("DELETE", "/exchanges/%2F/e")
    assert (heard.status, heard.json) == (404, NOT_FOUND)


async def test_exchanges_are_listed_in_pages_with_those_that_are_always_there(
    broker: Broker, user: HttpUser
) -> None:
    assert [name for (name,) in await named(user, "/exchanges", "name")] == BUILT_IN
    assert await named(user, "/exchanges/%2F", "vhost", "name") == [
        ("/", each["name"]) for each in await user.get("/exchanges")
    ]
    page = await user.get("/exchanges?page=1&page_size=2&name=amq.&sort=name&sort_reverse=true")
    assert [each["name"] for each in page["items"]] == ["amq.topic", "amq.rabbitmq.trace"]
    assert (await user.get("/exchanges/%2F/amq.default"))["name"] == ""


async def test_what_cannot_be_done_to_an_exchange_is_told(broker: Broker, user: HttpUser) -> None:
    declare_exchange(broker.catalog, "/", "e", "fanout")
    declare(broker.catalog, "/", "q")
    assert (await user.ask("POST", "/bindings/%2F/e/e/q/q", {})).status == 201
    differs = (
        "inequivalent arg 'type' for exchange 'e' in vhost '/': received 'direct' but current is 'fanout'"
    )
    for method, path, body, reason in (
        ("DELETE", "/exchanges/%2F/e?if-unused=true", None, "exchange 'e' in vhost '/' in use"),
        ("PUT", "/exchanges/%2F/x", {"type": "odd"}, "unknown exchange type 'odd'"),
        ("PUT", "/exchanges/%2F/x", {"type": 3}, "'type' must be a string"),
        ("PUT", "/exchanges/%2F/e", {"type": "direct", "durable": True}, differs),
    ):
        heard = await user.ask(method, path, body)
        assert (heard.status, heard.json) == (400, {"error": "bad_request", "reason": reason})
    for method, path in (
        ("PUT", "/exchanges/%2F/amq.mine"),
        ("DELETE", "/exchanges/%2F/amq.direct"),
        ("DELETE", "/exchanges/%2F/amq.default"),
    ):
        heard = await user.ask(method, path, {})
        assert (heard.status, heard.json) == (401, ACCESS_REFUSED), path


async def test_a_binding_is_made_found_by_its_location_and_undone(broker: Broker, user: HttpUser) -> None:
    declare_exchange(broker.catalog, "/", "e", "topic")
    declare(broker.catalog, "/", "a/b")
    between = "/bindings/%2F/e/e/q/a%2Fb"
    body = {"routing_key": "order.#", "arguments": {"x": 1}}
    for _ in range(2):
        heard = await user.ask("POST", between, body)
        assert (heard.status, heard.body) == (201, b"")
    location = heard.headers["location"]
    assert location.startswith("a%2Fb/order.%2523~")
    await user.ask("POST", between, {"routing_key": "other"})
    made = await user.get(f"/bindings/%2F/e/e/q/{location}")
    assert made == {
        "source": "e",
        "vhost": "/",
        "destination": "a/b",
        "destination_type": "queue",
        "routing_key": "order.#",
        "arguments": {"x": 1},
        "properties_key": made["properties_key"],
    }
    assert [key for (key,) in await named(user, between, "routing_key")] == ["order.#", "other"]
    assert await user.delete(f"/bindings/%2F/e/e/q/{location}") == 204
    heard = await user.ask("DELETE", f"/bindings/%2F/e/e/q/{location}")
    assert (heard.status, heard.json) == (404, NOT_FOUND)
    assert [key for (key,) in await named(user, between, "routing_key")] == ["other"]


async def test_a_key_that_a_client_did_not_encode_once_more_is_found_too(
    broker: Broker, user: HttpUser
) -> None:
    declare(broker.catalog, "/", "q")
    between = "/bindings/%2F/e/amq.topic/q/q"
    for key in ("a.#", "", "~"):
        await user.ask("POST", between, {"routing_key": key})
    (one, none, tilde) = [key for (key,) in await named(user, between, "properties_key")]
    assert (one, none, tilde) == ("a.%23", "~", "%7E")
    assert await user.delete(f"{between}/{one}") == 204
    assert await user.delete(f"{between}/{none}") == 204
    assert await named(user, between, "routing_key") == [("~",)]


async def test_exchanges_are_bound_to_each_other(broker: Broker, user: HttpUser) -> None:
    declare_exchange(broker.catalog, "/", "from")
    declare_exchange(broker.catalog, "/", "to")
    heard = await user.ask("POST", "/bindings/%2F/e/from/e/to", {})
    assert (heard.status, heard.headers["location"]) == (201, "to/~")
    ends = ("source", "destination", "destination_type", "properties_key")
    made = [("from", "to", "exchange", "~")]
    assert await named(user, "/bindings/%2F/e/from/e/to", *ends) == made
    assert await named(user, "/exchanges/%2F/from/bindings/source", *ends) == made
    assert await named(user, "/exchanges/%2F/to/bindings/destination", *ends) == made
    assert await user.get("/exchanges/%2F/to/bindings/source") == []
    assert (await user.get("/bindings/%2F/e/from/e/to/~"))["arguments"] == {}
    assert await user.delete("/bindings/%2F/e/from/e/to/~") == 204


async def test_every_queue_is_bound_to_the_default_exchange(broker: Broker, user: HttpUser) -> None:
    declare(broker.catalog, "/", "q")
    default = [("", "q", "q")]
    keys = ("source", "destination", "properties_key")
    for path in (
        *("/bindings", "/bindings/%2F?page=1&page_size=7", "/queues/%2F/q/bindings"),
        *("/exchanges/%2F/amq.default/bindings/source", "/bindings/%2F/e/amq.default/q/q"),
    ):
        assert await named(user, path, *keys) == default, path
    heard = await user.ask("DELETE", "/bindings/%2F/e/amq.default/q/q/q")
    assert (heard.status, heard.json) == (401, ACCESS_REFUSED)
    assert (await user.ask("POST", "/bindings/%2F/e/amq.default/q/q", {})).status == 401


async def test_what_is_not_there_has_no_bindings(broker: Broker, user: HttpUser) -> None:
    """It is no error, as in RabbitMQ, but it is one in a virtual host that the user does not see."""
    declare(broker.catalog, "/", "q")
    for path in (
        *("/exchanges/%2F/none/bindings/source", "/exchanges/%2F/none/bindings/destination"),
        *("/exchanges/%2F/amq.default/bindings/destination", "/queues/%2F/none/bindings"),
        *("/bindings/%2F/e/none/q/none", "/bindings/%2F/e/none/e/none", "/bindings/%2F/e/none/q/q"),
        *("/bindings/%2F/e/amq.topic/q/none", "/bindings/%2F/e/amq.topic/e/none"),
    ):
        assert await user.get(path) == [], path
    for path in ("/bindings/%2F/e/amq.topic/q/none/k", "/bindings/nowhere/e/amq.topic/q/none"):
        heard = await user.ask("GET", path)
        assert heard.status == 404, path
    assert await user.delete("/bindings/%2F/e/amq.topic/q/none/k") == 404
