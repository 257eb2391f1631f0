"""One virtual host: its queues, exchanges, bindings and policies, changed by `Catalog.apply` alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from amqp10broker.errors import NotFound, ResourceLocked
from amqp10broker.metadata.plan import VhostFacts
from amqp10broker.metadata.policies import NO_POLICY, Changed, Policies, alternate_exchange, effective
from amqp10broker.metadata.queue import AS_DECLARED, DeclaredQueue, QueueHandle, QueueSpec, StartQueue
from amqp10broker.metadata.queue_arguments import QueueType
from amqp10broker.queues.commands import DELETE, Configure
from amqp10broker.queues.queue_status import QueueConsumption, QueuesGone, given_up
from amqp10broker.routing.exchange import DIRECT_REPLY_TO, Binding, Choose, Exchange, Headers, no_headers
from amqp10broker.routing.topology import Topology, in_turn

VOLATILE: Final = "volatile"
"""Type of the queues of direct reply-to."""
RESERVED_PREFIX: Final = "amq."
REPLIES_PREFIX: Final = f"{DIRECT_REPLY_TO}."
"""The prefix of the names of queues of direct reply-to."""


class VirtualHost:
    """A name space of queues and exchanges. `policies`: their changes apply at once. `choose`: the random
    source of routing and of the ids of streams.
    """

    def __init__(
        self,
        facts: VhostFacts,
        start_queue: StartQueue,
        *,
        node_queue_type: QueueType = QueueType.CLASSIC,
        choose: Choose | None = None,
        find_reply_queue: Callable[[VirtualHost, str], DeclaredQueue | None] | None = None,
    ) -> None:
        """Create it without queues. `find_reply_queue`: finds a queue of direct reply-to at another node with
        an announcement that may be pending.
        """
        self.name = facts.name
        self.facts = facts
        self.queues: dict[str, DeclaredQueue] = {}
        self.policies = Policies(self._apply_policies)
        self.topology = Topology(
            facts.name,
            lambda name: self.find(name) is not None,
            choose=choose,
            policy_alternate=lambda exchange: alternate_exchange(self.policies, exchange),
        )
        self.deleted = False
        self.choose = choose or in_turn()
        self._find_reply_queue = find_reply_queue
        self._start_queue = start_queue
        self._queue_changes = 0
        self._volatile = 0
        self._gone = QueuesGone()
        # Names of exclusive queues by owner: connections come and go even if there are many queues. Queues of
        # direct reply-to end with their links.
        self.owned: dict[object, dict[str, None]] = {}
        self._node_queue_type = node_queue_type

    def named(self) -> str:
        """Return its name for a request. Raises `NotFound` if it was deleted: a new one may have the name."""
        if self.deleted:
            raise NotFound(f"vhost '{self.name}'", f"vhost {self.name} not found")
        return self.name

    @property
    def version(self) -> int:
        """A number that grows with every change of queues, exchanges or bindings."""
        return self._queue_changes + self.topology.version

    @property
    def declared(self) -> int:
        return len(self.queues) - self._volatile

    def __iter__(self) -> Iterator[DeclaredQueue]:
        return (queue for queue in self.queues.values() if queue.type != VOLATILE)

    def counted(self) -> Counter[str]:
        """Return the counters of its queues, including deleted ones and those of direct reply-to."""
        total = self._gone.counted()
        for queue in self.queues.values():
            total.update(queue.counted())
        return total

    def given_up(self) -> Counter[tuple[str, str, str]]:
        """Return the messages that its queues dropped, including deleted ones
        (`queues.queue_status.given_up`).
        """
        total = self._gone.given_up()
        for queue in self.queues.values():
            total.update(given_up(queue.type, queue.handle.counters))
        return total

    def member_gone(self, queue: DeclaredQueue) -> None:
        """Retain the counters of a queue without a member at this node any more."""
        self._gone.add(queue.type, queue.handle.counters, QueueConsumption())

    def __repr__(self) -> str:
        return f"<VirtualHost {self.name!r}>"

    # --- finding ----------------------------------------------------------------------------------

    def find(self, name: str) -> DeclaredQueue | None:
        queue = self.queues.get(name)
        if queue is None and name.startswith(REPLIES_PREFIX) and self._find_reply_queue is not None:
            return self._find_reply_queue(self, name)
        return queue

    def lookup(self, name: str) -> DeclaredQueue:
        """Return the queue of this name. Raises `NotFound`."""
        queue = self.find(name)
        if queue is None:
            raise NotFound(f"queue '{name}'", f"no queue '{name}' in vhost '{self.name}'")
        return queue

    def for_connection(self, queue: DeclaredQueue, connection: object) -> DeclaredQueue:
        """Check that a connection may use a queue. Raises `ResourceLocked` if another one has it exclusively,
        and `NotFound` if its node cannot be reached.
        """
        if queue.owner is not None and queue.owner != connection:
            raise self.locked(queue.name)
        queue.check_up()
        return queue

    def route(
        self,
        exchange: Exchange,
        keys: Sequence[str],
        headers: Headers = no_headers,
        properties: Headers = no_headers,
    ) -> tuple[list[DeclaredQueue], bool]:
        """Return the queues to which a message is routed, each once, and whether that may be cached.
        `headers`: returns the headers that a headers exchange compares; called only if one is met.
        `properties`: likewise, by AMQP 0-9-1 name.
        """
        names, cacheable = self.topology.route(exchange, keys, headers, properties)
        find = self.find
        return [queue for name in names if (queue := find(name)) is not None], cacheable

    def is_kept(self, binding: Binding) -> bool:
        """Return whether a binding is durable, which it is if both ends are."""
        exchanges, destination = self.topology, binding.destination
        if not exchanges.lookup_exchange(binding.source).durable:
            return False
        if destination.kind == "exchange":
            return exchanges.lookup_exchange(destination.name).durable
        return self.queues[destination.name].lasting

    def default_type(self, *, lasting: bool = True) -> QueueType:
        """Return the kind of a queue that is declared without one. `lasting`: it is durable, neither
        exclusive nor auto-delete, and the client named it.
        """
        if not lasting:
            # Only a classic queue can be so; a default must not make such a request fail.
            return QueueType.CLASSIC
        return QueueType(self.facts.default_queue_type or self._node_queue_type)

    def locked(self, name: str) -> ResourceLocked:
        return ResourceLocked(
            f"queue '{name}'",
            f"cannot obtain exclusive access to locked queue '{name}' in vhost '{self.name}'. It could be "
            "originally declared on another connection or the exclusive property value does not match "
            "that of the original declaration.",
        )

    # --- changing, by `Catalog.apply` -------------------------------------------------------------

    def put_queue(self, spec: QueueSpec) -> bool:
        """Begin to run a queue, or change the members of one that runs. Returns whether it is new."""
        there = self.queues.get(spec.name)
        if there is not None:
            there.members = spec.members
            return False
        counts = effective(self.policies, spec.name, spec.type, spec.arguments, spec.rules)
        if counts is not NO_POLICY:
            spec = replace(spec, settings=counts.settings, warnings=counts.warnings)
        handle = self._start_queue(spec)
        declared = {name: getattr(spec, name) for name in AS_DECLARED}
        self.queues[spec.name] = DeclaredQueue(**declared, handle=handle, effective=counts)
        if spec.owner is not None:
            self.owned.setdefault(spec.owner, {})[spec.name] = None
        self._queue_changes += 1
        return True

    def drop_queue(self, name: str, *, send_delete: bool) -> None:
        """Remove a queue without bindings. `send_delete`: it gets a `Delete`."""
        queue = self.queues.pop(name)
        self._gone.add(queue.type, queue.handle.counters, queue.consumption)
        if queue.owner is not None:
            owned = self.owned[queue.owner]
            del owned[name]
            if not owned:
                del self.owned[queue.owner]
        self._queue_changes += 1
        if send_delete:
            queue.handle.post(DELETE)

    def _apply_policies(self, concerns: Changed) -> None:
        for queue in self:
            if concerns(queue.name, queue.type):
                before = queue.effective.settings
                queue.effective = effective(
                    self.policies, queue.name, queue.type, queue.arguments, queue.rules
                )
                if queue.effective.settings != before:
                    queue.handle.post(Configure(queue.effective.settings))
        self.topology.refresh_alternates()

    # --- direct reply-to --------------------------------------------------------------------------

    def add_volatile(self, name: str, owner: object, handle: QueueHandle) -> DeclaredQueue:
        queue = DeclaredQueue(name, self.name, VOLATILE, False, owner, True, {}, handle)
        self.queues[name] = queue
        self._queue_changes += 1
        self._volatile += 1
        return queue

    def remove_volatile(self, queue: DeclaredQueue) -> None:
        """Remove a queue of direct reply-to; the caller sends its `Delete`. A second call has no effect."""
        if self.queues.get(queue.name) is queue:
            del self.queues[queue.name]
            self._gone.add(queue.type, queue.handle.counters, queue.consumption)
            self._queue_changes += 1
            self._volatile -= 1
