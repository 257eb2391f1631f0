"""The caller of an operation, and the intermediate results of operations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from amqp10broker.auth.authorise import Access, Kind
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import NotSupported, PermissionDenied
from amqp10broker.metadata.catalog import Catalog, CatalogRequest
from amqp10broker.metadata.proposing import LATER, Decided, Propose
from amqp10broker.metadata.queue import DeclaredQueue, QueueHandle
from amqp10broker.metadata.users import PasswordRecord
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.operations.node import Node, TraceSink
from amqp10broker.queues.commands import Command, PeerId, ReplyTo, RequestRef
from amqp10broker.queues.effects import Answer


class RecordMaker(Protocol):
    """Makes records of passwords: `auth.passwords.Passwords`, or one that runs it in a thread."""

    def make(self, password: str) -> PasswordRecord:
        """Return the record of a new password."""

    def exportable(self, record: PasswordRecord | None) -> PasswordRecord | None:
        """Return the record in the form for a definitions file."""


class Report(Protocol):
    """Logs operations that change something."""

    def __call__(self, operation: str, subject: str, refusal: str | None) -> None: ...


_NOBODY: Final = ReplyTo(PeerId(0, 0, 0), "nobody")


@dataclass(frozen=True, slots=True)
class Caller:
    """The client and the context of an operation.

    Attributes:
        access: the user's permissions; None: the machine's owner at the local socket, without restrictions.
        connection: identity of the connection, the owner of exclusive queues; None: there can be none.
        node: the running node; None if the front end does not offer it.
        propose: sends requests to the catalog; None: the catalog decides at once.
        new_name: makes a name for a queue that is declared without; None: it must have one.
        passwords: makes records of passwords; None where they cannot be set.
    """

    catalog: Catalog
    vhost: VirtualHost
    access: Access | None
    connection: object
    node_name: str = "amqp10broker"
    node: Node | None = None
    propose: Propose | None = None
    reply_to: ReplyTo = _NOBODY
    new_name: Callable[[], str] | None = None
    passwords: RecordMaker | None = None
    report: Report | None = None

    def may_configure(self, kind: Kind, name: str) -> None:
        """Check that the user may create and delete it; raises `PermissionDenied`."""
        if self.access is not None:
            self.access.configure(kind, name)

    def may_write(self, kind: Kind, name: str) -> None:
        """Check that the user may write to it; raises `PermissionDenied`."""
        if self.access is not None:
            self.access.write(kind, name)

    def may_read(self, kind: Kind, name: str) -> None:
        """Check that the user may read from it; raises `PermissionDenied`."""
        if self.access is not None:
            self.access.read(kind, name)

    def may_read_topic(self, exchange: str, routing_key: str) -> None:
        """Check that the user may receive messages of a topic; raises `PermissionDenied`."""
        if self.access is not None:
            self.access.read_topic(exchange, routing_key)

    def may_see(self, kind: Kind, name: str) -> None:
        """Check that the user has any permission on it; raises `PermissionDenied`."""
        if self.access is not None:
            self.access.any(kind, name)

    def may_administer(self, what: str) -> None:
        """Check that the user is an administrator of the broker; raises `PermissionDenied`."""
        if self.access is not None and not self.is_administrator:
            raise PermissionDenied(
                f"user '{self.access.user}'",
                f"{what} refused for user '{self.access.user}': it needs the tag '{ADMINISTRATOR}'",
            )

    def administered(self, what: str) -> Node:
        """Return the running node, for an administrator. Raises `PermissionDenied` if the user is not an
        administrator, and `NotSupported` if this front end does not offer the node.
        """
        self.may_administer(what)
        if self.node is None:
            raise NotSupported(
                "node", f"{what} cannot be asked for here: use the command line's local socket"
            )
        return self.node

    @property
    def is_administrator(self) -> bool:
        """Whether the user has the administrator tag; the machine's owner needs none."""
        if self.access is None:
            return True
        return ADMINISTRATOR in self.access.tags

    def sees(self, kind: Kind, name: str) -> bool:
        """Return whether the user has any permission on it."""
        try:
            self.may_see(kind, name)
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
class ProposedChange:
    """The result of an operation that changes the catalog."""

    request: CatalogRequest[Any]
    then: Callable[[Any], Any] = lambda answer: None

    def carried_out(self, caller: Caller) -> Any:
        """Execute the change, and return the result, or an `QueueQuestion` or a `WaitForDecision`. Raises
        `RefusedError` if nothing was changed.
        """
        if caller.propose is None:
            return self.then(caller.catalog.propose(self.request))
        ref = caller.reply_to.request()
        answer = caller.propose(self.request, ref)
        if answer is LATER:
            return WaitForDecision(ref, lambda decided: self.then(decided.result()))
        return self.then(answer)


@dataclass(frozen=True, slots=True)
class WaitForDecision:
    """The result of an operation that needs a later decision.

    When the `Decided` for `ref` comes, the result is ``then(decided)``, which may be an `QueueQuestion`.
    `then`: continues, or raises the `RefusedError` of the decision.
    """

    ref: RequestRef
    then: Callable[[Decided], Any]


@dataclass(frozen=True, slots=True)
class QueueQuestion:
    """The result of an operation that needs a queue's answer.

    Post ``command(RequestRef(...))`` to `handle`; when its `Answer` comes, the result is ``then(answer)``.
    `then`: makes the result, or raises a `RefusedError`.
    """

    handle: QueueHandle
    command: Callable[[RequestRef], Command]
    then: Callable[[Answer], Any]


@dataclass(frozen=True, slots=True)
class Job:
    """The result of an operation that takes time, for front ends that can wait."""

    run: Callable[[], Awaitable[Any]]
    then: Callable[[Any], Any] = lambda done: done


@dataclass(frozen=True, slots=True)
class Lines:
    """The result of an operation that consists of lines until one side ends it. `begin`: starts writing into
    a sink of the front end, and returns the answer that precedes the lines.
    """

    begin: Callable[[TraceSink], Any]
    end: Callable[[str], Any]
