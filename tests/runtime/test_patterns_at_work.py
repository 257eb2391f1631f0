"""Patterns of permissions and policies: no client's name makes a search long, and none stops a start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from amqp10broker.metadata.users import TopicPermission
from amqp10broker.protocols.amqp091.methods import ChannelClose, ConnectionClose, ConnectionCloseOk
from amqp10broker.runtime.broker import Broker
from tests.runtime.conftest import LogRecorder
from tests.support.admin_requests import ask
from tests.support.declaring import set_topic_permission
from tests.support.trioclient import quiet_config, running_broker
from tests.support.trioclient091 import connect091

MANY_WAYS = "^([a-z]+\\.?)+$"
HOPELESS = "^(.*)-(.*)-\\1$"


async def test_a_routing_key_with_many_ways_through_a_permission_is_answered(broker: Broker) -> None:
    """3.7 seconds for a letter less of it, twice as long for each one more, when `re` searched for it."""
    await ask(broker, "set-topic-permissions", user="guest", exchange="amq.topic", write=MANY_WAYS, read=".*")
    client = await connect091(broker).open()
    await client.publish("amq.topic", "a" * 250, b"allowed")
    await client.publish("amq.topic", "a" * 250 + "!", b"not allowed")
    close = await client.expect(ChannelClose)
    assert close.reply_code == 403


async def test_a_queue_with_many_ways_through_a_policy_is_declared(broker: Broker) -> None:
    """A client chooses the queue's name, an administrator the pattern."""
    await ask(
        broker, "set-policy", name="p", pattern=MANY_WAYS, definition={"max-length": 5}, priority=0,
        apply_to="all",
    )  # fmt: skip
    for name in ("a" * 250, "a" * 250 + "!"):
        await ask(broker, "declare-queue", name=name)
    vhost = broker.catalog.lookup_vhost("/")
    assert [vhost.lookup(name).effective.policy for name in ("a" * 250, "a" * 250 + "!")] == ["p", None]


def old_definitions() -> dict[str, Any]:
    """An older broker accepted these: each kind of pattern, with unbounded search time."""
    return {
        "users": [{"name": "u", "password": "secret", "tags": []}],
        "vhosts": [{"name": "/"}],
        "permissions": [{"user": "u", "vhost": "/", "configure": HOPELESS, "write": ".*", "read": ".*"}],
        "topic_permissions": [
            {"user": "u", "vhost": "/", "exchange": "amq.topic", "write": HOPELESS, "read": ".*"}
        ],
        "policies": [
            {
                "vhost": "/",
                "name": "p",
                "pattern": HOPELESS,
                "apply-to": "all",
                "definition": {"max-length": 1},
            }
        ],
    }


@pytest.mark.real_clock
async def test_definitions_from_before_are_loaded_and_their_hopeless_patterns_told(
    tmp_path: Path, log: LogRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each start, also from a data folder, the pattern allows nothing and its policy has no effect."""
    monkeypatch.setattr("amqp10broker.runtime.journal.bootstrap._log", log)
    path = tmp_path / "definitions.json"
    path.write_text(json.dumps(old_definitions()))
    folder = str(tmp_path / "data")
    for definitions in (str(path), None):
        log.entries.clear()
        async with Broker(quiet_config(data_dir=folder, definitions=definitions)) as broker:
            told = [fields for event, fields in log.of("warning") if "finds nothing" in event]
            assert [fields["owner"] for fields in told] == [
                "permissions of user 'u' in vhost '/'",
                "topic permissions of user 'u' at exchange 'amq.topic' in vhost '/'",
                "policy 'p' in vhost '/'",
            ]
            assert all("back reference" in fields["fault"] for fields in told)
            client = await connect091(broker).open(user="u", password="secret")
            await client.publish("amq.topic", "a-b-a", b"no")
            assert (await client.expect(ChannelClose)).reply_code == 403
            await client.stream.aclose()


async def test_definitions_that_are_imported_tell_theirs(
    log: LogRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are imported unchanged: a file from RabbitMQ needs no edits by hand."""
    monkeypatch.setattr("amqp10broker.runtime.journal.bootstrap._log", log)
    async with running_broker() as broker:
        await ask(broker, "import-definitions", document=old_definitions())
        assert len([event for event, _ in log.of("warning") if "finds nothing" in event]) == 3


async def test_a_users_name_that_spoils_a_pattern_allows_nothing(broker: Broker) -> None:
    """In a class it may make a reversed range: the result is 403, not a fault in the broker."""
    permission = TopicPermission("[z-{username}]")
    set_topic_permission(broker.catalog, "guest", "/", "amq.topic", permission)
    client = await connect091(broker).open()
    await client.publish("amq.topic", "x", b"no")
    close = await client.expect(ChannelClose)
    assert close.reply_code == 403
    await client.call(0, ConnectionClose(200, "", 0, 0), ConnectionCloseOk)
