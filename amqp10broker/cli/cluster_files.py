"""``amqp10broker cluster new-secret`` and ``force-standalone``: files of a node, without a broker."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Callable
from typing import Final

from amqp10broker.cli.commands import Command, Parser
from amqp10broker.cli.exits import EXIT_FAILED, EXIT_OK, Failed
from amqp10broker.errors import ConfigError
from amqp10broker.storage.disk import Disk
from amqp10broker.storage.folder import inspect_data_folder


def make_secret(path: str) -> None:
    """Write a random secret to a new file, readable for its owner only."""
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


def _secret_arguments(parser: Parser) -> None:
    parser.add_argument("path", metavar="FILE", help="a new file, for --cluster-secret-file of every node")


def _standalone_arguments(parser: Parser) -> None:
    parser.add_argument("path", metavar="DIR", help="the data folder of the stopped node")
    parser.add_argument("--yes", action="store_true", help="do not ask (default: ask)")


def force_standalone(path: str, confirmed: Callable[[str], bool]) -> str | None:
    """Make a cluster of one of a stopped node's data, when its other nodes are lost for good. Returns the
    result, for people; None: it was not confirmed. Raises `StorageError` if the folder is in use, is not a
    data folder, or cannot be read or written, and `NotInACluster` if its node is not in a cluster.
    """
    # They need the broker, which the command line does without.
    from amqp10broker.runtime.journal.data import Data
    from amqp10broker.runtime.journal.standalone import standalone

    disk, path = Disk(), os.path.abspath(path)
    inspect_data_folder(disk, path).close()  # does not create a missing folder
    data = Data(disk, path)
    try:
        found = standalone(data, lambda: secrets.token_hex(16))
        me = found.membership.name
        lines = [
            f"node '{me}' becomes a cluster of one; lost for good: {', '.join(found.lost) or 'none'}",
            "what was confirmed and only the lost nodes had is gone",
            *(
                f"gone: queue '{name}' in vhost '{vhost}', which was not at this node"
                for vhost, name in found.gone
            ),
        ]
        if not confirmed("\n".join(lines)):
            return None
        found.carry_out(data)
    finally:
        data.close()
    return (
        f"node '{me}' is a cluster of one, with {found.kept} queues: start it; a lost node that comes back "
        "must begin with an empty folder to join it"
    )


def _ask(told: str) -> bool:
    print(told, file=sys.stderr)
    if not sys.stdin.isatty():
        raise Failed("nothing was changed: give --yes if this is what you want")
    print("go on? (yes/no) ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip() == "yes"


def _tell(told: str) -> bool:
    print(told, file=sys.stderr)
    return True


def _new_secret(arguments: argparse.Namespace) -> int:
    make_secret(arguments.path)
    print(f"copy {arguments.path} to every node, readable by its owner only, for --cluster-secret-file")
    return EXIT_OK


def _force_standalone(arguments: argparse.Namespace) -> int:
    done = force_standalone(arguments.path, _tell if arguments.yes else _ask)
    print(done or "nothing was changed")
    return EXIT_OK if done else EXIT_FAILED


COMMANDS: Final = (
    Command(
        "cluster new-secret",
        _secret_arguments,
        _new_secret,
        "Draw a secret that the nodes of a cluster share, and write it to a file that must not be there yet, "
        "readable by its owner only.",
    ),
    Command(
        "cluster force-standalone",
        _standalone_arguments,
        _force_standalone,
        "When most nodes of a cluster are lost for good, make a cluster of one of the data folder of a "
        "stopped node that is left: its metadata, and every quorum queue that has a member there. Other "
        "nodes can join it then. It says what is lost, and asks before it changes anything.",
    ),
)
