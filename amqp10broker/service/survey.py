"""What of the status document is shown: what waits, worst first, and the connections that were chosen.

Takes the parts of the document one after another and keeps what was asked for, so that looking at a broker
with a thousand connections costs a screen, not a thousand connections, on the way to who looks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final, Self

from amqp10broker.errors import hint
from amqp10broker.service.waits import Wait

Document = Mapping[str, Any]

IDLE: Final = frozenset(
    {
        Wait.QUEUE_EMPTY,
        Wait.QUEUE_EMPTY_EXPIRED,
        Wait.QUEUE_EMPTY_NOTHING_ROUTED,
        Wait.STREAM_END,
        Wait.NOT_ACTIVE,
        Wait.LOWER_PRIORITY,
    }
)
"""Reasons of who has nothing to do: no fault of anybody, so they are counted apart and shown last."""

_TEXTS: Final = ("user", "queue", "link", "reason")
_GENERAL: Final = frozenset(
    "-".join(code.split("-")[:words]) for code in Wait for words in range(1, code.count("-") + 1)
)
"""Beginnings of codes that name several: ``no-credit``."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What is asked for; None of a field asks for any.

    Attributes:
        connection: its number.
        user: of connections.
        queue: a shell pattern for the queue of links, consumers and channels.
        link: a shell pattern for names of links and tags of consumers.
        reason: a code, the beginning of several (``no-credit``), or a shell pattern.
        longer_s: seconds that it has waited at least.
        limit: connections that are told, the worst first, and likewise what waits, and queues, the fullest
            first.
    """

    connection: int | None = None
    user: str | None = None
    queue: str | None = None
    link: str | None = None
    reason: str | None = None
    longer_s: float | None = None
    limit: int | None = None

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        """Make one of a request.

        Raises:
            ValueError: a field is unknown or of the wrong type; says what it must be.
        """
        for name, value in given.items():
            if name not in cls.__dataclass_fields__:
                raise ValueError(f"'{name}' cannot be chosen by; {hint(name, cls.__dataclass_fields__)}")
            if value is None:
                continue
            if name in _TEXTS and not isinstance(value, str):
                raise ValueError(f"'{name}' must be a text")
            if name not in _TEXTS and (
                isinstance(value, bool) or not isinstance(value, int | float) or value < 0
            ):
                raise ValueError(f"'{name}' must be a number of 0 or more")
        reason = given.get("reason")
        if reason is not None and not any(_is_reason(reason, code) for code in Wait):
            raise ValueError(f"there is no reason '{reason}'; {hint(reason, [*Wait, *sorted(_GENERAL)])}")
        return cls(**given)

    @property
    def of_parts(self) -> bool:
        """Whether it chooses among what is in a connection."""
        return any(each is not None for each in (self.queue, self.link, self.reason, self.longer_s))

    def wants(self, number: int, user: str) -> bool:
        """Whether a connection may have anything that is asked for."""
        return self.connection in (None, number) and self.user in (None, user)

    def takes(self, part: Document, queues: Iterable[str | None]) -> bool:
        """Whether a link, consumer or channel is asked for."""
        if self.queue is not None and not any(fnmatchcase(each or "", self.queue) for each in queues):
            return False
        if self.link is not None and not fnmatchcase(
            str(part.get("name") or part.get("tag") or ""), self.link
        ):
            return False
        code = part.get("waits")
        if self.reason is not None and (code is None or not _is_reason(self.reason, code)):
            return False
        if self.longer_s is not None:
            return code is not None and (part.get("waits_for_s") or 0.0) >= self.longer_s
        return True


EVERYTHING: Final = Selection()


def _is_reason(reason: str, code: str) -> bool:
    return code == reason or code.startswith(f"{reason}-") or fnmatchcase(code, reason)


@dataclass(slots=True)
class Survey:
    """What was found so far.

    Attributes:
        selection: what is asked for.
        total: connections that there are, asked for or not.
    """

    selection: Selection
    total: int = 0
    _counts: Counter[str] = field(default_factory=Counter)
    _reasons: Counter[str] = field(default_factory=Counter)
    _kinds: Counter[str] = field(default_factory=Counter)
    _waiting: list[dict[str, Any]] = field(default_factory=list)
    _connections: list[tuple[tuple[bool, float], dict[str, Any]]] = field(default_factory=list)
    _queues: set[tuple[str, str]] = field(default_factory=set)

    def add(self, connection: dict[str, Any]) -> None:
        """Look at a connection's part of the status document."""
        selection = self.selection
        found = list(_parts(connection))
        taken = [each for each in found if selection.takes(each.part, each.queues)]
        if selection.of_parts:
            if not taken:
                return
            connection = _pruned(connection, {id(each.part) for each in taken})
        worst = -1.0
        for each in taken:
            self._counts[each.kind] += 1
            self._queues.update((connection.get("vhost") or "", queue) for queue in each.queues if queue)
            code = each.part.get("waits")
            if code is None:
                continue
            self._reasons[code] += 1
            if code not in IDLE:
                self._kinds[each.kind] += 1
                worst = max(worst, each.part.get("waits_for_s") or 0.0)
            if code not in IDLE or selection.reason is not None:
                self._waiting.append(_line(connection, each))
        self._counts["connection"] += 1
        self._connections.append(((worst >= 0, worst), connection))

    def document(self, queues: Iterable[dict[str, Any]]) -> dict[str, Any]:
        """``summary``, ``waiting``, ``connections`` and ``queues`` of the status document.

        Args:
            queues: all of them.
        """
        selection = self.selection
        limit = selection.limit
        self._waiting.sort(key=lambda each: -(each["waits_for_s"] or 0.0))
        connections = self._connections
        if limit is not None:
            connections = sorted(connections, key=lambda each: each[0], reverse=True)[:limit]
        chosen = selection.of_parts or selection.connection is not None or selection.user is not None
        if selection.queue is not None:
            pattern = selection.queue
            queues = [queue for queue in queues if fnmatchcase(queue["name"], pattern)]
        elif chosen:
            queues = [queue for queue in queues if (queue["vhost"], queue["name"]) in self._queues]
        shown = list(queues)
        if limit is not None:
            shown = sorted(shown, key=_fullness, reverse=True)
        return {
            "summary": {
                "chosen": chosen,
                "connections": self._counts["connection"],
                "connections_in_all": self.total,
                **{f"{kind}s": self._counts[kind] for kind in KINDS},
                "waiting": sum(self._kinds.values()),
                **{f"{kind}s_waiting": self._kinds[kind] for kind in KINDS},
                "reasons": dict(self._reasons.most_common()),
                "queues": len(shown),
                "queues_full": sum(1 for queue in shown if queue.get("full")),
                "idle_reasons": [code for code in self._reasons if code in IDLE],
            },
            "waiting": self._waiting[:limit],
            "connections": [connection for _, connection in connections],
            "queues": shown[:limit],
        }


KINDS: Final = ("link", "consumer", "channel")


@dataclass(frozen=True, slots=True)
class _Part:
    kind: str
    channel: Any
    part: dict[str, Any]
    queues: tuple[str | None, ...]


def _parts(connection: Document) -> Iterator[_Part]:
    """Links, channels and their consumers."""
    for session in connection.get("sessions", ()):
        for link in session["links"]:
            yield _Part("link", session["channel"], link, (link.get("queue"),))
    for channel in connection.get("channels", ()):
        consumers = channel["consumers"]
        yield _Part("channel", channel["number"], channel, tuple(each.get("queue") for each in consumers))
        for consumer in consumers:
            yield _Part("consumer", channel["number"], consumer, (consumer.get("queue"),))


def _fullness(queue: Document) -> tuple[bool, int]:
    ready, unsettled = queue.get("messages_ready") or 0, queue.get("messages_unsettled") or 0
    return bool(queue.get("full")), ready + unsettled


def _line(connection: Document, each: _Part) -> dict[str, Any]:
    """One thing that waits, by itself."""
    part = each.part
    return {
        "kind": each.kind,
        "connection": connection["id"],
        "user": connection["user"],
        "vhost": connection.get("vhost"),
        "peer": connection["peer"],
        "channel": each.channel,
        "name": part.get("name") or part.get("tag"),
        "role": part.get("role"),
        "queue": part.get("queue"),
        "waits": part["waits"],
        "waits_why": part.get("waits_why"),
        "waits_for_s": part.get("waits_for_s"),
    }


def _pruned(connection: dict[str, Any], taken: set[int]) -> dict[str, Any]:
    """A connection with those of its parts that were asked for, and what they are in."""
    sessions = [
        {**session, "links": [link for link in session["links"] if id(link) in taken]}
        for session in connection.get("sessions", ())
    ]
    pruned = {**connection, "sessions": [session for session in sessions if session["links"]]}
    if "channels" in connection:
        channels = [
            {**channel, "consumers": [each for each in channel["consumers"] if id(each) in taken]}
            for channel in connection["channels"]
            if id(channel) in taken or any(id(each) in taken for each in channel["consumers"])
        ]
        pruned["channels"] = channels
    return pruned
