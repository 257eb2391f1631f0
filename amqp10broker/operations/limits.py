"""Operations on limits of virtual hosts and users.

They are for administrators (users with that tag, and the machine's owner at the local socket), and raise
`PermissionDenied` for others. A missing user or virtual host raises `NotFound`.
"""

from __future__ import annotations

from typing import Any

from amqp10broker.metadata.user_requests import ChangeUserLimits
from amqp10broker.metadata.vhost_requests import ChangeVhostLimits
from amqp10broker.operations.caller import Caller, ProposedChange


def set_vhost_limits(caller: Caller, vhost: str | None, limits: dict[str, Any]) -> ProposedChange:
    """Change limits of a virtual host; those not given stay, a negative number removes one.

    Existing objects stay, even if there are more than the limit. Raises `InvalidArgument` if the limit does
    not exist, or is not an integer.
    """
    caller.may_administer("set-vhost-limits")
    name = caller.vhost.name if vhost is None else vhost
    return ProposedChange(ChangeVhostLimits(name, limits), lambda changed: changed.as_dict())


def set_user_limits(caller: Caller, user: str, limits: dict[str, Any]) -> ProposedChange:
    """Change limits of a user; those not given stay, a negative number removes one.

    Open connections stay open. Raises `InvalidArgument` if the limit does not exist, or is not an integer.
    """
    caller.may_administer("set-user-limits")
    return ProposedChange(ChangeUserLimits(user, limits), lambda changed: changed.limits.as_dict())
