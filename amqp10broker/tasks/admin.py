"""The admin socket: a Unix socket in a private folder, one JSON line in, one JSON line out.

Only this user can reach it (folder 0700, socket 0600, and the peer's uid is asked of the kernel), so
it needs no password, and whoever is there may do everything. The CLI is its client. Requests of one
client are answered in their order; clients do not wait for each other.

::

    {"op": "status", "choose": {"user": "ann", "limit": 20}}  see `LOCAL`, `service.survey.Selection`
    {"op": "set", "name": "max_link_credit", "value": 50}
    {"op": "set-limit", "name": "disk_free_limit", "value": "1GB"}
    {"op": "close-connection", "id": 3, "reason": "..."}
    {"op": "record-start", "folder": "/path", "every": 50, "run": null}
    {"op": "trace", "what": "3", "on": true, "file": null}    lines may follow, see `trace_requests`
    {"op": "purge-queue", "vhost": "/", "arguments": {"name": "q"}}      see `management.operations`

    {"ok": true, "result": ...}
    {"ok": false, "error": "a sentence", "kind": "NotFound", "resource": "queue 'q'"}
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import trio

from amqp10broker import adminpath
from amqp10broker.errors import AdminSocketError, BrokerError, RefusedError
from amqp10broker.management.operations import OPERATIONS
from amqp10broker.management.snapshot import document
from amqp10broker.service.survey import Selection
from amqp10broker.tasks.lifeline import READ_BYTES
from amqp10broker.tasks.listener import OUT_OF_FILES, OUT_OF_FILES_PAUSE_S
from amqp10broker.tasks.log import Log
from amqp10broker.tasks.operations import close_connection, run_operation
from amqp10broker.tasks.trace_requests import OPERATION, is_stream, stream_trace, trace

if TYPE_CHECKING:
    from amqp10broker.tasks.broker import Broker

_log = Log("amqp10broker.admin")

REQUEST_BYTES_MAX: Final = 64 * 1024 * 1024
"""A definitions file with a hundred thousand bindings has some 20 MB."""
STREAM_REQUEST_BYTES_MAX: Final = 4096
CLIENTS_MAX: Final = 32
_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
"""What may be a surrogate, as JSON escapes it or as bytes; two that belong together are a character."""
IDLE_S: Final = 300.0
CLOSED_BY_OPERATOR: Final = "closed by an operator"


async def serve_admin(
    broker: Broker, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve the admin socket until cancelled; without one when it is switched off.

    Raises:
        AdminSocketError: a place that was asked for by name cannot be used.
    """
    configured = broker.config.admin_socket
    if configured == "":
        task_status.started()
        return
    path = configured or adminpath.default_path(broker.addresses[0][1])
    try:
        listening = adminpath.listen(path)
    except AdminSocketError as error:
        if configured is not None:
            raise
        _log.warning("no admin socket: 'amqp10broker status' will not reach this broker", reason=str(error))
        task_status.started()
        return
    try:
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
        async with trio.open_nursery() as clients, listener:
            task_status.started()
            while True:
                try:
                    stream = await listener.accept()
                except OSError as error:
                    if error.errno not in OUT_OF_FILES:
                        raise
                    _log.error("cannot accept an admin client", reason=str(error))
                    await trio.sleep(OUT_OF_FILES_PAUSE_S)
                    continue
                if len(clients.child_tasks) >= CLIENTS_MAX:
                    await stream.aclose()
                    continue
                clients.start_soon(_serve_client, broker, stream)
    finally:
        adminpath.remove(path)


async def _serve_client(broker: Broker, stream: trio.SocketStream) -> None:
    async with stream:
        uid = adminpath.peer_uid(stream.socket)  # type: ignore[arg-type]
        if uid is not None and uid != os.getuid():
            _log.warning("admin request of another user refused", uid=uid)
            return
        await serve_lines(broker, stream)


async def serve_lines(broker: Broker, stream: trio.abc.Stream) -> None:
    """Answer the requests of one client until it has gone, or has said nothing for long."""
    buffer = bytearray()
    with trio.CancelScope() as idle:
        try:
            while True:
                idle.deadline = trio.current_time() + IDLE_S
                data = await stream.receive_some(READ_BYTES)
                if not data:
                    return
                searched = len(buffer)
                buffer += data
                while (end := buffer.find(b"\n", searched)) >= 0:
                    line = bytes(buffer[:end])
                    del buffer[: end + 1]
                    searched = 0
                    # What is asked for is carried out, and told, however long it takes.
                    idle.deadline = float("inf")
                    request = _read(line)[0] if len(line) <= STREAM_REQUEST_BYTES_MAX else {}
                    if is_stream(request):
                        await _stream(broker, stream, request)
                        return
                    await stream.send_all(await _answer_line(broker, line))
                if len(buffer) > REQUEST_BYTES_MAX:
                    text = f"the request is longer than {REQUEST_BYTES_MAX} bytes: split it"
                    await stream.send_all(_encoded({"ok": False, "error": text}))
                    return
        except trio.BrokenResourceError as error:
            _log.debug("admin client lost", reason=str(error))


async def answer(broker: Broker, line: bytes) -> dict[str, Any]:
    """The response to one request line."""
    request, name = _read(line)
    if name not in LOCAL and name not in WAITING and name not in OPERATIONS:
        names = ", ".join(sorted({*LOCAL, *WAITING, *OPERATIONS}))
        return {"ok": False, "error": f"not a request: send one JSON object a line with op one of {names}"}
    if _HALF.search(line) and not _is_text(request):
        # A name with half a character could be declared, and no frame or file could hold it afterwards.
        return {
            "ok": False,
            "error": "a text has half a character in it, a lone surrogate: write it in UTF-8",
        }
    try:
        if name in LOCAL:
            return {"ok": True, "result": LOCAL[name](broker, request)}
        if name in WAITING:
            return {"ok": True, "result": await WAITING[name](broker, request)}
        given = request.get("arguments", {})
        vhost = request.get("vhost")
        if not isinstance(given, dict) or not isinstance(vhost, str | None):
            raise ValueError("'arguments' must be an object and 'vhost' a string")
        return {"ok": True, "result": await run_operation(broker, name, given, vhost)}
    except (BrokerError, ValueError) as error:
        return _refusal(error)
    except Exception as error:
        return _fault(error, name)


async def _stream(broker: Broker, stream: trio.abc.Stream, request: dict[str, Any]) -> None:
    """Answer a request after which lines follow until one side has enough."""
    try:
        await stream_trace(broker.tracing, stream, request)
    except (BrokerError, ValueError) as error:
        await stream.send_all(_encoded(_refusal(error)))


async def _answer_line(broker: Broker, line: bytes) -> bytes:
    response = await answer(broker, line)
    try:
        return _encoded(response)
    except (TypeError, ValueError, RecursionError) as error:
        return _encoded(_fault(error, _read(line)[1]))


def _refusal(error: BrokerError | ValueError) -> dict[str, Any]:
    if isinstance(error, RefusedError):
        kind = type(error).__name__
        return {"ok": False, "error": error.description, "kind": kind, "resource": error.resource}
    return {"ok": False, "error": str(error)}


def _fault(error: Exception, operation: str) -> dict[str, Any]:
    _log.error("request failed by a fault in the broker", operation=operation, exc_info=error)
    return {"ok": False, "error": f"a fault in the broker ({type(error).__name__}); its log says more"}


def _read(line: bytes) -> tuple[dict[str, Any], str]:
    """A request and what it asks for; an empty name if it is none."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        return {}, ""
    name = request.get("op") if isinstance(request, dict) else None
    return (request, name) if isinstance(name, str) else ({}, "")


def _is_text(request: dict[str, Any]) -> bool:
    """Whether all texts in it have a form in UTF-8."""
    try:
        json.dumps(request, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _encoded(response: dict[str, Any]) -> bytes:
    return json.dumps(response, default=_plain).encode() + b"\n"


def _plain(value: object) -> object:
    """What JSON has no form for: arguments that AMQP clients gave may hold it."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode(errors="backslashreplace")
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    return str(value)


# --- what is asked of the broker itself -----------------------------------------------------------


def _status(broker: Broker, request: dict[str, Any]) -> dict[str, Any]:
    chosen = request.get("choose", {})
    if not isinstance(chosen, dict):
        raise ValueError("'choose' must be an object")
    return broker.status(Selection.read(chosen))


def _set(broker: Broker, request: dict[str, Any]) -> dict[str, Any]:
    name = str(request.get("name"))
    broker.set_flow(name, request.get("value"), source=f"set {name}")
    return {name: request.get("value")}


def _alarm(broker: Broker, request: dict[str, Any]) -> dict[str, Any]:
    on = request.get("on")
    if not isinstance(on, bool):
        raise ValueError("'on' must be true or false")
    broker.set_alarm(str(request.get("name")), on=on)
    return {"alarms": sorted(broker.alarms)}


def _set_limit(broker: Broker, request: dict[str, Any]) -> dict[str, Any]:
    name = str(request.get("name"))
    limit = broker.set_limit(name, request.get("value"), source=f"set {name}")
    return {"limit_bytes": limit, "alarms": sorted(broker.alarms)}


def _close_connection(broker: Broker, request: dict[str, Any]) -> dict[str, Any]:
    number = request.get("id")
    reason = request.get("reason") or CLOSED_BY_OPERATOR
    if isinstance(number, bool) or not isinstance(number, int) or not isinstance(reason, str):
        raise ValueError("'id' must be a connection's number and 'reason' a string")
    close_connection(broker, number, reason)
    return {"id": number}


def _record_status(broker: Broker, request: dict[str, Any]) -> dict[str, Any]:
    view, failed = broker.recordings.view(), broker.recordings.failed
    return {
        "recording": None if view is None else document(view),
        "failed": None if failed is None else document(failed),
    }


async def _record_start(broker: Broker, request: dict[str, Any]) -> dict[str, Any]:
    folder, run_id = request.get("folder"), request.get("run")
    if not isinstance(folder, str) or not folder or not isinstance(run_id, str | None):
        raise ValueError("'folder' must be a folder's name, and 'run' a name or null")
    every = request.get("every", broker.config.record_every)
    return document(await broker.recordings.start(folder, every_ms=every, run_id=run_id))


async def _record_stop(broker: Broker, request: dict[str, Any]) -> dict[str, Any]:
    return document(await broker.recordings.stop())


LOCAL: Final[dict[str, Callable[[Broker, dict[str, Any]], dict[str, Any]]]] = {
    "alarm": _alarm,
    "close-connection": _close_connection,
    "set": _set,
    "set-limit": _set_limit,
    "record-status": _record_status,
    "status": _status,
    OPERATION: lambda broker, request: trace(broker.tracing, request),
}
"""What is asked of the broker itself; everything else is an operation of the management room."""

WAITING: Final[dict[str, Callable[[Broker, dict[str, Any]], Awaitable[dict[str, Any]]]]] = {
    "record-start": _record_start,
    "record-stop": _record_stop,
}
"""Likewise, where the answer takes its time."""
