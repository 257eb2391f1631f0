"""Clients that know all nodes of a cluster, use one after the other, and note what they know.

Each is a thread. A connection that is lost ends one of its lives (`cluster_history`); the next begins at the
next node. A *steady* client is at a node that no fault meets: to lose its connection is a failure.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from math import inf
from typing import Any, Final

from pika.exceptions import AMQPError, ChannelClosedByBroker
from proton import Delivery, Link
from rabbitmq_amqp_python_client import AddressHelper, Environment, OutcomeState
from rabbitmq_amqp_python_client import Message as RabbitMessage

from amqp10broker.client import blocking
from amqp10broker.client.errors import ClientError
from amqp10broker.client.links import Accepted, modified
from amqp10broker.client.message import Message as OwnMessage
from amqp10broker.client.message import data_message
from tests.support import crash_load
from tests.support.cluster_history import TotalQueue
from tests.support.cluster_process import WAIT_S, ClusterProcess
from tests.support.crash_history import make_body
from tests.support.crash_load import (
    END_S,
    IN_FLIGHT,
    TURN_S,
    Client,
    connected,
    publish_by_pika,
    publish_by_proton,
    turn,
)
from tests.support.linearizable import ANY, Answer, Kind, Operation
from tests.support.pika_client import Listening
from tests.support.proton_client import ProtonClient

LOST: Final = (*crash_load.LOST, ClientError)
"""What a client says whose node has gone, or does not let it in."""
CREDIT: Final = 50
_AGAIN_S: Final = 0.1


class ClusterClient(Client, ABC):
    """One client: why its connections were lost, and as `failure` what else went wrong."""

    def __init__(
        self, nodes: Sequence[Listening], name: str, notes: TotalQueue, seed: int = 0, *, steady: bool = False
    ) -> None:
        super().__init__(seed, name)
        self.nodes = nodes
        self.notes = notes
        self.steady = steady
        self.losses: list[BaseException] = []
        self._lives = 0

    def run(self) -> None:
        while not self.stopping.is_set() and self.failure is None:
            life = f"{self.name}.{self._lives}"
            node = self.nodes[self._lives % len(self.nodes)]
            self._lives += 1
            try:
                self.live(node, life)
            except LOST as error:
                self.notes.lose(life)
                self.losses.append(error)
                if self.steady:
                    self.failure = error
                self.stopping.wait(_AGAIN_S)
            except BaseException as error:
                self.failure = error

    @abstractmethod
    def live(self, node: Listening, life: str) -> None:
        """One connection: work until `stopping` is set, then leave in order."""


def started(clients: Iterable[ClusterClient]) -> list[ClusterClient]:
    together = list(clients)
    for client in together:
        client.start()
    return together


def wait_for(
    cluster: ClusterProcess,
    clients: Iterable[ClusterClient],
    condition: Callable[[], Any],
    what: str,
    timeout_s: float = WAIT_S,
) -> None:
    """Wait for a state of the load, and fail at once if a client has failed."""
    together = list(clients)

    def holds() -> Any:
        for client in together:
            if client.failure is not None:
                raise AssertionError(f"{client.name} has failed") from client.failure
        return condition()

    cluster.wait_until(holds, what, timeout_s)


def stop_all(clients: Iterable[ClusterClient]) -> None:
    """Stop all clients at once, then wait for each."""
    together = list(clients)
    for client in together:
        client.stopping.set()
    for client in together:
        client.stop()


# --- publishers -----------------------------------------------------------------------------------


class Publisher(ClusterClient):
    """What all kinds of publisher have: names for messages, and what is under way.

    Attributes:
        answered_at: by the monotonic clock, when each answer came.
    """

    awaits_answers = True

    def __init__(self, *arguments: Any, pace_s: float = TURN_S, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.pace_s = pace_s
        self.queue_name = self.notes.queue
        self.answered_at: list[float] = []
        self._number = 0

    def next_message(self, life: str) -> tuple[str, bool]:
        self._number += 1
        name = f"{life}:{self._number}"
        self.notes.publish(name)
        return name, True

    def answered(self, name: str, *, accepted: bool) -> None:
        self.answered_at.append(time.monotonic())
        self.notes.answer(name, accepted=accepted)


class PikaPublisher(Publisher):
    def live(self, node: Listening, life: str) -> None:
        publish_by_pika(self, node, life)


class ProtonPublisher(Publisher):
    def live(self, node: Listening, life: str) -> None:
        publish_by_proton(self, node, life)


class OwnPublisher(Publisher):
    """This project's client, by batches."""

    def live(self, node: Listening, life: str) -> None:
        with blocking.connect(
            node.host, node.port, user="guest", password="guest", timeout_s=END_S
        ) as client:
            sender = client.sender(f"/queues/{self.notes.queue}")
            while not self.stopping.is_set():
                batch = [self.next_message(life)[0] for _ in range(IN_FLIGHT // 2)]
                outcomes = sender.send_many(data_message(make_body(name)) for name in batch)
                for name, outcome in zip(batch, outcomes, strict=True):
                    self.answered(name, accepted=isinstance(outcome, Accepted))
                self.stopping.wait(self.pace_s)


class RabbitPublisher(Publisher):
    """RabbitMQ's own client of AMQP 1.0, which waits for each outcome."""

    def live(self, node: Listening, life: str) -> None:
        environment = Environment(uri=f"amqp://guest:guest@{node.host}:{node.port}/")
        try:
            connection = environment.connection()
            connection.dial()
            publisher = connection.publisher(AddressHelper.queue_address(self.notes.queue))
            while not self.stopping.is_set():
                name, _ = self.next_message(life)
                delivery = publisher.publish(RabbitMessage(body=make_body(name), inferred=True))
                self.answered(name, accepted=delivery.remote_state == OutcomeState.ACCEPTED)
            environment.close()
        except BaseException as error:
            # Some of its errors are no Exception; and it cannot close what it has lost.
            with suppress(RuntimeError):
                environment.close()
            raise ConnectionError(f"{type(error).__name__}: {error}") from error


# --- consumers ------------------------------------------------------------------------------------


class Consumer(ClusterClient):
    """What all kinds of consumer have.

    Attributes:
        give_back: of so many messages one is given back; 0 for none.
        hold: take messages, and settle none before this is cleared.
    """

    def __init__(self, *arguments: Any, give_back: int = 10, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.give_back = give_back
        self.hold = threading.Event()
        self.held = 0
        """Messages that it has and has not settled."""

    def takes(self) -> bool:
        """Return whether the next message is settled with removal, not requeued."""
        return not self.give_back or self.rng.randrange(self.give_back) != 0


class PikaConsumer(Consumer):
    """basic.ack, and basic.nack with requeue."""

    def live(self, node: Listening, life: str) -> None:
        with connected(node) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=CREDIT)
            kept: list[tuple[int, str]] = []

            def given(_: Any, method: Any, properties: Any, body: bytes) -> None:
                count = (properties.headers or {}).get("x-delivery-count", 0)
                name = self.notes.deliver(life, body, redelivered=method.redelivered, count=count)
                kept.append((method.delivery_tag, name))

            cancelled: list[str] = []
            channel.add_on_cancel_callback(lambda frame: cancelled.append(self.name))
            channel.basic_consume(self.notes.queue, given)
            while not self.stopping.is_set():
                connection.process_data_events(TURN_S)
                assert not cancelled, f"{self.name} was cancelled by the broker"
                self.held = len(kept)
                if not self.hold.is_set():
                    for tag, name in kept:
                        if self.takes():
                            self.notes.remove(life, name)
                            channel.basic_ack(tag)
                        else:
                            self.notes.give_back(life, name)
                            channel.basic_nack(tag, requeue=True)
                    kept.clear()


class ProtonConsumer(Consumer):
    """Outcomes on a link with rcv-settle-mode second: what the broker settles is removed for good."""

    def live(self, node: Listening, life: str) -> None:
        client = ProtonClient(node.port)
        try:
            address = f"/queues/{self.notes.queue}"
            end = client.receiver(address, credit=CREDIT, rcv_settle_mode=Link.RCV_SECOND)
            kept: list[tuple[Any, str]] = []
            waiting: list[tuple[Any, str]] = []
            while not self.stopping.is_set():
                turn(client)
                assert not end.closed, f"{self.name} was detached: {end.condition} {end.description}"
                for each in end.received[end.taken :]:
                    end.taken += 1
                    redelivered, count = not each.message.first_acquirer, each.message.delivery_count
                    name = self.notes.deliver(
                        life, bytes(each.message.body), redelivered=redelivered, count=count
                    )
                    kept.append((each.delivery, name))
                self.held = len(kept)
                # A grant of nothing is an event as well, and would keep proton from its socket.
                if kept and not self.hold.is_set():
                    end.grant(len(kept))
                    for delivery, name in kept:
                        if self.takes():
                            self.notes.remove(life, name)
                            delivery.update(Delivery.ACCEPTED)
                            waiting.append((delivery, name))
                        else:
                            self.notes.give_back(life, name)
                            delivery.local.failed = True
                            delivery.update(Delivery.MODIFIED)
                            delivery.settle()
                    kept.clear()
                for delivery, name in [each for each in waiting if each[0].settled]:
                    self.notes.was_removed(name)
                    delivery.settle()
                    waiting.remove((delivery, name))
        finally:
            client.close()


class OwnConsumer(Consumer):
    def live(self, node: Listening, life: str) -> None:
        with blocking.connect(
            node.host, node.port, user="guest", password="guest", timeout_s=END_S
        ) as client:
            receiver = client.receiver(f"/queues/{self.notes.queue}", credit=CREDIT)
            kept: list[tuple[Any, str]] = []
            while not self.stopping.is_set():
                for each in receiver.receive_many(CREDIT, timeout_s=TURN_S):
                    name = self._noted(life, each.message())
                    kept.append((each, name))
                self.held = len(kept)
                if not self.hold.is_set():
                    for each, name in kept:
                        if self.takes():
                            self.notes.remove(life, name)
                            receiver.accept(each)
                        else:
                            self.notes.give_back(life, name)
                            receiver.settle(each, modified(delivery_failed=True))
                    kept.clear()

    def _noted(self, life: str, message: OwnMessage) -> str:
        header = message.header
        redelivered = header is None or not header.first_acquirer
        count = 0 if header is None else header.delivery_count or 0
        return self.notes.deliver(life, bytes(message.body), redelivered=redelivered, count=count)


# --- metadata -------------------------------------------------------------------------------------


class MetadataClient(ClusterClient):
    """Declares exchanges, deletes them, and looks whether they are there: few names, many clients.

    A declaration names an alternate exchange of its own, so that no two are equivalent. Those that work on
    the same names are called ``NAMES.1``, ``NAMES.2`` and so on.

    Attributes:
        histories: operations by name; shared by all that work on these names.
        on_a_name: so many operations; then the next name is taken.
    """

    def __init__(
        self,
        nodes: Sequence[Listening],
        name: str,
        histories: dict[str, list[Operation]],
        seed: int = 0,
        *,
        on_a_name: int = 60,
    ) -> None:
        super().__init__(nodes, name, TotalQueue(name), seed)
        self.histories = histories
        self.on_a_name = on_a_name

    def live(self, node: Listening, life: str) -> None:
        where = f"{node.host}:{node.port}"
        with connected(node) as connection:
            while not self.stopping.is_set():
                total = sum(map(len, self.histories.values()))
                name = f"{self.name.rpartition('.')[0]}.{total // self.on_a_name}"
                self._work(connection, where, name, f"{life}/{total}")
                self.stopping.wait(self.rng.random() * 0.05)

    def _work(self, connection: Any, where: str, name: str, value: str) -> None:
        kind = self.rng.choice(list(Kind))
        began = time.monotonic()
        channel = connection.channel()

        def note(answer: Answer, seen: str | None) -> None:
            ended = inf if answer is Answer.NONE else time.monotonic()
            self.histories.setdefault(name, []).append(Operation(kind, where, seen, began, ended, answer))

        calls: dict[Kind, Callable[[], Any]] = {
            Kind.PUT: lambda: channel.exchange_declare(
                name, durable=True, arguments={"alternate-exchange": value}
            ),
            Kind.REMOVE: lambda: channel.exchange_delete(name),
            Kind.READ: lambda: channel.exchange_declare(name, passive=True),
        }
        try:
            calls[kind]()
            note(Answer.DONE, {Kind.PUT: value, Kind.REMOVE: None, Kind.READ: ANY}[kind])
            channel.close()
        except ChannelClosedByBroker as error:
            if error.reply_code != {Kind.PUT: 406, Kind.READ: 404}.get(kind):
                raise
            note(Answer.REFUSED if kind is Kind.PUT else Answer.DONE, value if kind is Kind.PUT else None)
        except (AMQPError, OSError):
            if kind is not Kind.READ:
                note(Answer.NONE, value if kind is Kind.PUT else None)
            raise
