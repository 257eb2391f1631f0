"""A network in memory between whole nodes (`sim_nodes`): slow, cut, reset, stalled, all drawn from one seed.

The streams behave as TCP does: bytes keep their order, what is sent over a cut waits and comes when that is
mended, and what comes behind a lost node is refused. What several connections carry comes in any order, and
what was on its way on one that is reset is lost.
"""

from __future__ import annotations

import math
import random
import zlib
from collections import deque
from collections.abc import Callable

import trio

from amqp10broker.runtime.cluster.peer_link import CONNECT_S, Transport
from amqp10broker.runtime.connections.sockets import Address

WINDOW_BYTES = 262_144
Serve = Callable[[Transport], None]
"""Has a connection served that has come."""


class MessageDestination:
    """One direction of one connection.

    Attributes:
        broken: reset.
        stalled: nothing comes at present.
        gone: the sender's machine is off: nothing comes any more, and the receiver is not told.
    """

    __slots__ = (
        "_at", "_network", "broken", "changed", "ends", "gone", "moving", "moving_bytes", "over", "stalled",
    )  # fmt: skip

    def __init__(self, network: SimNetwork, sender: str, receiver: str) -> None:
        self._network = network
        self._at = 0.0
        self.ends = (sender, receiver)
        self.moving: deque[tuple[float, memoryview]] = deque()
        self.moving_bytes = 0
        self.over = self.broken = self.stalled = self.gone = False
        self.changed = trio.Event()

    def change(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    def put(self, data: memoryview) -> None:
        if not self.gone:
            self._at = max(self._at, trio.current_time() + self._network.delay(self.ends))
            self.moving.append((self._at, data))
            self.moving_bytes += len(data)
            self.change()

    def arrives_at(self) -> float:
        """Return when data can be received; inf if it cannot as things are."""
        if self.broken:
            return -math.inf
        if self.gone or self.stalled or self.ends in self._network.cuts:
            return math.inf
        if self.moving:
            return self.moving[0][0]
        return -math.inf if self.over else math.inf

    def take(self, most: int) -> bytes:
        if self.broken:
            raise trio.BrokenResourceError("reset")
        if not self.moving:
            return b""
        at, view = self.moving.popleft()
        if len(view) > most:
            self.moving.appendleft((at, view[most:]))
        data = bytes(view[:most])
        self.moving_bytes -= len(data)
        self.change()
        self._network.note(f"{self.ends[0]}>{self.ends[1]} {len(data)} {zlib.crc32(data):08x}")
        return data


class SimStream:
    """One end of a connection."""

    def __init__(self, out: MessageDestination, back: MessageDestination) -> None:
        self._out = out
        self._back = back
        self._closed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        out, view = self._out, memoryview(bytes(data))
        while len(view):
            while out.moving_bytes >= WINDOW_BYTES and not (self._closed or out.broken or out.over):
                await out.changed.wait()
            if self._closed:
                raise trio.ClosedResourceError
            if out.broken or out.over:
                raise trio.BrokenResourceError("reset")
            room = WINDOW_BYTES - out.moving_bytes
            out.put(view[:room])
            view = view[room:]

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        back = self._back
        while not self._closed and (at := back.arrives_at()) > trio.current_time():
            changed = back.changed
            with trio.move_on_at(at):
                await changed.wait()
        if self._closed:
            raise trio.ClosedResourceError
        return back.take(max_bytes or WINDOW_BYTES)

    async def aclose(self) -> None:
        """Close both directions; data in flight still arrives."""
        self._closed = True
        for way in (self._out, self._back):
            way.over = True
            way.change()
        await trio.lowlevel.checkpoint()


class SimNetwork:
    """All wires; a node's address is its name, whatever the port.

    Attributes:
        cuts: (sender, receiver) whose bytes do not come at present.
        slow: seconds that bytes take beyond the usual, by sender and receiver.
        usual_s: how long they take otherwise, on the average.
    """

    def __init__(self, rng: random.Random, note: Callable[[str], None], usual_s: float) -> None:
        self.note = note
        self.cuts: set[tuple[str, str]] = set()
        self.slow: dict[tuple[str, str], float] = {}
        self.usual_s = usual_s
        self._rng = rng
        self._ways: list[MessageDestination] = []
        self._broker_listeners: dict[str, Serve] = {}
        self._mended = trio.Event()

    def delay(self, ends: tuple[str, str]) -> float:
        return self._rng.expovariate(1 / self.usual_s) + self.slow.get(ends, 0.0)

    # --- faults -------------------------------------------------------------------------------------

    def cut(self, sender: str, receiver: str) -> None:
        self.cuts.add((sender, receiver))

    def mend(self) -> None:
        """Open all ways again, and remove delays."""
        self.cuts.clear()
        self.slow.clear()
        for way in self._ways:
            way.stalled = False
            way.change()
        self._mended.set()
        self._mended = trio.Event()

    def reset(self, one: str, other: str) -> None:
        self._break(lambda way: set(way.ends) == {one, other})

    def stall(self) -> None:
        live = self._live()
        if live:
            self._rng.choice(live).stalled = True

    def reset_one(self) -> None:
        live = self._live()
        if live:
            way = self._rng.choice(live)
            at = self._ways.index(way) ^ 1  # they were put in pairs
            self._ways[at].broken = way.broken = True
            self._ways[at].change()
            way.change()

    def _live(self) -> list[MessageDestination]:
        return [way for way in self._ways if not (way.over or way.broken or way.gone)]

    def _break(self, which: Callable[[MessageDestination], bool]) -> None:
        for way in self._ways:
            if which(way):
                way.broken = True
                way.change()

    @property
    def names(self) -> set[str]:
        return set(self._broker_listeners)

    # --- nodes --------------------------------------------------------------------------------------

    def listens(self, name: str, serve: Serve) -> None:
        """Register a node; connections to its earlier life are refused from now on."""
        self._break(lambda way: name in way.ends)
        self._broker_listeners[name] = serve

    def listens_no_more(self, name: str, serve: Serve) -> None:
        """Unregister a node unless a later life has registered."""
        if self._broker_listeners.get(name) == serve:
            del self._broker_listeners[name]

    def lose(self, name: str, *, silent: bool) -> None:
        """Lose a node: nothing of it arrives from now on. A lost machine sends no reset either."""
        self._broker_listeners.pop(name, None)
        for way in self._ways:
            if name in way.ends:
                way.gone = True
        if not silent:
            self._break(lambda way: name in way.ends)

    async def connect(self, sender: str, address: Address) -> Transport:
        """Connect as a dialling node; the listening node gets the other end."""
        receiver = address[0]
        with trio.move_on_after(CONNECT_S):
            await trio.sleep(self.delay((sender, receiver)))
            while {(sender, receiver), (receiver, sender)} & self.cuts:
                await self._mended.wait()
            serve = self._broker_listeners.get(receiver)
            if serve is None:
                raise ConnectionRefusedError(f"nobody listens at {receiver}")
            there, back = (
                MessageDestination(self, sender, receiver),
                MessageDestination(self, receiver, sender),
            )
            pairs = zip(self._ways[::2], self._ways[1::2], strict=True)
            self._ways = [way for pair in pairs if not _is_over(*pair) for way in pair] + [there, back]
            serve(Transport(SimStream(back, there), b"", sender))
            return Transport(SimStream(there, back), b"", receiver)
        raise TimeoutError("no answer")


def _is_over(one: MessageDestination, other: MessageDestination) -> bool:
    return one.broken or other.broken or (one.over and not one.moving and not other.moving)
