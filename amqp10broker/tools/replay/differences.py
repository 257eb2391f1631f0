"""Differences between a recording and its replay."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from enum import Enum
from typing import TypeVar

from amqp10broker.dataclass import dataclass

K = TypeVar("K", bound=Hashable)


class DifferenceKind(Enum):
    # A message has another outcome, confirm or answer.
    OUTCOME = "outcome"
    # A link, session, channel or connection ended differently.
    ERROR = "error"
    # Something did not arrive.
    MISSING = "missing"
    # Another credit or window was granted.
    CREDIT = "credit"


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference, or several of a kind at one place."""

    kind: DifferenceKind
    connection: int
    where: str
    said: str

    def __str__(self) -> str:
        where = f", {self.where}" if self.where else ""
        return f"{self.kind.value}: connection {self.connection}{where}: {self.said}"


def otherwise(recorded: Mapping[K, str], now: Mapping[K, str], noun: str) -> Iterator[str]:
    """Yield one clause for each pair of different answers, recorded and current.

    Objects without a current answer are omitted. The answers are by the object's number; `noun` is the word
    for one object ("message").
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
    """Return how two ends differ; None if they do not.

    Args:
        was, is_now: the broker's error, "" for an end without one, None if it did not end anything.
    """
    if was == is_now:
        return None
    return f"{_end(was)} in the recording, {_end(is_now)} now"


def _end(error: str | None) -> str:
    if error is None:
        return "not ended by the broker"
    return f"ended by the broker with {error}" if error else "ended by the broker without an error"
