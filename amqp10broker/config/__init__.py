"""The broker's settings: what they are, what they may be, and where they come from.

`settings` describes one scalar setting (unit, range, meaning) and checks a value against it;
`records` holds the frozen records that the rest of the broker reads; `load` merges file,
environment and command line. Nothing here starts anything, and a record that exists is valid.
"""

from __future__ import annotations

from amqp10broker.config.records import (
    Config,
    FaultInjection,
    FlowOverride,
    FlowSettings,
    QueueDeclaration,
    User,
)
from amqp10broker.errors import ConfigError

__all__ = [
    "Config",
    "ConfigError",
    "FaultInjection",
    "FlowOverride",
    "FlowSettings",
    "QueueDeclaration",
    "User",
]
