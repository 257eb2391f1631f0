"""Users, permissions, virtual hosts, limits, policies and definitions over HTTP, against a running broker."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
import trio

from amqp10broker.api import calls
from amqp10broker.operations import policies
from amqp10broker.routing.exchange import Binding, Destination
from amqp10broker.runtime.admin.serving_node import ServingNode
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.http import http_connection
from tests.runtime.conftest import LogRecorder
from tests.support.declaring import bind, declare, remove
from tests.support.http_user import HttpUser, add_login, http_user
from tests.support.trioclient import running_broker

NOT_FOUND = {"error": "Object Not Found", "reason": "Not Found"}
SHA256 = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"


async def refusal(user: Any, method: str, path: str, body: Any = None, status: int = 400) -> str:
    heard = await user.ask(method, path, body)
    assert heard.status == status, heard
    assert isinstance(heard.json["reason"], str)
    return heard.json["reason"]


async def test_a_user_is_added_shown_changed_and_deleted(broker: Broker, user: HttpUser) -> None:
    body = {"password": "pw", "tags": "management,custom", "limits": {"max-channels": 5}}
    assert await user.put("/users/ann", body) == 201
    shown = await user.get("/users/ann")
    assert sorted(shown) == ["hashing_algorithm", "limits", "name", "password_hash", "tags"]
    assert (shown["name"], shown["tags"]) == ("ann", ["management", "custom"])
    assert shown["limits"] == {"max-channels": 5}
    assert shown["password_hash"] != "pw"
    assert [each["name"] for each in await user.get("/users")] == ["ann", "guest"]
    page = await user.get("/users?page=1&page_size=1")
    assert (page["total_count"], page["items"][0]["name"]) == (2, "ann")
    assert [each["name"] for each in await user.get("/users/without-permissions")] == ["ann"]
    async with http_user(broker, "ann:pw") as ann:
        assert (await ann.get("/whoami"))["name"] == "ann"
    assert await user.put("/users/ann", {"password_hash": SHA256, "tags": ["management"]}) == 204
    assert (await user.get("/users/ann"))["password_hash"] == SHA256
    sha512 = b64encode(bytes(68)).decode()
    assert await user.put("/users/ann", {"password_hash": sha512, "tags": ["management"]}) == 204
    assert (await user.get("/users/ann"))["hashing_algorithm"] == "rabbit_password_hashing_sha512"
    assert await user.delete("/users/ann") == 204
    assert (await user.ask("GET", "/users/ann")).json == NOT_FOUND
    assert (await user.ask("DELETE", "/users/ann")).status == 404


async def test_a_user_without_a_password_cannot_log_in_with_one() -> None:
    async with running_broker(auth_failure_delay_ms=0) as broker, http_user(broker) as user:
        assert await user.put("/users/ann", {"password_hash": "", "tags": "management"}) == 201
        assert await user.put("/users/bob", {"tags": "management"}) == 201
        for login in ("ann:", "bob:"):
            async with http_user(broker, login) as other:
                assert (await other.ask("GET", "/whoami")).status == 401


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"password": "pw"}, "tags_not_present"),
        ({"password": "pw", "password_hash": SHA256, "tags": ""}, "both_password_and_password_hash"),
        ({"password_hash": "%%%", "tags": ""}, "password_hash cannot be read"),
        ({"password": 7, "tags": ""}, "'password' must be a string"),
        ({"password": "pw", "tags": 7}, "must be a list of strings"),
        ({"password_hash": SHA256, "hashing_algorithm": "rot13", "tags": ""}, "must be one of"),
        ({"password": "pw", "tags": "", "limits": {"max-cats": 1}}, "there is no limit 'max-cats'"),
    ],
)
async def test_what_is_wrong_with_a_user_is_told(
    broker: Broker, user: HttpUser, body: Any, reason: str
) -> None:
    assert reason in await refusal(user, "PUT", "/users/ann", body)
    assert "ann" not in broker.catalog.users


async def test_several_users_are_deleted_at_once(broker: Broker, user: HttpUser) -> None:
    for name in ("a", "b", "c"):
        assert await user.put(f"/users/{name}", {"tags": ""}) == 201
    assert (await user.ask("POST", "/users/bulk-delete", {"users": ["a", "nobody", "b"]})).status == 204
    assert {each["name"] for each in await user.get("/users")} == {"c", "guest"}
    assert "array of names" in await refusal(user, "POST", "/users/bulk-delete", {"users": "c"})


async def test_permissions_are_set_listed_and_cleared(broker: Broker, user: HttpUser) -> None:
    await user.put("/users/ann", {"tags": "", "password": "pw"})
    patterns = {"configure": "^a", "write": ".*", "read": ""}
    assert await user.put("/permissions/%2F/ann", patterns) == 201
    assert await user.put("/permissions/%2F/ann", patterns) == 204
    row = {"user": "ann", "vhost": "/", **patterns}
    assert await user.get("/permissions/%2F/ann") == row
    assert await user.get("/users/ann/permissions") == [row]
    assert row in await user.get("/permissions")
    assert row in await user.get("/vhosts/%2F/permissions")
    assert await user.delete("/permissions/%2F/ann") == 204
    assert (await user.ask("GET", "/permissions/%2F/ann")).status == 404
    assert await user.delete("/permissions/%2F/ann") == 404
    missing = await refusal(user, "PUT", "/permissions/%2F/ann", {"configure": ""})
    assert "{key_missing,write}" in missing
    assert "{key_missing,read}" in missing
    unknown = {"configure": "", "write": "", "read": ""}
    for path in ("/permissions/nowhere/ann", "/permissions/%2F/nobody"):
        assert await refusal(user, "PUT", path, unknown) == "vhost_or_user_not_found"
    await refusal(user, "PUT", "/permissions/%2F/ann", {**unknown, "read": "("})
    assert (await user.ask("GET", "/users/nobody/permissions")).status == 404


async def test_topic_permissions_are_set_listed_and_cleared(broker: Broker, user: HttpUser) -> None:
    await user.put("/users/ann", {"tags": "", "password": "pw"})
    body = {"exchange": "amq.topic", "write": "^a", "read": "^b"}
    assert await user.put("/topic-permissions/%2F/ann", body) == 201
    assert await user.put("/topic-permissions/%2F/ann", body) == 204
    row = {"user": "ann", "vhost": "/", **body}
    for path in ("", "/%2F/ann"):
        assert await user.get(f"/topic-permissions{path}") == [row]
    assert await user.get("/topic-permissions/%2F/ann/amq.topic") == row
    assert await user.get("/users/ann/topic-permissions") == [row]
    assert await user.get("/vhosts/%2F/topic-permissions") == [row]
    wrong = {**body, "exchange": "nowhere"}
    assert "no exchange 'nowhere'" in await refusal(user, "PUT", "/topic-permissions/%2F/ann", wrong)
    assert await user.delete("/topic-permissions/%2F/ann/amq.topic") == 204
    assert await user.delete("/topic-permissions/%2F/ann/amq.topic") == 404
    assert await user.put("/topic-permissions/%2F/ann", body) == 201
    assert await user.delete("/topic-permissions/%2F/ann") == 204
    assert await user.get("/topic-permissions") == []
    for method in ("GET", "DELETE"):
        assert await refusal(user, method, "/topic-permissions/%2F/ann", status=404) == "Not Found"


async def test_a_virtual_host_is_added_shown_changed_and_deleted(broker: Broker, user: HttpUser) -> None:
    body = {"description": "of tests", "tags": "a,b", "default_queue_type": "quorum", "tracing": False}
    assert await user.put("/vhosts/v%2Fw", body) == 201
    shown = await user.get("/vhosts/v%2Fw")
    assert shown["name"] == "v/w"
    assert shown["description"] == "of tests"
    assert shown["tags"] == ["a", "b"]
    assert shown["default_queue_type"] == "quorum"
    assert shown["protected_from_deletion"] is False
    assert shown["cluster_state"] == {"broker": "running"}
    assert shown["metadata"] == {
        "description": "of tests",
        "tags": ["a", "b"],
        "default_queue_type": "quorum",
    }
    assert (await user.get("/permissions/v%2Fw/guest"))["configure"] == ".*", "its creator may use it"
    assert await user.put("/vhosts/v%2Fw", {"description": "other"}) == 204
    changed = await user.get("/vhosts/v%2Fw")
    assert (changed["description"], changed["tags"]) == ("other", ["a", "b"])
    assert [each["name"] for each in await user.get("/vhosts")] == ["/", "v/w"]
    assert "valid" in await refusal(user, "PUT", "/vhosts/x", {"default_queue_type": "foo"})
    assert (await user.ask("POST", "/vhosts/v%2Fw/start/broker")).status == 204
    assert "no node" in await refusal(user, "POST", "/vhosts/v%2Fw/start/other")
    assert await user.delete("/vhosts/v%2Fw") == 204
    assert (await user.ask("GET", "/vhosts/v%2Fw")).json == NOT_FOUND
    assert await user.delete("/vhosts/v%2Fw") == 404


async def test_a_protected_virtual_host_is_not_deleted(broker: Broker, user: HttpUser) -> None:
    assert await user.put("/vhosts/v", {"protected_from_deletion": True, "description": "d"}) == 201
    reason = await refusal(user, "DELETE", "/vhosts/v", status=412)
    assert "protected from deletion" in reason
    assert await user.delete("/vhosts/v/deletion/protection") == 204
    shown = await user.get("/vhosts/v")
    assert (shown["protected_from_deletion"], shown["description"]) == (False, "d")
    assert (await user.ask("POST", "/vhosts/v/deletion/protection")).status == 204
    assert (await user.ask("DELETE", "/vhosts/v")).status == 412
    assert await user.delete("/vhosts/v/deletion/protection") == 204
    assert await user.delete("/vhosts/v") == 204


async def test_limits_are_set_listed_and_lifted(broker: Broker, user: HttpUser) -> None:
    assert await user.put("/user-limits/guest/max-connections", {"value": 50}) == 204
    assert await user.get("/user-limits") == [{"user": "guest", "value": {"max-connections": 50}}]
    assert await user.get("/user-limits/guest") == [{"user": "guest", "value": {"max-connections": 50}}]
    assert await user.put("/vhost-limits/%2F/max-queues", {"value": "7"}) == 204
    assert await user.get("/vhost-limits/%2F") == [{"vhost": "/", "value": {"max-queues": 7}}]
    assert await user.get("/vhost-limits") == [{"vhost": "/", "value": {"max-queues": 7}}]
    for path in ("/user-limits/guest/max-cats", "/vhost-limits/%2F/max-cats"):
        assert "there is no limit 'max-cats'" in await refusal(user, "PUT", path, {"value": 1})
    wrong = await refusal(user, "PUT", "/user-limits/guest/max-channels", {"value": "many"})
    assert "whole number" in wrong
    for _ in range(2):
        assert await user.delete("/vhost-limits/%2F/max-queues") == 204
        assert await user.delete("/user-limits/guest/max-connections") == 204
    assert await user.get("/vhost-limits") == []
    assert (await user.ask("GET", "/user-limits/nobody")).status == 404


@pytest.mark.parametrize("kind", ["policies", "operator-policies"])
async def test_policies_are_set_listed_and_forgotten(broker: Broker, user: HttpUser, kind: str) -> None:
    body = {"pattern": "^a", "definition": {"max-length": 10}, "apply-to": "queues", "priority": "3"}
    assert await user.put(f"/{kind}/%2F/p", body) == 201
    assert await user.put(f"/{kind}/%2F/p", body) == 204
    row = {**body, "vhost": "/", "name": "p", "priority": 3}
    assert await user.get(f"/{kind}/%2F/p") == row
    assert await user.get(f"/{kind}") == [row]
    assert await user.get(f"/{kind}/%2F") == [row]
    wrong: list[tuple[Any, str]] = [
        ({"pattern": "x"}, "{key_missing,definition}"),
        ({"pattern": "(", "definition": {"max-length": 1}}, "Validation failed"),
        ({"pattern": "x", "definition": {}}, "Validation failed"),
        ({"pattern": "x", "definition": {"max-lenght": 1}}, "'max-lenght' is not recognised"),
        ({"pattern": "x", "definition": {"max-length": "a"}}, "Validation failed"),
        ({**body, "apply-to": "cats"}, "Validation failed"),
    ]
    for bad, reason in wrong:
        assert reason in await refusal(user, "PUT", f"/{kind}/%2F/q", bad)
    assert await user.delete(f"/{kind}/%2F/p") == 204
    assert await user.delete(f"/{kind}/%2F/p") == 404
    assert (await user.ask("GET", f"/{kind}/%2F/p")).status == 404


async def test_what_is_declared_goes_out_and_comes_back() -> None:
    async with running_broker() as broker, http_user(broker) as user:
        await user.put("/vhosts/v", {"description": "d"})
        await user.put("/queues/v/q", {"durable": True})
        await user.put("/policies/v/p", {"pattern": "q", "definition": {"max-length": 3}})
        heard = await user.ask("GET", "/definitions?download=all.json")
        assert heard.headers["content-disposition"] == "attachment; filename=all.json"
        document = heard.json
        assert document["rabbitmq_definition_format"] == "cluster"
        assert [each["name"] for each in document["queues"]] == ["q"]
        one = await user.get("/definitions/v")
        assert (one["rabbitmq_definition_format"], one["original_vhost_name"]) == ("single_virtual_host", "v")
        assert [sorted(each)[:2] for each in one["queues"]] == [["arguments", "auto_delete"]]
        assert all("vhost" not in each for part in ("queues", "policies") for each in one[part])
        assert (await user.ask("GET", "/definitions/nowhere")).status == 404
    async with running_broker() as broker, http_user(broker) as user:
        json_type = {"content_type": "application/json"}
        assert (await user.ask("POST", "/definitions", document, **json_type)).status == 204
        assert (await user.get("/queues/v/q"))["durable"] is True
        await user.put("/vhosts/w")
        assert (await user.ask("POST", "/definitions/w", one, **json_type)).status == 204
        assert (await user.get("/policies/w/p"))["definition"] == {"max-length": 3}
        assert (await user.get("/queues/w/q"))["durable"] is True
        assert (await user.ask("POST", "/definitions/nowhere", one, **json_type)).status == 404
        assert (await user.ask("POST", "/all-configuration", {}, **json_type)).status == 204
        assert (await user.ask("GET", "/all-configuration")).status == 200


@pytest.mark.parametrize("path", ["/definitions", "/definitions/%2F"])
async def test_long_definitions_are_made_in_steps_and_are_those_of_one_moment(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Other tasks run between steps, and their declarations and deletions make no difference."""
    monkeypatch.setattr(policies, "ENTRIES_AT_ONCE", 3)
    monkeypatch.setattr(calls, "PORTION", 3)
    monkeypatch.setattr(http_connection, "PIECE_BYTES", 100)
    async with running_broker() as broker, http_user(broker) as user:
        for number in range(8):
            declare(broker.catalog, "/", f"q{number}", durable=True)
            bind(broker.catalog, "/", Binding("amq.topic", Destination("queue", f"q{number}"), "k", {}))
        declare(broker.catalog, "/", "hers", exclusive_owner="her connection")
        bind(broker.catalog, "/", Binding("amq.topic", Destination("queue", "hers"), "k", {}))
        steps = 0

        async def pause(self: ServingNode, seconds: float) -> None:
            nonlocal steps
            steps += 1
            if steps == 1:
                remove(broker.catalog, "/", "q7")
                declare(broker.catalog, "/", "q8", durable=True)
            await trio.lowlevel.checkpoint()

        monkeypatch.setattr(ServingNode, "pause", pause)
        document = await user.get(path)
        names = [f"q{number}" for number in range(8)]
        assert [each["name"] for each in document["queues"]] == names
        assert [each["destination"] for each in document["bindings"]] == names
        # Queues and bindings in threes, that of the exclusive queue among these.
        assert steps == 3 + 3
        assert "q7" not in [each["name"] for each in (await user.get("/definitions"))["queues"]]
        assert sorted(await user.get("/definitions?columns=queues,rabbit_version")) == [
            "queues",
            "rabbit_version",
        ]


async def test_definitions_come_as_a_file_of_a_form(broker: Broker, user: HttpUser) -> None:
    document = json.dumps({"vhosts": [{"name": "v"}]})
    form = (
        '--b\r\ncontent-disposition: form-data; name="mode"\r\n\r\nupload\r\n'
        '--b\r\ncontent-disposition: form-data; name="file"; filename="d.json"\r\n'
        f"content-type: application/json\r\n\r\n{document}\r\n--b--\r\n"
    ).encode()
    kind = "multipart/form-data; boundary=b"
    assert (await user.ask("POST", "/definitions", form, content_type=kind)).status == 204
    assert broker.catalog.vhosts.get("v") is not None
    other = await user.ask("POST", "/definitions", b"--b--\r\n", content_type=kind)
    assert (other.status, other.json["reason"]) == (400, "the form has no field 'file'")


async def test_an_empty_type_of_queue_is_none(broker: Broker, user: HttpUser) -> None:
    """A Go client sends back the value that it has read."""
    vhosts = [{"name": "v", "default_queue_type": ""}, {"name": "w", "metadata": {"default_queue_type": ""}}]
    heard = await user.ask("POST", "/definitions", {"vhosts": vhosts}, content_type="application/json")
    assert heard.status == 204
    assert await user.put("/vhosts/x", {"default_queue_type": ""}) == 201
    assert (await user.get("/vhosts/x"))["default_queue_type"] == "classic"


async def test_what_is_wrong_with_definitions_is_told(broker: Broker, user: HttpUser) -> None:
    assert (await user.ask("POST", "/definitions", b"{}", content_type="text/plain")).status == 415
    kind = {"content_type": "application/json"}
    heard = await user.ask("POST", "/definitions", b"{", **kind)
    assert (heard.status, heard.json["reason"]) == (400, "failed_to_parse_json")
    permissions = {"permissions": [{"user": "guest", "vhost": "nowhere"}]}
    heard = await user.ask("POST", "/definitions", permissions, **kind)
    assert heard.status == 400
    assert "permissions[0]" in heard.json["reason"]


@pytest.mark.parametrize("path", ["/definitions", "/definitions/%2F"])
async def test_a_binding_without_its_exchange_is_left_out_and_named(log: LogRecorder, path: str) -> None:
    """RabbitMQ exports the bindings of internal exchanges, but not the exchanges."""
    ends = {"vhost": "/", "destination": "q", "destination_type": "queue", "routing_key": "", "arguments": {}}
    document = {
        "queues": [{"name": "q", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}],
        "bindings": [{"source": "inner", **ends}, {"source": "amq.fanout", **ends}],
    }
    reason = "definitions: bindings[0] (inner to q): no exchange 'inner' in vhost '/'"
    async with running_broker() as broker, http_user(broker) as user:
        heard = await user.ask("POST", path, document, content_type="application/json")
        assert (heard.status, heard.json["skipped"]) == (200, [reason])
        assert (heard.json["loaded"]["queues"], heard.json["loaded"]["bindings"]) == (1, 1)
        sources = [each["source"] for each in await user.get("/queues/%2F/q/bindings")]
        assert sources == ["", "amq.fanout"]
        told = [("left out of the definitions", {"reason": reason})]
        assert log.of("warning") == told
        del document["bindings"][0]
        heard = await user.ask("POST", path, document, content_type="application/json")
        assert heard.status == 204
        assert log.of("warning") == told


async def test_parameters_are_shown_and_those_of_plugins_refused(broker: Broker, user: HttpUser) -> None:
    await user.put("/vhost-limits/%2F/max-queues", {"value": 7})
    row = {"vhost": "/", "component": "vhost-limits", "name": "limits", "value": {"max-queues": 7}}
    for path in ("", "/vhost-limits", "/vhost-limits/%2F"):
        assert await user.get(f"/parameters{path}") == [row]
    assert await user.get("/parameters/vhost-limits/%2F/limits") == row
    assert await user.get("/parameters/shovel") == []
    assert (await user.ask("GET", "/parameters/shovel/%2F/s")).status == 404
    assert "no plugins" in await refusal(user, "PUT", "/parameters/shovel/%2F/s", {"value": {}})


async def test_global_parameters_are_kept_and_forgotten(broker: Broker, user: HttpUser) -> None:
    assert await user.put("/global-parameters/mqtt", {"value": {"a": [1, None]}}) == 201
    assert await user.put("/global-parameters/mqtt", {"value": {"a": [1, None]}}) == 204
    row = {"name": "mqtt", "value": {"a": [1, None]}}
    assert await user.get("/global-parameters/mqtt") == row
    names = [each["name"] for each in await user.get("/global-parameters")]
    assert names == ["cluster_tags", "internal_cluster_id", "mqtt"]
    tags = {"region": "north"}
    assert await user.put("/global-parameters/cluster_tags", {"value": tags}) == 204
    assert (await user.get("/global-parameters/cluster_tags"))["value"] == tags
    assert (await user.get("/overview"))["cluster_tags"] == tags
    row = {"name": "cluster_tags", "value": tags}
    assert row in (await user.get("/definitions"))["global_parameters"]
    assert await user.delete("/global-parameters/cluster_tags") == 204
    assert (await user.ask("GET", "/global-parameters/cluster_tags")).status == 404
    assert row not in await user.get("/global-parameters")
    assert "{key_missing,value}" in await refusal(user, "PUT", "/global-parameters/x", {})
    assert await user.delete("/global-parameters/mqtt") == 204
    assert await user.delete("/global-parameters/mqtt") == 404
    assert (await user.ask("GET", "/global-parameters/mqtt")).status == 404


async def test_one_node_alone_has_the_cluster_name_that_it_is_given(broker: Broker, user: HttpUser) -> None:
    assert await user.put("/cluster-name", {"name": "shop"}) == 204
    assert await user.get("/cluster-name") == {"name": "shop"}
    assert (await user.get("/overview"))["cluster_name"] == "shop"
    row = {"name": "cluster_name", "value": "shop"}
    assert await user.get("/global-parameters/cluster_name") == row
    assert row in (await user.get("/definitions"))["global_parameters"]
    assert await user.put("/global-parameters/cluster_name", {"value": "store"}) == 204
    assert await user.get("/cluster-name") == {"name": "store"}
    assert "must be a string" in await refusal(user, "PUT", "/global-parameters/cluster_name", {"value": 1})


async def test_what_is_not_here_is_an_empty_list(broker: Broker, user: HttpUser) -> None:
    for path in (
        *("/shovels", "/shovels/%2F", "/federation-links", "/federation-links/%2F", "/stream/connections"),
        *("/stream/connections/%2F", "/stream/publishers", "/stream/publishers/%2F"),
        *("/stream/publishers/%2F/q", "/stream/consumers", "/stream/consumers/%2F"),
    ):
        assert await user.get(path) == [], path
    assert (await user.ask("GET", "/shovels/nowhere")).status == 404


async def test_what_is_not_here_cannot_be_changed(broker: Broker, user: HttpUser) -> None:
    assert "no feature flag 'x'" in await refusal(user, "PUT", "/feature-flags/x/enable", {})
    for method in ("GET", "DELETE"):
        assert (await user.ask(method, "/stream/connections/%2F/c")).json == NOT_FOUND
    for part in ("publishers", "consumers"):
        assert (await user.ask("GET", f"/stream/connections/%2F/c/{part}")).json == NOT_FOUND
    assert (await user.ask("DELETE", "/parameters/shovel/%2F/s")).json == NOT_FOUND
    assert (await user.ask("DELETE", "/parameters/shovel/nowhere/s")).status == 404
    policy = {"pattern": ".*", "definition": {"expires": 1000}}
    assert await user.put("/operator-policies/%2F/p", policy) == 201
    reason = await refusal(user, "DELETE", "/parameters/operator_policy/%2F/p")
    assert "/operator-policies" in reason
    assert await user.get("/operator-policies") != []


async def test_limits_of_a_virtual_host_are_a_parameter_too() -> None:
    path = "/parameters/vhost-limits/%2F/limits"
    async with running_broker() as broker, http_user(broker) as user:
        assert await user.put(path, {"value": {"max-queues": 7}}) == 201
        assert await user.put(path, {"value": {"max-connections": 9}}) == 204
        assert (await user.get(path))["value"] == {"max-connections": 9}
        assert await user.get("/vhost-limits") == [{"vhost": "/", "value": {"max-connections": 9}}]
        assert "max-foo" in await refusal(user, "PUT", path, {"value": {"max-foo": 1}})
        assert "{key_missing,value}" in await refusal(user, "PUT", path, {})
        add_login(broker, "pol:pw", "policymaker", vhosts=["/"])
        async with http_user(broker, "pol:pw") as other:
            told = await refusal(other, "PUT", path, {"value": {"max-queues": 1}}, status=401)
            assert told == "Not administrator user"
            assert await refusal(other, "DELETE", path, status=401) == told
        assert await user.delete(path) == 204
        assert await user.get("/vhost-limits") == []
        assert await user.delete(path) == 404


async def test_what_definitions_say_for_a_plugin_can_be_forgotten() -> None:
    shovel = {"component": "shovel", "vhost": "/", "name": "s", "value": {"src-uri": "amqp://"}}
    async with running_broker() as broker, http_user(broker) as user:
        json = {"content_type": "application/json"}
        heard = await user.ask("POST", "/definitions", {"parameters": [shovel]}, **json)
        assert heard.status == 204
        assert await user.get("/parameters/shovel/%2F/s") == shovel
        assert await user.delete("/parameters/shovel/%2F/s") == 204
        assert await user.get("/parameters") == []
        assert await user.delete("/parameters/shovel/%2F/s") == 404


async def test_features_of_rabbitmq_are_on(broker: Broker, user: HttpUser) -> None:
    flags = await user.get("/feature-flags")
    assert {flag["state"] for flag in flags} == {"enabled"}
    names = {flag["name"] for flag in flags}
    assert {"detailed_queues_endpoint", "quorum_queue", "stream_queue", "rabbitmq_4.3.0"} <= names
    assert "khepri_db" not in names
    assert await user.put("/feature-flags/quorum_queue/enable") == 204


async def test_deprecated_features_are_told_and_whether_one_is_in_use() -> None:
    async with running_broker(permit_global_qos=False) as broker, http_user(broker) as user:
        told = {each["name"]: each["state"] for each in await user.get("/deprecated-features")}
        transient = "transient_nonexcl_queues"
        permitted = dict.fromkeys(("amqp_address_v1", "queue_master_locator", transient), "permitted")
        assert told == {"global_qos": "denied", **permitted}
        assert await user.put("/queues/%2F/kept", {"durable": True}) == 201
        assert await user.get("/deprecated-features/used") == []
        assert await user.put("/queues/%2F/q", {}) == 201
        assert [each["name"] for each in await user.get("/deprecated-features/used")] == [transient]
    async with running_broker(permit_global_qos=True) as broker, http_user(broker) as user:
        told = {each["name"]: each["state"] for each in await user.get("/deprecated-features")}
        assert told["global_qos"] == "permitted"


async def test_a_password_is_hashed_as_users_take_it(broker: Broker, user: HttpUser) -> None:
    hashed = (await user.get("/auth/hash_password/p%2Fw"))["ok"]
    assert await user.put("/users/ann", {"password_hash": hashed, "tags": "management"}) == 201
    async with http_user(broker, "ann:p/w") as ann:
        assert (await ann.get("/whoami"))["name"] == "ann"


# --- rights ---------------------------------------------------------------------------------------

_ALL = ("management", "policymaker", "monitoring", "administrator")
_MATRIX: list[tuple[str, str, Any, tuple[str, ...]]] = [
    ("GET", "/vhosts", None, _ALL),
    ("GET", "/policies", None, _ALL),
    ("GET", "/policies/%2F", None, _ALL),
    ("GET", "/operator-policies", None, _ALL),
    ("GET", "/vhost-limits", None, _ALL),
    ("GET", "/vhosts/%2F", None, ("administrator",)),
    ("GET", "/users", None, ("administrator",)),
    ("GET", "/users/guest", None, ("administrator",)),
    ("GET", "/permissions", None, ("administrator",)),
    ("GET", "/users/guest/permissions", None, ("administrator",)),
    ("GET", "/user-limits", None, ("administrator",)),
    ("GET", "/definitions", None, ("administrator",)),
    ("GET", "/definitions/%2F", None, ("administrator",)),
    ("GET", "/parameters", None, _ALL[1:2] + _ALL[3:]),
    ("GET", "/global-parameters", None, _ALL[1:2] + _ALL[3:]),
    ("PUT", "/global-parameters/new", {"value": 1}, _ALL[3:]),
    ("DELETE", "/global-parameters/nowhere", None, _ALL[3:]),
    ("GET", "/auth/hash_password/pw", None, _ALL[3:]),
    ("GET", "/auth/attempts/broker", None, _ALL[2:]),
    ("DELETE", "/auth/attempts/broker", None, _ALL[3:]),
    ("GET", "/config/effective", None, _ALL[3:]),
    ("GET", "/feature-flags", None, _ALL),
    ("GET", "/cluster-name", None, _ALL),
    ("DELETE", "/reset", None, _ALL[3:]),
    ("PUT", "/policies/%2F/p", {"pattern": "a", "definition": {"max-length": 1}}, _ALL[1:2] + _ALL[3:]),
    ("DELETE", "/policies/%2F/nowhere", None, _ALL[1:2] + _ALL[3:]),
    ("PUT", "/operator-policies/%2F/p", {"pattern": "a", "definition": {"max-length": 1}}, _ALL[3:]),
    ("PUT", "/vhost-limits/%2F/max-queues", {"value": 9}, _ALL[3:]),
    ("PUT", "/users/new", {"tags": ""}, _ALL[3:]),
    ("PUT", "/vhosts/new", {}, _ALL[3:]),
]


async def test_each_tag_may_what_it_may(broker: Broker) -> None:
    for tag in _ALL:
        add_login(broker, f"{tag}:pw", tag, vhosts=["/"])
        async with http_user(broker, f"{tag}:pw") as user:
            for method, path, body, may in _MATRIX:
                heard = await user.ask(method, path, body)
                assert (heard.status == 401) is (tag not in may), (tag, method, path, heard)


async def test_virtual_hosts_of_others_are_not_there(broker: Broker) -> None:
    """Monitoring users see that they exist; their objects need access to the virtual host."""
    add_login(broker, "ann:pw", "policymaker")
    add_login(broker, "mon:pw", "monitoring")
    async with http_user(broker, "ann:pw") as ann:
        assert await ann.get("/vhosts") == []
        assert await ann.get("/policies") == []
        heard = await ann.ask("GET", "/policies/%2F")
        assert (heard.status, heard.json) == (404, {"error": "not_found", "reason": "Not Found"})
        body = {"pattern": "a", "definition": {"max-length": 1}}
        assert await ann.put("/policies/%2F/p", body) == 404
    async with http_user(broker, "mon:pw") as mon:
        assert [each["name"] for each in await mon.get("/vhosts")] == ["/"]
        assert (await mon.ask("GET", "/vhost-limits/%2F")).status == 404
