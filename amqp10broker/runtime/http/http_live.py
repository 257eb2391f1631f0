"""Clients that follow paths of the HTTP API: evaluation, intervals, and output.

Paths that equal users follow at one interval are evaluated once for all of them. A client has at most one
unsent event of a path: while it reads slowly, nothing piles up here, and its next event spans all changes
since (`api.live.Latest`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from http import HTTPStatus
from typing import Final, TypeAlias

import trio

from amqp10broker.api.live import HEARTBEAT, Following
from amqp10broker.api.messages import HttpRequest, RequestRefused, Send
from amqp10broker.auth.grants import CatalogGrants, Grants
from amqp10broker.auth.token_scopes import TokenGrants
from amqp10broker.runtime.http.http_followed import FollowerState, Look, Onward, Shared

STREAMS_MAX: Final = 250
STREAMS_OF_USER_MAX: Final = 50
"""Streams that may be open; some pages of one user, and many users."""
HEARTBEAT_S: Final = 15.0
"""After so much silence a comment goes out: a connection that is lost is found."""

Start: TypeAlias = Callable[[Callable[[], Awaitable[None]]], None]


class _Stream:
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


class Lives:
    """All streams of an HTTP listener."""

    def __init__(
        self,
        look: Look,
        onward: Callable[[HttpRequest], tuple[str, str] | None],
        start: Start,
        now_ms: Callable[[], int],
    ) -> None:
        """Follow nothing yet.

        Args:
            look: evaluates a path; never raises.
            onward: how to ask for what comes behind an answer of a path, see `api.front.Endpoint`.
            now_ms: the time of day, milliseconds since the epoch.
        """
        self._look = look
        self._onward = onward
        self._start = start
        self._now_ms = now_ms
        self._shared: dict[Hashable, Shared] = {}
        self._open: Counter[str] = Counter()

    def open(self, following: Following, grants: Grants) -> _Stream:
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
        stream = _Stream(self, grants)
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
        return stream

    def closed(self, stream: _Stream) -> None:
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

    def _share(self, request: HttpRequest, grants: Grants, every_s: float, stream: _Stream) -> Shared:
        # Tokens of one user may allow different things.
        whose = grants.user if isinstance(grants, CatalogGrants) else grants
        key = (whose, every_s, request.segments, tuple(request.pairs))
        found = self._shared.get(key)
        if found is None:
            found = self._shared[key] = Shared(self._look, request, grants, every_s)
            self._start(found.run)
        found.followers.add(stream)
        return found
