"""The broker: root nursery, order of start, order of stop.

::

    Broker nursery
    |-- queues nursery             one task a queue; ends last
    `-- service nursery
        |-- connections nursery    one task a connection, see connection.py
        |-- listeners              one task an address; end first
        `-- admin socket           for `amqp10broker status`

Stopping is an order, not a cancellation: stop accepting; connections end (sessions give back what is
unsettled, writers flush, close frames go out); queues end. A deadline cancels what does not follow.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Final, Self

import trio

from amqp10broker import __version__
from amqp10broker.amqp10.types import Symbol
from amqp10broker.catalog.catalog import Catalog
from amqp10broker.config import Config
from amqp10broker.queues.classic import ClassicQueue
from amqp10broker.security.login import Mechanism
from amqp10broker.service.sessions.status import session_status
from amqp10broker.tasks.admin import serve_admin
from amqp10broker.tasks.connection import ConnectionTask, shutting_down
from amqp10broker.tasks.listener import accept_forever, open_sockets, serve_stream
from amqp10broker.tasks.log import Log
from amqp10broker.tasks.mail import AlarmChanged, ConfigChanged
from amqp10broker.tasks.queue import RunningQueue
from amqp10broker.tasks.stream import Stream
from amqp10broker.tasks.trace import TracingStream

_log = Log("amqp10broker.broker")

ALARMS: Final = ("memory", "disk")


class Broker:
    """A broker inside a Trio program.

    Use as ``async with Broker(config) as broker:``; the addresses it listens on are then in
    `broker.addresses`. Leaving the block stops it in order.

    Attributes:
        config: the present configuration; `set_flow` replaces it.
        container_id: ours, in open frames.
        addresses: ``(host, port)`` of each listening socket.
        catalog: declared queues.
        connections: by number.
        alarms: names of the alarms that are on.
        stopping: no new connection is served.
    """

    def __init__(self, config: Config | None = None) -> None:
        """Make a broker that does nothing yet.

        Args:
            config: None for the defaults.
        """
        self.config = config or Config()
        self.container_id = self.config.container_id_on(socket.gethostname())
        self.addresses: list[tuple[str, int]] = []
        self.catalog = Catalog(self)
        self.connections: dict[int, ConnectionTask] = {}
        self.alarms: set[str] = set()
        self.stopping = False
        self.mechanisms = tuple(
            mechanism
            for mechanism in Mechanism
            if mechanism is not Mechanism.ANONYMOUS or self.config.anonymous_login_user
        )
        self.offered_capabilities = (Symbol("ANONYMOUS-RELAY"),)
        self._numbers = 0
        self._queues: trio.Nursery | None = None
        self._connections_nursery: trio.Nursery | None = None
        self._context: Any = None
        self._started_at = 0.0

    # --- life -------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._context = self._running()
        await self._context.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        result: bool | None = await self._context.__aexit__(kind, error, traceback)
        return result

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        sockets = await open_sockets(self.config.host, self.config.port)
        failure: Exception | None = None
        try:
            self.addresses = [sock.getsockname()[:2] for sock in sockets]
            self._started_at = trio.current_time()
            async with trio.open_nursery() as queues:
                self._queues = queues
                self._declare_configured()
                try:
                    async with (
                        trio.open_nursery() as connections,
                        trio.open_nursery() as listeners,
                    ):
                        self._connections_nursery = connections
                        for sock in sockets:
                            listeners.start_soon(accept_forever, self, sock, connections)
                        await listeners.start(serve_admin, self)
                        try:
                            yield
                        except Exception as error:
                            # Out of the block at once it would cancel the connections; they are
                            # stopped in order first.
                            failure = error
                        finally:
                            listeners.cancel_scope.cancel()
                            for sock in sockets:
                                sock.close()
                            self._stop_connections(connections)
                finally:
                    queues.cancel_scope.cancel()
        finally:
            for sock in sockets:
                sock.close()
        if failure is not None:
            raise failure

    def _stop_connections(self, nursery: trio.Nursery) -> None:
        nursery.cancel_scope.deadline = trio.current_time() + self.config.shutdown_timeout_ms / 1000
        self.stopping = True
        fault = shutting_down()
        for connection in list(self.connections.values()):
            connection.shut_down(fault)

    def _declare_configured(self) -> None:
        for queue in self.config.queues:
            self.catalog.declare(queue.name, durable=queue.durable)

    # --- what others ask --------------------------------------------------------------------------

    def start_queue(self, name: str, durable: bool) -> RunningQueue:
        """Begin to run an empty queue (see `catalog.QueueHost`)."""
        assert self._queues is not None, "the broker is not running"
        queue = RunningQueue(
            ClassicQueue(name, durable=durable),
            confirm_delay_ms=self.config.fault_injection.confirm_delay_ms_for(name),
        )
        self._queues.start_soon(self._run_queue, queue, name=f"queue {name}")
        return queue

    async def _run_queue(self, queue: RunningQueue) -> None:
        """Run a queue; a fault in it ends it, and nobody else."""
        try:
            await queue.run()
        except Exception as error:
            name = queue.queue.name
            _log.error("queue failed by a fault in the broker and is gone", queue=name, exc_info=error)
            self.catalog.remove(name)
            queue.fail()

    def serve(self, stream: Stream, *, peer: str = "in-process", loopback: bool = True) -> None:
        """Serve a stream that was made elsewhere, as if it had been accepted."""
        assert self._connections_nursery is not None, "the broker is not running"
        self._connections_nursery.start_soon(_serve_stream, self, self.traced(stream, peer), peer, loopback)

    def traced(self, stream: Stream, peer: str) -> Stream:
        """The stream, with a tracer around it if frames are traced."""
        return TracingStream(stream, peer) if self.config.trace_frames else stream

    def next_number(self) -> int:
        """A number for a new connection."""
        self._numbers += 1
        return self._numbers

    def new_id(self) -> str:
        """A fresh token that nobody can guess, for generated names."""
        return secrets.token_urlsafe(16)

    def set_flow(self, name: str, value: object, *, source: str) -> None:
        """Change one of the three flow settings while running; grants from now on follow it.

        Args:
            name: `max_link_credit`, `max_incoming_window` or `max_queue_credit`.
            value: 1 .. 2**32 - 1.
            source: who asked, for the error.

        Raises:
            ConfigError: no such setting, or out of range; nothing was changed.
        """
        self.config = self.config.with_flow(self.config.flow.changed(name, value, source=source))
        letter = ConfigChanged(self.config)
        for connection in self.connections.values():
            connection.tell_sessions(letter)
        _log.info("setting changed", name=name, value=value)

    def set_alarm(self, name: str, *, on: bool) -> None:
        """Raise or clear an alarm; publishers are held back while any is on.

        Raises:
            ValueError: no alarm of this name.
        """
        if name not in ALARMS:
            raise ValueError(f"no alarm '{name}': there are {' and '.join(ALARMS)}")
        before = bool(self.alarms)
        (self.alarms.add if on else self.alarms.discard)(name)
        _log.warning("alarm" if on else "alarm cleared", name=name)
        if before != bool(self.alarms):
            letter = AlarmChanged(bool(self.alarms))
            for connection in self.connections.values():
                connection.tell_sessions(letter)

    def status(self) -> dict[str, Any]:
        """Everything `amqp10broker status` shows, as one JSON-ready document."""
        flow = self.config.flow
        return {
            "broker": {
                "container_id": self.container_id,
                "version": __version__,
                "pid": os.getpid(),
                "uptime_s": round(trio.current_time() - self._started_at, 3),
                "listeners": [
                    f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.addresses
                ],
                "flow": {
                    "max_link_credit": flow.max_link_credit,
                    "max_incoming_window": flow.max_incoming_window,
                    "max_queue_credit": flow.max_queue_credit,
                },
                "alarms": sorted(self.alarms),
                "rss_bytes": rss_bytes(),
            },
            "connections": [connection.status(session_status) for connection in self.connections.values()],
            "queues": [
                {"name": queue.name, "type": queue.type, "durable": queue.durable, **queue.handle.counts()}
                for queue in self.catalog
            ],
        }


async def _serve_stream(broker: Broker, stream: Stream, peer: str, loopback: bool) -> None:
    await serve_stream(broker, stream, peer, loopback=loopback)


def rss_bytes() -> int:
    """Memory of this process that is in RAM; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


async def run_broker(
    config: Config, *, task_status: trio.TaskStatus[list[tuple[str, int]]] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run a broker until SIGTERM or SIGINT, then stop it in order.

    Args:
        config: what to run.
        task_status: told the ``(host, port)`` pairs when the broker accepts connections.

    Raises:
        OSError: the address cannot be used.
        AdminSocketError: the place of the admin socket is unsafe.
    """
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with Broker(config) as broker:
            task_status.started(broker.addresses)
            async for number in signals:
                _log.info("stopping", signal=signal.Signals(number).name)
                break
