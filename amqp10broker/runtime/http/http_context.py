"""The running broker, as endpoints of the HTTP API may ask it."""

from __future__ import annotations

import hashlib
import os
import resource
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.resources import files
from time import perf_counter
from typing import Any, Final, TypeVar

import trio

from amqp10broker.api.calls import over_http
from amqp10broker.api.samples import RateSamples
from amqp10broker.api.static_files import FOLDERS, PageFile, kind_of
from amqp10broker.auth.authorise import Access
from amqp10broker.auth.login import Attempts
from amqp10broker.config.effective import effective
from amqp10broker.errors import BrokerError
from amqp10broker.message.message import Message
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.queue import QueueCommand
from amqp10broker.observe.metrics.exposition import CLIENT_VERSION, scrape
from amqp10broker.observe.metrics.wanted import ScrapeRequest
from amqp10broker.operations.inspection import CertificateSeen
from amqp10broker.operations.snapshot import ConnectionView, NodeView, view_of
from amqp10broker.queues.commands import DeliveryOutcome, ReplyTo
from amqp10broker.runtime.admin.inspection import certificates
from amqp10broker.runtime.admin.node import Administered
from amqp10broker.runtime.admin.operations import run_operation
from amqp10broker.runtime.connections.connections import LoopYield
from amqp10broker.runtime.connections.login import run_slow
from amqp10broker.runtime.http.http_live import Lives, Start
from amqp10broker.runtime.log import Log
from amqp10broker.runtime.mailbox import Mailbox
from amqp10broker.runtime.observe.metrics_source import open_fds, source_of
from amqp10broker.runtime.queues.handles import ReplyRegistry
from amqp10broker.sessions.jobs import BackgroundJob, GetSome, PublishOne, check_gettable
from amqp10broker.sessions.messages import SessionMessage

_log = Log("amqp10broker.http")


class BrokerDoor:
    """The broker as endpoints see it: see the protocol `api.calls.BrokerApi`."""

    def __init__(self, broker: Administered, start: Start, lives: Lives) -> None:
        self._broker = broker
        self._start = start
        self.follow = lives.open
        self.run = partial(run_operation, broker)
        self.page_file = PageFiles().find
        self.samples = RateSamples(broker.config.collect_statistics_interval_ms)

    @property
    def catalog(self) -> Catalog:
        return self._broker.catalog

    @property
    def node_name(self) -> str:
        return self._broker.config.node_name or self._broker.container_id

    @property
    def interval_ms(self) -> int:
        return self._broker.config.collect_statistics_interval_ms

    def node(self) -> NodeView:
        return self._broker.node_view()

    def process(self) -> Mapping[str, int]:
        tasks, files = trio.lowlevel.current_statistics(), open_fds()
        told = {
            "processors": os.cpu_count() or 1,
            "proc_used": tasks.tasks_living,
            "run_queue": tasks.tasks_runnable,
            "fd_total": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        }
        return told if files is None else {**told, "fd_used": files}

    def clients(self) -> Mapping[str, Mapping[str, int | None]]:
        return self._broker.connections.totals_of_vhosts()

    @property
    def attempts(self) -> Attempts:
        return self._broker.logins.attempts

    @property
    def permits_global_qos(self) -> bool:
        return self._broker.config.permit_global_qos

    def settings(self) -> str:
        return effective(self._broker.config)

    async def certificates(self) -> Sequence[CertificateSeen]:
        found: Sequence[CertificateSeen] = await run_slow(partial(certificates, self._broker.config))
        return found

    def connections_open(self) -> tuple[int, int]:
        connections = self._broker.connections
        return connections.count, self._broker.config.connection_max

    async def connections(self) -> Sequence[ConnectionView]:
        return await self._broker.connections.views()

    async def connections_elsewhere(self) -> Sequence[ConnectionView]:
        if not self._broker.catalog.nodes:
            return ()
        told = await self.run("connections", {"where": "elsewhere"}, None, over_http(""))
        found: list[ConnectionView] = []
        turns = LoopYield()
        for each in told:
            found.append(view_of(ConnectionView, each))
            await turns.after(found[-1])
        return found

    async def metrics(self, wanted: ScrapeRequest) -> bytes:
        return await text_of(self._broker, wanted)

    def random(self, size: int) -> bytes:
        return secrets.token_bytes(size)

    def now_ms(self) -> int:
        return self._broker.clock.now_ms()

    async def pause(self) -> None:
        await trio.lowlevel.checkpoint()

    async def publish(
        self, access: Access, exchange: str, routing_key: str, properties: Mapping[str, Any], body: bytes
    ) -> bool:
        broker = self._broker
        vhost = broker.catalog.lookup_vhost(access.vhost)

        def begin(reply_to: ReplyTo) -> PublishOne:
            return PublishOne(
                *(vhost, access, reply_to, to_queue),
                exchange=exchange,
                routing_key=routing_key,
                properties=properties,
                body=body,
                size_max=broker.config.max_message_size_bytes,
            )

        return (await run_job(broker.reply_registry, f"user '{access.user}' over HTTP", begin)).routed

    async def get(
        self, access: Access, queue: str, most: int, delivery_outcome: DeliveryOutcome
    ) -> tuple[Sequence[Message], int]:
        access.read("queue", queue)
        vhost = self._broker.catalog.lookup_vhost(access.vhost)
        found = vhost.for_connection(vhost.lookup(queue), None)
        check_gettable(found)

        def begin(reply_to: ReplyTo) -> GetSome:
            return GetSome(found, reply_to, to_queue, most, delivery_outcome)

        got = await run_job(self._broker.reply_registry, f"user '{access.user}' over HTTP", begin)
        return got.messages, got.behind

    def begin(self, operation: str, given: Mapping[str, Any], *, user: str) -> None:
        self._start(partial(self._behind, operation, given, user))

    async def _behind(self, operation: str, given: Mapping[str, Any], user: str) -> None:
        try:
            await self.run(operation, given, None, over_http(user))
        except BrokerError as error:
            _log.warning("what HTTP began was not done", operation=operation, user=user, reason=str(error))


_TAG_DIGITS: Final = 16


class PageFiles:
    """The content of the package's folder ``page``."""

    def __init__(self) -> None:
        self._files: dict[str, PageFile] | None = None

    async def find(self, path: str) -> PageFile | None:
        """A file. Returns None if there is none of this path. Raises `OSError` if the files cannot
        be read.
        """
        if self._files is None:
            self._files = await trio.to_thread.run_sync(lambda: dict(_read()))
        return self._files.get(path)


def _read() -> Iterator[tuple[str, PageFile]]:
    root = files("amqp10broker") / "api" / "page"
    for folder in FOLDERS:
        for entry in (root / folder).iterdir():
            kind = kind_of(entry.name)
            if kind is not None:
                body = entry.read_bytes()
                yield (
                    folder + entry.name,
                    PageFile(kind, body, hashlib.sha256(body).hexdigest()[:_TAG_DIGITS]),
                )


E = TypeVar("E", bound=BackgroundJob)

ANSWER_S: Final = 15.0
"""How long a queue may take for anything that it tells."""


async def run_job(reply_registry: ReplyRegistry, label: str, begin: Callable[[ReplyTo], E]) -> E:
    """Run a job to its end. Raises a `RefusedError` subclass with the reason, or `BrokerError` if a queue
    has not answered.
    """
    mailbox: Mailbox[SessionMessage] = Mailbox()
    address = reply_registry.open(label, mailbox)
    try:
        job = begin(address)
        try:
            await _heard_out(job, mailbox)
        finally:
            job.end()
    finally:
        reply_registry.close(address)
        mailbox.close()
    return job


def to_queue(command: QueueCommand) -> None:
    """Send a command to its queue at once, as jobs do."""
    command[0].post(command[1])


async def _heard_out(job: BackgroundJob, mailbox: Mailbox[SessionMessage]) -> None:
    while not job.done:
        with trio.move_on_after(ANSWER_S) as patience:
            messages = await mailbox.take_all()
        if patience.cancelled_caught:
            raise BrokerError(f"a queue has not answered for {ANSWER_S:g} s: it is overloaded; try again")
        for message in messages:
            if isinstance(message, list):
                for effect in message:
                    job.hear(effect)


TURN_S: Final = 0.004
"""A turn is over after the step in which so much time has passed."""


async def text_of(broker: Administered, wanted: ScrapeRequest) -> bytes:
    """Return the response to a scrape."""
    pieces: list[bytes] = []
    began = perf_counter()
    for piece in scrape(await source_of(broker, CLIENT_VERSION), wanted):
        pieces.append(piece)
        if perf_counter() - began > TURN_S:
            await trio.lowlevel.checkpoint()
            began = perf_counter()
    return b"".join(pieces)
