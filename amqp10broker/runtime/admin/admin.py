"""The admin socket: a Unix socket in a private folder, one JSON line in, one JSON line out; and operations
for all front ends that can wait (`run_operation`).

Only the broker's user can reach it (`path`), so it has no password and its clients may do everything. Windows
has a loopback port and a secret instead (`portable`). Requests of one client are answered in order; clients
do not wait for each other.

::

    {"op": "purge-queue", "vhost": "/", "arguments": {"name": "q"}}
    {"op": "status", "arguments": {"choose": {"user": "ann", "limit": 20}}}
    {"op": "trace", "arguments": {"what": "3", "on": true}}      lines may follow
    {"ok": true, "result": ...}
    {"ok": false, "error": "a sentence", "kind": "NotFound", "resource": "queue 'q'"}
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hmac import compare_digest
from typing import Any, Final

import trio

from amqp10broker import portable
from amqp10broker.api.messages import finite
from amqp10broker.auth.passwords import Passwords, ReadyRecords
from amqp10broker.errors import (
    AdminSocketError,
    BadRequest,
    BrokerError,
    InvalidArgument,
    NotFound,
    RefusedError,
)
from amqp10broker.metadata.plan import Decided, VhostFacts
from amqp10broker.metadata.queue import StartQueue
from amqp10broker.metadata.queue_arguments import misspelt
from amqp10broker.metadata.users import PasswordRecord
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.operations.node import Actor, Caller, ClusterNode, Lines, Node, Steps, Wait
from amqp10broker.operations.registry import OPERATIONS, operation_named
from amqp10broker.operations.snapshot import BrokerView, NodeView
from amqp10broker.queues.commands import Answer, ReplyTo, RequestRef
from amqp10broker.runtime.admin import path as adminpath
from amqp10broker.runtime.connections import login
from amqp10broker.runtime.connections.connections import ClientsContext
from amqp10broker.runtime.connections.sockets import OUT_OF_FILES, OUT_OF_FILES_PAUSE_S, READ_BYTES
from amqp10broker.runtime.context import ConnectionContext
from amqp10broker.runtime.journal.data import Afterwards, Data
from amqp10broker.runtime.journal.journal_task import JournalTask
from amqp10broker.runtime.log import Log
from amqp10broker.runtime.mailbox import Mailbox, ReplyRegistry
from amqp10broker.runtime.observe.meters import ClockWatch
from amqp10broker.runtime.observe.trace_sinks import StreamSink
from amqp10broker.sessions.diagnosis.survey import Selection
from amqp10broker.sessions.messages import SessionMessage

_log = Log("amqp10broker.admin")

ANSWER_S: Final = 8.0
"""The time limit for a queue's answer. It is below the command line's, so that the error names the queue."""
DECIDED_S: Final = 40.0
"""The time limit for the agreement of a cluster's nodes, which give up earlier."""


BY_ADMIN_SOCKET: Final = "admin socket"
"""The name of the machine's owner in the log: no other user reaches the socket."""
OWNER: Final = Actor(BY_ADMIN_SOCKET, types=True)
"""The machine's owner."""


class AdminContext(ConnectionContext, ClientsContext):
    """The broker for operators: operations, the HTTP API, metrics, and its part in a cluster.

    Attributes:
        data: the data folder; None in memory only, and before the broker runs.
        journal_task: stores the data of durable queues; None likewise.
        afterwards: the change of the folder to make when the broker has stopped; None: no change.
        over: set when the broker cannot continue, or must stop: the caller then leaves the block.
        failure: the reason why it cannot continue; leaving the block raises it.
        as_member: this node as a member of a cluster, or alone.
        running: makes the broker as operations use it, for an operator of this name.
    """

    addresses: list[tuple[str, int]]
    tls_addresses: list[tuple[str, int]]
    http_addresses: list[tuple[str, int]]
    metrics_addresses: list[tuple[str, int]]
    passwords: Passwords
    data: Data | None
    journal_task: JournalTask | None
    clock_watch: ClockWatch
    over: trio.Event
    failure: BrokerError | None
    afterwards: Afterwards | None
    as_member: ClusterNode
    running: Callable[[str], Node]
    start_queue: StartQueue
    view: Callable[[Selection], BrokerView]
    node_view: Callable[[], NodeView]


async def run_operation(
    broker: AdminContext, name: str, given: Mapping[str, Any], vhost: str | None, actor: Actor = OWNER
) -> Any:
    """Run an operation of `operations.registry` to its end.

    Passwords become argon2 records in a thread before it runs. A queue's answer is awaited in a mailbox of
    this one request, so that any number of requests may wait at the same time. Raises a `RefusedError`
    subclass with the reason if nothing was changed.
    """
    if name == "declare-queue" and actor.types:
        arguments = given.get("arguments")
        slip = misspelt(arguments) if isinstance(arguments, dict) else None
        if slip is not None:
            raise InvalidArgument("queue", f"no queue knows argument '{slip[0]}'; did you mean {slip[1]}?")
    plain = _passwords_in(name, given)
    found = _vhost(broker, name, vhost)
    replies = _Replies(broker.reply_registry)
    caller = Caller(
        catalog=broker.catalog,
        vhost=found,
        access=actor.access,
        connection=None,
        node_name=broker.config.node_name or broker.container_id,
        running=partial(broker.running, actor.by),
        propose=broker.propose,
        new_request=replies.new_request,
        passwords=await _made_in_thread(broker.passwords, plain) if plain else broker.passwords,
        report=partial(_log_operation, found, actor.by),
    )
    try:
        return await _finished(caller.perform(operation_named(name), given), replies)
    finally:
        replies.close()


def _log_operation(vhost: VirtualHost, by: str, operation: str, subject: str, refusal: str | None) -> None:
    details = {"operation": operation, "object": subject, "vhost": vhost.name, "by": by}
    if refusal is None:
        _log.info("operation", **details)
    else:
        _log.warning("operation refused", **details, text=refusal)


async def _finished(steps: Steps[Any], replies: _Replies) -> Any:
    resume: Callable[[Any], Any] = steps.send
    heard: Any = None
    while True:
        try:
            step = resume(heard)
        except StopIteration as done:
            return done.value
        resume = steps.send
        try:
            heard = await (replies.reply_to(step) if isinstance(step, Wait) else step)
        except RefusedError as refusal:
            resume, heard = steps.throw, refusal


async def _made_in_thread(passwords: Passwords, plain: list[str]) -> ReadyRecords:
    """Make records of passwords in a thread. Raises `InvalidArgument` if one is empty or has a NUL."""
    records: dict[str, list[PasswordRecord]] = defaultdict(list)
    for password in plain:
        records[password].append(await login.run_slow(partial(passwords.make, password)))
    return ReadyRecords(passwords, records)


def _passwords_in(operation: str, given: Mapping[str, Any]) -> list[str]:
    """The passwords in plain that an operation is given."""
    if operation in ("add-user", "change-password"):
        password = given.get("password")
        return [password] if isinstance(password, str) else []
    if operation == "put-user":
        entry = given.get("entry")
        return list(_plain_passwords({"users": [entry]}))
    if operation == "import-definitions":
        return list(_plain_passwords(given.get("document")))
    return []


def _plain_passwords(document: object) -> Iterator[str]:
    users = document.get("users") if isinstance(document, dict) else None
    for user in users if isinstance(users, list) else ():
        if isinstance(user, dict) and "password_hash" not in user:
            password = user.get("password")
            if isinstance(password, str) and password and "\0" not in password:
                yield password


class _Replies:
    """The reply address of one operation. It is opened with the first request; most operations have none."""

    def __init__(self, registry: ReplyRegistry) -> None:
        self._registry = registry
        self._address: ReplyTo | None = None

    def new_request(self) -> RequestRef:
        if self._address is None:
            self._mailbox: Mailbox[SessionMessage] = Mailbox()
            self._address = self._registry.open("admin", self._mailbox)
        return self._address.request()

    async def reply_to(self, wait: Wait) -> Answer | Decided:
        within_s = DECIDED_S if wait.queue is None else ANSWER_S
        if wait.queue is not None and wait.command is not None:
            wait.queue.post(wait.command)
        with trio.move_on_after(within_s):
            while True:
                for message in await self._mailbox.take_all():
                    # Effects of queues come in lists.
                    for each in message if isinstance(message, list) else (message,):
                        if isinstance(each, Answer) and each.request == wait.ref:
                            return each
                        if isinstance(each, Decided) and each.ref == wait.ref:
                            return each
        # A queue that is deleted meanwhile answers so. The time limit is for a queue that is stuck.
        raise BrokerError(
            f"it has not been decided for {within_s:g} s: look with a list command whether it is done"
            if wait.queue is None
            else f"the queue has not answered for {within_s:g} s: it is overloaded; look at it with "
            "'amqp10broker status', and whether it was done with 'amqp10broker queue list'"
        )

    def close(self) -> None:
        if self._address is not None:
            self._registry.close(self._address)
            self._mailbox.close()


def _vhost(broker: AdminContext, operation: str, name: str | None) -> VirtualHost:
    name = broker.config.default_vhost if name is None else name
    found = broker.catalog.vhosts.get(name)
    if found is None:
        if OPERATIONS[operation].in_vhost:
            return broker.catalog.lookup_vhost(name)
        # The default virtual host may be deleted, and users must be manageable all the same.
        found = VirtualHost(VhostFacts(name), broker.start_queue)
        found.deleted = True
    return found


REQUEST_BYTES_MAX: Final = 64 * 1024 * 1024
"""The size of a request: a definitions file with a hundred thousand bindings has some 20 MB."""
CLIENTS_MAX: Final = 32
_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
"""A possible surrogate, as JSON escapes it or as bytes."""
IDLE_S: Final = 300.0
SECRET_S: Final = 10.0
"""How long a client may take to send the secret, where the socket is a loopback port."""


async def serve_admin(
    broker: AdminContext, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve the admin socket until cancelled; return at once if it is switched off. Raises `AdminSocketError`
    if a configured path cannot be used.
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
        secret = portable.secret_at(path)
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
                clients.start_soon(_serve_client, broker, stream, secret)
    finally:
        adminpath.remove(path)


async def _serve_client(broker: AdminContext, stream: trio.SocketStream, secret: bytes) -> None:
    async with stream:
        uid = adminpath.peer_uid(stream.socket)  # type: ignore[arg-type]
        if uid is not None and uid != portable.user_id():
            _log.warning("admin request of another user refused", uid=uid)
            return
        if not await _sends(stream, secret):
            _log.warning("admin request without the secret of the socket's file refused")
            return
        await serve_lines(broker, stream)


async def _sends(stream: trio.SocketStream, secret: bytes) -> bool:
    received = b""
    with trio.move_on_after(SECRET_S):
        while len(received) < len(secret):
            try:
                data = await stream.receive_some(len(secret) - len(received))
            except trio.BrokenResourceError:
                return False
            if not data:
                return False
            received += data
    return compare_digest(received, secret)


async def serve_lines(broker: AdminContext, stream: trio.abc.Stream) -> None:
    """Answer the requests of one client until it disconnects or is idle for too long."""
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
                    # The operation is carried out and answered, however long it takes.
                    idle.deadline = float("inf")
                    response = await answer(broker, line)
                    lines = response.get("result")
                    if isinstance(lines, Lines):
                        try:
                            await send_lines(stream, lines)
                        except RefusedError as refusal:
                            await stream.send_all(_encoded(_refusal(refusal)))
                        return
                    await stream.send_all(_written(response, line))
                if len(buffer) > REQUEST_BYTES_MAX:
                    text = f"the request is longer than {REQUEST_BYTES_MAX} bytes: split it"
                    await stream.send_all(_encoded({"ok": False, "error": text}))
                    return
        except trio.BrokenResourceError as error:
            _log.debug("admin client lost", reason=str(error))


async def answer(broker: AdminContext, line: bytes) -> dict[str, Any]:
    """Return the response to one request line. Its result may be `Lines`, which only a stream can send."""
    request, name = _read(line)
    if name not in OPERATIONS:
        names = ", ".join(sorted(OPERATIONS))
        return {"ok": False, "error": f"not a request: send one JSON object a line with op one of {names}"}
    if _HALF.search(line) and not _is_text(request):
        # A name with half a character could be declared, but no frame or file could contain it.
        return {
            "ok": False,
            "error": "a text has half a character in it, a lone surrogate: write it in UTF-8",
        }
    try:
        given = request.get("arguments", {})
        vhost = request.get("vhost")
        if not isinstance(given, dict) or not isinstance(vhost, str | None):
            raise BadRequest("request", "'arguments' must be an object and 'vhost' a string")
        return {"ok": True, "result": await run_operation(broker, name, given, vhost)}
    except BrokerError as error:
        return _refusal(error)
    except Exception as error:
        return _fault(error, name)


def _written(response: dict[str, Any], line: bytes) -> bytes:
    try:
        return _encoded(response)
    except (TypeError, ValueError, RecursionError) as error:
        return _encoded(_fault(error, _read(line)[1]))


def _refusal(error: BrokerError) -> dict[str, Any]:
    if isinstance(error, RefusedError):
        kind = type(error).__name__
        return {"ok": False, "error": error.description, "kind": kind, "resource": error.resource}
    return {"ok": False, "error": str(error)}


def _fault(error: Exception, operation: str) -> dict[str, Any]:
    _log.error("request failed by a fault in the broker", operation=operation, exc_info=error)
    return {"ok": False, "error": f"a fault in the broker ({type(error).__name__}); its log says more"}


def _read(line: bytes) -> tuple[dict[str, Any], str]:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        return {}, ""
    name = request.get("op") if isinstance(request, dict) else None
    return (request, name) if isinstance(name, str) else ({}, "")


def _is_text(request: dict[str, Any]) -> bool:
    try:
        json.dumps(request, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _encoded(response: dict[str, Any]) -> bytes:
    return json.dumps(finite(response), default=_plain).encode() + b"\n"


def _plain(value: object) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode(errors="backslashreplace")
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    return str(value)


READER_GONE: Final = "who asked for it has gone"


async def send_lines(stream: trio.abc.Stream, lines: Lines) -> None:
    """Answer, and then send lines until the trace ends or the client disconnects. Raises `RefusedError` if
    the trace does not begin; nothing was sent then.
    """
    sink = StreamSink()
    begun = lines.begin(sink)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_end_with_reader, stream, nursery.cancel_scope)
            await _send(stream, sink, {"ok": True, "result": begun})
            nursery.cancel_scope.cancel()
    finally:
        if sink.ended is None:
            try:
                lines.end(READER_GONE)
            except NotFound:  # switched off in the same moment
                sink.close(READER_GONE)


async def _send(stream: trio.abc.Stream, sink: StreamSink, answer: dict[str, Any]) -> None:
    try:
        await stream.send_all(_encoded(answer))
        ended = None
        while ended is None:
            lines, left_out = await sink.take()
            ended = sink.ended
            await stream.send_all(_encoded({"lines": lines, "left_out": left_out, "ended": ended}))
    except trio.BrokenResourceError:
        return  # the client is lost, which ends the trace


async def _end_with_reader(stream: trio.abc.Stream, scope: trio.CancelScope) -> None:
    try:
        while await stream.receive_some(1024):
            pass  # the client sends nothing more
    except trio.BrokenResourceError:
        pass  # the client is lost, too
    scope.cancel()
