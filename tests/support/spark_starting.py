"""Starting a streaming query on a machine that is busy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

_NOT_IN_TIME: Final = "Python worker failed to connect back"
_POLL_S: Final = 0.05


def started(start: Callable[[], Any]) -> Any:
    """Start a streaming query, and wait until its source is there or it has failed.

    Spark gives the Python process of a source ten seconds to start, which no setting changes. A query that
    ended because of that has done nothing, and is started again.
    """
    while True:
        query = start()
        while query.isActive and query.status["message"].startswith("Initializing"):
            time.sleep(_POLL_S)
        failure = query.exception()
        if failure is None or _NOT_IN_TIME not in str(failure):
            return query


__all__ = ["started"]
