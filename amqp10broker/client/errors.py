"""Exceptions of the client. The class names what has ended; `condition` and `description` come from the
broker::

    ClientError
    |-- ConnectError             no connection: no broker listens there, or it cannot be reached
    |   `-- TlsError             a server listens, but TLS cannot be agreed on
    |-- LoginError               the broker refused user and password, or the mechanism
    |-- ConnectionEndedError     the connection has ended; connect again
    |-- SessionEndedError        the session has ended, the connection has not
    |-- LinkError                one link; the session goes on
    |   |-- LinkRefusedError     the broker did not attach it
    |   `-- LinkDetachedError    the broker detached an attached link
    |-- MessageTooLargeError     one message is over the link's limit; nothing was sent
    |-- NotAcceptedError         one message was rejected, released or modified
    `-- TimedOutError            nothing has ended; the wait exceeded its time-out
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from amqp10broker.errors import BrokerError
from amqp10broker.protocols.amqp10.errors import Condition
from amqp10broker.protocols.amqp10.performatives import Accepted, Error, Rejected, Released
from amqp10broker.protocols.amqp10.settling import Outcome

PORT_MAX: Final = 65_535
_ADVICE: Final[Mapping[str, str]] = {
    Condition.NOT_FOUND: "declare it first, or correct the address",
    Condition.UNAUTHORIZED_ACCESS: "ask for the permission, or use another user",
    Condition.NOT_ALLOWED: "the broker's configuration forbids it",
    Condition.RESOURCE_LOCKED: "it belongs to another connection; use a queue of your own",
    Condition.RESOURCE_DELETED: "declare it again if it is still wanted",
    Condition.RESOURCE_LIMIT_EXCEEDED: "use fewer, or raise the broker's limit",
    Condition.MESSAGE_SIZE_EXCEEDED: "split the message, or raise the limit of the receiving side",
    Condition.CONNECTION_FORCED: "the broker is stopping; connect again later",
    Condition.TRANSFER_LIMIT_EXCEEDED: "a fault of this client: it sent more than it had credit for",
    Condition.DECODE_ERROR: "the bytes are no AMQP 1.0; make messages with Message.encode or data_message",
}


class ClientError(BrokerError):
    """Any failure that a client reports.

    Attributes:
        condition: the broker's error condition, such as ``amqp:not-found``, or None.
        outcomes: after a failed `send_many`: the outcome of each message; None: it may or may not have
            reached the broker.
    """

    def __init__(self, message: str, *, condition: str | None = None, description: str = "") -> None:
        super().__init__(message)
        self.condition = condition
        self.description = description
        self.outcomes: Sequence[Outcome | None] = ()


class ConnectError(ClientError):
    """The broker cannot be reached."""


class TlsError(ConnectError):
    """The broker's certificate is not trusted, or the port has no TLS."""


class LoginError(ClientError):
    """The broker refused the login."""


class ConnectionEndedError(ClientError):
    """The connection has ended, and with it all sessions and links."""


class SessionEndedError(ClientError):
    """The session has ended, and with it its links."""


class LinkError(ClientError):
    """An error of one link. `address`: of the terminus; None for an anonymous or dynamic one."""

    def __init__(
        self, message: str, *, address: str | None, condition: str | None = None, description: str = ""
    ) -> None:
        super().__init__(message, condition=condition, description=description)
        self.address = address


class LinkRefusedError(LinkError):
    """The broker did not attach the link."""


class LinkDetachedError(LinkError):
    """The broker detached an attached link."""


class MessageTooLargeError(ClientError):
    """A message is larger than the link's limit; it was not sent."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"the message has {size} bytes and the link takes {limit}: split it, or raise "
            "max_message_size_bytes of the broker",
            condition=Condition.MESSAGE_SIZE_EXCEEDED,
        )
        self.size = size
        self.limit = limit


class NotAcceptedError(ClientError):
    def __init__(self, outcome: Outcome) -> None:
        error = outcome.error if isinstance(outcome, Rejected) else None
        match outcome:
            case Rejected():
                text = f"the broker rejected the message{said(error)}"
            case Released():
                text = "the broker released the message: it has no queue to put it in; correct the address"
            case Accepted():
                raise AssertionError("an accepted message is no error")
            case _:
                text = "the broker gave the message back as modified: send it again later"
        super().__init__(text, **facts_of(error))
        self.outcome = outcome
        self.outcomes = (outcome,)


class TimedOutError(ClientError):
    """A wait exceeded its time-out. The broker may still act on the request."""

    def __init__(self, waited_for: str, timeout_s: float, hint: str = "") -> None:
        advice = hint or "look at `amqp10broker status`, or allow more time"
        super().__init__(f"no {waited_for} within {timeout_s:.3g} s: {advice}")
        self.timeout_s = timeout_s


NO_CREDIT_HINT: Final = (
    "the broker withholds credit because the queue is overloaded or an alarm is on; `amqp10broker status` "
    "says which"
)


def said(error: Error | None) -> str:
    """Format the broker's error as the end of a sentence, with a remedy if one is known."""
    if error is None:
        return " and gave no reason"
    words = f": {error.condition}"
    if error.description:
        words += f": {error.description}"
    advice = _ADVICE.get(error.condition)
    return f"{words} ({advice})" if advice else words


def facts_of(error: Error | None) -> dict[str, Any]:
    """Return the broker's error as arguments of `ClientError`."""
    if error is None:
        return {}
    return {"condition": str(error.condition), "description": error.description or ""}


def place_of(host: str, port: int) -> str:
    """Format host and port, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def cannot_connect(host: str, port: int, error: OSError | ValueError) -> ConnectError:
    """Make the error. `error`: a ValueError means that host or port is invalid."""
    if isinstance(error, OSError):
        why = f"{error.strerror or error}; start the broker, or correct host and port"
    elif 0 < port <= PORT_MAX:
        why = "no host can be called so; give a name such as broker.example.org, or an address"
    else:
        why = f"there is no such port; give one from 1 to {PORT_MAX}"
    return ConnectError(f"cannot connect to {place_of(host, port)}: {why}")


def connection_lost(why: str) -> ConnectionEndedError:
    return ConnectionEndedError(
        f"the connection was lost: {why}; see whether the broker runs, and connect again"
    )
