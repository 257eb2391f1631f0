"""A hostile user: real nodes are killed, stopped, halted and moved at random under clients of several queues.

A client at a node that nothing happens to notices nothing but time. In the end all nodes run again: then what
was confirmed is there or was delivered, all nodes have the same metadata and counts, and the counts are the
same after all were stopped and started. It takes three minutes, and runs with AMQP10BROKER_LONG only.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import pytest
from pika.exceptions import ChannelClosedByBroker, NackError, UnroutableError

from tests.support.cluster_history import TotalQueue
from tests.support.cluster_load import (
    CREDIT,
    LOST,
    ClusterClient,
    MetadataClient,
    OwnConsumer,
    OwnPublisher,
    PikaConsumer,
    PikaPublisher,
    ProtonConsumer,
    ProtonPublisher,
    stop_all,
)
from tests.support.cluster_process import ClusterNode, ClusterProcess
from tests.support.crash_load import connected, look
from tests.support.journals import LONG
from tests.support.linearizable import Operation, check
from tests.support.pika_client import Listening

pytestmark = pytest.mark.integration

_log: Final = logging.getLogger(__name__)
SECONDS: Final = 180.0
PROGRESS_S: Final = 30.0
"""So long after all nodes run, every client has got on."""
AFTER_S: Final = 15.0
"""So long after a node was halted may its clients be seen to lose it."""
NO_LIMIT: Final = 1_000_000
QUEUES: Final[dict[str, dict[str, Any]]] = {
    "plain": {"x-delivery-limit": NO_LIMIT},
    "single": {"x-delivery-limit": NO_LIMIT, "x-single-active-consumer": True},
    "short": {"x-delivery-limit": NO_LIMIT, "x-max-length": 100, "x-overflow": "reject-publish"},
    "limited": {
        "x-delivery-limit": 2,
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": "",
        "x-dead-letter-strategy": "at-least-once",
    },
    "brief": {
        "x-delivery-limit": NO_LIMIT,
        "x-message-ttl": 1500,
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": "",
        "x-dead-letter-strategy": "at-least-once",
    },
}
FAULTS: Final = (
    "kill leader",
    "kill leader",
    "kill",
    "kill two",
    "kill all",
    "again",
    "again two",
    "halt leader",
    "halt",
    "halt two",
    "halt all",
    "lame",
    "stop",
    "stop two",
    "move",
    "drain",
)
PUBLISHERS: Final = (PikaPublisher, ProtonPublisher, OwnPublisher)
CONSUMERS: Final = (PikaConsumer, ProtonConsumer, OwnConsumer)


class Hurt:
    """When something was done to which node.

    Attributes:
        times: by port, of each fault when it began, and when it was over.
    """

    def __init__(self) -> None:
        self.times: dict[int, list[list[float]]] = {}
        self.count: dict[str, int] = {}

    def begin(self, node: ClusterNode, what: str) -> None:
        self.count[what] = self.count.get(what, 0) + 1
        self.times.setdefault(node.port, []).append([time.monotonic(), float("inf")])

    def end(self, node: ClusterNode) -> None:
        self.times[node.port][-1][1] = time.monotonic()

    def explains(self, port: int, at: float) -> bool:
        """Whether a client of this node may lose its connection then."""
        return any(began <= at <= ended + AFTER_S for began, ended in self.times.get(port, ()))


class Meddler(ClusterClient):
    """Declares, fills, empties, binds and deletes queues of all kinds, few names for all meddlers.

    Attributes:
        refusals: what was refused, by code and text without names.
        done: operations that were answered.
    """

    NAMES: Final = 4
    KINDS: Final = ("quorum", "quorum", "classic", "stream")

    def __init__(self, nodes: Sequence[Listening], name: str, notes: TotalQueue, seed: int = 0) -> None:
        super().__init__(nodes, name, notes, seed)
        self.refusals: dict[tuple[int, str], int] = {}
        self.done = 0

    def live(self, node: Listening, life: str) -> None:
        """Operations at random, each on a channel of its own."""
        with connected(node) as connection:
            while not self.stopping.is_set():
                try:
                    channel = connection.channel()
                    self._work(connection, channel)
                    channel.close()
                except ChannelClosedByBroker as error:
                    key = error.reply_code, error.reply_text.split(" '")[0][:60]
                    self.refusals[key] = self.refusals.get(key, 0) + 1
                except (NackError, UnroutableError):
                    pass
                self.done += 1
                self.stopping.wait(self.rng.random() * 0.2)

    def _work(self, connection: Any, channel: Any) -> None:
        rng, prefix = self.rng, self.notes.queue
        number = rng.randrange(self.NAMES)
        queue, other = f"{prefix}.{number}", f"{prefix}.{rng.randrange(self.NAMES)}"
        kind = self.KINDS[number]
        arguments = {"x-queue-type": kind}
        match rng.randrange(9):
            case 0 | 1:
                channel.queue_declare(queue, durable=True, arguments=arguments)
            case 2:
                channel.queue_delete(queue)
            case 3:
                channel.confirm_delivery()
                for _ in range(5):
                    channel.basic_publish("", queue, b"x", mandatory=True)
            case 4:
                channel.queue_declare(queue, durable=True, arguments=arguments)
                channel.exchange_declare(f"{prefix}.x", "fanout", durable=True)
                channel.queue_bind(queue, f"{prefix}.x")
                channel.confirm_delivery()
                channel.basic_publish(f"{prefix}.x", "", b"y")
            case 5 if kind != "stream":
                channel.basic_get(queue, auto_ack=rng.random() < 0.5)
            case 6 if kind != "stream":
                channel.queue_purge(queue)
            case 7:
                own = channel.queue_declare("", exclusive=True).method.queue
                channel.queue_bind(own, "amq.fanout")
                channel.basic_consume(own, lambda *_: None)
                channel.basic_publish("amq.fanout", "", b"z")
                connection.process_data_events(0.1)
            case 8:
                channel.basic_qos(prefetch_count=3)
                tag = channel.basic_consume(queue, lambda ch, method, *_: ch.basic_ack(method.delivery_tag))
                connection.process_data_events(0.2)
                channel.basic_cancel(tag)
            case _:
                channel.queue_declare(other, passive=True)


class Nemesis:
    """What is done to nodes, and by which clients it is seen."""

    def __init__(self, cluster: ClusterProcess, prefix: str, seed: int) -> None:
        self.cluster = cluster
        self.rng = random.Random(seed)
        self.hurt = Hurt()
        self.lost: list[tuple[float, int, str, BaseException]] = []
        self.notes = {
            kind: TotalQueue(f"{prefix}.{kind}", may_refuse=kind == "short") for kind in (*QUEUES, "dead")
        }
        self.histories: dict[str, list[Operation]] = {}
        self.clients: list[ClusterClient] = []
        for at, kind in enumerate(QUEUES):
            for n in range(2):
                self._add(PUBLISHERS[(at + n) % 3], f"{kind}.p{n}", kind, at + n, pace_s=0.15)
                self._add(CONSUMERS[(at + 2 * n) % 3], f"{kind}.c{n}", kind, at + n + 1)
        for at in range(2):
            nodes = self._turned(at)
            self._watch(MetadataClient(nodes, f"{prefix}.m{at}", self.histories, seed + at))

        self.meddlers = [
            Meddler(self._turned(at), f"meddler{at}", TotalQueue(f"{prefix}.meddled"), seed + at)
            for at in range(2)
        ]
        for meddler in self.meddlers:
            self._watch(meddler)

    def _turned(self, at: int) -> Sequence[Listening]:
        nodes = self.cluster.nodes
        at %= len(nodes)
        return [*nodes[at:], *nodes[:at]]

    def _add(self, make: Callable[..., ClusterClient], name: str, kind: str, at: int, **options: Any) -> None:
        self._watch(make(self._turned(at), name, self.notes[kind], self.rng.randrange(1 << 30), **options))

    def _watch(self, client: ClusterClient) -> None:
        live = client.live

        def watched(node: Listening, life: str) -> None:
            try:
                live(node, life)
            except LOST as error:
                self.lost.append((time.monotonic(), node.port, client.name, error))
                raise

        client.live = watched  # type: ignore[method-assign]
        self.clients.append(client)

    def declare(self) -> None:
        """The queues, dead letters of two of them in one more."""
        with connected(self.cluster.nodes[0]) as connection:
            channel = connection.channel()
            for kind, notes in self.notes.items():
                arguments = {"x-queue-type": "quorum", **QUEUES.get(kind, {})}
                if "x-dead-letter-exchange" in arguments:
                    arguments["x-dead-letter-routing-key"] = self.notes["dead"].queue
                channel.queue_declare(notes.queue, durable=True, arguments=arguments)

    # --- faults -----------------------------------------------------------------------------------

    def leader(self) -> ClusterNode:
        """Of one of the queues."""
        for node in self.cluster.nodes:
            if node.accepts:
                rows = self.cluster.ask(node, "list_queues", "name", "leader")
                wanted = self.rng.choice(list(self.notes.values())).queue
                leaders = [row["leader"] for row in rows if row["name"] == wanted and row["leader"]]
                if leaders:
                    return self.cluster.node(leaders[0])
        return self.rng.choice(self.cluster.nodes)

    def do(self) -> None:
        """One fault, and its mending."""
        rng, nodes = self.rng, self.cluster.nodes
        what = rng.choice(FAULTS)
        node = self.leader() if "leader" in what else rng.choice(nodes)
        victims = {"all": list(nodes), "two": rng.sample(nodes, 2)}.get(what.rpartition(" ")[2], [node])
        _log.info("%s %s", what, [each.name for each in victims])
        if what == "move":
            self._move(node)
        elif what == "drain":
            self._drain(node)
        else:
            for each in victims:
                self.hurt.begin(each, what)
            self._hurt(what.partition(" ")[0], victims)
            for each in victims:
                self.hurt.end(each)

    def _hurt(self, what: str, victims: Sequence[ClusterNode]) -> None:
        rng = self.rng
        if what in ("halt", "lame"):
            # With a second one killed no majority is left.
            killed = [rng.choice(self.cluster.others(*victims))] if what == "lame" else []
            for each in victims:
                each.pause()
            for each in killed:
                self.hurt.begin(each, "killed")
                each.kill()
                time.sleep(rng.uniform(0.0, 2.0))
                each.start()
            time.sleep(rng.uniform(0.5, 8.0))
            for each in victims:
                each.resume()
            self.cluster.wait_until_up()
            for each in killed:
                self.hurt.end(each)
            return
        for each in victims:
            (each.stop if what == "stop" else each.kill)()
        time.sleep(rng.uniform(0.0, 4.0))
        for each in rng.sample(list(victims), len(victims)):
            each.start()
            time.sleep(rng.choice((0.0, 0.0, 1.0)))
            if what == "again":
                time.sleep(rng.uniform(0.5, 3.0))
                if each.pid is not None:
                    each.kill()
                    each.start()
        self.cluster.wait_until_up()

    def _move(self, node: ClusterNode) -> None:
        self.hurt.count["move"] = self.hurt.count.get("move", 0) + 1
        queue = self.rng.choice(list(self.notes.values())).queue
        done = self.cluster.run_command(node, "transfer_leadership", queue, node.name)
        _log.info("%d %s%s", done.returncode, done.stdout, done.stderr)

    def _drain(self, node: ClusterNode) -> None:
        self.hurt.begin(node, "drain")
        for command in ("drain", "revive"):
            done = self.cluster.run_command(node, command)
            _log.info("%s: %d %s%s", command, done.returncode, done.stdout, done.stderr)
            time.sleep(self.rng.uniform(0.0, 3.0))
        self.hurt.end(node)

    def check_clients(self) -> None:
        """Fail if a client has failed otherwise than by losing a node that was hurt."""
        for client in self.clients:
            if client.failure is not None:
                raise AssertionError(f"{client.name} has failed: {client.failure!r}") from client.failure
        for at, port, name, error in self.lost:
            assert self.hurt.explains(port, at), f"{name} lost its node {port}, which ran: {error!r}"

    def marks(self) -> dict[str, int]:
        """How far each queue has come: answers and deliveries."""
        marks = {meddler.name: meddler.done for meddler in self.meddlers}
        for kind in QUEUES:
            notes = self.notes[kind]
            marks[f"into {kind}"] = len(notes.confirmed) + len(notes.refused)
            marks[f"out of {kind}"] = len(notes.deliveries)
        return marks


def undone(notes: TotalQueue) -> list[str]:
    """Messages that a client with a whole life has settled for good, and that came again (E4)."""
    settled = {name: at for (life, name), at in notes.removing.items() if life not in notes.lost}
    again = {each.name for each in notes.deliveries if each.at > settled.get(each.name, each.at)}
    again |= {name for name, _ in notes.content or () if name in settled}
    return sorted(again)


def late(notes: TotalQueue) -> bool:
    """Whether more messages came behind later ones than lost consumers can have been about to be given.

    What was on its way to a client that was lost goes to another, unmarked, behind what that has already.
    """
    newest: dict[tuple[str, str], int] = {}
    behind = 0
    for each in notes.deliveries:
        publisher, _, number = each.name.rpartition(":")
        if not each.redelivered:
            behind += int(number) < newest.get((each.life, publisher), 0)
            newest[each.life, publisher] = max(int(number), newest.get((each.life, publisher), 0))
    return behind > CREDIT * sum(".c" in life for life in notes.lost)


def definitions(cluster: ClusterProcess, node: ClusterNode) -> Any:
    done = cluster.run_command(node, "export_definitions", "-")
    assert done.returncode == 0, f"{node.name}: {done.stderr}"
    return json.loads(done.stdout)


def counts(cluster: ClusterProcess, node: ClusterNode) -> dict[str, int]:
    """Messages of each quorum queue, as the node says."""
    rows = cluster.ask(node, "list_queues", "name", "type", "messages")
    return {row["name"]: row["messages"] for row in rows if row["type"] == "quorum"}


def has_counts(cluster: ClusterProcess, node: ClusterNode, wanted: dict[str, int]) -> bool:
    return counts(cluster, node) == wanted


@pytest.mark.skipif(not LONG, reason="three minutes; set AMQP10BROKER_LONG (`test_cluster_faults` is short)")
def test_nemesis(cluster: ClusterProcess, queue: str) -> None:
    """E1 to E11, C1 to C6, S2 to S5, D1, D3, M3: confirmed is kept, and a client that is not hurt goes on."""
    run(cluster, queue, random.randrange(1 << 30), SECONDS)


def run(cluster: ClusterProcess, prefix: str, seed: int, seconds: float) -> None:
    _log.info("seed %d", seed)
    nemesis = Nemesis(cluster, prefix, seed)
    nemesis.declare()
    for client in nemesis.clients:
        client.start()
    try:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(nemesis.rng.uniform(1.0, 5.0))
            nemesis.do()
            nemesis.check_clients()
        cluster.heal()
        before = nemesis.marks()

        def on() -> bool:
            nemesis.check_clients()
            now = nemesis.marks()
            return all(now[what] > before[what] for what in before)

        def stuck() -> str:
            now = nemesis.marks()
            return str([what for what in before if now[what] <= before[what]])

        try:
            cluster.wait_until(on, "everything gets on", PROGRESS_S)
        except AssertionError as error:
            raise AssertionError(f"stuck: {stuck()}") from error
    finally:
        for client in nemesis.clients:
            client.stopping.set()
    stop_all(nemesis.clients)
    nemesis.check_clients()
    confirmed = {kind: len(notes.confirmed) for kind, notes in nemesis.notes.items()}
    _log.info("%s, %d lives lost, confirmed: %s", nemesis.hurt.count, len(nemesis.lost), confirmed)
    for meddler in nemesis.meddlers:
        _log.info("%s: %d done, %s", meddler.name, meddler.done, meddler.refusals)
    finish(cluster, nemesis)


def finish(cluster: ClusterProcess, nemesis: Nemesis) -> None:
    """Everything is quiet: compare."""
    first, *others = cluster.nodes

    def settled() -> bool:
        listed = cluster.ask(first, "list_queues", "name", "messages", "messages_unacknowledged")
        rows = {row["name"]: row for row in listed}
        names = {kind: notes.queue for kind, notes in nemesis.notes.items()}
        free = all(rows[name]["messages_unacknowledged"] == 0 for name in names.values())
        return free and rows[names["brief"]]["messages"] == 0

    cluster.wait_until(settled, "nothing with a client", 90)
    known = [definitions(cluster, node) for node in cluster.nodes]
    for node, each in zip(cluster.nodes, known, strict=True):
        for part in known[0]:
            if isinstance(known[0][part], list):
                here, there = (sorted(map(str, one[part])) for one in (known[0], each))
                assert here == there, f"{part} at {node.name}"
    had = counts(cluster, first)
    for node in others:
        assert counts(cluster, node) == had, node.name
    for node in cluster.nodes:
        node.kill()
    for node in cluster.nodes:
        node.start()
    cluster.wait_until_up()
    for node in cluster.nodes:
        try:
            cluster.wait_until(partial(has_counts, cluster, node, had), "the same counts", PROGRESS_S)
        except AssertionError as error:
            now = counts(cluster, node)
            raise AssertionError(f"after a restart of all {node.name} has {now}, not {had}") from error
    # To look is to give back, and a message that was given back too often dies: the dead are looked at first.
    for notes in reversed(nemesis.notes.values()):
        notes.look(look(nemesis.rng.choice(cluster.nodes), notes.queue))
    dead = {name for name, _ in nemesis.notes["dead"].content or ()}
    faults: list[str] = []
    for kind, notes in nemesis.notes.items():
        if kind == "dead":
            continue
        taken = dead & notes.published.keys()
        if kind in ("limited", "brief"):
            notes.confirmed -= taken
            gone = taken & {name for name, _ in notes.content or ()}
            if gone:
                faults.append(f"{kind}: dead and there: {sorted(gone)[:5]}")
        elif taken:
            faults.append(f"{kind}: dead: {sorted(taken)[:5]}")
        faults += [
            f"{kind}: {fault}"
            for fault in notes.faults()
            if kind == "single" or late(notes) or not fault.startswith("out of order")
        ]
        again = undone(notes)
        if again:
            faults.append(f"{kind}: settled, and came again: {len(again)}, {again[:5]}")
    assert not faults, "\n".join(faults)
    check(nemesis.histories)
