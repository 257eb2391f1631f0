"""The JSON form of a timeline: steps, each of them a frame or a run of frames, with its changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

RecordT = TypeVar("RecordT")
Values = tuple[Any, ...]


class RecordedRing(Protocol[RecordT]):
    """A ring of either protocol; `ended` is why it records nothing more."""

    ended: str | None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the values, in their order."""

    @property
    def first(self) -> int:
        """The number of the oldest record that is there."""

    @property
    def next(self) -> int:
        """The number that the next record will have."""

    def turn_over(self) -> None:
        """Record state that has changed without a frame."""

    def before(self, number: int) -> Values: ...

    def steps(self, number: int, limit: int) -> Iterator[tuple[int, bool, Values, RecordT]]:
        """Iterate over records: time, whether it is about the link, values after it, the record."""

    def shown(self, record: RecordT) -> dict[str, Any]:
        """Return ``direction``, ``frames``, ``frame``, ``bytes`` and ``marks`` of a step."""


def timeline(
    ring: RecordedRing[Any], since: int | None, limit: int, *, frames: bool = True
) -> dict[str, Any]:
    """Return steps of a ring from a number on. A later call takes ``next`` as `since`.

    Args:
        since: number of the first step; None, or one that is not there any more: the oldest.

    Returns:
        ``{"since", "next": int, "lost": int, "more": bool, "ended": str | None, "start": {values}, "steps":
            [{"number": int, "at_ns": int, "direction": "in" | "out" | None, "frames": int, "link": bool,
            "frame": str, "bytes": hex, "marks": [...], "values": {those that changed}}]}``. Times are of the
            ring's clock.
    """
    if ring.ended is None:
        ring.turn_over()
    first = ring.first if since is None else min(max(since, ring.first), ring.next)
    before = start = ring.before(first)
    names = ring.names
    steps: list[dict[str, Any]] = []
    for number, (at_ns, link, values, record) in enumerate(ring.steps(first, limit), first):
        step: dict[str, Any] = {"number": number, "at_ns": at_ns, "link": link}
        if frames:
            step |= ring.shown(record)
        step["values"] = {} if values == before else _changed(names, before, values)
        before = values
        steps.append(step)
    following = first + len(steps)
    return {
        "since": first,
        "next": following,
        "lost": 0 if since is None else max(0, first - since),
        "more": following < ring.next,
        "ended": ring.ended,
        "start": dict(zip(names, start, strict=True)),
        "steps": steps,
    }


def _changed(names: tuple[str, ...], before: Values, values: Values) -> dict[str, Any]:
    both = zip(names, before, values, strict=True)
    return {name: value for name, old, value in both if value != old}
