"""Whole nodes of a cluster in one program, on disks that lose power and a network that cuts: `Simulation`.

Each node is the real broker with all its tasks: raft, groups, links, metadata, forming, journal. What is
around it is simulated: its disk (`disks.SimDisk`), its network (`sim_network`), its clock, chance, and its
clients, which post to queues as sessions do (`sim_clients`). Trio's clock jumps, and its scheduler draws from
the seed: the same seed gives the same life, byte for byte.

A life has two phases. First there are faults, of which each has a probability that is drawn for this life.
Then they end, and within a bounded time each publish must have its answer, and all that was confirmed must be
there. What must never happen is looked at all the time.
"""

from __future__ import annotations

import contextlib
import contextvars
import errno
import hashlib
import random
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final
from unittest.mock import patch

import trio
import trio._core._run as trio_run
from trio.testing import MockClock

from amqp10broker.cli.serve import leaves
from amqp10broker.cluster.membership import MemberRole
from amqp10broker.config import Config
from amqp10broker.errors import BrokerError, RefusedError, StorageError, StorageFailed
from amqp10broker.metadata.queue_requests import DeclareQueue, DeleteQueue
from amqp10broker.queues.quorum import log_store as quorum_store
from amqp10broker.queues.quorum.durability import QuorumInLog
from amqp10broker.queues.quorum.log_store import LogEntry, QuorumStore
from amqp10broker.queues.quorum.queue import encode_snapshot
from amqp10broker.raft.ids import node_of
from amqp10broker.raft.messages import ChangeRefused, NotLeader, NotReady, Role
from amqp10broker.runtime import broker as broker_module
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.clock import WallClock
from amqp10broker.runtime.cluster import cluster as cluster_module
from amqp10broker.runtime.cluster.peer_link import Transport
from amqp10broker.runtime.cluster.peers import Peers
from amqp10broker.runtime.journal import data as data_module
from amqp10broker.runtime.journal import journal_task as journal_module
from amqp10broker.runtime.log import Log
from amqp10broker.runtime.queues.queue_task import RemoteQueue
from tests.support.disks import PowerLoss, SimDisk
from tests.support.journal_harness import files_of
from tests.support.node import NoMeter
from tests.support.sim_clients import SimClient, UsedQueue
from tests.support.sim_network import SimNetwork

EPOCH_S: Final = 1_800_000_000.0
UP_S: Final = 60.0
"""In which nodes that nothing disturbs are up and have a leader of each queue."""
ANSWER_S: Final = 30.0
"""In which, then, all that was asked has its answer."""
LIFE_S: Final = 3_000.0

NODE: contextvars.ContextVar[SimNode] = contextvars.ContextVar("node")


class Odds:
    """How likely each fault is in a life, drawn from its seed.

    Attributes:
        of: fault -> weight; half of them do not happen at all.
    """

    FAULTS: Final = (
        "kill", "power", "power at a call", "stop", "cut", "cut one way", "isolate", "reset", "reset one",
        "stall", "slow way", "slow disk", "disk error", "full disk", "transfer", "clock", "add member",
        "delete member", "declare", "delete", "vanish", "kill all", "mend",
    )  # fmt: skip

    def __init__(self, rng: random.Random) -> None:
        self.of = {fault: rng.random() ** 2 if rng.random() < 0.5 else 0.0 for fault in self.FAULTS}
        self.of["mend"] = 1.5
        self.of["kill all"] *= 0.2
        self.of["delete"] *= 0.3
        self.fault = rng.choice((0.05, 0.15, 0.3))

    def draw(self, rng: random.Random) -> str:
        return rng.choices(list(self.of), list(self.of.values()))[0]


class _Socket:
    def __init__(self, name: str) -> None:
        self._name = name

    def fileno(self) -> int:
        return -1

    def getsockname(self) -> tuple[str, int]:
        return self._name, 1


class _Sockets:
    def __init__(self) -> None:
        self.plain = [_Socket(NODE.get().name)]
        self.encrypted: list[_Socket] = []
        self.tls = None

    async def bind(self, config: Config) -> None:
        """Nothing can be taken."""

    def listen(self) -> None:
        """Nobody comes."""

    def close(self) -> None:
        """Nothing is open."""


class _Peers(Peers):
    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        node = NODE.get()
        context = contextvars.copy_context()
        async with trio.open_nursery() as nursery:

            def serve(transport: Transport) -> None:
                context.run(nursery.start_soon, self.serve, transport, _nothing)

            node.sim.network.listens(node.name, serve)
            try:
                await super().run(task_status)
            finally:
                node.sim.network.listens_no_more(node.name, serve)


def _nothing() -> None:
    pass


class SimNode:
    """One node, over all its lives.

    Attributes:
        disk: what its next life begins with, or its present one has.
        broker: while it runs; it serves clients when `up`.
        dead: this life is over, and what its tasks still do has no effect.
        skew_s: by how much its clock is ahead.
        sync_s: how long a sync takes.
        clients: of this life.
    """

    def __init__(self, sim: Simulation, name: str) -> None:
        self.sim = sim
        self.name = name
        self.disk = SimDisk(sim.seed)
        self.broker: Broker | None = None
        self.up = self.running = False
        self.dead = True
        self.skew_s = sim.rng.choice((0.0, 0.0, 5.0, -5.0, 0.3))
        self.sync_s = 0.0004
        self.clients: list[SimClient] = []
        self.lives = 0
        self._mounted = self.disk
        self._scope = trio.CancelScope()
        self._stopping = trio.Event()
        self.over = trio.Event()

    # --- what the broker is given in place of the real thing ----------------------------------------

    def watched_disk(self) -> SimDisk:
        """Return the disk of this life, which signals the loss of power."""
        disk = self._mounted = self.disk
        call = type(disk)._call

        def watched(*args: Any, **given: Any) -> None:
            try:
                call(disk, *args, **given)
            except PowerLoss:
                if not self.dead:
                    self.die(silent=True, power=True)
                raise

        disk._call = watched  # type: ignore[method-assign]
        return disk

    @asynccontextmanager
    async def open_syncer(self, *, delay_ms: int = 0) -> AsyncIterator[SimNode]:
        yield self

    async def sync(self, fds: Sequence[int]) -> None:
        """Sync as `runtime.journal.journal_task.Syncer.sync` does: the helper has its own descriptors."""
        disk = self._mounted
        theirs = [disk.duplicate(fd) for fd in fds]
        for fd in theirs:
            await trio.sleep(self.sync_s)
            try:
                disk.sync(fd)
            except OSError as error:
                raise StorageFailed("the data folder", f"cannot be synced: {error}", "look") from error
            finally:
                disk.close(fd)

    def clock(self) -> WallClock:
        clock = WallClock.__new__(WallClock)
        clock.offset_s = EPOCH_S + self.skew_s
        return clock

    async def dial(self, address: tuple[str, int]) -> Transport:
        return await self.sim.network.connect(self.name, address)

    # --- lives --------------------------------------------------------------------------------------

    def start(self, nursery: trio.Nursery) -> None:
        assert self.dead
        assert not self.running
        self.dead, self.running, self.up = False, True, False
        self.lives += 1
        self._scope, self._stopping, self.over = trio.CancelScope(), trio.Event(), trio.Event()
        context = contextvars.copy_context()
        context.run(NODE.set, self)
        context.run(nursery.start_soon, self._live)

    async def _live(self) -> None:
        sim = self.sim
        sim.note(f"{self.name} starts")
        listed = ",".join(f"{name}={name}:1" for name in sim.names)
        config = Config(
            port=0,
            data_dir=f"/{self.name}",
            admin_socket="",
            users=(),
            anonymous_login_user="",
            node_name=self.name,
            cluster_nodes=listed,
            cluster_secret_file="secret",
            container_id=self.name,
            cluster_suspect_ms=sim.suspect_ms,
        )
        refused: BaseException | None = None
        with self._scope:
            try:
                broker = self.broker = Broker(config, meter=NoMeter())
                async with broker:
                    if not self.dead and not broker.over.is_set():
                        self.up = True
                        sim.note(f"{self.name} serves")
                        async with trio.open_nursery() as nursery:
                            nursery.start_soon(self._until, broker.over, nursery.cancel_scope)
                            nursery.start_soon(self._until, self._stopping, nursery.cancel_scope)
                    self.up = False
            except BaseException as error:
                if not self.dead:
                    refused = error
        self.up = self.running = False
        if not self.dead:
            # It has ended by itself, or was told to: what it had told its clients counts.
            self._end_clients()
            self.dead = True
            sim.network.lose(self.name, silent=False)
            self.disk = self.disk.after_kill()
        self.broker = None
        if refused is not None:
            if not all(isinstance(each, StorageError | trio.Cancelled) for each in leaves(refused)):
                raise refused
            sim.note(f"{self.name} gave up: {refused}")
            sim.refused[self.name] = str(refused)
        sim.note(f"{self.name} is over")
        self.over.set()

    async def _until(self, event: trio.Event, scope: trio.CancelScope) -> None:
        await event.wait()
        scope.cancel()

    def stop(self) -> None:
        self.sim.note(f"{self.name} is stopped")
        self._end_clients(in_order=True)
        self.up = False
        self._stopping.set()
        if self.broker is not None:
            self.broker.stop()

    def die(self, *, silent: bool, power: bool) -> None:
        assert not self.dead
        sim = self.sim
        sim.note(f"{self.name} dies {'power' if power else ''} {'silent' if silent else ''}")
        self._end_clients()
        self.dead, self.up = True, False
        sim.network.lose(self.name, silent=silent)
        old = self.disk
        self.disk = old.after_power_loss(sim.rng.randrange(1 << 30)) if power else old.after_kill()
        self.disk.__dict__.pop("_call", None)
        old.lose_power_at = len(old.calls)
        self._scope.cancel()

    def _end_clients(self, *, in_order: bool = False) -> None:
        for client in self.clients:
            if not client.over:
                if any(each.settled and not each.over for each in client.consumers.values()):
                    client.queue.lossy = True
                client.end()
        self.clients.clear()

    # --- looking ------------------------------------------------------------------------------------

    @property
    def serving(self) -> Broker | None:
        return self.broker if self.up and not self.dead else None

    def backends(self) -> Iterator[tuple[int, QuorumInLog]]:
        broker = self.broker
        if broker is None or self.dead:
            return
        for queue in broker.catalog:
            handle = queue.handle
            if isinstance(handle, RemoteQueue) and handle.member is not None:
                backend = handle.member.backend
                if isinstance(backend, QuorumInLog) and backend.member is not None:
                    yield queue.number, backend


class Simulation:
    """See the module.

    Attributes:
        trace: all that happened, in order.
        names: of the nodes.
        queues: that were declared, with what clients know of them.
        counts: how often each fault was drawn.
        faults: what must never happen, and did.
        refused: by node, why its last life ended by itself.
    """

    def __init__(self, seed: int, *, steps: int = 120) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.names = "abcde"[: rng.choice((3, 3, 5))]
        self.odds = Odds(rng)
        self.steps = steps
        self.suspect_ms = rng.choice((300, 1000, 1000))
        self.trace: list[str] = []
        self.faults: list[str] = []
        self.refused: dict[str, str] = {}
        self.network = SimNetwork(random.Random(rng.random()), self.note, rng.choice((0.0005, 0.002, 0.02)))
        self.nodes: dict[str, SimNode] = {}
        self.queues: dict[str, UsedQueue] = {}
        self.leaders: dict[tuple[int, int], int] = {}
        self.entries: dict[tuple[int, int], tuple[int, bytes]] = {}
        self.states: dict[tuple[int, int], bytes] = {}
        self.times: dict[tuple[int, int], int] = {}
        self.counts: dict[str, int] = {}
        self._made = 0
        self._nursery: trio.Nursery
        self._started = False
        self._deciding = 0
        self._file_bytes = rng.choice((3_000, 20_000, 200_000))
        self._snapshot_after = rng.choice((1_000, 8_000, 100_000))

    # --- running it ---------------------------------------------------------------------------------

    def run(self) -> None:
        with self._simulated():
            trio.run(self._run, clock=MockClock(autojump_threshold=0))
        assert not self.faults, self.faults

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()

    def note(self, what: str) -> None:
        now = trio.current_time() if self._started else 0.0
        self.trace.append(f"{now:.5f} {what}")

    @contextmanager
    def _simulated(self) -> Iterator[None]:
        random_source = random.Random(self.rng.random())
        state = random.getstate()
        sim = self

        def bytes_of(count: int | None = None) -> bytes:
            return random_source.randbytes(count or 32)

        def write(log: Log, level: int, event: str, details: dict[str, Any]) -> None:
            sim._log(level, event, details)

        def apply(store: QuorumStore, committed: int) -> LogEntry | None:
            entry = real_apply(store, committed)
            if entry is not None:
                sim._applied(store, entry)
            return entry

        def peers(identity: Any, secret: bytes, events: Any, **given: Any) -> _Peers:
            node = NODE.get()
            return _Peers(
                *(identity, secret, events),
                dial=node.dial,
                suspect_ms=given["suspect_ms"],
                random_source=random_source.random,
            )

        async def bind_cluster(config: Config, port: int) -> list[_Socket]:
            return [_Socket(NODE.get().name)]

        real_apply = QuorumStore.apply
        with contextlib.ExitStack() as stack:

            def put(target: Any, name: str, value: Any) -> None:
                stack.enter_context(patch.object(target, name, value))

            put(data_module, "Disk", lambda: NODE.get().watched_disk())
            put(journal_module, "open_syncer", lambda **given: NODE.get().open_syncer(**given))
            put(journal_module, "journal_sizes", files_of(self._file_bytes))
            put(quorum_store, "SNAPSHOT_AFTER_BYTES", self._snapshot_after)
            put(QuorumStore, "apply", apply)
            put(broker_module, "pid_file", lambda path: contextlib.nullcontext())
            put(broker_module, "BoundSockets", _Sockets)
            put(broker_module, "WallClock", lambda: NODE.get().clock())
            put(cluster_module, "read_secret", lambda path: b"the secret of the simulation")
            put(cluster_module, "bind_cluster", bind_cluster)
            put(cluster_module, "Peers", peers)
            put(secrets, "token_bytes", bytes_of)
            put(secrets, "token_hex", lambda count=None: bytes_of(count).hex())
            put(secrets, "token_urlsafe", lambda count=None: bytes_of(count).hex())
            put(Log, "_write", write)
            put(trio_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
            random.seed(self.rng.random())
            trio_run._r.seed(self.rng.random())
            try:
                yield
            finally:
                random.setstate(state)

    def _log(self, level: int, event: str, details: dict[str, Any]) -> None:
        node = NODE.get(None)
        error = details.get("exc_info")
        self.note(f"log {node and node.name} {event} {_text(details)}")
        alive = node is not None and not node.dead
        if error is not None and alive and not all(isinstance(e, StorageError) for e in leaves(error)):
            self.faults.append(f"{node.name}: {event}: {error!r}")
            self.note(f"FAULT {self.faults[-1]}")
        if "does not understand" in event or "cannot be read" in event:
            self.faults.append(f"{event} {_text(details)}")

    # --- the life -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        self._started = True
        with trio.fail_after(LIFE_S):
            async with trio.open_nursery() as self._nursery:
                for name in self.names:
                    self.nodes[name] = SimNode(self, name)
                for node in self.nodes.values():
                    node.start(self._nursery)
                    await trio.sleep(self.rng.choice((0, 0, 0.05, 1.0)))
                await self._until(lambda: all(node.up for node in self.nodes.values()), UP_S, "nodes form")
                for _ in range(self.rng.choice((1, 2, 4))):
                    await self._declare(must=True)
                for _ in range(self.steps):
                    await self._step()
                await self._heal()
                await self._progress()
                self._check_equal()
                if self.rng.random() < 0.3:
                    # A moment after all was answered the power goes everywhere.
                    for node in self.nodes.values():
                        if not node.dead:
                            node.die(silent=True, power=True)
                    await self._heal()
                await self._look()
                for node in self.nodes.values():
                    if not node.dead:
                        node.stop()
                for node in self.nodes.values():
                    await node.over.wait()
                self._nursery.cancel_scope.cancel()

    async def _step(self) -> None:
        rng = self.rng
        if rng.random() < self.odds.fault:
            await self._fault(self.odds.draw(rng))
        else:
            clients = [client for node in self.nodes.values() for client in node.clients if not client.over]
            if len(clients) < 2 * len(self.names) and rng.random() < 0.2:
                self._client()
            elif clients:
                rng.choice(clients).act(rng)
        await trio.sleep(rng.choice((0, 0.001, 0.005, 0.02, 0.1, 0.3)) if rng.random() < 0.99 else 3.0)
        self._listen()
        self._watch()

    def _listen(self) -> None:
        for node in self.nodes.values():
            for client in node.clients:
                client.listen()
                for line in client.trace:
                    self.note(f"{client.life} {line}")
                client.trace.clear()

    def _client(self) -> None:
        rng = self.rng
        nodes = [node for node in self.nodes.values() if node.serving is not None]
        queues = [queue for queue in self.queues.values() if not queue.deleting]
        if not nodes or not queues:
            return
        node, queue = rng.choice(nodes), rng.choice(queues)
        broker = node.serving
        vhost = broker.catalog.vhosts.get("/")
        declared = None if vhost is None else vhost.find(queue.name)
        if declared is None:
            return
        self._made += 1
        client = SimClient(f"{node.name}{self._made}", broker.reply_registry, declared, queue)
        node.clients.append(client)

    # --- what is declared ---------------------------------------------------------------------------

    async def _declare(self, *, must: bool = False) -> None:
        """Declare a queue on some node, and wait for it only if it must exist."""
        rng = self.rng
        self._made += 1
        type = "quorum" if must or rng.random() < 0.9 else "classic"
        arguments: dict[str, object] = {"x-queue-type": type}
        if type == "quorum":
            arguments["x-delivery-limit"] = 1_000_000
            if rng.random() < 0.3:
                arguments["x-quorum-initial-group-size"] = rng.choice((1, 3, 5))
        queue = UsedQueue(f"q{self._made}", type, arguments)
        if must:
            await self._declare_at(queue)
            assert queue.name in self.queues, f"{queue.name} cannot be declared"
        else:
            self._nursery.start_soon(self._declare_at, queue)

    async def _declare_at(self, queue: UsedQueue) -> None:
        self.note(f"declares {queue.name} {queue.arguments}")
        request = DeclareQueue("/", queue.name, True, arguments=queue.arguments)
        if await self._proposed(request) is not None:
            self.queues[queue.name] = queue

    async def _delete(self) -> None:
        queues = [queue for queue in self.queues.values() if not queue.deleting]
        if len(queues) > 1:
            queue = self.rng.choice(queues)
            queue.deleting = True
            self._nursery.start_soon(self._delete_at, queue)

    async def _delete_at(self, queue: UsedQueue) -> None:
        await self._proposed(DeleteQueue("/", queue.name))

    async def _proposed(self, request: Any) -> Any:
        nodes = [node for node in self.nodes.values() if node.serving is not None]
        if not nodes:
            return None
        node = self.rng.choice(nodes)
        broker, life = node.serving, node.lives
        answer = None
        self._deciding += 1
        with trio.move_on_after(60):
            try:
                answer = await broker.cluster.system.propose(request)
            except RefusedError as error:
                self.note(f"{node.name} refuses {type(request).__name__}: {error}")
            else:
                self.note(f"{node.name} has done {type(request).__name__}")
        self._deciding -= 1
        return answer if node.lives == life and not node.dead else None

    # --- faults -------------------------------------------------------------------------------------

    async def _fault(self, fault: str) -> None:
        rng = self.rng
        alive = [node for node in self.nodes.values() if not node.dead]
        idle = [node for node in self.nodes.values() if node.dead and not node.running]
        self.counts[fault] = self.counts.get(fault, 0) + 1
        self.note(f"fault {fault}")
        if fault == "mend":
            if idle:
                rng.choice(idle).start(self._nursery)
            if rng.random() < 0.5:
                self._mend()
            return
        if not alive:
            return
        node = rng.choice(alive)
        one, other = rng.sample(list(self.names), 2)
        match fault:
            case "kill":
                node.die(silent=rng.random() < 0.3, power=False)
            case "power":
                node.die(silent=True, power=True)
            case "power at a call":
                node.disk.lose_power_at = len(node.disk.calls) + rng.randrange(1, 40)
            case "kill all":
                for each in alive:
                    each.die(silent=True, power=rng.random() < 0.5)
            case "stop":
                node.stop()
            case "cut":
                self.network.cut(one, other)
                self.network.cut(other, one)
            case "cut one way":
                self.network.cut(one, other)
            case "isolate":
                for name in self.names:
                    if name != one:
                        self.network.cut(name, one)
                        self.network.cut(one, name)
            case "reset":
                self.network.reset(one, other)
            case "reset one":
                self.network.reset_one()
            case "stall":
                self.network.stall()
            case "slow way":
                self.network.slow[one, other] = rng.choice((0.05, 0.4, 2.0))
            case "slow disk":
                node.sync_s = rng.choice((0.01, 0.2, 1.0, 3.0))
            case "disk error":
                node.disk.fail[len(node.disk.calls) + rng.randrange(10)] = errno.EIO
            case "full disk":
                node.disk.capacity = node.disk.used() + rng.randrange(5_000)
            case "clock":
                node.skew_s += rng.choice((0.1, 3.0, 30.0))
                if node.broker is not None and hasattr(node.broker, "clock"):
                    node.broker.clock.offset_s = EPOCH_S + node.skew_s
            case "transfer":
                self._transfer(node)
            case "add member" | "delete member":
                self._nursery.start_soon(self._change_members, node, fault)
            case "declare":
                if len(self.queues) < 8:
                    await self._declare()
            case "delete":
                await self._delete()
            case "vanish":
                if node.clients:
                    node.clients.pop(rng.randrange(len(node.clients))).close()

    def _mend(self) -> None:
        self.network.mend()
        for node in self.nodes.values():
            node.sync_s = 0.0004
            node.disk.capacity = None

    def _transfer(self, node: SimNode) -> None:
        broker = node.serving
        if broker is None or broker.cluster is None:
            return
        groups = broker.cluster.raft.groups
        led = [member for member in groups if member.leads]
        if led:
            member = self.rng.choice(led)
            others = [each for each in member.raft.config.voters if each != member.me]
            if others:
                with contextlib.suppress(ChangeRefused, NotLeader, NotReady):
                    member.transfer(self.rng.choice(others))
                member.advance()

    async def _change_members(self, node: SimNode, fault: str) -> None:
        broker = node.serving
        if broker is None or not self.queues:
            return
        queue = broker.catalog.lookup_vhost("/").find(self.rng.choice(list(self.queues)))
        if queue is None or not queue.members:
            return
        there = set(map(node_of, queue.members))
        numbers = {each.number for each in broker.catalog.nodes.values()}
        member: Any = broker.as_member
        try:
            if fault == "add member" and numbers - there:
                await member.add_member(
                    queue, self.rng.choice(sorted(numbers - there)), MemberRole.VOTER, 10.0
                )
            elif fault == "delete member" and len(there) > 1:
                await member.delete_member(queue, self.rng.choice(sorted(there)), 10.0)
        except BrokerError as error:
            self.note(f"{node.name}: {fault} of {queue.name} refused: {error}")

    # --- the second phase ---------------------------------------------------------------------------

    async def _heal(self) -> None:
        self.note("heals")
        for node in self.nodes.values():
            node.disk.lose_power_at = None if not node.dead else node.disk.lose_power_at
            node.disk.fail.clear()
        self._mend()

        def up() -> bool:
            self._mend()
            for node in self.nodes.values():
                if node.dead and not node.running:
                    node.start(self._nursery)
            return all(node.up for node in self.nodes.values())

        await self._until(up, UP_S, "nodes are up")

    async def _progress(self) -> None:
        await self._until(lambda: not self._waiting(), ANSWER_S, "all is answered")
        # What a lost node was asked has no answer, and is given up after a minute.
        await self._until(lambda: not self._deciding, 2 * UP_S, "all is decided")

    def _waiting(self) -> list[str]:
        waiting = []
        for node in self.nodes.values():
            for client in node.clients:
                if client.queue.deleting or client.over:
                    continue
                if client.outstanding:
                    waiting.append(
                        f"{client.life} of {client.queue.name}: {len(client.outstanding)} publishes"
                    )
                if client.questions:
                    waiting.append(f"{client.life} of {client.queue.name}: a question")
                for each in client.consumers.values():
                    if not each.over and (each.asked or each.credit.in_flight or not each.subscribed):
                        waiting.append(
                            f"{each.life} of {client.queue.name}: {len(each.asked)} settlements, "
                            f"credit {each.credit.in_flight}, subscribed {each.subscribed}"
                        )
        return waiting

    async def _look(self) -> None:
        for node in self.nodes.values():
            for client in node.clients:
                client.close()
            node.clients.clear()
        for queue in [*self.queues.values()]:
            if not queue.deleting:
                await self._look_at(queue)
                found = list(queue.history.faults())
                if queue.lossy:
                    found = [line for line in found if not line.startswith("confirmed and")]
                assert not found, f"queue '{queue.name}':\n" + "\n".join(found)

    async def _look_at(self, queue: UsedQueue) -> None:
        node = self.rng.choice(list(self.nodes.values()))
        broker = node.serving
        declared = broker.catalog.lookup_vhost("/").find(queue.name)
        assert declared is not None, f"{queue.name} is gone"
        client = SimClient(f"look{queue.name}", broker.reply_registry, declared, queue)
        node.clients.append(client)
        consumer = client.consume(settled=False)
        found: dict[int, tuple[str, bool]] = {}
        noted = len(queue.history.deliveries)

        def seen() -> bool:
            consumer.want(100)
            given = queue.history.deliveries[noted:]
            names = {each.name for each in given}
            found.update(enumerate((each.name, each.redelivered) for each in given))
            return consumer.subscribed and not consumer.credit.in_flight and queue.history.wanted <= names

        try:
            # What a lost node had comes back after a minute.
            await self._until(seen, 100.0 if not queue.lossy else 10.0, f"all of {queue.name} is there")
        except TimeoutError:
            pass
        await self._until(lambda: (consumer.want(100), False)[1], 1.0, "", must=False)
        given = queue.history.deliveries[noted:]
        queue.history.look((each.name, each.redelivered) for each in given)
        del queue.history.deliveries[noted:]

    async def _until(
        self, condition: Callable[[], bool], within_s: float, what: str, *, must: bool = True
    ) -> None:
        deadline = trio.current_time() + within_s
        while True:
            self._listen()
            self._watch()
            if condition():
                return
            if trio.current_time() >= deadline:
                if not must:
                    return
                raise TimeoutError(f"not within {within_s:g} s: {what}: {self._state()}")
            await trio.sleep(0.1)

    def _state(self) -> str:
        nodes = ", ".join(
            f"{node.name} {'up' if node.up else 'dead' if node.dead else 'starts'}"
            for node in self.nodes.values()
        )
        return f"{nodes}; refused: {self.refused}; waiting: {self._waiting()}"

    # --- what must always hold ----------------------------------------------------------------------

    def _applied(self, store: QuorumStore, entry: LogEntry) -> None:
        key = store.group, entry.index
        digest = hashlib.sha256(entry.payload).digest()
        before = self.entries.setdefault(key, (entry.term, digest))
        if before != (entry.term, digest):
            self.faults.append(f"group {key[0]}: another entry is applied at {key[1]}")
        self.times[key] = entry.now_ms
        if entry.now_ms < self.times.get((store.group, entry.index - 1), 0):
            self.faults.append(f"group {key[0]}: time runs back at entry {key[1]}")
        if entry.index % 5 == 0 and store._queue is not None and not store._queue.deleted:
            state = encode_snapshot(store._queue)
            known = self.states.setdefault(key, state)
            if known != state:
                self.faults.append(f"group {key[0]}: members differ at entry {key[1]}")

    def _watch(self) -> None:
        for node in self.nodes.values():
            broker = node.broker
            if broker is None or node.dead or broker.cluster is None:
                continue
            for member in broker.cluster.raft.groups:
                status = member.raft.status
                if status.role is Role.LEADER:
                    known = self.leaders.setdefault((member.group, status.term), member.me)
                    assert known == member.me, f"group {member.group}: two leaders in term {status.term}"
        assert not self.faults, self.faults

    def _check_equal(self) -> None:
        """Members at the same index have equal states, and nodes have equal metadata."""
        states: dict[tuple[int, int], bytes] = {}
        for node in self.nodes.values():
            for group, backend in node.backends():
                state = encode_snapshot(backend.queue)
                known = states.setdefault((group, backend.applied), state)
                assert known == state, f"group {group}: members differ at entry {backend.applied}"
            broker = node.serving
            if broker is not None and broker.cluster is not None and broker.cluster.system is not None:
                system = broker.cluster.system.system
                state = system._machine.snapshot()
                known = states.setdefault((0, system.applied), state)
                assert known == state, f"nodes differ in what is declared at entry {system.applied}"


def _text(details: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in details.items() if key not in ("seconds", "exc_info"))
