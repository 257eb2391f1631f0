"""A catalog with real queues, and the ways to manage it: operations, and requests of AMQP 1.0.

Queues work when they are told to (`Broker.work`), or at once where a test only wants the result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import trio

from amqp10broker.auth.authorise import Access, CatalogGrants
from amqp10broker.errors import RefusedError
from amqp10broker.message.amqp10 import MessageReader
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.queue_requests import QueueEnded
from amqp10broker.metadata.users import Permission
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.operations.amqp_node import handle_request
from amqp10broker.operations.node import Caller, Steps, Wait
from amqp10broker.operations.operation import Kind
from amqp10broker.operations.registry import OPERATIONS, operation_named
from amqp10broker.protocols.amqp10.codec import decode, encode
from amqp10broker.protocols.amqp10.performatives import Properties, decode_composite
from amqp10broker.protocols.amqp10.types import Described, ULong
from amqp10broker.queues.commands import Answer, Publish, Subscribe
from tests.support.declaring import add_user, set_permission
from tests.support.notation import body_bytes, message
from tests.support.queue_handles import QueueHost
from tests.support.reply_addresses import new_reply_to

NODE = "node-1"
ELSEWHERE = new_reply_to("elsewhere")
_AMQP_VALUE = ULong(0x77)


_SOME: dict[Kind, Any] = {
    Kind.TEXT: "guest",
    Kind.FLAG: True,
    Kind.INTEGER: 1,
    Kind.TEXTS: [],
    Kind.TABLE: {},
    Kind.ANY: {},
}


def arguments_of(operation: str) -> dict[str, Any]:
    """Return some value for each argument that an operation requires."""
    return {
        each.name: each.check.choices[0] if each.check.choices else _SOME[each.kind]
        for each in OPERATIONS[operation].arguments
        if each.required
    }


class Alone:
    """A node in no cluster."""

    number = 0

    async def pause(self, seconds: float) -> None:
        await trio.sleep(seconds)


class NotedNode:
    """The running node of operations: notes what it is asked for, and answers nothing."""

    cluster = Alone()

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, verb: str) -> Callable[..., dict[str, Any]]:
        def ask(*args: Any, **given: Any) -> dict[str, Any]:
            self.asked.append((verb, args, given))
            return {}

        return ask


class Broker:
    """A catalog, its queues, and callers; `node` is what operations need of the running broker."""

    def __init__(self) -> None:
        self.node: Any = NotedNode()
        self.host = QueueHost()
        self.catalog = Catalog(self.host.start_queue)
        self.host.on_deleted = lambda queue: self.catalog.propose(
            QueueEnded(queue.spec.vhost, queue.spec.name, queue)
        )
        add_user(self.catalog, "guest", None, tags=["administrator"])
        set_permission(self.catalog, "guest", "/", Permission())
        self.connection = object()

    @property
    def vhost(self) -> VirtualHost:
        return self.catalog.vhosts["/"]

    def user(self, name: str, configure: str = "", write: str = "", read: str = "") -> str:
        add_user(self.catalog, name, None)
        set_permission(self.catalog, name, "/", Permission(configure, write, read))
        return name

    def caller(self, user: str | None = "guest", connection: object = None, **rest: Any) -> Caller:
        """Return a caller on a connection; None is the machine's owner."""
        access = None if user is None else Access(CatalogGrants(self.catalog.users, user), "/")
        return Caller(
            *(self.catalog, self.vhost, access, connection or self.connection, NODE, lambda: self.node),
            new_request=ELSEWHERE.request,
            **rest,
        )

    def do(self, operation: str, /, *, caller: Caller | None = None, **given: object) -> Any:
        return self.finish((caller or self.caller()).perform(operation_named(operation), given))

    def finish(self, steps: Steps[Any], heard: Any = None) -> Any:
        """Have an operation's waits answered; slow parts run under Trio."""
        try:
            while True:
                step = steps.send(heard)
                if isinstance(step, Wait):
                    heard = self.answer(step)
                else:
                    try:
                        heard = trio.run(_awaited, step)
                    except RefusedError as refusal:
                        steps.throw(refusal)
        except StopIteration as done:
            return done.value

    def answer(self, wait: Wait) -> Answer:
        box: Any = wait.queue
        box.post(wait.command)
        answers = [
            effect
            for effect in box.work().get(ELSEWHERE.id, [])
            if isinstance(effect, Answer) and effect.request == wait.ref
        ]
        assert len(answers) == 1
        return answers[0]

    def fill(self, name: str, count: int) -> None:
        read = MessageReader("", name, "guest").read
        messages = [read(message(body_bytes(f"m{number}"))) for number in range(count)]
        box = self.host.queues[name]
        box.post(Publish(ELSEWHERE.publisher(), range(count), messages, True))
        box.work()

    def consume(self, name: str) -> None:
        box = self.host.queues[name]
        box.post(Subscribe(ELSEWHERE.consumer(), False))
        box.work()

    def request(
        self,
        method: str,
        to: str,
        body: object = None,
        *,
        user: str = "guest",
        connection: object = None,
        message_id: object = "id",
    ) -> tuple[str, Any]:
        """Send a request; return status and body of the response."""
        caller = self.caller(user, connection)
        payload = self.finish(
            handle_request(caller, request_message(method, to, body, message_id=message_id))
        )
        properties, got = read_response(payload)
        assert properties.correlation_id == message_id
        assert type(properties.correlation_id) is type(message_id)
        return properties.subject, got


async def _awaited(step: Awaitable[Any]) -> Any:
    return await step


def request_message(
    method: str | None,
    to: object,
    body: object = None,
    *,
    message_id: ULong | UUID | bytes | str | object = "id",
) -> bytes:
    properties = Properties(
        message_id=message_id,  # type: ignore[arg-type]
        to=to,
        subject=method,
        reply_to="$me",
    )
    return properties.encode() + encode(Described(_AMQP_VALUE, body))


def read_response(payload: bytes) -> tuple[Properties, Any]:
    """Check a response's form; return its properties and body."""
    properties, pos = decode_composite(payload)
    assert isinstance(properties, Properties)
    application, pos = decode(payload, pos)
    assert application == Described(ULong(0x74), {"http:response": "1.1"})
    body, pos = decode(payload, pos)
    assert body.descriptor == 0x77
    assert pos == len(payload)
    return properties, body.value
