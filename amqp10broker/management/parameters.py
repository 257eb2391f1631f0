"""Operations on parameters that people and their tools keep: of plugins, and of the whole broker.

They are for administrators: users with that tag, and the machine's owner at the local socket.
"""

from __future__ import annotations

from typing import Any

from amqp10broker.catalog.vhost_requests import ClearGlobalParameter, ClearParameter, SetGlobalParameter
from amqp10broker.errors import BadRequest
from amqp10broker.management.caller import Caller, Proposal


def clear_parameter(caller: Caller, component: str, name: str) -> Proposal:
    """Forget what definitions of RabbitMQ said for one of its plugins.

    Raises:
        NotFound: there is nothing of this component and name.
        PermissionDenied: the caller is no administrator.
    """
    caller.may_administer("clear-parameter")
    return Proposal(ClearParameter(caller.vhost.name, component, name))


def set_global_parameter(caller: Caller, name: str, value: Any) -> Proposal:
    """Keep a value under a name, whatever it is.

    Raises:
        BadRequest: the name is empty.
        PermissionDenied: the caller is no administrator.
    """
    caller.may_administer("set-global-parameter")
    if not name:
        raise BadRequest("global parameter", "the parameter has no name: give one")
    return Proposal(SetGlobalParameter(name, value))


def clear_global_parameter(caller: Caller, name: str) -> Proposal:
    """Forget what is kept under a name.

    Raises:
        NotFound: there is nothing.
        PermissionDenied: the caller is no administrator.
    """
    caller.may_administer("clear-global-parameter")
    return Proposal(ClearGlobalParameter(name))
