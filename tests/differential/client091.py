"""The AMQP 0-9-1 client of the operation scripts: pika, one channel, every answer as a line.

A channel that the broker closed is opened again with the next operation, and so is a connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import pika
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker, NackError, UnroutableError

from tests.differential.language import mask, show, show_fields
from tests.support.deadline import turn_until

_ASKED: Final = frozenset(
    {
        *("queue_declare", "queue_delete", "queue_purge", "queue_bind", "queue_unbind"),
        *("exchange_declare", "exchange_delete", "exchange_bind", "exchange_unbind"),
        *("basic_qos", "basic_recover", "flow", "tx_select", "tx_commit", "tx_rollback", "confirm_delivery"),
    }
)
"""Operations that the broker answers, called as pika calls them."""
_TOLD: Final = frozenset({"basic_ack", "basic_nack", "basic_reject"})
"""Operations without an answer: another one shows whether the channel lives."""


class Client091:
    """One connection with one channel.

    Args:
        parameters: how to connect.
        confirms: whether the channel is in confirm mode; those that are to have transactions are not.
    """

    def __init__(self, parameters: pika.ConnectionParameters, *, confirms: bool) -> None:
        self._parameters = parameters
        self._confirms = confirms
        self._connection: BlockingConnection | None = None
        self._channel: BlockingChannel | None = None
        self._deliveries: deque[tuple[str, Any, Any, bytes]] = deque()
        self._events: deque[str] = deque()
        self._replies: str = ""

    def perform(self, operation: str, *positional: Any, **named: Any) -> list[str]:
        try:
            if operation in _ASKED:
                return self._ask(operation, *positional, **named)
            if operation in _TOLD:
                getattr(self.channel, operation)(*positional, **named)
                self._probe()
                return ["done"]
            done: list[str] = getattr(self, operation)(*positional, **named)
            return done
        except ChannelClosedByBroker as error:
            return [f"channel closed {error.reply_code} {mask(error.reply_text)}"]
        except ConnectionClosedByBroker as error:
            return [f"connection closed {error.reply_code} {mask(error.reply_text)}"]

    @property
    def channel(self) -> BlockingChannel:
        if self._connection is None or not self._connection.is_open:
            self._connection = BlockingConnection(self._parameters)
        if self._channel is None or not self._channel.is_open:
            self._channel = self._connection.channel()
            self._channel.add_on_return_callback(self._on_return)
            self._channel.add_on_cancel_callback(self._on_cancel)
            self._deliveries.clear()
            if self._confirms:
                self._channel.confirm_delivery()
        return self._channel

    def close(self) -> list[str]:
        if self._connection is not None and self._connection.is_open:
            self._connection.close()
        return ["closed"]

    def close_channel(self) -> list[str]:
        self.channel.close()
        return ["closed"]

    def _ask(self, operation: str, *positional: Any, **named: Any) -> list[str]:
        before = len(self._events)
        answer = getattr(self.channel, operation)(*positional, **named)
        lines = list(self._events)[before:]
        self._events.clear()
        if not hasattr(answer, "method"):
            return [*lines, "done" if answer is None else show(answer)]
        method = answer.method
        fields = {name: value for name, value in vars(method).items() if value is not None}
        return [*lines, f"{type(method).__name__} {show_fields(**fields)}".rstrip()]

    def _probe(self) -> None:
        self.channel.exchange_declare("amq.direct", passive=True)

    def _turn(self, condition: Callable[[], Any], what: str) -> None:
        channel = self.channel
        turn_until(lambda: channel.connection.process_data_events(0.02), condition, what)

    # --- messages ---------------------------------------------------------------------------------

    def publish(
        self,
        exchange: str,
        routing_key: str,
        body: str | bytes,
        *,
        mandatory: bool = False,
        **properties: Any,
    ) -> list[str]:
        content = body.encode() if isinstance(body, str) else body
        channel = self.channel
        try:
            channel.basic_publish(
                exchange, routing_key, content, pika.BasicProperties(**properties), mandatory=mandatory
            )
        except UnroutableError as error:
            return [*(_show_return(each.method) for each in error.messages), "ack"]
        except NackError:
            return ["nack"]
        if self._confirms:
            return ["ack"]
        self._probe()
        return ["published"]

    def get(self, queue: str, *, auto_ack: bool = True) -> list[str]:
        method, properties, body = self.channel.basic_get(queue, auto_ack=auto_ack)
        if method is None:
            return ["empty"]
        return _show_delivery(f"left={method.message_count}", method, properties, body)

    def basic_consume(self, queue: str, tag: str, **options: Any) -> list[str]:

        def on_message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            self._deliveries.append((tag, method, properties, body))

        self.channel.basic_consume(queue, on_message, consumer_tag=tag, **options)
        return ["consuming"]

    def basic_cancel(self, tag: str) -> list[str]:
        self.channel.basic_cancel(tag)
        return ["cancelled"]

    def deliveries(self, count: int) -> list[str]:
        self._turn(lambda: len(self._deliveries) >= count, f"{count} deliveries")
        lines: list[str] = []
        for _ in range(count):
            tag, method, properties, body = self._deliveries.popleft()
            lines += _show_delivery(f"consumer={tag}", method, properties, body)
        return lines

    def no_deliveries(self) -> list[str]:
        self._probe()
        return [f"{len(self._deliveries)} deliveries waiting"]

    def cancelled_by_broker(self) -> list[str]:
        self._turn(lambda: self._events, "basic.cancel")
        lines = list(self._events)
        self._events.clear()
        return lines

    def reply_to_last(self, body: str) -> list[str]:
        return self.publish("", self._replies, body, mandatory=True)

    def get_request(self, queue: str) -> list[str]:
        """Get a request with basic.get, and keep its reply-to for `reply_to_last`."""
        method, properties, body = self.channel.basic_get(queue, auto_ack=True)
        assert method is not None
        self._replies = properties.reply_to or ""
        return _show_delivery("request", method, properties, body)

    def _on_return(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self._events.append(_show_return(method))

    def _on_cancel(self, frame: Any) -> None:
        self._events.append(f"cancelled by the broker consumer={frame.method.consumer_tag}")


def _show_return(method: Any) -> str:
    return f"returned {method.reply_code} {method.reply_text} " + show_fields(
        exchange=method.exchange, key=method.routing_key
    )


def _show_delivery(head: str, method: Any, properties: Any, body: bytes) -> list[str]:
    fields = {name: value for name, value in vars(properties).items() if value is not None}
    headers = fields.pop("headers", None)
    delivery = show_fields(
        exchange=method.exchange, key=method.routing_key, redelivered=method.redelivered, body=body
    )
    lines = [f"message {head} {delivery}"]
    if fields:
        lines.append("  " + show_fields(**dict(sorted(fields.items()))))
    if headers is not None:
        lines.append(f"  headers {show(headers)}")
    return lines
