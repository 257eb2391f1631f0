"""``amqp10broker doctor``: checks a running broker against the rules of production."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

from amqp10broker.cli import tables
from amqp10broker.cli.calls import CommandCall, add_formatter, on_terminal
from amqp10broker.cli.exits import EXIT_OK, EXIT_UNAVAILABLE

COLUMNS: Final = ("state", "check", "evidence", "to_do")


def _shown(arguments: argparse.Namespace, found: Any) -> None:
    if arguments.format == "json":
        sys.stdout.write(tables.as_json(found))
    else:
        sys.stdout.write(tables.render(COLUMNS, found["checks"], arguments.format, **on_terminal()))


CALLS: Final = (
    CommandCall(
        "doctor",
        _shown,
        more=add_formatter,
        code=lambda found: (
            EXIT_UNAVAILABLE if any(row["state"] == "bad" for row in found["checks"]) else EXIT_OK
        ),
        description="Say what of this node is not as it should be in production: a row for each check, the "
        "worst first, with its state (bad, warn, unknown, ok), what shows it, and what to do. The exit code "
        "is 0 if nothing is bad, else 69. docs/operating.md has the checks. In a cluster, ask each node.",
    ),
)
