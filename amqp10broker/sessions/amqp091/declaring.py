"""Exchange and queue methods of one channel: declare, delete, bind, unbind, purge.

They are operations of the table (`operations.registry`). This module has what is specific to this protocol:
names without line ends, a queue without a name, the queue declared last, passive declarations, direct
reply-to, no-wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.codec import plain
from amqp10broker.protocols.amqp091.methods import Method
from amqp10broker.routing.declaration import DIRECT_REPLY_TO, stripped
from amqp10broker.sessions.amqp091.base import ChannelBase


class Declaring:
    """The declarations of a channel's client."""

    def __init__(self, channel: ChannelBase) -> None:
        self._channel = channel
        self._context = channel.context

    def _perform(
        self, operation: str, no_wait: bool, done: Callable[[Any], Method], /, **given: object
    ) -> None:
        def then(result: Any) -> None:
            method = done(result)
            if not no_wait:
                self._channel.write(method)

        self._channel.perform(operation, given, then)

    # --- exchanges --------------------------------------------------------------------------------

    def exchange_declare(self, method: methods.ExchangeDeclare) -> None:
        name = stripped(method.exchange)
        if method.passive:
            self._perform(
                "get-exchange", method.no_wait, lambda found: methods.ExchangeDeclareOk(), name=name
            )
            return
        self._perform(
            "declare-exchange",
            method.no_wait,
            lambda declared: methods.ExchangeDeclareOk(),
            name=name,
            type=method.type,
            durable=method.durable,
            auto_delete=method.auto_delete,
            internal=method.internal,
            arguments=plain(method.arguments),
        )

    def exchange_delete(self, method: methods.ExchangeDelete) -> None:
        self._perform(
            "delete-exchange",
            method.no_wait,
            lambda gone: methods.ExchangeDeleteOk(),
            name=stripped(method.exchange),
            if_unused=method.if_unused,
        )

    def exchange_bind(self, method: methods.ExchangeBind) -> None:
        ends = _exchange_ends(method)
        self._perform("bind", method.no_wait, lambda bound: methods.ExchangeBindOk(), **ends)

    def exchange_unbind(self, method: methods.ExchangeUnbind) -> None:
        ends = _exchange_ends(method)
        self._perform("unbind", method.no_wait, lambda gone: methods.ExchangeUnbindOk(), **ends)

    # --- bindings ---------------------------------------------------------------------------------

    def queue_bind(self, method: methods.QueueBind) -> None:
        ends = self._queue_ends(method)
        self._perform("bind", method.no_wait, lambda bound: methods.QueueBindOk(), **ends)

    def queue_unbind(self, method: methods.QueueUnbind) -> None:
        self._perform("unbind", False, lambda gone: methods.QueueUnbindOk(), **self._queue_ends(method))

    def _queue_ends(self, method: methods.QueueBind | methods.QueueUnbind) -> dict[str, object]:
        name = self._channel.queue_named(method.queue)
        # "If the queue name is empty and the routing key is empty too, the key is the queue's name."
        return {
            "source": stripped(method.exchange),
            "destination_queue": name,
            "binding_key": method.routing_key if method.routing_key or method.queue else name,
            "arguments": plain(method.arguments),
        }

    # --- queues -----------------------------------------------------------------------------------

    def queue_declare(self, method: methods.QueueDeclare) -> None:
        name = stripped(method.queue)
        if name == DIRECT_REPLY_TO or name.startswith(DIRECT_REPLY_TO + "."):
            self._declare_direct_reply_to(name, method.no_wait)
        elif method.passive:
            self._context.catalog.usage.queues_declared += 1
            self._perform(
                "get-queue",
                method.no_wait,
                self._declared,
                name=self._channel.queue_named(name),
                for_use=True,
            )
        else:
            self._perform(
                "declare-queue",
                method.no_wait,
                lambda declared: self._declared(declared["queue"]),
                name=name,
                # RabbitMQ's rule, and of this protocol alone: over management it stays as declared.
                durable=method.durable and not method.exclusive,
                exclusive=method.exclusive,
                auto_delete=method.auto_delete,
                arguments=plain(method.arguments),
            )

    def _declared(self, queue: dict[str, Any]) -> Method:
        self._channel.last_queue = queue["name"]
        return methods.QueueDeclareOk(queue["name"], queue["message_count"], queue["consumer_count"])

    def _declare_direct_reply_to(self, name: str, no_wait: bool) -> None:
        # A passive declaration of a reply queue shows whether its owner is still there.
        if name != DIRECT_REPLY_TO:
            self._context.vhost.lookup(name)
        if not no_wait:
            self._channel.write(methods.QueueDeclareOk(name, 0, 1))

    def queue_purge(self, method: methods.QueuePurge) -> None:
        self._perform(
            "purge-queue",
            method.no_wait,
            lambda purged: methods.QueuePurgeOk(purged["message_count"]),
            name=self._channel.queue_named(method.queue),
        )

    def queue_delete(self, method: methods.QueueDelete) -> None:
        self._perform(
            "delete-queue",
            method.no_wait,
            lambda gone: methods.QueueDeleteOk(gone["message_count"]),
            name=self._channel.queue_named(method.queue),
            if_unused=method.if_unused,
            if_empty=method.if_empty,
        )


def _exchange_ends(method: methods.ExchangeBind | methods.ExchangeUnbind) -> dict[str, object]:
    return {
        "source": stripped(method.source),
        "destination_exchange": stripped(method.destination),
        "binding_key": method.routing_key,
        "arguments": plain(method.arguments),
    }
