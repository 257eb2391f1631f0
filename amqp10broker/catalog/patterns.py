"""Regular expressions that an administrator writes: in permissions and in policies.

RabbitMQ's are PCRE, searched for anywhere in the name, and an empty one matches no name. Python's
differ little; what can be carried over is, the rest is refused when it is set, not when it is used.
"""

from __future__ import annotations

import re
import warnings
from functools import lru_cache
from typing import Final

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


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern, ready to `search` a name with.

    Raises:
        re.error: it is no regular expression.
    """
    translated = _POSIX.sub(lambda found: _POSIX_CLASSES.get(found[1], found[0]), pattern or NOTHING)
    translated = _PCRE_END.sub(r"\1\\Z", translated)
    with warnings.catch_warnings():
        # Forms that a later Python reads otherwise are refused now: a permission must not change meaning.
        warnings.simplefilter("error")
        try:
            return re.compile(translated)
        except Warning as warning:
            raise re.error(str(warning), pattern) from warning


def check_pattern(pattern: str, resource: str) -> str:
    """The pattern itself, if it can be used.

    Args:
        pattern: as the administrator wrote it.
        resource: whose it is, for the error: ``configure permission of user 'a' in vhost '/'``.

    Raises:
        InvalidArgument: it is no regular expression; the text says where it breaks.
    """
    try:
        compiled(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidArgument(
            resource, f"{resource}: '{pattern}' is not a regular expression: {error}"
        ) from error
    return pattern


def matches(pattern: str, name: str) -> bool:
    """Whether the pattern is found anywhere in the name; the empty pattern never is."""
    return pattern != "" and compiled(pattern).search(name) is not None
