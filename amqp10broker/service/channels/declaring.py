"""Exchange and queue methods of one channel: declare, delete, bind, unbind, purge."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from amqp10broker.amqp091 import methods
from amqp10broker.amqp091.codec import plain
from amqp10broker.amqp091.methods import Method
from amqp10broker.catalog.catalog import Request
from amqp10broker.catalog.exchange_requests import Bind, DeclareExchange, DeleteExchange, Unbind
from amqp10broker.catalog.queue import DeclaredQueue
from amqp10broker.catalog.queue_requests import Declared, DeclareQueue
from amqp10broker.errors import AccessRefused, InUse, NotFound, NotSupported
from amqp10broker.queues.commands import Delete, Inspect, Purge
from amqp10broker.queues.effects import Answer, Refusal
from amqp10broker.routing.declaration import DIRECT_REPLY_TO, check_not_direct_reply_to, stripped
from amqp10broker.routing.exchange import Binding, Destination, ExchangeSpec
from amqp10broker.service.channels.part import Channel, not_found, usable

GENERATED_PREFIX: Final = "amq.gen-"


class Declaring:
    """What a channel does with exchanges, queues and bindings.

    Attributes:
        last_queue: declared last on this channel; what an empty queue name means.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._context = channel.context
        self.last_queue = ""

    def queue_named(self, name: str) -> str:
        """The name, or for an empty one that of the queue declared last."""
        if name:
            return name
        if not self.last_queue:
            raise NotFound("queue ''", "no previously declared queue")
        return self.last_queue

    @property
    def _vhost(self) -> str:
        return self._context.vhost.named()

    def _change(self, request: Request[Any], no_wait: bool, done: Method) -> None:
        """Have something changed, and tell the client that it is done."""
        self._channel.propose(request, lambda answer: self._reply(no_wait, done))

    def _reply(self, no_wait: bool, method: Method) -> None:
        if not no_wait:
            self._channel.write(method)

    # --- exchanges --------------------------------------------------------------------------------

    def exchange_declare(self, method: methods.ExchangeDeclare) -> None:
        """exchange.declare"""
        # Before anybody asks for permission: it must be for the name that is declared.
        method.exchange = stripped(method.exchange)
        topology = self._context.vhost.topology
        access = self._context.access
        if method.passive:
            _not_default_exchange(method.exchange)
            access.any("exchange", method.exchange)
            topology.lookup_exchange(method.exchange)
            self._reply(method.no_wait, methods.ExchangeDeclareOk())
        else:
            arguments = plain(method.arguments)
            access.configure("exchange", method.exchange)
            alternate = arguments.get("alternate-exchange")
            if isinstance(alternate, str):
                access.read("exchange", method.exchange)
                access.write("exchange", alternate)
            exchange = ExchangeSpec(
                method.exchange,
                method.type,
                durable=method.durable,
                auto_delete=method.auto_delete,
                internal=method.internal,
                arguments=arguments,
            )
            self._change(DeclareExchange(self._vhost, exchange), method.no_wait, methods.ExchangeDeclareOk())

    def exchange_delete(self, method: methods.ExchangeDelete) -> None:
        """exchange.delete"""
        self._context.access.configure("exchange", method.exchange)
        request = DeleteExchange(self._vhost, method.exchange, method.if_unused)
        self._change(request, method.no_wait, methods.ExchangeDeleteOk())

    def exchange_bind(self, method: methods.ExchangeBind) -> None:
        """exchange.bind"""
        destination = Destination("exchange", method.destination)
        binding = self._checked_binding(method.source, destination, method.routing_key, method.arguments)
        self._change(Bind(self._vhost, binding), method.no_wait, methods.ExchangeBindOk())

    def exchange_unbind(self, method: methods.ExchangeUnbind) -> None:
        """exchange.unbind"""
        destination = Destination("exchange", method.destination)
        binding = self._checked_binding(method.source, destination, method.routing_key, method.arguments)
        self._change(Unbind(self._vhost, binding), method.no_wait, methods.ExchangeUnbindOk())

    # --- bindings ---------------------------------------------------------------------------------

    def _checked_binding(
        self, source: str, destination: Destination, routing_key: str, arguments: dict[str, Any]
    ) -> Binding:
        """A binding that the client may make or undo."""
        access = self._context.access
        vhost = self._context.vhost
        if destination.kind == "queue":
            check_not_direct_reply_to(destination.name)
            access.write("queue", destination.name)
            found = vhost.find(destination.name)
            if found is not None:
                vhost.for_connection(found, self._context.connection)
        else:
            _not_default_exchange(destination.name)
            access.write("exchange", destination.name)
        _not_default_exchange(source)
        access.read("exchange", source)
        exchange = vhost.topology.find_exchange(source)
        if exchange is not None and exchange.type == "topic":
            access.read_topic(source, routing_key)
        return Binding(source, destination, routing_key, plain(arguments))

    def queue_bind(self, method: methods.QueueBind) -> None:
        """queue.bind"""
        queue, routing_key = self._binding_of(method.queue, method.routing_key)
        destination = Destination("queue", queue)
        binding = self._checked_binding(method.exchange, destination, routing_key, method.arguments)
        self._change(Bind(self._vhost, binding), method.no_wait, methods.QueueBindOk())

    def queue_unbind(self, method: methods.QueueUnbind) -> None:
        """queue.unbind"""
        queue, routing_key = self._binding_of(method.queue, method.routing_key)
        destination = Destination("queue", queue)
        binding = self._checked_binding(method.exchange, destination, routing_key, method.arguments)
        self._change(Unbind(self._vhost, binding), False, methods.QueueUnbindOk())

    def _binding_of(self, queue: str, routing_key: str) -> tuple[str, str]:
        name = self.queue_named(queue)
        # "If the queue name is empty and the routing key is empty too, the key is the queue's name."
        return name, routing_key if routing_key or queue else name

    # --- queues -----------------------------------------------------------------------------------

    def queue_declare(self, method: methods.QueueDeclare) -> None:
        """queue.declare"""
        # As in exchange.declare.
        method.queue = stripped(method.queue)
        if method.queue == DIRECT_REPLY_TO or method.queue.startswith(DIRECT_REPLY_TO + "."):
            self._declare_direct_reply_to(method)
        elif method.passive:
            name = self.queue_named(method.queue)
            self._context.access.any("queue", name)
            self._report(usable(self._channel, name), method.no_wait)
        else:
            self._declare(method)

    def _declare(self, method: methods.QueueDeclare) -> None:
        context = self._context
        name = method.queue or GENERATED_PREFIX + context.new_id()
        arguments = plain(method.arguments)
        access = context.access
        access.configure("queue", name)
        dead_letter_exchange = arguments.get("x-dead-letter-exchange")
        if isinstance(dead_letter_exchange, str):
            access.read("queue", name)
            access.write("exchange", dead_letter_exchange)
        request = DeclareQueue(
            self._vhost,
            name,
            # RabbitMQ's rule, and of this protocol alone: over management it stays as declared.
            durable=method.durable and not method.exclusive,
            owner=context.connection if method.exclusive else None,
            auto_delete=method.auto_delete,
            arguments=arguments,
            internal=not method.queue,
        )

        def then(declared: Declared) -> None:
            if declared.created:
                self.last_queue = declared.name
                self._reply(method.no_wait, methods.QueueDeclareOk(declared.name, 0, 0))
            else:
                self._report(usable(self._channel, declared.name), method.no_wait)

        self._channel.propose(request, then)

    def _report(self, queue: DeclaredQueue, no_wait: bool) -> None:
        """Answer a declaration with the counts behind everything this channel has published."""
        self.last_queue = queue.name
        if no_wait:
            return

        def reply(answer: Answer) -> None:
            if answer.refused is not None:
                raise not_found(queue.name, queue.vhost)
            self._channel.write(methods.QueueDeclareOk(queue.name, answer.ready, answer.consumers))

        self._channel.ask(queue.handle, Inspect, reply)

    def _declare_direct_reply_to(self, method: methods.QueueDeclare) -> None:
        """Asking for a reply queue tells whether its owner is still there."""
        if method.queue != DIRECT_REPLY_TO:
            self._context.vhost.lookup(method.queue)
        self._reply(method.no_wait, methods.QueueDeclareOk(method.queue, 0, 1))

    def queue_purge(self, method: methods.QueuePurge) -> None:
        """queue.purge"""
        name = self.queue_named(method.queue)
        self._context.access.read("queue", name)
        queue = usable(self._channel, name)
        if queue.kind.replays:
            raise NotSupported(
                f"queue '{name}'", f"purge not supported by queue '{name}' in vhost '{queue.vhost}'"
            )

        def reply(answer: Answer) -> None:
            if answer.refused is not None:
                raise not_found(queue.name, queue.vhost)
            self._reply(method.no_wait, methods.QueuePurgeOk(answer.ready))

        self._channel.ask(queue.handle, Purge, reply)

    def queue_delete(self, method: methods.QueueDelete) -> None:
        """queue.delete"""
        name = self.queue_named(method.queue)
        check_not_direct_reply_to(name)
        self._context.access.configure("queue", name)
        vhost = self._context.vhost
        queue = vhost.find(name)
        if queue is None:
            self._reply(method.no_wait, methods.QueueDeleteOk(0))
            return
        vhost.for_connection(queue, self._context.connection)
        if (method.if_unused or method.if_empty) and not queue.kind.conditional_delete:
            flag = "if-unused" if method.if_unused else "if-empty"
            raise NotSupported(
                f"queue '{name}'",
                f"cannot delete queue '{name}' in vhost '{vhost.name}'. queue.delete operations with {flag} "
                f"flag set are not supported by {queue.type} queues",
            )

        def reply(answer: Answer) -> None:
            if answer.refused in (Refusal.IN_USE, Refusal.NOT_EMPTY):
                text = "in use" if answer.refused is Refusal.IN_USE else "not empty"
                raise InUse(f"queue '{name}'", f"queue '{name}' in vhost '{vhost.name}' {text}")
            self._reply(method.no_wait, methods.QueueDeleteOk(answer.ready))

        command = partial(Delete, if_unused=method.if_unused, if_empty=method.if_empty)
        self._channel.ask(queue.handle, command, reply)


def _not_default_exchange(name: str) -> None:
    if not name:
        raise AccessRefused("the default exchange", "operation not permitted on the default exchange")
