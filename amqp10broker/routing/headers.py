"""Headers exchanges: the binding's arguments are compared with the message's headers.

``x-match`` selects the rule: ``all`` (the default) and ``any`` ignore keys that begin with ``x-``,
``all-with-x`` and ``any-with-x`` compare them too. A void argument requires only the key. The routing key
has no effect.
"""

from __future__ import annotations

from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import InvalidArgument
from amqp10broker.routing.arguments import canonical, canonical_table, plain_text, type_name
from amqp10broker.routing.bindings import Destinations
from amqp10broker.routing.exchange import Binding, Destination, Headers

X_MATCH: Final = "x-match"
_MODES: Final = frozenset({"all", "any", "all-with-x", "any-with-x"})
_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class _Wanted:
    every: bool
    present: tuple[str, ...]
    equal: tuple[tuple[str, object], ...]
    destinations: Destinations

    def matches(self, headers: dict[str, object]) -> bool:
        if self.every:
            return all(key in headers for key in self.present) and all(
                headers.get(key, _ABSENT) == value for key, value in self.equal
            )
        return any(key in headers for key in self.present) or any(
            headers.get(key, _ABSENT) == value for key, value in self.equal
        )


def _wanted(binding: Binding) -> _Wanted:
    mode = canonical(binding.arguments.get(X_MATCH, "all"))
    with_x = mode in ("all-with-x", "any-with-x")
    compared = {
        key: value
        for key, value in binding.arguments.items()
        if key != X_MATCH and (with_x or not key.startswith("x-"))
    }
    return _Wanted(
        mode in ("all", "all-with-x"),
        tuple(key for key, value in compared.items() if value is None),
        tuple((key, canonical(value)) for key, value in compared.items() if value is not None),
        Destinations(),
    )


class HeadersExchange:
    cacheable = False
    per_key = False

    def __init__(self) -> None:
        self._groups: dict[object, _Wanted] = {}

    def check_binding(self, binding: Binding) -> None:
        if X_MATCH not in binding.arguments:
            return
        mode = binding.arguments[X_MATCH]
        if type_name(mode) != "longstr":
            problem = (
                f"Invalid x-match field type {type_name(mode)} (value {plain_text(mode)}); expected longstr"
            )
        elif canonical(mode) not in _MODES:
            problem = (
                f"Invalid x-match field value '{plain_text(mode)}';"
                " expected all, any, all-with-x, or any-with-x"
            )
        else:
            return
        raise InvalidArgument(f"exchange '{binding.source}'", problem)

    def add(self, binding: Binding) -> None:
        group = canonical_table(binding.arguments)
        wanted = self._groups.get(group)
        if wanted is None:
            wanted = self._groups[group] = _wanted(binding)
        wanted.destinations.add(binding.destination)

    def remove(self, binding: Binding) -> None:
        group = canonical_table(binding.arguments)
        wanted = self._groups[group]
        wanted.destinations.remove(binding.destination)
        if not wanted.destinations:
            del self._groups[group]

    def route(self, routing_key: str, headers: Headers, properties: Headers) -> tuple[Destination, ...]:
        if not self._groups:
            return ()
        given = {key: canonical(value) for key, value in headers().items()}
        found = [wanted.destinations for wanted in self._groups.values() if wanted.matches(given)]
        if len(found) == 1:
            return found[0].listed()
        return tuple(dict.fromkeys(one for matching in found for one in matching.listed()))
