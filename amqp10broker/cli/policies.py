"""Commands on policies: settings for all queues or exchanges whose name matches a pattern."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from typing import Any, Final

from amqp10broker.cli.commands import Command, Parser, add_vhost, add_where, ask, counted
from amqp10broker.cli.exits import EXIT_OK
from amqp10broker.errors import ConfigError

_APPLY_TO: Final = ("all", "queues", "classic_queues", "quorum_queues", "streams", "exchanges")
_EXAMPLE: Final = '{"max-length": 1000}'


def _set_arguments(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("pattern", metavar="PATTERN", help="regular expression, found anywhere in the name")
    parser.add_argument("definition", metavar="DEFINITION", help=f"settings as JSON: {_EXAMPLE}")
    parser.add_argument(
        "--priority", type=int, default=0, metavar="N", help="of several that match, the highest counts"
    )
    parser.add_argument("--apply-to", choices=_APPLY_TO, default="all", help="default: all")
    add_vhost(parser)
    add_where(parser)


def _set(what: str, arguments: argparse.Namespace) -> int:
    found = ask(
        arguments,
        f"set-{what.replace(' ', '-')}",
        name=arguments.name,
        pattern=arguments.pattern,
        definition=read_definition(arguments.definition),
        priority=arguments.priority,
        apply_to=arguments.apply_to,
    )
    for warning in found["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    if found["ineffective"]:
        print(
            f"warning: {', '.join(found['ineffective'])}: without effect on some of the queues, see "
            "'amqp10broker list-queues name policy ineffective_policy_keys'",
            file=sys.stderr,
        )
    whom = f"{counted(found['queues'], 'queue')} and {counted(found['exchanges'], 'exchange')}"
    print(f"{what} '{arguments.name}' set; it counts for {whom}")
    return EXIT_OK


def read_definition(written: str) -> dict[str, Any]:
    """Settings by name, of their JSON.

    Raises:
        ConfigError: it is no JSON object.
    """
    try:
        definition = json.loads(written)
    except ValueError as error:
        raise ConfigError(
            "DEFINITION", f"is {written!r}: {error}", f"must be a JSON object: '{_EXAMPLE}'"
        ) from error
    if not isinstance(definition, dict):
        raise ConfigError("DEFINITION", f"is {written!r}", f"must be a JSON object: '{_EXAMPLE}'")
    return definition


def _clear_arguments(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME")
    add_vhost(parser)
    add_where(parser)


def _clear(what: str, arguments: argparse.Namespace) -> int:
    ask(arguments, f"clear-{what.replace(' ', '-')}", name=arguments.name)
    print(f"{what} '{arguments.name}' cleared")
    return EXIT_OK


COMMANDS: Final = (
    Command(
        "set-policy",
        _set_arguments,
        partial(_set, "policy"),
        "Set a policy: settings for the queues or exchanges whose name matches a pattern. It acts at once, "
        "also on those that are there. Settings are those of queue arguments without x-, and "
        "alternate-exchange.",
    ),
    Command("clear-policy", _clear_arguments, partial(_clear, "policy")),
    Command(
        "set-operator-policy",
        _set_arguments,
        partial(_set, "operator policy"),
        "Set an operator policy: bounds of what policies and queue arguments set. It acts at once.",
    ),
    Command("clear-operator-policy", _clear_arguments, partial(_clear, "operator policy")),
)
