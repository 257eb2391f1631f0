"""Both ends of the link to a queue that is on one other node only: a classic queue or a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from enum import Enum, auto
from typing import ClassVar, Final

from amqp10broker.cluster.remote_queue.consumers import HomeUsers
from amqp10broker.cluster.remote_queue.messages import (
    CommandBatch,
    EffectsBySession,
    LeaderIs,
    LinkPort,
    RemoteEffects,
    RemoteResumed,
    ResumeRemote,
    add_effect,
    refuse,
)
from amqp10broker.dataclass import dataclass
from amqp10broker.queues.commands import (
    Answer,
    AttachPublisher,
    Command,
    Confirmed,
    ConsumerRef,
    CreditReply,
    Delete,
    DeliveryOutcome,
    DetachPublisher,
    Effect,
    Inspect,
    PeerId,
    Publish,
    PublisherRef,
    PublishRejected,
    Purge,
    QueueDeleted,
    QueueDown,
    Refusal,
    RequestRef,
    Settle,
    Settled,
    Unconfirmed,
    Unsubscribe,
)

OPENING_MS: Final = 5_000
"""How long commands wait for the announcement of a queue that was just declared, or whose home has just
started."""


class _State(Enum):
    OPENING = auto()
    UP = auto()
    DOWN = auto()


@dataclass(slots=True, eq=False)
class HomeLink:
    """The end of a node that uses the queue.

    Commands are sent at once. Both ends reset when the connection is lost. Then unconfirmed publishes are
    refused, consumers end, and callers get the error that the queue's node is down (docs/adr/0049), until the
    home announces the queue again. `down_ms`: since when it cannot be reached; None: it can. `full_ms`: since
    when publishes wait at its node, or None.
    """

    full_ms: ClassVar[None] = None
    queue: str
    group: int
    home: int
    _port: LinkPort
    available: int = 0
    ended: bool = False
    _next: int = 1
    _state: _State = _State.OPENING
    _opening_ms: int = field(init=False)
    _lost: bool = False
    down_ms: int | None = None
    _waiting: list[Command] = field(default_factory=list, init=False)
    _users: HomeUsers = field(default_factory=HomeUsers, init=False)
    _requests: dict[RequestRef, None] = field(default_factory=dict, init=False)
    # For each publisher the unconfirmed messages: number -> whether it was published settled.
    _unconfirmed: dict[PublisherRef, dict[int, bool]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._opening_ms = self._port.now_ms()
        self._port.stir(self.group)

    @property
    def unled_ms(self) -> int | None:
        return self._opening_ms if self._state is _State.OPENING else self.down_ms

    @property
    def consumers(self) -> int:
        """The consumers of this node, including cancelled ones that hold deliveries."""
        return len(self._users.consumers)

    @property
    def open(self) -> bool:
        return self._state is _State.UP

    # --- from sessions ----------------------------------------------------------------------------

    def post_all(self, commands: Sequence[Command]) -> None:
        if self.ended:
            self._port.tell(self._refused(commands, Refusal.GONE))
        elif self._state is _State.OPENING:
            self._waiting += commands
        elif self._state is _State.UP:
            self._send(commands)
        else:
            self._port.tell(self._refused(commands, Refusal.NO_LEADER))

    def _send(self, commands: Sequence[Command]) -> None:
        for command in commands:
            self._note(command)
        batch = CommandBatch(0, self._next, 0, commands)
        self._next += len(commands)
        if not self._port.send(self.home, self.group, batch):
            self._fall()

    def _note(self, command: Command) -> None:
        match command:
            case Publish():
                outstanding = self._unconfirmed.setdefault(command.publisher, {})
                outstanding.update(dict.fromkeys(command.ids, command.settled))
            case Inspect() | Purge() | Delete():
                if command.request is not None:
                    self._requests[command.request] = None
            case _:
                self._users.note(command)

    # --- the way there ----------------------------------------------------------------------------

    def leader_is(self, node: int, leader: LeaderIs) -> None:
        if node != self.home or self.ended:
            return
        if self._state is _State.UP:
            self._fall()  # it has restarted
        if self._lost:
            # It may not have noticed that this node was unreachable, and must reset its end.
            self._port.send(node, self.group, ResumeRemote(0, 0, 0, 1, {}))
        self._state, self._lost = _State.UP, False
        self.down_ms = None
        waiting, self._waiting = self._waiting, []
        attached: list[Command] = [AttachPublisher(each) for each in self._users.publishers]
        if attached or waiting:
            self._send([*attached, *waiting])

    def node_alive(self, node: int) -> None:
        if node == self.home and not self.ended and self._state is _State.DOWN:
            self._state, self._opening_ms, self.down_ms = _State.OPENING, self._port.now_ms(), None
            self._port.stir(self.group)

    def node_down(self, node: int) -> None:
        if node == self.home and not self.ended:
            self._fall()

    def _fall(self) -> None:
        if self._state is _State.DOWN:
            return
        self._state, self._lost = _State.DOWN, True
        self.down_ms = self._port.now_ms()
        waiting, self._waiting = self._waiting, []
        out: EffectsBySession = {}
        self._refuse_outstanding(out, Refusal.NO_LEADER)
        for ref in self._users.consumers:
            add_effect(out, ref.reply_to, QueueDown(ref, self.queue))
        self._users.consumers.clear()
        for peer, effects in self._refused(waiting, Refusal.NO_LEADER).items():
            out.setdefault(peer, []).extend(effects)
        self._port.tell(out)

    @property
    def deadline_ms(self) -> int | None:
        """The time at which `tick` is due; None: never."""
        return self._opening_ms + OPENING_MS if self._state is _State.OPENING and not self.ended else None

    def tick(self) -> None:
        deadline_ms = self.deadline_ms
        if deadline_ms is not None and self._port.now_ms() >= deadline_ms:
            self._fall()

    # --- from the queue ---------------------------------------------------------------------------

    def told(self, node: int, told: RemoteEffects) -> None:
        if node != self.home or self._state is not _State.UP:
            return
        out: EffectsBySession = {}
        for peer, effects in told.effects.items():
            for effect in effects:
                heard = self._heard(effect)
                if heard is not None:
                    add_effect(out, peer, heard)
        if out:
            self._port.tell(out)

    def _heard(self, effect: Effect) -> Effect | None:
        match effect:
            case Confirmed() | Unconfirmed() | PublishRejected():
                return self._outstanding_of(effect)
            case Answer():
                known = effect.request in self._requests
                self._requests.pop(effect.request, None)
                if effect.refused is None:
                    self.available = effect.ready
            case _:
                known = self._users.counts(effect)
                if type(effect) is CreditReply:
                    self.available = effect.available
        return effect if known else None

    def _outstanding_of(self, effect: Confirmed | Unconfirmed | PublishRejected) -> Effect | None:
        outstanding = self._unconfirmed.get(effect.publisher)
        if outstanding is None:
            return None
        ids = [number for number in effect.ids if outstanding.pop(number, None) is not None]
        if not outstanding:
            del self._unconfirmed[effect.publisher]
        if len(ids) == len(effect.ids):
            return effect
        return replace(effect, ids=ids) if ids else None

    def resumed(self, node: int, resumed: RemoteResumed) -> None:
        """Do nothing: such a link has nothing to resume."""

    # --- the end ----------------------------------------------------------------------------------

    def forget(self) -> None:
        self.end()

    def end(self) -> None:
        if self.ended:
            return
        self.ended = True
        out = self._refused(self._waiting, Refusal.GONE)
        self._refuse_outstanding(out, Refusal.GONE)
        refs: list[ConsumerRef | PublisherRef] = [*self._users.consumers, *self._users.publishers]
        for ref in refs:
            add_effect(out, ref.reply_to, QueueDeleted(ref, self.queue))
        self._waiting = []
        self._users.consumers.clear()
        self._users.publishers.clear()
        self._port.tell(out)

    def _refuse_outstanding(self, out: EffectsBySession, why: Refusal) -> None:
        for publisher, numbers in self._unconfirmed.items():
            for settled in (False, True):
                ids = [number for number, of in numbers.items() if of is settled]
                if ids:
                    failed = why is not Refusal.GONE
                    refused = Unconfirmed(publisher, ids, settled, failed=failed, queue=self.queue)
                    add_effect(out, publisher.reply_to, refused)
        for request in self._requests:
            add_effect(out, request.reply_to, Answer(request, 0, 0, why))
        self._unconfirmed.clear()
        self._requests.clear()

    def _refused(self, commands: Iterable[Command], why: Refusal) -> EffectsBySession:
        out: EffectsBySession = {}
        for command in commands:
            match command:
                case AttachPublisher() if why is not Refusal.GONE:
                    self._users.publishers[command.publisher] = None
                case DetachPublisher():
                    self._users.publishers.pop(command.publisher, None)
                case Settle() if command.answer:
                    add_effect(out, command.consumer.reply_to, Settled(command.consumer, command.keys))
                case _:
                    refuse(out, [command], self.queue, why)
        return out


class _Visitor(HomeUsers):
    __slots__ = ("done",)
    done: int


@dataclass(slots=True, eq=False)
class HomeLinkServer:
    """The end at the queue. Deliveries to a node that cannot be reached return to the queue."""

    _group: int
    _post_all: Callable[[list[Command]], None]
    _port: LinkPort
    _visitors: dict[int, _Visitor] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for node in self._port.peers:
            self.node_up(node)

    def node_up(self, node: int) -> None:
        self.node_down(node)
        if node != self._port.node:
            self._port.send(node, self._group, LeaderIs(0))

    def node_down(self, node: int) -> None:
        visitor = self._visitors.pop(node, None)
        if visitor is None:
            return
        commands: list[Command] = [DetachPublisher(each) for each in visitor.publishers]
        commands += [
            Unsubscribe(ref, (), (), held.seen, DeliveryOutcome.REQUEUE)
            for ref, held in visitor.consumers.items()
        ]
        if commands:
            self._post_all(commands)

    def node_changed(self, node: int) -> None:
        """Note that a suspected node has lost its connection to the queue."""
        if node in self._port.suspected:
            self.node_down(node)

    def resume(self, node: int, resume: ResumeRemote) -> None:
        self.node_down(node)

    def received(self, node: int, batch: CommandBatch) -> None:
        visitor = self._visitors.get(node)
        if visitor is None:
            visitor = self._visitors[node] = _Visitor()
        visitor.done = batch.last
        for command in batch.commands:
            visitor.note(command)
        self._post_all(list(batch.commands))

    def tell(self, effects: Mapping[PeerId, list[Effect]], index: int = 0) -> None:
        here = self._port.node
        by_node: dict[int, dict[PeerId, list[Effect]]] = {}
        for peer, told in effects.items():
            by_node.setdefault(peer.node, {})[peer] = told
        own = by_node.pop(here, None)
        if own is not None:
            self._port.tell(own)
        for node, told_there in by_node.items():
            visitor = self._visitors.get(node)
            if visitor is None:
                continue
            for given in told_there.values():
                for effect in given:
                    visitor.counts(effect)
            self._port.send(node, self._group, RemoteEffects(0, 0, visitor.done, told_there))
