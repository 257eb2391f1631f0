"""``amqp10broker waiting`` and ``timeline``: present waits, and the frames of one link."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any, Final

from amqp10broker.cli import status, waiting_view
from amqp10broker.cli.calls import CommandCall
from amqp10broker.cli.commands import Command, Parser, add_where, ask, seconds
from amqp10broker.cli.exits import EXIT_OK

ASK_EVERY_S: Final = 0.5
"""Far shorter than the time-out of a watch, and than the time to fill the ring of a busy link."""
STEPS_MAX: Final = 5000


def _add_format(parser: Parser) -> None:
    parser.add_argument("--format", choices=("table", "json"), default="table", help="default: table")


def _waits(arguments: argparse.Namespace, found: Any) -> str:
    if arguments.format == "json":
        return json.dumps(found, indent=2)
    return "\n".join(waiting_view.page(found, status.width_of(sys.stdout)))


def _timeline_arguments(parser: Parser) -> None:
    parser.add_argument("connection", type=int, metavar="CONNECTION", help="its number, see 'link list'")
    parser.add_argument(
        "link",
        nargs="?",
        metavar="LINK",
        help="name of the link; of AMQP 0-9-1 the tag of a consumer, or none: all of --channel",
    )
    parser.add_argument(
        "--channel",
        type=int,
        help="of its session, if the connection has several; or the channel of AMQP 0-9-1",
    )
    parser.add_argument(
        "--role",
        choices=("sender", "receiver"),
        help="of the client, if it has two links of that name",
    )
    parser.add_argument(
        "--for",
        dest="for_s",
        type=seconds(0, 86_400),
        default=10.0,
        metavar="SECONDS",
        help="watch it for so long, or until ctrl-C (default: 10)",
    )
    add_where(parser)


def _timeline(arguments: argparse.Namespace) -> int:
    chosen = {name: getattr(arguments, name) for name in ("connection", "link", "channel", "role")}
    watch = ask(arguments, "watch-link", **chosen)
    what = watch["role"] if watch["link"] is None else f"{watch['role']} '{watch['link']}'"
    where = f"channel {watch['channel']}, connection {watch['connection']}"
    print(f"watching {what} of {where}", file=sys.stderr, flush=True)
    found: dict[str, Any] = {}
    until = time.monotonic() + arguments.for_s
    try:
        while _ask_on(arguments, watch["watch"], found) is None and (left := until - time.monotonic()) > 0:
            time.sleep(min(ASK_EVERY_S, left))
    except KeyboardInterrupt:
        print("what came until now:", file=sys.stderr)
    _ask_on(arguments, watch["watch"], found)
    ask(arguments, "unwatch-link", watch=watch["watch"])
    print(json.dumps({"link": watch, **found}, indent=2))
    return EXIT_OK


def _ask_on(arguments: argparse.Namespace, watch: int, found: dict[str, Any]) -> Any:
    while True:
        part = ask(arguments, "timeline", watch=watch, since=found.get("next"), limit=STEPS_MAX)
        if not found or part["lost"]:  # the part behind a gap begins with a state of its own
            found |= {name: part[name] for name in ("since", "start")} | {"steps": []}
        found["steps"] += part["steps"]
        found |= {name: part[name] for name in ("next", "ended")}
        found["lost"] = found.get("lost", 0) + part["lost"]
        if not part["more"]:
            return part["ended"]


CALLS: Final = (
    CommandCall(
        "waiting",
        _waits,
        more=_add_format,
        description="Show every link, channel and consumer that waits, the longest first: why, what shows "
        "it, for how long, and what to do. docs/waiting.md has the codes.",
    ),
)
COMMANDS: Final = (
    Command(
        "timeline",
        _timeline_arguments,
        _timeline,
        "Watch a link of AMQP 1.0, or a channel of AMQP 0-9-1, for a while and print as JSON what it did: "
        "each frame, in both directions, with the credit, delivery-count, unsettled deliveries, queue's "
        "credit, session windows and writer behind it; or prefetch, unacknowledged and unconfirmed messages, "
        "and credit_flow. docs/page.md has the fields.",
    ),
)
