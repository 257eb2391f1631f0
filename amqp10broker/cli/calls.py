"""Commands that call one operation: its arguments are options, its sentence is the help.

A required argument is positional, in its order; others are options of their name.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from amqp10broker.cli import tables
from amqp10broker.cli.commands import Command, Parser, add_arguments_option, add_vhost, add_where, ask, pairs
from amqp10broker.cli.connecting import add_password, new_password
from amqp10broker.cli.exits import EXIT_OK, EXIT_SOFTWARE, EXIT_UNAVAILABLE, RefusedByBroker
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import ConfigError
from amqp10broker.operations.operation import Argument, Kind
from amqp10broker.operations.operation import Command as OperationCommand
from amqp10broker.operations.registry import OPERATIONS

CHOICES_SHOWN_MAX: Final = 60
"""The most characters of choices that are shown in place of an argument's name."""


@dataclass(frozen=True, slots=True)
class CommandCall:
    """An operation as a command.

    Attributes:
        said: formats the result for people, or prints it and returns None; without it the operation's record
            does.
        without: arguments of the operation that are not offered.
        more: adds further options, of which `prepare` makes arguments of the operation.
    """

    operation: str
    said: Callable[[argparse.Namespace, Any], str | None] | None = None
    without: tuple[str, ...] = ()
    more: Callable[[Parser], object] = lambda parser: None
    prepare: Callable[[argparse.Namespace, dict[str, Any]], object] = lambda arguments, given: None
    code: Callable[[Any], int] | None = None
    description: str = ""

    @property
    def _command(self) -> OperationCommand:
        return OPERATIONS[self.operation].command or OperationCommand("")

    def add_to(self, parser: Parser) -> None:
        operation = OPERATIONS[self.operation]
        for argument in operation.arguments:
            if argument.name not in self.without:
                _add(parser, operation.noun, argument, by_itself=argument.name in self._command.positional)
        self.more(parser)
        if operation.in_vhost:
            add_vhost(parser)
        if self._command.tool:
            add_formatter(parser)
        add_where(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        offered = [each for each in OPERATIONS[self.operation].arguments if each.name not in self.without]
        given = {each.name: _value(each, arguments) for each in offered}
        self.prepare(arguments, given)
        try:
            result = ask(arguments, self.operation, **given)
        except RefusedByBroker as error:
            error.of_cluster = self._command.tool
            raise
        shown = self._shown(arguments, given, result)
        if shown is not None:
            print(shown)
        return _code(result) if self.code is None else self.code(result)

    def _shown(self, arguments: argparse.Namespace, given: Mapping[str, Any], result: Any) -> str | None:
        command = self._command
        if command.columns:
            sys.stdout.write(tables.render(command.columns, result, arguments.format, **on_terminal()))
            return None
        if command.tool and arguments.format == "json":
            sys.stdout.write(tables.as_json(result))
            return None
        if self.said is not None:
            return self.said(arguments, result)
        if isinstance(command.said, str):
            return command.said.format(**{**given, **(result or {})})
        return command.said(given, result)

    def command(self, words: str = "") -> Command:
        """Return it as a command. `words`: empty: those of the record."""
        described = self.description or self._command.description
        return Command(words or self._command.words, self.add_to, self.run, described)


def _code(result: Any) -> int:
    # Checks, and operations on many queues, print their own result.
    if isinstance(result, list):
        return EXIT_OK if all(row.get("result", "ok") == "ok" for row in result) else EXIT_SOFTWARE
    failed = isinstance(result, dict) and result.get("result", "ok") != "ok"
    return EXIT_UNAVAILABLE if failed else EXIT_OK


def registered(*special: CommandCall) -> tuple[Command, ...]:
    """Return the commands of all operations but lists. `special`: calls that replace those of the records."""
    calls = {each.operation: each for each in special}
    return tuple(
        calls.get(each.name, CommandCall(each.name)).command()
        for each in OPERATIONS.values()
        if each.command is not None and not each.name.startswith("list-")
    )


def add_formatter(parser: Parser) -> None:
    """Add the option of the result's format; its second name is that of RabbitMQ's tools."""
    parser.add_argument(
        "--format", "--formatter", dest="format", choices=tables.FORMATS, default="table",
        type=lambda written: "table" if written == "pretty_table" else written, help="default: table",
    )  # fmt: skip


def on_terminal() -> dict[str, Any]:
    """Return arguments of `tables.render`: a pipe gets each row on one line."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    return {"encoding": sys.stdout.encoding, "width": width}


def _add(parser: Parser, noun: str, argument: Argument, *, by_itself: bool) -> None:
    name, kind, help = argument.name, argument.kind, argument.help.replace("%", "%%")
    check, keys = argument.check, argument.check.keys
    option = f"--{name.replace('_', '-')}"
    metavar = (noun if name == "name" else name).upper().replace("_", "-")
    shape: dict[str, Any] = {"help": help, "metavar": metavar}
    if check.bounds is not None:
        shape["help"] += f", from {check.bounds[0]} to {check.bounds[1]}"
    if check.word is not None:
        shape["help"] += f", or {check.word}"
    if check.choices:
        shape["choices"] = check.choices
        if len(",".join(check.choices)) > CHOICES_SHOWN_MAX:  # argparse does not break lines in them
            shape["help"] += f": {', '.join(check.choices)}"
        else:
            del shape["metavar"]
    elif check.known:
        shape["help"] = f"{', '.join(check.known)} or {help}"
    if name == "vhost":
        add_vhost(parser)
    elif check.secret:
        add_password(parser)
    elif keys:
        for key, what in keys.items():
            parser.add_argument(f"--{key}", type=int, metavar="N", help=f"{what}; -1: no limit")
    elif kind is Kind.TABLE and not argument.required:
        add_arguments_option(parser)
    elif kind is Kind.TEXTS and argument.required:
        parser.add_argument(name, nargs="*", help=help, metavar=metavar.removesuffix("S"))
    elif kind is Kind.TEXTS:
        shape |= {"dest": name, "action": "append", "default": [], "metavar": metavar.removesuffix("S")}
        parser.add_argument(option.removesuffix("s"), **shape)
    elif kind is Kind.FLAG and argument.required:
        parser.add_argument(name, choices=("on", "off"), help=help)
    elif kind is Kind.FLAG:
        on = argument.default is True
        action = argparse.BooleanOptionalAction if on else "store_true"
        parser.add_argument(option, action=action, default=on, help=help)
    elif argument.required or by_itself:
        parser.add_argument(name, nargs=None if argument.required else "?", default=argument.default, **shape)
    else:
        if argument.default not in (None, ""):
            shape["help"] += f" (default: {argument.default})"
        added = parser.add_argument(option, default=argument.default, **shape)
        added.completions = check.known  # type: ignore[attr-defined]


def _value(argument: Argument, arguments: argparse.Namespace) -> Any:
    check = argument.check
    if check.secret:
        return new_password(arguments)
    if check.keys:
        typed = {key: getattr(arguments, key.replace("-", "_")) for key in check.keys}
        given = {key: value for key, value in typed.items() if value is not None}
        if not given:
            allowed = f"give {' or '.join(f'--{key}' for key in typed)}"
            raise ConfigError("the limit", "is missing", allowed)
        return given
    value = getattr(arguments, argument.name)
    if argument.kind is Kind.INTEGER and isinstance(value, str) and value != check.word:
        return _integer(argument, value)
    if argument.kind is Kind.TABLE:
        return read_table(argument, value) if argument.required else pairs("option --argument", value)
    return value == "on" if argument.kind is Kind.FLAG and argument.required else value


def _integer(argument: Argument, written: str) -> int:
    bounds, word = argument.check.bounds, argument.check.word
    try:
        number = int(written)
    except ValueError:
        number = None
    if number is None or (bounds is not None and not bounds[0] <= number <= bounds[1]):
        allowed = "" if bounds is None else f" from {bounds[0]} to {bounds[1]}"
        allowed += "" if word is None else f", or {word}"
        raise ConfigError(argument.name.upper(), f"is {written[:40]!r}", f"must be an integer{allowed}")
    return number


def read_table(argument: Argument, written: str) -> dict[str, Any]:
    fault, table = "", None
    try:
        table = json.loads(written)
    except ValueError as error:
        fault = f": {error}"
    if not isinstance(table, dict):
        allowed = f"must be a JSON object: '{argument.help.partition(': ')[2]}'"
        raise ConfigError(argument.name.upper(), f"is {written!r}{fault}", allowed)
    return table
