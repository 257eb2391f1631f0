"""docs/queue-features.md says the truth: each test it names exists, each row names one or says why not."""

from __future__ import annotations

from pathlib import Path

from tests.unit.test_rabbitmq_cases import NAMED, SCRIPT, TESTS, functions

DOCUMENT = (Path(__file__).parents[2] / "docs" / "queue-features.md").read_text()


def rows() -> list[list[str]]:
    """The cells of every row of every table, without heads."""
    found = []
    lines = DOCUMENT.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("| ") and not following.startswith("|---"):
            found.append([cell.strip() for cell in line.strip("| ").split(" | ")])
    return found


def test_every_test_that_is_named_exists() -> None:
    """A test that was renamed must be renamed in the document, too."""
    named = NAMED.findall(DOCUMENT)
    assert len(named) > 300
    assert [f"{path}::{name}" for path, name in named if name not in functions(TESTS / path)] == []
    assert [path for path in SCRIPT.findall(DOCUMENT) if not (TESTS / path).exists()] == []


def test_every_row_names_a_test_or_says_why_not() -> None:
    """What is not applicable gives its reason; everything else is shown by a test."""
    assert len(rows()) > 180
    for *_, shown in rows():
        assert NAMED.search(shown) or SCRIPT.search(shown) or shown.startswith("n/a: "), shown


def test_no_row_stands_twice_in_its_table() -> None:
    """A rule has one place."""
    for table in DOCUMENT.split("\n## ")[1:]:
        firsts = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| ")]
        assert len(firsts) == len(set(firsts)), table[:40]
