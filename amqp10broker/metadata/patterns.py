"""Regular expressions from clients: in permissions and policies, and in filters of lists.

RabbitMQ's are PCRE, searched anywhere in the name, and an empty one matches no name. Python's differ little;
an unsupported one is refused when it is set, not when it is used.

Names come from users, so a hostile name must not make a search long. `re` searches where it needs few steps,
`bounded_search` elsewhere; a pattern that neither can search in bounded time is refused. An older one in a
data folder or definitions file stays, finds nothing, and `fault_of` gives the reason. `PatternSearch` bounds
the search of one request over all names.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache
from typing import Final, TypeVar

from amqp10broker.errors import InvalidArgument
from amqp10broker.metadata.bounded_search import (
    NO_END,
    TEXT_LENGTH,
    BoundedSearch,
    TooManySteps,
    Unbounded,
    compiled,
    parsed,
    steps,
)

T = TypeVar("T")

# "^$" matches the empty name only, which no queue has; the default exchange is asked for as amq.default.
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
"""Nothing is found in what is longer. Names and routing keys of AMQP 0-9-1 have at most 255 bytes."""
PATTERN_CHARACTERS_MAX: Final = 4096
"""Of a pattern: some thousandths of a second to compile."""

_SHOWN: Final = 200
"""Characters of a pattern in an error."""

RE_STEPS_MAX: Final = 1 << 20
"""Characters that `re` may look at in one name: some thousandths of a second."""
_RE_STEPS_LIKED: Final = 1 << 14
"""Up to so many, what they might come to counts in a `PatternSearch`; beyond, each step is counted."""
_RE_STEPS: Final = 64
"""Characters that `re` looks at in about the time of one step of `BoundedSearch`."""
NAME_STEPS_MAX: Final = 20_000
"""Of a `PatternSearch`, in one name: a hundredth of a second."""
FINDING_STEPS_MAX: Final = 4_000_000
"""Of a `PatternSearch`, in all names: a second or two, in which others have their turns."""
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
                return False, 1  # a name beyond those that the pattern was looked at for
        if re_steps // _RE_STEPS > most:
            raise TooManySteps(f"a search might take more than {most} steps")
        return self._search(name) is not None, 1 + re_steps // _RE_STEPS

    def _steps(self, length: int) -> int:
        bits = max(4, length.bit_length())  # the walk through a long pattern takes milliseconds
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
    """Whether it is a regular expression, though perhaps one that nothing may be searched for with."""
    return isinstance(_compiled(pattern), _Search | Unbounded)


def check_pattern(pattern: str, resource: str) -> str:
    """Return the pattern if it is a valid regular expression. `resource`: its owner, for the error:
    ``configure permission of user 'a' in vhost '/'``. Raises `InvalidArgument` if it is not a regular
    expression; the text names the position.
    """
    fault = _compiled(pattern)
    # One from before that is not bounded is kept; whoever sets one asks `check_bounded`.
    if not isinstance(fault, _Search | Unbounded):
        raise InvalidArgument(resource, f"{resource}: {fault_of(pattern)}") from fault
    return pattern


def check_bounded(patterns: Iterable[str], resource: str) -> None:
    """Refuse a pattern whose search is not bounded. Raises `InvalidArgument` with the obstacle."""
    for pattern in patterns:
        PatternSearch(pattern, resource)


def fault_of(pattern: str) -> str | None:
    """Why a pattern finds nothing; None if it is searched with."""
    fault = _compiled(pattern)
    shown = pattern if len(pattern) <= _SHOWN else f"{pattern[:_SHOWN]}..."
    if isinstance(fault, Unbounded):
        return f"'{shown}' could take for ever to search for: {fault}"
    return None if isinstance(fault, _Search) else f"'{shown}' is not a regular expression: {fault}"


def matches(pattern: str, name: str) -> bool:
    """Whether the pattern is found anywhere in the name; the empty pattern never is."""
    search = _compiled(pattern)
    if pattern == "" or len(name) > NAME_CHARACTERS_MAX or not isinstance(search, _Search):
        # A pattern from before such were refused, or with a user's name in it that makes it one: it allows
        # nothing.
        return False
    return search.found(name)[0]


class PatternSearch:
    """A pattern that one request searches for in many names, in so many steps together."""

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
