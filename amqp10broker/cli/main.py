"""The `amqp10broker` command: reads the command line and hands over to one command.

Starting costs every user time, so this module imports neither Trio nor structlog; each command
imports what it needs when it is chosen. Exit codes: 0 in order, 1 failed while running, 2 used or
configured wrongly, 130 interrupted by ctrl-C before it had begun.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final

import amqp10broker
from amqp10broker.config.records import FLOW_SETTINGS, SETTINGS, Config
from amqp10broker.config.settings import Setting
from amqp10broker.errors import BrokerError, ConfigError

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130

WATCH_SECONDS: Final = 1.0
WATCH_SECONDS_MIN: Final = 0.1
WATCH_SECONDS_MAX: Final = 3_600.0

PING_SECONDS: Final = 5.0
PING_SECONDS_MIN: Final = 0.01
PING_SECONDS_MAX: Final = 3_600.0

_FIRST: Final = ("host", "port", "log_level", "log_format", "trace_frames", "admin_socket", "container_id")
_TESTING: Final = ("test_mode",)
# The two settings whose default reads badly: an empty or missing value that stands for something.
_DEFAULTS_IN_WORDS: Final = {
    "container_id": "amqp10broker@HOSTNAME",
    "admin_socket": "PORT.sock in a private directory",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code.

    Args:
        argv: the arguments without the program's name; None takes the process's.
    """
    arguments = build_parser().parse_args(argv)
    try:
        return _COMMANDS[arguments.command](arguments)
    except ConfigError as error:
        _complain(error)
        return EXIT_USAGE
    except BrokerError as error:
        _complain(error)
        return EXIT_FAILED
    except BrokenPipeError:
        # The reader of a pipe (head, less) has had enough; without this, flushing at exit complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def build_parser() -> argparse.ArgumentParser:
    """The whole command line. Settings become options of `serve` from the table of settings."""
    parser = argparse.ArgumentParser(
        prog="amqp10broker",
        description="An AMQP 1.0 message broker with flow control that you can see and tune.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"amqp10broker {amqp10broker.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_serve(commands)
    _add_status(commands)
    _add_set(commands)
    _add_alarm(commands)
    _add_ping(commands)
    return parser


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "serve",
        help="run the broker",
        description="Run the broker until SIGTERM or ctrl-C. An option overrides its environment variable "
        "(AMQP10BROKER_PORT for --port), which overrides the configuration file.",
        allow_abbrev=False,
    )
    defaults = Config()
    parser.add_argument(
        "--config", metavar="FILE", help="configuration in TOML; its keys are named like the options, with _"
    )
    parser.add_argument(
        "--user",
        action="append",
        metavar="NAME:PASSWORD",
        help="who may log in, repeatable; replaces all other users. Others on this machine can see it in "
        "the process list: prefer [[user]] in the configuration file (default: guest:guest, only from here)",
    )
    for name in _FIRST:
        _add_setting(parser, SETTINGS[name], getattr(defaults, name))
    flow = parser.add_argument_group("flow control")
    for name, setting in FLOW_SETTINGS.items():
        _add_setting(flow, setting, getattr(defaults.flow, name))
    limits = parser.add_argument_group("limits and behaviour")
    for name, setting in SETTINGS.items():
        if name not in (*_FIRST, *_TESTING, *FLOW_SETTINGS):
            _add_setting(limits, setting, getattr(defaults, name))
    testing = parser.add_argument_group("for tests only")
    for name in _TESTING:
        _add_setting(testing, SETTINGS[name], getattr(defaults, name))
    testing.add_argument(
        "--confirm-delay",
        action="append",
        metavar="QUEUE=MS",
        help="confirm what is published to queues of that name or pattern so much later, repeatable; "
        "needs --test-mode",
    )


def _add_status(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "status",
        help="show connections, sessions, links and queues of a running broker, and why a link waits",
        description="Show a running broker's connections, sessions, links and queues.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--watch",
        nargs="?",
        type=_watch_seconds,
        const=WATCH_SECONDS,
        metavar="SECONDS",
        help=f"show again every so many seconds (default {WATCH_SECONDS:g}) until ctrl-C",
    )
    parser.add_argument("--format", choices=("table", "json"), default="table", help="default: table")
    _add_where(parser)


def _add_set(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "set",
        help="change a flow control setting of a running broker",
        description="Change a flow control setting of a running broker. What it grants from then on follows "
        "the new value; overrides of the configuration file still apply.",
        allow_abbrev=False,
    )
    parser.add_argument("name", choices=tuple(FLOW_SETTINGS), metavar="NAME", help=", ".join(FLOW_SETTINGS))
    parser.add_argument("value", metavar="VALUE", help=FLOW_SETTINGS["max_link_credit"].allowed)
    _add_where(parser)


def _add_alarm(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "alarm",
        help="raise or clear an alarm of a running broker by hand",
        description="Raise or clear a resource alarm by hand. While one is on, publishers' windows are shut.",
        allow_abbrev=False,
    )
    parser.add_argument("name", choices=("memory", "disk"))
    parser.add_argument("state", choices=("on", "off"))
    _add_where(parser)


def _add_ping(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "ping",
        help="log in to a broker as a client does, and say how long it took to answer",
        description="Log in to a broker, open a connection and a session, and say how long it took. Exit "
        "code 1 and one sentence if that fails: made for health checks.",
        allow_abbrev=False,
    )
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
        type=_ping_seconds,
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


def _add_where(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--port", help="the port on which the broker listens (default 5672)")
    where.add_argument(
        "--admin-socket", metavar="PATH", help="the broker's socket, if started with that option"
    )


def _add_setting(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup, setting: Setting, default: object
) -> None:
    """One option. The text is parsed with the other sources, so that its errors read like theirs."""
    if setting.kind is bool:
        parser.add_argument(
            setting.flag,
            action=argparse.BooleanOptionalAction,
            default=None,
            dest=setting.name,
            help=f"{setting.help} (default: {'on' if default else 'off'})".replace("%", "%%"),
        )
        return
    shown = _DEFAULTS_IN_WORDS.get(setting.name, default)
    notes = [f"default: {shown}"]
    if setting.choices:
        notes.insert(0, ", ".join(setting.choices))
    if setting.zero_means:
        notes.insert(0, f"0: {setting.zero_means}")
    parser.add_argument(
        setting.flag,
        dest=setting.name,
        metavar="N" if setting.kind is int else "TEXT",
        help=f"{setting.help} ({'; '.join(notes)})".replace("%", "%%"),
    )


def _watch_seconds(written: str) -> float:
    return _seconds(written, WATCH_SECONDS_MIN, WATCH_SECONDS_MAX)


def _ping_seconds(written: str) -> float:
    return _seconds(written, PING_SECONDS_MIN, PING_SECONDS_MAX)


def _seconds(written: str, smallest: float, largest: float) -> float:
    try:
        seconds = float(written)
    except ValueError:
        seconds = -1.0
    if not smallest <= seconds <= largest:
        raise argparse.ArgumentTypeError(f"{written!r} must be {smallest:g} to {largest:g} seconds")
    return seconds


def config_of(arguments: argparse.Namespace) -> Config:
    """The configuration that `serve` runs with, from the parsed options and the process's environment.

    Raises:
        ConfigError: some source has an unknown name or a bad value.
    """
    flags = {name: getattr(arguments, name) for name in (*SETTINGS, "user", "confirm_delay")}
    return Config.load(file=arguments.config, environ=os.environ, flags=flags)


def _serve(arguments: argparse.Namespace) -> int:
    config = config_of(arguments)
    from amqp10broker.cli import serve

    return serve.run(config)


def _status(arguments: argparse.Namespace) -> int:
    from amqp10broker.cli import admin, status

    where = admin.place_of(arguments.port, arguments.admin_socket, os.environ)
    return status.run(where, watch_s=arguments.watch, as_json=arguments.format == "json")


def _set(arguments: argparse.Namespace) -> int:
    from amqp10broker.cli import admin

    value = FLOW_SETTINGS[arguments.name].parse(arguments.value, f"set {arguments.name}")
    where = admin.place_of(arguments.port, arguments.admin_socket, os.environ)
    admin.ask(where, {"op": "set", "name": arguments.name, "value": value})
    print(f"{arguments.name} is now {value}")
    return EXIT_OK


def _alarm(arguments: argparse.Namespace) -> int:
    from amqp10broker.cli import admin

    where = admin.place_of(arguments.port, arguments.admin_socket, os.environ)
    admin.ask(where, {"op": "alarm", "name": arguments.name, "on": arguments.state == "on"})
    print(f"the {arguments.name} alarm is {arguments.state}")
    return EXIT_OK


def _ping(arguments: argparse.Namespace) -> int:
    from amqp10broker.cli import admin, ping

    # The port is chosen as `status` chooses it; it is no matter where the administration socket is.
    port = admin.place_of(arguments.port, None, os.environ).port
    asked = ping.Ping(
        arguments.host, port, arguments.user, arguments.password, arguments.timeout, arguments.queue
    )
    return ping.run(asked)


_COMMANDS: Final = {"serve": _serve, "status": _status, "set": _set, "alarm": _alarm, "ping": _ping}


def _complain(error: Exception) -> None:
    print(f"amqp10broker: {error}", file=sys.stderr)
