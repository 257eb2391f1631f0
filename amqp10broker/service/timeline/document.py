"""A timeline as JSON carries it: steps, each of them a frame or a run of frames, with what it changed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from amqp10broker.amqp10.performatives import Flow, Role, decode_composite
from amqp10broker.amqp10.serial import MASK
from amqp10broker.service.timeline.records import Kind, Record
from amqp10broker.service.timeline.ring import Ring, Tell
from amqp10broker.service.timeline.standing import FRAME_HEAD_BYTES, NAMES


def timeline(ring: Ring, since: int | None, limit: int, tell: Tell, *, frames: bool = True) -> dict[str, Any]:
    """Steps of a ring, from one on; who asks again gives ``next`` back as `since`.

    Args:
        ring: of the link.
        since: number of the first step; None, or one that is not there any more: the oldest that is.
        limit: of steps.
        tell: makes a line of a performative.
        frames: with the frame of each step; without, curves alone.

    Returns:
        ``{"since", "next": int, "lost": int, "more": bool, "ended": str | None, "start": {values}, "steps":
        [{"number": int, "at_ns": int, "direction": "in" | "out" | None, "frames": int, "link": bool, "frame":
        str, "bytes": hex, "marks": [...], "values": {those that changed}}]}``. Times are of the ring's clock.
    """
    if ring.ended is None:
        ring.turn_over()
    first = ring.first if since is None else min(max(since, ring.first), ring.next)
    standing = ring.at(first)
    before = start = standing.values()
    steps: list[dict[str, Any]] = []
    for number, record in enumerate(islice(ring.records(first), limit), first):
        step = {"number": number, "at_ns": record[0], "link": standing.apply(record)}
        if frames:
            step |= _frame(record, tell)
        values = standing.values()
        step["values"] = {} if values == before else _changed(before, values)
        before = values
        steps.append(step)
    following = first + len(steps)
    return {
        "since": first,
        "next": following,
        "lost": 0 if since is None else max(0, first - since),
        "more": following < ring.next,
        "ended": ring.ended,
        "start": dict(zip(NAMES, start, strict=True)),
        "steps": steps,
    }


def _changed(before: tuple[Any, ...], values: tuple[Any, ...]) -> dict[str, Any]:
    return {name: value for name, old, value in zip(NAMES, before, values, strict=True) if value != old}


def _frame(record: Record, tell: Tell) -> dict[str, Any]:
    """What a step was: one frame, several, or none."""
    direction: str | None = "in"
    frames, marks, head = 1, [], b""
    match record[1]:
        case Kind.MARK:
            direction, frames = None, 0
            text = ""
        case Kind.TRANSFERS_IN:
            _, _, handle, spans, frames, settled, tag, head = record
            text = (
                f"TRANSFER handle={handle} delivery-id={_spans(spans)} delivery-tag={tag.hex()} "
                f"settled={str(settled).lower()}"
            )
        case Kind.TRANSFER_IN:
            _, _, _, transfer, head, size = record
            text = f"{tell(transfer)} payload({size} bytes)"
        case Kind.DISPOSITIONS_IN:
            _, _, role, settled, state, spans, frames = record
            text = (
                f"DISPOSITION role={'receiver' if role == Role.RECEIVER else 'sender'} "
                f"delivery-id={_spans(spans)} settled={str(settled).lower()} state={state or 'none'}"
            )
        case Kind.FLOW_IN:
            _, _, flow, told = record
            text = told or tell(flow)
            marks = list(_marks(flow))
        case Kind.OTHER_IN:
            text = record[2]
        case Kind.SENT:
            direction, head = "out", record[2]
            performative, _ = decode_composite(head[FRAME_HEAD_BYTES:])
            text = tell(performative)
            marks = list(_marks(performative))
        case Kind.TRANSFERS_OUT:
            _, _, handle, first, frames, settled, head = record
            numbers = _spans([(first, (first + frames - 1) & MASK)])
            text = f"TRANSFER handle={handle} delivery-id={numbers} settled={str(settled).lower()}"
            direction = "out"
        case _:
            _, _, handle, number, settled, head, begins, ends = record
            part = "more=false" if ends else "more=true"
            text = f"TRANSFER handle={handle} delivery-id={number} settled={str(settled).lower()} {part}"
            direction = "out"
            marks = ["begins"] if begins else []
    return {"direction": direction, "frames": frames, "frame": text, "bytes": head.hex(), "marks": marks}


def _marks(performative: Any) -> Iterator[str]:
    """What is drawn of a flow beside the curves."""
    if isinstance(performative, Flow):
        yield "flow"
        if performative.drain:
            yield "drain"
        if performative.echo:
            yield "echo"


def _spans(spans: Any) -> str:
    """``5..9, 12``."""
    return ", ".join(f"{first}..{last}" if last != first else f"{first}" for first, last in spans)
