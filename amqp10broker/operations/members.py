"""Operations on the members and leaders of quorum queues, and on the one node of a stream.

Refusals begin with RabbitMQ's word. On a node in no cluster each queue has one member, there. A missing queue
or node raises `NotFound`, another kind of queue `NotSupported`, a node that must run and does not
`PreconditionFailed`, and an invalid pattern `InvalidArgument`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from operator import itemgetter
from typing import Annotated, Any, Final

from amqp10broker.cluster.membership import BalancedQueue, MemberRole, next_move
from amqp10broker.errors import NotFound, NotSupported, PreconditionFailed, RefusedError, Unavailable
from amqp10broker.metadata.patterns import PatternSearch
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.operations.node import Caller, ClusterNode
from amqp10broker.operations.operation import Check, Command, Found, Name, NodeName, operation
from amqp10broker.raft.ids import node_of

AGAIN_S: Final = 0.5
"""The delay after which a change that collided with another is tried once more."""
TIMEOUT_S: Final = 5.0
CHANGE_NOT_PERMITTED: Final = "cluster_change_not_permitted"
TIMED_OUT: Final = "the operation timed out and may not have been completed"
LAST_NODE: Final = "the last node cannot be removed"
Membership = Annotated[
    str, "a promotable member votes when it has caught up", Check(choices=tuple(MemberRole))
]
Within = Annotated[int, "seconds that it may take", Check(bounds=(1, 600))]
Strategy = Annotated[str, "even: only queues with an even number of members", Check(choices=("all", "even"))]
ErrorsOnly = Annotated[bool, "leave out what went well"]

Row = dict[str, Any]
RAFT_COLUMNS: Final = (
    *("Node Name", "Raft State", "Membership", "Last Log Index", "Last Written", "Last Applied"),
    *("Commit Index", "Snapshot Index", "Term", "Machine Version"),
)
RESULT_COLUMNS: Final = ("vhost", "name", "size", "result")
BALANCE_COLUMNS: Final = ("Node name", "Number of quorum queues", "Number of streams")


def _added(given: Mapping[str, Any], result: Row) -> str:
    done = "has a member" if result["added"] else "had a member already"
    return f"queue '{given['name']}' {done} on {given['node']}; it has {result['size']}"


def _deleted(given: Mapping[str, Any], result: Row) -> str:
    done = "has no member" if result["deleted"] else "had no member"
    return f"queue '{given['name']}' {done} on {given['node']}; it has {result['size']}"


@operation(
    "quorum-status",
    "queue",
    changes=False,
    command=Command("queue quorum-status", "orders", columns=RAFT_COLUMNS, tool=True),
)
async def quorum_status(caller: Caller, name: Name) -> list[Row]:
    """Show how each member of a quorum queue stands."""
    queue = quorum_queue(caller, name)
    return await raft_rows(caller, queue, member_nodes(queue))


@operation(
    "add-member",
    "queue",
    takes_s=620,
    command=Command("member add", "orders d --timeout 30", _added, tool=True),
)
async def add_member(
    caller: Caller, name: Name, node: NodeName, membership: Membership = "promotable", timeout: Within = 5
) -> Row:
    """Add a member to a quorum queue, on a node.

    Returns ``{"added": bool, "size": int}``.
    """
    cluster = caller.node.cluster
    queue = quorum_queue(caller, name)
    number = running_node(caller, node)
    if number in member_nodes(queue):
        return {"added": False, "size": len(member_nodes(queue))}
    kind = MemberRole(membership)
    size = await cluster.add_member(queue, number, kind, timeout)
    return {"added": True, "size": size}


@operation(
    "delete-member", "queue", takes_s=620, command=Command("member delete", "orders a", _deleted, tool=True)
)
async def delete_member(caller: Caller, name: Name, node: NodeName, timeout: Within = 5) -> Row:
    """Remove the member of a quorum queue on a node, with its data.

    Raises `PreconditionFailed` if it is the last one.
    """
    cluster = caller.node.cluster
    queue = quorum_queue(caller, name)
    number = caller.node_named(node)
    held = member_nodes(queue)
    if number not in held:
        return {"deleted": False, "size": len(held)}
    _check_not_last(queue)
    size = await cluster.delete_member(queue, number, timeout)
    return {"deleted": True, "size": size}


@operation(
    "grow",
    "members",
    takes_s=3600,
    command=Command("member grow", "d even --queue-pattern '^orders'", columns=RESULT_COLUMNS, tool=True),
)
async def grow(
    caller: Caller,
    node: NodeName,
    strategy: Strategy,
    vhost_pattern: Found = ".*",
    queue_pattern: Found = ".*",
    membership: Membership = "promotable",
    errors_only: ErrorsOnly = False,
) -> list[Row]:
    """Add a member on a node to all quorum queues that have none there.

    Returns ``[{"vhost": str, "name": str, "size": int | "?", "result": str}]``.
    """
    cluster = caller.node.cluster
    number = running_node(caller, node)
    kind = MemberRole(membership)
    chosen = [
        queue
        for queue in _matching(caller, vhost_pattern, queue_pattern)
        if number not in member_nodes(queue) and _fits(queue, strategy)
    ]

    def act(queue: DeclaredQueue) -> Awaitable[int]:
        return cluster.add_member(queue, number, kind, TIMEOUT_S, among_voters=True)

    return await _each(chosen, act, errors_only)


@operation(
    "grow-to-count",
    "members",
    takes_s=3600,
    command=Command("member grow-to-count", "3 all", columns=RESULT_COLUMNS, tool=True),
)
async def grow_to_count(
    caller: Caller,
    count: Annotated[int, "members that each shall have", Check(bounds=(1, 255))],
    strategy: Strategy,
    vhost_pattern: Found = ".*",
    queue_pattern: Found = ".*",
    membership: Membership = "promotable",
    errors_only: ErrorsOnly = False,
) -> list[Row]:
    """Add members to all quorum queues that have fewer than so many.

    Raises `PreconditionFailed` if not so many nodes run.
    """
    cluster = caller.node.cluster
    running = [number for number in caller.node_names() if caller.runs(number)]
    if count > len(running):
        raise PreconditionFailed(
            "cluster", f"node_not_running: {count} members need as many nodes, and {len(running)} run"
        )
    kind = MemberRole(membership)
    chosen = [
        queue
        for queue in _matching(caller, vhost_pattern, queue_pattern)
        if len(member_nodes(queue)) < count and _fits(queue, strategy)
    ]
    held = [number for queue in caller.catalog for number in map(node_of, queue.members)]

    async def act(queue: DeclaredQueue) -> int:
        taken = list(member_nodes(queue))
        while len(taken) < count:
            free = [number for number in running if number not in taken]
            number = min(free, key=held.count)
            fresh = taken == list(member_nodes(queue))
            await cluster.add_member(queue, number, kind, TIMEOUT_S, among_voters=fresh)
            taken.append(number)
            held.append(number)
        return len(taken)

    return await _each(chosen, act, errors_only)


@operation(
    "shrink",
    "members",
    takes_s=3600,
    command=Command("member shrink", "c --errors-only", columns=RESULT_COLUMNS, tool=True),
)
async def shrink(caller: Caller, node: NodeName, errors_only: ErrorsOnly = False) -> list[Row]:
    """Remove the members of all quorum queues on a node, which need not run.

    Returns rows as `grow`.
    """
    cluster = caller.node.cluster
    number = caller.node_named(node)
    chosen = [queue for queue in quorum_queues(caller) if number in member_nodes(queue)]

    async def act(queue: DeclaredQueue) -> int:
        _check_not_last(queue)
        try:
            return await cluster.delete_member(queue, number, TIMEOUT_S)
        except PreconditionFailed as refusal:
            if not refusal.description.startswith(CHANGE_NOT_PERMITTED):
                raise
        await cluster.pause(AGAIN_S)
        return await cluster.delete_member(queue, number, TIMEOUT_S)

    return await _each(chosen, act, errors_only)


@operation(
    "transfer-leadership",
    "queue",
    command=Command("member transfer-leadership", "orders b", "{leader} leads queue '{name}'", tool=True),
)
async def transfer_leadership(caller: Caller, name: Name, node: NodeName) -> Row:
    """Have the member of a quorum queue on a node lead it.

    Raises `PreconditionFailed` if the node leads it already, or has no member of it.
    """
    cluster = caller.node.cluster
    queue = quorum_queue(caller, name)
    number = caller.node_named(node)
    if number == leader_number(caller, queue):
        raise refused(queue, "already_leader", f"node '{node}' leads it")
    if number not in member_nodes(queue):
        raise refused(
            queue, "not_a_member", f"node '{node}' has no member of it; add one: amqp10broker member add"
        )
    await cluster.transfer(queue, number)
    return {"leader": caller.node_names()[number]}


@operation(
    "rebalance",
    "members",
    takes_s=3600,
    command=Command("member rebalance", "quorum", columns=BALANCE_COLUMNS, tool=True),
)
async def rebalance(
    caller: Caller,
    kind: Annotated[str, "leaders of what", Check(choices=("all", "quorum", "stream"))],
    vhost_pattern: Found = ".*",
    queue_pattern: Found = ".*",
) -> list[Row]:
    """Hand leaderships over until no node has more than its share.

    Raises `PreconditionFailed` if one is under way already.
    """
    cluster = caller.node.cluster
    queues = [] if kind == "stream" else _matching(caller, vhost_pattern, queue_pattern)
    chief = cluster.chief()
    if chief is not None and chief != cluster.number:
        given = {"kind": kind, "vhost_pattern": vhost_pattern, "queue_pattern": queue_pattern}
        rows: list[Row] = await cluster.run_at(chief, "rebalance", given, None)
        return rows
    if cluster.rebalancing:
        raise PreconditionFailed("cluster", "rebalance_in_progress: wait until the other one is over")

    cluster.rebalancing = True
    try:
        return await _rebalanced(caller, cluster, list(queues))
    finally:
        cluster.rebalancing = False


@operation(
    "force-shrink-member-to-current-member",
    "queue",
    command=Command(
        "member force-shrink",
        "orders",
        "queue '{name}' has this node's member only; add others with grow",
        tool=True,
    ),
)
async def force_shrink(caller: Caller, name: Name) -> Row:
    """Make this node's member of a quorum queue the only one; what only lost members have is lost.

    Raises `PreconditionFailed` if none of its members is here.
    """
    cluster = caller.node.cluster
    queue = quorum_queue(caller, name)
    if cluster.number not in member_nodes(queue):
        raise refused(queue, "not_a_member", "this node has no member of it; ask one that has")
    if len(member_nodes(queue)) == 1:
        return {"size": 1}
    await cluster.shrink_to_here(queue)
    return {"size": 1}


@operation(
    "force-all-queues-shrink-member-to-current-member",
    "members",
    takes_s=3600,
    command=Command("member force-shrink-all", "--vhost-pattern '^shop$'", columns=RESULT_COLUMNS, tool=True),
)
async def force_shrink_all(
    caller: Caller,
    vhost_pattern: Found = ".*",
    queue_pattern: Found = ".*",
    errors_only: ErrorsOnly = False,
) -> list[Row]:
    """Make this node's members of quorum queues the only ones; what only lost members have is lost.

    Queues without a member here, and those with a single member, are not changed.
    """
    cluster = caller.node.cluster
    chosen = [
        queue
        for queue in _matching(caller, vhost_pattern, queue_pattern)
        if cluster.number in (held := member_nodes(queue)) and len(held) > 1
    ]

    async def act(queue: DeclaredQueue) -> int:
        await cluster.shrink_to_here(queue)
        return 1

    return await _each(chosen, act, errors_only)


async def raft_rows(caller: Caller, queue: DeclaredQueue | None, nodes: Collection[int]) -> list[Row]:
    """Return the members of a group (None: of the metadata) in RabbitMQ's columns of `quorum_status`."""
    named = caller.node_names()
    states = await caller.node.cluster.member_states(queue, nodes)
    rows = [(named.get(number, f"node {number}"), *astuple(each)) for number, each in states.items()]
    return [dict(zip(RAFT_COLUMNS, row, strict=True)) for row in sorted(rows, key=itemgetter(0))]


def change_not_permitted(queue: DeclaredQueue) -> PreconditionFailed:
    """Return the refusal of a change during another one, or by a leader that is too new."""
    text = "another change of its members is under way, or its leader is new; try again in a moment"
    return refused(queue, CHANGE_NOT_PERMITTED, text)


def last_node(queue: DeclaredQueue) -> PreconditionFailed:
    return refused(queue, "last_node", LAST_NODE)


async def _each(
    queues: Sequence[DeclaredQueue], act: Callable[[DeclaredQueue], Awaitable[int]], errors_only: bool
) -> list[Row]:
    rows = []
    for queue in queues:
        row: Row = {"vhost": queue.vhost, "name": queue.name}
        try:
            row |= {"size": await act(queue), "result": "ok"}
        except Unavailable:
            row |= {"size": "?", "result": f"error: {TIMED_OUT}"}
        except RefusedError as refusal:
            text = refusal.description
            last = text.startswith("last_node")
            row |= {"size": len(member_nodes(queue)), "result": f"error: {LAST_NODE if last else text}"}
        if not errors_only or row["result"] != "ok":
            rows.append(row)
    return rows


async def _rebalanced(caller: Caller, cluster: ClusterNode, queues: list[DeclaredQueue]) -> list[Row]:
    catalog = caller.catalog
    by_number = {queue.number: queue for queue in queues}
    leaders: dict[int, int] = {}
    for queue in queues:
        leader = leader_number(caller, queue)
        if leader is not None:
            leaders[queue.number] = leader
    stuck: set[int] = set()
    while True:
        ready = {node.number for node in catalog.nodes.values() if not node.draining}
        led = [
            BalancedQueue(
                group, leader, tuple(each for each in member_nodes(by_number[group]) if each != leader)
            )
            for group, leader in leaders.items()
        ]
        move = next_move(led, {number for number in ready if catalog.runs(number)}, stuck)
        if move is None:
            break
        try:
            await cluster.transfer(by_number[move.group], move.to)
        except RefusedError:
            stuck.add(move.group)
        else:
            leaders[move.group] = move.to
    counts = list(leaders.values())
    return [
        {
            "Node name": name,
            "Number of quorum queues": counts.count(number),
            "Number of streams": sum(queue.kind.replays and queue.home == number for queue in catalog),
        }
        for number, name in sorted(caller.node_names().items(), key=lambda each: each[1])
        if caller.runs(number)
    ]


def running_node(caller: Caller, name: str) -> int:
    """Return the number of a node that runs. Raises `PreconditionFailed` for all others."""
    try:
        number = caller.node_named(name)
    except NotFound as error:
        raise PreconditionFailed(error.resource, f"node_not_running: {error.description}") from error
    if not caller.runs(number):
        raise PreconditionFailed(f"node '{name}'", f"node_not_running: node '{name}' cannot be reached")
    return number


def leader_number(caller: Caller, queue: DeclaredQueue) -> int | None:
    """Return the node that leads a quorum queue; None: none is known."""
    if not queue.members:
        return 0
    leader = caller.catalog.leader_of(queue)
    return None if leader is None else leader.number


def member_nodes(queue: DeclaredQueue) -> tuple[int, ...]:
    return tuple(map(node_of, queue.members)) or (0,)


def quorum_queue(caller: Caller, name: str) -> DeclaredQueue:
    """Return a quorum queue. Raises `NotFound`, or `NotSupported` for another kind."""
    queue = caller.vhost.lookup(name)
    if not queue.kind.replicated:
        word = "not_quorum_queue" if queue.kind.replays else "classic_queue_not_supported"
        text = f"{word}: queue '{name}' in vhost '{queue.vhost}' is no quorum queue, so it has no members"
        raise NotSupported(f"queue '{name}'", text)
    return queue


def quorum_queues(caller: Caller) -> Iterator[DeclaredQueue]:
    """Yield all quorum queues, by virtual host and name."""
    queues: Iterable[DeclaredQueue] = caller.catalog
    return iter(
        sorted(
            (queue for queue in queues if queue.kind.replicated),
            key=lambda queue: (queue.vhost, queue.name),
        )
    )


def _matching(caller: Caller, vhost_pattern: str, queue_pattern: str) -> list[DeclaredQueue]:
    # Patterns may match anywhere in the names.
    in_vhost, in_name = (PatternSearch(each, "queues") for each in (vhost_pattern, queue_pattern))
    return [queue for queue in quorum_queues(caller) if in_vhost(queue.vhost) and in_name(queue.name)]


def _fits(queue: DeclaredQueue, strategy: str) -> bool:
    return strategy == "all" or len(member_nodes(queue)) % 2 == 0


def _check_not_last(queue: DeclaredQueue) -> None:
    if len(member_nodes(queue)) == 1:
        raise last_node(queue)


def refused(queue: DeclaredQueue, word: str, text: str) -> PreconditionFailed:
    """Return a refusal that begins with RabbitMQ's word."""
    return PreconditionFailed(
        f"queue '{queue.name}'", f"{word}: queue '{queue.name}' in vhost '{queue.vhost}': {text}"
    )


STREAM_COLUMNS: Final = (
    *("role", "node", "epoch", "offset", "committed_offset", "committed_chunk_id", "first_offset", "readers"),
    "segments",
)


@operation(
    "stream-status",
    "stream",
    changes=False,
    command=Command("queue stream-status", "events", columns=STREAM_COLUMNS, tool=True),
)
async def stream_status(caller: Caller, name: Name) -> list[dict[str, Any]]:
    """Show how a stream stands on its node.

    Raises `NotFound` if its node is down, too.
    """
    cluster = caller.node.cluster
    stream = _stream(caller, name)
    stream.check_up()
    if stream.home != cluster.number:
        found: list[dict[str, Any]] = await cluster.run_at(
            stream.home, "stream-status", {"name": name}, stream.vhost
        )
        return found
    figures = stream.handle.figures()
    last = None if figures.next_offset is None else figures.next_offset - 1
    row = {
        "role": "leader",
        "node": caller.node_names()[stream.home],
        "epoch": 1,
        "offset": last,
        "committed_offset": last,
        "committed_chunk_id": None,
        "first_offset": figures.first_offset,
        "readers": figures.consumers,
        "segments": figures.segments,
    }
    return [row]


def _stream(caller: Caller, name: str) -> DeclaredQueue:
    queue = caller.vhost.lookup(name)
    if not queue.kind.replays:
        text = f"queue '{name}' in vhost '{queue.vhost}' is no stream; see 'amqp10broker queue quorum-status'"
        raise NotSupported(f"queue '{name}'", text)
    return queue
