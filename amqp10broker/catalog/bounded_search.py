"""Searching with a regular expression in time that is bounded by its size times the length of the text.

Python's `re` tries one way after the other, and ``^([a-z]+\\.?)+$`` has 2**27 ways through a name of 27
letters. Here all ways are followed at once (Thompson's construction), from the end of the text to its
beginning: a set of states, of which one is added or not for each character. That is slower than `re` where
`re` is quick, so `patterns` asks `ways` first, and uses this only where there may be too many.

What the pattern means is not decided here a second time: `re` parses it, and each single character, class
or anchor is a small pattern of `re` again. Whether something is found is all that is answered, so groups,
and greedy or lazy, make no difference. Back references, conditions on groups, and the possessive and
atomic forms cannot be followed all at once.
"""

from __future__ import annotations

import re

# What `sre_parse` and its like are called since 3.11; the tests of this file tell when that changes.
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]
from typing import Any, Final

from amqp10broker.errors import BrokerError

STATES_MAX: Final = 1000
"""Of one pattern: characters, and forks between them. With all of them, and a text of 255 characters, a
search takes a twentieth of a second; a pattern as people write it has twenty."""

WAYS_NO_END: Final = 1 << 40
"""More ways than anybody should try."""

_TEXT_LENGTH: Final = 256
"""Characters for which ways are counted: names and routing keys of AMQP 0-9-1 have at most as many bytes."""

_REPEATS: Final = (_constants.MAX_REPEAT, _constants.MIN_REPEAT)
_LOOKS: Final = (_constants.ASSERT, _constants.ASSERT_NOT)
_ONE_CHARACTER: Final = (_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN)
_FAILURE: Final = getattr(_constants, "FAILURE", None)
_POSSESSIVE: Final = getattr(_constants, "POSSESSIVE_REPEAT", None)
_ATOMIC: Final = getattr(_constants, "ATOMIC_GROUP", None)


class Unbounded(BrokerError):
    """A pattern cannot be followed in bounded time; the text says what is in its way."""


class BoundedSearch:
    """A pattern whose search is bounded."""

    def __init__(self, pattern: str) -> None:
        """Build the states.

        Args:
            pattern: that `re` can compile.

        Raises:
            Unbounded: something in it cannot be followed, or it is too large.
        """
        tree = _parser.parse(pattern)
        self._machine = _Machine(tree, tree.state.flags, _Parts())

    def __call__(self, text: str) -> bool:
        """Whether the pattern is found anywhere in the text."""
        return self._machine.found(text)


def ways(pattern: str) -> int:
    """At most how many ways `re` has through a text of 256 characters, from one place in it.

    Args:
        pattern: that `re` can compile.
    """
    return _ways(_parser.parse(pattern))


def _ways(items: Any) -> int:
    """The ways through a sequence: those of its parts, multiplied."""
    product = 1
    for item in items:
        product = min(WAYS_NO_END, product * _ways_of(*item))
    return product


def _ways_of(kind: Any, value: Any) -> int:
    if kind is _constants.SUBPATTERN:
        return _ways(value[3])
    if kind is _ATOMIC:
        return _ways(value)
    if kind in _LOOKS:
        return _ways(value[1])
    if kind is _constants.BRANCH:
        return min(WAYS_NO_END, sum(map(_ways, value[1])))
    if kind is _constants.GROUPREF_EXISTS:
        _, yes, no = value
        return min(WAYS_NO_END, _ways(yes) + _ways(no or ()))
    if kind in _REPEATS or kind is _POSSESSIVE:
        low, high, body = value
        low, high = min(int(low), _TEXT_LENGTH), min(int(high), _TEXT_LENGTH)
        inner: int = _ways(body)
        shortest, longest = body.getwidth()
        if inner == 1 and shortest == longest and shortest > 0:
            return int(high - low + 1)
        # Each round may have its own way, and may be cut from the text anywhere.
        each = inner if shortest == longest else inner + 1
        return min(WAYS_NO_END, (high - low + 1) * int(each ** min(high, 40)))
    return 1


class _Parts:
    """What all machines of one pattern share: the count of their states, and patterns of one character."""

    def __init__(self) -> None:
        self.states = 0
        self._small: dict[tuple[str, int], re.Pattern[str]] = {}

    def small(self, kind: Any, value: Any, flags: int) -> re.Pattern[str]:
        """A pattern of one character, class or anchor."""
        key = (repr((kind, value)), flags)
        pattern = self._small.get(key)
        if pattern is None:
            state = _parser.State()
            state.flags = flags
            pattern = _compiler.compile(_parser.SubPattern(state, [(kind, value)]), flags)
            self._small[key] = pattern
        return pattern


class _Machine:
    """The states of a pattern, or of what a look-around looks for. 0 is the end."""

    def __init__(self, items: Any, flags: int, parts: _Parts) -> None:
        """Build.

        Args:
            items: parsed.
            flags: that are on.
            parts: of the whole pattern.
        """
        self._parts = parts
        # By state: which states are one character before it, and what that character must be.
        self._before: list[list[tuple[int, re.Pattern[str]]]] = [[]]
        # By state: which states are at the same place before it, and under which condition.
        self._beside: list[list[tuple[int, re.Pattern[str] | _Look | None]]] = [[]]
        self._start = self._build(items, flags, 0)

    def found(self, text: str) -> bool:
        """Whether it is found anywhere."""
        return any(self._places(text))

    def places(self, text: str) -> list[bool]:
        """Whether it is found at each place of a text, from 0 to its length."""
        return list(self._places(text))[::-1]

    def _places(self, text: str) -> Any:
        """Whether it is found at each place, from the end of the text to its beginning."""
        looks: dict[_Look, list[bool]] = {}
        after: set[int] = set()
        for place in range(len(text), -1, -1):
            here = {0}
            if place < len(text):
                character = text[place]
                for state in after:
                    for before, pattern in self._before[state]:
                        if before not in here and pattern.match(character):
                            here.add(before)
            waiting = list(here)
            while waiting:
                for beside, condition in self._beside[waiting.pop()]:
                    if beside not in here and _holds(condition, text, place, looks):
                        here.add(beside)
                        waiting.append(beside)
            yield self._start in here
            after = here

    def _state(self) -> int:
        self._parts.states += 1
        if self._parts.states > STATES_MAX:
            raise Unbounded(f"it is larger than {STATES_MAX} characters when its repetitions are written out")
        self._before.append([])
        self._beside.append([])
        return len(self._before) - 1

    def _build(self, items: Any, flags: int, then: int) -> int:
        """The state from which a sequence leads to another one."""
        for kind, value in reversed(list(items)):
            then = self._build_one(kind, value, flags, then)
        return then

    def _build_one(self, kind: Any, value: Any, flags: int, then: int) -> int:
        if kind in _ONE_CHARACTER:
            state = self._state()
            self._before[then].append((state, self._parts.small(kind, value, flags)))
            return state
        if kind is _constants.SUBPATTERN:
            _, add, remove, body = value
            return self._build(body, _combined(flags, add, remove), then)
        if kind is _constants.BRANCH:
            return self._either(*(self._build(each, flags, then) for each in value[1]))
        if kind in _REPEATS:
            low, high, body = value
            return self._repeat(low, high, body, flags, then)
        if kind is _constants.AT:
            return self._under(self._parts.small(kind, value, flags), then)
        if kind in _LOOKS:
            direction, body = value
            width = body.getwidth()[0] if direction < 0 else 0
            look = _Look(_Machine(body, flags, self._parts), width, wanted=kind is _constants.ASSERT)
            return self._under(look, then)
        if kind is _FAILURE:
            return self._state()  # from which nothing leads on
        what = {
            _constants.GROUPREF: "a back reference",
            _constants.GROUPREF_EXISTS: "a condition on a group",
            _POSSESSIVE: "a possessive repetition",
            _ATOMIC: "an atomic group",
        }
        raise Unbounded(f"it has {what.get(kind, kind)} beside repetitions that can be cut in many ways")

    def _repeat(self, low: Any, high: Any, body: Any, flags: int, then: int) -> int:
        if high is _constants.MAXREPEAT:
            then = self._either(then)  # round which it goes
            self._beside[self._build(body, flags, then)].append((then, None))
        else:
            for _ in range(high - low):
                then = self._either(then, self._build(body, flags, then))
        for _ in range(low):
            then = self._build(body, flags, then)
        return then

    def _either(self, *thens: int) -> int:
        state = self._state()
        for then in thens:
            self._beside[then].append((state, None))
        return state

    def _under(self, condition: re.Pattern[str] | _Look, then: int) -> int:
        state = self._state()
        self._beside[then].append((state, condition))
        return state


class _Look:
    """A look ahead, or back by a width that is fixed, as `re` asks."""

    __slots__ = ("_machine", "_wanted", "_width")

    def __init__(self, machine: _Machine, width: int, *, wanted: bool) -> None:
        self._machine = machine
        self._width = width
        self._wanted = wanted

    def places(self, text: str) -> list[bool]:
        """Whether what it looks for is where it looks, for each place."""
        found = [False] * self._width + self._machine.places(text)
        return [each is self._wanted for each in found[: len(text) + 1]]


def _holds(
    condition: re.Pattern[str] | _Look | None, text: str, place: int, looks: dict[_Look, list[bool]]
) -> bool:
    if condition is None:
        return True
    if isinstance(condition, _Look):
        if condition not in looks:
            looks[condition] = condition.places(text)
        return looks[condition][place]
    return condition.match(text, place) is not None


def _combined(flags: int, add: int, remove: int) -> int:
    """The flags inside of ``(?i-s:...)``; of ASCII, LOCALE and UNICODE one at a time."""
    if add & _parser.TYPE_FLAGS:
        flags &= ~_parser.TYPE_FLAGS
    return int((flags | add) & ~remove)
