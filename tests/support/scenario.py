"""A `Harness` with exchanges in it, and one client whose session and links a test talks about by line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amqp10broker.metadata.catalog import VHOST
from amqp10broker.metadata.users import Permission, TopicPermission
from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.performatives import Properties
from amqp10broker.protocols.amqp10.types import Described, Symbol, ULong
from amqp10broker.routing.exchange import Binding, Destination
from tests.support.declaring import bind, declare_exchange, set_permission, set_topic_permission, unbind
from tests.support.script import ScriptRunner
from tests.support.session_harness import Harness

ACCEPTED = "state=accepted"
RELEASED = "state=released"


class Scenario:
    """One client C with a session on channel 0. Every method that talks to the broker returns its lines."""

    def __init__(self, *queues: str) -> None:
        self.script = ScriptRunner()
        for name in queues:
            self.script.do(f"queue {name}")
        self.script.do("C> BEGIN")

    @property
    def world(self) -> Harness:
        return self.script.world

    def do(self, *lines: str) -> list[str]:
        return [came for line in lines for came in self.script.do(line)]

    # --- the model --------------------------------------------------------------------------------

    def exchange(self, name: str, kind: str = "direct", **options: Any) -> str:
        given: dict[str, Any] = {"durable": True, "auto_delete": False, "internal": False, "arguments": {}}
        declare_exchange(self.world.catalog, self.world.vhost, name, kind, **given | options)
        return name

    def bind(
        self,
        source: str,
        queue: str = "",
        key: str = "",
        *,
        exchange: str = "",
        arguments: Mapping[str, object] | None = None,
    ) -> None:
        destination = Destination("exchange", exchange) if exchange else Destination("queue", queue)
        bind(self.world.catalog, self.world.vhost, Binding(source, destination, key, arguments or {}))

    def unbind(self, source: str, queue: str, key: str) -> None:
        unbind(self.world.catalog, self.world.vhost, Binding(source, Destination("queue", queue), key))

    def allow(self, configure: str = "", write: str = "", read: str = "") -> None:
        set_permission(self.world.catalog, "guest", VHOST, Permission(configure, write, read))

    def allow_topics(self, exchange: str, write: str) -> None:
        """Set the routing keys guest may publish with from now on."""
        set_topic_permission(self.world.catalog, "guest", VHOST, exchange, TopicPermission(write, ".*"))

    # --- the client -------------------------------------------------------------------------------

    def sender(self, target: str | None, handle: int = 0, **fields: object) -> list[str]:
        """Attach a link to publish on; None is the anonymous terminus."""
        words = "".join(f" {name}={value}" for name, value in fields.items())
        return self.do(f"C> ATTACH h={handle}{words} target={target or 'anonymous'}")

    def receiver(self, source: str, handle: int = 9, **fields: object) -> list[str]:
        words = "".join(f" {name}={value}" for name, value in fields.items())
        return self.do(f"C> ATTACH h={handle}{words} source={source}")

    def publish(self, payload: bytes | None = None, handle: int = 0, **fields: object) -> list[str]:
        words = "".join(f" {name}={value}" for name, value in fields.items())
        content = "" if payload is None else f" payload={payload.hex()}"
        return self.do(f"C> TRANSFER h={handle}{words}{content}")

    def bodies(self, queue: str) -> list[str]:
        taken: list[str] = []
        handle = 100 + len(self.world.clients["C"].all_sessions) + len(self.world.queues)
        self.receiver(f"/queues/{queue}", handle, snd_settle_mode="settled")
        session = self.world.clients["C"].mine[0]
        del session.received[:]
        self.do(f"C> FLOW h={handle} dc=0 cr=1000")
        taken += session.received
        self.do(f"C> DETACH h={handle} closed=true")
        return taken

    def counts(self, *queues: str) -> list[int]:
        return [self.world.queues[name].queue.ready for name in queues]


def content(
    body: str = "m",
    *,
    cc: object = None,
    annotations: Mapping[str, object] | None = None,
    to: object = None,
    user: bytes | None = None,
    application: Mapping[str, object] | None = None,
) -> bytes:
    sections = b""
    given = {Symbol(name): value for name, value in (annotations or {}).items()}
    if cc is not None:
        given[Symbol("x-cc")] = cc
    if given:
        sections += encode(Described(ULong(0x72), given))
    if to is not None or user is not None:
        sections += Properties(to=to, user_id=user).encode()
    if application is not None:
        sections += encode(Described(ULong(0x74), dict(application)))
    return sections + encode(Described(ULong(0x75), body.encode()))


def disposition(number: int, state: str) -> str:
    return f"B> DISPOSITION role=receiver first={number} settled=true {state}"


def detached(handle: int, condition: str, text: str) -> str:
    return f'B> DETACH h={handle} closed=true error={condition} "{text}"'


def ended(condition: str, text: str) -> str:
    return f'B> END error={condition} "{text}"'
