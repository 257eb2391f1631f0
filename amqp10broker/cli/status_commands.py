"""Commands for whoever runs a broker: status, flow settings, a health check."""

from __future__ import annotations

import argparse
from typing import Final

from amqp10broker.cli.commands import Command, Parser, add_where, ask, place_of, seconds
from amqp10broker.cli.connecting import add_address, login_of
from amqp10broker.cli.exits import EXIT_OK
from amqp10broker.config.records import FLOW_SETTINGS

WATCH_SECONDS: Final = 1.0
WATCH_SECONDS_MIN: Final = 0.1
WATCH_SECONDS_MAX: Final = 3_600.0
LONGER_SECONDS_MAX: Final = 31_536_000.0

PING_SECONDS: Final = 5.0
PING_SECONDS_MIN: Final = 0.01
PING_SECONDS_MAX: Final = 3_600.0


# --- status ---------------------------------------------------------------------------------------


def _status_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--watch",
        nargs="?",
        type=seconds(WATCH_SECONDS_MIN, WATCH_SECONDS_MAX),
        const=WATCH_SECONDS,
        metavar="SECONDS",
        help=f"show again every so many seconds (default {WATCH_SECONDS:g}) until ctrl-C",
    )
    parser.add_argument("--format", choices=("table", "json"), default="table", help="default: table")
    chosen = parser.add_argument_group("what of it")
    chosen.add_argument("--connection", type=int, metavar="ID", help="one connection, by its number")
    chosen.add_argument("--user", metavar="NAME", help="connections of a user")
    chosen.add_argument("--queue", metavar="NAME", help="links and consumers of a queue; * and ? mean any")
    chosen.add_argument("--link", metavar="NAME", help="links and consumer tags of that name; likewise")
    chosen.add_argument("--reason", metavar="CODE", help="what waits so: a code, or no-credit for all such")
    chosen.add_argument(
        "--longer", type=seconds(0, LONGER_SECONDS_MAX), metavar="SECONDS", help="what has waited so long"
    )
    chosen.add_argument(
        "--all", action="store_true", help="all connections; else the worst 20, and of JSON always all"
    )
    add_where(parser)


def _status(arguments: argparse.Namespace) -> int:
    from amqp10broker.cli import status

    chosen = {
        "connection": arguments.connection,
        "user": arguments.user,
        "queue": arguments.queue,
        "link": arguments.link,
        "reason": arguments.reason,
        "longer_s": arguments.longer,
    }
    return status.run(
        place_of(arguments),
        watch_s=arguments.watch,
        as_json=arguments.format == "json",
        choose={name: each for name, each in chosen.items() if each is not None},
        all_of_them=arguments.all,
    )


# --- set ------------------------------------------------------------------------------------------


def _set_arguments(parser: Parser) -> None:
    parser.add_argument("name", choices=tuple(FLOW_SETTINGS), metavar="NAME", help=", ".join(FLOW_SETTINGS))
    parser.add_argument("value", metavar="VALUE", help=FLOW_SETTINGS["max_link_credit"].allowed)
    add_where(parser)


def _set(arguments: argparse.Namespace) -> int:
    value = FLOW_SETTINGS[arguments.name].parse(arguments.value, f"set {arguments.name}")
    ask(arguments, "set", name=arguments.name, value=value)
    print(f"{arguments.name} is now {value}")
    return EXIT_OK


# --- ping -----------------------------------------------------------------------------------------


def _ping_arguments(parser: Parser) -> None:
    add_address(parser)
    parser.add_argument(
        "--password",
        help="default: guest. Others on this machine can see it in the process list",
    )
    parser.add_argument(
        "--timeout",
        type=seconds(PING_SECONDS_MIN, PING_SECONDS_MAX),
        default=PING_SECONDS,
        metavar="SECONDS",
        help=f"how long to wait for each answer (default {PING_SECONDS:g})",
    )
    parser.add_argument(
        "--queue",
        nargs="?",
        const="",
        metavar="NAME",
        help="also send a message and take it out again: through that queue, which must exist and should "
        "have no other consumers; without NAME through a temporary one",
    )


def _ping(arguments: argparse.Namespace) -> int:
    from amqp10broker.cli import ping

    return ping.run(ping.Ping(login_of(arguments), arguments.timeout, arguments.queue))


COMMANDS: Final = (
    Command(
        "status",
        _status_arguments,
        _status,
        "Show what waits in a running broker, the longest first, and its connections, sessions, links and "
        "queues. Codes of reasons are explained in docs/waiting.md.",
    ),
    Command(
        "set",
        _set_arguments,
        _set,
        "Change a flow control setting of a running broker. What it grants from then on follows "
        "the new value; overrides of the configuration file still apply.",
    ),
    Command(
        "ping",
        _ping_arguments,
        _ping,
        "Log in to a broker, open a connection and a session, and say how long it took. Exit "
        "code 1 and one sentence if that fails: made for health checks.",
    ),
)
