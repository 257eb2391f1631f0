"""Idle time-outs as pure arithmetic."""

from __future__ import annotations

import math

import pytest

from amqp10broker.protocols.connection import IdleTimer


def test_a_silent_peer_expires_after_its_time_and_not_before() -> None:
    """2.4.5: the connection is given up when nothing came for the whole time-out."""
    timer = IdleTimer(1000, None, 0.0)
    assert timer.tick(0.5, 10, 0) == (False, False)
    for now in (0.6, 0.75, 1.0, 1.25, 1.4, 1.45):
        assert timer.tick(now, 10, 0) == (False, False)
    assert timer.tick(1.5, 10, 0) == (False, True)


def test_a_time_in_which_we_did_not_look_is_not_all_the_peers_silence() -> None:
    """We were held up; what the peer sent meanwhile has not been read."""
    timer = IdleTimer(1000, None, 0.0)
    assert timer.tick(0.25, 10, 0) == (False, False)
    assert timer.tick(100.0, 10, 0) == (False, False)
    for now in (100.25, 100.5):
        assert timer.tick(now, 10, 0) == (False, False)
    assert timer.tick(100.75, 10, 0) == (False, True)


@pytest.mark.parametrize("local_ms", [100, 333, 1000, 7777, 60_000])
@pytest.mark.parametrize("remote_ms", [None, 90, 1100, 50_000])
def test_looked_at_in_time_a_peer_expires_at_the_first_look_after_its_time(
    local_ms: int, remote_ms: int | None
) -> None:
    """However the parts of the silence are rounded."""
    timer = IdleTimer(local_ms, remote_ms, 5.0)
    assert timer.interval is not None
    looks, now = 0, 5.0
    timer.tick(now, 1, 1)
    while True:
        looks, now = looks + 1, now + timer.interval
        if timer.tick(now, 1, 1)[1]:
            break
    assert looks == math.ceil(local_ms / 1000 / timer.interval - 1e-6)


def test_silence_while_we_do_not_read_is_not_the_peers() -> None:
    """A reader that waits for a session sees no bytes: that is no reason to give the peer up."""
    timer = IdleTimer(1000, None, 0.0)
    for now in (0.5, 1.5, 2.5, 3.5):
        assert timer.tick(now, 10, 0, listening=False) == (False, False)
    for now in (3.75, 4.0, 4.25):
        assert timer.tick(now, 10, 0) == (False, False)
    assert timer.tick(4.5, 10, 0) == (False, True)


def test_heartbeats_go_on_while_we_do_not_read() -> None:
    """The peer must hear of us, whatever our reader waits for."""
    timer = IdleTimer(0, 2000, 0.0)
    assert timer.tick(0.1, 0, 5, listening=False) == (False, False)
    assert timer.tick(0.7, 0, 5, listening=False) == (True, False)
