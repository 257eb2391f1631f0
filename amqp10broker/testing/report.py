"""The report of a failed test: its queues, messages without a route, waits with reasons, and the last frames
of its connections.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Any, Final

from amqp10broker.errors import BrokerError
from amqp10broker.testing.assertions import Assertions, wait_text
from amqp10broker.testing.frames import ConnectionFrames
from amqp10broker.testing.server import Server

_HANDSHAKE: Final = re.compile(
    r"(<-|->) (AMQP \d|ch 0 (SASL-\w+|OPEN|connection\.(start|secure|tune|open)(-ok)?)\b)"
)
_OPENED: Final = ("-> ch 0 OPEN", "-> ch 0 connection.open-ok")


def report(broker: Assertions, server: Server, began_ns: int) -> str:
    """Return the report as text, also for a broker that has ended.

    `began_ns` is the beginning of the test, since 1970.
    """
    lines: list[str] = []
    numbers: set[int] | None = None
    waiting: list[dict[str, Any]] = []
    if server.alive:
        try:
            lines += _queues(broker.ask("list-queues"))
            lines += _unroutable(broker.ask("list-exchanges"))
            waiting = broker.waiting
            there = {each["id"] for each in broker.connections}
            numbers = there | {each["connection"] for each in broker.ask("follow-links")["watches"]}
        except BrokerError as error:
            lines.append(f"the broker does not tell: {error}")
    else:
        lines.append("the broker does not run")
    kept = server.frames(began_ns)
    if numbers is not None and server.is_shared:
        kept = {number: each for number, each in kept.items() if number in numbers}
    waits = [wait_text(each) for each in waiting]
    gone = {each["connection"] for each in waiting}
    for number, each in kept.items():
        if number not in gone:
            waits += [f"{wait_text(wait)}\n    (when its client ended it)" for wait in each.waited]
    lines += ["waiting:", *waits] if waits else ["nothing waits"]
    for number, each in sorted(kept.items()):
        lines += _frames(number, each, began_ns)
    return "\n".join(lines)


def _queues(queues: list[dict[str, Any]]) -> list[str]:
    return [
        f"queue '{each['name']}': {each['message_count']} ready, {each['messages_unsettled'] or 0} with "
        f"consumers, {each['consumer_count']} consumers"
        for each in queues
    ] or ["no queue is declared"]


def _unroutable(exchanges: list[dict[str, Any]]) -> list[str]:
    return [
        f"exchange '{each['name']}': {each['unroutable']} of {each['published']} messages were routed to no "
        "queue"
        for each in exchanges
        if each["unroutable"]
    ]


def _frames(number: int, kept: ConnectionFrames, began_ns: int) -> list[str]:
    shown = f"the last {len(kept.lines)} of {kept.total} frames" if kept.total > len(kept.lines) else "frames"
    whose = f" ({kept.peer})" if kept.peer else ""
    frames = list(kept.lines)
    handshake = list(takewhile(lambda frame: _HANDSHAKE.match(frame[1]), frames))
    if any(line.startswith(_OPENED) for _, line in handshake):
        frames[: len(handshake)] = [(handshake[-1][0], f"(opened, after {len(handshake)} frames)")]
    return [
        f"connection {number}{whose}, {shown}:",
        *(f"  {(at_ns - began_ns) / 1e9:8.3f} s  {line}" for at_ns, line in frames),
    ]
