"""A quorum queue of three members whose leaders come and go, and nodes whose sessions must not notice.

The members get the same entries as bytes; one of them leads. Beside them runs the queue as it would be if
nothing were lost: it carries out the same entries, and all that it tells is remembered. Nodes number their
letters, keep what is not answered, and ask where things stand when they have a new leader, or lost touch with
the old one. When everything has come to rest, each session has heard exactly what it would have heard without
the losses: each publish answered once, each delivery once and in order, each answer once.

`Node` is a small client half of a link, written from the machine's promises alone; the broker's own is
`cluster.remote_queue.link`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from amqp10broker.message.amqp10 import decode_head
from amqp10broker.message.message import Message, make_head
from amqp10broker.message.redelivery import X_ACQUIRED_COUNT
from amqp10broker.protocols.amqp10.performatives import Header
from amqp10broker.protocols.amqp10.types import UByte, UInt
from amqp10broker.protocols.serial import MASK, limit_left
from amqp10broker.queues.commands import (
    TICK,
    AttachPublisher,
    Cancel,
    Command,
    Configure,
    ConsumerRef,
    Credit,
    DeliveryOutcome,
    GiveBack,
    Inspect,
    PeerId,
    Publish,
    PublisherRef,
    Purge,
    ReplyTo,
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
    Settled,
    Subscribed,
    TimedOut,
)
from amqp10broker.queues.settings import DeadLetterStrategy, Overflow, QueueSettings, RetryType
from tests.support.raft_room import Room
from tests.support.selecting import selector

START_MS = 1_000_000
MEMBERS = 3
NODES = (1, 2)

Item = tuple[int, int, Message]
"""A delivery: its epoch, its key, its message."""


def message(number: int, dice: Random) -> Message:
    """A message that is like no other, of whatever priority and time to live."""
    priority = dice.choice([None, None, 5])
    ttl = dice.choice([None, None, None, 400])
    header = Header(
        priority=None if priority is None else UByte(priority), ttl=None if ttl is None else UInt(ttl)
    )
    return make_head(header, None, "", "q"), b"%d" % number + b"." * dice.choice([0, 0, 40])


class Reader:
    """One consumer as its session knows it, which sees its mailbox late."""

    def __init__(self, ref: ConsumerRef, *, settled: bool, selects: bool) -> None:
        self.ref = ref
        self.settled = settled
        self.selects = selects
        self.seen = 0
        self.ahead = 0
        self.epoch = 0
        self.asked: Credit | None = None
        self.missed = 0
        """Of what it asked for."""
        self.waiting: dict[int, Message] = {}
        self.sent: dict[int, Message] = {}
        self.closed = False
        self.subscribed = 0
        self.active: bool | None = None
        self.accepted: list[Item | None] = []
        """None: it missed this one for good."""
        self.timed_out: list[list[int]] = []
        self.settlements: list[list[int]] = []

    def credit(self, credit: int, *, drain: bool, room: int) -> Credit:
        count = (self.seen + self.ahead - len(self.waiting)) & MASK
        self.asked, self.missed = Credit(self.ref, count, credit, drain, self.seen, room), 0
        return self.asked

    def give_back(self, keys: Sequence[int]) -> GiveBack:
        messages = [self.waiting.pop(key) for key in keys]
        self.epoch += 1
        return GiveBack(self.ref, keys, messages, (self.seen + self.ahead) & MASK, self.seen, self.epoch)

    def hear(self, effect: Effect) -> None:
        match effect:
            case Deliver():
                self._deliver(effect)
            case CreditReply():
                self._reply(effect)
            case TimedOut():
                self.timed_out.append([*effect.keys])
                for key in effect.keys:
                    self.waiting.pop(key, None)
                    self.sent.pop(key, None)
            case Settled():
                self.settlements.append([*effect.keys])
            case Subscribed():
                self.subscribed += 1
            case ActiveChanged():
                assert self.active is not effect.active, "what it knows is not told again"
                self.active = effect.active
            case _:
                raise AssertionError(effect)

    def _deliver(self, effect: Deliver) -> None:
        if effect.epoch != self.epoch or self.closed:
            return
        for key, each in zip(effect.keys, effect.messages, strict=True):
            held = self.waiting.pop(key, None) or self.sent.pop(key, None)
            # Its node was away for so long that the queue gave what it held to others, who gave it back.
            assert held is None or _attempts(each) > _attempts(held), "a delivery came twice"
            self.waiting[key] = each
            self.accepted.append((effect.epoch, key, each))
        self.seen += len(effect.keys)

    def _reply(self, reply: CreditReply) -> None:
        asked, self.asked = self.asked, None
        assert asked is not None, "an answer that was not asked for, or the second one"
        assert reply.drain == asked.drain
        if reply.epoch != self.epoch or self.closed:
            return
        known = (self.seen + self.ahead) & MASK
        if reply.drain:
            assert reply.credit == 0
            self.ahead += (reply.delivery_count - known) & MASK
            return
        assert reply.delivery_count == known, "the queue counts otherwise than its consumer"
        left = limit_left(asked.delivery_count, asked.credit, known)
        if reply.credit or asked.room == BIG:
            assert reply.credit == max(0, left - self.missed), "credit is what is left of what was asked"


BIG = 1 << 40
SELECTORS = ("JMSPriority > 4", "JMSPriority < 5", "JMSPriority IS NOT NULL")


class Node:
    """One start of a node: its session, and its end of the link to the queue."""

    def __init__(self, life: Life, number: int, incarnation: int) -> None:
        self.life = life
        self.key = number, incarnation
        self.session = ReplyTo(PeerId(number, incarnation, 5), "s")
        self.publishers = [self.session.publisher() for _ in range(2)]
        self.readers: dict[ConsumerRef, Reader] = {}
        self.published = 0
        self.outcomes: dict[tuple[PublisherRef, int], bool] = {}
        self.answers: dict[RequestRef, Answer] = {}
        self.purges: list[RequestRef] = []
        self.questions: list[RequestRef] = []
        # The link.
        self.connected = False
        self.sent = 0
        self.heard = 0
        self.unanswered: dict[int, Command] = {}
        self.epoch_of_credit: dict[int, int] = {}
        self.outgoing: list[tuple[int, int, Command]] = []
        """Number, what was heard then, and letter: on their way."""
        self.incoming: list[tuple[int, int, list[Effect]]] = []
        """Entry, last letter that was carried out, and effects: on their way."""
        self.epochs: dict[ConsumerRef, int] = {}
        self.seen: dict[ConsumerRef, int] = {}
        self.missed: dict[ConsumerRef, int] = {}

    # --- to the queue

    def post(self, command: Command) -> None:
        self.sent += 1
        self.unanswered[self.sent] = command
        match command:
            case Subscribe():
                self.epochs[command.consumer] = self.seen[command.consumer] = 0
                self.missed[command.consumer] = 0
            case Credit():
                self.epoch_of_credit[self.sent] = self.epochs[command.consumer]
            case GiveBack():
                self.epochs[command.consumer] = command.epoch
                self.seen[command.consumer] = command.seen
        if self.connected:
            self.outgoing.append((self.sent, self.heard, self._as_the_queue_counts(command)))

    def _as_the_queue_counts(self, command: Command) -> Command:
        match command:
            case Credit() | GiveBack():
                missed = self.missed[command.consumer]
                count = (command.delivery_count + missed) & MASK
                return replace(command, delivery_count=count, seen=command.seen + missed)
            case Unsubscribe():
                return replace(command, seen=command.seen + self.missed[command.consumer])
            case _:
                return command

    # --- from the queue

    def receive(self) -> None:
        """The next that is on its way."""
        index, done, effects = self.incoming.pop(0)
        assert index > self.heard
        self.heard = index
        for number in [each for each in self.unanswered if each <= done]:
            del self.unanswered[number]
        for effect in effects:
            self.tell(effect)

    def tell(self, effect: Effect) -> None:
        match effect:
            case Deliver():
                if effect.epoch == self.epochs[effect.consumer]:
                    self.seen[effect.consumer] += len(effect.keys)
            case CreditReply():
                count = (effect.delivery_count - self.missed[effect.consumer]) & MASK
                effect = replace(effect, delivery_count=count)
            case _:
                pass
        match effect:
            case Confirmed() | PublishRejected():
                for number in effect.ids:
                    assert (effect.publisher, number) not in self.outcomes, "a publish was answered twice"
                    self.outcomes[effect.publisher, number] = isinstance(effect, Confirmed)
            case Answer():
                assert effect.request not in self.answers, "a question was answered twice"
                self.answers[effect.request] = effect
            case _:
                ref = effect.consumer  # type: ignore[union-attr]
                self.readers[ref].hear(effect)

    # --- when the leader is another, or was lost

    def cut(self) -> None:
        """All that is on its way is lost."""
        self.connected = False
        self.outgoing.clear()
        self.incoming.clear()

    def resume(self) -> None:
        life = self.life
        seen = {ref: self.seen[ref] + self.missed[ref] for ref in self.seen}
        found = life.leader.resume(*self.key, self.heard, seen)
        refused = set()
        drained = []
        for _, peer, effect in found.kept:
            assert peer == self.session.id
            if isinstance(effect, CreditReply):
                drained.append(effect)
                continue
            self.tell(effect)
            if isinstance(effect, PublishRejected):
                refused |= {(effect.publisher, number) for number in effect.ids}
        self.heard = life.index
        answered = {number: each for number, each in self.unanswered.items() if number <= found.last}
        again: list[Command] = []
        for command in answered.values():
            match command:
                case Publish(publisher=publisher):
                    ids = [each for each in command.ids if (publisher, each) not in refused]
                    if ids:
                        self.tell(Confirmed(publisher, ids, command.settled))
                case Settle(answer=True):
                    self.tell(Settled(command.consumer, command.keys))
                case Subscribe(answer=True):
                    self.tell(Subscribed(command.consumer))
                case Inspect():
                    again.append(command)
                case _:
                    pass
        for deliver in found.deliveries:
            self.miss(deliver.consumer, found.consumers[deliver.consumer].missed, found.last)
            self.tell(deliver)
        for ref, facts in found.consumers.items():
            if all(each.consumer != ref for each in found.deliveries):
                self.miss(ref, facts.missed, found.last)
            if facts.active is not None and self.readers[ref].active is not facts.active:
                self.tell(ActiveChanged(ref, facts.active))
        for reply in drained:
            self.tell(reply)
        for number, command in answered.items():
            if isinstance(command, Credit) and command.drain and self.readers[command.consumer].selects:
                del self.unanswered[number]
                continue  # the queue answers when it was looked through
            epoch = self.epoch_of_credit.get(number)
            if isinstance(command, Credit) and epoch is not None and command.consumer in found.consumers:
                facts = found.consumers[command.consumer]
                numbers = facts.delivery_count, facts.credit, facts.available
                self.tell(CreditReply(command.consumer, *numbers, command.drain, epoch))
            del self.unanswered[number]
        assert not set(found.consumers) - set(self.seen), "consumers that its node does not know"
        self.connected = True
        self.outgoing += [
            (number, self.heard, self._as_the_queue_counts(each)) for number, each in self.unanswered.items()
        ]
        for command in again:
            self.post(command)

    def miss(self, ref: ConsumerRef, count: int, last: int) -> None:
        """Deliveries have come for a consumer and gone again; letters were carried out up to the last one."""
        reader = self.readers[ref]
        self.missed[ref] += count
        reader.accepted += [None] * count
        if all(each is not reader.asked for number, each in self.unanswered.items() if number > last):
            reader.missed += count


class Truth:
    """What a session hears that loses nothing."""

    def __init__(self) -> None:
        self.outcomes: dict[tuple[PublisherRef, int], bool] = {}
        self.answers: dict[RequestRef, Answer] = {}
        self.deliveries: dict[ConsumerRef, list[Item]] = {}
        self.timed_out: dict[ConsumerRef, list[list[int]]] = {}
        self.settlements: dict[ConsumerRef, list[list[int]]] = {}
        self.subscribed: dict[ConsumerRef, int] = {}
        self.active: dict[ConsumerRef, bool] = {}

    def hear(self, effect: Effect) -> None:
        match effect:
            case Confirmed() | PublishRejected():
                for number in effect.ids:
                    self.outcomes[effect.publisher, number] = isinstance(effect, Confirmed)
            case Answer():
                self.answers[effect.request] = effect
            case Deliver():
                items = zip(effect.keys, effect.messages, strict=True)
                found = self.deliveries.setdefault(effect.consumer, [])
                found += [(effect.epoch, *item) for item in items]
            case TimedOut():
                self.timed_out.setdefault(effect.consumer, []).append([*effect.keys])
            case Settled():
                self.settlements.setdefault(effect.consumer, []).append([*effect.keys])
            case Subscribed():
                self.subscribed[effect.consumer] = self.subscribed.get(effect.consumer, 0) + 1
            case ActiveChanged():
                self.active[effect.consumer] = effect.active
            case CreditReply():
                pass
            case _:
                raise AssertionError(effect)

    def took_back(self, command: Command) -> None:
        """A session took back what it had not seen by then."""
        match command:
            case GiveBack():
                found = self.deliveries.get(command.consumer, [])
                old = [item for item in found if item[0] < command.epoch]
                new = [item for item in found if item[0] >= command.epoch]
                self.deliveries[command.consumer] = old[: command.seen] + new
            case Unsubscribe():
                found = self.deliveries.get(command.consumer, [])
                self.deliveries[command.consumer] = found[: command.seen]
            case _:
                pass


class Life:
    """One life of the queue: everything that happens is chosen by the dice."""

    def __init__(self, room: Room, dice: Random, *, selects: bool = False) -> None:
        self.room = room
        self.selects = selects
        self.found: Any = None
        """What the leader has found for those who select; on its way."""
        self.dice = dice
        self.now = START_MS
        self.settings = QueueSettings(
            single_active_consumer=dice.choice([False, False, True]),
            dead_letter_exchange="dlx",
            delivery_limit=dice.choice([1, 20, None]),
        )
        self.log: list[bytes] = []
        self.members = [self._new_queue() for _ in range(MEMBERS)]
        self.applied = [0] * MEMBERS
        self.at = 0
        self.reference = self._new_queue()
        for member in self.members[1:]:
            member.follow()
        self.truth = Truth()
        self.dead: list[Message] = []
        self.forwarded: list[Message] = []
        self.nodes = [Node(self, number, 1) for number in NODES]
        self.suspected: list[tuple[int, int]] = []

    def _new_queue(self) -> Any:
        return self.room.QuorumQueue("q", settings=self.settings, now_ms=self.now)

    @property
    def leader(self) -> Any:
        return self.members[self.at]

    @property
    def index(self) -> int:
        """The last entry."""
        return len(self.log)

    # --- the log

    def commit(self, commands: Sequence[Any], *, told: bool = True) -> None:
        """An entry that the leader proposes.

        Args:
            commands: of it.
            told: the leader lives to carry it out, and to tell what comes of it.
        """
        # What nobody carried out yet but the others, it has: the leader is never behind.
        encoded = self.room.encode_commands(commands, self.now, self.reference.next_index)
        self.log.append(b"".join(encoded.pieces))
        self._carry_out_by_reference(self.log[-1])
        if not told:
            return
        leader = self.leader
        assert self.applied[self.at] == self.index - 1
        leader.begin_entry(self.index)
        for command in commands:
            leader.apply(command, self.now)
        self.applied[self.at] = self.index
        effects = leader.take_effects()
        self.forwarded += _messages_of(leader.take_dead_letters())
        for node in self.nodes:
            if node.connected:
                own = effects.get(node.session.id, [])
                node.incoming.append((self.index, leader.link_last(*node.key), own))
        assert self.room.encode_snapshot(leader) == self.room.encode_snapshot(self.reference)

    def _carry_out_by_reference(self, entry: bytes) -> None:
        decoded = self.room.decode_commands(entry)
        reference = self.reference
        reference.begin_entry(self.index)
        for command in decoded.commands:
            inner: Sequence[Command] = []
            if type(command) is self.room.Letters:
                link = reference.link_last(command.node, command.incarnation)
                inner = command.commands if command.first == link + 1 else []
            reference.apply(command, decoded.now_ms)
            for told in reference.take_effects().values():
                for effect in told:
                    if not (isinstance(effect, Answer) and self._is_question(effect.request)):
                        self.truth.hear(effect)
            for each in inner:
                self.truth.took_back(each)
        self.dead += _messages_of(reference.take_dead_letters())

    def _is_question(self, request: RequestRef) -> bool:
        return any(request in node.questions for node in self.nodes)

    def catch_up(self, at: int, count: int | None = None) -> None:
        """A member carries out entries that it has not."""
        member = self.members[at]
        stop = self.index if count is None else min(self.index, self.applied[at] + count)
        for index in range(self.applied[at], stop):
            decoded = self.room.decode_commands(self.log[index])
            assert decoded.first == member.next_index
            member.begin_entry(index + 1)
            for command in decoded.commands:
                member.apply(command, decoded.now_ms)
            assert not member.take_effects()
            assert not member.take_dead_letters()
        self.applied[at] = stop

    def snapshot(self, at: int) -> None:
        """A member gets the leader's state instead of entries."""
        leader = self.leader
        data = self.room.encode_snapshot(leader)
        bodies = self.room.PagedBodies()
        for index in sorted(leader.live_indexes()):
            bodies.put(index, leader.parts()[0].bodies.fetch([index]))
        self.members[at] = self.room.decode_snapshot("q", data, bodies)
        self.members[at].follow()
        self.applied[at] = self.applied[self.at]
        assert self.room.encode_snapshot(self.members[at]) == data

    # --- what happens

    def letters(self, node: Node, count: int) -> list[Any]:
        """The leader takes so many letters of a node that are on their way."""
        taken, node.outgoing = node.outgoing[:count], node.outgoing[count:]
        return [
            self.room.Letters(*node.key, number, number, heard, [command]) for number, heard, command in taken
        ]

    def take_letters(self, *, told: bool = True) -> None:
        commands: list[Any] = []
        for node in self.nodes:
            if node.outgoing and self.dice.random() < 0.7:
                commands += self.letters(node, self.dice.randint(1, len(node.outgoing)))
        if commands:
            self.commit(self.room.joined(commands), told=told)

    def stray_letters(self) -> None:
        """What no leader should propose: letters that came before, or before others that are missing."""
        node = self.dice.choice(self.nodes)
        last = self.leader.link_last(*node.key)
        first = last + self.dice.choice([-1, 0, 2, 3])
        if first >= 1:
            request = Purge(node.session.request())
            publish = Publish(node.publishers[0], [10**6], [message(10**6, self.dice)], False)
            self.commit([self.room.Letters(*node.key, first, first + 1, self.index, [publish, request])])

    def receive(self) -> None:
        for node in self.nodes:
            for _ in range(self.dice.randint(0, len(node.incoming))):
                node.receive()

    def lose_leader(self) -> None:
        """Some of what is on its way arrives, or is in the log although its sender never hears of it."""
        self.receive()
        while self.dice.random() < 0.4 and any(node.outgoing for node in self.nodes):
            self.take_letters(told=False)
        for node in self.nodes:
            node.cut()
        if self.found is not None and self.dice.random() < 0.3:
            self.commit([self.found], told=False)
        self.found = None
        old, self.at = self.at, (self.at + self.dice.randint(1, MEMBERS - 1)) % MEMBERS
        self.members[old].follow()
        self.catch_up(self.at)
        self.leader.lead()
        assert not self.leader.take_effects()
        assert self.room.encode_snapshot(self.leader) == self.room.encode_snapshot(self.reference)
        if old != self.at:
            self.catch_up(old)

    def lose_node(self) -> None:
        """A node is cut off, and may be suspected."""
        node = self.dice.choice(self.nodes)
        self.receive()
        node.cut()
        if self.dice.random() < 0.6:
            self.commit([self.room.NodeSuspect(*node.key)])

    def restart_node(self) -> None:
        at = self.dice.randrange(len(self.nodes))
        number, incarnation = self.nodes[at].key
        node = Node(self, number, incarnation + 1)
        late = self.nodes[at]
        self.nodes[at] = node
        if self.dice.random() < 0.7:
            # It is heard of again before it is known that its old start is gone.
            self.begin(node)
            self.subscribe(node)
            (reader,) = node.readers.values()
            node.post(reader.credit(3, drain=False, room=BIG))
            self.publish(node)
            self.commit(self.letters(node, len(node.outgoing)))
        self.commit([self.room.NodeGone(number, incarnation)])
        late.outgoing = [(late.sent + 1, 0, AttachPublisher(late.publishers[0]))]
        self.commit(self.letters(late, 1))
        assert self.leader.link_last(*late.key) == 0

    def begin(self, node: Node) -> None:
        if node.connected:
            return
        if node.key in self.leader.suspects:
            self.commit([self.room.NodeBack(*node.key)])
        node.resume()

    def connect(self) -> None:
        for node in self.nodes:
            if self.dice.random() < 0.7:
                self.begin(node)

    def pass_time(self) -> None:
        self.now += self.dice.choice([1, 50, 50, 400, 31_000, 70_000])
        self.commit([TICK])

    def configure(self) -> None:
        dice = self.dice
        self.settings = replace(
            self.settings,
            max_length=dice.choice([None, None, 4, 12]),
            overflow=dice.choice([Overflow.DROP_HEAD, Overflow.REJECT_PUBLISH]),
            dead_letter_strategy=dice.choice(list(DeadLetterStrategy)),
            consumer_timeout_ms=dice.choice([None, 300, 30_000, 100_000]),
            retry_type=dice.choice(list(RetryType)),
            retry_min_ms=50,
        )
        self.commit([Configure(self.settings)])

    def look(self) -> bool:
        """The leader looks for those who select; what it finds is carried out now or later."""
        if self.selects and self.found is None:
            self.found = self.leader.look(5)
        found = self.found
        if found is not None and self.dice.random() < 0.7:
            self.found = None
            self.commit([found])
        return found is not None

    # --- what sessions do

    def act(self) -> None:
        node = self.dice.choice(self.nodes)
        readers = [each for each in node.readers.values() if not each.closed]
        kind = self.dice.choice("pppppppppggggggggggggwwwwwwssssssbbcuSSSqPii")
        reader = self.dice.choice(readers) if readers else None
        match kind:
            case "p":
                self.publish(node)
            case "q":
                node.post(AttachPublisher(node.publishers[0]))
            case "P":
                request = node.session.request()
                node.purges.append(request)
                node.post(Purge(request))
            case "i":
                request = node.session.request()
                node.questions.append(request)
                node.post(Inspect(request))
            case "S" if len(readers) < 3:
                self.subscribe(node)
            case "g" if reader is not None and reader.asked is None:
                drain = self.dice.random() < 0.3
                room = self.dice.choice([BIG, BIG, 60])
                node.post(reader.credit(self.dice.choice([1, 3, 10]), drain=drain, room=room))
            case "w" if reader is not None and reader.waiting:
                self.write(reader)
            case "s" if reader is not None and reader.sent:
                self.settle(node, reader)
            case "b" if reader is not None:
                keys = [*reader.waiting][self.dice.randint(0, len(reader.waiting)) :]
                node.post(reader.give_back(keys))
            case "c" if reader is not None:
                node.post(reader.give_back([*reader.waiting]))
                reader.closed = True
                node.post(Cancel(reader.ref))
            case "u" if reader is not None:
                unsent = [*reader.waiting.items()]
                reader.closed = True
                reader.waiting.clear()
                keys, messages = [key for key, _ in unsent], [each for _, each in unsent]
                delivery_outcome = self.dice.choice(list(DeliveryOutcome))
                node.post(Unsubscribe(reader.ref, keys, messages, reader.seen, delivery_outcome))

    def publish(self, node: Node) -> None:
        first, count = node.published, self.dice.choice([1, 2, 6])
        node.published += count
        messages = [message(node.key[0] * 10**5 + first + each, self.dice) for each in range(count)]
        publisher = self.dice.choice(node.publishers)
        node.post(Publish(publisher, range(first, first + count), messages, self.dice.random() < 0.2))

    def subscribe(self, node: Node) -> None:
        settled = self.dice.random() < 0.4
        wanted = self.dice.choice([None, *SELECTORS]) if self.selects else None
        reader = Reader(node.session.consumer(), settled=settled, selects=wanted is not None)
        node.readers[reader.ref] = reader
        counted = self.dice.random() < 0.9
        priority = self.dice.choice([0, 0, 1])
        filters = None if wanted is None else selector(wanted)
        node.post(
            Subscribe(reader.ref, settled, answer=True, priority=priority, counted=counted, filters=filters)
        )

    def write(self, reader: Reader) -> None:
        for key in [*reader.waiting][: self.dice.randint(1, len(reader.waiting))]:
            written = reader.waiting.pop(key)
            if not reader.settled:
                reader.sent[key] = written

    def settle(self, node: Node, reader: Reader) -> None:
        keys = self.dice.sample(sorted(reader.sent), self.dice.randint(1, len(reader.sent)))
        for key in keys:
            del reader.sent[key]
        delivery_outcome = self.dice.choice(
            [DeliveryOutcome.ACCEPT, DeliveryOutcome.ACCEPT, *DeliveryOutcome]
        )
        node.post(Settle(reader.ref, keys, delivery_outcome, answer=self.dice.random() < 0.7))

    # --- a life

    def run(self, steps: int) -> None:
        """Many things happen, and then it comes to rest."""
        self.configure()
        self.connect()
        rare = [self.lose_leader] * 8 + [self.lose_node] * 4 + [self.restart_node] + [self.pass_time] * 3
        rare += [self.configure, self.stray_letters]
        for _ in range(steps):
            draw = self.dice.random()
            if draw < 0.55:
                self.act()
            elif draw < 0.7:
                self.take_letters()
            elif draw < 0.8:
                self.receive()
            elif draw < 0.88:
                self.connect()
                self.look()
            elif draw < 0.93:
                at = self.dice.randrange(MEMBERS)
                if at != self.at:
                    self.dice.choice([self.catch_up, self.snapshot])(at)
            else:
                self.dice.choice(rare)()
        self.rest()

    def rest(self) -> None:
        """All are connected and nothing is on its way: each has heard what it should."""
        for node in self.nodes:
            self.begin(node)
        while self.look() or any(node.outgoing or node.incoming for node in self.nodes):
            self.take_letters()
            self.receive()
        for at in range(MEMBERS):
            self.catch_up(at)
            assert self.room.encode_snapshot(self.members[at]) == self.room.encode_snapshot(self.reference)
        for node in self.nodes:
            self.check(node)
        assert _is_part_of(self.forwarded, self.dead), "dead letters were handed on twice, or by two members"

    def check(self, node: Node) -> None:
        """One node has heard what it should."""
        truth = self.truth
        assert self.leader.link_last(*node.key) == node.sent
        assert not node.unanswered
        own = {key: value for key, value in truth.outcomes.items() if key[0].reply_to == node.session.id}
        assert node.outcomes == own
        assert len(own) == node.published
        for request in node.purges:
            assert node.answers[request] == truth.answers[request]
        assert set(node.answers) == {*node.purges, *node.questions}
        for ref, reader in node.readers.items():
            assert reader.subscribed == 1
            assert reader.timed_out == truth.timed_out.get(ref, [])
            assert reader.settlements == truth.settlements.get(ref, [])
            self.check_deliveries(ref, reader)
            if not reader.closed:
                assert reader.asked is None, "a request for credit was not answered"
                assert reader.active is truth.active.get(ref)

    def check_deliveries(self, ref: ConsumerRef, reader: Reader) -> None:
        """What a consumer got is what it should have got, but for what was taken back before it came."""
        found = self.truth.deliveries.get(ref, [])
        if reader.closed:
            assert len(reader.accepted) <= len(found) or not reader.accepted
            found = found[: len(reader.accepted)]
        assert len(reader.accepted) == len(found)
        for accepted, item in zip(reader.accepted, found, strict=True):
            assert accepted is None or accepted == item


def _attempts(message: Message) -> int:
    found = decode_head(message[0])[1].get(X_ACQUIRED_COUNT, 0)
    assert isinstance(found, int)
    return found


def _messages_of(letters: Sequence[Any]) -> list[Message]:
    return [each for letter in letters for each in letter.messages]


def _is_part_of(some: list[Message], others: list[Message]) -> bool:
    """Whether `some` is `others` with some left out."""
    rest = iter(others)
    return all(each in rest for each in some)
