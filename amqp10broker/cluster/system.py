"""The system group at one node: agreement on metadata, applied to the node's catalog.

A request is planned on the node's own copy of the catalog, and answered at once if it changes nothing.
Otherwise the transaction is proposed, and decided when this node applies it. Until then it is sent again, to
a new leader or after a second, because a message may be lost. Duplicates in the log and another order are
harmless: a stale transaction is planned again (`TransactionOutcome.STALE`).

The member must not be called from its own callbacks, so `tick` does that at the time of `deadline`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from amqp10broker.cluster.transactions import (
    CatalogTransaction,
    LastTransaction,
    Origin,
    SystemStore,
    TransactionOutcome,
    transaction_of,
)
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import RefusedError, Unavailable
from amqp10broker.metadata.catalog import Catalog, CatalogRequest, Value
from amqp10broker.metadata.entry_codec import KINDS, Conceal, decoded
from amqp10broker.metadata.plan import LATER, NUMBERS, Decided, Key, Plan, Put
from amqp10broker.metadata.queue import NodeFacts, Owner, QueueHandle, QueueSpec
from amqp10broker.metadata.queue_arguments import QueueType
from amqp10broker.metadata.queue_requests import (
    Bind,
    ConnectionEnded,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    QueueEnded,
    Unbind,
)
from amqp10broker.metadata.vhost_requests import NodeLost, NodeStarted
from amqp10broker.queues import machine_version
from amqp10broker.queues.commands import DELETE, PeerId, RequestRef
from amqp10broker.raft import messages
from amqp10broker.raft.groups import Member
from amqp10broker.raft.ids import member_id, node_of

DECIDED_WITHIN_MS: Final = 30_000
"""The time limit of a client's request (T1); the default of the setting `cluster_decide_ms`."""
AGAIN_AFTER_MS: Final = 1_000
"""The time after which a proposal without an outcome is sent again."""
RETRY_AFTER_MS: Final = 200
"""The time after which a proposal that could not be sent is sent again."""


@dataclass(slots=True, eq=False)
class PendingProposal:
    """A request that is not decided.

    Attributes:
        ref: receives the outcome; None: the request is repeated until it is decided.
        due_ms: when it is refused; None: never.
        sent_ms: when it was last sent; None: not to the present leader.
    """

    request: CatalogRequest[Any]
    ref: RequestRef | None
    due_ms: int | None
    plan: Plan[Any]
    data: bytes
    sent_ms: int | None = None


def timed_out(request: CatalogRequest[Any], plan: Plan[Any]) -> Unavailable:
    """Return the refusal of a request that was not decided in time; it may still be carried out (M6)."""
    match request:
        case DeclareQueue():
            name = plan.answer.name
            resource = f"queue '{name}' in vhost '{request.vhost}'"
            if any(put.key[0] == "queue" and put.record.type != QueueType.CLASSIC for put in plan.puts):
                text = f"Could not declare {resource} because the metadata store operation timed out"
            else:
                text = f"failed to declare {resource}, because the operation timed out"
            return Unavailable(f"queue '{name}'", text)
        case DeclareExchange():
            resource = f"exchange '{request.exchange.name}'"
            where = f"{resource} in vhost '{request.vhost}'"
            return Unavailable(resource, f"failed to declare {where}, because the operation timed out")
        case DeleteQueue() | DeleteExchange():
            resource = f"{'queue' if isinstance(request, DeleteQueue) else 'exchange'} '{request.name}'"
            where = f"{resource} in vhost '{request.vhost}'"
            return Unavailable(resource, f"failed to delete {where} due to a timeout")
        case Bind():
            return Unavailable("binding", "Could not add binding due to timeout")
        case Unbind():
            return Unavailable("binding", "Could not remove binding due to timeout")
        case _:
            return Unavailable(
                "cluster",
                "the operation timed out: no majority of the cluster's nodes can be reached; it may still be "
                "carried out when there is one; to repeat it does no harm",
            )


LEADER_WITHIN_MS: Final = 5_000
"""A quorum queue without a leader after this time is not declared, if most of its nodes are suspected (T3,
Q4). Otherwise they are busy, and have the time of any request.
"""
LOST_AFTER_MS: Final = 1_500
"""How long a node must be suspected before its transient queues end: it may be slow, or only cut off."""
FAREWELL_AFTER_MS: Final = 10_000
"""The time after which a removed queue gets its `Delete` if the caller has not sent it."""
OF_A_LINK: Final = "amq.dyn"
"""The prefix of the names of queues that are made for one link of AMQP 1.0."""
READ_BYTES: Final = 1024 * 1024


class System:
    """The system group at one node; a `raft.groups.GroupMachine`."""

    member: Member

    def __init__(
        self,
        node: int,
        incarnation: int,
        store: SystemStore,
        catalog: Catalog,
        conceal: Conceal,
        *,
        send: Callable[[int, bytes], bool],
        tell: Callable[[Decided], None],
        now_ms: Callable[[], int],
    ) -> None:
        """Create the machine. `send`: sends a transaction to a node; returns False if it cannot. `now_ms`: a
        clock that never runs back.
        """
        self.decided_within_ms = DECIDED_WITHIN_MS
        self.has_leader: Callable[[int], bool] = lambda number: True
        self.is_open: Callable[[Owner], bool] = lambda owner: True
        self.is_asking: Callable[[PeerId], bool] = lambda peer: True
        self.on_snapshot_wanted: Callable[[int], None] = lambda to: None
        self.on_deadline: Callable[[], None] = lambda: None
        self._node = node
        self._incarnation = incarnation
        self._store = store
        self._machine = store.machine
        self._catalog = catalog
        self._send = send
        self._now_ms = now_ms
        self._told_deadline: int | None = None
        self._inside = False
        self._committed = 0
        self._starting: tuple[NodeStarted, Callable[[], None]] | None = None
        self._said = False
        self._at_once = False
        self._without_leader: dict[int, tuple[PendingProposal, int]] = {}
        self._farewells: deque[tuple[int, QueueHandle]] = deque()
        self._down: dict[int, int] = {}
        self._conceal = conceal
        self._tell = tell
        self._serial = 0
        self._pending: dict[int, PendingProposal] = {}
        self._lost: list[PendingProposal] = []
        self._retry_ms: int | None = None

    @property
    def applied(self) -> int:
        return self._store.applied

    @property
    def version(self) -> int:
        """The version of the machines that the cluster uses, as far as entries are applied; 0: unknown."""
        cluster = self._catalog.cluster
        return 0 if cluster is None else cluster.version

    @property
    def newer(self) -> int:
        return self.version if self.version > machine_version.NEWEST else 0

    # --- who wants something ------------------------------------------------------------------------

    def propose(self, request: CatalogRequest[Any], ref: RequestRef) -> Any:
        """Propose a request (`metadata.catalog.Propose`). Without a majority it is refused after
        `decided_within_ms`.
        """
        answer = self._ask(request, ref, self._now_ms() + self.decided_within_ms)
        if answer is LATER:
            if self._inside:
                self._soon()
            else:
                self._send_pending()
                self._due_by(self._now_ms() + RETRY_AFTER_MS)
        return answer

    def see_to(self, request: CatalogRequest[Any]) -> None:
        """Repeat a request without a receiver until it is decided."""
        if self._ask(request, None, None) is LATER:
            self._soon()

    def start(self, started: NodeStarted, done: Callable[[], None]) -> None:
        """Announce this node's start when its membership is known. `done`: called when that, and so every
        earlier decision, is applied here.
        """
        self._starting = started, done
        self._say_started()

    def _say_started(self) -> None:
        if self._starting is None or self._said:
            return
        started = self._starting[0]
        # A node that does not support the cluster's version is about to end.
        if started.name in self._catalog.nodes and started.fits(self._catalog):
            self._said = True
            self.see_to(started)

    def _ask(self, request: CatalogRequest[Any], ref: RequestRef | None, due_ms: int | None) -> Any:
        """Return the answer of a plan that changes nothing; else propose it and return `LATER`. Raises
        `RefusedError`.
        """
        plan = request.plan(self._catalog)
        if not plan.puts and not plan.forgets:
            self._catalog.apply(used=plan.used)
            return plan.answer
        self._propose_plan(request, ref, due_ms, plan)
        return LATER

    def _propose_plan(
        self, request: CatalogRequest[Any], ref: RequestRef | None, due_ms: int | None, plan: Plan[Any]
    ) -> None:
        origin = Origin(self._node, self._incarnation, self._serial + 1)
        settled = next(iter(self._pending), origin.serial)
        transaction = transaction_of(
            origin, plan, self._catalog, self._machine.revision, self._conceal, settled
        )
        self._serial = origin.serial
        self._pending[origin.serial] = PendingProposal(request, ref, due_ms, plan, transaction.encode())

    # --- outcomes -----------------------------------------------------------------------------------

    def _decided(self, serial: int, outcome: TransactionOutcome) -> PendingProposal | None:
        """Note that a transaction of this start is in the log. Returns its request if it is applied."""
        while self._pending and (first := next(iter(self._pending))) < serial:
            self._lost.append(self._pending.pop(first))
        pending = self._pending.pop(serial, None)
        if pending is None or outcome is TransactionOutcome.APPLIED:
            return pending
        self._lost.append(pending)
        return None

    def _told_by_state(self, last: LastTransaction) -> list[PendingProposal]:
        """Return the requests that a snapshot lists as applied."""
        applied: list[PendingProposal] = []
        while self._pending and (first := next(iter(self._pending))) <= last.serial:
            pending = self._pending.pop(first)
            was_applied = any(begin <= first <= end for begin, end in last.stretches)
            (applied if was_applied else self._lost).append(pending)
        return applied

    def _refuse(self, refusal: RefusedError) -> None:
        pendings = [*self._pending.values(), *self._lost]
        self._pending.clear()
        self._lost.clear()
        for pending in pendings:
            self._answer(pending, refusal=refusal)

    def _plan_again(self) -> None:
        """Plan the requests that were not applied again, on the present copy."""
        lost, self._lost = self._lost, []
        for pending in lost:
            try:
                answer = self._ask(pending.request, pending.ref, pending.due_ms)
            except RefusedError as refusal:
                self._answer(pending, refusal=refusal)
            else:
                if answer is not LATER:
                    self._answer(pending, answer)

    def _answer(
        self, pending: PendingProposal, answer: Any = None, refusal: RefusedError | None = None
    ) -> None:
        if pending.ref is not None:
            self._tell(Decided(pending.ref, answer, refusal))

    # --- the way to the leader ----------------------------------------------------------------------

    def _unsent(self) -> None:
        # Another leader, or the same one after a restart, does not have the pending proposals.
        for pending in self._pending.values():
            pending.sent_ms = None

    def _send_pending(self) -> None:
        waiting = [pending for pending in self._pending.values() if pending.sent_ms is None]
        self._retry_ms = None
        if not waiting:
            return
        now_ms = self._now_ms()
        if self._to_leader([pending.data for pending in waiting]):
            for pending in waiting:
                pending.sent_ms = now_ms
        else:
            self._retry_ms = now_ms + RETRY_AFTER_MS

    def _to_leader(self, transactions: Sequence[bytes]) -> bool:
        if self.member.leads:
            return self._propose(transactions)
        leader = self.member.leader_node
        if leader is None or leader == self._node:
            return False
        return all(self._send(leader, data) for data in transactions)

    def _propose(self, transactions: Sequence[bytes]) -> bool:
        try:
            self.member.raft.propose(transactions)
        except (messages.NotLeader, messages.NotReady, messages.Full):
            return False
        self.member.advance()
        return True

    def proposed(self, node: int, transactions: Iterable[bytes]) -> None:
        """Propose transactions of another node. If this node does not lead, or is full, they come again.
        Raises `ValueError` if one is not a transaction of that node.
        """
        checked = list(transactions)
        for data in checked:
            if CatalogTransaction.decode(data).origin.node != node:
                raise ValueError(f"a transaction that is not of node {node}")
        if self.member.leads:
            self._propose(checked)

    # --- from the member ----------------------------------------------------------------------------

    def committed(self, index: int) -> None:
        self._inside = True
        self._committed = index
        try:
            self._take_over(index)
        finally:
            self._inside = False

    def _take_over(self, index: int) -> None:
        store = self._store
        if store.received is not None:
            self._take_state()
        if index > store.applied:
            at = store.applied + 1
            while at <= index:
                for run in store.read(at, index, READ_BYTES):
                    if run.kind is messages.Kind.COMMAND:
                        for place, payload in enumerate(run.payloads, run.first):
                            self._apply(place, payload)
                    at = run.last + 1
            store.keep(index)
        self._plan_again()
        self._say_started()
        self._soon()

    def status(self, status: messages.Status) -> None:
        self._unsent()
        self._soon()

    def snapshot_for(self, to: int) -> None:
        self.on_snapshot_wanted(to)

    def snapshot(self) -> messages.Snapshot:
        return messages.Snapshot(self.member.raft.point(self._store.applied), self._machine.snapshot())

    # --- applying -----------------------------------------------------------------------------------

    def _apply(self, index: int, payload: bytes) -> None:
        transaction = CatalogTransaction.decode(payload)
        decision = self._machine.apply(index, transaction)
        if decision.outcome is TransactionOutcome.APPLIED:
            self._change(decision.puts, transaction)
        origin = transaction.origin
        if (origin.node, origin.incarnation) != (self._node, self._incarnation):
            return
        if self._machine.last_of(self._node) is None:
            self._refuse(
                Unavailable("cluster", "the cluster has forgotten this node: let it join again as a new one")
            )
            return
        pending = self._decided(origin.serial, decision.outcome)
        if decision.outcome is not TransactionOutcome.APPLIED:
            return
        if pending is not None:
            self._carried_out(pending, decision.puts)
        self._end_orphans(decision.puts)
        self._end_unwanted(pending, decision.puts)

    def _carried_out(self, pending: PendingProposal, puts: Sequence[tuple[Key, Value]]) -> None:
        if self._starting is not None and pending.request is self._starting[0]:
            (_, done), self._starting = self._starting, None
            done()
        number = _new_group(puts)
        if pending.ref is not None and number and not self.has_leader(number):
            self._without_leader[number] = pending, self._now_ms()
        else:
            self._answer(pending, pending.plan.answer)

    def _change(self, puts: Sequence[tuple[Key, Value]], transaction: CatalogTransaction) -> None:
        if not transaction.farewell:
            due_ms = self._now_ms() + FAREWELL_AFTER_MS
            for key in transaction.forgets:
                if key[0] == "queue":
                    self._farewells.append((due_ms, self._catalog.vhosts[key[1]].queues[key[2]].handle))
        self._catalog.apply(
            [Put(key, decoded(key, value)) for key, value in puts],
            transaction.forgets,
            farewell=transaction.farewell,
        )

    def _end_orphans(self, puts: Sequence[tuple[Key, Value]]) -> None:
        for key, value in puts:
            if key[0] == "queue" and "owner" in value:
                owner = Owner(*value["owner"])
                if not self.is_open(owner):
                    self.see_to(ConnectionEnded(key[1], owner))

    def _end_unwanted(self, pending: PendingProposal | None, puts: Sequence[tuple[Key, Value]]) -> None:
        wanted = pending is not None and (pending.ref is None or self.is_asking(pending.ref.reply_to))
        for key, value in puts:
            if key[0] == "queue" and "owner" in value and key[2].startswith(OF_A_LINK) and not wanted:
                self.see_to(DeleteQueue(key[1], key[2]))

    # --- a state instead of entries -------------------------------------------------------------------

    def _take_state(self) -> None:
        before = {key: (self._machine.revision(key), value) for key, value in self._machine.entries()}
        self._store.take()
        after = {key: (self._machine.revision(key), value) for key, value in self._machine.entries()}
        gone = _gone(before, after)
        self._catalog.apply(forgets=sorted(gone, key=lambda key: -_ORDER[key[0]]))
        new = [key for key, entry in after.items() if key in gone or before.get(key) != entry]
        new.sort(key=lambda key: (_ORDER[key[0]], after[key][0]))
        self._catalog.apply([Put(key, decoded(key, after[key][1])) for key in new])
        last = self._machine.last_of(self._node)
        if last is not None and last.incarnation == self._incarnation:
            for pending in self._told_by_state(last):
                keys = [put.key for put in pending.plan.puts if put.key in after]
                puts = [(key, after[key][1]) for key in keys]
                self._carried_out(pending, puts)
                self._end_orphans(puts)

    # --- quorum queues that begin -----------------------------------------------------------------------

    def leader_is(self, number: int) -> None:
        waiting = self._without_leader.pop(number, None)
        if waiting is not None:
            pending, _ = waiting
            self._answer(pending, pending.plan.answer)

    def _leader_due_ms(self, pending: PendingProposal, since_ms: int) -> int:
        members = _declared(pending).members
        there = sum(node_of(member) not in self._down for member in members)
        return since_ms + (self.decided_within_ms if 2 * there > len(members) else LEADER_WITHIN_MS)

    def _give_up(self, number: int, pending: PendingProposal, since_ms: int) -> None:
        # A queue without a leader in time must leave nothing behind.
        spec = _declared(pending)
        node, leader = (
            "?" if found is None else found.name
            for found in map(self._catalog.node_of, (self._node, node_of(spec.members[0])))
        )
        waited_s = (self._now_ms() - since_ms) // 1000
        silent = [self._catalog.node_of(each) for each in map(node_of, spec.members) if each in self._down]
        names = ", ".join(f"'{each.name}'" for each in silent if each is not None)
        to_do = (
            f"start more of its nodes: {names} cannot be reached"
            if names
            else "its nodes are busy: try again"
        )
        refusal = Unavailable(
            f"queue '{spec.name}'",
            f"Cannot declare quorum queue '{spec.name}' in vhost '{spec.vhost}' on node '{node}' with leader "
            f"on node '{leader}': no leader was elected within {waited_s} s; {to_do}",
        )
        self._answer(pending, refusal=refusal)
        self.see_to(QueueEnded(spec.vhost, spec.name, number, farewell=True))

    # --- nodes ------------------------------------------------------------------------------------------

    def node_down(self, node: int) -> None:
        self._due_by(self._down.setdefault(node, self._now_ms() + LOST_AFTER_MS))

    def node_up(self, node: int) -> None:
        self._down.pop(node, None)

    def _end_lost(self, now_ms: int) -> None:
        for number, lost_ms in self._down.items():
            if lost_ms <= now_ms:
                self._down[number] = now_ms + LOST_AFTER_MS  # it may remain undecided
                node = self._catalog.node_of(number)
                if node is not None:
                    self.see_to(NodeLost(number, node.incarnation))

    # --- time -------------------------------------------------------------------------------------------

    def tick(self) -> None:
        self._at_once = False
        now_ms = self._now_ms()
        for number, (pending, since_ms) in list(self._without_leader.items()):
            if self._leader_due_ms(pending, since_ms) <= now_ms:
                del self._without_leader[number]
                self._give_up(number, pending, since_ms)
        while self._farewells and self._farewells[0][0] <= now_ms:
            self._farewells.popleft()[1].post(DELETE)
        if self.member.leads:
            self._end_lost(now_ms)
        to_compact = self._store.to_compact
        if to_compact is not None and to_compact <= self._committed:
            self._store.compact(self.member.raft.point(to_compact))
        for serial, waiting in list(self._pending.items()):
            if waiting.due_ms is not None and waiting.due_ms <= now_ms:
                del self._pending[serial]
                self._answer(waiting, refusal=timed_out(waiting.request, waiting.plan))
            elif waiting.sent_ms is not None and waiting.sent_ms + AGAIN_AFTER_MS <= now_ms:
                waiting.sent_ms = None
        self._send_pending()
        self._told_deadline = self.deadline

    @property
    def deadline(self) -> int | None:
        """The time at which `tick` is due, in ms; None: never."""
        if self._at_once:
            return 0
        times = [self._leader_due_ms(*waiting) for waiting in self._without_leader.values()]
        if self._farewells:
            times.append(self._farewells[0][0])
        if self.member.leads:
            times += self._down.values()
        if self._retry_ms is not None:
            times.append(self._retry_ms)
        for pending in self._pending.values():
            if pending.due_ms is not None:
                times.append(pending.due_ms)
            if pending.sent_ms is not None:
                times.append(pending.sent_ms + AGAIN_AFTER_MS)
        return min(times, default=None)

    def _soon(self) -> None:
        if not self._at_once:
            self._at_once = True
            self.on_deadline()

    def _due_by(self, time_ms: int) -> None:
        if self._told_deadline is None or time_ms < self._told_deadline:
            self._told_deadline = time_ms
            self.on_deadline()


_ORDER: Final = {kind: place for place, kind in enumerate(KINDS)}


def _declared(pending: PendingProposal) -> QueueSpec:
    (spec,) = [put.record for put in pending.plan.puts if put.key[0] == "queue"]
    assert isinstance(spec, QueueSpec)
    return spec


def _new_group(puts: Sequence[tuple[Key, Value]]) -> int | None:
    declared = [(key, value) for key, value in puts if key != NUMBERS]
    if len(declared) != 1 or len(puts) != 2:
        return None
    ((key, value),) = declared
    return int(value["number"]) if key[0] == "queue" and value["type"] == QueueType.QUORUM else None


Entries = Mapping[Key, tuple[int, Any]]


def _gone(before: Entries, after: Entries) -> set[Key]:
    gone = {key for key in before if key not in after}
    for key, (revision, value) in before.items():
        if key not in gone and (
            (key[0] == "queue" and value["number"] != after[key][1]["number"])
            or (key[0] == "exchange" and revision != after[key][0])
        ):
            gone.add(key)
    ends = {(key[0], key[1], key[2]) for key in gone if key[0] in ("queue", "exchange")}
    for key in before:
        if key[0] == "binding":
            _, vhost, source, kind, destination, *_ = key
            if ("exchange", vhost, source) in ends or (kind, vhost, destination) in ends:
                gone.add(key)
    return {key for key in gone if key[0] not in ("queue_numbers", "node_numbers", "cluster")}


VOTERS_MAX: Final = 7
"""Further nodes get the log and do not vote: a larger majority is slower, and not safer."""
LAG_MAX: Final = 64
"""The most entries that the log of a learner may lack to count as caught up."""


def next_member_change(
    config: messages.Configuration, nodes: Iterable[NodeFacts], matches: Mapping[int, int], last: int
) -> messages.Change | None:
    """Return the next change by the group's leader, or None. `matches`: for each other member, the index up
    to which its log is known to agree.
    """
    wanted = {member_id(node.number): node for node in nodes}
    for member in config.members:
        if member not in wanted and config.voters != (member,):
            return messages.Remove(member)
    for member in wanted:
        if member not in config.members:
            return messages.Add(member)
    if len(config.voters) < VOTERS_MAX:
        for member in config.learners:
            # A node that has never announced a start may have an empty folder the next time.
            if wanted[member].incarnation > 0 and matches.get(member, 0) + LAG_MAX >= last:
                return messages.Promote(member)
    return None
