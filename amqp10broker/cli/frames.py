"""``amqp10broker frames print``: prints a recording of frames."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

from amqp10broker.cli.commands import Command, Parser
from amqp10broker.cli.exits import EXIT_OK
from amqp10broker.errors import BrokerError
from amqp10broker.observe.frames.records import Ended, KnownLink, Listening, Record, read_lines

_NS: Final = 1_000_000_000


@contextmanager
def recording(path: str) -> Iterator[Iterator[Record]]:
    """Open the records of a file, or of standard input for ``-``."""
    if path == "-":
        yield read_lines(sys.stdin)
        return
    try:
        file = open(path, encoding="utf-8", errors="replace")  # noqa: SIM115, closed below
    except OSError as error:
        raise BrokerError(f"{path} cannot be read: {error.strerror}") from error
    with file:
        yield read_lines(file)


def time_text(at_ns: int) -> str:
    """Format a time to the microsecond, as ``trace`` writes it."""
    whole = datetime.fromtimestamp(at_ns // _NS, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{at_ns % _NS // 1000:06d}Z"


def _arguments(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="the recording; - reads it from standard input")
    parser.add_argument(
        "--connection", type=int, metavar="NUMBER", help="show this connection alone (default: all)"
    )


def _run(arguments: argparse.Namespace) -> int:
    with recording(arguments.file) as records:
        for record in records:
            if arguments.connection in (None, record.connection):
                print(f"{time_text(record.at_ns)} connection {record.connection} {_text(record)}")
    return EXIT_OK


def _text(record: Record) -> str:
    if isinstance(record, Listening):
        begins = "begins" if record.begins else "is listened to from here on"
        return f"({record.peer}) {begins}"
    if isinstance(record, KnownLink):
        return f"has a {record.role} '{record.name}' on channel {record.channel}, {record.address}"
    if isinstance(record, Ended):
        return f"has ended: {record.reason}"
    return record.text


COMMANDS: Final = (
    Command(
        "frames print",
        _arguments,
        _run,
        "Print a recording of frames that 'trace WHAT on --frames --file FILE' or 'serve --record-frames "
        "DIR' has made. Contents of messages are not in it, only their sizes.",
    ),
)
