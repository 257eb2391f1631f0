"""docs/limits-and-hardening.md says the truth: names exist, figures are the code's, none is missing."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from amqp10broker.cli.main import homes
from amqp10broker.config.records import SETTINGS, Config
from amqp10broker.storage.folder import FORMAT

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
    """What a setting is if nobody says anything."""
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


def test_no_name_stands_twice() -> None:
    """A limit has one row."""
    names = [name for name, _ in ROWS]
    assert len(names) == len(set(names)) > 40


def test_settings_commands_and_files_that_the_text_names_exist() -> None:
    """What is told to type can be typed, and what is linked to can be opened."""
    known = {command for home in homes().values() for command in home}
    named = re.findall(
        r"`(?:amqp10broker )?((?:add|set|close|export|import|list|storage)[- ][a-z-]+)", DOCUMENT
    )
    assert len(named) > 8
    assert {command.replace("storage check", "storage") for command in named} <= known
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", DOCUMENT):
        assert (ROOT / "docs" / link).exists(), link
    for setting in re.findall(r"`((?:tls|plain|anonymous|loopback|vm|disk)_[a-z_]+)", DOCUMENT):
        assert setting in SETTINGS or hasattr(Config(), setting), setting


def test_the_format_of_the_data_folder_is_the_one_that_is_named() -> None:
    """It changes with each upgrade that a folder goes through."""
    assert f"(`storage.folder.FORMAT`, today {FORMAT})" in DOCUMENT
