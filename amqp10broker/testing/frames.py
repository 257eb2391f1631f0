"""The last frames of each connection of a broker, and what its links waited for when it was about to close.

It is the sink of a trace of everything (`tasks.tracing`). A client that fails closes its connection on the
way out of its test, and nothing waits any more when the test's report is made. So what waits is looked at
when a frame has come that ends something, before the broker acts on it.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, Final

from amqp10broker.dataclass import dataclass

CONNECTIONS_MAX: Final = 100
"""Of which frames are kept; the oldest go."""
LINE_CHARACTERS_MAX: Final = 400
OWN: Final = "amqp10broker-testing"
"""How container ids of connections begin that a fixture makes for itself: they are left out."""

_ENDS: Final = ("CLOSE", "END", "DETACH", "connection.close", "channel.close", "basic.cancel")


@dataclass(slots=True)
class Kept:
    """What is kept of one connection.

    Attributes:
        peer: the client's address.
        lines: time in nanoseconds since 1970, and a frame as text, the last ones.
        waited: what waited when the last frame came that ends something: documents of `WaitingView`.
        own: the connection is the fixture's.
        total: frames so far.
    """

    peer: str
    lines: deque[tuple[int, str]]
    waited: list[dict[str, Any]] = field(default_factory=list)
    own: bool = False
    total: int = 0


class Frames:
    """See the module.

    Attributes:
        ended: see `management.node.Sink`.
    """

    ended: str | None = None

    def __init__(self, most: int, waiting: Callable[[int], list[dict[str, Any]]]) -> None:
        """Keep nothing yet.

        Args:
            most: frames of each connection.
            waiting: tells what waits of a connection.
        """
        self._most = most
        self._waiting = waiting
        self._kept: OrderedDict[int, Kept] = OrderedDict()

    def write(self, number: int, peer: str, lines: Sequence[str]) -> None:
        """Take lines of a connection (see `Sink`)."""
        kept = self._kept.get(number)
        if kept is None:
            kept = self._kept[number] = Kept(peer, deque(maxlen=self._most))
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
        """See `Sink`: a trace in words has no such lines."""

    def close(self, reason: str) -> None:
        """See `Sink`."""

    def since(self, began_ns: int) -> dict[int, Kept]:
        """Clients' connections that had a frame since then, by number."""
        return {
            number: kept
            for number, kept in self._kept.items()
            if not kept.own and kept.lines and kept.lines[-1][0] >= began_ns
        }


def ends_something(line: str) -> bool:
    """Whether a line of a trace is a frame that ends a link, a session, a channel or a connection."""
    words = line.split(" ", 4)
    return len(words) > 3 and words[3] in _ENDS
