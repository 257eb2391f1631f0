"""``amqp10broker`` whose journal is read only when a file is there: a recovery as long as a test wants.

Run as a program: ``python -m tests.support.gated_serve FILE serve ...``.
"""

from __future__ import annotations

import os
import sys

import trio

from amqp10broker.cli.main import main
from amqp10broker.runtime.journal.journal_task import JournalTask
from amqp10broker.runtime.queues import queues


def hold_recovery(gate: str) -> None:
    """Hold recovery until the file exists; operations that need its queues wait nearly for ever."""
    queues.SETTLE_S = 600.0  # type: ignore[misc]
    recover = JournalTask._recover

    async def recover_later(journal_task: JournalTask) -> None:
        while not os.path.exists(gate):  # noqa: ASYNC110, ASYNC240
            await trio.sleep(0.01)
        await recover(journal_task)

    JournalTask._recover = recover_later  # type: ignore[method-assign]


if __name__ == "__main__":
    hold_recovery(sys.argv.pop(1))
    sys.exit(main())
