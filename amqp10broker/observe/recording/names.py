"""Names of runs and of their files: safe on every file system, and in the folder names of partitions."""

from __future__ import annotations

import re
from typing import Final

_SAFE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
# The length of a chosen run name, which leaves room for a number behind it.
NAME_MAX: Final = 120


def check_run_id(name: str, what: str = "run id") -> str:
    """Return a name that is valid as a run id, or as a prefix of files.

    Letters, digits, ``.``, ``_`` and ``-``, at most 128, and a letter or digit first: readers ignore files
    that begin with ``_`` or ``.``. Readers must declare the partition column as text: those that infer types
    take ``2026-01-01`` for a date. Raises `ValueError` if the name is invalid; the message contains the rule.
    """
    if not _SAFE.fullmatch(name):
        raise ValueError(
            f"{what} is {name!r}; it must be 1 to 128 letters, digits, '.', '_' or '-', "
            "beginning with a letter or digit"
        )
    return name


def check_run_name(name: str) -> str:
    """Return a name that is valid for many runs, each but the first with a number behind it. Raises
    `ValueError` if it is not a run id, or too long for a number.
    """
    check_run_id(name)
    if len(name) > NAME_MAX:
        raise ValueError(
            f"run id has {len(name)} letters; a name for runs must have {NAME_MAX} at most, because the runs "
            "that follow get a number behind it"
        )
    return name


def numbered(name: str, number: int) -> str:
    """Return the id of the n-th run of a name: ``prod``, ``prod-2``, ``prod-3``."""
    return name if number == 1 else f"{name}-{number}"
