"""RabbitMQ's feature flags and deprecated features that have an equivalent here.

A client checks a flag before it uses the feature. Nothing has to be enabled here. Flags of RabbitMQ's own
storage and inter-node protocol are left out.
"""

from __future__ import annotations

from typing import Any, Final

from amqp10broker.emulation import ADDRESS_V1, GLOBAL_QOS, MASTER_LOCATOR, TRANSIENT
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.queue import deprecated_features

_FLAGS: Final = {
    "detailed_queues_endpoint": "GET /queues/detailed shows more of queues than GET /queues",
    "drop_unroutable_metric": "messages that go to no queue are counted",
    "implicit_default_bindings": "bindings to the default exchange are there without being stored",
    "maintenance_mode_status": "a node says whether it is in maintenance",
    "message_containers": "messages are converted between the versions of AMQP",
    "quorum_queue": "queues of the type quorum",
    "quorum_queue_non_voters": "a new member of a quorum queue votes when it has caught up",
    "rabbit_exchange_type_local_random": "exchanges of the type x-local-random",
    "rabbitmq_4.0.0": "what clients can ask of RabbitMQ 4.0",
    "rabbitmq_4.1.0": "what clients can ask of RabbitMQ 4.1",
    "rabbitmq_4.2.0": "what clients can ask of RabbitMQ 4.2",
    "rabbitmq_4.3.0": "what clients can ask of RabbitMQ 4.3",
    "restart_streams": "streams can be restarted",
    "stream_filtering": "consumers of streams filter messages",
    "stream_queue": "queues of the type stream",
    "user_limits": "limits of connections and channels of a user",
    "virtual_host_metadata": "description and tags of virtual hosts",
}

_DEPRECATED: Final = {
    ADDRESS_V1: ("bare names of queues as addresses in AMQP 1.0", "denied_by_default"),
    GLOBAL_QOS: ("basic.qos for all consumers of a channel together", "denied_by_default"),
    MASTER_LOCATOR: ("the argument and the policy key queue-master-locator", "denied_by_default"),
    TRANSIENT: ("queues that are neither durable nor exclusive", "permitted_by_default"),
}


def flags() -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "desc": told,
            "doc_url": "",
            "state": "enabled",
            "stability": "stable",
            "require_level": "none",
            "experiment_level": "supported",
            "callbacks": [],
            "provided_by": "amqp10broker",
        }
        for name, told in _FLAGS.items()
    ]


def is_flag(name: str) -> bool:
    return name in _FLAGS


def deprecated(denied: frozenset[str]) -> list[dict[str, Any]]:
    """Return all deprecated features; `denied`: those that are not permitted."""
    return [
        {
            "name": name,
            "desc": told,
            "deprecation_phase": phase,
            "doc_url": "",
            "provided_by": "amqp10broker",
            "state": "denied" if name in denied else "permitted",
        }
        for name, (told, phase) in _DEPRECATED.items()
    ]


def used(catalog: Catalog) -> frozenset[str]:
    """Return the names of the deprecated features that declared objects use."""
    return frozenset(
        name for queue in catalog if not queue.kind.volatile for name in deprecated_features(queue)
    )
