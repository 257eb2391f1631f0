"""Every run of pytest loads the plugin, so it costs next to nothing until a test asks for a broker."""

from __future__ import annotations

import subprocess
import sys


def test_the_plugin_imports_pytest_and_nothing_of_the_broker() -> None:
    program = (
        "import sys, pytest; before = set(sys.modules); import amqp10broker.testing.plugin; "
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["amqp10broker", "amqp10broker.testing", "amqp10broker.testing.plugin"]
