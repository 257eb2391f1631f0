"""Running `amqp10broker` as a user does, against a broker process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from tests.support.broker_process import REPOSITORY, WAIT_S, BrokerProcess

_AS_CLIENT = ("publish", "get", "ping")


class CommandLine:
    """Commands for one broker."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker

    def __call__(self, *arguments: str, stdin: bytes = b"") -> str:
        """Run a command that must succeed and complain of nothing; what it printed."""
        done = self.done(*arguments, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, b""), done
        return done.stdout.decode()

    def json(self, *arguments: str) -> Any:
        """As above, of a command that prints JSON."""
        return json.loads(self(*arguments, "--format", "json"))

    def fails(self, code: int, *arguments: str, stdin: bytes = b"") -> str:
        """Run a command that must end with this code and print nothing but one line of complaint."""
        done = self.done(*arguments, stdin=stdin)
        assert (done.returncode, done.stdout) == (code, b""), done
        complaint = done.stderr.decode()
        assert complaint.count("\n") == 1, complaint
        assert complaint.startswith("amqp10broker: ")
        return complaint.removeprefix("amqp10broker: ").rstrip("\n")

    def done(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run a command to its end."""
        broker = self.broker
        where = ("--port", str(broker.port))
        if arguments[0] not in _AS_CLIENT:
            where = ("--admin-socket", broker.admin_socket)
        return subprocess.run(
            [sys.executable, "-m", "amqp10broker", *arguments, *where],
            cwd=REPOSITORY,
            env={name: text for name, text in os.environ.items() if not name.startswith("AMQP10BROKER_")},
            input=stdin,
            capture_output=True,
            timeout=WAIT_S,
            check=False,
        )
