"""The versions of RabbitMQ that the broker can emulate: one table of their differences.

`ROWS` has each difference. The broker's behaviour follows from `Rules`, a record made from the table once: no
other code compares versions. The rules of quorum queues are fixed when a queue is declared
(`metadata.queue.QueueSpec.rules`), because all members of a queue must apply the same rules. The others are
those of the node to which a client is connected (docs/adr/0065).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

from amqp10broker.dataclass import dataclass

VERSIONS: Final = ("3.13", "4.0", "4.2", "4.3")
"""The possible values of `emulate`, oldest first."""
EMULATE_FORM: Final = f"must be one of {', '.join(VERSIONS)}"
_PREFIX: Final = "rabbitmq-"

ADDRESS_V1: Final = "amqp_address_v1"
TRANSIENT: Final = "transient_nonexcl_queues"
GLOBAL_QOS: Final = "global_qos"
MASTER_LOCATOR: Final = "queue_master_locator"


@dataclass(frozen=True, slots=True)
class Row:
    """One difference between versions.

    Attributes:
        name: the field of `queues.settings.QueueSettings`, the deprecated feature, or the announced property.
        values: by version, in the order of `VERSIONS`.
        unset: the value without the setting `emulate`.
        change: the change for clients, as a sentence.
        applied: the module that applies it.
        to_do: the remedy for an affected client.
    """

    name: str
    values: tuple[Any, Any, Any, Any]
    unset: Any
    change: str
    applied: str
    to_do: str = ""

    def of(self, version: str | None) -> Any:
        return self.unset if version is None else self.values[VERSIONS.index(version)]


ANNOUNCED: Final = (
    Row(
        "version",
        ("3.13.7", "4.0.9", "4.2.11", "4.3.6"),
        "4.3.6",
        "The version in server-properties, in the properties of open and in exported definitions.",
        "sessions.amqp10.open",
    ),
    Row(
        "platform",
        ("Erlang/OTP 26.2.5", "Erlang/OTP 27.3.4", "Erlang/OTP 27.3.4", "Erlang/OTP 29.1.2"),
        "",
        "The platform in the same properties; without `emulate` it names this broker.",
        "sessions.amqp10.open",
    ),
)
QUORUM: Final = (
    Row(
        "priority_levels",
        (1, 2, 2, 32),
        2,
        "Quorum queues have no priorities; two levels of which the high one gets two turns of three; or 32 "
        "strict levels.",
        "queues.quorum.ready",
        "give the same priority to messages of which none may wait for others",
    ),
    Row(
        "delivery_limit",
        (None, 20, 20, 20),
        20,
        "The delivery limit of a quorum queue for which neither argument nor policy says one.",
        "metadata.policies",
        "set x-delivery-limit, or the policy key delivery-limit",
    ),
    Row(
        "limit_counts_failed",
        (False, False, False, True),
        False,
        "The delivery limit counts failed attempts only: basic.nack and `released` return a message without "
        "end. Before, every return counts.",
        "queues.quorum.messages",
        "end a failed attempt by basic.reject, or modified with delivery-failed",
    ),
    Row(
        "unlimited_returns_last",
        (True, True, True, False),
        True,
        "Without a delivery limit, a message that comes back to a quorum queue goes to the tail; or it is "
        "served first.",
        "queues.quorum.messages",
        "set a delivery limit, or delayed-retry-min: a message that fails comes back at once",
    ),
    Row(
        "shows_no_failures",
        (True, True, True, False),
        True,
        "`x-delivery-count` is on every redelivery, also 0; or left out when no attempt has failed.",
        "queues.quorum.messages",
        "read a missing x-delivery-count as 0",
    ),
    Row(
        "drops_next",
        (False, False, False, True),
        False,
        "A full quorum queue that drops its head drops the message that is next, of the highest priority; or "
        "one of the lowest.",
        "queues.quorum.ready",
        "bound a queue of messages with priorities by overflow reject-publish",
    ),
)
PERMITTED: Final = (
    Row(
        TRANSIENT,
        (True, True, True, True),
        True,
        "Queues that are neither durable nor exclusive are declared; where they are not permitted: 541.",
        "metadata.queue_requests",
        "declare the queue durable or exclusive; Celery: control_queue_exclusive, event_queue_exclusive",
    ),
    Row(
        GLOBAL_QOS,
        (True, True, True, False),
        True,
        "basic.qos with global=true limits the channel; where it is not permitted it counts as global=false.",
        "sessions.amqp091.channel",
        "limit each consumer: basic.qos with global=false before basic.consume",
    ),
    Row(
        ADDRESS_V1,
        (True, True, True, False),
        True,
        "A bare name is the address of a queue in AMQP 1.0; where it is not permitted, amqp:invalid-field.",
        "routing.address",
        "write /queues/ before the name of the queue",
    ),
    Row(
        MASTER_LOCATOR,
        (True, True, True, False),
        True,
        "The argument x-queue-master-locator is accepted; where it is not permitted: 541.",
        "metadata.queue_requests",
        "write queue-leader-locator",
    ),
)
"""Deprecated features. The settings permit_NAME override the version (deprecated_features.permit.NAME)."""
ROWS: Final = (*ANNOUNCED, *QUORUM, *PERMITTED)


@dataclass(frozen=True, slots=True)
class Rules:
    """The behaviour of the broker where versions of RabbitMQ differ.

    Attributes:
        version: the announced version.
        platform: the announced platform; empty: this broker's own.
        quorum: fields of `QueueSettings` of a new quorum queue that are not the defaults.
        denied: names of the deprecated features that are not permitted.
    """

    version: str
    platform: str
    quorum: Mapping[str, Any]
    denied: frozenset[str]


def version_of(written: str) -> str:
    """Return the version that a setting names: ``4.3`` or ``rabbitmq-4.3``. Raises `ValueError`."""
    version = written.removeprefix(_PREFIX)
    if version not in VERSIONS:
        raise ValueError(written)
    return version


@lru_cache(maxsize=64)
def rules_of(emulate: str | None, permitted: tuple[bool | None, ...] = (None,) * len(PERMITTED)) -> Rules:
    """Make the rules of a version; None: those without `emulate`. `permitted`: for each row of `PERMITTED`
    the value of its setting, or None.
    """
    version = None if emulate is None else version_of(emulate)
    announced, platform = (row.of(version) for row in ANNOUNCED)
    return Rules(
        announced,
        platform,
        {row.name: row.of(version) for row in QUORUM if row.of(version) != row.unset},
        frozenset(
            row.name
            for row, said in zip(PERMITTED, permitted, strict=True)
            if not (row.of(version) if said is None else said)
        ),
    )


UNSET: Final = rules_of(None)
"""The rules without any setting."""


class ChangeState(StrEnum):
    """What an upgrade does to a use of a row, the worst first."""

    DENIED = "denied"
    CHANGED = "changed"
    DEPRECATED = "deprecated"


@dataclass(frozen=True, slots=True)
class UpgradeFinding:
    """A use that another version refuses or handles differently. `finding`: the name of a row of `ROWS`.
    `who`: the name or address of the client, queue or policy (`kind`). `to_do`: before the upgrade.
    """

    finding: str
    state: ChangeState
    kind: str
    who: str
    vhost: str
    what: str
    to_do: str


class Upgrade:
    """The findings of an upgrade to a version, each once."""

    def __init__(self, to: str) -> None:
        """Create without findings. Raises `ValueError` if the version does not exist."""
        self._to = version_of(to)
        self._found: dict[tuple[str, ...], UpgradeFinding] = {}

    def use(self, name: str, of: tuple[str, str, str], what: str, **now: Any) -> None:
        """Report a use of a row. `of`: kind, name and virtual host of the user. `now`: the rules of a quorum
        queue, where they are not the defaults.
        """
        row = _BY_NAME[name]
        value = row.of(self._to)
        if row in PERMITTED:
            state = ChangeState.DEPRECATED if value else ChangeState.DENIED
        elif value == now.get(name, row.unset):
            return
        else:
            state = ChangeState.CHANGED
        self._found.setdefault((name, *of), UpgradeFinding(name, state, *of, what, row.to_do))

    def findings(self) -> list[UpgradeFinding]:
        """Return the findings, the worst first."""
        order = list(ChangeState)
        return sorted(
            self._found.values(), key=lambda each: (order.index(each.state), each.finding, each.who)
        )


_BY_NAME: Final = {row.name: row for row in ROWS}
