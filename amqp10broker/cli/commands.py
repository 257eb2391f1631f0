"""The type of a command, the format of its help, and options and values that many commands share.

``--help`` has at most 100 columns, the default of every option, and an example at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import ConfigError, closest, hint

if TYPE_CHECKING:
    from amqp10broker.cli.admin import Place


WIDTH_MAX: Final = 100
PROGRAM: Final = "amqp10broker"


class Help(argparse.HelpFormatter):
    """Texts with line breaks stay as they are; others are filled."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(shutil.get_terminal_size().columns - 2, WIDTH_MAX))

    def _get_help_string(self, action: argparse.Action) -> str:
        # As Python 3.11 and 3.12 add it to options that can be turned off.
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


def example(prog: str) -> str:
    """Return the example at the end of a command's help."""
    words, examples = prog.removeprefix(PROGRAM).strip(), EXAMPLES
    if words not in examples:
        from amqp10broker.operations.registry import OPERATIONS

        commands = [each.command for each in OPERATIONS.values() if each.command is not None]
        examples = {**{each.words: each.example for each in commands}, **EXAMPLES}
    # A group has the example of its first command.
    name, given = next(each for each in examples.items() if f"{each[0]} ".startswith(f"{words} "))
    return f"example:\n  $ {given if PROGRAM in given else f'{PROGRAM} {name} {given}'.rstrip()}"


class Parser(argparse.ArgumentParser):
    """A parser that suggests a similar word for an unknown one, and ends its help with an example."""

    def __init__(self, **given: Any) -> None:
        super().__init__(formatter_class=Help, **given)

    def format_help(self) -> str:
        return f"{super().format_help()}\n{example(self.prog)}\n"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(each) for each in action.choices]
        raise argparse.ArgumentError(action, f"{str(value)!r} is none; {hint(str(value), known)}")

    def check_options(self, written: Sequence[str]) -> None:
        """Exit with an error for the first option that neither this parser nor a subparser has.

        It runs before parsing, in which the option's value might be taken for another argument.
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
"""Standard input or output in place of a file's name."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command of `amqp10broker`.

    Attributes:
        words: its name, or that of its group and its own: ``queue list``.
        description: for its own help; empty takes the line of the list of commands as a sentence.
    """

    words: str
    arguments: Callable[[Parser], None]
    run: Callable[[argparse.Namespace], int]
    description: str = ""

    def add_to(self, commands: argparse._SubParsersAction[Parser], help: str) -> None:
        """Add it to the choices; `help` is its line in the list of commands."""
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
    """Add the options of the broker's address."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--port", help="the port on which the broker listens (default 5672)")
    where.add_argument(
        "--admin-socket",
        metavar="PATH",
        help="the broker's socket, if started with that option (default: that of its port)",
    )


def add_format(parser: Parser, *, plain: str = "text") -> None:
    """Add the option of the result's format, for people (`plain`) or as JSON."""
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
        help='an argument, repeatable; VALUE is JSON if it can be read so (10, true, "10"), else text',
    )


def ask(arguments: argparse.Namespace, operation: str, /, **given: Any) -> Any:
    """Run an operation at the broker, in the virtual host that was chosen."""
    from amqp10broker.cli import admin  # sockets: not needed for --help

    request: dict[str, Any] = {"op": operation, "arguments": given}
    if getattr(arguments, "vhost", None) is not None:
        request["vhost"] = arguments.vhost
    return admin.ask(place_of(arguments), request)


def place_of(arguments: argparse.Namespace) -> Place:
    """Return the broker's place by the options of `add_where`, or by the environment."""
    from amqp10broker.cli import admin

    return admin.place_of(arguments.port, arguments.admin_socket, os.environ)


# --- values ---------------------------------------------------------------------------------------


def pairs(option: str, written: Iterable[str]) -> dict[str, Any]:
    """Parse the values of a repeated ``KEY=VALUE``."""
    values: dict[str, Any] = {}
    for each in written:
        key, equals, value = each.partition("=")
        if not key or not equals:
            raise ConfigError(option, f"is {each!r}", "must be KEY=VALUE")
        if key in values:
            raise ConfigError(option, f"gives {key!r} twice", "give it once")
        values[key] = typed(value)
    return values


def typed(value: str) -> Any:
    """Parse JSON, or return the text itself if it is not JSON: ``10``, ``true``, ``"10"``, ``[1, 2]``,
    ``text``.
    """
    try:
        return json.loads(value, parse_constant=_refuse)
    except ValueError:
        return value


def _refuse(constant: str) -> None:
    raise ValueError(constant)  # NaN and Infinity are not JSON; Python reads them all the same


def seconds(smallest: float, largest: float) -> Callable[[str], float]:
    """Return a parser of a number of seconds, for argparse."""

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
    """Return the content of a file, or of standard input for ``-``."""
    try:
        if name == STANDARD:
            return sys.stdin.buffer.read()
        with open(name, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"file {name}", f"cannot be read: {error.strerror}", "give another") from error


EXAMPLES: Final[Mapping[str, str]] = {
    "": "amqp10broker serve --data-dir data",
    "serve": "--data-dir data --host 0.0.0.0 --log-format json",
    "run-cluster": "--nodes 5 --first-port 6672",
    "status": "--queue 'orders*' --longer 60",
    "timeline": "7 orders --for 30 > orders.json",
    "upgrade-check": "--to 4.3",
    "ping": "--queue --timeout 2",
    "frames trace": "/queues/orders on",
    "frames lint": "3 --for 30",
    "frames print": "frames.jsonl --connection 3",
    "frames replay": "frames.jsonl --url amqp://guest:guest@localhost --fast",
    "frames what-if": "frames.jsonl --max-link-credit 1000 --round-trip-ms 20",
    "connection list": "id user peer state",
    "session list": "",
    "link list": "connection name role credit waits",
    "transaction list": "",
    "channel list": "",
    "consumer list": "",
    "alarm memory-limit": "absolute 2GiB",
    "alarm disk-limit": "5GB",
    "publish": "--queue orders --property message-id=7 'a message'",
    "get": "orders --count 10 --format json",
    "cluster new-secret": "secret",
    "cluster force-standalone": "data",
    "user explain-token": "--config broker.toml < token",
    "storage check": "data",
    "storage accept": "data",
    "record analyse": "recording --aim latency --rate 1000",
    "completion": 'eval "$(amqp10broker completion bash)"',
}
