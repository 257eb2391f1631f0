"""``definitions export`` and ``import``: all declared objects, in RabbitMQ's JSON."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from typing import Any, Final

from amqp10broker.cli.calls import CommandCall
from amqp10broker.cli.commands import STANDARD, Parser, add_vhost, read_file
from amqp10broker.cli.exits import Failed
from amqp10broker.cli.tables import as_json
from amqp10broker.errors import ConfigError


def _add_target(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="where to; - for standard output")


def _exported(arguments: argparse.Namespace, document: Any) -> str | None:
    text = as_json(document)
    if arguments.file == STANDARD:
        sys.stdout.write(text)
        return None
    write_private(arguments.file, text)
    told = f"definitions written to {arguments.file}; there are hashes of passwords in it"
    return f"{told}\nwarning: {document['explanation']}" if "explanation" in document else told


def write_private(path: str, text: str) -> None:
    """Write a file that only its owner can read, as a whole or not at all."""
    temporary = ""
    try:
        # In the same directory, so that it can replace the old one atomically; mode 0600.
        descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path) or ".", prefix=".definitions-")
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError as error:
        if temporary:
            os.unlink(temporary)
        raise Failed(f"cannot write {path}: {error.strerror}; give another file, or - ") from error


def _add_source(parser: Parser) -> None:
    parser.add_argument(
        "file", metavar="FILE", help="what RabbitMQ or this broker exports; - for standard input"
    )
    add_vhost(parser)


def _with_document(arguments: argparse.Namespace, given: dict[str, Any]) -> None:
    source = "standard input" if arguments.file == STANDARD else f"file {arguments.file}"
    try:
        given["document"] = json.loads(read_file(arguments.file))
    except ValueError as error:
        raise ConfigError(
            source,
            f"is not JSON: {error}",
            "give a file of 'amqp10broker definitions export' or 'rabbitmqctl export_definitions'",
        ) from error


def _imported(arguments: argparse.Namespace, report: Any) -> str:
    loaded = ", ".join(f"{name} {count}" for name, count in report["loaded"].items() if count)
    lines = [f"imported: {loaded or 'nothing'}", *(f"left out: {reason}" for reason in report["skipped"])]
    if report["unknown"]:
        lines.append(f"kept without use: {', '.join(report['unknown'])}")
    return "\n".join(lines)


CALLS: Final = (
    CommandCall("export-definitions", _exported, more=_add_target),
    CommandCall(
        "import-definitions",
        _imported,
        without=("document",),
        more=_add_source,
        prepare=_with_document,
        description="Declare what a file says. Exchanges, queues, bindings and policies that are refused are "
        "left out and named; nothing is declared if anything else is. --vhost is for a file that names none.",
    ),
)
