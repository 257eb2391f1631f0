"""Data folders that releases have written, by `make release`: every later version reads them."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

import amqp10broker
from tests.support.broker_process import StartBroker
from tests.support.release_folder import DATA, FOLDERS, FOUND, found

pytestmark = pytest.mark.usefixtures("deadline")

ARCHIVES = sorted(FOLDERS.glob("*.tar.xz"))


def in_it(old: Any, new: Any) -> bool:
    """Return whether a record has all fields of an older one; it may have more."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(name in new and in_it(value, new[name]) for name, value in old.items())
    return bool(old == new)


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_the_folder_of_a_release_is_read(archive: Path, start_broker: StartBroker, tmp_path: Path) -> None:
    """All declared objects exist, users log in, and each queue has its messages in order."""
    with tarfile.open(archive) as members:
        members.extractall(tmp_path, filter="data")
    (tmp_path / DATA).chmod(0o700)
    before = json.loads((tmp_path / FOUND).read_text(encoding="utf-8"))
    now = found(start_broker("--data-dir", str(tmp_path / DATA)))
    for kind, records in before["definitions"].items():
        for name, record in records.items():
            assert in_it(record, now["definitions"][kind].get(name)), (kind, name)
    assert now["messages"] == before["messages"]
    assert before["messages"]["dead"], "an archive has messages"


def test_this_version_has_a_folder() -> None:
    assert f"{amqp10broker.__version__}.tar.xz" in {path.name for path in ARCHIVES}
