"""Commands for whoever runs a broker: status, flow settings, connections to close, a health check."""

from __future__ import annotations

import argparse
import os
from typing import Final

from amqp10broker.cli.commands import Command, Parser, add_where, place_of, request_to, seconds
from amqp10broker.cli.exits import EXIT_OK
from amqp10broker.config.records import FLOW_SETTINGS

WATCH_SECONDS: Final = 1.0
WATCH_SECONDS_MIN: Final = 0.1
WATCH_SECONDS_MAX: Final = 3_600.0

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
    add_where(parser)


def _status(arguments: argparse.Namespace) -> int:
    from amqp10broker.cli import status

    return status.run(place_of(arguments), watch_s=arguments.watch, as_json=arguments.format == "json")


# --- set ------------------------------------------------------------------------------------------


def _set_arguments(parser: Parser) -> None:
    parser.add_argument("name", choices=tuple(FLOW_SETTINGS), metavar="NAME", help=", ".join(FLOW_SETTINGS))
    parser.add_argument("value", metavar="VALUE", help=FLOW_SETTINGS["max_link_credit"].allowed)
    add_where(parser)


def _set(arguments: argparse.Namespace) -> int:
    value = FLOW_SETTINGS[arguments.name].parse(arguments.value, f"set {arguments.name}")
    request_to(arguments, {"op": "set", "name": arguments.name, "value": value})
    print(f"{arguments.name} is now {value}")
    return EXIT_OK


# --- close-connection -----------------------------------------------------------------------------


def _close_connection_arguments(parser: Parser) -> None:
    parser.add_argument("id", type=int, metavar="ID", help="its number, see list-connections")
    parser.add_argument("reason", nargs="?", default="", metavar="REASON", help="what the client is told")
    add_where(parser)


def _close_connection(arguments: argparse.Namespace) -> int:
    request_to(arguments, {"op": "close-connection", "id": arguments.id, "reason": arguments.reason})
    print(f"connection {arguments.id} closed")
    return EXIT_OK


# --- ping -----------------------------------------------------------------------------------------


def _ping_arguments(parser: Parser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1")
    parser.add_argument("--port", help="default: AMQP10BROKER_PORT, or 5672")
    parser.add_argument("--user", default="guest", help="default: guest; empty logs in as anonymous")
    parser.add_argument(
        "--password",
        default="guest",
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
    from amqp10broker.cli import admin, ping

    # The port is chosen as `status` chooses it; it is no matter where the administration socket is.
    port = admin.place_of(arguments.port, None, os.environ).port
    asked = ping.Ping(
        arguments.host, port, arguments.user, arguments.password, arguments.timeout, arguments.queue
    )
    return ping.run(asked)


COMMANDS: Final = (
    Command(
        "status",
        _status_arguments,
        _status,
        "Show a running broker's connections, sessions, links and queues.",
    ),
    Command(
        "set",
        _set_arguments,
        _set,
        "Change a flow control setting of a running broker. What it grants from then on follows "
        "the new value; overrides of the configuration file still apply.",
    ),
    Command(
        "close-connection",
        _close_connection_arguments,
        _close_connection,
    ),
    Command(
        "ping",
        _ping_arguments,
        _ping,
        "Log in to a broker, open a connection and a session, and say how long it took. Exit "
        "code 1 and one sentence if that fails: made for health checks.",
    ),
)
