"""Operations on parameters of plugins, and on global parameters, which the broker stores without use.

They are for administrators (users with that tag, and the machine's owner at the local socket), and raise
`PermissionDenied` for others.
"""

from __future__ import annotations

from typing import Any

from amqp10broker.errors import BadRequest
from amqp10broker.metadata.vhost_requests import ClearGlobalParameter, ClearParameter, SetGlobalParameter
from amqp10broker.operations.caller import Caller, ProposedChange


def clear_parameter(caller: Caller, component: str, name: str) -> ProposedChange:
    """Delete a parameter of a RabbitMQ plugin that came with definitions. Raises `NotFound`."""
    caller.may_administer("clear-parameter")
    return ProposedChange(ClearParameter(caller.vhost.name, component, name))


def set_global_parameter(caller: Caller, name: str, value: Any) -> ProposedChange:
    """Store any value under a name. Raises `BadRequest` if the name is empty."""
    caller.may_administer("set-global-parameter")
    if not name:
        raise BadRequest("global parameter", "the parameter has no name: give one")
    return ProposedChange(SetGlobalParameter(name, value))


def clear_global_parameter(caller: Caller, name: str) -> ProposedChange:
    """Delete the value under a name. Raises `NotFound`."""
    caller.may_administer("clear-global-parameter")
    return ProposedChange(ClearGlobalParameter(name))
