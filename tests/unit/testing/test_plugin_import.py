"""Every run of pytest loads the plugin, so it costs next to nothing until a test asks for a broker."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

from amqp10broker.testing import plugin

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]


def test_the_entry_point_names_the_plugin() -> None:
    """With the extra `testing`, which brings pytest."""
    assert PROJECT["entry-points"]["pytest11"] == {"amqp10broker": "amqp10broker.testing.plugin"}
    assert import_module("amqp10broker.testing.plugin") is plugin
    assert [each.partition(">")[0] for each in PROJECT["optional-dependencies"]["testing"]] == ["pytest"]


def test_the_plugin_imports_pytest_and_nothing_of_the_broker() -> None:
    program = (
        "import sys, pytest; before = set(sys.modules); import amqp10broker.testing.plugin; "
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["amqp10broker", "amqp10broker.testing", "amqp10broker.testing.plugin"]
