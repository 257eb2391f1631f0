"""A node's end of the lane to a replicated queue: commands of its sessions, stored until the queue has
executed them.

::

    post_all -> numbered, kept -> sent, if the lane is open -> `RemoteEffects`: effects to sessions, done ones
    dropped

The lane is open when the leader has answered `ResumeRemote`. Nothing is sent before. When the leader or the
connection is lost, the lane waits for the next `LeaderIs`, reports its position, and continues behind the
last executed command. Effects that the old leader could not send are rebuilt from the commands, from the
state, and from the effects that the queue stored (`RemoteResumed`), so sessions notice only the delay.

The size of a lane is bounded by link credit, one request of a consumer, and settlements of its deliveries. If
the connection is crowded (`LanePort.crowded`), commands wait here, confirms are late, and credit is withheld.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from amqp10broker.cluster.lane_browsers import LaneBrowsers
from amqp10broker.cluster.lane_messages import (
    Browse,
    LeaderIs,
    LetterBatch,
    RemoteEffects,
    RemoteResumed,
    ResumeRemote,
)
from amqp10broker.cluster.lane_port import LanePort
from amqp10broker.cluster.letters_codec import cut
from amqp10broker.protocols.serial import MASK
from amqp10broker.queues.commands import (
    AttachPublisher,
    Cancel,
    Command,
    ConsumerRef,
    Credit,
    Delete,
    DeliveryOutcome,
    DetachPublisher,
    GiveBack,
    Inspect,
    PeerId,
    Publish,
    PublisherRef,
    Purge,
    RequestRef,
    Settle,
    Subscribe,
    Unsubscribe,
)
from amqp10broker.queues.effects import (
    ActiveChanged,
    Answer,
    Confirmed,
    CreditReply,
    Deliver,
    Effect,
    PublishRejected,
    QueueDeleted,
    QueueDown,
    Refusal,
    Settled,
    Subscribed,
    SubscribeRefused,
    TimedOut,
    Unconfirmed,
)
from amqp10broker.queues.selecting import encoded

ASK_AGAIN_MS: Final = 1_000
"""`ResumeRemote` is said again when it has no answer for so long."""
NO_LEADER_MS: Final = 30_000
"""So long does one who subscribes, fetches, purges or deletes wait for a leader (RabbitMQ: 65 s a member)."""
NO_COUNTS_MS: Final = 5_000
"""So long does a question about counts; then they are 0. An election is over before that."""
LAST_WORDS_MS: Final = 5_000
"""So long does a lane to a queue that was deleted wait for what the queue still says."""
LETTERS_MAX: Final = 64
"""Letters of a backlog that go in one batch."""

Told_ = dict[PeerId, list[Effect]]


class _Letter:
    """One letter that is kept."""

    __slots__ = ("command", "done", "epoch", "number", "since_ms")

    def __init__(self, number: int, command: Command, since_ms: int) -> None:
        self.number = number
        self.command = command
        self.since_ms = since_ms
        self.epoch = 0
        self.done = False

    @property
    def waits(self) -> bool:
        return not self.done and type(self.command) is not Publish


_NO_LETTERS: Final[deque[_Letter]] = deque()
"""Of each lane that was never used: an empty one of its own has 600 bytes. Nothing is put into it."""


class _RemoteConsumer:
    """A consumer of this node. `seen`: deliveries of the present epoch that its session has. `selects`: it
    gets some messages only; the queue answers a drain when it was looked through.
    """

    __slots__ = (
        "active",
        "cancelled",
        "counted",
        "draining",
        "epoch",
        "held",
        "missed",
        "seen",
        "selects",
        "settled",
    )

    def __init__(self, *, settled: bool, counted: bool, selects: bool) -> None:
        self.settled = settled
        self.counted = counted
        self.selects = selects
        self.draining = False
        self.seen = 0
        self.missed = 0
        self.epoch = 0
        self.active: bool | None = None
        self.cancelled = False
        self.held = 0


class LaneClient:
    """The client's end of one lane.

    Attributes:
        leader: number of the node that leads it; None: none is known.
        last_leader: number of the present or last leader's node; None: not known.
        lost_ms: since when the lane is not open; None: it is.
        full_ms: since when the leader's disk is full, and publishes wait here; None: they do not.
    """

    __slots__ = (
        "_asked_ms",
        "_browsers",
        "_consumers",
        "_end_ms",
        "_held",
        "_kept",
        "_next",
        "_port",
        "_publishers",
        "_refused",
        "_sent",
        "_timed",
        "_token",
        "_wait_ms",
        "available",
        "ended",
        "full_ms",
        "group",
        "heard",
        "last_leader",
        "leader",
        "lost_ms",
        "queue",
        "term",
    )

    def __init__(self, queue: str, group: int, port: LanePort, *, wait_ms: int = NO_LEADER_MS) -> None:
        self.queue = queue
        self.group = group
        self.leader: int | None = None
        self.last_leader: int | None = None
        self.term = 0
        self.heard = 0
        self.available = 0
        self.full_ms: int | None = None
        self.ended = False
        self.lost_ms: int | None = port.now_ms()
        self._port = port
        self._wait_ms = wait_ms
        self._next = 1
        self._sent = 0
        self._token = 0
        self._asked_ms: int | None = None
        self._end_ms: int | None = None
        self._kept = _NO_LETTERS
        # Publishes for which the leader has no room, in order; they are no letters yet.
        self._held: list[Publish] = []
        # Letters for which nobody waits for ever, in the order in which they were put.
        self._timed: list[_Letter] = []
        self._consumers: dict[ConsumerRef, _RemoteConsumer] = {}
        self._browsers = LaneBrowsers()
        self._publishers: dict[PublisherRef, None] = {}
        # Publishers of which a publish was carried out.
        # Who was refused here, with the number of the letter behind which the queue knows of it no more.
        self._refused: dict[RequestRef | ConsumerRef, int] = {}

    @property
    def open(self) -> bool:
        """Whether letters go to the leader as they are put."""
        return self.lost_ms is None

    @property
    def unled_ms(self) -> int | None:
        """Since when letters wait for a leader; None: they do not."""
        return self.lost_ms if self.leader is None or self._asked_ms is not None else None

    @property
    def kept(self) -> int:
        """Letters that have no answer yet, and publishes that are to become some."""
        return len(self._kept) + len(self._held)

    @property
    def consumers(self) -> int:
        return len(self._consumers)

    # --- from sessions ----------------------------------------------------------------------------

    def opens(self) -> bool:
        """Whether the lane is open, or will open without a wait."""
        if self.lost_ms is not None and self._asked_ms is None:
            self._ask(self._port.now_ms(), idle=True)
        return self.open

    def post_all(self, commands: Sequence[Command]) -> None:
        if self.ended:
            self._port.tell(self._gone(commands))
            return
        now_ms = self._port.now_ms()
        browsers = self._browsers
        asked: list[Command] = []
        for command in commands:
            if type(command) is Publish:
                for part in cut(command):
                    self._put(part, now_ms)
            elif (browsers or type(command) is Subscribe) and browsers.says(command):
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
        # Ask the leader, if it is still there: else browsers come anew, and nothing is lost.
        if asked and self.lost_ms is None:
            assert self.leader is not None
            self._port.send(self.leader, self.group, Browse(self._token, asked))

    def _put(self, command: Command, now_ms: int) -> None:
        if self.full_ms is not None and type(command) is Publish:
            self._held.append(command)
            return
        letter = _Letter(self._next, command, now_ms)
        self._next += 1
        if self._kept is _NO_LETTERS:
            self._kept = deque()
        self._kept.append(letter)
        kind = type(command)
        if kind is not Publish and (kind is not Settle or self._consumers):
            self._note(letter, command)

    def _note(self, letter: _Letter, command: Command) -> None:
        match command:
            case Settle():
                consumer = self._consumers.get(command.consumer)
                if consumer is not None:
                    self._less(command.consumer, consumer, len(command.keys))
            case Credit():
                consumer = self._consumers.get(command.consumer)
                if consumer is not None:
                    letter.epoch = consumer.epoch
                    consumer.draining = command.drain and consumer.selects
                    if not consumer.counted:
                        self._timed.append(letter)
            case GiveBack():
                consumer = self._consumers.get(command.consumer)
                if consumer is not None:
                    back = consumer.seen - command.seen + len(command.keys)
                    consumer.seen, consumer.epoch = command.seen, command.epoch
                    self._less(command.consumer, consumer, back)
            case Subscribe():
                selects = encoded(command.filters) is not None
                consumer = _RemoteConsumer(settled=command.settled, counted=command.counted, selects=selects)
                self._consumers[command.consumer] = consumer
                self._timed.append(letter)
            case Cancel():
                consumer = self._consumers.get(command.consumer)
                if consumer is not None:
                    consumer.cancelled = True
                    self._less(command.consumer, consumer, 0)
            case Unsubscribe():
                consumer = self._consumers.pop(command.consumer, None)
                if consumer is not None and consumer.missed:
                    letter.command = replace(command, seen=command.seen + consumer.missed)
            case AttachPublisher():
                self._publishers[command.publisher] = None
            case DetachPublisher():
                self._publishers.pop(command.publisher, None)
            case Inspect() | Purge() | Delete():
                self._timed.append(letter)
            case _:
                return

    def _less(self, ref: ConsumerRef, consumer: _RemoteConsumer, deliveries: int) -> None:
        consumer.held -= deliveries
        if consumer.cancelled and (consumer.held <= 0 or consumer.settled):
            del self._consumers[ref]

    # --- to the leader ----------------------------------------------------------------------------

    def _send_rest(self) -> None:
        assert self.leader is not None
        kept, sent = self._kept, self._sent
        if not kept or sent >= kept[-1].number:
            return
        at = sent + 1 - kept[0].number
        while at < len(kept):
            if self._port.crowded(self.leader):
                self._port.stir(self.group)
                return
            stop = min(at + LETTERS_MAX, len(kept))
            letters = [kept[index] for index in range(at, stop)] if at else list(kept)[:stop]
            commands = [self._as_counted(each) for each in letters]
            batch = LetterBatch(self._token, letters[0].number, self.heard, commands)
            self._sent = letters[-1].number
            if not self._port.send(self.leader, self.group, batch):
                # What was not sent is as good as lost: the way will be reported lost.
                return
            if self.lost_ms is not None or not kept:
                return  # it was answered at once
            at = self._sent + 1 - kept[0].number

    def _as_counted(self, letter: _Letter) -> Command:
        # A letter with numbers as the queue counts: what never reached the session counts as seen there.
        command = letter.command
        if type(command) is Credit or type(command) is GiveBack:
            assert isinstance(command, Credit | GiveBack)
            consumer = self._consumers.get(command.consumer)
            missed = 0 if consumer is None else consumer.missed
            if missed:
                count = (command.delivery_count + missed) & MASK
                return replace(command, seen=command.seen + missed, delivery_count=count)
        return command

    def _ask(self, now_ms: int, *, idle: bool = False) -> None:
        used = self._kept or self._consumers or self._publishers or self._browsers
        if self.leader is None or not (used or idle):
            return
        self._asked_ms = now_ms
        seen: dict[ConsumerRef, int] = {}
        for letter in self._kept:
            command = letter.command
            if type(command) is Unsubscribe:
                seen[command.consumer] = command.seen
        for ref, consumer in self._consumers.items():
            seen[ref] = consumer.seen + consumer.missed
        first = self._kept[0].number if self._kept else self._next
        resume = ResumeRemote(self._token, self._port.incarnation, self.heard, first, seen)
        self._port.send(self.leader, self.group, resume)

    # --- where the leader is ----------------------------------------------------------------------

    def leader_is(self, node: int, leader: LeaderIs) -> None:
        """A node announces itself as the leader."""
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
        """There is no way to a node any more."""
        if node == self.leader and not self.ended:
            self._lose()
            self.leader = None
            self._hold_no_more()  # they wait for a leader as all others do
            if self._end_ms is not None:
                self.end()

    def _lose(self) -> None:
        # What is told under the token so far, and came late, is not for the next leadership.
        self._token = self._token + 1 & MASK
        self._asked_ms = None
        if self.lost_ms is None:
            self.lost_ms = self._port.now_ms()
        self._port.stir(self.group)

    # --- a leader whose disk is full --------------------------------------------------------------

    def _hold(self) -> None:
        publishes: list[Publish] = []
        others: deque[_Letter] = deque()
        number = self._kept[0].number if self._kept else self._next
        for letter in self._kept:
            command = letter.command
            if type(command) is Publish:
                publishes.append(command)
                letter.done = True
                continue
            letter.number = number + len(others)
            others.append(letter)
            request = getattr(command, "request", None)
            if request is not None and request in self._refused:
                self._refused[request] = letter.number
        if publishes:
            self._next = number + len(others)
            self._kept = others
            self._held = publishes + self._held
            self._timed = [each for each in self._timed if not each.done]

    def _hold_no_more(self) -> None:
        self.full_ms = None
        held, self._held = self._held, []
        for command in held:
            self._put(command, self._port.now_ms())

    # --- from the leader --------------------------------------------------------------------------

    def told(self, node: int, told: RemoteEffects) -> None:
        """Apply effects for sessions of this node."""
        if told.token != self._token or self.lost_ms is not None or node != self.leader:
            return
        self.heard = max(self.heard, told.index)
        effects = self._heard(told.effects)
        if effects:
            self._port.tell(effects)
        self._drop_done(told.done)
        if self._sent < self._next - 1:
            self._send_rest()
        if self._end_ms is not None and not self._kept:
            self.end()

    def _heard(self, effects: Mapping[PeerId, list[Effect]]) -> Told_:
        heard: Told_ = {}
        for peer, given in effects.items():
            if self._browsers:
                given = self._heard_by_browsers(given)
            for_peer = [each for each in given if type(each) is Confirmed or self._is_for_session(each)]
            if for_peer:
                heard[peer] = self._without_missed(for_peer)
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

    def _is_for_session(self, effect: Effect) -> bool:
        match effect:
            case Deliver():
                consumer = self._consumers.get(effect.consumer)
                if consumer is None:
                    return effect.consumer in self._browsers
                if consumer.cancelled or effect.epoch != consumer.epoch:
                    return False
                consumer.seen += len(effect.keys)
                consumer.held += len(effect.keys)
            case CreditReply():
                consumer = self._consumers.get(effect.consumer)
                if consumer is None or consumer.active is not False:
                    self.available = effect.available  # otherwise that says nothing of the queue
                if consumer is None:
                    return effect.consumer in self._browsers
                consumer.draining = consumer.draining and not effect.drain
            case ActiveChanged():
                consumer = self._consumers.get(effect.consumer)
                if consumer is None:
                    return False
                consumer.active = effect.active
            case TimedOut():
                consumer = self._consumers.get(effect.consumer)
                if consumer is not None:
                    self._less(effect.consumer, consumer, len(effect.keys))
            case Answer():
                if effect.refused is None:
                    self.available = effect.ready
                return effect.request not in self._refused
            case Subscribed():
                return effect.consumer in self._consumers or effect.consumer in self._browsers
            case SubscribeRefused():
                return self._consumers.pop(effect.consumer, None) is not None
            case QueueDeleted():
                ref = effect.ref
                if isinstance(ref, ConsumerRef):
                    return self._consumers.pop(ref, None) is not None or self._browsers.forget(ref)
                self._publishers.pop(ref, None)
            case _:
                return True
        return True

    def _without_missed(self, effects: list[Effect]) -> list[Effect]:
        for at, effect in enumerate(effects):
            if type(effect) is CreditReply and effect.consumer not in self._browsers:
                missed = self._consumers[effect.consumer].missed
                if missed:
                    effects[at] = replace(effect, delivery_count=(effect.delivery_count - missed) & MASK)
        return effects

    def _drop_done(self, done: int) -> None:
        kept = self._kept
        while kept and kept[0].number <= done:
            letter = kept.popleft()
            letter.done = True
        timed = self._timed
        if timed and timed[0].done:
            del timed[: next((at for at, each in enumerate(timed) if not each.done), len(timed))]
        for ref in [ref for ref, number in self._refused.items() if number <= done] if self._refused else ():
            del self._refused[ref]

    def resumed(self, node: int, resumed: RemoteResumed) -> None:
        """Continue the lane after the leader's answer to `ResumeRemote`."""
        if resumed.token != self._token or self.lost_ms is None or node != self.leader:
            return
        self.lost_ms = None
        self._asked_ms = None
        self.heard = max(self.heard, resumed.index)
        first = self._kept[0].number if self._kept else self._next
        if resumed.last < first - 1 and not resumed.deleted:
            self._forgotten()
            return
        effects = self._caught_up(resumed)
        inspects = [
            each.command
            for each in self._kept
            if each.number <= resumed.last
            and type(each.command) is Inspect
            and each.command.request not in self._refused
        ]
        self._sent = resumed.last
        self._drop_done(resumed.last)
        if self.full_ms is not None:
            self._hold()
        if resumed.deleted:
            self.ended = True
            _add(effects, self._all_gone())
        if effects:
            self._port.tell(effects)
        if self.ended:
            return
        now_ms = self._port.now_ms()
        for command in inspects:
            # The counts of then are not known any more: it is asked again.
            self._put(command, now_ms)
        self._send_rest()
        if self._browsers:
            asked, answers = self._browsers.anew()
            self._ask_for_browsers(asked)
            for answer in answers:
                self._port.tell({answer.consumer.reply_to: [answer]})
        if self._end_ms is not None and not self._kept:
            self.end()

    def _caught_up(self, resumed: RemoteResumed) -> Told_:
        out: Told_ = {}
        rejected: dict[PublisherRef, set[int]] = {}
        answers: dict[RequestRef, Answer] = {}
        drained: list[CreditReply] = []
        for effect in resumed.kept:
            match effect:
                case TimedOut():
                    add_effect(out, effect.consumer.reply_to, effect)
                    consumer = self._consumers.get(effect.consumer)
                    if consumer is not None:
                        self._less(effect.consumer, consumer, len(effect.keys))
                case PublishRejected():
                    rejected.setdefault(effect.publisher, set()).update(effect.ids)
                case Answer():
                    answers[effect.request] = effect
                case CreditReply():
                    drained.append(effect)
                case _:
                    raise AssertionError(f"no queue keeps {effect!r}")
        for ref, state in resumed.consumers.items():
            consumer = self._consumers.get(ref)
            if consumer is not None:
                consumer.missed += state.missed
                if state.active is not False:
                    self.available = state.available
        for deliver in resumed.deliveries:
            if self._is_for_session(deliver):
                add_effect(out, deliver.consumer.reply_to, deliver)
        for reply in drained:
            if self._is_for_session(reply):
                add_effect(out, reply.consumer.reply_to, self._without_missed([reply])[0])
        last = resumed.last
        asking: set[ConsumerRef] = set()
        subscribing: set[ConsumerRef] = set()
        for letter in self._kept:
            command = letter.command
            if letter.number > last:
                if type(command) is Credit:
                    asking.add(command.consumer)
                elif type(command) is Subscribe:
                    subscribing.add(command.consumer)
                continue
            if type(command) is Credit:
                asking.add(command.consumer)
            self._answer(letter, resumed, rejected, answers, out)
        for ref in list(self._consumers):
            self._bring_up_to_date(ref, resumed, asking, subscribing, out)
        return out

    def _answer(
        self,
        letter: _Letter,
        resumed: RemoteResumed,
        rejected: Mapping[PublisherRef, set[int]],
        answers: Mapping[RequestRef, Answer],
        out: Told_,
    ) -> None:
        command = letter.command
        match command:
            case Publish():
                publisher, ids, settled = command.publisher, command.ids, command.settled
                refused = rejected.get(publisher)
                if refused is not None:
                    not_taken = [each for each in ids if each in refused]
                    if not_taken:
                        ids = [each for each in ids if each not in refused]
                        add_effect(
                            out,
                            publisher.reply_to,
                            PublishRejected(publisher, not_taken, settled, self.queue),
                        )
                if ids:
                    add_effect(out, publisher.reply_to, Confirmed(publisher, ids, settled))
            case Settle():
                if command.answer:
                    add_effect(out, command.consumer.reply_to, Settled(command.consumer, command.keys))
            case Subscribe():
                if command.answer and command.consumer in self._consumers:
                    add_effect(out, command.consumer.reply_to, Subscribed(command.consumer))
            case Credit():
                state = resumed.consumers.get(command.consumer)
                consumer = self._consumers.get(command.consumer)
                # Drains of those that select are answered by the queue, now or later.
                waits = command.drain and consumer is not None and consumer.selects
                if state is not None and consumer is not None and not waits:
                    reply = CreditReply(
                        command.consumer,
                        (state.delivery_count - consumer.missed) & MASK,
                        state.credit,
                        state.available,
                        command.drain,
                        letter.epoch,
                    )
                    add_effect(out, command.consumer.reply_to, reply)
            case Purge() | Delete():
                request = command.request
                if request is not None and request not in self._refused:
                    add_effect(out, request.reply_to, answers.get(request, Answer(request, 0, 0)))
            case _:
                return

    def _bring_up_to_date(
        self,
        ref: ConsumerRef,
        resumed: RemoteResumed,
        asking: set[ConsumerRef],
        subscribing: set[ConsumerRef],
        out: Told_,
    ) -> None:
        consumer = self._consumers[ref]
        state = resumed.consumers.get(ref)
        if state is None:
            if ref not in subscribing and not resumed.deleted:
                # One that was cancelled and holds nothing any more is unknown there; any other was lost.
                del self._consumers[ref]
                if not consumer.cancelled:
                    add_effect(out, ref.reply_to, QueueDown(ref, self.queue))
            return
        if state.active is not None and state.active is not consumer.active:
            consumer.active = state.active
            add_effect(out, ref.reply_to, ActiveChanged(ref, state.active))
        if state.missed and ref not in asking and not consumer.draining:
            # Credit went with deliveries that nobody had: its session would wait for them.
            count = (state.delivery_count - consumer.missed) & MASK
            reply = CreditReply(ref, count, state.credit, state.available, False, state.epoch)
            add_effect(out, ref.reply_to, reply)

    # --- who waits no longer ----------------------------------------------------------------------

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` is due; None: it need not be called."""
        times = []
        if self._end_ms is not None and not self.ended:
            times.append(self._end_ms)
        if self.lost_ms is not None and not self.ended:
            if self._asked_ms is not None:
                times.append(self._asked_ms + ASK_AGAIN_MS)
            times += [self._waits_until(each) for each in self._timed if each.waits]
            since_ms = self._browsers.waiting_since()
            if since_ms is not None:
                times.append(since_ms + self._wait_ms)
        elif not self.ended and self._sent < self._next - 1:
            times.append(self._port.now_ms())  # there was no room on the way
        return min(times, default=None)

    def _waits_until(self, letter: _Letter) -> int:
        since = letter.since_ms if self.lost_ms is None else max(letter.since_ms, self.lost_ms)
        wait_ms = self._wait_ms
        return since + (min(NO_COUNTS_MS, wait_ms) if type(letter.command) is Inspect else wait_ms)

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
        out: Told_ = {}
        late = [each for each in self._timed if each.waits and now_ms >= self._waits_until(each)]
        for letter in late:
            self._give_up(letter, out, now_ms)
        for ref in self._browsers.late(now_ms - self._wait_ms) if self._browsers else ():
            self._browsers.forget(ref)
            add_effect(out, ref.reply_to, SubscribeRefused(ref, self.queue, Refusal.NO_LEADER))
        if late:
            self._timed = [each for each in self._timed if each.waits]
        if out:
            self._port.tell(out)

    def _give_up(self, letter: _Letter, out: Told_, now_ms: int) -> None:
        letter.done = True
        command = letter.command
        match command:
            case Subscribe() | Credit():
                ref = command.consumer
                consumer = self._consumers.get(ref)
                if consumer is None:
                    return
                add_effect(out, ref.reply_to, SubscribeRefused(ref, self.queue, Refusal.NO_LEADER))
                # One that is carried out late leaves no consumer.
                self._put(Unsubscribe(ref, (), (), consumer.seen, DeliveryOutcome.REQUEUE), now_ms)
            case Inspect() | Purge() | Delete():
                request = command.request
                if request is not None:
                    self._refused[request] = letter.number
                    add_effect(out, request.reply_to, Answer(request, 0, 0, Refusal.NO_LEADER))
            case _:
                raise AssertionError(f"nobody gives up {command!r}")

    # --- the end ----------------------------------------------------------------------------------

    def forget(self) -> None:
        """The queue is deleted from the catalog: await its last effects, then end."""
        if self.ended or self._end_ms is not None:
            return
        attached = self._consumers or self._publishers or self._browsers
        if self.lost_ms is not None or not (self._kept or attached):
            self.end()
        else:
            self._end_ms = self._port.now_ms() + LAST_WORDS_MS
            self._port.stir(self.group)

    def end(self) -> None:
        """The queue is gone: notify waiting callers and attached links."""
        if not self.ended:
            self.ended = True
            self._port.tell(self._all_gone())

    def _all_gone(self) -> Told_:
        out = self._gone([*(each.command for each in self._kept if not each.done), *self._held])
        told: set[object] = {
            effect.ref for effects in out.values() for effect in effects if isinstance(effect, QueueDeleted)
        }
        refs: list[ConsumerRef | PublisherRef] = [*self._consumers, *self._browsers, *self._publishers]
        for ref in refs:
            if ref not in told:
                add_effect(out, ref.reply_to, QueueDeleted(ref, self.queue))
        self._clear()
        return out

    def _clear(self) -> None:
        self._kept.clear()
        self._held.clear()
        self._timed.clear()
        self._consumers.clear()
        self._browsers.clear()
        self._publishers.clear()
        self._refused.clear()

    def _gone(self, commands: Iterable[Command]) -> Told_:
        out: Told_ = {}
        for command in commands:
            match command:
                case Publish():
                    publisher = command.publisher
                    refused = Unconfirmed(publisher, command.ids, command.settled, queue=self.queue)
                    add_effect(out, publisher.reply_to, refused)
                case AttachPublisher():
                    ref = command.publisher
                    add_effect(out, ref.reply_to, QueueDeleted(ref, self.queue))
                case Subscribe():
                    consumer = command.consumer
                    add_effect(out, consumer.reply_to, QueueDeleted(consumer, self.queue))
                case Inspect() | Purge() | Delete():
                    request = command.request
                    if request is not None and request not in self._refused:
                        add_effect(out, request.reply_to, Answer(request, 0, 0, Refusal.GONE))
                case _:
                    continue
        return out

    def _forgotten(self) -> None:
        out: Told_ = {}
        for command in (*(letter.command for letter in self._kept), *self._held):
            match command:
                case Publish():
                    refused = Unconfirmed(
                        command.publisher, command.ids, command.settled, failed=True, queue=self.queue
                    )
                    add_effect(out, command.publisher.reply_to, refused)
                case Inspect() | Purge() | Delete() if command.request is not None:
                    answer = Answer(command.request, 0, 0, Refusal.NO_LEADER)
                    add_effect(out, command.request.reply_to, answer)
                case _:
                    continue
        for ref in (*self._consumers, *self._browsers):
            add_effect(out, ref.reply_to, QueueDown(ref, self.queue))
        self._clear()
        self._lose()
        self.leader = None
        self._port.tell(out)


def add_effect(out: Told_, peer: PeerId, effect: Effect) -> None:
    """Add an effect to those of a session."""
    effects = out.get(peer)
    if effects is None:
        out[peer] = [effect]
    else:
        effects.append(effect)


def _add(out: Told_, more: Told_) -> None:
    for peer, effects in more.items():
        out.setdefault(peer, []).extend(effects)
