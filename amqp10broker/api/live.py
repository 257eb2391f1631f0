"""Live updates: paths of the API, requested repeatedly on the client's behalf, as server-sent events.
docs/http-api.md has the events and the form of a difference between two answers of one path.

Rows of an array are identified by the members in `_NAMES`, and by their places without these.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, Self, TypeAlias

from amqp10broker.api.messages import HttpRequest, HttpResponse, bad_request, integer, json_text
from amqp10broker.dataclass import dataclass

Difference: TypeAlias = dict[str, Any]

_NAMES: Final = (
    ("kind", "connection", "channel", "role", "name"),
    ("source", "vhost", "destination", "destination_type", "properties_key"),
    ("consumer_tag", "queue", "channel_details", "link_details"),
    ("consumer_tag", "queue", "channel_details"),
    ("component", "vhost", "name"),
    ("user", "vhost", "exchange"),
    ("user", "vhost"),
    ("vhost", "name"),
    ("name",),
    ("channel_number",),
    ("handle",),
    ("timestamp",),
    ("Node Name",),
    ("watch",),
)
"""The members that together name a row. The first tuple counts that all rows have, each with other values."""
_DEPTH_MAX: Final = 12
"""Deeper values, in arguments of clients, are compared as a whole."""


def difference(before: Any, after: Any) -> Difference | None:
    """Return the difference between two parsed JSON values; None: they are equal."""
    return _difference(before, after, 0)


def _difference(before: Any, after: Any, depth: int) -> Difference | None:
    if before is after:
        return None
    # In Python a truth value is equal to a number, but not in JSON.
    if type(before) is not type(after):
        return {"to": after}
    if isinstance(after, dict | list):
        if depth >= _DEPTH_MAX:
            return None if json_text(before) == json_text(after) else {"to": after}
        return _members(before, after, depth) if isinstance(after, dict) else _rows(before, after, depth)
    return None if before == after else {"to": after}


def _members(before: dict[str, Any], after: dict[str, Any], depth: int) -> Difference | None:
    changed: dict[str, Difference] = {}
    for name, value in after.items():
        change = _difference(before[name], value, depth + 1) if name in before else {"to": value}
        if change is not None:
            changed[name] = change
    gone = [name for name in before if name not in after]
    return {"members": changed, "gone": gone} if changed or gone else None


def _rows(before: list[Any], after: list[Any], depth: int) -> Difference | None:
    names = _names_of(before, after)
    if names is None:
        places: list[int | None] = [place if place < len(before) else None for place in range(len(after))]
    else:
        where = {_key(row, names): place for place, row in enumerate(before)}
        places = [where.get(_key(row, names)) for row in after]
    changed = {
        str(new): change
        for new, old in enumerate(places)
        if old is not None and (change := _difference(before[old], after[new], depth + 1)) is not None
    }
    if len(before) == len(after) and all(old == new for new, old in enumerate(places)):
        return {"rows": changed} if changed else None
    order = [[after[new]] if old is None else old for new, old in enumerate(places)]
    return {"order": order, "rows": changed}


def _names_of(before: Sequence[Any], after: Sequence[Any]) -> tuple[str, ...] | None:
    some = next(iter(after), None) or next(iter(before), None)
    if not isinstance(some, dict):
        return None
    for names in _NAMES:
        if all(name in some for name in names) and _all_named(before, names) and _all_named(after, names):
            return names
    return None


def _all_named(rows: Sequence[Any], names: tuple[str, ...]) -> bool:
    found = set()
    for row in rows:
        if not isinstance(row, dict) or not all(name in row for name in names):
            return False
        found.add(_key(row, names))
    return len(found) == len(rows)


def _key(row: dict[str, Any], names: tuple[str, ...]) -> tuple[Any, ...]:
    values = (row[name] for name in names)
    return tuple(json_text(value) if isinstance(value, dict | list | bool) else value for value in values)


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
"""The size limit of an answer, which is parsed at once in some milliseconds."""
HEARTBEAT: Final = ": \n\n"
"""A comment, which clients ignore: it keeps the connection alive."""


@dataclass(frozen=True, slots=True)
class Following:
    paths: tuple[HttpRequest, ...]
    interval_ms: int

    @classmethod
    def read(cls, request: HttpRequest, interval_ms: int) -> Self:
        targets = request.every("path")
        if not 1 <= len(targets) <= PATHS_MAX:
            raise bad_request(f"give 1 to {PATHS_MAX} paths to follow: path=/queues&path=/overview")
        for target in targets:
            if not target.startswith("/"):
                raise bad_request(f"'{target[:80]}' is no path below /api: it begins with a slash")
        found = tuple(HttpRequest.read(b"GET", target.encode("utf-8", "replace"), ()) for target in targets)
        wanted = integer(request.query, "interval", interval_ms)
        if not INTERVAL_MS_MIN <= wanted <= INTERVAL_MS_MAX:
            raise bad_request(
                f"interval must be {INTERVAL_MS_MIN} to {INTERVAL_MS_MAX} milliseconds, not {wanted}"
            )
        return cls(found, wanted)


@dataclass(eq=False, slots=True)
class Latest:
    """The present answer of a path, shared by all its followers. `value`: that of the last answer that
    differed; each is a new object. `refusal`: why there is no value now, or None.
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
            # A value that may not be seen any more must not be stored, either.
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
    return f'event: {name}\ndata: {{"id":{place},"{key}":{text}}}\n\n'


def refused_event(place: int, refusal: Mapping[str, Any]) -> str:
    return f"event: refused\ndata: {json_text({'id': place, **refusal})}\n\n"
