"""The log: levels, both forms, and texts of clients that cannot forge an entry."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest
import structlog

from amqp10broker.cli import serve


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def write(form: str, level: str = "info") -> str:
    stream = io.StringIO()
    serve.configure_log(level, form, stream=stream)
    log = structlog.get_logger()
    log.debug("quiet")
    log.info("attached", container="evil\n00:00 [critical] forged \x1b[2J", link=5)
    return stream.getvalue()


def test_a_console_entry_is_one_printable_line() -> None:
    text = write("console")
    assert text.count("\n") == 1
    assert text.rstrip("\n").isprintable()
    assert "attached" in text
    assert "link=5" in text


def test_whatever_a_field_is_a_json_entry_is_one_line() -> None:
    """Clients choose texts; bytes, lone surrogates and objects have no form in JSON."""
    stream = io.StringIO()
    serve.configure_log("info", "json", stream=stream)
    fields = {"a": "\ud800", "b": b"\xff\n", "c": object(), "d": {1: ("x\u2028y", None)}, "e": "\r\n\0"}
    structlog.get_logger().info("attached", **fields)
    (line,) = stream.getvalue().splitlines()
    entry = json.loads(line)
    assert (entry["a"], entry["e"], entry["d"]) == ("\ud800", "\r\n\0", {"1": ["x\u2028y", None]})


@pytest.mark.parametrize("form", ["console", "json"])
def test_a_traceback_shows_no_local_variables(form: str) -> None:
    stream = io.StringIO()
    serve.configure_log("info", form, stream=stream)
    password = "hunter" + "2"
    try:
        raise ExceptionGroup(f"{len(password)} letters", [ValueError("inner")])
    except ExceptionGroup:
        structlog.get_logger().exception("failed")
    text = stream.getvalue()
    assert "ValueError: inner" in text
    assert password not in text
