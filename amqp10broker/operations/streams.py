"""The status of a stream, which stays on the node where it was declared."""

from __future__ import annotations

from typing import Any, Final

from amqp10broker.errors import NotSupported
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.operations.arguments import Name
from amqp10broker.operations.caller import Caller
from amqp10broker.operations.members import names
from amqp10broker.operations.operation import Command, operation

Row = dict[str, Any]
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
async def stream_status(caller: Caller, name: Name) -> list[Row]:
    """Show how a stream stands on its node.

    Raises `NotFound` if it does not exist or its node is down, and `NotSupported` if it is not a stream.
    """
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


def _stream(caller: Caller, name: str) -> DeclaredQueue:
    queue = caller.vhost.lookup(name)
    if not queue.kind.replays:
        text = f"queue '{name}' in vhost '{queue.vhost}' is no stream; see 'amqp10broker queue quorum-status'"
        raise NotSupported(f"queue '{name}'", text)
    return queue
