"""Operations on the replica of a stream, which stays on the node where it was declared.

They have the names of RabbitMQ's `rabbitmq-streams`. Requests for a second replica are refused, and those
without a change succeed. They raise
`NotFound` if the queue or node does not exist, and `NotSupported` if the queue is not a stream.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from amqp10broker.errors import NotSupported
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.operations.arguments import Name, NodeName
from amqp10broker.operations.caller import Caller
from amqp10broker.operations.members import names, node_named, refused
from amqp10broker.operations.operation import Command, operation

Row = dict[str, Any]
STREAM_COLUMNS: Final = (
    *("role", "node", "epoch", "offset", "committed_offset", "committed_chunk_id", "first_offset", "readers"),
    "segments",
)


@operation(
    "stream-status", "stream", changes=False, command=Command("events", columns=STREAM_COLUMNS, tool=True)
)
async def stream_status(caller: Caller, name: Name) -> list[Row]:
    """Show how a stream stands on its node."""
    cluster = caller.node.cluster
    stream = _stream(caller, name)
    stream.check_up()
    if stream.home != cluster.number:
        found: list[Row] = await cluster.run_at(stream.home, "stream-status", {"name": name}, stream.vhost)
        return found
    figures = stream.handle.figures()
    last = None if figures.next_offset is None else figures.next_offset - 1
    row = {
        "role": "leader",
        "node": names(caller)[stream.home],
        "epoch": 1,
        "offset": last,
        "committed_offset": last,
        "committed_chunk_id": None,
        "first_offset": figures.first_offset,
        "readers": figures.consumers,
        "segments": figures.segments,
    }
    return [row]


@operation(
    "add-replica",
    "stream",
    changes=False,
    command=Command("events a", "stream '{name}' is on {node} already", tool=True),
)
def add_replica(caller: Caller, name: Name, node: NodeName) -> Row:
    """Have a replica of a stream on a node: refused but on its own, for a stream stays on its node.

    Returns ``{"added": False, "size": 1}``. Raises `NotSupported` if the replica is elsewhere.
    """
    stream = _stream(caller, name)
    if node_named(caller, node) != stream.home:
        raise _stays(caller, stream, f"it gets no replica on node '{node}'")
    return {"added": False, "size": 1}


@operation(
    "delete-replica",
    "stream",
    changes=False,
    command=Command("events b", "stream '{name}' had no replica on {node}", tool=True),
)
def delete_replica(caller: Caller, name: Name, node: NodeName) -> Row:
    """Have no replica of a stream on a node: refused on its own, where the only one is.

    Returns ``{"deleted": False, "size": 1}``. Raises `PreconditionFailed` if it is the only replica.
    """
    stream = _stream(caller, name)
    if node_named(caller, node) == stream.home:
        text = (
            f"node '{node}' has its only replica; delete the stream if it is not wanted: delete queue {name}"
        )
        raise refused(stream, "last_stream_member", text)
    return {"deleted": False, "size": 1}


@operation(
    "restart-stream",
    "stream",
    changes=False,
    command=Command("events", "stream '{name}' is led by {leader}, as before", tool=True),
)
def restart_stream(
    caller: Caller,
    name: Name,
    preferred_leader: Annotated[str | None, "name of the node that shall lead it"] = None,
) -> Row:
    """Have a stream led anew: by its node, as before.

    Raises `NotSupported` if another node is requested.
    """
    stream = _stream(caller, name)
    if preferred_leader is not None and node_named(caller, preferred_leader) != stream.home:
        raise _stays(caller, stream, f"node '{preferred_leader}' cannot lead it")
    stream.check_up()
    return {"leader": names(caller)[stream.home]}


def _stream(caller: Caller, name: str) -> DeclaredQueue:
    queue = caller.vhost.lookup(name)
    if not queue.kind.replays:
        text = (
            f"queue '{name}' in vhost '{queue.vhost}' is no stream; members of a quorum queue: quorum-status"
        )
        raise NotSupported(f"queue '{name}'", text)
    return queue


def _stays(caller: Caller, stream: DeclaredQueue, what: str) -> NotSupported:
    home = names(caller).get(stream.home, f"node {stream.home}")
    return NotSupported(
        f"queue '{stream.name}'",
        f"stream '{stream.name}' in vhost '{stream.vhost}' stays on its node, which is '{home}': {what}. "
        "Clients use it at any node",
    )
