"""Operations on the running node: status, settings, alarms, connections, recordings, traces.

They are for administrators: users with that tag, and the machine's owner at the local socket.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from amqp10broker.errors import BadRequest, ConfigError, NotSupported
from amqp10broker.management.caller import Caller, Job, Lines
from amqp10broker.management.cluster import without_leader
from amqp10broker.management.cluster_node import ClusterNode
from amqp10broker.management.members import names, node_named, others
from amqp10broker.management.node import FaultsOnRequest, Node
from amqp10broker.management.snapshot import document

T = TypeVar("T")

CONNECTIONS_ASKED_FOR: Final = 100
"""At once of another node: some hundred KB."""
WAITING_ASKED_FOR: Final = 1_000
"""Of another node: half a MB."""
CLOSED_BY_OPERATOR: Final = "closed by an operator"


def status(caller: Caller, choose: dict[str, Any]) -> dict[str, Any]:
    """What the broker is doing, as a document.

    Args:
        caller: on whose behalf.
        choose: what of it.

    Raises:
        BadRequest: what is chosen by cannot be understood.
        PermissionDenied: the caller is no administrator.
    """
    return document(caller.administered("status").view(choose))


def connections(caller: Caller, where: str, after: int, limit: int | None) -> Job:
    """Connections of clients, as documents of `ConnectionView`, each with the name of its ``node``.

    Args:
        caller: on whose behalf.
        where: ``here``, ``elsewhere``: to other nodes that run and answer, or ``everywhere``.
        after: only those here with greater numbers.
        limit: so many of those here; None: all.

    Raises:
        PermissionDenied: the caller is no administrator.
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
    """Those to another node. One that stops answering has no more of them, as with RabbitMQ."""
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
    """What waits at any node, the longest first; what is idle, if that is asked for, last.

    Of each other node it has the `WAITING_ASKED_FOR` that wait longest, and counts all.

    Returns:
        ``{"summary": {...}, "waiting": [{...}, ...], "unreached": [names], "nodes": int, "notes": [str],
        "queues_without_leader": {...}}`` of `SummaryView` and `WaitingView`, each of these with the name of
        its ``node``; of how many nodes; what is wrong with their clocks; and `without_leader` of this one.
        What clients of those nodes wait for that are not reached is not known.

    Raises:
        BadRequest: what is chosen by cannot be understood.
        NotFound: there is no such node.
        PermissionDenied: the caller is no administrator.
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
    """What two nodes count, together; queues are those that were counted first."""
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
    """Change a flow setting; what is granted from now on follows it.

    Raises:
        BadRequest: there is none of this name, or it is out of range.
        PermissionDenied: the caller is no administrator.
    """
    node = caller.administered("set")
    try:
        node.set_flow(name, value)
    except ConfigError as error:
        raise BadRequest("setting", str(error)) from error
    return {name: value}


def set_limit(caller: Caller, name: str, value: str) -> dict[str, Any]:
    """Change where an alarm begins.

    Returns:
        ``{"limit_bytes": int | None, "alarms": [names]}``.

    Raises:
        BadRequest: there is none of this name, or it cannot be read.
        PermissionDenied: the caller is no administrator.
    """
    node = caller.administered("set-limit")
    try:
        limit = node.set_limit(name, value)
    except ConfigError as error:
        raise BadRequest("limit", str(error)) from error
    return {"limit_bytes": limit, "alarms": node.alarms()}


def set_alarm(caller: Caller, name: str, on: bool) -> dict[str, Any]:
    """Raise an alarm by hand, or take that back; it stays on while it has another reason.

    Raises:
        PermissionDenied: the caller is no administrator.
    """
    node = caller.administered("alarm")
    node.set_alarm(name, on)
    return {"alarms": node.alarms()}


def close_connection(caller: Caller, id: int, reason: str, node: str | None) -> dict[str, Any] | Job:
    """Close one connection in order.

    Raises:
        NotFound: there is none of this number, or no such node.
        PermissionDenied: the caller is no administrator.
    """
    running = caller.administered("close-connection")

    def close() -> dict[str, Any]:
        running.close_connection(id, reason or CLOSED_BY_OPERATOR)
        return {"id": id}

    return _at(caller, running, node, "close-connection", {"id": id, "reason": reason}, close)


def list_suspended_links(caller: Caller, node: str | None) -> list[dict[str, Any]] | Job:
    """Links that are kept, and have no end in a session now, as documents of `SuspendedLinkView`.

    Raises:
        NotFound: there is no such node.
        PermissionDenied: the caller is no administrator.
    """
    running = caller.administered("list-suspended-links")

    def look() -> list[dict[str, Any]]:
        return [document(each) for each in running.suspended_links()]

    return _at(caller, running, node, "list-suspended-links", {}, look)


def end_suspended_link(caller: Caller, link: int, node: str | None) -> dict[str, Any] | Job:
    """End one before its time; as it was shown until then.

    Raises:
        NotFound: none of this number is suspended, or there is no such node.
        PermissionDenied: the caller is no administrator.
    """
    running = caller.administered("end-suspended-link")

    def end() -> dict[str, Any]:
        return document(running.end_suspended_link(link))

    return _at(caller, running, node, "end-suspended-link", {"link": link}, end)


def start_recording(caller: Caller, folder: str, every: int | None, run: str | None) -> Job:
    """Begin to record flow events.

    Raises:
        BadRequest: the folder's name is none.
        PermissionDenied: the caller is no administrator.
    """
    node = caller.administered("record-start")
    return Job(partial(node.start_recording, _path("recording", folder), every, run), document)


def stop_recording(caller: Caller) -> Job:
    """End the recording.

    Raises:
        PermissionDenied: the caller is no administrator.
    """
    return Job(caller.administered("record-stop").stop_recording, document)


def show_recording(caller: Caller) -> dict[str, Any]:
    """How the recording goes.

    Raises:
        PermissionDenied: the caller is no administrator.
    """
    return document(caller.administered("record-status").recording())


def trace(caller: Caller, what: str, on: bool, file: str | None, frames: bool) -> dict[str, Any] | Lines:
    """Begin a trace into a file, or as lines that follow the answer; or end one of any kind.

    Raises:
        BadRequest: the file's name is none.
        NotFound: there is nothing to trace, or no such trace.
        NotAllowed: it is being traced already.
        PermissionDenied: the caller is no administrator.
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
    """Links, channels and consumers whose frames are recorded, each with the name of its ``node``.

    Raises:
        NotFound: there is no such node.
        PermissionDenied: the caller is no administrator.
    """
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
        BadRequest, NotFound, NotAllowed: see `Node.watch_link`.
        PermissionDenied: the caller is no administrator.
    """
    running = caller.administered("watch-link")
    given = {"connection": connection, "link": link, "channel": channel, "role": role}
    own = names(caller)[running.cluster.number]

    def begin() -> dict[str, Any]:
        return document(running.watch_link(connection, link, channel, role)) | {"node": own}

    return _at(caller, running, node, "watch-link", given, begin)


def unwatch_link(caller: Caller, watch: int, node: str | None, user: str | None) -> dict[str, Any] | Job:
    """Record them no more, if nobody else looks.

    Raises:
        NotFound: there is no such watch, or it is over.
        PermissionDenied: the caller is no administrator.
    """
    running = caller.administered("unwatch-link")
    given = {"watch": watch, "user": user}
    return _at(
        caller, running, node, "unwatch-link", given, lambda: document(running.unwatch_link(watch, user))
    )


def follow_links(caller: Caller, vhost: str | None, on: bool) -> dict[str, Any]:
    """Watch every link and channel of a virtual host from its beginning on, or no more.

    Returns:
        A document of `FollowedView`: what is watched by now, or was to the end.

    Raises:
        NotFound: there is no such virtual host, or it is not followed.
        PermissionDenied: the caller is no administrator.
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
    """Have the broker commit a fault, until it is lifted.

    Raises:
        BadRequest: see `FaultsOnRequest.inject`.
        NotFound: there is no such virtual host.
        NotSupported: the broker is not in test mode.
        PermissionDenied: the caller is no administrator.
    """
    faults = _faults(caller, "inject-fault")
    name = caller.vhost.name if vhost is None else vhost
    caller.catalog.lookup_vhost(name)
    return document(faults.inject(kind, name, queue, client, link, count, condition, code, text))


def lift_fault(caller: Caller, fault: int) -> dict[str, Any]:
    """Have it committed no more; what it has kept back goes on its way.

    Raises:
        NotFound: it is not on.
        NotSupported: the broker is not in test mode.
        PermissionDenied: the caller is no administrator.
    """
    return document(_faults(caller, "lift-fault").lift(fault))


def list_faults(caller: Caller) -> list[dict[str, Any]]:
    """Faults that are committed at present.

    Raises:
        NotSupported: the broker is not in test mode.
        PermissionDenied: the caller is no administrator.
    """
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
    """What a link did, since it is watched or since a cursor; ``watched`` says which link that is.

    Raises:
        NotFound: there is no such watch, or it is over.
        PermissionDenied: the caller is no administrator.
    """
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
    """An operation at the node to which a client is connected, perhaps this one.

    Raises:
        NotFound: there is no such node.
    """
    number = None if node is None else node_named(caller, node)
    if number in (None, running.cluster.number):
        return here()
    return Job(lambda: running.cluster.run_at(number, operation, given, None))


def _path(noun: str, path: str) -> str:
    if not path or "\0" in path:
        raise BadRequest(noun, f"{noun}: {path!r} is no path of a file or folder: give one")
    return path
