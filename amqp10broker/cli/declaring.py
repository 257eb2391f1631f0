"""Commands on queues, exchanges and bindings: declare, delete, purge, bind, unbind.

``delete vhost`` and ``delete user`` are here, too, beside ``delete-vhost`` and ``delete-user``.
"""

from __future__ import annotations

import argparse
from typing import Any, Final

from amqp10broker.cli import users, vhosts
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
from amqp10broker.errors import ConfigError

QUEUE_TYPE: Final = "x-queue-type"
QUEUE_TYPES: Final = ("classic", "quorum", "stream")
EXCHANGE_TYPES: Final = (
    *("direct", "fanout", "topic", "headers"),
    *("x-consistent-hash", "x-modulus-hash", "x-local-random"),
)


# --- declare --------------------------------------------------------------------------------------


def _declare_arguments(parser: Parser) -> None:
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    queue = kinds.add_parser(
        "queue",
        help="a queue",
        description="Make a queue, unless it is there and as asked.",
        allow_abbrev=False,
    )
    queue.add_argument("name", metavar="NAME")
    queue.add_argument("--type", choices=QUEUE_TYPES, help="default: that of the virtual host, classic")
    _durable(queue)
    queue.add_argument("--auto-delete", action="store_true", help="it goes with its last consumer")
    exchange = kinds.add_parser(
        "exchange",
        help="an exchange",
        description="Make an exchange, unless it is there and as asked.",
        allow_abbrev=False,
    )
    exchange.add_argument("name", metavar="NAME")
    kind = exchange.add_argument(
        "--type", default="direct", help=f"{', '.join(EXCHANGE_TYPES)} or an installed one (default: direct)"
    )
    kind.completions = EXCHANGE_TYPES  # type: ignore[attr-defined]
    _durable(exchange)
    exchange.add_argument("--auto-delete", action="store_true", help="it goes with its last binding")
    exchange.add_argument("--internal", action="store_true", help="clients cannot publish to it")
    for each in (queue, exchange):
        add_arguments_option(each)
        add_vhost(each)
        add_where(each)


def _durable(parser: Parser) -> None:
    parser.add_argument(
        "--durable",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="it survives a restart (default: it does)",
    )


def _declare(arguments: argparse.Namespace) -> int:
    given: dict[str, Any] = {
        "name": arguments.name,
        "durable": arguments.durable,
        "auto_delete": arguments.auto_delete,
        "arguments": pairs("option --argument", arguments.arguments),
    }
    if arguments.kind == "queue":
        if arguments.type is not None:
            if QUEUE_TYPE in given["arguments"]:
                raise ConfigError("option --type", f"is given beside {QUEUE_TYPE}", "give one of them")
            given["arguments"][QUEUE_TYPE] = arguments.type
    else:
        given |= {"type": arguments.type, "internal": arguments.internal}
    created = ask(arguments, f"declare-{arguments.kind}", **given)["created"]
    what = "declared" if created else "is there already, as asked for"
    print(f"{arguments.kind} '{arguments.name}' {what}")
    return EXIT_OK


# --- delete, purge --------------------------------------------------------------------------------


def _delete_arguments(parser: Parser) -> None:
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for kind, help in (
        ("queue", "a queue with its messages"),
        ("exchange", "an exchange with its bindings"),
        ("vhost", "a virtual host with all that is in it; closes its connections"),
        ("user", "a user and its permissions; closes its connections"),
    ):
        each = kinds.add_parser(kind, help=help, description=f"Delete {help}.", allow_abbrev=False)
        each.add_argument("name", metavar="NAME")
        if kind in ("queue", "exchange"):
            each.add_argument("--if-unused", action="store_true", help="only if nobody uses it")
            add_vhost(each)
        if kind == "queue":
            each.add_argument("--if-empty", action="store_true", help="only without ready messages")
        add_where(each)


def _delete(arguments: argparse.Namespace) -> int:
    name = arguments.name
    match arguments.kind:
        case "vhost":
            return vhosts.delete(arguments)
        case "user":
            return users.delete(arguments)
        case "queue":
            # To clients, deleting what is not there is no error. Whoever types a name wants to know.
            ask(arguments, "get-queue", name=name)
            gone = ask(
                arguments,
                "delete-queue",
                name=name,
                if_unused=arguments.if_unused,
                if_empty=arguments.if_empty,
            )
            print(f"queue '{name}' deleted with {counted(gone['message_count'], 'ready message')}")
        case _:
            if all(each["name"] != name for each in ask(arguments, "list-exchanges")):
                raise Failed(f"no exchange '{name}': see what there is with 'amqp10broker list-exchanges'")
            ask(arguments, "delete-exchange", name=name, if_unused=arguments.if_unused)
            print(f"exchange '{name}' deleted")
    return EXIT_OK


def _purge_arguments(parser: Parser) -> None:
    parser.add_argument("name", metavar="QUEUE")
    add_vhost(parser)
    add_where(parser)


def _purge(arguments: argparse.Namespace) -> int:
    gone = ask(arguments, "purge-queue", name=arguments.name)
    print(f"{counted(gone['message_count'], 'message')} purged from queue '{arguments.name}'")
    return EXIT_OK


# --- bind, unbind ---------------------------------------------------------------------------------


def _bind_arguments(parser: Parser) -> None:
    parser.add_argument("source", metavar="EXCHANGE", help="where messages come from")
    parser.add_argument("destination", metavar="DESTINATION", help="the queue that gets them")
    parser.add_argument("--to-exchange", action="store_true", help="DESTINATION is an exchange, not a queue")
    parser.add_argument("--key", default="", help="routing key or pattern (default: empty)")
    add_arguments_option(parser)
    add_vhost(parser)
    add_where(parser)


def _ends(arguments: argparse.Namespace) -> dict[str, Any]:
    kind = "exchange" if arguments.to_exchange else "queue"
    return {
        "source": arguments.source,
        f"destination_{kind}": arguments.destination,
        "binding_key": arguments.key,
    }


def _bind(arguments: argparse.Namespace) -> int:
    given = pairs("option --argument", arguments.arguments)
    ask(arguments, "bind", **_ends(arguments), arguments=given)
    print(f"{_bound(arguments)} bound")
    return EXIT_OK


def _unbind(arguments: argparse.Namespace) -> int:
    given = pairs("option --argument", arguments.arguments)
    ends = _ends(arguments)
    if all(each["arguments"] != given for each in ask(arguments, "get-bindings", **ends)):
        raise Failed(
            f"{_bound(arguments)} is not bound so: key and arguments must be those of the binding, see "
            "'amqp10broker list-bindings'"
        )
    ask(arguments, "unbind", **ends, arguments=given)
    print(f"{_bound(arguments)} unbound")
    return EXIT_OK


def _bound(arguments: argparse.Namespace) -> str:
    kind = "exchange" if arguments.to_exchange else "queue"
    return f"{kind} '{arguments.destination}' to exchange '{arguments.source}' with key '{arguments.key}'"


COMMANDS: Final = (
    Command("declare", _declare_arguments, _declare),
    Command("delete", _delete_arguments, _delete),
    Command("purge", _purge_arguments, _purge),
    Command("bind", _bind_arguments, _bind),
    Command("unbind", _bind_arguments, _unbind),
)
