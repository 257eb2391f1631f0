"""Common parts of the client's two drivers: the steps of a connection, and the states that they wait for.

An operation that needs an answer of the broker is a generator of steps, here and in `links`: it changes
the state of `core`, and yields a `WaitFor` for each state to wait for. `blocking` and `trio` drive the
generators, each with its own clock and socket, and turn them into methods with the same names and
arguments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar

from amqp10broker.client.core import ClientCore
from amqp10broker.client.errors import ClientError
from amqp10broker.client.options import CLOSE_TIMEOUT_S, CREDIT
from amqp10broker.client.session import ClientSession, LinkEnd, ReceiverEnd, SenderEnd
from amqp10broker.dataclass import dataclass

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class WaitFor:
    """A state to wait for.

    Attributes:
        failure: why it can never be reached; None while it can.
        what: a clause for the error: "outcome of 3 messages".
        began: start of the time-out, by `ClientBase.clock`; None for now.
    """

    condition: Callable[[], bool]
    failure: Callable[[], ClientError | None]
    timeout_s: float | None
    what: str
    hint: str = ""
    began: float | None = None


Steps: TypeAlias = Generator[WaitFor, None, T]
"""A driver throws in the exception that ends a wait early: `WaitFor.failure`, `TimedOutError`, or a
cancellation.
"""


class ClientBase(ABC, Generic[S, R]):
    """One connection, completed by a driver.

    Methods that wait raise `ClientError` once the connection has ended, and `TimedOutError` when no answer
    comes within `timeout_s` seconds; None takes the client's time-out.
    """

    session: ClientSession

    def __init__(
        self,
        core: ClientCore,
        timeout_s: float,
        make_sender: Callable[[ClientBase[S, R], SenderEnd], S],
        make_receiver: Callable[[ClientBase[S, R], ReceiverEnd], R],
    ) -> None:
        self.core = core
        self.timeout_s = timeout_s
        self.make_sender = make_sender
        self.make_receiver = make_receiver

    @property
    def client(self) -> ClientBase[S, R]:
        return self

    @abstractmethod
    def run(self, steps: Steps[Any]) -> Any:
        """Run steps to their end and return their value, on Trio an awaitable of it."""

    @abstractmethod
    def clock(self) -> float:
        """Return seconds, from the same origin at every call."""

    @abstractmethod
    def write_soon(self) -> None:
        """Write pending output as far as possible without waiting, or schedule that."""

    @abstractmethod
    def writing(self) -> Callable[[], bool]:
        """Begin to write everything; return a function that reports whether that is done, or can never be."""


class LinkBase:
    """A link, without the methods that wait. The methods raise `ClientError` once it has ended."""

    end: LinkEnd

    def __init__(self, client: ClientBase[Any, Any]) -> None:
        self.client = client

    @property
    def address(self) -> str | None:
        return self.end.address

    @property
    def credit(self) -> int:
        return self.end.credit


H = TypeVar("H", bound=ClientBase[Any, Any] | LinkBase)


def wait(client: ClientBase[S, R], state: WaitFor) -> Steps[None]:
    """Read and write until a state of `core` is reached that the client does not offer."""
    yield state


def open_client(
    client: ClientBase[S, R],
    user: str | None,
    password: str | None,
    mechanism: str | None,
    timeout_s: float,
    began: float,
) -> Steps[None]:
    core = client.core
    core.start(user, password, mechanism)
    yield WaitFor(
        lambda: core.opened, lambda: core.failure, timeout_s, "answer to our open frame", began=began
    )
    session = core.begin()
    yield _begun(session, timeout_s, began)
    client.session = session


def begin_session(client: ClientBase[S, R], *, timeout_s: float | None = None) -> Steps[ClientSession]:
    """Begin another session, for links that do not share a window with the others."""
    session = client.core.begin()
    yield _begun(session, timeout_s)
    return session


def _begun(session: ClientSession, timeout_s: float | None, began: float | None = None) -> WaitFor:
    return WaitFor(
        lambda: session.begun, lambda: session.failure, timeout_s, "answer to our begin frame", began=began
    )


def end_session(
    client: ClientBase[S, R], session: ClientSession, *, timeout_s: float | None = None
) -> Steps[None]:
    session.end()
    yield WaitFor(lambda: session.ended, never, timeout_s, "answer to our end frame")


def attach(client: ClientBase[S, R], end: LinkEnd, timeout_s: float | None = None) -> Steps[None]:
    try:
        yield WaitFor(lambda: end.attached, lambda: end.failure, timeout_s, "answer to our attach frame")
    except BaseException:
        end.detach()  # or messages would arrive on a link that the program does not have
        raise


def sender(
    client: ClientBase[S, R],
    address: str | None,
    *,
    settled: bool = False,
    properties: Mapping[str, Any] | None = None,
    session: ClientSession | None = None,
    timeout_s: float | None = None,
) -> Steps[S]:
    """Attach a link for sending. `session`: None takes the first. Raises `LinkRefusedError`."""
    end = (session or client.session).sender(address, settled=settled, properties=properties)
    yield from attach(client, end, timeout_s)
    return client.make_sender(client, end)


def receiver(
    client: ClientBase[S, R],
    address: str | None,
    *,
    credit: int = CREDIT,
    settled: bool = False,
    max_message_size_bytes: int = 0,
    filters: Mapping[str, Any] | None = None,
    properties: Mapping[str, Any] | None = None,
    session: ClientSession | None = None,
    timeout_s: float | None = None,
) -> Steps[R]:
    """Attach a link for receiving. `credit`: messages that may be in transit; topped up as they are
    received, 0 leaves it to `Receiver.grant` and `Receiver.fetch`. `session`: None takes the first. Raises
    `LinkRefusedError`.
    """
    end = (session or client.session).receiver(
        address,
        credit_limit=credit,
        settled=settled,
        max_message_size_bytes=max_message_size_bytes,
        filters=filters,
        properties=properties,
    )
    yield from attach(client, end, timeout_s)
    return client.make_receiver(client, end)


def flush(client: ClientBase[S, R], timeout_s: float | None = None) -> Steps[None]:
    written = client.writing()
    yield WaitFor(
        lambda: written() and client.core.failure is None,
        lambda: client.core.failure,
        timeout_s,
        "room in the socket",
        "the broker does not read",
    )


def close(client: ClientBase[S, R], timeout_s: float = CLOSE_TIMEOUT_S) -> Steps[None]:
    client.core.close()
    written = client.writing()
    yield WaitFor(lambda: client.core.closed and written(), never, timeout_s, "close frame")


def never() -> None:
    pass
