"""``amqp10broker`` with small files of the journal: a crash test of seconds meets full and cleaned ones.

Run as a program: ``python -m tests.support.crash_serve BYTES serve ...``.
"""

from __future__ import annotations

import sys

from amqp10broker.cli.main import main
from amqp10broker.runtime.journal import journal_task
from tests.support.journal_harness import files_of

if __name__ == "__main__":
    journal_task.journal_sizes = files_of(int(sys.argv.pop(1)))  # type: ignore[assignment]
    sys.exit(main())
