"""``amqp10broker waiting``: everything that waits, why, and what to do."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Final

from amqp10broker.cli import status, waiting_view
from amqp10broker.cli.calls import Call
from amqp10broker.cli.commands import Parser


def _add_format(parser: Parser) -> None:
    parser.add_argument("--format", choices=("table", "json"), default="table", help="default: table")


def _waits(arguments: argparse.Namespace, found: Any) -> str:
    if arguments.format == "json":
        return json.dumps(found, indent=2)
    return "\n".join(waiting_view.page(found, status.width_of(sys.stdout)))


COMMANDS: Final = (
    Call(
        "waiting",
        _waits,
        more=_add_format,
        description="Show every link, channel and consumer that waits, the longest first: why, what shows "
        "it, for how long, and what to do. docs/waiting.md has the codes.",
    ).command("waiting"),
)
