"""Commands on permissions: what a user may do in a virtual host, and with which routing keys."""

from __future__ import annotations

import argparse
from typing import Final

from amqp10broker.cli.commands import Command, Parser, add_vhost, add_where, ask
from amqp10broker.cli.exits import EXIT_OK

_PATTERN: Final = "regular expression; '.*' allows everything, '' nothing"


def _where(parser: Parser) -> None:
    add_vhost(parser)
    add_where(parser)


def _set_arguments(parser: Parser) -> None:
    parser.add_argument("name", metavar="USER")
    parser.add_argument("configure", metavar="CONFIGURE", help=f"names to declare and delete: {_PATTERN}")
    parser.add_argument("write", metavar="WRITE", help="names to publish to and bind")
    parser.add_argument("read", metavar="READ", help="names to consume from and bind to")
    _where(parser)


def _set(arguments: argparse.Namespace) -> int:
    ask(
        arguments,
        "set-permissions",
        user=arguments.name,
        vhost=arguments.vhost,
        configure=arguments.configure,
        write=arguments.write,
        read=arguments.read,
    )
    print(f"permissions of user '{arguments.name}'{_in(arguments)} set")
    return EXIT_OK


def _clear_arguments(parser: Parser) -> None:
    parser.add_argument("name", metavar="USER")
    _where(parser)


def _clear(arguments: argparse.Namespace) -> int:
    ask(arguments, "clear-permissions", user=arguments.name, vhost=arguments.vhost)
    print(f"permissions of user '{arguments.name}'{_in(arguments)} cleared")
    return EXIT_OK


def _set_topic_arguments(parser: Parser) -> None:
    parser.add_argument("name", metavar="USER")
    parser.add_argument("exchange", metavar="EXCHANGE", help="a topic exchange; it need not be there yet")
    parser.add_argument("write", metavar="WRITE", help=f"routing keys to publish with: {_PATTERN}")
    parser.add_argument("read", metavar="READ", help="routing keys to bind with")
    _where(parser)


def _set_topic(arguments: argparse.Namespace) -> int:
    ask(
        arguments,
        "set-topic-permissions",
        user=arguments.name,
        vhost=arguments.vhost,
        exchange=arguments.exchange,
        write=arguments.write,
        read=arguments.read,
    )
    print(f"topic permissions of user '{arguments.name}' on '{arguments.exchange}'{_in(arguments)} set")
    return EXIT_OK


def _clear_topic_arguments(parser: Parser) -> None:
    parser.add_argument("name", metavar="USER")
    parser.add_argument("exchange", metavar="EXCHANGE", nargs="?", help="without it those on all exchanges")
    _where(parser)


def _clear_topic(arguments: argparse.Namespace) -> int:
    ask(
        arguments,
        "clear-topic-permissions",
        user=arguments.name,
        vhost=arguments.vhost,
        exchange=arguments.exchange,
    )
    on = "all exchanges" if arguments.exchange is None else f"'{arguments.exchange}'"
    print(f"topic permissions of user '{arguments.name}' on {on}{_in(arguments)} cleared")
    return EXIT_OK


def _in(arguments: argparse.Namespace) -> str:
    return "" if arguments.vhost is None else f" in vhost '{arguments.vhost}'"


COMMANDS: Final = (
    Command("set-permissions", _set_arguments, _set),
    Command("clear-permissions", _clear_arguments, _clear),
    Command(
        "set-topic-permissions",
        _set_topic_arguments,
        _set_topic,
    ),
    Command(
        "clear-topic-permissions",
        _clear_topic_arguments,
        _clear_topic,
    ),
)
