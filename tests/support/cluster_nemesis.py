"""A hostile user of a cluster: real nodes are hurt at random under clients of several queues.

They are killed, stopped, halted and moved; their network is cut, one way or both, reset or slow, their disks
are full, slow, or hang. A client at a node that nothing happens to notices nothing but time; nor does one at
a node whose network or disk is hurt. In the end all is mended: then what was confirmed is there or was
delivered, all nodes have the same metadata and counts, and the counts are the same after all were killed and
started.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import permutations
from typing import Any, Final

from pika.exceptions import ChannelClosedByBroker, NackError, UnroutableError

from tests.support import cluster_load
from tests.support.cluster_history import TotalQueue
from tests.support.cluster_network import CutCluster
from tests.support.cluster_process import ClusterNode, ClusterProcess
from tests.support.crash_load import connected, look
from tests.support.linearizable import Operation, check
from tests.support.pika_client import Listening

_log: Final = logging.getLogger(__name__)
PACE_S: Final = 0.15
"""Of publishers."""
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
OF_PROCESSES: Final = (
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
OF_NETWORK: Final = (
    "cut leader",
    "cut leader",
    "cut",
    "cut two",
    "cut all",
    "mute leader",
    "deaf leader",
    "mute",
    "deaf",
    "part",
    "part",
    "one way",
    "one way",
    "storm",
    "storm",
    "delay",
    "delay all",
    "reset",
    "reset all",
)
OF_DISKS: Final = ("hang leader", "hang", "slow leader", "slow two", "full leader", "full", "full two")
FAULTS: Final = OF_PROCESSES + OF_NETWORK + OF_DISKS
HARMLESS: Final = ("cut", "mute", "deaf", "part", "one", "storm", "delay", "reset", "hang", "slow", "full")
"""First words of faults that cost a client of a queue no connection, wherever it is."""
PUBLISHERS: Final = (cluster_load.PikaPublisher, cluster_load.ProtonPublisher, cluster_load.OwnPublisher)
CONSUMERS: Final = (cluster_load.PikaConsumer, cluster_load.ProtonConsumer, cluster_load.OwnConsumer)


class Hurt:
    """When something was done to which node.

    Attributes:
        times: by port, of each fault when it began, when it was over, and what it was.
        count: of each kind.
    """

    def __init__(self) -> None:
        self.times: dict[int, list[tuple[float, float, str]]] = {}
        self.count: dict[str, int] = {}

    def begin(self, nodes: Sequence[ClusterNode], what: str) -> None:
        self.count[what] = self.count.get(what, 0) + 1
        for node in nodes:
            self.times.setdefault(node.port, []).append((time.monotonic(), float("inf"), what))

    def end(self, nodes: Sequence[ClusterNode]) -> None:
        for node in nodes:
            began, _, what = self.times[node.port].pop()
            self.times[node.port].append((began, time.monotonic(), what))

    def explains(self, port: int, at: float, *, declares: bool) -> bool:
        """Return whether a client of this node may lose its connection then. A client that declares may be
        refused at any node, if its declaration has no majority.
        """
        hurt = [(each, *fault) for each, faults in self.times.items() for fault in faults]
        return any(
            began <= at <= ended + AFTER_S
            and (declares or (each == port and what.split()[0] not in HARMLESS))
            for each, began, ended, what in hurt
        )


class Meddler(cluster_load.ClusterClient):
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

    def __init__(self, cluster: CutCluster, prefix: str, seed: int) -> None:
        self.cluster = cluster
        self.rng = random.Random(seed)
        self.hurt = Hurt()
        self.lost: list[tuple[float, int, str, BaseException]] = []
        self.notes = {
            kind: TotalQueue(f"{prefix}.{kind}", may_refuse=kind == "short") for kind in (*QUEUES, "dead")
        }
        self.histories: dict[str, list[Operation]] = {}
        self.clients: list[cluster_load.ClusterClient] = []
        for at, kind in enumerate(QUEUES):
            for n in range(2):
                self._add(PUBLISHERS[(at + n) % 3], f"{kind}.p{n}", kind, at + n, pace_s=PACE_S)
                self._add(CONSUMERS[(at + 2 * n) % 3], f"{kind}.c{n}", kind, at + n + 1)
        for at in range(2):
            nodes = self._turned(at)
            self._watch(cluster_load.MetadataClient(nodes, f"{prefix}.m{at}", self.histories, seed + at))

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

    def _add(
        self, make: Callable[..., cluster_load.ClusterClient], name: str, kind: str, at: int, **options: Any
    ) -> None:
        self._watch(make(self._turned(at), name, self.notes[kind], self.rng.randrange(1 << 30), **options))

    def _watch(self, client: cluster_load.ClusterClient) -> None:
        live = client.live

        def watched(node: Listening, life: str) -> None:
            try:
                live(node, life)
            except cluster_load.LOST as error:
                self.lost.append((time.monotonic(), node.port, client.name, error))
                raise

        client.live = watched  # type: ignore[method-assign]
        self.clients.append(client)

    def declare(self) -> None:
        """Declare the queues; two of them dead-letter into another."""
        with connected(self.cluster.nodes[0]) as connection:
            channel = connection.channel()
            for kind, notes in self.notes.items():
                arguments = {"x-queue-type": "quorum", **QUEUES.get(kind, {})}
                if "x-dead-letter-exchange" in arguments:
                    arguments["x-dead-letter-routing-key"] = self.notes["dead"].queue
                channel.queue_declare(notes.queue, durable=True, arguments=arguments)

    def state_of(self, kinds: Collection[str]) -> str:
        """Return the queues of these kinds and their consumers, as each node reports them."""
        wanted = {self.notes[kind].queue for kind in kinds if kind in self.notes}
        columns = {
            "queue list": (
                *("name", "leader", "online", "messages_ready", "messages_unacknowledged", "consumers"),
                "single_active_consumer_tag",
            ),
            "consumer list": (
                *("queue", "node", "connection", "protocol", "tag", "prefetch", "unacknowledged"),
                *("waits", "waits_why", "waits_for_s"),
            ),
        }
        lines: list[str] = []
        for node in self.cluster.nodes:
            for command, names in columns.items():
                rows = self.cluster.ask(node, command, *names)
                lines += [f"{node.name} {command}: {row}" for row in rows if row[names[0]] in wanted]
        return "\n".join(lines)

    # --- faults -----------------------------------------------------------------------------------

    def leader(self) -> ClusterNode:
        for node in self.cluster.nodes:
            if node.accepts:
                rows = self.cluster.ask(node, "queue", "list", "name", "leader")
                wanted = self.rng.choice(list(self.notes.values())).queue
                leaders = [row["leader"] for row in rows if row["name"] == wanted and row["leader"]]
                if leaders:
                    return self.cluster.node(leaders[0])
        return self.rng.choice(self.cluster.nodes)

    def do(self) -> None:
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
            # Of a part of the network more nodes see something.
            touched = list(nodes) if what in OF_NETWORK else victims
            self.hurt.begin(touched, what)
            kind = what.partition(" ")[0]
            if what in OF_NETWORK:
                self._hurt_network(kind, victims)
            elif what in OF_DISKS:
                self._hurt_disks(kind, victims)
            elif kind in ("halt", "lame"):
                self._halt(kind, victims)
            else:
                self._hurt(kind, victims)
            self.cluster.wait_until_up()
            self.hurt.end(touched)

    def _hurt(self, what: str, victims: Sequence[ClusterNode]) -> None:
        rng = self.rng
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

    def _halt(self, what: str, victims: Sequence[ClusterNode]) -> None:
        rng = self.rng
        # With a second one killed no majority is left.
        killed = [rng.choice(self.cluster.others(*victims))] if what == "lame" else []
        for each in victims:
            each.pause()
        self.hurt.begin(killed, "killed")
        for each in killed:
            each.kill()
            time.sleep(rng.uniform(0.0, 2.0))
            each.start()
        time.sleep(rng.uniform(0.5, 8.0))
        for each in victims:
            each.resume()
        self.cluster.wait_until_up()
        self.hurt.end(killed)

    def _hurt_network(self, what: str, victims: Sequence[ClusterNode]) -> None:
        rng, network = self.rng, self.cluster.network
        names = [node.name for node in self.cluster.nodes]
        pairs = list(permutations(names, 2))
        if what == "reset":
            for node in victims:
                for other in self.cluster.others(node):
                    network.reset(node.name, other.name)
            return
        if what == "delay":
            for node in victims:
                for other in self.cluster.others(node):
                    network.delay(node.name, other.name, rng.choice((0.005, 0.05, 0.2, 0.6)))
        elif what == "storm":
            for _ in range(rng.randrange(3, 12)):
                network.mend()
                for pair in rng.sample(pairs, rng.randrange(1, len(pairs))):
                    network.cut_way(*pair)
                time.sleep(rng.uniform(0.05, 2.0))
        elif what == "part":
            network.cut(*rng.choice(pairs))
        elif what == "one":
            network.cut_way(*rng.choice(pairs))
        else:
            for sender, receiver in pairs:
                out = sender in [node.name for node in victims]
                back = receiver in [node.name for node in victims]
                if (out and what != "deaf") or (back and what != "mute"):
                    network.cut_way(sender, receiver)
        time.sleep(rng.choice((rng.uniform(0.1, 2.0), rng.uniform(2.0, 12.0))))
        network.mend()

    def _hurt_disks(self, what: str, victims: Sequence[ClusterNode]) -> None:
        rng = self.rng
        if what == "full":
            for node in victims:
                self.cluster.fill(node)
            time.sleep(rng.uniform(0.5, 8.0))
            for node in victims:
                self.cluster.make_room(node)
            return
        # A disk that is slow hangs for a moment, again and again.
        for _ in range(1 if what == "hang" else 20):
            for node in victims:
                node.hang_disk()
            time.sleep(rng.uniform(0.5, 9.0) if what == "hang" else rng.uniform(0.05, 0.4))
            for node in victims:
                node.free_disk()
            time.sleep(rng.uniform(0.0, 0.1))

    def _move(self, node: ClusterNode) -> None:
        self.hurt.count["move"] = self.hurt.count.get("move", 0) + 1
        queue = self.rng.choice(list(self.notes.values())).queue
        done = self.cluster.run_command(node, "member", "transfer-leadership", queue, node.name)
        _log.info("%d %s%s", done.returncode, done.stdout, done.stderr)

    def _drain(self, node: ClusterNode) -> None:
        self.hurt.begin([node], "drain")
        for command in ("drain", "revive"):
            done = self.cluster.run_command(node, "cluster", command)
            _log.info("%s: %d %s%s", command, done.returncode, done.stdout, done.stderr)
            time.sleep(self.rng.uniform(0.0, 3.0))
        self.hurt.end([node])

    def check_clients(self) -> None:
        """Fail if a client failed for any reason but the loss of a node with a fault."""
        for client in self.clients:
            if client.failure is not None:
                raise AssertionError(f"{client.name} has failed: {client.failure!r}") from client.failure
        declarers = {
            each.name for each in self.clients if isinstance(each, Meddler | cluster_load.MetadataClient)
        }
        for at, port, name, error in self.lost:
            assert self.hurt.explains(port, at, declares=name in declarers), (
                f"{name} lost its node {port}, which ran: {error!r}"
            )

    def marks(self) -> dict[str, int]:
        """Return the numbers of answers and deliveries of each queue."""
        marks = {meddler.name: meddler.done for meddler in self.meddlers}
        for kind in QUEUES:
            notes = self.notes[kind]
            marks[f"into {kind}"] = len(notes.confirmed) + len(notes.refused)
            marks[f"out of {kind}"] = len(notes.deliveries)
        return marks

    def clear(self) -> None:
        with connected(self.cluster.nodes[0]) as connection:
            channel = connection.channel()
            for notes in self.notes.values():
                channel.queue_delete(notes.queue)
            for meddled in {meddler.notes.queue for meddler in self.meddlers}:
                for number in range(Meddler.NAMES):
                    channel.queue_delete(f"{meddled}.{number}")
                channel.exchange_delete(f"{meddled}.x")
            for name in self.histories:
                channel.exchange_delete(name)


def undone(notes: TotalQueue) -> list[str]:
    """Return messages that an unharmed client settled and that were delivered again (E4)."""
    settled = {name: at for (life, name), at in notes.removing.items() if life not in notes.lost}
    again = {each.name for each in notes.deliveries if each.at > settled.get(each.name, each.at)}
    again |= {name for name, _ in notes.content or () if name in settled}
    return sorted(again)


def definitions(cluster: ClusterProcess, node: ClusterNode) -> Any:
    done = cluster.run_command(node, "definitions", "export", "-")
    assert done.returncode == 0, f"{node.name}: {done.stderr}"
    return json.loads(done.stdout)


def counts(cluster: ClusterProcess, node: ClusterNode) -> dict[str, int | None]:
    """Return each quorum queue's count as the node reports it; None without contact to the leader."""
    rows = cluster.ask(node, "queue", "list", "name", "type", "messages")
    return {row["name"]: row["messages"] for row in rows if row["type"] == "quorum"}


def has_counts(cluster: ClusterProcess, node: ClusterNode, wanted: dict[str, int | None]) -> bool:
    return counts(cluster, node) == wanted


def agreed_counts(cluster: ClusterProcess) -> dict[str, int | None]:
    """Wait until all nodes report all counts, and agree. A disk that hangs for some seconds makes nodes lose
    contact with each other and with leaders.
    """
    agreed: dict[str, int | None] = {}

    def agree() -> bool:
        first, *others = (counts(cluster, node) for node in cluster.nodes)
        agreed.clear()
        agreed.update(first)
        return None not in first.values() and all(each == first for each in others)

    cluster.wait_until(agree, "the same counts at all nodes", PROGRESS_S)
    return agreed


def run(cluster: CutCluster, prefix: str, seed: int, seconds: float) -> Nemesis:
    """Inject faults for this long, require that all clients make progress afterwards, then `finish`."""
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
            names = [what for what in before if now[what] <= before[what]]
            return f"{names}\n{nemesis.state_of({what.split()[-1] for what in names})}"

        try:
            cluster.wait_until(on, "everything gets on", PROGRESS_S)
        except AssertionError as error:
            raise AssertionError(f"stuck: {stuck()}") from error
    finally:
        for client in nemesis.clients:
            client.stopping.set()
    cluster_load.stop_all(nemesis.clients)
    nemesis.check_clients()
    confirmed = {kind: len(notes.confirmed) for kind, notes in nemesis.notes.items()}
    _log.info("%s, %d lives lost, confirmed: %s", nemesis.hurt.count, len(nemesis.lost), confirmed)
    for meddler in nemesis.meddlers:
        _log.info("%s: %d done, %s", meddler.name, meddler.done, meddler.refusals)
    return nemesis


def finish(cluster: CutCluster, nemesis: Nemesis) -> None:
    first = cluster.nodes[0]

    def settled() -> bool:
        listed = cluster.ask(first, "queue", "list", "name", "messages", "messages_unacknowledged")
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
    had = agreed_counts(cluster)
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
        faults += [f"{kind}: {fault}" for fault in notes.faults()]
        again = undone(notes)
        if again:
            faults.append(f"{kind}: settled, and came again: {len(again)}, {again[:5]}")
    assert not faults, "\n".join(faults)
    check(nemesis.histories)


def is_allowed(entry: Mapping[str, Any]) -> bool:
    """Return whether a logged error follows from an injected fault."""
    full = ("the disk is full", "no room for what was published to a stream")
    return str(entry.get("event")).startswith(full)
