"""Operations on the replica of a stream, which stays on the node where it was declared.

They are for administrators, raise `PermissionDenied` for others, and have the names of RabbitMQ's
`rabbitmq-streams`. Requests for a second replica are refused, and those without a change succeed. They raise
`NotFound` if the queue or node does not exist, and `NotSupported` if the queue is not a stream.
"""

from __future__ import annotations

from typing import Any

from amqp10broker.errors import NotSupported
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.operations.caller import Caller, Job
from amqp10broker.operations.members import names, node_named, refused

Row = dict[str, Any]


def stream_status(caller: Caller, name: str) -> Job | list[Row]:
    """Return the state of a stream's replica: a row in the columns of RabbitMQ."""
    cluster = caller.administered("stream-status").cluster
    stream = _stream(caller, name)
    stream.check_up()
    if stream.home != cluster.number:
        return Job(lambda: cluster.run_at(stream.home, "stream-status", {"name": name}, stream.vhost))
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


def add_replica(caller: Caller, name: str, node: str) -> Row:
    """Accept the node that has the stream's replica, and refuse any other. Returns ``{"added": False, "size":
    1}``. Raises `NotSupported` if the replica is elsewhere.
    """
    caller.may_administer("add-replica")
    stream = _stream(caller, name)
    if node_named(caller, node) != stream.home:
        raise _stays(caller, stream, f"it gets no replica on node '{node}'")
    return {"added": False, "size": 1}


def delete_replica(caller: Caller, name: str, node: str) -> Row:
    """Accept a node without a replica of the stream, and refuse the other. Returns ``{"deleted": False,
    "size": 1}``. Raises `PreconditionFailed` if it is the only replica.
    """
    caller.may_administer("delete-replica")
    stream = _stream(caller, name)
    if node_named(caller, node) == stream.home:
        text = (
            f"node '{node}' has its only replica; delete the stream if it is not wanted: delete queue {name}"
        )
        raise refused(stream, "last_stream_member", text)
    return {"deleted": False, "size": 1}


def restart_stream(caller: Caller, name: str, preferred_leader: str | None) -> Row:
    """Accept the node of a stream as its leader, which it always is while it runs. Raises `NotSupported` if
    another node is requested.
    """
    caller.may_administer("restart-stream")
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
