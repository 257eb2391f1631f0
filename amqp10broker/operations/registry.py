"""Executes operations for a caller.

The front ends are the management node of AMQP 1.0 (`amqp_node`), the methods of AMQP 0-9-1
(`sessions.amqp091.base`), and, where tasks can be waited for, the HTTP API and the local socket
(`runtime.admin.admin`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Mapping
from typing import Any, Final

from amqp10broker.errors import NotFound, PermissionDenied, RefusedError
from amqp10broker.operations import accounts, bindings, cluster, doctor, members, policies, queues, running
from amqp10broker.operations.members import node_named
from amqp10broker.operations.node import Caller, Steps
from amqp10broker.operations.operation import FOR_ADMINISTRATORS, REGISTERED, Operation, checked

_MODULES: Final = [
    module.__name__ for module in (queues, bindings, accounts, policies, running, cluster, members, doctor)
]
"""In the order of the help."""

OPERATIONS: Final[Mapping[str, Operation]] = {
    each.name: each for each in sorted(REGISTERED, key=lambda each: _MODULES.index(each.run.__module__))
}


def perform(caller: Caller, name: str, given: Mapping[str, object]) -> Steps[Any]:
    """Execute an operation. Raises `RefusedError` if nothing was changed."""
    operation = OPERATIONS.get(name)
    if operation is None:
        raise NotFound(f"operation '{name}'", f"no operation '{name}'; there are {', '.join(OPERATIONS)}")
    try:
        arguments = checked(operation.noun, operation.arguments, given)
        if operation.permission is FOR_ADMINISTRATORS:
            caller.may_administer(name)
        node = arguments.pop("node") if operation.at_node else None
        if node is not None and (number := node_named(caller, node)) != caller.node.cluster.number:
            result = caller.node.cluster.run_at(number, name, arguments, None)
        else:
            result = operation.run(caller, **arguments)
        if isinstance(result, Generator):
            result = yield from result
        elif isinstance(result, Awaitable):
            result = yield result
    except PermissionDenied:
        raise  # it ends the client's session, which is logged by itself
    except RefusedError as refusal:
        _report(caller, operation, given, refusal.description)
        raise
    _report(caller, operation, given, None)
    return result


def _report(caller: Caller, operation: Operation, given: Mapping[str, object], refusal: str | None) -> None:
    if caller.report is not None and operation.changes:
        caller.report(operation.name, operation.subject(given), refusal)
