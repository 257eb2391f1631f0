"""One virtual host: its queues by name, its exchanges and bindings, and the rules of declaring.

Virtual hosts share nothing with each other. This is plain state, changed and read synchronously by
whichever task holds the processor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from amqp10broker.catalog import queue_arguments
from amqp10broker.catalog.changes import Changes, VhostChanges
from amqp10broker.catalog.effective import alternate_exchange, effective
from amqp10broker.catalog.limits import VhostLimits
from amqp10broker.catalog.policies import Changed, Policies
from amqp10broker.catalog.queue import DeclaredQueue, QueueHandle, QueueHost, QueueSpec, QueueType
from amqp10broker.catalog.queue_arguments import QUEUE_TYPE
from amqp10broker.errors import (
    AccessRefused,
    InvalidArgument,
    LimitExceeded,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
)
from amqp10broker.queues.commands import TOUCH, Configure
from amqp10broker.routing.arguments import type_name
from amqp10broker.routing.declaration import stripped
from amqp10broker.routing.exchange import Choose, Exchange, Headers, no_headers
from amqp10broker.routing.topology import Topology, in_turn

VOLATILE: Final = "volatile"
"""Type of the queues of direct reply-to."""
RESERVED_PREFIX: Final = "amq."
NAME_BYTES_MAX: Final = 255
_IDS: Final = 2**64
"""So many ids of streams there are to choose from."""


class UnknownQueueType(InvalidArgument):
    """There is no such kind of queue: another broker, or a plugin of it, has it."""


class VirtualHost:
    """A name space of queues and exchanges.

    Attributes:
        name: unique.
        topology: its exchanges and bindings.
        queues: by name; changed by `declare` and `remove` only.
        limits: of connections and queues; changed by `set_limits` only.
        default_queue_type: the kind of a queue that is declared without ``x-queue-type``; None takes
            the node's; changed by `set_default_queue_type` only.
        description: for people; changed by `describe` only, as the next two.
        tags: for people.
        metadata: what a definitions file says besides, kept as it is.
        policies: a change of them acts at once on the queues and exchanges that they are for.
        deleted: no queue can be declared any more.
    """

    def __init__(
        self,
        name: str,
        host: QueueHost,
        *,
        default_queue_type: str | None = None,
        node_queue_type: str = QueueType.CLASSIC.value,
        relaxed_quorum_checks: bool = False,
        choose: Choose | None = None,
        changes: Changes | None = None,
    ) -> None:
        """Make an empty virtual host with the exchanges that every one has.

        Args:
            name: unique.
            host: who runs its queues.
            default_queue_type: see the attribute.
            node_queue_type: what counts when that is None.
            relaxed_quorum_checks: a quorum queue may be declared again as a classic one.
            choose: where routing, and the id of a stream, leave something to chance; None takes turns.
            changes: who is told of every change, from the first `put_facts` on.

        Raises:
            InvalidArgument: a default type is no kind of queue.
        """
        self.name = name
        self.queues: dict[str, DeclaredQueue] = {}
        self._changes = VhostChanges(changes or Changes(), name, lambda queue: self.queues[queue].lasting)
        self.policies = Policies(self._apply_policies, changes=self._changes)
        self.topology = Topology(
            name,
            self.queues.__contains__,
            choose=choose,
            policy_alternate=lambda exchange: alternate_exchange(self.policies, exchange),
            keeper=self._changes,
        )
        self.limits = VhostLimits()
        self.default_queue_type: str | None = None
        self.description = ""
        self.tags: tuple[str, ...] = ()
        self.metadata: dict[str, Any] = {}
        self.deleted = False
        self._host = host
        self._choose_id = choose or in_turn()
        self._queue_changes = 0
        self._volatile = 0
        self._relaxed_quorum_checks = relaxed_quorum_checks
        self._node_queue_type = queue_type_of(node_queue_type, f"vhost '{name}'")
        if default_queue_type is not None:
            self.default_queue_type = queue_type_of(default_queue_type, f"vhost '{name}'").value

    @property
    def version(self) -> int:
        """Grows with every change of queues, exchanges or bindings: what was found before may be stale."""
        return self._queue_changes + self.topology.version

    def __iter__(self) -> Iterator[DeclaredQueue]:
        """The declared queues; the volatile ones of direct reply-to are nobody's business."""
        return (queue for queue in self.queues.values() if queue.type != VOLATILE)

    def __repr__(self) -> str:
        return f"<VirtualHost {self.name!r}>"

    def set_default_queue_type(self, kind: str | None) -> None:
        """Change the kind of queues that are declared without ``x-queue-type``; None: the node's.

        Raises:
            InvalidArgument: there is no such kind.
        """
        checked = None if kind is None else queue_type_of(kind, f"vhost '{self.name}'").value
        if checked != self.default_queue_type:
            self._change(default_queue_type=checked)

    def describe(self, description: str, tags: Iterable[str], metadata: Mapping[str, Any]) -> None:
        """Change what is there for people."""
        self._change(description=description, tags=tuple(tags), metadata=dict(metadata))

    def set_limits(self, limits: VhostLimits) -> None:
        """Change what the virtual host may have; what is there already stays."""
        self._change(limits=limits)

    def _change(self, **changed: Any) -> None:
        """Set some of what `put_facts` tells of; if it cannot be kept, nothing changes."""
        before = {name: getattr(self, name) for name in changed}
        for name, value in changed.items():
            setattr(self, name, value)
        try:
            self._changes.put_facts(self)
        except BaseException:
            for name, value in before.items():
                setattr(self, name, value)
            raise

    def end(self) -> None:
        """The virtual host is deleted: no queue can be declared any more, and nothing of it is kept."""
        self.deleted = True
        self._changes.end()

    # --- finding ----------------------------------------------------------------------------------

    def find(self, name: str) -> DeclaredQueue | None:
        """The queue of this name, or None."""
        return self.queues.get(name)

    def lookup(self, name: str) -> DeclaredQueue:
        """The queue of this name.

        Raises:
            NotFound: there is none.
        """
        queue = self.queues.get(name)
        if queue is None:
            raise NotFound(f"queue '{name}'", f"no queue '{name}' in vhost '{self.name}'")
        return queue

    def for_connection(self, queue: DeclaredQueue, connection: object) -> DeclaredQueue:
        """Check that a connection may use a queue at all.

        Raises:
            ResourceLocked: another connection has it exclusively.
        """
        if queue.owner is not None and queue.owner is not connection:
            raise self._locked(queue.name)
        return queue

    def queues_owned_by(self, connection: object) -> list[DeclaredQueue]:
        """The queues that go with this connection."""
        return [queue for queue in self.queues.values() if queue.owner is connection]

    def route(
        self,
        exchange: Exchange,
        keys: Sequence[str],
        headers: Headers = no_headers,
        properties: Headers = no_headers,
    ) -> tuple[list[DeclaredQueue], bool]:
        """The queues that a message goes to, each once, and whether that may be remembered.

        Args:
            exchange: where it was published to.
            keys: its routing key, and those of CC and BCC.
            headers: gives what a headers exchange compares; called only if one is met.
            properties: gives its properties by their AMQP 0-9-1 name, likewise.
        """
        names, cacheable = self.topology.route(exchange, keys, headers, properties)
        find = self.queues.get
        return [queue for name in names if (queue := find(name)) is not None], cacheable

    # --- declaring --------------------------------------------------------------------------------

    def declare(
        self,
        name: str,
        *,
        durable: bool = True,
        exclusive_owner: object | None = None,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        internal: bool = False,
    ) -> tuple[DeclaredQueue, bool]:
        """The queue of this name, made now if it is not there.

        Args:
            name: 1 to 255 bytes; line breaks are removed.
            durable: survives a restart; an exclusive queue never does, and only says so.
            exclusive_owner: the connection that gets it for itself, compared by identity.
            auto_delete: goes with its last consumer.
            arguments: x-arguments.
            internal: the broker made the name: the reserved prefix is allowed.

        Returns:
            The queue, and whether it was made now.

        Raises:
            ResourceLocked: another connection has it exclusively, or it is exclusive and the request
                is not, or the other way round.
            Inequivalent: it exists and is not as asked for.
            AccessRefused: the name is reserved.
            InvalidArgument: the name or an argument is not allowed.
            PreconditionFailed: a kind of queue cannot be exclusive, auto-delete or transient.
            LimitExceeded: the virtual host has as many queues as it may.
        """
        name = stripped(name)
        resource = f"queue '{name}' in vhost '{self.name}'"
        exclusive = exclusive_owner is not None
        given = arguments or {}
        existing = self.queues.get(name)
        # A volatile queue is nobody's to declare: the rule of reserved names refuses it below.
        if existing is not None and existing.type != VOLATILE:
            self._assert_equivalent(existing, durable, exclusive_owner, auto_delete, given, resource)
            if existing.type != QueueType.QUORUM:
                # A quorum queue's time without use goes on (seed: "not renewed by declaring it again").
                existing.handle.post(TOUCH)
            return existing, False
        self._check_name(name, internal)
        kind = self._queue_type(given, resource, durable, exclusive, auto_delete, server_named=internal)
        queue_arguments.check(given, kind, resource)
        _check_properties(kind, resource, durable, exclusive, auto_delete)
        self._check_limit(name)
        kept = {key: queue_arguments.plain(value) for key, value in given.items()} | {QUEUE_TYPE: kind.value}
        number = self._changes.next_number(resource) if durable and not exclusive else 0
        spec = QueueSpec(
            *(self.name, name, kind.value, durable, exclusive, auto_delete, kept),
            number=number,
            declaration_id=f"{self._choose_id(_IDS):016x}" if kind is QueueType.STREAM else "",
        )
        self._changes.put_queue(spec)
        try:
            return self._start(spec, exclusive_owner), True
        except BaseException:
            self._changes.forget_queue(name)
            raise

    def restore(self, spec: QueueSpec) -> DeclaredQueue:
        """Run a queue that was there before the broker was started.

        Nothing is checked: it was when the queue was declared, and limits and defaults may be others since.

        Args:
            spec: as it was declared; its settings are made of the policies that there are now.
        """
        return self._start(spec, None)

    def _start(self, spec: QueueSpec, owner: object | None) -> DeclaredQueue:
        counts = effective(self.policies, spec.name, spec.type, spec.arguments)
        spec = replace(spec, settings=counts.settings, warnings=counts.warnings)
        handle = self._host.start_queue(spec)
        queue = DeclaredQueue(
            *(spec.name, spec.vhost, spec.type, spec.durable, owner, spec.auto_delete, spec.arguments),
            handle=handle,
            effective=counts,
            number=spec.number,
            declaration_id=spec.declaration_id,
        )
        self.queues[spec.name] = queue
        self._queue_changes += 1
        return queue

    def add_volatile(self, name: str, owner: object, handle: QueueHandle) -> DeclaredQueue:
        """Make a queue for direct reply-to, which lives as long as its consumer.

        Args:
            name: made by the broker, not to be guessed.
            owner: the connection that consumes from it.
            handle: where its letters go.
        """
        queue = DeclaredQueue(name, self.name, VOLATILE, False, owner, True, {}, handle)
        self.queues[name] = queue
        self._queue_changes += 1
        self._volatile += 1
        return queue

    def remove(self, name: str) -> DeclaredQueue | None:
        """Forget a queue and its bindings; the caller posts the `Delete` to it."""
        queue = self.queues.pop(name, None)
        if queue is not None:
            self._queue_changes += 1
            self._volatile -= queue.type == VOLATILE
            with self._changes.together():
                if queue.lasting:
                    self._changes.forget_queue(name)
                self.topology.remove_queue(name)
        return queue

    def _apply_policies(self, concerns: Changed) -> None:
        """Policies have changed: what acts otherwise now is told so."""
        for queue in self:
            if concerns(queue.name, queue.type):
                before = queue.effective.settings
                queue.effective = effective(self.policies, queue.name, queue.type, queue.arguments)
                if queue.effective.settings != before:
                    queue.handle.post(Configure(queue.effective.settings))
        self.topology.refresh_alternates()

    def _assert_equivalent(
        self,
        queue: DeclaredQueue,
        durable: bool,
        owner: object | None,
        auto_delete: bool,
        arguments: Mapping[str, Any],
        resource: str,
    ) -> None:
        if queue.owner is not owner:
            raise self._locked(queue.name)
        for what, new, old in (
            ("durable", durable, queue.durable),
            ("auto_delete", auto_delete, queue.auto_delete),
        ):
            if new != old:
                raise queue_arguments.inequivalent(
                    what, resource, f"received '{str(new).lower()}' but current is '{str(old).lower()}'"
                )
        if QUEUE_TYPE not in arguments:
            default = self._default_type(durable, owner is not None, auto_delete, server_named=False)
            arguments = {**arguments, QUEUE_TYPE: default.value}
        relaxed = (
            self._relaxed_quorum_checks
            and queue.type == QueueType.QUORUM
            and arguments[QUEUE_TYPE] == QueueType.CLASSIC.value
        )
        kind = QueueType(queue.type)
        queue_arguments.assert_equivalent(arguments, queue.arguments, kind, resource, relaxed=relaxed)

    def _check_name(self, name: str, internal: bool) -> None:
        resource = f"queue '{name}'"
        if self.deleted:
            raise NotFound(f"vhost '{self.name}'", f"vhost {self.name} not found")
        if not name:
            raise InvalidArgument(resource, "declare queue with empty name not allowed")
        size = len(name.encode(errors="surrogatepass"))
        if size > NAME_BYTES_MAX:
            raise InvalidArgument(
                resource, f"queue name is {size} bytes long, must be 1 to {NAME_BYTES_MAX}: '{name[:40]}...'"
            )
        if name.startswith(RESERVED_PREFIX) and not internal:
            raise AccessRefused(
                resource, f"queue name '{name}' contains reserved prefix '{RESERVED_PREFIX}*'"
            )

    def _check_limit(self, name: str) -> None:
        limit = self.limits.max_queues
        if limit is not None and len(self.queues) - self._volatile >= limit:
            raise LimitExceeded(
                f"queue '{name}'",
                f"cannot declare queue '{name}': queue limit in vhost '{self.name}' ({limit}) is reached",
            )

    def _queue_type(
        self,
        arguments: Mapping[str, Any],
        resource: str,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        *,
        server_named: bool,
    ) -> QueueType:
        if QUEUE_TYPE not in arguments:
            return self._default_type(durable, exclusive, auto_delete, server_named=server_named)
        given = arguments[QUEUE_TYPE]
        if not isinstance(given, str):
            raise InvalidArgument(
                resource,
                f"invalid arg '{QUEUE_TYPE}' for {resource}: {{unacceptable_type,{type_name(given)}}}",
            )
        kind = queue_type_of(given, resource)
        if server_named and kind is not QueueType.CLASSIC:
            raise PreconditionFailed(resource, f"Cannot declare a server-named queue for type {kind.module}")
        return kind

    @property
    def type_of_new(self) -> QueueType:
        """What a queue becomes that is declared without a kind and is to stay."""
        return self._default_type(durable=True, exclusive=False, auto_delete=False, server_named=False)

    def _default_type(
        self, durable: bool, exclusive: bool, auto_delete: bool, *, server_named: bool
    ) -> QueueType:
        if exclusive or auto_delete or server_named or not durable:
            # Only a classic queue can be so; a default must not make such a request fail.
            return QueueType.CLASSIC
        return QueueType(self.default_queue_type or self._node_queue_type)

    def _locked(self, name: str) -> ResourceLocked:
        return ResourceLocked(
            f"queue '{name}'",
            f"cannot obtain exclusive access to locked queue '{name}' in vhost '{self.name}'. It could be "
            "originally declared on another connection or the exclusive property value does not match "
            "that of the original declaration.",
        )


def queue_type_of(name: str, resource: str) -> QueueType:
    """The kind of queue of this name.

    Args:
        name: as ``x-queue-type`` gives it.
        resource: for the error: ``queue 'q' in vhost '/'``.

    Raises:
        UnknownQueueType: there is no such kind.
    """
    try:
        return QueueType(name)
    except ValueError:
        raise UnknownQueueType(
            resource, f"invalid arg '{QUEUE_TYPE}' for {resource}: \"unsupported queue type '{name}'\""
        ) from None


def _check_properties(
    kind: QueueType, resource: str, durable: bool, exclusive: bool, auto_delete: bool
) -> None:
    if kind is QueueType.CLASSIC:
        return
    for wrong, what in (
        (auto_delete, "auto-delete"),
        (exclusive, "exclusive-owner"),
        (not durable, "non-durable"),
    ):
        if wrong:
            raise PreconditionFailed(resource, f"invalid property '{what}' for {resource}")
