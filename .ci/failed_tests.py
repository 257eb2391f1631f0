"""Says which tests failed, if they may have a second try alone: `.ci/run` runs it.

Prints them in one line. Exits with 1, and says the reason, if the failure stands as it is.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

RECORD: Final = Path(".pytest_cache/v/cache/lastfailed")
"""What pytest keeps of each run: the failed tests as keys."""

PLACES: Final = ("tests/integration/", "tests/spark/", "tests/runtime/")
"""Tests of real processes, and of tasks, which Trio takes in an order by chance.

All others are the same each time.
"""

MOST: Final = 5
"""More failures than this are no accident."""


def second_try(failed: list[str]) -> list[str]:
    """Returns the tests to run again.

    Raises:
        ValueError: The failure stands; the text says why.
    """
    if not failed:
        raise ValueError("no test failed: the run itself broke off")
    if elsewhere := [test for test in failed if not test.startswith(PLACES) or "::" not in test]:
        raise ValueError(f"{elsewhere[0]} is the same each time: it has no second try")
    if len(failed) > MOST:
        raise ValueError(f"{len(failed)} tests failed: at most {MOST} have a second try")
    return sorted(failed)


def main() -> int:
    """The command."""
    failed = list(json.loads(RECORD.read_text())) if RECORD.exists() else []
    try:
        print(*second_try(failed), sep=", ")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
