"""A client's connection and a broker's, back to back: no socket, no task, no clock."""

from __future__ import annotations

from typing import Any

from amqp10broker.auth.authorise import CatalogGrants
from amqp10broker.client.core import ClientCore
from amqp10broker.client.options import ClientOptions
from amqp10broker.client.session import ClientSession
from amqp10broker.config import Config
from amqp10broker.emulation import UNSET
from amqp10broker.protocols.amqp10.connection import Connection, ConnectionState
from amqp10broker.protocols.amqp10.link import BeginReceived, FramesReceived
from amqp10broker.protocols.amqp10.performatives import Close, Open, SaslCode, SaslInit
from amqp10broker.queues.commands import ReplyTo
from amqp10broker.sessions.amqp10.open import check_open, identity_of, open_properties, vhost_of
from amqp10broker.sessions.amqp10.session import BrokerSession
from tests.support.queue_handles import QueueHost, WaitingQueue
from tests.support.reply_addresses import new_reply_to
from tests.support.session_context import make_catalog, make_context


class BrokerEnd:
    """One connection of a broker with its sessions and queues; a `silent` one hangs: it handles nothing."""

    def __init__(self, config: Config, mechanisms: tuple[str, ...]) -> None:
        self.config = config
        self.host = QueueHost()
        self.catalog = make_catalog(self.host)
        self.engine = Connection(
            server=True,
            frame_size_max=config.max_frame_size_bytes,
            channel_max=config.session_max_per_connection - 1,
            mechanisms=mechanisms,
        )
        self.sessions: dict[int, BrokerSession] = {}
        self.silent = False
        self._reply_to: dict[int, ReplyTo] = {}

    def receive(self, data: bytes) -> None:
        events = self.engine.receive(data)
        while events:
            for event in events:
                self._on_event(event)
            events = self.engine.receive(b"")

    def _on_event(self, event: Any) -> None:
        match event:
            case SaslInit():
                good = event.mechanism == "ANONYMOUS" or event.initial_response == b"\0guest\0guest"
                self.engine.sasl_outcome(SaslCode.OK if good else SaslCode.AUTH)
            case Open():
                fault = check_open(
                    vhost_of(event, "/"), CatalogGrants(self.catalog.users, "guest"), self.catalog
                )
                if fault is not None:
                    self.engine.fail(fault)
                    return
                self.engine.open(
                    "broker",
                    idle_time_out_ms=30_000,
                    properties=open_properties(event, "broker", "broker", identity_of(UNSET, "9.9", "test")),
                )
            case BeginReceived():
                self._reply_to[event.channel] = new_reply_to(str(event.channel))
                reply_to = self._reply_to[event.channel]
                context = make_context(self.catalog, self.config, reply_to, self)
                self.sessions[event.channel] = BrokerSession(
                    event.channel,
                    event.performative,
                    context,
                    frame_size_max=self.engine.frame_size_max,
                    alarm=False,
                )
            case FramesReceived():
                self.sessions[event.channel].receive(event.items)
            case Close():
                if self.engine.state is ConnectionState.CLOSE_RECEIVED:
                    self.engine.close()

    def run(self) -> bytes:
        """Let queues and sessions work until they rest; return their output."""
        out: list[bytes | memoryview] = [self.engine.take_output()]
        moved = not self.silent
        while moved:
            moved = False
            for session in self.sessions.values():
                session.pump(1 << 30)
                out += session.session.take_output()
                for handle, command in session.take_commands():
                    assert isinstance(handle, WaitingQueue)
                    handle.queue.apply(command, 0)
                    moved = True
            for box in self.host.queues.values():
                effects = box.queue.take_effects()
                for channel, reply_to in self._reply_to.items():
                    if reply_to.id in effects:
                        self.sessions[channel].on_effects(effects[reply_to.id])
                        moved = True
        out.append(self.engine.take_output())
        return b"".join(out)

    def queue(self, name: str) -> tuple[int, int]:
        queue = self.host.queues[name].queue
        return queue.ready, queue.unsettled


class BackToBack:
    """The two ends; `carry` moves bytes until nobody has any.

    Attributes:
        written: everything that the client has written.
    """

    def __init__(
        self,
        *,
        chunk_bytes: int = 1 << 20,
        mechanisms: tuple[str, ...] = ("PLAIN", "ANONYMOUS"),
        config: Config | None = None,
        **options: Any,
    ) -> None:
        self.client = ClientCore(ClientOptions(**{"container_id": "client", **options}))
        self.broker = BrokerEnd(config or Config(container_id="broker"), mechanisms)
        self.chunk_bytes = chunk_bytes
        self.written = b""

    def opened(self) -> ClientSession:
        self.client.start("guest", "guest")
        self.carry()
        session = self.client.begin()
        self.carry()
        assert session.begun
        return session

    def carry(self) -> None:
        for _ in range(100_000):
            up, down = self._take_up(), self.broker.run()
            if not up and not down:
                return
            for data, receive in ((up, self.broker.receive), (down, self.client.receive)):
                for at in range(0, len(data), self.chunk_bytes):
                    receive(data[at : at + self.chunk_bytes])
        raise AssertionError("the two do not come to rest")

    def _take_up(self) -> bytes:
        out = b""
        while data := self.client.take_output():
            out += data
        self.written += out
        return out
