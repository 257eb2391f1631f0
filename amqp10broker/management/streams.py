"""Operations on where a stream is: it stays on the node where it was declared.

They are for administrators, and have the names that RabbitMQ's `rabbitmq-streams` has. What would need a
second replica is refused, and what is so already is answered so.
"""

from __future__ import annotations

from typing import Any

from amqp10broker.catalog.queue import DeclaredQueue
from amqp10broker.errors import NotSupported
from amqp10broker.management.caller import Caller, Job
from amqp10broker.management.members import names, node_named, refused

Row = dict[str, Any]


def stream_status(caller: Caller, name: str) -> Job | list[Row]:
    """How the one replica of a stream stands: a row in the columns of RabbitMQ.

    Raises:
        NotFound: there is no such queue, or its node cannot be reached.
        NotSupported: it is no stream.
        PermissionDenied: the caller is no administrator.
    """
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
    """Have a replica of a stream on a node: the one that has it, or none.

    Returns:
        ``{"added": False, "size": 1}``.

    Raises:
        NotFound: there is no such queue, or node.
        NotSupported: it is no stream, or it is elsewhere.
        PermissionDenied: the caller is no administrator.
    """
    caller.may_administer("add-replica")
    stream = _stream(caller, name)
    if node_named(caller, node) != stream.home:
        raise _stays(caller, stream, f"it gets no replica on node '{node}'")
    return {"added": False, "size": 1}


def delete_replica(caller: Caller, name: str, node: str) -> Row:
    """Have no replica of a stream on a node; one that is not there is no error.

    Returns:
        ``{"deleted": False, "size": 1}``.

    Raises:
        NotFound: there is no such queue, or node.
        NotSupported: it is no stream.
        PreconditionFailed: it is the only one.
        PermissionDenied: the caller is no administrator.
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
    """Have a stream led anew: by its node, which leads it all the time that it runs.

    Returns:
        ``{"leader": node}``.

    Raises:
        NotFound: there is no such queue, or node, or the stream's cannot be reached.
        NotSupported: it is no stream, or another node shall lead it.
        PermissionDenied: the caller is no administrator.
    """
    caller.may_administer("restart-stream")
    stream = _stream(caller, name)
    if preferred_leader is not None and node_named(caller, preferred_leader) != stream.home:
        raise _stays(caller, stream, f"node '{preferred_leader}' cannot lead it")
    stream.check_up()
    return {"leader": names(caller)[stream.home]}


def _stream(caller: Caller, name: str) -> DeclaredQueue:
    """A stream.

    Raises:
        NotFound: there is no such queue.
        NotSupported: it is of another kind.
    """
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
