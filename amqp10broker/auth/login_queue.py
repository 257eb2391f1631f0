"""The order of password verifications, when more clients log in than can be verified.

A verification takes some twenty milliseconds on purpose, so many wrong passwords build a queue. It must
not delay other clients: turns go round the client addresses and, every other time, round the claimed user
names; within an address round its names, within a name round its addresses. A storm from one address,
under any names, and a storm on one name, from any addresses, each take at most every other turn from
unrelated clients. An address has one verification at a time, so that a storm leaves a processor to others.

Clients with equal credentials (a restarting fleet, a program that retries an old password) share one
verification. The number that wait is bounded for an address and in all. The excess is taken from the
address or name with most waiting, and refused at once, without a verification. None of this depends on
whether a user exists.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

Work = TypeVar("Work")

WAITING_PER_ADDRESS_MAX: Final = 256
"""Verifications that may wait for one address: five seconds of them, half of the time of a handshake."""

WAITING_MAX: Final = 4096
"""The limit of waiting verifications in all."""

_IPV6_PREFIX_BITS: Final = 64
"""The part of an IPv6 address that is fixed for one client, which can vary the rest for each connection."""


class Turn(Generic[Work]):
    """One verification with the clients that wait for it."""

    __slots__ = ("_key", "address", "name", "refused", "waiting", "work")

    def __init__(self, work: Work, address: str, name: str, key: Hashable) -> None:
        self.work = work
        self.address = address
        self.name = name
        self.waiting = 1
        self.refused = False
        self._key = key


_Lanes = OrderedDict[str, OrderedDict[str, dict[Turn[Work], None]]]


class LoginQueue(Generic[Work]):
    """The queue of waiting verifications."""

    def __init__(self) -> None:
        self._by_address: _Lanes[Work] = OrderedDict()
        self._by_name: _Lanes[Work] = OrderedDict()
        self._known: dict[Hashable, Turn[Work]] = {}
        self._in_place: dict[str, int] = {}
        self._running: set[str] = set()
        self._count = 0
        self._names_turn = False

    def __len__(self) -> int:
        return self._count

    def waiting(self, address: str) -> int:
        return self._in_place.get(address, 0)

    def join(
        self, work: Work, *, address: str, name: str, key: Hashable
    ) -> tuple[Turn[Work], Turn[Work] | None]:
        """Wait for a verification. `key`: equal for verifications with the same result; only clients of one
        address share. Returns the turn, and the one that lost its place for it, which may be the same one.
        The caller notifies the clients of the latter.
        """
        key = (address, key)
        turn = self._known.get(key)
        if turn is not None:
            turn.waiting += 1
            return turn, None
        turn = Turn(work, address, name, key)
        self._known[key] = turn
        _put(self._by_address, address, name, turn)
        _put(self._by_name, name, address, turn)
        self._in_place[address] = self.waiting(address) + 1
        self._count += 1
        if self._in_place[address] > WAITING_PER_ADDRESS_MAX:
            return turn, self._refuse_of(address)
        if self._count > WAITING_MAX:
            return turn, self._refuse_of(max(self._in_place, key=self._in_place.__getitem__))
        return turn, None

    def leave(self, turn: Turn[Work]) -> None:
        """Stop waiting; the turn is dropped with its last client."""
        turn.waiting -= 1
        if not turn.waiting:
            self._take_out(turn)
            self._forget(turn)

    def take(self) -> Turn[Work] | None:
        """Return the verification to run next; None if there is none, or if all are of addresses with a
        running one.

        Clients may still join it until it is `done`, and the address gets no other before that.
        """
        lanes = self._by_name if self._names_turn else self._by_address
        turn = self._next(lanes, by_name=self._names_turn)
        if turn is not None:
            self._names_turn = not self._names_turn
            self._take_out(turn)
            self._running.add(turn.address)
        return turn

    def done(self, turn: Turn[Work]) -> None:
        self._running.discard(turn.address)
        self._forget(turn)

    def _next(self, lanes: _Lanes[Work], *, by_name: bool) -> Turn[Work] | None:
        for outer, inners in lanes.items():
            for inner, lane in inners.items():
                if (inner if by_name else outer) not in self._running:
                    lanes.move_to_end(outer)
                    inners.move_to_end(inner)
                    return next(iter(lane))
                if not by_name:
                    break
        return None

    def _forget(self, turn: Turn[Work]) -> None:
        if self._known.get(turn._key) is turn:
            del self._known[turn._key]

    def _refuse_of(self, address: str) -> Turn[Work]:
        lanes = self._by_address[address]
        most = max(lanes, key=lambda name: len(lanes[name]))
        turn = next(reversed(lanes[most]))
        turn.refused = True
        self._take_out(turn)
        self._forget(turn)
        return turn

    def _take_out(self, turn: Turn[Work]) -> None:
        if not _remove(self._by_address, turn.address, turn.name, turn):
            return
        _remove(self._by_name, turn.name, turn.address, turn)
        self._count -= 1
        self._in_place[turn.address] -= 1
        if not self._in_place[turn.address]:
            del self._in_place[turn.address]


def turn_address(host: str) -> str:
    """Return the key of a client's address: of IPv6 the network of 64 bits, or the IPv4 address in it.

    Any other text is its own key.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback:
        return str(address)
    return str(ipaddress.IPv6Network((address, _IPV6_PREFIX_BITS), strict=False))


def _put(lanes: _Lanes[Work], outer: str, inner: str, turn: Turn[Work]) -> None:
    lanes.setdefault(outer, OrderedDict()).setdefault(inner, {})[turn] = None


def _remove(lanes: _Lanes[Work], outer: str, inner: str, turn: Turn[Work]) -> bool:
    if outer not in lanes or turn not in lanes[outer].get(inner, ()):
        return False
    lane = lanes[outer][inner]
    del lane[turn]
    if not lane:
        del lanes[outer][inner]
        if not lanes[outer]:
            del lanes[outer]
    return True
