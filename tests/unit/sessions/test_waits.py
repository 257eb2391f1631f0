"""The closed set of codes, and the page that explains it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from amqp10broker.operations.snapshot import document
from amqp10broker.sessions.diagnosis.waits import NO_WAIT, Wait, Waiting

PAGE = Path(__file__).parents[3] / "docs" / "waiting.md"


def test_a_code_is_the_name_of_its_member() -> None:
    """Who reads the code finds the member, and its number in flow events, by it."""
    assert [wait.value for wait in Wait] == [wait.name.lower().replace("_", "-") for wait in Wait]


def test_the_page_explains_each_code_and_no_other() -> None:
    """Each has a heading of its own, in the order of the set, and says three things."""
    page = PAGE.read_text(encoding="utf-8")
    sections = dict(re.findall(r"^### `([a-z0-9-]+)`\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL))
    assert list(sections) == [wait.value for wait in Wait]
    for code, text in sections.items():
        for part in ("Means:", "Shown by:", "Do:"):
            assert len(re.findall(rf"^{part} \S", text, re.MULTILINE)) == 1, (code, part)


def test_the_page_gives_each_meaning_as_it_stands_in_the_set() -> None:
    """One wording, so that `status` and the page do not contradict each other."""
    page = PAGE.read_text(encoding="utf-8")
    assert [wait for wait in Wait if f"Means: {wait.meaning}" not in " ".join(page.split("\n"))] == []


def test_the_page_says_what_to_do_as_it_stands_in_the_set() -> None:
    """Each reason has a sentence that helps; links and code marks are the page's own."""
    page = PAGE.read_text(encoding="utf-8")
    told = re.findall(r"^Do: (.*?)\n\n", page, re.MULTILINE | re.DOTALL)
    lines = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", each).replace("`", "") for each in told]
    assert [wait.to_do for wait in Wait] == [" ".join(each.split()) for each in lines]


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        (NO_WAIT, {"waits": None, "waits_why": None, "waits_for_s": None}),
        (
            Waiting(Wait.QUEUE_EMPTY, "why", 1_500),
            {"waits": "queue-empty", "waits_why": "why", "waits_for_s": 1.5},
        ),
        (Waiting(Wait.DRAINING, "why"), {"waits": "draining", "waits_why": "why", "waits_for_s": None}),
        (Waiting(None, "its turn"), {"waits": None, "waits_why": "its turn", "waits_for_s": None}),
    ],
)
def test_a_waiting_as_the_document_has_it(waiting: Waiting, expected: dict[str, object]) -> None:
    """Code, sentence, seconds; null for what is not."""
    assert document(waiting.view()) == expected
