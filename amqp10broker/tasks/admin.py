"""The admin socket: a Unix socket in a private folder, one JSON line in, one JSON line out.

Only this user can reach it (folder 0700, socket 0600, and the peer's uid is asked of the kernel), so
it needs no password. The CLI is its client.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import trio

from amqp10broker import adminpath
from amqp10broker.errors import AdminSocketError, BrokerError
from amqp10broker.tasks.log import Log

if TYPE_CHECKING:
    from amqp10broker.tasks.broker import Broker

_log = Log("amqp10broker.admin")

REQUEST_BYTES_MAX: Final = 65_536
CLIENTS_MAX: Final = 32
IDLE_S: Final = 300.0


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
                stream = await listener.accept()
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
        buffer = b""
        with trio.CancelScope() as idle:
            try:
                while True:
                    idle.deadline = trio.current_time() + IDLE_S
                    data = await stream.receive_some(REQUEST_BYTES_MAX)
                    if not data:
                        return
                    buffer += data
                    if len(buffer) > REQUEST_BYTES_MAX:
                        return
                    *lines, buffer = buffer.split(b"\n")
                    for line in lines:
                        await stream.send_all(json.dumps(answer(broker, line)).encode() + b"\n")
            except trio.BrokenResourceError as error:
                _log.debug("admin client lost", reason=str(error))


def answer(broker: Broker, line: bytes) -> dict[str, Any]:
    """The response to one request line."""
    try:
        request = json.loads(line)
        operation = OPERATIONS[request["op"]]
    except (ValueError, KeyError, TypeError):
        known = ", ".join(sorted(OPERATIONS))
        return {"ok": False, "error": f"not a request: send one JSON object a line with op one of {known}"}
    try:
        return {"ok": True, "result": operation(broker, request)}
    except (BrokerError, ValueError) as error:
        return {"ok": False, "error": str(error)}


def _status(broker: Broker, request: dict[str, Any]) -> dict[str, Any]:
    return broker.status()


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


OPERATIONS: Final[dict[str, Callable[[Broker, dict[str, Any]], dict[str, Any]]]] = {
    "alarm": _alarm,
    "set": _set,
    "status": _status,
}
