"""What the two drivers of the client have in common: a connection's steps, and what they wait for. Pure.

What takes an answer of the broker is a generator of steps, here and in `links`: it changes the state of
`core`, and yields a `WaitFor` for each state that has to come. `blocking` and `trio` drive the generators,
each with a clock and a socket of its kind, and make methods of them with the same names and arguments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from typing import Any, Generic, ParamSpec, Protocol, TypeAlias, TypeVar

from amqp10broker.client.core import ClientCore
from amqp10broker.client.ends import LinkEnd, ReceiverEnd, SenderEnd
from amqp10broker.client.errors import ClientError
from amqp10broker.client.options import CLOSE_TIMEOUT_S, CREDIT
from amqp10broker.client.session import ClientSession
from amqp10broker.dataclass import dataclass

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class WaitFor:
    """A state that has to come.

    Attributes:
        condition: whether it is there; looked at after everything that arrived.
        failure: why it can never come any more; None while it can.
        timeout_s: seconds; None takes the client's.
        what: what is waited for, a clause for the error: "outcome of 3 messages".
        hint: what to do when it does not come.
        began: when the seconds began, by `ClientBase.clock`; None for now.
    """

    condition: Callable[[], bool]
    failure: Callable[[], ClientError | None]
    timeout_s: float | None
    what: str
    hint: str = ""
    began: float | None = None


Steps: TypeAlias = Generator[WaitFor, None, T]
"""A driver throws in what ends a wait early: `WaitFor.failure`, `TimedOutError`, or a cancellation."""


class ClientBase(ABC, Generic[S, R]):
    """One connection, for a driver to complete.

    Attributes:
        core: the protocol state, for what this class does not offer.
        timeout_s: seconds, the default of everything that is waited for.
        session: the first session, which `sender` and `receiver` use unless told otherwise.
        make_sender, make_receiver: links of this driver's kind.
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
        """The client, as its links have one: the steps of both are driven alike."""
        return self

    @abstractmethod
    def run(self, steps: Steps[Any]) -> Any:
        """Take steps to their end: their value, or on Trio an awaitable of it."""

    @abstractmethod
    def clock(self) -> float:
        """Seconds, from the same origin at every call."""

    @abstractmethod
    def write_soon(self) -> None:
        """Have what there is written, as far as that goes without waiting."""

    @abstractmethod
    def writing(self) -> Callable[[], bool]:
        """Begin to write everything; what says whether that is done, or never can be."""


class HasClient(Protocol):
    """A client or one of its links: what has methods made of steps."""

    @property
    def client(self) -> ClientBase[Any, Any]:
        """Whose driver takes the steps."""


H = TypeVar("H", bound=HasClient)


def wait(client: ClientBase[S, R], state: WaitFor) -> Steps[None]:
    """Read and write until a state is there. For states of `core` that the client does not offer.

    Raises:
        ClientError: `WaitFor.failure` gave one.
        TimedOutError: it took too long.
    """
    yield state


def open_client(
    client: ClientBase[S, R],
    user: str | None,
    password: str | None,
    mechanism: str | None,
    timeout_s: float,
    began: float,
) -> Steps[None]:
    """Log in, open, begin the first session. For the drivers' `connect`, whose arguments they are.

    Args:
        timeout_s: seconds, of which some are over; an error names all of them.
        began: when they began, by `ClientBase.clock`.
    """
    core = client.core
    core.start(user, password, mechanism)
    yield WaitFor(
        lambda: core.opened, lambda: core.failure, timeout_s, "answer to our open frame", began=began
    )
    session = core.begin()
    yield _begun(session, timeout_s, began)
    client.session = session


def begin_session(client: ClientBase[S, R], *, timeout_s: float | None = None) -> Steps[ClientSession]:
    """Begin another session, for links that are not to share a window with the others.

    Raises:
        ClientError: the connection has ended, or the broker allows no more sessions.
    """
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
    """End a session and its links.

    Raises:
        TimedOutError: the broker did not answer.
    """
    session.end()
    yield WaitFor(lambda: session.ended, never, timeout_s, "answer to our end frame")


def attach(client: ClientBase[S, R], end: LinkEnd, timeout_s: float | None = None) -> Steps[None]:
    """Wait until the broker has attached an end that a `ClientSession` made.

    Raises:
        LinkRefusedError: the broker did not attach it; the condition says why.
    """
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
    """Attach a link for sending.

    Args:
        address, settled, properties: as of `ClientSession.sender`.
        session: another one than the first.
        timeout_s: seconds for the broker's answer.

    Raises:
        LinkRefusedError: the broker did not attach it; the condition says why.
    """
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
    """Attach a link for receiving.

    Args:
        address, settled, max_message_size_bytes, filters, properties: as of `ClientSession.receiver`.
        credit: messages that may be under way to us; topped up as they are received. 0 leaves it to
            `Receiver.grant` and `Receiver.fetch`.
        session: another one than the first.
        timeout_s: seconds for the broker's answer.

    Raises:
        LinkRefusedError: the broker did not attach it; the condition says why.
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
    """Write everything that can be written now.

    Raises:
        ClientError: the connection has ended.
        TimedOutError: the broker does not read.
    """
    written = client.writing()
    yield WaitFor(
        lambda: written() and client.core.failure is None,
        lambda: client.core.failure,
        timeout_s,
        "room in the socket",
        "the broker does not read",
    )


def close(client: ClientBase[S, R], timeout_s: float = CLOSE_TIMEOUT_S) -> Steps[None]:
    """Write what was decided, tell the broker, and wait for its answer; unsettled messages go back.

    Raises:
        TimedOutError: the broker did not answer; the socket is to be closed all the same.
    """
    client.core.close()
    written = client.writing()
    yield WaitFor(lambda: client.core.closed and written(), never, timeout_s, "close frame")


def never() -> None:
    """Of what cannot fail: a broken connection ends it, too."""
