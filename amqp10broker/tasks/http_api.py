"""The HTTP API of a running broker: who asks is logged in, and the endpoint is run for them."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeAlias

import trio

from amqp10broker.catalog.catalog import Catalog
from amqp10broker.errors import BrokerError, RefusedError
from amqp10broker.http.calls import Call, RunEndpoint
from amqp10broker.http.cors import Cors
from amqp10broker.http.endpoints.metrics import FOR_EVERYBODY
from amqp10broker.http.endpoints.metrics import ROUTES as METRICS
from amqp10broker.http.front import Front, Visit
from amqp10broker.http.looks import Looks
from amqp10broker.http.messages import Answer, Refused, Request
from amqp10broker.http.refusals import refused
from amqp10broker.http.rights import credentials, wrong_login
from amqp10broker.http.routes import Router
from amqp10broker.http.samples import Samples
from amqp10broker.http.table import ROUTES
from amqp10broker.management.snapshot import ConnectionView, NodeView
from amqp10broker.message.message import Message
from amqp10broker.metrics.wanted import Wanted
from amqp10broker.queues.commands import ReplyTo, Verdict
from amqp10broker.security.authorise import Access
from amqp10broker.security.grants import CatalogGrants, Grants, account_of
from amqp10broker.security.login import Crowded, Failure, Peer, Success
from amqp10broker.service.errands import GetSome, PublishOne, check_gettable
from amqp10broker.tasks.connection_log import host_of
from amqp10broker.tasks.errands import post, run_errand
from amqp10broker.tasks.http_connection import RunRequest
from amqp10broker.tasks.log import Log
from amqp10broker.tasks.metrics import text_of
from amqp10broker.tasks.node import Served
from amqp10broker.tasks.operations import Actor, run_operation

_log = Log("amqp10broker.http")

CONNECTIONS_AT_ONCE: Final = 20
"""Connections that are looked at before others have their turn: a millisecond or two."""


Start: TypeAlias = Callable[[Callable[[], Awaitable[None]]], None]


class HttpApi:
    """Answers requests."""

    def __init__(self, broker: Served, start: Start, *, metrics: bool = False) -> None:
        """Take a broker.

        Args:
            broker: that runs; its present settings of HTTP stay.
            start: starts a task that ends with it.
            metrics: those who ask for metrics are answered without a login, and nothing else is.
        """
        self._broker = broker
        self._door = BrokerDoor(broker, start)
        self._looks = Looks(self._door)
        self._start = start
        config = broker.config
        self._front: Front[RunEndpoint] = Front(
            Router(FOR_EVERYBODY if metrics else (*ROUTES, *METRICS)),
            Cors(tuple(each.strip() for each in config.http_cors_origins.split(",") if each.strip())),
            tuple(filter(None, config.http_path_prefix.split("/"))),
        )

    def answering(self, origin: Peer, peer: str) -> RunRequest:
        """What answers the requests of one connection.

        Args:
            origin: what is known of the client before it logs in.
            peer: its address, for the log.
        """
        return partial(self._answer, origin, peer)

    async def _answer(self, origin: Peer, peer: str, request: Request) -> Answer:
        entered = self._front.enter(request)
        if isinstance(entered, Answer):
            return entered
        try:
            answer = await self._visited(entered, origin, peer)
        except Refused as refusal:
            answer = refusal.answer
        except RefusedError as refusal:
            answer = refused(refusal).answer
        except BrokerError as error:
            answer = Refused(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", str(error)).answer
        return self._front.leave(request, entered.route, answer)

    async def _visited(self, visit: Visit[RunEndpoint], origin: Peer, peer: str) -> Answer:
        grants: Grants | None = None
        if visit.endpoint.tag is not None:
            found = await self._logged_in(visit.request, origin, peer)
            if isinstance(found, Answer):
                return found
            grants = found
            if self._looks.asked(grants):
                self._start(self._keep_looking)
        self._front.admit(visit, () if grants is None else account_of(grants).tags)
        return await visit.endpoint.run(Call(visit.request, visit.values, grants, self._door))

    async def _keep_looking(self) -> None:
        """Look at what has rates as long as somebody asks."""
        while self._looks.wanted:
            await trio.sleep(self._broker.config.collect_statistics_interval_ms / 1000)
            try:
                await self._looks.look()
            except (BrokerError, Refused) as error:
                # A queue that does not answer, or has gone: the next look may go well.
                _log.debug("rates were not looked at", reason=str(error))

    async def _logged_in(self, request: Request, origin: Peer, peer: str) -> Grants | Answer:
        """What the user may do who asks, or the answer to one who may not log in.

        Raises:
            Refused: the login is wrong.
        """
        given = credentials(request.headers.get("authorization"))
        if isinstance(given, Answer):
            return given
        broker = self._broker
        authentication = broker.authenticator.begin(origin)
        step = authentication.start("PLAIN", given.plain)
        outcome = await broker.logins.settle(authentication, step, origin.address)
        if isinstance(outcome, Success):
            grants = outcome.token or CatalogGrants(broker.catalog.users, outcome.user)
            if grants.account is not None:
                return grants
        if isinstance(outcome, Crowded):
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", outcome.reason)
        if isinstance(outcome, Failure):
            host = host_of(peer)
            broker.log_limits.write(
                _log.warning,
                ("warnings", host),
                "HTTP login failed",
                about={"peer": host},
                peer=peer,
                reason=outcome.reason,
                **({"user": outcome.user} if outcome.user else {}),
            )
        await broker.logins.hold(origin.address, broker.config.auth_failure_delay_ms / 1000)
        raise wrong_login()


class BrokerDoor:
    """What endpoints may ask of a broker: see the protocol `http.calls.Door`."""

    def __init__(self, broker: Served, start: Start) -> None:
        self._broker = broker
        self._start = start
        self.samples = Samples(broker.config.collect_statistics_interval_ms)

    @property
    def catalog(self) -> Catalog:
        return self._broker.catalog

    @property
    def node_name(self) -> str:
        return self._broker.config.node_name or self._broker.container_id

    def node(self) -> NodeView:
        return self._broker.node_view()

    def clients(self) -> Mapping[str, Mapping[str, int | None]]:
        return self._broker.connections.totals_of_vhosts()

    def connections_open(self) -> tuple[int, int]:
        connections = self._broker.connections
        return len(connections) + len(connections.greetings), self._broker.config.connection_max

    async def connections(self) -> Sequence[ConnectionView]:
        found: list[ConnectionView] = []
        for place, connection in enumerate(list(self._broker.connections.values()), 1):
            if not place % CONNECTIONS_AT_ONCE:
                await trio.lowlevel.checkpoint()
            if connection.member is not None:
                found.append(connection.view())
        return found

    async def metrics(self, wanted: Wanted) -> bytes:
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
                *(vhost, access, reply_to, post),
                exchange=exchange,
                routing_key=routing_key,
                properties=properties,
                body=body,
                size_max=broker.config.max_message_size_bytes,
            )

        return (await run_errand(broker.askers, f"user '{access.user}' over HTTP", begin)).routed

    async def get(
        self, access: Access, queue: str, most: int, verdict: Verdict
    ) -> tuple[Sequence[Message], int]:
        access.read("queue", queue)
        vhost = self._broker.catalog.lookup_vhost(access.vhost)
        found = vhost.for_connection(vhost.lookup(queue), None)
        check_gettable(found)

        def begin(reply_to: ReplyTo) -> GetSome:
            return GetSome(found, reply_to, post, most, verdict)

        got = await run_errand(self._broker.askers, f"user '{access.user}' over HTTP", begin)
        return got.messages, got.behind

    def begin(self, operation: str, given: Mapping[str, Any], *, user: str) -> None:
        self._start(partial(self._behind, operation, given, user))

    async def _behind(self, operation: str, given: Mapping[str, Any], user: str) -> None:
        try:
            await self.run(operation, given, vhost=None, user=user, access=None)
        except BrokerError as error:
            _log.warning("what HTTP began was not done", operation=operation, user=user, reason=str(error))

    async def run(
        self, operation: str, given: Mapping[str, Any], *, vhost: str | None, user: str, access: Access | None
    ) -> Any:
        actor = Actor(f"user '{user}' over HTTP", access)
        return await run_operation(self._broker, operation, given, vhost, actor)
