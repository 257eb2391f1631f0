"""Clients that keep queues busy until the broker is killed, and note what they know (`crash_history`).

Each is a thread with a connection of its own, pika's or proton's, and ends when that is lost. What it does
is noted before it is sent, what the broker answers after it has come; so a note of an attempt may be wrong,
and a note of an answer never is.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from typing import Any, Final, Protocol

import pika
from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import AMQPError, ChannelClosedByBroker
from proton import Delivery, Link, Message, ProtonException

from tests.support.broker_process import BrokerProcess
from tests.support.crash_history import QueueHistory, is_persistent, make_body, name_of
from tests.support.pika_client import Listening, parameters
from tests.support.proton_client import Disconnected, ProtonClient

LOST: Final = (AMQPError, ProtonException, Disconnected, OSError)
"""What a client says whose broker was killed."""
IN_FLIGHT: Final = 64
HELD: Final = 20
END_S: Final = 90.0
"""What was published must be answered within so long after the faults: two failed elections, and to spare."""
TURN_S: Final = 0.02
AGAIN: Final = 300
"""So many of the messages that a stream held before are read again after each start."""


@contextmanager
def connected(broker: Listening) -> Iterator[BlockingConnection]:
    """Open a connection of pika and close it at the end; pika would leave sockets open."""
    connection = BlockingConnection(parameters(broker))
    try:
        yield connection
    finally:
        if connection.is_open:
            with suppress(AMQPError):
                connection.close()
        # Of a connection that was lost as it opened pika does not close the loop, and no call of its does:
        # the sockets of that would be collected during another test, and fail it. Twice does no harm.
        connection._impl.ioloop.close()


def declare_quorum(broker: Listening, *queues: str, **arguments: Any) -> None:
    """Declare quorum queues; argument names have _ in place of -."""
    given = {name.replace("_", "-"): value for name, value in arguments.items()}
    with connected(broker) as connection:
        for queue in queues:
            kind = {"x-queue-type": "quorum", **given}
            connection.channel().queue_declare(queue, durable=True, arguments=kind)


def publish(broker: Listening, queue: str, *bodies: str | bytes) -> None:
    """Publish through the default exchange, each message confirmed before the next."""
    with connected(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for body in bodies:
            channel.basic_publish("", queue, body, mandatory=True)


def is_there(broker: Listening, queue: str) -> bool:
    with connected(broker) as connection:
        try:
            connection.channel().queue_declare(queue, passive=True)
        except ChannelClosedByBroker:
            return False
    return True


class Client(threading.Thread):
    """A client of its own thread; as `failure` what went wrong."""

    def __init__(self, seed: int, name: str | None = None) -> None:
        super().__init__(name=name, daemon=True)
        self.rng = random.Random(seed)
        self.failure: BaseException | None = None
        self.stopping = threading.Event()

    def stop(self) -> None:
        """Stop the client, wait until it has ended, and raise its error."""
        self.stopping.set()
        self.join(END_S + 10)
        assert not self.is_alive(), f"{self.name} does not end"
        if self.failure is not None:
            raise self.failure


class MortalClient(Client):
    """A client that ends when its connection is lost, which is not a `failure`."""

    def __init__(self, broker: BrokerProcess, seed: int, name: str | None = None) -> None:
        super().__init__(seed, name)
        self.broker = broker

    def run(self) -> None:
        try:
            self.work()
        except LOST:
            pass
        except BaseException as error:
            self.failure = error

    def work(self) -> None:
        raise NotImplementedError


class Publishing(Protocol):
    """A client with many messages outstanding, which `publish_by_pika` or `publish_by_proton` publishes.

    Attributes:
        queue_name: where it publishes.
        pace_s: so long the connection waits for frames between two batches.
        awaits_answers: it leaves only when all that it published is answered.
    """

    name: str
    queue_name: str
    pace_s: float
    awaits_answers: bool
    stopping: threading.Event

    def next_message(self, life: str) -> tuple[str, bool] | None:
        """Name and persistence of the next message, which counts as published from now on; None: no more."""

    def answered(self, name: str, *, accepted: bool) -> None:
        """The broker has answered to a message."""


def publish_by_pika(client: Publishing, node: Listening, life: str) -> None:
    """Publish with AMQP 0-9-1 confirms, many of them outstanding."""
    with connected(node) as connection:
        # The blocking channel waits for each confirm: its own parts do not.
        channel = connection.channel()
        inner = channel._impl
        under_way: dict[int, str] = {}

        def confirmed(frame: Any) -> None:
            method = frame.method
            upto = [tag for tag in under_way if tag <= method.delivery_tag]
            for tag in upto if method.multiple else [method.delivery_tag]:
                client.answered(under_way.pop(tag), accepted=isinstance(method, pika.spec.Basic.Ack))

        ready = threading.Event()
        inner.confirm_delivery(confirmed, callback=lambda frame: ready.set())
        tag = 0
        end = inf
        while not client.stopping.is_set() or (client.awaits_answers and under_way):
            if client.stopping.is_set():
                end = _require_answers(client, under_way.values(), end)
            elif ready.is_set():
                for _ in range(min(IN_FLIGHT // 4, IN_FLIGHT - len(under_way))):
                    if (message := client.next_message(life)) is None:
                        break
                    tag += 1
                    under_way[tag], persistent = message
                    properties = pika.BasicProperties(delivery_mode=2 if persistent else 1)
                    inner.basic_publish("", client.queue_name, make_body(under_way[tag]), properties)
            connection.process_data_events(client.pace_s)


def publish_by_proton(client: Publishing, node: Listening, life: str) -> None:
    """Send unsettled transfers, many of them outstanding."""
    proton = ProtonClient(node.port)
    try:
        sender = proton.sender(f"/queues/{client.queue_name}")
        under_way: dict[str, str] = {}
        end = inf
        while not client.stopping.is_set() or (client.awaits_answers and under_way):
            while not client.stopping.is_set() and sender.link.credit > 0 and len(under_way) < IN_FLIGHT:
                if (message := client.next_message(life)) is None:
                    break
                name, persistent = message
                sent = Message(body=make_body(name), durable=persistent, inferred=True)
                under_way[sender.transfer_now(sent)] = name
            turn(proton, client.pace_s)
            for tag in [tag for tag in sender.outcomes if tag in under_way]:
                state = sender.outcomes.pop(tag).state
                client.answered(under_way.pop(tag), accepted=state == Delivery.ACCEPTED)
            assert not sender.closed, f"{client.name} was detached: {sender.condition} {sender.description}"
            if client.stopping.is_set():
                end = _require_answers(client, under_way.values(), end)
    finally:
        proton.close()


def _require_answers(client: Publishing, waiting: Iterable[str], end: float) -> float:
    """Fail if publishes are not confirmed in time; `end` is the previous return value, or inf."""
    end = min(end, time.monotonic() + END_S)
    assert time.monotonic() < end, f"{client.name}: never answered: {sorted(waiting)[:5]}"
    return end


class Publisher(MortalClient):
    """Publishes so many messages at most."""

    pace_s = TURN_S
    awaits_answers = False

    def __init__(self, broker: BrokerProcess, seed: int, queue: QueueHistory, name: str, count: int) -> None:
        super().__init__(broker, seed, name)
        self.queue = queue
        self.queue_name = queue.name
        self.left = count
        self._number = 0

    def next_message(self, life: str) -> tuple[str, bool] | None:
        if self.left == 0:
            return None
        self._number += 1
        self.left -= 1
        name = f"{life}:{self._number}"
        self.queue.publish(name)
        return name, is_persistent(name)

    def answered(self, name: str, *, accepted: bool) -> None:
        if accepted:
            self.queue.confirmed.add(name)


class PikaPublisher(Publisher):
    def work(self) -> None:
        publish_by_pika(self, self.broker, self.name)


class ProtonPublisher(Publisher):
    pace_s = 0.0

    def work(self) -> None:
        publish_by_proton(self, self.broker, self.name)


class Consumer(MortalClient):
    """What both kinds of consumer have: what becomes of a message."""

    def __init__(
        self, broker: BrokerProcess, seed: int, queue: QueueHistory, dead: QueueHistory | None = None
    ) -> None:
        super().__init__(broker, seed)
        self.queue = queue
        self.dead = dead
        queue.consumed = True

    def decide(self, name: str) -> str:
        delivery_outcome = self.rng.choices(("accept", "requeue", "reject", "hold"), (6, 2, 1, 1))[0]
        if delivery_outcome in ("accept", "reject"):
            self.queue.touch(name)
        if delivery_outcome == "reject" and self.dead is not None:
            self.dead.publish(name)
        return delivery_outcome


class PikaConsumer(Consumer):
    """Acks, some of them for several messages, rejections, and connections closed with messages held."""

    def work(self) -> None:
        while not self.stopping.is_set():
            with connected(self.broker) as connection:
                channel = connection.channel()
                channel.basic_qos(prefetch_count=2 * HELD)
                self._consume(channel, self.rng.randrange(30, 200))

    def _consume(self, channel: Any, count: int) -> None:
        held = 0
        for method, _, body in channel.consume(self.queue.name, inactivity_timeout=0.05):
            if method is not None:
                name = self.queue.delivered(body, redelivered=method.redelivered)
                delivery_outcome = self.decide(name)
                tag = method.delivery_tag
                count -= 1
                if delivery_outcome == "accept":
                    channel.basic_ack(tag)
                elif delivery_outcome == "reject":
                    channel.basic_reject(tag, requeue=False)
                elif delivery_outcome == "requeue" or held >= HELD:
                    channel.basic_nack(tag, requeue=True)
                else:
                    held += 1
            if count <= 0 or self.stopping.is_set():
                return


class ProtonConsumer(Consumer):
    """Outcomes on a link with rcv-settle-mode second, and detaches with messages held."""

    def work(self) -> None:
        client = ProtonClient(self.broker.port)
        try:
            while not self.stopping.is_set():
                self._consume(client, self.rng.randrange(30, 200))
        finally:
            client.close()

    def _consume(self, client: ProtonClient, count: int) -> None:
        address = f"/queues/{self.queue.name}"
        end = client.receiver(address, credit=HELD, rcv_settle_mode=Link.RCV_SECOND)
        waiting: list[tuple[Any, str]] = []
        while count > 0 and not self.stopping.is_set() and not end.closed:
            turn(client)
            for each in end.received[end.taken :]:
                count -= 1
                end.taken += 1
                end.grant(1)
                redelivered = not each.message.first_acquirer
                name = self.queue.delivered(bytes(each.message.body), redelivered=redelivered)
                if self._settle(each.delivery, self.decide(name)):
                    waiting.append((each.delivery, name))
            for delivery, name in [each for each in waiting if each[0].settled]:
                self.queue.settled.add(name)
                delivery.settle()
                waiting.remove((delivery, name))
        end.close()

    def _settle(self, delivery: Any, delivery_outcome: str) -> bool:
        """Return whether the message is to be removed with the broker's confirm."""
        if delivery_outcome == "accept":
            delivery.update(Delivery.ACCEPTED)
        elif delivery_outcome == "reject":
            delivery.update(Delivery.REJECTED)
        elif delivery_outcome == "requeue":
            delivery.update(Delivery.RELEASED)
            delivery.settle()
        return delivery_outcome in ("accept", "reject")


class DeadWatch(MortalClient):
    """Gets what was dead-lettered, and makes sure that it is safe: by a confirm of what comes behind it."""

    def __init__(self, broker: BrokerProcess, seed: int, queue: QueueHistory, name: str) -> None:
        super().__init__(broker, seed, name)
        self.queue = queue

    def work(self) -> None:
        number = 0
        while not self.stopping.is_set():
            number += 1
            while not is_persistent(f"{self.name}:{number}"):
                number += 1
            with connected(self.broker) as connection:
                self._watch(connection.channel(), f"{self.name}:{number}")
            self.stopping.wait(0.05)

    def _watch(self, channel: Any, fence: str) -> None:
        channel.confirm_delivery()
        seen = []
        for _ in range(10):
            method, _, body = channel.basic_get(self.queue.name)
            if method is None:
                break
            name = self.queue.delivered(body, redelivered=method.redelivered)
            seen.append(name)
            if self.rng.random() < 0.5:
                self.queue.touch(name)
                channel.basic_ack(method.delivery_tag)
        self.queue.publish(fence)
        channel.basic_publish("", self.queue.name, make_body(fence), pika.BasicProperties(delivery_mode=2))
        self.queue.confirmed.add(fence)
        # The queue had all of these when it confirmed what came later: they are as safe.
        self.queue.confirmed.update(name for name in seen if name in self.queue.published)


class Topology:
    """What a `Declarer` has made: queues, each bound to an exchange of its own.

    Attributes:
        there: numbers of those that the broker has said to be there, over all lives.
        doubtful: of those that may be there or not: the broker was killed before it said so.
    """

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.doubtful: set[str] = set()

    def check(self, broker: BrokerProcess) -> None:
        document = broker.ask("export-definitions")
        queues = {each["name"] for each in document["queues"] if each["name"].startswith("made.")}
        exchanges = {each["name"] for each in document["exchanges"] if each["name"].startswith("made.")}
        bound = {each["destination"] for each in document["bindings"]}
        assert self.there <= queues, f"declared and lost: {sorted(self.there - queues)}"
        assert queues <= self.there | self.doubtful, f"not declared, or deleted, and there: {sorted(queues)}"
        assert self.there <= exchanges, f"exchanges lost: {sorted(self.there - exchanges)}"
        assert self.there <= bound, f"bindings lost: {sorted(self.there - bound)}"
        # What was made or deleted in part stays doubtful.
        self.there |= self.doubtful & queues & exchanges & bound
        self.doubtful = (self.doubtful - self.there) & (queues | exchanges)


class Declarer(MortalClient):
    def __init__(self, broker: BrokerProcess, seed: int, topology: Topology, name: str) -> None:
        super().__init__(broker, seed, name)
        self.topology = topology

    def work(self) -> None:
        with connected(self.broker) as connection:
            self._declare(connection.channel())

    def _declare(self, channel: Any) -> None:
        topology = self.topology
        for number in range(30):
            if self.stopping.is_set():
                return
            name = f"made.{self.name}.{number}"
            topology.doubtful.add(name)
            channel.exchange_declare(name, durable=True)
            channel.queue_declare(name, durable=True)
            channel.queue_bind(name, name, "key")
            topology.there.add(name)
            topology.doubtful.discard(name)
            if len(topology.there) > 10:
                old = self.rng.choice(sorted(topology.there))
                topology.there.discard(old)
                topology.doubtful.add(old)
                channel.queue_delete(old)
                topology.doubtful.discard(old)
            self.stopping.wait(0.02)


def look(broker: Listening, name: str) -> list[tuple[str, bool]]:
    """Return names and ``redelivered`` of all messages, in order, by basic.consume without acks."""
    found: list[tuple[str, bool]] = []
    with connected(broker) as connection:
        channel = connection.channel()
        count = channel.queue_declare(name, passive=True).method.message_count
        channel.basic_qos(prefetch_count=65_535)  # none would mean 2000 in a quorum queue
        if count:
            for method, _, body in channel.consume(name, inactivity_timeout=20):
                if method is None:
                    break
                found.append((name_of(body), method.redelivered))
                if len(found) == count:
                    break
        left = channel.queue_declare(name, passive=True).method.message_count
    assert len(found) == count, f"'{name}' says that it has {count} messages, and gives {len(found)}"
    assert left == 0, f"'{name}' says that it has {count} messages, and then {left} more"
    return found


def look_at_stream(broker: BrokerProcess, queue: QueueHistory, sentinel: str) -> list[tuple[str, bool]]:
    """Read all that a stream holds; the last part of the older messages is read again."""
    start = max(0, len(queue.content) - AGAIN)
    found: list[tuple[str, bool]] = [(name, False) for name in queue.content[:start]]
    with connected(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", queue.name, make_body(sentinel))
        queue.publish(sentinel)
        queue.confirmed.add(sentinel)
        channel.basic_qos(prefetch_count=500)
        consumed = channel.consume(queue.name, arguments={"x-stream-offset": start}, inactivity_timeout=20)
        for method, properties, body in consumed:
            assert method is not None, f"'{queue.name}' stops at {found[-1:]}, and {sentinel} was confirmed"
            assert properties.headers["x-stream-offset"] == len(found), "an offset was left out"
            found.append((name_of(body), False))
            channel.basic_ack(method.delivery_tag)
            if found[-1][0] == sentinel:
                break
    return found


def turn(client: ProtonClient, pace_s: float = 0.0) -> None:
    turns = iter((False, True))
    client.wait(lambda: next(turns), "a turn")
    if pace_s:
        time.sleep(pace_s)
