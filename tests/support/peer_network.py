"""A network in memory between the `Peers` of several nodes, which a test cuts, delays and resets.

The streams behave as TCP does: what is sent over a cut waits and comes when it is mended; a connection is
made only if both directions are open; what was taken by the network and not read fills a window, and then the
sender waits. With a clock that jumps, time between nodes costs nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import trio

from amqp10broker.cluster.hello import Hello, Identity
from amqp10broker.cluster.wire import ConnectionPurpose, PeerFrame
from amqp10broker.errors import BrokerError
from amqp10broker.runtime.cluster.peer_streams import CONNECT_S, Transport
from amqp10broker.runtime.cluster.peers import Peers
from amqp10broker.runtime.connections.sockets import Address

SECRET = b"the secret of the tests"
CLUSTER = "cluster-of-the-tests"
WINDOW_BYTES = 262_144
UNTIL_S = 100.0
"""A clock that jumps gets there at once, and heartbeats would let it jump for ever."""


class _Way:
    """One direction of one connection."""

    def __init__(self, network: Network, sender: str, receiver: str) -> None:
        self.network = network
        self.ends = (sender, receiver)
        self.moving: deque[tuple[float, memoryview]] = deque()
        self.moving_bytes = 0
        self.over = False
        self.broken = False

    def arrived_at(self) -> float:
        """When the next bytes are there; inf: not as things are."""
        if self.broken:
            return -math.inf
        if self.ends in self.network.cuts:
            return math.inf
        return self.moving[0][0] if self.moving else -math.inf if self.over else math.inf


class MemoryStream:
    """One end of a connection."""

    def __init__(self, out: _Way, back: _Way) -> None:
        self._out = out
        self._back = back
        self._network = out.network
        self._closed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send, waiting while the window is full."""
        await trio.lowlevel.checkpoint()
        view = memoryview(bytes(data))
        while len(view):
            if self._closed:
                raise trio.ClosedResourceError
            if self._out.broken or self._out.over:
                raise trio.BrokenResourceError("reset")
            room = WINDOW_BYTES - self._out.moving_bytes
            if room <= 0:
                await self._network.changed.wait()
                continue
            delay_s = self._network.delays.get(self._out.ends, 0.0)
            self._out.moving.append((trio.current_time() + delay_s, view[:room]))
            self._out.moving_bytes += len(view[:room])
            view = view[room:]
            self._network.change()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """What has come."""
        await trio.lowlevel.checkpoint()
        while True:
            if self._closed:
                raise trio.ClosedResourceError
            at = self._back.arrived_at()
            if at <= trio.current_time():
                break
            changed = self._network.changed
            with trio.move_on_at(at):
                await changed.wait()
        if self._back.broken:
            raise trio.BrokenResourceError("reset")
        if not self._back.moving:
            return b""
        sent_at, data = self._back.moving.popleft()
        if max_bytes is not None and len(data) > max_bytes:
            self._back.moving.appendleft((sent_at, data[max_bytes:]))
            data = data[:max_bytes]
        self._back.moving_bytes -= len(data)
        self._network.change()
        return bytes(data)

    async def aclose(self) -> None:
        """Close both directions; what is on its way still comes."""
        self._closed = True
        self._out.over = True
        self._back.over = True
        self._network.change()
        await trio.lowlevel.checkpoint()


class Network:
    """The wires between nodes; a node's address is its name, whatever the port.

    Attributes:
        cuts: (sender, receiver) whose bytes do not come at present.
        delays: seconds that bytes take from one to another.
        changed: set, and replaced, at each change.
    """

    def __init__(self) -> None:
        self.cuts: set[tuple[str, str]] = set()
        self.delays: dict[tuple[str, str], float] = {}
        self.changed = trio.Event()
        self._ways: list[_Way] = []
        self._broker_listeners: dict[str, tuple[Peers, trio.Nursery]] = {}

    def change(self) -> None:
        """Let all that wait look again."""
        self.changed.set()
        self.changed = trio.Event()

    def cut(self, one: str, other: str, *, both: bool = True) -> None:
        """Hold back what `one` sends to `other`, and unless told otherwise the reverse."""
        self.cuts |= {(one, other)} | ({(other, one)} if both else set())
        self.change()

    def isolate(self, name: str) -> None:
        """Cut a node off from all others."""
        for other in self._broker_listeners:
            if other != name:
                self.cut(name, other)

    def mend(self) -> None:
        """All ways are open again."""
        self.cuts.clear()
        self.change()

    def reset(self, one: str, other: str) -> None:
        """Break all connections between two nodes."""
        for way in self._ways:
            if set(way.ends) == {one, other}:
                way.broken = True
        self.change()

    def listens(self, name: str, peers: Peers, nursery: trio.Nursery) -> None:
        """Connections to that name are served by these peers, in this nursery."""
        self._broker_listeners[name] = (peers, nursery)

    def listens_no_more(self, name: str) -> None:
        """Connections to that name are refused."""
        del self._broker_listeners[name]

    async def connect(self, sender: str, address: Address) -> MemoryStream:
        """A connection, as one that dials has it; what listens there has been given the other end."""
        receiver = address[0]
        with trio.move_on_after(CONNECT_S):
            await trio.lowlevel.checkpoint()
            while {(sender, receiver), (receiver, sender)} & self.cuts:
                await self.changed.wait()
            if receiver not in self._broker_listeners:
                raise ConnectionRefusedError(f"nobody listens at {receiver}")
            there, back = _Way(self, sender, receiver), _Way(self, receiver, sender)
            self._ways = [way for way in self._ways if not (way.over or way.broken)] + [there, back]
            peers, nursery = self._broker_listeners[receiver]
            nursery.start_soon(peers.serve, Transport(MemoryStream(back, there), b"", sender), _nothing)
            return MemoryStream(there, back)
        raise TimeoutError("no answer")


def _nothing() -> None:
    pass


class Node:
    """One node's `Peers`, with all that they told.

    Attributes:
        log: (what, node, ...) of all that was told, in order.
        facts_of: the facts that each node told last.
        skew_ms: by how much its clock is ahead.
        clocks: by how much those of others are ahead of it, as they told last.
        frames_of: frames by node and purpose.
        answers: what `asked` answers, or raises; by the question's ``what``. Without one the question
            waits for ever.
        refuses: names that `admit` refuses, with the reason.
        facts, unsynced: what the heartbeat says.
    """

    def __init__(
        self,
        network: Network,
        number: int,
        name: str,
        *,
        incarnation: int = 1,
        secret: bytes = SECRET,
        cluster: str = CLUSTER,
        **options: Any,
    ) -> None:
        self.network = network
        self.number = number
        self.name = name
        self.log: list[tuple[Any, ...]] = []
        self.facts: dict[str, Any] = {}
        self.facts_of: dict[int, dict[str, Any]] = {}
        self.skew_ms = 0
        self.clocks: dict[int, int] = {}
        self.unsynced = 0
        self.frames_of: dict[tuple[int, ConnectionPurpose], list[PeerFrame]] = {}
        self.answers: dict[str, dict[str, Any] | BrokerError | Exception] = {}
        self.refuses: dict[str, str] = {}
        self.changed = trio.Event()
        identity = Identity(number, name, incarnation, cluster if number else "")
        self.peers = Peers(identity, secret, self, dial=self._dial, random_source=lambda: 1.0, **options)
        self._scope = trio.CancelScope()
        self._over = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be there until `stop`."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.peers.run)
                self.network.listens(self.name, self.peers, nursery)
                task_status.started()
        self._over.set()

    async def stop(self) -> None:
        """End as a process that is killed does."""
        self.network.listens_no_more(self.name)
        self._scope.cancel()
        await self._over.wait()

    def know(self, *others: Node) -> None:
        """These are members."""
        for other in others:
            self.peers.know(other.number, other.name, (other.name, 1))

    async def until(self, *entry: Any) -> None:
        """Wait until this was told, and forget it."""
        with trio.fail_after(UNTIL_S):
            while entry not in self.log:
                await self.changed.wait()
        self.log.remove(entry)

    async def _dial(self, address: Address) -> Transport:
        return Transport(await self.network.connect(self.name, address), b"", address[0])

    def _note(self, *entry: Any) -> None:
        self.log.append(entry)
        self.changed.set()
        self.changed = trio.Event()

    # -- PeerEvents

    def frames(self, node: int, purpose: ConnectionPurpose, frames: Sequence[PeerFrame]) -> None:
        self.frames_of.setdefault((node, purpose), []).extend(frames)
        self._note("frames", node, purpose)

    def connected(self, node: int, purpose: ConnectionPurpose) -> None:
        self._note("connected", node, purpose)

    def disconnected(self, node: int, purpose: ConnectionPurpose) -> None:
        self._note("disconnected", node, purpose)

    def suspected(self, node: int) -> None:
        self._note("suspected", node)

    def heard(self, node: int, incarnation: int) -> None:
        self._note("heard", node, incarnation)

    def admit(self, hello: Hello) -> str | None:
        return self.refuses.get(hello.name)

    async def asked(self, node: int, question: dict[str, Any]) -> dict[str, Any]:
        self._note("asked", node, question["what"])
        answer = self.answers.get(question["what"])
        if answer is None:
            await trio.sleep_forever()
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, dict)
        return answer

    def heartbeat(self) -> dict[str, Any]:
        return dict(self.facts)

    def told(self, node: int, facts: dict[str, Any]) -> None:
        self.facts_of[node] = facts
        self._note("told", node)

    def clock_ms(self) -> int:
        return int(trio.current_time() * 1000) + self.skew_ms

    def clock_told(self, node: int, clock_ms: int) -> None:
        self.clocks[node] = clock_ms - self.clock_ms()

    def unsynced_ms(self) -> int:
        return self.unsynced

    def hand_over(self) -> None:
        self._note("hand over")
