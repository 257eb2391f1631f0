"""What is declared goes to a real RabbitMQ, if one is given, and comes back: every kind of thing, passwords.

Run by hand, with the address of RabbitMQ's HTTP API and an administrator of it; a virtual host and users of
these names are made there, and deleted in the end::

    AMQP10BROKER_RABBITMQ_API=http://guest:guest@127.0.0.1:15672 pytest tests/integration/test_way_back.py
"""

from __future__ import annotations

import base64
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from tests.support.broker_process import BrokerProcess, StartBroker

RABBITMQ = os.environ.get("AMQP10BROKER_RABBITMQ_API")
VHOST = "way-back"
USERS = ("way-back-ann", "way-back-bob")
PASSWORD = "ann's password"
SECTIONS = (
    *("users", "vhosts", "permissions", "topic_permissions", "parameters", "policies"),
    *("exchanges", "queues", "bindings"),
)

pytestmark = pytest.mark.skipif(
    RABBITMQ is None, reason="AMQP10BROKER_RABBITMQ_API is not set: there is no RabbitMQ to go back to"
)


class Api:
    """The HTTP API of either broker."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._base = f"http://{parts.hostname}:{parts.port}/api"
        self._login = f"{parts.username}:{parts.password}"

    def ask(self, method: str, path: str, body: Any = None, *, login: str | None = None) -> tuple[int, Any]:
        request = urllib.request.Request(self._base + path, method=method)
        request.add_header(
            "authorization", "Basic " + base64.b64encode((login or self._login).encode()).decode()
        )
        request.add_header("content-type", "application/json")
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(request, data, timeout=60) as response:
                text = response.read()
                return response.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            text = error.read()
            return error.code, json.loads(text) if text else None

    def do(self, method: str, path: str, body: Any = None) -> Any:
        status, answer = self.ask(method, path, body)
        assert status < 300, (method, path, status, answer)
        return answer

    def ours(self) -> dict[str, list[Any]]:
        """Select this test's definitions, since the RabbitMQ may be shared."""
        document = self.do("GET", "/definitions")

        def is_ours(section: str, entry: dict[str, Any]) -> bool:
            if section == "users":
                return entry["name"] in USERS
            vhost = entry["name"] if section == "vhosts" else entry["vhost"]
            return vhost == VHOST and entry.get("user", USERS[0]) in USERS

        return {
            section: [each for each in document[section] if is_ours(section, each)] for section in SECTIONS
        }

    def forget(self) -> None:
        self.ask("DELETE", f"/vhosts/{VHOST}")
        for user in USERS:
            self.ask("DELETE", f"/users/{user}")


@pytest.fixture
def rabbitmq() -> Iterator[Api]:
    api = Api(RABBITMQ or "")
    api.forget()
    yield api
    api.forget()


def started(start_broker: StartBroker, *options: str) -> Api:
    broker: BrokerProcess = start_broker("--http-port", "0", *options)
    address = str(broker.wait_for_log("HTTP API")["address"])
    return Api(f"http://guest:guest@127.0.0.1:{address.rstrip('/').rpartition(':')[2]}")


def declare_everything(api: Api) -> None:
    api.do("PUT", f"/vhosts/{VHOST}", {"description": "d", "tags": "a,b", "default_queue_type": "quorum"})
    api.do("PUT", f"/users/{USERS[0]}", {"password": PASSWORD, "tags": "administrator,monitoring"})
    for limit in ("max-connections", "max-channels"):
        api.do("PUT", f"/user-limits/{USERS[0]}/{limit}", {"value": 7})
    for limit in ("max-connections", "max-queues"):
        api.do("PUT", f"/vhost-limits/{VHOST}/{limit}", {"value": 50})
    rights = {"configure": "^a", "write": ".*", "read": ""}
    api.do("PUT", f"/permissions/{VHOST}/guest", dict.fromkeys(rights, ".*"))
    api.do("PUT", f"/permissions/{VHOST}/{USERS[0]}", rights)
    policy = {"pattern": "^a", "priority": 3, "definition": {"max-length": 10}}
    for place in ("queues", "classic_queues", "quorum_queues"):
        api.do("PUT", f"/policies/{VHOST}/{place}", policy | {"apply-to": place})
    ages = {**policy, "definition": {"max-age": "7D"}, "apply-to": "streams"}
    api.do("PUT", f"/policies/{VHOST}/streams", ages)
    alternate = {"pattern": "x", "definition": {"alternate-exchange": "dead"}, "apply-to": "exchanges"}
    api.do("PUT", f"/policies/{VHOST}/alternate", alternate)
    operator = {"pattern": "q", "definition": {"max-length-bytes": 9}, "apply-to": "queues"}
    api.do("PUT", f"/operator-policies/{VHOST}/bounds", operator)
    exchanges: dict[str, Any] = {
        "dead": {"type": "fanout"},
        "topics": {"type": "topic", "arguments": {"alternate-exchange": "dead"}},
        "heads": {"type": "headers"},
        "short": {"type": "direct", "auto_delete": True},
        "näme/with %": {"type": "direct"},
        "here": {"type": "x-local-random"},
    }
    for name, given in exchanges.items():
        api.do("PUT", f"/exchanges/{VHOST}/{quote(name, safe='')}", {"durable": True, **given})
    topic_rights = {"exchange": "topics", "write": "^a", "read": "b"}
    api.do("PUT", f"/topic-permissions/{VHOST}/{USERS[0]}", topic_rights)
    queues: dict[str, Any] = {
        "classic": {"x-max-priority": 5, "x-message-ttl": 1000, "x-dead-letter-exchange": "dead"},
        "alone": {"x-single-active-consumer": True, "x-overflow": "reject-publish-dlx"},
        "quorum": {"x-queue-type": "quorum", "x-delivery-limit": 4, "x-expires": 100_000},
        "stream": {"x-queue-type": "stream", "x-max-age": "1D", "x-stream-max-segment-size-bytes": 1_000_000},
        "wärteschlange": {},
    }
    for name, arguments in queues.items():
        given = {"x-queue-type": "classic", **arguments}
        api.do("PUT", f"/queues/{VHOST}/{quote(name)}", {"durable": True, "arguments": given})
    bindings = [
        ("topics", "q", "quorum", "a.#", {}),
        ("topics", "e", "heads", "b.*", {}),
        ("heads", "q", "classic", "", {"x-match": "all-with-x", "x-n": 1, "s": "ä", "b": True, "f": 1.5}),
        ("dead", "q", "stream", "", {}),
        ("short", "q", "wärteschlange", "key with ~ and /", {}),
        ("amq.direct", "q", "alone", "k", {}),
    ]
    for source, kind, destination, key, arguments in bindings:
        path = f"/bindings/{VHOST}/e/{source}/{kind}/{quote(destination)}"
        api.do("POST", path, {"routing_key": key, "arguments": arguments})


def logs_in(api: Api) -> bool:
    return api.ask("GET", "/whoami", login=f"{USERS[0]}:{PASSWORD}")[0] == 200


def comparable(document: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Values of the same meaning at both get the same form."""
    left_out = {
        "users": ("scram_sha_256", "argon2id"),
        "vhosts": ("description", "tags", "default_queue_type"),
    }
    return {
        section: sorted(
            (
                {key: value for key, value in each.items() if key not in left_out.get(section, ())}
                | ({"internal": each.get("internal", False)} if section == "exchanges" else {})
                for each in entries
            ),
            key=lambda each: json.dumps(each, sort_keys=True),
        )
        for section, entries in document.items()
    }


def test_everything_goes_to_rabbitmq_and_comes_back(start_broker: StartBroker, rabbitmq: Api) -> None:
    here = started(start_broker, "--password-hash-export", "sha256")
    declare_everything(here)
    written = here.ours()
    assert rabbitmq.ask("POST", "/definitions", written) == (204, None)
    there = rabbitmq.ours()
    assert comparable(there) == comparable(written)
    assert logs_in(rabbitmq)
    back = started(start_broker)
    assert back.ask("POST", "/definitions", there) == (204, None)
    assert comparable(back.ours()) == comparable(written)
    assert logs_in(back)


def test_rabbitmqs_own_comes_to_us_and_goes_back(start_broker: StartBroker, rabbitmq: Api) -> None:
    """Its export leaves out the internal exchange of a binding, which is named."""
    declare_everything(rabbitmq)
    rabbitmq.do("PUT", f"/exchanges/{VHOST}/inner", {"type": "fanout", "durable": True, "internal": True})
    rabbitmq.do("POST", f"/bindings/{VHOST}/e/inner/q/quorum", {"routing_key": ""})
    there = rabbitmq.ours()
    here = started(start_broker)
    status, answer = here.ask("POST", "/definitions", there)
    assert status == 200
    (left_out,) = answer["skipped"]
    assert left_out.endswith(f"(inner to quorum): no exchange 'inner' in vhost '{VHOST}'")
    written = here.ours()
    there["bindings"] = [each for each in there["bindings"] if each["source"] != "inner"]
    assert comparable(written) == comparable(there)
    assert logs_in(here)
    rabbitmq.forget()
    assert rabbitmq.ask("POST", "/definitions", written) == (204, None)
    assert comparable(rabbitmq.ours()) == comparable(there)
    assert logs_in(rabbitmq)


def test_a_user_whose_password_rabbitmq_cannot_read_is_taken_without(
    start_broker: StartBroker, rabbitmq: Api
) -> None:
    here = started(start_broker)
    here.do("PUT", f"/users/{USERS[1]}", {"password": PASSWORD, "tags": "management"})
    document = here.do("GET", "/definitions")
    assert document["explanation"].startswith(f"RabbitMQ gives no password to {USERS[1]}: ")
    users = [each for each in document["users"] if each["name"] == USERS[1]]
    assert rabbitmq.ask("POST", "/definitions", {"users": users}) == (204, None)
    assert rabbitmq.do("GET", f"/users/{USERS[1]}")["password_hash"] == ""
