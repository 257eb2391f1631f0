"""The display form of a record: one frame of AMQP 1.0, several, or none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from amqp10broker.observe.timeline.records import Record, RecordKind
from amqp10broker.observe.timeline.standing import FRAME_HEAD_BYTES
from amqp10broker.protocols.amqp10.performatives import Flow, Role, decode_composite
from amqp10broker.protocols.serial import MASK

Tell = Callable[[Any], str]


def shown(record: Record, tell: Tell) -> dict[str, Any]:
    """Return ``direction``, ``frames``, ``frame``, ``bytes`` and ``marks`` of a step; see `document`."""
    direction: str | None = "in"
    frames, marks, head = 1, [], b""
    match record[1]:
        case RecordKind.MARK:
            direction, frames = None, 0
            text = ""
        case RecordKind.TRANSFERS_IN:
            _, _, handle, spans, frames, settled, tag, head = record
            text = (
                f"TRANSFER handle={handle} delivery-id={_spans(spans)} delivery-tag={tag.hex()} "
                f"settled={str(settled).lower()}"
            )
        case RecordKind.TRANSFER_IN:
            _, _, _, transfer, head, size = record
            text = f"{tell(transfer)} payload({size} bytes)"
        case RecordKind.DISPOSITIONS_IN:
            _, _, role, settled, state, spans, frames = record
            text = (
                f"DISPOSITION role={'receiver' if role == Role.RECEIVER else 'sender'} "
                f"delivery-id={_spans(spans)} settled={str(settled).lower()} state={state or 'none'}"
            )
        case RecordKind.FLOW_IN:
            _, _, flow, told = record
            text = told or tell(flow)
            marks = list(_marks(flow))
        case RecordKind.OTHER_IN:
            text = record[2]
        case RecordKind.SENT:
            direction, head = "out", record[2]
            performative, _ = decode_composite(head[FRAME_HEAD_BYTES:])
            text = tell(performative)
            marks = list(_marks(performative))
        case RecordKind.TRANSFERS_OUT:
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
    if isinstance(performative, Flow):
        yield "flow"
        if performative.drain:
            yield "drain"
        if performative.echo:
            yield "echo"


def _spans(spans: Any) -> str:
    # For example ``5..9, 12``.
    return ", ".join(f"{first}..{last}" if last != first else f"{first}" for first, last in spans)
