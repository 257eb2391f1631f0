"""Print docs/rabbitmq-cases.md from the marks of the tests, or check that it is what they say.

A test that checks what a case of RabbitMQ's suites checks says so: ``@pytest.mark.rabbitmq(suite, case)``,
with ``differs="..."`` where this broker does otherwise on purpose, or ``note="..."`` where the case needs
a word. A frame script has the same as a line of prose: ``# rabbitmq(suite, case)``. Cases without a test,
and why, are in tests/rabbitmq_cases.toml. What stands above the counts is written by hand in the page.

A case that the page has and that neither a mark nor that file names has lost its test: that is refused.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
PAGE = ROOT / "docs" / "rabbitmq-cases.md"
MARKS = ("ours", "differs", "n/a", "open")


class Mark(NamedTuple):
    """What a mark says of one case."""

    suite: str
    case: str
    where: str
    differs: str
    note: str


def read_mark(call: ast.Call, where: str) -> Iterator[Mark]:
    """The cases that one mark names."""
    suite, *cases = (ast.literal_eval(argument) for argument in call.args)
    words = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    for case in cases:
        yield Mark(suite, case, where, words.get("differs", ""), words.get("note", ""))


def marks_of_tests() -> Iterator[Mark]:
    """Of every test function of every module, in the order of files and lines."""
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "mark.rabbitmq(" not in text:
            continue
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                where = f"`{path.relative_to(TESTS).as_posix()}::{node.name}`"
                for decorator in node.decorator_list:
                    if (
                        isinstance(decorator, ast.Call)
                        and ast.unparse(decorator.func) == "pytest.mark.rabbitmq"
                    ):
                        yield from read_mark(decorator, where)


def marks_of_scripts() -> Iterator[Mark]:
    """Of every frame script."""
    for path in sorted(TESTS.glob("scripts/*.txt")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("# rabbitmq("):
                call = ast.parse(line.removeprefix("# "), mode="eval").body
                assert isinstance(call, ast.Call)
                yield from read_mark(call, f"`scripts/{path.name}`")


def shown(case: str) -> str:
    """A case as its row names it: in brackets where RabbitMQ's suite has no name for it."""
    return case if case.startswith("(") else f"`{case}`"


def cases() -> dict[str, dict[str, tuple[str, str]]]:
    """By suite and case: its mark, and where it is checked or why not."""
    found: dict[str, dict[str, list[Mark]]] = {}
    for mark in (*marks_of_tests(), *marks_of_scripts()):
        found.setdefault(mark.suite, {}).setdefault(mark.case, []).append(mark)
    rows: dict[str, dict[str, tuple[str, str]]] = {}
    for suite, named in found.items():
        for case, marks in named.items():
            words = "; ".join(filter(None, (mark.differs or mark.note for mark in marks)))
            where = ", ".join(mark.where for mark in marks) + (f": {words}" if words else "")
            kind = "differs" if any(mark.differs for mark in marks) else "ours"
            rows.setdefault(suite, {})[shown(case)] = kind, where
    without = tomllib.loads((TESTS / "rabbitmq_cases.toml").read_text(encoding="utf-8"))
    for suite, reasons in without.items():
        for reason, names in reasons.items():
            kind, _, why = reason.partition(": ")
            for case in map(shown, names):
                if kind not in ("n/a", "open") or not why:
                    sys.exit(f"{suite}: {reason!r} does not begin with 'n/a: ' or 'open: '")
                if case in rows.setdefault(suite, {}):
                    sys.exit(f"{suite}: {case} is in rabbitmq_cases.toml and elsewhere: {rows[suite][case]}")
                rows[suite][case] = kind, why
    return {
        suite: dict(sorted(named.items(), key=lambda row: row[0].strip("`")))
        for suite, named in sorted(rows.items())
    }


def rows_of(page: str) -> set[tuple[str, str]]:
    """Suites and cases of a page."""
    found = set()
    for section in page.split("\n## ")[2:]:
        suite, *lines = section.splitlines()
        found |= {
            (suite, line.split(" | ")[0].removeprefix("| "))
            for line in lines
            if line.startswith(("| `", "| ("))
        }
    return found


def render(old: str) -> str:
    """The page: the old one's introduction, the counts, a table for each suite."""
    table = cases()
    counts = {suite: Counter(kind for kind, _ in named.values()) for suite, named in table.items()}
    if lost := rows_of(old) - {(suite, case) for suite, named in table.items() for case in named}:
        sys.exit(
            "these cases have lost their test; mark another, or say why in tests/rabbitmq_cases.toml:\n"
            + "\n".join(f"  {suite}: {case}" for suite, case in sorted(lost))
        )
    counts["all"] = sum(counts.values(), Counter())
    lines = [old.partition("## Counts\n")[0] + "## Counts", ""]
    lines += [f"| suite | {' | '.join(MARKS)} |", "|---|" + "---|" * len(MARKS)]
    lines += [
        f"| {suite} | {' | '.join(str(count[mark]) for mark in MARKS)} |" for suite, count in counts.items()
    ]
    for suite, named in table.items():
        lines += ["", f"## {suite}", "", "| case | mark | where, or why not |", "|---|---|---|"]
        lines += [f"| {case} | {kind} | {where} |" for case, (kind, where) in named.items()]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page, or compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to write or compare")
    arguments = parser.parse_args()
    page: Path = arguments.page
    old = page.read_text(encoding="utf-8")
    new = render(old)
    if not arguments.check:
        page.write_text(new, encoding="utf-8")
        return 0
    if old == new:
        return 0
    print(f"{page} is not what the tests say; run python .ci/generate_rabbitmq_cases.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
