"""How much a session or a channel writes in one turn."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from amqp10broker.sessions.context import LARGE_PIECE_BYTES, LARGE_WRITES_MAX, WRITES_MAX, SessionEndpoint
from amqp10broker.sessions.counters import ClientCounters, Moment
from amqp10broker.sessions.messages import SessionMessage

BUFFER = 65_536


class Much(SessionEndpoint):
    """A side that never runs out of deliveries: a buffer of pieces each time."""

    has_unsent = True

    def __init__(self, piece_bytes: Sequence[int]) -> None:
        super().__init__(Moment())
        self._sizes = iter(piece_bytes)
        self._out: list[bytes] = []

    def handle(self, letter: SessionMessage) -> None:
        raise AssertionError("no letters come")

    def pump(self, budget_bytes: int) -> int:
        size = next(self._sizes)
        self._out = [bytes(size)] * max(1, budget_bytes // size)
        return sum(map(len, self._out))

    def take_output(self) -> Sequence[bytes]:
        return self._out

    def counted(self) -> ClientCounters:
        raise AssertionError("it has no counters")

    def close(self) -> None:
        raise AssertionError("it does not end")

    release = close


class Socket:
    """An outlet that takes all, or so many buffers."""

    def __init__(self, buffers: int = 1000) -> None:
        self._left = buffers
        self.writes = 0
        self.wanted = 0

    @property
    def room(self) -> int:
        return BUFFER if self.writes < self._left else 0

    def put(self, pieces: Sequence[bytes | memoryview], transfer_bytes: int = 0) -> None:
        assert transfer_bytes == sum(map(len, pieces))
        self.writes += 1

    def want(self) -> None:
        self.wanted += 1


@pytest.mark.parametrize(
    ("pieces", "writes"),
    [
        ([100] * 99, WRITES_MAX),
        ([LARGE_PIECE_BYTES - 1] * 99, WRITES_MAX),
        ([LARGE_PIECE_BYTES] * 99, LARGE_WRITES_MAX),
        ([131_072] * 99, LARGE_WRITES_MAX),
        ([131_072] * 7 + [100] * 99, 8),
    ],
    ids=["small", "hardly large", "large", "a message a write", "small behind large ones"],
)
def test_a_turn_has_more_writes_of_large_messages(pieces: list[int], writes: int) -> None:
    """They cost little each, and who consumes them must keep up with reads that bring many at once."""
    outlet = Socket()
    Much(pieces).write_output(outlet)
    assert (outlet.writes, outlet.wanted) == (writes, 1)


@pytest.mark.parametrize("buffers", [0, 1, 5])
def test_a_turn_ends_where_the_socket_takes_no_more(buffers: int) -> None:
    outlet = Socket(buffers)
    Much([131_072] * 99).write_output(outlet)
    # With no room the side is asked all the same: for answers.
    assert (outlet.writes, outlet.wanted) == (max(1, buffers), 1)
