"""The `amqp10broker` command: parses the command line and runs one command.

Start-up time matters to every user, so this module imports neither Trio nor structlog, and only the file
of the command; that imports its dependencies when it runs. Exit codes are in `exits`: 0 in order, 1
refused or failed, 2 used or configured wrongly, 3 no broker there (but `ping` fails with 1, as health
checks expect), 130 interrupted by ctrl-C.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import PurePath
from textwrap import wrap
from typing import Final

import amqp10broker
from amqp10broker.cli.commands import Command, Parser
from amqp10broker.cli.exits import EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, EXIT_USAGE_OF_TOOL, exit_code
from amqp10broker.errors import BrokerError, ConfigError, closest

_EPILOG: Final = (
    "RabbitMQ's tools are commands too: 'amqp10broker rabbitmqctl list_queues', rabbitmq-diagnostics, "
    "rabbitmq-queues, rabbitmq-plugins, rabbitmqadmin. "
    "Exit codes: 0 in order; 1 refused or failed; 2 used or configured wrongly; 3 no broker answers "
    "(ping: 1); 130 interrupted. Commands of a cluster: 64 used wrongly, 67 no such thing, 69 a check fails, "
    "70 refused, 75 try again."
)


# The file of each command that is not an operation's, and its line in the help; an empty one is that of the
# operation.
_OWN: Final[Mapping[str, Mapping[str, str]]] = {
    "serving": {
        "serve": "run the broker",
    },
    "cluster_launch": {
        "run-cluster": "run a cluster of several nodes on this machine",
    },
    "status": {
        "status": "show connections, sessions, links and queues of a running broker, and why a link waits",
    },
    "looking": {
        "waiting": "",
        "timeline": "print what one link does, frame by frame, as JSON",
    },
    "doctor": {
        "doctor": "",
    },
    "upgrade": {
        "upgrade-check": "",
    },
    "ping": {
        "ping": "log in to a broker as a client does, and say how long it took to answer",
    },
    "tracing": {
        "trace": "show the frames of a connection, user or address while the broker runs",
    },
    "frames": {
        "frames": "print a recording of frames",
    },
    "replaying": {
        "replay": "play the clients of a recording of frames again, and say what came otherwise",
    },
    "forecasting": {
        "what-if": "say what another credit, window or round trip would have done to recorded clients",
    },
    "linting": {
        "lint": "look for habits of clients that hurt them or others",
    },
    "recording": {
        "record": "record flow events of a running broker, for analyse",
    },
    "listing": {
        "list-connections": "list connections",
        "list-sessions": "list sessions of AMQP 1.0",
        "list-links": "list links of AMQP 1.0",
        "list-transactions": "list transactions of AMQP 1.0 that are open",
        "list-channels": "list channels of AMQP 0-9-1",
        "list-consumers": "list consumers of both protocols",
    },
    "declaring": {
        "declare": "make a queue or an exchange",
        "delete": "delete a queue, an exchange, a virtual host or a user",
        "purge": "drop the ready messages of a queue",
    },
    "operating": {},
    "alarm_limits": {
        "set-vm-memory-high-watermark": "change how much memory a running broker may use",
        "set-disk-free-limit": "change how much disk a running broker leaves free",
    },
    "clustering": {},
    "publishing": {
        "publish": "send messages to a queue or an exchange",
    },
    "getting": {
        "get": "show messages of a queue, or take them out",
    },
    "definitions": {
        "export-definitions": "write everything that is declared to a file",
        "import-definitions": "declare what a file says",
    },
    "cluster_files": {
        "cluster": "make the secret of a cluster; make a cluster of one when the other nodes are lost",
    },
    "tokens": {
        "explain-token": "say what an OAuth 2 token allows, and why scopes of it allow nothing",
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


GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "run": ("serving", "cluster_launch"),
    "see what it does, and why something waits": (
        "status",
        "looking",
        "doctor",
        "upgrade",
        "ping",
        "listing",
    ),
    "messages": ("publishing", "getting"),
    "queues, exchanges, users, policies, limits": ("declaring", "operating", "alarm_limits", "definitions"),
    "frames and flow": ("tracing", "frames", "linting", "replaying", "forecasting", "recording", "analyse"),
    "cluster": ("clustering", "cluster_files"),
    "other": ("tokens", "storage", "completion"),
}
"""The files of commands, by the heading under which the help lists their commands."""
TOOLS: Final = (
    *("rabbitmqctl", "rabbitmq-diagnostics", "rabbitmq-queues", "rabbitmq-streams", "rabbitmq-upgrade"),
    *("rabbitmq-plugins", "rabbitmqadmin", "rabbitmq-server"),
)
"""RabbitMQ's command line tools: each is a command, and a name that the program may have."""


@cache
def homes() -> Mapping[str, Mapping[str, str]]:
    """Return the file of each command, and its line in the help, in the order of the help."""
    from amqp10broker.operations.registry import OPERATIONS  # takes longer than all that other commands do

    found = {
        home: {name: line or OPERATIONS[name].line for name, line in own.items()}
        for home, own in _OWN.items()
    }
    for each in reversed([each for each in OPERATIONS.values() if each.command is not None]):
        home = "clustering" if each.command is not None and each.command.tool else "operating"
        home = "listing" if each.name.startswith("list-") else home
        found[home] = {each.name: each.line, **found[home]}
    return found


def _homes_of(typed: str | None) -> Mapping[str, Mapping[str, str]]:
    # That of one command, if the registry is not needed to know it, else all.
    for home, own in _OWN.items():
        if typed is not None and own.get(typed):
            return {home: {typed: own[typed]}}
    return homes()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code. `argv`: the arguments without the program's name; None takes
    the process's.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    program = PurePath(sys.argv[0]).name
    if argv is None and program in TOOLS:
        given = [program, *given]
    if given and given[0] in TOOLS:
        return _run(partial(_tool, given[0], given[1:]), given, EXIT_USAGE_OF_TOOL)
    written = given or ["serve"]
    # No option of the program itself has a value, so this is the command, if there is one.
    place = next((place for place, each in enumerate(written) if not each.startswith("-")), None)
    typed = None if place is None else written[place]
    found = _homes_of(typed)
    if typed is not None:
        known = [name for names in found.values() for name in names]
        if typed not in known:
            # RabbitMQ's tools spell commands with underscores.
            meant = closest(typed.replace("_", "-"), known)
            advice = "'amqp10broker --help' lists them" if meant is None else f"did you mean {meant}?"
            _complain(f"there is no command '{typed}'; {advice}")
            return EXIT_USAGE
    wrong = EXIT_USAGE_OF_TOOL if typed in found.get("clustering", ()) else EXIT_USAGE
    parser = build_parser(typed, whole=False)
    try:
        parser.check_options(written)
        arguments = parser.parse_args(written)
    except SystemExit as ended:
        raise SystemExit(wrong if ended.code == EXIT_USAGE else ended.code) from None
    arguments.bare = not given
    return _run(partial(arguments.do, arguments), written, wrong)


def _tool(tool: str, given: Sequence[str]) -> int:
    from amqp10broker.cli.rabbitmq_tools import run_tool

    return run_tool(tool, given)


def _run(command: Callable[[], int], written: Sequence[str], wrong: int) -> int:
    """Run a command, and turn its errors into one line and an exit code. `wrong`: that of wrong usage."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names come from clients; characters outside the terminal's encoding are shown as escapes.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = command()
        sys.stdout.flush()
        return code
    except ConfigError as error:
        _complain(error)
        return wrong
    except BrokerError as error:
        _complain(error)
        return exit_code(error)
    except ValueError as error:
        # Python makes surrogates of command-line bytes that are not text, and no frame can carry them.
        if all(each.isascii() or each.encode(errors="ignore").decode() == each for each in written):
            raise
        _complain(f"an argument has bytes in it that are no UTF-8; write it in UTF-8 ({error})")
        return wrong
    except BrokenPipeError:
        # The reader of a pipe (head, less) has closed it; without this, flushing at exit complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def build_parser(typed: str | None = None, *, whole: bool = True) -> Parser:
    """Build the parser of the command line. `typed`: the command; the others are left out then, unless it is
    unknown.
    """
    parser = Parser(
        prog="amqp10broker",
        description="A message broker for AMQP 1.0 and 0-9-1 with flow control that you can see and tune. "
        "Without a command it serves, everything in memory.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"amqp10broker {amqp10broker.__version__}")
    found = _homes_of(typed)
    known = any(typed in names for names in found.values())
    choices = parser.add_subparsers(
        dest="command",
        metavar="COMMAND",
        required=True,
        title="commands",
        description=None if known else _in_groups(found),
        help="'amqp10broker COMMAND --help' describes it",
    )
    for home, names in found.items():
        for name, help in names.items():
            if known and name != typed:
                continue
            if known or whole:
                command_of(home, name).add_to(choices, help)
            else:
                choices.add_parser(name, add_help=False)
    return parser


def _in_groups(homes: Mapping[str, Mapping[str, str]]) -> str:
    lines = []
    for title, files in GROUPS.items():
        names = "  ".join(name for file in files for name in homes[file])
        rows = wrap(names, 74, break_on_hyphens=False)
        lines += [f"{title}:", *(f"  {row}" for row in rows)]
    return "\n".join(lines)


def command_of(home: str, name: str) -> Command:
    """Import a command from its file."""
    commands: Sequence[Command] = importlib.import_module(f"amqp10broker.cli.{home}").COMMANDS
    return next(command for command in commands if command.name == name)


def _complain(error: Exception | str) -> None:
    # One line, whatever the broker or a client has put into it.
    print(f"amqp10broker: {' '.join(str(error).splitlines())}", file=sys.stderr)
