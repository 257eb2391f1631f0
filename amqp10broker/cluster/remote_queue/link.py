"""A node's end of the link to a replicated queue: it stores commands until the queue has executed them.

::

    no leader ── LeaderIs ──► asking ── RemoteResumed ──► open
        ▲                     │   ▲                        │
        └── node lost ────────┤   └── LeaderIs (again) ────┤
        └── node lost, LeaderIs (no_more) ─────────────────┘

Commands are numbered and stored in each state, and sent while the link is open. A lost link reports its
position to the next leader (`ResumeRemote`), and continues after the last executed command. Effects that the
old leader could not send are rebuilt (`CatchUp`), so sessions notice only the delay: the queue's state gives
deliveries, credit and activity, the number of the last executed command gives confirms, and the queue has
stored the others (`RemoteResumed.kept`).

The size of a link is bounded by link credit, one request of a consumer, and settlements of its deliveries. If
the connection is crowded (`LinkPort.crowded`), commands wait here, confirms are late, and credit is withheld.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Final, assert_never, cast

from amqp10broker.cluster.remote_queue.consumers import (
    LinkBrowsers,
    RemoteConsumer,
    RemoteConsumers,
    drop_gone,
)
from amqp10broker.cluster.remote_queue.messages import (
    Browse,
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
from amqp10broker.protocols.serial import MASK
from amqp10broker.queues.commands import (
    ActiveChanged,
    Answer,
    AttachPublisher,
    Cancel,
    Command,
    Confirmed,
    ConsumerRef,
    Credit,
    CreditReply,
    Delete,
    Deliver,
    DeliveryOutcome,
    DetachPublisher,
    Effect,
    GiveBack,
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
    Subscribe,
    Subscribed,
    SubscribeRefused,
    TimedOut,
    Unsubscribe,
)
from amqp10broker.queues.quorum.node_links import ConsumerFacts, StoredEffect

BATCH_MAX: Final = 64
"""The number of commands of a backlog in one batch."""


@dataclass(slots=True, eq=False)
class NumberedCommand:
    """A stored command. `done`: it needs no answer any more. `epoch`: that of its consumer, for a
    `Credit`.
    """

    number: int
    command: Command
    since_ms: int
    epoch: int = 0
    done: bool = False

    @property
    def waits(self) -> bool:
        return not self.done and type(self.command) is not Publish


_NO_COMMANDS: Final[deque[NumberedCommand]] = deque()
"""One object for all unused links, because an empty deque takes 600 bytes. It stays empty."""


class NumberedCommands:
    """Commands in order, with consecutive numbers. `sent`: the number of the last one sent to the present
    leader. `timed`: commands that are given up if no leader is found in time, in order.
    """

    __slots__ = ("_commands", "next", "sent", "timed")

    def __init__(self) -> None:
        self._commands = _NO_COMMANDS
        self.next = 1
        self.sent = 0
        self.timed: list[NumberedCommand] = []

    def __len__(self) -> int:
        return len(self._commands)

    def __iter__(self) -> Iterator[NumberedCommand]:
        return iter(self._commands)

    @property
    def first(self) -> int:
        return self._commands[0].number if self._commands else self.next

    @property
    def unsent(self) -> bool:
        return self.sent < self.next - 1

    def add(self, command: Command, now_ms: int) -> NumberedCommand:
        numbered = NumberedCommand(self.next, command, now_ms)
        self.next += 1
        if self._commands is _NO_COMMANDS:
            self._commands = deque()
        self._commands.append(numbered)
        return numbered

    def batch(self) -> Sequence[NumberedCommand]:
        """Return the next commands to send, at least one, and count them as sent."""
        at = self.sent + 1 - self.first
        stop = min(at + BATCH_MAX, len(self._commands))
        batch = [self._commands[index] for index in range(at, stop)] if at else list(self._commands)[:stop]
        self.sent = batch[-1].number
        return batch

    def drop_until(self, number: int) -> None:
        """Remove the commands up to a number, which were executed."""
        kept, timed = self._commands, self.timed
        while kept and kept[0].number <= number:
            kept.popleft().done = True
        if timed and timed[0].done:
            del timed[: next((at for at, each in enumerate(timed) if not each.done), len(timed))]

    def take_publishes(self) -> list[Publish]:
        """Remove all publishes, and renumber the following commands."""
        publishes: list[Publish] = []
        number, others = self.first, deque[NumberedCommand]()
        for each in self._commands:
            command = each.command
            if type(command) is Publish:
                publishes.append(command)
                each.done = True
            else:
                each.number = number + len(others)
                others.append(each)
        if publishes:
            self.next = number + len(others)
            self._commands = others
        return publishes

    def clear(self) -> None:
        self._commands.clear()
        self.timed.clear()


@dataclass(eq=False)
class CatchUp:
    """The effects of one answer to `ResumeRemote`. `available`: messages that wait in the queue; None: not
    known.
    """

    _queue: str
    _resumed: RemoteResumed
    _consumers: RemoteConsumers
    _refused: Collection[RequestRef | ConsumerRef]
    out: EffectsBySession = field(default_factory=dict, init=False)
    available: int | None = None
    _rejected: dict[PublisherRef, set[int]] = field(default_factory=dict, init=False)
    _answers: dict[RequestRef, Answer] = field(default_factory=dict, init=False)

    def effects(self, commands: Iterable[NumberedCommand]) -> EffectsBySession:
        """Return the effects for commands without an answer, executed or not."""
        resumed, consumers = self._resumed, self._consumers
        drained = [reply for reply in map(self._take_kept, cast("list[StoredEffect]", resumed.kept)) if reply]
        for ref, facts in resumed.consumers.items():
            consumer = consumers.get(ref)
            if consumer is not None:
                consumer.missed += facts.missed
                if facts.active is not False:
                    self.available = facts.available
        for deliver in resumed.deliveries:
            consumer = consumers.get(deliver.consumer)
            if consumer is not None and consumer.counts(deliver):
                add_effect(self.out, deliver.consumer.reply_to, deliver)
        for reply in drained:
            consumer = consumers.get(reply.consumer)
            if consumer is None or consumer.active is not False:
                self.available = reply.available
            if consumer is not None and consumer.counts(reply):
                add_effect(self.out, reply.consumer.reply_to, consumers.without_missed(reply))
        asking: set[ConsumerRef] = set()
        subscribing: set[ConsumerRef] = set()
        for numbered in commands:
            command = numbered.command
            if type(command) is Credit:
                asking.add(command.consumer)
            if numbered.number <= resumed.last:
                self._answer(numbered)
            elif type(command) is Subscribe:
                subscribing.add(command.consumer)
        for ref, consumer in list(consumers.items()):
            facts_of = resumed.consumers.get(ref)
            if facts_of is not None:
                self._bring_up_to_date(ref, consumer, facts_of, asks=ref in asking)
            elif ref not in subscribing and not resumed.deleted:
                # A cancelled consumer without deliveries is unknown there; any other was lost.
                del consumers[ref]
                if not consumer.cancelled:
                    add_effect(self.out, ref.reply_to, QueueDown(ref, self._queue))
        return self.out

    def _take_kept(self, effect: StoredEffect) -> CreditReply | None:
        match effect:
            case TimedOut():
                ref = effect.consumer
                add_effect(self.out, ref.reply_to, effect)
                consumer = self._consumers.get(ref)
                if consumer is not None:
                    consumer.counts(effect)
                    drop_gone(self._consumers, ref)
            case PublishRejected():
                self._rejected.setdefault(effect.publisher, set()).update(effect.ids)
            case Answer():
                self._answers[effect.request] = effect
            case CreditReply():
                return effect
            case _:
                assert_never(effect)
        return None

    def _answer(self, numbered: NumberedCommand) -> None:
        command, out = numbered.command, self.out
        match command:
            case Publish():
                self._confirm(command)
            case Settle():
                if command.answer:
                    add_effect(out, command.consumer.reply_to, Settled(command.consumer, command.keys))
            case Subscribe():
                if command.answer and command.consumer in self._consumers:
                    add_effect(out, command.consumer.reply_to, Subscribed(command.consumer))
            case Credit():
                facts = self._resumed.consumers.get(command.consumer)
                consumer = self._consumers.get(command.consumer)
                # The queue answers the drains of selecting consumers, now or later.
                if facts and consumer and not (command.drain and consumer.selects):
                    self._reply(command.consumer, consumer, facts, command.drain, numbered.epoch)
            case Purge() | Delete():
                request = command.request
                if request is not None and request not in self._refused:
                    add_effect(out, request.reply_to, self._answers.get(request, Answer(request, 0, 0)))
            case _:
                return

    def _confirm(self, command: Publish) -> None:
        publisher, ids = command.publisher, command.ids
        refused = self._rejected.get(publisher, set())
        if rejected := [each for each in ids if each in refused]:
            ids = [each for each in ids if each not in refused]
            effect = PublishRejected(publisher, rejected, command.settled, self._queue)
            add_effect(self.out, publisher.reply_to, effect)
        if ids:
            add_effect(self.out, publisher.reply_to, Confirmed(publisher, ids, command.settled))

    def _reply(
        self, ref: ConsumerRef, consumer: RemoteConsumer, facts: ConsumerFacts, drain: bool, epoch: int
    ) -> None:
        count = consumer.delivery_count(facts.delivery_count)
        add_effect(
            self.out, ref.reply_to, CreditReply(ref, count, facts.credit, facts.available, drain, epoch)
        )

    def _bring_up_to_date(
        self, ref: ConsumerRef, consumer: RemoteConsumer, facts: ConsumerFacts, *, asks: bool
    ) -> None:
        if facts.active is not None and facts.active is not consumer.active:
            consumer.active = facts.active
            add_effect(self.out, ref.reply_to, ActiveChanged(ref, facts.active))
        if facts.missed and not asks and not consumer.draining:
            # The credit was lost with the deliveries; the session would wait for them.
            self._reply(ref, consumer, facts, False, facts.epoch)


ASK_AGAIN_MS: Final = 1_000
"""The time after which an unanswered `ResumeRemote` is sent again."""
NO_LEADER_MS: Final = 30_000
"""How long a subscribe, fetch, purge or delete request waits for a leader (RabbitMQ: 65 s for each
member).
"""
NO_COUNTS_MS: Final = 5_000
"""How long a request for counts waits; then they are 0. An election takes less time."""
LAST_WORDS_MS: Final = 5_000
"""How long a link to a deleted queue waits for the queue's last effects."""


@dataclass(slots=True, eq=False)
class QueueLink:
    """The client's end of one link.

    Attributes:
        leader: the node of the leader, or None.
        last_leader: the node of the present or last leader.
        lost_ms: since when the link is not open; None: it is.
        full_ms: since when the leader's disk is full, and publishes wait here; None: they do not.
    """

    queue: str
    group: int
    _port: LinkPort
    wait_ms: int = NO_LEADER_MS
    lost_ms: int | None = field(init=False)
    leader: int | None = None
    last_leader: int | None = None
    term: int = 0
    heard: int = 0
    available: int = 0
    full_ms: int | None = None
    ended: bool = False
    _token: int = 0
    _asked_ms: int | None = None
    _end_ms: int | None = None
    _commands: NumberedCommands = field(default_factory=NumberedCommands, init=False)
    # Publishes for which the leader has no room, in order; they have no numbers yet.
    _held: list[Publish] = field(default_factory=list, init=False)
    _consumers: RemoteConsumers = field(default_factory=RemoteConsumers, init=False)
    _browsers: LinkBrowsers = field(default_factory=LinkBrowsers, init=False)
    _publishers: dict[PublisherRef, None] = field(default_factory=dict, init=False)
    # Requests that were refused here, each with the number of the command after which it is removed.
    _refused: dict[RequestRef | ConsumerRef, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.lost_ms = self._port.now_ms()

    @property
    def open(self) -> bool:
        return self.lost_ms is None

    @property
    def unled_ms(self) -> int | None:
        """Since when commands wait for a leader; None: they do not."""
        return self.lost_ms if self.leader is None or self._asked_ms is not None else None

    @property
    def kept(self) -> int:
        """The number of commands without an answer."""
        return len(self._commands) + len(self._held)

    @property
    def consumers(self) -> int:
        return len(self._consumers)

    # --- from sessions ----------------------------------------------------------------------------

    def opens(self) -> bool:
        """Whether the link is open, or will open without a wait."""
        if self.lost_ms is not None and self._asked_ms is None:
            self._ask(self._port.now_ms(), idle=True)
        return self.open

    def post_all(self, commands: Sequence[Command]) -> None:
        if self.ended:
            out: EffectsBySession = {}
            refuse(out, commands, self.queue, Refusal.GONE, self._refused)
            self._port.tell(out)
            return
        now_ms = self._port.now_ms()
        browsers = self._browsers
        asked: list[Command] = []
        for command in commands:
            if (browsers or type(command) is Subscribe) and browsers.says(command):
                self._browse(command, now_ms, asked)
            else:
                self._put(command, now_ms)
        if self.lost_ms is None:
            self._send_rest()
            self._ask_for_browsers(asked)
        else:
            if self._asked_ms is None:
                self._ask(now_ms)
            self._port.stir(self.group)

    def _browse(self, command: Command, now_ms: int, asked: list[Command]) -> None:
        said = self._browsers.ask(command, None if self.lost_ms is None else now_ms)
        if isinstance(said, Settled):
            self._port.tell({said.consumer.reply_to: [said]})
        elif said is not None:
            asked.append(said)

    def _ask_for_browsers(self, asked: Sequence[Command]) -> None:
        # Without a leader browsers send their requests later, and nothing is lost.
        if asked and self.lost_ms is None:
            assert self.leader is not None
            self._port.send(self.leader, self.group, Browse(self._token, asked))

    def _put(self, command: Command, now_ms: int) -> None:
        if self.full_ms is not None and type(command) is Publish:
            self._held.append(command)
            return
        numbered = self._commands.add(command, now_ms)
        kind = type(command)
        if kind is not Publish and (kind is not Settle or self._consumers):
            self._note(numbered, command)

    def _note(self, numbered: NumberedCommand, command: Command) -> None:
        match command:
            case Settle() | Credit() | GiveBack() | Cancel():
                consumer = self._consumers.get(command.consumer)
                if consumer is None:
                    return
                numbered.epoch = consumer.epoch
                consumer.note(command)
                if type(command) is not Credit:
                    drop_gone(self._consumers, command.consumer)
                elif not consumer.counted:
                    self._commands.timed.append(numbered)
            case Subscribe():
                self._consumers[command.consumer] = RemoteConsumer.of(command)
                self._commands.timed.append(numbered)
            case Unsubscribe():
                consumer = self._consumers.pop(command.consumer, None)
                if consumer is not None and consumer.missed:
                    numbered.command = replace(command, seen=command.seen + consumer.missed)
            case AttachPublisher():
                self._publishers[command.publisher] = None
            case DetachPublisher():
                self._publishers.pop(command.publisher, None)
            case Inspect() | Purge() | Delete():
                self._commands.timed.append(numbered)
            case _:
                return

    # --- to the leader ----------------------------------------------------------------------------

    def _send_rest(self) -> None:
        assert self.leader is not None
        kept = self._commands
        # The answer may come within `send`, and end the link or clear it.
        while self.lost_ms is None and kept and kept.unsent:
            if self._port.crowded(self.leader):
                self._port.stir(self.group)
                return
            batch = kept.batch()
            commands = [self._consumers.as_counted(each.command) for each in batch]
            message = CommandBatch(self._token, batch[0].number, self.heard, commands)
            if not self._port.send(self.leader, self.group, message):
                return  # the loss of the connection will be reported

    def _ask(self, now_ms: int, *, idle: bool = False) -> None:
        used = self._commands or self._consumers or self._publishers or self._browsers
        if self.leader is None or not (used or idle):
            return
        self._asked_ms = now_ms
        seen: dict[ConsumerRef, int] = {}
        for numbered in self._commands:
            command = numbered.command
            if type(command) is Unsubscribe:
                seen[command.consumer] = command.seen
        for ref, consumer in self._consumers.items():
            seen[ref] = consumer.seen + consumer.missed
        first = self._commands.first
        resume = ResumeRemote(self._token, self._port.incarnation, self.heard, first, seen)
        self._port.send(self.leader, self.group, resume)

    # --- where the leader is ----------------------------------------------------------------------

    def leader_is(self, node: int, leader: LeaderIs) -> None:
        if self.ended or leader.term < self.term:
            return
        if leader.no_more:
            if node == self.leader and leader.term == self.term:
                self.node_down(node)
            return
        if node != self.leader or leader.term != self.term:
            self._lose()
            self.leader = self.last_leader = node
            self.term = leader.term
        elif leader.again and self.lost_ms is None:
            self._lose()
        if not leader.full:
            self._hold_no_more()
        elif self.full_ms is None:
            self.full_ms = self._port.now_ms()
        if self.lost_ms is None:
            self._send_rest()
        elif self._asked_ms is None:
            self._ask(self._port.now_ms())

    def node_down(self, node: int) -> None:
        if node == self.leader and not self.ended:
            self._lose()
            self.leader = None
            self._hold_no_more()  # they wait for a leader as all others do
            if self._end_ms is not None:
                self.end()

    def _lose(self) -> None:
        # Late effects with the present token do not belong to the next leadership.
        self._token = self._token + 1 & MASK
        self._asked_ms = None
        if self.lost_ms is None:
            self.lost_ms = self._port.now_ms()
        self._port.stir(self.group)

    # --- a leader whose disk is full --------------------------------------------------------------

    def _hold(self) -> None:
        kept = self._commands
        self._held = kept.take_publishes() + self._held
        for numbered in kept:
            request = getattr(numbered.command, "request", None)
            if request is not None and request in self._refused:
                self._refused[request] = numbered.number

    def _hold_no_more(self) -> None:
        self.full_ms = None
        held, self._held = self._held, []
        for command in held:
            self._put(command, self._port.now_ms())

    # --- from the leader --------------------------------------------------------------------------

    def told(self, node: int, told: RemoteEffects) -> None:
        if told.token != self._token or self.lost_ms is not None or node != self.leader:
            return
        self.heard = max(self.heard, told.index)
        effects = self._heard(told.effects)
        if effects:
            self._port.tell(effects)
        self._drop_done(told.done)
        if self._commands.unsent:
            self._send_rest()
        if self._end_ms is not None and not self._commands:
            self.end()

    def _heard(self, effects: Mapping[PeerId, list[Effect]]) -> EffectsBySession:
        heard: EffectsBySession = {}
        for peer, given in effects.items():
            if self._browsers:
                given = self._heard_by_browsers(given)
            for_peer = [
                found
                for each in given
                if (found := each if type(each) is Confirmed else self._for_session(each)) is not None
            ]
            if for_peer:
                heard[peer] = for_peer
        return heard

    def _heard_by_browsers(self, given: Sequence[Effect]) -> list[Effect]:
        browsers = self._browsers
        heard: list[Effect] = []
        for effect in given:
            said: Effect | None = effect
            if getattr(effect, "consumer", None) in browsers:
                said = browsers.heard(effect)
            if said is not None:
                heard.append(said)
        return heard

    def _for_session(self, effect: Effect) -> Effect | None:
        match effect:
            case Deliver() | CreditReply() | ActiveChanged() | TimedOut():
                return self._for_consumer(effect)
            case Answer():
                if effect.refused is None:
                    self.available = effect.ready
                return None if effect.request in self._refused else effect
            case Subscribed():
                known = effect.consumer in self._consumers or effect.consumer in self._browsers
                return effect if known else None
            case SubscribeRefused():
                return None if self._consumers.pop(effect.consumer, None) is None else effect
            case QueueDeleted():
                ref = effect.ref
                if isinstance(ref, ConsumerRef):
                    known = (
                        self._consumers.pop(ref, None) is not None
                        or self._browsers.pop(ref, None) is not None
                    )
                    return effect if known else None
                self._publishers.pop(ref, None)
            case _:
                pass
        return effect

    def _for_consumer(self, effect: Deliver | CreditReply | ActiveChanged | TimedOut) -> Effect | None:
        ref = effect.consumer
        consumer = self._consumers.get(ref)
        if type(effect) is CreditReply and (consumer is None or consumer.active is not False):
            self.available = effect.available  # that of an inactive consumer is not the queue's
        if consumer is None:
            return effect if ref in self._browsers or type(effect) is TimedOut else None
        if not consumer.counts(effect):
            return None
        if type(effect) is TimedOut:
            drop_gone(self._consumers, ref)
        return self._consumers.without_missed(effect) if type(effect) is CreditReply else effect

    def _drop_done(self, done: int) -> None:
        self._commands.drop_until(done)
        for ref in [ref for ref, number in self._refused.items() if number <= done] if self._refused else ():
            del self._refused[ref]

    def resumed(self, node: int, resumed: RemoteResumed) -> None:
        """Continue the link after the leader's answer to `ResumeRemote`."""
        if resumed.token != self._token or self.lost_ms is None or node != self.leader:
            return
        self.lost_ms = None
        self._asked_ms = None
        self.heard = max(self.heard, resumed.index)
        if resumed.last < self._commands.first - 1 and not resumed.deleted:
            self._forgotten()
            return
        catch_up = CatchUp(self.queue, resumed, self._consumers, self._refused)
        effects = catch_up.effects(self._commands)
        if catch_up.available is not None:
            self.available = catch_up.available
        inspects = [
            each.command
            for each in self._commands
            if each.number <= resumed.last
            and type(each.command) is Inspect
            and each.command.request not in self._refused
        ]
        self._commands.sent = resumed.last
        self._drop_done(resumed.last)
        if self.full_ms is not None:
            self._hold()
        if resumed.deleted:
            self.ended = True
            self._all_gone(effects)
        if effects:
            self._port.tell(effects)
        if self.ended:
            return
        now_ms = self._port.now_ms()
        for command in inspects:
            # The counts of that time are not known any more: the request is sent again.
            self._put(command, now_ms)
        self._send_rest()
        if self._browsers:
            asked, answers = self._browsers.anew()
            self._ask_for_browsers(asked)
            for answer in answers:
                self._port.tell({answer.consumer.reply_to: [answer]})
        if self._end_ms is not None and not self._commands:
            self.end()

    # --- time -------------------------------------------------------------------------------------

    @property
    def deadline_ms(self) -> int | None:
        times = []
        if self._end_ms is not None and not self.ended:
            times.append(self._end_ms)
        if self.lost_ms is not None and not self.ended:
            if self._asked_ms is not None:
                times.append(self._asked_ms + ASK_AGAIN_MS)
            times += [self._waits_until(each) for each in self._commands.timed if each.waits]
            since_ms = self._browsers.waiting_since()
            if since_ms is not None:
                times.append(since_ms + self.wait_ms)
        elif not self.ended and self._commands.unsent:
            times.append(self._port.now_ms())  # the connection had no room
        return min(times, default=None)

    def _waits_until(self, numbered: NumberedCommand) -> int:
        since = numbered.since_ms if self.lost_ms is None else max(numbered.since_ms, self.lost_ms)
        wait_ms = self.wait_ms
        return since + (min(NO_COUNTS_MS, wait_ms) if type(numbered.command) is Inspect else wait_ms)

    def tick(self) -> None:
        if self.ended:
            return
        now_ms = self._port.now_ms()
        if self._end_ms is not None and now_ms >= self._end_ms:
            self.end()
            return
        if self.lost_ms is None:
            self._send_rest()
            return
        if self._asked_ms is not None and now_ms >= self._asked_ms + ASK_AGAIN_MS:
            self._ask(now_ms)
        out: EffectsBySession = {}
        late = [each for each in self._commands.timed if each.waits and now_ms >= self._waits_until(each)]
        for numbered in late:
            self._give_up(numbered, out, now_ms)
        for ref in self._browsers.late(now_ms - self.wait_ms) if self._browsers else ():
            del self._browsers[ref]
            add_effect(out, ref.reply_to, SubscribeRefused(ref, self.queue, Refusal.NO_LEADER))
        self._commands.timed = [each for each in self._commands.timed if each.waits]
        if out:
            self._port.tell(out)

    def _give_up(self, numbered: NumberedCommand, out: EffectsBySession, now_ms: int) -> None:
        numbered.done = True
        command = numbered.command
        match command:
            case Subscribe() | Credit():
                ref = command.consumer
                consumer = self._consumers.get(ref)
                if consumer is None:
                    return
                add_effect(out, ref.reply_to, SubscribeRefused(ref, self.queue, Refusal.NO_LEADER))
                # If it is executed late, it leaves no consumer.
                self._put(Unsubscribe(ref, (), (), consumer.seen, DeliveryOutcome.REQUEUE), now_ms)
            case Inspect() | Purge() | Delete():
                request = command.request
                if request is not None:
                    self._refused[request] = numbered.number
                    add_effect(out, request.reply_to, Answer(request, 0, 0, Refusal.NO_LEADER))
            case _:
                raise AssertionError(f"nobody gives up {command!r}")

    # --- the end ----------------------------------------------------------------------------------

    def forget(self) -> None:
        if self.ended or self._end_ms is not None:
            return
        attached = self._consumers or self._publishers or self._browsers
        if self.lost_ms is not None or not (self._commands or attached):
            self.end()
        else:
            self._end_ms = self._port.now_ms() + LAST_WORDS_MS
            self._port.stir(self.group)

    def end(self) -> None:
        if not self.ended:
            self.ended = True
            out: EffectsBySession = {}
            self._all_gone(out)
            self._port.tell(out)

    def _all_gone(self, out: EffectsBySession) -> None:
        gone: EffectsBySession = {}
        waiting = [*(each.command for each in self._commands if not each.done), *self._held]
        refuse(gone, waiting, self.queue, Refusal.GONE, self._refused)
        told = {
            effect.ref for effects in gone.values() for effect in effects if isinstance(effect, QueueDeleted)
        }
        for ref in (*self._consumers, *self._browsers, *self._publishers):
            if ref not in told:
                add_effect(gone, ref.reply_to, QueueDeleted(ref, self.queue))
        self._clear()
        for peer, effects in gone.items():
            out.setdefault(peer, []).extend(effects)

    def _clear(self) -> None:
        self._commands.clear()
        self._held.clear()
        for known in (self._consumers, self._browsers, self._publishers, self._refused):
            known.clear()

    def _forgotten(self) -> None:
        # The queue has no state of the link: no waiting command gets an answer any more.
        out: EffectsBySession = {}
        waiting = [*(numbered.command for numbered in self._commands), *self._held]
        refuse(
            out,
            (each for each in waiting if type(each) is not Subscribe),
            self.queue,
            Refusal.NO_LEADER,
            self._refused,
        )
        for ref in (*self._consumers, *self._browsers):
            add_effect(out, ref.reply_to, QueueDown(ref, self.queue))
        self._clear()
        self._lose()
        self.leader = None
        self._port.tell(out)
