"""The operation `upgrade-check`: what of clients, queues and policies another version of RabbitMQ changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from amqp10broker.emulation import ADDRESS_V1, GLOBAL_QOS, MASTER_LOCATOR, VERSIONS, Upgrade
from amqp10broker.metadata.queue import DeclaredQueue, QueueType, deprecated_features
from amqp10broker.operations.caller import Caller
from amqp10broker.operations.operation import Check, operation
from amqp10broker.operations.running import connections
from amqp10broker.operations.snapshot import document
from amqp10broker.queues.settings import DELIVERY_LIMIT, Overflow


@operation("upgrade-check", "upgrade", changes=False)
async def upgrade_check(
    caller: Caller, to: Annotated[str, "version of RabbitMQ", Check(choices=VERSIONS)] = VERSIONS[-1]
) -> dict[str, Any]:
    """Say which clients, queues and policies use what a version of RabbitMQ refuses or does otherwise.

    Clients are those that are connected now, to any node.

    Returns:
        ``{"to": version, "findings": documents of `emulation.UpgradeFinding`, the worst first,
            "quorum_queues": names}``.

    Raises:
        PermissionDenied: the caller is not an administrator.
    """
    upgrade = Upgrade(to)
    for queue in caller.catalog:
        if not queue.kind.volatile:
            _queue(upgrade, queue)
    for vhost in caller.catalog.vhosts.values():
        for policy in vhost.policies:
            if "queue-master-locator" in policy.definition:
                of = "policy", policy.name, vhost.name
                upgrade.use(MASTER_LOCATOR, of, "it has the key queue-master-locator")
    for connection in await connections(caller, "everywhere"):
        for row, what in _uses(connection):
            upgrade.use(row, ("client", _name(connection), connection["vhost"]), what)
    quorum = [queue.name for queue in caller.catalog if queue.type == QueueType.QUORUM]
    return {"to": to, "findings": [document(each) for each in upgrade.findings()], "quorum_queues": quorum}


def _queue(upgrade: Upgrade, queue: DeclaredQueue) -> None:
    of = "queue", queue.name, queue.vhost
    for feature in deprecated_features(queue):
        argument = "it has the argument x-queue-master-locator"
        upgrade.use(feature, of, argument if feature == MASTER_LOCATOR else "neither durable nor exclusive")
    if queue.type != QueueType.QUORUM:
        return
    settings, limit = queue.effective.settings, queue.effective.settings.delivery_limit
    bounded = settings.max_length is not None or settings.max_length_bytes is not None
    stated = "x-delivery-limit" in queue.arguments or "delivery-limit" in queue.effective.definition
    drops = bounded and settings.overflow is Overflow.DROP_HEAD
    returned = limit is not None and queue.counted()["requeued"]
    for row, applies, what in (
        ("delivery_limit", not stated, f"it states no delivery limit: it has {limit or 'none'}"),
        (
            "limit_counts_failed",
            returned,
            f"its clients return messages, of which it delivers one {limit} times",
        ),
        ("unlimited_returns_last", stated and limit is None, "it has no delivery limit"),
        ("drops_next", drops, "it drops its head when it is full: another one, if messages have priorities"),
    ):
        if applies:
            upgrade.use(row, of, what, **{"delivery_limit": DELIVERY_LIMIT, **queue.rules})


def _uses(connection: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for channel in connection["channels"]:
        if channel["global_prefetch"]:
            limit = channel["global_prefetch"]
            yield GLOBAL_QOS, f"basic.qos with global=true on channel {channel['number']}: {limit} messages"
    for session in connection["sessions"]:
        for link in session["links"]:
            if link["address"] and not link["address"].startswith("/") and link["queue"] == link["address"]:
                yield ADDRESS_V1, f"link '{link['name']}' has the address '{link['address']}'"


def _name(connection: Mapping[str, Any]) -> str:
    name = connection["container_id"] or connection["client"].get("connection_name") or "client"
    return f"{name} of user '{connection['user']}' at {connection['peer']}"
