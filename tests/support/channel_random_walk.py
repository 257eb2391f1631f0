"""A random walk through a world of AMQP 0-9-1 channels, watched by a model of what clients must see.

`Walk` plays several clients with several channels each, and everything that moves between them and the
queues, in any order. What channels write is checked as it is written; `settle` lets everything arrive and
counts every message.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from amqp10broker.config import Config
from amqp10broker.metadata.queue import QueueSpec
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import Content
from amqp10broker.protocols.amqp091.methods import Method
from amqp10broker.queues.commands import Command, DeliveryOutcome, Publish, Purge, Settle
from amqp10broker.sessions.counters import ClientCounters
from tests.support.channel_harness import ChannelEnds, ConnectionEnds, FakeQueueTask, Got, Harness
from tests.support.queue_bench import consumers_of, fresh_of, returned_of
from tests.support.queue_handles import WaitingQueue

Draw = Callable[[int], int]
"""A number from 0 below the one given."""

QUEUES = ("a", "b")
CONFIG = Config(credit_flow_initial=12, credit_flow_more_after=5)
CONNECTIONS = 3
CHANNELS = 2
BOTH = "both"
ENDS = (DeliveryOutcome.ACCEPT, DeliveryOutcome.DISCARD, DeliveryOutcome.DISCARD_FAILED)


class WatchedBox(FakeQueueTask):
    """A queue that notes what it takes and what is settled.

    Attributes:
        taken: numbers of messages, in the order in which it took them.
        done: those that were accepted or dropped for a client.
        purged: how many went by a purge.
    """

    def __init__(self, spec: QueueSpec, on_deleted: Callable[[WaitingQueue], None]) -> None:
        super().__init__(spec, on_deleted)
        self.taken: list[int] = []
        self.done: Counter[int] = Counter()
        self.purged = 0

    def run(self, commands: int) -> None:
        for command in list(self.commands)[:commands]:
            self._note(command)
            super().run(1)

    def _note(self, command: Command) -> None:
        if type(command) is Publish and not self.queue.deleted:
            self.taken += [number_of(body) for _, body in command.messages]
        elif type(command) is Settle and command.delivery_outcome in ENDS:
            consumer = self.queue._consumers.by_ref.get(command.consumer)
            if consumer is not None:
                for key in command.keys:
                    assert key in consumer.unsettled, "settled twice, or never handed out"
                    self.done[number_of(consumer.unsettled[key][1])] += 1
        elif isinstance(command, Purge):
            self.purged += self.queue.ready

    @property
    def ready(self) -> list[int]:
        messages = [message for _, message in returned_of(self.queue)] + fresh_of(self.queue)
        return [number_of(body) for _, body in messages]

    @property
    def held(self) -> list[int]:
        """Return the numbers of the messages that consumers hold unsettled."""
        return [
            number_of(body)
            for consumer in consumers_of(self.queue)
            if not consumer.settled
            for _, body in consumer.unsettled.values()
        ]


class WatchedWorld(Harness):
    """A world whose queues take notes."""

    task = WatchedBox


def number_of(body: bytes) -> int:
    return int(body)


@dataclass
class Consuming:
    """A consumer as its client knows it."""

    tag: str
    queue: str
    no_ack: bool
    prefetch: int
    alive: bool = False


@dataclass
class Asked:
    """A method that is to be answered."""

    answer: type[Method]
    consumer: Consuming | None = None
    qos: methods.BasicQos | None = None
    queue: str = ""
    no_ack: bool = False
    then: Callable[[], None] | None = None


@dataclass
class Watch:
    """One channel's client: what it sent, what it may see, what it has seen.

    Attributes:
        open: the client may send methods.
        mode: plain, confirm or tx.
        asked: methods without an answer, in order.
        unacked: delivery tag -> (consumer or None, queue, message).
        seen: highest delivery tag that the client has read.
        sent: messages that must have arrived, and where to.
        acked: messages that must be done with, and their queue.
    """

    walk: Walk
    channel: ChannelEnds
    open: bool = True
    mode: str = "plain"
    asked: deque[Asked] = field(default_factory=deque)
    consumers: dict[str, Consuming] = field(default_factory=dict)
    unacked: dict[int, tuple[Consuming | None, str, int]] = field(default_factory=dict)
    next_tag: int = 1
    seen: int = 0
    sent_prefetch: int = 0
    global_prefetch: int = 0
    next_seq: int = 1
    unconfirmed: dict[int, tuple[int, bool]] = field(default_factory=dict)
    returned: set[int] = field(default_factory=set)
    in_tx: list[tuple[int, str]] = field(default_factory=list)
    tx_acked: dict[int, tuple[Consuming | None, str, int]] = field(default_factory=dict)
    recovering: int = 0
    rolling_back: int = 0
    bad: bool = False
    acked: list[tuple[str, int]] = field(default_factory=list)
    sent: list[tuple[int, str]] = field(default_factory=list)

    # --- what the client sends --------------------------------------------------------------------

    def ask(self, method: Method, asked: Asked) -> None:
        self.asked.append(asked)
        self.channel.send(method)

    def publish(self, key: str, count: int, *, mandatory: bool) -> None:
        parts = []
        for _ in range(count):
            number = self.walk.new_number()
            exchange, routing_key = ("amq.fanout", "") if key == BOTH else ("", key)
            parts.append(
                self.channel.content(routing_key, b"%d" % number, exchange=exchange, mandatory=mandatory)
            )
            if self.mode == "tx":
                self.in_tx.append((number, key))
            else:
                self.sent.append((number, key))
            if self.mode == "confirm":
                self.unconfirmed[self.next_seq] = (number, mandatory and key == "nowhere")
                self.next_seq += 1
        self.channel.send(*parts)

    def qos(self, count: int, *, global_: bool) -> None:
        method = methods.BasicQos(prefetch_count=count, global_=global_)
        if not global_:
            self.sent_prefetch = count
        self.ask(method, Asked(methods.BasicQosOk, qos=method))

    def consume(self, queue: str, *, no_ack: bool, exclusive: bool) -> None:
        tag = f"t{self.walk.new_number()}"
        consumer = Consuming(tag, queue, no_ack, 0 if no_ack else self.sent_prefetch)
        self.ask(
            methods.BasicConsume(queue, tag, no_ack=no_ack, exclusive=exclusive),
            Asked(methods.BasicConsumeOk, consumer=consumer),
        )

    def cancel(self, tag: str) -> None:
        consumer = self.consumers[tag]

        def then() -> None:
            consumer.alive = False
            self.consumers.pop(tag, None)

        self.ask(methods.BasicCancel(tag), Asked(methods.BasicCancelOk, then=then))

    def get(self, queue: str, *, no_ack: bool) -> None:
        self.ask(methods.BasicGet(queue, no_ack), Asked(methods.BasicGetOk, queue=queue, no_ack=no_ack))

    def settle(self, tag: int, how: int, *, multiple: bool) -> None:
        tags = [each for each in self.unacked if each == tag or (multiple and each < tag)]
        kinds: list[tuple[Method, bool]] = [
            (methods.BasicAck(tag, multiple), True),
            (methods.BasicNack(tag, multiple, True), False),
            (methods.BasicNack(tag, multiple, False), True),
            (methods.BasicReject(tag, True), False),
            (methods.BasicReject(tag, False), True),
        ]
        if multiple:
            kinds = kinds[:3]
        method, final = kinds[how % len(kinds)]
        for each in tags:
            held = self.unacked.pop(each)
            if final:
                self.walk.given_up.add((held[1], held[2]))
            if self.mode == "tx":
                self.tx_acked[each] = held
            elif final:
                self.acked.append((held[1], held[2]))
        self.channel.send(method)

    def can_settle(self) -> list[int]:
        """Return the tags that the client has read and may settle."""
        if self.recovering:
            return []
        return [tag for tag in self.unacked if tag <= self.seen]

    def recover(self) -> None:
        self.recovering += 1
        self.walk.met["recover"] += bool(self.unacked)

        def then() -> None:
            self.recovering -= 1
            self.unacked.clear()

        self.ask(methods.BasicRecover(True), Asked(methods.BasicRecoverOk, then=then))

    def commit(self) -> None:
        published, self.in_tx = self.in_tx, []
        self.tx_acked = {}
        self.sent += published
        self.walk.met["commit"] += bool(published)
        self.ask(methods.TxCommit(), Asked(methods.TxCommitOk))

    def rollback(self) -> None:
        self.in_tx = []
        taken, self.tx_acked = self.tx_acked, {}
        self.walk.met["rollback"] += bool(taken)
        self.rolling_back += 1

        def then() -> None:
            self.rolling_back -= 1
            self.unacked.update(taken)

        self.ask(methods.TxRollback(), Asked(methods.TxRollbackOk, then=then))

    def close(self, *, reopen: bool) -> None:
        """Send channel.close, and perhaps channel.open in the same write."""
        self.open = False
        self.asked.append(Asked(methods.ChannelCloseOk, then=lambda: self._end(reopening=reopen)))
        self.channel.send(methods.ChannelClose(200), *([methods.ChannelOpen()] if reopen else []))

    def reopen(self) -> None:
        self.asked.append(Asked(methods.ChannelOpenOk, then=self._opened))
        self.channel.send(methods.ChannelOpen())

    def select(self, mode: str) -> None:
        self.mode = mode
        if mode == "confirm":
            self.ask(methods.ConfirmSelect(), Asked(methods.ConfirmSelectOk))
        else:
            self.ask(methods.TxSelect(), Asked(methods.TxSelectOk))

    def blunder(self) -> None:
        self.bad = True
        self.channel.send(methods.BasicAck(1_000_000))

    def read(self) -> None:
        self.seen = self.next_tag - 1

    # --- what the client sees ---------------------------------------------------------------------

    def _opened(self) -> None:
        self.open = True

    def _end(self, *, reopening: bool) -> None:
        fresh = Watch(self.walk, self.channel, open=False)
        asked: deque[Asked] = deque()
        if reopening:
            asked.append(Asked(methods.ChannelOpenOk, then=self._opened))
        for name in fresh.__dataclass_fields__:
            if name not in ("walk", "channel", "acked"):
                setattr(self, name, getattr(fresh, name))
        self.acked = []
        self.asked = asked

    def lose(self) -> None:
        self._end(reopening=False)

    def look(self, got: Iterable[Got]) -> None:
        for each in got:
            if isinstance(each, Content):
                self._on_content(each)
            else:
                self._on_method(each)

    def _on_method(self, method: Method) -> None:
        match method:
            case methods.BasicAck() | methods.BasicNack():
                assert isinstance(method, methods.BasicAck), "nobody refuses a message here"
                self._on_confirm(method)
            case methods.BasicCancel():
                assert method.no_wait
                self.walk.met["cancelled by the queue"] += 1
                consumer = self.consumers.pop(method.consumer_tag)
                assert consumer.alive, "a cancel for a consumer that was not there"
                consumer.alive = False
            case methods.ChannelClose():
                self._on_close(method)
            case _:
                asked = self.asked.popleft()
                self._on_answer(asked, method)

    def _on_answer(self, asked: Asked, method: Method) -> None:
        if isinstance(method, methods.BasicGetEmpty):
            assert asked.answer is methods.BasicGetOk
            return
        assert type(method) is asked.answer, f"{method} where {asked.answer.__name__} was due"
        if asked.consumer is not None:
            asked.consumer.alive = True
            self.consumers[asked.consumer.tag] = asked.consumer
        if asked.qos is not None and asked.qos.global_:
            self.global_prefetch = asked.qos.prefetch_count
        if asked.then is not None:
            asked.then()

    def _on_close(self, method: methods.ChannelClose) -> None:
        if method.reply_code == 406:
            assert self.bad, method
        else:
            assert method.reply_code in (403, 404), method
        self.walk.met[f"closed {method.reply_code}"] += 1
        crossed = any(each.answer is methods.ChannelCloseOk for each in self.asked)
        self._end(reopening=False)
        if crossed:
            # Our close is answered, and an open behind it is not: it came before our close-ok.
            self.asked.append(Asked(methods.ChannelCloseOk))
        self.channel.send(methods.ChannelCloseOk())

    def _on_confirm(self, ack: methods.BasicAck) -> None:
        assert self.mode == "confirm"
        seqs = [
            seq
            for seq in self.unconfirmed
            if seq == ack.delivery_tag or (ack.multiple and seq < ack.delivery_tag)
        ]
        assert ack.delivery_tag in seqs, f"{ack.delivery_tag} is confirmed twice, or was never sent"
        self.walk.met["confirmed"] += len(seqs)
        for seq in seqs:
            number, must_return = self.unconfirmed.pop(seq)
            assert not must_return or number in self.returned, "an ack before its return"

    def _on_content(self, content: Content) -> None:
        method = content.method
        number = number_of(content.body)
        if isinstance(method, methods.BasicReturn):
            assert method.reply_code == 312
            assert number not in self.returned, "returned twice"
            self.returned.add(number)
            self.walk.met["returned"] += 1
            return
        assert isinstance(method, methods.BasicDeliver | methods.BasicGetOk)
        assert method.delivery_tag == self.next_tag, "a gap in the delivery tags"
        self.next_tag += 1
        consumer: Consuming | None = None
        if isinstance(method, methods.BasicDeliver):
            consumer = self.consumers.get(method.consumer_tag)
            assert consumer is not None, "a delivery before consume-ok, or after cancel-ok"
            queue, no_ack = consumer.queue, consumer.no_ack
        else:
            asked = self.asked.popleft()
            assert asked.answer is methods.BasicGetOk
            queue, no_ack = asked.queue, asked.no_ack
            self.walk.met["get"] += 1
        self.walk.delivered(queue, number, redelivered=method.redelivered, no_ack=no_ack)
        if no_ack:
            return
        self.unacked[method.delivery_tag] = (consumer, queue, number)
        if consumer is not None:
            held = sum(1 for each, _, _ in self._held() if each is consumer)
            assert not consumer.prefetch or held <= consumer.prefetch, "more unacked than prefetch"
            self.walk.met["prefetch full"] += held == consumer.prefetch
            mine = len(self._held())
            assert not self.global_prefetch or mine <= self.global_prefetch, (
                "more unacked than global prefetch"
            )
            self.walk.met["global prefetch full"] += mine == self.global_prefetch

    def _held(self) -> list[tuple[Consuming | None, str, int]]:
        """Return the deliveries whose settlement has not reached the queue."""
        return [*self.unacked.values(), *self.tx_acked.values()]


class Walk:
    """Clients, channels, queues, and chance.

    Attributes:
        given_up: queue and number of messages that some client acknowledged or dropped.
        met: how often something happened, so that a test can say what walks are worth.
    """

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.world = WatchedWorld(CONFIG, strict=False)
        self.met: Counter[str] = Counter()
        self.deleted = False
        self.given_up: set[tuple[str, int]] = set()
        self._numbers = 0
        self._written: set[tuple[WatchedBox, int]] = set()
        self._gone: dict[WatchedBox, Counter[int]] = {}
        self.watches: list[Watch] = []
        setup = self.world.channel()
        for name in QUEUES:
            setup.call(methods.QueueDeclare(name, durable=True))
            setup.call(methods.QueueBind(name, "amq.fanout", ""))
        self.setup = setup
        self.world.on_written = self._on_written
        self.slots: list[ConnectionEnds] = []
        for _ in range(CONNECTIONS):
            self._connect()

    def _connect(self) -> None:
        connection = self.world.connect()
        self.slots.append(connection)
        for number in range(1, CHANNELS + 1):
            self.watches.append(Watch(self, connection.channel(number)))

    def new_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _pick(self, things: list[Any]) -> Any:
        return things[self.draw(len(things))]

    # --- what is checked as it happens ------------------------------------------------------------

    def delivered(self, queue: str, number: int, *, redelivered: bool, no_ack: bool) -> None:
        boxes = [box for box in self._boxes() if box.spec.name == queue and number in set(box.taken)]
        assert len(boxes) == 1, "a message that its queue never had, or that two had"
        (box,) = boxes
        before = (box, number) in self._written
        assert redelivered == before, f"redelivered is {redelivered} for a message that was written: {before}"
        self._written.add((box, number))
        self.met["delivered"] += 1
        self.met["redelivered"] += redelivered
        self.met["no_ack"] += no_ack
        if no_ack:
            self._gone.setdefault(box, Counter())[number] += 1

    def _boxes(self) -> list[WatchedBox]:
        return [box for box in self.world.boxes if isinstance(box, WatchedBox)]

    def _look(self) -> None:
        for connection in self.world.connections:
            assert connection.fault is None, connection.fault

    def _on_written(self, channel: ChannelEnds) -> None:
        for watch in self.watches:
            if watch.channel is channel:
                watch.look(channel.take())

    # --- steps ------------------------------------------------------------------------------------

    def step(self) -> None:
        kind = self.draw(100)
        if kind < 62:
            self._move()
        elif kind < 97:
            watch = self._pick(self.watches)
            if watch.open:
                self._act(watch)
            elif not watch.asked:
                watch.reopen()
        elif kind == 97:
            self._administer()
        else:
            self._rare()
        self._look()

    def _move(self) -> None:
        kind = self.draw(4)
        if kind == 0:
            held = [each for each in self.world.connections if each.waiting]
            connection = self._pick(held or self.world.connections)
            for _ in range(1 + self.draw(4)):
                if not connection.pass_on():
                    self.met["held by credit flow"] += bool(connection.waiting)
        elif kind == 1:
            watch = self._pick(self.watches)
            busy = [each for each in self.watches if each.channel.letters or each.channel.inbox]
            watch = self._pick(busy or self.watches)
            watch.channel.take_letters(1 + self.draw(4), answers_first=bool(self.draw(2)))
            watch.channel.wake([0, 1, 100, 65_536, 65_536][self.draw(5)])
        elif kind == 2:
            boxes = [box for box in self.world.boxes if box.commands]
            if boxes:
                self._pick(boxes).run(1 + self.draw(8))
        else:
            self._pick(self.watches).read()

    def _act(self, watch: Watch) -> None:
        kind = self.draw(15)
        if kind < 4:
            key = self._pick(["a", "a", "b", BOTH, "nowhere"])
            watch.publish(key, 1 + self.draw(5), mandatory=bool(self.draw(2)))
        elif kind < 8:
            tags = watch.can_settle()
            if tags:
                # What is being rolled back would be covered too, and nobody could say whether.
                multiple = not self.draw(3) and not watch.rolling_back
                watch.settle(self._pick(tags), self.draw(5), multiple=multiple)
        elif kind == 8:
            if len(watch.consumers) + len(watch.asked) < 3:
                watch.consume(
                    self._pick(["a", "a", "b"]), no_ack=not self.draw(4), exclusive=not self.draw(12)
                )
        elif kind == 9:
            watch.get(self._pick(["a", "b"]), no_ack=not self.draw(3))
        elif kind == 10:
            watch.qos(self.draw(4), global_=not self.draw(3))
        elif kind == 11:
            alive = [each.tag for each in watch.consumers.values() if each.alive]
            cancelling = [each for each in watch.asked if each.answer is methods.BasicCancelOk]
            if alive and not cancelling:
                watch.cancel(self._pick(alive))
        elif kind in (12, 14):
            if watch.mode == "tx":
                (watch.commit if self.draw(2) else watch.rollback)()
            elif watch.mode == "plain":
                watch.select(self._pick(["confirm", "tx"]))
        elif not self.draw(3):
            watch.recover()

    def _administer(self) -> None:
        name = self._pick(list(QUEUES))
        setup = self.setup
        if self.draw(2):
            setup.send(methods.QueuePurge(name, True))
        else:
            self.deleted = True
            setup.send(
                methods.QueueDelete(name, no_wait=True),
                methods.QueueDeclare(name, durable=True, no_wait=True),
                methods.QueueBind(name, "amq.fanout", "", no_wait=True),
            )

    def _rare(self) -> None:
        kind = self.draw(8)
        watch = self._pick(self.watches)
        if kind < 4:
            if watch.open:
                watch.close(reopen=bool(self.draw(2)))
        elif kind < 7:
            if watch.open and not watch.bad:
                watch.blunder()
        else:
            connection = self._pick(self.slots)
            connection.close()
            for each in [each for each in self.watches if each.channel.connection is connection]:
                each.lose()
                self.watches.remove(each)
            self.slots.remove(connection)
            self.world.connections.remove(connection)
            self._connect()

    # --- everything counted -----------------------------------------------------------------------

    def settle(self) -> None:
        self.world.rest()
        self._look()
        self._check_nothing_waits()
        self._check_messages()
        self._check_counts()
        self._check_counters()

    def _check_nothing_waits(self) -> None:
        for connection in self.world.connections:
            assert not connection.waiting, "the reader waits for ever"
        for watch in self.watches:
            service = watch.channel.service
            assert not watch.asked, f"no answer to {watch.asked}"
            assert not watch.unconfirmed, f"not confirmed: {watch.unconfirmed}"
            assert not service.backlog
            assert not service.publishing.blocked
            assert service.consuming.unacked == len(watch.unacked)
            assert not service.consuming.has_unsent
            assert set(service.consuming.consumers) == set(watch.consumers)

    def _check_messages(self) -> None:
        taken: Counter[int] = Counter()
        for box in self._boxes():
            assert len(set(box.taken)) == len(box.taken), "a message came twice"
            taken.update(box.taken)
            if box.queue.deleted:
                continue
            gone = self._gone.get(box, Counter())
            places = Counter(box.ready) + Counter(box.held) + box.done + gone
            assert max(places.values(), default=1) == 1, f"in two places: {places}"
            decided = {number for queue, number in self.given_up if queue == box.spec.name}
            assert set(box.done) <= decided, "gone, and no client said so"
            missing = set(box.taken) - set(places)
            assert len(missing) == box.purged, f"lost: {missing}, purged: {box.purged}"
            order = {number: position for position, number in enumerate(box.taken)}
            positions = [order[number] for number in box.ready]
            assert positions == sorted(positions), "the queue's order is not that of publishing"
            held = [
                number
                for watch in self.watches
                for _, queue, number in watch._held()
                if queue == box.spec.name and number in order
            ]
            assert Counter(held) == Counter(box.held)
            self._check_acked(box, order)
            self._check_idle_consumers(box)
        if not self.deleted:
            for watch in self.watches:
                for number, key in watch.sent:
                    copies = {BOTH: 2, "nowhere": 0}.get(key, 1)
                    assert taken[number] == copies, f"message {number} arrived {taken[number]} times"

    def _check_acked(self, box: WatchedBox, order: dict[int, int]) -> None:
        for watch in self.watches:
            for queue, number in watch.acked:
                assert queue != box.spec.name or number not in order or box.done[number] == 1

    def _check_idle_consumers(self, box: WatchedBox) -> None:
        """Messages stay ready only while every consumer has reached its prefetch limit."""
        if not box.queue.ready:
            return
        for watch in self.watches:
            held = watch._held()
            full = watch.global_prefetch and len(held) >= watch.global_prefetch
            for consumer in watch.consumers.values():
                if consumer.queue != box.spec.name:
                    continue
                assert not consumer.no_ack, "a consumer without limit, and messages wait"
                mine = sum(1 for each, _, _ in held if each is consumer)
                assert full or (consumer.prefetch and mine >= consumer.prefetch), "messages wait for nobody"

    def _check_counts(self) -> None:
        for name in QUEUES:
            box = self.world.box(name)
            consumers = sum(
                1 for watch in self.watches for each in watch.consumers.values() if each.queue == name
            )
            answer = self.setup.call(methods.QueueDeclare(name, passive=True))
            assert answer == methods.QueueDeclareOk(name, box.queue.ready, consumers)

    def _check_counters(self) -> None:
        """Counters of queues and exchanges equal those of channels and of clients."""
        met = self.met
        channels = (each.channel.service.counted() for each in self.watches)
        clients = ClientCounters.sum_of([self.world.ended, *channels])
        queues = self.world.vhost.counted()
        for name in ("delivered", "delivered_settled", "got", "got_settled", "redelivered"):
            assert queues[name] == getattr(clients, name), name
        assert queues["got"] + queues["got_settled"] == met["get"]
        assert queues["delivered_settled"] + queues["got_settled"] == met["no_ack"]
        assert sum(queues[name] for name in ("delivered", "got")) == met["delivered"] - met["no_ack"]
        assert queues["redelivered"] == met["redelivered"]
        for name in ("acknowledged", "requeued", "discarded"):
            assert queues[name] <= getattr(clients, name), "decided on, and the queue was gone"
        exchanges = [each.counted() for each in self.world.vhost.topology]
        for name in ("published", "unroutable", "returned"):
            assert sum(each[name] for each in exchanges) == getattr(clients, name), name
        assert clients.returned == met["returned"]

    def finish(self) -> None:
        """Close all channels; each unsettled message is in its queue, in order."""
        for connection in self.slots:
            connection.close()
        self.world.rest()
        for name in QUEUES:
            box = self.world.box(name)
            assert isinstance(box, WatchedBox)
            assert box.held == []
            got = self.setup.consume(name, f"last {name}", no_ack=True)
            numbers = []
            for each in got:
                assert isinstance(each, Content)
                assert isinstance(each.method, methods.BasicDeliver)
                numbers.append(number_of(each.body))
                assert each.method.redelivered == ((box, numbers[-1]) in self._written)
            left = set(box.taken) - set(box.done) - set(self._gone.get(box, Counter()))
            assert len(left) == len(numbers) + box.purged
            assert set(numbers) <= left
            order = {number: position for position, number in enumerate(box.taken)}
            assert [order[number] for number in numbers] == sorted(order[number] for number in numbers)
