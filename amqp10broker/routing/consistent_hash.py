"""Exchanges that pick one destination by a hash: ``x-consistent-hash`` and ``x-modulus-hash``.

Both send equal keys to the same destination, in every process and after every restart.

A consistent-hash exchange shares by weight: the binding key is a positive integer. Each destination gets a
score from the message's hash and its own, scaled by its weight, and the best score wins ("weighted
rendezvous"). A new destination takes its share from the others, a removed one leaves its share to them,
and no message moves between two that stay. The hash is over the routing key, or the value that the
exchange's arguments ``hash-header`` or ``hash-property`` name.

A modulus-hash exchange uses the hash modulo the number of bindings: cheaper, but nearly every key moves
when one changes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import log
from typing import Final

from amqp10broker.errors import InvalidArgument
from amqp10broker.routing.arguments import hash64, plain_text, type_name
from amqp10broker.routing.exchange import Binding, Destination, Headers

HASH_HEADER: Final = "hash-header"
HASH_PROPERTY: Final = "hash-property"
PROPERTIES: Final = frozenset({"correlation_id", "message_id", "timestamp"})
_INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_MASK: Final = 2**64 - 1


def _lot(message_hash: int, own_hash: int, weight: int) -> float:
    # The finisher of SplitMix64: every bit of the input moves every bit of the result.
    mixed = message_hash ^ own_hash
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & _MASK
    mixed ^= mixed >> 31
    # Of n numbers log(u)/w with u uniform in (0, 1), the i-th is greatest with probability w_i / sum(w).
    return log(((mixed >> 11) + 0.5) / 2**53) / weight


class ConsistentHashExchange:
    """Destinations with their weights."""

    per_key = False

    def __init__(self, arguments: Mapping[str, object]) -> None:
        self._header = _text_argument(arguments, HASH_HEADER)
        self._property = _text_argument(arguments, HASH_PROPERTY)
        if self._header is not None and self._property is not None:
            raise InvalidArgument("exchange", "hash-header and hash-property are mutually exclusive")
        if self._property is not None and self._property not in PROPERTIES:
            raise InvalidArgument("exchange", f"Unsupported property: {self._property}")
        self.cacheable = self._header is None and self._property is None
        self._bindings: dict[Destination, dict[Binding, int]] = {}
        # One entry for each destination: it, its hash, and the weight of its oldest binding.
        self._shares: list[tuple[Destination, int, int]] | None = None

    def check_binding(self, binding: Binding) -> None:
        key = binding.routing_key
        if not _INTEGER.fullmatch(key):
            problem = f"The binding key must be an integer, not '{key}'"
        elif int(key) < 1:
            problem = "The binding key must be greater than 0"
        else:
            return
        raise InvalidArgument(f"exchange '{binding.source}'", problem)

    def add(self, binding: Binding) -> None:
        """A further binding of the same destination changes nothing while the first exists."""
        self._bindings.setdefault(binding.destination, {})[binding] = int(binding.routing_key)
        self._shares = None

    def remove(self, binding: Binding) -> None:
        bindings = self._bindings[binding.destination]
        del bindings[binding]
        if not bindings:
            del self._bindings[binding.destination]
        self._shares = None

    def route(self, routing_key: str, headers: Headers, properties: Headers) -> tuple[Destination, ...]:
        shares = self._shares
        if shares is None:
            shares = self._shares = [
                (destination, hash64([destination.kind, destination.name]), next(iter(weights.values())))
                for destination, weights in self._bindings.items()
            ]
        if len(shares) < 2:
            return (shares[0][0],) if shares else ()
        if self._header is not None:
            hashed = hash64(headers().get(self._header))
        elif self._property is not None:
            hashed = hash64(properties().get(self._property))
        else:
            hashed = hash64(routing_key)
        return (max(shares, key=lambda share: _lot(hashed, share[1], share[2]))[0],)


def _text_argument(arguments: Mapping[str, object], name: str) -> str | None:
    if name not in arguments:
        return None
    value = arguments[name]
    if type_name(value) != "longstr":
        raise InvalidArgument(
            "exchange", f"invalid type '{type_name(value)}' for arg '{name}': expected longstr"
        )
    return plain_text(value)


class ModulusHashExchange:
    """Every binding counts: a queue that is bound three times gets three shares."""

    cacheable = True
    per_key = False

    def __init__(self) -> None:
        self._bindings: dict[Binding, None] = {}
        self._sorted: list[Destination] | None = None

    def check_binding(self, binding: Binding) -> None:
        """Any binding is valid; key and arguments only make bindings distinct."""

    def add(self, binding: Binding) -> None:
        self._bindings[binding] = None
        self._sorted = None

    def remove(self, binding: Binding) -> None:
        del self._bindings[binding]
        self._sorted = None

    def route(self, routing_key: str, headers: Headers, properties: Headers) -> tuple[Destination, ...]:
        if self._sorted is None:
            # Sorted, so that the order in which bindings were made, or read back, does not count.
            self._sorted = sorted(
                (binding.destination for binding in self._bindings), key=lambda one: (one.kind, one.name)
            )
        if not self._sorted:
            return ()
        return (self._sorted[hash64(routing_key) % len(self._sorted)],)
