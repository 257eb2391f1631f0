"""The `amqp10broker` command: parses the command line and runs one command.

Start-up time matters, so neither Trio nor structlog is imported here, and only the file of the command, which
imports its dependencies when it runs. Exit codes are in `exits`; but `ping` fails with 1, as health checks
expect.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import Any, Final

import amqp10broker
from amqp10broker.cli.commands import OWN, Command, Parser, homes
from amqp10broker.cli.exits import EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, EXIT_USAGE_OF_TOOL, exit_code
from amqp10broker.errors import BrokerError, ConfigError, closest

_EPILOG: Final = (
    "RabbitMQ's tools are commands too: 'amqp10broker rabbitmqctl list_queues', rabbitmq-diagnostics, "
    "rabbitmq-queues, rabbitmq-plugins, rabbitmqadmin. Exit codes: 0 success; 1 refused or failed; 2 wrong "
    "usage or configuration; 3 no broker answers (ping: 1); 130 interrupted. Commands of a cluster: 64 "
    "wrong usage, 67 not found, 69 a check failed, 70 refused, 75 try again."
)


HEADINGS: Final[Mapping[str, str]] = {
    "run": "serve run-cluster",
    "observe": "status waiting timeline doctor upgrade-check ping",
    "messages": "publish get",
    "declarations": "queue exchange binding policy vhost user permission",
    "clients": "connection session link transaction channel consumer",
    "limits": "set alarm",
    "frames and flow": "frames record",
    "cluster": "cluster member check",
    "other": "definitions storage completion",
}
"""Commands and groups in the help. The group ``fault``, for test mode, is only in that of `serve`."""
TOOLS: Final = (
    *("rabbitmqctl", "rabbitmq-diagnostics", "rabbitmq-queues", "rabbitmq-streams", "rabbitmq-upgrade"),
    *("rabbitmq-plugins", "rabbitmqadmin", "rabbitmq-server"),
)
"""RabbitMQ's tools: each is a command, and a name that the program may have."""


def _typed(written: Sequence[str]) -> tuple[str | None, Mapping[str, tuple[str, str, str]]]:
    # The words of the command, or of its group, and the commands that these begin; without any, all.
    words = [each for each in written if not each.startswith("-")]  # no option before it has a value
    begun = {" ".join(words[:1]), " ".join(words[:2])}
    commands = OWN if OWN.keys() & begun else homes()
    for typed in commands.keys() & begun:  # at most one, because a group is not a command
        return typed, {typed: commands[typed]}
    group = {name: each for name, each in commands.items() if words and name.startswith(f"{words[0]} ")}
    return (words[0] if words else None), group or commands


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code. `argv`: None: the process's."""
    given = list(sys.argv[1:] if argv is None else argv)
    program = PurePath(sys.argv[0]).name
    if argv is None and program in TOOLS:
        given = [program, *given]
    if given and given[0] in TOOLS:
        return _run(partial(_tool, given[0], given[1:]), given, EXIT_USAGE_OF_TOOL)
    written = given or ["serve"]
    typed, found = _typed(written)
    if typed is not None and not any(f"{name} ".startswith(f"{typed} ") for name in found):
        meant = _meant(typed)
        advice = "'amqp10broker --help' lists them" if meant is None else f"did you mean {meant}?"
        _complain(f"there is no command '{typed}'; {advice}")
        return EXIT_USAGE
    wrong = _wrong_usage(found)
    parser = build_parser(written, whole=False)
    try:
        parser.check_options(written)
        arguments = parser.parse_args(written)
    except SystemExit as ended:
        raise SystemExit(wrong if ended.code == EXIT_USAGE else ended.code) from None
    arguments.bare = not given
    return _run(partial(arguments.do, arguments), written, wrong)


def _wrong_usage(found: Mapping[str, tuple[str, str, str]]) -> int:
    # The commands of a cluster have the exit codes of RabbitMQ's tools.
    if OWN.keys() & found.keys():
        return EXIT_USAGE
    from amqp10broker.operations.registry import OPERATIONS

    commands = [each.command for each in OPERATIONS.values() if each.command is not None]
    of_tools = all(each.tool for each in commands if each.words in found)
    return EXIT_USAGE_OF_TOOL if of_tools else EXIT_USAGE


def _meant(typed: str) -> str | None:
    # RabbitMQ's tools, and the HTTP API, have operations by their names, the former with underscores.
    from amqp10broker.operations.registry import OPERATIONS

    spelt = typed.replace("_", "-")
    operation = OPERATIONS.get(spelt)
    if operation is not None and operation.command is not None:
        return operation.command.words
    return closest(spelt, list(dict.fromkeys(name.partition(" ")[0] for name in homes())))


def _tool(tool: str, given: Sequence[str]) -> int:
    from amqp10broker.cli.rabbitmq_tools import run_tool

    return run_tool(tool, given)


def _run(command: Callable[[], int], written: Sequence[str], wrong: int) -> int:
    """Run a command, and turn its errors into one line and an exit code; `wrong`: of wrong usage."""
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
        _complain(f"an argument is not UTF-8; write it in UTF-8 ({error})")
        return wrong
    except BrokenPipeError:
        # The reader of a pipe (head, less) has closed it; without this, flushing at exit complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def build_parser(written: Sequence[str] = (), *, whole: bool = True) -> Parser:
    """Build the parser.

    Args:
        written: the words; commands other than theirs, or their group's, are left out.
        whole: with the arguments of all commands, not only of the one that is written.
    """
    parser = Parser(
        prog="amqp10broker",
        description="A message broker for AMQP 1.0 and 0-9-1 with flow control that you can see and tune. "
        "Without a command it runs the broker, with everything in memory.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"amqp10broker {amqp10broker.__version__}")
    typed, found = _typed(written)
    rows = [f"  {f'{title}:':18}{names}" for title, names in HEADINGS.items()]
    choices = {"": _add_choices(parser, "\n".join(rows) if typed is None else None)}
    for words, (home, line, _) in found.items():
        group, _, word = words.rpartition(" ")
        if group not in choices:
            shown: dict[str, Any] = {"help": f"commands of the group {group}"} if whole else {}
            choices[group] = _add_choices(choices[""].add_parser(group, **shown), None)
        if whole or words == typed:
            command_of(home, words).add_to(choices[group], line)
        else:
            shown = {"help": line} if group else {}
            choices[group].add_parser(word, add_help=False, **shown)
    return parser


def _add_choices(parser: Parser, description: str | None) -> argparse._SubParsersAction[Parser]:
    return parser.add_subparsers(
        dest="command",
        metavar="COMMAND",
        required=True,
        title="commands",
        description=description,
        help=f"'{parser.prog} COMMAND --help' describes it",
    )


def command_of(home: str, words: str) -> Command:
    commands: Sequence[Command] = importlib.import_module(f"amqp10broker.cli.{home}").COMMANDS
    return next(command for command in commands if command.words == words)


def _complain(error: Exception | str) -> None:
    # It is one line, whatever text the broker or a client has sent.
    print(f"amqp10broker: {' '.join(str(error).splitlines())}", file=sys.stderr)
