"""The documents hang together: what they link to is there, and the index names every page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from amqp10broker.emulation import ROWS

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted(
    [
        REPOSITORY / "CONTRIBUTING.md",
        *(REPOSITORY / folder / "README.md" for folder in (".", "examples", "tests", "amqp10broker/runtime")),
        *REPOSITORY.glob("docs/*.md"),
        *REPOSITORY.glob("docs/adr/*.md"),
    ]
)
_LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)]*)?\)")
FOLDERS = ("amqp10broker", "benchmarks", "tests", "examples", "docs", "spec", ".ci")
_NAMED = re.compile(r"`(?!\.\./)([\w./-]+\.(?:py|md|txt|toml|xml))(?:::\w+)?`")
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[str]:
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    return [link for link in _LINK.findall(text) if "://" not in link]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_what_a_page_links_to_is_there(page: Path) -> None:
    """A page that was moved or renamed takes its links with it."""
    assert [link for link in links(page) if not (page.parent / link).exists()] == []


def paths() -> set[str]:
    """Every way to write the path of a file of this repository, from a folder on or by its name alone."""
    files = [path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*") if path.is_file()]
    files += [path for path in REPOSITORY.iterdir() if path.is_file()]
    parts = [path.relative_to(REPOSITORY).parts for path in files]
    return {"/".join(each[first:]) for each in parts for first in range(len(each))}


def named(text: str) -> set[str]:
    return set(_NAMED.findall(_FENCED.sub("", text)))


def test_files_named_in_backticks_are_there() -> None:
    """In documents and in sources: a module that is renamed takes its name along."""
    there = paths()
    sources = [path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*.py")]
    notes = REPOSITORY.glob("benchmarks/**/*.md")
    missing = {
        f"{page.relative_to(REPOSITORY)}: {name}"
        for page in (*PAGES, *notes, *sources)
        for name in named(page.read_text(encoding="utf-8"))
        if name not in there
    }
    assert sorted(missing) == []


def test_the_page_of_versions_has_the_rows_of_the_table() -> None:
    """A value that another version of the broker has is another line."""
    page = (REPOSITORY / "docs" / "differences-from-rabbitmq.md").read_text()
    words = {True: "yes", False: "no", None: "none", "": "this broker's"}
    for row in ROWS:
        shown = [
            str(each) if type(each) is int else words.get(each, each) for each in (*row.values, row.unset)
        ]
        assert "| " + " | ".join([f"`{row.name}`", *shown, row.change]) + " |\n" in page
