"""The settings that a broker goes by, as a file that gives the same ones."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from amqp10broker.config.records import CONFIG_SETTINGS, FLOW_SETTINGS, Config


def effective(config: Config) -> str:
    """All settings as TOML, one a line, in the order of the documentation; secrets are not told.

    Users, queues and overrides are left out: what is declared stands in the definitions.

    Args:
        config: as it is now.
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
