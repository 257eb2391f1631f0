"""docs/limits-and-hardening.md says the truth: names exist, figures are the code's, none is missing."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from amqp10broker.config.records import SETTINGS, Config

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "limits-and-hardening.md").read_text()
ROW = re.compile(r"^\| `([a-z0-9_.A-Z]+)` \| ([0-9 ]+) \|", re.MULTILINE)
ROWS = [(name, int(value.replace(" ", ""))) for name, value in ROW.findall(DOCUMENT)]

NOT_LIMITS = {
    *("port", "tls_port", "cluster_port", "record_every", "quorum_reconciliation_target_group_size"),
    *("quorum_initial_group_size", "cluster_target_size"),
    "otel_metrics_interval_ms",
    *("quorum_reconciliation_interval_ms", "quorum_reconciliation_trigger_interval_ms"),
}
"""Settings that are numbers, and bound nothing."""


def default_of(setting: str) -> object:
    config = Config()
    return getattr(config, setting) if hasattr(config, setting) else getattr(config.flow, setting)


@pytest.mark.parametrize(("name", "value"), ROWS)
def test_a_figure_is_that_of_the_code(name: str, value: int) -> None:
    """A setting's default, or a constant where the page says that it is."""
    if "." not in name:
        assert default_of(name) == value
        return
    module, _, constant = name.rpartition(".")
    assert getattr(import_module(f"amqp10broker.{module}"), constant) == value


def test_every_setting_that_bounds_something_is_on_the_page() -> None:
    """A new one needs a row that says what happens beyond it."""
    numbers = {name for name in SETTINGS if type(default_of(name)) is int} - NOT_LIMITS
    assert numbers == {name for name, _ in ROWS if "." not in name}
