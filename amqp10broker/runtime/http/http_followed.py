"""One followed path of the HTTP API: repeated evaluation, and the state that clients have."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, Protocol, TypeAlias

import trio

from amqp10broker.api.live import Latest, event, refusal_of, refused_event
from amqp10broker.api.messages import HttpRequest, HttpResponse
from amqp10broker.auth.grants import Grants
from amqp10broker.dataclass import dataclass

REFUSED_S: Final = 5.0
"""So long a path that was refused is left alone at least: what is too large to be told is dear to make."""

Look: TypeAlias = Callable[[HttpRequest, Grants], Awaitable[HttpResponse]]
"""Runs a GET for a user, with the rights that it has then. It never raises."""


class Follower(Protocol):
    grants: Grants

    def wake(self) -> None:
        """There is an event to send."""


class Shared:
    """A path that is evaluated for the followers of one user."""

    def __init__(self, look: Look, request: HttpRequest, grants: Grants, every_s: float) -> None:
        self.latest = Latest()
        self.followers: set[Follower] = set()
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

    def leave(self, follower: Follower) -> None:
        """One follows no more; with the last it is over."""
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

    def leave(self, follower: Follower) -> None:
        """The client follows no more."""
        self.shared.leave(follower)


class Onward:
    """A path of which each answer begins where the last one ended: a client's own, as fast as it reads."""

    def __init__(
        self,
        follower: Follower,
        look: Look,
        request: HttpRequest,
        place: int,
        onward: tuple[str, str],
        every_s: float,
    ) -> None:
        self._follower = follower
        self._look = look
        self._request = request
        self._place = place
        self._onward = onward
        self._every_s = every_s
        self._scope = trio.CancelScope()
        self._event: str | None = None
        self._taken = trio.Event()

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
        """The event that the client lacks; None: it is up to date."""
        taken, self._event = self._event, None
        self._taken.set()
        return taken

    def leave(self, follower: Follower) -> None:
        """The client follows no more."""
        self._scope.cancel()
