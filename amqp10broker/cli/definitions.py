"""``export-definitions`` and ``import-definitions``: everything declared, in RabbitMQ's JSON."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from typing import Any, Final

from amqp10broker.cli.commands import STANDARD, Command, Parser, add_vhost, add_where, ask, read_file
from amqp10broker.cli.exits import EXIT_OK, Failed
from amqp10broker.cli.tables import as_json
from amqp10broker.errors import ConfigError


def _export_arguments(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="where to; - for standard output")
    add_where(parser)


def _export(arguments: argparse.Namespace) -> int:
    document = ask(arguments, "export-definitions")
    text = as_json(document)
    if arguments.file == STANDARD:
        sys.stdout.write(text)
        return EXIT_OK
    write_private(arguments.file, text)
    print(f"definitions written to {arguments.file}; there are hashes of passwords in it")
    return EXIT_OK


def write_private(path: str, text: str) -> None:
    """Write a file that only its owner can read, as a whole or not at all.

    Raises:
        Failed: it cannot be written.
    """
    temporary = ""
    try:
        # In the same directory, so that it can take the place of the old one at once; mode 0600.
        descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path) or ".", prefix=".definitions-")
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError as error:
        if temporary:
            os.unlink(temporary)
        raise Failed(f"cannot write {path}: {error.strerror}; give another file, or - ") from error


def _import_arguments(parser: Parser) -> None:
    parser.add_argument(
        "file", metavar="FILE", help="what RabbitMQ or this broker exports; - for standard input"
    )
    parser.add_argument(
        "--skip-unsupported",
        action="store_true",
        help="leave out queues and exchanges of kinds that this broker does not have",
    )
    add_vhost(parser)
    add_where(parser)


def _import(arguments: argparse.Namespace) -> int:
    source = "standard input" if arguments.file == STANDARD else f"file {arguments.file}"
    try:
        document = json.loads(read_file(arguments.file))
    except ValueError as error:
        raise ConfigError(source, f"is not JSON: {error}", "must be what RabbitMQ exports") from error
    report: dict[str, Any] = ask(
        arguments, "import-definitions", document=document, skip_unsupported=arguments.skip_unsupported
    )
    loaded = ", ".join(f"{name} {count}" for name, count in report["loaded"].items() if count)
    print(f"imported: {loaded or 'nothing'}")
    for reason in report["skipped"]:
        print(f"left out: {reason}")
    if report["unknown"]:
        print(f"kept without use: {', '.join(report['unknown'])}")
    return EXIT_OK


COMMANDS: Final = (
    Command("export-definitions", _export_arguments, _export),
    Command(
        "import-definitions",
        _import_arguments,
        _import,
        "Declare what a file says: all of it, or nothing if any of it is refused. --vhost is for a file that "
        "names none.",
    ),
)
