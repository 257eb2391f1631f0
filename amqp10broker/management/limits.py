"""Operations on limits of virtual hosts and users.

They are for administrators: users with that tag, and the machine's owner at the local socket.
"""

from __future__ import annotations

from typing import Any

from amqp10broker.catalog.user_requests import ChangeUserLimits
from amqp10broker.catalog.vhost_requests import ChangeVhostLimits
from amqp10broker.management.caller import Caller, Proposal


def set_vhost_limits(caller: Caller, vhost: str | None, limits: dict[str, Any]) -> Proposal:
    """Change limits of a virtual host; those not given stay, a negative number lifts one.

    What is there already stays, even if it is more than the limit.

    Returns:
        All limits that hold now, by name.

    Raises:
        NotFound: there is no such virtual host.
        InvalidArgument: there is no such limit, or it is no integer.
        PermissionDenied: the caller is no administrator.
    """
    caller.may_administer("set-vhost-limits")
    name = caller.vhost.name if vhost is None else vhost
    return Proposal(ChangeVhostLimits(name, limits), lambda changed: changed.as_dict())


def set_user_limits(caller: Caller, user: str, limits: dict[str, Any]) -> Proposal:
    """Change limits of a user; those not given stay, a negative number lifts one.

    What is open already stays open.

    Returns:
        All limits that hold now, by name.

    Raises:
        NotFound: there is no such user.
        InvalidArgument: there is no such limit, or it is no integer.
        PermissionDenied: the caller is no administrator.
    """
    caller.may_administer("set-user-limits")
    return Proposal(ChangeUserLimits(user, limits), lambda changed: changed.limits.as_dict())
