"""Operations on the running node: status, settings, alarms, connections, recordings, traces.

They are for administrators: users with that tag, and the machine's owner at the local socket.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from amqp10broker.errors import BadRequest, ConfigError
from amqp10broker.management.caller import Caller, Job, Lines
from amqp10broker.management.members import names, node_named, others
from amqp10broker.management.snapshot import document

CLOSED_BY_OPERATOR: Final = "closed by an operator"


def status(caller: Caller, choose: dict[str, Any], everywhere: bool) -> dict[str, Any] | Job:
    """What the broker is doing, as a document.

    Args:
        caller: on whose behalf.
        choose: what of it.
        everywhere: with the connections of all nodes that answer; each says its ``node`` then.

    Raises:
        BadRequest: what is chosen by cannot be understood.
        PermissionDenied: the caller is no administrator.
    """
    node = caller.administered("status")
    here = document(node.view(choose))
    if not everywhere:
        return here

    async def gather() -> dict[str, Any]:
        named = names(caller)
        found = [{**each, "node": named[node.cluster.number]} for each in here["connections"]]
        asked = others(caller, node.cluster)  # what does not answer is left out, as by RabbitMQ
        answers = await node.cluster.run_at_each(asked, "status", {"choose": choose}, None)
        for number, there in answers.items():
            found += [{**each, "node": named[number]} for each in there["connections"]]
        return {**here, "connections": found}

    return Job(gather)


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
) -> dict[str, Any]:
    """What waits on this node, the longest first; what is idle, if that is asked for, last.

    Returns:
        ``{"summary": {...}, "waiting": [{...}, ...]}`` of `SummaryView` and `WaitingView`.

    Raises:
        BadRequest: what is chosen by cannot be understood.
        PermissionDenied: the caller is no administrator.
    """
    choose = {"connection": connection, "user": user, "queue": queue, "link": link, "reason": reason}
    choose |= {"longer_s": longer, "idle": idle, "limit": limit}
    view = caller.administered("waiting").view(choose)
    return {"summary": document(view.summary), "waiting": [document(each) for each in view.waiting]}


def set_flow(caller: Caller, name: str, value: int) -> dict[str, Any]:
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
    number = None if node is None else node_named(caller, node)
    if number not in (None, running.cluster.number):
        given = {"id": id, "reason": reason}
        return Job(lambda: running.cluster.run_at(number, "close-connection", given, None))
    running.close_connection(id, reason or CLOSED_BY_OPERATOR)
    return {"id": id}


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


def trace(caller: Caller, what: str, on: bool, file: str | None) -> dict[str, Any] | Lines:
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
        return Lines(lambda sink: document(node.trace_into(what, sink)), partial(node.end_trace, what))
    return document(node.trace_into_file(what, _path("trace", file)))


def watch_link(
    caller: Caller, connection: int, link: str | None, channel: int | None, role: str | None
) -> dict[str, Any]:
    """Record the frames of a link, or of a channel of AMQP 0-9-1, for its timeline.

    Raises:
        BadRequest, NotFound, NotAllowed: see `Node.watch_link`.
        PermissionDenied: the caller is no administrator.
    """
    return document(caller.administered("watch-link").watch_link(connection, link, channel, role))


def unwatch_link(caller: Caller, watch: int) -> dict[str, Any]:
    """Record them no more, if nobody else looks.

    Raises:
        NotFound: there is no such watch, or it is over.
        PermissionDenied: the caller is no administrator.
    """
    return document(caller.administered("unwatch-link").unwatch_link(watch))


def timeline(caller: Caller, watch: int, since: int | None, limit: int, frames: bool) -> dict[str, Any]:
    """What a link did, since it is watched or since a cursor.

    Raises:
        NotFound: there is no such watch, or it is over.
        PermissionDenied: the caller is no administrator.
    """
    return caller.administered("timeline").timeline(watch, since, limit, frames=frames)


def _path(noun: str, path: str) -> str:
    if not path or "\0" in path:
        raise BadRequest(noun, f"{noun}: {path!r} is no path of a file or folder: give one")
    return path
