"""The `amqp10broker` command: reads the command line and hands over to one command.

Starting costs every user time, so this module imports neither Trio nor structlog, and only the file of
the command that was typed; that imports what it needs when it runs. Exit codes are in `exits`: 0 in
order, 1 refused or failed, 2 used or configured wrongly, 3 no broker there (but `ping` fails with 1, as
health checks expect), 130 interrupted by ctrl-C.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import amqp10broker
from amqp10broker.cli.commands import Command, Parser
from amqp10broker.cli.exits import EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, exit_code
from amqp10broker.errors import BrokerError, ConfigError, closest

_EPILOG: Final = (
    "Exit codes: 0 in order; 1 refused or failed; 2 used or configured wrongly; 3 no broker answers "
    "(ping: 1); 130 interrupted."
)

# Which file has which commands, and what they do, in the order of the help: for that, no file is imported.
HOMES: Final[Mapping[str, Mapping[str, str]]] = {
    "serving": {
        "serve": "run the broker",
    },
    "status_commands": {
        "status": "show connections, sessions, links and queues of a running broker, and why a link waits",
        "set": "change a flow control setting of a running broker",
        "close-connection": "close a client's connection",
        "ping": "log in to a broker as a client does, and say how long it took to answer",
    },
    "alarms": {
        "alarm": "raise or clear an alarm of a running broker by hand",
        "set-vm-memory-high-watermark": "change how much memory a running broker may use",
        "set-disk-free-limit": "change how much disk a running broker leaves free",
    },
    "tracing": {
        "trace": "show the frames of a connection, user or address while the broker runs",
    },
    "recording": {
        "record": "record flow events of a running broker, for analyse",
    },
    "listing": {
        "list-queues": "list queues of a virtual host",
        "list-exchanges": "list exchanges of a virtual host",
        "list-bindings": "list bindings of a virtual host",
        "list-policies": "list policies of a virtual host",
        "list-operator-policies": "list operator policies of a virtual host",
        "list-vhosts": "list virtual hosts",
        "list-users": "list users",
        "list-permissions": "list who may do what in a virtual host",
        "list-topic-permissions": "list whose routing keys are restricted in a virtual host",
        "list-connections": "list connections",
        "list-sessions": "list sessions of AMQP 1.0",
        "list-links": "list links of AMQP 1.0",
        "list-channels": "list channels of AMQP 0-9-1",
        "list-consumers": "list consumers of both protocols",
    },
    "declaring": {
        "declare": "make a queue or an exchange",
        "delete": "delete a queue, an exchange, a virtual host or a user",
        "purge": "drop the ready messages of a queue",
        "bind": "bind a queue or an exchange to an exchange",
        "unbind": "undo a bind",
    },
    "publishing": {
        "publish": "send messages to a queue or an exchange",
    },
    "getting": {
        "get": "show messages of a queue, or take them out",
    },
    "users": {
        "add-user": "add a user",
        "change-password": "give a user another password",
        "delete-user": "delete a user and its permissions, and close its connections",
        "set-tags": "give a user other tags",
        "set-user-limits": "limit connections and channels of a user",
    },
    "permissions": {
        "set-permissions": "say what a user may do in a virtual host",
        "clear-permissions": "let a user enter a virtual host no more",
        "set-topic-permissions": "restrict a user's routing keys at a topic exchange",
        "clear-topic-permissions": "lift the restriction of a user's routing keys",
    },
    "vhosts": {
        "add-vhost": "add a virtual host",
        "delete-vhost": "delete a virtual host with all that is in it, and close its connections",
        "set-vhost-limits": "limit connections and queues of a virtual host",
    },
    "policies": {
        "set-policy": "set a policy: settings for all queues or exchanges whose name matches",
        "clear-policy": "forget a policy",
        "set-operator-policy": "set an operator policy: bounds of what policies and arguments set",
        "clear-operator-policy": "forget an operator policy",
    },
    "definitions": {
        "export-definitions": "write everything that is declared to a file",
        "import-definitions": "declare what a file says",
    },
    "storage": {
        "storage": "read all files of a data folder without a broker, and say whether they are whole",
    },
    "analyse": {
        "analyse": "say from a recording which credits and windows to set",
    },
    "completion": {
        "completion": "print a script that completes commands in a shell",
    },
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code.

    Args:
        argv: the arguments without the program's name; None takes the process's.
    """
    written = list(sys.argv[1:] if argv is None else argv)
    # No option of the program itself has a value, so this is the command, if there is one.
    place = next((place for place, each in enumerate(written) if not each.startswith("-")), None)
    typed = None
    if place is not None:
        typed = written[place]
        dashed = typed.replace("_", "-")
        if any(dashed in names for names in HOMES.values()):
            # As RabbitMQ's tools spell it: set_policy.
            typed = written[place] = dashed
        elif (meant := closest(dashed, [name for names in HOMES.values() for name in names])) is not None:
            _complain(f"there is no command '{dashed}'; did you mean {meant}?")
            return EXIT_USAGE
        else:
            _complain(f"there is no command '{dashed}'; 'amqp10broker --help' lists them")
            return EXIT_USAGE
    parser = build_parser(typed, whole=False)
    parser.check_options(written)
    arguments = parser.parse_args(written)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names come from clients; what the terminal's encoding does not have is shown as an escape.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except ConfigError as error:
        _complain(error)
        return EXIT_USAGE
    except BrokerError as error:
        _complain(error)
        return exit_code(error)
    except ValueError as error:
        # Python makes surrogates of bytes of the command line that are no text, and no frame can carry them.
        if all(each.isascii() or each.encode(errors="ignore").decode() == each for each in written):
            raise
        _complain(f"an argument has bytes in it that are no UTF-8; write it in UTF-8 ({error})")
        return EXIT_USAGE
    except BrokenPipeError:
        # The reader of a pipe (head, less) has had enough; without this, flushing at exit complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def build_parser(typed: str | None = None, *, whole: bool = True) -> Parser:
    """The command line.

    Args:
        typed: the command that was typed; the others are left out then, unless there is none such.
        whole: with the arguments of all commands; without, they are only listed.
    """
    parser = Parser(
        prog="amqp10broker",
        description="A message broker for AMQP 1.0 and 0-9-1 with flow control that you can see and tune.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"amqp10broker {amqp10broker.__version__}")
    choices = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    known = any(typed in names for names in HOMES.values())
    for home, names in HOMES.items():
        for name, help in names.items():
            if known and name != typed:
                continue
            if known or whole:
                command_of(home, name).add_to(choices, help)
            else:
                choices.add_parser(name, help=help, add_help=False)
    return parser


def command_of(home: str, name: str) -> Command:
    """A command, from its file."""
    commands: Sequence[Command] = importlib.import_module(f"amqp10broker.cli.{home}").COMMANDS
    return next(command for command in commands if command.name == name)


def _complain(error: Exception | str) -> None:
    # One line, whatever the broker or a client has put into it.
    print(f"amqp10broker: {' '.join(str(error).splitlines())}", file=sys.stderr)
