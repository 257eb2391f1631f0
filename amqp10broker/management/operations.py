"""The table of operations: what can be asked of the broker, whatever the door.

Each has a name, arguments with types and defaults, a permission (checked in the operation itself, where
the names are known) and a result of plain Python values. Before that it may be a `Proposal` to change the
catalog, an `Ask` when a queue must answer first, or a `Wait` for what is decided later. The
doors are the management node of AMQP 1.0 (`amqp_node`) and the command line's local socket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from amqp10broker.errors import NotFound, PermissionDenied, RefusedError
from amqp10broker.management import accounts, bindings, definitions, exchanges, limits, policies, queues
from amqp10broker.management.arguments import Argument, Kind, checked, shown
from amqp10broker.management.caller import Ask, Caller, Proposal, Wait


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation.

    Attributes:
        name: as the command line spells it.
        noun: what its arguments are properties of, for errors.
        arguments: in the order of the command line.
        run: does it; keyword arguments by `arguments`.
        permission: what the caller needs, for people.
        help: one sentence for people.
        changes: it changes what is declared.
    """

    name: str
    noun: str
    arguments: tuple[Argument, ...]
    run: Callable[..., Any]
    permission: str
    help: str
    changes: bool = True


def perform(caller: Caller, name: str, given: Mapping[str, object]) -> Any:
    """Run an operation.

    Args:
        caller: on whose behalf.
        name: in `OPERATIONS`.
        given: arguments by name; null stands for the default.

    Returns:
        The result as plain Python values, or an `Ask` or a `Wait`.

    Raises:
        RefusedError: of the class that says why; nothing was changed.
    """
    operation = OPERATIONS.get(name)
    if operation is None:
        raise NotFound(f"operation '{name}'", f"no operation '{name}'; there are {', '.join(OPERATIONS)}")
    return _step(caller, operation, given, partial(_begin, caller, operation, given))


def _begin(caller: Caller, operation: Operation, given: Mapping[str, object]) -> Any:
    result = operation.run(caller, **checked(operation.noun, operation.arguments, given))
    return result.carried_out(caller) if isinstance(result, Proposal) else result


def _step(
    caller: Caller, operation: Operation, given: Mapping[str, object], go_on: Callable[..., Any], *heard: Any
) -> Any:
    """Go on with an operation, as it begins or with what it has waited for; tell of it when it is over."""
    told = caller.report is not None and operation.changes
    try:
        result = go_on(*heard)
    except RefusedError as refusal:
        if told:
            _report(caller, operation, given, refusal)
        raise
    if isinstance(result, Ask | Wait):
        return replace(result, then=partial(_step, caller, operation, given, result.then))
    if told:
        _report(caller, operation, given)
    return result


def _report(
    caller: Caller, operation: Operation, given: Mapping[str, object], refusal: RefusedError | None = None
) -> None:
    assert caller.report is not None
    if isinstance(refusal, PermissionDenied):
        return  # it ends the client's session, which is told by itself
    named = (
        f"{argument.name}={shown(value)}"
        for argument in operation.arguments
        if argument.kind is Kind.TEXT and not argument.secret
        # What was refused may be of any type.
        if isinstance(value := given.get(argument.name), str)
    )
    subject = f"{operation.noun} {', '.join(named)}".rstrip()
    caller.report(operation.name, subject, None if refusal is None else refusal.description)


_NAME: Final = Argument("name", Kind.TEXT, "its name")
_ARGUMENTS: Final = Argument("arguments", Kind.TABLE, "x-arguments", {})
_IF_UNUSED: Final = Argument("if_unused", Kind.FLAG, "only if nobody uses it", False)
_IF_EMPTY: Final = Argument("if_empty", Kind.FLAG, "only without messages", False)
_DURABLE: Final = Argument("durable", Kind.FLAG, "it survives a restart", True)
_AUTO_DELETE: Final = Argument("auto_delete", Kind.FLAG, "it goes when nobody uses it any more", False)
_ENDS: Final = (
    Argument("source", Kind.TEXT, "name of the exchange"),
    Argument("destination_queue", Kind.TEXT, "name of the bound queue", None),
    Argument("destination_exchange", Kind.TEXT, "name of the bound exchange, instead of a queue", None),
    Argument("binding_key", Kind.TEXT, "routing key or pattern", ""),
)
_USER: Final = Argument("user", Kind.TEXT, "name of the user")
_VHOST: Final = Argument("vhost", Kind.TEXT, "name of the virtual host; the caller's own if not given", None)
_LIMITS: Final = Argument("limits", Kind.TABLE, "by name, as max-connections; a negative number lifts one")
_PASSWORD: Final = Argument("password", Kind.TEXT, "none: nobody can log in with one", None, secret=True)
_TAGS: Final = Argument("tags", Kind.TEXTS, "such as administrator or impersonator", ())
_POLICY: Final = (
    _NAME,
    Argument("pattern", Kind.TEXT, "regular expression on names of queues or exchanges"),
    Argument("definition", Kind.TABLE, "settings by name, as max-length"),
    Argument("priority", Kind.INTEGER, "of several that match, the highest counts", 0),
    Argument("apply_to", Kind.TEXT, "all, queues, classic_queues, quorum_queues, streams, exchanges", "all"),
)
_ADMINISTRATOR: Final = "the tag administrator"


def _pattern(what: str) -> Argument:
    return Argument(what, Kind.TEXT, f"regular expression on names for {what}; empty allows nothing")


_TABLE: Final = (
    Operation(
        "get-queue", "queue", (_NAME,), queues.get_queue,
        "any permission on the queue", "What a queue is and how full it is.", changes=False,
    ),
    Operation(
        "declare-queue", "queue",
        (_NAME, _DURABLE, Argument("exclusive", Kind.FLAG, "for this connection only", False), _AUTO_DELETE,
         _ARGUMENTS),
        queues.declare_queue,
        "configure on the queue; with a dead-letter exchange also read on it and write on that exchange",
        "Make a queue, unless it is there and as asked for.",
    ),
    Operation(
        "delete-queue", "queue", (_NAME, _IF_UNUSED, _IF_EMPTY), queues.delete_queue,
        "configure on the queue", "Delete a queue with its messages.",
    ),
    Operation(
        "purge-queue", "queue", (_NAME,), queues.purge_queue,
        "read on the queue", "Drop the ready messages of a queue.",
    ),
    Operation(
        "list-queues", "queue", (), queues.list_queues,
        "any permission on each", "All queues of the virtual host.", changes=False,
    ),
    Operation(
        "declare-exchange", "exchange",
        (_NAME, Argument("type", Kind.TEXT, "direct, fanout, topic, headers or another kind", "direct"),
         _DURABLE, _AUTO_DELETE, Argument("internal", Kind.FLAG, "clients cannot publish to it", False),
         _ARGUMENTS),
        exchanges.declare_exchange,
        "configure on the exchange; with an alternate exchange also read on it and write on that one",
        "Make an exchange, unless it is there and as asked for.",
    ),
    Operation(
        "delete-exchange", "exchange", (_NAME, _IF_UNUSED), exchanges.delete_exchange,
        "configure on the exchange", "Delete an exchange with its bindings.",
    ),
    Operation(
        "list-exchanges", "exchange", (), exchanges.list_exchanges,
        "any permission on each", "All exchanges of the virtual host.", changes=False,
    ),
    Operation(
        "bind", "binding", (*_ENDS, _ARGUMENTS), bindings.bind,
        "write on the destination, read on the source, and its topic permission",
        "Bind a queue or an exchange to an exchange.",
    ),
    Operation(
        "unbind", "binding", (*_ENDS, _ARGUMENTS), bindings.unbind,
        "write on the destination, read on the source, and its topic permission", "Undo a bind.",
    ),
    Operation(
        "unbind-by-segment", "binding", (Argument("segment", Kind.TEXT, "the last part of its location"),),
        bindings.unbind_by_segment,
        "write on the destination, read on the source, and its topic permission",
        "Undo the bind that a location names.",
    ),
    Operation(
        "get-bindings", "binding", _ENDS, bindings.get_bindings,
        "write on the destination, read on the source",
        "Bindings between an exchange and a destination with one key.", changes=False,
    ),
    Operation(
        "list-bindings", "binding", (), bindings.list_bindings,
        "any permission on the source or the destination of each", "All bindings of the virtual host.",
        changes=False,
    ),
    Operation(
        "add-user", "user",
        (_USER, _PASSWORD, _TAGS),
        accounts.add_user, _ADMINISTRATOR, "Add a user, who may do nothing yet.",
    ),
    Operation(
        "change-password", "user",
        (_USER, _PASSWORD),
        accounts.change_password, _ADMINISTRATOR, "Give a user another password.",
    ),
    Operation(
        "delete-user", "user", (_USER,), accounts.delete_user, _ADMINISTRATOR,
        "Forget a user and its permissions.",
    ),
    Operation(
        "set-tags", "user", (_USER, _TAGS), accounts.set_tags, _ADMINISTRATOR, "Give a user other tags.",
    ),
    Operation(
        "list-users", "user", (), accounts.list_users, _ADMINISTRATOR, "All users.", changes=False,
    ),
    Operation(
        "set-permissions", "permission",
        (_USER, _VHOST, _pattern("configure"), _pattern("write"), _pattern("read")),
        accounts.set_permissions, _ADMINISTRATOR, "Say what a user may do in a virtual host.",
    ),
    Operation(
        "clear-permissions", "permission", (_USER, _VHOST), accounts.clear_permissions, _ADMINISTRATOR,
        "Let a user enter a virtual host no more.",
    ),
    Operation(
        "list-permissions", "permission", (_VHOST,), accounts.list_permissions, _ADMINISTRATOR,
        "Who may do what in a virtual host.", changes=False,
    ),
    Operation(
        "set-topic-permissions", "permission",
        (_USER, _VHOST, Argument("exchange", Kind.TEXT, "name of the topic exchange"), _pattern("write"),
         _pattern("read")),
        accounts.set_topic_permissions, _ADMINISTRATOR, "Restrict a user's routing keys at a topic exchange.",
    ),
    Operation(
        "clear-topic-permissions", "permission",
        (_USER, _VHOST, Argument("exchange", Kind.TEXT, "the topic exchange; none: all of them", None)),
        accounts.clear_topic_permissions, _ADMINISTRATOR, "Lift the restriction of routing keys.",
    ),
    Operation(
        "list-topic-permissions", "permission", (_VHOST,), accounts.list_topic_permissions, _ADMINISTRATOR,
        "Whose routing keys are restricted in a virtual host.", changes=False,
    ),
    Operation(
        "add-vhost", "vhost",
        (_NAME, Argument("description", Kind.TEXT, "for people", ""), _TAGS,
         Argument("default_queue_type", Kind.TEXT, "of queues declared without x-queue-type", None)),
        accounts.add_vhost, _ADMINISTRATOR, "Add a virtual host, which nobody may enter yet.",
    ),
    Operation(
        "delete-vhost", "vhost", (_NAME,), accounts.delete_vhost, _ADMINISTRATOR,
        "Delete a virtual host with all that is in it.",
    ),
    Operation(
        "list-vhosts", "vhost", (), accounts.list_vhosts,
        "a permission in each, or the tag administrator", "All virtual hosts.", changes=False,
    ),
    Operation(
        "set-policy", "policy", _POLICY, policies.set_policy, _ADMINISTRATOR,
        "Set a policy of the virtual host; it acts at once.",
    ),
    Operation(
        "clear-policy", "policy", (_NAME,), policies.clear_policy, _ADMINISTRATOR, "Forget a policy.",
    ),
    Operation(
        "list-policies", "policy", (), policies.list_policies, _ADMINISTRATOR,
        "All policies of the virtual host.", changes=False,
    ),
    Operation(
        "set-operator-policy", "policy", _POLICY, policies.set_operator_policy, _ADMINISTRATOR,
        "Set a policy that bounds what policies and arguments set; it acts at once.",
    ),
    Operation(
        "clear-operator-policy", "policy", (_NAME,), policies.clear_operator_policy, _ADMINISTRATOR,
        "Forget an operator policy.",
    ),
    Operation(
        "list-operator-policies", "policy", (), policies.list_operator_policies, _ADMINISTRATOR,
        "All operator policies of the virtual host.", changes=False,
    ),
    Operation(
        "set-vhost-limits", "vhost", (_VHOST, _LIMITS), limits.set_vhost_limits, _ADMINISTRATOR,
        "Change limits of a virtual host.",
    ),
    Operation(
        "set-user-limits", "user", (_USER, _LIMITS), limits.set_user_limits, _ADMINISTRATOR,
        "Change limits of a user.",
    ),
    Operation(
        "export-definitions", "definitions", (), definitions.export_definitions, _ADMINISTRATOR,
        "Everything that is declared, as one document.", changes=False,
    ),
    Operation(
        "import-definitions", "definitions",
        (Argument("document", Kind.ANY, "as exported, parsed"),
         Argument("skip_unsupported", Kind.FLAG, "leave out queues and exchanges of unknown kinds", False)),
        definitions.import_definitions, _ADMINISTRATOR, "Declare what a document says, or nothing of it.",
    ),
)  # fmt: skip

OPERATIONS: Final[Mapping[str, Operation]] = {operation.name: operation for operation in _TABLE}
