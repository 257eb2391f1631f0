"""Regular expressions that an administrator writes: in permissions and in policies.

RabbitMQ's are PCRE, searched for anywhere in the name, and an empty one matches no name. Python's
differ little; what can be carried over is, the rest is refused when it is set, not when it is used.

The names are their users', who may be hostile: no name can make a search long. `re` searches with patterns
that have few ways through a name, `bounded_search` with the others. The few that neither could do in
bounded time are refused when they are set. One that a data folder or a definitions file has from before
stays there, finds nothing, and `fault_of` says why.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

from amqp10broker.catalog.bounded_search import BoundedSearch, Unbounded, ways
from amqp10broker.errors import InvalidArgument

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

_WAYS_MAX: Final = 1024
"""Ways through a name that `re` may have, each from 256 places of it: a thousandth of a second or two."""

Search = Callable[[str], object]
"""Says whether a pattern is found in a name."""


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> Search:
    """What searches a name.

    Raises:
        re.error: it is no regular expression.
        Unbounded: no name may be searched with it, for it might take for ever.
    """
    translated = _POSIX.sub(lambda found: _POSIX_CLASSES.get(found[1], found[0]), pattern or NOTHING)
    translated = _PCRE_END.sub(r"\1\\Z", translated)
    with warnings.catch_warnings():
        # Forms that a later Python reads otherwise are refused now: a permission must not change meaning.
        warnings.simplefilter("error")
        try:
            search = re.compile(translated).search
        except Warning as warning:
            raise re.error(str(warning), pattern) from warning
    return search if ways(translated) <= _WAYS_MAX else BoundedSearch(translated)


def check_pattern(pattern: str, resource: str) -> str:
    """The pattern itself, if it is a regular expression.

    Args:
        pattern: as the administrator wrote it.
        resource: whose it is, for the error: ``configure permission of user 'a' in vhost '/'``.

    Raises:
        InvalidArgument: it is no regular expression; the text says where it breaks.
    """
    try:
        compiled(pattern)
    except Unbounded:
        return pattern  # one from before is kept; whoever sets one asks `check_bounded`
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidArgument(
            resource, f"{resource}: '{pattern}' is not a regular expression: {error}"
        ) from error
    return pattern


def check_bounded(patterns: Iterable[str], resource: str) -> None:
    """Refuse to set what finds nothing because it might search for ever.

    Args:
        patterns: regular expressions.
        resource: whose they are, for the error.

    Raises:
        InvalidArgument: one is such; the text says what is in the way.
    """
    for pattern in patterns:
        fault = fault_of(pattern)
        if fault is not None:
            raise InvalidArgument(resource, f"{resource}: {fault}; write it otherwise")


def fault_of(pattern: str) -> str | None:
    """Why a pattern finds nothing; None if it is searched with."""
    try:
        compiled(pattern)
    except Unbounded as fault:
        return f"'{pattern}' could take for ever to search for: {fault}"
    except (re.error, OverflowError, RecursionError) as error:
        return f"'{pattern}' is not a regular expression: {error}"
    return None


def matches(pattern: str, name: str) -> bool:
    """Whether the pattern is found anywhere in the name; the empty pattern never is."""
    if pattern == "" or len(name) > NAME_CHARACTERS_MAX:
        return False
    try:
        search = compiled(pattern)
    except (re.error, OverflowError, RecursionError, Unbounded):
        # From before such were refused, or with a user's name in it that makes it one: it allows nothing.
        return False
    return bool(search(name))
