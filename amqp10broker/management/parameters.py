"""Operations on parameters of the whole broker, which people and their tools keep there: set, clear.

They are for administrators: users with that tag, and the machine's owner at the local socket.
"""

from __future__ import annotations

from typing import Any

from amqp10broker.catalog.vhost_requests import ClearGlobalParameter, SetGlobalParameter
from amqp10broker.errors import BadRequest
from amqp10broker.management.caller import Caller, Proposal


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
