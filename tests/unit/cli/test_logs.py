"""The log: levels, both forms, and texts of clients that cannot forge an entry."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest
import structlog

from amqp10broker.cli import logs


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def write(form: str, level: str = "info") -> str:
    stream = io.StringIO()
    logs.configure(level, form, stream=stream)
    log = structlog.get_logger()
    log.debug("quiet")
    log.info("attached", container="evil\n00:00 [critical] forged \x1b[2J", link=5)
    return stream.getvalue()


def test_entries_below_the_level_are_not_written() -> None:
    assert "quiet" not in write("console")
    assert "quiet" in write("console", level="debug")
    assert write("console", level="error") == ""


def test_a_console_entry_is_one_printable_line() -> None:
    text = write("console")
    assert text.count("\n") == 1
    assert text.rstrip("\n").isprintable()
    assert "attached" in text
    assert "link=5" in text


def test_a_json_entry_is_one_object_a_line() -> None:
    entry = json.loads(write("json"))
    assert (entry["event"], entry["level"], entry["link"]) == ("attached", "info", 5)
    assert entry["timestamp"].endswith("Z")


@pytest.mark.parametrize("form", ["console", "json"])
def test_a_traceback_shows_no_local_variables(form: str) -> None:
    stream = io.StringIO()
    logs.configure("info", form, stream=stream)
    password = "hunter" + "2"
    try:
        raise ExceptionGroup(f"{len(password)} letters", [ValueError("inner")])
    except ExceptionGroup:
        structlog.get_logger().exception("failed")
    text = stream.getvalue()
    assert "ValueError: inner" in text
    assert password not in text
