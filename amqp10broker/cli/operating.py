"""Commands that call one operation of the table: its arguments are their options, its sentence is their help.

An argument that must be given stands by itself, in the order of the table; others are options of their name.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from amqp10broker.cli.commands import (
    Command,
    Parser,
    add_arguments_option,
    add_vhost,
    add_where,
    ask,
    counted,
    pairs,
)
from amqp10broker.cli.exits import EXIT_OK, Failed
from amqp10broker.cli.passwords import add_password, new_password
from amqp10broker.errors import ConfigError
from amqp10broker.management.arguments import Argument, Kind
from amqp10broker.management.table import OPERATIONS, QUEUE_TYPES

QUEUE_TYPE: Final = "x-queue-type"


def _nothing(arguments: argparse.Namespace, given: dict[str, Any]) -> None:
    """Everything is as the table has it."""


@dataclass(frozen=True, slots=True)
class Call:
    """An operation as a command.

    Attributes:
        operation: in the table.
        said: makes the sentence for people of what was typed and of the result.
        by_itself: names of optional arguments that stand by themselves all the same.
        without: names of arguments that cannot be given here.
        more: adds options that the operation does not have.
        prepare: changes what the operation is given, after asking the broker something perhaps.
        description: for its own help; empty takes the table's.
    """

    operation: str
    said: Callable[[argparse.Namespace, Any], str]
    by_itself: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    more: Callable[[Parser], object] = lambda parser: None
    prepare: Callable[[argparse.Namespace, dict[str, Any]], object] = _nothing
    description: str = ""

    def add_to(self, parser: Parser) -> None:
        """Give a parser the operation's arguments."""
        operation = OPERATIONS[self.operation]
        for argument in operation.arguments:
            if argument.name not in self.without:
                _add(parser, operation.noun, argument, by_itself=argument.name in self.by_itself)
        self.more(parser)
        if operation.in_vhost:
            add_vhost(parser)
        add_where(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Have the broker do it, and say what came of it."""
        offered = [each for each in OPERATIONS[self.operation].arguments if each.name not in self.without]
        given = {each.name: _value(each, arguments) for each in offered}
        self.prepare(arguments, given)
        print(self.said(arguments, ask(arguments, self.operation, **given)))
        return EXIT_OK

    def command(self, name: str) -> Command:
        """It, under a name."""
        return Command(name, self.add_to, self.run, self.description)


def _add(parser: Parser, noun: str, argument: Argument, *, by_itself: bool) -> None:
    """One argument as an option, or standing by itself."""
    name, kind, help = argument.name, argument.kind, argument.help.replace("%", "%%")
    option = f"--{name.replace('_', '-')}"
    metavar = (noun if name == "name" else name).upper().replace("_", "-")
    shape: dict[str, Any] = {"help": help, "metavar": metavar}
    if kind is Kind.INTEGER:
        shape["type"] = int
    if argument.choices:
        shape["choices"] = argument.choices
        del shape["metavar"]
    elif argument.known:
        shape["help"] = f"{', '.join(argument.known)} or {help}"
    if name == "vhost":
        add_vhost(parser)
    elif argument.secret:
        add_password(parser)
    elif argument.keys:
        for key, what in argument.keys.items():
            parser.add_argument(f"--{key}", type=int, metavar="N", help=f"{what}; -1: no limit")
    elif kind is Kind.TABLE and not argument.required:
        add_arguments_option(parser)
    elif kind is Kind.TEXTS and argument.required:
        parser.add_argument(name, nargs="*", help=help, metavar=metavar.removesuffix("S"))
    elif kind is Kind.TEXTS:
        shape |= {"dest": name, "action": "append", "default": [], "metavar": metavar.removesuffix("S")}
        parser.add_argument(option.removesuffix("s"), **shape)
    elif kind is Kind.FLAG:
        on = argument.default is True
        action = argparse.BooleanOptionalAction if on else "store_true"
        told = f"{help} (default: it does)" if on else help
        parser.add_argument(option, action=action, default=on, help=told)
    elif argument.required or by_itself:
        parser.add_argument(name, nargs=None if argument.required else "?", default=argument.usual, **shape)
    else:
        if argument.default not in (None, ""):
            shape["help"] += f" (default: {argument.default})"
        added = parser.add_argument(option, default=argument.default, **shape)
        added.completions = argument.known  # type: ignore[attr-defined]


def _value(argument: Argument, arguments: argparse.Namespace) -> Any:
    """What was typed for an argument.

    Raises:
        ConfigError: it cannot be meant.
    """
    if argument.secret:
        return new_password(arguments)
    if argument.keys:
        typed = {key: getattr(arguments, key.replace("-", "_")) for key in argument.keys}
        given = {key: value for key, value in typed.items() if value is not None}
        if not given:
            allowed = f"give {' or '.join(f'--{key}' for key in typed)}"
            raise ConfigError("the limit", "is missing", allowed)
        return given
    value = getattr(arguments, argument.name)
    if argument.kind is Kind.TABLE:
        return read_table(argument, value) if argument.required else pairs("option --argument", value)
    return value


def read_table(argument: Argument, written: str) -> dict[str, Any]:
    """Values by name, of their JSON.

    Raises:
        ConfigError: it is no JSON object.
    """
    fault, table = "", None
    try:
        table = json.loads(written)
    except ValueError as error:
        fault = f": {error}"
    if not isinstance(table, dict):
        allowed = f"must be a JSON object: '{argument.help.partition(': ')[2]}'"
        raise ConfigError(argument.name.upper(), f"is {written!r}{fault}", allowed)
    return table


# --- queues, exchanges, bindings ------------------------------------------------------------------


def _add_queue_type(parser: Parser) -> None:
    parser.add_argument("--type", choices=QUEUE_TYPES, help="default: that of the virtual host, classic")


def _with_type(arguments: argparse.Namespace, given: dict[str, Any]) -> None:
    if arguments.type is not None:
        if QUEUE_TYPE in given["arguments"]:
            raise ConfigError("option --type", f"is given beside {QUEUE_TYPE}", "give one of them")
        given["arguments"][QUEUE_TYPE] = arguments.type


def _declared(kind: str, arguments: argparse.Namespace, result: Any) -> str:
    what = "declared" if result["created"] else "is there already, as asked for"
    return f"{kind} '{arguments.name}' {what}"


def _queue_is_there(arguments: argparse.Namespace, given: dict[str, Any]) -> None:
    # To clients, deleting what is not there is no error. Whoever types a name wants to know.
    ask(arguments, "get-queue", name=arguments.name)


def _exchange_is_there(arguments: argparse.Namespace, given: dict[str, Any]) -> None:
    if all(each["name"] != arguments.name for each in ask(arguments, "list-exchanges")):
        raise Failed(f"no exchange '{arguments.name}': see what there is with 'amqp10broker list-exchanges'")


def _add_ends(parser: Parser) -> None:
    parser.add_argument("destination", metavar="DESTINATION", help="the queue that gets them")
    parser.add_argument("--to-exchange", action="store_true", help="DESTINATION is an exchange, not a queue")
    parser.add_argument("--key", default="", help="routing key or pattern (default: empty)")


_ENDS: Final = ("destination_queue", "destination_exchange", "binding_key")


def _with_ends(arguments: argparse.Namespace, given: dict[str, Any]) -> None:
    kind = "exchange" if arguments.to_exchange else "queue"
    given |= {f"destination_{kind}": arguments.destination, "binding_key": arguments.key}


def _is_bound(arguments: argparse.Namespace, given: dict[str, Any]) -> None:
    _with_ends(arguments, given)
    ends = {name: value for name, value in given.items() if name != "arguments"}
    if all(each["arguments"] != given["arguments"] for each in ask(arguments, "get-bindings", **ends)):
        raise Failed(
            f"{_bound(arguments)} is not bound so: key and arguments must be those of the binding, see "
            "'amqp10broker list-bindings'"
        )


def _bound(arguments: argparse.Namespace) -> str:
    kind = "exchange" if arguments.to_exchange else "queue"
    return f"{kind} '{arguments.destination}' to exchange '{arguments.source}' with key '{arguments.key}'"


# --- users, virtual hosts, policies ---------------------------------------------------------------


def _in(arguments: argparse.Namespace) -> str:
    return "" if arguments.vhost is None else f" in vhost '{arguments.vhost}'"


def _topics(arguments: argparse.Namespace) -> str:
    on = "all exchanges" if arguments.exchange is None else f"'{arguments.exchange}'"
    return f"topic permissions of user '{arguments.user}' on {on}{_in(arguments)}"


def _limits(whose: str, limits: Mapping[str, int]) -> str:
    return f"limits of {whose}: {', '.join(f'{name} {value}' for name, value in limits.items()) or 'none'}"


def _policy_set(what: str, arguments: argparse.Namespace, found: Any) -> str:
    for warning in found["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    if found["ineffective"]:
        print(
            f"warning: {', '.join(found['ineffective'])}: without effect on some of the queues, see "
            "'amqp10broker list-queues name policy ineffective_policy_keys'",
            file=sys.stderr,
        )
    whom = f"{counted(found['queues'], 'queue')} and {counted(found['exchanges'], 'exchange')}"
    return f"{what} '{arguments.name}' set; it counts for {whom}"


_SEE_PERMISSIONS: Final = "see 'amqp10broker set-permissions --help'"
_DELETE_VHOST: Final = Call(
    "delete-vhost", lambda a, gone: f"vhost '{a.name}' deleted with {counted(gone['queues'], 'queue')}"
)
_DELETE_USER: Final = Call("delete-user", lambda a, gone: f"user '{a.user}' deleted")

CALLS: Final[Mapping[str, Call]] = {
    "purge": Call(
        "purge-queue",
        lambda a, gone: f"{counted(gone['message_count'], 'message')} purged from queue '{a.name}'",
    ),
    "bind": Call(
        "bind", lambda a, bound: f"{_bound(a)} bound", without=_ENDS, more=_add_ends, prepare=_with_ends
    ),
    "unbind": Call(
        "unbind", lambda a, gone: f"{_bound(a)} unbound", without=_ENDS, more=_add_ends, prepare=_is_bound
    ),
    "add-user": Call(
        "add-user",
        lambda a, added: f"user '{a.user}' added; it may do nothing yet, {_SEE_PERMISSIONS}",
        description="Add a user, who may do nothing yet. The password is not given on the command line, "
        "where others on this machine could see it.",
    ),
    "change-password": Call(
        "change-password",
        lambda a, done: f"user '{a.user}' has {'none' if a.no_password else 'another password'}",
    ),
    "delete-user": _DELETE_USER,
    "set-tags": Call("set-tags", lambda a, done: f"tags of user '{a.user}': {', '.join(a.tags) or 'none'}"),
    "set-user-limits": Call("set-user-limits", lambda a, limits: _limits(f"user '{a.user}'", limits)),
    "set-permissions": Call("set-permissions", lambda a, done: f"permissions of user '{a.user}'{_in(a)} set"),
    "clear-permissions": Call(
        "clear-permissions", lambda a, done: f"permissions of user '{a.user}'{_in(a)} cleared"
    ),
    "set-topic-permissions": Call("set-topic-permissions", lambda a, done: f"{_topics(a)} set"),
    "clear-topic-permissions": Call(
        "clear-topic-permissions", lambda a, done: f"{_topics(a)} cleared", by_itself=("exchange",)
    ),
    "add-vhost": Call(
        "add-vhost", lambda a, added: f"vhost '{a.name}' added; nobody may enter it yet, {_SEE_PERMISSIONS}"
    ),
    "delete-vhost": _DELETE_VHOST,
    "set-vhost-limits": Call(
        "set-vhost-limits",
        lambda a, limits: _limits("the default vhost" if a.vhost is None else f"vhost '{a.vhost}'", limits),
    ),
    "set-policy": Call(
        "set-policy",
        partial(_policy_set, "policy"),
        description="Set a policy: settings for the queues or exchanges whose name matches a pattern. It "
        "acts at once, also on those that are there. Settings are those of queue arguments without x-, and "
        "alternate-exchange.",
    ),
    "clear-policy": Call("clear-policy", lambda a, done: f"policy '{a.name}' cleared"),
    "set-operator-policy": Call(
        "set-operator-policy",
        partial(_policy_set, "operator policy"),
        description="Set an operator policy: bounds of what policies and queue arguments set. It acts at "
        "once.",
    ),
    "clear-operator-policy": Call(
        "clear-operator-policy", lambda a, done: f"operator policy '{a.name}' cleared"
    ),
    "close-connection": Call(
        "close-connection", lambda a, closed: f"connection {a.id} closed", by_itself=("reason",)
    ),
}

DECLARE: Final[Mapping[str, Call]] = {
    "queue": Call(
        "declare-queue",
        partial(_declared, "queue"),
        without=("exclusive",),
        more=_add_queue_type,
        prepare=_with_type,
    ),
    "exchange": Call("declare-exchange", partial(_declared, "exchange")),
}
DELETE: Final[Mapping[str, Call]] = {
    "queue": Call(
        "delete-queue",
        lambda a, gone: f"queue '{a.name}' deleted with {counted(gone['message_count'], 'ready message')}",
        prepare=_queue_is_there,
    ),
    "exchange": Call(
        "delete-exchange", lambda a, gone: f"exchange '{a.name}' deleted", prepare=_exchange_is_there
    ),
    "vhost": _DELETE_VHOST,
    "user": _DELETE_USER,
}


def _kinds(calls: Mapping[str, Call], parser: Parser) -> None:
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for kind, call in calls.items():
        help = OPERATIONS[call.operation].help
        each = kinds.add_parser(
            kind, help=f"{help[0].lower()}{help[1:-1]}", description=help, allow_abbrev=False
        )
        call.add_to(each)


COMMANDS: Final = (
    Command("declare", partial(_kinds, DECLARE), lambda arguments: DECLARE[arguments.kind].run(arguments)),
    Command("delete", partial(_kinds, DELETE), lambda arguments: DELETE[arguments.kind].run(arguments)),
    *(call.command(name) for name, call in CALLS.items()),
)
