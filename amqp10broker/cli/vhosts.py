"""Commands on virtual hosts, and limits as users have them, too."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any, Final

from amqp10broker.cli.commands import Command, Parser, add_vhost, add_where, ask, counted
from amqp10broker.cli.exits import EXIT_OK
from amqp10broker.errors import ConfigError

_LIMITS: Final = {
    "max-connections": "connections that may be open to it",
    "max-queues": "queues that it may have",
}


def _add_arguments(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--description", default="", metavar="TEXT", help="for people")
    parser.add_argument("--tag", dest="tags", action="append", default=[], help="for people, repeatable")
    parser.add_argument(
        "--default-queue-type",
        choices=("classic", "quorum", "stream"),
        help="of queues that are declared without a type",
    )
    add_where(parser)


def _add(arguments: argparse.Namespace) -> int:
    ask(
        arguments,
        "add-vhost",
        name=arguments.name,
        description=arguments.description,
        tags=arguments.tags,
        default_queue_type=arguments.default_queue_type,
    )
    print(
        f"vhost '{arguments.name}' added; nobody may enter it yet, see 'amqp10broker set-permissions --help'"
    )
    return EXIT_OK


def _delete_arguments(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME")
    add_where(parser)


def delete(arguments: argparse.Namespace) -> int:
    """Delete a virtual host; its connections are closed."""
    gone = ask(arguments, "delete-vhost", name=arguments.name)
    print(f"vhost '{arguments.name}' deleted with {counted(gone['queues'], 'queue')}")
    return EXIT_OK


def _set_limits_arguments(parser: Parser) -> None:
    add_vhost(parser)
    add_limits(parser, _LIMITS)
    add_where(parser)


def _set_limits(arguments: argparse.Namespace) -> int:
    given = given_limits(arguments, _LIMITS)
    limits = ask(arguments, "set-vhost-limits", vhost=arguments.vhost, limits=given)
    whose = "the default vhost" if arguments.vhost is None else f"vhost '{arguments.vhost}'"
    print(f"limits of {whose}: {limits_text(limits)}")
    return EXIT_OK


# --- limits ---------------------------------------------------------------------------------------


def add_limits(parser: Parser, limits: Mapping[str, str]) -> None:
    """One option a limit."""
    for name, what in limits.items():
        parser.add_argument(f"--{name}", type=int, metavar="N", help=f"{what}; -1: no limit")


def given_limits(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, int]:
    """The limits that were given.

    Raises:
        ConfigError: none was.
    """
    values: dict[str, Any] = {name: getattr(arguments, name.replace("-", "_")) for name in names}
    given = {name: value for name, value in values.items() if value is not None}
    if not given:
        raise ConfigError("the limit", "is missing", f"give {' or '.join(f'--{name}' for name in values)}")
    return given


def limits_text(limits: Mapping[str, int]) -> str:
    """All limits for people."""
    return ", ".join(f"{name} {value}" for name, value in limits.items()) or "none"


COMMANDS: Final = (
    Command("add-vhost", _add_arguments, _add),
    Command(
        "delete-vhost",
        _delete_arguments,
        delete,
    ),
    Command(
        "set-vhost-limits",
        _set_limits_arguments,
        _set_limits,
    ),
)
