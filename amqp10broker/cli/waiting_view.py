"""Formats waits as text: a summary line, and an entry for each, the worst first.

Takes `summary` and `waiting` of the status document (`sessions.diagnosis.survey`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from amqp10broker.cli.text import clean, fit, seconds_text, shortened, wrapped
from amqp10broker.operations.operation import counted

Document = Mapping[str, Any]

QUEUE_ROOM_MIN: Final = 24
KINDS: Final = ("link", "consumer", "channel")


def summary(found: Document, width: int) -> list[str]:
    """``152 connections, 3 links wait: 2 no-credit-used-up, 1 peer-window-closed``, and idle connections."""
    if not found:
        return []
    chosen, total = found["connections"], found["connections_in_all"]
    head = counted(chosen, "connection")
    if chosen != total:
        head = f"{chosen} of {counted(total, 'connection')}"
    idle = set(found["idle_reasons"])
    reasons = found["reasons"]
    waits = ", ".join(f"{count} {code}" for code, count in reasons.items() if code not in idle)
    kinds = [(kind, found[f"{kind}s_waiting"]) for kind in KINDS]
    waiting = ", ".join(counted(count, kind) for kind, count in kinds if count)
    verb = "waits" if found["waiting"] == 1 else "wait"
    lines = wrapped(
        f"{head}, {waiting} {verb}: {waits}" if waiting else f"{head}, nothing waits", width, "", "  "
    )
    rest = ", ".join(f"{reasons[code]} {code}" for code in reasons if code in idle)
    if rest:
        lines += wrapped(f"idle: {rest}", width, "", "  ")
    if found.get("queues_full"):
        lines += wrapped(f"{counted(found['queues_full'], 'queue')} FULL", width, "", "  ")
    return lines


def page(found: Document, width: int) -> list[str]:
    """Format the operation `waiting`: the summary, then each wait with its remedy."""
    lines = summary(found["summary"], width)
    if found.get("unreached"):
        silent = ", ".join(map(clean, found["unreached"]))
        lines += wrapped(f"not known of clients of {silent}: not reached", width, "", "  ")
    for note in found.get("notes", ()):
        lines += wrapped(f"note: {clean(note)}", width, "", "  ")
    if lacking := found.get("queues_without_leader"):
        lines += wrapped(clean(without_leader(lacking)), width, "", "  ")
    several = found.get("nodes", 1) > 1
    for each, entry in zip(found["waiting"], entries(found["waiting"], width, several=several), strict=True):
        lines += ["", *entry, *wrapped(f"do: {clean(each['to_do'])}", width, "    ", "    ")]
    return lines


def without_leader(found: Document) -> str:
    """``8298 queues have no leader, q1 in /, ... among them: 8298 elect one, 32 at a time from here``."""
    verb = "has" if found["queues"] == 1 else "have"
    head = f"{counted(found['queues'], 'queue')} {verb} no leader"
    return f"{head} ({', '.join(found['names'])}): {found['reason']}"


def entries(waiting: Sequence[Document], width: int, *, several: bool = False) -> list[list[str]]:
    """Format an entry for each wait, of two lines or more: duration, cause and place; then the details."""
    return [[*_head(each, width), *_body(each, width, several=several)] for each in waiting]


def _head(each: Document, width: int) -> list[str]:
    facts = [clean(each.get("waits"))]
    if each.get("waits_for_s") is not None:
        facts.append(seconds_text(each["waits_for_s"]))
    start = "  ".join(facts)
    queue = each.get("queue")
    if queue is None:
        return [fit(start, width)]
    if width - len(start) < QUEUE_ROOM_MIN:
        return [fit(start, width), f"  queue {shortened(clean(queue), width - 8)}"]
    return [f"{start}  queue {shortened(clean(queue), width - len(start) - 8)}"]


def _body(each: Document, width: int, *, several: bool) -> list[str]:
    link = each["kind"] == "link"
    part = "session" if link else "channel"
    where = f"connection {clean(each.get('connection'))} {part} {clean(each.get('channel'))}"
    if several:
        where += f" of node {clean(each['node'])}"
    if each.get("user"):
        where += f", user {clean(each['user'])}"
    if each["kind"] != "channel":
        role = each.get("role") or each["kind"]
        where = f"{role} {shortened(clean(each.get('name')), width // 2)}, {where}"
    why = f": {clean(each['waits_why'])}" if each.get("waits_why") else ""
    return wrapped(f"{where}{why}", width, "    ", "    ")
