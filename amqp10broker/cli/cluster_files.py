"""``amqp10broker cluster``: files that a node of a cluster needs, without a broker."""

from __future__ import annotations

import argparse
import os
import secrets
from typing import Final

from amqp10broker.cli.commands import Command, Parser
from amqp10broker.cli.exits import EXIT_OK
from amqp10broker.errors import ConfigError


def make_secret(path: str) -> None:
    """Draw a secret and write it to a new file, for its owner only.

    Raises:
        ConfigError: there is such a file, or it cannot be written.
    """
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise ConfigError(
            path,
            "is there already",
            "give another name; nodes that share a secret do not change it one by one",
        ) from error
    except OSError as error:
        raise ConfigError(
            path, f"cannot be written: {error.strerror}", "give a file in a folder of yours"
        ) from error
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(f"{secrets.token_urlsafe(32)}\n")
        file.flush()
        os.fsync(fd)


def _arguments(parser: Parser) -> None:
    parser.add_argument("action", choices=("new-secret",), help="new-secret: draw a secret into a new file")
    parser.add_argument("path", metavar="FILE", help="the file, for --cluster-secret-file of every node")


def _run(arguments: argparse.Namespace) -> int:
    make_secret(arguments.path)
    print(f"copy {arguments.path} to every node, readable by its owner only, for --cluster-secret-file")
    return EXIT_OK


COMMANDS: Final = (
    Command(
        "cluster",
        _arguments,
        _run,
        "new-secret: draw a secret that the nodes of a cluster share, and write it to a file that must not "
        "be there yet, readable by its owner only.",
    ),
)
