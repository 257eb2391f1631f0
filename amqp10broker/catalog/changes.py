"""Telling a recorder what of the catalog must outlive the process, change by change.

Everything declared that is durable is one *entry* (see `entries`) under a key that names it. Whoever changes
the catalog says so here at once: before the change when something is added, so that what cannot be written
is refused and nothing has happened; after it when something goes, because deleting must be possible also
when the disk is full. Without a recorder (a broker in memory only) every call ends at its first line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from amqp10broker.catalog.entries import (
    binding_entry,
    exact,
    exchange_entry,
    permission_entry,
    policy_value,
    queue_entry,
    topic_permission_entry,
    user_entry,
    vhost_entry,
)
from amqp10broker.errors import LimitExceeded
from amqp10broker.routing.arguments import arguments_identity
from amqp10broker.routing.declaration import RESERVED_PREFIX

if TYPE_CHECKING:
    from amqp10broker.catalog.policies import Policy
    from amqp10broker.catalog.queue import DeclaredQueue, QueueSpec
    from amqp10broker.catalog.users import PasswordRecord, Permission, TopicPermission, User
    from amqp10broker.catalog.vhost import VirtualHost
    from amqp10broker.routing.exchange import Binding, Exchange

Key = tuple[str, ...]
"""What an entry is about: its kind, then the names that tell it from others of that kind."""
Value = Any
"""The entry, as JSON can hold it."""
Conceal = Callable[["PasswordRecord | None"], "PasswordRecord | None"]
"""Turns a password record into one that may leave the process."""

QUEUE_NUMBER_MAX: Final = 2**32 - 1
"""Numbers are the groups of the journal's records, which have 32 bits."""
NUMBERS_RESERVED: Final = 1024
"""Numbers that are reserved at one time, because reserving waits for the disk."""
NUMBERS: Final[Key] = ("queue_numbers",)
"""Key of the entry that says up to which number any may have been given, also to queues that are gone."""


class Recorder(Protocol):
    """Who keeps entries."""

    def put(self, entries: Sequence[tuple[Key, Value]]) -> None:
        """Keep entries, all of them or none, in place of those of the same keys.

        Raises:
            RefusedError: they cannot be kept now (the disk is full); none of them is.
        """

    def put_durably(self, entries: Sequence[tuple[Key, Value]]) -> None:
        """The same, and they survive a loss of power when this returns. Waits for the disk.

        Raises:
            RefusedError: they cannot be kept now.
        """

    def forget(self, keys: Sequence[Key]) -> None:
        """Keep entries no more, all at once; those that are not there are no fault.

        Not refused for want of room: then it is written later.
        """


class Changes:
    """What everybody who changes the catalog tells, and hands on to the recorder.

    A context manager: what goes within it goes at once.

    Attributes:
        highest_number: none above it was given to a queue; grows only.
        highest_reserved: up to this the recorder knows that numbers may be given.
    """

    __slots__ = ("_conceal", "_depth", "_gone", "_recorder", "highest_number", "highest_reserved")

    def __init__(self) -> None:
        """Tell nobody so far."""
        self.highest_number = 0
        self.highest_reserved = 0
        self._recorder: Recorder | None = None
        self._conceal: Conceal = lambda record: record
        self._depth = 0
        self._gone: list[Key] = []

    def tell(self, recorder: Recorder, conceal: Conceal) -> None:
        """Begin to tell a recorder.

        Args:
            recorder: it has entries of all that is declared already.
            conceal: turns a password record into one that may be written.
        """
        self._recorder = recorder
        self._conceal = conceal

    @property
    def told(self) -> bool:
        """Whether anybody listens."""
        return self._recorder is not None

    def put(self, key: Key, value: Value) -> None:
        """Tell of an entry that is new, or other than it was."""
        if self._recorder is not None:
            self._recorder.put([(key, value)])

    def forget(self, key: Key) -> None:
        """Tell that an entry is gone."""
        if self._recorder is None:
            return
        if self._depth:
            self._gone.append(key)
        else:
            self._recorder.forget([key])

    def __enter__(self) -> Self:
        """Gather what goes."""
        self._depth += 1
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Tell of it. After an exception too: it is gone."""
        self._depth -= 1
        if self._depth == 0 and self._gone:
            gone, self._gone = self._gone, []
            assert self._recorder is not None
            self._recorder.forget(gone)

    def at_least(self, number: int) -> None:
        """Give numbers above this one only: it may be in use, or something on disk is known by it."""
        self.highest_number = max(self.highest_number, number)
        self.highest_reserved = max(self.highest_reserved, number)

    def give_numbers_back(self) -> None:
        """Reserve no more numbers than were given: at the end, when none will be given any more."""
        if self._recorder is not None and self.highest_reserved > self.highest_number:
            self._recorder.put([(NUMBERS, {"highest": self.highest_number})])
            self.highest_reserved = self.highest_number

    # --- of no virtual host -----------------------------------------------------------------------

    def put_user(self, user: User) -> None:
        """A user is added or changed."""
        if self._recorder is not None:
            self.put(("user", user.name), user_entry(user, self._conceal(user.password)))

    def put_permission(self, user: str, vhost: str, permission: Permission) -> None:
        """A user gets a permission."""
        if self._recorder is not None:
            self.put(("permission", user, vhost), permission_entry(user, vhost, permission))

    def put_topic_permission(self, user: str, vhost: str, exchange: str, permission: TopicPermission) -> None:
        """A user gets a topic permission."""
        if self._recorder is not None:
            self.put(
                ("topic_permission", user, vhost, exchange),
                topic_permission_entry(user, vhost, exchange, permission),
            )

    def put_parameter(self, vhost: str, component: str, name: str, value: Value) -> None:
        """A runtime parameter is set."""
        if self._recorder is not None:
            entry = {"vhost": vhost, "component": component, "name": name, "value": value}
            self.put(("parameter", vhost, component, name), entry)

    def put_global_parameter(self, name: str, value: Value) -> None:
        """A global parameter is set."""
        if self._recorder is not None:
            self.put(("global_parameter", name), {"name": name, "value": value})

    def put_unknown(self, name: str, value: Value) -> None:
        """A part of a definitions file that nobody here knows is kept."""
        if self._recorder is not None:
            self.put(("unknown", name), {"name": name, "value": value})

    # --- numbers ----------------------------------------------------------------------------------

    def next_number(self, resource: str) -> int:
        """The number of a new durable queue; 0 if nobody listens.

        A loss of power may take back the declaration of a queue and leave messages of it in the journal,
        which was written later but reached the disk earlier. Nobody may be given its number then: numbers
        are reserved durably before any of them is given.

        Raises:
            LimitExceeded: all numbers have been used, or none can be reserved.
        """
        if self._recorder is None:
            return 0
        if self.highest_number >= QUEUE_NUMBER_MAX:
            raise LimitExceeded(
                resource,
                f"this data folder has had {QUEUE_NUMBER_MAX} durable queues and can name no more: export "
                "the definitions and start with a new folder",
            )
        if self.highest_number >= self.highest_reserved:
            reserved = min(self.highest_number + NUMBERS_RESERVED, QUEUE_NUMBER_MAX)
            self._recorder.put_durably([(NUMBERS, {"highest": reserved})])
            self.highest_reserved = reserved
        self.highest_number += 1
        return self.highest_number


class VhostChanges:
    """The same for what is in one virtual host, until that is deleted; also a `routing.topology.Keeper`."""

    __slots__ = ("_changes", "_ended", "_queue_is_lasting", "_vhost")

    def __init__(self, changes: Changes, vhost: str, queue_is_lasting: Callable[[str], bool]) -> None:
        """Tell of one virtual host.

        Args:
            changes: who hands it on.
            vhost: name of the virtual host.
            queue_is_lasting: tells whether the queue of a name, which is there, survives a restart.
        """
        self._changes = changes
        self._vhost = vhost
        self._queue_is_lasting = queue_is_lasting
        self._ended = False

    @property
    def told(self) -> bool:
        """Whether anybody listens."""
        return not self._ended and self._changes.told

    def end(self) -> None:
        """The virtual host is deleted: what still goes from it is nobody's business any more.

        There may be another of that name by then, with a queue of the same name.
        """
        self._ended = True

    def together(self) -> Changes:
        """What goes within this context goes at once."""
        return self._changes

    def put_facts(self, vhost: VirtualHost) -> None:
        """Its description, limits and so on are other than they were."""
        if self.told:
            self._changes.put(("vhost", self._vhost), vhost_entry(vhost))

    # --- queues -----------------------------------------------------------------------------------

    def next_number(self, resource: str) -> int:
        """The number of a new durable queue; 0 if nobody listens."""
        return self._changes.next_number(resource) if self.told else 0

    def put_queue(self, queue: QueueSpec | DeclaredQueue) -> None:
        """A queue is declared."""
        if queue.lasting and self.told:
            self._changes.put(
                ("queue", self._vhost, queue.name),
                queue_entry(queue, exact) | _own_facts(queue),
            )

    def forget_queue(self, name: str) -> None:
        """A durable queue is gone. Its bindings are told of one by one."""
        if self.told:
            self._changes.forget(("queue", self._vhost, name))

    # --- exchanges and bindings -------------------------------------------------------------------

    def put_exchange(self, exchange: Exchange) -> None:
        """A durable exchange is declared."""
        if self.told:
            self._changes.put(
                ("exchange", self._vhost, exchange.name), exchange_entry(self._vhost, exchange, exact)
            )

    def forget_exchange(self, exchange: Exchange) -> None:
        """A durable exchange is gone."""
        if self.told:
            self._changes.forget(("exchange", self._vhost, exchange.name))

    def put_binding(self, binding: Binding) -> None:
        """There is a binding from a durable exchange to a durable exchange or to any queue."""
        if not self.told:
            return
        destination = binding.destination
        if destination.kind == "exchange" or self._queue_is_lasting(destination.name):
            self._changes.put(self._binding_key(binding), binding_entry(self._vhost, binding, exact))

    def forget_binding(self, binding: Binding) -> None:
        """A binding from a durable exchange is gone."""
        # A queue that is deleted cannot be asked any more whether it was durable. If it was not, there is
        # no such entry, which is no fault.
        if self.told:
            self._changes.forget(self._binding_key(binding))

    def _binding_key(self, binding: Binding) -> Key:
        return (
            "binding",
            self._vhost,
            binding.source,
            binding.destination.kind,
            binding.destination.name,
            binding.routing_key,
            arguments_identity(binding.arguments),
        )

    # --- policies ---------------------------------------------------------------------------------

    def put_policy(self, policy: Policy) -> None:
        """A policy is set."""
        if self.told:
            entry: Mapping[str, Any] = {"vhost": self._vhost, "name": policy.name}
            self._changes.put(self._policy_key(policy), {**entry, **policy_value(policy, exact)})

    def forget_policy(self, policy: Policy) -> None:
        """A policy is gone."""
        if self.told:
            self._changes.forget(self._policy_key(policy))

    def _policy_key(self, policy: Policy) -> Key:
        return ("operator_policy" if policy.operator else "policy", self._vhost, policy.name)


def entries_of_vhost(vhost: VirtualHost) -> list[tuple[Key, Value]]:
    """All entries of what is in a virtual host, and its own. Permissions and parameters are not in it."""
    recorder = EntryList()
    changes = Changes()
    changes.tell(recorder, lambda record: record)
    within = VhostChanges(changes, vhost.name, lambda queue: vhost.queues[queue].lasting)
    within.put_facts(vhost)
    for policy in vhost.policies:
        within.put_policy(policy)
    for exchange in vhost.topology:
        if exchange.durable and exchange.name and not exchange.name.startswith(RESERVED_PREFIX):
            within.put_exchange(exchange)
    for queue in vhost:
        within.put_queue(queue)
    for binding in vhost.topology.durable_bindings(lambda queue: vhost.queues[queue].lasting):
        within.put_binding(binding)
    return recorder.entries


def _own_facts(queue: QueueSpec | DeclaredQueue) -> dict[str, Any]:
    """What the data folder knows of a queue, and a definitions file does not."""
    if queue.declaration_id:
        return {"number": queue.number, "declaration_id": queue.declaration_id}
    return {"number": queue.number}


class EntryList:
    """A recorder that lists what is there, of which nothing goes.

    Attributes:
        entries: in order.
    """

    def __init__(self) -> None:
        self.entries: list[tuple[Key, Value]] = []

    def put(self, entries: Sequence[tuple[Key, Value]]) -> None:
        """Keep entries."""
        self.entries += entries

    def put_durably(self, entries: Sequence[tuple[Key, Value]]) -> None:
        """Nobody is declared while everything is listed."""
        raise AssertionError(entries)

    def forget(self, keys: Sequence[Key]) -> None:
        """Nothing goes while everything is listed."""
        raise AssertionError(keys)
