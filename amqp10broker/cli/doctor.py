"""``amqp10broker doctor``: checks a running broker against the rules of production."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from amqp10broker.cli import tables
from amqp10broker.cli.calls import add_formatter, on_terminal
from amqp10broker.cli.commands import Command, Parser, add_where, ask
from amqp10broker.cli.exits import EXIT_OK, EXIT_UNAVAILABLE

COLUMNS: Final = ("state", "check", "evidence", "to_do")


def _arguments(parser: Parser) -> None:
    parser.add_argument(
        "--by-itself",
        action="store_true",
        help="do not ask the other nodes of the cluster (default: ask them)",
    )
    add_formatter(parser)
    add_where(parser)


def _run(arguments: argparse.Namespace) -> int:
    found = ask(arguments, "doctor", by_itself=arguments.by_itself)
    if arguments.format == "json":
        sys.stdout.write(tables.as_json(found))
    else:
        sys.stdout.write(tables.render(COLUMNS, found["checks"], arguments.format, **on_terminal()))
    return EXIT_UNAVAILABLE if any(row["state"] == "bad" for row in found["checks"]) else EXIT_OK


COMMANDS: Final = (
    Command(
        "doctor",
        _arguments,
        _run,
        "Say what of this node is not as it should be in production: a row for each check, the worst first, "
        "with its state (bad, warn, unknown, ok), what shows it, and what to do. The exit code is 0 if "
        "nothing is bad, else 69. docs/operating.md has the checks. In a cluster, ask each node.",
    ),
)
