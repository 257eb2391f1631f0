"""The rules are as the page says, and each has its tests."""

from __future__ import annotations

import re
from pathlib import Path

from amqp10broker.tools.lint.rules import RULES
from tests.unit.lint import test_amqp091, test_amqp10

PAGE = Path(__file__).parents[3] / "docs" / "frames.md"


def test_every_rule_has_a_client_that_breaks_it() -> None:
    """One in each protocol that can."""
    assert set(RULES) == {rule.id for rule in (*test_amqp10.CASES, *test_amqp091.CASES)}


def test_the_page_lists_the_rules_in_their_words() -> None:
    """Id, sort, and what is looked for."""
    rows = re.findall(r"^\| `([a-z-]+)` \| (\w+) \| (.+?) \|", PAGE.read_text(), re.MULTILINE)
    assert rows == [(rule.id, rule.sort.value, rule.finds) for rule in RULES.values()]
