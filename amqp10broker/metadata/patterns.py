"""Regular expressions from clients: in permissions and policies, and in filters of lists.

RabbitMQ's are PCRE, searched anywhere in the name, and an empty one matches no name. Python's differ little;
an unsupported one is refused when it is set, not when it is used. An older one in a data folder or
definitions file stays, finds nothing, and `fault_of` gives the reason.

Names come from users, so a hostile name must not make a search long: Python's `re` has 2**27 ways through a
name of 27 letters for ``^([a-z]+\\.?)+$``. `re` searches where `steps` finds few; elsewhere `BoundedSearch`
follows all ways at once (Thompson's construction), from the end of the text to its beginning, in time bounded
by the pattern's size times the length; each character, class or anchor is a small pattern of `re`. It refuses
back references, conditions on groups, and possessive and atomic forms, which cannot be followed so.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]
from typing import Any, Final, TypeVar

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BrokerError, InvalidArgument

# What `sre_parse` and its like are called since 3.11; the tests of this file tell when that changes.


STATES_MAX: Final = 1000
"""The states of one pattern (characters and forks); 255 characters of text take a twentieth of a second."""

CLASS_SIZE_MAX: Final = 100_000
"""The characters beyond Latin-1 in the classes of one pattern: some hundredths of a second to compile."""
_WIDE_CLASS_SIZE: Final = 2_000
"""The fixed cost of a class with such characters."""
_TABLE_END: Final = 0x10000

NO_END: Final = 1 << 40
"""A number of ways or steps without a bound."""

TEXT_LENGTH: Final = 256
"""The length of texts for which ways are counted: the most bytes of names and routing keys of AMQP 0-9-1."""

_REPEATS: Final = (_constants.MAX_REPEAT, _constants.MIN_REPEAT)
_LOOKS: Final = (_constants.ASSERT, _constants.ASSERT_NOT)
_ONE_CHARACTER: Final = (_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN)
_FAILURE: Final = getattr(_constants, "FAILURE", None)
_POSSESSIVE: Final = getattr(_constants, "POSSESSIVE_REPEAT", None)
_ATOMIC: Final = getattr(_constants, "ATOMIC_GROUP", None)


parsed: Final[Callable[[str], Any]] = _parser.parse


class Unbounded(BrokerError):
    """A pattern has no bounded search; the text names the obstacle."""


class TooManySteps(BrokerError):
    """A search was given up, because it needed too many steps."""


class BoundedSearch:
    def __init__(self, tree: Any) -> None:
        self._parts = _Parts()
        self._machine = _Machine(tree, tree.state.flags, self._parts)

    def __call__(self, text: str, most: int = NO_END) -> tuple[bool, int]:
        self._parts.steps, self._parts.most = 0, most
        return self._machine.found(text), self._parts.steps


def compiled(tree: Any) -> re.Pattern[str]:
    """Compile the pattern for `re`. Raises `Unbounded`."""
    if _class_size(tree) > CLASS_SIZE_MAX:
        raise Unbounded("its classes have too many characters beyond Latin-1")
    pattern: re.Pattern[str] = _compiler.compile(tree, tree.state.flags)
    return pattern


def steps(tree: Any, length: int = TEXT_LENGTH) -> int:
    """Return an upper bound of the characters that `re` reads in a text of this length, up to `NO_END`."""
    first = next(iter(tree), None)
    at = first[1] if first is not None and first[0] is _constants.AT else None
    once = at is _constants.AT_BEGINNING_STRING or (
        at is _constants.AT_BEGINNING and not tree.state.flags & re.MULTILINE
    )
    places = 1 if once else length + 1
    ways, reach = extent(tree, length)
    return min(NO_END, length + places * ways * (1 + reach))


def extent(items: Any, length: int = TEXT_LENGTH) -> tuple[int, int]:
    """Return upper bounds of the ways of `re` through a text of this length from one place in it, and of the
    characters that one of them compares; up to `NO_END` each.
    """
    ways, reach = 1, 0
    for kind, value in items:
        ways_here, reach_here = _extent_of(kind, value, length)
        ways, reach = min(NO_END, ways * ways_here), min(NO_END, reach + reach_here)
    return ways, reach


def _extent_of(kind: Any, value: Any, length: int) -> tuple[int, int]:
    if kind is _constants.GROUPREF:
        return 1, length
    extents = [extent(body, length) for body in _bodies(kind, value)]
    if kind not in _REPEATS and kind is not _POSSESSIVE:
        ways = min(NO_END, sum(ways for ways, _ in extents))
        return ways or 1, max((reach for _, reach in extents), default=1)
    low, high, body = value
    most, ways, reach = min(int(high), length), extents[0][0], max(1, extents[0][1])
    least = min(int(low), length)
    shortest, longest = body.getwidth()
    if ways == 1 and shortest == longest and shortest > 0:
        # Rounds beyond the least number are ways already.
        return most - least + 1, reach * (least + 1)
    # Each round may take a different way, and begin anywhere in the text.
    each = ways if shortest == longest else ways + 1
    # The end of the text does not limit rounds that may be empty.
    rounds = min(int(high), length // shortest + 1) if shortest else max(int(low), min(int(high), length + 1))
    return min(NO_END, (most - least + 1) * int(each ** min(most, 40))), min(NO_END, rounds * reach)


def _bodies(kind: Any, value: Any) -> Any:
    if kind is _constants.SUBPATTERN:
        return (value[3],)
    if kind in _REPEATS or kind is _POSSESSIVE:
        return (value[2],)
    if kind is _ATOMIC:
        return (value,)
    if kind in _LOOKS:
        return (value[1],)
    if kind is _constants.BRANCH:
        return value[1]
    if kind is _constants.GROUPREF_EXISTS:
        return (value[1], value[2] or ())
    return ()


def _class_size(items: Any) -> int:
    size = 0
    for kind, value in items:
        if kind is _constants.IN:
            spans = [each for op, each in value if op is _constants.RANGE]
            spans += [(each, each) for op, each in value if op is _constants.LITERAL]
            if any(last > 0xFF for _, last in spans):
                size += _WIDE_CLASS_SIZE + sum(max(0, min(last, _TABLE_END) - first) for first, last in spans)
        size += sum(map(_class_size, _bodies(kind, value)))
    return size


class _Parts:
    """The counts of states and steps of all machines of one pattern, and its patterns of one character."""

    def __init__(self) -> None:
        self.states = 0
        self.steps = 0
        self.most = NO_END
        self._small: dict[tuple[str, int], re.Pattern[str]] = {}

    def small(self, kind: Any, value: Any, flags: int) -> re.Pattern[str]:
        key = (repr((kind, value)), flags)
        pattern = self._small.get(key)
        if pattern is None:
            state = _parser.State()
            state.flags = flags
            pattern = _compiler.compile(_parser.SubPattern(state, [(kind, value)]), flags)
            self._small[key] = pattern
        return pattern


class _Machine:
    """The states of a pattern, or of a look-around's. 0 is the end."""

    def __init__(self, items: Any, flags: int, parts: _Parts) -> None:
        self._parts = parts
        # For each state: the states one character before it, and the condition for that character.
        self._before: list[list[tuple[int, re.Pattern[str]]]] = [[]]
        # For each state: the states at the same place before it, and the condition.
        self._beside: list[list[tuple[int, re.Pattern[str] | _Look | None]]] = [[]]
        self._start = self._build(items, flags, 0)

    def found(self, text: str) -> bool:
        return any(self._places(text))

    def places(self, text: str) -> list[bool]:
        return list(self._places(text))[::-1]

    def _places(self, text: str) -> Any:
        looks: dict[_Look, list[bool]] = {}
        after: set[int] = set()
        parts = self._parts
        for place in range(len(text), -1, -1):
            here = {0}
            if place < len(text):
                character = text[place]
                for state in after:
                    edges = self._before[state]
                    parts.steps += len(edges)
                    for before, pattern in edges:
                        if before not in here and pattern.match(character):
                            here.add(before)
            waiting = list(here)
            while waiting:
                ways_on = self._beside[waiting.pop()]
                parts.steps += 1 + len(ways_on)
                for beside, condition in ways_on:
                    if beside not in here and _holds(condition, text, place, looks):
                        here.add(beside)
                        waiting.append(beside)
            if parts.steps > parts.most:
                raise TooManySteps(f"a search took more than {parts.most} steps")
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
            look = _Look(_Machine(body, flags, self._parts), width, kind is _constants.ASSERT)
            return self._under(look, then)
        if kind is _FAILURE:
            return self._state()  # no state follows it
        what = {
            _constants.GROUPREF: "a back reference",
            _constants.GROUPREF_EXISTS: "a condition on a group",
            _POSSESSIVE: "a possessive repetition",
            _ATOMIC: "an atomic group",
        }
        raise Unbounded(f"it has {what.get(kind, kind)} beside repetitions that can be cut in many ways")

    def _repeat(self, low: Any, high: Any, body: Any, flags: int, then: int) -> int:
        if high is _constants.MAXREPEAT:
            then = self._either(then)  # the state to which the loop returns
            self._beside[self._build(body, flags, then)].append((then, None))
        else:
            for _ in range(high - low):
                then = self._either(then, self._build(body, flags, then))
        for _ in range(low):
            before = then
            then = self._build(body, flags, then)
            if then == before:
                break  # the body is empty, however often it is repeated
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


@dataclass(eq=False, slots=True)
class _Look:
    """A look ahead, or a look behind of fixed width, as in `re`."""

    _machine: _Machine
    _width: int
    _wanted: bool

    def places(self, text: str) -> list[bool]:
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
    if add & _parser.TYPE_FLAGS:
        flags &= ~_parser.TYPE_FLAGS
    return int((flags | add) & ~remove)


T = TypeVar("T")

# "^$" matches the empty name only, which no queue has; the default exchange is amq.default here.
NOTHING: Final = "^$"

_POSIX_CLASSES: Final = {
    "alnum": "a-zA-Z0-9", "alpha": "a-zA-Z", "ascii": r"\x00-\x7f", "blank": r" \t",
    "cntrl": r"\x00-\x1f\x7f", "digit": "0-9", "graph": r"\x21-\x7e", "lower": "a-z",
    "print": r"\x20-\x7e", "punct": r"!-/:-@\[-`{-~", "space": r"\s", "upper": "A-Z",
    "word": r"\w", "xdigit": "0-9a-fA-F",
}  # fmt: skip
_POSIX: Final = re.compile(r"\[:([a-z]+):\]")
_PCRE_END: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\z")


NAME_CHARACTERS_MAX: Final = 1024
"""No pattern matches a longer name."""
PATTERN_CHARACTERS_MAX: Final = 4096
"""The length of a pattern: it takes some thousandths of a second to compile."""

_SHOWN: Final = 200
"""The number of characters of a pattern in an error."""

RE_STEPS_MAX: Final = 1 << 20
"""The characters that `re` may read in one name: some thousandths of a second."""
_RE_STEPS_LIKED: Final = 1 << 14
"""Up to so many characters, their bound counts in a `PatternSearch`; beyond, each step is counted."""
_RE_STEPS: Final = 64
"""The characters that `re` reads in about the time of one step of `BoundedSearch`."""
NAME_STEPS_MAX: Final = 20_000
"""The steps of a `PatternSearch` in one name: a hundredth of a second."""
FINDING_STEPS_MAX: Final = 4_000_000
"""The steps of a `PatternSearch` in all names: a second or two."""
_PAUSE_STEPS: Final = 15_000


class _Search:
    def __init__(self, pattern: str) -> None:
        self._tree = parsed(pattern)
        self._search = compiled(self._tree).search
        self._most: dict[int, int] = {}
        self._bounded: BoundedSearch | Unbounded | None = None
        if self._steps(TEXT_LENGTH - 1) > RE_STEPS_MAX:
            machine = self._machine()
            if isinstance(machine, Unbounded):
                raise machine

    def found(self, name: str, liked: int = RE_STEPS_MAX, most: int = NO_END) -> tuple[bool, int]:
        re_steps = self._steps(len(name))
        if re_steps > liked:
            machine = self._machine()
            if isinstance(machine, BoundedSearch):
                return machine(name, most)
            if re_steps > RE_STEPS_MAX:
                return False, 1  # the name is longer than those for which the pattern was checked
        if re_steps // _RE_STEPS > most:
            raise TooManySteps(f"a search might take more than {most} steps")
        return self._search(name) is not None, 1 + re_steps // _RE_STEPS

    def _steps(self, length: int) -> int:
        bits = max(4, length.bit_length())  # a long pattern takes milliseconds
        most = self._most.get(bits)
        if most is None:
            most = self._most[bits] = steps(self._tree, 1 << bits)
        return most

    def _machine(self) -> BoundedSearch | Unbounded:
        if self._bounded is None:
            try:
                self._bounded = BoundedSearch(self._tree)
            except Unbounded as fault:
                self._bounded = fault
        return self._bounded


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> _Search | Exception:
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        return Unbounded(f"it is longer than {PATTERN_CHARACTERS_MAX} characters")
    translated = _POSIX.sub(lambda found: _POSIX_CLASSES.get(found[1], found[0]), pattern or NOTHING)
    translated = _PCRE_END.sub(r"\1\\Z", translated)
    with warnings.catch_warnings():
        # Forms that a later Python reads otherwise are refused now: a permission must not change meaning.
        warnings.simplefilter("error")
        try:
            return _Search(translated)
        except (re.error, OverflowError, RecursionError, Unbounded, Warning) as fault:
            return fault.with_traceback(None)


def is_expression(pattern: str) -> bool:
    """Return whether it is a regular expression, bounded or not."""
    return isinstance(_compiled(pattern), _Search | Unbounded)


def check_pattern(pattern: str, resource: str) -> str:
    """Return the pattern. `resource`: its owner, for the error. Raises `InvalidArgument` if it is not a
    regular expression; the text names the position.
    """
    fault = _compiled(pattern)
    # An old pattern without a bound stays; `check_bounded` refuses a new one.
    if not isinstance(fault, _Search | Unbounded):
        raise InvalidArgument(resource, f"{resource}: {fault_of(pattern)}") from fault
    return pattern


def check_bounded(patterns: Iterable[str], resource: str) -> None:
    """Refuse a pattern whose search is not bounded. Raises `InvalidArgument` with the obstacle."""
    for pattern in patterns:
        PatternSearch(pattern, resource)


def fault_of(pattern: str) -> str | None:
    """Return why a pattern matches nothing; None if it is used."""
    fault = _compiled(pattern)
    shown = pattern if len(pattern) <= _SHOWN else f"{pattern[:_SHOWN]}..."
    if isinstance(fault, Unbounded):
        return f"'{shown}' could take for ever to search for: {fault}"
    return None if isinstance(fault, _Search) else f"'{shown}' is not a regular expression: {fault}"


def matches(pattern: str, name: str) -> bool:
    """Return whether the pattern is found anywhere in the name; the empty pattern never is."""
    search = _compiled(pattern)
    if pattern == "" or len(name) > NAME_CHARACTERS_MAX or not isinstance(search, _Search):
        # An old pattern, or one made invalid by a user's name in it, allows nothing.
        return False
    return search.found(name)[0]


class PatternSearch:
    """A pattern that one request searches for in many names, with a limit of all steps together."""

    def __init__(self, pattern: str, resource: str, liked: int = _RE_STEPS_LIKED) -> None:
        fault = fault_of(pattern)
        if fault is not None:
            raise InvalidArgument(resource, f"{resource}: {fault}; write it otherwise")
        self.pattern = pattern
        self.steps = 0
        self._resource = resource
        self._liked = liked

    def __call__(self, name: str) -> bool:
        search = _compiled(self.pattern)
        if self.pattern == "" or len(name) > NAME_CHARACTERS_MAX or not isinstance(search, _Search):
            return False
        most = min(NAME_STEPS_MAX, FINDING_STEPS_MAX - self.steps)
        try:
            found, steps_made = search.found(name, self._liked, most)
        except TooManySteps as fault:
            text = f"'{self.pattern[:_SHOWN]}' takes too long to search for in so many names, or in '{name}'"
            advice = "begin it with ^, or write what it repeats otherwise"
            raise InvalidArgument(self._resource, f"{self._resource}: {text}; {advice}") from fault
        self.steps += steps_made
        return found

    async def among(
        self, things: Iterable[T], name: Callable[[T], str], pause: Callable[[], Awaitable[None]]
    ) -> list[T]:
        """Return the objects whose names match. Raises `InvalidArgument` if the steps are used up."""
        chosen, due = [], self.steps + _PAUSE_STEPS
        for thing in things:
            if self(name(thing)):
                chosen.append(thing)
            if self.steps >= due:
                due = self.steps + _PAUSE_STEPS
                await pause()
        return chosen
