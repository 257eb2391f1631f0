"""``amqp10broker doctor``: checks a running broker against the rules of production."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from textwrap import wrap
from typing import Any, Final

from amqp10broker.cli import tables
from amqp10broker.cli.calls import CommandCall, add_formatter
from amqp10broker.cli.exits import EXIT_OK, EXIT_UNAVAILABLE

COLUMNS: Final = ("state", "check", "evidence", "to_do")
OK: Final = "ok"
WIDTH: Final = 80


def _shown(arguments: argparse.Namespace, found: Any) -> None:
    if arguments.format == "json":
        sys.stdout.write(tables.as_json(found))
    elif arguments.format == "table":
        print("\n".join(_page(found["checks"])))
    else:
        sys.stdout.write(tables.render(COLUMNS, found["checks"], arguments.format))


def _page(checks: Sequence[Mapping[str, str]]) -> Iterator[str]:
    fill = partial(
        wrap, width=WIDTH, subsequent_indent=" " * 10, break_long_words=False, break_on_hyphens=False
    )
    for row in checks:
        if row["state"] != OK:
            yield from fill(tables.cell(f"{row['state']:9} {row['check']}: {row['evidence']}"))
            yield from fill(tables.cell(f"{'':9} do: {row['to_do']}"))
    yield from fill(f"{OK:9} {', '.join(row['check'] for row in checks if row['state'] == OK) or 'nothing'}")


CALLS: Final = (
    CommandCall(
        "doctor",
        _shown,
        more=add_formatter,
        code=lambda found: (
            EXIT_UNAVAILABLE if any(row["state"] == "bad" for row in found["checks"]) else EXIT_OK
        ),
        description="Say what of this node is not as it should be in production, the worst first: the state "
        "of a check (bad, warn, unknown), what shows it, and what to do; then the checks that are ok. Those "
        "that do not apply are left out. As csv, plain and json each check has a row. The exit code is 0 if "
        "nothing is bad, else 69. docs/operating.md has the checks. In a cluster, ask each node.",
    ),
)
