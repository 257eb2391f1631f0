"""Requests to the management node of a broker, over the blocking client.

A request is a message to ``/management`` with the method as its subject and the path as its `to`; the
response comes on a second link of the same name, as in RabbitMQ 4.
"""

from __future__ import annotations

from typing import Any

from amqp10broker.client.blocking import Client
from amqp10broker.client.driving import WaitFor
from amqp10broker.client.errors import ClientError
from amqp10broker.client.message import BodyKind, Message
from amqp10broker.protocols.amqp10.performatives import Properties
from amqp10broker.protocols.amqp10.types import ULong

ADDRESS = "/management"


class Management:
    """A pair of links to the management node; one request at a time. It has a session of its own, because a
    broker without that node may end the session.
    """

    def __init__(self, client: Client, *, timeout_s: float | None = None) -> None:
        self._client = client
        self._timeout_s = timeout_s
        name = f"management-{client.core.next_number()}"
        paired = {"paired": True}
        self._session = session = client.begin_session(timeout_s=timeout_s)
        self._responses = session.receiver(ADDRESS, settled=True, properties=paired, name=name)
        self._requests = session.sender(ADDRESS, settled=True, properties=paired, name=name)
        client.attach(self._responses, timeout_s)
        client.attach(self._requests, timeout_s)
        self._number = 0

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send a request and wait for the response: its status, such as 200 or 404, and its value."""
        self._number += 1
        request = Message(
            body,
            Properties(message_id=ULong(self._number), to=path, subject=method, reply_to="$me"),
            kind=BodyKind.VALUE,
        )
        responses = self._responses
        responses.grant(1)
        self._requests.send([request.encode()])
        self._client.wait(
            WaitFor(
                lambda: bool(responses.ready),
                lambda: responses.failure or self._requests.failure,
                self._timeout_s,
                f"response to {method} {path}",
            )
        )
        (delivery,) = responses.take(1)
        message = delivery.message()
        properties = message.properties or Properties()
        if properties.correlation_id != self._number or properties.subject is None:
            raise ClientError(f"the response to {method} {path} answers another request: connect again")
        return int(properties.subject), message.body

    def close(self) -> None:
        self._client.end_session(self._session, timeout_s=self._timeout_s)
