"""All operations, for the front ends that select them by name: the HTTP API and the local socket
(`runtime.admin.admin`), which can wait for tasks, and the command line.

The management node of AMQP 1.0 (`amqp_node`) and the methods of AMQP 0-9-1 (`sessions.amqp091.base`) name the
few operations that they perform.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from amqp10broker.errors import NotFound
from amqp10broker.operations import accounts, bindings, cluster, doctor, members, policies, queues, running
from amqp10broker.operations.operation import REGISTERED, Operation

_MODULES: Final = [
    module.__name__ for module in (queues, bindings, accounts, policies, running, cluster, members, doctor)
]
"""The modules of operations, in the order of the help."""

OPERATIONS: Final[Mapping[str, Operation]] = {
    each.name: each for each in sorted(REGISTERED, key=lambda each: _MODULES.index(each.run.__module__))
}


def operation_named(name: str) -> Operation:
    """Return the operation. Raises `NotFound`."""
    if name not in OPERATIONS:
        raise NotFound(f"operation '{name}'", f"no operation '{name}'; there are {', '.join(OPERATIONS)}")
    return OPERATIONS[name]
