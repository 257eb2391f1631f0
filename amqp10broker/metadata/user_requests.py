"""Adding, changing and deleting users and their permissions: requests and their plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import PreconditionFailed
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.limits import UserLimits
from amqp10broker.metadata.plan import Key, Plan, Put
from amqp10broker.metadata.users import (
    Permission,
    TopicPermission,
    User,
    Users,
    check_user_name,
)


@dataclass(frozen=True, slots=True)
class PutUser:
    """There shall be this user; all that was known of it before is replaced, but for its permissions. `new`:
    there must be none of this name.
    """

    user: User
    new: bool = False

    def plan(self, catalog: Catalog) -> Plan[User]:
        name = self.user.name
        check_user_name(name)
        if self.new and name in catalog.users:
            raise PreconditionFailed(f"user '{name}'", f"user '{name}' exists; change or delete it instead")
        return _put(catalog.users, self.user)


@dataclass(frozen=True, slots=True)
class ChangeUser:
    """Fields of a user shall be others. `changes`: by name. Limits are as `UserLimits.read` takes them: those
    that are not named stay, and so does what is open already.
    """

    name: str
    changes: Mapping[str, Any] = field(hash=False)

    def plan(self, catalog: Catalog) -> Plan[User]:
        user, changes = catalog.users.lookup(self.name), dict(self.changes)
        if "limits" in changes:
            limits = {**user.limits.as_dict(), **changes["limits"]}
            changes["limits"] = UserLimits.read(limits, f"user '{self.name}'")
        return _put(catalog.users, replace(user, **changes))


@dataclass(frozen=True, slots=True)
class DeleteUser:
    """A user shall be gone, with its permissions."""

    name: str

    def plan(self, catalog: Catalog) -> Plan[None]:
        catalog.users.lookup(self.name)
        return Plan(None, forgets=[*permissions_of(catalog.users, user=self.name), ("user", self.name)])


@dataclass(frozen=True, slots=True)
class SetPermission:
    """A user shall have this permission in a virtual host; None: it shall not enter it any more."""

    user: str
    vhost: str
    permission: Permission | None

    def plan(self, catalog: Catalog) -> Plan[None]:
        catalog.lookup_vhost(self.vhost)
        catalog.users.lookup(self.user)
        if catalog.users.permission(self.user, self.vhost) == self.permission:
            return Plan(None)
        key = ("permission", self.user, self.vhost)
        if self.permission is None:
            return Plan(None, forgets=[key])
        return Plan(None, [Put(key, self.permission)])


@dataclass(frozen=True, slots=True)
class SetTopicPermission:
    """A user's routing keys at a topic exchange, which need not exist yet, shall be restricted."""

    user: str
    vhost: str
    exchange: str
    permission: TopicPermission

    def plan(self, catalog: Catalog) -> Plan[None]:
        catalog.lookup_vhost(self.vhost)
        catalog.users.lookup(self.user)
        if catalog.users.topic_permission(self.user, self.vhost, self.exchange) == self.permission:
            return Plan(None)
        key = ("topic_permission", self.user, self.vhost, self.exchange)
        return Plan(None, [Put(key, self.permission)])


@dataclass(frozen=True, slots=True)
class ClearTopicPermission:
    """The restriction at one exchange, with `exchange` None at all of the virtual host, shall be lifted."""

    user: str
    vhost: str
    exchange: str | None = None

    def plan(self, catalog: Catalog) -> Plan[None]:
        catalog.lookup_vhost(self.vhost)
        catalog.users.lookup(self.user)
        return Plan(
            None,
            forgets=[
                ("topic_permission", user, vhost, exchange)
                for user, vhost, exchange, _ in catalog.users.topic_permissions()
                if (user, vhost) == (self.user, self.vhost) and self.exchange in (None, exchange)
            ],
        )


# --- steps of the above ---------------------------------------------------------------------------


def permissions_of(users: Users, *, user: str | None = None, vhost: str | None = None) -> list[Key]:
    """The keys of all permissions of a user, or in a virtual host."""
    return [
        *(
            ("topic_permission", whose, where, exchange)
            for whose, where, exchange, _ in users.topic_permissions()
            if user in (None, whose) and vhost in (None, where)
        ),
        *(
            ("permission", whose, where)
            for whose, where, _ in users.permissions()
            if user in (None, whose) and vhost in (None, where)
        ),
    ]


def _put(users: Users, user: User) -> Plan[User]:
    return Plan(user) if users.find(user.name) == user else Plan(user, [Put(("user", user.name), user)])
