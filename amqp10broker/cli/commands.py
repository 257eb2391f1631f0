"""The type of a command, its help, and options and values that many commands share.

``--help`` has at most 100 columns, the default of every option, and an example at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import ConfigError, closest, hint

if TYPE_CHECKING:
    from amqp10broker.cli.admin import Place


WIDTH_MAX: Final = 100
PROGRAM: Final = "amqp10broker"


class Help(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(shutil.get_terminal_size().columns - 2, WIDTH_MAX))

    def _get_help_string(self, action: argparse.Action) -> str:
        # Python 3.11 and 3.12 add this text to options that can be turned off.
        help = (action.help or "").replace(" (default: %(default)s)", "")
        if not action.option_strings or action.required or "default" in help:
            return help
        if isinstance(action, argparse._HelpAction | argparse._VersionAction):
            return help
        if isinstance(action.default, bool):
            shown = "yes" if action.default else "no"
        else:
            shown = "none" if action.default in (None, "", []) else "%(default)s"
        return f"{help} (default: {shown})"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return "".join(indent + line for line in text.splitlines(keepends=True))
        return super()._fill_text(text, width, indent)

    def _format_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[argparse._MutuallyExclusiveGroup],
        prefix: str | None,
    ) -> str:
        actions = list(actions)
        text = super()._format_usage(usage, actions, groups, prefix)
        if max(map(len, text.splitlines())) <= self._width:
            return text
        program, self._prog = self._prog, f"{self._prog} [OPTION ...]"
        try:
            wanted = [each for each in actions if not each.option_strings or each.required]
            return super()._format_usage(usage, wanted, [], prefix)
        finally:
            self._prog = program


OWN: Final[Mapping[str, tuple[str, str, str]]] = {
    "serve": ("serving", "run the broker", "--data-dir data --log-format json"),
    "run-cluster": (
        "cluster_launch",
        "run a cluster of nodes on this machine",
        "--nodes 5 --first-port 6672",
    ),
    "status": (
        "status",
        "show connections and queues, and why links wait",
        "--queue 'orders*' --longer 60",
    ),
    "timeline": ("status", "print the frames of one link as JSON", "7 orders --for 30 > orders.json"),
    "ping": ("publishing", "log in as a client does, and print how long it took", "--queue --timeout 2"),
    "upgrade-check": ("frames", "print what another version of RabbitMQ refuses or changes", "--to 4.3"),
    "publish": (
        "publishing",
        "send messages to a queue or an exchange",
        "--queue orders --property message-id=7 'a message'",
    ),
    "get": ("publishing", "show messages of a queue, or take them out", "orders --count 10 --format json"),
    "connection list": ("listing", "list connections", "id user peer state"),
    "session list": ("listing", "list sessions of AMQP 1.0", ""),
    "link list": ("listing", "list links of AMQP 1.0", "connection name role credit waits"),
    "transaction list": ("listing", "list open transactions of AMQP 1.0", ""),
    "channel list": ("listing", "list channels of AMQP 0-9-1", ""),
    "consumer list": ("listing", "list consumers of both protocols", ""),
    "alarm memory-limit": ("operating", "change how much memory a running broker may use", "absolute 2GiB"),
    "alarm disk-limit": ("operating", "change how much disk a running broker leaves free", "5GB"),
    "user explain-token": ("tokens", "print what an OAuth 2 token permits", "--config broker.toml < token"),
    "frames trace": ("frames", "show the frames of a connection, user or address", "/queues/orders on"),
    "frames print": ("frames", "print a recording of frames", "frames.jsonl --connection 3"),
    "frames lint": ("frames", "find habits of clients that cause problems", "3 --for 30"),
    "frames replay": (
        "replaying",
        "replay recorded clients, and print what differs",
        "frames.jsonl --url amqp://guest:guest@localhost --fast",
    ),
    "frames what-if": (
        "replaying",
        "forecast recorded clients with other credit, windows or round trips",
        "frames.jsonl --max-link-credit 1000 --round-trip-ms 20",
    ),
    "record analyse": (
        "analyse",
        "recommend credit and windows from a recording",
        "recording --aim latency --rate 1000",
    ),
    "cluster new-secret": ("cluster_launch", "generate the secret of a cluster", "secret"),
    "cluster force-standalone": ("cluster_launch", "continue with one node when the others are lost", "data"),
    "storage check": ("storage", "check the files of a data folder for damage", "data"),
    "storage accept": ("storage", "accept that files of a data folder are lost", "data"),
    "completion": (
        "completion",
        "print a shell's completion script",
        'eval "$(amqp10broker completion bash)"',
    ),
}
"""The file of each command that does not belong to an operation, its line in the help, and its example."""


@cache
def homes() -> Mapping[str, tuple[str, str, str]]:
    # This import takes longer than all other work of a command.
    from amqp10broker.operations.registry import OPERATIONS

    found = {}
    for each in OPERATIONS.values():
        if each.command is not None:
            home = "listing" if each.name.startswith("list-") else "operating"
            found[each.command.words] = home, each.line, each.command.example
    return {**found, **OWN}


def example(prog: str) -> str:
    words = prog.removeprefix(PROGRAM).strip()
    # A group has the example of its first command.
    commands = OWN if words in ("", *OWN) else homes()
    begins = f"{words} ".lstrip()
    name, (_, _, given) = next(each for each in commands.items() if f"{each[0]} ".startswith(begins))
    return f"example:\n  $ {given if PROGRAM in given else f'{PROGRAM} {name} {given}'.rstrip()}"


class Parser(argparse.ArgumentParser):
    """Suggests a similar word for an unknown one, and ends its help with an example."""

    def __init__(self, **given: Any) -> None:
        super().__init__(formatter_class=Help, **given)

    def format_help(self) -> str:
        return f"{super().format_help()}\n{example(self.prog)}\n"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(each) for each in action.choices]
        raise argparse.ArgumentError(action, f"{str(value)!r} is unknown; {hint(str(value), known)}")

    def check_options(self, written: Sequence[str]) -> None:
        """Exit with an error for an option that neither this parser nor a subparser has.

        It runs before parsing, in which its value might be taken for another argument.
        """
        known = self._all_options()
        for word in written:
            if word == "--":
                return  # everything after it is text
            option = word.partition("=")[0]
            if word.startswith("--") and " " not in word and option not in known:
                meant = closest(option, known)
                self.error(f"there is no option {option}" + (f"; did you mean {meant}?" if meant else ""))

    def _all_options(self) -> set[str]:
        options = set(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for below in action.choices.values():
                    options |= below._all_options()
        return options


STANDARD: Final = "-"


@dataclass(frozen=True, slots=True)
class Command:
    """One command of `amqp10broker`.

    Attributes:
        words: its name, with that of its group: ``queue list``.
        description: of its own help; empty: its line in the list of commands, as a sentence.
    """

    words: str
    arguments: Callable[[Parser], None]
    run: Callable[[argparse.Namespace], int]
    description: str = ""

    def add_to(self, commands: argparse._SubParsersAction[Parser], help: str) -> None:
        """Add it to the choices. `help`: its line in the list of commands."""
        parser = commands.add_parser(
            self.words.rpartition(" ")[2],
            help=help,
            description=self.description or f"{help[0].upper()}{help[1:]}.",
            allow_abbrev=False,
        )
        self.arguments(parser)
        parser.set_defaults(do=self.run)


# --- options --------------------------------------------------------------------------------------


def add_where(parser: Parser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--port", help="port on which the broker listens (default: 5672)")
    where.add_argument(
        "--admin-socket",
        metavar="PATH",
        help="the broker's administration socket, if it was started with that option (default: the one of "
        "its port)",
    )


def add_format(parser: Parser, *, plain: str = "text") -> None:
    parser.add_argument("--format", choices=(plain, "json"), default=plain, help=f"default: {plain}")


def add_vhost(parser: Parser) -> None:
    """Add the option of the virtual host; `-p` is RabbitMQ's name of it."""
    parser.add_argument(
        "-p", "--vhost", metavar="NAME", help="virtual host (default: the broker's default, /)"
    )


def add_arguments_option(parser: Parser) -> None:
    """Add the option of a declaration's x-arguments."""
    parser.add_argument(
        "--argument",
        dest="arguments",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help='an argument, repeatable; VALUE is JSON (10, true, "10"), otherwise text',
    )


def ask(arguments: argparse.Namespace, operation: str, /, **given: Any) -> Any:
    from amqp10broker.cli import admin  # sockets: not needed for --help

    request: dict[str, Any] = {"op": operation, "arguments": given}
    if getattr(arguments, "vhost", None) is not None:
        request["vhost"] = arguments.vhost
    return admin.ask(place_of(arguments), request)


def place_of(arguments: argparse.Namespace) -> Place:
    from amqp10broker.cli import admin

    return admin.place_of(arguments.port, arguments.admin_socket, os.environ)


# --- values ---------------------------------------------------------------------------------------


def pairs(option: str, written: Iterable[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for each in written:
        key, equals, value = each.partition("=")
        if not key or not equals:
            raise ConfigError(option, f"is {each!r}", "must be KEY=VALUE")
        if key in values:
            raise ConfigError(option, f"gives {key!r} twice", "give each name once")
        values[key] = typed(value)
    return values


def typed(value: str) -> Any:
    """Parse JSON; text that is not JSON stays text."""
    try:
        return json.loads(value, parse_constant=_refuse)
    except ValueError:
        return value


def _refuse(constant: str) -> None:
    raise ValueError(constant)  # NaN and Infinity are not JSON, but Python reads them


def seconds(smallest: float, largest: float) -> Callable[[str], float]:
    def read(written: str) -> float:
        try:
            number = float(written)
        except ValueError:
            number = -1.0
        if not smallest <= number <= largest:
            raise argparse.ArgumentTypeError(f"{written!r} must be {smallest:g} to {largest:g} seconds")
        return number

    return read


def read_file(name: str) -> bytes:
    try:
        if name == STANDARD:
            return sys.stdin.buffer.read()
        with open(name, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"file {name}", f"cannot be read: {error.strerror}", "give another") from error
