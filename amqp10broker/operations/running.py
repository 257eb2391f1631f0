"""Operations on the running node: status, settings, alarms, connections, recordings, traces.

They are for administrators (users with that tag, and the machine's owner at the local socket), and raise
`PermissionDenied` for others. A missing node, virtual host or watch raises `NotFound`; operations on faults
raise `NotSupported` unless the broker is in test mode.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from amqp10broker.errors import BadRequest, ConfigError, NotSupported
from amqp10broker.operations.caller import Caller, Job, Lines
from amqp10broker.operations.cluster import without_leader
from amqp10broker.operations.cluster_node import ClusterNode
from amqp10broker.operations.members import names, node_named, others
from amqp10broker.operations.node import FaultsOnRequest, Node
from amqp10broker.operations.snapshot import document

T = TypeVar("T")

CONNECTIONS_ASKED_FOR: Final = 100
"""Connections per request to another node: some hundred KB."""
WAITING_ASKED_FOR: Final = 1_000
"""Waiting things per request to another node: half a MB."""
CLOSED_BY_OPERATOR: Final = "closed by an operator"


def status(caller: Caller, choose: dict[str, Any]) -> dict[str, Any]:
    """Return the broker's activity as a document. Raises `BadRequest` if `choose` is not valid."""
    return document(caller.administered("status").view(choose))


def connections(caller: Caller, where: str, after: int, limit: int | None) -> Job:
    """List connections of clients, as documents of `ConnectionView`, each with the name of its ``node``.
    `limit`: maximum of those here; None: all.
    """
    node = caller.administered("connections")
    named = names(caller)

    async def gather() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        if where != "elsewhere":
            own = named[node.cluster.number]
            found += [document(each) | {"node": own} for each in await node.connections(after, limit)]
        if where != "here":
            for number in others(caller, node.cluster):
                found += await _connections_to(node.cluster, number)
        return found

    return Job(gather)


async def _connections_to(cluster: ClusterNode, number: int) -> list[dict[str, Any]]:
    # One that stops answering has no more of them, as with RabbitMQ.
    found: list[dict[str, Any]] = []
    last = 0
    while True:
        given = {"after": last, "limit": CONNECTIONS_ASKED_FOR}
        part = (await cluster.run_at_each((number,), "connections", given, None)).get(number, ())
        found += part
        if len(part) < CONNECTIONS_ASKED_FOR:
            return found
        last = part[-1]["id"]


def waiting(
    caller: Caller,
    connection: int | None,
    user: str | None,
    queue: str | None,
    link: str | None,
    reason: str | None,
    longer: int | None,
    idle: bool,
    limit: int | None,
    node: str | None,
    queues: bool,
) -> Job:
    """List what waits at any node, the longest first; idle ones last, if requested.

    Of each other node the list contains the first `WAITING_ASKED_FOR`, and the counts all.

    Returns:
        ``{"summary": {...}, "waiting": [{...}, ...], "unreached": [names], "nodes": int, "notes": [str],
            "queues_without_leader": {...}}`` of `SummaryView` and `WaitingView`, each of these with the name
            of its ``node``; the number of nodes; faults of their clocks; and `without_leader` of this one.
            Nodes in ``unreached`` are not included.

    Raises:
        BadRequest: the choice is not valid.
    """
    running = caller.administered("waiting")
    cluster, named = running.cluster, names(caller)
    chosen = {"connection": connection, "user": user, "queue": queue, "link": link, "reason": reason}
    here = node == "" or (node is None and connection is not None)
    number = node_named(caller, node) if node else cluster.number if here else None
    given = chosen | {"longer": longer, "idle": idle, "limit": limit, "node": "", "queues": False}
    if number not in (None, cluster.number):
        return Job(lambda: cluster.run_at(number, "waiting", given, None))

    async def gather() -> dict[str, Any]:
        choose = chosen | {"longer_s": longer, "idle": idle, "limit": limit}
        summary, found = await running.waiting(choose, queues=queues)
        own = named[cluster.number]
        counts, lines = document(summary), [document(each) | {"node": own} for each in found]
        notes = [f"{own}: {note}" for note in running.clock_notes()]
        lacking = without_leader(cluster)
        if number is not None:
            return {
                "summary": counts,
                "waiting": lines,
                "unreached": [],
                "nodes": 1,
                "notes": notes,
                "queues_without_leader": lacking,
            }
        asked = others(caller, cluster)
        most = given | {"limit": min(limit or WAITING_ASKED_FOR, WAITING_ASKED_FOR)}
        told = await cluster.run_at_each(asked, "waiting", most, None)
        for each in told.values():
            counts = _added(counts, each["summary"])
            lines += each["waiting"]
            notes += each.get("notes", ())
        lines.sort(key=lambda line: (line["idle"], -(line["waits_for_s"] or 0.0)))
        unreached = [name for each, name in named.items() if each != cluster.number and each not in told]
        return {
            "summary": counts,
            "waiting": lines[:limit],
            "unreached": unreached,
            "nodes": len(named),
            "notes": notes,
            "queues_without_leader": lacking,
        }

    return Job(gather)


def _added(counts: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    # Queues are those that were counted first.
    reasons = Counter(counts["reasons"])
    reasons.update(more["reasons"])
    return counts | {
        **{name: counts[name] + more[name] for name in _ADDED},
        "reasons": dict(reasons.most_common()),
        "idle_reasons": list(dict.fromkeys([*counts["idle_reasons"], *more["idle_reasons"]])),
    }


_ADDED: Final = (
    *("connections", "connections_in_all", "links", "consumers", "channels"),
    *("waiting", "links_waiting", "consumers_waiting", "channels_waiting"),
)


def set_flow(caller: Caller, name: str, value: int | str) -> dict[str, Any]:
    """Change a flow setting for later grants. Raises `BadRequest` if the name does not exist, or the value is
    out of range.
    """
    node = caller.administered("set")
    try:
        node.set_flow(name, value)
    except ConfigError as error:
        raise BadRequest("setting", str(error)) from error
    return {name: value}


def set_limit(caller: Caller, name: str, value: str) -> dict[str, Any]:
    """Change the threshold of an alarm. Returns ``{"limit_bytes": int | None, "alarms": [names]}``. Raises
    `BadRequest` if the name does not exist, or the value is not valid.
    """
    node = caller.administered("set-limit")
    try:
        limit = node.set_limit(name, value)
    except ConfigError as error:
        raise BadRequest("limit", str(error)) from error
    return {"limit_bytes": limit, "alarms": node.alarms()}


def set_alarm(caller: Caller, name: str, on: bool) -> dict[str, Any]:
    """Raise an alarm by hand, or cancel that; it stays on while it has another reason."""
    node = caller.administered("alarm")
    node.set_alarm(name, on)
    return {"alarms": node.alarms()}


def close_connection(caller: Caller, id: int, reason: str, node: str | None) -> dict[str, Any] | Job:
    """Close one connection in order. Raises `NotFound`."""
    running = caller.administered("close-connection")

    def close() -> dict[str, Any]:
        running.close_connection(id, reason or CLOSED_BY_OPERATOR)
        return {"id": id}

    return _at(caller, running, node, "close-connection", {"id": id, "reason": reason}, close)


def list_suspended_links(caller: Caller, node: str | None) -> list[dict[str, Any]] | Job:
    """List durable links that are not attached, as documents of `SuspendedLinkView`. Raises `NotFound`."""
    running = caller.administered("list-suspended-links")

    def look() -> list[dict[str, Any]]:
        return [document(each) for each in running.suspended_links()]

    return _at(caller, running, node, "list-suspended-links", {}, look)


def end_suspended_link(caller: Caller, link: int, node: str | None) -> dict[str, Any] | Job:
    """End a suspended link before its time, and return its last document. Raises `NotFound`."""
    running = caller.administered("end-suspended-link")

    def end() -> dict[str, Any]:
        return document(running.end_suspended_link(link))

    return _at(caller, running, node, "end-suspended-link", {"link": link}, end)


def start_recording(caller: Caller, folder: str, every: int | None, run: str | None) -> Job:
    """Begin to record flow events. Raises `BadRequest` if the folder's name is not valid."""
    node = caller.administered("record-start")
    return Job(partial(node.start_recording, _path("recording", folder), every, run), document)


def stop_recording(caller: Caller) -> Job:
    """End the recording of flow events."""
    return Job(caller.administered("record-stop").stop_recording, document)


def show_recording(caller: Caller) -> dict[str, Any]:
    """Return the state of the recording."""
    return document(caller.administered("record-status").recording())


def trace(caller: Caller, what: str, on: bool, file: str | None, frames: bool) -> dict[str, Any] | Lines:
    """Begin a trace into a file, or as lines that follow the answer; or end one of any kind.

    Raises:
        BadRequest: the file's name is not valid.
        NotFound: there is nothing to trace, or no such trace.
        NotAllowed: it is being traced already.
    """
    node = caller.administered("trace")
    if not on:
        return document(node.end_trace(what))
    if file is None:
        return Lines(
            lambda sink: document(node.trace_into(what, sink, frames=frames)), partial(node.end_trace, what)
        )
    return document(node.trace_into_file(what, _path("trace", file), frames=frames))


def watches(caller: Caller, node: str | None) -> Job:
    """List watched links, channels and consumers, each with the name of its ``node``. Raises `NotFound`."""
    running = caller.administered("watches")
    cluster, own = running.cluster, names(caller)[running.cluster.number]

    async def gather() -> list[dict[str, Any]]:
        found = [document(each) | {"node": own} for each in running.watches()]
        asked = others(caller, cluster) if node is None else ()
        for told in (await cluster.run_at_each(asked, "watches", {"node": ""}, None)).values():
            found += told
        return found

    return _at(caller, running, node or None, "watches", {"node": ""}, lambda: Job(gather))


def watch_link(
    caller: Caller, connection: int, link: str | None, channel: int | None, role: str | None, node: str | None
) -> dict[str, Any] | Job:
    """Record the frames of a link, or of a channel of AMQP 0-9-1, for its timeline.

    Raises:
        BadRequest, NotFound, NotAllowed: as `Node.watch_link`.
    """
    running = caller.administered("watch-link")
    given = {"connection": connection, "link": link, "channel": channel, "role": role}
    own = names(caller)[running.cluster.number]

    def begin() -> dict[str, Any]:
        return document(running.watch_link(connection, link, channel, role)) | {"node": own}

    return _at(caller, running, node, "watch-link", given, begin)


def unwatch_link(caller: Caller, watch: int, node: str | None, user: str | None) -> dict[str, Any] | Job:
    """End a watch, if no other client uses it. Raises `NotFound`."""
    running = caller.administered("unwatch-link")
    given = {"watch": watch, "user": user}
    return _at(
        caller, running, node, "unwatch-link", given, lambda: document(running.unwatch_link(watch, user))
    )


def follow_links(caller: Caller, vhost: str | None, on: bool) -> dict[str, Any]:
    """Watch every link and channel of a virtual host from its beginning on, or stop that. Returns a document
    of `FollowedView` with the present or last watches.
    """
    node = caller.administered("follow-links")
    name = caller.vhost.name if vhost is None else vhost
    if on:
        caller.catalog.lookup_vhost(name)
    return document(node.follow_links(name, on=on))


def inject_fault(
    caller: Caller,
    kind: str,
    vhost: str | None,
    queue: str | None,
    client: str | None,
    link: str | None,
    count: int | None,
    condition: str,
    code: int,
    text: str,
) -> dict[str, Any]:
    """Inject a fault until it is lifted.

    Raises:
        BadRequest: as `FaultsOnRequest.inject`.
    """
    faults = _faults(caller, "inject-fault")
    name = caller.vhost.name if vhost is None else vhost
    caller.catalog.lookup_vhost(name)
    return document(faults.inject(kind, name, queue, client, link, count, condition, code, text))


def lift_fault(caller: Caller, fault: int) -> dict[str, Any]:
    """Remove a fault, and release what it has held back. Raises `NotFound` if it does not exist."""
    return document(_faults(caller, "lift-fault").lift(fault))


def list_faults(caller: Caller) -> list[dict[str, Any]]:
    """List the present faults. Raises `NotSupported` if the broker is not in test mode."""
    return [document(each) for each in _faults(caller, "list-faults").views()]


def _faults(caller: Caller, operation: str) -> FaultsOnRequest:
    faults = caller.administered(operation).faults
    if faults is None:
        text = "faults are for brokers in test mode: start one with --test-mode, and without otel_endpoint"
        raise NotSupported("fault", text)
    return faults


def timeline(
    caller: Caller,
    watch: int,
    since: int | None,
    limit: int,
    frames: bool,
    node: str | None,
    user: str | None,
) -> dict[str, Any] | Job:
    """Return the actions of a link since its watch began or a cursor; ``watched`` identifies the link."""
    running = caller.administered("timeline")
    own = names(caller)[running.cluster.number]
    given = {"watch": watch, "since": since, "limit": limit, "frames": frames, "user": user}

    def tell() -> dict[str, Any]:
        watched, told = running.timeline(watch, since, limit, frames=frames, user=user)
        return {"watched": document(watched) | {"node": own}, **told}

    return _at(caller, running, node, "timeline", given, tell)


def _at(
    caller: Caller,
    running: Node,
    node: str | None,
    operation: str,
    given: dict[str, Any],
    here: Callable[[], T],
) -> T | Job:
    # At the node to which a client is connected, perhaps this one.
    number = None if node is None else node_named(caller, node)
    if number in (None, running.cluster.number):
        return here()
    return Job(lambda: running.cluster.run_at(number, operation, given, None))


def _path(noun: str, path: str) -> str:
    if not path or "\0" in path:
        raise BadRequest(noun, f"{noun}: {path!r} is no path of a file or folder: give one")
    return path
