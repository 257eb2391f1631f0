"""The HTTP API of a running broker: authentication of requests, and dispatch to endpoints."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Final

import trio

from amqp10broker.api.calls import EndpointCall, RunEndpoint
from amqp10broker.api.cors import Cors
from amqp10broker.api.endpoints.metrics import FOR_EVERYBODY
from amqp10broker.api.endpoints.metrics import ROUTES as METRICS
from amqp10broker.api.endpoints.page import ROUTES as PAGE
from amqp10broker.api.front import Front, Visit
from amqp10broker.api.looks import Looks
from amqp10broker.api.messages import HttpRequest, HttpResponse, RequestRefused
from amqp10broker.api.refusals import fault, refused
from amqp10broker.api.rights import form_credentials, wrong_login
from amqp10broker.api.routes import JSON_TYPES, Router
from amqp10broker.api.table import ROUTES
from amqp10broker.auth.grants import CatalogGrants, Grants, account_of
from amqp10broker.auth.login import Failure, Peer, Success, Unverified
from amqp10broker.errors import BrokerError, RefusedError
from amqp10broker.runtime.admin.node import Administered
from amqp10broker.runtime.connections.connection_log import host_of
from amqp10broker.runtime.http.http_connection import HttpLimits, ReadBody, RunRequest
from amqp10broker.runtime.http.http_context import BrokerDoor
from amqp10broker.runtime.http.http_live import Lives, Start
from amqp10broker.runtime.log import Log

_log = Log("amqp10broker.http")

FORM_BYTES_MAX: Final = 16_384
"""Of a form to log in by."""


class HttpApi:
    def __init__(self, broker: Administered, start: Start, *, metrics: bool = False) -> None:
        self._broker = broker
        self._lives = Lives(self._look, self._onward, start, broker.clock.now_ms)
        self._broker_api = BrokerDoor(broker, start, self._lives)
        self._looks = Looks(self._broker_api)
        self._start = start
        config = broker.config
        self.limits = HttpLimits(body_bytes=config.http_body_bytes_max)
        self._front: Front[RunEndpoint] = Front(
            Router(FOR_EVERYBODY if metrics else (*ROUTES, *METRICS, *PAGE)),
            Cors(tuple(each.strip() for each in config.http_cors_origins.split(",") if each.strip())),
            tuple(filter(None, config.http_path_prefix.split("/"))),
        )

    def answering(self, origin: Peer, peer: str) -> RunRequest:
        return partial(self._answer, origin, peer)

    async def _answer(self, origin: Peer, peer: str, request: HttpRequest, read: ReadBody) -> HttpResponse:
        entered = self._front.enter(request)
        if isinstance(entered, HttpResponse):
            return entered
        answer = await _told(self._visited(entered, origin, peer, read))
        return self._front.leave(request, entered.route, answer)

    async def _visited(
        self, visit: Visit[RunEndpoint], origin: Peer, peer: str, read: ReadBody
    ) -> HttpResponse:
        grants: Grants | None = None
        if visit.endpoint.login is form_credentials:
            visit = _with_body(visit, await read(FORM_BYTES_MAX))
        if visit.endpoint.tag is not None:
            found = await self._logged_in(visit, origin, peer)
            if isinstance(found, HttpResponse):
                return found
            grants = found
        self._admit(visit, grants)  # and once more when the body is there, which may take a minute
        if visit.endpoint.login is not form_credentials:
            visit = _with_body(visit, await read(0 if grants is None else None))
        return await self._carried_out(visit, grants)

    def _admit(self, visit: Visit[RunEndpoint], grants: Grants | None) -> None:
        self._front.admit(visit, () if grants is None else account_of(grants).tags)

    async def _carried_out(self, visit: Visit[RunEndpoint], grants: Grants | None) -> HttpResponse:
        if grants is not None and self._looks.asked(grants):
            self._start(self._keep_looking)
        self._admit(visit, grants)
        return await visit.endpoint.run(EndpointCall(visit.request, visit.values, grants, self._broker_api))

    # --- paths that are followed ------------------------------------------------------------------

    async def _look(self, request: HttpRequest, grants: Grants) -> HttpResponse:
        if not self._lives.holds(grants):
            return wrong_login().answer
        entered = self._front.enter(self._front.below(request))
        if isinstance(entered, HttpResponse):
            return entered
        if entered.endpoint.tag is None or entered.endpoint.types != JSON_TYPES:
            reason = "only what a user is told as JSON can be followed"
            return RequestRefused(HTTPStatus.BAD_REQUEST, "bad_request", reason).answer
        try:
            return await _told(self._carried_out(entered, grants))
        except Exception as error:
            _log.error("a path that is followed failed by a fault in the broker", exc_info=error)
            return fault(error).answer

    def _onward(self, request: HttpRequest) -> tuple[str, str] | None:
        entered = self._front.enter(self._front.below(request))
        return None if isinstance(entered, HttpResponse) else entered.endpoint.onward

    async def _keep_looking(self) -> None:
        while self._looks.wanted:
            await trio.sleep(self._broker.config.collect_statistics_interval_ms / 1000)
            try:
                await self._looks.look()
            except (BrokerError, RequestRefused) as error:
                # A queue that does not answer, or has gone: the next look may go well.
                _log.debug("rates were not looked at", reason=str(error))

    async def _logged_in(self, visit: Visit[RunEndpoint], origin: Peer, peer: str) -> Grants | HttpResponse:
        given = visit.endpoint.login(visit.request)
        if isinstance(given, HttpResponse):
            return given
        broker = self._broker
        authentication = broker.authenticator.begin(origin)
        step = authentication.start("PLAIN", given.plain)
        outcome = await broker.logins.settle(authentication, step, origin.address)
        if isinstance(outcome, Success | Failure):
            broker.logins.attempts.count("http", succeeded=isinstance(outcome, Success))
        if isinstance(outcome, Success):
            grants = outcome.token or CatalogGrants(broker.catalog.users, outcome.user)
            if grants.account is not None:
                return grants
        if isinstance(outcome, Unverified):
            raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", outcome.reason)
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


def _with_body(visit: Visit[RunEndpoint], body: bytes) -> Visit[RunEndpoint]:
    return replace(visit, request=replace(visit.request, body=body))


async def _told(run: Awaitable[HttpResponse]) -> HttpResponse:
    try:
        return await run
    except RequestRefused as refusal:
        return refusal.answer
    except RefusedError as refusal:
        return refused(refusal).answer
    except BrokerError as error:
        return RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", str(error)).answer
