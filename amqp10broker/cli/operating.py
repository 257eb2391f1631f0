"""Commands that call one operation of the table, and the formatting of their results."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from amqp10broker.cli.calls import CommandCall, command_of_kinds
from amqp10broker.cli.commands import Parser, ask, counted
from amqp10broker.cli.exits import Failed
from amqp10broker.config.records import CONFIG_SETTINGS
from amqp10broker.errors import ConfigError
from amqp10broker.operations.accounts import QUEUE_TYPES

QUEUE_TYPE: Final = "x-queue-type"


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
    # To clients, deleting a missing object is not an error. At a terminal it is worth an error.
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
    contents = f"{counted(found['queues'], 'queue')} and {counted(found['exchanges'], 'exchange')}"
    return f"{what} '{arguments.name}' set; it counts for {contents}"


# --- the running broker ---------------------------------------------------------------------------

MEMORY: Final = "vm_memory_high_watermark"
DISK: Final = "disk_free_limit"


def _alarm_said(arguments: argparse.Namespace, result: Any) -> str:
    name = arguments.name
    if arguments.on == "off" and name in result.get("alarms", ()):
        limit = (MEMORY if name == "memory" else DISK).replace("_", "-")
        return (
            f"the {name} alarm stays on, for another reason: 'amqp10broker status' says which; "
            f"'amqp10broker set-{limit}' sets another limit"
        )
    return f"the {name} alarm is {arguments.on}"


def _limit(name: str, description: str, meaning: str, help: str, words: tuple[str, ...]) -> CommandCall:
    def more(parser: Parser) -> None:
        value: Any = parser.add_argument("value", nargs="+", metavar="VALUE", help=help)
        value.completions = words

    def prepare(arguments: argparse.Namespace, given: dict[str, Any]) -> None:
        value = CONFIG_SETTINGS[name].parse(" ".join(arguments.value), arguments.command)
        given |= {"name": name, "value": value}

    def said(arguments: argparse.Namespace, result: Any) -> str:
        limit, written = result["limit_bytes"], " ".join(arguments.value)
        if limit is None:
            return (
                f"{name} is now {written}, but cannot be used: the system does not say how much memory there "
                "is; give an amount"
            )
        return f"{name} is now {written}: {meaning.format(f'{limit} bytes')}"

    told = f"{description} Until its next start; for good, set {name} in its configuration."
    return CommandCall(
        "set-limit", said, without=("name", "value"), more=more, prepare=prepare, description=told
    )


_SEE_PERMISSIONS: Final = "see 'amqp10broker set-permissions --help'"
_DELETE_VHOST: Final = CommandCall(
    "delete-vhost", lambda a, gone: f"vhost '{a.name}' deleted with {counted(gone['queues'], 'queue')}"
)
_DELETE_USER: Final = CommandCall("delete-user", lambda a, gone: f"user '{a.user}' deleted")

CALLS: Final[Mapping[str, CommandCall]] = {
    "purge": CommandCall(
        "purge-queue",
        lambda a, gone: f"{counted(gone['message_count'], 'message')} purged from queue '{a.name}'",
    ),
    "bind": CommandCall(
        "bind", lambda a, bound: f"{_bound(a)} bound", without=_ENDS, more=_add_ends, prepare=_with_ends
    ),
    "unbind": CommandCall(
        "unbind", lambda a, gone: f"{_bound(a)} unbound", without=_ENDS, more=_add_ends, prepare=_is_bound
    ),
    "add-user": CommandCall(
        "add-user",
        lambda a, added: f"user '{a.user}' added; it may do nothing yet, {_SEE_PERMISSIONS}",
        description="Add a user, who may do nothing yet. The password is not given on the command line, "
        "where others on this machine could see it.",
    ),
    "change-password": CommandCall(
        "change-password",
        lambda a, done: f"user '{a.user}' has {'none' if a.no_password else 'another password'}",
    ),
    "delete-user": _DELETE_USER,
    "set-tags": CommandCall(
        "set-tags", lambda a, done: f"tags of user '{a.user}': {', '.join(a.tags) or 'none'}"
    ),
    "set-user-limits": CommandCall("set-user-limits", lambda a, limits: _limits(f"user '{a.user}'", limits)),
    "set-permissions": CommandCall(
        "set-permissions", lambda a, done: f"permissions of user '{a.user}'{_in(a)} set"
    ),
    "clear-permissions": CommandCall(
        "clear-permissions", lambda a, done: f"permissions of user '{a.user}'{_in(a)} cleared"
    ),
    "set-topic-permissions": CommandCall("set-topic-permissions", lambda a, done: f"{_topics(a)} set"),
    "clear-topic-permissions": CommandCall(
        "clear-topic-permissions", lambda a, done: f"{_topics(a)} cleared", by_itself=("exchange",)
    ),
    "add-vhost": CommandCall(
        "add-vhost", lambda a, added: f"vhost '{a.name}' added; nobody may enter it yet, {_SEE_PERMISSIONS}"
    ),
    "delete-vhost": _DELETE_VHOST,
    "set-vhost-limits": CommandCall(
        "set-vhost-limits",
        lambda a, limits: _limits("the default vhost" if a.vhost is None else f"vhost '{a.vhost}'", limits),
    ),
    "set-policy": CommandCall(
        "set-policy",
        partial(_policy_set, "policy"),
        description="Set a policy: settings for the queues or exchanges whose name matches a pattern. It "
        "acts at once, also on those that are there. Settings are those of queue arguments without x-, and "
        "alternate-exchange.",
    ),
    "clear-policy": CommandCall("clear-policy", lambda a, done: f"policy '{a.name}' cleared"),
    "set-operator-policy": CommandCall(
        "set-operator-policy",
        partial(_policy_set, "operator policy"),
        description="Set an operator policy: bounds of what policies and queue arguments set. It acts at "
        "once.",
    ),
    "clear-operator-policy": CommandCall(
        "clear-operator-policy", lambda a, done: f"operator policy '{a.name}' cleared"
    ),
    "close-connection": CommandCall(
        "close-connection",
        lambda a, closed: f"connection {a.id}{'' if a.node is None else f' at node {a.node}'} closed",
        by_itself=("reason",),
    ),
    "end-suspended-link": CommandCall(
        "end-suspended-link",
        lambda a, ended: (
            f"link '{ended['name']}' of container '{ended['container_id']}' is over; "
            f"it kept {ended['unsettled']} unsettled"
        ),
    ),
    "inject-fault": CommandCall(
        "inject-fault", lambda a, fault: f"fault {fault['fault']} is committed: {a.kind}"
    ),
    "lift-fault": CommandCall("lift-fault", lambda a, fault: f"fault {a.fault} is committed no more"),
    "set": CommandCall(
        "set",
        lambda a, now: f"{a.name} is now {a.value}",
        description="Change a flow control setting of a running broker. What it grants from then on follows "
        "the new value; overrides of the configuration file still apply.",
    ),
    "alarm": CommandCall(
        "alarm",
        _alarm_said,
        description="Raise a resource alarm by hand, or take that back. While one is on, publishers are held "
        "back. An alarm that was measured ends when there is room again, or under another limit.",
    ),
    "set-vm-memory-high-watermark": _limit(
        MEMORY,
        "Change how much memory a running broker may use before publishers are held back.",
        "publishers are held back above {} of memory",
        "a share of the memory that the broker may use, 0 to 1 (0 holds publishers back at once), or "
        "'absolute' and an amount: absolute 512MB, absolute 1GiB",
        ("absolute", "relative"),
    ),
    "set-disk-free-limit": _limit(
        DISK,
        "Change below how much free disk a running broker holds publishers back.",
        "publishers are held back below {} of free disk",
        "an amount (1GB, 500MiB; without a unit bytes), or 'mem_relative' and a multiple of the memory that "
        "the broker may use: mem_relative 1.5",
        ("absolute", "mem_relative"),
    ),
}

DECLARE: Final[Mapping[str, CommandCall]] = {
    "queue": CommandCall(
        "declare-queue",
        partial(_declared, "queue"),
        without=("exclusive",),
        more=_add_queue_type,
        prepare=_with_type,
    ),
    "exchange": CommandCall("declare-exchange", partial(_declared, "exchange")),
}
DELETE: Final[Mapping[str, CommandCall]] = {
    "queue": CommandCall(
        "delete-queue",
        lambda a, gone: f"queue '{a.name}' deleted with {counted(gone['message_count'], 'ready message')}",
        prepare=_queue_is_there,
    ),
    "exchange": CommandCall(
        "delete-exchange", lambda a, gone: f"exchange '{a.name}' deleted", prepare=_exchange_is_there
    ),
    "vhost": _DELETE_VHOST,
    "user": _DELETE_USER,
}


COMMANDS: Final = (
    command_of_kinds("declare", DECLARE, "KIND"),
    command_of_kinds("delete", DELETE, "KIND"),
    *(call.command(name) for name, call in CALLS.items()),
)
