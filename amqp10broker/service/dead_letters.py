"""Where dead letters go: from a batch that a queue gave up to messages for the queues of its exchange.

The heads of a batch are few, mostly one: what becomes of a message is found once for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from amqp10broker.catalog.queue import DeclaredQueue
from amqp10broker.catalog.vhost import VirtualHost
from amqp10broker.message.deaths import is_cycle
from amqp10broker.message.dying import Cause, DeadLettered, dead_lettered
from amqp10broker.message.message import Message
from amqp10broker.message.routing_headers import routing_headers
from amqp10broker.queues.effects import DeadLetters
from amqp10broker.routing.exchange import Exchange


class Fate(NamedTuple):
    """What becomes of a message."""

    message: Message
    queues: Sequence[DeclaredQueue]
    """Where it goes."""
    cycles: Sequence[DeclaredQueue]
    """Where it would go as well, had it not come from there without any client having a hand in it."""


class Judge:
    """Finds what becomes of messages that leave one queue for one reason at one time.

    Attributes:
        exchange: the dead-letter exchange; None if there is none of its name.
    """

    __slots__ = ("_cause", "_known", "_routes", "_vhost", "exchange")

    def __init__(self, vhost: VirtualHost, cause: Cause) -> None:
        """Look the exchange up.

        Args:
            vhost: of the queue, and so of the exchange.
            cause: why messages leave the queue.
        """
        self.exchange: Exchange | None = vhost.topology.find_exchange(cause.exchange)
        self._vhost = vhost
        self._cause = cause
        self._known: dict[bytes, DeadLettered] = {}
        self._routes: dict[bytes, tuple[Sequence[DeclaredQueue], Sequence[DeclaredQueue]]] = {}

    def fate(self, message: Message) -> Fate:
        """What becomes of a message; nothing if there is no exchange, or no queue is bound."""
        head, content = message
        dead = self._known.get(head)
        if dead is None:
            dead = self._known[head] = dead_lettered(head, self._cause)
        letter = (dead.head, content)
        routes = self._routes.get(head)
        if routes is None:
            queues, cacheable = self._route(letter, dead.routing_keys)
            cycles = [queue for queue in queues if is_cycle(dead.deaths, queue.name)]
            routes = ([queue for queue in queues if queue not in cycles] if cycles else queues, cycles)
            if cacheable:
                self._routes[head] = routes
        return Fate(letter, *routes)

    def _route(self, letter: Message, keys: Sequence[str]) -> tuple[Sequence[DeclaredQueue], bool]:
        if self.exchange is None:
            return (), True
        return self._vhost.route(self.exchange, keys, lambda: routing_headers(letter))


class Routed(NamedTuple):
    """Where the messages of one batch go."""

    to: list[tuple[DeclaredQueue, list[Message]]]
    """Each queue once, with its messages in the order in which they left."""
    cycles: Sequence[str]
    """Names of queues that did not get some message because it came from there."""


def route_dead_letters(vhost: VirtualHost, queue: str, letters: DeadLetters, now_ms: int) -> Routed:
    """Write the event into messages that a queue gave up, and route them, at most once.

    Without the exchange, or a queue bound to it, they are dropped.

    Args:
        vhost: of the queue.
        queue: its name.
        letters: what it gave up.
        now_ms: the wall clock, in milliseconds.
    """
    judge = Judge(vhost, Cause(queue, letters.reason, now_ms, letters.exchange, letters.routing_key))
    if judge.exchange is None:
        return Routed([], ())
    to: dict[DeclaredQueue, list[Message]] = {}
    dropped: dict[str, None] = {}
    for message in letters.messages:
        letter, queues, cycles = judge.fate(message)
        for target in queues:
            messages = to.get(target)
            if messages is None:
                to[target] = [letter]
            else:
                messages.append(letter)
        if cycles:
            dropped.update(dict.fromkeys(target.name for target in cycles))
    return Routed(list(to.items()), tuple(dropped))
