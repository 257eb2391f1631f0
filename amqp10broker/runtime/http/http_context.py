"""The running broker, as endpoints of the HTTP API may ask it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import trio

from amqp10broker import portable
from amqp10broker.api.calls import over_http
from amqp10broker.api.samples import RateSamples
from amqp10broker.auth.attempts import Attempts
from amqp10broker.auth.authorise import Access
from amqp10broker.config.effective import effective
from amqp10broker.errors import BrokerError
from amqp10broker.message.message import Message
from amqp10broker.metadata.catalog import Catalog
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
from amqp10broker.runtime.http.page_files import PageFiles
from amqp10broker.runtime.log import Log
from amqp10broker.runtime.observe.metrics import text_of
from amqp10broker.runtime.queues.background_jobs import run_job, to_queue
from amqp10broker.sessions.jobs import GetSome, PublishOne, check_gettable

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
        tasks = trio.lowlevel.current_statistics()
        told = {
            "processors": os.cpu_count() or 1,
            "proc_used": tasks.tasks_living,
            "run_queue": tasks.tasks_runnable,
            "fd_total": portable.limit("RLIMIT_NOFILE"),
            "fd_used": portable.open_files(),
        }
        return {name: figure for name, figure in told.items() if figure is not None}

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
