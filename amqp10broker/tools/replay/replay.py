"""Plays a recording: the order of steps, their conditions, and the limits of waiting.

Frames that begin or end something keep their order over all connections: a queue that one connection declared
exists when another publishes to it. All others depend on the conditions of their own connection, and on their
time unless `fast` is set.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from amqp10broker.protocols.connection import WireProtocol
from amqp10broker.tools.replay.player import Difference, Player, ReplayLogin, Script
from amqp10broker.tools.replay.player091 import Player091
from amqp10broker.tools.replay.player10 import Player10

# The bytes that may wait for a socket.
_AHEAD_BYTES: Final = 262_144
_CLOSING_S: Final = 5.0


class _Order:
    # Frames that begin or end something, over all connections.

    def __init__(self, players: list[Player]) -> None:
        all_of_them = [(index, player, sent) for player in players for index, sent in player.controls]
        self._places = sorted(all_of_them, key=lambda each: each[0])
        self._done: set[int] = set()
        self._next = 0
        self._answered: dict[Player, int] = dict.fromkeys(players, 0)
        self._answers = {player: [index for index, sent in player.controls if not sent] for player in players}

    def is_turn(self, index: int) -> bool:
        while self._next < len(self._places) and self._places[self._next][0] in self._done:
            self._done.discard(self._places[self._next][0])
            self._next += 1
        return self._next == len(self._places) or self._places[self._next][0] >= index

    def played(self, index: int) -> None:
        self._done.add(index)

    def answered(self, player: Player) -> None:
        # As many answers as the recording had are complete.
        answers = self._answers[player]
        until = min(player.answers, len(answers))
        self._done.update(answers[self._answered[player] : until])
        self._answered[player] = max(until, self._answered[player])

    def give_up(self, index: int) -> None:
        for place, _, _ in self._places[self._next :]:
            if place >= index:
                break
            self._done.add(place)

    def leave(self, player: Player) -> None:
        self._done.update(index for index, _ in player.controls)


class Replay:
    """The replay of all connections of a recording."""

    def __init__(
        self, script: Script, login: ReplayLogin, *, fast: bool = False, patience_s: float = 10.0
    ) -> None:
        self._script = script
        self._fast = fast
        self._patience_s = patience_s
        self.players: list[Player] = [
            (Player10 if part.protocol is WireProtocol.AMQP_10 else Player091)(part, login)
            for part in script.parts
        ]
        self._order = _Order(self.players)
        self._connected: set[Player] = set()
        self._began: float | None = None
        self._moved: dict[Player, float] = {}
        self._moved_at = 0.0
        self._closing: dict[Player, float] = {}
        self._beaten: dict[Player, tuple[int, float]] = {}

    @property
    def done(self) -> bool:
        return all(player.closed for player in self.players)

    def wanted(self, now: float) -> list[Player]:
        """Return the connections that need a socket now; each is returned once."""
        found = []
        for player in self.players:
            if player in self._connected or player.closed:
                continue
            first = player.part.steps[0]  # in AMQP 0-9-1 it is the broker's
            if self._order.is_turn(first.index) and self._due(first.at_ns, now) <= now:
                self._connected.add(player)
                self._moved[player] = self._moved_at = now
                found.append(player)
        return found

    def connected(self, player: Player, now: float) -> None:
        self._moved[player] = self._moved_at = now
        player.start()

    def lost(self, player: Player, why: str) -> None:
        player.lost(why)
        self._order.leave(player)

    def receive(self, player: Player, data: bytes, now: float) -> None:
        if player.receive(data):
            self._moved[player] = self._moved_at = now
            self._order.answered(player)
        if player.over is not None or player.closed:
            self._leave(player, now)

    def advance(self, now: float) -> float | None:
        """Play all steps that can be played now. `now`: seconds, of the same origin at every call. Returns
        when to call again at the latest, if nothing arrives; None when the replay is complete.
        """
        wake = now + self._patience_s
        moved = True
        while moved:
            moved = False
            for player in self.players:
                if player.closed:
                    continue
                if player in self._connected:
                    played, at = self._go_on(player, now)
                    moved = moved or played
                else:
                    at = self._due(player.part.steps[0].at_ns, now)
                    if at <= now and not self._order.is_turn(player.part.steps[0].index):
                        # A connection begins if the others before it do not continue.
                        if now >= self._moved_at + self._patience_s:
                            self._order.give_up(player.part.steps[0].index)
                            self._moved_at = now
                        at = self._moved_at + self._patience_s
                wake = min(wake, at)
        return None if self.done else max(wake, now)

    def is_full(self, player: Player) -> bool:
        """Return whether so many bytes wait that no more is played before they are written."""
        return len(player.unsent) >= _AHEAD_BYTES

    def differences(self) -> Iterator[Difference]:
        for player in self.players:
            yield from player.differences()

    def _due(self, at_ns: int, now: float) -> float:
        if self._began is None:
            self._began = now
        return now if self._fast else self._began + (at_ns - self._script.start_ns) / 1e9

    def _go_on(self, player: Player, now: float) -> tuple[bool, float]:
        # Return whether a step was played, and when to check again.
        played = False
        at = self._beat(player, now)
        if player in self._closing:
            if now >= self._closing[player]:
                self._leave(player, now, at_once=True)
            return False, min(at, self._closing.get(player, at))
        while not self.is_full(player):
            step = player.next_step
            if step is None:
                owed = player.still_owed()
                if owed is not None and now < self._moved[player] + self._patience_s:
                    return played, min(at, self._moved[player] + self._patience_s)
                self._leave(player, now)
                return True, at
            due = self._due(step.at_ns, now)
            if due > now:
                self._moved[player] = now
                return played, min(at, due)
            in_turn = self._order.is_turn(step.index)
            if not in_turn or player.waits_for(step) is not None:
                since = self._moved[player] if in_turn else self._moved_at
                if now < since + self._patience_s:
                    return played, min(at, since + self._patience_s)
                self._order.give_up(step.index)
                if in_turn:
                    player.give_up(step)
                else:
                    self._moved_at = now
                    continue
                if player.closed:
                    self._leave(player, now)
                    return True, at
            player.play()
            self._order.played(step.index)
            self._moved[player] = self._moved_at = now
            played = True
        return played, at

    def _leave(self, player: Player, now: float, *, at_once: bool = False) -> None:
        self._order.leave(player)
        if player.over is not None or at_once:
            player.closed = True
        elif not player.closed and player not in self._closing:
            if player.part.ended and not player.says_close:
                player.closed = True  # as the recorded client, which closed the socket without a close frame
            else:
                player.close()
                self._closing[player] = now + min(self._patience_s, _CLOSING_S)

    def _beat(self, player: Player, now: float) -> float:
        every = player.heartbeat_s()
        if not every:
            return now + self._patience_s
        sent, since = self._beaten.get(player, (-1, now))
        if player.sent_bytes != sent:
            since = now
        elif now >= since + every:
            player.beat()
            since = now
        self._beaten[player] = (player.sent_bytes, since)
        return since + every
