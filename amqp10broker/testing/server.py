"""The interface of a broker for tests, and the last frames of each of its connections."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final, Protocol

from amqp10broker.dataclass import dataclass

# Connections with stored frames; the oldest are dropped.
CONNECTIONS_MAX: Final = 100
LINE_CHARACTERS_MAX: Final = 400
# Prefix of container ids of the fixtures' own connections, which are omitted.
OWN: Final = "amqp10broker-testing"
_ENDS: Final = ("CLOSE", "END", "DETACH", "connection.close", "channel.close", "basic.cancel")


@dataclass(slots=True)
class ConnectionFrames:
    """The stored frames of one connection. `lines`: time in nanoseconds since 1970, and a frame as text, the
    last ones.
    """

    peer: str
    lines: deque[tuple[int, str]]
    waited: list[dict[str, Any]] = field(default_factory=list)
    own: bool = False
    total: int = 0


class RecordedFrames:
    """The last frames of each connection of a broker, and the waits of its links before it closed.

    A client that fails closes its connection before the test's report is made, and by then nothing waits any
    more. So waits are read when a frame arrives that ends something, before the broker processes it.
    """

    ended: str | None = None

    def __init__(self, most: int, waiting: Callable[[int], list[dict[str, Any]]]) -> None:
        self._most = most
        self._waiting = waiting
        self._kept: OrderedDict[int, ConnectionFrames] = OrderedDict()

    def write(self, number: int, peer: str, lines: Sequence[str]) -> None:
        kept = self._kept.get(number)
        if kept is None:
            kept = self._kept[number] = ConnectionFrames(peer, deque(maxlen=self._most))
            if len(self._kept) > CONNECTIONS_MAX:
                self._kept.popitem(last=False)
        now_ns = time.time_ns()
        for line in lines:
            if line.startswith("<-"):
                kept.own = kept.own or f"OPEN container-id={OWN}" in line
                if ends_something(line) and (waiting := self._waiting(number)):
                    kept.waited = waiting
            kept.lines.append((now_ns, line[:LINE_CHARACTERS_MAX]))
        kept.total += len(lines)

    def put(self, lines: Sequence[str]) -> None:
        # A trace as text has no such lines.
        pass

    def close(self, reason: str) -> None:
        pass

    def since(self, began_ns: int) -> dict[int, ConnectionFrames]:
        """Return clients' connections with a frame since then, by number."""
        return {
            number: kept
            for number, kept in self._kept.items()
            if not kept.own and kept.lines and kept.lines[-1][0] >= began_ns
        }


def ends_something(line: str) -> bool:
    """Return whether a line of a trace is a frame that ends a link, a session, a channel or a connection."""
    words = line.split(" ", 4)
    return len(words) > 3 and words[3] in _ENDS


NOT_KEPT: Final = "frames are not kept: set amqp_broker_frames to more than 0 in the configuration of pytest"


class Server(Protocol):
    """A running broker. `is_shared`: with other test processes, so that not all connections are
    this one's.
    """

    host: str
    port: int
    is_shared: bool

    @property
    def alive(self) -> bool:
        """Return whether the broker is running."""

    def ask(self, operation: str, arguments: Mapping[str, Any], vhost: str | None) -> Any:
        """Run an operation of `operations.registry`. Raises `BrokerError` if it was refused, or the broker is
        not running; contains the reason.
        """

    def frames(self, began_ns: int) -> dict[int, ConnectionFrames]:
        """Return the last frames of connections with any since then, by number."""

    def recorded(self, began_ns: int) -> Iterable[Sequence[str]]:
        """Return recordings of the frames of connections that have begun since then, as lines. Raises
        `BrokerError` if frames are not recorded.
        """

    def stop(self) -> None:
        """Stop the broker for good."""
