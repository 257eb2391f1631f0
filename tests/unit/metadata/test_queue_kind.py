"""Kinds of queue are facts, and nobody asks for a kind by its name who could ask for a fact."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import amqp10broker

PACKAGE = Path(amqp10broker.__file__).parent
READS_WHAT_A_CONSUMER_ASKS_FOR = {
    "sessions/amqp10/attach.py",
    "sessions/amqp091/consuming.py",
}


@pytest.mark.parametrize("room", ["sessions", "operations"])
def test_a_kind_is_asked_for_where_its_arguments_are_read_and_nowhere_else(room: str) -> None:
    compares = re.compile(r"\bqueue\.type (==|!=|is|in|not)|QueueType\.|\bVOLATILE\b")
    asking = {
        str(path.relative_to(PACKAGE))
        for path in (PACKAGE / room).rglob("*.py")
        if compares.search(path.read_text())
    }
    assert asking <= READS_WHAT_A_CONSUMER_ASKS_FOR
