"""Exchange and queue methods of one channel: declare, delete, bind, unbind, purge.

They are operations of the table (`operations.registry`). This module has what is specific to this protocol:
names without line ends, a queue without a name, the queue declared last, passive declarations, direct
reply-to, no-wait.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.codec import plain
from amqp10broker.protocols.amqp091.methods import Method
from amqp10broker.routing.declaration import DIRECT_REPLY_TO, stripped
from amqp10broker.sessions.amqp091.base import ChannelBase


def _perform(
    channel: ChannelBase, operation: str, no_wait: bool, done: Callable[[Any], Method], /, **given: object
) -> None:
    def then(result: Any) -> None:
        method = done(result)
        if not no_wait:
            channel.write(method)

    channel.perform(operation, given, then)


# --- exchanges --------------------------------------------------------------------------------


def exchange_declare(channel: ChannelBase, method: methods.ExchangeDeclare) -> None:
    name = stripped(method.exchange)
    if method.passive:
        _perform(
            channel, "get-exchange", method.no_wait, lambda found: methods.ExchangeDeclareOk(), name=name
        )
        return
    _perform(
        channel,
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


def exchange_delete(channel: ChannelBase, method: methods.ExchangeDelete) -> None:
    _perform(
        channel,
        "delete-exchange",
        method.no_wait,
        lambda gone: methods.ExchangeDeleteOk(),
        name=stripped(method.exchange),
        if_unused=method.if_unused,
    )


_BINDINGS: Final[dict[type[Method], tuple[str, Callable[[], Method]]]] = {
    methods.ExchangeBind: ("bind", methods.ExchangeBindOk),
    methods.ExchangeUnbind: ("unbind", methods.ExchangeUnbindOk),
    methods.QueueBind: ("bind", methods.QueueBindOk),
    methods.QueueUnbind: ("unbind", methods.QueueUnbindOk),
}


def bind(
    channel: ChannelBase,
    method: methods.ExchangeBind | methods.ExchangeUnbind | methods.QueueBind | methods.QueueUnbind,
) -> None:
    operation, answer = _BINDINGS[type(method)]
    key = method.routing_key
    if isinstance(method, methods.ExchangeBind | methods.ExchangeUnbind):
        source = method.source
        destination = {"destination_exchange": stripped(method.destination)}
    else:
        source = method.exchange
        name = channel.queue_named(method.queue)
        destination = {"destination_queue": name}
        # "If the queue name is empty and the routing key is empty too, the key is the queue's name."
        key = key if key or method.queue else name
    no_wait = not isinstance(method, methods.QueueUnbind) and method.no_wait
    _perform(
        channel,
        operation,
        no_wait,
        lambda done: answer(),
        source=stripped(source),
        **destination,
        binding_key=key,
        arguments=plain(method.arguments),
    )


# --- queues -----------------------------------------------------------------------------------


def queue_declare(channel: ChannelBase, method: methods.QueueDeclare) -> None:
    name = stripped(method.queue)
    if name == DIRECT_REPLY_TO or name.startswith(DIRECT_REPLY_TO + "."):
        _declare_direct_reply_to(channel, name, method.no_wait)
    elif method.passive:
        channel.context.catalog.usage.queues_declared += 1
        _perform(
            channel,
            "get-queue",
            method.no_wait,
            partial(_declared, channel),
            name=channel.queue_named(name),
            for_use=True,
        )
    else:
        _perform(
            channel,
            "declare-queue",
            method.no_wait,
            lambda declared: _declared(channel, declared["queue"]),
            name=name,
            # RabbitMQ's rule, and of this protocol alone: over management it stays as declared.
            durable=method.durable and not method.exclusive,
            exclusive=method.exclusive,
            auto_delete=method.auto_delete,
            arguments=plain(method.arguments),
        )


def _declared(channel: ChannelBase, queue: dict[str, Any]) -> Method:
    channel.last_queue = queue["name"]
    return methods.QueueDeclareOk(queue["name"], queue["message_count"], queue["consumer_count"])


def _declare_direct_reply_to(channel: ChannelBase, name: str, no_wait: bool) -> None:
    # A passive declaration of a reply queue shows whether its owner is still there.
    if name != DIRECT_REPLY_TO:
        channel.context.vhost.lookup(name)
    if not no_wait:
        channel.write(methods.QueueDeclareOk(name, 0, 1))


def queue_purge(channel: ChannelBase, method: methods.QueuePurge) -> None:
    _perform(
        channel,
        "purge-queue",
        method.no_wait,
        lambda purged: methods.QueuePurgeOk(purged["message_count"]),
        name=channel.queue_named(method.queue),
    )


def queue_delete(channel: ChannelBase, method: methods.QueueDelete) -> None:
    _perform(
        channel,
        "delete-queue",
        method.no_wait,
        lambda gone: methods.QueueDeleteOk(gone["message_count"]),
        name=channel.queue_named(method.queue),
        if_unused=method.if_unused,
        if_empty=method.if_empty,
    )


DECLARING: Final[dict[type[Any], Callable[..., None]]] = {
    methods.ExchangeDeclare: exchange_declare,
    methods.ExchangeDelete: exchange_delete,
    methods.ExchangeBind: bind,
    methods.ExchangeUnbind: bind,
    methods.QueueDeclare: queue_declare,
    methods.QueueBind: bind,
    methods.QueueUnbind: bind,
    methods.QueuePurge: queue_purge,
    methods.QueueDelete: queue_delete,
}
"""The handlers of methods of exchanges and queues."""
