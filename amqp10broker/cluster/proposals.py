"""A node's requests to the system group: planned here, sent to the leader, planned again if needed.

A request is planned on the node's own copy of the catalog. Without changes it is answered at once. Otherwise
the transaction is proposed, and decided when this node applies it. Until then it is sent again, to a new
leader or after a second, because a message may be lost. Duplicates in the log are harmless, and so is a new
order: a stale transaction is planned again (`TransactionOutcome.STALE`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, Final

from amqp10broker.cluster.transactions import (
    LastTransaction,
    Origin,
    SystemMachine,
    TransactionOutcome,
    transaction_of,
)
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import RefusedError, Unavailable
from amqp10broker.metadata.catalog import Catalog, CatalogRequest
from amqp10broker.metadata.entry_codec import Conceal
from amqp10broker.metadata.exchange_requests import Bind, DeclareExchange, DeleteExchange, Unbind
from amqp10broker.metadata.plan import Plan
from amqp10broker.metadata.proposing import LATER, Decided
from amqp10broker.metadata.queue import QueueType
from amqp10broker.metadata.queue_requests import DeclareQueue, DeleteQueue
from amqp10broker.queues.commands import RequestRef

DECIDED_WITHIN_MS: Final = 30_000
"""So long a client waits (T1) unless the setting `cluster_decide_ms` says otherwise."""
AGAIN_AFTER_MS: Final = 1_000
"""What has no outcome is sent again."""
RETRY_AFTER_MS: Final = 200
"""What could not be sent is tried again."""


@dataclass(slots=True, eq=False)
class PendingProposal:
    """A request that is not decided.

    Attributes:
        ref: receives the outcome; None: no receiver, and it is repeated until it is decided.
        due_ms: when it is refused if nothing is decided; None: never.
        sent_ms: when it was sent last; None: not to the present leader.
    """

    request: CatalogRequest[Any]
    ref: RequestRef | None
    due_ms: int | None
    plan: Plan[Any]
    data: bytes
    sent_ms: int | None = None


@dataclass(eq=False)
class Proposals:
    _node: int
    _incarnation: int
    _catalog: Catalog
    _machine: SystemMachine
    _conceal: Conceal
    _to_leader: Callable[[Sequence[bytes]], bool]
    _tell: Callable[[Decided], None]
    _now_ms: Callable[[], int]
    _serial: int = 0
    _pending: dict[int, PendingProposal] = field(default_factory=dict, init=False)
    _lost: list[PendingProposal] = field(default_factory=list, init=False)
    _retry_ms: int | None = None

    def __len__(self) -> int:
        return len(self._pending)

    # --- asking -------------------------------------------------------------------------------------

    def ask(self, request: CatalogRequest[Any], ref: RequestRef | None, due_ms: int | None) -> Any:
        """Have a request decided. `due_ms`: when it is refused at the latest; None: never. Returns the answer
        of its plan, if it changes nothing; else `LATER`. Raises `RefusedError` if the rules are against it.
        """
        plan = request.plan(self._catalog)
        if not plan.puts and not plan.forgets:
            self._catalog.apply(used=plan.used)
            return plan.answer
        self._propose(request, ref, due_ms, plan)
        return LATER

    def _propose(
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

    def decided(self, serial: int, outcome: TransactionOutcome) -> PendingProposal | None:
        """A transaction of this start is in the log, applied or not. Returns the request if it is executed
        now and has a receiver.
        """
        while self._pending and (first := next(iter(self._pending))) < serial:
            self._lost.append(self._pending.pop(first))
        pending = self._pending.pop(serial, None)
        if pending is None or outcome is TransactionOutcome.APPLIED:
            return pending
        self._lost.append(pending)
        return None

    def told_by_state(self, last: LastTransaction) -> list[PendingProposal]:
        """A snapshot replaced entries: it lists the applied transactions of this start."""
        applied: list[PendingProposal] = []
        while self._pending and (first := next(iter(self._pending))) <= last.serial:
            pending = self._pending.pop(first)
            was_applied = any(begin <= first <= end for begin, end in last.stretches)
            (applied if was_applied else self._lost).append(pending)
        return applied

    def refuse(self, refusal: RefusedError) -> None:
        """Nothing of this node is decided any more."""
        pendings = [*self._pending.values(), *self._lost]
        self._pending.clear()
        self._lost.clear()
        for pending in pendings:
            self.answer(pending, refusal=refusal)

    def plan_again(self) -> None:
        """Plan the requests that were not applied on the present copy."""
        lost, self._lost = self._lost, []
        for pending in lost:
            try:
                answer = self.ask(pending.request, pending.ref, pending.due_ms)
            except RefusedError as refusal:
                self.answer(pending, refusal=refusal)
            else:
                if answer is not LATER:
                    self.answer(pending, answer)

    def answer(
        self, pending: PendingProposal, answer: Any = None, refusal: RefusedError | None = None
    ) -> None:
        """Send the outcome to the receiver, if there is one."""
        if pending.ref is not None:
            self._tell(Decided(pending.ref, answer, refusal))

    # --- the way to the leader, and time --------------------------------------------------------------

    def unsent(self) -> None:
        """There is another leader, or the same one begins anew: it has got nothing of this."""
        for pending in self._pending.values():
            pending.sent_ms = None

    def send(self) -> None:
        """Send what is not on its way, as far as it goes."""
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

    def tick(self) -> None:
        """Refuse what has waited too long, and send again what has no outcome."""
        now_ms = self._now_ms()
        for serial, pending in list(self._pending.items()):
            if pending.due_ms is not None and pending.due_ms <= now_ms:
                del self._pending[serial]
                self.answer(pending, refusal=timed_out(pending.request, pending.plan))
            elif pending.sent_ms is not None and pending.sent_ms + AGAIN_AFTER_MS <= now_ms:
                pending.sent_ms = None
        self.send()

    @property
    def deadline(self) -> int | None:
        """When `tick` is due; None: nothing is awaited."""
        times = [] if self._retry_ms is None else [self._retry_ms]
        for pending in self._pending.values():
            if pending.due_ms is not None:
                times.append(pending.due_ms)
            if pending.sent_ms is not None:
                times.append(pending.sent_ms + AGAIN_AFTER_MS)
        return min(times, default=None)


def timed_out(request: CatalogRequest[Any], plan: Plan[Any]) -> Unavailable:
    """The refusal of a request that was not decided in time; it may still be carried out (M6)."""
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
