"""The pages that say which test shows what: the tests they name exist, and no row is without one."""

from __future__ import annotations

import ast
import re
import runpy
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from amqp10broker.api.endpoints import ROUTES
from amqp10broker.api.front import Tag

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"
GENERATOR = runpy.run_path(str(TESTS.parent / ".ci" / "generate_rabbitmq_cases.py"))
FEATURES = TESTS / "queue-features.md"
SPECIFICATION = DOCS / "spec-map.md"
CLUSTER = DOCS / "cluster-rules.md"
HTTP = DOCS / "http-api.md"
HTTP_TESTS = TESTS / "http-api.md"
BEYOND = (
    ("A", DOCS / "settings.md"),
    ("J", DOCS / "jms.md"),
    ("L", DOCS / "amqp10.md"),
    ("P", DOCS / "testing.md"),
    ("S", DOCS / "filters.md"),
    ("T", DOCS / "transactions.md"),
    ("W", DOCS / "amqp10.md"),
    ("X", DOCS / "amqp10.md"),
)
"""Rules of AMQP 1.0 beyond transfer and flow: their letter and their page."""

NAMED = re.compile(r"`(?:tests/)?([a-z0-9_/]+\.py)::(test_\w+)`")
SCRIPT = re.compile(r"`(scripts/\w+\.txt)`")
PATH = re.compile(r"`(tests/[\w/.*]+)`")


@cache
def functions(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text()) if path.exists() else ast.Module([], [])
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def absent(text: str) -> list[str]:
    named = [f"{path}::{name}" for path, name in NAMED.findall(text) if name not in functions(TESTS / path)]
    return named + [path for path in SCRIPT.findall(text) if not (TESTS / path).exists()]


def rows(text: str) -> list[list[str]]:
    lines = text.splitlines()
    return [
        [cell.strip() for cell in line.strip("| ").split(" | ")]
        for line, following in zip(lines, [*lines[1:], ""], strict=True)
        if line.startswith("| ") and not following.startswith("|---")
    ]


@pytest.mark.parametrize(
    ("page", "least"), [(FEATURES, 450), (SPECIFICATION, 5), (CLUSTER, 1), (HTTP_TESTS, 1)]
)
def test_every_test_that_is_named_exists(page: Path, least: int) -> None:
    """A test that was renamed must be renamed in the page, too."""
    text = page.read_text()
    assert len(NAMED.findall(text)) >= least
    assert absent(text) == []
    assert [path for path in PATH.findall(text) if not list(TESTS.parent.glob(path))] == []


def test_every_case_of_rabbitmqs_suites_has_a_test_or_a_reason() -> None:
    """A case whose test was deleted is missing from the count of its suite."""
    found = {suite: len(named) for suite, named in GENERATOR["cases"]().items()}
    assert found == GENERATOR["counts"]()


def test_the_tests_that_the_generated_page_names_exist() -> None:
    """This includes the reasons, which are written by hand."""
    text = GENERATOR["render"]()
    assert len(NAMED.findall(text)) >= 1000
    assert absent(text) == []


def test_every_feature_names_a_test_or_says_why_not() -> None:
    """A feature that is not applicable gives its reason; each of the others has a test."""
    features = rows(FEATURES.read_text())
    assert len(features) > 180
    for *_, shown in features:
        assert NAMED.search(shown) or SCRIPT.search(shown) or shown.startswith("n/a: "), shown


def test_no_feature_stands_twice_in_its_table() -> None:
    for table in FEATURES.read_text().split("\n## ")[1:]:
        firsts = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| ")]
        assert len(firsts) == len(set(firsts)), table[:40]


def test_every_clause_names_its_tests() -> None:
    tables = SPECIFICATION.read_text().split("\nTheir prose names rules by letter:")
    clauses = rows(tables[0]) + rows(tables[1].partition("\n## ")[2])
    assert len(clauses) > 60
    assert [row for row in clauses if not PATH.search(row[-1]) and not NAMED.search(row[-1])] == []


def test_a_row_of_the_map_names_a_file_once() -> None:
    """Two files that became one leave its name twice."""
    for row in rows(SPECIFICATION.read_text()):
        for cell in row:
            folder, named = "", []
            for name in re.findall(r"`([^`]+\.py)`", cell):
                # A name without a folder is in that of the one before.
                folder = name.rpartition("/")[0] or folder
                named.append(f"{folder}/{name.rpartition('/')[2]}")
            assert len(named) == len(set(named)), cell


def test_every_script_and_every_module_of_clauses_is_in_the_map() -> None:
    """A script is named for its rule; a conformance module is of a section, or has RabbitMQ's cases."""
    text = SPECIFICATION.read_text() + GENERATOR["render"]()
    rules = {f"`tests/scripts/{path.name[:3]}_*`" for path in TESTS.glob("scripts/*.txt")}
    assert len(rules) == 14
    assert sorted(rule for rule in rules if rule not in text) == []
    modules = {path.name for path in TESTS.glob("conformance/test_*.py")}
    assert sorted(name for name in modules if name not in text) == []


def test_every_rule_of_a_cluster_has_a_row_with_a_test_or_is_said_to_be_open() -> None:
    found = rows(CLUSTER.read_text())
    letters = Counter(rule[0] for rule, *_ in found)
    assert len(letters) > 20
    assert [rule for rule, *_ in found] == [
        f"{letter}{number}" for letter, count in letters.items() for number in range(1, count + 1)
    ]
    assert [row for row in found if not NAMED.search(row[-1]) and not row[-1].startswith("open")] == []


@pytest.mark.parametrize(("letter", "page"), BEYOND)
def test_every_rule_beyond_transfer_and_flow_has_a_row(letter: str, page: Path) -> None:
    found = [row for row in rows(page.read_text()) if re.fullmatch(rf"{letter}\d+", row[0])]
    assert found
    assert [rule for rule, *_ in found] == [f"{letter}{number}" for number in range(1, len(found) + 1)]
    said = ("open", "not done: ")
    shown = [row for row in found if NAMED.search(row[-1]) or SCRIPT.search(row[-1])]
    assert [row for row in found if row not in shown and not row[-1].startswith(said)] == []
    assert absent("".join(row[-1] for row in found)) == []


def test_every_path_of_the_http_api_has_its_row() -> None:
    """The row has the methods, a test, and each method's tag unless that is management."""
    said = {row[0].strip("`"): row[1] for row in rows(HTTP.read_text()) if row[0].startswith("`/")}
    shown = {row[0].strip("`"): row[1] for row in rows(HTTP_TESTS.read_text()) if row[0].startswith("`/")}
    assert all(map(NAMED.search, shown.values()))
    assert shown.keys() == said.keys()
    assert said == {
        route.pattern.removeprefix("/api"): ", ".join(
            f"{method}{_needed(endpoint.tag)}" for method, endpoint in route.endpoints.items()
        )
        for route in ROUTES
    }


def test_no_path_of_the_http_api_is_there_twice() -> None:
    for paths in (
        [route.pattern for route in ROUTES],
        [row[0] for row in rows(HTTP.read_text()) if row[0].startswith("`/")],
    ):
        assert [path for path, count in Counter(paths).items() if count > 1] == []


def _needed(tag: Tag | None) -> str:
    if tag is Tag.MANAGEMENT:
        return ""
    return " (no login)" if tag is None else f" ({tag.value})"
