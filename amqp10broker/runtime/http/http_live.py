"""Clients that follow paths of the HTTP API: evaluation, intervals, and output.

Paths that equal users follow at one interval are evaluated once for all of them. A client has at most one
unsent event of a path: while it reads slowly, nothing piles up here, and its next event spans all changes
since (`api.live.Latest`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import field, replace
from http import HTTPStatus
from typing import Any, Final, TypeAlias

import trio

from amqp10broker.api.live import HEARTBEAT, Following, Latest, event, refusal_of, refused_event
from amqp10broker.api.messages import Feed, HttpRequest, HttpResponse, RequestRefused, Send
from amqp10broker.auth.grants import CatalogGrants, Grants
from amqp10broker.auth.token_scopes import TokenGrants
from amqp10broker.dataclass import dataclass

STREAMS_MAX: Final = 250
STREAMS_OF_USER_MAX: Final = 50
"""Streams that may be open; some pages of one user, and many users."""
HEARTBEAT_S: Final = 15.0
"""After so much silence a comment goes out: a connection that is lost is found."""

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
        """Follow paths for a user.

        Raises:
            Refused: 503, too many streams are open.
        """
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
        # What others follow already is there.
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
        """Whether the user is still there, and its token has not ended."""
        ends = grants.expires_at if isinstance(grants, TokenGrants) else None
        return grants.account is not None and (ends is None or self._now_ms() < ends * 1000)

    def _share(self, request: HttpRequest, grants: Grants, every_s: float, stream: Stream) -> Shared:
        # Tokens of one user may allow different things.
        whose = grants.user if isinstance(grants, CatalogGrants) else grants
        key = (whose, every_s, request.segments, tuple(request.pairs))
        found = self._shared.get(key)
        if found is None:
            found = self._shared[key] = Shared(self._look, request, grants, every_s)
            self._start(found.run)
        found.followers.add(stream)
        return found


REFUSED_S: Final = 5.0
"""So long a path that was refused is left alone at least: what is too large to be told is dear to make."""

Look: TypeAlias = Callable[[HttpRequest, Grants], Awaitable[HttpResponse]]
"""Runs a GET for a user, with the rights that it has then. It never raises."""


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
    """A client's side of a shared path: the state that it has."""

    shared: Shared
    place: int
    heard: Any = None
    anything: bool = False
    refusal: object = None

    def take(self) -> str | None:
        """The event that the client lacks; None: it is up to date."""
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
    """A path of which each answer begins where the last one ended: a client's own, as fast as it reads."""

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
        """Look, and wait until the client has what was seen."""
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
