"""Write the page of RabbitMQ's test cases, build/docs/rabbitmq-cases.md, from the marks of the tests.

A test that checks the same as a case of RabbitMQ's suites is marked with it:
``@pytest.mark.rabbitmq(suite, case)``, with ``differs="..."`` where this broker differs on purpose, or
``note="..."`` where the case needs an explanation. A frame script has the same mark as a line of prose:
``# rabbitmq(suite, case)``. Cases without a test, and the reasons, are in tests/rabbitmq_cases.toml, with the
number of cases of each suite. A test compares those numbers with the cases found here, so that a case does
not vanish with the test that checked it.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
PAGE = ROOT / "build" / "docs" / "rabbitmq-cases.md"
TABLE = TESTS / "rabbitmq_cases.toml"
MARKS = ("ours", "differs", "n/a", "open")
INTRODUCTION = """# RabbitMQ's test cases, and the tests of this broker

The cases of the suites of RabbitMQ 4.3 about exchanges, queues of all kinds, dead letters, policies, streams
and their filters, AMQP 0-9-1, AMQP 1.0, management, users and limits. Paths are below `tests/`.

| mark | meaning |
|---|---|
| ours | the named tests check the case |
| differs | the named tests check where this broker differs on purpose: docs/differences-from-rabbitmq.md |
| n/a | the case is about Erlang, or about a feature that this broker leaves out on purpose |
| open | the case applies, and the feature or its test is missing, for the reason given |

## Counts
"""


class Mark(NamedTuple):
    """One case named by the mark of one test."""

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
    without = tomllib.loads(TABLE.read_text(encoding="utf-8"))["without"]
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


def counts() -> dict[str, int]:
    """Return how many cases each suite of RabbitMQ has, as the table states."""
    stated: dict[str, int] = tomllib.loads(TABLE.read_text(encoding="utf-8"))["counts"]
    return stated


def render() -> str:
    """Return the page: the introduction, the counts, and a table for each suite."""
    table = cases()
    found = {suite: Counter(kind for kind, _ in named.values()) for suite, named in table.items()}
    found["all"] = sum(found.values(), Counter())
    lines = [INTRODUCTION, f"| suite | {' | '.join(MARKS)} |", "|---|" + "---|" * len(MARKS)]
    lines += [
        f"| {suite} | {' | '.join(str(count[mark]) for mark in MARKS)} |" for suite, count in found.items()
    ]
    for suite, named in table.items():
        lines += ["", f"## {suite}", "", "| case | mark | where, or why not |", "|---|---|---|"]
        lines += [f"| {case} | {kind} | {where} |" for case, (kind, where) in named.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(render(), encoding="utf-8")
    print(PAGE.relative_to(ROOT))
