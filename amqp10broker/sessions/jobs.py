"""Work at queues for callers without a session: publish one message, or get some messages.

A job sends commands to queues and receives their effects until it is done. When it is done or given up, its
`end` must be called.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from amqp10broker.auth.authorise import Access
from amqp10broker.errors import (
    BadRequest,
    LimitExceeded,
    NotSupported,
    PreconditionFailed,
    ResourceLocked,
    Unavailable,
)
from amqp10broker.message.amqp091 import read_content
from amqp10broker.message.convert import encoded_properties, routing_headers
from amqp10broker.message.message import Message
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.protocols.serial import EncodeError
from amqp10broker.queues.commands import (
    Confirmed,
    CreditReply,
    Deliver,
    DeliveryOutcome,
    Effect,
    Publish,
    PublisherRef,
    PublishRejected,
    QueueDeleted,
    QueueDown,
    Refusal,
    ReplyTo,
    Settle,
    Subscribe,
    SubscribeRefused,
    Unconfirmed,
)
from amqp10broker.routing.exchange import DIRECT_REPLY_TO
from amqp10broker.sessions.context import ToQueue
from amqp10broker.sessions.counters import ClientCounters
from amqp10broker.sessions.credit import Mode, QueueCredit
from amqp10broker.sessions.routes import Routes

FETCHED_AT_ONCE: Final = 200
"""The most messages in one request to a queue."""
FETCHED_BYTES_MAX: Final = 64 * 1024 * 1024
"""The bytes of messages after which one job requests no more."""
MESSAGE_BYTES: Final = 200
"""The overhead of a message in memory, in bytes: there may be many empty ones."""


class BackgroundJob(ABC):
    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether there is a result."""

    @abstractmethod
    def hear(self, effect: Effect) -> None:
        """Handle an effect of a queue. Raises `RefusedError` if the work cannot be done."""

    @abstractmethod
    def end(self) -> None:
        """Remove everything that the job has left at queues. May be called twice."""


class PublishOne(BackgroundJob):
    """Publishes one message with AMQP 0-9-1's mandatory flag and a confirm."""

    def __init__(
        self,
        vhost: VirtualHost,
        access: Access,
        reply_to: ReplyTo,
        to_queue: ToQueue,
        *,
        exchange: str,
        routing_key: str,
        properties: Mapping[str, Any],
        body: bytes,
        size_max: int,
    ) -> None:
        self._outstanding: set[PublisherRef] = set()
        self._name = vhost.name
        routes = Routes(vhost, access)
        route = routes.find(exchange, routing_key)
        if len(body) > size_max:
            text = f"message size {len(body)} is larger than configured max size {size_max}"
            raise PreconditionFailed("message", text)
        if properties.get("reply_to") == DIRECT_REPLY_TO:
            raise PreconditionFailed("message", "fast reply consumer does not exist")
        given = encoded_properties(properties)
        try:
            head, extra_keys = read_content(
                route.exchange.name, routing_key, given, user=access.user, impersonator=access.impersonator
            )
        except EncodeError as error:
            raise BadRequest("message", f"the routing key cannot be encoded: {error}") from error
        message = (head, body)
        queues = routes.queues(route, extra_keys, lambda: routing_headers(message))
        self.routed = bool(queues)
        route.exchange.published += 1
        if not self.routed:
            route.exchange.unroutable += 1
            route.exchange.returned += 1
        for queue in queues:
            ref = reply_to.publisher()
            self._outstanding.add(ref)
            to_queue((queue.handle, Publish(ref, (1,), (message,), settled=False)))

    @property
    def done(self) -> bool:
        return not self._outstanding

    def hear(self, effect: Effect) -> None:
        match effect:
            case PublishRejected():
                queue = f"queue '{effect.queue}'"
                raise LimitExceeded(
                    queue, f"rejected: {queue} in vhost '{self._name}' is full and takes no more messages"
                )
            case Unconfirmed(failed=True):
                queue = f"queue '{effect.queue}'"
                raise Unavailable(queue, f"{queue} in vhost '{self._name}' broke down; try again")
            case Confirmed() | Unconfirmed():
                self._outstanding.discard(effect.publisher)
            case _:
                raise AssertionError(f"a publisher hears {effect}")

    def end(self) -> None: ...


class GetSome(BackgroundJob):
    """Gets messages from the head of a queue, as basic.get does."""

    def __init__(
        self,
        queue: DeclaredQueue,
        reply_to: ReplyTo,
        to_queue: ToQueue,
        most: int,
        delivery_outcome: DeliveryOutcome,
    ) -> None:
        self._verdict = delivery_outcome
        self._left = most
        self._bytes = 0
        self._keys: list[int] = []
        self._new = 0
        self.messages: list[Message] = []
        self.behind = 0
        mode = Mode.GOT_SETTLED if delivery_outcome is DeliveryOutcome.ACCEPT else Mode.GOT
        ref = reply_to.consumer()
        self._credit = QueueCredit(queue, ref, to_queue, mode)
        # Messages are settled when all have come: a caller that gives up removes none from the queue.
        self._credit.post(Subscribe(ref, False, counted=False, name=reply_to.name_of("get")))
        self._ask()

    @property
    def done(self) -> bool:
        return not self._credit.in_flight

    def hear(self, effect: Effect) -> None:
        credit = self._credit
        queue = credit.queue
        match effect:
            case Deliver():
                if credit.on_deliver(effect):
                    self._keys += effect.keys
                    self.messages += effect.messages
                    self._new += len(effect.keys)
                    self._bytes += sum(
                        MESSAGE_BYTES + len(head) + len(body) for head, body in effect.messages
                    )
            case CreditReply():
                credit.on_reply(effect)
                credit.sent(self._new)
                credit.answered(effect)
                self.behind = effect.available
                self._left -= self._new
                if not self.messages:
                    credit.counters.got_nothing += 1
                if self._new and self._left > 0 and self._bytes < FETCHED_BYTES_MAX:
                    self._ask()
            case SubscribeRefused():
                credit.closed = True
                name = f"queue '{queue.name}'"
                if effect.why is Refusal.NO_LEADER:
                    text = f"{name} in vhost '{queue.vhost}' has had no leader for too long"
                    raise Unavailable(name, text)
                raise ResourceLocked(name, f"{name} in vhost '{queue.vhost}' in exclusive use")
            case QueueDown():
                credit.closed = True
                raise queue.inaccessible()
            case QueueDeleted():
                credit.closed = True
                credit.in_flight = False
            case _:
                # An example is a delivery that was held for too long: it is back in the queue.
                pass

    def end(self) -> None:
        credit = self._credit
        if credit.closed:
            credit.retire(ClientCounters())
            return
        if self.done and self._keys:
            credit.post(Settle(credit.ref, self._keys, self._verdict))
            if credit.mode is Mode.GOT:
                credit.counters.settled(self._verdict, len(self._keys))
        credit.leave((), (), DeliveryOutcome.REQUEUE)
        credit.retire(ClientCounters())

    def _ask(self) -> None:
        self._new = 0
        self._credit.request(min(self._left, FETCHED_AT_ONCE), FETCHED_AT_ONCE, drain=True)


def check_gettable(queue: DeclaredQueue) -> None:
    """Raise `NotSupported` or `ResourceLocked` if single messages cannot be got from a queue."""
    resource = f"queue '{queue.name}'"
    if queue.kind.volatile:
        text = f"basic.get not supported by volatile queue '{queue.name}' in vhost '{queue.vhost}'"
        raise NotSupported(resource, text)
    if queue.kind.replays:
        text = f"basic.get not supported by stream queues queue '{queue.name}' in vhost '{queue.vhost}'"
        raise NotSupported(resource, text)
    if queue.effective.settings.single_active_consumer:
        raise ResourceLocked(
            resource,
            f"cannot obtain access to locked queue '{queue.name}' in vhost '{queue.vhost}'. basic.get "
            f"operations are not supported by {queue.type} queues with single active consumer",
        )
