"""Idle time-outs both ways: part 2, section 2.4.5.

The caller checks the time at intervals, so that a busy connection has no cost per frame. A process can be
held up, by a debugger or by the machine, while data of the peer waits to be read; so the time between two
checks counts as silence for no longer than a quarter of the time-out.
"""

from __future__ import annotations

from typing import Final

# The tolerance for a sum of parts, in seconds.
_ROUNDING_S: Final = 1e-6


class IdleTimer:
    """Determines when to send an empty frame and when the peer has been silent for too long. `interval`:
    seconds between two calls of `tick`; None when neither side has a time-out.
    """

    __slots__ = ("_local", "_looked_at", "_received", "_remote", "_sent", "_sent_at", "_silence", "interval")

    def __init__(self, local_ms: int, remote_ms: int | None, now: float) -> None:
        """`local_ms`: the longest accepted silence of the peer, 0 for any; `remote_ms`: its idle-time-out."""
        self._local = local_ms / 1000
        self._remote = (remote_ms or 0) / 1000
        self._received = -1
        self._sent = -1
        self._looked_at = now
        self._silence = 0.0
        self._sent_at = now
        # A quarter of the peer's time-out: something is sent when nothing was for a quarter, noticed at most
        # a quarter late, so that no silence of ours lasts longer than half of it.
        choices = [part for part in (self._local / 4, self._remote / 4) if part > 0]
        self.interval = min(choices) if choices else None

    def tick(self, now: float, received: int, sent: int, *, listening: bool = True) -> tuple[bool, bool]:
        """`listening`: we read from the socket; while we do not, the silence is ours. Returns whether to
        send an empty frame now, and whether the peer's silence has lasted too long.
        """
        if received != self._received or not listening:
            self._received = received
            self._silence = 0.0
        else:
            self._silence += min(now - self._looked_at, self._local / 4)
        self._looked_at = now
        if sent != self._sent:
            self._sent = sent
            self._sent_at = now
        heartbeat = self._remote > 0 and now - self._sent_at >= self._remote / 4
        expired = self._local > 0 and self._silence >= self._local - _ROUNDING_S
        return heartbeat, expired
