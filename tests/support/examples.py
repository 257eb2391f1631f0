"""How many examples a property is tried with."""

from __future__ import annotations

import os


def tried(examples: int) -> int:
    """Return `examples`, or fewer in CI, which tries the same examples in each run."""
    return max(20, examples * 2 // 5) if "CI" in os.environ else examples
