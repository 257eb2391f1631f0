"""The broker's settings: definitions, checks, and sources.

`settings` describes and checks one scalar setting; `records` has the immutable records that the rest of
the broker reads; `load` merges file, environment and command line.
"""

from __future__ import annotations

from amqp10broker.config.settings import (
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
