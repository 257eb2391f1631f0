"""How many connections, channels and queues a virtual host or a user may have.

The records hold what an administrator set; `usage` counts what is there. Limits of the whole node are
settings of the broker and not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Self

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import InvalidArgument, hint


@dataclass(frozen=True, slots=True)
class _Limits:
    """Limits by the names that RabbitMQ gives them, with dashes; None is no limit, 0 allows nothing."""

    @classmethod
    def read(cls, values: Mapping[str, Any], resource: str) -> Self:
        known = {field.name.replace("_", "-"): field.name for field in fields(cls)}
        given: dict[str, int | None] = {}
        for name, value in values.items():
            if name not in known:
                raise InvalidArgument(
                    resource, f"{resource}: there is no limit '{name}'; {hint(name, sorted(known))}"
                )
            if isinstance(value, bool) or not isinstance(value, int):
                raise InvalidArgument(
                    resource,
                    f"{resource}: limit '{name}' is {value!r}; must be an integer (negative: no limit)",
                )
            given[known[name]] = value if value >= 0 else None
        return cls(**given)

    def as_dict(self) -> dict[str, int]:
        # Those that are set, by RabbitMQ's names.
        values = ((field.name.replace("_", "-"), getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in values if value is not None}


@dataclass(frozen=True, slots=True)
class VhostLimits(_Limits):
    max_connections: int | None = None
    max_queues: int | None = None


@dataclass(frozen=True, slots=True)
class UserLimits(_Limits):
    """The limits of one user, over all virtual hosts."""

    max_connections: int | None = None
    max_channels: int | None = None
    """Channels of AMQP 0-9-1 and sessions of AMQP 1.0 together."""
