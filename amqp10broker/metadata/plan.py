"""Plans of catalog changes: what a request puts and forgets, as entries (docs/adr/0036).

The rules are checked when a request is planned. Applying a plan checks none and refuses nothing, so disk and
other nodes get entries and never requests. An entry is a key, which begins with its kind, and a record::

    vhost                       name                        VhostFacts
    user                        name                        users.User
    permission                  user, vhost                 users.Permission
    topic_permission            user, vhost, exchange       users.TopicPermission
    parameter                   vhost, component, name      JSON
    global_parameter, unknown   name                        JSON
    policy, operator_policy     vhost, name                 policies.Policy
    exchange                    vhost, name                 routing.exchange.ExchangeSpec
    queue                       vhost, name                 queue.QueueSpec
    binding                     vhost, source, kind and name of the destination, routing key,
                                `arguments_identity`        routing.exchange.Binding
    node                        name                        queue.NodeFacts
    cluster                                                 queue.ClusterFacts
    queue_numbers, node_numbers                             the highest number so far
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from enum import Enum
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import InvalidArgument, RefusedError, hint
from amqp10broker.queues.commands import RequestRef
from amqp10broker.routing.exchange import Binding
from amqp10broker.routing.topology import Removal


@dataclass(frozen=True, slots=True)
class _Limits:
    """Limits by RabbitMQ's names, with dashes; None is no limit, 0 allows nothing."""

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
        # Only limits that are set, by RabbitMQ's names.
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


T_co = TypeVar("T_co", covariant=True)

Key = tuple[str, ...]
Record = Any
"""The content of an entry. It is never changed, and compared by value."""

NUMBERS: Final[Key] = ("queue_numbers",)
"""The highest number that any queue may have been given, including deleted ones."""
NODE_NUMBERS: Final[Key] = ("node_numbers",)
CLUSTER: Final[Key] = ("cluster",)

CLUSTER_NAME: Final = "cluster_name"
"""The global parameter with the cluster's name at a node without a cluster."""
CLUSTER_TAGS: Final = "cluster_tags"
"""A global parameter of every new broker, as in RabbitMQ."""


class Put(NamedTuple):
    """A new or changed entry. `kept`: it survives the process; a transient exchange does not."""

    key: Key
    record: Record
    kept: bool = True


@dataclass(frozen=True, slots=True)
class Plan(Generic[T_co]):
    """The result of planning a request.

    Attributes:
        puts: each needs only existing entries, or earlier ones.
        forgets: no later one needs an earlier one.
        used: key of a queue that counts as used, which delays its expiry.
        send_delete: deleted queues get a `Delete`. False: they have ended, or the caller sends `Delete` after
            its earlier commands, because it needs the answer.
    """

    answer: T_co
    puts: Sequence[Put] = ()
    forgets: Sequence[Key] = ()
    used: Key | None = None
    send_delete: bool = True


@dataclass(frozen=True, slots=True)
class Decided:
    """The outcome of a request. `refusal`: None if it is applied."""

    ref: RequestRef
    answer: Any = None
    refusal: RefusedError | None = None

    def result(self) -> Any:
        if self.refusal is not None:
            raise self.refusal
        return self.answer


class Postponed(Enum):
    LATER = "later"


LATER: Final = Postponed.LATER


def binding_key(vhost: str, binding: Binding) -> Key:
    destination = binding.destination
    names = (binding.source, destination.kind, destination.name, binding.routing_key)
    return ("binding", vhost, *names, binding.arguments_identity)


def keys_of(vhost: str, removal: Removal) -> list[Key]:
    keys = [binding_key(vhost, binding) for binding in removal.bindings]
    return [*keys, *(("exchange", vhost, exchange.name) for exchange in removal.exchanges)]


@dataclass(frozen=True, slots=True)
class VhostFacts:
    """The record of a virtual host, without its content. `default_queue_type`: that of a queue declared
    without one; None: the node's.
    """

    name: str
    description: str = ""
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)
    default_queue_type: str | None = None
    limits: VhostLimits = field(default_factory=VhostLimits)
