"""The part of a broker's state that a request selects: waits, the worst first, and connections.

It takes the views of connections one after another and retains the requested parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import field, replace
from fnmatch import fnmatchcase
from operator import itemgetter
from typing import Any, Final, Protocol, Self

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BadRequest, hint
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.operations.snapshot import (
    BrokerView,
    ChannelView,
    ConnectionView,
    ConsumerView,
    ExchangeView,
    LinkView,
    NodeView,
    QueueView,
    SummaryView,
    TotalsView,
    WaitingView,
)
from amqp10broker.sessions.diagnosis.wait_reasons import Wait

IDLE: Final = frozenset(wait for wait in Wait if wait.idle)

_TEXTS: Final = ("user", "queue", "link", "reason")
_BY_CODE: Final = {wait.value: wait for wait in Wait}
# Prefixes that stand for several codes: ``no-credit``.
_GENERAL: Final = frozenset(
    "-".join(code.split("-")[:words]) for code in Wait for words in range(1, code.count("-") + 1)
)


@dataclass(frozen=True, slots=True)
class Selection:
    """The criteria of a request. `limit`: the most connections and waits, worst first, and queues, fullest
    first.
    """

    connection: int | None = None
    user: str | None = None
    queue: str | None = None
    link: str | None = None
    reason: str | None = None
    longer_s: float | None = None
    idle: bool | None = None
    limit: int | None = None

    @classmethod
    def read(cls, what: str, given: Mapping[str, Any]) -> Self:
        """Read the fields that were given to the operation `what`. Raises `BadRequest`."""
        for name, value in given.items():
            if name not in cls.__dataclass_fields__:
                known = hint(name, cls.__dataclass_fields__)
                raise BadRequest(what, f"'{name}' cannot be chosen by; {known}")
            if value is None:
                continue
            if name in _TEXTS and not isinstance(value, str):
                raise BadRequest(what, f"'{name}' must be a text")
            if name == "idle":
                if not isinstance(value, bool):
                    raise BadRequest(what, "'idle' must be true or false")
            elif name not in _TEXTS and (
                isinstance(value, bool) or not isinstance(value, int | float) or value < 0
            ):
                raise BadRequest(what, f"'{name}' must be a number of 0 or more")
        reason = given.get("reason")
        if reason is not None and not any(_is_reason(reason, code) for code in Wait):
            known = hint(reason, [*Wait, *sorted(_GENERAL)])
            raise BadRequest(what, f"there is no reason '{reason}'; {known}")
        return cls(**given)

    @property
    def of_parts(self) -> bool:
        return any(each is not None for each in (self.queue, self.link, self.reason, self.longer_s))

    def wants(self, number: int, user: str) -> bool:
        return self.connection in (None, number) and self.user in (None, user)

    def takes(self, part: _SurveyedPart) -> bool:
        if self.queue is not None and not any(fnmatchcase(each or "", self.queue) for each in part.queues):
            return False
        if self.link is not None and not fnmatchcase(part.name or "", self.link):
            return False
        wait = part.view.wait
        if self.reason is not None and (wait.waits is None or not _is_reason(self.reason, wait.waits)):
            return False
        if self.longer_s is not None:
            return wait.waits is not None and (wait.waits_for_s or 0.0) >= self.longer_s
        return True


EVERYTHING: Final = Selection()


def _is_reason(reason: str, code: str) -> bool:
    return code == reason or code.startswith(f"{reason}-") or fnmatchcase(code, reason)


KINDS: Final = ("link", "consumer", "channel")


@dataclass(frozen=True, slots=True)
class _SurveyedPart:
    kind: str
    channel: int
    view: LinkView | ChannelView | ConsumerView
    name: str | None
    queues: tuple[str | None, ...]


@dataclass(slots=True)
class Survey:
    """Collects the selected parts of the views that it is given."""

    selection: Selection
    total: int = 0
    _counts: Counter[str] = field(default_factory=Counter)
    _reasons: Counter[str] = field(default_factory=Counter)
    _kinds: Counter[str] = field(default_factory=Counter)
    _waiting: list[WaitingView] = field(default_factory=list)
    _connections: list[tuple[tuple[bool, float], ConnectionView]] = field(default_factory=list)
    _queues: set[tuple[str, str]] = field(default_factory=set)

    def add(self, connection: ConnectionView) -> None:
        selection = self.selection
        taken = [part for part in _parts(connection) if selection.takes(part)]
        if selection.of_parts:
            if not taken:
                return
            connection = _pruned(connection, {id(part.view) for part in taken})
        worst = -1.0
        for part in taken:
            self._counts[part.kind] += 1
            self._queues.update((connection.vhost, queue) for queue in part.queues if queue)
            wait = part.view.wait
            if wait.waits is None:
                continue
            self._reasons[wait.waits] += 1
            if wait.waits not in IDLE:
                self._kinds[part.kind] += 1
                worst = max(worst, wait.waits_for_s or 0.0)
            if wait.waits not in IDLE or selection.idle or selection.reason is not None:
                self._waiting.append(_line(connection, part))
        self._counts["connection"] += 1
        self._connections.append(((worst >= 0, worst), connection))

    def connections(self) -> tuple[ConnectionView, ...]:
        """Return the selected connections, the worst first if there is a limit."""
        found, limit = self._connections, self.selection.limit
        if limit is not None:
            found = sorted(found, key=itemgetter(0), reverse=True)[:limit]
        return tuple(connection for _, connection in found)

    def waiting(self) -> tuple[WaitingView, ...]:
        """Return the waits, the longest first, idle parts last."""
        found = sorted(self._waiting, key=lambda each: (each.idle, -(each.wait.waits_for_s or 0.0)))
        return tuple(found[: self.selection.limit])

    def summary(self, queues: Collection[QueueView]) -> SummaryView:
        links, consumers, channels = (self._counts[kind] for kind in KINDS)
        links_waiting, consumers_waiting, channels_waiting = (self._kinds[kind] for kind in KINDS)
        return SummaryView(
            chosen=self._chosen,
            connections=self._counts["connection"],
            connections_in_all=self.total,
            links=links,
            consumers=consumers,
            channels=channels,
            waiting=sum(self._kinds.values()),
            links_waiting=links_waiting,
            consumers_waiting=consumers_waiting,
            channels_waiting=channels_waiting,
            reasons=dict(self._reasons.most_common()),
            queues=len(queues),
            queues_full=sum(1 for queue in queues if queue.figures.full),
            idle_reasons=tuple(code for code in self._reasons if code in IDLE),
        )

    def queues(self, queues: Iterable[QueueView]) -> list[QueueView]:
        """Return the selected queues, the fullest first if there is a limit."""
        selection = self.selection
        if selection.queue is not None:
            pattern = selection.queue
            queues = [queue for queue in queues if fnmatchcase(queue.name, pattern)]
        elif self._chosen:
            queues = [queue for queue in queues if (queue.vhost, queue.name) in self._queues]
        if selection.limit is not None:
            return sorted(queues, key=_fullness, reverse=True)
        return list(queues)

    @property
    def _chosen(self) -> bool:
        selection = self.selection
        return selection.of_parts or selection.connection is not None or selection.user is not None


def _parts(connection: ConnectionView) -> Iterator[_SurveyedPart]:
    for session in connection.sessions:
        for link in session.links:
            yield _SurveyedPart("link", session.channel, link, link.name, (link.queue,))
    for channel in connection.channels:
        queues = tuple(consumer.queue for consumer in channel.consumers)
        yield _SurveyedPart("channel", channel.number, channel, None, queues)
        for consumer in channel.consumers:
            yield _SurveyedPart("consumer", channel.number, consumer, consumer.tag, (consumer.queue,))


def _fullness(queue: QueueView) -> tuple[bool, int]:
    figures = queue.figures
    return figures.full, figures.messages_ready + figures.messages_unsettled + (figures.messages_dlx or 0)


def _line(connection: ConnectionView, part: _SurveyedPart) -> WaitingView:
    view = part.view
    wait = _BY_CODE[view.wait.waits or ""]
    return WaitingView(
        kind=part.kind,
        connection=connection.id,
        user=connection.user,
        vhost=connection.vhost,
        peer=connection.peer,
        local=connection.origin.local,
        channel=part.channel,
        name=part.name,
        role=view.role if isinstance(view, LinkView) else None,
        queue=None if isinstance(view, ChannelView) else view.queue,
        wait=view.wait,
        to_do=wait.to_do,
        idle=wait in IDLE,
    )


def _pruned(connection: ConnectionView, taken: set[int]) -> ConnectionView:
    # Keep sessions and channels that contain selected parts.
    sessions = (
        replace(session, links=tuple(link for link in session.links if id(link) in taken))
        for session in connection.sessions
    )
    channels = (
        (channel, tuple(each for each in channel.consumers if id(each) in taken))
        for channel in connection.channels
    )
    return replace(
        connection,
        sessions=tuple(session for session in sessions if session.links),
        channels=tuple(
            replace(channel, consumers=consumers)
            for channel, consumers in channels
            if id(channel) in taken or consumers
        ),
    )


class Viewed(Protocol):
    number: int
    user: str

    def view(self) -> ConnectionView: ...


def overview(
    node: NodeView,
    totals: TotalsView,
    connections: Collection[Viewed],
    catalog: Catalog,
    selection: Selection,
) -> BrokerView:
    survey = Survey(selection, len(connections))
    for connection in connections:
        if selection.wants(connection.number, connection.user):
            survey.add(connection.view())
    queues = survey.queues(map(queue_view, catalog))
    return BrokerView(
        broker=node,
        totals=totals,
        exchanges=tuple(
            ExchangeView(exchange.name, vhost.name, exchange.counted())
            for vhost in catalog.vhosts.values()
            for exchange in vhost.topology
            if exchange.published
        ),
        summary=survey.summary(queues),
        waiting=survey.waiting(),
        connections=survey.connections(),
        queues=tuple(queues[: selection.limit]),
    )


def queue_view(queue: DeclaredQueue) -> QueueView:
    return QueueView(
        name=queue.name,
        vhost=queue.vhost,
        type=queue.type,
        durable=queue.durable,
        figures=queue.handle.figures(),
        dead_lettered=dict(queue.handle.counters.dead_lettered),
        counters=queue.counted(),
        last_error=queue.last_error,
    )
