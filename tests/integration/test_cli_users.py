"""Users, permissions, limits and virtual hosts by command, against the real process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.command_line import CommandLine

pytestmark = pytest.mark.integration

FIRST_PASSWORD = "halibut"
"""Of the fixture's user: a word that no other test writes, for the log is looked through for it."""


@pytest.fixture
def run(broker: BrokerProcess) -> CommandLine:
    return CommandLine(broker)


@pytest.fixture
def user(run: CommandLine, queue: str) -> Any:
    run("user", "add", queue, "--tag", "monitoring", stdin=FIRST_PASSWORD.encode() + b"\n")
    yield queue
    run.done("user", "delete", queue)


def as_user(user: str, password: str = FIRST_PASSWORD) -> tuple[str, ...]:
    return ("--user", user, "--password", password)


def test_a_user_may_do_what_the_permissions_say(run: CommandLine, user: str) -> None:
    """From nothing to publishing to one queue, and back."""
    mine = f"{user}-mine"
    run("queue", "declare", mine)
    publish = ("publish", "--queue", mine, "m", *as_user(user))
    assert f"access to vhost '/' refused for user '{user}'" in run.fails(1, *publish)
    assert run("permission", "set", user, "", ".*", "^never$") == f"permissions of user '{user}' set\n"
    assert run(*publish) == f"1 message accepted by queue '{mine}'\n"
    complaint = run.fails(1, "get", mine, *as_user(user))
    assert f"read access to queue '{mine}' in vhost '/' refused for user '{user}'" in complaint
    rows = run.json("permission", "list")
    assert {"user": user, "configure": "", "write": ".*", "read": "^never$"} in rows
    run("permission", "clear", user)
    assert user not in [row["user"] for row in run.json("permission", "list")]
    assert "refused" in run.fails(1, *publish)


def test_passwords_come_from_files_or_standard_input(run: CommandLine, user: str, tmp_path: Path) -> None:
    """Never from the command line; the new one counts at once, and the log knows neither."""
    since = len(run.broker.log)
    run("permission", "set", user, ".*", ".*", ".*")
    run("queue", "declare", user)
    run("publish", "--queue", user, "m", *as_user(user))
    (tmp_path / "p").write_text("swordfish\n")
    run("user", "set-password", user, "--password-file", str(tmp_path / "p"))
    assert "refused user and password" in run.fails(1, "publish", "--queue", user, "m", *as_user(user))
    run("publish", "--queue", user, "m", "--user", user, "--password-file", str(tmp_path / "p"))
    run("user", "set-password", user, "--no-password")
    refused = run.fails(1, "publish", "--queue", user, "m", *as_user(user, "swordfish"))
    assert "refused user and password" in refused
    assert "the password is empty" in run.fails(2, "user", "set-password", user, stdin=b"\n")
    assert "exists" in run.fails(1, "user", "add", user, stdin=b"x")
    logged = str(run.broker.log[since:])
    assert user in logged
    assert "swordfish" not in logged
    assert FIRST_PASSWORD not in logged
