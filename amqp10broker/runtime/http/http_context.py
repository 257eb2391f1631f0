"""The running broker, as endpoints of the HTTP API may ask it."""

from __future__ import annotations

import os
import resource
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import trio

from amqp10broker.api.calls import over_http
from amqp10broker.api.samples import RateSamples
from amqp10broker.auth.authorise import Access
from amqp10broker.config.records import effective
from amqp10broker.errors import BrokerError
from amqp10broker.message.message import Message
from amqp10broker.observe.metrics.wanted import ScrapeRequest
from amqp10broker.operations.inspection import CertificateSeen
from amqp10broker.operations.snapshot import ConnectionView, view_of
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
from amqp10broker.runtime.observe.metrics_source import open_fds
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
        self.interval_ms = broker.config.collect_statistics_interval_ms
        self.samples = RateSamples(self.interval_ms)
        self.catalog = broker.catalog
        self.node_name = broker.config.node_name or broker.container_id
        self.node = broker.node_view
        self.clients = broker.connections.totals_of_vhosts
        self.attempts = broker.logins.attempts
        self.permits_global_qos = broker.config.permit_global_qos
        self.random = secrets.token_bytes
        self.now_ms = broker.clock.now_ms

    def process(self) -> Mapping[str, int]:
        tasks, files = trio.lowlevel.current_statistics(), open_fds()
        told = {
            "processors": os.cpu_count() or 1,
            "proc_used": tasks.tasks_living,
            "run_queue": tasks.tasks_runnable,
            "fd_total": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        }
        return told if files is None else {**told, "fd_used": files}

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
