"""Commands on users: who may log in, with which password, tags and limits.

Passwords go to the broker as they are, over its private socket, and are hashed there: one place decides
how passwords are kept, hashing shares its limit of memory with logins, and this command starts quickly.
"""

from __future__ import annotations

import argparse
from typing import Final

from amqp10broker.cli.commands import Command, Parser, add_where, ask
from amqp10broker.cli.exits import EXIT_OK
from amqp10broker.cli.passwords import add_password_file, read_password
from amqp10broker.cli.vhosts import add_limits, given_limits, limits_text


def _name(parser: Parser) -> None:
    parser.add_argument("name", metavar="USER")


def _add_arguments(parser: Parser) -> None:
    _name(parser)
    parser.add_argument(
        "--tag",
        dest="tags",
        action="append",
        default=[],
        metavar="TAG",
        help="administrator, monitoring, impersonator or another, repeatable",
    )
    _password(parser)
    add_where(parser)


def _password(parser: Parser) -> None:
    password = parser.add_mutually_exclusive_group()
    add_password_file(password)
    password.add_argument("--no-password", action="store_true", help="nobody can log in with a password")


def _new_password(arguments: argparse.Namespace) -> str | None:
    if arguments.no_password:
        return None
    return read_password(arguments.password_file, arguments.name, confirm=True)


def _add(arguments: argparse.Namespace) -> int:
    ask(arguments, "add-user", user=arguments.name, password=_new_password(arguments), tags=arguments.tags)
    print(f"user '{arguments.name}' added; it may do nothing yet, see 'amqp10broker set-permissions --help'")
    return EXIT_OK


def _change_password_arguments(parser: Parser) -> None:
    _name(parser)
    _password(parser)
    add_where(parser)


def _change_password(arguments: argparse.Namespace) -> int:
    password = _new_password(arguments)
    ask(arguments, "change-password", user=arguments.name, password=password)
    print(
        f"user '{arguments.name}' has another password" if password else f"user '{arguments.name}' has none"
    )
    return EXIT_OK


def _delete_arguments(parser: Parser) -> None:
    _name(parser)
    add_where(parser)


def delete(arguments: argparse.Namespace) -> int:
    """Delete a user; its connections are closed."""
    ask(arguments, "delete-user", user=arguments.name)
    print(f"user '{arguments.name}' deleted")
    return EXIT_OK


def _set_tags_arguments(parser: Parser) -> None:
    _name(parser)
    parser.add_argument("tags", nargs="*", metavar="TAG", help="all that the user has from now on")
    add_where(parser)


def _set_tags(arguments: argparse.Namespace) -> int:
    ask(arguments, "set-tags", user=arguments.name, tags=arguments.tags)
    print(f"tags of user '{arguments.name}': {', '.join(arguments.tags) or 'none'}")
    return EXIT_OK


def _set_limits_arguments(parser: Parser) -> None:
    _name(parser)
    add_limits(
        parser,
        {
            "max-connections": "connections that the user may have open",
            "max-channels": "channels of AMQP 0-9-1 and sessions of AMQP 1.0 that the user may have open",
        },
    )
    add_where(parser)


def _set_limits(arguments: argparse.Namespace) -> int:
    given = given_limits(arguments, ("max-connections", "max-channels"))
    limits = ask(arguments, "set-user-limits", user=arguments.name, limits=given)
    print(f"limits of user '{arguments.name}': {limits_text(limits)}")
    return EXIT_OK


COMMANDS: Final = (
    Command(
        "add-user",
        _add_arguments,
        _add,
        "Add a user, who may do nothing yet. The password is not given on the command line, where others on "
        "this machine could see it.",
    ),
    Command("change-password", _change_password_arguments, _change_password),
    Command(
        "delete-user",
        _delete_arguments,
        delete,
    ),
    Command("set-tags", _set_tags_arguments, _set_tags),
    Command("set-user-limits", _set_limits_arguments, _set_limits),
)
