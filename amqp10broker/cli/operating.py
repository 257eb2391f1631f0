"""Commands of operations as the registry has them, and those that need more than a record."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any, Final

from amqp10broker.cli import declaring, definitions, doctor, looking, recording
from amqp10broker.cli.calls import CommandCall, registered
from amqp10broker.cli.commands import Parser, ask
from amqp10broker.cli.exits import Failed
from amqp10broker.operations.operation import counted


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
            "'amqp10broker binding list'"
        )


def _bound(arguments: argparse.Namespace) -> str:
    kind = "exchange" if arguments.to_exchange else "queue"
    return f"{kind} '{arguments.destination}' to exchange '{arguments.source}' with key '{arguments.key}'"


def _policy_set(what: str, arguments: argparse.Namespace, found: Any) -> str:
    for warning in found["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    if found["ineffective"]:
        print(
            f"warning: {', '.join(found['ineffective'])}: without effect on some of the queues, see "
            "'amqp10broker queue list name policy ineffective_policy_keys'",
            file=sys.stderr,
        )
    contents = f"{counted(found['queues'], 'queue')} and {counted(found['exchanges'], 'exchange')}"
    return f"{what} '{arguments.name}' set; it counts for {contents}"


COMMANDS: Final = registered(
    (
        CommandCall(
            "bind", lambda a, bound: f"{_bound(a)} bound", without=_ENDS, more=_add_ends, prepare=_with_ends
        ),
        CommandCall(
            "unbind", lambda a, gone: f"{_bound(a)} unbound", without=_ENDS, more=_add_ends, prepare=_is_bound
        ),
        CommandCall("set-policy", partial(_policy_set, "policy")),
        CommandCall("set-operator-policy", partial(_policy_set, "operator policy")),
        *declaring.CALLS,
        *definitions.CALLS,
        *recording.CALLS,
        *looking.CALLS,
        *doctor.CALLS,
    ),
    tool=False,
)
