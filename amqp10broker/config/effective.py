"""The present settings of a broker as a configuration file."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from amqp10broker.config.records import CONFIG_SETTINGS, FLOW_SETTINGS, Config


def effective(config: Config) -> str:
    """Return all settings as TOML, one a line, in the order of the documentation, without secrets.

    Users, queues and overrides are left out: the definitions contain declared objects.
    """
    told = {each.name for each in fields(config) if each.repr}
    lines = [_line(name, getattr(config.flow, name)) for name in FLOW_SETTINGS]
    for name in CONFIG_SETTINGS:
        lines.append(_line(name, getattr(config, name)) if name in told else f"# {name} is not shown")
    return "\n".join(lines) + "\n"


def _line(name: str, value: Any) -> str:
    if value is None:
        return f"# {name} is not set"
    return f"{name} = {json.dumps(value, ensure_ascii=False)}"
