"""Live updates: paths of the API, requested repeatedly on the client's behalf, as server-sent events.

The events, each with one line of JSON with the path's index as ``id``, from 0:

- ``whole``: ``{"id", "value"}``, the complete answer: the first one, and one after a refusal;
- ``delta``: ``{"id", "change"}``, the changes since (`differences`);
- ``more``: ``{"id", "value"}``, for a path with continued answers: the continuation;
- ``refused``: ``{"id", "status", "error", "reason"}``: the request failed; it is repeated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, Self

from amqp10broker.api.differences import difference
from amqp10broker.api.fields import integer
from amqp10broker.api.messages import HttpRequest, HttpResponse, RequestRefused, json_text
from amqp10broker.dataclass import dataclass

EVENT_TYPES: Final = ("text/event-stream", "text/*", "*/*")
EVENT_HEADERS: Final = (
    ("content-type", "text/event-stream"),
    # A proxy that buffers an answer would make the client wait forever.
    ("x-accel-buffering", "no"),
)
PATHS_MAX: Final = 8
INTERVAL_MS_MIN: Final = 100
INTERVAL_MS_MAX: Final = 600_000
BODY_BYTES_MAX: Final = 1_048_576
"""The size limit of an answer: it is parsed in one go, some milliseconds."""
HEARTBEAT: Final = ": \n\n"
"""A comment, which clients ignore: it keeps the connection alive."""


@dataclass(frozen=True, slots=True)
class Following:
    """The paths that a client follows."""

    paths: tuple[HttpRequest, ...]
    interval_ms: int

    @classmethod
    def read(cls, request: HttpRequest, interval_ms: int) -> Self:
        """Parse a request for updates."""
        targets = request.every("path")
        if not 1 <= len(targets) <= PATHS_MAX:
            raise _bad(f"give 1 to {PATHS_MAX} paths to follow: path=/queues&path=/overview")
        for target in targets:
            if not target.startswith("/"):
                raise _bad(f"'{target[:80]}' is no path below /api: it begins with a slash")
        found = tuple(HttpRequest.read(b"GET", target.encode("utf-8", "replace"), ()) for target in targets)
        wanted = integer(request.query, "interval", interval_ms)
        if not INTERVAL_MS_MIN <= wanted <= INTERVAL_MS_MAX:
            raise _bad(f"interval must be {INTERVAL_MS_MIN} to {INTERVAL_MS_MAX} milliseconds, not {wanted}")
        return cls(found, wanted)


@dataclass(eq=False, slots=True)
class Latest:
    """The present answer of a path, shared by all its followers.

    Attributes:
        value: of the last answer that differed; each is a new object. Meaningless before the first one.
        refusal: why there is none now; None: there is.
    """

    value: Any = None
    known: bool = False
    refusal: Mapping[str, Any] | None = None
    _body: bytes = b""
    _before: Any = None
    _change: str | None = None

    def heard(self, answer: HttpResponse) -> bool:
        """Store an answer; return whether it differs from the last one."""
        refusal = refusal_of(answer)
        if refusal is not None:
            if refusal == self.refusal:
                return False
            # A value that may not be seen any more is not stored, either.
            self.value, self.known, self.refusal, self._body, self._before = None, False, refusal, b"", None
            return True
        if self.known and answer.body == self._body:
            return False
        value = json.loads(answer.body)
        change = difference(self.value, value) if self.known else None
        if self.known and change is None:
            return False
        self._before = self.value
        self._change = None if change is None else json_text(change)
        self.value, self.known, self.refusal, self._body = value, True, None, answer.body
        return True

    def told(self, place: int, heard: Any, *, anything: bool) -> str:
        """Return the event that brings a client to the present value."""
        if anything and heard is self._before:
            change = self._change
        else:
            made = difference(heard, self.value) if anything else None
            change = None if made is None else json_text(made)
        if change is None or len(change) >= len(self._body):
            return event("whole", place, "value", self._body.decode())
        return event("delta", place, "change", change)


def refusal_of(answer: HttpResponse, size_max: int | None = BODY_BYTES_MAX) -> dict[str, Any] | None:
    """Return the event data of an answer that cannot be followed; None if it can. `size_max`: bytes of it;
    None: any, because no differences are computed.
    """
    if answer.status == HTTPStatus.OK:
        if ("content-type", "application/json") not in answer.headers:
            reason = "only what is answered as JSON can be followed"
        elif size_max is not None and len(answer.body) > size_max:
            reason = f"this is more than {size_max} bytes: follow a page of it, or some columns"
        else:
            return None
        return {"status": int(HTTPStatus.BAD_REQUEST), "error": "bad_request", "reason": reason}
    told = json.loads(answer.body) if answer.body else {}
    return {
        "status": int(answer.status),
        "error": told.get("error", ""),
        "reason": told.get("reason", HTTPStatus(answer.status).phrase),
    }


def event(name: str, place: int, key: str, text: str) -> str:
    """Format an event about a path."""
    return f'event: {name}\ndata: {{"id":{place},"{key}":{text}}}\n\n'


def refused_event(place: int, refusal: Mapping[str, Any]) -> str:
    """Format the event of a refused path."""
    return f"event: refused\ndata: {json_text({'id': place, **refusal})}\n\n"


def _bad(reason: str) -> RequestRefused:
    return RequestRefused(HTTPStatus.BAD_REQUEST, "bad_request", reason)
