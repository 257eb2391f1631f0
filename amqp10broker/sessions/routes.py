"""Routing to queues: of published messages, with permission checks and a cache, and of dead letters.

A publisher names the same exchange and key over and over: permission and bound queues are cached until the
virtual host's topology or the user's permissions change; both have a version. The heads of a batch of dead
letters are few, mostly one, so their destination is determined once for each head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from amqp10broker.auth.authorise import Access
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import AccessRefused
from amqp10broker.message.convert import routing_headers
from amqp10broker.message.dead_lettering import REMEMBERED_MAX, Cause, DeadLettered, Dying
from amqp10broker.message.death_history import is_cycle
from amqp10broker.message.message import Message
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.metadata.queue_requests import is_local
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.queues.commands import (
    Confirmed,
    DeadLetterReason,
    DeadLetters,
    DeadMessage,
    Publish,
    PublisherRef,
    PublishRejected,
    ReplyTo,
    Unconfirmed,
)
from amqp10broker.routing.exchange import Exchange

ROUTES_MAX: Final = 4096
"""The most routes that one publisher's cache holds."""

HEADS_MAX: Final = 1024
"""The most message heads that these cache together."""

HEAD_BYTES_MAX: Final = 1024

Headers = Callable[[], Mapping[str, object]]


@dataclass(eq=False, slots=True)
class Route:
    """The route of one exchange and key. `queues`: None if they depend on the message. `stamp`: versions of
    the topology and of the user's permissions.
    """

    exchange: Exchange
    routing_key: str
    queues: Sequence[DeclaredQueue] | None
    stamp: tuple[int, int]
    heads: dict[bytes, bytes] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Routes:
    """The routes of one user's messages in one virtual host."""

    _vhost: VirtualHost
    _access: Access
    _container: str | None = None
    _known: dict[tuple[str, str], Route] = field(default_factory=dict)
    _heads: list[dict[bytes, bytes]] = field(default_factory=list)
    _heads_count: int = 0

    def find(self, exchange: str, routing_key: str) -> Route:
        """Return the route. Raises `NotFound`, `PermissionDenied`, or `AccessRefused` (internal exchange)."""
        vhost = self._vhost
        stamp = (vhost.version, self._access.changes.version)
        key = (exchange, routing_key)
        route = self._known.get(key)
        if route is not None and route.stamp == stamp:
            return route
        # Permission first: without it a user must not learn what exists.
        self._access.write("exchange", exchange)
        found = vhost.topology.lookup_exchange(exchange)
        if found.internal:
            raise AccessRefused(
                f"exchange '{exchange}'",
                f"cannot publish to internal exchange '{exchange}' in vhost '{vhost.name}'",
            )
        if found.type == "topic":
            self._access.write_topic(exchange, routing_key)
        # Tried without headers: the result is discarded if an exchange on the way uses them.
        queues, cacheable = vhost.route(found, (routing_key,), dict)
        queues = self._not_local(queues)
        fresh = Route(found, routing_key, queues if cacheable else None, stamp)
        if route is not None and route.exchange is found and route.stamp[1] == stamp[1]:
            fresh.heads = route.heads
        if len(self._known) >= ROUTES_MAX:
            self._known.clear()
        self._known[key] = fresh
        return fresh

    def remember(self, route: Route, properties: bytes, head: bytes) -> None:
        """Cache the head made of a message's properties."""
        if len(properties) > HEAD_BYTES_MAX:
            return
        if self._heads_count >= HEADS_MAX:
            for heads in self._heads:
                heads.clear()
            self._heads.clear()
            self._heads_count = 0
        if not route.heads:
            self._heads.append(route.heads)
        route.heads[properties] = head
        self._heads_count += 1

    def queues(self, route: Route, extra_keys: Sequence[str], headers: Headers) -> Sequence[DeclaredQueue]:
        """Return the queues of one message, with `extra_keys` (CC, BCC). Raises `PermissionDenied`."""
        if route.queues is not None and not extra_keys:
            return route.queues
        if route.exchange.type == "topic":
            for key in extra_keys:
                self._access.write_topic(route.exchange.name, key)
        queues, _ = self._vhost.route(route.exchange, (route.routing_key, *extra_keys), headers)
        return self._not_local(queues)

    def _not_local(self, queues: list[DeclaredQueue]) -> list[DeclaredQueue]:
        container = self._container
        if container is None or not any(is_local(queue, container) for queue in queues):
            return queues
        return [queue for queue in queues if not is_local(queue, container)]


_HEAD: Final = itemgetter(0)


class Fate(NamedTuple):
    """The destination of messages with one head. `cycles`: queues that do not get them, because they came
    from there without an action of a client.
    """

    head: bytes
    queues: Sequence[DeclaredQueue]
    cycles: Sequence[DeclaredQueue]


class Judge:
    """Where messages go that leave one queue for one reason at one time."""

    __slots__ = ("_dying", "_fates", "_vhost", "exchange")

    def __init__(self, vhost: VirtualHost, cause: Cause) -> None:
        self.exchange: Exchange | None = vhost.topology.find_exchange(cause.exchange)
        self._vhost = vhost
        self._dying = Dying(cause)
        self._fates: dict[bytes, Fate] = {}

    def fates(self, messages: Iterable[Message]) -> Iterator[tuple[Fate, list[Message]]]:
        """Count messages, and iterate over them by fate, in order."""
        for head, run in groupby(messages, _HEAD):
            fate = self._fates.get(head)
            if fate is not None:
                yield self._counted(fate, [(fate.head, content) for _, content in run])
                continue
            dead = self._dying.of(head)
            letters = [(dead.head, content) for _, content in run]
            fate, cacheable = self._fate(dead, letters[0])
            if cacheable:
                if len(self._fates) >= REMEMBERED_MAX:
                    self._fates.clear()
                self._fates[head] = fate
                yield self._counted(fate, letters)
                continue
            for letter in letters:
                yield self._counted(self._fate(dead, letter)[0], [letter])

    def _counted(self, fate: Fate, letters: list[Message]) -> tuple[Fate, list[Message]]:
        if self.exchange is not None:
            self.exchange.published += len(letters)
            if not fate.queues:
                self.exchange.unroutable += len(letters)
        return fate, letters

    def _fate(self, dead: DeadLettered, letter: Message) -> tuple[Fate, bool]:
        if self.exchange is None:
            return Fate(dead.head, (), ()), True
        queues: Sequence[DeclaredQueue]
        queues, cacheable = self._vhost.route(
            self.exchange, dead.routing_keys, lambda: routing_headers(letter)
        )
        cycles = [queue for queue in queues if is_cycle(dead.deaths, queue.name)]
        if cycles:
            queues = [queue for queue in queues if queue not in cycles]
        return Fate(dead.head, queues, cycles), cacheable


class Routed(NamedTuple):
    """The destinations of a batch: queues with their messages in order, and the names of those in
    `Fate.cycles`.
    """

    to: list[tuple[DeclaredQueue, list[Message]]]
    cycles: Sequence[str]


def route_dead_letters(vhost: VirtualHost, queue: str, letters: DeadLetters, now_ms: int) -> Routed:
    """Add the death event to dead messages, and route them at most once; unroutable ones are dropped."""
    judge = Judge(vhost, Cause(queue, letters.reason, now_ms, letters.exchange, letters.routing_key))
    if judge.exchange is None:
        return Routed([], ())
    to: dict[DeclaredQueue, list[Message]] = {}
    dropped: dict[str, None] = {}
    for fate, run in judge.fates(letters.messages):
        for target in fate.queues:
            messages = to.get(target)
            if messages is None:
                to[target] = run if len(fate.queues) == 1 else list(run)
            else:
                messages += run
        if fate.cycles:
            dropped.update(dict.fromkeys(target.name for target in fate.cycles))
    return Routed(list(to.items()), tuple(dropped))


# The queue releases a few dead messages at a time; `Forwarding` publishes them with confirms. A message that
# is unroutable, refused, or not confirmed in time is sent again to the queues that have not taken it, so one
# may get it twice, and out of order. After a restart the queue releases again what was not settled.

RETRY_MS: Final = 180_000
"""The time to wait for a confirm: RabbitMQ's `dead_letter_worker_publisher_confirm_timeout`."""

LOOK_MS: Final = 1_000
"""How often to check for a route or room. RabbitMQ waits as long as for a confirm."""

Post = tuple[DeclaredQueue, Publish]


class DeadLetterTarget(NamedTuple):
    exchange: str
    routing_key: str | None


@dataclass(eq=False, slots=True)
class _Outstanding:
    """One message that is not done. `waiting`: target queues that have not answered, with its number there.
    `former`: the same of queues that are not bound any more.
    """

    letter: DeadMessage
    died_ms: int
    due_ms: int
    waiting: dict[DeclaredQueue, int] = field(default_factory=dict)
    former: dict[DeclaredQueue, int] = field(default_factory=dict)
    refused: set[DeclaredQueue] = field(default_factory=set)
    taken: set[DeclaredQueue] = field(default_factory=set)
    routed_at: int = -1

    @property
    def stuck(self) -> bool:
        return bool(self.refused) or not self.waiting

    def may_go(self, version: int) -> bool:
        if not self.stuck:
            return False
        return self.routed_at != version or any(not queue.handle.figures().full for queue in self.refused)

    @property
    def done(self) -> bool:
        return bool(self.taken) and not self.waiting and not self.refused


@dataclass(eq=False)
class Forwarding:
    """The dead letters of one queue that are on their way."""

    _queue: str
    destination: DeadLetterTarget
    _reply_to: ReplyTo
    retry_ms: int = RETRY_MS
    unrouted: int = 0
    _outstanding: dict[int, _Outstanding] = field(default_factory=dict)
    _sent: dict[int, _Outstanding] = field(default_factory=dict)
    _next_id: int = 1
    _looked_ms: int = 0
    _refs: dict[DeclaredQueue, PublisherRef] = field(default_factory=dict)
    _queues: dict[PublisherRef, DeclaredQueue] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._outstanding)

    def send(self, letters: Iterable[DeadMessage], vhost: VirtualHost, now_ms: int) -> list[Post]:
        """Forward messages (keys on their way are ignored); return the commands to post."""
        if not self._outstanding:
            self._looked_ms = now_ms
        fresh = []
        for letter in letters:
            if letter.key not in self._outstanding:
                outstanding = self._outstanding[letter.key] = _Outstanding(letter, now_ms, now_ms)
                fresh.append(outstanding)
        return self._publish(fresh, vhost, now_ms)

    def confirmed(self, effect: Confirmed) -> list[int]:
        """Return the keys of messages that are done."""
        done: list[int] = []
        for outstanding, queue in self._answered(effect):
            if outstanding.former.pop(queue, None) is None:
                del outstanding.waiting[queue]
            outstanding.taken.add(queue)
            if outstanding.done:
                done.append(outstanding.letter.key)
        self._forget(done)
        return done

    def refused(self, effect: PublishRejected | Unconfirmed) -> None:
        for outstanding, queue in self._answered(effect):
            if outstanding.former.pop(queue, None) is None:
                del outstanding.waiting[queue]
                outstanding.refused.add(queue)

    def redirect(self, destination: DeadLetterTarget, now_ms: int) -> None:
        """Change the destination; messages that no queue has at present are due at once."""
        if destination != self.destination:
            self.destination = destination
            for each in self._outstanding.values():
                if not each.waiting:
                    each.due_ms = now_ms

    def due(self, vhost: VirtualHost, now_ms: int) -> tuple[list[Post], list[int]]:
        """Send messages again that have waited long enough, or have a route or room now."""
        self._looked_ms = now_ms
        version = vhost.version
        late = [each for each in self._outstanding.values() if each.due_ms <= now_ms or each.may_go(version)]
        posts = self._publish(late, vhost, now_ms)
        done = [each.letter.key for each in late if each.done]
        self._forget(done)
        return posts, done

    def deadline(self) -> int | None:
        """Return when `due` has work."""
        look_ms = self._looked_ms + LOOK_MS
        return min(
            (min(each.due_ms, look_ms) if each.stuck else each.due_ms for each in self._outstanding.values()),
            default=None,
        )

    def forget(self) -> None:
        self._forget(list(self._outstanding))

    def _answered(
        self, effect: Confirmed | PublishRejected | Unconfirmed
    ) -> Iterator[tuple[_Outstanding, DeclaredQueue]]:
        # Only messages that the target queue has not answered before.
        queue = self._queues.get(effect.publisher)
        for number in effect.ids:
            outstanding = self._sent.pop(number, None)
            if outstanding is not None and queue is not None:
                yield outstanding, queue

    def _forget(self, keys: Iterable[int]) -> None:
        for key in keys:
            gone = self._outstanding.pop(key)
            for number in (*gone.waiting.values(), *gone.former.values()):
                del self._sent[number]
        if not self._outstanding:
            # References to queues that come and go must not accumulate.
            self._refs.clear()
            self._queues.clear()

    def _publish(self, outstanding: Sequence[_Outstanding], vhost: VirtualHost, now_ms: int) -> list[Post]:
        judges: dict[tuple[DeadLetterReason, int], Judge] = {}
        to: dict[DeclaredQueue, tuple[list[int], list[Message]]] = {}
        self.unrouted = 0
        for each in outstanding:
            message, reason = each.letter.message, each.letter.reason
            judge = judges.get((reason, each.died_ms))
            if judge is None:
                cause = Cause(self._queue, reason, each.died_ms, *self.destination)
                judge = judges[(reason, each.died_ms)] = Judge(vhost, cause)
            ((fate, (letter,)),) = judge.fates((message,))
            self.unrouted += not fate.queues and not each.taken
            each.due_ms, each.routed_at = now_ms + self.retry_ms, vhost.version
            for queue, number in self._numbered(each, fate.queues).items():
                numbers, messages = to.setdefault(queue, ([], []))
                numbers.append(number)
                messages.append(letter)
        return [
            (queue, Publish(self._ref(queue), numbers, messages, settled=False))
            for queue, (numbers, messages) in to.items()
        ]

    def _numbered(self, each: _Outstanding, queues: Iterable[DeclaredQueue]) -> dict[DeclaredQueue, int]:
        # Queues to which a message still has to go. One that has not answered retains its number, so that a
        # late answer to the first attempt counts, too.
        before = each.waiting | each.former
        each.waiting, each.refused = {}, set()
        for queue in queues:
            if queue in each.taken:
                continue
            number = before.pop(queue, None)
            if number is None:
                number = self._next_id
                self._next_id += 1
                self._sent[number] = each
            each.waiting[queue] = number
        each.former = before
        return each.waiting

    def _ref(self, queue: DeclaredQueue) -> PublisherRef:
        ref = self._refs.get(queue)
        if ref is None:
            ref = self._refs[queue] = self._reply_to.publisher()
            self._queues[ref] = queue
        return ref
