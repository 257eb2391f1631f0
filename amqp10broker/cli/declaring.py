"""Commands that declare, delete and purge queues and exchanges."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, Final

from amqp10broker.cli.calls import CommandCall
from amqp10broker.cli.commands import Parser, ask
from amqp10broker.cli.exits import Failed
from amqp10broker.errors import ConfigError
from amqp10broker.operations.accounts import QUEUE_TYPES
from amqp10broker.operations.operation import counted

QUEUE_TYPE: Final = "x-queue-type"


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
    # To clients, deleting a missing object is not an error. At a terminal it is worth an error.
    ask(arguments, "get-queue", name=arguments.name)


def _exchange_is_there(arguments: argparse.Namespace, given: dict[str, Any]) -> None:
    if all(each["name"] != arguments.name for each in ask(arguments, "list-exchanges")):
        raise Failed(f"no exchange '{arguments.name}': see what there is with 'amqp10broker exchange list'")


CALLS: Final = (
    CommandCall(
        "declare-queue",
        partial(_declared, "queue"),
        without=("exclusive",),
        more=_add_queue_type,
        prepare=_with_type,
    ),
    CommandCall("declare-exchange", partial(_declared, "exchange")),
    CommandCall(
        "delete-queue",
        lambda a, gone: f"queue '{a.name}' deleted with {counted(gone['message_count'], 'ready message')}",
        prepare=_queue_is_there,
    ),
    CommandCall(
        "delete-exchange", lambda a, gone: f"exchange '{a.name}' deleted", prepare=_exchange_is_there
    ),
    CommandCall(
        "purge-queue",
        lambda a, gone: f"{counted(gone['message_count'], 'message')} purged from queue '{a.name}'",
    ),
)
