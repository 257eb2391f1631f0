"""docs/rabbitmq-cases.md says the truth: each test that it names exists, and its counts are right."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
DOCUMENT = (TESTS.parent / "docs" / "rabbitmq-cases.md").read_text()
MARKS = ["ours", "differs", "n/a", "open"]

NAMED = re.compile(r"`([a-z0-9_/]+\.py)::(test_\w+)`")
SCRIPT = re.compile(r"`(scripts/\w+\.txt)`")
ROW = re.compile(r"^\| (`[^`|]+`|\([^|]+\)) \| ([^|]+) \| (.+) \|$")


@cache
def functions(path: Path) -> frozenset[str]:
    """Names of the functions of a module."""
    tree = ast.parse(path.read_text()) if path.exists() else ast.Module([], [])
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def rows() -> list[tuple[str, str, str, str]]:
    """Suite, case, mark and remark of every case."""
    found = []
    suite = ""
    for line in DOCUMENT.splitlines():
        if line.startswith("## "):
            suite = line.removeprefix("## ")
        elif match := ROW.match(line):
            found.append((suite, match[1], match[2], match[3]))
    return found


def test_every_test_that_is_named_exists() -> None:
    """A test that was renamed must be renamed in the document, too."""
    named = NAMED.findall(DOCUMENT)
    assert len(named) > 400
    assert [f"{path}::{name}" for path, name in named if name not in functions(TESTS / path)] == []
    scripts = SCRIPT.findall(DOCUMENT)
    assert scripts
    assert [path for path in scripts if not (TESTS / path).exists()] == []


def test_every_case_has_a_mark_and_what_the_mark_asks_for() -> None:
    """ours and differs name a test; the others give a reason; no case stands twice in its suite."""
    for suite, case, mark, remark in rows():
        assert mark in MARKS, (suite, case)
        has_test = bool(NAMED.search(remark) or SCRIPT.search(remark))
        assert has_test or mark not in ("ours", "differs"), (suite, case)
        assert remark.strip(), (suite, case)
    twice = [
        key for key, number in Counter((suite, case) for suite, case, *_ in rows()).items() if number > 1
    ]
    assert twice == []


def test_the_counts_are_right() -> None:
    """One row a suite, and their sums."""
    counts: dict[str, Counter[str]] = {}
    for suite, _, mark, _ in rows():
        counts.setdefault(suite, Counter())[mark] += 1
    counts["all"] = sum(counts.values(), Counter())
    expected = [
        f"| {suite} | {' | '.join(str(count[mark]) for mark in MARKS)} |" for suite, count in counts.items()
    ]
    table = DOCUMENT.partition("## Counts")[2].partition("## ")[0].strip().splitlines()
    assert table[2:] == expected
