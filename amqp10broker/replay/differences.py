"""What came otherwise than in the recording."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from enum import Enum
from typing import TypeVar

from amqp10broker.dataclass import dataclass

K = TypeVar("K", bound=Hashable)


class Kind(Enum):
    """What sort of difference."""

    OUTCOME = "outcome"
    """A message was settled, confirmed or answered otherwise."""
    ERROR = "error"
    """A link, session, channel or connection was ended otherwise."""
    MISSING = "missing"
    """Something did not come."""
    CREDIT = "credit"
    """Credit or a window was granted otherwise."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One, or several of a sort at one place.

    Attributes:
        kind: what sort.
        connection: its number in the recording.
        where: link, session or channel; empty for the connection.
        said: what was recorded and what came, a clause.
    """

    kind: Kind
    connection: int
    where: str
    said: str

    def __str__(self) -> str:
        where = f", {self.where}" if self.where else ""
        return f"{self.kind.value}: connection {self.connection}{where}: {self.said}"


def otherwise(recorded: Mapping[K, str], now: Mapping[K, str], noun: str) -> Iterator[str]:
    """What was answered to each of several things, and is answered now: one clause for each pair of answers.

    Things that got no answer now are not among them.

    Args:
        recorded, now: answers by the thing's number.
        noun: what one is called: "message".
    """
    places: dict[K, int] = {thing: place for place, thing in enumerate(recorded, 1)}
    found: dict[tuple[str, str], list[K]] = {}
    for thing, was in recorded.items():
        is_now = now.get(thing, was)
        if is_now != was:
            found.setdefault((was, is_now), []).append(thing)
    for (was, is_now), things in found.items():
        which = f"{noun} {places[things[0]]}"
        if len(things) > 1:
            which = f"{len(things)} of {len(recorded)} {noun}s, {which} first"
        yield f"{which}: {was} in the recording, {is_now} now"


def other_end(was: str | None, is_now: str | None) -> str | None:
    """How an end differs; None if it does not.

    Args:
        was, is_now: the broker's error, "" for an end without one, None where it ended nothing.
    """
    if was == is_now:
        return None
    return f"{_end(was)} in the recording, {_end(is_now)} now"


def _end(error: str | None) -> str:
    if error is None:
        return "not ended by the broker"
    return f"ended by the broker with {error}" if error else "ended by the broker without an error"
