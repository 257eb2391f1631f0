"""``amqp10broker upgrade-check``: what another version of RabbitMQ refuses or does otherwise."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

from amqp10broker.cli import tables
from amqp10broker.cli.calls import add_formatter, on_terminal
from amqp10broker.cli.commands import Command, Parser, add_where, ask
from amqp10broker.cli.exits import EXIT_FAILED, EXIT_OK
from amqp10broker.cli.frames import recording
from amqp10broker.emulation import VERSIONS, ChangeState, Upgrade
from amqp10broker.operations.snapshot import document
from amqp10broker.tools.upgrade import RecordedUses

COLUMNS: Final = ("state", "finding", "kind", "who", "vhost", "what", "to_do")


def _arguments(parser: Parser) -> None:
    parser.add_argument(
        "--to", choices=VERSIONS, default=VERSIONS[-1], help=f"version of RabbitMQ (default: {VERSIONS[-1]})"
    )
    parser.add_argument(
        "--file",
        metavar="FILE",
        help="look at the clients of a recording of frames instead of a running broker; - is stdin",
    )
    add_formatter(parser)
    add_where(parser)


def _run(arguments: argparse.Namespace) -> int:
    found = (
        ask(arguments, "upgrade-check", to=arguments.to) if arguments.file is None else _recorded(arguments)
    )
    if arguments.format == "json":
        sys.stdout.write(tables.as_json(found))
    else:
        sys.stdout.write(tables.render(COLUMNS, found["findings"], arguments.format, **on_terminal()))
    denied = any(each["state"] == ChangeState.DENIED for each in found["findings"])
    return EXIT_FAILED if denied else EXIT_OK


def _recorded(arguments: argparse.Namespace) -> dict[str, Any]:
    upgrade = Upgrade(arguments.to)
    uses = RecordedUses(upgrade)
    with recording(arguments.file) as records:
        for record in records:
            uses.take(record)
    return {"to": arguments.to, "findings": [document(each) for each in upgrade.findings()]}


COMMANDS: Final = (
    Command(
        "upgrade-check",
        _arguments,
        _run,
        "Say which connected clients, queues and policies use what a version of RabbitMQ refuses or does "
        "otherwise, the worst first: its state (denied, changed, deprecated), who and what, and what to do. "
        "With --file: which clients of a recording of frames. The exit code is 1 if something is denied.",
    ),
)
