"""Who asks for an operation, and what an operation that must ask a queue gives back instead of a result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from amqp10broker.catalog.catalog import Catalog, Request
from amqp10broker.catalog.proposing import LATER, Decided, Propose
from amqp10broker.catalog.queue import DeclaredQueue, QueueHandle
from amqp10broker.catalog.users import PasswordRecord
from amqp10broker.catalog.vhost import VirtualHost
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import NotSupported, PermissionDenied
from amqp10broker.management.node import Node, Sink
from amqp10broker.queues.commands import Command, PeerId, ReplyTo, RequestRef
from amqp10broker.queues.effects import Answer
from amqp10broker.security.authorise import Access, Kind


class RecordMaker(Protocol):
    """Makes records of passwords: `security.passwords.Passwords`, or who has had it done in a thread."""

    def make(self, password: str) -> PasswordRecord:
        """The record of a new password."""

    def exportable(self, record: PasswordRecord | None) -> PasswordRecord | None:
        """The record as a definitions file may hold it."""


class Report(Protocol):
    """Tells of operations, for the log."""

    def __call__(self, operation: str, subject: str, refusal: str | None) -> None:
        """An operation is done, or was refused.

        Args:
            operation: its name.
            subject: what it is about, without secrets: ``queue name='orders'``.
            refusal: why it was refused; None if it is done.
        """


_NOBODY: Final = ReplyTo(PeerId(0, 0, 0), "nobody")


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose behalf an operation runs.

    Attributes:
        catalog: everything that is declared.
        vhost: the virtual host that names of queues and exchanges mean.
        access: what the user may do; None is the machine's owner at the local socket, who may do all.
        connection: identity of the connection, the owner of exclusive queues; None: there can be none here.
        node_name: the broker's name, as answers about queues give it.
        node: the running node; None where the door offers nothing of it.
        propose: has requests to the catalog decided; None: the catalog decides at once.
        reply_to: who hears of what is decided later.
        new_name: makes a name for a queue that is declared without; None: it must have one.
        passwords: makes records of passwords; None where they cannot be set.
        report: told of each operation that changes something; None: nobody is.
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
        """Check that the user may create and delete it.

        Raises:
            PermissionDenied: with the permission that is missing.
        """
        if self.access is not None:
            self.access.configure(kind, name)

    def may_write(self, kind: Kind, name: str) -> None:
        """Check that the user may put something into it.

        Raises:
            PermissionDenied: with the permission that is missing.
        """
        if self.access is not None:
            self.access.write(kind, name)

    def may_read(self, kind: Kind, name: str) -> None:
        """Check that the user may take something out of it.

        Raises:
            PermissionDenied: with the permission that is missing.
        """
        if self.access is not None:
            self.access.read(kind, name)

    def may_read_topic(self, exchange: str, routing_key: str) -> None:
        """Check that the user may have messages of a topic.

        Raises:
            PermissionDenied: with the permission that is missing.
        """
        if self.access is not None:
            self.access.read_topic(exchange, routing_key)

    def may_see(self, kind: Kind, name: str) -> None:
        """Check that the user has any permission on it.

        Raises:
            PermissionDenied: none of the three.
        """
        if self.access is not None:
            self.access.any(kind, name)

    def may_administer(self, what: str) -> None:
        """Check that the user is an administrator of the broker.

        Args:
            what: the operation, for the text.

        Raises:
            PermissionDenied: no administrator.
        """
        if self.access is not None and not self.is_administrator:
            raise PermissionDenied(
                f"user '{self.access.user}'",
                f"{what} refused for user '{self.access.user}': it needs the tag '{ADMINISTRATOR}'",
            )

    def administered(self, what: str) -> Node:
        """The running node, for an administrator.

        Args:
            what: the operation, for the text.

        Raises:
            PermissionDenied: no administrator.
            NotSupported: this door offers nothing of the node.
        """
        self.may_administer(what)
        if self.node is None:
            raise NotSupported(
                "node", f"{what} cannot be asked for here: use the command line's local socket"
            )
        return self.node

    @property
    def is_administrator(self) -> bool:
        """Whether the user has the tag that says so; the machine's owner needs none."""
        if self.access is None:
            return True
        return ADMINISTRATOR in self.access.tags

    def sees(self, kind: Kind, name: str) -> bool:
        """Whether the user has any permission on it."""
        try:
            self.may_see(kind, name)
        except PermissionDenied:
            return False
        return True

    def for_use(self, queue: DeclaredQueue) -> DeclaredQueue:
        """The queue itself, if this connection may use it.

        Raises:
            ResourceLocked: another connection has it exclusively.
            NotFound: the node that has it cannot be reached.
        """
        if self.access is not None:
            self.vhost.for_connection(queue, self.connection)
        queue.check_up()
        return queue


ADMINISTRATOR = "administrator"
"""The tag of users who may manage users, permissions and virtual hosts."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """An operation is a change of the catalog, once that is decided.

    Attributes:
        request: what is to change.
        then: makes the result of the answer, or an `Ask`.
    """

    request: Request[Any]
    then: Callable[[Any], Any] = lambda answer: None

    def carried_out(self, caller: Caller) -> Any:
        """The result, or an `Ask` or a `Wait` instead of it.

        Raises:
            RefusedError: of the class that says why; nothing was changed.
        """
        if caller.propose is None:
            return self.then(caller.catalog.propose(self.request))
        ref = caller.reply_to.request()
        answer = caller.propose(self.request, ref)
        if answer is LATER:
            return Wait(ref, lambda decided: self.then(decided.result()))
        return self.then(answer)


@dataclass(frozen=True, slots=True)
class Wait:
    """The result of an operation needs a decision that comes later.

    When the `Decided` for `ref` comes, the result is ``then(decided)``, which may be an `Ask`.

    Attributes:
        ref: under which it was asked.
        then: goes on, or raises the `RefusedError` that was decided.
    """

    ref: RequestRef
    then: Callable[[Decided], Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """The result of an operation needs a queue's answer.

    Post ``command(RequestRef(...))`` to `handle`; when its `Answer` comes, the result is ``then(answer)``.

    Attributes:
        handle: the queue.
        command: makes the question.
        then: makes the result, or raises the `RefusedError` that the answer means.
    """

    handle: QueueHandle
    command: Callable[[RequestRef], Command]
    then: Callable[[Answer], Any]


@dataclass(frozen=True, slots=True)
class Job:
    """The result of an operation takes its time, and a door that can wait for it does.

    Attributes:
        run: does it.
        then: makes the result of what came of it.
    """

    run: Callable[[], Awaitable[Any]]
    then: Callable[[Any], Any] = lambda done: done


@dataclass(frozen=True, slots=True)
class Lines:
    """The result of an operation are lines, from now on until one side has enough.

    Attributes:
        begin: has them written into a sink of the door's, and makes the answer in front of them.
        end: the door has enough, for a reason.
    """

    begin: Callable[[Sink], Any]
    end: Callable[[str], Any]
