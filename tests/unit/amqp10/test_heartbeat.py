"""Idle time-outs as pure arithmetic."""

from __future__ import annotations

from amqp10broker.amqp10.heartbeat import IdleTimer


def test_a_silent_peer_expires_after_its_time_and_not_before() -> None:
    """2.4.5: the connection is given up when nothing came for the whole time-out."""
    timer = IdleTimer(1000, None, 0.0)
    assert timer.tick(0.5, 10, 0) == (False, False)
    assert timer.tick(1.4, 10, 0) == (False, False)
    assert timer.tick(1.5, 10, 0) == (False, True)


def test_silence_while_we_do_not_read_is_not_the_peers() -> None:
    """A reader that waits for a session sees no bytes: that is no reason to give the peer up."""
    timer = IdleTimer(1000, None, 0.0)
    for now in (0.5, 1.5, 2.5, 3.5):
        assert timer.tick(now, 10, 0, listening=False) == (False, False)
    assert timer.tick(4.0, 10, 0) == (False, False)
    assert timer.tick(4.5, 10, 0) == (False, True)


def test_heartbeats_go_on_while_we_do_not_read() -> None:
    """The peer must hear of us, whatever our reader waits for."""
    timer = IdleTimer(0, 2000, 0.0)
    assert timer.tick(0.1, 0, 5, listening=False) == (False, False)
    assert timer.tick(0.7, 0, 5, listening=False) == (True, False)


def test_no_time_outs_no_interval() -> None:
    """Nobody asked for anything: nothing needs to be looked at."""
    assert IdleTimer(0, None, 0.0).interval is None
