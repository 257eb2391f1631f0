"""The JSON form of a timeline: steps, each of them a frame or a run of frames, with its changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amqp10broker.observe.timeline.channel_ring import ChannelRing
from amqp10broker.observe.timeline.ring import FrameRing
from amqp10broker.protocols.amqp10.link import SenderLink

Values = tuple[Any, ...]


def timeline(
    ring: FrameRing | ChannelRing, since: int | None, limit: int, *, frames: bool = True
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


class Taps:
    """Forwards the events of one session to several rings (a `FrameTap`)."""

    def __init__(self, rings: Sequence[FrameRing]) -> None:
        self._rings = rings

    def received(self, item: object) -> None:
        for ring in self._rings:
            ring.received(item)

    def sent(self, frame: bytes) -> None:
        for ring in self._rings:
            ring.sent(frame)

    def sent_run(self, link: SenderLink, first_id: int, deliveries: int, head: bytes) -> None:
        for ring in self._rings:
            ring.sent_run(link, first_id, deliveries, head)

    def sent_piece(self, link: SenderLink, delivery_id: int, head: bytes, *, first: bool, last: bool) -> None:
        for ring in self._rings:
            ring.sent_piece(link, delivery_id, head, first=first, last=last)

    def turn_over(self) -> None:
        for ring in self._rings:
            ring.turn_over()
