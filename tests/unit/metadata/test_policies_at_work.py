"""Policies that come, change and go while queues run and exchanges route."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.errors import ConfigError
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.policies import Policy
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.queues.commands import Configure, Touch
from amqp10broker.queues.settings import DEFAULTS, QueueSettings
from amqp10broker.routing.exchange import Binding, Destination
from tests.support.declaring import bind, declare, declare_exchange, delete_policy, load, put_policy


def told(vhost: VirtualHost, name: str) -> list[Any]:
    """What a queue was told since the last call."""
    handle: Any = vhost.lookup(name).handle
    letters, handle.letters = handle.letters, []
    return list(letters)


@pytest.mark.rabbitmq("quorum_queue_SUITE", "pre_existing_invalid_policy")
def test_a_queue_starts_with_what_its_policy_says(catalog: Catalog, vhost: VirtualHost, host: Any) -> None:
    put_policy(catalog, vhost, Policy("p", "^q", {"max-length": 5}))
    queue, _ = declare(catalog, vhost, "q", arguments={"x-message-ttl": 9})
    assert host.started[-1].settings == QueueSettings(max_length=5, message_ttl_ms=9)
    assert queue.effective.policy == "p"
    assert told(vhost, "q") == []


@pytest.mark.rabbitmq("confirms_rejects_SUITE", "policy_resets_to_default")
def test_a_running_queue_is_told_what_changes(catalog: Catalog, vhost: VirtualHost) -> None:
    """When a policy comes, when it is replaced, when it goes; each time once."""
    queue, _ = declare(catalog, vhost, "q")
    put_policy(catalog, vhost, Policy("p", "^q", {"max-length": 5}))
    assert told(vhost, "q") == [Configure(QueueSettings(max_length=5))]
    put_policy(catalog, vhost, Policy("p", "^q", {"expires": 6}))
    assert told(vhost, "q") == [Configure(QueueSettings(expires_ms=6))]
    delete_policy(catalog, vhost, "p")
    assert told(vhost, "q") == [Configure(DEFAULTS)]
    assert queue.effective.policy is None


def test_a_queue_that_is_declared_again_is_in_use(catalog: Catalog, vhost: VirtualHost) -> None:
    """A classic queue's time without use begins anew; a quorum queue's goes on."""
    declare(catalog, vhost, "c")
    declare(catalog, vhost, "q", arguments={"x-queue-type": "quorum"})
    assert told(vhost, "c") == []
    declare(catalog, vhost, "c")
    declare(catalog, vhost, "q", arguments={"x-queue-type": "quorum"})
    assert told(vhost, "c") == [Touch()]
    assert told(vhost, "q") == []


# --- exchanges ------------------------------------------------------------------------------------


def routed(vhost: VirtualHost, exchange: str) -> list[str]:
    """Where a message goes that the exchange itself has no binding for."""
    queues, _ = vhost.route(vhost.topology.lookup_exchange(exchange), ("nowhere",), dict)
    return [queue.name for queue in queues]


def with_alternate(catalog: Catalog, vhost: VirtualHost) -> None:
    """An exchange `ae` that leads to a queue `q`."""
    declare(catalog, vhost, "q")
    declare_exchange(catalog, vhost, "ae", "fanout")
    bind(catalog, vhost, Binding("ae", Destination("queue", "q")))


def test_an_alternate_exchange_by_policy_acts_at_once(catalog: Catalog, vhost: VirtualHost) -> None:
    """On exchanges that are there, on those that come, and no more when the policy goes."""
    with_alternate(catalog, vhost)
    declare_exchange(catalog, vhost, "x1", "direct")
    version = vhost.version
    put_policy(catalog, vhost, Policy("p", "^x", {"alternate-exchange": "ae"}, apply_to="exchanges"))
    assert vhost.version > version, "remembered routes must be found anew"
    declare_exchange(catalog, vhost, "x2", "direct")
    assert routed(vhost, "x1") == routed(vhost, "x2") == ["q"]
    version = vhost.version
    delete_policy(catalog, vhost, "p")
    assert vhost.version > version
    assert routed(vhost, "x1") == routed(vhost, "x2") == []


# --- definitions ----------------------------------------------------------------------------------


def document(max_length: object) -> dict[str, Any]:
    definition = {"max-length": max_length}
    return {"policies": [{"vhost": "/", "name": "p", "pattern": "^q", "definition": definition}]}


def test_an_imported_policy_acts_on_running_queues(catalog: Catalog, vhost: VirtualHost) -> None:
    """Once, not in the rehearsal as well."""
    queue, _ = declare(catalog, vhost, "q")
    load(document(5), catalog)
    assert told(vhost, "q") == [Configure(QueueSettings(max_length=5))]
    assert queue.effective.policy == "p"
    load(document(5), catalog)
    assert told(vhost, "q") == []


def test_a_refused_file_changes_no_running_queue(catalog: Catalog, vhost: VirtualHost) -> None:
    """Although its policy is good and the rehearsal has put it."""
    queue, _ = declare(catalog, vhost, "q")
    refused = document(5) | {"queues": [{"name": "r", "vhost": "/", "durable": "yes"}]}
    with pytest.raises(ConfigError, match="durable"):
        load(refused, catalog)
    assert told(vhost, "q") == []
    assert queue.effective.policy is None
