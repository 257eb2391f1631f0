"""The metadata of this broker: virtual hosts with their queues and exchanges, and users.

The catalog is plain state, which any task reads synchronously. It changes in one way only: a request is
planned (see `plan`), the durable part of the plan is stored, and the plan is applied (`propose`). On one node
the answer exists when the call returns. In a cluster it arrives later as a `Decided` message, and a front end
that waits handles no later input of its client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from amqp10broker.emulation import UNSET, Rules
from amqp10broker.errors import ConfigError, NotAllowed, NotFound, RefusedError, ResourceLocked
from amqp10broker.metadata.entry_codec import KINDS, Conceal, decoded, encoded
from amqp10broker.metadata.plan import (
    CLUSTER,
    CLUSTER_NAME,
    NODE_NUMBERS,
    NUMBERS,
    Key,
    Plan,
    Put,
    Record,
    T_co,
    VhostFacts,
    binding_key,
)
from amqp10broker.metadata.queue import (
    QUEUE_NUMBER_MAX,
    ClusterFacts,
    DeclaredQueue,
    IdleQueue,
    NodeFacts,
    Placement,
    StartQueue,
)
from amqp10broker.metadata.queue_arguments import QueueType, queue_type_of
from amqp10broker.metadata.users import User, Users
from amqp10broker.metadata.vhost import RESERVED_PREFIX, VirtualHost
from amqp10broker.queues.commands import TOUCH
from amqp10broker.routing.exchange import Choose

if TYPE_CHECKING:
    from amqp10broker.queues.commands import RequestRef
    from amqp10broker.storage.catalog_log import CatalogLog


T = TypeVar("T")

VHOSTS: Final = "vhosts"
USERS: Final = "users"
CHANNELS: Final = "channels"
"""The counted objects: connections of virtual hosts and of users, and channels of users."""


class Usage:
    """Counts of open connections and channels, for the limits of virtual hosts and users. Each node receives
    the counts of the others, so simultaneous requests at several nodes may exceed a limit.

    Attributes:
        counts: those at this node, by kind and owner.
        queues_declared: how often clients have declared queues at this node, including existing ones.
    """

    def __init__(self) -> None:
        self.queues_declared = 0
        self.counts: dict[str, Counter[str]] = {kind: Counter() for kind in (VHOSTS, USERS, CHANNELS)}
        self._elsewhere: dict[int, dict[str, Counter[str]]] = {}
        # For each virtual host and container-id: its connections, and whether another one is refused.
        self._containers: Counter[tuple[str, str]] = Counter()
        self._sole: set[tuple[str, str]] = set()

    def open_connection(self, vhost: VirtualHost, user: User) -> None:
        """Count a connection of a user. Raises `NotAllowed` at a limit of the virtual host or the user."""
        limit = vhost.facts.limits.max_connections
        if self._is_reached(limit, VHOSTS, vhost.name):
            raise NotAllowed(
                f"vhost '{vhost.name}'",
                f"access to vhost '{vhost.name}' refused for user '{user.name}': "
                f"vhost connection limit ({limit}) is reached",
            )
        limit = user.limits.max_connections
        if self._is_reached(limit, USERS, user.name):
            raise NotAllowed(
                f"user '{user.name}'",
                f"connection refused for user '{user.name}': user connection limit ({limit}) is reached",
            )
        self.counts[VHOSTS][vhost.name] += 1
        self.counts[USERS][user.name] += 1

    def close_connection(self, vhost: str, user: str) -> None:
        _count_down(self.counts[VHOSTS], vhost)
        _count_down(self.counts[USERS], user)

    def open_container(self, vhost: str, container: str, *, sole: bool) -> None:
        """Count a connection of AMQP 1.0 by its container-id, at this node. `sole`: no other is allowed.
        Raises `ResourceLocked`.
        """
        key = (vhost, container)
        if key in self._sole or (sole and key in self._containers):
            raise ResourceLocked(
                f"container '{container}'",
                f"container-id '{container}' is in use in vhost '{vhost}', for one connection only",
            )
        self._containers[key] += 1
        if sole:
            self._sole.add(key)

    def close_container(self, vhost: str, container: str) -> None:
        key = (vhost, container)
        _count_down(self._containers, key)
        if key not in self._containers:
            self._sole.discard(key)

    def open_channel(self, user: User) -> None:
        """Count a channel or session of a user. Raises `NotAllowed` if the user's limit is reached."""
        limit = user.limits.max_channels
        if self._is_reached(limit, CHANNELS, user.name):
            raise NotAllowed(
                f"user '{user.name}'",
                f"number of channels opened for user '{user.name}' has reached the maximum allowed user "
                f"limit of ({limit})",
            )
        self.counts[CHANNELS][user.name] += 1

    def close_channel(self, user: str) -> None:
        _count_down(self.counts[CHANNELS], user)

    # --- other nodes --------------------------------------------------------------------------------

    def limited(self, vhosts: Iterable[VirtualHost], users: Iterable[User]) -> dict[str, dict[str, int]]:
        """Return the counts that have a limit, for other nodes."""
        users = list(users)
        limits = {
            VHOSTS: {vhost.name: vhost.facts.limits.max_connections for vhost in vhosts},
            USERS: {user.name: user.limits.max_connections for user in users},
            CHANNELS: {user.name: user.limits.max_channels for user in users},
        }
        return {
            kind: {
                name: count
                for name, limit in each.items()
                if limit is not None and (count := self.counts[kind][name])
            }
            for kind, each in limits.items()
        }

    def update_from(self, node: int, told: Mapping[str, Any]) -> None:
        """Replace the counts of another node by its `limited`; empty if the node is lost."""
        counts = {
            kind: Counter({str(name): int(count) for name, count in dict(each).items()})
            for kind, each in told.items()
        }
        if any(counts.values()):
            self._elsewhere[node] = counts
        else:
            self._elsewhere.pop(node, None)

    def _is_reached(self, limit: int | None, kind: str, name: str) -> bool:
        if limit is None:
            return False
        others = sum(counts[kind][name] for counts in self._elsewhere.values() if kind in counts)
        return self.counts[kind][name] + others >= limit


def _count_down(counter: Counter[T], name: T) -> None:
    assert counter[name] > 0, f"{name!r} was never counted"
    counter[name] -= 1
    if counter[name] == 0:
        # Names come from clients and administrators: a removed name must not take memory.
        del counter[name]


VHOST: Final = "/"
"""The virtual host of a new broker, and of clients that do not name one."""


class CatalogRequest(Protocol[T_co]):
    """A request to change the catalog: a value, as in `queue_requests`."""

    def plan(self, catalog: Catalog) -> Plan[T_co]:
        """Check the rules and return the plan; nothing is changed. Raises `RefusedError`."""


class Catalog:
    """Virtual hosts and users.

    Attributes:
        parameters: runtime parameters of plugins by (virtual host, component, name).
        unknown: other parts of an imported definitions file, for the next export.
        cluster, placement, node_directory, decide: None without a cluster.
        placement: chooses nodes for new queues.
        node_directory: leaders of queues and running nodes.
        decide: submits a request without waiting for its answer.
        on_members: called when a queue has other members; these functions must not raise.
        on_nodes: called when nodes or the cluster change.
        on_sizes: called when queues may need other numbers of members: one is new, or a policy changes.
        on_left: called with the key of a removed user or virtual host.
        queues_created, queues_deleted: counts since the start, including the queues that existed at the
            start.
        choose: the random source of routing and of the ids of streams; None takes turns.
        default_queue_type: that of queues declared without one in a virtual host without a default.
    """

    def __init__(
        self,
        start_queue: StartQueue = IdleQueue,
        *,
        default_queue_type: str = QueueType.CLASSIC,
        relaxed_quorum_checks: bool = False,
        rules: Rules = UNSET,
        choose: Choose | None = None,
    ) -> None:
        """Create a catalog with the virtual host ``/`` and no users."""
        self.vhosts: dict[str, VirtualHost] = {}
        self.changes = Changes()
        self.users = Users()
        self.usage = Usage()
        self.parameters: dict[tuple[str, str, str], Any] = {}
        self.global_parameters: dict[str, Any] = {}
        self.unknown: dict[str, Any] = {}
        self.highest_number = 0
        self.queues_created = 0
        self.queues_deleted = 0
        self.nodes: dict[str, NodeFacts] = {}
        self.highest_node = 0
        self.cluster: ClusterFacts | None = None
        self.placement: Placement | None = None
        self.node_directory: NodeDirectory | None = None
        self.on_members: Callable[[DeclaredQueue], None] = lambda queue: None
        self.on_nodes: Callable[[], None] = lambda: None
        self.decide: Callable[[CatalogRequest[Any]], None] | None = None
        self.on_sizes: Callable[[], None] = lambda: None
        self.on_left: Callable[[Key], None] = lambda key: None
        self.relaxed_quorum_checks = relaxed_quorum_checks
        self.rules = rules
        self._start_queue = start_queue
        # Those dropped by queues of virtual hosts that were deleted.
        self._given_up: Counter[tuple[str, str, str]] = Counter()
        self.default_queue_type = queue_type_of(default_queue_type, "the broker")
        self.choose = choose
        self.apply([Put(("vhost", VHOST), VhostFacts(VHOST, "Default virtual host"))])

    def __iter__(self) -> Iterator[DeclaredQueue]:
        for vhost in list(self.vhosts.values()):
            yield from list(vhost)

    def node_of(self, number: int) -> NodeFacts | None:
        """Return the node of this number; None if it is not in the cluster any more."""
        return next((node for node in self.nodes.values() if node.number == number), None)

    def node_name(self, number: int) -> str:
        node = self.node_of(number)
        return f"number {number}" if node is None else node.name

    def leader_of(self, queue: DeclaredQueue) -> NodeFacts | None:
        """Return the node that leads a queue, or has it; None if it is unknown."""
        leader = queue.home or None
        if queue.members and self.node_directory is not None:
            leader = self.node_directory.leader(queue)
        return None if leader is None else self.node_of(leader)

    def runs(self, node: int) -> bool:
        return self.node_directory is not None and self.node_directory.runs(node)

    def cluster_name(self, alone: str) -> str:
        """Return the name of the cluster; `alone` if this node is not in one and has no name for it."""
        if self.cluster is not None:
            return self.cluster.name
        given = self.global_parameters.get(CLUSTER_NAME)
        return given if isinstance(given, str) and given else alone

    @property
    def alone(self) -> bool:
        return self.cluster is None or len(self.nodes) == 1

    def given_up(self) -> Counter[tuple[str, str, str]]:
        """Messages that queues dropped here, by kind, reason and strategy (`queue_status.given_up`)."""
        total = self._given_up.copy()
        for vhost in self.vhosts.values():
            total.update(vhost.given_up())
        return total

    def lookup_vhost(self, name: str) -> VirtualHost:
        vhost = self.vhosts.get(name)
        if vhost is None:
            raise NotFound(f"vhost '{name}'", f"vhost {name} not found")
        return vhost

    # --- changing ---------------------------------------------------------------------------------

    def propose(self, request: CatalogRequest[T]) -> T:
        """Plan a request, store its durable part, and apply the plan. Raises `RefusedError` if it breaks a
        rule, or cannot be stored.
        """
        plan = request.plan(self)
        puts = plan.puts
        if puts:
            self.changes.keep(puts)
        try:
            self.apply(puts, plan.forgets, send_delete=plan.send_delete, used=plan.used)
        except BaseException:
            # This is an internal error, or one of the caller that runs queues. Objects that have begun stay,
            # on the disk too: they may have existed before, and others need them. The rest must not exist at
            # the next start.
            self.changes.forget([put.key for put in puts if not self._is_there(put.key)])
            raise
        self.changes.forget(plan.forgets)
        return plan.answer

    def submit_request(self, request: CatalogRequest[Any]) -> None:
        """Request a decision, here or by the nodes of the cluster, without waiting for the answer."""
        if self.decide is None:
            self.propose(request)
        else:
            self.decide(request)

    def apply(
        self,
        puts: Sequence[Put] = (),
        forgets: Sequence[Key] = (),
        *,
        send_delete: bool = True,
        used: Key | None = None,
    ) -> None:
        """Apply a plan: rules are not checked, and queues start and end."""
        for put in puts:
            self._put(put.key, put.record)
        for key in forgets:
            self._drop(key, send_delete)
        if used is not None:
            self.vhosts[used[1]].queues[used[2]].handle.post(TOUCH)

    def _put(self, key: Key, record: Record) -> None:
        match key[0]:
            case "queue":
                # The number comes first: after a fault of the queue's start another queue could get it.
                self.highest_number = max(self.highest_number, record.number)
                if self.vhosts[key[1]].put_queue(record):
                    self.queues_created += 1
                    self.on_sizes()
                else:
                    self.on_members(self.vhosts[key[1]].queues[key[2]])
            case "binding":
                self.vhosts[key[1]].topology.put_binding(record)
            case "exchange":
                self.vhosts[key[1]].topology.put_exchange(record)
            case "user" | "permission" | "topic_permission":
                self.users.put_entry(key, record)
            case "policy" | "operator_policy":
                self.vhosts[key[1]].policies.put_policy(record)
                self.on_sizes()
            case "vhost":
                self._put_vhost(record)
            case "parameter":
                self.parameters[key[1], key[2], key[3]] = record
            case "global_parameter":
                self.global_parameters[key[1]] = record
            case "unknown":
                self.unknown[key[1]] = record
            case "queue_numbers":
                self.highest_number = max(self.highest_number, record)
            case "node":
                self.nodes[key[1]] = record
                self.on_nodes()
            case "node_numbers":
                self.highest_node = max(self.highest_node, record)
            case "cluster":
                self.cluster = record
                self.on_nodes()
            case kind:
                raise AssertionError(f"no entry is of kind {kind!r}")

    def _is_there(self, key: Key) -> bool:
        # Return whether the entry exists, after the fault of a queue; entries before queues do.
        match key[0]:
            case "queue":
                return key[2] in self.vhosts[key[1]].queues
            case "binding":
                _, vhost, *names = key
                return self.vhosts[vhost].topology.all_bindings.identified(*names) is not None
            case _:
                return True

    def _put_vhost(self, facts: VhostFacts) -> None:
        vhost = self.vhosts.get(facts.name)
        if vhost is None:
            self.vhosts[facts.name] = VirtualHost(
                facts,
                self._start_queue,
                node_queue_type=self.default_queue_type,
                choose=self.choose,
                find_reply_queue=self._find_reply_queue,
            )
        else:
            vhost.facts = facts

    def _find_reply_queue(self, vhost: VirtualHost, name: str) -> DeclaredQueue | None:
        return None if self.node_directory is None else self.node_directory.reply_queue(vhost, name)

    def _drop(self, key: Key, send_delete: bool) -> None:
        match key[0]:
            case "queue":
                self.vhosts[key[1]].drop_queue(key[2], send_delete=send_delete)
                self.queues_deleted += 1
            case "binding":
                _, vhost, *names = key
                topology = self.vhosts[vhost].topology
                binding = topology.all_bindings.identified(*names)
                assert binding is not None, f"there is no binding {names}"
                topology.drop_binding(binding)
            case "exchange":
                self.vhosts[key[1]].topology.drop_exchange(key[2])
            case "permission" | "topic_permission":
                self.users.drop_entry(key)
            case "user":
                self.users.drop_entry(key)
                self.on_left(key)
            case "policy" | "operator_policy":
                self.vhosts[key[1]].policies.drop_policy(key[2], operator=key[0] == "operator_policy")
            case "vhost":
                gone = self.vhosts.pop(key[1])
                gone.deleted = True
                self._given_up.update(gone.given_up())
                self.on_left(key)
            case "parameter":
                del self.parameters[key[1], key[2], key[3]]
            case "global_parameter":
                del self.global_parameters[key[1]]
            case "node":
                del self.nodes[key[1]]
                self.on_nodes()
            case kind:
                raise AssertionError(f"nothing forgets an entry of kind {kind!r}")


# --- all entries ----------------------------------------------------------------------------------


def entries(catalog: Catalog, *, bindings: bool = True) -> list[Put]:
    """Return all entries, in an order in which they can be applied to a new catalog."""
    users = catalog.users
    found = [
        *(Put(("vhost", name), vhost.facts) for name, vhost in catalog.vhosts.items()),
        *(Put(("user", user.name), user) for user in users),
        *(Put(("permission", *key), each) for key, each in users.granted.items()),
        *(Put(("topic_permission", *key), each) for key, each in users.granted_topics.items()),
        *(Put(("parameter", *name), value) for name, value in catalog.parameters.items()),
        *(Put(("global_parameter", name), value) for name, value in catalog.global_parameters.items()),
        *(Put(("unknown", name), value) for name, value in catalog.unknown.items()),
    ]
    for vhost in catalog.vhosts.values():
        found += entries_in(vhost, bindings=bindings)
    found.append(Put(NUMBERS, catalog.highest_number))
    if catalog.cluster is not None:
        found += [
            Put(CLUSTER, catalog.cluster),
            Put(NODE_NUMBERS, catalog.highest_node),
            *(Put(("node", name), node) for name, node in catalog.nodes.items()),
        ]
    return found


def entries_in(vhost: VirtualHost, *, bindings: bool = True) -> list[Put]:
    """Return the entries of a virtual host, without its own record, permissions and parameters."""
    where = vhost.name
    return [
        *(
            Put(("operator_policy" if policy.operator else "policy", where, policy.name), policy)
            for policy in vhost.policies
        ),
        *(
            Put(("exchange", where, exchange.name), exchange.spec, exchange.durable)
            for exchange in vhost.topology
            if exchange.name and not exchange.name.startswith(RESERVED_PREFIX)
        ),
        *(Put(("queue", where, queue.name), queue.spec, queue.lasting) for queue in vhost),
        *(
            Put(binding_key(where, binding), binding, vhost.is_kept(binding))
            for binding in (vhost.topology.bindings() if bindings else ())
        ),
    ]


class NodeDirectory(NamedTuple):
    """The state of other nodes, by their numbers.

    Attributes:
        leader: that of a queue with members; None: unknown.
        last_leader: the last known one; None: there was none.
        runs: whether a node can be reached; this one can.
        reply_queue: a queue of direct reply-to of another node with an announcement that may be pending.
    """

    leader: Callable[[DeclaredQueue], int | None]
    last_leader: Callable[[DeclaredQueue], int | None]
    runs: Callable[[int], bool]
    reply_queue: Callable[[VirtualHost, str], DeclaredQueue | None]


Value = Any
"""An entry's record, as JSON represents it."""

NUMBERS_RESERVED: Final = 1024
"""The numbers reserved at one time, because the journal waits meanwhile."""


class Changes:
    """Stores the durable changes of the catalog as entries, plan by plan. Without a recorder it stores
    nothing.

    A plan is stored before it takes effect, so that a failed write refuses it without effect. Deletions are
    stored afterwards, because they must be possible when the disk is full.
    """

    __slots__ = ("conceal", "highest_reserved", "recorder")

    def __init__(self) -> None:
        self.highest_reserved = 0
        self.recorder: CatalogLog | None = None
        self.conceal: Conceal = lambda record: record

    def keep(self, puts: Sequence[Put]) -> None:
        """Store the durable entries of a plan, all or none. After `RefusedError` it must not be applied."""
        if self.recorder is None:
            return
        kept = [(put.key, encoded(put.key, put.record, self.conceal)) for put in puts if put.kept]
        if kept:
            self._reserve(puts)
            self.recorder.put(kept)

    def forget(self, keys: Sequence[Key]) -> None:
        if self.recorder is not None and keys:
            self.recorder.forget(keys)

    def _reserve(self, puts: Sequence[Put]) -> None:
        highest = max((put.record.number for put in puts if put.key[0] == "queue"), default=0)
        if highest > self.highest_reserved:
            assert self.recorder is not None
            reserved = min(highest - 1 + NUMBERS_RESERVED, QUEUE_NUMBER_MAX)
            self.recorder.put_ahead([_highest(reserved)])
            self.highest_reserved = reserved

    def give_numbers_back(self, highest_given: int) -> None:
        """Return unused reserved numbers, at the end of the process."""
        if self.recorder is not None and self.highest_reserved > highest_given:
            self.recorder.put([_highest(highest_given)])
            self.highest_reserved = highest_given


def _highest(number: int) -> tuple[Key, Value]:
    return NUMBERS, encoded(NUMBERS, number)


Propose: TypeAlias = "Callable[[CatalogRequest[Any], RequestRef], Any]"
"""Submits a request: returns its answer, or `LATER`."""


def at_once(catalog: Catalog) -> Propose:
    """Decide requests by one catalog, without other nodes."""
    return lambda request, ref: catalog.propose(request)


def all_entries(catalog: Catalog, conceal: Conceal) -> list[tuple[Key, Any]]:
    """Return everything that must survive the process, as JSON."""
    reserved = Put(NUMBERS, max(catalog.highest_number, catalog.changes.highest_reserved))
    kept = [*(put for put in entries(catalog) if put.kept and put.key != NUMBERS), reserved]
    return [(put.key, encoded(put.key, put.record, conceal)) for put in kept]


def restore(catalog: Catalog, kept: Iterable[tuple[Key, Any]]) -> dict[str, int]:
    """Declare the entries of a data folder, in any order of kinds, and return their number by kind. Raises
    `ConfigError` if one cannot be read: the broker must not start, because dependent data would be lost.
    """
    by_kind: dict[str, list[tuple[Key, Any]]] = {kind: [] for kind in KINDS}
    for key, value in kept:
        if key[0] not in by_kind:
            raise _unreadable(key, "this version has no entries of this kind")
        by_kind[key[0]].append((key, value))
    if ("vhost", VHOST) not in {key for key, _ in by_kind["vhost"]}:
        # An administrator has deleted it.
        catalog.apply(forgets=[("vhost", VHOST)])
    counts: Counter[str] = Counter()
    for kind, found in by_kind.items():
        for key, value in found:
            try:
                record = decoded(key, value)
                _check_there(catalog, key, record)
                catalog.apply([Put(key, record)])
            except RefusedError as error:
                raise _unreadable(key, error.description) from error
            except ConfigError as error:
                raise _unreadable(key, str(error)) from error
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise _unreadable(key, f"{type(error).__name__}: {error}") from error
        if found:
            counts[kind] = len(found)
    catalog.changes.highest_reserved = catalog.highest_number
    return dict(counts)


def _check_there(catalog: Catalog, key: Key, record: Record) -> None:
    match key[0]:
        case "vhost":
            if record.default_queue_type is not None:
                queue_type_of(record.default_queue_type, f"vhost '{record.name}'")
        case "queue":
            catalog.lookup_vhost(key[1])
            queue_type_of(record.type, f"queue '{record.name}' in vhost '{record.vhost}'")
        case "permission" | "topic_permission":
            catalog.users.lookup(key[1])
            catalog.lookup_vhost(key[2])
        case "policy" | "operator_policy" | "exchange":
            catalog.lookup_vhost(key[1])
        case "binding":
            topology = catalog.lookup_vhost(key[1]).topology
            topology.lookup_exchange(record.source)
            destination = record.destination
            if destination.kind == "exchange":
                topology.lookup_exchange(destination.name)
            else:
                catalog.lookup_vhost(key[1]).lookup(destination.name)
        case _:
            return  # it needs nothing that could be missing


def _unreadable(key: Key, problem: str) -> ConfigError:
    return ConfigError(
        f"data folder: {key[0]} {' '.join(map(repr, key[1:]))}",
        f"cannot be restored: {problem}",
        "nothing was changed: start the version that wrote it, with all packages that it had",
    )
