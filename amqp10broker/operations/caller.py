"""The caller of an operation, and the steps in which an operation waits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import NotSupported, PermissionDenied
from amqp10broker.metadata.proposing import LATER
from amqp10broker.queues.commands import PeerId, ReplyTo

if TYPE_CHECKING:
    from amqp10broker.auth.authorise import Access, Kind
    from amqp10broker.auth.passwords import Passwords, ReadyRecords
    from amqp10broker.metadata.catalog import Catalog, CatalogRequest
    from amqp10broker.metadata.proposing import Decided, Propose
    from amqp10broker.metadata.queue import DeclaredQueue, QueueHandle
    from amqp10broker.metadata.vhost import VirtualHost
    from amqp10broker.operations.node import Node, TraceSink
    from amqp10broker.queues.commands import Command, RequestRef
    from amqp10broker.queues.effects import Answer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wait:
    """A step of an operation, which the front end resumes with the reply to `ref`.

    Without a queue the reply is a `Decided`; the front end handles no later input of its client before.
    With one it is an `Answer`, for which the front end first posts `command` to `queue`.
    """

    ref: RequestRef
    queue: QueueHandle | None = None
    command: Command | None = None


Steps: TypeAlias = Generator[Wait | Awaitable[Any], Any, T]
"""An operation under way. It is resumed with the reply to a `Wait`, or the result of an awaitable; a
`RefusedError` of the latter is thrown into it. Awaitables come only where the caller has a node.
"""


@dataclass(frozen=True, slots=True)
class Caller:
    """The client and the context of an operation.

    Attributes:
        access: the user's permissions; None: the machine's owner at the local socket, without restrictions.
        connection: identity of the connection, the owner of exclusive queues; None: there can be none.
        running: makes the running node; None if the front end does not offer it.
        propose: sends requests to the catalog; None: the catalog decides at once.
        new_request: makes a reference at the front end's reply address.
        new_name: makes a name for a queue that is declared without; None: it must have one.
        passwords: makes records of passwords; None where they cannot be set.
        offer_token: has another token of the client verified, and replies with a `Decided` if it is
            accepted; None: tokens are not verified.
        report: logs an operation that changes something: its name, its object, the text of its refusal.
    """

    catalog: Catalog
    vhost: VirtualHost
    access: Access | None
    connection: object
    node_name: str = "amqp10broker"
    running: Callable[[], Node] | None = None
    propose: Propose | None = None
    new_request: Callable[[], RequestRef] = ReplyTo(PeerId(0, 0, 0), "nobody").request
    new_name: Callable[[], str] | None = None
    passwords: Passwords | ReadyRecords | None = None
    offer_token: Callable[[bytes, RequestRef], None] | None = None
    report: Callable[[str, str, str | None], None] | None = None

    def change(self, request: CatalogRequest[T]) -> Steps[T]:
        """Change the catalog, and return the answer. Raises `RefusedError` if nothing was changed."""
        if self.propose is None:
            return self.catalog.propose(request)
        ref = self.new_request()
        answer: T | object = self.propose(request, ref)
        if answer is LATER:
            decided: Decided = yield Wait(ref)
            answer = decided.result()
        return answer  # type: ignore[return-value]

    def ask(self, queue: QueueHandle, command: Callable[[RequestRef], Command]) -> Steps[Answer]:
        """Send a command to a queue, and return its answer."""
        ref = self.new_request()
        answer: Answer = yield Wait(ref, queue, command(ref))
        return answer

    def may(self, permission: Literal["configure", "write", "read", "any"], kind: Kind, name: str) -> None:
        """Check that the user has a permission, or any, on something; raises `PermissionDenied`."""
        if self.access is not None:
            getattr(self.access, permission)(kind, name)

    def may_read_topic(self, exchange: str, routing_key: str) -> None:
        """Check that the user may receive messages of a topic; raises `PermissionDenied`."""
        if self.access is not None:
            self.access.read_topic(exchange, routing_key)

    def may_administer(self, what: str) -> None:
        """Check that the user is an administrator of the broker; raises `PermissionDenied`."""
        if self.access is not None and not self.is_administrator:
            raise PermissionDenied(
                f"user '{self.access.user}'",
                f"{what} refused for user '{self.access.user}': it needs the tag '{ADMINISTRATOR}'",
            )

    @property
    def node(self) -> Node:
        """The running node. Raises `NotSupported` if this front end does not offer it."""
        if self.running is None:
            raise NotSupported("node", "it cannot be asked for here: use the command line's local socket")
        return self.running()

    @property
    def is_administrator(self) -> bool:
        """Whether the user has the administrator tag; the machine's owner needs none."""
        if self.access is None:
            return True
        return ADMINISTRATOR in self.access.tags

    def sees(self, kind: Kind, name: str) -> bool:
        """Return whether the user has any permission on it."""
        try:
            self.may("any", kind, name)
        except PermissionDenied:
            return False
        return True

    def for_use(self, queue: DeclaredQueue) -> DeclaredQueue:
        """Return the queue, if this connection may use it. Raises `ResourceLocked` if another connection has
        it exclusively, and `NotFound` if its node cannot be reached.
        """
        if self.access is not None:
            self.vhost.for_connection(queue, self.connection)
        queue.check_up()
        return queue


ADMINISTRATOR = "administrator"
"""The tag of users that may manage users, permissions and virtual hosts."""


@dataclass(frozen=True, slots=True)
class Lines:
    """The result of an operation that consists of lines until one side ends it. `begin`: starts writing into
    a sink of the front end, and returns the answer that precedes the lines.
    """

    begin: Callable[[TraceSink], Any]
    end: Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Actor:
    """The user of a front end that can wait for tasks.

    Attributes:
        by: for the log.
        access: the user's permissions; None: everything, or the caller has checked them.
        types: arguments are typed by hand, and a slip in them is refused. Clients may declare queues with
            any argument.
    """

    by: str
    access: Access | None = None
    types: bool = False
