"""``amqp10broker cluster new-secret``."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from amqp10broker.cli.exits import EXIT_OK, EXIT_USAGE
from amqp10broker.cli.main import main


def test_new_secret_is_for_its_owner_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The secret is random each time and never printed."""
    secrets = []
    for name in ("one", "two"):
        path = tmp_path / name
        assert main(["cluster", "new-secret", str(path)]) == EXIT_OK
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        secrets.append(path.read_text().strip())
    assert secrets[0] != secrets[1]
    assert all(16 <= len(secret) <= 255 for secret in secrets)
    assert not any(secret in capsys.readouterr().out for secret in secrets)


def test_file_that_is_there_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """This includes a dangling symbolic link."""
    path = tmp_path / "secret"
    path.write_text("in use")
    assert main(["cluster", "new-secret", str(path)]) == EXIT_USAGE
    assert path.read_text() == "in use"
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    assert main(["cluster", "new-secret", str(link)]) == EXIT_USAGE
    assert not (tmp_path / "elsewhere").exists()
    assert capsys.readouterr().err.count("exists already") == 2
