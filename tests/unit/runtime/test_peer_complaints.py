"""What the log says about nodes that cannot connect is bounded."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from amqp10broker.runtime.cluster import peer_link
from amqp10broker.runtime.cluster.peer_link import AGAIN_S, KEPT_MAX, REASONS_MAX, PeerErrorLog
from tests.runtime.conftest import LogRecorder


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> LogRecorder:
    recorder = LogRecorder()
    monkeypatch.setattr(peer_link, "_log", recorder)
    return recorder


async def test_same_entry_is_written_once_a_minute(mock_clock: MockClock, log: LogRecorder) -> None:
    """It is written again after a success of the peer."""
    complaints = PeerErrorLog()
    for _ in range(5):
        complaints.warn("refused", "a", "wrong secret")
    complaints.warn("refused", "a", "old copy", name="x")
    assert [fields for _, fields in log.of("warning")] == [
        {"peer": "a", "reason": "wrong secret"},
        {"peer": "a", "reason": "old copy", "name": "x"},
    ]
    mock_clock.jump(AGAIN_S)
    complaints.warn("refused", "a", "wrong secret")
    complaints.forget("a")
    complaints.warn("refused", "a", "wrong secret")
    assert len(log.of("warning")) == 4


async def test_storm_is_a_few_entries(mock_clock: MockClock, log: LogRecorder) -> None:
    """The storm has new reasons from one address, or new addresses; memory is bounded."""
    complaints = PeerErrorLog()
    for number in range(100):
        complaints.warn("refused", "a", f"reason {number}")
    assert len(log.of("warning")) == REASONS_MAX
    for number in range(2 * KEPT_MAX):
        complaints.warn("refused", f"b{number}", "reason")
    assert len(log.of("warning")) == REASONS_MAX + KEPT_MAX - 1
    assert len(complaints._said) == KEPT_MAX
    mock_clock.jump(AGAIN_S)
    complaints.warn("refused", "c", "reason")
    assert log.of("warning")[-1][1]["peer"] == "c"
    assert len(complaints._said) == 1
