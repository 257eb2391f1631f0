"""Running `amqp10broker` as a user does, against a broker process."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import pytest

from amqp10broker.cli.main import main
from tests.support.broker_process import BrokerProcess

_AS_CLIENT = ("publish", "get", "ping")


class CommandLine:
    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker

    def __call__(self, *arguments: str, stdin: bytes = b"") -> str:
        """Run a command that must succeed without warnings; return its output."""
        done = self.done(*arguments, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, b""), done
        return done.stdout.decode()

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--format", "json"))

    def fails(self, code: int, *arguments: str, stdin: bytes = b"") -> str:
        """Run a command that must exit with this code and print one line of error and nothing else."""
        done = self.done(*arguments, stdin=stdin)
        assert (done.returncode, done.stdout) == (code, b""), done
        complaint = done.stderr.decode()
        assert complaint.count("\n") == 1, complaint
        assert complaint.startswith("amqp10broker: ")
        return complaint.removeprefix("amqp10broker: ").rstrip("\n")

    def done(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run a command to its end.

        It runs in this process: one of its own takes a third of a second to begin, and there are hundreds of
        them. `test_command_line.py` has what only a process shows.
        """
        broker = self.broker
        where = ("--port", str(broker.port))
        if arguments[0] not in _AS_CLIENT:
            where = ("--admin-socket", broker.admin_socket)
        words = [*arguments, *where]
        given, said, complained = (io.TextIOWrapper(io.BytesIO(data), "utf-8") for data in (stdin, b"", b""))
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(said), redirect_stderr(complained):
            patch.setattr(sys, "stdin", given)
            code = main(words)
            said.flush()
            complained.flush()
        return subprocess.CompletedProcess(words, code, said.buffer.getvalue(), complained.buffer.getvalue())
