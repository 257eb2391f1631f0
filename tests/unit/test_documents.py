"""The documents hang together: what they link to is there, and the index names every page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted(
    [
        *(REPOSITORY / folder / "README.md" for folder in (".", "examples", "amqp10broker/tasks")),
        *REPOSITORY.glob("docs/*.md"),
        *REPOSITORY.glob("docs/adr/*.md"),
    ]
)
_LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)]*)?\)")
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[str]:
    """What a page links to in this repository."""
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    return [link for link in _LINK.findall(text) if "://" not in link]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_what_a_page_links_to_is_there(page: Path) -> None:
    """A page that was moved or renamed takes its links with it."""
    assert [link for link in links(page) if not (page.parent / link).exists()] == []


def test_the_index_names_every_page() -> None:
    """Who looks for something begins there."""
    index = REPOSITORY / "docs" / "README.md"
    named = {(index.parent / link).resolve() for link in links(index)}
    pages = {page for page in REPOSITORY.glob("docs/*.md") if page != index}
    assert sorted(page.name for page in pages - named) == []


def test_the_readme_can_be_read_in_a_few_minutes() -> None:
    """What is longer stands in docs/."""
    assert len((REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()) <= 140
