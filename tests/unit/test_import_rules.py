"""The checker of the import rules catches what it is for."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_imports", ROOT / ".ci" / "check_imports.py")
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


rules = _load()


@pytest.mark.parametrize(
    ("path", "source", "fault"),
    [
        ("queues/classic/queue.py", "import trio", "trio may be imported by runtime/"),
        ("protocols/x.py", "def f():\n    import trio", "protocols/x.py:2: trio may be imported by"),
        ("runtime/reader.py", "import requests", "requests may be imported by no file only"),
        ("cli/main.py", "import structlog", "structlog may be imported by"),
        ("protocols/x.py", "from amqp10broker.queues import queue", "protocols may not import queues"),
        ("protocols/x.py", "import amqp10broker.runtime.reader", "protocols may not import runtime"),
        ("queues/queue.py", "from amqp10broker.sessions import x", "queues may not import sessions"),
        ("sessions/x.py", "from amqp10broker.runtime import mailbox", "sessions may not import runtime"),
        ("spark/x.py", "import amqp10broker.protocols.amqp091.methods", "spark may not import protocols"),
        ("routing/router.py", "from amqp10broker import Config", "routing may not import __init__"),
        ("protocols/amqp10/link.py", "from .. import queues", "relative import"),
        ("protocols/amqp10/session.py", "import time", "time in a pure room; time comes in as `now`"),
        ("protocols/amqp10/session.py", "from time import monotonic", "time.monotonic in a pure room"),
        ("sessions/links.py", "import random", "random numbers come in"),
        ("config/load.py", "from os import environ", "os.environ in a pure room"),
        ("queues/queue.py", "import os\nos.urandom(4)", "os in a pure room"),
        ("message/message.py", "import socket", "socket in a pure room"),
        ("queues/queue.py", "import threading", "threading in a pure room"),
        ("protocols/x.py", "import uuid\nuuid.uuid4()", "protocols/x.py:2: uuid.uuid4 in a pure room"),
        ("protocols/amqp10/types.py", "from uuid import uuid4 as u\nu()", "uuid.uuid4 in a pure room"),
        ("queues/queue.py", "from datetime import datetime\ndatetime.now()", "datetime.datetime.now in"),
        ("storage/journal.py", "import time", "time in a pure room"),
        ("shed/tools.py", "", "the room 'shed' is not in the table"),
        ("runtime/queues/queues.py", "vhost.drop_queue('q')", "drop_queue changes what is declared; propose"),
        ("operations/accounts.py", "catalog.users.put_entry(key)", "put_entry changes what is declared"),
        ("metadata/queue_requests.py", "catalog.apply(puts)", "catalog.apply changes what is declared"),
        ("runtime/journal/data.py", "self._catalog.apply(puts)", "catalog.apply changes what is declared"),
    ],
)
def test_a_violation_is_caught(path: str, source: str, fault: str) -> None:
    assert any(fault in each for each in rules.check_source(source, path)), rules.check_source(source, path)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("runtime/reader.py", "import trio, structlog, time\nfrom amqp10broker.sessions import publisher"),
        ("cli/serve.py", "import trio\nfrom amqp10broker.runtime.broker import run_broker"),
        ("cli/main.py", "import amqp10broker\nfrom amqp10broker import __version__"),
        ("client/trio.py", "import trio\nfrom amqp10broker.protocols.amqp10 import session"),
        (
            "sessions/x.py",
            "import amqp10broker.protocols.amqp10.link\nfrom amqp10broker.config import Config",
        ),
        ("protocols/x.py", "from uuid import UUID\nfrom datetime import datetime\ndatetime(1970, 1, 1)"),
        ("config/load.py", "from os import PathLike, fspath"),
        ("storage/disk.py", "import os, fcntl\nfrom amqp10broker.errors import StorageError"),
        ("errors.py", "from dataclasses import field, replace"),
        ("__init__.py", "def __getattr__(name):\n    from amqp10broker.runtime.broker import Broker"),
    ],
)
def test_what_is_allowed_is_let_through(path: str, source: str) -> None:
    assert rules.check_source(source, path) == []


def test_the_table_has_no_cycle_and_a_cycle_would_be_found() -> None:
    assert rules.table_cycles() == []
    room = rules.Room
    bad = {"a": room(frozenset({"b"}), "x"), "b": room(frozenset({"a"}), "x")}
    assert "the table of rooms has a cycle: " in rules.table_cycles(bad)[0]


def test_modules_that_import_each_other_while_loading_are_found() -> None:
    sources = {
        "queues/a.py": "from amqp10broker.queues import b",
        "queues/b.py": "from amqp10broker.queues.a import X",
    }
    assert "amqp10broker.queues.a" in rules.module_cycles(sources)[0]


def test_imports_for_types_alone_make_a_circle_too() -> None:
    """A reader follows these imports too: there was a circle of nineteen files."""
    types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from amqp10broker.metadata.a import X"
    sources = {"metadata/a.py": "from amqp10broker.metadata import b", "metadata/b.py": types}
    assert "amqp10broker.metadata.a" in rules.module_cycles(sources)[0]


# Put together here, so that the check does not find them in this file.
OUTSIDE = [
    "see .." + "/shared/spec",
    "/home" + "/ann/broker",
    "cd /root" + "/x",
    "C:\\" + "Users\\ann",
    "`/work" + "/main`",
]


@pytest.mark.parametrize("line", OUTSIDE)
def test_places_outside_the_repository_are_found(line: str) -> None:
    assert rules.outside_mentions(f"fine\n{line}\n", "a.md")[0].startswith("a.md:2: names ")
