"""The HTTP API of a running broker: authentication of requests, endpoints, and the broker as they use it; and
clients that follow paths (`api.live`).

A path that the same user follows several times at one interval is evaluated once. A client has at most one
unsent event of a path: while it reads slowly, nothing accumulates here, and its next event covers all changes
since.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from itertools import chain
from typing import Any, Final, TypeAlias, TypeVar

import trio

from amqp10broker import portable
from amqp10broker.api.calls import BrokerApi, EndpointCall, over_http
from amqp10broker.api.endpoints import ROUTES, Looks
from amqp10broker.api.endpoints.page import FOLDERS, FOR_EVERYBODY, kind_of
from amqp10broker.api.endpoints.page import METRIC_ROUTES as METRICS
from amqp10broker.api.endpoints.page import ROUTES as PAGE
from amqp10broker.api.front import JSON_TYPES, Cors, Front, Router, Visit, form_credentials, wrong_login
from amqp10broker.api.live import HEARTBEAT, Following, Latest, event, refusal_of, refused_event
from amqp10broker.api.messages import (
    Feed,
    HttpRequest,
    HttpResponse,
    PageFile,
    ReadBody,
    RequestRefused,
    Send,
    bad_request,
    fault,
    refused,
)
from amqp10broker.api.samples import RateSamples
from amqp10broker.auth.authorise import Access, CatalogGrants, Grants, account_of
from amqp10broker.auth.login import Failure, Peer, Success, Unverified
from amqp10broker.auth.tokens import TokenGrants
from amqp10broker.config.settings import effective
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BrokerError, RefusedError
from amqp10broker.message.message import Message
from amqp10broker.metadata.queue import QueueCommand
from amqp10broker.metadata.users import User
from amqp10broker.observe.exposition import CLIENT_VERSION, scrape
from amqp10broker.observe.metrics import ScrapeRequest
from amqp10broker.operations.snapshot import ConnectionView, view_of
from amqp10broker.queues.commands import DeliveryOutcome, ReplyTo
from amqp10broker.runtime.admin.admin import AdminContext, run_operation
from amqp10broker.runtime.admin.node import certificates
from amqp10broker.runtime.connections.connections import LoopYield
from amqp10broker.runtime.connections.login import run_slow
from amqp10broker.runtime.log import Log
from amqp10broker.runtime.mailbox import Mailbox, ReplyRegistry
from amqp10broker.runtime.observe.metrics_source import Turn, source_of
from amqp10broker.sessions.jobs import BackgroundJob, GetSome, PublishOne, check_gettable
from amqp10broker.sessions.messages import SessionMessage

STREAMS_MAX: Final = 250
STREAMS_OF_USER_MAX: Final = 50
"""The streams that one user may have open: enough for some pages."""
HEARTBEAT_S: Final = 15.0
"""After so long without an event a comment is sent, so that a lost connection is detected."""

Start: TypeAlias = Callable[[Callable[[], Awaitable[None]]], None]


class Stream:
    """One client's stream of events: the body of an answer (`api.messages.Feed`)."""

    def __init__(self, lives: Lives, grants: Grants) -> None:
        self.grants = grants
        self.followed: list[FollowerState | Onward] = []
        self._lives = lives
        self._woken = trio.Event()

    def wake(self) -> None:
        self._woken.set()

    async def run(self, send: Send) -> None:
        while self._lives.holds(self.grants):
            with trio.move_on_after(HEARTBEAT_S) as silence:
                await self._woken.wait()
            if silence.cancelled_caught:
                await send(HEARTBEAT.encode())
                continue
            self._woken = trio.Event()
            for each in self.followed:
                text = each.take()
                if text is not None:
                    await send(text.encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        self._lives.closed(self)


@dataclass(eq=False)
class Lives:
    _look: Look
    _onward: Callable[[HttpRequest], tuple[str, str] | None]
    _start: Start
    _now_ms: Callable[[], int]
    _shared: dict[Hashable, Shared] = field(default_factory=dict, init=False)
    _open: Counter[str] = field(default_factory=Counter, init=False)

    def open(self, following: Following, grants: Grants) -> Feed:
        """Follow paths for a user. Raises `RequestRefused` (503) if too many streams are open."""
        user = grants.user
        if self._open.total() >= STREAMS_MAX or self._open[user] >= STREAMS_OF_USER_MAX:
            most = f"{STREAMS_OF_USER_MAX} of a user, {STREAMS_MAX} in all"
            reason = f"too many streams are open ({most}): close some, or ask for the paths one by one"
            raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", reason)
        self._open[user] += 1
        stream = Stream(self, grants)
        every_s = following.interval_ms / 1000
        for place, request in enumerate(following.paths):
            onward = self._onward(request)
            if onward is None:
                stream.followed.append(FollowerState(self._share(request, grants, every_s, stream), place))
            else:
                own = Onward(stream, self._look, request, place, onward, every_s)
                stream.followed.append(own)
                self._start(own.run)
        # The state of paths that others follow exists already.
        stream.wake()
        return Feed(stream.run, stream.close)

    def closed(self, stream: Stream) -> None:
        user = stream.grants.user
        self._open[user] -= 1
        if not self._open[user]:
            del self._open[user]
        for each in stream.followed:
            each.leave(stream)
        for key in [key for key, shared in self._shared.items() if not shared.followers]:
            del self._shared[key]

    def holds(self, grants: Grants) -> bool:
        """Return whether the user still exists, and its token has not ended."""
        ends = grants.expires_at if isinstance(grants, TokenGrants) else None
        return grants.account is not None and (ends is None or self._now_ms() < ends * 1000)

    def _share(self, request: HttpRequest, grants: Grants, every_s: float, stream: Stream) -> Shared:
        # Tokens of one user may have different permissions.
        whose = grants.user if isinstance(grants, CatalogGrants) else grants
        key = (whose, every_s, request.segments, tuple(request.pairs))
        found = self._shared.get(key)
        if found is None:
            found = self._shared[key] = Shared(self._look, request, grants, every_s)
            self._start(found.run)
        found.followers.add(stream)
        return found


REFUSED_S: Final = 5.0
"""A refused path is not evaluated again before this time: a result that is too large takes long to make."""

Look: TypeAlias = Callable[[HttpRequest, Grants], Awaitable[HttpResponse]]
"""Runs a GET for a user, with the rights that the user has then. It never raises."""


class Shared:
    def __init__(self, look: Look, request: HttpRequest, grants: Grants, every_s: float) -> None:
        self.latest = Latest()
        self.followers: set[Stream] = set()
        self._look = look
        self._request = request
        self._grants = grants
        self._every_s = every_s
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        with self._scope:
            while True:
                answer = await self._look(self._request, self._grants)
                if self.latest.heard(answer):
                    for follower in self.followers:
                        follower.wake()
                refused = self.latest.refusal is not None
                await trio.sleep(max(self._every_s, REFUSED_S) if refused else self._every_s)

    def leave(self, follower: Stream) -> None:
        self.followers.discard(follower)
        if not self.followers:
            self._scope.cancel()


@dataclass(eq=False, slots=True)
class FollowerState:
    """A client's part of a shared path: the state that it has."""

    shared: Shared
    place: int
    heard: Any = None
    anything: bool = False
    refusal: object = None

    def take(self) -> str | None:
        """Return the event that the client lacks; None: it is up to date."""
        latest = self.shared.latest
        if latest.refusal is not None:
            if self.refusal is latest.refusal:
                return None
            self.refusal, self.heard, self.anything = latest.refusal, None, False
            return refused_event(self.place, latest.refusal)
        if not latest.known or (self.anything and self.heard is latest.value):
            return None
        text = latest.told(self.place, self.heard, anything=self.anything)
        self.refusal, self.heard, self.anything = None, latest.value, True
        return text

    def leave(self, follower: Stream) -> None:
        self.shared.leave(follower)


@dataclass(eq=False)
class Onward:
    """A path of which each answer begins where the last one ended. It belongs to one client, at its speed."""

    _follower: Stream
    _look: Look
    _request: HttpRequest
    _place: int
    _onward: tuple[str, str]
    _every_s: float
    _scope: trio.CancelScope = field(default_factory=trio.CancelScope, init=False)
    _event: str | None = None
    _taken: trio.Event = field(default_factory=trio.Event, init=False)

    async def run(self) -> None:
        """Evaluate the path, and wait until the client has the result."""
        member, parameter = self._onward
        name, refusal = "whole", None
        with self._scope:
            while True:
                answer = await self._look(self._request, self._follower.grants)
                refused = refusal_of(answer, None)
                at_once = False
                if refused is None:
                    value = json.loads(answer.body)
                    self._event = event(name, self._place, "value", answer.body.decode())
                    name, at_once = "more", bool(value["more"])
                    query = {**self._request.query, parameter: str(value[member])}
                    self._request = replace(self._request, query=query)
                elif refused != refusal:
                    self._event, name = refused_event(self._place, refused), "whole"
                refusal = refused
                if self._event is not None:
                    self._taken = trio.Event()
                    self._follower.wake()
                    await self._taken.wait()
                if not at_once:
                    await trio.sleep(self._every_s if refused is None else max(self._every_s, REFUSED_S))

    def take(self) -> str | None:
        taken, self._event = self._event, None
        self._taken.set()
        return taken

    def leave(self, follower: Stream) -> None:
        self._scope.cancel()


_TAG_DIGITS: Final = 16


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


async def run_job(reply_registry: ReplyRegistry, label: str, begin: Callable[[ReplyTo], E]) -> E:
    """Run a job to its end. Raises `RefusedError`, or `BrokerError` if a queue has not answered."""
    mailbox: Mailbox[SessionMessage] = Mailbox()
    address = reply_registry.open(label, mailbox)
    try:
        job = begin(address)
        try:
            while not job.done:
                with trio.move_on_after(ANSWER_S) as patience:
                    messages = await mailbox.take_all()
                if patience.cancelled_caught:
                    raise BrokerError(
                        f"a queue has not answered for {ANSWER_S:g} s: it is overloaded; try again"
                    )
                for effect in chain.from_iterable(each for each in messages if isinstance(each, list)):
                    job.hear(effect)
        finally:
            job.end()
    finally:
        reply_registry.close(address)
        mailbox.close()
    return job


def to_queue(command: QueueCommand) -> None:
    """Send a command to its queue at once, as jobs do."""
    command[0].post(command[1])


async def text_of(broker: AdminContext, wanted: ScrapeRequest) -> bytes:
    """Return the response to a scrape."""
    pieces: list[bytes] = []
    turn = Turn()
    for piece in scrape(await source_of(broker, CLIENT_VERSION), wanted):
        pieces.append(piece)
        await turn.yield_when_over()
    return b"".join(pieces)


_log = Log("amqp10broker.http")

FORM_BYTES_MAX: Final = 16_384
"""The size of a login form."""


class HttpApi(BrokerApi):
    def __init__(self, broker: AdminContext, start: Start, *, metrics: bool = False) -> None:
        self._broker = broker
        self._start = start
        config, connections = broker.config, broker.connections
        self._lives = Lives(self._look, self._onward, start, broker.clock.now_ms)
        self.follow = self._lives.open
        self.run = partial(run_operation, broker)
        self._page_files: dict[str, PageFile] | None = None
        self.interval_ms = config.collect_statistics_interval_ms
        self.samples = RateSamples(self.interval_ms)
        self.catalog = broker.catalog
        self.node_name = config.node_name or broker.container_id
        self.node = broker.node_view
        self.clients = connections.totals_of_vhosts
        self.attempts = broker.logins.attempts
        self.random = secrets.token_bytes
        self.now_ms = broker.clock.now_ms
        self.settings = lambda: effective(broker.config)
        self.certificates = partial(run_slow, partial(certificates, config))
        self.connections = connections.views
        self.connections_open = lambda: (connections.count, broker.config.connection_max)
        self.metrics = partial(text_of, broker)
        self._looks = Looks(self)
        self._front = Front(
            Router(FOR_EVERYBODY if metrics else (*ROUTES, *METRICS, *PAGE)),
            Cors(tuple(each.strip() for each in config.http_cors_origins.split(",") if each.strip())),
            tuple(filter(None, config.http_path_prefix.split("/"))),
        )

    # --- for endpoints ----------------------------------------------------------------------------

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

    async def page_file(self, path: str) -> PageFile | None:
        if self._page_files is None:
            self._page_files = await trio.to_thread.run_sync(lambda: dict(_read()))
        return self._page_files.get(path)

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

    # --- requests ---------------------------------------------------------------------------------

    async def answer(self, origin: Peer, peer: str, request: HttpRequest, read: ReadBody) -> HttpResponse:
        entered = self._front.enter(request)
        if isinstance(entered, HttpResponse):
            return entered
        answer = await _told(self._visited(entered, origin, peer, read))
        return self._front.leave(request, entered.route, answer)

    async def _visited(self, visit: Visit, origin: Peer, peer: str, read: ReadBody) -> HttpResponse:
        grants: Grants | None = None
        user: User | None = None
        if visit.endpoint.login is form_credentials:
            visit = _with_body(visit, await read(FORM_BYTES_MAX))
        if visit.endpoint.tag is not None:
            found = await self._logged_in(visit, origin, peer)
            if isinstance(found, HttpResponse):
                return found
            grants, user = found
        self._front.admit(visit, () if user is None else user.tags)
        version = None if grants is None else grants.changes.version
        if visit.endpoint.login is not form_credentials:
            visit = _with_body(visit, await read(0 if grants is None else None))
        if grants is not None and grants.changes.version != version:
            user = self._admit(visit, grants)  # the body may have taken a minute
        return await self._carried_out(visit, grants, user)

    def _admit(self, visit: Visit, grants: Grants) -> User:
        user = account_of(grants)
        self._front.admit(visit, user.tags)
        return user

    async def _carried_out(self, visit: Visit, grants: Grants | None, user: User | None) -> HttpResponse:
        if grants is not None and self._looks.asked(grants, trio.current_time()):
            self._start(self._keep_looking)
        call = EndpointCall(visit.request, visit.values, self, grants, user)
        return await visit.endpoint.run(call)

    async def _followed(self, visit: Visit, grants: Grants) -> HttpResponse:
        return await self._carried_out(visit, grants, self._admit(visit, grants))

    # --- paths that are followed ------------------------------------------------------------------

    async def _look(self, request: HttpRequest, grants: Grants) -> HttpResponse:
        if not self._lives.holds(grants):
            return wrong_login().answer
        entered = self._front.enter(self._front.below(request))
        if isinstance(entered, HttpResponse):
            return entered
        if entered.endpoint.tag is None or entered.endpoint.types != JSON_TYPES:
            reason = "only what a user is told as JSON can be followed"
            return bad_request(reason).answer
        try:
            return await _told(self._followed(entered, grants))
        except Exception as error:
            _log.error("a path that is followed failed by a fault in the broker", exc_info=error)
            return fault(error).answer

    def _onward(self, request: HttpRequest) -> tuple[str, str] | None:
        entered = self._front.enter(self._front.below(request))
        return None if isinstance(entered, HttpResponse) else entered.endpoint.onward

    async def _keep_looking(self) -> None:
        while self._looks.wanted(trio.current_time()):
            await trio.sleep(self.interval_ms / 1000)
            try:
                await self._looks.look()
            except (BrokerError, RequestRefused) as error:
                # A queue did not answer, or was deleted: the next evaluation may succeed.
                _log.debug("rates were not looked at", reason=str(error))

    async def _logged_in(self, visit: Visit, origin: Peer, peer: str) -> tuple[Grants, User] | HttpResponse:
        given = visit.endpoint.login(visit.request)
        if isinstance(given, HttpResponse):
            return given
        broker, response = self._broker, given.plain
        authentication = broker.authenticator.begin(origin)
        step = authentication.start("PLAIN", response)
        outcome = await broker.logins.settle(authentication, step, origin.address, "http")
        if isinstance(outcome, Success):
            grants = outcome.token or CatalogGrants(broker.catalog.users, outcome.user)
            if (account := grants.account) is not None:
                return grants, account
        if isinstance(outcome, Unverified):
            raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", outcome.reason)
        if isinstance(outcome, Failure):
            user = {"user": outcome.user} if outcome.user else {}
            broker.log_limits.warn(_log, "HTTP login failed", peer, reason=outcome.reason, **user)
        await broker.logins.hold(origin.address, broker.config.auth_failure_delay_ms / 1000)
        raise wrong_login()


def _with_body(visit: Visit, body: bytes) -> Visit:
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
