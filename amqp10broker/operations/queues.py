"""Operations on queues: get, declare, delete, purge, list.

A missing permission raises `PermissionDenied`, a name with a line end `BadRequest`, a queue of another
connection `ResourceLocked`, a missing one `NotFound`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Final

from amqp10broker.errors import (
    BadRequest,
    InUse,
    InvalidArgument,
    NotFound,
    NotSupported,
    Unavailable,
)
from amqp10broker.metadata.queue import KINDS, DeclaredQueue, Owner
from amqp10broker.metadata.queue_requests import DeclareQueue, DeleteQueue
from amqp10broker.operations.node import Caller, Steps
from amqp10broker.operations.operation import (
    EMPTY,
    Command,
    Durable,
    IfUnused,
    Name,
    XArguments,
    check_name,
    check_not_reserved,
    operation,
)
from amqp10broker.queues.commands import Answer, Delete, Inspect, Purge, Refusal
from amqp10broker.raft.ids import node_of
from amqp10broker.routing.exchange import check_not_direct_reply_to

DEAD_LETTER_EXCHANGE = "x-dead-letter-exchange"
STREAM = "stream"
FIRST_OFFSET = "first_offset"
NEXT_OFFSET = "next_offset"
"""The offset of the next message of a stream."""
DECLARATION_ID = "declaration_id"
"""The id of a stream's declaration, which changes when the stream is deleted and declared again."""
VOLATILE_TYPE = "rabbit_volatile_queue"
"""The type of a queue for direct replies in answers."""


@operation("get-queue", "queue", permission="any permission on the queue", changes=False)
def get_queue(
    caller: Caller,
    name: Name,
    for_use: Annotated[bool, "refused if another connection has it for itself"] = False,
) -> Steps[dict[str, Any]]:
    """Describe a queue with its counts."""
    caller.may("any", "queue", name)
    queue = caller.vhost.lookup(name)
    if for_use:
        caller.for_use(queue)
    answer = yield from caller.ask(queue.handle, Inspect)
    return _report(caller, queue, answer)


@operation(
    "declare-queue",
    "queue",
    permission="configure on the queue; with a dead-letter exchange also read on it and write on that "
    "exchange",
    command=Command("queue declare", "orders --type quorum --argument x-delivery-limit=5"),
)
def declare_queue(
    caller: Caller,
    name: Name,
    durable: Durable = True,
    exclusive: Annotated[bool, "for this connection only"] = False,
    auto_delete: Annotated[bool, "it goes with its last consumer"] = False,
    arguments: XArguments = EMPTY,
) -> Steps[dict[str, Any]]:
    """Make a queue, unless it is there and as asked for.

    Raises `BadRequest` if the name is empty and none is made here, `ReservedName`, `Inequivalent` if it
    exists with other properties, `InvalidArgument`, and `LimitExceeded` for the virtual host.
    """
    named = name != ""
    if not named:
        if caller.new_name is None:
            raise BadRequest("queue ''", "declare queue with empty name not allowed")
        name = caller.new_name()
    check_name("queue", name)
    caller.may("configure", "queue", name)
    if caller.vhost.find(name) is None:
        if named:
            check_not_reserved("queue", name)
        dead_letter_exchange = arguments.get(DEAD_LETTER_EXCHANGE)
        # An argument of another type is refused with the declaration, which has a better text.
        if isinstance(dead_letter_exchange, str):
            caller.may("read", "queue", name)
            caller.may("write", "exchange", dead_letter_exchange)
    if exclusive and caller.connection is None:
        raise InvalidArgument(
            "queue",
            "a queue for one connection only must be declared on that connection: leave out exclusive",
        )
    owner = caller.connection if exclusive else None
    declared = yield from caller.change(
        DeclareQueue(caller.vhost.named(), name, durable, owner, auto_delete, arguments, not named)
    )
    caller.catalog.usage.queues_declared += 1
    queue = caller.vhost.lookup(declared.name)
    if declared.created:
        return {"created": True, "queue": describe(caller, queue, 0, 0, next_offset=0)}
    queue.check_up()
    answer = yield from caller.ask(queue.handle, Inspect)
    return {"created": False, "queue": _report(caller, queue, answer)}


@operation(
    "delete-queue",
    "queue",
    permission="configure on the queue",
    command=Command("queue delete", "orders --if-empty"),
)
def delete_queue(
    caller: Caller,
    name: Name,
    if_unused: IfUnused = False,
    if_empty: Annotated[bool, "only without ready messages"] = False,
) -> Steps[dict[str, Any]]:
    """Delete a queue with its messages.

    Returns ``{"message_count": int}``, the ready messages. Raises `AccessRefused` if it is a queue of direct
    replies, `InUse` by a condition, and `NotSupported` if its kind does not support such a condition.
    """
    check_name("queue", name)
    check_not_direct_reply_to(name)
    caller.may("configure", "queue", name)
    vhost = caller.vhost
    queue = vhost.find(name)
    if queue is None:
        return {"message_count": 0}
    caller.for_use(queue)
    if (if_unused or if_empty) and not queue.kind.conditional_delete:
        flag = "if-unused" if if_unused else "if-empty"
        raise NotSupported(
            f"queue '{name}'",
            f"cannot delete queue '{name}' in vhost '{vhost.name}'. queue.delete operations with {flag} "
            f"flag set are not supported by {queue.type} queues",
        )
    if not (if_unused or if_empty):
        # The queue is removed first, so that a declaration after this request makes another one. With a
        # condition the queue decides, and is removed when it has ended (`QueueEnded`).
        yield from caller.change(DeleteQueue(vhost.named(), name, send_delete=False))
    answer = yield from caller.ask(queue.handle, partial(Delete, if_unused=if_unused, if_empty=if_empty))
    if answer.refused in (Refusal.IN_USE, Refusal.NOT_EMPTY):
        why = "in use" if answer.refused is Refusal.IN_USE else "not empty"
        raise InUse(f"queue '{name}'", f"queue '{name}' in vhost '{vhost.name}' {why}")
    if answer.refused is Refusal.NO_LEADER and (if_unused or if_empty):
        raise _no_leader(queue)
    return {"message_count": answer.ready if answer.refused is None else 0}


@operation("purge-queue", "queue", permission="read on the queue", command=Command("queue purge", "orders"))
def purge_queue(caller: Caller, name: Name) -> Steps[dict[str, Any]]:
    """Drop the ready messages of a queue.

    Raises `NotSupported` if its kind cannot be purged.
    """
    caller.may("read", "queue", name)
    queue = caller.for_use(caller.vhost.lookup(name))
    if queue.kind.replays:
        raise NotSupported(
            f"queue '{name}'", f"purge not supported by queue '{name}' in vhost '{caller.vhost.name}'"
        )
    answer = yield from caller.ask(queue.handle, Purge)
    if answer.refused is Refusal.GONE:
        raise _gone(queue)
    if answer.refused is Refusal.NO_LEADER:
        raise _no_leader(queue)
    return {"message_count": answer.ready}


@operation(
    "list-queues",
    "queue",
    permission="any permission on each",
    changes=False,
    command=Command("queue list", "name type messages policy --vhost shop"),
)
async def list_queues(
    caller: Caller,
    online: Annotated[bool, "only queues whose leader, or node, can be reached"] = False,
    offline: Annotated[bool, "only the others"] = False,
    local: Annotated[bool, "only queues that this node leads, or has"] = False,
    names: Annotated[Sequence[str], "only queues of these names, repeatable"] = (),
    counts: Annotated[bool, "how many messages and consumers they have"] = True,
) -> list[dict[str, Any]]:
    """List queues of a virtual host.

    The counts do not include commands on their way to a queue. Besides `describe` there are ``members``,
    ``online``, ``state``, ``owner`` (number of the connection that has it exclusively, at its node), of
    reachable queues the figures of `queue_status`, and the effect of policies. Without `counts` no request is
    sent to queues; counts are None then, and if the leader does not answer. Raises `BadRequest` for more than
    one of `online`, `offline` and `local`.
    """
    if online + offline + local > 1:
        raise BadRequest("queue", "queues are listed online, offline or local: give one of them, or none")
    queues = [
        queue
        for queue in sorted(_chosen(caller, names), key=lambda each: each.name)
        if caller.sees("queue", queue.name)
        and (not local or _is_here(caller, queue))
        and (not (online or offline) or _is_up(caller, queue) is online)
    ]
    remote = [queue for queue in queues if not _is_here(caller, queue)] if counts else []
    if not remote:
        return [_listed(caller, queue, known=counts) for queue in queues]
    cluster = caller.node.cluster
    given = {"local": True} | ({"names": [queue.name for queue in remote]} if names else {})
    rows = {queue.name: _listed(caller, queue, known=queue not in remote) for queue in queues}
    asked = caller.other_nodes()  # queues of nodes that do not answer are listed from the catalog
    answers = await cluster.run_at_each(asked, "list-queues", given, caller.vhost.name)
    for there in answers.values():
        rows |= {row["name"]: row for row in there if row["name"] in rows}
    return list(rows.values())


def _chosen(caller: Caller, names: Sequence[str]) -> Iterable[DeclaredQueue]:
    if not names:
        return caller.vhost
    found = (caller.vhost.queues.get(name) for name in dict.fromkeys(names))
    return (queue for queue in found if queue is not None and not queue.kind.volatile)


def _listed(caller: Caller, queue: DeclaredQueue, *, known: bool) -> dict[str, Any]:
    # `known`: its counts are available here.
    figures = queue.handle.figures() if known else None
    ready, consumers, next_offset = (
        getattr(figures, name, None) for name in ("messages_ready", "consumers", "next_offset")
    )
    described = describe(caller, queue, ready, consumers, next_offset=next_offset)
    described |= {
        "members": described["replicas"],
        "online": _online(caller, queue),
        "state": _state(caller, queue),
        **{name: getattr(figures, name, None) for name in _COUNTS},
        "counters": {},
        "weight": None,
        "single_active_consumer_tag": getattr(figures, "single_active_consumer_tag", None),
        "owner": queue.owner.connection if isinstance(queue.owner, Owner) else None,
    }
    if queue.kind.replicated:
        described["delivery_limit"] = queue.effective.settings.delivery_limit
    if figures is not None:
        weight = queue.handle.weight()
        described |= {
            "segments": figures.segments,
            "publishers": figures.publishers,
            "dead_lettered": dict(queue.handle.counters.dead_lettered),
            "full": figures.full,
            "limits": None if figures.limits is None else asdict(figures.limits),
            "counters": queue.counted(),
            "weight": None if weight is None else weight._asdict(),
        }
    return described | {
        "policy": queue.effective.policy,
        "operator_policy": queue.effective.operator_policy,
        "effective_policy_definition": dict(queue.effective.definition),
        "ineffective_policy_keys": list(queue.effective.ineffective),
    }


_COUNTS: Final = ("messages_unsettled", "messages_dlx", "messages_delayed")


def _nodes(queue: DeclaredQueue) -> tuple[int, ...]:
    # 0 is a node without a cluster.
    return tuple(map(node_of, queue.members)) or (queue.home,)


def _named(caller: Caller, number: int) -> str:
    if number == 0:
        return caller.node_name
    node = caller.catalog.node_of(number)
    return f"node {number}" if node is None else node.name


def _online(caller: Caller, queue: DeclaredQueue) -> list[str]:
    catalog = caller.catalog
    return [_named(caller, each) for each in _nodes(queue) if each == 0 or catalog.runs(each)]


def _leader(caller: Caller, queue: DeclaredQueue) -> str | None:
    if not queue.members and not queue.home:
        return caller.node_name
    leader = caller.catalog.leader_of(queue)
    return None if leader is None else leader.name


def _last_leader(caller: Caller, queue: DeclaredQueue) -> int:
    # Return the leader, or the last known one, or the first member's node; for other kinds the queue's node.
    nodes = _nodes(queue)
    node_directory = caller.catalog.node_directory
    if queue.members and node_directory is not None:
        for known in (node_directory.leader(queue), node_directory.last_leader(queue)):
            if known in nodes:
                return known
    return nodes[0]


def _is_here(caller: Caller, queue: DeclaredQueue) -> bool:
    return _leader(caller, queue) == caller.node_name


def _is_up(caller: Caller, queue: DeclaredQueue) -> bool:
    return _leader(caller, queue) in _online(caller, queue)


def _state(caller: Caller, queue: DeclaredQueue) -> str:
    # Return RabbitMQ's word; ``minority``: no leader, and most of the queue's nodes do not run.
    if _is_up(caller, queue):
        return "running"
    lacks = queue.members and 2 * len(_online(caller, queue)) <= len(queue.members)
    return "minority" if lacks else "down"


def describe(
    caller: Caller,
    queue: DeclaredQueue,
    ready: int | None,
    consumers: int | None,
    *,
    next_offset: int | None = None,
) -> dict[str, Any]:
    """Describe a queue for all front ends; ``leader``, without which RabbitMQ's client for Python fails, may
    be the last one.
    """
    kind = KINDS[queue.type]
    of_stream: dict[str, Any] = {}
    if kind.replays:
        first = None if ready is None or next_offset is None else next_offset - ready
        of_stream = {DECLARATION_ID: queue.declaration_id, FIRST_OFFSET: first, NEXT_OFFSET: next_offset}
    return {
        "name": queue.name,
        "vhost": caller.vhost.name,
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "exclusive": queue.owner is not None,
        "type": VOLATILE_TYPE if kind.volatile else queue.type,
        "arguments": dict(queue.arguments),
        "message_count": ready,
        "consumer_count": consumers,
        "leader": _named(caller, _last_leader(caller, queue)),
        "replicas": [_named(caller, each) for each in _nodes(queue)],
        **of_stream,
    }


def _report(caller: Caller, queue: DeclaredQueue, answer: Answer) -> dict[str, Any]:
    # Without a leader the counts are 0, because the queue exists all the same.
    if answer.refused is Refusal.GONE:
        raise _gone(queue)
    return describe(caller, queue, answer.ready, answer.consumers, next_offset=answer.next_offset)


def _no_leader(queue: DeclaredQueue) -> Unavailable:
    resource = f"queue '{queue.name}'"
    return Unavailable(resource, f"{resource} in vhost '{queue.vhost}' has had no leader for too long")


def _gone(queue: DeclaredQueue) -> NotFound:
    return NotFound(f"queue '{queue.name}'", f"no queue '{queue.name}' in vhost '{queue.vhost}'")
